"""Distances in real units: errors of `heatmover.calibrate`, on pairs that it has not seen.

Eight shapes whose geodesic distances are known (the true costs are the ground), and with --data FOLDER two cohorts
(Euclidean): melanoma_sadefeldman48.npz and kidney_igan_glomeruli634.npz, the second standardised. Everything but the
pairs is a default. At most 200 samples of a cohort are judged, all pairs of them. --paths also calibrates the shapes by
the shortest paths of their graph, which is what one has where the true costs are not known.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from provenance import PACKAGES, add_record, write_table
from rivals import required
from shapes import SHAPES

import heatmover as hm
from heatmover import datasets, metrics
from heatmover.transport.baselines import exact_emd

JUDGED = 200
COHORTS = {"melanoma": ("melanoma_sadefeldman48.npz", False), "kidney": ("kidney_igan_glomeruli634.npz", True)}
HEADS = ["data", "median error, %", "90% within, %", "estimated error, %", "without the curve, %"]
HEADS += ["Spearman", "uncalibrated", "best K", "P@10", "uncalibrated P@10", "best K P@10", "seconds"]


@dataclass(frozen=True)
class Problem:
    """Measures on points, the ground to calibrate by, and the truth ``(n_judged, n_judged)`` of some of them."""

    points: np.ndarray
    measures: hm.Measures
    ground: object
    judged: np.ndarray
    truth: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (3)")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, choices=SHAPES, help="which shapes (all)")
    parser.add_argument("--data", type=Path, help="folder with the two cohorts (without: shapes only)")
    parser.add_argument("--paths", action="store_true", help="shapes by shortest paths along the graph as well, seed 0")
    add_record(parser)
    args = parser.parse_args()
    required("ot", "POT", "pairs are solved by it")
    warnings.simplefilter("ignore", hm.GraphWarning)
    rows = []

    def show(name: str, figures: list[list[float]]) -> None:
        rows.append([name, *_cells(np.array(figures).mean(axis=0))])
        print(*rows[-1], sep="  ", flush=True)

    for shape in args.shapes:
        name = shape.replace("_", " ")
        show(name, [judge(of_shape(shape, seed), seed) for seed in range(args.seeds)])
        if args.paths:
            show(f"{name}, paths", [judge(of_shape(shape, 0, ground="geodesic"), 0)])
    for name, (file, standardize) in COHORTS.items() if args.data else ():
        problem = of_cohort(args.data / file, standardize=standardize)
        show(name, [judge(problem, seed) for seed in range(args.seeds)])
    note = (
        f"64 pairs were solved exactly. Values are means over {args.seeds} seeds (of the shapes, or of the pairs in a "
        'cohort). Errors are measured on pairs that were not used for the calibration; "estimated error" is the error '
        'that `calibrate` reports. "Best K" is the uncalibrated model with the best largest scale K in hindsight, '
        "chosen separately for Spearman and for P@10. Seconds are the times of `calibrate` on a busy machine, with "
        "all cores."
    )
    print()
    write_table("calibration", HEADS, rows, note, folder=args.record, packages=(*PACKAGES, "POT"))


def of_shape(shape: str, seed: int, ground: object = None) -> Problem:
    data = getattr(datasets, shape)(random_state=seed)
    everything = np.arange(len(data.points))
    costs = data.geodesic(everything, everything) if ground is None else ground
    truth = data.exact_emd()
    return Problem(data.points, data.measures(), costs, np.arange(len(truth)), truth)


def of_cohort(path: Path, *, standardize: bool) -> Problem:
    with np.load(path, allow_pickle=False) as file:
        points, labels = file["X"].astype(np.float64), file["sample"]
    if standardize:
        points = (points - points.mean(axis=0)) / points.std(axis=0)
    measures = hm.measures_from_labels(labels)
    judged = np.sort(np.random.default_rng(0).permutation(len(measures))[:JUDGED])
    return Problem(points, measures, "euclidean", judged, exact_emd(points, measures.masses[judged]))


def judge(problem: Problem, seed: int) -> list[float]:
    model = hm.DiffusionEMD(hm.Graph.from_points(problem.points), random_state=seed)
    before = hm.pairwise_distances(model.fit_transform(problem.measures)[problem.judged])
    start = time.perf_counter()
    found = hm.calibrate(model, problem.measures, problem.points, ground=problem.ground, random_state=seed)
    seconds = time.perf_counter() - start
    linear = hm.pairwise_distances(found.model.transform(problem.measures)[problem.judged])
    distances, truth = found.distances(linear), problem.truth
    unseen = np.triu(truth > 0, 1) & ~_used(found.pairs, problem.judged)
    errors = np.abs(distances[unseen] / truth[unseen] - 1)
    hindsight = np.max([_scores(truth, d) for d in _every_scale(model, problem)], axis=0)
    order, order_before = _scores(truth, distances), _scores(truth, before)
    return [
        *(100 * np.median(errors), 100 * np.quantile(errors, 0.9), 100 * found.median_error),
        100 * np.median(np.abs(linear[unseen] / truth[unseen] - 1)),
        *(order[0], order_before[0], hindsight[0], order[1], order_before[1], hindsight[1], seconds),
    ]


def _scores(truth: np.ndarray, distances: np.ndarray) -> tuple[float, float]:
    return metrics.spearman(truth, distances), metrics.precision_at_k(truth, distances)


def _used(pairs: np.ndarray, judged: np.ndarray) -> np.ndarray:
    place = np.full(pairs.max() + 1 + judged.max(), -1)
    place[judged] = np.arange(judged.size)
    inside = place[pairs][(place[pairs] >= 0).all(axis=1)]
    used = np.zeros((judged.size, judged.size), dtype=bool)
    used[inside.min(axis=1), inside.max(axis=1)] = True
    return used


def _every_scale(model: hm.DiffusionEMD, problem: Problem) -> list[np.ndarray]:
    """Return the distances of the model's own weights for every K from one to four above the model's own."""
    top = model.max_scale_ + 4
    wide = hm.DiffusionEMD(model.graph, max_scale=top, weights=np.ones(top + 1), compress=False)
    rows = wide.fit(problem.measures).transform(problem.measures.masses[problem.judged])
    levels = [
        np.asarray(hm.pairwise_distances(np.ascontiguousarray(block)), dtype=np.float64)
        for block in np.split(rows, top + 1, axis=1)
    ]
    found, total = [], np.zeros_like(levels[0])
    for level in levels:
        total = 2**-model.alpha * total + level
        found.append(total)
    return found[1:]


def _cells(means: np.ndarray) -> list[str]:
    digits = [1, 1, 1, 1, 4, 4, 4, 3, 3, 3, 1]
    return [f"{value:.{n}f}" for value, n in zip(means, digits, strict=True)]


if __name__ == "__main__":
    main()
