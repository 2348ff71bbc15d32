"""How kernels are compiled: for calls from Python, kept on disk by numba; or as a part of others."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import cache
from typing import Any

from numba import njit

__all__ = ["inner", "kernel"]


def kernel(fastmath: Collection[str] = (), **options: Any) -> Any:
    """Return a decorator for a function that Python calls: compiled once, kept on disk, without the interpreter's lock.

    A way in for C, which numba also makes, is left out: nothing here uses it, and it takes one part in fourteen of the
    time to compile. Without a folder for the compiled code, each process compiles the function again, and says so once.
    """
    options |= {"nogil": True, "fastmath": set(fastmath), "no_cfunc_wrapper": True}

    def decorate(function: Any) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            _warn_without_cache()
            return njit(**options)(function)

    return decorate


@cache
def _warn_without_cache() -> None:
    # The location is no help: the user can change an environment variable, not the line of an import.
    warnings.warn(
        "numba found no writable folder for compiled code, so each process compiles the code again; set the "
        "environment variable NUMBA_CACHE_DIR to a writable folder.",
        RuntimeWarning,
        stacklevel=2,
    )


def inner(fastmath: Collection[str] = ()) -> Any:
    """Return a decorator for a function that only kernels call, each of which keeps its own copy.

    It has no way in from Python, and no file of its own that a later process would have to read.
    """
    return njit(nogil=True, fastmath=set(fastmath), no_cfunc_wrapper=True, no_cpython_wrapper=True)
