"""Kernels on the circle, the flat torus and the sphere by series, and exact sums of L1 norms made from them.

A kernel that commutes with rotations is a list of multipliers: m_j for the waves cos(j x), sin(j x) of the circle of
radius 1, products of them on the torus, m_l for the spherical harmonics of degree l. Heat for time t has
m_j = exp(-t j^2) and m_l = exp(-t l (l + 1)).

The paper's walk has one too. Its kernel is exp(-|x - y|^2 / eps) with the distance in space, and on the unit circle and
the unit sphere |x - y|^2 = 2 - 2 cos(angle), so that it is the law of von Mises and Fisher with concentration
2 / eps. Its multipliers are ratios of Bessel functions, about exp(-j^2 eps / 4): one step is heat for time eps / 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from manifolds import fibonacci_sphere
from scipy.special import erf, erfc, ive

import heatmover as hm

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
# Multipliers of all frequencies up to that of the space, at a time.
Family = Callable[[float], Floats]

# Atoms a spacing s apart have parted by the time t with sqrt(t) = s / 8: erf(s / (4 sqrt t)) = erf(2) = 0.995.
PARTED = 8.0
# Quadrature points per spacing along each axis: the last wave is exp(-(12 pi / 8)^2 / 2) = 2e-5 at half that time,
# which is the finest one that any term needs. On the ring three times as many cost little: with 12, the increments of
# the last terms are 1% too large.
FINE = {1: 36, 2: 12}


def heat_levels_on_line(distances: npt.ArrayLike, time: float) -> Floats:
    """Return ||h_t(x, .) - h_t(y, .)||_1 on the unbounded line: 2 erf(d / (4 sqrt t))."""
    return 2 * erf(np.asarray(distances) / (4 * np.sqrt(time)))


def circle_levels(multipliers: Floats, distances: npt.ArrayLike) -> Floats:
    """Return ||a_t(x, .) - a_t(y, .)||_1 on the circle, for a kernel that falls with the distance.

    The half of the circle nearer to x holds the positive part. Its indicator, -1 on the other half, is a square wave,
    (4 / pi) sum of sin(j x) / j over odd j; the kernel multiplies each wave.
    """
    j = np.arange(1, len(multipliers), 2)
    weights = multipliers[1::2] / j
    seen = int(np.searchsorted(-np.abs(weights), -1e-18)) or 1
    half = np.atleast_1d(np.asarray(distances, dtype=float)) / 2
    return np.array([8 / np.pi * (np.sin(x * j[:seen]) @ weights[:seen]) for x in half])


def heat_levels(time: float, distances: npt.ArrayLike) -> Floats:
    """Return the same for heat at any time: by images where the series is long."""
    if time > 2.0**-6:
        return circle_levels(np.exp(-time * np.arange(64.0) ** 2), distances)
    d = np.asarray(distances, dtype=float)
    return 2 * (erf(d / (4 * np.sqrt(time))) - erfc((2 * np.pi - d) / (4 * np.sqrt(time))))


def poisson_levels(time: float, distances: npt.ArrayLike) -> Floats:
    """Return the same for the Poisson kernel, m_j = exp(-t |j|), whose series has a sum."""
    return 8 / np.pi / 2 * np.arctan(np.sin(np.asarray(distances) / 2) / np.sinh(time))


def sphere_levels(multipliers: Floats, angles: npt.ArrayLike) -> Floats:
    """Return the same on the sphere: the nearer half is a hemisphere, whose indicator has a Legendre series."""
    size = len(multipliers)
    at_zero = np.zeros(size + 1)
    at_zero[0] = 1
    for degree in range(2, size + 1, 2):
        at_zero[degree] = -at_zero[degree - 2] * (degree - 1) / degree
    coefficients = np.zeros(size)
    coefficients[1:] = (at_zero[:-2] - at_zero[2:]) / 2
    return 4 * np.polynomial.legendre.legval(np.sin(np.asarray(angles) / 2), coefficients * multipliers)


def log_bessel_ratio(orders: Floats, first: float, argument: float) -> Floats:
    """Return log(I_order(argument) / I_first(argument)), also where the ratio underflows.

    There by Debye's expansion, whose first neglected term is below 1e-4 from an argument of 8 on.
    """

    def debye(order: Floats) -> Floats:
        root = np.sqrt(order**2 + argument**2)
        p = (order / root) ** 2
        correction = (3 - 5 * p) / (24 * root) + (81 - 462 * p + 385 * p**2) / (1152 * root**2)
        return root + order * np.log(argument / (order + root)) - np.log(root) / 2 + np.log1p(correction)

    scaled, ground = np.zeros_like(orders), ive(first, argument)
    low = orders < 2000  # beyond, the expansion is as exact as float64 and quicker
    scaled[low] = ive(orders[low], argument)
    safe = scaled > 1e-280
    return np.where(safe, np.log(np.where(safe, scaled, 1.0) / ground), debye(orders) - debye(np.array(first)))


@dataclass(frozen=True)
class Torus:
    """The flat torus of one or two circles of radius 1, with side^dimension atoms in a grid."""

    dimension: int
    side: int

    @property
    def name(self) -> str:
        return ("ring", "torus")[self.dimension - 1]

    @property
    def n(self) -> int:
        return self.side**self.dimension

    @property
    def terms(self) -> int:
        """Number of terms: at the time 2^-k of the last one the atoms have parted."""
        return int(np.ceil(2 * np.log2(PARTED * self.side / (2 * np.pi)))) + 1

    @property
    def coordinates(self) -> Floats:
        return 2 * np.pi * np.indices((self.side,) * self.dimension).reshape(self.dimension, -1).T / self.side

    def frequencies(self) -> Floats:
        return np.arange(FINE[self.dimension] * self.side // 2 + 1, dtype=float)

    def heat(self, time: float) -> Floats:
        return np.exp(-time * self.frequencies() ** 2)

    def walk(self, epsilon: float) -> Family:
        """Return P_eps to the power 4 t / eps, by the time t."""
        logs = log_bessel_ratio(self.frequencies(), 0.0, 2 / epsilon)
        return lambda time: np.exp(4 * time / epsilon * logs)

    def masses(self, rows: Floats, families: Sequence[Floats], level: int) -> list[Floats]:
        """Return the masses in the cells of a fine grid after the kernels, (n_measures, n_cells) for each.

        The grid is as fine as the time 2^-level asks for.
        """
        per_atom = max(4, FINE[self.dimension] >> max(0, (self.terms - level) // 2 - 1))
        fine = per_atom * self.side
        grid = np.zeros((len(rows), *(fine,) * self.dimension))
        grid[(slice(None), *(slice(None, None, per_atom),) * self.dimension)] = rows.reshape(
            len(rows), *(self.side,) * self.dimension
        )
        axes = tuple(range(1, self.dimension + 1))
        spectrum = np.fft.rfftn(grid, axes=axes)
        every = np.minimum(np.arange(fine), fine - np.arange(fine))
        result = []
        for family in families:
            last = family[: fine // 2 + 1]
            product = last if self.dimension == 1 else np.outer(family[every], last)
            result.append(np.fft.irfftn(spectrum * product, (fine,) * self.dimension, axes=axes).reshape(len(rows), -1))
        return result

    @cached_property
    def _offsets(self) -> Indices:
        """Index of the offset of every pair of atoms, signs and order of axes left out."""
        steps = np.indices((self.side,) * self.dimension).reshape(self.dimension, -1)
        away = np.abs(steps[:, :, None] - steps[:, None, :])
        return np.sort(np.minimum(away, self.side - away), axis=0)

    def levels(self, multipliers: Floats, level: int) -> Floats:
        """Return ||a_t(x, .) - a_t(y, .)||_1 of all pairs of atoms, (n, n), at the time 2^-level."""
        if self.dimension == 1:
            table = circle_levels(multipliers, 2 * np.pi * np.arange(self.side // 2 + 1) / self.side)
            return table[self._offsets[0]]
        half = self.side // 2 + 1
        places = [(a, b) for a in range(half) for b in range(a, half)]
        rows = np.zeros((len(places) + 1, self.n))
        for row, (a, b) in zip(rows[1:], places, strict=True):
            row[a * self.side + b] = 1
        rows[0, 0] = 1
        (found,) = self.masses(rows, [multipliers], level)
        table = np.zeros((half, half))
        for (a, b), row in zip(places, found[1:], strict=True):
            table[a, b] = np.abs(row - found[0]).sum()
        return table[self._offsets[0], self._offsets[1]]


@dataclass(frozen=True)
class Sphere:
    """The unit sphere with n atoms on Fibonacci's spiral."""

    n: int
    name: str = "sphere"

    @property
    def terms(self) -> int:
        """Number of terms: at the time 2^-k of the last one the atoms have parted."""
        return int(np.ceil(2 * np.log2(PARTED / np.sqrt(4 * np.pi / self.n)))) + 1

    @cached_property
    def coordinates(self) -> Floats:
        return fibonacci_sphere(self.n)

    def frequencies(self) -> Floats:
        # The finest time, half that of the last term, leaves exp(-40) of the last harmonic.
        return np.arange(int(np.sqrt(40 * 2.0**self.terms)), dtype=float)

    def heat(self, time: float) -> Floats:
        degrees = self.frequencies()
        return np.exp(-time * degrees * (degrees + 1))

    def walk(self, epsilon: float) -> Family:
        """Return P_eps to the power 4 t / eps, by the time t."""
        logs = log_bessel_ratio(self.frequencies() + 0.5, 0.5, 2 / epsilon)
        return lambda time: np.exp(4 * time / epsilon * logs)

    def masses(self, rows: Floats, families: Sequence[Floats], level: int) -> list[Floats]:
        """Return the masses at finer points of a spiral after the kernels, (n_measures, n_cells) for each."""
        # Three quarters of the standard deviation of heat apart, and never fewer than 2,000.
        count = max(2000, int(4 * np.pi / (0.75**2 * 2 * 2.0**-level)))
        places = fibonacci_sphere(count)
        grid = np.linspace(0, np.pi, 20_001)
        tables = []
        for family in families:
            degrees = np.arange(len(family))
            kernel = np.polynomial.legendre.legval(np.cos(grid), (2 * degrees + 1) / (4 * np.pi) * family)
            tables.append(kernel * 4 * np.pi / count)
        used = np.flatnonzero(rows.any(axis=0))
        result = [np.empty((len(rows), count)) for _ in families]
        for start in range(0, count, 4000):
            part = slice(start, start + 4000)
            angles = np.arccos(np.clip(self.coordinates[used] @ places[part].T, -1, 1))
            for table, masses in zip(tables, result, strict=True):
                masses[:, part] = rows[:, used] @ np.interp(angles, grid, table)
        return result

    def levels(self, multipliers: Floats, level: int) -> Floats:  # noqa: ARG002 - the series needs no grid
        """Return ||a_t(x, .) - a_t(y, .)||_1 of all pairs of atoms, (n, n)."""
        grid = np.linspace(0, np.pi, 20_001)
        angles = np.arccos(np.clip(self.coordinates @ self.coordinates.T, -1, 1))
        np.fill_diagonal(angles, 0)
        return np.interp(angles, grid, sphere_levels(multipliers, grid))


