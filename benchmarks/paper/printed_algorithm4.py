"""Algorithm 4 composed of Algorithms 2 and 3 as the supplement prints them, in plain NumPy, against `from_paper`.

As printed, Algorithm 4 does not compute powers. Five corrections are made one after the other (CORRECTIONS); the first
one is needed for the products to be possible at all. Every row runs on the same graph with the same K, the same weights
of Eq. 8 (unless the printed ones are meant) and the six coarsest terms. The error of a density is the largest
difference to dense powers at the same centers, relative to the largest value of the dense density; the ranks are exact,
and the time of computing them is not counted.

Data: a swiss roll of 2,000 points, truth the exact EMD on the unrolled sheet; and the strip of
tests/embedding/test_paper.py with bumps of mass along it, truth the exact EMD along the strip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from exhibit import Exhibit, exhibit, parser, required, stage, timed

import heatmover as hm
from heatmover.statistics.metrics import precision_at_k, spearman

ALPHA = 0.49
N_SCALES = 6
# The supplement: RandID(M_{k-1}, R + 8, R, 5), and gamma = n / 10.
MORE_ROWS, FEWER_ROWS, GAMMA = 8, 5, 0.1

# What each row adds to the rows above it.
CORRECTIONS = {
    "as printed, restricted to the centers": "shape",
    "+ the weights of Eq. 8": "weights",
    "+ $C_k$ interpolates, and a restriction compares": "roles",
    "+ $C C^T$ in the square": "gram",
    "+ the skeleton of $M^{2^k}$, not of $M^{2^{k-1}}$": "square",
}


# ---------------------------------------------------------------- Algorithms 2 and 3


@dataclass(frozen=True)
class Decomposition:
    """Algorithm 2: ``A[:, order]`` is close to ``B @ C``, and ``B`` consists of the first k columns of ``A[:, order]``.

    The supplement prints ``C`` in the order of the pivots, but uses it in the order of the columns: ``in_order``.
    """

    B: np.ndarray
    C: np.ndarray
    order: np.ndarray

    @property
    def in_order(self) -> np.ndarray:
        found = np.empty_like(self.C)
        found[:, self.order] = self.C
        return found


def interpolative_decomposition(A: np.ndarray, k: int) -> Decomposition:
    """Algorithm 2 by a pivoted QR that stops after k columns, which is all that the algorithm uses."""
    left, order = np.array(A, dtype=float), np.arange(A.shape[1])
    Q, R = np.zeros((len(A), k)), np.zeros((k, A.shape[1]))
    for step in range(k):
        squares = np.einsum("ij,ij->j", left, left)
        squares[order[:step]] = -1
        place = step + int(np.argmax(squares[order[step:]]))
        order[[step, place]] = order[[place, step]]
        column = left[:, order[step]]
        # Subtraction leaves small multiples of earlier columns.
        column = column - Q[:, :step] @ (Q[:, :step].T @ column)
        length = np.linalg.norm(column)
        if length == 0:
            raise ValueError(f"expected a matrix of rank {k} or more, found {step}")
        Q[:, step] = column / length
        R[step] = Q[:, step] @ left
        left -= np.outer(Q[:, step], R[step])
    R = R[:, order]
    R11 = np.triu(R[:, :k])
    return Decomposition(Q @ R11, np.hstack([np.eye(k), np.linalg.solve(R11, R[:, k:])]), order)


@dataclass(frozen=True)
class RandomDecomposition:
    """Algorithm 3: A is close to B @ C; ``indices`` are those that the printed search finds, ``pivots`` those of W."""

    B: np.ndarray
    C: np.ndarray
    indices: np.ndarray
    pivots: np.ndarray


def rand_id(A: np.ndarray, j: int, k: int, l: int, rng: np.random.Generator) -> RandomDecomposition:  # noqa: E741
    """Algorithm 3; its last line, which assigns the embedding, is read as B <- [a_{i_1}, ..., a_{i_k}]."""
    W = np.asarray(rng.standard_normal((j, A.shape[0])) @ A)
    inner = interpolative_decomposition(W, k)
    G2 = rng.standard_normal((l, j))
    indices = search_columns(G2 @ inner.B, G2 @ W)
    chosen = A[:, indices]
    B = chosen.toarray() if hasattr(chosen, "toarray") else chosen
    return RandomDecomposition(np.asarray(B), inner.in_order, indices, inner.order[:k])


def search_columns(few: np.ndarray, many: np.ndarray) -> np.ndarray:
    """The printed search: for each column of B~_2 the column of W_2 that is nearest to it."""
    squares = np.square(many).sum(axis=0) - 2 * few.T @ many
    return np.argmin(squares, axis=1)


# ---------------------------------------------------------------- Algorithm 4


@dataclass
class Result:
    """Densities at 2^0, ..., 2^K steps and their differences, each at its centers."""

    densities: list[np.ndarray]
    centers: list[np.ndarray]
    differences: list[np.ndarray] = field(default_factory=list)
    missed: int = 0

    def embedding(self, weight: Callable[[int, int], float], alpha: float = ALPHA) -> np.ndarray:
        """Return the six coarsest terms ``(n_measures, n_features)``; ``weight(K, k)`` is the exponent of b_{k-1}."""
        K = len(self.differences)
        parts = [2.0 ** (weight(K, k) * alpha) * self.differences[k - 1] for k in range(1, K + 1)]
        return np.vstack([*parts, self.densities[-1]][-N_SCALES:]).T


def printed_weight(K: int, k: int) -> float:
    return K - k - 1


def weight_of_equation_8(K: int, k: int) -> float:
    """b_{k-1} is the difference from 2^{k-1} to 2^k, whose exponent in Eq. 8 is -(K - (k - 1) - 1)."""
    return -(K - k)


def normalized(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return M and the diagonal of D: the first lines of Algorithms 1 and 4."""
    Q = kernel.sum(axis=0)
    norm = kernel / Q[:, None] / Q
    D = norm.sum(axis=0)
    return norm / np.sqrt(D)[:, None] / np.sqrt(D), D


