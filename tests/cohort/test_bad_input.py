"""Bad input: one clear sentence, before any work."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
import re

import anndata
import numpy as np
import pandas as pd
import pytest

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError

MARKERS = ["CD4", "CD8", "CD19"]
TABLES = ["h5ad", "h5ad sparse", "zarr", "memory", "csv", "parquet"]


def refused(*pattern, path, **arguments):
    """The message of the refusal, which must be one sentence on one line that holds every pattern."""
    with pytest.raises(InvalidInputError) as caught:
        read_cohort(path, **arguments)
    message = str(caught.value)
    assert re.fullmatch(r"Expected .+, found .+\.", message), message
    assert len(message) < 700
    for part in pattern:
        assert part in message, message
    return message


def place_in(kind, row):
    """How a file counts its cells: text as an editor does, below the header."""
    return f"line {row + 2}" if kind == "csv" else f"row {row}"


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_counted_and_placed(kind, value, frame, make, tmp_path):
    frame.loc[[7, 40], "CD8"] = value
    frame.loc[40, "CD4"] = np.nan
    path, arguments = make.write(frame, kind, tmp_path)
    sample = frame.loc[7, "sample"]
    refused("3 such values in 2 cells", f"first: {place_in(kind, 7)}, sample '{sample}'", path=path, **arguments)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_in_an_fcs_file(value, frame, make, tmp_path):
    frame.loc[7, "CD8"] = value
    path, arguments = make.write(frame, "fcs", tmp_path)
    refused("1 such value in 1 cell", "first: event 8 of 'p1.fcs'", path=path, **arguments)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("label", [None, np.nan, "", "  "])
def test_a_missing_label_is_counted_and_placed(kind, label, frame, make, tmp_path):
    frame["sample"] = frame["sample"].astype(object)
    if kind not in ("csv", "memory", "parquet") and label is None:
        frame["sample"] = pd.Categorical(frame["sample"].where(~frame.index.isin([3, 9])))
    else:
        frame.loc[[3, 9], "sample"] = label if label is not np.nan or kind in ("csv", "memory") else ""
    path, arguments = make.write(frame, kind, tmp_path)
    refused(
        "a sample label for every cell in 'sample'",
        f"2 of 60 missing (first: {place_in(kind, 3)})",
        path=path,
        **arguments,
    )


@pytest.mark.parametrize("kind", TABLES)
def test_names_that_are_no_text_become_text(kind, frame, make, tmp_path):
    frame["sample"] = frame["sample"].map({"p1": 10, "p2": 2, "p3": 3, "p4": 4})
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, **arguments)
    assert cohort.names == ("2", "3", "4", "10")
    assert cohort.labels().tolist() == [str(label) for label in frame["sample"]]
    assert cohort.variable("age")["10"] == 50


def test_a_number_and_its_name_are_not_one_sample(frame, make):
    adata = make.anndata(frame)
    adata.obs["sample"] = np.array([1, "1", 2] * 20, dtype=object)
    refused("distinct labels to have distinct names", "1 and '1'", path=adata, sample_key="sample")


@pytest.mark.parametrize("kind", TABLES)
def test_a_sample_of_one_cell_is_allowed_and_told(kind, frame, make, tmp_path):
    frame.loc[59, "sample"] = "alone"
    frame.loc[59, "age"] = 33
    path, arguments = make.write(frame, kind, tmp_path)
    cohort = read_cohort(path, **arguments)
    assert cohort.warnings == ("1 sample has a single cell: 'alone'.",)
    assert cohort.sizes[cohort.names.index("alone")] == 1


def test_one_sample_only_is_told(frame, make, tmp_path):
    path, arguments = make.write(frame.assign(sample="all"), "csv", tmp_path)
    cohort = read_cohort(path, representation=MARKERS, **arguments)
    assert cohort.warnings == ("There is only one sample: 'all'.",)


@pytest.mark.parametrize("name", ["cells.h5ad", "cells.csv", "folder", "cells.zarr"])
def test_a_path_that_does_not_exist(name, tmp_path):
    refused("a file that exists", repr(name), "there are none", path=tmp_path / name, sample_key="s")
    (tmp_path / name).with_suffix(".backup").write_text("x")
    refused("did you mean", path=tmp_path / name, sample_key="s")
    refused("there are none", path=tmp_path / "no" / "where" / name, sample_key="s")


@pytest.mark.parametrize("kind", ["h5ad", "csv", "parquet"])
def test_a_file_one_may_not_read(kind, frame, make, tmp_path, monkeypatch):
    path, arguments = make.write(frame, kind, tmp_path)

    # A mode would not keep the superuser out, as whom containers often run.
    def forbidden(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", forbidden)
    refused("no permission to read", path.name, path=path, **arguments)


@pytest.mark.parametrize("name", ["cells.h5ad", "cells.csv", "cells.tsv", "cells.parquet", "cells"])
def test_an_empty_file(name, tmp_path):
    (tmp_path / name).touch()
    refused("is empty", path=tmp_path / name, sample_key="s")


@pytest.mark.parametrize("text", ["\n", "a,b\n", "a,b", " \n1,2\n"])
def test_a_table_without_rows_or_header(text, tmp_path):
    (tmp_path / "cells.csv").write_text(text)
    refused("cells.csv", path=tmp_path / "cells.csv", sample_key="a")


@pytest.mark.parametrize("name", ["cells.h5ad", "cells.parquet"])
def test_a_file_that_is_something_else(name, tmp_path):
    (tmp_path / name).write_text("sample,x\na,1\n")
    refused("is something else", path=tmp_path / name, sample_key="sample")


def test_an_unknown_ending(tmp_path):
    (tmp_path / "cells.xyz").write_text("sample,x\na,1\n")
    refused(".h5ad", ".fcs", "cells.xyz", path=tmp_path / "cells.xyz", sample_key="sample")


def test_a_folder_of_something_else(tmp_path):
    refused("a folder of .fcs files or a zarr store", path=tmp_path, sample_key="sample")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["h5ad", "parquet", "csv.gz"])
def test_a_truncated_file(kind, share, copy, tmp_path):
    path, arguments = copy(kind, tmp_path, 5000)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    refused(path.name, path=path, **arguments)


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("kind", ["h5ad", "parquet", "csv.gz", "zarr", "fcs"])
def test_damaged_bytes_never_end_in_a_foreign_error(kind, seed, copy, tmp_path):
    path, arguments = copy(kind, tmp_path)
    rng = np.random.default_rng(seed)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    file = files[rng.integers(len(files))]
    content = bytearray(file.read_bytes())
    for place in rng.integers(len(content), size=max(1, len(content) // 50)):
        content[place] = rng.integers(256)
    file.write_bytes(content)
    # The damage may be where it does no harm.
    with contextlib.suppress(InvalidInputError):
        assert read_cohort(path, **arguments).points().shape[0] > 0


def test_an_hdf5_file_that_is_no_anndata(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "cells.h5ad", "w") as file:
        file["matrix"] = np.eye(3)
    refused("an AnnData file", "'matrix'", path=tmp_path / "cells.h5ad", sample_key="sample")


def test_an_anndata_without_x(frame, make, tmp_path):
    adata = make.anndata(frame)
    without = anndata.AnnData(obs=adata.obs, obsm=dict(adata.obsm))
    without.write_h5ad(tmp_path / "cells.h5ad")
    for path in (without, tmp_path / "cells.h5ad"):
        refused("a matrix X", "obsm", path=path, sample_key="sample")
        assert read_cohort(path, sample_key="sample", representation="X_twice").n_dimensions == 3


@pytest.mark.parametrize("kind", ["h5ad", "memory", "zarr"])
def test_a_misspelt_representation(kind, frame, make, tmp_path):
    path, arguments = make.write(frame, kind, tmp_path)
    refused("'x_Twce' (did you mean 'X_twice'?)", path=path, representation="x_Twce", **arguments)


def test_a_table_without_numbers(tmp_path):
    (tmp_path / "cells.csv").write_text("sample,type\na,T\nb,B\n")
    refused("at least one column of numbers", path=tmp_path / "cells.csv", sample_key="sample")
    (tmp_path / "cells.csv").write_text("sample,age\na,1\nb,2\na,1\n")
    refused("varies within samples", "'age'", path=tmp_path / "cells.csv", sample_key="sample")


def test_text_among_numbers_is_placed(tmp_path):
    rows = "".join(f"a,{i}.5,{i}\n" for i in range(1500))
    (tmp_path / "cells.csv").write_text(f"sample,x,y\n{rows}b,1,many\n")
    refused("numbers in the column 'y'", "'many' in line 1502", path=tmp_path / "cells.csv", sample_key="sample")
    cohort = read_cohort(tmp_path / "cells.csv", sample_key="sample", annotations=["y"])
    assert cohort.features == ("x",)
    assert cohort.varying == {"y": 1}


@pytest.mark.parametrize("far", [0, 1500])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["cells.csv", "cells.csv.gz"])
def test_a_line_is_counted_as_an_editor_counts_it(name, end, far, tmp_path):
    """With the header, blank lines and line breaks in quotes, wherever the error is and whoever finds it."""
    above = ["", "sample,x,y,note", 'a,1.5,2.5,"two', 'lines"', "", *(f"a,{i}.5,2.5,n" for i in range(far))]
    wrong = {
        "b,many,2.5,n": "numbers in the column 'x', found 'many' in line {}",
        "b,1.5,NA,n": "(first: line {}, sample 'b')",
        ",1.5,2.5,n": "(first: line {})",
        "b,1.5,2.5": "found 3 in line {}",
        'b,1.5,2.5,"n\nn",9': "found 5 in line {}",
    }
    path = tmp_path / name
    for line, expected in wrong.items():
        text = end.join([*above, line.replace("\n", end), "b,3.5,1.5,n", "a,0.5,1.25,n", ""]).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        options = {"representation": ["x", "y"]} if "many" in line else {}
        refused(expected.format(len(above) + 1), path=path, sample_key="sample", **options)


@pytest.mark.parametrize("representation", ["CD4", [], ["CD4", "CD4"], ["condition"]])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_impossible_choice_of_columns(kind, representation, copy, tmp_path):
    path, arguments = copy(kind, tmp_path)
    refused("representation", path=path, representation=representation, **arguments)


def test_columns_of_the_same_name(tmp_path):
    (tmp_path / "cells.csv").write_text("sample,x,x\na,1,2\n")
    refused("distinct column names", "'x'", path=tmp_path / "cells.csv", sample_key="sample")


@pytest.mark.parametrize("beginning", ["a,1", "\n".join(["a,1", "a,2"] * 800)], ids=["near", "far"])
@pytest.mark.parametrize("line", ["a,2,3", "Smith, John,2"])
def test_lines_of_different_length(line, beginning, tmp_path):
    (tmp_path / "cells.csv").write_text(f"sample,x\n{beginning}\n{line}\na,9\n")
    refused(str(3 + beginning.count("\n")), path=tmp_path / "cells.csv", sample_key="sample")


def test_a_table_in_another_encoding(tmp_path):
    (tmp_path / "cells.csv").write_bytes("sample,x\nMüller,1\nMüller,2\n".encode("latin-1"))
    refused("cells.csv", "utf-8", "save it with that encoding", path=tmp_path / "cells.csv", sample_key="sample")


@pytest.mark.parametrize("far", [0, 1500])
def test_a_lone_surrogate_is_no_text(far, tmp_path):
    rows = b"".join(b"a,%d.5\n" % i for i in range(far))
    (tmp_path / "cells.csv").write_bytes(b"sample,x\na,0.5\n" + rows + b"b\xed\xa0\x80,1.5\n")
    refused("table of text in UTF-8", "save it with", path=tmp_path / "cells.csv", sample_key="sample")
    (tmp_path / "sheet.csv").write_bytes(b"sample,dose\na,1\nb,\xed\xa0\x80\n")
    (tmp_path / "cells.csv").write_text("sample,x\na,0.5\na,1.5\nb,2.5\n")
    refused(
        "sample sheet in UTF-8", path=tmp_path / "cells.csv", sample_key="sample", sample_sheet=tmp_path / "sheet.csv"
    )


def test_more_digits_than_a_number_has(tmp_path):
    """They are a name, wherever they are: as a float they would be infinite."""
    long, path, sheet = "9" * 400, tmp_path / "cells.csv", tmp_path / "sheet.csv"
    rows = "".join(f"{'ab'[i % 2]},{5 + i % 2},{i}.5,{i}.25\n" for i in range(40))
    path.write_text(f"sample,age,x,y\n{rows}b,6,{long},0.5\n")
    refused("numbers in the column 'x'", "in line 42", path=path, sample_key="sample")
    path.write_text(f"sample,age,x,y\n{rows}b,6,{long}.5,0.5\n")
    refused("1 such value in 1 cell (first: line 42", path=path, sample_key="sample")
    path.write_text(f"sample,age,x,y\n{rows.replace('b,6', f'{long},{long}')}")
    sheet.write_text(f"sample,dose\na,1\n{long},{long}\n")
    cohort = read_cohort(path, sample_key="sample", sample_sheet=sheet)
    assert cohort.names == (long, "a")
    assert list(map(str, cohort.variable("age"))) == [long, "5"]
    assert list(map(str, cohort.variable("dose"))) == [long, "1"]


def test_a_sample_sheet_with_a_row_without_a_name(tmp_path):
    (tmp_path / "cells.csv").write_text("sample,x\na,0.5\na,1.5\nb,2.5\n")
    (tmp_path / "sheet.csv").write_text("sample,dose\na,1\nb,2\n,3\n")
    expected = "a name in every row of 'sample' in the sample sheet, found 1 missing; name the samples"
    refused(expected, path=tmp_path / "cells.csv", sample_key="sample", sample_sheet=tmp_path / "sheet.csv")


@pytest.mark.parametrize("kind", ["h5ad", "csv"])
def test_many_features_need_a_decision(kind, tmp_path):
    values = np.random.default_rng(0).normal(size=(30, 120))
    if kind == "csv":
        path = tmp_path / "cells.csv"
        pd.DataFrame(values).assign(sample=["a", "b"] * 15).to_csv(path, index=False)
    else:
        path = anndata.AnnData(values, obs=pd.DataFrame({"sample": ["a", "b"] * 15}, index=[str(i) for i in range(30)]))
    refused("120 features", "n_components=50", path=path, sample_key="sample")
    assert read_cohort(path, sample_key="sample", n_components="all").n_dimensions == 120
    assert read_cohort(path, sample_key="sample", n_components=5).n_dimensions == 5
    refused("at most 30", path=path, sample_key="sample", n_components=31)


@pytest.mark.parametrize(
    "bad",
    [
        {"n_components": 0},
        {"n_components": "some"},
        {"cofactor": 5},
        {"cofactor": -1},
        {"annotations": "age"},
        {"annotations": ["agee"]},
        {"random_state": -1},
        {"sample_key": None},
        {"sample_sheet": "nowhere.csv"},
    ],
)
def test_impossible_options(bad, copy, tmp_path):
    path, arguments = copy("csv", tmp_path)
    refused(path=path, **(arguments | bad))


@pytest.mark.parametrize("place", ["X", "obs/age", "obs/sample/codes", "obs/sample/categories", "var/_index"])
def test_a_zarr_store_that_would_unpickle_is_refused(place, frame, make, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "exploded").touch, ()

    path = make.zarr(make.anndata(frame), tmp_path / "cells.zarr", 2)
    if not (path / place / ".zarray").exists():  # texts as a group of values and a mask
        place = f"{place}/values"
    description = json.loads((path / place / ".zarray").read_text())
    description |= {"filters": [{"id": "pickle", "protocol": 4}], "compressor": None}
    (path / place / ".zarray").write_text(json.dumps(description))
    for chunk in (path / place).glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Bomb()))
    (path / ".zmetadata").unlink()
    # zarr refuses since version 3.1; this notices if it ever stops.
    refused("pickle", path=path, sample_key="sample")
    assert not (tmp_path / "exploded").exists()


def test_a_file_that_changed_after_it_was_opened(frame, make, tmp_path):
    path, arguments = make.write(frame, "csv", tmp_path)
    cohort = read_cohort(path, **arguments)
    frame.head(50).to_csv(path, index=False)
    with pytest.raises(InvalidInputError, match="60 cells, found 50; the file has changed"):
        cohort.points()
    path.unlink()
    with pytest.raises(InvalidInputError, match="does not exist"):
        cohort.points()


def test_a_truncated_gzip_is_found_when_it_is_opened(frame, tmp_path):
    path = tmp_path / "cells.csv.gz"
    path.write_bytes(gzip.compress(frame.to_csv(index=False).encode())[:-4])
    refused("cells.csv.gz", "truncated", path=path, sample_key="sample")
