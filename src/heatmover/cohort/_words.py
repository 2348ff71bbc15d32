"""Names in messages: shortened, quoted, and with a guess at what was meant."""

from __future__ import annotations

import contextlib
import difflib
import zlib
from collections.abc import Iterable, Iterator, Sequence

from heatmover.errors import HeatmoverError, InvalidInputError

__all__ = ["distinct", "find", "listed", "quoted", "readable"]

# A message stays one sentence even if a sample's name is a page long.
LONGEST_NAME = 60


def quoted(name: object) -> str:
    """Return the name in quotes, on one line, cut if it is long."""
    text = str(name)
    return repr(text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "...")


def listed(names: Iterable[object], *, most: int = 5) -> str:
    """Return the first names in quotes, and how many more there are."""
    every = list(names)
    shown = ", ".join(quoted(name) for name in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


def find(name: str, known: Sequence[str], what: str) -> str:
    """Return ``name`` if it is among the known names, or raise with the nearest of them."""
    if name in known:
        return name
    # Upper and lower case are the commonest slip, and difflib counts each letter of it as an error.
    folded = {str(other).casefold(): other for other in known if len(other) <= 200}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    if near:
        raise InvalidInputError(what, f"{quoted(name)} (did you mean {quoted(folded[near[0]])}?)")
    raise InvalidInputError(what, quoted(name), f"there are {listed(known)}" if known else "there are none")


def distinct(names: Sequence[str], what: str, advice: str = "") -> None:
    """Raise if a name occurs twice."""
    seen: set[str] = set()
    twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise InvalidInputError(f"distinct {what}", f"{listed(dict.fromkeys(twice))} more than once", advice)


@contextlib.contextmanager
def readable(path: str, kind: str) -> Iterator[None]:
    """Turn what a library says about a broken file into one sentence that names the file."""
    try:
        yield
    except (HeatmoverError, MemoryError):
        raise
    except PermissionError as error:
        raise InvalidInputError(f"a readable {kind}", f"no permission to read {quoted_path(path)}") from error
    except FileNotFoundError as error:
        raise InvalidInputError(f"a readable {kind}", f"that {quoted_path(path)} is not there") from error
    except (OSError, ValueError, KeyError, TypeError, EOFError, ArithmeticError, RuntimeError) as error:
        raise broken(path, kind, error) from error
    except (AttributeError, IndexError, NotImplementedError, zlib.error) as error:
        raise broken(path, kind, error) from error


def broken(path: str, kind: str, error: BaseException) -> InvalidInputError:
    """Return the error for a file that cannot be understood, with the library's reason cut to one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = lines[0][:200].rstrip(" .")
    return InvalidInputError(
        f"a complete {kind}", f"that {quoted_path(path)} cannot be read ({reason})", "it may be truncated or damaged"
    )


def quoted_path(path: str) -> str:
    """Return a path in quotes; its end tells more than its beginning."""
    return repr(path if len(path) <= 200 else "..." + path[-197:])
