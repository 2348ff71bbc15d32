"""Embed and compare PyTorch tensors, with gradients in masses, positions and new points, for users; touch no files."""

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


def check_tensor(name: str, values: object) -> None:
    """Raise an error if ``values`` is not a tensor of float32 or float64."""
    if not isinstance(values, torch.Tensor):
        raise InvalidInputError(f"{name} to be a torch.Tensor", type(values).__name__, "use torch.as_tensor")
    if values.dtype not in (torch.float32, torch.float64):
        advice = "integers have no gradient: call .float() or .double()"
        if values.dtype.is_floating_point:
            advice = "half precision cannot hold masses of many points: call .float()"
        raise InvalidInputError(f"{name} of type float32 or float64", str(values.dtype), advice)


def check_together(**tensors: torch.Tensor) -> None:
    """Raise an error if the tensors differ in type or device."""
    for what, advice in (("dtype", "call .to(dtype) on one of them"), ("device", "call .to(device) on one of them")):
        values = {name: getattr(tensor, what) for name, tensor in tensors.items()}
        if len(set(values.values())) > 1:
            words = " and ".join(f"{name} in {value}" for name, value in values.items())
            raise InvalidInputError(f"all tensors of one {what}", words, advice)


def check_masses(name: str, masses: Any, n_points: int, *, normalize: bool) -> torch.Tensor:
    """Return masses ``(n_points,)`` or ``(n_pairs, n_points)``, normalized if requested, or raise an error."""
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
            f"negative values that sum to {lacking:.3g}",
            "a step along the gradient leaves the simplex: optimize logits and pass torch.softmax(logits, -1)",
        )
    if normalize:
        if float(total.min()) <= 0:
            raise InvalidInputError(f"{name} with mass in every row", f"a sum of {float(total.min()):.3g}")
        return masses / masses.sum(dim=-1, keepdim=True)
    off = float((total - 1).abs().max())
    if off > MASS_TOLERANCE:
        raise InvalidInputError(
            f"{name} that sum to one",
            f"a sum that is off by {off:.3g}",
            "pass torch.softmax(logits, -1), or set normalize=True to divide by the sum",
        )
    return masses


def check_points(name: str, points: Any, *, n_points: int | None = None, n_dimensions: int | None = None) -> None:
    """Raise an error if ``points`` is not a tensor of finite positions ``(..., n_points, n_dimensions)``."""
    check_tensor(name, points)
    rows, columns = n_points or "n_points", n_dimensions or "n_dimensions"
    wrong = points.ndim < 2 or points.numel() == 0
    wrong = wrong or (n_points is not None and (points.ndim != 2 or points.shape[0] != n_points))
    if wrong or (n_dimensions is not None and points.shape[-1] != n_dimensions):
        raise InvalidInputError(f"{name} of shape ({rows}, {columns})", f"shape {tuple(points.shape)}")
    bad = ~torch.isfinite(points.detach()).all(dim=-1)
    if bad.any():
        first = bad.nonzero()[0].tolist()[-1]
        raise InvalidInputError(f"finite {name}", f"{int(bad.sum())} with NaN or infinity (first: point {first})")


