"""The normalised operator of an affinity and the ends of its spectrum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

__all__ = ["lanczos", "normalise", "relative"]

Float64 = npt.NDArray[np.float64]

# Affinities are brought to below 2^UNIT, by a power of two, which rounds nothing: near the upper end of a float's range
# the faintest affinities beside them keep their digits, and 2^63 of them can be summed.
UNIT = 960

# Entries worked on at a time, about: 0.20 s for 7.8 million of them, 0.24 s with 2^14 and 0.39 s with 2^20.
PIECE = 2**16

# Numbers that `lanczos` may keep (32 MB).
MOST_REMEMBERED = 4_000_000


def normalise(
    affinity: sp.csr_array, anisotropy: float, component: npt.NDArray[np.int32] | None = None
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


def relative(affinity: sp.csr_array, component: npt.NDArray[np.int32]) -> sp.csr_array:
    """Return the affinities over the largest of their component, each ``(n_points, n_points)``."""
    scaled = sp.csr_array((_in_units(affinity, component), affinity.indices, affinity.indptr), shape=affinity.shape)
    scaled.data /= np.repeat(_largest(scaled, component)[component], np.diff(affinity.indptr))
    return scaled


def _largest(affinity: sp.csr_array, component: npt.NDArray[np.int32]) -> Float64:
    """Return the largest affinity of each component, ``(n_components,)``; no row is empty."""
    largest = np.zeros(int(component.max()) + 1)
    np.maximum.at(largest, component, np.maximum.reduceat(affinity.data, affinity.indptr[:-1]))
    return largest


def _in_units(affinity: sp.csr_array, component: npt.NDArray[np.int32] | None) -> Float64:
    """Return the affinities, those of each component times the power of two that takes the largest below 2^UNIT."""
    counts = np.diff(affinity.indptr)
    place = np.zeros(counts.size, dtype=np.int32) if component is None else component
    exponents = UNIT - np.frexp(_largest(affinity, place))[1]
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
    with threadpool_limits(1, user_api="blas"):
        return _lanczos(symmetric, steps, deflate, ends_only)


def _lanczos(symmetric: sp.csr_array, steps: int, deflate: Float64 | None, ends_only: bool) -> tuple[Float64, Float64]:
    # A fixed start: a spectrum is a fact about the graph and must not depend on a seed.
    vector = np.random.default_rng(20210718).standard_normal(symmetric.shape[0])
    known = np.zeros((vector.size, 0)) if deflate is None else deflate
    # Vectors to stay orthogonal to. The recurrence needs only the last two; with all of them no eigenvalue is found
    # twice, but the ends of the spectrum are the same, and at a million points they took 500 MB and most of the time.
    window = 2 if ends_only or steps * vector.size > MOST_REMEMBERED else steps
    basis = np.zeros((window, vector.size))
    diagonal, beside = np.zeros(steps), np.zeros(steps)
    count = steps
    for step in range(steps):
        for _ in range(2):  # once leaves a remnant of what was just removed
            vector -= known @ (known.T @ vector)
            vector -= basis.T @ (basis @ vector)
        length = np.linalg.norm(vector)
        if length < 1e-9:  # the Krylov space is exhausted: its Ritz values are eigenvalues
            count = step
            break
        beside[step] = length
        unit = basis[step % window] = vector / length
        vector = symmetric @ unit
        diagonal[step] = unit @ vector
    if count == 0:
        return np.zeros(1), np.zeros(1)
    matrix = np.diag(diagonal[:count]) + np.diag(beside[1:count], 1) + np.diag(beside[1:count], -1)
    values, vectors = np.linalg.eigh(matrix)
    vector -= basis.T @ (basis @ vector)
    last = 0.0 if count < steps else float(np.linalg.norm(vector))
    return values, np.abs(vectors[-1]) * last
