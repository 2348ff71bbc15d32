"""Define linear models of distances, test terms by permuting residuals; for users, `statistics`, `study`; no files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from heatmover._base.readonly import ReadOnlyArrays
from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Bool, Float64, Int64
from heatmover._base.validation import LabelNames, RandomState, check_option, check_word
from heatmover._base.words import counted, distinct, find, listed, quoted
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing
from heatmover.statistics.permutations import (
    Restriction,
    by_blocks,
    check_distances,
    check_labels,
    check_numbers,
    permute,
    probability,
    restrict,
)
from heatmover.statistics.regression import Residuals

# A column of unit length whose residual on other columns is shorter than this is treated as a linear combination of
# these columns. Rounding errors are far smaller, and variables that are meant to differ leave a far longer residual. R
# uses the same tolerance.
DEPENDENT = 1e-7
# Patterns for the summands of a formula. A summand is either a product of variables, joined by : and *, or the mean,
# which is written 1 and may be subtracted (-1). A name with characters other than letters, digits, dots and underscores
# must be in backticks.
NAME = r"[^\W\d][\w.]*|`[^`]+`"
SUMMAND = re.compile(rf"(?P<sign>\+|-(?=\s*1\b))?\s*(?:1\b|(?P<product>(?:{NAME})(?:\s*[:*]\s*(?:{NAME}))*))\s*")
GRAMMAR = "a formula of variable names joined by +, : and *"

# Statistics of PERMANOVA, and their headings in tables.
Statistic: TypeAlias = Literal["welch", "pseudo-F"]
STATISTICS = {"welch": "Welch F", "pseudo-F": "F"}


@final
@dataclass(frozen=True, eq=False)
class Term(ReadOnlyArrays):
    """One term of a design: a variable, or the interaction of several variables.

    Attributes
    ----------
    name
        Name of the term: the names of its variables, joined by colons.
    variables
        Names of the variables.
    columns
        ``(n_samples, n_columns)``: one column for a numeric variable, one column of 0 and 1 per group for a categorical
        variable, and all products of these columns for an interaction.
    """

    name: str
    variables: tuple[str, ...]
    columns: Float64


@final
@dataclass(frozen=True, eq=False, repr=False)
class Design:
    """Ordered terms that may explain the distances between samples; the mean is always included.

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
            Values ``(n_samples,)`` by name: a mapping or a DataFrame. Numbers form a numeric variable; text and
            booleans form groups.
        categorical
            Names of columns whose numbers encode groups, such as batch codes.
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
            Names of columns, such as ``"condition * sex + age"``. ``+`` joins terms, ``:`` joins the variables of an
            interaction, and ``a * b`` means ``a + b + a:b``. Names with characters other than letters, digits, dots and
            underscores must be in backticks. The formula is parsed and never evaluated, and any other syntax is
            rejected. The mean is always part of the design, even with ``-1``, because distances do not depend on the
            mean.
        columns, categorical
            As in `from_columns`; columns that the formula does not name are ignored.
        """
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
        """``(n_samples, n_columns)``: the columns of all terms."""
        return np.hstack([term.columns for term in self.terms])

    def take(self, kept: Bool) -> Design:
        """Return the design of the samples for which ``kept``, ``(n_samples,)``, is True."""
        terms = tuple(Term(term.name, term.variables, term.columns[kept]) for term in self.terms)
        return Design(terms, int(np.count_nonzero(kept)))

    def __repr__(self) -> str:
        return f"Design({' + '.join(self.names)}, {counted(self.n_samples, 'sample')})"


def formula_names(formula: str) -> list[str]:
    """Return the variable names in a formula, in order, or raise an error if the formula is invalid.

    Examples
    --------
    >>> formula_names("age + condition * `cell line`")
    ['age', 'condition', 'cell line']
    """
    products = _products_of(check_word("formula", formula))
    return list(dict.fromkeys(name for factors in products for names in factors for name in names))


def formula_terms(formula: str, known: Collection[str]) -> list[tuple[str, ...]]:
    """Return the variables of each term of a formula, main effects first; no code is ever evaluated.

    Parameters
    ----------
    formula
        As in `Design.from_formula`.
    known
        Names of variables that the formula may contain.

    Examples
    --------
    >>> formula_terms("age + condition * sex", ["age", "condition", "sex"])
    [('age',), ('condition',), ('sex',), ('condition', 'sex')]
    >>> formula_terms("exit()", ["age"])
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected a formula of variable names joined by +, : and *, found ...
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
    """Return the summands of a formula, or raise an error if the formula is invalid.

    A summand is a list of factors, and a factor is a list of the variables of an interaction.
    """
    rest = formula.strip().removeprefix("~").strip()  # R formulas begin with ~
    products, is_first = [], True
    while rest:
        match = SUMMAND.match(rest)
        if match is None or (match["sign"] is None) != is_first:
            break
        if match["product"] is not None:
            factors: list[list[str]] = [[]]
            for piece in re.findall(rf"{NAME}|\*", match["product"]):
                if piece == "*":
                    factors.append([])
                else:
                    factors[-1].append(piece.strip("`"))
            products.append(factors)
        rest, is_first = rest[match.end() :], False
    if rest or not products:
        where = f"{quoted(rest[:20])} in {quoted(formula)}" if rest else quoted(formula)
        raise InvalidInputError(
            GRAMMAR, where, "formulas cannot contain functions or code; put names with special characters in backticks"
        )
    return products


