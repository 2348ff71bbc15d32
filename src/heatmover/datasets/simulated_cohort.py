"""A simulated single-cell cohort: samples of cells on a tree of differentiation, controls and cases.

The tree has curved branches in three dimensions, every branch one unit long. The module does not have the name of its
function, `cohort`: in the package that name is the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import RandomState, check_integer, check_number, check_truth
from heatmover.datasets.dataset import Dataset
from heatmover.datasets.shapes import Clouds, check_non_negative, make_clouds
from heatmover.errors import InvalidInputError

__all__ = ["Effect", "cohort"]

# A branch that makes up a fifth of the cells then varies between healthy samples with a standard deviation of
# 0.07: sqrt(0.2 * 0.8 / 31).
CONCENTRATION = 30.0
# Between two samples of one donor a share varies less than half as much: sqrt(0.2 * 0.8 / 201) is 0.03.
WITHIN_DONORS, LEAST_SHARE = 200.0, 1e-4
# Up to here the branches are known to keep apart.
MOST_BRANCHES = 15
# Every branch is an arc of one radian of a unit circle and leaves its parent at this angle. Measured over trees
# of 3 to 15 branches: no two points are closer in space than 0.38 of their way along the tree, so a graph of
# near points follows the branches.
DEFLECTION = 0.8
DIMENSIONS = 3


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
    paired: bool = False,
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
    paired
        Draw donors, each with a control and a case, such as before and after a treatment: ``"control-03"`` and
        ``"case-03"`` are of one donor. Donors differ as samples do otherwise, and the two samples of a donor share its
        composition but for little; so ``n_samples`` is even.
    n_dimensions
        Dimensions of the ambient space, at least 3. In more than 3 the tree is rotated at random.
    noise
        Standard deviation of Gaussian noise in every direction of the ambient space. The truth does not contain it.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Labels are names such as ``"control-03"``. Coordinates: the index of the branch and the position along
        it, 0 to 1. True distance: along the tree. Annotations: ``condition``, "control" or "case",
        (n_samples,), ``composition``, (n_samples, n_branches), and of a paired cohort ``donor``, (n_samples,).

    Examples
    --------
    >>> from heatmover.datasets import cohort
    >>> data = cohort(20, cells_per_sample=50)
    >>> data
    Dataset('cohort', 20 measures, 1,000 points in 10 dimensions)
    >>> data.measures().names[9:11]
    ('case-10', 'control-01')
    >>> data.annotations["composition"].shape
    (20, 5)
    >>> cohort(4, cells_per_sample=50, paired=True).annotations["donor"].tolist()
    ['donor-01', 'donor-02', 'donor-01', 'donor-02']
    """
    n_samples = check_integer("n_samples", n_samples, minimum=2)
    if check_truth("paired", paired) and n_samples % 2:
        raise InvalidInputError("an even n_samples, two of each donor", repr(n_samples), "add one, or paired=False")
    cells_per_sample = check_integer("cells_per_sample", cells_per_sample, minimum=1)
    n_branches = _check_branches(n_branches)
    effect = effect if isinstance(effect, Effect) else Effect(enrichment=effect)
    clouds = make_clouds(n_samples, cells_per_sample, 0.0, n_dimensions, noise, random_state, needs=DIMENSIONS)
    # "case" sorts before "control", and measures are in sorted order.
    case = np.arange(n_samples) < n_samples // 2
    composition = (_paired if paired else _compositions)(case, n_branches, effect, clouds.rng)
    coordinates = _cells(clouds, case, composition, effect)
    tree = grow_tree(n_branches)
    return Dataset(
        name="cohort",
        points=clouds.embed(tree.locate(coordinates)),
        labels=_names(case)[clouds.labels],
        coordinates=coordinates,
        annotations={"condition": np.where(case, "case", "control"), "composition": composition}
        | ({"donor": _donors(case)} if paired else {}),
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


def _paired(case: Bool, n_branches: int, effect: Effect, rng: np.random.Generator) -> Float64:
    """Draw the shares of the branches, (n_samples, n_branches), of donors that have a case and a control each."""
    donors = rng.dirichlet(CONCENTRATION * np.full(n_branches, 1 / n_branches), size=len(case) // 2)
    # Cases are the first half, in the order of their donors, and so are controls.
    shares = np.tile(donors, (2, 1))
    shares[case, -1] *= 1 + effect.enrichment
    shares /= shares.sum(axis=1, keepdims=True)
    # A share that is next to nothing would make a distribution without a mean.
    return np.array([rng.dirichlet(WITHIN_DONORS * np.maximum(share, LEAST_SHARE)) for share in shares])


def _donors(case: Bool) -> npt.NDArray[np.str_]:
    """Return the donor of every sample of a paired cohort."""
    return np.array([name.replace("control", "donor").replace("case", "donor") for name in _names(case).tolist()])


def _cells(clouds: Clouds, case: Bool, composition: Float64, effect: Effect) -> Float64:
    """Draw the branch and the position of every cell, (n_cells, 2)."""
    # Without the last sum, which is 1 up to rounding.
    sums = np.cumsum(composition, axis=1)[clouds.labels, :-1]
    branch = (clouds.rng.random((clouds.labels.size, 1)) > sums).sum(axis=1)
    position = clouds.rng.random(clouds.labels.size)
    advanced = case[clouds.labels] & (branch == composition.shape[1] - 1)
    position[advanced] **= 1 / (1 + effect.progression)
    return np.column_stack([branch, position])


def _names(case: Bool) -> npt.NDArray[np.str_]:
    """Return running names of cases and controls, with leading zeros so that sorting keeps the order."""
    width = max(2, len(str((~case).sum())))
    numbers = np.where(case, np.cumsum(case), np.cumsum(~case))
    return np.array(
        [f"{'case' if is_case else 'control'}-{number:0{width}}" for is_case, number in zip(case, numbers, strict=True)]
    )


@final
@dataclass(frozen=True, eq=False)
class BranchingTree:
    """Where every branch begins, how it lies in space, and where any two branches part.

    Attributes
    ----------
    parents
        (n_branches,): the branch each one grows from; -1 for the trunk, which is branch 0.
    starts
        (n_branches, 3): where each branch begins.
    frames
        (n_branches, 3, 3): the unit vectors along which it begins, towards which it bends, and across both.
    depths
        (n_branches,): distance from the root to the beginning of each branch.
    partings
        (n_branches, n_branches): distance from the root to the end of the last branch that two have in common,
        a branch being in common with itself and with those that grow from it.
    """

    parents: Int64
    starts: Float64
    frames: Float64
    depths: Int64
    partings: Int64

    def locate(self, coordinates: Float64) -> Float64:
        """Return points (n, 3) for coordinates (n, 2): the branch and the position along it, in 0..1."""
        branch, along = coordinates[:, 0].astype(np.int64), coordinates[:, 1:]
        forward, bend = self.frames[branch, 0], self.frames[branch, 1]
        return np.asarray(self.starts[branch] + np.sin(along) * forward + (1 - np.cos(along)) * bend)

    def distance(self, a: Float64, b: Float64) -> Float64:
        """Return the way along the tree, (n_a, n_b), between coordinates (n_a, 2) and (n_b, 2)."""
        branch_a, branch_b = a[:, 0].astype(np.int64), b[:, 0].astype(np.int64)
        height_a = (self.depths[branch_a] + a[:, 1])[:, None]
        height_b = (self.depths[branch_b] + b[:, 1])[None, :]
        # Down to where the two ways to the root meet, and up again.
        meeting = np.minimum(np.minimum(height_a, height_b), self.partings[np.ix_(branch_a, branch_b)])
        return np.asarray(height_a - meeting + (height_b - meeting))


def grow_tree(n_branches: int) -> BranchingTree:
    """Grow the tree with this many branches, the trunk included: always the same one."""
    parents = _parents(n_branches)
    starts, frames = np.zeros((n_branches, 3)), np.zeros((n_branches, 3, 3))
    frames[0] = np.eye(3)
    depths = np.zeros(n_branches, dtype=np.int64)
    for branch in range(n_branches):
        end, frame = _end(starts[branch], frames[branch])
        children = np.flatnonzero(parents == branch)
        starts[children] = end
        depths[children] = depths[branch] + 1
        for place, child in enumerate(children):
            frames[child] = _deflect(frame, 2 * np.pi * place / children.size)
    return BranchingTree(parents, starts, frames, depths, _partings(parents, depths))


def _parents(n_branches: int) -> Int64:
    """Split every branch in two, in order; an odd one out makes the last split threefold."""
    parents = (np.arange(n_branches) - 1) // 2
    if n_branches % 2 == 0:
        parents[-1] = parents[-2]
    return parents


def _end(start: Float64, frame: Float64) -> tuple[Float64, Float64]:
    """Return where a branch of one unit ends and the frame that has moved along with it."""
    forward, bend, across = frame
    sin, cos = np.sin(1.0), np.cos(1.0)
    end = start + sin * forward + (1 - cos) * bend
    return end, np.array([cos * forward + sin * bend, cos * bend - sin * forward, across])


def _deflect(frame: Float64, azimuth: float) -> Float64:
    """Return the frame of a branch that leaves at DEFLECTION, in the given direction around its parent."""
    forward, bend, across = frame
    outward = np.cos(azimuth) * bend + np.sin(azimuth) * across
    # The branch bends sideways: outwards it would curl back to its parent, inwards it would meet its siblings.
    sideways = np.cross(forward, outward)
    leaving = np.cos(DEFLECTION) * forward + np.sin(DEFLECTION) * outward
    return np.array([leaving, sideways, np.cross(leaving, sideways)])


def _partings(parents: Int64, depths: Int64) -> Int64:
    lines: list[set[int]] = []
    for branch, parent in enumerate(parents):
        lines.append({branch} | (lines[parent] if parent >= 0 else set()))
    return np.array([[max(depths[list(a & b)]) + 1 for b in lines] for a in lines], dtype=np.int64)
