"""Diffusion EMD for PyTorch, on the CPU: gradients in masses, in positions of points and in new points."""

from __future__ import annotations

from typing import Any, Literal, Self, final

import numpy as np
import numpy.typing as npt
import torch
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.validation import check_is_fitted
from torch.autograd.function import once_differentiable

from heatmover._base.types import FloatArray
from heatmover._base.validation import check_matrix, check_number, check_threads
from heatmover.differentiable._powers import Expansion, SparsityPattern, operator_at, powers
from heatmover.diffusion.operator import DiffusionOperator, check_single
from heatmover.embedding.estimator import DiffusionEMD, near_cuts, warn_of_graph
from heatmover.errors import InvalidInputError
from heatmover.graphs.graph import Graph
from heatmover.measures import MASS_TOLERANCE

__all__ = ["DiffusionEMDLoss", "diffusion_emd", "embed"]


def check_tensor(name: str, values: object) -> None:
    """Raise unless this is a tensor of float32 or float64."""
    if not isinstance(values, torch.Tensor):
        raise InvalidInputError(f"{name} to be a torch.Tensor", type(values).__name__, "use torch.as_tensor")
    if values.dtype not in (torch.float32, torch.float64):
        advice = "integers have no gradient: call .float() or .double()"
        if values.dtype.is_floating_point:
            advice = "half precision cannot hold masses of many points: call .float()"
        raise InvalidInputError(f"{name} of type float32 or float64", str(values.dtype), advice)


def check_together(**tensors: torch.Tensor) -> None:
    """Raise unless all tensors have the same type and lie on the same device."""
    for what, advice in (("dtype", "call .to(dtype) on one of them"), ("device", "call .to(device) on one of them")):
        values = {name: getattr(tensor, what) for name, tensor in tensors.items()}
        if len(set(values.values())) > 1:
            words = " and ".join(f"{name} in {value}" for name, value in values.items())
            raise InvalidInputError(f"all tensors of one {what}", words, advice)


def check_masses(name: str, masses: Any, n_points: int, *, normalize: bool) -> torch.Tensor:
    """Return masses ``(n_points,)`` or ``(n_pairs, n_points)``, normalised if asked for, or raise."""
    check_tensor(name, masses)
    if masses.ndim not in (1, 2) or masses.shape[-1] != n_points or masses.numel() == 0:
        raise InvalidInputError(
            f"{name} of shape ({n_points},) or (n_pairs, {n_points})",
            f"shape {tuple(masses.shape)}",
            "rows are measures, columns are points of the graph",
        )
    values = masses.detach()
    total = values.sum(dim=-1)
    if not torch.isfinite(total).all():
        raise InvalidInputError(f"{name} without NaN or infinity", "a sum that is not finite")
    lacking = float(values.clamp(max=0).sum(dim=-1).min())
    if lacking < -MASS_TOLERANCE:
        raise InvalidInputError(
            f"non-negative {name}",
            f"a total of {lacking:.3g} below zero",
            "a step along the gradient leaves the simplex: optimise logits and pass torch.softmax(logits, -1)",
        )
    if normalize:
        return _normalized(name, masses, total)
    off = float((total - 1).abs().max())
    if off > MASS_TOLERANCE:
        raise InvalidInputError(
            f"{name} that sum to one",
            f"a sum that is off by {off:.3g}",
            "pass torch.softmax(logits, -1), or set normalize=True to divide by the sum",
        )
    return masses