def _checked(columns: Mapping[str, Any] | Any, categorical: Collection[str]) -> dict[str, Float64]:
    """Return the columns that encode each variable: one column of numbers, or one column of 0 and 1 for each group."""
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
    """Encode a variable as numbers, ``(n_samples, 1)``, or as columns of 0 and 1, ``(n_samples, n_groups)``."""
    if len(values) != n_samples:
        raise InvalidInputError(f"{n_samples} values of {quoted(name)}, as in the other columns", f"{len(values)}")
    missing = [place for place, value in enumerate(values) if is_missing(value)]
    if missing:
        raise InvalidInputError(
            f"a value of {quoted(name)} for every sample",
            f"{len(missing)} of {n_samples} missing (first: sample {missing[0]})",
            "leave out those samples or the variable",
        )
    numeric = all(isinstance(value, int | float | np.number) and not isinstance(value, bool) for value in values)
    if numeric and not categorical:
        numbers = check_numbers(quoted(name), np.asarray(values, dtype=np.float64), n_samples)
        if n_samples and (numbers == numbers[0]).all():
            raise _one_value(name)
        # Divide by the largest number, so that squares do not overflow. Results do not depend on the unit.
        return (numbers / (np.abs(numbers).max() or 1.0))[:, None]
    codes, groups = check_labels(quoted(name), values, n_samples)
    if len(groups) < 2:
        raise _one_value(name)
    single = [group for group, size in zip(groups, np.bincount(codes), strict=True) if size == 1]
    if single:
        raise InvalidInputError(
            f"at least two samples of every group of {quoted(name)} in a design",
            f"groups of one sample: {listed(single)}" if len(single) > 1 else f"only one sample of {listed(single)}",
            "join small groups, or leave them out" if len(single) < n_samples else "leave the variable out",
        )
    return np.eye(len(groups))[codes]


def _one_value(name: str) -> InvalidInputError:
    return InvalidInputError(
        f"{quoted(name)} to differ between samples", "the same value in all samples", "leave it out"
    )


def _products(factors: list[Float64]) -> Float64:
    """Return every product that takes one column from each factor."""
    columns = factors[0]
    for factor in factors[1:]:
        columns = (columns[:, :, None] * factor[:, None, :]).reshape(len(columns), -1)
    return columns


@one_blas_thread()
def orthonormal(columns: Float64, outside: Float64) -> Float64:
    """Return an orthonormal basis of the space that ``columns`` add to the space of ``outside``.

    Parameters
    ----------
    columns
        Added columns, ``(n_samples, n_columns)``.
    outside
        Orthonormal columns, of which the first is constant, ``(n_samples, n_others)``.

    Returns
    -------
    ndarray of shape (n_samples, rank)
        The rank is 0 if the added columns are combinations of the other columns.
    """
    # Center before scaling: a column of years is nearly constant, but must not be treated as a constant column.
    centered = columns - columns.mean(axis=0)
    lengths = np.sqrt((centered**2).sum(axis=0))
    varying = lengths > DEPENDENT * np.abs(columns).max(axis=0, initial=0.0)
    left = centered[:, varying] / lengths[varying]
    for _ in range(2):  # the second pass removes rounding errors of the first
        left = left - outside @ (outside.T @ left)
    vectors, sizes, _ = np.linalg.svd(left, full_matrices=False)
    return np.asarray(vectors[:, sizes > DEPENDENT])


