"""Read AnnData (.h5ad, .zarr, in memory) in blocks of rows, reject damaged files, write nothing; for `cohort`.

h5py and zarr read arrays, and anndata reads sparse matrices. This module checks lengths, pointers and indices. With
inconsistent lengths, values would be assigned to wrong cells. With a wrong pointer or index of a sparse matrix,
compiled code would read memory outside the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.validation import check_sparse, import_extra
from heatmover._base.words import counted, distinct, find, find_all, listed, quoted, quoted_path
from heatmover.cohort.reader import LABEL_ROWS, Block, LabelBlock, Reader, Selection, as_float, spans, without_copies
from heatmover.errors import InvalidInputError, argument

DEFAULT_REPRESENTATION = "X_pca"
# Most common embeddings, which are listed first.
USUAL = ("X_umap", "X_tsne")
SPARSE = ("csr_matrix", "csc_matrix")
CONTRADICTION = "the file is inconsistent and must be written again"
CHANGED = "the file has changed since it was read"
# Largest number of columns of a representation. A file stores its number of columns only once, so that the number
# cannot be verified: a damaged number of a billion columns would create a billion names.
MOST_WIDE = 1_000_000
# Average number of values of a matrix to read at a time: 24 MB with their indices.
STORED_VALUES = 2_000_000
# Names under which `of_matrix` finds the layers and the raw matrix.
LAYERS, RAW = "layers/", "raw/X"


@final
@dataclass(frozen=True, eq=False)
class AnnDataReader(Reader):
    """Reader of an AnnData file, or of an AnnData object if ``path`` is empty."""

    path: str
    format: str
    adata: Any
    sample_key: str
    representation: str
    positions: tuple[int, ...] | None = None

    def label_blocks(self) -> Iterator[LabelBlock]:
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
            else:
                # Limit the number of rows, because all columns are read even if few are used.
                used = width if self.positions is None else len(self.positions)
                size = min(size * used, STORED_VALUES) // max(width, 1)
            rows = _rows(element, self.representation)
            for first, last in spans(start, stop, max(size, 1), _chunk_rows(element)):
                block = rows(first, last)
                yield block if self.positions is None else block[:, list(self.positions)]

    @property
    def embeddings(self) -> tuple[str, ...]:
        """Keys of obsm with two columns, except the representation; UMAP and t-SNE are first."""
        with _opened(self.path, self.format, self.adata) as root:
            # List only arrays: a stored table would be read as a whole, and ragged arrays have no shape.
            stored = {key: (root["obsm"] if _in_file(root) else root.obsm)[key] for key in _obsm_keys(root)}
            flat = [key for key, element in stored.items() if tuple(getattr(element, "shape", ()))[1:] == (2,)]
        flat = [key for key in flat if key != self.representation]
        return tuple(sorted(flat, key=lambda key: (USUAL.index(key) if key in USUAL else len(USUAL), key)))

    @property
    def matrices(self) -> tuple[str, ...]:
        """Names of the matrices of genes: layers, raw, and X."""
        with _opened(self.path, self.format, self.adata) as root:
            if not _in_file(root):
                there = {RAW: root.raw is not None, "X": root.X is not None}
                return (*(LAYERS + name for name in root.layers), *(name for name in there if there[name]))
            layers = tuple(LAYERS + name for name in root["layers"]) if "layers" in root else ()
            there = {RAW: "raw" in root and "X" in root["raw"], "X": "X" in root and _encoding(root["X"]) != "null"}
            return (*layers, *(name for name in there if there[name]))

    def of_matrix(self, name: str) -> Reader:
        """Return a reader that yields the values of the same cells in a key of obsm, or in one of ``matrices``."""
        if not name:
            return self
        with _opened(self.path, self.format, self.adata) as root:
            element = _element(root, name)
            _checked_matrix(name, element, _n_cells(root, self.sample_key))
            features = _feature_names(root, name, element)
        return replace(self, representation=name, positions=None, features=features)


def open_anndata(path: str, format: str, adata: Any, selection: Selection) -> AnnDataReader:
    """Check every requested name against the file, and return a reader."""
    sample_key, representation, annotations = selection[:3]
    with _opened(path, format, adata) as root:
        columns = _obs_columns(root)
        find(sample_key, columns, f"{argument('sample_key')} to be a column of obs")
        wanted = [column for column in columns if column != sample_key]
        if annotations is not None:
            wanted = list(find_all(annotations, columns, "every annotation to be a column of obs"))
        n_cells = _n_cells(root, sample_key)
        notes: tuple[str, ...] = ()
        arrays: dict[str, Any] = {}
        if _in_file(root):
            # Skip columns of unknown types, which a future anndata may write, instead of rejecting the file.
            odd = [name for name in wanted if annotations is None and not _known(root["obs"][name])]
            wanted = [name for name in wanted if name not in frozenset(odd)]
            notes = (f"Columns of obs with an unknown type were not read: {listed(odd)}.",) if odd else ()
            for name in (sample_key, *wanted):
                arrays |= _checked_column(root["obs"], name, n_cells)
        key, positions = _choose_representation(root, representation)
        element = _element(root, key)
        arrays |= _checked_matrix(key, element, n_cells)
        features = _feature_names(root, key, element)
        if positions is not None:
            features = tuple(features[i] for i in positions)
        notes += _missing_chunks(arrays)
        if _encoding(element) == "csc_matrix" or isinstance(element, sp.csc_matrix | sp.csc_array):
            notes += (
                "X is stored by columns (CSC), so the whole matrix is read into memory. To avoid this, store X by rows "
                "(CSR).",
            )
        return AnnDataReader(
            path, format, adata, sample_key, key, positions,
            kind=f"{format} file", features=features, annotations=tuple(wanted), notes=notes,
        )  # fmt: skip


def columns_of_cells(path: str, format: str) -> list[str]:
    """Return the names of the columns of obs."""
    with _opened(path, format, None) as root:
        return _obs_columns(root)


def _opened(path: str, format: str, adata: Any) -> AbstractContextManager[Any]:
    """Return a context manager that opens the file for reading and yields its root group, or the AnnData object."""
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
    """Convert a value, which may be stored as bytes, to text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# --- the table of cells ---


