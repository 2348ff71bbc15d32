"""The demo: its files are right, it overwrites nothing unasked, and it fails with one sentence."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import heatmover as hm
from heatmover.__main__ import missing_packages
from heatmover.report.folder import DRIVERS, EVERY, INTERVALS, listing

# Intervals need --bootstrap, which a demo does not have.
# The demo has coordinates on a tree and no markers.
WRITTEN = [name for name in EVERY if name not in {INTERVALS, DRIVERS}]
SMALL = ["--samples", "6", "--cells", "30"]


@pytest.fixture(scope="module")
def demo(cli):
    return lambda out, *arguments: cli.run("demo", "--out", out, *SMALL, *arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, demo):
    out = tmp_path_factory.mktemp("demo") / "deep" / "results"
    result = demo(out, "--seed", 3)
    assert result.exit_code == 0, result.output
    return out, result


@pytest.fixture(scope="module")
def expected():
    data = hm.datasets.cohort(6, cells_per_sample=30, effect=2.0, random_state=3)
    return data, hm.compare(data.points, data.labels, bias="corrected", random_state=3)


def test_demo_writes_its_files_and_nothing_else(finished, cli):
    out, _ = finished
    assert sorted(cli.contents(out)) == sorted(WRITTEN)
    assert [path.name for path in out.parent.iterdir()] == ["results"]


def test_the_csv_is_the_matrix(finished, expected):
    _, comparison = expected
    with (finished[0] / "distances.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file))
    assert tuple(header[1:]) == comparison.names
    assert tuple(row[0] for row in rows) == comparison.names
    np.testing.assert_array_equal([[float(value) for value in row[1:]] for row in rows], comparison.distances)


def test_the_picture_is_a_png_of_1200_pixels(finished):
    start = (finished[0] / "sample-map.png").read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", start[16:24]) == (1200, 900)


def test_the_record_says_how_it_was_made(finished, expected):
    data, comparison = expected
    record = json.loads((finished[0] / "run.json").read_text(encoding="utf-8"))
    options = {"samples": 6, "cells": 30, "effect": 2.0, "seed": 3}
    assert record["command"] == {"name": "demo", "options": options}
    assert record["parameters"]["random_state"] == 3
    assert record["input"]["name"] == "simulated cohort"
    assert record["versions"]["heatmover"] == hm.__version__
    assert record["versions"]["numpy"] == np.__version__
    assert record["graph"]["n_neighbors"] == 30
    assert record["max_scale"]["value"] == comparison.model.max_scale_
    plain = hm.statistics.permanova(comparison.test_distances, data.annotations["condition"], random_state=3)
    assert record["findings"][0]["tests"]["permanova"]["p_value"] == plain.p_value


def test_the_terminal_shows_neighbors_condition_graph_and_scales(finished, expected):
    data, comparison = expected
    text = finished[1].stdout
    distances, indices = comparison.nearest(3)
    for sample, name in enumerate(comparison.names):
        row = next(line for line in text.splitlines() if line.startswith(name))
        shown = [f"{comparison.names[i]}  {d:.3f}" for i, d in zip(indices[sample], distances[sample], strict=True)]
        assert re.sub(r"\s{2,}", "  ", row).strip() == "  ".join([name, name.partition("-")[0], *shown])
    flowing = " ".join(text.split())
    separation = comparison.separation(data.annotations["condition"])
    assert " ".join(f"condition: {separation}".split()) in flowing
    assert f"180 points, {comparison.graph.n_edges:,} edges, one component. No problems found." in flowing
    assert " ".join(comparison.model.max_scale_reason_.split()) in flowing
    listed = text[text.index("Wrote into ") :].splitlines()[1:-1]
    assert [line.split()[0] for line in listed] == [name for name, _ in listing(WRITTEN)]
    assert "report.html the report; open it in a browser" in flowing
    assert flowing.endswith(f"Open in a browser: {finished[0] / 'report.html'}")


def test_progress_is_plain_lines_where_there_is_no_terminal(finished):
    assert finished[1].stderr.splitlines() == [
        "simulate cohort ...",
        "find neighbors ...",
        "choose scales ...",
        "diffuse measures ...",
        "assess noise ...",
        "compare ...",
        "diagnose graph ...",
        "test variables ...",
        "contrast cells ...",
        "call cells ...",
        "write results ...",
    ]


def test_many_samples_are_cut_short(tmp_path, cli):
    text = cli.run("demo", "--out", tmp_path / "out", "--samples", 14, "--cells", 12).stdout
    rows = re.findall(r"^(case|control)-\d\d", text, flags=re.MULTILINE)
    assert rows == ["case"] * 4 + ["control"] * 4
    assert "and 6 more samples in distances.csv" in text


def test_the_same_seed_gives_the_same_numbers_for_any_number_of_threads(finished, tmp_path, demo, cli):
    demo(tmp_path / "again", "--seed", 3, "--threads", 1)
    demo(tmp_path / "other", "--seed", 4)
    again, other, first = (cli.contents(out) for out in (tmp_path / "again", tmp_path / "other", finished[0]))
    for name in ("distances.csv", "sample-map.png", "samples.h5ad"):
        assert again[name] == first[name]
    assert other["distances.csv"] != again["distances.csv"]
    records = [json.loads(found["run.json"]) for found in (again, first)]
    assert len(records[0]["input"]["checksum"]) == len("sha256:") + 64
    assert json.loads(other["run.json"])["input"]["checksum"] != records[0]["input"]["checksum"]
    stages = {
        "simulate cohort",
        "find neighbors",
        "compare",
        "test variables",
        "contrast cells",
        "call cells",
        "write results",
    }
    assert stages <= records[0]["seconds"].keys()
    assert b"simulate cohort 0." in first["report.html"]
    for record in records:  # clocks go on
        del record["created"], record["seconds"], record["session"], record["files"]["report.html"]
    assert records[0] == records[1]


def test_quiet_prints_nothing(tmp_path, demo, cli):
    result = demo(tmp_path / "out", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert sorted(cli.contents(tmp_path / "out")) == sorted(WRITTEN)
    cli.fails_with(demo(tmp_path / "out", "--quiet"), "use --force")


def test_results_are_replaced_only_by_force(tmp_path, demo, cli):
    out = tmp_path / "out"
    demo(out, "--seed", 1)
    before = cli.contents(out)
    cli.fails_with(
        demo(out, "--seed", 2),
        "Expected no results in .*out' yet, found distances.csv, .*; use --force to replace them",
    )
    assert cli.contents(out) == before
    assert demo(out, "--seed", 2, "--force").exit_code == 0
    after = cli.contents(out)
    assert after.keys() == before.keys()
    assert after["distances.csv"] != before["distances.csv"]


def test_force_leaves_files_of_others_alone(tmp_path, demo, cli):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "run.json").write_text("{}")
    cli.fails_with(demo(tmp_path), "found run.json;")
    assert demo(tmp_path, "--force").exit_code == 0
    assert sorted(cli.contents(tmp_path)) == sorted([*WRITTEN, "thesis.tex"])
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch, demo, cli):
    def break_down(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("heatmover.study.drawing.style.save", break_down)
    result = demo(tmp_path / "new", "--quiet")
    cli.fails_with(result, r"Could not write the results \(No space left on device\)")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.json").write_text("before")
    cli.fails_with(demo(tmp_path, "--quiet", "--force"), "No space left")
    assert cli.contents(tmp_path) == {"run.json": b"before"}


def test_a_defect_keeps_its_traceback_and_leaves_nothing(tmp_path, monkeypatch, demo):
    def break_down(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("heatmover.study.drawing.style.save", break_down)
    result = demo(tmp_path / "new")
    assert isinstance(result.exception, ZeroDivisionError)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path, demo, cli):
    file = tmp_path / "file"
    file.write_text("here")
    for out in (file, file / "below" / "it"):
        cli.fails_with(demo(out), "--out to name a folder, found that .*file. is a file")
    assert file.read_text() == "here"


def test_a_folder_called_like_a_result(tmp_path, demo, cli):
    (tmp_path / "distances.csv").mkdir()
    cli.fails_with(demo(tmp_path, "--force"), "found folders called distances.csv")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which not even root can write")
def test_a_folder_that_cannot_be_written(demo, cli):
    cli.fails_with(demo("/proc/results"), "--out to be a writable folder, found '/proc/results': No such file")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--samples", 3, "--samples to be a whole number of at least 4, found 3"),
        ("--cells", 9, "--cells to be a whole number of at least 10, found 9"),
        ("--effect", -1, r"--effect to be a number in \(-1, 1000\], found -1"),
        ("--effect", "nan", "--effect .* found nan"),
        ("--seed", "many", "--seed to be a whole number of at least 0, found 'many'"),
        ("--seed", -1, "--seed to be a whole number of at least 0, found -1"),
        ("--threads", 0, "--threads to be a whole number of at least 1, found 0"),
        ("--samples", 100_000, "fits into memory .* found 100,000 samples of 30 cells; use fewer"),
    ],
)
def test_bad_values_are_refused_before_any_work(tmp_path, option, value, sentence, demo, cli):
    cli.fails_with(demo(tmp_path / "out", option, value), sentence)
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_is_found_before_any_work(tmp_path, monkeypatch, demo, cli):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cli.fails_with(demo(tmp_path / "out"), r"'matplotlib'.*run 'pip install .*heatmover\[demo\]")


def test_a_disconnected_graph_is_diagnosed_not_warned_about(tmp_path, monkeypatch, demo):
    data = hm.datasets.cohort(6, cells_per_sample=60)
    far = data.points + 1000 * (np.arange(len(data.points)) % 2)[:, None]
    split = hm.datasets.Dataset("split", far, data.labels, data.coordinates, data.annotations, data.ground_distance)
    monkeypatch.setattr("heatmover.datasets.cohort", lambda *_, **__: split)
    result = demo(tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "2 components" in result.stdout
    assert "2 components contain several points" in " ".join(result.stdout.split())


@pytest.mark.parametrize("package", ["plotly", "jinja2", "anndata"])
def test_missing_packages_are_found_before_any_work(tmp_path, monkeypatch, package, demo, cli):
    monkeypatch.setitem(sys.modules, package, None)
    cli.fails_with(demo(tmp_path / "out"), rf"'{package}'.*run 'pip install .*heatmover\[demo\]")
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(cli):
    text = cli.run("demo", "--help").stdout
    assert "heatmover demo --out results --seed 7" in text
    for option in ("--out", "--seed", "--samples", "--cells", "--effect", "--threads", "--quiet", "--force"):
        assert option in text
    assert "demo" in cli.run("--help").stdout


def test_version(cli):
    assert cli.run("--version").stdout == f"heatmover {hm.__version__}\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the processes of Unix")
def test_as_a_module_with_ascii_output(tmp_path, cli):
    command = [sys.executable, "-m", "heatmover", "demo", *SMALL, "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"case-01" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
    assert sorted(cli.contents(tmp_path / "out")) == sorted(WRITTEN)
    # The same command once more, without another start, which takes seconds.
    with (tmp_path / "errors.txt").open("w") as errors:
        again = cli.fork(*command[3:], stdout=errors.fileno(), stderr=errors.fileno())
    assert os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) == 2
    assert (tmp_path / "errors.txt").read_text().splitlines()[-1].startswith("Error: Expected no results in ")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_bars_in_a_terminal(tmp_path, cli):
    """Every stage ends with its mark, and the cursor is given back."""
    pty = pytest.importorskip("pty", reason="needs the terminals of Unix")
    controller, terminal = pty.openpty()
    environment = {"TERM": "xterm-256color", "COLUMNS": "100"}
    with Path(os.devnull).open("w") as nowhere:
        child = cli.fork(
            "demo", *SMALL, "--out", tmp_path / "out", stdout=nowhere.fileno(), stderr=terminal, environment=environment
        )
    os.close(terminal)
    output = b""
    while chunk := read_some(controller):
        output += chunk
    os.close(controller)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    for stage in ("simulate cohort", "find neighbors", "choose scales", "diffuse measures", "compare", "write results"):
        assert re.search(rf"✓ {stage} +━+ +\d+\.\d s", text)
    assert b"\x1b[?25h" in output


def read_some(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # what Linux says when the other side has closed
        return b""


def test_all_packages_that_an_extra_lacks_are_named_at_once(monkeypatch):
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda _: [
            "numpy",
            "no-such-package>=2; extra == 'demo'",
            'nowhere[x] ; extra == "demo"',
            "else; extra == 'dask'",
        ],
    )
    assert missing_packages("demo") == ["no-such-package", "nowhere"]


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_the_command_names_the_extra(package):
    code = f"import sys; sys.modules[{package!r}] = None; from heatmover.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    install = f"run 'pip install {package}' (part of the extra heatmover[demo])"
    assert done.stderr == f"Expected the package '{package}', found it missing; {install}.\n"
