"""AnnData: .h5ad and .zarr read in slices, and objects in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from heatmover._validation import import_extra
from heatmover.cohort._reader import LABEL_ROWS, Block, Columns, as_float, spans
from heatmover.cohort._words import distinct, find, listed, quoted_path
from heatmover.errors import InvalidInputError

__all__ = ["AnnDataReader", "open_anndata"]

DEFAULT_REPRESENTATION = "X_pca"


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
    textual: bool = False

    @property
    def kind(self) -> str:
        """What the file is, in words."""
        return f"{self.format} file"

    def label_blocks(self) -> Iterator[tuple[Any, Columns]]:
        """Yield the sample labels and the annotation columns of consecutive cells."""
        with _opened(self.path, self.format, self.adata) as root:
            n_cells = _matrix_shape(_element(root, self.representation))[0]
            for start, stop in spans(0, n_cells, LABEL_ROWS):
                labels = _column(root, self.sample_key, start, stop)
                yield labels, {name: _column(root, name, start, stop) for name in self.annotations}

    def blocks(self, start: int, stop: int, size: int) -> Iterator[Block]:
        """Yield the values of a range of cells."""
        with _opened(self.path, self.format, self.adata) as root:
            matrix = _sliceable(_element(root, self.representation))
            for first, last in spans(start, stop, size):
                block = _rows(matrix, first, last)
                yield block if self.positions is None else block[:, list(self.positions)]

    def choose(self, features: tuple[str, ...]) -> AnnDataReader:
        """Return a reader of these features only."""
        return replace(self, features=features, positions=tuple(map(self.features.index, features)))


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
        find(sample_key, columns, "sample_key to be a column of obs")
        wanted = [column for column in columns if column != sample_key] if annotations is None else list(annotations)
        for name in wanted:
            find(name, columns, "every annotation to be a column of obs")
        key, positions = _choose_representation(root, representation)
        element = _element(root, key)
        features = _feature_names(root, key, element)
        if positions is not None:
            features = tuple(features[i] for i in positions)
        notes: tuple[str, ...] = ()
        if _encoding(element) == "csc_matrix" or isinstance(element, sp.csc_matrix | sp.csc_array):
            notes = ("X is stored by columns (CSC), so all of it is read into memory; store it by rows (CSR).",)
        return AnnDataReader(path, format, adata, sample_key, key, features, tuple(wanted), positions, notes)


def _opened(path: str, format: str, adata: Any) -> AbstractContextManager[Any]:
    """Open the file for reading; entering gives a group, or the AnnData object itself."""
    if adata is not None:
        return nullcontext(adata)
    if format == "h5ad":
        h5py = import_extra("h5py", package="anndata", extra="cohort")
        return h5py.File(path, "r")  # type: ignore[no-any-return]
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    return nullcontext(zarr.open_group(path, mode="r"))


def _in_file(root: Any) -> bool:
    return hasattr(root, "attrs")


def _obs_columns(root: Any) -> list[str]:
    if not _in_file(root):
        return [str(name) for name in root.obs.columns]
    obs = root.get("obs")
    if obs is None or not hasattr(obs, "keys") or "column-order" not in obs.attrs:
        raise InvalidInputError(
            "an AnnData file with a table of cells (obs) as anndata 0.7 and later write it",
            f"{listed(sorted(root)) or 'nothing'} at the top of {quoted_path(str(_place(root)))}",
        )
    return [_text(name) for name in obs.attrs["column-order"]]


def _place(root: Any) -> object:
    return getattr(root, "filename", None) or getattr(root, "store", "")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _choose_representation(root: Any, representation: str | Sequence[str] | None) -> tuple[str, tuple[int, ...] | None]:
    """Return the key, "X" or of obsm, and the columns of X if they were named."""
    keys = list(root["obsm"]) if _in_file(root) and "obsm" in root else [] if _in_file(root) else list(root.obsm)
    if representation is None:
        return (DEFAULT_REPRESENTATION if DEFAULT_REPRESENTATION in keys else "X"), None
    if isinstance(representation, str):
        return find(representation, ["X", *keys], "representation to be 'X' or a key of obsm"), None
    names = _feature_names(root, "X", _element(root, "X"))
    for name in representation:
        find(name, names, "every name in representation to be one of var_names")
    chosen = set(representation)
    distinct([name for name in names if name in chosen], "names of the chosen variables", "call var_names_make_unique")
    return "X", tuple(names.index(name) for name in representation)


def _element(root: Any, key: str) -> Any:
    """Return the stored matrix of a representation, not yet read."""
    if not _in_file(root):
        found = root.X if key == "X" else root.obsm[key]
    else:
        holder = root if key == "X" else root["obsm"]
        found = holder.get(key)
    if found is None or _encoding(found) == "null":
        raise InvalidInputError("a matrix X", "a file without one", "choose a key of obsm as representation")
    return found


def _encoding(element: Any) -> str:
    attributes: Any = getattr(element, "attrs", {})
    return _text(attributes.get("encoding-type", ""))


def _matrix_shape(element: Any) -> tuple[int, ...]:
    """Return the shape of a stored matrix: an array, a sparse matrix or a table."""
    encoding = _encoding(element)
    if encoding in ("csr_matrix", "csc_matrix"):
        return tuple(int(side) for side in element.attrs["shape"])
    if encoding == "dataframe":
        index = element[_text(element.attrs["_index"])]
        return int(index.shape[0]), len(element.attrs["column-order"])
    return tuple(element.shape)


def _feature_names(root: Any, key: str, element: Any) -> tuple[str, ...]:
    shape = _matrix_shape(element)
    if len(shape) != 2:
        raise InvalidInputError(f"{key} to be a matrix of cells by features", f"an array of shape {shape}")
    if key == "X":
        if not _in_file(root):
            return tuple(str(name) for name in root.var_names)
        index = root["var"][_text(root["var"].attrs["_index"])]
        return tuple(_text(name) for name in index[:])
    if _encoding(element) == "dataframe":
        return tuple(_text(name) for name in element.attrs["column-order"])
    if hasattr(element, "columns"):
        return tuple(str(name) for name in element.columns)
    return tuple(f"{key} {number}" for number in range(1, shape[1] + 1))


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
        categories = _decoded(root[element.attrs["categories"]], 0, None)
        return pandas.Categorical.from_codes(np.asarray(element[start:stop]), categories=categories)
    return _decoded(element, start, stop)


def _decoded(element: Any, start: int, stop: int | None) -> Any:
    values = element[start:stop]
    if values.dtype.kind in "STO":
        return np.asarray([_text(value) if isinstance(value, bytes) else value for value in values], dtype=object)
    return values


def _sliceable(element: Any) -> Any:
    """Return a matrix whose rows can be read in slices; one stored by columns is read as a whole."""
    if _encoding(element) == "csc_matrix":
        parts = tuple(element[name][:] for name in ("data", "indices", "indptr"))
        return sp.csc_array(parts, shape=_matrix_shape(element)).tocsr()
    return element.tocsr() if isinstance(element, sp.csc_matrix | sp.csc_array) else element


def _rows(matrix: Any, start: int, stop: int) -> Block:
    encoding = _encoding(matrix)
    if encoding == "csr_matrix":
        pointers = np.asarray(matrix["indptr"][start : stop + 1]).astype(np.int64)
        first, last = int(pointers[0]), int(pointers[-1])
        data, indices = matrix["data"][first:last], np.asarray(matrix["indices"][first:last])
        shape = (stop - start, _matrix_shape(matrix)[1])
        return sp.csr_array((as_float(data), indices, pointers - first), shape=shape)
    if encoding == "dataframe":
        names = [_text(name) for name in matrix.attrs["column-order"]]
        return np.column_stack([as_float(matrix[name][start:stop]) for name in names])
    rows = matrix.iloc[start:stop].to_numpy() if hasattr(matrix, "iloc") else matrix[start:stop]
    if sp.issparse(rows):
        block = sp.csr_array(rows)
        return sp.csr_array((as_float(block.data), block.indices, block.indptr), shape=block.shape)
    return as_float(rows)
