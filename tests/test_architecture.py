"""The plan of the house: who may import whom, through which doors, and what may be imported when a module loads."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import heatmover

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "heatmover"

# Every module and package at the top, the lowest first; names on one line do not know each other. A name stands for the
# module and everything below it. What is imported comes from an earlier line, or from the same package.
LAYERS: list[set[str]] = [
    {"errors"},
    {"_base"},
    {"measures"},
    {"graphs"},
    {"diffusion"},
    {"embedding"},
    {"statistics"},
    {"transport"},
    {"attribution", "datasets", "differentiable"},
    {"cohort"},
    {"study"},
    {"atlas"},
    {"tl"},
    {"pl"},
    {"report"},
    {"cli"},
    {"__init__", "__main__"},
]
# The order of the rooms that know files and studies, which is a promise.
PROMISED = ["cohort", "study", "atlas", "tl", "pl", "report", "cli"]

# Installed with heatmover itself; every other package is an extra and must be imported inside a function.
# llvmlite is numba's own, joblib scikit-learn's.
CORE = {"numpy", "scipy", "sklearn", "joblib", "numba", "llvmlite", "threadpoolctl"}
# By the name of the module or package at the top.
LOADS_EXTRAS = {
    "cli": {"typer", "rich"},
    # Its classes are torch's own; the package itself is loaded only when it is asked for.
    "differentiable": {"torch"},
}

# What `import heatmover` must not load, so that it costs little.
HEAVY = {"numba", "sklearn", "scipy.stats", "matplotlib", "pandas", "torch", "ot", "anndata", "typer", "rich"}

# Public modules that are no package.
LISTED = {f"heatmover.{name}" for name in ("errors", "measures", "statistics.manifold", "statistics.metrics")}
LISTED |= {"heatmover.__main__", "heatmover.study.tables"}

TYPE_CHECKS = {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
# Their underscore keeps them apart from the fields; they are public.
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}
DYNAMIC_IMPORTS = {"import_module", "import_extra", "__import__"}
# The part of a first line that names all callers of a module: "only `a` and `b` call it", "for `a` only".
CALLERS = re.compile(r".*\bonly (.+) calls? it|.*\bfor (.+) only")


class Import(NamedTuple):
    """One imported module, as an absolute dotted name, and whether it is imported when its importer loads."""

    target: str
    name: str
    on_load: bool
    line: int


def modules(root: Path) -> dict[str, Path]:
    """Every module below ``root`` by its absolute dotted name; a package has the name of its folder."""
    named = {}
    for path in sorted(root.rglob("*.py")):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def children(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """The nodes directly below ``node``, each with whether it only runs later than ``node`` itself."""
    checked_only = isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKS
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                # Decorators and default values run when the function is defined.
                yield child, (function or checked_only) and field == "body"


def imports(name: str, path: Path) -> tuple[Import, ...]:
    """Every import in a module, wherever it stands, relative ones made absolute."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imports_of(package, path.read_text(encoding="utf-8"))


