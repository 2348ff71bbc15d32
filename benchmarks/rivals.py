"""Rivals that may not be installed: a benchmark says so in one line and shows its other rows.

Only where the truth itself is missing (exact EMD, which POT solves) is there nothing to show.
"""

from __future__ import annotations

import importlib.util
import sys
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


def required(module: str, package: str, why: str) -> None:
    """End the benchmark with one line if a module is missing without which there is nothing to show."""
    if importlib.util.find_spec(module) is None:
        sys.exit(f"{package} is not installed, and {why}; pip install 'heatmover[bench]' brings it.")
