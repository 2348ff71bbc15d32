"""`examine`: every figure against the plain test, kinds of variables, missing values, blocks, and the words."""

from __future__ import annotations

import datetime
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatmover.errors import InvalidInputError
from heatmover.statistics import (
    dispersion,
    distance_correlation,
    explained_variation,
    false_discovery,
    neighbor_enrichment,
    permanova,
)
from heatmover.statistics.manifold import smoothness
from heatmover.statistics.tests import separate
from heatmover.study.examination import Finding, as_numbers, examine, kind_of, label, read_variables

SETTINGS = {"n_permutations": 49, "random_state": 3}


def line(n=24, shift=0.0, seed=0):
    """Distances of samples on a line; every second one is shifted."""
    positions = np.random.default_rng(seed).normal(size=n) + shift * (np.arange(n) % 2)
    return abs(positions[:, None] - positions)


def only(distances, values, **others):
    (found,) = examine(distances, {"it": values}, **{**SETTINGS, **others})
    return found


def same(result, other):
    assert (result.test, result.statistic, result.effect, result.p_value) == (
        other.test,
        other.statistic,
        other.effect,
        other.p_value,
    )
    np.testing.assert_array_equal(result.null, other.null)


def test_groups_are_tested_as_the_tests_do():
    distances, groups = line(shift=2), ["a", "b"] * 12
    found = only(distances, groups)
    assert found.kind == "groups"
    assert found.groups == {"a": 12, "b": 12}
    assert list(found.tests) == ["permanova", "neighbor enrichment", "dispersion", "smoothness"]
    for test, more in [(permanova, {}), (neighbor_enrichment, {"k": 5}), (dispersion, {}), (smoothness, {"k": 10})]:
        result = test(distances, groups, **more, **SETTINGS)
        same(found.tests[result.test], result)
    assert found.answer is found.tests["permanova"]
    assert found.separation == separate(distances, np.arange(24) % 2)


def test_numbers_are_tested_as_the_tests_do():
    distances, numbers = line(), np.linspace(0, 5, 24)
    found = only(distances, numbers)
    assert (found.kind, found.groups, found.separation) == ("number", {}, None)
    assert list(found.tests) == ["distance correlation", "smoothness"]
    same(found.tests["distance correlation"], distance_correlation(distances, numbers, **SETTINGS))
    same(found.tests["smoothness"], smoothness(distances, numbers, k=10, **SETTINGS))


def test_explained_share_by_brute_force():
    """R squared from sums over all pairs, and the p-value from all permutations."""
    distances, groups = line(6, shift=1.0, seed=5), list("abbaab")
    pairs = list(itertools.combinations(range(6), 2))

    def share(labels):
        total = sum(distances[i, j] ** 2 for i, j in pairs) / 6
        inside = sum(distances[i, j] ** 2 / labels.count(labels[i]) for i, j in pairs if labels[i] == labels[j])
        return 1 - inside / total

    found = only(distances, groups, n_permutations=999)
    every = [share(list(labels)) for labels in set(itertools.permutations(groups))]
    assert found.answer.complete
    assert found.answer.effect == pytest.approx(share(groups))
    assert found.answer.p_value == pytest.approx(np.mean(np.array(every) >= share(groups) - 1e-12))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3, 4, 5], "groups"),
        ([1, 2, 3, 4, 5, 6], "number"),
        ([0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "number"),
        ([1, 1, 1, 2, 2, 2], "groups"),
        (["1", "2", "3", "4", "5", "6"], "groups"),
        ([True, False] * 5, "groups"),
        ([1, 2, 3, 4, 5, 6, True], "groups"),
        ([1, 2, 3, 4, 5, float("inf")], "groups"),
        ([np.int64(i) for i in range(6)], "number"),
        ([np.float32(i) for i in range(6)], "number"),
        ([np.bool_(i % 2) for i in range(6)], "groups"),
        ([1, 2, 3, 4, 5, "six"], "groups"),
        ([], "groups"),
    ],
)
def test_kinds(values, kind):
    assert kind_of(values) == kind


