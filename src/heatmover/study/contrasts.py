"""Contrast the cell types of groups of samples, or along numbers; for studies, `pl`, `tl`, users; no files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Float64
from heatmover._base.validation import check_random_state, import_extra
from heatmover._base.words import counted, find, joined, listed, naturally, quoted, verb
from heatmover.attribution import CellTypes, Drivers
from heatmover.attribution.cell_types import LEVEL, TypedCells, contrast_types, omnibus, probe_types
from heatmover.attribution.contrast import (
    LEAST_VALUES,
    SampleContrast,
    choose_groups,
    first_of_order,
    one_against_rest,
    set_up,
)
from heatmover.attribution.drivers import check_features, find_drivers
from heatmover.attribution.parts import AbundanceShare, abundance_share
from heatmover.attribution.pseudobulk import Pseudobulk, of_cells
from heatmover.attribution.witness import explain_masses
from heatmover.errors import InvalidInputError, Sentence, argument, in_python, the_argument
from heatmover.measures import is_missing
from heatmover.statistics import Design, false_discovery
from heatmover.statistics.designs import gower
from heatmover.statistics.permutations import LEVEL as SIGNIFICANT
from heatmover.statistics.permutations import out_of_reach, within_reach
from heatmover.statistics.regression import gram_statistics, two_sided, weigh
from heatmover.study.cell_types import Annotation, CellMasses
from heatmover.study.comparison import Comparison
from heatmover.study.examination import as_numbers, known_values, label

# Two shares with a ratio below this value are described as about the same, unless they differ significantly.
ALIKE = 1.25
# An error message suggests group names only of variables with at most this number of groups.
MOST_GROUPS = 20
# Largest number of cell types that a sentence names; tables list all cell types.
NAMED = 3


@final
@dataclass(frozen=True)
class CellType:
    """Abundance and state of one cell type in two groups.

    Attributes
    ----------
    name
        Name of the cell type.
    cells
        Number of cells of this type, summed over all samples.
    contribution, share
        Contribution of the type to the distance between the group means: in the unit of the distances, and as a share
        of the distance. The shares of all types sum to 1. A negative share means that the type changed against the
        overall trend.
    abundance, state
        Parts of the contribution due to abundance and due to state; the contribution is their sum. For the part due to
        abundance, the witness is taken relative to the average cell.
    in_group, in_reference
        Proportion of this type among the cells of a sample: mean over the samples of the group, and of the reference.
    score, log_ratio, abundance_p, abundance_q, state_p, state_q
        Test results of this type, as in `heatmover.attribution.CellTypes`.
    abundance_limit, state_limit
        Why a test that is not significant could not have been significant, such as "too few pairs to decide"; else
        empty.

    Examples
    --------
    >>> cell_type = CellType(
    ...     "B", 120, 0.02, 0.4, 0.018, 0.002, 0.1, 0.05, score=3.1, log_ratio=0.7,
    ...     abundance_p=0.002, abundance_q=0.01, state_p=0.3, state_q=0.5,
    ... )
    >>> cell_type.direction, round(cell_type.ratio, 2), cell_type.moved
    ('more', 2.0, False)
    >>> print(cell_type)
    'B': 2 times as many (10% vs. 5% of cells); 40% of the distance
    """

    name: str
    cells: int
    contribution: float
    share: float
    abundance: float
    state: float
    in_group: float
    in_reference: float
    score: float
    log_ratio: float
    abundance_p: float
    abundance_q: float
    state_p: float
    state_q: float
    abundance_limit: str = ""
    state_limit: str = ""

    @property
    def direction(self) -> Literal["more", "less", ""]:
        """Return the direction of a significant change in abundance (false discovery rate 10%); empty if none."""
        if self.abundance_q > LEVEL or self.score == 0:
            return ""
        return "more" if self.score > 0 else "less"

    @property
    def moved(self) -> bool:
        """Return whether cell state differs significantly between the groups (false discovery rate 10%)."""
        return self.state_q <= LEVEL

    @property
    def ratio(self) -> float:
        """Return the share in the group divided by the share in the reference; infinite if the reference has none."""
        return self.in_group / self.in_reference if self.in_reference > 0 else float("inf")

    def number_words(self) -> str:
        """Describe the change in abundance, such as "2 times as many (10% vs. 5% of cells)"."""
        if not self.in_group or not self.in_reference:
            where = "only in the group" if self.in_group else "only in the reference"
            return where if self.direction else f"{where}, {self.abundance_limit or 'not significant'}"
        if self.direction:
            # Two digits, but three digits near 1, where two would hide the change.
            digits = 3 if 0.9 < self.ratio < 1.1 else 2
            return f"{self.ratio:.{digits}g} times as many"
        if self.abundance_limit:
            return self.abundance_limit
        alike = abs(np.log(self.ratio)) <= np.log(ALIKE)
        return "about the same share" if alike else "no significant change in abundance"

    def words(self) -> str:
        """Describe the changes in abundance and in state."""
        shares = " vs. ".join(_shares(self.in_group, self.in_reference)) + " of cells"
        state = ", different state" if self.moved else ""
        return f"{self.number_words()} ({shares}){state}"

    def describe(self, *, share: bool = True) -> str:
        """Describe the type in words, with its ``share`` of the distance or without."""
        of = f"; {100 * self.share:.0f}% of the distance" if share else ""
        return f"{quoted(self.name)}: {self.words()}{of}"

    def __str__(self) -> str:
        return self.describe()


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellContrast:
    """Differences in cell types between two groups of samples, or along a number; part of a `Study`.

    ``print`` shows a description.

    Attributes
    ----------
    annotation, variable
        Names of the annotation of cells and of the column of sample metadata.
    group, reference
        Names of the groups. For a trend: "higher" and "lower", followed by the name of the number. Samples then have
        weights in proportion to their deviation from the mean, or from the fit on blocks and covariates.
    n_samples
        Number of independent samples in each group. Blocks are counted instead of samples if all samples of a block are
        in one group.
    blocks
        How blocks restrict the permutations, as in `Finding`.
    distance
        Distance between the mean of the group and the mean of the reference, in the unit of the distances.
    types
        The cell types, largest contribution to the distance first.
    n_permutations
        Number of permutations of the samples.
    drivers
        Features that differ within each cell type, in the order of ``types``; None if no features were given.
    stable
        Reference types for changes in abundance: the types whose mutual ratios change least. If too few types are
        stable, the tuple is empty, and abundances are compared as shares.
    no_calls
        Reason, in sentences, why no type and no feature can be significant: there are too few samples to reach a
        p-value of 0.05. All q-values are then 1. Empty if types can be significant.
    p_value
        P-value of the difference between the groups: permutation test of the studentized distance between their means.
    abundance_share
        Share of the distance that abundance accounts for, corrected for sampling noise, with its 95% confidence
        interval; None if the samples do not determine this share. See `heatmover.attribution.parts`.
    adjusted
        Names of the covariates that are held fixed.
    alternative
        A second set of types that serves nearly as well as a reference. Changes in abundance are then significant only
        if they are significant relative to both sets.
    dependent
        Types whose abundance differs relative to one of the two sets only.
    trend
        Whether the contrast is along a number.
    q_value
        False discovery rate of the difference among all contrasts of the variable.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.study import annotate
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> branch = [f"branch {int(b)}" for b in data.coordinates[:, 0]]
    >>> comparison = hm.compare(data.points, data.labels)
    >>> contrast = contrast_cells(comparison, annotate("branch", branch, 720), data.annotations["condition"])
    >>> print(contrast)
    Abundance accounts for ...% of the distance between 'case' and 'control' (95% interval ...), cell state for ...%...
    >>> round(sum(cell_type.share for cell_type in contrast.types), 6)
    1.0
    """

    annotation: str
    variable: str
    group: str
    reference: str
    n_samples: tuple[int, int]
    blocks: str
    distance: float
    types: tuple[CellType, ...]
    n_permutations: int
    stable: tuple[str, ...] = ()
    drivers: Drivers | None = None
    no_calls: str = ""
    p_value: float = 1.0
    abundance_share: AbundanceShare | None = None
    adjusted: tuple[str, ...] = ()
    alternative: tuple[str, ...] = ()
    dependent: tuple[str, ...] = ()
    trend: bool = False
    q_value: float = 1.0

    @property
    def different(self) -> tuple[CellType, ...]:
        """Return the types that differ significantly in abundance or state, largest contributions first."""
        return tuple(cell_type for cell_type in self.types if cell_type.direction or cell_type.moved)

    @property
    def differs(self) -> bool:
        """Return whether the groups differ: the q-value of their distance is at most 5%."""
        return self.q_value <= SIGNIFICANT

    @property
    def probability(self) -> str:
        """Return the p-value in words, and the q-value if there are several contrasts."""
        p, q = f"{self.p_value:.2g}", f"{self.q_value:.2g}"
        return f"p = {p}" if p == q else f"p = {p}, q = {q}"

    @property
    def abundance(self) -> float:
        """Return the contribution of abundance to the distance; the contribution of state is the remainder."""
        return math.fsum(cell_type.abundance for cell_type in self.types)

    @property
    def state(self) -> float:
        """Return the contribution of cell state to the distance."""
        return math.fsum(cell_type.state for cell_type in self.types)

    @property
    def name(self) -> str:
        """Return the contrast in words, such as "'case' and 'control'" or "higher and lower 'dose'"."""
        if self.trend:
            return f"higher and lower {quoted(self.variable)}"
        # "all others" is not the name of a group: `set_up` uses these words for all other groups combined.
        reference = self.reference if self.reference == "all others" else quoted(self.reference)
        return f"{quoted(self.group)} and {reference}"

    def split(self) -> str:
        """Describe how much of the distance is abundance and how much is state; no percentages without a difference."""
        adjusted = f", adjusted for {joined(map(quoted, self.adjusted))}" if self.adjusted else ""
        change = f"with {quoted(self.variable)}" if self.trend else ""
        if not self.differs:
            what = f"cells change {change}" if self.trend else f"{self.name} differ"
            return f"No evidence that {what}{adjusted} ({self.probability})."
        if self.abundance_share is None:
            what = f"Cells change {change}" if self.trend else f"{self.name[0].upper()}{self.name[1:]} differ"
            return (
                f"{what}{adjusted} ({self.probability}). The samples do not determine how much of the difference is "
                "abundance and how much is state."
            )
        value, low, high = (round(100 * each) for each in self.abundance_share)
        of = f"the change {change}" if self.trend else f"the distance between {self.name}"
        return (
            f"Abundance accounts for {value}% of {of} (95% interval {low}% to {high}%{adjusted}), cell state for "
            f"{100 - value}%."
        )

    def describe(self) -> str:
        """Describe the contrast in plain sentences."""
        if self.distance == 0:
            return f"The means of {self.name} are identical."
        different = self.different
        if not different:
            most = self.types[0]
            adds = f" {quoted(most.name)} contributes most ({100 * most.share:.0f}%)." if self.differs else ""
            none = self.no_calls or f"No cell type in {quoted(self.annotation)} differs significantly."
            return f"{self.split()}{adds} {none}{self._frame()}"
        named = ". ".join(cell_type.describe(share=self.differs) for cell_type in different[:NAMED])
        rest = len(different) - NAMED
        more = (
            f" {rest} more of {counted(len(self.types), 'type')} {verb(rest, 'differs', 'differ')}." if rest > 0 else ""
        )
        sides = " Shares are those at high values vs. low values." if self.trend else ""
        return f"{self.split()} {named}.{more}{sides}{self._frame()}"

    def brief(self) -> str:
        """Return one line for lists of contrasts: the names, the p-value, and the types that differ."""
        kinds = [
            joined(f"{quoted(one.name)} {one.direction}" for one in self.types if one.direction),
            listed([one.name for one in self.types if one.moved]),
        ]
        found = [f"{what} {names}" for what, names in zip(("abundance:", "state:"), kinds, strict=True) if names]
        none = "too few samples to decide" if self.no_calls else "no cell type differs significantly"
        return f"{self.name} ({self.probability}): {'; '.join(found) or none}"

    def _frame(self) -> str:
        """Return a sentence on what the composition does not determine; empty if there is one set of references."""
        if self.alternative:
            first, second = (
                listed([name for name in one if name not in other])
                for one, other in ((self.stable, self.alternative), (self.alternative, self.stable))
            )
            depends = f" The results for {listed(self.dependent)} depend on this choice, so these are not called." if (
                self.dependent
            ) else ""  # fmt: skip
            return (
                f" Two sets of types could be the reference for abundance: {first}, or {second}. Only changes relative "
                f"to both are called.{depends}"
            )
        if not self.stable and any(cell_type.direction for cell_type in self.different):
            return (
                " No reference types could be identified, so abundances are shares of all cells: if one type grows, "
                "the shares of all other types shrink."
            )
        return ""

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type, largest contribution to the distance first."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        index = pandas.Index([cell_type.name for cell_type in self.types], dtype=object, name="cell_type")
        return pandas.DataFrame(self.rows(), index=index)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each type: all attributes except the name, by attribute name."""
        columns = [name for name in CellType.__dataclass_fields__ if name != "name"]
        return [
            {name: getattr(cell_type, name) for name in columns}
            | {"direction": cell_type.direction, "moved": cell_type.moved}
            for cell_type in self.types
        ]

    def plain(self) -> dict[str, Any]:
        """Return all attributes as plain values for JSON."""
        named = (
            "annotation", "variable", "group", "reference", "n_samples", "blocks", "distance", "n_permutations",
            "p_value", "trend",
        )  # fmt: skip
        types = [{"name": cell_type.name} | row for cell_type, row in zip(self.types, self.rows(), strict=True)]
        share = self.abundance_share
        sums = {
            "abundance": self.abundance,
            "state": self.state,
            "abundance_share": None if share is None else share._asdict(),
            "adjusted": list(self.adjusted),
            "stable": list(self.stable),
            "alternative": list(self.alternative),
            "dependent": list(self.dependent),
            "no_calls": self.no_calls,
        }
        drivers = None if self.drivers is None else self.drivers.top()
        values = {name: getattr(self, name) for name in named} | {"sentence": self.describe()}
        return values | sums | {"types": types, "drivers": drivers}

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return (
            f"CellContrast({self.group} against {self.reference}, {counted(len(self.types), 'type')} of "
            f"{self.annotation})"
        )


