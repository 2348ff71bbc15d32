"""What starting costs: the import, the very first call after installation (compiles), and later processes (cached).

Every line is a fresh process. "tiny job" is points to distances and nearest neighbors on 300 points: all that is
not loading is a few milliseconds of it. Loading NumPy, SciPy, scikit-learn and numba is part of each job. "heatmover
compare" is the command, from a table of 10,000 cells of 20 samples to the report. The bytecode of the package is made
first, as pip does when it installs.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import add_record, write_table

IMPORT = """
import time; start = time.perf_counter()
import heatmover
print(time.perf_counter() - start)
"""
LIBRARIES = """
import time; start = time.perf_counter()
import numpy, scipy.sparse, scipy.spatial, sklearn.base, sklearn.utils.validation, numba
print(time.perf_counter() - start)
"""
JOB = """
import time; start = time.perf_counter()
import numpy as np, heatmover as hm
points = np.random.default_rng(0).normal(size=(300, 3))
graph = hm.Graph.from_points(points)
embedding = hm.DiffusionEMD(graph).fit_transform(hm.measures_from_labels(np.arange(300) % 9))
hm.pairwise_distances(embedding); hm.nearest(embedding, 3)
if {everything}:
    embedding = hm.DiffusionEMD(graph, tol=1e-6).fit_transform(hm.measures_from_labels(np.arange(300) % 9))
    hm.pairwise_distances(embedding); hm.nearest(embedding, 3)
    hm.Graph.from_points(points, neighbors="approximate")
print(time.perf_counter() - start)
"""


def environment(cache: str) -> dict[str, str]:
    """Return the environment of a process that keeps kernels in a folder, and may keep bytecode."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "NUMBA_CACHE_DIR": cache}


def install_bytecode() -> None:
    """Make the bytecode of the package, as pip does."""
    import heatmover as hm

    compileall.compile_dir(Path(hm.__file__).parent, quiet=1)


def seconds(code: str, cache: str) -> float:
    order = [sys.executable, "-c", code]
    done = subprocess.run(order, capture_output=True, text=True, check=True, env=environment(cache))
    return float(done.stdout.split()[-1])


def write_cells(folder: Path) -> None:
    """Write cells.csv, 10,000 cells of 20 samples, and samples.csv with a variable of groups and a number."""
    import heatmover as hm

    data = hm.datasets.cohort(20, cells_per_sample=500, random_state=0)
    names = list(dict.fromkeys(data.labels.tolist()))
    heads = ["sample", *(f"marker {i}" for i in range(data.points.shape[1]))]
    rows = [[name, *map(str, cell)] for name, cell in zip(data.labels, data.points.round(5).tolist(), strict=True)]
    sheet = [[name, group, str(number)] for number, (name, group) in
             enumerate(zip(names, data.annotations["condition"], strict=True))]  # fmt: skip
    for path, table in (("cells.csv", [heads, *rows]), ("samples.csv", [["sample", "condition", "order"], *sheet])):
        (folder / path).write_text("\n".join(",".join(row) for row in table) + "\n", encoding="utf-8")


def seconds_of_compare(folder: Path, cache: str) -> float:
    """Return how long the command takes from file to report."""
    order = [sys.executable, "-m", "heatmover", "compare", "cells.csv", "-s", "sample", "--sample-sheet", "samples.csv",
             "--color", "condition", "--color", "order", "-o", "results", "-q", "--force"]  # fmt: skip
    start = time.perf_counter()
    subprocess.run(order, check=True, cwd=folder, env=environment(cache))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_record(parser)
    args = parser.parse_args()
    install_bytecode()
    with tempfile.TemporaryDirectory() as cache:
        seconds(LIBRARIES, cache)  # brings the files into the disk cache
        libraries = min(seconds(LIBRARIES, cache) for _ in range(3))
        rows = {
            "import heatmover": min(seconds(IMPORT, cache) for _ in range(3)),
            "tiny job, first ever (compiles)": seconds(JOB.format(everything=False), cache),
            "tiny job, later process": min(seconds(JOB.format(everything=False), cache) for _ in range(3)),
            "the libraries alone": libraries,
        }
    with tempfile.TemporaryDirectory() as cache:
        rows["every kernel and precision, first ever"] = seconds(JOB.format(everything=True), cache)
        rows["every kernel and precision, later process"] = min(
            seconds(JOB.format(everything=True), cache) for _ in range(3)
        )
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as folder:
        write_cells(Path(folder))
        rows["compare 10,000 cells, the very first time"] = seconds_of_compare(Path(folder), cache)
        rows["compare 10,000 cells, warm"] = min(seconds_of_compare(Path(folder), cache) for _ in range(5))
    rows["a later process beyond its libraries"] = rows["tiny job, later process"] - libraries
    note = (
        "Each run is a separate process. The very first run was measured once. Other values are the minimum of three "
        "runs; the warm comparison is the minimum of five runs. A tiny job has 300 points and 9 measures."
    )
    shown = [[name, f"{value:.2f}"] for name, value in rows.items()]
    write_table("startup", ["", "seconds"], shown, note, folder=args.record)


if __name__ == "__main__":
    main()
