"""Define the operator, the `Diffuser` interface, Chebyshev diffusion; for `diffusion`, `embedding`, `differentiable`.

The module touches no files. `Diffuser` is the interface of all diffusion
methods. `ChebyshevDiffuser` certifies its tolerance.

Map the spectrum [a, 1] of S onto [-1, 1]: S = (1 + a) / 2 + (1 - a) / 2 X. Then S^s is an expectation. Let J_s be the
position after s steps of a lazy random walk that stays with probability (1 + a) / 2 and otherwise steps left or right
with equal probability. Then S^s = E[T_|J_s|(X)], because X T_j = (T_{j+1} + T_{j-1}) / 2 moves the index like a coin
toss. So the coefficients are non-negative and sum to one, and the error of stopping at degree J is exactly the
probability that |J_s| > J. This bound holds on the whole spectrum and is attained at the eigenvalue 1. With a = -1
(nothing is known about S) the coefficients are the binomial coefficients of the classical expansion of a monomial. With
a = 0 (S positive semi-definite) the walk moves half as often, and 0.7 times the degree suffices.

`Recurrence` applies these polynomials to blocks of columns; all methods except the methods in `exact` use it.
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
from heatmover.graphs.spectrum import alternating, lanczos, normalize, relative

# Up to this number of points a block of columns fits the cache in any order. With more points, neighbors must be close
# together in memory. Without reordering, a product with 64 columns on a swiss roll of 10,000 points takes 1.4 times as
# long in the order of coordinates and 1.9 times as long in a random order. On 300,000 points in 8 dimensions, a product
# in the input order takes 3.5 times as long.
REORDER_ABOVE = 1_000

# Limits of `DiffusionOperator.evenness`. Below EVEN, tolerances are tightened (see `tightening`). Below UNEVEN a
# tolerance of 1e-3 would be tightened to 1e-9, but at coarse scales the rounding error of S is above 1e-9. Below
# UNHELD, masses divided by the square root of the stationary distribution have squares that overflow.
EVEN, UNEVEN, UNHELD = 1e-1, 1e-7, 1e-140

# The lower end of the spectrum is estimated by this many Lanczos steps and then lowered by a margin. With a random
# start, the error of the estimate exceeds this margin with a probability of at most LANCZOS_FAILURE (Kuczynski and
# Wozniakowski 1992, Theorem 4.2).
LANCZOS_STEPS = 60
LANCZOS_FAILURE = 1e-10
# A random walk can alternate only if the spectrum of S reaches below this value.
LOW = -0.85


class AffinityGraph(Protocol):
    """Interface that the operator needs from a `heatmover.graphs.Graph`."""

    @property
    def node_affinity(self) -> sp.csr_array:
        """Affinity between nodes."""

    @property
    def construction(self) -> Mapping[str, Any]:
        """Description of how the affinities were built."""


@dataclass(frozen=True, eq=False)
class DiffusionOperator:
    """The operator S = d^-1/2 K_n d^-1/2 with K_n = q^-a K q^-a, in an order that keeps neighbors close in memory.

    Attributes
    ----------
    symmetric
        S as CSR, ``(n_points, n_points)``; row i belongs to point ``order[i]``.
    order
        Permutation of the points, ``(n_points,)``.
    degree
        Degrees d in this order, ``(n_points,)``; the stationary distribution of a component is proportional to its
        degrees. Degrees are scaled separately in each component, so multiplying the affinities of a component by a
        constant changes nothing.
    component
        Connected component of each row, ``(n_points,)``.
    n_components
        Number of connected components.
    lowest
        Lower bound of the spectrum of S, in [-1, 0].
    nodes
        Points in an order that depends neither on the input order nor on the order of S, ``(n_points,)``; random draws
        of points use this order.
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
        """Normalize a graph's affinity into a diffusion operator, in float64.

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
            # Only nodes of points and grids are already in a fixed order; all other nodes are in the order of the
            # input.
            order = order_of_nodes(relative(affinity, _components(affinity)[1]))
            affinity = _permuted(affinity, order)
        nodes = order
        if order.size > REORDER_ABOVE:
            # Move neighbors close together in memory.
            place = reverse_cuthill_mckee(sp.csr_matrix(affinity), symmetric_mode=True)
            affinity, order = _permuted(affinity, place), order[place]
        n_components, component = _components(affinity)
        symmetric, degree = normalize(affinity, anisotropy, component)
        operator = cls(symmetric, order, degree, component, int(n_components), _lowest_eigenvalue(symmetric), nodes)
        if not operator.evenness > UNHELD:
            raise InvalidInputError(
                "affinities whose stationary distribution float64 can represent in every component",
                f"a distribution whose square root varies by a factor of more than {1 / UNHELD:.0e}",
                "remove the points with the smallest affinities, or add a self-loop to every point",
            )
        return operator

    def to_record(self) -> Record:
        """Return the operator as a record that can be saved to disk."""
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
        """Return the operator on ``n_nodes`` nodes that a record holds, or raise an error if the record is invalid."""
        n_components, lowest = record.integer("n_components", minimum=1), record.number("lowest")
        degree = record.floats("degree", (n_nodes,))
        if not -1 <= lowest <= 0 or not degree.min() > 0:
            raise InvalidInputError(
                "a stored operator with a lowest eigenvalue in [-1, 0] and positive degrees",
                f"a lowest eigenvalue of {lowest:g} and a smallest degree of {degree.min():g}",
            )
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
        """Return a copy of the operator with S stored as ``dtype``."""
        return replace(self, symmetric=sp.csr_array(self.symmetric, dtype=dtype))

    @property
    def n_points(self) -> int:
        """Number of points of the graph."""
        return int(self.degree.size)

    @cached_property
    def is_reordered(self) -> bool:
        """Whether the order of the rows differs from the order of the graph's nodes."""
        return not np.array_equal(self.order, np.arange(self.n_points))

    @cached_property
    def structure(self) -> tuple[Int64, Int32]:
        """Row pointers and columns of S as CSR; see `csr_structure`."""
        return csr_structure(self.symmetric)

    @cached_property
    def top(self) -> Float64:
        """Eigenvectors of S for eigenvalue 1, one per component, joined in one vector ``(n_points,)``."""
        total = np.bincount(self.component, weights=self.degree, minlength=self.n_components)
        return np.asarray(np.sqrt(self.degree / total[self.component]))

    @cached_property
    def evenness(self) -> float:
        """Ratio of the smallest to the largest entry of `top` within a component, for the most uneven component."""
        top = self.top
        largest = np.zeros(self.n_components)
        np.maximum.at(largest, self.component, top)
        return float((top / largest[self.component]).min())

    @property
    def tightening(self) -> float:
        """Factor, at most 1, by which a tolerance is reduced if the stationary distribution is uneven.

        Errors are certified relative to the stationary distribution. So for a measure at a point of tiny probability,
        the bound allows large errors at all other points. On a path of ten points whose weights fall by a factor of 100
        from edge to edge (evenness 2e-8), densities were off by 300 at a tolerance of 1e-3. Graphs from points have an
        evenness of at least 0.15.
        """
        return min(1.0, self.evenness / EVEN)

    @property
    def is_uneven(self) -> bool:
        """Whether polynomials of S are too inaccurate, so that `WalkDiffuser` is needed."""
        return self.evenness < UNEVEN

    @cached_property
    def alternates(self) -> Bool:
        """Whether each component is bipartite or nearly bipartite, ``(n_components,)``."""
        if self.lowest > LOW:
            return np.zeros(self.n_components, dtype=bool)
        return alternating(self.symmetric, self.top, self.component)

    @property
    def stationary(self) -> Float64:
        """Stationary distributions of all components in one vector ``(n_points,)``, in the order of the graph."""
        law = np.empty(self.n_points)
        law[self.order] = self.top**2
        return law

    def remove_top(self, block: FloatArray) -> None:
        """Make the columns of a block ``(n_points, width)`` orthogonal to the top eigenvectors, in place."""
        from heatmover._base.compiled.recurrence import project

        nothing, rows = np.zeros((self.n_components, block.shape[1])), np.arange(self.n_points)
        project(block, self.top, self.component, nothing, np.ones(self.n_points), rows)

    def component_masses(self, rows: Any) -> Float64:
        """Return the mass of each measure in each component.

        Parameters
        ----------
        rows
            Measures ``(n_measures, n_points)``, dense or CSR, in the graph's order of points.

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
    """Return row pointers and columns of a CSR matrix in the types that kernels take.

    SciPy may store columns in 64 bits. Such columns would be two thirds of the bytes that a product in float32 reads
    from the matrix. Both arrays are read-only, because numba compiles a kernel separately for read-only and writable
    arrays.
    """
    starts, columns = matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False)
    return frozen_view(starts), frozen_view(columns)


def _with_loops_where_isolated(affinity: sp.csr_array) -> sp.csr_array:
    """Add a self-loop to every point without any affinity, so that its mass stays in place."""
    isolated = np.flatnonzero(np.asarray(affinity.sum(axis=1)).ravel() == 0)
    if isolated.size == 0:
        return affinity
    places = isolated.astype(affinity.indices.dtype)  # wider indices would make SciPy widen all others
    loops = sp.csr_array((np.ones(isolated.size), (places, places)), shape=affinity.shape)
    return sp.csr_array(affinity + loops)


def _permuted(affinity: sp.csr_array, order: IntArray) -> sp.csr_array:
    """Return a symmetric affinity with permuted rows and columns and sorted indices."""
    permuted = sp.csr_array(affinity[order][:, order])
    permuted.sort_indices()
    return permuted


def _components(affinity: sp.csr_array) -> tuple[int, Int32]:
    """Return the number of connected components and the component of each node, ``(n_nodes,)``."""
    count, component = connected_components(affinity, directed=False)
    return int(count), component


def _lowest_eigenvalue(symmetric: sp.csr_array) -> float:
    """Return a lower bound of the eigenvalues of S, in [-1, 0]."""
    n_points = symmetric.shape[0]
    if n_points <= LANCZOS_STEPS:
        return float(np.clip(np.linalg.eigvalsh(symmetric.toarray())[0] - 1e-12, -1, 0))
    lowest = lanczos(symmetric, LANCZOS_STEPS, ends_only=True)[0][0]
    miss = np.log(1.648 * np.sqrt(n_points) / LANCZOS_FAILURE) / (2 * LANCZOS_STEPS - 1)
    margin = min(miss, 1.0) ** 2
    # The estimate exceeds the lowest eigenvalue by at most `margin` times the distance from the lowest to the largest
    # eigenvalue, which is 1.
    return float(np.clip(1 - (1 - lowest) / (1 - margin) if margin < 1 else -1, -1, 0))


# Number of columns that fit a vector register of the machine. Blocks are padded to a multiple of this number.
LANES = 8

# Size of a cache line in bytes. A vector that spans two lines takes two loads: with NumPy's own arrays, which begin 16
# bytes after the start of a line, products with the operator took a fifth longer.
CACHE_LINE = 64

Block = npt.NDArray[np.floating[Any]]


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Block:
    """Return an array of zeros that starts at a cache line.

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
    """Interface of methods that diffuse blocks of measures by powers of one diffusion operator.

    A diffuser is built once for an operator and a tolerance and then applied to any number of blocks. Any number of
    threads may use it at the same time, because no call changes its state.

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
            ``(n_points, width)``; every column is a measure.
        scales
            Consecutive non-negative scales.

        Yields
        ------
        ndarray
            Densities ``(n_points, width)``, one array per scale.
        """

    def shared_by(self, n_threads: int) -> Diffuser | None:  # noqa: ARG002
        """Return a diffuser with bit-identical results whose threads share the rows of each step, or None."""
        return None

    @abstractmethod
    def to_record(self) -> Record:
        """Return the diffuser as a record, without ``operator`` and ``adjoint``; the value "kind" names the method."""

    @abstractmethod
    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities ``(n_points, width)`` at times ``2**0, 2**1, ...`` until the caller stops."""

    @abstractmethod
    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Apply the transpose of `diffuse`: apply each scale's transposed operator to its block, and add the results.

        Parameters
        ----------
        blocks
            Blocks ``(n_points, width)``, one per scale, in order; they may be overwritten.
        scales
            Consecutive non-negative scales, at least one.

        Returns
        -------
        ndarray
            Sum ``(n_points, width)``. The inner product of this sum with any measure equals the sum over scales of the
            inner products of the blocks with the densities of this measure.
        """

    @abstractmethod
    def error_bound(self, scales: range) -> npt.NDArray[np.float64]:
        """Return a bound on the error of any eigenvalue's power at each scale, ``(n_scales,)``.

        The bound also holds for the error of a density relative to its measure, in the norm of the operator:
        ``sqrt(sum(error**2 / pi)) <= bound * sqrt(sum(mass**2 / pi))`` for densities of the adjoint, where pi is the
        stationary distribution. For ``density="function"``, ``* pi`` replaces ``/ pi``.
        """