def _normalized(name: str, masses: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    if float(total.min()) <= 0:
        raise InvalidInputError(f"{name} with mass in every row", f"a sum of {float(total.min()):.3g}")
    return masses / masses.sum(dim=-1, keepdim=True)


def check_points(name: str, points: Any, *, n_points: int | None = None, n_dimensions: int | None = None) -> None:
    """Raise unless this is a tensor of finite positions ``(..., n_points, n_dimensions)``."""
    check_tensor(name, points)
    rows, columns = n_points or "n_points", n_dimensions or "n_dimensions"
    wrong = points.ndim < 2 or points.numel() == 0
    wrong = wrong or (n_points is not None and (points.ndim != 2 or points.shape[0] != n_points))
    if wrong or (n_dimensions is not None and points.shape[-1] != n_dimensions):
        raise InvalidInputError(f"{name} of shape ({rows}, {columns})", f"shape {tuple(points.shape)}")
    bad = ~torch.isfinite(points.detach()).all(dim=-1)
    if bad.any():
        first = bad.nonzero()[0].tolist()[-1]
        raise InvalidInputError(f"finite {name}", f"{int(bad.sum())} that are not (first: point {first})")


def embed(masses: torch.Tensor, model: DiffusionEMD) -> torch.Tensor:
    """Embed measures with a fitted model, differentiably: `DiffusionEMD.transform` for tensors.

    Parameters
    ----------
    masses
        ``(n_measures, n_points)``, float32 or float64, rows that sum to one (to 1e-4) unless the model normalises.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        ``(n_measures, n_features)``, of the type and on the device of ``masses``; computed on the CPU in the model's
        own precision (``DiffusionEMD(dtype="float64")`` if that matters).

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import embed
    >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), max_scale=5).fit()
    >>> masses = torch.full((2, 30), 1 / 30, requires_grad=True)
    >>> embedding = embed(masses, model)
    >>> embedding.sum().backward()
    >>> tuple(embedding.shape) == (2, model.n_scales_ * 30), tuple(masses.grad.shape)
    (True, (2, 30))
    """
    check_is_fitted(model)
    rows = check_masses("masses", masses, model.n_features_in_, normalize=model.normalize)
    return _Embedding.apply(torch.atleast_2d(rows), model)


def diffusion_emd(first: torch.Tensor, second: torch.Tensor, model: DiffusionEMD) -> torch.Tensor:
    """Return the Diffusion Earth Mover's Distance between measures, differentiable in their masses.

    Parameters
    ----------
    first, second
        Masses ``(n_points,)`` or ``(n_pairs, n_points)``, float32 or float64, rows that sum to one (to 1e-4) unless
        the model normalises. One measure and many are compared with each of the many.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        ``()`` or ``(n_pairs,)``.

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import diffusion_emd
    >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), max_scale=5, dtype="float64").fit()
    >>> logits = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    >>> target = torch.eye(30, dtype=torch.float64)[15]
    >>> diffusion_emd(torch.softmax(logits, 0), target, model).backward()
    >>> int(logits.grad.argmin())  # mass is wanted at the target
    15
    """
    check_is_fitted(model)
    one = check_masses("first", first, model.n_features_in_, normalize=model.normalize)
    other = check_masses("second", second, model.n_features_in_, normalize=model.normalize)
    check_together(first=one, second=other)
    difference = one - other
    return _Embedding.apply(torch.atleast_2d(difference), model).abs().sum(dim=1).reshape(difference.shape[:-1])


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, model: DiffusionEMD) -> Any:
        ctx.model, ctx.like = model, (rows.device, rows.dtype)
        masses = np.ascontiguousarray(rows.detach().cpu().numpy())
        values = model.prepared_.embed(model.graph_.gather(masses), n_threads=check_threads(model.n_jobs))
        return torch.from_numpy(values).to(*ctx.like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return torch.from_numpy(ctx.model.apply_transpose(gradient.cpu().numpy())).to(*ctx.like), None


# New points enter by a kernel half as wide as the graph's, over ENTRY_NODES times as many nodes as the graph has
# neighbors. Weights fall to zero at the last node, or the loss would jump where another node takes its place: the
# gradient missed 25% of the change along a path in 2-D, 40% in 3-D and 70% in R^10, and now misses less than 1%. With
# as many nodes as neighbors, a cloud moved by its gradient in R^10 ended 0.35 from its goal; with twice as many 0.15,
# about as before (0.17).
ENTRY_WIDTH, ENTRY_NODES = 0.5, 2
# Added before weights are divided by their sum: where all nodes are equally far, they share the mass.
TIED = 1e-6


@final
class DiffusionEMDLoss(torch.nn.Module):
    """Diffusion Earth Mover's Distance between measures on a graph, as a differentiable loss.

    Gradients flow to the masses, to the positions of the graph's points, and to new points that enter the graph. Each
    gradient costs one more run of the recurrence; memory is linear in the number of points. Everything is computed on
    the CPU, in the type of the tensors (positions: in float64), and returned on the device of the tensors.

    Parameters
    ----------
    graph
        The graph the measures live on.
    points
        Positions of its points, ``(n_points, n_dimensions)``, needed by `enter` and `straying` only.
    max_scale, n_scales, alpha, weights, density, norm, random_state
        As in `DiffusionEMD`. They are settled here, once, and so are the bandwidth and the polynomials: constants of
        the loss that no gradient looks into.
    tol
        Largest error of any scale's density. A gradient with respect to positions loses a digit more: a derivative
        weighs the terms left out by the square of their degree.
    normalize
        Divide masses by their sums, and differentiate through it. False: sums that are off by more than 1e-4 are an
        error, and so are negative masses of more than that in total.
    entry_bandwidth
        Width of the kernel by which new points enter; ``"auto"``: half the graph's bandwidth.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Attributes
    ----------
    graph : Graph
        The graph, as of the last `rebuild`.
    scales : range
        The scales compared.

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import DiffusionEMDLoss
    >>> data = hm.datasets.gaussians(2, points_per_measure=60)
    >>> loss = DiffusionEMDLoss(hm.Graph.from_points(data.points, n_neighbors=10), max_scale=6)
    >>> first, second = torch.tensor(data.measures().masses.toarray())
    >>> points = torch.tensor(data.points, requires_grad=True)
    >>> distance = loss(first, second, points=points)
    >>> distance.backward()
    >>> tuple(distance.shape), tuple(points.grad.shape) == data.points.shape
    ((), True)
    """

    def __init__(
        self,
        graph: Graph,
        *,
        points: npt.ArrayLike | None = None,
        max_scale: int | Literal["auto"] = "auto",
        n_scales: int | None = None,
        alpha: float = 0.5,
        tol: float = 1e-4,
        density: Literal["adjoint", "function"] = "adjoint",
        norm: Literal["levels", "increments", "coarsest"] = "levels",
        normalize: bool = False,
        entry_bandwidth: float | Literal["auto"] = "auto",
        n_jobs: int | None = None,
        random_state: int | None = 0,
        weights: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(graph, Graph):
            raise InvalidInputError("graph to be a heatmover.Graph", type(graph).__name__)
        settings: dict[str, Any] = {"max_scale": max_scale, "n_scales": n_scales, "alpha": alpha, "tol": tol}
        settings |= {"density": density, "norm": norm, "normalize": normalize, "n_jobs": n_jobs, "weights": weights}
        model = DiffusionEMD(
            graph, method="chebyshev", compress=False, dtype="float64", random_state=random_state, **settings
        ).fit()
        prepared = model.prepared_
        self.scales, self.max_scale_reason = prepared.layout.scales, model.max_scale_reason_
        self.weights = None if weights is None else np.diagonal(np.abs(prepared.layout.matrix)).copy()
        self.alpha, self.tol, self.density, self.norm, self.normalize = alpha, tol, density, norm, normalize
        self._matrix = prepared.layout.matrix
        self._n_threads = check_threads(n_jobs)
        self._entry_bandwidth = entry_bandwidth
        self._settle(graph, prepared.diffuser.operator)
        self._entry = None if points is None else self._make_entry(points)

    @property
    def n_points(self) -> int:
        """Number of points of the graph."""
        return self.graph.n_points

    def forward(self, first: torch.Tensor, second: torch.Tensor, *, points: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distance between measures.

        Parameters
        ----------
        first, second
            Masses ``(n_points,)`` or ``(n_pairs, n_points)``, float32 or float64, rows that sum to one. One measure and
            many are compared with each of the many.
        points
            Positions ``(n_points, n_dimensions)`` to compute the affinities from, with the graph's neighbours and
            bandwidth; gradients flow to them. Points that were equal when the graph was made are one node, at their
            mean, until `rebuild`. Needs a graph from points with the Gaussian kernel. None: the graph
            as it is, which is faster. Polynomials for positions hold on the whole of [-1, 1], because nothing is known
            of the spectrum of points yet to come; they are 1.2 to 1.4 times as long.

        Returns
        -------
        Tensor
            ``()`` or ``(n_pairs,)``. Equal measures have distance 0 and gradient 0.
        """
        one = check_masses("first", first, self.n_points, normalize=self.normalize)
        other = check_masses("second", second, self.n_points, normalize=self.normalize)
        if points is not None:
            check_points("points", points, n_points=self.n_points)
        check_together(first=one, second=other, **({} if points is None else {"points": points}))
        difference = one - other
        rows = self._at_nodes(torch.atleast_2d(difference).cpu())
        if points is None:
            distances = self._distances(rows, self._data(rows.dtype), self._top.to(rows.dtype), self._settled)
        else:
            distances = self._distances_at(points, rows)
        return distances.reshape(difference.shape[:-1]).to(difference)

    def enter(self, cloud: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Return the masses on the graph of points that are not part of it, differentiable in both.

        Every new point spreads its mass over the nodes nearest to it, twice as many as the graph has neighbors, in
        proportion to ``exp(-d^2 / width^2) - exp(-D^2 / width^2)``, where D is the distance to the first node beyond
        them. The masses are continuous in the positions, so the gradient accounts for the change along a path.

        Parameters
        ----------
        cloud
            ``(n_new, n_dimensions)`` or ``(n_clouds, n_new, n_dimensions)``, for instance from a generator.
        weights
            Mass of each new point, ``(n_new,)`` or ``(n_clouds, n_new)``; None for equal masses that sum to one.

        Returns
        -------
        Tensor
            ``(n_points,)`` or ``(n_clouds, n_points)``: to be passed to the loss.

        Examples
        --------
        >>> import torch
        >>> import heatmover as hm
        >>> from heatmover.differentiable import DiffusionEMDLoss
        >>> points = hm.datasets.gaussians(1, points_per_measure=100).points
        >>> loss = DiffusionEMDLoss(hm.Graph.from_points(points, n_neighbors=10), points=points, max_scale=6)
        >>> cloud = torch.tensor(points[:20] + 0.01, requires_grad=True)
        >>> target = torch.full((100,), 0.01, dtype=torch.float64)
        >>> loss(loss.enter(cloud), target).backward()
        >>> tuple(cloud.grad.shape) == (20, points.shape[1])
        True
        """
        entry = self._check_cloud(cloud)
        if weights is None:
            weights = torch.full(cloud.shape[:-1], 1 / cloud.shape[-2], dtype=cloud.dtype, device=cloud.device)
        elif not isinstance(weights, torch.Tensor) or weights.shape != cloud.shape[:-1]:
            raise InvalidInputError(
                f"weights of shape {tuple(cloud.shape[:-1])}", f"{getattr(weights, 'shape', type(weights).__name__)}"
            )
        check_together(cloud=cloud, weights=weights)
        if cloud.ndim == 2:
            return self._on_points(entry.spread(cloud.cpu(), weights.cpu())).to(cloud)
        parts = [entry.spread(one, mass) for one, mass in zip(cloud.cpu(), weights.cpu(), strict=True)]
        return self._on_points(torch.stack(parts)).to(cloud)

    def straying(self, cloud: torch.Tensor) -> torch.Tensor:
        """Return how far new points are from the graph: their squared distance to the weighted mean of their nodes.

        The loss looks at where mass lies on the graph, not at how far off it a new point floats; a share of this
        added to the loss holds a cloud on the data.

        Parameters
        ----------
        cloud
            ``(n_new, n_dimensions)`` or ``(n_clouds, n_new, n_dimensions)``.

        Returns
        -------
        Tensor
            ``(n_new,)`` or ``(n_clouds, n_new)``.
        """
        entry = self._check_cloud(cloud)
        flat = cloud.reshape(-1, cloud.shape[-1]).cpu()
        return entry.offset(flat).square().sum(dim=-1).reshape(cloud.shape[:-1]).to(cloud)

    @torch.no_grad()
    def rebuild(self, points: torch.Tensor | npt.ArrayLike) -> Self:
        """Find the neighbours anew at other positions; bandwidth, scales and polynomials stay as they are.

        Positions that have moved by about the bandwidth have other neighbours than the graph's. The distance jumps
        where neighbours change, so rebuild every few steps rather than at every one, and not within a line search.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``.

        Returns
        -------
        DiffusionEMDLoss
            Itself.
        """
        width = self._bandwidth()
        places = points.detach().cpu().numpy() if isinstance(points, torch.Tensor) else points
        if np.shape(places)[:1] != (self.n_points,):
            raise InvalidInputError(f"points of shape ({self.n_points}, n_dimensions)", f"shape {np.shape(places)}")
        how = self.graph.construction
        if how["n_neighbors"] is None:
            raise InvalidInputError(
                "a graph with a number of neighbours", "one built with a radius", "build a new loss from a new graph"
            )
        graph = Graph.from_points(
            places, how["n_neighbors"], bandwidth=width, neighbors=how["neighbors"], n_jobs=self._n_threads
        )
        operator = DiffusionOperator.from_graph(graph)
        even = np.full((1, graph.n_points), 1 / graph.n_points)
        warn_of_graph(near_cuts(graph, operator, graph.gather(even), self.scales[-1]))
        self._settle(graph, operator)
        if self._entry is not None:
            self._entry = self._make_entry(places)
        return self

    def extra_repr(self) -> str:
        """Return the settings, for torch's own printing of modules."""
        weighed = f"alpha={self.alpha:g}" if self.weights is None else f"weights={np.round(self.weights, 4).tolist()}"
        return f"{self.graph}, scales {self.scales[0]} to {self.scales[-1]}, {weighed}, norm={self.norm!r}"

    def _settle(self, graph: Graph, operator: DiffusionOperator) -> None:
        self.graph, self._operator = graph, operator
        self._place = None if graph.place is None else torch.from_numpy(graph.place.copy())
        self._copies = None if graph.place is None else torch.from_numpy(np.bincount(graph.place))
        self._support = SparsityPattern(operator.symmetric, graph.first[operator.order], self._n_threads)
        self._order = torch.from_numpy(operator.order)
        self._component = torch.from_numpy(operator.component.astype(np.int64))
        self._n_components = operator.n_components
        self._top = torch.from_numpy(operator.top)
        self._entries = {torch.float64: torch.from_numpy(operator.symmetric.data)}
        tol = self.tol * operator.tightening
        self._settled = Expansion.of_scales(self.scales, lowest=operator.lowest, tol=tol)
        self._moving = Expansion.of_scales(self.scales, lowest=-1.0, tol=tol)

    def _data(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.float32:
            check_single(self._operator, self.scales[-1], "call .double() on the masses")
        if dtype not in self._entries:
            self._entries[dtype] = self._entries[torch.float64].to(dtype)
        return self._entries[dtype]

    def _distances_at(self, points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        width = self._bandwidth()
        # Differences of close points lose digits, and the way back through the recurrence loses some more.
        places = points.cpu().double()
        if self._copies is not None:
            places = (self._at_nodes(places.T) / self._copies).T
        places = places[self._order]
        data, degree = operator_at(places, self._support, width)
        total = torch.zeros(self._n_components, dtype=degree.dtype).index_add(0, self._component, degree)
        top = (degree / total[self._component]).sqrt()
        return self._distances(rows.double(), data, top, self._moving)

    def _on_points(self, masses: torch.Tensor) -> torch.Tensor:
        """Give every point an equal part of the mass of its node: ``(..., n_nodes)`` -> ``(..., n_points)``."""
        if self._place is None:
            return masses
        return (masses / self._copies)[..., self._place]

    def _at_nodes(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the points ``(n_rows, n_points)`` summed over the points of each node."""
        if self._place is None:
            return values
        empty = torch.zeros(values.shape[0], self.graph.n_nodes, dtype=values.dtype)
        return empty.index_add(1, self._place, values)

    def _distances(
        self, rows: torch.Tensor, data: torch.Tensor, top: torch.Tensor, expansion: Expansion
    ) -> torch.Tensor:
        """Return the distances ``(n_pairs,)`` that differences of measures ``(n_pairs, n_nodes)`` stand for."""
        columns = rows.T[self._order]
        outward = (top if self.density == "adjoint" else 1 / top)[:, None]
        start = columns / outward
        # A polynomial that was cut takes a known share of the top eigenvectors away; mass is exact with it.
        parts = torch.zeros(self._n_components, rows.shape[0], dtype=rows.dtype)
        parts = parts.index_add(0, self._component, start * top[:, None])[self._component] * top[:, None]
        diffused = powers(start, data, self._support, expansion)
        densities = [y + float(lack) * parts for y, lack in zip(diffused, expansion.missing, strict=True)]
        # Row by row, each with one or two densities: a product with the whole matrix would wait for BLAS threads.
        blocks = [sum(float(row[k]) * densities[k] for k in np.flatnonzero(row)) for row in self._matrix]
        return torch.stack([(outward * block).abs().sum(dim=0) for block in blocks]).sum(dim=0)

    def _bandwidth(self) -> float:
        """Return the width of the graph's kernel, or raise if positions have no smooth effect on it."""
        how = self.graph.construction
        euclidean = how.get("source") == "points" and how.get("metric", "euclidean") == "euclidean"
        if not euclidean or how.get("kernel") != "gaussian":
            raise InvalidInputError(
                "a graph from points with the Gaussian kernel of Euclidean distances",
                f"{self.graph}",
                "only its affinities are a known smooth function of positions: use Graph.from_points(points)",
            )
        return float(how["bandwidth"])

    def _make_entry(self, points: npt.ArrayLike) -> Entry:
        places = check_matrix("points", points, dtype=np.float64)
        if len(places) != self.n_points:
            raise InvalidInputError(f"one position per point, {self.n_points}", f"{len(places)}")
        width = self._entry_bandwidth
        width = ENTRY_WIDTH * self._bandwidth() if width == "auto" else check_number("entry_bandwidth", width, above=0)
        # Equal points are entered as one: the neighbours of a new point are different nodes, not copies of one.
        n_neighbors = self.graph.construction.get("n_neighbors") or 30
        return Entry(places[self.graph.first], ENTRY_NODES * n_neighbors + 1, width)

    def _check_cloud(self, cloud: torch.Tensor) -> Entry:
        if self._entry is None:
            raise InvalidInputError(
                "a loss that knows where the graph's points are", "none", "pass points= to DiffusionEMDLoss"
            )
        check_points("cloud", cloud, n_dimensions=self._entry.points.shape[1])
        if cloud.ndim > 3:
            raise InvalidInputError("a cloud (n_new, n_dimensions) or a batch of them", f"shape {tuple(cloud.shape)}")
        return self._entry


@final
class Entry:
    """New points enter a graph: each spreads its mass over its nearest nodes by kernel weights.

    Parameters
    ----------
    points
        Positions of the nodes, ``(n_points, n_dimensions)``.
    n_nodes
        Nodes that a new point spreads its mass over. The weight falls continuously to zero at the last node, unless
        the graph has no further nodes.
    width
        Of the kernel ``exp(-d^2 / width^2)``.
    """

    def __init__(self, points: FloatArray, n_nodes: int, width: float) -> None:
        self.points = points
        self.width = width
        self._count = min(n_nodes, len(points))
        self._search: Any = None

    def weigh(self, cloud: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest nodes of each point of a cloud and its weights on them.

        Parameters
        ----------
        cloud
            ``(n_new, n_dimensions)``, on the CPU.

        Returns
        -------
        nodes, weights
            ``(n_new, n_nodes)`` each; weights sum to one over the nodes, however far the point is: what would
            underflow cancels (softmax).
        """
        nodes = self._nearest(cloud)
        squares = ((cloud[:, None] - self._positions(nodes, cloud.dtype)) / self.width).square().sum(dim=-1)
        weights = torch.softmax(-squares, dim=-1)
        if nodes.shape[1] < len(self.points):
            weights = weights * (TIED - torch.expm1(squares - squares.amax(dim=-1, keepdim=True)))
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return nodes, weights

    def spread(self, cloud: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
        """Return the masses ``(n_points,)`` that a cloud ``(n_new, n_dimensions)`` with ``masses`` ``(n_new,)`` has."""
        nodes, weights = self.weigh(cloud)
        empty = torch.zeros(len(self.points), dtype=cloud.dtype)
        return empty.index_add(0, nodes.flatten(), (weights * masses[:, None]).flatten())

    def offset(self, cloud: torch.Tensor) -> torch.Tensor:
        """Return the vector ``(n_new, n_dimensions)`` to each point from the weighted mean of its nodes."""
        nodes, weights = self.weigh(cloud)
        return cloud - (weights[:, :, None] * self._positions(nodes, cloud.dtype)).sum(dim=1)

    def _nearest(self, cloud: torch.Tensor) -> torch.Tensor:
        if self._search is None:  # a graph that nobody enters needs no search
            self._search = NearestNeighbors(n_neighbors=self._count).fit(self.points)
        return torch.from_numpy(self._search.kneighbors(cloud.detach().numpy(), return_distance=False))

    def _positions(self, nodes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.points[nodes.numpy()]).to(dtype)
