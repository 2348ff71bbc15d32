"""Columns that are nearly all numbers, decimal commas, decimals: what is a feature is never decided by a slip."""

from __future__ import annotations

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

SLIPS = [".", "-", "#N/A", "None", "1,5", "n.a.", "<LOD", "1.5.2"]


def table(n_rows=40, delimiter=",", decimal="."):
    """Rows of a table with two measurements and a count."""
    rng = np.random.default_rng(0)
    rows = [["sample", "age", "x", "y", "n"]]
    for i in range(n_rows):
        x, y = (f"{value:.3f}".replace(".", decimal) for value in rng.normal(size=2))
        rows.append(["ab"[i % 2], "5060"[2 * (i % 2) : 2 * (i % 2) + 2], x, y, str(rng.integers(9))])
    return rows


def read(folder, rows, delimiter=",", **options):
    lines = [delimiter.join(f'"{field}"' if delimiter in field else field for field in row) for row in rows]
    (folder / "cells.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_cohort(folder / "cells.csv", sample_key="sample", **options)


@pytest.mark.parametrize("row", [0, 17, 39])
@pytest.mark.parametrize("slip", SLIPS)
def test_text_in_a_column_of_numbers_is_an_error_that_places_it(slip, row, tmp_path):
    rows = table()
    rows[row + 1][2] = slip
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, rows)
    assert f"numbers in the column 'x', found {slip!r} in line {row + 2}; write NA" in str(caught.value)


@pytest.mark.parametrize("options", [{"annotations": ["x"]}, {"no_features": ["x"]}])
def test_a_column_that_is_named_as_an_annotation_may_hold_anything(options, tmp_path):
    rows = table()
    rows[9][2] = "."
    cohort = read(tmp_path, rows, **options)
    assert cohort.features == ("y",)
    assert cohort.varying["x"] == 2
    assert cohort.unused["x"] == "named as an annotation"
    assert read(tmp_path, rows, representation=["y"]).features == ("y",)


def test_what_is_not_among_the_annotations_is_looked_at_nevertheless(tmp_path):
    rows = table()
    rows[9][2] = "."
    with pytest.raises(InvalidInputError, match=r"'x', found '\.' in line 10"):
        read(tmp_path, rows, annotations=["age"])


def test_a_feature_that_was_named_has_its_text_placed(tmp_path):
    rows = table()
    rows[9][2] = "."
    with pytest.raises(InvalidInputError, match=r"'x', found '\.' in line 10"):
        read(tmp_path, rows, representation=["x", "y"])


@pytest.mark.parametrize("begins", ["numbers", "text"])
def test_where_the_numbers_are_decides_nothing(begins, monkeypatch, tmp_path):
    """The first rows are a guess; the share of numbers in the whole file decides."""
    monkeypatch.setattr("heatmover.cohort.formats.tables.HEAD_ROWS", 5)
    rows = table()
    for i, row in enumerate(rows[1:]):
        row[2] = str(i) if (i < 12) == (begins == "numbers") else f"type {i % 3}"
    if begins == "numbers":  # 12 of 40: text
        cohort = read(tmp_path, rows)
        assert cohort.features == ("y",)
        assert cohort.unused == {"x": "text", "age": "the same in all cells of each sample", "n": "whole numbers"}
    else:
        with pytest.raises(InvalidInputError, match="'x', found 'type 0' in line 2"):
            read(tmp_path, rows)


def test_a_column_that_begins_with_missing_values_is_one_of_numbers(monkeypatch, tmp_path):
    monkeypatch.setattr("heatmover.cohort.formats.tables.HEAD_ROWS", 5)
    rows = table()
    for row in rows[1:8]:
        row[2] = ""
    with pytest.raises(InvalidInputError, match="7 such values in 7 cells"):
        read(tmp_path, rows)
    assert read(tmp_path, rows, on_missing="drop").features == ("x", "y")


@pytest.mark.parametrize("width", [4, 20])
def test_names_that_look_like_numbers_are_names(width, tmp_path):
    """Nine in ten of them have no leading zero; or they have more digits than a number holds."""
    rows = table()
    for i, row in enumerate(rows[1:]):
        row[4] = f"{i * 250 + 1:0{width}d}" if width == 4 else f"1234567890123456{i:04d}"
    cohort = read(tmp_path, rows)
    assert cohort.features == ("x", "y")
    assert cohort.unused["n"] == "text"


def test_a_variable_of_samples_that_is_text_for_one_value_is_told(tmp_path):
    rows = [row for sample in "abcd" for row in table()[1:]]
    for i, row in enumerate(rows):
        row[0] = "abcd"[i % 4]
        row[1] = ["50", "61", ".", "47"][i % 4]
    cohort = read(tmp_path, [table()[0], *rows])
    assert cohort.variable("age").tolist() == ["50", "61", ".", "47"]
    assert any("'age' is read as text because of '.' (sample 'c')" in warning for warning in cohort.warnings)
    (tmp_path / "sheet.csv").write_text("sample,dose\na,1\nb,2\nc,-\nd,4\n")
    cohort = read(tmp_path, [table()[0], *rows], sample_sheet=tmp_path / "sheet.csv")
    assert any("'dose' is read as text because of '-' (sample 'c')" in warning for warning in cohort.warnings)


