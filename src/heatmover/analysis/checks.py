"""What a cohort must have before its samples are compared: cells, variables that vary, a graph of one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse.csgraph import connected_components

from heatmover._typing import Float64
from heatmover._validation import check_integer
from heatmover._words import listed, quoted
from heatmover.analysis.comparison import check_all_pairs
from heatmover.cohort import Cohort
from heatmover.errors import InvalidInputError

__all__ = ["check_block", "check_parts", "choose_variables", "enough_cells"]

# A larger share of the cells outside the largest part of the graph is no accident of a few outliers: distances
# between parts then say only that they are apart, not how far.
MOST_APART = 0.05


def enough_cells(cohort: Cohort, min_cells: int | None) -> list[int]:
    """Return which samples to keep, or raise if they are too few, too small or too many."""
    least = 1 if min_cells is None else check_integer("min_cells", min_cells, minimum=1)
    single = [name for name, size in zip(cohort.names, cohort.sizes, strict=True) if size < 2]
    if min_cells is None and single:
        raise InvalidInputError(
            "at least two cells in every sample",
            f"one in {len(single)} of {len(cohort.names)} samples ({listed(single)})",
            "min_cells=2 leaves them out, min_cells=1 keeps them",
        )
    kept = [int(i) for i in np.flatnonzero(cohort.sizes >= least)]
    if len(kept) < 2:
        raise InvalidInputError(
            f"at least two samples{f' of {least} cells' if least > 1 else ''} to compare",
            f"{len(kept)} of {len(cohort.names)}",
            "lower min_cells" if len(cohort.names) > 1 else "check the column that names the samples",
        )
    check_all_pairs(len(kept))  # before the cells are read
    return kept


def choose_variables(cohort: Cohort, table: Any, variables: Sequence[str] | None, block: str | None) -> list[str]:
    """Return the variables to examine; those asked for by name must be there and vary."""
    if variables is None:
        return [str(name) for name in table.columns if name != block and _varied(table[name])]
    for name in variables:
        values = cohort.variable(name).loc[table.index].dropna()
        if values.nunique() < 2:
            found = f"only {quoted(values.iloc[0])}" if len(values) else "no value at all"
            raise InvalidInputError(
                f"{quoted(name)} to differ between samples", f"{found} in all {len(table)}", "choose another variable"
            )
    return list(dict.fromkeys(variables))


def _varied(column: Any) -> bool:
    """Return whether a variable that nobody asked for is worth a test: not one value, not a name for each sample."""
    known = column.dropna()
    different = known.nunique()
    numeric = known.dtype.kind in "iuf"
    return bool(different > 1 and len(known) > 3 and (numeric or different <= len(known) // 2))


def check_block(values: Any, name: str) -> list[object]:
    """Return the block of every sample, or raise if one has none."""
    missing = int(values.isna().sum())
    if missing:
        raise InvalidInputError(
            f"a block in {quoted(name)} for every sample", f"none for {missing} of {len(values)} samples"
        )
    return list(values)


def check_parts(affinity: Any, cells: Float64) -> None:
    """Raise if too many cells are outside the largest part of the graph.

    Parameters
    ----------
    affinity
        Of the graph, ``(n_points, n_points)``.
    cells
        How many cells each point stands for, ``(n_points,)``: a landmark may stand for many.
    """
    n_parts, part = connected_components(affinity, directed=False)
    inside = np.bincount(part, weights=cells)
    apart = 1 - float(inside.max() / inside.sum())
    if apart > MOST_APART:
        raise InvalidInputError(
            "a connected graph",
            f"{n_parts} parts, with {apart:.0%} of the cells outside the largest",
            "raise n_neighbors, remove outliers, or allow_parts=True to go on: mass then never moves between parts",
        )