@final
@dataclass(frozen=True, eq=False, repr=False)
class Omnibus:
    """Tests of each cell type over all groups together; part of a `Study` with three or more groups.

    Attributes
    ----------
    variable, groups
        Name of the variable, and names of its groups.
    types
        Names of the cell types.
    abundance_p, abundance_q, state_p, state_q
        ``(n_types,)``: p-values of the largest difference between a group and all other samples, and q-values over
        types.

    Examples
    --------
    >>> one = np.array([0.01, 0.5])
    >>> print(Omnibus("dose", ("0", "1", "5"), ("B", "T"), one, one, one, one))
    All 3 groups of 'dose' together: 1 of 2 types differs in abundance ('B'), 1 in state ('B').
    """

    variable: str
    groups: tuple[str, ...]
    types: tuple[str, ...]
    abundance_p: Float64
    abundance_q: Float64
    state_p: Float64
    state_q: Float64

    def describe(self) -> str:
        """Return the number and the names of the types that differ."""
        found = [
            [quoted(name) for name, q in zip(self.types, values, strict=True) if q <= LEVEL]
            for values in (self.abundance_q, self.state_q)
        ]
        start = f"All {len(self.groups)} groups of {quoted(self.variable)} together:"
        if not any(found):
            return f"{start} no cell type differs significantly."
        number, state = (f" ({joined(names)})" if names else "" for names in found)
        count = len(found[0])
        return (
            f"{start} {count} of {counted(len(self.types), 'type')} {verb(count, 'differs', 'differ')} in abundance"
            f"{number}, {len(found[1])} in state{state}."
        )

    def plain(self) -> dict[str, Any]:
        """Return all attributes as plain values for JSON."""
        columns = ("abundance_p", "abundance_q", "state_p", "state_q")
        values = {name: getattr(self, name).tolist() for name in columns}
        return {
            "variable": self.variable, "groups": list(self.groups), "types": list(self.types), **values,
            "sentence": self.describe(),
        }  # fmt: skip

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Omnibus({self.describe()})"


