"""Which cells drive a difference between groups: how well they are found, and how often a call is false.

Simulated cohorts of 30 samples of 100 cells on a tree of five branches; cases differ from controls in the last branch
only. Reported per scenario, as means over cohorts:

area      of the ROC curve of the signed score: cells of the branch against all others
false     false-discovery rate at q <= 0.1: the share of called cells (either sign) that lie outside the branch, or in
          it with the wrong sign; a cohort without a call counts as 0. Cells of other branches count as false even
          where heat from the branch reaches them, and although their share of the sample falls if the branch grows.
found     share of the branch's cells that are called
any       share of cohorts with any call; without an effect that is the false-discovery rate
branches  the same false-discovery rate for whole branches, given as annotation

Then what single frames of reference would do (`--frames`), and the time of the transpose of the embedding relative to
the embedding itself on 20,000 points.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from provenance import add_record, write_table
from threadpoolctl import threadpool_limits

import heatmover as hm
from heatmover.attribution import contrast as _contrast
from heatmover.attribution import explain_groups
from heatmover.statistics import false_discovery
from heatmover.statistics.regression import column_differences, weigh

LEVEL = 0.1
SAMPLES, CELLS, BRANCH = 30, 100, 4
# Odds of a cell of a case to be in the branch, relative to a control: 1 + effect.
SCENARIOS = {"odds x 3": 2.0, "odds x 2": 1.0, "odds x 0.3": -0.7, "no effect": 0.0}
# No cohort that was looked at when the method was chosen has a seed from here on.
FIRST_SEED = 10_000
# Forward and transposed: numbers of measures.
WIDTHS = (1, 100)


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the share of pairs of a positive and another in the right order; ties count half."""
    others = np.sort(scores[~positive])
    below = np.searchsorted(others, scores[positive], side="left")
    upto = np.searchsorted(others, scores[positive], side="right")
    return float((below + upto).mean() / (2 * others.size))


def rates(scores: np.ndarray, q_values: np.ndarray, positive: np.ndarray, sign: float) -> tuple[float, float, bool]:
    """Return the share of false calls, the share of positives found, and whether anything is called."""
    called = q_values <= LEVEL
    true = called & positive & (scores * sign > 0)
    false = int(called.sum() - true.sum()) / max(int(called.sum()), 1)
    return false, float(true.sum() / max(int(positive.sum()), 1)), bool(called.any())


