"""Tables of text and Parquet: which columns are features, and what text means."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatmover.cohort import read_cohort
from heatmover.cohort.samples import from_text
from heatmover.errors import InvalidInputError


def read_text(folder, text, **options):
    (folder / "cells.csv").write_text(text, encoding="utf-8")
    return read_cohort(folder / "cells.csv", sample_key="sample", **options)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_row_numbers_are_no_feature(kind, frame, tmp_path):
    path = tmp_path / f"cells.{kind}"
    frame = frame.set_axis(np.arange(60)[::-1])
    frame.to_csv(path) if kind == "csv" else frame.to_parquet(path, index=True)
    assert read_cohort(path, sample_key="sample").features == ("CD4", "CD8", "CD19")


def test_a_number_that_is_constant_within_samples_describes_them(tmp_path):
    cohort = read_text(tmp_path, "sample,age,x\na,50,1\nb,61,2\na,50,3\nb,61,2\n")
    assert cohort.features == ("x",)
    assert cohort.variable("age").tolist() == [50, 61]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_whole_numbers_among_measurements_are_labels(kind, frame, make, tmp_path):
    frame["cluster"] = np.arange(60) % 3
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, **arguments)
    assert cohort.features == ("CD4", "CD8", "CD19")
    assert cohort.varying == {"cluster": 4}
    assert "'cluster'" in cohort.warnings[0]
    assert read_cohort(path, representation=["cluster", "CD4"], **arguments).warnings == ()


def test_counts_are_features_if_there_is_nothing_else(tmp_path):
    cohort = read_text(tmp_path, "sample,x,y\na,1,4\na,2,9\n")
    assert (cohort.features, cohort.varying, len(cohort.warnings)) == (("x", "y"), {}, 1)


def test_text_that_looks_like_a_number_but_is_a_name_stays_text(tmp_path):
    cohort = read_text(tmp_path, "sample,patient,drug,x\n01,007,None,1\n01,007,None,2\n1,008,yes,2\n")
    assert cohort.names == ("01", "1")
    assert cohort.variable("patient").tolist() == ["007", "008"]
    assert cohort.variable("drug").tolist() == ["None", "yes"]


def test_missing_values_of_a_variable(tmp_path):
    cohort = read_text(tmp_path, "sample,age,drug,x\na,NA,,1\na,NA,,2\nb,61,yes,2\nc,50,,3\nc,50,yes,4\n")
    assert np.isnan(cohort.variable("age")["a"])
    assert cohort.variable("age")["b"] == 61
    assert cohort.varying == {"drug": 1}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_delimiter_is_seen(delimiter, tmp_path):
    cohort = read_text(tmp_path, "sample,x,y\na,1,2\na,2,1\n".replace(",", delimiter))
    np.testing.assert_array_equal(cohort.points(), [[1, 2], [2, 1]])


def test_a_byte_order_mark_and_quoted_lines_are_understood(tmp_path):
    text = '\ufeffsample,note,x\r\n"a, ""b""","two\nlines",1\r\n"a, ""b""","two\nlines",2\r\n'
    cohort = read_text(tmp_path, text)
    assert cohort.names == ('a, "b"',)
    assert cohort.variable("note").tolist() == ["two\nlines"]


def test_what_varies_is_seen_across_blocks(monkeypatch, frame, make, tmp_path):
    monkeypatch.setattr("heatmover.cohort.formats.tables.BLOCK_BYTES", 200)
    monkeypatch.setattr("heatmover.cohort.formats.tables.LABEL_ROWS", 1)
    monkeypatch.setattr("heatmover.cohort.formats.anndata.LABEL_ROWS", 1)
    for kind in ("csv", "parquet", "h5ad", "zarr"):
        path, arguments = make.write(frame, kind, tmp_path)
        cohort = read_cohort(path, **arguments)
        assert cohort.varying == {"cluster": 4}
        assert set(cohort.samples) == {"condition", "age", "dose", "smoker"}


