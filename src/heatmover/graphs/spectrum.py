"""Normalize an affinity, find the ends of its spectrum; for `graphs`, `diffusion`, `manifold`; arrays only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Bool, Float64, Int32

# Affinities are scaled to just below 2^UNIT by a power of two, which is exact. Near this upper end of the range of
# floats even the smallest affinities keep their precision, and 2^63 affinities can be summed without overflow.
UNIT = 960
# Floats can represent powers of two with exponents below this limit, and the inverses of these powers.
MOST_AT_ONCE = 1000

# Number of entries multiplied at once: 7.8 million entries take 0.20 s, compared with 0.24 s for 2^14 and 0.39 s for
# 2^20 entries at once.
PIECE = 2**16

# Number of values that `lanczos` may keep (32 MB).
MOST_REMEMBERED = 4_000_000

# Up to this many points the slowest mode is computed by a dense solver, in 0.2 s and exactly up to rounding.
DENSE = 1_000
# Number of Lanczos steps for more points; they take 0.7 s at 24,000 points.
STEPS = 120


# Random heat without its stationary part tests whether the random walk on a component alternates. The walk alternates
# if this heat, after FEW_STEPS steps of diffusion, keeps less than the share ALTERNATES of itself in one more step.
# Among 76 graphs (docs/decisions/0004) this test finds 31 of the 34 graphs whose P@10 rises by 0.1 or more with
# self-loops (the other three mix at once), and also 4 of the remaining 42 graphs. The lowest eigenvalue alone is not
# sufficient: a single remote pair of points moves it to -0.999.
ALTERNATES, FEW_STEPS = 0.1, 8
# Smallest total number of values of random heat: one function on many points, up to MOST_PROBES functions on few
# points. REST is the share that an eigenvalue of -0.83 leaves of the squared heat of one eigenvector. If less squared
# heat is left, the walk has mixed and cannot be judged.
PROBED, MOST_PROBES, REST = 2**14, 32, 0.05


class SlowMode(NamedTuple):
    """The slowest mode of a connected graph, the last to decay under diffusion.

    Attributes
    ----------
    gap
        1 minus the computed eigenvalue; always an upper bound of 1 minus the second largest eigenvalue of S.
    error
        Bound on the distance between the computed eigenvalue and the nearest eigenvalue of S.
    lowest
        Approximate smallest eigenvalue of S.
    vector
        Computed eigenvector, ``(n_points,)``, of length one.
    """

    gap: float
    error: float
    lowest: float
    vector: Float64


def normalize(
    affinity: sp.csr_array, anisotropy: float, component: Int32 | None = None
) -> tuple[sp.csr_array, Float64]:
    """Return S as CSR and the degree d of the anisotropically normalized affinity (paper, Eq. 5).

    Parameters
    ----------
    affinity
        ``(n_points, n_points)``; no row is empty.
    anisotropy
        Exponent of the row sums by which affinities are divided.
    component
        Connected component of each point, ``(n_points,)``; None for a single component. Degrees are scaled separately
        in each component, so multiplying the affinities of a component by a constant does not change S. With a power of
        two, S is bit-identical.
    """
    normed = _in_units(affinity, component)
    symmetric = sp.csr_array((normed, affinity.indices, affinity.indptr), shape=affinity.shape)
    _multiply_ends(symmetric, np.asarray(symmetric.sum(axis=1)).ravel() ** -anisotropy)
    degree = np.asarray(symmetric.sum(axis=1), dtype=np.float64).ravel()
    _multiply_ends(symmetric, 1 / np.sqrt(degree))
    return symmetric, degree


def _multiply_ends(matrix: sp.csr_array, factors: Float64) -> None:
    """Multiply every entry by the factors of its row and of its column, in place."""
    # Multiply in blocks, because at a million points an array with one value per edge takes about 400 MB.
    n_pieces = -(-matrix.nnz // PIECE)
    cuts = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, n_pieces + 1)[1:-1])
    for first, last in pairwise([0, *cuts.tolist(), matrix.shape[0]]):
        entries = slice(matrix.indptr[first], matrix.indptr[last])
        ends = (
            np.repeat(factors[first:last], np.diff(matrix.indptr[first : last + 1])),
            factors[matrix.indices[entries]],
        )
        # Divide by the smaller sum first: an affinity is at most as large as either sum, so the quotient cannot
        # overflow, and it does not vanish if the affinity is tiny only compared with the larger sum. An entry and its
        # mirror image are bit-identical.
        matrix.data[entries] *= np.maximum(*ends)
        matrix.data[entries] *= np.minimum(*ends)


def relative(affinity: sp.csr_array, component: Int32) -> sp.csr_array:
    """Divide affinities ``(n_points, n_points)`` by the largest affinity of their component."""
    scaled = sp.csr_array((_in_units(affinity, component), affinity.indices, affinity.indptr), shape=affinity.shape)
    scaled.data /= np.repeat(_largest(scaled, component)[component], np.diff(affinity.indptr))
    return scaled


def _largest(affinity: sp.csr_array, component: Int32) -> Float64:
    """Return the largest affinity of each component, ``(n_components,)``; no row is empty."""
    largest = np.zeros(int(component.max()) + 1)
    np.maximum.at(largest, component, np.maximum.reduceat(affinity.data, affinity.indptr[:-1]))
    return largest


def _in_units(affinity: sp.csr_array, component: Int32 | None) -> Float64:
    """Multiply each component by the power of two that moves its largest affinity just below 2^UNIT."""
    counts = np.diff(affinity.indptr)
    place = np.zeros(counts.size, dtype=np.int32) if component is None else component
    exponents = UNIT - np.frexp(_largest(affinity, place))[1]
    if exponents.size == 1 and abs(int(exponents[0])) < MOST_AT_ONCE:
        return np.asarray(affinity.data * np.ldexp(1.0, exponents[0]))
    scaled: Float64 = affinity.data.copy()
    # Multiply in two steps, because the power of two that a very small affinity needs may not be a float.
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
        Orthonormal vectors, ``(n_points, n_vectors)``, whose span is removed from S.
    ends_only
        If True, only the smallest and the largest value are reliable, and an eigenvalue may occur twice.
    """
    # In products of a few long vectors, threads wait for each other longer than they work: 24,000 points and 120 steps
    # on two busy cores took 4.5 s of CPU time with two threads and 0.7 s with one.
    with one_blas_thread():
        values, _, residuals = _ritz(symmetric, steps, deflate, ends_only)
    return values, residuals


