"""Features that differ within types: means by hand, permutations by brute force, and bad input."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover.errors import InvalidInputError
from heatmover.study import annotate, contrast_cells


@pytest.fixture(scope="module")
def cohort():
    """Twelve samples of two types with four features; in cases the third feature of type b is higher."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"{'case' if i % 2 else 'control'}-{i // 2}" for i in range(12)], 40)
    kinds = np.where(rng.random(labels.size) < 0.4, "b", "a")
    values = rng.normal(size=(labels.size, 4)) + 2.0 * (kinds == "b")[:, None] * [1, 0, 0, 0]
    values[(kinds == "b") & np.char.startswith(labels, "case"), 2] += 1.0
    comparison = hm.compare(values, labels, n_neighbors=10)
    return comparison, annotate("kind", kinds, labels.size), values, labels, kinds


def contrast(cohort, **further):
    comparison, annotation, values, _, _ = cohort
    groups = [name.split("-")[0] for name in comparison.names]
    settings = {"features": values, "feature_names": list("wxyz"), "n_permutations": 199} | further
    return contrast_cells(comparison, annotation, groups, **settings)


def test_the_feature_that_differs_is_found_in_its_type_only(cohort):
    drivers = contrast(cohort).drivers
    assert drivers.top() == {"b": ["+y"]}
    assert str(drivers) == "b: +y"
    table = drivers.table().set_index(["cell_type", "feature"])
    assert table.loc[("b", "y"), "standardized"] == pytest.approx(0.9, abs=0.3)
    assert len(table) == 8
    assert table.index[0][0] == contrast(cohort).types[0].name


def test_means_and_statistics_are_those_of_samples_weighed_by_their_cells(cohort):
    comparison, _, values, labels, kinds = cohort
    table = contrast(cohort).drivers.table().set_index(["cell_type", "feature"])
    names = np.array(comparison.names)
    inside = np.char.startswith(names, "case")
    for kind in "ab":
        cells = [(labels == name) & (kinds == kind) for name in names]
        means = np.array([values[one].mean(axis=0) for one in cells])
        counts = np.array([one.sum() for one in cells])
        weights = counts / (counts + 10)
        for place, feature in enumerate("wxyz"):
            found = table.loc[(kind, feature)]
            first, second = (np.average(means[w, place], weights=weights[w]) for w in (inside, ~inside))
            assert found["in_group"] == pytest.approx(first)
            assert found["in_reference"] == pytest.approx(second)
            assert found["difference"] == pytest.approx(first - second)
            spread = values[np.isin(labels, names) & (kinds == kind), place].std()
            assert found["standardized"] == pytest.approx((first - second) / spread, rel=1e-9)


def test_sparse_features_and_pairs(cohort):
    comparison, values = cohort[0], cohort[2]
    dense, sparse = contrast(cohort), contrast(cohort, features=sp.csr_matrix(values))
    np.testing.assert_allclose(sparse.drivers.scores, dense.drivers.scores, rtol=1e-9)
    pairs = [name.split("-")[1] for name in comparison.names]
    # Six pairs allow a smallest p-value of 2 / 64: enough for two tests, but not for eight.
    few = contrast(cohort, blocks=pairs, features=values[:, 2:3], feature_names=["y"]).drivers
    assert (few.method, few.p_values.min()) == ("permutation", pytest.approx(2 / 64))
    assert contrast(cohort, blocks=pairs).drivers.method == "moderated t"
    assert dense.plain()["drivers"] == {"b": ["+y"]}
    assert contrast(cohort, features=None).drivers is None


def test_the_picture_marks_what_is_sure(cohort):
    mpl.use("Agg")
    drivers = contrast(cohort).drivers
    axes = hm.pl.drivers(drivers)
    assert len(axes.collections[0].get_offsets()) == (drivers.q_values <= 0.1).sum() == 1
    assert [label.get_text() for label in axes.get_yticklabels()] == list(drivers.types)
    assert {label.get_text() for label in axes.get_xticklabels()} == set(drivers.features)
    mpl.pyplot.close("all")


@pytest.mark.parametrize(
    ("further", "sentence"),
    [
        (
            {"features": np.ones((3, 4))},
            r"numbers of shape \(480, n_features\), one row for each cell, found shape \(3, 4\)",
        ),
        ({"features": np.full((480, 4), np.nan)}, "features without NaN"),
        ({"feature_names": list("wxyy")}, "4 different names of features, found 3 different among 4 names"),
        ({"features": np.full((480, 4), "a")}, "numbers of shape .480"),
    ],
)
def test_bad_features_are_refused(cohort, further, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        contrast(cohort, **further)


def test_where_nothing_differs_it_says_so(cohort):
    comparison, annotation, values, _, _ = cohort
    found = contrast_cells(
        comparison, annotation, ["a", "a", "b", "b"] * 3, features=values[:, :2], n_permutations=99
    ).drivers  # fmt: skip
    assert found.features == ("feature 0", "feature 1")
    assert str(found) == "None of 2 features differs significantly within a cell type."
    assert repr(found) == "Drivers(2 features in 2 types)"
