"""Solve exact optimal transport between pairs of measures with POT; for `transport`, `datasets`, `atlas`; no files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import in_threads
from heatmover._base.types import Float64, IntArray
from heatmover._base.validation import check_matrix, import_extra
from heatmover.errors import HeatmoverError, InvalidInputError
from heatmover.measures import check_measures

# Function that returns the costs (n_rows, n_columns) between points from their indices.
GroundCosts: TypeAlias = Callable[[IntArray, IntArray], Float64]
T = TypeVar("T")

# Largest number of pivots; POT's default is 100,000. The limit only guarantees that a solve ends.
MAX_PIVOTS = 100_000_000
# Sparse costs raise an error with this advice, because entries that are not stored would become zero.
ALL_COSTS = "give the cost of every pair, or a Graph, for shortest-path costs"


def masses_on_supports(measures: Any, *, n_points: int | None, normalize: bool = False) -> sp.csr_array:
    """Return measures as CSR rows ``(n_measures, n_points)`` of positive masses that sum to one, or raise an error."""
    masses = sp.csr_array(check_measures(measures, n_points=n_points, normalize=normalize), copy=True)
    masses.eliminate_zeros()  # points without mass are not part of a support
    return masses


def check_costs(name: str, values: Any, shape: tuple[int, int], sparse: str = ALL_COSTS) -> Float64:
    """Return costs between points; raise an error if the shape is wrong or a cost is negative."""
    costs = np.asarray(check_matrix(name, values, sparse=sparse), dtype=np.float64)
    if costs.shape != shape:
        raise InvalidInputError(f"costs of shape {shape}", f"shape {costs.shape}")
    if costs.min() < 0:
        raise InvalidInputError("non-negative costs", f"a smallest value of {costs.min():g}")
    return costs


def check_paths(lengths: Float64, advice: str) -> Float64:
    """Return lengths of shortest paths, or raise an error if two of the points are not connected."""
    if not np.isfinite(lengths).all():
        raise InvalidInputError(
            "measures on one connected component of the graph",
            "two measures that no path connects, so their distance is infinite",
            advice,
        )
    return lengths


def exact_distances(masses: sp.csr_array, costs: GroundCosts, *, n_threads: int) -> Float64:
    """Return the exact EMD between all pairs of rows, ``(n_measures, n_measures)``; needs the extra ``exact``.

    Only the costs of one pair per thread are in memory at a time.
    """
    pairs = list(combinations(range(masses.shape[0]), 2))
    return symmetric(exact_pairs(masses, pairs, costs, n_threads=n_threads), masses.shape[0])


def exact_pairs(
    masses: sp.csr_array, pairs: Iterable[tuple[int, int]], costs: GroundCosts, *, n_threads: int
) -> Float64:
    """Return the exact EMD of pairs of rows, ``(n_pairs,)``; needs the extra ``exact``.

    Examples
    --------
    >>> places = np.array([0.0, 1.0, 3.0])
    >>> exact_pairs(sp.csr_array(np.eye(3)), [(0, 2)], lambda a, b: abs(places[a][:, None] - places[b]), n_threads=1)
    array([3.])
    """
    ot = import_extra("ot", package="POT", extra="exact")

    def solve(a: Float64, b: Float64, matrix: Float64) -> tuple[float, str | None]:
        # Masses sum to one, so POT's check is not needed. The check would import numpy.testing, which two threads must
        # not do at once in older Python versions.
        value, log = ot.emd2(a, b, matrix, numItermax=MAX_PIVOTS, log=True, check_marginals=False)
        return float(value), log["warning"]

    pair_list = list(pairs)
    solutions = for_pairs(masses, pair_list, costs, solve, n_threads=n_threads)
    for (i, j), (_, problem) in zip(pair_list, solutions, strict=True):
        if problem is not None:
            raise HeatmoverError(
                f"Expected an optimal transport plan between measures {i} and {j}, "
                f"found that POT stopped early: {problem.rstrip('.')}."
            )
    return np.array([value for value, _ in solutions])


def for_pairs(
    masses: sp.csr_array,
    pairs: Iterable[tuple[int, int]],
    costs: GroundCosts,
    solve: Callable[[Float64, Float64, Float64], T],
    *,
    n_threads: int,
) -> list[T]:
    """Return ``solve(masses of i, masses of j, costs between their points)`` for every pair (i, j), in order."""
    supports = np.split(masses.indices, masses.indptr[1:-1])
    weights = np.split(masses.data, masses.indptr[1:-1])

    def solve_pair(pair: tuple[int, int]) -> T:
        i, j = pair
        return solve(weights[i], weights[j], costs(supports[i], supports[j]))

    # POT releases the interpreter's lock while it solves. The speedup by a second thread was 2.0 on measures of 600
    # points and 1.6 on measures of 100 points.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # POT also reports its warnings in the log
        return in_threads(solve_pair, pairs, n_threads)


def symmetric(values: npt.ArrayLike, size: int) -> Float64:
    """Return the symmetric matrix ``(size, size)`` with ``values`` row by row in its upper triangle; zero diagonal."""
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(size, 1)
    matrix[rows, columns] = matrix[columns, rows] = values
    return matrix
