"""Two groups of samples: which they are, their permutations, and which columns of a table differ between them.

A sample's masses sum to one, so that a cell type that grows makes all others shrink in proportion, and a test of
proportions calls them too. What changed can only be told in a frame of reference. Two are used, and a column counts as
different only if it is so in both, with one sign: its share of the sample, and its share relative to the columns that
changed in the commonest way (the mode of all log-ratios, by mass). If one type grows, the first keeps those that merely
shrank in proportion from being called enriched by a wrong mode, and the second keeps them from being called depleted.
Measured on a branch whose odds tripled, with 10 % of false discoveries asked for (benchmarks/explain.py --frames, 40
cohorts): 51 % false with proportions alone, 23 % relative to the median, 14 % to the mode; 5 % with both (200 cohorts).

The mode means "did not change" only while most cells do not. If cells change their state, every place is left or
entered, and the mode is one of the two: with interferon the commonest change was a loss by a factor of 7, and relative
to it cells that hardly changed were 7 times as many. Cells that are most of both groups cannot change their share by
more than a factor of 2; a mode beyond that is no reference, and shares alone decide (see `framed`). Cell types have a
reference of their own, which changes of state cannot move: `heatmover.attribution.cell_types`.

Where samples weigh differently or have blocks, a difference is the coefficient of the group in a weighted regression on
blocks and group, so that samples are compared within their block, and it is divided by a standard error that allows
every sample a variance of its own (White 1980, with the leverages of MacKinnon and White 1985). Without blocks and
weights that is Welch's statistic. A statistic studentised like this keeps its level under permutations even if samples
vary unequally, such as those of few cells and those of many (Janssen 1997).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, FloatArray, Int64, Intp
from heatmover._base.validation import check_threads
from heatmover._base.words import counted, find
from heatmover.embedding.definition import Layout, embed
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.statistics import false_discovery
from heatmover.statistics.permutations import permute, restrict, within_reach
from heatmover.statistics.samples import check_labels

__all__ = [
    "Differences",
    "TestedColumns",
    "TwoGroups",
    "Weighed",
    "choose_groups",
    "column_differences",
    "commonest",
    "controlled",
    "expected_reference",
    "first_of_order",
    "framed",
    "gram_statistics",
    "is_reference",
    "log_ratios",
    "set_up",
    "smallest_p",
    "two_frames",
    "two_sided",
    "weigh",
]

# Densities are compared at the finest scale at which a sample has, at the median point, this many cells to estimate
# them from. On 40 cohorts of 30 samples of 100 cells, odds of a branch tripled: at a scale with 4 cells 85 % of the
# branch was found, with 12 cells 94 %; with 22 heat leaks out of it, and false calls rose from 3 to 6 %.
CELLS_IN_REACH = 10.0
# Points at which that is judged, and points that set the frame of reference.
PROBES, FRAME = 32, 1_000
# Added to the ratio of a density to its mean before the logarithm, which is then finite where a sample has no cells.
# All figures above are with a tenth; other values were not compared.
FLOOR = 0.1
# A commonest change by more than this factor is not that of most cells.
LARGEST_MODE = 2.0
# Standard errors below this are rounding of float32 densities.
LEAST_ERROR = 1e-6
# Statistics that differ by less than this share count as ties.
TIE = 1e-6
# Columns that are looked at together: 2,048 under 1,000 permutations take 16 MB for each array.
AT_ONCE = 2_048
# Variances below this share of the mean square are rounding.
LEAST_VARIANCE = 1e-10
# What a reference is called: the whole name, however it is spelt, or a word of it ("healthy control", "ctrl_6h").
WORDS = frozenset((
    "baseline", "control", "controls", "ctl", "ctrl", "ctrls", "dmso", "healthy", "mock", "naive", "normal", "pbs",
    "placebo", "pre", "pretreatment", "sham", "uninfected", "unstim", "unstimulated", "untreated", "vehicle",
    "wildtype", "wt",
))  # fmt: skip
# These only as the whole name: "no response" and "0 to 6 months" are no references.
WHOLE = frozenset((
    "0", "absent", "before", "d0", "day0", "false", "nc", "neg", "negative", "no", "none", "nostim", "nottreated",
    "ref", "reference", "resting", "t0",
))  # fmt: skip
# Words that turn the meaning of the others around.
TURNING = frozenset(("not", "non", "ab", "post", "after", "vs"))


def expected_reference(names: Collection[str]) -> str | None:
    """Return the one group that is called as a reference is, such as a control; None if none is, or several are.

    Examples
    --------
    >>> expected_reference(["stim", "ctrl"]), expected_reference(["COVID-19", "Healthy control"])
    ('ctrl', 'Healthy control')
    >>> expected_reference(["False", "True"]), expected_reference(["KO", "wild type"])
    ('False', 'wild type')
    >>> expected_reference(["a", "b"]) is None
    True
    """
    whole, parts = [], []
    for name in names:
        words = re.findall(r"[^\W_]+", str(name).casefold())
        if "".join(words) in WORDS | WHOLE:
            whole.append(name)
        elif set(words) & WORDS and not set(words) & TURNING:
            parts.append(name)
    likely = whole or parts
    return likely[0] if len(likely) == 1 else None


def first_of_order(column: Any) -> str | None:
    """Return the first value that occurs in an ordered pandas category; None for any other column."""
    dtype: Any = getattr(column, "dtype", None)
    if not getattr(dtype, "ordered", False):
        return None
    there = {str(value) for value in column if value == value and value is not None}
    return next((str(value) for value in dtype.categories if str(value) in there), None)


def choose_groups(
    counts: Mapping[str, int],
    *,
    group: str | None = None,
    reference: str | None = None,
    first: str | None = None,
    where: str = "",
) -> tuple[str, str | None]:
    """Return the group to explain and the one to compare it with, None for all others.

    Left out, the reference is the group that is called so, else the first of an order; the group is the other one, or
    the largest of several. Without any hint it is the first by name of two, or the largest of more against all others.

    Parameters
    ----------
    counts
        Samples of each group.
    group, reference
        Names that were asked for.
    first
        The first group of an ordered category.
    where
        What messages add to the groups, such as the name of their variable.

    Examples
    --------
    >>> choose_groups({"control": 4, "treated": 4}), choose_groups({"x": 9, "y": 2})
    (('treated', 'control'), ('x', 'y'))
    """
    names = sorted(counts)
    if len(names) < 2:
        raise InvalidInputError(f"at least two groups of samples{where}", f"one ({names[0]!r})" if names else "none")
    for word, name in (("group", group), ("reference", reference)):
        if name is not None:
            find(name, names, f"{word} to be one of the groups{where}")
    if group is not None and group == reference:
        raise InvalidInputError("a reference other than the group", repr(group))
    if group is not None:
        rest = [name for name in names if name != group]
        return group, reference if reference is not None or len(rest) > 1 else rest[0]
    if reference is None:
        reference = expected_reference(names) or (first if first in counts else None)
    others = [name for name in names if name != reference]
    chosen = others[0] if len(names) == 2 else max(others, key=lambda name: counts[name])
    if reference is None and len(names) == 2:
        reference = names[1]
    return chosen, reference


class TwoGroups(NamedTuple):
    """Two groups of samples, and how they are permuted.

    Attributes
    ----------
    names
        Of the group and of the reference.
    counts
        Units in each: samples, or blocks that change places as wholes.
    chosen
        ``(n_samples,)``: which samples take part.
    average
        ``(n_units, n_chosen)``, sparse: makes the samples that take part into units.
    members
        ``(1 + n_permutations, n_units)``: which units are in the group, the observed order first.
    blocks
        ``(n_units,)``: block of each unit.
    complete
        Whether these are all permutations there are.
    how
        How blocks counted, as in `heatmover.statistics.permutations.Restriction`.
    """

    names: tuple[str, str]
    counts: tuple[int, int]
    chosen: Bool
    average: sp.csr_array
    members: Bool
    blocks: Int64
    complete: bool
    how: str

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the permutations allow; the mirror image of an order is as extreme, and counts."""
        mirrored = self.complete and bool((self.members[1:] != self.members[0]).all(axis=1).any())
        return (2 if mirrored else 1) / len(self.members)

    @property
    def evidence(self) -> str:
        """What sets this limit, such as "5 pairs"."""
        if not self.complete:
            return counted(len(self.members) - 1, "permutation")
        sizes = np.unique(self.blocks, return_counts=True)[1]
        if sizes.size > 1:
            return counted(sizes.size, "pair" if (sizes == 2).all() else "block")
        return counted(sum(self.counts), "block" if self.how else "sample")

    def units(self, rows: sp.csr_array) -> sp.csr_array:
        """Return the mean of the samples of each unit, ``(n_units, n_points)``."""
        return sp.csr_array(self.average @ rows[np.flatnonzero(self.chosen)])

    def means(self, rows: sp.csr_array) -> Float64:
        """Return the mean of the group and that of the reference, ``(2, n_points)``."""
        weights = np.zeros((2, self.chosen.size))
        for row, which in zip(weights, (self.members[0], ~self.members[0]), strict=True):
            row[self.chosen] = np.asarray(self.average[np.flatnonzero(which)].mean(axis=0)).ravel()
        return np.asarray(weights @ rows)


