"""Score distances against true distances, signals by smoothness; for users, `statistics`, `transport`, `study`.

The module is public as ``hm.metrics``. It works on plain arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Intp
from heatmover._base.validation import ALL_DISTANCES, as_array, check_at_most, check_matrix
from heatmover.errors import InvalidInputError

__all__ = ["laplacian_smoothness", "precision_at_k", "spearman"]

ALONE = "a measure is not its own neighbor"


def precision_at_k(truth: npt.ArrayLike, distances: npt.ArrayLike, k: int = 10) -> float:
    """Return the mean share of the k true nearest neighbors that are also among the k nearest in ``distances``.

    The share is averaged over all measures. A measure is not its own neighbor, so the diagonals are ignored. Ties are
    broken in favor of the smaller index.

    Parameters
    ----------
    truth
        True distances, (n_measures, n_measures).
    distances
        Distances to be scored, (n_measures, n_measures).
    k
        Number of neighbors, 1 to n_measures - 1.

    Returns
    -------
    float
        Precision from 0 to 1 (best). Random distances reach about ``k / (n_measures - 1)``.

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
    count = check_at_most("k", k, len(true) - 1, ALONE)
    common = _near(true, count) & _near(judged, count)
    return float(common.sum() / (len(true) * count))


def spearman(truth: npt.ArrayLike, distances: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation of distances with true distances, averaged over measures.

    For each measure, the distances to all other measures are ranked (equal distances get their mean rank) and
    correlated with the ranks of the true distances. The correlation of a measure is set to 0 if all its true distances
    are equal, or if all its scored distances are equal.

    Parameters
    ----------
    truth
        True distances between at least 3 measures, (n_measures, n_measures); the diagonal is ignored.
    distances
        Distances to be scored, (n_measures, n_measures).

    Returns
    -------
    float
        Correlation from -1 to 1 (best).

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
        raise InvalidInputError(
            "at least 3 measures", f"{len(true)}", "with fewer measures, neighbors have no order to compare"
        )
    others = ~np.eye(len(true), dtype=bool)
    a, b = (centered_ranks(square[others].reshape(len(true), -1)) for square in (true, judged))
    products = (a * b).sum(axis=1)
    # Ranks are multiples of one half, so the ranks of a constant row are centered to exactly zero.
    norms = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return float(np.divide(products, norms, out=np.zeros(len(true)), where=norms > 0).mean())


def laplacian_smoothness(
    distances: npt.ArrayLike, signal: npt.ArrayLike, k: int = 10, *, normalize: bool = False
) -> float | Float64:
    """Return the variation of a signal between near measures; lower values mean a smoother signal.

    The result is the Laplacian quadratic form of the paper. A graph connects two measures if either is one of the k
    nearest neighbors of the other. The quadratic form is the sum of the squared differences of the signal over the
    edges of the graph, and equals ``signal.T @ (D - A) @ signal``, where A is the adjacency matrix and D the diagonal
    matrix of degrees.

    Parameters
    ----------
    distances
        Distances between measures, (n_measures, n_measures). A measure is not its own neighbor. Measures tied with the
        k-th nearest are neighbors too, so the result does not depend on the order of the measures.
    signal
        Numbers, such as an outcome or a share of cells, (n_measures,) or (n_measures, n_signals). Encode categories
        first, as one column per category.
    k
        Number of neighbors, 1 to n_measures - 1.
    normalize
        Divide by the mean result over all permutations of the signal. This mean is twice the number of edges times the
        variance of the signal, computed with n_measures - 1 in the denominator. The normalized result is known as
        Geary's C. For a signal that is independent of the distances, it is about 1, whatever the unit of the signal and
        the number of measures. For a constant signal it is 0.

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
    near = neighbors_with_ties(matrix, check_at_most("k", k, len(matrix) - 1, ALONE))
    first, second = edges_between_near(near)
    columns = _check_signal(signal, len(matrix))
    if normalize:
        # Divide by the largest number, so that squares neither overflow nor vanish. The normalized result does not
        # depend on the unit.
        columns = columns / np.where(columns.any(axis=0), np.abs(columns).max(axis=0), 1)
    with np.errstate(over="ignore"):
        values = np.asarray(((columns[first] - columns[second]) ** 2).sum(axis=0))
    if not np.isfinite(values).all():
        raise InvalidInputError(
            "a signal whose squared differences are finite",
            "an overflow",
            "use a larger unit for the signal, or normalize=True",
        )
    if normalize:
        expected = 2 * first.size * columns.var(axis=0, ddof=1)
        values = np.divide(values, expected, out=np.zeros_like(values), where=values > 0)
    return values if np.ndim(signal) == 2 else float(values[0])


def edges_between_near(near: Bool) -> tuple[Intp, Intp]:
    """Return both ends of every edge, ``(n_edges,)`` each; an edge connects two measures if either is near the other.

    Parameters
    ----------
    near
        True where the measure of the column is near the measure of the row, ``(n_measures, n_measures)``.
    """
    first, second = np.nonzero(np.triu(near | near.T))
    return first, second


def neighbors_with_ties(distances: Float64, k: int) -> Bool:
    """Mark in each row the k nearest measures and all measures tied with the k-th, (n_measures, n_measures).

    Breaking ties by the order of the measures would favor neighbors from the same group if measures are sorted by
    group.
    """
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    farthest = np.partition(others, k - 1, axis=1)[:, k - 1 : k]
    # Relative differences below 1e-6 are rounding errors of distances computed in float32.
    return np.asarray(others <= farthest + 1e-6 * np.abs(farthest))


def _near(distances: Float64, k: int) -> Bool:
    """Mark in each row the k nearest measures, (n_measures, n_measures)."""
    others = distances.copy()
    np.fill_diagonal(others, np.inf)
    near = np.zeros(others.shape, dtype=bool)
    np.put_along_axis(near, np.argsort(others, axis=1, kind="stable")[:, :k], True, axis=1)
    return near


def centered_ranks(rows: Float64) -> Float64:
    """Return the ranks within each row minus their mean; equal values get their mean rank."""
    from scipy.stats import rankdata  # takes a third of a second to import

    return np.asarray(rankdata(rows, axis=1) - (rows.shape[1] + 1) / 2)


def _check_square(name: str, values: npt.ArrayLike) -> Float64:
    matrix = np.asarray(check_matrix(name, values, sparse=ALL_DISTANCES), dtype=np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInputError(f"{name} to be square, (n_measures, n_measures)", f"shape {matrix.shape}")
    return matrix


def _check_pair(truth: npt.ArrayLike, distances: npt.ArrayLike) -> tuple[Float64, Float64]:
    true, judged = _check_square("truth", truth), _check_square("distances", distances)
    if true.shape != judged.shape:
        raise InvalidInputError(
            "truth and distances of the same shape",
            f"{true.shape} and {judged.shape}",
            "both are (n_measures, n_measures)",
        )
    return true, judged


def _check_signal(signal: npt.ArrayLike, n_measures: int) -> Float64:
    """Return the signal as columns, (n_measures, n_signals)."""
    array = as_array("signal", signal)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(
            "a signal of numbers", f"values of type {array.dtype}", "encode each category as one column of 0 and 1"
        )
    if array.ndim not in (1, 2) or len(array) != n_measures:
        raise InvalidInputError(
            f"a signal of shape ({n_measures},) or ({n_measures}, n_signals)", f"shape {array.shape}"
        )
    columns = check_matrix("signal", array[:, None] if array.ndim == 1 else array)
    return np.asarray(columns, dtype=np.float64)


def __dir__() -> list[str]:
    return sorted(__all__)
