"""AnnData: .h5ad and .zarr read in slices, and objects in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._validation import check_sparse, import_extra
from heatmover._words import counted, distinct, find, find_all, listed, quoted, quoted_path
from heatmover.cohort.formats.hdf5 import check_heaps, check_object
from heatmover.cohort.formats.stored import (
    check_length,
    check_stored,
    complete,
    missing_chunks,
    read_columns,
    read_rows,
    text_of,
    told,
)
from heatmover.cohort.reader import LABEL_ROWS, Block, Columns, Numbers, as_float, spans, without_copies
from heatmover.errors import InvalidInputError, argument

__all__ = ["DEFAULT_REPRESENTATION", "AnnDataReader", "columns_of_cells", "open_anndata"]

DEFAULT_REPRESENTATION = "X_pca"
SPARSE = ("csr_matrix", "csc_matrix")
CONTRADICTION = "the file contradicts itself; write it again"
CHANGED = "the file has changed since it was read"
# Nothing beside a representation says how wide it is; a damaged width of a billion would be a billion names.
MOST_WIDE = 1_000_000


@final
@dataclass(frozen=True, eq=False)
class AnnDataReader:
    """Cells of an AnnData file, or of an AnnData object if ``path`` is empty."""

    path: str
    format: str
    adata: Any
    sample_key: str
    representation: str
    features: tuple[str, ...]
    annotations: tuple[str, ...]
    positions: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    undecided: bool = False
    decimal: str = ""
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return f"{self.format} file"

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels and the annotation columns of consecutive cells."""
        with _opened(self.path, self.format, self.adata) as root:
            n_cells = _matrix_shape(_element(root, self.representation))[0]
            for start, stop in spans(0, n_cells, LABEL_ROWS):
                labels = _column(root, self.sample_key, start, stop)
                yield labels, {name: _column(root, name, start, stop) for name in self.annotations}, None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells."""
        with _opened(self.path, self.format, self.adata) as root:
            matrix = _sliceable(_element(root, self.representation), self.representation)
            width = len(self.features)
            if self.positions is not None:
                width = _matrix_shape(matrix)[1]
                if _encoding(matrix) not in SPARSE:
                    # All columns of a row are read, however few are wanted.
                    size = max(1, size * len(self.positions) // max(width, 1))
            for first, last in spans(start, stop, size, _chunk_rows(matrix)):
                for block in _rows(matrix, self.representation, first, last):
                    if block.shape[1] != width:
                        raise InvalidInputError(counted(width, "column"), f"{block.shape[1]:,}", CHANGED)
                    yield block if self.positions is None else block[:, list(self.positions)]

    def choose(self, features: tuple[str, ...]) -> AnnDataReader:
        """Return a reader of these features only."""
        places = find_all(features, self.features, "features of the reader")
        own = self.positions or range(len(self.features))
        return replace(self, features=features, positions=tuple(own[place] for place in places.values()))


def open_anndata(
    path: str,
    format: str,
    adata: Any,
    *,
    sample_key: str,
    representation: str | Sequence[str] | None,
    annotations: Sequence[str] | None,
) -> AnnDataReader:
    """Return a reader after checking every name against the file."""
    if format == "h5ad":
        check_heaps(path)
    with _opened(path, format, adata) as root:
        columns = _obs_columns(root)
        find(sample_key, columns, f"{argument('sample_key')} to be a column of obs")
        wanted = [column for column in columns if column != sample_key]
        if annotations is not None:
            wanted = list(find_all(annotations, columns, "every annotation to be a column of obs"))
        key, positions = _choose_representation(root, representation)
        element = _element(root, key)
        missing = list(_check(root, key, element))
        notes: tuple[str, ...] = ()
        if _in_file(root):
            # A column of a type that anndata may write in the future is no reason to refuse the others.
            odd = [name for name in wanted if annotations is None and not _known(root["obs"][name])]
            wanted = [name for name in wanted if name not in frozenset(odd)]
            for name in (sample_key, *wanted):
                missing += _check_column(root, name)
            notes = (f"Columns of obs whose type is not known were not read: {listed(odd)}.",) if odd else ()
            notes += told(missing)
        features = _feature_names(root, key, element)
        if positions is not None:
            features = tuple(features[i] for i in positions)
        if _encoding(element) == "csc_matrix" or isinstance(element, sp.csc_matrix | sp.csc_array):
            notes += ("X is stored by columns (CSC), so all of it is read into memory; store it by rows (CSR).",)
        return AnnDataReader(path, format, adata, sample_key, key, features, tuple(wanted), positions, notes)


def columns_of_cells(path: str, format: str) -> list[str]:
    """Return the names of the columns of obs."""
    if format == "h5ad":
        check_heaps(path)
    with _opened(path, format, None) as root:
        return _obs_columns(root)


def _check(root: Any, key: str, element: Any) -> tuple[str, ...]:
    """Raise if a matrix contradicts itself or the tables beside it; return which parts of it are not stored."""
    shape, n_cells = _matrix_shape(element), _length(root, "obs")
    if len(shape) != 2:
        raise InvalidInputError(f"{key} to be a matrix of cells by features", f"an array of shape {shape}")
    if shape[0] != n_cells:
        raise InvalidInputError(
            f"{counted(n_cells, 'row')} in {key}, as many as obs has", f"{shape[0]:,}", CONTRADICTION
        )
    if key == "X" and shape[1] != (n_features := _length(root, "var")):
        raise InvalidInputError(
            f"{counted(n_features, 'column')} in X, as many as var has rows", f"{shape[1]:,}", CONTRADICTION
        )
    if key != "X" and shape[1] > MOST_WIDE:
        raise InvalidInputError(f"at most {MOST_WIDE:,} columns in {key}", f"{shape[1]:,}", CONTRADICTION)
    encoding = _encoding(element)
    if encoding in SPARSE:
        check_stored(element, key)
        parts = {f"{part} of {key}": element[part] for part in ("data", "indices", "indptr")}
    elif encoding == "dataframe":
        parts = {f"{name} of {key}": element[name] for name in map(text_of, element.attrs["column-order"])}
        for name, part in parts.items():
            check_length(part, n_cells, name, "obs has")
    elif hasattr(element, "attrs"):
        parts = {key: element}
    else:
        check_sparse(key, element)
        return ()
    return tuple(note for name, part in parts.items() if hasattr(part, "chunks") for note in missing_chunks(part, name))


def _check_column(root: Any, name: str) -> tuple[str, ...]:
    """Raise if a column of obs is no list, or of another length than obs; return which parts of it are not stored."""
    element, n_cells, shown = root["obs"][name], _length(root, "obs"), f"obs column {quoted(name)}"
    if not _known(element):
        raise InvalidInputError(f"{shown} of a known type", quoted(_encoding(element) or "a group"))
    parts = _parts(element)
    if _encoding(element) == "categorical":
        complete(element["categories"], f"the categories of {shown}")
    for part in parts:
        check_length(part, n_cells, shown, "obs has")
        if len(part.shape) != 1:
            raise InvalidInputError(f"{shown} to be a list", f"an array of shape {tuple(part.shape)}", CONTRADICTION)
    return tuple(note for part in parts for note in missing_chunks(part, shown))


def _known(element: Any) -> bool:
    """Tell whether a column of obs is stored in a way that is known here."""
    if hasattr(element, "keys"):
        encoding = _encoding(element)
        return encoding == "categorical" or encoding.startswith("nullable-")
    return bool(element.dtype.kind != "V")


def _parts(element: Any) -> list[Any]:
    """Return the arrays of a column of obs that have an entry for each cell."""
    if not hasattr(element, "keys"):
        return [element]
    return [element["codes"]] if _encoding(element) == "categorical" else [element["values"], element["mask"]]


def _length(root: Any, table: str) -> int:
    """Return the number of rows of obs or var."""
    if not _in_file(root):
        return len(getattr(root, table))
    group = root[table]
    if table == "obs" and hasattr(group, "keys") and "_index" not in _attributes(group):
        # Names of millions of cells take more room than the cells; without any, a column tells their number.
        columns = [name for name in _obs_columns(root) if _known(group[name])]
        if columns:
            return int(_parts(group[columns[0]])[0].shape[0])
    return int(_index(root, table).shape[0])


def _index(root: Any, table: str) -> Any:
    """Return the names of the rows of obs or var, not yet read."""
    group = root[table]
    if hasattr(group, "dtype"):  # as anndata before 0.7 wrote it
        raise InvalidInputError(f"{table} as anndata 0.7 and later write it", "one array", "write the file again")
    name = _attributes(group).get("_index")
    if name is None or text_of(name) not in group:
        raise InvalidInputError(f"{table} with the names of its rows", "none", CONTRADICTION)
    found = group[text_of(name)]
    if hasattr(found, "keys"):  # nullable strings
        found = found["values"]
    if len(found.shape) != 1:
        raise InvalidInputError(f"one name for each row of {table}", f"an array of shape {tuple(found.shape)}")
    return found


def _opened(path: str, format: str, adata: Any) -> AbstractContextManager[Any]:
    """Open the file for reading; entering gives a group, or the AnnData object itself."""
    if adata is not None:
        return nullcontext(adata)
    if format == "h5ad":
        h5py = import_extra("h5py", package="h5py", extra="cohort")
        return h5py.File(path, "r")  # type: ignore[no-any-return]
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    return nullcontext(zarr.open_group(path, mode="r"))


def _in_file(root: Any) -> bool:
    return hasattr(root, "attrs")


def _obs_columns(root: Any) -> list[str]:
    if not _in_file(root):
        return [str(name) for name in root.obs.columns]
    obs = root.get("obs")
    if obs is None or not hasattr(obs, "keys") or "column-order" not in _attributes(obs):
        raise InvalidInputError(
            "an AnnData file with a table of cells (obs) as anndata 0.7 and later write it",
            f"{listed(sorted(root)) or 'nothing'} at the top of {quoted_path(str(_place(root)))}",
        )
    columns = [text_of(name) for name in obs.attrs["column-order"]]
    absent = [name for name in columns if name not in obs]
    if absent:
        raise InvalidInputError("every column that obs lists", f"no {listed(absent)}", CONTRADICTION)
    return columns


def _place(root: Any) -> object:
    return getattr(root, "filename", None) or getattr(root, "store", "")


def _choose_representation(root: Any, representation: str | Sequence[str] | None) -> tuple[str, tuple[int, ...] | None]:
    """Return the key, "X" or of obsm, and the columns of X if they were named."""
    keys = list(root["obsm"]) if _in_file(root) and "obsm" in root else [] if _in_file(root) else list(root.obsm)
    if representation is None:
        return (DEFAULT_REPRESENTATION if DEFAULT_REPRESENTATION in keys else "X"), None
    if isinstance(representation, str):
        return find(representation, ["X", *keys], f"{argument('representation')} to be 'X' or a key of obsm"), None
    element = _element(root, "X")
    _check(root, "X", element)
    names = _feature_names(root, "X", element)
    places = find_all(representation, names, f"every name in {argument('representation')} to be one of var_names")
    distinct([name for name in names if name in places], "names of the chosen variables", "call var_names_make_unique")
    return "X", tuple(places[name] for name in representation)


def _element(root: Any, key: str) -> Any:
    """Return the stored matrix of a representation, not yet read."""
    if not _in_file(root):
        found = root.X if key == "X" else root.obsm[key]
    else:
        holder = root if key == "X" else root["obsm"]
        found = holder.get(key)
    if found is None or _encoding(found) == "null":
        raise InvalidInputError(
            "a matrix X", "a file without one", f"choose a key of obsm as {argument('representation')}"
        )
    # A sparse matrix of an object whose values are still on disk is read, and checked, like any file.
    return found.group if hasattr(found, "group") and hasattr(found, "to_memory") else found


def _encoding(element: Any) -> str:
    return text_of(_attributes(element).get("encoding-type", ""))


def _attributes(element: Any) -> Any:
    """Return the attributes of what is stored in a file; nothing for what is in memory."""
    found = getattr(element, "attrs", {})
    if hasattr(element, "id") and hasattr(element, "file"):  # HDF5
        check_object(element)
    return found


def _matrix_shape(element: Any) -> tuple[int, ...]:
    """Return the shape of a stored matrix: an array, a sparse matrix or a table."""
    encoding = _encoding(element)
    if encoding in SPARSE:
        return check_stored(element, "X" if element.name == "/X" else quoted(element.name))
    if encoding == "dataframe":
        index = element[text_of(element.attrs["_index"])]
        return int(_parts(index)[0].shape[0]), len(element.attrs["column-order"])
    return tuple(element.shape)


def _chunk_rows(matrix: Any) -> int:
    """Return how many rows of a matrix are stored as one piece, which is read as a whole."""
    steps = getattr(matrix, "shards", None) or getattr(matrix, "chunks", None)
    return steps[0] if isinstance(steps, tuple) and isinstance(steps[0], int) and steps[0] > 0 else 1


def _feature_names(root: Any, key: str, element: Any) -> tuple[str, ...]:
    """Return the name of each column of a matrix that `_check` has seen."""
    if key == "X":
        if not _in_file(root):
            return tuple(str(name) for name in root.var_names)
        return tuple(text_of(name) for name in complete(_index(root, "var"), "the names of the variables")[:])
    if _encoding(element) == "dataframe":
        return tuple(text_of(name) for name in element.attrs["column-order"])
    if hasattr(element, "columns"):
        return tuple(str(name) for name in element.columns)
    return tuple(f"{key} {number}" for number in range(1, _matrix_shape(element)[1] + 1))


def _column(root: Any, name: str, start: int, stop: int) -> Any:
    """Return a slice of one column of obs, in a form that pandas can factorize."""
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    if not _in_file(root):
        return root.obs[name].iloc[start:stop]
    element = root["obs"][name]
    encoding = _encoding(element)
    if encoding == "categorical":
        return pandas.Categorical.from_codes(
            np.asarray(element["codes"][start:stop]), categories=_decoded(element["categories"], 0, None)
        )
    if encoding.startswith("nullable-"):
        values = np.asarray(_decoded(element["values"], start, stop), dtype=object)
        values[np.asarray(element["mask"][start:stop], dtype=bool)] = None
        return values
    if element.attrs.get("categories") is not None:
        # Files of anndata 0.7 point from the codes to the categories.
        categories = _decoded(complete(root[element.attrs["categories"]], f"the categories of {quoted(name)}"), 0, None)
        return pandas.Categorical.from_codes(np.asarray(element[start:stop]), categories=categories)
    return _decoded(element, start, stop)


def _decoded(element: Any, start: int, stop: int | None) -> Any:
    values = element[start:stop]
    if values.dtype.kind in "STO":
        return np.asarray([text_of(value) if isinstance(value, bytes) else value for value in values], dtype=object)
    return values


def _sliceable(element: Any, key: str) -> Any:
    """Return a matrix whose rows can be read in slices; one stored by columns is read as a whole."""
    if _encoding(element) == "csc_matrix":
        return read_columns(element, key)
    return without_copies(element.tocsr()) if isinstance(element, sp.csc_matrix | sp.csc_array) else element


def _rows(matrix: Any, key: str, start: int, stop: int) -> Iterator[Block]:
    encoding = _encoding(matrix)
    if encoding == "csr_matrix":
        yield from read_rows(matrix, key, start, stop)
        return
    if encoding == "dataframe":
        names = [text_of(name) for name in matrix.attrs["column-order"]]
        yield np.column_stack([as_float(matrix[name][start:stop]) for name in names])
        return
    rows = matrix.iloc[start:stop].to_numpy() if hasattr(matrix, "iloc") else matrix[start:stop]
    if sp.issparse(rows):
        block = sp.csr_array(rows)
        rows = sp.csr_array((as_float(block.data), block.indices, block.indptr), shape=block.shape)
        yield without_copies(rows)
    else:
        yield as_float(rows)
