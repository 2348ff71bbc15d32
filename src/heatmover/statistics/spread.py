"""How widely groups are spread, judged by distances alone: spatial medians, and distances freed of the groups' places.

The spread of a group is the mean score of the distances between its samples. That needs no center, so it is not biased
in small groups, in any dimension, and a shift of a whole group does not change it. A score is bounded: one remote
sample counts as far, however remote it is.

Only to permute samples must the groups be laid on top of each other. They are moved by the difference of their
spatial medians, which a remote sample hardly moves, and which stay where they are if most samples of a group are equal.

Places are never computed. A center is a row of weights over the samples that sum to one, and the squared distances
between such combinations follow from those between samples. Distances that no Euclidean space holds may give
negative squares; their size is taken, as Anderson (2006) does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heatmover._base.types import Float64, Int64

__all__ = ["Scores", "score_distances", "spatial_medians"]


# Weiszfeld's iteration stops when no weight moves by more. Groups of 10 samples take 20 to 60 steps; where the median
# is nearly a sample it creeps, and what is missing after the last step is far below the median's own uncertainty.
SETTLED, MOST_STEPS = 1e-12, 200
# In larger groups a sample is moved by the median with it alone: the bias, of one 2n-th, is below 0.1 %. Of twelve
# designs with two groups of 600 no p-value differed by more than 0.001; the statistic depends on distances within
# groups alone, which nothing moves. A median without each of 2,000 samples would take 20 s.
MOST_LEFT_OUT = 500
# Rows of distances that are moved at once.
ROWS = 256
# Fits of places of groups and blocks; after 30 they moved by less than 1e-3 of the unit in all designs tried. Squared
# residuals below NEAREST, in that unit, count as this.
FITS, NEAREST, RIDGE = 30, 1e-8, 1e-10
# In units of the median distance within groups: what is farther has a score of 0.99999 or more, and is counted as if it
# were here, so that squares lose no digits to it.
FARTHEST = 1e5
# Of the largest distance: less is rounding and counts as zero.
ROUNDING = 1e-12
# Squares below this, in the same unit, are rounding next to those of the farthest.
VANISHING = 1e-10


class Scores(NamedTuple):
    """Scores of distances between units, comparable after permutation.

    Attributes
    ----------
    matrix
        ``(n_units, n_units)``, from 0 to 1, zero on the diagonal: ``d / (d + unit)``. Within a group d is the
        distance itself, between groups the distance once the groups are moved onto each other.
    first
        The first sample of each unit, ``(n_units,)``.
    """

    matrix: Float64
    first: Int64


def score_distances(distances: Float64, codes: Int64, unit_of: Int64, block_of: Int64 | None) -> Scores:
    """Score the distances between units, those between groups as if all groups were in one place.

    Parameters
    ----------
    distances
        ``(n_samples, n_samples)``.
    codes
        Group of each sample, ``(n_samples,)``, from 0 on.
    unit_of
        Unit of each sample, ``(n_samples,)``, from 0 on. A unit counts once, however many samples it has.
    block_of
        Block of each sample, ``(n_samples,)``, or None: a difference between blocks is not taken for one of groups.
    """
    _, first, sizes = np.unique(unit_of, return_index=True, return_counts=True)
    together = codes[:, None] == codes
    exact = np.where(distances > ROUNDING * distances.max(), distances, 0.0)
    inside = exact[together & (unit_of[:, None] != unit_of)]
    if not inside.any():
        return Scores(np.zeros((first.size, first.size)), first)
    unit = float(np.median(inside[inside > 0]))
    shares = 1 / sizes[unit_of]
    del inside
    # In place, for so many samples may take a gigabyte for each matrix.
    apart = np.divide(np.minimum(exact, FARTHEST * unit, out=exact), unit, out=exact)
    scores = _moved_together(apart, codes, unit_of, shares, block_of)
    np.copyto(scores, apart, where=together)
    np.divide(scores, np.add(scores, 1, out=apart), out=scores)
    if first.size == codes.size:
        matrix = scores[np.ix_(first, first)]
    else:
        average = np.zeros((first.size, codes.size))
        average[unit_of, np.arange(codes.size)] = shares
        matrix = average @ scores @ average.T
    # Samples of one unit are alike anyway.
    np.fill_diagonal(matrix, 0.0)
    return Scores(matrix, first)


def spatial_medians(squared: Float64, weights: Float64, floor: float | None = None) -> Float64:
    """Return spatial medians: the places with the least weighted sum of distances to the points.

    Parameters
    ----------
    squared
        Squared distances between points, ``(n_points, n_points)``.
    weights
        Not negative, one row for each median sought, ``(n_medians, n_points)``.
    floor
        Squared distances below it are rounding; default: those of the largest here.

    Returns
    -------
    ndarray of shape (n_medians, n_points)
        Each median as weights of the points that sum to one. A point that is the median itself has all of them.

    Examples
    --------
    >>> import numpy as np
    >>> places = np.array([0.0, 1.0, 1000.0])
    >>> spatial_medians((places[:, None] - places) ** 2, np.ones((1, 3)))
    array([[0., 1., 0.]])
    """
    least = _floor(squared) if floor is None else floor
    medians = weights / weights.sum(axis=1, keepdims=True)
    for _ in range(MOST_STEPS):  # Weiszfeld's iteration
        nearness = weights / np.sqrt(np.maximum(_to_points(squared, medians), least))
        before, medians = medians, nearness / nearness.sum(axis=1, keepdims=True)
        if np.abs(medians - before).max() < SETTLED:
            break
    return _on_points(squared, weights, medians)


def _left_out_medians(squared: Float64, codes: Int64, unit_of: Int64, shares: Float64) -> Float64:
    """Return the spatial median of each sample's group without the unit of the sample, ``(n_samples, n_samples)``."""
    medians, floor = np.zeros(squared.shape), _floor(squared)
    for group in range(int(codes.max()) + 1):
        members = np.flatnonzero(codes == group)
        inside = np.ix_(members, members)
        weights = np.where(unit_of[members, None] == unit_of[members], 0.0, shares[members])
        medians[inside] = spatial_medians(squared[inside], weights, floor)
    return medians


