"""List the public names of heatmover and the page of the reference on which each is documented.

A name is public if ``heatmover.__all__`` or the ``__all__`` of a public package lists it. The public packages are the
packages in ``heatmover.__all__``, the packages that define its names, and `heatmover.study.tables`. A name that can be
reached in several ways has one page, under its shortest name.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import heatmover

# Public, although heatmover.__all__ does not lead there: it reads our CSV files without their guard against formulas.
ALSO = ("heatmover.study.tables",)


@cache
def public_modules() -> tuple[str, ...]:
    """Return the names of the public packages and modules."""
    homes = {
        ".".join(getattr(heatmover, name).__module__.split(".")[:2])
        for name in heatmover.__all__
        if hasattr(getattr(heatmover, name), "__module__")
    }
    return tuple(sorted({"heatmover", *modules_of_face().values(), *homes, *ALSO}))


@cache
def modules_of_face() -> dict[str, str]:
    """Return the full name of every package in ``heatmover.__all__``, such as heatmover.transport.baselines."""
    return {
        f"heatmover.{name}": value.__name__
        for name in heatmover.__all__
        if isinstance(value := getattr(heatmover, name), ModuleType)
    }


@cache
def public_paths() -> dict[str, Any]:
    """Return every dotted name of a public object that is not a module, with the object."""
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
    """Return for every dotted name the name that has the page: the shortest name of the same function or class."""
    shortest: dict[int, str] = {}
    paths = public_paths()
    for path in sorted(paths, key=lambda path: (path.count("."), path)):
        shortest.setdefault(id(paths[path]), path)
    return {path: shortest[id(value)] if _has_identity(value) else path for path, value in paths.items()}


def _has_identity(value: Any) -> bool:
    """Return False for numbers and other values that may be the same object by chance."""
    return callable(value)


@cache
def own_pages() -> tuple[str, ...]:
    """Return the names that have their own page, sorted."""
    return tuple(sorted(set(pages().values())))


def callable_values() -> list[str]:
    """Return the names of callable objects that are not functions, such as the methods of `baselines`."""
    paths = public_paths()
    return [
        name
        for name in own_pages()
        if callable(paths[name]) and not inspect.isroutine(paths[name]) and not inspect.isclass(paths[name])
    ]
