"""`make dist` finds what must not be published. The build itself is too long for a test: `make dist` runs it."""

from __future__ import annotations

import fnmatch
import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile

import pytest

ABOUT = {
    "name": "heatmover",
    "version": "1.2.3",
    "requires-python": ">=3.11",
    "license": "BSD-3-Clause",
    "optional-dependencies": {"demo": []},
}
PACKAGE = {
    "heatmover/__init__.py": b"",
    "heatmover/py.typed": b"",
    "heatmover/report/templates/page.html": b"<html>",
    "heatmover/report/static/report.css": b"",
}
METADATA = b"""Name: heatmover
Version: 1.2.3
Requires-Python: >=3.11
License-Expression: BSD-3-Clause
Provides-Extra: demo

"""
FOLDER = "heatmover-1.2.3.dist-info"
DESCRIBED = {f"{FOLDER}/{name}": b"" for name in ("licenses/LICENSE", "entry_points.txt", "RECORD")}
WHEEL = PACKAGE | DESCRIBED | {f"{FOLDER}/METADATA": METADATA}


def without(files, name):
    return {each: data for each, data in files.items() if each != name}


def test_a_whole_wheel_passes(dist):
    dist.check_wheel(WHEEL, PACKAGE, ABOUT)


@pytest.mark.parametrize(
    ("wheel", "named"),
    [
        (WHEEL | {"tests/test_x.py": b""}, "tests/test_x.py"),
        (WHEEL | {"heatmover/__init__.py": b"changed"}, "heatmover/__init__.py"),
        (without(WHEEL, "heatmover/report/static/report.css"), "report.css"),
        (without(WHEEL, f"{FOLDER}/licenses/LICENSE"), "licenses/LICENSE"),
        (WHEEL | {f"{FOLDER}/METADATA": METADATA.replace(b"1.2.3", b"1.2.4")}, "1.2.4"),
        (WHEEL | {f"{FOLDER}/METADATA": METADATA.replace(b"Provides-Extra: demo\n", b"")}, "metadata"),
    ],
)
def test_a_wrong_wheel_is_refused(dist, wheel, named):
    with pytest.raises(SystemExit, match=re.escape(named)):
        dist.check_wheel(wheel, PACKAGE, ABOUT)


def test_a_package_without_its_mark_of_types_is_refused(dist):
    with pytest.raises(SystemExit, match=r"py\.typed"):
        dist.check_wheel(without(WHEEL, "heatmover/py.typed"), without(PACKAGE, "heatmover/py.typed"), ABOUT)


def test_an_sdist_is_what_is_under_version_control(dist):
    dist.check_sdist(["a", "b/c", "PKG-INFO"], {"a", "b/c"})
    with pytest.raises(SystemExit, match="b/c"):
        dist.check_sdist(["a"], {"a", "b/c"})
    with pytest.raises(SystemExit, match="notes"):
        dist.check_sdist(["a", "notes"], {"a"})


def test_archives_are_read_file_by_file(dist, tmp_path):
    wheel, sdist = tmp_path / "x.whl", tmp_path / "x.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/b.py", "1")
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo("x-1/a/b.py")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    assert dist.of_wheel(wheel) == dist.of_sdist(sdist) == {"a/b.py": b"1"}
    assert dist.differences({"a": b"1", "b": b"2"}, {"a": b"1", "b": b"3", "c": b""}) == ["b", "c"]


def test_the_sdist_includes_all_that_is_under_version_control(dist, root, pyproject):
    """What `make dist` would find in minutes, from the include list: a new file at the top must be on it."""
    names = dist.tracked(root)
    if names is None:
        pytest.skip("no version control here")
    included = pyproject["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(pattern.startswith("/") for pattern in included)
    tops = {name.partition("/")[0] for name in names}
    missing = {top for top in tops if not any(fnmatch.fnmatch(top, pattern[1:]) for pattern in included)}
    assert missing == {"pyproject.toml"}  # which hatchling always takes
    assert {pattern for pattern in included if not fnmatch.filter(tops, pattern[1:])} == set()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not here")
def test_another_repository_around_an_sdist_is_not_its_own(dist, tmp_path):
    assert dist.tracked(tmp_path / "nowhere") is None
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "inside").mkdir()
    assert dist.tracked(tmp_path) == set()
    assert dist.tracked(tmp_path / "inside") is None


def released(folder, *, day="2030-01-02", cited="2030-01-02", version="1.2.3"):
    (folder / "pyproject.toml").write_text('[project]\nname = "heatmover"\nversion = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - {day}\n")
    (folder / "CITATION.cff").write_text(f"version: {version}\ndate-released: {cited}\n")
    return folder


def test_a_release_agrees_with_itself(dist, tmp_path):
    dist.check_tag(released(tmp_path), "v1.2.3")


@pytest.mark.parametrize(
    ("tag", "wrong", "named"),
    [
        ("v1.2.4", {}, "v1.2.3"),
        ("1.2.3", {}, "v1.2.3"),
        ("v1.2.3", {"day": "unreleased"}, "CHANGELOG"),
        ("v1.2.3", {"cited": "2030-01-03"}, "date-released: 2030-01-02"),
        ("v1.2.3", {"version": "1.2.30"}, "version: 1.2.3"),
    ],
)
def test_a_release_that_contradicts_itself_is_refused(dist, tmp_path, tag, wrong, named):
    with pytest.raises(SystemExit, match=re.escape(named)):
        dist.check_tag(released(tmp_path, **wrong), tag)


@pytest.fixture
def results(tmp_path):
    """A result folder as a demo leaves it, small."""
    (tmp_path / "report.html").write_text("<!doctype html><html><body><h1>x</h1></body></html>\n")
    (tmp_path / "distances.csv").write_text("sample,a,b\na,0,1\nb,1,0\n")
    (tmp_path / "run.json").write_text(json.dumps({"versions": {"heatmover": "1.2.3"}}))
    return tmp_path


def test_a_whole_result_folder_passes(dist, results):
    dist.check_report(results, "1.2.3")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("report.html", "<!doctype html><html><body><h1>x</h1>", "whole page"),
        ("report.html", "<html><h1>x</h1><script src='https://example.org/x.js'></script></html>", "network"),
        ("distances.csv", "sample,a,b\na,0,1\n", "square"),
        ("run.json", "{}", "version"),
    ],
)
def test_a_broken_result_folder_is_refused(dist, results, name, text, named):
    (results / name).write_text(text)
    with pytest.raises(SystemExit, match=named):
        dist.check_report(results, "1.2.3")


def test_the_quick_tests_need_nothing_of_the_repository(dist, root):
    for name in dist.QUICK:
        text = (root / name).read_text(encoding="utf-8")
        assert "parents[" not in text, name
        assert not re.search(r"import (torch|zarr|ot|faiss|dask|scanpy|pyarrow)\b", text), name


def test_make_dist_runs_the_script(root):
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    assert re.search(
        r"^dist: \$\(VENV\)/\.installed-dist .*\n\t\$\(BIN\)/python \.ci/dist\.py ", makefile, re.MULTILINE
    )