def _obs_columns(root: Any) -> list[str]:
    if not _in_file(root):
        return [str(name) for name in root.obs.columns]
    obs = root.get("obs")
    if obs is None or not hasattr(obs, "keys") or "column-order" not in obs.attrs:
        raise InvalidInputError(
            "an AnnData file with a table of cells (obs) in the format of anndata 0.7 or later",
            f"{listed(sorted(root)) or 'nothing'} at the top of "
            f"{quoted_path(str(getattr(root, 'filename', None) or getattr(root, 'store', '')))}",
        )
    return [_text(name) for name in obs.attrs["column-order"]]


def _n_cells(root: Any, sample_key: str) -> int:
    """Return the number of cells: the number of cell names, or of sample labels if there are no cell names."""
    if not _in_file(root):
        return len(root.obs)
    obs = root["obs"]
    return int(_parts(obs[_text(obs.attrs.get("_index", sample_key))])[0].shape[0])


def _known(element: Any) -> bool:
    """Return whether this module can read the storage type of a column of obs."""
    if hasattr(element, "keys"):
        encoding = _encoding(element)
        return encoding == "categorical" or encoding.startswith("nullable-")
    return bool(element.dtype.kind != "V")


def _parts(element: Any) -> list[Any]:
    """Return the arrays of a stored column that have one entry per row."""
    if not hasattr(element, "keys"):
        return [element]
    return [element["codes"]] if _encoding(element) == "categorical" else [element["values"], element["mask"]]


def _checked_column(obs: Any, name: str, n_cells: int) -> dict[str, Any]:
    """Return the array of a column under the name that messages use, or raise if the length of the array is wrong."""
    element, shown = obs[name], f"obs column {quoted(name)}"
    if not _known(element):
        raise InvalidInputError(f"{shown} of a known type", quoted(_encoding(element) or "a group"))
    for array in _parts(element):
        if tuple(array.shape) != (n_cells,):
            length = f"{array.shape[0]:,}" if len(array.shape) == 1 else f"an array of shape {tuple(array.shape)}"
            raise InvalidInputError(f"{counted(n_cells, 'row')} in {shown}, as in obs", length, CONTRADICTION)
    return {shown: _parts(element)[0]}


