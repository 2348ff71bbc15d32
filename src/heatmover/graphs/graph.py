"""Define `Graph`, an immutable value from points, distances, affinities or a grid; for users, packages; no files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.files import plain
from heatmover._base.storage.record import Record, matrix_record
from heatmover._base.types import Bool, FloatArray, Int32, Intp
from heatmover._base.validation import (
    RandomState,
    check_integer,
    check_matrix,
    check_number,
    check_option,
    check_random_state,
    check_threads,
    check_truth,
)
from heatmover._base.words import counted, part_of
from heatmover.errors import GraphWarning, InvalidInputError, argument
from heatmover.graphs.diagnosis import Diagnosis, diagnose
from heatmover.graphs.distinct import distinct_points, gather_masses
from heatmover.graphs.kernels import (
    Bandwidth,
    KernelName,
    Neighbors,
    affinity_from_neighbors,
    check_kernel,
    choose_bandwidth,
    grid_affinity,
    narrow,
)
from heatmover.graphs.metrics import find_metric
from heatmover.graphs.neighbors import SEARCHES, k_nearest, within_radius
from heatmover.graphs.precomputed import check_affinity, check_count, given_neighbors
from heatmover.graphs.spectrum import bipartite


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A weighted graph over points.

    Build a graph with `Graph.from_points`, `Graph.from_distances`, `Graph.from_affinity` or `Graph.from_grid`.

    Equal points share one node. Nodes built from points are sorted by their coordinates, and all computations use this
    order, so no result depends on the order of the points.

    Attributes
    ----------
    node_affinity
        Affinity between the nodes in node order: a symmetric, non-negative, read-only CSR array ``(n_nodes, n_nodes)``
        in float64, with 32-bit indices if they suffice.
    construction
        Description of how the graph was built: algorithm, kernel, bandwidth, recall, ...
    place
        Row of ``node_affinity`` that belongs to each point, ``(n_points,)``; None if point i is node i.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.random.default_rng(0).normal(size=(200, 3))
    >>> Graph.from_points(points, n_neighbors=10)
    Graph(200 points, ... edges; gaussian kernel, bandwidth ..., 10 neighbors by tree)
    """

    node_affinity: sp.csr_array
    construction: Mapping[str, Any] = field(default_factory=dict)
    place: Intp | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "construction", MappingProxyType(dict(self.construction)))
        object.__setattr__(self, "node_affinity", _freeze(narrow(self.node_affinity)))
        if self.place is not None:
            self.place.flags.writeable = False

    def __getstate__(self) -> dict[str, Any]:
        return {"node_affinity": self.node_affinity, "construction": dict(self.construction), "place": self.place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # the graph is immutable, so cloned estimators can share it

    @classmethod
    def from_points(
        cls,
        points: npt.ArrayLike,
        n_neighbors: int = 30,
        kernel: KernelName = "gaussian",
        bandwidth: Bandwidth = "auto",
        random_state: RandomState = 0,
        *,
        neighbors: str = "auto",
        radius: float | None = None,
        n_jobs: int | None = None,
        metric: str = "euclidean",
    ) -> Graph:
        """Build a nearest-neighbor graph from points; a kernel turns the length of each edge into its weight.

        Parameters
        ----------
        points
            ``(n_points, n_dimensions)``, finite. Equal points share one node, and their masses are added.
        n_neighbors
            Number of neighbors of each node, less than the number of points. If merging equal points leaves too few
            nodes, all other nodes are neighbors. Two nodes are joined if either is a neighbor of the other. Nodes tied
            with the last neighbor (up to a relative difference of 1e-9) are neighbors too, up to four times
            ``n_neighbors`` in total. If even more nodes are tied, a hash of both nodes selects among them.
        kernel
            ``"gaussian"``: ``exp(-d^2 / b^2)`` with one width b for all points, the paper's Eq. 4 and the right choice
            for geometry. ``"adaptive"``: ``exp(-d^2 / (b_i b_j))``, for data whose density varies by orders of
            magnitude. ``"box"``: 1 for every neighbor.
        bandwidth
            The width b. ``"auto"``: 1.5 times the median distance to the middle neighbor (rank ``n_neighbors // 2``).
            For the adaptive kernel, a number multiplies the distance of each point to its middle neighbor.
        random_state
            Seed of the random sample from which the search is chosen, and of the approximate search.
        neighbors
            Search for neighbors. ``"tree"`` and ``"exact"`` find the true neighbors, ``"approximate"`` finds nearly
            all, and ``"auto"`` chooses an exact search where it is fast. `construction` records the choice, its reason
            and the measured recall.
        radius
            Join all points within this distance, instead of a fixed number of neighbors; ``n_neighbors`` and
            ``neighbors`` then have no effect.
        n_jobs
            Number of threads; None for all cores. The result does not depend on this number.
        metric
            Metric of the distance d, named as in scikit-learn: ``"euclidean"``, ``"cosine"`` (1 minus the cosine of the
            angle), ``"correlation"`` (1 minus the correlation), ``"haversine"`` (the angle between points given as
            latitude and longitude in radians), ``"manhattan"`` (the sum of the absolute differences) or ``"chebyshev"``
            (their maximum). Under cosine and correlation, points in the same direction are equal. Manhattan and
            Chebyshev neighbors are always searched by a tree, which is slow for many points in many dimensions. For
            other metrics use `Graph.from_distances`.

        Returns
        -------
        Graph
            Graph whose affinity has ones on the diagonal.

        Examples
        --------
        >>> import numpy as np
        >>> graph = Graph.from_points(np.linspace(0, 1, 50)[:, None], n_neighbors=4, kernel="box")
        >>> graph.n_points, graph.affinity.sum(axis=1)[:3].tolist()
        (50, [5.0, 5.0, 5.0])
        >>> words = np.random.default_rng(0).normal(size=(200, 20))
        >>> Graph.from_points(words, n_neighbors=10, metric="cosine")
        Graph(200 points, ... edges; gaussian kernel, bandwidth ..., 10 neighbors by tree, cosine distance)
        """
        check_kernel(kernel, bandwidth)
        check_option("neighbors", neighbors, SEARCHES)
        metric, how = find_metric(metric)
        if how.order != 2 and neighbors not in ("auto", "tree"):
            raise InvalidInputError(
                f"{argument('neighbors', 'tree')} or 'auto' with {argument('metric', metric)}", repr(neighbors)
            )
        array = np.asarray(check_points(points), dtype=np.float64)
        rng = check_random_state(random_state)
        n_threads = check_threads(n_jobs)
        count = 0 if radius is not None else check_count(n_neighbors, len(array))
        nodes, place = distinct_points(how.place(array))
        if radius is not None:
            reach = float(how.radius(np.float64(check_number("radius", radius, above=0))))  # type: ignore[arg-type]
            support = within_radius(nodes, reach, order=how.order)
        else:
            support = k_nearest(
                nodes, min(count, len(nodes) - 1), algorithm=neighbors, rng=rng, n_threads=n_threads, order=how.order
            )
        support.distances.data[:] = how.length(support.distances.data)
        support = replace(support, middle=how.length(support.middle))
        source = {"source": "points", "metric": metric}
        return cls._from_neighbors(support, place, kernel, bandwidth, count or None, source)

    @classmethod
    def _from_neighbors(
        cls,
        support: Neighbors,
        place: Intp,
        kernel: KernelName,
        bandwidth: Bandwidth,
        n_neighbors: int | None,
        source: dict[str, str],
    ) -> Graph:
        """Weight neighbors by a kernel and overwrite their distances; ``place`` is the node of each point."""
        widths = choose_bandwidth(support.middle, kernel, bandwidth)
        n_nodes = support.distances.shape[0]
        construction = {
            "source": source["source"],
            "kernel": kernel,
            "bandwidth": None if kernel == "box" else float(np.median(widths)),
            **source,
            "n_neighbors": n_neighbors,
            "neighbors": support.search.algorithm,
            "recall": support.search.recall,
            "reason": support.search.reason,
            "n_copies": place.size - n_nodes,
        }
        unmoved = np.array_equal(place, np.arange(n_nodes))
        affinity = affinity_from_neighbors(support.distances, kernel, widths, overwrite=True)
        return cls(affinity, construction, None if unmoved else place)

    @classmethod
    def from_distances(
        cls,
        distances: Any,
        n_neighbors: int | None = None,
        kernel: KernelName = "gaussian",
        bandwidth: Bandwidth = "auto",
    ) -> Graph:
        """Build a nearest-neighbor graph from precomputed distances; a kernel turns distances into weights.

        Kernel and bandwidth work as in `Graph.from_points`: the same neighbors give the same graph.

        Parameters
        ----------
        distances
            Distances ``(n_points, n_points)``, non-negative, zero from a point to itself. A dense matrix holds all
            pairs and is symmetric. A SciPy sparse matrix holds distances between neighbors, for instance from
            ``sklearn.neighbors.kneighbors_graph(points, 15, mode="distance")`` or scanpy's ``obsp["distances"]``: pairs
            that are not stored are not neighbors. A pair may be stored once or in both directions, and a stored zero is
            a distance. Points at distance zero share one node.
        n_neighbors
            Number of neighbors of each node; nodes tied with the last neighbor are added. None: 30, or all other nodes
            if there are fewer; for sparse distances, all stored neighbors.
        kernel, bandwidth
            As in `Graph.from_points`.

        Returns
        -------
        Graph
            Graph whose affinity has ones on the diagonal; its nodes are in the order of the points.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.neighbors import kneighbors_graph
        >>> points = np.random.default_rng(0).normal(size=(200, 3))
        >>> near = kneighbors_graph(points, 10, mode="distance")
        >>> graph = Graph.from_distances(near)
        >>> graph
        Graph(200 points, ... edges; gaussian kernel, bandwidth ..., given distances)
        >>> same = Graph.from_points(points, n_neighbors=10).affinity
        >>> bool(abs(graph.affinity - same).max() < 1e-12)
        True
        """
        check_kernel(kernel, bandwidth)
        support, place = given_neighbors(distances, n_neighbors)
        count = None if n_neighbors is None else int(n_neighbors)
        return cls._from_neighbors(support, place, kernel, bandwidth, count, {"source": "distances"})

    @classmethod
    def from_affinity(cls, affinity: Any, *, lazy: bool | None = None) -> Graph:
        """Build a graph from a symmetric, non-negative affinity matrix.

        Parameters
        ----------
        affinity
            Affinity ``(n_points, n_points)``, dense or SciPy sparse. A point without any affinity keeps its mass
            forever. Multiplying all affinities of a component by a constant changes nothing. A matrix that is
            recognized as distances, by zeros on the diagonal and the triangle inequality, raises an error.
        lazy
            True: add a self-loop to every point, weighted by the mean degree of the component, so that the random walk
            stays in place in about half of its steps. False: use the affinity unchanged. None: add self-loops only to
            bipartite components (such as paths, trees and square lattices without self-loops), with a warning. On
            bipartite components heat alternates between two halves, and distances are wrong: neighbors seem farther
            apart than points two steps away.

        Examples
        --------
        >>> path = [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
        >>> Graph.from_affinity(path, lazy=True)
        Graph(3 points, 2 edges; given affinity, lazy)
        >>> Graph.from_affinity([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
        Graph(3 points, 3 edges; given affinity)
        """
        matrix = check_affinity(affinity)
        if lazy is None:
            periodic, component = bipartite(matrix)
            if periodic.any():
                _warn_of_bipartite(periodic, component)
        else:
            periodic, component = np.full(matrix.shape[0], check_truth("lazy", lazy)), bipartite(matrix)[1]
        if not periodic.any():
            return cls(matrix, {"source": "affinity"})
        return cls(_with_loops(matrix, periodic, component), {"source": "affinity", "lazy": int(periodic.sum())})

    @classmethod
    def from_grid(
        cls,
        shape: Sequence[int],
        *,
        spacing: float | Sequence[float] = 1.0,
        periodic: bool = False,
        bandwidth: float = 1.5,
        reach: int | None = None,
    ) -> Graph:
        """Build a graph on a regular grid, such as the pixels of an image, in any dimension.

        Parameters
        ----------
        shape
            Number of nodes along each axis; points are in the order of ``np.ravel``.
        spacing
            Distance between neighboring nodes: one number, or one per axis.
        periodic
            If True, every axis wraps around.
        bandwidth
            Width of the Gaussian kernel in units of the smallest spacing.
        reach
            Number of steps along each axis within which two nodes are joined; default 2 in one or two dimensions, else
            1.

        Examples
        --------
        >>> Graph.from_grid((28, 28)).n_points
        784
        """
        affinity, construction = grid_affinity(
            shape, spacing=spacing, periodic=periodic, bandwidth=bandwidth, reach=reach
        )
        return cls(affinity, construction)

    def to_record(self) -> Record:
        """Return the graph as a record that can be saved to disk."""
        places = {} if self.place is None else {"place": self.place.astype(np.int64, copy=False)}
        # A list of pairs keeps the order of the entries, and keys may be any text.
        construction = [[key, plain(value)] for key, value in self.construction.items()]
        return Record({"construction": construction}, places, {"affinity": matrix_record(self.node_affinity)})

    @classmethod
    def from_record(cls, record: Record) -> Graph:
        """Return the graph that a record holds, or raise an error if it holds none."""
        affinity = record.matrix("affinity")
        n_nodes = affinity.shape[0]
        if affinity.shape[1] != n_nodes or n_nodes == 0:
            raise InvalidInputError("a stored affinity between nodes", f"shape {affinity.shape}")
        place = None
        if "place" in record.arrays:
            place = record.places("place", np.int64, (None,), n_nodes).astype(np.intp, copy=False)
            if np.bincount(place, minlength=n_nodes).min() == 0:
                raise InvalidInputError("stored points at every node", "a node without any")
        return cls(affinity, _stored_construction(record), place)

    @property
    def n_points(self) -> int:
        """Number of points, including duplicates."""
        return self.n_nodes if self.place is None else int(self.place.size)

    @property
    def n_nodes(self) -> int:
        """Number of distinct points."""
        return int(self.node_affinity.shape[0])

    @property
    def n_edges(self) -> int:
        """Number of edges between distinct points."""
        return int((self.node_affinity.nnz - np.count_nonzero(self.node_affinity.diagonal())) // 2)

    @cached_property
    def affinity(self) -> sp.csr_array:
        """Affinity between the points in input order, CSR ``(n_nodes, n_nodes)``, float64, read-only.

        Equal points share one row, so there may be fewer rows than points. Rows are in the order in which the points
        first occur; the row of point i is ``nodes[i]``.
        """
        if self.place is None:
            return self.node_affinity
        order = np.argsort(self.first)
        rows, rank = self.node_affinity[order], np.empty(self.n_nodes, dtype=self.node_affinity.indices.dtype)
        rank[order] = np.arange(self.n_nodes, dtype=rank.dtype)
        matrix = sp.csr_array((rows.data, rank[rows.indices], rows.indptr), shape=rows.shape)
        matrix.sort_indices()
        return _freeze(matrix)

    @cached_property
    def nodes(self) -> Intp:
        """Row of `affinity` for each point, ``(n_points,)``; 0, 1, 2, ... if no two points are equal.

        Examples
        --------
        >>> Graph.from_points([[3.0], [1.0], [3.0], [2.0]], n_neighbors=2).nodes.tolist()
        [0, 1, 0, 2]
        """
        if self.place is None:
            return np.arange(self.n_nodes)
        rank = np.empty(self.n_nodes, dtype=np.intp)
        rank[np.argsort(self.first)] = np.arange(self.n_nodes)
        return np.asarray(rank[self.place])

    @cached_property
    def first(self) -> Intp:
        """First point of each node, ``(n_nodes,)``, in node order."""
        if self.place is None:
            return np.arange(self.n_nodes)
        first = np.empty(self.n_nodes, dtype=np.intp)
        first[self.place[::-1]] = np.arange(self.place.size)[::-1]
        return first

    def gather(self, masses: Any) -> Any:
        """Sum the masses of points at each node: ``(n_measures, n_points)`` -> ``(n_measures, n_nodes)``.

        Parameters
        ----------
        masses
            Masses, dense or CSR. The result has the same type, in node order.

        Examples
        --------
        >>> import numpy as np
        >>> graph = Graph.from_points([[3.0], [1.0], [3.0], [2.0]], n_neighbors=2)
        >>> graph.gather(np.array([[0.25, 0.25, 0.25, 0.25]]))
        array([[0.25, 0.25, 0.5 ]])
        """
        return masses if self.place is None else gather_masses(masses, self.place, self.n_nodes)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Give every point the value of its node: ``(..., n_nodes)`` -> ``(..., n_points)``."""
        return values if self.place is None else values[..., self.place]

    def share(self, masses: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Divide each node's mass equally among its points: ``(..., n_nodes)`` -> ``(..., n_points)``."""
        if self.place is None:
            return masses
        return np.asarray((masses / np.bincount(self.place, minlength=self.n_nodes))[..., self.place])

    def diagnose(self, *, steps: int | None = None) -> Diagnosis:
        """Check the graph for problems that would make distances misleading, and give advice.

        Parameters
        ----------
        steps
            Number of steps of the longest diffusion, which is ``2**max_scale_`` for a fitted model; None for 2^13. A
            group of points is nearly disconnected if hardly any of its heat leaves within this many steps.

        Returns
        -------
        Diagnosis
            Components, isolated points, near-cuts, degrees, spectral gap, and advice in plain words; ``print`` shows
            all of these results.

        Examples
        --------
        >>> Graph.from_affinity([[1, 1, 0], [1, 1, 0], [0, 0, 1]]).diagnose().n_components
        2
        """
        longest = None if steps is None else check_integer("steps", steps, minimum=1)
        diagnosis = diagnose(self.node_affinity, recall=self.construction.get("recall", 1.0), steps=longest)
        return replace(diagnosis, n_copies=self.n_points - self.n_nodes)

    def __repr__(self) -> str:
        how = self.construction
        words = f"{how.get('source', 'given')} affinity" if how.get("source") != "affinity" else "given affinity"
        if how.get("source") in ("points", "distances"):
            width = "" if how["bandwidth"] is None else f", bandwidth {how['bandwidth']:.3g}"
            near = "neighbors" if how["n_neighbors"] is None else counted(how["n_neighbors"], "neighbor")
            words = f"{how['kernel']} kernel{width}, {near} by {how['neighbors']}"
            if how["source"] == "distances":
                words = f"{how['kernel']} kernel{width}, given distances"
            elif how.get("metric", "euclidean") != "euclidean":
                words += f", {how['metric']} distance"
        elif how.get("lazy"):
            words += ", lazy" if how["lazy"] == self.n_nodes else f", {counted(how['lazy'], 'point')} lazy"
        elif how.get("source") == "grid":
            words = f"grid {'x'.join(map(str, how['shape']))}"
        nodes = "" if self.n_nodes == self.n_points else f" on {counted(self.n_nodes, 'node')}"
        return f"Graph({counted(self.n_points, 'point')}{nodes}, {counted(self.n_edges, 'edge')}; {words})"


def _stored_construction(record: Record) -> dict[str, Any]:
    pairs = record.values.get("construction")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise InvalidInputError("a stored construction of a graph", "something else")
    # The shape of a grid is a tuple, which JSON stores as a list.
    return {str(key): tuple(value) if isinstance(value, list) else value for key, value in pairs}


def _freeze(matrix: sp.csr_array) -> sp.csr_array:
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    return matrix


def check_points(points: npt.ArrayLike) -> FloatArray:
    """Return valid points in their own precision, because converting millions of points would double the memory."""
    array = check_matrix("points", points)
    largest = max(float(array.max()), -float(array.min()))
    if largest > 0 and not 1e-150 < largest < 1e150:  # squares of distances must stay in the range of a float
        raise InvalidInputError(
            "coordinates between 1e-150 and 1e150", f"a largest value of {largest:g}", "rescale them"
        )
    return array


def _warn_of_bipartite(points: Bool, component: Int32) -> None:
    count, size = np.unique(component[points]).size, int(points.sum())
    warnings.warn(
        f"Expected a random walk that mixes, found {counted(count, 'bipartite component')} "
        f"({part_of(size, points.size, 'point')}), where heat alternates between two halves; "
        "each of these points got a self-loop, whose weight is the mean degree of the component. Pass lazy=True to "
        "Graph.from_affinity to add self-loops to all points without this warning, or lazy=False to add none.",
        GraphWarning,
        stacklevel=3,
    )


def _with_loops(matrix: sp.csr_array, points: Bool, component: Int32) -> sp.csr_array:
    """Add a self-loop to each selected point, weighted by the mean degree of the point's component."""
    owner = np.repeat(component, np.diff(matrix.indptr))
    # Sum in ascending order, so that sums are bit-identical for any order of the points.
    order = np.lexsort((matrix.data, owner))
    totals = np.bincount(owner[order], matrix.data[order], minlength=int(component.max()) + 1)
    sizes = np.bincount(component, minlength=totals.size)
    loops = np.where(points, totals[component] / sizes[component], 0.0)
    looped = sp.csr_array(matrix + sp.diags_array(loops, format="csr"))
    looped.eliminate_zeros()
    return looped
