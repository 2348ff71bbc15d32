"""Abundance and state: exact parts, tests against brute force, references that stay, and words that agree."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import heatmover as hm
from heatmover.attribution import explain, explain_groups
from heatmover.attribution.cell_types import abundance_statistics, compare_state, log_counts, standardized
from heatmover.attribution.contrast import choose_groups, expected_reference, first_of_order, set_up
from heatmover.attribution.witness import split
from heatmover.errors import InvalidInputError
from heatmover.statistics import Design
from heatmover.statistics.regression import (
    block_columns,
    column_differences,
    controlled,
    gram_statistics,
    smallest_p,
    two_sided,
    weigh,
)

# The two parts


@given(st.integers(0, 10_000), st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
def test_parts_add_up_for_any_witness_and_constant(seed, constant):
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(4), rng.integers(0, 4, 36)])
    masses = rng.dirichlet(np.full(40, 0.3), 2)
    masses[1, codes == 3] = 0  # the last type is in the first measure only
    masses[1] /= masses[1].sum()
    witness = rng.normal(size=40)
    parts, shifted = (split(f, masses, codes, 4) for f in (witness, witness + constant))
    total = witness @ (masses[0] - masses[1])
    assert parts.abundance.sum() + parts.state.sum() == pytest.approx(total, abs=1e-12)
    np.testing.assert_allclose(parts.abundance + parts.state, parts.contributions, atol=1e-15)
    assert parts.state[3] == 0
    # Whatever the zero of the witness: it is put where both measures have a mean of zero.
    for name in ("abundance", "state", "contributions"):
        np.testing.assert_allclose(getattr(shifted, name), getattr(parts, name), atol=1e-12)
    centerd = witness - witness @ masses.sum(axis=0) / 2
    for kind in range(4):
        (a, b), inside = masses[:, codes == kind].sum(axis=1), codes == kind
        plain = centerd[inside] @ (masses[0] - masses[1])[inside]
        assert parts.contributions[kind] == pytest.approx(plain, abs=1e-12)
        if b > 0:
            first, second = (centerd[inside] @ row[inside] / row[inside].sum() for row in masses)
            assert parts.abundance[kind] == pytest.approx((a - b) * (first + second) / 2, abs=1e-12)
            assert parts.state[kind] == pytest.approx((a + b) / 2 * (first - second), abs=1e-12)


@pytest.fixture(scope="module")
def line():
    """Sixty points on a line in three types, and a model."""
    return hm.DiffusionEMD(hm.Graph.from_grid((60,))).fit(), np.repeat(["left", "middle", "right"], 20)


def uniform(*places):
    row = np.zeros(60)
    for place in places:
        row[place] += 1 / len(places)
    return row


def test_moving_within_a_type_is_state_and_changing_its_share_is_abundance(line):
    model, kinds = line
    parts = explain(model, uniform(2, 30, 50), uniform(17, 30, 50)).by(kinds).table()
    assert parts["abundance"].abs().max() < 1e-12
    assert parts["state"]["left"] > 0.9 * parts["state"].sum() > 0
    parts = explain(model, uniform(5, 5, 30, 50), uniform(5, 30, 50, 50)).by(kinds).table()
    assert parts["state"].abs().max() < 1e-12
    assert parts["abundance"][["left", "right"]].min() > 0
    local = explain(model, uniform(5, 5, 30, 50), uniform(5, 30, 50, 50)).by(kinds, of="local")
    assert local.abundance is None
    assert "state" not in local.table()
    assert "state" not in str(local)


def test_the_parts_of_a_contrast_add_up_and_a_type_of_one_group_has_no_state():
    data = hm.datasets.cohort(8, cells_per_sample=40, effect=3.0)
    measures = data.measures()
    model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit(measures)
    kinds = data.coordinates[:, 0].astype(int).astype(str).astype(object)
    kinds[np.char.startswith(np.asarray(data.labels, dtype=str), "case") & (kinds == "1")] = "only in cases"
    found = explain_groups(model, measures, data.annotations["condition"], annotation=kinds, n_permutations=19)
    table = found.types.table()
    np.testing.assert_allclose(table["abundance"] + table["state"], table["contributions"], atol=1e-12)
    assert table["contributions"].sum() == pytest.approx(found.distance, rel=1e-9)
    assert table.loc["only in cases", "state"] == 0
    assert table.loc["only in cases", "state_p"] == 1
    assert table.loc["only in cases", "abundance"] == table.loc["only in cases", "contributions"] != 0
    parts = found.explanation.by(kinds).table().loc[table.index]
    for name in ("abundance", "state"):
        np.testing.assert_allclose(parts[name], table[name], atol=1e-12)
    assert np.isfinite(table.to_numpy(dtype=float)).all()


# Statistics


def regression(values, member, blocks, weights):
    """The coefficient of the group in a weighted regression on blocks and group, and its HC3 variance."""
    columns = [member.astype(float), *((blocks == block).astype(float) for block in np.unique(blocks))]
    return hc3(np.column_stack(columns), values, weights)


def hc3(design, values, weights):
    """The first coefficient of a weighted regression and its HC3 variance, from the pseudo-inverse of the design."""
    root = np.sqrt(weights)
    inverse = np.linalg.pinv(design * root[:, None])
    fitted = inverse @ (root[:, None] * values)
    residuals = root[:, None] * (values - design @ fitted)
    leverages = np.diag(design * root[:, None] @ inverse)
    kept = weights > 0
    scale = (inverse[0, kept] ** 2 / np.maximum(1 - leverages[kept], 1e-6) ** 2)[:, None]
    return fitted[0], (scale * residuals[kept] ** 2).sum(axis=0)


@pytest.mark.parametrize("n_blocks", [1, 2, 6])
@pytest.mark.parametrize("weighted", [False, True])
def test_differences_and_distances_are_those_of_a_weighted_regression(n_blocks, weighted):
    rng = np.random.default_rng(n_blocks)
    blocks = np.arange(12) % n_blocks
    members = np.array([np.argsort(np.argsort(rng.normal(size=12) + 10 * blocks)) % 2 == 0 for _ in range(5)])
    weights = rng.uniform(0.2, 1, 12) if weighted else np.ones(12)
    if weighted:
        weights[3] = 0
    values = rng.normal(size=(12, 7))
    weighed = weigh(members, block_columns(blocks), weights)
    found = column_differences(values, weighed)
    statistics = gram_statistics(values @ values.T, weighed)
    for row, member in enumerate(members):
        apart, variance = regression(values, member, blocks, weights)
        np.testing.assert_allclose(found.values[row], apart, atol=1e-10)
        np.testing.assert_allclose(found.errors[row] ** 2, variance, atol=1e-10)
        assert statistics[row] == pytest.approx((apart**2).sum() / variance.sum(), rel=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_trend_with_covariates_is_that_of_a_weighted_regression(weighted):
    rng = np.random.default_rng(4)
    dose = np.array([rng.permutation(np.repeat([0.0, 1.0, 5.0, 10.0], 4)) for _ in range(6)])
    # The last covariate is the sum of the others, and must not change anything.
    fixed = np.column_stack([np.ones(16), rng.normal(size=(16, 2))])
    fixed = np.column_stack([fixed, fixed.sum(axis=1)])
    weights = rng.uniform(0.2, 1, 16) if weighted else np.ones(16)
    values = rng.normal(size=(16, 5))
    weighed = weigh(dose, fixed, weights)
    found, statistics = column_differences(values, weighed), gram_statistics(values @ values.T, weighed)
    for row, order in enumerate(dose):
        slope, variance = hc3(np.column_stack([order, fixed]), values, weights)
        np.testing.assert_allclose(found.values[row], slope, atol=1e-10)
        np.testing.assert_allclose(found.errors[row] ** 2, variance, atol=1e-10)
        assert statistics[row] == pytest.approx((slope**2).sum() / variance.sum(), rel=1e-8)


def test_a_regressor_that_the_covariates_determine_has_no_contrast():
    fixed = np.column_stack([np.ones(6), np.arange(6.0)])
    weighed = weigh(3 * np.arange(6.0)[None] + 1, fixed)
    assert not weighed.coefficients.any()
    assert not weighed.informative.any()


def test_without_blocks_and_weights_it_is_the_statistic_of_welch_with_one_sample_less():
    rng = np.random.default_rng(0)
    values, inside = rng.normal(size=(11, 3)), np.arange(11) < 4
    found = column_differences(values, weigh(inside[None], np.ones((11, 1))))
    a, b = values[inside], values[~inside]
    np.testing.assert_allclose(found.values[0], a.mean(axis=0) - b.mean(axis=0))
    np.testing.assert_allclose(found.errors[0] ** 2, a.var(axis=0, ddof=1) / 3 + b.var(axis=0, ddof=1) / 6)


def test_the_smallest_p_value_and_what_cannot_reach_it():
    statistics = np.array([[3.0, 1.0], [-3.0, -1.0], [2.0, 1.0], [1.0, 1.0]] + [[0.5, 1.0]] * 36)
    np.testing.assert_allclose(two_sided(statistics), [2 / 40, 1.0])
    np.testing.assert_allclose(smallest_p(statistics), [2 / 40, 1.0])
    # The second can never be sure, and does not make the first less so.
    np.testing.assert_allclose(controlled(np.array([0.05, 1.0]), np.array([0.05, 1.0])), [0.05, 1.0])
    np.testing.assert_allclose(controlled(np.array([0.05, 1.0]), np.array([0.05, 0.05])), [0.1, 1.0])
    np.testing.assert_allclose(controlled(np.ones(2), np.ones(2)), 1.0)


# Numbers of cells


def design(n=16, n_permutations=199, pairs=False, seed=0):
    rng = np.random.default_rng(seed)
    observed = np.arange(n) % 2 == 0
    flips = rng.random((n_permutations, n // 2)) < 0.5
    if pairs:
        orders = observed ^ np.repeat(flips, 2, axis=1)
    else:
        orders = np.array([rng.permutation(observed) for _ in range(n_permutations)])
    return np.vstack([observed[None], orders]), np.arange(n) // 2 if pairs else np.zeros(n, dtype=np.int64)


def composition(shares, members, factor, cells=400, spread=0.1, seed=1):
    """Shares of samples in which the odds of the first type are so many times as large in the group."""
    rng = np.random.default_rng(seed)
    odds = np.log(shares) + spread * rng.normal(size=(members.shape[1], len(shares)))
    odds[members[0], 0] += np.log(factor)
    exact = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
    return np.array([rng.multinomial(cells, row) / cells for row in exact]), np.full(len(exact), float(cells))


def q_values(found):
    return controlled(found.p_values(), smallest_p(found.plain))


@pytest.mark.parametrize("shares", [(0.6, 0.1, 0.1, 0.1, 0.1), (0.05, 0.5, 0.2, 0.15, 0.1), (0.4, 0.3, 0.3)])
@pytest.mark.parametrize("factor", [4.0, 0.25])
@pytest.mark.parametrize("pairs", [False, True])
def test_only_the_type_that_changes_is_called_also_if_it_is_most_of_the_cells(shares, factor, pairs):
    members, blocks = design(pairs=pairs)
    found = abundance_statistics(*composition(shares, members, factor), members, block_columns(blocks))
    assert q_values(found)[0] <= 0.1 < q_values(found)[1:].min()
    assert np.sign(found.scores[0]) == np.sign(np.log(factor))
    assert found.changes[0] == pytest.approx(np.log(factor), abs=0.5)
    assert found.sets.tolist() == [[False] + [True] * (len(shares) - 1)]


def test_of_two_types_none_is_known_to_be_stable_and_shares_decide():
    members, blocks = design()
    found = abundance_statistics(*composition((0.5, 0.5), members, 4.0), members, block_columns(blocks))
    assert not found.sets.size
    assert (q_values(found) <= 0.1).all()
    assert np.sign(found.scores).tolist() == [1, -1]


def test_scores_never_contradict_the_mean_shares():
    """Logarithms may rise while the mean falls, if one sample has very many."""
    members, blocks = design(8, 50)
    shares = np.full((8, 3), 0.1)
    shares[members[0], 0], shares[~members[0], 0] = [0.2, 0.21, 0.2, 0.19], [0.05, 0.05, 0.05, 0.85]
    shares[:, 1] = 1 - shares[:, 0] - shares[:, 2]
    found = abundance_statistics(shares, np.full(8, 500.0), members, block_columns(blocks))
    assert found.scores[0] <= 0


def test_types_that_nobody_has_or_that_never_vary_are_no_discovery():
    members, blocks = design(8, 30)
    found = abundance_statistics(np.tile([[0.0, 0.4, 0.6]], (8, 1)), np.full(8, 50.0), members, block_columns(blocks))
    for values in (found.scores, found.changes, found.plain, found.relative):
        assert np.isfinite(values).all()
    np.testing.assert_array_equal(q_values(found), 1.0)


def test_mean_logarithms_do_not_depend_on_the_number_of_cells():
    rng = np.random.default_rng(0)
    cells = np.repeat([60.0, 400.0], 4000)
    shares = rng.binomial(cells.astype(int)[:, None], [0.005, 0.05, 0.3]) / cells[:, None]
    means = log_counts(shares, cells).reshape(2, 4000, 3).mean(axis=1)
    np.testing.assert_allclose(means, 0, atol=0.05)
    spread = standardized(shares, cells, np.ones((8000, 1))).reshape(2, 4000, 3)
    np.testing.assert_allclose(spread.var(axis=1), 1, atol=0.2)


def rising(n_types, n_rising, members, factor=3.0, seed=1):
    """Shares of samples in which the odds of the first types rise together in the group, and numbers of cells."""
    rng = np.random.default_rng(seed)
    odds = 0.1 * rng.normal(size=(members.shape[1], n_types))
    odds[np.ix_(members[0], np.arange(n_rising))] += np.log(factor)
    exact = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
    return np.array([rng.multinomial(600, row) / 600 for row in exact]), np.full(len(exact), 600.0)


def test_a_partly_confounded_batch_that_is_held_fixed_calls_no_type_too_often():
    """8 of 10 cases and 2 of 10 controls are of one batch, in which other types are common; 250 cohorts."""
    condition = np.repeat(["case", "control"], 10)
    batch = np.where(np.tile(np.arange(10), 2) < np.repeat([8, 2], 10), "x", "y")
    odds = {"x": [0.5, 0.3, 0.2], "y": [0.3, 0.4, 0.3]}
    p_values = {True: [], False: []}
    for seed in range(250):
        rng = np.random.default_rng(seed)
        shares = np.array([rng.multinomial(60, odds[each]) / 60 for each in batch])
        for adjusted in p_values:
            fixed = Design.from_columns({"batch": batch}) if adjusted else None
            contrast = set_up(
                condition, 20, group="case", reference="control", blocks=None, n_permutations=199, rng=rng, adjust=fixed
            )
            found = abundance_statistics(shares, np.full(20, 60.0), contrast.regressors, contrast.nuisance)
            p_values[adjusted].append(found.p_values()[0])
    rates = {adjusted: np.mean(np.array(values) <= 0.05) for adjusted, values in p_values.items()}
    # The standard error of a rate of 5% is 1.4%. Two tests must agree, so the rate may be lower.
    assert rates[True] <= 0.09 < 0.3 < rates[False]


def test_half_of_the_types_rise_and_either_half_may_be_the_reference():
    members, blocks = design()
    found = abundance_statistics(*rising(12, 6, members), members, block_columns(blocks))
    halves = np.arange(12) < 6
    assert sorted(found.sets[:, halves].sum(axis=1)) == [0, found.sets[:, halves].sum()]
    assert found.sets.sum(axis=1).min() >= 5
    # The shares of both halves differ; relative to one of the sets, each half is stable.
    assert (two_sided(found.plain) <= 0.05).all()
    assert (q_values(found) > 0.1).all()
    for place, one in enumerate(found.sets):
        alone = found.p_values(slice(place, place + 1))
        risen = halves if one[6:].any() else ~halves
        assert (alone[risen] <= 0.05).all()
        assert (alone[~risen] > 0.005).all()


@pytest.mark.parametrize("n_rising", [1, 2, 3])
def test_a_minority_that_rises_is_called_relative_to_the_majority(n_rising):
    members, blocks = design()
    found = abundance_statistics(*rising(12, n_rising, members), members, block_columns(blocks))
    assert found.sets.tolist() == [[False] * n_rising + [True] * (12 - n_rising)]
    assert (found.p_values()[:n_rising] <= 0.05).all()


# States


def test_a_state_is_told_from_a_number_of_cells_and_unequal_noise():
    """Means of samples of few cells scatter more; what is called is a shift, not a scatter."""
    rng = np.random.default_rng(3)
    members, blocks = design(20, 199)
    cells = np.where(members[0], 4.0, 100.0)[:, None] * np.ones(40)
    places = rng.normal(size=(20, 40, 6)) / np.sqrt(cells)[:, :, None]
    calm = compare_state(places, cells, members, block_columns(blocks))
    assert 0.01 <= (calm.p_values <= 0.1).mean() <= 0.2
    shifted = places + np.where(members[0], 1.0, 0.0)[:, None, None]
    assert (compare_state(shifted, cells, members, block_columns(blocks)).p_values <= 0.01).mean() > 0.9


def test_a_type_in_too_few_samples_has_no_state():
    members, blocks = design(8, 30)
    cells = np.full((8, 2), 20.0)
    cells[members[0].nonzero()[0][1:], 1] = 0
    places = np.random.default_rng(0).normal(size=(8, 2, 3)) * (cells > 0)[:, :, None]
    found = compare_state(places, cells, members, block_columns(blocks))
    assert found.tested.tolist() == [True, False]
    assert (found.p_values[1], found.smallest[1], found.scores[1]) == (1, 1, 0)


@pytest.fixture(scope="module")
def moved():
    """Pairs of samples of three clouds; in cases the second cloud is elsewhere, as many cells as ever."""
    rng = np.random.default_rng(5)
    points, labels, kinds = [], [], []
    for pair in range(7):
        place = 0.3 * rng.normal(size=(3, 3)) + 3 * np.eye(3)
        for case in (False, True):
            drawn = rng.choice(3, 60, p=[0.2, 0.5, 0.3])
            here = place + np.outer([0, 1, 0], [0.0, 2.0, 0.0]) * case
            points.append(here[drawn] + rng.normal(size=(60, 3)))
            labels += [f"{'case' if case else 'control'}-{pair}"] * 60
            kinds += [f"cloud {i}" for i in drawn]
    measures = hm.measures_from_labels(labels)
    model = hm.DiffusionEMD(hm.Graph.from_points(np.concatenate(points), n_neighbors=10)).fit(measures)
    return model, measures, np.array(kinds)


def test_cells_that_change_their_state_are_not_said_to_be_more(moved):
    model, measures, kinds = moved
    groups = [name.split("-")[0] for name in measures.names]
    pairs = [name.split("-")[1] for name in measures.names]
    for turned in (False, True):
        names = {"group": "control", "reference": "case"} if turned else {}
        found = explain_groups(model, measures, groups, blocks=pairs, annotation=kinds, **names).types
        table = found.table()
        assert table["state_q"].idxmin() == "cloud 1"
        assert table["state_q"]["cloud 1"] <= 0.05
        assert table["state_q"].drop("cloud 1").min() > 0.1
        assert table["abundance_q"].min() > 0.1
        assert table["state"].sum() > 0.9 * table["contributions"].sum()


def test_where_most_cells_moved_densities_are_not_told_relative_to_the_commonest_change():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(size=(40, 2)) + (i % 2) * np.array([4.0, 0]) for i in range(12)])
    measures = hm.measures_from_labels(np.repeat(np.arange(12), 40))
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=12)).fit(measures)
    found = explain_groups(model, measures, ["here", "there"] * 6, group="there", n_permutations=99)
    assert abs(found.commonest) > np.log(2)
    assert "compared directly" in str(found)
    left = np.concatenate([np.full(40, i % 2 == 0) for i in range(12)])
    # Cells of one group only are fewer or more by a large factor, one as much as the other.
    assert found.log_ratios[left].mean() < -1 < 1 < found.log_ratios[~left].mean()


# The reference


@pytest.mark.parametrize(
    ("names", "reference"),
    [
        (["stim", "ctrl"], "ctrl"),
        (["COVID-19", "Healthy control"], "Healthy control"),
        (["treated", "Untreated"], "Untreated"),
        (["KO", "Wild-Type"], "Wild-Type"),
        (["pre", "post"], "pre"),
        (["drug", "DMSO_24h"], "DMSO_24h"),
        (["0", "1"], "0"),
        (["False", "True"], "False"),
        (["none", "mild", "severe"], "none"),
        (["no response", "response"], None),
        (["healthy", "not healthy"], "healthy"),
        (["control a", "control b"], None),
        (["a", "b"], None),
    ],
)
def test_the_reference_is_the_one_a_person_expects(names, reference):
    assert expected_reference(names) == reference


def test_groups_are_chosen_by_names_then_by_order_then_by_size():
    assert choose_groups({"case": 3, "control": 3}) == ("case", "control")
    assert choose_groups({"a": 3, "placebo": 3, "b": 5}) == ("b", "placebo")
    assert choose_groups({"x": 3, "y": 3}, first="x") == ("y", "x")
    assert choose_groups({"control": 3, "x": 3}, first="x") == ("x", "control")
    assert choose_groups({"y": 2, "x": 9}) == ("x", "y")
    assert choose_groups({"z": 3, "y": 5, "x": 5}) == ("x", None)
    assert choose_groups({"z": 3, "y": 5, "x": 5}, group="z") == ("z", None)
    assert choose_groups({"z": 3, "y": 5, "x": 5}, reference="z") == ("x", "z")
    with pytest.raises(InvalidInputError, match=r"reference to be one of the groups, found 'contrl' .did you mean"):
        choose_groups({"control": 3, "x": 3}, reference="contrl")
    ordered = pd.Series(pd.Categorical(["low", None, "high"], categories=["never", "low", "high"], ordered=True))
    assert first_of_order(ordered) == "low"
    assert first_of_order(pd.Series(["low", "high"])) is None
    assert first_of_order(["low"]) is None


def test_explain_groups_takes_the_control_as_its_reference():
    data = hm.datasets.cohort(8, cells_per_sample=20, effect=3.0)
    measures = data.measures()
    model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit(measures)
    groups = np.where(data.annotations["condition"] == "case", "treated", "baseline")
    found = explain_groups(model, measures, groups, n_permutations=9)
    assert (found.group, found.reference) == ("treated", "baseline")


def test_a_sparse_matrix_of_samples_has_types_too(moved):
    model, measures, kinds = moved
    groups = [name.split("-")[0] for name in measures.names]
    sparse, dense = (
        explain_groups(model, rows, groups, annotation=kinds, n_permutations=19).types
        for rows in (sp.csr_array(measures.masses), measures.toarray())
    )
    np.testing.assert_allclose(sparse.state_scores, dense.state_scores, rtol=1e-5)
