"""A look at every value once: which are not finite, and the moments of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._progress import Progress
from heatmover._threads import while_reading
from heatmover._typing import Int32, Int64, Intp
from heatmover._validation import check_threads
from heatmover._words import counted, quoted
from heatmover.cohort.projection import Moments
from heatmover.cohort.reader import Block, Reader, place_of
from heatmover.errors import InvalidInputError, argument

__all__ = [
    "STAGE",
    "Look",
    "Looked",
    "all_finite",
    "block_rows",
    "listed_counts",
    "look_at_range",
    "look_through",
    "put_together",
    "refusal",
]

# Bytes of one block read within the package: large enough that opening costs nothing, small beside a laptop's memory.
BLOCK_BYTES = 16_000_000
# What a pass that looks only is called.
STAGE = "look at every value"


@final
@dataclass(frozen=True, eq=False)
class Looked:
    """What a look at some consecutive cells found.

    Attributes
    ----------
    n_rows
        How many cells.
    n_bad, rows
        Values that are NaN or infinite, and the rows that hold them, counted from the first of these cells.
    moments
        Of all other rows.
    """

    n_rows: int
    n_bad: int
    rows: Int64
    moments: Moments


# Goes through all values of so many cells, and tells the progress.
Look = Callable[[Reader, int, Progress], Looked]


def look_through(reader: Reader, n_cells: int, progress: Progress) -> Looked:
    """Look at all cells, in threads of this process while it reads."""
    progress.stage(STAGE, n_cells)

    def parts() -> Iterator[Looked]:
        for part in while_reading(_look_at, _blocks(reader, 0, n_cells), check_threads(None)):
            yield part
            progress.advance(part.n_rows)

    return put_together(parts(), len(reader.features), n_cells)


def look_at_range(reader: Reader, start: int, stop: int) -> Looked:
    """Look at the cells ``start`` to ``stop``."""
    return put_together(map(_look_at, _blocks(reader, start, stop)), len(reader.features), stop - start)


def put_together(parts: Iterable[Looked], n_features: int, n_cells: int) -> Looked:
    """Return what was found in consecutive parts, in their order; raise if there are not so many cells in them."""
    moments, done = Moments(n_features), 0
    bad, n_bad = [np.empty(0, dtype=np.int64)], 0
    for part in parts:
        n_bad += part.n_bad
        bad.append(done + part.rows)
        moments.merge(part.moments)
        done += part.n_rows
    if done != n_cells:
        raise InvalidInputError(f"values of {counted(n_cells, 'cell')}", f"those of {done}", "the file may be damaged")
    return Looked(done, n_bad, np.concatenate(bad), moments)


def refusal(looked: Looked, reader: Reader, names: Sequence[str], codes: Int32) -> InvalidInputError:
    """Return the error for values that are NaN or infinite, with the first cell and how many each sample has."""
    lost = np.bincount(codes[looked.rows], minlength=len(names))
    first = int(looked.rows[0])
    place = place_of(reader, first)
    where = f"; {listed_counts(names, lost)}" if np.count_nonzero(lost) > 1 else ""
    return InvalidInputError(
        "features without NaN or infinity",
        f"{counted(looked.n_bad, 'such value')} in {counted(looked.rows.size, 'cell')} (first: {place}, sample "
        f"{quoted(names[int(codes[first])])}{where})",
        f"remove those cells, impute the values, or {argument('on_missing', 'drop')}",
    )


def listed_counts(names: Sequence[str], counts: Int64, *, most: int = 5) -> str:
    """Return how many there are of the names that have most, and how many others have some."""
    order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    shown = ", ".join(f"{counts[i]} of {quoted(names[i])}" for i in order[:most])
    return shown if len(order) <= most else f"{shown} and some of {counted(len(order) - most, 'more sample')}"


def all_finite(block: Block) -> bool:
    """Tell whether no value of a block is NaN or infinite."""
    return _not_finite(block)[0] == 0


def block_rows(n_columns: int) -> int:
    """Return how many rows of so many columns make a block."""
    return max(1, BLOCK_BYTES // (8 * max(n_columns, 1)))


def _look_at(block: Block) -> Looked:
    count, rows = _not_finite(block)
    finite = block if not rows.size else block[np.setdiff1d(np.arange(block.shape[0]), rows)]
    return Looked(block.shape[0], count, rows.astype(np.int64), Moments.of(finite))


def _not_finite(block: Block) -> tuple[int, Intp]:
    """Return the number of NaN and infinities and the rows that hold them."""
    values = block.data if sp.issparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # a fifth of the time that a look at each takes
            return 0, np.empty(0, dtype=np.intp)
    places = np.nonzero(~np.isfinite(values))[0]
    rows = np.searchsorted(block.indptr, places, side="right") - 1 if sp.issparse(block) else places
    return places.size, np.unique(rows)


def _blocks(reader: Reader, start: int, stop: int) -> Iterator[Block]:
    return reader.blocks(start, stop, block_rows(len(reader.features)))
