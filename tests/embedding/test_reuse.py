"""Shared diffusion: the same bits as without it, less work, no more memory than allowed, nothing out of date."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from heatmover.embedding.reuse import RememberingDiffuser, SharedDiffusion, digest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import heatmover as hm
from heatmover.diffusion.chebyshev import ChebyshevDiffuser
from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.walk import WalkDiffuser
from heatmover.embedding import estimator
from heatmover.errors import InvalidInputError

DATA = hm.datasets.ring(12, points_per_measure=20, random_state=0)
GRAPH = hm.Graph.from_points(DATA.points)
MEASURES = DATA.measures()
SIDES = np.arange(12) % 2


def alone(**parameters):
    """A model that shares nothing."""
    return hm.DiffusionEMD(GRAPH, **parameters)


GRID = [
    {"alpha": alpha, "norm": norm, "n_scales": n_scales}
    for alpha in (0.3, 0.5)
    for norm in ("levels", "increments", "coarsest")
    for n_scales in (2, None, 4)
]


@pytest.mark.parametrize(
    "common",
    [
        {},
        {"dtype": "float64"},
        {"density": "function"},
        {"method": "exact", "max_scale": 4},
        {"method": "spectral", "max_scale": 9},
        {"compress": 0.1},
        {"compress": 0.1, "compress_by": "centres", "method": "interpolative", "max_scale": 8},
    ],
    ids=str,
)
def test_clones_of_one_model_have_the_bits_of_models_that_share_nothing(common):
    family = alone(**common)
    for parameters in GRID:
        one, other = clone(family).set_params(**parameters), alone(**common, **parameters)
        assert np.array_equal(one.fit_transform(MEASURES), other.fit_transform(MEASURES))
        assert np.array_equal(one.transform(MEASURES[3:5]), other.transform(MEASURES[3:5]))
        assert one.max_scale_ == other.max_scale_
        assert one.method_reason_ == other.method_reason_
        assert one.compress_reason_ == other.compress_reason_
        assert np.array_equal(one.error_bound_, other.error_bound_)


def test_weights_share_the_diffusion_too():
    family = alone(max_scale=4)
    for weights in ([1, 2, 3], [0.5, 1, 1, 2]):
        one, other = clone(family).set_params(weights=weights), alone(max_scale=4, weights=weights)
        assert np.array_equal(one.fit_transform(MEASURES), other.fit_transform(MEASURES))


@pytest.fixture
def diffused(monkeypatch):
    """Count the columns that are diffused, and the models whose scales are chosen."""
    counts = {"columns": 0, "groundwork": 0}
    plain_diffuse, plain_groundwork = ChebyshevDiffuser.diffuse, estimator.lay_groundwork

    def diffuse(self, masses, scales):
        counts["columns"] += masses.shape[1]
        return plain_diffuse(self, masses, scales)

    def lay_groundwork(*arguments, **options):
        counts["groundwork"] += 1
        return plain_groundwork(*arguments, **options)

    monkeypatch.setattr(ChebyshevDiffuser, "diffuse", diffuse)
    monkeypatch.setattr(estimator, "lay_groundwork", lay_groundwork)
    return counts


def test_a_search_over_alpha_norm_and_scales_diffuses_every_measure_once(diffused):
    pipeline = make_pipeline(hm.DiffusionEMD(GRAPH, max_scale=5), KNeighborsClassifier(1))
    grid = {"diffusionemd__alpha": [0.3, 0.4, 0.5], "diffusionemd__norm": ["levels", "increments"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(MEASURES, SIDES)
    assert len(search.cv_results_["params"]) == 6
    assert diffused["columns"] == len(MEASURES)
    assert diffused["groundwork"] == 3 + 1  # one per fold, and the best on everything


def test_more_scales_cost_only_those_that_are_missing(diffused):
    model = hm.DiffusionEMD(GRAPH, max_scale=5, n_scales=2).reuse_diffusion()
    model.fit_transform(MEASURES)
    model.set_params(n_scales=4).fit_transform(MEASURES)
    assert diffused["columns"] == 2 * len(MEASURES)
    model.set_params(n_scales=3).fit_transform(MEASURES)
    assert diffused["columns"] == 2 * len(MEASURES)


def test_a_model_that_was_never_cloned_keeps_nothing(diffused):
    model = alone(max_scale=3)
    model.fit_transform(MEASURES)
    model.fit_transform(MEASURES)
    assert diffused["columns"] == 2 * len(MEASURES)
    assert not hasattr(model, "_shared")


def test_nobody_shares_who_does_not_want_to(diffused):
    model = alone(max_scale=3).reuse_diffusion(None)
    for _ in range(2):
        clone(model).fit_transform(MEASURES)
    assert diffused["columns"] == 2 * len(MEASURES)
    with pytest.raises(InvalidInputError, match="memory"):
        model.reuse_diffusion("much")


@pytest.mark.parametrize(
    "change",
    [
        {"max_scale": 4},
        {"tol": 1e-6},
        {"density": "function"},
        {"dtype": "float64"},
        {"method": "exact"},
        {"random_state": 1},
        {"graph": hm.Graph.from_points(DATA.points, kernel="adaptive")},
        {"compress": 0.1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nothing_is_taken_from_a_model_that_diffuses_otherwise(change):
    family = alone(max_scale=3)
    clone(family).fit_transform(MEASURES)
    parameters = {"max_scale": 3, "graph": GRAPH} | change
    other = hm.DiffusionEMD(**parameters).fit_transform(MEASURES)
    assert np.array_equal(clone(family).set_params(**change).fit_transform(MEASURES), other)


def test_other_measures_choose_their_own_scale():
    family = alone()
    for rows in (MEASURES, MEASURES[:3], np.asarray(MEASURES), np.eye(GRAPH.n_points)[:5]):
        one, other = clone(family).fit(rows), alone().fit(rows)
        assert (one.max_scale_, one.max_scale_reason_) == (other.max_scale_, other.max_scale_reason_)
        assert np.array_equal(one.transform(rows), other.transform(rows))
    assert np.array_equal(clone(family).fit().transform(MEASURES), alone().fit().transform(MEASURES))


def test_bins_in_a_row_share_by_their_number():
    family = hm.DiffusionEMD(max_scale=2)
    for width in (5, 6, 5):
        rows = np.eye(width)
        assert np.array_equal(clone(family).fit_transform(rows), hm.DiffusionEMD(max_scale=2).fit_transform(rows))


def test_generators_and_none_draw_on():
    family = alone(compress=0.1, random_state=None)
    assert clone(family).fit(MEASURES).n_regions_.size  # whatever is drawn
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    shared = alone(compress=0.1, random_state=one).reuse_diffusion()
    plain = alone(compress=0.1, random_state=other)
    for _ in range(2):
        assert np.array_equal(shared.fit_transform(MEASURES), plain.fit_transform(MEASURES))
        assert one.bit_generator.state == other.bit_generator.state


def test_memory_is_never_exceeded_and_results_stay():
    expected = alone(max_scale=4).fit_transform(MEASURES)
    for memory in (1, 20_000, 10**6):
        model = alone(max_scale=4).reuse_diffusion(memory)
        for _ in range(2):
            assert np.array_equal(model.fit_transform(MEASURES), expected)
            assert model._shared.used <= memory
    assert next(model.transform_blocks(MEASURES, memory="1 MB")).shape[0] == 12


def test_threads_share_and_agree():
    family = alone()
    expected = {alpha: alone(alpha=alpha).fit_transform(MEASURES) for alpha in (0.2, 0.3, 0.4, 0.5)}

    def embed(alpha):
        return alpha, clone(family).set_params(alpha=alpha).fit_transform(MEASURES)

    with ThreadPoolExecutor(4) as pool:
        for alpha, embedding in pool.map(embed, list(expected) * 3):
            assert np.array_equal(embedding, expected[alpha])


def test_pickles_begin_empty_and_copies_share():
    family = clone(alone(max_scale=3)).fit(MEASURES)
    family.transform(MEASURES)
    assert family._shared.used > 0
    other = pickle.loads(pickle.dumps(family))
    assert other._shared.used == 0
    assert other._shared.memory == family._shared.memory
    assert np.array_equal(other.transform(MEASURES), family.transform(MEASURES))
    assert copy.deepcopy(family)._shared is family._shared


def test_processes_give_the_same_scores():
    pipeline = make_pipeline(hm.DiffusionEMD(GRAPH, max_scale=3), KNeighborsClassifier(1))
    one = cross_val_score(pipeline, MEASURES, SIDES, cv=2, n_jobs=2)
    assert np.array_equal(one, cross_val_score(pipeline, MEASURES, SIDES, cv=2))


def test_a_fitted_model_may_change_its_mind_about_sharing():
    model = alone(max_scale=3).fit(MEASURES)
    expected = model.transform(MEASURES)
    assert np.array_equal(model.reuse_diffusion().transform(MEASURES), expected)
    assert np.array_equal(model.fit(MEASURES).reuse_diffusion("1 MB").transform(MEASURES), expected)
    assert np.array_equal(model.fit(MEASURES).reuse_diffusion(None).transform(MEASURES), expected)


@pytest.mark.parametrize("kind", ["single", "double", "exact", "walk"])
def test_a_density_depends_on_its_column_and_scale_alone(kind):
    """What makes it right to put densities together that were computed at different times."""
    operator = DiffusionOperator.from_graph(GRAPH)
    diffuser = {
        "single": lambda: ChebyshevDiffuser(operator.astype(np.float32), adjoint=True, tol=1e-3, dtype=np.float32),
        "double": lambda: ChebyshevDiffuser(operator, adjoint=True, tol=1e-6),
        "exact": lambda: ExactDiffuser(operator, adjoint=True),
        "walk": lambda: WalkDiffuser(operator, adjoint=True),
    }[kind]()
    masses = np.asarray(MEASURES).T
    whole = [density.copy() for density in diffuser.diffuse(masses, range(8))]
    for scales in (range(3, 5), range(7, 8), range(1), range(2, 8)):
        for scale, density in zip(scales, diffuser.diffuse(masses[:, 4:7], scales), strict=True):
            assert np.array_equal(density, whole[scale][:, 4:7])


def test_the_remembering_diffuser_is_its_inner_one():
    inner = ChebyshevDiffuser(DiffusionOperator.from_graph(GRAPH), adjoint=True, tol=1e-6)
    outer = RememberingDiffuser(inner, SharedDiffusion(10**8), "key")
    masses, scales = np.asarray(MEASURES).T, range(1, 4)
    for _ in range(2):
        for one, other in zip(outer.diffuse(masses, scales), inner.diffuse(masses, scales), strict=True):
            assert np.array_equal(one, other)
    blocks = [np.ones((GRAPH.n_points, 2))] * 3
    assert np.array_equal(
        outer.collect([b.copy() for b in blocks], scales), inner.collect([b.copy() for b in blocks], scales)
    )
    assert np.array_equal(outer.error_bound(scales), inner.error_bound(scales))
    assert outer.to_record().values == inner.to_record().values
    assert outer.operator is inner.operator
    assert np.array_equal(next(outer.diffuse_progressively(masses)), next(inner.diffuse_progressively(masses)))


def test_digests_tell_values_types_and_shapes_apart():
    base = np.array([[0.5, 0.5, 0.0]])
    others = [base.astype(np.float32), base[0], base[:, ::-1], sp.csr_array(base), sp.csr_array(base[:, ::-1])]
    assert len({digest([array]) for array in [base, *others]}) == 6
    assert digest([base.copy()]) == digest([base])


def test_the_least_recently_used_goes_first():
    shared = SharedDiffusion(3 * 80)
    for name in "abc":
        shared.put(name, np.ones(10), 80)
    shared.get("a")
    shared.put("d", np.ones(10), 80)
    shared.put("huge", np.ones(100), 800)
    assert [name for name in ["a", "b", "c", "d", "huge"] if shared.get(name) is not None] == ["a", "c", "d"]
    assert shared.used == 240
    shared.put("d", np.ones(5), 40)
    assert shared.used == 200
