"""Set up, permute contrasts of samples, test which columns differ; for `attribution`, `study`, `tl`; no files.

The module diffuses measures with a fitted model.

The masses of a sample sum to one. If one cell type grows, the proportions of all other types shrink, so a test of
proportions is significant for the other types too. A change can only be defined relative to a frame of reference. Two
frames of reference are used. The first is the whole sample: a column (a point or a cell type) is tested by its share.
The second is the most common change: a column is tested by its log-ratio minus the mode of all log-ratios, weighted by
mass. A column is reported as different only if both tests are significant with the same sign. If one type grows and the
mode is wrong, the first test prevents false reports of enrichment in other types. The second test prevents false
reports of depletion in other types. The false-discovery rate was measured on a branch whose odds tripled, at a nominal
rate of 10% (benchmarks/explain.py --frames, 40 cohorts). The rate was 51% with shares alone, 23% with log-ratios
relative to the median and 14% with log-ratios relative to the mode. With both tests the rate was 5% (200 cohorts).

The mode means "no change" only if most cells do not change. If most cells change their state, every region of the graph
gains or loses cells, and the mode is the change of one of these regions. In cells stimulated with interferon, the most
common change was a loss by a factor of 7. Relative to this mode, cells that hardly changed appeared 7 times as
frequent. Cells that are the majority in both groups cannot change their share by more than a factor of 2. A mode above
this factor is therefore not used as a reference, and only shares are tested (see `framed`). Cell types have their own
reference, which does not depend on changes of state (see `heatmover.attribution.cell_types`).

Statistics are studentized differences, from `heatmover.statistics.regression`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Bool, Float64, FloatArray, Int64, Intp
from heatmover._base.validation import check_threads
from heatmover._base.words import counted, find, quoted
from heatmover.embedding.definition import Layout, embed
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, in_python
from heatmover.statistics import Design
from heatmover.statistics.designs import spaces_given, within_blocks
from heatmover.statistics.permutations import Restriction, check_labels, check_numbers, named_blocks, permute, restrict
from heatmover.statistics.regression import DEPENDENT, TIE, Regression, block_columns, column_differences, weigh

# Densities are compared at the finest scale at which at least this many cells of a sample contribute to the density at
# the median point. The number was tested on 40 cohorts of 30 samples of 100 cells, in which the odds of a branch
# tripled. At a scale with 4 cells, 85% of the branch was detected, and at a scale with 12 cells 94%. At a scale with 22
# cells, heat leaks out of the branch, and false discoveries rose from 3% to 6%.
CELLS_IN_REACH = 10.0
# Number of points that determine the scale of the densities, the most common change, and the null distribution.
PROBES, FRAME, NULL = 32, 1_000, 2_000
# With many permutations, fewer points give the null distribution, because it then takes much memory: 32 MB at 999.
MOST_NULL, LEAST_NULL = 2_000_000, 200
# Added to the ratio of a density to its mean, so that the logarithm is finite where a sample has no cells. All figures
# above were measured with 0.1; other values were not compared.
FLOOR = 0.1
# Largest factor of the most common change that is used as a reference. Cells that are the majority in both groups
# cannot change their share by a larger factor.
LARGEST_MODE = 2.0
# Standard errors below this are rounding errors of float32 densities.
LEAST_ERROR = 1e-6
# Smallest number of different values for a trend; with two values, two groups are compared.
LEAST_VALUES = 3
# Number of statistics computed at a time: an array of 2 MB stays in the cache, which halves the time.
AT_ONCE = 256_000
# Typical names of a reference. Such a name is the whole name of a group, or one of the words of the name ("healthy
# control", "ctrl_6h"). Case and separators do not matter.
WORDS = frozenset((
    "baseline", "control", "controls", "ctl", "ctrl", "ctrls", "dmso", "healthy", "mock", "naive", "normal", "pbs",
    "placebo", "pre", "pretreatment", "sham", "uninfected", "unstim", "unstimulated", "untreated", "vehicle",
    "wildtype", "wt",
))  # fmt: skip
# Typical names that are recognized only as the whole name: "no response" and "0 to 6 months" are not references.
WHOLE = frozenset((
    "0", "absent", "before", "d0", "day0", "false", "nc", "neg", "negative", "no", "none", "nostim", "nottreated",
    "ref", "reference", "resting", "t0",
))  # fmt: skip
# Words that reverse the meaning of a typical name.
TURNING = frozenset(("not", "non", "ab", "post", "after", "vs"))


def expected_reference(names: Collection[str]) -> str | None:
    """Return the group whose name is typical of a reference, such as control; None unless there is exactly one.

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
    """Return the group to explain and its reference; None as the reference means all other samples.

    The default reference is the group with a typical name, else the first group of an ordered category. If there is a
    reference, the default group is the largest of the other groups. Without a reference, two groups are sorted by name,
    and the first is compared with the second. With more than two groups, the largest is compared with all other
    samples.

    Parameters
    ----------
    counts
        Number of samples of each group.
    group, reference
        Names chosen by the user; None for the default.
    first
        The first group of an ordered category.
    where
        Text that error messages append to the names of the groups, such as the name of the variable.

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
            find(name, names, f"{in_python('the argument ')}{word} to be one of the groups{where}")
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


@dataclass(frozen=True, eq=False)
class SampleContrast:
    """A contrast of samples, of two groups or along a number, and its permutations.

    Attributes
    ----------
    names
        Names of the two sides: the group and the reference, or higher and lower values of a number.
    counts
        Number of units on each side. A unit is a sample, or a block that is permuted as a whole.
    chosen
        ``(n_samples,)``: True for samples that take part.
    average
        ``(n_units, n_chosen)``, sparse: averages the chosen samples of each unit.
    regressors
        ``(1 + n_permutations, n_units)``: regressor of the units; the observed order is the first row. For two groups
        the regressor is 1 in the group and 0 in the reference. With covariates, the regressor is the residual of its
        regression on the covariates, and this residual is permuted.
    nuisance
        ``(n_units, n_nuisance)``: columns held fixed, which are the blocks, or the mean, and the covariates.
    sides
        ``(2, n_units)``: weights of the units in the mean of each side; every row sums to 1.
    blocks
        ``(n_units,)``: block of each unit.
    complete
        True if the permutations are exhaustive.
    how
        How blocks restrict the permutations, as in `heatmover.statistics.permutations.Restriction`.
    adjusted
        Names of the covariates.
    trend
        True if the contrast is along a number.
    values, restriction
        What is permuted, a number for each chosen sample, and its restriction by blocks.
    """

    names: tuple[str, str]
    counts: tuple[int, int]
    chosen: Bool
    average: sp.csr_array
    regressors: Float64
    nuisance: Float64
    sides: Float64
    blocks: Int64
    complete: bool
    how: str
    adjusted: tuple[str, ...]
    trend: bool
    values: Float64
    restriction: Restriction

    @property
    def n_permutations(self) -> int:
        """Number of permutations."""
        return len(self.regressors) - 1

    @property
    def smallest_p(self) -> float:
        """Smallest p-value that the permutations allow; an order with all contrasts reversed is equally extreme."""
        if not self.complete:
            return 1 / len(self.regressors)
        contrasts = weigh(self.regressors, self.nuisance).contrasts
        slack = TIE * np.abs(contrasts[0]).max()
        mirrored = bool((np.abs(contrasts[1:] + contrasts[0]) <= slack).all(axis=1).any())
        return (2 if mirrored else 1) / len(self.regressors)

    @property
    def units_in_words(self) -> str:
        """Number of independent samples, blocks or pairs in words, such as "5 pairs"."""
        sizes = np.unique(self.blocks, return_counts=True)[1]
        if sizes.size > 1:
            return counted(sizes.size, "pair" if (sizes == 2).all() else "block")
        return counted(sum(self.counts), "block" if self.how else "sample")

    @property
    def evidence(self) -> str:
        """Number of samples, blocks or permutations that limits the p-value, in words, such as "5 pairs"."""
        return self.units_in_words if self.complete else counted(len(self.regressors) - 1, "permutation")

    def units(self, rows: sp.csr_array) -> sp.csr_array:
        """Return the mean of the samples of each unit, ``(n_units, n_points)``."""
        return sp.csr_array(self.average @ rows[np.flatnonzero(self.chosen)])

    def means(self, rows: sp.csr_array) -> Float64:
        """Return the means of the two sides, ``(2, n_points)``."""
        weights = np.zeros((2, self.chosen.size))
        weights[:, self.chosen] = self.sides @ self.average
        return np.asarray(weights @ rows)

    def redrawn(self, n_permutations: int, rng: np.random.Generator) -> SampleContrast:
        """Return the contrast with other permutations."""
        regressors, complete = _orders(self.values, self.restriction, n_permutations, rng)
        return replace(self, regressors=regressors, complete=complete)


def _orders(
    values: Float64, restriction: Restriction, n_permutations: int, rng: np.random.Generator
) -> tuple[Float64, bool]:
    """Return the regressor of the units in the observed order and in every permutation, and if these are exhaustive."""
    drawn = permute(values, restriction, n_permutations=n_permutations, random_state=rng)
    first = np.arange(values.size) if restriction.units is None else np.unique(restriction.units, return_index=True)[1]
    return np.vstack([values[None], drawn.shuffled])[:, first], drawn.complete


def set_up(
    groups: Any,
    n_samples: int,
    *,
    group: str | None,
    reference: str | None,
    blocks: Any | None,
    n_permutations: int,
    rng: np.random.Generator,
    adjust: Design | None = None,
    trend: str | None = None,
) -> SampleContrast:
    """Return a contrast of samples and its permutations; `explain_groups` describes the parameters.

    With ``trend``, the name of a number, ``groups`` are numbers ``(n_samples,)``, and samples are contrasted along
    them.
    """
    if trend is not None:
        inside = check_numbers(trend, groups, n_samples)
        if np.unique(inside).size < LEAST_VALUES:
            raise InvalidInputError(
                f"at least {LEAST_VALUES} different values of {quoted(trend)} for a trend",
                f"{np.unique(inside).size}",
                "compare two groups instead",
            )
        names, chosen = (f"higher {trend}", f"lower {trend}"), np.ones(n_samples, dtype=bool)
    else:
        codes, labels = check_labels("groups", groups, n_samples)
        own, other = choose_groups(
            dict(zip(labels, np.bincount(codes).tolist(), strict=True)),
            group=None if group is None else str(group),
            reference=None if reference is None else str(reference),
            first=first_of_order(groups),
        )
        if group is None and len(labels) > 2:
            raise InvalidInputError(
                "the argument group, which names the group to explain", counted(len(labels), "group")
            )
        inside = (codes == labels.index(own)).astype(np.float64)
        chosen = np.ones(n_samples, bool) if other is None else (inside > 0) | (codes == labels.index(other))
        names = (own, "all others" if other is None else other)
    inside = inside[chosen]
    if blocks is not None:
        named = named_blocks(blocks).items()
        blocks = {name: check_labels(name, values, n_samples)[0][chosen] for name, values in named}
    restriction = restrict(inside, blocks)
    fixed = None if adjust is None else adjust.take(chosen)
    made = _contrast(inside, chosen, names, restriction, fixed, trend)
    return made.redrawn(n_permutations, rng)


def one_against_rest(
    groups: Any,
    n_samples: int,
    *,
    blocks: Any | None,
    n_permutations: int,
    rng: np.random.Generator,
    adjust: Design | None = None,
) -> list[SampleContrast]:
    """Return the contrasts of every group with all other samples, with common permutations of the samples."""
    codes, labels = check_labels("groups", groups, n_samples)
    restriction, everyone = restrict(codes, blocks), np.ones(n_samples, dtype=bool)
    units = np.arange(n_samples) if restriction.units is None else restriction.units
    first = np.unique(units, return_index=True)[1]
    orders, _ = _orders(units.astype(np.float64), restriction, n_permutations, rng)
    designs = []
    for code, label in enumerate(labels):
        inside = (codes == code).astype(np.float64)
        made = _contrast(inside, everyone, (label, "all others"), restriction, adjust, None)
        designs.append(replace(made, regressors=made.values[first][orders.astype(np.int64)]))
    return designs


def _contrast(
    inside: Float64,
    chosen: Bool,
    names: tuple[str, str],
    restriction: Restriction,
    adjust: Design | None,
    trend: str | None,
) -> SampleContrast:
    """Return the contrast of the chosen samples along a regressor ``(n_chosen,)``, in the observed order only."""
    unit_of = np.arange(inside.size) if restriction.units is None else restriction.units
    first, sizes = np.unique(unit_of, return_index=True, return_counts=True)[1:]
    average = sp.csr_array(((1 / sizes)[unit_of], (unit_of, np.arange(inside.size))), shape=(first.size, inside.size))
    observed = inside[first]
    middle = observed > (observed.mean() if trend is not None else 0)
    counts = (int(middle.sum()), int((~middle).sum()))
    if min(counts) < 2:
        what = "samples" if restriction.units is None else "blocks"
        where = "in each group" if trend is None else f"above and below the mean of {quoted(trend)}"
        raise InvalidInputError(f"at least two {what} {where}", f"{min(counts)}" if trend else "a group with 1")
    block_of = np.zeros(first.size, dtype=np.int64) if restriction.within is None else restriction.within[first]
    nuisance, values = block_columns(block_of), inside
    if adjust is not None:
        what = quoted(trend) if trend is not None else "groups"
        # Raise an error here if the covariates determine the contrast, or leave no degree of freedom.
        within_blocks(spaces_given(inside[:, None], adjust, what), restriction, what)
        nuisance = np.hstack([nuisance, average @ adjust.columns])
        left = weigh(observed[None], nuisance).contrasts[0]
        scale = np.abs(left).max()
        if scale <= DEPENDENT * np.abs(observed).max() or np.linalg.matrix_rank(nuisance) + 2 > first.size:
            raise InvalidInputError(
                f"{what} not to be determined by the covariates", "that it is", "adjust for fewer covariates"
            )
        # Equal residuals must be exactly equal, so that their orders are recognized as equal.
        values = (left / scale).round(9)[unit_of]
    if adjust is None and trend is None:
        sides = np.stack([middle / counts[0], ~middle / counts[1]])
    else:
        fit = weigh(values[first][None], nuisance).coefficients[0]
        sides = np.maximum(np.stack([fit, -fit]), 0)
        sides /= sides.sum(axis=1, keepdims=True)
    return SampleContrast(
        names, counts, chosen, average, values[first][None], nuisance, sides, block_of, True, restriction.how,
        () if adjust is None else adjust.names, trend is not None, values, restriction,
    )  # fmt: skip


def framed(
    model: DiffusionEMD, design: SampleContrast, rows: sp.csr_array, rng: np.random.Generator
) -> tuple[int, FloatArray, Float64, float]:
    """Return a scale, densities at this scale, and the most common difference per permutation and as observed.

    The densities of the units have the shape ``(n_units, n_nodes)``. If the observed most common difference is too
    large to be the change of most cells, the differences of all permutations are set to zero. The last returned value,
    the observed difference, is not set to zero.
    """
    # Effective number of cells: the squared masses of this many equal cells have the same sum as the squared masses of
    # the sample.
    units = design.units(rows)
    n_cells = float(np.median(1 / np.asarray(units.multiply(units).sum(axis=1)).ravel()))
    nodes = model.graph_.gather(rows)
    weights = design.means(nodes).mean(axis=0)
    drawn = rng.choice(weights.size, FRAME, p=weights / weights.sum())
    scale = _smoothing_scale(model, n_cells, drawn[:PROBES])
    prepared, layout = model.prepared_, Layout(range(scale, scale + 1), np.ones((1, 1)), weights.size)
    densities = embed(
        prepared.diffuser, design.units(nodes), layout, dtype=prepared.precision, n_threads=check_threads(model.n_jobs)
    )
    regression = weigh(design.regressors, design.nuisance)
    modes = commonest(densities[:, drawn], regression)
    observed = float(modes[0]) / regression.unit
    # The test of shares is always used and is valid on its own, so the second test may be dropped after seeing the
    # data.
    return scale, densities, modes if is_reference(observed) else np.zeros_like(modes), observed


def is_reference(commonest: float) -> bool:
    """Return True if the most common change, given as a natural logarithm, can be the change of most cells."""
    return abs(commonest) <= math.log(LARGEST_MODE)


def _smoothing_scale(model: DiffusionEMD, n_cells: float, probes: Intp) -> int:
    """Return the finest scale at which heat from enough cells of a sample reaches a node, else the coarsest scale."""
    share = n_cells / model.graph_.n_nodes
    heat = np.zeros((model.graph_.n_nodes, len(probes)))
    heat[probes, np.arange(len(probes))] = 1
    flow = model.prepared_.diffuser.diffuse_progressively(heat)
    for scale, density in zip(range(model.max_scale_ + 1), flow, strict=False):
        reach = density.sum(axis=0) ** 2 / (density**2).sum(axis=0)
        if scale >= 1 and float(np.median(reach)) * share >= CELLS_IN_REACH:
            return scale
    return int(model.max_scale_)


class TestedColumns(NamedTuple):
    """Signed statistics, natural log-ratios relative to the mode, and p-values of columns, ``(n_columns,)`` each."""

    scores: Float64
    log_ratios: Float64
    p_values: Float64


def log_ratios(densities: npt.NDArray[np.floating]) -> Float64:
    """Return logarithms of densities ``(n_units, n_columns)`` divided by their mean over the units."""
    mean = densities.mean(axis=0, dtype=np.float64)
    ratios = np.divide(densities, mean, out=np.ones(densities.shape), where=mean > 0)
    # Rounding makes some densities slightly negative.
    return np.asarray(np.log(np.maximum(ratios, 0) + FLOOR))


def null_columns(weights: Float64, n_orders: int, rng: np.random.Generator) -> Intp:
    """Draw the columns whose statistics give the null distribution, in proportion to their weights."""
    count = max(LEAST_NULL, min(NULL, MOST_NULL // n_orders))
    return np.asarray(rng.choice(weights.size, count, p=weights / weights.sum()))


def two_frames(
    densities: npt.NDArray[np.floating], drawn: Intp, modes: Float64, weights: Float64, regression: Regression
) -> TestedColumns:
    """Test the share of every column, and its log-ratio minus the most common change, by two-sided permutation tests.

    The statistics of many columns in all permutations are one null distribution, so that few permutations resolve
    small p-values. At a threshold, the mean p-value of unchanged columns is the share of them that exceed it by chance,
    which is what a false discovery rate needs. With 8 samples, no test of one column by its own 70 permutations could
    be significant among many. The variance of a column is averaged with the median variance of all columns: with 8
    samples, half of a tripled rare population was then called instead of 12% (benchmarks/percell.py).

    Parameters
    ----------
    densities
        Non-negative densities, ``(n_units, n_columns)``.
    drawn
        Columns drawn in proportion to their weight, ``(n_drawn,)``, which give the null distribution.
    modes
        Most common difference in each permutation, ``(1 + n_permutations,)``; see `commonest`.
    weights
        Non-negative weight of each column, ``(n_columns,)``, such as its number of cells.
    regression
        Regression of the units in every permutation.
    """
    n_units, n_columns = densities.shape
    n_orders, first = len(modes), regression.part(slice(1))
    observed, errors = np.zeros(n_columns), np.zeros(n_columns)
    null = np.empty((2, n_orders, drawn.size))
    with one_blas_thread():  # products of small matrices are slower in several threads
        for part in _parts(n_columns, n_units):
            values = column_differences(log_ratios(densities[:, part]), first)
            observed[part], errors[part] = values.values[0], values.errors[0]
        typical = float(np.median(errors[drawn]) ** 2)
        logs = log_ratios(densities[:, drawn])
        for part in _parts(n_orders, drawn.size):
            values = column_differences(logs, regression.part(part))
            scale = 1 / _moderated(values.errors, typical)
            np.multiply(values.values, scale, out=null[0, part])
            np.multiply(values.values - modes[part, None], scale, out=null[1, part])
    errors = _moderated(errors, typical)
    plain, framed = observed / errors, (observed - modes[0]) / errors
    agree = plain * framed > LEAST_ERROR**2  # smaller products are rounding errors of identical samples
    p_values = np.maximum(*(_pooled(*pair, weights) for pair in zip((plain, framed), null, strict=True)))
    scores = np.where(agree, np.sign(plain) * np.minimum(np.abs(plain), np.abs(framed)), 0.0)
    ratios = (observed - modes[0]) / regression.unit
    return TestedColumns(scores, ratios, np.where(agree, p_values, 1.0))


def _parts(length: int, width: int) -> Iterator[slice]:
    """Yield slices of rows such that an array of the rows stays in the cache."""
    step = max(1, AT_ONCE // width)
    return (slice(start, start + step) for start in range(0, length, step))


def _moderated(errors: Float64, typical: float) -> Float64:
    """Return standard errors from the mean of the variances and a typical variance."""
    return np.asarray(np.maximum(np.sqrt((errors**2 + typical) / 2), LEAST_ERROR))


def _pooled(statistics: Float64, null: Float64, weights: Float64) -> Float64:
    """Return the share of orders and columns whose statistic is at least as large; the observed order is one of them.

    Parameters
    ----------
    statistics
        Observed statistics, ``(n_columns,)``.
    null
        Statistics of drawn columns in every order, ``(n_orders, n_drawn)``; the first row is not used.
    weights
        ``(n_columns,)``.
    """
    sizes, chance = np.abs(statistics) * (1 - TIE), np.sort(np.abs(null[1:]), axis=None)
    by_chance = 1 - np.searchsorted(chance, sizes) / max(chance.size, 1)
    order = np.argsort(np.abs(statistics))
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    itself = 1 - below[np.searchsorted(np.abs(statistics)[order], sizes)] / below[-1]
    return np.asarray((by_chance * (len(null) - 1) + itself) / len(null))


def commonest(densities: npt.NDArray[np.floating], regression: Regression) -> Float64:
    """Return the most common difference among all columns (the mode) in each permutation, ``(1 + n_permutations,)``.

    Parameters
    ----------
    densities
        Densities at columns drawn in proportion to mass, ``(n_units, n_drawn)``.
    regression
        As in `two_frames`.
    """
    centered, orders = regression.center @ log_ratios(densities), regression.coefficients
    with one_blas_thread():
        return np.concatenate([_modes(orders[part] @ centered) for part in _parts(len(orders), densities.shape[1])])


def _modes(values: Float64) -> Float64:
    """Return the half-sample mode of each row: the densest half of the values, then its densest half, and so on.

    Unlike the median, the mode does not shift if a minority of the values moves to one side.
    """
    left = np.sort(values, axis=1)
    while left.shape[1] > 3:
        half = (left.shape[1] + 1) // 2
        begin = np.argmin(left[:, half - 1 :] - left[:, : left.shape[1] - half + 1], axis=1)
        left = np.take_along_axis(left, begin[:, None] + np.arange(half), axis=1)
    return np.asarray(left.mean(axis=1))
