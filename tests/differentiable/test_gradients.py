"""Gradients of masses and of positions against plain oracles: dense autograd, the supplement, finite differences."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover.graphs import Graph

torch = pytest.importorskip("torch")

from heatmover.differentiable import DiffusionEMDLoss, diffusion_emd, embed  # noqa: E402

DENSITIES = ("adjoint", "function")
NORMS = ("levels", "increments", "coarsest")
FINE = 1e-13  # polynomials that are exact to rounding


def blocks_matrix(scales, alpha, norm):
    """The definition, written out: row b holds the factors of the densities in block b."""
    last, count = scales[-1], len(scales)
    matrix = np.zeros((count, count))
    for b, k in enumerate(scales):
        if norm == "levels":
            matrix[b, b] = 2 ** (-(last - k) * alpha)
        elif k == last:
            matrix[b, b] = 1
        elif norm == "increments":
            matrix[b, b + 1] = 2 ** (-(last - k - 1) * alpha)
            matrix[b, b] = -matrix[b, b + 1]
        else:
            matrix[b, b] = 2 ** (-(last - k) * alpha)
            matrix[b, -1] = -matrix[b, b]
    return matrix


def dense_distance(points, mask, width, difference, scales, *, density="adjoint", norm="levels", alpha=0.5):
    """The distance as plain differentiable torch code on dense matrices: (n, c), (n, n), (n_pairs, n) -> (n_pairs,)."""
    squares = (points[:, None] - points[None]).square().sum(-1)
    kernel = torch.exp(-squares / width**2) * mask
    inverse = 1 / kernel.sum(1)
    normed = inverse[:, None] * kernel * inverse[None]
    walk = normed / normed.sum(1)[:, None]
    step = walk.T if density == "adjoint" else walk
    densities = torch.stack([torch.linalg.matrix_power(step, 2**k) @ difference.T for k in scales])
    matrix = torch.tensor(blocks_matrix(scales, alpha, norm))
    return torch.tensordot(matrix, densities, dims=1).abs().sum(dim=(0, 1))


def mask_of(graph):
    return torch.tensor((graph.affinity.toarray() > 0).astype(float))


def relative_error(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def central_differences(function, values, step=1e-5):
    """The gradient of a scalar function of an array, entry by entry."""
    gradient = np.empty(values.size)
    for i in range(values.size):
        ends = []
        for sign in (1, -1):
            moved = values.copy()
            moved.flat[i] += sign * step
            ends.append(function(moved))
        gradient[i] = (ends[0] - ends[1]) / (2 * step)
    return gradient.reshape(values.shape)


def mass_gradients(loss, first, second, **options):
    one, other = first.detach().clone().requires_grad_(), second.detach().clone().requires_grad_()
    loss(one, other, **options).sum().backward()
    return one.grad, other.grad


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("density", DENSITIES)
def test_value_and_gradients_agree_with_dense_autograd(points, graph, pairs, density, norm):
    loss = DiffusionEMDLoss(graph, max_scale=5, density=density, norm=norm, tol=FINE)
    places = torch.tensor(points, requires_grad=True)
    leaves = [*pairs, places]
    width = graph.construction["bandwidth"]
    expected = dense_distance(
        places, mask_of(graph), width, pairs[0] - pairs[1], loss.scales, density=density, norm=norm
    )
    found = loss(*pairs, points=places)
    assert relative_error(found.detach(), expected.detach()) < 1e-11
    assert relative_error(loss(*pairs).detach(), expected.detach()) < 1e-11
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    wanted = torch.autograd.grad(expected @ weights, leaves)
    for one, other in zip(torch.autograd.grad(found @ weights, leaves), wanted, strict=True):
        assert relative_error(one, other) < 1e-9
    for one, other in zip(torch.autograd.grad(loss(*pairs) @ weights, pairs), wanted, strict=False):
        assert relative_error(one, other) < 1e-9


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("density", DENSITIES)
def test_gradcheck(points, pairs, density, norm):
    # Fewer points, because every number is moved by itself.
    points = points[:20]
    graph = Graph.from_points(points, n_neighbors=5)
    rows = [part.detach()[:, :20] for part in pairs]
    pairs = tuple((part / part.sum(dim=1, keepdim=True)).requires_grad_() for part in rows)
    # A coarse tolerance: the gradient must be that of the polynomials, not only of the powers.
    loss = DiffusionEMDLoss(graph, max_scale=4, density=density, norm=norm, tol=1e-2)
    places = torch.tensor(points, requires_grad=True)
    assert torch.autograd.gradcheck(loss, pairs)
    assert torch.autograd.gradcheck(lambda one, other, where: loss(one, other, points=where), (*pairs, places))


def supplement_gradient(points, width, difference, scales, alpha):
    """The paper's closed formula on a dense graph, for P^t mu and increments: (n, c)."""
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / width**2)
    inverse = np.diag(1 / kernel.sum(1))
    normed = inverse @ kernel @ inverse
    degrees = np.diag(1 / normed.sum(1))
    walk = degrees @ normed
    power = {k: np.linalg.matrix_power(walk, k) for k in range(2 ** scales[-1] + 1)}
    gradient = np.empty_like(points)
    for v in range(len(points)):
        for c in range(points.shape[1]):
            on_kernel = np.zeros_like(kernel)
            on_kernel[v] = -2 / width**2 * (points[v, c] - points[:, c]) * kernel[v]
            on_kernel[:, v] += on_kernel[v]
            on_q = np.diag(on_kernel.sum(1))
            on_normed = inverse @ on_kernel @ inverse - inverse @ on_q @ normed - normed @ on_q @ inverse
            on_walk = degrees @ on_normed - degrees @ np.diag(on_normed.sum(1)) @ walk
            on_power = {2**k: sum(power[i] @ on_walk @ power[2**k - 1 - i] for i in range(2**k)) for k in scales}
            total = np.sign(power[2 ** scales[-1]] @ difference) @ on_power[2 ** scales[-1]] @ difference
            for k in scales[:-1]:
                sign = np.sign((power[2 ** (k + 1)] - power[2**k]) @ difference)
                step = (on_power[2 ** (k + 1)] - on_power[2**k]) @ difference
                total += 2 ** (-(scales[-1] - k - 1) * alpha) * sign @ step
            gradient[v, c] = total
    return gradient


