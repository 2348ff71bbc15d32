"""Annotations of cells: the same from every format, gaps and dropped cells included, and clear where there are none."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from heatmover.cohort import read_cohort
from heatmover.cohort.samples import encode
from heatmover.errors import InvalidInputError


def texts(codes, names):
    return [None if code < 0 else names[code] for code in codes.tolist()]


def test_every_format_gives_the_annotation_of_the_table(written, frame):
    path, arguments = written
    cohort = read_cohort(path, **arguments)
    if "sample_sheet" in arguments:
        with pytest.raises(InvalidInputError, match=r"for cells='cluster', found a folder of FCS files, which has"):
            cohort.annotation("cluster")
        return
    codes, names = cohort.annotation("cluster")
    assert names == ("B", "T")
    assert codes.dtype == np.int32
    assert texts(codes, names) == frame["cluster"].tolist()


@pytest.mark.parametrize("kind", ["h5ad", "zarr", "memory", "csv", "parquet"])
def test_gaps_are_minus_one(make, frame, tmp_path, kind):
    frame["cluster"] = frame["cluster"].where(np.arange(60) % 7 > 0, None)
    path, arguments = make.write(frame, kind, tmp_path)
    codes, names = read_cohort(path, **arguments).annotation("cluster")
    assert texts(codes, names) == [None if pd.isna(value) else value for value in frame["cluster"]]


@pytest.mark.parametrize("kind", ["h5ad", "csv", "parquet"])
def test_whole_numbers_and_categories_are_names(make, frame, tmp_path, kind):
    frame["leiden"] = np.arange(60) % 11
    frame["kind"] = pd.Categorical(np.arange(60) % 3 == 0, categories=[True, False])
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, **arguments)
    assert texts(*cohort.annotation("leiden")) == [str(value) for value in frame["leiden"]]
    assert texts(*cohort.annotation("kind")) == [str(value) for value in frame["kind"]]


@pytest.mark.parametrize("kind", ["h5ad", "csv", "parquet"])
def test_dropped_cells_have_no_annotation(make, frame, tmp_path, kind):
    frame.loc[[3, 17, 18, 59], "CD4"] = np.nan
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, on_missing="drop", **arguments)
    assert texts(*cohort.annotation("cluster")) == frame["cluster"].drop([3, 17, 18, 59]).tolist()


def test_names_that_are_not_there_and_variables_of_samples_are_refused(make, frame, tmp_path):
    path, arguments = make.write(frame, "csv", tmp_path)
    cohort = read_cohort(path, **arguments)
    with pytest.raises(InvalidInputError, match=r"found 'Clusters' \(did you mean 'cluster'\?\)"):
        cohort.annotation("Clusters")
    with pytest.raises(InvalidInputError, match="'condition', which is the same in all cells of every sample"):
        cohort.annotation("condition")


def test_a_file_that_grew_is_noticed(make, frame, tmp_path):
    path, arguments = make.write(frame, "csv", tmp_path)
    cohort = read_cohort(path, **arguments)
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(InvalidInputError, match="the file has changed"):
        cohort.annotation("cluster")


def test_blocks_are_joined_by_name():
    blocks = [np.array(["b", "a"], dtype=object), pd.Categorical(["c", None, "a"], categories=["c", "a", "unseen"])]
    codes, names = encode(blocks)
    assert names == ("a", "b", "c")
    assert codes.tolist() == [1, 0, 2, -1, 0]
    assert encode([np.array([" ", "x"], dtype=object)])[0].tolist() == [-1, 0]
    assert encode([])[1] == ()


def of_donors(n_shared, n_types=12, n_donors=5, cells_each=2):
    """Cells of every type from every donor, but only the first types from the last donor."""
    every = [(kind, donor) for kind in range(n_types) for donor in range(n_donors)]
    every = [pair for pair in every if pair[0] < n_shared or pair[1] < n_donors - 1] * cells_each
    values = np.random.default_rng(0).normal(size=(len(every), 3))
    table = {"cell_type": [f"t{kind}" for kind, _ in every], "donor": [f"d{donor}" for _, donor in every]}
    return pd.DataFrame(table | dict(zip(["CD4", "CD8", "CD19"], values.T, strict=True)))


@pytest.mark.parametrize("kind", ["h5ad", "csv", "parquet"])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_sample_key_that_annotates_cells_is_questioned(make, tmp_path, kind, numbers):
    frame = of_donors(8)
    if numbers:
        frame["donor"] = frame["donor"].str[1:].astype(int)
    path, arguments = make.write(frame, kind, tmp_path)
    warnings = read_cohort(path, **arguments | {"sample_key": "cell_type"}).warnings
    assert [str(each) for each in warnings if "cell_type" in each] == [
        "8 of 12 values of 'cell_type' occur in every 'donor', so 'cell_type' looks like an annotation of cells; "
        "perhaps use sample_key='donor'."
    ]


def test_a_sample_key_of_samples_is_not_questioned(make, tmp_path):
    rare = of_donors(6)  # half of the types are not in every donor
    one = of_donors(12).assign(donor="d1")
    samples = of_donors(12).rename(columns={"cell_type": "sample"})  # a name of samples is believed
    ages = of_donors(12).rename(columns={"donor": "donor_age"})
    unique = of_donors(12).assign(donor=lambda table: [f"d{row}" for row in range(len(table))])
    for frame in (rare, one, samples, ages, unique):
        path, _ = make.write(frame, "csv", tmp_path)
        warnings = read_cohort(path, sample_key=str(frame.columns[0])).warnings
        assert not any("annotation of cells" in each for each in warnings)


def test_a_column_with_the_same_values_in_all_donors_is_no_sample(make, tmp_path):
    """Tumor, blood and node of every donor: the name of the key says samples, but each value pools all donors."""
    frame = of_donors(3, n_types=3).rename(columns={"cell_type": "sample"})
    path, arguments = make.write(frame, "csv", tmp_path)
    (warning,) = (each for each in read_cohort(path, **arguments).warnings if "annotation of cells" in each)
    assert warning.startswith("3 of 3 values of 'sample' occur in every 'donor'")
    # The other way round, every donor gave several samples.
    warnings = read_cohort(path, **arguments | {"sample_key": "donor"}).warnings
    assert not any("annotation of cells" in each for each in warnings)


def test_the_finest_column_is_suggested(make, tmp_path):
    frame = of_donors(12)
    frame["sample_id"] = frame["donor"] + np.where(np.arange(len(frame)) < len(frame) / 2, "a", "b")
    path, arguments = make.write(frame, "csv", tmp_path)
    warnings = read_cohort(path, **arguments | {"sample_key": "cell_type"}).warnings
    assert any("12 of 12 values of 'cell_type' occur in every 'sample_id'" in each for each in warnings)


def test_a_column_with_too_many_pairs_is_left_out(make, tmp_path, monkeypatch):
    monkeypatch.setattr("heatmover.cohort.samples.MOST_PAIRS", 40)
    path, arguments = make.write(of_donors(12), "csv", tmp_path)
    warnings = read_cohort(path, **arguments | {"sample_key": "cell_type"}).warnings
    assert not any("annotation of cells" in each for each in warnings)