def check_reference(reference: str, variables: Mapping[str, Sequence[Any]], side: str = "reference") -> str:
    """Return the first variable with a group of this name, or raise an error that suggests a similar group name.

    Parameters
    ----------
    reference
        Name of a group.
    variables
        Values ``(n_samples,)`` by name.
    side
        Name of the argument in messages: ``"reference"`` or ``"group"``.

    Examples
    --------
    >>> check_reference("ctrl", {"sex": ["f", "m"], "condition": ["ctrl", "stim"]})
    'condition'
    """
    groups = {name: {label(value) for value in known_values(values)[1]} for name, values in variables.items()}
    for name, labels in groups.items():
        if reference in labels:
            return name
    every = sorted({one for labels in groups.values() if len(labels) <= MOST_GROUPS for one in labels})
    return find(reference, every, f"{the_argument(side)} to be a group of an examined variable")


def check_trend(name: str, values: Any) -> None:
    """Raise unless a variable has numbers or ordered categories for a trend, at least three different ones.

    Examples
    --------
    >>> check_trend("dose", [0, 1, 1])
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected at least 3 different values of 'dose' for a trend, found 2; ...
    """
    numbers = along_numbers(name, values)
    if numbers is None:
        raise InvalidInputError(
            f"numbers or an ordered category in {quoted(name)} for a trend", "other values", "compare groups instead"
        )
    count = len({number for number in numbers if number is not None})
    if count < LEAST_VALUES:
        raise InvalidInputError(
            f"at least {LEAST_VALUES} different values of {quoted(name)} for a trend", f"{count}",
            "compare two groups instead",
        )  # fmt: skip


