"""`DiffusionEMD(memory=...)`: bit-identical results, one diffusion for a whole search, nothing out of date."""

import numpy as np
import pytest
from joblib import Memory
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import heatmover as hm
from heatmover.diffusion.exact import ExactDiffuser, WalkDiffuser
from heatmover.diffusion.operator import ChebyshevDiffuser, DiffusionOperator
from heatmover.embedding import estimator
from heatmover.errors import InvalidInputError

DATA = hm.datasets.ring(12, points_per_measure=20, random_state=0)
GRAPH = hm.Graph.from_points(DATA.points)
MEASURES = DATA.measures()
SIDES = np.arange(12) % 2
GRID = [
    {"alpha": 0.3, "norm": "levels", "n_scales": 2},
    {"alpha": 0.5, "norm": "increments", "n_scales": None},
    {"alpha": 0.5, "norm": "coarsest", "n_scales": 4},
]


def model(**parameters):
    return hm.DiffusionEMD(GRAPH, **parameters)


@pytest.mark.parametrize(
    "common",
    [
        {},
        {"dtype": "float64"},
        {"density": "function"},
        {"method": "exact", "max_scale": 4},
        {"method": "spectral", "max_scale": 9},
        {"compress": 0.1},
        {"compress": 0.1, "compress_by": "centers", "method": "interpolative", "max_scale": 8},
    ],
    ids=str,
)
def test_results_are_bit_identical_with_and_without(common, tmp_path):
    family = model(**common, memory=tmp_path)
    for parameters in GRID:
        for _ in range(2):  # computed, then read
            one, other = clone(family).set_params(**parameters), model(**common, **parameters)
            assert np.array_equal(one.fit_transform(MEASURES), other.fit_transform(MEASURES))
            assert np.array_equal(one.transform(MEASURES[3:5]), other.transform(MEASURES[3:5]))
            assert one.max_scale_ == other.max_scale_
            assert one.method_reason_ == other.method_reason_
            assert one.compress_reason_ == other.compress_reason_
            assert np.array_equal(one.error_bound_, other.error_bound_)


def test_weights_share_the_diffusion_too(tmp_path):
    for weights in ([1, 2, 3], [0.5, 1, 1, 2]):
        one, other = (model(max_scale=4, weights=weights, memory=memory) for memory in (str(tmp_path), None))
        assert np.array_equal(one.fit_transform(MEASURES), other.fit_transform(MEASURES))


@pytest.fixture
def work(monkeypatch):
    """Count the columns that are diffused, and the models that are prepared."""
    counts = {"columns": 0, "preparations": 0}
    diffuse, prepare = ChebyshevDiffuser.diffuse, estimator.prepare_diffusion

    def counted_diffuse(self, masses, scales):
        counts["columns"] += masses.shape[1]
        return diffuse(self, masses, scales)

    def counted_prepare(*arguments, **options):
        counts["preparations"] += 1
        return prepare(*arguments, **options)

    monkeypatch.setattr(ChebyshevDiffuser, "diffuse", counted_diffuse)
    monkeypatch.setattr(estimator, "prepare_diffusion", counted_prepare)
    return counts


def test_a_search_over_alpha_and_norm_diffuses_once(work, tmp_path):
    pipeline = make_pipeline(model(max_scale=5, memory=Memory(tmp_path, verbose=0)), KNeighborsClassifier(1))
    grid = {"diffusionemd__alpha": [0.3, 0.4, 0.5], "diffusionemd__norm": ["levels", "increments"]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(MEASURES, SIDES)
    assert len(search.cv_results_["params"]) == 6
    assert work["preparations"] == 3 + 1  # one per fold, and the best on everything
    assert work["columns"] == (3 + 1) * len(MEASURES)  # measures to fit and to score of each fold


def test_without_a_memory_every_fit_diffuses(work):
    one = model(max_scale=3)
    for _ in range(2):
        clone(one).fit_transform(MEASURES)
    assert work == {"columns": 2 * len(MEASURES), "preparations": 2}


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
def test_nothing_is_read_that_another_model_diffused(change, tmp_path):
    parameters = {"max_scale": 3, "graph": GRAPH}
    hm.DiffusionEMD(**parameters, memory=tmp_path).fit_transform(MEASURES)
    parameters |= change
    expected = hm.DiffusionEMD(**parameters).fit_transform(MEASURES)
    assert np.array_equal(hm.DiffusionEMD(**parameters, memory=tmp_path).fit_transform(MEASURES), expected)


def test_other_measures_choose_their_own_scale(tmp_path):
    for rows in (MEASURES, MEASURES[:3], np.asarray(MEASURES), np.eye(GRAPH.n_points)[:5]):
        one, other = model(memory=tmp_path).fit(rows), model().fit(rows)
        assert (one.max_scale_, one.max_scale_reason_) == (other.max_scale_, other.max_scale_reason_)
        assert np.array_equal(one.transform(rows), other.transform(rows))
    one, other = model(memory=tmp_path).fit(), model().fit()
    assert np.array_equal(one.transform(MEASURES), other.transform(MEASURES))


def test_generators_draw_on(tmp_path):
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    kept, plain = model(compress=0.1, random_state=one, memory=tmp_path), model(compress=0.1, random_state=other)
    for _ in range(2):
        assert np.array_equal(kept.fit_transform(MEASURES), plain.fit_transform(MEASURES))
        assert one.bit_generator.state == other.bit_generator.state


def test_memory_is_no_part_of_a_stored_model(tmp_path):
    one = model(max_scale=3, memory=tmp_path / "kept").fit(MEASURES)
    one.save(tmp_path / "model")
    other = hm.DiffusionEMD.load(tmp_path / "model")
    assert other.memory is None
    assert np.array_equal(other.transform(MEASURES), one.transform(MEASURES))


@pytest.mark.parametrize("memory", [1, True, [], 2.5], ids=repr)
def test_other_memories_are_rejected(memory):
    with pytest.raises(InvalidInputError, match=r"the argument memory to be a folder, a joblib.Memory or None, found"):
        model(memory=memory).fit(MEASURES)


@pytest.mark.parametrize("kind", ["single", "double", "exact", "walk"])
def test_a_density_depends_on_its_column_and_scale_alone(kind):
    """This makes it right to compute densities of all scales, whichever are asked for."""
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
