"""Clusters for cells that nobody annotated."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from flowio import create_fcs
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.study import StudyParameters, cluster_cells
from heatmover.study import cell_types as module
from heatmover.study.scale import InPieces

MARKERS = ["CD3", "CD4", "CD8", "CD19"]
# T helper cells, cytotoxic ones and B cells.
TYPES = np.array([[3.0, 3, 0, 0], [3, 0, 3, 0], [0, 0, 0, 3]])


def write_folder(folder, *, seed=0, n_samples=12, n_cells=60):
    """A folder of FCS files; in every second B cells are four times as many."""
    rng, kinds = np.random.default_rng(seed), []
    folder.mkdir()
    for i in range(n_samples):
        kind = rng.choice(3, n_cells, p=[0.5, 0.4, 0.1] if i % 2 else [0.35, 0.25, 0.4])
        values = 5 * np.sinh(TYPES[kind] + 0.75 * rng.normal(size=(n_cells, 4)))
        with (folder / f"f{i}.fcs").open("wb") as stream:
            create_fcs(stream, values.ravel().tolist(), MARKERS)
        kinds.append(kind)
    groups = ["case", "control"] * (n_samples // 2)
    rows = "\n".join(f"f{i}.fcs,{group}" for i, group in enumerate(groups))
    (folder.parent / "sheet.csv").write_text(f"file,group\n{rows}\n")
    return folder, np.concatenate([kinds[i] for i in sorted(range(n_samples), key=lambda i: f"f{i}.fcs")])


@pytest.fixture(scope="module")
def stained(tmp_path_factory):
    folder, kinds = write_folder(tmp_path_factory.mktemp("fcs") / "files")
    return hm.read_cohort(folder, cofactor=5, sample_sheet=folder.parent / "sheet.csv"), kinds


def test_types_that_are_apart_are_found_and_named(stained):
    cohort, kinds = stained
    found = cluster_cells(cohort, 3)
    assert found.name == "cluster"
    assert adjusted_rand_score(found.codes, kinds) > 0.95
    sizes = np.bincount(found.codes)
    assert (np.diff(sizes) <= 0).all()
    helper, killer, b = (found.types[np.bincount(found.codes[kinds == kind]).argmax()] for kind in range(3))
    assert helper.startswith("cluster 1: ")
    assert {"CD4+", "CD8-"} <= set(helper.split()[2:])
    assert {"CD8+", "CD4-"} <= set(killer.split()[2:])
    assert {"CD19+", "CD3-"} <= set(b.split()[2:])


@pytest.mark.parametrize("n_clusters", [2, 5, 9])
def test_as_tight_as_another_implementation(n_clusters, stained):
    cohort, _ = stained
    points = cohort.points().astype(np.float64)
    codes = cluster_cells(cohort, n_clusters).codes
    own = sum(np.square(points[codes == code] - points[codes == code].mean(axis=0)).sum() for code in range(n_clusters))
    other = KMeans(n_clusters, n_init=5, random_state=0).fit(points).inertia_
    assert own <= 1.03 * other


def test_neither_threads_nor_blocks_change_it(stained, monkeypatch):
    cohort, _ = stained
    one = cluster_cells(cohort, 5, n_jobs=1)
    assert np.array_equal(cluster_cells(cohort, 5, n_jobs=2).codes, one.codes)
    monkeypatch.setattr("heatmover.cohort.values.BLOCK_BYTES", 8 * 4 * 7)
    assert np.array_equal(cluster_cells(cohort, 5, n_jobs=2).codes, one.codes)
    # Fewer cells looked at than there are: drawn by their values, whatever the blocks.
    monkeypatch.setattr(module, "KMEANS_CELLS", 200)
    few = cluster_cells(cohort, 3)
    monkeypatch.undo()
    monkeypatch.setattr(module, "KMEANS_CELLS", 200)
    assert np.array_equal(cluster_cells(cohort, 3).codes, few.codes)
    assert adjusted_rand_score(few.codes, cluster_cells(cohort, 3).codes) > 0.95


def test_every_cell_goes_to_its_nearest_center(stained):
    cohort, _ = stained
    points, codes = cohort.points().astype(np.float64), cluster_cells(cohort, 4).codes
    centers = np.array([points[codes == code].mean(axis=0) for code in range(4)])
    squares = np.square(points[:, None] - centers).sum(axis=2)
    assert np.array_equal(squares.argmin(axis=1), codes)


@pytest.mark.parametrize("comparer", [None, InPieces(memory="1 GB")], ids=["memory", "pieces"])
def test_a_study_of_fcs_files_tells_which_cells(comparer, stained):
    cohort, kinds = stained
    landmarks = {} if comparer is None else {"landmarks": 200}
    study = hm.study_cohort(cohort, comparer=comparer, clusters=3, n_permutations=99, **landmarks)
    assert study.contrast.annotation == "cluster"
    (b,) = [found for found in study.contrast.types if "CD19+" in found.name]
    case = np.array([name in ("f0", "f2", "f4", "f6", "f8", "f10") for name in cohort.labels()])
    assert b.in_group == pytest.approx(np.mean(kinds[case] == 2), abs=0.02)
    assert b.in_reference == pytest.approx(np.mean(kinds[~case] == 2), abs=0.02)
    assert any("k-means assigned the cells to 3 clusters" in note for note in study.notes)
    assert study.record.parameters["clusters"] == 3


def test_auto_is_ten_unless_there_is_a_column_of_this_name(stained, tmp_path):
    cohort, _ = stained
    assert module.clusters_wanted(cohort, StudyParameters(cells="auto")) == module.CLUSTERS == 10
    assert module.clusters_wanted(cohort, StudyParameters(cells="auto", clusters=4)) == 4
    assert module.clusters_wanted(cohort, StudyParameters(cells="type")) is None
    assert module.clusters_wanted(cohort, StudyParameters()) is None
    rows = [f"s{i % 2},{'TB'[i % 3 > 0]},{i / 7},{i / 3}" for i in range(20)]
    (tmp_path / "cells.csv").write_text("\n".join(["sample,auto,x,y", *rows]))
    table = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample")
    assert module.clusters_wanted(table, StudyParameters(cells="auto")) is None


def test_components_give_no_names(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 4)), columns=MARKERS).assign(sample=["a", "b"] * 30)
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = hm.read_cohort(tmp_path / "cells.csv", sample_key="sample", n_components=2)
    assert cluster_cells(cohort, 3).types == ("cluster 1", "cluster 2", "cluster 3")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clusters": 1}, "clusters to be a whole number of at least 2, found 1"),
        ({"clusters": "many"}, "clusters to be a whole number of at least 2, found 'many'"),
        (
            {"clusters": 3, "cells": "type"},
            "Expected only one of the arguments cells and clusters, found cells='type' and clusters=3",
        ),
        (
            {"clusters": 5000},
            "Expected at most 720 clusters, one for each distinct cell, found 5000; lower the argument clusters.",
        ),
        ({"cells": "type"}, "found a folder of FCS files, which has no annotations of cells; cells='auto' clusters"),
    ],
)
def test_clusters_that_cannot_be(changes, sentence, stained):
    with pytest.raises(InvalidInputError, match=sentence):
        hm.study_cohort(stained[0], **changes)


def test_the_command_line(tmp_path):
    from typer.testing import CliRunner

    from heatmover.cli import app

    folder, _ = write_folder(tmp_path / "files")
    base = [str(folder), "--sample-sheet", str(tmp_path / "sheet.csv"), "--cofactor", "5", "--clusters", "3"]
    assert CliRunner().invoke(app, ["doctor", *base, "-q"]).exit_code == 0
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["compare", *base, "--permutations", "99", "-q", "-o", str(out)])
    assert result.exit_code == 0, result.output
    record = json.loads((out / "run.json").read_text())
    assert "--clusters 3" in record["command"]["line"]
    assert (out / "cell-types.csv").read_text().count("cluster ") == 3
    for words in (["--clusters", "1"], ["--cells", "x"]):
        result = CliRunner().invoke(app, ["compare", *base[:-2], *words, "-q", "-o", str(tmp_path / "bad")])
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "bad").exists()
