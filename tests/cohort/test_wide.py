"""Tables of very many columns: what is done for each column does not grow with their number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from heatmover._words import find_all, unused
from heatmover.cohort import read_cohort
from heatmover.cohort.candidates import candidates
from heatmover.cohort.formats import parquet as _parquet
from heatmover.cohort.formats import text as _delimited
from heatmover.cohort.formats.anndata import AnnDataReader
from heatmover.cohort.formats.table import divide


class Name(str):
    """Text that counts how often it is hashed or compared."""

    __slots__ = ()
    operations = 0

    def __hash__(self):
        Name.operations += 1
        return super().__hash__()

    def __eq__(self, other):
        Name.operations += 1
        return super().__eq__(other)


def counted(action, n_columns):
    names = [Name(f"g{i}") for i in range(n_columns)]
    Name.operations = 0
    action(names)
    return Name.operations


def default(names):
    divide(names, names[1:], sample_key=names[0], representation=None, annotations=None, no_features=names[1:5])


def chosen(names):
    divide(names, names, sample_key=names[0], representation=names[1:], annotations=names[2:])


def narrowed(names):
    reader = AnnDataReader("", "h5ad", None, "sample", "X", tuple(names), ())
    assert reader.choose(tuple(names[1:])).positions == tuple(range(1, len(names)))


@pytest.mark.parametrize("action", [default, chosen, narrowed, lambda names: find_all(names[1:], names, "")])
def test_operations_on_names_grow_linearly(action):
    few, many = counted(action, 500), counted(action, 2_000)
    assert few > 500
    assert many < 4.5 * few


@pytest.fixture(params=["csv", "parquet"])
def wide(request, tmp_path):
    """A table of 1,200 features and 40 cells; whole numbers if it is a .csv."""
    rng = np.random.default_rng(0)
    values = rng.poisson(1, size=(40, 1_200)) if request.param == "csv" else rng.normal(size=(40, 1_200))
    frame = pd.DataFrame(values, columns=[f"g{i}" for i in range(1_200)])
    frame.insert(0, "sample", ["a", "b"] * 20)
    path = tmp_path / f"cells.{request.param}"
    frame.to_csv(path, index=False) if request.param == "csv" else frame.to_parquet(path, row_group_size=20)
    return path, values


def test_a_wide_table_is_read_as_any_other(wide, monkeypatch):
    path, values = wide

    def small(n, *arguments):
        assert n <= 500, "a square of the number of columns"
        return identity(n, *arguments)

    identity = np.eye
    monkeypatch.setattr("heatmover.cohort.projection.np.eye", small)
    monkeypatch.setattr(_delimited, "HEAD_FIELDS", 3_000)
    monkeypatch.setattr(_parquet, "LABEL_BYTES", 100_000)
    cohort = read_cohort(path, sample_key="sample", n_components="all")
    np.testing.assert_array_equal(cohort.points(), values[:, [int(name[1:]) for name in cohort.features]])
    assert len(cohort.features) + len(cohort.unused) == 1_200
    assert read_cohort(path, sample_key="sample", n_components=2).n_dimensions == 2


def test_of_a_wide_table_few_lines_are_looked_at_first(wide, monkeypatch):
    path, _ = wide
    monkeypatch.setattr(_delimited, "HEAD_FIELDS", 3_000)
    if path.suffix == ".csv":
        _, head = _delimited.read_head(str(path))
        assert {len(texts) for texts in head.values()} == {2}


def test_a_wide_table_is_read_a_few_times_to_find_the_samples(wide, monkeypatch):
    path, _ = wide
    passes = []
    batches, iterate = _delimited.DelimitedReader._batches, pq.ParquetFile.iter_batches
    monkeypatch.setattr(_delimited.DelimitedReader, "_batches", lambda *a: passes.append(1) or batches(*a))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **b: passes.append(1) or iterate(*a, **b))
    assert candidates(str(path))[0].column == "sample"
    assert len(passes) < 40


def test_messages_do_not_list_all_columns():
    assert len(unused(dict.fromkeys(map(str, range(100_000)), "text"))) < 100
