from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def project(pyproject):
    return pyproject["project"]


@pytest.fixture(scope="session")
def dist():
    """The script behind `make dist`, as a module."""
    spec = importlib.util.spec_from_file_location("release_dist", ROOT / ".ci" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
