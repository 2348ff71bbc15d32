"""Numbers behind the figures of the page: maps, heatmap, scales, and what to colour samples by."""

from __future__ import annotations

import base64
import math
from collections import Counter
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from heatmover._typing import Float64, Int64
from heatmover._words import counted, naturally
from heatmover.analysis.comparison import Comparison
from heatmover.analysis.study import Study
from heatmover.analysis.variables import kind_of, label
from heatmover.drawing.style import NEAR_TO_FAR
from heatmover.manifold import classical_scaling, diffusion_map
from heatmover.measures import is_missing
from heatmover.report.markup import packed, rounded

__all__ = ["cluster_order", "colorings", "first_coloring", "heatmap", "maps", "scale_shares", "scaled"]

# With more no eye tells the colours apart; the smallest groups become one.
MOST_GROUPS = 30
OTHER = "other"
# A screen has hardly more pixels for the rows.
MOST_ROWS = 1_000
# A tree of more samples takes minutes and gigabytes; then an evenly drawn part of them gives the order.
MOST_CLUSTERED = 5_000
# All eigenvectors of 2,000 samples take 5 s, of 5,000 more than a minute.
MOST_MAPPED = 2_000
COLOR_RANGE = (0.01, 0.99)


def colorings(study: Study) -> list[dict[str, Any]]:
    """Return what the samples can be coloured by: every variable that varies, and the number of cells.

    Groups come as names, counts and one code for each sample (-1 for missing), numbers as values (None for missing).
    """
    numeric = study.record.parameters.get("numeric", ())
    found = [
        _coloring(str(name), study.variables[name].tolist(), numeric=name in numeric)
        for name in study.variables.columns
    ]
    sizes = {"name": "number of cells", "kind": "number", "values": study.comparison.sizes.tolist()}
    return [*(coloring for coloring in found if coloring is not None), sizes]


def first_coloring(study: Study, choices: list[dict[str, Any]]) -> int:
    """Return the place of the first variable examined among the choices; the number of cells if there is none."""
    place = {choice["name"]: i for i, choice in reversed(list(enumerate(choices)))}
    tested = [finding.variable for finding in study.findings if finding.answer is not None]
    return next((place[name] for name in tested if name in place), len(choices) - 1 if not tested else 0)


def _coloring(name: str, values: list[Any], *, numeric: bool = False) -> dict[str, Any] | None:
    known = [value for value in values if not is_missing(value)]
    if len({str(value) for value in known}) < 2:
        return None
    # An infinite value has no colour; in the page it is missing.
    finite = [value for value in known if value not in (np.inf, -np.inf)]
    if kind_of(finite, numeric=numeric) == "number":
        numbers = rounded([np.nan if is_missing(value) else float(value) for value in values])
        return {"name": name, "kind": "number", "values": [x if math.isfinite(x) else None for x in numbers]}
    texts = ["" if is_missing(value) else label(value) for value in values]
    counts = Counter(text for text, value in zip(texts, values, strict=True) if not is_missing(value))
    if len(counts) > MOST_GROUPS and max(counts.values()) == 1:
        return None  # a name for every sample
    kept, other = _largest(counts)
    codes = {group: code for code, group in enumerate(kept)}
    return {
        "name": name,
        "kind": "groups",
        "groups": [*kept, *([f"{OTHER} ({counted(len(other), 'group')})"] if other else [])],
        "counts": [*(counts[group] for group in kept), *([sum(counts[group] for group in other)] if other else [])],
        "codes": [
            -1 if is_missing(value) else codes.get(text, len(kept)) for text, value in zip(texts, values, strict=True)
        ],
    }


def _largest(counts: Counter[str]) -> tuple[list[str], list[str]]:
    """Return the groups to show, in natural order, and those to put together."""
    if len(counts) <= MOST_GROUPS:
        return naturally(counts), []
    by_size = sorted(counts, key=lambda group: (-counts[group], group))
    return naturally(by_size[: MOST_GROUPS - 1]), by_size[MOST_GROUPS - 1 :]


