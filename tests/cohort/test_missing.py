"""Cells that lack a value: counted by sample and refused, or left out as if they had never been there."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from heatmover.cohort import read_cohort
from heatmover.cohort.reader import Reader, SubsetReader
from heatmover.errors import InvalidInputError

BAD = [0, 3, 4, 5, 19, 39]


@pytest.fixture
def points():
    return np.random.default_rng(0).normal(size=(40, 3))


@pytest.fixture
def file(tmp_path, points):
    import pyarrow
    import pyarrow.parquet

    points = points.copy()
    points[BAD, 1] = [np.nan, np.inf, -np.inf, np.nan, np.nan, np.nan]
    points[3, 2] = np.nan
    table = {"sample": np.repeat(["a", "b"], 20), **{f"x{i}": column for i, column in enumerate(points.T)}}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "cells.parquet", row_group_size=7)
    return tmp_path / "cells.parquet"


def test_they_are_counted_by_sample_and_refused(file):
    with pytest.raises(InvalidInputError, match=r"7 such values in 6 cells \(first: row 0, .*5 of 'a', 1 of 'b'.*drop"):
        read_cohort(file, sample_key="sample")


@pytest.mark.parametrize("options", [{}, {"standardize": True}, {"n_components": 2}])
def test_they_are_left_out_as_if_they_had_never_been_there(file, points, tmp_path, options):
    import pyarrow
    import pyarrow.parquet

    kept = np.delete(np.arange(40), BAD)
    clean = {"sample": np.repeat(["a", "b"], 20)[kept], **{f"x{i}": points[kept, i] for i in range(3)}}
    pyarrow.parquet.write_table(pyarrow.table(clean), tmp_path / "clean.parquet")
    expected = read_cohort(tmp_path / "clean.parquet", sample_key="sample", **options)
    cohort = read_cohort(file, sample_key="sample", on_missing="drop", **options)
    np.testing.assert_allclose(cohort.points(), expected.points(), atol=1e-12)
    np.testing.assert_array_equal(cohort.codes, expected.codes)
    assert cohort.warnings == ("6 of 40 cells were left out because of NaN or infinity: 5 of 'a', 1 of 'b'.",)


def test_any_range_can_be_read(file, points):
    cohort = pickle.loads(pickle.dumps(read_cohort(file, sample_key="sample", on_missing="drop")))
    expected = np.delete(points, BAD, axis=0)
    for start in range(len(expected)):
        for stop in (start + 1, min(start + 5, 34), 34):
            found = np.concatenate([block for block, _ in cohort.chunks(4, start=start, stop=stop)])
            np.testing.assert_array_equal(found, expected[start:stop])


def test_sparse_blocks_too(points):
    class SparseReader(Reader):
        def blocks(self, start, stop, size):
            for first in range(start, stop, size):
                yield sp.csr_array(points[first : min(first + size, stop)])

    reader = SubsetReader.of(
        SparseReader(kind="file", features=("x",)), ~np.isin(np.arange(len(points)), [1, 2, 3, 4, 20])
    )
    found = np.concatenate([block.toarray() for block in reader.blocks(0, 35, 3)])
    np.testing.assert_array_equal(found, np.delete(points, [1, 2, 3, 4, 20], axis=0))
    assert list(reader.blocks(3, 3, 3)) == []


def test_a_sample_of_which_nothing_is_left_is_told(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("sample,x\na,1.5\na,2.5\nb,NA\nb,inf\n")
    with pytest.raises(InvalidInputError, match="in every sample, found none in 'b'"):
        read_cohort(path, sample_key="sample", on_missing="drop", representation=["x"])
    with pytest.raises(InvalidInputError, match="on_missing to be one of 'refuse', 'drop'"):
        read_cohort(path, sample_key="sample", on_missing="ignore")
