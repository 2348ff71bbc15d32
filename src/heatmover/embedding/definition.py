"""The Diffusion EMD embedding: combine densities over scales, compact regions, feature table, transpose.

With densities mu^(t) at the dyadic times t = 2^k, the distance between two measures is one of

levels      sum_{k<=K} 2^(-(K-k) a) || mu^(2^k) - nu^(2^k) ||_1
increments  sum_{k<K} 2^(-(K-k-1) a) || D_k (mu - nu) ||_1 + || (mu - nu)^(2^K) ||_1,  D_k mu = mu^(2^(k+1)) - mu^(2^k)
coarsest    sum_{k<K} 2^(-(K-k) a) || (mu - nu)^(2^k) - (mu - nu)^(2^K) ||_1 + || (mu - nu)^(2^K) ||_1

(the paper's Eq. 7-8 is "increments"). Each is linear in the densities before the norm is taken, so each is one small
matrix: its rows are the blocks of the embedding, its columns the densities. Any other non-negative weights of the
blocks may take the place of the powers of two, for instance those that `heatmover.calibrate` fits to exact distances.

A compact embedding compares masses in nested regions of the graph: at a coarse scale a density is smooth, and its mass
in small regions determines it. Centers are placed farthest first, so that the first r of them are, for every r, about
as evenly spread as any r points can be; each point belongs to its nearest center. The distance along an edge is
sqrt(-log S_ij): for a Gaussian kernel the geodesic length up to a constant per hop (Varadhan), and the number of hops
where all weights are equal.

`FeatureTable` holds the features of every point, looked up instead of diffused. The embedding is linear, so a measure's
row is the mean of its points' rows. A feature of all points at once is one diffusion of the region's indicator with the
transposed operator: as many diffusions as there are features, however many measures follow. A sparse measure then costs
its number of points times the number of features that these reach.

Few features are far-reaching. Within one step heat reaches a region from the points next to it only, and every other
point has the same value, nearly zero, the region's background. Such features, most of them, are kept as their
backgrounds and the few values that differ: of 8,849 features of 25,088 points on a sphere, 7,296 are, by 85 values a
point.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage.record import Record, matrix_record
from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, FloatArray, Int32, Intp
from heatmover._base.words import counted
from heatmover.diffusion.operator import LANES, WIDEST_BLOCK, Block, Diffuser, DiffusionOperator
from heatmover.errors import InvalidInputError

__all__ = [
    "NORMS",
    "FeatureTable",
    "Layout",
    "Regions",
    "block_weights",
    "combination",
    "diffused",
    "embed",
    "embed_densities",
    "embed_transposed",
    "measures_within",
    "nested_regions",
    "sampled_points",
    "sampled_scales",
    "scale_weights",
]


@final
@dataclass(frozen=True, eq=False)
class Regions:
    """A partition of the points around centers, or the centers alone: regions of one point, and points in none.

    Attributes
    ----------
    labels
        Region of each point, in the graph's order of points, ``(n_points,)``; -1 for a point in none.
    centers
        The points at the centers, ``(n_regions,)``; center c lies in region c.
    """

    labels: Int32
    centers: Intp

    def to_record(self) -> Record:
        """Return the regions as a record that a store can hold."""
        return Record(arrays={"labels": self.labels, "centers": self.centers.astype(np.int64, copy=False)})

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Regions:
        """Return the regions of ``n_points`` points of a record, or raise if they are none."""
        centers = record.places("centers", np.int64, (None,), n_points).astype(np.intp, copy=False)
        return cls(record.places("labels", np.int32, (n_points,), centers.size, least=-1), centers)

    @property
    def count(self) -> int:
        """Number of regions."""
        return int(self.centers.size)

    @property
    def are_points(self) -> bool:
        """Whether every region is its center and nothing else."""
        return int(np.count_nonzero(self.labels >= 0)) == self.count


def sampled_points(n_points: int, centers: Intp) -> Regions:
    """Return the regions that are single points ``centers``, all other points being in none.

    Examples
    --------
    >>> sampled_points(5, np.array([3, 0])).labels.tolist()
    [1, -1, -1, 0, -1]
    """
    labels = np.full(n_points, -1, dtype=np.int32)
    labels[centers] = np.arange(centers.size, dtype=np.int32)
    return Regions(labels, centers)


def nested_regions(operator: DiffusionOperator, counts: Sequence[int], rng: np.random.Generator) -> list[Regions]:
    """Partition the points into regions, once per wanted number of them; fewer centers are always among more.

    Parameters
    ----------
    operator
        The diffusion operator.
    counts
        Wanted numbers of regions; at least one per connected component is made, and at most one per point.
    rng
        Draws the first center.

    Returns
    -------
    list of Regions
        As many as ``counts``, in that order. No region reaches over two components.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> fine, coarse = nested_regions(operator, [4, 2], np.random.default_rng(0))
    >>> fine.count, coarse.count, coarse.labels.size
    (4, 2, 8)
    """
    from heatmover._base.compiled.traversals import farthest_first

    limited = np.clip(counts, operator.n_components, operator.n_points)
    wanted = np.unique(limited)
    matrix = operator.symmetric
    lengths = np.sqrt(-np.log(np.clip(matrix.data, np.finfo(np.float32).tiny, 1.0)).astype(np.float64))
    labels = np.empty((wanted.size, operator.n_points), dtype=np.int32)
    centers = np.empty(wanted[-1], dtype=np.intp)
    first = int(rng.integers(operator.n_points))
    farthest_first(matrix.indptr, matrix.indices, lengths, first, wanted, labels, centers)
    partitions = {
        count: _in_graph_order(operator, row, centers[:count]) for count, row in zip(wanted, labels, strict=True)
    }
    return [partitions[count] for count in limited]


def _in_graph_order(operator: DiffusionOperator, labels: Int32, centers: Intp) -> Regions:
    placed = np.empty_like(labels)
    placed[operator.order] = labels
    return Regions(placed, operator.order[centers])


# Measures that are diffused in one block by all threads together. Halves of 16 columns took 1.35 to 1.5 times the work
# of the whole, of 32 columns 1.17 to 1.5 times, of 48 and 64 columns 0.9 to 1.1 times (10,000 and 100,000 points, 8-D).
FEW = 32


def _levels(n_scales: int) -> Float64:
    return np.eye(n_scales)


def _increments(n_scales: int) -> Float64:
    matrix = np.diag(np.ones(n_scales - 1), 1) - np.eye(n_scales)
    matrix[-1, -1] = 1.0
    return matrix


def _coarsest(n_scales: int) -> Float64:
    matrix = np.eye(n_scales)
    matrix[:-1, -1] = -1.0
    return matrix


# What each block compares, before it is weighed: ``(n_blocks, n_scales)``.
NORMS: dict[str, Callable[[int], Float64]] = {
    "levels": _levels,
    "increments": _increments,
    "coarsest": _coarsest,
}


def combination(scales: range, *, alpha: float, norm: str, weights: Sequence[float] | None = None) -> Float64:
    """Return the matrix that turns densities into blocks of the embedding.

    Parameters
    ----------
    scales
        The scales k kept; the last one is K.
    alpha
        Balance between far and near.
    norm
        ``"levels"``, ``"increments"`` or ``"coarsest"``.
    weights
        Of the blocks, ``(n_scales,)``, in place of those that ``alpha`` gives.

    Returns
    -------
    ndarray
        ``(n_scales, n_scales)``: block b is the sum over k of ``matrix[b, k]`` times the density at ``2**k``.

    Examples
    --------
    >>> combination(range(3), alpha=0.5, norm="increments").round(3)
    array([[-0.707,  0.707,  0.   ],
           [ 0.   , -1.   ,  1.   ],
           [ 0.   ,  0.   ,  1.   ]])
    >>> combination(range(3), alpha=0.5, norm="levels", weights=[0, 2, 5]).diagonal()
    array([0., 2., 5.])
    """
    given = block_weights(scales, alpha, norm) if weights is None else np.asarray(weights, dtype=np.float64)
    return np.asarray(NORMS[norm](len(scales)) * given[:, None])


def block_weights(scales: range, alpha: float, norm: str) -> Float64:
    """Return the weight of every block of the embedding, ``(n_scales,)``: that of the scale it is sampled at.

    Examples
    --------
    >>> block_weights(range(3), 0.5, "levels").round(3), block_weights(range(3), 0.5, "increments").round(3)
    (array([0.5  , 0.707, 1.   ]), array([0.707, 1.   , 1.   ]))
    """
    weights = scale_weights(scales, alpha)
    # The difference from 2^k to 2^(k+1) weighs as much as the coarser of the two.
    return np.append(weights[1:], 1.0) if norm == "increments" else weights


def scale_weights(scales: range, alpha: float) -> Float64:
    """Return the weight 2^(-(K-k) alpha) of every scale, ``(n_scales,)``; the coarsest weighs 1."""
    return np.asarray(2.0 ** (-alpha * (scales[-1] - np.asarray(scales))))


def sampled_scales(scales: range, norm: str) -> list[int]:
    """Return, per block, the scale at whose centers the block is sampled, the one whose weight it carries.

    The paper's Algorithm 4 takes the difference from 2^k to 2^(k+1) at the centers of k + 1.

    Examples
    --------
    >>> sampled_scales(range(3), "levels"), sampled_scales(range(3), "increments")
    ([0, 1, 2], [1, 2, 2])
    """
    return [*scales[1:], scales[-1]] if norm == "increments" else list(scales)


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """What the columns of an embedding are: blocks, one per scale, of points or of regions.

    Attributes
    ----------
    scales
        The scales compared; block b belongs to the b-th.
    matrix
        From `combination`.
    n_points
        Number of points of the graph.
    regions
        Per block the regions whose masses it holds, or None: the block holds the density of every point.
    """

    scales: range
    matrix: Float64
    n_points: int
    regions: tuple[Regions, ...] | None = None

    def to_record(self) -> Record:
        """Return the layout as a record that a store can hold."""
        parts = {} if self.regions is None else {f"block_{i}": part.to_record() for i, part in enumerate(self.regions)}
        values = {"first": self.scales.start, "stop": self.scales.stop, "compact": self.regions is not None}
        return Record(values, {"matrix": self.matrix}, parts)

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Layout:
        """Return the layout of a record for ``n_points`` points, or raise if it is none."""
        scales = range(record.integer("first"), record.integer("stop", minimum=1))
        matrix = record.floats("matrix", (len(scales), len(scales)))
        if not scales or scales.stop > 31:
            raise InvalidInputError("stored scales from 0 to 30", f"{scales}")
        regions = None
        if record.truth("compact"):
            regions = tuple(Regions.from_record(record.part(f"block_{i}"), n_points) for i in range(len(scales)))
        return cls(scales, matrix, n_points, regions)

    @property
    def edges(self) -> list[int]:
        """Where the blocks begin and end, ``n_scales + 1`` columns."""
        widths = (
            [self.n_points] * len(self.scales) if self.regions is None else [regions.count for regions in self.regions]
        )
        return [0, *accumulate(widths)]

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.edges[-1]


def embed(
    diffuser: Diffuser,
    rows: Any,
    layout: Layout,
    *,
    dtype: npt.DTypeLike,
    n_threads: int,
    progress: Progress = SILENT,
) -> FloatArray:
    """Embed measures so that Diffusion EMD is the plain L1 distance between rows.

    Parameters
    ----------
    diffuser
        The way to diffuse.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    layout
        What to compute.
    dtype, n_threads, progress
        Of the result; to use; to report to (one step per measure).

    Returns
    -------
    ndarray
        ``(n_measures, layout.n_features)``, block after block. With regions, a feature is the mass in a region: what
        its center stands for, so that a distance is never above the full one and regions with one point each lose
        nothing, unless points are in none.
    """
    fill_block = _fill_points if layout.regions is None else _fill_regions
    embedding = np.zeros((rows.shape[0], layout.n_features), dtype=dtype)

    def fill(block: slice) -> None:
        # The diffuser alone holds the dense block, and drops it as soon as it has its own.
        fill_block(diffuser.diffuse(_columns(rows[block]), layout.scales), layout, embedding[block])
        _check_held(embedding[block])
        progress.advance(block.stop - block.start)

    diffuser, blocks = _divided(diffuser, rows.shape[0], n_threads)
    in_threads(fill, blocks, n_threads)
    return embedding


def diffused(diffuser: Diffuser, rows: Any, scales: range, *, n_threads: int) -> Block:
    """Return the densities of all measures ``(n_measures, n_points)``, ``(n_scales, n_points, n_measures)``."""
    diffuser, blocks = _divided(diffuser, rows.shape[0], n_threads)
    parts = in_threads(lambda block: np.stack(list(diffuser.diffuse(_columns(rows[block]), scales))), blocks, n_threads)
    return np.concatenate(parts, axis=2)


def embed_densities(densities: Block, layout: Layout, *, dtype: npt.DTypeLike) -> FloatArray:
    """Return what `embed` does, bit-identical, from the densities at the scales 0, 1, ...; see `diffused`."""
    embedding = np.zeros((densities.shape[2], layout.n_features), dtype=dtype)
    fill_block = _fill_points if layout.regions is None else _fill_regions
    fill_block((densities[scale] for scale in layout.scales), layout, embedding)
    _check_held(embedding)
    return embedding


def embed_transposed(
    diffuser: Diffuser, features: Block, layout: Layout, *, dtype: npt.DTypeLike, n_threads: int
) -> FloatArray:
    """Apply the transpose of the embedding: functions on points whose integrals are combinations of features.

    Parameters
    ----------
    diffuser, layout, dtype, n_threads
        As in `embed`.
    features
        ``(n_rows, layout.n_features)``.

    Returns
    -------
    ndarray
        ``(n_rows, n_points)``: its product with a measure is the product of the features with the measure's embedding.
    """
    result = np.empty((len(features), layout.n_points), dtype=dtype)

    def fill(block: slice) -> None:
        result[block] = diffuser.collect(_per_density(features[block], layout), layout.scales).T
        _check_held(result[block])

    diffuser, blocks = _divided(diffuser, len(features), n_threads)
    in_threads(fill, blocks, n_threads)
    return result


def _per_density(features: Block, layout: Layout) -> Iterator[Block]:
    """Yield, per scale, what the features ask of the density there, ``(n_points, n_rows)``."""
    from heatmover._base.compiled.features import add_columns, add_region_values

    edges, number = layout.edges, features.dtype.type
    for column in layout.matrix.T:
        block = np.zeros((layout.n_points, len(features)), dtype=features.dtype)
        for position in np.flatnonzero(column):
            if layout.regions is None:
                add_columns(features, number(column[position]), edges[position], block)
            else:
                values = np.ascontiguousarray(features[:, edges[position] : edges[position + 1]].T)
                add_region_values(values, layout.regions[position].labels, number(column[position]), block)
        yield block


def _check_held(block: Block) -> None:
    """Raise if a result is not finite: whatever was asked for, no NaN leaves."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(block.sum()):  # one pass without a temporary; a sum may overflow, so look closer only then
            return
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if bad.size:
        raise InvalidInputError(
            f"values that {block.dtype} can hold",
            f"NaN or infinity in {counted(bad.size, 'row')}",
            "use dtype='float64'",
        )


