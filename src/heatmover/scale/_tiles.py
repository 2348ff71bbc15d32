"""Distances of all pairs, and the nearest of each, for so many samples that neither fits into memory: tile by tile."""

from __future__ import annotations

import os
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import SILENT, Progress
from heatmover._typing import Float64, Int64
from heatmover._validation import check_integer, check_memory, check_option, import_extra
from heatmover._version import __version__
from heatmover._words import quoted_path
from heatmover.embedding.distances import pairwise_distances
from heatmover.errors import InvalidInputError
from heatmover.scale._checkpoint import NoCheckpoint, explain_full_disk, open_checkpoint
from heatmover.scale._execute import executor
from heatmover.scale._marks import Marks
from heatmover.scale._rows import Part, Rows, check_new, cut, open_array, tile_rows
from heatmover.scale._stages import Stages
from heatmover.scale._tasks import Arrays

__all__ = ["distances", "nearest"]

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
        raise InvalidInputError(f"k of at most {rows.shape[0] - 1}", f"k={count} with {rows.shape[0]} rows")
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
