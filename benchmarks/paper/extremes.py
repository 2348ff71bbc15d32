"""The smallest and the largest ratio of W_{D_alpha} to a sum of L1 norms, over signed measures, by maximizing.

The smallest is attained by two points. A transport plan writes g = mu - nu as a mixture of differences of two points,
at the cost W, and the norm is convex: norm(g) <= (largest norm(x - y) / D(x, y)) W(g). The least W / norm over all
pairs of points is therefore the least over all measures.

The largest is a maximum of one convex function on the unit ball of another, and has no such formula. ``ascend`` climbs:
at every step a linear function from below (the potential of transport) replaces W, and a quadratic one from above,
|x| <= x^2 / (2 |x_0|) + |x_0| / 2, replaces the norm. The maximizer of that bound is a linear system, and the ratio
never falls. A ratio that was climbed to is attained by a measure, so that it bounds the supremum from below.

On the circle waves have closed forms, and ``certified`` bounds the supremum over all trigonometric polynomials of a
degree from above, by a linear program.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.sparse as sp
from scipy.integrate import quad
from scipy.optimize import linprog
from scipy.special import erf
from series import Floats, Space, heat_levels

NORMS = ("increments", "coarsest", "levels")
# Terms of sums in closed form: the time 2^-90 is fine for waves of any frequency here, up to 2^20, and for two points.
TERMS = 90


def parts(space: Space, norm: str, alpha: float, n_terms: int | None = None) -> Floats:
    """Return the matrix A whose product with g has the L1 norm: (n_cells of all terms, n)."""
    points, blocks = np.eye(space.n), []
    for k in range(space.terms if n_terms is None else n_terms):
        now, finer, first = space.masses(
            points, [space.heat(2.0**-k), space.heat(2.0 ** -(k + 1)), space.heat(1.0)], k + 1
        )
        weight = 2.0 ** (-alpha * k)
        if n_terms is None and k == space.terms - 1:
            weight /= 1 - 2.0**-alpha  # the last term repeats for ever
        if k == 0 and norm != "levels":
            blocks.append(now.T)
        blocks.append(weight * {"increments": finer - now, "coarsest": now - first, "levels": now}[norm].T)
    return np.ascontiguousarray(np.vstack(blocks))


def transport(g: Floats, costs: Floats) -> tuple[float, Floats]:
    """Return W of a signed measure without total mass and a potential of Lipschitz constant 1 on all points."""
    sources, targets = np.flatnonzero(g > 0), np.flatnonzero(g < 0)
    mass = g[sources].sum()
    from ot import emd

    _, log = emd(
        g[sources] / mass,
        g[targets] / g[targets].sum(),
        np.ascontiguousarray(costs[np.ix_(sources, targets)]),
        log=True,
        numItermax=10**8,
    )
    return float(mass * log["cost"]), (costs[:, targets] - log["v"]).min(axis=1)


def ratio(g: Floats, matrix: Floats, costs: Floats) -> float:
    norm = np.abs(matrix @ g).sum()
    return transport(g, costs)[0] / norm if norm > 0 else np.inf


def ascend(g: Floats, matrix: Floats, costs: Floats, steps: int = 25, gain: float = 1e-4) -> tuple[float, Floats]:
    """Return the ratio at the end of the climb from g, and the measure there."""
    best, measure = 0.0, g
    for _ in range(steps):
        value, potential = transport(g, costs)
        found = matrix @ g
        norm = np.abs(found).sum()
        if value / norm < best * (1 + gain):
            break
        best, measure = value / norm, g
        scaled = matrix / np.sqrt(np.maximum(np.abs(found) / norm, 1e-10))[:, None]
        system = scaled.T @ scaled
        size = np.trace(system) / len(g)
        system += (1e-10 * np.eye(len(g)) + np.full_like(system, 1 / len(g))) * size  # no total mass
        g = np.linalg.solve(system, potential - potential.mean())
        g = (g - g.mean()) / np.abs(g).sum()
    return best, measure


def waves(costs: Floats) -> Floats:
    """Return one wave per row, of every frequency: eigenvectors of the ground distance, smooth ones first."""
    center = np.eye(len(costs)) - 1 / len(costs)
    values, vectors = np.linalg.eigh(center @ costs @ center)
    order = np.argsort(values)
    order = order[np.abs(vectors[:, order].sum(axis=0)) < 1e-6]
    return np.ascontiguousarray(vectors[:, order].T)


def smallest(matrix: Floats, costs: Floats) -> float:
    """Return the least ratio over all measures on the points: that of two points."""
    n = len(costs)
    best = np.inf
    for i in range(n - 1):
        norms = np.abs(matrix[:, i + 1 :] - matrix[:, [i]]).sum(axis=0)
        best = min(best, float((costs[i, i + 1 :] / norms).min()))
    return best


def largest(
    matrix: Floats, costs: Floats, others: Floats, rng: np.random.Generator, climbs: int = 4
) -> tuple[float, str, float]:
    """Return the largest ratio climbed to, the kind of start that led to it, and the largest of all waves."""
    every = waves(costs)
    random = rng.standard_normal((2, len(costs)))
    starts = np.vstack([every, others, random - random.mean(axis=1, keepdims=True)])
    kinds = ["wave"] * len(every) + ["drawn"] * len(others) + ["random"] * 2
    begun = np.array([ratio(g, matrix, costs) for g in starts])
    order = [*np.argsort(-begun)[:climbs], len(starts) - 2, len(starts) - 1]
    # Where a term is zero in a cell the quadratic bound is a wall; noise leads away from it.
    found = []
    for i in dict.fromkeys(map(int, order)):
        for noise in (0.0, 0.05):
            g = starts[i] + noise * np.abs(starts[i]).max() * random[0]
            found.append((ascend(g - g.mean(), matrix, costs)[0], kinds[i]))
    value, kind = max(found)
    return value, kind, float(begun[: len(every)].max())


# On the circle, without atoms.


@cache
def _weights(alpha: float, terms: int) -> Floats:
    weights = 2.0 ** (-alpha * np.arange(terms))
    weights[-1] /= 1 - 2.0**-alpha
    return weights


def ground(alpha: float, distances: Floats) -> Floats:
    """Return D_alpha on the circle of radius 1, with all terms."""
    levels = np.array([heat_levels(2.0**-k, distances) for k in range(TERMS)])
    return _weights(alpha, TERMS) @ levels


def symbols(norm: str, alpha: float, frequencies: Floats, terms: int = TERMS) -> Floats:
    """Return the multipliers of the norm's terms with their weights, (n_terms + 1, n_frequencies); first A_1."""
    heat = np.exp(-(2.0 ** -np.arange(terms + 1.0)[:, None]) * np.asarray(frequencies, dtype=float) ** 2)
    scales = {"increments": heat[1:] - heat[:-1], "coarsest": heat[:-1] - heat[:1], "levels": heat[:-1]}[norm]
    first = heat[:1] if norm != "levels" else np.zeros_like(heat[:1])
    return np.vstack([first, _weights(alpha, terms)[:, None] * scales])