def ranks_of(M: np.ndarray, K: int, delta: float) -> list[int]:
    """R_delta(M^(2^k)) for k = 0, ..., K."""
    values = np.abs(np.linalg.eigvalsh(M))
    return [int(np.count_nonzero((values / values.max()) ** 2.0**k >= delta)) for k in range(K + 1)]


def algorithm_4(
    M: np.ndarray,
    D: np.ndarray,
    mu: np.ndarray,
    ranks: list[int],
    rng: np.random.Generator,
    corrections: set[str],
    gamma: float = GAMMA,
) -> Result:
    """Algorithm 4 with some corrections; mu is n x m. M_0, which the supplement does not define, is M."""
    roles, gram, square = ("roles" in corrections), ("gram" in corrections), ("square" in corrections)
    n, root = len(M), np.sqrt(D)[:, None]
    power, G, centers = M, None, np.arange(n)  # G is the product C C' of all C so far; None: the identity
    inner = root * mu if roles else mu
    result = Result([(M @ (root * mu)) / root], [centers])
    for rank in ranks[1:]:
        squared = power @ power.T if G is None or not gram else power @ G @ power.T
        before, chosen = result.densities[-1], np.arange(len(centers))
        C = None
        if rank < gamma * n and rank < len(centers):
            found = rand_id(squared if square else power, rank + MORE_ROWS, rank, FEWER_ROWS, rng)
            C, chosen = found.C, found.indices
            result.missed += int(np.count_nonzero(found.indices != found.pivots))
            centers, root, inner = centers[chosen], root[chosen], C @ inner
            G = C @ C.T if G is None else C @ G @ C.T
            power = squared[np.ix_(chosen, chosen)] if gram else C @ squared @ C.T
        else:
            power = squared
        density = power @ (inner if roles else root * inner) / root
        result.differences.append(density - (before[chosen] if roles or C is None else C @ before))
        result.densities.append(density)
        result.centers.append(centers)
    return result


# ---------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Case:
    name: str
    graph: hm.Graph
    measures: np.ndarray  # (n_measures, n_points)
    truth: np.ndarray


@dataclass(frozen=True)
class Score:
    errors: list[float]  # of the density, per scale from 2^1 on
    features: int
    centers: int  # of the coarsest scale
    precision: float
    rank: float
    seconds: float
    missed: int


