"""New points enter an existing graph: each spreads its mass over its nearest nodes by kernel weights."""

from __future__ import annotations

from typing import Any, final

import torch
from sklearn.neighbors import NearestNeighbors

from heatmover._typing import FloatArray

__all__ = ["Entry"]


@final
class Entry:
    """The nodes as seen from outside.

    Parameters
    ----------
    points
        Positions of the nodes, ``(n_points, n_dimensions)``.
    n_neighbors
        Nodes that a new point spreads its mass over.
    width
        Of the kernel ``exp(-d^2 / width^2)``.
    """

    def __init__(self, points: FloatArray, n_neighbors: int, width: float) -> None:
        self.points = points
        self.width = width
        self._count = min(n_neighbors, len(points))
        self._search: Any = None

    def weigh(self, cloud: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nearest nodes of each point of a cloud and its weights on them.

        Parameters
        ----------
        cloud
            ``(n_new, n_dimensions)``, on the CPU.

        Returns
        -------
        nodes, weights
            ``(n_new, n_neighbors)`` each; weights sum to one over the nodes, however far the point is: what would
            underflow cancels (softmax).
        """
        nodes = self._nearest(cloud)
        steps = (cloud[:, None] - self._positions(nodes, cloud.dtype)) / self.width
        return nodes, torch.softmax(-steps.square().sum(dim=-1), dim=-1)

    def spread(self, cloud: torch.Tensor, masses: torch.Tensor) -> torch.Tensor:
        """Return the masses ``(n_points,)`` that a cloud ``(n_new, n_dimensions)`` with ``masses`` ``(n_new,)`` has."""
        nodes, weights = self.weigh(cloud)
        empty = torch.zeros(len(self.points), dtype=cloud.dtype)
        return empty.index_add(0, nodes.flatten(), (weights * masses[:, None]).flatten())

    def offset(self, cloud: torch.Tensor) -> torch.Tensor:
        """Return the vector ``(n_new, n_dimensions)`` to each point from the weighted mean of its nodes."""
        nodes, weights = self.weigh(cloud)
        return cloud - (weights[:, :, None] * self._positions(nodes, cloud.dtype)).sum(dim=1)

    def _nearest(self, cloud: torch.Tensor) -> torch.Tensor:
        if self._search is None:  # a graph that nobody enters needs no search
            self._search = NearestNeighbors(n_neighbors=self._count).fit(self.points)
        return torch.from_numpy(self._search.kneighbors(cloud.detach().numpy(), return_distance=False))

    def _positions(self, nodes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(self.points[nodes.numpy()]).to(dtype)
