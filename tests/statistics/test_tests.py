"""Permutation tests against plain oracles: sums over pairs, coordinates, loops, all permutations."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import binom, f_oneway, ttest_ind

from heatmover._base.compiled.l1 import WEIGHTS as CHUNK
from heatmover.errors import InvalidInputError
from heatmover.statistics import (
    dispersion,
    distance_correlation,
    explained_variation,
    false_discovery,
    neighbor_enrichment,
    permanova,
)
from heatmover.statistics.permutations import Restriction, check_distances, permute, restrict

LABELED = [permanova, dispersion, neighbor_enrichment]
ALL = [*LABELED, distance_correlation]
LABELS = np.array(list("aaabbbbcc"))


def coordinates(n=9, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 3)) * [3, 2, 1]


def apart(points, metric="euclidean"):
    return cdist(points, points, metric)


def pseudo_f(distances, labels):
    """Anderson (2001), sums over pairs."""
    n, groups = len(labels), sorted(set(labels))
    total = sum(distances[i, j] ** 2 for i in range(n) for j in range(i)) / n
    inside = 0.0
    for group in groups:
        members = [i for i in range(n) if labels[i] == group]
        inside += sum(distances[i, j] ** 2 for i in members for j in members if j < i) / len(members)
    return ((total - inside) / (len(groups) - 1)) / (inside / (n - len(groups)))


def brute_p(statistic, labels, allowed=lambda order: True):
    """The share of all permutations whose statistic is at least that of the identity."""
    observed = statistic(labels)
    orders = [order for order in permutations(range(len(labels))) if allowed(order)]
    return np.mean([statistic(labels[list(order)]) >= observed - 1e-9 * abs(observed) for order in orders])


@pytest.mark.parametrize("metric", ["euclidean", "cityblock", "sqeuclidean"])
def test_permanova_has_the_f_of_sums_over_pairs(metric):
    distances = apart(coordinates(), metric)
    result = permanova(distances, LABELS, statistic="pseudo-F", n_permutations=5)
    assert result.statistic == pytest.approx(pseudo_f(distances, LABELS))
    assert result.groups == ("a", "b", "c")


def test_permanova_of_a_line_is_the_analysis_of_variance():
    values = coordinates()[:, 0]
    result = permanova(abs(values[:, None] - values), LABELS, statistic="pseudo-F", n_permutations=5)
    assert result.statistic == pytest.approx(f_oneway(*(values[g == LABELS] for g in "abc")).statistic)


def test_permanova_in_space_adds_the_sums_of_squares_of_all_axes():
    points = coordinates()
    between = sum(
        (g == LABELS).sum() * ((points[g == LABELS].mean(axis=0) - points.mean(axis=0)) ** 2).sum() for g in "abc"
    )
    total = ((points - points.mean(axis=0)) ** 2).sum()
    result = permanova(apart(points), LABELS, statistic="pseudo-F", n_permutations=5)
    assert result.effect == pytest.approx(between / total)
    assert result.statistic == pytest.approx((between / 2) / ((total - between) / 6))


def test_permanova_of_non_euclidean_distances_may_be_negative_and_counts_right():
    # Members of a group are farther from each other than from the rest: more than the whole is inside.
    labels = np.array(list("aabb"))
    distances = np.where(labels[:, None] == labels, 5.0, 1.0) * (1 - np.eye(4))
    welch, result = (permanova(distances, labels, statistic=each) for each in ("welch", "pseudo-F"))
    assert welch.effect == result.effect < 0
    assert result.statistic == pytest.approx(pseudo_f(distances, labels))
    assert welch.p_value == result.p_value == 1.0


def welch(distances, labels, blocks=None, units=None):
    """Welch's statistic by coordinates of the samples, one group against the others at a time."""
    n = len(labels)
    gram = -0.5 * distances**2
    gram = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh(gram)
    places = vectors * np.sqrt(np.maximum(values, 0))
    blocks = np.zeros(n) if blocks is None else np.asarray(blocks)
    units = np.arange(n) if units is None else np.asarray(units)
    nuisance = (blocks[:, None] == np.unique(blocks)).astype(float)
    names = np.unique(labels)
    freedom = n - np.linalg.matrix_rank(np.hstack([nuisance, labels[:, None] == names]))
    shares = []
    for name in names:
        columns = np.column_stack([nuisance, labels == name])
        coefficient, *_ = np.linalg.lstsq(columns, places, rcond=None)
        left = places - columns @ coefficient
        contrast = columns[:, -1] - nuisance @ np.linalg.lstsq(nuisance, columns[:, -1], rcond=None)[0]
        hat = columns @ np.linalg.pinv(columns)
        variance = 0
        for unit in np.unique(units):
            own = units == unit
            influence = contrast[own].sum() * left[own].mean(axis=0)
            variance += (influence**2).sum() / max(1 - hat[np.ix_(own, own)].sum() / own.sum(), 1e-9)
        t = (coefficient[-1] ** 2).sum() * (contrast**2).sum() ** 2 / variance
        shares.append(t / (t + freedom))
    return np.mean(shares) / (1 - np.mean(shares)) * freedom


