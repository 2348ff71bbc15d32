"""`examine`: what the distances between samples say of the variables of the samples, tested and in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from heatmover._progress import SILENT, Progress
from heatmover._typing import Float64, Int64
from heatmover._validation import LabelNames, RandomState, check_integer
from heatmover._words import find, naturally, percent, quoted
from heatmover.analysis.variables import as_groups, as_numbers, check_readings, kind_of, label
from heatmover.errors import InvalidInputError, Sentence
from heatmover.manifold import smoothness
from heatmover.measures import is_missing
from heatmover.statistics import (
    TestResult,
    dispersion,
    distance_correlation,
    explained_variation,
    false_discovery,
    neighbor_enrichment,
    permanova,
)
from heatmover.statistics.permutations import restrict
from heatmover.statistics.samples import check_distances, check_labels
from heatmover.statistics.separation import Separation, separate

__all__ = ["Finding", "examine", "kind_of", "label"]


# In fewer samples no test can say anything.
FEWEST_SAMPLES = 4
# What a test calls unlikely, here and in the words.
LEVEL = 0.05
NEIGHBORS_OF_LABELS, NEIGHBORS_OF_SIGNALS = 5, 10


@final
@dataclass(frozen=True, eq=False, repr=False)
class Finding:
    """What the distances say of one variable; ``print`` it.

    Attributes
    ----------
    variable
        Its name.
    kind
        ``"groups"`` or ``"number"``.
    n_samples, n_missing
        Samples with a known value, which were looked at, and those without.
    groups
        Number of samples of each group; empty for numbers.
    tests
        Results by name: ``"permanova"``, ``"neighbor enrichment"``, ``"dispersion"`` and ``"smoothness"`` of groups,
        ``"distance correlation"`` and ``"smoothness"`` of numbers, as far as each could be done; the first answers
        whether the variable goes with the distances. Empty if the variable cannot be tested, and ``note`` says why.
    q_value
        Share of false discoveries among all variables whose first test is at least as sure; None without tests.
    separation
        Mean distances within and between groups; None for numbers.
    blocks
        How the blocks counted: ``"whole"`` if the variable is the same in all samples of a block, which then change
        places as one; ``"within"`` if it varies, and changes places within blocks; empty without blocks.
    note
        What the reader should know, in sentences; may be empty.
    explained
        Share of the variation of the distances shown that lies between the groups; 0 for numbers. The effect of the
        test is that of the distances for tests, if these are others.

    Examples
    --------
    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=20) + np.repeat([0, 3], 10)
    >>> distances = abs(positions[:, None] - positions)
    >>> finding, = examine(distances, {"condition": np.repeat(["case", "control"], 10)})
    >>> print(finding)
    'condition' goes with the distances: it explains 70 % of their variation (p = 0.00...). ...
    """

    variable: str
    kind: Literal["groups", "number"]
    n_samples: int
    n_missing: int
    groups: Mapping[str, int]
    tests: Mapping[str, TestResult]
    q_value: float | None
    separation: Separation | None
    blocks: str
    note: str
    explained: float = 0.0

    @property
    def answer(self) -> TestResult | None:
        """The test that answers whether the variable goes with the distances."""
        return next(iter(self.tests.values()), None)

    @property
    def sure(self) -> bool:
        """Whether the answer is yes, at 5 % of false discoveries among all variables examined."""
        return self.q_value is not None and self.q_value <= LEVEL

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, which knows no infinity: that becomes text."""
        return {
            "variable": self.variable,
            "kind": self.kind,
            "samples": self.n_samples,
            "missing": self.n_missing,
            "groups": dict(self.groups),
            "blocks": self.blocks,
            "q_value": self.q_value,
            "explained": self.explained,
            "tests": {
                name: {
                    "statistic": test.statistic if np.isfinite(test.statistic) else str(test.statistic),
                    "effect": test.effect if np.isfinite(test.effect) else str(test.effect),
                    "p_value": test.p_value,
                    "permutations": len(test.null),
                    "complete": test.complete,
                }
                for name, test in self.tests.items()
            },
            "note": self.note,
        }

    def describe(self) -> str:
        """Return what was found in plain sentences."""
        return " ".join(sentence for sentence in (self._answer(), self._spread(), self._near(), self.note) if sentence)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Finding({self.describe()})"

    def _answer(self) -> str:
        answer = self.answer
        if answer is None:
            return ""
        name = quoted(self.variable)
        size = (
            f"it explains {percent(self.explained)} of their variation"
            if self.kind == "groups"
            else f"distance correlation {answer.statistic:.2f}, {answer.statistic - answer.effect:.2f} by chance"
        )
        if self.sure:
            return f"{name} goes with the distances: {size} ({self._probability(answer)})."
        weak = answer.p_value <= LEVEL  # sure alone, not among so many
        start = f"{name} may go with the distances" if weak else f"No sign that {name} goes with the distances"
        return f"{start}: {size} ({self._probability(answer)})."

    def _probability(self, answer: TestResult) -> str:
        assert self.q_value is not None
        p = f"p = {answer.p_value:.2g}"
        return p if f"{self.q_value:.2g}" == f"{answer.p_value:.2g}" else f"{p}, {self.q_value:.2g} among all variables"

    def _spread(self) -> str:
        test = self.tests.get("dispersion")
        if test is None or test.p_value > LEVEL:
            return ""
        wider = "much wider" if not np.isfinite(test.effect) else f"{test.effect:.2g} times as wide"
        caution = "; part of the difference may be this" if self.sure else ""
        return (
            f"Its groups are unequally spread, the widest {wider} as the narrowest (p = {test.p_value:.2g}){caution}."
        )

    def _near(self) -> str:
        if self.separation is None:
            return ""
        found = self.separation
        return (
            f"The nearest sample is of the same group for {found.agreement * found.n_samples:.3g} of "
            f"{found.n_samples} samples ({found.chance * found.n_samples:.1f} expected by chance)."
        )


