"""Estimate and remove one shift of all cells per batch; for users and `study_cohort`; reads cohorts, writes nothing."""

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
from heatmover.statistics.permutations import check_labels
from heatmover.study.examination import design_of

# Number of cells from which the shifts are estimated: the standard error of the mean of 20,000 cells is 0.7% of their
# standard deviation.
MOST_CELLS = 20_000
# Batches are compared within clusters of cells, so that the cell-type composition of a sample does not matter. Number
# of clusters, and the smallest allowed mean number of cells per cluster.
CLUSTERS, CELLS_PER_CLUSTER = 20, 50
# Largest number of passes, each of which clusters the shifted cells and estimates the shifts again. Passes end when the
# shifts change by less than 0.001 times the spread of the cells.
PASSES = 10
CONVERGED = 1e-3


class Alignment(NamedTuple):
    """Shifts of batches.

    Attributes
    ----------
    batches
        Names of the batches, sorted.
    shifts
        ``(n_batches, n_dimensions)``: vector that is subtracted from the points of each batch. The mean of the shifts
        over samples is zero.
    spread
        Root mean square distance of the cells from their mean. `describe` states the lengths of the shifts as multiples
        of this distance.

    Examples
    --------
    >>> alignment = Alignment(("x", "y"), np.array([[0.5, 0.0], [-0.5, 0.0]]), 2.0)
    >>> print(alignment.describe("batch"))
    Batch shifts of 2 batches ('batch') were subtracted from the cells. Shifts were 0.25 to 0.25 times the root ...
    """

    batches: tuple[str, ...]
    shifts: Float64
    spread: float

    def describe(self, name: str) -> str:
        """Describe the shifts in a sentence; ``name`` is the batch variable."""
        lengths = np.sqrt((self.shifts**2).sum(axis=1)) / (self.spread or 1.0)
        return (
            f"Batch shifts of {counted(len(self.batches), 'batch')} ({quoted(name)}) were subtracted from the cells. "
            f"Shifts were {lengths.min():.2g} to {lengths.max():.2g} times the root mean square deviation of the "
            "cells. All results use the shifted cells. Batch effects that scale or rotate the cells remain."
        )