class CellContrasts(NamedTuple):
    """Contrasts of cell types along a variable, as returned by `contrast_variable`.

    Attributes
    ----------
    contrasts
        One contrast for each group, and the trend, the strongest first.
    omnibus
        Test of all groups together; None with fewer than three groups.
    left_out
        Notes on groups that could not be compared, in sentences.

    Examples
    --------
    >>> CellContrasts(()).omnibus is None
    True
    """

    contrasts: tuple[CellContrast, ...]
    omnibus: Omnibus | None = None
    left_out: tuple[str, ...] = ()


def contrast_cells(
    comparison: Comparison,
    annotation: Annotation,
    groups: Sequence[Any],
    *,
    variable: str = "group",
    group: str | None = None,
    reference: str | None = None,
    trend: bool = False,
    blocks: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    adjust: Design | None = None,
    cells: CellMasses | None = None,
    features: Any | None = None,
    feature_names: Sequence[str] | None = None,
    n_permutations: int = 999,
    random_state: int = 0,
) -> CellContrast:
    """Find the cell types that differ between two groups of samples, and the contribution of each type to the distance.

    The share of each type in each sample is exact, even if a landmark approximates cells of several types. The
    contribution of each cell is computed from the witness at the landmark of the cell, and added to the type of the
    cell.

    Parameters
    ----------
    comparison
        Comparison from `compare`.
    annotation
        Annotation from `annotate`: the type of each cell, or of each point of the graph if ``cells`` is not given.
    groups
        ``(n_samples,)``: group of each sample; samples with a missing value are left out. May be an ordered pandas
        categorical. With ``trend``, a number for each sample, or an ordered categorical.
    variable
        Name of the variable that holds the groups.
    group, reference
        Names of the two groups. By default, the reference is the group with a name such as control, healthy or
        untreated, else the first group of an ordered category. The group is then the largest other group. If neither
        kind of reference exists, two groups are sorted by name, and the first is compared with the second. With more
        than two groups, the largest group is then compared with all other groups combined.
    trend
        Contrast samples along the number: which types follow it?
    blocks
        ``(n_samples,)``: block of each sample, such as the patient. If all samples of every block are in one group,
        the samples of each block are averaged; otherwise samples are compared within blocks.
    adjust
        Covariates of all samples to hold fixed, in every test (Freedman-Lane).
    cells
        Cells of the samples and the landmark of each cell; None if the points of the graph are the cells.
    features, feature_names
        Values of features such as genes, ``(n_cells, n_features)``, dense or sparse, with one row for each cell of the
        annotation; and the names of the features. Features are tested for differences within each type. Studies pass
        the means of genes over the cells of each type (a ``Pseudobulk``) instead of values of cells.
    n_permutations, random_state
        As in `explain_groups`.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.study import annotate
    >>> data = hm.datasets.cohort(8, cells_per_sample=30, effect=6.0)
    >>> branch = annotate("branch", data.coordinates[:, 0].astype(int), 240)
    >>> contrast_cells(hm.compare(data.points, data.labels), branch, data.annotations["condition"], n_permutations=19)
    CellContrast(case against control, 5 types of branch)
    """
    rng = check_random_state(random_state)
    given = _given(features, feature_names, annotation)
    known, design = two_groups(
        groups, group=group, reference=reference, trend=variable if trend else None, blocks=blocks, adjust=adjust,
        n_permutations=n_permutations, rng=rng,
    )  # fmt: skip
    found = _contrasts(comparison, annotation, variable, known, [design], cells, given, rng)
    return found[0]


