"""Define the embedding: columns, regions, table, transpose; for `embedding`, `attribution`, `transport`; no files.

Let mu^(t) be the density of a measure after t diffusion steps. With the dyadic times t = 2^k, the distance between two
measures mu and nu is one of the following.

levels      sum_{k<=K} 2^(-(K-k) a) || mu^(2^k) - nu^(2^k) ||_1
increments  sum_{k<K} 2^(-(K-k-1) a) || D_k (mu - nu) ||_1 + || (mu - nu)^(2^K) ||_1,  D_k mu = mu^(2^(k+1)) - mu^(2^k)
coarsest    sum_{k<K} 2^(-(K-k) a) || (mu - nu)^(2^k) - (mu - nu)^(2^K) ||_1 + || (mu - nu)^(2^K) ||_1

Here "increments" is the paper's Eq. 7-8. Inside the norms, each definition is linear in the densities, so one small
matrix describes it. Each row of the matrix combines the densities into one block of the embedding. The powers of two
that weight the blocks may be replaced by other non-negative weights, for instance by the weights that
`heatmover.calibrate` fits to exact distances.

A compact embedding compares masses in nested regions of the graph. At a coarse scale a density is smooth, so its masses
in small regions determine it. Each new center is the point farthest from all earlier centers. For every r, the first r
centers are therefore about as evenly spaced as any r points can be. Each point belongs to the region of its nearest
center. The length of an edge is sqrt(-log S_ij). For a Gaussian kernel the length of a path is its geodesic length up
to a constant per hop (Varadhan). If all weights are equal, distances are proportional to the number of hops.

`FeatureTable` stores the features of every point, so that measures are embedded without diffusion. The embedding is
linear, so the embedding of a measure is the weighted mean of the embeddings of its points. To compute one feature at
all points, the indicator of its region is diffused once with the transposed operator. Computing the table therefore
takes one diffusion per feature, for any number of measures. The cost of embedding a sparse measure is then its number
of points times the number of features that heat from these points reaches.

Most features are local: heat reaches a region only from points nearby. At all other points the feature has the same
value, nearly zero, called its background. A local feature is stored as its background and the few values that differ
from the background. On a sphere of 25,088 points, 7,296 of 8,849 features are stored this way, with 85 values per
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


@final
@dataclass(frozen=True, eq=False)
class Regions:
    """Partition of the points into regions around centers, or regions that consist of their centers alone.

    Attributes
    ----------
    labels
        Region of each point, in the graph's order of points, ``(n_points,)``; -1 for points outside all regions.
    centers
        Points at the centers of the regions, ``(n_regions,)``; center c lies in region c.
    """

    labels: Int32
    centers: Intp

    def to_record(self) -> Record:
        """Return the regions as a record that can be saved to disk."""
        return Record(arrays={"labels": self.labels, "centers": self.centers.astype(np.int64, copy=False)})

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Regions:
        """Return the regions stored in a record, or raise an error if they are invalid for ``n_points`` points."""
        centers = record.places("centers", np.int64, (None,), n_points).astype(np.intp, copy=False)
        return cls(record.places("labels", np.int32, (n_points,), centers.size, least=-1), centers)

    @property
    def count(self) -> int:
        """Number of regions."""
        return int(self.centers.size)

    @property
    def are_points(self) -> bool:
        """True if every region consists of its center alone."""
        return int(np.count_nonzero(self.labels >= 0)) == self.count


def sampled_points(n_points: int, centers: Intp) -> Regions:
    """Return regions that each consist of one point of ``centers``; all other points lie outside all regions.

    Examples
    --------
    >>> sampled_points(5, np.array([3, 0])).labels.tolist()
    [1, -1, -1, 0, -1]
    """
    labels = np.full(n_points, -1, dtype=np.int32)
    labels[centers] = np.arange(centers.size, dtype=np.int32)
    return Regions(labels, centers)


def nested_regions(operator: DiffusionOperator, counts: Sequence[int], rng: np.random.Generator) -> list[Regions]:
    """Partition the points once for each number of regions; coarse partitions use a subset of the centers of fine ones.

    Parameters
    ----------
    operator
        The diffusion operator.
    counts
        Numbers of regions. Each partition has at least one region per connected component, and at most one per point.
    rng
        Generator that draws the first center.

    Returns
    -------
    list of Regions
        One partition for each of ``counts``, in that order. No region extends over two components.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> fine, coarse = nested_regions(operator, [4, 2], np.random.default_rng(0))
    >>> fine.count, coarse.count, coarse.labels.size
    (4, 2, 8)
    """
    from heatmover._base.compiled.features import farthest_first

    sizes = np.clip(counts, operator.n_components, operator.n_points)
    distinct_sizes = np.unique(sizes)
    matrix = operator.symmetric
    lengths = np.sqrt(-np.log(np.clip(matrix.data, np.finfo(np.float32).tiny, 1.0)).astype(np.float64))
    labels = np.empty((distinct_sizes.size, operator.n_points), dtype=np.int32)
    centers = np.empty(distinct_sizes[-1], dtype=np.intp)
    first = int(rng.integers(operator.n_points))
    farthest_first(matrix.indptr, matrix.indices, lengths, first, distinct_sizes, labels, centers)
    partitions = {
        count: _in_graph_order(operator, row, centers[:count])
        for count, row in zip(distinct_sizes, labels, strict=True)
    }
    return [partitions[size] for size in sizes]


def _in_graph_order(operator: DiffusionOperator, labels: Int32, centers: Intp) -> Regions:
    labels_of_points = np.empty_like(labels)
    labels_of_points[operator.order] = labels
    return Regions(labels_of_points, operator.order[centers])


# Up to this many measures are diffused in one block by all threads together. Splitting a block into halves multiplied
# the CPU time by 1.35 to 1.5 for 16 columns, by 1.17 to 1.5 for 32 columns, and by 0.9 to 1.1 for 48 and 64 columns
# (10,000 and 100,000 points, 8-D).
FEW = 32


def _increments(n_scales: int) -> Float64:
    matrix = np.diag(np.ones(n_scales - 1), 1) - np.eye(n_scales)
    matrix[-1, -1] = 1.0
    return matrix


def _coarsest(n_scales: int) -> Float64:
    matrix = np.eye(n_scales)
    matrix[:-1, -1] = -1.0
    return matrix


# Function that returns the combination of densities in each block before weighting, ``(n_blocks, n_scales)``.
NORMS: dict[str, Callable[[int], Float64]] = {"levels": np.eye, "increments": _increments, "coarsest": _coarsest}


def combination(scales: range, *, alpha: float, norm: str, weights: Sequence[float] | None = None) -> Float64:
    """Return the matrix that turns densities into blocks of the embedding.

    Parameters
    ----------
    scales
        The scales k to compare; the last one is K.
    alpha
        Balance between coarse and fine scales.
    norm
        ``"levels"``, ``"increments"`` or ``"coarsest"``.
    weights
        Weights of the blocks, ``(n_scales,)``, which replace the weights given by ``alpha``.

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
    factors = block_weights(scales, alpha, norm) if weights is None else np.asarray(weights, dtype=np.float64)
    return np.asarray(NORMS[norm](len(scales)) * factors[:, None])


