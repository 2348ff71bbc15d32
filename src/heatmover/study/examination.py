"""`examine`: what the distances between samples say of the variables of the samples, tested and in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import LabelNames, RandomState, check_integer
from heatmover._base.words import counted, find, naturally, percent, quoted, verb
from heatmover.errors import InvalidInputError, Sentence
from heatmover.statistics import (
    Design,
    DesignResult,
    TestResult,
    dispersion,
    distance_correlation,
    explained_variation,
    false_discovery,
    neighbor_enrichment,
    permanova,
    permanova_design,
)
from heatmover.statistics.designs import as_design, beside, blocks_of_one_value, check_mixed
from heatmover.statistics.manifold import smoothness
from heatmover.statistics.permutations import LEVEL, Restriction, restrict
from heatmover.statistics.samples import check_distances, check_labels
from heatmover.statistics.tests import Separation, separate
from heatmover.study.variables import as_groups, as_numbers, check_readings, kind_of, known_values, label

__all__ = [
    "LEVEL",
    "Finding",
    "Pairs",
    "answers",
    "check_adjusted",
    "design_of",
    "examine",
    "examine_design",
    "kind_of",
    "label",
    "out_of_reach",
]


# In fewer samples no test can say anything.
FEWEST_SAMPLES = 4
# Blocks as text: one variable, several by name, or none.
Tied = npt.NDArray[np.str_] | dict[str, npt.NDArray[np.str_]] | None
NEIGHBORS_OF_LABELS, NEIGHBORS_OF_SIGNALS = 5, 10


@final
@dataclass(frozen=True)
class Pairs:
    """What a variable explains within blocks that each hold all of its groups: before and after in every patient.

    Attributes
    ----------
    block
        Name of the blocks; empty if they have none.
    n_blocks
        How many there are.
    matched
        Whether every block has one sample of each of two groups, so that it is a pair.
    explained
        Share of the variation within blocks that the groups explain: the partial R squared with blocks held fixed.
    same_group, same_block
        Share of the samples whose nearest other sample is of the same group, and of the same block.
    chance_group, chance_block
        What these would be on average if groups, or blocks, were dealt out at random.
    n_samples
        Number of samples.

    Examples
    --------
    >>> print(Pairs("patient", 8, True, 0.61, 0.75, 0.25, 0.47, 0.07, 16))
    Within the 8 pairs of 'patient' it explains 61 % of the variation; the nearest sample is of the same group for 12
    of 16 samples (7.5 expected by chance) and of the same pair for 4 (1.1 expected).
    """

    block: str
    n_blocks: int
    matched: bool
    explained: float
    same_group: float
    same_block: float
    chance_group: float
    chance_block: float
    n_samples: int

    @property
    def noun(self) -> str:
        """What a block is called."""
        return "pair" if self.matched else "block"

    @property
    def share(self) -> str:
        """The share explained in per cent; of distances that no Euclidean space holds it may be beyond 0 and 100 %."""
        return percent(min(max(self.explained, 0.0), 1.0))

    def describe(self) -> str:
        """Return what was found in one sentence."""
        n, of = self.n_samples, f" of {quoted(self.block)}" if self.block else ""
        return (
            f"Within the {counted(self.n_blocks, self.noun)}{of} it explains {self.share} of the "
            f"variation; the nearest sample is of the same group for {self.same_group * n:.3g} of "
            f"{counted(n, 'sample')} "
            f"({self.chance_group * n:.1f} expected by chance) and of the same {self.noun} for "
            f"{self.same_block * n:.3g} ({self.chance_block * n:.1f} expected)."
        )

    def __str__(self) -> str:
        return self.describe()

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return asdict(self)


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
        places as one; ``"within"`` if it varies, and changes places within blocks; ``"whole within"`` if blocks of one
        variable do so within those of another; empty without blocks.
    note
        What the reader should know, in sentences; may be empty.
    explained
        Share of the variation of the distances shown that lies between the groups, or of what covariates leave of it;
        0 for numbers. The effect of the test is that of the distances for tests, if these are others.
    adjusted
        Names of the covariates that were held fixed. Neighbors, spread and smoothness are then not tested.
    pairs
        What the groups explain within blocks, if each block holds all of them; else None.
    evidence
        What can change places, such as ``"5 pairs"`` or ``"12 samples"``.

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
    tests: Mapping[str, TestResult] = field(default_factory=dict)
    q_value: float | None = None
    separation: Separation | None = None
    blocks: str = ""
    note: str = ""
    explained: float = 0.0
    adjusted: tuple[str, ...] = ()
    pairs: Pairs | None = None
    evidence: str = ""

    @property
    def answer(self) -> TestResult | None:
        """The test that answers whether the variable goes with the distances."""
        return next(iter(self.tests.values()), None)

    @property
    def sure(self) -> bool:
        """Whether the answer is yes, at 5 % of false discoveries among all variables examined."""
        return self.q_value is not None and self.q_value <= LEVEL

    @property
    def undecided(self) -> bool:
        """Whether even the smallest p-value that the design allows is above 5 %, so that the test cannot decide."""
        return self.answer is not None and self.answer.undecided

    @property
    def limit(self) -> tuple[str, float]:
        """What limits the p-value, such as "5 pairs" or "19 permutations", and the smallest that it allows."""
        assert self.answer is not None
        drawn = counted(len(self.answer.null), "permutation")
        return self.evidence if self.answer.complete else drawn, self.answer.smallest_p

    @property
    def size(self) -> str:
        """Size of the effect in words, such as "explains 12 % of their variation"; empty without tests."""
        answer = self.answer
        if answer is None:
            return ""
        if self.kind == "groups":
            left = "the variation left" if self.adjusted else "their variation"
            return f"explains {percent(self.explained)} of {left}"
        return f"has a distance correlation of {answer.statistic:.2f} with them"

    @property
    def beside(self) -> str:
        """What it is adjusted for, such as ", adjusted for 'batch'"; empty without covariates."""
        return f", adjusted for {' and '.join(map(quoted, self.adjusted))}" if self.adjusted else ""

    @property
    def near_adjusted(self) -> str:
        """That distances between single samples are not adjusted; empty without covariates."""
        names = " and ".join(map(quoted, self.adjusted))
        return f" Distances between samples are not adjusted for {names}." if self.adjusted else ""

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
            "undecided": self.undecided,
            "explained": self.explained,
            "adjusted": list(self.adjusted),
            "pairs": None if self.pairs is None else self.pairs.plain(),
            "evidence": self.evidence,
            "tests": {
                name: {
                    "statistic": test.statistic if np.isfinite(test.statistic) else str(test.statistic),
                    "effect": test.effect if np.isfinite(test.effect) else str(test.effect),
                    "p_value": test.p_value,
                    "smallest_p": test.smallest_p,
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
            f"it {self.size}"
            if self.kind == "groups"
            else f"distance correlation {answer.statistic:.2f}, {answer.statistic - answer.effect:.2f} by chance"
        )
        if self.undecided:
            cannot = out_of_reach(*self.limit, f"the test of the distances{self.beside}")
            return f"{cannot}: {name} {self.size} ({self._probability(answer)})."
        if self.sure:
            return f"{name} goes with the distances{self.beside}: {size} ({self._probability(answer)})."
        weak = answer.p_value <= LEVEL  # sure alone, not among so many
        start = f"{name} may go with the distances" if weak else f"No sign that {name} goes with the distances"
        return f"{start}{self.beside}: {size} ({self._probability(answer)})."

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
        if self.pairs is not None:
            return f"{self.pairs.describe()}{self.near_adjusted}"
        if self.separation is None:
            return ""
        groups = self.separation
        return (
            f"The nearest sample is of the same group for {groups.agreement * groups.n_samples:.3g} of "
            f"{counted(groups.n_samples, 'sample')} ({groups.chance * groups.n_samples:.1f} expected by chance)."
            f"{self.near_adjusted}"
        )


def out_of_reach(limit: str, smallest_p: float, test: str = "the test") -> str:
    """Return that a test cannot decide, for the headline and every table, without a full stop.

    Examples
    --------
    >>> out_of_reach("5 pairs", 2 / 32)
    'With 5 pairs the smallest possible p-value is 0.0625, so the test cannot reach 0.05'
    """
    return f"With {limit} the smallest possible p-value is {smallest_p:.3g}, so {test} cannot reach {LEVEL:g}"


def examine(
    distances: npt.ArrayLike,
    variables: Mapping[str, Sequence[object]] | Any,
    *,
    blocks: Any | None = None,
    adjust: Mapping[str, Sequence[object]] | Design | Any | None = None,
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
        What ties samples together, ``(n_samples,)``: patients with several samples, batches, pairs; several such
        variables by name in a mapping or a DataFrame. A variable that is the same in all samples of every block is
        permuted by whole blocks, any other only within them.
    adjust
        Covariates to hold fixed: values ``(n_samples,)`` by name, none of them missing, in a mapping or a DataFrame; or
        a `heatmover.statistics.Design`. A variable that is among them is adjusted for the others, and not for
        interactions that it is part of.
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
    design = _covariates(adjust, columns, numeric, categorical, len(matrix))
    tied = _tied(blocks, len(matrix))
    progress.stage("test variables", max(len(columns), 1))
    findings = []
    for name, values in columns.items():
        settings = {"n_permutations": n_permutations, "random_state": random_state}
        fixed = None if design is None else _other_terms(design, name)
        findings.append(_examine((matrix, seen), name, values, (tied, fixed), settings, numeric=name in numeric))
        progress.advance()
    tested = [finding for finding in findings if finding.answer is not None]
    q_values = iter(false_discovery([finding.answer.p_value for finding in tested]) if tested else ())  # type: ignore[union-attr]
    return tuple(
        finding if finding.answer is None else replace(finding, q_value=float(next(q_values))) for finding in findings
    )


def answers(
    distances: Float64, variables: Mapping[str, Sequence[object]], *, blocks: Any | None,
    numeric: Collection[str] = (), **settings: Any,
) -> dict[str, float]:  # fmt: skip
    """Return the p-value that answers whether each variable goes with the distances, without what else `examine` tells.

    Parameters
    ----------
    distances, variables, blocks, numeric, **settings
        As in `examine`. Variables that cannot be tested are left out.

    Examples
    --------
    >>> positions = np.arange(8.0)
    >>> answers(abs(positions[:, None] - positions), {"half": list("aaaabbbb")}, blocks=None,
    ...         n_permutations=999, random_state=0)
    {'half': 0.02857142857142857}
    """
    tied = _tied(blocks, len(distances))
    columns = {name: list(values) for name, values in variables.items()}
    _read(columns, numeric, ())
    results = {
        name: _examine((distances, distances), name, values, (tied, None), settings,
                       numeric=name in numeric, only_answer=True).answer
        for name, values in columns.items()
    }  # fmt: skip
    return {name: answer.p_value for name, answer in results.items() if answer is not None}


def _examine(
    matrices: tuple[Float64, Float64],
    name: str,
    values: list[Any],
    held: tuple[Tied, Design | None],
    settings: dict[str, Any],
    *,
    numeric: bool,
    only_answer: bool = False,
) -> Finding:
    """Test a variable by the first matrix and describe its groups by the second; held are blocks and covariates.

    ``only_answer`` leaves all tests out but the one that answers.
    """
    known, kept = known_values(values)
    kind, n_missing = kind_of(kept, numeric=numeric), int((~known).sum())
    part, seen = (matrix[np.ix_(known, known)] for matrix in matrices)
    codes = check_labels(name, [label(value) for value in kept], len(kept)) if kind == "groups" and kept else None
    counts = {} if codes is None else dict(zip(codes[1], np.bincount(codes[0]).tolist(), strict=True))
    groups = {group: counts[group] for group in naturally(counts)}
    finding = partial(Finding, name, kind, len(kept), n_missing, groups)
    reason = _untestable(name, kept, groups)
    if reason:
        return finding(note=reason)
    observed = np.asarray(kept, dtype=np.float64) if codes is None else codes[0]
    blocks, fixed = _some(held[0], known), None if held[1] is None else held[1].take(known)
    restriction = restrict(observed, blocks)
    finding = partial(finding, blocks=restriction.how, adjusted=() if fixed is None else fixed.names)
    settings = {**settings, "blocks": blocks}
    try:
        results = _tests(part, observed, None if codes is None else codes[1], restriction.units, fixed, settings)
        tests = {result.test: result for result in islice(results, 1 if only_answer else None)}
        explained = 0.0 if codes is None else explained_variation(seen, codes[0], adjust=fixed)
        pairs = None if codes is None else _pairs(seen, codes[0], restriction, _name_of(blocks), fixed)
    except InvalidInputError as error:  # blocks leave nothing to permute, or covariates nothing to test
        return finding(note=Sentence(f"{quoted(name)} was not tested: {error.sentence.marked}"))
    alone = blocks_of_one_value(observed, restriction)
    return finding(
        tests=tests, separation=None if codes is None else separate(seen, codes[0]), explained=explained, pairs=pairs,
        note=_remark(name, n_missing, groups, alone, left=bool(seen.any())),
        evidence=_evidence(len(kept), restriction, pairs),
    )  # fmt: skip


def _tests(
    matrix: Float64,
    values: npt.NDArray[Any],
    groups: tuple[str, ...] | None,
    unit_of: Int64 | None,
    fixed: Design | None,
    settings: dict[str, Any],
) -> Iterator[TestResult]:
    near = min(NEIGHBORS_OF_SIGNALS, len(matrix) - 1)
    if groups is None:
        yield distance_correlation(matrix, values, adjust=fixed, **settings)
        if fixed is None:
            yield smoothness(matrix, values, k=near, **settings)
        return
    labels = np.asarray(groups, dtype=object)[values]
    yield permanova(matrix, labels, adjust=fixed, **settings)
    if fixed is not None:  # no covariate can be held fixed in what follows
        return
    elsewhere = len(matrix) - (1 if unit_of is None else int(np.unique(unit_of, return_counts=True)[1].max()))
    yield neighbor_enrichment(matrix, labels, k=min(NEIGHBORS_OF_LABELS, elsewhere), **settings)
    of_group = values if unit_of is None else values[np.unique(unit_of, return_index=True)[1]]
    if np.bincount(of_group).min() >= 2:  # a group of one has no spread
        yield dispersion(matrix, labels, **settings)
    yield smoothness(matrix, labels, k=near, **settings)


def _pairs(seen: Float64, codes: Int64, restriction: Restriction, block: str, fixed: Design | None) -> Pairs | None:
    """Return what groups explain within blocks, or None unless each of several blocks holds all groups."""
    within = restriction.within
    if within is None or restriction.units is not None:
        return None
    table = np.zeros((int(within.max()) + 1, int(codes.max()) + 1), dtype=np.int64)
    np.add.at(table, (within, codes), 1)
    table = table[table.any(axis=1)]
    if len(table) < 2 or table.min() < 1:
        return None
    held = Design.from_columns({"block": within.astype(str)})
    held = held if fixed is None else Design((*fixed.terms, *held.terms), len(codes))
    by_group, by_block = separate(seen, codes), separate(seen, np.unique(within, return_inverse=True)[1])
    return Pairs(
        block, len(table), bool(table.shape[1] == 2 and table.max() == 1),
        explained_variation(seen, codes, adjust=held),
        by_group.agreement, by_block.agreement, by_group.chance, by_block.chance, len(codes),
    )  # fmt: skip


def _evidence(n_samples: int, restriction: Restriction, pairs: Pairs | None) -> str:
    """Return what can change places, in words."""
    if pairs is not None:
        return counted(pairs.n_blocks, pairs.noun)
    if restriction.units is not None:
        return counted(int(restriction.units.max()) + 1, "block")
    return counted(n_samples, "sample")


def examine_design(
    distances: npt.ArrayLike,
    design: Design,
    *,
    by: Literal["terms", "margin"] = "margin",
    blocks: Any | None = None,
    shown: npt.ArrayLike | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> DesignResult:
    """Test the terms of a design; sums of squares and their shares are those of the distances shown.

    Parameters
    ----------
    distances, blocks, shown, n_permutations, random_state
        As in `examine`.
    design, by
        As in `heatmover.statistics.permanova_design`.

    Examples
    --------
    >>> positions = np.array([0.0, 3.0, 1.0, 4.0, 2.0, 6.0])
    >>> design = design_of({"batch": list("xxyyzz"), "condition": list("ababab")})
    >>> examine_design(abs(positions[:, None] - positions), design)["condition"].degrees_of_freedom
    1
    """
    settings: dict[str, Any] = {"by": by, "blocks": _tied(blocks, design.n_samples), "random_state": random_state}
    result = permanova_design(distances, design, n_permutations=n_permutations, **settings)
    if shown is None:
        return result
    seen = permanova_design(shown, design, n_permutations=1, **settings)
    terms = tuple(
        replace(
            term, sum_of_squares=other.sum_of_squares, r_squared=other.r_squared,
            partial_r_squared=other.partial_r_squared,
        )
        for term, other in zip(result.terms, seen.terms, strict=True)
    )  # fmt: skip
    return replace(
        result, terms=terms, residual_sum_of_squares=seen.residual_sum_of_squares,
        total_sum_of_squares=seen.total_sum_of_squares,
    )  # fmt: skip


def design_of(
    columns: Mapping[str, Sequence[object]], *, formula: str | None = None, numeric: Collection[str] = ()
) -> Design:
    """Return the design of variables of samples, read as groups or numbers as `examine` reads them.

    Parameters
    ----------
    columns
        Values ``(n_samples,)`` by name.
    formula
        As in `heatmover.statistics.Design.from_formula`; by default one term for each column.
    numeric
        Names of variables that are numbers however few different values they have.

    Examples
    --------
    >>> design_of({"batch": [1, 1, 2, 2], "condition": list("abab")}).columns.shape
    (4, 4)
    """
    read = {name: _as_read(name, list(values), name in numeric) for name, values in columns.items()}
    return Design.from_columns(read) if formula is None else Design.from_formula(formula, read)


def _as_read(name: str, values: list[Any], numeric: bool) -> list[Any]:
    _, known = known_values(values)
    if _has_infinite(known):
        raise InvalidInputError(
            f"finite numbers in {quoted(name)} to hold it fixed",
            "an infinite one",
            "correct the value, or omit the variable",
        )
    return values if kind_of(known, numeric=numeric) == "number" else list(as_groups(values))


def check_adjusted(
    name: str, values: Sequence[object], design: Design, *, blocks: Any | None = None, numeric: bool = False
) -> None:
    """Raise if a variable cannot be tested with covariates held fixed, or a block holds one value of it only.

    Parameters
    ----------
    name, values
        The variable, ``(n_samples,)``; samples without a value do not count.
    design
        The covariates; terms that hold the variable itself do not count.
    blocks
        As in `examine`.
    numeric
        Whether few different numbers are numbers, not codes of groups.

    Examples
    --------
    >>> check_adjusted("treatment", list("uuvv"), design_of({"batch": list("xxyy")}))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected 'treatment' to differ from a combination of 'batch', found none ...
    """
    fixed = _other_terms(design, name)
    known, kept = known_values(values)
    if fixed is None or len(kept) < FEWEST_SAMPLES:
        return
    codes: npt.NDArray[Any]
    if kind_of(kept, numeric=numeric) == "number":
        codes = np.asarray(kept, dtype=np.float64)
        columns = codes[:, None]
    else:
        codes, groups = check_labels(name, as_groups(kept), len(kept))
        columns = np.eye(len(groups))[codes]
    beside(columns, fixed.take(known), quoted(name))
    check_mixed(quoted(name), codes, restrict(codes, _some(_tied(blocks, len(known)), known)))


def _covariates(
    adjust: Any, columns: dict[str, list[Any]], numeric: Collection[str], categorical: Collection[str], n_samples: int
) -> Design | None:
    """Return the covariates; variables and covariates are read as it is said."""
    if adjust is None or isinstance(adjust, Design):
        _read(columns, numeric, categorical)
        return None if adjust is None else as_design(adjust, n_samples)
    names = LabelNames("adjust").add_all(adjust)
    if not names:
        _read(columns, numeric, categorical)
        return None
    given = {name: _listed(name, adjust[key], n_samples) for name, key in zip(names, adjust, strict=True)}
    both = {**given, **columns}
    _read(both, numeric, categorical)
    columns.update({name: both[name] for name in columns})
    return design_of({name: both[name] for name in given}, numeric=numeric)


def _other_terms(design: Design, name: str) -> Design | None:
    """Return the terms of a design that a variable is no part of; None if there are none."""
    terms = tuple(term for term in design.terms if name not in term.variables)
    return Design(terms, design.n_samples) if terms else None


def _has_infinite(values: Iterable[Any]) -> bool:
    return any(isinstance(value, float | np.floating) and np.isinf(value) for value in values)


def _untestable(name: str, values: list[Any], groups: Mapping[str, int]) -> str:
    """Return why a variable cannot be tested, or nothing."""
    start = f"{quoted(name)} was not tested: "
    if len(values) < FEWEST_SAMPLES:
        return f"{start}{counted(len(values), 'sample')} with a known value {verb(len(values), 'is', 'are')} too few."
    if _has_infinite(values):
        return f"{start}it has infinite values."
    if len(groups) == 1 or (not groups and len(set(values)) == 1):
        return f"{start}it is the same for all samples."
    if groups and max(groups.values()) == 1:
        return f"{start}it is different for every sample."
    return ""


def _remark(name: str, n_missing: int, groups: Mapping[str, int], alone: tuple[int, int], *, left: bool) -> str:
    notes = []
    if not left:
        notes.append("No distance is left between these samples, so that nothing supports this but the test.")
    if n_missing:
        notes.append(f"{counted(n_missing, 'sample')} without {quoted(name)} left out.")
    single = sum(size == 1 for size in groups.values())
    if single:
        have = verb(single, "has", "have")
        notes.append(f"{single} of its {counted(len(groups), 'group')} {have} a single sample.")
    if alone[0]:
        kind = "group" if groups else "value"
        notes.append(f"{alone[0]} of {counted(alone[1], 'block')} hold one {kind} only and say nothing of it.")
    return " ".join(notes)


def _read(columns: dict[str, list[Any]], numeric: Collection[str], categorical: Collection[str]) -> None:
    """Read some of the variables as it is said."""
    check_readings(numeric, categorical)
    for name in numeric:
        columns[name] = as_numbers(name, columns[find(name, columns, "every name in numeric to be a variable")])
    for name in categorical:
        columns[name] = as_groups(columns[find(name, columns, "every name in categorical to be a variable")])


def _tied(blocks: Any | None, n_samples: int) -> Tied:
    """Return blocks as text, which every test sorts in the same way, so that each gives what it would give alone."""
    if blocks is None:
        return None
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        return {str(name): _names(f"blocks {str(name)!r}", blocks[name], n_samples) for name in blocks}
    return _names("blocks", blocks, n_samples)


def _names(name: str, labels: Any, n_samples: int) -> npt.NDArray[np.str_]:
    codes, names = check_labels(name, labels, n_samples)
    return np.asarray(names)[codes]


def _some(tied: Tied, known: Bool) -> Tied:
    """Return the blocks of some of the samples."""
    if tied is None or not isinstance(tied, dict):
        return None if tied is None else tied[known]
    return {name: labels[known] for name, labels in tied.items()}


def _name_of(tied: Tied) -> str:
    return next(iter(tied)) if isinstance(tied, dict) and len(tied) == 1 else ""


def _listed(name: object, values: Any, n_samples: int) -> list[Any]:
    column = list(values)  # a masked value is a missing one
    if len(column) != n_samples:
        raise InvalidInputError(
            f"a value of {quoted(name)} for each of the {counted(n_samples, 'sample')}", f"{len(column)}"
        )
    return column
