"""Compile loops with numba, which caches them on disk; only the modules of this folder use these decorators."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import cache
from typing import Any

from numba import njit


def kernel(fastmath: Collection[str] = (), **options: Any) -> Any:
    """Return a decorator that compiles a function for Python, caches it on disk and runs it without the global lock.

    The entry point for C is switched off, because nothing uses it and it takes 7% of the compile time. Without a
    writable folder for compiled code, each process compiles the function again and warns once.
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
    # The warning names no line of the user's code, because the remedy is an environment variable.
    warnings.warn(
        "numba found no writable folder for compiled code, so each process compiles the code again; set the "
        "environment variable NUMBA_CACHE_DIR to a writable folder.",
        RuntimeWarning,
        stacklevel=2,
    )


def inner(fastmath: Collection[str] = ()) -> Any:
    """Return a decorator for a function that only kernels call and include in their own compiled code.

    Python cannot call the function, and the function has no cache file that a later process would have to read.
    """
    return njit(nogil=True, fastmath=set(fastmath), no_cfunc_wrapper=True, no_cpython_wrapper=True)
