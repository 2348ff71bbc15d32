"""The diffusion operator of a graph (the walk P and its symmetric form S), and the contract of a way to diffuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from heatmover._base.readonly import frozen_view
from heatmover._base.storage.record import Record, matrix_record
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Int64, IntArray, Intp
from heatmover.errors import InvalidInputError
from heatmover.graphs.distinct import order_of_nodes
from heatmover.graphs.graph import Graph
from heatmover.graphs.spectrum import alternating, lanczos, normalise, relative

__all__ = ["LANES", "REORDER_ABOVE", "Block", "Diffuser", "DiffusionOperator", "aligned_zeros", "csr_structure"]

# Below this size a block of columns fits the cache in any order; above, neighbours must lie close together in memory.
# A product with 64 columns on a swiss roll of 10,000 points takes 1.4 times as long in the order of coordinates, and
# 1.9 times as long in a random order; at 300,000 points in 8-D the order of the sample takes 3.5 times as long.
REORDER_ABOVE = 1_000

# See `DiffusionOperator.tightening`; below UNEVEN a tolerance of 1e-3 would become one of 1e-9, which the rounding of
# S leaves no room for at coarse scales; below UNHELD squares of what is divided by the stationary law overflow.
EVEN, UNEVEN, UNHELD = 1e-1, 1e-7, 1e-140

# The lower end of the spectrum is estimated by this many Lanczos steps and lowered by a margin that a random
# start exceeds with probability at most LANCZOS_FAILURE (Kuczynski and Wozniakowski 1992, Theorem 4.2).
LANCZOS_STEPS = 60
LANCZOS_FAILURE = 1e-10
# A walk alternates only if its spectrum reaches so far down.
LOW = -0.85


@dataclass(frozen=True, eq=False)
class DiffusionOperator:
    """S = d^-1/2 K_n d^-1/2 with K_n = q^-a K q^-a, stored in an order that keeps neighbours together.

    Attributes
    ----------
    symmetric
        S as CSR, ``(n_points, n_points)``; row i belongs to point ``order[i]``.
    order
        Permutation of the points, ``(n_points,)``.
    degree
        d in this order, ``(n_points,)``; the stationary law of a component is proportional to it. Each component has a
        unit of its own, so that a common factor of its affinities changes nothing.
    component
        Connected component of each row, ``(n_points,)``.
    n_components
        Number of connected components.
    lowest
        A lower bound of the spectrum of S, in [-1, 0].
    nodes
        The points in an order that depends neither on that in which they came nor on how S is stored, ``(n_points,)``:
        whoever draws points at random draws from these.
    """

    symmetric: sp.csr_array
    order: Intp
    degree: Float64
    component: Int32
    n_components: int
    lowest: float
    nodes: Intp

    @classmethod
    def from_graph(cls, graph: Graph, *, anisotropy: float = 1.0) -> DiffusionOperator:
        """Normalise a graph's affinity into a diffusion operator, in float64.

        Examples
        --------
        >>> graph = Graph.from_affinity([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
        >>> DiffusionOperator.from_graph(graph).n_components
        1
        """
        affinity, order = _with_loops_where_isolated(graph.node_affinity), np.arange(graph.n_nodes)
        if graph.construction.get("source") not in ("points", "grid"):
            # Nodes made from points are sorted already; these are in the order of the matrix that was given.
            order = order_of_nodes(relative(affinity, _components(affinity)[1]))
            affinity = _permuted(affinity, order)
        nodes = order
        if graph.n_nodes > REORDER_ABOVE:
            # Neighbours close together.
            place = reverse_cuthill_mckee(sp.csr_matrix(affinity), symmetric_mode=True)
            affinity, order = _permuted(affinity, place), order[place]
        n_components, component = _components(affinity)
        symmetric, degree = normalise(affinity, anisotropy, component)
        operator = cls(symmetric, order, degree, component, int(n_components), _lowest_eigenvalue(symmetric), nodes)
        if not operator.evenness > UNHELD:
            raise InvalidInputError(
                "affinities within a component that float64 can hold",
                f"a stationary law whose root varies by more than {1 / UNHELD:.0e}",
                "remove the faintest points, or give every point an affinity to itself",
            )
        return operator

    def to_record(self) -> Record:
        """Return the operator as a record that a store can hold."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "order": self.order.astype(np.int64, copy=False),
            "degree": self.degree,
            "component": self.component,
            "nodes": self.nodes.astype(np.int64, copy=False),
        }
        values = {"n_components": self.n_components, "lowest": float(self.lowest)}
        return Record(values, arrays, {"symmetric": matrix_record(self.symmetric)})

    @classmethod
    def from_record(cls, record: Record, n_nodes: int) -> DiffusionOperator:
        """Return the operator on ``n_nodes`` nodes of a record, or raise if it is none."""
        n_components, lowest = record.integer("n_components", minimum=1), record.number("lowest")
        degree = record.floats("degree", (n_nodes,))
        if not -1 <= lowest <= 0 or not degree.min() > 0:
            raise InvalidInputError("a stored operator with a lowest eigenvalue in [-1, 0] and degrees", "another")
        return cls(
            record.matrix("symmetric", (n_nodes, n_nodes)),
            record.permutation("order", n_nodes),
            degree,
            record.places("component", np.int32, (n_nodes,), n_components),
            n_components,
            lowest,
            record.permutation("nodes", n_nodes),
        )

    def astype(self, dtype: npt.DTypeLike) -> DiffusionOperator:
        """Return the same operator with S stored as ``dtype``."""
        return replace(self, symmetric=sp.csr_array(self.symmetric, dtype=dtype))

    @property
    def n_points(self) -> int:
        """Number of points of the graph."""
        return int(self.degree.size)

    @cached_property
    def is_reordered(self) -> bool:
        """Whether rows are in another order than the graph's nodes."""
        return not np.array_equal(self.order, np.arange(self.n_points))

    @cached_property
    def structure(self) -> tuple[Int64, Int32]:
        """Where the rows of S begin, and the columns of its entries; see `csr_structure`."""
        return csr_structure(self.symmetric)

    @cached_property
    def top(self) -> Float64:
        """Eigenvectors of S to eigenvalue 1, one per component, in one vector ``(n_points,)``."""
        total = np.bincount(self.component, weights=self.degree, minlength=self.n_components)
        return np.asarray(np.sqrt(self.degree / total[self.component]))

    @cached_property
    def evenness(self) -> float:
        """Smallest over largest entry of `top` within a component, of the most uneven one."""
        top = self.top
        largest = np.zeros(self.n_components)
        np.maximum.at(largest, self.component, top)
        return float((top / largest[self.component]).min())

    @property
    def tightening(self) -> float:
        """How much smaller than wanted a tolerance must be, because the stationary law is uneven; at most 1.

        Errors are certified relative to the stationary law. What is small beside the faint mass at a faint point may be
        large for the others: on a path of ten points whose weights fall by 1e-2 from edge to edge (evenness 2e-8)
        densities were off by 300 at a tolerance of 1e-3. Graphs from points have an evenness of 0.15 and more.
        """
        return min(1.0, self.evenness / EVEN)

    @property
    def is_uneven(self) -> bool:
        """Whether no polynomial of S can be trusted; see `heatmover.diffusion.walk`."""
        return self.evenness < UNEVEN

    @cached_property
    def alternates(self) -> Bool:
        """Whether the walk of each component is, or nearly is, that of a bipartite graph, ``(n_components,)``."""
        if self.lowest > LOW:
            return np.zeros(self.n_components, dtype=bool)
        return alternating(self.symmetric, self.top, self.component)

    @property
    def stationary(self) -> Float64:
        """Stationary law of each component, in the order of the graph's nodes ``(n_points,)``."""
        law = np.empty(self.n_points)
        law[self.order] = self.top**2
        return law

    def remove_top(self, block: FloatArray) -> None:
        """Make the columns of a block ``(n_points, width)`` orthogonal to the top eigenvectors, in place."""
        from heatmover._base.compiled.recurrence import project

        nothing, rows = np.zeros((self.n_components, block.shape[1])), np.arange(self.n_points)
        project(block, self.top, self.component, nothing, np.ones(self.n_points), rows)

    def component_masses(self, rows: Any) -> Float64:
        """Return the mass that each measure has in each component.

        Parameters
        ----------
        rows
            ``(n_measures, n_points)``, dense or CSR, in the graph's order of points.

        Returns
        -------
        ndarray
            ``(n_measures, n_components)``.
        """
        shape = (self.n_points, self.n_components)
        membership = sp.csr_array((np.ones(self.n_points), (self.order, self.component)), shape=shape)
        product = rows @ membership
        return np.asarray(product.toarray() if sp.issparse(product) else product)


def csr_structure(matrix: sp.csr_array) -> tuple[Int64, Int32]:
    """Return where the rows of a matrix begin, and the columns of its entries, in the types that kernels take.

    SciPy may hold columns in 64 bits, which are two thirds of what a product in float32 reads of the matrix. Neither is
    writeable, whether or not the matrix is: to numba these are two types, and kernels would be compiled for both.
    """
    starts, columns = matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False)
    return frozen_view(starts), frozen_view(columns)


