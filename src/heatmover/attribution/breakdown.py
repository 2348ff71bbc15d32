"""A distance taken apart by kinds of points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, Int64
from heatmover._validation import import_extra

__all__ = ["Breakdown"]

# Rows that are printed; the table has all.
SHOWN = 12


@final
@dataclass(frozen=True, eq=False, repr=False)
class Breakdown(ReadOnlyArrays):
    """What every kind of point contributes to a distance, largest first; ``print`` it.

    Attributes
    ----------
    names
        Of the kinds.
    contributions
        ``(n_kinds,)``: they sum to the distance.
    shares
        ``(n_kinds,)``: contributions divided by the distance; zeros if that is zero.
    points
        ``(n_kinds,)``: number of points of each kind.
    masses
        ``(n_kinds, 2)``: mass that the first and the second measure have in each kind.
    between
        Names of the two measures.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain
    >>> data = hm.datasets.cohort(6, cells_per_sample=60, effect=4.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> explanation = explain(model, "case-01", "control-01", measures=measures)
    >>> parts = explanation.by(data.coordinates[:, 0].astype(int))
    >>> bool(np.isclose(parts.contributions.sum(), explanation.distance)), parts.masses.shape
    (True, (5, 2))
    """

    names: tuple[str, ...]
    contributions: Float64
    shares: Float64
    points: Int64
    masses: Float64
    between: tuple[str, str]

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each kind."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        first, second = self.between
        columns = {
            "contribution": self.contributions,
            "share": self.shares,
            "points": self.points,
            f"mass in {first}": self.masses[:, 0],
            f"mass in {second}": self.masses[:, 1],
        }
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="kind"))

    def __str__(self) -> str:
        first, second = self.between
        width = max(4, *(len(name) for name in self.names[:SHOWN]))
        lines = [f"{'kind':<{width}}  contribution  share  points  {first}  {second}"]
        for i, name in enumerate(self.names[:SHOWN]):
            lines.append(
                f"{name:<{width}}  {self.contributions[i]:12.4g}  {self.shares[i]:5.0%}  {self.points[i]:6d}  "
                f"{self.masses[i, 0]:{len(first)}.1%}  {self.masses[i, 1]:{len(second)}.1%}"
            )
        if len(self.names) > SHOWN:
            lines.append(f"and {len(self.names) - SHOWN} more")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Breakdown({len(self.names)} kinds, {self.between[0]} against {self.between[1]})"


def break_down(
    contributions: Float64,
    codes: Int64,
    names: tuple[str, ...],
    masses: Float64,
    between: tuple[str, str],
) -> Breakdown:
    """Sum contributions ``(n_points,)`` and masses ``(2, n_points)`` over kinds of points."""
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(1, len(names)))

    def summed(values: Float64) -> Float64:
        # Rounded once, so that sums do not depend on the order of the points.
        return np.array([math.fsum(part) for part in np.split(values[order], cuts)])

    sums = summed(contributions)
    total = math.fsum(contributions)
    per_kind = np.column_stack([summed(row) for row in masses])
    order = np.argsort(-sums, kind="stable")
    shares = sums / total if total else np.zeros_like(sums)
    points = np.bincount(codes, minlength=len(names))
    return Breakdown(
        tuple(names[i] for i in order), sums[order], shares[order], points[order], per_kind[order], between
    )
