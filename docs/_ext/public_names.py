"""The public names of heatmover, and the page of the reference that each has.

A name is public if the face has it (``heatmover.__all__``) or if a public package lists it in its ``__all__``. The
public packages are those of the face, the homes of its names, and `heatmover.study.tables`. A name that is reached in
several ways has one page, under its shortest name.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import heatmover

# Public, though neither the face nor one of its names leads there: what undoes the guard in our CSV files.
ALSO = ("heatmover.study.tables",)


@cache
def public_modules() -> tuple[str, ...]:
    """Return the names of the public packages and modules."""
    of_face = {
        value.__name__ for name in heatmover.__all__ if isinstance(value := getattr(heatmover, name), ModuleType)
    }
    homes = {
        ".".join(getattr(heatmover, name).__module__.split(".")[:2])
        for name in heatmover.__all__
        if hasattr(getattr(heatmover, name), "__module__")
    }
    return tuple(sorted({"heatmover"} | of_face | homes | set(ALSO)))


@cache
def public_paths() -> dict[str, Any]:
    """Return every dotted way to a public object that is no module, with the object."""
    paths = {}
    for module in public_modules():
        package = import_module(module)
        for name in package.__all__:
            value = getattr(package, name)
            if not isinstance(value, ModuleType) and name != "__version__":
                paths[f"{module}.{name}"] = value
    return paths


@cache
def pages() -> dict[str, str]:
    """Return for every dotted way the name that has the page: the shortest way to the same function or class."""
    shortest: dict[int, str] = {}
    paths = public_paths()
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        shortest.setdefault(id(paths[path]), path)
    return {path: shortest[id(value)] if _has_identity(value) else path for path, value in paths.items()}


def _has_identity(value: Any) -> bool:
    """Return False for a number or the like, which may be the same object by chance."""
    return callable(value)


@cache
def own_pages() -> tuple[str, ...]:
    """Return the names that have a page of their own, sorted."""
    return tuple(sorted(set(pages().values())))


def callable_values() -> list[str]:
    """Return the names whose objects are called like functions and are none, such as the methods of `baselines`."""
    paths = public_paths()
    return [
        name
        for name in own_pages()
        if callable(paths[name]) and not inspect.isroutine(paths[name]) and not inspect.isclass(paths[name])
    ]
