"""Cautions about cells and tables: each appears where it should, and not elsewhere."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatmover._base.progress import SILENT
from heatmover.cohort import read_cohort
from heatmover.cohort.subsample import draw_cells
from heatmover.study.cautions import MOST_CELLS, cell_cautions, look_at
from heatmover.study.comparers import InMemory
from heatmover.study.parameters import StudyParameters
from heatmover.study.scale import InPieces


def test_figures_of_cells_do_not_depend_on_how_copies_are_given():
    rng = np.random.default_rng(0)
    different = rng.normal(size=(50, 4)) * [1, 10, 100, 0] + 0.1
    copies = rng.integers(1, 5, 50)
    one, other = look_at(different, copies), look_at(np.repeat(different, copies, axis=0))
    np.testing.assert_allclose(one.variance, other.variance)
    np.testing.assert_allclose(one.variance[:3], np.repeat(different, copies, axis=0)[:, :3].var(axis=0))
    assert one.variance[3] == 0
    assert one.constant.tolist() == [False, False, False, True]
    assert one.n_copies == other.n_copies == copies.sum() - 50
    assert not np.isfinite(look_at(np.array([[1e300], [-1e300]])).variance).any()


@pytest.fixture
def wide(tmp_path):
    """More cells than are looked at; one feature is in another unit and every tenth cell is a copy."""
    rng = np.random.default_rng(1)
    n_cells = MOST_CELLS + 4_000
    values = rng.normal(size=(n_cells, 3)) * [1, 1, 1000]
    values[::10] = values[1::10]
    frame = pd.DataFrame(values, columns=["a", "b", "area"])
    frame["sample"] = np.repeat([f"s{i}" for i in range(8)], n_cells // 8)
    frame.loc[frame.index[-8:], "sample"] = "tiny"
    frame.to_parquet(tmp_path / "cells.parquet")
    return read_cohort(tmp_path / "cells.parquet", sample_key="sample")


@pytest.mark.parametrize("comparer", [InMemory(), InPieces(memory="1 GB")], ids=["in memory", "in pieces"])
def test_a_comparison_looks_at_the_cells_that_the_doctor_draws(wide, comparer):
    asked = StudyParameters(landmarks=200, n_neighbors=10, min_cells=10)
    kept = np.flatnonzero(wide.sizes >= 10)
    compared = comparer.compare(wide, kept, None, asked, SILENT)
    expected = look_at(draw_cells(wide, MOST_CELLS, 0, kept).points)
    if isinstance(comparer, InMemory):
        for one, other in zip(compared.look, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    told, drawn = (list(cell_cautions(wide, kept, asked, look)) for look in (compared.look, expected))
    assert len(told) == len(drawn) == 2
    assert told[0].startswith("Features have very different scales, perhaps different units. Compared with the median")
    assert " times as large for 'area'. The other features hardly affect the neighbors." in told[0]
    assert told[1].endswith("of the cells are duplicates and share a node. Were rows or files read twice?")
