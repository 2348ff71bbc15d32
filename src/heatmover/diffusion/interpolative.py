"""Compute coarse powers of the operator on nested skeletons (Algorithm 4); only `embedding.preparation` calls it.

Without the known top eigenvectors, S^s is close to C' A C. The matrix C interpolates the values at all points from a
few points, the skeleton, and A is the power between the points of the skeleton. The square C' (A C C' A) C has a
smaller rank, so a subset of the skeleton suffices. This step is repeated from scale to scale. Only the product that
shortens C has a cost that depends on the size of the graph. (The recursion printed in the paper omits C C'.)

Squares are computed in coordinates in which they are diagonal: C = P^-1 Q' with Q orthonormal and A = P' H P with H
diagonal, both computed from a sketch of S^s by Rayleigh-Ritz. In the basis of Q and its complement

    S^s = [[H + D, R'], [R, F]],

and only H is used. At the first scale, test vectors yield bounds on the other blocks: d = ||D||, e = ||D H||, r =
||R||, w = ||R H|| and f = ||F||. With h = ||H||, the bounds on the blocks of the square are

    d: 2 e + d^2 + r^2                r: w + r (d + f)             f: f^2 + r^2
    e: h (2 h e + d e + r w)          w: h (h w + r e + f w)

If a graph has an eigenvalue near 1, a single bound on the whole error would double at every scale. Here only e doubles:
it starts at the size of rounding errors, and each squaring adds r w, an error of second order.

`interpolative_factors` uses as many points as a given tolerance requires. `nested_skeletons` uses as many points as the
paper prescribes, R_delta(S^(2^k)), because the paper compares densities at the points of the skeletons. These skeletons
also span the top eigenvectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64
from heatmover.diffusion.lowrank import (
    COARSEST_FACTOR,
    Factor,
    deflated_power,
    spectral_norm,
    spectral_norm_from_sketch,
)
from heatmover.diffusion.operator import DiffusionOperator, rounding
from heatmover.diffusion.ranks import DensityOfStates

EPSILON = float(np.finfo(np.float64).eps)

# Entries of H below tol / CUT are dropped at every scale; the other half of tol is reserved for the error of the
# sketch.
CUT = 2.0
# The sketch must contain all singular values above tol / FINEST, because the bound overstates missing singular values
# severalfold. The number of these values must be at most the share FILLED of the columns of the sketch.
FINEST = 50.0
FILLED = 0.9
# Maximal number of passes of the sketch through the operator. One pass is enough unless parts of a graph are nearly
# disconnected.
PASSES = 3
# The paper's gamma: "in practice we set gamma = n / 10".
BASIS_SHARE = 0.1
# Number of columns of a sketch in addition to the rank. The probability of a poor sketch falls like exp(-columns)
# (Halko, Martinsson and Tropp 2011, Corollary 10.9), and the paper uses eight.
OVERSAMPLING = 8
# Number of test vectors that measure the error. On powers of the operator of a swiss roll, the bound exceeded the error
# by a factor of 14 with 10 vectors, 6 with 16, 3 with 32 and 2 with 64.
TEST_ROWS = 32
# A skeleton of a prescribed size omits values of H smaller than this, because their pivots would be rounding errors.
REGULAR = 1e-10


def interpolative_factors(
    operator: DiffusionOperator,
    first: int,
    rank: int,
    *,
    tol: float,
    rng: np.random.Generator,
    last: int = COARSEST_FACTOR,
    most: int = 2_000,
    n_threads: int = 1,
) -> list[Factor] | None:
    """Return S^(2^k) for k from ``first`` to ``last``, interpolated from nested skeletons, with errors within ``tol``.

    Parameters
    ----------
    operator
        Diffusion operator in float64.
    first, last
        First and last coarse scale.
    rank
        Guess of the number of eigenvalues that exceed ``tol / 30`` when raised to the power ``2**first``. The sketch
        starts with about 25% more columns than this number and grows until it contains the rank.
    tol
        Requested bound on the error at every scale, in the spectral norm; the bound fails with a probability of about
        1e-10.
    rng
        Random generator for the sketch and the test vectors.
    most
        Largest number of columns of the sketch.
    n_threads
        Number of threads.

    Returns
    -------
    list of Factor, or None
        None if ``most`` columns do not reach the bound, or if rounding errors exceed the bound. The rows of a basis at
        the points of its skeleton form the identity, and each skeleton is a subset of the previous one.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((40,)))
    >>> factors = interpolative_factors(operator, 4, 20, tol=1e-3, rng=np.random.default_rng(0), last=10)
    >>> [factor.rank for factor in factors]
    [12, 8, 6, 4, 3, 2, 1]
    """
    power = _Power(operator, first, tol / (32 * 2.0 ** (last - first)), n_threads)
    block = _sketch(power, int(1.25 * rank) + OVERSAMPLING, most, tol / FINEST, rng)
    if block is None:
        return None
    for _ in range(PASSES):
        basis, values = _ritz(power, block)
        errors = _measured(power, basis, values, rng)
        factors = _chain(basis, values, errors, range(first, last + 1), tol)
        if all(factor.bound <= tol for factor in factors):
            return factors
        block = power(basis)
    return None


def basis_threshold(n_points: int) -> float:
    """Return the paper's gamma, a tenth of the points: the basis is recomputed if the rank is below gamma."""
    return BASIS_SHARE * n_points