@final
@dataclass(frozen=True, eq=False)
class TermResult(ReadOnlyArrays):
    """Result of the test of one term of a design.

    Attributes
    ----------
    term
        Name of the term.
    degrees_of_freedom
        Number of linearly independent columns that the term adds to the terms held fixed.
    sum_of_squares
        Sum of squares that the term explains beyond the terms held fixed, in squared units of the distances.
    r_squared
        Share of the total sum of squares that the term explains.
    partial_r_squared
        ``sum_of_squares`` divided by the sum of ``sum_of_squares`` and the residual sum of squares.
    statistic
        The statistic of the test, as in `permanova_design`; infinite if there is no residual.
    p_value, smallest_p, null, complete
        As in `heatmover.statistics.TestResult`; ``null`` contains the statistic of every permutation. If the term is
        permuted within blocks, the p-value compares ``null`` with a statistic that is computed with the blocks held
        fixed too. This statistic differs from a pseudo-F in ``statistic``.
    blocks
        How blocks restrict the permutations of this term, as in the attribute ``how`` of
        `heatmover.statistics.permutations.Restriction`.

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
        """Return all values except the null as plain values for JSON; infinity becomes text."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "null"}
        statistic = self.statistic if np.isfinite(self.statistic) else str(self.statistic)
        return {**values, "statistic": statistic, "permutations": len(self.null)}