def bipartite(affinity: sp.csr_array) -> tuple[Bool, Int32]:
    """Return whether each point lies in a bipartite component, and the label of its component, ``(n_points,)`` each."""
    n_points, starts, columns = affinity.shape[0], affinity.indptr, affinity.indices
    # In the double cover, where every step changes the sheet, only bipartite components fall into two components.
    kind = np.int32 if 2 * max(n_points, affinity.nnz) < 2**31 else np.int64
    cover = np.concatenate([starts, starts[1:] + kind(affinity.nnz)], dtype=kind, casting="same_kind")
    other = np.concatenate([columns + kind(n_points), columns], dtype=kind, casting="same_kind")
    doubled = sp.csr_array((np.ones(other.size), other, cover), shape=(2 * n_points, 2 * n_points))
    sheets: Int32 = connected_components(doubled, directed=False)[1]
    here, there = sheets[:n_points], sheets[n_points:]
    return np.asarray((here != there) & (np.diff(starts) > 0)), np.minimum(here, there)


def alternating(symmetric: sp.csr_array, top: Float64, component: Int32) -> Bool:
    """Return whether the random walk of each component alternates, wholly or nearly, between two halves.

    Parameters
    ----------
    symmetric
        S of `normalize`, ``(n_points, n_points)``.
    top, component
        Eigenvectors of all components for eigenvalue 1, combined into one vector, and the component of each point,
        ``(n_points,)`` each.

    Returns
    -------
    ndarray
        ``(n_components,)``, boolean.
    """
    width = min(max(PROBED // top.size, 1), MOST_PROBES)
    heat = np.random.default_rng(20210718).standard_normal((top.size, width))

    def sums(values: Float64) -> Float64:
        return np.asarray(np.bincount(component, values))

    for column in heat.T:  # remove the stationary part
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
        S and d of `normalize`.
    guesses
        Functions on the points that are nearly constant along edges, ``(n_points, n_guesses)``, such as indicators of
        nearly disconnected parts. Lanczos alone does not converge to such slow modes.
    """
    top = np.sqrt(degree / degree.sum())[:, None]
    if degree.size <= DENSE:
        values, vectors = np.linalg.eigh(symmetric.toarray() - 3 * top * top.T)  # moves the constant mode to -2
        rounding = degree.size * float(np.finfo(float).eps)
        return SlowMode(max(float(1 - values[-1]), 0.0), rounding, float(values[1]), vectors[:, -1])
    with one_blas_thread():
        units: list[Float64] | None = [] if _window(symmetric, STEPS) == STEPS else None
        values, vectors, _ = _ritz(symmetric, STEPS, top, False, units)
        # If the Lanczos vectors were not kept, a second Lanczos run computes them again.
        again = (unit for unit, _, _ in _walk(symmetric, STEPS, top, 2)) if units is None else units
        mode = np.zeros(degree.size)
        for unit, share in zip(again, vectors[:, -1], strict=False):
            mode += share * unit
        candidates = mode[:, None] if guesses is None else np.column_stack([mode, guesses * top])
        vector, value, error = _best_combination(symmetric, top, candidates)
    return SlowMode(max(1 - value, 0.0), error, float(values[0]), vector)


def _best_combination(symmetric: sp.csr_array, top: Float64, candidates: Float64) -> tuple[Float64, float, float]:
    """Return the combination orthogonal to ``top`` that has the largest Ritz value, this value and its residual."""
    for _ in range(2):
        candidates = candidates - top @ (top.T @ candidates)
        candidates /= np.linalg.norm(candidates, axis=0)
    # If the mode is a combination of the guesses, the remainder contains only rounding errors and must be dropped.
    basis, sizes, _ = np.linalg.svd(candidates, full_matrices=False)
    candidates = basis[:, sizes > 1e-6 * sizes[0]]
    candidates = candidates - top @ (top.T @ candidates)
    moved = symmetric @ candidates
    # Use the eigenvalues of I - S, because small gaps would be lost in the rounding of eigenvalues near 1.
    values, vectors = np.linalg.eigh(candidates.T @ (candidates - moved))
    vector = candidates @ vectors[:, 0]
    residual = float(np.linalg.norm(vector - moved @ vectors[:, 0] - values[0] * vector))
    return vector, float(1 - values[0]), residual


def _window(symmetric: sp.csr_array, steps: int) -> int:
    """Return the number of previous vectors to which a new Lanczos vector is made orthogonal.

    Lanczos needs only the last two vectors. If all vectors are kept, no eigenvalue occurs twice, but the ends of the
    spectrum do not change; at a million points, all vectors took 500 MB and most of the run time.
    """
    return 2 if steps * symmetric.shape[0] > MOST_REMEMBERED else steps


def _ritz(
    symmetric: sp.csr_array, steps: int, deflate: Float64 | None, ends_only: bool, units: list[Float64] | None = None
) -> tuple[Float64, Float64, Float64]:
    """Return Ritz values, their eigenvectors in the Lanczos basis, and their residual norms.

    If ``units`` is given, append the Lanczos vectors to this list. An eigenvector can then be computed without a second
    Lanczos run, which would take as long as the first.
    """
    window = 2 if ends_only else _window(symmetric, steps)
    entries = []
    for unit, diagonal, off_diagonal in _walk(symmetric, steps, deflate, window):
        entries.append((diagonal, off_diagonal))
        if units is not None:
            units.append(unit)
    if not entries:
        return np.zeros(1), np.zeros((0, 1)), np.zeros(1)
    diagonal, off_diagonal = np.array(entries).T
    matrix = np.diag(diagonal) + np.diag(off_diagonal[:-1], 1) + np.diag(off_diagonal[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return values, vectors, np.abs(vectors[-1]) * off_diagonal[-1]


def _walk(
    symmetric: sp.csr_array, steps: int, deflate: Float64 | None, window: int
) -> Iterator[tuple[Float64, float, float]]:
    """Yield each Lanczos vector and its two entries of T; stop early if the vectors span the space."""
    # The start is fixed, because the spectrum is a property of the graph and must not depend on a seed.
    vector = np.random.default_rng(20210718).standard_normal(symmetric.shape[0])
    known = np.zeros((vector.size, 0)) if deflate is None else deflate
    basis = np.zeros((window, vector.size))
    length = _orthogonalize(vector, known, basis)
    for step in range(steps):
        if length < 1e-9:  # the Krylov space is exhausted: its Ritz values are eigenvalues
            return
        basis[step % window] = vector / length
        unit = basis[step % window]
        vector = symmetric @ unit
        diagonal = float(unit @ vector)
        # Pass only the rows in use, because zero rows would double the CPU time.
        length = _orthogonalize(vector, known, basis[: step + 1])
        yield unit, diagonal, length if length >= 1e-9 else 0.0


def _orthogonalize(vector: Float64, known: Float64, basis: Float64) -> float:
    """Make a vector orthogonal to the known vectors and the basis, in place, and return its length."""
    for _ in range(2):  # a single pass leaves a remnant due to rounding
        vector -= known @ (known.T @ vector)
        vector -= basis.T @ (basis @ vector)
    return float(np.linalg.norm(vector))
