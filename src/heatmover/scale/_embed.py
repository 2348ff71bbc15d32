"""For more samples than all pairs allow: their embedding in a zarr array on disk."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._progress import SILENT, Progress
from heatmover._validation import import_extra
from heatmover._version import __version__
from heatmover._words import quoted_path
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures
from heatmover.scale._checkpoint import NoCheckpoint, explain_full_disk
from heatmover.scale._execute import Task, executor
from heatmover.scale._marks import Marks
from heatmover.scale._rows import check_new, open_array
from heatmover.scale._stages import Stages
from heatmover.scale._tasks import Arrays

__all__ = ["SAMPLES_AT_ONCE", "embed", "embedding_tasks"]

# Samples that a task embeds: the width of a block in which diffusion is fast. It does not depend on the memory, so
# that a resumed run finds the same pieces.
SAMPLES_AT_ONCE = 16


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
    target, marks = _target(place, model, measures, about, resume), Marks(place, about)

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


def embedding_tasks(model: DiffusionEMD, measures: Measures) -> tuple[dict[int, Task], dict[int, int]]:
    """Return tasks that embed some samples each, and how many."""
    rows = model.node_masses(measures)
    starts = range(0, rows.shape[0], SAMPLES_AT_ONCE)
    tasks: dict[int, Task] = {
        number: partial(_embed_rows, rows=rows[start : start + SAMPLES_AT_ONCE]) for number, start in enumerate(starts)
    }
    return tasks, {number: min(SAMPLES_AT_ONCE, rows.shape[0] - start) for number, start in enumerate(starts)}


def same(prepared: Preparation) -> Preparation:
    """Return what is given: all tasks share it."""
    return prepared


def _embed_rows(prepared: Preparation, rows: Any) -> Arrays:
    return {"embedding": prepared.embed(rows, n_threads=1, progress=SILENT)}


def _target(place: Path, model: DiffusionEMD, measures: Measures, about: dict[str, Any], resume: bool) -> Any:
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
