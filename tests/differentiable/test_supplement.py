"""The formulas of the supplement for gradients, one by one, written from its LaTeX, against the package's own parts."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.graphs import Graph

torch = pytest.importorskip("torch")

from heatmover.differentiable import DiffusionEMDLoss  # noqa: E402
from heatmover.differentiable._powers import operator_at, powers  # noqa: E402

FINE = 1e-13


@pytest.fixture
def places(rng):
    return rng.normal(size=(12, 2))


@pytest.fixture
def loss(places):
    """A loss on a full graph, whose polynomials are exact to rounding."""
    graph = Graph.from_points(places, n_neighbors=11)
    return DiffusionEMDLoss(graph, max_scale=4, density="function", norm="increments", tol=FINE)


def kernel_and_gradient(points, width, v, c):
    """Eq. 4 and its derivative by coordinate c of point v."""
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / width**2)
    gradient = np.zeros_like(kernel)
    gradient[v] = -2 / width**2 * (points[v, c] - points[:, c]) * kernel[v]
    gradient[:, v] += gradient[v]
    return kernel, gradient


def operator_and_gradient(kernel, on_kernel):
    """P and grad P, grad M, in the supplement's last lines: all from the gradient of the kernel."""
    one = np.ones(len(kernel))
    Q = np.diag(1 / (kernel @ one))
    M = Q @ kernel @ Q
    on_M = -Q @ np.diag(on_kernel @ one) @ Q @ kernel @ Q
    on_M += Q @ on_kernel @ Q - Q @ kernel @ Q @ np.diag(on_kernel @ one) @ Q
    D = np.diag(1 / (M @ one))
    return D @ M, -D @ np.diag(on_M @ one) @ D @ M + D @ on_M


def walk(points, loss, width):
    """P as the package computes it, dense: D^(-1/2) S D^(1/2), in the order of its rows."""
    data, degree = operator_at(points[loss._order], loss._support, width)
    n, support = len(points), loss._support
    dense = torch.zeros(n, n, dtype=data.dtype)
    dense = dense.index_put((torch.tensor(support.rows).long(), torch.tensor(support.indices).long()), data)
    return dense * degree.sqrt()[None] / degree.sqrt()[:, None]


def test_the_gradient_of_a_norm_is_the_sign_times_the_operator(places, loss, rng):
    """1. grad ||P mu||_1 = sign(P mu) P, in mu."""
    first, second = torch.tensor(rng.dirichlet(np.ones(12), size=2))
    single = DiffusionEMDLoss(loss.graph, max_scale=2, n_scales=1, density="function", norm="increments", tol=FINE)
    first.requires_grad_()
    single(first, second).backward()
    width = loss.graph.construction["bandwidth"]
    P, _ = operator_and_gradient(*kernel_and_gradient(places, width, 0, 0))
    power = np.linalg.matrix_power(P, 4)
    expected = np.sign(power @ (first.detach() - second).numpy()) @ power
    assert np.abs(first.grad.numpy() - expected).max() < 1e-10


def test_the_gradient_of_the_operator_is_that_of_the_kernel(places, loss):
    """2. grad of an inverse, and the supplement's grad M and grad P."""
    width = loss.graph.construction["bandwidth"]
    points = torch.tensor(places)
    found = torch.autograd.functional.jacobian(lambda x: walk(x, loss, width), points).numpy()
    order = loss._order.numpy()
    for v in range(12):
        for c in range(2):
            P, on_P = operator_and_gradient(*kernel_and_gradient(places, width, v, c))
            assert np.abs(walk(points, loss, width).numpy() - P[np.ix_(order, order)]).max() < 1e-14
            assert np.abs(found[:, :, v, c] - on_P[np.ix_(order, order)]).max() < 1e-12 * np.abs(on_P).max() + 1e-14


@pytest.mark.parametrize("scale", [0, 1, 2, 4])
def test_the_gradient_of_a_power_is_the_sum_over_its_factors(places, loss, rng, scale):
    """3. grad P^n = sum_l P^l grad(P) P^(n-l-1), as the derivative of the package's powers along a direction."""
    width = loss.graph.construction["bandwidth"]
    column = torch.tensor(rng.normal(size=(12, 1)))
    place = list(loss.scales).index(scale)

    def power(x):
        data, degree = operator_at(x[loss._order], loss._support, width)
        half = degree.sqrt()[:, None]
        return powers(half * column, data, loss._support, loss._moving)[place] / half

    found = torch.autograd.functional.jacobian(power, torch.tensor(places)).numpy()[:, 0]
    order, n = loss._order.numpy(), 2**scale
    for v, c in ((0, 0), (5, 1), (11, 0)):
        P, on_P = (
            part[np.ix_(order, order)] for part in operator_and_gradient(*kernel_and_gradient(places, width, v, c))
        )
        raised = [np.linalg.matrix_power(P, i) for i in range(n)]
        expected = sum(raised[i] @ on_P @ raised[n - i - 1] for i in range(n)) @ column.numpy()[:, 0]
        assert np.abs(found[:, v, c] - expected).max() < 1e-8


def test_trees_have_a_zero_gradient_and_diffusion_emd_has_not(places, rng):
    measures = rng.dirichlet(np.ones(12), size=2)
    graph = Graph.from_points(places, n_neighbors=11)
    loss = DiffusionEMDLoss(graph, max_scale=3)
    leaf = torch.tensor(places, requires_grad=True)
    loss(*torch.tensor(measures), points=leaf).backward()
    assert (leaf.grad.norm(dim=1) > 1e-6).all()
    before = hm.baselines.quad_tree(places, measures, random_state=0)[0, 1]
    # A point at the edge of the data would move the whole grid.
    inside = ((places > places.min(axis=0)) & (places < places.max(axis=0))).all(axis=1)
    assert inside.sum() > 5
    for v in np.flatnonzero(inside):
        moved = places.copy()
        moved[v] += 1e-9
        assert hm.baselines.quad_tree(moved, measures, random_state=0)[0, 1] == before
