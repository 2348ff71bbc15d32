"""Build wheel and sdist, check them, and use the wheel as a newcomer would: `make dist`.

    python .ci/dist.py                                     # build, check, install, demo, quick test
    python .ci/dist.py --tag v1.2.3                        # the same for a release: tag, changelog and citation agree
    python .ci/dist.py --repository owner/name             # also fill what a registry asks, into build/packaging

The wheel in dist/ is made from the sdist, as an installer would make it, and is compared with one made from the tree.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests that need neither the repository nor an extra: what they import is in the wheel, or comes with `demo`.
QUICK = (
    "tests/conftest.py",
    "tests/test_measures.py",
    "tests/statistics/test_metrics.py",
    "tests/embedding/test_distances.py",
    "tests/graphs/test_grid.py",
)
# What would let the source in, or let kernels in that an earlier run has compiled.
OUTSIDE = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "NUMBA_CACHE_DIR")
# Ends with a sentence unless the package comes from the environment that runs this.
WHERE = """
import pathlib, sys, heatmover
place = pathlib.Path(heatmover.__file__).resolve()
if pathlib.Path(sys.prefix).resolve() not in place.parents:
    sys.exit(f"Expected heatmover from {sys.prefix}, found {place}; something lets the source in.")
"""
# Written into every sdist by the build itself.
GENERATED = {"PKG-INFO"}


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fail(expected: str, found: str, advice: str) -> None:
    """End with one sentence."""
    sys.exit(f"Expected {expected}, found {found}; {advice}.")


def some(names: Iterable[str]) -> str:
    """Name at most five things."""
    first = sorted(names)
    return ", ".join(first[:5]) + (f" and {len(first) - 5} more" if len(first) > 5 else "")


def run(command: list[str | Path], **options: object) -> None:
    """Run a command that is shown; what it prints is shown too."""
    say("+ " + shlex.join(str(word) for word in command))
    done = subprocess.run([str(word) for word in command], check=False, **options)
    if done.returncode:
        sys.exit(f"Expected this command to succeed, found exit code {done.returncode}; its output above says why.")


def project(root: Path) -> dict:
    """Return the table [project] of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# -- what a release says of itself ------------------------------------------------------------------------------------


def release_day(changelog: str, version: str) -> str | None:
    """Return the day in the changelog's heading of a version, or None if it has none."""
    found = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$", changelog, flags=re.MULTILINE)
    return found.group(1) if found else None


