"""Damaged files of every format, given to the reader: is each refused in one sentence, or read as what it holds?

Random damages change, cut, move or lose bytes of a file; structured ones change what the file says of itself: pointers
and indices of sparse matrices, shapes, lengths, codes, types, chunks, headers. Each damaged file is read in a process
of its own memory limit, which is replaced when it crashes or takes more than ten seconds. What it gives must be

- a refusal: `InvalidInputError` (the command line makes exit code 2 and that sentence of it);
- the same cohort as before the damage, where it did no harm;
- what a plain reading of the same bytes gives (h5py, zarr, pandas, csv, flowio and loops, written below), where the
  format has no checksum that could tell; or
- another cohort with a warning that tells which part of a store is not there.

Anything else is a failure: a crash, a hang, a foreign error, or a silent difference.

    python benchmarks/soak_damage.py                      # 5,000 random and 500 structured damages
    python benchmarks/soak_damage.py --case fcs:random:17 # one of them again, with what was said
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SECONDS = 10.0
# Reading these files takes less than one gigabyte of address space besides the libraries'.
MEMORY = 6 << 30
CELLS = 60
MARKERS = ["CD4", "CD8", "CD19"]
ACCEPTED = ("refused", "same", "as it says", "told")


class Case(NamedTuple):
    format: str
    kind: str
    number: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


class Verdict(NamedTuple):
    case: Case
    word: str
    detail: str
    seconds: float


# --- whole files ---


def make_frame() -> Any:
    import pandas as pd

    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(["p1", "p2", "p3", "p4"], CELLS))
    values = rng.normal(size=(CELLS, 3)).round(3).astype(np.float32).astype(np.float64)
    values[rng.random((CELLS, 3)) < 0.3] = 0.0  # so that sparse matrices are
    frame = pd.DataFrame({"sample": sample})
    frame["condition"] = frame["sample"].map({"p1": "healthy", "p2": "ill", "p3": "healthy", "p4": "ill"})
    frame["age"] = frame["sample"].map({"p1": 50, "p2": 61, "p3": 47, "p4": 70})
    frame["cluster"] = np.where(values[:, 0] > 0, "T", "B")
    frame["day"] = pd.array(frame["age"] // 10, dtype="Int64")
    frame[MARKERS] = values
    return frame


def make_anndata(matrix: str) -> Any:
    import anndata
    import pandas as pd
    import scipy.sparse as sp

    frame = make_frame()
    obs = frame.drop(columns=MARKERS).set_axis([f"cell{i}" for i in range(CELLS)])
    obs["cluster"] = pd.Categorical(obs["cluster"])
    values = frame[MARKERS].to_numpy()
    forms = {"dense": np.asarray, "csr": sp.csr_matrix, "csc": sp.csc_matrix}
    adata = anndata.AnnData(forms[matrix](values), obs=obs, var=pd.DataFrame(index=MARKERS))
    adata.obsm["X_other"] = sp.csr_matrix(2 * values)
    return adata


def write_h5ad(folder: Path, matrix: str) -> Path:
    make_anndata(matrix).write_h5ad(folder / "cells.h5ad", compression="gzip" if matrix == "csc" else None)
    return folder / "cells.h5ad"


def write_zarr(folder: Path, matrix: str, version: int) -> Path:
    import anndata

    before = anndata.settings.zarr_write_format
    anndata.settings.zarr_write_format = version
    try:
        make_anndata(matrix).write_zarr(folder / "cells.zarr", chunks=(16, 2) if matrix == "dense" else None)
    finally:
        anndata.settings.zarr_write_format = before
    return folder / "cells.zarr"


def write_parquet(folder: Path, *, checksums: bool) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(make_frame(), preserve_index=False)
    options: dict[str, Any] = {"row_group_size": 17, "write_page_checksum": checksums}
    pq.write_table(table, folder / "cells.parquet", compression="snappy" if checksums else "none", **options)
    return folder / "cells.parquet"


def write_csv(folder: Path, form: str) -> Path:
    frame = make_frame()
    marks = {"sep": ";", "decimal": ","} if form == "commas" else {"sep": ",", "decimal": "."}
    text = frame.to_csv(index=False, **marks)
    path = folder / ("cells.csv.gz" if form == "gz" else "cells.csv")
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if form == "gz" else text.encode())
    return path


def write_fcs(folder: Path) -> Path:
    from flowio import create_fcs

    place = folder / "fcs"
    place.mkdir()
    for name, rows in make_frame().groupby("sample"):
        values = np.hstack([np.arange(len(rows))[:, None], rows[MARKERS]])
        with (place / f"{name}.fcs").open("wb") as stream:
            create_fcs(stream, values.ravel().tolist(), ["Time", "A", "B", "C"], ["", *MARKERS])
    return place


def write_checkpoint(folder: Path) -> Path:
    (folder / "input").mkdir()
    write_parquet(folder / "input", checksums=False)
    read_checkpoint(folder / "store.zarr")
    return folder / "store.zarr"


WRITERS: dict[str, Callable[[Path], Path]] = {
    "h5ad": lambda folder: write_h5ad(folder, "dense"),
    "h5ad-csr": lambda folder: write_h5ad(folder, "csr"),
    "h5ad-csc": lambda folder: write_h5ad(folder, "csc"),
    "zarr2": lambda folder: write_zarr(folder, "dense", 2),
    "zarr2-csr": lambda folder: write_zarr(folder, "csr", 2),
    "zarr3": lambda folder: write_zarr(folder, "dense", 3),
    "zarr3-csc": lambda folder: write_zarr(folder, "csc", 3),
    "parquet": lambda folder: write_parquet(folder, checksums=False),
    "parquet-checked": lambda folder: write_parquet(folder, checksums=True),
    "csv": lambda folder: write_csv(folder, "plain"),
    "csv-commas": lambda folder: write_csv(folder, "commas"),
    "csv-gz": lambda folder: write_csv(folder, "gz"),
    "fcs": write_fcs,
    "checkpoint": write_checkpoint,
}
# How many of a hundred damages each format gets.
SHARES = {
    "h5ad": 12, "h5ad-csr": 12, "h5ad-csc": 10, "zarr2": 6, "zarr2-csr": 6, "zarr3": 6, "zarr3-csc": 6,
    "parquet": 9, "parquet-checked": 3, "csv": 7, "csv-commas": 4, "csv-gz": 4, "fcs": 9, "checkpoint": 6,
}  # fmt: skip


# --- damages ---


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def random_damage(path: Path, rng: np.random.Generator) -> str:
    """Change the bytes of one file; say how."""
    files = files_of(path)
    file = files[rng.integers(len(files))]
    content = bytearray(file.read_bytes())
    size = len(content)
    way = rng.choice(
        ["flip", "flip", "flip", "bytes", "bytes", "zeros", "ones", "cut", "insert", "remove", "swap", "lose"]
    )
    at = int(rng.integers(max(size, 1)))
    run = int(min(size - at, rng.integers(1, 65)))
    if way == "lose" and path.is_dir():
        file.unlink()
        return f"lose {file.name}"
    if way == "flip" and size:
        content[at] ^= 1 << int(rng.integers(8))
    elif way == "bytes" and size:
        for place in rng.integers(size, size=rng.integers(1, 1 + max(2, size // 200))):
            content[place] = int(rng.integers(256))
    elif way in ("zeros", "ones"):
        content[at : at + run] = (b"\0" if way == "zeros" else b"\xff") * run
    elif way == "cut":
        del content[at:]
    elif way == "insert":
        content[at:at] = rng.bytes(run)
    elif way == "remove":
        del content[at : at + run]
    else:
        other = int(rng.integers(max(size, 1)))
        run = min(run, size - other)
        content[at : at + run], content[other : other + run] = content[other : other + run], content[at : at + run]
    file.write_bytes(bytes(content))
    return f"{way} at {at} of {size} in {file.name}"


WRONG = (-1, -(2**31), 2**31 - 1, 10**9, 10**12, 3, 0, 1, 7)


def damage_h5ad(path: Path, rng: np.random.Generator) -> str:
    import h5py

    with h5py.File(path, "a") as file:
        return damage_group(file, rng, _replace_h5)


def damage_zarr(path: Path, rng: np.random.Generator) -> str:
    import zarr

    if rng.random() < 0.4:
        return _damage_metadata(path, rng)
    if rng.random() < 0.25:
        chunks = [file for file in files_of(path) if not file.name.startswith(".") and file.suffix != ".json"]
        file = chunks[rng.integers(len(chunks))]
        file.unlink()
        return f"lose the chunk {file.relative_to(path)}"
    # The writer keeps a copy of all descriptions at the top, which would hide that of an array.
    (path / ".zmetadata").unlink(missing_ok=True)
    if (path / "zarr.json").exists():
        content = json.loads((path / "zarr.json").read_text())
        content.pop("consolidated_metadata", None)
        (path / "zarr.json").write_text(json.dumps(content))
    return damage_group(zarr.open_group(path, mode="a"), rng, _replace_zarr)


def damage_group(root: Any, rng: np.random.Generator, put: Callable[[Any, str, Any], None]) -> str:
    """Change what an AnnData file says of itself."""
    matrix = "X" if hasattr(root["X"], "keys") and rng.random() < 0.7 else "obsm/X_other"
    arrays = [name for name in _arrays(root) if name.startswith(("X", "obs", "var"))]
    name = arrays[rng.integers(len(arrays))]
    wrong = WRONG[rng.integers(len(WRONG))]
    ways = ["pointer", "pointer", "last", "index", "index", "copy", "shape", "length", "shorter", "longer", "gone"]
    way = rng.choice([*ways, "attribute", "kind", "codes", "sides", "empty"])
    if way in ("pointer", "last", "index", "copy", "length"):
        part = {"pointer": "indptr", "last": "indptr", "index": "indices", "copy": "indices", "length": "data"}[way]
        values = root[f"{matrix}/{part}"][:].astype(np.int64 if part != "data" else np.float64)
        place = int(rng.integers(len(values)))
        if way == "pointer":
            values[place] = wrong if rng.random() < 0.5 else values[rng.integers(len(values))]
        elif way == "last":
            values[-1] -= int(rng.integers(1, 9))
        elif way == "index":
            values[place] = wrong
        elif way == "copy":
            values[place] = values[max(place - 1, 0)]
        else:
            values = values[: -int(rng.integers(1, 9))]
        put(root, f"{matrix}/{part}", values)
        return f"{way} of {matrix}/{part}"
    if way == "shape":
        sides = np.array(root[matrix].attrs["shape"])
        sides[rng.integers(2)] += int(rng.choice([-1, 1, 5, 10**9, 10**12, -100]))
        root[matrix].attrs["shape"] = sides.tolist()
        return f"shape of {matrix} is {sides.tolist()}"
    if way in ("shorter", "longer", "sides", "empty"):
        values = root[name][...]
        if values.ndim:
            count = int(rng.integers(1, 9))
            values = {
                "shorter": lambda: values[:-count],
                "longer": lambda: np.concatenate([values, values[:count]]),
                "sides": lambda: values.reshape(-1, *([1] * values.ndim)),
                "empty": lambda: values[:0],
            }[str(way)]()
        put(root, name, values)
        return f"{name} {way}"
    if way == "codes":
        codes = root["obs/cluster/codes"][:].astype(np.int64)
        codes[rng.integers(len(codes))] = wrong
        put(root, "obs/cluster/codes", codes)
        return f"a code is {wrong}"
    if way == "kind":
        values = root[name][...]
        changed = (
            values.astype(rng.choice(["f8", "i8", "c16"])) if values.dtype.kind in "iuf" else np.zeros(values.shape)
        )
        put(root, name, changed)
        return f"{name} of kind {changed.dtype}"
    if way == "gone":
        names = [*arrays, "obs", "var", "X", "obs/cluster", "obs/day"]
        gone = names[rng.integers(len(names))]
        del root[gone]
        return f"{gone} gone"
    owners = [owner for owner in ("X", "obs", "var", "obs/cluster", "obs/day", matrix) if dict(root[owner].attrs)]
    owner = owners[rng.integers(len(owners))]
    keys = sorted(root[owner].attrs)
    key = keys[rng.integers(len(keys))]
    if rng.random() < 0.5:
        del root[owner].attrs[key]
        return f"{owner}.{key} gone"
    root[owner].attrs[key] = ["csr_matrix", "csc_matrix", "dataframe", "categorical", "x", 3, [3, 3], ["age"]][
        rng.integers(8)
    ]
    return f"{owner}.{key} changed"


def _arrays(root: Any, above: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted(root):
        item = root[key]
        found += _arrays(item, f"{above}{key}/") if hasattr(item, "keys") else [f"{above}{key}"]
    return found


def _replace_h5(root: Any, name: str, values: Any) -> None:
    attributes = dict(root[name].attrs)
    del root[name]
    root.create_dataset(name, data=values)
    root[name].attrs.update(attributes)


def _replace_zarr(root: Any, name: str, values: Any) -> None:
    attributes = dict(root[name].attrs)
    above, _, last = name.rpartition("/")
    group = root[above] if above else root
    del group[last]
    group.create_array(last, data=np.asarray(values), attributes=attributes)


def _damage_metadata(path: Path, rng: np.random.Generator) -> str:
    """Change one value of one JSON file of a store."""
    files = [
        file for file in files_of(path) if file.name in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    ]
    file = files[rng.integers(len(files))]
    content = json.loads(file.read_text())
    value = [None, 3, [], {}, "x", -1, 10**12, [10**12], [0], True, [10**9, 10**9]][rng.integers(11)]
    if rng.random() < 0.15 or not content:
        file.write_text(json.dumps(value))
        return f"{file.relative_to(path)} is {value}"
    holder, key = content, rng.choice(sorted(content))
    while isinstance(holder[key], dict) and holder[key] and rng.random() < 0.8:
        holder, key = holder[key], rng.choice(sorted(holder[key]))
    holder[key] = value
    file.write_text(json.dumps(content))
    return f"{key} of {file.relative_to(path)} is {value}"


def damage_parquet(path: Path, rng: np.random.Generator) -> str:
    """Change the footer, which says what is where, or write a table of other types."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    way = rng.choice(["footer", "footer", "length", "nested", "decimal", "text"])
    if way == "footer":
        content[len(content) - 8 - int(rng.integers(1, length))] = int(rng.integers(256))
        path.write_bytes(content)
    elif way == "length":
        content[-8:-4] = int(rng.integers(2**32)).to_bytes(4, "little")
        path.write_bytes(content)
    else:
        table = pq.read_table(path)
        column = {
            "nested": lambda: pa.array([[i] for i in range(CELLS)]),
            "decimal": lambda: pa.array(np.arange(CELLS).astype(str)).cast(pa.decimal128(9, 2)),
            "text": lambda: pa.array([None, *map(str, range(1, CELLS))]),
        }[str(way)]()
        pq.write_table(table.append_column("extra", column), path)
    return str(way)


