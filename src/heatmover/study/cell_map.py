"""Place a sample of cells on a map that shows where two groups differ; for `study.study` only; reads a cohort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.types import Float64, Int32, Intp
from heatmover._base.validation import import_extra
from heatmover._base.words import listed
from heatmover.cohort import Cohort
from heatmover.cohort.subsample import draw_cells
from heatmover.errors import InvalidInputError, argument
from heatmover.study.cell_calls import CellCalls
from heatmover.study.cell_types import Annotation
from heatmover.study.comparison import Comparison

# Largest number of cells on the map: more dots would hide each other. 4,000 cells add 0.2 MB to the report.
MOST_CELLS = 4_000
# Default number of neighbors of UMAP.
UMAP_NEIGHBORS = 15
COMPUTED = ("pca", "umap")
TITLES = {"X_umap": "UMAP", "X_tsne": "t-SNE", "X_phate": "PHATE", "umap": "UMAP", "pca": "PCA"}


@final
@dataclass(frozen=True, eq=False)
class CellMap(ReadOnlyArrays):
    """Drawn cells of a cohort on a map that shows where two groups of samples differ; part of a `Study`.

    Attributes
    ----------
    name
        Name of the map: a key of obsm, or ``"pca"`` or ``"umap"`` for a map that was computed from the drawn cells.
    places
        ``(n_drawn, 2)``: coordinates of the cells.
    samples
        ``(n_drawn,)``: sample of each cell, as an index into the names of the comparison.
    witness
        ``(n_drawn,)``, in [-1, 1]: witness of the distance between the means of two groups, divided by its largest
        absolute value. The witness is positive where the group is denser, and negative where the reference is denser.
        None without two groups.
    q_values, signs
        ``(n_drawn,)``: q-value of each cell, and 1 for cells called denser in the group, -1 for cells called less
        dense, else 0; see `heatmover.study.CellCalls`. None without two groups.
    variable, groups
        Name of the variable, and names of its two groups: the group and the reference. Empty without two groups.
    types
        ``(n_drawn,)``: cell type of each cell, as an index into ``type_names``; None without an annotation.
    type_names
        Names of the cell types.

    Examples
    --------
    >>> cells = CellMap("X_umap", np.zeros((3, 2)), np.array([0, 0, 1], dtype=np.int32))
    >>> cells.title, cells.witness is None
    ('UMAP', True)
    """

    name: str
    places: Float64
    samples: Int32
    witness: Float64 | None = None
    variable: str = ""
    groups: tuple[str, ...] = ()
    types: Int32 | None = None
    type_names: tuple[str, ...] = ()
    q_values: Float64 | None = None
    signs: Int32 | None = None

    @property
    def title(self) -> str:
        """Return the title of the map."""
        return TITLES.get(self.name, self.name)

    def plain(self) -> dict[str, Any]:
        """Return a summary of the map as plain values for JSON."""
        return {"name": self.name, "cells": len(self.places), "variable": self.variable, "groups": list(self.groups)}


def check_cell_map(cohort: Cohort, cell_map: str) -> str | None:
    """Return the name of the map to draw, or None for no map; raise if the cohort lacks the requested map.

    Parameters
    ----------
    cohort
        Cohort from `heatmover.read_cohort`.
    cell_map
        Requested map, as in `heatmover.study.StudyParameters`.

    Examples
    --------
    >>> import anndata, pandas
    >>> from heatmover.cohort import read_cohort
    >>> obs = pandas.DataFrame({"sample": list("aabb")}, index=list("wxyz"))
    >>> cells = anndata.AnnData(np.arange(8.0).reshape(4, 2), obs, obsm={"X_umap": np.zeros((4, 2))})
    >>> check_cell_map(read_cohort(cells, sample_key="sample"), "auto")
    'X_umap'
    """
    stored = cohort.embeddings
    if cell_map == "none":
        return None
    if cell_map == "auto":
        return next(iter(stored), None)
    if cell_map in stored or cell_map in COMPUTED:
        if cell_map == "umap" and cell_map not in stored:
            import_extra("umap", package="umap-learn", extra="umap")
        return cell_map
    known = f"only {listed(stored)}" if stored else "no embedding with two columns"
    raise InvalidInputError(
        f"{argument('cell_map')} to be a two-dimensional embedding of the file, 'pca', 'umap', 'auto' or 'none'",
        f"{cell_map!r}",
        f"the file has {known}; {argument('cell_map', 'pca')} computes a map",
    )


def map_cells(
    cohort: Cohort,
    kept: Intp,
    comparison: Comparison,
    name: str,
    *,
    random_state: int = 0,
    annotation: Annotation | None = None,
    rows: Intp | None = None,
    calls: CellCalls | None = None,
) -> CellMap:
    """Draw up to 4,000 cells and place them on a map.

    Parameters
    ----------
    cohort, kept
        The cells, and the indices of the compared samples, ascending.
    comparison
        Comparison of the samples in ``kept``.
    name
        Name of the map, from `check_cell_map`.
    random_state
        Seed of the draw and of UMAP.
    annotation
        Type of each cell of the cohort.
    rows
        ``(n_points,)``: row number of the cell at each point of the graph; None if landmarks approximate the cells.
    calls
        Calls from `heatmover.study.cell_calls.call_cells`, to color the cells.
    """
    drawn = draw_cells(cohort, MOST_CELLS, random_state, kept, rows)
    order = np.argsort(drawn.rows)
    points, codes, chosen = drawn.points[order], drawn.codes[order], drawn.rows[order]
    places = cohort.embedding(name, chosen) if name in cohort.embeddings else _places(points, name, random_state)
    shown = np.isfinite(places).all(axis=1)
    if not shown.any():
        raise InvalidInputError(f"coordinates of cells in {name}", "only NaN or infinity", "choose another map")
    values, q_values, signs = None, None, None
    if calls is not None:
        marks = comparison.landmarks
        nodes = np.searchsorted(rows, chosen) if rows is not None else marks.assign(points)  # type: ignore[union-attr]
        nodes = nodes[shown]
        values, q_values, signs = calls.witness[nodes], calls.q_values[nodes], calls.signs[nodes]
    variable, groups = ("", ()) if calls is None else (calls.variable, calls.groups)
    place = np.full(len(cohort.names), -1, dtype=np.int32)
    place[kept] = np.arange(len(kept), dtype=np.int32)
    types = None if annotation is None else annotation.codes[chosen][shown]
    names = () if annotation is None else annotation.types
    drawn_samples = place[codes][shown]
    return CellMap(name, places[shown], drawn_samples, values, variable, groups, types, names, q_values, signs)


def _places(points: npt.NDArray[Any], name: str, random_state: int) -> Float64:
    """Compute coordinates of cells in two dimensions, from the features that the distances use."""
    from sklearn.decomposition import PCA

    values = np.asarray(points, dtype=np.float64)
    if name == "pca":
        count = min(2, *values.shape)
        flat = PCA(count, svd_solver="full").fit_transform(values)
        return np.asarray(np.pad(flat, ((0, 0), (0, 2 - count))))
    package = import_extra("umap", package="umap-learn", extra="umap")
    neighbors = max(2, min(UMAP_NEIGHBORS, len(values) - 1))
    drawn = package.UMAP(n_neighbors=neighbors, random_state=random_state, n_jobs=1).fit_transform(values)
    return np.asarray(drawn, dtype=np.float64)
