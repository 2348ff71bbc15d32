"""More samples than all pairs allow: embedding and distances in tiles on disk."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import SILENT, Progress
from heatmover._typing import Float64, FloatArray, Int64
from heatmover._validation import check_integer, check_matrix, check_memory, check_option, import_extra
from heatmover._version import __version__
from heatmover._words import counted, quoted_path, readable
from heatmover.cohort.formats.anndata import missing_chunks, told
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures
from heatmover.scale.checkpoint import Arrays, Marks, NoCheckpoint, explain_full_disk, open_checkpoint
from heatmover.scale.execute import Stages, Task, executor

__all__ = [
    "SAMPLES_AT_ONCE",
    "Rows",
    "Span",
    "check_new",
    "cut",
    "distances",
    "embed",
    "embedding_tasks",
    "nearest",
    "open_array",
    "tile_rows",
]

# Rows on each side of a tile, at most: wide enough that reading them is nothing beside comparing them.
TILE_ROWS, LEAST_TILE_ROWS = 2048, 16
# Samples that a task embeds: the width of a block in which diffusion is fast. It does not depend on the memory, so
# that a resumed run finds the same pieces.
SAMPLES_AT_ONCE = 16


Part = Callable[[], FloatArray]
Span = tuple[int, int]


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of an embedding in a zarr array on disk, or in memory; what is sent to a worker reads or holds its own."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    path: str
    array: Any

    @classmethod
    def of(cls, embedding: Any) -> Rows:
        """Return the rows of an array, a zarr array, or the zarr array at a path."""
        path = ""
        if isinstance(embedding, str | os.PathLike):
            path = os.fspath(embedding)
            embedding = open_array(path)
        elif hasattr(embedding, "store_path"):
            path = _local_path(embedding)
        else:
            embedding = check_matrix("embedding", embedding)
        if path:
            with readable(path, "zarr array"):
                for sentence in told(missing_chunks(embedding, "the embedding")):
                    warnings.warn(sentence, UserWarning, stacklevel=4)
        if embedding.ndim != 2 or embedding.dtype.kind != "f" or min(embedding.shape) == 0:
            raise InvalidInputError(
                "an embedding (n_samples, n_features) of floats", f"shape {embedding.shape} of type {embedding.dtype}"
            )
        return cls(tuple(embedding.shape), np.dtype(embedding.dtype), path, None if path else embedding)

    def part(self, span: Span) -> Part:
        """Return what reads the rows of a span."""
        if self.path:
            return partial(_read, self.path, span)
        return partial(np.asarray, self.array[slice(*span)])

    def checksum(self, spans: list[Span]) -> str:
        """Return a checksum of all rows; it does not depend on the spans."""
        digest = hashlib.sha256(f"{self.dtype.str} {self.shape}".encode())
        for span in spans:
            digest.update(np.ascontiguousarray(self.part(span)()).data)
        return f"sha256:{digest.hexdigest()}"


def open_array(path: str) -> Any:
    """Open a zarr array for reading, or raise if there is none."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        return zarr.open_array(path, mode="r")
    except Exception as error:  # whatever zarr says of a description that is none
        raise InvalidInputError("the path of a zarr array", f"none at {quoted_path(path)}") from error


def check_new(place: Path, *, resume: bool) -> bool:
    """Return whether an array is to be made at a place, or raise if one is there that is not to be gone on with."""
    if str(place) == ".":  # also what an empty path becomes
        raise InvalidInputError("the path of an array", "the current folder")
    if not os.path.lexists(place):
        return True
    if not resume:
        raise InvalidInputError(
            "an array that is not there yet", quoted_path(str(place)), f"{argument('resume', True)} goes on with it"
        )
    return False


def _local_path(array: Any) -> str:
    """Return the folder of a zarr array, which workers can open by themselves, or nothing if it has none."""
    root = getattr(array.store_path.store, "root", None)
    return "" if root is None else str(Path(root) / array.store_path.path)


def _read(path: str, span: Span) -> FloatArray:
    with readable(path, "zarr array"):
        return np.asarray(open_array(path)[slice(*span)])


def tile_rows(rows: Rows, memory: int, n_workers: int) -> int:
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


