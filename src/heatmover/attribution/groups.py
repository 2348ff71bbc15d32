"""`explain_groups`: which points differ between two groups of samples, and how surely."""

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
from heatmover.attribution.contrast import TestedColumns, controlled, framed, is_reference, set_up, two_frames
from heatmover.attribution.witness import Explanation, check_model, explain_masses
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.measures import check_measures

__all__ = ["GroupContrast", "explain_groups"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class GroupContrast(ReadOnlyArrays):
    """Which points differ between two groups of samples; ``print`` it. `explain_groups` makes one.

    Attributes
    ----------
    group, reference
        Names of the groups.
    n_samples
        ``(2,)``: independent samples in each, or blocks that change places as wholes.
    explanation
        Of the distance between the mean of the group and the mean of the reference.
    scores
        ``(n_points,)``: how surely the density around a point differs: a studentised difference of log-densities,
        positive where the group has more, zero where the two frames of reference disagree.
    log_ratios
        ``(n_points,)``: natural logarithm of how many times denser the group is around a point than the
        reference, relative to what is commonest among all cells; not relative where that is no reference.
    p_values, q_values
        ``(n_points,)``: by permuting samples, and corrected for the number of points: among all points with a
        q-value of at most 0.1 a tenth is expected to be false. All q-values are 1 where so few samples cannot reach
        a p-value of 0.05.
    scale
        Densities are compared after ``2**scale`` steps of diffusion.
    n_permutations, complete
        Permutations looked at, and whether these are all that exist.
    types
        Number and state of types of points, if an annotation was given.
    commonest
        The commonest change of density, as a natural logarithm. Beyond a factor of 2 it is not that of most cells, and
        shares alone decided.

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
        """Between the mean of the group and the mean of the reference."""
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
        return (
            f"The mean of {self.group} ({counted(self.n_samples[0], 'sample')}) is at distance {self.distance:.4g} "
            f"from that of "
            f"{self.reference} ({self.n_samples[1]}).\n"
            f"{self.group} is denser around {more:,} and less dense around {less:,} of "
            f"{counted(called.size, 'point')}, with a "
            f"tenth of false discoveries allowed.{self._frame()}"
        )

    def _frame(self) -> str:
        """Return that shares alone decided, if so."""
        if is_reference(self.commonest):
            return ""
        factor = np.exp(abs(self.commonest))
        return (
            f"\nThe commonest change is by a factor of {factor:.2g}: most cells moved, so densities are compared as "
            "they are, not relative to it."
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
    """Explain the difference between two groups of samples by the points of the graph, with false-discovery rates.

    A sample's density around a point, after a short diffusion, is compared with the mean of all samples as a
    log-ratio; the mean log-ratios of the groups are compared by a studentised difference, and that with what
    permutations of the samples give. A cell type that grows makes all others shrink in proportion: a
    point counts as different only if it is both in proportion and relative to the change that is commonest among cells.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        ``(n_samples, n_points)``.
    groups
        Label of each sample, ``(n_samples,)``.
    group
        The group to explain; may be left out if there are two: it is then the one that is not the reference.
    reference
        The group to compare with; default all other samples. Of two groups it is by default the one that is called so
        (control, healthy, untreated, wild type ...), else the first of an ordered category, else the second by name.
    blocks
        What ties samples together, such as patients, batches or pairs, ``(n_samples,)``; several by name in a
        mapping or a DataFrame. If every block is of one group its samples are averaged, else samples are compared
        within blocks.
    annotation
        Type of each point, such as its cell type, ``(n_points,)``: types are tested too.
    n_permutations
        Permutations to compare with; all of them if there are no more. The smallest p-value is one over their
        number plus one: a region of one cell in a thousand needs 10,000 to be found at a rate of 0.1.
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
    check_model(model)
    rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
    rng = check_random_state(random_state)
    cells = None if annotation is None else typed_points(annotation, rows)
    design = set_up(
        groups, rows.shape[0], group=group, reference=reference, blocks=blocks,
        n_permutations=n_permutations, rng=rng,
    )  # fmt: skip
    samples = sp.csr_array(rows)
    scale, densities, modes, commonest = framed(model, design, samples, rng)
    tests = two_frames(densities, modes, design.members, design.blocks)
    tested = TestedColumns(*(model.graph_.spread(values) for values in tests))
    explained = explain_masses(model, design.means(samples), design.names)
    types = None if cells is None else contrast_types(model, design, cells, explained.witness, rng)
    return GroupContrast(
        *design.names,
        design.counts,
        explained,
        *tested,
        controlled(tested.p_values, np.full_like(tested.p_values, design.smallest_p)),
        scale,
        len(design.members) - 1,
        design.complete,
        types,
        commonest,
    )
