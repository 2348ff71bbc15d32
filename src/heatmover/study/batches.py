"""Batches moved onto each other: the shift that the cells of each batch have in common, found and taken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Int64, Intp
from heatmover._base.validation import check_matrix
from heatmover._base.words import counted, listed, quoted
from heatmover.cohort import Cohort
from heatmover.cohort.cohort import shifted_cohort
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import is_missing
from heatmover.statistics.designs import covariates, orthonormal
from heatmover.statistics.samples import check_labels
from heatmover.study.examination import design_of

__all__ = ["Alignment", "align_batches", "align_cohort", "check_batches"]

# Cells that the shifts are learnt from; more change them little: the error of a mean of 20,000 is 0.7 % of the spread.
MOST_CELLS = 20_000
# Clusters within which batches are compared, so that it does not matter how many cells of each kind a sample has.
CLUSTERS, CELLS_PER_CLUSTER = 20, 50
# Passes of clustering and comparing; the shifts of the last change by less than a thousandth of the spread.
PASSES = 10
CONVERGED = 1e-3


class Alignment(NamedTuple):
    """Shifts of batches.

    Attributes
    ----------
    batches
        Names of the batches, sorted.
    shifts
        ``(n_batches, n_dimensions)``: what is taken off the points of each batch; their mean over samples is zero.
    spread
        Root mean square distance of a cell from the mean of all, for comparison.

    Examples
    --------
    >>> found = Alignment(("x", "y"), np.array([[0.5, 0.0], [-0.5, 0.0]]), 2.0)
    >>> print(found.describe("batch"))
    Cells of 2 batches ('batch') were moved onto each other, by 0.25 to 0.25 times the spread of the cells; ...
    """

    batches: tuple[str, ...]
    shifts: Float64
    spread: float

    def describe(self, name: str) -> str:
        """Return what was done in one sentence, with the name of the variable."""
        lengths = np.sqrt((self.shifts**2).sum(axis=1)) / (self.spread or 1.0)
        return (
            f"Cells of {counted(len(self.batches), 'batch')} ({quoted(name)}) were moved onto each other, by "
            f"{lengths.min():.2g} "
            f"to {lengths.max():.2g} times the spread of the cells; distances and all that follows are those of the "
            "moved cells. A batch that also stretches or turns its cells is not undone by this."
        )


class _BatchDesign(NamedTuple):
    """What shifts are learnt from.

    ``batch`` ``(n_samples,)`` of each sample, with their ``names``; ``used`` ``(n_samples,)``: whether to learn from
    it; ``kept`` ``(n_used, n_columns)``: what is no effect of batches.
    """

    batch: Int64
    names: tuple[str, ...]
    kept: Float64
    used: Bool


def align_batches(
    points: npt.ArrayLike,
    samples: npt.ArrayLike,
    batch: Sequence[object],
    *,
    keep: Mapping[str, Sequence[object]] | None = None,
    anchors: Sequence[object] | None = None,
) -> tuple[Float64, Alignment]:
    """Return points without the shift that those of each batch have in common.

    Batches are compared within clusters of points, so that numbers of cells do not matter, and with what is to be kept
    held fixed, so that no difference between conditions is taken for one of batches. Anchors, the same material in
    every batch, need nothing to be kept: then shifts come from them alone.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    samples
        ``(n_points,)``: the sample of each, as a number from 0 on.
    batch
        ``(n_samples,)``: the batch of each sample.
    keep
        Values ``(n_samples,)`` by name that are no effect of batches, such as the condition.
    anchors
        ``(n_samples,)``: the material of each sample that is an anchor, missing for all others.

    Returns
    -------
    points : ndarray of shape (n_points, n_dimensions)
        Moved.
    alignment : Alignment
        By how much.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> samples, batch = np.repeat(np.arange(8), 50), list("xyxyxyxy")
    >>> points = rng.normal(size=(400, 2)) + [3.0, 0.0] * (samples % 2)[:, None]
    >>> moved, found = align_batches(points, samples, batch)
    >>> (found.shifts[1] - found.shifts[0]).round(0)
    array([ 3., -0.])
    """
    places = np.asarray(check_matrix("points", points), dtype=np.float64)
    fit = check_batches(batch, keep or {}, anchors)
    codes, n_samples = np.asarray(samples), len(fit.batch)
    whole = codes.shape == (len(places),) and codes.dtype.kind in "iu"
    if not whole or codes.min() < 0 or codes.max() >= n_samples:
        raise InvalidInputError(
            f"samples: a number from 0 to {n_samples - 1} for each of the {counted(len(places), 'point')}",
            f"{codes.dtype} of shape {codes.shape}",
        )
    codes = codes.astype(np.int64)
    alignment = _learnt(places, codes, fit)
    return places - alignment.shifts[fit.batch[codes]], alignment


def align_cohort(
    cohort: Cohort,
    kept: Intp,
    batch: Sequence[object],
    keep: Mapping[str, Any],
    anchors: Sequence[object] | None,
    *,
    numeric: Sequence[str] = (),
) -> tuple[Cohort, Alignment]:
    """Return a cohort whose batches are moved onto each other as it is read; see `align_batches`.

    Parameters
    ----------
    cohort
        The cells.
    kept
        Samples that take part, of which the others are values.
    batch, keep, anchors
        As in `align_batches`, of the samples that take part.
    numeric
        As in `check_batches`.
    """
    fit = check_batches(batch, keep, anchors, numeric=numeric)
    place = np.full(len(cohort.names), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    points, codes = _some_cells(cohort, place)
    alignment = _learnt(points, codes, fit)
    batches = np.full(len(cohort.names), -1, dtype=np.int16)
    batches[kept] = fit.batch
    return shifted_cohort(cohort, batches, alignment.shifts), alignment


def check_batches(
    batch: Sequence[object],
    keep: Mapping[str, Sequence[object]],
    anchors: Sequence[object] | None,
    *,
    numeric: Sequence[str] = (),
) -> _BatchDesign:
    """Return what shifts are learnt from, or raise if batches cannot be told from what is kept.

    Parameters
    ----------
    batch, keep, anchors
        As in `align_batches`.
    numeric
        Names of what is kept that are numbers however few values they have.
    """
    codes, names = check_labels("batch", list(batch), len(list(batch)))
    if len(names) < 2:
        raise InvalidInputError(f"at least two batches for {argument('align_batch')}", f"one, {quoted(names[0])}")
    used = np.ones(len(codes), dtype=bool)
    if anchors is not None:
        used = np.array([not is_missing(value) for value in anchors], dtype=bool)
        without = [name for code, name in enumerate(names) if not (codes[used] == code).any()]
        if without:
            raise InvalidInputError("an anchor sample in every batch", f"none in {listed(without)}")
        labels = [str(value) for value in anchors if not is_missing(value)]
        keep = {"anchors": labels} if len(set(labels)) > 1 else {}
    columns = _kept_columns(keep, int(used.sum()), numeric)
    fixed = np.hstack([np.full((len(columns), 1), 1 / np.sqrt(len(columns))), columns])
    told = orthonormal(np.eye(len(names))[codes[used]], np.linalg.qr(fixed)[0]).shape[1]
    if told < len(names) - 1:
        raise InvalidInputError(
            f"batches that can be told from {', '.join(map(quoted, keep))}",
            f"{counted(len(names), 'batch')} of which {len(names) - 1 - told} cannot",
            "no alignment can separate them: the same condition, or anchor samples, must be in several batches",
        )
    return _BatchDesign(codes, names, columns, used)


def _kept_columns(keep: Mapping[str, Sequence[object]], n_samples: int, numeric: Sequence[str]) -> Float64:
    """Return orthonormal columns of what is kept, without the mean, ``(n_samples, rank)``."""
    if not keep:
        return np.zeros((n_samples, 0))
    return covariates(design_of(keep, numeric=numeric).terms, n_samples)[:, 1:]


def _some_cells(cohort: Cohort, place: Int64) -> tuple[Float64, Int64]:
    """Return evenly spaced cells of the samples that take part, and the sample of each."""
    inside = np.flatnonzero(place[cohort.codes] >= 0)
    rows = inside[np.linspace(0, inside.size - 1, min(MOST_CELLS, inside.size)).astype(np.int64)]
    parts, done = [], 0
    for points, _ in cohort.chunks():
        here = rows[np.searchsorted(rows, done) : np.searchsorted(rows, done + len(points))]
        parts.append(points[here - done])
        done += len(points)
    return np.concatenate(parts).astype(np.float64), place[cohort.codes[rows]]


def _learnt(points: Float64, codes: Int64, fit: _BatchDesign) -> Alignment:
    """Return the shifts of batches: from means of samples first, then within clusters of the points moved so far."""
    # Here, because it takes a while to import.
    from sklearn.cluster import KMeans

    spread = float(np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()))
    chosen = fit.used[codes]
    inside, batches = points[chosen], fit.batch[codes[chosen]]
    samples = (np.cumsum(fit.used) - 1)[codes[chosen]]
    clusters = np.zeros(len(inside), dtype=np.int64)
    shifts = _shifts(inside, samples, clusters, fit)
    n_clusters = max(1, min(CLUSTERS, len(inside) // CELLS_PER_CLUSTER))
    for _ in range(PASSES):
        moved = inside - shifts[batches]
        clusters = KMeans(n_clusters, n_init=1, random_state=0).fit_predict(moved).astype(np.int64)
        change = _shifts(moved, samples, clusters, fit)
        shifts = shifts + change
        if np.abs(change).max() <= CONVERGED * spread:
            break
    return Alignment(fit.names, shifts - np.bincount(fit.batch) @ shifts / len(fit.batch), spread)


def _shifts(points: Float64, samples: Int64, clusters: Int64, fit: _BatchDesign) -> Float64:
    """Return what batches have in common within clusters, what is kept held fixed: weighted least squares of means.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    samples, clusters
        ``(n_points,)``: sample, counted among those that are learnt from, and cluster of each.
    fit
        Batches, and what is kept.
    """
    batch = np.eye(len(fit.names))[fit.batch[fit.used]][:, 1:]  # the first is where the others go
    squares, products = np.zeros((batch.shape[1],) * 2), np.zeros((batch.shape[1], points.shape[1]))
    for cluster in range(int(clusters.max()) + 1):
        here = clusters == cluster
        counts = np.bincount(samples[here], minlength=len(batch))
        seen = counts > 0
        sums = np.zeros((len(batch), points.shape[1]))
        np.add.at(sums, samples[here], points[here])
        weights = np.sqrt(counts[seen])[:, None]
        means = sums[seen] / counts[seen][:, None] * weights
        fixed = np.linalg.svd(np.hstack([np.ones_like(weights), fit.kept[seen]]) * weights, full_matrices=False)
        basis = fixed[0][:, fixed[1] > 1e-9 * fixed[1].max()]
        own = batch[seen] * weights
        own = own - basis @ (basis.T @ own)
        squares += own.T @ own
        products += own.T @ means
    others = np.linalg.lstsq(squares, products, rcond=1e-10)[0]
    return np.vstack([np.zeros((1, points.shape[1])), others])
