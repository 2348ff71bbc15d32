"""AnnData (.h5ad, .zarr, in memory): read blocks of rows, and check lengths and indices of damaged files.

h5py and zarr read arrays, anndata reads sparse matrices. Lengths, pointers and indices are checked here: a length that
contradicts another would shift values to other cells, and compiled code would follow a wrong pointer or index of a
sparse matrix into foreign memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.validation import check_sparse, import_extra
from heatmover._base.words import counted, distinct, find, find_all, listed, quoted, quoted_path
from heatmover.cohort.reader import LABEL_ROWS, Block, Columns, Numbers, Reader, as_float, spans, without_copies
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "DEFAULT_REPRESENTATION",
    "AnnDataReader",
    "columns_of_cells",
    "missing_chunks",
    "open_anndata",
    "told",
]

DEFAULT_REPRESENTATION = "X_pca"
SPARSE = ("csr_matrix", "csc_matrix")
CONTRADICTION = "the file contradicts itself; write it again"
CHANGED = "the file has changed since it was read"
# Nothing beside a representation says how wide it is; a damaged width of a billion would be a billion names.
MOST_WIDE = 1_000_000
# Values of a sparse matrix read at once, on average: 24 MB with their indices.
STORED_VALUES = 2_000_000
# Arrays named in a warning.
ARRAYS_SHOWN = 3


@final
@dataclass(frozen=True, eq=False)
class AnnDataReader(Reader):
    """Cells of an AnnData file, or of an AnnData object if ``path`` is empty."""

    path: str
    format: str
    adata: Any
    sample_key: str
    representation: str
    positions: tuple[int, ...] | None = None

    def label_blocks(self) -> Iterator[tuple[Any, Columns, Numbers]]:
        """Yield the sample labels and the annotation columns of consecutive cells."""
        with _opened(self.path, self.format, self.adata) as root:
            labels = _column(root, self.sample_key)
            columns = {name: _column(root, name) for name in self.annotations or ()}
            for start, stop in spans(0, _n_cells(root, self.sample_key), LABEL_ROWS):
                yield labels(start, stop), {name: column(start, stop) for name, column in columns.items()}, None

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells."""
        with _opened(self.path, self.format, self.adata) as root:
            element = _element(root, self.representation)
            n_rows, width = _shape(element)
            if width != (len(self.features) if self.positions is None else width):
                raise InvalidInputError(counted(len(self.features), "column"), f"{width:,}", CHANGED)
            if _encoding(element) in SPARSE:
                size = min(size, STORED_VALUES * n_rows // max(element["data"].shape[0], 1))
            elif self.positions is not None:
                # All columns of a row are read, however few are wanted.
                size = size * len(self.positions) // max(width, 1)
            rows = _rows(element, self.representation)
            for first, last in spans(start, stop, max(size, 1), _chunk_rows(element)):
                block = rows(first, last)
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
    with _opened(path, format, adata) as root:
        columns = _obs_columns(root)
        find(sample_key, columns, f"{argument('sample_key')} to be a column of obs")
        wanted = [column for column in columns if column != sample_key]
        if annotations is not None:
            wanted = list(find_all(annotations, columns, "every annotation to be a column of obs"))
        n_cells = _n_cells(root, sample_key)
        notes: tuple[str, ...] = ()
        missing: list[str] = []
        if _in_file(root):
            # A column of a type that anndata may write in the future is no reason to reject the others.
            odd = [name for name in wanted if annotations is None and not _known(root["obs"][name])]
            wanted = [name for name in wanted if name not in frozenset(odd)]
            notes = (f"Columns of obs whose type is not known were not read: {listed(odd)}.",) if odd else ()
            missing += [note for name in (sample_key, *wanted) for note in _check_column(root["obs"], name, n_cells)]
        key, positions = _choose_representation(root, representation)
        element = _element(root, key)
        missing += _check(key, element, n_cells)
        features = _feature_names(root, key, element)
        if positions is not None:
            features = tuple(features[i] for i in positions)
        notes += told(missing)
        if _encoding(element) == "csc_matrix" or isinstance(element, sp.csc_matrix | sp.csc_array):
            notes += ("X is stored by columns (CSC), so all of it is read into memory; store it by rows (CSR).",)
        return AnnDataReader(
            path, format, adata, sample_key, key, positions,
            kind=f"{format} file", features=features, annotations=tuple(wanted), notes=notes,
        )  # fmt: skip


def columns_of_cells(path: str, format: str) -> list[str]:
    """Return the names of the columns of obs."""
    with _opened(path, format, None) as root:
        return _obs_columns(root)


def _opened(path: str, format: str, adata: Any) -> AbstractContextManager[Any]:
    """Open the file for reading; entering gives a group, or the AnnData object itself."""
    if adata is not None:
        return nullcontext(adata)
    if format == "h5ad":
        h5py = import_extra("h5py", package="h5py", extra="cohort")
        return h5py.File(path, "r")  # type: ignore[no-any-return]
    import zarr

    return nullcontext(zarr.open_group(path, mode="r"))


def _in_file(root: Any) -> bool:
    return hasattr(root, "attrs")


def _encoding(element: Any) -> str:
    return _text(getattr(element, "attrs", {}).get("encoding-type", ""))


def _text(value: Any) -> str:
    """Return text, whether it was stored as text or as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# --- the table of cells ---


def _obs_columns(root: Any) -> list[str]:
    if not _in_file(root):
        return [str(name) for name in root.obs.columns]
    obs = root.get("obs")
    if obs is None or not hasattr(obs, "keys") or "column-order" not in obs.attrs:
        raise InvalidInputError(
            "an AnnData file with a table of cells (obs) as anndata 0.7 and later write it",
            f"{listed(sorted(root)) or 'nothing'} at the top of "
            f"{quoted_path(str(getattr(root, 'filename', None) or getattr(root, 'store', '')))}",
        )
    return [_text(name) for name in obs.attrs["column-order"]]


def _n_cells(root: Any, sample_key: str) -> int:
    """Return the number of cells: of their names, or of the labels in stores that are written without names."""
    if not _in_file(root):
        return len(root.obs)
    obs = root["obs"]
    return int(_parts(obs[_text(obs.attrs.get("_index", sample_key))])[0].shape[0])


def _known(element: Any) -> bool:
    """Tell whether a column of obs is stored in a way that is known here."""
    if hasattr(element, "keys"):
        encoding = _encoding(element)
        return encoding == "categorical" or encoding.startswith("nullable-")
    return bool(element.dtype.kind != "V")


def _parts(element: Any) -> list[Any]:
    """Return the arrays of a column that have an entry for each row."""
    if not hasattr(element, "keys"):
        return [element]
    return [element["codes"]] if _encoding(element) == "categorical" else [element["values"], element["mask"]]


def _check_column(obs: Any, name: str, n_cells: int) -> list[str]:
    """Raise if a column of obs is of another length than obs; return which of its arrays are stored in part."""
    element, shown = obs[name], f"obs column {quoted(name)}"
    if not _known(element):
        raise InvalidInputError(f"{shown} of a known type", quoted(_encoding(element) or "a group"))
    for part in _parts(element):
        _check_length(part, (n_cells,), shown)
    return [note for part in _parts(element) for note in missing_chunks(part, shown)]


def _check_length(array: Any, expected: tuple[int, ...], shown: str) -> None:
    if tuple(array.shape) != expected:
        length = f"{array.shape[0]:,}" if len(array.shape) == 1 else f"an array of shape {tuple(array.shape)}"
        raise InvalidInputError(f"{counted(expected[0], 'row')} in {shown}, as many as obs has", length, CONTRADICTION)


def _column(root: Any, name: str) -> Callable[[int, int], Any]:
    """Return what reads a slice of one column of obs, in a form that pandas can factorize."""
    if not _in_file(root):
        return lambda start, stop: root.obs[name].iloc[start:stop]
    element = root["obs"][name]
    encoding, old = _encoding(element), element.attrs.get("categories")
    if encoding == "categorical" or old is not None:
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        # Files of anndata 0.7 point from the codes to the categories.
        codes, stored = (element["codes"], element["categories"]) if old is None else (element, root[old])
        categories = _names(stored, f"the categories of obs column {quoted(name)}")
        return lambda start, stop: pandas.Categorical.from_codes(np.asarray(codes[start:stop]), categories=categories)
    if encoding.startswith("nullable-"):
        return lambda start, stop: _with_gaps(element["values"][start:stop], element["mask"][start:stop])
    return lambda start, stop: element[start:stop]


def _with_gaps(values: Any, mask: Any) -> Any:
    result = np.asarray(values, dtype=object)
    result[np.asarray(mask, dtype=bool)] = None
    return result


def _names(element: Any, shown: str) -> Any:
    """Return a list of distinct names, or raise if some are not stored: they cannot all be one value for empty ones."""
    array = _parts(element)[0]
    absent = missing_chunks(array, shown) if array.shape[0] > 1 else ()
    if absent:
        raise InvalidInputError(f"all of {shown}", f"a part not stored: {absent[0]}", "write the file again")
    values = array[:]
    return np.array([_text(value) for value in values], dtype=object) if values.dtype.kind in "STO" else values


# --- the matrix ---


def _choose_representation(root: Any, representation: str | Sequence[str] | None) -> tuple[str, tuple[int, ...] | None]:
    """Return the key, "X" or of obsm, and the columns of X if they were named."""
    keys = list(root.obsm) if not _in_file(root) else list(root["obsm"]) if "obsm" in root else []
    if representation is None:
        return (DEFAULT_REPRESENTATION if DEFAULT_REPRESENTATION in keys else "X"), None
    if isinstance(representation, str):
        return find(representation, ["X", *keys], f"{argument('representation')} to be 'X' or a key of obsm"), None
    names = _feature_names(root, "X", _element(root, "X"))
    places = find_all(representation, names, f"every name in {argument('representation')} to be one of var_names")
    distinct([name for name in names if name in places], "names of the chosen variables", "call var_names_make_unique")
    return "X", tuple(places[name] for name in representation)


def _element(root: Any, key: str) -> Any:
    """Return the stored matrix of a representation, not yet read."""
    if not _in_file(root):
        element = root.X if key == "X" else root.obsm[key]
    else:
        element = (root if key == "X" else root["obsm"]).get(key)
    if element is None or _encoding(element) == "null":
        raise InvalidInputError(
            "a matrix X", "a file without one", f"choose a key of obsm as {argument('representation')}"
        )
    # A sparse matrix of an object whose values are still on disk is read, and checked, like any file.
    return element.group if hasattr(element, "group") and hasattr(element, "to_memory") else element


def _shape(element: Any) -> tuple[int, ...]:
    """Return the shape of a matrix: an array, a sparse matrix or a table."""
    encoding = _encoding(element)
    if encoding in SPARSE:
        return tuple(int(side) for side in np.ravel(element.attrs["shape"]))
    if encoding == "dataframe":
        index = element[_text(element.attrs["_index"])]
        return int(_parts(index)[0].shape[0]), len(element.attrs["column-order"])
    return tuple(element.shape)


def _check(key: str, element: Any, n_cells: int) -> list[str]:
    """Raise if a matrix contradicts itself or obs; return which of its arrays are stored in part."""
    shape, encoding = _shape(element), _encoding(element)
    if len(shape) != 2:
        raise InvalidInputError(f"{key} to be a matrix of cells by features", f"an array of shape {shape}")
    if shape[0] != n_cells:
        raise InvalidInputError(
            f"{counted(n_cells, 'row')} in {key}, as many as obs has", f"{shape[0]:,}", CONTRADICTION
        )
    if key != "X" and shape[1] > MOST_WIDE:
        raise InvalidInputError(f"at most {MOST_WIDE:,} columns in {key}", f"{shape[1]:,}", CONTRADICTION)
    if encoding in SPARSE:
        parts = {f"{part} of {key}": element[part] for part in ("data", "indices", "indptr")}
        _check_pointers(element, key, *(shape if encoding == "csr_matrix" else shape[::-1]))
    elif encoding == "dataframe":
        parts = {f"{name} of {key}": element[name] for name in map(_text, element.attrs["column-order"])}
        for name, part in parts.items():
            _check_length(part, (n_cells,), name)
    elif hasattr(element, "attrs") and hasattr(element, "chunks"):
        parts = {key: element}
    else:
        check_sparse(key, element)
        return []
    return [note for name, part in parts.items() for note in missing_chunks(part, name)]


def _check_pointers(group: Any, key: str, n_lines: int, width: int) -> None:
    """Raise unless the pointers of a stored sparse matrix rise from 0 to the number of its values."""
    data, indices, pointers = (group[part] for part in ("data", "indices", "indptr"))
    if {indices.dtype.kind, pointers.dtype.kind} - set("iu"):
        raise _damaged(key, "indices and pointers of whole numbers", f"{indices.dtype} and {pointers.dtype}")
    if indices.shape != data.shape or len(data.shape) != 1:
        raise _damaged(key, "as many indices as values", f"{indices.shape} and {data.shape}")
    if tuple(pointers.shape) != (n_lines + 1,):
        raise _damaged(key, f"{n_lines + 1:,} pointers", f"an indptr of shape {tuple(pointers.shape)}")
    ends = int(pointers[0]), int(pointers[n_lines])
    if ends != (0, data.shape[0]):
        raise _damaged(
            key, f"pointers from 0 to {data.shape[0]:,}, the number of values", f"{ends[0]:,} to {ends[1]:,}"
        )
    for start, stop in spans(0, n_lines, STORED_VALUES):
        lengths = np.diff(np.asarray(pointers[start : stop + 1]).astype(np.int64))
        wrong = np.flatnonzero((lengths < 0) | (lengths > width))
        if wrong.size:
            place = int(wrong[0])
            raise _damaged(
                key,
                f"at most {counted(width, 'value')}, one for each place, between two pointers",
                f"{int(lengths[place]):,} after pointer {start + place} in indptr",
            )


def _damaged(key: str, expected: str, found: str) -> InvalidInputError:
    return InvalidInputError(f"{key} with {expected}", found, "the sparse matrix is damaged; write the file again")


def _feature_names(root: Any, key: str, element: Any) -> tuple[str, ...]:
    """Return the name of each column of a matrix."""
    if key == "X":
        n_columns = _shape(element)[-1]
        if _in_file(root):
            names = _names(root["var"][_text(root["var"].attrs["_index"])], "the names of the variables")
        else:
            names = root.var_names
        if len(names) != n_columns:
            raise InvalidInputError(
                f"{counted(len(names), 'column')} in X, as many as var has rows", f"{n_columns:,}", CONTRADICTION
            )
        return tuple(_text(name) for name in names)
    if _encoding(element) == "dataframe":
        return tuple(_text(name) for name in element.attrs["column-order"])
    if hasattr(element, "columns"):
        return tuple(str(name) for name in element.columns)
    return tuple(f"{key} {number}" for number in range(1, _shape(element)[1] + 1))


def _chunk_rows(matrix: Any) -> int:
    """Return how many rows of a matrix are stored as one chunk, which is read as a whole."""
    steps = getattr(matrix, "shards", None) or getattr(matrix, "chunks", None)
    return steps[0] if isinstance(steps, tuple) and isinstance(steps[0], int) and steps[0] > 0 else 1


def _rows(element: Any, key: str) -> Callable[[int, int], Block]:
    """Return what reads a range of rows; a matrix stored by columns is read as a whole."""
    encoding = _encoding(element)
    if encoding in SPARSE:
        stored = import_extra("anndata.io", package="anndata", extra="cohort").sparse_dataset(
            element, should_cache_indptr=False
        )
        if encoding == "csr_matrix":
            return lambda start, stop: _floats(_checked(stored[start:stop], key))
        element = stored.to_memory()
        # The constructor takes integers of any type, which `to_memory` leaves as they are.
        element = _checked(sp.csc_array((element.data, element.indices, element.indptr), shape=element.shape), key)
    elif encoding == "dataframe":
        names = [_text(name) for name in element.attrs["column-order"]]
        return lambda start, stop: np.column_stack([as_float(element[name][start:stop]) for name in names])
    if hasattr(element, "iloc"):
        return lambda start, stop: as_float(element.iloc[start:stop].to_numpy())
    matrix = element.tocsr() if isinstance(element, sp.csc_matrix | sp.csc_array) else element

    def rows(start: int, stop: int) -> Block:
        part = matrix[start:stop]
        return _floats(part) if sp.issparse(part) else as_float(part)

    return rows


def _checked(matrix: Any, key: str) -> Any:
    """Return a sparse matrix whose indices are within it, or raise."""
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise _damaged(key, "indices within it", str(error)) from error
    return matrix


def _floats(matrix: Any) -> sp.csr_array:
    block = sp.csr_array(matrix)
    return without_copies(sp.csr_array((as_float(block.data), block.indices, block.indptr), shape=block.shape))


# --- chunks that are not there ---


def missing_chunks(array: Any, name: str) -> tuple[str, ...]:
    """Return how many chunks of an array are not stored, if any; they read as a value that stands for empty ones."""
    if not math.prod(array.shape):
        return ()
    steps = getattr(array, "shards", None) or array.chunks or array.shape
    total = math.prod(-(-side // max(int(step), 1)) for side, step in zip(array.shape, steps, strict=True))
    if hasattr(array, "store_path"):
        folder = Path(array.store_path.store.root) / array.store_path.path
        # A chunk is called by its place in the grid, in both versions of the format.
        stored = sum(1 for file in folder.rglob("[0-9]*") if file.is_file())
    elif array.chunks is None:
        # A damaged length claims more than there is.
        stored = int(bool(array.external) or array.id.get_storage_size() >= array.size * array.id.get_type().get_size())
    else:
        stored = array.id.get_num_chunks()
    if stored >= total:
        return ()
    fill = _text(array.fillvalue if hasattr(array, "fillvalue") else array.fill_value)
    return (f"{name} ({total - stored:,} of {counted(total, 'chunk')}, as {fill or quoted(fill)})",)


def told(missing: Sequence[str]) -> tuple[str, ...]:
    """Return one sentence about all arrays that are stored in part."""
    if not missing:
        return ()
    shown = "; ".join(missing[:ARRAYS_SHOWN])
    more = f"; and of {counted(len(missing) - ARRAYS_SHOWN, 'more array')}" if len(missing) > ARRAYS_SHOWN else ""
    return (
        f"Chunks that are not stored were read as empty: {shown}{more}. "
        "That is right only if nothing else was in them when the file was written.",
    )
