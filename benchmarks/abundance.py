"""Which cell types change in number and which in state: how often a change is found, and how often a call is false.

Simulated cohorts of 16 samples: cells of a type are a normal cloud in six dimensions, clouds lie 4.5
standard deviations apart, the odds of types vary between samples by a factor of exp(0.3 z), the places of types by 0.25
standard deviations. In the eight cases one type is changed in number (odds times 4 or a quarter, in turn), in state
(moved by 2 standard deviations), in both or in neither. Designs:

unpaired  six types of equal size, 150 cells
pairs     the same with eight pairs, each with odds (x exp(0.6 z)) and places (+ 0.5 z) of its own
unequal   60 cells in cases and 300 in controls
few       three types
dominant  the type that changes has 60% of the cells
rare      the type that changes has 3% of 300 cells

Reported for numbers and for states, at q <= 0.1: share of changed types that are called with the right sign (found),
mean share of calls that are false (a cohort without a call counts as 0), and how far the parts of all types are from
adding up to the distance.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from provenance import add_record, write_table
from threadpoolctl import threadpool_limits

import heatmover as hm
from heatmover.study import annotate, contrast_cells

LEVEL = 0.1
GROUP = 8
DIMENSIONS, APART = 6, 4.5
FACTOR, MOVED = 4.0, 2.0
ODDS, PLACE = 0.3, 0.25
PAIR_ODDS, PAIR_PLACE = 0.6, 0.5
KINDS = {"neither": (False, False), "abundance": (True, False), "state": (False, True), "both": (True, True)}
# No cohort that was looked at when the method was made has a seed from here on.
FIRST_SEED = 50_000


class Cohort(NamedTuple):
    """How a cohort is made: ``shares`` of the types, the first of which changes, cells of cases and controls, pairs."""

    shares: tuple[float, ...]
    cells: tuple[int, int] = (150, 150)
    pairs: bool = False


EQUAL = (1 / 6,) * 6
DESIGNS = {
    "unpaired": Cohort(EQUAL),
    "pairs": Cohort(EQUAL, pairs=True),
    "unequal": Cohort(EQUAL, cells=(60, 300)),
    "few": Cohort((1 / 3,) * 3),
    "dominant": Cohort((0.6, 0.1, 0.1, 0.1, 0.05, 0.05)),
    "rare": Cohort((0.03, 0.3, 0.27, 0.2, 0.1, 0.1), cells=(300, 300)),
}


def simulate(made: Cohort, kind: str, seed: int):
    """Return cells, their samples and their types, the pair of each sample, and the sign of the change of number."""
    rng = np.random.default_rng(seed)
    n_types = len(made.shares)
    centers = APART / np.sqrt(2) * np.eye(DIMENSIONS)[:n_types]
    in_number, in_state = KINDS[kind]
    sign = (1 if seed % 2 else -1) * in_number
    pair_odds = rng.normal(size=(GROUP, n_types)) * (PAIR_ODDS if made.pairs else 0)
    pair_place = rng.normal(size=(GROUP, n_types, DIMENSIONS)) * (PAIR_PLACE if made.pairs else 0)
    direction = rng.normal(size=DIMENSIONS)
    direction *= MOVED / np.linalg.norm(direction)
    points, samples, types = [], [], []
    for number in range(2 * GROUP):
        pair, case = number % GROUP, number >= GROUP
        odds = np.log(made.shares) + ODDS * rng.normal(size=n_types) + pair_odds[pair]
        odds[0] += case * sign * np.log(FACTOR)
        shares = np.exp(odds) / np.exp(odds).sum()
        drawn = rng.choice(n_types, made.cells[0 if case else 1], p=shares)
        places = centers + PLACE * rng.normal(size=centers.shape) + pair_place[pair]
        places[0] += case * in_state * direction
        points.append(places[drawn] + rng.normal(size=(drawn.size, DIMENSIONS)))
        samples += [f"{'case' if case else 'control'} {pair}"] * drawn.size
        types += [f"type {i}" for i in drawn]
    return np.concatenate(points), samples, types, sign


def examine(name: str, kind: str, n_permutations: int, seed: int) -> tuple[float, ...]:
    """Return found and false of numbers, found and false of states, and the error of the sum, of one cohort."""
    made = DESIGNS[name]
    points, samples, types, sign = simulate(made, kind, seed)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        comparison = hm.compare(points, samples, n_neighbors=15, n_jobs=1)
        groups = [sample.split()[0] for sample in comparison.names]
        pairs = [sample.split()[1] for sample in comparison.names] if made.pairs else None
        found = contrast_cells(
            comparison, annotate("type", types, len(types)), groups, blocks=pairs, n_permutations=n_permutations
        )  # fmt: skip
    numbers = {one.name: {"more": 1, "less": -1, "": 0}[one.direction] for one in found.types}
    states = {one.name: int(one.moved) for one in found.types}
    error = abs(sum(one.abundance + one.state for one in found.types) / found.distance - 1)
    return (*rates(numbers, sign), *rates(states, int(KINDS[kind][1])), error)


def rates(calls: dict[str, int], truth: int) -> tuple[float, float]:
    """Return whether the change was called with its sign, NaN if there is none, and the share of false calls."""
    called = [name for name, sign in calls.items() if sign]
    right = truth != 0 and calls.get("type 0", 0) == truth
    return (float(right) if truth else np.nan), (len(called) - right) / max(len(called), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=200, help="cohorts of each design and kind (200)")
    parser.add_argument("--designs", nargs="*", choices=DESIGNS, default=list(DESIGNS), metavar="NAME")
    parser.add_argument("--permutations", type=int, default=999)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    add_record(parser)
    options = parser.parse_args()
    rows, worst = [], 0.0
    with ProcessPoolExecutor(options.workers) as pool:
        for design in options.designs:
            for kind in KINDS:
                seeds = range(options.first_seed, options.first_seed + options.cohorts)
                work = partial(examine, design, kind, options.permutations)
                table = np.array(list(pool.map(work, seeds, chunksize=5)))
                mean, worst = table.mean(axis=0), max(worst, float(table[:, 4].max()))
                shown = ["" if np.isnan(value) else f"{100 * value:.0f}%" for value in (mean[0], mean[2])]
                rows.append([design, kind, shown[0], f"{100 * mean[1]:.1f}%", shown[1], f"{100 * mean[3]:.1f}%"])
                print(*rows[-1], flush=True)
    heads = ["design", "what changes", "abundance: found", "abundance: false", "state: found", "state: false"]
    note = (
        f"Each row shows {options.cohorts} cohorts of {GROUP} cases and {GROUP} controls, tested with "
        f"{options.permutations} permutations. A type is called different if q is at most {LEVEL:g}. One type "
        f"changes: its odds are multiplied or divided by {FACTOR:g}, or its cells move by {MOVED:g} standard "
        f"deviations. The contributions of all types sum to the distance, with an error of at most {worst:.0e}."
    )
    write_table("abundance", heads, rows, note, folder=options.record)


if __name__ == "__main__":
    main()
