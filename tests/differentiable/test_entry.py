"""New points entering a graph: masses, gradients, and points far from everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.errors import InvalidInputError
from heatmover.graphs import Graph

torch = pytest.importorskip("torch")

from heatmover.differentiable import DiffusionEMDLoss  # noqa: E402


@pytest.fixture
def loss(points, graph):
    return DiffusionEMDLoss(graph, points=points, max_scale=4)


@pytest.fixture
def target(pairs):
    return pairs[0][0].detach()


def test_masses_are_kernel_weights_over_the_nearest_nodes(points, graph, loss, rng):
    cloud, weights = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(5))
    width = graph.construction["bandwidth"] / 2
    expected = np.zeros(40)
    for new, weight in zip(cloud, weights, strict=True):
        squares = ((points - new) ** 2).sum(axis=1)
        near = np.argsort(squares)[:15]  # twice the neighbors, and the first node beyond them, which gets nothing
        kernel = np.exp(-squares[near] / width**2) - np.exp(-squares[near[-1]] / width**2)
        expected[near] += weight * kernel / kernel.sum()
    found = loss.enter(torch.tensor(cloud), torch.tensor(weights))
    assert np.allclose(found, expected, atol=1e-6)


def test_gradcheck_through_the_loss(loss, target, rng):
    cloud = torch.tensor(rng.normal(size=(6, 3)), requires_grad=True)
    weights = torch.tensor(rng.dirichlet(np.ones(6)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda y, w: loss(loss.enter(y, w), target), (cloud, weights))
    assert torch.autograd.gradcheck(loss.straying, cloud)


def test_gradient_agrees_with_finite_differences(loss, target, rng):
    cloud = torch.tensor(rng.normal(size=(6, 3)), requires_grad=True)
    loss(loss.enter(cloud), target).backward()
    direction = torch.tensor(rng.normal(size=(6, 3)))
    step = 1e-5
    ends = [loss(loss.enter(cloud.detach() + sign * step * direction), target) for sign in (1, -1)]
    slope = (cloud.grad * direction).sum()
    assert abs((ends[0] - ends[1]) / (2 * step) - slope) < 1e-6 * abs(slope)


@pytest.mark.parametrize("n_dimensions", [2, 3, 10])
def test_the_gradient_explains_the_change_along_a_path(n_dimensions):
    rng, steps = np.random.default_rng(0), 200
    points = rng.normal(size=(500, n_dimensions))
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=20), points=points, max_scale=4)
    goal = loss.enter(torch.tensor(0.3 * rng.normal(size=(20, n_dimensions)) + 1))
    start, way = torch.tensor(rng.normal(size=(10, n_dimensions)) - 0.5), torch.tensor(np.full(n_dimensions, 1.3))
    explained = 0.0
    for place in (np.arange(steps) + 0.5) / steps:
        cloud = (start + place * way).requires_grad_()
        loss(loss.enter(cloud), goal).backward()
        explained += float((cloud.grad * way).sum()) / steps
    change = float(loss(loss.enter(start + way), goal) - loss(loss.enter(start), goal))
    assert explained == pytest.approx(change, rel=0.01)


def test_nodes_that_are_all_equally_far_share_the_mass():
    angles = np.arange(12) * np.pi / 6
    points = np.column_stack([np.cos(angles), np.sin(angles)])
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=2), points=points, max_scale=2)
    cloud = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    masses = loss.enter(cloud)
    assert float(masses.detach().sum()) == pytest.approx(1)
    assert float(masses.detach().max()) < 0.9
    masses[0].backward()
    assert torch.isfinite(cloud.grad).all()


def test_equal_masses_by_default_and_batches(loss, rng):
    clouds = torch.tensor(rng.normal(size=(4, 5, 3)))
    found = loss.enter(clouds)
    assert found.shape == (4, 40)
    assert torch.allclose(found.sum(dim=1), torch.ones(4, dtype=torch.float64))
    assert torch.equal(found[2], loss.enter(clouds[2]))
    assert torch.equal(found[2], loss.enter(clouds[2], torch.full((5,), 0.2, dtype=torch.float64)))
    assert loss.straying(clouds).shape == (4, 5)
    assert torch.equal(loss.straying(clouds)[1], loss.straying(clouds[1]))


@pytest.mark.filterwarnings("ignore:Expected a graph that holds together:heatmover.GraphWarning")
@settings(deadline=None, max_examples=30)
@given(distance=st.floats(0, 1e6), seed=st.integers(0, 1000))
def test_however_far_a_point_is_its_mass_arrives_and_its_gradient_lives(distance, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(30, 2))
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=6), points=points, max_scale=3)
    direction = rng.normal(size=(1, 2))
    cloud = torch.tensor(distance * direction / np.linalg.norm(direction), requires_grad=True)
    masses = loss.enter(cloud)
    assert abs(float(masses.detach().sum()) - 1) < 1e-12
    (masses[:15].sum() - loss.straying(cloud).sum()).backward()
    assert torch.isfinite(cloud.grad).all()
    away = loss.straying(cloud.detach())
    assert float(away) >= 0
    if distance > 100:
        assert float(away) > (distance - 10) ** 2
        assert float(cloud.grad.norm()) > distance


def test_far_points_are_pulled_along_the_nodes_not_lost_by_underflow(rng):
    """All kernel weights of these points are exactly zero in float64; their ratios are not."""
    points = np.column_stack([np.linspace(0, 1, 50), np.zeros(50)])
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=6), points=points, max_scale=6)
    cloud = torch.tensor([[0.5, 30.0]], dtype=torch.float64, requires_grad=True)
    width = loss.graph.construction["bandwidth"] / 2
    assert np.exp(-((30 / width) ** 2)) == 0
    target = torch.zeros(50, dtype=torch.float64)
    target[-1] = 1
    loss(loss.enter(cloud), target).backward()
    assert float(cloud.grad[0, 0]) < 0  # downhill is towards the target


def test_duplicates_of_nodes_and_of_each_other(points, loss, target):
    cloud = torch.tensor(points[[3, 3, 5]], requires_grad=True)
    (loss(loss.enter(cloud), target) + loss.straying(cloud).sum()).backward()
    assert torch.isfinite(cloud.grad).all()
    assert torch.equal(cloud.grad[0], cloud.grad[1])


def test_a_generator_learns_a_reference_cloud():
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(300, 2))
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=15), points=points, max_scale=6)
    noise = torch.tensor(rng.normal(size=(40, 2)))
    goal = loss.enter(0.75 + 0.05 * torch.tensor(rng.normal(size=(40, 2))))
    shift = torch.tensor([0.25, 0.25], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        loss(loss.enter(shift + 0.05 * noise), goal).backward()
        optimizer.step()
    assert float((shift.detach() - 0.75).abs().max()) < 0.05


def test_a_width_of_ones_own(points, graph):
    narrow = DiffusionEMDLoss(graph, points=points, max_scale=2, entry_bandwidth=1e-3)
    assert torch.allclose(narrow.enter(torch.tensor(points[:1]))[0], torch.tensor(1.0, dtype=torch.float64))
    affinity = Graph.from_affinity(graph.affinity)
    given = DiffusionEMDLoss(affinity, points=points, max_scale=2, entry_bandwidth=0.5)
    assert given.enter(torch.tensor(points[:1])).shape == (40,)
    with pytest.raises(InvalidInputError, match="Gaussian kernel"):
        DiffusionEMDLoss(affinity, points=points, max_scale=2)


@pytest.mark.parametrize(
    ("cloud", "weights", "words"),
    [
        (torch.zeros(5, 2), None, r"shape \(n_points, 3\)"),
        (torch.zeros(3), None, "shape"),
        (torch.zeros(2, 2, 5, 3), None, "batch"),
        (torch.zeros(5, 3, dtype=torch.int64), None, "integers have no gradient"),
        (torch.full((5, 3), np.nan), None, "first: point 0"),
        (torch.zeros(5, 3), torch.ones(4), r"weights of shape \(5,\)"),
        (torch.zeros(5, 3), torch.ones(5, dtype=torch.float64), "one dtype"),
        (torch.zeros(5, 3), [0.2] * 5, "list"),
        (np.zeros((5, 3)), None, "torch.Tensor"),
    ],
)
def test_bad_clouds(loss, cloud, weights, words):
    with pytest.raises(InvalidInputError, match=words):
        loss.enter(cloud, weights)


def test_a_loss_without_positions_cannot_be_entered(graph):
    with pytest.raises(InvalidInputError, match="pass points="):
        DiffusionEMDLoss(graph, max_scale=2).enter(torch.zeros(5, 3))


def test_positions_of_other_points(graph, points):
    with pytest.raises(InvalidInputError, match="one position for each of the 40 points"):
        DiffusionEMDLoss(graph, points=points[:30], max_scale=2)
