"""L1 distances between the rows of embeddings: all pairs or two groups, in tiles that fit the cache."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, combinations, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import while_reading
from heatmover._base.types import Float64, FloatArray
from heatmover._base.validation import check_finite, check_matrix, check_real, check_sparse, check_threads
from heatmover.errors import EmbeddingWarning, InvalidInputError

__all__ = ["pairwise_distances"]

Consumer = Callable[[slice, slice, Float64], None]

# Rows on each side of a tile, at most. Memory is read as many times less often as a tile has rows, until the
# rows of one feature chunk (96 of float32: 0.4 MB a side) overflow a second-level cache of 1 MB. Measured, in
# 10^9 feature pairs per second and thread (float32, 60,000 features), 27 / 36 / 48 / 51 / 99 rows:
# 15.4 / 16.6 / 17.3 / 17.7 / 18.9.
TILE_ROWS = 96
# Narrow rows leave room for more of them, and must use it: each tile costs some 30 microseconds of Python.
# 3,000 x 300: 12.4 with 48 rows, 13.8 with 192; 4,000 x 30: 2.4 and 3.1.
TILE_ROWS_NARROW = 192
# Smaller tiles read memory more often than they are worth, even for idle threads.
TILE_ROWS_LEAST = 12
# Rows of a sparse embedding that a thread takes at a time.
SPARSE_ROWS = 32
# Rows that sum to one to within this are measures, not an embedding.
SUM_ROUNDING = 1e-6
EMBED_FIRST = "measures have to be embedded first: DiffusionEMD(graph).fit_transform(measures)"
# A millisecond's work: less is done before a second thread has started (0.5 ms alone, 1.0 ms together).
FEATURE_PAIRS_PER_THREAD = 20_000_000


def pairwise_distances(
    embedding: npt.ArrayLike | sp.sparray,
    other: npt.ArrayLike | sp.sparray | None = None,
    *,
    n_jobs: int | None = None,
    out: FloatArray | None = None,
) -> FloatArray:
    """L1 distances between the rows of an embedding, or between the rows of two.

    Between the rows of a diffusion embedding the L1 distance is the Earth Mover's Distance of the measures.

    Parameters
    ----------
    embedding
        Array (n_measures, n_features). float32 and float64 are used as they are, without a copy if C-ordered;
        everything else becomes float64. A SciPy sparse matrix costs what its rows have in common: for each feature
        the pairs of rows that are not zero there.
    other
        Array (n_others, n_features); by default the distances are those within ``embedding``.
    n_jobs
        Threads to use; every available core for None or -1. The result has the same bits for any number.
    out
        Where to write the result: a float64 or float32 array (or memory map) of the result's shape. Nothing
        else of that size is allocated, so a memory map serves results that are larger than the memory.

    Returns
    -------
    ndarray of shape (n_measures, n_measures) or (n_measures, n_others)
        float64, or ``out``. Within one embedding it is exactly symmetric with an exactly zero diagonal.

    Notes
    -----
    Each distance depends on its two rows only, whatever else is in the call: parts of a result agree with the
    whole to the bit. float32 rows are summed in float64 every 1024 features: the relative error is about 1e-7
    for ordinary data and below 1e-5 for any (with vectors of 8 numbers, as on every recent x86).

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
    _warn_of_measures(embedding, other)
    return l1_distances(embedding, other, n_jobs=n_jobs, out=out)


def l1_distances(
    embedding: Any, other: Any = None, *, n_jobs: int | None = None, out: FloatArray | None = None
) -> FloatArray:
    """Return what `pairwise_distances` does, without a word about what the rows look like."""
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
    """Return both as arrays of one type and width that kernels can read; NaN shows later, in the result."""
    rows = check_matrix("embedding", embedding, finite=False, sparse=_sparse_advice(embedding))
    others = None if other is None else check_matrix("other", other, finite=False, sparse=_sparse_advice(other))
    _check_width(rows, rows if others is None else others)
    single = rows.dtype == np.float32 and (others is None or others.dtype == np.float32)
    dtype = np.float32 if single else np.float64
    return readable(rows, dtype), None if others is None else readable(others, dtype)


def _sparse_advice(rows: Any) -> str:
    """Return what to do with sparse rows: distances between measures themselves are their total variation."""
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
            f"other to have as many columns as embedding, {rows.shape[1]}",
            f"{others.shape[1]}",
            "use the same fitted model for both",
        )


def _sparse_distances(embedding: Any, other: Any | None, *, n_threads: int, out: FloatArray | None) -> FloatArray:
    """Return the L1 distances between rows of which at least one side is sparse."""
    from heatmover._base.compiled.l1 import subtract_shared

    rows = _sparse_rows("embedding", embedding)
    others = rows if other is None else _sparse_rows("other", other)
    _check_width(rows, others)
    shape = (rows.shape[0], others.shape[0])
    inputs = [a for a in (embedding, other) if isinstance(a, np.ndarray)] + [rows.data, others.data]
    result: FloatArray = np.empty(shape) if out is None else _check_out(out, shape, *inputs)
    norms, other_norms = _sparse_norms(rows, others, limit=float(np.finfo(result.dtype).max))
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


def _warn_of_measures(embedding: Any, other: Any | None) -> None:
    if all(sp.issparse(rows) and _are_measures(rows) for rows in (embedding, other) if rows is not None):
        warnings.warn(
            "Expected an embedding, found sparse rows that sum to one, as measures do: the distances between them are "
            f"twice their total variations, and {EMBED_FIRST}.",
            EmbeddingWarning,
            stacklevel=3,
        )


