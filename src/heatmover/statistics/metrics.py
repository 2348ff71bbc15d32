"""How good distances are: agreement with a known truth, and smoothness of a signal over near measures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Intp
from heatmover._base.validation import ALL_DISTANCES, as_array, check_integer, check_matrix
from heatmover._base.words import counted
from heatmover.errors import InvalidInputError

__all__ = ["laplacian_smoothness", "precision_at_k", "spearman"]

Floats = Float64


def precision_at_k(truth: npt.ArrayLike, distances: npt.ArrayLike, k: int = 10) -> float:
    """Return the share of the k truly nearest measures that are among the k nearest, averaged over measures.

    A measure is not its own neighbour, whatever the diagonal says; of equal distances the smaller index is nearer.

    Parameters
    ----------
    truth
        True distances, (n_measures, n_measures).
    distances
        Distances to be judged, (n_measures, n_measures).
    k
        Number of neighbours, 1 to n_measures - 1.

    Returns
    -------
    float
        From 0 to 1, which is best. Distances without any relation to the truth reach about
        ``k / (n_measures - 1)``.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.metrics import precision_at_k
    >>> positions = np.array([0.0, 1.0, 3.0, 7.0])
    >>> truth = abs(positions[:, None] - positions)
    >>> precision_at_k(truth, truth**2, k=2)
    1.0
    >>> precision_at_k(truth, -truth, k=1)
    0.0
    """
    true, judged = _check_pair(truth, distances)
    count = _check_k(k, len(true))
    common = _near(true, count) & _near(judged, count)
    return float(common.sum() / (len(true) * count))


def spearman(truth: npt.ArrayLike, distances: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation with the truth, per measure, averaged over measures.

    For each measure the distances to all others are ranked, equal ones sharing their mean rank, and the ranks
    correlated with those of the truth. A measure that is equally far from all others, in the truth or in the
    distances, says nothing about an order and counts as 0.

    Parameters
    ----------
    truth
        True distances, (n_measures, n_measures), of at least 3 measures; the diagonal is not looked at.
    distances
        Distances to be judged, (n_measures, n_measures).

    Returns
    -------
    float
        From -1 to 1, which is best.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.metrics import spearman
    >>> positions = np.array([0.0, 1.0, 3.0, 7.0])
    >>> truth = abs(positions[:, None] - positions)
    >>> spearman(truth, np.sqrt(truth)), spearman(truth, -truth), spearman(truth, np.ones((4, 4)))
    (1.0, -1.0, 0.0)
    """
    true, judged = _check_pair(truth, distances)
    if len(true) < 3:
        raise InvalidInputError("at least 3 measures", f"{len(true)}", "with fewer there is no order to compare")
    a, b = centered_ranks(_without_diagonal(true)), centered_ranks(_without_diagonal(judged))
    products = (a * b).sum(axis=1)
    # Ranks are halves of whole numbers, so that those of a constant row are centered to exactly zero.
    norms = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return float(np.divide(products, norms, out=np.zeros(len(true)), where=norms > 0).mean())


def laplacian_smoothness(
    distances: npt.ArrayLike, signal: npt.ArrayLike, k: int = 10, *, normalize: bool = False
) -> float | Floats:
    """Return how much a signal varies between near measures: lower is smoother.

    The paper's Laplacian quadratic form: over the graph that joins two measures if one is among the k nearest
    of the other, the sum over edges of the squared difference of the signal. With the adjacency A and the
    degrees D of that graph this is ``signal.T @ (D - A) @ signal``.

    Parameters
    ----------
    distances
        (n_measures, n_measures). A measure is not its own neighbour; all that are as far as the k-th nearest are
        neighbours too, so that no order of measures decides.
    signal
        Numbers, (n_measures,) or (n_measures, n_signals): an outcome, a share of cells. Categories have to be
        coded first, one column per category.
    k
        Number of neighbours, 1 to n_measures - 1.
    normalize
        Divide by what a signal permuted over the measures has on average, which is twice the number of edges times
        its variance (with n_measures - 1 in the denominator): the result, known as Geary's C, is about 1
        for a signal that has nothing to do with the distances, whatever its unit and the number of measures.
        A constant signal has 0.

    Returns
    -------
    float, or ndarray of shape (n_signals,)
        One value per signal; at least 0.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.metrics import laplacian_smoothness
    >>> positions = np.array([0.0, 1.0, 3.0, 7.0])
    >>> distances = abs(positions[:, None] - positions)
    >>> laplacian_smoothness(distances, [1, 1, 0, 0], k=1)
    1.0
    >>> laplacian_smoothness(distances, [1, 0, 1, 0], k=1, normalize=True)
    1.5
    """
    matrix = _check_square("distances", distances)
    edges = edges_between_near(neighbors_with_ties(matrix, _check_k(k, len(matrix))))
    values = smoothness_over_edges(*edges, _check_signal(signal, len(matrix)), normalize=normalize)
    if not np.isfinite(values).all():
        raise InvalidInputError(
            "a signal whose squared differences are finite", "an overflow", "use another unit, or normalize=True"
        )
    return values if np.ndim(signal) == 2 else float(values[0])


