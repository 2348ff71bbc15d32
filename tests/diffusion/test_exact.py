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