def block_weights(scales: range, alpha: float, norm: str) -> Float64:
    """Return the weight of every block, ``(n_scales,)``: the weight of the scale that `sampled_scales` returns for it.

    Examples
    --------
    >>> block_weights(range(3), 0.5, "levels").round(3), block_weights(range(3), 0.5, "increments").round(3)
    (array([0.5  , 0.707, 1.   ]), array([0.707, 1.   , 1.   ]))
    """
    weights = scale_weights(scales, alpha)
    # The difference from 2^k to 2^(k+1) has the weight of the coarser scale.
    return np.append(weights[1:], 1.0) if norm == "increments" else weights


def scale_weights(scales: range, alpha: float) -> Float64:
    """Return the weight 2^(-(K-k) alpha) of every scale, ``(n_scales,)``; the coarsest scale has weight 1."""
    return np.asarray(2.0 ** (-alpha * (scales[-1] - np.asarray(scales))))


def sampled_scales(scales: range, norm: str) -> list[int]:
    """Return, for each block, the scale that determines its centers and its weight.

    The paper's Algorithm 4 samples the difference from 2^k to 2^(k+1) at the centers of scale k + 1.

    Examples
    --------
    >>> sampled_scales(range(3), "levels"), sampled_scales(range(3), "increments")
    ([0, 1, 2], [1, 2, 2])
    """
    return [*scales[1:], scales[-1]] if norm == "increments" else list(scales)


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Columns of an embedding: one block per scale, with one column per point or per region.

    Attributes
    ----------
    scales
        The scales to compare; block b belongs to the b-th scale.
    matrix
        Matrix that turns densities into blocks, from `combination`.
    n_points
        Number of points of the graph.
    regions
        Regions of each block; the columns are the masses in these regions. None: the columns are the densities at all
        points.
    """

    scales: range
    matrix: Float64
    n_points: int
    regions: tuple[Regions, ...] | None = None

    def to_record(self) -> Record:
        """Return the layout as a record that can be saved to disk."""
        parts = {} if self.regions is None else {f"block_{i}": part.to_record() for i, part in enumerate(self.regions)}
        values = {"first": self.scales.start, "stop": self.scales.stop, "compact": self.regions is not None}
        return Record(values, {"matrix": self.matrix}, parts)

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Layout:
        """Return the layout stored in a record, or raise an error if it is invalid for ``n_points`` points."""
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
        """Columns at which the blocks begin and end, ``n_scales + 1`` numbers."""
        widths = (
            [self.n_points] * len(self.scales) if self.regions is None else [regions.count for regions in self.regions]
        )
        return [0, *accumulate(widths)]

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.edges[-1]


def embed(
    diffuser: Diffuser, rows: Any, layout: Layout, *, dtype: npt.DTypeLike, n_threads: int, progress: Progress = SILENT
) -> FloatArray:
    """Embed measures so that Diffusion EMD is the plain L1 distance between rows.

    Parameters
    ----------
    diffuser
        Diffuser that computes the densities.
    rows
        Measures ``(n_measures, n_points)``, dense or CSR.
    layout
        Columns to compute.
    dtype, n_threads, progress
        Type of the result, number of threads, and receiver of the progress (one step per measure).

    Returns
    -------
    ndarray
        ``(n_measures, layout.n_features)``, block after block. With regions, a feature is the mass in a region, and a
        distance never exceeds the distance in the full embedding. The two distances are equal if every point is a
        region of its own.
    """
    embedding = np.zeros((rows.shape[0], layout.n_features), dtype=dtype)

    def fill(block: slice) -> None:
        # Only the diffuser refers to the dense block, so its memory is freed once the diffuser has its own copy.
        _fill(diffuser.diffuse(_columns(rows[block]), layout.scales), layout, embedding[block])
        progress.advance(block.stop - block.start)

    diffuser, blocks = _divided(diffuser, rows.shape[0], n_threads)
    in_threads(fill, blocks, n_threads)
    return embedding


def diffused(diffuser: Diffuser, rows: Any, scales: range, *, n_threads: int) -> Block:
    """Return the densities ``(n_scales, n_points, n_measures)`` of measures ``(n_measures, n_points)``."""
    diffuser, blocks = _divided(diffuser, rows.shape[0], n_threads)
    parts = in_threads(lambda block: np.stack(list(diffuser.diffuse(_columns(rows[block]), scales))), blocks, n_threads)
    return np.concatenate(parts, axis=2)


def embed_densities(densities: Block, layout: Layout, *, dtype: npt.DTypeLike) -> FloatArray:
    """Embed the densities at scales 0, 1, ... from `diffused`; the result is bit-identical to the result of `embed`."""
    embedding = np.zeros((densities.shape[2], layout.n_features), dtype=dtype)
    _fill((densities[scale] for scale in layout.scales), layout, embedding)
    return embedding


def embed_transposed(
    diffuser: Diffuser, features: Block, layout: Layout, *, dtype: npt.DTypeLike, n_threads: int
) -> FloatArray:
    """Apply the transpose of the embedding: map combinations of features to functions on points.

    Parameters
    ----------
    diffuser, layout, dtype, n_threads
        As in `embed`.
    features
        Coefficients of the features, ``(n_rows, layout.n_features)``.

    Returns
    -------
    ndarray
        Functions on points, ``(n_rows, n_points)``. The product of the result with a measure equals the product of
        ``features`` with the measure's embedding.
    """
    result = np.empty((len(features), layout.n_points), dtype=dtype)

    def fill(block: slice) -> None:
        result[block] = diffuser.collect(_per_density(features[block], layout), layout.scales).T
        _check_held(result[block])

    diffuser, blocks = _divided(diffuser, len(features), n_threads)
    in_threads(fill, blocks, n_threads)
    return result


def _per_density(features: Block, layout: Layout) -> Iterator[Block]:
    """Yield, for each scale, the coefficients of the densities at all points, ``(n_points, n_rows)``."""
    edges, number = layout.edges, features.dtype.type
    for column in layout.matrix.T:
        block = np.zeros((layout.n_points, len(features)), dtype=features.dtype)
        for position in np.flatnonzero(column):
            values = number(column[position]) * features[:, edges[position] : edges[position + 1]].T
            if layout.regions is None:
                block += values
            else:
                labels = layout.regions[position].labels
                inside = labels >= 0
                block[inside] += values[labels[inside]]
        yield block


def _check_held(block: Block) -> None:
    """Raise an error if a result contains NaN or infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum needs no temporary array. It may overflow although all values are finite; then check every value.
        if np.isfinite(block.sum()):
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
    """Return the number of measures that can be embedded at once within ``memory`` bytes; raise an error if it is 0."""
    size = np.dtype(dtype).itemsize
    # Memory of a measure during diffusion: the sums of all scales, five blocks of the recurrence, the input block.
    column = layout.n_points * ((len(layout.scales) + 5) * size + 8)
    # Memory of an embedded measure, counted twice because the caller's loop still holds the previous block. Regions are
    # summed in float64.
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


