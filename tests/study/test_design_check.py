"""Designs with known answers: what groups dependent samples, and what cannot be separated."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from heatmover.errors import InvalidInputError
from heatmover.study import check_design
from heatmover.study.design_check import cramers_v, design_notes

PAIRS = [f"p{i // 2}" for i in range(16)]
TWICE = ["before", "after"] * 8

# The table, and the kinds of remarks with the variables that each is about.
DESIGNS = {
    "nothing to say": ({"condition": list("xy") * 8, "sex": list("ffmm") * 4}, []),
    "paired": ({"donor": PAIRS, "stimulated": TWICE}, [("paired", "donor", "stimulated")]),
    "paired by a name that says nothing": ({"q7": PAIRS, "day": TWICE}, [("paired", "q7", "day")]),
    "three visits": (
        {"subject": [f"s{i // 3}" for i in range(18)], "visit": ["a", "b", "c"] * 6},
        [("paired", "subject", "visit")],
    ),
    "repeated samples": ({"patient": PAIRS, "sex": list("ffmm") * 4}, [("pseudo-replicated", "patient", "sex")]),
    "repeated samples of all": ({"patient": list("aaabbbccc"), "sex": list("fmmffmfmf")}, [("block", "patient")]),
    "both": (
        {"donor": PAIRS, "stimulated": TWICE, "sex": list("ffmm") * 4, "age": [20.5 + i // 2 for i in range(16)]},
        [("pseudo-replicated", "donor", "sex", "age"), ("paired", "donor", "stimulated")],
    ),
    "one sample per patient": ({"patient": [f"p{i}" for i in range(16)], "sex": list("fm") * 8}, []),
    "one patient per group": (
        {"mouse": ["m1"] * 5 + ["m2"] * 5, "treatment": list("x" * 5 + "y" * 5)},
        [("confounded", "mouse", "treatment")],
    ),
    "aliased": (
        {"treatment": ["drug", "none"] * 8, "condition": ["case", "control"] * 8},
        [("alias", "treatment", "condition")],
    ),
    "three of the same": ({"a": list("xy") * 8, "b": list("pq") * 8, "c": list("rs") * 8}, [("alias", "a", "b", "c")]),
    "numbers of the same": (
        {"age": [20.0 + i for i in range(8)], "born": [2000.0 - i for i in range(8)]},
        [("alias", "age", "born")],
    ),
    "aliased where both are known": (
        {"treatment": [None, *list("xy") * 8], "condition": ["p", *list("pq") * 7, "p", None]},
        [("alias", "treatment", "condition")],
    ),
    "confounded": (
        {"batch": ["b1"] * 8 + ["b2"] * 8, "condition": ["x"] * 8 + ["y"] * 8},
        [("confounded", "batch", "condition")],
    ),
    "batches within conditions": (
        {"batch": [f"b{i // 4}" for i in range(16)], "condition": ["x"] * 8 + ["y"] * 8},
        [("confounded", "batch", "condition")],
    ),
    "conditions within batches": (
        {"condition": [f"c{i // 4}" for i in range(16)], "plate": ["1"] * 8 + ["2"] * 8},
        [("confounded", "condition", "plate")],
    ),
    "nested": (
        {"subtype": [f"s{i // 4}" for i in range(16)], "disease": ["x"] * 8 + ["y"] * 8},
        [("nested", "subtype", "disease")],
    ),
    "partly confounded": (
        {"batch": ["1"] * 10 + ["2"] * 2 + ["1"] * 2 + ["2"] * 10, "condition": ["x"] * 12 + ["y"] * 12},
        [("partly confounded", "condition", "batch")],
    ),
    "balanced batches": ({"batch": [*"1212"] * 4, "condition": [*"xxyy"] * 4}, []),
    "age differs": (
        {"age": [60.5 + i for i in range(10)] + [40.5 + i for i in range(10)], "condition": ["x"] * 10 + ["y"] * 10},
        [("partly confounded", "condition", "age")],
    ),
    "numbers are associated": (
        {"bmi": [20.5 + i for i in range(12)], "weight": [(60.5 + i) ** 2 + 90 * (i % 2) for i in range(12)]},
        [("partly confounded", "bmi", "weight")],
    ),
    "constant": ({"center": ["here"] * 8, "empty": [None] * 8, "sex": list("fm") * 4}, [("constant", "center")]),
    "numbers that are names": (
        {"donor": [i // 2 for i in range(16)], "stimulated": TWICE},
        [("paired", "donor", "stimulated"), ("reading", "donor")],
    ),
    "text that is names": ({"donor": [f"00{i // 2}" for i in range(16)], "s": TWICE}, [("paired", "donor", "s")]),
    "few numbers": ({"stage": [1, 2, 3, 4] * 3}, [("reading", "stage")]),
    "six numbers": ({"dose": [0, 1, 2, 4, 8, 16] * 2}, [("reading", "dose")]),
    "two numbers": ({"response": [0, 1] * 6}, []),
    "numbers as text": ({"dose": [str(i) for i in range(8)] * 2}, [("block", "dose"), ("reading", "dose")]),
    "a patient without a name": ({"patient": [None, *PAIRS[1:]], "sex": list("ffmm") * 4}, []),
}


@pytest.mark.parametrize("case", DESIGNS)
@pytest.mark.parametrize("form", [dict, pd.DataFrame])
def test_designs_with_known_answers(case, form):
    table, expected = DESIGNS[case]
    assert [(remark.kind, *remark.variables) for remark in check_design(form(table))] == expected


@pytest.mark.parametrize("case", DESIGNS)
def test_the_order_of_samples_does_not_matter(case):
    table = DESIGNS[case][0]
    order = np.random.default_rng(0).permutation(len(next(iter(table.values()))))
    moved = {name: [values[i] for i in order] for name, values in table.items()}
    assert [str(r.sentence) for r in check_design(moved)] == [str(r.sentence) for r in check_design(table)]


def test_what_is_given_is_not_said_again():
    table = DESIGNS["both"][0]
    assert check_design(table, block="donor") == ()
    assert check_design(table, block=["donor", "batch"]) == ()
    stage = DESIGNS["few numbers"][0]
    assert check_design(stage, numeric=["stage"]) == check_design(stage, categorical=["stage"]) == ()
    numbers = DESIGNS["numbers that are names"][0]
    assert [r.kind for r in check_design(numbers, categorical=["donor"])] == ["paired"]


def test_sentences():
    said = {case: [str(remark.sentence) for remark in check_design(table)] for case, (table, _) in DESIGNS.items()}
    assert said["repeated samples"] == [
        "'sex' is the same in all samples of each 'patient', so only 8 of 16 samples are independent. Without "
        "block='patient', a test treats all samples as independent, and its p-value is too small."
    ]
    assert said["repeated samples of all"] == [
        "'patient' has 3 values in 9 samples, 3 samples per value. If samples with the same value depend on each "
        "other, use block='patient'."
    ]
    assert said["aliased"] == [
        "'treatment' and 'condition' divide the samples in the same way, so their tests are one test, not 2."
    ]
    assert said["confounded"][0].endswith("a difference may be due to either, and no adjustment can separate them.")
    assert said["batches within conditions"] == [
        "Each 'batch' contains only one group of 'condition', so no adjustment can separate 'batch' from 'condition'."
    ]
    assert said["partly confounded"] == [
        "'condition' and 'batch' are associated (Cramér's V 0.65): 10 of 12 samples of 'x' and 2 of 12 samples "
        "of 'y' are in '1'. adjust=['batch'] adjusts the test of 'condition' for 'batch'."
    ]
    assert "(mean 65 in 'x' and 45 in 'y')" in said["age differs"][0]
    assert "numeric=['stage']" in said["few numbers"][0]
    assert "categorical=['dose']" in said["six numbers"][0]


def test_cramers_v_of_known_tables():
    assert cramers_v(np.array([[8, 0], [0, 8]]))[0] == pytest.approx(1)
    assert cramers_v(np.array([[4, 4], [4, 4]])) == (0, 1)
    counts = np.array([[9, 2, 1], [1, 8, 4]])
    expected = stats.chi2_contingency(counts, correction=False)
    strength, p_value = cramers_v(counts)
    assert p_value == pytest.approx(expected.pvalue)
    total, (r, c) = counts.sum(), counts.shape
    phi = expected.statistic / total - (r - 1) * (c - 1) / (total - 1)
    least = min(n - (n - 1) ** 2 / (total - 1) for n in (r, c)) - 1
    assert strength == pytest.approx(np.sqrt(phi / least))


def test_independent_variables_are_seldom_called_confounded():
    rng = np.random.default_rng(1)
    called = 0
    for _ in range(100):
        table = {"batch": rng.integers(0, 3, 20).astype(str), "condition": rng.choice(["x", "y"], 20),
                 "age": rng.normal(size=20)}  # fmt: skip
        called += any(remark.kind == "partly confounded" for remark in check_design(table))
    # Three pairs at 1%: 3 of 100 expected, and 9 or more in one of 300 runs.
    assert called <= 8


def test_patients_count_once_where_variables_are_theirs():
    # Seven patients with ten samples each: sex and site are associated in the samples by the number of these only.
    patient = np.repeat([f"p{i}" for i in range(7)], 10)
    sex, site = np.repeat(list("ffffmmm"), 10), np.repeat(list("aaabbbb"), 10)
    kinds = [remark.kind for remark in check_design({"patient": patient, "sex": sex, "hospital": site})]
    assert kinds == ["pseudo-replicated"]
    assert [remark.kind for remark in check_design({"sex": sex, "hospital": site})] == ["partly confounded"]


def test_notes_of_a_study():
    table = DESIGNS["both"][0] | {"treatment": ["drug", "none"] * 8, "batch": ["b1", "b2"] * 8}
    assert list(design_notes(table, ["sex"], blocks=table["donor"])) == []
    (note,) = design_notes(table, ["sex"])
    assert note.startswith("'sex' is the same in all samples of each 'donor'")
    note, paired = design_notes(table, ["stimulated"])
    assert note.startswith("'stimulated', 'treatment' and 'batch' divide the samples in the same way")
    assert paired.startswith("Each 'donor' has one sample of every group of 'stimulated': the samples are paired, and")
    del table["batch"]
    assert list(design_notes(table, ["stimulated"], blocks=table["donor"])) == []
    (note,) = design_notes(table, ["stimulated", "treatment"], blocks={"any": [d + "!" for d in PAIRS]})
    assert note.endswith("so their tests are one test, not 2.")
    partly = DESIGNS["partly confounded"][0]
    assert len(list(design_notes(partly, ["condition"]))) == 1
    assert list(design_notes(partly, ["condition"], adjust=["batch"])) == []


def test_text_is_read_as_numbers_if_that_is_said():
    table = {"dose": [str(i) for i in range(12)], "level": [2.5 * i + i % 2 for i in range(12)]}
    assert [remark.kind for remark in check_design(table)] == ["reading"]
    assert [remark.kind for remark in check_design(table, numeric=["dose"])] == ["partly confounded"]
    words = "Expected numbers in 'dose', a column named in the argument numeric, found 'x'"
    with pytest.raises(InvalidInputError, match=words):
        check_design({"dose": ["1", "x"]}, numeric=["dose"])


def test_bad_input():
    with pytest.raises(InvalidInputError, match="variables with one value per sample, found different numbers"):
        check_design({"a": [1, 2], "b": [1]})
    words = "in only one of the arguments numeric and categorical, found 'a' in both"
    with pytest.raises(InvalidInputError, match=words):
        check_design({"a": [1, 2]}, numeric=["a"], categorical=["a"])
    assert check_design({}) == ()


@pytest.mark.parametrize("values", list(product([None, "x", "y"], repeat=4)))
def test_small_tables_of_anything_are_no_error(values):
    check_design({"patient": list(values), "batch": list(values)[::-1], "age": [1.5, None, 2.5, 1.5]})
