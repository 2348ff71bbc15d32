"""Genes within types: uniform p-values without differences, and false calls and power with known differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.attribution import drivers
from heatmover.attribution.contrast import set_up
from heatmover.attribution.pseudobulk import FeatureSums
from heatmover.statistics import moderation
from heatmover.study.genes import log_normalized

# With fewer genes, a difference of some would change the share of all others in the counts of a cell.
N_GENES = 1_000


def simulate(seed, n_samples, paired, n_true=0):
    """Return a contrast, means of genes in one type, and which genes differ by a factor of 2."""
    rng = np.random.default_rng(seed)
    groups, pairs = np.arange(n_samples) % 2, np.arange(n_samples) // 2
    base, deviation = rng.lognormal(0, 1, N_GENES), 0.15 / np.sqrt(rng.chisquare(6, N_GENES) / 6)
    donors = rng.normal(scale=0.3 if paired else 0, size=(n_samples, N_GENES))[pairs]
    truth = np.zeros(N_GENES, dtype=bool)
    truth[rng.choice(N_GENES, n_true, replace=False)] = True
    effect = truth * np.log(2) * rng.choice([-1, 1], N_GENES)
    sums = FeatureSums(1, n_samples, N_GENES)
    for sample in range(n_samples):
        size = int(rng.integers(8, 60))
        levels = np.log(base) + rng.normal(size=N_GENES) * deviation + donors[sample] + effect * groups[sample]
        depth = rng.lognormal(0, 0.3, (size, 1)) * rng.lognormal(0, 0.2)
        counts = rng.poisson(np.exp(levels) * depth).astype(float)
        where = sp.csr_array((np.ones(size), (np.full(size, sample), np.arange(size))), shape=(n_samples, size))
        sums.add(where, log_normalized(sp.csr_array(counts)))
    bulk = sums.finish(("T",), tuple(map(str, range(N_GENES))), least_cells=10, least_share=0.01)
    design = set_up(
        np.array(["control", "case"])[groups], n_samples, group="case", reference="control",
        blocks=pairs if paired else None, n_permutations=99, rng=rng,
    )  # fmt: skip
    return design, bulk, truth


@pytest.mark.parametrize(("n_samples", "paired"), [(4, False), (6, True)])
def test_p_values_are_uniform_with_few_samples_of_unequal_depth(n_samples, paired):
    shares = []
    for seed in range(15):
        design, bulk, _ = simulate(seed, n_samples, paired)
        found = drivers.find_drivers(design, bulk)
        assert found.method == "moderated t"
        shares.append((found.p_values[found.tested] <= 0.05).mean())
    # Genes of one data set are correlated by the depths of its samples, so the error is that between data sets.
    assert np.mean(shares) == pytest.approx(0.05, abs=3.5 * np.std(shares) / np.sqrt(len(shares)) + 0.005)


def test_more_genes_are_found_than_by_plain_t_tests_with_four_against_four(monkeypatch):
    rates = {}
    for name, least in (("moderated", moderation.FOR_PRIOR), ("plain", 10**9)):
        monkeypatch.setattr(moderation, "FOR_PRIOR", least)
        found = []
        for seed in range(10):
            design, bulk, truth = simulate(100 + seed, 8, paired=False, n_true=100)
            called = drivers.find_drivers(design, bulk).q_values[0] <= 0.1
            found.append(((called & ~truth).sum() / max(called.sum(), 1), (called & truth).sum() / truth.sum()))
        rates[name] = np.array(found)
    false, power = rates["moderated"].T
    assert false.mean() <= 0.1 + 2 * false.std() / np.sqrt(false.size)
    assert power.mean() > rates["plain"][:, 1].mean() + 0.1


def test_sums_of_dense_and_sparse_blocks_agree():
    rng = np.random.default_rng(0)
    values = rng.poisson(1.0, size=(30, 5)).astype(float)
    where = sp.csr_array((np.ones(30), (rng.integers(0, 6, 30), np.arange(30))), shape=(6, 30))
    whole, blocks = FeatureSums(2, 3, 5), FeatureSums(2, 3, 5)
    whole.add(where, values)
    for part in (slice(0, 13), slice(13, 30)):
        blocks.add(sp.csr_array(where[:, part]), sp.csr_array(values[part]))
    first, second = (sums.finish(("a", "b"), tuple("vwxyz"), least_cells=2) for sums in (whole, blocks))
    for name in ("counts", "means", "squares", "tested"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name))
    assert first.of([2]).means.shape == (2, 1, 5)
