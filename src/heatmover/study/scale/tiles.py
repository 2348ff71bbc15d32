"""More samples than all pairs allow: embedding and distances in tiles on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage import explained
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import check_integer, check_matrix, check_memory, check_option, import_extra
from heatmover._base.version import __version__
from heatmover._base.words import counted, quoted_path, readable
from heatmover.cohort.reader import spans
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures
from heatmover.study.scale.stages import RESUME, Arrays, Stages, Task, executor, open_checkpoint

__all__ = ["SAMPLES_AT_ONCE", "EmbeddingRows", "distances", "embed", "embedding_tasks", "nearest", "tile_rows"]

# Rows on each side of a tile, at most: wide enough that reading them is nothing beside comparing them.
TILE_ROWS, LEAST_TILE_ROWS = 2048, 16
# Samples that a task embeds: the width of a block in which diffusion is fast. It does not depend on the memory, so
# that a resumed run finds the same pieces.
SAMPLES_AT_ONCE = 16

Span = tuple[int, int]
Best = tuple[Float64, Int64]


@final
@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """Rows of an embedding in memory, or in a zarr array on disk, which workers read themselves."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    path: str
    array: Any

    @classmethod
    def of(cls, embedding: Any) -> EmbeddingRows:
        """Return the rows of an array, a zarr array, or the zarr array at a path."""
        path = ""
        if isinstance(embedding, str | os.PathLike):
            path = os.fspath(embedding)
            embedding = open_array(path)
        elif hasattr(embedding, "store_path"):
            # The folder, which workers can open by themselves; nothing if the array is not in one.
            root = getattr(embedding.store_path.store, "root", None)
            path = "" if root is None else str(Path(root) / embedding.store_path.path)
        else:
            embedding = check_matrix("embedding", embedding)
        if embedding.ndim != 2 or embedding.dtype.kind != "f" or min(embedding.shape) == 0:
            raise InvalidInputError(
                "an embedding (n_samples, n_features) of floats", f"shape {embedding.shape} of type {embedding.dtype}"
            )
        return cls(tuple(embedding.shape), np.dtype(embedding.dtype), path, None if path else embedding)

    def read(self, span: Span) -> FloatArray:
        """Return the rows of a span, or raise if they are not finite."""
        if not self.path:
            return np.asarray(self.array[slice(*span)])
        with readable(self.path, "zarr array"):
            rows = np.asarray(open_array(self.path)[slice(*span)])
        if not np.isfinite(rows).all():
            raise InvalidInputError(
                "an embedding without NaN or infinity",
                f"some in rows {span[0]} to {span[1] - 1} of {quoted_path(self.path)}",
                f"if it was not finished, embed again with {argument('resume', True)}",
            )
        return rows

    def checksum(self, size: int) -> str:
        """Return a checksum of all rows, which are read so many at a time."""
        digest = hashlib.sha256(f"{self.dtype.str} {self.shape}".encode())
        for span in spans(0, self.shape[0], size):
            digest.update(np.ascontiguousarray(self.read(span)).data)
        return f"sha256:{digest.hexdigest()}"


