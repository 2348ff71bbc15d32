"""An AnnData of samples written as an h5ad file, element by element, as the format describes them.

The package anndata takes half a second to import, and would write the same. What it knows beyond the elements here is
left to it. See https://anndata.readthedocs.io/en/stable/fileformat-prose.html.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from heatmover._validation import import_extra

__all__ = ["write_anndata"]

# Kinds of numbers that an array may hold, and of texts.
NUMBERS, TEXTS = "biuf", "OU"


def write_anndata(file: Any, parts: Mapping[str, Any]) -> None:
    """Write an AnnData without X into an open HDF5 file.

    Parameters
    ----------
    file
        From ``h5py``, empty.
    parts
        ``obs``, a DataFrame; ``obsm``, ``obsp`` and ``uns``, mappings.

    Examples
    --------
    >>> import io
    >>> import h5py, pandas
    >>> with h5py.File(io.BytesIO(), "w") as file:
    ...     write_anndata(file, {"obs": pandas.DataFrame(index=["s1"]), "obsm": {}, "obsp": {}, "uns": {"k": 5}})
    ...     sorted(file), int(file["uns/k"][()])
    (['layers', 'obs', 'obsm', 'obsp', 'uns', 'var', 'varm', 'varp'], 5)
    """
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    _encode(file, "anndata", "0.1.0")
    empty: dict[str, Any] = {"var": pandas.DataFrame(index=[]), "varm": {}, "varp": {}, "layers": {}}
    for name, value in {**parts, **empty}.items():
        _write(file, name, value)


def _write(group: Any, name: str, value: Any) -> None:
    """Write one element, whatever it is."""
    array = np.asarray(value) if isinstance(value, list) else value
    if isinstance(array, Mapping):
        made = _encode(group.create_group(name), "dict", "0.1.0")
        for key, element in array.items():
            _write(made, str(key), element)
    elif isinstance(array, str):
        _encode(group.create_dataset(name, data=array, dtype=_text_type()), "string", "0.2.0")
    elif isinstance(array, bool | int | float | np.number | np.bool_):
        _encode(group.create_dataset(name, data=array), "numeric-scalar", "0.2.0")
    elif isinstance(array, np.ndarray) and array.dtype.kind in NUMBERS:
        _encode(group.create_dataset(name, data=array), "array", "0.2.0")
    elif _holds_texts(array):
        _encode(group.create_dataset(name, data=array.astype(object), dtype=_text_type()), "string-array", "0.2.0")
    elif isinstance(array, sp.csr_matrix):
        _write_sparse(group.create_group(name), array)
    elif _is_plain_table(array):
        _write_table(group.create_group(name), array)
    else:
        import_extra("anndata.io", package="anndata", extra="cohort").write_elem(group, name, value)


def _encode(element: Any, kind: str, version: str) -> Any:
    """Say what an element is, as every reader asks."""
    element.attrs["encoding-type"] = kind
    element.attrs["encoding-version"] = version
    return element


def _text_type() -> Any:
    return import_extra("h5py", package="anndata", extra="cohort").string_dtype()


def _holds_texts(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray) and array.dtype.kind in TEXTS and all(isinstance(x, str) for x in array.ravel())
    )


def _write_sparse(group: Any, matrix: sp.csr_matrix) -> None:
    _encode(group, "csr_matrix", "0.1.0").attrs["shape"] = matrix.shape
    for name in ("data", "indices", "indptr"):
        group.create_dataset(name, data=getattr(matrix, name))


def _is_plain_table(value: Any) -> bool:
    """Return whether a table has columns of numbers and of categories only."""
    return hasattr(value, "columns") and all(
        (isinstance(dtype, np.dtype) and dtype.kind in NUMBERS) or hasattr(dtype, "categories")
        for dtype in value.dtypes
    )


def _write_table(group: Any, table: Any) -> None:
    _encode(group, "dataframe", "0.2.0")
    group.attrs["_index"] = "_index"
    names = np.array([str(name) for name in table.columns], dtype=object)
    group.attrs["column-order"] = names if len(names) else np.empty(0)
    _write(group, "_index", np.array([str(name) for name in table.index], dtype=object))
    for name in table.columns:
        column = table[name]
        if hasattr(column.dtype, "categories"):
            made = _encode(group.create_group(name), "categorical", "0.2.0")
            made.attrs["ordered"] = bool(column.dtype.ordered)
            _write(made, "codes", column.cat.codes.to_numpy())
            _write(made, "categories", column.cat.categories.to_numpy())
        else:
            _write(group, name, column.to_numpy())
