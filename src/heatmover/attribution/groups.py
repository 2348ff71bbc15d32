"""Find the points that differ between two groups of samples, with false-discovery rates; for users, `tl`; no files.

The module reads the graph and the diffusion of a fitted model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64
from heatmover._base.validation import RandomState, check_random_state
from heatmover._base.words import counted
from heatmover.attribution.cell_types import CellTypes, contrast_types, typed_points
from heatmover.attribution.contrast import (
    SampleContrast,
    TestedColumns,
    framed,
    is_reference,
    null_columns,
    set_up,
    two_frames,
)
from heatmover.attribution.witness import Explanation, explain_masses
from heatmover.embedding.estimator import DiffusionEMD, check_fitted
from heatmover.measures import check_measures
from heatmover.statistics.designs import as_design
from heatmover.statistics.permutations import check_numbers, false_discovery, out_of_reach, within_reach
from heatmover.statistics.regression import weigh


@final
@dataclass(frozen=True, eq=False, repr=False)
class GroupContrast(ReadOnlyArrays):
    """Result of `explain_groups`: differences between two groups of samples at every point; ``print`` shows a summary.

    Attributes
    ----------
    group, reference
        Names of the groups.
    n_samples
        ``(2,)``: number of independent samples in each group, or number of blocks if whole blocks are permuted.
    explanation
        Explanation of the distance between the mean of the group and the mean of the reference.
    scores
        ``(n_points,)``: difference of log-densities divided by its moderated standard error, the evidence that the
        density around a point differs. The score is positive where the group is denser, and zero where the share and
        the log-ratio change in opposite directions. Along a number, the slope takes the place of the difference.
    log_ratios
        ``(n_points,)``: natural logarithm of the density of the group around a point divided by the density of the
        reference. The most common change among all cells is subtracted, unless this change exceeds a factor of 2.
    p_values, q_values
        ``(n_points,)``: share of all permutations and cells with a score at least as extreme, and q-values over all
        cells. Among the cells with a q-value of at most 0.1, at most 10% are expected to be false discoveries. All
        q-values are 1 if there are too few samples for a test of one point to reach a p-value of 0.05.
    scale
        Densities are compared after ``2**scale`` diffusion steps.
    n_permutations, complete
        Number of permutations, and whether they are exhaustive.
    types
        Differences in abundance and state of each type of point, if an annotation was given.
    commonest
        The most common change of density, as a natural logarithm. Cells that are the majority in both groups make up
        50% to 100% of each group, so their share cannot change by more than a factor of 2. If the most common change is
        larger, it cannot be the change of such a majority, and only shares are tested.
    no_calls
        Reason, in a sentence, why no point can be significant: there are too few samples to reach a p-value of 0.05.
        Empty if points can be significant.
    adjusted
        Names of the covariates.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain_groups
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> contrast = explain_groups(model, measures, data.annotations["condition"], group="case")
    >>> enriched = (contrast.q_values <= 0.1) & (contrast.scores > 0)
    >>> bool((data.coordinates[enriched, 0] == 4).mean() > 0.8)
    True
    """

    group: str
    reference: str
    n_samples: tuple[int, int]
    explanation: Explanation
    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64
    scale: int
    n_permutations: int
    complete: bool
    types: CellTypes | None = None
    commonest: float = 0.0
    no_calls: str = ""
    adjusted: tuple[str, ...] = ()

    @property
    def distance(self) -> float:
        """Distance between the mean of the group and the mean of the reference."""
        return self.explanation.distance

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each point."""
        frame = self.explanation.table()
        for name in ("scores", "log_ratios", "p_values", "q_values"):
            frame[name] = getattr(self, name)
        return frame

    def __str__(self) -> str:
        called = self.q_values <= 0.1
        more, less = int((called & (self.scores > 0)).sum()), int((called & (self.scores < 0)).sum())
        frame = ""
        if not is_reference(self.commonest):
            frame = (
                f"\nThe most common change in density is a factor of {np.exp(abs(self.commonest)):.2g}. A "
                "factor above 2 cannot serve as a reference, so densities are compared directly."
            )
        calls = (
            f"The density of {self.group} is significantly higher at {more:,} of {counted(called.size, 'point')} and "
            f"lower at {less:,} (false-discovery rate 10%).{frame}"
        )
        return (
            f"The mean of {self.group} ({counted(self.n_samples[0], 'sample')}) and the mean of "
            f"{self.reference} ({counted(self.n_samples[1], 'sample')}) are {self.distance:.4g} apart.\n"
            f"{self.no_calls or calls}"
        )

    def __repr__(self) -> str:
        return f"GroupContrast({self.group} against {self.reference}: distance {self.distance:.4g})"


class TestedPoints(NamedTuple):
    """Tests at every point of a graph.

    Attributes
    ----------
    scale, commonest
        As in `GroupContrast`.
    columns
        Statistics, log-ratios and p-values, ``(n_points,)`` each.
    q_values
        ``(n_points,)``: q-values over cells; 1 if no p-value can reach 0.05.
    no_calls
        Reason, in a sentence, why no p-value can reach 0.05; empty otherwise.
    """

    scale: int
    commonest: float
    columns: TestedColumns
    q_values: Float64
    no_calls: str