STATISTICS = [("pseudo-F", pseudo_f), ("welch", welch)]


def test_the_null_holds_the_statistic_of_every_permutation():
    distances, labels = apart(coordinates(6)), np.array(list("aabbbb"))
    for name, oracle in STATISTICS:
        result = permanova(distances, labels, statistic=name)
        assert result.complete
        expected = {round(oracle(distances, labels[list(order)]), 9) for order in permutations(range(6))}
        assert {round(f, 9) for f in [*result.null, result.statistic]} == expected
        assert len(result.null) == 14


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda pair: pair[0])
@pytest.mark.parametrize("labels", ["aabbbb", "aaabbb", "aabbcc"])
@pytest.mark.parametrize("seed", [0, 1])
def test_exhaustive_p_value_of_permanova_is_that_of_all_permutations(labels, seed, statistic):
    distances, labels = apart(coordinates(6, seed)), np.array(list(labels))
    result = permanova(distances, labels, statistic=statistic[0])
    assert result.complete
    assert result.statistic == pytest.approx(statistic[1](distances, labels))
    assert result.p_value == pytest.approx(brute_p(lambda each: statistic[1](distances, each), labels))


def test_exhaustive_p_value_within_blocks_and_by_units():
    distances, labels = apart(coordinates(7)), np.array(list("abbabba"))
    blocks = np.array(list("xxxyyyy"))
    of_unit, units = np.array(list("abbab")), np.array([0, 0, 0, 1, 2, 3, 4])
    for name, oracle in STATISTICS:
        held = {"blocks": blocks} if name == "welch" else {}
        result = permanova(distances, labels, statistic=name, blocks=blocks)
        expected = brute_p(
            lambda each, oracle=oracle, held=held: oracle(distances, each, **held),
            labels,
            lambda order: (blocks[list(order)] == blocks).all(),
        )
        assert result.p_value == pytest.approx(expected)

        held = {"units": units} if name == "welch" else {}
        result = permanova(distances, of_unit[units], statistic=name, blocks=units)
        assert result.statistic == pytest.approx(oracle(distances, of_unit[units], **held))
        of_all = brute_p(lambda each, oracle=oracle, held=held: oracle(distances, each[units], **held), of_unit)
        assert result.p_value == pytest.approx(of_all)


def test_welch_of_two_groups_on_a_line_is_the_square_of_t():
    values, labels = coordinates(12)[:, 0], np.array(list("aaaabbbbbbbb"))
    result = permanova(abs(values[:, None] - values), labels, n_permutations=5)
    t = ttest_ind(values[labels == "a"], values[labels == "b"], equal_var=False).statistic
    assert result.statistic == pytest.approx(t**2)
    alike = np.array(list("aaaaaabbbbbb"))  # with groups of equal size, both statistics order the permutations alike
    by_both = [permanova(apart(coordinates(12)), alike, statistic=each).p_value for each in ("welch", "pseudo-F")]
    assert by_both[0] == by_both[1]


@pytest.mark.parametrize("adjusted", [False, True])
def test_few_dispersed_cases_are_not_called_different(adjusted):
    """Five cases with three times the dispersion of fifteen controls, at the same location; benchmarks/welch.py."""
    called = {"welch": 0, "pseudo-F": 0}
    labels = np.repeat(["case", "control"], [5, 15])
    for seed in range(60):
        rng = np.random.default_rng([seed, 43])
        places, age = rng.normal(size=(20, 10)) * np.where(labels == "case", 3, 1)[:, None], rng.normal(size=20)
        more = {"adjust": {"age": age}} if adjusted else {}
        distances = apart(places + 2 * age[:, None] * adjusted)
        for name in called:
            found = permanova(distances, labels, statistic=name, n_permutations=99, **more)
            called[name] += found.p_value <= 0.05
    assert called["welch"] <= 9
    assert called["pseudo-F"] >= 24


def test_many_pairs_take_no_longer_than_few_blocks():
    """The columns of 300 pairs are never permuted: 999 orders of 300 columns would take minutes."""
    rng = np.random.default_rng(0)
    pair, visit = np.repeat(np.arange(300), 2), np.tile(["before", "after"], 300)
    places = rng.normal(size=(300, 3))[pair] + rng.normal(size=(600, 3)) + 0.3 * (visit == "after")[:, None]
    by_both = [permanova(apart(places), visit, blocks=pair, statistic=each) for each in ("welch", "pseudo-F")]
    assert by_both[0].p_value == by_both[1].p_value <= 0.01


