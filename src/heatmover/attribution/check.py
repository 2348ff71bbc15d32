"""Checks of what the explanations are given: models, measures by name or row, annotations of points."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from heatmover._typing import Float64, Int64
from heatmover._validation import as_array
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError
from heatmover.measures import Measures, check_measures
from heatmover.statistics.samples import check_labels

__all__ = ["check_annotation", "check_coordinates", "check_model", "find_name", "one_measure"]


def check_model(model: object) -> DiffusionEMD:
    """Return a fitted `DiffusionEMD`, or raise."""
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError(
            "a fitted DiffusionEMD", type(model).__name__, "a Comparison carries one as its attribute model"
        )
    check_is_fitted(model)
    return model


def one_measure(value: Any, which: str, measures: Any | None, model: DiffusionEMD) -> tuple[str, Float64]:
    """Return the name and the masses ``(n_points,)`` of a measure given as a row, or by name or index.

    Parameters
    ----------
    value
        Masses ``(n_points,)`` or ``(1, n_points)``; or, with ``measures``, a name or an index.
    which
        What the measure is called in messages, and its name if it has none.
    measures
        `Measures` or rows ``(n_measures, n_points)`` that names and indices refer to.
    model
        Says how many points there are.
    """
    by_name = isinstance(value, str)
    if by_name or (isinstance(value, int | np.integer) and not isinstance(value, bool)):
        if measures is None:
            raise InvalidInputError(
                f"{which} to be a row of masses", repr(value), "names and indices need measures= to refer to"
            )
        return _looked_up(value, which, measures, model)
    if isinstance(value, Measures) and len(value) == 1:
        which = value.names[0]
    row = value.masses if isinstance(value, Measures) else value
    # A row taken out of a sparse array has one dimension.
    row = sp.csr_array(row.reshape(1, -1)) if sp.issparse(row) and row.ndim == 1 else row
    if not sp.issparse(row):
        row = np.atleast_2d(as_array(which, row))
    if row.ndim != 2 or row.shape[0] != 1:
        raise InvalidInputError(
            f"{which} to be one measure, ({model.n_features_in_},) or (1, {model.n_features_in_})",
            f"shape {row.shape}",
            "pass one row, such as measures.masses[[0]]",
        )
    return which, _dense(check_measures(row, n_points=model.n_features_in_, normalize=model.normalize))


def _looked_up(value: Any, which: str, measures: Any, model: DiffusionEMD) -> tuple[str, Float64]:
    names: Sequence[str] | None = measures.names if isinstance(measures, Measures) else None
    rows = check_measures(measures, n_points=model.n_features_in_, normalize=model.normalize)
    if isinstance(value, str):
        if names is None:
            raise InvalidInputError(f"{which} to be an index", repr(value), "only Measures have names")
        index = names.index(find_name(value, names, f"{which} to name a measure"))
    else:
        index = int(value)
        if not -rows.shape[0] <= index < rows.shape[0]:
            raise InvalidInputError(f"{which} to be one of {rows.shape[0]} measures", f"index {index}")
        index %= rows.shape[0]
    return names[index] if names else str(index), _dense(rows[[index]])


def _dense(row: Any) -> Float64:
    return np.asarray(row.toarray() if sp.issparse(row) else row, dtype=np.float64).reshape(-1)


def find_name(name: str, known: Sequence[str], what: str) -> str:
    """Return the name if it is known, or raise with the nearest that is."""
    if name in known:
        return name
    # Upper and lower case are the commonest slip, and difflib counts each letter of it as an error.
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.5)
    shown = ", ".join(map(repr, known[:5])) + (f" and {len(known) - 5} more" if len(known) > 5 else "")
    raise InvalidInputError(what, repr(name), f"did you mean {folded[near[0]]!r}?" if near else f"there are {shown}")


def check_annotation(annotation: Any, n_points: int) -> tuple[Int64, tuple[str, ...]]:
    """Return the kind of each point as a whole number ``(n_points,)``, and the names of the kinds, sorted."""
    try:
        return check_labels("annotation", annotation, n_points)
    except InvalidInputError as error:
        # The check speaks of samples; here a label belongs to a point.
        words = (text.replace("sample", "point") for text in (error.expected, error.found, error.advice))
        raise InvalidInputError(*words) from None


def check_coordinates(coordinates: npt.ArrayLike, n_points: int) -> Float64:
    """Return coordinates of the points in a plane, ``(n_points, 2)``."""
    array = as_array("coordinates", coordinates, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != n_points or array.shape[1] < 2:
        raise InvalidInputError(f"coordinates of shape ({n_points}, 2)", f"shape {array.shape}")
    return array[:, :2]
