"""Check sample metadata for confounding, blocks and ambiguous columns; for users, `study.cautions`; no files.

Remarks name blocks, variables that are constant within a patient, confounded variables, and numbers that may be groups.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy.special import chdtrc, fdtrc

from heatmover._base.types import Bool, Float64, Intp
from heatmover._base.words import counted, distinct, listed, naturally, percent, quoted, verb
from heatmover.errors import InvalidInputError, Sentence, argument
from heatmover.measures import is_missing
from heatmover.statistics.metrics import centered_ranks
from heatmover.study.examination import FEWEST_NUMBERS, as_groups, as_numbers, kind_of, label
from heatmover.study.parameters import check_readings

Kind = Literal[
    "confounded", "alias", "pseudo-replicated", "paired", "block", "nested", "partly confounded", "reading", "constant"
]  # fmt: skip
GRAVITY = get_args(Kind)  # the most serious kind first

# Patterns of column names: donors of samples, technical variables such as batches, properties of donors or samples, and
# identifiers.
GIVERS = re.compile(
    r"patient|donor|subject|individual|participant|person|volunteer|mouse|animal|litter|twin|famil|^ind(iv)?$|^pair(_?id)?$"
)
NUISANCES = re.compile(
    r"batch|plate|^run|[_ ]run|lane|chip|pool|^site|cent(er|re)|operator|instrument|machine|sequenc|chemistry|"
    r"^kit|^lab$|hospital|processing|library"
)
OF_GIVERS = re.compile(
    r"type|group|class|status|condition|tissue|source|sex|age$|stage|treat|disease|date|time|response"
)
IDENTIFIERS = re.compile(r"(^|[_ .-])(id|number|no|nr|code)$")
# A variable whose name does not suggest a donor is still treated as a donor if it has at least ``FEWEST_GIVERS``
# values, each with two to ``MOST_OF_A_GIVER`` samples.
FEWEST_GIVERS, MOST_OF_A_GIVER = 6, 4
FEWEST_SAMPLES = 4
# An association is reported if its strength is at least the threshold of its kind, and its p-value is at most ``SURE``.
# A Cramér's V of 0.5 corresponds to 9 of 12 samples in one group and 3 of 12 in the other.
STRONG_GROUPS, STRONG_SPREAD, STRONG_NUMBERS = 0.5, 0.3, 0.7
SURE = 0.01
# Two numeric variables with at least this absolute correlation are treated as one.
ONE_NUMBER = 1 - 1e-9
# Largest number of variables to check, because all pairs are compared. A table with thousands of columns is not a
# design.
MOST_VARIABLES = 100
PAIRS_SHOWN = 3


class DesignRemark(NamedTuple):
    """A remark about the design of a study.

    Attributes
    ----------
    kind
        ``"confounded"``: no adjustment can separate the variables. ``"alias"``: the variables divide the samples in the
        same way, so their tests are identical. ``"pseudo-replicated"``: a variable is the same in all samples of a
        patient. ``"paired"``, ``"block"``: a variable marks dependent samples, such as the samples of a patient.
        ``"nested"``: the groups of one variable subdivide the groups of another variable. ``"partly confounded"``: two
        variables are associated. ``"reading"``: numbers may be codes of groups, or groups may be numbers.
        ``"constant"``: a variable has one value only.
    variables
        Names of the variables concerned.
    sentence
        The remark as a sentence.
    strength
        For partly confounded variables, the strength of their association from 0 to 1: Cramér's V for two groupings,
        the explained share of variance for groups and a number, or the absolute rank correlation for two numbers. None
        for other kinds.

    Examples
    --------
    >>> check_design({"batch": list("aabb"), "condition": list("xxyy")})[0].kind
    'confounded'
    """

    kind: Kind
    variables: tuple[str, ...]
    sentence: Sentence
    strength: float | None = None


class _Column(NamedTuple):
    """One variable: the group of each sample (-1 if missing), and for numeric variables the values (NaN if missing).

    If numbers name patients or batches, ``kind`` is ``"groups"``, but ``tested_as`` is ``"number"``, because tests
    treat these names as numbers.
    """

    name: str
    tested_as: Literal["groups", "number"]
    codes: Intp
    groups: tuple[str, ...]
    numbers: Float64 | None = None

    @property
    def kind(self) -> Literal["groups", "number"]:
        return "groups" if self.numbers is None else "number"

    @property
    def known(self) -> Bool:
        return np.asarray(self.codes >= 0)

    @property
    def sizes(self) -> Intp:
        return np.bincount(self.codes[self.known], minlength=len(self.groups))


def check_design(
    variables: Mapping[str, Sequence[object]] | Any,
    *,
    block: str | Sequence[str] | None = None,
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
) -> tuple[DesignRemark, ...]:
    """Return remarks about the design of a table of samples, the most serious first.

    Parameters
    ----------
    variables
        Values ``(n_samples,)`` by name: a mapping or a DataFrame. Only the first 100 variables are checked. Each pair
        of variables is compared on the samples that have both values.
    block
        Names of variables that are already used as blocks, so that no remark suggests them as blocks.
    numeric, categorical
        As in `examine`.

    Examples
    --------
    >>> table = {"donor": ["d1", "d1", "d2", "d2", "d3", "d3"], "stimulated": ["no", "yes"] * 3, "sex": list("ffmmff")}
    >>> for remark in check_design(table):
    ...     print(remark.kind, "-", remark.sentence)
    pseudo-replicated - 'sex' is the same in all samples of each 'donor', so only 3 of 6 samples are independent...
    paired - Each 'donor' has one sample of every group of 'stimulated': the samples are paired, and block='donor' ...
    """
    blocks = {block} if isinstance(block, str) else set(block or ())
    return tuple(_remarks(_columns(variables, numeric, categorical), blocks, {*numeric, *categorical}))


def design_notes(
    variables: Any,
    chosen: Sequence[str],
    *,
    blocks: Mapping[str, Sequence[object]] | Sequence[object] | None = None,
    adjust: Collection[str] = (),
    numeric: Collection[str] = (),
    categorical: Collection[str] = (),
) -> Iterator[Sentence]:
    """Yield the remarks about the design that concern the examined variables, as sentences.

    Parameters
    ----------
    variables, numeric, categorical
        As in `check_design`.
    chosen
        Names of the examined variables, the most important first.
    blocks
        Block of each sample, ``(n_samples,)``, such as the patient; or several block variables by name.
    adjust
        Names of the covariates.

    Examples
    --------
    >>> table = {"patient": list("aabbccdd"), "sex": list("ffmmffmm"), "day": ["1", "2"] * 4}
    >>> list(design_notes(table, ["sex"]))
    ["'sex' is the same in all samples of each 'patient', so only 4 of 8 samples are independent..."]
    >>> list(design_notes(table, ["day"]))
    ["Each 'patient' has one sample of every group of 'day': the samples are paired, and block='patient' compares ..."]
    >>> list(design_notes(table, ["day"], blocks=table["patient"]))
    []
    """
    first, examined, together = set(chosen[:1]), set(chosen), list[DesignRemark]()
    given = [] if blocks is None else blocks.values() if isinstance(blocks, Mapping) else [blocks]
    tied = [_column("block", list(values), (), ("block",)) for values in given]
    columns = _columns(variables, numeric, categorical)
    same = {column.name for column in columns if any(_same_groups(column, each) for each in tied)}
    for remark in _remarks(columns, same, {*numeric, *categorical}, examined):
        about = set(remark.variables)
        if remark.kind == "partly confounded":
            if about & examined and not about & set(adjust):
                together.append(remark)
        elif remark.kind != "constant" and (
            about <= examined
            if remark.kind in ("alias", "nested", "reading")
            else about & examined or remark.kind == "block"
        ):
            yield remark.sentence
    together.sort(key=lambda remark: not first & set(remark.variables))
    yield from (remark.sentence for remark in together[:PAIRS_SHOWN])
    if len(together) > PAIRS_SHOWN:
        more = counted(len(together) - PAIRS_SHOWN, "more pair")
        yield Sentence(f"{more} of variables {verb(len(together) - PAIRS_SHOWN, 'is', 'are')} associated.")


def _columns(variables: Any, numeric: Collection[str], categorical: Collection[str]) -> list[_Column]:
    check_readings(numeric, categorical)
    # Column names may have any type, so convert them to text.
    names = [str(name) for name in variables]
    distinct(names, "names of variables", "the names 1 and '1' count as equal")
    keys = dict(zip(names, variables, strict=True))
    columns = [_column(name, list(variables[keys[name]]), numeric, categorical) for name in names[:MOST_VARIABLES]]
    if len({column.codes.size for column in columns}) > 1:
        raise InvalidInputError("variables with one value per sample", "different numbers of values")
    return columns


def _column(name: str, values: list[Any], numeric: Collection[str], categorical: Collection[str]) -> _Column:
    values = as_numbers(name, values) if name in numeric else values
    known = [value for value in values if not is_missing(value)]
    tested_as = "groups" if name in categorical else kind_of(known, numeric=name in numeric)
    if tested_as == "groups" or (name not in numeric and _names_something(name, known)):
        labels = as_groups(values)
        groups = naturally({group for group in labels if group is not None})
        place = {None: -1} | {group: code for code, group in enumerate(groups)}
        return _Column(name, tested_as, np.array([place[group] for group in labels], dtype=np.intp), tuple(groups))
    numbers = np.array([np.nan if is_missing(value) else float(value) for value in values])
    different, codes = np.unique(numbers, return_inverse=True)  # NaN comes last
    codes[np.isnan(numbers)] = -1
    finite = np.where(np.isfinite(numbers), numbers, np.nan)
    return _Column(name, "number", codes, tuple(map(label, different[~np.isnan(different)].tolist())), finite)


def _names_something(name: str, known: Sequence[Any]) -> bool:
    """Return whether values are whole numbers that name patients, batches or similar units."""
    whole = all(
        isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer()) for value in known
    )
    return bool(known) and whole and (_gives(name) or _disturbs(name) or bool(IDENTIFIERS.search(name.lower())))


def _gives(name: str) -> bool:
    return bool(GIVERS.search(name.lower())) and not OF_GIVERS.search(name.lower())


def _disturbs(name: str) -> bool:
    return bool(NUISANCES.search(name.lower()))


def _remarks(
    columns: Sequence[_Column], blocks: Collection[str], read: Collection[str], examined: Collection[str] | None = None
) -> list[DesignRemark]:
    """Return all remarks, sorted by seriousness and then by strength of association, largest first."""
    # Skip constant variables, and groups of one sample each.
    varied = [each for each in columns if len(each.groups) > 1 and (each.kind == "number" or each.sizes.max() > 1)]
    tested = [column for column in varied if column.name not in blocks]
    givers = [column for column in tested if _is_giver(column)]
    others = [column for column in tested if not _is_giver(column)]
    classes = _classes(others)
    firsts = [members[0] for members in classes]
    nested = list(_nested(firsts))
    remarks = [_alias(members) for members in classes if len(members) > 1] + nested
    for giver in givers:
        remarks += _of_giver(giver, others, examined)
    remarks += _together(firsts, givers, {frozenset(remark.variables) for remark in nested})
    remarks += [
        remark for column in columns if column.name not in read and column.name not in blocks
        for remark in _reading(column)
    ]  # fmt: skip
    remarks += [
        _remark("constant", (column.name,), f"{quoted(column.name)} is the same in all samples.")
        for column in columns if len(column.groups) == 1
    ]  # fmt: skip
    return sorted(remarks, key=lambda remark: (GRAVITY.index(remark.kind), -(remark.strength or 0)))


def _remark(kind: Kind, names: Sequence[str], text: str, strength: float | None = None) -> DesignRemark:
    return DesignRemark(kind, tuple(names), Sentence(text), strength)


def _is_giver(column: _Column) -> bool:
    if column.kind == "number" or not column.known.all():
        return False
    small = column.sizes.min() >= 2 and column.sizes.max() <= MOST_OF_A_GIVER and len(column.groups) >= FEWEST_GIVERS
    return _gives(column.name) or (bool(small) and not _disturbs(column.name))


def _determines(first: _Column, second: _Column) -> bool:
    """Return whether the second variable is constant within each group of the first, ignoring missing values."""
    both = first.known & second.known
    codes = first.codes[both]
    pairs = np.unique(codes * len(second.groups) + second.codes[both]).size
    return bool(pairs == np.unique(codes).size)


def _shared(first: _Column, second: _Column) -> bool:
    """Return whether both variables vary among the samples that have both values."""
    both = first.known & second.known
    levels = [np.unique(each.codes[both]).size for each in (first, second)]
    return int(both.sum()) >= FEWEST_SAMPLES and min(levels) > 1


def _classes(columns: Sequence[_Column]) -> list[list[_Column]]:
    """Return lists of variables that divide the samples in the same way."""
    classes: list[list[_Column]] = []
    for column in columns:
        own = next((members for members in classes if _alike(members[0], column)), None)
        if own is None:
            classes.append([column])
        else:
            own.append(column)
    return classes


def _same_groups(first: _Column, second: _Column) -> bool:
    return _shared(first, second) and _determines(first, second) and _determines(second, first)


def _alike(first: _Column, second: _Column) -> bool:
    if first.kind != second.kind or first.kind == "groups":
        return first.kind == second.kind and _same_groups(first, second)
    pair = _both(first, second)
    return pair is not None and _shared(first, second) and abs(_correlation(*pair)) >= ONE_NUMBER


def _both(first: _Column, second: _Column) -> Float64 | None:
    """Return the values of two numeric variables where both are known, ``(2, n_samples)``; None if too few."""
    pair = np.array([first.numbers, second.numbers], dtype=np.float64)
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    return pair if pair.shape[1] >= FEWEST_SAMPLES else None


def _alias(members: Sequence[_Column]) -> DesignRemark:
    names = tuple(member.name for member in members)
    start = f"{_and(names)} {'divide the samples in the same way' if members[0].kind == 'groups' else 'vary together'}"
    if any(map(_disturbs, names)) and not all(map(_disturbs, names)):
        either = "either" if len(names) == 2 else "any of them"
        return _remark(
            "confounded", names,
            f"{start}: a difference may be due to {either}, and no adjustment can separate them.",
        )  # fmt: skip
    return _remark("alias", names, f"{start}, so their tests are one test, not {len(names)}.")


def _of_giver(giver: _Column, others: Sequence[_Column], examined: Collection[str] | None) -> Iterator[DesignRemark]:
    """Yield remarks about a variable that marks dependent samples, such as the patient."""
    same = [other.name for other in others if other.kind == "groups" and _alike(giver, other)]
    if same:
        for name in same if _gives(giver.name) else ():
            yield _remark(
                "confounded", (giver.name, name),
                f"Each group of {quoted(name)} is one {quoted(giver.name)}: no test can separate the effect of the "
                f"group from the effect of {quoted(giver.name)}.",
            )  # fmt: skip
        return
    seen = [other for other in others if examined is None or other.name in examined]
    constant = [other.name for other in seen if _shared(giver, other) and _determines(giver, other)]
    paired = [other.name for other in seen if other.kind == "groups" and (_crossed(giver, other) == 1).all()]
    name, block, n_givers = quoted(giver.name), argument("block", giver.name), len(giver.groups)
    n_samples = counted(giver.codes.size, "sample")
    repeated = constant and _gives(giver.name)
    if repeated:
        yield _remark(
            "pseudo-replicated", (giver.name, *constant),
            f"{_and(constant)} {verb(len(constant), 'is', 'are')} the same in all samples of each {name}, so only "
            f"{n_givers} of {n_samples} are independent. Without {block}, a test treats all samples as independent, "
            "and its p-value is too small.",
        )  # fmt: skip
    if paired:
        yield _remark(
            "paired", (giver.name, *paired),
            f"Each {name} has one sample of every group of {_and(paired)}: the samples are paired, and {block} "
            f"compares samples within each {name}.",
        )  # fmt: skip
    if not paired and not repeated:
        fewest, most = giver.sizes.min(), giver.sizes.max()
        each = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        doubt = "If" if _gives(giver.name) else "If these are patients, pairs or similar units, so that"
        yield _remark(
            "block", (giver.name,),
            f"{name} has {counted(n_givers, 'value')} in {n_samples}, {each} samples per value. {doubt} samples with "
            f"the same value depend on each other, use {block}.",
        )  # fmt: skip


def _crossed(first: _Column, second: _Column) -> Intp:
    """Return the number of samples for each pair of a group of the first variable and a group of the second."""
    both = first.known & second.known
    shape = (len(first.groups), len(second.groups))
    flat = np.ravel_multi_index((first.codes[both], second.codes[both]), shape)
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)


def _nested(columns: Sequence[_Column]) -> Iterator[DesignRemark]:
    """Yield remarks about pairs of variables in which the first determines the second, but not the reverse."""
    groups = [column for column in columns if column.kind == "groups"]
    for first, second in combinations(groups, 2):
        if not _shared(first, second):
            continue
        for fine, coarse in ((first, second), (second, first)):
            # With fewer than two samples per group on average, variables may be nested by chance.
            if 2 * len(fine.groups) > fine.known.sum() or not _determines(fine, coarse):
                continue
            names = (fine.name, coarse.name)
            a, b = quoted(fine.name), quoted(coarse.name)
            kind: Kind = "confounded"
            if _disturbs(fine.name) and not _disturbs(coarse.name):
                text = f"Each {a} contains only one group of {b}, so no adjustment can separate {a} from {b}."
            elif _disturbs(coarse.name) and not _disturbs(fine.name):
                text = (
                    f"Each group of {a} occurs in only one {b}. No adjustment can separate the difference between two "
                    f"groups from a difference in {b}."
                )
            else:
                kind = "nested"
                text = f"{a} subdivides the groups of {b}, so no effect of {b} remains after adjustment for {a}."
            yield _remark(kind, names, text)


def _together(
    columns: Sequence[_Column], givers: Sequence[_Column], apart: Collection[frozenset[str]]
) -> Iterator[DesignRemark]:
    """Yield remarks about pairs of variables that are associated, although neither determines the other."""
    for pair in combinations(columns, 2):
        if frozenset(column.name for column in pair) in apart or not _shared(*pair):
            continue
        # Put groups before numbers. If both variables are constant within patients, use one sample of each patient.
        one, other = sorted(pair, key=lambda column: column.kind)
        for giver in givers:
            if _gives(giver.name) and _determines(giver, one) and _determines(giver, other):
                rows = np.unique(giver.codes, return_index=True)[1]
                one, other = _take(one, rows), _take(other, rows)
                break
        if one.kind == other.kind:
            remark = (_groups_together if one.kind == "groups" else _numbers_together)(one, other)
        else:
            remark = _number_in_groups(one, other)
        if remark is not None:
            yield remark


def _take(column: _Column, rows: Intp) -> _Column:
    return column._replace(codes=column.codes[rows], numbers=None if column.numbers is None else column.numbers[rows])


def _groups_together(first: _Column, second: _Column) -> DesignRemark | None:
    rows, columns = (first, second) if _disturbs(second.name) or not _disturbs(first.name) else (second, first)
    counts = _crossed(rows, columns)
    kept, levels = (np.flatnonzero(counts.sum(axis=axis)) for axis in (1, 0))
    counts = counts[np.ix_(kept, levels)]
    strength, p_value = cramers_v(counts)
    if strength < STRONG_GROUPS or p_value > SURE:
        return None
    shares = counts / counts.sum(axis=1, keepdims=True)
    level = int(np.argmax(shares.max(axis=0) - shares.min(axis=0)))
    ends = (int(np.argmax(shares[:, level])), int(np.argmin(shares[:, level])))
    told = [f"{counts[row, level]} of {counts[row].sum()}" for row in ends]
    names = [quoted(rows.groups[kept[row]]) for row in ends]
    return _remark(
        "partly confounded", (rows.name, columns.name),
        f"{quoted(rows.name)} and {quoted(columns.name)} are associated (Cramér's V {strength:.2f}): {told[0]} samples "
        f"of {names[0]} and {told[1]} samples of {names[1]} are in {quoted(columns.groups[levels[level]])}. "
        f"{_beyond(rows, columns)}",
        strength,
    )  # fmt: skip


def _beyond(tested: _Column, held: _Column) -> str:
    return f"{argument('adjust', [held.name])} adjusts the test of {quoted(tested.name)} for {quoted(held.name)}."


def _number_in_groups(groups: _Column, number: _Column) -> DesignRemark | None:
    assert number.numbers is not None
    both = groups.known & np.isfinite(number.numbers)
    present, codes, sizes = np.unique(groups.codes[both], return_inverse=True, return_counts=True)
    values, freedom = number.numbers[both], (present.size - 1, int(both.sum()) - present.size)
    if min(freedom) < 1 or values.min() == values.max():
        return None
    means = np.bincount(codes, weights=values) / sizes
    within, total = float(((values - means[codes]) ** 2).sum()), float(((values - values.mean()) ** 2).sum())
    # Subtract the share that the same number of random groups would explain.
    share = max(0.0, 1 - (within / freedom[1]) / (total / sum(freedom)))
    p_value = _chance(total - within, within, freedom)
    if share < STRONG_SPREAD or p_value > SURE:
        return None
    low, high = int(np.argmin(means)), int(np.argmax(means))
    ends = [f"{means[i]:.3g} in {quoted(groups.groups[int(present[i])])}" for i in (high, low)]
    return _remark(
        "partly confounded", (groups.name, number.name),
        f"{quoted(groups.name)} and {quoted(number.name)} are associated: the groups explain {percent(share)} of the "
        f"variation of {quoted(number.name)} (mean {ends[0]} and {ends[1]}). {_beyond(groups, number)}",
        share,
    )  # fmt: skip


def _numbers_together(first: _Column, second: _Column) -> DesignRemark | None:
    pair = _both(first, second)
    if pair is None:
        return None
    correlation = _correlation(*centered_ranks(pair))
    p_value = _chance(correlation**2, 1 - correlation**2, (1, pair.shape[1] - 2))
    if abs(correlation) < STRONG_NUMBERS or p_value > SURE:
        return None
    return _remark(
        "partly confounded", (first.name, second.name),
        f"{quoted(first.name)} and {quoted(second.name)} are associated (rank correlation {correlation:.2f}). "
        f"{_beyond(first, second)}",
        abs(correlation),
    )  # fmt: skip


def _chance(explained: float, left: float, freedom: tuple[int, int]) -> float:
    """Return the p-value of an F test of two sums of squares."""
    return 0.0 if left <= 0 else float(fdtrc(*freedom, explained / freedom[0] / (left / freedom[1])))


def _correlation(first: Float64, second: Float64) -> float:
    a, b = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def cramers_v(counts: Intp) -> tuple[float, float]:
    """Return the bias-corrected Cramér's V (Bergsma 2013) and the p-value of the chi-squared test.

    Parameters
    ----------
    counts
        ``(n_rows, n_columns)``: numbers of samples, without empty rows or columns.
    """
    total, (n_rows, n_columns) = int(counts.sum()), counts.shape
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    chi = float(((counts - expected) ** 2 / expected).sum())
    freedom = (n_rows - 1) * (n_columns - 1)
    if freedom == 0 or total < 2:
        return 0.0, 1.0
    phi = max(0.0, chi / total - freedom / (total - 1))
    rows, columns = (n - (n - 1) ** 2 / (total - 1) for n in (n_rows, n_columns))
    least = min(rows, columns) - 1
    return (float(min(1.0, np.sqrt(phi / least))) if least > 0 else 0.0), float(chdtrc(freedom, chi))


def _reading(column: _Column) -> Iterator[DesignRemark]:
    """Yield a remark if numbers may be groups or groups may be numbers; the remark names the option that decides."""
    name, count = column.name, len(column.groups)
    if count < 3 or not all(re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", group) for group in column.groups):
        return
    as_named, as_number = argument("categorical", [name]), argument("numeric", [name])
    text = ""
    if _names_something(name, [int(group) for group in column.groups if re.fullmatch(r"-?[0-9]+", group)]):
        if column.tested_as == "number" and column.kind == "groups":
            text = f"contains numbers that look like names, but is tested as a number; {as_named} reads it as groups."
    elif count == FEWEST_NUMBERS and column.tested_as == "number":
        text = f"has {count} different numbers and is read as a number; {as_named} reads it as groups."
    elif count < FEWEST_NUMBERS:
        text = (
            f"has {count} different numbers and is read as groups without an order; {as_number} reads it as a number."
        )
    elif column.tested_as == "groups":
        text = f"contains numbers as text and is read as groups; {as_number} reads it as a number."
    if text:
        yield _remark("reading", (name,), f"{quoted(name)} {text}")


def _and(names: Sequence[str]) -> str:
    """Return quoted names joined as in a sentence: 'a', 'b' and 'c'."""
    if len(names) > 5:
        return listed(names, most=4)
    return " and ".join(part for part in (", ".join(map(quoted, names[:-1])), quoted(names[-1])) if part)
