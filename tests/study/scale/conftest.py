"""A small cohort on disk, read piece by piece."""

from __future__ import annotations

import numpy as np
import pytest

import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.study.scale import landmarks


def write_cells(path, data, group_rows):
    """Write the cells of a data set as Parquet, in row groups of the given sizes, the last one repeated."""
    import pyarrow
    import pyarrow.parquet

    columns = {f"x{i}": column.astype(np.float32) for i, column in enumerate(data.points.T)}
    table = pyarrow.table({"sample": data.labels, **columns})
    sizes = list(group_rows)
    with pyarrow.parquet.ParquetWriter(path, table.schema) as writer:
        start = 0
        while start < len(table):
            rows = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            writer.write_table(table.slice(start, rows), row_group_size=rows)
            start += rows
    return path


@pytest.fixture(scope="session")
def write():
    return write_cells


@pytest.fixture(scope="session")
def data():
    return hm.datasets.cohort(8, cells_per_sample=500, n_dimensions=5, random_state=1)


@pytest.fixture(scope="session")
def file(data, tmp_path_factory):
    """Row groups of one row, of hundreds and of thousands."""
    return write_cells(tmp_path_factory.mktemp("cells") / "cells.parquet", data, [1, 700, 3, 2500, 60])


@pytest.fixture(scope="session")
def cohort(file):
    return read_cohort(file, sample_key="sample")


@pytest.fixture
def small_pieces(monkeypatch):
    """Return a function that sets the cells of a piece and of a block, as if the cohort were large."""

    def cut(piece_rows, block_rows=256):
        monkeypatch.setattr(landmarks, "MOST_CELLS", piece_rows)
        monkeypatch.setattr(landmarks, "LEAST_CELLS", 1)
        monkeypatch.setattr(landmarks, "PIECES", 1)
        monkeypatch.setattr(landmarks, "MOST_ROWS", block_rows)
        monkeypatch.setattr(landmarks, "LEAST_ROWS", min(block_rows, 16))

    return cut
