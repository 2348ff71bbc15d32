"""How kernels are compiled: for calls from Python, kept on disk; or as a part of others."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile

__all__ = ["inner", "kernel"]

# The file whose lock a process holds while it reads or writes compiled kernels in a folder.
LOCK = "heatmover.lock"


def kernel(fastmath: Collection[str] = (), **options: Any) -> Any:
    """Return a decorator for a function that Python calls: compiled once, kept on disk, without the interpreter's lock.

    A way in for C, which numba also makes, is left out: nothing here uses it, and it takes one part in fourteen of the
    time to compile. Without a folder for the compiled code, each process compiles the function again, and says so once.
    """
    options |= {"nogil": True, "fastmath": set(fastmath), "no_cfunc_wrapper": True}

    def decorate(function: Any) -> Any:
        try:
            compiled = njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            _warn_without_cache()
            return njit(**options)(function)
        _lock_cache(compiled)
        return compiled

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


class LockedFiles(IndexDataCacheFile):
    """The compiled forms of a function on disk, which one process at a time reads or writes.

    numba writes each file as a whole, but reads the index, chooses a name for the code, writes the index and then the
    code: of two processes that save forms for different types at once, both may choose one name, and the index may
    then give the code of one for the types of the other.
    """

    def save(self, key: Any, data: Any) -> None:
        """Save a compiled form, unless the disk is full or the folder became read-only."""
        try:
            with locked(Path(self._cache_path)):
                super().save(key, data)
        except OSError:
            _warn_without_cache()

    def load(self, key: Any) -> Any:
        """Return a compiled form; None if there is none."""
        with locked(Path(self._cache_path)):
            return super().load(key)


def _lock_cache(compiled: Any) -> None:
    cache = getattr(compiled, "_cache", None)  # a plain function if numba is told not to compile
    files = getattr(cache, "_cache_file", None)
    if type(files) is IndexDataCacheFile:
        files.__class__ = LockedFiles


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of compiled kernels; where there are no such locks, go on without."""
    try:
        import fcntl

        stream = (folder / LOCK).open("ab")
    except (ImportError, OSError):  # Windows; a folder that is not there yet, or into which nothing can be written
        yield
        return
    with stream:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