def test_positions_agree_with_the_closed_formula_of_the_supplement(rng):
    points = rng.normal(size=(14, 2))
    graph = Graph.from_points(points, n_neighbors=13)
    first, second = torch.tensor(rng.dirichlet(np.ones(14), size=2))
    loss = DiffusionEMDLoss(graph, max_scale=4, density="function", norm="increments", tol=FINE)
    places = torch.tensor(points, requires_grad=True)
    loss(first, second, points=places).backward()
    width = graph.construction["bandwidth"]
    expected = supplement_gradient(points, width, (first - second).numpy(), list(loss.scales), 0.5)
    assert relative_error(places.grad, expected) < 1e-9


@pytest.mark.parametrize(("max_scale", "n_scales"), [(3, 6), (8, 6), (8, None)])
def test_the_paper_s_loss_is_equation_8_on_dense_powers(points, graph, pairs, max_scale, n_scales):
    loss = DiffusionEMDLoss.from_paper(graph, max_scale=max_scale, n_scales=n_scales)
    coarsest = range(max(max_scale - 5, 0) if n_scales else 0, max_scale + 1)
    assert list(loss.scales) == list(coarsest)
    places = torch.tensor(points, requires_grad=True)
    leaves, width = [*pairs, places], graph.construction["bandwidth"]
    options = {"density": "function", "norm": "increments", "alpha": 0.49}
    expected = dense_distance(places, mask_of(graph), width, pairs[0] - pairs[1], coarsest, **options)
    found = loss(*pairs, points=places)
    assert found.shape == (3,)
    assert relative_error(found.detach(), expected.detach()) < 1e-9
    assert relative_error(loss(*pairs).detach(), expected.detach()) < 1e-9
    wanted = torch.autograd.grad(expected.sum(), leaves)
    for one, other in zip(torch.autograd.grad(found.sum(), leaves), wanted, strict=True):
        assert relative_error(one, other) < 1e-6