def edges_between_near(near: Bool) -> tuple[Intp, Intp]:
    """Return both ends of every edge that joins two measures one of which is near the other, ``(n_edges,)`` each.

    Parameters
    ----------
    near
        In each row the measures that are near this one, ``(n_measures, n_measures)``.
    """
    first, second = np.nonzero(np.triu(near | near.T))
    return first, second


def smoothness_over_edges(first: Intp, second: Intp, columns: Floats, *, normalize: bool) -> Floats:
    """Return what `laplacian_smoothness` does, ``(n_signals,)``, of edges that are known.

    Parameters
    ----------
    first, second
        From `edges_between_near`.
    columns
        The signals, ``(n_measures, n_signals)``.
    normalize
        As in `laplacian_smoothness`.
    """
    if normalize:
        # The result does not depend on the unit; near 1 no square overflows or vanishes.
        columns = columns / np.where(columns.any(axis=0), np.abs(columns).max(axis=0), 1)
    with np.errstate(over="ignore"):
        values = np.asarray(((columns[first] - columns[second]) ** 2).sum(axis=0))
    if normalize:
        expected = 2 * first.size * columns.var(axis=0, ddof=1)
        values = np.divide(values, expected, out=np.zeros_like(values), where=values > 0)
    return values


def neighbors_with_ties(distances: Floats, k: int) -> Bool:
    """Return, in each row, which others are among the k nearest or as far as the k-th, (n_measures, n_measures).

    Were ties broken by the order of measures, groups that are sorted would be neighbours of themselves.
    """
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    farthest = np.partition(others, k - 1, axis=1)[:, k - 1 : k]
    # Distances computed in float32 that differ by less are equal.
    return np.asarray(others <= farthest + 1e-6 * np.abs(farthest))


def _near(distances: Floats, k: int) -> Bool:
    """Return, in each row, which k others are the nearest, (n_measures, n_measures)."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    near = np.zeros(others.shape, dtype=bool)
    np.put_along_axis(near, np.argsort(others, axis=1, kind="stable")[:, :k], True, axis=1)
    return near


def _without_diagonal(square: Floats) -> Floats:
    """Return (n, n - 1): each row without its own entry."""
    return square[~np.eye(len(square), dtype=bool)].reshape(len(square), -1)


def centered_ranks(rows: Floats) -> Floats:
    """Return the ranks within each row, equal values sharing their mean rank, minus the mean of all ranks."""
    order = np.argsort(rows, axis=1, kind="stable")
    ascending = np.take_along_axis(rows, order, axis=1)
    begins = np.ones(rows.shape, dtype=bool)
    begins[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    # Runs of equal values, numbered through all rows: no run crosses from one row into the next.
    run = np.cumsum(begins).reshape(rows.shape) - 1
    lengths = np.bincount(run.ravel())
    first = np.flatnonzero(begins) % rows.shape[1]
    mean = first + (lengths - 1) / 2
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, mean[run], axis=1)
    return np.asarray(ranks - (rows.shape[1] - 1) / 2)


def _check_square(name: str, values: npt.ArrayLike) -> Floats:
    matrix = np.asarray(check_matrix(name, values, sparse=ALL_DISTANCES), dtype=np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInputError(f"{name} to be square, (n_measures, n_measures)", f"shape {matrix.shape}")
    return matrix


def _check_pair(truth: npt.ArrayLike, distances: npt.ArrayLike) -> tuple[Floats, Floats]:
    true, judged = _check_square("truth", truth), _check_square("distances", distances)
    if true.shape != judged.shape:
        raise InvalidInputError(
            "truth and distances of one shape", f"{true.shape} and {judged.shape}", "both are (n_measures, n_measures)"
        )
    return true, judged


def _check_k(k: object, n_measures: int) -> int:
    count = check_integer("k", k, minimum=1)
    if count >= n_measures:
        given = f"k={count} with {counted(n_measures, 'measure')}"
        raise InvalidInputError(f"k of at most {n_measures - 1}", given, "a measure is not its own neighbour")
    return count


def _check_signal(signal: npt.ArrayLike, n_measures: int) -> Floats:
    """Return the signal as columns, (n_measures, n_signals)."""
    array = as_array("signal", signal)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(
            "a signal of numbers", f"values of type {array.dtype}", "code categories as one column of 0 and 1 each"
        )
    if array.ndim not in (1, 2) or len(array) != n_measures:
        raise InvalidInputError(
            f"a signal of shape ({n_measures},) or ({n_measures}, n_signals)", f"shape {array.shape}"
        )
    columns = check_matrix("signal", array[:, None] if array.ndim == 1 else array)
    return np.asarray(columns, dtype=np.float64)


def __dir__() -> list[str]:
    return sorted(__all__)
