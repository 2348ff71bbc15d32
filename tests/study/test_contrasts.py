"""Contrasts of cell types over several groups, along numbers, with covariates; the split and what cannot be decided."""

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.attribution.cell_types import omnibus, probe_types, typed_points
from heatmover.attribution.contrast import one_against_rest, set_up
from heatmover.errors import InvalidInputError
from heatmover.statistics import Design
from heatmover.study import annotate, contrast_cells, study_comparison
from heatmover.study.contrasts import along_numbers, contrast_variable

DOSES = ["0", "0.005", "0.05", "0.5"]
PER_DOSE, CELLS = 5, 80


def cells_of(odds, shift, seed=0, n_types=4):
    """Points, names of samples and types: samples with odds of type 0, and type 1 moved along the first axis."""
    rng = np.random.default_rng(seed)
    centers = 2.5 * np.eye(n_types, 5)
    points, names, types = [], [], []
    for sample, (factor, moved) in enumerate(zip(odds, shift, strict=True)):
        weights = np.exp(0.15 * rng.normal(size=n_types))
        weights[0] *= factor
        kinds = rng.choice(n_types, CELLS, p=weights / weights.sum())
        places = centers[kinds] + rng.normal(size=(CELLS, 5)) * 0.7
        places[kinds == 1, 4] += moved
        points.append(places)
        names += [f"s{sample:02d}"] * CELLS
        types += [f"type {kind}" for kind in kinds]
    return np.vstack(points), names, types


@pytest.fixture(scope="module")
def series():
    """Four doses: type 0 becomes more frequent and type 1 moves with the dose, but only the largest dose does much."""
    dose = np.repeat(DOSES, PER_DOSE)
    level = np.repeat([0.0, 0.01, 0.2, 1.0], PER_DOSE)
    points, names, types = cells_of(1 + 3 * level, 2.5 * level)
    return hm.compare(points, names, n_neighbors=15), annotate("type", types, len(types)), dose


@pytest.fixture(scope="module")
def studied(series):
    comparison, types, dose = series
    cells = {"type": [types.types[code] for code in types.codes]}
    return study_comparison(comparison, {"dose": dose}, cells=cells, n_permutations=499)


def test_every_dose_is_compared_with_the_reference_and_the_strongest_comes_first(studied):
    groups = {(one.group, one.reference) for one in studied.contrasts}
    assert groups == {("0.005", "0"), ("0.05", "0"), ("0.5", "0"), ("higher dose", "lower dose")}
    assert [one.p_value for one in studied.contrasts] == sorted(one.p_value for one in studied.contrasts)
    by_group = {one.group: one for one in studied.contrasts}
    assert not by_group["0.005"].differs
    assert by_group["0.5"].differs
    assert studied.contrast.group in ("0.5", "higher dose")
    named = {one.name: one for one in by_group["0.5"].types}
    assert named["type 0"].direction == "more"
    assert named["type 1"].moved


def test_a_trend_finds_the_types_that_follow_the_dose(studied):
    trend = next(one for one in studied.contrasts if one.trend)
    named = {one.name: one for one in trend.types}
    assert named["type 0"].direction == "more"
    assert named["type 1"].moved
    assert "% of the change with 'dose'" in trend.describe()
    assert "Shares are those at high values vs. low values." in trend.describe()
    assert trend.n_samples == (PER_DOSE, 3 * PER_DOSE)
    total = sum(one.abundance + one.state for one in trend.types)
    assert total == pytest.approx(trend.distance, rel=1e-12)


def test_all_groups_together(studied, series):
    (together,) = studied.omnibus
    q_values = dict(zip(together.types, together.abundance_q, strict=True))
    assert q_values["type 0"] <= 0.1
    assert dict(zip(together.types, together.state_q, strict=True))["type 1"] <= 0.1
    assert "All 4 groups of 'dose' together" in str(together)
    assert studied.plain()["omnibus"][0]["sentence"] == str(together)
    two = study_comparison(series[0], {"odd": np.arange(20) % 2}, cells=series[1].codes.astype(str), n_permutations=99)
    assert two.omnibus == ()
    assert len(two.contrasts) == 1


def test_the_omnibus_keeps_its_level_and_a_null_dose_has_no_trend():
    p_values, trends = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(3, 30.0), 12)
        masses = np.repeat(shares / 10, 10, axis=1)
        points = np.repeat(np.eye(3), 10, axis=0) * 2 + rng.normal(size=(30, 3))
        model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=8)).fit(masses)
        cells = typed_points(np.repeat(list("abc"), 10), masses)
        designs = one_against_rest(list("xyz") * 4, 12, blocks=None, n_permutations=99, rng=rng)
        p_values.append(omnibus(designs, cells, probe_types(model, cells, rng))[0][0])
        trends.append(set_up(np.arange(12.0), 12, group=None, reference=None, blocks=None, n_permutations=99, rng=rng,
                             trend="age").smallest_p)  # fmt: skip
    assert np.mean(np.array(p_values) <= 0.1) <= 0.22
    assert set(trends) == {0.01}