def test_an_unknown_statistic_is_one_clear_error():
    with pytest.raises(InvalidInputError, match="statistic to be one of 'welch', 'pseudo-F', found 'F'"):
        permanova(apart(coordinates()), LABELS, statistic="F")


def test_exhaustive_p_values_of_the_other_tests():
    distances, labels, numbers = apart(coordinates(6)), np.array(list("aaabbb")), np.array([3.0, 1, 4, 1, 5, 9])
    near = neighbor_enrichment(distances, labels, k=2)
    assert near.p_value == pytest.approx(brute_p(lambda each: same_label_share(distances, each, 2), labels))
    correlated = distance_correlation(distances, numbers)
    assert correlated.p_value == pytest.approx(brute_p(lambda each: looped_correlation(distances, each), numbers))


def test_perfect_separation_counts_its_mirror_image():
    positions = np.array([0.0, 0, 0, 1, 1, 1])
    for name in ("welch", "pseudo-F"):
        result = permanova(abs(positions[:, None] - positions), list("aaabbb"), statistic=name)
        assert result.statistic > 1e9
        assert result.effect == pytest.approx(1.0)
        assert result.p_value == 2 / 20


def bounded(distances, labels):
    """Scores of distances, in units of the median one within groups."""
    same = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)
    unit = np.median(distances[same & (distances > 0)])
    return distances / (distances + unit)


def contributions(scores, labels):
    """Twice the mean score of each sample within its group, less that of the group."""
    found = np.empty(len(labels))
    for group in set(labels):
        members = np.flatnonzero(labels == group)
        own = np.array([np.mean([scores[i, j] for j in members if j != i]) for i in members])
        found[members] = 2 * own - own.mean()
    return found


def test_dispersion_is_the_analysis_of_variance_of_contributions():
    distances, labels = apart(coordinates(10)), np.array(list("aaabbbbccc"))
    result = dispersion(distances, labels, n_permutations=5)
    found = contributions(bounded(distances, labels), labels)
    groups = [found[g == labels] for g in "abc"]
    assert result.statistic == pytest.approx(f_oneway(*groups).statistic)
    typical = [group.mean() / (1 - group.mean()) for group in groups]
    assert result.effect == pytest.approx(max(typical) / min(typical))


def test_dispersion_sees_no_difference_in_place():
    """Neither statistic nor effect change when a group is moved, and the p-value hardly."""
    points, labels = coordinates(24, 3), np.repeat(["a", "b"], 12)
    results = [dispersion(apart(points + [[shift, 0, 0]] * (labels == "b")[:, None]), labels) for shift in (30, 1e4)]
    assert results[0].statistic == pytest.approx(results[1].statistic, rel=1e-6)
    assert results[0].effect == pytest.approx(results[1].effect, rel=1e-6)
    assert results[0].p_value == pytest.approx(results[1].p_value, abs=0.02)


def test_exhaustive_p_value_of_dispersion_around_a_shared_center():
    """Where both groups have their median in the same sample nothing is moved, and the test is exact."""
    places = np.array([0.0, 0, 0, 0, 0, 0, 1, -3, 7])
    distances, labels = abs(places[:, None] - places), np.array(list("aaabbbaab"))
    scores = bounded(distances, labels)

    def f(each):
        found = contributions(scores, each)
        return f_oneway(found[each == "a"], found[each == "b"]).statistic

    result = dispersion(distances, labels)
    assert result.complete
    orders = {tuple(labels[list(chosen)]) for chosen in distinct_orders(labels)}
    assert result.p_value == pytest.approx(np.mean([f(np.array(each)) >= f(labels) - 1e-9 for each in orders]))


def distinct_orders(labels):
    """One permutation for each way to choose the members of the first of two groups."""
    inside = np.flatnonzero(labels == labels[0])
    others = np.flatnonzero(labels != labels[0])
    for chosen in combinations(range(len(labels)), len(inside)):
        order = np.empty(len(labels), dtype=int)
        order[list(chosen)] = inside
        order[[i for i in range(len(labels)) if i not in chosen]] = others
        yield order


SHAPES = {
    "gaussian": lambda rng, n: rng.normal(size=(n, 2)),
    "outlier": lambda rng, n: rng.normal(size=(n, 2)) + 1000 * (np.arange(n) == rng.integers(n))[:, None],
    "cauchy": lambda rng, n: rng.standard_t(1, size=(n, 2)),
    "identical": lambda rng, n: rng.normal(size=(n, 2)) * (rng.random((n, 1)) > 0.8),
    "skewed": lambda rng, n: np.exp(1.2 * rng.normal(size=(n, 2))),
}


