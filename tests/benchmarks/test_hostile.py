"""A sample of the random hostile inputs of benchmarks/hostile.py."""

from __future__ import annotations

import hostile
import pytest


@pytest.mark.parametrize("door", hostile.DOORS)
def test_hostile_inputs_are_rejected_in_one_sentence_or_read_as_they_are(door):
    failed = {}
    for number in range(round(300 * hostile.SHARES[door])):
        verdict, said = hostile.run_case(door, number, seed=11)
        if verdict == "FAILED":
            failed[f"{door}:{number}"] = said
    assert not failed


def test_the_script_sees_a_silent_difference(monkeypatch):
    """Metadata taken by position is a failure, not an accepted input."""

    def by_position(rng, folder):
        given, truth = hostile.pd.DataFrame({"age": range(8)}, index=hostile.NAMES[::-1]), list(range(8))[::-1]
        hostile.check_variables({"age": list(given["age"])}, {"age": truth})

    monkeypatch.setitem(hostile.DOORS, "index", by_position)
    verdict, said = hostile.run_case("index", 0)
    assert verdict == "FAILED"
    assert "in place of" in said