def test_the_omnibus_finds_one_group_among_covariates_and_blocks():
    rng = np.random.default_rng(0)
    groups, batch = np.repeat(list("xyz"), 6), np.tile(["u", "v"], 9)
    shares = np.column_stack([0.3 + 0.2 * (groups == "y") + 0.1 * (batch == "u"), np.full(18, 0.2)])
    shares = np.column_stack([shares, 1 - shares.sum(axis=1)]) + 0.01 * rng.normal(size=(18, 3))
    masses = np.repeat(np.clip(shares, 0.01, 1) / np.clip(shares, 0.01, 1).sum(axis=1, keepdims=True) / 8, 8, axis=1)
    points = np.repeat(np.eye(3), 8, axis=0) * 2 + rng.normal(size=(24, 3))
    model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=8)).fit(masses)
    cells = typed_points(np.repeat(list("abc"), 8), masses)
    for options in ({"adjust": Design.from_columns({"batch": batch})}, {"blocks": batch}):
        settings = {"blocks": None, "n_permutations": 199, "rng": np.random.default_rng(1), **options}
        designs = one_against_rest(groups, 18, **settings)
        assert omnibus(designs, cells, probe_types(model, cells, rng))[0][0] <= 0.05


def test_a_group_of_one_sample_is_left_out_and_named(series):
    comparison, types, dose = series
    groups = [*dose[:-1], "1"]
    found = contrast_variable(comparison, types, groups, variable="dose", n_permutations=99)
    assert {one.group for one in found.contrasts} == {"0.005", "0.05", "0.5", "higher dose"}
    assert any("'1' was not compared by cell types" in note for note in found.left_out)
    assert found.omnibus is None


def test_one_group_against_another_and_only_the_trend(series):
    comparison, types, dose = series
    one = contrast_variable(
        comparison, types, dose, variable="dose", group="0.05", reference="0.005", n_permutations=99
    )
    assert [(each.group, each.reference) for each in one.contrasts] == [("0.05", "0.005")]
    cells = types.codes.astype(str)
    only = study_comparison(comparison, {"dose": dose}, cells=cells, trend=["dose"], n_permutations=99)
    assert [each.trend for each in only.contrasts] == [True]
    named = study_comparison(comparison, {"dose": dose}, cells=cells, group="0.5", reference="0.05", n_permutations=99)
    assert [(each.group, each.reference) for each in named.contrasts] == [("0.5", "0.05")]


def test_ordered_categories_are_numbers_and_other_words_are_not():
    order = pd.Series(pd.Categorical(["low", "high", None, "none"], ["none", "low", "mid", "high"], ordered=True))
    assert along_numbers("level", order) == [2.0, 3.0, None, 1.0]
    assert along_numbers("dose", ["0", "0.5"]) == [0.0, 0.5]
    assert along_numbers("sex", ["f", "m"]) is None


def test_only_noise_has_no_percentages_and_a_difference_has_an_interval():
    rng = np.random.default_rng(3)
    condition = np.repeat(["case", "control"], 8)
    for factor in (1.0, 4.0):
        points, names, types = cells_of(np.where(condition == "case", factor, 1.0), np.zeros(16), int(rng.integers(99)))
        comparison = hm.compare(points, names, n_neighbors=15)
        found = contrast_cells(comparison, annotate("type", types, len(types)), condition, n_permutations=499)
        assert found.differs == (factor > 1)
        if found.differs:
            assert found.abundance_share.low <= found.abundance_share.value <= found.abundance_share.high
            assert found.abundance_share.value > 0.8
            assert "95% interval" in str(found)
        else:
            assert found.abundance_share is None
            assert "No evidence that 'case' and 'control' differ" in str(found)
            assert "% of the distance" not in str(found)


