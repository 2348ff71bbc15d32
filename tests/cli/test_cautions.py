"""Every caution of the doctor is in what compare prints, in its report and in run.json."""

from __future__ import annotations

import html
import json
import re

import numpy as np
import pandas as pd
import pytest
from flowio import create_fcs

from heatmover.cli import _doctor
from heatmover.report.findings import BEFORE


@pytest.fixture
def advice(monkeypatch):
    """What the doctor advised last, in sentences as a terminal shows them."""
    told = []
    show = _doctor._show

    def noted(console, cohort, checkup, *given):
        told[:] = [_doctor.in_options(each) for each in (*checkup.advice, *cohort.warnings)]
        show(console, cohort, checkup, *given)

    monkeypatch.setattr(_doctor, "_show", noted)
    return told


def flowing(text):
    return " ".join(text.split())


def paired(tmp_path):
    """Six patients before and after, with their age and a variable of few numbers."""
    rng = np.random.default_rng(0)
    sample = np.arange(12).repeat(40)
    frame = pd.DataFrame(rng.normal(size=(480, 3)) + rng.normal(size=(12, 3))[sample], columns=["a", "b", "c"])
    frame = frame.assign(sample=[f"s{i:02d}" for i in sample], patient=[f"p{i // 2}" for i in sample])
    frame["visit"] = np.where(sample % 2, "after", "before")
    frame["sex"], frame["stage"] = np.where(sample // 2 % 2, "f", "m"), sample // 2 % 3 + 1
    frame.to_csv(tmp_path / "cells.csv", index=False)
    return [tmp_path / "cells.csv", "-s", "sample"]


def linear(tmp_path):
    """Channels as a flow cytometer counts them, and nobody asks for a transform."""
    rng, folder = np.random.default_rng(0), tmp_path / "fcs"
    folder.mkdir()
    rows = ["file,patient,treatment"]
    for i in range(8):
        values = rng.lognormal(4, 1, size=(60, 2)) * [1 + i % 2, 1]
        with (folder / f"f{i}.fcs").open("wb") as stream:
            create_fcs(stream, values.ravel().tolist(), ["FL1-A", "FL2-A"], ["CD3", "CD19"])
        rows.append(f"f{i}.fcs,p{i // 2},{'drug' if i % 2 else 'none'}")
    (tmp_path / "sheet.csv").write_text("\n".join(rows) + "\n")
    return [folder, "--sample-sheet", tmp_path / "sheet.csv"]


def odd(tmp_path):
    """Unequal features, copies, a column Time, too coarse samples of unequal size, confounded batches."""
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(16) < 8, 12, 40)
    sample = np.arange(16).repeat(sizes)
    frame = pd.DataFrame(rng.normal(size=(sample.size, 3)) * [1, 1, 500], columns=["a", "b", "Time"])
    frame["sample"] = [f"s{i:02d}" for i in sample]
    frame["group"] = np.where(sample < 8, "x", "y")
    frame["batch"] = np.where((sample < 8) ^ (sample == 3), "b1", "b2")
    frame["library"] = rng.choice(["l1", "l2"], sample.size)
    pd.concat([frame, frame.iloc[::4]]).to_csv(tmp_path / "cells.csv", index=False)
    return [tmp_path / "cells.csv", "-s", "sample"]


@pytest.mark.parametrize("words", [[], ["--bias", "raw"]], ids=["corrected", "raw"])
@pytest.mark.parametrize(
    ("cohort", "expected"),
    [
        (
            paired,
            [
                "the samples are paired, and --block patient compares samples within each 'patient'.",
                "'sex' and 'stage' are the same in all samples of each 'patient'",
                "--numeric stage reads it as a number.",
            ],
        ),
        (
            linear,
            [
                "The channels are linear, so a few bright cells dominate the distances. Use --transform logicle, or "
                "--transform arcsinh with --cofactor 150 for flow cytometry and --cofactor 5 for mass cytometry.",
                "the samples are paired, and --block patient compares samples within each 'patient'.",
            ],
        ),
        (
            odd,
            [
                "Features have very different scales, perhaps different units. Compared with the median of the other "
                "features, the standard deviation is ",
                " times as large for 'Time'",
                "'Time' is the time of measurement, not a property of the cell: name the other features in --rep.",
                "20% of the cells are duplicates",
                "'library' differs between cells of the same 'sample'",
                "Perhaps use --sample-key library.",
                "The number of cells is associated with 'group'",
                "'group' and 'batch' are associated",
            ],
        ),
    ],
    ids=["paired", "linear", "odd"],
)  # fmt: skip
def test_compare_says_all_that_the_doctor_says(cohort, expected, words, tmp_path, cli, advice):
    given = [*cohort(tmp_path), "--neighbors", 10, "--allow-components", *words]
    looked = cli.run("doctor", *given)
    assert looked.exit_code == 0, looked.output
    result = cli.run("compare", *given, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    printed = flowing(result.stdout.split(BEFORE)[1])
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    report = flowing(html.unescape(re.sub("<[^>]*>", "", page.split('id="caution"')[1].split("</ul>")[0])))
    notes = json.loads((tmp_path / "out" / "run.json").read_text())["notes"]
    for sentence in advice:
        assert flowing(f"- {sentence}") in flowing(looked.stdout)
        assert flowing(f"- {sentence}") in printed
        assert flowing(sentence) in report
        assert sentence in notes
    for part in expected:
        assert any(part in sentence for sentence in advice), part


def test_a_study_without_a_file_tells_of_pairs():
    import heatmover as hm

    data = hm.datasets.cohort(12, cells_per_sample=30)
    table = {"visit": ["before", "after"] * 6, "patient": np.repeat(list("abcdef"), 2)}
    study = hm.study_comparison(hm.compare(data.points, data.labels, n_neighbors=10), table)
    assert any("the samples are paired, and block='patient' compares samples" in note for note in study.notes)


def test_halves_are_one_number(tmp_path, cli):
    """The doctor tells the share of halves that compare finds, or none."""
    given = [*paired(tmp_path), "--neighbors", 10]
    result = cli.run("compare", *given, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    share = json.loads((tmp_path / "out" / "run.json").read_text())["uncertainty"]["retrieval"]
    told = f"Split-half retrieval: {100 * share:.0f}%"
    assert told in flowing(cli.run("doctor", *given).stdout)
    assert told in flowing(result.stdout)
    for words in (["--landmarks", 100], ["--align-batch", "stage", "-c", "visit"]):
        assert "Split-half retrieval:" not in flowing(cli.run("doctor", *given, *words).stdout)
