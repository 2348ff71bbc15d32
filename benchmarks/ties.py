"""How often PERMANOVA finds a difference between groups of samples that differ in nothing, where cells are tied.

Every cohort has 12 samples of 100 cells, whose features are counts (Poisson, one rate) or rounded numbers; the first
six samples are one group. The cells are compared as the file has them, sorted by sample, and in a random order: both
must give the same distances to the bit. The level is 5%; all 462 permutations of the groups are looked at.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from provenance import add_record, write_table
from threadpoolctl import threadpool_limits

import heatmover as hm
from heatmover import statistics

LEVEL = 0.05
N_SAMPLES, N_CELLS = 12, 100
# (rate of the counts, features); a rate of 0 stands for normal features, rounded to one digit.
DESIGNS = [(0.3, 2), (0.5, 3), (1.0, 3), (1.0, 4), (0.1, 5), (3.0, 2), (0.0, 2)]


class Run(NamedTuple):
    p_value: float
    n_nodes: int
    same: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000, help="cohorts of each design")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    add_record(parser)
    options = parser.parse_args()
    rows = []
    print(f"{'design':<24} {'nodes':>6} {'p <= 5%':>9} {'standard error':>15} {'order matters':>14}")
    with ProcessPoolExecutor(options.jobs) as pool:
        for rate, n_features in DESIGNS:
            runs = list(pool.map(partial(one_run, rate, n_features), range(options.runs), chunksize=10))
            found = np.mean([run.p_value <= LEVEL for run in runs])
            error = np.sqrt(found * (1 - found) / len(runs))
            nodes = np.median([run.n_nodes for run in runs])
            name = f"Poisson {rate:g}, {n_features}-D" if rate else f"rounded normal, {n_features}-D"
            different = sum(not run.same for run in runs)
            print(f"{name:<24} {nodes:>6.0f} {found:>8.1%} {error:>14.1%} {different:>9} of {len(runs)}", flush=True)
            rows.append(
                [name, f"{nodes:.0f}", f"{100 * found:.1f}%", f"{100 * error:.1f}%", f"{different} of {len(runs)}"]
            )
    if options.record:
        heads = ["design", "nodes", "p at most 5%", "standard error", "order matters"]
        write_table("ties", heads, rows, f"{options.runs:,} cohorts of each design.", folder=options.record)


def one_run(rate: float, n_features: int, seed: int) -> Run:
    rng = np.random.default_rng([seed, int(10 * rate), n_features])
    shape = (N_SAMPLES * N_CELLS, n_features)
    points = rng.poisson(rate, size=shape).astype(float) if rate else rng.normal(size=shape).round(1)
    labels = np.repeat(np.arange(N_SAMPLES), N_CELLS)
    order = rng.permutation(len(points))
    with threadpool_limits(1):
        found = hm.compare(points, labels, n_jobs=1)
        shuffled = hm.compare(points[order], labels[order], n_jobs=1)
    test = statistics.permanova(found.distances, np.arange(N_SAMPLES) < N_SAMPLES // 2, n_permutations=999)
    return Run(test.p_value, found.graph.n_nodes, np.array_equal(found.distances, shuffled.distances))


if __name__ == "__main__":
    main()
