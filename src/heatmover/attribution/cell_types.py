"""Types of points, such as cell types: what samples consist of, and which types differ between two groups of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import scipy.sparse as sp

from heatmover._readonly import ReadOnlyArrays
from heatmover._typing import Float64, Int64
from heatmover._validation import import_extra
from heatmover.attribution.contrast import Design, two_frames
from heatmover.attribution.witness import check_annotation
from heatmover.statistics import false_discovery

__all__ = ["CellTypes", "Composition", "composition_of", "contrast_types"]


@final
@dataclass(frozen=True, eq=False, repr=False)
class CellTypes(ReadOnlyArrays):
    """The same test for types of points, such as cell types, by the mass that samples have in each.

    Attributes
    ----------
    names
        Of the types, sorted.
    points
        ``(n_types,)``: number of points of each.
    scores, log_ratios, p_values, q_values
        ``(n_types,)``: as in `GroupContrast`.
    """

    names: tuple[str, ...]
    points: Int64
    scores: Float64
    log_ratios: Float64
    p_values: Float64
    q_values: Float64

    def table(self) -> Any:
        """Return a pandas DataFrame with one row for each type."""
        pandas = import_extra("pandas", package="pandas", extra="cohort")
        columns = {name: getattr(self, name) for name in ("points", "scores", "log_ratios", "p_values", "q_values")}
        return pandas.DataFrame(columns, index=pandas.Index(self.names, name="cell_type"))


class Composition(NamedTuple):
    """The share of each cell type in each sample, where a point of the graph may stand for cells of several types.

    ``names`` of the types, sorted; ``points``, how many cells of each; ``shares``, ``(n_samples, n_types)``.
    """

    names: tuple[str, ...]
    points: Int64
    shares: Float64


def composition_of(annotation: Any, rows: Any) -> Composition:
    """Return what the samples ``(n_samples, n_points)`` consist of, from the type of each point, ``(n_points,)``."""
    codes, names = check_annotation(annotation, rows.shape[1])
    membership = sp.csr_array((np.ones(codes.size), (np.arange(codes.size), codes)), shape=(codes.size, len(names)))
    return Composition(names, np.bincount(codes, minlength=len(names)), (sp.csr_array(rows) @ membership).toarray())


def contrast_types(design: Design, types: Composition, modes: Float64) -> CellTypes:
    """Test every type by the share that samples have of it, in both frames of reference (see `two_frames`)."""
    tested = two_frames(design.average @ types.shares[design.chosen], modes, design.members, design.blocks)
    return CellTypes(types.names, types.points, *tested, false_discovery(tested.p_values))