def swiss_roll(seed: int, quick: bool) -> Case:
    data = hm.datasets.swiss_roll(20 if quick else 50, points_per_measure=30 if quick else 40, random_state=seed)
    masses = data.measures().masses.toarray()
    return Case("swiss roll", hm.Graph.from_points(data.points), masses, data.exact_emd())


def strip(seed: int, quick: bool) -> Case:
    """The strip of tests/embedding/test_paper.py, with bumps of mass of several widths along it."""
    n_points, n_measures = (300, 15) if quick else (600, 40)
    points = np.random.default_rng(3 + seed).normal(size=(n_points, 2)) * 0.05
    points[:, 0] = 8 * np.random.default_rng(4 + seed).random(n_points)
    kernel = np.exp(-np.square(points[:, None] - points[None]).sum(axis=2) / 0.05)
    rng = np.random.default_rng(5 + seed)
    places, widths = 8 * rng.random(n_measures), rng.uniform(0.2, 1.0, n_measures)
    masses = np.exp(-np.square((points[:, 0] - places[:, None]) / widths[:, None])) * rng.random((n_measures, n_points))
    masses /= masses.sum(axis=1, keepdims=True)
    order = np.argsort(points[:, 0])
    below, gaps = np.cumsum(masses[:, order], axis=1)[:, :-1], np.diff(points[order, 0])
    truth = np.abs(below[:, None] - below[None]) @ gaps
    return Case("strip", hm.Graph.from_affinity(kernel), masses, truth)


def dense_densities(M: np.ndarray, D: np.ndarray, mu: np.ndarray, K: int) -> list[np.ndarray]:
    root, power, found = np.sqrt(D)[:, None], M, []
    for _ in range(K + 1):
        found.append(power @ (root * mu) / root)
        power = power @ power
    return found


def dense_at(densities: list[np.ndarray], centers: list[np.ndarray]) -> Result:
    """Exact powers at the centers of a result."""
    differences = [densities[k][part] - densities[k - 1][part] for k, part in enumerate(centers[1:], 1)]
    return Result([density[part] for density, part in zip(densities, centers, strict=True)], centers, differences)


def errors_of(result: Result, densities: list[np.ndarray]) -> list[float]:
    exact = dense_at(densities, result.centers).densities
    pairs = zip(result.densities, exact, densities, strict=True)
    return [float(np.abs(a - b).max() / np.abs(whole).max()) for a, b, whole in pairs][1:]


def score(case: Case, embedding: np.ndarray, errors: list[float], centers: int, seconds: float, missed: int) -> Score:
    distances = hm.pairwise_distances(embedding)
    found = precision_at_k(case.truth, distances), spearman(case.truth, distances)
    return Score(errors, embedding.shape[1], centers, *found, seconds, missed)


def ours(case: Case, delta: float, K: int | str, densities: list[np.ndarray]) -> tuple[Score, hm.DiffusionEMD]:
    """`from_paper(algorithm="interpolative")` and its densities at all scales of its skeletons."""

    def fit() -> tuple[hm.DiffusionEMD, np.ndarray]:
        model = hm.DiffusionEMD.from_paper(case.graph, algorithm="interpolative", max_scale=K, compress=delta)
        embedding = model.fit_transform(case.measures)
        return model, embedding

    (model, embedding), seconds = timed(fit, repeats=3, long=5)
    if not densities:
        return score(case, embedding, [], 0, seconds, 0), model
    # All K + 1 terms give the densities of all scales: from the coarsest one back.
    whole = hm.DiffusionEMD.from_paper(
        case.graph, algorithm="interpolative", max_scale=K, compress=delta, n_scales=None
    )
    whole.set_params(norm="levels", alpha=ALPHA).fit(case.measures)
    layout = whole.prepared_.layout
    blocks = np.split(whole.transform(case.measures).T, layout.edges[1:-1])
    weights = np.array([2.0 ** (-ALPHA * (int(K) - k)) for k in layout.scales])
    centers = [whole.graph_.first[part.centers] for part in layout.regions]
    result = Result([block / weight for block, weight in zip(blocks, weights, strict=True)], centers)
    return score(case, embedding, errors_of(result, densities), len(centers[-1]), seconds, 0), model


