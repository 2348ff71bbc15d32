"""How often the tests find an effect that is there, and how often one that is not, on simulated cohorts.

Three designs of about 30 samples of 40 cells: independent samples; two samples of each patient, which are
permuted together; two batches that shift all cells and hold unequal shares of cases. Patients and batches are the
`blocks` of the tests. With them PERMANOVA is also run as if samples were independent, to show what blocks prevent. The
level is 5%, with 199 permutations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from provenance import add_record, write_table
from threadpoolctl import threadpool_limits

import heatmover as hm
from heatmover import manifold, statistics
from heatmover.datasets import Effect

LEVEL = 0.05
CELLS = 40
# (cohorts without an effect, cohorts with one)
FULL, SMALL = (1_000, 200), (60, 20)
# Odds of a cell to be in the last branch are 1 + enrichment times those of a control. 16 patients need a larger effect
# than 30 independent samples. No difference in spread is simulated: the power of the dispersion test says nothing.
EFFECTS = {"independent": 1.5, "patients": 2.5, "batches": 1.5}


class Study(NamedTuple):
    points: np.ndarray
    labels: np.ndarray
    condition: np.ndarray
    blocks: np.ndarray | None


def independent(effect: Effect, seed: int) -> Study:
    data = hm.datasets.cohort(30, cells_per_sample=CELLS, effect=effect, random_state=seed)
    return Study(data.points, data.labels, data.annotations["condition"], None)


def patients(effect: Effect, seed: int) -> Study:
    """Each patient has a composition of their own, which both of their samples share."""
    data = hm.datasets.cohort(16, cells_per_sample=2 * CELLS, effect=effect, random_state=seed)
    half = np.arange(len(data.labels)) % 2
    labels = np.array([f"{label}-{part}" for label, part in zip(data.labels, half, strict=True)])
    return Study(data.points, labels, np.repeat(data.annotations["condition"], 2), np.arange(32) // 2)


def batches(effect: Effect, seed: int) -> Study:
    """The second batch, with 5 of 15 cases and 10 of 15 controls, is shifted by six times the noise of a cell."""
    data = hm.datasets.cohort(30, cells_per_sample=CELLS, effect=effect, random_state=seed)
    batch = (np.arange(30) % 15 >= np.repeat([10, 5], 15)).astype(int)
    names, sample = np.unique(data.labels, return_inverse=True)
    assert len(names) == len(batch)
    direction = np.random.default_rng([seed, 1]).normal(size=data.points.shape[1])
    shift = 0.3 * direction / np.linalg.norm(direction)
    points = data.points + batch[sample][:, None] * shift
    return Study(points, data.labels, data.annotations["condition"], batch)


DESIGNS: dict[str, Callable[[Effect, int], Study]] = {
    "independent": independent,
    "patients": patients,
    "batches": batches,
}


def p_values(job: tuple[str, float, int]) -> dict[str, float]:
    """Simulate a cohort and test its condition in every way; tests of numbers see cases as 1 and controls as 0."""
    design, enrichment, seed = job
    study = DESIGNS[design](Effect(enrichment=enrichment), seed)
    with threadpool_limits(1):
        distances = hm.compare(study.points, study.labels, n_neighbors=15, n_jobs=1).distances
        # Not the seed of the cohort: labels shuffled by the numbers that made the cells would depend on them.
        options: dict[str, Any] = {"n_permutations": 199, "random_state": seed + 1_000_000}
        naive = partial(statistics.permanova, distances, study.condition, **options)
        options["blocks"] = study.blocks
        coded = study.condition == "case"
        found = {
            "PERMANOVA": statistics.permanova(distances, study.condition, **options),
            "dispersion": statistics.dispersion(distances, study.condition, **options),
            "neighbor enrichment": statistics.neighbor_enrichment(distances, study.condition, **options),
            "distance correlation": statistics.distance_correlation(distances, coded, **options),
            "smoothness": manifold.smoothness(distances, coded, **options),
        }
        if design != "independent":
            found["PERMANOVA, unrestricted"] = naive()
    return {name: result.p_value for name, result in found.items()}


def rates(design: str, enrichment: float, seeds: range, pool: ProcessPoolExecutor) -> dict[str, float]:
    jobs: Iterator[tuple[str, float, int]] = ((design, enrichment, seed) for seed in seeds)
    rows = list(pool.map(p_values, jobs, chunksize=10))
    return {name: float(np.mean([row[name] <= LEVEL for row in rows])) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="fewer cohorts: whether it runs, not the figures")
    parser.add_argument("--cohorts", type=int, nargs=2, default=FULL, help="without an effect and with one (1000 200)")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    add_record(parser)
    arguments = parser.parse_args()
    rows = []
    n_null, n_effect = SMALL if arguments.small else arguments.cohorts
    start = time.perf_counter()
    print(f"{'design':12s} {'test':26s} {f'false positives of {n_null:,}':>24s} {'power':>8s}")
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for design, enrichment in EFFECTS.items():
            null = rates(design, 0.0, range(n_null), pool)
            power = rates(design, enrichment, range(n_null, n_null + n_effect), pool)
            for name, rate in null.items():
                print(f"{design:12s} {name:26s} {rate:24.1%} {power[name]:8.2f}", flush=True)
                rows.append([design, name, f"{100 * rate:.1f}%", f"{power[name]:.2f}"])
    print(f"\nenrichment {EFFECTS}, {n_effect} cohorts each; {time.perf_counter() - start:.0f} s")
    if arguments.record:
        heads = ["design", "test", "false positives", "power"]
        note = (
            f"{n_null:,} cohorts without an effect and {n_effect:,} cohorts with an effect, with {CELLS} cells per "
            f"sample. The tests have a level of {100 * LEVEL:g}% and use 199 permutations. The effect raises the odds "
            f"of a branch {1 + EFFECTS['independent']:g}-fold, or {1 + EFFECTS['patients']:g}-fold for patients. No "
            "difference in dispersion is simulated."
        )
        write_table("power", heads, rows, note, folder=arguments.record)


if __name__ == "__main__":
    main()
