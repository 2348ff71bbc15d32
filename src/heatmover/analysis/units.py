"""Distances of samples in real units: some pairs solved exactly, and the whole comparison carried over."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import Any, Literal

from scipy.sparse.csgraph import connected_components

from heatmover._progress import Progress
from heatmover._validation import check_option, import_extra
from heatmover._words import counted
from heatmover.calibration import FEWEST, Calibration, calibrate
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError, argument
from heatmover.graphs import Graph
from heatmover.measures import Measures

__all__ = ["UNITS", "Units", "calibrated", "check_enough_samples", "check_units"]

UNITS = ("euclidean", "geodesic")
Units = Literal["euclidean", "geodesic"] | None
# As many as `calibrate` takes by default; of few samples all pairs.
PAIRS = 64


def check_units(units: object) -> None:
    """Raise unless these are units, or None; or if the package is missing that solves pairs exactly."""
    if units is not None:
        check_option("units", units, UNITS)
        # What POT loads may greet on standard output, where the results of a command are.
        with redirect_stdout(io.StringIO()):
            import_extra("ot", package="POT", extra="exact")


def check_enough_samples(n_samples: int, n_scales: int = 1) -> int:
    """Return how many pairs to solve exactly, or raise if samples have too few pairs for units.

    Parameters
    ----------
    n_samples
        To compare.
    n_scales
        Of the model, if it is known: each needs two pairs.
    """
    fewest, found = max(FEWEST, 2 * n_scales), n_samples * (n_samples - 1) // 2
    if found < fewest:
        least = next(m for m in range(2, 2 * fewest) if m * (m - 1) // 2 >= fewest)
        raise InvalidInputError(
            f"at least {counted(least, 'sample')} for {argument('units')}, which come from "
            f"{counted(fewest, 'exact pair')} or more",
            f"{n_samples}",
            f"leave {argument('units')} out",
        )
    return min(PAIRS, found)


def calibrated(
    model: DiffusionEMD,
    measures: Measures,
    points: Any,
    units: Literal["euclidean", "geodesic"],
    *,
    random_state: int | None,
    progress: Progress,
) -> Calibration:
    """Return the calibration of a fitted model, or raise if its graph has no lengths.

    Parameters
    ----------
    model
        Fitted.
    measures
        The samples.
    points
        ``(n_points, n_dimensions)``: of the nodes that the measures are over, landmarks or cells; a `Graph` has none.
    units, random_state, progress
        As in `heatmover.compare`; the stage is "calibrate units".
    """
    if isinstance(points, Graph):
        raise InvalidInputError(
            f"points for {argument('units', units)}, which come from distances between them",
            "a Graph, which knows affinities only",
            "give the points, or call hm.calibrate with costs",
        )
    n_pairs = check_enough_samples(len(measures), model.n_scales_)
    if units == "geodesic":
        _check_connected(model.graph_)
    return calibrate(
        model, measures, points, ground=units, n_pairs=n_pairs, random_state=random_state, n_jobs=model.n_jobs,
        progress=progress,
    )  # fmt: skip


def _check_connected(graph: Graph) -> None:
    n_components = int(connected_components(graph.node_affinity, directed=False)[0])
    if n_components > 1:
        raise InvalidInputError(
            f"a connected graph for {argument('units', 'geodesic')}: no path leads from one component to another",
            counted(n_components, "component"),
            f"raise {argument('n_neighbors')}, remove outliers, or use {argument('units', 'euclidean')}",
        )
