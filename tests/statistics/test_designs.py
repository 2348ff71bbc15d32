"""Designs against R's vegan, and permuted residuals against coordinates, least squares and loops."""

from __future__ import annotations

import json
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from heatmover.errors import InvalidInputError
from heatmover.statistics import (
    Design,
    dispersion,
    distance_correlation,
    explained_variation,
    neighbor_enrichment,
    permanova,
    permanova_design,
)
from heatmover.statistics.designs import block_basis, blocks_of_one_value, check_mixed, distances_without, formula_terms
from heatmover.statistics.manifold import smoothness
from heatmover.statistics.permutations import probability, restrict

VEGAN = json.loads((Path(__file__).parent / "adonis2.json").read_text(encoding="utf-8"))
CLOSE = {"rel": 1e-10, "abs": 1e-12}


def apart(places):
    places = np.asarray(places, dtype=float).reshape(len(places), -1)
    return cdist(places, places)


def filled(*columns):
    """A constant column and others."""
    parts = [np.asarray(column, dtype=float).reshape(len(column), -1) for column in columns]
    return np.hstack([np.ones((len(parts[0]), 1)), *parts])


def residuals(places, model):
    return places - model @ np.linalg.lstsq(model, places, rcond=None)[0]


def f_of(places, reduced, full):
    """F of what the full model explains beyond the reduced one, by least squares on coordinates."""
    left, least = ((residuals(places, model) ** 2).sum() for model in (reduced, full))
    ranks = [np.linalg.matrix_rank(model) for model in (reduced, full)]
    return ((left - least) / (ranks[1] - ranks[0])) / (least / (len(places) - ranks[1]))


def freedman_lane(places, reduced, full, orders):
    """F of fitted values plus residuals in each order."""
    left = residuals(places, reduced)
    return np.array([f_of(places - left + left[list(order)], reduced, full) for order in orders])


@pytest.mark.parametrize("case", VEGAN["designs"], ids=lambda case: case["formula"])
@pytest.mark.parametrize("by", ["terms", "margin"])
def test_sums_of_squares_are_those_of_vegan(case, by):
    design = Design.from_formula(case["formula"], VEGAN["samples"])
    found = permanova_design(VEGAN["distances"], design, by=by, statistic="pseudo-F", n_permutations=1)
    *rows, residual, total = case[by]
    assert list(found.names) == [row["term"] for row in rows]
    for mine, row in zip(found.terms, rows, strict=True):
        assert mine.degrees_of_freedom == row["df"]
        assert mine.sum_of_squares == pytest.approx(row["sum_of_squares"], **CLOSE)
        assert mine.r_squared == pytest.approx(row["r_squared"], **CLOSE)
        assert mine.statistic == pytest.approx(row["f"], **CLOSE)
        both = row["sum_of_squares"] + residual["sum_of_squares"]
        assert mine.partial_r_squared == pytest.approx(row["sum_of_squares"] / both, **CLOSE)
    assert found.residual_degrees_of_freedom == residual["df"]
    assert found.residual_sum_of_squares == pytest.approx(residual["sum_of_squares"], **CLOSE)
    assert (found.total_degrees_of_freedom, found.total_sum_of_squares) == (
        total["df"],
        pytest.approx(total["sum_of_squares"], **CLOSE),
    )


def test_there_are_ten_designs_and_more():
    assert len(VEGAN["designs"]) >= 10


def test_permuted_residuals_are_those_of_all_orders():
    rng = np.random.default_rng(0)
    places, age = rng.normal(size=(6, 2)), rng.normal(size=6)
    group = np.array([0, 0, 1, 0, 1, 1])
    expected = freedman_lane(places, filled(age), filled(age, group), permutations(range(6)))
    found = permanova(apart(places), group, adjust={"age": age}, statistic="pseudo-F")
    assert found.complete
    assert len(found.null) == 719
    np.testing.assert_allclose(np.sort(np.append(found.null, found.statistic)), np.sort(expected), rtol=1e-8)
    assert found.p_value == np.mean(expected >= expected[0] * (1 - 1e-9))
    assert found.smallest_p == np.mean(expected >= expected.max() * (1 - 1e-9))


