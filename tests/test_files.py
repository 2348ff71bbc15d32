"""Files appear complete or not at all; locks keep processes apart and end with them."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from heatmover import _files
from heatmover._files import LOCK, exchange, guarded, plain, replacing
from heatmover.errors import InvalidInputError


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "x").write_text("old")
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (done.append(name), real(*a))[1])
    with replacing(tmp_path / "x") as file:
        file.write("new")
    assert done[:2] == ["fsync", "replace"]
    assert (tmp_path / "x").read_text() == "new"


def test_a_failure_leaves_the_old_file(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "x") as file:
        file.write(str(1 / 0))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_names_are_exchanged_in_one_step_or_not_at_all(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    went = exchange(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b" if went else "a"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["a" if went else "b"]
    if went:
        with pytest.raises(FileNotFoundError):
            exchange(tmp_path / "a", tmp_path / "nowhere")


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_name_is_refused(path):
    with pytest.raises(InvalidInputError, match="the path of a file, found"), replacing(path):
        pass


def test_a_folder_that_another_holds_is_waited_for_and_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "PATIENCE", 0.05)
    with guarded(tmp_path), pytest.raises(TimeoutError), guarded(tmp_path):
        pass
    with guarded(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_take_turns_and_a_killed_one_holds_nothing(tmp_path):
    count = tmp_path / "count"
    count.write_text("0")

    def add():
        for _ in range(20):
            with guarded(tmp_path):
                count.write_text(str(int(count.read_text()) + 1))

    def die():
        with guarded(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    children = [forked(action) for action in (add, die, add, die, add)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, -signal.SIGKILL, 0, -signal.SIGKILL, 0]
    assert count.read_text() == "60"


def forked(action):
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (math.inf, "inf"),
        (np.float32("nan"), None),
        (np.array([1, 2]), [1, 2]),
        ((1, {2.5}), [1, [2.5]]),
        ({1: True, None: np.int64(3)}, {"1": True, "None": 3}),
        (Path("x"), "x"),
        (np.bool_(False), False),
    ],
)
def test_plain_values(value, expected):
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    json.dumps(found, allow_nan=False)
