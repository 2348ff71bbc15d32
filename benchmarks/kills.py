"""Kills while samples are added to an atlas: nothing that was committed may be lost, and the atlas must load.

A process adds a sample to a saved atlas again and again and reports each that is committed. The process is killed
(SIGKILL) at a random moment, the atlas is checked and loaded, and the next process continues. After every 50 kills a
new atlas begins, because every kill is followed by a check of the whole atlas. Each addition has the same cells, so all
added rows must be bit-identical. `search.py kills` kills processes that write an index.

    python benchmarks/kills.py --record               # 1,000 kills
    python benchmarks/kills.py --number 5
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from provenance import add_record, write_table

import heatmover as hm
from heatmover._base.storage import Store
from heatmover.atlas import verify
from heatmover.errors import InvalidInputError

CELLS = 20
# Seconds after the first addition: additions take some ten milliseconds each.
LATEST = 0.1
# Number of kills after which a new atlas begins.
RENEWED = 50


def add_for_ever(say: Connection, path: Path, cells: np.ndarray) -> None:
    """Add one sample after the other to an atlas, and send the number of samples after each addition."""
    atlas = hm.load(path)
    mapped, number = atlas.map(cells, "new", n_jobs=1), len(atlas.names)
    while True:
        named = dataclasses.replace(mapped, names=(f"n{number}",))
        number = len(atlas.add(named, {"group": [number]}, path=path).names)
        say.send(number)


def killed(work: Callable[..., None], arguments: tuple[Any, ...], rng: random.Random) -> int:
    """Start a process that sends what it has committed, kill it at a random moment, and return the last number sent."""
    context = multiprocessing.get_context("fork")  # a new interpreter would take a second to start
    hear, say = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(say, *arguments))
    child.start()
    say.close()
    sent = hear.recv()
    time.sleep(rng.uniform(0, LATEST))
    child.kill()
    child.join()
    try:
        while True:
            sent = hear.recv()
    except EOFError:
        return sent


def state(path: Path, n_built: int, row: np.ndarray) -> tuple[int, str]:
    """Return how many samples the atlas holds, and what is wrong with it."""
    try:
        verify(path)
        found = hm.load(path)
    except InvalidInputError as error:
        return 0, f"does not load: {error}"
    added = range(n_built, len(found.names))
    whole = (
        found.names[n_built:] == tuple(f"n{number}" for number in added)
        and found.variables["group"][n_built:] == tuple(added)
        and bool((found.embedding[n_built:] == row).all())
        and bool((found.sizes == CELLS).all())
    )
    return len(found.names), "" if whole else "holds half an addition"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=1_000, help="of kills (1,000)")
    parser.add_argument("--seed", type=int, default=0, help="of their moments (0)")
    add_record(parser)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    data = hm.datasets.cohort(6, cells_per_sample=CELLS)
    lost = half = unloaded = inside = committed = added = 0
    with tempfile.TemporaryDirectory() as folder:
        atlas = hm.build_atlas(data.points, data.labels, variables={"group": list(range(6))}, landmarks=60)
        row = atlas.map(data.points[:CELLS], "new", n_jobs=1).embedding
        for turn in range(args.number):
            if turn % RENEWED == 0:
                added, committed = added + max(committed - 6, 0), 6
                path = Path(folder) / f"{turn}.atlas"
                atlas.save(path)
            sent = killed(add_for_ever, (path, data.points[:CELLS]), rng)
            # The folder still holds what the killed process had not committed; the next process removes it.
            inside += any(unknown(path))
            committed, wrong = state(path, 6, row)
            lost += committed < sent
            half += "half" in wrong
            unloaded += "load" in wrong
    added += committed - 6
    rows = [[f"{args.number:,}", f"{inside}", f"{added:,}", f"{lost}", f"{half}", f"{unloaded}"]]
    heads = [
        "kills", "kills that left an unfinished addition", "additions committed", "atlases that lost a committed one",
        "atlases with half an addition", "atlases that did not load",
    ]  # fmt: skip
    note = (
        "A process that repeatedly adds a sample to an atlas is killed (SIGKILL) at a random moment, and a new "
        "process continues. After each kill, the test compares every checksum and loads the atlas. After every "
        f"{RENEWED} kills a new atlas begins."
    )
    write_table("kills", heads, rows, note, folder=args.record, threads=1)
    return int(lost + half + unloaded > 0)


def unknown(path: Path) -> list[Path]:
    """Return what lies among the samples and is not committed."""
    known = {part["folder"] for part in Store.open(path).manifest.parts}
    return [each for each in path.glob("part*") if each.name not in known]


if __name__ == "__main__":
    sys.exit(main())
