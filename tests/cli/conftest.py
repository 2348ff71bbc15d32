"""Small files of cells, and a way to run commands on them."""

from __future__ import annotations

import os
import re
import signal
import sys
from types import SimpleNamespace

import anndata
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from heatmover.__main__ import main
from heatmover.cli import app


def run(*arguments, columns=100):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(columns)})


def fork(*arguments, stdout, stderr, environment=(), before=lambda: None):
    """Run a command in a child, whose process is returned, with files of its own: no start, which takes seconds."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(300)  # ends a child that waits for ever
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.environ.update(environment)
        sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
        sys.argv = ["heatmover", *map(str, arguments)]
        before()
        main()
        code = 0
    except SystemExit as exit:
        code = exit.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fails_with(result, sentence):
    """Exit code 2, one line on stderr besides the stages, which matches, and nothing on stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1, result.stderr
    assert re.search(sentence, lines[0]), lines[0]
    assert lines[0].startswith("Error: ")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def make_frame(n_samples=10, n_cells=30, *, shift=3.0, seed=0, names=None):
    """Cells of samples that are cases or controls in turn; cases lie ``shift`` to the right."""
    rng = np.random.default_rng(seed)
    names = [f"s{i:02d}" for i in range(n_samples)] if names is None else names
    frame = pd.DataFrame(
        {
            "sample": np.repeat(np.array(names, dtype=object), n_cells),
            "condition": np.repeat([("control", "case")[i % 2] for i in range(n_samples)], n_cells),
            "age": np.repeat([40.5 + i for i in range(n_samples)], n_cells),
            "patient": np.repeat([f"p{i // 2}" for i in range(n_samples)], n_cells),
            "center": np.repeat("here", n_samples * n_cells),
            "cluster": rng.choice(["T", "B"], n_samples * n_cells),
        }
    )
    values = rng.normal(size=(n_samples * n_cells, 3))
    values[:, 0] += shift * (frame["condition"] == "case")
    frame[["CD4", "CD8", "CD19"]] = values
    return frame


def write_h5ad(frame, path):
    markers = ["CD4", "CD8", "CD19"]
    values = frame[markers].to_numpy()
    obs = frame.drop(columns=markers).set_axis([f"cell{i}" for i in range(len(frame))])
    adata = anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=markers), obsm={"X_twice": 2 * values})
    adata.write_h5ad(path)
    return path


@pytest.fixture(scope="session")
def make():
    return SimpleNamespace(frame=make_frame, h5ad=write_h5ad)


@pytest.fixture(scope="session")
def cli():
    return SimpleNamespace(run=run, fork=fork, fails_with=fails_with, contents=contents)


@pytest.fixture(scope="session")
def cells(tmp_path_factory):
    """An h5ad file of ten samples."""
    return write_h5ad(make_frame(), tmp_path_factory.mktemp("cells") / "cells.h5ad")