def open_array(path: str, mode: Literal["r", "r+"] = "r") -> Any:
    """Open a zarr array, or raise if there is none."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        return zarr.open_array(path, mode=mode)
    except Exception as error:  # whatever zarr says of a description that is none
        raise InvalidInputError("the path of a zarr array", f"none at {quoted_path(path)}") from error


@final
@dataclass(frozen=True, eq=False)
class ArrayStore:
    """Keeps the result of each task at its place of a zarr array, where NaN says that it is not finished.

    Attributes
    ----------
    array
        Open for writing.
    places
        Rows and columns of each task, by its number.
    mirrored
        Whether the result is also at columns and rows, transposed.
    """

    array: Any
    places: Mapping[int, tuple[slice, slice]]
    mirrored: bool = False

    @classmethod
    def open(cls, place: Path, shape: Span, chunks: Span, dtype: Any, about: dict[str, Any], *, resume: bool) -> Any:
        """Return the array to write to, new or begun about the same things."""
        zarr = import_extra("zarr", package="zarr", extra="cohort")
        if str(place) == ".":  # also what an empty path becomes
            raise InvalidInputError("the path of an array", "the current folder")
        if not os.path.lexists(place):
            with explained(place):
                return zarr.create_array(
                    place, shape=shape, chunks=chunks, dtype=dtype, fill_value=np.nan, attributes=about,
                    compressors=[zarr.codecs.Crc32cCodec()],
                )  # fmt: skip
        if not resume:
            raise InvalidInputError(
                "an array that is not there yet", quoted_path(str(place)), f"{argument('resume', True)} goes on with it"
            )
        begun = open_array(str(place), "r+")
        stored = begun.attrs.asdict()
        changed = [key for key, value in about.items() if stored.get(key) != value]
        if changed or begun.shape != shape or not np.isnan(begun.fill_value):
            raise InvalidInputError(
                f"an array of the same {', '.join(changed) or 'shape'}", f"another at {quoted_path(str(place))}"
            )
        return begun

    def load(self, stage: str, number: int) -> Arrays | None:  # noqa: ARG002
        """Return a result that is there as a whole."""
        rows, columns = self.places[number]
        try:
            values = np.asarray(self.array[rows, columns])
            whole = not np.isnan(values).any()
            if whole and self.mirrored:
                whole = np.array_equal(values, self.array[columns, rows].T)
        # What a library says of damaged files is of every kind.
        except Exception:
            return None
        return {"values": values} if whole else None

    def save(self, stage: str, number: int, arrays: Arrays) -> None:  # noqa: ARG002
        """Write a result to its place."""
        rows, columns = self.places[number]
        with explained(Path(str(self.array.store_path)), RESUME):
            self.array[rows, columns] = arrays["values"]
            if self.mirrored:
                self.array[columns, rows] = arrays["values"].T


def tile_rows(rows: EmbeddingRows, memory: int, n_workers: int) -> int:
    """Return how many rows a tile may have on each side."""

    def need(size: int) -> int:
        return n_workers * (3 * size * rows.shape[1] * rows.dtype.itemsize + 4 * 8 * size**2)

    size = TILE_ROWS
    while size > LEAST_TILE_ROWS and need(size) > memory:
        size //= 2
    if need(size) > memory:
        raise InvalidInputError(
            f"{argument('memory')} of at least {need(size) / 1e6:,.0f} MB for tiles of {counted(size, 'row')}",
            f"{memory / 1e6:,.0f} MB",
        )
    return size


def embed(
    model: DiffusionEMD,
    measures: Measures,
    out: str | os.PathLike[str],
    *,
    client: Any = None,
    resume: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Any:
    """Embed any number of samples into a zarr array on disk, sixteen at a time.

    Parameters
    ----------
    model
        Fitted.
    measures
        ``(n_samples, n_points)``.
    out
        Where to: the folder of the new zarr array, ``(n_samples, n_features)``.
    client, n_jobs, progress
        As in `compare_cohort`; progress counts samples.
    resume
        Go on with an array that is there: rows in it are not computed again.

    Returns
    -------
    zarr.Array
        Opened for reading; give it, or its path, to `distances` or `nearest`. Row by row it is
        ``model.transform(measures)``, to the bit.

    Examples
    --------
    >>> import tempfile
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(40, points_per_measure=25)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit(data.measures())
    >>> rows = embed(model, data.measures(), tempfile.mkdtemp() + "/embedding.zarr")
    >>> np.array_equal(rows[:], model.transform(data.measures()))
    True
    """
    tasks, weights = embedding_tasks(model, measures)
    shape = (len(measures), model.prepared_.layout.n_features)
    about = {"heatmover": __version__, "model and measures": _digest(model, measures)}
    chunks = (SAMPLES_AT_ONCE, shape[1])
    target = ArrayStore.open(Path(out), shape, chunks, model.prepared_.precision, about, resume=resume)
    places = {
        number: (slice(start, start + weights[number]), slice(None))
        for number, start in enumerate(range(0, shape[0], SAMPLES_AT_ONCE))
    }
    with executor(client, n_jobs) as where:
        stages = Stages(where, ArrayStore(target, places), SILENT if progress is None else progress)
        stages.each("diffuse measures", tasks, weights, _keep_nothing, model.prepared_)
    return open_array(os.fspath(out))


def embedding_tasks(model: DiffusionEMD, measures: Measures) -> tuple[dict[int, Task[Preparation]], dict[int, int]]:
    """Return tasks that embed some samples each, and how many."""
    rows = model.node_masses(measures)
    starts = range(0, rows.shape[0], SAMPLES_AT_ONCE)
    tasks: dict[int, Task[Preparation]] = {
        number: partial(_embed_rows, rows=rows[start : start + SAMPLES_AT_ONCE]) for number, start in enumerate(starts)
    }
    return tasks, {number: min(SAMPLES_AT_ONCE, rows.shape[0] - start) for number, start in enumerate(starts)}


def _embed_rows(prepared: Preparation, rows: Any) -> Arrays:
    return {"values": prepared.embed(rows, n_threads=1, progress=SILENT)}


def _keep_nothing(number: int, arrays: Arrays) -> None:
    """Forget a result, which is in its array."""


def _digest(model: DiffusionEMD, measures: Measures) -> str:
    digest = hashlib.sha256(repr(sorted(model.get_params(deep=False).items(), key=str)).encode())
    for matrix in (model.graph_.node_affinity, measures.masses):
        for array in (matrix.data, matrix.indices, matrix.indptr):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def distances(
    embedding: Any,
    out: str | os.PathLike[str],
    *,
    dtype: Literal["float32", "float64"] = "float32",
    memory: int | float | str = "4 GB",
    client: Any = None,
    resume: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Any:
    """Write the distances of all pairs of rows to a zarr array on disk, tile by tile.

    Parameters
    ----------
    embedding
        ``(n_samples, n_features)``: an array, a zarr array or the path of one.
    out
        Where to: the folder of the new zarr array, ``(n_samples, n_samples)``.
    dtype
        Of the result; 100,000 samples take 40 GB in float32.
    memory, client, n_jobs, progress
        As in `compare_cohort`; progress counts pairs of tiles.
    resume
        Go on with an array that is there: tiles in it are not computed again.

    Returns
    -------
    zarr.Array
        The array, opened for reading. Its attribute ``complete`` is true.

    Examples
    --------
    >>> import tempfile
    >>> result = distances(np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]]), tempfile.mkdtemp() + "/distances.zarr")
    >>> result[:]
    array([[0., 3., 1.],
           [3., 0., 2.],
           [1., 2., 0.]], dtype=float32)
    """
    check_option("dtype", dtype, ("float32", "float64"))
    rows, watcher = EmbeddingRows.of(embedding), SILENT if progress is None else progress
    n_rows = rows.shape[0]
    with executor(client, n_jobs) as where:
        size = tile_rows(rows, check_memory(memory), where.n_workers)
        about = {"heatmover": __version__, "embedding": rows.checksum(size), "dtype": dtype}
        chunks = (min(size, n_rows), min(size, n_rows))
        target = ArrayStore.open(Path(out), (n_rows, n_rows), chunks, dtype, about, resume=resume)
        # Of an array that was begun with another budget, its own.
        pairs = _pairs(n_rows, int(target.chunks[0]))
        places = {number: (slice(*first), slice(*second)) for number, (first, second) in pairs.items()}
        tasks = {number: partial(_tile, pair=pair, dtype=dtype) for number, pair in pairs.items()}
        stages = Stages(where, ArrayStore(target, places, mirrored=True), watcher)
        stages.each("compare", tasks, dict.fromkeys(tasks, 1), _keep_nothing, rows)
    target.attrs["complete"] = True
    return open_array(os.fspath(out))


def _pairs(n_rows: int, size: int) -> dict[int, tuple[Span, Span]]:
    """Return the rows on both sides of each tile, every pair once, by its number."""
    return dict(enumerate(combinations_with_replacement(spans(0, n_rows, size), 2)))


def _between(rows: EmbeddingRows, pair: tuple[Span, Span]) -> Float64:
    """Return the distances between two spans of rows."""
    first, second = pair
    right = None if first == second else rows.read(second)
    return np.asarray(pairwise_distances(rows.read(first), right, n_jobs=1))


def _tile(rows: EmbeddingRows, pair: tuple[Span, Span], dtype: str) -> Arrays:
    return {"values": _between(rows, pair).astype(dtype, copy=False)}


def nearest(
    embedding: Any,
    k: int,
    *,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[Float64, Int64]:
    """Find the k nearest rows of each row, tile by tile, for an embedding on disk and on a cluster if there is one.

    Parameters
    ----------
    embedding
        ``(n_samples, n_features)``: an array, a zarr array or the path of one.
    k
        How many.
    memory, client, checkpoint, resume, n_jobs, progress
        As in `compare_cohort`; progress counts pairs of tiles.

    Returns
    -------
    distances, indices : ndarray of shape (n_samples, k)
        As `heatmover.nearest` returns them, to the bit.

    Examples
    --------
    >>> nearest(np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]]), k=1)
    (array([[1.], [2.], [1.]]), array([[2], [2], [0]]))
    """
    rows, count = EmbeddingRows.of(embedding), check_integer("k", k, minimum=1)
    if count >= rows.shape[0]:
        raise InvalidInputError(f"k of at most {rows.shape[0] - 1}", f"k={count} with {counted(rows.shape[0], 'row')}")
    best = _nothing_yet(rows.shape[0], count)
    with executor(client, n_jobs) as where:
        size = tile_rows(rows, check_memory(memory), where.n_workers)
        pairs = _pairs(rows.shape[0], size)
        tasks = {number: partial(_nearest_between, pair=pair, k=count) for number, pair in pairs.items()}

        def fold(number: int, result: Arrays) -> None:
            for side, span in zip(("left", "right"), dict.fromkeys(pairs[number]), strict=False):
                _merge(best, slice(*span), (result[f"{side} distances"], result[f"{side} indices"]))

        manifest: dict[str, dict[str, Any]] = {} if checkpoint is None else {
            "heatmover": {"version": __version__},
            "input": {"embedding": rows.checksum(size)},
            "settings": {"k": count, "tile rows": size},
        }  # fmt: skip
        with open_checkpoint(checkpoint, manifest, resume=resume) as store:
            stages = Stages(where, store, SILENT if progress is None else progress)
            stages.each("compare", tasks, dict.fromkeys(tasks, 1), fold, rows)
    return best


def _nearest_between(rows: EmbeddingRows, pair: tuple[Span, Span], k: int) -> Arrays:
    """Return the k nearest rows on the right of each on the left, and the other way round."""
    apart, (first, second) = _between(rows, pair), pair
    result: Arrays = {}
    if first == second:
        np.fill_diagonal(apart, np.inf)  # a row is not its own neighbor
    else:
        result["right distances"], result["right indices"] = _smallest(apart.T, first[0], k)
    result["left distances"], result["left indices"] = _smallest(apart, second[0], k)
    return result


def _smallest(tile: Float64, first: int, k: int) -> Best:
    from heatmover._base.compiled.l1 import keep_smallest

    best = _nothing_yet(len(tile), k)
    keep_smallest(np.ascontiguousarray(tile), first, *best)
    return best


def _nothing_yet(n_rows: int, k: int) -> Best:
    return np.full((n_rows, k), np.inf), np.full((n_rows, k), np.iinfo(np.int64).max)


def _merge(best: Best, rows: slice, further: Best) -> None:
    """Keep the k best of both, by distance and then by index, whatever the order in which tiles come."""
    k = best[0].shape[1]
    distance, index = (np.hstack([old[rows], new]) for old, new in zip(best, further, strict=True))
    order = np.lexsort((index, distance), axis=1)[:, :k]
    for old, merged in zip(best, (distance, index), strict=True):
        old[rows] = np.take_along_axis(merged, order, axis=1)