def _fill(densities: Iterator[Block], layout: Layout, embedding: Block) -> None:
    """Combine the densities of all scales into rows of the embedding, or raise an error if values overflow."""
    from heatmover._base.compiled.features import add_transposed

    edges = layout.edges
    sums = np.zeros((0 if layout.regions is None else layout.n_features, len(embedding)))
    for column, density in zip(layout.matrix.T, densities, strict=True):
        whole = np.ascontiguousarray(density) if layout.regions is None else density
        for position in np.flatnonzero(column):
            if layout.regions is None:
                add_transposed(whole, density.dtype.type(column[position]), edges[position], embedding)
            else:
                regions = layout.regions[position]
                inside = np.flatnonzero(regions.labels >= 0)
                places, shape = (regions.labels[inside], inside), (regions.count, layout.n_points)
                # SciPy adds each column separately, so columns are bit-identical in any block.
                share = sp.csr_array((np.full(inside.size, column[position]), places), shape=shape)
                sums[edges[position] : edges[position + 1]] += share @ density
    if layout.regions is not None:
        embedding[:] = sums.T
    _check_held(embedding)


def _divided(diffuser: Diffuser, n_measures: int, n_threads: int) -> tuple[Diffuser, list[slice]]:
    """Split measures into blocks for threads; if the diffuser allows it, all threads share one block of up to `FEW`."""
    shared = diffuser.shared_by(n_threads) if n_threads > 1 and n_measures <= FEW else None
    return (diffuser, _blocks(n_measures, n_threads)) if shared is None else (shared, [slice(0, n_measures)])