def damage_csv(path: Path, rng: np.random.Generator) -> str:
    """Change one field or line of a table."""
    zipped = path.suffix == ".gz"
    text = (gzip.decompress(path.read_bytes()) if zipped else path.read_bytes()).decode()
    lines = text.splitlines()
    delimiter = ";" if lines[0].count(";") else ","
    row = int(rng.integers(0, len(lines)))
    fields = lines[row].split(delimiter)
    place = int(rng.integers(len(fields)))
    bad = [
        '"',
        "",
        ".",
        "-",
        "#N/A",
        "None",
        "1,5",
        "1.5",
        "NA",
        "1e999",
        "nan",
        "inf",
        "0x1F",
        "\0",
        "\ufeff",
        "'",
        "007",
    ]
    way = rng.choice(["field", "field", "field", "drop", "add", "line", "twice"])
    word = bad[rng.integers(len(bad))]
    if way == "field":
        fields[place] = word
    elif way == "drop":
        del fields[place]
    elif way == "add":
        fields.insert(place, word)
    lines[row] = delimiter.join(fields)
    if way == "line":
        del lines[row]
    elif way == "twice":
        lines.insert(row, lines[row])
    changed = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(changed, mtime=0) if zipped else changed)
    return f"{way} in line {row}, {word!r}"


