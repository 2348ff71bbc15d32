"""How often tests of designs err and find: a variable that goes with a covariate, which the distances depend on.

Ignored, the covariate makes a difference of the variable where there is none; adjusted for, the test should call 5%.
The last rows compare two ways to adjust a distance correlation where the distances depend on the covariate along a
curve: the package's, and the partial distance correlation of Szekely and Rizzo (2014) with its number permuted.

--speed times 999 permutations for 1,000 samples and four terms instead. --batches moves batches of a simulated cohort
onto each other: how often the nearest sample is of the same batch, and of the same condition, before and after.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from provenance import add_record, write_table
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from heatmover import compare, datasets
from heatmover.errors import GraphWarning
from heatmover.statistics import (
    Design,
    TestResult,
    dispersion,
    distance_correlation,
    neighbor_enrichment,
    permanova,
    permanova_design,
)
from heatmover.statistics.manifold import smoothness
from heatmover.statistics.tests import separate
from heatmover.study import align_batches

LEVEL = 0.05
PERMUTATIONS = 199
FULL, SMALL = 2_000, 20
Array = npt.NDArray[Any]


class Run(NamedTuple):
    """Places of samples, the variable to test, covariates and blocks."""

    places: Array
    variable: Array
    adjust: dict[str, Array]
    blocks: Any = None


def confounded_number(rng: np.random.Generator, effect: float, n: int = 30) -> Run:
    """Cases are older, and places depend on age."""
    age = rng.normal(size=n)
    group = np.argsort(np.argsort(age + rng.normal(size=n))) >= n // 2
    places = np.outer(age, [2.0, 1.0, 0.0]) + rng.normal(size=(n, 3))
    places[:, 2] += effect * group
    return Run(places, group.astype(int), {"age": age})


def confounded_batch(rng: np.random.Generator, effect: float, n: int = 32) -> Run:
    """Three quarters of the cases are in one of two batches, a quarter of the controls; the batches lie apart."""
    group, batch = np.repeat([0, 1], n // 2), np.tile([0, 0, 0, 1], n // 4)
    batch = np.where(group == 1, 1 - batch, batch)
    places = 3.0 * np.outer(batch, [1.0, 0.0, 0.0]) + rng.normal(size=(n, 3))
    places[:, 2] += effect * group
    return Run(places, group, {"batch": np.array(["x", "y"])[batch]})


def dispersed_batch(rng: np.random.Generator, effect: float, n: int = 32) -> Run:
    """The same batches; cases vary more among themselves, instead of lying elsewhere."""
    run = confounded_batch(rng, 0.0, n)
    batch = 3.0 * np.outer(run.adjust["batch"] == "y", [1.0, 0.0, 0.0])
    return run._replace(places=batch + (run.places - batch) * (1 + effect * run.variable[:, None]))


def confounded_factors(rng: np.random.Generator, effect: float, n: int = 40) -> Run:
    """Four sites of unequal size and an age, which both go with the three groups."""
    site = rng.choice(4, size=n, p=[0.4, 0.3, 0.2, 0.1])
    site[:8] = np.repeat(np.arange(4), 2)
    age = rng.normal(size=n) + 0.5 * site
    group = np.digitize(age + rng.normal(size=n), np.quantile(age, [0.33, 0.67]))
    places = np.outer(age, [1.0, 1.0, 0.0]) + rng.normal(size=(4, 3))[site] * 2 + rng.normal(size=(n, 3))
    places[:, 2] += effect * group
    return Run(places, group, {"site": np.array(list("abcd"))[site], "age": age})


def pairs(rng: np.random.Generator, effect: float, n: int = 12) -> Run:
    """Before and after in patients who differ; the time of the day goes with the visit."""
    patient, visit = np.repeat(np.arange(n), 2), np.tile([0, 1], n)
    hour = rng.normal(size=2 * n) + 0.8 * visit
    places = 3 * rng.normal(size=(n, 3))[patient] + np.outer(hour, [1.0, 0.0, 0.0]) + rng.normal(size=(2 * n, 3))
    places[:, 2] += effect * visit
    return Run(places, visit, {"hour": hour}, patient)


def patients(rng: np.random.Generator, effect: float, n: int = 24) -> Run:
    """One to three samples of each patient, whose condition goes with their age."""
    age = rng.normal(size=n)
    group = (np.argsort(np.argsort(age + rng.normal(size=n))) >= n // 2).astype(int)
    patient = np.repeat(np.arange(n), 1 + rng.integers(3, size=n))
    places = np.outer(age, [2.0, 1.0, 0.0]) + rng.normal(size=(n, 3))
    places[:, 2] += effect * group
    return Run(
        (places[patient] + 0.3 * rng.normal(size=(len(patient), 3))), group[patient], {"age": age[patient]}, patient
    )


def numbers(rng: np.random.Generator, effect: float, n: int = 30) -> Run:
    """A number that goes with age, on which places depend."""
    age = rng.normal(size=n)
    own = rng.normal(size=n)
    places = np.outer(age, [2.0, 1.0, 0.0]) + rng.normal(size=(n, 3))
    places[:, 2] += effect * own
    return Run(places, age + own, {"age": age})


def curve(rng: np.random.Generator, effect: float, n: int = 30) -> Run:
    """The same where places lie along a curve of age."""
    age = rng.normal(size=n)
    own = rng.normal(size=n)
    places = np.column_stack([np.cos(2 * age), np.sin(2 * age), np.zeros(n)]) + 0.2 * rng.normal(size=(n, 3))
    places[:, 2] += effect * own
    return Run(places, age + own, {"age": age})


def by_permanova(run: Run, seed: int, *, adjusted: bool) -> float:
    options: dict[str, Any] = {"adjust": run.adjust} if adjusted else {}
    distances = cdist(run.places, run.places)
    return permanova(
        distances, run.variable, blocks=run.blocks, n_permutations=PERMUTATIONS, random_state=seed, **options
    ).p_value


def by_enrichment(run: Run, seed: int, *, adjusted: bool) -> float:
    return by_any(neighbor_enrichment, run, seed, adjusted=adjusted)


def by_dispersion(run: Run, seed: int, *, adjusted: bool) -> float:
    return by_any(dispersion, run, seed, adjusted=adjusted)


def by_smoothness(run: Run, seed: int, *, adjusted: bool) -> float:
    return by_any(smoothness, run._replace(variable=run.variable.astype(str)), seed, adjusted=adjusted)


def by_any(test: Callable[..., TestResult], run: Run, seed: int, *, adjusted: bool) -> float:
    options: dict[str, Any] = {"adjust": run.adjust} if adjusted else {}
    distances = cdist(run.places, run.places)
    settings = {"blocks": run.blocks, "n_permutations": PERMUTATIONS, "random_state": seed}
    return test(distances, run.variable, **settings, **options).p_value


def by_correlation(run: Run, seed: int, *, adjusted: bool) -> float:
    options: dict[str, Any] = {"adjust": run.adjust} if adjusted else {}
    distances = cdist(run.places, run.places)
    return distance_correlation(
        distances, run.variable, n_permutations=PERMUTATIONS, random_state=seed, **options
    ).p_value


def by_partial_correlation(run: Run, seed: int, *, adjusted: bool) -> float:
    """Szekely and Rizzo (2014): U-centered distances, projected off those of the covariate; its number is permuted."""
    rng = np.random.default_rng(seed)
    (covariate,) = run.adjust.values()
    a, b, c = (u_centered(x) for x in (cdist(run.places, run.places), apart(run.variable), apart(covariate)))
    a = a - (a * c).sum() / (c * c).sum() * c if adjusted else a
    observed, beyond = partial(a, b, c, adjusted), 0
    for _ in range(PERMUTATIONS):
        order = rng.permutation(len(a))
        beyond += partial(a, b[np.ix_(order, order)], c, adjusted) >= observed
    return (beyond + 1) / (PERMUTATIONS + 1)


def partial(a: Array, b: Array, c: Array, adjusted: bool) -> float:
    b = b - (b * c).sum() / (c * c).sum() * c if adjusted else b
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def apart(values: Array) -> Array:
    return np.abs(np.subtract.outer(values, values))


def u_centered(matrix: Array) -> Array:
    n = len(matrix)
    rows = matrix.sum(axis=0) / (n - 2)
    result = matrix - rows - rows[:, None] + matrix.sum() / ((n - 1) * (n - 2))
    np.fill_diagonal(result, 0.0)
    return result


Test = Callable[..., float]
SCENARIOS: tuple[tuple[str, Callable[..., Run], Test, float], ...] = (
    ("groups associated with a number", confounded_number, by_permanova, 1.5),
    ("groups associated with a batch", confounded_batch, by_permanova, 1.5),
    ("three groups, four sites and a number", confounded_factors, by_permanova, 1.0),
    ("pairs with a covariate associated with the visit", pairs, by_permanova, 2.0),
    ("patients of one to three samples, and a number", patients, by_permanova, 2.0),
    ("neighbor enrichment, groups associated with a batch", confounded_batch, by_enrichment, 1.5),
    ("smoothness, groups associated with a batch", confounded_batch, by_smoothness, 1.5),
    ("dispersion, groups associated with a batch", dispersed_batch, by_dispersion, 0.7),
    ("a number associated with another", numbers, by_correlation, 1.5),
    ("the same, distances along a curve", curve, by_correlation, 0.4),
    ("a number, by Szekely and Rizzo (2014)", numbers, by_partial_correlation, 1.5),
    ("the same, distances along a curve", curve, by_partial_correlation, 0.4),
)


def rate(make: Callable[..., Run], test: Test, effect: float, runs: int, *, adjusted: bool) -> float:
    found = 0
    for seed in range(runs):
        run = make(np.random.default_rng([seed, 17]), effect)
        found += test(run, seed + 1_000_000, adjusted=adjusted) <= LEVEL
    return found / runs


def false_positives(runs: int, few: int) -> list[list[str]]:
    rows = []
    for name, make, test, effect in SCENARIOS:
        start = time.perf_counter()
        ignored = rate(make, test, 0.0, few, adjusted=False)
        adjusted = rate(make, test, 0.0, runs, adjusted=True)
        power = rate(make, test, effect, few, adjusted=True)
        rows.append([name, f"{100 * ignored:.0f}%", f"{100 * adjusted:.1f}%", f"{power:.2f}"])
        print(" | ".join(rows[-1]), f"| {time.perf_counter() - start:.0f} s", flush=True)
    return rows


def speed(n_samples: int, n_permutations: int) -> list[list[str]]:
    rng = np.random.default_rng(0)
    places = rng.normal(size=(n_samples, 10))
    distances = cdist(places, places)
    columns = {
        "condition": rng.choice(list("ab"), n_samples),
        "batch": rng.choice(list("abcd"), n_samples),
        "sex": rng.choice(list("fm"), n_samples),
        "age": rng.normal(size=n_samples),
    }
    rows = []
    for by in ("margin", "terms"):
        clock, work = [], []
        for _ in range(3):
            start, busy = time.perf_counter(), time.process_time()
            permanova_design(distances, Design.from_columns(columns), by=by, n_permutations=n_permutations)  # type: ignore[arg-type]
            clock.append(time.perf_counter() - start)
            work.append(time.process_time() - busy)
        rows.append([f"{n_samples:,} samples, four terms, by {by}", f"{min(clock):.1f}", f"{min(work):.1f}"])
        print(" | ".join(rows[-1]), flush=True)
    return rows


class Batched(NamedTuple):
    """How often the nearest sample is of the same batch and condition: cells as drawn, with batches, and aligned."""

    batch: tuple[float, float, float]
    condition: tuple[float, float, float]
    chance: float
    error: float


def batched(seed: int, size: float, n_batches: int, *, even: bool, n: int = 40) -> Batched:
    """Displace the batches of a cohort by so many spreads of its cells, and move them onto each other."""
    data = datasets.cohort(n, cells_per_sample=100, effect=3.0, random_state=seed)
    rng = np.random.default_rng(seed)
    condition = (np.asarray(data.annotations["condition"]) == "case").astype(int)
    batch = np.empty(n, dtype=int)
    for group in (0, 1):
        members = rng.permutation(np.flatnonzero(condition == group))
        dealt = np.arange(len(members)) % n_batches
        # Unevenly: three quarters of each condition in one half of the batches.
        uneven = (np.arange(len(members)) % 4 == 0) ^ (group == 1)
        batch[members] = dealt if even else (2 * (dealt // 2) + uneven) % n_batches
    clean = compare(data.points, data.labels)
    place = {name: i for i, name in enumerate(clean.names)}
    samples = np.array([place[str(label)] for label in data.labels])
    spread = np.sqrt(((data.points - data.points.mean(axis=0)) ** 2).sum(axis=1).mean())
    way = rng.normal(size=(n_batches, data.points.shape[1]))
    way *= size * spread / np.linalg.norm(way, axis=1, keepdims=True)
    moved = data.points + way[batch[samples]]
    aligned, _ = align_batches(moved, samples, batch.tolist(), keep={"condition": condition.astype(str).tolist()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)  # far batches are apart, that is the point
        found = [clean.distances, *(compare(points, data.labels).distances for points in (moved, aligned))]
    left = aligned - data.points
    error = float(np.sqrt(((left - left.mean(axis=0)) ** 2).sum(axis=1).mean()) / spread)
    by_batch, by_condition = ([separate(d, codes).agreement for d in found] for codes in (batch, condition))
    return Batched(tuple(by_batch), tuple(by_condition), separate(found[0], batch).chance, error)  # type: ignore[arg-type]


def batches(runs: int) -> list[list[str]]:
    rows = []
    for size in (0.3, 1.0):
        for n_batches, even in ((2, True), (4, True), (2, False)):
            found = [batched(seed, size, n_batches, even=even) for seed in range(runs)]
            by_batch, by_condition = (
                np.mean([getattr(run, name) for run in found], axis=0) for name in ("batch", "condition")
            )
            chance, error = (np.mean([getattr(run, name) for run in found]) for name in ("chance", "error"))
            name = f"{n_batches} batches{'' if even else ', unevenly mixed'}, moved by {size:g} spreads"
            rows.append([name, *(f"{x:.2f}" for x in (chance, *by_batch, *by_condition)), f"{error:.3f}"])
            print(" | ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=FULL, help="runs of each adjusted test; a quarter of the others")
    parser.add_argument("--small", action="store_true", help="few runs: whether it runs, not the figures")
    parser.add_argument("--speed", action="store_true", help="time a large design instead")
    parser.add_argument("--batches", action="store_true", help="move batches onto each other instead")
    add_record(parser)
    arguments = parser.parse_args()
    if arguments.batches:
        runs = 2 if arguments.small else 10
        rows = batches(runs)
        if arguments.record:
            kinds = ("as drawn", "in batches", "aligned")
            heads = ["cohort of 40", "chance", *(f"batch, {kind}" for kind in kinds)]
            heads += [*(f"condition, {kind}" for kind in kinds), "error of the shift"]
            note = (
                f"Share of samples whose nearest sample has the same batch, or the same condition: means of {runs} "
                "cohorts with 100 cells per sample. The error of the shift is relative to the spread of the cells."
            )
            write_table("designs_batches", heads, rows, note, folder=arguments.record)
        return
    if arguments.speed:
        size = 60 if arguments.small else 1_000
        rows = speed(size, 99 if arguments.small else 999)
        heads = ["design", "wall seconds", "CPU seconds"]
        if arguments.record:
            write_table(
                "designs_speed", heads, rows, "999 permutations; the minimum of three runs.", folder=arguments.record
            )
        return
    runs = SMALL if arguments.small else arguments.runs
    with threadpool_limits(1):
        rows = false_positives(runs, max(SMALL, runs // 4))
    if arguments.record:
        heads = ["design", "false positives, covariate ignored", "adjusted for", "power, adjusted for"]
        note = (
            f"The tests have a level of {100 * LEVEL:g}%, with {PERMUTATIONS} permutations. False positive rates of "
            f"the adjusted test are measured in {runs:,} runs without a difference, and the other columns in "
            f"{max(SMALL, runs // 4):,} runs. For a true rate of 5%, the standard error over 2,000 runs is 0.5%."
        )
        write_table("designs", heads, rows, note, folder=arguments.record)


if __name__ == "__main__":
    main()