@pytest.mark.parametrize(("sizes", "shift"), [((10, 10), 0.0), ((6, 20), 5.0)], ids=["together", "apart"])
@pytest.mark.parametrize("shape", SHAPES)
def test_dispersion_keeps_its_level(shape, sizes, shift):
    """A sample of benchmarks/dispersion.py; distances to means called outliers and ties in 16 to 100% of runs."""
    rng = np.random.default_rng(0)
    groups, repeats, called = np.repeat([0, 1], sizes), 100, 0
    for _ in range(repeats):
        distances = apart(SHAPES[shape](rng, groups.size) + shift * groups[:, None])
        called += dispersion(distances, groups, n_permutations=99, random_state=rng).p_value <= 0.05
    assert called <= binom.ppf(1 - 1e-4, repeats, 0.05)


@pytest.mark.parametrize("design", ["within", "units"])
def test_dispersion_keeps_its_level_in_blocks_and_by_units(design):
    rng = np.random.default_rng(0)
    repeats, called = 80, 0
    for _ in range(repeats):
        if design == "within":
            # Two batches with unequal shares of the groups, far apart.
            of_sample = np.repeat([0, 1, 0, 1], [10, 5, 5, 10])
            block = np.repeat([0, 1], 15)
            places = rng.normal(size=(30, 2)) + 6 * block[:, None] + 2 * of_sample[:, None]
        else:
            block = np.repeat(np.arange(20), 1 + rng.integers(3, size=20))
            of_sample = (block >= 10).astype(int)
            places = rng.normal(size=(20, 2))[block] + 0.1 * rng.normal(size=(block.size, 2)) + 2 * of_sample[:, None]
        found = dispersion(apart(places), of_sample, n_permutations=99, random_state=rng, blocks=block)
        called += found.p_value <= 0.05
    assert called <= binom.ppf(1 - 1e-4, repeats, 0.05)


@pytest.mark.parametrize("outlier", [0.0, 1e6])
def test_dispersion_is_found_with_and_without_an_outlier(outlier):
    rng = np.random.default_rng(1)
    groups, found = np.repeat([0, 1], 15), 0
    for _ in range(40):
        places = rng.normal(size=(30, 2)) * np.where(groups, 4.0, 1.0)[:, None] + 4 * groups[:, None]
        places[rng.integers(30)] += outlier
        found += dispersion(apart(places), groups, n_permutations=99, random_state=rng).p_value <= 0.05
    assert found >= 30


def test_dispersion_of_distances_that_no_space_holds():
    rng = np.random.default_rng(2)
    distances = rng.uniform(1, 20, size=(12, 12))
    distances = np.triu(distances, 1) + np.triu(distances, 1).T
    result = dispersion(distances, np.repeat(["a", "b"], 6))
    assert 0 < result.p_value <= 1
    assert np.isfinite(result.null).all()


def test_dispersion_with_units_counts_units():
    points = np.repeat(coordinates(8), 2, axis=0)
    labels, units = np.repeat(list("aaabbbbb"), 2), np.repeat(np.arange(8), 2)
    alone = dispersion(apart(points[::2]), labels[::2])
    twice = dispersion(apart(points), labels, blocks=units)
    assert twice.effect == pytest.approx(alone.effect)
    assert twice.p_value == pytest.approx(alone.p_value)


def test_dispersion_of_equidistant_samples_is_none():
    result = dispersion(1 - np.eye(9), LABELS)
    assert (result.statistic, result.p_value) == (0.0, 1.0)
    assert result.effect == pytest.approx(1.0)


def test_dispersion_is_infinite_if_a_group_has_no_spread():
    positions = np.array([0.0, 0, 0, 1, 2, 4])
    assert dispersion(abs(positions[:, None] - positions), list("aaabbb")).effect == np.inf


def same_label_share(distances, labels, k):
    shares = {label: [] for label in labels}
    for i, label in enumerate(labels):
        others = sorted((j for j in range(len(labels)) if j != i), key=lambda j: distances[i, j])
        shares[label].append(np.mean([labels[j] == label for j in others[:k]]))
    return np.mean([np.mean(share) for share in shares.values()])


@pytest.mark.parametrize("k", [1, 3, 8])
def test_neighbor_enrichment_is_the_mean_share_of_equal_labels(k):
    distances = apart(coordinates())
    result = neighbor_enrichment(distances, LABELS, k=k, n_permutations=50)
    assert result.statistic == pytest.approx(same_label_share(distances, LABELS, k))
    assert result.effect == pytest.approx(result.statistic / result.null.mean())


