import numpy as np
import pytest

import heatmover.diffusion.exact as exact_module
from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph


def test_too_large_a_graph_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(exact_module, "LARGEST", 5)
    operator = DiffusionOperator.from_graph(Graph.from_grid((6,)))
    with pytest.raises(InvalidInputError, match=r"at most 5 points.*found 6.*chebyshev"):
        ExactDiffuser(operator, adjoint=True)


def test_two_points_by_hand():
    """Two joined points with loops share their mass in one step."""
    operator = DiffusionOperator.from_graph(Graph.from_affinity(np.ones((2, 2))))
    (density,) = ExactDiffuser(operator, adjoint=True).diffuse(np.array([[1.0], [0.0]]), range(1))
    np.testing.assert_allclose(density, [[0.5], [0.5]])


def test_components_do_not_touch_each_other():
    """Their eigenvalues are all 1 to the solver, which mixes their vectors as it likes."""
    affinity = np.zeros((25, 25))
    affinity[:12, :12] = affinity[12:24, 12:24] = 1e-50
    operator = DiffusionOperator.from_graph(Graph.from_affinity(affinity))
    diffuser = ExactDiffuser(operator, adjoint=True)
    for density in diffuser.diffuse(np.eye(25)[:, [0, 12, 24]], range(4)):
        np.testing.assert_array_equal(density != 0, np.kron(np.eye(3), np.ones((12, 1)))[:25] > 0)
        np.testing.assert_allclose(density.max(axis=0), [1 / 12, 1 / 12, 1], rtol=1e-14)


def test_the_bound_tells_what_rounding_does():
    """Two cliques on a thread, whose slow eigenvalue is known: 1 - 2 * w / 6 to first order in w."""
    affinity = np.kron(np.eye(2), np.ones((6, 6)))
    affinity[5, 6] = affinity[6, 5] = 1e-7
    diffuser = ExactDiffuser(DiffusionOperator.from_graph(Graph.from_affinity(affinity)), adjoint=True)
    bounds = diffuser.error_bound(range(31))
    assert (bounds > 0).all()
    assert (np.diff(bounds) > 0).all()
    assert bounds[-1] < 1e-5
