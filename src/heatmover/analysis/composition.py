"""`SampleComposition`: what share of each sample's cells every cell type has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64
from heatmover._validation import check_integer
from heatmover._words import counted
from heatmover.analysis.cell_types import Annotation
from heatmover.analysis.comparers import Compared

__all__ = ["SampleComposition", "compose", "shares_of"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class SampleComposition(ReadOnlyArrays):
    """Shares of cell types in samples; a study with ``cells`` has one.

    Attributes
    ----------
    annotation
        Name of the annotation of cells.
    types
        Names of the cell types, the commonest first: by their mean share over samples, then by name.
    shares
        ``(n_samples, n_types)``; every row sums to 1.

    Examples
    --------
    >>> import numpy as np
    >>> found = SampleComposition("type", ("T", "B", "NK"), np.array([[0.6, 0.3, 0.1], [0.7, 0.1, 0.2]]))
    >>> found.largest(1).types
    ('T', 'other (2 types)')
    >>> found.largest(1).shares
    array([[0.6, 0.4],
           [0.7, 0.3]])
    """

    annotation: str
    types: tuple[str, ...]
    shares: Float64

    def largest(self, most: int = 10) -> SampleComposition:
        """Return the commonest types, and all others as one if there are more.

        Parameters
        ----------
        most
            How many types keep their names; one more is kept rather than called other by itself.
        """
        count = check_integer("most", most, minimum=1)
        if len(self.types) <= count + 1:
            return self
        rest = f"other ({counted(len(self.types) - count, 'type')})"
        shares = np.column_stack([self.shares[:, :count], self.shares[:, count:].sum(axis=1)])
        return SampleComposition(self.annotation, (*self.types[:count], rest), shares)

    def __repr__(self) -> str:
        return (
            f"SampleComposition({counted(len(self.shares), 'sample')}, {counted(len(self.types), 'type')} "
            f"of {self.annotation})"
        )


def shares_of(annotation: Annotation, masses: sp.csr_array) -> SampleComposition:
    """Return the composition of samples.

    Parameters
    ----------
    annotation
        The type of each cell, or point; from `heatmover.analysis.annotate`.
    masses
        ``(n_samples, n_cells)``: how much of each cell every sample has.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.analysis import annotate
    >>> masses = sp.csr_array(np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    >>> shares_of(annotate("type", ["B", "T", "T", "T"], 4), masses).shares
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    codes, n_types = annotation.codes, len(annotation.types)
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, n_types))
    sums = np.asarray((masses @ membership).toarray(), dtype=np.float64)
    shares = sums / sums.sum(axis=1, keepdims=True)
    # Rounded, so that the order of cells in a file does not decide between equals.
    mean = shares.mean(axis=0).round(12)
    order = sorted(range(n_types), key=lambda code: (-mean[code], annotation.types[code]))
    return SampleComposition(annotation.name, tuple(annotation.types[code] for code in order), shares[:, order])


def compose(compared: Compared) -> SampleComposition | None:
    """Return the composition of samples that were compared, in memory or in pieces; None without an annotation.

    Parameters
    ----------
    compared
        From a comparer. Where landmarks stand for cells, every cell still counts for its own type.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.analysis import annotate
    >>> data = hm.datasets.cohort(6, cells_per_sample=30)
    >>> branch = annotate("branch", data.coordinates[:, 0].astype(int), 180)
    >>> compose(Compared(hm.compare(data.points, data.labels), branch))
    SampleComposition(6 samples, 5 types of branch)
    """
    if compared.annotation is None:
        return None
    masses = compared.comparison.measures.masses if compared.cells is None else compared.cells.masses
    return shares_of(compared.annotation, sp.csr_array(masses))
