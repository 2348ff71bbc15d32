"""kill -9 in the middle of a run with a checkpoint: the next run ends with the same distances."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

# In the middle of the draw, of the counting, and after the samples have been embedded.
STEPS = (3, 24, 36)
# Imports what a run needs and loads its compiled kernels, once, and forks for every run: a start takes longer than it.
RUNS = """
import gc, hashlib, json, os, signal, sys
import pandas, pyarrow.parquet, sklearn.neighbors, zarr
from heatmover.cohort import read_cohort
from heatmover.study.scale import compare_cohort, landmarks

class Lines:
    def stage(self, name, total):
        pass
    def advance(self, steps=1):
        print("advance", flush=True)

landmarks.MOST_CELLS, landmarks.LEAST_CELLS, landmarks.PIECES = 250, 1, 1
cohort = read_cohort(sys.argv[1], sample_key="sample")

def compare(place):
    result = compare_cohort(cohort, landmarks=60, n_jobs=2, checkpoint=place, resume=True, progress=Lines())
    print(hashlib.sha256(result.distances.tobytes()).hexdigest(), flush=True)

def begin(place):
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.dup2(writer, 1)
        compare(place)
        os._exit(0)
    os.close(writer)
    return process, os.fdopen(reader)

def end(process):
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

def killed(place, step):
    process, output = begin(place)
    lines = [output.readline() for _ in range(step)]
    os.kill(process, signal.SIGKILL)
    return lines, end(process)

def whole(place):
    process, output = begin(place)
    lines = output.read().split()
    return lines[-1], lines.count("advance"), end(process)

compare_cohort(cohort, landmarks=60, n_jobs=1)
gc.freeze()  # a child that looks for garbage would copy all that it looks at
folder = sys.argv[2]
found = {"untouched": whole(folder + "/untouched.zarr")}
for step in map(int, sys.argv[3:]):
    place = f"{folder}/{step}.zarr"
    found[step] = killed(place, step), whole(place)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(file, tmp_path_factory):
    command = [sys.executable, "-c", RUNS, str(file), str(tmp_path_factory.mktemp("checkpoints")), *map(str, STEPS)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the processes of Unix")
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_is_resumed_to_the_same_distances(runs, step):
    (lines, code), again = runs[str(step)]
    assert lines == ["advance\n"] * step
    assert code == -signal.SIGKILL
    assert again == runs["untouched"]
    assert again[2] == 0
