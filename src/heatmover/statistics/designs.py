"""Designs: what may explain distances, as terms of a linear model, and their PERMANOVA by permuted residuals."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import by_one_blas_thread
from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import LabelNames, RandomState, check_option, check_word
from heatmover._base.words import counted, distinct, find, listed, quoted
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing
from heatmover.statistics.permutations import Restriction, by_blocks, permute, probability, restrict
from heatmover.statistics.samples import check_distances, check_labels, check_numbers

__all__ = [
    "Design",
    "DesignResult",
    "Spaces",
    "Term",
    "TermResult",
    "as_design",
    "beside",
    "blocks_of_one_value",
    "check_design",
    "check_mixed",
    "covariates",
    "f_ratio",
    "formula_names",
    "formula_terms",
    "gower",
    "orthonormal",
    "permanova_design",
    "residual_test",
    "within_blocks",
]

# Columns of length 1 whose part outside of other columns is shorter are combinations of them: rounding stays far
# below, and what differs by less was not meant to differ. R's tolerance.
DEPENDENT = 1e-7
# A summand of a formula: variables with : and * between them, or the mean, which may also be taken off. A name with
# other characters than letters, digits, dots and underscores is in backticks.
NAME = r"[^\W\d][\w.]*|`[^`]+`"
SUMMAND = re.compile(rf"(?P<sign>\+|-(?=\s*1\b))?\s*(?:1\b|(?P<product>(?:{NAME})(?:\s*[:*]\s*(?:{NAME}))*))\s*")
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
        coded = _checked(columns, categorical)
        return cls._made([(name,) for name in coded], coded)

    @classmethod
    def from_formula(
        cls, formula: str, columns: Mapping[str, Any] | Any, *, categorical: Collection[str] = ()
    ) -> Design:
        """Return the design that a formula describes.

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
        coded = _checked({name: columns[keyed[name]] for name in wanted}, set(categorical) & set(wanted))
        return cls._made(terms, coded)

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
    products = _products_of(check_word("formula", formula))
    return list(dict.fromkeys(name for factors in products for names in factors for name in names))


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
    for name in formula_names(formula):
        find(name, known, "a variable in the formula")
    terms: dict[frozenset[str], tuple[str, ...]] = {}
    for factors in _products_of(formula):
        expanded: list[list[str]] = []
        for names in factors:  # a * b is a + b + a:b
            expanded += [names, *([*before, *names] for before in expanded)]
        for names in expanded:
            terms.setdefault(frozenset(names), tuple(dict.fromkeys(names)))
    return sorted(terms.values(), key=len)


def _products_of(formula: str) -> list[list[list[str]]]:
    """Return the summands of a formula, each the factors of a product, each the names of an interaction; or raise."""
    rest = formula.strip().removeprefix("~").strip()  # as in R
    products, is_first = [], True
    while rest:
        match = SUMMAND.match(rest)
        if match is None or (match["sign"] is None) != is_first:
            raise _not_a_formula(formula, rest)
        if match["product"] is not None:
            factors: list[list[str]] = [[]]
            for piece in re.findall(rf"{NAME}|\*", match["product"]):
                if piece == "*":
                    factors.append([])
                else:
                    factors[-1].append(piece.strip("`"))
            products.append(factors)
        rest, is_first = rest[match.end() :], False
    if not products:
        raise _not_a_formula(formula, "")
    return products


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
            raise _one_value(name)
        # No unit matters; near 1 no square overflows.
        return (numbers / (np.abs(numbers).max() or 1.0))[:, None]
    codes, groups = check_labels(quoted(name), values, n_samples)
    if len(groups) < 2:
        raise _one_value(name)
    single = [group for group, size in zip(groups, np.bincount(codes), strict=True) if size == 1]
    if single:
        raise InvalidInputError(
            f"at least two samples of every group of {quoted(name)} in a design",
            f"one of {listed(single)}",
            "join small groups, or leave them out" if len(single) < n_samples else "leave the variable out",
        )
    return np.eye(len(groups))[codes]


def _one_value(name: str) -> InvalidInputError:
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