def damage_fcs(path: Path, rng: np.random.Generator) -> str:
    """Change what the header or the text of an FCS file says, in as many bytes."""
    files = files_of(path)
    file = files[rng.integers(len(files))]
    content = file.read_bytes()
    if rng.random() < 0.3:
        at = int(rng.choice([10, 18, 26, 34, 42, 50]))
        number = f"{int(rng.integers(0, 10 ** int(rng.integers(1, 9)))):>8}".encode()
        file.write_bytes(content[:at] + number + content[at + 8 :])
        return f"header at {at} is {number!r}"
    start, stop = int(content[10:18]), int(content[18:26])
    words = content[start : stop + 1].split(content[start : start + 1])
    place = int(rng.integers(1, len(words) - 1))
    old = words[place]
    new = bytes(rng.choice(list(b"0123456789,LFDIAPNRETB$"), size=len(old)).astype(np.uint8))
    words[place] = new if rng.random() < 0.5 or len(old) < 2 else old[:-1] + new[:1]
    text = content[start : start + 1].join(words)
    file.write_bytes(content[:start] + text + content[stop + 1 :])
    return f"{old!r} is {words[place]!r}"


def damage_checkpoint(path: Path, rng: np.random.Generator) -> str:
    """Change a description, exchange two pieces, or put something else in a piece's place."""
    pieces = sorted(path.rglob("*.npz"))
    way = rng.choice(["manifest", "exchange", "gone", "file", "link", "folder"])
    one, other = (pieces[i] for i in rng.integers(len(pieces), size=2))
    if way == "manifest":
        content = bytearray((path / "manifest.json").read_bytes())
        at = int(rng.integers(len(content)))
        content[at] = int(rng.integers(256))
        (path / "manifest.json").write_bytes(content)
        return f"byte {at} of the manifest is another"
    if way == "exchange" and one != other:
        place = path / ".heatmover-exchange"
        one.rename(place)
        other.rename(one)
        place.rename(other)
        return f"{one.relative_to(path)} and {other.relative_to(path)} exchanged"
    if way == "folder":
        (path / ".lock").unlink(missing_ok=True)
        (path / ".lock").mkdir()
        return "a folder named .lock"
    one.unlink()
    if way == "file":
        one.write_text("x")
    elif way == "link":
        one.symlink_to(other)
    return f"{one.relative_to(path)} {way}"


