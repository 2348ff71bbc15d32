"""The nearest others of points, group by group of neighbours: most groups are too far to be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._compiled.jit import inner, kernel
from heatmover._typing import Float64, Int64


@kernel()
def k_nearest_by_groups(
    rows: tuple[int, int],
    points: Float64,
    columns: Float64,
    starts: Int64,
    order: Int64,
    member: Int64,
    middles: Float64,
    radii: Float64,
    slack: float,
    squares: Float64,
    indices: Int64,
    scratch: Float64,
    near: Int64,
) -> int:
    """Write the nearest other points of some of the points by group; return how many groups were looked at.

    ``points`` (n_points, n_dimensions) and ``columns``, its transpose, are in the order of their groups, of which
    ``member`` tells each point's; ``order`` are their own numbers, which ``indices`` gets. Of points equally far the
    one comes first that `_comes_before` puts first. ``squares`` and ``indices`` (n_rows, k) begin as infinity and -1;
    ``scratch`` is (3, n_groups), or wider for the largest group, and ``near`` (n_groups,).
    """
    n_groups, k = radii.size, squares.shape[1]
    here, away, bounds = scratch[0], scratch[1], scratch[2]
    looked_at = 0
    for p in range(rows[0], rows[1]):
        best, names = squares[p - rows[0]], indices[p - rows[0]]
        _squares(points[p], middles, np.int64(0), n_groups, away)
        _gather(points[p], columns, (starts[member[p]], starts[member[p] + 1]), order, order[p], here, best, names)
        reach = np.sqrt(best[k - 1]) * (1 + slack)
        count = _groups_in_reach(away, radii, reach, member[p], bounds, near)
        looked_at += 1
        for i in range(count):
            if bounds[i] > np.sqrt(best[k - 1]) * (1 + slack):
                break
            between = (starts[near[i]], starts[near[i] + 1])
            _gather(points[p], columns, between, order, order[p], here, best, names)
            looked_at += 1
    return looked_at


@inner()
def _gather(
    point: Float64,
    columns: Float64,
    between: tuple[int, int],
    order: Int64,
    own: int,
    here: Float64,
    best: Float64,
    names: Int64,
) -> None:
    """Put the points of one group that are near enough to their places among the nearest so far."""
    begin, end = between
    last = best.size - 1
    _squares(point, columns, begin, end, here)
    hits = 0
    for j in range(end - begin):
        hits += here[j] <= best[last]
    if hits == 0:
        return
    for j in range(end - begin):
        square, name = here[j], order[begin + j]
        if square > best[last] or name == own:
            continue
        if square == best[last] and names[last] >= 0 and _comes_before(names[last], name, own):
            continue
        i = last
        while i > 0 and (best[i - 1] > square or (best[i - 1] == square and _comes_before(name, names[i - 1], own))):
            best[i], names[i] = best[i - 1], names[i - 1]
            i -= 1
        best[i], names[i] = square, name


@inner()
def _comes_before(a: int, b: int, own: int) -> bool:
    """Return whether a point comes before another one that is as far from ``own``, by a hash of the pairs.

    By their numbers alone, the first of many tied points would become everybody's neighbour.
    """
    here, there = _pair_hash(a, own), _pair_hash(b, own)
    return here < there or (here == there and a < b)


@inner()
def _pair_hash(a: int, b: int) -> Any:
    """Return a hash of two numbers, whichever comes first (the finaliser of splitmix64)."""
    mixed = np.uint64(min(a, b)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(max(a, b))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@inner()
def _squares(point: Float64, centers: Float64, begin: int, end: int, out: Float64) -> None:
    """Write the squared distances of a point from some columns; four dimensions a pass, for each pass reads ``out``."""
    count, n_dimensions = end - begin, point.size
    for j in range(count):
        out[j] = 0.0
    k = 0
    while k + 4 <= n_dimensions:
        a, b, c, d = point[k], point[k + 1], point[k + 2], point[k + 3]
        # Slices, because an index that might be negative keeps the loop from using vectors.
        to_a, to_b = centers[k, begin:end], centers[k + 1, begin:end]
        to_c, to_d = centers[k + 2, begin:end], centers[k + 3, begin:end]
        for j in range(count):
            e, f, g, h = a - to_a[j], b - to_b[j], c - to_c[j], d - to_d[j]
            out[j] += (e * e + f * f) + (g * g + h * h)
        k += 4
    while k < n_dimensions:
        a = point[k]
        to_a = centers[k, begin:end]
        for j in range(count):
            e = a - to_a[j]
            out[j] += e * e
        k += 1


@inner()
def _groups_in_reach(away: Float64, radii: Float64, reach: float, first: int, bounds: Float64, near: Int64) -> int:
    """Write the other groups that may hold a centre within reach, nearest bound first; return how many."""
    count = 0
    for group in range(radii.size):
        limit = reach + radii[group]
        if group != first and away[group] <= limit * limit:
            bound = np.sqrt(away[group]) - radii[group]
            i = count
            while i > 0 and bounds[i - 1] > bound:
                bounds[i], near[i] = bounds[i - 1], near[i - 1]
                i -= 1
            bounds[i], near[i] = bound, group
            count += 1
    return count
