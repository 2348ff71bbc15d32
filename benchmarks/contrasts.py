"""How often contrasts of cell types call something where nothing differs, what they find, and how sure the split is.

Cohorts of 16 samples of 40 to 120 cells. Cells have negative-binomial counts of 60 genes; four types of cells have
marker genes of their own, and each sample has random odds of the types and random expression. Distances are those of
10 principal components of log-normalized counts.

null    Nothing differs between the groups. Designs: counts (samples have very different depths), donors (8 pairs whose
        donors vary strongly), doublets (a random share of cells of each sample is the sum of two cells), batch (6 of 8
        cases and 2 of 8 controls are of a batch that changes cells and shares; adjusted), nested (two samples of each
        of 10 patients, whose condition is that of the patient), dispersion (5 cases that vary three times as much as
        11 controls).
power   The odds of one type are tripled, or 12 genes of one type doubled, or both.
split   The share of abundance in the distance and its interval, where the truth is known.
half    So many of 12 types rise together: how often a stable type is called, and a risen one.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from provenance import add_record, write_table
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

import heatmover as hm
from heatmover.attribution import explain_groups
from heatmover.attribution.cell_types import abundance_statistics
from heatmover.attribution.contrast import set_up
from heatmover.statistics import Design
from heatmover.statistics.regression import controlled, smallest_p, two_sided
from heatmover.study import annotate, examine
from heatmover.study.contrasts import contrast_variable

LEVEL, RATE = 0.05, 0.1
N_GENES, N_TYPES, MARKERS, COMPONENTS = 60, 4, 8, 10
# Genes of type 1 that change in cases; they are no markers.
CHANGED = range(40, 52)
ODDS, EXPRESSION = 0.3, 0.15
# Overdispersion of the counts: the variance is mean + DISPERSION * mean^2.
DISPERSION, DEPTH = 0.3, 200.0
# Number of samples of a cohort that stands for the truth, and number of such cohorts.
LARGE, N_LARGE = 160, 8
# No cohort that was looked at when the methods were made has a seed from here on.
FIRST_SEED = 70_000


@dataclass(frozen=True)
class Cohort:
    """A simulated cohort: counts and type of each cell, its sample, and metadata of the samples."""

    counts: np.ndarray
    types: np.ndarray
    samples: np.ndarray
    condition: np.ndarray
    blocks: np.ndarray | None = None
    batch: np.ndarray | None = None


def simulate(
    design: str, rng: np.random.Generator, *, odds: float = 1.0, state: float = 1.0, n_samples: int = 16
) -> Cohort:
    """Simulate a cohort; in cases, the odds of type 0 and the expression of 12 genes of type 1 are multiplied."""
    condition = np.repeat(["case", "control"], n_samples // 2)
    blocks = batch = None
    if design == "donors":
        blocks = np.tile(np.arange(8), 2)
    elif design == "batch":
        batch = np.where(np.tile(np.arange(8), 2) < np.repeat([6, 2], 8), "x", "y")
    elif design == "nested":
        condition, blocks = np.repeat(["case", "control"], 10), np.arange(20) // 2
    elif design == "dispersion":
        condition = np.repeat(["case", "control"], [5, 11])
    n, case = len(condition), condition == "case"
    profile = np.random.default_rng(1).gamma(2.0, 1.0, N_GENES)  # the same in all cohorts
    programs = np.tile(profile, (N_TYPES, 1))
    for kind in range(N_TYPES):
        programs[kind, kind * MARKERS : (kind + 1) * MARKERS] *= 6
    spread = np.where(case & (design == "dispersion"), 3.0, 1.0)[:, None]
    log_odds = spread * ODDS * rng.normal(size=(n, N_TYPES))
    shifts = spread * EXPRESSION * rng.normal(size=(n, N_GENES))
    if blocks is not None:
        log_odds += 0.5 * rng.normal(size=(blocks.max() + 1, N_TYPES))[blocks]
        shifts += 0.3 * rng.normal(size=(blocks.max() + 1, N_GENES))[blocks]
    if batch is not None:
        log_odds += np.where(batch == "x", 1.0, 0.0)[:, None] * [1.0, -0.5, 0.0, 0.0]
        shifts += np.where(batch == "x", 1.0, 0.0)[:, None] * (0.5 * rng.normal(size=N_GENES))
    log_odds[case, 0] += np.log(odds)
    shares = np.exp(log_odds) / np.exp(log_odds).sum(axis=1, keepdims=True)
    counts, types, samples = [], [], []
    for sample in range(n):
        size = int(rng.integers(40, 121))
        kinds = rng.choice(N_TYPES, size, p=shares[sample])
        means = programs[kinds] * np.exp(shifts[sample])
        if case[sample]:
            means[np.ix_(kinds == 1, CHANGED)] *= state
        if design == "doublets":
            second = rng.random(size) < rng.uniform(0, 0.2)
            means[second] += means[rng.permutation(size)][second]
        deep = DEPTH * rng.lognormal(0, 0.3, size) * (rng.lognormal(0, 0.5) if design == "counts" else 1)
        means *= (deep / means.sum(axis=1))[:, None]
        counts.append(rng.negative_binomial(1 / DISPERSION, 1 / (1 + DISPERSION * means)))
        types.append(kinds)
        samples.append(np.full(size, sample))
    return Cohort(np.vstack(counts), np.concatenate(types), np.concatenate(samples), condition, blocks, batch)


def features_of(counts: np.ndarray) -> np.ndarray:
    return np.log1p(counts * (1e4 / np.maximum(counts.sum(axis=1, keepdims=True), 1)))


def study(cohort: Cohort, *, cells: bool = True):
    """Return the findings of the condition, contrasts of cell types along it, and whether single cells are called."""
    genes = features_of(cohort.counts)
    names = np.array([f"s{i:02d}" for i in cohort.samples])
    points = PCA(COMPONENTS, svd_solver="full").fit_transform(genes)
    comparison = hm.compare(points, names, n_neighbors=15, n_jobs=1, bias="corrected", random_state=0)
    fixed = None if cohort.batch is None else Design.from_columns({"batch": cohort.batch})
    findings = examine(comparison.test_distances, {"condition": cohort.condition}, blocks=cohort.blocks, adjust=fixed)
    values = cohort.condition
    found = contrast_variable(
        comparison, annotate("type", [f"type {kind}" for kind in cohort.types], len(names)), list(values),
        variable="condition", blocks=None if cohort.blocks is None else {"block": cohort.blocks}, adjust=fixed,
        features=genes, feature_names=[f"gene {i}" for i in range(N_GENES)],
    )  # fmt: skip
    points_called = None
    if cells:
        single = explain_groups(
            comparison.model, comparison.measures, values, group="case", blocks=cohort.blocks, adjust=fixed
        )
        points_called = (single.q_values <= RATE).any()
    return findings[0], found.contrasts[0], points_called


def calls(design: str, seed: int) -> dict[str, float]:
    """Return which kinds of calls a cohort without any difference has."""
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        finding, contrast, single = study(simulate(design, np.random.default_rng(seed)))
    tests = {name: float(test.p_value <= LEVEL) for name, test in finding.tests.items()}
    if design == "dispersion":  # dispersion differs, and so do the neighbors of dispersed samples
        del tests["dispersion"], tests["neighbor enrichment"], tests["smoothness"]
    return {
        "headline": tests["permanova"],
        "distance of means": float(contrast.differs),
        "dispersion": tests.get("dispersion", np.nan),
        "neighbors": tests.get("neighbor enrichment", np.nan),
        "smoothness": tests.get("smoothness", np.nan),
        "abundance": float(any(one.direction for one in contrast.types)),
        "state": float(any(one.moved for one in contrast.types)),
        "genes": float((contrast.drivers.q_values <= RATE).any()),
        "cells": float(single),
        "percentages": float(contrast.differs and contrast.abundance_share is not None),
    }


def found(design: str, odds: float, state: float, seed: int) -> dict[str, float]:
    """Return what is found of a true difference, and by simple tests of pseudobulk values and shares."""
    from scipy import stats

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        cohort = simulate(design, np.random.default_rng(seed), odds=odds, state=state)
        finding, contrast, _ = study(cohort, cells=False)
        by_name = {one.name: one for one in contrast.types}
        q_values = dict(zip(contrast.drivers.types, contrast.drivers.q_values, strict=True))["type 1"]
        shares = np.array([np.bincount(cohort.types[cohort.samples == i], minlength=4) for i in range(16)])
        shares = shares / shares.sum(axis=1, keepdims=True)
        case = cohort.condition == "case"
        ranks = stats.mannwhitneyu(shares[case, 0], shares[~case, 0]).pvalue * N_TYPES
        genes = features_of(cohort.counts)
        means = np.array([genes[(cohort.samples == i) & (cohort.types == 1)].mean(axis=0) for i in range(16)])
        plain = stats.ttest_ind(means[case], means[~case], equal_var=False).pvalue
        by_t = hm.statistics.false_discovery(np.tile(np.nan_to_num(plain, nan=1.0), N_TYPES))[:N_GENES]
    return {
        "headline": float(finding.answer.p_value <= LEVEL),
        "abundance": float(by_name["type 0"].direction == "more"),
        "abundance, Mann-Whitney": float(ranks <= RATE),
        "state": float(by_name["type 1"].moved),
        "genes": float((q_values[list(CHANGED)] <= RATE).mean()),
        "genes, Welch": float((by_t[list(CHANGED)] <= RATE).mean()),
    }


def halves(n_rising: int, seed: int) -> tuple[float, ...]:
    """Return whether a stable type is called, by shares, by one reference and as shipped; a risen one; two sets."""
    rng = np.random.default_rng(seed)
    case = np.repeat([True, False], 10)
    log_odds = 0.2 * rng.normal(size=(20, 12))
    log_odds[np.ix_(case, range(n_rising))] += np.log(2.5)
    exact = np.exp(log_odds) / np.exp(log_odds).sum(axis=1, keepdims=True)
    shares = np.array([rng.multinomial(600, row) / 600 for row in exact])
    groups = np.where(case, "case", "control")
    design = set_up(groups, 20, group="case", reference="control", blocks=None, n_permutations=499, rng=rng)
    tested = abundance_statistics(shares, np.full(20, 600.0), design.regressors, design.nuisance)
    least = smallest_p(tested.plain)
    called = controlled(tested.p_values(), least) <= RATE
    one = controlled(tested.p_values(slice(0, 1)), least) <= RATE
    plain = controlled(two_sided(tested.plain), least) <= RATE
    stable = slice(n_rising, None)
    risen = called[:n_rising].mean() if n_rising else 0.0
    return plain[stable].any(), one[stable].any(), called[stable].any(), risen, float(len(tested.sets) == 2)


def shares_of(kind: str, seed: int, n_samples: int = 16) -> tuple[float, ...]:
    """Return the share of abundance in the observed distance, its corrected estimate and interval; NaN without."""
    odds, state = {"neither": (1, 1), "abundance": (4, 1), "state": (1, 4), "both": (2, 4)}[kind]
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        cohort = simulate("plain", np.random.default_rng(seed), odds=odds, state=state, n_samples=n_samples)
        _, contrast, _ = study(cohort, cells=False)
    observed = contrast.abundance / contrast.distance
    share = contrast.abundance_share
    return (observed, *((np.nan,) * 3 if share is None else share))


DESIGNS = ("counts", "donors", "doublets", "batch", "nested", "dispersion")
EFFECTS = {"abundance x 3": (3.0, 1.0), "12 genes x 2": (1.0, 2.0), "both": (3.0, 2.0)}


def percent(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["null", "power", "split", "half"], metavar="TABLE")
    parser.add_argument("--cohorts", type=int, default=500, help="cohorts of each row (500)")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    add_record(parser)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.cohorts)

    with ProcessPoolExecutor(options.workers) as pool:

        def means(work) -> dict[str, float]:
            results = list(pool.map(work, seeds, chunksize=5))
            return {name: float(np.mean([one[name] for one in results])) for name in results[0]}

        if "null" in options.tables:
            rows = {design: means(partial(calls, design)) for design in DESIGNS}
            heads = list(rows["counts"])
            note = (
                f"{options.cohorts} cohorts without a difference for each design. Headline, distance of means, "
                "dispersion, neighbors and smoothness: share of cohorts with p at most 5% (standard error 1.0%). "
                "Abundance, state, genes and cells: share of cohorts with any call at a false discovery rate of 10%, "
                "which is at most 10% in theory (standard error 1.3%). Percentages: share of cohorts in which the "
                "distance is split into abundance and state. Empty: the statistic differs in truth."
            )
            table = [[design, *(percent(row[head]) for head in heads)] for design, row in rows.items()]
            write_table("contrasts_null", ["design", *heads], table, note, folder=options.record)
        if "power" in options.tables:
            rows = {
                f"{design}: {name}": means(partial(found, design, *effect))
                for design in ("plain", "donors", "batch")
                for name, effect in EFFECTS.items()
            }
            heads = list(next(iter(rows.values())))
            note = (
                f"{options.cohorts} cohorts in each row. Headline: p at most 5%. Abundance of the type that changes, "
                "state of the type that changes and its 12 changed genes: found at a false discovery rate of 10%. "
                "Mann-Whitney (Bonferroni over types) and Welch's t-test (false discovery rate over all genes and "
                "types) use the same shares and means, without pairs and covariates."
            )
            table = [[name, *(percent(row[head]) for head in heads)] for name, row in rows.items()]
            write_table("contrasts_power", ["cohort", *heads], table, note, folder=options.record)
        if "split" in options.tables:
            table = []
            for kind in ("neither", "abundance", "state", "both"):
                values = np.array(list(pool.map(partial(shares_of, kind), seeds, chunksize=5)))
                has = np.isfinite(values[:, 1])
                part = [percent(float(np.median(values[:, 0]))), percent(float(has.mean()))]
                if kind == "neither":
                    part += [""] * 4
                else:
                    truth = float(np.mean([shares_of(kind, seed, LARGE)[1] for seed in range(N_LARGE)]))
                    low, high = values[has, 2], values[has, 3]
                    part += [percent(float(np.median(values[has, 1]))), percent(truth)]
                    part += [f"{100 * np.median(low):.0f}% to {100 * np.median(high):.0f}%"]
                    part += [percent(float(((low <= truth) & (truth <= high)).mean()))]
                table.append([kind, *part])
            note = (
                f"{options.cohorts} cohorts in each row, 8 cases and 8 controls. Observed: median share of abundance "
                "in the distance between the group means. Stated: share of cohorts in which the summary has "
                "percentages. Corrected and interval: medians over these cohorts. Large cohort: the corrected share in "
                f"cohorts of {LARGE} samples, mean of {N_LARGE}. Coverage: share of the intervals that contain the "
                "share of the large cohort."
            )
            heads = ["what differs", "observed", "stated", "corrected", "large cohort", "95% interval", "coverage"]
            write_table("contrasts_split", heads, table, note, folder=options.record)
        if "half" in options.tables:
            table = []
            for n_rising in (0, 1, 2, 3, 4, 5, 6):
                values = np.array(list(pool.map(partial(halves, n_rising), seeds, chunksize=20)), dtype=float)
                table.append([str(n_rising), *map(percent, np.nan_to_num(values).mean(axis=0))])
            note = (
                f"{options.cohorts} cohorts of 10 cases and 10 controls in each row; 12 types, some of which rise "
                "together by a factor of 2.5. A stable type is called: share of cohorts, at a false discovery rate of "
                "10%, by shares alone, relative to one set of reference types, and as shipped."
            )
            heads = ["types that rise", "by shares", "one reference", "as shipped", "risen types found", "two sets"]
            write_table("contrasts_half", heads, table, note, folder=options.record)


if __name__ == "__main__":
    main()
