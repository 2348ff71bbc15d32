"""Find the points that differ between two groups of samples, with false-discovery rates; for users, `tl`; no files.

The module reads the graph and the diffusion of a fitted model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64
from heatmover._base.validation import RandomState, check_random_state
from heatmover._base.words import counted
from heatmover.attribution.cell_types import CellTypes, contrast_types, typed_points
from heatmover.attribution.contrast import TestedColumns, framed, is_reference, set_up, two_frames
from heatmover.attribution.witness import Explanation, explain_masses
from heatmover.embedding.estimator import DiffusionEMD, check_fitted
from heatmover.measures import check_measures
from heatmover.statistics.regression import controlled, weigh


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
        ``(n_points,)``: studentized difference of log-densities, the evidence that the density around a point differs.
        The score is positive where the group is denser, and zero where the share and the log-ratio change in opposite
        directions.
    log_ratios
        ``(n_points,)``: natural logarithm of the density of the group around a point divided by the density of the
        reference. The most common change among all cells is subtracted, unless this change exceeds a factor of 2.
    p_values, q_values
        ``(n_points,)``: p-values by permuting samples, and q-values over all points. Among the points with a q-value of
        at most 0.1, at most 10% are expected to be false discoveries. All q-values are 1 if there are too few samples
        to reach a p-value of 0.05.
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
        return (
            f"The mean of {self.group} ({counted(self.n_samples[0], 'sample')}) and the mean of "
            f"{self.reference} ({counted(self.n_samples[1], 'sample')}) are {self.distance:.4g} apart.\n"
            f"The density of {self.group} is significantly higher at {more:,} of {counted(called.size, 'point')} and "
            f"lower at {less:,} (false-discovery rate 10%).{frame}"
        )

    def __repr__(self) -> str:
        return f"GroupContrast({self.group} against {self.reference}: distance {self.distance:.4g})"


def explain_groups(
    model: DiffusionEMD,
    measures: Any,
    groups: Any,
    *,
    group: str | None = None,
    reference: str | None = None,
    blocks: Any | None = None,
    annotation: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> GroupContrast:
    """Find the points of the graph at which two groups of samples differ, with false-discovery rates.

    Each sample is diffused for a few steps. The density of a sample around a point is then expressed as a log-ratio to
    the mean density of all samples. A studentized difference compares the mean log-ratios of the two groups.
    Permutations of the samples give the p-value of this difference. If one cell type expands, the proportions of all
    other types shrink. A point is therefore reported as different only if two tests are significant: the test of its
    share, and the test relative to the most common change among cells.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        ``(n_samples, n_points)``.
    groups
        Label of each sample, ``(n_samples,)``.
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
    annotation
        Type of each point, such as its cell type, ``(n_points,)``. If given, types are tested too.
    n_permutations
        Number of random permutations. If fewer permutations exist, all are used. The smallest possible p-value is ``1 /
        (n_permutations + 1)``. To find a region that contains 0.1% of the cells, at a false-discovery rate of 0.1,
        10,000 permutations are needed.
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
    cells = None if annotation is None else typed_points(annotation, rows)
    design = set_up(
        groups, rows.shape[0], group=group, reference=reference, blocks=blocks,
        n_permutations=n_permutations, rng=rng,
    )  # fmt: skip
    samples = sp.csr_array(rows)
    scale, densities, modes, commonest = framed(model, design, samples, rng)
    tests = two_frames(densities, modes, weigh(design.regressors, design.nuisance))
    tested = TestedColumns(*(model.graph_.spread(values) for values in tests))
    explained = explain_masses(model, design.means(samples), design.names)
    types = None if cells is None else contrast_types(model, [design], cells, [explained.witness], rng)[0]
    return GroupContrast(
        *design.names,
        design.counts,
        explained,
        *tested,
        controlled(tested.p_values, np.full_like(tested.p_values, design.smallest_p)),
        scale,
        len(design.regressors) - 1,
        design.complete,
        types,
        commonest,
    )
