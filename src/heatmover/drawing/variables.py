"""A variable of the samples, as it is to be drawn: numbers or groups, and where it is missing."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._typing import Bool, Float64, Intp
from heatmover._validation import LabelNames, in_order
from heatmover._words import naturally
from heatmover.measures import is_missing

__all__ = ["Variable", "read_variable"]


@final
@dataclass(frozen=True, eq=False)
class Variable:
    """One value for each sample.

    Attributes
    ----------
    name
        For legends; may be empty.
    numbers
        ``(n_samples,)``, NaN where missing; None for groups.
    codes
        ``(n_samples,)``: position in ``groups``, -1 where missing; for numbers too, where they all are -1.
    groups
        Names of the groups: in the order of their categories, else in natural order. Empty for numbers.
    """

    name: str
    numbers: Float64 | None
    codes: Intp
    groups: tuple[str, ...]

    @property
    def missing(self) -> Bool:
        """``(n_samples,)``: where there is no value."""
        return np.asarray(np.isnan(self.numbers) if self.numbers is not None else self.codes < 0)

    @property
    def sizes(self) -> Intp:
        """``(n_groups,)``: samples in each group."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.groups))


def read_variable(values: Any, names: Sequence[str], name: str = "") -> Variable:
    """Return what is to be drawn.

    Parameters
    ----------
    values
        ``(n_samples,)`` in the order of ``names``; or a mapping or pandas Series from names to values.
    names
        Of the samples.
    name
        Of the variable; default that of a Series.
    """
    name = name or str(getattr(values, "name", None) or "")
    categories = getattr(getattr(values, "cat", values), "categories", None)
    found = in_order(values, names, repr(name) if name else "values")
    missing = np.array([is_missing(value) for value in found])
    if categories is None and _all_numbers(found, missing) and not missing.all():
        return Variable(name, _numbers(found, missing), np.full(len(found), -1), ())
    known = iter(LabelNames(name or "values").add_all(v for v, gap in zip(found, missing, strict=True) if not gap))
    texts = ["" if gap else next(known) for gap in missing]
    present = {text for text, gap in zip(texts, missing, strict=True) if not gap}
    order = naturally(present) if categories is None else [str(c) for c in categories if str(c) in present]
    place = {text: code for code, text in enumerate(order)}
    codes = np.array([-1 if gap else place[text] for gap, text in zip(missing, texts, strict=True)], dtype=np.intp)
    return Variable(name, None, codes, tuple(order))


def _all_numbers(values: Sequence[Any], missing: Bool) -> bool:
    known = [value for value, gap in zip(values, missing, strict=True) if not gap]
    return all(isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_) for value in known)


def _numbers(values: Sequence[Any], missing: Bool) -> Float64:
    found = np.array([np.nan if gap else float(value) for gap, value in zip(missing, values, strict=True)])
    # No colour and no length is infinite.
    return np.where(np.isfinite(found), found, np.nan)
