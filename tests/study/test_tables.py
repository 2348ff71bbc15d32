"""CSV files: numbers stay numbers, no text is a formula, and every text comes back."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatmover.report.page import cell_type_table
from heatmover.study.contrasts import CellContrast
from heatmover.study.tables import inert_text, plain_text, table_text, write_table

FORMULAS = [
    "=cmd()", "+cmd()", "-cmd()", "@sum(a1)", "\t=1", "\r=1", "\n=1", "\tplain", "\rplain", " =1", "\x00=1", "\ufeff=1",
    "\uff1d1", "-5-5", "=", "-", "--1", "+1a", "=HYPERLINK(\"http://example.org\")",
]  # fmt: skip


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_begin_with_an_apostrophe(text):
    for name in (text, f"'{text}", f"''{text}"):
        assert inert_text(name) == f"'{name}"
        assert plain_text(inert_text(name)) == name


@pytest.mark.parametrize(
    "text", ["", "patient", "'", "'quoted'", "'5 prime", "-5", "+1.5e-3", "-.5", "'-5", "a=b", "5-3"]
)
def test_other_texts_are_written_as_they_are(text):
    assert inert_text(text) == plain_text(text) == text


@given(st.text(st.sampled_from("'=+-@\t\r\n 5.eEa\x00\uff1d") | st.characters(), max_size=6))
def test_every_text_comes_back_and_none_is_a_formula(text):
    written = inert_text(text)
    assert plain_text(written) == text
    if written[:1] in tuple("=+-@\t\r"):
        assert np.isfinite(float(written))


@given(st.text(st.sampled_from("'=-@\t 5a"), max_size=5), st.text(st.sampled_from("'=-@\t 5a"), max_size=5))
def test_texts_that_differ_are_written_differently(first, second):
    assert (inert_text(first) == inert_text(second)) == (first == second)


def test_numbers_stay_numbers(tmp_path):
    values = [-0.1, 1e-300, -7, np.float64(-1 / 3), np.float32(-0.5), np.int64(-3), -np.inf]
    write_table(tmp_path / "x.csv", ["=a", "b"], [["=x", value] for value in values])
    header, *rows = read(tmp_path / "x.csv")
    assert header == ["'=a", "b"]
    assert [row[0] for row in rows] == ["'=x"] * len(values)
    assert [float(row[1]) for row in rows] == [float(value) for value in values]
    assert [plain_text(row[1]) for row in rows] == [row[1] for row in rows]


def test_names_that_are_no_text_can_be_written(tmp_path):
    write_table(tmp_path / "x.csv", ["a"], [["\udc80"], [None], ["a\0b"]])
    assert read(tmp_path / "x.csv") == [["a"], ["\\udc80"], [""], ["a\0b"]]


def test_cell_types_are_inert_too(tmp_path):
    from types import SimpleNamespace

    contrast = SimpleNamespace(
        group="=case",
        reference="@control",
        types=[SimpleNamespace(name="-kind", ratio=-0.5)],
        rows=lambda: [{"p": 0.1}],
        no_calls="",
    )
    assert CellContrast.rows  # what stands in for one has the same names
    write_table(tmp_path / "cell-types.csv", *cell_type_table([contrast]))
    assert read(tmp_path / "cell-types.csv")[1] == ["'-kind", "'=case", "'@control", "0.1", "-0.5"]


def test_the_text_of_a_table_is_what_is_written(tmp_path):
    header, rows = ["=name", "value"], [["@x", 1.25], ["plain", None], ['"quoted", with\nlines', -3]]
    write_table(tmp_path / "table.csv", header, rows)
    assert table_text(header, rows) == (tmp_path / "table.csv").read_bytes().decode()
