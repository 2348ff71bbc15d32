"""Variables as groups or numbers: by their values, or as the reader says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatmover.errors import InvalidInputError
from heatmover.study.variables import as_numbers, kind_of, read_variables


@pytest.mark.parametrize("values", [[1, 2], ["1", " 2 "], [1.0, "2e0"], [np.int8(1), np.float32(2)]])
def test_numbers_in_any_spelling(values):
    assert [float(value) for value in as_numbers("dose", values)] == [1, 2]
    assert kind_of(as_numbers("dose", values), numeric=True) == "number"


@pytest.mark.parametrize("value", ["II", "", "nan", "1_000", "1,5", b"1", pd.Timestamp("2020-01-01"), "0x10"])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InvalidInputError, match="Expected numbers in 'dose', which numeric names, found "):
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