def test_a_parquet_of_dates_gaps_and_dictionaries(tmp_path):
    frame = pd.DataFrame({"sample": pd.Categorical(["b", "a", "b"]), "x": np.float32([1, 2, 3])})
    frame["day"] = pd.to_datetime(["2020-01-02", "2021-03-04", "2020-01-02"])
    frame["visits"] = pd.array([2, None, 2], dtype="Int64")
    frame.to_parquet(tmp_path / "cells.parquet")
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample", annotations=["day", "visits"])
    assert cohort.points().dtype == np.float32
    assert cohort.variable("day").tolist() == list(pd.to_datetime(["2021-03-04", "2020-01-02"]))
    assert np.isnan(cohort.variable("visits")["a"])
    assert cohort.variable("visits")["b"] == 2


def test_gaps_among_the_features_of_a_parquet_are_found(tmp_path):
    frame = pd.DataFrame({"sample": ["a", "a", "b"], "x": pd.array([1, None, 3], dtype="Int64")})
    frame.to_parquet(tmp_path / "cells.parquet")
    with pytest.raises(InvalidInputError, match="1 such value in 1 cell"):
        read_cohort(tmp_path / "cells.parquet", sample_key="sample", representation=["x"])


def test_a_sample_sheet_adds_variables_and_wins(frame, make, tmp_path):
    sheet = pd.DataFrame({"sample": ["p4", "p3", "p2", "p1"], "age": [4, 3, 2, 1], "cluster": list("wxyz")})
    sheet.to_csv(tmp_path / "sheet.csv", index=False)
    path, arguments = make.write(frame, "h5ad", tmp_path)
    cohort = read_cohort(path, sample_sheet=tmp_path / "sheet.csv", **arguments)
    assert cohort.variable("age").tolist() == [1, 2, 3, 4]
    assert cohort.variable("cluster").tolist() == ["z", "y", "x", "w"]
    assert cohort.varying == {}


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (["p1", "p2", "p3"], "no 'p4' in it"),
        (["p1", "p2", "p3", "p4", "p5"], "no cells of 'p5'"),
        (["p1", "p2", "p3", "p4", "p4"], "1 repeated"),
    ],
)
def test_a_sample_sheet_of_other_samples(samples, message, frame, make, tmp_path):
    pd.DataFrame({"sample": samples, "batch": 1}).to_csv(tmp_path / "sheet.csv", index=False)
    path, arguments = make.write(frame, "csv", tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        read_cohort(path, sample_sheet=tmp_path / "sheet.csv", **arguments)


@pytest.mark.parametrize("kind", ["csv", "h5ad", "parquet"])
def test_samples_that_the_sheet_does_not_list_can_be_left_out(kind, frame, make, tmp_path):
    pd.DataFrame({"sample": ["p4", "p1"], "dose": [4, 1]}).to_csv(tmp_path / "sheet.csv", index=False)
    path, arguments = make.write(frame, kind, tmp_path)
    whole = read_cohort(path, **arguments)
    cohort = read_cohort(path, sample_sheet=tmp_path / "sheet.csv", skip_unlisted=True, **arguments)
    assert cohort.names == ("p1", "p4")
    assert cohort.variable("dose").tolist() == [1, 4]
    assert cohort.variable("age").tolist() == whole.variable("age")[["p1", "p4"]].tolist()
    kept = np.isin(whole.labels(), ["p1", "p4"])
    np.testing.assert_array_equal(cohort.points(), whole.points()[kept])
    assert cohort.labels().tolist() == whole.labels()[kept].tolist()
    assert "These names were left out, because the sample sheet does not list them: 'p2', 'p3'." in cohort.warnings


def test_a_column_of_labels_among_counts_is_told(tmp_path):
    rows = "".join(f"{'ab'[i % 2]},{i % 7},{i % 5},{i % 3}\n" for i in range(40))
    (tmp_path / "cells.csv").write_text(f"sample,CD4,CD8,leiden\n{rows}")
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample")
    assert any("their names look like cell labels: 'leiden'. To" in warning for warning in cohort.warnings)
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample", no_features=["leiden"])
    assert cohort.warnings == ()


@given(st.lists(st.one_of(st.none(), st.integers(-(2**50), 2**50), st.floats(allow_nan=False)), min_size=1))
def test_numbers_survive_being_text(values):
    text = [None if value is None else str(value) for value in values]
    assert from_text(text) == values


@given(st.lists(st.text(min_size=1), min_size=1))
def test_text_that_is_no_number_stays_as_it_is(values):
    found = from_text(list(values))
    assert found == values or all(isinstance(value, int | float | bool) for value in found)
