"""How much the rule for the largest scale loses against the best scale in hindsight, and what other rules would lose.

Eight shapes with known truth, their clouds 0.4 times as broad as by default, as by default and 2.5 times as broad; and
as broad as by default, but 24 clouds of 60 points. The loss of a rule is what the best single K reaches, of P@10 and of
Spearman each, less what the rule reaches. All rules see the same data and no truth:

half mixed      the present one: the heat of two points, drawn from the measures, overlaps by half
measures ...    the mean total variation between the diffused measures is at most 0.5, or 0.3
contrast        the distances between measures vary most, relative to their mean
chains          the distances agree best (Spearman) with their own shortest chains along eight nearest measures
breadth         the last scale at which the heat of two points of one measure differs by 0.12 (total variation): after
                it heat has outgrown the measures
breadth, below  the finer of it and the present one
breadth, one    the same, but at most one scale below the present one
paths           the distances agree best with lower bounds of the exact EMD along shortest paths: the largest difference
                that 32 functions, the distance from a point drawn, have between two measures (Kantorovich); at most
                three scales below the present rule and two above
paths, if clear the same, unless it gains less than 0.03 over the present rule
breadth, paths  where breadth is finer than the present rule, paths choose: of the scales between the two, or, if they
                are three scales apart, of all down to seven below. Long edges count more (lengths to the power 1.25)
two paths       where breadth is finer, the scale between at which agreement gains most with paths of lengths and of
                squared lengths both
weights         the present K, but each scale weighs the root of how far points of one measure have mixed there
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from provenance import PACKAGES, add_record, write_table
from rivals import required
from scipy.sparse.csgraph import dijkstra, shortest_path
from scipy.spatial.distance import cdist
from shapes import SHAPES

import heatmover as hm
from heatmover import datasets, metrics

# Spread and, if not by default, number of measures and points of each.
KINDS: dict[str, tuple[float, dict[str, int]]] = {
    "narrow": (0.4, {}),
    "as by default": (1.0, {}),
    "broad": (2.5, {}),
    "small": (1.0, {"n_measures": 24, "points_per_measure": 60}),
}
AVERAGED = ("narrow", "as by default", "broad")
ABOVE = 4
DRAWN = 32
CLEAR = 0.03
OUTGROWN = 0.12
POWERS = (1.0, 1.25, 2.0)
NEIGHBORS = 8


@dataclass(frozen=True)
class Case:
    """What rules may look at, per scale k: levels and distances between measures for K = k, breadth, agreement."""

    own: int
    levels: np.ndarray  # (n_scales, n_measures, n_measures), total variation
    distances: np.ndarray  # (n_scales, n_measures, n_measures)
    within: np.ndarray  # (n_scales,), total variation between points of one measure
    paths: dict[float, np.ndarray]  # by power of the lengths: (n_scales,)
    truth: np.ndarray  # (n_measures, n_measures), for the judge

    @property
    def outgrown(self) -> int:
        return max(int(np.append(0, np.flatnonzero(self.within >= OUTGROWN))[-1]), 1)

    def score(self, scale_or_weights: int | np.ndarray) -> np.ndarray:
        if isinstance(scale_or_weights, np.ndarray):
            judged = np.tensordot(scale_or_weights, self.levels[: len(scale_or_weights)], 1)
        else:
            judged = self.distances[max(scale_or_weights, 1)]
        return np.array([metrics.precision_at_k(self.truth, judged), metrics.spearman(self.truth, judged)])


def pairs(matrices: np.ndarray) -> np.ndarray:
    upper = np.triu_indices(matrices.shape[-1], 1)
    return matrices[:, upper[0], upper[1]]


def first_under(values: np.ndarray, threshold: float) -> int:
    return int(np.append(np.flatnonzero(values <= threshold), len(values) - 1)[0])


def best_of(scales: Iterable[int], agreement: np.ndarray) -> int:
    return max(sorted(scales, reverse=True), key=lambda scale: agreement[scale])


def near(case: Case, below: int, above: int) -> range:
    return range(max(case.own - below, 1), min(case.own + above, len(case.within) - 1) + 1)


def by_contrast(case: Case) -> int:
    distances = pairs(case.distances)
    return int((distances.std(axis=1) / distances.mean(axis=1)).argmax())


def by_chains(case: Case) -> int:
    agreement = np.zeros(len(case.distances))
    for scale in near(case, 6, 4):
        agreement[scale] = metrics.spearman(chains(case.distances[scale]), case.distances[scale])
    return best_of(near(case, 6, 4), agreement)


def chains(distances: np.ndarray) -> np.ndarray:
    """Return the lengths of the shortest chains through nearest measures."""
    ranks = np.argsort(np.argsort(distances, axis=1), axis=1)
    joined = (ranks <= NEIGHBORS) | (ranks.T <= NEIGHBORS)
    lengths = shortest_path(np.where(joined, distances, 0), directed=False)
    lengths[~np.isfinite(lengths)] = 2 * lengths[np.isfinite(lengths)].max()
    return np.asarray(lengths)


def by_paths(case: Case, clear: float = 0.0) -> int:
    best = best_of(near(case, 3, 2), case.paths[1.0])
    return best if case.paths[1.0][best] - case.paths[1.0][case.own] > clear else case.own


def by_breadth_and_paths(case: Case) -> int:
    if case.outgrown >= case.own:
        return case.own
    far = case.own - case.outgrown >= 3
    return best_of(near(case, 7, 0) if far else range(case.outgrown, case.own + 1), case.paths[1.25])


def by_two_paths(case: Case) -> int:
    gains = [case.paths[power] - case.paths[power][case.own] for power in (1.0, 2.0)]
    return best_of(range(min(case.outgrown, case.own), case.own + 1), np.minimum(*gains))


def by_weights(case: Case) -> np.ndarray:
    scales = np.arange(case.own + 1)
    return np.asarray(2.0 ** ((scales - case.own) / 2) * np.sqrt(np.maximum(1 - case.within[: case.own + 1], 0)))


RULES: dict[str, Callable[[Case], int | np.ndarray]] = {
    "half mixed": lambda case: case.own,
    "measures under 0.5": lambda case: first_under(pairs(case.levels).mean(axis=1), 0.5),
    "measures under 0.3": lambda case: first_under(pairs(case.levels).mean(axis=1), 0.3),
    "contrast": by_contrast,
    "chains": by_chains,
    "breadth": lambda case: case.outgrown,
    "breadth, below": lambda case: min(case.outgrown, case.own),
    "breadth, one": lambda case: max(min(case.outgrown, case.own), case.own - 1),
    "paths": by_paths,
    "paths, if clear": lambda case: by_paths(case, CLEAR),
    "breadth, paths": by_breadth_and_paths,
    "two paths": by_two_paths,
    "weights": by_weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (2)")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES, help="which shapes (all)")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    warnings.simplefilter("ignore", hm.GraphWarning)
    losses: dict[str, dict[str, list[np.ndarray]]] = {rule: {name: [] for name in KINDS} for rule in RULES}
    for kind in KINDS:
        for shape in args.shapes:
            for seed in range(args.seeds):
                case = look(shape, kind, seed)
                best = np.max([case.score(scale) for scale in range(1, len(case.distances))], axis=0)
                choices = {rule: choose(case) for rule, choose in RULES.items()}
                for rule, choice in choices.items():
                    losses[rule][kind].append(best - case.score(choice))
                print(shape, kind, seed, {rule: k for rule, k in choices.items() if isinstance(k, int)}, flush=True)
    rows = [row(rule, found, losses["half mixed"]) for rule, found in losses.items()]
    heads = ["rule", *(f"{name}: {score}" for name in (*KINDS, "all but small") for score in ("P@10", "Spearman"))]
    heads += ["worst against half mixed, default: P@10", "Spearman", "small: P@10", "Spearman"]
    note = (
        f"Mean loss compared with the best K in hindsight, over {len(args.shapes)} shapes and {args.seeds} seeds. In "
        '"narrow" and "broad" data, the default spread is multiplied by 0.4 and 2.5. "Small" has 24 measures of 60 '
        "points with the default spread. The last four columns show the data set, with its default spread, on which "
        "the rule loses most compared with the present rule (0: none)."
    )
    print()
    write_table("scale_rule", heads, rows, note, folder=args.record, packages=(*PACKAGES, "POT"))


def look(shape: str, kind: str, seed: int) -> Case:
    make, (factor, sizes) = getattr(datasets, shape), KINDS[kind]
    spread = factor * inspect.signature(make).parameters["spread"].default
    data = make(spread=spread, random_state=seed, **sizes)
    graph, measures = hm.Graph.from_points(data.points), data.measures()
    own = hm.DiffusionEMD(graph, random_state=seed).fit(measures).max_scale_
    top = own + ABOVE
    wide = hm.DiffusionEMD(graph, max_scale=top, weights=np.ones(top + 1), compress=False).fit(measures)
    levels = total_variations(wide, measures.masses)
    distances = np.empty_like(levels)
    distances[0] = levels[0]
    for scale in range(1, top + 1):
        distances[scale] = distances[scale - 1] / np.sqrt(2) + levels[scale]
    couples = total_variations(wide, same_measure(data.labels, seed))
    within = np.array([np.mean(np.diagonal(each, 1)[::2]) for each in couples])
    return Case(
        own, levels, distances, within, agreement_with_paths(graph, data.points, measures, distances, seed),
        data.exact_emd(),
    )  # fmt: skip


def total_variations(model: hm.DiffusionEMD, rows: object) -> np.ndarray:
    """Return, per scale, the total variation between all rows: ``(n_scales, n_rows, n_rows)``."""
    blocks = np.split(model.transform(rows), model.n_scales_, axis=1)
    return np.array([hm.pairwise_distances(np.ascontiguousarray(block)) for block in blocks]) / 2


def same_measure(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return indicators of points, two by two from one measure: ``(2 * n_couples, n_points)``."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(np.unique(labels))[:DRAWN]
    points = [rng.choice(np.flatnonzero(labels == label), 2, replace=False) for label in chosen]
    return np.eye(labels.size)[np.concatenate(points)]


def agreement_with_paths(
    graph: hm.Graph, points: np.ndarray, measures: hm.Measures, distances: np.ndarray, seed: int
) -> dict[float, np.ndarray]:
    """Return, by power of the lengths, how distances for every K agree with lower bounds along shortest paths."""
    edges, nodes = graph.node_affinity.tocoo(), points[graph.first]
    lengths = np.maximum(np.linalg.norm(nodes[edges.row] - nodes[edges.col], axis=1), np.finfo(float).tiny)
    lengths /= np.median(lengths)
    rows = graph.gather(measures.masses)
    mean = np.asarray(rows.mean(axis=0)).ravel()
    drawn = np.random.default_rng(seed).choice(mean.size, DRAWN, replace=False, p=mean / mean.sum())
    found = {}
    for power in POWERS:
        network = sp.csr_array((np.maximum(lengths**power, 1e-12), (edges.row, edges.col)), shape=edges.shape)
        paths = dijkstra(network, indices=drawn)
        paths[~np.isfinite(paths)] = 3 * paths[np.isfinite(paths)].max()
        integrals = rows @ paths.T
        bounds = np.asarray(cdist(integrals, integrals, "chebyshev"))
        found[power] = np.array([metrics.spearman(bounds, each) for each in distances])
    return found


def row(rule: str, found: dict[str, list[np.ndarray]], present: dict[str, list[np.ndarray]]) -> list[str]:
    means = [np.mean(found[name], axis=0) for name in KINDS]
    means.append(np.mean([each for name in AVERAGED for each in found[name]], axis=0))
    for name in ("as by default", "small"):
        more = np.array(found[name]) - np.array(present[name])
        means.append(np.maximum(more.max(axis=0), 0))
    return [rule, *(f"{value:.{n}f}" for pair in means for value, n in zip(pair, (3, 4), strict=True))]


if __name__ == "__main__":
    main()
