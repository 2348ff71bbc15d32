"""`Design`: what may explain the distances between samples, as terms of a linear model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._readonly import ReadOnlyArrays
from heatmover._threads import by_one_blas_thread
from heatmover._typing import Bool, Float64
from heatmover._validation import LabelNames, check_word, import_extra
from heatmover._words import counted, distinct, find, listed, quoted
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing
from heatmover.statistics.samples import check_labels, check_numbers

__all__ = ["Design", "Term", "formula_names", "formula_terms", "orthonormal"]

# Columns of length 1 whose part outside of other columns is shorter are combinations of them: rounding stays far
# below, and what differs by less was not meant to differ. R's tolerance.
DEPENDENT = 1e-7
# A formula in pieces: names, those with other characters in backticks, and signs; anything else is refused.
PIECES = re.compile(r"\s*(?:(?P<name>[^\W\d][\w.]*)|`(?P<quoted>[^`]+)`|(?P<sign>[+:*])|(?P<one>-?\s*1\b))")
GRAMMAR = "a formula of names of variables with +, : and * between them"


@final
@dataclass(frozen=True, eq=False)
class Term(ReadOnlyArrays):
    """One term of a design: a variable, or the interaction of several.

    Attributes
    ----------
    name
        Of the variables, with colons between them.
    variables
        Their names.
    columns
        ``(n_samples, n_columns)``: a number as it is, a variable of groups as one column of 0 and 1 for each group, an
        interaction as the products of all these.
    """

    name: str
    variables: tuple[str, ...]
    columns: Float64


@final
@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """What may explain the distances between samples: terms, in order. The mean is always part of a design.

    Attributes
    ----------
    terms
        Variables and interactions.
    n_samples
        Number of samples.

    Examples
    --------
    >>> columns = {"condition": list("aabbab"), "age": [31, 44, 25, 60, 52, 38]}
    >>> Design.from_columns(columns)
    Design(condition + age, 6 samples)
    >>> Design.from_formula("condition * age", columns)
    Design(condition + age + condition:age, 6 samples)
    """

    terms: tuple[Term, ...]
    n_samples: int

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any] | Any, *, categorical: Collection[str] = ()) -> Design:
        """Return a design with one term for each column.

        Parameters
        ----------
        columns
            Values ``(n_samples,)`` by name: a mapping or a DataFrame. Numbers count as numbers, text and truth values
            as groups.
        categorical
            Names of numbers that stand for groups, such as codes of batches.
        """
        found = _checked(columns, categorical)
        return cls._made([(name,) for name in found], found)

    @classmethod
    def from_formula(
        cls, formula: str, columns: Mapping[str, Any] | Any, *, categorical: Collection[str] = ()
    ) -> Design:
        """Return the design that a formula describes; needs the package formulaic.

        Parameters
        ----------
        formula
            Names of columns with ``+`` between terms, ``:`` between the variables of an interaction and ``*`` for both
            and their interaction, such as ``"condition * sex + age"``; a name with other characters than letters,
            digits, dots and underscores in backticks. It is read, never run: anything else is refused. The mean is
            always part of the design, with ``1`` or ``-1`` too: distances say nothing of it.
        columns, categorical
            As in `from_columns`; columns that the formula does not name are left aside.
        """
        check_word("formula", formula)
        names = [str(name) for name in columns]
        terms = formula_terms(formula, names)
        wanted = dict.fromkeys(name for term in terms for name in term)
        keyed = dict(zip(names, columns, strict=True))
        found = _checked({name: columns[keyed[name]] for name in wanted}, set(categorical) & set(wanted))
        return cls._made(terms, found)

    @classmethod
    def _made(cls, terms: Iterable[Sequence[str]], columns: Mapping[str, Float64]) -> Design:
        if not columns:
            raise InvalidInputError("a design with at least one term", "none")
        made = tuple(
            Term(":".join(names), tuple(names), _products([columns[name] for name in names])) for names in terms
        )
        return cls(made, len(made[0].columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return tuple(term.name for term in self.terms)

    @property
    def columns(self) -> Float64:
        """``(n_samples, n_columns)``: those of all terms."""
        return np.hstack([term.columns for term in self.terms])

    def take(self, kept: Bool) -> Design:
        """Return the design of some of the samples, ``kept`` of shape ``(n_samples,)``."""
        terms = tuple(Term(term.name, term.variables, term.columns[kept]) for term in self.terms)
        return Design(terms, int(np.count_nonzero(kept)))

    def __repr__(self) -> str:
        return f"Design({' + '.join(self.names)}, {counted(self.n_samples, 'sample')})"


def formula_names(formula: str) -> list[str]:
    """Return the names that a formula holds, in their order, or raise if it is none.

    Examples
    --------
    >>> formula_names("age + condition * `cell line`")
    ['age', 'condition', 'cell line']
    """
    return list(dict.fromkeys(piece for kind, piece in _pieces(check_word("formula", formula)) if kind == "name"))


def formula_terms(formula: str, known: Collection[str]) -> list[tuple[str, ...]]:
    """Return the variables of each term of a formula, main effects first; nothing of it is ever evaluated.

    Parameters
    ----------
    formula
        As in `Design.from_formula`.
    known
        Names that it may hold.

    Examples
    --------
    >>> formula_terms("age + condition * sex", ["age", "condition", "sex"])
    [('age',), ('condition',), ('sex',), ('condition', 'sex')]
    >>> formula_terms("exit()", ["age"])
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected a formula of names of variables with +, : and * between them, found ...
    """
    pieces, names = _pieces(formula), formula_names(formula)
    for name in names:
        find(name, known, "a variable in the formula")
    # The package sees no word of the formula but its own numbering of the names.
    alias = {name: f"x{place}" for place, name in enumerate(names)}
    spelled = " ".join(alias[piece] if kind == "name" else piece for kind, piece in pieces)
    package = import_extra("formulaic", package="formulaic", extra="designs")
    named = {short: name for name, short in alias.items()}
    terms = [
        tuple(named[str(factor)] for factor in term.factors if str(factor) in named)
        for term in package.Formula(spelled)
    ]
    return [term for term in terms if term]


def _pieces(formula: str) -> list[tuple[str, str]]:
    """Return names and signs in turn, or raise at the first piece that is neither."""
    rest = formula.strip().removeprefix("~").strip()  # as in R
    pieces: list[tuple[str, str]] = []
    while rest:
        match = PIECES.match(rest)
        piece = None if match is None else _piece(match)
        if match is None or piece is None or not _may_follow(pieces[-1] if pieces else ("sign", "+"), piece):
            raise _not_a_formula(formula, rest)
        pieces.append(piece)
        rest = rest[match.end() :].strip()
    if not any(kind == "name" for kind, _ in pieces) or pieces[-1][0] == "sign":
        raise _not_a_formula(formula, "")
    return pieces


def _piece(match: re.Match[str]) -> tuple[str, str]:
    if match["one"] is not None:
        return ("less one", "- 1") if match["one"].startswith("-") else ("one", "1")
    return ("sign", match["sign"]) if match["sign"] is not None else ("name", match["name"] or match["quoted"])


def _may_follow(before: tuple[str, str], piece: tuple[str, str]) -> bool:
    """Return whether a piece may follow another: names and signs in turn; the mean is added, or taken off, alone."""
    after_sign = before[0] == "sign"
    if piece[0] == "name":
        return after_sign
    if piece[0] == "one":
        return before == ("sign", "+")
    return not after_sign and (before[0] == "name" or piece == ("sign", "+"))


def _not_a_formula(formula: str, rest: str) -> InvalidInputError:
    where = f"{quoted(rest[:20])} in {quoted(formula)}" if rest else quoted(formula)
    return InvalidInputError(GRAMMAR, where, "functions and code are never run; put other names into backticks")


def _checked(columns: Mapping[str, Any] | Any, categorical: Collection[str]) -> dict[str, Float64]:
    """Return the columns of 0 and 1, or of numbers, that stand for each variable."""
    if not (hasattr(columns, "columns") or isinstance(columns, Mapping)):
        raise InvalidInputError("columns by name, in a mapping or a DataFrame", type(columns).__name__)
    keys = list(columns)
    names = LabelNames("columns").add_all(keys)
    distinct(names, "names of columns")
    for name in categorical:
        find(str(name), names, "the name of a column in categorical")
    lists = {name: list(columns[key]) for name, key in zip(names, keys, strict=True)}
    n_samples = len(next(iter(lists.values()), []))
    return {name: _coded(name, values, n_samples, name in categorical) for name, values in lists.items()}


def _coded(name: str, values: list[Any], n_samples: int, categorical: bool) -> Float64:
    """Return numbers ``(n_samples, 1)``, or columns of 0 and 1, ``(n_samples, n_groups)``."""
    if len(values) != n_samples:
        raise InvalidInputError(
            f"{quoted(name)} of as many samples as the other columns, {n_samples}", f"{len(values)}"
        )
    missing = [place for place, value in enumerate(values) if is_missing(value)]
    if missing:
        raise InvalidInputError(
            f"a value of {quoted(name)} for every sample",
            f"{len(missing)} of {n_samples} missing (first: sample {missing[0]})",
            "leave those samples out, or the variable",
        )
    numeric = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    if numeric and not categorical:
        numbers = check_numbers(quoted(name), np.asarray(values, dtype=np.float64), n_samples)
        if n_samples and (numbers == numbers[0]).all():
            raise _constant(name)
        # No unit matters; near 1 no square overflows.
        return (numbers / (np.abs(numbers).max() or 1.0))[:, None]
    codes, groups = check_labels(quoted(name), values, n_samples)
    if len(groups) < 2:
        raise _constant(name)
    single = [group for group, size in zip(groups, np.bincount(codes), strict=True) if size == 1]
    if single:
        raise InvalidInputError(
            f"at least two samples of every group of {quoted(name)} in a design",
            f"one of {listed(single)}",
            "join small groups, or leave them out" if len(single) < n_samples else "leave the variable out",
        )
    return np.eye(len(groups))[codes]


def _constant(name: str) -> InvalidInputError:
    return InvalidInputError(f"{quoted(name)} to differ between samples", "one value in all", "leave it out")


def _products(factors: list[Float64]) -> Float64:
    """Return all products of one column of each factor."""
    columns = factors[0]
    for factor in factors[1:]:
        columns = (columns[:, :, None] * factor[:, None, :]).reshape(len(columns), -1)
    return columns


@by_one_blas_thread
def orthonormal(columns: Float64, outside: Float64) -> Float64:
    """Return an orthonormal basis of what columns add to others.

    Parameters
    ----------
    columns
        ``(n_samples, n_columns)``.
    outside
        ``(n_samples, n_others)``: orthonormal, the constant column first.

    Returns
    -------
    ndarray of shape (n_samples, rank)
        No columns if these are combinations of the others.
    """
    # Lengths without the mean: a year is no combination of ones, however near it seems.
    centered = columns - columns.mean(axis=0)
    lengths = np.sqrt((centered**2).sum(axis=0))
    varying = lengths > DEPENDENT * np.abs(columns).max(axis=0, initial=0.0)
    left = centered[:, varying] / lengths[varying]
    for _ in range(2):  # the second time removes what rounding left
        left = left - outside @ (outside.T @ left)
    vectors, sizes, _ = np.linalg.svd(left, full_matrices=False)
    return np.asarray(vectors[:, sizes > DEPENDENT])
