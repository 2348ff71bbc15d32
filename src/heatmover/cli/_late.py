"""What lets a command begin sooner: modules that load when they are first used, and imports without a collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import final

__all__ = ["LATE", "load_late", "swift_imports"]

# Modules that others import and a command hardly ever uses. scikit-learn imports scipy.stats, which takes half a
# second, for a function that nothing here calls; scipy asks numpy for all its names, and so for its compiler of
# Fortran and its tools for tests (together a tenth of the time to import everything); numba reads a file of settings.
LATE = ("scipy.stats", "scipy.spatial.transform", "numpy.f2py", "numpy.testing", "yaml")

# Modules that a command may load later without having loaded the libraries.
FEW = 100


@final
class _Late:
    """Finds one module, once, and lets it load at its first use (`importlib.util.LazyLoader`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002 - the import system asks so
    ) -> ModuleSpec | None:
        """Return how to load the module late; None for any other."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def load_late(name: str) -> None:
    """Let a module load when something of it is first used, if nothing has imported it yet.

    This is for the process of a command, not for a library: what loads late in someone's own process is theirs to say.

    Parameters
    ----------
    name
        Of a module, with that of its package.

    Examples
    --------
    >>> load_late("scipy.stats")
    >>> from scipy.stats import rankdata  # as ever
    >>> rankdata([30, 10]).tolist()
    [2.0, 1.0]
    """
    finders: list[object] = list(sys.meta_path)
    if name not in sys.modules and not any(isinstance(finder, _Late) and finder.name == name for finder in finders):
        sys.meta_path.insert(0, _Late(name))


@contextmanager
def swift_imports() -> Iterator[None]:
    """Import without what is not needed: the modules of `LATE` wait, and so does the collector of garbage.

    What modules make when they load stays until the end; looking through it again and again took a tenth of the time.
    Where modules were loaded, it is set aside for good.

    Examples
    --------
    >>> with swift_imports():
    ...     import scipy.sparse
    >>> gc.isenabled()
    True
    """
    for name in LATE:
        load_late(name)
    was_enabled, n_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # In a process that runs many commands, nothing is new, and garbage must not be kept.
        if len(sys.modules) > n_modules + FEW:
            gc.freeze()
        if was_enabled:
            gc.enable()
