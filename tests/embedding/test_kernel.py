"""The Laplacian kernel: positive semidefinite by its eigenvalues, with one scale in training and in use."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import heatmover as hm
from heatmover.embedding.kernel import LaplacianKernel
from heatmover.errors import InvalidInputError

DATA = hm.datasets.ring(16, points_per_measure=20, random_state=0)
GRAPH = hm.Graph.from_points(DATA.points)
MEASURES = DATA.measures()
SIDES = MEASURES.masses @ DATA.points[:, 0] > 0


@parametrize_with_checks([LaplacianKernel(), LaplacianKernel(scale=2.0, power=0.5)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("norm", ["levels", "increments", "coarsest"])
@pytest.mark.parametrize("other", [{}, {"alpha": 1.0}, {"compress": 0.1}, {"density": "function", "dtype": "float64"}])
@pytest.mark.parametrize("power", [0.3, 1.0])
def test_the_kernel_is_positive_semidefinite(norm, other, power):
    embedding = hm.DiffusionEMD(GRAPH, norm=norm, **other).fit_transform(MEASURES)
    for scale in (1e-3, "median", 1e3):
        kernel = LaplacianKernel(scale, power=power).fit_transform(embedding)
        assert np.array_equal(kernel, kernel.T)
        assert (np.diagonal(kernel) == 1).all()
        assert np.linalg.eigvalsh(kernel)[0] > -1e-6  # rounding of float32 rows
        assert kernel.min() >= 0


def test_a_gaussian_of_l1_distances_would_not_be():
    """Why powers above one are refused: corners of a cube, whose L1 distances count the differences."""
    corners = np.array([[i >> b & 1 for b in range(3)] for i in range(8)], dtype=float)
    distances = np.abs(corners[:, None] - corners).sum(axis=2)
    assert np.linalg.eigvalsh(np.exp(-0.1 * distances**2))[0] < -1e-3
    assert np.linalg.eigvalsh(LaplacianKernel(10.0).fit_transform(corners))[0] > 0
    with pytest.raises(InvalidInputError, match="positive semidefinite"):
        LaplacianKernel(power=2.0).fit(corners)


def test_values_against_the_formula():
    embedding = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0], [0.0, 0.0]])
    kernel = LaplacianKernel().fit(embedding)
    assert kernel.scale_ == np.median([3, 1, 0, 2, 3, 1])
    assert np.allclose(kernel.transform([[1.0, 1.0]]), np.exp(-np.array([[2, 1, 1, 2]]) / 1.5))
    assert np.allclose(
        LaplacianKernel(4.0, power=0.5).fit(embedding).transform([[1.0, 1.0]]),
        np.exp(-np.sqrt([[0.5, 0.25, 0.25, 0.5]])),
    )


def test_equal_measures_have_a_scale_too():
    assert LaplacianKernel().fit(np.zeros((3, 2))).scale_ == 1
    assert LaplacianKernel().fit([[0.0], [0.0], [0.0], [0.0], [5.0]]).scale_ == 5
    assert LaplacianKernel().fit([[1.0]]).scale_ == 1


def test_new_measures_are_seen_with_the_scale_of_the_training():
    embedding = hm.DiffusionEMD(GRAPH).fit_transform(MEASURES)
    kernel = LaplacianKernel().fit(embedding[:10])
    distances = hm.pairwise_distances(embedding)
    assert np.array_equal(kernel.transform(embedding[10:]), np.exp(-distances[10:, :10] / kernel.scale_))


def test_it_serves_support_vector_machines_in_pipelines_and_searches():
    pipeline = make_pipeline(hm.DiffusionEMD(GRAPH), LaplacianKernel(), SVC(kernel="precomputed"))
    assert cross_val_score(pipeline, MEASURES, SIDES, cv=4).mean() > 0.8
    grid = {"diffusionemd__alpha": [0.3, 0.5], "laplaciankernel__scale": ["median", 0.1]}
    assert GridSearchCV(pipeline, grid, cv=2).fit(MEASURES, SIDES).best_score_ > 0.8


def test_as_a_function_it_needs_a_scale():
    embedding = hm.DiffusionEMD(GRAPH).fit_transform(MEASURES).astype(np.float64)
    fitted = LaplacianKernel().fit(embedding)
    assert np.array_equal(fitted(embedding), fitted.transform(embedding))
    machine = SVC(kernel=LaplacianKernel(fitted.scale_)).fit(embedding, SIDES)
    other = SVC(kernel="precomputed").fit(fitted.transform(embedding), SIDES)
    assert np.allclose(machine.decision_function(embedding), other.decision_function(fitted.transform(embedding)))
    with pytest.raises(InvalidInputError, match=r"SVC\(kernel='precomputed'\)"):
        LaplacianKernel()(embedding)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scale": 0}, "scale"),
        ({"scale": "mean"}, "positive number or 'median'"),
        ({"power": 0}, "power"),
        ({"power": "one"}, "power"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_parameters_are_checked(parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        clone(LaplacianKernel().set_params(**parameters)).fit(np.eye(3))
