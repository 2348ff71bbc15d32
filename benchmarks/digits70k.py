"""All 70,000 digits of MNIST on a sphere of 25,088 nodes: from images to the nearest neighbor of each, by stage.

The model is the default one. The job is the fit, the embedding of all digits, and for each of the 10,000 test digits
the nearest of the 60,000 training digits; the accuracy is that of their labels. Beside it: the nearest among all 70,000
for every digit, and the comparison of all pairs, for some of the test digits, with which the search must agree to the
bit. Imports and compilation are warmed up on a small problem and not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from contenders import peak_megabytes, start_of_peak
from provenance import add_record, write_table

import heatmover as hm
from heatmover.embedding import neighbors
from heatmover.errors import EmbeddingWarning

sys.path.append(str(Path(__file__).resolve().parent / "paper"))
from mnist import load_mnist, spherical_mnist

# The last of load_mnist's images are MNIST's own test set.
N_TEST = 10_000
# What counts towards the limit that was set for the job.
JOB = ("fit", "embedding", "nearest, test in training digits")


class Stages:
    """Wall seconds, CPU seconds and peak memory, by stage."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, float]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start_of_peak()
        clock, work = time.perf_counter(), time.process_time()
        yield
        took = time.perf_counter() - clock, time.process_time() - work
        self.rows.append((name, *took, peak_megabytes() / 1024))
        print(f"{name:45s} {took[0]:7.2f} s   {took[1]:7.2f} CPU s", flush=True)

    def total(self, names: Sequence[str]) -> tuple[float, float, float]:
        """Return the sums of both times and the largest memory."""
        chosen = [row[1:] for row in self.rows if row[0] in names]
        return sum(row[0] for row in chosen), sum(row[1] for row in chosen), max(row[2] for row in chosen)


def warm_up(threads: int | None) -> None:
    """Load or compile every kernel that the job uses."""
    rng = np.random.default_rng(0)
    data = spherical_mnist(rng.random((3_000, 8, 8)))
    graph = hm.Graph.from_points(data.points)
    embedding = hm.DiffusionEMD(graph, compress=0.3, n_jobs=threads).fit_transform(data.masses)
    least = neighbors.FEWEST_PAIRS
    for neighbors.FEWEST_PAIRS in (1, least):
        hm.nearest(embedding[:1000], k=1, other=embedding[1000:], n_jobs=threads)


def all_pairs(rows: np.ndarray, others: np.ndarray, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest by comparing all pairs."""
    least = neighbors.FEWEST_PAIRS
    neighbors.FEWEST_PAIRS = len(rows) * len(others) + 1
    try:
        return hm.nearest(rows, k=1, other=others, n_jobs=threads)
    finally:
        neighbors.FEWEST_PAIRS = least


def run(images: np.ndarray, labels: np.ndarray, n_checked: int, threads: int | None) -> tuple[Stages, str]:
    stages = Stages()
    with stages.stage("sphere and measures"):
        data = spherical_mnist(images)
    with stages.stage("graph"):
        graph = hm.Graph.from_points(data.points)
    model = hm.DiffusionEMD(graph, n_jobs=threads)
    with stages.stage(JOB[0]):
        model.fit(data.masses)
    with stages.stage(JOB[1]):
        embedding = model.transform(data.masses)
    n_test = N_TEST * len(images) // 70_000
    train, test = embedding[:-n_test], embedding[-n_test:]
    with stages.stage(JOB[2]):
        distances, found = hm.nearest(test, k=1, other=train, n_jobs=threads)
    accuracy = 100 * float((labels[:-n_test][found[:, 0]] == labels[-n_test:]).mean())
    stages.rows.append(("the job: these three", *stages.total(JOB)))
    with stages.stage("ten nearest, test in training digits"):
        hm.nearest(test, k=10, other=train, n_jobs=threads)
    with stages.stage("nearest, all among all"):
        hm.nearest(embedding, k=1, n_jobs=threads)
    with stages.stage(f"all pairs, {n_checked:,} test digits"):
        expected = all_pairs(test[:n_checked], train, threads)
    if not (np.array_equal(expected[0], distances[:n_checked]) and np.array_equal(expected[1], found[:n_checked])):
        raise SystemExit("the search differs from the comparison of all pairs")
    work = stages.rows[-1][2] * n_test / n_checked / stages.total(JOB[2:])[1]
    note = (
        f"{len(images):,} images, {model.n_features_in_:,} nodes and {embedding.shape[1]:,} features, with max_scale "
        f"{model.max_scale_}. The nearest training digit has the right label for {accuracy:.2f}% of the test digits. "
        f"All pairs of the {n_test:,} test digits would take {work:.0f} times the CPU time of the search. For the "
        "test digits for which we computed all pairs, both results are bit-identical."
    )
    return stages, note


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz with images and labels, or a folder of idx files")
    parser.add_argument("--images", type=int, help="only so many, drawn at random (all)")
    parser.add_argument("--checked", type=int, default=500, help="test digits for which all pairs are compared (500)")
    parser.add_argument("--threads", type=int, help="threads for heatmover (every core)")
    add_record(parser)
    args = parser.parse_args()
    if args.data is None:
        print("left out: it needs MNIST, named with --data")
        return 0
    images, labels = load_mnist(args.data)
    if args.images is not None and args.images < len(images):
        chosen = np.sort(np.random.default_rng(0).permutation(len(images))[: args.images])
        images, labels = images[chosen], labels[chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmbeddingWarning)  # that it was made compact, as it has to be
        warm_up(args.threads)
        stages, note = run(images, labels, min(args.checked, len(images) // 10), args.threads)
    rows = [(name, f"{clock:.1f}", f"{work:.1f}", f"{peak:.1f}") for name, clock, work, peak in stages.rows]
    print()
    write_table(
        "digits70k", ["", "seconds", "CPU seconds", "peak GB"], rows, note, folder=args.record, threads=args.threads
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