def _columns(rows: Any) -> Block:
    return np.asarray(rows.toarray() if sp.issparse(rows) else rows).T


def measures_within(memory: int, layout: Layout, dtype: npt.DTypeLike, n_threads: int) -> int:
    """Return how many measures can be embedded at a time within ``memory`` bytes, or raise if not even one can."""
    size = np.dtype(dtype).itemsize
    # Per column in the making: the sums of all scales, five blocks of the recurrence and the block as it came.
    column = layout.n_points * ((len(layout.scales) + 5) * size + 8)
    # A block and the one before it, which a loop still holds; regions are summed in float64 first.
    features = layout.n_features * (2 * size if layout.regions is None else 2 * size + 8)

    def need(width: int) -> int:
        units = -(-width // LANES)
        blocks = min(n_threads, units)
        widest = min(-(-units // blocks) * LANES, WIDEST_BLOCK)
        return width * features + blocks * widest * column

    if need(1) > memory:
        raise InvalidInputError(
            f"memory of at least {need(1):,} bytes, which one measure needs",
            f"{memory:,}",
            "allow more, or set compress for fewer features",
        )
    return bisect_right(range(1, memory // features + 1), memory, key=need)


def _fill_points(densities: Iterator[Block], layout: Layout, embedding: Block) -> None:
    from heatmover._base.compiled.features import add_transposed

    edges = layout.edges
    for column, density in zip(layout.matrix.T, densities, strict=True):
        whole = np.ascontiguousarray(density)
        for position in np.flatnonzero(column):
            add_transposed(whole, density.dtype.type(column[position]), edges[position], embedding)


def _fill_regions(densities: Iterator[Block], layout: Layout, embedding: Block) -> None:
    from heatmover._base.compiled.features import add_region_sums

    assert layout.regions is not None
    edges = layout.edges
    sums = np.zeros((layout.n_features, len(embedding)))
    for column, density in zip(layout.matrix.T, densities, strict=True):
        for position in np.flatnonzero(column):
            part = sums[edges[position] : edges[position + 1]]
            add_region_sums(density, layout.regions[position].labels, column[position], part)
    embedding[:] = sums.T


def _divided(diffuser: Diffuser, n_measures: int, n_threads: int) -> tuple[Diffuser, list[slice]]:
    """Return how threads divide the work: few measures are one block whose steps they share, where that can be."""
    shared = diffuser.shared_by(n_threads) if n_threads > 1 and n_measures <= FEW else None
    return (diffuser, _blocks(n_measures, n_threads)) if shared is None else (shared, [slice(0, n_measures)])


def _blocks(n_measures: int, n_threads: int) -> list[slice]:
    """Cut the measures into blocks of whole vector registers, equal to within one.

    As few as the widest block allows: 48 columns at a time took four fifths of the time of 24.
    """
    units = -(-n_measures // LANES)
    fewest = -(-n_measures // WIDEST_BLOCK)
    rounds = -(-fewest // n_threads)
    count = min(rounds * n_threads, units)
    edges = [min(LANES * (units * i // count), n_measures) for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


# Features of a group, which are diffused together: 64 of 3,000 points are 0.8 MB of float32, which stay in a
# second-level cache while the measures pass by.
GROUP = min(64, WIDEST_BLOCK)
# Measures that pass by one group before the next.
MEASURES = 1024
# A group is kept by its backgrounds where at most this share of its values differs from them: such a value takes some
# ten times as long as one of a whole group, 1.5 ns and 0.1.
SPARSE = 0.1
# Points whose median is taken for a feature's background. Were it another value, more values would differ from it, and
# nothing else would change.
SAMPLE = 63
# Values are equal that rounding alone tells apart: three operations make a background of what is the same everywhere.
ROUNDINGS = 4


@final
class FeatureTable:
    """The features of every point of a graph.

    Parameters
    ----------
    transposed
        Diffuses with the other density: functions where the embedding diffuses mass, and the other way round.
    layout
        Of the embedding; it must have regions.
    dtype, n_threads, progress
        Of the table; to use; to report to (one step per feature).
    """

    def __init__(
        self,
        transposed: Diffuser,
        layout: Layout,
        *,
        dtype: npt.DTypeLike,
        n_threads: int,
        progress: Progress = SILENT,
    ) -> None:
        assert layout.regions is not None
        self.n_features = layout.n_features
        self._dtype = np.dtype(dtype)

        def fill(job: tuple[int, int, int]) -> _Group:
            position, start, stop = job
            assert layout.regions is not None
            columns = _diffused_indicators(transposed, layout.regions[position], layout, position, start, stop)
            progress.advance(stop - start)
            return _Group.of(layout.edges[position] + start, np.ascontiguousarray(columns, dtype=self._dtype))

        jobs = [
            (position, start, stop)
            for position, regions in enumerate(layout.regions)
            for start, stop in pairwise([*range(0, regions.count, GROUP), regions.count])
        ]
        groups = in_threads(fill, jobs, n_threads)
        self._background: Block = np.concatenate([group.background for group in groups])
        self._whole = [(group.first, group.values) for group in groups if isinstance(group.values, np.ndarray)]
        self._scattered = _side_by_side(groups, layout.n_points)

    def to_record(self) -> Record:
        """Return the table as a record that a store can hold."""
        none: list[Block] = [np.empty(0, dtype=self._dtype)]
        arrays = {
            "background": self._background,
            "firsts": np.array([first for first, _ in self._whole], dtype=np.int64),
            "widths": np.array([values.shape[1] for _, values in self._whole], dtype=np.int64),
            # One array: a file for each of some hundred groups takes longer than their numbers.
            "whole": np.concatenate(none + [values.ravel() for _, values in self._whole]),
        }
        return Record({"dtype": self._dtype.name}, arrays, {"scattered": matrix_record(self._scattered)})

    @classmethod
    def from_record(cls, record: Record, layout: Layout) -> FeatureTable:
        """Return the table of a record for this layout, or raise if it is none."""
        table = cls.__new__(cls)  # the constructor would diffuse all regions again
        table.n_features = layout.n_features
        table._dtype = np.dtype(record.text("dtype", ("float32", "float64")))
        table._background = record.array("background", table._dtype, (layout.n_features,))
        table._scattered = record.matrix("scattered", (layout.n_points, layout.n_features))
        firsts = record.places("firsts", np.int64, (None,), layout.n_features).tolist()
        widths = record.places("widths", np.int64, (len(firsts),), layout.n_features + 1, least=1).tolist()
        whole = record.array("whole", table._dtype, (layout.n_points * sum(widths),))
        if any(first + width > layout.n_features for first, width in zip(firsts, widths, strict=True)):
            raise InvalidInputError(f"stored features up to {layout.n_features}", "features beyond")
        parts = np.split(whole, np.cumsum(np.array(widths, dtype=np.int64) * layout.n_points)[:-1]) if widths else []
        table._whole = [
            (first, part.reshape(layout.n_points, width))
            for first, width, part in zip(firsts, widths, parts, strict=True)
        ]
        return table

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        sparse = self._scattered
        arrays = [self._background, sparse.data, sparse.indices, sparse.indptr, *(values for _, values in self._whole)]
        return sum(array.nbytes for array in arrays)

    def measures_within(self, memory: int) -> int:
        """Return how many measures can be looked up at a time within ``memory`` bytes, or raise if not even one can."""
        # A block and the one before it, which a loop still holds.
        row = 2 * self.n_features * self._dtype.itemsize
        if row > memory:
            raise InvalidInputError(
                f"memory of at least {row:,} bytes, which one measure needs", f"{memory:,}", "allow more"
            )
        return memory // row

    def values_met(self, measures: sp.csr_array) -> int:
        """Return how many values of the table `rows` adds up for these measures: what it has to do."""
        whole = sum(values.shape[1] for _, values in self._whole)
        return int((np.diff(self._scattered.indptr) + whole)[measures.indices].sum(dtype=np.int64))

    def rows(self, measures: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed measures ``(n_measures, n_points)``, dense or CSR -> ``(n_measures, n_features)``.

        A row's bits depend on its own measure only.
        """
        from heatmover._base.compiled.features import add_scattered_rows, add_table_rows

        matrix = sp.csr_array(measures)
        data = matrix.data.astype(self._dtype)
        n_measures = matrix.shape[0]
        result = np.empty((n_measures, self.n_features), dtype=self._dtype)
        # Columns without a sign spare the kernel a look at each: 1.4 ns a value in place of 1.8.
        scattered = self._scattered.indptr, self._scattered.indices.astype(np.uint32), self._scattered.data

        def fill(start: int) -> None:
            part = slice(start, min(start + MEASURES, n_measures))
            some = matrix.indptr[part.start : part.stop + 1], matrix.indices, data
            add_scattered_rows(*some, *scattered, self._background, result[part])
            for first, values in self._whole:
                add_table_rows(*some, values, first, result[part])
            progress.advance(part.stop - part.start)

        in_threads(fill, range(0, n_measures, MEASURES), n_threads)
        return result

    def transposed(self, features: Block) -> Block:
        """Apply the transpose of `rows`: ``(n_rows, n_features)`` -> ``(n_rows, n_points)``."""
        everywhere = (features @ self._background)[:, None]
        result = np.ascontiguousarray((self._scattered @ features.T).T, dtype=self._dtype) + everywhere
        for first, values in self._whole:
            result += features[:, first : first + values.shape[1]] @ values.T
        return result


@final
@dataclass(frozen=True, eq=False)
class _Group:
    """Features ``first``, ``first + 1``, ... of every point.

    Attributes
    ----------
    first
        Number of the first.
    background
        What most points have of each, ``(n_features,)``; zero where ``values`` are whole.
    values
        ``(n_points, n_features)``: what to add, whole or, where little differs from the background, sparse.
    """

    first: int
    background: Block
    values: Block | sp.csr_array

    @classmethod
    def of(cls, first: int, columns: Block) -> _Group:
        """Keep columns ``(n_points, n_features)`` in the form that is cheaper to add."""
        sample = columns[:: -(-len(columns) // SAMPLE)]
        background = np.median(sample, axis=0)
        beyond = ROUNDINGS * np.finfo(columns.dtype).eps * np.abs(background)
        # A look at a few points spares most far-reaching features the look at all.
        if np.count_nonzero(np.abs(sample - background) > beyond) > 3 * SPARSE * sample.size:
            return cls(first, np.zeros_like(background), columns)
        differs = np.abs(columns - background) > beyond
        if np.count_nonzero(differs) > SPARSE * differs.size:
            return cls(first, np.zeros_like(background), columns)
        return cls(first, background, sp.csr_array(np.where(differs, columns - background, 0)))


def _side_by_side(groups: Sequence[_Group], n_points: int) -> sp.csr_array:
    """Return the sparse values of all groups, ``(n_points, n_features)``; whole ones leave their columns empty."""
    blocks = [
        sp.csr_array((n_points, group.background.size), dtype=group.background.dtype)
        if isinstance(group.values, np.ndarray)
        else group.values
        for group in groups
    ]
    joined = sp.csr_array(sp.hstack(blocks, format="csr"))
    joined.sort_indices()
    return joined


def _diffused_indicators(
    transposed: Diffuser, regions: Regions, layout: Layout, position: int, start: int, stop: int
) -> Block:
    """Return features ``start`` to ``stop`` of one block for every point, ``(n_points, stop - start)``."""
    # Zeros and ones are exact in single precision, which is half to move; what is made of them is not.
    indicators = (regions.labels[:, None] == np.arange(start, stop)).astype(np.float32)
    shares = layout.matrix[position]
    result: Block = np.zeros(indicators.shape)
    for part in _runs(np.flatnonzero(shares)):
        scales = range(layout.scales[part[0]], layout.scales[part[-1]] + 1)
        for index, density in zip(part, transposed.diffuse(indicators, scales), strict=True):
            result += shares[index] * density
    return result


def _runs(indices: Intp) -> list[Intp]:
    """Split ascending indices into runs of neighbours, which one recurrence serves."""
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