def test_neighbors_equally_far_share_the_places_left():
    # The first sample has one nearer neighbor (a) and three at the same distance (a, b, b) for one place.
    positions = np.array([[0, 0], [0.5, 0], [0, 1], [0, -1], [-1, 0], [9, 9]])
    labels = np.array(list("aaabbb"))
    near = apart(positions)
    own = (1 + 1 / 3) / 2
    others = [same_label_share_of(near, labels, i, 2) for i in range(1, 6)]
    shares = np.array([own, *others])
    result = neighbor_enrichment(near, labels, k=2)
    assert result.statistic == pytest.approx((shares[:3].mean() + shares[3:].mean()) / 2)


def same_label_share_of(distances, labels, i, k):
    """By the definition with weights for ties."""
    others = [j for j in range(len(labels)) if j != i]
    farthest = sorted(distances[i, others])[k - 1]
    nearer = [j for j in others if distances[i, j] < farthest - 1e-9]
    tied = [j for j in others if abs(distances[i, j] - farthest) <= 1e-9]
    same = sum(labels[j] == labels[i] for j in nearer)
    return (same + sum(labels[j] == labels[i] for j in tied) * (k - len(nearer)) / len(tied)) / k


def test_samples_of_one_unit_are_no_neighbors():
    # Two samples of each patient coincide; patients alternate in label along a line.
    positions = np.repeat(np.arange(6.0), 2)
    labels, units = np.repeat(list("ababab"), 2), np.repeat(np.arange(6), 2)
    distances = abs(positions[:, None] - positions)
    assert neighbor_enrichment(distances, labels, k=1).statistic == 1.0
    assert neighbor_enrichment(distances, labels, k=1, blocks=units).statistic == 0.0


def looped_correlation(distances, values):
    n = len(values)
    other = [[abs(a - b) for b in values] for a in values]

    def centerd(m):
        rows = [sum(row) / n for row in m]
        grand = sum(rows) / n
        return [[m[i][j] - rows[i] - rows[j] + grand for j in range(n)] for i in range(n)]

    a, b = centerd(distances.tolist()), centerd(other)

    def covariance(x, y):
        return sum(x[i][j] * y[i][j] for i in range(n) for j in range(n)) / n**2

    return np.sqrt(covariance(a, b) / np.sqrt(covariance(a, a) * covariance(b, b)))


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
def test_distance_correlation_is_that_of_the_definition(metric):
    distances, values = apart(coordinates(), metric), coordinates(seed=5)[:, 0]
    result = distance_correlation(distances, values, n_permutations=20)
    assert result.statistic == pytest.approx(looped_correlation(distances, values))
    assert result.effect == pytest.approx(result.statistic - result.null.mean())


def plain_correlation(distances, values):
    """The square of the distance correlation from all pairs, centerd one after the other."""
    first, second = (
        pairs - pairs.mean(axis=0) - pairs.mean(axis=1)[:, None] + pairs.mean()
        for pairs in (distances, abs(np.subtract.outer(values, values)))
    )
    return (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())