def contrast_variable(
    comparison: Comparison,
    annotation: Annotation,
    groups: Sequence[Any],
    *,
    variable: str,
    group: str | None = None,
    reference: str | None = None,
    trend: bool = False,
    ordered: bool = True,
    blocks: Mapping[str, Sequence[Any]] | None = None,
    adjust: Design | None = None,
    cells: CellMasses | None = None,
    features: Any | None = None,
    feature_names: Sequence[str] | None = None,
    n_permutations: int = 999,
    random_state: int = 0,
) -> CellContrasts:
    """Contrast cell types along a variable: every group with the reference, all groups together, and the trend.

    With three or more groups, every group is compared with the reference, or with all other groups if there is no
    reference. If the groups are numbers or ordered, their trend is a further contrast. The q-values control the false
    discovery rate over the types of all contrasts of the variable.

    Parameters
    ----------
    trend
        Only the trend, along a number or an ordered category.
    ordered
        Whether to test a trend too if the groups are numbers or ordered; False for codes such as batch numbers.
    comparison, annotation, groups, variable, group, reference, blocks, adjust, cells
        As in `contrast_cells`; with ``group``, only this group is compared.
    features, feature_names, n_permutations, random_state
        As in `contrast_cells`.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.study import annotate
    >>> data = hm.datasets.cohort(9, cells_per_sample=30)
    >>> branch = annotate("branch", data.coordinates[:, 0].astype(int), 270)
    >>> comparison = hm.compare(data.points, data.labels)
    >>> found = contrast_variable(comparison, branch, ["0", "1", "5"] * 3, variable="dose", n_permutations=19)
    >>> sorted(contrast.name for contrast in found.contrasts)
    ["'1' and '0'", "'5' and '0'", "higher and lower 'dose'"]
    """
    rng = check_random_state(random_state)
    given = _given(features, feature_names, annotation)
    settings: dict[str, Any] = {"blocks": blocks, "adjust": adjust, "n_permutations": n_permutations, "rng": rng}
    known, designs, left_out = designs_along(
        groups, variable, group=group, reference=reference, trend=trend, ordered=ordered, **settings
    )
    counts = Counter(label(value) for value in groups if not is_missing(value))
    found = _contrasts(comparison, annotation, variable, known, designs, cells, given, rng)
    together = None
    if not trend and group is None and len(counts) > 2:
        labels = [label(value) for value in groups if not is_missing(value)]
        try:
            together = _omnibus(comparison, annotation, variable, known, labels, cells, settings)
        except InvalidInputError as error:
            note = f"All groups of {quoted(variable)} were not tested together: {error.sentence.marked}"
            left_out.append(Sentence(note))
    strength = [strength_of(comparison, known, design) for design in designs]
    q_values = false_discovery([p_value for p_value, _ in strength])
    order = sorted(range(len(found)), key=strength.__getitem__)
    strongest = tuple(replace(found[place], q_value=float(q_values[place])) for place in order)
    return CellContrasts(strongest, together, tuple(left_out))