def _with_loops_where_isolated(affinity: sp.csr_array) -> sp.csr_array:
    """Give a point without any affinity, not even to itself, a loop: its mass stays where it is."""
    isolated = np.flatnonzero(np.asarray(affinity.sum(axis=1)).ravel() == 0)
    if isolated.size == 0:
        return affinity
    places = isolated.astype(affinity.indices.dtype)  # SciPy would make all places as wide as the widest
    loops = sp.csr_array((np.ones(isolated.size), (places, places)), shape=affinity.shape)
    return sp.csr_array(affinity + loops)


def _permuted(affinity: sp.csr_array, order: IntArray) -> sp.csr_array:
    """Return a symmetric affinity with rows and columns in another order, indices sorted."""
    permuted = sp.csr_array(affinity[order][:, order])
    permuted.sort_indices()
    return permuted


def _components(affinity: sp.csr_array) -> tuple[int, Int32]:
    """Return the number of connected components and that of each node, ``(n_nodes,)``."""
    count, component = connected_components(affinity, directed=False)
    return int(count), component


def _lowest_eigenvalue(symmetric: sp.csr_array) -> float:
    """Return a number in [-1, 0] that no eigenvalue of S lies below."""
    n_points = symmetric.shape[0]
    if n_points <= LANCZOS_STEPS:
        return float(np.clip(np.linalg.eigvalsh(symmetric.toarray())[0] - 1e-12, -1, 0))
    lowest = lanczos(symmetric, LANCZOS_STEPS, ends_only=True)[0][0]
    miss = np.log(1.648 * np.sqrt(n_points) / LANCZOS_FAILURE) / (2 * LANCZOS_STEPS - 1)
    margin = min(miss, 1.0) ** 2
    # The estimate misses at most this share of the distance from the top of the spectrum, which is 1.
    return float(np.clip(1 - (1 - lowest) / (1 - margin) if margin < 1 else -1, -1, 0))