def test_residuals_change_places_within_blocks():
    rng = np.random.default_rng(1)
    places, age = rng.normal(size=(8, 3)), rng.normal(size=8)
    group, pair = np.tile([0, 1], 4), np.repeat(range(4), 2)
    orders = [
        [2 * k + (side if turn == 0 else 1 - side) for k, turn in enumerate(turns) for side in (0, 1)]
        for turns in product((0, 1), repeat=4)
    ]
    pairs = np.eye(4)[pair]
    expected = freedman_lane(places, filled(age, pairs), filled(age, pairs, group), orders)
    found = permanova(apart(places), group, adjust={"age": age}, blocks=pair, statistic="pseudo-F")
    assert found.statistic == pytest.approx(f_of(places, filled(age, pairs), filled(age, pairs, group)))
    # The table of a design is that of the design; p is that of the test within blocks.
    design = Design.from_columns({"g": group.astype(str), "age": age})
    term = permanova_design(apart(places), design, blocks=pair, statistic="pseudo-F")["g"]
    assert term.p_value == found.p_value
    assert term.statistic == pytest.approx(f_of(places, filled(age), filled(age, group)))
    assert found.complete
    np.testing.assert_allclose(np.sort(np.append(found.null, found.statistic)), np.sort(expected), rtol=1e-8)


def test_blocks_exchange_their_mean_residuals():
    rng = np.random.default_rng(2)
    patient = np.array([0, 0, 0, 1, 2, 2, 3, 3, 3, 4])
    places, age = rng.normal(size=(10, 2)), rng.normal(size=10)
    group = np.array([0, 1, 1, 0, 1])[patient]
    left = residuals(places, filled(age))
    means = np.array([left[patient == p].mean(axis=0) for p in range(5)])
    expected = []
    for order in permutations(range(5)):
        moved = places - left + means[list(order)][patient] + (left - means[patient])
        expected.append(f_of(moved, filled(age), filled(age, group)))
    found = permanova(apart(places), group, adjust={"age": age}, blocks=patient, statistic="pseudo-F")
    assert found.complete
    np.testing.assert_allclose(np.sort(np.append(found.null, found.statistic)), np.sort(expected), rtol=1e-8)


def test_blocks_of_patients_within_batches():
    rng = np.random.default_rng(3)
    patient, batch = np.repeat(range(8), 2), np.repeat(range(2), 8)
    group, age = np.repeat([0, 0, 1, 1, 0, 1, 0, 1], 2), rng.normal(size=16)
    found = permanova(
        apart(rng.normal(size=(16, 2))), group, adjust={"age": age}, blocks={"patient": patient, "batch": batch}
    )
    assert found.complete
    assert len(found.null) == 24 * 24 - 1  # four patients change places in each of two batches


def test_one_factor_of_a_design_has_the_p_of_permanova():
    places, group = np.random.default_rng(4).normal(size=(6, 2)), list("aababb")
    alone = permanova(apart(places), group)
    (term,) = permanova_design(apart(places), Design.from_columns({"group": group})).terms
    assert (term.p_value, term.smallest_p) == (alone.p_value, alone.smallest_p)
    assert term.statistic == pytest.approx(alone.statistic)
    assert term.r_squared == pytest.approx(alone.effect)


def test_adjusted_groups_are_a_margin_of_the_design():
    rng = np.random.default_rng(5)
    places, age, group = rng.normal(size=(20, 2)), rng.normal(size=20), rng.permutation(list("abcd" * 5))
    alone = permanova(apart(places), group, adjust={"age": age})
    both = permanova_design(apart(places), Design.from_columns({"group": group, "age": age}))["group"]
    assert alone.p_value == both.p_value
    assert alone.statistic == pytest.approx(both.statistic)
    np.testing.assert_allclose(alone.null, both.null)
    assert explained_variation(apart(places), group, adjust={"age": age}) == pytest.approx(both.partial_r_squared)