def test_a_variable_is_read_as_it_is_said():
    distances, stage = line(shift=2), [1, 2, 3, 4] * 6
    spelt, years = [str(each) for each in stage], list(range(24))
    plain = {"stage": stage, "spelt": spelt, "years": years}
    assert [found.kind for found in examine(distances, plain)] == ["groups", "groups", "number"]
    read = examine(distances, plain, numeric=["stage", "spelt"], categorical=["years"], n_permutations=99)
    assert [found.kind for found in read] == ["number", "number", "groups"]
    assert read[0].answer.test == "distance correlation"
    assert read[0].answer.p_value == read[1].answer.p_value
    assert "every sample has a different value" in read[2].note
    binned = {"years": [f"{year // 6}" for year in years]}
    coded = examine(distances, {"years": [float(year // 6) for year in years]}, categorical=["years"])
    assert coded[0].groups == examine(distances, binned)[0].groups


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"numeric": ["group"]},
            "Expected numbers in 'group', a column named in the argument numeric, found 'a'; correct the value",
        ),
        (
            {"numeric": ["grup"]},
            "every name in the argument numeric to be a variable, found 'grup' .did you mean 'group'",
        ),
        ({"categorical": ["age"]}, "every name in the argument categorical to be a variable, found 'age'"),
        (
            {"numeric": ["group"], "categorical": ["group"]},
            "only one of the arguments numeric and categorical, found 'group' in",
        ),
    ],
)
def test_readings_that_cannot_be(changes, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        examine(line(shift=2), {"group": ["a", "b"] * 12}, **changes)


@pytest.mark.parametrize(("value", "name"), [(1.0, "1"), (1, "1"), (1.5, "1.5"), ("1.0", "1.0"), (True, "True")])
def test_labels(value, name):
    assert label(value) == name


@pytest.mark.parametrize("gap", [None, float("nan"), np.nan, pd.NA, pd.NaT])
def test_missing_values_are_left_out(gap):
    distances = line(shift=2)
    groups = ["a", "b"] * 12
    holes = [gap if i in (0, 7) else group for i, group in enumerate(groups)]
    known = [i for i in range(24) if i not in (0, 7)]
    found = only(distances, holes)
    plain = only(distances[np.ix_(known, known)], [groups[i] for i in known])
    assert (found.n_samples, found.n_missing) == (22, 2)
    same(found.answer, plain.answer)
    assert "2 samples without 'it' were left out." in found.note


def test_a_gap_does_not_change_the_names_of_groups():
    """pandas makes floats of whole numbers with a gap."""
    table = pd.DataFrame({"stage": [1, 2, None, 1, 2, 1, 2, 1]})
    (found,) = examine(line(8), table, **SETTINGS)
    assert found.groups == {"1": 4, "2": 3}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["a", "b", "a"] + [None] * 5, "3 samples with a value are too few"),
        ([None] * 8, "0 samples with a value are too few"),
        (["a"] * 8, "it is constant"),
        ([3.5] * 8, "it is constant"),
        (list("abcdefgh"), "every sample has a different value"),
        ([1, 2, 3, 4, 5, 6, 7, float("inf")], "it has infinite values"),
        ([-np.inf, *"abcdefg"], "it has infinite values"),
    ],
)
def test_what_cannot_be_tested_says_why(values, reason):
    found = only(line(8), values)
    assert found.tests == {}
    assert (found.answer, found.q_value, found.sure) == (None, None, False)
    assert found.describe() == f"'it' was not tested: {reason}."


def test_a_variable_that_is_not_tested_does_not_count_among_the_others():
    distances = line(shift=3)
    variables = {"first": ["a", "b"] * 12, "none": ["a"] * 24, "noise": list("aabb" * 6), "age": list(range(24))}
    found = examine(distances, variables, **SETTINGS)
    assert [finding.variable for finding in found] == list(variables)
    tested = [finding for finding in found if finding.answer is not None]
    assert len(tested) == 3
    np.testing.assert_array_equal(
        [finding.q_value for finding in tested], false_discovery([finding.answer.p_value for finding in tested])
    )