STRUCTURED: dict[str, Callable[[Path, np.random.Generator], str]] = {
    "h5ad": damage_h5ad,
    "zarr": damage_zarr,
    "parquet": damage_parquet,
    "csv": damage_csv,
    "fcs": damage_fcs,
    "checkpoint": damage_checkpoint,
}


def family(format: str) -> str:
    return next(name for name in STRUCTURED if format.startswith(name))


# --- what the reader gives ---


def read(path: Path, format: str) -> dict[str, Any]:
    """Read with heatmover; plain values that can be compared."""
    if format == "checkpoint":
        return read_checkpoint(path)
    from heatmover.cohort import read_cohort

    cohort = read_cohort(path, sample_key=None if format == "fcs" else "sample")
    found = {
        "labels": cohort.labels().tolist(),
        "features": list(cohort.features),
        "points": cohort.points(),
        "variables": {name: plain(column) for name, column in cohort.samples.items()},
        "varying": sorted(cohort.varying),
        "told": " ".join(cohort.warnings),
    }
    if format in ("h5ad-csr", "zarr3-csc"):  # a sparse matrix beside X
        other = read_cohort(path, sample_key="sample", representation="X_other", annotations=[])
        found["other"], found["told"] = other.points(), " ".join((found["told"], *other.warnings))
    return found