Space = Torus | Sphere


@dataclass(frozen=True)
class Terms:
    """The L1 norms of one norm's sum for all pairs of measures.

    Attributes
    ----------
    first
        ||A_1 g||_1, or zero for "levels", (n_measures, n_measures).
    scales
        The norms that 2^(-k alpha) weighs, k = 0, 1, ..., (n_terms, n_measures, n_measures).
    """

    first: Floats
    scales: Floats

    def total(self, alpha: float, n_terms: int | None = None) -> Floats:
        """Return the sum of the first terms, or (None) of all: once the atoms have parted the last repeats for ever."""
        weights = 2.0 ** (-alpha * np.arange(len(self.scales)))
        if n_terms is None:
            weights[-1] /= 1 - 2.0**-alpha
        else:
            weights[n_terms:] = 0
        return self.first + np.tensordot(weights, self.scales, 1)


def norm_terms(space: Space, rows: Floats, family: Family, n_terms: int | None = None) -> dict[str, Terms]:
    """Return the terms of "levels" (Definition 1), "increments" (Eq. 9, dual norm 1) and "coarsest" (dual norm 2)."""
    levels, increments, coarsest = [], [], []
    for k in range(space.terms if n_terms is None else n_terms):
        now, finer, first = space.masses(rows, [family(2.0**-k), family(2.0 ** -(k + 1)), family(1.0)], k + 1)
        levels.append(hm.pairwise_distances(now))
        increments.append(hm.pairwise_distances(finer - now))
        coarsest.append(hm.pairwise_distances(now - first))
    return {
        "levels": Terms(np.zeros_like(levels[0]), np.array(levels)),
        "increments": Terms(levels[0], np.array(increments)),
        "coarsest": Terms(levels[0], np.array(coarsest)),
    }


def ground_distances(space: Space, family: Family) -> Terms:
    """Return the terms of D_alpha between all atoms."""
    scales = np.array([space.levels(family(2.0**-k), k) for k in range(space.terms)])
    return Terms(np.zeros_like(scales[0]), scales)


def heat_exponent(distances: npt.ArrayLike, times: Floats, weights: Floats) -> Floats:
    """Return d log W / d log d of W(d) = sum_k weights_k 2 erf(d / (4 sqrt times_k)), heat on the unbounded line.

    It is the mean over scales, each counted by what it adds to W, of z erf'(z) / erf(z) with z = d / (4 sqrt t): 1 on
    scales much coarser than the distance, 0 on scales much finer. So it lies between 0 and 1, whatever the weights.
    """
    z = np.atleast_1d(distances)[:, None] / (4 * np.sqrt(times))
    return np.asarray((2 / np.sqrt(np.pi) * z * np.exp(-(z**2))) @ weights / (erf(z) @ weights))