def set_up(
    groups: Any,
    n_samples: int,
    *,
    group: str | None,
    reference: str | None,
    blocks: Any | None,
    n_permutations: int,
    rng: np.random.Generator,
) -> TwoGroups:
    """Return two groups of samples and their permutations; the arguments are those of `explain_groups`."""
    names, chosen, inside = _chosen(groups, group, reference, n_samples)
    inside = inside[chosen]
    restriction = restrict(inside, _those(blocks, chosen))
    orders = permute(inside, restriction, n_permutations=n_permutations, random_state=rng)
    unit_of = np.arange(inside.size) if restriction.units is None else restriction.units
    first = np.unique(unit_of, return_index=True)[1]
    shares = 1 / np.bincount(unit_of)[unit_of]
    average = sp.csr_array((shares, (unit_of, np.arange(inside.size))), shape=(first.size, inside.size))
    members = np.vstack([inside[None], orders.shuffled])[:, first]
    counts = (int(members[0].sum()), int((~members[0]).sum()))
    if min(counts) < 2:
        what = "samples" if restriction.units is None else "blocks"
        raise InvalidInputError(f"at least two {what} in each group", f"a group with {min(counts)}")
    block_of = np.zeros(first.size, dtype=np.int64) if restriction.within is None else restriction.within[first]
    return TwoGroups(names, counts, chosen, average, members, block_of, orders.complete, restriction.how)