def wave_transport(frequency: float, alpha: float) -> float:
    """Return W_{D_alpha} between the positive and the negative part of cos(j x).

    The mass on each side of a zero is carried to its mirror image: 2 j zeros, and a quarter of a wave on each side. The
    plan is optimal because D_alpha is concave in the distance.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u = (nodes + 1) / 2
    place, measure = u**3, 1.5 * u**2 * weights  # fine near zero, where D_alpha has a cusp
    quarter = np.pi / (2 * frequency)
    values = np.sin(place * np.pi / 2) * ground(alpha, 2 * quarter * place)
    return float(2 * frequency * quarter * (values @ measure))


def wave_ratio(norm: str, alpha: float, frequency: float) -> float:
    """Return W_{D_alpha} over the norm for the density cos(j x), whose L1 norm is 4."""
    return wave_transport(frequency, alpha) / (4 * float(np.abs(symbols(norm, alpha, np.array([frequency]))).sum()))


# Fine waves and near points see a line, and scales 2^-k for all k, positive and negative: sums over both sides.
SIDES = 400


def line_ground(alpha: float, distances: Floats) -> Floats:
    """Return the sum over all integers k of 2^(-k alpha) 2 erf(d 2^(k/2) / 4): D_alpha far below the coarsest scale."""
    k = np.arange(-SIDES, SIDES + 1.0)
    last = 2.0 ** (-alpha * SIDES) * 2 / (1 - 2.0**-alpha) - 2 * 2.0 ** (-alpha * SIDES)  # beyond, erf is 1
    with np.errstate(over="ignore"):
        return 2 * erf(np.asarray(distances)[:, None] * 2 ** (k / 2) / 4) @ 2.0 ** (-alpha * k) + last


def wave_limit(norm: str, alpha: float) -> float:
    """Return the largest ratio of waves as the frequency grows without bound: over frequencies in one octave.

    The ratio is periodic in log2 of the frequency, with period 1/2 (twice the time is sqrt(2) times the length). The
    norms "coarsest" and "levels" then have 2^(-k alpha) e^(-j^2 2^-k) in all scales finer than the wave.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u = (nodes + 1) / 2
    k = np.arange(-SIDES, SIDES + 1.0)
    found = []
    for frequency in 2 ** (np.arange(8) / 16):
        quarter = np.pi / (2 * frequency)
        values = np.sin(u**3 * np.pi / 2) * line_ground(alpha, 2 * quarter * u**3)
        carried = 2 * frequency * quarter * (values @ (1.5 * u**2 * weights))
        heat, finer = (np.exp(-(frequency**2) * 2.0**-shift) for shift in (k, k + 1))
        total = np.sum(2.0 ** (-alpha * k) * (finer - heat if norm == "increments" else heat))
        found.append(carried / (4 * total))
    return float(max(found))