def _floor(squared: Float64) -> float:
    """Return the square below which a distance is rounding."""
    return max(np.finfo(float).eps * float(squared.max()), np.finfo(float).tiny)


def _to_points(squared: Float64, medians: Float64) -> Float64:
    """Return the squared distance of each median to each point, ``(n_medians, n_points)``."""
    products: Float64 = medians @ squared
    products -= np.add.reduce(products * medians, axis=1, keepdims=True) / 2
    return np.abs(products, out=products)


def _on_points(squared: Float64, weights: Float64, medians: Float64) -> Float64:
    """Put a median on the point nearest to it if the point is the median: the iteration only creeps towards it."""
    nearest = np.where(weights > 0, _to_points(squared, medians), np.inf).argmin(axis=1)
    apart = np.sqrt(squared[nearest])
    here = apart == 0
    pulls = np.divide(weights, apart, out=np.zeros_like(weights), where=~here)
    rows = np.arange(len(weights))
    pulls[rows, nearest] -= pulls.sum(axis=1)
    # The sum of unit vectors to all others, against the weight that rests on the point.
    pull = np.sqrt(np.maximum(-((pulls @ squared) * pulls).sum(axis=1) / 2, 0.0))
    resting = np.where(here, weights, 0.0).sum(axis=1)
    at_point = np.zeros_like(medians)
    at_point[rows, nearest] = 1.0
    # At equality, as between two points, every place between is a median too, and the iteration has found the middle.
    return np.where((pull < resting * (1 - 1e-9))[:, None], at_point, medians)


def _moved_together(
    distances: Float64, codes: Int64, unit_of: Int64, shares: Float64, block_of: Int64 | None
) -> Float64:
    """Return the distances between samples once their groups are moved onto each other.

    A sample pulls the median of its group towards itself and then seems nearer to it than it is. The median without the
    sample errs as much in the other direction: with means instead of medians the mean of both leaves a bias of
    ``1 / (8 n^2)`` in a group of n. So every sample is moved by the mean of both.
    """
    squared = distances**2
    members = (np.arange(codes.max() + 1)[:, None] == codes) * shares
    left_out = None
    if block_of is not None:
        freed = np.eye(codes.size) - _block_shifts(squared, codes, shares, block_of)
        cleared = _between(squared, freed)
        medians = spatial_medians(cleared, members) @ freed
        left_out = _left_out_medians(cleared, codes, unit_of, shares) @ freed
    else:
        medians = spatial_medians(squared, members)
        if np.bincount(codes).max() <= MOST_LEFT_OUT:
            left_out = _left_out_medians(squared, codes, unit_of, shares)
    kept = _share_to_move(squared, codes, unit_of, medians, left_out)

    def products(matrix: Float64) -> Float64:
        return (medians @ matrix)[codes] if left_out is None else (medians[codes] + left_out) / 2 @ matrix

    towards = products(squared).T * -0.5
    return _moved_by(distances, kept, codes, towards, products(towards))