def framed(
    model: DiffusionEMD, design: TwoGroups, rows: sp.csr_array, rng: np.random.Generator
) -> tuple[int, FloatArray, Float64, float]:
    """Return a scale, the densities of the units at it ``(n_units, n_nodes)``, and their commonest differences.

    These are one for each permutation, zero where the observed one, which comes last, is too large to be that of most
    cells.
    """
    # Of how many cells a sample consists, if all weighed the same.
    units = design.units(rows)
    n_cells = float(np.median(1 / np.asarray(units.multiply(units).sum(axis=1)).ravel()))
    nodes = model.graph_.gather(rows)
    weights = design.means(nodes).mean(axis=0)
    drawn = rng.choice(weights.size, FRAME, p=weights / weights.sum())
    scale = _smoothing_scale(model, n_cells, drawn[:PROBES])
    densities = _densities(model, design.units(nodes), scale)
    modes = commonest(densities[:, drawn], design.members, design.blocks)
    usable = is_reference(float(modes[0]))
    # Shares alone are one of the two tests, so that a choice by what was observed makes none of them less strict.
    return scale, densities, modes if usable else np.zeros_like(modes), float(modes[0])


def is_reference(commonest: float) -> bool:
    """Return whether the commonest change, a natural logarithm, can be that of most cells of both groups."""
    return abs(commonest) <= math.log(LARGEST_MODE)


