"""A tree of curved branches in three dimensions, every branch one unit long: the manifold of a cohort's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._typing import Float64, Int64

__all__ = ["Tree", "grow_tree"]

# Every branch is an arc of one radian of a unit circle and leaves its parent at this angle. Measured over trees
# of 3 to 15 branches: no two points are closer in space than 0.38 of their way along the tree, so a graph of
# near points follows the branches.
DEFLECTION = 0.8
DIMENSIONS = 3


@final
@dataclass(frozen=True, eq=False)
class Tree:
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


def grow_tree(n_branches: int) -> Tree:
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
    return Tree(parents, starts, frames, depths, _partings(parents, depths))


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
