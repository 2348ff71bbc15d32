"""Leading eigenpairs from a filtered random block: the coarse scales of `method="spectral"`.

A Chebyshev polynomial that is at most 1 on [lowest, theta] and grows fast above turns random vectors towards the
eigenvectors above theta; Rayleigh-Ritz finds them in what the block spans. ARPACK is no help here: the eigenvalues
that matter cluster at 1, and it treats them one by one.

The error is measured, not estimated. With B = S^s at the first coarse scale (top eigenvectors left out), Ritz vectors V
and L = Lambda^s, Gaussian test vectors bound e = ||B - V L V'|| and k = ||(B - V L V') V L||. All coarser scales are
powers B^N, and telescoping B^N - V L^N V' = sum_i B^(N-1-i) (B - V L V') V L^i V' + B^N (1 - V V') bounds them with l =
max(||B||, ||L||):

    on V:      e l^(N-1) + (N - 1) k l^(N-2)
    beside V:  e^N + (k + e (e + N k)) / (1 - e)

(beside V, every further B keeps at most e, and what leaks back into V comes in through V' B (1 - V V'), bounded by e,
or by k once L has acted on it).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._threads import by_one_blas_thread, in_threads, one_blas_thread
from heatmover._typing import Float64
from heatmover.diffusion.base import LANES, Block
from heatmover.diffusion.coarsening import DENSE, STIFFER, hierarchy
from heatmover.diffusion.lowrank import COARSEST_FACTOR, Factor, deflated_power
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.rank import threshold
from heatmover.diffusion.recurrence import Recurrence, in_columns
from heatmover.diffusion.skeleton import spectral_norm_from_sketch

__all__ = ["Ritz", "leading_eigenpairs", "spectral_factors"]


# Gaussian test vectors. Their bound fails with a probability of 1e-10 and is some 6 times too large (32: 3 times, at
# twice the price).
TESTS = 16
# Eigenvectors are sought down to tol / BELOW at the first coarse scale: what lies below is what the bound sees first,
# and the test vectors overstate a norm by a factor of about 6.
BELOW = 30.0
# Growth (its logarithm) of the polynomial at eigenvalue 1, per pass: the block's columns become that much more alike,
# and float32 keeps the weakest wanted eigenvectors only if this is far from 2^24. Measured on the swiss roll: 15 in one
# pass lost a tenth of them. Ritz vectors are apart already and bear more; the more points there are, the more a random
# block has beside them. With 11 in the second pass instead of 13 the swiss roll of 10,000 points needed a third, and
# with 14 that of 100,000.
FIRST_GROWTH = 9.0
GROWTH = 9.2  # and half of the logarithm of n_points
# Growth of the first pass over vectors from coarser graphs, which are apart too. On swiss rolls of 20,000 and 100,000
# points, tol 1e-3, seven and five scales: 9 left bounds of 4e-3 and 1e-3 at the coarsest scale, 12 both 4e-4.
COARSE_GROWTH = 12.0
# A threshold of a coarse graph is at least this: filters for lower ones tell nothing apart.
LOWEST_THRESHOLD = 0.3
# The end of a pass runs in float64 for so much of the growth: it takes the noise of float32, which repeated squaring
# multiplies, from 6e-7 down to where 2^10 squarings do no harm.
POLISH = 2.5
# Below this tol the whole filter runs in float64.
SINGLE_TOL = 1e-5
# Two passes reach the bound in most cases; a guess of the rank that was far too small takes one more per doubling.
PASSES = 12
# A pass that does not improve the bound by a third has met rounding: of float32, or there is no more to gain.
STALLED = 0.7
# Columns beyond the wanted rank, which make the weakest wanted vectors converge.
OVERSAMPLING = 1.25
# Up to this many points all eigenpairs are computed if half of them are wanted, or some far below zero.
SMALL = 1_000
# Rows of a dense product that a thread takes at a time: fixed, so that bits do not depend on the threads. The linear
# algebra library's own threads wait for each other, which beside another process takes many times as long.
ROWS_AT_ONCE = 8_192
# Directions of the filtered block weaker than this carry only rounding. With 1e-11 a ring of 1,500 points, where the
# filter's degree is so low that rounding it up adds 3 to the growth, lost a quarter of the block at tol 1e-6, and no
# doubling brought it back.
WEAKEST = 1e-13


@dataclass(frozen=True, eq=False)
class Ritz:
    """Approximate eigenpairs of S, farthest from zero first, orthogonal to the top eigenvectors.

    Attributes
    ----------
    values
        ``(rank,)``.
    vectors
        ``(n_points, rank)``, orthonormal, in the operator's order.
    """

    values: Float64
    vectors: Float64


def spectral_factors(
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
    """Return S^(2^k) for k from ``first`` to ``last`` in a basis of eigenvectors, each within ``tol``.

    Parameters
    ----------
    operator
        The diffusion operator, in float64.
    first, last
        The coarse scales.
    rank
        A guess of the number of eigenvalues whose power ``2**first`` exceeds ``tol / 30``; the block starts with a
        quarter more and grows until the bound holds.
    tol
        Bound asked for at every scale.
    rng
        Draws the block and the test vectors.
    most
        Columns that the block may grow to.
    n_threads
        Threads to use.

    Returns
    -------
    list of Factor, or None
        None if ``most`` columns do not reach the bound, if rounding exceeds it, or if negative eigenvalues matter too
        on a graph of more than 1,000 points.
    """
    scales = range(first, last + 1)
    width = int(OVERSAMPLING * rank) + LANES
    theta = threshold(first, tol / BELOW)
    # Eigenvalues close to -1, as on a bipartite graph, grow like those close to 1; the filter would miss them.
    two_sided = -operator.lowest >= theta
    if operator.n_points <= SMALL and (two_sided or operator.n_points <= 2 * width):
        factors = _factors(operator, _all_eigenpairs(operator), scales, tol, rng, n_threads)
        return factors if all(factor.bound <= tol for factor in factors) else None
    if two_sided:
        return None
    dtype: type[np.floating[Any]] = np.float32 if tol >= SINGLE_TOL else np.float64
    start = _coarse_start(operator, width, theta, rng, n_threads) if width <= most else None
    fresh = start is None
    block = (_random_block(operator, width, rng) if start is None else start).astype(dtype)
    worst = np.inf
    for _ in range(PASSES):
        if block.shape[1] > most:
            return None
        growth = FIRST_GROWTH if fresh else COARSE_GROWTH if start is not None else second_growth(operator.n_points)
        start = None
        ritz = leading_eigenpairs(operator, block, theta, growth=growth, n_threads=n_threads)
        block = np.ascontiguousarray(ritz.vectors, dtype=dtype)
        if ritz.values.size and ritz.values[-1] > theta:
            # Every vector found is wanted, so there are more of them.
            block, fresh = np.hstack([block, _random_block(operator, block.shape[1], rng).astype(dtype)]), True
        elif fresh:
            # What began as random columns needs a second pass.
            fresh = False
        else:
            factors = _factors(operator, ritz, scales, tol, rng, n_threads)
            before, worst = worst, max(factor.bound for factor in factors)
            if worst <= tol:
                return factors
            if worst > STALLED * before:
                if dtype is np.float64:
                    return None
                dtype, block = np.float64, ritz.vectors
    return None


def _coarse_start(
    operator: DiffusionOperator, width: int, theta: float, rng: np.random.Generator, n_threads: int
) -> Float64 | None:
    """Return approximate eigenvectors above ``theta`` from coarser graphs, ``(n_points, width)``, or None."""
    levels = hierarchy(operator, width, theta)
    if not levels:
        return None
    vectors = _coarsest(levels[-1].operator, width, _threshold_at(len(levels), theta), rng, n_threads)
    for depth in range(len(levels) - 1, 0, -1):
        block, finer = levels[depth].prolong(vectors).astype(np.float32), levels[depth - 1].operator
        vectors = leading_eigenpairs(finer, block, _threshold_at(depth, theta), n_threads=n_threads).vectors
    return levels[0].prolong(vectors)


def _coarsest(
    operator: DiffusionOperator, width: int, theta: float, rng: np.random.Generator, n_threads: int
) -> Float64:
    if operator.n_points <= DENSE:
        pairs = _all_eigenpairs(operator)
        return pairs.vectors[:, np.argsort(-pairs.values, kind="stable")[:width]]
    block = _random_block(operator, width, rng)
    for growth in (FIRST_GROWTH, COARSE_GROWTH):
        block = leading_eigenpairs(operator, block, theta, growth=growth, n_threads=n_threads).vectors.astype(
            np.float32
        )
    return block.astype(np.float64)


def _threshold_at(depth: int, theta: float) -> float:
    """Return what corresponds to ``theta`` on a graph that was coarsened ``depth`` times."""
    return max(1 - STIFFER**depth * (1 - theta), LOWEST_THRESHOLD)


def second_growth(n_points: int) -> float:
    """Return the growth of every pass after the first; see `leading_eigenpairs`."""
    return float(GROWTH + np.log(n_points) / 2)


def leading_eigenpairs(
    operator: DiffusionOperator, start: Block, theta: float, *, growth: float = FIRST_GROWTH, n_threads: int = 1
) -> Ritz:
    """Filter a block ``(n_points, width)`` towards the eigenvectors above ``theta`` and extract them.

    ``growth`` is the logarithm of the polynomial at eigenvalue 1; it is at most 1 up to ``theta``.
    """
    per_degree = np.arccosh((2 - operator.lowest - theta) / (theta - operator.lowest))
    stages = [
        (Recurrence(operator, dtype, highest=theta), int(np.clip(np.ceil(part / per_degree), 1, 4_000)))
        for dtype, part in ((start.dtype, growth - POLISH), (np.float64, POLISH))
    ]

    def filtered(part: Block) -> Block:
        for recurrence, degree in stages:
            terms = recurrence.terms(part.astype(recurrence.dtype))
            part = next(islice(terms, degree - 1, None))
        return part

    block = np.asarray(in_columns(filtered, start, n_threads=n_threads), dtype=np.float64)
    operator.remove_top(block)
    return _rayleigh_ritz(operator, block, n_threads)


def _rayleigh_ritz(operator: DiffusionOperator, block: Float64, n_threads: int) -> Ritz:
    basis = _orthonormal(operator, block, n_threads)
    recurrence = Recurrence(operator, np.float64)
    # T_1 is S, mapped from [lowest, 1] to [-1, 1].
    image = in_columns(lambda part: next(recurrence.terms(part)), basis, n_threads=n_threads)
    small = _inner_products(basis, image, n_threads)
    mapped, turn = _eigenpairs((small + small.T) / 2)
    pairs = _sorted((1 + operator.lowest) / 2 + (1 - operator.lowest) / 2 * mapped, turn)
    return Ritz(pairs.values, _turned(basis, pairs.vectors, n_threads))


def _all_eigenpairs(operator: DiffusionOperator) -> Ritz:
    dense = operator.symmetric.toarray().astype(np.float64)
    operator.remove_top(dense)
    values, vectors = _eigenpairs((dense + dense.T) / 2)
    # What is left of the top eigenvectors has eigenvalue 0 and could be any mixture with others of that value.
    return _sorted(values, vectors)


def _sorted(values: Float64, vectors: Float64) -> Ritz:
    order = np.argsort(-np.abs(values), kind="stable")
    return Ritz(np.clip(values[order], -1, 1), np.ascontiguousarray(vectors[:, order]))


def _orthonormal(operator: DiffusionOperator, block: Float64, n_threads: int) -> Float64:
    """Return an orthonormal basis of what the columns span, beside the top eigenvectors and above rounding."""
    lengths = np.linalg.norm(block, axis=0)
    block = block[:, lengths > WEAKEST * np.sqrt(len(block))]
    for _ in range(2):
        block = block / np.linalg.norm(block, axis=0)
        weights, turn = _eigenpairs(_inner_products(block, block, n_threads))
        kept = weights > WEAKEST * block.shape[1]
        block = _turned(block, turn[:, kept] / np.sqrt(weights[kept]), n_threads)
        operator.remove_top(block)
        # The Gram matrix loses half of the digits of weak directions; twice is enough, and often once.
        if weights[kept].min(initial=np.inf) > 1e-4:
            break
    return block


# In one thread: those of the library spin while they wait for each other.
_eigenpairs = by_one_blas_thread(np.linalg.eigh)


def _inner_products(a: Float64, b: Block, n_threads: int) -> Float64:
    """Return ``a' b``, with the same bits for any number of threads."""
    with one_blas_thread():
        return np.asarray(sum(in_threads(lambda rows: a[rows].T @ b[rows], _runs_of_rows(len(a)), n_threads)))


