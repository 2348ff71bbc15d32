"""The supplement's space Lambda_alpha and the norm of its dual, by linear programs on small spaces.

||f|| = sup |f| + sup |f(x) - f(y)| / D_alpha(x, y), and ||T||* = sup of <f, T> over ||f|| <= 1. For T = mu - nu the
supplement says that ||T||* "is equal to the Wasserstein distance" for D_alpha. By Kantorovich and Rubinstein this holds
for the seminorm, without sup |f|. With it, for two points, <f, T> is largest for f = +-s with 2 s = b D and s + b = 1:
D / (1 + D / 2); and for all measures W / (1 + max D / 2) <= ||T||* <= W.

The spaces are the circle with exact heat (series.py), and a graph with the heat exp(-t (I - P) c), where c makes the
slowest wave fall by exp(-1) in the time 1, as on the circle.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.linalg import expm
from scipy.optimize import linprog

import heatmover as hm

sys.path.insert(0, str(Path(__file__).resolve().parent))
from exhibit import Exhibit, exhibit, parser, stage
from extremes import parts, transport
from series import Floats, Torus, ground_distances

ALPHAS = (0.1, 0.3, 0.45)
PAIRS = 30
# On a graph heat of the time 2^-30 has parted all points.
GRAPH_TERMS = 31


@dataclass(frozen=True)
class Small:
    """A space with the costs D_alpha and the matrices of the norms (1) and (2), all for one alpha."""

    name: str
    costs: Floats
    first: Floats
    second: Floats


def dual_norm(measure: Floats, costs: Floats, *, bounded: bool = True) -> float:
    """Return sup <f, T> over ||f|| <= 1, or (not bounded) over functions of Lipschitz constant 1, without sup |f|."""
    n = len(measure)
    x, y = np.nonzero(~np.eye(n, dtype=bool))
    rows = np.arange(len(x))
    # Unknowns: f, a >= |f|, b >= the Lipschitz constant; a + b <= 1.
    slope = sp.csr_array(
        (
            np.r_[np.ones(len(x)), -np.ones(len(x)), -costs[x, y]],
            (np.r_[rows, rows, rows], np.r_[x, y, np.full(len(x), n + 1)]),
        ),
        shape=(len(x), n + 2),
    )
    identity, height = sp.eye_array(n), -np.ones((n, 1))
    above, below = (sp.hstack([sign * identity, height, np.zeros((n, 1))]) for sign in (1, -1))
    total = np.zeros((1, n + 2))
    total[0, n:] = (1, 1) if bounded else (0, 1)
    found = linprog(
        -np.append(measure, [0, 0]),
        A_ub=sp.csr_array(sp.vstack([slope, above, below, total])),
        b_ub=np.append(np.zeros(len(x) + 2 * n), 1),
        bounds=[(None, None)] * n + [(0, None)] * 2,
        method="highs",
    )
    if not found.success:
        raise RuntimeError(found.message)
    return -float(found.fun)


def circle(n: int, alpha: float) -> Small:
    space = Torus(1, n)
    costs = ground_distances(space, space.heat).total(alpha)
    return Small(f"circle, {n} points", costs, parts(space, "increments", alpha), parts(space, "coarsest", alpha))


def graph_space(name: str, graph: hm.Graph, alpha: float) -> Small:
    """Return the same for heat on a graph: p_k(x, .) is row x of exp(-2^-k c (I - P)), whose adjoint moves measures."""
    affinity = graph.affinity.toarray()
    walk = affinity / affinity.sum(axis=1, keepdims=True)
    laplacian = np.eye(len(walk)) - walk
    laplacian /= np.sort(np.linalg.eigvals(laplacian).real)[1]
    heat = [expm(-(2.0**-k) * laplacian) for k in range(GRAPH_TERMS + 1)]
    weights = 2.0 ** (-alpha * np.arange(GRAPH_TERMS))
    # Levels have come to an end and repeat; the increments fall to zero, because a graph has a fastest wave.
    ends = np.append(weights[:-1], weights[-1] / (1 - 2.0**-alpha))
    costs = sum(
        weight * np.abs(power[:, None] - power[None]).sum(axis=2) for weight, power in zip(ends, heat, strict=False)
    )
    first = [heat[0].T, *(w * (b - a).T for w, a, b in zip(weights, heat, heat[1:], strict=False))]
    second = [heat[0].T, *(w * (a - heat[0]).T for w, a in zip(ends, heat, strict=False))]
    return Small(name, np.asarray(costs), np.vstack(first), np.vstack(second))


def spaces(alpha: float, quick: bool) -> list[Small]:
    n = 12 if quick else 24
    rng = np.random.default_rng(3)
    roll = hm.datasets.swiss_roll(4, points_per_measure=n // 4, random_state=0)
    points = roll.points
    line = hm.Graph.from_points(np.sort(rng.uniform(size=(n, 1)), axis=0), n_neighbors=4)
    return [
        circle(n // 2, alpha),
        circle(n, alpha),
        graph_space(f"path graph, {n} points", line, alpha),
        graph_space(f"swiss roll graph, {len(points)} points", hm.Graph.from_points(points, n_neighbors=6), alpha),
    ]


def measures(n: int, rng: np.random.Generator) -> list[tuple[Floats, bool]]:
    """Return differences of measures and whether each has two points only."""
    found = []
    for i in range(PAIRS):
        if i % 3 == 0:
            a, b = rng.choice(n, 2, replace=False)
            found.append((np.eye(n)[a] - np.eye(n)[b], True))
        else:
            weights = rng.dirichlet(np.full(n, 0.2 if i % 3 == 1 else 2.0), 2)
            found.append((weights[0] - weights[1], False))
    return found


def row(space: Small, alpha: float, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    kantorovich, ratios, points, ones, twos = [], [], [], [], []
    for measure, two in measures(len(space.costs), rng):
        exact, _ = transport(measure, space.costs)
        dual = dual_norm(measure, space.costs)
        kantorovich.append(abs(dual_norm(measure, space.costs, bounded=False) / exact - 1))
        ratios.append(dual / exact)
        ones.append(dual / np.abs(space.first @ measure).sum())
        twos.append(dual / np.abs(space.second @ measure).sum())
        if two:
            points.append(abs(dual / (exact / (1 + exact / 2)) - 1))

    def band(values: list[float]) -> str:
        return f"[{min(values):.2f}, {max(values):.2f}]"

    return [
        space.name,
        f"{alpha:g}",
        f"{max(kantorovich):.0e}",
        band(ratios),
        f"{1 / (1 + space.costs.max() / 2):.2f}",
        f"{max(points):.0e}",
        band(ones),
        band(twos),
    ]


def write(out: Exhibit) -> None:
    rows = [row(space, alpha, out.seed) for alpha in ALPHAS for space in spaces(alpha, out.quick)]
    out.table(
        [
            "space",
            "alpha",
            "without sup, error",
            "dual norm / W",
            "lower bound",
            "two points, error",
            "dual norm / norm (1)",
            "dual norm / norm (2)",
        ],
        rows,
        note=(
            f"The dual norm of Lambda_alpha for {PAIRS} differences of measures, by linear programs, compared with "
            'exact transport W for D_alpha and with the two norms of the supplement. "Without sup, error" is the '
            "largest relative difference between W and the same linear program without the term sup |f|: the two are "
            'equal. "Lower bound" is 1 / (1 + max D_alpha / 2). "Two points, error" is the largest relative difference '
            "between the dual norm of two points and D / (1 + D / 2)."
        ),
        packages=("numpy", "scipy", "POT"),
    )


def main() -> None:
    out = exhibit("dual_norm", parser(__doc__).parse_args())
    with stage("linear programs"):
        write(out)


if __name__ == "__main__":
    main()