@final
@dataclass(frozen=True, eq=False, repr=False)
class DesignResult:
    """Results of `permanova_design`; ``print`` shows them as a table.

    Attributes
    ----------
    by, tested_by
        ``"terms"`` or ``"margin"``, and ``"welch"`` or ``"pseudo-F"``: ``by`` and ``statistic`` of `permanova_design`.
    terms
        Results of the tests, one per term.
    residual_degrees_of_freedom, residual_sum_of_squares
        Degrees of freedom and sum of squares of the residual of the full model.
    total_degrees_of_freedom, total_sum_of_squares
        Degrees of freedom and sum of squares of all samples around their mean.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> batch, condition = np.repeat(["b1", "b2"], 10), np.tile(["case", "control"], 10)
    >>> places = rng.normal(size=20) + 2 * (batch == "b2") + (condition == "case")
    >>> design = Design.from_columns({"batch": batch, "condition": condition})
    >>> print(permanova_design(abs(places[:, None] - places), design))
    term       df  sum of squares  R2     partial R2  Welch F  p
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
    tested_by: Statistic = "welch"

    def __getitem__(self, term: str) -> TermResult:
        for result in self.terms:
            if result.term == term:
                return result
        raise InvalidInputError("a term that was tested", quoted(term), f"tested: {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tested terms."""
        return tuple(result.term for result in self.terms)

    def plain(self) -> dict[str, Any]:
        """Return the table as plain values for JSON."""
        return {
            "by": self.by,
            "statistic": self.tested_by,
            "terms": [result.plain() for result in self.terms],
            "residual": {
                "degrees_of_freedom": self.residual_degrees_of_freedom,
                "sum_of_squares": self.residual_sum_of_squares,
            },
            "total": {"degrees_of_freedom": self.total_degrees_of_freedom, "sum_of_squares": self.total_sum_of_squares},
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table as text: one row per term, then shorter rows for the residual and the total."""
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
        heading = ("term", "df", "sum of squares", "R2", "partial R2", STATISTICS[self.tested_by], "p")
        lines = [heading, *self.rows()]
        widths = [max(len(line[place]) for line in lines if len(line) > place) for place in range(len(heading))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip()
                         for line in lines)  # fmt: skip

    def __repr__(self) -> str:
        return f"DesignResult({', '.join(f'{result.term}: p = {result.p_value:.2g}' for result in self.terms)})"


class Spaces(NamedTuple):
    """Three orthonormal bases that split a design for the test of one term; all are orthogonal to each other.

    Attributes
    ----------
    fixed
        ``(n_samples, rank)``: the mean and the terms held fixed.
    tested
        ``(n_samples, rank)``: the space that the tested term adds.
    rest
        ``(n_samples, rank)``: the space that the other terms add; it only reduces the residual.
    """

    fixed: Float64
    tested: Float64
    rest: Float64

    @property
    def residual_degrees_of_freedom(self) -> int:
        """Number of samples minus the rank of all columns."""
        return int(len(self.fixed) - sum(part.shape[1] for part in self))

    def regressors(self, columns: Float64) -> Float64:
        """Return the parts of the columns in the tested space, scaled to unit length, ``(n_samples, n_regressors)``."""
        if self.tested.shape[1] == 1:  # the columns of two groups are the same regressor
            return self.tested
        parts = self.tested @ (self.tested.T @ columns)
        lengths = np.linalg.norm(parts, axis=0)
        varying = lengths > DEPENDENT * np.linalg.norm(columns, axis=0)
        return np.asarray(parts[:, varying] / lengths[varying])


@one_blas_thread()
def permanova_design(
    distances: npt.ArrayLike,
    design: Design,
    *,
    by: Literal["terms", "margin"] = "margin",
    statistic: Statistic = "welch",
    blocks: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> DesignResult:
    """Test the terms of a design, each with other terms held fixed (McArdle and Anderson 2001).

    The test fits the fixed terms and permutes the residuals (Freedman and Lane 1983). The effect of a fixed term is
    therefore not attributed to an associated tested term. Sums of squares, pseudo-F and degrees of freedom agree with
    R's ``vegan::adonis2``.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    design
        Terms to test, from `Design.from_columns` or `Design.from_formula`.
    by
        ``"margin"``: test each term with all other terms held fixed; a term that is part of an interaction is not
        tested. ``"terms"``: test each term with the preceding terms held fixed.
    statistic
        As in `permanova`: ``"pseudo-F"`` is the F of ``vegan::adonis2``.
    blocks, n_permutations, random_state
        As in `permanova`. Residuals are permuted within blocks, and the blocks are held fixed too. If the term is
        constant within blocks, the mean residuals of whole blocks are permuted.

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
    check_option("statistic", statistic, tuple(STATISTICS))
    matrix = check_distances(distances)
    if design.n_samples != len(matrix):
        raise InvalidInputError(
            f"a design of {counted(len(matrix), 'sample')}, as many as the distances have", f"{design.n_samples}"
        )
    unit = float(matrix.max()) or 1.0
    gram = gower(matrix / unit)
    total = float(np.trace(gram))
    results = []
    for term, spaces, restriction in _set_up(design, by, blocks):
        within = within_blocks(spaces, restriction, quoted(term.name))
        regressors = within.regressors(term.columns) if statistic == "welch" else None
        share, null, complete = residual_test(gram, within, restriction, n_permutations, random_state, regressors)
        p, smallest = probability(share, null, complete)
        explained, residual = sums_of_squares(gram, spaces)
        freedom, left = spaces.tested.shape[1], spaces.residual_degrees_of_freedom
        partial = explained / (explained + residual) if explained + residual > 0 else 0.0
        if statistic == "welch":
            f = f_ratio(np.append(share, null), 1, within.residual_degrees_of_freedom)
        else:
            f = np.append(
                f_ratio(np.array([partial]), freedom, left),
                f_ratio(null, within.tested.shape[1], within.residual_degrees_of_freedom),
            )
        results.append(
            TermResult(
                term.name, freedom, explained * unit**2, explained / total if total > 0 else 0.0, partial, float(f[0]),
                p, smallest, f[1:], complete, restriction.how,
            )
        )  # fmt: skip
    return DesignResult(
        by, tuple(results), left, residual * unit**2, len(matrix) - 1, total * unit**2, tested_by=statistic
    )


def check_design(design: Design, *, by: Literal["terms", "margin"] = "margin", blocks: Any | None = None) -> None:
    """Raise an error if `permanova_design` would reject a design, whatever the distances are.

    Examples
    --------
    >>> check_design(Design.from_columns({"batch": list("xxyy"), "condition": list("aabb")}))
    Traceback (most recent call last):
        ...
    heatmover.errors.InvalidInputError: Expected 'batch' not to be determined by 'condition', found that it is; ...
    """
    _set_up(design, by, blocks)


def _set_up(
    design: Design, by: Literal["terms", "margin"], blocks: Any | None
) -> list[tuple[Term, Spaces, Restriction]]:
    """Return every term to test with its spaces and the restriction of its permutations."""
    tests: list[tuple[Term, Spaces]] = []
    for place, term in enumerate(design.terms):
        held, later = design.terms[:place], design.terms[place + 1 :]
        if by == "margin":
            held, later = tuple(other for other in design.terms if other is not term), ()
            if any(set(term.variables) < set(other.variables) for other in held):
                continue
        fixed = covariates(held, design.n_samples)
        tested = orthonormal(term.columns, fixed)
        if not tested.shape[1]:
            raise _dependent(quoted(term.name), [other.name for other in held])
        basis = np.hstack([fixed, tested])
        for other in later:
            basis = np.hstack([basis, orthonormal(other.columns, basis)])
        tests.append((term, Spaces(fixed, tested, basis[:, fixed.shape[1] + tested.shape[1] :])))
    if basis.shape[1] >= design.n_samples:
        raise InvalidInputError(
            f"a design with fewer columns than the {counted(design.n_samples, 'sample')}",
            f"{counted(basis.shape[1], 'column')} for {' + '.join(design.names)} and the mean",
            "leave out some terms",
        )
    return [(term, spaces, restrict(_codes(term), blocks)) for term, spaces in tests]


def within_blocks(spaces: Spaces, restriction: Restriction, what: str) -> Spaces:
    """Add to the fixed space of a term the blocks within which the term is permuted.

    If a model leaves out the blocks, the fitted slopes of numeric variables are biased, and the bias remains in the
    residuals. Without the blocks, a test at a significance level of 5% was significant for 15% of paired data sets that
    contain no difference.

    Parameters
    ----------
    spaces
        Spaces of the term without blocks.
    restriction
        Restriction of the permutations; if values may move between all blocks, the spaces are returned unchanged.
    what
        Name of the term in messages.
    """
    if restriction.within is None:
        return spaces
    blocks = block_basis(len(spaces.fixed), restriction.within)
    fixed = np.hstack([spaces.fixed, orthonormal(blocks, spaces.fixed)])
    tested = orthonormal(spaces.tested, fixed)
    if not tested.shape[1]:
        raise InvalidInputError(
            f"{what} not to be determined by the covariates within blocks", "that it is",
            "adjust for fewer covariates",
        )  # fmt: skip
    inside = Spaces(fixed, tested, orthonormal(spaces.rest, np.hstack([fixed, tested])))
    if inside.residual_degrees_of_freedom < 1:
        raise InvalidInputError(
            f"at least 1 residual degree of freedom for {counted(len(fixed), 'sample')}",
            f"{counted(fixed.shape[1] - 1, 'column')} of covariates and blocks",
            "adjust for fewer covariates, or use larger blocks",
        )
    return inside


def f_ratio(share: Float64, freedom: int, left: int) -> Float64:
    """Return F from ``share``, ``SS_term / (SS_term + SS_residual)``; F is infinite for a share of 1."""
    rest = np.maximum(1 - share, 0.0) / left
    return np.divide(share / freedom, rest, out=np.full_like(share, np.inf), where=rest > 0)


def sums_of_squares(gram: Float64, spaces: Spaces) -> tuple[float, float]:
    """Return the sum of squares that a term explains, and the residual sum of squares."""
    fixed, explained, rest = (float(np.einsum("ij,ij->", part, gram @ part)) for part in spaces)
    return explained, float(np.trace(gram)) - fixed - explained - rest


def gower(matrix: Float64) -> Float64:
    """Return the inner products of centered samples, ``(n_samples, n_samples)``, from the distances between samples."""
    return centered(-0.5 * matrix**2)


def centered(matrix: Float64) -> Float64:
    """Subtract the means of rows and columns from a symmetric matrix."""
    means = matrix.mean(axis=0)
    return np.asarray(matrix - means - means[:, None] + means.mean())


def without(matrix: Float64, basis: Float64) -> Float64:
    """Return the residuals of the rows and columns of a matrix on an orthonormal basis."""
    half = matrix - basis @ (basis.T @ matrix)
    return np.asarray(half - (half @ basis) @ basis.T)


def covariates(terms: Iterable[Term], n_samples: int) -> Float64:
    """Return an orthonormal basis of the mean and the terms, ``(n_samples, rank)``."""
    basis = np.full((n_samples, 1), 1 / np.sqrt(n_samples))
    for term in terms:
        basis = np.hstack([basis, orthonormal(term.columns, basis)])
    return basis


def as_design(adjust: Any, n_samples: int) -> Design:
    """Return covariates as a design, or raise an error if their number of samples is wrong."""
    design = adjust if isinstance(adjust, Design) else Design.from_columns(adjust)
    if design.n_samples != n_samples:
        raise InvalidInputError(
            f"covariates of {counted(n_samples, 'sample')}, as many as the distances have", f"{design.n_samples}"
        )
    return design


def spaces_given(columns: Float64, design: Design, what: str) -> Spaces:
    """Return the spaces of a tested variable and a fixed design.

    An error is raised if the variable adds nothing to the design, or if no residual is left.

    Parameters
    ----------
    columns
        Columns of the tested variable, ``(n_samples, n_columns)``.
    design
        Covariates to hold fixed.
    what
        Name of the tested variable in messages.
    """
    fixed = covariates(design.terms, len(columns))
    tested = orthonormal(columns, fixed)
    if not tested.shape[1]:
        raise _dependent(what, design.names)
    spaces = Spaces(fixed, tested, np.zeros((len(columns), 0)))
    if spaces.residual_degrees_of_freedom < 1:
        raise InvalidInputError(
            f"at least 1 residual degree of freedom for {counted(len(columns), 'sample')}",
            f"{counted(fixed.shape[1] - 1, 'column')} of covariates ({', '.join(map(quoted, design.names))})",
            "adjust for fewer covariates",
        )
    return spaces


def _dependent(what: str, others: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        f"{what} not to be determined by {', '.join(map(quoted, others)) or 'the mean'}",
        "that it is",
        "no adjustment can separate these variables: leave one of them out",
    )


def _codes(term: Term) -> Int64:
    """Return a code for each sample; samples with equal columns of the term have equal codes."""
    return np.unique(term.columns, axis=0, return_inverse=True)[1].astype(np.int64).ravel()


def check_mixed(name: str, values: npt.NDArray[Any], restriction: Restriction) -> None:
    """Raise an error if a variable has only one value in a block within which it is permuted.

    Parameters
    ----------
    name
        Name of the variable in messages.
    values
        Values of the variable, ``(n_samples,)``.
    restriction
        Restriction of its permutations by blocks.
    """
    alone, n_blocks = blocks_of_one_value(values, restriction)
    if alone:
        raise InvalidInputError(
            f"at least two groups or values of {name} in every block",
            f"only one group or value in {alone} of {counted(n_blocks, 'block')}",
            "leave out the samples in these blocks, or adjust for the blocks instead",
        )


def blocks_of_one_value(values: npt.NDArray[Any], restriction: Restriction) -> tuple[int, int]:
    """Return the number of blocks with one value only, and the number of blocks within which values are permuted."""
    if restriction.within is None:
        return 0, 0
    pairs = np.unique(np.column_stack([restriction.within, np.unique(values, return_inverse=True)[1]]), axis=0)
    counts = np.unique(pairs[:, 0], return_counts=True)[1]
    return int((counts == 1).sum()), len(counts)


def distances_without(distances: Float64, design: Design, together: Float64) -> Float64:
    """Return the distances between samples after the linear effect of covariates is removed.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    design
        Covariates.
    together
        Orthonormal basis of the columns that are fitted together with the covariates, but whose effect remains, such as
        the mean, blocks or groups; ``(n_samples, rank)``.
    """
    columns = design.columns - design.columns.mean(axis=0)
    columns /= np.linalg.norm(columns, axis=0)
    inside = columns - together @ (together.T @ columns)
    fit, gram = np.linalg.pinv(inside, rcond=DEPENDENT), gower(distances)
    half = gram - columns @ (fit @ gram)
    left = half - (half @ fit.T) @ columns.T
    squares = left.diagonal()
    result = np.sqrt(np.abs(squares + squares[:, None] - left - left.T))  # non-Euclidean distances, as in Anderson 2006
    # Samples that coincide after the adjustment are apart by the root of a rounding error.
    return np.asarray(np.where(result > DEPENDENT * distances.max(), result, 0.0))


def residualized(
    columns: Float64, design: Design, restriction: Restriction, what: str
) -> tuple[Float64, Callable[[Float64], Float64]]:
    """Return a basis of the covariates, and a function that residualizes rows of numbers, ``(n_rows, n_samples)``.

    If whole blocks are permuted, each block has a single number, which is residualized on the mean covariates of the
    block.

    Parameters
    ----------
    columns
        Columns of the tested variable, ``(n_samples, n_columns)``.
    design
        Covariates.
    restriction
        Restriction of the permutations by blocks.
    what
        Name of the tested variable in messages.
    """
    fixed = within_blocks(spaces_given(columns, design, what), restriction, what).fixed
    units = np.arange(len(columns)) if restriction.units is None else restriction.units
    first = np.unique(units, return_index=True)[1]
    sizes = np.bincount(units)
    means = np.stack([np.bincount(units, weights=column) / sizes for column in fixed.T], axis=1)
    mean = np.full((len(sizes), 1), 1 / np.sqrt(len(sizes)))
    basis = np.hstack([mean, orthonormal(means, mean)])

    def residuals(rows: Float64) -> Float64:
        of_units = rows[:, first]
        return np.asarray((of_units - (of_units @ basis) @ basis.T)[:, units])

    if np.abs(residuals(columns.T)).max() <= DEPENDENT * np.abs(columns).max():
        raise InvalidInputError(
            f"{what} that differs between blocks after adjustment for the covariates",
            f"no remaining difference between {counted(len(sizes), 'block')}",
            "adjust for fewer covariates",
        )
    return fixed, residuals


def permuted_residuals(
    columns: Float64, design: Design, restriction: Restriction, what: str
) -> tuple[Int64, Callable[[Int64], Iterable[Float64]]]:
    """Return the values to permute, ``(n_samples,)``, and a function of their permutations, ``(n_rows, n_samples)``.

    The function returns for each column its permuted residuals, ``(n_rows, n_samples)``. Permuted residuals correlate
    with the covariates by chance, so they are residualized again. The parameters are the parameters of `residualized`.
    """
    _, residuals = residualized(columns, design, restriction, what)
    observed = residuals(columns.T)
    units = np.arange(len(columns)) if restriction.units is None else restriction.units
    places = np.unique(units, return_index=True)[1][units]
    return places, lambda orders: (residuals(column[orders]) for column in observed)


def residual_test(
    gram: Float64,
    spaces: Spaces,
    restriction: Restriction,
    n_permutations: int,
    random_state: RandomState,
    regressors: Float64 | None = None,
) -> tuple[float, Float64, bool]:
    """Test a term by permuting the residuals that the terms held fixed leave (Freedman and Lane 1983).

    Parameters
    ----------
    gram
        Inner products of centered samples, ``(n_samples, n_samples)``.
    spaces
        Spaces of the tested term and of the terms held fixed.
    restriction
        Restriction of the permutations by blocks.
    n_permutations, random_state
        As in `heatmover.statistics.permutations.permute`.
    regressors
        `Spaces.regressors` of the tested term for Welch's statistic; None for the pseudo-F.

    Returns
    -------
    share : float
        Explained sum of squares of the term, divided by the explained plus the residual sum of squares. With
        ``regressors``, `heatmover.statistics.regression.Residuals.welch_shares`.
    null : ndarray of shape (n_permutations,)
        This share in every permutation.
    complete : bool
        True if the permutations are exhaustive.
    """
    n_samples = len(gram)
    unit_of = np.arange(n_samples) if restriction.units is None else restriction.units
    drawn = permute(unit_of, restriction, n_permutations=n_permutations, random_state=random_state)
    first = np.unique(unit_of, return_index=True)[1]
    # The fixed space is needed because permuting blocks of unequal size changes the mean of the residuals. Permuting
    # samples within blocks does not change the means of the blocks, so the columns of the blocks are left out. With
    # hundreds of pairs, they would take most of the time.
    fixed, known = spaces.fixed, np.zeros((n_samples, 0))
    if restriction.units is None:
        known = block_basis(n_samples, restriction.within)
        fixed = orthonormal(fixed, known)
    tested = spaces.tested if regressors is None else regressors
    basis, n_tested = np.hstack([tested, spaces.rest, fixed]), tested.shape[1]
    # Let E be the matrix of inner products of the residuals, and M the matrix that permutes the residuals. A basis Q
    # explains the trace of Q' M E M' Q. In M' Q the sums of Q over blocks are permuted and spread evenly over the
    # samples of each block; deviations of Q from the means of the blocks do not change.
    residuals = Residuals.of(without(gram, spaces.fixed), unit_of, known, spaces.residual_degrees_of_freedom)
    left, onto, sizes = residuals.left, residuals.onto, residuals.sizes
    sums = onto @ basis
    within = basis - (sums / sizes[:, None])[unit_of]
    total = float(np.trace(left))

    def shares(orders: Int64) -> Float64:
        moved = (sums[orders] / sizes[:, None])[:, unit_of] + within  # (n_orders, n_samples, rank)
        if regressors is not None:
            return residuals.welch_shares(moved, n_tested, orders, sums[orders])
        flat = np.ascontiguousarray(moved.transpose(1, 0, 2)).reshape(n_samples, -1)
        squares = np.einsum("ij,ij->j", flat, left @ flat).reshape(len(orders), -1)
        explained = squares[:, :n_tested].sum(axis=1)
        residual = total + (sizes[orders] - sizes) @ residuals.squared_means - squares.sum(axis=1)
        both = explained + residual
        return np.asarray(np.divide(explained, both, out=np.zeros_like(both), where=both > 0))

    null = by_blocks(
        lambda part: shares(drawn.shuffled[part, first]), len(drawn.shuffled), n_samples, columns=basis.shape[1]
    )
    return float(shares(np.arange(len(first))[None])[0]), null, drawn.complete


def label_test(
    gram: Float64,
    spaces: Spaces,
    codes: Int64,
    restriction: Restriction,
    n_permutations: int,
    random_state: RandomState,
) -> tuple[float, Float64, bool]:
    """Test groups with Welch's statistic by permuting their labels, if there are no covariates.

    Parameters
    ----------
    gram, restriction, n_permutations, random_state
        As in `residual_test`.
    spaces
        Spaces of the groups, and of the mean or of the blocks within which labels are permuted.
    codes
        Group of each sample as a code from 0 on, ``(n_samples,)``.

    Returns
    -------
    share, null, complete
        As from `residual_test`. The number of permutations is the number of ways to assign the labels.
    """
    n_samples, n_groups = len(codes), int(codes.max()) + 1
    unit_of = np.arange(n_samples) if restriction.units is None else restriction.units
    known = block_basis(n_samples, restriction.within)
    residuals = Residuals.of(without(gram, spaces.fixed), unit_of, known, spaces.residual_degrees_of_freedom)
    compared = np.arange(n_groups if n_groups > 2 else 1)  # two groups have the same contrast

    def shares(groupings: Int64) -> Float64:
        members = (groupings[:, :, None] == compared).astype(np.float64)
        contrasts = members - known @ (known.T @ members)
        lengths = np.linalg.norm(contrasts, axis=1, keepdims=True)
        safe = np.where(lengths > DEPENDENT, lengths, np.inf)  # a group that fills its blocks has no contrast
        return residuals.welch_shares(contrasts / safe, len(compared))

    drawn = permute(codes, restriction, n_permutations=n_permutations, random_state=random_state)
    null = by_blocks(lambda part: shares(drawn.shuffled[part]), *drawn.shuffled.shape, columns=len(compared))
    return float(shares(codes[None])[0]), null, drawn.complete


def block_basis(n_samples: int, within: Int64 | None) -> Float64:
    """Return an orthonormal basis of the means of blocks, ``(n_samples, n_blocks)``; without blocks, of the mean."""
    codes = np.zeros(n_samples, dtype=np.int64) if within is None else np.unique(within, return_inverse=True)[1]
    return np.asarray((np.eye(int(codes.max()) + 1) / np.sqrt(np.bincount(codes)))[codes])