def read_checkpoint(path: Path) -> dict[str, Any]:
    from heatmover.cohort import read_cohort
    from heatmover.study.scale import compare_cohort

    cohort = read_cohort(path.parent / "input" / "cells.parquet", sample_key="sample")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = compare_cohort(cohort, landmarks=20, n_neighbors=5, checkpoint=path, resume=True, n_jobs=1)
    return {"labels": list(found.names), "points": np.asarray(found.distances), "told": ""}


def plain(values: Any) -> list[Any]:
    return [_plain(value) for value in list(values)]


def _plain(value: Any) -> Any:
    if value is None or value != value or str(value) in ("<NA>", "NaT"):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return float(value) if isinstance(value, bool | int | float) else str(value)


# --- what is in the file, read plainly ---


def plainly(path: Path, format: str) -> dict[str, Any]:
    """Read without heatmover what the bytes say; raise if they say nothing."""
    kind = family(format)
    if kind == "h5ad":
        import h5py

        with h5py.File(path, "r") as root:
            return plain_anndata(root, other=format == "h5ad-csr")
    if kind == "zarr":
        import zarr

        return plain_anndata(zarr.open_group(path, mode="r"), other=format == "zarr3-csc")
    if kind == "parquet":
        import pandas as pd

        return plain_table(dict(pd.read_parquet(path).items()))
    if kind == "csv":
        return plain_csv(path)
    if kind == "fcs":
        return plain_fcs(path)
    raise ValueError("nothing but a checkpoint knows what is in it")


