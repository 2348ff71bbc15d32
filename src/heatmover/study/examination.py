"""Read metadata, test their association with distances, describe findings; for users, studies, front ends; no files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import LabelNames, RandomState, check_integer, check_option
from heatmover._base.words import counted, find, naturally, percent, quoted, verb
from heatmover.errors import InvalidInputError, Sentence, the_argument
from heatmover.measures import is_missing
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
from heatmover.statistics.designs import (
    STATISTICS,
    Statistic,
    as_design,
    blocks_of_one_value,
    check_mixed,
    spaces_given,
)
from heatmover.statistics.manifold import smoothness
from heatmover.statistics.permutations import (
    LEVEL,
    CheckedDistances,
    Restriction,
    check_distances,
    check_labels,
    out_of_reach,
    restrict,
)
from heatmover.statistics.tests import Separation, explained_interval, separate
from heatmover.study.parameters import check_readings

# With fewer samples, no test is possible.
FEWEST_SAMPLES = 4
# Block of each sample, as text, by the name of the block variable; the name is empty if the user gave none.
Tied = dict[str, npt.NDArray[np.str_]]
NEIGHBORS_OF_LABELS, NEIGHBORS_OF_SIGNALS = 5, 10
# A numeric variable with fewer distinct values contains codes of groups (0 and 1, or stages 1 to 4), not measurements.
FEWEST_NUMBERS = 6
# Names that are written without quotes in a sentence.
PLAIN_NAME = re.compile(r"[\w.-]{1,40}")


def kind_of(values: Sequence[Any], *, numeric: bool = False) -> Literal["groups", "number"]:
    """Return whether values (none missing) are groups or numbers; ``numeric`` reads codes of groups as numbers."""
    numbers = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    if numeric and numbers:
        return "number"
    many = numbers and len(set(values)) >= FEWEST_NUMBERS
    return "number" if many and bool(np.isfinite(np.asarray(values, dtype=float)).all()) else "groups"


def label(value: Any) -> str:
    """Return the group name of a value. 1.0 becomes "1": pandas stores whole numbers as floats if some are missing."""
    number = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if number else str(value)


def known_values(values: Sequence[Any]) -> tuple[Bool, list[Any]]:
    """Return a mask of the values that are not missing, ``(n_values,)``, and these values.

    Examples
    --------
    >>> known_values(["f", None, "m"])
    (array([ True, False,  True]), ['f', 'm'])
    """
    known = np.array([not is_missing(value) for value in values], dtype=bool)
    return known, [value for value, there in zip(values, known, strict=True) if there]


def as_numbers(name: object, values: Sequence[Any]) -> list[Any]:
    """Convert values to numbers, including numbers written as text; missing values stay missing.

    Examples
    --------
    >>> as_numbers("stage", ["1", 2, None, True])
    [1.0, 2, None, 1]
    >>> as_numbers("stage", ["II"])
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected numbers in 'stage', a column named in the argument ...
    """
    return [value if is_missing(value) else _number(name, value) for value in values]


def _number(name: object, value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | float | np.number):
        return value
    try:
        # Reject 1_000 and nan, which Python's float accepts.
        number = float(value) if isinstance(value, str) and "_" not in value else np.nan
    except ValueError:
        number = np.nan
    if np.isnan(number):
        raise InvalidInputError(
            f"numbers in {quoted(name)}, a column named in {the_argument('numeric')}",
            quoted(value),
            f"correct the value, or leave the column out of {the_argument('numeric')}",
        )
    return number


def as_groups(values: Sequence[Any]) -> list[str | None]:
    """Return the group name of each value, None for missing values.

    Examples
    --------
    >>> as_groups([1.0, 2, None])
    ['1', '2', None]
    """
    return [None if is_missing(value) else label(value) for value in values]


def read_variables(table: Any, numeric: Collection[str] = (), categorical: Collection[str] = ()) -> Any:
    """Return a table of samples in which some variables are converted to numbers, and some to groups.

    Parameters
    ----------
    table
        DataFrame with one row per sample, one column per variable.
    numeric, categorical
        Names of the columns to convert; all other columns are unchanged.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"stage": ["1", "2"], "plate": [7, 8]})
    >>> read_variables(table, ["stage"], ["plate"]).values.tolist()
    [[1.0, '7'], [2.0, '8']]
    """
    check_readings(numeric, categorical)
    changed = {name: table[name].tolist() for name in (*numeric, *categorical) if name in table.columns}
    result = table.copy() if changed else table
    for name, values in changed.items():
        if name in numeric:
            numbers = [np.nan if is_missing(value) else value for value in as_numbers(name, values)]
            result[name] = np.asarray(numbers, dtype=np.float64)
        else:
            result[name] = np.array([*as_groups(values), None], dtype=object)[:-1]
    return result


@final
@dataclass(frozen=True)
class Pairs:
    """Effect of a variable within blocks that each contain all groups, such as patients before and after treatment.

    Attributes
    ----------
    block
        Name of the block variable; empty if the blocks have no name.
    n_blocks
        Number of blocks.
    matched
        Whether every block is a pair, with one sample of each of two groups.
    explained
        Share of the variation within blocks that the groups explain: the partial R squared with blocks held fixed.
    same_group, same_block
        Shares of the samples whose nearest other sample is in the same group, and in the same block, respectively.
    chance_group, chance_block
        Expected values of ``same_group`` and ``same_block`` if groups, or blocks, were assigned at random.
    n_samples
        Number of samples.

    Examples
    --------
    >>> print(Pairs("patient", 8, True, 0.61, 0.75, 0.25, 0.47, 0.07, 16))
    Within the 8 pairs of 'patient', the groups explain 61% of the variation. The nearest sample is in the same group
    for 12 of 16 samples (7.5 expected by chance) and in the same pair for 4 (1.1 expected).
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
        """Return "pair" or "block"."""
        return "pair" if self.matched else "block"

    @property
    def share(self) -> str:
        """Return the explained share in percent, clipped to [0, 100]; non-Euclidean distances can exceed this range."""
        return percent(min(max(self.explained, 0.0), 1.0))

    def describe(self) -> str:
        """Describe the effect within blocks in two sentences."""
        n, of = self.n_samples, f" of {quoted(self.block)}" if self.block else ""
        return (
            f"Within the {counted(self.n_blocks, self.noun)}{of}, the groups explain {self.share} of the variation. "
            f"The nearest sample is in the same group for {self.same_group * n:.3g} of {counted(n, 'sample')} "
            f"({self.chance_group * n:.1f} expected by chance) and in the same {self.noun} for "
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
    """Association of one variable with the distances; ``print`` shows sentences.

    Attributes
    ----------
    variable
        Name of the variable.
    kind
        ``"groups"`` or ``"number"``.
    n_samples, n_missing
        Number of samples that have a value and are tested, and number of samples whose value is missing.
    groups
        Number of samples of each group; empty for numbers.
    tests
        Test results by name: ``"permanova"``, ``"neighbor enrichment"``, ``"dispersion"`` and ``"smoothness"`` for
        groups, ``"distance correlation"`` and ``"smoothness"`` for numbers. Tests that were not possible are left out.
        The first test determines whether the variable is associated with the distances. Empty if the variable cannot be
        tested; ``note`` then states the reason.
    q_value
        False discovery rate of the first test among all examined variables (Benjamini and Hochberg); None without
        tests.
    q_values
        False discovery rate of every test in ``tests`` by name. The rate of neighbor enrichment, dispersion or
        smoothness is a rate of the whole list: of all variables for which this test was possible.
    statistic
        Statistic of PERMANOVA, ``"welch"`` or ``"pseudo-F"``.
    separation
        Mean distances within and between groups; None for numbers.
    blocks
        How blocks restrict the permutations. ``"whole"``: the variable is constant within blocks, and whole blocks are
        permuted. ``"within"``: samples are permuted within blocks. ``"whole within"``: blocks of one variable are
        permuted within blocks of another variable. Empty without blocks.
    note
        Notes on the finding, in sentences; may be empty.
    explained
        Share of the variation of the displayed distances that the groups explain, after adjustment for covariates; 0
        for numbers. The effect in ``tests`` is computed from the tested distances, which may differ from the displayed
        distances.
    adjusted
        Names of the covariates that were held fixed in all tests.
    pairs
        Effect of the groups within blocks; None unless each block contains all groups.
    evidence
        Number and kind of the permuted units, such as ``"5 pairs"`` or ``"12 samples"``.
    interval
        95% confidence interval for the value of ``explained`` in an infinitely large cohort; None for numbers, with
        covariates, with several block variables, and with too few samples.

    Examples
    --------
    >>> import numpy as np
    >>> positions = np.random.default_rng(0).normal(size=20) + np.repeat([0, 3], 10)
    >>> distances = abs(positions[:, None] - positions)
    >>> finding, = examine(distances, {"condition": np.repeat(["case", "control"], 10)})
    >>> print(finding)
    Samples differ by condition (PERMANOVA R2 = 70%, p = 0.00...). ...
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
    interval: tuple[float, float] | None = None
    q_values: Mapping[str, float] = field(default_factory=dict)
    statistic: Statistic = "welch"

    @property
    def answer(self) -> TestResult | None:
        """Return the result of the test of association; None if the variable was not tested."""
        return next(iter(self.tests.values()), None)

    @property
    def sure(self) -> bool:
        """Return whether the association is significant: the q-value among all variables is at most 5%."""
        return self.q_value is not None and self.q_value <= LEVEL

    @property
    def undecided(self) -> bool:
        """Return whether even the smallest p-value that the design allows is above 5%."""
        return self.answer is not None and self.answer.undecided

    @property
    def limit(self) -> tuple[str, float]:
        """Return what limits the p-value, such as "5 pairs" or "19 permutations", and the smallest possible p-value."""
        assert self.answer is not None
        drawn = counted(len(self.answer.null), "permutation")
        return self.evidence if self.answer.complete else drawn, self.answer.smallest_p

    @property
    def size(self) -> str:
        """Return the effect size, such as "R2 = 12%, 40% within pairs"; empty without tests."""
        answer = self.answer
        if answer is None:
            return ""
        if self.kind == "number":
            expected = answer.statistic - answer.effect
            return f"distance correlation {answer.statistic:.2f}, {expected:.2f} expected by chance"
        within = "" if self.pairs is None else f", {self.pairs.share} within {self.pairs.noun}s"
        return f"{'partial ' if self.adjusted else ''}R2 = {percent(self.explained)}{within}"

    @property
    def label(self) -> tuple[Literal["untested", "undecided", "significant", "suggestive", "none"], str]:
        """Return the outcome of the test as a keyword, and as words for tables."""
        if self.answer is None:
            return "untested", "not tested"
        if self.undecided:
            return "undecided", f"cannot reach {LEVEL:g}"
        if self.sure:
            return "significant", "associated"
        if self.answer.p_value <= LEVEL:
            return "suggestive", "not significant after correction"
        return "none", "no evidence"

    @property
    def adjustment(self) -> str:
        """Return the adjustment in words, such as ", adjusted for 'batch'"; empty without covariates."""
        return f", adjusted for {' and '.join(map(quoted, self.adjusted))}" if self.adjusted else ""

    @property
    def near_adjusted(self) -> str:
        """Return a sentence that warns that distances between samples are not adjusted; empty without covariates."""
        names = " and ".join(map(quoted, self.adjusted))
        return f" Distances between samples are not adjusted for {names}." if self.adjusted else ""

    def plain(self) -> dict[str, Any]:
        """Return all attributes as plain values for JSON, with infinity as text, because JSON has no infinity."""
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
            "explained_interval": None if self.interval is None else list(self.interval),
            "adjusted": list(self.adjusted),
            "pairs": None if self.pairs is None else self.pairs.plain(),
            "evidence": self.evidence,
            "sentence": self.describe(),
            "tests": {
                name: {
                    "statistic": test.statistic if np.isfinite(test.statistic) else str(test.statistic),
                    "effect": test.effect if np.isfinite(test.effect) else str(test.effect),
                    "p_value": test.p_value,
                    "q_value": self.q_values.get(name),
                    "smallest_p": test.smallest_p,
                    "permutations": len(test.null),
                    "complete": test.complete,
                }
                for name, test in self.tests.items()
            },
            "note": self.note,
        }

    def describe(self) -> str:
        """Return the finding in plain sentences."""
        sentences = (self.verdict(), self.dispersion(), self.closeness(), self.note)
        return " ".join(sentence for sentence in sentences if sentence)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Finding({self.describe()})"

    def verdict(self) -> str:
        """Return in one sentence whether the variable is associated with the distances; empty without tests."""
        if self.answer is None:
            return ""
        name, test = _plain(self.variable), "PERMANOVA " if self.kind == "groups" else ""
        outcome, numbers = self.label[0], f"{test}{self.size}, {_p_and_q(self.answer.p_value, self.q_value)}"
        if outcome == "undecided":
            return f"{out_of_reach(*self.limit)} ({name}{self.adjustment}: {numbers})."
        if outcome == "none":
            return f"No evidence that {name} is associated with the distances{self.adjustment} ({numbers})."
        differ = f"differ by {name}" if self.kind == "groups" else f"differ with {name}"
        if outcome == "significant":
            return f"Samples {differ}{self.adjustment} ({numbers})."
        return (
            f"Samples may {differ}{self.adjustment} ({numbers}); not significant after correction for multiple testing."
        )

    def significant(self, test: str) -> bool:
        """Return whether a test in ``tests`` is significant: its q-value among all variables is at most 5%."""
        return self.q_values.get(test, self.tests[test].p_value) <= LEVEL

    def p_and_q(self, test: str) -> str:
        """Return the p-value of a test in ``tests`` in words, and its q-value if the q-value differs."""
        return _p_and_q(self.tests[test].p_value, self.q_values.get(test))

    def dispersion(self, *, figures: bool = True) -> str:
        """Return a sentence about dispersion if the groups differ significantly in dispersion; otherwise an empty text.

        Significant means that the q-value among the dispersion tests of all examined variables is at most 5%.

        Parameters
        ----------
        figures
            Whether the sentence includes the ratio of dispersions, the p-value and the q-value.
        """
        test = self.tests.get("dispersion")
        if test is None or not self.significant("dispersion"):
            return ""
        ratio = f"the largest dispersion is {test.effect:.2g} times the smallest, " if np.isfinite(test.effect) else ""
        numbers = f" ({ratio}{self.p_and_q('dispersion')})" if figures else ""
        effect = ""
        if self.sure and self.statistic == "welch":
            effect = "; the Welch statistic of PERMANOVA allows for this difference"
        elif self.sure:
            effect = ", which may explain part of the effect"
        return f"Groups differ in dispersion{numbers}{effect}."

    def closeness(self) -> str:
        """Return sentences on the distances within and between groups, and on nearest samples; empty for numbers."""
        pairs = [] if self.pairs is None else [self.pairs.describe()]
        # The sentence on pairs already describes the nearest samples.
        groups = [] if self.separation is None else str(self.separation).splitlines()[: 1 if pairs else 2]
        sentences = [*pairs, *groups]
        return f"{' '.join(sentences)}{self.near_adjusted}" if sentences else ""


def _p_and_q(p: float, q: float | None) -> str:
    """Return a p-value in words, and the q-value if the q-value differs."""
    return f"p = {p:.2g}" + (f", q = {q:.2g}" if q is not None and f"{q:.2g}" != f"{p:.2g}" else "")


def _plain(name: str) -> str:
    """Return a name in quotes, or without quotes if it is one short word."""
    return name if PLAIN_NAME.fullmatch(name) else quoted(name)


def examine(
    distances: npt.ArrayLike,
    variables: Mapping[str, Sequence[object]] | Any,
    *,
    blocks: Any | None = None,
    adjust: Mapping[str, Sequence[object]] | Design | Any | None = None,
    statistic: Statistic = "welch",
    shown: npt.ArrayLike | None = None,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
    n_permutations: int = 999,
    random_state: RandomState = 0,
    progress: Progress = SILENT,
) -> tuple[Finding, ...]:
    """Test sample metadata for association with the distances between samples.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    variables
        Values ``(n_samples,)`` by name: a mapping or a DataFrame. Text, booleans and numbers with fewer than six
        distinct values are groups. Samples without a value are left out of the tests of this variable.
    blocks
        Block of each sample, ``(n_samples,)``: samples with equal values are dependent, such as samples of one patient,
        batch or pair. Or several block variables by name, in a mapping or a DataFrame. A variable that is constant
        within every block is tested by permuting whole blocks. Any other variable is tested by permuting samples within
        blocks.
    adjust
        Covariates to hold fixed: values ``(n_samples,)`` by name, none of them missing, in a mapping or a DataFrame; or
        a `heatmover.statistics.Design`. The test of a variable that is itself a covariate adjusts for the other
        covariates, but not for interactions that contain the variable.
    statistic
        Statistic of the test of groups, ``"welch"`` or ``"pseudo-F"``, as in `heatmover.statistics.permanova`.
    shown
        Displayed distances, ``(n_samples, n_samples)``, if they differ from the tested ``distances``. The attributes
        ``separation`` and ``explained`` of the findings are computed from the displayed distances.
    numeric, categorical
        Names of variables to read as numbers even if they have few distinct values, or as groups even if they have
        many.
    n_permutations
        Number of permutations of every test. If fewer permutations exist, all are used.
    random_state
        Seed of every test. Each test starts with this seed, so that results do not depend on the other variables.
    progress
        Receives the stage "test variables".

    Returns
    -------
    tuple of Finding
        One finding for each variable, in order. The q-values of each test are computed over all variables, so at most
        5% of the significant results in the whole list are expected to be false.

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
    displayed = matrix if shown is None or shown is distances else check_distances(shown)
    if displayed.shape != matrix.shape:
        raise InvalidInputError(
            f"the argument shown to have the shape of the distances, {matrix.shape}", f"{displayed.shape}"
        )
    check_integer("n_permutations", n_permutations, minimum=1)
    # An error here, because an error of a single test becomes a note of its finding.
    check_option("statistic", statistic, tuple(STATISTICS))
    columns = _columns("variables", variables, len(matrix))
    covariates = {} if adjust is None or isinstance(adjust, Design) else _columns("adjust", adjust, len(matrix))
    read = {**covariates, **columns}
    check_readings(numeric, categorical)
    for name in numeric:
        read[name] = as_numbers(name, read[find(name, read, "every name in the argument numeric to be a variable")])
    for name in categorical:
        read[name] = as_groups(read[find(name, read, "every name in the argument categorical to be a variable")])
    if covariates:
        adjust = design_of({name: read[name] for name in covariates}, numeric=numeric)
    design = as_design(adjust, len(matrix)) if isinstance(adjust, Design) else None
    tied = _tied(blocks, len(matrix))
    progress.stage("test variables", max(len(columns), 1))
    findings = []
    for name in columns:
        settings = {"n_permutations": n_permutations, "random_state": random_state}
        fixed = None if design is None else other_terms(design, name)
        findings.append(
            _examine((matrix, displayed), name, read[name], (tied, fixed), statistic, settings, numeric=name in numeric)
        )
        progress.advance()
    lists: dict[str, dict[int, float]] = {}  # p-values by test, then by place of the variable
    for place, finding in enumerate(findings):
        for number, (name, test) in enumerate(finding.tests.items()):
            # The first tests of groups and of numbers answer the same question, so they are one list.
            lists.setdefault(name if number else "", {})[place] = test.p_value
    rates = {
        name: dict(zip(p_values, false_discovery(list(p_values.values())).tolist(), strict=True))
        for name, p_values in lists.items()
    }
    return tuple(
        replace(
            finding,
            q_value=rates[""][place] if finding.tests else None,
            q_values={name: rates[name if number else ""][place] for number, name in enumerate(finding.tests)},
        )
        for place, finding in enumerate(findings)
    )


def _examine(
    matrices: tuple[Float64, Float64],
    name: str,
    values: list[Any],
    held: tuple[Tied, Design | None],
    statistic: Statistic,
    settings: dict[str, Any],
    *,
    numeric: bool,
) -> Finding:
    """Test a variable on the first matrix, describe its groups by the second one; ``held``: blocks, covariates."""
    known, kept = known_values(values)
    kind, n_missing = kind_of(kept, numeric=numeric), int((~known).sum())
    tested, displayed = (matrix[np.ix_(known, known)] for matrix in matrices)
    codes = check_labels(name, [label(value) for value in kept], len(kept)) if kind == "groups" and kept else None
    counts = {} if codes is None else dict(zip(codes[1], np.bincount(codes[0]).tolist(), strict=True))
    groups = {group: counts[group] for group in naturally(counts)}
    finding = partial(Finding, name, kind, len(kept), n_missing, groups, statistic=statistic)
    reason = _untestable(name, kept, groups)
    if reason:
        return finding(note=reason)
    observed = np.asarray(kept, dtype=np.float64) if codes is None else codes[0]
    blocks = {block: labels[known] for block, labels in held[0].items()}
    fixed = None if held[1] is None else held[1].take(known)
    restriction = restrict(observed, blocks or None)
    finding = partial(finding, blocks=restriction.how, adjusted=() if fixed is None else fixed.names)
    settings = {**settings, "blocks": blocks or None}
    try:
        names = None if codes is None else codes[1]
        results = _tests(tested, observed, names, restriction.units, fixed, statistic, settings)
        tests = {result.test: result for result in results}
        explained = 0.0 if codes is None else explained_variation(CheckedDistances(displayed), codes[0], adjust=fixed)
        pairs = (
            None
            if codes is None
            else _pairs(displayed, codes[0], restriction, "".join(blocks) if len(blocks) == 1 else "", fixed)
        )
    except InvalidInputError as error:  # no permutation exists within blocks, or adjustment leaves no effect
        return finding(note=Sentence(f"{quoted(name)} was not tested: {error.sentence.marked}"))
    interval = None
    if codes is not None and fixed is None and len(blocks) <= 1:
        tied = next(iter(blocks.values()), None)
        interval = explained_interval(
            CheckedDistances(displayed), observed, blocks=tied, random_state=settings["random_state"]
        )
    alone = blocks_of_one_value(observed, restriction)
    evidence = counted(len(kept), "sample")  # units that are permuted
    if pairs is not None:
        evidence = counted(pairs.n_blocks, pairs.noun)
    elif restriction.units is not None:
        evidence = counted(int(restriction.units.max()) + 1, "block")
    return finding(
        tests=tests, separation=None if codes is None else separate(displayed, codes[0]), explained=explained,
        pairs=pairs,
        note=_remark(name, n_missing, groups, alone, left=bool(displayed.any())),
        evidence=evidence, interval=interval,
    )  # fmt: skip


def _tests(
    matrix: Float64,
    values: npt.NDArray[Any],
    groups: tuple[str, ...] | None,
    unit_of: Int64 | None,
    fixed: Design | None,
    statistic: Statistic,
    settings: dict[str, Any],
) -> Iterator[TestResult]:
    near, distances = min(NEIGHBORS_OF_SIGNALS, len(matrix) - 1), CheckedDistances(matrix)
    if groups is None:
        yield distance_correlation(distances, values, adjust=fixed, **settings)
        yield smoothness(distances, values, k=near, adjust=fixed, **settings)
        return
    labels = np.asarray(groups, dtype=object)[values]
    yield permanova(distances, labels, statistic=statistic, adjust=fixed, **settings)
    elsewhere = len(matrix) - (1 if unit_of is None else int(np.unique(unit_of, return_counts=True)[1].max()))
    yield neighbor_enrichment(distances, labels, k=min(NEIGHBORS_OF_LABELS, elsewhere), adjust=fixed, **settings)
    of_group = values if unit_of is None else values[np.unique(unit_of, return_index=True)[1]]
    if np.bincount(of_group).min() >= 2:  # a group of one sample has no dispersion
        yield dispersion(distances, labels, adjust=fixed, **settings)
    yield smoothness(distances, labels, k=near, adjust=fixed, **settings)


def _pairs(
    displayed: Float64, codes: Int64, restriction: Restriction, block: str, fixed: Design | None
) -> Pairs | None:
    """Return the effect of groups within blocks if several blocks exist and each contains all groups; else None."""
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
    by_group, by_block = separate(displayed, codes), separate(displayed, np.unique(within, return_inverse=True)[1])
    return Pairs(
        block, len(table), bool(table.shape[1] == 2 and table.max() == 1),
        explained_variation(CheckedDistances(displayed), codes, adjust=held),
        by_group.agreement, by_block.agreement, by_group.chance, by_block.chance, len(codes),
    )  # fmt: skip


def examine_design(
    distances: npt.ArrayLike,
    design: Design,
    *,
    by: Literal["terms", "margin"] = "margin",
    statistic: Statistic = "welch",
    blocks: Any | None = None,
    shown: npt.ArrayLike | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> DesignResult:
    """Test the terms of a design on ``distances``, and compute the returned sums of squares from ``shown``.

    Parameters
    ----------
    distances, blocks, shown, n_permutations, random_state
        As in `examine`.
    design, by, statistic
        As in `heatmover.statistics.permanova_design`.

    Examples
    --------
    >>> positions = np.array([0.0, 3.0, 1.0, 4.0, 2.0, 6.0])
    >>> design = design_of({"batch": list("xxyyzz"), "condition": list("ababab")})
    >>> examine_design(abs(positions[:, None] - positions), design)["condition"].degrees_of_freedom
    1
    """
    settings: dict[str, Any] = {
        "by": by,
        "statistic": statistic,
        "blocks": _tied(blocks, design.n_samples) or None,
        "random_state": random_state,
    }
    result = permanova_design(distances, design, n_permutations=n_permutations, **settings)
    if shown is None:
        return result
    displayed = permanova_design(shown, design, n_permutations=1, **settings)
    terms = tuple(
        replace(
            term, sum_of_squares=other.sum_of_squares, r_squared=other.r_squared,
            partial_r_squared=other.partial_r_squared,
        )
        for term, other in zip(result.terms, displayed.terms, strict=True)
    )  # fmt: skip
    return replace(
        result, terms=terms, residual_sum_of_squares=displayed.residual_sum_of_squares,
        total_sum_of_squares=displayed.total_sum_of_squares,
    )  # fmt: skip


def design_of(
    columns: Mapping[str, Sequence[object]], *, formula: str | None = None, numeric: Collection[str] = ()
) -> Design:
    """Return the design of sample metadata; values are read as groups or numbers as in `examine`.

    Parameters
    ----------
    columns
        Values ``(n_samples,)`` by name.
    formula
        Formula as in `heatmover.statistics.Design.from_formula`; default: one term for each column.
    numeric
        Names of variables to read as numbers even if they have few distinct values.

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
            f"finite numbers in the covariate {quoted(name)}",
            "an infinite number",
            "correct the value, or omit the variable",
        )
    return values if kind_of(known, numeric=numeric) == "number" else list(as_groups(values))


def check_adjusted(
    name: str, values: Sequence[object], design: Design, *, blocks: Any | None = None, numeric: bool = False
) -> None:
    """Raise if a variable cannot be tested with covariates held fixed, or within some of its blocks.

    Parameters
    ----------
    name, values
        Name and values ``(n_samples,)`` of the variable; samples with a missing value are ignored.
    design
        Covariates; terms that contain the variable itself are ignored.
    blocks
        As in `examine`.
    numeric
        Whether to read numbers with few distinct values as numbers, not as codes of groups.

    Examples
    --------
    >>> check_adjusted("treatment", list("uuvv"), design_of({"batch": list("xxyy")}))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected 'treatment' not to be determined by 'batch', found that it is; ...
    """
    fixed = other_terms(design, name)
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
    spaces_given(columns, fixed.take(known), quoted(name))
    tied = {block: labels[known] for block, labels in _tied(blocks, len(known)).items()}
    check_mixed(quoted(name), codes, restrict(codes, tied or None))


def other_terms(design: Design, name: str) -> Design | None:
    """Return the terms of a design that do not contain a variable; None if there are no such terms."""
    terms = tuple(term for term in design.terms if name not in term.variables)
    return Design(terms, design.n_samples) if terms else None


def _has_infinite(values: Iterable[Any]) -> bool:
    return any(isinstance(value, float | np.floating) and np.isinf(value) for value in values)


def _untestable(name: str, values: list[Any], groups: Mapping[str, int]) -> str:
    """Return the reason why a variable cannot be tested, or an empty text."""
    start = f"{quoted(name)} was not tested: "
    if len(values) < FEWEST_SAMPLES:
        return f"{start}{counted(len(values), 'sample')} with a value {verb(len(values), 'is', 'are')} too few."
    if _has_infinite(values):
        return f"{start}it has infinite values."
    if len(groups) == 1 or (not groups and len(set(values)) == 1):
        return f"{start}it is constant."
    if groups and max(groups.values()) == 1:
        return f"{start}every sample has a different value."
    return ""


def _remark(name: str, n_missing: int, groups: Mapping[str, int], alone: tuple[int, int], *, left: bool) -> str:
    notes = []
    if not left:
        notes.append("All displayed distances between these samples are zero, so only the test can show a difference.")
    if n_missing:
        notes.append(
            f"{counted(n_missing, 'sample')} without {quoted(name)} {verb(n_missing, 'was', 'were')} left out."
        )
    single = sum(size == 1 for size in groups.values())
    if single:
        have = verb(single, "has", "have")
        notes.append(f"{single} of {counted(len(groups), 'group')} {have} a single sample.")
    if alone[0]:
        kind = "group" if groups else "value"
        have = verb(alone[0], "has only one {} and does", "have only one {} and do").format(kind)
        notes.append(f"{alone[0]} of {counted(alone[1], 'block')} {have} not contribute to the test.")
    return " ".join(notes)


def _tied(blocks: Any | None, n_samples: int) -> Tied:
    """Return the block of each sample, as text, by name of the variable; all tests sort blocks as text."""
    if blocks is None:
        return {}
    named = blocks if hasattr(blocks, "columns") or isinstance(blocks, Mapping) else {"": blocks}
    tied = {}
    for name in named:
        codes, names = check_labels(f"blocks {str(name)!r}" if name != "" else "blocks", named[name], n_samples)
        tied[str(name)] = np.asarray(names)[codes]
    return tied


def _columns(what: str, variables: Any, n_samples: int) -> dict[str, list[Any]]:
    """Return the values of variables by name; raise if a variable has more or fewer values than there are samples."""
    names = LabelNames(what).add_all(variables)
    columns = {name: list(variables[key]) for name, key in zip(names, variables, strict=True)}
    for name, values in columns.items():
        if len(values) != n_samples:
            raise InvalidInputError(
                f"a value of {quoted(name)} for each of the {counted(n_samples, 'sample')}", f"{len(values)}"
            )
    return columns
