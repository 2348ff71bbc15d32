"""What ``.uns`` holds of a comparison: plain values and arrays that h5ad and zarr can store."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from heatmover import __version__
from heatmover._typing import FloatArray, Int64
from heatmover._words import find, quoted
from heatmover.analysis.comparison import Comparison
from heatmover.errors import InvalidInputError

__all__ = ["check_stored", "pack", "plain", "scale_summary", "unpack", "write"]

# An embedding that takes more would swell a file beyond what its cells take: 100 samples on a graph over 100,000 cells
# and ten scales come to 400 MB, on 4,000 landmarks to 16 MB.
LARGEST_EMBEDDING = 64_000_000
# Columns sorted at a time, so that a copy of a large embedding is never needed.
COLUMNS_AT_ONCE = 4_096


def pack(result: Comparison, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison, and what was asked for, as a dictionary to store."""
    settings = result.model.get_params(deep=False)
    model = {name: value for name, value in settings.items() if name not in ("graph", "n_jobs")}
    packed: dict[str, Any] = {
        "params": _without_none({**asked, "model": _without_none(model), "version": __version__}),
        "names": np.array(result.names, dtype=object),
        "sizes": result.sizes.copy(),
        "distances": result.distances.copy(),
        "scales": scale_summary(result),
    }
    if result.embedding.nbytes <= LARGEST_EMBEDDING:
        packed["embedding"] = result.embedding.copy()
    if result.landmark_loss is not None:
        packed["landmarks"] = asdict(result.landmark_loss)
    return packed


def write(adata: Any, key: str, packed: dict[str, Any]) -> None:
    """Write the results; a view becomes an object of its own, as scverse tools let it."""
    with warnings.catch_warnings():
        if adata.is_view:
            warnings.filterwarnings("ignore", message="Trying to modify attribute")
        adata.uns[key] = packed


def unpack(adata: Any, key: str) -> Mapping[str, Any]:
    """Return the stored results, or say what is not there."""
    ours = [name for name, value in adata.uns.items() if _is_result(value)]
    if not ours:
        raise InvalidInputError(
            "an AnnData with distances between samples", "none in uns", "call hm.tl.sample_distances(adata, ...) first"
        )
    stored: Mapping[str, Any] = adata.uns[find(key, ours, "key to be where hm.tl.sample_distances wrote")]
    return stored


def _is_result(value: Any) -> bool:
    return hasattr(value, "keys") and {"params", "names", "sizes", "distances", "scales"} <= set(value)


def scale_summary(result: Comparison) -> dict[str, Any]:
    """Return the scales compared, what each has of the mean distance, and why the largest is the largest."""
    model = result.model
    edges = np.cumsum([0, *model.n_cells_])
    sums = np.array([_sum_of_distances(result.embedding[:, a:b]) for a, b in pairwise(edges)])
    return {
        "scale": np.asarray(model.scales_, dtype=np.int64),
        "share": sums / (sums.sum() or 1.0),
        "max_scale": int(model.max_scale_),
        "reason": str(model.max_scale_reason_),
        "decay": np.asarray(model.decay_, dtype=np.float64),
    }


def _sum_of_distances(block: FloatArray) -> float:
    """Return the sum of the L1 distances between all pairs of rows.

    In a sorted column the i-th of m numbers is added i times and subtracted m - 1 - i times, so that a sort does what
    would otherwise take all pairs.
    """
    signs = 2.0 * np.arange(len(block)) - len(block) + 1
    parts = range(0, block.shape[1], COLUMNS_AT_ONCE)
    return float(sum((signs @ np.sort(block[:, i : i + COLUMNS_AT_ONCE], axis=0)).sum() for i in parts))


def plain(value: Any) -> Any:
    """Return a value that h5ad and zarr can store: lists of names become arrays."""
    return value if isinstance(value, str) else np.array(list(value), dtype=object)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    # None is not a value that every version of anndata can store; what is not there was not set.
    return {name: value for name, value in values.items() if value is not None}


def check_stored(stored: Mapping[str, Any], names: tuple[str, ...], sizes: Int64) -> list[int]:
    """Return where the samples of today's cells are in the stored results, or raise if those are out of date."""
    place = {str(name): i for i, name in enumerate(stored["names"])}
    changed = [n for n, size in zip(names, sizes, strict=True) if n not in place or stored["sizes"][place[n]] != size]
    if changed:
        raise InvalidInputError(
            "the cells from which the distances were computed",
            f"other cells in {len(changed)} samples (first: {quoted(changed[0])})",
            "call hm.tl.sample_distances again",
        )
    return [place[name] for name in names]
