"""Average features over the cells of each type in each sample, block by block; for `attribution`, `study`; no files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Bool, Float64
from heatmover.attribution.cell_types import TypedCells


@final
@dataclass(frozen=True, eq=False, repr=False)
class Pseudobulk(ReadOnlyArrays):
    """Features of cells, averaged over the cells of each type in each sample.

    Attributes
    ----------
    types, features
        Names of the types and of the features.
    counts
        ``(n_types, n_samples)``: number of cells.
    means
        ``(n_types, n_samples, n_features)``: mean over the cells; zero without cells.
    squares
        ``(n_types, n_features)``: mean square over the cells of all samples.
    tested
        ``(n_types, n_features)``: True for features to test in a type.
    kind
        Whether the features are genes.
    scale
        Scale of the values and their origin, in words; empty for features as they are.
    left_out
        Sentences that name the features that were left out; empty if there are none.
    """

    types: tuple[str, ...]
    features: tuple[str, ...]
    counts: Float64
    means: Float64
    squares: Float64
    tested: Bool
    kind: Literal["feature", "gene"] = "feature"
    scale: str = ""
    left_out: str = ""

    def of(self, samples: Any) -> Pseudobulk:
        """Return the pseudobulk of some samples, by their indices; squares remain those of all samples."""
        if len(samples) == self.counts.shape[1]:
            return self
        return replace(self, counts=self.counts[:, samples], means=self.means[:, samples])


@final
class FeatureSums:
    """Sums of features over the cells of each type in each sample, block by block.

    Values in single precision have exact sums, unless their exponents differ much. The sums then do not depend on the
    order of the cells.

    Parameters
    ----------
    n_types, n_samples, n_features
        Sizes of the sums.
    """

    def __init__(self, n_types: int, n_samples: int, n_features: int) -> None:
        self.shape = (n_types, n_samples, n_features)
        self.counts = np.zeros(n_types * n_samples)
        self.sums: Float64 = np.zeros((n_types * n_samples, n_features))
        self.squares, self.detected = np.zeros((n_types, n_features)), np.zeros((n_types, n_features))

    def add(self, cells: sp.csr_array, block: Any) -> None:
        """Add cells.

        Parameters
        ----------
        cells
            Number of cells in each type and sample, type by type, ``(n_types * n_samples, n_cells)``.
        block
            Features of these cells, ``(n_cells, n_features)``, dense or CSR.
        """
        n_types, n_samples, _ = self.shape
        rows = np.arange(n_types * n_samples)
        fold = sp.csr_array((np.ones(rows.size), (rows // n_samples, rows)), shape=(n_types, rows.size))
        typed = sp.csr_array(fold @ cells)
        self.counts += np.asarray(cells.sum(axis=1)).ravel()
        _add(self.sums, cells @ block)
        if not sp.issparse(block):
            _add(self.squares, typed @ block**2)
            _add(self.detected, typed @ (block != 0).astype(np.float64))
            return
        parts = (block.indices, block.indptr)
        _add(self.squares, typed @ sp.csr_array((np.square(block.data), *parts), shape=block.shape))
        _add(self.detected, typed @ sp.csr_array(((block.data != 0).astype(np.float64), *parts), shape=block.shape))

    def finish(
        self, types: tuple[str, ...], features: tuple[str, ...], *, least_cells: float = 0, least_share: float = 0,
        **words: Any,
    ) -> Pseudobulk:  # fmt: skip
        """Return the means; the sums are used up.

        Parameters
        ----------
        types, features
            Names of the types and of the features.
        least_cells, least_share
            A feature is tested in a type if at least this number, and this share, of the cells of the type have a value
            other than zero.
        **words
            Further attributes of `Pseudobulk`.
        """
        n_types, n_samples, _ = self.shape
        counts = self.counts.reshape(n_types, n_samples)
        totals = np.maximum(counts.sum(axis=1), np.finfo(float).tiny)[:, None]
        self.sums /= np.maximum(self.counts, np.finfo(float).tiny)[:, None]
        tested = self.detected >= np.maximum(least_cells, least_share * totals)
        means = self.sums.reshape(self.shape)
        return Pseudobulk(types, features, counts, means, self.squares / totals, tested, **words)


def _add(total: Float64, part: Any) -> None:
    """Add a dense or sparse matrix in place."""
    if sp.issparse(part):
        rows = np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        total[rows, part.indices] += part.data  # a product by SciPy stores every entry once
    else:
        total += part


def of_cells(cells: TypedCells, features: Any, names: tuple[str, ...]) -> Pseudobulk:
    """Return the pseudobulk of features in memory.

    Parameters
    ----------
    cells
        Cells of all samples by type.
    features
        Features of the cells, ``(n_cells, n_features)``, dense or CSR.
    names
        Names of the features.
    """
    entries, (n_samples, n_cells) = sp.coo_array(cells.masses), cells.masses.shape
    rows = cells.codes[entries.col] * n_samples + entries.row
    numbers = entries.data * cells.sizes[entries.row]
    n_types = len(cells.names)
    sums = FeatureSums(n_types, n_samples, len(names))
    sums.add(sp.csr_array((numbers, (rows, entries.col)), shape=(n_types * n_samples, n_cells)), features)
    return sums.finish(cells.names, names)
