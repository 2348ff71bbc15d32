"""Groups of neighbours that become one node of a coarser graph."""

from __future__ import annotations

import numpy as np

from heatmover._compiled.jit import kernel
from heatmover._typing import Float64, Int32, Int64


@kernel()
def aggregate(
    indptr: Int64, indices: Int32, data: Float64, most: int, strong: float, slow: float, labels: Int64
) -> int:
    """Write the group of each node, of some ``most`` nodes at most; return the number of groups.

    Two nodes may be in one group if the entry between them is at least the share ``strong`` of the largest of either
    row beside the diagonal. A node whose own entry exceeds ``slow`` stays alone.

    Parameters
    ----------
    indptr, indices, data
        CSR form of a symmetric matrix without negative entries.
    most, strong, slow
        See above.
    labels
        ``(n_nodes,)``.
    """
    n_nodes, count = labels.size, 0
    least = np.zeros(n_nodes)
    for i in range(n_nodes):
        labels[i] = -1
        alone = False
        for entry in range(indptr[i], indptr[i + 1]):
            if indices[entry] != i:
                least[i] = max(least[i], strong * data[entry])
            elif data[entry] > slow:
                alone = True
        if alone:
            least[i] = np.inf
    partners, links = np.empty(most, dtype=np.int64), np.empty(most)
    # First groups of at least half the size; what is left joins one of these, or others that are left.
    for fewest in (most // 2, 0):
        for i in range(n_nodes):
            if labels[i] >= 0:
                continue
            free, joined, strongest = 0, -1, 0.0
            for entry in range(indptr[i], indptr[i + 1]):
                j, link = indices[entry], data[entry]
                if j == i or link < least[i] or link < least[j]:
                    continue
                if labels[j] >= 0:
                    if link > strongest:
                        joined, strongest = labels[j], link
                    continue
                place = min(free, most - 2)
                if free == most - 1 and link <= links[place]:
                    continue
                free = place + 1
                while place > 0 and links[place - 1] < link:
                    partners[place], links[place] = partners[place - 1], links[place - 1]
                    place -= 1
                partners[place], links[place] = j, link
            if free < fewest:
                continue
            if fewest == 0 and joined >= 0:
                labels[i] = joined
                continue
            labels[i] = count
            for place in range(free):
                labels[partners[place]] = count
            count += 1
    return count