def test_many_permutations_are_evaluated_in_parts(monkeypatch):
    rng = np.random.default_rng(6)
    distances, group, age = apart(rng.normal(size=(12, 2))), list("ab" * 6), rng.normal(size=12)
    whole = permanova(distances, group, adjust={"age": age}, n_permutations=50)
    for name in ("NUMBERS", "LEAST_COLUMNS"):
        monkeypatch.setattr(f"heatmover.statistics.permutations.{name}", 7)
    np.testing.assert_allclose(permanova(distances, group, adjust={"age": age}, n_permutations=50).null, whole.null)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), unit=st.sampled_from([1e-150, 1.0, 1e100]))
def test_neither_order_nor_unit_matters(seed, unit):
    rng = np.random.default_rng(seed)
    places, age, group = rng.normal(size=(9, 2)), rng.normal(size=9), rng.permutation(list("aaaabbbbb"))
    order = rng.permutation(9)
    first = permanova_design(apart(places), Design.from_columns({"group": group, "age": age}), n_permutations=5)
    columns = {"group": group[order], "age": 1000 * age[order] + 7}
    moved = permanova_design(apart(places[order]) * unit, Design.from_columns(columns), n_permutations=5)
    for mine, other in zip(first.terms, moved.terms, strict=True):
        assert other.statistic == pytest.approx(mine.statistic, rel=1e-8)
        assert other.sum_of_squares == pytest.approx(mine.sum_of_squares * unit**2, rel=1e-8)


def confounded(seed, effect=0.0, n=24):
    """Groups that go with a covariate, and places that depend on the covariate, and by an effect on the group."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    group = (age + rng.normal(size=n) > 0).astype(int)
    if min(group.sum(), n - group.sum()) < 3:
        return confounded(seed + 10_000, effect, n)
    places = np.outer(age, [2.0, 1.0, 0.0]) + rng.normal(size=(n, 3))
    places[:, 0] += effect * group
    return apart(places), group, age


def test_a_confounded_covariate_is_adjusted_for():
    runs = [confounded(seed) for seed in range(300)]
    ignored = np.mean([permanova(d, g, n_permutations=39).p_value <= 0.05 for d, g, _ in runs[:60]])
    adjusted = np.mean([permanova(d, g, adjust={"age": a}, n_permutations=39).p_value <= 0.05 for d, g, a in runs])
    assert ignored > 0.5
    assert adjusted < 0.09  # 5% and three standard errors
    found = [confounded(seed, effect=2.5) for seed in range(60)]
    assert np.mean([permanova(d, g, adjust={"age": a}, n_permutations=39).p_value <= 0.05 for d, g, a in found]) > 0.8


def test_pairs_with_a_covariate_that_goes_with_the_visit():
    called = []
    for seed in range(300):
        rng = np.random.default_rng([seed, 3])
        patient, visit = np.repeat(np.arange(10), 2), np.tile([0, 1], 10)
        hour = rng.normal(size=20) + 0.8 * visit
        places = 3 * rng.normal(size=(10, 2))[patient] + np.outer(hour, [1, 0]) + rng.normal(size=(20, 2))
        found = permanova(apart(places), visit, blocks=patient, adjust={"hour": hour}, n_permutations=39)
        called.append(found.p_value <= 0.05)
    assert np.mean(called) < 0.09


def bent(seed, effect=0.0, n=24):
    """A number that goes with a covariate, and places that depend on it along a curve."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    number = age + rng.normal(size=n)
    places = np.column_stack([np.cos(2 * age), np.sin(2 * age)]) + 0.2 * rng.normal(size=(n, 2))
    places[:, 0] += effect * (number - age)
    return apart(places), number, age


def test_a_number_is_adjusted_for_what_it_goes_with():
    runs = [bent(seed) for seed in range(200)]
    settings = {"n_permutations": 39}
    ignored = np.mean([distance_correlation(d, x, **settings).p_value <= 0.05 for d, x, _ in runs[:60]])
    adjusted = np.mean([distance_correlation(d, x, adjust={"age": a}, **settings).p_value <= 0.05 for d, x, a in runs])
    assert ignored > 0.2
    assert adjusted < 0.1
    found = [bent(seed, effect=0.7) for seed in range(60)]
    assert (
        np.mean([distance_correlation(d, x, adjust={"age": a}, **settings).p_value <= 0.05 for d, x, a in found]) > 0.8
    )