@pytest.mark.parametrize("kind", ["distinct", "tied", "one remote", "far from zero"])
@pytest.mark.parametrize("blocks", [None, "within", "whole"])
def test_distance_correlation_of_every_permutation_by_all_pairs(kind, blocks, monkeypatch):
    # Blocks of seven permutations: the last of each is repeated, and the last block is shorter.
    monkeypatch.setattr("heatmover.statistics.permutations.NUMBERS", 7 * 30)
    monkeypatch.setattr("heatmover.statistics.permutations.LEAST_COLUMNS", 1)
    rng = np.random.default_rng(4)
    values = rng.normal(size=10) if blocks == "whole" else rng.normal(size=30)
    change = {"distinct": values, "tied": np.round(values), "far from zero": values + 1e6}
    values = change.get(kind, np.where(np.arange(values.size) == 2, 1e6, values))
    # Units of unequal size change what numbers there are.
    units = np.sort(np.arange(30) % 10 * (np.arange(30) % 3 > 0))
    units = np.unique(units, return_inverse=True)[1]
    values = values[units] if blocks == "whole" else values
    tied = {None: None, "within": np.arange(30) // 10, "whole": units}[blocks]
    distances = apart(coordinates(30))
    result = distance_correlation(distances, values, blocks=tied, n_permutations=40)
    drawn = permute(values, restrict(values, tied), n_permutations=40, random_state=0).shuffled
    expected = [max(plain_correlation(distances, row), 0) for row in drawn]
    np.testing.assert_allclose(result.null**2, expected, rtol=1e-9, atol=1e-12)
    assert result.statistic**2 == pytest.approx(plain_correlation(distances, values), rel=1e-9)


def test_distance_correlation_of_more_samples_than_one_chunk():
    rng = np.random.default_rng(8)
    distances, values = apart(rng.normal(size=(CHUNK + 90, 2))), rng.normal(size=CHUNK + 90)
    result = distance_correlation(distances, values, n_permutations=2)
    drawn = permute(values, Restriction(), n_permutations=2, random_state=0).shuffled
    np.testing.assert_allclose(result.null**2, [plain_correlation(distances, row) for row in drawn], rtol=1e-10)


def test_both_directions_are_averaged():
    rng = np.random.default_rng(9)
    one_way = apart(rng.normal(size=(60, 2))) * (1 + 1e-7 * rng.normal(size=(60, 60)))
    found = check_distances(one_way)
    assert (found == (one_way + one_way.T) / 2).all()
    one_way[3, 45] += 1
    with pytest.raises(InvalidInputError, match=r"differences of up to 1(\.0+\d*)?;"):
        check_distances(one_way)


@pytest.mark.parametrize("test", ALL)
def test_the_number_of_threads_changes_no_bit(test, monkeypatch):
    monkeypatch.setattr("heatmover.statistics.permutations.NUMBERS", 500)
    monkeypatch.setattr("heatmover.statistics.permutations.LEAST_COLUMNS", 1)
    rng = np.random.default_rng(5)
    distances = apart(rng.normal(size=(24, 3)))
    variable = rng.normal(size=24) if test is distance_correlation else rng.permutation(np.repeat(list("abc"), 8))
    found = []
    for n_threads in (1, 2, 5):
        monkeypatch.setattr("heatmover.statistics.permutations.check_threads", lambda _, n=n_threads: n)
        found.append(test(distances, variable, n_permutations=199).null)
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_distance_correlation_with_itself_is_one_and_needs_no_unit():
    values = np.arange(12.0) ** 2
    for unit in (1e-200, 1.0, 1e200):
        result = distance_correlation(abs(values[:, None] - values) * unit, -values * unit)
        assert result.statistic == pytest.approx(1.0)
        assert result.p_value == 0.001


def test_distance_correlation_by_units_of_unequal_size():
    units = np.array([0, 0, 0, 1, 2, 3, 3])
    of_unit, distances = np.array([2.0, 7, 1, 4]), apart(coordinates(7))
    result = distance_correlation(distances, of_unit[units], blocks=units)
    assert result.complete
    expected = [looped_correlation(distances, np.array(order)[units]) for order in permutations(of_unit)]
    assert sorted([*result.null, result.statistic]) == pytest.approx(sorted(expected))


@pytest.mark.parametrize("test", ALL)
@given(seed=st.integers(0, 10_000), unit=st.sampled_from([1e-180, 0.1, 1e180]))
@settings(max_examples=15, deadline=None)
def test_neither_order_nor_unit_matters(test, seed, unit):
    rng = np.random.default_rng(seed)
    distances, order = apart(rng.normal(size=(7, 2)).round(1)), rng.permutation(7)
    variable = np.array([0, 0, 0, 1, 1, 2, 2])
    options = {"k": 2} if test is neighbor_enrichment else {}
    one = test(distances, variable, **options)
    other = test(distances[np.ix_(order, order)] * unit, variable[order], **options)
    assert one.complete
    assert other.complete
    assert other.p_value == pytest.approx(one.p_value)
    assert other.statistic == pytest.approx(one.statistic, rel=1e-6, abs=1e-9)


# Dispersion is left out: its centers are estimated, so that its p-values are uniform only nearly.
@pytest.mark.parametrize("test", [permanova, neighbor_enrichment, distance_correlation])
def test_p_values_are_uniform_under_the_null(test):
    rng = np.random.default_rng(0)
    repeats, p = 400, []
    for _ in range(repeats):
        distances = apart(rng.normal(size=(14, 2)))
        variable = rng.normal(size=14) if test is distance_correlation else rng.permutation(np.repeat([0, 1], [5, 9]))
        p.append(test(distances, variable, n_permutations=99, random_state=rng).p_value)
    for level in (0.05, 0.2, 0.5):
        # Both tails of the binomial number at one in ten thousand each.
        low, high = binom.ppf([1e-4, 1 - 1e-4], repeats, level)
        assert low <= (np.array(p) <= level + 1e-12).sum() <= high, level


def test_ignoring_blocks_finds_a_difference_that_blocks_explain():
    rng = np.random.default_rng(1)
    batch = np.repeat([0, 1], 20)
    # Three quarters of one group are in the first batch; the batches differ, the groups within a batch do not.
    groups = np.concatenate([np.repeat(["a", "b"], [15, 5]), np.repeat(["a", "b"], [5, 15])])
    naive, restricted = [], []
    for _ in range(100):
        distances = apart(rng.normal(size=(40, 2)) + 3 * batch[:, None])
        naive.append(permanova(distances, groups, n_permutations=99, random_state=rng).p_value)
        restricted.append(permanova(distances, groups, blocks=batch, n_permutations=99, random_state=rng).p_value)
    assert np.mean(np.array(naive) <= 0.05) > 0.9
    assert (np.array(restricted) <= 0.05).sum() <= binom.ppf(1 - 1e-4, 100, 0.05)


def test_pairs_reveal_a_difference_that_patients_hide():
    rng = np.random.default_rng(2)
    patient = np.repeat(np.arange(12), 2)
    groups = np.tile(["before", "after"], 12)
    positions = 10 * rng.normal(size=12)[patient] + (groups == "after") + 0.1 * rng.normal(size=24)
    distances = abs(positions[:, None] - positions)
    assert permanova(distances, groups).p_value > 0.5
    # Of all 2^12 ways to swap, only none and all have every difference in one direction.
    paired = permanova(distances, groups, blocks=patient, n_permutations=5_000)
    assert paired.complete
    assert paired.p_value == 2 / 2**12


def test_ignoring_units_takes_repeats_for_evidence():
    rng = np.random.default_rng(3)
    patient = np.repeat(np.arange(8), 5)
    naive, right = [], []
    for _ in range(60):
        positions = rng.normal(size=(8, 2))[patient] + 0.1 * rng.normal(size=(40, 2))
        groups = rng.permutation(np.repeat(["a", "b"], 4))[patient]
        naive.append(permanova(apart(positions), groups, n_permutations=99, random_state=rng).p_value)
        right.append(permanova(apart(positions), groups, blocks=patient, random_state=rng).p_value)
    assert np.mean(np.array(naive) <= 0.05) > 0.3
    assert (np.array(right) <= 0.05).sum() <= binom.ppf(1 - 1e-4, 60, 0.05)


def test_many_permutations_are_evaluated_in_parts():
    distances = apart(coordinates(20))
    labels = np.repeat(["a", "b"], 10)
    result = permanova(distances, labels, n_permutations=2_500, random_state=1)
    assert result.null.shape == (2_500,)
    assert not result.complete
    assert result.p_value == (np.sum(result.null >= result.statistic) + 1) / 2_501


def test_results_cannot_be_changed_and_read_well():
    result = permanova(apart(coordinates()), LABELS, n_permutations=9)
    assert repr(result).startswith("TestResult(permanova: statistic ")
    assert "9 permutations" in repr(result)
    with pytest.raises(ValueError, match="read-only"):
        result.null[0] = 1


@pytest.mark.parametrize("test", LABELED)
@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(LABELS),
        pd.Categorical(LABELS, categories=["c", "b", "a", "unused"]),
        LABELS.tolist(),
        tuple(LABELS),
        LABELS.astype(object),
    ],
)
def test_labels_may_come_in_any_container(test, labels):
    options = {"n_permutations": 9, "random_state": 0}
    distances = apart(coordinates())
    assert test(distances, labels, **options).groups == ("a", "b", "c")
    assert test(distances, labels, **options).p_value == test(distances, LABELS, **options).p_value