def test_no_result_depends_on_which_others_are_asked_for():
    distances = line(shift=1)
    variables = {"a": ["x", "y"] * 12, "b": list(np.linspace(0, 1, 24)), "c": list("aabb" * 6)}
    together = examine(distances, variables, **SETTINGS)
    for finding in together:
        (alone,) = examine(distances, {finding.variable: variables[finding.variable]}, **SETTINGS)
        same(alone.answer, finding.answer)


def test_blocks_as_units_and_within():
    distances = line(shift=2)
    patients = np.repeat(np.arange(12), 2)
    by_patient = np.repeat(["a", "b"], 12)
    units = only(distances, by_patient, blocks=patients)
    assert units.blocks == "whole"
    same(units.answer, permanova(distances, by_patient, blocks=patients, **SETTINGS))
    visit = ["pre", "post"] * 12
    within = only(distances, visit, blocks=patients)
    assert within.blocks == "within"
    same(within.answer, permanova(distances, visit, blocks=patients, **SETTINGS))
    numbers = np.repeat(np.linspace(0, 1, 12), 2)
    tied = only(distances, numbers, blocks=patients)
    same(tied.answer, distance_correlation(distances, numbers, blocks=patients, **SETTINGS))


def test_blocks_with_missing_values():
    """A patient whose one sample has no value: the other counts."""
    distances = line(shift=2)
    patients = np.repeat([f"p{i}" for i in range(12)], 2)
    groups = list(np.repeat(["a", "b"], 12))
    groups[0] = None
    known = np.arange(1, 24)
    found = only(distances, groups, blocks=patients)
    assert found.blocks == "whole"
    same(found.answer, permanova(distances[1:, 1:], groups[1:], blocks=patients[known], **SETTINGS))


def test_blocks_that_leave_nothing_to_permute():
    found = only(line(8), ["a", "b"] * 4, blocks=[*range(7), 6])
    assert found.blocks in ("whole", "within")
    assert found.describe()
    single = only(line(8), ["a"] * 4 + ["b"] * 4, blocks=["p"] * 4 + ["q"] * 4)
    assert single.tests == {}
    assert single.note.startswith("'it' was not tested: ")
    assert single.note.endswith(".")
    assert not single.note.endswith("..")


def test_groups_of_one_sample_are_named_and_have_no_spread():
    found = only(line(9), [*"aaaabbbb", "c"])
    assert "dispersion" not in found.tests
    assert found.note == "1 of 3 groups has a single sample."


@pytest.mark.parametrize("n", [4, 5, 6])
def test_few_samples(n):
    """No neighborhood is larger than the cohort."""
    for values in (list("abab"[: n - 1]) + ["b"] * (n - 3) if n > 4 else list("abab"), list(range(n))):
        assert isinstance(only(line(n), values[:n]), Finding)


def test_values_of_any_kind():
    days = [datetime.date(2020, 1, 1 + i % 2) for i in range(8)]
    assert only(line(8), days).groups == {"2020-01-01": 4, "2020-01-02": 4}
    assert only(line(8), [b"x", b"y"] * 4).groups.keys() == {"b'x'", "b'y'"}
    categories = pd.Series(["u", "v"] * 4, dtype="category")
    assert only(line(8), categories).groups == {"u": 4, "v": 4}
    mixed = only(line(8), [1, "1"] * 4)
    assert mixed.note.startswith("'it' was not tested") or mixed.groups == {"1": 8}


def test_equal_distances():
    """Nothing explains nothing; no NaN and no warning."""
    for distances in (np.zeros((8, 8)), 1 - np.eye(8)):
        for values in (["a", "b"] * 4, list(range(8))):
            found = only(distances, values)
            assert not found.sure
            assert all(np.isfinite([test.statistic, test.p_value]).all() for test in found.tests.values())
            assert "nan" not in found.describe()