class _BatchDesign(NamedTuple):
    """Design from which shifts are estimated.

    ``batch`` ``(n_samples,)`` is the batch of each sample, as an index into ``names``. ``used`` ``(n_samples,)`` is
    true for samples from which shifts are estimated. ``kept`` ``(n_used, n_columns)`` contains the covariates whose
    effects are not removed.
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
    """Estimate one shift for the points of each batch, and subtract it.

    Batches are compared within clusters of points, so that a different cell-type composition is not mistaken for a
    shift. The variables in ``keep`` are held fixed, so that differences between conditions are not removed. Anchors are
    technical replicates: samples of the same material, measured in every batch. If anchors are given, shifts are
    estimated from the anchors alone, and ``keep`` is ignored.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    samples
        ``(n_points,)``: sample of each point, numbered from 0.
    batch
        ``(n_samples,)``: batch of each sample.
    keep
        Variables whose effects are not removed, such as the condition: values ``(n_samples,)`` by name.
    anchors
        ``(n_samples,)``: material of each anchor sample; missing for all other samples.

    Returns
    -------
    points : ndarray of shape (n_points, n_dimensions)
        Shifted points.
    alignment : Alignment
        Shifts of the batches.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> samples, batch = np.repeat(np.arange(8), 50), list("xyxyxyxy")
    >>> points = rng.normal(size=(400, 2)) + [3.0, 0.0] * (samples % 2)[:, None]
    >>> moved, alignment = align_batches(points, samples, batch)
    >>> (alignment.shifts[1] - alignment.shifts[0]).round(0)
    array([ 3., -0.])
    """
    places = np.asarray(check_matrix("points", points), dtype=np.float64)
    fit = check_batches(batch, keep or {}, anchors)
    codes, n_samples = np.asarray(samples), len(fit.batch)
    whole = codes.shape == (len(places),) and codes.dtype.kind in "iu"
    if not whole or codes.min() < 0 or codes.max() >= n_samples:
        raise InvalidInputError(
            f"the argument samples to hold a number from 0 to {n_samples - 1} for each of the "
            f"{counted(len(places), 'point')}",
            f"{codes.dtype} of shape {codes.shape}",
        )
    codes = codes.astype(np.int64)
    alignment = _estimated(places, codes, fit)
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
    """Return a cohort that subtracts the batch shifts from its cells whenever they are read; see `align_batches`.

    Parameters
    ----------
    cohort
        The cells.
    kept
        Indices of the samples to align; all other samples stay unchanged.
    batch, keep, anchors
        As in `align_batches`, with values for the samples in ``kept``.
    numeric
        As in `check_batches`.
    """
    fit = check_batches(batch, keep, anchors, numeric=numeric)
    place = np.full(len(cohort.names), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    # Choose evenly spaced cells of the samples to align.
    inside = np.flatnonzero(place[cohort.codes] >= 0)
    rows = inside[np.linspace(0, inside.size - 1, min(MOST_CELLS, inside.size)).astype(np.int64)]
    drawn, done = [], 0
    for points, _ in cohort.chunks():
        here = rows[np.searchsorted(rows, done) : np.searchsorted(rows, done + len(points))]
        drawn.append(points[here - done])
        done += len(points)
    alignment = _estimated(np.concatenate(drawn).astype(np.float64), place[cohort.codes[rows]], fit)
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
    """Return the design from which shifts are estimated, or raise if batches are confounded with ``keep``.

    Parameters
    ----------
    batch, keep, anchors
        As in `align_batches`.
    numeric
        Names of variables in ``keep`` that are numbers even if they have few distinct values.
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
    columns = np.zeros((int(used.sum()), 0))  # covariates whose effects are kept, without the constant
    if keep:
        columns = covariates(design_of(keep, numeric=numeric).terms, len(columns))[:, 1:]
    fixed = np.hstack([np.full((len(columns), 1), 1 / np.sqrt(len(columns))), columns])
    rank = orthonormal(np.eye(len(names))[codes[used]], np.linalg.qr(fixed)[0]).shape[1]
    if rank < len(names) - 1:
        raise InvalidInputError(
            f"batches that can be separated from {', '.join(map(quoted, keep))}",
            f"{counted(len(names), 'batch')}, {len(names) - 1 - rank} of them confounded",
            "alignment needs a condition that occurs in several batches, or anchor samples in every batch",
        )
    return _BatchDesign(codes, names, columns, used)


def _estimated(points: Float64, codes: Int64, fit: _BatchDesign) -> Alignment:
    """Estimate the shifts of batches from sample means, then refine them within clusters of the shifted points."""
    # Imported here, because the import takes a while.
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
    """Return the shift of each batch by weighted least squares on sample means per cluster, adjusted for ``fit.kept``.

    Parameters
    ----------
    points
        ``(n_points, n_dimensions)``.
    samples, clusters
        ``(n_points,)``: sample of each point, as an index into the used samples, and cluster of each point.
    fit
        Batches of the samples, and covariates whose effects are not removed.
    """
    batch = np.eye(len(fit.names))[fit.batch[fit.used]][:, 1:]  # shifts are relative to the first batch
    squares, products = np.zeros((batch.shape[1],) * 2), np.zeros((batch.shape[1], points.shape[1]))
    for cluster in range(int(clusters.max()) + 1):
        here = clusters == cluster
        counts = np.bincount(samples[here], minlength=len(batch))
        present = counts > 0
        sums = np.zeros((len(batch), points.shape[1]))
        np.add.at(sums, samples[here], points[here])
        weights = np.sqrt(counts[present])[:, None]
        means = sums[present] / counts[present][:, None] * weights
        fixed = np.linalg.svd(np.hstack([np.ones_like(weights), fit.kept[present]]) * weights, full_matrices=False)
        basis = fixed[0][:, fixed[1] > 1e-9 * fixed[1].max()]
        own = batch[present] * weights
        own = own - basis @ (basis.T @ own)
        squares += own.T @ own
        products += own.T @ means
    others = np.linalg.lstsq(squares, products, rcond=1e-10)[0]
    return np.vstack([np.zeros((1, points.shape[1])), others])