def examine(
    distances: npt.ArrayLike,
    variables: Mapping[str, Sequence[object]] | Any,
    *,
    blocks: Sequence[object] | None = None,
    shown: npt.ArrayLike | None = None,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    n_permutations: int = 999,
    random_state: RandomState = 0,
    progress: Progress = SILENT,
) -> tuple[Finding, ...]:
    """Test every variable of the samples against the distances between them.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    variables
        Values ``(n_samples,)`` by name: a mapping or a DataFrame. Text, truth values and numbers with fewer than six
        different values are groups. Samples whose value is missing are left out of that variable's tests.
    blocks
        What ties samples together, ``(n_samples,)``: patients with several samples, batches, pairs. A variable that is
        the same in all samples of every block is permuted by whole blocks, any other only within them.
    shown
        Distances as the reader sees them, ``(n_samples, n_samples)``, if those for tests are others; groups are
        described by them (``separation``, and the share of the variation that they explain).
    numeric, categorical
        Names of variables to read as numbers however few different values they have, or as groups however many.
    n_permutations
        Permutations of every test; all of them if there are no more.
    random_state
        Seed; every test begins with it anew, so that no result depends on which others were asked for.
    progress
        Told of the stage "test variables".

    Returns
    -------
    tuple of Finding
        One for each variable, in their order; q-values are over all of them.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(20, cells_per_sample=60, effect=4.0)
    >>> result = hm.compare(data.points, data.labels)
    >>> variables = {"condition": data.annotations["condition"], "order": list(range(20))}
    >>> [(finding.variable, finding.kind, finding.sure) for finding in examine(result.distances, variables)]
    [('condition', 'groups', True), ('order', 'number', ...)]
    """
    matrix = check_distances(distances)
    seen = matrix if shown is None else check_distances(shown)
    if seen.shape != matrix.shape:
        raise InvalidInputError(f"shown of shape {matrix.shape}, as the distances", f"{seen.shape}")
    check_integer("n_permutations", n_permutations, minimum=1)
    names = LabelNames("variables").add_all(variables)
    columns = {name: _listed(name, variables[key], len(matrix)) for name, key in zip(names, variables, strict=True)}
    _read(columns, numeric, categorical)
    tied = None if blocks is None else _names("blocks", blocks, len(matrix))
    progress.stage("test variables", max(len(columns), 1))
    findings = []
    for name, values in columns.items():
        settings = {"n_permutations": n_permutations, "random_state": random_state}
        findings.append(_examine((matrix, seen), name, values, tied, settings, name in numeric))
        progress.advance()
    tested = [finding for finding in findings if finding.answer is not None]
    q_values = iter(false_discovery([finding.answer.p_value for finding in tested]) if tested else ())  # type: ignore[union-attr]
    return tuple(
        finding if finding.answer is None else replace(finding, q_value=float(next(q_values))) for finding in findings
    )


