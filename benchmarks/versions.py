"""One version of heatmover beside another, in turn on the same machine: is a change slower, or larger in memory?

    git worktree add ../earlier COMMIT
    python benchmarks/versions.py --earlier ../earlier                      # the swiss roll of the paper
    python benchmarks/versions.py --earlier ../earlier --data mnist.npz     # and 10,000 digits on the sphere
    python benchmarks/versions.py --earlier ../earlier --cells 22e6 --folder cells   # and cells on disk

Every run is a process of its own; what it compiles or reads for the first time comes before the clock starts, but for
cells on disk, which are run whole. Columns: CPU seconds and seconds of the median round, peak memory, and the ratio of
CPU seconds to those of the earlier version; the machine may be busy, so that CPU seconds tell more than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]

# What both versions must know: names of the public interface alone.
RUN = (
    f"import sys; sys.path.append({str(HERE / 'benchmarks' / 'paper')!r})"
    + """
import json, resource, sys, time
import numpy as np
import heatmover as hm

def swiss_roll(data, small):
    found = hm.datasets.swiss_roll(20 if small else 100, points_per_measure=50 if small else 100, random_state=0)
    def work():
        graph = hm.Graph.from_points(found.points, random_state=0)
        return hm.pairwise_distances(hm.DiffusionEMD(graph, random_state=0).fit_transform(found.measures()))
    return work

def mnist(data, small):
    from mnist import load_mnist, spherical_mnist
    images = load_mnist(data)[0][: 200 if small else 10_000]
    found = spherical_mnist(images)
    def work():
        graph = hm.Graph.from_points(found.points, random_state=0)
        model = hm.DiffusionEMD(graph, max_scale=7, alpha=0.2, compress=0.3, random_state=0)
        return hm.nearest(model.fit_transform(found.measures()), k=1)[0]
    return work

job = {"swiss roll": swiss_roll, "mnist": mnist}[sys.argv[1]]
job(sys.argv[2], True)()
work = job(sys.argv[2], False)
begun, cpu = time.perf_counter(), time.process_time()
result = np.asarray(work())
seconds = time.perf_counter() - begun, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": seconds[0], "cpu": seconds[1], "peak": peak, "sum": float(result.sum())}))
"""
)


def small_job(tree: Path, name: str, data: str) -> dict[str, float]:
    """Run a job with the package of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, name, data], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def cells_on_disk(tree: Path, cells: float, folder: Path) -> dict[str, float]:
    """Run a checkout's own benchmark of cells on disk, on the same cells."""
    command = [sys.executable, str(tree / "benchmarks" / "cohort22m.py"), "--cells", f"{cells:.0f}"]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    subprocess.run([*command, "--folder", str(folder)], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - begun, "cpu": cpu, "peak": after.ru_maxrss / 1e6, "sum": float("nan")}


def make_cells(cells: float, folder: Path) -> None:
    """Simulate the cells, if they are not there."""
    if (folder / "cells.zarr").exists():
        return
    make = "import sys, cohort22m; sys.argv = ['', '--cells', sys.argv[1]]; options = cohort22m.options_of()"
    make += f"; cohort22m.generate(cohort22m.Path({str(folder.resolve())!r}), options)"
    folder.mkdir(parents=True, exist_ok=True)
    places = os.pathsep.join([str(HERE / "src"), str(HERE / "benchmarks")])
    environment = os.environ | {"PYTHONPATH": places}
    subprocess.run([sys.executable, "-c", make, f"{cells:.0f}"], env=environment, check=True)


def beside(name: str, run, rounds: int, earlier: Path) -> None:
    """Run both versions in turn and print a row for each."""
    found = {"earlier": [], "now": []}
    for _ in range(rounds):
        for version, tree in (("earlier", earlier), ("now", HERE)):
            found[version].append(run(tree))
    for version, runs in found.items():
        middle = {key: statistics.median(each[key] for each in runs) for key in ("cpu", "seconds", "peak")}
        ratio = middle["cpu"] / statistics.median(each["cpu"] for each in found["earlier"])
        sums = {f"{each['sum']:.9g}" for each in runs}
        print(
            f"{name:14s} {version:8s} {middle['cpu']:9.2f} {middle['seconds']:9.2f} {middle['peak']:7.2f} GB "
            f"{ratio:6.2f}   {', '.join(sorted(sums))}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--earlier", type=Path, required=True, help="a checkout of the version to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", help="MNIST as an .npz file with images and labels")
    parser.add_argument("--cells", type=float, default=0, help="cells on disk; 0 for none")
    parser.add_argument("--folder", type=Path, help="where these are or will be; default a temporary folder")
    asked = parser.parse_args()
    earlier = asked.earlier.resolve()
    print(f"{'job':14s} {'version':8s} {'CPU s':>9s} {'s':>9s} {'peak':>10s} {'ratio':>6s}   sum of the result")
    beside("swiss roll", lambda tree: small_job(tree, "swiss roll", ""), asked.rounds, earlier)
    if asked.data:
        beside("mnist", lambda tree: small_job(tree, "mnist", asked.data), asked.rounds, earlier)
    if asked.cells:
        with tempfile.TemporaryDirectory() as temporary:
            folder = asked.folder or Path(temporary)
            make_cells(asked.cells, folder)
            beside("cells on disk", lambda tree: cells_on_disk(tree, asked.cells, folder), 1, earlier)


if __name__ == "__main__":
    main()
