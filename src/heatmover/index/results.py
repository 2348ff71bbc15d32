"""What a search finds, and the nearest of it by a dearer distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, Int64
from heatmover._validation import check_threads
from heatmover._words import counted
from heatmover.errors import InvalidInputError
from heatmover.measures import check_measures
from heatmover.transport import GroundCosts, exact_pairs

__all__ = ["Distance", "Nearest", "Within", "exact_emd", "reranked"]

# The distances of a query, by its number, to some rows of the index.
Distance: TypeAlias = Callable[[int, Int64], npt.ArrayLike]


def exact_emd(
    measures: Any, queries: Any, costs: GroundCosts | npt.ArrayLike, *, n_jobs: int | None = None
) -> Distance:
    """Return the exact Earth Mover's Distance from queries to rows of an index, for `MeasureIndex.rerank`.

    Needs the extra ``exact``.

    Parameters
    ----------
    measures
        ``(n_rows, n_points)``: the measure of every row of the index, in its order.
    queries
        ``(n_queries, n_points)``: the measures that were searched for, in the order of the search.
    costs
        Of moving mass between points: an array ``(n_points, n_points)``, or a function that takes two arrays of points
        and returns the costs ``(n_sources, n_targets)`` between them.
    n_jobs
        Threads; every core for None.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.arange(4.0)
    >>> distance = exact_emd(np.eye(4), np.eye(4)[:1], abs(places[:, None] - places))
    >>> distance(0, np.array([3, 1]))
    array([3., 1.])
    """
    stored, asked = (sp.csr_array(check_measures(rows)) for rows in (measures, queries))
    if stored.shape[1] != asked.shape[1]:
        raise InvalidInputError(
            f"queries on the {counted(stored.shape[1], 'point')} of the measures", f"rows of width {asked.shape[1]:,}"
        )
    ground = costs if callable(costs) else _looked_up(costs, stored.shape[1])
    n_threads = check_threads(n_jobs)

    def distance(query: int, rows: Int64) -> Float64:
        if rows.size and rows.max() >= stored.shape[0]:
            raise InvalidInputError(
                "the measure of every row of the index", f"{counted(stored.shape[0], 'measure')} and row {rows.max():,}"
            )
        both = sp.csr_array(sp.vstack([asked[[query]], stored[rows]]))
        both.sort_indices()
        return exact_pairs(both, [(0, 1 + place) for place in range(rows.size)], ground, n_threads=n_threads)

    return distance


def _looked_up(costs: npt.ArrayLike, n_points: int) -> GroundCosts:
    matrix = np.asarray(costs, dtype=np.float64)
    if matrix.shape != (n_points, n_points):
        raise InvalidInputError(f"costs ({n_points}, {n_points}) between all points", f"shape {matrix.shape}")
    if not np.isfinite(matrix).all() or matrix.min() < 0:
        raise InvalidInputError("finite, non-negative costs", "some that are not")
    return lambda sources, targets: np.ascontiguousarray(matrix[np.ix_(sources, targets)])


def reranked(found: Nearest, distance: Distance, k: int) -> Nearest:
    """Return the k nearest of a shortlist by another distance."""
    distances, rows, names = [], [], []
    for query, candidates in enumerate(found.rows):
        values = _values(distance, query, candidates)
        order = np.lexsort((candidates, values))[:k]
        distances.append(values[order])
        rows.append(candidates[order])
        names.append(tuple(found.names[query][place] for place in order))
    return Nearest(np.array(distances), np.array(rows), tuple(names), exact=False)


def _values(distance: Distance, query: int, candidates: Int64) -> Float64:
    values = np.asarray(distance(query, candidates), dtype=np.float64)
    if values.shape != candidates.shape:
        raise InvalidInputError(counted(candidates.size, "distance"), f"an array of shape {values.shape}")
    if np.isnan(values).any():
        raise InvalidInputError("distances without NaN", f"{int(np.isnan(values).sum())} of query {query}")
    return values


# What a search finds.


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
