"""What starting costs: the import, the very first call after installation (compiles), and later processes (cached).

Every line is a fresh process. "tiny job" is points to distances and nearest neighbours on 300 points: all that is
not loading is a few milliseconds of it. Loading NumPy, SciPy, scikit-learn and numba is part of each job.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

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
    hm.Graph.from_points(points, neighbors="descent")
print(time.perf_counter() - start)
"""


def seconds(code: str, cache: str) -> float:
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_record(parser)
    args = parser.parse_args()
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
    rows["a later process beyond its libraries"] = rows["tiny job, later process"] - libraries
    note = "Each a process of its own; first ever once, the others the best of three. 300 points, 9 measures."
    shown = [[name, f"{value:.2f}"] for name, value in rows.items()]
    write_table("startup", ["", "seconds"], shown, note, folder=args.record)


if __name__ == "__main__":
    main()
