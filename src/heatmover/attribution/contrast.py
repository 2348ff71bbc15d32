"""Choose, permute two groups of samples, test which columns differ; for `attribution`, `study`, `tl`; no files.

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
from heatmover.errors import InvalidInputError, in_python
from heatmover.statistics.permutations import check_labels, named_blocks, permute, restrict
from heatmover.statistics.regression import two_sided

# Densities are compared at the finest scale at which at least this many cells of a sample contribute to the density at
# the median point. The number was tested on 40 cohorts of 30 samples of 100 cells, in which the odds of a branch
# tripled. At a scale with 4 cells, 85% of the branch was detected, and at a scale with 12 cells 94%. At a scale with 22
# cells, heat leaks out of the branch, and false discoveries rose from 3% to 6%.
CELLS_IN_REACH = 10.0
# Number of points that determine the scale of the densities, and number of points that determine the most common
# change.
PROBES, FRAME = 32, 1_000
# Added to the ratio of a density to its mean, so that the logarithm is finite where a sample has no cells. All figures
# above were measured with 0.1; other values were not compared.
FLOOR = 0.1
# Largest factor of the most common change that is used as a reference. Cells that are the majority in both groups
# cannot change their share by a larger factor.
LARGEST_MODE = 2.0
# Standard errors below this are rounding errors of float32 densities.
LEAST_ERROR = 1e-6
# Number of columns tested at a time: 2,048 columns with 1,000 permutations take 16 MB per array.
AT_ONCE = 2_048
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


class TwoGroups(NamedTuple):
    """Two groups of samples and their permutations.

    Attributes
    ----------
    names
        Names of the group and of the reference.
    counts
        Number of units in each group. A unit is a sample, or a block that is permuted as a whole.
    chosen
        ``(n_samples,)``: True for samples of the two groups.
    average
        ``(n_units, n_chosen)``, sparse: averages the chosen samples of each unit.
    members
        ``(1 + n_permutations, n_units)``: True for units in the group; the observed order is the first row.
    blocks
        ``(n_units,)``: block of each unit.
    complete
        True if the permutations are exhaustive.
    how
        How blocks restrict the permutations, as in `heatmover.statistics.permutations.Restriction`.
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
        """Smallest p-value that the permutations allow; exchanging the two groups gives an equally extreme order."""
        mirrored = self.complete and bool((self.members[1:] != self.members[0]).all(axis=1).any())
        return (2 if mirrored else 1) / len(self.members)

    @property
    def evidence(self) -> str:
        """Number of samples, blocks or permutations that limits the p-value, in words, such as "5 pairs"."""
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
        """Return the mean of the group and the mean of the reference, ``(2, n_points)``."""
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
    """Return two groups of samples and their permutations; `explain_groups` describes the parameters."""
    codes, labels = check_labels("groups", groups, n_samples)
    own, other = choose_groups(
        dict(zip(labels, np.bincount(codes).tolist(), strict=True)),
        group=None if group is None else str(group),
        reference=None if reference is None else str(reference),
        first=first_of_order(groups),
    )
    if group is None and len(labels) > 2:
        raise InvalidInputError("the argument group, which names the group to explain", counted(len(labels), "group"))
    inside = codes == labels.index(own)
    chosen = np.ones_like(inside) if other is None else inside | (codes == labels.index(other))
    inside = inside[chosen]
    if blocks is not None:
        named = named_blocks(blocks).items()
        blocks = {name: check_labels(name, values, n_samples)[0][chosen] for name, values in named}
    restriction = restrict(inside, blocks)
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
    names = (own, "all others" if other is None else other)
    return TwoGroups(names, counts, chosen, average, members, block_of, orders.complete, restriction.how)


def framed(
    model: DiffusionEMD, design: TwoGroups, rows: sp.csr_array, rng: np.random.Generator
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
    modes = commonest(densities[:, drawn], design.members, design.blocks)
    usable = is_reference(float(modes[0]))
    # The test of shares is always used and is valid on its own, so the second test may be dropped after seeing the
    # data.
    return scale, densities, modes if usable else np.zeros_like(modes), float(modes[0])


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


def log_ratios(densities: npt.NDArray[np.floating], blocks: Int64) -> Float64:
    """Return the logarithms of densities divided by their mean over the units, centered within blocks.

    Parameters
    ----------
    densities
        Non-negative densities, ``(n_units, n_columns)``.
    blocks
        Block of each unit, ``(n_units,)``. Values are permuted within blocks, so the mean of a block may be subtracted.
    """
    mean = densities.mean(axis=0, dtype=np.float64)
    ratios = np.divide(densities, mean, out=np.ones(densities.shape), where=mean > 0)
    # Rounding makes some densities slightly negative.
    logs: Float64 = np.log(np.maximum(ratios, 0) + FLOOR)
    for block in np.unique(blocks):
        rows = blocks == block
        logs[rows] -= logs[rows].mean(axis=0)
    return logs


def two_frames(densities: npt.NDArray[np.floating], modes: Float64, members: Bool, blocks: Int64) -> TestedColumns:
    """Test the share of every column, and its log-ratio minus the most common change, by two-sided permutation tests.

    Parameters
    ----------
    densities
        Non-negative densities, ``(n_units, n_columns)``.
    modes
        Most common difference in each permutation, ``(1 + n_permutations,)``; see `commonest`.
    members
        True for units in the group, ``(1 + n_permutations, n_units)``; the observed order is the first row.
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
    """Return the most common difference among all columns (the mode) in each permutation, ``(1 + n_permutations,)``.

    Parameters
    ----------
    densities
        Densities at columns drawn in proportion to mass, ``(n_units, n_drawn)``.
    members, blocks
        As in `two_frames`.
    """
    return np.array([_mode(row) for row in _differences(log_ratios(densities, blocks), members)[0]])


def _differences(logs: Float64, members: Bool) -> tuple[Float64, Float64]:
    """Return the differences between the means of the two groups, and their standard errors (Welch).

    Both have the shape ``(1 + n_permutations, n_columns)``.
    """
    inside = members.astype(np.float64)
    n, n_others = inside.sum(axis=1)[:, None], (1 - inside).sum(axis=1)[:, None]
    sums, squares = inside @ logs, inside @ logs**2
    mean, other_mean = sums / n, (logs.sum(axis=0) - sums) / n_others
    spread = np.maximum(squares / n - mean**2, 0) / (n - 1)
    other_spread = np.maximum(((logs**2).sum(axis=0) - squares) / n_others - other_mean**2, 0) / (n_others - 1)
    return mean - other_mean, np.maximum(np.sqrt(spread + other_spread), LEAST_ERROR)


def _mode(values: Float64) -> float:
    """Return the half-sample mode: choose the densest half of the values, then its densest half, and so on.

    Unlike the median, the mode does not shift if a minority of the values moves to one side.
    """
    left = np.sort(values)
    while left.size > 3:
        half = (left.size + 1) // 2
        begin = int(np.argmin(left[half - 1 :] - left[: left.size - half + 1]))
        left = left[begin : begin + half]
    return float(left.mean())
