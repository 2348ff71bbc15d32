"""`tl.map_samples`: what `Atlas.map` finds, in the AnnData, written last."""

from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError


@pytest.fixture(scope="module")
def cells():
    data = hm.datasets.cohort(8, cells_per_sample=40)
    obs = pd.DataFrame(
        {"sample": data.labels, "condition": [label.split("-")[0] for label in data.labels]},
        index=[f"cell-{i}" for i in range(320)],
    )
    adata = anndata.AnnData(data.points, obs=obs)
    adata.var_names = [f"gene{i}" for i in range(10)]
    return adata


@pytest.fixture(scope="module")
def atlas(cells):
    return hm.build_atlas(hm.read_cohort(cells, sample_key="sample"))


def test_the_results_are_those_of_the_atlas_and_can_be_stored(cells, atlas, tmp_path):
    atlas.save(tmp_path / "it.atlas")
    order = np.random.default_rng(0).permutation(10)
    found = hm.tl.map_samples(cells[:, order].copy(), tmp_path / "it.atlas", k=3, predict=["condition"], copy=True)
    truth = atlas.map(cells)
    stored = found.uns["heatmover_atlas"]
    np.testing.assert_array_equal(stored["distances"], truth.distances)
    np.testing.assert_array_equal(stored["nearest"], truth.nearest(3)[1])
    assert list(stored["predicted"]["condition"]["values"]) == list(truth.predict("condition", 3).values)
    np.testing.assert_array_equal(found.obs["heatmover_atlas_p"], truth.coverage.cell_p_values)
    assert set(stored["covered"]) == {"true"}
    found.write_h5ad(tmp_path / "found.h5ad")
    again = anndata.read_h5ad(tmp_path / "found.h5ad")
    np.testing.assert_array_equal(again.uns["heatmover_atlas"]["distances"], truth.distances)
    assert "heatmover_atlas" not in cells.uns


def test_failures_leave_the_anndata_as_it_was(cells, atlas):
    before = cells.copy()
    with pytest.raises(InvalidInputError, match="a variable of the atlas"):
        hm.tl.map_samples(cells, atlas, predict=["nothing"], k=3)
    with pytest.raises(InvalidInputError, match="key_added"):
        hm.tl.map_samples(cells, atlas, key_added="a/b")
    few = cells[:, :5].copy()
    with pytest.raises(InvalidInputError, match="var_names"):
        hm.tl.map_samples(few, atlas)
    assert list(cells.uns) == list(before.uns)
    assert list(cells.obs) == list(before.obs)


def test_other_units_are_warned_of(cells, atlas):
    other = cells.copy()
    other.X = other.X * 100
    with pytest.warns(UserWarning, match="check the units"):
        hm.tl.map_samples(other, atlas)
    assert set(other.uns["heatmover_atlas"]["covered"]) == {"false"}