def _moved_by(distances: Float64, kept: Float64, codes: Int64, towards: Float64, products: Float64) -> Float64:
    """Return distances between samples that each moved by a share of its center.

    ``kept`` is the share of two groups; ``towards`` has products of samples with centers, ``products`` those of
    centers. Some rows at a time: all would take several times the memory.
    """
    result = np.empty_like(distances)
    own, own_center = towards.diagonal(), products.diagonal()
    for start in range(0, len(result), ROWS):
        rows = slice(start, start + ROWS)
        share = kept[codes[rows, None], codes]
        along = own[rows, None] + own - towards[rows] - towards[:, rows].T
        around = np.abs(own_center[rows, None] + own_center - products[rows] - products[:, rows].T)
        moved = distances[rows] ** 2 - 2 * share * along + share**2 * around
        moved = np.where(np.abs(moved) > VANISHING, np.abs(moved), 0.0)
        result[rows] = np.where(share == 0, distances[rows], np.sqrt(moved))
    return result


def _share_to_move(
    squared: Float64, codes: Int64, unit_of: Int64, medians: Float64, left_out: Float64 | None
) -> Float64:
    """Return by which share of the difference of their medians two groups are moved, ``(n_groups, n_groups)``.

    Medians of groups in the same place differ by chance, and moving by chance blurs the permutations. The share is
    that of James and Stein: what the squared difference exceeds its uncertainty by, which is found by leaving out
    each unit in turn; without medians left out it is that of a mean.
    """
    errors = np.empty(len(medians))
    for group in range(len(medians)):
        members = np.flatnonzero(codes == group)
        first = members[np.unique(unit_of[members], return_index=True)[1]]
        if left_out is None:
            errors[group] = _to_points(squared, medians[group : group + 1])[0, first].sum() / first.size**2
        else:
            around = _between(squared, left_out[first])
            errors[group] = (first.size - 1) / first.size * around.sum() / (2 * first.size)
    apart = _between(squared, medians)
    exceeds = np.maximum(apart - errors - errors[:, None], 0.0)
    return np.divide(exceeds, apart, out=np.zeros_like(apart), where=apart > VANISHING)


def _block_shifts(squared: Float64, codes: Int64, shares: Float64, block_of: Int64) -> Float64:
    """Return how far the block of each sample is shifted, groups being accounted for, as weights of samples.

    The places of groups and blocks that add up to the least sum of distances to the samples: what the spatial median is
    for one group, found in the same way, by least squares that weigh each sample by its nearness to the last fit.
    """
    n_groups, identity = int(codes.max()) + 1, np.eye(codes.size)
    design = np.hstack([np.eye(n_groups)[codes], np.eye(int(block_of.max()) + 1)[block_of]])
    weights: Float64 = shares
    fitted: Float64 = identity
    for _ in range(FITS):
        weighted = design.T * weights
        products = weighted @ design
        # A common shift of all groups, against all blocks, changes nothing; a small ridge picks one.
        products[np.diag_indices_from(products)] += RIDGE * products.diagonal().max()
        fitted = np.asarray(np.linalg.solve(products, weighted), dtype=np.float64)
        left = identity - design @ fitted
        lengths = np.abs(((left @ squared) * left).sum(axis=1)) / 2
        weights = shares / np.sqrt(np.maximum(lengths, NEAREST))
    shifts = design[:, n_groups:] @ fitted[n_groups:]
    return np.asarray(shifts - shifts.mean(axis=0))


def _between(squared: Float64, combinations: Float64) -> Float64:
    """Return squared distances between combinations of points with equal sums of weights, ``(n_rows, n_rows)``."""
    products = combinations @ (combinations @ squared).T / -2
    own = products.diagonal()
    return np.asarray(np.abs(own[:, None] + own - products - products.T))
