"""Write the lists of other projects' objects that our pages link to: ``python docs/make_inventories.py``.

Sphinx finds the address of `numpy.ndarray` in NumPy's list of all its objects, which it would download at every build.
To build offline, ``docs/inventories`` has short lists instead: the names that our pages and docstrings use, each with
its address on the site of its project. A name that does not exist in the installed package raises an error. The rules
for the addresses follow the sites of the projects.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS / "_ext"))

PYTHON = [
    *("bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple", "type"),
    *("bytearray", "complex", "property", "slice"),
    *("DeprecationWarning", "FileExistsError", "FileNotFoundError", "FutureWarning", "ImportError", "KeyError"),
    *("MemoryError", "OSError", "RuntimeError", "RuntimeWarning", "TypeError", "UserWarning", "ValueError"),
    *("Exception", "IndexError", "Warning", "KeyboardInterrupt", "AttributeError", "NotImplementedError"),
    *("collections.abc.Callable", "collections.abc.Hashable", "collections.abc.Iterable", "collections.abc.Iterator"),
    *("collections.abc.Mapping", "collections.abc.Sequence", "collections.abc.Generator"),
    *("os.PathLike", "pathlib.Path", "typing.Any", "typing.Literal", "typing.Self", "typing.Protocol"),
    *("contextlib.AbstractContextManager", "types.ModuleType"),
]
TYPES_OF_TEXT = {"bytes", "bytearray", "dict", "frozenset", "list", "set", "str", "tuple"}
# Names that a search for dotted names misses, because they occur in type hints or without their module.
ALSO = {
    "numpy": [
        "numpy.ndarray",
        "numpy.typing.ArrayLike",
        "numpy.typing.NDArray",
        "numpy.random.Generator",
        "numpy.dtype",
    ],
    "scipy": [
        "scipy.sparse.csr_array",
        "scipy.sparse.csr_matrix",
        "scipy.sparse.sparray",
        "scipy.spatial.distance.pdist",
    ],
    "sklearn": [
        "sklearn.base.BaseEstimator",
        "sklearn.base.TransformerMixin",
        "sklearn.model_selection.GridSearchCV",
        "sklearn.model_selection.cross_val_score",
        "sklearn.neighbors.KNeighborsClassifier",
        "sklearn.pipeline.Pipeline",
        "sklearn.pipeline.make_pipeline",
        "sklearn.svm.SVC",
    ],
    "pandas": ["pandas.DataFrame", "pandas.Index", "pandas.Series"],
    "matplotlib": ["matplotlib.axes.Axes", "matplotlib.figure.Figure", "matplotlib.pyplot.subplots"],
    "anndata": ["anndata.AnnData", "anndata.read_h5ad"],
    "torch": ["torch.Tensor", "torch.nn.Module"],
}
# Names that their projects do not document, or document at another address than the rules give.
LEAVE = re.compile(r"\.__|\._|^torch\.(dtype|autograd)|^matplotlib\.colormaps")


def address(project: str, name: str) -> str:
    """Return the address at which a project's site documents a name."""
    if project == "python":
        return _python(name)
    if project == "numpy":
        return _numpy(name)
    if project == "torch" and name == "torch.Tensor":
        return f"tensors.html#{name}"
    folder = {
        "scipy": "reference/generated",
        "sklearn": "modules/generated",
        "pandas": "reference/api",
        "matplotlib": "api/_as_gen",
        "anndata": "generated",
        "torch": "generated",
    }[project]
    return f"{folder}/{name}.html#{name}"


def _python(name: str) -> str:
    module, dot, _ = name.rpartition(".")
    if dot:
        return f"library/{module}.html#{name}"
    if isinstance(getattr(builtins, name), type) and issubclass(getattr(builtins, name), BaseException):
        return f"library/exceptions.html#{name}"
    return f"library/{'stdtypes' if name in TYPES_OF_TEXT else 'functions'}.html#{name}"


def _numpy(name: str) -> str:
    import numpy as np

    value = find(name)
    if name.startswith("numpy.typing."):
        return f"reference/typing.html#{name}"
    if name.startswith("numpy.random."):
        method = name.removeprefix("numpy.random.")
        return f"reference/random/generator.html#{name}" if "." not in method else _generated(f"random/{name}", name)
    if inspect.isclass(value) and issubclass(value, np.generic):
        return f"reference/arrays.scalars.html#{name}"
    return f"reference/generated/{name}.html#{name}"


def _generated(path: str, name: str) -> str:
    folder, _, last = path.rpartition("/")
    return f"reference/{folder}/generated/{last}.html#{name}"


def find(name: str) -> Any:
    """Return the object of a dotted name; raise AttributeError if there is none."""
    parts = name.split(".")
    if len(parts) == 1:
        return getattr(builtins, name)
    for end in range(len(parts) - 1, 0, -1):
        try:
            value = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part)
        return value
    raise AttributeError(name)


def kind(value: Any) -> str:
    """Return Sphinx's role for an object."""
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) else "data"


def used() -> dict[str, set[str]]:
    """Return the names of other projects that our texts use."""
    from mentions import MODULES

    names: dict[str, set[str]] = {project: set(also) for project, also in ALSO.items()}
    for text in texts():
        for dotted in re.findall(r"(?<![\w.\"'/])[a-z]+(?:\.[A-Za-z_]\w*)+", text):
            first, _, rest = dotted.partition(".")
            name = f"{MODULES.get(first, '')}.{rest}"
            project = name.partition(".")[0]
            if project in names and not LEAVE.search(name) and _documented(name):
                names[project].add(name)
    return names


def _documented(name: str) -> bool:
    """Return whether a name is a public function or class, not a module, method or attribute."""
    try:
        value = find(name)
    except AttributeError:
        return False
    try:
        import_module(name.rpartition(".")[0])
    except ImportError:
        return False
    return callable(value)


def texts() -> Iterator[str]:
    """Yield all pages, and all docstrings."""
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        if "_build" not in path.parts and "jupyter_execute" not in path.parts:
            yield path.read_text(encoding="utf-8")
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def inventory(project: str, names: list[str]) -> bytes:
    """Return a list of objects in Sphinx's format."""
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = [f"{name} py:{kind(find(name))} 1 {address(project, name)} -\n" for name in sorted(names)]
    return head.encode() + zlib.compress("".join(lines).encode(), 9)


def main() -> None:
    folder = DOCS / "inventories"
    folder.mkdir(exist_ok=True)
    for project, names in {"python": set(PYTHON), **used()}.items():
        (folder / f"{project}.inv").write_bytes(inventory(project, list(names)))
        print(f"{project}: {len(names)} names")


if __name__ == "__main__":
    main()
