"""`study`: its numbers are those of `compare` and `examine`, its errors name the reason, its record is plain."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.linalg import block_diag

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError
from heatmover.study.examination import examine
from heatmover.study.study import Study, check_components, choose_variables, study_cohort, study_comparison

QUICK = {"n_permutations": 19}


def make_frame(n_samples=10, n_cells=20, shift=3.0):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "sample": np.repeat([f"s{i}" for i in range(n_samples)], n_cells),
            "condition": np.repeat(["control", "case"] * (n_samples // 2), n_cells),
            "age": np.repeat(40.5 + np.arange(n_samples), n_cells),
            "patient": np.repeat([f"p{i // 2}" for i in range(n_samples)], n_cells),
            "visit": np.repeat(["first", "second"] * (n_samples // 2), n_cells),
            "name": np.repeat([f"n{i}" for i in range(n_samples)], n_cells),
            "center": "here",
            "cluster": rng.choice(["T", "B"], n_samples * n_cells),
        }
    )
    frame["x"] = rng.normal(size=len(frame)) + shift * (frame["condition"] == "case")
    frame["y"] = rng.normal(size=len(frame))
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def read(folder):
    """Write a table and read it as a cohort."""

    def from_frame(frame):
        path = folder / f"cells{len(list(folder.iterdir()))}.parquet"
        frame.to_parquet(path, index=False)
        return read_cohort(path, sample_key="sample", representation=["x", "y"])

    return from_frame


@pytest.fixture(scope="module")
def cohort(read):
    return read(make_frame())


@pytest.fixture(scope="module")
def finished(cohort):
    return study_cohort(cohort, variables=["condition", "age"], n_permutations=99)


def test_distances_are_those_of_compare(cohort, finished):
    plain = hm.compare(cohort.points(), cohort.labels(), bias="corrected")
    assert finished.comparison.names == plain.names
    np.testing.assert_array_equal(finished.comparison.distances, plain.distances)
    np.testing.assert_array_equal(finished.comparison.sizes, cohort.sizes)


def test_findings_are_those_of_examine(cohort, finished):
    variables = {name: cohort.samples[name].tolist() for name in ("condition", "age")}
    shown, tested = finished.comparison.distances, finished.comparison.test_distances
    plain = examine(tested, variables, shown=shown, n_permutations=99)
    assert [finding.variable for finding in finished.findings] == ["condition", "age"]
    for found, expected in zip(finished.findings, plain, strict=True):
        assert found.answer.p_value == expected.answer.p_value
        assert found.q_value == expected.q_value
        assert found.answer.effect == expected.answer.effect


def test_noise_stays_if_asked_for(cohort):
    raw = study_cohort(cohort, variables=["condition"], bias="raw", **QUICK).comparison
    np.testing.assert_array_equal(raw.distances, hm.compare(cohort.points(), cohort.labels()).distances)
    assert raw.uncertainty is None


def test_samples_left_out_are_as_if_never_there(read):
    """Sizes 1 and 3 among 20; names in no order of size."""
    frame = make_frame()
    place = frame.groupby("sample").cumcount()
    frame = frame[((frame["sample"] != "s4") | (place < 1)) & ((frame["sample"] != "s7") | (place < 3))]
    found = study_cohort(read(frame), variables=["condition"], min_cells=4, **QUICK)
    without = study_cohort(read(frame[~frame["sample"].isin(["s4", "s7"])]), variables=["condition"], **QUICK)
    np.testing.assert_array_equal(found.comparison.distances, without.comparison.distances)
    assert list(found.variables.index) == list(found.comparison.names) == list(without.comparison.names)
    assert found.findings[0].answer.p_value == without.findings[0].answer.p_value
    assert found.notes[0] == "2 samples with fewer than 4 cells were left out: 's4', 's7'."
    assert found.plain()["samples"] == 8
    kept = study_cohort(read(frame), min_cells=1, variables=["condition"], **QUICK)
    assert len(kept.comparison.names) == 10


def test_single_cells_are_refused_by_default(read):
    frame = make_frame()
    frame = frame[(frame["sample"] != "s4") | ~frame.duplicated("sample")]
    with pytest.raises(InvalidInputError, match=r"two cells in every sample, found one cell in 1 of 10 .*'s4'"):
        study_cohort(read(frame), **QUICK)


def test_variables_nobody_asked_for(cohort):
    found = study_cohort(cohort, block="patient", **QUICK)
    # Not: a name for each sample, one value for all, the block itself, what varies within samples.
    assert [finding.variable for finding in found.findings] == ["condition", "age", "visit"]
    assert found.block == "patient"


def test_blocks_are_those_of_the_samples_kept(cohort):
    found = study_cohort(cohort, variables=["visit", "age"], block="patient", **QUICK)
    plain = examine(
        found.comparison.distances,
        {"visit": cohort.samples["visit"].tolist(), "age": cohort.samples["age"].tolist()},
        blocks=cohort.samples["patient"].tolist(),
        **QUICK,
    )
    assert [finding.blocks for finding in found.findings] == [finding.blocks for finding in plain]
    assert found.findings[0].answer.p_value == plain[0].answer.p_value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variables": ["conditon"]}, r"'conditon' \(did you mean 'condition'\?\)"),
        ({"variables": ["cluster"]}, "constant within each sample, found that it varies within 10 of 10"),
        ({"variables": ["center"]}, "'center' to differ between samples, found only 'here' in 10 samples"),
        ({"block": "nobody"}, "the name of a column of sample metadata"),
        ({"block": "cluster"}, "constant within each sample"),
        ({"min_cells": 0}, "min_cells to be a whole number of at least 1"),
        ({"min_cells": 21}, "samples with 21 or more cells to compare, found 0 of 10 samples; lower min_cells"),
        ({"n_permutations": 0}, "n_permutations"),
        ({"n_neighbors": 0}, "n_neighbors"),
        ({"landmarks": "some"}, "landmarks"),
    ],
)
def test_refusals(cohort, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        study_cohort(cohort, **{**QUICK, **arguments})


def test_a_block_with_gaps(read):
    frame = make_frame()
    frame.loc[frame["sample"] == "s3", "patient"] = None
    with pytest.raises(InvalidInputError, match="a block in 'patient' for every sample, found none for 1 of 10"):
        study_cohort(read(frame), block="patient", **QUICK)


def test_a_variable_without_any_value(read):
    frame = make_frame()
    frame["empty"] = pd.Series([None] * len(frame), dtype="string")
    cohort = read(frame)
    with pytest.raises(InvalidInputError, match="found no value in 10 samples"):
        choose_variables(cohort, cohort.samples, ["empty"], None)


def test_components(read):
    frame = make_frame()
    frame.loc[frame["cluster"] == "T", "x"] += 1e6
    cohort = read(frame)
    share = (frame["cluster"] == "T").mean()
    apart = min(share, 1 - share)
    with pytest.raises(
        InvalidInputError, match=rf"a connected graph, found 2 components, with {apart:.0%} of the cells"
    ):
        study_cohort(cohort, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the diagnosis says it, no warning does
        found = study_cohort(cohort, allow_components=True, **QUICK)
    assert found.comparison.diagnosis.n_components == 2


def test_components_are_weighed_by_cells():
    """Two components of three points; the cells lie mostly in the first, or evenly."""
    affinity = sp.csr_array(block_diag(np.ones((3, 3)), np.ones((3, 3))))
    check_components(affinity, np.array([96.0, 0, 0, 4, 0, 0]))
    with pytest.raises(InvalidInputError, match="2 components, with 6% of the cells outside the largest"):
        check_components(affinity, np.array([94.0, 0, 0, 2, 2, 2]))
    # The largest is the one with most cells, not most points.
    wide = sp.csr_array(block_diag(np.ones((1, 1)), np.ones((5, 5))))
    check_components(wide, np.array([100.0, 1, 1, 1, 1, 1]))


def test_headlines(cohort, finished):
    assert finished.headline().startswith("Samples differ by condition (PERMANOVA R2 = ")
    assert (
        f", p = {finished.findings[0].answer.p_value:.2g}, q = {finished.findings[0].q_value:.2g})"
        in finished.headline()
    )
    none = study_comparison(finished.comparison, {"same": ["a"] * 10}, **QUICK)
    assert none.headline() == "10 samples were compared; no sample metadata could be tested."
    number = study_comparison(finished.comparison, {"size": list(range(10))}, **QUICK)
    assert "(distance correlation " in number.headline()
    noise = study_comparison(finished.comparison, {"noise": list("aabbaabbaa")}, **QUICK)
    assert noise.headline().startswith("No evidence that noise is associated with")
    many = {"weak": ["a", "b"] * 5, **{f"noise {i}": list("aabbaabbaa") for i in range(9)}}
    shaky = study_comparison(finished.comparison, many, n_permutations=30)
    assert not shaky.findings[0].sure
    assert shaky.headline().startswith("Samples may differ by weak (PERMANOVA R2 = ")
    assert shaky.headline().endswith("; not significant after correction for multiple testing.")
    assert repr(none) == f"Study({none.headline()})"


def test_the_record_is_plain_and_complete(cohort, finished):
    text = json.dumps(finished.plain(), allow_nan=False)
    record = json.loads(text)
    assert record["input"]["samples"] == 10
    assert record["input"]["checksum"] == cohort.source.checksum
    assert record["input"]["varying"] == {"cluster": 10}
    assert record["parameters"] == {
        "variables": ["condition", "age"], "block": None, "adjust": [], "formula": None,
        "align_batch": None, "anchors": None, "cells": None, "clusters": None, "genes": "auto", "cell_map": "auto",
        "group": None, "reference": None, "trend": [], "numeric": [],
        "categorical": [], "min_cells": None, "allow_components": False, "n_neighbors": 30, "landmarks": "auto",
        "equal_cells": False, "bias": "corrected", "n_bootstrap": 0, "units": None, "n_permutations": 99,
        "random_state": 0,
    }  # fmt: skip
    assert [found["variable"] for found in record["findings"]] == ["condition", "age"]
    assert record["findings"][0]["tests"]["permanova"]["p_value"] == finished.findings[0].answer.p_value
    assert set(record["seconds"]) >= {
        "find neighbors",
        "diffuse measures",
        "compare",
        "diagnose graph",
        "test variables",
    }
    assert str(cohort.source.path) not in text


def test_infinite_figures_in_the_record():
    """Two groups, each in one point: F and the ratio of spreads are infinite or none."""
    comparison = hm.compare(
        np.repeat([[0.0, 0], [1, 0], [0, 1], [1, 1]], 10, axis=0), np.tile(list("abcd"), 10), n_neighbors=25
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = study_comparison(comparison, {"it": list("xxyy")}, **QUICK)
    json.dumps(found.plain(), allow_nan=False)


def test_small_samples_are_noted(read):
    """The fewer cells, the further the nearest: noise alone."""
    rng = np.random.default_rng(1)
    sizes = np.array([3, 4, 5, 6, 8, 10, 40, 60, 80, 100, 120, 140])
    frame = pd.DataFrame({"sample": np.repeat([f"s{i:02d}" for i in range(12)], sizes)})
    frame[["x", "y"]] = rng.normal(size=(len(frame), 2))
    found = study_cohort(read(frame), bias="raw", **QUICK)
    (note,) = [note for note in found.notes if note.startswith("Small samples look artificially distant")]
    assert "The samples have 3 to 140 cells, and 6 of them have fewer than 30." in note
    assert found.findings == ()
    assert not any(note.startswith("Small") for note in study_cohort(read(frame), **QUICK).notes)
    even = study_cohort(read(make_frame()), variables=["condition"], **QUICK)
    assert not any(note.startswith("Small") for note in even.notes)


def test_samples_of_one_cell_are_refused_before_the_work(read):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"sample": [f"s{i:02d}" for i in range(12)], "x": rng.normal(size=12), "y": rng.normal(size=12)}
    )
    cohort = read(frame)
    with pytest.raises(
        InvalidInputError, match=r"a sample with at least two cells.*found 12 samples with 1 cell each; bias='raw'"
    ):
        study_cohort(cohort, min_cells=1, **QUICK)
    assert study_cohort(cohort, min_cells=1, n_neighbors=4, bias="raw", **QUICK).comparison.uncertainty is None


def test_too_few_samples_for_units_are_refused_before_the_work(read):
    frame = make_frame()
    few = frame[frame["sample"].isin([f"s{i}" for i in range(5)])]
    watch = Noting()
    with pytest.raises(InvalidInputError, match="at least 7 samples for the argument units"):
        study_cohort(read(few), units="euclidean", progress=watch, **QUICK)
    assert watch.stages == []


def test_a_corrected_study_does_not_advise_to_correct(read, monkeypatch):
    monkeypatch.setattr("heatmover.study.study.SIZE_MATTERS", 2)
    frame = make_frame().drop(index=range(5))
    for bias in ("raw", "corrected"):
        notes = study_cohort(read(frame), variables=["condition"], bias=bias, **QUICK).notes
        (note,) = [note for note in notes if note.startswith("Small samples look artificially distant")]
        assert ("bias='corrected'" in note) == (bias == "raw")


def test_landmarks_are_noted(cohort):
    found = study_cohort(cohort, landmarks=60, variables=["condition"], **QUICK)
    assert any(note.startswith("Landmarks approximate the cells: Spearman") for note in found.notes)
    assert found.plain()["landmarks"]["n_landmarks"] == 60


def test_a_compact_embedding_is_noted_and_other_warnings_pass(cohort, monkeypatch):
    def compare(*arguments, **named):
        warnings.warn("made compact", EmbeddingWarning, stacklevel=2)
        warnings.warn("parts", GraphWarning, stacklevel=2)
        warnings.warn("something else", RuntimeWarning, stacklevel=2)
        return hm.compare(*arguments, **named)

    monkeypatch.setattr("heatmover.study.comparers.compare", compare)
    with pytest.warns(RuntimeWarning, match="something else") as warned:
        found = study_cohort(cohort, variables=["condition"], **QUICK)
    assert len(warned) == 1
    assert "made compact" in found.notes


@pytest.mark.usefixtures("eager_threads")
def test_same_seed_same_numbers_any_threads(cohort):
    first, second = (study_cohort(cohort, n_jobs=jobs, random_state=5, **QUICK) for jobs in (1, 2))
    np.testing.assert_array_equal(first.comparison.distances, second.comparison.distances)
    assert [f.answer.p_value for f in first.findings] == [f.answer.p_value for f in second.findings]


class Noting:
    def __init__(self):
        self.stages = []

    def stage(self, name, total):
        self.stages.append(name)

    def advance(self, steps=1):
        pass


def test_progress(cohort):
    watch = Noting()
    study_cohort(cohort, progress=watch, **QUICK)
    assert watch.stages == [
        "find neighbors", "choose scales", "diffuse measures", "assess noise", "compare", "diagnose graph",
        "test variables", "call cells",
    ]  # fmt: skip


def test_study_comparison_takes_tables_by_name_or_by_order(finished):
    comparison = finished.comparison
    table = pd.DataFrame({"condition": ["control", "case"] * 5}, index=list(comparison.names))
    shuffled = study_comparison(comparison, table.iloc[::-1], **QUICK)
    assert shuffled.variables["condition"].tolist() == ["control", "case"] * 5
    plain = study_comparison(comparison, {"condition": ["control", "case"] * 5}, **QUICK)
    assert plain.findings[0].answer.p_value == shuffled.findings[0].answer.p_value
    counted = study_comparison(comparison, table.reset_index(drop=True), **QUICK)
    assert counted.variables["condition"].tolist() == ["control", "case"] * 5
    assert isinstance(study_comparison(comparison), Study)
    assert study_comparison(comparison, table, blocks=np.repeat(range(5), 2), **QUICK).findings[0].blocks == "within"


@pytest.mark.parametrize("n", [9, 11])
def test_study_comparison_another_number_of_samples(finished, n):
    with pytest.raises(InvalidInputError, match=rf"one value per sample \(10\), found {n} values"):
        study_comparison(finished.comparison, {"it": list(range(n))}, **QUICK)


def test_study_comparison_a_table_of_other_samples(finished):
    """As many rows, but other names: order would be a guess."""
    table = pd.DataFrame({"it": list(range(10))}, index=[f"t{i}" for i in range(10)])
    with pytest.raises(InvalidInputError, match="found none for 's0', 's1'"):
        study_comparison(finished.comparison, table, **QUICK)


def test_study_comparison_a_larger_table(finished):
    """A table in another order is aligned by its index; further or repeated samples may be a mistake."""
    table = pd.DataFrame({"it": range(12)}, index=["t0", *finished.comparison.names[::-1], "t1"])
    aligned = study_comparison(finished.comparison, table.iloc[1:-1], **QUICK)
    assert aligned.variables["it"].tolist() == list(range(10, 0, -1))
    with pytest.raises(InvalidInputError, match="found other samples: 't0', 't1'"):
        study_comparison(finished.comparison, table, **QUICK)
    twice = pd.DataFrame({"it": range(20)}, index=[*finished.comparison.names] * 2)
    with pytest.raises(InvalidInputError, match="found more than one for 's0'"):
        study_comparison(finished.comparison, twice, **QUICK)


def test_names_of_variables_that_read_the_same(finished):
    with pytest.raises(InvalidInputError, match="distinct labels to have distinct names, found 1 and '1'"):
        study_comparison(finished.comparison, {1: range(10), "1": range(10)}, **QUICK)


def test_names_of_variables_that_are_not_text(finished):
    found = study_comparison(finished.comparison, pd.DataFrame({1: ["a", "b"] * 5, "1x": range(10)}), **QUICK)
    assert [finding.variable for finding in found.findings] == ["1", "1x"]
    json.dumps(found.plain(), allow_nan=False)


def test_too_many_samples_are_refused_before_the_cells_are_read(tmp_path, monkeypatch):
    n = 20_001
    frame = pd.DataFrame({"sample": np.repeat(np.arange(n), 2), "x": np.arange(2 * n) / 3, "y": 0.25})
    frame.to_parquet(tmp_path / "cells.parquet", index=False)
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample", representation=["x", "y"])
    monkeypatch.setattr(type(cohort), "points", lambda self: pytest.fail("read"))
    with pytest.raises(InvalidInputError, match=r"at most 20,000 samples .*found 20,001"):
        study_cohort(cohort)


def test_half_characters_in_values_are_no_obstacle():
    """The text type of pandas 3 cannot hold them."""
    data = hm.datasets.cohort(8, cells_per_sample=30)
    study = hm.study_comparison(hm.compare(data.points, data.labels), {"group": ["a\ud800", "b"] * 4})
    assert "group" in study.headline()
