"""`Mapped`: where new samples landed on an atlas, and the answers that follow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._handed import handed
from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Bool, Float64, FloatArray, Int64, Intp
from heatmover._validation import check_integer
from heatmover._words import counted, find, percent, quoted
from heatmover.atlas.coverage import RANKED, Coverage
from heatmover.atlas.features import Features
from heatmover.atlas.placing import Placement
from heatmover.attribution import explain
from heatmover.calibration import Curve
from heatmover.embedding import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Landmarks
from heatmover.index import MeasureIndex
from heatmover.manifold import classical_scaling
from heatmover.measures import Measures, measures_from_weights
from heatmover.noise import uncertainty
from heatmover.tables import write_table

__all__ = ["Mapped", "Prediction", "Reference"]

# Pseudo-samples that hold a chance at the overall share of right answers: where two neighbours in the reference had
# such a vote, both right, the chance is not 1.
PRIOR = 2.0
# Nearest reference samples that are told and vote, if nobody says how many.
NEIGHBOURS = 10


Method = Literal["auto", "exact", "approximate"]


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


@final
@dataclass(frozen=True, eq=False)
class Reference(ReadOnlyArrays):
    """What answers about new samples are made of: reference samples and model, with the fields of `Atlas`."""

    names: tuple[str, ...]
    sizes: Int64
    measures: Measures
    embedding: FloatArray
    variables: Mapping[str, tuple[Any, ...]]
    model: DiffusionEMD
    nodes: Landmarks
    features: Features
    curve: Curve | None = None

    @cached_property
    def distances(self) -> Float64:
        """``(n_samples, n_samples)``: between the reference samples."""
        return self.in_units(pairwise_distances(self.embedding, n_jobs=self.model.n_jobs))

    @cached_property
    def _index(self) -> MeasureIndex:
        # By place in the list, not by name: only the places of the nearest are asked for.
        return MeasureIndex.from_embedding(self.embedding)

    def nearest(self, rows: FloatArray, k: int, method: Method) -> tuple[Float64, Int64]:
        """Return distances to, and places of, the k nearest reference samples of rows of the embedding."""
        found = self._index.nearest(rows, k, method=method, n_jobs=self.model.n_jobs)
        return self.in_units(found.distances), found.rows

    def in_units(self, distances: FloatArray) -> Float64:
        """Return distances of the embedding in real units, if the atlas has them."""
        values = np.asarray(distances, dtype=np.float64)
        return values if self.curve is None else self.curve(values)

    @cached_property
    def coordinates(self) -> Float64:
        """``(n_samples, 2)``: the map of the reference samples, classical scaling of their distances."""
        return classical_scaling(self.distances, 2)[0]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the columns of the nodes: those of the features, or of principal components."""
        if self.features.projection.components is None:
            return self.features.names
        return tuple(f"component {number}" for number in range(1, self.nodes.centers.shape[1] + 1))

    def variable(self, name: str) -> tuple[Any, ...]:
        """Return the values of a variable, or raise with the nearest name."""
        return self.variables[find(name, self.variables, "a variable of the atlas")]


