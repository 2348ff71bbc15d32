"""The outer files agree with each other and with the package."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

import heatmover

ROOT = Path(__file__).resolve().parents[1]
# Where version-controlled text lives; build products and environments lie elsewhere or are skipped by name.
PLACES = (
    "src",
    "tests",
    "docs",
    "benchmarks",
    "packaging",
    ".ci",
    ".github",
    ".pre-commit-config.yaml",
    "CITATION.cff",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "*.md",
)
# Extras that a user does not need.
FOR_CONTRIBUTORS = {"bench", "dist", "docs", "site", "test"}
SKIPPED = {"__pycache__", "_build", "jupyter_execute", "generated", "output"}
MACHINE_PATH = re.compile(r"(?<![\w.~)}])/(?:home|Users|root|work|mnt|scratch|private)/\w|\b[A-Z]:\\\\?Users")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def project_version() -> str:
    return project()["version"]


def package(requirement: str) -> str:
    """The name in a requirement, as pip compares names."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement).group()).lower()


def packages(extra: str) -> set[str]:
    """What an extra installs, the extras that it names included."""
    installed = set()
    for requirement in project()["optional-dependencies"][extra]:
        if package(requirement) == "heatmover":
            for inner in re.search(r"\[(.*)\]", requirement).group(1).split(","):
                installed |= packages(inner)
        else:
            installed.add(package(requirement))
    return installed


def needed_extras() -> Iterator[tuple[str, str, str]]:
    """Every ``import_extra`` of the source whose package and extra are written out: where, package, extra."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "import_extra":
                named = {each.arg: each.value for each in call.keywords}
                if all(isinstance(named[key], ast.Constant) for key in ("package", "extra")):
                    where = f"{path.relative_to(ROOT)}:{call.lineno}"
                    yield where, named["package"].value, named["extra"].value


def checks_of_make_test() -> list[str]:
    """The commands of ``make test`` that look at the source: all that it runs before pytest."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE).group(1)
    commands = re.findall(r"run \$\(BIN\)/(.*); \\", recipe)
    return [command for command in commands if "pytest" not in command]


def text_files() -> Iterator[Path]:
    for place in PLACES:
        for top in ROOT.glob(place):
            for path in top.rglob("*") if top.is_dir() else [top]:
                if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts):
                    yield path


def machine_paths(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if MACHINE_PATH.search(line)]


def merge_marks(text: str) -> list[str]:
    """Lines that a merge left for a person to decide."""
    return [line for line in text.splitlines() if re.match(r"(<{7}|>{7}|\|{7}) |={7}$", line)]


def public_objects() -> Iterator[tuple[str, object]]:
    """Every public name; a public module stands for its own public names."""
    for name in heatmover.__all__:
        found = getattr(heatmover, name)
        if isinstance(found, ModuleType):
            yield from ((f"{name}.{inner}", getattr(found, inner)) for inner in found.__all__)
        else:
            yield name, found


def test_no_merge_is_left_undecided():
    assert merge_marks("<" * 7 + " HEAD\none\n" + "=" * 7 + "\ntwo\n") == ["<" * 7 + " HEAD", "=" * 7]
    found = {str(path.relative_to(ROOT)): merge_marks(path.read_text("utf-8", "replace")) for path in text_files()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_versions_agree():
    assert heatmover.__version__ == project_version()


def test_the_changelog_has_a_place_for_the_next_line_this_version_and_known_sections():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *versions = re.findall(r"^## (.*)$", changelog, flags=re.MULTILINE)
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in versions)
    assert not versions or versions[0].startswith(f"[{project_version()}]")
    sections = re.findall(r"^### (\w+)", changelog, flags=re.MULTILINE)
    assert set(sections) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Promises"}


MOST_WORDS = 800


def test_the_readme_is_short():
    words = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert words <= MOST_WORDS, f"README.md has {words} words; move details to the documentation"