def circle_increment(distance: float, time: float) -> float:
    """Return ||(H_(t/2) - H_t)(x - y)||_1 on the circle for two points at a distance, by images and quadrature."""
    count = 20_000
    reach = min(np.pi, 7 * np.sqrt(2 * time) + distance / 2)  # beyond, all four bells are below 1e-10
    place = (2 * (np.arange(count) + 0.5) / count - 1) * reach
    images = 2 * np.pi * np.arange(-3, 4)[:, None] if reach == np.pi else np.zeros((1, 1))
    total = np.zeros(count)
    for shift, sign in ((distance / 2, 1), (-distance / 2, -1)):
        square = (place - shift + images) ** 2
        for t, part in ((time / 2, 1), (time, -1)):
            total += sign * part * (np.exp(-square / (4 * t)) / np.sqrt(4 * np.pi * t)).sum(axis=0)
    return float(np.abs(total).sum() * 2 * reach / count)


# Far from its image a pair sees a line, where only d / sqrt(t) counts.
LINE = 2.0**-7
# Below this ratio the norm is proportional to the distance, above it the points have parted.
NEAR, APART = 1e-3, 30.0


@cache
def _line_table() -> tuple[Floats, Floats]:
    z = np.geomspace(NEAR, APART, 400)
    return np.log(z), np.array([circle_increment(x * np.sqrt(1e-4), 1e-4) for x in z])


def line_increment(z: Floats) -> Floats:
    """Return ||(H_(t/2) - H_t)(x - y)||_1 on the line for two points z sqrt(t) apart."""
    places, table = _line_table()
    found = np.interp(np.log(np.clip(z, NEAR, APART)), places, table)
    return np.where(z < NEAR, table[0] * z / NEAR, found)


