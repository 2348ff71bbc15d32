"""A real cluster of processes: the same distances, also when workers die, reads fail and the scheduler goes away."""

from __future__ import annotations

import errno
import os
import signal
import threading
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heatmover.cohort import read_cohort
from heatmover.errors import InvalidInputError
from heatmover.study.scale import compare_cohort, distances, nearest, stages
from heatmover.study.scale import read_cohort as read_in_pieces
from heatmover.study.scale.stages import Cluster, executor

LANDMARKS = 60


def cluster(n_workers=2):
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module", autouse=True)
def quick_workers():
    """Workers are forked from a process that has imported what they need; each would take seconds for it."""
    # Before the setting: what is set while distributed has no defaults yet takes all of them away when it ends.
    pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    forkserver.set_forkserver_preload(["distributed", "pyarrow.parquet", "zarr", "heatmover.study.scale", "numba"])
    forkserver.ensure_running()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield
    forkserver._forkserver._stop()  # else it would stay until all tests are done


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    with cluster() as workers, distributed.Client(workers, set_as_default=False) as connected:
        yield connected


@pytest.fixture(scope="module")
def whole(cohort):
    return compare_cohort(cohort, landmarks=LANDMARKS)


@pytest.fixture(autouse=True)
def pieces(small_pieces):
    small_pieces(250)


class Once:
    """Progress that does something at the first step of a stage."""

    def __init__(self, stage, action):
        self.wanted, self.action, self.now = stage, action, ""

    def stage(self, name, total):
        self.now = name

    def advance(self, steps=1):
        if self.now == self.wanted and self.action is not None:
            action, self.action = self.action, None
            action()


def test_a_cluster_gives_the_same_bits(cohort, whole, client):
    result = compare_cohort(cohort, landmarks=LANDMARKS, client=client)
    np.testing.assert_array_equal(result.distances, whole.distances)
    np.testing.assert_array_equal(result.embedding, whole.embedding)
    assert result.landmark_agreement == whole.landmark_agreement


def test_an_address_will_do_and_tiles_run_there(whole, client, tmp_path):
    address = client.scheduler.address
    found = distances(whole.embedding, tmp_path / "d.zarr", dtype="float64", client=address)
    np.testing.assert_array_equal(found[:], whole.distances)
    np.testing.assert_array_equal(nearest(whole.embedding, 3, client=address)[1], whole.nearest(3)[1])


def test_a_worker_killed_in_the_middle_changes_nothing(cohort, whole, client):
    def kill():
        os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

    result = compare_cohort(cohort, landmarks=LANDMARKS, client=client, progress=Once("count cells", kill))
    np.testing.assert_array_equal(result.distances, whole.distances)


def test_a_worker_killed_while_all_get_what_they_share_changes_nothing(cohort, whole, client, monkeypatch):
    def fail(_):
        raise ValueError("Sample larger than population or is negative")  # what dask says then

    monkeypatch.setattr(client, "replicate", fail)
    result = compare_cohort(cohort, landmarks=LANDMARKS, client=client)
    np.testing.assert_array_equal(result.distances, whole.distances)


def fail_twice(_, folder, number):
    """Fail twice, wherever it runs, then succeed."""
    for attempt in range(2):
        mark = Path(folder) / f"{number}-{attempt}"
        if not mark.exists():
            mark.touch()
            raise OSError(errno.EIO, "the drive hiccups")
    return {"number": np.array([number])}


def test_tasks_that_fail_twice_are_tried_again(client, tmp_path):
    found = {}
    with executor(client, None) as where:
        tasks = {number: partial(fail_twice, folder=str(tmp_path), number=number) for number in range(4)}
        where.run("hiccup", tasks, lambda number, result: found.update({number: int(result["number"][0])}), None)
    assert found == {number: number for number in range(4)}


def slow_first(_shared, number, folder):
    """The first task waits until three others were consumed."""
    for _ in range(3000 if number == 0 else 0):
        if len(list(Path(folder).iterdir())) >= 3:
            break
        threading.Event().wait(0.02)
    return {"number": np.array([number])}


