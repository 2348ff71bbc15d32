"""Print constraints that hold every requirement of the given extras, and of heatmover itself, at its lower bound."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(requirement: str) -> str:
    """Return the name in a requirement, as pip compares names."""
    match = NAME.match(requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def requirements(project: dict, extras: list[str]) -> Iterator[str]:
    """Yield what the package and the extras require, extras named by extras included."""
    waiting, seen = list(extras), set()
    yield from project["dependencies"]
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            if normal(requirement) == project["name"]:
                waiting.extend(requirement.partition("[")[2].rstrip("]").split(","))
            else:
                yield requirement


def lowest(requirement: str) -> str:
    """``name>=1.2`` as ``name==1.2``; any other form has no lower bound to hold."""
    name, sign, bound = requirement.partition(">=")
    if not sign or "," in bound or ";" in bound:
        sys.exit(f"Expected a requirement of the form name>=version in pyproject.toml, found {requirement!r}.")
    return f"{name}=={bound}"


def main(extras: list[str]) -> None:
    """Print one constraint per line, those of constraints.txt first: they win."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    fixed = [line for line in lines if line.strip() and not line.startswith("#")]
    names = {normal(line) for line in fixed}
    held = sorted(lowest(each) for each in requirements(project, extras) if normal(each) not in names)
    sys.stdout.write("\n".join([*fixed, *held]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
