"""Kernels compiled beside a command: when, what, and that nothing is left of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import heatmover as hm
from heatmover.cli import _ahead
from heatmover.cli._ahead import compiled_ahead
from heatmover.cohort.projection import Moments


@pytest.fixture
def first_time(monkeypatch, tmp_path):
    """A process as outside of tests, whose folder of compiled kernels is empty, on two cores."""
    monkeypatch.setattr(_ahead, "IN_TEST", "NO_TEST")
    monkeypatch.delenv(_ahead.SWITCH, raising=False)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    return monkeypatch


def test_it_is_of_use_only_the_first_time_and_with_a_second_core(first_time):
    assert _ahead._is_of_use()
    with first_time.context() as change:
        change.setenv(_ahead.SWITCH, "0")
        assert not _ahead._is_of_use()
    with first_time.context() as change:
        change.setattr(_ahead, "IN_TEST", "PYTEST_CURRENT_TEST")
        assert not _ahead._is_of_use()
    with first_time.context() as change:
        change.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
        assert not _ahead._is_of_use()
    [folder] = _ahead._folders()
    folder.mkdir()
    tag = f"py{sys.version_info.major}{sys.version_info.minor}"
    (folder / f"moments.add_rows-9.{tag}.nbi").touch()
    assert not _ahead._is_of_use()


def test_numba_keeps_kernels_where_they_are_looked_for(tmp_path):
    code = "from heatmover._compiled.moments import add_rows; print(add_rows.stats.cache_path)"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(hm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    with pytest.MonkeyPatch.context() as change:
        change.setenv("NUMBA_CACHE_DIR", str(tmp_path))
        assert [str(folder) for folder in _ahead._folders()] == [done.stdout.strip()]


def waits_for_the_pipe(sign: Path) -> list[str]:
    code = f"import pathlib, sys; sys.stdin.read(); pathlib.Path({str(sign)!r}).touch()"
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_process_has_ended_when_the_command_has(first_time, tmp_path, error):
    started = []

    def start():
        process = subprocess.Popen(waits_for_the_pipe(tmp_path / "ended"), stdin=subprocess.PIPE)
        started.append(process)
        return process

    first_time.setattr(_ahead, "_start", start)
    try:
        with compiled_ahead():
            assert started[0].poll() is None
            if error is not None:
                raise error
    except KeyboardInterrupt:
        pass
    assert started[0].returncode == 0
    assert (tmp_path / "ended").exists()


def test_a_process_that_does_not_end_is_ended(first_time):
    first_time.setattr(_ahead, "PATIENCE", 0.01)
    code = "import signal; signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    first_time.setattr(_ahead, "_start", lambda: process)
    with compiled_ahead():
        pass
    assert process.returncode is not None


def test_a_process_that_cannot_start_is_no_error(first_time):
    first_time.setattr(sys, "executable", "/nowhere/python")
    with compiled_ahead():
        pass


def test_the_process_ends_when_the_pipe_closes(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(hm.__file__).parents[1])}
    order = [sys.executable, "-P", "-m", "heatmover._compiled.ahead"]
    process = subprocess.Popen(order, stdin=subprocess.PIPE, env=environment)
    process.stdin.close()
    assert process.wait() == -signal.SIGTERM
    assert len(list(tmp_path.glob("*/*.nbi"))) < 18  # which are all


def test_what_is_compiled_ahead_is_what_a_comparison_uses():
    from heatmover._compiled.ahead import signatures

    data = hm.datasets.cohort(20, cells_per_sample=150, random_state=0)
    Moments.of(data.points)
    comparison = hm.compare(data.points, data.labels, bias="corrected")
    hm.study_comparison(comparison, {"order": list(range(20))}, n_permutations=9)
    comparison.graph.diagnose()
    unused = [kernel.py_func.__name__ for kernel, types in signatures() if types not in kernel.signatures]
    assert unused == []


def test_a_folder_of_kernels_is_read_and_written_by_one_at_a_time(tmp_path):
    from heatmover._compiled.jit import LockedFiles, locked

    files = LockedFiles(str(tmp_path), "kernel", "stamp")
    saving = threading.Thread(target=files.save, args=("types", b"code"))
    with locked(tmp_path):
        saving.start()
        saving.join(0.05)
        assert saving.is_alive()
        assert not list(tmp_path.glob("*.nbi"))
    saving.join()
    assert files.load("types") == b"code"


def test_kernels_are_kept_in_locked_files():
    from heatmover._compiled.ahead import signatures
    from heatmover._compiled.jit import LockedFiles

    assert all(type(kernel._cache._cache_file) is LockedFiles for kernel, _ in signatures())


def test_no_kernel_is_compiled_ahead_for_two_types():
    from heatmover._compiled.ahead import signatures

    names = [kernel.py_func.__name__ for kernel, _ in signatures()]
    assert len(set(names)) == len(names)
