"""Values keep their arrays read-only when they are pickled or copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping

import numpy as np
import pytest
import scipy.sparse as sp

import heatmover as hm
from heatmover._base.readonly import ReadOnlyArrays
from heatmover.attribution.cell_types import typed_points
from heatmover.attribution.drivers import check_features
from heatmover.attribution.pseudobulk import of_cells
from heatmover.diffusion.interpolative import cut_skeleton
from heatmover.statistics import Design, permanova_design
from heatmover.statistics.permutations import TestResult
from heatmover.study.cell_map import CellMap
from heatmover.study.cell_types import annotate
from heatmover.study.contrasts import contrast_cells
from heatmover.study.study import study_comparison


@pytest.fixture(scope="module")
def values():
    data = hm.datasets.cohort(8, cells_per_sample=60)
    measures, condition = data.measures(), data.annotations["condition"]
    comparison = hm.compare(data.points, data.labels, landmarks=100)
    whole = hm.compare(data.points, data.labels)
    branch = [f"branch {number:.0f}" for number in data.coordinates[:, 0]]
    explanation = hm.explain(whole.model, measures.masses[[0]], measures.masses[[1]])
    groups = hm.explain_groups(whole.model, measures, condition, annotation=branch, n_permutations=19)
    contrast = contrast_cells(
        whole, annotate("branch", branch, len(branch)), condition, n_permutations=19,
        features=data.points, feature_names=[f"x{i}" for i in range(data.points.shape[1])],
    )  # fmt: skip
    design = Design.from_columns({"condition": condition})
    atlas = hm.build_atlas(data.points, data.labels, variables={"condition": condition})
    mapped = atlas.map(data.points, data.labels)
    return [
        contrast, design, permanova_design(whole.distances, design, n_permutations=19),
        data, measures, whole, comparison, explanation, explanation.by(branch), groups,
        study_comparison(whole, {"condition": condition}, cells={"branch": branch}, n_permutations=19),
        hm.barycenter(whole.model, measures, n_iterations=20, tol=0.9),
        cut_skeleton(np.vander(np.arange(9.0)), rank=3),
        hm.uncertainty(whole.model, measures, n_bootstrap=5),
        hm.calibrate(whole.model, measures, points=data.points, n_pairs=28),
        hm.compare(data.points, data.labels, equal_cells=20),
        of_cells(typed_points(np.array(branch), measures.masses), *check_features(data.points, None, len(branch))),
        CellMap("X_umap", np.zeros((3, 2)), np.zeros(3, dtype=np.int32)),
        atlas, mapped, hm.MeasureIndex.from_embedding(whole.embedding).nearest(whole.embedding[:2], k=2),
    ]  # fmt: skip


def arrays(value, path=""):
    """Every array within a value of the package, by its path; those of a fitted model are its own affair."""
    if sp.issparse(value):
        value = {name: getattr(value, name) for name in ("data", "indices", "indptr")}
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from arrays(inner, f"{path}[{key}]")
    elif isinstance(value, list | tuple):
        for key, inner in enumerate(value):
            yield from arrays(inner, f"{path}[{key}]")
    elif type(value).__module__.startswith("heatmover") and not isinstance(value, hm.DiffusionEMD):
        public = {name: inner for name, inner in vars(value).items() if not name.startswith("_")}
        yield from arrays(public, f"{path}{type(value).__name__}")


def test_the_values_cover_the_classes(values):
    """Every class that promises it is among those below, or within one of them."""
    seen = {name for value in values for path, _ in arrays(value) for name in classes() if name in path}
    assert seen == classes()
    assert TestResult.__name__ in classes()


def classes():
    return {kind.__name__ for kind in ReadOnlyArrays.__subclasses__()}


@pytest.mark.parametrize("again", [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy])
def test_no_array_of_a_copy_can_be_written(values, again):
    for value in values:
        original, repeated = dict(arrays(value)), dict(arrays(again(value)))
        assert original.keys() == repeated.keys()
        assert [path for path, array in original.items() if array.flags.writeable] == []
        assert [path for path, array in repeated.items() if array.flags.writeable] == []
        for path, array in original.items():
            np.testing.assert_array_equal(array, repeated[path])