@final
@dataclass(frozen=True, eq=False)
class TermResult(ReadOnlyArrays):
    """What was found of one term of a design.

    Attributes
    ----------
    term
        Its name.
    degrees_of_freedom
        Columns that it adds to the terms that are held fixed.
    sum_of_squares
        Explained by it beyond these terms, in squares of the distances.
    r_squared
        Share of the total sum of squares.
    partial_r_squared
        Share of what is left by these terms: ``sum_of_squares`` over it and the residual.
    statistic
        F: over the residual of all terms; infinite if there is none.
    p_value, smallest_p, null, complete
        As in `heatmover.statistics.TestResult`; the null holds F of the permutations, blocks held fixed if the term
        changes places within them. The F that it is compared with then holds them fixed too, and is not ``statistic``.
    blocks
        How blocks counted for this term, as in `heatmover.statistics.permutations.Restriction`.

    Examples
    --------
    >>> from heatmover.statistics import Design, permanova_design
    >>> age = np.array([20.0, 31.0, 42.0, 53.0, 64.0, 75.0])
    >>> design = Design.from_columns({"sex": list("fmfmfm"), "age": age})
    >>> term = permanova_design(abs(age[:, None] - age), design)["age"]
    >>> term.degrees_of_freedom, round(term.partial_r_squared, 3)
    (1, 1.0)
    """

    term: str
    degrees_of_freedom: int
    sum_of_squares: float
    r_squared: float
    partial_r_squared: float
    statistic: float
    p_value: float
    smallest_p: float
    null: Float64
    complete: bool
    blocks: str = ""

    def plain(self) -> dict[str, Any]:
        """Return everything but the null as plain values for JSON, in which infinity is text."""
        return {
            "term": self.term,
            "degrees_of_freedom": self.degrees_of_freedom,
            "sum_of_squares": self.sum_of_squares,
            "r_squared": self.r_squared,
            "partial_r_squared": self.partial_r_squared,
            "statistic": self.statistic if np.isfinite(self.statistic) else str(self.statistic),
            "p_value": self.p_value,
            "smallest_p": self.smallest_p,
            "permutations": len(self.null),
            "complete": self.complete,
            "blocks": self.blocks,
        }


