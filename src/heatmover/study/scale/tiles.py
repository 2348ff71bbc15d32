"""Embed and compare more samples than fit into memory, written as tiles on disk; for users (`hm.scale`).

The module writes zarr arrays, or a checkpoint, to paths that the user names.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from heatmover._base.files import Arrays, readable
from heatmover._base.progress import SILENT, Progress
from heatmover._base.storage import explained
from heatmover._base.types import Float64, FloatArray, Int64
from heatmover._base.validation import check_at_most, check_matrix, check_memory, check_option, import_extra
from heatmover._base.version import __version__
from heatmover._base.words import counted, quoted_path
from heatmover.cohort.reader import spans
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures
from heatmover.study.scale.stages import RESUME, Checkpoint, Shared, Stages, Task, executor, open_checkpoint

# Largest and smallest number of rows on each side of a tile. With the largest tile, reading takes negligible time
# compared with the computation of distances.
TILE_ROWS, LEAST_TILE_ROWS = 2048, 16
# Number of samples that a task embeds; diffusion of this many samples at a time is fast. The number does not depend on
# the memory, so that a resumed run has the same tasks.
SAMPLES_AT_ONCE = 16

Span = tuple[int, int]
Best = tuple[Float64, Int64]


@final
@dataclass(frozen=True, eq=False)
class EmbeddingRows:
    """Rows of an embedding: in memory, or in a zarr array on disk that workers open themselves."""

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
            # Path of the folder, so that workers can open the array; empty if the array is not in a folder.
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
                f"if the embedding was interrupted, embed again with {argument('resume', True)}",
            )
        return rows

    def checksum(self, size: int) -> str:
        """Return a checksum of all rows; ``size`` rows are read at a time."""
        digest = hashlib.sha256(f"{self.dtype.str} {self.shape}".encode())
        for span in spans(0, self.shape[0], size):
            digest.update(np.ascontiguousarray(self.read(span)).data)
        return f"sha256:{digest.hexdigest()}"


def open_array(path: str, mode: Literal["r", "r+"] = "r") -> Any:
    """Open a zarr array, or raise if there is no array at this path."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        return zarr.open_array(path, mode=mode)
    except Exception as error:  # for damaged metadata, zarr may raise any exception
        raise InvalidInputError("the path of a zarr array", f"none at {quoted_path(path)}") from error


