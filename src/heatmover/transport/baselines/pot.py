"""Compare measures by exact and by entropic transport, with POT (extra ``exact``), for users; touch no files."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import check_integer, check_number, check_threads, import_extra
from heatmover.transport.baselines.ground import Cost, Ground, check_masses, ground_costs
from heatmover.transport.baselines.method import Solution, iterative_method, pair_method
from heatmover.transport.exact import GroundCosts, exact_distances, for_pairs, symmetric

# POT checks the marginals in every tenth iteration.
CHECK_EVERY = 10
# Number of points from which the mean cost is estimated.
POINTS_SAMPLED = 64


@pair_method("either", "linear program by network simplex (POT)", extra="exact")
def exact_emd(ground: Ground, measures: Any, *, cost: Cost | None = None, n_jobs: int | None = None) -> Float64:
    """Return the exact Earth Mover's Distances between all measures; needs the extra ``exact`` (POT).

    The time grows with the square of the number of measures, and faster than the square of the number of points of a
    measure.

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, or a `Graph`, on which distances are lengths of shortest paths.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    cost
        Cost of moving one unit of mass: the name of a SciPy metric; a matrix ``(n_points, n_points)``; or a function of
        two arrays of coordinates, ``(n_a, n_dimensions)`` and ``(n_b, n_dimensions)``, that returns ``(n_a, n_b)``.
        None: Euclidean distances for coordinates, and lengths of shortest paths for a graph.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal.

    Examples
    --------
    >>> from heatmover.transport.baselines import exact_emd
    >>> exact_emd([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]])
    array([[0., 2.],
           [2., 0.]])
    """
    masses = check_masses(ground, measures)
    return exact_distances(masses, ground_costs(ground, cost), n_threads=check_threads(n_jobs))


@iterative_method("either", "Cuturi 2013, Sinkhorn distances (POT)", extra="exact")
def sinkhorn(
    ground: Ground,
    measures: Any,
    *,
    regularization: float = 0.01,
    cost: Cost | None = None,
    max_iterations: int = 1000,
    tol: float = 1e-3,
    n_jobs: int | None = None,
) -> Solution:
    """Return Sinkhorn distances, the costs of entropic transport plans; needs the extra ``exact`` (POT).

    Parameters
    ----------
    ground
        Coordinates ``(n_points, n_dimensions)``, or a `Graph`, on which distances are lengths of shortest paths.
    measures
        ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
    regularization
        Weight of the entropy as a share of the mean cost between points; all pairs of measures get the same weight.
        With a smaller weight, distances are closer to the exact EMD and take more iterations.
    cost
        Cost of moving one unit of mass, as in `exact_emd`.
    max_iterations
        Largest number of iterations for each pair.
    tol
        Largest marginal error of a plan: the sum of the absolute differences between the masses that the plan moves
        from (or to) each point and the masses of the measure. A `ConvergenceWarning` reports how many pairs do not
        converge to ``tol``; ``sinkhorn.solve`` returns the convergence of each pair.
    n_jobs
        Number of threads; None for all cores. The result does not depend on the number of threads.

    Returns
    -------
    ndarray of shape (n_measures, n_measures)
        Symmetric distances, zero on the diagonal; not smaller than the exact EMD, except for an error that shrinks with
        ``tol``.

    Examples
    --------
    >>> from heatmover.transport.baselines import sinkhorn
    >>> sinkhorn([[0.0], [1.0], [3.0]], [[1, 0, 0], [0, 0.5, 0.5]]).round(2)
    array([[0., 2.],
           [2., 0.]])
    """
    ot = import_extra("ot", package="POT", extra="exact")
    share = check_number("regularization", regularization, above=0)
    limit = check_integer("max_iterations", max_iterations, minimum=1)
    accuracy = check_number("tol", tol, above=0, at_most=2)
    masses = check_masses(ground, measures)
    costs = ground_costs(ground, cost)
    weight = share * _typical(masses, costs)

    def solve(a: Float64, b: Float64, matrix: Float64) -> tuple[float, float, int]:
        if not matrix.any():
            return 0.0, 0.0, 0
        # POT checks the L2 norm of the marginal error. The L1 norm is at most the square root of the length times the
        # L2 norm.
        stop = accuracy / np.sqrt(max(len(a), len(b)))
        plan, n_iterations = _plan(ot, a, b, matrix, max(weight, np.finfo(float).tiny), limit, stop)
        error = max(np.abs(plan.sum(axis=1) - a).sum(), np.abs(plan.sum(axis=0) - b).sum())
        return float((plan * matrix).sum()), float(error), n_iterations

    n_measures = masses.shape[0]
    pairs = combinations(range(n_measures), 2)
    solved = for_pairs(masses, pairs, costs, solve, n_threads=check_threads(n_jobs))
    values, errors, iterations = zip(*solved, strict=True) if solved else ((), (), ())
    counts = symmetric(iterations, n_measures).astype(np.int64)
    return Solution(symmetric(values, n_measures), symmetric(errors, n_measures), counts, accuracy)


def _plan(
    ot: Any, a: Float64, b: Float64, matrix: Float64, weight: float, limit: int, stop: float
) -> tuple[Float64, int]:
    """Return the plan and the number of iterations; if plain numbers under- or overflow, compute with logarithms."""
    options = {"numItermax": limit, "stopThr": stop, "log": True, "warn": False}
    with np.errstate(all="ignore"):
        plan, log = ot.sinkhorn(a, b, matrix, weight, method="sinkhorn", **options)
        # If numbers under- or overflow, POT goes back to the last valid iteration and stops early, without convergence.
        failed = not log["err"] or (log["err"][-1] > stop and log["niter"] < limit - CHECK_EVERY)
        if failed or not np.isfinite(plan).all():
            plan, log = ot.sinkhorn(a, b, matrix, weight, method="sinkhorn_log", **options)
    return plan, int(log["niter"]) + 1


def _typical(masses: sp.csr_array, costs: GroundCosts) -> float:
    """Return the mean cost between some of the points that have mass."""
    points = np.unique(masses.indices)
    some = points[np.linspace(0, len(points) - 1, min(len(points), POINTS_SAMPLED)).astype(np.intp)]
    return float(costs(some, some).sum() / max(len(some) * (len(some) - 1), 1))
