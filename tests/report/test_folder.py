"""A folder of results appears complete or not at all."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE

import anndata
import numpy as np
import pandas as pd
import pytest

import heatmover as hm
from heatmover.errors import InvalidInputError, MissingExtraError
from heatmover.report.folder import (
    EVERY,
    FILES,
    HOLDS,
    INDEX,
    check_extras,
    listing,
    result_folder,
    storable,
    write_results,
)
from heatmover.study.study import study_comparison

ODD_NAMES = ["a/b", "line\nbreak", "é ∑", "[red]x[/red]", "\x1b[31m", "bell\x07here"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fill(folder, text="new", names=FILES):
    for name in names:
        (folder / name).write_text(text)


def test_files_appear_together(tmp_path):
    out = tmp_path / "deep" / "out"
    with result_folder(out) as folder:
        fill(folder)
        assert not out.exists()
    assert sorted(contents(out)) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ZeroDivisionError(), KeyboardInterrupt()])
@pytest.mark.parametrize("stands", [True, False])
def test_a_failure_leaves_nothing(tmp_path, error, stands):
    out = tmp_path / "out"
    if stands:
        out.mkdir()
        (out / "thesis.tex").write_text("years")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(type(error)):
        fail_half_way(out, error)
    assert sorted(tmp_path.rglob("*")) == before


def fail_half_way(out, error):
    with result_folder(out) as folder:
        fill(folder, names=FILES[:2])
        raise error


def test_force_replaces_all_known_names_and_nothing_else(tmp_path):
    fill(tmp_path, "old", EVERY)
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(InvalidInputError, match=r"no results in .* yet, found distances.csv, .*use force=True"):
        result_folder(tmp_path).__enter__()
    with result_folder(tmp_path, force=True) as folder:
        fill(folder)
    assert contents(tmp_path) == {**dict.fromkeys(FILES, b"new"), "thesis.tex": b"years"}


def test_places_that_will_not_do(tmp_path):
    file = tmp_path / "file"
    file.write_text("here")
    for out in (file, file / "below"):
        with pytest.raises(InvalidInputError, match=r"out to name a folder, found that .* is a file"):
            result_folder(out).__enter__()
    (tmp_path / "distances.csv").mkdir()
    with pytest.raises(InvalidInputError, match=r"folders called distances\.csv"):
        result_folder(tmp_path, force=True).__enter__()
    with pytest.raises(InvalidInputError, match="out to be a writable folder"):
        result_folder(tmp_path / ("x" * 300)).__enter__()
    assert file.read_text() == "here"


@pytest.mark.parametrize("target", ["nowhere", "out"])
@pytest.mark.parametrize("below", ["", "below"])
def test_links_that_lead_nowhere_are_refused_before_the_work(tmp_path, target, below):
    (tmp_path / "out").symlink_to(target)
    with pytest.raises(
        InvalidInputError, match=r"out to (name a folder, found that .* is a broken link|be a writable folder)"
    ):
        result_folder(tmp_path / "out" / below).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="root may write anywhere, and Windows has no such modes")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInputError, match=r"out to be a writable folder, found .*Permission"):
        result_folder(tmp_path / "out").__enter__()


def test_odd_tables_can_be_stored(tmp_path):
    index = ["a/b", "nul\0", "line\nbreak"]
    table = pd.DataFrame(
        {
            "a/b": ["x", None, "z"],
            "a|b": [1, 2, 3],
            "_index": [1.5, float("nan"), 2.5],
            "n_cells": [True, False, True],
            "mixed": [1, "two", None],
            "when": pd.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "nul\0": pd.Series(["a\0b", "\udc80", ""], index=index, dtype=object),
        },
        index=index,
    )
    stored = storable(table)
    anndata.AnnData(obs=stored).write_h5ad(tmp_path / "x.h5ad")
    read = anndata.read_h5ad(tmp_path / "x.h5ad").obs
    assert list(read.columns) == ["a|b", "a|b_", "_index_", "n_cells_", "mixed", "when", "nul\\x00"]
    assert list(read.index) == ["a/b", "nul\\x00", "line\nbreak"]
    assert read["a|b_"].tolist() == [1, 2, 3]
    assert read["mixed"].tolist()[:2] == ["1", "two"]
    assert read["mixed"].isna().tolist() == [False, False, True]
    assert read["when"].tolist()[0].startswith("2020-01-01")


@pytest.fixture(scope="module")
def small():
    data = hm.datasets.cohort(6, cells_per_sample=30, random_state=1)
    places = dict(zip(sorted(set(data.labels.tolist())), ODD_NAMES, strict=True))
    comparison = hm.compare(data.points, [places[label] for label in data.labels.tolist()])
    return study_comparison(comparison, {"a/b": ["x", "y"] * 3, "when": [1.5, None, 2, 3, 4, 5]}, n_permutations=19)


@pytest.fixture
def plain_report(monkeypatch):
    """A report that is quick to write."""
    monkeypatch.setattr(
        "heatmover.report.folder.write_report", lambda study, path, *, title: path.write_text(str(title))
    )


def test_what_is_written(small, tmp_path, plain_report):
    write_results(small, tmp_path, command={"name": "test"}, title="Title")
    assert sorted(contents(tmp_path)) == sorted(FILES)
    record = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert record["command"] == {"name": "test"}
    assert record["created"].endswith("+00:00")
    assert {"parameters", "versions", "seconds", "findings", "notes", "diagnosis"} <= record.keys()
    loaded = {each["package"]: each["version"] for each in record["session"]["dependencies"]}
    assert loaded["numpy"] == np.__version__
    assert record["session"]["info"]["Python"].startswith(platform.python_version())
    assert record["files"].keys() == set(FILES) - {"run.json"}
    for name, found in record["files"].items():
        data = (tmp_path / name).read_bytes()
        assert found == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert (tmp_path / "report.html").read_text() == "Title"
    adata = anndata.read_h5ad(tmp_path / "samples.h5ad")
    np.testing.assert_array_equal(adata.obsp["distances"], small.comparison.distances)
    assert list(adata.obs.columns) == ["a|b", "when", "n_cells"]
    assert {"X_mds", "X_diffusion", "X_heatmover"} == set(adata.obsm)
    assert adata.uns["heatmover"]["params"]["random_state"] == 0


def test_the_index_tells_what_each_file_holds(small, tmp_path, plain_report):
    write_results(small, tmp_path, command={"name": "test"}, picture="a/b")
    (tmp_path / "thesis.tex").write_text("years")
    index = (tmp_path / INDEX).read_text(encoding="utf-8")
    written = {path.name for path in tmp_path.iterdir()} - {"thesis.tex"}
    assert index.splitlines()[0] == small.headline()
    assert dict(line.split(maxsplit=1) for line in index.splitlines()[2:-2]) == dict(listing(written))
    assert {name for name, _ in listing(written)} == written
    assert set(HOLDS) == set(EVERY)


def test_a_picture_on_request(small, tmp_path, plain_report):
    write_results(small, tmp_path, command={}, picture="a/b")
    assert (tmp_path / "sample-map.png").read_bytes().startswith(b"\x89PNG")
    assert "sample-map.png" in json.loads((tmp_path / "run.json").read_text())["files"]


@pytest.mark.parametrize("package", ["pandas", "anndata", "plotly", "jinja2"])
def test_missing_packages_are_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*heatmover\[cohort\]"):
        check_extras()


def test_matplotlib_only_for_pictures(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    check_extras()
    with pytest.raises(MissingExtraError, match=r"matplotlib.*heatmover\[demo\]"):
        check_extras(picture=True, extra="demo")


SCRIPT = Path(__file__).with_name("result_runs.py")
OLD, NEW = FILES, (*FILES[:2], *EVERY[3:])
OWN = {"thesis.tex": "years", "run.json.bak": "mine"}

specification = importlib.util.spec_from_file_location("result_runs", SCRIPT)
runs = importlib.util.module_from_spec(specification)
sys.modules[specification.name] = runs  # where dataclasses look for it
specification.loader.exec_module(runs)
Run = runs.Run
with_fork = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and kill")


def deliver(out, text, names=NEW, *, force=True):
    runs.deliver(out, text, names, force=force)


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


@with_fork
@pytest.mark.parametrize("start", ["fresh", "own files", "old"])
def test_killed_at_every_step_the_folder_is_no_mixture(tmp_path, processes, start):
    whole = set()
    for number in range(1, 500):
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        old, new = begin(out, start), dict.fromkeys(NEW, "new")
        (code,) = processes(Run(str(out), "new", list(NEW), killed_at=number))
        found = visible(out)
        assert found.items() <= old.items() or found.items() <= new.items(), number
        # The record is there only with all files of its run.
        assert found.get("run.json") != "new" or found == new
        if code == 0:
            break
        assert code == -signal.SIGKILL
        whole.add(found == old)
        # The next run is not stopped by what the killed one left, and leaves nothing of it.
        deliver(out, "next", FILES)
        assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
        own = {} if start == "fresh" else OWN
        assert {path.name: path.read_text() for path in out.iterdir()} == dict.fromkeys(FILES, "next") | own
    assert found == new
    assert number > 20
    assert True in whole


def test_an_operation_that_fails_leaves_the_old_files_or_the_new_ones(tmp_path):
    outcomes = set()

    def fail():
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for number in range(1, 500):
        out = tmp_path / str(number) / "out"
        old, new = begin(out, "old"), dict.fromkeys(NEW, "new")
        raised = False
        try:
            # A file is closed even where that is said to have failed.
            with runs.at_operation(number, fail, [name for name in runs.OPERATIONS if name != "close"]) as count:
                deliver(out, "new")
        except (OSError, InvalidInputError):
            raised = True
        assert visible(out) == (old if raised else new)
        assert {name: (out / name).read_text() for name in OWN} == OWN
        outcomes.add(raised)
        deliver(out, "next")
        assert not [path for path in out.iterdir() if path.name.startswith(".")]
        if next(count) < number:
            break
    assert outcomes == {True, False}


@with_fork
@pytest.mark.parametrize("start", ["fresh", "own files"])
def test_of_runs_at_the_same_time_one_wins_and_the_others_are_told(tmp_path, processes, start):
    for attempt in range(10):
        out = tmp_path / str(attempt) / "out"
        begin(out, start)
        codes = processes(*(Run(str(out), text, list(NEW), force=False) for text in "abc"))
        assert sorted(codes) == [0, 2, 2]
        assert visible(out) == dict.fromkeys(NEW, "abc"[codes.index(0)])


@pytest.mark.parametrize("stands", [True, False])
def test_a_second_run_is_refused_before_its_work(tmp_path, stands):
    out = tmp_path / "out"
    if stands:
        out.mkdir()
    with result_folder(out) as folder:
        with pytest.raises(InvalidInputError, match=r"no other run that writes to '.*out', found that .*; wait"):
            result_folder(out).__enter__()
        with result_folder(tmp_path / "elsewhere") as other:
            (other / "run.json").write_text("other")
        (folder / "run.json").write_text("first")
    assert visible(out) == {"run.json": "first"}


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


@pytest.mark.parametrize("start", ["fresh", "old"])
def test_all_new_files_are_on_the_disk_before_one_is_seen(tmp_path, monkeypatch, start):
    out = tmp_path / "out"
    old, done = begin(out, start), []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(visible(out)))
    deliver(out, "new")
    assert done[: len(NEW)] == [old] * len(NEW)
