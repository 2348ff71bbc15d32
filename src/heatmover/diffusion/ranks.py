"""Estimate ranks of powers from the density of states; for `diffusion.interpolative`, `embedding.preparation`.

It computes on arrays, in threads, and touches no files.

The ranks of all dyadic powers come from the density of states. The number of eigenvalues in an interval is the trace of
a step function of S. A Chebyshev series, damped by the Jackson kernel against ringing, approximates the step. Products
with vectors w of random signs estimate the trace: E[w' f(S) w] = tr f(S). One recurrence yields the moments tr T_j(S),
which serve all intervals. The eigenvectors for eigenvalue 1, one per component, are known; they are counted exactly and
excluded from the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._base.types import Float64
from heatmover.diffusion.operator import Block, DiffusionOperator, Recurrence, threshold

# Number of random vectors. The standard error of a count c is at most sqrt(2 c / PROBES), a tenth of a rank of 12.
PROBES = 16
# Number of smoothing widths (see `resolution`) that the angle of the coarsest threshold should span, and maximal number
# of products with S for this purpose.
WIDTHS = 4
MOST_PRODUCTS = 256


@final
@dataclass(frozen=True, eq=False)
class DensityOfStates:
    """Density of the eigenvalues of S.

    Attributes
    ----------
    moments
        Estimates of tr T_j(S) from each random vector, without the known eigenvectors, ``(n_moments, n_probes)``.
    lowest
        Lower end of the interval that is mapped onto [-1, 1].
    n_points, n_components
        Number of points and of components of the graph; eigenvalue 1 has one eigenvector per component.
    """

    moments: Float64
    lowest: float
    n_points: int
    n_components: int

    @property
    def resolution(self) -> float:
        """Standard width of the smoothing, measured in the angle of an eigenvalue; see `angle`."""
        return float(np.pi / (len(self.moments) + 1))

    def angle(self, eigenvalue: float) -> float:
        """Return the angle whose cosine is the eigenvalue, mapped from [lowest, 1] to [-1, 1]; 0 for eigenvalue 1."""
        mapped = (2 * eigenvalue - 1 - self.lowest) / (1 - self.lowest)
        return float(np.arccos(np.clip(mapped, -1, 1)))

    def rank(self, scale: int, delta: float) -> int:
        """Return the number of eigenvalues with ``|value| ** (2**scale) >= delta``, at least one per component.

        The threshold is blurred by `resolution`, and the number has the standard error of `standard_error`.
        """
        count = self.n_components + float(self._counts(threshold(scale, delta)).mean())
        return int(np.clip(np.rint(count), self.n_components, self.n_points))

    def standard_error(self, scale: int, delta: float) -> float:
        """Return the standard error of `rank`, from the spread between the random vectors."""
        counts = self._counts(threshold(scale, delta))
        return float(counts.std(ddof=1) / np.sqrt(counts.size))

    def _counts(self, value: float) -> Float64:
        """Estimate the number of eigenvalues of absolute value ``value`` or more, from each random vector."""
        above = self._below_angle(self.angle(value))
        if -value <= self.lowest:
            return above
        return above + self._below_angle(np.pi) - self._below_angle(self.angle(-value))

    def _below_angle(self, angle: float) -> Float64:
        """Integrate the damped series of the density from angle 0 to ``angle``, ``(n_probes,)``."""
        count = len(self.moments)
        j = np.arange(count)
        # The Jackson kernel is the positive damping with the smallest width.
        turn = np.pi / (count + 1)
        damping = ((count - j + 1) * np.cos(turn * j) + np.sin(turn * j) / np.tan(turn)) / (count + 1)
        weights = np.full(count, angle)
        weights[1:] = 2 * np.sin(j[1:] * angle) / j[1:]
        return np.asarray((damping * weights) @ self.moments / np.pi)


def density_of_states(
    operator: DiffusionOperator, rng: np.random.Generator, *, coarsest: int, delta: float, n_threads: int = 1
) -> DensityOfStates:
    """Estimate the density of states with a resolution that suffices for the rank at scale ``coarsest``.

    Parameters
    ----------
    operator
        The diffusion operator.
    rng
        Random generator of the signs.
    coarsest, delta
        Coarsest scale and threshold. The eigenvalue whose power at this scale equals ``delta`` should lie four
        smoothing widths from the end of the spectrum. At most 256 products are used, which suffice up to 2^15 steps at
        ``delta=1e-4``.
    n_threads
        Number of threads.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((20, 20)))
    >>> states = density_of_states(operator, np.random.default_rng(0), coarsest=8, delta=1e-3)
    >>> states.rank(30, 1e-3)  # after infinite time only the stationary distribution is left
    1
    """
    empty = DensityOfStates(np.zeros((1, 1)), operator.lowest, operator.n_points, operator.n_components)
    wanted = WIDTHS * np.pi / max(empty.angle(threshold(coarsest, delta)), 1e-9)
    products = int(np.clip(np.ceil(wanted / 2), 8, MOST_PRODUCTS))
    signs = rng.choice(np.array([-1.0, 1.0]), size=(operator.n_points, PROBES))
    operator.remove_top(signs)
    recurrence = Recurrence(operator, np.float32, n_threads=n_threads)
    moments = _moments(recurrence, signs.astype(np.float32), products)
    return DensityOfStates(moments, operator.lowest, operator.n_points, operator.n_components)


def _moments(recurrence: Recurrence, start: Block, products: int) -> Float64:
    """Return w' T_j(S) w for each column w, ``(2 * products, width)``; a product with S yields the values for two j."""
    moments = np.empty((2 * products, start.shape[1]))
    moments[0] = _dot(start, start)
    previous = start
    for degree, (current, _) in enumerate(zip(recurrence.terms(start), range(products), strict=False), start=1):
        moments[2 * degree - 1] = 2 * _dot(current, previous)
        if degree < products:
            moments[2 * degree] = 2 * _dot(current, current)
        previous = current
    moments[3::2] -= moments[1] / 2
    moments[1] /= 2
    moments[2::2] -= moments[0]
    return moments


def _dot(one: Block, other: Block) -> Float64:
    return np.asarray(np.einsum("ij,ij->j", one, other, dtype=np.float64))