def test_adjusted_distance_correlation_of_residuals_by_loops():
    rng = np.random.default_rng(8)
    distances, number, age = apart(rng.normal(size=(9, 2))), rng.normal(size=9), rng.normal(size=9)
    left = np.eye(9) - filled(age) @ np.linalg.pinv(filled(age))
    a, x = left @ distances @ left, left @ number
    b = np.abs(x[:, None] - x)
    center = np.eye(9) - 1 / 9
    b = center @ b @ center
    expected = np.sqrt(max((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()), 0))
    found = distance_correlation(distances, number, adjust={"age": age}, n_permutations=9)
    assert found.statistic == pytest.approx(expected)


def test_a_number_of_whole_blocks_is_adjusted_block_by_block():
    rng = np.random.default_rng(9)
    patient = np.repeat(range(7), [1, 2, 3, 2, 2, 1, 4])
    number, age = rng.normal(size=7)[patient], rng.normal(size=len(patient))
    found = distance_correlation(
        apart(rng.normal(size=(len(patient), 2))), number, adjust={"age": age}, blocks=patient, n_permutations=20
    )
    assert 0 < found.p_value <= 1
    with pytest.raises(InvalidInputError, match="not to be determined by 'same'"):
        distance_correlation(apart(rng.normal(size=(len(patient), 2))), number, adjust={"same": number})


def test_five_pairs_cannot_decide():
    rng = np.random.default_rng(10)
    pair, group = np.repeat(range(5), 2), np.tile([0, 1], 5)
    places = rng.normal(size=5)[pair] * 0.1 + 10.0 * group
    found = permanova(apart(places), group, blocks=pair)
    assert (found.p_value, found.smallest_p, found.undecided) == (0.0625, 0.0625, True)
    adjusted = permanova(apart(places), group, blocks=pair, adjust={"pair": pair.astype(str)})
    assert (adjusted.p_value, adjusted.smallest_p) == (0.0625, 0.0625)
    six = permanova(apart(np.append(places, [0.0, 10.0])), np.append(group, [0, 1]), blocks=np.append(pair, [5, 5]))
    assert (six.p_value, six.smallest_p, six.undecided) == (2 / 64, 2 / 64, False)


def test_groups_of_unequal_size_have_no_mirror_image():
    found = permanova(apart([0.0, 0.1, 5.0, 5.1, 5.3, 9.0]), list("aabbbb"))
    assert found.smallest_p == 1 / 15


def test_permutations_drawn_at_random_count_the_observed_order_alone():
    places = np.random.default_rng(11).normal(size=20)
    found = permanova(apart(places), list("ab" * 10), n_permutations=199)
    assert not found.complete
    assert found.smallest_p == 1 / 200


@pytest.mark.parametrize("test", [permanova, dispersion])
def test_no_order_of_the_labels_goes_below_the_floor(test):
    distances, labels = apart(np.random.default_rng(12).normal(size=(7, 2))), np.array(list("aaabbbb"))
    found = [test(distances, labels[list(order)]) for order in list(permutations(range(7)))[::97]]
    assert all(result.p_value >= result.smallest_p for result in found)
    everything = np.append(found[0].null, found[0].statistic)
    if test is permanova:
        assert {result.smallest_p for result in found} == {np.mean(everything >= everything.max() * (1 - 1e-9))}


def test_tied_statistics_raise_the_floor():
    distances = apart([0.0, 1.0, 10.0, 11.0, 20.0, 21.0])
    found = neighbor_enrichment(distances, list("aabbcc"), k=1)
    assert found.smallest_p == found.p_value == 6 / 90  # names of the groups may change places


