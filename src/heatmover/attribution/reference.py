"""Which of several groups a person expects others to be compared with."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from heatmover.attribution.witness import find_name
from heatmover.errors import InvalidInputError

__all__ = ["choose_groups", "expected_reference", "first_of_order"]

# What a reference is called: the whole name, however it is spelt, or a word of it ("healthy control", "ctrl_6h").
WORDS = frozenset((
    "baseline", "control", "controls", "ctl", "ctrl", "ctrls", "dmso", "healthy", "mock", "naive", "normal", "pbs",
    "placebo", "pre", "pretreatment", "sham", "uninfected", "unstim", "unstimulated", "untreated", "vehicle",
    "wildtype", "wt",
))  # fmt: skip
# These only as the whole name: "no response" and "0 to 6 months" are no references.
WHOLE = frozenset((
    "0", "absent", "before", "d0", "day0", "false", "nc", "neg", "negative", "no", "none", "nostim", "nottreated",
    "ref", "reference", "resting", "t0",
))  # fmt: skip
# Words that turn the meaning of the others around.
TURNING = frozenset(("not", "non", "ab", "post", "after", "vs"))


def expected_reference(names: Collection[str]) -> str | None:
    """Return the one group that is called as a reference is, such as a control; None if none is, or several are.

    Examples
    --------
    >>> expected_reference(["stim", "ctrl"]), expected_reference(["COVID-19", "Healthy control"])
    ('ctrl', 'Healthy control')
    >>> expected_reference(["False", "True"]), expected_reference(["KO", "wild type"])
    ('False', 'wild type')
    >>> expected_reference(["a", "b"]) is None
    True
    """
    whole, parts = [], []
    for name in names:
        words = re.findall(r"[^\W_]+", str(name).casefold())
        if "".join(words) in WORDS | WHOLE:
            whole.append(name)
        elif set(words) & WORDS and not set(words) & TURNING:
            parts.append(name)
    found = whole or parts
    return found[0] if len(found) == 1 else None


def first_of_order(column: Any) -> str | None:
    """Return the first value that occurs in an ordered pandas category; None for any other column."""
    dtype: Any = getattr(column, "dtype", None)
    if not getattr(dtype, "ordered", False):
        return None
    there = {str(value) for value in column if value == value and value is not None}
    return next((str(value) for value in dtype.categories if str(value) in there), None)


def choose_groups(
    counts: Mapping[str, int], *, group: str | None = None, reference: str | None = None, first: str | None = None
) -> tuple[str, str | None]:
    """Return the group to explain and the one to compare it with, None for all others.

    Left out, the reference is the group that is called so, else the first of an order; the group is the other one, or
    the largest of several. Without any hint it is the first by name of two, or the largest of more against all others.

    Parameters
    ----------
    counts
        Samples of each group.
    group, reference
        Names that were asked for.
    first
        The first group of an ordered category.

    Examples
    --------
    >>> choose_groups({"control": 4, "treated": 4}), choose_groups({"x": 9, "y": 2})
    (('treated', 'control'), ('x', 'y'))
    """
    names = sorted(counts)
    if len(names) < 2:
        raise InvalidInputError("at least two groups of samples", f"one ({names[0]!r})" if names else "none")
    for word, name in (("group", group), ("reference", reference)):
        if name is not None:
            find_name(name, names, f"{word} to be one of the groups")
    if group is not None and group == reference:
        raise InvalidInputError("a reference other than the group", repr(group))
    if group is not None:
        rest = [name for name in names if name != group]
        return group, reference if reference is not None or len(rest) > 1 else rest[0]
    if reference is None:
        reference = expected_reference(names) or (first if first in counts else None)
    others = [name for name in names if name != reference]
    chosen = others[0] if len(names) == 2 else max(others, key=lambda name: counts[name])
    if reference is None and len(names) == 2:
        reference = names[1]
    return chosen, reference
