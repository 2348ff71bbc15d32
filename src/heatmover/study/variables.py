"""How a variable of the samples is read: as groups or as a number, by its values or as the reader says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from heatmover._base.types import Bool
from heatmover._base.words import listed, quoted
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import is_missing

__all__ = ["as_groups", "as_numbers", "check_readings", "kind_of", "known_values", "label", "read_variables"]

# Numbers with fewer different values are codes of groups (0 and 1, a stage from 1 to 4), not measurements.
FEWEST_NUMBERS = 6


def kind_of(values: Sequence[Any], *, numeric: bool = False) -> Literal["groups", "number"]:
    """Return whether known values of a variable are those of groups or numbers; ``numeric`` decides for few numbers."""
    numbers = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    if numeric and numbers:
        return "number"
    many = numbers and len(set(values)) >= FEWEST_NUMBERS
    return "number" if many and bool(np.isfinite(np.asarray(values, dtype=float)).all()) else "groups"


def label(value: Any) -> str:
    """Return the name of the group that a value stands for; 1.0 is group 1: a gap makes floats of whole numbers."""
    number = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if number else str(value)


def known_values(values: Sequence[Any]) -> tuple[Bool, list[Any]]:
    """Return where values are not missing, ``(n_values,)``, and these values.

    Examples
    --------
    >>> known_values(["f", None, "m"])
    (array([ True, False,  True]), ['f', 'm'])
    """
    known = np.array([not is_missing(value) for value in values], dtype=bool)
    return known, [value for value, there in zip(values, known, strict=True) if there]


def as_numbers(name: object, values: Sequence[Any]) -> list[Any]:
    """Return values as numbers, also those that are spelt as text; what is missing stays so.

    Examples
    --------
    >>> as_numbers("stage", ["1", 2, None, True])
    [1.0, 2, None, 1]
    >>> as_numbers("stage", ["II"])
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected numbers in 'stage', which numeric names, found 'II'; ...
    """
    return [value if is_missing(value) else _number(name, value) for value in values]


def _number(name: object, value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | float | np.number):
        return value
    try:
        # Python would take 1_000 for a number, and the word nan.
        number = float(value) if isinstance(value, str) and "_" not in value else np.nan
    except ValueError:
        number = np.nan
    if np.isnan(number):
        raise InvalidInputError(
            f"numbers in {quoted(name)}, which {argument('numeric')} names",
            quoted(value),
            f"correct the value or leave the column out of {argument('numeric')}",
        )
    return number


def as_groups(values: Sequence[Any]) -> list[str | None]:
    """Return the group of each value, None where it is missing.

    Examples
    --------
    >>> as_groups([1.0, 2, None])
    ['1', '2', None]
    """
    return [None if is_missing(value) else label(value) for value in values]


def check_readings(numeric: Collection[str], categorical: Collection[str]) -> None:
    """Raise if a variable is to be read in both ways."""
    both = [name for name in numeric if name in set(categorical)]
    if both:
        raise InvalidInputError(
            f"a variable in {argument('numeric')} or in {argument('categorical')}", f"{listed(both)} in both"
        )


def read_variables(table: Any, numeric: Collection[str] = (), categorical: Collection[str] = ()) -> Any:
    """Return a table of samples in which some variables are read as numbers, and some as groups.

    Parameters
    ----------
    table
        DataFrame with one row per sample, one column per variable.
    numeric, categorical
        Names of columns; others stay as they are.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"stage": ["1", "2"], "plate": [7, 8]})
    >>> read_variables(table, ["stage"], ["plate"]).values.tolist()
    [[1.0, '7'], [2.0, '8']]
    """
    check_readings(numeric, categorical)
    changed = {name: table[name].tolist() for name in (*numeric, *categorical) if name in table.columns}
    result = table.copy() if changed else table
    for name, values in changed.items():
        if name in numeric:
            numbers = [np.nan if is_missing(value) else value for value in as_numbers(name, values)]
            result[name] = np.asarray(numbers, dtype=np.float64)
        else:
            result[name] = np.array([*as_groups(values), None], dtype=object)[:-1]
    return result
