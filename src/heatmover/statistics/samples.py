"""Checks of what comes per sample: distances between samples, labels and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Float64, Int64
from heatmover._base.validation import ALL_DISTANCES, LabelNames, as_array, check_integer, check_matrix
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing

__all__ = ["check_at_most", "check_distances", "check_labels", "check_numbers"]


# Distances computed in float32 differ from their transpose, and on the diagonal from zero, by about 1e-7 of the
# largest; what differs by more was not meant to be a distance.
ASYMMETRY = 1e-5


def check_distances(distances: npt.ArrayLike) -> Float64:
    """Return distances ``(n_samples, n_samples)`` in float64, symmetric and zero on the diagonal to the last bit."""
    matrix = np.asarray(check_matrix("distances", distances, sparse=ALL_DISTANCES), dtype=np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise InvalidInputError("distances between all samples, (n_samples, n_samples)", f"shape {matrix.shape}")
    slack = ASYMMETRY * float(max(matrix.max(), -matrix.min()))
    if matrix.min() < -slack:
        raise InvalidInputError("distances of at least zero", f"{matrix.min():g}", "similarities are not distances")
    if np.abs(matrix.diagonal()).max() > slack:
        largest = float(np.abs(matrix.diagonal()).max())
        raise InvalidInputError("a distance of zero from a sample to itself", f"{largest:g} on the diagonal")
    difference = float(np.abs(matrix - matrix.T).max())
    if difference > slack:
        raise InvalidInputError(
            "the same distance in both directions",
            f"differences of up to {difference:g}",
            "average both: (distances + distances.T) / 2",
        )
    result = np.maximum((matrix + matrix.T) / 2, 0.0)
    np.fill_diagonal(result, 0.0)
    return result


def check_labels(name: str, labels: Any, n_samples: int, *, of: str = "sample") -> tuple[Int64, tuple[str, ...]]:
    """Return labels as whole numbers from 0 on, ``(n_samples,)``, and the names they stand for, sorted.

    ``of`` is the word for what is labelled, for messages.
    """
    listed = _listed(name, labels, n_samples, of)
    missing = [i for i, label in enumerate(listed) if is_missing(label)]
    if missing:
        raise InvalidInputError(
            f"{name}: a label for every {of}",
            f"{len(missing)} missing (first: {of} {missing[0]})",
            f"drop those {of}s, or give them a label of their own",
        )
    # 1 and "1" may be one group or two: only the owner of the labels knows.
    texts = LabelNames(name).add_all(listed)
    names = sorted(set(texts))
    place = {text: code for code, text in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.int64), tuple(names)


def check_numbers(name: str, values: npt.ArrayLike, n_samples: int) -> Float64:
    """Return numbers ``(n_samples,)`` in float64, finite."""
    array = as_array(name, values)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{name}: a number for every sample", f"values of type {array.dtype}")
    if array.shape != (n_samples,):
        raise InvalidInputError(f"{name} of shape ({n_samples},), one for each sample", f"shape {array.shape}")
    numbers = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise InvalidInputError(
            f"{name}: a number for every sample",
            f"{bad.size} NaN or infinite (first: sample {bad[0]})",
            "drop those samples first",
        )
    return numbers


def check_at_most(name: str, value: object, most: int, why: str) -> int:
    """Return a whole number from 1 to ``most``, or raise with the reason why there is no more."""
    count = check_integer(name, value, minimum=1)
    if count > most:
        raise InvalidInputError(f"{name} of at most {most}", f"{count}", why)
    return count


def _listed(name: str, labels: Any, n_samples: int, of: str) -> list[Any]:
    """Return one plain Python object for each sample, or whatever is labelled."""
    expected = f"{name} of shape ({n_samples},), one label for each {of}"
    try:
        array = as_array(name, labels)
        # NumPy would turn a list of mixed types into text or numbers, and a missing label into the text "nan".
        listed = isinstance(labels, list | tuple) and array.dtype.kind not in "mM"
        array = np.asarray(labels, dtype=object) if listed or array.dtype.kind in "OU" else array
    except InvalidInputError:
        raise
    except ValueError as error:  # lists of different lengths
        raise InvalidInputError(expected, f"{type(labels).__name__}: {error}") from error
    if array.shape != (n_samples,):
        raise InvalidInputError(expected, f"shape {array.shape}")
    if array.dtype.kind in "mM":
        # A date's name is the date, not its nanoseconds.
        return [None if gap else text for gap, text in zip(np.isnat(array), array.astype(str), strict=True)]
    return list(array.tolist())
