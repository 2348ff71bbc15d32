"""Call the cells that differ between groups of samples or along a number, without cell types; for studies; no files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int32
from heatmover._base.validation import RandomState, check_random_state
from heatmover._base.words import percent, quoted
from heatmover.attribution.cell_types import LEVEL
from heatmover.attribution.groups import point_tests
from heatmover.attribution.witness import explain_masses
from heatmover.statistics import Design
from heatmover.study.comparison import Comparison
from heatmover.study.contrasts import designs_along, strength_of


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellCalls(ReadOnlyArrays):
    """Cells whose surroundings differ in density between two groups of samples; part of a `Study`.

    Attributes
    ----------
    variable, groups
        Name of the variable, and names of its groups: the group and the reference. Along a number, the names are
        "higher" and "lower", followed by the name of the number.
    witness
        ``(n_points,)``: witness of the distance between the group means, divided by its largest absolute value. A point
        of the graph is a cell or a landmark.
    scores, q_values
        ``(n_points,)``: evidence and q-value of each point, as in `heatmover.attribution.GroupContrast`. The false
        discovery rate is over cells: a landmark counts as many times as it has cells.
    more, less
        Shares of all cells that are called denser, and less dense, in the group.
    adjusted
        Names of the covariates.
    n_permutations
        Number of permutations.
    trend
        True along a number.
    no_calls
        Reason, in sentences, why no cell can be called; empty otherwise.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> calls = call_cells(hm.compare(data.points, data.labels), data.annotations["condition"], "condition")
    >>> "of the cells are in neighborhoods that are denser in 'case'" in str(calls)
    True
    """

    variable: str
    groups: tuple[str, str]
    witness: Float64
    scores: Float64
    q_values: Float64
    more: float
    less: float
    adjusted: tuple[str, ...]
    n_permutations: int
    trend: bool = False
    no_calls: str = ""

    @property
    def signs(self) -> Int32:
        """Return 1 for points called denser in the group, -1 for points called less dense, else 0, ``(n_points,)``."""
        return np.where(self.q_values <= LEVEL, np.sign(self.scores), 0).astype(np.int32)

    def describe(self) -> str:
        """Describe the calls in plain sentences."""
        adjusted = f", adjusted for {' and '.join(map(quoted, self.adjusted))}" if self.adjusted else ""
        rate = f"(false discovery rate {LEVEL:.0%}{adjusted})"
        where = f"with {self.groups[0]}" if self.trend else f"in {quoted(self.groups[0])}"
        if self.no_calls:
            return self.no_calls
        if not self.more and not self.less:
            return f"No cell is in a neighborhood that is significantly denser or less dense {where} {rate}."
        more, less = percent(self.more), percent(self.less)
        return (
            f"{more} of the cells are in neighborhoods that are denser {where}, and {less} in neighborhoods that are "
            f"less dense {rate}."
        )

    def plain(self) -> dict[str, Any]:
        """Return the summary as plain values for JSON."""
        named = ("variable", "groups", "more", "less", "adjusted", "n_permutations", "trend", "no_calls")
        return {name: getattr(self, name) for name in named} | {"sentence": self.describe()}

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"CellCalls({self.groups[0]} against {self.groups[1]}: {self.more:.0%} more, {self.less:.0%} less)"


def call_cells(
    comparison: Comparison,
    groups: Sequence[Any],
    variable: str,
    *,
    trend: bool = False,
    ordered: bool = True,
    group: str | None = None,
    reference: str | None = None,
    blocks: Mapping[str, Sequence[Any]] | None = None,
    adjust: Design | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> CellCalls:
    """Call the cells whose surroundings differ in density between two groups of samples, or along a number.

    Parameters
    ----------
    comparison
        Comparison from `compare`.
    groups, variable
        ``(n_samples,)``: group, or number, of each sample, and its name. Samples with a missing value are left out.
    trend
        Read ``groups`` as a number, and call cells along it.
    ordered, group, reference, blocks
        As in `heatmover.study.contrasts.contrast_variable`. Of several contrasts, the one with the smallest p-value of
        the distance between its sides is used.
    adjust
        Covariates of all samples, to hold fixed.
    n_permutations, random_state
        As in `heatmover.attribution.explain_groups`.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(8, cells_per_sample=30, effect=6.0)
    >>> call_cells(hm.compare(data.points, data.labels), list(range(8)), "dose", trend=True, n_permutations=19).groups
    ('higher dose', 'lower dose')
    """
    rng = check_random_state(random_state)
    known, designs, _ = designs_along(
        groups, variable, group=group, reference=reference, trend=trend, ordered=ordered, blocks=blocks, adjust=adjust,
        n_permutations=n_permutations, rng=rng,
    )  # fmt: skip
    design = min(designs, key=lambda one: strength_of(comparison, known, one)) if len(designs) > 1 else designs[0]
    masses = sp.csr_array(comparison.measures.masses)
    rows, cells = masses[known], np.asarray(comparison.sizes @ masses, dtype=np.float64)
    witness = explain_masses(comparison.model, design.means(rows), design.names).witness
    tested = point_tests(comparison.model, design, rows, cells, rng)
    # The strongest of several contrasts is called, so its q-values are those of all of them (Bonferroni).
    q_values = np.minimum(tested.q_values * len(designs), 1.0)
    called, scores = q_values <= LEVEL, tested.columns.scores
    more, less = (float(cells[called & (sign * scores > 0)].sum() / cells.sum()) for sign in (1, -1))
    witness = witness / (float(np.abs(witness).max()) or 1.0)
    return CellCalls(
        variable, design.names, witness, scores, q_values, more, less, design.adjusted,
        design.n_permutations, design.trend, tested.no_calls,
    )  # fmt: skip
