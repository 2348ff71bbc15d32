"""Predict metadata of new samples from nearest reference samples, with reliability; only `atlas.atlas` calls it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heatmover._base.types import Bool, Float64, Intp

# Number of pseudo-samples that shrink a probability toward the overall share of correct predictions. Without
# pseudo-samples, two correctly predicted reference samples with similar votes would give a probability of 1.
PRIOR = 2.0


class Prediction(NamedTuple):
    """Metadata of new samples, predicted from their neighbors in the reference.

    Attributes
    ----------
    values
        Predicted value of each sample: the label with the most votes; for a numeric variable, the mean over the
        neighbors.
    votes
        ``(n_samples,)``: share of votes for the predicted label; NaN for a numeric variable.
    chances
        ``(n_samples,)``: estimated probability that the prediction is correct; NaN for a numeric variable. The estimate
        is the share of correct predictions among left-out reference samples with a similar share of votes.
    accuracy
        Share of left-out reference samples that are predicted correctly; for a numeric variable, the median absolute
        error.
    is_number
        Whether the variable is numeric.
    """

    values: tuple[Any, ...]
    votes: Float64
    chances: Float64
    accuracy: float
    is_number: bool


def predict(values: list[Any], distances: Float64, between: Float64, k: int) -> Prediction:
    """Predict numbers by the mean over the k nearest samples, and labels by the votes of the k nearest samples.

    Parameters
    ----------
    values
        Value of each reference sample, without missing values.
    distances
        ``(n_samples, n_reference)``: distances from the new samples to the reference samples.
    between
        ``(n_reference, n_reference)``: distances between reference samples, infinite for pairs that must not vote for
        each other.
    k
        Number of neighbors that vote.
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return _predict_number(np.array(values, dtype=np.float64), distances, between, k)
    return _predict_label(values, distances, between, k)


def may_vote(known: Intp, blocks: tuple[Any, ...] | None) -> Bool:
    """Return which pairs of reference samples may vote for each other: different samples that share no block."""
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
    """Return the label with most votes of the k nearest samples, and its share of votes; nearer samples break ties."""
    voters = _voters(distances, k)
    valid = np.isfinite(np.take_along_axis(distances, voters, axis=1))
    counts = np.zeros((len(distances), n_labels))
    # Each neighbor has slightly less weight than the next nearer neighbor, so that the nearer samples break ties.
    for rank in range(voters.shape[1]):
        weight = valid[:, rank] * (1 + 1e-6 * (k - rank))
        np.add.at(counts, (np.arange(len(distances)), codes[voters[:, rank]]), weight)
    winners = counts.argmax(axis=1)
    total = np.maximum(valid.sum(axis=1), 1)
    return winners, np.rint(counts[np.arange(len(counts)), winners]) / total


def _calibrated(votes: Float64, right: Bool, new_votes: Float64) -> Float64:
    """Return how often predictions with votes like ``new_votes`` were correct (isotonic regression with shrinkage)."""
    # Imported here because it loads scipy.stats, which nothing else in this module needs.
    from sklearn.isotonic import IsotonicRegression

    levels, place = np.unique(votes, return_inverse=True)
    count = np.bincount(place)
    # Laplace's rule: even after 20 of 20 correct predictions, the next prediction is not certain. The limit is then 21
    # of 22.
    overall, most = (np.count_nonzero(right) + 1) / (right.size + 2), (right.size + 1) / (right.size + 2)
    share = np.minimum((np.bincount(place, weights=right) + PRIOR * overall) / (count + PRIOR), most)
    curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    return np.asarray(curve.fit(levels, share, sample_weight=count).predict(new_votes), dtype=np.float64)


def _predict_number(here: Float64, distances: Float64, between: Float64, k: int) -> Prediction:
    means = here[_voters(distances, k)].mean(axis=1)
    voters = _voters(between, k)
    valid = np.isfinite(np.take_along_axis(between, voters, axis=1))
    own = (here[voters] * valid).sum(axis=1) / np.maximum(valid.sum(axis=1), 1)
    nothing = np.full(len(means), np.nan)
    return Prediction(tuple(means.tolist()), nothing, nothing, float(np.median(np.abs(own - here))), is_number=True)