@given(st.lists(st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1)), min_size=1, max_size=12))
def test_q_values_are_the_smallest_rate_at_which_a_test_is_a_discovery(p):
    q = false_discovery(p)
    n = len(p)
    for i, own in enumerate(p):
        # At every threshold that includes the test: expected false discoveries over discoveries.
        expected = min(n * t / sum(other <= t for other in p) for t in p if t >= own)
        assert q[i] == pytest.approx(expected)
    assert (q >= np.array(p) - 1e-15).all()
    assert (q <= 1).all()


def asymmetric():
    matrix = apart(coordinates())
    matrix[0, 1] *= 2
    return matrix


def with_nan():
    matrix = apart(coordinates())
    matrix[2, 3] = matrix[3, 2] = np.nan
    return matrix


@pytest.mark.parametrize("test", ALL)
@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (asymmetric(), "both directions"),
        (with_nan(), "without NaN"),
        (apart(coordinates())[:8], r"shape (8, 9)"),
        (apart(coordinates())[0], "2-d"),
        (1 - apart(coordinates()), "at least zero"),
        (apart(coordinates()) + 1, "diagonal"),
        (apart(coordinates(8)), "(8,)"),
        ([["a", "b"], ["c", "d"]], "numbers"),
    ],
)
def test_distances_that_are_none_are_refused(test, distances, message):
    with pytest.raises(InvalidInputError) as error:
        test(distances, np.arange(9) % 3)
    assert message in str(error.value)


