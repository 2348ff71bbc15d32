"""`Prediction`: a variable of new samples as their nearest reference samples have it, and how far to trust that."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heatmover._base.types import Bool, Float64, Intp

__all__ = ["Prediction", "may_vote", "predict"]

# Pseudo-samples that hold a chance at the overall share of right answers: where two neighbours in the reference had
# such a vote, both right, the chance is not 1.
PRIOR = 2.0


class Prediction(NamedTuple):
    """A variable of new samples as their neighbours in the reference have it.

    Attributes
    ----------
    values
        The predicted value of each sample: the label with most votes, or the neighbours' mean of a number.
    votes
        ``(n_samples,)``: share of the votes for it; of a number NaN.
    chances
        ``(n_samples,)``: how often such a vote was right among the reference's own samples, each left out in turn; of a
        number NaN.
    accuracy
        Share of the reference's own samples that were predicted rightly; of a number the median error.
    is_number
        Whether the variable is a number.
    """

    values: tuple[Any, ...]
    votes: Float64
    chances: Float64
    accuracy: float
    is_number: bool


def predict(values: list[Any], distances: Float64, between: Float64, k: int) -> Prediction:
    """Predict a number as the mean of the k nearest, anything else by their votes.

    Parameters
    ----------
    values
        Of the reference samples, all known.
    distances, between
        ``(n_samples, n_reference)`` and ``(n_reference, n_reference)``, infinite between samples that must not vote.
    k
        How many vote.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _predict_number(np.array(values, dtype=np.float64), distances, between, k)
    return _predict_label(values, distances, between, k)


def may_vote(known: Intp, blocks: tuple[Any, ...] | None) -> Bool:
    """Return which pairs of reference samples may vote for each other: not a sample for itself, nor for its block."""
    apart = ~np.eye(known.size, dtype=bool)
    if blocks is not None:
        own = [blocks[i] for i in known]
        same = np.array([[one is not None and one == other for other in own] for one in own])
        apart &= ~same
    return apart


def _voters(distances: Float64, k: int) -> Intp:
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


def _predict_label(here: list[Any], distances: Float64, between: Float64, k: int) -> Prediction:
    labels = [str(value) for value in here]
    names = list(dict.fromkeys(labels))
    codes = np.array([names.index(label) for label in labels])
    value_of = dict(zip(labels, here, strict=True))
    winners, votes = _votes(codes, distances, k, len(names))
    own, own_votes = _votes(codes, between, k, len(names))
    right = own == codes
    accuracy = float(right.mean())
    chances = _calibrated(own_votes, right, votes)
    return Prediction(tuple(value_of[names[i]] for i in winners), votes, chances, accuracy, is_number=False)


def _votes(codes: Intp, distances: Float64, k: int, n_labels: int) -> tuple[Intp, Float64]:
    """Return the label with most votes of the k nearest, the nearer of two as strong, and its share of the votes."""
    voters = _voters(distances, k)
    valid = np.isfinite(np.take_along_axis(distances, voters, axis=1))
    counts = np.zeros((len(distances), n_labels))
    # The r-th nearest adds a little less than the one before it: it decides ties and nothing else.
    for rank in range(voters.shape[1]):
        weight = valid[:, rank] * (1 + 1e-6 * (k - rank))
        np.add.at(counts, (np.arange(len(distances)), codes[voters[:, rank]]), weight)
    winners = counts.argmax(axis=1)
    total = np.maximum(valid.sum(axis=1), 1)
    return winners, np.rint(counts[np.arange(len(counts)), winners]) / total


def _calibrated(votes: Float64, right: Bool, asked: Float64) -> Float64:
    """Return how often votes as clear as those asked for were right: increasing with the vote, held at the mean."""
    # Here, not above: it loads scipy.stats, which nothing else here needs.
    from sklearn.isotonic import IsotonicRegression

    levels, place = np.unique(votes, return_inverse=True)
    count = np.bincount(place)
    # Twenty right answers of twenty do not make the next one certain (Laplace's rule): no chance is above 21 of 22.
    overall, most = (np.count_nonzero(right) + 1) / (right.size + 2), (right.size + 1) / (right.size + 2)
    share = np.minimum((np.bincount(place, weights=right) + PRIOR * overall) / (count + PRIOR), most)
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    return np.asarray(curve.fit(levels, share, sample_weight=count).predict(asked), dtype=np.float64)


def _predict_number(here: Float64, distances: Float64, between: Float64, k: int) -> Prediction:
    means = here[_voters(distances, k)].mean(axis=1)
    voters = _voters(between, k)
    valid = np.isfinite(np.take_along_axis(between, voters, axis=1))
    own = (here[voters] * valid).sum(axis=1) / np.maximum(valid.sum(axis=1), 1)
    nothing = np.full(len(means), np.nan)
    return Prediction(tuple(means.tolist()), nothing, nothing, float(np.median(np.abs(own - here))), is_number=True)