def _blocks(n_measures: int, n_threads: int) -> list[slice]:
    """Split the measures into blocks of whole vector registers; block sizes differ by at most one register.

    Blocks are as wide as allowed: 48 columns at a time took 80% of the time that 24 columns at a time took.
    """
    units = -(-n_measures // LANES)
    fewest = -(-n_measures // WIDEST_BLOCK)
    rounds = -(-fewest // n_threads)
    count = min(rounds * n_threads, units)
    edges = [min(LANES * (units * i // count), n_measures) for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


# Number of features that are diffused together as one group. 64 float32 features of 3,000 points take 0.8 MB, which
# stays in a second-level cache while the measures are processed.
GROUP = min(64, WIDEST_BLOCK)
# Number of measures that are processed with one group before the next group is read.
MEASURES = 1024
# A group is stored sparsely, as backgrounds and differences, if at most this share of its values differs from the
# backgrounds. A sparse value takes some ten times as long as a value of a dense group: 1.5 ns compared with 0.1 ns.
SPARSE = 0.1
# Number of sampled points; the median of a feature at these points is its background. Another background would not
# change results, but more values would differ from it and be stored.
SAMPLE = 63
# Values within this many rounding errors of the background are treated as equal to it, because computing a background
# takes three operations.
ROUNDINGS = 4


@final
class FeatureTable:
    """Table of the features of every point of a graph, from which measures are embedded without diffusion.

    Parameters
    ----------
    transposed
        Diffuser for the transpose of the embedding: it diffuses functions if the embedding diffuses mass, and mass if
        the embedding diffuses functions.
    layout
        Layout of the embedding; it must have regions.
    dtype, n_threads
        Type of the table, and number of threads.
    """

    def __init__(self, transposed: Diffuser, layout: Layout, *, dtype: npt.DTypeLike, n_threads: int) -> None:
        assert layout.regions is not None
        self.n_features = layout.n_features
        self._dtype = np.dtype(dtype)

        def fill(job: tuple[int, int, int]) -> tuple[Block, Block | sp.csr_array]:
            position, start, stop = job
            columns = _diffused_indicators(transposed, layout, position, start, stop)
            return _split_background(np.ascontiguousarray(columns, dtype=self._dtype))

        jobs = [
            (position, start, stop)
            for position, regions in enumerate(layout.regions)
            for start, stop in pairwise([*range(0, regions.count, GROUP), regions.count])
        ]
        backgrounds, values = zip(*in_threads(fill, jobs, n_threads), strict=True)
        firsts = [layout.edges[position] + start for position, start, _ in jobs]
        self._background: Block = np.concatenate(backgrounds)
        self._whole = [(first, part) for first, part in zip(firsts, values, strict=True) if not sp.issparse(part)]
        # In the sparse matrix, the columns of densely stored groups are empty.
        sparse = [part if sp.issparse(part) else sp.csr_array(part.shape, dtype=part.dtype) for part in values]
        self._scattered = sp.csr_array(sp.hstack(sparse, format="csr"))
        self._scattered.sort_indices()

    def to_record(self) -> Record:
        """Return the table as a record that can be saved to disk."""
        none: list[Block] = [np.empty(0, dtype=self._dtype)]
        arrays = {
            "background": self._background,
            "firsts": np.array([first for first, _ in self._whole], dtype=np.int64),
            "widths": np.array([values.shape[1] for _, values in self._whole], dtype=np.int64),
            # One array, because writing a file for each of some hundred groups takes longer than writing the values.
            "whole": np.concatenate(none + [values.ravel() for _, values in self._whole]),
        }
        return Record({"dtype": self._dtype.name}, arrays, {"scattered": matrix_record(self._scattered)})

    @classmethod
    def from_record(cls, record: Record, layout: Layout) -> FeatureTable:
        """Return the table stored in a record, or raise an error if it is invalid for this layout."""
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
        """Memory of the table in bytes."""
        sparse = self._scattered
        arrays = [self._background, sparse.data, sparse.indices, sparse.indptr, *(values for _, values in self._whole)]
        return sum(array.nbytes for array in arrays)

    def measures_within(self, memory: int) -> int:
        """Return the number of measures that can be looked up at once within ``memory`` bytes; raise an error if 0."""
        # Count each row twice, because the caller's loop still holds the previous block.
        row = 2 * self.n_features * self._dtype.itemsize
        if row > memory:
            raise InvalidInputError(
                f"memory of at least {row:,} bytes, which one measure needs", f"{memory:,}", "allow more"
            )
        return memory // row

    def values_met(self, measures: sp.csr_array) -> int:
        """Return the number of table values that `rows` adds up for these measures, to estimate the cost of `rows`."""
        whole = sum(values.shape[1] for _, values in self._whole)
        return int((np.diff(self._scattered.indptr) + whole)[measures.indices].sum(dtype=np.int64))

    def rows(self, measures: Any, *, n_threads: int, progress: Progress = SILENT) -> Block:
        """Embed measures ``(n_measures, n_points)``, dense or CSR, as rows ``(n_measures, n_features)``.

        Each row is bit-identical whatever the other measures are.
        """
        from heatmover._base.compiled.features import add_scattered_rows, add_table_rows

        matrix = sp.csr_array(measures)
        data = matrix.data.astype(self._dtype)
        n_measures = matrix.shape[0]
        result = np.empty((n_measures, self.n_features), dtype=self._dtype)
        # Unsigned indices spare the kernel a check of the sign: 1.4 ns per value instead of 1.8 ns.
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
        """Apply the transpose of `rows`: map ``(n_rows, n_features)`` to ``(n_rows, n_points)``."""
        everywhere = (features @ self._background)[:, None]
        result = np.ascontiguousarray((self._scattered @ features.T).T, dtype=self._dtype) + everywhere
        for first, values in self._whole:
            result += features[:, first : first + values.shape[1]] @ values.T
        return result


def _split_background(columns: Block) -> tuple[Block, Block | sp.csr_array]:
    """Split each feature into a background and values to add to it, sparse or dense, whichever is cheaper to add.

    Parameters
    ----------
    columns
        Features of every point, ``(n_points, n_features)``.

    Returns
    -------
    background : ndarray of shape (n_features,)
        Value of each feature at most points; zero if ``values`` is dense.
    values : ndarray or CSR array of shape (n_points, n_features)
        Values to add to the background: sparse if few values differ from the background, otherwise dense.
    """
    sample = columns[:: -(-len(columns) // SAMPLE)]
    background = np.median(sample, axis=0)
    beyond = ROUNDINGS * np.finfo(columns.dtype).eps * np.abs(background)
    # Checking a few points first avoids checking all points of most far-reaching features.
    if np.count_nonzero(np.abs(sample - background) > beyond) <= 3 * SPARSE * sample.size:
        differs = np.abs(columns - background) > beyond
        if np.count_nonzero(differs) <= SPARSE * differs.size:
            return background, sp.csr_array(np.where(differs, columns - background, 0))
    return np.zeros_like(background), columns


def _diffused_indicators(transposed: Diffuser, layout: Layout, position: int, start: int, stop: int) -> Block:
    """Return features ``start`` to ``stop`` of one block for every point, ``(n_points, stop - start)``."""
    assert layout.regions is not None
    # Zeros and ones are exact in single precision, which halves the memory traffic; their sums need float64.
    indicators = (layout.regions[position].labels[:, None] == np.arange(start, stop)).astype(np.float32)
    shares = layout.matrix[position]
    result: Block = np.zeros(indicators.shape)
    # One recurrence computes a run of consecutive scales.
    used = np.flatnonzero(shares)
    for part in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1):
        scales = range(layout.scales[part[0]], layout.scales[part[-1]] + 1)
        for index, density in zip(part, transposed.diffuse(indicators, scales), strict=True):
            result += shares[index] * density
    return result