def _chosen(
    groups: Any, group: str | None, reference: str | None, n_samples: int
) -> tuple[tuple[str, str], Bool, Bool]:
    """Return the names of the two groups, which samples take part, and which are in the first."""
    codes, names = check_labels("groups", groups, n_samples)
    chosen, other = choose_groups(
        dict(zip(names, np.bincount(codes).tolist(), strict=True)),
        group=None if group is None else str(group),
        reference=None if reference is None else str(reference),
        first=first_of_order(groups),
    )
    if group is None and len(names) > 2:
        raise InvalidInputError("group= to say which group to explain", counted(len(names), "group"))
    inside = codes == names.index(chosen)
    if other is None:
        return (chosen, "all others"), np.ones_like(inside), inside
    return (chosen, other), inside | (codes == names.index(other)), inside


def _those(blocks: Any | None, chosen: Bool) -> Any | None:
    """Return the blocks of the samples that take part."""
    if blocks is None:
        return None
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        return {name: check_labels(f"blocks {str(name)!r}", blocks[name], chosen.size)[0][chosen] for name in blocks}
    return check_labels("blocks", blocks, chosen.size)[0][chosen]


def _smoothing_scale(model: DiffusionEMD, n_cells: float, probes: Intp) -> int:
    """Return the finest scale at which a sample has enough cells in reach of a node, or the coarsest there is."""
    share = n_cells / model.graph_.n_nodes
    heat = np.zeros((model.graph_.n_nodes, len(probes)))
    heat[probes, np.arange(len(probes))] = 1
    flow = model.prepared_.diffuser.diffuse_progressively(heat)
    for scale, density in zip(range(model.max_scale_ + 1), flow, strict=False):
        reach = density.sum(axis=0) ** 2 / (density**2).sum(axis=0)
        if scale >= 1 and float(np.median(reach)) * share >= CELLS_IN_REACH:
            return scale
    return int(model.max_scale_)


def _densities(model: DiffusionEMD, masses: sp.csr_array, scale: int) -> FloatArray:
    """Return the densities at one scale, ``(n_units, n_nodes)``."""
    layout = Layout(range(scale, scale + 1), np.ones((1, 1)), masses.shape[1])
    prepared = model.prepared_
    return embed(prepared.diffuser, masses, layout, dtype=prepared.precision, n_threads=check_threads(model.n_jobs))


class TestedColumns(NamedTuple):
    """Per column: signed statistic, mean log-ratio (natural) in the frame of the mode, p-value; ``(n_columns,)``."""

    scores: Float64
    log_ratios: Float64
    p_values: Float64


def log_ratios(densities: npt.NDArray[np.floating], blocks: Int64) -> Float64:
    """Return the logarithm of densities over their mean, without the differences between blocks.

    Parameters
    ----------
    densities
        ``(n_units, n_columns)``, not negative.
    blocks
        Block of each unit, ``(n_units,)``. Permutations keep a block together, so that its mean may be subtracted.
    """
    mean = densities.mean(axis=0, dtype=np.float64)
    ratios = np.divide(densities, mean, out=np.ones(densities.shape), where=mean > 0)
    # Rounding leaves densities a little below zero.
    logs: Float64 = np.log(np.maximum(ratios, 0) + FLOOR)
    for block in np.unique(blocks):
        rows = blocks == block
        logs[rows] -= logs[rows].mean(axis=0)
    return logs