def designs_along(
    groups: Sequence[Any],
    variable: str,
    *,
    group: str | None = None,
    reference: str | None = None,
    trend: bool = False,
    ordered: bool = True,
    **settings: Any,
) -> tuple[list[int], list[SampleContrast], list[str]]:
    """Return the samples with a value, the contrasts along a variable, and notes on groups that were left out.

    Parameters
    ----------
    groups, variable, group, reference, trend, ordered
        As in `contrast_variable`.
    **settings
        ``blocks``, ``adjust``, ``n_permutations`` and ``rng``, as in `two_groups`.
    """
    counts = Counter(label(value) for value in groups if not is_missing(value))
    designs, left_out, known = list[SampleContrast](), list[str](), list[int]()
    if not trend:
        chosen = choose_groups(counts, group=group, reference=reference, first=first_of_order(groups))
        others = [chosen[0]] if group is not None or len(counts) == 2 else naturally(counts)
        for name in others:
            if name == chosen[1]:
                continue
            try:
                known, design = two_groups(groups, group=name, reference=chosen[1], **settings)
            except InvalidInputError as error:
                if len(others) == 1:
                    raise
                left_out.append(Sentence(f"{quoted(name)} was not compared by cell types: {error.sentence.marked}"))
                continue
            designs.append(design)
    if trend or (ordered and group is None and len(counts) > 2 and along_numbers(variable, groups) is not None):
        try:
            known, design = two_groups(groups, trend=variable, **settings)
            designs.append(design)
        except InvalidInputError as error:
            if not designs:
                raise
            left_out.append(Sentence(f"The trend along {quoted(variable)} was not tested: {error.sentence.marked}"))
    if not designs:
        raise InvalidInputError(
            f"two groups of {quoted(variable)} with at least two independent samples each", "fewer",
            f"choose another {in_python('argument ')}{argument('reference')}",
        )  # fmt: skip
    return known, designs, left_out


def strength_of(comparison: Comparison, known: list[int], design: SampleContrast) -> tuple[float, float]:
    """Return the p-value of the distance between the two sides of a contrast, and minus its statistic, to sort by."""
    chosen = np.asarray(known)[design.chosen]
    gram = gower(comparison.test_distances[np.ix_(chosen, chosen)])
    inside = design.average @ gram @ design.average.T
    statistics = gram_statistics(inside, weigh(design.regressors, design.nuisance))
    return float(two_sided(statistics)), -float(statistics[0])


