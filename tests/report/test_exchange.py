"""A folder holds the files of one run, wherever a process that exchanges them is killed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE

import pytest

from heatmover._files import LOCK
from heatmover.errors import InvalidInputError
from heatmover.report import exchange
from heatmover.report.exchange import CURRENT
from heatmover.report.folder import EVERY, FILES, result_folder

if sys.platform == "win32":
    pytest.skip("needs fork and kill", allow_module_level=True)

SCRIPT = Path(__file__).with_name("exchange_runs.py")
OLD, NEW = FILES, (*FILES[:2], *EVERY[3:])
OWN = {"thesis.tex": "years", "run.json.bak": "mine"}

specification = importlib.util.spec_from_file_location("exchange_runs", SCRIPT)
runs = importlib.util.module_from_spec(specification)
sys.modules[specification.name] = runs  # where dataclasses look for it
specification.loader.exec_module(runs)
OPERATIONS, Run, at_operation = runs.OPERATIONS, runs.Run, runs.at_operation


def deliver(out, text, names=NEW, *, force=True):
    runs.deliver(out, text, names, force=force)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def processes():
    """Return a function that begins runs at the same time, each in a process, and tells how they ended."""
    with subprocess.Popen([sys.executable, SCRIPT], stdin=PIPE, stdout=PIPE, text=True) as server:

        def run(*wanted):
            server.stdin.write(json.dumps([asdict(one) for one in wanted]) + "\n")
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        yield run


def visible(out):
    """The text behind every name of a result that can be read."""
    return {name: (out / name).read_text() for name in EVERY if (out / name).exists()}


def begin(out, start):
    """Make the place as it is before a run, and return what one reads there."""
    if start == "fresh":
        return {}
    out.mkdir(parents=True)
    for name, text in OWN.items():
        (out / name).write_text(text)
    if start == "old":
        for name in OLD:
            (out / name).write_text("old")
    return visible(out)


def without_links(monkeypatch):
    monkeypatch.setattr(exchange, "_has_links", lambda folder: False)


@pytest.mark.parametrize(("start", "links"), [("fresh", True), ("own files", True), ("old", True), ("old", False)])
def test_killed_at_every_step_the_folder_is_of_one_run(tmp_path, monkeypatch, processes, start, links):
    if not links:
        without_links(monkeypatch)
    number, seen = 0, []
    for number in range(1, 500):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        old, new = begin(out, start), dict.fromkeys(NEW, "new")
        (code,) = processes(Run(str(out), "new", list(NEW), killed_at=number, links=links))
        found = visible(out)
        if links:
            assert found in (old, new), number
        else:
            assert found.items() <= old.items() or found.items() <= new.items(), number
        seen.append(found)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        if found and number % 2:
            # Half-moved files are whole again, even if the next run then finds the folder taken.
            with pytest.raises(InvalidInputError, match=r"no results in .* yet"):
                deliver(out, "next", force=False)
            assert visible(out) in (old, new)
            assert not [path for path in out.iterdir() if path.is_symlink() or path.name.startswith(".")]
        # The next run is not stopped by what the killed one left, and leaves nothing of it.
        deliver(out, "next", FILES)
        assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
        own = {} if start == "fresh" else OWN
        assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys(FILES, "next") | own
        assert not any(path.is_symlink() for path in out.iterdir())
    assert found == new
    assert number > 30
    if links:
        assert old in seen


@pytest.mark.parametrize("links", [True, False])
def test_an_operation_that_fails_leaves_the_old_files_or_the_new_ones(tmp_path, monkeypatch, links):
    if not links:
        without_links(monkeypatch)
    outcomes = set()

    def fail():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for number in range(1, 500):
        out = tmp_path / str(number) / "out"
        old, new = begin(out, "old"), dict.fromkeys(NEW, "new")
        raised = False
        try:
            # A file is closed even where that is said to have failed.
            with at_operation(number, fail, [name for name in OPERATIONS if name != "close"]) as count:
                deliver(out, "new")
        except (OSError, InvalidInputError):
            raised = True
        assert visible(out) == (old if raised else new)
        assert {name: (out / name).read_text() for name in OWN} == OWN
        outcomes.add(raised)
        deliver(out, "next")
        assert not [path for path in out.iterdir() if path.is_symlink() or path.name.startswith(".")]
        if next(count) < number:
            break
    assert outcomes == {True, False}


@pytest.mark.parametrize("start", ["fresh", "own files", "old"])
def test_of_runs_at_the_same_time_the_folder_is_one_of_them(tmp_path, processes, start):
    for attempt in range(10):
        out = tmp_path / str(attempt) / "out"
        begin(out, start)
        assert processes(*(Run(str(out), text, list(NEW if text == "b" else OLD)) for text in "abc")) == [0, 0, 0]
        found = visible(out)
        assert len(set(found.values())) == 1
        assert set(found) == set(NEW if found["run.json"] == "b" else OLD)
        assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_without_force_one_of_several_runs_wins_and_the_others_are_told(tmp_path, processes):
    for attempt in range(10):
        out = tmp_path / str(attempt) / "out"
        assert sorted(processes(*(Run(str(out), text, list(NEW), force=False) for text in "abc"))) == [0, 2, 2]
        assert len(set(visible(out).values())) == 1


@pytest.mark.parametrize("stands", [True, False])
def test_a_second_run_is_refused_before_its_work(tmp_path, stands):
    out = tmp_path / "out"
    if stands:
        out.mkdir()
    with result_folder(out) as folder:
        with pytest.raises(InvalidInputError, match=r"no other run that writes to '.*out', found one at work; wait"):
            result_folder(out).__enter__()
        with result_folder(tmp_path / "elsewhere") as other:
            (other / "run.json").write_text("other")
        (folder / "run.json").write_text("first")
    assert visible(out) == {"run.json": "first"}


def test_a_run_that_was_not_alone_is_refused_at_the_end(tmp_path):
    """A run with force came between: its results stay."""
    out = tmp_path / "out"
    run = result_folder(out)
    (run.__enter__() / "run.json").write_text("slow")
    deliver(out, "quick", FILES, force=True)
    with pytest.raises(InvalidInputError, match=r"no results in .* yet, found distances\.csv"):
        run.__exit__(None, None, None)
    assert visible(out) == dict.fromkeys(FILES, "quick")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_the_folder_itself_stays(tmp_path):
    """Whoever works in it, or has mounted it, sees the new files."""
    begin(tmp_path / "out", "old")
    before = (tmp_path / "out").stat().st_ino
    (tmp_path / "link").symlink_to("out")
    deliver(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "out").stat().st_ino == before
    assert visible(tmp_path / "out") == dict.fromkeys(NEW, "new")


def test_links_of_the_user_are_replaced_not_followed(tmp_path):
    (tmp_path / "precious.html").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").symlink_to("../precious.html")
    (out / "run.json").symlink_to("nowhere")
    with pytest.raises(InvalidInputError, match=r"no results in .* yet, found report.html, run.json"):
        deliver(out, "new", force=False)
    deliver(out, "new")
    assert visible(out) == dict.fromkeys(NEW, "new")
    assert (tmp_path / "precious.html").read_text() == "precious"


def test_a_failed_exchange_gives_links_of_the_user_back(tmp_path, monkeypatch):
    (tmp_path / "precious.html").write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "report.html").symlink_to("../precious.html")
    real = exchange._point

    def fail(path, target, temporary):
        if path.name == "run.json":
            raise OSError(errno.ENOSPC, "full")
        real(path, target, temporary)

    monkeypatch.setattr(exchange, "_point", fail)
    with pytest.raises(InvalidInputError, match="full"):
        deliver(out, "new")
    assert visible(out) == {"report.html": "precious"}


def test_files_without_a_second_name_are_copied(tmp_path, monkeypatch):
    begin(tmp_path / "out", "old")

    def refuse(*_, **__):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    deliver(tmp_path / "out", "new")
    assert visible(tmp_path / "out") == dict.fromkeys(NEW, "new")


def test_runs_of_other_machines_are_left_alone(tmp_path):
    """A disk may not tell of their locks."""
    folder = tmp_path / f".heatmover-run-{'0' * 32}"
    folder.mkdir()
    (folder / "owner.json").write_text(json.dumps({"purpose": str(tmp_path), "machine": ["elsewhere", "start 1"]}))
    deliver(tmp_path, "new")
    assert folder.is_dir()
    (folder / "owner.json").write_text(json.dumps({"purpose": str(tmp_path), "machine": exchange._machine()}))
    deliver(tmp_path, "new")
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "[]", "null", "{", '{"machine": 3}', '{"purpose": []}'])
def test_odd_leftovers_stop_nobody(tmp_path, content):
    folder = tmp_path / f".heatmover-run-{'1' * 32}"
    folder.mkdir()
    (folder / "owner.json").write_text(content)
    (tmp_path / LOCK).touch()
    (tmp_path / CURRENT).symlink_to("nowhere")
    (tmp_path / "report.html").symlink_to(f"{CURRENT}/report.html")
    deliver(tmp_path, "new", force=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(NEW, "new")


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_something_else_with_the_name_of_the_lock(tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    lock = tmp_path / LOCK
    lock.mkdir() if kind == "folder" else lock.symlink_to(precious) if kind == "link" else os.mkfifo(lock)
    with pytest.raises(InvalidInputError, match="out where one can write"):
        deliver(tmp_path, "new")
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("start", ["fresh", "old"])
def test_all_new_files_are_on_the_disk_before_one_is_seen(tmp_path, monkeypatch, start):
    out = tmp_path / "out"
    old, done = begin(out, start), []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(visible(out)))
    deliver(out, "new")
    assert done[: len(NEW)] == [old] * len(NEW)
