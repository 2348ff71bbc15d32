"""Estimate how much of a distance is abundance and how much is state, with an interval; for `study`; no files.

The witness of a distance fits the sampling noise of the samples from which it is computed. Noise looks like a change in
abundance, so most of a distance without any difference would be called abundance. Here samples are therefore left out
in folds: each witness is computed from the other samples, and evaluated on the samples that were left out. The
expectation of both parts is then zero if the groups do not differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import check_threads
from heatmover.attribution.cell_types import TypedCells, by_type
from heatmover.attribution.contrast import SampleContrast
from heatmover.embedding.estimator import DiffusionEMD

# Largest number of folds. More folds use more samples for each witness, and take proportionally longer.
MOST_FOLDS = 10
# Smallest number of samples, or blocks, on each side for an interval.
FEWEST = 4
REPLICATES = 999
# If the parts of more than this share of the replicates do not sum to a positive distance, there is no interval.
MOST_UNDEFINED = 0.05


class AbundanceShare(NamedTuple):
    """Share of a distance that abundance accounts for, corrected for noise, and its 95% confidence interval."""

    value: float
    low: float
    high: float


def abundance_share(
    model: DiffusionEMD, design: SampleContrast, cells: TypedCells, rng: np.random.Generator
) -> AbundanceShare | None:
    """Return the share of a distance that abundance accounts for; None if the samples do not determine this share.

    Samples, or blocks, are resampled within both sides of the contrast (bootstrap). The interval is the percentile
    interval, widened around its median by ``sqrt(n / (n - 2))`` and by the quotient of the quantiles of the t
    distribution with ``n - 2`` degrees of freedom and of the normal distribution.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    design
        The contrast of the samples.
    cells
        Cells of all samples by type.
    rng
        Generator of the folds and of the replicates.
    """
    cluster, on_side = _clusters(design)
    fewest = min(np.unique(cluster[side]).size for side in on_side)
    if fewest < FEWEST:
        return None
    scores = _held_out(model, design, cells, _folds(cluster, design, min(fewest, MOST_FOLDS), rng))
    if scores is None:
        return None
    n_clusters = int(cluster.max()) + 1
    drawn = np.zeros((REPLICATES, n_clusters))
    # Blocks with samples on both sides are resampled together.
    strata = [np.unique(cluster)] if np.isin(cluster[on_side[0]], cluster[on_side[1]]).any() else [
        np.unique(cluster[side]) for side in on_side
    ]  # fmt: skip
    for members in strata:
        drawn[:, members] = rng.multinomial(members.size, np.full(members.size, 1 / members.size), REPLICATES)
    replicates = _parts(scores, design.sides, drawn[:, cluster])
    value = _parts(scores, design.sides, np.ones((1, len(scores))))[0]
    total = replicates.sum(axis=1)
    defined = np.isfinite(total) & (total > 0)
    if defined.mean() < 1 - MOST_UNDEFINED or value.sum() <= 0:
        return None
    low, middle, high = np.quantile(replicates[defined, 0] / total[defined], [0.025, 0.5, 0.975])
    wider = np.sqrt(n_clusters / (n_clusters - 2)) * stdtrit(n_clusters - 2, 0.975) / ndtri(0.975)
    ends = middle + wider * (low - middle), middle + wider * (high - middle)
    return AbundanceShare(*(float(np.clip(end, 0.0, 1.0)) for end in (value[0] / value.sum(), *ends)))


def _clusters(design: SampleContrast) -> tuple[Int64, list[Int64]]:
    """Return the cluster of each unit that is resampled as a whole, and the units on the two sides."""
    several = np.unique(design.blocks).size > 1
    cluster = np.unique(design.blocks, return_inverse=True)[1].ravel() if several else np.arange(len(design.blocks))
    return cluster.astype(np.int64), [np.flatnonzero(side > 0) for side in design.sides]


def _folds(cluster: Int64, design: SampleContrast, n_folds: int, rng: np.random.Generator) -> Int64:
    """Return the fold of each unit; every fold has about the same share of each side."""
    along = np.bincount(cluster, weights=design.regressors[0]) / np.bincount(cluster)
    order = np.lexsort((rng.random(along.size), along))
    fold = np.empty(along.size, dtype=np.int64)
    fold[order] = np.arange(along.size) % n_folds
    return fold[cluster]


def _held_out(model: DiffusionEMD, design: SampleContrast, cells: TypedCells, folds: Int64) -> Float64 | None:
    """Return the scores of abundance and state of every unit, ``(n_units, 2)``, by the witness of the other folds."""
    graph, prepared, threads = model.graph_, model.prepared_, check_threads(model.n_jobs)
    n_folds, n_types = int(folds.max()) + 1, len(cells.names)
    units = design.units(cells.masses)
    rows = graph.gather(by_type(cells, units, cells.nodes, graph.n_points))
    kept = folds != np.arange(n_folds)[:, None]
    training = design.sides * kept[:, None]  # (n_folds, 2, n_units)
    total = training.sum(axis=2, keepdims=True)
    if (total <= 0).any():
        return None
    training /= total
    spread = np.repeat(training[:, 0] - training[:, 1], n_types, axis=1)
    moved = np.asarray(spread @ rows)
    size = np.abs(moved).sum(axis=1, keepdims=True)
    if (size <= 0).any():
        return None
    features = prepared.embed(moved / size, n_threads=threads)
    witness = prepared.embed_transposed(np.sign(features), n_threads=threads).astype(np.float64)
    sums = np.asarray(rows @ witness.T).reshape(len(folds), n_types, n_folds)
    shares = np.asarray(rows.sum(axis=1)).reshape(len(folds), n_types)
    scores = np.empty((len(folds), 2))
    for fold in range(n_folds):
        own, sides = sums[:, :, fold], training[fold]
        masses, products = sides @ shares, sides @ own
        means = np.divide(products, masses, out=np.zeros_like(masses), where=masses > 0)
        # A type that one side lacks has the mean of the other side.
        typical = means.sum(axis=0) / np.maximum((masses > 0).sum(axis=0), 1)
        state = (own - shares * typical).sum(axis=1)
        abundance = shares @ typical
        both = np.column_stack([abundance, state])
        inside = folds == fold
        scores[inside] = both[inside] - (sides @ both).mean(axis=0)
    return scores


def _parts(scores: Float64, sides: Float64, counts: Float64) -> Float64:
    """Return the parts of abundance and state for every row of counts of the units, ``(n_rows, 2)``."""
    means = []
    for side in sides:
        weights = counts * side
        total = weights.sum(axis=1, keepdims=True)
        means.append(np.divide(weights @ scores, total, out=np.full((len(counts), 2), np.nan), where=total > 0))
    return np.asarray(means[0] - means[1])