def test_what_is_not_a_table_of_samples():
    with pytest.raises(InvalidInputError, match="a value of 'it' for each of the 8 samples, found 7"):
        only(line(8), ["a"] * 7)
    with pytest.raises(InvalidInputError, match="n_permutations"):
        only(line(8), ["a", "b"] * 4, n_permutations=0)
    with pytest.raises(InvalidInputError, match="blocks"):
        only(line(8), ["a", "b"] * 4, blocks=[1, None] * 4)
    with pytest.raises(InvalidInputError, match="distances"):
        examine(np.ones((2, 3)), {})
    assert examine(line(8), {}) == ()


class Noting:
    def __init__(self):
        self.told = []

    def stage(self, name, total):
        self.told.append((name, total))

    def advance(self, steps=1):
        self.told.append(steps)


def test_progress():
    watch = Noting()
    examine(line(8), {"a": ["x", "y"] * 4, "b": ["x"] * 8}, progress=watch, **SETTINGS)
    assert watch.told == [("test variables", 2), 1, 1]


def test_words_agree_with_the_figures():
    sure = only(line(40, shift=4), ["a", "b"] * 20, n_permutations=999)
    assert sure.sure
    assert f"(PERMANOVA R2 = {100 * sure.answer.effect:.2g}%, p = 0.001)" in str(sure)
    assert str(sure).startswith("Samples differ by it (")
    none = only(line(40, seed=2), list("aabb" * 10), n_permutations=999)
    assert not none.sure
    assert str(none).startswith("No evidence that it is associated with the distances (PERMANOVA R2 = ")
    many = {
        "it": ["a", "b"] * 20,
        **{f"noise {i}": np.random.default_rng(i).permutation(["u", "v"] * 20) for i in range(30)},
    }
    for found in examine(line(40, shift=0.5, seed=4), many, n_permutations=199):
        weak = not found.sure and found.answer.p_value <= 0.05
        assert found.describe().startswith("Samples may differ by ") == weak


