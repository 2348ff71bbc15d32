"""An atlas of cells that are read in pieces is the one of cells in memory, through the same landmarks, to the bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import heatmover as hm
from heatmover.atlas import coverage
from heatmover.atlas.coverage import CellDraw
from heatmover.errors import InvalidInputError
from heatmover.study.scale import InPieces
from heatmover.study.scale import read_cohort as read_in_pieces

pandas = pytest.importorskip("pandas")
pytest.importorskip("dask")

N_SAMPLES, CELLS, FEATURES = 8, 300, ["CD3", "CD4", "CD8"]
HOW = {"sample_key": "sample", "standardize": True, "n_components": 2}
OPTIONS = {"n_neighbors": 12, "model": hm.DiffusionEMD(max_scale=4)}


@cache
def frame() -> pandas.DataFrame:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(N_SAMPLES * CELLS, 3)) * [1, 10, 0.1]
    labels = np.repeat([f"s{i}" for i in range(N_SAMPLES)], CELLS)
    # Some cells twice; in an order that mixes the samples.
    points[5:9], order = points[0], rng.permutation(labels.size)
    table = pandas.DataFrame(points, columns=FEATURES).assign(sample=labels, group=[name[-1] < "4" for name in labels])
    return table.iloc[order]


@pytest.fixture(scope="module", params=["cells.parquet", "cells.csv"])
def path(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("cells") / request.param
    if place.suffix == ".csv":
        frame().to_csv(place, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame().to_parquet(place, index=False, row_group_size=500)
    return place


def same(one: hm.Atlas, other: hm.Atlas) -> None:
    """Compare everything that is saved."""
    mine, yours = one.to_record(), other.to_record()
    assert one.names == other.names
    assert one.variables == other.variables
    assert one.embedding.tobytes() == other.embedding.tobytes()
    np.testing.assert_array_equal(one.counts.toarray(), other.counts.toarray())
    assert mine.values == yours.values
    for name in ("support", "features", "nodes"):
        for key, array in mine.parts[name].arrays.items():
            np.testing.assert_array_equal(array, yours.parts[name].arrays[key])


def test_in_pieces_and_in_memory_are_the_same_atlas(path, monkeypatch):
    monkeypatch.setattr(coverage, "SUPPORT", 500)  # so that cells of the support are drawn
    pieces = InPieces(memory="300 MB", n_jobs=2)
    streamed = hm.build_atlas(read_in_pieces(path, **HOW), landmarks=100, pieces=pieces, **OPTIONS)
    assert streamed.support.n_cells.tolist() == [62] * N_SAMPLES
    whole = hm.build_atlas(hm.read_cohort(path, **HOW), landmarks=streamed.nodes, **OPTIONS)
    same(streamed, whole)
    other = InPieces(memory="2 GB", n_jobs=1)
    same(streamed, hm.build_atlas(hm.read_cohort(path, **HOW), landmarks=100, pieces=other, **OPTIONS))
    again = streamed.map(path)
    np.testing.assert_array_equal(again.embedding, streamed.embedding)


def test_a_checkpoint_is_resumed(path, tmp_path):
    pieces = InPieces(checkpoint=tmp_path / "run.zarr", resume=True)
    one, two = (hm.build_atlas(read_in_pieces(path, **HOW), landmarks=100, pieces=pieces, **OPTIONS) for _ in range(2))
    same(one, two)


def test_what_cannot_be_read_in_pieces_is_refused(path):
    cohort = hm.read_cohort(path, **HOW)
    with pytest.raises(
        InvalidInputError, match=r"landmarks to be a number or 'auto' with pieces, found landmarks=None"
    ):
        hm.build_atlas(cohort, landmarks=None, pieces=InPieces())
    with pytest.raises(InvalidInputError, match="found points in memory"):
        hm.build_atlas(cohort.points(), cohort.codes, pieces=InPieces())
    with pytest.raises(InvalidInputError, match="memory of at least"):
        hm.build_atlas(cohort, landmarks=100, pieces=InPieces(memory="1 MB"))


def test_a_nan_is_refused_as_it_is_in_memory(tmp_path):
    table = frame().copy()
    table.iloc[700, 1] = np.nan
    table.to_csv(tmp_path / "cells.csv", index=False)
    sentences = []
    for read, pieces in ((read_in_pieces, InPieces()), (hm.read_cohort, None)):
        with pytest.raises(InvalidInputError) as caught:
            hm.build_atlas(read(tmp_path / "cells.csv", sample_key="sample"), landmarks=100, pieces=pieces)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "NaN" in sentences[0]


def test_the_draw_depends_neither_on_blocks_nor_on_order(monkeypatch):
    monkeypatch.setattr(coverage, "SUPPORT", 60)
    points, codes = np.arange(600.0).reshape(300, 2), np.arange(300) % 3
    codes[codes == 2] = np.arange(100) < 4  # most of the third sample go to the others, and none is left of it
    codes[:5] = 2
    found = []
    for size, order in ((300, np.arange(300)), (7, np.arange(300)), (31, np.random.default_rng(0).permutation(300))):
        draw = CellDraw.for_support(np.bincount(codes), seed=5)
        for start in range(0, 300, size):
            rows = order[start : start + size]
            draw.add(points[rows], codes[rows])
        cells, own = draw.cells()
        assert np.bincount(own).tolist() == [27, 27, 5]  # all of the small one, and as many of the others
        assert [len(part) for part in draw.by_sample()] == [27, 27, 5]
        np.testing.assert_array_equal(draw.by_sample()[2], cells[own == 2])
        found.append({(int(own), *cell) for own, cell in zip(own, cells.tolist(), strict=True)})
    assert found[0] == found[1] == found[2]


def test_cells_are_never_in_memory_together(path, monkeypatch):
    from heatmover.cohort import Cohort

    def refused(self):
        raise AssertionError("all cells were asked for")

    monkeypatch.setattr(Cohort, "points", refused)
    monkeypatch.setattr(coverage, "SUPPORT", 100)
    held, add = [], CellDraw.add

    def watched(self, values, codes, *project):
        add(self, values[:200], codes[:200], *project)
        held.append(self._codes.size)
        for start in range(200, codes.size, 200):
            add(self, values[start : start + 200], codes[start : start + 200], *project)
            held.append(self._codes.size)

    monkeypatch.setattr(CellDraw, "add", watched)
    found = hm.build_atlas(read_in_pieces(path, **HOW), landmarks=100, pieces=InPieces(memory="300 MB"), **OPTIONS)
    assert len(held) >= N_SAMPLES * CELLS // 200
    assert max(held) <= 2 * 100 + 200
    assert found.support.n_cells.sum() == 96


def test_the_command_builds_it_in_pieces(path, tmp_path):
    from typer.testing import CliRunner

    from heatmover.cli import app

    out = tmp_path / "it.atlas"
    words = [str(path), "-s", "sample", "--standardize", "--components", "2", "--landmarks", "100", "--neighbors", "12"]
    result = CliRunner().invoke(app, ["atlas", "build", *words, "--memory", "400MB", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "2,400 cells on 100 nodes" in result.stdout
    truth = hm.build_atlas(read_in_pieces(path, **HOW), landmarks=100, n_neighbors=12, pieces=InPieces())
    same(hm.load(out), truth)
    refused = CliRunner().invoke(
        app, ["atlas", "build", *words, "--checkpoint", str(tmp_path / "n"), "-o", str(tmp_path / "n")]
    )
    assert refused.exit_code == 2
    assert "--checkpoint outside of --out" in refused.stderr
