"""Text for messages: quote, list, sort and count names, suggest the nearest, explain unreadable files."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from heatmover.errors import HeatmoverError, InvalidInputError, counted, verb

__all__ = [
    "article",
    "counted",
    "distinct",
    "find",
    "find_all",
    "listed",
    "natural_order",
    "naturally",
    "nearest_name",
    "part_of",
    "percent",
    "quoted",
    "readable",
    "unused",
    "verb",
]

# A message stays one sentence even if a sample's name is a page long.
LONGEST_NAME = 60
# A smaller share of anything is next to nothing, and its digits read like a result.
LEAST_PERCENT = 0.01
# Similarity above which a name is a slip of another: "output" and "out" have 0.67, "verbose" and "neighbors" 0.5.
CLOSE = 0.65
DIGITS = re.compile(r"([0-9]+)")
NUMBER = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?")


def quoted(name: object) -> str:
    """Return the name in quotes, on one line, cut if it is long."""
    text = str(name)
    return repr(text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "...")


def listed(names: Iterable[object], *, most: int = 5) -> str:
    """Return the first names in quotes, and how many more there are."""
    every = list(names)
    shown = ", ".join(quoted(name) for name in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


def natural_order(names: Sequence[str]) -> list[int]:
    """Return the places of names in the order in which people put them: numbers in names by their size.

    Names that all are numbers go by these, decimals and signs included; else runs of digits count as numbers.

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
    """Return what to order a name by: text and the number behind it, in turn; equal ones by their spelling."""
    parts = [*DIGITS.split(name), ""]
    # By the number of digits, then by the digits: a number may be longer than Python would convert.
    numbers = [digits.lstrip("0") for digits in parts[1::2]]
    return [(text, len(number), number) for text, number in zip(parts[::2], numbers, strict=True)], name


def percent(share: float) -> str:
    """Return a share in per cent with two digits, such as ``"3.4 %"``, ``"100 %"`` or ``"less than 0.01 %"``."""
    value = 100 * share
    if value >= 99.5:
        return f"{value:.0f} %"
    if 0 < abs(value) < LEAST_PERCENT:
        return f"less than {LEAST_PERCENT} %"
    return f"{value:.2g} %"


def part_of(number: int, total: int, what: str) -> str:
    """Return a part of a whole in plain words, such as ``"2 of 6,000 points"`` or ``"30 of 60 points (50 %)"``.

    A part that rounds to nothing or to all has no per cent beside it.
    """
    told = f"{number:,} of {counted(total, what)}"
    return told if 100 * number < total or 1000 * number > 995 * total else f"{told} ({percent(number / total)})"


def unused(columns: Mapping[str, str]) -> str:
    """Return in words which columns are no features, by the reasons that are given for each."""
    reasons: dict[str, list[str]] = {}
    for name, why in columns.items():
        reasons.setdefault(why, []).append(name)
    return "no features: " + "; ".join(f"{listed(names, most=4)} ({why})" for why, names in reasons.items())


def find(name: str, known: Collection[str], what: str, *, most: int = 5, close: float = CLOSE) -> str:
    """Return ``name`` if it is among the known names, or raise with the nearest of them."""
    if name in known:
        return name
    near = nearest_name(name, known, close)
    if near is not None:
        raise InvalidInputError(what, f"{quoted(name)} (did you mean {quoted(near)}?)")
    raise InvalidInputError(what, quoted(name), f"there are {listed(known, most=most)}" if known else "there are none")


def nearest_name(name: str, known: Iterable[str], close: float = CLOSE) -> str | None:
    """Return the known name that was probably meant; None if none is close.

    Examples
    --------
    >>> nearest_name("Neigbors", ["neighbors", "color"]), nearest_name("verbose", ["neighbors", "color"])
    ('neighbors', None)
    """
    # Upper and lower case are the commonest slip, and difflib counts each letter of it as an error.
    folded = {str(other).casefold(): other for other in known if len(other) <= 200}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=close)
    return folded[near[0]] if near else None


def find_all(names: Iterable[str], known: Iterable[str], what: str, *, most: int = 5) -> dict[str, int]:
    """Return the place of each name among the known names; one that is not there is an error, as in `find`."""
    place: dict[str, int] = {}
    for position, name in enumerate(known):
        place.setdefault(name, position)
    return {name: place[find(name, place, what, most=most)] for name in names}


def distinct(names: Sequence[str], what: str, advice: str = "") -> None:
    """Raise if a name occurs twice."""
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


@contextlib.contextmanager
def readable(path: str, kind: str) -> Iterator[None]:
    """Turn what a library says about a broken file into one sentence that names the file."""
    try:
        yield
    except HeatmoverError:
        raise
    except MemoryError as error:
        # Files are read in blocks of some megabytes, so it is the file that asks for more.
        raise InvalidInputError(
            f"{article(kind)} that can be read in blocks",
            f"that {quoted_path(path)} needs more memory than there is{_reason(error, ' (', ')')}",
            "it may be damaged",
        ) from error
    except PermissionError as error:
        raise InvalidInputError(f"a readable {kind}", f"no permission to read {quoted_path(path)}") from error
    except FileNotFoundError as error:
        raise InvalidInputError(f"a readable {kind}", f"that {quoted_path(path)} is not there") from error
    except Exception as error:
        # Whatever a parser raises: struct.error, csv.Error and re.error are no relatives of each other.
        raise broken(path, kind, error) from error


def broken(path: str, kind: str, error: BaseException) -> InvalidInputError:
    """Return the error for a file that cannot be understood, with the library's reason cut to one line."""
    text = isinstance(error, UnicodeDecodeError) and kind in ("table of text", "sample sheet")
    return InvalidInputError(
        f"a {kind} in UTF-8" if text else f"a complete {kind}",
        f"that {quoted_path(path)} cannot be read ({_reason(error) or type(error).__name__})",
        "save it with that encoding" if text else "it may be truncated or damaged",
    )


def _reason(error: BaseException, before: str = "", after: str = "") -> str:
    lines = str(error).strip().splitlines()
    # Bytes of a damaged file may be part of what a library says.
    shown = "".join(letter if letter.isprintable() else "?" for letter in lines[0][:200]).rstrip(" .") if lines else ""
    return f"{before}{shown}{after}" if shown else ""


def quoted_path(path: str) -> str:
    """Return a path in quotes; its end tells more than its beginning."""
    return repr(path if len(path) <= 200 else "..." + path[-197:])