def embed(masses: torch.Tensor, model: DiffusionEMD) -> torch.Tensor:
    """Embed tensors of measures with a fitted model, with gradients: `DiffusionEMD.transform` for PyTorch.

    Parameters
    ----------
    masses
        Masses ``(n_measures, n_points)``, float32 or float64. Rows must sum to one (up to 1e-4) unless the model
        normalizes them.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        Embedding ``(n_measures, n_features)`` with the type and on the device of ``masses``. The embedding is computed
        on the CPU in the precision of the model; for double precision use ``DiffusionEMD(dtype="float64")``.

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
        Masses ``(n_points,)`` or ``(n_pairs, n_points)``, float32 or float64. Rows must sum to one (up to 1e-4) unless
        the model normalizes them. A single measure is compared with each row of the other argument.
    model
        A fitted `DiffusionEMD`, with any method, full or compact.

    Returns
    -------
    Tensor
        Distances, ``()`` or ``(n_pairs,)``.

    Examples
    --------
    >>> import torch
    >>> import heatmover as hm
    >>> from heatmover.differentiable import diffusion_emd
    >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), max_scale=5, dtype="float64").fit()
    >>> logits = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    >>> target = torch.eye(30, dtype=torch.float64)[15]
    >>> diffusion_emd(torch.softmax(logits, 0), target, model).backward()
    >>> int(logits.grad.argmin())  # the gradient moves mass to the target
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


# The mass of a new point is spread by a kernel half as wide as the kernel of the graph. The number of nodes that
# receive mass is ENTRY_NODES times the number of neighbors in the graph. Weights fall to zero at the farthest of these
# nodes. Otherwise the loss would jump where another node replaces the farthest node. Because of these jumps, the
# gradient missed 25% of the change of the loss along a path in 2-D, 40% in 3-D and 70% in 10-D. With weights that fall
# to zero, the gradient misses less than 1%. With as many nodes as neighbors, a cloud in 10-D that was moved along its
# gradient ended at a distance of 0.35 from its goal. With twice as many nodes, this distance was 0.15 (0.17 with
# weights that do not fall to zero).
ENTRY_WIDTH, ENTRY_NODES = 0.5, 2
# Parameters that the loss shares with the estimator.
SHARED = ("max_scale", "n_scales", "alpha", "tol", "density", "norm", "normalize", "n_jobs", "random_state", "weights")
# Added to weights before they are divided by their sum, so that equally distant nodes share the mass.
TIED = 1e-6


@final
class DiffusionEMDLoss(torch.nn.Module):
    """Differentiable loss: Diffusion Earth Mover's Distances between measures on a graph.

    Gradients flow to the masses, to the positions of the graph's points, and to new points that enter the graph. Each
    gradient costs one more run of the recurrence, and memory is linear in the number of points. The loss is computed on
    the CPU, in the type of the tensors (in float64 for positions), and returned on the device of the tensors.

    Parameters
    ----------
    graph
        Graph on whose points the measures are defined.
    points
        Positions of the graph's points, ``(n_points, n_dimensions)``, needed only for `enter` and `straying`.
    max_scale, n_scales, alpha, weights, density, norm, random_state
        As in `DiffusionEMD`. These parameters, the bandwidth and the polynomials are fixed when the loss is created,
        and no gradient flows through them.
    tol
        Largest error of the density at any scale. Gradients with respect to positions are one digit less accurate,
        because a derivative multiplies the omitted terms by the square of their degree.
    normalize
        True: divide masses by their sums, and differentiate through the division. False: raise an error if a sum
        differs from one by more than 1e-4, or if the negative masses exceed 1e-4 in total.
    entry_bandwidth
        Width of the kernel for new points; ``"auto"``: half the graph's bandwidth.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Attributes
    ----------
    graph : Graph
        The graph after the last `rebuild`.
    scales : range
        The scales k, with diffusion times ``2**k``.

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
            raise InvalidInputError("the argument graph to be a heatmover.Graph", type(graph).__name__)
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

    @classmethod
    def from_paper(
        cls,
        graph: Graph,
        *,
        points: npt.ArrayLike | None = None,
        max_scale: int | float | Literal["auto"] = "auto",
        n_scales: int | None = 6,
        alpha: float = 0.49,
        density: Literal["function", "adjoint"] = "function",
        normalize: bool = False,
        entry_bandwidth: float | Literal["auto"] = "auto",
        n_jobs: int | None = None,
        random_state: int | None = 0,
    ) -> Self:
        """Return a loss with the parameters of the paper: Eq. 6-8 by Algorithm 1, to a tolerance of 1e-10.

        The loss equals the L1 distance between the embeddings of `DiffusionEMD.from_paper`, and its gradient is the
        gradient of the paper's supplement. To differentiate Algorithm 4 in the masses, pass a fitted
        ``DiffusionEMD.from_paper(graph, algorithm="interpolative")`` to `diffusion_emd`.

        Parameters
        ----------
        graph, max_scale, n_scales, alpha, density, normalize, n_jobs, random_state
            As in `DiffusionEMD.from_paper`: K by the rule of the preset, the six coarsest scales (None: all K + 1 terms
            of Eq. 7), ``alpha`` in (0, 1/2), and ``density="adjoint"`` for the operators of the supplement.
        points
            Positions of the graph's points, ``(n_points, n_dimensions)``, needed only for `enter` and `straying`.
        entry_bandwidth
            As in the constructor.

        Returns
        -------
        DiffusionEMDLoss
            The loss: ``loss(first, second)`` takes masses ``(n_points,)`` or ``(n_pairs, n_points)``.

        Examples
        --------
        >>> import torch
        >>> import heatmover as hm
        >>> from heatmover.differentiable import DiffusionEMDLoss
        >>> data = hm.datasets.gaussians(2, points_per_measure=60)
        >>> loss = DiffusionEMDLoss.from_paper(hm.Graph.from_points(data.points, n_neighbors=10))
        >>> first, second = torch.tensor(data.measures().masses.toarray())
        >>> points = torch.tensor(data.points, requires_grad=True)
        >>> loss(first, second, points=points).backward()
        >>> loss.norm, loss.density, tuple(points.grad.shape) == data.points.shape
        ('increments', 'function', True)
        """
        preset = DiffusionEMD.from_paper(
            graph,
            max_scale=max_scale,
            n_scales=n_scales,
            alpha=alpha,
            density=density,
            normalize=normalize,
            n_jobs=n_jobs,
            random_state=random_state,
        ).get_params(deep=False)
        # The loss always runs Algorithm 1 in float64 at all points, so it has no parameters for these choices.
        settings = {name: preset[name] for name in SHARED}
        return cls(graph, points=points, entry_bandwidth=entry_bandwidth, **settings)

    @property
    def n_points(self) -> int:
        """Number of points of the graph."""
        return self.graph.n_points

    def forward(self, first: torch.Tensor, second: torch.Tensor, *, points: torch.Tensor | None = None) -> torch.Tensor:
        """Return the distance between measures.

        Parameters
        ----------
        first, second
            Masses ``(n_points,)`` or ``(n_pairs, n_points)``, float32 or float64; rows sum to one. A single measure is
            compared with each row of the other argument.
        points
            Positions ``(n_points, n_dimensions)`` from which affinities are computed, with the graph's neighbors and
            bandwidth. Gradients flow to the positions. Points that were equal when the graph was built share one node,
            at their mean, until `rebuild`. The graph must have been built from points with the Gaussian kernel. None:
            use the affinities of the graph, which is faster. Polynomials for positions cover all of [-1, 1], because
            the spectrum of future positions is unknown. Such polynomials have 1.2 to 1.4 times as many terms as
            polynomials for fixed affinities.

        Returns
        -------
        Tensor
            Distances, ``()`` or ``(n_pairs,)``. Equal measures have distance 0 and gradient 0.
        """
        one = check_masses("first", first, self.n_points, normalize=self.normalize)
        other = check_masses("second", second, self.n_points, normalize=self.normalize)
        if points is not None:
            check_points("points", points, n_points=self.n_points)
        check_together(first=one, second=other, **({} if points is None else {"points": points}))
        difference = one - other
        rows = self._at_nodes(torch.atleast_2d(difference).cpu())
        if points is None:
            if rows.dtype == torch.float32:
                check_single(self._operator, self.scales[-1], "call .double() on the masses")
            distances = self._distances(rows, self._data.to(rows), self._top.to(rows), self._settled)
        else:
            distances = self._distances_at(points, rows)
        return distances.reshape(difference.shape[:-1]).to(difference)

    def enter(self, cloud: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        """Spread the mass of new points over the graph, differentiably in their positions and weights.

        The mass of a new point is spread over its nearest nodes in proportion to
        ``exp(-d^2 / width^2) - exp(-D^2 / width^2)``, where d is the distance to the node and D the distance to the
        nearest node that receives no mass. The number of nodes is twice the number of neighbors in the graph. The
        masses are continuous in the positions, so the gradient accounts for all of the change of the loss along a path.

        Parameters
        ----------
        cloud
            Positions of the new points, ``(n_new, n_dimensions)`` or ``(n_clouds, n_new, n_dimensions)``, for instance
            from a generator.
        weights
            Mass of each new point, ``(n_new,)`` or ``(n_clouds, n_new)``; None for equal masses that sum to one.

        Returns
        -------
        Tensor
            Masses for the loss, ``(n_points,)`` or ``(n_clouds, n_points)``.

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
        clouds, masses = cloud.cpu().reshape(-1, *cloud.shape[-2:]), weights.cpu().reshape(-1, cloud.shape[-2])
        parts = torch.stack([entry.spread(one, mass) for one, mass in zip(clouds, masses, strict=True)])
        return self._on_points(parts).reshape(*cloud.shape[:-2], self.n_points).to(cloud)

    def straying(self, cloud: torch.Tensor) -> torch.Tensor:
        """Return the squared distance of each new point from the weighted mean of its nearest nodes in the graph.

        The loss depends on where mass lies on the graph, not on how far new points are from the graph. Adding a
        multiple of these distances to the loss keeps a cloud on the data.

        Parameters
        ----------
        cloud
            Positions of the new points, ``(n_new, n_dimensions)`` or ``(n_clouds, n_new, n_dimensions)``.

        Returns
        -------
        Tensor
            Squared distances, ``(n_new,)`` or ``(n_clouds, n_new)``.
        """
        entry = self._check_cloud(cloud)
        flat = cloud.reshape(-1, cloud.shape[-1]).cpu()
        return entry.offset(flat).square().sum(dim=-1).reshape(cloud.shape[:-1]).to(cloud)

    @torch.no_grad()
    def rebuild(self, points: torch.Tensor | npt.ArrayLike) -> Self:
        """Recompute the neighbors at new positions; bandwidth, scales and polynomials do not change.

        Points that have moved by about the bandwidth have new neighbors. The distance jumps when neighbors change, so
        rebuild every few steps rather than at every step, and not within a line search.

        Parameters
        ----------
        points
            New positions of the points, ``(n_points, n_dimensions)``.

        Returns
        -------
        DiffusionEMDLoss
            The loss itself.
        """
        width = self._bandwidth()
        places = points.detach().cpu().numpy() if isinstance(points, torch.Tensor) else points
        if np.shape(places)[:1] != (self.n_points,):
            raise InvalidInputError(f"points of shape ({self.n_points}, n_dimensions)", f"shape {np.shape(places)}")
        how = self.graph.construction
        if how["n_neighbors"] is None:
            raise InvalidInputError(
                "a graph with a fixed number of neighbors",
                "one built with a radius",
                "build a new graph and a new loss",
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
        """Return the settings, which PyTorch shows when it prints this module."""
        weighting = f"alpha={self.alpha:g}" if self.weights is None else f"weights={np.round(self.weights, 4).tolist()}"
        return f"{self.graph}, scales {self.scales[0]} to {self.scales[-1]}, {weighting}, norm={self.norm!r}"

    def _settle(self, graph: Graph, operator: DiffusionOperator) -> None:
        self.graph, self._operator = graph, operator
        place = np.arange(graph.n_points) if graph.place is None else graph.place.copy()
        self._place, self._copies = torch.from_numpy(place), torch.from_numpy(np.bincount(place))
        self._support = SparsityPattern(operator.symmetric, graph.first[operator.order], self._n_threads)
        self._order = torch.from_numpy(operator.order)
        self._component = torch.from_numpy(operator.component.astype(np.int64))
        self._top = torch.from_numpy(operator.top)
        self._data = torch.from_numpy(operator.symmetric.data)
        tol = self.tol * operator.tightening
        self._settled = Expansion.of_scales(self.scales, lowest=operator.lowest, tol=tol)
        self._moving = Expansion.of_scales(self.scales, lowest=-1.0, tol=tol)

    def _distances_at(self, points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        width = self._bandwidth()
        # Use float64, because differences of close points lose precision, and the backward pass loses more.
        places = (self._at_nodes(points.cpu().double().T) / self._copies).T[self._order]
        data, degree = operator_at(places, self._support, width)
        total = torch.zeros(self._operator.n_components, dtype=degree.dtype).index_add(0, self._component, degree)
        top = (degree / total[self._component]).sqrt()
        return self._distances(rows.double(), data, top, self._moving)

    def _on_points(self, masses: torch.Tensor) -> torch.Tensor:
        """Share the mass of every node equally among its points: ``(..., n_nodes)`` -> ``(..., n_points)``."""
        return (masses / self._copies)[..., self._place]

    def _at_nodes(self, values: torch.Tensor) -> torch.Tensor:
        """Add up the values of all points at each node: ``(n_rows, n_points)`` -> ``(n_rows, n_nodes)``."""
        empty = torch.zeros(values.shape[0], self.graph.n_nodes, dtype=values.dtype)
        return empty.index_add(1, self._place, values)

    def _distances(
        self, rows: torch.Tensor, data: torch.Tensor, top: torch.Tensor, expansion: Expansion
    ) -> torch.Tensor:
        """Return the distances ``(n_pairs,)`` from differences of measures ``(n_pairs, n_nodes)``."""
        columns = rows.T[self._order]
        outward = (top if self.density == "adjoint" else 1 / top)[:, None]
        start = columns / outward
        # A truncated polynomial removes a known share of the top eigenvectors; adding this share back conserves mass
        # exactly.
        parts = torch.zeros(self._operator.n_components, rows.shape[0], dtype=rows.dtype)
        parts = parts.index_add(0, self._component, start * top[:, None])[self._component] * top[:, None]
        diffused = powers(start, data, self._support, expansion)
        densities = [y + float(lack) * parts for y, lack in zip(diffused, expansion.missing, strict=True)]
        # Every row combines one or two densities; a product with the whole matrix would wait for BLAS threads.
        blocks = [sum(float(row[k]) * densities[k] for k in np.flatnonzero(row)) for row in self._matrix]
        return torch.stack([(outward * block).abs().sum(dim=0) for block in blocks]).sum(dim=0)

    def _bandwidth(self) -> float:
        """Return the bandwidth of the graph, or raise an error if affinities are not smooth in positions."""
        how = self.graph.construction
        euclidean = how.get("source") == "points" and how.get("metric", "euclidean") == "euclidean"
        if not euclidean or how.get("kernel") != "gaussian":
            raise InvalidInputError(
                "a graph from points with the Gaussian kernel of Euclidean distances",
                f"{self.graph}",
                "only these affinities are a smooth function of positions: use Graph.from_points(points)",
            )
        return float(how["bandwidth"])

    def _make_entry(self, points: npt.ArrayLike) -> Entry:
        places = check_matrix("points", points, dtype=np.float64)
        if len(places) != self.n_points:
            raise InvalidInputError(f"one position for each of the {self.n_points} points", f"{len(places)}")
        width = self._entry_bandwidth
        width = ENTRY_WIDTH * self._bandwidth() if width == "auto" else check_number("entry_bandwidth", width, above=0)
        # Use each node once, so that the neighbors of a new point are different nodes and not copies of one point.
        n_neighbors = self.graph.construction.get("n_neighbors") or 30
        return Entry(places[self.graph.first], ENTRY_NODES * n_neighbors + 1, width)

    def _check_cloud(self, cloud: torch.Tensor) -> Entry:
        if self._entry is None:
            raise InvalidInputError(
                "a loss with the positions of the graph's points", "none", "pass points= to DiffusionEMDLoss"
            )
        check_points("cloud", cloud, n_dimensions=self._entry.points.shape[1])
        if cloud.ndim > 3:
            raise InvalidInputError("a cloud (n_new, n_dimensions) or a batch of them", f"shape {tuple(cloud.shape)}")
        return self._entry


@final
class Entry:
    """Kernel that spreads the mass of new points over their nearest nodes.

    Parameters
    ----------
    points
        Positions of the nodes, ``(n_points, n_dimensions)``.
    n_nodes
        Number of nodes over which the mass of a new point is spread. The weight falls continuously to zero at the last
        node, unless the graph has no further nodes.
    width
        Width of the kernel ``exp(-d^2 / width^2)``.
    """

    def __init__(self, points: FloatArray, n_nodes: int, width: float) -> None:
        self.points = points
        self.width = width
        self._search = NearestNeighbors(n_neighbors=min(n_nodes, len(points))).fit(points)

    def weigh(self, cloud: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest nodes of each new point and the weights of these nodes.

        Parameters
        ----------
        cloud
            Positions of the new points, ``(n_new, n_dimensions)``, on the CPU.

        Returns
        -------
        nodes, weights
            Indices and weights of the nodes, ``(n_new, n_nodes)`` each. The weights of a point sum to one at any
            distance, because a softmax does not underflow.
        """
        nodes = torch.from_numpy(self._search.kneighbors(cloud.detach().numpy(), return_distance=False))
        squares = ((cloud[:, None] - self._positions(nodes, cloud.dtype)) / self.width).square().sum(dim=-1)
        weights = torch.softmax(-squares, dim=-1)
        if nodes.shape[1] < len(self.points):
            weights = weights * (TIED - torch.expm1(squares - squares.amax(dim=-1, keepdim=True)))
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return nodes, weights

    def spread(self, cloud: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
        """Spread ``masses``, ``(n_new,)``, of a cloud, ``(n_new, n_dimensions)``, over the nodes, ``(n_points,)``."""
        nodes, weights = self.weigh(cloud)
        empty = torch.zeros(len(self.points), dtype=cloud.dtype)
        return empty.index_add(0, nodes.flatten(), (weights * masses[:, None]).flatten())

    def offset(self, cloud: torch.Tensor) -> torch.Tensor:
        """Return the vector to each new point from the weighted mean of its nodes, ``(n_new, n_dimensions)``."""
        nodes, weights = self.weigh(cloud)
        return cloud - (weights[:, :, None] * self._positions(nodes, cloud.dtype)).sum(dim=1)

    def _positions(self, nodes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.points[nodes.numpy()]).to(dtype)