def study(case: Case, delta: float, seed: int) -> tuple[dict[str, Score], list[int]]:
    M, D = normalized(case.graph.affinity.toarray())
    _, model = ours(case, delta, "auto", [])
    K = int(model.max_scale_)
    mu = case.measures.T
    densities, ranks = dense_densities(M, D, mu, K), ranks_of(M, K, delta)
    found: dict[str, Score] = {}
    corrections: set[str] = set()
    for name, correction in CORRECTIONS.items():
        corrections.add(correction)
        compute = partial(algorithm_4, M, D, mu, ranks, corrections=set(corrections))
        result, seconds = timed(lambda compute=compute: compute(rng=np.random.default_rng(seed)), repeats=3, long=1)
        weight = weight_of_equation_8 if "weights" in corrections else printed_weight
        errors, last = errors_of(result, densities), len(result.centers[-1])
        found[name] = score(case, result.embedding(weight), errors, last, seconds, result.missed)
    exact = dense_at(densities, result.centers)
    embedding = exact.embedding(weight_of_equation_8)
    found["dense powers at these centers"] = score(case, embedding, [], last, np.nan, 0)
    found['`from_paper(algorithm="interpolative")`'] = ours(case, delta, K, densities)[0]
    model = hm.DiffusionEMD.from_paper(case.graph, max_scale=K)
    embedding, seconds = timed(lambda: model.fit_transform(case.measures), repeats=3, long=1)
    found["`from_paper`, Algorithm 1 at all points"] = score(case, embedding, [], len(M), seconds, 0)
    return found, ranks


def run(show: Exhibit) -> None:
    cases = {"swiss roll": (swiss_roll, 1e-6), "swiss roll, larger delta": (swiss_roll, 1e-3), "strip": (strip, 1e-6)}
    seeds = range(show.seed, show.seed + (1 if show.quick else 3))
    rows, by_scale = [], []
    for name, (make, delta) in cases.items():
        scores: dict[str, list[Score]] = {}
        for seed in seeds:
            with stage(f"{name}, draw {seed}"):
                found, ranks = study(make(seed, show.quick), delta, seed)
            for row, one in found.items():
                scores.setdefault(row, []).append(one)
        for row, several in scores.items():
            errors = [max(one.errors) for one in several if one.errors]
            times = np.mean([one.seconds for one in several])
            rows.append(
                [
                    name.split(",")[0],
                    f"{delta:.0e}",
                    row,
                    f"{np.median(errors):.1e}" if errors else "",
                    f"{np.mean([one.precision for one in several]):.3f}",
                    f"{np.mean([one.rank for one in several]):.3f}",
                    f"{times:.2f}" if np.isfinite(times) else "",
                    f"{np.mean([one.features for one in several]):,.0f}",
                    f"{np.mean([one.centers for one in several]):,.0f}",
                ]
            )
        # The last draw, scale by scale.
        for k in range(1, len(ranks)):
            kept = [found[row].errors for row in found if "weights" not in row and found[row].errors]
            by_scale.append([name.split(",")[0], f"{delta:.0e}", k, ranks[k], *(f"{one[k - 1]:.0e}" for one in kept)])
        print(name, "columns that the search missed:", {row: found[row].missed for row in found})
    points = "600 points" if show.quick else "2,000 points"
    note = (
        f"Means over {len(seeds)} draws, and the median for the error. Swiss roll: {points}. The error is the largest "
        "error of a density at any scale and any center, relative to the largest density of the scale. Each row with + "
        "adds one correction to the rows above it. The six coarsest terms are compared. Features: numbers per measure. "
        "Centers: of the coarsest scale. CPU seconds: from the graph to the embedding; for the printed algorithm, from "
        "M and the ranks, which are computed from all eigenvalues."
    )
    heads = ["data", "delta", "algorithm", "error", "P@10", "Spearman", "CPU seconds", "features", "centers"]
    show.table(heads, rows, note=note)
    heads = ["data", "delta", "k", "rank", "printed", "roles", "C C'", "skeleton of the square", "heatmover"]
    note = (
        "Errors of the densities after $2^k$ steps on the last draw; the columns are the rows of the other table, "
        "without the correction of the weights, which does not change densities."
    )
    show.table(heads, by_scale, note=note, suffix="_scales")


if __name__ == "__main__":
    chosen = parser(__doc__).parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    run(exhibit("printed_algorithm4", chosen))
