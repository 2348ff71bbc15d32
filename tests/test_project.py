"""The outer files agree with each other and with the package."""

from __future__ import annotations

import inspect
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import heatmover

ROOT = Path(__file__).resolve().parents[1]
# Where version-controlled text lives; build products and environments lie elsewhere or are skipped by name.
PLACES = (
    "src",
    "tests",
    "docs",
    "benchmarks",
    ".ci",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "*.md",
)
SKIPPED = {"__pycache__", "_build", "jupyter_execute", "output"}
MACHINE_PATH = re.compile(r"(?<![\w.~)}])/(?:home|Users|root|work|mnt|scratch|private)/\w|\b[A-Z]:\\\\?Users")


def project_version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["version"]


def text_files() -> Iterator[Path]:
    for place in PLACES:
        for top in ROOT.glob(place):
            for path in top.rglob("*") if top.is_dir() else [top]:
                if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts):
                    yield path


def machine_paths(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if MACHINE_PATH.search(line)]


def public_objects() -> Iterator[tuple[str, object]]:
    """Every public name; a public module stands for its own public names."""
    for name in heatmover.__all__:
        found = getattr(heatmover, name)
        if isinstance(found, ModuleType):
            yield from ((f"{name}.{inner}", getattr(found, inner)) for inner in found.__all__)
        else:
            yield name, found


def test_versions_agree():
    assert heatmover.__version__ == project_version()


def test_the_changelog_has_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(project_version())}\]", changelog, flags=re.MULTILINE)


def test_continuous_integration_calls_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("exec make test")
    assert re.search(r"^test:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_no_file_names_a_place_on_somebodys_machine():
    found = {}
    for path in text_files():
        try:
            lines = machine_paths(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # a picture
        if lines:
            found[str(path.relative_to(ROOT))] = lines
    assert found == {}


def test_a_machine_path_would_be_found():
    assert machine_paths("data = '" + "/" + "home/ada/cells.csv'")
    assert machine_paths("see C:" + "\\Users\\ada")
    assert not machine_paths("https://example.org/home/page and src/work/x and ~/home/x")


def test_every_public_name_has_an_example():
    objects = {
        name: found
        for name, found in public_objects()
        # Nobody calls an error; its message is its documentation.
        if callable(found) and not (inspect.isclass(found) and issubclass(found, BaseException | Warning))
    }
    assert objects
    without = [name for name, found in objects.items() if "Examples\n---" not in (inspect.getdoc(found) or "")]
    assert without == []
