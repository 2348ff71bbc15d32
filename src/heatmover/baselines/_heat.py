"""The heat kernel of a graph: positive, exact in its smallest entries, and applied rather than stored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._typing import Float64
from heatmover._words import counted
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.errors import InvalidInputError

__all__ = ["HeatKernel", "Rows", "Support", "Walk", "check_components", "enough_steps"]

Rows = npt.NDArray[np.int64]

# The product makes 9.4 GFlop/s per core in float64 at 10,000 points and 32 columns against 6.7 at 16 and 9.5 at 64
# (medians of 25 interleaved runs on a busy machine); of equals the narrower one starts from fewer places at once.
WIDTH = 32

# Heat starts at 2^900 instead of one, and an entry is trusted down to 2^-900: what underflows on the way is then too
# little to matter. Smaller entries are computed again, column by column, with exponents of their own.
START = 2.0**900
LOG_START = 900 * np.log(2.0)
LEAST_TRUSTED = 2.0**-900

# Masses of two measures in one component may differ by rounding.
SAME_MASS = 1e-9


class Support(NamedTuple):
    """Where a measure has mass: rows of the walk, the masses, and the stationary law there; ``(n_support,)`` each."""

    rows: Rows
    masses: Float64
    stationary: Float64


@final
@dataclass(frozen=True, eq=False)
class Walk:
    """The walk on a graph, in an order of rows that keeps neighbours together.

    Attributes
    ----------
    indptr, indices, data
        CSR form of S, ``(n_points, n_points)``.
    order
        Point of each row, ``(n_points,)``.
    stationary
        Stationary law of the walk that starts anywhere, of each row, ``(n_points,)``.
    """

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    data: Float64
    order: Rows
    stationary: Float64

    @classmethod
    def from_operator(cls, operator: DiffusionOperator) -> Walk:
        """Take S as the operator stores it, neighbours close together."""
        degree = operator.degree
        return cls(*operator.structure, operator.symmetric.data, operator.order, degree / degree.sum())

    @property
    def n_points(self) -> int:
        """Number of points."""
        return int(self.order.size)

    def supports(self, masses: sp.csr_array) -> list[Support]:
        """Return the supports of measures ``(n_measures, n_points)`` that are in the graph's order of points."""
        rows = sp.csr_array(masses)[:, self.order]
        rows.sort_indices()
        cuts = rows.indptr[1:-1]
        parts = zip(np.split(rows.indices.astype(np.int64), cuts), np.split(rows.data, cuts), strict=True)
        return [Support(where, np.asarray(mass, dtype=np.float64), self.stationary[where]) for where, mass in parts]


@final
@dataclass(frozen=True, eq=False)
class HeatKernel:
    """S^steps by as many sparse products: nothing is subtracted, so that tiny entries are as exact as large ones.

    The kernel between the points x and y is that divided by the roots of their stationary laws; with this law as
    the area of each point it is the density of a walk's two ends.
    """

    walk: Walk
    steps: int

    def apply(self, block: Float64, sources: Rows, targets: Rows) -> Float64:
        """Return S^steps applied to a block, in the rows ``targets``.

        Parameters
        ----------
        block
            ``(n_points, width)``, zero outside the rows ``sources``; it is used up.
        sources, targets
            Rows in any order.

        Returns
        -------
        ndarray
            ``(n_targets, width)``.
        """
        from heatmover._compiled.heat import diffuse

        walk = self.walk
        result = diffuse(
            walk.indptr, walk.indices, walk.data, block, np.zeros_like(block), self.steps, self._hops(sources, targets)
        )
        return np.asarray(result[targets])

    def log_columns(self, sources: Rows, targets: Rows, pool: Executor) -> Float64:
        """Return the logarithm of S^steps from each source to each target, ``(n_sources, n_targets)``."""
        result = np.empty((sources.size, targets.size))

        def fill(part: slice) -> None:
            result[part] = self._log_columns(sources[part], targets)

        list(pool.map(fill, [slice(at, at + WIDTH) for at in range(0, sources.size, WIDTH)]))
        return result

    def _log_columns(self, sources: Rows, targets: Rows) -> Float64:
        block = np.zeros((self.walk.n_points, sources.size))
        block[sources, np.arange(sources.size)] = START
        heat = np.ascontiguousarray(self.apply(block, sources, targets).T)
        faint = heat < LEAST_TRUSTED
        with np.errstate(divide="ignore"):
            logs = np.log(heat) - LOG_START
        for column in np.flatnonzero(faint.any(axis=1)):
            logs[column, faint[column]] = self._log_wide(sources[column], targets[faint[column]])
        return np.asarray(logs)

    def _log_wide(self, source: int, targets: Rows) -> Float64:
        from heatmover._compiled.heat import diffuse_wide

        walk, result = self.walk, np.empty(self.walk.n_points)
        hops = self._hops(np.array([source]), targets)
        if (hops[0, targets] > self.steps).all():  # nothing underflowed: there is no way
            return np.full(targets.size, -np.inf)
        diffuse_wide(walk.indptr, walk.indices, walk.data, source, self.steps, hops, result)
        result[hops[0] > self.steps] = -np.inf
        return np.asarray(result[targets])

    def _hops(self, sources: Rows, targets: Rows) -> npt.NDArray[np.int64]:
        from heatmover._compiled.heat import hops_from

        hops = np.empty((2, self.walk.n_points), dtype=np.int64)
        hops_from(self.walk.indptr, self.walk.indices, sources, self.steps, hops[0])
        hops_from(self.walk.indptr, self.walk.indices, targets, self.steps, hops[1])
        return hops