def test_the_floor_counts_small_statistics_where_these_are_extreme():
    assert probability(1.0, np.array([0.5, 2.0, 0.5]), True, smaller=True) == (0.75, 0.5)
    assert probability(1.0, np.array([0.5, 2.0, 0.5]), False, smaller=True) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("formula", "terms"),
    [
        ("a", [("a",)]),
        ("~ a + b", [("a",), ("b",)]),
        ("a*b", [("a",), ("b",), ("a", "b")]),
        ("b*a:größe + `a+b`", [("b",), ("a+b",), ("a", "größe"), ("b", "a", "größe")]),
        ("a:b + a", [("a",), ("a", "b")]),
        ("1 + a + a", [("a",)]),
        ("a + b - 1", [("a",), ("b",)]),
        ("a - 1 + b + 1", [("a",), ("b",)]),
        ("`two words` + a", [("two words",), ("a",)]),
        ("`a+b`:a", [("a+b", "a")]),
        ("größe", [("größe",)]),
    ],
)
def test_formulas(formula, terms):
    assert formula_terms(formula, ["a", "b", "two words", "a+b", "größe"]) == terms


@pytest.mark.parametrize(
    "formula",
    [
        "", "  ", "~", "+", "a +", "+ + a", "a b", "a ++ b", "a ** 2", "log(a)", "a + exit()", "__import__('os')",
        "I(a)", "a[0]", "a.b()", "a; b", "a - b", "a = 1", "{a}", "a + `b", "a / b", "a | b", "1", "a:1", "a*1",
        "a ~ b", "1:a", "1 1", "a - 1 * b", "lambda: a", "a + '1'", "a\n+\tb()", "a if b else a", "(a)", "a -1 b",
        "C(a)", "a + $", "a + 1a", "0 + a", "a + 2",
    ],
)  # fmt: skip
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(InvalidInputError, match=r"^Expected a (formula of variable names|variable in the formula)"):
        formula_terms(formula, ["a", "b"])


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab1+:*-`()[]._ \"'~^%", max_size=12))
def test_any_text_is_a_formula_of_known_names_or_refused(text):
    try:
        terms = formula_terms(text, ["a", "b"])
    except InvalidInputError:
        return
    assert {name for term in terms for name in term} <= {"a", "b"}


def test_columns_named_in_no_formula_may_be_anything():
    columns = {"a": list("xxyy"), "b": [1.0, np.nan, 2.0, 3.0], "c": list("wxyz")}
    assert Design.from_formula("a", columns).names == ("a",)


def test_numbers_that_stand_for_groups():
    columns = pd.DataFrame({"batch": [1, 1, 2, 2, 3, 3], "group": list("ababab")})
    found = Design.from_columns(columns, categorical=["batch"])
    assert [term.columns.shape[1] for term in found.terms] == [3, 2]
    assert [term.columns.shape[1] for term in Design.from_columns(columns).terms] == [1, 2]
    assert found.take(np.array([1, 1, 1, 1, 0, 0], dtype=bool)).n_samples == 4


A, B = list("aaabbb"), [1.0, 2.0, 3.0, 5.0, 8.0, 13.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": A, "b": [None, *B[1:]]}, r"a value of 'b' for every sample, found 1 of 6 missing \(first: sample 0\)"),
        ({"a": A, "b": [np.nan, np.nan, *B[2:]]}, "'b' for every sample, found 2 of 6 missing"),
        ({"a": A, "b": [np.inf, *B[1:]]}, "'b': a number for every sample, found 1 NaN or infinite"),
        ({"a": A, "b": list("uvvvvv")}, "every group of 'b' in a design, found only one sample of 'u'; join"),
        ({"a": A, "b": list("uvwxyz")}, "groups of one sample: 'u', 'v', 'w', 'x', 'y' and 1 more; leave the variable"),
        ({"a": A, "b": [3] * 6}, "'b' to differ between samples, found the same value in all"),
        ({"a": A, "b": ["u"] * 6}, "'b' to differ between samples"),
        ({"a": A, "b": B[:4]}, "6 values of .b., as in the other columns, found 4"),
        (
            {"a": A, "b": ["A" if x == "a" else "B" for x in A]},
            "'a' not to be determined by 'b', found that it is",
        ),
        ({"b": B, "c": B[::-1], "d": [x - 2 * y for x, y in zip(B, B[::-1], strict=True)]}, "determined by 'c', 'd'"),
        ({"a": A, "b": B, "c": [1, 2, 1, 2, 1, 2], "d": B[::-1], "e": [1, 4, 1, 5, 9, 2], "f": [2, 7, 1, 8, 2, 8]},
         "determined by|fewer columns than the 6 samples"),
        ({}, "at least one term"),
        (A, "columns by name, in a mapping or a DataFrame, found list"),
    ],
)  # fmt: skip
def test_designs_that_say_nothing_are_refused(columns, message):
    with pytest.raises(InvalidInputError, match=message):
        permanova_design(apart(B), Design.from_columns(columns))


def test_nested_terms_can_be_tested_in_turn_but_not_beside_each_other():
    columns = {"batch": np.repeat(["x", "y"], 8), "patient": np.repeat(list("abcdefgh"), 2)}
    distances = apart(np.random.default_rng(13).normal(size=(16, 2)))
    assert permanova_design(distances, Design.from_columns(columns), by="terms")["patient"].degrees_of_freedom == 6
    with pytest.raises(InvalidInputError, match=r"'batch' not to be determined by 'patient'.*no adjustment"):
        permanova_design(distances, Design.from_columns(columns))


def test_too_many_covariates_are_refused():
    rng = np.random.default_rng(14)
    adjust = {f"x{k}": rng.normal(size=6) for k in range(4)}
    with pytest.raises(InvalidInputError, match="at least 1 residual degree of freedom for 6 samples, found 4 columns"):
        permanova(apart(rng.normal(size=6)), A, adjust=adjust)
    with pytest.raises(InvalidInputError, match="fewer columns than the 6 samples, found 6"):
        permanova_design(apart(rng.normal(size=6)), Design.from_columns(adjust | {"a": A}))


def test_blocks_with_one_group_only_are_counted_and_refused_on_request():
    group, block = np.array([0, 1, 0, 1, 0, 0, 1, 1]), np.repeat(range(4), 2)
    assert blocks_of_one_value(group, restrict(group, block)) == (2, 4)
    assert blocks_of_one_value(group, restrict(group, None)) == (0, 0)
    with pytest.raises(
        InvalidInputError, match="'g' in every block, found only one group or value in 2 of 4 blocks; leave out the"
    ):
        check_mixed("'g'", group, restrict(group, block))
    check_mixed("'g'", group[:4], restrict(group[:4], block[:4]))


@pytest.mark.parametrize("test", [permanova, distance_correlation])
def test_covariates_of_other_samples_are_refused(test):
    values = [0, 0, 0, 1, 1, 1]
    with pytest.raises(InvalidInputError, match="covariates of 6 samples, as many as the distances have, found 5"):
        test(apart(B), values, adjust={"age": B[:5]})
    with pytest.raises(InvalidInputError, match="not to be determined by 'same'"):
        test(apart(B), values, adjust={"same": [2.0 * value for value in values]})
    with pytest.raises(InvalidInputError, match="a value of 'age' for every sample"):
        test(apart(B), values, adjust={"age": [None, *B[1:]]})


def test_unknown_names_are_refused_with_a_guess():
    with pytest.raises(InvalidInputError, match=r"a variable in the formula, found 'condtion' \(did you mean"):
        Design.from_formula("condtion", {"condition": A})
    with pytest.raises(InvalidInputError, match="categorical, found 'x'"):
        Design.from_columns({"a": A}, categorical=["x"])
    with pytest.raises(InvalidInputError, match="a term that was tested, found 'b'"):
        permanova_design(apart(B), Design.from_columns({"a": A}))["b"]
    with pytest.raises(InvalidInputError, match="by to be one of 'terms', 'margin'"):
        permanova_design(apart(B), Design.from_columns({"a": A}), by="type 3")
    with pytest.raises(InvalidInputError, match="a design of 5 samples"):
        permanova_design(apart(B[:5]), Design.from_columns({"a": A}))


def test_samples_that_all_coincide_are_no_evidence():
    found = permanova_design(np.zeros((6, 6)), Design.from_columns({"a": A, "b": B}))
    assert [(term.p_value, term.r_squared) for term in found.terms] == [(1.0, 0.0)] * 2
    assert json.dumps(found.plain())


def test_results_read_well():
    found = permanova_design(apart(B), Design.from_columns({"a": A, "b": [1, 0, 2, 5, 3, 1]}), n_permutations=9)
    assert str(found).splitlines()[0].split() == [
        "term",
        "df",
        "sum",
        "of",
        "squares",
        "R2",
        "partial",
        "R2",
        "Welch",
        "F",
        "p",
    ]
    assert len(str(found).splitlines()) == 5
    assert repr(found).startswith("DesignResult(a: p = ")
    assert json.loads(json.dumps(found.plain()))["residual"]["degrees_of_freedom"] == 3


def test_distances_without_covariates_are_those_of_the_residuals():
    rng = np.random.default_rng(20)
    places, age, block = rng.normal(size=(12, 3)), rng.normal(size=12), np.repeat(range(4), 3)
    design, blocks = Design.from_columns({"age": age}), block_basis(12, block)
    slope = np.linalg.lstsq(np.column_stack([age, np.eye(4)[block]]), places, rcond=None)[0][0]
    found = distances_without(apart(places), design, blocks)
    np.testing.assert_allclose(found, apart(places - age[:, None] * slope), atol=1e-6)
    mean = block_basis(12, None)
    np.testing.assert_allclose(
        distances_without(apart(places), design, mean), apart(residuals(places, filled(age))), atol=1e-6
    )


def partly_confounded(seed, *, shift=0.0, width=1.0):
    """14 of 20 cases in one batch, 14 of 20 controls in the other; the batches are far from each other."""
    rng = np.random.default_rng([seed, 6])
    case, batch = np.repeat([0, 1], 20), np.repeat([0, 1, 0, 1], [14, 6, 6, 14])
    places = rng.normal(size=(40, 3)) * np.where(case == 1, width, 1)[:, None]
    places += 6 * np.outer(batch, [0, 1, 0]) + shift * np.outer(case, [1, 0, 0])
    return apart(places), case.astype(str), {"batch": batch.astype(str)}


@pytest.mark.parametrize(
    ("test", "effect"),
    [(neighbor_enrichment, {"shift": 2.0}), (smoothness, {"shift": 2.0}), (dispersion, {"width": 2.0})],
    ids=["neighbors", "smoothness", "dispersion"],
)
def test_the_other_tests_keep_their_level_with_covariates(test, effect):
    called = found = ignored = 0
    for seed in range(60):
        distances, case, batch = partly_confounded(seed)
        called += test(distances, case, adjust=batch, n_permutations=39).p_value <= 0.05
        if seed < 20:
            ignored += test(distances, case, n_permutations=39).p_value <= 0.05
            distances, case, batch = partly_confounded(seed, **effect)
            found += test(distances, case, adjust=batch, n_permutations=39).p_value <= 0.05
    assert called <= 8  # 5% of 60 are 3
    assert found >= 15
    assert test is dispersion or ignored >= 5


def test_a_number_is_smooth_with_covariates_only_beyond_them():
    rng = np.random.default_rng(21)
    age, dose = rng.normal(size=(2, 40))
    places = np.column_stack([4 * age, 2 * dose])
    of_age = age + 0.3 * rng.normal(size=40)
    assert smoothness(apart(places), of_age).p_value == 0.001
    assert smoothness(apart(places), of_age, adjust={"age": age}).p_value > 0.05
    assert smoothness(apart(places), dose, adjust={"age": age}).p_value == 0.001


@pytest.mark.parametrize("test", [neighbor_enrichment, dispersion, smoothness])
def test_covariates_with_blocks(test):
    rng = np.random.default_rng(22)
    patient = np.repeat(range(12), 2)
    visit, group, age = np.tile(["u", "v"], 12), np.repeat(list("ab" * 6), 2), rng.normal(size=24)
    distances = apart(rng.normal(size=(24, 2)))
    for labels in (visit, group):
        found = test(distances, labels, blocks=patient, adjust={"age": age}, n_permutations=49)
        assert 0 < found.p_value <= 1
    with pytest.raises(InvalidInputError, match="groups not to be determined by 'copy'"):
        test(distances, visit, adjust={"copy": np.char.upper(visit)})
    with pytest.raises(InvalidInputError, match="covariates of 24 samples, as many as the distances have, found 3"):
        test(distances, visit, adjust={"age": [1.0, 2.0, 3.0]})
