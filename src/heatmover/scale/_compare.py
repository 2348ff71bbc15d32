"""`compare_cohort` and `study_cohort`: what `heatmover.compare` and `heatmover.study_cohort` do, for cells on disk."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from heatmover._progress import SILENT, Progress
from heatmover.analysis import study
from heatmover.analysis.comparison import MOST_SAMPLES, Comparison, check_model
from heatmover.analysis.parameters import StudyParameters
from heatmover.cohort import Cohort
from heatmover.embedding import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.graphs import Landmarks
from heatmover.measures import Measures, measures_from_weights
from heatmover.scale._pipeline import InPieces, Request, counted
from heatmover.scale._samples import compare_samples

__all__ = ["compare_cohort", "histograms", "study_cohort"]


def compare_cohort(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
    passes: int = 0,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    min_cells: int = 1,
    n_neighbors: int = 30,
    model: DiffusionEMD | None = None,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    r"""Compare samples whose cells do not fit into memory: landmarks stand for the cells, which are read in pieces.

    The distances are the same to the bit for any budget of memory, any number of threads or workers, and whether the
    run was interrupted or not.

    Parameters
    ----------
    cohort
        From `heatmover.cohort.read_cohort`. On a cluster every worker must see its files under the same path.
    landmarks
        How many; ``"auto"``: 4,000, or a tenth of the cells if these are few.
    passes, memory, client, checkpoint, resume, n_jobs
        As in `InPieces`.
    min_cells
        Leave out samples with fewer cells from the comparison.
    n_neighbors, model
        As in `heatmover.compare`.
    random_state
        Seed of all draws.
    progress
        Told of the stages, those over cells with the number of cells.

    Returns
    -------
    Comparison
        As `heatmover.compare` returns it, with landmarks and their loss as measured on 10,000 cells.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from heatmover.cohort import read_cohort
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(6, cells_per_sample=300)
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> rows = [",".join([label, *map(str, point)]) for label, point in zip(data.labels, data.points)]
    >>> header = "sample," + ",".join(f"x{i}" for i in range(10))
    >>> _ = (folder / "cells.csv").write_text("\n".join([header, *rows]))
    >>> result = compare_cohort(read_cohort(folder / "cells.csv", sample_key="sample"), landmarks=100, memory="1 GB")
    >>> result.distances.shape, result.landmarks
    ((6, 6), Landmarks(100 for 1800 points; root mean square distance ...))
    """
    settings = check_model(model, random_state=random_state, n_jobs=n_jobs)
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=settings.n_jobs
    )  # fmt: skip
    watcher = SILENT if progress is None else progress
    request = Request(cohort, pieces, landmarks, n_neighbors, random_state, watcher, min_cells, settings)
    kept = np.flatnonzero(cohort.sizes >= min_cells)
    _check_pairs(len(kept), min_cells)
    with counted(request) as (stages, drawn, found):
        return compare_samples(cohort, kept, found, drawn, stages, settings, n_neighbors, random_state)


def study_cohort(
    cohort: Cohort,
    parameters: StudyParameters | None = None,
    *,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    passes: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> study.Study:
    r"""Compare samples whose cells do not fit into memory, and test what goes with the distances.

    Parameters
    ----------
    cohort
        From `heatmover.read_cohort`.
    memory, client, checkpoint, resume, passes, n_jobs
        As in `InPieces`.
    parameters, progress, **changes
        As in `heatmover.study_cohort`.

    Returns
    -------
    Study
        Give it to `heatmover.report`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from heatmover.cohort import read_cohort
    >>> rng = np.random.default_rng(0)
    >>> rows = [f"s{s},{'case' if s % 2 else 'control'},{x + 3 * (s % 2)},{y}"
    ...         for s in range(8) for x, y in rng.normal(size=(100, 2))]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,condition,x,y", *rows]))
    >>> result = study_cohort(read_cohort(path, sample_key="sample"), variables=["condition"], landmarks=100)
    >>> result.findings[0].groups
    {'case': 4, 'control': 4}
    """
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=n_jobs
    )  # fmt: skip
    return study.study_cohort(cohort, parameters, comparer=pieces, progress=progress, **changes)


def histograms(
    cohort: Cohort,
    *,
    landmarks: int | Literal["auto"] = "auto",
    passes: int = 0,
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[Landmarks, Measures]:
    r"""Find landmarks and count the cells of every sample by its nearest, without loading the cells.

    The first half of `compare_cohort`, for any number of samples.

    Parameters
    ----------
    cohort, landmarks, passes, memory, client, checkpoint, resume, random_state, n_jobs, progress
        As in `compare_cohort`.

    Returns
    -------
    landmarks : Landmarks
        Their ``graph()`` is that for the model.
    measures : Measures
        ``(n_samples, n_landmarks)``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> from heatmover.cohort import read_cohort
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> rows = [f"s{i % 3},{i % 7}.5,{i % 11}.5" for i in range(700)]
    >>> _ = path.write_text("\n".join(["sample,x,y", *rows]))
    >>> landmarks, measures = histograms(read_cohort(path, sample_key="sample"), landmarks=40)
    >>> measures
    Measures(3 measures on 40 points: s0, s1, s2)
    """
    pieces = InPieces(
        memory=memory, client=client, checkpoint=checkpoint, resume=resume, passes=passes, n_jobs=n_jobs
    )  # fmt: skip
    watcher = SILENT if progress is None else progress
    with counted(Request(cohort, pieces, landmarks, 1, random_state, watcher)) as (_, _, found):
        return found.landmarks, measures_from_weights(found.counts.astype(np.float64), names=cohort.names)


def _check_pairs(n_samples: int, min_cells: int) -> None:
    if n_samples < 2:
        raise InvalidInputError("at least two samples to compare", f"{n_samples} of at least {min_cells} cells")
    if n_samples > MOST_SAMPLES:
        raise InvalidInputError(
            f"at most {MOST_SAMPLES:,} samples for the distances of all pairs",
            f"{n_samples:,}, whose distances would take {8 * n_samples**2 / 1e9:,.0f} GB",
            "histograms, embed and nearest of heatmover.scale find the nearest of each",
        )
