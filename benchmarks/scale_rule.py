"""How much the rule for the largest scale loses against the best scale in hindsight, and what other rules would lose.

Eight shapes with known truth, their clouds 0.4 times as broad as by default, as by default and 2.5 times as broad. The
loss of a rule is what the best single K reaches, of P@10 and of Spearman each, less what the rule's K reaches. All
rules see the same data and no truth:

half mixed      the present one: the heat of two points, drawn from the measures, overlaps by half
measures ...    the mean total variation between the diffused measures is at most 0.5, or 0.3
contrast        the distances between measures vary most, relative to their mean
paths           the distances agree best (Spearman) with lower bounds of the exact EMD along shortest paths: the largest
                difference that 32 functions, the distance from a point drawn, have between two measures (Kantorovich);
                at most three scales below the present rule and two above
paths, if clear the same, unless it gains less than 0.03 over the present rule
"""

from __future__ import annotations

import argparse
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from provenance import PACKAGES, add_record, write_table
from rivals import required
from scipy.sparse.csgraph import dijkstra
from scipy.spatial.distance import cdist
from shapes import SHAPES

import heatmover as hm
from heatmover import datasets, metrics

BREADTHS = {"narrow": 0.4, "as by default": 1.0, "broad": 2.5}
ABOVE = 4
DRAWN = 32
CLEAR = 0.03


@dataclass(frozen=True)
class Case:
    """What rules may look at, per scale k: distances between measures for K = k, levels, agreement with paths."""

    own: int
    distances: np.ndarray  # (n_scales, n_pairs)
    levels: np.ndarray  # (n_scales, n_pairs), total variation
    paths: np.ndarray  # (n_scales,)
    precision: np.ndarray  # (n_scales,), the truth, for the judge
    spearman: np.ndarray


def first_under(values: np.ndarray, threshold: float) -> int:
    return int(np.append(np.flatnonzero(values <= threshold), len(values) - 1)[0])


def by_paths(case: Case, clear: float = 0.0) -> int:
    near = np.arange(max(case.own - 3, 1), min(case.own + 2, len(case.paths) - 1) + 1)
    best = int(near[case.paths[near].argmax()])
    return best if case.paths[best] - case.paths[case.own] > clear else case.own


RULES: dict[str, Callable[[Case], int]] = {
    "half mixed": lambda case: case.own,
    "measures under 0.5": lambda case: first_under(case.levels.mean(axis=1), 0.5),
    "measures under 0.3": lambda case: first_under(case.levels.mean(axis=1), 0.3),
    "contrast": lambda case: int((case.distances.std(axis=1) / case.distances.mean(axis=1)).argmax()),
    "paths": by_paths,
    "paths, if clear": lambda case: by_paths(case, CLEAR),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (2)")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES, help="which shapes (all)")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "accuracy is judged by its exact EMD")
    warnings.simplefilter("ignore", hm.GraphWarning)
    losses: dict[str, dict[str, list[np.ndarray]]] = {rule: {name: [] for name in BREADTHS} for rule in RULES}
    for breadth, factor in BREADTHS.items():
        for shape in args.shapes:
            for seed in range(args.seeds):
                case = look(shape, factor, seed)
                for rule, choose in RULES.items():
                    losses[rule][breadth].append(loss(case, max(choose(case), 1)))
                print(shape, breadth, seed, {rule: choose(case) for rule, choose in RULES.items()}, flush=True)
    rows = [row(rule, found, losses["half mixed"]) for rule, found in losses.items()]
    heads = ["rule", *(f"{name}: {score}" for name in (*BREADTHS, "all") for score in ("P@10", "Spearman"))]
    heads += ["default breadth, worst against half mixed: P@10", "Spearman"]
    note = (
        f"Mean loss against the best K in hindsight, {len(args.shapes)} shapes, {args.seeds} seeds; narrow and broad: "
        "spread times 0.4 and 2.5. The last two columns: the data set with its default spread on which the rule "
        "loses most against the present one (0: none)."
    )
    print()
    write_table("scale_rule", heads, rows, note, folder=args.record, packages=(*PACKAGES, "POT"))


def look(shape: str, factor: float, seed: int) -> Case:
    make = getattr(datasets, shape)
    spread = factor * inspect.signature(make).parameters["spread"].default
    data = make(spread=spread, random_state=seed)
    graph, measures = hm.Graph.from_points(data.points), data.measures()
    own = hm.DiffusionEMD(graph, random_state=seed).fit(measures).max_scale_
    top = own + ABOVE
    wide = hm.DiffusionEMD(graph, max_scale=top, weights=np.ones(top + 1), compress=False)
    embedding = wide.fit_transform(measures)
    levels = [hm.pairwise_distances(np.ascontiguousarray(part)) for part in np.split(embedding, top + 1, axis=1)]
    totals, total = [], np.zeros(levels[0].shape)
    for level in levels:
        total = total / np.sqrt(2) + level
        totals.append(total)
    bounds, truth = path_bounds(graph, data.points, measures, seed), data.exact_emd()
    pairs = np.triu_indices(len(truth), 1)
    return Case(
        own,
        np.array([each[pairs] for each in totals]),
        np.array([each[pairs] for each in levels]) / 2,
        *(np.array([metrics.spearman(other, each) for each in totals]) for other in (bounds,)),
        np.array([metrics.precision_at_k(truth, each) for each in totals]),
        np.array([metrics.spearman(truth, each) for each in totals]),
    )


def path_bounds(graph: hm.Graph, points: np.ndarray, measures: hm.Measures, seed: int) -> np.ndarray:
    """Return lower bounds of the EMD along shortest paths, ``(n_measures, n_measures)``."""
    edges, nodes = graph.node_affinity.tocoo(), points[graph.first]
    lengths = np.maximum(np.linalg.norm(nodes[edges.row] - nodes[edges.col], axis=1), np.finfo(float).tiny)
    rows = graph.gather(measures.masses)
    mean = np.asarray(rows.mean(axis=0)).ravel()
    drawn = np.random.default_rng(seed).choice(mean.size, DRAWN, replace=False, p=mean / mean.sum())
    network = sp.csr_array((lengths, (edges.row, edges.col)), shape=edges.shape)
    paths = dijkstra(network, indices=drawn)
    paths[~np.isfinite(paths)] = 3 * paths[np.isfinite(paths)].max()
    integrals = rows @ paths.T
    return np.asarray(cdist(integrals, integrals, "chebyshev"))


def loss(case: Case, scale: int) -> np.ndarray:
    return np.array([case.precision[1:].max(), case.spearman[1:].max()]) - [
        case.precision[scale],
        case.spearman[scale],
    ]


def row(rule: str, found: dict[str, list[np.ndarray]], present: dict[str, list[np.ndarray]]) -> list[str]:
    means = [np.mean(found[name], axis=0) for name in BREADTHS]
    means.append(np.mean([each for name in BREADTHS for each in found[name]], axis=0))
    more = np.array(found["as by default"]) - np.array(present["as by default"])
    worst = np.maximum(more.max(axis=0), 0)
    return [rule, *(f"{value:.{n}f}" for pair in (*means, worst) for value, n in zip(pair, (3, 4), strict=True))]


if __name__ == "__main__":
    main()