def _sparse_rows(name: str, rows: Any) -> sp.csr_array:
    """Return rows as CSR in float64, each feature at most once per row and in ascending order, or raise."""
    matrix = rows if sp.issparse(rows) else check_matrix(name, rows)
    check_sparse(name, matrix)
    if matrix.ndim != 2 or min(matrix.shape) == 0:
        raise InvalidInputError(f"{name} to have at least one row and one column", f"shape {matrix.shape}")
    sparse = sp.csr_array(matrix, dtype=check_real(name, matrix.dtype))
    if not sparse.has_canonical_format:
        sparse = sparse.copy()  # the caller's matrix is not ours to sort
        sparse.sum_duplicates()
    check_finite(name, sparse)
    return sparse


def _sparse_norms(rows: sp.csr_array, others: sp.csr_array, *, limit: float) -> tuple[Float64, Float64]:
    """Return the sums of absolute values of all rows, added in the order of the features, or raise."""
    # bincount adds one after the other; other sums add in pairs, and a row would differ from its copy.
    norms, other_norms = (
        np.bincount(
            np.repeat(np.arange(m.shape[0]), np.diff(m.indptr)), weights=np.abs(m.data), minlength=m.shape[0]
        ).astype(np.float64)
        for m in (rows, others)
    )
    with np.errstate(over="ignore"):
        if not norms.max() + other_norms.max() <= limit:
            raise InvalidInputError(f"distances below {limit:.1e}", "rows that are farther apart", "scale them down")
    return norms, other_norms


def readable(array: FloatArray, dtype: npt.DTypeLike) -> FloatArray:
    view: FloatArray = np.require(array, dtype, ["C", "A"]).view()
    # Read-only and writable arrays are two types for numba, which would compile the kernel twice.
    view.flags.writeable = False
    return view


def _check_out(out: object, shape: tuple[int, int], *inputs: FloatArray | None) -> FloatArray:
    if not isinstance(out, np.ndarray):
        raise InvalidInputError("out to be a numpy array", type(out).__name__)
    if out.shape != shape or out.dtype not in (np.dtype(np.float64), np.dtype(np.float32)):
        raise InvalidInputError(
            f"out of shape {shape} and type float64 or float32", f"shape {out.shape} and type {out.dtype}"
        )
    if not out.flags.writeable:
        raise InvalidInputError("out to be writable", "a read-only array", "open a memory map with mode='r+'")
    if any(np.may_share_memory(out, array) for array in inputs if array is not None):
        raise InvalidInputError("out to be apart from the input", "an array that shares its memory")
    return out


def for_each_tile(
    rows: FloatArray, others: FloatArray | None, consume: Consumer, *, n_threads: int, limit: float
) -> None:
    """Call ``consume(i, j, tile)`` with the distances between ``rows[i]`` and ``others[j]``, for all blocks.

    Without ``others`` the blocks are those with i <= j, among ``rows``. Calls come from several threads and
    in no particular order. A distance that is NaN or above ``limit`` raises an error that names its cause.
    """
    # Here, because numba takes most of a second to import.
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
        # NaN or infinity in a row shows in each of its distances: no pass over the data is needed to find it.
        if not tile.max() <= limit:
            _explain(rows, others, limit)
        consume(i, j, tile[: len(left), : len(right)])

    pairs: Iterator[tuple[slice, slice]] = product(row_blocks, target_blocks)
    if others is None:
        # The diagonal last: its tiles are half the work, so that all threads end at about the same time.
        pairs = chain(combinations(row_blocks, 2), ((i, i) for i in row_blocks))
    # One after the other as threads come free: a list of all tiles of 70,000 rows would take 200 MB.
    deque(while_reading(work, pairs, min(n_threads, len(row_blocks) * len(target_blocks))), maxlen=0)


def _blocks(rows: FloatArray, others: FloatArray | None, n_threads: int) -> tuple[list[slice], list[slice]]:
    """Cut both sides into blocks: as few as keep the tiles in the cache and the threads busy."""
    from heatmover._base.compiled.l1 import CHUNK

    largest = min(TILE_ROWS * CHUNK // min(rows.shape[1], CHUNK), TILE_ROWS_NARROW)
    fewest = 2 * n_threads if n_threads > 1 else 1
    if others is None:
        blocks = _cut(len(rows), largest, fewest)
        return blocks, blocks
    short, long = sorted([len(rows), len(others)])
    whole = _cut(short, largest, 1)
    parts = _cut(long, largest, fewest)
    return (whole, parts) if len(rows) == short else (parts, whole)


def _cut(n_rows: int, largest: int, fewest: int) -> list[slice]:
    """Cut into nearly equal blocks, at least as many as keep the threads busy, if blocks can be that small."""
    from heatmover._base.compiled.l1 import REGISTER_ROWS

    count = max(-(-n_rows // largest), min(fewest, n_rows // TILE_ROWS_LEAST), 1)
    size = -(-n_rows // (count * REGISTER_ROWS)) * REGISTER_ROWS
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def _explain(rows: FloatArray, others: FloatArray | None, limit: float) -> None:
    """Raise the error that says why a distance is not a number below ``limit``."""
    check_finite("embedding", rows)
    if others is not None:
        check_finite("other", others)
    limit = min(limit, float(np.finfo(rows.dtype).max))
    raise InvalidInputError(
        f"distances below {limit:.1e}",
        "rows that are farther apart",
        "scale them down, or use float64 throughout",
    )