@final
@dataclass(frozen=True, eq=False, repr=False)
class DesignResult:
    """The table of `permanova_design`; ``print`` it.

    Attributes
    ----------
    by
        ``"terms"`` or ``"margin"``.
    terms
        The tests.
    residual_degrees_of_freedom, residual_sum_of_squares
        Of all terms together.
    total_degrees_of_freedom, total_sum_of_squares
        Around the mean.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> batch, condition = np.repeat(["b1", "b2"], 10), np.tile(["case", "control"], 10)
    >>> places = rng.normal(size=20) + 2 * (batch == "b2") + (condition == "case")
    >>> design = Design.from_columns({"batch": batch, "condition": condition})
    >>> print(permanova_design(abs(places[:, None] - places), design))
    term       df  sum of squares  R2     partial R2  F     p
    batch      1   10.72           0.421  0.462       14.6  0.002
    condition  1   2.225           0.087  0.151       3.03  0.098
    residual   17  12.49           0.491
    total      19  25.44           1.000
    """

    by: Literal["terms", "margin"]
    terms: tuple[TermResult, ...]
    residual_degrees_of_freedom: int
    residual_sum_of_squares: float
    total_degrees_of_freedom: int
    total_sum_of_squares: float

    def __getitem__(self, term: str) -> TermResult:
        for result in self.terms:
            if result.term == term:
                return result
        raise InvalidInputError("a term that was tested", quoted(term), f"there are {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms that were tested."""
        return tuple(result.term for result in self.terms)

    def plain(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "by": self.by,
            "terms": [result.plain() for result in self.terms],
            "residual": {
                "degrees_of_freedom": self.residual_degrees_of_freedom,
                "sum_of_squares": self.residual_sum_of_squares,
            },
            "total": {
                "degrees_of_freedom": self.total_degrees_of_freedom,
                "sum_of_squares": self.total_sum_of_squares,
            },
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: a row for each term, the residual and the total, cells as many as there are."""
        total = self.total_sum_of_squares or 1.0
        lines = [
            (result.term, str(result.degrees_of_freedom), f"{result.sum_of_squares:.4g}", f"{result.r_squared:.3f}",
             f"{result.partial_r_squared:.3f}", f"{result.statistic:.3g}", f"{result.p_value:.2g}")
            for result in self.terms
        ]  # fmt: skip
        residual, around = self.residual_sum_of_squares, self.total_sum_of_squares
        return [
            *lines,
            ("residual", str(self.residual_degrees_of_freedom), f"{residual:.4g}", f"{residual / total:.3f}"),
            ("total", str(self.total_degrees_of_freedom), f"{around:.4g}", f"{around / total:.3f}"),
        ]

    def __str__(self) -> str:
        heading = ("term", "df", "sum of squares", "R2", "partial R2", "F", "p")
        lines = [heading, *self.rows()]
        widths = [max(len(line[place]) for line in lines if len(line) > place) for place in range(len(heading))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip()
                         for line in lines)  # fmt: skip

    def __repr__(self) -> str:
        return f"DesignResult({', '.join(f'{result.term}: p = {result.p_value:.2g}' for result in self.terms)})"


class Spaces(NamedTuple):
    """A term among the others, each part an orthonormal basis ``(n_samples, rank)``, all orthogonal to each other.

    ``fixed``: the mean and the terms that are held fixed. ``tested``: what the term adds. ``rest``: the other terms,
    which count for the residual only.
    """

    fixed: Float64
    tested: Float64
    rest: Float64

    @property
    def residual_degrees_of_freedom(self) -> int:
        """Samples less all columns."""
        return int(len(self.fixed) - sum(part.shape[1] for part in self))


class _Tested(NamedTuple):
    """Sums of squares of a term and of the residual, and by permutations the share of the first of both."""

    explained: float
    residual: float
    share: float
    null: Float64
    complete: bool


@by_one_blas_thread
def permanova_design(
    distances: npt.ArrayLike,
    design: Design,
    *,
    by: Literal["terms", "margin"] = "margin",
    blocks: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> DesignResult:
    """Test the terms of a design, each with others held fixed (McArdle and Anderson 2001).

    Permuted are the residuals of the terms held fixed (Freedman and Lane 1983), so that what these explain counts
    neither for nor against a term that goes with them. Sums of squares, F and degrees of freedom are those of R's
    ``vegan::adonis2``.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    design
        From `Design.from_columns` or `Design.from_formula`.
    by
        ``"margin"``: each term with all others held fixed, but for interactions that contain it; a term that is part of
        an interaction is not tested. ``"terms"``: each with those before it held fixed.
    blocks, n_permutations, random_state
        As in `permanova`. Residuals change places within blocks, which are held fixed too; or blocks exchange their
        mean residuals if the term is the same in all samples of every block.

    Returns
    -------
    DesignResult

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> age, condition = rng.uniform(20, 80, size=30), np.repeat(["case", "control"], 15)
    >>> places = age / 10 + (condition == "case") + rng.normal(size=30)
    >>> design = Design.from_formula("condition * age", {"condition": condition, "age": age})
    >>> permanova_design(abs(places[:, None] - places), design, by="terms").names
    ('condition', 'age', 'condition:age')
    """
    check_option("by", by, ("terms", "margin"))
    matrix = check_distances(distances)
    if design.n_samples != len(matrix):
        raise InvalidInputError(
            f"a design of {counted(len(matrix), 'sample')}, as many as in distances", f"{design.n_samples}"
        )
    unit = float(matrix.max()) or 1.0
    gram = gower(matrix / unit)
    total = float(np.trace(gram))
    results = []
    for term, spaces, restriction in _set_up(design, by, blocks):
        within = within_blocks(spaces, restriction, quoted(term.name))
        test = residual_test(gram, within, restriction, n_permutations, random_state)
        results.append(_result(term, _Explained.by(gram, spaces, total), (within, test, restriction.how), unit**2))
    size = len(matrix) - 1
    left = _Explained.by(gram, spaces, total).residual
    return DesignResult(by, tuple(results), spaces.residual_degrees_of_freedom, left * unit**2, size, total * unit**2)


def check_design(design: Design, *, by: Literal["terms", "margin"] = "margin", blocks: Any | None = None) -> None:
    """Raise if `permanova_design` would refuse a design, whatever the distances.

    Examples
    --------
    >>> check_design(Design.from_columns({"batch": list("xxyy"), "condition": list("aabb")}))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected 'batch' to differ from a combination of 'condition', found none ...
    """
    _set_up(design, by, blocks)


def _set_up(
    design: Design, by: Literal["terms", "margin"], blocks: Any | None
) -> list[tuple[Term, Spaces, Restriction]]:
    """Return every term to test with its spaces and what blocks allow it."""
    tests = []
    for term, spaces in _sequential(design) if by == "terms" else _marginal(design):
        tests.append((term, spaces, restrict(_codes(term), blocks)))
    return tests


class _Explained(NamedTuple):
    """Sums of squares of a term and of the residual, their degrees of freedom, and the sum of squares of all."""

    term: float
    residual: float
    freedom: int
    left: int
    total: float

    @classmethod
    def by(cls, gram: Float64, spaces: Spaces, total: float) -> _Explained:
        fixed, tested, rest = (float(np.einsum("ij,ij->", part, gram @ part)) for part in spaces)
        left = total - fixed - tested - rest
        return cls(tested, left, spaces.tested.shape[1], spaces.residual_degrees_of_freedom, total)

    @property
    def share(self) -> float:
        both = self.term + self.residual
        return self.term / both if both > 0 else 0.0


def _result(term: Term, own: _Explained, tested: tuple[Spaces, _Tested, str], unit: float) -> TermResult:
    within, test, how = tested
    null = f_ratio(test.null, within.tested.shape[1], within.residual_degrees_of_freedom)
    p, smallest = probability(test.share, test.null, test.complete)
    f = float(f_ratio(np.array([own.share]), own.freedom, own.left)[0])
    share = own.term / own.total if own.total > 0 else 0.0
    return TermResult(
        term.name, own.freedom, own.term * unit, share, own.share, f, p, smallest, null, test.complete, how
    )  # fmt: skip


def within_blocks(spaces: Spaces, restriction: Restriction, what: str) -> Spaces:
    """Return a term among others and the blocks within which it changes places, which are held fixed too.

    Residuals of a model without the blocks hold what these add to the slopes of numbers, and called 15 % of pairs
    without a difference different at 5 %.

    Parameters
    ----------
    spaces
        The term among others.
    restriction
        What blocks allow it; without blocks to stay within, the spaces are returned as they are.
    what
        What the term is called in messages.
    """
    if restriction.within is None:
        return spaces
    blocks = np.eye(int(restriction.within.max()) + 1)[restriction.within]
    fixed = np.hstack([spaces.fixed, orthonormal(blocks, spaces.fixed)])
    tested = orthonormal(spaces.tested, fixed)
    if not tested.shape[1]:
        raise InvalidInputError(
            f"{what} to differ within blocks from a combination of the covariates", "none of it left beside them",
            "adjust for fewer",
        )  # fmt: skip
    inside = Spaces(fixed, tested, orthonormal(spaces.rest, np.hstack([fixed, tested])))
    if inside.residual_degrees_of_freedom < 1:
        raise InvalidInputError(
            f"covariates and blocks that leave some of {counted(len(fixed), 'sample')} to compare",
            f"{counted(fixed.shape[1] - 1, 'column')} of them",
            "adjust for fewer",
        )
    return inside


def f_ratio(share: Float64, freedom: int, left: int) -> Float64:
    """Return F from the share of a term in the sum of squares of the term and the residual; infinite if it is all."""
    rest = np.maximum(1 - share, 0.0) / left
    return np.divide(share / freedom, rest, out=np.full_like(share, np.inf), where=rest > 0)


def gower(matrix: Float64) -> Float64:
    """Return the products of samples around their mean, ``(n_samples, n_samples)``, from their distances."""
    squared = -0.5 * matrix**2
    means = squared.mean(axis=0)
    return np.asarray(squared - means - means[:, None] + means.mean())


def _constant(n_samples: int) -> Float64:
    return np.full((n_samples, 1), 1 / np.sqrt(n_samples))


def _sequential(design: Design) -> Iterator[tuple[Term, Spaces]]:
    """Yield every term with those before it held fixed."""
    fixed = _constant(design.n_samples)
    parts = []
    for place, term in enumerate(design.terms):
        added = orthonormal(term.columns, fixed)
        if not added.shape[1]:
            raise _dependent(quoted(term.name), [before.name for before in design.terms[:place]])
        parts.append((fixed, added))
        fixed = np.hstack([fixed, added])
    _check_residual(design, fixed)
    for place, (term, (before, added)) in enumerate(zip(design.terms, parts, strict=True)):
        after = [later for _, later in parts[place + 1 :]]
        yield term, Spaces(before, added, np.hstack([np.zeros((design.n_samples, 0)), *after]))


def _marginal(design: Design) -> Iterator[tuple[Term, Spaces]]:
    """Yield every term that is no part of an interaction, with all other terms held fixed."""
    terms = []
    for term in design.terms:
        others = [other for other in design.terms if other is not term]
        if any(set(term.variables) < set(other.variables) for other in others):
            continue
        fixed = covariates(others, design.n_samples)
        added = orthonormal(term.columns, fixed)
        if not added.shape[1]:
            raise _dependent(quoted(term.name), [other.name for other in others])
        _check_residual(design, np.hstack([fixed, added]))
        terms.append((term, Spaces(fixed, added, np.zeros((design.n_samples, 0)))))
    yield from terms


def covariates(terms: Iterable[Term], n_samples: int) -> Float64:
    """Return an orthonormal basis of the mean and of some terms, ``(n_samples, rank)``."""
    basis = _constant(n_samples)
    for term in terms:
        basis = np.hstack([basis, orthonormal(term.columns, basis)])
    return basis


def as_design(adjust: Any, n_samples: int) -> Design:
    """Return covariates as a design, or raise if they are of other samples."""
    design = adjust if isinstance(adjust, Design) else Design.from_columns(adjust)
    if design.n_samples != n_samples:
        raise InvalidInputError(
            f"covariates of {counted(n_samples, 'sample')}, as many as in distances", f"{design.n_samples}"
        )
    return design


def beside(columns: Float64, design: Design, what: str) -> Spaces:
    """Return what columns add to a design that is held fixed, or raise if that is nothing or leaves nothing.

    Parameters
    ----------
    columns
        Of what is tested, ``(n_samples, n_columns)``.
    design
        Held fixed.
    what
        What the columns are called in messages.
    """
    fixed = covariates(design.terms, len(columns))
    tested = orthonormal(columns, fixed)
    if not tested.shape[1]:
        raise _dependent(what, design.names)
    spaces = Spaces(fixed, tested, np.zeros((len(columns), 0)))
    if spaces.residual_degrees_of_freedom < 1:
        raise InvalidInputError(
            f"covariates that leave some of {counted(len(columns), 'sample')} to compare",
            f"{counted(fixed.shape[1] - 1, 'column')} of {', '.join(map(quoted, design.names))}",
            "adjust for fewer",
        )
    return spaces


def _dependent(what: str, others: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        f"{what} to differ from a combination of {', '.join(map(quoted, others)) or 'the mean'}",
        "none of it left beside them",
        "no adjustment can tell them apart: leave one of them out",
    )


def _check_residual(design: Design, basis: Float64) -> None:
    if basis.shape[1] >= design.n_samples:
        raise InvalidInputError(
            f"a design with fewer than {counted(design.n_samples, 'column')}, the number of samples",
            f"{basis.shape[1]} for {' + '.join(design.names)} and the mean",
            "leave terms out",
        )


def _codes(term: Term) -> Int64:
    """Return a code for each sample: equal where all columns of the term are."""
    return np.unique(term.columns, axis=0, return_inverse=True)[1].astype(np.int64).ravel()


def check_mixed(name: str, values: npt.NDArray[Any], restriction: Restriction) -> None:
    """Raise if a block within which a variable changes places holds one value of it only, and so says nothing of it.

    Parameters
    ----------
    name
        Of the variable, as it is to be read.
    values
        ``(n_samples,)``.
    restriction
        What blocks allow it.
    """
    alone, n_blocks = blocks_of_one_value(values, restriction)
    if alone:
        raise InvalidInputError(
            f"at least two groups, or values, of {name} in every block",
            f"one only in {alone} of {counted(n_blocks, 'block')}",
            "leave these samples out, or adjust for the blocks instead",
        )


def blocks_of_one_value(values: npt.NDArray[Any], restriction: Restriction) -> tuple[int, int]:
    """Return how many of the blocks within which values change places hold one value only, and how many there are."""
    if restriction.within is None:
        return 0, 0
    pairs = np.unique(np.column_stack([restriction.within, np.unique(values, return_inverse=True)[1]]), axis=0)
    counts = np.unique(pairs[:, 0], return_counts=True)[1]
    return int((counts == 1).sum()), len(counts)


def residual_test(
    gram: Float64, spaces: Spaces, restriction: Restriction, n_permutations: int, random_state: RandomState
) -> _Tested:
    """Test a term by permutations of the residuals of what is held fixed (Freedman and Lane 1983).

    Parameters
    ----------
    gram
        Products of samples around their mean, ``(n_samples, n_samples)``.
    spaces
        The term and what is held fixed.
    restriction
        Which residuals may change places.
    n_permutations, random_state
        As in `heatmover.statistics.permutations.permute`.
    """
    n_samples = len(gram)
    unit_of = np.arange(n_samples) if restriction.units is None else restriction.units
    drawn = permute(unit_of, restriction, n_permutations=n_permutations, random_state=random_state)
    first = np.unique(unit_of, return_index=True)[1]
    left = _without(gram, spaces.fixed)
    # The mean of permuted residuals stays zero in samples that count alike, and moves with blocks of unequal size.
    basis = np.hstack([spaces.tested, spaces.rest, spaces.fixed])
    moves = _Moves(left, basis, unit_of)
    explained, rest = moves.sums(np.arange(len(first))[None], spaces.tested.shape[1])

    def shares(part: slice) -> Float64:
        return _share(*moves.sums(drawn.shuffled[part, first], spaces.tested.shape[1]))

    null = by_blocks(shares, len(drawn.shuffled), n_samples, columns=basis.shape[1])
    share = float(_share(explained, rest)[0])
    return _Tested(float(explained[0]), float(rest[0]), share, null, drawn.complete)


def _share(explained: Float64, rest: Float64) -> Float64:
    both = explained + rest
    return np.divide(explained, both, out=np.zeros_like(both), where=both > 0)


def _without(gram: Float64, basis: Float64) -> Float64:
    """Return the products of what a basis does not explain."""
    half = gram - basis @ (basis.T @ gram)
    left = half - (half @ basis) @ basis.T
    return np.asarray((left + left.T) / 2)


class _Moves:
    """Sums of squares of residuals that change places: those of samples, or the means of blocks.

    With a matrix M that moves residuals, a basis Q explains the trace of Q' M E M' Q of their products E. M' Q is Q
    with its rows in another order; for blocks it is the sums of Q over blocks in another order, spread evenly over the
    samples of each, and within blocks Q as it was.
    """

    def __init__(self, left: Float64, basis: Float64, unit_of: Int64) -> None:
        self.left, self.unit_of = left, unit_of
        self.sizes = np.bincount(unit_of).astype(np.float64)
        self.whole = bool(self.sizes.max() > 1)
        onto = np.zeros((len(self.sizes), len(unit_of)))
        onto[unit_of, np.arange(len(unit_of))] = 1.0
        self.sums_of = onto @ basis if self.whole else basis
        self.within = basis - (self.sums_of / self.sizes[:, None])[unit_of]
        # Squared length of the mean residual of each block.
        self.lengths = np.einsum("bi,bi->b", onto @ left, onto) / self.sizes**2 if self.whole else np.diag(left)
        self.total = float(np.trace(left))

    def sums(self, orders: Int64, n_tested: int) -> tuple[Float64, Float64]:
        """Return what the first columns explain and what no column explains, each ``(n_orders,)``."""
        rank = self.within.shape[1]
        moved = self.sums_of[orders]  # (n_orders, n_units, rank)
        if self.whole:
            moved = (moved / self.sizes[:, None])[:, self.unit_of] + self.within
        flat = np.ascontiguousarray(moved.transpose(1, 0, 2)).reshape(len(self.unit_of), -1)
        squares = np.einsum("ij,ij->j", flat, self.left @ flat).reshape(len(orders), rank)
        total = self.total + (self.sizes[orders] - self.sizes) @ self.lengths
        return squares[:, :n_tested].sum(axis=1), total - squares.sum(axis=1)
