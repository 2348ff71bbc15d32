"""`study_cohort`: what `heatmover.study_cohort` does, for cells that stay on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from heatmover._progress import SILENT, Progress
from heatmover._validation import check_integer
from heatmover.analysis.record import Clock, input_record
from heatmover.analysis.study import (
    Study,
    _check_parts,
    _finish,
    _left_out_notes,
    _quiet,
    check_block,
    choose_variables,
    enough_cells,
)
from heatmover.cohort import Cohort
from heatmover.errors import EmbeddingWarning
from heatmover.scale._compare import compare_cohort

__all__ = ["study_cohort"]


def study_cohort(
    cohort: Cohort,
    *,
    variables: Sequence[str] | None = None,
    block: str | None = None,
    min_cells: int | None = None,
    allow_parts: bool = False,
    n_neighbors: int = 30,
    landmarks: int | Literal["auto"] = "auto",
    memory: int | float | str = "4 GB",
    client: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    n_permutations: int = 999,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Study:
    r"""Compare samples whose cells do not fit into memory, and test what goes with the distances.

    Parameters
    ----------
    cohort
        From `heatmover.cohort.read_cohort`.
    variables, block, min_cells, allow_parts, n_permutations
        As in `heatmover.study_cohort`.
    n_neighbors, landmarks, memory, client, checkpoint, resume, random_state, n_jobs, progress
        As in `compare_cohort`.

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
    check_integer("n_permutations", n_permutations, minimum=1)
    watch = Clock(progress)
    kept = enough_cells(cohort, min_cells)
    table = cohort.samples.iloc[kept]
    chosen = choose_variables(cohort, table, variables, block)
    blocks = None if block is None else check_block(cohort.variable(block).iloc[kept], block)
    with _quiet() as warned:
        comparison = compare_cohort(
            cohort, landmarks=landmarks, memory=memory, client=client, checkpoint=checkpoint, resume=resume,
            min_cells=min_cells or 1, n_neighbors=n_neighbors, random_state=random_state, n_jobs=n_jobs,
            progress=watch,
        )  # fmt: skip
    watch.stage("diagnose graph", 1)
    _check_parts(comparison, allow_parts)
    watch.advance()
    parameters = {
        "variables": list(chosen), "block": block, "min_cells": min_cells, "allow_parts": allow_parts,
        "n_neighbors": n_neighbors, "landmarks": landmarks, "n_permutations": n_permutations, "seed": random_state,
    }  # fmt: skip
    left_out = [cohort.names[i] for i in sorted(set(range(len(cohort.names))) - set(kept))]
    compact = [str(found.message) for found in warned if issubclass(found.category, EmbeddingWarning)]
    return _finish(
        comparison, table, chosen, blocks, block or "",
        (*_left_out_notes(left_out, min_cells), *cohort.warnings, *compact),
        {"input": input_record(cohort), "parameters": parameters},
        n_permutations=n_permutations, random_state=random_state, watch=watch,
    )  # fmt: skip
