"""Contrasts of cell types: those of `explain_groups`, exact through landmarks, and in a study or noted why not."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.attribution import explain_groups
from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError
from heatmover.study.cell_types import annotate
from heatmover.study.contrasts import CellType, contrast_cells
from heatmover.study.study import study_cohort, study_comparison

QUICK = {"n_permutations": 99}


@pytest.fixture(scope="module")
def data():
    return hm.datasets.cohort(20, cells_per_sample=60, effect=3.0)


@pytest.fixture(scope="module")
def branch(data):
    return np.array([f"branch {int(value)}" for value in data.coordinates[:, 0]], dtype=object)


@pytest.fixture(scope="module")
def comparison(data):
    return hm.compare(data.points, data.labels, n_neighbors=15)


@pytest.fixture(scope="module")
def frame(data, branch):
    conditions = dict(zip(data.measures().names, data.annotations["condition"], strict=True))
    frame = pd.DataFrame(data.points, columns=[f"x{i}" for i in range(data.points.shape[1])])
    return frame.assign(sample=data.labels, condition=[conditions[name] for name in data.labels], branch=branch)


@pytest.fixture(scope="module")
def cohort(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "cells.parquet"
    frame.to_parquet(path, index=False)
    return read_cohort(path, sample_key="sample")


def by_name(contrast):
    return {kind.name: kind for kind in contrast.types}


def test_without_landmarks_it_is_the_explanation_of_the_groups(comparison, data, branch):
    groups = data.annotations["condition"]
    found = contrast_cells(comparison, annotate("branch", branch, 1200), groups, n_permutations=499)
    plain = explain_groups(comparison.model, comparison.measures, groups, annotation=branch, n_permutations=499)
    parts = plain.explanation.by(branch).table()
    assert (found.group, found.reference, found.n_samples) == ("case", "control", (10, 10))
    assert found.distance == pytest.approx(plain.distance)
    for i, name in enumerate(plain.types.names):
        kind = by_name(found)[name]
        assert kind.score == pytest.approx(plain.types.scores[i])
        assert kind.log_ratio == pytest.approx(plain.types.log_ratios[i])
        for column in ("abundance_p", "abundance_q"):
            assert getattr(kind, column) == getattr(plain.types, column)[i]
        for column in ("abundance", "state"):
            assert getattr(kind, column) == pytest.approx(getattr(plain.types, column)[i], abs=1e-12)
            assert getattr(kind, column) == pytest.approx(parts.loc[name, column], abs=1e-12)
        assert kind.contribution == pytest.approx(parts.loc[name, "contribution"])
        assert kind.cells == (branch == name).sum()
    assert [kind.name for kind in found.types] == list(parts.index)
    assert by_name(found)["branch 4"].direction == "more"
    assert found.different[0].name == "branch 4"
    assert str(found).startswith("Abundance accounts for ")


def test_through_landmarks_every_cell_counts_for_its_own_kind(cohort, frame):
    exact = study_cohort(cohort, variables=["condition"], cells="branch", landmarks=None, **QUICK).contrast
    found = study_cohort(cohort, variables=["condition"], cells="branch", landmarks=60, **QUICK).contrast
    shares = pd.crosstab(frame["sample"], frame["branch"], normalize="index")
    means = shares.groupby(shares.index.str.split("-").str[0]).mean()
    for kind in found.types:
        assert kind.in_group == pytest.approx(means.loc["case", kind.name])
        assert kind.in_reference == pytest.approx(means.loc["control", kind.name])
    assert sum(kind.share for kind in found.types) == pytest.approx(1)
    assert sum(kind.contribution for kind in found.types) == pytest.approx(found.distance)
    for kind in found.types:
        assert kind.share == pytest.approx(by_name(exact)[kind.name].share, abs=0.1)


def test_a_kind_that_no_landmark_is_mostly_of_keeps_its_name(frame, tmp_path):
    rare = frame.assign(branch=np.where(np.arange(1200) % 40 == 0, "rare", frame["branch"]))
    rare.to_parquet(tmp_path / "cells.parquet", index=False)
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample")
    found = study_cohort(cohort, variables=["condition"], cells="branch", landmarks=40, **QUICK).contrast
    assert by_name(found)["rare"].cells == 30
    assert by_name(found)["rare"].in_group == pytest.approx(
        (rare["branch"] == "rare").groupby(rare["sample"]).mean().filter(like="case").mean()
    )


def test_samples_of_a_block_in_one_group_are_averaged(comparison, data, branch):
    blocks = [f"{group}{i // 2}" for i, group in enumerate(data.annotations["condition"])]
    found = contrast_cells(
        comparison, annotate("branch", branch, 1200), data.annotations["condition"], blocks=blocks, **QUICK
    )
    plain = explain_groups(
        comparison.model, comparison.measures, data.annotations["condition"], blocks=blocks, annotation=branch, **QUICK
    )
    assert (found.n_samples, found.blocks) == ((5, 5), "whole")
    np.testing.assert_allclose(
        [by_name(found)[name].score for name in plain.types.names], plain.types.scores, rtol=1e-9, atol=1e-12
    )
    within = contrast_cells(
        comparison, annotate("branch", branch, 1200), data.annotations["condition"],
        blocks=[i % 2 for i in range(10)] * 2, **QUICK,
    )  # fmt: skip
    assert (within.n_samples, within.blocks) == ((10, 10), "within")


def test_of_more_groups_the_largest_is_compared_with_all_others(comparison, branch):
    groups = ["b"] * 9 + ["a"] * 5 + ["c"] * 5 + [None]
    found = contrast_cells(comparison, annotate("branch", branch, 1200), groups, **QUICK)
    assert (found.group, found.reference, found.n_samples) == ("b", "all others", (9, 10))
    named = contrast_cells(comparison, annotate("branch", branch, 1200), groups, group="c", reference="a", **QUICK)
    assert (named.group, named.reference, named.n_samples) == ("c", "a", (5, 5))


def test_the_reference_is_the_expected_one_or_the_one_named(comparison, branch):
    types = annotate("branch", branch, 1200)
    found = contrast_cells(comparison, types, ["drug", "vehicle"] * 10, **QUICK)
    assert (found.group, found.reference) == ("drug", "vehicle")
    order = pd.Series(pd.Categorical(["b", "a"] * 10, categories=["b", "a"], ordered=True))
    assert contrast_cells(comparison, types, order, **QUICK).reference == "b"
    variables = {"age": np.arange(20.0), "stage": ["a", "b"] * 10, "arm": ["x", "y", "z", "x", "y"] * 4}
    named = study_comparison(comparison, variables, cells=branch, reference="z", **QUICK).contrast
    assert (named.variable, named.reference) == ("arm", "z")
    with pytest.raises(InvalidInputError, match=r"argument reference to be a group of an examined variable, found 'w'"):
        study_comparison(comparison, variables, cells=branch, reference="w", **QUICK)


def test_nothing_is_called_where_nothing_differs(comparison, branch):
    found = contrast_cells(comparison, annotate("branch", branch, 1200), list("aabb") * 5, **QUICK)
    assert found.different == ()
    assert "No cell type in 'branch' differs significantly." in str(found)


def kind(**changes):
    """A type with 20% of the cells of the group and 10% of those of the reference, and no sure finding."""
    plain = {"name": "T", "cells": 5, "contribution": 0.1, "share": 0.4, "abundance": 0.1, "state": 0.0}
    plain |= {"in_group": 0.2, "in_reference": 0.1, "score": 2.0, "log_ratio": 1.0, "abundance_p": 0.01}
    return CellType(**plain | {"abundance_q": 1.0, "state_p": 1.0, "state_q": 1.0} | changes)


def test_direction_needs_a_small_q_and_a_sign():
    made = [kind(score=score, abundance_q=q) for score, q in ((2, 0.1), (-2, 0.1), (2, 0.11), (0, 0.01))]
    assert [one.direction for one in made] == ["more", "less", "", ""]
    assert made[0].ratio == 2
    assert kind(in_reference=0.0).ratio == np.inf


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"abundance_q": 0.1}, "2 times as many (20% vs. 10% of cells)"),
        (
            {"abundance_q": 0.1, "score": -3.0, "in_group": 0.02, "in_reference": 0.08},
            "0.25 times as many (2% vs. 8% of cells)",
        ),
        (
            {"in_group": 0.41, "in_reference": 0.43, "state_q": 0.1, "log_ratio": 1.9},
            "about the same share (41% vs. 43% of cells), different state",
        ),
        ({"state_q": 0.05}, "no significant change in abundance (20% vs. 10% of cells), different state"),
        ({"abundance_q": 0.1, "state_q": 0.1}, "2 times as many (20% vs. 10% of cells), different state"),
        ({"in_group": 0.1}, "about the same share (10% vs. 10% of cells)"),
        ({"in_reference": 0.0, "abundance_q": 0.1}, "only in the group (20% vs. 0% of cells)"),
        ({"in_group": 0.0}, "only in the reference, not significant (0% vs. 10% of cells)"),
        ({"in_group": 0.105, "abundance_q": 0.1}, "1.05 times as many (10.5% vs. 10% of cells)"),
    ],
)
def test_words_are_those_of_the_shares(changes, words):
    """Whatever the log-ratio to a reference is: 41 and 43% are never several times as many."""
    assert kind(**changes).words() == words
    assert str(kind(**changes)) == f"'T': {words}; 40% of the distance"


def test_cells_without_a_kind_are_a_kind(branch):
    values = branch.copy()
    values[::9] = None
    found = annotate("branch", values, 1200)
    assert found.types[-1] == "not annotated"
    assert (found.codes == 5).sum() == len(values[::9])
    taken = annotate("x", ["not annotated", None, "a"], 3)
    assert taken.types == ("a", "not annotated", "not annotated (missing)")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (["a", "b"], "one cell type for each of the 4 points of the graph, found 2"),
        (["a"] * 4, "2 to 1,000 cell types, found 1 in 'x', only 'a'"),
        ([["a", "b"]] * 4, "one cell type for each cell, found an array of shape"),
    ],
)
def test_bad_annotations_are_refused(values, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        annotate("x", values, 4)


def test_names_of_cells_are_no_kinds():
    with pytest.raises(InvalidInputError, match="2 to 1,000 cell types, found 1,001 in 'barcode'"):
        annotate("barcode", np.arange(1001), 1001)


def test_a_study_carries_the_contrast_of_the_first_groups(comparison, data, branch):
    age = np.linspace(20, 60, 20)
    variables = {"age": age, "condition": data.annotations["condition"]}
    found = study_comparison(comparison, variables, cells={"branch": branch}, **QUICK)
    assert (found.contrast.variable, found.contrast.annotation) == ("condition", "branch")
    record = json.loads(json.dumps(found.plain(), allow_nan=False))
    assert record["contrasts"][0]["types"][0]["name"] == found.contrast.types[0].name
    assert record["parameters"]["cells"] == "branch"
    assert "contrast cells" in record["seconds"]
    assert study_comparison(comparison, variables, **QUICK).contrast is None
    series = study_comparison(comparison, variables, cells=pd.Series(branch, name="type"), **QUICK)
    assert series.contrast.annotation == "type"
    table = found.contrast.table()
    assert table["share"].sum() == pytest.approx(1)
    assert table.loc["branch 4", "direction"] == "more"


def test_a_study_notes_why_there_is_no_contrast(comparison, branch):
    found = study_comparison(comparison, {"code": ["x"] * 20}, cells=branch, **QUICK)
    assert found.contrast is None
    assert any("Expected sample metadata that could be tested, found none" in note for note in found.notes)
    assert found.plain()["contrasts"] == []
    alone = study_comparison(comparison, {"odd": ["one"] + ["rest"] * 19}, cells=branch, **QUICK)
    assert alone.contrast is None
    assert any("The types of 'cell type' were not compared: " in note for note in alone.notes)


def test_cells_of_samples_left_out_do_not_count(frame, tmp_path):
    short = pd.concat([frame, frame[:5].assign(sample="tiny")])
    short.to_parquet(tmp_path / "cells.parquet", index=False)
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample")
    found = study_cohort(cohort, variables=["condition"], cells="branch", min_cells=10, **QUICK).contrast
    assert sum(kind.cells for kind in found.types) == 1200


def test_a_bad_column_is_refused_before_anything_is_compared(cohort, monkeypatch):
    monkeypatch.setattr("heatmover.study.comparers.compare", lambda *_, **__: pytest.fail("compared"))
    with pytest.raises(InvalidInputError, match=r"did you mean 'branch'\?"):
        study_cohort(cohort, cells="branches")
    with pytest.raises(InvalidInputError, match="'condition', which is the same in all cells of every sample"):
        study_cohort(cohort, cells="condition")


def test_covariates_reach_the_tests_of_types_and_of_the_distance():
    """The batch changes numbers and states; 8 of 10 cases and 2 of 10 controls are of one batch."""
    condition = np.repeat(["case", "control"], 10)
    batch = np.where(np.tile(np.arange(10), 2) < np.repeat([8, 2], 10), "x", "y")
    called = {True: 0, False: 0}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kinds = [rng.choice(3, 60, p=[0.5, 0.3, 0.2] if each == "x" else [0.3, 0.4, 0.3]) for each in batch]
        points = [rng.normal(size=(60, 3)) + 4 * np.eye(3)[kind] for kind in kinds]
        comparison = hm.compare(np.vstack(points), np.repeat([f"s{i:02d}" for i in range(20)], 60), n_neighbors=15)
        for adjusted in called:
            found = study_comparison(
                comparison, {"condition": condition, "batch": batch}, adjust=["batch"] if adjusted else [],
                cells={"kind": np.concatenate(kinds).astype(str)}, **QUICK,
            ).contrast  # fmt: skip
            called[adjusted] += bool(found.different)
            assert found.adjusted == (("batch",) if adjusted else ())
            assert not found.no_calls
    assert called[True] <= 1 < called[False]


def test_five_pairs_call_nothing_and_six_do():
    rng = np.random.default_rng(0)
    for n_pairs in (5, 6):
        kind = rng.random((2 * n_pairs, 80)) < np.tile([0.2, 0.8], n_pairs)[:, None]
        points = rng.normal(size=(kind.size, 2)) + 3.0 * kind.reshape(-1, 1)
        comparison = hm.compare(points, np.repeat([f"s{i:02d}" for i in range(2 * n_pairs)], 80), n_neighbors=15)
        visit, patient = ["before", "after"] * n_pairs, np.repeat(range(n_pairs), 2)
        found = contrast_cells(comparison, annotate("kind", kind.ravel().astype(str), kind.size), visit, blocks=patient)
        assert bool(found.different) == (n_pairs == 6)
        assert bool(found.no_calls) == (n_pairs == 5)
        cells = explain_groups(comparison.model, comparison.measures, visit, blocks=patient)
        assert bool((cells.q_values <= 0.1).any()) == (n_pairs == 6)
