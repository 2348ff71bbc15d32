"""Places that will not do are refused before a cell is read, and nothing is written."""

from __future__ import annotations

import shutil
import warnings

import anndata
import numpy as np
import pytest
import zarr

import heatmover as hm
from heatmover.cli._settings import check_places
from heatmover.report.folder import EVERY
from heatmover.study.scale.stages import open_checkpoint


@pytest.fixture(autouse=True)
def no_work(monkeypatch):
    monkeypatch.setattr("heatmover.cli._settings.read_cohort", lambda *_, **__: pytest.fail("read cells"))
    monkeypatch.setattr("heatmover.datasets.cohort", lambda *_, **__: pytest.fail("simulated"))


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["compare", "CELLS", "-s", "sample", "-o", ""], "--out"),
        (["compare", "CELLS", "-s", "sample", "-o", "OUT", "--checkpoint", ""], "--checkpoint"),
        (["compare", "CELLS", "-s", "sample", "-o", "OUT", "--sample-sheet", ""], "--sample-sheet"),
        (["compare", "", "-s", "sample", "-o", "OUT"], "FILE"),
        (["doctor", ""], "FILE"),
        (["doctor", "CELLS", "--sample-sheet", ""], "--sample-sheet"),
        (["demo", "-o", ""], "--out"),
        (["atlas", "build", "CELLS", "-s", "sample", "-o", ""], "--out"),
        (["atlas", "build", "CELLS", "-s", "sample", "-o", "OUT", "--sample-sheet", ""], "--sample-sheet"),
        (["atlas", "map", "ATLAS", "", "-o", "OUT"], "FILE"),
        (["atlas", "map", "", "CELLS"], "ATLAS"),
        (["atlas", "map", "ATLAS", "CELLS", "-o", ""], "--out"),
        (["atlas", "add", "ATLAS", "CELLS", "--sample-sheet", ""], "--sample-sheet"),
        (["atlas", "add", "", "CELLS"], "ATLAS"),
        (["atlas", "info", ""], "ATLAS"),
        (["atlas", "check", ""], "ATLAS"),
    ],
)
def test_an_empty_path_is_refused(cells, tmp_path, cli, monkeypatch, arguments, option):
    monkeypatch.chdir(tmp_path)
    places = {"CELLS": cells, "OUT": tmp_path / "out"}
    result = cli.run(*(places.get(word, word) for word in arguments))
    cli.fails_with(result, f"Expected {option} to be a path, found an empty path")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_address_is_refused(cells, tmp_path, cli):
    result = cli.run("compare", cells, "-s", "sample", "-o", tmp_path / "out", "--scheduler", "")
    cli.fails_with(result, "the address of a Dask scheduler, found an empty address")


@pytest.mark.parametrize("command", [["compare", "CELLS", "-s", "sample"], ["demo"]])
@pytest.mark.parametrize("kind", ["broken", "loop", "file", "below a file", "below broken"])
def test_a_folder_that_cannot_be_is_refused(cells, tmp_path, cli, command, kind):
    out = tmp_path / "out"
    out.write_text("x") if "file" in kind else out.symlink_to("out" if kind == "loop" else "nowhere")
    words = [cells if word == "CELLS" else word for word in command]
    result = cli.run(*words, "-o", out / "below" if "below" in kind else out)
    cli.fails_with(result, "--out to (name a folder, found that .* is a (file|broken link)|be a writable folder)")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_results_never_replace_their_input(cells, tmp_path, cli):
    shutil.copy(cells, tmp_path / "samples.h5ad")
    (tmp_path / "distances.csv").write_text("sample,age\n")
    run = ["compare", tmp_path / "samples.h5ad", "-s", "sample", "--force", "-o", tmp_path]
    cli.fails_with(cli.run(*run), "--out that does not overwrite the input, found .*samples.h5ad")
    sheet = ["compare", cells, "-s", "sample", "--sample-sheet", tmp_path / "distances.csv", "--force", "-o", tmp_path]
    cli.fails_with(cli.run(*sheet), "--out that does not overwrite the input, found .*distances.csv")
    assert (tmp_path / "samples.h5ad").read_bytes() == cells.read_bytes()


@pytest.mark.parametrize("below", ["", "results"])
def test_results_and_checkpoints_stay_out_of_stores(cells, tmp_path, cli, below):
    store = tmp_path / "cells.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a change of default, which does not matter here
        anndata.read_h5ad(cells).write_zarr(store)
    before = sorted(store.rglob("*"))
    result = cli.run("compare", store, "-s", "sample", "--force", "-o", store / below)
    cli.fails_with(result, "--out outside of the input, found")
    result = cli.run("compare", store, "-s", "sample", "--checkpoint", store / below, "-o", tmp_path / "out")
    cli.fails_with(result, "--checkpoint outside of the input, found")
    place = tmp_path / "run.zarr"
    result = cli.run("compare", store, "-s", "sample", "--checkpoint", place, "-o", place / below)
    cli.fails_with(result, "--out outside of --checkpoint, found")
    assert sorted(store.rglob("*")) == before


