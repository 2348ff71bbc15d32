"""Covariates, pairs and the floor of p in `examine` and in studies: figures of the plain tests, errors, words."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
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
from heatmover.statistics.manifold import smoothness
from heatmover.study import InMemory, StudyParameters
from heatmover.study.examination import Pairs, design_of, examine, examine_design
from heatmover.study.scale import InPieces
from heatmover.study.study import study_cohort, study_comparison

IN_PIECES = partial(hm.study_cohort, comparer=InPieces())

SETTINGS = {"n_permutations": 49, "random_state": 3}


def apart(places):
    places = np.asarray(places, dtype=float)
    return abs(places[:, None] - places)


@pytest.fixture(scope="module")
def pairs():
    """Eight patients before and after, in two batches that some patients change."""
    rng = np.random.default_rng(0)
    patient, visit = np.repeat([f"p{i}" for i in range(8)], 2), np.tile(["before", "after"], 8)
    batch = np.where((np.arange(16) // 2 + (np.arange(16) % 6 == 1)) % 2, "x", "y")
    age = np.repeat(rng.uniform(20, 80, size=8), 2)
    places = 3 * rng.normal(size=8).repeat(2) + (visit == "after") + 2 * (batch == "x") + 0.3 * rng.normal(size=16)
    return apart(places), pd.DataFrame({"patient": patient, "visit": visit, "batch": batch, "age": age})


def test_adjusted_findings_are_those_of_the_tests(pairs):
    distances, table = pairs
    covariates = {"batch": table["batch"]}
    visit, age = examine(distances, table[["visit", "age"]], adjust=covariates, shown=distances**0.5, **SETTINGS)
    alone = permanova(distances, table["visit"], adjust=covariates, **SETTINGS)
    assert (visit.answer.p_value, visit.answer.statistic) == (alone.p_value, alone.statistic)
    assert visit.explained == explained_variation(distances**0.5, table["visit"], adjust=covariates)
    number = distance_correlation(distances, table["age"], adjust=covariates, **SETTINGS)
    assert (age.answer.p_value, age.answer.statistic) == (number.p_value, number.statistic)
    assert list(visit.tests) == ["permanova", "neighbor enrichment", "dispersion", "smoothness"]
    assert list(age.tests) == ["distance correlation", "smoothness"]
    for test, found, more in (
        (neighbor_enrichment, visit, {"k": 5}), (dispersion, visit, {}), (smoothness, visit, {"k": 10}),
        (smoothness, age, {"k": 10}),
    ):  # fmt: skip
        values = table[found.variable]
        alone = test(distances, values, adjust=covariates, **more, **SETTINGS)
        assert (found.tests[alone.test].p_value, found.tests[alone.test].effect) == (alone.p_value, alone.effect)
    assert visit.adjusted == age.adjusted == ("batch",)
    assert ", adjusted for 'batch' (PERMANOVA partial R2 = " in str(visit)
    assert json.loads(json.dumps(visit.plain()))["adjusted"] == ["batch"]


def test_a_covariate_that_is_tested_is_adjusted_for_the_others(pairs):
    distances, table = pairs
    found = examine(distances, table[["visit", "batch"]], adjust=table[["visit", "batch"]], **SETTINGS)
    assert [finding.adjusted for finding in found] == [("batch",), ("visit",)]
    margins = permanova_design(distances, Design.from_columns(table[["visit", "batch"]]), **SETTINGS)
    assert [finding.answer.p_value for finding in found] == [term.p_value for term in margins.terms]


def test_a_variable_is_not_adjusted_for_its_own_interactions(pairs):
    distances, table = pairs
    columns = {name: table[name].tolist() for name in ("visit", "batch", "age")}
    design = design_of(columns, formula="visit * batch + age")
    visit, age = examine(distances, {"visit": columns["visit"], "age": columns["age"]}, adjust=design, **SETTINGS)
    assert visit.adjusted == ("batch", "age")
    assert age.adjusted == ("visit", "batch", "visit:batch")


def test_covariates_are_read_as_variables_are():
    columns = {"plate": [1, 1, 2, 2, 3, 3], "dose": [0, 1, 0, 1, 2, 2]}
    assert [term.columns.shape[1] for term in design_of(columns).terms] == [3, 3]
    assert [term.columns.shape[1] for term in design_of(columns, numeric=["dose"]).terms] == [3, 1]
    distances = apart(np.random.default_rng(1).normal(size=6))
    values = {"it": list("ababab")}
    (found,) = examine(distances, values, adjust={"dose": columns["dose"]}, numeric=["dose"], **SETTINGS)
    assert found.answer.statistic == permanova(distances, values["it"], adjust={"dose": columns["dose"]}).statistic


def test_samples_without_a_value_are_left_out_of_the_covariates_too(pairs):
    distances, table = pairs
    values = [None, *table["visit"][1:]]
    (found,) = examine(distances, {"visit": values}, adjust={"age": table["age"]}, **SETTINGS)
    alone = permanova(distances[1:, 1:], values[1:], adjust={"age": table["age"][1:]}, **SETTINGS)
    assert found.answer.p_value == alone.p_value


def test_what_covariates_explain_fully_is_not_tested(pairs):
    distances, table = pairs
    copy = table["batch"].str.upper()
    found, visit = examine(distances, {"copy": copy, "visit": table["visit"]}, adjust=table[["batch"]], **SETTINGS)
    assert found.answer is None
    assert "'copy' was not tested: Expected groups not to be determined by 'batch'" in found.note
    assert visit.q_value == visit.answer.p_value
    with pytest.raises(InvalidInputError, match="a value of 'batch' for every sample"):
        examine(distances, table[["visit"]], adjust={"batch": [None, *table["batch"][1:]]})
    with pytest.raises(InvalidInputError, match="'batch' for each of the 16 samples"):
        examine(distances, table[["visit"]], adjust={"batch": table["batch"][1:]})


def test_pairs_tell_what_is_explained_within_them(pairs):
    distances, table = pairs
    (found,) = examine(distances, table[["visit"]], blocks={"patient": table["patient"]}, **SETTINGS)
    pair = found.pairs
    assert (pair.block, pair.n_blocks, pair.matched, pair.noun) == ("patient", 8, True, "pair")
    # Within pairs by hand: half of each squared difference is what varies, and the mean difference explains its part.
    squared = distances**2
    before, after = (np.flatnonzero(table["visit"] == name) for name in ("before", "after"))
    varies = squared[before, after].sum() / 2
    between = squared[np.ix_(before, after)].sum() - (squared[np.ix_(before, before)].sum() / 2
                                                      + squared[np.ix_(after, after)].sum() / 2)  # fmt: skip
    assert pair.explained == pytest.approx(between / 16 / varies)
    nearest = (distances + 99 * np.eye(16)).argmin(axis=1)
    assert pair.same_group == np.mean(table["visit"].to_numpy()[nearest] == table["visit"])
    assert pair.same_block == np.mean(table["patient"].to_numpy()[nearest] == table["patient"])
    assert pair.chance_block == pytest.approx(1 / 15)
    assert "Within the 8 pairs of 'patient', the groups explain" in str(found)
    assert found.evidence == "8 pairs"
    assert found.plain()["pairs"]["n_blocks"] == 8


def test_shares_in_words_stay_between_nothing_and_all():
    words = [str(Pairs("", 5, True, share, 0.5, 0.1, 0.4, 0.1, 10)) for share in (-0.1, 1.02)]
    assert ["explain 0% of" in words[0], "explain 100% of" in words[1]] == [True, True]


@pytest.mark.parametrize(
    ("values", "blocks", "expected"),
    [
        ("abababab", "11223344", True),
        ("abaabaabab", "1112223344", False),
        ("abcabc", "111222", False),
        ("abababaa", "11223344", None),
        ("aabbaabb", "11223344", None),
        ("abab", "1111", None),
    ],
    ids=["pairs", "more than one", "three groups", "half a pair", "whole", "one block"],
)
def test_which_blocks_are_pairs(values, blocks, expected):
    distances = apart(np.random.default_rng(2).normal(size=len(values)))
    (found,) = examine(distances, {"it": list(values)}, blocks=list(blocks), **SETTINGS)
    assert (None if found.pairs is None else found.pairs.matched) == expected


def test_blocks_of_one_group_are_told():
    distances = apart(np.random.default_rng(3).normal(size=8))
    (found,) = examine(distances, {"it": list("ababaabb")}, blocks=list("11223344"), **SETTINGS)
    assert "2 of 4 blocks have only one group and do not contribute to the test." in found.note


def test_so_few_cannot_decide():
    places = np.random.default_rng(4).normal(size=5).repeat(2) * 0.1 + np.tile([0.0, 9.0], 5)
    (found,) = examine(apart(places), {"visit": list("ab" * 5)}, blocks=np.repeat(range(5), 2))
    assert found.undecided
    limit = "With 5 pairs the smallest possible p-value is 0.0625, so the test cannot reach 0.05"
    assert str(found).startswith(f"{limit} (visit: PERMANOVA R2 = 100%, ")
    assert found.plain()["undecided"] is True
    assert found.plain()["tests"]["permanova"]["smallest_p"] == 0.0625
    (three,) = examine(apart(places[:6]), {"visit": list("ababab")})
    assert three.undecided
    assert str(three).startswith("With 6 samples the smallest possible p-value is 0.1, so")
    units = {"group": list("aabbaabb")}
    (whole,) = examine(apart([0, 0, 9, 9, 0, 0, 9, 9.0]), units, blocks=list("11223344"))
    assert (whole.evidence, whole.undecided) == ("4 blocks", True)
    (no,) = examine(apart(np.random.default_rng(5).normal(size=6)), {"visit": list("ababab")})
    assert no.undecided  # whatever its p-value is
    assert str(no).startswith("With 6 samples the smallest possible p-value is 0.1, so")
    (drawn,) = examine(apart(np.arange(20.0)), {"visit": list("ab" * 10)}, n_permutations=9)
    assert str(drawn).startswith("With 9 permutations the smallest possible p-value is 0.1, so")


def test_several_blocks_by_name():
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"patient": np.repeat(range(8), 2), "batch": np.repeat(list("xy"), 8)})
    group = np.repeat(list("aabbabab"), 2)
    (found,) = examine(apart(rng.normal(size=16)), {"group": group}, blocks=table, **SETTINGS)
    assert found.blocks == "whole within"
    assert found.evidence == "8 blocks"


def test_the_table_of_terms_has_the_shares_of_the_distances_shown(pairs):
    distances, table = pairs
    design = Design.from_columns(table[["batch", "visit"]])
    found = examine_design(distances, design, by="terms", shown=distances**0.5, **SETTINGS)
    tested, shown = (permanova_design(d, design, by="terms", **SETTINGS) for d in (distances, distances**0.5))
    assert [term.p_value for term in found.terms] == [term.p_value for term in tested.terms]
    assert [term.r_squared for term in found.terms] == [term.r_squared for term in shown.terms]
    assert found.residual_sum_of_squares == shown.residual_sum_of_squares


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    rng = np.random.default_rng(7)
    samples = pd.DataFrame({
        "sample": [f"s{i:02d}" for i in range(16)],
        "patient": np.repeat([f"p{i}" for i in range(8)], 2),
        "visit": np.tile(["before", "after"], 8),
        "batch": list("xyxyyxxxyyyxxyyx"),
        "age": np.repeat(rng.uniform(20, 80, size=8).round(1), 2),
        "kit": ["k" + letter for letter in "xyxyyxxxyyyxxyyx"],
        "site": [None, *"ababababababaab"],
        "plate": list("abababababababac"),
    })  # fmt: skip
    frame = samples.loc[np.repeat(np.arange(16), 15)].reset_index(drop=True)
    frame["u"] = rng.normal(size=len(frame)) + 2.0 * (frame["visit"] == "after")
    frame["v"] = rng.normal(size=len(frame)) + 1.0 * (frame["batch"] == "x")
    frame["kind"] = rng.choice(["T", "B"], len(frame))
    path = tmp_path_factory.mktemp("designs") / "cells.csv"
    frame.to_csv(path, index=False)
    return read_cohort(path, sample_key="sample", representation=["u", "v"])


@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_a_study_adjusts(cohort, study):
    found = study(cohort, variables=["visit"], adjust=["batch"], landmarks=100, n_permutations=99)
    (finding,) = found.findings
    tested = found.comparison.test_distances
    table = cohort.samples
    alone = permanova(tested, table["visit"], adjust=table[["batch"]], n_permutations=99)
    assert (finding.answer.p_value, finding.answer.statistic) == (alone.p_value, alone.statistic)
    assert f", adjusted for 'batch' (PERMANOVA partial R2 = {100 * finding.explained:.2g}%" in found.headline()
    assert found.design.names == ("batch", "visit")
    assert found.design["visit"].p_value == alone.p_value
    assert found.design["visit"].partial_r_squared == pytest.approx(finding.explained)
    record = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert record["parameters"]["adjust"] == ["batch"]
    assert [term["term"] for term in record["design"]["terms"]] == ["batch", "visit"]


@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_a_study_by_a_formula(cohort, study):
    found = study(cohort, formula="visit * batch + age", landmarks=100, n_permutations=49)
    assert [finding.variable for finding in found.findings] == ["visit", "batch", "age"]
    assert found.design.names == ("age", "visit:batch")
    assert found.plain()["parameters"]["formula"] == "visit * batch + age"
    design = Design.from_formula("visit * batch + age", cohort.samples)
    alone = permanova_design(found.comparison.test_distances, design, n_permutations=49)
    assert [term.p_value for term in found.design.terms] == [term.p_value for term in alone.terms]


def test_a_study_of_patients_within_batches(cohort):
    found = study_cohort(cohort, variables=["visit"], block=["patient", "batch"], cells="kind", n_permutations=49)
    assert found.block == "patient and batch"
    assert found.findings[0].blocks == "within"
    assert found.plain()["parameters"]["block"] == ["patient", "batch"]
    one = study_cohort(cohort, variables=["visit"], block=["patient"], n_permutations=49)
    assert one.plain()["parameters"]["block"] == "patient"
    assert one.findings[0].pairs.block == "patient"
    assert "% within pairs, p = " in one.headline()


def test_variables_nobody_asked_for_leave_out_covariates(cohort):
    found = study_cohort(cohort, adjust=["batch"], block="patient", n_permutations=19)
    names = [finding.variable for finding in found.findings]
    assert "batch" not in names
    assert "patient" not in names
    untested = {finding.variable: finding.note for finding in found.findings if finding.answer is None}
    assert "determined by 'batch'" in untested["kit"]


def test_a_variable_with_gaps_and_covariates(cohort):
    found = study_cohort(cohort, variables=["site"], adjust=["age"], n_permutations=19)
    assert found.findings[0].n_missing == 1
    assert found.design.total_degrees_of_freedom == 14


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"variables": ["kit"], "adjust": ["batch"]},
         "'kit' not to be determined by 'batch', found that it is; no adjustment can"),
        ({"formula": "visit + kit + batch"}, "'kit' not to be determined by 'visit', 'batch'"),
        ({"variables": ["visit"], "adjust": ["site"]},
         r"a value of 'site' for every sample, to hold it fixed, found none for 1 of 16 samples \('s00'\)"),
        ({"variables": ["visit"], "adjust": ["plate"]}, "every group of 'plate' in a design, found only one sample"),
        ({"variables": ["batch"], "adjust": ["visit"], "block": "patient"},
         "two groups or values of 'batch' in every block, found only one group or value in 2 of 8 blocks"),
        ({"variables": ["visit"], "adjust": ["btach"]}, r"found 'btach' \(did you mean 'batch'\?\)"),
        ({"formula": "visit + btach"}, r"found 'btach' \(did you mean 'batch'\?\)"),
        ({"formula": "visit + exit()"}, r"a formula of variable names .* found '\(\)' in 'visit \+ exit\(\)'"),
        ({"formula": 3}, "formula to be a name, found 3"),
        ({"formula": "visit", "variables": ["visit"]}, "formula alone, .* found the argument variables as well"),
        ({"formula": "visit", "adjust": ["batch"]}, "argument formula alone, .* found the argument adjust as well"),
        ({"adjust": "batch"}, r"adjust to be a list of names, found 'batch'; write \['batch'\]"),
        ({"block": ["patient", "nobody"]}, "column of sample metadata, found 'nobody'"),
        ({"block": ["patient", 3]}, "block to be a name, found 3"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("study", [hm.study_cohort, IN_PIECES], ids=["memory", "pieces"])
def test_bad_designs_are_refused_before_anything_is_compared(cohort, asked, sentence, study, monkeypatch):
    for comparer in (InMemory, InPieces):
        monkeypatch.setattr(comparer, "compare", lambda *_: pytest.fail("compared"))
    with pytest.raises(InvalidInputError, match=sentence):
        study(cohort, **asked)


def test_parameters_know_what_they_name():
    asked = StudyParameters(variables=["a"], block=["p", "q", "p"], adjust=["b"], numeric=["b"])
    assert (asked.blocks, asked.design, asked.required) == (("p", "q"), ("b",), ("a", "p", "q", "b"))
    assert StudyParameters(block=[]).block is None
    assert StudyParameters(formula="a*b").design == ("a", "b")


def test_a_comparison_made_before_is_adjusted(cohort):
    comparison = hm.compare(cohort.points(), cohort.labels())
    table = cohort.samples[["visit", "batch", "age"]]
    found = study_comparison(comparison, table, adjust=["batch"], n_permutations=19)
    assert [(finding.variable, finding.adjusted) for finding in found.findings] == [
        ("visit", ("batch",)),
        ("age", ("batch",)),
    ]
    assert found.record.parameters["adjust"] == ["batch"]
    formula = study_comparison(comparison, table, formula="visit + batch", n_permutations=19)
    assert formula.design.names == ("visit", "batch")
    blocks = {"patient": cohort.samples["patient"], "batch": cohort.samples["batch"]}
    several = study_comparison(comparison, table[["visit"]], blocks=blocks, n_permutations=19)
    assert several.record.parameters["block"] == ["patient", "batch"]
    words = r"sample metadata in the argument adjust, found 'bach' \(did you mean 'batch'"
    with pytest.raises(InvalidInputError, match=words):
        study_comparison(comparison, table, adjust=["bach"])