def prescribed_ranks(states: DensityOfStates, max_scale: int, delta: float) -> dict[int, int]:
    """Return R_delta(S^(2^k)), from the density of states, for all k from the first k >= 1 with a rank below gamma.

    Parameters
    ----------
    states
        Density of states of the operator.
    max_scale
        Largest scale K.
    delta
        The paper's threshold of the rank.

    Examples
    --------
    >>> from heatmover.diffusion.ranks import density_of_states
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((20, 20)))
    >>> states = density_of_states(operator, np.random.default_rng(0), coarsest=9, delta=1e-6)
    >>> list(prescribed_ranks(states, 9, 1e-6))
    [5, 6, 7, 8, 9]
    """
    gamma = basis_threshold(states.n_points)
    ranks = {scale: states.rank(scale, delta) for scale in range(1, max_scale + 1)}
    first = next((scale for scale, rank in ranks.items() if rank < gamma), max_scale + 1)
    return {scale: ranks[scale] for scale in range(first, max_scale + 1)}


def nested_skeletons(
    operator: DiffusionOperator, ranks: Mapping[int, int], *, tol: float, rng: np.random.Generator, n_threads: int = 1
) -> list[Factor]:
    """Return S^(2^k), without the top eigenvectors, interpolated from skeletons of prescribed size.

    Parameters
    ----------
    operator
        Diffusion operator in float64.
    ranks
        Number of points that represent S^(2^k) and its top eigenvectors, for consecutive scales k, finest first.
    tol
        Requested bound on the error at every scale. If the prescribed number of points leaves an error above half of
        ``tol``, more points are used. Rounding may exceed the requested bound; the factors contain the actual bounds.
    rng
        Random generator for the sketch and the test vectors.
    n_threads
        Number of threads.

    Returns
    -------
    list of Factor
        Factors with nested skeletons, the paper's centers phi_k.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((40,)))
    >>> factors = nested_skeletons(operator, {6: 7, 7: 5}, tol=1e-2, rng=np.random.default_rng(0))
    >>> [factor.rank for factor in factors], set(factors[1].skeleton) < set(factors[0].skeleton)
    ([7, 5], True)
    """
    scales = range(min(ranks), max(ranks) + 1)
    power = _Power(operator, scales.start, tol / (32 * 2.0 ** (len(scales) - 1)), n_threads)
    width = int(1.25 * ranks[scales.start]) + OVERSAMPLING
    block = _sketch(power, width, operator.n_points, tol / FINEST, rng)
    assert block is not None  # the sketch may grow to all points
    top = np.zeros((operator.n_components, operator.n_points))
    top[operator.component, np.arange(operator.n_points)] = operator.top
    factors: list[Factor] = []
    for _ in range(PASSES):
        basis, values = _ritz(power, block)
        errors = _measured(power, basis, values, rng)
        factors = _chain(basis, values, errors, scales, tol, ranks=ranks, top=top)
        if all(factor.bound <= tol for factor in factors):
            break
        block = power(basis)
    return factors


