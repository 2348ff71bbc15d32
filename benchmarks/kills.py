"""Kills while samples are added to an atlas: nothing that was committed may be lost, and the atlas must load.

A process adds a sample to a saved atlas again and again and says each that is committed; it is killed (SIGKILL) at a
random moment, the atlas is checked and loaded, and the next process goes on. Each addition has the same cells, so that
every row that is there must have the same bits. The kills of `search.py kills` are of an index.

    python benchmarks/kills.py --record               # 100 kills
    python benchmarks/kills.py --number 5
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from provenance import add_record, write_table

import heatmover as hm
from heatmover._base.storage import Store
from heatmover.atlas import verify
from heatmover.errors import InvalidInputError

CELLS = 20
# Seconds after the first addition: additions take some ten milliseconds each.
LATEST = 0.1
ADD = """
import dataclasses, sys
import numpy as np
import heatmover as hm
path, cells = sys.argv[1], np.load(sys.argv[2])
atlas = hm.load(path)
mapped, number = atlas.map(cells, "new", n_jobs=1), len(atlas.names)
while True:
    named = dataclasses.replace(mapped, names=(f"n{number}",))
    number = len(atlas.add(named, {"group": [number]}, path=path).names)
    print(number, flush=True)
"""


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
    parser.add_argument("--number", type=int, default=100, help="of kills (100)")
    parser.add_argument("--seed", type=int, default=0, help="of their moments (0)")
    add_record(parser)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    data = hm.datasets.cohort(6, cells_per_sample=CELLS)
    lost = half = unloaded = inside = committed = 0
    with tempfile.TemporaryDirectory() as folder:
        path, cells = Path(folder) / "it.atlas", Path(folder) / "new.npy"
        atlas = hm.build_atlas(data.points, data.labels, variables={"group": list(range(6))}, landmarks=60)
        atlas.save(path)
        np.save(cells, data.points[:CELLS])
        row = atlas.map(data.points[:CELLS], "new").embedding
        for _ in range(args.number):
            child = subprocess.Popen(
                [sys.executable, "-c", ADD, str(path), str(cells)], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            told = [int(child.stdout.readline())]
            time.sleep(rng.uniform(0, LATEST))
            child.send_signal(signal.SIGKILL)
            rest, _ = child.communicate()
            told += [int(line) for line in rest.splitlines()]
            # What the killed process had not committed yet lies there still; the next one removes it.
            inside += any(unknown(path))
            committed, wrong = state(path, 6, row)
            lost += committed < max(told)
            half += "half" in wrong
            unloaded += "load" in wrong
    rows = [[f"{args.number}", f"{inside}", f"{committed - 6:,}", f"{lost}", f"{half}", f"{unloaded}"]]
    heads = [
        "kills", "kills that left an unfinished addition", "additions committed", "atlases that lost a committed one",
        "atlases with half an addition", "atlases that did not load",
    ]  # fmt: skip
    note = (
        "A process that repeatedly adds a sample to an atlas is killed (SIGKILL) at a random moment, and a new "
        "process continues. After each kill, the test compares every checksum and loads the atlas."
    )
    write_table("kills", heads, rows, note, folder=args.record, threads=1)
    return int(lost + half + unloaded > 0)


def unknown(path: Path) -> list[Path]:
    """Return what lies among the samples and is not committed."""
    known = {part["folder"] for part in Store.open(path).manifest.parts}
    return [each for each in path.glob("part*") if each.name not in known]


if __name__ == "__main__":
    sys.exit(main())