def _begin(
    out: str | os.PathLike[str], shape: Span, chunks: Span, dtype: Any, about: dict[str, Any], *, resume: bool
) -> Any:
    """Return the array to fill: a new array of NaN, or an unfinished array with the same ``about``."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    place = Path(out)
    if str(place) == ".":  # an empty path also becomes "."
        raise InvalidInputError("the path of an array", "the current folder")
    if not os.path.lexists(place):
        with explained(place):
            return zarr.create_array(
                place, shape=shape, chunks=chunks, dtype=dtype, fill_value=np.nan, attributes=about,
                compressors=[zarr.codecs.Crc32cCodec()],
            )  # fmt: skip
    if not resume:
        raise InvalidInputError(
            "an array that does not exist yet", quoted_path(str(place)), f"{argument('resume', True)} continues it"
        )
    begun = open_array(str(place), "r+")
    stored = begun.attrs.asdict()
    changed = [key for key, value in about.items() if stored.get(key) != value]
    if changed or begun.shape != shape or not np.isnan(begun.fill_value):
        raise InvalidInputError(
            f"an array that was begun with the same {', '.join(changed) or 'shape'}",
            f"a different array at {quoted_path(str(place))}",
        )
    return begun


def _fill(
    array: Any, places: Mapping[int, Sequence[tuple[slice, slice]]], stages: Stages, name: str,
    tasks: Mapping[int, Task[Shared]], weights: Mapping[int, int], shared: Shared,
) -> None:  # fmt: skip
    """Write the result of each task to its first place in a zarr array, and its transpose to the second place, if any.

    NaN marks missing results. Tasks whose results are complete are not computed again.
    """

    def is_there(number: int) -> bool:
        try:
            values, *mirrored = (np.asarray(array[place]) for place in places[number])
        # For damaged files, libraries may raise any exception.
        except Exception:
            return False
        return not np.isnan(values).any() and all(np.array_equal(values, other.T) for other in mirrored)

    def write(number: int, result: Arrays) -> None:
        first, *mirrored = places[number]
        with explained(Path(str(array.store_path)), RESUME):
            array[first] = result["values"]
            for place in mirrored:
                array[place] = result["values"].T

    left = {number: task for number, task in tasks.items() if not is_there(number)}
    stages.each(name, left, {number: weights[number] for number in left}, write, shared)


def tile_rows(rows: EmbeddingRows, memory: int, n_workers: int) -> int:
    """Return the number of rows on each side of the tiles, so that tiles fit into memory; raise if none fits."""

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
        A fitted `DiffusionEMD`.
    measures
        ``(n_samples, n_points)``.
    out
        Path of the new zarr array, ``(n_samples, n_features)``.
    client, n_jobs, progress
        As in `compare_cohort`; progress counts samples.
    resume
        Continue an existing array: finished rows are not computed again.

    Returns
    -------
    zarr.Array
        The array, opened for reading, whose rows are bit-identical to ``model.transform(measures)``. Pass the array or
        its path to `distances` or `nearest`.

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
    masses = model.node_masses(measures)
    shape = (len(measures), model.prepared_.layout.n_features)
    about = {"heatmover": __version__, "model and measures": _digest(model, measures)}
    target = _begin(out, shape, (SAMPLES_AT_ONCE, shape[1]), model.prepared_.precision, about, resume=resume)
    rows = {number: slice(*span) for number, span in enumerate(spans(0, shape[0], SAMPLES_AT_ONCE))}
    places = {number: [(some, slice(None))] for number, some in rows.items()}
    tasks = {number: partial(_embed_rows, rows=masses[some]) for number, some in rows.items()}
    weights = {number: some.stop - some.start for number, some in rows.items()}
    with executor(client, n_jobs) as where:
        stages = Stages(where, Checkpoint(), SILENT if progress is None else progress)
        _fill(target, places, stages, "diffuse measures", tasks, weights, model.prepared_)
    return open_array(os.fspath(out))


def _embed_rows(prepared: Preparation, rows: Any) -> Arrays:
    return {"values": prepared.embed(rows, n_threads=1, progress=SILENT)}


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
        ``(n_samples, n_features)``: an array, a zarr array or the path of a zarr array.
    out
        Path of the new zarr array, ``(n_samples, n_samples)``.
    dtype
        Type of the result; 100,000 samples take 40 GB in float32.
    memory, client, n_jobs, progress
        As in `compare_cohort`; progress counts pairs of tiles.
    resume
        Continue an existing array: finished tiles are not computed again.

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
        target = _begin(out, (n_rows, n_rows), chunks, dtype, about, resume=resume)
        # A resumed array keeps its tile size, which may have been chosen for another memory budget.
        pairs = _pairs(n_rows, int(target.chunks[0]))
        sides = {number: [slice(*span) for span in pair] for number, pair in pairs.items()}
        places = {number: [(left, right), (right, left)] for number, (left, right) in sides.items()}
        tasks = {number: partial(_tile, pair=pair, dtype=dtype) for number, pair in pairs.items()}
        stages = Stages(where, Checkpoint(), watcher)
        _fill(target, places, stages, "compare", tasks, dict.fromkeys(tasks, 1), rows)
    target.attrs["complete"] = True
    return open_array(os.fspath(out))


def _pairs(n_rows: int, size: int) -> dict[int, tuple[Span, Span]]:
    """Return the two row ranges of each tile, by tile number; every pair of ranges occurs once."""
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
    """Find the k rows of an embedding on disk that are nearest to each row, tile by tile, in threads or on a cluster.

    Parameters
    ----------
    embedding
        ``(n_samples, n_features)``: an array, a zarr array or the path of a zarr array.
    k
        Number of neighbors.
    memory, client, checkpoint, resume, n_jobs, progress
        As in `compare_cohort`; progress counts pairs of tiles.

    Returns
    -------
    distances, indices : ndarray of shape (n_samples, k)
        Bit-identical to the result of `heatmover.nearest`.

    Examples
    --------
    >>> nearest(np.array([[0.0, 0.0], [1.0, 2.0], [1.0, 0.0]]), k=1)
    (array([[1.], [2.], [1.]]), array([[2], [2], [0]]))
    """
    rows = EmbeddingRows.of(embedding)
    count = check_at_most("k", k, rows.shape[0] - 1, "a row is not its own neighbor")
    best = np.full((rows.shape[0], count), np.inf), np.full((rows.shape[0], count), np.iinfo(np.int64).max)
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
    """Return the k nearest rows in the second span for each row of the first span, and vice versa."""
    apart, (first, second) = _between(rows, pair), pair
    result: Arrays = {}
    if first == second:
        np.fill_diagonal(apart, np.inf)  # a row is not its own neighbor
    else:
        result["right distances"], result["right indices"] = _smallest(apart.T, first[0], k)
    result["left distances"], result["left indices"] = _smallest(apart, second[0], k)
    return result


def _smallest(tile: Float64, first: int, k: int) -> Best:
    """Return the (at most k) smallest distances of each row, and their columns, which are numbered from ``first``."""
    columns = np.argsort(tile, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(tile, columns, axis=1), columns + first


def _merge(best: Best, rows: slice, further: Best) -> None:
    """Merge new neighbors into ``best``: keep the k smallest by distance and then index, for any order of tiles."""
    k = best[0].shape[1]
    distance, index = (np.hstack([old[rows], new]) for old, new in zip(best, further, strict=True))
    order = np.lexsort((index, distance), axis=1)[:, :k]
    for old, merged in zip(best, (distance, index), strict=True):
        old[rows] = np.take_along_axis(merged, order, axis=1)