def _examine(
    matrices: tuple[Float64, Float64],
    name: str,
    values: list[Any],
    tied: npt.NDArray[np.str_] | None,
    settings: dict[str, Any],
    numeric: bool,
) -> Finding:
    """Test a variable by the first matrix and describe its groups by the second."""
    known = np.array([not is_missing(value) for value in values], dtype=bool)
    kept: list[Any] = [value for value, there in zip(values, known, strict=True) if there]
    kind = kind_of(kept, numeric=numeric)
    blank = Finding(name, kind, len(kept), int((~known).sum()), {}, {}, None, None, "", "")
    part, seen = (matrix[np.ix_(known, known)] for matrix in matrices)
    codes = check_labels(name, [label(value) for value in kept], len(kept)) if kind == "groups" and kept else None
    counts = {} if codes is None else dict(zip(codes[1], np.bincount(codes[0]).tolist(), strict=True))
    groups = {group: counts[group] for group in naturally(counts)}
    reason = _untestable(name, kept, groups)
    if reason:
        return replace(blank, groups=groups, note=reason)
    observed = np.asarray(kept, dtype=np.float64) if codes is None else codes[0]
    blocks = None if tied is None else tied[known]
    restriction = restrict(observed, blocks)
    try:
        tests = {
            result.test: result for result in _tests(part, observed, None if codes is None else codes[1],
                                                     restriction.units, {**settings, "blocks": blocks})
        }  # fmt: skip
    except InvalidInputError as error:  # blocks leave nothing to permute
        return replace(blank, groups=groups, note=_refused(name, error), blocks=restriction.how)
    return replace(
        blank,
        groups=groups,
        tests=tests,
        separation=None if codes is None else separate(seen, codes[0]),
        blocks=restriction.how,
        note=_remark(name, int((~known).sum()), groups, left=bool(seen.any())),
        explained=0.0 if codes is None else explained_variation(seen, codes[0]),
    )


def _tests(
    matrix: Float64,
    values: npt.NDArray[Any],
    groups: tuple[str, ...] | None,
    unit_of: Int64 | None,
    settings: dict[str, Any],
) -> Iterator[TestResult]:
    near = min(NEIGHBORS_OF_SIGNALS, len(matrix) - 1)
    if groups is None:
        yield distance_correlation(matrix, values, **settings)
        yield smoothness(matrix, values, k=near, **settings)
        return
    labels = np.asarray(groups, dtype=object)[values]
    yield permanova(matrix, labels, **settings)
    elsewhere = len(matrix) - (1 if unit_of is None else int(np.unique(unit_of, return_counts=True)[1].max()))
    yield neighbor_enrichment(matrix, labels, k=min(NEIGHBORS_OF_LABELS, elsewhere), **settings)
    of_group = values if unit_of is None else values[np.unique(unit_of, return_index=True)[1]]
    if np.bincount(of_group).min() >= 2:  # a group of one has no spread
        yield dispersion(matrix, labels, **settings)
    yield smoothness(matrix, labels, k=near, **settings)


def _untestable(name: str, values: list[Any], groups: Mapping[str, int]) -> str:
    """Return why a variable cannot be tested, or nothing."""
    start = f"{quoted(name)} was not tested: "
    if len(values) < FEWEST_SAMPLES:
        return f"{start}{len(values)} samples with a known value are too few."
    if any(isinstance(value, float | np.floating) and np.isinf(value) for value in values):
        return f"{start}it has infinite values."
    if len(groups) == 1 or (not groups and len(set(values)) == 1):
        return f"{start}it is the same for all samples."
    if groups and max(groups.values()) == 1:
        return f"{start}it is different for every sample."
    return ""


def _remark(name: str, n_missing: int, groups: Mapping[str, int], *, left: bool) -> str:
    notes = []
    if not left:
        notes.append("No distance is left between these samples, so that nothing supports this but the test.")
    if n_missing:
        notes.append(f"{n_missing} {'sample' if n_missing == 1 else 'samples'} without {quoted(name)} left out.")
    single = sum(size == 1 for size in groups.values())
    if single:
        have = "has" if single == 1 else "have"
        notes.append(f"{single} of its {len(groups)} groups {have} a single sample.")
    return " ".join(notes)


def _read(columns: dict[str, list[Any]], numeric: Collection[str], categorical: Collection[str]) -> None:
    """Read some of the variables as it is said."""
    check_readings(numeric, categorical)
    for name in numeric:
        columns[name] = as_numbers(name, columns[find(name, columns, "every name in numeric to be a variable")])
    for name in categorical:
        columns[name] = as_groups(columns[find(name, columns, "every name in categorical to be a variable")])


def _names(name: str, labels: Any, n_samples: int) -> npt.NDArray[np.str_]:
    """Return labels as text, which every test sorts in the same way, so that each gives what it would give alone."""
    codes, names = check_labels(name, labels, n_samples)
    return np.asarray(names)[codes]


def _listed(name: object, values: Any, n_samples: int) -> list[Any]:
    found = list(values)  # a masked value is a missing one
    if len(found) != n_samples:
        raise InvalidInputError(f"a value of {quoted(name)} for each of the {n_samples} samples", f"{len(found)}")
    return found


def _refused(name: str, error: InvalidInputError) -> Sentence:
    return Sentence(f"{quoted(name)} was not tested: {error.sentence.marked}")
