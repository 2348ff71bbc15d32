"""Compile what a first comparison needs, the last first, in a process of its own beside the one that compares.

The other process begins with what it needs first and finds on disk what was compiled here: they meet in the middle,
whatever each takes. It compiles at most one kernel that is being compiled here. This process ends when it is done or
when the other closes the pipe, also by dying.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba import types

from heatmover._compiled import differences, features, groups, l1, merges, mirror, moments, recurrence
from heatmover._compiled.jit import locked

__all__ = ["compile_ahead", "signatures"]


def signatures() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield kernels and the types of their arguments, in the order in which a comparison of a table needs them."""
    number, single, whole, short = types.float64, types.float32, types.int64, types.int32
    numbers, wholes, shorts, bits = number[::1], whole[::1], short[::1], types.uint64[::1]
    table, singles, stack = number[:, ::1], single[:, ::1], single[:, :, ::1]
    frozen = {kind: types.Array(kind, 1, "C", readonly=True) for kind in (short, whole, number)}
    frozen_table, frozen_rows = (types.Array(kind, 2, "C", readonly=True) for kind in (number, single))
    run, joined = types.UniTuple(whole, 2), (wholes, shorts, numbers)

    yield moments.add_rows, (frozen_table, numbers, table, table)
    yield (
        groups.k_nearest_by_groups,
        (run, table, table, wholes, wholes, wholes, table, numbers, number, table, whole[:, ::1], table, wholes),
    )
    yield mirror.sort_rows, (whole, whole, shorts, shorts, numbers)
    yield mirror.mirror, (shorts, shorts, numbers, wholes, shorts, numbers)
    yield (
        mirror.join_rows,
        (whole, whole, types.Tuple((shorts, shorts, numbers)), types.Tuple(joined), *joined),
    )
    yield mirror.reorder, (frozen[short], frozen[short], frozen[number], wholes, wholes, shorts, shorts, numbers)
    yield mirror.label_components, (shorts, shorts, shorts)
    yield l1.l1_tile, (frozen_rows, frozen_rows, single, types.boolean, table)
    yield recurrence.known_parts, (singles, numbers, shorts, table)
    yield (
        recurrence.advance,
        (run, frozen[whole], frozen[short], single[::1], stack, whole, single, single, singles, stack, stack),
    )
    yield recurrence.project, (singles, numbers, shorts, table, numbers, wholes)
    yield merges.sort_edges, (frozen[short], frozen[short], bits)
    yield merges.large_sets_merge, (shorts, wholes, frozen[short], numbers, number, wholes)
    yield (
        merges.merge_edges,
        (shorts, wholes, frozen[short], numbers, bits, numbers, wholes, wholes, numbers, whole[:, ::1]),
    )
    yield merges.sum_upwards, (wholes, table)
    yield merges.lowest_marked, (wholes, types.boolean[::1], wholes)
    yield features.add_transposed, (singles, single, whole, singles)
    yield differences.add_weighed_differences, (table, table, numbers)


def compile_ahead() -> None:
    """Compile everything that is not on disk yet, the last first."""
    for kernel, arguments in reversed(list(signatures())):
        kernel.compile(arguments)


def _end_with_the_other() -> None:
    """Wait until the pipe is closed, and end at once, but never while a file is being written."""
    sys.stdin.buffer.read()
    with locked(Path(moments.add_rows.stats.cache_path)):
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Compile until all is done or the other process has ended."""
    gc.disable()  # what compiling leaves behind is small, and the process short
    threading.Thread(target=_end_with_the_other, daemon=True).start()
    compile_ahead()


if __name__ == "__main__":
    main()
