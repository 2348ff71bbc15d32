"""What an AnnData says of samples: which cells they have, and which columns of obs describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from heatmover._typing import Int32, Int64, Intp
from heatmover._validation import import_extra
from heatmover._words import distinct, find
from heatmover.cohort.samples import SampleTable
from heatmover.errors import InvalidInputError, argument

__all__ = ["Labels", "check_anndata", "read_labels"]


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """The sample of each cell.

    Attributes
    ----------
    names
        Of the samples, sorted.
    codes
        ``(n_cells,)``: position in ``names``.
    varying
        Columns that vary within samples.
    """

    names: tuple[str, ...]
    codes: Int32
    varying: tuple[str, ...]

    @cached_property
    def sizes(self) -> Int64:
        """``(n_samples,)``: number of cells."""
        return np.bincount(self.codes, minlength=len(self.names)).astype(np.int64)

    @cached_property
    def first(self) -> Intp:
        """``(n_samples,)``: row of the first cell."""
        return np.unique(self.codes, return_index=True)[1]


def check_anndata(adata: Any) -> None:
    """Raise unless this is an AnnData object."""
    anndata = import_extra("anndata", package="anndata", extra="cohort")
    if isinstance(adata, anndata.AnnData):
        return
    advice = "read the file first, anndata.read_h5ad(path)" if hasattr(adata, "__fspath__") else ""
    if isinstance(adata, str):
        advice = "read the file first, anndata.read_h5ad(path)"
    elif hasattr(adata, "mod"):
        advice = "pass one modality, such as data.mod['rna']"
    raise InvalidInputError("an AnnData object", type(adata).__name__, advice)


def read_labels(adata: Any, sample_key: str, columns: Sequence[str]) -> Labels:
    """Return the sample of each cell, and which of some columns vary within samples."""
    known = list(adata.obs.columns)
    distinct([str(name) for name in known], "columns of obs")
    table = SampleTable(find(sample_key, known, f"{argument('sample_key')} to be a column of obs"))
    table.add(adata.obs[sample_key], {name: adata.obs[name] for name in columns})
    names, codes = table.finish()
    return Labels(names, codes, tuple(table.varying))