@dataclass(frozen=True, eq=False)
class _Power:
    """The power S^(2^scale) without the top eigenvectors, as a function of blocks."""

    operator: DiffusionOperator
    scale: int
    tol: float
    n_threads: int

    def __call__(self, block: Float64, *, halved: bool = False, tol: float = 0.0) -> Float64:
        """Apply the power, or its square root, to a block ``(n_points, width)``."""
        scale, tol = self.scale - int(halved), max(tol, self.tol, EPSILON)
        return np.asarray(deflated_power(self.operator, block, scale, tol, n_threads=self.n_threads))

    @property
    def error(self) -> float:
        return max(self.tol, EPSILON) + rounding(2**self.scale, np.float64)

    def gaussian(self, width: int, rng: np.random.Generator) -> Float64:
        """Draw Gaussian columns ``(n_points, width)``."""
        return rng.standard_normal((self.operator.n_points, width))


def _sketch(power: _Power, width: int, most: int, finest: float, rng: np.random.Generator) -> Float64 | None:
    """Apply the power to enough Gaussian columns to contain all of its singular values above ``finest``."""
    n_points = power.operator.n_points
    most = min(most, n_points)
    width = min(width, most)
    sketch = power(power.gaussian(width, rng), tol=finest / 4)
    while width < n_points:
        values = np.linalg.svd(np.linalg.qr(sketch, mode="r"), compute_uv=False) / np.sqrt(width)
        if np.count_nonzero(values > finest) <= FILLED * width:
            break
        if width == most:
            return None
        fresh = power.gaussian(min(2 * width, most) - width, rng)
        sketch = np.hstack([sketch, power(fresh, tol=finest / 4)])
        width = sketch.shape[1]
    return sketch


def _ritz(power: _Power, block: Float64) -> tuple[Float64, Float64]:
    """Return Ritz vectors ``(n_points, width)`` and values of the power within the span of a block, largest first."""
    basis = np.linalg.qr(block)[0]
    if power.scale == 0:
        core = basis.T @ power(basis)
    else:
        # Squaring the power of half the steps takes 0.7 of the polynomial degree of the whole power.
        half = power(basis, halved=True)
        core = half.T @ half
    values, turn = np.linalg.eigh((core + core.T) / 2)
    order = np.argsort(-np.abs(values))
    return basis @ turn[:, order], values[order]


@dataclass(frozen=True)
class _BlockBounds:
    """Bounds on the blocks other than H; the top of the module explains the names."""

    d: float
    e: float
    r: float
    w: float
    f: float

    @property
    def total(self) -> float:
        return _norm_of_blocks(self.d, self.r, self.f)

    def squared(self, h: float, noise: float) -> _BlockBounds:
        """Return the bounds for the square, where H has norm ``h`` and rounding adds ``noise``."""
        d, e, r, w, f = self.d, self.e, self.r, self.w, self.f
        return _BlockBounds(
            d=2 * e + d**2 + r**2 + noise,
            e=h * (2 * h * e + d * e + r * w) + h * noise,
            r=w + r * (d + f),
            w=h * (h * w + r * e + f * w),
            f=f**2 + r**2,
        )

    def cut(self, left: float) -> _BlockBounds:
        """Return the bounds after a block of H of norm ``left`` is moved to F."""
        outside = _norm_of_blocks(left + self.d, self.r, self.f)
        return _BlockBounds(self.d, self.e, float(np.hypot(self.d, self.r)), float(np.hypot(self.e, self.w)), outside)


def _norm_of_blocks(inside: float, across: float, outside: float) -> float:
    return float(np.linalg.norm([[inside, across], [across, outside]], 2))


def _measured(power: _Power, basis: Float64, values: Float64, rng: np.random.Generator) -> _BlockBounds:
    """Bound the blocks outside H in the basis of all Ritz vectors."""
    anywhere = power.gaussian(TEST_ROWS, rng)
    on_basis = basis @ (values[:, None] * rng.standard_normal((values.size, TEST_ROWS)))
    images = power(np.hstack([anywhere, on_basis]))
    outside = images - basis @ (basis.T @ images)
    missing, weighted = (spectral_norm_from_sketch(part.T) + power.error for part in np.hsplit(outside, 2))
    # H is a product of two half powers, each with the error of the power.
    inside = 2 * power.error + _noise(values.size)
    return _BlockBounds(inside, inside, missing, weighted, missing)


def _noise(rank: int) -> float:
    """Return the rounding error of a product of two matrices of norm 1 and size ``rank``."""
    return float((8 + np.sqrt(rank)) * EPSILON)


