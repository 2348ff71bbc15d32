"""Rivals that may not be installed: a benchmark says so in one line and shows its other rows."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def installed(module: str, package: str) -> bool:
    """Return whether a module can be imported; say so, once, if it cannot."""
    if importlib.util.find_spec(module) is not None:
        return True
    print(
        f"{package} is not installed, so its rows are left out; pip install 'heatmover[bench]' brings it.", flush=True
    )
    return False