def point_tests(
    model: DiffusionEMD, design: SampleContrast, rows: sp.csr_array, cells: Float64, rng: np.random.Generator
) -> TestedPoints:
    """Test at every point of the graph whether the density of samples differs; see `explain_groups`.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    design
        Contrast of the samples.
    rows
        Masses of the samples, ``(n_samples, n_points)``.
    cells
        ``(n_points,)``: number of cells at each point. A point with more cells weighs more in the false-discovery rate.
    rng
        Generator.
    """
    scale, densities, modes, commonest = framed(model, design, rows, rng)
    weights = model.graph_.gather(cells[None])[0]
    drawn = null_columns(weights, len(modes), rng)
    tested = two_frames(densities, drawn, modes, weights, weigh(design.regressors, design.nuisance))
    q_values, no_calls = false_discovery(tested.p_values, weights), ""
    if not within_reach(design.smallest_p):
        q_values = np.ones_like(q_values)
        no_calls = f"{out_of_reach(design.evidence, design.smallest_p, 'a test of a cell')}. No cell is called."
    spread = model.graph_.spread
    return TestedPoints(scale, commonest, TestedColumns(*map(spread, tested)), spread(q_values), no_calls)


def explain_groups(
    model: DiffusionEMD,
    measures: Any,
    groups: Any,
    *,
    group: str | None = None,
    reference: str | None = None,
    blocks: Any | None = None,
    adjust: Any | None = None,
    trend: str | None = None,
    cells: Any | None = None,
    annotation: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> GroupContrast:
    """Find the points of the graph at which two groups of samples differ, with false-discovery rates.

    Each sample is diffused for a few steps. The density of a sample around a point is then expressed as a log-ratio to
    the mean density of all samples. A studentized difference compares the mean log-ratios of the two groups.
    Permutations of the samples show which differences arise by chance. If one cell type expands, the proportions of all
    other types shrink. A point is therefore reported as different only if two tests are significant: the test of its
    share, and the test relative to the most common change among cells.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        ``(n_samples, n_points)``.
    groups
        Label of each sample, ``(n_samples,)``; with ``trend``, a number for each sample, such as its dose.
    group
        The group to explain. Default if there are two groups: the group that is not the reference.
    reference
        The group to compare with. Default for more than two groups: all other samples. Default for two groups: the
        other group if ``group`` is given; otherwise the group with a typical name (control, healthy, untreated, wild
        type ...), else the first group of an ordered category, else the second group by name.
    blocks
        Block of each sample, such as its patient, batch or pair, ``(n_samples,)``; or several block variables by name
        in a mapping or a DataFrame. If all samples of every block are in one group, the samples of each block are
        averaged. Otherwise, samples are compared within blocks.
    adjust
        Covariates to hold fixed, such as batch or age: values ``(n_samples,)`` by name in a mapping or a DataFrame, or
        a `heatmover.statistics.Design`.
    trend
        Name of the number in ``groups``. Samples are then contrasted along the number instead of between two groups:
        the group is called "higher" and the reference "lower", followed by the name.
    cells
        Number of cells at each point, ``(n_points,)``, for example with landmarks. Default: one cell at each point.
    annotation
        Type of each point, such as its cell type, ``(n_points,)``. If given, types are tested too.
    n_permutations
        Number of random permutations. If fewer permutations exist, all are used.
    random_state
        Seed or generator.

    Returns
    -------
    GroupContrast

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.attribution import explain_groups
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=6.0)
    >>> measures = data.measures()
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points)).fit(measures)
    >>> branch = data.coordinates[:, 0].astype(int)
    >>> contrast = explain_groups(
    ...     model, measures, data.annotations["condition"], group="case", annotation=branch
    ... )
    >>> contrast.types.names[int(contrast.types.scores.argmax())]
    '4'
    """
    check_fitted(model)
    rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
    rng = check_random_state(random_state)
    typed = None if annotation is None else typed_points(annotation, rows)
    design = set_up(
        groups, rows.shape[0], group=group, reference=reference, blocks=blocks, n_permutations=n_permutations, rng=rng,
        adjust=None if adjust is None else as_design(adjust, rows.shape[0]), trend=trend,
    )  # fmt: skip
    weights = np.ones(rows.shape[1]) if cells is None else check_numbers("cells", cells, rows.shape[1])
    samples = sp.csr_array(rows)
    tested = point_tests(model, design, samples, weights, rng)
    explained = explain_masses(model, design.means(samples), design.names)
    types = None if typed is None else contrast_types(model, [design], typed, [explained.witness], rng)[0]
    return GroupContrast(
        *design.names, design.counts, explained, *tested.columns, tested.q_values, tested.scale,
        len(design.regressors) - 1, design.complete, types, tested.commonest, tested.no_calls, design.adjusted,
    )  # fmt: skip