# Columns of a block that a vector register of the machine holds: widths that are multiples of it waste nothing.
LANES = 8

# Bytes of a line of the cache. A vector that reaches over two lines takes two loads: from NumPy's own arrays, which
# begin 16 bytes behind a line, products with the operator took a fifth longer.
CACHE_LINE = 64

Block = npt.NDArray[np.floating[Any]]


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Block:
    """Return zeros that begin where a line of the cache does.

    Examples
    --------
    >>> aligned_zeros((3, 8), np.float32).ctypes.data % 64
    0
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


class Diffuser(ABC):
    """Pushes blocks of measures through powers of one diffusion operator.

    A diffuser is built once for an operator and a tolerance and then applied to any number of blocks, from any
    number of threads: it holds no state that a call changes.

    Attributes
    ----------
    operator
        The diffusion operator.
    """

    operator: DiffusionOperator

    @abstractmethod
    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities of ``masses`` at times ``2**k`` for every k in ``scales``.

        Parameters
        ----------
        masses
            ``(n_points, width)``, columns are measures.
        scales
            Consecutive non-negative scales.

        Yields
        ------
        ndarray
            ``(n_points, width)``, once per scale.
        """

    def shared_by(self, n_threads: int) -> Diffuser | None:  # noqa: ARG002
        """Return this way with steps that threads share by rows, the same bits; None if only columns can be shared."""
        return None

    @abstractmethod
    def to_record(self) -> Record:
        """Return what a store must hold beside the operator and the density; its value "kind" names the way."""

    @abstractmethod
    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities ``(n_points, width)`` at times ``2**0, 2**1, ...`` until the caller stops."""

    @abstractmethod
    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the transpose of `diffuse`: the sum over scales of the transposed operator on one block each.

        Parameters
        ----------
        blocks
            ``(n_points, width)``, once per scale, in order; each may be changed.
        scales
            Consecutive non-negative scales, at least one.

        Returns
        -------
        ndarray
            ``(n_points, width)``: its product with any measure is the sum over scales of the products of the blocks
            with the densities of that measure.
        """

    @abstractmethod
    def error_bound(self, scales: range) -> npt.NDArray[np.float64]:
        """Return, per scale, the largest error of an eigenvalue's power, ``(n_scales,)``.

        It bounds the error of a density f relative to its measure in the operator's own norm:
        ``sqrt(sum(error**2 / pi)) <= bound * sqrt(sum(mass**2 / pi))`` for densities of the adjoint (pi is the
        stationary law), with ``* pi`` in place of ``/ pi`` for ``density="function"``.
        """