def test_the_paper_s_loss_agrees_with_the_preset_and_finite_differences(points, graph, pairs):
    loss = DiffusionEMDLoss.from_paper(graph, points=points)
    model = hm.DiffusionEMD.from_paper(graph).fit()
    assert loss.scales[-1] == model.max_scale_
    rows = [model.transform(part.detach().numpy()) for part in pairs]
    assert relative_error(loss(*pairs).detach(), np.abs(rows[0] - rows[1]).sum(axis=1)) < 1e-9
    places = torch.tensor(points, requires_grad=True)
    loss(*pairs, points=places).sum().backward()
    expected = central_differences(lambda x: float(loss(*pairs, points=torch.tensor(x)).sum().detach()), points)
    assert relative_error(places.grad, expected) < 1e-5
    assert loss.enter(torch.tensor(points[:5])).shape == (40,)


def test_algorithm_4_has_gradients_in_the_masses(graph, pairs):
    model = hm.DiffusionEMD.from_paper(graph, algorithm="interpolative", max_scale=4).fit()
    assert torch.autograd.gradcheck(lambda one, other: diffusion_emd(one, other, model), pairs)


def test_positions_agree_with_finite_differences(points, graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=7)
    places = torch.tensor(points, requires_grad=True)
    loss(*pairs, points=places).sum().backward()
    expected = central_differences(lambda x: float(loss(*pairs, points=torch.tensor(x)).sum().detach()), points)
    assert relative_error(places.grad, expected) < 1e-6


def test_masses_agree_with_finite_differences(graph, pairs):
    # Once all heat has mixed, the coarsest density is zero everywhere: a kink, where no two methods need agree.
    loss = DiffusionEMDLoss(graph, max_scale=4)
    second = pairs[1].detach()
    found, _ = mass_gradients(loss, *pairs)
    expected = central_differences(lambda x: float(loss(torch.tensor(x), second).sum()), pairs[0].detach().numpy())
    assert relative_error(found, expected) < 1e-6


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), scale=st.integers(0, 6), n_dimensions=st.integers(1, 5))
def test_moving_or_turning_everything_changes_nothing(seed, scale, n_dimensions):
    rng = np.random.default_rng(seed)
    points = torch.tensor(rng.normal(size=(25, n_dimensions)), requires_grad=True)
    loss = DiffusionEMDLoss(Graph.from_points(points.detach().numpy(), n_neighbors=24), max_scale=scale)
    first, second = torch.tensor(rng.dirichlet(np.ones(25), size=2))
    loss(first, second, points=points).backward()
    gradient, places = points.grad.numpy(), points.detach().numpy()
    size = np.abs(gradient).max() + 1e-30
    assert np.abs(gradient.sum(axis=0)).max() < 1e-9 * size * 25
    torque = places.T @ gradient - gradient.T @ places
    assert np.abs(torque).max() < 1e-8 * size * 25


def test_a_batch_is_its_pairs(points, graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=5)
    places = torch.tensor(points)
    for options in ({}, {"points": places}):
        together = loss(*pairs, **options)
        alone = torch.stack([loss(one, other, **options) for one, other in zip(*pairs, strict=True)])
        assert together.shape == (3,)
        assert loss(pairs[0][0], pairs[1][0], **options).shape == ()
        assert torch.allclose(together, alone, rtol=1e-12)
    one_to_many = loss(pairs[0][0], pairs[1])
    assert torch.allclose(one_to_many[1], loss(pairs[0][0], pairs[1][1]), rtol=1e-12)