# Every command with an option that names a place, the input first.
WRITERS = [
    ["compare", "FILE", "-s", "sample", "--force", "-o", "PLACE"],
    ["compare", "FILE", "-s", "sample", "-o", "OUT", "--checkpoint", "PLACE"],
    ["demo", "--force", "-o", "PLACE"],
    ["atlas", "map", "ATLAS", "FILE", "--force", "-o", "PLACE"],
    ["atlas", "build", "FILE", "-s", "sample", "--force", "-o", "PLACE"],
    ["atlas", "build", "FILE", "-s", "sample", "-o", "OUT", "--checkpoint", "PLACE"],
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory, cells):
    """One of each kind, as users make them."""
    folder = tmp_path_factory.mktemp("stores")
    data = hm.datasets.cohort(6, cells_per_sample=30)
    model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit()
    model.save(folder / "model")
    hm.build_atlas(data.points, data.labels).save(folder / "atlas")
    measures = hm.measures_from_labels(data.labels)
    hm.MeasureIndex.from_embedding(model.transform(measures), path=folder / "index")
    zarr.open_group(folder / "zarr2", mode="w", zarr_format=2)
    with open_checkpoint(folder / "checkpoint", {"settings": {"n_neighbors": 10}}, resume=False) as checkpoint:
        checkpoint.save("draw cells", 0, {"counts": np.arange(3)})
    shutil.copy(cells, folder / "cells.h5ad")
    return folder


@pytest.mark.parametrize("words", WRITERS, ids=lambda words: " ".join(word for word in words if word.islower()))
def test_nothing_is_written_into_a_store(stores, tmp_path, cli, words):
    builds, option = words[:2] == ["atlas", "build"], {"-o": "--out"}.get(words[-2], words[-2])
    before = {path: path.stat().st_mtime_ns for path in stores.rglob("*")}
    for kind in ("model", "atlas", "index", "zarr2", "checkpoint"):
        for below in ("", "results", "results.csv", "deep/results"):
            known = {"FILE": stores / "cells.h5ad", "ATLAS": stores / "atlas", "OUT": tmp_path / "out"}
            known["PLACE"] = stores / kind / below if below else stores / kind
            said = rf"Expected {option} outside of all atlases, .*, found '.*{kind}/{below}' in '.*{kind}'; choose"
            if not below and option == "--checkpoint":
                said = "Expected a checkpoint that does not exist yet"
            elif not below and builds:
                if kind == "atlas":
                    continue  # which --force replaces
                said = (
                    rf"Expected an atlas, which --force can replace, found something else at '.*{kind}'; choose another"
                )
            elif not below:
                said = rf"Expected --out outside of all atlases, .*, found '[^']*{kind}'; choose another --out"
            cli.fails_with(cli.run(*(known.get(word, word) for word in words)), said)
    assert {path: path.stat().st_mtime_ns for path in stores.rglob("*")} == before
    assert list(tmp_path.iterdir()) == []


def test_what_is_mapped_never_replaces_what_is_read(stores, cells, tmp_path, cli):
    for name in ("mapped.csv", "cells.csv", "sheet.csv"):
        (tmp_path / name).write_text("sample,CD4\na,1\n")
    before = cli.contents(tmp_path)
    for words in (
        ["mapped.csv", "-o", tmp_path],
        ["cells.csv", "-o", tmp_path / "cells.csv"],
        ["cells.csv", "--sample-sheet", tmp_path / "sheet.csv", "-o", tmp_path / "sheet.csv"],
    ):
        result = cli.run("atlas", "map", stores / "atlas", tmp_path / words[0], *words[1:], "--force")
        cli.fails_with(result, "--out that does not overwrite the input, found")
    assert cli.contents(tmp_path) == before


def test_places_beside_each_other_are_fine(cells, tmp_path):
    assert check_places(str(cells.parent), EVERY, str(cells), None, str(cells.parent / "run.zarr")) == cells.parent
    # A folder of FCS files may hold its results: only files of that kind are read.
    (tmp_path / "a.fcs").touch()
    assert check_places(str(tmp_path / "out"), EVERY, str(tmp_path), None) == tmp_path / "out"


@pytest.mark.parametrize("content", ["", "{}", '{"content":{"settings":{}}}', '{"checkpoint":{"layout":3}}', None])
def test_a_manifest_of_another_program_is_no_obstacle(cells, tmp_path, content):
    manifest = tmp_path / "manifest.json"
    manifest.mkdir() if content is None else manifest.write_text(content)
    assert check_places(str(tmp_path / "out"), EVERY, str(cells), None) == tmp_path / "out"
