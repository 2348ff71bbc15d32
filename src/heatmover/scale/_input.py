"""What a result depends on: the input, told by its bytes or their sizes and times, and the settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heatmover._words import readable
from heatmover.cohort import Cohort

__all__ = ["describe_input", "digest", "plain"]

# Up to so many bytes the whole input is read for its checksum, some seconds. Beyond, sizes and times of change tell
# whether it is the same: a copy of a larger file then counts as another one.
CHECKSUM_UP_TO = 8_000_000_000


def describe_input(cohort: Cohort) -> dict[str, Any]:
    """Return what identifies the cells of a cohort, their samples and what is done to them, as plain values."""
    return {
        "cells": cohort.n_cells,
        "features": list(cohort.features),
        "samples": digest("\n".join(cohort.names).encode()),
        "labels": digest(np.ascontiguousarray(cohort.codes).data),
        "projection": _projection(cohort),
        "content": _content(cohort),
    }


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON would give them back."""
    kept = (bool, int, float, str, type(None))
    return {
        key: value.item() if isinstance(value, np.generic) else value if isinstance(value, kept) else repr(value)
        for key, value in settings.items()
    }


def digest(data: Any) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def _projection(cohort: Cohort) -> str:
    projection = cohort.projection
    total = hashlib.sha256()
    for part in (projection.mean, projection.scale, projection.components):
        total.update(b"none" if part is None else np.ascontiguousarray(part).data)
    return total.hexdigest()


def _content(cohort: Cohort) -> str:
    source = cohort.source
    if not source.path:  # an object in memory
        total = hashlib.sha256()
        for points, _ in cohort.chunks():
            total.update(np.ascontiguousarray(points).data)
        return f"sha256:{total.hexdigest()}"
    with readable(source.path, cohort.reader.kind):
        files = list(_files(cohort))
        if sum(size for _, size, _ in files) <= CHECKSUM_UP_TO:
            return source.checksum
    lines = "\n".join(f"{name} {size} {changed}" for name, size, changed in files)
    return f"sizes and times, sha256:{digest(lines.encode('utf-8', 'surrogateescape'))}"


def _files(cohort: Cohort) -> Iterator[tuple[str, int, int]]:
    """Yield name, size and time of change of each file of the input."""
    top = Path(cohort.source.path)
    for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
        if path.is_file():
            status = path.stat()
            yield path.relative_to(top).as_posix(), status.st_size, status.st_mtime_ns