@pytest.mark.parametrize("test", LABELED)
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a"] * 9, "at least two groups"),
        (list("abcdefghi"), "9 samples in as many groups"),
        ([*"aaabbbbc", None], "1 missing (first: sample 8)"),
        ([*"aaabbbbc", float("nan")], "1 missing (first: sample 8)"),
        ([1.0, 1, 1, 2, 2, 2, 2, 2, np.nan], "1 missing"),
        (pd.Series([*"aaabbbbc", None], dtype="string"), "1 missing"),
        ([1, 1, "1", 2, 2, 2, 2, 1, 1], "found 1 and '1' with"),
        (np.array([1, 1.0, True, 2, 2, 2, 2, 1, 1], dtype=object), "found 1 and"),
        (list("aaabbbbcc") * 2, "shape (18,)"),
        ([list("aaabbbbcc")], "shape (1, 9)"),
        ("aaabbbbcc", "shape ()"),
        ([["a"], ["a", "b"], *"aaabbbb"], "groups of shape (9,)"),
        (np.array([{1}, *"aaabbbbc"], dtype=object), "words or numbers"),
        (None, "shape ()"),
    ],
)
def test_labels_that_say_nothing_are_refused(test, labels, message):
    with pytest.raises(InvalidInputError) as error:
        test(apart(coordinates()), labels)
    assert message in str(error.value)


def test_labels_of_mixed_types_that_differ_are_groups():
    labels = [1, 1, 1, "x", "x", "x", "y", "y", "y"]
    assert permanova(apart(coordinates()), labels).groups == ("1", "x", "y")
    dates = pd.to_datetime(["2020-01-01"] * 4 + ["2021-05-01"] * 5)
    assert permanova(apart(coordinates()), dates).groups[0].startswith("2020-01-01")


@pytest.mark.parametrize("test", LABELED)
def test_groups_of_one_unit_each_are_refused(test):
    with pytest.raises(InvalidInputError, match="3 blocks in as many groups"):
        test(apart(coordinates()), LABELS, blocks=LABELS)


def test_dispersion_refuses_a_group_of_one():
    with pytest.raises(InvalidInputError, match="1 in 'c'"):
        dispersion(apart(coordinates()), list("aaaabbbbc"))
    with pytest.raises(InvalidInputError, match="at least 2 blocks in every group"):
        dispersion(apart(coordinates()), list("aaaabbbbb"), blocks=list("ppppqrstu"))


@pytest.mark.parametrize(
    ("k", "units"), [(9, None), (0, None), (2.5, None), (8, np.array([0, 0, 1, 2, 3, 4, 5, 6, 6]))]
)
def test_neighbor_enrichment_refuses_too_many_neighbors(k, units):
    with pytest.raises(InvalidInputError, match="k"):
        neighbor_enrichment(apart(coordinates()), np.array(list("aabbbbccc")), k=k, blocks=units)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(9), "same value in all samples"),
        (list("abcabcabc"), "values of type"),
        (np.ones((9, 1)), "shape (9, 1)"),
        ([1, 2, 3, 4, 5, 6, 7, 8, np.inf], "first: sample 8"),
        ([np.nan, 2, 3, 4, 5, 6, 7, 8, 9], "first: sample 0"),
    ],
)
def test_distance_correlation_refuses_what_are_no_numbers(values, message):
    with pytest.raises(InvalidInputError) as error:
        distance_correlation(apart(coordinates()), values)
    assert message in str(error.value)


@pytest.mark.parametrize("p", [[0.5, np.nan], [-0.1], [1.1], [[0.1]], ["a"], 0.5])
def test_false_discovery_refuses_what_are_no_p_values(p):
    with pytest.raises(InvalidInputError):
        false_discovery(p)


def test_false_discovery_of_nothing_is_nothing():
    assert false_discovery([]).shape == (0,)


@pytest.mark.parametrize("test", ALL)
def test_samples_that_all_coincide_are_no_evidence(test):
    result = test(np.zeros((9, 9)), np.repeat([0, 1, 2], 3))
    assert result.p_value == 1.0
    assert np.isfinite(result.effect)


def test_sparse_distances_are_not_advised_to_become_zeros():
    with pytest.raises(InvalidInputError, match="all pairs") as caught:
        permanova(sp.csr_array(np.eye(6)), list("aaabbb"))
    assert "toarray" not in str(caught.value)


def test_explained_variation_is_the_effect_of_permanova():
    rng = np.random.default_rng(4)
    positions = rng.normal(size=(30, 3)) + np.repeat([0, 1, 1], 10)[:, None]
    distances = np.linalg.norm(positions[:, None] - positions, axis=2)
    groups = np.repeat(["a", "b", "c"], 10)
    centers = np.stack([positions[groups == group].mean(axis=0) for group in "abc"])[np.repeat([0, 1, 2], 10)]
    plain = 1 - ((positions - centers) ** 2).sum() / ((positions - positions.mean(axis=0)) ** 2).sum()
    assert explained_variation(distances, groups) == pytest.approx(plain)
    assert explained_variation(distances, groups) == permanova(distances, groups, n_permutations=9).effect
    assert explained_variation(np.zeros((4, 4)), list("aabb")) == 0
    with pytest.raises(InvalidInputError, match="at least two groups"):
        explained_variation(distances, ["a"] * 30)