def plain_anndata(root: Any, *, other: bool) -> dict[str, Any]:
    obs = root["obs"]
    columns = {_plain(name): plain_column(obs[_plain(name)]) for name in obs.attrs["column-order"]}
    n_cells = len(plain_column(obs[_plain(obs.attrs["_index"])]))
    var = root["var"]
    features = [str(name) for name in plain_column(var[_plain(var.attrs["_index"])])]
    points = plain_matrix(root["X"])
    assert points.shape == (n_cells, len(features))
    assert all(len(column) == n_cells for column in columns.values())
    found = {"labels": [str(label) for label in columns["sample"]], "features": features, "points": points}
    found |= plain_variables(columns)
    if other:
        found["other"] = plain_matrix(root["obsm/X_other"])
        assert len(found["other"]) == n_cells
    return found


def plain_column(element: Any) -> list[Any]:
    if not hasattr(element, "keys"):
        assert len(element.shape) == 1
        return plain(element[:])
    if "codes" in element:
        categories = plain(element["categories"][:])
        codes = element["codes"][:].tolist()
        assert all(isinstance(code, int) and -1 <= code < len(categories) for code in codes)
        assert len(set(categories)) == len(categories)
        return [None if code < 0 else categories[code] for code in codes]
    values, mask = plain(element["values"][:]), element["mask"][:].tolist()
    assert len(values) == len(mask)
    return [None if hidden else value for value, hidden in zip(values, mask, strict=True)]


def plain_matrix(element: Any) -> np.ndarray:
    if not hasattr(element, "keys"):
        return np.asarray(element[:], dtype=float)
    rows, columns = (int(side) for side in element.attrs["shape"])
    by_rows = _plain(element.attrs["encoding-type"]) == "csr_matrix"
    data, indices, pointers = (element[name][:].tolist() for name in ("data", "indices", "indptr"))
    assert rows * columns < 10**6
    assert (pointers[0], pointers[-1], len(data)) == (0, len(data), len(indices))
    assert len(pointers) == (rows if by_rows else columns) + 1
    result = np.zeros((rows, columns))
    for line in range(len(pointers) - 1):
        assert pointers[line] <= pointers[line + 1]
        for place in range(pointers[line], pointers[line + 1]):
            assert 0 <= indices[place] < (columns if by_rows else rows)
            result[(line, indices[place]) if by_rows else (indices[place], line)] += data[place]
    return result