def along_numbers(name: str, column: Any) -> list[float | None] | None:
    """Return the numbers of an ordered category (1, 2, ...) or of a numeric column; None for any other column.

    Examples
    --------
    >>> along_numbers("dose", ["0", "0.5", None])
    [0.0, 0.5, None]
    >>> along_numbers("sex", ["f", "m"]) is None
    True
    """
    values = list(column)
    if first_of_order(column) is not None:
        there = {str(value) for value in values if not is_missing(value)}
        ranks = {value: rank for rank, value in enumerate(v for v in map(str, column.dtype.categories) if v in there)}
        return [None if is_missing(value) else float(ranks[str(value)] + 1) for value in values]
    try:
        numbers = as_numbers(name, values)
    except InvalidInputError:
        return None
    return [None if is_missing(value) else float(value) for value in numbers]


def _given(
    features: Any, names: Sequence[str] | None, annotation: Annotation
) -> Pseudobulk | tuple[Any, tuple[str, ...]] | None:
    """Return checked features of cells with their names, or means over the cells of each type, or None."""
    if features is None or isinstance(features, Pseudobulk):
        return features
    return check_features(features, names, annotation.codes.size)


def _typed_cells(
    comparison: Comparison, annotation: Annotation, known: list[int], cells: CellMasses | None
) -> tuple[sp.csr_array, TypedCells]:
    """Return the masses of the known samples on the points of the graph, and their cells by type."""
    rows = sp.csr_array(comparison.measures.masses)[known]
    codes, sizes = annotation.codes.astype(np.int64), comparison.sizes[known].astype(np.float64)
    nodes, masses = (np.arange(rows.shape[1]), rows) if cells is None else (cells.nodes, cells.masses[known])
    counts = np.ones(codes.size, dtype=np.int64) if cells is None or cells.counts is None else cells.counts
    return rows, TypedCells(annotation.types, codes, nodes, masses, counts, sizes)


def _contrasts(
    comparison: Comparison,
    annotation: Annotation,
    variable: str,
    known: list[int],
    designs: list[SampleContrast],
    cells: CellMasses | None,
    features: Pseudobulk | tuple[Any, tuple[str, ...]] | None,
    rng: np.random.Generator,
) -> list[CellContrast]:
    """Return the contrasts of the known samples, in the order of their designs."""
    rows, own = _typed_cells(comparison, annotation, known, cells)
    bulk = of_cells(own, *features) if isinstance(features, tuple) else features and features.of(known)
    explained = [explain_masses(comparison.model, design.means(rows), design.names) for design in designs]
    witnesses = [comparison.unit_factor(one.distance) * one.witness for one in explained]
    results = contrast_types(comparison.model, designs, own, witnesses, rng)
    return [
        _contrast(comparison, annotation.name, variable, known, design, result, own, bulk, rng)
        for design, result in zip(designs, results, strict=True)
    ]


def _contrast(
    comparison: Comparison,
    annotation: str,
    variable: str,
    known: list[int],
    design: SampleContrast,
    result: CellTypes,
    cells: TypedCells,
    bulk: Pseudobulk | None,
    rng: np.random.Generator,
) -> CellContrast:
    p_value, _ = strength_of(comparison, known, design)
    drivers = None if bulk is None else find_drivers(design, bulk)
    no_calls = ""
    if not within_reach(design.smallest_p):
        no_calls = (
            f"{out_of_reach(design.evidence, design.smallest_p, 'a test of a cell type')}. No cell type is called "
            "significant."
        )
        ones = np.ones_like(result.abundance_q)
        result = replace(result, abundance_q=ones, state_q=ones, dependent=np.zeros_like(result.dependent))
    share = None
    if p_value <= SIGNIFICANT:
        share = abundance_share(comparison.model, design, cells, rng)
    types = tuple(_types(result, design))
    if drivers is not None:
        drivers = drivers.ordered(tuple(cell_type.name for cell_type in types))
    stable, alternative, dependent = (
        tuple(name for name, there in zip(result.names, marks, strict=True) if there)
        for marks in (result.stable, result.alternative, result.dependent)
    )
    return CellContrast(
        annotation, variable, *design.names, design.counts, design.how, math.fsum(result.contributions), types,
        design.n_permutations, stable, drivers, no_calls, p_value, share, design.adjusted, alternative, dependent,
        design.trend, p_value,
    )  # fmt: skip


