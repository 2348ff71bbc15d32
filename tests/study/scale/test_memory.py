"""The budget of memory is kept, as measured, and four times the cells take no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

# Measured in a process of its own, from the moment when everything is imported and compiled.
RUN = """
import json, sys
from pathlib import Path
import numpy as np
import heatmover as hm
from heatmover.cohort import read_cohort
from heatmover.graphs.centers import CenterSearch
from heatmover.study.scale import compare_cohort

def peak():
    size = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return size

options = {"landmarks": 1200, "n_jobs": 2, "memory": sys.argv[1]}
CenterSearch(np.ones((200, 14))).nearest(np.zeros((2, 14)), 1)  # which compiles both kernels, for there are ties
first = compare_cohort(read_cohort(sys.argv[2], sample_key="sample"), **options)
del first

def taken(path):
    peak()
    before = peak()
    compare_cohort(read_cohort(path, sample_key="sample"), **options)
    return peak() - before

print(json.dumps([[taken(path) for _ in range(2)] for path in sys.argv[3:]]))
"""
BUDGET = 250
# What is freed is given back at once. Else it stays, by chance, and what a run takes of it is not seen: one run was
# measured as 1 MB or as 98 MB, and is 71 to 77 MB now.
NOTHING_KEPT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, write):
    folder = tmp_path_factory.mktemp("cells")
    made = []
    for n_cells in (13_000, 50_000, 200_000):
        rng = np.random.default_rng(n_cells)

        class Data:
            labels = np.repeat([f"s{i}" for i in range(10)], n_cells // 10)
            points = rng.normal(size=(n_cells, 14)) * np.linspace(1, 0.05, 14)

        made.append(write(folder / f"{n_cells}.parquet", Data, [16_384]))
    return made


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_memory_stays_below_the_budget_and_does_not_grow_with_cells(files):
    command = [sys.executable, "-c", RUN, f"{BUDGET} MB", *map(str, files)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | NOTHING_KEPT)
    small, large = json.loads(process.stdout)
    assert max(large) < BUDGET * 1e6
    # Which blocks two threads hold at a time is chance; what they need is what the luckier of two runs took.
    assert min(large) < min(small) + 40e6