def check_components(operator: DiffusionOperator, masses: sp.csr_array) -> None:
    """Raise unless all measures have the same mass in each component of the graph: heat does not cross over."""
    if operator.n_components == 1:
        return
    from scipy.spatial.distance import pdist

    apart = pdist(operator.component_masses(masses), "chebyshev") > SAME_MASS
    if apart.any():
        raise InvalidInputError(
            "measures with equal mass in each connected component of the graph",
            f"{counted(operator.n_components, 'component')} and {int(apart.sum())} of {counted(apart.size, 'pair')} "
            f"of measures that differ",
            "see graph.diagnose(); use more neighbours, or compare the components one by one",
        )


def enough_steps(walk: Walk, supports: list[Support], steps: int | None, *, fewest: int, with_self: bool) -> int:
    """Return ``steps``, or raise if there are pairs of measures whose points cannot all reach each other in them.

    Parameters
    ----------
    walk
        The walk.
    supports
        Of all measures.
    steps
        None: the smallest number from ``fewest`` on that is enough.
    fewest
        See ``steps``.
    with_self
        Whether a measure must reach itself, which a walk without loops may not in an odd number of steps.
    """
    wanted = fewest if steps is None else steps
    missing: dict[int, int] = {}
    for count, number in _missing_pairs(walk, supports, wanted, with_self=with_self):
        missing[count] = number
        if number == 0:
            break
    if number == 0 and (steps is None or count == steps):
        return count
    raise InvalidInputError(
        "enough steps for every point of a measure to reach some point of every other measure",
        f"{counted(missing[wanted], 'pair')} of measures that cannot in {counted(wanted, 'step')}",
        f"use steps={count}, or 'auto'" if number == 0 else "no number of steps would do; give the graph loops",
    )


def _missing_pairs(walk: Walk, supports: list[Support], fewest: int, *, with_self: bool) -> Iterator[tuple[int, int]]:
    """Yield numbers of steps from ``fewest`` on, each with how many pairs it is too small for, while that changes."""
    from heatmover._compiled.heat import spread

    # Measures are bits, 64 to a word: a step of all of them costs less than that of a single column of heat.
    reached = np.zeros((walk.n_points, -(-len(supports) // 64)), dtype=np.uint64)
    for number, support in enumerate(supports):
        reached[support.rows, number // 64] |= np.uint64(1 << number % 64)
    earlier, count, still = np.zeros_like(reached), 0, 0
    # What can be reached in k steps can in k + 2: no change in two steps is no change ever.
    while still < 2 or count <= fewest:
        changed = spread(walk.indptr, walk.indices, reached, earlier)
        reached, earlier, count = earlier, reached, count + 1
        still = 0 if changed else still + 1
        if still >= 2 and count < fewest:
            count += (fewest - count) // 2 * 2
        if count >= fewest:
            yield count, _count_missing(reached, supports, with_self=with_self)


def _count_missing(reached: npt.NDArray[np.uint64], supports: list[Support], *, with_self: bool) -> int:
    """Count the pairs of which one has a point that the other does not reach."""
    words = np.stack([np.bitwise_and.reduce(reached[support.rows], axis=0) for support in supports])
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little")[:, : len(supports)]
    both = (bits & bits.T).astype(bool)
    return int(np.triu(~both, 0 if with_self else 1).sum())