def test_more_pairs_than_a_block_is_wide(graph, points, rng):
    rows = torch.tensor(rng.dirichlet(np.ones(40), size=70))
    loss = DiffusionEMDLoss(graph, max_scale=3)
    leaves = [rows.clone().requires_grad_(), torch.tensor(points, requires_grad=True)]
    loss(leaves[0], rows[0], points=leaves[1]).sum().backward()
    parts = [rows.clone().requires_grad_(), torch.tensor(points, requires_grad=True)]
    for part in (slice(0, 30), slice(30, 70)):
        loss(parts[0][part], rows[0], points=parts[1]).sum().backward()
    assert relative_error(leaves[0].grad, parts[0].grad) < 1e-12
    assert relative_error(leaves[1].grad, parts[1].grad) < 1e-10


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_threads_change_nothing(points, graph, pairs, n_jobs):
    alone, shared = (DiffusionEMDLoss(graph, max_scale=5, n_jobs=jobs) for jobs in (1, n_jobs))
    gradients = []
    for loss in (alone, shared):
        places = torch.tensor(points, requires_grad=True)
        loss(*pairs, points=places).sum().backward()
        gradients.append(places.grad)
    assert torch.equal(*gradients)
    assert torch.equal(alone(*pairs), shared(*pairs))


def test_single_precision_follows_double(points, graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=8)
    single = [part.detach().float() for part in pairs]
    assert loss(*single).dtype == torch.float32
    assert relative_error(loss(*single), loss(*pairs).detach()) < 1e-5
    places = [torch.tensor(points, dtype=dtype, requires_grad=True) for dtype in (torch.float32, torch.float64)]
    loss(*single, points=places[0]).sum().backward()
    loss(*pairs, points=places[1]).sum().backward()
    assert places[0].grad.dtype == torch.float32
    assert relative_error(places[0].grad, places[1].grad) < 1e-4


@pytest.mark.parametrize("method", ["exact", "chebyshev", "spectral"])
@pytest.mark.parametrize("compress", [False, 0.5])
def test_functional_form_with_any_model(graph, pairs, method, compress):
    model = hm.DiffusionEMD(graph, method=method, compress=compress, max_scale=5, dtype="float64", tol=1e-9).fit()
    rows = [model.transform(part.detach().numpy()) for part in pairs]
    assert np.allclose(embed(pairs[0], model).detach(), rows[0], atol=1e-14)
    assert np.allclose(diffusion_emd(*pairs, model).detach(), np.abs(rows[0] - rows[1]).sum(axis=1), rtol=1e-12)
    assert diffusion_emd(pairs[0][0], pairs[1][0], model).shape == ()
    assert torch.autograd.gradcheck(lambda one, other: diffusion_emd(one, other, model), pairs)
    if compress is False:
        found = torch.autograd.grad(diffusion_emd(*pairs, model).sum(), pairs)
        loss = DiffusionEMDLoss(graph, max_scale=5, tol=1e-9)
        assert relative_error(found[0], mass_gradients(loss, *pairs)[0]) < 1e-6


@pytest.mark.filterwarnings("ignore::heatmover.GraphWarning")
@pytest.mark.parametrize("density", DENSITIES)
def test_every_graph(graph_of_table, density):
    """Hostile graphs, among them isolated points and several components, against the exact embedding."""
    graph, measures = graph_of_table
    model = hm.DiffusionEMD(graph, method="exact", max_scale=4, density=density, dtype="float64", n_scales=5).fit()
    loss = DiffusionEMDLoss(graph, max_scale=4, n_scales=5, density=density, tol=1e-10)
    rows = model.transform(measures)
    first = torch.tensor(measures, requires_grad=True)
    found = loss(first, torch.tensor(measures[::-1].copy()))
    assert np.allclose(found.detach(), np.abs(rows - rows[::-1]).sum(axis=1), atol=1e-7)
    found.sum().backward()
    assert torch.isfinite(first.grad).all()


def test_in_an_order_of_its_own():
    """Above 20,000 points rows are stored in another order than the points'."""
    graph = Graph.from_grid((150, 140))
    loss = DiffusionEMDLoss(graph, max_scale=3, tol=1e-6)
    model = hm.DiffusionEMD(graph, max_scale=3, method="chebyshev", dtype="float64", tol=1e-6).fit()
    rng = np.random.default_rng(0)
    first, second = (torch.tensor(row) for row in rng.dirichlet(np.ones(graph.n_points), size=2))
    found, _ = mass_gradients(loss, first, second)
    sign = np.sign(model.transform(first[None].numpy()) - model.transform(second[None].numpy()))
    assert relative_error(found, model.apply_transpose(sign)[0]) < 1e-4