@pytest.mark.parametrize("delimiter", [";", "\t", ","])
def test_decimal_commas_are_read_and_told(delimiter, tmp_path):
    plain = read(tmp_path, table()).points()
    cohort = read(tmp_path, table(decimal=","), delimiter)
    np.testing.assert_array_equal(cohort.points(), plain)
    assert cohort.features == ("x", "y")
    assert any("decimal commas" in warning for warning in cohort.warnings)
    named = read(tmp_path, table(decimal=","), delimiter, representation=["y"])
    np.testing.assert_array_equal(named.points(), plain[:, 1:])


def test_decimal_commas_of_variables_and_sample_sheets(tmp_path):
    rows = table(decimal=",")
    for row in rows[1:]:
        row[1] = {"a": "0,5", "b": "1,25"}[row[0]]
    assert read(tmp_path, rows, ";").variable("age").tolist() == [0.5, 1.25]
    assert read(tmp_path, rows, ";", representation=["x"]).variable("age").tolist() == [0.5, 1.25]
    (tmp_path / "sheet.csv").write_text("sample;dose\na;0,5\nb;2\n")
    assert read(tmp_path, rows, ";", sample_sheet=tmp_path / "sheet.csv").variable("dose").tolist() == [0.5, 2.0]


def test_a_point_among_decimal_commas_is_placed(tmp_path):
    rows = table(decimal=",")
    rows[5][3] = "1.5"
    with pytest.raises(InvalidInputError, match=r"'y', found '1\.5' in line 6"):
        read(tmp_path, rows, ";")


def test_commas_that_may_stand_between_thousands_are_refused(tmp_path):
    rows = [["sample", "x"], ["a", "1,234"], ["a", "12,345"], ["b", "7"], ["b", "123,456"]]
    with pytest.raises(
        InvalidInputError, match=r"'1,234' in .*, where the comma may mark decimals or thousands; write the"
    ):
        read(tmp_path, rows, ";")


def test_decimals_of_parquet_are_numbers(tmp_path):
    values = [decimal.Decimal(f"{i}.25") for i in range(6)]
    price = pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")] * 3)
    columns = {"sample": ["a", "b"] * 3, "x": pa.array(values), "price": price, "y": np.arange(6) + 0.5}
    pq.write_table(pa.table(columns), tmp_path / "cells.parquet")
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample")
    assert cohort.features == ("x", "y")
    np.testing.assert_array_equal(cohort.points()[:, 0], np.arange(6) + 0.25)
    assert cohort.variable("price").tolist() == [1.5, 2.5]
    named = read_cohort(tmp_path / "cells.parquet", sample_key="sample", annotations=["price"])
    assert named.variable("price").tolist() == [1.5, 2.5]


def test_a_nested_column_that_nobody_asked_for_does_no_harm(tmp_path):
    nested = pa.array([[1, 2], [3], None, []])
    table = {"sample": ["a", "b"] * 2, "x": [0.5, 1.5, 2.5, 3.5], "hits": nested, "box": [{"w": 1}] * 4}
    pq.write_table(pa.table(table), tmp_path / "cells.parquet")
    cohort = read_cohort(tmp_path / "cells.parquet", sample_key="sample")
    assert cohort.features == ("x",)
    assert cohort.unused == {"hits": "lists or records", "box": "lists or records"}
    for options in ({"annotations": ["hits"]}, {"sample_key": "box"}):
        with pytest.raises(InvalidInputError, match="one value in each row of the column"):
            read_cohort(tmp_path / "cells.parquet", **{"sample_key": "sample", **options})


def test_long_whole_numbers_are_names(tmp_path):
    """As floats the first two would be one."""
    ids = np.array([2**60, 2**60 + 1, 2**60 + 2])
    frame = pd.DataFrame({"sample": ["a", "b", "c"] * 3, "id": np.tile(ids, 3), "x": np.arange(9) + 0.5})
    frame.to_parquet(tmp_path / "cells.parquet")
    assert read_cohort(tmp_path / "cells.parquet", sample_key="sample").variable("id").tolist() == ids.tolist()
    frame.to_csv(tmp_path / "cells.csv", index=False)
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample")
    assert cohort.variable("id").nunique() == 3


def test_text_does_not_end_at_a_nul(tmp_path):
    (tmp_path / "cells.csv").write_bytes(b"sample,type,x\na,T,1.5\na,T\0b,2.5\nb,T,3.5\nb,T\0b,4.5\n")
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample")
    assert cohort.annotation("type")[1] == ("T", "T\0b")
    with pytest.raises(InvalidInputError, match="NUL"):
        read_cohort(tmp_path / "cells.csv", sample_key="type")


def test_values_that_cannot_be_compared_are_left_out(frame, make):
    adata = make.anndata(frame)
    adata.obs["lists"] = pd.Series([[1], [2]] * 30, index=adata.obs_names, dtype=object)
    assert "lists" not in read_cohort(adata, sample_key="sample").varying