def _chain(
    basis: Float64,
    values: Float64,
    errors: _BlockBounds,
    scales: range,
    tol: float,
    *,
    ranks: Mapping[int, int] | None = None,
    top: Float64 | None = None,
) -> list[Factor]:
    """Square the power from scale to scale; at every scale a subset of the skeleton interpolates all other points.

    If given, ``ranks`` sets the smallest number of points of each skeleton. If ``top`` is given, skeletons also span
    its rows ``(n_components, n_points)``, which powers of S do not change.
    """
    # Coordinates P of the points from which a skeleton may be chosen, at first all points.
    coordinates, interpolation, skeleton = basis.T, None, np.arange(len(basis))
    known = coordinates[:0] if top is None else top
    factors = []
    for scale in scales:
        if scale > scales.start:
            h = float(np.abs(values).max(initial=0.0))
            errors, values = errors.squared(h, h**2 * _noise(values.size)), values**2
        rank = int(np.count_nonzero(np.abs(values) > tol / CUT))
        if ranks is not None:
            regular = int(np.count_nonzero(np.abs(values) > REGULAR))
            rank = max(rank, min(ranks[scale] - len(known), regular))
        errors = errors.cut(float(np.abs(values[rank:]).max(initial=0.0)))
        values, coordinates = values[:rank], coordinates[:rank]
        # Coordinates weighted by H are the columns of the power at these points, and `rank` of these columns span all
        # others.
        chosen = cut_skeleton(np.vstack([known, values[:, None] * coordinates]))
        coordinates, known = coordinates[:, chosen.indices], known[:, chosen.indices]
        skeleton = skeleton[chosen.indices]
        step = chosen.interpolation
        interpolation = step if interpolation is None else step @ interpolation
        core = coordinates.T @ (values[:, None] * coordinates)
        noise = np.linalg.norm(interpolation) ** 2 * spectral_norm(core) * EPSILON
        # A skeleton with fewer points than the rank, which only rounding can cause, cannot represent H.
        bound = errors.total + float(noise) if chosen.rank == rank + len(known) else np.inf
        factors.append(Factor(scale, interpolation.T, (core + core.T) / 2, bound, skeleton))
    return factors


@dataclass(frozen=True, eq=False)
class Skeleton(ReadOnlyArrays):
    """A few columns that approximate all columns: ``matrix`` is close to ``matrix[:, indices] @ interpolation``.

    Attributes
    ----------
    indices
        Indices of the chosen columns in the order of the pivots, most important first, ``(rank,)``.
    interpolation
        Coefficients ``(rank, n_columns)``, exactly the identity at ``indices``.
    """

    indices: npt.NDArray[np.intp]
    interpolation: Float64

    @property
    def rank(self) -> int:
        """Number of columns in the skeleton."""
        return int(self.indices.size)


def cut_skeleton(matrix: Float64, rank: int | None = None) -> Skeleton:
    """Choose columns by a pivoted QR (the paper's Algorithm 2): as many as the numerical rank, or ``rank``.

    In A P = Q [R11 R12; 0 R22] the first pivots are the skeleton, R11^-1 R12 interpolates, and the error
    ||A - A[:, I] T|| is ||R22||. A strong rank-revealing QR would guarantee ||R22|| <= sqrt(1 + r (n - r)) sigma_{r+1}
    (Cheng, Gimbutas, Martinsson and Rokhlin 2005). Plain pivoting satisfies this bound too, except on matrices
    constructed to violate it.

    Examples
    --------
    >>> cut_skeleton(np.diag([3.0, 2.0, 1.0]), 2).indices.tolist()
    [0, 1]
    """
    from scipy.linalg import qr, solve_triangular

    triangle, pivots = qr(matrix, mode="r", pivoting=True, check_finite=False)
    diagonal = np.abs(np.diagonal(triangle))
    # Drop pivots below the rounding error of the first pivot, because they would make R11 singular.
    regular = int(np.count_nonzero(diagonal > diagonal.size * EPSILON * diagonal.max(initial=0.0)))
    count = regular if rank is None else min(rank, regular)
    interpolation = np.zeros((count, matrix.shape[1]))
    interpolation[np.arange(count), pivots[:count]] = 1
    if 0 < count < matrix.shape[1]:
        others = solve_triangular(triangle[:count, :count], triangle[:count, count:], check_finite=False)
        interpolation[:, pivots[count:]] = others
    return Skeleton(pivots[:count].astype(np.intp), interpolation)