def test_positions_in_an_order_of_its_own():
    rng = np.random.default_rng(0)
    points = rng.random((20_500, 2))
    loss = DiffusionEMDLoss(Graph.from_points(points, n_neighbors=5), max_scale=3)
    first, second = (torch.tensor(row) for row in rng.dirichlet(np.ones(len(points)), size=2))
    places = torch.tensor(points, requires_grad=True)
    distance = loss(first, second, points=places)
    distance.backward()
    assert abs(float(distance.detach()) / float(loss(first, second)) - 1) < 1e-4
    direction = rng.normal(size=points.shape) * 1e-9
    ends = [float(loss(first, second, points=torch.tensor(points + sign * direction))) for sign in (1, -1)]
    slope = float((places.grad * torch.tensor(direction)).sum())
    assert abs((ends[0] - ends[1]) / 2 - slope) < 1e-3 * abs(slope)


def peak_memory(loss, first, second, points):
    tracemalloc.start()
    loss(first, second, points=points).backward()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_degree(rng):
    points = rng.normal(size=(600, 2))
    graph = Graph.from_points(points, n_neighbors=5)
    first, second = torch.tensor(rng.dirichlet(np.ones(600), size=2))
    places = torch.tensor(points, requires_grad=True)
    losses = [DiffusionEMDLoss(graph, max_scale=scale, n_scales=1) for scale in (2, 12)]
    degrees = [loss._moving.table.shape[1] for loss in losses]
    assert degrees[1] > 40 * degrees[0]
    [peak_memory(loss, first, second, places) for loss in losses]  # whatever is made once
    low, high = [peak_memory(loss, first, second, places) for loss in losses]
    assert high < low + 600 * 8 * 10


def test_equal_measures_have_zero_distance_and_gradient(points, graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=4)
    first = pairs[0].detach().requires_grad_()
    places = torch.tensor(points, requires_grad=True)
    for options in ({}, {"points": places}):
        distance = loss(first, pairs[0].detach(), **options)
        assert torch.equal(distance, torch.zeros(3, dtype=torch.float64))
        distance.sum().backward()
    assert torch.equal(first.grad, torch.zeros_like(first))
    assert torch.equal(places.grad, torch.zeros_like(places))


def test_rebuild_finds_the_neighbors_anew(points, pairs, rng):
    graph = Graph.from_points(points, n_neighbors=7)
    loss = DiffusionEMDLoss(graph, points=points, max_scale=5)
    moved = torch.tensor(points + 0.5 * rng.normal(size=points.shape))
    stale = loss(*pairs, points=moved)
    assert loss.rebuild(moved) is loss
    fresh = Graph.from_points(moved.numpy(), n_neighbors=7, bandwidth=graph.construction["bandwidth"])
    expected = DiffusionEMDLoss(fresh, points=moved, max_scale=5)
    assert torch.allclose(loss(*pairs), expected(*pairs), rtol=1e-12)
    assert not torch.allclose(loss(*pairs), stale, rtol=1e-3)
    assert loss.graph.construction["bandwidth"] == graph.construction["bandwidth"]
    assert torch.equal(loss.enter(moved), expected.enter(moved))


def test_a_gradient_of_the_gradient_is_refused(graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=3)
    (gradient,) = torch.autograd.grad(loss(*pairs).sum(), pairs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


def test_without_any_gradient_nothing_is_kept(points, graph, pairs):
    loss = DiffusionEMDLoss(graph, max_scale=3)
    distance = loss(*(part.detach() for part in pairs), points=torch.tensor(points))
    assert not distance.requires_grad
    assert distance.shape == (3,)


def test_it_prints_what_it_is(graph):
    assert "40 points" in repr(DiffusionEMDLoss(graph, max_scale=3))
