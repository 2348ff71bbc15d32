"""What the loss refuses, what it warns of, and what it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import heatmover as hm
from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs import Graph

torch = pytest.importorskip("torch")

from heatmover.differentiable import DiffusionEMDLoss, diffusion_emd  # noqa: E402


@pytest.fixture
def loss(graph):
    return DiffusionEMDLoss(graph, max_scale=3)


def even(*shape, **options):
    return torch.full(shape, 1 / shape[-1], **options)


BAD_MASSES = {
    "integers": (torch.zeros(40, dtype=torch.int64), "integers have no gradient"),
    "half precision": (even(40, dtype=torch.float16), "half precision"),
    "an array": (np.full(40, 1 / 40), "torch.Tensor"),
    "too few points": (even(39), r"shape \(40,\) or \(n_pairs, 40\)"),
    "no rows": (torch.zeros(0, 40), r"shape \(0, 40\)"),
    "too many axes": (even(2, 2, 40), "shape"),
    "a scalar": (torch.tensor(1.0), "shape"),
    "off the simplex by sum": (2 * even(40), "sum that is off by 1"),
    "off the simplex by sign": (torch.cat([even(39) * 39 / 38, torch.tensor([-1 / 38])]), "softmax"),
    "no mass": (torch.zeros(40), "sum"),
    "NaN": (torch.full((40,), torch.nan), "NaN"),
    "infinity": (torch.full((40,), torch.inf), "NaN or infinity"),
}


@pytest.mark.parametrize("case", BAD_MASSES)
@pytest.mark.parametrize("place", ["first", "second"])
def test_bad_masses(graph, loss, case, place):
    masses, words = BAD_MASSES[case]
    arguments = {"first": even(40), "second": even(40)} | {place: masses}
    with pytest.raises(InvalidInputError, match=words):
        loss(**arguments)
    model = hm.DiffusionEMD(graph, max_scale=3).fit()
    with pytest.raises(InvalidInputError, match=words):
        diffusion_emd(**arguments, model=model)


def test_mixed_types_and_devices(loss, points):
    with pytest.raises(InvalidInputError, match=r"one dtype.*first in torch.float32 and second in torch.float64"):
        loss(even(40), even(40, dtype=torch.float64))
    with pytest.raises(InvalidInputError, match="one dtype"):
        loss(even(40), even(40), points=torch.tensor(points))


def test_mixed_devices(loss, points):
    # The meta device holds no values; only the check of devices can look at it.
    from heatmover.differentiable._loss import check_together

    with pytest.raises(InvalidInputError, match=r"one device.*first in cpu and second in meta"):
        check_together(first=even(40), second=even(40, device="meta"))


def test_normalize_divides_and_differentiates(graph, loss, pairs):
    free = DiffusionEMDLoss(graph, max_scale=3, normalize=True)
    first = (3 * pairs[0].detach()).requires_grad_()
    assert torch.allclose(free(first, pairs[1]), loss(*pairs), rtol=1e-12)
    free(first, pairs[1]).sum().backward()
    # Scaling a measure changes nothing.
    assert float((first.grad * first.detach()).sum(dim=1).abs().max()) < 1e-12
    with pytest.raises(InvalidInputError, match="mass in every row"):
        free(torch.zeros(40), even(40))


def test_a_small_step_off_the_simplex_is_allowed(loss):
    first = even(40, dtype=torch.float64)
    first[0] += 5e-5
    assert torch.isfinite(loss(first, even(40, dtype=torch.float64)))


@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_affinity(np.ones((40, 40))),
        Graph.from_grid((40,)),
        Graph.from_points(np.arange(40.0)[:, None], n_neighbors=3, kernel="adaptive"),
        Graph.from_points(np.arange(40.0)[:, None], n_neighbors=3, kernel="box"),
    ],
    ids=["affinity", "grid", "adaptive", "box"],
)
def test_position_gradients_need_a_gaussian_graph_from_points(graph):
    loss = DiffusionEMDLoss(graph, max_scale=2)
    with pytest.raises(InvalidInputError, match="Gaussian kernel"):
        loss(even(40), even(40), points=torch.zeros(40, 1))
    with pytest.raises(InvalidInputError, match="Gaussian kernel"):
        loss.rebuild(torch.zeros(40, 1))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (torch.zeros(39, 3), "shape"),
        (torch.zeros(2, 40, 3), "shape"),
        (torch.zeros(40), "shape"),
        (torch.zeros(40, 3, dtype=torch.int32), "integers have no gradient"),
        (torch.cat([torch.zeros(39, 3), torch.full((1, 3), torch.inf)]), "first: point 39"),
    ],
)
def test_bad_positions(loss, places, words):
    with pytest.raises(InvalidInputError, match=words):
        loss(even(40), even(40), points=places)


def test_rebuild_needs_all_points(loss, points):
    with pytest.raises(InvalidInputError, match=r"shape \(40, n_dimensions\)"):
        loss.rebuild(torch.tensor(points[:30]))
    by_radius = DiffusionEMDLoss(Graph.from_points(points, radius=3.0), max_scale=2)
    with pytest.raises(InvalidInputError, match="radius"):
        by_radius.rebuild(points)


def test_not_a_graph(points):
    with pytest.raises(InvalidInputError, match="a heatmover"):
        DiffusionEMDLoss(points)


def test_duplicate_points_have_finite_gradients(points, rng):
    doubled = np.vstack([points[:20], points[:20]])
    loss = DiffusionEMDLoss(Graph.from_points(doubled, n_neighbors=7), max_scale=4)
    first, second = torch.tensor(rng.dirichlet(np.ones(40), size=2))
    places = torch.tensor(doubled, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(first, second, points=x), places)
    everywhere_the_same = torch.zeros(40, 3, dtype=torch.float64, requires_grad=True)
    loss(first, second, points=everywhere_the_same).backward()
    assert torch.equal(everywhere_the_same.grad, torch.zeros_like(everywhere_the_same))


@pytest.mark.parametrize("distance", [50.0, 1e6, 1e200])
def test_a_point_that_leaves_every_neighborhood(loss, points, distance):
    moved = torch.tensor(points)
    moved[17] += distance
    moved.requires_grad_()
    first, second = torch.eye(40, dtype=torch.float64)[[17, 3]]
    with pytest.warns(GraphWarning, match=r"1 point far from all neighbors \(first: point 17\)"):
        found = loss(first, second, points=moved)
    found.backward()
    assert torch.isfinite(moved.grad).all()
    assert torch.equal(moved.grad[17], torch.zeros(3, dtype=torch.float64))
    # Its mass stays: at every scale it is one apart from all other mass.
    weights = sum(2 ** (-(loss.scales[-1] - k) / 2) for k in loss.scales)
    assert abs(float(found.detach()) - 2 * weights) < 1e-3


def test_it_is_imported_late_and_names_its_extra():
    code = (
        "import sys; sys.modules['torch'] = None; import heatmover\n"
        "from heatmover.errors import MissingExtraError\n"
        "try:\n    import heatmover.differentiable\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "heatmover[torch]" in output


def test_a_nearly_cut_graph_is_warned_of_when_made_and_when_rebuilt():
    rng = np.random.default_rng(0)
    near = np.vstack([rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + 5])
    far = np.vstack([near[:60], near[60:] + 10])
    graph = hm.Graph.from_points(near, n_neighbors=70)
    loss = DiffusionEMDLoss(graph, max_scale=5)
    found = r"1 nearly disconnected group of points \(60 points, 50.0% of the measures' mass\)"
    with pytest.warns(GraphWarning, match=found):
        loss.rebuild(far)
    with pytest.warns(GraphWarning, match="nearly disconnected"):
        DiffusionEMDLoss(hm.Graph.from_points(far, n_neighbors=70, bandwidth=2.0), max_scale=5)
