"""A fault that may pass is waited for, a little longer each time; any other error is told at once."""

from __future__ import annotations

import errno
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heatmover.errors import InvalidInputError
from heatmover.scale.execute import PAUSES, Cluster, Persistent, Threads, passes

ATTEMPTS = len(PAUSES) + 1


class CommClosedLike(ConnectionResetError):
    """A lost connection with no number of its own."""


TRANSIENT = [
    OSError(errno.EIO, "Input/output error"),
    OSError(errno.ETIMEDOUT, "Connection timed out"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    OSError(errno.EINTR, "Interrupted system call"),
    ConnectionResetError("the server hung up"),
    CommClosedLike("no number"),
    TimeoutError("no answer"),
    # As HDF5 says it: the number of the fault is in the text alone.
    OSError("Can't read data (file read failed: time = now, errno = 5, error message = 'Input/output error')"),
]
FINAL = [
    InvalidInputError("points without NaN", "3 NaN", "remove them"),
    ValueError("wrong"),
    KeyError("wrong"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    PermissionError(errno.EACCES, "Permission denied"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("the file is damaged"),
    MemoryError(),
    ZeroDivisionError("wrong"),
    OSError("Can't open file (truncated file: eof = 96, stored_eof = 2144)"),
    OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
]


def name(error):
    return f"{type(error).__name__}-{getattr(error, 'errno', None)}"


class Faulty:
    """A task that raises an error the first times it is called."""

    def __init__(self, error, times):
        self.error, self.times, self.calls = error, times, 0

    def __call__(self, *_):
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return {"number": np.array([7])}


@pytest.fixture
def waited():
    """The pauses, which are listed and not waited for."""
    return []


def run_in_threads(task, waited, shared=dict):
    results = []
    Threads(2, sleep=waited.append).run("task", {0: task}, lambda _, result: results.append(result), shared)
    return results


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
@pytest.mark.parametrize("times", [1, ATTEMPTS - 1])
def test_a_fault_that_passes_is_forgotten(error, times, waited):
    task = Faulty(error, times)
    assert [int(result["number"][0]) for result in run_in_threads(task, waited)] == [7]
    assert task.calls == times + 1
    assert waited == list(PAUSES[:times])


def test_pauses_grow():
    assert all(later > 2 * earlier > 0 for earlier, later in pairwise(PAUSES))


@pytest.mark.parametrize("error", TRANSIENT, ids=name)
def test_a_fault_that_stays_is_told_with_the_number_of_attempts(error, waited):
    task = Faulty(error, ATTEMPTS + 1)
    with pytest.raises(InvalidInputError, match=r"at each of 4 attempts within 2\.1 s") as told:
        run_in_threads(task, waited)
    assert str(error) in str(told.value)
    assert "resume=True" in str(told.value)
    assert told.value.__cause__ is error
    assert (task.calls, waited) == (ATTEMPTS, list(PAUSES))


@pytest.mark.parametrize("error", FINAL, ids=name)
def test_any_other_error_comes_at_once_as_it_is(error, waited):
    task = Faulty(error, 1)
    with pytest.raises(type(error)) as told:
        run_in_threads(task, waited)
    assert str(told.value) == str(error)
    assert (task.calls, waited) == (1, [])


def test_a_final_error_after_a_passing_fault_is_told_as_it_is(waited):
    errors = iter([OSError(errno.EIO, "Input/output error"), ValueError("wrong")])

    def task(_):
        raise next(errors)

    with pytest.raises(ValueError, match=r"\Awrong\Z"):
        run_in_threads(task, waited)
    assert waited == list(PAUSES[:1])


def test_what_all_tasks_share_is_waited_for_too(waited):
    shared = Faulty(TimeoutError("no answer"), 2)
    assert len(run_in_threads(lambda common: common, waited, shared)) == 1
    assert (shared.calls, waited) == (3, list(PAUSES[:2]))


def test_the_cause_of_an_error_counts():
    """A reader says in its own words that it could not read; why is in the cause."""
    wrapped = InvalidInputError("a file that can be read", "one that cannot")
    assert not passes(wrapped)
    wrapped.__cause__ = OSError(errno.ENOENT, "No such file or directory")
    assert not passes(wrapped)
    wrapped.__cause__ = OSError(errno.EIO, "Input/output error")
    assert passes(wrapped)


def test_a_connection_that_dask_lost_may_come_back():
    distributed = pytest.importorskip("distributed")
    assert passes(distributed.comm.CommClosedError("in <TCP>: Stream is closed"))


def test_interrupts_are_not_held_up(waited):
    with pytest.raises(KeyboardInterrupt):
        Persistent(Faulty(KeyboardInterrupt(), 1), waited.append)()
    assert waited == []


# --- on a cluster, where calls and pauses are counted in files ---


def note(seconds, folder):
    (Path(folder) / f"pause-{seconds}").touch()


def fail(_, folder, times, error):
    calls = len(list(Path(folder).glob("call-*")))
    (Path(folder) / f"call-{calls}").touch()
    if calls < times:
        raise error
    return {"number": np.array([7])}


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    workers = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=50
    )
    with workers, distributed.Client(workers, set_as_default=False) as connected:
        yield connected


def run_on_cluster(client, folder, times, error):
    results = []
    task = partial(fail, folder=str(folder), times=times, error=error)
    try:
        where = Cluster(client, sleep=partial(note, folder=str(folder)))
        where.run("task", {0: task}, lambda _, result: results.append(result), dict)
    finally:
        calls = len(list(folder.glob("call-*")))
        pauses = sorted(float(path.name.removeprefix("pause-")) for path in folder.glob("pause-*"))
    return len(results), calls, pauses


def test_on_a_cluster_a_fault_that_passes_is_forgotten(client, tmp_path):
    assert run_on_cluster(client, tmp_path, 2, OSError(errno.EIO, "Input/output error")) == (1, 3, list(PAUSES[:2]))


def test_on_a_cluster_a_fault_that_stays_is_told_with_the_number_of_attempts(client, tmp_path):
    with pytest.raises(InvalidInputError, match=r"OSError at each of 4 attempts within 2\.1 s \(.*Stale"):
        run_on_cluster(client, tmp_path, 99, OSError(errno.ESTALE, "Stale file handle"))
    assert len(list(tmp_path.glob("call-*"))) == ATTEMPTS


@pytest.mark.parametrize("error", [FINAL[0], FINAL[1], FINAL[3], FINAL[6]], ids=name)
def test_on_a_cluster_any_other_error_comes_at_once_as_it_is(client, tmp_path, error):
    with pytest.raises(type(error)) as told:
        run_on_cluster(client, tmp_path, 99, error)
    assert str(told.value) == str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["call-0"]