def cut(n_rows: int, size: int) -> list[Span]:
    """Return the borders of tiles."""
    return [(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


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
    >>> found = embed(model, data.measures(), tempfile.mkdtemp() + "/embedding.zarr")
    >>> np.array_equal(found[:], model.transform(data.measures()))
    True
    """
    tasks, weights = embedding_tasks(model, measures)
    place, watcher = Path(out), SILENT if progress is None else progress
    about = {"heatmover": __version__, "made from": _digest(model, measures)}
    target, marks = _embedding_target(place, model, measures, about, resume), Marks(place, about)

    def write(number: int, result: Arrays) -> None:
        start = number * SAMPLES_AT_ONCE
        with explain_full_disk(place):
            target[start : start + len(result["embedding"])] = result["embedding"]
            marks.set(number, [result["embedding"]])

    def read(number: int) -> list[npt.NDArray[Any]]:
        start = number * SAMPLES_AT_ONCE
        return [np.asarray(target[start : start + weights[number]])]

    left = {number: task for number, task in tasks.items() if not marks.fits(number, partial(read, number))}
    with executor(client, n_jobs) as where:
        stages = Stages(where, NoCheckpoint(), watcher)
        stages.each("diffuse measures", left, weights, write, partial(same, model.prepared_))
    return open_array(str(place))


def embedding_tasks(model: DiffusionEMD, measures: Measures) -> tuple[dict[int, Task[Arrays]], dict[int, int]]:
    """Return tasks that embed some samples each, and how many."""
    rows = model.node_masses(measures)
    starts = range(0, rows.shape[0], SAMPLES_AT_ONCE)
    tasks: dict[int, Task[Arrays]] = {
        number: partial(_embed_rows, rows=rows[start : start + SAMPLES_AT_ONCE]) for number, start in enumerate(starts)
    }
    return tasks, {number: min(SAMPLES_AT_ONCE, rows.shape[0] - start) for number, start in enumerate(starts)}


def same(prepared: Preparation) -> Preparation:
    """Return what is given: all tasks share it."""
    return prepared


def _embed_rows(prepared: Preparation, rows: Any) -> Arrays:
    return {"embedding": prepared.embed(rows, n_threads=1, progress=SILENT)}


def _embedding_target(place: Path, model: DiffusionEMD, measures: Measures, about: dict[str, Any], resume: bool) -> Any:
    """Return the array to write to, new or begun with the same model and measures."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    shape = (len(measures), model.prepared_.layout.n_features)
    if check_new(place, resume=resume):
        with explain_full_disk(place):
            return zarr.create_array(
                place, shape=shape, chunks=(SAMPLES_AT_ONCE, shape[1]), dtype=model.prepared_.precision,
                compressors=None, attributes=about, config={"write_empty_chunks": True},
            )  # fmt: skip
    begun = open_array(str(place))
    stored, layout = begun.attrs.asdict(), (begun.shape, begun.chunks, begun.dtype)
    expected = (shape, (SAMPLES_AT_ONCE, shape[1]), model.prepared_.precision)
    if layout != expected or any(stored.get(key) != value for key, value in about.items()):
        raise InvalidInputError(
            "an array begun with the same model and measures", f"another at {quoted_path(str(place))}"
        )
    return zarr.open_array(place, mode="r+", config={"write_empty_chunks": True})


def _digest(model: DiffusionEMD, measures: Measures) -> str:
    digest = hashlib.sha256(repr(sorted(model.get_params(deep=False).items(), key=str)).encode())
    for matrix in (model.graph_.node_affinity, measures.masses):
        for array in (matrix.data, matrix.indices, matrix.indptr):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


Best = tuple[Float64, Int64]


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
    rows, place, watcher = Rows.of(embedding), Path(out), SILENT if progress is None else progress
    with executor(client, n_jobs) as where:
        size = tile_rows(rows, check_memory(memory), where.n_workers)
        about = {"heatmover": __version__, "embedding": rows.checksum(cut(rows.shape[0], size)), "dtype": dtype}
        target, size = _target(place, rows, about, size, resume)
        spans, marks = cut(rows.shape[0], size), Marks(place, {**about, "rows": size})

        def write(number: int, result: Arrays) -> None:
            i, j = pairs[number]
            with explain_full_disk(place):
                target[slice(*spans[i]), slice(*spans[j])] = result["tile"]
                if i != j:
                    target[slice(*spans[j]), slice(*spans[i])] = result["tile"].T
                marks.set(number, [result["tile"], result["tile"].T])

        def read(number: int) -> list[npt.NDArray[Any]]:
            first, second = (slice(*spans[k]) for k in pairs[number])
            return [np.asarray(target[first, second]), np.asarray(target[second, first])]

        pairs = list(combinations_with_replacement(range(len(spans)), 2))
        left = {
            number: partial(_tile, left=rows.part(spans[i]), right=None if i == j else rows.part(spans[j]), dtype=dtype)
            for number, (i, j) in enumerate(pairs)
            if not marks.fits(number, partial(read, number))
        }
        watcher.stage("compare", len(pairs))
        watcher.advance(len(pairs) - len(left))
        Stages(where, NoCheckpoint(), _Continued(watcher)).each("compare", left, dict.fromkeys(left, 1), write)
    target.attrs["complete"] = True
    return open_array(str(place))


@final
class _Continued:
    """Progress of a stage that has begun already."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def stage(self, name: str, total: int) -> None:
        """Ignore it."""

    def advance(self, steps: int = 1) -> None:
        """Pass it on."""
        self._inner.advance(steps)


def _tile(_: None, left: Part, right: Part | None, dtype: str) -> Arrays:
    return {"tile": _between(left, right).astype(dtype, copy=False)}


def _between(left: Part, right: Part | None) -> Float64:
    return np.asarray(pairwise_distances(left(), None if right is None else right(), n_jobs=1))


def _target(place: Path, rows: Rows, about: dict[str, Any], size: int, resume: bool) -> tuple[Any, int]:
    """Return the array to write to, new or begun, and the rows of its tiles."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    n_rows, dtype = rows.shape[0], about["dtype"]
    if not check_new(place, resume=resume):
        found = open_array(str(place))
        stored = found.attrs.asdict()
        changed = [key for key, value in about.items() if stored.get(key) != value]
        if (found.shape, found.dtype) != ((n_rows, n_rows), dtype):
            changed.append("shape")
        if changed:
            raise InvalidInputError(
                f"an array of the same {', '.join(changed)}", f"another at {quoted_path(str(place))}"
            )
        begun = zarr.open_array(place, mode="r+", config={"write_empty_chunks": True})
        return begun, int(begun.chunks[0])
    with explain_full_disk(place):
        array = zarr.create_array(
            place, shape=(n_rows, n_rows), chunks=(min(size, n_rows),) * 2, dtype=dtype, compressors=None,
            attributes=about | {"complete": False}, config={"write_empty_chunks": True},
        )  # fmt: skip
    return array, int(array.chunks[0])


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
    rows, count = Rows.of(embedding), check_integer("k", k, minimum=1)
    if count >= rows.shape[0]:
        raise InvalidInputError(f"k of at most {rows.shape[0] - 1}", f"k={count} with {counted(rows.shape[0], 'row')}")
    best = _nothing_yet(rows.shape[0], count)
    with executor(client, n_jobs) as where:
        spans = cut(rows.shape[0], size := tile_rows(rows, check_memory(memory), where.n_workers))
        pairs = list(combinations_with_replacement(range(len(spans)), 2))
        tasks = {
            number: partial(
                _nearest_between,
                left=rows.part(spans[i]),
                right=None if i == j else rows.part(spans[j]),
                starts=(spans[i][0], spans[j][0]),
                k=count,
            )
            for number, (i, j) in enumerate(pairs)
        }

        def fold(number: int, result: Arrays) -> None:
            for side, place in zip(("left", "right"), dict.fromkeys(pairs[number]), strict=False):
                _merge(best, slice(*spans[place]), (result[f"{side} distances"], result[f"{side} indices"]))

        manifest = {} if checkpoint is None else {
            "heatmover": {"version": __version__},
            "input": {"embedding": rows.checksum(spans)},
            "settings": {"k": count, "tile rows": size},
        }  # fmt: skip
        need = len(pairs) * size * count * 32
        with open_checkpoint(checkpoint, manifest, resume=resume, need=need) as store:
            stages = Stages(where, store, SILENT if progress is None else progress)
            stages.each("compare", tasks, dict.fromkeys(tasks, 1), fold)
    return best


def _nearest_between(_: None, left: Part, right: Part | None, starts: tuple[int, int], k: int) -> Arrays:
    """Return the k nearest rows on the right of each on the left, and the other way round."""
    tile = _between(left, right)
    if right is None:
        np.fill_diagonal(tile, np.inf)  # a row is not its own neighbour
    sides = {"left": (tile, starts[1])} if right is None else {"left": (tile, starts[1]), "right": (tile.T, starts[0])}
    found: Arrays = {}
    for side, (candidates, first) in sides.items():
        found[f"{side} distances"], found[f"{side} indices"] = _smallest(candidates, first, k)
    return found


def _smallest(tile: Float64, first: int, k: int) -> Best:
    from heatmover._compiled.l1 import keep_smallest

    best = _nothing_yet(len(tile), k)
    keep_smallest(np.ascontiguousarray(tile), first, *best)
    return best


def _nothing_yet(n_rows: int, k: int) -> Best:
    return np.full((n_rows, k), np.inf), np.full((n_rows, k), np.iinfo(np.int64).max)


def _merge(best: Best, rows: slice, found: Best) -> None:
    """Keep the k best of both, by distance and then by index, whatever the order in which tiles come."""
    k = best[0].shape[1]
    distance, index = (np.hstack([old[rows], new]) for old, new in zip(best, found, strict=True))
    order = np.lexsort((index, distance), axis=1)[:, :k]
    for old, merged in zip(best, (distance, index), strict=True):
        old[rows] = np.take_along_axis(merged, order, axis=1)
