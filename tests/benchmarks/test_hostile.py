"""A sample of the random hostile inputs of benchmarks/hostile.py."""

from __future__ import annotations

import pandas as pd
import pytest


@pytest.mark.parametrize("door", ["variables", "index", "atlas", "readers", "options"])
def test_hostile_inputs_are_rejected_in_one_sentence_or_read_as_they_are(door, script):
    hostile = script("hostile")
    failed = {}
    for number in range(round(300 * hostile.SHARES[door])):
        verdict, said = hostile.run_case(door, number, seed=11)
        if verdict == "FAILED":
            failed[f"{door}:{number}"] = said
    assert not failed


def test_the_script_sees_a_silent_difference(script, monkeypatch):
    """Metadata taken by position is a failure, not an accepted input."""
    hostile = script("hostile")

    def by_position(rng, folder):
        given = pd.DataFrame({"age": range(8)}, index=hostile.NAMES[::-1])
        hostile.check_variables({"age": list(given["age"])}, {"age": list(range(8))[::-1]})

    monkeypatch.setitem(hostile.DOORS, "index", by_position)
    verdict, said = hostile.run_case("index", 0)
    assert verdict == "FAILED"
    assert "in place of" in said