def maps(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the maps to choose from, the default first."""
    distances, n_samples = comparison.distances, len(comparison.names)
    coordinates, shares = scaled(distances)
    found = [
        {
            "label": "all distances (classical scaling)",
            "axes": [f"axis {i + 1} ({100 * share:.0f} % of the variation)" for i, share in enumerate(shares)],
            "x": rounded(coordinates[:, 0]),
            "y": rounded(coordinates[:, 1]),
        }
    ]
    if 3 <= n_samples <= MOST_MAPPED:
        steps = diffusion_map(distances, 2, k=min(10, n_samples - 1))
        found.append(
            {
                "label": "near neighbours (diffusion map)",
                "axes": ["diffusion axis 1", "diffusion axis 2"],
                "x": rounded(steps[:, 0]),
                "y": rounded(steps[:, 1]),
            }
        )
    return found


def scaled(distances: Float64) -> tuple[Float64, Float64]:
    """Return classical scaling, ``(n_samples, 2)``, and the share of each axis.

    If there are too many samples, an evenly drawn part is scaled, and the others are placed by their distances to it
    (de Silva and Tenenbaum 2004); the shares are then those of that part.
    """
    chosen = _evenly(np.arange(len(distances)), MOST_MAPPED)
    coordinates, shares = classical_scaling(distances[np.ix_(chosen, chosen)], 2)
    if len(chosen) == len(distances):
        return coordinates, shares
    squares = distances[:, chosen] ** 2
    lengths = (coordinates**2).sum(axis=0)
    directions = coordinates / np.where(lengths > 0, lengths, 1.0)
    return (squares[chosen].mean(axis=0) - squares) @ directions / 2, shares


def heatmap(comparison: Comparison) -> dict[str, Any]:
    """Return the order of the samples and their distances in it, of at most 1,000 samples."""
    shown = _evenly(cluster_order(comparison.distances), MOST_ROWS)
    part = comparison.distances[np.ix_(shown, shown)]
    # The zeros of the diagonal and a few outliers would take most of the colours.
    colors = rounded(np.quantile(part[np.triu_indices(len(part), 1)], COLOR_RANGE))
    return (
        {"order": shown.tolist(), "range": colors, "colors": list(NEAR_TO_FAR)}
        | packed(part)
        | _intervals(comparison, shown)
    )


def _intervals(comparison: Comparison, shown: Int64) -> dict[str, Any]:
    """Return which pairs of the samples shown cannot be told apart, as bits, and the intervals of all pairs."""
    found = comparison.intervals
    if found is None:
        return {"alike": None}
    inside = np.ix_(shown, shown)
    alike = ~found.told_apart[inside][np.triu_indices(len(shown), 1)]
    return {
        "alike": base64.b64encode(np.packbits(alike).tobytes()).decode(),
        "lower": packed(found.lower[inside]),
        "upper": packed(found.upper[inside]),
        "confidence": 100 * found.confidence,
    }


def cluster_order(distances: Float64) -> Int64:
    """Return the order of the leaves of an average-linkage tree, like beside like, ``(n_samples,)`` or an even part."""
    chosen = _evenly(np.arange(len(distances)), MOST_CLUSTERED)
    part = distances[np.ix_(chosen, chosen)]
    tree = linkage(
        squareform(part, checks=False),
        method="average",
        # Turning every branch the best way takes 1 s for 634 samples, 4 s for 1,000: faster than their square.
        optimal_ordering=len(chosen) <= MOST_ROWS,
    )
    return np.asarray(chosen[leaves_list(tree)], dtype=np.int64)


def scale_shares(comparison: Comparison) -> list[dict[str, Any]]:
    """Return what part of the mean distance each scale makes, finest first."""
    pairs = zip(comparison.model.scales_.tolist(), comparison.scale_shares.tolist(), strict=True)
    return [{"scale": scale, "steps": 2**scale, "share": share} for scale, share in pairs]


def _evenly(values: Int64, most: int) -> Int64:
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(np.int64)]
