"""Which types of cells are in another state in one group of samples than in another.

The cells that a sample has of one type are a distribution of their own, whatever their number. It is diffused over the
graph, and the groups' means of it are compared under permutations. The places of all samples and types are seen through
a few random probes, which are diffused once: means over probes of products of what they show are inner products of
embeddings, in the norm ``sum(f**2 / pi)`` that the operator has by itself (pi is the stationary law).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from heatmover._threads import in_threads
from heatmover._typing import Bool, Float64, FloatArray, Int64
from heatmover.attribution.permuted import controlled, gram_statistics, smallest_p, two_sided, weigh
from heatmover.embedding.preparation import Preparation

__all__ = ["Places", "State", "compare_state", "places_of_types"]

# Probes, and how many are diffused together. A square seen by 64 of them is off by a sixth at most; all samples are
# seen by the same ones, so that a test stays as exact as its permutations.
PROBES, TOGETHER = 64, 32
# A sample in which a type has n cells counts n / (n + 10) there: a few cells say little of their distribution.
HALF_KNOWN = 10.0
# A group needs as many samples with cells of a type.
LEAST_SAMPLES = 2


class Places(NamedTuple):
    """Where the cells of each type lie in each unit.

    Attributes
    ----------
    means
        ``(n_units, n_types, n_features)``, zero where a unit has none; every scale counts by the spread of the cells.
    cells
        ``(n_units, n_types)``: how many cells, as if all of a unit weighed the same.
    """

    means: FloatArray
    cells: Float64


class State(NamedTuple):
    """What was found of every type: ``scores`` (not negative), p- and q-values, and whether it was ``tested``."""

    scores: Float64
    p_values: Float64
    q_values: Float64
    tested: Bool


def places_of_types(
    prepared: Preparation, rows: sp.csr_array, cells: Float64, rng: np.random.Generator, n_threads: int
) -> Places:
    """Return where the cells of each type lie.

    Parameters
    ----------
    prepared
        Of the model.
    rows
        Masses of the types of each unit at the nodes, ``(n_units * n_types, n_nodes)``, those of a unit together.
    cells
        How many cells each of them has, ``(n_units, n_types)``.
    rng
        Generator.
    n_threads
        Threads to use; the result does not depend on them.
    """
    n_units, n_types = cells.shape
    sums = np.asarray(rows.sum(axis=1)).ravel()
    own = sp.csr_array(sp.diags_array(1 / np.where(sums > 0, sums, 1)) @ rows)
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # Mass diffuses in the norm sum(f^2 / pi), functions in sum(f^2 pi).
    metric = law if prepared.adjoint else 1 / law
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    # In the operator's order, which does not depend on that of the points.
    signs[operator.order] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    n_scales, starts = len(layout.scales), range(0, PROBES, TOGETHER)
    means = np.empty((own.shape[0], n_scales, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales, own.shape[0]))
    masses = own.astype(dtype)
    everything = np.asarray(rows.sum(axis=0) / rows.sum(), dtype=dtype).ravel()

    def look(number: int) -> None:
        columns = slice(starts[number], starts[number] + TOGETHER)
        probes = (signs[:, columns] * np.sqrt(metric)[:, None]).astype(dtype)
        densities = prepared.diffuser.diffuse(probes, layout.scales)
        for scale, density in enumerate(densities):
            values = density / metric[:, None].astype(dtype)
            # What all cells have in common is most of a coarse density, and would be all that float32 holds.
            values -= everything @ values
            means[:, scale, columns] = masses @ values
            squares[number, scale] = np.sum(masses @ np.square(values), axis=1, dtype=np.float64)

    in_threads(look, range(len(starts)), n_threads)
    shown = means.reshape(n_units, n_types, n_scales, PROBES)
    spread = _spread(shown, squares.sum(axis=0).T.reshape(n_units, n_types, n_scales), cells)
    shown *= (1 / np.sqrt(spread)).astype(dtype)[None, :, :, None]
    shown[cells <= 0] = 0
    return Places(shown.reshape(n_units, n_types, -1), cells)


def _spread(means: FloatArray, squares: Float64, cells: Float64) -> Float64:
    """Return the variance of all cells of a type at every scale, ``(n_types, n_scales)``; one where there is none."""
    shares = cells / np.maximum(cells.sum(axis=0), np.finfo(float).tiny)
    centre = np.einsum("ut,utsp->tsp", shares, means)
    found = np.einsum("ut,uts->ts", shares, squares) - (centre**2).sum(axis=2)
    least = 1e-6 * np.einsum("ut,uts->ts", shares, squares)
    return np.where(found > least, found, np.inf)


def compare_state(places: Places, members: Bool, blocks: Int64) -> State:
    """Test whether the cells of a type lie elsewhere in the group, type by type.

    Parameters
    ----------
    places
        From `places_of_types`.
    members
        Which units are in the group, ``(n_orders, n_units)``, the observed order first.
    blocks
        Block of each unit, ``(n_units,)``.
    """
    n_types = places.cells.shape[1]
    scores, tested = np.zeros(n_types), np.zeros(n_types, dtype=bool)
    p_values, smallest = np.ones(n_types), np.ones(n_types)
    for kind in range(n_types):
        cells = places.cells[:, kind]
        weighed = weigh(members, blocks, cells / (cells + HALF_KNOWN))
        taking_part = members[0][weighed.informative]
        if min(taking_part.sum(), (~taking_part).sum()) < LEAST_SAMPLES:
            continue
        shown = places.means[:, kind].astype(np.float64)
        statistics = np.sqrt(gram_statistics(shown @ shown.T, weighed))
        scores[kind], tested[kind] = statistics[0], True
        p_values[kind], smallest[kind] = two_sided(statistics), smallest_p(statistics)
    return State(scores, p_values, controlled(p_values, smallest), tested)
