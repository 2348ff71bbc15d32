"""`heatmover compare` in pieces: the options reach the package, bad ones end it before a cell is read."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from heatmover.cohort import read_cohort
from heatmover.study.scale import compare_cohort


@pytest.fixture(scope="module")
def cells(tmp_path_factory, make):
    return make.h5ad(make.frame(8, 100), tmp_path_factory.mktemp("large") / "cells.h5ad")


@pytest.fixture(autouse=True)
def plain_report(monkeypatch):
    """A report that is quick to write."""
    monkeypatch.setattr(
        "heatmover.report.folder.write_report", lambda study, path, *, title: path.write_text(str(title))
    )


def distances(folder):
    lines = (folder / "distances.csv").read_text().splitlines()
    return np.array([[float(value) for value in line.split(",")[1:]] for line in lines[1:]])


def test_the_result_is_that_of_the_package_and_resumes(cells, tmp_path, cli):
    options = ["-s", "sample", "--landmarks", "60", "--checkpoint", tmp_path / "run.zarr"]
    result = cli.run("compare", cells, *options, "--memory", "1GB", "-o", tmp_path / "first")
    assert result.exit_code == 0, result.output
    expected = compare_cohort(read_cohort(cells, sample_key="sample"), landmarks=60, bias="corrected").distances
    np.testing.assert_array_equal(distances(tmp_path / "first"), expected)
    record = json.loads((tmp_path / "first" / "run.json").read_text())
    assert "--memory 1GB" in record["command"]["line"]
    again = cli.run("compare", cells, *options, "--resume", "-o", tmp_path / "second")
    assert again.exit_code == 0, again.output
    np.testing.assert_array_equal(distances(tmp_path / "second"), expected)
    words = shlex.split(record["command"]["line"])
    assert words[:2] == ["heatmover", "compare"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--memory", "much"], "--memory to be a number of bytes"),
        (["--memory", "1GB", "--landmarks", "none"], "landmarks for cells that stay on disk"),
        (["--resume"], "a checkpoint to resume, found none"),
        (["--checkpoint", "THERE"], "a checkpoint that does not exist yet, found .*; --resume continues it"),
        (["--scheduler", "tcp://127.0.0.1:1"], "a Dask scheduler at 'tcp://127.0.0.1:1', found none that answers"),
        (["--missing", "ignore"], "--missing to be one of 'refuse', 'drop'"),
    ],
)
def test_bad_options_end_it_before_a_cell_is_read(cells, tmp_path, cli, monkeypatch, options, sentence):
    monkeypatch.setattr("heatmover.study.scale.stages.PATIENCE", 0.5)
    monkeypatch.setattr("heatmover.cli._settings.read_cohort", lambda *_, **__: pytest.fail("read cells"))
    (tmp_path / "there").mkdir()
    options = [str(tmp_path / "there") if option == "THERE" else option for option in options]
    result = cli.run("compare", cells, "-s", "sample", *options, "-o", tmp_path / "out")
    cli.fails_with(result, sentence)
    assert not (tmp_path / "out").exists()


def test_a_budget_that_is_too_small_is_told(cells, tmp_path, cli):
    result = cli.run("compare", cells, "-s", "sample", "--memory", "10MB", "-o", tmp_path / "out")
    cli.fails_with(result, "memory of at least .* MB .*, found 10 MB")


def test_cells_without_a_value_may_be_left_out(make, tmp_path, cli):
    frame = make.frame(6, 60)
    frame.loc[[3, 70], "CD4"] = np.nan
    cells = make.h5ad(frame, tmp_path / "cells.h5ad")
    refused = cli.run("compare", cells, "-s", "sample", "-o", tmp_path / "out")
    cli.fails_with(refused, "2 such values in 2 cells .*--missing drop")
    result = cli.run("compare", cells, "-s", "sample", "--missing", "drop", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    notes = json.loads((tmp_path / "out" / "run.json").read_text())["notes"]
    assert any("2 of 360 cells were left out because of NaN or infinity" in note for note in notes)


@pytest.mark.parametrize("command", [["compare"], ["atlas", "build"]])
def test_a_table_is_read_within_the_memory_too(command, tmp_path, cli):
    path = tmp_path / "cells.csv"
    columns = [f"g{i}" for i in range(4_500)]
    rows = [f"{sample}," + ",".join(["1.5"] * len(columns)) for sample in "aabb"]
    path.write_text("\n".join([",".join(["sample", *columns]), *rows, ""]))
    result = cli.run(*command, path, "-s", "sample", "--memory", "100MB", "-o", tmp_path / "out")
    cli.fails_with(result, r"--memory of at least 108 MB for 4,500 columns, found 100 MB")
    assert not (tmp_path / "out").exists()
