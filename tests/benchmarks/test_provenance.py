"""Tables of figures end with where they come from."""

from __future__ import annotations

import argparse
import re
import subprocess

import numpy as np
import pytest


@pytest.fixture
def source(script):
    return script("provenance")


def git(folder, *order):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", folder, *order], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("x = 1\n")
    try:
        git(tmp_path, "init", "-q")
    except OSError:
        pytest.skip("git is not here")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_line_says_command_day_threads_and_versions(source, monkeypatch):
    monkeypatch.setattr(source, "COMMIT", "commit 1a2b3c4")
    line = source.provenance(["benchmarks/l1.py", "--rows", "1000"], ("numpy", "no-such-package"), threads=2)
    pattern = (
        r"\*`python \S*l1\.py --rows 1000`, commit 1a2b3c4, \d{4}-\d\d-\d\d, 2 threads; "
        rf"Python 3\.\d+\.\S+, numpy {re.escape(np.__version__)}, no-such-package not installed\*"
    )
    assert re.fullmatch(pattern, line)


def test_paths_lose_what_belongs_to_this_machine(source):
    inside = str(source.ROOT / "benchmarks" / "l1.py")
    assert source.words([inside, "--data", "/somewhere/else/digits.npz"]) == "benchmarks/l1.py --data digits.npz"
    assert source.words([inside, "--data=/somewhere/else"]) == "benchmarks/l1.py --data=else"
    assert source.words([inside, "--out", str(source.ROOT / "docs")]) == "benchmarks/l1.py --out docs"
    assert source.words([inside, "a/b", "--share", "1/2"]) == "benchmarks/l1.py a/b --share 1/2"


def test_commit_says_whether_what_decides_was_changed(source, repository):
    clean = source.commit(repository)
    assert clean == f"commit {git(repository, 'rev-parse', '--short=7', 'HEAD')}"
    (repository / "table.md").write_text("written by an earlier run\n")
    assert source.commit(repository) == clean
    (repository / "src" / "code.py").write_text("x = 2\n")
    assert source.commit(repository) == f"{clean} with changes"


def test_no_commit_where_there_is_none(source, tmp_path, repository):
    assert source.commit(repository / "src") == "no commit known"
    assert source.commit(tmp_path / "nowhere") == "no commit known"


def test_table_is_printed_and_written_only_if_recorded(source, tmp_path, capsys):
    heads, rows = ["method", "seconds"], [["ours", 1.5], ["theirs", 20]]
    source.write_table("speed", heads, rows, "A note.", packages=["numpy"])
    printed = capsys.readouterr().out
    assert printed.splitlines()[:4] == ["method  seconds", "ours        1.5", "theirs       20", "A note."]
    assert list(tmp_path.iterdir()) == []
    source.write_table("speed", heads, rows, "A note.", packages=["numpy"], folder=tmp_path / "numbers")
    lines = (tmp_path / "numbers" / "speed.md").read_text().splitlines()
    assert lines[:4] == ["| method | seconds |", "|---|--:|", "| ours | 1.5 |", "| theirs | 20 |"]
    assert lines[4:7] == ["", "A note.", ""]
    assert lines[7] == source.provenance(packages=["numpy"])


def test_record_is_a_folder_or_nothing(source):
    arguments = argparse.ArgumentParser()
    source.add_record(arguments)
    assert arguments.parse_args([]).record is None
    assert arguments.parse_args(["--record"]).record == source.NUMBERS


def test_exhibits_end_with_their_provenance(script, tmp_path):
    module = script("exhibit")
    module.Exhibit("speed", tmp_path, quick=True, seed=0).table(["method"], [["ours"]], suffix="_small")
    text = (tmp_path / "numbers" / "speed_small.md").read_text()
    assert text.startswith("| method |\n|---|\n| ours |\n\n*`python ")
    assert re.search(r", POT \d\S*\*\n$", text)
