"""Few cells against many: what the correction of distances is worth where the truth is known.

    python benchmarks/noise.py                        # simulated cohorts, about two minutes
    python benchmarks/noise.py --data FOLDER --record # also cells of one melanoma cohort, drawn anew; kidney as it is

False positives: samples of few and of many cells from ONE distribution, in two groups; how often PERMANOVA calls them
different at 5 %. Size: Spearman of the number of cells with the mean distance to all others, and with the nearest.
Coverage: how often the 95 % interval of a pair holds the distance that 4,000 cells of each sample show.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from provenance import add_record, write_table
from scipy.spatial import cKDTree
from scipy.stats import spearmanr

import heatmover as hm
from heatmover.statistics import permanova

CLUSTERS, DIMENSIONS = 5, 5
DESIGNS = (((50,) * 10, (500,) * 10), ((50,) * 5, (500,) * 15), ((50,) * 15, (500,) * 5))


def simulate(sizes, rng, effect):
    """Return points, labels and a function that draws further cells; samples differ in shares and states by effect."""
    centres = 3 * rng.normal(size=(CLUSTERS, DIMENSIONS))
    shares = rng.dirichlet(np.full(CLUSTERS, 20 / effect**2), size=len(sizes)) if effect else None
    shifts = 0.25 * effect * rng.normal(size=(len(sizes), CLUSTERS, DIMENSIONS))

    def draw(sample, count):
        kind = rng.choice(CLUSTERS, count, p=None if shares is None else shares[sample])
        return centres[kind] + shifts[sample, kind] + rng.normal(size=(count, DIMENSIONS))

    points = np.concatenate([draw(i, size) for i, size in enumerate(sizes)])
    return points, np.repeat([f"{i:03}" for i in range(len(sizes))], sizes), draw


def false_positives(make, few, many, runs):
    """Return the share of runs in which each kind of distance tells the groups apart."""
    groups = np.repeat(["few", "many"], [len(few), len(many)])
    found = {"raw": 0, "corrected": 0}
    for run in range(runs):
        points, labels = make([*few, *many], np.random.default_rng(run))
        graph = hm.Graph.from_points(points)
        for bias in found:
            result = hm.compare(graph, labels, bias=bias)
            found[bias] += (
                permanova(result.test_distances, groups, n_permutations=199, random_state=run).p_value <= 0.05
            )
    return {bias: count / runs for bias, count in found.items()}


def resampled(cells):
    """Return a maker of cohorts whose samples are all drawn from the same cells."""

    def make(sizes, rng):
        rows = rng.choice(len(cells), sum(sizes), replace=False)
        return cells[rows], np.repeat([f"{i:03}" for i in range(len(sizes))], sizes)

    return make


def by_size(sizes, distances):
    """Return Spearman of sizes with mean and nearest distances; 0 where all distances are zero."""
    if not distances.any():
        return 0.0, 0.0
    apart = distances.copy()
    np.fill_diagonal(apart, np.inf)
    return spearmanr(sizes, distances.mean(axis=1))[0], spearmanr(sizes, apart.min(axis=1))[0]


def coverage(effect, runs):
    """Return correlations with size, mean distances, and coverage of the intervals of small and of large samples."""
    rows, held, smaller = [], [], []
    for run in range(runs):
        rng = np.random.default_rng(run)
        sizes = np.exp(rng.uniform(np.log(10), np.log(1000), 20)).astype(int)
        points, labels, draw = simulate(sizes, rng, effect)
        result = hm.compare(points, labels, bias="corrected", n_bootstrap=200)
        found = result.uncertainty
        tree = cKDTree(points)
        many = np.stack(
            [np.bincount(tree.query(draw(i, 4000))[1], minlength=len(points)) / 4000 for i in range(len(sizes))]
        )
        truth = hm.pairwise_distances(result.model.transform(many)) if effect else np.zeros((20, 20))
        pairs = np.triu_indices(20, 1)
        held.append((found.lower[pairs] <= truth[pairs]) & (truth[pairs] <= found.upper[pairs]))
        smaller.append(np.minimum(sizes[pairs[0]], sizes[pairs[1]]))
        means = [matrix[pairs].mean() for matrix in (found.distances, result.distances, truth)]
        rows.append([*by_size(sizes, found.distances), *by_size(sizes, result.distances), *means])
    held, smaller = np.concatenate(held), np.concatenate(smaller)
    return np.mean(rows, axis=0), held[smaller < 50].mean(), held[smaller >= 50].mean()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=100, help="cohorts of every design (100)")
    arguments.add_argument("--data", type=Path, help="folder with melanoma and kidney")
    add_record(arguments)
    args = arguments.parse_args()
    warnings.simplefilter("ignore")
    makers = {"simulated": lambda sizes, rng: simulate(sizes, rng, 0)[:2]}
    if args.data is not None:
        melanoma = np.load(args.data / "melanoma_sadefeldman48.npz")["X"].astype(float)
        makers["melanoma, drawn anew"] = resampled(melanoma)
    rows = []
    for name, make in makers.items():
        for few, many in DESIGNS:
            found = false_positives(make, few, many, args.runs)
            rows.append(
                [name, f"{len(few)} of 50, {len(many)} of 500", f"{found['raw']:.3f}", f"{found['corrected']:.3f}"]
            )
    note = f"{args.runs} cohorts of each design, all samples from one distribution; the level is 0.05."
    write_table("noise_tests", ["cells", "samples", "raw", "corrected"], rows, note, folder=args.record)
    rows = []
    for effect in (0, 1, 2, 4):
        means, small, large = coverage(effect, max(args.runs // 10, 1))
        rows.append([effect, *(f"{value:.2f}" for value in means), f"{small:.3f}", f"{large:.3f}"])
    heads = [
        "effect", "size and mean, raw", "size and nearest, raw", "size and mean, corrected",
        "size and nearest, corrected", "mean distance, raw", "corrected", "of 4,000 cells",
        "coverage, fewer than 50 cells", "coverage, more",
    ]  # fmt: skip
    note = "20 samples of 10 to 1,000 cells; Spearman of the number of cells with distances, means over cohorts."
    write_table("noise", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
