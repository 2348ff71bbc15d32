"""Exact EMD: the truth, one linear programme per pair."""

from __future__ import annotations

from typing import Any

from heatmover._typing import Float64
from heatmover._validation import check_threads
from heatmover.baselines._ground import Cost, Ground, check_masses, ground_costs
from heatmover.baselines._method import Declaration, pair_method
from heatmover.transport import exact_distances

__all__ = ["exact_emd"]


@pair_method(Declaration("either", "linear programme by network simplex (POT)", extra="exact"))
def exact_emd(ground: Ground, measures: Any, *, cost: Cost | None = None, n_jobs: int | None = None) -> Float64:
    """Return the exact Earth Mover's Distances between all measures; needs the extra ``exact`` (POT).

    The cost grows with the square of the number of measures and faster than the square of the number of points
    in each.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, or a `Graph`, whose distances are those along shortest paths.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    cost
        What moving one unit of mass costs: the name of a SciPy metric; a function of two arrays of coordinates,
        ``(n_a, n_dimensions)`` and ``(n_b, n_dimensions)``, that returns ``(n_a, n_b)``; or a matrix
        ``(n_points, n_points)``. None: Euclidean for coordinates, along shortest paths for a graph.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric, zero diagonal.

    Examples
    --------
    >>> from heatmover.baselines import exact_emd
    >>> exact_emd([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])
    """
    masses = check_masses(ground, measures)
    return exact_distances(masses, ground_costs(ground, cost), n_threads=check_threads(n_jobs))
