"""Records: whoever reads says what is expected, and nothing else passes."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover._base.storage import Record
from heatmover._base.storage.record import matrix_record, texts_record
from heatmover.errors import InvalidInputError


def test_values_are_checked():
    record = Record({"i": 3, "f": 0.5, "t": "word", "b": True, "n": None, "m": {"a": 1}})
    assert (record.integer("i"), record.number("f"), record.number("i"), record.text("t")) == (3, 0.5, 3.0, "word")
    assert (record.truth("b"), record.mapping("m"), record.text("t", ["word"])) == (True, {"a": 1}, "word")
    assert [getattr(record, f"optional_{kind}")("n") for kind in ("number", "text")] == [None] * 2
    for read in (
        lambda: record.integer("f"),
        lambda: record.integer("b"),
        lambda: record.integer("i", minimum=4),
        lambda: record.number("t"),
        lambda: record.number("missing"),
        lambda: record.optional_number("missing"),
        lambda: record.text("i"),
        lambda: record.text("t", ["other"]),
        lambda: record.truth("i"),
        lambda: record.mapping("i"),
        lambda: record.part("p"),
    ):
        with pytest.raises(InvalidInputError, match="stored"):
            read()


def test_arrays_are_checked():
    record = Record(
        arrays={"x": np.ones((2, 3)), "i": np.array([2, 0, 1]), "twice": np.array([0, 0]), "bad": np.array([np.nan])}
    )
    assert record.array("x", np.float64, (2, None)).shape == (2, 3)
    assert record.permutation("i", 3).tolist() == [2, 0, 1]
    for read in (
        lambda: record.array("x", np.float32, (2, 3)),
        lambda: record.array("x", np.float64, (3, 2)),
        lambda: record.array("x", np.float64, (6,)),
        lambda: record.array("y", np.float64, (6,)),
        lambda: record.places("i", np.int64, (3,), 2),
        lambda: record.places("i", np.int64, (3,), 3, least=1),
        lambda: record.permutation("twice", 2),
        lambda: record.floats("bad", (1,)),
    ):
        with pytest.raises(InvalidInputError, match="stored array"):
            read()


@pytest.mark.parametrize(
    ("name", "place", "value"), [("indices", 0, 9), ("indices", 0, -1), ("indptr", 1, 99), ("indptr", 2, 0)]
)
def test_a_forged_matrix_does_not_lead_out_of_its_arrays(name, place, value):
    part = matrix_record(sp.csr_array(np.arange(1.0, 7).reshape(2, 3)))
    assert Record(parts={"m": part}).matrix("m", (2, 3)).nnz == 6
    arrays = {key: array.copy() for key, array in part.arrays.items()}
    arrays[name][place] = value
    with pytest.raises(InvalidInputError, match="stored"):
        Record(parts={"m": Record(part.values, arrays)}).matrix("m")
    with pytest.raises(InvalidInputError, match="shape"):
        Record(parts={"m": part}).matrix("m", (3, 2))


def test_texts_come_back():
    names = ["a", "\0", "", "日本", "x" * 1000]
    assert Record(parts={"names": texts_record(names)}).texts("names") == tuple(names)
    assert Record(parts={"names": texts_record([])}).texts("names") == ()
    for texts in (None, "ab", ["a", 1], {"a": "b"}):
        with pytest.raises(InvalidInputError, match="stored texts"):
            Record(parts={"names": Record({"texts": texts})}).texts("names")