# Number of columns per block. Wide blocks amortize reading the operator: with 64 float32 columns, the compiled
# recurrence is twice as fast as with 16 columns and four times as fast as with 8 columns.
WIDEST_BLOCK = 64

# Smallest number of multiplications per thread and step for which another thread saves time. Distributing a step takes
# 0.1 ms. On a graph of a hundred points two threads took twelve times as long as one thread.
PRODUCTS_PER_THREAD = 500_000


@final
class Recurrence:
    """The three-term recurrence of T_1 X, T_2 X, ..., where T_j are the Chebyshev polynomials of S on an interval.

    Parameters
    ----------
    operator
        The diffusion operator.
    dtype
        Precision of the recurrence.
    highest
        Upper end of the interval [operator.lowest, highest]; above this end the polynomials grow without bound.
    n_threads
        Number of threads that share the rows of every step, if the step is long enough. For few columns this is faster
        than sharing columns: two threads process one block of 32 columns in two thirds of the time that they need for
        two blocks of 16. If there are enough columns for one wide block per thread, divide the columns among the
        threads instead; see `in_columns`.
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
        """Return a copy of the recurrence for ``n_threads`` threads; the copy shares the matrix."""
        shared = copy(self)
        shared._n_threads = n_threads
        return shared

    def terms(self, start: Block) -> Iterator[Block]:
        """Yield T_1 X, T_2 X, ... for a block X ``(n_points, width)``; each term overwrites the fourth before it."""
        n_points, width = start.shape
        terms = self._room(n_points, -(-width // LANES) * LANES)
        terms[0, :, :width] = start
        nothing = np.empty((0, len(terms)), dtype=self.dtype), terms[:0], terms[:0]
        with self._steps(terms.shape[2]) as step:
            for degree in count(1):
                step(terms, degree, *nothing)
                yield terms[degree % len(terms), :, :width]

    def _room(self, n_points: int, width: int) -> Block:
        """Return an array of zeros for the last four terms, ``(4, n_points, width)``."""
        from heatmover._base.compiled.recurrence import TERMS

        return aligned_zeros((TERMS, n_points, width), self.dtype)

    def polynomials(self, start: Block, coefficients: Sequence[Float64]) -> Iterator[Block]:
        """Yield polynomials of S applied to one block, each as soon as it is complete.

        Parameters
        ----------
        start
            Block ``(n_points, width)`` in the precision of the recurrence; widths that are multiples of `LANES` are
            fastest.
        coefficients
            Coefficients of T_0, T_1, ... for each polynomial, from the lowest degree to the highest.

        Yields
        ------
        ndarray
            Results ``(n_points, width)``, one per polynomial, in order.
        """
        degrees = [len(part) - 1 for part in coefficients]
        table = np.zeros((len(degrees), degrees[-1] + 1), dtype=self.dtype)
        for row, part in zip(table, coefficients, strict=True):
            row[: len(part)] = part
        # Fine scales are complete early and have an array of their own, which is freed while coarse scales continue.
        n_fine = sum(3 * degree < degrees[-1] for degree in degrees)
        fine, coarse = (_multiples(start, part) for part in (table[:n_fine, 0], table[n_fine:, 0]))
        terms, reached = self._room(*start.shape), 0
        terms[0] = start
        with self._steps(start.shape[1]) as step:
            for done, degree in enumerate(degrees):
                if done == n_fine:
                    fine = fine[:0].copy()
                if reached < degree:
                    # Compute whole groups of terms, except at the last degree.
                    last = min(-(-degree // len(terms)) * len(terms), degrees[-1])
                    sums = fine[done:], coarse[max(done - n_fine, 0) :]
                    _take_steps(step, terms, reached, table[done:, reached + 1 : last + 1], *sums)
                    reached = last
                yield fine[done] if done < n_fine else coarse[done - n_fine]

    def transposed(self, inputs: Block, coefficients: Sequence[Float64]) -> Block:
        """Return the sum of polynomials of S, each applied to its own block, by one Clenshaw recurrence.

        Parameters
        ----------
        inputs
            Blocks ``(n_polynomials, n_points, width)`` in the precision of the recurrence.
        coefficients
            Coefficients of T_0, T_1, ... for each polynomial, from the lowest degree to the highest.

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
                # The last step uses half of slope and offset, because T_1 = X T_0 and not 2 X T_0.
                half = 1.0 if degree else 0.5
                slope, offset = half * self._slope, half * self._offset
                share(step, parts)
                current, previous = previous, current
        return current

    def _parts(self, width: int) -> list[tuple[int, int]]:
        """Return the first row and the end row of each thread, for a block of ``width`` columns."""
        indptr = self._matrix.indptr
        products = int(indptr[-1]) * width
        count = max(1, min(self._n_threads, products // max(PRODUCTS_PER_THREAD, 1)))
        if count == 1:
            return [(0, len(indptr) - 1)]
        cuts = np.searchsorted(indptr, np.linspace(0, indptr[-1], count + 1)[1:-1])
        return list(pairwise([0, *(int(cut) for cut in cuts), len(indptr) - 1]))

    @contextmanager
    def _steps(self, width: int) -> Iterator[Step]:
        """Provide a function that takes one step of the recurrence; threads share the rows of a step; see `advance`."""
        from heatmover._base.compiled.recurrence import advance

        (indptr, indices), number, parts = self._structure, self.dtype.type, self._parts(width)

        def step(terms: Block, degree: int, *sums: Block) -> None:
            # T_1 = X T_0 is half of the value that the recurrence gives with T_{-1} = 0.
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
    """Take a step for every column of ``shares``, and add the terms to the sums in groups of four."""
    for first in range(0, shares.shape[1], len(terms)):
        group = np.zeros((len(shares), len(terms)), dtype=terms.dtype)
        part = shares[:, first : first + len(terms)]
        group[:, : part.shape[1]] = part
        for place in range(1, part.shape[1]):
            step(terms, degree + first + place, group[:0], fine[:0], coarse[:0])
        step(terms, degree + first + part.shape[1], group, fine, coarse)


def _multiples(block: Block, factors: Block) -> Block:
    """Return the block multiplied by each factor, ``(n_factors, n_points, width)``."""
    multiples = aligned_zeros((len(factors), *block.shape), block.dtype)
    return np.multiply(block, factors[:, None, None], out=multiples)


@contextmanager
def row_pool(n_threads: int) -> Iterator[Callable[[Callable[[Rows], None], list[Rows]], None]]:
    """Provide a function that runs work on ranges of rows in persistent threads, or without a pool for one thread."""

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
    """Apply ``function`` to groups of columns of ``block`` in threads and concatenate the results.

    Each group begins at a multiple of `LANES` and has at most ``widest`` columns. Every thread gets at least one group
    if there are enough columns.
    """
    units = -(-block.shape[1] // LANES)
    rounds = -(-units * LANES // (widest * n_threads))
    count = max(1, min(rounds * n_threads, units))
    edges = [LANES * (units * i // count) for i in range(1, count)]
    parts = [np.ascontiguousarray(part) for part in np.split(block, edges, axis=1)]
    return np.concatenate(in_threads(function, parts, n_threads), axis=1)


# Smallest square root of the stationary distribution for which float32 may be used: measures are divided by this square
# root, and float32 ends at 1e38.
SINGLE_RANGE = 1e-15
# Largest error bound that is accepted if the user requests float32. The bound may exceed ``tol``, and ``error_bound_``
# reports it. But a bound above the largest valid ``tol`` has no meaning: at 2^30 steps and tol=1e-10 all densities in
# float32 were NaN.
LARGEST_ERROR = 0.5

# Smallest and largest number of scales that diffuse_progressively computes by one recurrence, as far as GROUP_MEMORY
# allows. If each density at 2^k is computed from the density at 2^(k-1), the total cost is 3.4 times the cost of the
# last recurrence. With four scales per recurrence the factor is about 2, and with all scales in one recurrence it is
# 1.4. But every scale costs time from the first term on, so MOST_AT_ONCE is the number of scales that the search for
# the largest scale usually examines.
FEWEST_AT_ONCE, MOST_AT_ONCE = 4, 11
GROUP_MEMORY = 64 * 2**20


@lru_cache(maxsize=256)
def power_coefficients(steps: int, lowest: float, tol: float) -> tuple[Float64, float]:
    """Expand x -> x^steps on [lowest, 1] in Chebyshev polynomials up to the lowest degree with an error within ``tol``.

    Parameters
    ----------
    steps
        Exponent of the power.
    lowest
        Lower end of the interval, in [-1, 0].
    tol
        Largest error allowed on the interval.

    Returns
    -------
    coefficients
        Coefficients of T_0 .. T_degree, ``(degree + 1,)``, non-negative.
    bound
        Error of the expansion: the sum of all omitted coefficients.

    Examples
    --------
    >>> coefficients, bound = power_coefficients(2, -1.0, 1e-3)  # x^2 = 1/2 T_0 + 1/2 T_2
    >>> coefficients.round(12).tolist(), bound < 1e-15
    ([0.5, 0.0, 0.5], True)
    """
    # The random walk goes beyond `reach` with a probability below 2 exp(-reach^2 / 2 steps) < 1e-17 (Hoeffding), so a
    # Fourier sum over 2 * reach angles gives the distribution of the position up to rounding errors.
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
    """Return a bound on the rounding error of an eigenvalue's power: ``steps`` times the error of the eigenvalue.

    Storing S rounds an eigenvalue close to 1 by about half a unit in the last place, and the power multiplies this
    error. On two nearly disconnected cliques, the worst known graph, the error was a fifth of the bound at 2^13 and at
    2^18 steps.
    """
    return float((steps + 8) * np.finfo(dtype).eps / 2)


def threshold(scale: int, delta: float) -> float:
    """Return the eigenvalue that equals ``delta`` when raised to the power ``2**scale``."""
    return float(delta ** (2.0**-scale))


def check_single(operator: DiffusionOperator, scale: int, advice: str) -> None:
    """Raise an error if float32, which the user requested, is too inaccurate for densities at ``scale``."""
    lost = rounding(2**scale, np.float32) / operator.tightening
    if lost > LARGEST_ERROR or operator.top.min() < SINGLE_RANGE:
        raise InvalidInputError(
            "a graph and a number of steps for which float32 is accurate enough",
            f"that rounding may move a share of {lost:.1g} of the mass of a density in 2^{scale} steps",
            advice,
        )


@final
class ChebyshevDiffuser(Diffuser):
    """Diffusion to all scales by one Chebyshev recurrence, with the exact mass in every component.

    Parameters
    ----------
    operator
        The diffusion operator.
    adjoint
        True for densities of the adjoint, False for the paper's literal P^t.
    tol
        Largest error of any eigenvalue's power at every scale. Up to half of ``tol`` is reserved for rounding errors.
    dtype
        Precision of the recurrence and of the densities, float32 or float64.
    n_threads
        Number of threads that share every step; see `Recurrence`.
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
                "a stationary distribution that float32 can represent",
                f"one whose smallest square root is {self._top.min():.0e}",
                "use float64",
            )
        self._outward = self._top if adjoint else 1 / self._top
        self._recurrence = Recurrence(operator, self.dtype, n_threads=n_threads)

    def to_record(self) -> Record:
        """Return the diffuser as a record, without ``operator`` and ``adjoint``."""
        return Record({"kind": "chebyshev", "tol": float(self.tol), "dtype": self.dtype.name})

    @classmethod
    def from_record(cls, record: Record, operator: DiffusionOperator, *, adjoint: bool) -> ChebyshevDiffuser:
        """Return the diffuser that a record holds, or raise an error if the record is invalid."""
        record.text("kind", ("chebyshev",))
        dtype, tol = record.text("dtype", ("float32", "float64")), record.number("tol")
        if not 0 < tol < 1:
            raise InvalidInputError("a stored tolerance in (0, 1)", f"{tol:g}")
        return cls(operator, adjoint=adjoint, tol=tol, dtype=dtype)

    def shared_by(self, n_threads: int) -> ChebyshevDiffuser:
        """Return a copy whose threads share the rows of each step; see `Diffuser.shared_by`."""
        shared = copy(self)
        shared._recurrence = self._recurrence.shared_by(n_threads)
        return shared

    def diffuse(self, masses: Block, scales: range) -> Iterator[Block]:
        """Yield the densities at the given scales; see `Diffuser.diffuse`."""
        width = masses.shape[1]
        # The recurrence has a special loop for a single column, which takes half the time of eight columns.
        start = self.inward(masses, padded=width > 1)
        del masses
        target = self.parts(start)
        for density in self._recurrence.polynomials(start, [self._coefficients(2**scale) for scale in scales]):
            yield self.outward(density, target, width)

    def diffuse_progressively(self, masses: Block) -> Iterator[Block]:
        """Yield the densities at 2^0, 2^1, ... steps; see `Diffuser.diffuse_progressively`."""
        state = self.inward(masses)
        target = self.parts(state)
        steps = 0
        group = int(np.clip(GROUP_MEMORY // max(state.nbytes, 1), FEWEST_AT_ONCE, MOST_AT_ONCE))
        while True:
            times = [2**scale for scale in range(steps.bit_length(), steps.bit_length() + group)]
            parts = [self._coefficients(time - steps) for time in times]
            for steps, density in zip(times, self._recurrence.polynomials(state, parts), strict=True):
                # The next recurrence starts from the last density, so this density is copied.
                yield self.outward(density.copy() if steps == times[-1] else density, target, masses.shape[1])
            state = density
            self._restore(state, target)

    def collect(self, blocks: Iterable[Block], scales: range) -> Block:
        """Apply the transpose of `diffuse` by one recurrence; see `Diffuser.collect`."""
        inputs, known, width = self.taken(blocks, len(scales))
        return self.released(self.transposed(inputs, scales), known, width)

    def transposed(self, inputs: Block, scales: range) -> Block:
        """Return the sum over scales of S^(2^k) applied to ``inputs[k]``, ``(n_scales, n_points, width)``."""
        return self._recurrence.transposed(inputs, [self._coefficients(2**scale) for scale in scales])

    def error_bound(self, scales: range) -> Float64:
        """Return the sum of the omitted coefficients plus rounding, per scale; see `Diffuser.error_bound`."""
        return np.array([self._expansion(2**scale)[1] + rounding(2**scale, self.dtype) for scale in scales])

    def degree(self, scale: int) -> int:
        """Return the degree of the polynomial at ``scale``, which is the number of products with the operator."""
        return len(self._coefficients(2**scale)) - 1

    def _coefficients(self, steps: int) -> Float64:
        return self._expansion(steps)[0]

    def _expansion(self, steps: int) -> tuple[Float64, float]:
        tol = max(self.tol - rounding(steps, self.dtype), self.tol / 2)
        return power_coefficients(steps, self.operator.lowest, tol)

    def inward(self, masses: Block, *, padded: bool = True) -> Block:
        """Transform measures into the coordinates and the order of S, padded to a multiple of `LANES` columns."""
        width = -(-masses.shape[1] // LANES) * LANES if padded else masses.shape[1]
        block = aligned_zeros((masses.shape[0], width), self.dtype)
        block[:, : masses.shape[1]] = masses[self.operator.order] / self._outward[:, None]
        return block

    def parts(self, start: Block) -> Float64:
        """Return each column's coefficient on the top eigenvector of each component; powers of S do not change it."""
        from heatmover._base.compiled.recurrence import known_parts

        target = np.empty((self.operator.n_components, start.shape[1]))
        known_parts(start, self._top, self.operator.component, target)
        return target

    def outward(self, block: Block, target: Float64, width: int) -> Block:
        """Restore the coefficients on the top eigenvectors in place, and return densities in the graph's order."""
        self._project(block, target, self._outward, self.operator.order)
        return block[:, :width]

    def _in_graph_order(self, block: Block, width: int) -> Block:
        if not self.operator.is_reordered:
            return block[:, :width]
        result = np.empty((len(block), width), dtype=self.dtype)
        result[self.operator.order] = block[:, :width]
        return result

    def taken(self, blocks: Iterable[Block], count: int) -> tuple[Block, Float64, int]:
        """Transform blocks into the coordinates of S by the transpose of `outward`.

        Returns
        -------
        inputs
            Transformed blocks without multiples of the top eigenvectors, ``(count, n_points, padded width)``.
        known
            Sum of the blocks' coefficients on the top eigenvectors, ``(n_components, padded width)``; powers of S do
            not change this sum.
        width
            Width of the blocks.
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
        """Add the top eigenvectors to a block, in place, and transform it back by the transpose of `inward`."""
        from heatmover._base.compiled.recurrence import add_known

        add_known(block, self._top, self.operator.component, known, 1 / self._outward)
        return self._in_graph_order(block, width)

    def _restore(self, block: Block, target: Float64) -> None:
        """Restore the coefficients of a block on the top eigenvectors, in place."""
        self._project(block, target, np.ones(len(block)), np.arange(len(block)))

    def _project(self, block: Block, target: Float64, factor: Float64, order: Intp) -> None:
        from heatmover._base.compiled.recurrence import project

        project(block, self._top, self.operator.component, target, factor, order)