def _column(root: Any, name: str) -> Callable[[int, int], Any]:
    """Return a function that reads a slice of a column of obs and returns values that pandas can factorize."""
    if not _in_file(root):
        return lambda start, stop: root.obs[name].iloc[start:stop]
    element = root["obs"][name]
    encoding, old = _encoding(element), element.attrs.get("categories")
    if encoding == "categorical" or old is not None:
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        # In files of anndata 0.7, the codes have an attribute that refers to the categories.
        codes, stored = (element["codes"], element["categories"]) if old is None else (element, root[old])
        categories = _names(stored)
        return lambda start, stop: pandas.Categorical.from_codes(np.asarray(codes[start:stop]), categories=categories)
    if encoding.startswith("nullable-"):
        values, mask, gap = element["values"], element["mask"], np.array(None)
        return lambda start, stop: np.where(mask[start:stop], gap, np.asarray(values[start:stop], dtype=object))
    return lambda start, stop: element[start:stop]


def _names(element: Any) -> Any:
    """Return text categories as text, and categories of other types unchanged."""
    values = _parts(element)[0][:]
    return np.array([_text(value) for value in values], dtype=object) if values.dtype.kind in "STO" else values


# --- the matrix ---


def _choose_representation(root: Any, representation: str | Sequence[str] | None) -> tuple[str, tuple[int, ...] | None]:
    """Return the key of the representation ("X" or a key of obsm), and the columns of X that the user named, if any."""
    keys = _obsm_keys(root)
    if representation is None:
        return (DEFAULT_REPRESENTATION if DEFAULT_REPRESENTATION in keys else "X"), None
    if isinstance(representation, str):
        return find(representation, ["X", *keys], f"{argument('representation')} to be 'X' or a key of obsm"), None
    names = _feature_names(root, "X", _element(root, "X"))
    places = find_all(representation, names, f"every name in {argument('representation')} to be one of var_names")
    distinct([name for name in names if name in places], "names of the chosen variables", "call var_names_make_unique")
    return "X", tuple(places[name] for name in representation)


def _obsm_keys(root: Any) -> list[str]:
    return list(root.obsm) if not _in_file(root) else list(root["obsm"]) if "obsm" in root else []


def _element(root: Any, key: str) -> Any:
    """Return the matrix of a representation as it is stored, without reading its values."""
    if not _in_file(root):
        layer = key.removeprefix(LAYERS)
        element = (
            root.X if key == "X" else root.raw.X if key == RAW else root.layers[layer] if layer != key
            else root.obsm[key]
        )  # fmt: skip
    else:
        element = (root if key in ("X", RAW) or key.startswith(LAYERS) else root["obsm"]).get(key)
    if element is None or _encoding(element) == "null":
        raise InvalidInputError(
            "a matrix X", "a file without one", f"choose a key of obsm as {argument('representation')}"
        )
    if _encoding(element) == "dataframe":
        return import_extra("anndata.io", package="anndata", extra="cohort").read_elem(element)
    # Read a sparse matrix of a backed AnnData object from disk, with the same checks as for a file.
    return element.group if hasattr(element, "group") and hasattr(element, "to_memory") else element


def _shape(element: Any) -> tuple[int, ...]:
    """Return the shape of a matrix: an array, a sparse matrix or a table."""
    stored = element.attrs["shape"] if _encoding(element) in SPARSE else element.shape
    return tuple(int(side) for side in np.ravel(stored))


def _checked_matrix(key: str, element: Any, n_cells: int) -> dict[str, Any]:
    """Return the arrays of a matrix under the names that messages use, or raise if the arrays contradict each other."""
    shape, encoding = _shape(element), _encoding(element)
    if len(shape) != 2:
        raise InvalidInputError(f"{key} to be a matrix of cells by features", f"an array of shape {shape}")
    if shape[0] != n_cells:
        raise InvalidInputError(f"{counted(n_cells, 'row')} in {key}, as in obs", f"{shape[0]:,}", CONTRADICTION)
    if "/" not in key and key != "X" and shape[1] > MOST_WIDE:
        raise InvalidInputError(f"at most {MOST_WIDE:,} columns in {key}", f"{shape[1]:,}", CONTRADICTION)
    if encoding in SPARSE:
        _check_pointers(element, key, *(shape if encoding == "csr_matrix" else shape[::-1]))
        return {f"{part} of {key}": element[part] for part in ("data", "indices", "indptr")}
    check_sparse(key, element)
    return {key: element}