def dispersed(n=30):
    """Distances of samples whose first half varies a little more, and a table with many unrelated variables."""
    rng = np.random.default_rng(5)
    places = rng.normal(size=(n, 2)) * np.repeat([2.0, 1.0], n // 2)[:, None]
    table = {f"noise {i}": rng.permutation(["u", "v"] * (n // 2)) for i in range(15)}
    return np.linalg.norm(places[:, None] - places, axis=2), {"it": np.repeat(["a", "b"], n // 2), **table}


def test_every_test_is_judged_over_the_whole_list():
    distances, table = dispersed()
    found = examine(distances, table, n_permutations=199)
    for name in ("permanova", "neighbor enrichment", "dispersion", "smoothness"):
        expected = false_discovery([finding.tests[name].p_value for finding in found])
        assert [finding.q_values[name] for finding in found] == expected.tolist()
    assert [finding.q_value for finding in found] == [finding.q_values["permanova"] for finding in found]
    assert json.loads(json.dumps(found[0].plain()))["tests"]["dispersion"]["q_value"] == found[0].q_values["dispersion"]
    # Each of many variables at 5% would call some of them different in dispersion.
    assert any(f.tests["dispersion"].p_value <= 0.05 < f.q_values["dispersion"] for f in found)
    for finding in found:
        assert ("Groups differ in dispersion" in str(finding)) == (finding.q_values["dispersion"] <= 0.05)


def test_a_q_value_is_stated_where_it_differs():
    distances, table = dispersed()
    (alone,) = examine(distances, {"it": table["it"]}, n_permutations=199)
    assert alone.dispersion().endswith(f"times the smallest, p = {alone.tests['dispersion'].p_value:.2g}).")
    two = {"it": table["it"], "noise": table["noise 0"]}
    found, _ = examine(distances, two, n_permutations=199)
    p, q = found.tests["dispersion"].p_value, found.q_values["dispersion"]
    assert p < q <= 0.05
    assert found.dispersion().endswith(f"p = {p:.2g}, q = {q:.2g}).")


def test_groups_are_tested_by_the_statistic_that_is_asked_for():
    distances, groups = line(20, shift=1), list("aaaab" * 4)
    for name in ("welch", "pseudo-F"):
        found = only(distances, groups, statistic=name)
        same(found.answer, permanova(distances, groups, statistic=name, **SETTINGS))
        assert found.explained == found.answer.effect
    same(only(distances, groups).answer, permanova(distances, groups, statistic="welch", **SETTINGS))
    with pytest.raises(InvalidInputError, match="statistic to be one of 'welch', 'pseudo-F', found 'f'"):
        only(distances, groups, statistic="f")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.sampled_from(["a", "b", "c", "ü", ""]), st.integers(-3, 3), st.floats()),
        min_size=7,
        max_size=7,
    )
)
def test_any_list_of_values_gives_a_finding(values):
    found = only(line(7), values, n_permutations=9)
    assert found.n_samples + found.n_missing == 7
    assert found.describe()
    assert sum(found.groups.values()) in (0, found.n_samples)
    if found.answer is not None:
        assert 0 < found.answer.p_value <= found.q_value <= 1


def test_groups_are_described_by_the_distances_that_are_shown():
    rng = np.random.default_rng(2)
    groups = np.repeat(["a", "b"], 8)
    tested, shown = (
        np.abs(np.subtract.outer(x, x)) for x in (rng.normal(size=16), rng.normal(size=16) + np.repeat([0, 5], 8))
    )
    (found,) = examine(tested, {"group": groups}, shown=shown)
    (alone,) = examine(tested, {"group": groups})
    assert found.explained == explained_variation(shown, groups) > alone.explained == alone.answer.effect
    assert found.answer.effect == alone.answer.effect
    assert found.answer.p_value == alone.answer.p_value
    assert f"R2 = {100 * found.explained:.2g}%" in str(found)
    assert found.plain()["explained"] == found.explained
    assert found.separation.agreement > alone.separation.agreement


def test_distances_that_are_all_zero_support_nothing():
    positions = np.random.default_rng(0).normal(size=12) + np.repeat([0, 4], 6)
    apart = np.abs(np.subtract.outer(positions, positions))
    (found,) = examine(apart, {"group": np.repeat(["a", "b"], 6)}, shown=np.zeros((12, 12)))
    assert found.explained == 0
    assert "All displayed distances between these samples are zero" in str(found)


def test_a_hundred_per_cent_is_a_number():
    positions = np.repeat([0.0, 1.0], 6) + 1e-6 * np.arange(12)
    (found,) = examine(np.abs(np.subtract.outer(positions, positions)), {"group": np.repeat(["a", "b"], 6)})
    assert "R2 = 100%" in str(found)


@pytest.mark.parametrize("values", [[1, 2], ["1", " 2 "], [1.0, "2e0"], [np.int8(1), np.float32(2)]])
def test_numbers_in_any_spelling(values):
    assert [float(value) for value in as_numbers("dose", values)] == [1, 2]
    assert kind_of(as_numbers("dose", values), numeric=True) == "number"


@pytest.mark.parametrize("value", ["II", "", "nan", "1_000", "1,5", b"1", pd.Timestamp("2020-01-01"), "0x10"])
def test_what_is_no_number_is_refused(value):
    words = "Expected numbers in 'dose', a column named in the argument numeric, found "
    with pytest.raises(InvalidInputError, match=words):
        as_numbers("dose", [1, value])


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT])
def test_gaps_stay_gaps(gap):
    table = pd.DataFrame({"dose": pd.Series([1, gap, 3], dtype=object), "plate": pd.Series([1, gap, 3], dtype=object)})
    read = read_variables(table, ["dose"], ["plate"])
    assert read["dose"].isna().tolist() == read["plate"].isna().tolist() == [False, True, False]
    assert read["dose"].dtype == np.float64
    assert read["plate"].tolist()[::2] == ["1", "3"]
    assert table["plate"].tolist()[0] == 1  # what was given stays as it is


def test_categories_of_text_that_are_numbers():
    table = pd.DataFrame({"stage": pd.Categorical(["3", "1", "2"])})
    assert read_variables(table, ["stage"])["stage"].tolist() == [3, 1, 2]


def test_columns_that_nobody_names_are_the_same():
    table = pd.DataFrame({"stage": [1, 2]})
    assert read_variables(table) is table