def plain_variables(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Divide columns into those that are constant within samples, with a value for each, and the others."""
    samples = [str(label) for label in columns["sample"]]
    constant: dict[str, Any] = {}
    varying = []
    for name, values in columns.items():
        pairs = {(sample, value) for sample, value in zip(samples, values, strict=True)}
        if name != "sample" and len(pairs) == len(set(samples)):
            constant[name] = [dict(pairs)[sample] for sample in sorted(set(samples))]
        elif name != "sample":
            varying.append(name)
    return {"variables": constant, "varying": sorted(varying)}


def plain_table(table: dict[str, Any]) -> dict[str, Any]:
    """Divide the columns of a table; features are numbers that vary, without whole ones if there are others."""
    columns = {name: plain(values) for name, values in table.items()}
    divided = plain_variables(columns)
    numbers = [
        name
        for name in divided["varying"]
        if all(isinstance(value, float) for value in columns[name] if value is not None)
        and not any(isinstance(value, bool) for value in list(table[name]))
        and any(value is not None for value in columns[name])
    ]
    finite = {name: [value for value in columns[name] if abs(value or 0) < np.inf] for name in numbers}
    fractions = [name for name in numbers if any((value or 0) % 1 for value in finite[name])]
    features = [name for name in columns if name in (fractions or numbers)]
    points = np.array([[np.nan if value is None else value for value in columns[name]] for name in features]).T
    divided["varying"] = sorted(set(divided["varying"]) - set(features))
    return {"labels": [str(label) for label in table["sample"]], "features": features, "points": points, **divided}


MISSING = {"", "NA", "N/A", "<NA>", "NaN", "nan", "null", "NULL"}


def plain_csv(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    first = text.splitlines()[0]
    delimiter = max(",;\t", key=first.count)
    header, *lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line]
    assert all(len(line) == len(header) for line in lines)
    assert len(set(header)) == len(header)
    decimal = "," if "," in text.replace(delimiter, "") and delimiter == ";" else "."
    table: dict[str, list[Any]] = {}
    for name, values in zip(header, map(list, zip(*lines, strict=True)), strict=True):
        known = [None if value.strip() in MISSING else value for value in values]
        table[name] = known if name == "sample" else _numbers(known, decimal)
    return plain_table(table)


def _numbers(values: list[Any], decimal: str) -> list[Any]:
    try:
        numbers = [None if value is None else float(value.strip().replace(decimal, ".")) for value in values]
    except ValueError:
        return values
    digits = [value.strip().lstrip("+-") for value in values if value is not None]
    padded = any(text[:1] == "0" and text[1:2].isdigit() for text in digits)  # a name, such as 007
    return values if padded else numbers


def plain_fcs(path: Path) -> dict[str, Any]:
    import flowio

    labels: list[str] = []
    parts, features = [], []
    for file in sorted(path.glob("*.fcs")):
        data = flowio.FlowData(str(file))
        values = data.as_array()
        assert len(values) == data.event_count
        assert sorted(data.channels) == list(range(1, values.shape[1] + 1))
        names = [marker.strip() or name.strip() for name, marker in zip(data.pnn_labels, data.pns_labels, strict=True)]
        features = features or [name for name in names if name.lower() != "time"]
        labels += [file.stem] * len(values)
        parts.append(values[:, [names.index(name) for name in features]])
    return {"labels": labels, "features": features, "points": np.concatenate(parts), "variables": {}, "varying": []}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare what two readings have in common; every key of the plain one."""
    return all(_same(one[key], value) for key, value in other.items() if key != "told")


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        with np.errstate(over="ignore"):
            one, other = (np.asarray(values, dtype=np.float32) for values in (one, other))
        return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=True))
    return bool(one == other)


# --- the process that reads ---