@cache
def imports_of(package: str, text: str) -> tuple[Import, ...]:
    """Every import in the text of a module of a package."""
    found: list[Import] = []

    def visit(node: ast.AST, on_load: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, "", on_load, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(package, node.level, node.module)
            found.extend(Import(base, alias.name, on_load, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and (target := dynamic_target(node)):
            found.append(Import(target, "", on_load, node.lineno))
        for child, later in children(node):
            visit(child, on_load and not later)

    visit(parsed(text), True)
    return tuple(found)


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def absolute(package: str, level: int, module: str | None) -> str:
    if level == 0:
        return module or ""
    parents = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*parents, *([module] if module else [])])


def dynamic_target(call: ast.Call) -> str | None:
    """The module named in ``import_module("...")`` and its kind, if it is written out."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function in DYNAMIC_IMPORTS and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return None


def inner_target(found: Import, known: dict[str, Path]) -> str:
    """The module that an import reaches: ``from a import b`` reaches ``a.b`` if that is a module."""
    deepest = f"{found.target}.{found.name}"
    return deepest if deepest in known else found.target


def room(name: str) -> str:
    """The module or package at the top that a module belongs to; the face is called by its file."""
    return name.split(".")[1] if "." in name else "__init__"


def edges(root: Path) -> dict[str, list[tuple[str, Import]]]:
    """What every module imports of the package, wherever in the module: name of the module reached, and the import."""
    known = modules(root)
    inside = {}
    for name, path in known.items():
        reached = ((inner_target(each, known), each) for each in imports(name, path))
        inside[name] = [(target, each) for target, each in reached if target in known and target != name]
    return inside


def layer_violations(root: Path, layers: list[set[str]]) -> list[str]:
    """Modules that are not in the table, entries without a module, imports from the same or a later layer."""
    inside = edges(root)
    level = {name: i for i, names in enumerate(layers) for name in names}
    rooms = {room(name) for name in inside}
    problems = [f"{name} is in {sum(name in names for names in layers)} layers" for name in rooms - level.keys()]
    problems += [f"{name} is in two layers" for name in level if sum(name in names for names in layers) > 1]
    problems += [f"the table names {name}, which is not there" for name in level.keys() - rooms]
    for name, targets in inside.items():
        for target, each in targets:
            here, there = room(name), room(target)
            if here != there and level.get(there, -1) >= level.get(here, len(layers)):
                problems.append(f"{name}:{each.line} imports {target} from its own or a later layer")
    return sorted(problems)


def private_violations(root: Path) -> list[str]:
    """Imports of a module or a name with an underscore from outside the package that it belongs to."""
    problems = []
    for name, targets in edges(root).items():
        for target, each in targets:
            modules_on_the_way = target.split(".")
            hidden = [".".join(modules_on_the_way[:i]) for i, part in enumerate(modules_on_the_way) if is_private(part)]
            if is_private(each.name) and not target.endswith(f".{each.name}"):
                # A module at the top is a room of its own.
                hidden.append(target if target.count(".") == 1 else target.rpartition(".")[0])
            if any(not f"{name}.".startswith(f"{owner}.") for owner in hidden):
                problems.append(f"{name}:{each.line} imports the private {target}.{each.name}")
    return sorted(problems)


def attribute_violations(root: Path) -> list[str]:
    """Reads of a private attribute of something that is not defined in the module itself."""
    problems = []
    for name, path in modules(root).items():
        tree = parsed(path.read_text(encoding="utf-8"))
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        own = {node.attr for node in attributes if is_self(node.value) and isinstance(node.ctx, ast.Store)}
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            own |= set(filter(None, map(member, owner.body)))
        for node in attributes:
            foreign = is_private(node.attr) and node.attr not in own | NAMED_TUPLE
            if foreign and not is_self(node.value):
                problems.append(f"{name}:{node.lineno} reads the private attribute {ast.unparse(node)}")
    return sorted(problems)


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def member(node: ast.stmt) -> str | None:
    """The name that a statement of a class defines, if it defines one."""
    target = node.target if isinstance(node, ast.AnnAssign) else node
    return getattr(target, "name", None) or getattr(target, "id", None)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def cycle_violations(root: Path, lazy: dict[str, set[str]] | None = None) -> list[str]:
    """The first circle of imports, if there is one; ``lazy`` adds what a module imports by names it puts together."""
    reached = {name: {target for target, _ in targets} for name, targets in edges(root).items()}
    for name, targets in (lazy or {}).items():
        reached[name] |= targets
    try:
        graphlib.TopologicalSorter(reached).prepare()
    except graphlib.CycleError as error:
        return ["imports run in a circle: " + " <- ".join(error.args[1])]
    return []


def package_violations(root: Path) -> list[str]:
    """Imports of numba outside the compiled kernels, and of optional packages while a module loads."""
    problems = []
    for name, path in modules(root).items():
        inner = name.removeprefix(root.name).removeprefix(".")
        allowed = CORE | set(sys.stdlib_module_names) | {root.name} | LOADS_EXTRAS.get(inner.partition(".")[0], set())
        for found in imports(name, path):
            package = found.target.partition(".")[0]
            if package in {"numba", "llvmlite"} and not f"{inner}.".startswith("_base.compiled."):
                problems.append(f"{name}:{found.line} imports {package} outside _base.compiled")
            elif found.on_load and package not in allowed:
                problems.append(f"{name}:{found.line} imports {package} on load")
    return sorted(problems)


def caller_violations(root: Path) -> list[str]:
    """First lines that name the only callers of a module, but not exactly those that import it."""
    problems, inside = [], edges(root)
    for name, path in modules(root).items():
        first = (ast.get_docstring(parsed(path.read_text(encoding="utf-8"))) or "").partition("\n")[0].rstrip(".")
        claims = [claim[1] or claim[2] for part in first.split("; ") if (claim := CALLERS.fullmatch(part))]
        named = {f"{root.name}.{word.strip('`')}" for said in claims for word in re.split(r", and |, | and ", said)}
        below = {user for user, targets in inside.items() if any(is_inside(target, name) for target, _ in targets)}
        users = {user for user in below if not is_inside(user, name)} if claims else set()
        problems += [f"{name} names its caller {each}, which is no module" for each in named - inside.keys()]
        problems += [
            f"{name} names its caller {each}, which does not import it"
            for each in named & inside.keys()
            if not any(is_inside(user, each) for user in users)
        ]
        problems += [
            f"{name} does not name its caller {user}"
            for user in users
            if not any(is_inside(user, each) for each in named)
        ]
    return sorted(problems)


def is_inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def all_violations(root: Path, layers: list[set[str]]) -> list[str]:
    private = private_violations(root) + attribute_violations(root)
    checks = (layer_violations(root, layers), private, cycle_violations(root))
    return [problem for problems in (*checks, package_violations(root)) for problem in problems]


def test_every_module_is_in_one_layer_and_imports_downwards():
    assert layer_violations(SOURCE, LAYERS) == []


def test_the_rooms_of_files_and_studies_stand_in_the_promised_order():
    levels = [next(i for i, names in enumerate(LAYERS) if name in names) for name in PROMISED]
    assert levels == sorted(set(levels))


def test_only_public_modules_list_their_names():
    """Elsewhere a name without an underscore is a door; a list would say so twice."""
    public = {*LISTED, *(name for name, path in modules(SOURCE).items() if path.name == "__init__.py")}
    lists = {name for name, path in modules(SOURCE).items() if "__all__ = " in path.read_text(encoding="utf-8")}
    assert lists <= public


def test_no_module_goes_through_a_private_door():
    assert private_violations(SOURCE) == []


def test_first_lines_that_name_the_only_callers_are_true():
    assert caller_violations(SOURCE) == []


def test_no_module_reads_a_private_attribute_of_anothers_objects():
    assert attribute_violations(SOURCE) == []


def test_imports_do_not_run_in_a_circle_also_through_the_face():
    """The face loads each of its names from the room that the name comes from."""
    lazy = {f"heatmover.{(heatmover._HOME_OF | heatmover._INSIDE).get(name, name)}" for name in heatmover.__all__}
    rooms = lazy & modules(SOURCE).keys()
    assert {"heatmover.report", "heatmover.study", "heatmover.tl", "heatmover.pl"} <= rooms
    assert cycle_violations(SOURCE, {"heatmover": rooms}) == []


def test_numba_stays_in_compiled_and_extras_are_imported_late():
    assert package_violations(SOURCE) == []


def test_the_architecture_page_names_every_top_level_module():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    top = {name.split(".")[1] for name in modules(SOURCE) if "." in name}
    assert {name for name in top if f"`{name}" not in page} == set()


def test_importing_heatmover_loads_nothing_heavy():
    code = "import json, sys; import heatmover; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(output))
    assert "heatmover" in loaded
    assert loaded & HEAVY == set()


FAKE_LAYERS = [{"errors"}, {"_base"}, {"graphs", "metrics"}, {"cli"}, {"__init__"}]
CLEAN = {
    "__init__.py": "def __getattr__(name):\n    import heatmover.cli\n",
    "graphs/_hidden.py": "",
    "errors.py": "import numpy as np\n",
    "metrics.py": "from heatmover.errors import Problem\n",
    "_base/__init__.py": "",
    "_base/compiled/__init__.py": "",
    "_base/compiled/loops.py": "import numba\n",
    "graphs/__init__.py": "from .graph import Graph\n",
    "graphs/graph.py": """
from heatmover.graphs import _hidden
from heatmover.graphs._hidden import _secret
from typing import TYPE_CHECKING
from ..errors import Problem
if TYPE_CHECKING:
    import pandas
def draw():
    import matplotlib
    from heatmover._base.compiled import loops
""",
    "cli.py": "import typer\nfrom heatmover.graphs import Graph\nfrom heatmover.errors import __doc__\n",
    "_base/compiled/value.py": """
class Value:
    _shared: int
    def __init__(self):
        self._own = 1
    def _method(self):
        return self._inherited
    def same(self, other):
        return other._own == other._shared == other._method() == other._replace()
""",
}
PLANTED = {
    "absolute import from above": ({"errors.py": "import heatmover.graphs.graph\n"}, "or a later layer"),
    "submodule from above": ({"errors.py": "from heatmover.graphs import graph\n"}, "or a later layer"),
    "relative import from above": ({"graphs/graph.py": "from ..cli import app\n"}, "or a later layer"),
    "inside a function": ({"graphs/graph.py": "def f():\n    from .. import cli\n"}, "or a later layer"),
    "by name": ({"errors.py": "def f():\n    import_module('heatmover.cli')\n"}, "or a later layer"),
    "from a sibling": ({"metrics.py": "from heatmover.graphs import Graph\n"}, "or a later layer"),
    "for its types alone": (
        {"errors.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from heatmover.cli import app\n"},
        "or a later layer",
    ),
    "through the face": ({"graphs/graph.py": "from heatmover import cli_app\n"}, "or a later layer"),
    "through the face from the last room": ({"cli.py": "def f():\n    import heatmover\n"}, "or a later layer"),
    "circle through the face": ({"cli.py": "def f():\n    import heatmover\n"}, "circle"),
    "unknown module": ({"extra.py": ""}, "in 0 layers"),
    "private module": ({"cli.py": "from heatmover.graphs._hidden import it\n"}, "private heatmover.graphs._hidden"),
    "private module as a name": ({"cli.py": "from heatmover.graphs import _hidden\n"}, "imports the private"),
    "private name": ({"cli.py": "from heatmover.graphs.graph import _part\n"}, "private heatmover.graphs.graph._part"),
    "private name of a module": ({"metrics.py": "from heatmover.errors import _part\n"}, "imports the private"),
    "private attribute": ({"cli.py": "def f(graph):\n    return graph._edges\n"}, "private attribute graph._edges"),
    "private attribute of a field": (
        {"graphs/graph.py": "class A:\n    def f(self):\n        return self.model._part\n"},
        "private attribute self.model._part",
    ),
    "private attribute that is read only": (
        {"graphs/graph.py": "class A:\n    def f(self, other):\n        return self._part + other._part\n"},
        "private attribute other._part",
    ),
    "circle": ({"graphs/a.py": "from . import b\n", "graphs/b.py": "def f():\n    from .a import x\n"}, "circle"),
    "circle through a package": ({"graphs/graph.py": "from heatmover.graphs import Graph\n"}, "circle"),
    "numba in a function": ({"cli.py": "def f():\n    import numba\n"}, "numba outside _base.compiled"),
    "numba in a lookalike": ({"_compiled_not.py": "from numba import njit\n"}, "numba outside _base.compiled"),
    "extra on load": ({"graphs/graph.py": "import matplotlib.pyplot as plt\n"}, "matplotlib on load"),
    "extra in a try": ({"errors.py": "try:\n    import ot\nexcept ImportError:\n    ot = None\n"}, "ot on load"),
    "extra in a class": ({"errors.py": "class A:\n    from torch import nn\n"}, "torch on load"),
    "extra as a default": ({"errors.py": "def f(x=import_extra('pandas')):\n    pass\n"}, "pandas on load"),
    "extra in the face": ({"__init__.py": "import rich\n"}, "rich on load"),
    "other extra in cli": ({"cli.py": "import plotly\n"}, "plotly on load"),
}


def write_package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "heatmover" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "heatmover"


def test_the_checker_accepts_a_clean_package(tmp_path):
    assert all_violations(write_package(tmp_path, CLEAN), FAKE_LAYERS) == []


@pytest.mark.parametrize("case", PLANTED)
def test_the_checker_finds_a_planted_violation(tmp_path, case):
    files, expected = PLANTED[case]
    problems = all_violations(write_package(tmp_path, CLEAN | files), FAKE_LAYERS)
    assert any(expected in problem for problem in problems), problems


def test_a_first_line_with_a_wrong_caller_is_found(tmp_path):
    def found(text: str, file: str = "_base/compiled/loops.py") -> list[str]:
        return caller_violations(
            write_package(tmp_path, CLEAN | {"metrics.py": "import heatmover.errors\n", file: text})
        )

    name = "heatmover._base.compiled.loops"
    assert found('"""Loop; only `graphs` calls it; no files."""') == []
    assert found('"""Loop, for `graphs.graph` only."""') == []
    assert found('"""Loop over numbers only, for `metrics`."""') == []
    assert found('"""Loop; only `graphs` and `metrics` call it."""') == [
        f"{name} names its caller heatmover.metrics, which does not import it"
    ]
    assert found('"""Loop; only the graph calls it."""') == [
        f"{name} does not name its caller heatmover.graphs.graph",
        f"{name} names its caller heatmover.the graph, which is no module",
    ]
    assert found('"""Raise; for `graphs`, `cli` only.\n\nMore."""', "errors.py") == [
        "heatmover.errors does not name its caller heatmover.metrics"
    ]


def test_the_table_of_layers_is_checked_itself(tmp_path):
    root = write_package(tmp_path, CLEAN)
    assert "graphs is in two layers" in layer_violations(root, [*FAKE_LAYERS, {"graphs"}])
    assert "the table names gone, which is not there" in layer_violations(root, [*FAKE_LAYERS, {"gone"}])


def test_every_name_of_the_face_has_one_home():
    pytest.importorskip("torch")
    homes = vars(heatmover)["_HOMES"]
    assert len({name for names in homes.values() for name in names}) == sum(map(len, homes.values()))
    for name in heatmover.__all__:
        assert getattr(heatmover, name) is not None
    page = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in page.body if isinstance(node, ast.If)]
    told = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == set(heatmover.__all__) - {"__version__"}


def test_dir_shows_public_names_only_and_all_of_them_load():
    pytest.importorskip("torch")
    assert dir(heatmover) == sorted(heatmover.__all__)
    public = [getattr(heatmover, name) for name in heatmover.__all__]
    rooms = [value for value in public if isinstance(value, ModuleType)]
    assert {room.__name__ for room in rooms} > {"heatmover.tl", "heatmover.pl", "heatmover.errors"}
    for room in rooms:
        assert dir(room) == sorted(room.__all__)
        assert not [name for name in dir(room) if name.startswith("_") or not hasattr(room, name)]
