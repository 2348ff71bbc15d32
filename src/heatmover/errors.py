"""Define errors, warnings and sentences, which name arguments or options; for users and all modules; touch no files.

Messages say what was expected, what was found, and what to do. A `Sentence` marks the names of arguments, so that every
front end can replace them by the names of its options.
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

# Control characters that mark the name of an argument and the beginning of its value. Text from users never contains
# these characters, because quoting escapes them.
_BEGIN, _VALUE, _END = "\x02", "\x1f", "\x03"
_MARKED = re.compile(f"{_BEGIN}([^{_VALUE}{_END}]*)(?:{_VALUE}([^{_END}]*))?{_END}")


def argument(name: str, *value: object) -> str:
    """Return the marked name of an argument, with a value if one is given, for the text of a `Sentence`.

    Examples
    --------
    >>> Sentence(f"lower {argument('min_cells')}, or use {argument('landmarks', 4000)}")
    'lower min_cells, or use landmarks=4000'
    """
    return _BEGIN + _VALUE.join([name, *map(repr, value)]) + _END


def in_python(words: str) -> str:
    """Mark words of a `Sentence` that only Python users see; other front ends omit these words.

    Examples
    --------
    >>> sentence = Sentence(f"use fewer landmarks{in_python(', or call hm.compare')}")
    >>> sentence, sentence.spelled(lambda name, value: name)
    ('use fewer landmarks, or call hm.compare', 'use fewer landmarks')
    """
    return _BEGIN + _VALUE + words + _END


def the_argument(name: str) -> str:
    """Return the marked name of an argument, after the words "the argument" for Python users.

    Names such as "cells" are also plain nouns, and an error would be ambiguous without these words.

    Examples
    --------
    >>> raise InvalidInputError(f"{the_argument('variables')} to be a list of names", "'age'")
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected the argument variables to be a list of names, found 'age'.
    """
    return f"{in_python('the argument ')}{argument(name)}"


def counted(number: int, what: str) -> str:
    """Return a number with its noun, for messages, tables and reports.

    Parameters
    ----------
    number
        Number, which is printed with thousands separators.
    what
        The noun in the singular.

    Examples
    --------
    >>> counted(1, "step"), counted(0, "step"), counted(1200, "copy"), counted(2, "batch"), counted(3, "day")
    ('1 step', '0 steps', '1,200 copies', '2 batches', '3 days')
    """
    return f"{number:,} {what if number == 1 else _plural(what)}"


def verb(number: int, one: str, many: str) -> str:
    """Return the singular or plural form of a verb.

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
    """Text with the Python names of arguments, which other front ends replace by the names of their options.

    Parameters
    ----------
    marked
        Text in which the names of arguments are marked by `argument`.

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
        """Create the text with the Python names of arguments, and store the marked text."""
        self = super().__new__(cls, _spell(marked, _in_python))
        self.marked = marked
        return self

    def spelled(self, spell: Callable[[str, str | None], str]) -> str:
        """Return the text with each argument replaced by ``spell(name, value)``; value is Python source or None."""
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
        """Message of the error."""
        message = self.args[0]
        return message if isinstance(message, Sentence) else Sentence(str(self))


class InvalidInputError(HeatmoverError, ValueError):
    """An argument that the called function cannot use.

    Parameters
    ----------
    expected
        Input that the function needs, e.g. ``"points without NaN"``.
    found
        Input that the function received, with numbers, e.g. ``"3 NaN in 2 rows (first: row 17)"``.
    advice
        Advice for the caller; may be empty.

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
        # joblib pickles errors to send them between processes. The default would pass the whole sentence to __init__.
        return type(self), (self.expected.marked, self.found.marked, self.advice.marked)


class MissingExtraError(HeatmoverError, ImportError):
    """An optional package is missing; the message names the package to install and the extra that includes it.

    ``package`` may be several names with spaces between them.
    """

    def __init__(self, package: str, extra: str) -> None:
        self.package, self.extra = package, extra
        names = package.split()
        what = f"the package {package!r}" if len(names) == 1 else f"the packages {', '.join(map(repr, names))}"
        missing = "it missing" if len(names) == 1 else "them missing"
        super().__init__(
            f"Expected {what}, found {missing}; run 'pip install {package}' (part of the extra heatmover[{extra}])."
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.package, self.extra)


class ConvergenceWarning(UserWarning):
    """An iterative method stopped before it reached the requested accuracy; the message gives the remaining error."""


class GraphWarning(UserWarning):
    """The graph is valid but has a property that users should know about, such as several components."""


class EmbeddingWarning(UserWarning):
    """An embedding was compressed because of its size, or measures were passed where an embedding is expected."""


def __dir__() -> list[str]:
    return sorted(__all__)
