"""`read_cohort` for cells that are compared in pieces: no pass over the file that another pass can do."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from heatmover._progress import Progress
from heatmover._words import readable
from heatmover.cohort import Cohort
from heatmover.cohort import read_cohort as read_whole_cohort
from heatmover.cohort.formats.tables import from_the_top
from heatmover.cohort.reader import Reader, spans
from heatmover.cohort.values import STAGE, Looked, look_at_range, look_through, put_together
from heatmover.scale.chunks import MOST_CELLS, absolute
from heatmover.scale.execute import Executor, executor, nothing

__all__ = ["read_cohort"]


def read_cohort(path: str | os.PathLike[str] | Any, *, client: Any = None, **how: Any) -> Cohort:
    r"""Read the cells of many samples, to compare them in pieces: nothing is read for a look at the values alone.

    `compare_cohort` and the others of `heatmover.scale` look at every value while they draw cells, and then raise what
    `heatmover.read_cohort` raises, with nothing written: of a NaN one hears after the first pass over the cells, not
    before. With ``standardize``, ``n_components`` or ``on_missing="drop"`` all values decide what becomes of each, so
    these take a pass of their own, on the cluster if there is one; so does a table of text, in this process.

    Parameters
    ----------
    path
        As in `heatmover.read_cohort`.
    client
        As in `InPieces`; only that pass runs there.
    **how
        Options of `heatmover.read_cohort` by their names.

    Returns
    -------
    Cohort
        Whatever reads its values looks at them.

    Examples
    --------
    >>> import anndata, numpy as np, pandas as pd
    >>> values = np.array([[0.0], [1.0], [np.nan], [3.0]])
    >>> cells = anndata.AnnData(values, obs=pd.DataFrame({"sample": list("aabb")}, index=list("wxyz")))
    >>> cohort = read_cohort(cells, sample_key="sample")
    >>> cohort.unchecked
    True
    >>> cohort.points()
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected features without NaN or infinity, found 1 such value in 1 cell ...
    """
    if client is None:
        return read_whole_cohort(path, look_later=look_through, **how)
    with executor(client, None) as where:
        return read_whole_cohort(path, look_later=partial(look_on, where), **how)


def look_on(where: Executor, reader: Reader, n_cells: int, progress: Progress) -> Looked:
    """Look at all cells where the tasks of an executor run, in ranges that do not depend on how many do so.

    Parameters
    ----------
    where
        Runs the tasks.
    reader, n_cells, progress
        As in `heatmover.cohort.values.look_through`, which looks at what workers cannot read, or not from the middle.
    """
    path = getattr(reader, "folder", "") or getattr(reader, "path", "")
    if not path or from_the_top(reader):
        return look_through(reader, n_cells, progress)
    progress.stage(STAGE, n_cells)
    found: dict[int, Looked] = {}

    def consume(number: int, part: Looked) -> None:
        found[number] = part
        progress.advance(part.n_rows)

    tasks = {
        number: partial(_look_at, reader=absolute(reader), start=start, stop=stop, path=path)
        for number, (start, stop) in enumerate(spans(0, n_cells, MOST_CELLS))
    }
    where.run(STAGE, tasks, consume, nothing)
    return put_together((found[number] for number in sorted(found)), len(reader.features), n_cells)


def _look_at(_: None, reader: Reader, start: int, stop: int, path: str) -> Looked:
    with readable(path, reader.kind):
        return look_at_range(reader, start, stop)
