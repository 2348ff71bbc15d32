"""Pieces of a range of rows, and where they end."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatmover.cohort.formats.anndata import _chunk_rows
from heatmover.cohort.reader import spans


@given(st.integers(0, 50), st.integers(0, 60), st.integers(1, 20), st.integers(1, 25))
def test_pieces_cover_the_range_and_end_where_chunks_end(start, length, size, step):
    stop = start + length
    pieces = list(spans(start, stop, size, step))
    assert [row for first, last in pieces for row in range(first, last)] == list(range(start, stop))
    assert all(0 < last - first <= size for first, last in pieces)
    if step <= size:
        assert all(last % step == 0 for _, last in pieces[:-1])


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        (SimpleNamespace(chunks=(64, 3), shards=None), 64),
        (SimpleNamespace(chunks=(64, 3), shards=(256, 3)), 256),
        (SimpleNamespace(chunks=None), 1),
        (SimpleNamespace(chunks=((5, 5), (3,))), 1),  # dask tells the length of each
        (np.zeros((4, 2)), 1),
    ],
)
def test_the_rows_of_a_chunk(matrix, rows):
    assert _chunk_rows(matrix) == rows
