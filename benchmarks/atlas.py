"""An atlas against a refit: same neighbors, how much faster; and how long saving and loading take.

Held-out samples are mapped onto an atlas of the others, one at a time as they would come in, and compared with a full
`hm.compare` of the others and that sample. P@10: how many of the ten nearest reference samples are the same. Seconds
are of the processor, the least of three rounds, both ways in turn in one process.

    python benchmarks/atlas.py --data DATA --record   # DATA holds melanoma_sadefeldman48.npz
    python benchmarks/atlas.py --nodes 3000           # smaller store
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import add_record, write_table

import heatmover as hm

ROUNDS = 3
# The store of the figure that is to be reached.
NODES, SAMPLES, CELLS = 27_000, 210, 300


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def overlap(first: np.ndarray, second: np.ndarray, k: int = 10) -> float:
    nearest = [set(np.argsort(row, kind="stable")[:k]) for row in (first, second)]
    return len(nearest[0] & nearest[1]) / k


def held_out(path: Path, n_held: int, seed: int) -> list[list[str]]:
    with np.load(path) as data:
        points, labels = data["X"], data["sample"]
    names = np.unique(labels)
    held = np.random.default_rng(seed).choice(names, n_held, replace=False)
    rest = ~np.isin(labels, held)
    atlas = hm.build_atlas(points[rest], labels[rest])
    again = atlas.map(points[rest], labels[rest])
    rows = []
    for name in held:
        own = labels == name
        fits, maps = [], []
        for _ in range(ROUNDS):
            spent, full = seconds(lambda own=own: hm.compare(points[rest | own], labels[rest | own], landmarks=None))
            fits.append(spent)
            spent, mapped = seconds(lambda own=own, name=name: atlas.map(points[own], str(name)).distances[0])
            maps.append(spent)
        row = full.names.index(str(name))
        truth = np.delete(full.distances[row], row)
        rows.append([overlap(truth, mapped), min(fits), min(maps)])
    agreement, fit, mapping = np.mean(rows, axis=0)
    together = [seconds(lambda: atlas.map(points[~rest], labels[~rest]).distances)[0] for _ in range(ROUNDS)]
    each = min(together) / n_held
    same = bool((again.embedding == atlas.embedding).all())
    return [
        ["melanoma, held-out samples", f"{n_held} of {names.size}"],
        ["P@10 against a refit, mean", f"{agreement:.3f}"],
        ["refit with one more sample, CPU s", f"{fit:.3f}"],
        ["mapping one sample, CPU s", f"{mapping:.4f}"],
        ["times as fast", f"{fit / mapping:.0f}"],
        ["mapping all of them at once, CPU s each", f"{each:.4f}"],
        ["times as fast as a refit for each", f"{fit / each:.0f}"],
        ["the reference mapped again, bit-identical", "yes" if same else "NO"],
    ]


def saved(n_nodes: int, n_samples: int, seed: int) -> list[list[str]]:
    data = hm.datasets.cohort(n_samples, cells_per_sample=CELLS, random_state=seed)
    points, labels = data.points, data.labels
    built, atlas = seconds(lambda: hm.build_atlas(points, labels, landmarks=n_nodes))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.atlas"
        wall = time.perf_counter()
        write, _ = seconds(lambda: atlas.save(path))
        written = time.perf_counter() - wall
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        wall = time.perf_counter()
        read, found = seconds(lambda: hm.load(path))
        loaded = time.perf_counter() - wall
    same = bool((found.embedding == atlas.embedding).all())
    return [
        ["store: nodes, samples", f"{atlas.nodes.n_landmarks:,}, {n_samples}"],
        ["store: MB", f"{size / 1e6:.0f}"],
        ["build, CPU s", f"{built:.1f}"],
        ["save, CPU s (elapsed)", f"{write:.2f} ({written:.2f})"],
        ["load, CPU s (elapsed)", f"{read:.2f} ({loaded:.2f})"],
        ["bit-identical", "yes" if same else "NO"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with melanoma_sadefeldman48.npz; without it only the store")
    parser.add_argument("--held", type=int, default=10, help="samples to hold out (10)")
    parser.add_argument("--nodes", type=int, default=NODES, help="landmarks of the store (27,000)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of the store (210)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (0)")
    add_record(parser)
    args = parser.parse_args()
    warnings.simplefilter("ignore", hm.GraphWarning)
    rows = [] if args.data is None else held_out(args.data / "melanoma_sadefeldman48.npz", args.held, args.seed)
    rows += saved(args.nodes, args.samples, args.seed)
    note = (
        "Mapping new samples and refitting the atlas ran alternately in one process. Times are the minimum of three "
        "rounds, averaged over the held-out samples."
    )
    write_table("atlas", ["", "result"], rows, note, folder=args.record)


if __name__ == "__main__":
    main()
