"""What a search finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, Int64

__all__ = ["Nearest", "Within"]


@final
@dataclass(frozen=True, eq=False)
class Nearest(ReadOnlyArrays):
    """The nearest stored samples of some queries.

    Attributes
    ----------
    distances
        ``(n_queries, k)``, ascending in each row.
    rows
        ``(n_queries, k)``: which rows of the index. Of equal distances the smaller row comes first.
    names
        Their names, per query.
    exact
        Whether all samples were considered. Else some of the nearest may be missing; the distances that are there are
        exact even then.

    Examples
    --------
    >>> import heatmover as hm
    >>> found = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]]).nearest([[4.0]], k=2)
    >>> found.distances, found.rows, found.names, found.exact
    (array([[1., 2.]]), array([[1, 2]]), (('1', '2'),), True)
    """

    distances: Float64
    rows: Int64
    names: tuple[tuple[str, ...], ...]
    exact: bool

    def __len__(self) -> int:
        return len(self.rows)


@final
@dataclass(frozen=True, eq=False)
class Within:
    """All stored samples within a radius of some queries.

    Attributes
    ----------
    distances, rows, names
        Per query: distances ``(n_found,)``, ascending, rows of the index, and names.

    Examples
    --------
    >>> import heatmover as hm
    >>> found = hm.MeasureIndex.from_embedding([[0.0], [5.0], [6.0]]).within([[4.0], [9.0]], radius=2)
    >>> found.distances, found.names
    ((array([1., 2.]), array([], dtype=float64)), (('1', '2'), ()))
    """

    distances: tuple[Float64, ...]
    rows: tuple[Int64, ...]
    names: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)