def simulate(effect: float, n_permutations: int, seed: int) -> tuple[float, ...]:
    """Return area, false, found, any and branches of one cohort."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", hm.GraphWarning)
        data = hm.datasets.cohort(SAMPLES, cells_per_sample=CELLS, effect=effect, random_state=seed)
        measures = data.measures()
        model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_jobs=1), n_jobs=1).fit(measures)
        branch = data.coordinates[:, 0].astype(int)
        found = explain_groups(
            model,
            measures,
            data.annotations["condition"],
            group="case",
            annotation=branch,
            n_permutations=n_permutations,
        )
    changed = (branch == BRANCH) if effect else np.zeros(branch.size, dtype=bool)
    sign = np.sign(effect)
    kinds = np.array([name == str(BRANCH) for name in found.types.names]) & (effect != 0)
    area_found = area(sign * found.scores, changed) if effect else np.nan
    return (
        area_found,
        *rates(found.scores, found.q_values, changed, sign),
        rates(found.types.scores, found.types.abundance_q, kinds, sign)[0],
    )


def frames(effect: float, n_permutations: int, seed: int) -> tuple[float, ...]:
    """Return the false-discovery rate of one cohort with proportions alone, and relative to median and mode alone."""
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", hm.GraphWarning)
        data = hm.datasets.cohort(SAMPLES, cells_per_sample=CELLS, effect=effect, random_state=seed)
        measures = data.measures()
        model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_jobs=1), n_jobs=1, max_scale=3).fit(measures)
        densities = next(model.prepared_.diffuser.diffuse(measures.toarray().T, range(3, 4))).T
        case = data.annotations["condition"] == "case"
        members = np.array([case, *(rng.permutation(case) for _ in range(n_permutations))])
        regression = weigh(members, np.ones((SAMPLES, 1)))
        differences, errors = column_differences(_contrast.log_ratios(densities), regression)
    changed = data.coordinates[:, 0] == BRANCH
    result = []
    centers = (np.zeros(len(members)), np.median(differences, axis=1), _contrast._modes(differences))
    for center in centers:
        statistics = (differences - np.asarray(center)[:, None]) / errors
        statistic, p_values = statistics[0], _contrast.two_sided(statistics)
        result.append(rates(statistic, false_discovery(p_values), changed, np.sign(effect))[0])
    return tuple(result)


def transposes() -> None:
    data = hm.datasets.cohort(100, cells_per_sample=200, random_state=0)
    graph = hm.Graph.from_points(data.points)
    rng = np.random.default_rng(0)
    print(f"\n{'20,000 points, one thread':28} {'measures':>8} {'embed':>8} {'transpose':>9} {'ratio':>6}")
    for method in ("chebyshev", "spectral"):
        for width in WIDTHS:
            rows = data.measures().masses[:width]
            model = hm.DiffusionEMD(graph, method=method, n_jobs=1, compress=False).fit(rows)
            features = np.sign(rng.normal(size=model.transform(rows).shape)).astype(np.float32)
            model.apply_transpose(features)
            forward, backward = (
                min(_seconds(call, argument) for _ in range(5))
                for call, argument in ((model.transform, rows), (model.apply_transpose, features))
            )
            print(f"{method:28} {width:8d} {forward:7.2f}s {backward:8.2f}s {backward / forward:6.2f}")


def _seconds(call, argument) -> float:
    start = time.perf_counter()
    call(argument)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 cohorts per scenario")
    parser.add_argument("--cohorts", type=int, default=200, help="cohorts per scenario (200)")
    parser.add_argument("--scenarios", nargs="*", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--frames", action="store_true", help="also single frames of reference, on 40 cohorts")
    parser.add_argument("--permutations", type=int, default=499)
    parser.add_argument("--workers", type=int, default=2)
    add_record(parser)
    options = parser.parse_args()
    rows = []
    count = 20 if options.quick else options.cohorts
    print(
        f"{count} cohorts of {SAMPLES} samples of {CELLS} cells; means (and standard error of the rate of false calls)"
    )
    print(f"{'scenario':12} {'area':>6} {'false':>16} {'found':>6} {'any':>5} {'branches':>9}")
    with ProcessPoolExecutor(options.workers) as pool:
        for number, (name, effect) in enumerate(SCENARIOS.items()):
            if name not in options.scenarios:
                continue
            seeds = range(FIRST_SEED * (number + 1), FIRST_SEED * (number + 1) + count)
            table = np.array(list(pool.map(partial(simulate, effect, options.permutations), seeds)), dtype=float)
            mean, error = table.mean(axis=0), table[:, 1].std() / np.sqrt(count)
            print(
                f"{name:12} {mean[0]:6.3f} {mean[1]:7.3f} (+-{error:.3f}) {mean[2]:6.2f} {mean[3]:5.2f} {mean[4]:9.3f}",
                flush=True,
            )
            found = (f"{mean[0]:.3f}", f"{100 * mean[2]:.0f}%") if effect else ("", "")
            false = f"{100 * mean[1]:.1f}% ± {100 * error:.1f}", f"{100 * mean[4]:.1f}%"
            rows.append([name, *found, *false, f"{100 * mean[3]:.1f}%"])
        if options.frames:
            table = np.array(list(pool.map(partial(frames, 2.0, options.permutations), range(1_000, 1_040))))
            plain, median, mode = table.mean(axis=0)
            print(f"odds x 3, false calls with one frame: shares {plain:.2f}, median {median:.2f}, mode {mode:.2f}")
    if options.record:
        heads = ["odds of the branch in cases", "area under the ROC curve", "cells of the branch found"]
        heads += ["false calls of cells", "false calls of branches", "cohorts with a call"]
        note = (
            f"Each row shows {count} cohorts of {SAMPLES} samples with {CELLS} cells, tested with "
            f"{options.permutations} permutations. Values are means over the cohorts ± standard error. A cell is "
            f"called different if q is at most {LEVEL:g}."
        )
        write_table("explain", heads, rows, note, folder=options.record)
    transposes()


if __name__ == "__main__":
    main()