def two_frames(
    densities: npt.NDArray[np.floating],
    modes: Float64,
    members: Bool,
    blocks: Int64,
) -> TestedColumns:
    """Test every column by permutation, two-sided, in both frames of reference.

    Parameters
    ----------
    densities
        ``(n_units, n_columns)``, not negative.
    modes
        The commonest difference in each permutation, ``(1 + n_permutations,)``; see `commonest`.
    members
        Which units are in the group, ``(1 + n_permutations, n_units)``, the observed groups first.
    blocks
        Block of each unit, ``(n_units,)``.
    """
    n_columns = densities.shape[1]
    tested = TestedColumns(np.zeros(n_columns), np.zeros(n_columns), np.ones(n_columns))
    for start in range(0, n_columns, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        differences, errors = _differences(log_ratios(densities[:, part], blocks), members)
        by_share, by_frame = differences / errors, (differences - modes[:, None]) / errors
        plain, framed = by_share[0], by_frame[0]
        agree = plain * framed > 0
        tested.scores[part] = np.where(agree, np.sign(plain) * np.minimum(np.abs(plain), np.abs(framed)), 0.0)
        tested.log_ratios[part] = differences[0] - modes[0]
        tested.p_values[part] = np.where(agree, np.maximum(two_sided(by_share), two_sided(by_frame)), 1.0)
    return tested


def commonest(densities: npt.NDArray[np.floating], members: Bool, blocks: Int64) -> Float64:
    """Return the mode of the columns' differences in each permutation, ``(1 + n_permutations,)``.

    Parameters
    ----------
    densities
        ``(n_units, n_drawn)``: columns drawn by mass.
    members, blocks
        As in `two_frames`.
    """
    return np.array([_mode(row) for row in _differences(log_ratios(densities, blocks), members)[0]])


def _differences(logs: Float64, members: Bool) -> tuple[Float64, Float64]:
    """Return how far the group's mean is from the others', and its standard error (Welch).

    Both ``(1 + n_permutations, n_columns)``.
    """
    inside = members.astype(np.float64)
    n, n_others = inside.sum(axis=1)[:, None], (1 - inside).sum(axis=1)[:, None]
    sums, squares = inside @ logs, inside @ logs**2
    mean, other_mean = sums / n, (logs.sum(axis=0) - sums) / n_others
    spread = np.maximum(squares / n - mean**2, 0) / (n - 1)
    other_spread = np.maximum(((logs**2).sum(axis=0) - squares) / n_others - other_mean**2, 0) / (n_others - 1)
    return mean - other_mean, np.maximum(np.sqrt(spread + other_spread), LEAST_ERROR)


def _mode(values: Float64) -> float:
    """Return the half-sample mode: the half of the values that lies closest together, halved again and again.

    Unlike the median it does not move towards values on one side until they are the most.
    """
    left = np.sort(values)
    while left.size > 3:
        half = (left.size + 1) // 2
        begin = int(np.argmin(left[half - 1 :] - left[: left.size - half + 1]))
        left = left[begin : begin + half]
    return float(left.mean())


class Weighed(NamedTuple):
    """A weighted regression on blocks and group, in every permutation.

    Attributes
    ----------
    coefficients
        ``(n_orders, n_units)``: what makes the difference of the groups from the values of the units.
    contrasts
        ``(n_orders, n_units)``: membership less its mean in the block.
    errors
        ``(n_orders, n_units)``: what makes the variance of that difference from the squares of the residuals.
    center
        ``(n_units, n_units)``: takes the mean of its block from every unit.
    informative
        ``(n_units,)``: units that take part in the observed difference.
    """

    coefficients: Float64
    contrasts: Float64
    errors: Float64
    center: Float64
    informative: Bool


class Differences(NamedTuple):
    """Differences of columns between the groups, and their standard errors, ``(n_orders, n_columns)`` each."""

    values: Float64
    errors: Float64


def weigh(members: Bool, blocks: Int64, weights: Float64 | None = None) -> Weighed:
    """Return the regression of units on blocks and group.

    Parameters
    ----------
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    weights
        Of each unit, ``(n_units,)``, not negative; default all alike.
    """
    n_units = members.shape[1]
    weight = np.ones(n_units) if weights is None else weights
    inside = (np.unique(blocks)[:, None] == blocks).astype(np.float64)
    of_block = inside @ weight
    average = inside * weight / np.where(of_block > 0, of_block, 1)[:, None]
    of_unit = of_block @ inside
    contrasts = members - (members @ average.T) @ inside
    weighed = contrasts * weight
    total = (weighed * contrasts).sum(axis=1, keepdims=True)
    safe = np.where(total > 0, total, 1)
    coefficients = weighed / safe
    leverages = weight / np.where(of_unit > 0, of_unit, 1) + weighed * contrasts / safe
    # A unit alone in its group has no residual, whatever it is divided by.
    errors = coefficients**2 / np.maximum(1 - leverages, 1e-9)
    informative = np.abs(weighed[0]) > 1e-9 * np.maximum(np.abs(weighed[0]).max(), np.finfo(float).tiny)
    return Weighed(coefficients, contrasts, errors, np.eye(n_units) - inside.T @ average, informative)


def column_differences(columns: Float64, weighed: Weighed) -> Differences:
    """Return the difference of every column ``(n_units, n_columns)`` between the groups, and its standard error."""
    centered = weighed.center @ columns
    values = weighed.coefficients @ centered
    crossed = weighed.errors * weighed.contrasts
    variance = (
        weighed.errors @ centered**2
        - 2 * values * (crossed @ centered)
        + values**2 * (crossed * weighed.contrasts).sum(axis=1, keepdims=True)
    )
    least = LEAST_VARIANCE * (centered**2).mean(axis=0) + np.finfo(float).tiny
    return Differences(values, np.sqrt(np.maximum(variance, least)))


def gram_statistics(gram: Float64, weighed: Weighed) -> Float64:
    """Return squared distances between the groups' means over their variances, ``(n_orders,)``.

    Parameters
    ----------
    gram
        Inner products of the places of the units, ``(n_units, n_units)``.
    weighed
        From `weigh`. An order in which a group has no weight gets an infinite statistic.
    """
    products = weighed.center @ gram @ weighed.center.T
    squares = np.diag(products)
    shadows = weighed.coefficients @ products
    apart = (shadows * weighed.coefficients).sum(axis=1)
    residuals = squares - 2 * weighed.contrasts * shadows + weighed.contrasts**2 * apart[:, None]
    variance = (weighed.errors * np.maximum(residuals, 0)).sum(axis=1)
    least = LEAST_VARIANCE * float(squares.mean()) + np.finfo(float).tiny
    statistics = np.maximum(apart, 0) / np.maximum(variance, least)
    return np.asarray(np.where(weighed.coefficients.any(axis=1), statistics, np.inf))


def two_sided(statistics: Float64) -> Float64:
    """Return the share of orders whose statistic is at least as large as the first one's, whatever the signs."""
    sizes = np.abs(statistics)
    extreme = sizes[1:] >= sizes[0] * (1 - TIE)
    return np.asarray((extreme.sum(axis=0) + 1) / len(sizes))


def smallest_p(statistics: Float64) -> Float64:
    """Return the smallest p-value that any of the orders would have had as the observed one."""
    sizes = np.abs(statistics)
    return np.asarray((sizes >= sizes.max(axis=0) * (1 - TIE)).mean(axis=0))


def controlled(p_values: Float64, smallest: Float64) -> Float64:
    """Return q-values of those whose p-values can reach 0.05 in any order; 1 for the others.

    What a type could reach is known before the groups are: a cell type that three of eight pairs have can never be
    sure, and counting it would only make the others less so (Tarone 1990, Gilbert 2005).

    Parameters
    ----------
    p_values
        ``(n_types,)``.
    smallest
        From `smallest_p`, ``(n_types,)``.
    """
    q_values = np.ones_like(p_values)
    able = within_reach(smallest)
    if able.any():
        q_values[able] = false_discovery(p_values[able])
    return q_values
