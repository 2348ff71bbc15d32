"""Covariates, several blocks and formulas on the command line: what is said, recorded, and refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Five patients before and after, far apart, in two batches; a name that a terminal or a page could take amiss."""
    rng = np.random.default_rng(0)
    samples = pd.DataFrame({
        "sample": [f"s{i}" for i in range(10)],
        "patient": np.repeat([f"p{i}" for i in range(5)], 2),
        "visit": np.tile(["before", "after"], 5),
        "[red]<b>batch": list("xyxyyxxxyy"),
        "age": [31, 44, 25, 60, 52, 38, 47, 29, 55, 41],
        "center": list("mmmmnnnnnn"),
        "kit": ["k" + letter for letter in "xyxyyxxxyy"],
    })  # fmt: skip
    frame = samples.loc[np.repeat(np.arange(10), 12)].reset_index(drop=True)
    frame["u"] = rng.normal(size=len(frame)) + 4.0 * (frame["visit"] == "after")
    frame["v"] = rng.normal(size=len(frame))
    path = tmp_path_factory.mktemp("designs") / "cells.csv"
    frame.to_csv(path, index=False)
    return path


COMMON = ("-s", "sample", "--permutations", 49)


def test_five_pairs_cannot_decide(pairs, tmp_path, cli):
    result = cli.run("compare", pairs, *COMMON, "-c", "visit", "--block", "patient", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    limit = "With 5 pairs the smallest possible p-value is 0.0625, so the test"
    assert said.startswith(f"{limit} cannot reach 0.05 (visit: PERMANOVA R2 = ")
    assert f"visit: {limit} cannot reach 0.05." in said
    assert "visit: Within the 5 pairs of 'patient', the groups explain" in said
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "cannot reach 0.05</span>" in page
    assert "smallest possible: 0.0625" in page
    (finding,) = json.loads((tmp_path / "out" / "run.json").read_text())["findings"]
    assert finding["tests"]["permanova"]["smallest_p"] == finding["tests"]["permanova"]["p_value"] == 0.0625
    assert finding["pairs"]["n_blocks"] == 5


def test_covariates_are_said_and_recorded(pairs, tmp_path, cli):
    name = "[red]<b>batch"
    result = cli.run("compare", pairs, *COMMON, "-c", "visit", "--adjust", name, "--adjust", "age",
                     "-o", tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert f", adjusted for '{name}' and 'age' (PERMANOVA partial R2 = " in said
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["parameters"]["adjust"] == [name, "age"]
    assert [term["term"] for term in record["design"]["terms"]] == [name, "age", "visit"]
    assert f"--adjust '{name}' --adjust age" in record["command"]["line"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<b>batch" not in page
    assert "Terms of the design" in page
    assert "Freedman" in page


def test_a_formula_and_several_blocks(pairs, tmp_path, cli):
    result = cli.run("compare", pairs, *COMMON, "--formula", "visit + age", "--block", "patient", "--block", "center",
                     "-o", tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["parameters"]["formula"] == "visit + age"
    assert record["parameters"]["block"] == ["patient", "center"]
    assert "--block patient --block center --formula 'visit + age'" in record["command"]["line"]


BAD = {
    "confounded": (["-c", "kit", "--adjust", "[red]<b>batch"], "'kit' not to be determined by"),
    "code": (["--formula", "visit + __import__('os').system('true')"], "a formula of variable names"),
    "unknown": (["--formula", "visit + agee"], r"found 'agee' \(did you mean 'age'\?\)"),
    "both": (
        ["--formula", "visit", "-c", "visit"],
        "--formula alone, .* found --color as well; leave out either --color",
    ),
    "one group": (
        ["-c", "kit", "--adjust", "age", "--block", "patient"],
        "'kit' in every block, found only one group or value in 2 of 5",
    ),
    "batches that are the condition": (
        ["-c", "kit", "--align-batch", "[red]<b>batch"],
        "adjustment can separate these",
    ),
    "nothing to keep": (
        ["--align-batch", "kit"],
        "--color to name variables whose differences --align-batch keeps, .* give --color or --anchors",
    ),
    "anchors without batches": (["--anchors", "kit"], "--align-batch together with --anchors, found none"),
    "alone": (["-c", "visit", "--adjust", "sample"], "'sample'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_designs_leave_nothing(case, pairs, tmp_path, cli):
    options, sentence = BAD[case]
    out = tmp_path / "out"
    cli.fails_with(cli.run("compare", pairs, *COMMON, *options, "-o", out), sentence)
    assert not out.exists()
    doctor = cli.run("doctor", pairs, *COMMON, *options)
    assert doctor.exit_code == 2
