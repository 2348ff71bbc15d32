"""Messages that name Python arguments, turned into the options of the command line, in one place."""

from __future__ import annotations

import re

__all__ = ["in_options"]

OPTIONS = {
    "allow_parts": "--allow-parts",
    "cells": "--cells",
    "cofactor": "--cofactor",
    "checkpoint": "--checkpoint",
    "landmarks": "--landmarks",
    "memory": "--memory",
    "min_cells": "--min-cells",
    "n_components": "--components",
    "n_jobs": "--threads",
    "n_neighbors": "--neighbors",
    "n_permutations": "--permutations",
    "no_features": "--annotation",
    "on_missing": "--missing",
    "random_state": "--seed",
    "representation": "--rep",
    "resume": "--resume",
    "sample_key": "--sample-key",
    "sample_sheet": "--sample-sheet",
    "standardize": "--standardize",
}
# Words of everyday English are options only where a value or a demand follows.
EVERYDAY = {"cells", "checkpoint", "cofactor", "landmarks", "memory", "resume"}
# What has no option says how to do it in Python, or is left out.
PHRASES = {
    "Use kernel='adaptive' or a larger bandwidth if they are not outliers.": (
        "If they are not outliers, make the graph in Python: Graph.from_points(points, kernel='adaptive')."
    ),
    "use neighbors='blocked'": "in Python, make the graph with Graph.from_points(points, neighbors='blocked')",
    "embed them with DiffusionEMD(graph)": "in Python, embed them with DiffusionEMD(graph)",
    " Set compress to choose, or to False.": "",
    "that tells the sample of each cell, found None": "that tells the sample of each cell, found none",
}
# A quoted name is the user's own word, whatever it is; an apostrophe within a word is no quote.
QUOTED = r"""(?<![\w=])(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""
NAMED = rf"(?<![\w-])(?P<name>{'|'.join(OPTIONS)})\b(?:=(?P<value>\"\w+\"|[\w.]+))?(?P<demand> to be| for FCS)?"
EITHER = re.compile(f"(?P<quoted>{QUOTED})|{NAMED}")


def in_options(message: str) -> str:
    """Return a message of the package in the words of the command line.

    Examples
    --------
    >>> in_options('at most 100 features; n_components=50 reduces them, n_components="all" keeps them')
    'at most 100 features; --components 50 reduces them, --components all keeps them'
    >>> in_options("column 'min_cells' is text; raise n_neighbors, or allow_parts=True")
    "column 'min_cells' is text; raise --neighbors, or --allow-parts"
    """
    for phrase, other in PHRASES.items():
        message = message.replace(phrase, other)
    return EITHER.sub(_replaced, message)


def _replaced(match: re.Match[str]) -> str:
    name, value, demand = match["name"], match["value"], match["demand"] or ""
    if match["quoted"] or (name in EVERYDAY and not (value or demand)):
        return match[0]
    shown = "" if value in (None, "True") else " " + value.strip('"')
    return f"{OPTIONS[name]}{shown}{demand}"
