"""A simulated single-cell cohort: samples of cells on a tree of differentiation, controls and cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._typing import Bool, Float64
from heatmover._validation import check_integer, check_number
from heatmover.datasets._dataset import Dataset
from heatmover.datasets._plan import Plan, RandomState, check_non_negative, make_plan
from heatmover.datasets._tree import DIMENSIONS, grow_tree
from heatmover.errors import InvalidInputError

__all__ = ["Effect", "cohort"]

# A branch that makes up a fifth of the cells then varies between healthy samples with a standard deviation of
# 0.07: sqrt(0.2 * 0.8 / 31).
CONCENTRATION = 30.0
# Up to here the branches are known to keep apart (see the tree).
MOST_BRANCHES = 15


@final
@dataclass(frozen=True)
class Effect:
    """How cases differ from controls, both in the last branch of the tree.

    Attributes
    ----------
    enrichment
        The expected odds of a cell to be in the branch are ``1 + enrichment`` times those of a control: 0 is
        no difference, 1 doubles the odds, a value between -1 and 0 is a depletion.
    progression
        Cells of cases are further along the branch: their mean position is
        ``(1 + progression) / (2 + progression)`` of its length, hence 1/2, as in controls, for 0.

    Examples
    --------
    >>> from heatmover.datasets import Effect, cohort
    >>> data = cohort(4, cells_per_sample=50, effect=Effect(enrichment=0, progression=2))
    >>> cases = data.annotations["condition"][data.measures().toarray().argmax(axis=0)] == "case"
    >>> last = data.coordinates[:, 0] == 4
    >>> bool(data.coordinates[cases & last, 1].mean() > data.coordinates[~cases & last, 1].mean())
    True
    """

    enrichment: float = 1.0
    progression: float = 0.0

    def __post_init__(self) -> None:
        check_number("enrichment", self.enrichment, above=-1)
        check_non_negative("progression", self.progression)


def cohort(
    n_samples: int = 30,
    *,
    cells_per_sample: int = 200,
    n_branches: int = 5,
    effect: float | Effect = 1.0,
    n_dimensions: int = 10,
    noise: float = 0.05,
    random_state: RandomState = 0,
) -> Dataset:
    """Simulate a single-cell cohort: samples of cells that differentiate along a tree, controls and cases.

    Branch 0 is the trunk; every branch splits in two, in order, until there are ``n_branches`` (an odd one out
    makes the last split threefold). Branches are curved and one unit long. Each sample has its own composition, the
    shares of the branches among its cells: Dirichlet around equal shares. Cases, half of the samples, differ in
    the last branch.

    Parameters
    ----------
    n_samples
        Number of samples, at least 2; of an odd number the larger half are controls.
    cells_per_sample
        Cells drawn from each.
    n_branches
        Branches of the tree, with the trunk: 3 to 15.
    effect
        How cases differ. A number is their enrichment in the last branch: it multiplies the expected odds by
        ``1 + effect``, and 0 is no difference. An `Effect` also says how much further along their cells are.
    n_dimensions
        Dimensions of the ambient space, at least 3. In more than 3 the tree is rotated at random.
    noise
        Standard deviation of Gaussian noise in every ambient direction. The truth knows nothing of it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Labels are names such as ``"control-03"``. Coordinates: the index of the branch and the position along
        it, 0 to 1. True distance: along the tree. Annotations: ``condition``, "control" or "case",
        (n_samples,), and ``composition``, (n_samples, n_branches).

    Examples
    --------
    >>> from heatmover.datasets import cohort
    >>> data = cohort(20, cells_per_sample=50)
    >>> data
    Dataset('cohort', 20 measures, 1000 points in 10 dimensions)
    >>> data.measures().names[9:11]
    ('case-10', 'control-01')
    >>> data.annotations["composition"].shape
    (20, 5)
    """
    n_samples = check_integer("n_samples", n_samples, minimum=2)
    cells_per_sample = check_integer("cells_per_sample", cells_per_sample, minimum=1)
    n_branches = _check_branches(n_branches)
    effect = effect if isinstance(effect, Effect) else Effect(enrichment=effect)
    plan = make_plan(
        n_samples,
        cells_per_sample,
        n_dimensions=n_dimensions,
        own_dimensions=DIMENSIONS,
        noise=noise,
        random_state=random_state,
    )
    # "case" sorts before "control", and measures are in sorted order.
    case = np.arange(n_samples) < n_samples // 2
    composition = _compositions(case, n_branches, effect, plan.rng)
    coordinates = _cells(plan, case, composition, effect)
    tree = grow_tree(n_branches)
    return Dataset(
        name="cohort",
        points=plan.embed(tree.locate(coordinates)),
        labels=_names(case)[plan.labels],
        coordinates=coordinates,
        annotations={"condition": np.where(case, "case", "control"), "composition": composition},
        ground_distance=tree.distance,
    )


def _check_branches(n_branches: object) -> int:
    count = check_integer("n_branches", n_branches, minimum=3)
    if count > MOST_BRANCHES:
        raise InvalidInputError(f"n_branches of at most {MOST_BRANCHES}", repr(count), "more would not keep apart")
    return count


def _compositions(case: Bool, n_branches: int, effect: Effect, rng: np.random.Generator) -> Float64:
    """Draw the shares of the branches, (n_samples, n_branches)."""
    control_weights = np.ones(n_branches)
    case_weights = np.append(np.ones(n_branches - 1), 1 + effect.enrichment)
    weights = np.where(case[:, None], case_weights, control_weights)
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.array([rng.dirichlet(CONCENTRATION * share) for share in shares])


def _cells(plan: Plan, case: Bool, composition: Float64, effect: Effect) -> Float64:
    """Draw the branch and the position of every cell, (n_cells, 2)."""
    # Without the last sum, which is 1 but for rounding.
    sums = np.cumsum(composition, axis=1)[plan.labels, :-1]
    branch = (plan.rng.random((plan.labels.size, 1)) > sums).sum(axis=1)
    position = plan.rng.random(plan.labels.size)
    advanced = case[plan.labels] & (branch == composition.shape[1] - 1)
    position[advanced] **= 1 / (1 + effect.progression)
    return np.column_stack([branch, position])


def _names(case: Bool) -> npt.NDArray[np.str_]:
    """Return running names of cases and controls, with leading zeros so that sorting keeps the order."""
    width = max(2, len(str((~case).sum())))
    numbers = np.where(case, np.cumsum(case), np.cumsum(~case))
    return np.array(
        [f"{'case' if is_case else 'control'}-{number:0{width}}" for is_case, number in zip(case, numbers, strict=True)]
    )
