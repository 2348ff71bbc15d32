"""Simulate a single-cell cohort, samples of cells on a differentiation tree, for users and demos; touch no files.

The branches of the tree are curves in three dimensions, each one unit long. The module is not called `cohort`, because
a function of the package has this name.
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

# Concentration of the Dirichlet distribution of compositions. The share of a branch with a fifth of the cells has a
# standard deviation of sqrt(0.2 * 0.8 / 31) = 0.07 between healthy samples.
CONCENTRATION = 30.0
# Concentration of the Dirichlet distribution within a donor, and smallest expected share. Between two samples of one
# donor, the share of a branch with a fifth of the cells has a standard deviation of sqrt(0.2 * 0.8 / 201) = 0.03, less
# than half of 0.07.
WITHIN_DONORS, LEAST_SHARE = 200.0, 1e-4
# Largest number of branches for which no two branches intersect.
MOST_BRANCHES = 15
# Every branch is an arc of one radian of a unit circle and leaves its parent at this angle. In trees of 3 to 15
# branches, the distance of two points in space is at least 0.38 of their distance along the tree, so a graph of near
# points follows the branches.
DEFLECTION = 0.8
DIMENSIONS = 3


@final
@dataclass(frozen=True)
class Effect:
    """The difference between cases and controls in the last branch of the tree.

    Attributes
    ----------
    enrichment
        Change of the expected odds that a cell is in the branch: in cases, the odds are ``1 + enrichment`` times the
        odds in controls. 0 means no difference, 1 doubles the odds, and a value between -1 and 0 depletes the branch.
    progression
        Shift of the cells of cases along the branch. The mean position of these cells is ``(1 + progression) / (2 +
        progression)`` of the length of the branch; without a shift the mean position is 1/2, as in controls.

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
    """Simulate a single-cell cohort of controls and cases, whose cells differentiate along a tree.

    Branch 0 is the trunk. The branches split in two, one after another, until there are ``n_branches`` (the last split
    may be threefold). Branches are curved and one unit long. The composition of a sample (the shares of the branches
    among its cells) is drawn from a Dirichlet distribution around equal shares. Half of the samples are cases, which
    differ in the last branch.

    Parameters
    ----------
    n_samples
        Number of samples, at least 2. If the number is odd, there is one more control than there are cases.
    cells_per_sample
        Number of cells of each sample.
    n_branches
        Number of branches of the tree, including the trunk: 3 to 15.
    effect
        Difference of cases from controls. A number is the enrichment in the last branch: the expected odds are
        multiplied by ``1 + effect``, and 0 means no difference. An `Effect` also shifts the cells of cases along the
        branch.
    paired
        Draw donors, each with a control sample and a case sample, such as before and after a treatment:
        ``"control-03"`` and ``"case-03"`` come from one donor. Donors differ as much as samples of an unpaired cohort,
        and the two samples of a donor have similar compositions. ``n_samples`` must then be even.
    n_dimensions
        Number of dimensions of the ambient space, at least 3. In more than 3 dimensions, the tree is rotated at random.
    noise
        Standard deviation of Gaussian noise in every direction of the ambient space. The ground truth is free of noise.
    random_state
        Seed or generator.

    Returns
    -------
    Dataset
        Labels are names such as ``"control-03"``. Coordinates are the index of the branch and the position along the
        branch, 0 to 1. The true distance is the length of the path along the tree. The annotation ``condition``,
        (n_samples,), is "control" or "case". The annotation ``composition``, (n_samples, n_branches), contains the
        shares of the branches. A paired cohort also has the annotation ``donor``, (n_samples,).

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
        raise InvalidInputError(
            "an even n_samples, because each donor has two samples",
            repr(n_samples),
            "add one sample, or use paired=False",
        )
    cells_per_sample = check_integer("cells_per_sample", cells_per_sample, minimum=1)
    # More branches might intersect.
    n_branches = check_integer("n_branches", n_branches, minimum=3, maximum=MOST_BRANCHES)
    effect = effect if isinstance(effect, Effect) else Effect(enrichment=effect)
    clouds = make_clouds(n_samples, cells_per_sample, 0.0, n_dimensions, noise, random_state, needs=DIMENSIONS)
    # "case" sorts before "control", and measures are in sorted order.
    case = np.arange(n_samples) < n_samples // 2
    composition = (_paired if paired else _compositions)(case, n_branches, effect, clouds.rng)
    coordinates = _cells(clouds, case, composition, effect)
    tree, names = grow_tree(n_branches), _names(case)
    annotations = {"condition": np.where(case, "case", "control"), "composition": composition}
    if paired:
        annotations["donor"] = np.array([f"donor-{name.split('-')[1]}" for name in names])
    return Dataset(
        name="cohort",
        points=clouds.embed(tree.locate(coordinates)),
        labels=names[clouds.labels],
        coordinates=coordinates,
        annotations=annotations,
        ground_distance=tree.distance,
    )


def _compositions(case: Bool, n_branches: int, effect: Effect, rng: np.random.Generator) -> Float64:
    """Draw the shares of the branches, (n_samples, n_branches)."""
    control_weights = np.ones(n_branches)
    case_weights = np.append(np.ones(n_branches - 1), 1 + effect.enrichment)
    weights = np.where(case[:, None], case_weights, control_weights)
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.array([rng.dirichlet(CONCENTRATION * share) for share in shares])


def _paired(case: Bool, n_branches: int, effect: Effect, rng: np.random.Generator) -> Float64:
    """Draw the shares of the branches for donors with a case and a control each, (n_samples, n_branches)."""
    donors = rng.dirichlet(CONCENTRATION * np.full(n_branches, 1 / n_branches), size=len(case) // 2)
    # The first half are cases and the second half controls, both in the order of the donors.
    shares = np.tile(donors, (2, 1))
    shares[case, -1] *= 1 + effect.enrichment
    shares /= shares.sum(axis=1, keepdims=True)
    # A Dirichlet distribution needs positive parameters.
    return np.array([rng.dirichlet(WITHIN_DONORS * np.maximum(share, LEAST_SHARE)) for share in shares])


def _cells(clouds: Clouds, case: Bool, composition: Float64, effect: Effect) -> Float64:
    """Draw the branch and the position of every cell, (n_cells, 2)."""
    # Drop the last sum, which is 1 up to rounding.
    sums = np.cumsum(composition, axis=1)[clouds.labels, :-1]
    branch = (clouds.rng.random((clouds.labels.size, 1)) > sums).sum(axis=1)
    position = clouds.rng.random(clouds.labels.size)
    advanced = case[clouds.labels] & (branch == composition.shape[1] - 1)
    position[advanced] **= 1 / (1 + effect.progression)
    return np.column_stack([branch, position])


def _names(case: Bool) -> npt.NDArray[np.str_]:
    """Return numbered names of cases and controls, with leading zeros so that sorting keeps the order."""
    width = max(2, len(str((~case).sum())))
    numbers = np.where(case, np.cumsum(case), np.cumsum(~case))
    return np.array(
        [f"{'case' if is_case else 'control'}-{number:0{width}}" for is_case, number in zip(case, numbers, strict=True)]
    )


@final
@dataclass(frozen=True, eq=False)
class BranchingTree:
    """Start and orientation of every branch, and the distance from the root at which two branches separate.

    Attributes
    ----------
    parents
        (n_branches,): parent of each branch; -1 for the trunk, which is branch 0.
    starts
        (n_branches, 3): position at which each branch begins.
    frames
        (n_branches, 3, 3): unit vectors of each branch: its initial direction, the direction in which it bends, and
        the direction orthogonal to both.
    depths
        (n_branches,): distance from the root to the beginning of each branch.
    partings
        (n_branches, n_branches): distance from the root to the point at which the paths to the ends of two branches
        separate.
    """

    parents: Int64
    starts: Float64
    frames: Float64
    depths: Int64
    partings: Int64

    def locate(self, coordinates: Float64) -> Float64:
        """Return points (n, 3) for coordinates (n, 2): the branch and the position along the branch, 0 to 1."""
        branch, along = coordinates[:, 0].astype(np.int64), coordinates[:, 1:]
        forward, bend = self.frames[branch, 0], self.frames[branch, 1]
        return np.asarray(self.starts[branch] + np.sin(along) * forward + (1 - np.cos(along)) * bend)

    def distance(self, a: Float64, b: Float64) -> Float64:
        """Return the distances along the tree, (n_a, n_b), between coordinates (n_a, 2) and (n_b, 2)."""
        branch_a, branch_b = a[:, 0].astype(np.int64), b[:, 0].astype(np.int64)
        height_a = (self.depths[branch_a] + a[:, 1])[:, None]
        height_b = (self.depths[branch_b] + b[:, 1])[None, :]
        # The path goes down to the point where both paths to the root meet, and up again.
        meeting = np.minimum(np.minimum(height_a, height_b), self.partings[np.ix_(branch_a, branch_b)])
        return np.asarray(height_a - meeting + (height_b - meeting))


def grow_tree(n_branches: int) -> BranchingTree:
    """Return the deterministic tree with this many branches, including the trunk."""
    # Branches split in two, one after another; if one branch is left over, the last split is threefold.
    parents = (np.arange(n_branches) - 1) // 2
    if n_branches % 2 == 0:
        parents[-1] = parents[-2]
    starts, frames = np.zeros((n_branches, 3)), np.zeros((n_branches, 3, 3))
    frames[0] = np.eye(3)
    depths = np.zeros(n_branches, dtype=np.int64)
    for branch in range(n_branches):
        # End of the branch, which is one unit long, and the frame moved to this end.
        forward, bend, across = frames[branch]
        sin, cos = np.sin(1.0), np.cos(1.0)
        end = starts[branch] + sin * forward + (1 - cos) * bend
        frame = np.array([cos * forward + sin * bend, cos * bend - sin * forward, across])
        children = np.flatnonzero(parents == branch)
        starts[children] = end
        depths[children] = depths[branch] + 1
        for place, child in enumerate(children):
            frames[child] = _deflect(frame, 2 * np.pi * place / children.size)
    return BranchingTree(parents, starts, frames, depths, _partings(parents, depths))


def _deflect(frame: Float64, azimuth: float) -> Float64:
    """Return the frame of a branch that leaves its parent at the angle DEFLECTION and at an azimuth around it."""
    forward, bend, across = frame
    outward = np.cos(azimuth) * bend + np.sin(azimuth) * across
    # The branch bends sideways. If it bent outward, it would curl back to its parent; if it bent inward, it would meet
    # its siblings.
    sideways = np.cross(forward, outward)
    leaving = np.cos(DEFLECTION) * forward + np.sin(DEFLECTION) * outward
    return np.array([leaving, sideways, np.cross(leaving, sideways)])


def _partings(parents: Int64, depths: Int64) -> Int64:
    lines: list[set[int]] = []
    for branch, parent in enumerate(parents):
        lines.append({branch} | (lines[parent] if parent >= 0 else set()))
    return np.array([[max(depths[list(a & b)]) + 1 for b in lines] for a in lines], dtype=np.int64)