@final
@dataclass(frozen=True, eq=False, repr=False)
class Mapped(ReadOnlyArrays):
    """New samples on an atlas; `Atlas.map` makes one, ``print`` it.

    Attributes
    ----------
    names, sizes
        Of the new samples, and how many cells each has, ``(n_samples,)``.
    measures
        Their masses on the nodes of the atlas, ``(n_samples, n_nodes)``.
    embedding
        ``(n_samples, n_features)``, by the model of the atlas.
    coverage
        Whether the reference knows their cells; None if the atlas cannot tell.
    warnings
        What is legal but odd, such as other units, in sentences.
    reference
        The reference samples.
    placement
        How cells were placed on the nodes, see `Atlas.map`.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(14, cells_per_sample=60, effect=8.0)
    >>> new = np.isin(data.labels, ["case-07", "control-07"])
    >>> condition = ["case"] * 6 + ["control"] * 6
    >>> atlas = hm.build_atlas(data.points[~new], data.labels[~new], variables={"condition": condition})
    >>> mapped = atlas.map(data.points[new], data.labels[new])
    >>> distances, indices = mapped.nearest(3)
    >>> mapped.coverage.covered
    (True, True)
    >>> mapped.predict("condition", k=3).values
    ('case', 'control')
    """

    names: tuple[str, ...]
    sizes: Int64
    measures: Measures
    embedding: FloatArray
    coverage: Coverage | None
    warnings: tuple[str, ...]
    reference: Reference
    placement: Placement = "nearest"

    def check_whole(self, expected: str) -> None:
        """Raise unless every cell is wholly at one node."""
        if self.placement != "nearest":
            raise InvalidInputError(
                expected, f"samples mapped with {argument('placement', self.placement)}",
                f"map them with {argument('placement', 'nearest')}",
            )  # fmt: skip

    @cached_property
    def distances(self) -> Float64:
        """``(n_samples, n_reference)``: to the reference samples, in the unit of the atlas."""
        reference = self.reference
        found = pairwise_distances(self.embedding, reference.embedding, n_jobs=reference.model.n_jobs)
        return reference.in_units(found)

    def nearest(self, k: int = 10, *, method: Method = "auto") -> tuple[Float64, Int64]:
        """Return the k nearest reference samples of each sample.

        Parameters
        ----------
        k
            How many; at most as many as there are reference samples.
        method
            As in `heatmover.MeasureIndex.nearest`: ``"auto"`` is exact below 10,000 reference samples.

        Returns
        -------
        distances : ndarray of shape (n_samples, k)
            Ascending in each row.
        indices : ndarray of shape (n_samples, k)
            Into the names of the reference. Of equal distances the smaller index comes first.
        """
        k = check_integer("k", k, minimum=1, maximum=len(self.reference.names))
        return self.reference.nearest(self.embedding, k, method)

    def predict(self, variable: str, k: int | None = None, *, blocks: str | None = None) -> Prediction:
        """Tell a variable of the new samples from their nearest reference samples, and how far that is to be trusted.

        Each of the k nearest with a known value has one vote; a tie goes to the nearer. The chance comes from the
        reference's own samples, each left out in turn: how often a vote as clear as this one was right.

        Parameters
        ----------
        variable
            Of the reference samples.
        k
            Neighbours that vote; None for 10, or for all but one of the reference samples with a known value if these
            are fewer.
        blocks
            A variable that ties reference samples together, such as the patient: a sample's own block is left out with
            it when votes are judged, for its neighbours there would flatter them.
        """
        reference = self.reference
        values = reference.variable(variable)
        known = np.flatnonzero([value is not None for value in values])
        k = max(1, min(NEIGHBOURS, known.size - 1)) if k is None else check_integer("k", k, minimum=1)
        if known.size <= k:
            raise InvalidInputError(
                f"more than {argument('k', k)} reference samples with a value of {quoted(variable)}",
                f"{known.size}", f"lower {argument('k')}",
            )  # fmt: skip
        own = None if blocks is None else reference.variable(blocks)
        apart = _apart(known, own)
        between = np.where(apart, reference.distances[np.ix_(known, known)], np.inf)
        here = [values[i] for i in known]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in here):
            return _predict_number(np.array(here, dtype=np.float64), self.distances[:, known], between, k)
        return _predict_label(here, self.distances[:, known], between, k)

    def coordinates(self) -> Float64:
        """Return the place of each sample on the map of the reference, ``(n_samples, 2)``; the map does not move.

        A sample goes where its distances to the reference samples put it (Gower 1968); a sample of the reference comes
        to its own place.
        """
        places, reference = self.reference.coordinates, self.reference.distances
        # In the directions of the map, which are orthogonal: -1/2 X+ (d^2 - mean of the reference's).
        sums = (places**2).sum(axis=0)
        shifted = self.distances**2 - (reference**2).mean(axis=1)
        return np.asarray(-0.5 * shifted @ (places / np.where(sums > 0, sums, 1.0)))

    def intervals(
        self, *, n_bootstrap: int = 200, confidence: float = 0.95, random_state: int = 0
    ) -> tuple[Float64, Float64, Bool]:
        """Return intervals of the distances to the reference samples, from the numbers of cells on both sides.

        Parameters
        ----------
        n_bootstrap, confidence, random_state
            As in `heatmover.uncertainty`.

        Returns
        -------
        lower, upper : ndarray of shape (n_samples, n_reference)
            What infinitely many cells would show lies between, for each pair by itself.
        told_apart : ndarray of shape (n_samples, n_reference)
            Whether a pair differs by more than noise.
        """
        self.check_whole("cells that are drawn again, each wholly at its node, for intervals")
        check_integer("n_bootstrap", n_bootstrap, minimum=1)
        reference, count = self.reference, len(self.names)
        masses = sp.vstack([self.measures.masses, reference.measures.masses], format="csr")
        found = uncertainty(
            reference.model, measures_from_weights(masses), np.r_[self.sizes, reference.sizes],
            embedding=np.vstack([self.embedding, reference.embedding]), n_bootstrap=n_bootstrap,
            confidence=confidence, random_state=random_state, n_jobs=reference.model.n_jobs,
        )  # fmt: skip
        assert found.lower is not None
        assert found.upper is not None
        rows = slice(0, count), slice(count, None)
        return reference.in_units(found.lower[rows]), reference.in_units(found.upper[rows]), found.told_apart[rows]

    def explain(self, name: str, group: Any = None, *, variable: str | None = None) -> Any:
        """Tell which nodes make a sample differ from its nearest reference sample, or from a group of them.

        Parameters
        ----------
        name
            Of the new sample.
        group, variable
            A value of a variable: the mean of the reference samples that have it. None: the nearest reference sample.

        Returns
        -------
        heatmover.attribution.Explanation
            Its points are the nodes of the atlas, ``reference.nodes.centers``.
        """
        row = list(self.names).index(find(name, self.names, "a mapped sample"))
        reference = self.reference
        if variable is None:
            chosen, called = [int(self.nearest(1)[1][row, 0])], "the nearest"
        else:
            values = reference.variable(variable)
            chosen, called = [i for i, value in enumerate(values) if value == group], f"{variable}={group}"
        if not chosen:
            raise InvalidInputError(f"reference samples with {called}", "none")
        other = np.asarray(reference.measures.masses[chosen].mean(axis=0)).ravel()
        return explain(reference.model, self.measures.toarray()[row], other)

    def lines(self, k: int = 3) -> Iterator[str]:
        """Yield what was found, one line for each sample, then the warnings."""
        distances, indices = self.nearest(min(k, len(self.reference.names)))
        for row, name in enumerate(self.names):
            near = ", ".join(
                f"{quoted(self.reference.names[i])} ({distance:.3g})"
                for i, distance in zip(indices[row], distances[row], strict=True)
            )
            yield f"{quoted(name)}, {counted(int(self.sizes[row]), 'cell')}: nearest {near}; {self._covered(row)}"
        yield from self.warnings

    def uncovered(self) -> Iterator[str]:
        """Yield a line for each sample that the atlas does not cover."""
        for row, name in enumerate(self.names):
            if self.coverage is not None and self.coverage.covered[row] is False:
                yield f"{quoted(name)}: {self._covered(row)}"

    def to_csv(self, path: str | os.PathLike[str], k: int | None = None, predict: Sequence[str] = ()) -> None:
        """Write what was found as CSV, one row for each sample, complete or not at all.

        The columns are sample, cells, covered (true, false, unknown), far (share of cells), p, then predicted value,
        vote and chance of each variable in ``predict``, then the names of the nearest reference samples and their
        distances.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced.
        k
            Neighbours to write, and to vote; None for 10, or as many as there are.
        predict
            Variables of the reference.
        """
        asked = NEIGHBOURS if k is None else check_integer("k", k, minimum=1)
        count = min(asked, len(self.reference.names))
        distances, indices = self.nearest(count)
        answers = [(name, self.predict(name, k)) for name in predict]
        header = ["sample", "cells", "covered", "far", "p"]
        header += [column for name, _ in answers for column in (name, f"{name} vote", f"{name} chance")]
        header += [column for i in range(1, count + 1) for column in (f"nearest {i}", f"distance {i}")]
        write_table(path, header, (self._row(i, answers, distances[i], indices[i]) for i in range(len(self.names))))

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        predict: Sequence[str] | None = None,
        k: int = 10,
        title: str | None = None,
        n_bootstrap: int = 100,
        random_state: int = 0,
    ) -> None:
        """Write what was found as one HTML page that opens offline in any browser; needs jinja2 (extra ``cohort``).

        Coverage, place on the map, predictions with vote and chance, nearest reference samples with their variables
        and intervals, and which cells differ.

        Parameters
        ----------
        path
            Where to; a file that is there already is replaced. The new one appears complete or not at all.
        predict
            Variables of the reference to predict; the first colours the map. None: all that groups of samples share.
        k
            Nearest reference samples to show, and to vote.
        title
            Heading of the page.
        n_bootstrap, random_state
            Of the intervals, see `intervals`; ``n_bootstrap=0`` leaves them out.
        """
        handed("report_mapped")(
            self, path, predict=predict, k=k, title=title, n_bootstrap=n_bootstrap, random_state=random_state
        )

    def _row(
        self, row: int, answers: Sequence[tuple[str, Prediction]], distances: Float64, indices: Int64
    ) -> list[object]:
        found = self.coverage
        covered = None if found is None else found.covered[row]
        told = "unknown" if covered is None else "true" if covered else "false"
        values: list[object] = [self.names[row], int(self.sizes[row]), told]
        values += ["", ""] if found is None else [float(found.shares[row]), float(found.p_values[row])]
        for _, answer in answers:
            doubts = (float(answer.votes[row]), float(answer.chances[row]))
            values += [answer.values[row], *("" if np.isnan(doubt) else doubt for doubt in doubts)]
        for distance, i in zip(distances, indices, strict=True):
            values += [self.reference.names[i], float(distance)]
        return values

    def _covered(self, row: int) -> str:
        found = self.coverage
        if found is None:
            return "coverage unknown: the atlas has one sample"
        far = f"{percent(float(found.shares[row]))} of its cells far from the reference"
        usual = f"in the reference's own samples {percent(found.expected)}"
        if found.covered[row] is None:
            return f"{far}, {usual}; too few reference samples for a verdict"
        if found.covered[row]:
            return f"covered ({far}, {usual})"
        # With few reference samples no verdict can be rarer.
        often = f"; so may {percent(found.level)} of samples like the reference's be" if found.level > RANKED else ""
        return f"THIS SAMPLE IS NOT COVERED ({far}, {usual}; p = {found.p_values[row]:.1g}{often})"

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def _apart(known: Intp, blocks: tuple[Any, ...] | None) -> Bool:
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
    found = here[_voters(distances, k)].mean(axis=1)
    voters = _voters(between, k)
    valid = np.isfinite(np.take_along_axis(between, voters, axis=1))
    own = (here[voters] * valid).sum(axis=1) / np.maximum(valid.sum(axis=1), 1)
    nothing = np.full(len(found), np.nan)
    return Prediction(tuple(found.tolist()), nothing, nothing, float(np.median(np.abs(own - here))), is_number=True)