def check_tag(root: Path, tag: str) -> None:
    """Fail unless tag, version, changelog and citation of a release agree."""
    version = project(root)["version"]
    if tag != f"v{version}":
        fail(f"the tag v{version}, as in pyproject.toml", repr(tag), "correct the tag, or the version before it")
    day = release_day((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if day is None:
        fail(f"'## [{version}] - YYYY-MM-DD' in CHANGELOG.md", "no such heading", "write the day of the release there")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    for line in (f"version: {version}", f"date-released: {day}"):
        if not re.search(rf"^{re.escape(line)}$", citation, flags=re.MULTILINE):
            fail(f"'{line}' in CITATION.cff", "another line or none", "write what pyproject.toml and CHANGELOG.md say")


# -- building and comparing -------------------------------------------------------------------------------------------


def tracked(root: Path) -> set[str] | None:
    """Return the files under version control, or None where there is none."""
    try:
        done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    top = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True
    )
    if Path(top.stdout.strip()).resolve() != root.resolve():
        return None  # an unpacked sdist inside another repository
    return {name for name in done.stdout.decode().split("\0") if name}


def of_package(root: Path) -> dict[str, bytes]:
    """Return the files of the package as they are in the tree, by their name in a wheel."""
    source = root / "src"
    return {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in sorted((source / "heatmover").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def of_wheel(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def of_sdist(sdist: Path) -> dict[str, bytes]:
    """Return the files of an sdist, without the folder that holds them all."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive if member.isfile()]
        return {member.name.partition("/")[2]: archive.extractfile(member).read() for member in members}


def differences(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> list[str]:
    """Name the files that only one has, or that differ."""
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def check_wheel(files: Mapping[str, bytes], package: Mapping[str, bytes], about: dict) -> None:
    """Fail unless a wheel holds the package as it is in the tree, and only its metadata in addition."""
    folder = f"{about['name']}-{about['version']}.dist-info"
    held = {name: data for name, data in files.items() if not name.startswith(f"{folder}/")}
    if wrong := differences(held, package):
        fail("a wheel with the files of src/heatmover and no others", f"differences in {some(wrong)}", "see pyproject")
    needed = {f"{folder}/licenses/LICENSE", f"{folder}/METADATA", f"{folder}/entry_points.txt", f"{folder}/RECORD"}
    needed |= {"heatmover/py.typed", "heatmover/report/templates/page.html", "heatmover/report/static/report.css"}
    if absent := needed - files.keys():
        fail("a wheel that describes itself and carries the report's parts", f"no {some(absent)}", "see pyproject")
    metadata = Parser().parsestr(files[f"{folder}/METADATA"].decode())
    extras = set(metadata.get_all("Provides-Extra", []))
    said = (metadata["Name"], metadata["Version"], metadata["Requires-Python"], metadata["License-Expression"], extras)
    wanted = (about["name"], about["version"], about["requires-python"], about["license"])
    if said != (*wanted, set(about["optional-dependencies"])):
        fail("the metadata of pyproject.toml", str(said), "build again from a clean tree")


def check_sdist(files: Iterable[str], names: set[str] | None) -> None:
    """Fail unless an sdist holds just the files under version control: it builds and tests as a clone does."""
    if names is None:
        say("No version control here: the sdist's list of files is not compared with it.")
        return
    held = set(files) - GENERATED
    if absent := names - held:
        fail(
            "an sdist with every file under version control", f"none of {some(absent)}", "add them to its include list"
        )
    if further := held - names:
        fail("an sdist of files under version control", f"also {some(further)}", "commit them or put them elsewhere")


def copied(root: Path, place: Path, repository: str) -> Path:
    """Return a copy of the files under version control, with the addresses of the project filled in."""
    names = tracked(root)
    if names is None:
        fail("a clone for --repository", "no version control", "run it in one")
    for name in names or ():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, place / name)
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    (place / "pyproject.toml").write_text(fill_project(text, repository), encoding="utf-8")
    return place


def build(root: Path, folder: Path) -> tuple[Path, Path]:
    """Build sdist and, from it, the wheel; a wheel from the tree must be equal. Return wheel and sdist."""
    about = project(root)
    for old in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]:
        old.unlink()
    stem = f"{about['name']}-{about['version']}"
    command = [sys.executable, "-m", "build", "--no-isolation"]
    with tempfile.TemporaryDirectory() as other:
        run([*command, "--outdir", folder, root])
        run([*command, "--wheel", "--outdir", other, root])
        wheel, sdist = folder / f"{stem}-py3-none-any.whl", folder / f"{stem}.tar.gz"
        if wrong := differences(of_wheel(wheel), of_wheel(Path(other) / wheel.name)):
            fail("the same wheel from the sdist and from the tree", f"differences in {some(wrong)}", "see pyproject")
    return wheel, sdist


# -- as a newcomer ----------------------------------------------------------------------------------------------------


def empty_environment(folder: Path) -> tuple[Path, dict[str, str]]:
    """Make an environment with nothing but pip; return its folder of programs and the variables to run them with."""
    run([sys.executable, "-m", "venv", "--clear", folder])
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    variables = {name: value for name, value in os.environ.items() if name not in OUTSIDE}
    variables["PATH"] = os.pathsep.join([str(programs), variables.get("PATH", "")])
    return programs, variables | {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def check_report(folder: Path, version: str) -> None:
    """Fail unless the folder of a demo is whole: page, distances of all samples, record with this version."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    if not page.rstrip().endswith("</html>") or "<h1" not in page:
        fail("report.html to be a whole page", f"{len(page)} characters without one", "look at it in a browser")
    if remote := re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']https?://[^\"']*", page):
        fail("a page that needs no network", some(remote), "put what it loads into the page")
    with (folder / "distances.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if len(rows) < 3 or any(len(row) != len(rows) for row in rows):
        fail("a square table in distances.csv", f"{len(rows)} rows", "look at the output above")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    if version not in json.dumps(record):
        fail(f"version {version} in run.json", "none", "see where the command comes from")


def of_children() -> float:
    """Return the seconds that finished processes of this one have worked, all cores together."""
    now = os.times()
    return now.children_user + now.children_system


def use(
    wheel: Path, version: str, flags: list[str], place: Path
) -> tuple[dict[str, tuple[float, float]], dict[str, object], Path]:
    """Install the wheel where nothing is and run the demo, twice.

    Return seconds and seconds of work of each command, the options to run further ones with, and the Python.
    """
    seconds = {}

    def timed(name: str, command: list[str | Path]) -> None:
        start, worked = time.perf_counter(), of_children()
        run(command, **options)
        seconds[name] = (time.perf_counter() - start, of_children() - worked)

    programs, variables = empty_environment(place / "environment")
    options = {"cwd": place, "env": variables}
    ending = ".exe" if os.name == "nt" else ""  # which Windows does not add to a whole path
    python, command = programs / f"python{ending}", programs / f"heatmover{ending}"
    wanted = f"{wheel.resolve()}[demo]"
    # Downloads first, so that the time of the two commands is that of this machine and not of its network.
    timed("downloads", [python, "-m", "pip", "download", "-q", *flags, "-d", "downloads", wanted])
    offline = ["--no-index", "--find-links", "downloads"]
    timed("pip install", [python, "-m", "pip", "install", "-q", *offline, wanted])
    timed("heatmover demo", [command, "demo", "--out", "demo-output"])
    check_report(place / "demo-output", version)
    timed("the demo again", [command, "demo", "--out", "again"])
    same = [(place / folder / "distances.csv").read_bytes() for folder in ("demo-output", "again")]
    if same[0] != same[1]:
        fail(
            "the same distances from the same demo", "others in distances.csv", "find what the first run did otherwise"
        )
    run([python, "-c", WHERE], **options)
    run([python, "-m", "pip", "check"], **options)
    return seconds, options, python


def quick_test(python: Path, place: Path, flags: list[str], options: Mapping[str, object]) -> None:
    """Run some tests against the installed package; of the repository they see their own files only."""
    tools = project(ROOT)["optional-dependencies"]["test"]
    needed = [each for each in tools if each.partition(">")[0] in ("pytest", "hypothesis")]
    run([python, "-m", "pip", "install", "-q", *flags, *needed], **options)
    for name in ("pyproject.toml", *QUICK):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)
    run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"], **options)


# -- for the registries -----------------------------------------------------------------------------------------------


def without_heading(text: str) -> str:
    """Drop the comment at the top, which is about the file before it was filled."""
    return re.sub(r"\A(#.*\n)*", "", text)


def fill_project(text: str, repository: str) -> str:
    """Return pyproject.toml with the addresses of the project, which stand in it as comments that begin with `#: `."""
    owner, _, name = repository.partition("/")
    filled = re.sub(r"^#: (.*)$", lambda line: line[1].replace("OWNER", owner).replace("NAME", name), text, flags=re.M)
    if filled == text:
        fail("lines that begin with '#: ' in pyproject.toml", "none", "see [project.urls] there")
    return filled


def fill_recipe(text: str, sdist: Path, repository: str, contact: str) -> str:
    """Return the conda recipe for a released sdist: address and checksum in place of this folder."""
    local = "source:\n  path: ../..\n"
    if text.count(local) != 1 or not text.endswith("\n"):
        fail(f"one {local!r} in the recipe", f"{text.count(local)}", "see packaging/conda/recipe.yaml")
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    address = "https://pypi.org/packages/source/h/heatmover/heatmover-${{ version }}.tar.gz"
    text = text.replace(local, f"source:\n  url: {address}\n  sha256: {digest}\n")
    home = f"https://github.com/{repository}"
    text = text.replace("about:\n", f"about:\n  homepage: {home}\n  repository: {home}\n")
    return f"{text}\nextra:\n  recipe-maintainers:\n    - {contact}\n"


def fill_ecosystem(text: str, repository: str, contact: str) -> str:
    """Return the entry for scverse's list: where the project is, and whom to ask."""
    name = repository.partition("/")[2]
    home, pages = f"https://github.com/{repository}", f"https://{name.lower()}.readthedocs.io"
    return f"{text}project_home: {home}\ndocumentation_home: {pages}\ncontact:\n  - {contact}\n"


def check_names(repository: str, contact: str) -> None:
    """Fail unless these are names as GitHub has them: they become addresses and lines of a file."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository) or not re.fullmatch(r"[\w.-]+", contact):
        fail(
            "--repository owner/name and --contact user", f"{repository!r} and {contact!r}", "spell them as GitHub does"
        )


def fill(root: Path, sdist: Path, folder: Path, repository: str, contact: str) -> None:
    """Write both, as one would hand them in."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = without_heading((root / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    entry = without_heading((root / "packaging" / "scverse" / "meta.yaml").read_text(encoding="utf-8"))
    (folder / "recipe.yaml").write_text(fill_recipe(recipe, sdist, repository, contact), encoding="utf-8")
    (folder / "meta.yaml").write_text(fill_ecosystem(entry, repository, contact), encoding="utf-8")
    say(f"For conda-forge and scverse: {folder / 'recipe.yaml'}, {folder / 'meta.yaml'}.")


def main(arguments: list[str] | None = None) -> None:
    """Build, check, use."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", default="", help="the tag of a release, v1.2.3")
    parser.add_argument("--repository", default="", help="owner/name on GitHub")
    parser.add_argument("--contact", default="", help="a GitHub user to name in the registries (default: the owner)")
    parser.add_argument("--pip-flags", default="", help="options for every pip that downloads")
    asked = parser.parse_args(arguments)
    about, contact = project(ROOT), asked.contact or asked.repository.partition("/")[0]
    # What was asked wrongly is said before the minutes of work.
    if asked.tag:
        check_tag(ROOT, asked.tag)
    if asked.repository:
        check_names(asked.repository, contact)
    with tempfile.TemporaryDirectory() as place:
        source = copied(ROOT, Path(place), asked.repository) if asked.repository else ROOT
        wheel, sdist = build(source, ROOT / "dist")
    check_wheel(of_wheel(wheel), of_package(ROOT), about)
    check_sdist(of_sdist(sdist), tracked(ROOT))
    run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    flags = shlex.split(asked.pip_flags)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary).resolve()
        seconds, options, python = use(wheel, about["version"], flags, place)
        quick_test(python, place, flags, options)
    if asked.repository:
        fill(ROOT, sdist, ROOT / "build" / "packaging", asked.repository, contact)
    say("From the wheel to the demo's report:")
    for name, (taken, worked) in seconds.items():
        say(f"  {name:15} {taken:6.1f} s, {worked:6.1f} s of work")
    for path in (wheel, sdist):
        say(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB, checked.")


if __name__ == "__main__":
    main()