def test_many_types_are_found_with_more_permutations_and_few_samples_say_so():
    """Four of 100 types change: 999 permutations cannot call them among 100, 20,000 can; four pairs cannot decide."""
    rng = np.random.default_rng(0)
    case, n_types = np.tile([True, False], 10), 100
    log_odds = 0.15 * rng.normal(size=(20, n_types))
    log_odds[np.ix_(case, range(4))] += 1.0
    shares = np.exp(log_odds) / np.exp(log_odds).sum(axis=1, keepdims=True)
    counts = np.array([rng.multinomial(5_000, row) for row in shares])
    points = np.repeat(rng.normal(size=(n_types, 6)), 3, axis=0) + 0.1 * rng.normal(size=(3 * n_types, 6))
    masses = np.repeat(counts / counts.sum(axis=1, keepdims=True) / 3, 3, axis=1)
    measures = hm.measures_from_weights(masses)
    comparison = hm.compare(hm.Graph.from_points(points, n_neighbors=10), measures)
    types = annotate("type", np.repeat([f"type {i:03d}" for i in range(n_types)], 3), 3 * n_types)
    groups = np.where(case, "case", "control")
    found = contrast_cells(comparison, types, groups)
    called = {one.name for one in found.types if one.direction}
    assert {f"type {i:03d}" for i in range(4)} <= called
    few = contrast_cells(
        hm.compare(hm.Graph.from_points(points, n_neighbors=10), hm.measures_from_weights(masses[:8])),
        types, groups[:8],
    )  # fmt: skip
    assert {one.abundance_limit for one in few.types} == {"too few samples to decide"}
    assert not any(one.direction for one in few.types)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trend": True, "groups": [0, 1] * 10}, "at least 3 different values of 'dose' for a trend, found 2"),
        ({"trend": True, "groups": list("ab") * 10}, "numbers or an ordered category in 'dose' for a trend"),
        ({"group": "7"}, "the argument group to be one of the groups"),
        ({"group": "0", "reference": "0"}, "a reference other than the group"),
    ],
)
def test_bad_contrasts_are_one_sentence(series, options, sentence):
    comparison, types, dose = series
    options = {"groups": dose, **options}
    with pytest.raises(InvalidInputError, match=sentence):
        contrast_variable(comparison, types, variable="dose", n_permutations=19, **options)


def test_covariates_that_leave_nothing_are_one_sentence(series):
    comparison, types, dose = series
    with pytest.raises(InvalidInputError, match="to be determined by"):
        contrast_variable(comparison, types, dose, variable="dose", adjust=Design.from_columns({"copy": dose}))
    many = Design.from_columns({f"c{i}": np.random.default_rng(i).normal(size=20) for i in range(8)})
    with pytest.raises(InvalidInputError, match=r"residual degree of freedom|fewer covariates"):
        contrast_variable(comparison, types, dose, variable="dose", group="0.5", reference="0", adjust=many)
    with pytest.raises(InvalidInputError, match="argument cells together with"):
        study_comparison(comparison, {"dose": dose}, trend=["dose"])


def test_exhaustive_permutations_of_pairs_say_that_they_cannot_decide():
    """Ten pairs have 1,024 orders: the smallest p-value, 2 / 1,024, times 60 types exceeds 0.1."""
    rng = np.random.default_rng(1)
    n_types, case = 60, np.tile([True, False], 10)
    counts = np.array([rng.multinomial(3_000, row) for row in rng.dirichlet(np.full(n_types, 60.0), 20)])
    points = np.repeat(rng.normal(size=(n_types, 5)), 2, axis=0) + 0.1 * rng.normal(size=(2 * n_types, 5))
    measures = hm.measures_from_weights(np.repeat(counts / 6_000, 2, axis=1))
    comparison = hm.compare(hm.Graph.from_points(points, n_neighbors=10), measures)
    types = annotate("type", np.repeat([f"type {i:02d}" for i in range(n_types)], 2), 2 * n_types)
    found = contrast_cells(
        comparison, types, np.where(case, "case", "control"), blocks=np.repeat(np.arange(10), 2).tolist()
    )
    assert not any(one.direction for one in found.types)
    assert {one.abundance_limit for one in found.types} == {"too few pairs to decide"}


def test_a_trend_that_cannot_be_tested_leaves_the_other_contrasts(series):
    comparison, types, dose = series
    cells, odd = types.codes.astype(str), [0.0] * 18 + [1.0, 100.0]
    found = study_comparison(
        comparison, {"dose": dose, "odd": odd}, cells=cells, group="0.5", reference="0", trend=["odd"],
        numeric=["odd"], n_permutations=49,
    )  # fmt: skip
    assert [(one.group, one.reference) for one in found.contrasts] == [("0.5", "0")]
    assert any("Cell types were not compared along 'odd'" in note for note in found.notes)


def test_codes_that_are_read_as_categories_have_no_trend(series):
    comparison, types, dose = series
    cells, codes = types.codes.astype(str), [int(1000 * float(value)) for value in dose]
    found = study_comparison(comparison, {"code": codes}, cells=cells, categorical=["code"], n_permutations=49)
    assert not any(one.trend for one in found.contrasts)
    assert len(found.contrasts) == 3


def test_the_difference_is_adjusted_for_the_number_of_contrasts(studied):
    p_values = [one.p_value for one in studied.contrasts]
    np.testing.assert_allclose([one.q_value for one in studied.contrasts], hm.statistics.false_discovery(p_values))
    assert all(one.differs == (one.q_value <= 0.05) for one in studied.contrasts)


def test_all_groups_of_too_few_permutations_are_not_called_unchanged(series):
    comparison, types, dose = series
    found = contrast_variable(comparison, types, dose, variable="dose", n_permutations=9)
    assert (found.omnibus.abundance_q == 1).all()
    assert all("too few samples to decide" in one.brief() for one in found.contrasts)
