"""Tables of very many columns: what is done for each column does not grow with their number."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from heatmover._base.words import find_all, unused
from heatmover.cohort import read_cohort
from heatmover.cohort.candidates import candidates
from heatmover.cohort.formats import tables as _tables
from heatmover.cohort.formats.tables import divide
from heatmover.cohort.reader import Selection
from heatmover.errors import InvalidInputError


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
    divide(names, names[1:], Selection(names[0], no_features=names[1:5]))


def chosen(names):
    divide(names, names, Selection(names[0], names[1:], names[2:]))


@pytest.mark.parametrize("action", [default, chosen, lambda names: find_all(names[1:], names, "")])
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
    monkeypatch.setattr("heatmover.cohort.values.np.eye", small)
    monkeypatch.setattr(_tables, "HEAD_FIELDS", 3_000)
    monkeypatch.setattr(_tables, "LABEL_BYTES", 100_000)
    cohort = read_cohort(path, sample_key="sample", n_components="all")
    np.testing.assert_array_equal(cohort.points(), values[:, [int(name[1:]) for name in cohort.features]])
    assert len(cohort.features) + len(cohort.unused) == 1_200
    assert read_cohort(path, sample_key="sample", n_components=2).n_dimensions == 2


def test_of_a_wide_table_few_lines_are_looked_at_first(wide, monkeypatch):
    path, _ = wide
    monkeypatch.setattr(_tables, "HEAD_FIELDS", 3_000)
    if path.suffix == ".csv":
        _, head = _tables.read_head(str(path))
        assert {len(texts) for texts in head.values()} == {2}


def test_a_wide_table_is_read_a_few_times_to_find_the_samples(wide, monkeypatch):
    path, _ = wide
    passes = []
    batches, iterate = _tables.DelimitedReader._batches, pq.ParquetFile.iter_batches
    monkeypatch.setattr(_tables.DelimitedReader, "_batches", lambda *a: passes.append(1) or batches(*a))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **b: passes.append(1) or iterate(*a, **b))
    assert candidates(str(path))[0].column == "sample"
    assert len(passes) < 40


def test_messages_do_not_list_all_columns():
    assert len(unused(dict.fromkeys(map(str, range(100_000)), "text"))) < 100


def refused(path, memory, **options):
    with pytest.raises(InvalidInputError) as caught:
        read_cohort(path, sample_key="sample", memory=memory, **options)
    return str(caught.value)


def test_columns_that_need_more_memory_than_allowed_are_refused_before_they_are_read(wide):
    path, values = wide
    message = refused(path, "20 MB", n_components="all")
    assert "memory of at least 29 MB for 1,200 columns, found 20 MB; raise the limit, or store" in message
    named = read_cohort(path, sample_key="sample", memory="20 MB", representation=["g3", "g5"], annotations=[])
    np.testing.assert_array_equal(named.points(), values[:, [3, 5]])
    assert read_cohort(path, sample_key="sample", memory="29 MB", n_components="all").n_cells == 40


def test_names_of_columns_need_memory_too(wide):
    path, _ = wide
    assert "1,200 columns" in refused(path, "1 MB", representation=["g3"])


@pytest.mark.parametrize("text", ["x" * 140_000, '"' + "x\n" * 70_000 + '"', '"' + "x\n" * 70_000])
@pytest.mark.parametrize("before", [0, 2_000])
@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
def test_a_line_that_is_too_long_is_refused_with_its_place(text, before, ending, tmp_path, monkeypatch):
    for limit in ("BLOCK_BYTES", "WIDE_BLOCK_BYTES"):
        monkeypatch.setattr(_tables, limit, 30_000)
    rows = "".join(f"{'ab'[i % 2]},{i}.5,n\n" for i in range(before))
    content = f"sample,x,note\na,1.5,n\na,2.5,n\n{rows}b,0.5,{text}\nb,3.5,n\n"
    path = tmp_path / f"cells.{ending}"
    content = content.replace(",", "\t") if ending == "tsv.gz" else content
    path.write_bytes(gzip.compress(content.encode()) if ending == "tsv.gz" else content.encode())
    message = refused(path, None)
    assert f"fields have at most 131,072 characters, found line {before + 4} of" in message
    assert "close the open quotation mark" in message


def test_the_memory_allowed_changes_no_bit(wide):
    path, _ = wide
    few, many = (read_cohort(path, sample_key="sample", memory=memory, n_components=3) for memory in ("29 MB", None))
    np.testing.assert_array_equal(few.points(), many.points())
