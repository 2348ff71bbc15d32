"""Compute L1 distances between rows of embeddings in tiles that fit the cache, for any caller; touch no files."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.readonly import frozen_view
from heatmover._base.threads import while_reading
from heatmover._base.types import Float64, FloatArray
from heatmover._base.validation import check_finite, check_matrix, check_sparse, check_threads
from heatmover.errors import EmbeddingWarning, InvalidInputError
from heatmover.measures import canonical_rows

Consumer = Callable[[slice, slice, Float64], None]

# Largest number of rows on each side of a tile. Larger tiles read memory less often, until the rows of one feature
# chunk (96 rows of float32: 0.4 MB per side) overflow a second-level cache of 1 MB. Speed of a thread with 27 / 36 /
# 48 / 51 / 99 rows, in 10^9 feature pairs per second (float32, 60,000 features): 15.4 / 16.6 / 17.3 / 17.7 / 18.9.
TILE_ROWS = 96
# Largest number of rows on each side of a tile if rows have few features. More such rows fit in the cache, and small
# tiles would be slow, because each tile costs some 30 microseconds of Python. Speed with 48 and 192 rows per tile, in
# 10^9 feature pairs per second: 12.4 and 13.8 for 3,000 rows of 300 features, 2.4 and 3.1 for 4,000 rows of 30
# features.
TILE_ROWS_NARROW = 192
# Smallest number of rows of a tile. Smaller tiles would keep more threads busy, but reading memory would take more time
# than this saves.
TILE_ROWS_LEAST = 12
# Number of rows of a sparse embedding that a thread processes at a time.
SPARSE_ROWS = 32
# Sparse rows whose sums differ from one by at most this are taken for measures, not for rows of an embedding.
SUM_ROUNDING = 1e-6
EMBED_FIRST = "embed the measures first: DiffusionEMD(graph).fit_transform(measures)"
# Smallest number of feature pairs for which another thread is started, about 1 ms of CPU time. One thread finishes a
# smaller task before a second thread has started (0.5 ms with one thread, 1.0 ms with two).
FEATURE_PAIRS_PER_THREAD = 20_000_000


def pairwise_distances(
    embedding: npt.ArrayLike | sp.sparray,
    other: npt.ArrayLike | sp.sparray | None = None,
    *,
    n_jobs: int | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """Return the L1 distances between all rows of an embedding, or between the rows of two embeddings.

    The L1 distance between two rows of a diffusion embedding approximates the Earth Mover's Distance of the measures.

    Parameters
    ----------
    embedding
        Array (n_measures, n_features). float32 and float64 are used without conversion, and without a copy if
        C-ordered; other types become float64. For a SciPy sparse matrix, the time is proportional to the number of
        pairs of rows that are both nonzero in a feature, summed over all features.
    other
        Array (n_others, n_features). Default: distances within ``embedding``.
    n_jobs
        Number of threads; None or -1 for all available cores. The result is bit-identical for any number.
    out
        Array or memory map for the result, in the shape of the result and in float64 or float32. No other array of this
        size is allocated, so with a memory map the result can be larger than memory.

    Returns
    -------
    ndarray of shape (n_measures, n_measures) or (n_measures, n_others)
        Distances in float64, or ``out``. Distances within one embedding are exactly symmetric, with an exactly zero
        diagonal.

    Notes
    -----
    Each distance depends only on its two rows, so distances between some of the rows are bit-identical to the entries
    of the full matrix. For float32 rows, partial sums over 1,024 features are accumulated in float64. The relative
    error of a distance is about 1e-7 for ordinary data. It is below 1e-5 for any data if the processor adds vectors of
    8 numbers, as every recent x86 processor does.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.embedding.distances import pairwise_distances
    >>> embedding = np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
    >>> pairwise_distances(embedding)
    array([[0., 3., 1.],
           [3., 0., 2.],
           [1., 2., 0.]])
    >>> pairwise_distances(embedding, [[1.0, 1.0]])
    array([[2.],
           [1.],
           [1.]])
    """
    if all(sp.issparse(rows) and _are_measures(rows) for rows in (embedding, other) if rows is not None):
        warnings.warn(
            "Expected an embedding, found sparse rows that sum to one and are probably measures. Their L1 distances "
            f"are twice the total variation. For Earth Mover's Distances, {EMBED_FIRST}.",
            EmbeddingWarning,
            stacklevel=2,
        )
    return l1_distances(embedding, other, n_jobs=n_jobs, out=out)


def l1_distances(
    embedding: Any, other: Any = None, *, n_jobs: int | None = None, out: FloatArray | None = None
) -> FloatArray:
    """Return the result of `pairwise_distances`, without a warning about rows that look like measures."""
    if sp.issparse(embedding) or sp.issparse(other):
        return _sparse_distances(embedding, other, n_threads=check_threads(n_jobs), out=out)
    rows, others = check_rows(embedding, other)
    shape = (len(rows), len(rows if others is None else others))
    result: FloatArray = np.empty(shape) if out is None else _check_out(out, shape, rows, others)

    def write(i: slice, j: slice, tile: FloatArray) -> None:
        result[i, j] = tile
        if others is None and i != j:
            result[j, i] = tile.T

    limit = float(np.finfo(result.dtype).max)
    for_each_tile(rows, others, write, n_threads=check_threads(n_jobs), limit=limit)
    return result


def check_rows(embedding: npt.ArrayLike, other: npt.ArrayLike | None) -> tuple[FloatArray, FloatArray | None]:
    """Return both embeddings as arrays of one type and width that kernels can read; `_explain` reports NaN later."""
    rows = check_matrix("embedding", embedding, finite=False, sparse=_sparse_advice(embedding))
    others = None if other is None else check_matrix("other", other, finite=False, sparse=_sparse_advice(other))
    _check_width(rows, rows if others is None else others)
    single = rows.dtype == np.float32 and (others is None or others.dtype == np.float32)
    dtype = np.float32 if single else np.float64
    return readable(rows, dtype), None if others is None else readable(others, dtype)


def _sparse_advice(rows: Any) -> str:
    """Return advice on sparse rows: embed them if they are measures, otherwise convert them to a dense array."""
    masses = getattr(rows, "masses", rows)
    return EMBED_FIRST if sp.issparse(masses) and _are_measures(masses) else "pass its .toarray()"


def _are_measures(rows: Any) -> bool:
    """Return whether all sparse rows are non-negative and sum to one."""
    if rows.ndim != 2 or rows.nnz == 0 or rows.dtype.kind not in "fiub":
        return False
    check_sparse("embedding", rows)
    masses = sp.csr_array(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.asarray(masses.sum(axis=1), dtype=np.float64)
    return bool(masses.data.min() >= 0 and np.abs(sums - 1).max() < SUM_ROUNDING)


def _check_width(rows: Any, others: Any) -> None:
    if others.shape[1] != rows.shape[1]:
        raise InvalidInputError(
            f"the array other to have as many columns as embedding, {rows.shape[1]}",
            f"{others.shape[1]}",
            "use the same fitted model for both",
        )


def _sparse_distances(embedding: Any, other: Any | None, *, n_threads: int, out: FloatArray | None) -> FloatArray:
    """Return the L1 distances between rows of two embeddings, at least one of which is sparse."""
    from heatmover._base.compiled.l1 import subtract_shared

    rows = _sparse_rows("embedding", embedding)
    others = rows if other is None else _sparse_rows("other", other)
    _check_width(rows, others)
    shape = (rows.shape[0], others.shape[0])
    inputs = [a for a in (embedding, other) if isinstance(a, np.ndarray)] + [rows.data, others.data]
    result: FloatArray = np.empty(shape) if out is None else _check_out(out, shape, *inputs)
    # bincount adds sequentially; pairwise summation would give a row and its copy different sums.
    norms, other_norms = (
        np.bincount(side.tocoo().row, weights=np.abs(side.data), minlength=side.shape[0]).astype(np.float64)
        for side in (rows, others)
    )
    limit = float(np.finfo(result.dtype).max)
    with np.errstate(over="ignore"):
        if not norms.max() + other_norms.max() <= limit:
            raise InvalidInputError(f"distances below {limit:.1e}", "rows that are farther apart", "scale them down")
    columns = others.tocsc()
    left, right = (rows.indptr, rows.indices, rows.data), (columns.indptr, columns.indices, columns.data)
    edges = pairwise([*range(0, shape[0], SPARSE_ROWS), shape[0]])

    def work(ends: tuple[int, int]) -> None:
        first, last = ends
        subtract_shared((first, last), left, right, norms, other_norms, other is None, result)
        if other is None:
            result[range(first, last), range(first, last)] = 0
            result[last:, first:last] = result[first:last, last:].T
            square = result[first:last, first:last]
            lower = np.tril_indices(last - first, -1)
            square[lower] = square.T[lower]

    deque(while_reading(work, edges, min(n_threads, -(-shape[0] // SPARSE_ROWS))), maxlen=0)
    return result


def _sparse_rows(name: str, rows: Any) -> sp.csr_array:
    """Return rows as CSR in float64 with unique features in ascending order, or raise an error."""
    matrix = rows if sp.issparse(rows) else check_matrix(name, rows)
    if matrix.ndim != 2 or min(matrix.shape) == 0:
        raise InvalidInputError(f"{name} to have at least one row and one column", f"shape {matrix.shape}")
    sparse = canonical_rows(name, matrix)
    check_finite(name, sparse)
    return sparse


def readable(array: FloatArray, dtype: npt.DTypeLike) -> FloatArray:
    """Return the array in a form that kernels can read, without a copy if possible."""
    return frozen_view(np.require(array, dtype, ["C", "A"]))


def _check_out(out: object, shape: tuple[int, int], *inputs: FloatArray | None) -> FloatArray:
    if not isinstance(out, np.ndarray):
        raise InvalidInputError("the argument out to be a numpy array", type(out).__name__)
    if out.shape != shape or out.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InvalidInputError(
            f"the argument out to be an array of shape {shape} and type float64 or float32",
            f"shape {out.shape} and type {out.dtype}",
        )
    if not out.flags.writeable:
        raise InvalidInputError(
            "the argument out to be a writable array", "a read-only array", "open a memory map with mode='r+'"
        )
    if any(np.may_share_memory(out, array) for array in inputs if array is not None):
        raise InvalidInputError(
            "the argument out to be an array that does not overlap the input",
            "an array that shares memory with the input",
        )
    return out


def for_each_tile(
    rows: FloatArray, others: FloatArray | None, consume: Consumer, *, n_threads: int, limit: float
) -> None:
    """Call ``consume(i, j, tile)`` with the distances between ``rows[i]`` and ``others[j]``, for all blocks i and j.

    Without ``others``, only the blocks of ``rows`` with i <= j are computed. Calls come from several threads in
    arbitrary order. A distance that is NaN or above ``limit`` raises an error that names its cause.
    """
    # Imported here because numba takes most of a second to import.
    from heatmover._base.compiled.l1 import REGISTER_ROWS, l1_tile

    targets = rows if others is None else others
    n_threads = min(n_threads, 1 + len(rows) * targets.size // FEATURE_PAIRS_PER_THREAD)
    row_blocks, target_blocks = _blocks(rows, others, n_threads)
    one = rows.dtype.type(1)

    def work(pair: tuple[slice, slice]) -> None:
        i, j = pair
        left, right = rows[i], targets[j]
        padded = [-len(side) % REGISTER_ROWS + len(side) for side in (left, right)]
        tile = np.empty(padded)
        l1_tile(left, right, one, others is None and i == j, tile)
        # NaN or infinity in a row appears in all of its distances, so checking the distances is enough.
        if not tile.max() <= limit:
            _explain(rows, others, limit)
        consume(i, j, tile[: len(left), : len(right)])

    pairs: Iterator[tuple[slice, slice]] = product(row_blocks, target_blocks)
    if others is None:
        # Diagonal tiles come last: they take half the time of other tiles, so all threads finish at about the same
        # time.
        pairs = chain(combinations(row_blocks, 2), ((i, i) for i in row_blocks))
    # Generate tiles as threads become free: a list of all tiles of 70,000 rows would take 200 MB.
    deque(while_reading(work, pairs, min(n_threads, len(row_blocks) * len(target_blocks))), maxlen=0)


def _blocks(rows: FloatArray, others: FloatArray | None, n_threads: int) -> tuple[list[slice], list[slice]]:
    """Split both sides into the smallest number of blocks that keeps tiles in the cache and threads busy."""
    from heatmover._base.compiled.l1 import CHUNK

    largest = min(TILE_ROWS * CHUNK // min(rows.shape[1], CHUNK), TILE_ROWS_NARROW)
    fewest = 2 * n_threads if n_threads > 1 else 1
    if others is None:
        blocks = _cut(len(rows), largest, fewest)
        return blocks, blocks
    return _cut(len(rows), largest, fewest), _cut(len(others), largest, 1)


def _cut(n_rows: int, largest: int, fewest: int) -> list[slice]:
    """Split rows into nearly equal blocks, at least ``fewest`` of them unless blocks would become too small."""
    from heatmover._base.compiled.l1 import REGISTER_ROWS

    count = max(-(-n_rows // largest), min(fewest, n_rows // TILE_ROWS_LEAST), 1)
    size = -(-n_rows // (count * REGISTER_ROWS)) * REGISTER_ROWS
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _explain(rows: FloatArray, others: FloatArray | None, limit: float) -> None:
    """Raise the error that explains why a distance is not a number below ``limit``."""
    check_finite("embedding", rows)
    if others is not None:
        check_finite("other", others)
    limit = min(limit, float(np.finfo(rows.dtype).max))
    raise InvalidInputError(
        f"distances below {limit:.1e}", "rows that are farther apart", "scale them down, or use float64 throughout"
    )