def _check_pointers(group: Any, key: str, n_lines: int, width: int) -> None:
    """Raise unless the pointers of a stored sparse matrix increase from 0 to the number of its values."""
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
                f"at most {counted(width, 'value')} between two pointers",
                f"{int(lengths[place]):,} after pointer {start + place} in indptr",
            )


def _damaged(key: str, expected: str, found: str) -> InvalidInputError:
    return InvalidInputError(f"{key} with {expected}", found, "the sparse matrix is damaged; write the file again")


def _feature_names(root: Any, key: str, element: Any) -> tuple[str, ...]:
    """Return the name of each column of a matrix."""
    if key in ("X", RAW) or key.startswith(LAYERS):
        n_columns = _shape(element)[-1]
        if _in_file(root):
            table = root["raw/var" if key == RAW else "var"]
            names = _names(table[_text(table.attrs["_index"])])
        else:
            names = (root.raw if key == RAW else root).var_names
        if len(names) != n_columns:
            raise InvalidInputError(
                f"{counted(len(names), 'column')} in {key}, one for each row of var", f"{n_columns:,}", CONTRADICTION
            )
        return tuple(_text(name) for name in names)
    if hasattr(element, "columns"):
        return tuple(str(name) for name in element.columns)
    return tuple(f"{key} {number}" for number in range(1, _shape(element)[1] + 1))


def _chunk_rows(matrix: Any) -> int:
    """Return the number of rows per chunk of a stored matrix; reading any row reads its whole chunk."""
    steps = getattr(matrix, "shards", None) or getattr(matrix, "chunks", None)
    return steps[0] if isinstance(steps, tuple) and isinstance(steps[0], int) and steps[0] > 0 else 1


def _rows(element: Any, key: str) -> Callable[[int, int], Block]:
    """Return a function that reads a range of rows; a matrix that is stored by columns is loaded completely."""
    encoding = _encoding(element)
    if encoding in SPARSE:
        stored = import_extra("anndata.io", package="anndata", extra="cohort").sparse_dataset(
            element, should_cache_indptr=False
        )
        if encoding == "csr_matrix":
            return lambda start, stop: _floats(_checked(stored[start:stop], key))
        element = stored.to_memory()
        # The constructor accepts indices of any integer type.
        element = _checked(sp.csc_array((element.data, element.indices, element.indptr), shape=element.shape), key)
    if hasattr(element, "iloc"):
        return lambda start, stop: as_float(element.iloc[start:stop].to_numpy())
    matrix = element.tocsr() if isinstance(element, sp.csc_matrix | sp.csc_array) else element

    def rows(start: int, stop: int) -> Block:
        part = matrix[start:stop]
        return _floats(part) if sp.issparse(part) else as_float(part)

    return rows


def _checked(matrix: Any, key: str) -> Any:
    """Return the sparse matrix, or raise if an index is out of range."""
    try:
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise _damaged(key, "indices in range", str(error)) from error
    return matrix


def _floats(matrix: Any) -> sp.csr_array:
    block = sp.csr_array(matrix)
    return without_copies(sp.csr_array((as_float(block.data), block.indices, block.indptr), shape=block.shape))


def _missing_chunks(arrays: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note that names zarr arrays with missing chunks, which zarr silently replaces by a default value."""
    missing = [
        f"{name} ({array.nchunks - array.nchunks_initialized:,} of {counted(array.nchunks, 'chunk')}, "
        f"fill value {_text(array.fill_value)})"
        for name, array in arrays.items()
        if hasattr(array, "nchunks_initialized") and array.nchunks_initialized < array.nchunks
    ]
    if not missing:
        return ()
    return (
        f"Chunks that are not stored were read as the fill value: {'; '.join(missing)}. "
        "This is correct only if these chunks contained only the fill value when the file was written.",
    )