def _omnibus(
    comparison: Comparison,
    annotation: Annotation,
    variable: str,
    known: list[int],
    labels: list[str],
    cells: CellMasses | None,
    settings: Mapping[str, Any],
) -> Omnibus:
    """Return the test of all groups together."""
    tied, adjust = _of_known(known, settings["blocks"], settings["adjust"])
    designs = one_against_rest(labels, len(labels), **{**settings, "blocks": tied, "adjust": adjust})
    own = _typed_cells(comparison, annotation, known, cells)[1]
    tests = omnibus(designs, own, probe_types(comparison.model, own, settings["rng"]))
    return Omnibus(variable, tuple(design.names[0] for design in designs), own.names, *tests)


def two_groups(
    groups: Sequence[Any],
    *,
    group: str | None = None,
    reference: str | None = None,
    trend: str | None = None,
    blocks: Mapping[str, Sequence[Any]] | Sequence[Any] | None = None,
    adjust: Design | None = None,
    n_permutations: int = 999,
    rng: np.random.Generator | None = None,
) -> tuple[list[int], SampleContrast]:
    """Return the indices of the samples that have a group, and the two groups that they form; see `contrast_cells`.

    With ``trend``, the name of the variable, samples are contrasted along its numbers.

    Examples
    --------
    >>> known, design = two_groups(["stim", "ctrl", "stim", "ctrl", None], n_permutations=1)
    >>> known, design.names
    ([0, 1, 2, 3], ('stim', 'ctrl'))
    """
    values = list(groups)
    if trend is not None:
        numbers = along_numbers(trend, groups)
        if numbers is None:
            raise InvalidInputError(
                f"numbers or an ordered category in {quoted(trend)} for a trend", "other values",
                "compare groups instead",
            )  # fmt: skip
        values = numbers
    known = [i for i, value in enumerate(values) if not is_missing(value)]
    if not known:
        raise InvalidInputError("samples in at least two groups", "no sample with a group")
    labels = [values[i] if trend is not None else label(values[i]) for i in known]
    if trend is None:
        group, reference = choose_groups(
            Counter(labels), group=group, reference=reference, first=first_of_order(groups)
        )
    tied, fixed = _of_known(known, blocks, adjust)
    return known, set_up(
        labels, len(labels), group=group, reference=reference, blocks=tied, n_permutations=n_permutations,
        rng=np.random.default_rng(0) if rng is None else rng, adjust=fixed, trend=trend,
    )  # fmt: skip


def _of_known(known: list[int], blocks: Any, adjust: Design | None) -> tuple[Any, Design | None]:
    """Return the blocks and the covariates of the known samples."""
    tied: Any = None if blocks is None else [blocks[i] for i in known] if not isinstance(blocks, Mapping) else {
        name: [ties[i] for i in known] for name, ties in blocks.items()
    }  # fmt: skip
    if adjust is None:
        return tied, None
    there = np.zeros(adjust.n_samples, dtype=bool)
    there[known] = True
    return tied, adjust.take(there)


def _types(result: CellTypes, design: SampleContrast) -> list[CellType]:
    total = math.fsum(result.contributions)
    columns = (
        result.contributions, result.contributions / total if total else np.zeros_like(result.contributions),
        result.abundance, result.state, *result.shares.T, result.scores, result.log_ratios,
        result.abundance_p, result.abundance_q, result.state_p, result.state_q,
    )  # fmt: skip
    few = f"too few {design.units_in_words.split(' ', 1)[1]} to decide"
    abundance = np.where(result.abundance_decidable | (result.abundance_q <= LEVEL), "", few)
    state = np.where(result.state_decidable | (result.state_q <= LEVEL), "", few)
    types = [
        CellType(result.names[i], int(result.points[i]), *(float(column[i]) for column in columns))  # type: ignore[arg-type]
        for i in range(len(result.names))
    ]
    limited = [
        replace(one, abundance_limit=str(number), state_limit=str(place))
        for one, number, place in zip(types, abundance, state, strict=True)
    ]
    return [limited[i] for i in np.argsort(-result.contributions, kind="stable")]


def _shares(first: float, second: float) -> tuple[str, str]:
    """Return two shares as percentages with two digits, or with three digits if two would not distinguish them."""
    for digits in (2, 3):
        texts = tuple(f"{100 * share:.{digits}g}%" if share < 0.995 else "100%" for share in (first, second))
        if texts[0] != texts[1] or first == second:
            break
    return texts[0], texts[1]
