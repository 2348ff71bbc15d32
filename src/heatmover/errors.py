"""Errors and warnings, in one grammar: what was expected, what was found, what to do.

A sentence names arguments as data, so that each front end can call them what its users call them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = [
    "ConvergenceWarning",
    "EmbeddingWarning",
    "GraphWarning",
    "HeatmoverError",
    "InvalidInputError",
    "MissingExtraError",
    "Sentence",
    "argument",
    "in_python",
]

# Around the name of an argument, and before its value. Text from users is quoted before it gets into a sentence, and
# in quotes these characters are spelled out.
_BEGIN, _VALUE, _END = "\x02", "\x1f", "\x03"
_MARKED = re.compile(f"{_BEGIN}([^{_VALUE}{_END}]*)(?:{_VALUE}([^{_END}]*))?{_END}")


def argument(name: str, *value: object) -> str:
    """Return the name of an argument, and a value for it if one is given, for the text of a `Sentence`.

    Examples
    --------
    >>> Sentence(f"lower {argument('min_cells')}, or use {argument('landmarks', 4000)}")
    'lower min_cells, or use landmarks=4000'
    """
    return _BEGIN + _VALUE.join([name, *map(repr, value)]) + _END


def in_python(words: str) -> str:
    """Return words that only a Python user can follow, for the text of a `Sentence`; other front ends omit them.

    Examples
    --------
    >>> sentence = Sentence(f"use fewer landmarks{in_python(', or call hm.compare')}")
    >>> sentence, sentence.spelled(lambda name, value: name)
    ('use fewer landmarks, or call hm.compare', 'use fewer landmarks')
    """
    return _BEGIN + _VALUE + words + _END


def counted(number: int, what: str) -> str:
    """Return a number with its noun, the one way in which messages, tables and reports count.

    Parameters
    ----------
    number
        How many; thousands are set apart.
    what
        The noun for one of them.

    Examples
    --------
    >>> counted(1, "step"), counted(0, "step"), counted(1200, "copy"), counted(2, "batch"), counted(3, "day")
    ('1 step', '0 steps', '1,200 copies', '2 batches', '3 days')
    """
    return f"{number:,} {what if number == 1 else _plural(what)}"


def verb(number: int, one: str, many: str) -> str:
    """Return the verb that goes with so many.

    Examples
    --------
    >>> [f"{counted(n, 'row')} that {verb(n, 'has', 'have')} no mass" for n in (1, 2)]
    ['1 row that has no mass', '2 rows that have no mass']
    """
    return one if number == 1 else many


def _plural(noun: str) -> str:
    if noun.endswith("axis"):
        return noun[:-2] + "es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


class Sentence(str):
    """Text that reads as Python calls the arguments in it, and knows which words of it are arguments.

    Parameters
    ----------
    marked
        Text in which `argument` made the names of arguments.

    Examples
    --------
    >>> sentence = Sentence(f"raise {argument('n_neighbors')}")
    >>> sentence
    'raise n_neighbors'
    >>> sentence.spelled(lambda name, value: "--neighbors")
    'raise --neighbors'
    """

    __slots__ = ("marked",)
    marked: str

    def __new__(cls, marked: str) -> Sentence:
        """Spell the arguments as Python does, and keep where they are."""
        self = super().__new__(cls, _spell(marked, _in_python))
        self.marked = marked
        return self

    def spelled(self, spell: Callable[[str, str | None], str]) -> str:
        """Return the text with other names: ``spell`` gets that of an argument, and its value as Python writes it."""
        return _spell(self.marked, spell)

    def __getnewargs__(self) -> tuple[str]:
        return (self.marked,)


def _spell(marked: str, spell: Callable[[str, str | None], str]) -> str:
    return _MARKED.sub(lambda match: spell(match[1], match[2]), marked)


def _in_python(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}" if name else value


def _marked(text: str) -> str:
    return text.marked if isinstance(text, Sentence) else text


class HeatmoverError(Exception):
    """Base class of every error that heatmover raises on purpose."""

    @property
    def sentence(self) -> Sentence:
        """What the error says."""
        said = self.args[0]
        return said if isinstance(said, Sentence) else Sentence(str(self))


class InvalidInputError(HeatmoverError, ValueError):
    """An argument is not what the called function can work with.

    Parameters
    ----------
    expected
        What the function needs, e.g. ``"points without NaN"``.
    found
        What it was given, with numbers, e.g. ``"3 NaN in 2 rows (first: row 17)"``.
    advice
        What the caller can do about it; may be empty.

    Examples
    --------
    >>> raise InvalidInputError("alpha in (0, 1]", "alpha=2.0", "use alpha=0.5 if unsure")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected alpha in (0, 1], found alpha=2.0; use alpha=0.5 if unsure.
    """

    def __init__(self, expected: str, found: str, advice: str = "") -> None:
        self.expected, self.found, self.advice = map(Sentence, map(_marked, (expected, found, advice)))
        instead = f"; {self.advice.marked}" if advice else ""
        super().__init__(Sentence(f"Expected {self.expected.marked}, found {self.found.marked}{instead}."))

    def __reduce__(self) -> tuple[type[InvalidInputError], tuple[str, str, str]]:
        # The default would call __init__ with the finished sentence; errors cross process borders in joblib.
        return type(self), (self.expected.marked, self.found.marked, self.advice.marked)


class MissingExtraError(HeatmoverError, ImportError):
    """An optional package is needed and not installed; the message names the extra."""

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(f"Expected the package {package!r}, found it missing; pip install 'heatmover[{extra}]'.")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before it reached the accuracy asked for; the message says how far it is."""


class GraphWarning(UserWarning):
    """The graph is legal but has a property the user should know, such as several components."""


class EmbeddingWarning(UserWarning):
    """The embedding is not what the settings alone would give, for instance because it would be too large."""


def __dir__() -> list[str]:
    return sorted(__all__)
