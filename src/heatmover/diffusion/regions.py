"""Nested regions of the graph: at a coarse scale a density is smooth, and its mass in small regions says all of it.

Centres are placed farthest first, so that the first r of them are, for every r, about as evenly spread as any r points
can be; each point belongs to its nearest centre. The distance along an edge is sqrt(-log S_ij): for a Gaussian kernel
the geodesic length up to a constant per hop (Varadhan), and the number of hops where all weights are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from heatmover._typing import Int32, Intp
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.storage import Record

__all__ = ["Regions", "nested_regions", "sampled_points"]


@final
@dataclass(frozen=True, eq=False)
class Regions:
    """A partition of the points around centres, or the centres alone: regions of one point, and points in none.

    Attributes
    ----------
    labels
        Region of each point, in the graph's order of points, ``(n_points,)``; -1 for a point in none.
    centres
        The points at the centres, ``(n_regions,)``; centre c lies in region c.
    """

    labels: Int32
    centres: Intp

    def to_record(self) -> Record:
        """Return the regions as a record that a store can hold."""
        return Record(arrays={"labels": self.labels, "centres": self.centres.astype(np.int64, copy=False)})

    @classmethod
    def from_record(cls, record: Record, n_points: int) -> Regions:
        """Return the regions of ``n_points`` points of a record, or raise if they are none."""
        centres = record.places("centres", np.int64, (None,), n_points).astype(np.intp, copy=False)
        return cls(record.places("labels", np.int32, (n_points,), centres.size, least=-1), centres)

    @property
    def count(self) -> int:
        """Number of regions."""
        return int(self.centres.size)

    @property
    def are_points(self) -> bool:
        """Whether every region is its centre and nothing else."""
        return int(np.count_nonzero(self.labels >= 0)) == self.count


def sampled_points(n_points: int, centres: Intp) -> Regions:
    """Return the regions that are single points ``centres``, all other points being in none.

    Examples
    --------
    >>> sampled_points(5, np.array([3, 0])).labels.tolist()
    [1, -1, -1, 0, -1]
    """
    labels = np.full(n_points, -1, dtype=np.int32)
    labels[centres] = np.arange(centres.size, dtype=np.int32)
    return Regions(labels, centres)


def nested_regions(operator: DiffusionOperator, counts: Sequence[int], rng: np.random.Generator) -> list[Regions]:
    """Partition the points into regions, once per wanted number of them; fewer centres are always among more.

    Parameters
    ----------
    operator
        The diffusion operator.
    counts
        Wanted numbers of regions; at least one per connected component is made, and at most one per point.
    rng
        Draws the first centre.

    Returns
    -------
    list of Regions
        As many as ``counts``, in that order. No region reaches over two components.

    Examples
    --------
    >>> from heatmover.graphs import Graph
    >>> operator = DiffusionOperator.from_graph(Graph.from_grid((8,)))
    >>> fine, coarse = nested_regions(operator, [4, 2], np.random.default_rng(0))
    >>> fine.count, coarse.count, coarse.labels.size
    (4, 2, 8)
    """
    from heatmover._compiled.net import farthest_first

    limited = np.clip(counts, operator.n_components, operator.n_points)
    wanted = np.unique(limited)
    matrix = operator.symmetric
    lengths = np.sqrt(-np.log(np.clip(matrix.data, np.finfo(np.float32).tiny, 1.0)).astype(np.float64))
    labels = np.empty((wanted.size, operator.n_points), dtype=np.int32)
    centres = np.empty(wanted[-1], dtype=np.intp)
    first = int(rng.integers(operator.n_points))
    farthest_first(matrix.indptr, matrix.indices, lengths, first, wanted, labels, centres)
    partitions = {
        count: _in_graph_order(operator, row, centres[:count]) for count, row in zip(wanted, labels, strict=True)
    }
    return [partitions[count] for count in limited]


def _in_graph_order(operator: DiffusionOperator, labels: Int32, centres: Intp) -> Regions:
    placed = np.empty_like(labels)
    placed[operator.order] = labels
    return Regions(placed, operator.order[centres])
