"""The diffusion operator of a graph, the `Diffuser` interface of all ways, and the Chebyshev way.

`Diffuser` is the contract of a way to diffuse. `ChebyshevDiffuser` certifies its tolerance.

Map the spectrum [a, 1] of S onto [-1, 1]: S = (1 + a) / 2 + (1 - a) / 2 X. Then S^s is an expectation: a lazy
random walk that stays with probability (1 + a) / 2 and else steps left or right with equal chance is at J_s after
s steps, and S^s = E[T_|J_s|(X)], because X T_j = (T_{j+1} + T_{j-1}) / 2 moves the index like a coin. The
coefficients are therefore non-negative and sum to one, so that the error of stopping at degree J is exactly the
chance that |J_s| > J, on the whole spectrum, and it is attained at the eigenvalue 1. With a = -1 (nothing known)
these are the binomial coefficients of the classical expansion of a monomial; with a = 0 (S positive
semi-definite) the walk is half as restless and needs 0.7 of the degree.

`Recurrence` applies such polynomials to blocks of columns; every other way but the plain ones is built on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count, pairwise
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from heatmover._base.readonly import frozen_view
from heatmover._base.storage.record import Record, matrix_record
from heatmover._base.threads import in_threads
from heatmover._base.types import Bool, Float64, FloatArray, Int32, Int64, IntArray, Intp
from heatmover.errors import InvalidInputError
from heatmover.graphs.distinct import order_of_nodes
from heatmover.graphs.spectrum import alternating, lanczos, normalise, relative

__all__ = [
    "LANES",
    "REORDER_ABOVE",
    "Block",
    "ChebyshevDiffuser",
    "Diffuser",
    "DiffusionOperator",
    "Recurrence",
    "aligned_zeros",
    "check_single",
    "csr_structure",
    "in_columns",
    "power_coefficients",
    "rounding",
    "row_pool",
]

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


class AffinityGraph(Protocol):
    """What the operator takes of a `heatmover.graphs.Graph`: affinities between nodes, and where they came from."""

    @property
    def node_affinity(self) -> sp.csr_array: ...

    @property
    def construction(self) -> Mapping[str, Any]: ...


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
    def from_graph(cls, graph: AffinityGraph, *, anisotropy: float = 1.0) -> DiffusionOperator:
        """Normalise a graph's affinity into a diffusion operator, in float64.

        Examples
        --------
        >>> from heatmover.graphs import Graph
        >>> graph = Graph.from_affinity([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
        >>> DiffusionOperator.from_graph(graph).n_components
        1
        """
        affinity = _with_loops_where_isolated(graph.node_affinity)
        order = np.arange(affinity.shape[0])
        if graph.construction.get("source") not in ("points", "grid"):
            # Nodes made from points are sorted already; these are in the order of the matrix that was given.
            order = order_of_nodes(relative(affinity, _components(affinity)[1]))
            affinity = _permuted(affinity, order)
        nodes = order
        if order.size > REORDER_ABOVE:
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
        """Whether no polynomial of S can be trusted; see `WalkDiffuser`."""
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


# Wide blocks amortise the reading of the operator over more columns; 64 float32 columns reach the peak
# of the compiled recurrence (20 GFlop/s per core against 9 at 16 and 5 at 8).
WIDEST_BLOCK = 64

# Products of two numbers, a thread's part in a step, below which no further thread is worth while: to hand out a step
# takes 0.1 ms. On a graph of a hundred points two threads took twelve times as long as one.
PRODUCTS_PER_THREAD = 500_000


@final
class Recurrence:
    """T_1 X, T_2 X, ... with the Chebyshev polynomials T_j of S on an interval, by the three-term recurrence.

    Parameters
    ----------
    operator
        The diffusion operator.
    dtype
        Precision of the recurrence.
    highest
        The interval is [operator.lowest, highest]; on eigenvalues above it the polynomials grow without bound.
    n_threads
        Threads that share every step by rows, where it is long enough. One block of 32 columns takes two threads two
        thirds of the time of two blocks of 16; columns that fill a wide block for each thread are better shared by
        columns, see `in_columns`.
    """

    def __init__(
        self, operator: DiffusionOperator, dtype: npt.DTypeLike, *, highest: float = 1.0, n_threads: int = 1
    ) -> None:
        self._matrix = operator.symmetric
        self._structure = operator.structure
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._data = operator.symmetric.data.astype(self.dtype, copy=False)
        # slope * S + offset is twice the map of the interval onto [-1, 1].
        self._slope = 4 / (highest - operator.lowest)
        self._offset = 2 - self._slope * highest
        self._n_threads = n_threads

    def shared_by(self, n_threads: int) -> Recurrence:
        """Return the same recurrence, shared by so many threads; the numbers of the matrix are not copied."""
        shared = copy(self)
        shared._n_threads = n_threads
        return shared

    def terms(self, start: Block) -> Iterator[Block]:
        """Yield T_1 X, T_2 X, ... for a block X ``(n_points, width)``; each is valid until two more were taken."""
        n_points, width = start.shape
        terms = self._room(n_points, -(-width // LANES) * LANES)
        terms[0, :, :width] = start
        nothing = np.empty((0, len(terms)), dtype=self.dtype), terms[:0], terms[:0]
        with self._steps(terms.shape[2]) as step:
            for degree in count(1):
                step(terms, degree, *nothing)
                yield terms[degree % len(terms), :, :width]

    def _room(self, n_points: int, width: int) -> Block:
        """Return room for the last terms, all zero, ``(4, n_points, width)``."""
        from heatmover._base.compiled.recurrence import TERMS

        return aligned_zeros((TERMS, n_points, width), self.dtype)

    def polynomials(self, start: Block, coefficients: Sequence[Float64]) -> Iterator[Block]:
        """Yield polynomials of S applied to one block, each as soon as it is complete.

        Parameters
        ----------
        start
            The block ``(n_points, width)``, of this recurrence's precision. Widths in whole vector registers waste
            nothing.
        coefficients
            Of T_0, T_1, ... in each polynomial, from the shortest to the longest.

        Yields
        ------
        ndarray
            ``(n_points, width)``, once per polynomial, in order.
        """
        degrees = [len(part) - 1 for part in coefficients]
        table = np.zeros((len(degrees), degrees[-1] + 1), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part
        # In two parts, so that the memory of the fine scales, which are done early, is free for what is made of them.
        n_fine = sum(3 * degree < degrees[-1] for degree in degrees)
        fine, coarse = (_multiples(start, part) for part in (table[:n_fine, 0], table[n_fine:, 0]))
        terms, reached = self._room(*start.shape), 0
        terms[0] = start
        with self._steps(start.shape[1]) as step:
            for done, degree in enumerate(degrees):
                if done == n_fine:
                    fine = fine[:0].copy()
                if reached < degree:
                    # Whole groups of terms, but for the last.
                    last = min(-(-degree // len(terms)) * len(terms), degrees[-1])
                    sums = fine[done:], coarse[max(done - n_fine, 0) :]
                    _take_steps(step, terms, reached, table[done:, reached + 1 : last + 1], *sums)
                    reached = last
                yield fine[done] if done < n_fine else coarse[done - n_fine]

    def transposed(self, inputs: Block, coefficients: Sequence[Float64]) -> Block:
        """Return the sum of polynomials of S, each applied to a block of its own, by one recurrence (Clenshaw).

        Parameters
        ----------
        inputs
            ``(n_polynomials, n_points, width)``, of this recurrence's precision.
        coefficients
            Of T_0, T_1, ... in each polynomial, from the shortest to the longest.

        Returns
        -------
        ndarray
            ``(n_points, width)``.
        """
        from heatmover._base.compiled.recurrence import retreat

        (indptr, indices), number = self._structure, self.dtype.type
        lengths = np.array([len(part) for part in coefficients])
        table = np.zeros((len(lengths), int(lengths[-1])), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part

        def step(rows: tuple[int, int]) -> None:
            retreat(
                rows, indptr, indices, self._data, current, previous, number(slope), number(offset),
                shares, inputs[first:],
            )  # fmt: skip

        current, previous = (aligned_zeros(inputs.shape[1:], self.dtype) for _ in range(2))
        np.multiply(inputs[-1], table[-1, -1], out=current)
        for other in np.flatnonzero(lengths[:-1] == lengths[-1]):
            current += inputs[other] * table[other, -1]
        parts = self._parts(current.shape[1])
        with row_pool(len(parts)) as share:
            for degree in range(int(lengths[-1]) - 2, -1, -1):
                first = int(np.searchsorted(lengths, degree, side="right"))
                shares = np.ascontiguousarray(table[first:, degree])
                # The last step is half of the others: T_0 = 1, but T_1 = X T_0 and not 2 X T_0.
                half = 1.0 if degree else 0.5
                slope, offset = half * self._slope, half * self._offset
                share(step, parts)
                current, previous = previous, current
        return current

    def _parts(self, width: int) -> list[tuple[int, int]]:
        """Return the rows that each thread takes of a block of ``width`` columns: the first, and the one after."""
        indptr = self._matrix.indptr
        products = int(indptr[-1]) * width
        count = max(1, min(self._n_threads, products // max(PRODUCTS_PER_THREAD, 1)))
        if count == 1:
            return [(0, len(indptr) - 1)]
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], count + 1)[1:-1])
        return list(pairwise([0, *(int(cut) for cut in cuts), len(indptr) - 1]))

    @contextmanager
    def _steps(self, width: int) -> Iterator[Step]:
        """Lend a function that takes one step, whose rows the threads share; see `advance`."""
        from heatmover._base.compiled.recurrence import advance

        (indptr, indices), number, parts = self._structure, self.dtype.type, self._parts(width)

        def step(terms: Block, degree: int, *sums: Block) -> None:
            # T_1 = X T_0 is half of what the recurrence makes of T_{-1} = 0.
            half = 0.5 if degree == 1 else 1.0
            factors = number(half * self._slope), number(half * self._offset)

            def work(rows: tuple[int, int]) -> None:
                advance(rows, indptr, indices, self._data, terms, degree, *factors, *sums)

            share(work, parts)

        with row_pool(len(parts)) as share:
            yield step


Rows = tuple[int, int]


Step = Callable[[Block, int, Block, Block, Block], None]


def _take_steps(step: Step, terms: Block, degree: int, shares: Block, fine: Block, coarse: Block) -> None:
    """Take a step for every column of ``shares``; as many terms as are kept are added to the sums together."""
    for first in range(0, shares.shape[1], len(terms)):
        group = np.zeros((len(shares), len(terms)), dtype=terms.dtype)
        part = shares[:, first : first + len(terms)]
        group[:, : part.shape[1]] = part
        for place in range(1, part.shape[1]):
            step(terms, degree + first + place, group[:0], fine[:0], coarse[:0])
        step(terms, degree + first + part.shape[1], group, fine, coarse)


def _multiples(block: Block, factors: Block) -> Block:
    """Return multiples of a block, ``(n_factors, n_points, width)``."""
    multiples = aligned_zeros((len(factors), *block.shape), block.dtype)
    return np.multiply(block, factors[:, None, None], out=multiples)


@contextmanager
def row_pool(n_threads: int) -> Iterator[Callable[[Callable[[Rows], None], list[Rows]], None]]:
    """Lend a function that does some work on every part; threads wait for more of it, and one part needs none."""

    def alone(work: Callable[[Rows], None], parts: list[Rows]) -> None:
        for part in parts:
            work(part)

    def together(work: Callable[[Rows], None], parts: list[Rows]) -> None:
        list(pool.map(work, parts))

    if n_threads == 1:
        yield alone
        return
    with ThreadPoolExecutor(n_threads) as pool:
        yield together


def in_columns(
    function: Callable[[Block], Block], block: Block, *, n_threads: int, widest: int = WIDEST_BLOCK
) -> Block:
    """Apply ``function`` to groups of columns of ``block`` in threads and put the results side by side.

    Groups are whole vector registers of at most ``widest`` columns, enough of them to keep the threads busy.
    """
    units = -(-block.shape[1] // LANES)
    rounds = -(-units * LANES // (widest * n_threads))
    count = max(1, min(rounds * n_threads, units))
    edges = [LANES * (units * i // count) for i in range(1, count)]
    parts = [np.ascontiguousarray(part) for part in np.split(block, edges, axis=1)]
    return np.concatenate(in_threads(function, parts, n_threads), axis=1)


# Measures are divided by the root of the stationary law, and float32 ends at 1e38.
SINGLE_RANGE = 1e-15
# A precision that is asked for may lose more than ``tol``, as ``error_bound_`` then tells, but a bound above this, the
# largest ``tol``, tells nothing: at 2^30 steps and tol=1e-10 all densities of float32 were NaN.
LARGEST_ERROR = 0.5

# Scales that diffuse_progressively takes from one recurrence, as many as the memory allows. The density at 2^k started
# anew from 2^(k-1) costs 3.4 times the last recurrence in all, four at a time cost about 2, all at once 1.4. Every sum
# costs from the first term on, so that there are no more than the search for the largest scale usually looks at.
FEWEST_AT_ONCE, MOST_AT_ONCE = 4, 11
GROUP_MEMORY = 64 * 2**20


@lru_cache(maxsize=256)
def power_coefficients(steps: int, lowest: float, tol: float) -> tuple[Float64, float]:
    """Expand x -> x^steps on [lowest, 1] in Chebyshev polynomials, cut where the error passes ``tol``.

    Parameters
    ----------
    steps
        The power.
    lowest
        Lower end of the interval, in [-1, 0].
    tol
        Largest error allowed on the interval.

    Returns
    -------
    coefficients
        Of T_0 .. T_degree, ``(degree + 1,)``, non-negative.
    bound
        The error made: the sum of all coefficients left out.

    Examples
    --------
    >>> coefficients, bound = power_coefficients(2, -1.0, 1e-3)  # x^2 = 1/2 T_0 + 1/2 T_2
    >>> coefficients.round(12).tolist(), bound < 1e-15
    ([0.5, 0.0, 0.5], True)
    """
    # The walk passes `reach` with probability below 2 exp(-reach^2 / 2 steps) < 1e-17 (Hoeffding), so that a
    # Fourier sum over 2 * reach angles gives its law to rounding.
    reach = min(steps, int(np.ceil(np.sqrt(80.0 * steps)))) + 1
    angles = np.pi * np.arange(2 * reach) / reach
    characteristic = ((1 + lowest) / 2 + (1 - lowest) / 2 * np.cos(angles)) ** float(steps)
    law = np.clip(np.fft.rfft(characteristic).real / (2 * reach), 0, None)
    law[1:-1] *= 2
    left_out = np.append(np.cumsum(law[::-1])[::-1][1:], 0.0)
    degree = int(np.argmax(left_out <= tol))
    coefficients = law[: degree + 1].copy()
    coefficients.flags.writeable = False
    return coefficients, float(left_out[degree])


def rounding(steps: int, dtype: npt.DTypeLike) -> float:
    """Return how far rounding may move an eigenvalue's power: ``steps`` times the rounding of the eigenvalue itself.

    Storing S rounds an eigenvalue close to 1 by about half a unit, and the power multiplies that. Measured on two
    cliques joined by a thread, the worst graph known: a fifth of this at 2^13 and at 2^18.
    """
    return float((steps + 8) * np.finfo(dtype).eps / 2)


def check_single(operator: DiffusionOperator, scale: int, advice: str) -> None:
    """Raise if float32, which was asked for, says nothing about densities at ``scale``."""
    lost = rounding(2**scale, np.float32) / operator.tightening
    if lost > LARGEST_ERROR or operator.top.min() < SINGLE_RANGE:
        what = "a number of steps" if operator.tightening == 1 else "a stationary law"
        raise InvalidInputError(
            f"{what} that float32 can hold",
            f"that rounding may move a density by {lost:.1g} of its mass in 2^{scale} steps",
            advice,
        )


@final
class ChebyshevDiffuser(Diffuser):
    """One recurrence serves all scales; the mass in every component is restored exactly.

    Parameters
    ----------
    operator
        The diffusion operator.
    adjoint
        True for densities of the adjoint, False for the paper's literal P^t.
    tol
        Largest error of any eigenvalue's power, at every scale; what rounding takes of it is left to rounding, but
        not more than half.
    dtype
        float32 or float64: the precision of the recurrence and of the densities.
    n_threads
        Threads that share every step; see `Recurrence`.
    """

    def __init__(
        self,
        operator: DiffusionOperator,
        *,
        adjoint: bool,
        tol: float,
        dtype: npt.DTypeLike = np.float64,
        n_threads: int = 1,
    ) -> None:
        self.operator = operator
        self.tol = tol
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._top = operator.top
        if self.dtype == np.float32 and self._top.min() < SINGLE_RANGE:
            raise InvalidInputError(
                "a stationary law that float32 can hold", f"a smallest root of {self._top.min():.0e}", "use float64"
            )
        self._outward = self._top if adjoint else 1 / self._top
        self._recurrence = Recurrence(operator, self.dtype, n_threads=n_threads)

    def to_record(self) -> Record:
        """Return the diffuser as a record that a store can hold, its operator and density apart."""
        return Record({"kind": "chebyshev", "tol": float(self.tol), "dtype": self.dtype.name})

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> ChebyshevDiffuser:
        """Return the diffuser of a record, or raise if it is none."""
        record.text("kind", ("chebyshev",))
        dtype, tol = record.text("dtype", ("float32", "float64")), record.number("tol")
        if not 0 < tol < 1:
            raise InvalidInputError("a stored tolerance in (0, 1)", f"{tol:g}")
        return cls(operator, adjoint=adjoint, tol=tol, dtype=dtype)

    def shared_by(self, n_threads: int) -> ChebyshevDiffuser:
        """Return this way with steps that threads share; see `Diffuser.shared_by`."""
        shared = copy(self)
        shared._recurrence = self._recurrence.shared_by(n_threads)
        return shared

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        width = masses.shape[1]
        # The recurrence has a way of its own for a single column: half of the time that eight of them take.
        start = self.inward(masses, padded=width > 1)
        del masses
        target = self.parts(start)
        for density in self._recurrence.polynomials(start, [self._coefficients(2**scale) for scale in scales]):
            yield self.outward(density, target, width)

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield density after density; see `Diffuser.diffuse_progressively`."""
        state = self.inward(masses)
        target = self.parts(state)
        steps = 0
        group = int(np.clip(GROUP_MEMORY // max(state.nbytes, 1), FEWEST_AT_ONCE, MOST_AT_ONCE))
        while True:
            times = [2**scale for scale in range(steps.bit_length(), steps.bit_length() + group)]
            parts = [self._coefficients(time - steps) for time in times]
            for steps, density in zip(times, self._recurrence.polynomials(state, parts), strict=True):
                # The last one is where the next recurrence begins.
                yield self.outward(density.copy() if steps == times[-1] else density, target, masses.shape[1])
            state = density
            self._restore(state, target)

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Return the sum of the transposed operators on one block each, by one recurrence; see `Diffuser.collect`."""
        inputs, known, width = self.taken(blocks, len(scales))
        return self.released(self.transposed(inputs, scales), known, width)

    def transposed(self, inputs: Block, scales: range) -> Block:
        """Return the sum over scales of S^(2^k) applied to ``inputs[k]``, ``(n_scales, n_points, width)``."""
        return self._recurrence.transposed(inputs, [self._coefficients(2**scale) for scale in scales])

    def error_bound(self, scales: range) -> Float64:
        """Return the sum of the coefficients left out and the rounding, per scale; see `Diffuser.error_bound`."""
        return np.array([self._expansion(2**scale)[1] + rounding(2**scale, self.dtype) for scale in scales])

    def degree(self, scale: int) -> int:
        """Return the degree of the polynomial used at ``scale``: the number of products with the operator."""
        return len(self._coefficients(2**scale)) - 1

    def _coefficients(self, steps: int) -> Float64:
        return self._expansion(steps)[0]

    def _expansion(self, steps: int) -> tuple[Float64, float]:
        tol = max(self.tol - rounding(steps, self.dtype), self.tol / 2)
        return power_coefficients(steps, self.operator.lowest, tol)

    def inward(self, masses: Block, *, padded: bool = True) -> Block:
        """Conjugate measures into the coordinates of S, in its order, padded to whole vector registers."""
        width = -(-masses.shape[1] // LANES) * LANES if padded else masses.shape[1]
        block = aligned_zeros((masses.shape[0], width), self.dtype)
        block[:, : masses.shape[1]] = masses[self.operator.order] / self._outward[:, None]
        return block

    def parts(self, start: Block) -> Float64:
        """Return each column's part in the top eigenvector of each component, which no power changes."""
        from heatmover._base.compiled.recurrence import known_parts

        target = np.empty((self.operator.n_components, start.shape[1]))
        known_parts(start, self._top, self.operator.component, target)
        return target

    def outward(self, block: Block, target: Float64, width: int) -> Block:
        """Give a block (changed in place) its known parts and return it as densities, in the graph's order."""
        self._project(block, target, self._outward, self.operator.order)
        return block[:, :width]

    def _in_graph_order(self, block: Block, width: int) -> Block:
        if not self.operator.is_reordered:
            return block[:, :width]
        result = np.empty((len(block), width), dtype=self.dtype)
        result[self.operator.order] = block[:, :width]
        return result

    def taken(self, blocks: Iterable[Block], count: int) -> tuple[Block, Float64, int]:
        """Conjugate blocks into the coordinates of S, as the transpose of `outward`.

        Returns
        -------
        inputs
            ``(count, n_points, padded width)``, without their parts in the top eigenvectors.
        known
            The sum of these parts, which no power changes, ``(n_components, padded width)``.
        width
            Of the blocks.
        """
        inputs: Block = np.empty(0, dtype=self.dtype)
        known: Float64 = np.empty(0)
        width = 0
        for position, block in enumerate(blocks):
            if position == 0:
                width = block.shape[1]
                inputs = aligned_zeros((count, len(block), -(-width // LANES) * LANES), self.dtype)
                known = np.zeros((self.operator.n_components, inputs.shape[2]))
            ordered = block[self.operator.order] if self.operator.is_reordered else block
            inputs[position, :, :width] = ordered * self._outward[:, None]
            known += self.parts(inputs[position])
            self._restore(inputs[position], np.zeros_like(known))
        return inputs, known, width

    def released(self, block: Block, known: Float64, width: int) -> Block:
        """Add the known parts to a block (changed in place) and undo the conjugation: the transpose of `inward`."""
        from heatmover._base.compiled.recurrence import add_known

        add_known(block, self._top, self.operator.component, known, 1 / self._outward)
        return self._in_graph_order(block, width)

    def _restore(self, block: Block, target: Float64) -> None:
        """Give a block (changed in place) its known parts."""
        self._project(block, target, np.ones(len(block)), np.arange(len(block)))

    def _project(self, block: Block, target: Float64, factor: Float64, order: Intp) -> None:
        from heatmover._base.compiled.recurrence import project

        project(block, self._top, self.operator.component, target, factor, order)