def work(connection: Any) -> None:
    """Answer requests until there are none: read a path in one of two ways."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - of libraries that print
    from heatmover.errors import InvalidInputError

    while True:
        try:
            path, format, way = connection.recv()
        except EOFError:
            return
        try:
            answer = ("read", (read if way == "heatmover" else plainly)(Path(path), format))
        except InvalidInputError as error:
            answer = ("refused", str(error))
        except BaseException as error:
            answer = ("foreign", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}")
        connection.send(answer)


class Worker:
    """A process that reads files and is replaced when it dies or takes too long."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None

    def ask(self, path: Path, format: str, way: str, seconds: float = SECONDS) -> tuple[str, Any]:
        if self._process is None:
            self._begin()
        try:
            self._here.send((str(path), format, way))
            if not self._here.poll(seconds):
                self.end()
                return "hang", f"more than {seconds:g} s"
            return self._here.recv()
        except (EOFError, ConnectionError):
            self._process.join(5)
            code = self._process.exitcode
            self.end()
            return "crash", f"exit code {code}"

    def _begin(self) -> None:
        self._here, there = self._context.Pipe()
        self._process = self._context.Process(target=work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def end(self) -> None:
        if self._process is not None:
            self._here.close()
            self._process.kill()
            self._process.join()
            self._process = None


class Soak:
    """Whole files, their right answers, and the processes that read damaged copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader, self.oracle = Worker(), Worker()
        self._whole: dict[str, tuple[Path, dict[str, Any]]] = {}

    def whole(self, format: str) -> tuple[Path, dict[str, Any]]:
        if format not in self._whole:
            place = self.folder / format
            place.mkdir()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                path = WRITERS[format](place)
            word, right = self.reader.ask(path, format, "heatmover", 600)
            assert word == "read", (format, word, right)
            if format != "checkpoint":
                word, plainly_read = self.oracle.ask(path, format, "plain", 600)
                assert word == "read", (format, word, plainly_read)
                assert same(right, plainly_read), f"the plain reading of {format} is another"
            self._whole[format] = (path, right)
        return self._whole[format]

    def judge(self, case: Case) -> Verdict:
        """Damage a copy, read it, and say what came of it."""
        path, right = self.whole(case.format)
        place = self.folder / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(path.parent, place, symlinks=True)
        damaged = place / path.name
        numbers = [case.number, sorted(WRITERS).index(case.format), case.kind == "random"]
        rng = np.random.default_rng(numbers)
        damage = random_damage if case.kind == "random" else STRUCTURED[family(case.format)]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                detail = damage(damaged, rng)
        except Exception as error:  # a structured damage that this file has no place for
            return Verdict(case, "same", f"no damage: {error!r}", 0.0)
        begun = time.perf_counter()
        word, answer = self.reader.ask(damaged, case.format, "heatmover")
        seconds = time.perf_counter() - begun
        if word != "read":
            return Verdict(case, word, f"{detail}: {answer}", seconds)
        if same(answer, right):
            return Verdict(case, "same", detail, seconds)
        if case.format != "checkpoint":
            # The damaged file again: reading a store may not change it, but resuming does.
            told, read_plainly = self.oracle.ask(damaged, case.format, "plain")
            if told == "read" and same(answer, read_plainly):
                lost = "not stored" in answer["told"]
                return Verdict(case, "told" if lost else "as it says", detail, seconds)
            core = ("labels", "features", "points")
            if "were not read" in answer["told"] and all(_same(answer[key], right[key]) for key in core):
                return Verdict(case, "told", detail, seconds)
            if told != "read":
                detail += f" [plainly: {str(read_plainly).splitlines()[0][:100]}]"
            else:
                keys = [key for key, value in read_plainly.items() if not _same(answer[key], value)]
                detail += f" [plainly other {', '.join(keys)}]"
        return Verdict(case, "silent", detail, seconds)

    def end(self) -> None:
        self.reader.end()
        self.oracle.end()


def cases(n_random: int, n_structured: int, formats: list[str], seed: int = 0) -> Iterator[Case]:
    """Yield the damages, formats in turn by their shares."""
    shares = np.array([SHARES[format] for format in formats], dtype=float)
    for kind, count in (("structured", n_structured), ("random", n_random)):
        # The same formats for the first cases, however many follow.
        chosen = np.random.default_rng([seed, kind == "random"]).choice(
            len(formats), size=count, p=shares / shares.sum()
        )
        for number, format in enumerate(chosen.tolist()):
            yield Case(formats[format], kind, seed * 10**6 + number)


@contextlib.contextmanager
def soak() -> Iterator[Soak]:
    with tempfile.TemporaryDirectory() as folder:
        found = Soak(Path(folder))
        try:
            yield found
        finally:
            found.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=5_000, help="random damages")
    parser.add_argument("--structured", type=int, default=500, help="structured damages")
    parser.add_argument("--formats", nargs="+", choices=list(WRITERS), default=list(WRITERS))
    parser.add_argument("--seed", type=int, default=0, help="another seed, other damages")
    parser.add_argument("--case", help="one case, such as fcs:random:17")
    arguments = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    failed, slowest = [], 0.0
    with soak() as run:
        if arguments.case:
            format, kind, number = arguments.case.split(":")
            print(*run.judge(Case(format, kind, int(number))), sep="\n")
            return
        for case in cases(arguments.random, arguments.structured, arguments.formats, arguments.seed):
            verdict = run.judge(case)
            counts.setdefault(case.format, Counter())[verdict.word] += 1
            slowest = max(slowest, verdict.seconds)
            if verdict.word not in ACCEPTED:
                failed.append(verdict)
                print(f"{verdict.word:8} {case}: {verdict.detail[:1500]}", flush=True)
    words = (*ACCEPTED, "crash", "hang", "foreign", "silent")
    print(f"{'format':16}" + "".join(f"{word:>12}" for word in words))
    for format, found in counts.items():
        print(f"{format:16}" + "".join(f"{found[word]:>12}" for word in words))
    total = sum(counts.values(), Counter())
    print(f"{'all':16}" + "".join(f"{total[word]:>12}" for word in words))
    print(f"slowest {slowest:.1f} s; {len(failed)} failures")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
