"""The normalized operator of an affinity and the ends of its spectrum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Bool, Float64, Int32

__all__ = ["SlowMode", "alternating", "bipartite", "lanczos", "normalise", "relative", "slowest_mode"]


# Affinities are brought to below 2^UNIT, by a power of two, which rounds nothing: near the upper end of a float's range
# the faintest affinities beside them keep their digits, and 2^63 of them can be summed.
UNIT = 960
# Powers of two below 2^this are floats, and so are their inverses.
MOST_AT_ONCE = 1000

# Entries worked on at a time, about: 0.20 s for 7.8 million of them, 0.24 s with 2^14 and 0.39 s with 2^20.
PIECE = 2**16

# Numbers that `lanczos` may keep (32 MB).
MOST_REMEMBERED = 4_000_000

# Up to this many points the slow end of the spectrum is computed densely, in 0.2 s: exact up to rounding.
DENSE = 1_000
# Beyond, this many steps of Lanczos: 0.7 s at 24,000 points.
STEPS = 120


# A component's walk alternates if heat that has diffused for a few steps, and is not stationary yet, keeps less than
# ALTERNATES of itself in one more step. Of 76 graphs (docs/decisions/0004) this finds 31 of the 34 whose P@10 rises by
# 0.1 or more with self-loops (the other three mix at once), and 4 of the other 42. The lowest eigenvalue alone does not
# tell: a single remote pair of points takes it to -0.999.
ALTERNATES, FEW_STEPS = 0.1, 8
# Values that random heat has, at least: one function on many points, 32 on few. Less than REST of one mode, which an
# eigenvalue of -0.83 leaves, is nothing to judge by: the walk has mixed.
PROBED, MOST_PROBES, REST = 2**14, 32, 0.05


class SlowMode(NamedTuple):
    """The slowest mode of a connected graph: what diffusion forgets last.

    Attributes
    ----------
    gap
        1 minus the eigenvalue found: an upper bound of 1 minus the second largest one of S in any case.
    error
        An eigenvalue of S lies within this distance of the one found.
    lowest
        About the smallest eigenvalue of S.
    vector
        The eigenvector found, ``(n_points,)``, of length one.
    """

    gap: float
    error: float
    lowest: float
    vector: Float64


def normalise(
    affinity: sp.csr_array, anisotropy: float, component: Int32 | None = None
) -> tuple[sp.csr_array, Float64]:
    """Return S as CSR and the degree d of the anisotropically normalised affinity (paper, Eq. 5).

    Parameters
    ----------
    affinity
        ``(n_points, n_points)``; no row is empty.
    anisotropy
        The power of the sums that is divided out.
    component
        Connected component of each point, ``(n_points,)``; None for one. S does not depend on the unit of a component's
        affinities, and neither do its bits on a power of two in it. The degrees of each component are in a unit of
        their own.
    """
    normed = _in_units(affinity, component)
    symmetric = sp.csr_array((normed, affinity.indices, affinity.indptr), shape=affinity.shape)
    _multiply_ends(symmetric, np.asarray(symmetric.sum(axis=1)).ravel() ** -anisotropy)
    degree = np.asarray(symmetric.sum(axis=1), dtype=np.float64).ravel()
    _multiply_ends(symmetric, 1 / np.sqrt(degree))
    return symmetric, degree


def _multiply_ends(matrix: sp.csr_array, factors: Float64) -> None:
    """Multiply every entry by the factors of its row and of its column, in place."""
    # In pieces: at a million points every array as long as the edges is some 400 MB.
    n_pieces = -(-matrix.nnz // PIECE)
    cuts = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, n_pieces + 1)[1:-1])
    for first, last in pairwise([0, *cuts.tolist(), matrix.shape[0]]):
        entries = slice(matrix.indptr[first], matrix.indptr[last])
        ends = (
            np.repeat(factors[first:last], np.diff(matrix.indptr[first : last + 1])),
            factors[matrix.indices[entries]],
        )
        # The larger first: an affinity is at most either sum, so that it cannot overflow, and what is faint beside one
        # sum but not beside the other does not vanish. And an entry has the bits of its mirror image.
        matrix.data[entries] *= np.maximum(*ends)
        matrix.data[entries] *= np.minimum(*ends)


def relative(affinity: sp.csr_array, component: Int32) -> sp.csr_array:
    """Return the affinities over the largest of their component, each ``(n_points, n_points)``."""
    scaled = sp.csr_array((_in_units(affinity, component), affinity.indices, affinity.indptr), shape=affinity.shape)
    scaled.data /= np.repeat(_largest(scaled, component)[component], np.diff(affinity.indptr))
    return scaled


def _largest(affinity: sp.csr_array, component: Int32) -> Float64:
    """Return the largest affinity of each component, ``(n_components,)``; no row is empty."""
    largest = np.zeros(int(component.max()) + 1)
    np.maximum.at(largest, component, np.maximum.reduceat(affinity.data, affinity.indptr[:-1]))
    return largest


def _in_units(affinity: sp.csr_array, component: Int32 | None) -> Float64:
    """Return the affinities, those of each component times the power of two that takes the largest below 2^UNIT."""
    counts = np.diff(affinity.indptr)
    place = np.zeros(counts.size, dtype=np.int32) if component is None else component
    exponents = UNIT - np.frexp(_largest(affinity, place))[1]
    if exponents.size == 1 and abs(int(exponents[0])) < MOST_AT_ONCE:
        return np.asarray(affinity.data * np.ldexp(1.0, exponents[0]))
    scaled: Float64 = affinity.data.copy()
    # In two steps: the power of two that a very small affinity needs may be no float itself.
    for part in (exponents // 2, exponents - exponents // 2):
        factors = np.ldexp(1.0, part)
        scaled *= factors[0] if factors.size == 1 else np.repeat(factors[place], counts)
    return scaled


def lanczos(
    symmetric: sp.csr_array, steps: int, deflate: Float64 | None = None, *, ends_only: bool = False
) -> tuple[Float64, Float64]:
    """Return Ritz values of S in ascending order and their residual norms, at most ``(steps,)`` each.

    Parameters
    ----------
    symmetric
        S, ``(n_points, n_points)``.
    steps
        Number of products with S.
    deflate
        Orthonormal vectors to stay orthogonal to, ``(n_points, n_vectors)``.
    ends_only
        Only the smallest and the largest value matter; an eigenvalue may be found twice.
    """
    # Products of a few long vectors: several threads wait for each other longer than they work (24,000 points and 120
    # steps on two busy cores: 4.5 s of computing with two threads, 0.7 s with one).
    with one_blas_thread():
        values, _, residuals = _ritz(symmetric, steps, deflate, ends_only)
    return values, residuals


def bipartite(affinity: sp.csr_array) -> tuple[Bool, Int32]:
    """Return whether each point lies in a bipartite component, ``(n_points,)``, and a label of its component."""
    n_points, starts, columns = affinity.shape[0], affinity.indptr, affinity.indices
    # In the double cover, where every step changes the sheet, a bipartite component is two and any other is one.
    kind = np.int32 if 2 * max(n_points, affinity.nnz) < 2**31 else np.int64
    cover = np.concatenate([starts, starts[1:] + kind(affinity.nnz)], dtype=kind, casting="same_kind")
    other = np.concatenate([columns + kind(n_points), columns], dtype=kind, casting="same_kind")
    doubled = sp.csr_array((np.ones(other.size), other, cover), shape=(2 * n_points, 2 * n_points))
    sheets: Int32 = connected_components(doubled, directed=False)[1]
    here, there = sheets[:n_points], sheets[n_points:]
    return np.asarray((here != there) & (np.diff(starts) > 0)), np.minimum(here, there)


def alternating(symmetric: sp.csr_array, top: Float64, component: Int32) -> Bool:
    """Return whether the walk of each component alternates, wholly or nearly, between two halves.

    Parameters
    ----------
    symmetric
        S of `normalise`, ``(n_points, n_points)``.
    top, component
        Eigenvectors to eigenvalue 1, one per component, in one vector, and the component of each point,
        ``(n_points,)`` each.

    Returns
    -------
    ndarray
        ``(n_components,)``.
    """
    width = min(max(PROBED // top.size, 1), MOST_PROBES)
    heat = np.random.default_rng(20210718).standard_normal((top.size, width))

    def sums(values: Float64) -> Float64:
        return np.asarray(np.bincount(component, values))

    for column in heat.T:  # without what is stationary
        column -= sums(column * top)[component] * top
    for _ in range(FEW_STEPS):
        heat = symmetric @ heat
    left, kept = sums((heat**2).sum(axis=1)), sums((heat * (symmetric @ heat)).sum(axis=1))
    result: Bool = (left > REST * width) & (kept < ALTERNATES * left)
    result[component[bipartite(symmetric)[0]]] = True
    return result


def slowest_mode(symmetric: sp.csr_array, degree: Float64, guesses: Float64 | None = None) -> SlowMode:
    """Return the slowest mode of a connected graph of at least two points.

    Parameters
    ----------
    symmetric, degree
        S and d of `normalise`.
    guesses
        Functions on the points that are nearly constant along edges, ``(n_points, n_guesses)``, such as indicators of
        parts that are nearly cut off: Lanczos alone is far from modes as slow as theirs.
    """
    top = np.sqrt(degree / degree.sum())[:, None]
    if degree.size <= DENSE:
        values, vectors = np.linalg.eigh(symmetric.toarray() - 3 * top * top.T)  # moves the constant mode to -2
        rounding = degree.size * float(np.finfo(float).eps)
        return SlowMode(max(float(1 - values[-1]), 0.0), rounding, float(values[1]), vectors[:, -1])
    with one_blas_thread():
        units: list[Float64] | None = [] if _window(symmetric, STEPS) == STEPS else None
        values, vectors, _ = _ritz(symmetric, STEPS, top, False, units)
        # Vectors that were not kept are walked through again.
        again = (unit for unit, _, _ in _walk(symmetric, STEPS, top, 2)) if units is None else units
        mode = np.zeros(degree.size)
        for unit, share in zip(again, vectors[:, -1], strict=False):
            mode += share * unit
        candidates = mode[:, None] if guesses is None else np.column_stack([mode, guesses * top])
        vector, value, error = _best_combination(symmetric, top, candidates)
    return SlowMode(max(1 - value, 0.0), error, float(values[0]), vector)


def _best_combination(symmetric: sp.csr_array, top: Float64, candidates: Float64) -> tuple[Float64, float, float]:
    """Return the combination of vectors, orthogonal to ``top``, with the largest Ritz value, that and its residual."""
    for _ in range(2):
        candidates = candidates - top @ (top.T @ candidates)
        candidates /= np.linalg.norm(candidates, axis=0)
    # The mode may be a combination of the guesses; what is left of it would be rounding.
    basis, sizes, _ = np.linalg.svd(candidates, full_matrices=False)
    candidates = basis[:, sizes > 1e-6 * sizes[0]]
    candidates = candidates - top @ (top.T @ candidates)
    moved = symmetric @ candidates
    # Of I - S, whose small values would drown in the rounding of values near 1.
    values, vectors = np.linalg.eigh(candidates.T @ (candidates - moved))
    vector = candidates @ vectors[:, 0]
    residual = float(np.linalg.norm(vector - moved @ vectors[:, 0] - values[0] * vector))
    return vector, float(1 - values[0]), residual


def _window(symmetric: sp.csr_array, steps: int) -> int:
    """Return how many vectors to stay orthogonal to.

    The recurrence needs only the last two; with all of them no eigenvalue is found twice, but the ends of the spectrum
    are the same, and at a million points they took 500 MB and most of the time.
    """
    return 2 if steps * symmetric.shape[0] > MOST_REMEMBERED else steps


def _ritz(
    symmetric: sp.csr_array,
    steps: int,
    deflate: Float64 | None,
    ends_only: bool,
    units: list[Float64] | None = None,
) -> tuple[Float64, Float64, Float64]:
    """Return Ritz values, their vectors in the basis of Lanczos, and their residual norms; put the basis into a list.

    A basis that is remembered is also the one to put together a mode from: a second walk took as long as the first.
    """
    window = 2 if ends_only else _window(symmetric, steps)
    entries = []
    for unit, diagonal, beside in _walk(symmetric, steps, deflate, window):
        entries.append((diagonal, beside))
        if units is not None:
            units.append(unit)
    if not entries:
        return np.zeros(1), np.zeros((0, 1)), np.zeros(1)
    diagonal, beside = np.array(entries).T
    matrix = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors, np.abs(vectors[-1]) * beside[-1]


def _walk(
    symmetric: sp.csr_array, steps: int, deflate: Float64 | None, window: int
) -> Iterator[tuple[Float64, float, float]]:
    """Yield the vectors of Lanczos with their diagonal entry of T and the one beside it; fewer if they span all."""
    # A fixed start: a spectrum is a fact about the graph and must not depend on a seed.
    vector = np.random.default_rng(20210718).standard_normal(symmetric.shape[0])
    known = np.zeros((vector.size, 0)) if deflate is None else deflate
    basis = np.zeros((window, vector.size))
    length = _orthogonalise(vector, known, basis)
    for step in range(steps):
        if length < 1e-9:  # the Krylov space is exhausted: its Ritz values are eigenvalues
            return
        basis[step % window] = vector / length
        unit = basis[step % window]
        vector = symmetric @ unit
        diagonal = float(unit @ vector)
        # Rows that are still zero would be half of the work.
        length = _orthogonalise(vector, known, basis[: step + 1])
        yield unit, diagonal, length if length >= 1e-9 else 0.0


def _orthogonalise(vector: Float64, known: Float64, basis: Float64) -> float:
    """Make a vector orthogonal to others, in place, and return its length."""
    for _ in range(2):  # once leaves a remnant of what was just removed
        vector -= known @ (known.T @ vector)
        vector -= basis.T @ (basis @ vector)
    return float(np.linalg.norm(vector))