def points_ratio(alpha: float, distance: float) -> float:
    """Return D_alpha over Eq. 9 for two points of the circle."""
    times = 2.0 ** -np.arange(TERMS)
    norms = np.array([circle_increment(distance, t) if t > LINE else 0.0 for t in times])
    norms = np.where(times > LINE, norms, line_increment(distance / np.sqrt(times)))
    first = heat_levels(1.0, [distance])[0]
    return float(ground(alpha, np.array([distance]))[0] / (first + _weights(alpha, TERMS) @ norms))


def points_limit(alpha: float) -> float:
    """Return the smallest ratio of D_alpha to Eq. 9 as the distance of two points tends to 0.

    The ratio is periodic in log2 of the distance, with period 1/2.
    """
    k = np.arange(-SIDES, SIDES + 1.0)
    last = 2.0 ** (-alpha * SIDES) * (1 / (1 - 2.0**-alpha) - 1)
    found = []
    for distance in 2 ** (np.arange(4) / 8):
        levels = line_increment(distance * 2.0 ** (k / 2))
        found.append(line_ground(alpha, np.array([distance]))[0] / (levels @ 2.0 ** (-alpha * k) + levels[-1] * last))
    return float(min(found))


def points_smallest(alpha: float) -> float:
    """Return the infimum of D_alpha over Eq. 9 for two points of the circle, and so for all measures on it."""
    distances = np.geomspace(1e-6, np.pi, 80)
    return min(points_limit(alpha), *(points_ratio(alpha, d) for d in distances))


def certified(norm: str, alpha: float, degree: int, per_wave: int = 8, scales: int | None = None) -> float:
    """Return an upper bound of the ratio over all densities on the circle with waves up to the degree.

    Kernels b_k with sum_k (symbol of term k) (multiplier of b_k) = 1 at frequencies 1 to the degree write any function
    f as a sum of the terms' adjoints of b_k * f, so that <f, g> <= norm(g) max_k sup |b_k * f|, and for a function of
    Lipschitz constant 1 that is at most max_k W(b_k). The linear program chooses even kernels of point masses at
    multiples of a fixed spacing, of total mass 0, with the smallest max_k W(b_k); W(b_k) by a flow on half the circle.
    Only the terms of the norm down to a scale are used, the others have b_k = 0: no term of it is neglected.
    """
    frequencies = np.arange(1.0, degree + 1)
    scales = scales or 2 * int(np.ceil(np.log2(degree))) + 5
    matrix = symbols(norm, alpha, frequencies, TERMS)[: scales + 1]
    matrix = matrix[np.abs(matrix).max(axis=1) > 1e-12]
    half = per_wave * degree // 2
    places = np.pi * np.arange(half + 1) / half
    start, end = np.nonzero(~np.eye(half + 1, dtype=bool))
    cost = ground(alpha, places[1:])[np.abs(start - end) - 1]
    # A flow from x to y adds delta_x - delta_y to the even kernel.
    added = np.cos(frequencies[:, None] * places[start]) - np.cos(frequencies[:, None] * places[end])
    count = len(matrix)
    equal = np.hstack([row[:, None] * added for row in matrix] + [np.zeros((degree, 1))])
    each = sp.hstack([sp.kron(sp.eye(count), cost[None]), -np.ones((count, 1))])
    found = linprog(
        np.append(np.zeros(count * len(cost)), 1),
        A_ub=sp.csr_array(each),
        b_ub=np.zeros(count),
        A_eq=equal,
        b_eq=np.ones(degree),
        method="highs",
    )
    if not found.success:
        raise RuntimeError(found.message)
    return float(found.fun)


def snowflake_ratio(alpha: float, frequency: float) -> float:
    """Return W for the geodesic distance to the power 2 alpha over Eq. 9, for the density cos(j x)."""
    quarter = np.pi / (2 * frequency)
    value, _ = quad(lambda s: np.sin(frequency * s) * (2 * s) ** (2 * alpha), 0, quarter)
    norm = 4 * np.abs(symbols("increments", alpha, np.array([frequency]))).sum()
    return float(2 * frequency * value / norm)
