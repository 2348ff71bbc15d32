"""kill -9 in the middle of a run with a checkpoint: the next run ends with the same distances."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

RUN = """
import hashlib, sys
from heatmover.scale import chunks
from heatmover.cohort import read_cohort
from heatmover.scale import chunks, compare_cohort

class Lines:
    def stage(self, name, total):
        pass
    def advance(self, steps=1):
        print("advance", flush=True)

chunks.MOST_CELLS, chunks.LEAST_CELLS, chunks.PIECES = 250, 1, 1
cohort = read_cohort(sys.argv[1], sample_key="sample")
result = compare_cohort(cohort, landmarks=60, n_jobs=2, checkpoint=sys.argv[2], resume=True, progress=Lines())
print(hashlib.sha256(result.distances.tobytes()).hexdigest())
"""


def run(file, place):
    process = subprocess.run(
        [sys.executable, "-c", RUN, str(file), str(place)], capture_output=True, text=True, check=True
    )
    lines = process.stdout.splitlines()
    return lines[-1], lines.count("advance")


@pytest.fixture(scope="module")
def untouched(file, tmp_path_factory):
    return run(file, tmp_path_factory.mktemp("untouched") / "checkpoint.zarr")


# In the middle of the draw, of the counting, and after the samples have been embedded.
@pytest.mark.parametrize("step", [3, 24, 36])
def test_a_killed_run_is_resumed_to_the_same_distances(file, untouched, tmp_path, step):
    place = tmp_path / "checkpoint.zarr"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(file), str(place)], stdout=subprocess.PIPE, text=True
    ) as process:
        for _ in range(step):
            assert process.stdout.readline() == "advance\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    digest, steps = run(file, place)
    assert digest == untouched[0]
    assert steps == untouched[1]