def _turned(block: Float64, turn: Float64, n_threads: int) -> Float64:
    """Return ``block @ turn``, with the same bits for any number of threads."""
    result = np.empty((len(block), turn.shape[1]))
    with one_blas_thread():
        in_threads(lambda rows: np.matmul(block[rows], turn, out=result[rows]), _runs_of_rows(len(block)), n_threads)
    return result


def _runs_of_rows(count: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, count, ROWS_AT_ONCE)]


def _factors(
    operator: DiffusionOperator, ritz: Ritz, scales: range, tol: float, rng: np.random.Generator, n_threads: int
) -> list[Factor]:
    """Cut the pairs at each scale where their powers no longer matter, and bound every error."""
    powers = ritz.values ** float(2**scales.start)
    vectors = ritz.vectors
    # Chebyshev must not blur what is measured, which repeated squaring multiplies; its own error is added.
    blur = max(tol / max(1024.0, 64 * 2.0 ** (len(scales) - 1)), 1e-13)

    tests = rng.standard_normal((operator.n_points, TESTS))
    images = [tests]
    for _ in range(2):
        images.append(vectors @ (powers[:, None] * (vectors.T @ images[-1])))
    exact = deflated_power(operator, np.hstack(images[:2]), scales.start, blur, n_threads=n_threads)
    # B - V L V' on the test vectors, and on their images under V L V'.
    errors = exact - np.hstack(images[1:])
    everywhere, on_powers = (spectral_norm_from_sketch(part.T) + blur for part in np.hsplit(errors, 2))
    largest = min(1.0, float(np.abs(powers).max(initial=0.0)) + everywhere)
    factors = []
    for scale in scales:
        weights = ritz.values ** float(2**scale)
        kept = int((np.abs(weights) > tol / (2 * BELOW)).sum())
        bound = _bound(everywhere, on_powers, largest, 2.0 ** (scale - scales.start))
        cut = float(np.abs(weights[kept:]).max(initial=0.0))
        factors.append(Factor(scale, vectors[:, :kept], np.diag(weights[:kept]), bound + cut))
    return factors


def _bound(everywhere: float, on_powers: float, largest: float, repeats: float) -> float:
    """Bound the error of the power ``repeats`` of B; the formulas are at the top of the module."""
    if repeats == 1:
        return everywhere
    if everywhere >= 1:
        return np.inf
    inside = everywhere * largest ** (repeats - 1) + (repeats - 1) * on_powers * largest ** (repeats - 2)
    beside = everywhere**repeats + (on_powers + everywhere * (everywhere + repeats * on_powers)) / (1 - everywhere)
    return float(inside + beside)


def _random_block(operator: DiffusionOperator, width: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Draw Gaussian columns orthogonal to the top eigenvectors, as many as fill whole vector registers."""
    block = rng.standard_normal((operator.n_points, -(-width // LANES) * LANES), dtype=np.float32)
    operator.remove_top(block)
    return block
