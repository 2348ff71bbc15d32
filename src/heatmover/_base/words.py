"""Quote, list, sort, count names for messages, reject unknown names, suggest the nearest; for any package; no files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

from heatmover.errors import InvalidInputError
from heatmover.errors import counted as counted
from heatmover.errors import verb as verb

# Longest quoted name, so that a message stays one sentence even if a sample's name is a page long.
LONGEST_NAME = 60
# Smaller percentages are written as "less than 0.01%", because the digits of a negligible share would look like a
# result.
LEAST_PERCENT = 0.01
# Similarity above which a name counts as a typo of another name. The similarity is 0.67 for "output" and "out", and 0.5
# for "verbose" and "neighbors".
CLOSE = 0.65
DIGITS = re.compile(r"([0-9]+)")
NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?")


def quoted(name: object) -> str:
    """Return a name in quotes, on one line and with at most `LONGEST_NAME` characters."""
    return repr(shortened(str(name), LONGEST_NAME))


def shortened(text: str, longest: int, dots: str = "...") -> str:
    """Return a text of at most ``longest`` characters; dots replace the middle, because names often differ at the end.

    Examples
    --------
    >>> shortened("pbmc_patient_0001_day_14_replicate_2", 24)
    'pbmc_patien...eplicate_2'
    """
    if len(text) <= longest:
        return text
    kept = longest - len(dots)
    return f"{text[: kept - kept // 2]}{dots}{text[len(text) - kept // 2 :]}"


def listed(names: Iterable[object], *, most: int = 5) -> str:
    """Return the first names in quotes, and the number of further names."""
    return joined(map(quoted, names), most=most)


def joined(words: Iterable[str], *, most: int = 5) -> str:
    """Return the first words with commas, and the number of further words."""
    every = list(words)
    shown = ", ".join(every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


def natural_order(names: Sequence[str]) -> list[int]:
    """Return the positions of names in natural order, in which numbers within names are sorted by value.

    If all names are numbers, they are sorted by value, including decimals and signs. Otherwise each run of digits
    within a name is compared as a number.

    Examples
    --------
    >>> names = ["s10", "s2", "s1", "control"]
    >>> [names[i] for i in natural_order(names)]
    ['control', 's1', 's2', 's10']
    >>> numbers = ["10", "-1", "0.5", "0.25"]
    >>> [numbers[i] for i in natural_order(numbers)]
    ['-1', '0.25', '0.5', '10']
    """
    if names and all(NUMBER.fullmatch(name) for name in names):
        return sorted(range(len(names)), key=lambda i: (Decimal(names[i]), names[i]))
    keys = [_pieces(name) for name in names]
    return sorted(range(len(names)), key=keys.__getitem__)


def naturally(names: Iterable[str]) -> list[str]:
    """Return names in the order of `natural_order`."""
    every = list(names)
    return [every[i] for i in natural_order(every)]


def _pieces(name: str) -> tuple[list[tuple[str, int, str]], str]:
    """Return the sort key of a name: alternately its texts and numbers, and then the name itself to break ties."""
    parts = [*DIGITS.split(name), ""]
    # Represent a number by the count of its digits and by the digits themselves, because Python cannot convert very
    # long numbers.
    numbers = [digits.lstrip("0") for digits in parts[1::2]]
    return [(text, len(number), number) for text, number in zip(parts[::2], numbers, strict=True)], name


def percent(share: float) -> str:
    """Return a share in percent with two digits, such as ``"3.4%"``, ``"100%"`` or ``"less than 0.01%"``."""
    value = 100 * share
    if value >= 99.5:
        return f"{value:.0f}%"
    if 0 < abs(value) < LEAST_PERCENT:
        return f"less than {LEAST_PERCENT}%"
    return f"{value:.2g}%"


def part_of(number: int, total: int, what: str) -> str:
    """Return a count and its total in plain words, such as ``"2 of 6,000 points"`` or ``"30 of 60 points (50%)"``.

    Percentages that would round to 0% or 100% are omitted.
    """
    text = f"{number:,} of {counted(total, what)}"
    return text if 100 * number < total or 1000 * number > 995 * total else f"{text} ({percent(number / total)})"


def unused(columns: Mapping[str, str]) -> str:
    """Return a sentence on the columns that are not used as features, grouped by reason.

    ``columns`` maps the name of each column to the reason.
    """
    reasons: dict[str, list[str]] = {}
    for name, why in columns.items():
        reasons.setdefault(why, []).append(name)
    return "not used as features: " + "; ".join(f"{listed(names, most=4)} ({why})" for why, names in reasons.items())


def find(name: str, known: Collection[str], what: str, *, most: int = 5, close: float = CLOSE) -> str:
    """Return ``name`` if it is known, or raise an error that suggests the nearest known name."""
    if name in known:
        return name
    near = nearest_name(name, known, close)
    if near is not None:
        raise InvalidInputError(what, f"{quoted(name)} (did you mean {quoted(near)}?)")
    raise InvalidInputError(what, quoted(name), f"there are {listed(known, most=most)}" if known else "there are none")


def nearest_name(name: str, known: Iterable[str], close: float = CLOSE) -> str | None:
    """Return the known name that the user probably meant; None if no name is close.

    Examples
    --------
    >>> nearest_name("Neigbors", ["neighbors", "color"]), nearest_name("verbose", ["neighbors", "color"])
    ('neighbors', None)
    """
    # Case is ignored: wrong case is the most common typo, and difflib counts each letter as an error.
    folded = {str(other).casefold(): other for other in known if len(other) <= 200}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=close)
    return folded[near[0]] if near else None


def find_all(names: Iterable[str], known: Iterable[str], what: str, *, most: int = 5) -> dict[str, int]:
    """Return the position of each name among the known names; an unknown name raises an error, as in `find`."""
    place: dict[str, int] = {}
    for position, name in enumerate(known):
        place.setdefault(name, position)
    return {name: place[find(name, place, what, most=most)] for name in names}


def distinct(names: Sequence[str], what: str, advice: str = "") -> None:
    """Raise an error if a name occurs twice."""
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidInputError(f"distinct {what}", f"{listed(dict.fromkeys(twice))} more than once", advice)


def article(noun: str) -> str:
    """Return a noun with its article.

    Examples
    --------
    >>> article("h5ad file"), article("AnnData"), article("zarr store")
    ('an h5ad file', 'an AnnData', 'a zarr store')
    """
    return f"{'an' if noun.startswith(('h5ad', 'AnnData')) else 'a'} {noun}"


def quoted_path(path: str) -> str:
    """Return a path in quotes; only the end of a long path is kept."""
    return repr(path if len(path) <= 200 else "..." + path[-197:])
