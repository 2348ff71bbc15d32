"""Values that will not do get one sentence, whose advice can be followed at the command line."""

from __future__ import annotations

import json
import re

import anndata
import numpy as np
import pytest

from heatmover import Graph
from heatmover.cli._settings import in_options

# What only a Python user can type.
PYTHON = re.compile(r"hm\.|Graph\b|graph\.|\w\(|\b[a-z_]+=|max_scale|bandwidth|kernel=|radius")


def diagnoses():
    """Graphs with each of the defects that a diagnosis has advice for."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(80, 2))
    far = points.copy()
    far[3] = [12, 0]
    apart = np.kron(np.eye(2), np.ones((3, 3)))
    alone = np.diag([0.0, 1, 1])
    bridge = np.kron(np.eye(2), np.ones((40, 40)))
    bridge[0, 40] = bridge[40, 0] = 1e-6
    yield Graph.from_points(far, 8, bandwidth=3.0)
    yield Graph.from_affinity(apart)
    yield Graph.from_affinity(alone)
    yield Graph.from_affinity(bridge)
    yield Graph(Graph.from_grid((9,)).affinity, {"recall": 0.5})


def test_advice_on_graphs_names_no_python():
    lines = [line for graph in diagnoses() for line in graph.diagnose(steps=64).advice]
    assert len(lines) >= 5
    assert any(PYTHON.search(line) for line in lines)
    for line in map(in_options, lines):
        assert not PYTHON.search(line), line
        assert not re.search(r"[\x00-\x1f]|  | [.,;]|,\.", line), line


@pytest.fixture
def outlier(cells, tmp_path):
    data = anndata.read_h5ad(cells)
    data.obsm["X_pca"] = np.random.default_rng(0).normal(size=(data.n_obs, 3))
    data.obsm["X_pca"][0] = 60
    data.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"


@pytest.mark.parametrize("command", ["compare", "doctor", "atlas build"])
def test_no_command_prints_python(command, outlier, tmp_path, cli):
    out = () if command == "doctor" else ("-o", tmp_path / "out")
    result = cli.run(*command.split(), outlier, "-s", "sample", "--rep", "X_pca", *out, columns=1000)
    assert result.exit_code == 0, result.output
    assert re.search("no neighbor|isolated point", result.stdout)
    assert not re.search(r"hm\.|graph\.|Graph\.|kernel=|larger radius", result.stdout)
    if command == "compare":
        said = json.loads((tmp_path / "out" / "run.json").read_text())["diagnosis"]["advice"]
        page = (tmp_path / "out" / "report.html").read_text()
        for text in (*said, page):
            assert "larger radius" not in text
            assert "Graph.from_points" not in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--landmarks", "999999"],
            r"at least 999,999 distinct points, one per landmark, .*; use at most \d+ landmarks\.$",
        ),
        (
            ["--landmarks", "999999", "--memory", "1GB"],
            r"as many cells as --landmarks 999999, .*; use fewer landmarks\.$",
        ),
        (["--landmarks", "9", "--memory", "1GB"], "more landmarks than --neighbors 30, .*compare the cells in memory"),
        (["--bootstrap", "1"], r"--bootstrap to be 0, or at least 10 .*, found 1; --bootstrap 200 is usual\.$"),
        (["--neighbors", "9" * 400], "--neighbors to be a whole number of at least 1, found inf"),
        (["--threads", "9" * 400], "--threads to be a whole number of at least 1, found inf"),
        (["--seed", "9" * 400], "--seed to be"),
        (["--threads", "9" * 20], "--threads to be at most 9223372036854775807, found 9999"),
        (["--color", "a\0b"], r"found 'a\\x00b'"),
        (["--color", "\udcff"], r"found '\\udcff'"),
        (["--sample-key", "\udcff"], r"found '\\udcff'"),
        (["--sample-sheet", "a\0b"], r"--sample-sheet to be a path, found 'a\\x00b'"),
        (["--checkpoint", "a\0b"], r"--checkpoint to be a path, found 'a\\x00b'"),
        (["--out", "a\0b"], r"--out to be a path, found 'a\\x00b'"),
    ],
)
def test_values_that_will_not_do(words, sentence, cells, tmp_path, cli):
    defaults = [word for pair in (("-o", tmp_path / "out"), ("-s", "sample")) for word in pair]
    result = cli.run("compare", cells, *defaults, *words)
    cli.fails_with(result, sentence)
    assert not PYTHON.search(result.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--adjust", "dose", "--color", "condition"], ["--formula", "condition + dose"]])
def test_a_covariate_with_an_infinite_value(words, cells, tmp_path, cli):
    data = anndata.read_h5ad(cells)
    data.obs["dose"] = data.obs["age"].where(data.obs["sample"] != "s03", np.inf)
    data.write_h5ad(tmp_path / "cells.h5ad")
    result = cli.run("compare", tmp_path / "cells.h5ad", "-s", "sample", "-o", tmp_path / "out", *words)
    cli.fails_with(
        result, "finite numbers in the covariate 'dose', found an infinite number; correct the value, or omit"
    )
    assert not (tmp_path / "out").exists()
