"""Benchmarks without their rivals: one line says so, the other rows are there."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
RIVALS = {"MultiscaleEMD", "graphtools", "geomloss", "pykeops", "ot", "torch", "pywt", "phate", "scanpy"}


@pytest.fixture
def without(monkeypatch):
    """Pretend that modules are not installed."""
    found = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *rest: None if name in names else found(name, *rest)
        )

    return hide


def top_level(tree: ast.Module) -> list[tuple[str, str]]:
    """What a module does as it is loaded: ("import", module) and ("required", module), in order."""
    done = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            done += [("import", alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            done.append(("import", (node.module or "").split(".")[0]))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Name) and call.func.id == "required":
                done.append(("required", call.args[0].value))
    return done


def test_no_benchmark_fails_to_load_for_want_of_a_rival():
    scripts = [*FOLDER.glob("*.py"), *FOLDER.glob("paper/*.py")]
    if not scripts:
        pytest.skip("the benchmarks are not here")
    for script in scripts:
        told = set()
        for what, module in top_level(ast.parse(script.read_text(encoding="utf-8"))):
            if what == "required":
                told.add(module)
            assert what != "import" or module not in RIVALS - told, f"{script.name} imports {module} before it looks"


def test_what_is_not_installed_is_told_once(script, without, capsys):
    rivals = script("rivals")
    without("geomloss")
    assert not rivals.installed("geomloss", "geomloss")
    assert not rivals.installed("geomloss", "geomloss")
    assert rivals.installed("numpy", "numpy")
    assert capsys.readouterr().out.splitlines() == [
        "geomloss is not installed, so its rows are left out; pip install 'heatmover[bench]' brings it."
    ]


def test_without_the_truth_one_line_ends_it(script, without):
    rivals = script("rivals")
    rivals.required("numpy", "NumPy", "nothing works")
    without("ot")
    with pytest.raises(SystemExit, match=r"^POT is not installed, and there is no truth; pip install .* brings it\.$"):
        rivals.required("ot", "POT", "there is no truth")


@pytest.mark.parametrize("rival", [True, False])
def test_race_shows_who_is_there(script, without, monkeypatch, capsys, rival):
    pytest.importorskip("ot")
    race = script("race_swissroll")
    contenders = script("contenders")
    if not rival:
        without("MultiscaleEMD")
    else:
        monkeypatch.setattr(contenders, "installed", lambda *_: True)

    def run(name, points, labels):
        count = len(np.unique(labels))
        distances = np.abs(np.subtract.outer(np.arange(count), np.arange(count))).astype(float)
        stages = dict.fromkeys(("graph", "embedding", "all pairs"), 1.0)
        return contenders.Run(distances, stages, peak_megabytes=10.0, data_megabytes=5.0)

    monkeypatch.setattr(race, "run", run)
    monkeypatch.setattr(sys, "argv", ["race_swissroll.py", "--measures", "12", "--points", "3", "--seeds", "1"])
    race.main()
    lines = capsys.readouterr().out.splitlines()
    names = [name for name in contenders.CONTENDERS if any(line.startswith(f"{name}  ") for line in lines)]
    assert names == (list(contenders.CONTENDERS) if rival else ["heatmover"])
    assert any(line.startswith("MultiscaleEMD is not installed") for line in lines) != rival


def test_a_part_of_the_points_comes_before_the_clock(script):
    part = script("contenders").part
    points = np.arange(30.0).reshape(10, 3)
    some, labels = part(points, np.arange(10), 4)
    assert len(np.unique(labels)) == 4
    np.testing.assert_array_equal(some, points[labels])
    every, labels = part(points, np.arange(10), 20)
    np.testing.assert_array_equal(every, points[labels])
    np.testing.assert_array_equal(np.sort(labels), np.arange(10))


def test_rows_of_another_commit_are_named(script):
    table = script("table_mnist")

    def row(*commits):
        return table.Row("a", "", 0.9, 0.9, 1, commits=list(commits))

    assert table.made_elsewhere([]) == table.made_elsewhere([row(table.COMMIT), row(table.COMMIT)]) == ""
    words = table.made_elsewhere([row("commit 1234567", table.COMMIT), row(table.COMMIT)])
    assert words.startswith(" Rows kept from earlier runs: ")
    assert "commit 1234567" in words


def test_gradients_show_ours_alone(script, without, monkeypatch, capsys):
    pytest.importorskip("torch")
    gradients = script("gradients")
    without("geomloss", "pykeops", "ot")
    row = {"prepare": 0.1, "forward": 1.0, "backward": 2.0, "memory": 2**20, "base": 0, "runs": 3, "value": 1.0}
    monkeypatch.setattr(gradients, "in_own_process", lambda *_: dict(row))
    monkeypatch.setattr(gradients, "trees", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gradients.py", "--sizes", "1000"])
    gradients.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith("brings it.") for line in lines) == 3
    shown = [line.rsplit("1,000", 1)[0].strip() for line in lines if "3.000" in line]
    assert shown == list(gradients.OURS)


def test_gradients_say_what_auto_takes_and_how_far_off(script, tmp_path):
    gradients = script("gradients")
    row = {"forward": 1.0, "backward": 2.0, "memory": 2**20, "prepare": 0.1, "auto": "multiscale"}
    results = {
        "geomloss p=2 tensorized": {100: row | {"value": 2.0, "apart": 4.0}},
        "geomloss p=2 multiscale": {100: row | {"value": 2.2, "apart": 4.04}},
    }
    for name, gradient in zip(results, ([3.0, 4.0], [3.0, 4.5]), strict=True):
        np.save(gradients.gradient_file(tmp_path, name, 100), gradient)
    gradients.compare_with_references(results, tmp_path)
    gradients.table(results, tmp_path, 12)
    written = (tmp_path / "gradients.md").read_text(encoding="utf-8").splitlines()
    assert written[2].startswith("| geomloss p=2 tensorized | 100 |")
    assert written[3].startswith("| geomloss p=2 multiscale (auto) | 100 |")
    assert written[3].endswith("| 10.0% | 1.0% | 10.0% |")


def test_a_long_run_is_not_repeated(script, monkeypatch):
    exhibit = script("exhibit")
    clock = iter(range(100))
    monkeypatch.setattr(exhibit.time, "process_time", lambda: next(clock))
    calls = []
    assert exhibit.timed(lambda: calls.append(0), repeats=3, long=0.5) == (None, 1)
    assert len(calls) == 1
    assert exhibit.timed(lambda: calls.append(0), repeats=3, long=2)[1] == 1
    assert len(calls) == 4