def test_a_slow_task_does_not_hold_up_the_others(tmp_path):
    order = []

    def consume(number, _):
        (tmp_path / str(number)).touch()
        order.append(number)

    distributed = pytest.importorskip("distributed")
    # One worker with two threads: with two workers, dask may queue every task behind the slow one.
    workers = distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0")
    with workers, distributed.Client(workers, set_as_default=False) as connected, executor(connected, None) as where:
        tasks = {number: partial(slow_first, number=number, folder=str(tmp_path)) for number in range(6)}
        where.run("slow", tasks, consume, None)
    assert sorted(order) == list(range(6))
    assert order.index(0) >= 3


def fail_always(_):
    raise InvalidInputError("cells", "none")


def test_an_error_of_a_task_arrives_as_it_is(client):
    with executor(client, None) as where, pytest.raises(InvalidInputError, match="Expected cells, found none"):
        where.run("fail", {0: fail_always}, lambda *_: None, None)


def test_a_scheduler_that_goes_away_is_told_and_the_run_resumes(cohort, whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    place = tmp_path / "checkpoint.zarr"
    options = {"landmarks": LANDMARKS, "checkpoint": place}
    workers = cluster(1)
    told = pytest.raises(InvalidInputError, match=r"scheduler that keeps running, .*resume=True")
    with distributed.Client(workers, set_as_default=False) as first, told:
        compare_cohort(cohort, client=first, progress=Once("count cells", workers.close), **options)
    kept = len(list((place / "count-cells").iterdir()))
    assert 0 < kept < 16
    result = compare_cohort(cohort, resume=True, **options)
    np.testing.assert_array_equal(result.distances, whole.distances)


def test_no_such_scheduler_is_told_before_the_work(cohort, monkeypatch):
    monkeypatch.setattr(stages, "PATIENCE", 0.5)
    with pytest.raises(InvalidInputError, match=r"a Dask scheduler at 'tcp://127.0.0.1:1', found none that answers"):
        compare_cohort(cohort, client="tcp://127.0.0.1:1")


def test_an_address_that_is_none_is_told(cohort):
    with pytest.raises(InvalidInputError, match="a Dask scheduler at 'nonsense://'"):
        compare_cohort(cohort, client="nonsense://")


def test_a_cluster_without_workers_is_told(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(stages, "WORKERS_WITHIN", 0.1)
    told = pytest.raises(InvalidInputError, match="workers on the Dask cluster")
    with cluster(0) as workers, distributed.Client(workers, set_as_default=False) as connected, told:
        Cluster(connected).run("none", {0: fail_always}, lambda *_: None, None)


def test_workers_read_the_cells_that_were_drawn(cohort, client):
    asked = {"landmarks": LANDMARKS, "equal_cells": 120, "n_bootstrap": 10}
    here, there = compare_cohort(cohort, **asked), compare_cohort(cohort, client=client, **asked)
    assert there.sizes.tolist() == [120] * 8
    np.testing.assert_array_equal(there.distances, here.distances)
    np.testing.assert_array_equal(there.intervals.upper, here.intervals.upper)


def test_a_value_that_a_worker_refuses_is_told_as_reading_tells_it(client, data, write, tmp_path):
    points = data.points.copy()
    points[[5, 3000], 0] = np.nan
    path = write(tmp_path / "bad.parquet", SimpleNamespace(points=points, labels=data.labels), [60])
    with pytest.raises(InvalidInputError) as expected:
        read_cohort(path, sample_key="sample")
    cohort = read_in_pieces(path, sample_key="sample")
    with pytest.raises(InvalidInputError) as found:
        compare_cohort(cohort, landmarks=LANDMARKS, client=client, checkpoint=tmp_path / "run.zarr")
    assert str(found.value) == str(expected.value)
    assert not (tmp_path / "run.zarr").exists()