def test_prose_is_wrapped():
    """Tables, code, links and what a benchmark writes may be longer."""
    long = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.is_relative_to(ROOT / "docs" / "results" / "numbers") or "generated" in page.parts:
            continue
        text = re.sub(
            r"^( *)(`{3,}|\$\$)(?!\{glossary).*?^ *\2",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        prose = (line for line in text.splitlines() if not re.match(r"\s*(\||<|!\[|\[|:alt:|\$\$|\*`)", line))
        long += [f"{page.name}: {line[:60]}" for line in prose if len(line) > 120]
    assert long == []


def test_continuous_integration_calls_make_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").rstrip().endswith("exec make test")
    assert re.search(r"^test:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_hooks_before_a_commit_run_the_checks_of_make_test():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    hooks = re.findall(r"^ +entry: \.venv/bin/(.*)$", text, flags=re.MULTILINE)
    assert hooks == checks_of_make_test()
    assert len(hooks) == 3
    assert text.count("- id:") == text.count("language: system") == text.count("pass_filenames: false") == len(hooks)
    # Nothing is fetched: every hook is of this repository.
    assert re.findall(r"- repo: (.*)", text) == ["local"]


def test_no_bound_is_written_twice():
    written = [*project()["dependencies"]]
    for requirements in project()["optional-dependencies"].values():
        written.extend(requirements)
    counts = Counter(package(requirement) for requirement in written if ">=" in requirement)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_extra_that_an_error_names_brings_the_package():
    needed = list(needed_extras())
    assert len(needed) > 20
    extras, always = project()["optional-dependencies"], {package(each) for each in project()["dependencies"]}
    wrong = [
        f"{where}: {wanted} in {extra}"
        for where, wanted, extra in needed
        if extra not in extras or package(wanted) not in packages(extra) | always
    ]
    assert wrong == []


def test_extras_that_the_command_line_names_bring_what_it_checks():
    """Where package and extra come from a table or an argument."""
    from heatmover.report import folder

    for extra in ("demo", "cohort"):
        assert {package(each) for needs in folder.NEEDS.values() for each in needs} <= packages(extra)
        assert {"typer", "rich"} <= packages(extra)


def test_extras_that_the_pages_name_exist():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src").rglob("*.py"),
    ]
    named = {}
    for path in pages:
        if not SKIPPED & set(path.relative_to(ROOT).parts):
            for names in re.findall(r"heatmover\[([a-z,]+)\]", path.read_text(encoding="utf-8")):
                named.update(dict.fromkeys(names.split(","), path.name))
    assert named
    assert {extra: page for extra, page in named.items() if extra not in project()["optional-dependencies"]} == {}


def test_the_installation_page_lists_what_each_extra_installs():
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ", page, flags=re.MULTILINE)
    assert {name for name, _ in rows} == {*project()["optional-dependencies"]} - FOR_CONTRIBUTORS
    for name, text in rows:
        named = {package(each) for each in text.split(", ") if not each.startswith("all of")}
        for smaller in re.findall(r"all of `(\w+)`", text):
            named |= packages(smaller)
        assert named == packages(name), name
    listed = re.search(r"^For contributors there are (.+?)\. ", page, flags=re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"`(\w+)`", listed[1])} == FOR_CONTRIBUTORS


def test_the_lowest_versions_are_those_that_are_promised():
    script = ROOT / ".ci" / "lowest.py"
    done = subprocess.run([sys.executable, script, "test"], capture_output=True, text=True, check=True)
    held = dict(line.split("==") for line in done.stdout.split())
    assert {package(name) for name in held} == packages("test") | {package(each) for each in project()["dependencies"]}
    assert f"numpy>={held['numpy']}" in project()["dependencies"]
    assert f"pyarrow>={held['pyarrow']}" in project()["optional-dependencies"]["demo"]
    # The exception: an older torch is gigabytes of libraries for accelerators.
    assert f"torch=={held['torch']}" in (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_the_longest_tests_are_those_of_files_that_exist(pytestconfig):
    """A file that was moved would go last again."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert [name for name in conftest.LONGEST if not (ROOT / "tests" / name).exists()] == []


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
    pytest.importorskip("torch")
    objects = {
        name: found
        for name, found in public_objects()
        # Nobody calls an error; its message is its documentation.
        if callable(found) and not (inspect.isclass(found) and issubclass(found, BaseException | Warning))
    }
    assert objects
    without = [name for name, found in objects.items() if "Examples\n---" not in (inspect.getdoc(found) or "")]
    assert without == []


def test_no_property_has_a_deadline():
    """A first example that loads a compiled kernel takes longer than hypothesis allows, on a busy machine."""
    assert settings().deadline is None


def test_no_signature_shows_an_address():
    """Of every public function and method, as help() and the documentation show it."""
    pytest.importorskip("torch")
    shown = []
    for module in (heatmover, *filter(inspect.ismodule, (getattr(heatmover, name) for name in heatmover.__all__))):
        for name in module.__all__:
            value = getattr(module, name)
            members = vars(value).values() if inspect.isclass(value) else ()
            for each in (value, *members):
                function = getattr(each, "__func__", each)
                if inspect.isfunction(function):
                    shown.append(f"{module.__name__}.{name}: {inspect.signature(function)}")
    assert len(shown) > 100
    assert not [signature for signature in shown if " at 0x" in signature]


def test_type_checkers_know_what_fit_transform_returns(tmp_path):
    script = tmp_path / "user.py"
    script.write_text("import heatmover as hm\nreveal_type(hm.DiffusionEMD().fit_transform([[1.0]]))\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert 'Revealed type is "numpy.ndarray[' in done.stdout, done.stdout
