"""Render a study as one HTML page, and write it on request; users, `report.folder`, `Comparison.report` call it."""

from __future__ import annotations

import base64
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, final

import numpy as np

from heatmover._base.files import plain, replacing
from heatmover._base.types import Float64, Int64
from heatmover._base.validation import import_extra
from heatmover._base.words import counted, naturally, percent
from heatmover.attribution.cell_types import LEVEL
from heatmover.attribution.drivers import LISTED
from heatmover.errors import InvalidInputError
from heatmover.measures import is_missing
from heatmover.report.findings import (
    BEFORE,
    cautions,
    findings_table,
    methods,
    recorded,
    references,
    row,
    term_rows,
    terms_table,
)
from heatmover.report.markup import (
    digest,
    fill,
    fill_part,
    legal_script,
    number,
    packed,
    rounded,
    script_json,
    shortened,
    static,
)
from heatmover.statistics.manifold import classical_scaling, diffusion_map
from heatmover.study.cautions import named_floors, pair_counts
from heatmover.study.cell_types import SampleComposition
from heatmover.study.comparison import Comparison, Intervals
from heatmover.study.contrasts import CellContrast, CellType
from heatmover.study.drawing.heatmap import leaf_order
from heatmover.study.drawing.style import NEAR_TO_FAR, NUMBER_AND_STATE, TYPE_COLORS
from heatmover.study.examination import kind_of, label
from heatmover.study.study import Study, study_comparison
from heatmover.study.tables import table_text

# Largest number of cell types in the table, so that the table stays readable. One line summarizes all other types, and
# cell-types.csv lists all types.
MOST_TYPES = 30
# Largest number of types whose features are shown, and largest number of features per type; drivers.csv lists more.
MOST_DRIVEN, MOST_FEATURES = 8, 5
# Largest number of significant features in the page's table, because a table of thousands of genes in dozens of types
# would take megabytes.
MOST_DRIVERS = 2_000
# Number of types with their own color; all other types share one color.
MOST_COLORED = len(TYPE_COLORS)
# Symbols that repeat the information of color and word, for readers who cannot perceive color.
MARKS = {"more": "\u25b2", "less": "\u25bc", "": "\u2013"}
TITLE = "Comparison of samples"

# Largest number of distinguishable colors; the smallest groups are combined.
MOST_GROUPS = 30
OTHER = "other"
# Largest number of samples in the heatmap, because a screen has hardly more rows of pixels. For a larger cohort, an
# evenly spaced subset is clustered and shown.
MOST_ROWS = 1_000
# Largest number of samples for eigenvectors: 2,000 samples take 5 s, and 5,000 samples take more than a minute.
MOST_MAPPED = 2_000
# Quantiles of the distances at which the colors of the heatmap end.
COLOR_RANGE = (0.01, 0.99)


@final
@dataclass(frozen=True, eq=False)
class Section:
    """A section of the page: a heading with its content.

    Attributes
    ----------
    key
        Short name in lower-case letters: anchor of the section in the page, and key of its data.
    title
        Heading, as plain text.
    html
        Content as HTML from `fill`; it is not escaped again.
    data
        Plain values that the page's script finds under ``key``.
    after
        Key of the section after which this section is placed, if it is an additional section.
    tables
        CSV texts (see `heatmover.study.tables.table_text`) that the buttons of the section save. The keys are the file
        names in lower-case letters, without the ending.
    picture
        Whether the section gets buttons that save its picture; the page's script must be able to draw the picture.

    Examples
    --------
    >>> Section("cells", "Which cells differ", "<p>None.</p>").after
    'statistics'
    """

    key: str
    title: str
    html: str
    data: Mapping[str, Any] = field(default_factory=dict)
    after: str = "statistics"
    tables: Mapping[str, str] = field(default_factory=dict)
    picture: bool = False


def colorings(study: Study) -> list[dict[str, Any]]:
    """Return the variables by which samples can be colored: every variable that varies, and the number of cells.

    Groups have names, counts and one code for each sample (-1 if missing); numbers have values (None if missing).
    """
    numeric = study.record.parameters.get("numeric", ())
    columns = [
        _coloring(str(name), study.variables[name].tolist(), numeric=name in numeric)
        for name in study.variables.columns
    ]
    sizes = {"name": "number of cells", "kind": "number", "values": study.comparison.sizes.tolist()}
    return [*(coloring for coloring in columns if coloring is not None), sizes]


def first_coloring(study: Study, choices: list[dict[str, Any]]) -> int:
    """Return the index of the first examined variable among the choices, or of the number of cells if there is none."""
    place = {choice["name"]: i for i, choice in reversed(list(enumerate(choices)))}
    tested = [finding.variable for finding in study.findings if finding.answer is not None]
    return next((place[name] for name in tested if name in place), len(choices) - 1 if not tested else 0)


def _coloring(name: str, values: list[Any], *, numeric: bool = False) -> dict[str, Any] | None:
    present = [value for value in values if not is_missing(value)]
    if len({str(value) for value in present}) < 2:
        return None
    # An infinite value has no color, so the page treats it as missing.
    finite = [value for value in present if value not in (np.inf, -np.inf)]
    if kind_of(finite, numeric=numeric) == "number":
        numbers = rounded([np.nan if is_missing(value) else float(value) for value in values])
        return {"name": name, "kind": "number", "values": [x if math.isfinite(x) else None for x in numbers]}
    texts = ["" if is_missing(value) else label(value) for value in values]
    counts = Counter(text for text, value in zip(texts, values, strict=True) if not is_missing(value))
    if len(counts) > MOST_GROUPS and max(counts.values()) == 1:
        return None  # a different name for every sample
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
    """Return the groups to show, in natural order, and the groups to combine."""
    if len(counts) <= MOST_GROUPS:
        return naturally(counts), []
    by_size = sorted(counts, key=lambda group: (-counts[group], group))
    return naturally(by_size[: MOST_GROUPS - 1]), by_size[MOST_GROUPS - 1 :]


def maps(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the maps among which the reader can choose, the default first."""
    distances, n_samples = comparison.distances, len(comparison.names)
    coordinates, shares = scaled(distances)
    choices = [
        {
            "label": "all distances (classical scaling)",
            "axes": [f"axis {i + 1} ({100 * share:.0f}% of the variation)" for i, share in enumerate(shares)],
            "x": rounded(coordinates[:, 0]),
            "y": rounded(coordinates[:, 1]),
        }
    ]
    if 3 <= n_samples <= MOST_MAPPED:
        steps = diffusion_map(distances, 2, k=min(10, n_samples - 1))
        choices.append(
            {
                "label": "near neighbors (diffusion map)",
                "axes": ["diffusion axis 1", "diffusion axis 2"],
                "x": rounded(steps[:, 0]),
                "y": rounded(steps[:, 1]),
            }
        )
    return choices


def scaled(distances: Float64) -> tuple[Float64, Float64]:
    """Return coordinates by classical scaling, ``(n_samples, 2)``, and the share of the variation on each axis.

    If there are too many samples, an evenly spaced subset is scaled, and the other samples are placed by their
    distances to the subset (de Silva and Tenenbaum 2004). The shares then refer to the subset.
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
    """Return the order of at most 1,000 samples in the heatmap, and their distances in this order."""
    chosen = _evenly(np.arange(len(comparison.names)), MOST_ROWS)
    shown = chosen[leaf_order(comparison.distances[np.ix_(chosen, chosen)])]
    distances = comparison.distances[np.ix_(shown, shown)]
    # Use quantiles, because zeros on the diagonal and a few outliers would take up most of the colors.
    colors = rounded(np.quantile(distances[np.triu_indices(len(distances), 1)], COLOR_RANGE))
    return (
        {"order": shown.tolist(), "range": colors, "colors": list(NEAR_TO_FAR)}
        | packed(distances)
        | _intervals(comparison, shown)
    )


def _intervals(comparison: Comparison, shown: Int64) -> dict[str, Any]:
    """Return which pairs of shown samples are not distinguishable, as bits, and the intervals of all pairs."""
    intervals = comparison.intervals
    if intervals is None:
        return {"alike": None}
    inside = np.ix_(shown, shown)
    alike = ~intervals.distinguishable[inside][np.triu_indices(len(shown), 1)]
    return {
        "alike": base64.b64encode(np.packbits(alike).tobytes()).decode(),
        "lower": packed(intervals.lower[inside]),
        "upper": packed(intervals.upper[inside]),
        "confidence": 100 * intervals.confidence,
    }


def scale_shares(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the share of each scale in the mean distance, finest scale first."""
    pairs = zip(comparison.model.scales_.tolist(), comparison.scale_shares.tolist(), strict=True)
    return [{"scale": scale, "steps": 2**scale, "share": share} for scale, share in pairs]


def _evenly(values: Int64, most: int) -> Int64:
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).round().astype(np.int64)]


def shared_data(study: Study) -> dict[str, Any]:
    """Return data that several figures of the page share: the samples, and the variables for their colors."""
    comparison = study.comparison
    distances, indices = comparison.nearest(1)
    choices = colorings(study)
    return {
        "names": list(comparison.names),
        "cells": comparison.sizes.tolist(),
        "nearest": indices[:, 0].tolist(),
        "nearest_distance": rounded(distances[:, 0]),
        "colorings": choices,
        "first": first_coloring(study, choices),
    }


def sample_map(study: Study, shared: dict[str, Any]) -> Section:
    """Return the section with the interactive map of the samples."""
    choices, (paired, pairs) = maps(study.comparison), study.paired_samples()
    html = fill_part(
        "figures.html",
        "map",
        maps=[one["label"] for one in choices],
        colorings=shared["colorings"],
        first=shared["first"],
        paired=paired,
    )
    return Section("map", "Map of the samples", html, {"maps": choices, "pairs": pairs}, picture=True)


def clustered_distances(study: Study, shared: dict[str, Any]) -> Section:
    """Return the section with the heatmap of all distances."""
    data = heatmap(study.comparison)
    html = fill_part(
        "figures.html",
        "heatmap",
        n_samples=len(study.comparison.names),
        n_shown=data["size"],
        colorings=shared["colorings"],
        first=shared["first"],
        pairs=pair_counts(study.comparison),
    )
    return Section("heatmap", "Clustered distances", html, data, picture=True)


def statistics(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the section with the table of findings."""
    rows = [row(finding) for finding in study.findings]
    by = "" if study.design is None else study.design.by
    html = fill("statistics.html", rows=rows, block=study.block, terms=term_rows(study.design), by=by)
    tables = {"statistics": findings_table(rows)} if rows else {}
    if study.design is not None:
        tables["terms"] = terms_table(study.design)
    return Section("statistics", "Associations with the distances", html, tables=tables)


def scales(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the section with the contribution of each scale."""
    shares = scale_shares(study.comparison)
    largest = max(share["share"] for share in shares) or 1.0
    html = fill_part("figures.html", "scales", shares=shares, largest=largest, reason=study.comparison.max_scale_reason)
    data = {"steps": [share["steps"] for share in shares], "shares": rounded([share["share"] for share in shares])}
    table = table_text(["steps", "share_of_the_mean_distance"], [[one["steps"], one["share"]] for one in shares])
    return Section("scales", "Contribution of each scale", html, data, tables={"scales": table}, picture=True)


def graph(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the section with the diagnosis of the graph."""
    diagnosis = study.comparison.diagnosis
    html = fill_part("facts.html", "graph", diagnosis=diagnosis, landmarks=study.comparison.landmark_agreement)
    return Section("graph", "Graph diagnosis", html)


def method(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the section with the methods text."""
    paragraphs = methods(study)
    html = fill_part("facts.html", "methods", paragraphs=paragraphs, references=references(paragraphs))
    return Section("methods", "Methods text", html)


def provenance(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the section with the provenance of the results."""
    record = plain(recorded(study))
    html = fill_part("facts.html", "provenance", record=record, text=json.dumps(record, indent=2, ensure_ascii=False))
    return Section("provenance", "Provenance", html)


def samples(study: Study, shared: dict[str, Any]) -> Section:
    """Return the section with the table of all samples and their full names."""
    table = study.variables
    values = [[_text(value) for value in table.iloc[:, i].tolist()] for i in range(table.shape[1])]
    intervals = study.comparison.intervals
    rows = [
        (name, shared["cells"][i], shared["names"][shared["nearest"][i]], shared["nearest_distance"][i],
         _interval(intervals, i, shared["nearest"][i]), [column[i] for column in values])
        for i, name in enumerate(shared["names"])
    ]  # fmt: skip
    confidence = None if intervals is None else f"{100 * intervals.confidence:g}"
    columns = [str(name) for name in table]
    html = fill_part(
        "facts.html", "samples", columns=columns, rows=rows, confidence=confidence, outliers=study.outliers()
    )
    return Section(
        "samples", "All samples", html, tables={"samples": _samples_table(study, columns, shared["nearest"])}
    )


def _samples_table(study: Study, columns: list[str], nearest: Sequence[int]) -> str:
    """Return the table of all samples as CSV, with all digits."""
    comparison, intervals = study.comparison, study.comparison.intervals
    header = ["sample", "cells", "nearest_sample", "distance"]
    header += [] if intervals is None else ["lower", "upper", "distinguishable"]
    values = [study.variables.iloc[:, i].tolist() for i in range(len(columns))]
    rows = []
    for i, (name, j) in enumerate(zip(comparison.names, nearest, strict=True)):
        sure = (
            [] if intervals is None else [intervals.lower[i, j], intervals.upper[i, j], intervals.distinguishable[i, j]]
        )
        own = [None if is_missing(column[i]) else column[i] for column in values]
        rows.append([name, int(comparison.sizes[i]), comparison.names[j], comparison.distances[i, j], *sure, *own])
    return table_text([*header, *columns], rows)


def _interval(intervals: Intervals | None, i: int, j: int) -> dict[str, Any] | None:
    if intervals is None:
        return None
    return {
        "lower": intervals.lower[i, j],
        "upper": intervals.upper[i, j],
        "apart": bool(intervals.distinguishable[i, j]),
    }


def _text(value: Any) -> str | None:
    if is_missing(value):
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


PARTS = (sample_map, clustered_distances, statistics, scales, graph, method, provenance, samples)


def noise_sections(study: Study) -> list[Section]:
    """Return the section on sampling noise, or nothing if the study has not assessed noise."""
    comparison = study.comparison
    noise = comparison.uncertainty
    if noise is None:
        return []
    html = fill_part(
        "facts.html",
        "noise",
        corrected=comparison.bias == "corrected",
        floors=named_floors(comparison),
        retrieval=None if noise.retrieval is None else f"{100 * noise.retrieval:.0f}",
        pairs=pair_counts(comparison),
        sentences=study.about_noise,
    )
    return [Section("noise", "Sampling noise", html, after="heatmap")]


def cell_sections(study: Study) -> list[Section]:
    """Return the section on cell types, or nothing if the study has no contrast."""
    contrast = study.contrast
    if contrast is None:
        return []
    shown, rest = contrast.types[:MOST_TYPES], contrast.types[MOST_TYPES:]
    largest = max((cell_type.share for cell_type in shown), default=0.0)
    shares = [_parts(cell_type, contrast) for cell_type in shown]
    low, high = min(0.0, *map(min, shares)), max(0.0, *map(max, shares))
    span = (high - low) or 1.0
    html = fill(
        "cells.html",
        contrast=contrast,
        rows=[
            _row(cell_type, contrast, largest)
            | {name: _bar(part, low, span) for name, part in zip(("number_bar", "state_bar"), pair, strict=True)}
            for cell_type, pair in zip(shown, shares, strict=True)
        ],
        zero=f"{-100 * low / span:.2f}",
        rest={"count": len(rest), "share": _percent(sum(cell_type.share for cell_type in rest))} if rest else None,
        level=f"{100 * LEVEL:.0f}%",
        group=shortened(contrast.group, 40),
        reference=shortened(contrast.reference, 40),
        pale=_pale(contrast),
        drivers=_top_drivers(contrast),
        drivers_file="drivers.csv",
        others=study.contrasts[1:],
        omnibus=study.omnibus,
        listed=LISTED,
        tested="" if contrast.drivers is None else contrast.drivers.describe(),
    )
    data = {
        "types": [cell_type.name for cell_type in shown],
        "numbers": rounded([number for number, _ in shares]),
        "states": rounded([state for _, state in shares]),
        "sure_numbers": [bool(cell_type.direction) for cell_type in shown],
        "sure_states": [cell_type.moved for cell_type in shown],
        "colors": list(NUMBER_AND_STATE),
        "pale": _pale(contrast),
    }
    tables = {"cells": table_text(*cell_type_table(study.contrasts))}
    sure = _shown_drivers(contrast)
    if sure:
        tables["drivers"] = table_text(list(sure[0]), [list(one.values()) for one in sure[:MOST_DRIVERS]])
    return [Section("cells", "Which cells differ", html, data, tables=tables, picture=True)]


def cell_map_sections(study: Study, shared: dict[str, Any]) -> list[Section]:
    """Return the section with the map of the cells, or nothing if the study has none."""
    cells = study.cell_map
    if cells is None:
        return []
    choices: list[dict[str, Any]] = []
    finding, calls = None, study.cell_calls
    if calls is not None and cells.signs is not None:
        at, pairs = "with" if calls.trend else "in", zip(calls.groups, (calls.more, calls.less), strict=True)
        shares = (f"denser {at} {shortened(name, 40)}: {percent(share)} of the cells" for name, share in pairs)
        choices.append({
            "name": "cells that differ", "kind": "calls", "codes": np.where(cells.signs < 0, 2, cells.signs).tolist(),
            "groups": ["not called", *shares],
        })  # fmt: skip
    if cells.witness is not None:
        choices.append({"name": "where the groups differ", "kind": "witness", "values": rounded(cells.witness)})
        finding = next((one for one in study.findings if one.variable == cells.variable), None)
    if cells.types is not None:
        names, codes = list(cells.type_names), cells.types
        counts = np.bincount(codes, minlength=len(names))
        # As in the composition, each of the most common types has its own color, and all other types share one color.
        order = sorted(range(len(names)), key=lambda code: (-counts[code], names[code]))
        kept = order[: MOST_COLORED if len(order) > MOST_COLORED + 1 else MOST_COLORED + 1]
        place = {code: i for i, code in enumerate(kept)}
        rest = len(order) - len(kept)
        choices.append({
            "name": "cell type", "kind": "types", "codes": [place.get(code, len(kept)) for code in codes.tolist()],
            "groups": [names[code] for code in kept] + ([f"{OTHER} ({counted(rest, 'type')})"] if rest else []),
        })  # fmt: skip
    choices += [
        {"name": one["name"], "kind": "sample", "place": i}
        for i, one in enumerate(shared["colorings"])
        if one["kind"] == "groups"
    ]
    html = fill_part(
        "figures.html", "cellmap", cells=cells, n_cells=int(study.comparison.sizes.sum()), choices=choices,
        finding=finding, computed=cells.name in ("pca", "umap"), calls=calls,
    )  # fmt: skip
    data = {
        "title": cells.title,
        "x": rounded(cells.places[:, 0]),
        "y": rounded(cells.places[:, 1]),
        "samples": cells.samples.tolist(),
        "groups": list(cells.groups),
        "choices": choices,
        "colors": list(TYPE_COLORS),
    }
    return [Section("cellmap", "Map of the cells", html, data, after="statistics", picture=True)]


def _pale(contrast: CellContrast) -> str:
    """Return the meaning of a pale bar."""
    return "not called different" if contrast.no_calls else "not significant"


def _parts(cell_type: CellType, contrast: CellContrast) -> tuple[float, float]:
    """Return the contributions of abundance and of state as shares of the distance."""
    whole = contrast.distance or 1.0
    return cell_type.abundance / whole, cell_type.state / whole


def _bar(part: float, low: float, span: float) -> tuple[str, str]:
    """Return the left end and the width of a bar that begins or ends at zero, in percent of the available width."""
    return f"{100 * (min(part, 0.0) - low) / span:.2f}", f"{100 * abs(part) / span:.2f}"


def cell_type_table(contrasts: Sequence[CellContrast]) -> tuple[list[str], list[list[Any]]]:
    """Return the table of cell types with all digits, one contrast after the other: names of columns, and rows."""
    named = [
        {"cell_type": cell_type.name}
        | _sides(contrast)
        | numbers
        | {"ratio": cell_type.ratio, "note": contrast.no_calls}
        for contrast in contrasts
        for cell_type, numbers in zip(contrast.types, contrast.rows(), strict=True)
    ]
    kept = [name for name in named[0] if name != "note" or any(each[name] for each in named)]
    return kept, [[each[name] for name in kept] for each in named]


def driver_rows(contrasts: Sequence[CellContrast]) -> list[dict[str, Any]]:
    """Return one row of named numbers for every significant feature in every cell type, and for the first others."""
    return [
        {"cell_type": row["cell_type"]} | _sides(contrast) | row
        for contrast in contrasts
        if contrast.drivers is not None
        for row in contrast.drivers.rows(LISTED)
    ]


def _sides(contrast: CellContrast) -> dict[str, str]:
    """Return the columns that name a contrast in a table."""
    return {"group": contrast.group, "reference": contrast.reference}


def composition_sections(study: Study, shared: dict[str, Any], order: Sequence[int]) -> list[Section]:
    """Return the section on the composition of samples, or nothing without cell types.

    Parameters
    ----------
    study, shared
        The study, and data from `shared_data`.
    order
        Indices of the samples to show, ordered by similarity.
    """
    if study.composition is None:
        return []
    largest = study.composition.largest(MOST_COLORED)
    n_types, n_named = len(study.composition.types), len(largest.types)
    html = fill_part(
        "figures.html",
        "composition",
        annotation=study.composition.annotation,
        colorings=shared["colorings"],
        first=shared["first"],
        n_samples=len(study.comparison.names),
        n_shown=len(order),
        n_types=n_types,
        n_joined=n_types - n_named + 1 if n_types > n_named else 0,
    )
    data = {
        "annotation": largest.annotation,
        "types": list(largest.types),
        "colors": list(TYPE_COLORS),
        "rest": n_types > n_named,
        "shares": [rounded(largest.shares[i]) for i in order],
    }
    after = "statistics" if study.contrast is None else "cells"
    table = table_text(*composition_table(study.comparison.names, study.composition))
    return [Section("composition", "Cell-type composition", html, data, after, {"composition": table}, picture=True)]


def composition_table(names: Sequence[str], composition: SampleComposition) -> tuple[list[str], list[list[Any]]]:
    """Return the share of every cell type in every sample: names of columns, and rows."""
    # Round the shares, because the last digits of a sum of many small shares are rounding errors.
    rounded_shares = composition.shares.round(12).tolist()
    rows = [[name, *shares] for name, shares in zip(names, rounded_shares, strict=True)]
    return ["sample", *composition.types], rows


def _state_words(cell_type: CellType) -> str:
    if not cell_type.in_group or not cell_type.in_reference:
        return "nothing to compare"
    return "different state" if cell_type.moved else cell_type.state_limit or "no significant change in state"


def _top_drivers(contrast: CellContrast) -> list[dict[str, Any]]:
    """Return the most significant differences of the main types, or the largest ones if no test is possible."""
    sure, shown = _shown_drivers(contrast), []
    for name in [cell_type.name for cell_type in contrast.types][:MOST_DRIVEN]:
        own = [row for row in sure if row["cell_type"] == name]
        shown += [
            {
                "type": name if place == 0 else "",
                "feature": row["feature"],
                "mark": MARKS[_direction(row)],
                "direction": _direction(row) or "same",
                "means": f"{number(row['in_group'])} vs. {number(row['in_reference'])}",
                "difference": number(row["difference"]),
                "size": number(row["standardized"]),
                "q": row["q_value"],
            }
            for place, row in enumerate(own[:MOST_FEATURES])
        ]
    return shown


def _shown_drivers(contrast: CellContrast) -> list[dict[str, Any]]:
    """Return the significant rows."""
    return [row for row in driver_rows([contrast]) if row["q_value"] <= LEVEL]


def _direction(row: Mapping[str, Any]) -> str:
    """Return "more" or "less" if a feature differs significantly, otherwise an empty text."""
    return "" if row["q_value"] > LEVEL else "more" if row["difference"] > 0 else "less"


def _row(cell_type: CellType, contrast: CellContrast, largest: float) -> dict[str, Any]:
    """Return the table row of a cell type, in words; p-values replace q-values if no significance is reported."""
    none = bool(contrast.no_calls)
    # Without a difference between the groups, contributions are noise.
    parts = [_percent(part) if contrast.differs else "" for part in (cell_type.share, *_parts(cell_type, contrast))]
    return {
        "name": cell_type.name,
        "cells": cell_type.cells,
        "share": parts[0],
        # A bar cannot have a negative width; the number next to it shows the sign.
        "width": f"{100 * max(cell_type.share, 0.0) / largest:.1f}" if largest > 0 and contrast.differs else "0",
        "direction": cell_type.direction or "same",
        "mark": MARKS[cell_type.direction],
        "number": "" if none else cell_type.number_words(),
        "abundance": parts[1],
        "abundance_q": cell_type.abundance_p if none else cell_type.abundance_q,
        "moved": cell_type.moved,
        "state_words": "" if none else _state_words(cell_type),
        "state": parts[2],
        "state_q": cell_type.state_p if none else cell_type.state_q,
        "in_group": _percent(cell_type.in_group),
        "in_reference": _percent(cell_type.in_reference),
    }


def _percent(share: float) -> str:
    """Return a share in percent, with a typographic minus, and with one decimal below 10%."""
    value = 100 * share
    text = f"{value:.1f}" if 0 < abs(value) < 9.95 else f"{value:.0f}"
    return ("0" if float(text) == 0 else text.replace("-", "\u2212")) + "%"


def render(study: Study, *, title: str | None = None, extra_sections: Sequence[Section] = ()) -> str:
    """Return the report of a study as HTML; needs plotly and jinja2 (extra ``cohort``).

    The page is self-contained: it loads nothing, and its security policy forbids loading.

    Parameters
    ----------
    study
        Study from `heatmover.study.study.study_cohort` or `heatmover.study.study.study_comparison`.
    title
        Heading of the page; default: the name of the input.
    extra_sections
        Additional sections, each placed after the section that its ``after`` names.

    Returns
    -------
    str
        HTML, to be written as UTF-8 without changing line ends.

    Examples
    --------
    >>> import heatmover as hm
    >>> from heatmover.study.study import study_comparison
    >>> data = hm.datasets.cohort(8, cells_per_sample=40)
    >>> page = render(study_comparison(hm.compare(data.points, data.labels)), title="Eight <samples>")
    >>> "<h1>Eight &lt;samples&gt;</h1>" in page
    True
    """
    shared = shared_data(study)
    parts = [part(study, shared) for part in PARTS]
    order = next(part.data["order"] for part in parts if part.key == "heatmap")
    further = [
        *noise_sections(study), *cell_sections(study), *composition_sections(study, shared, order),
        *cell_map_sections(study, shared),
    ]  # fmt: skip
    sections = _in_order(parts, [*further, *extra_sections])
    scripts = {"plotly": _plotly(), "own": static("report.js")}
    page = fill(
        "page.html",
        title=title or _default_title(study),
        headline=study.headline(),
        study=study,
        before=BEFORE,
        cautions=cautions(study),
        sections=sections,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=static("report.css"),
        scripts=scripts,
        digests=[digest(script) for script in scripts.values()],
        data=script_json(
            {
                "shared": shared,
                "sections": {part.key: part.data for part in sections},
                "tables": {name: text for part in sections for name, text in part.tables.items()},
            }
        ),
    )
    # Badly decoded file names contain lone surrogates, which cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _in_order(sections: list[Section], extra: Sequence[Section]) -> list[Section]:
    """Insert each additional section after the section named by its ``after``, and return all sections."""
    for further in extra:
        keys = [section.key for section in sections]
        if further.key in keys or further.after not in keys:
            raise InvalidInputError(
                f"a new section after one of {', '.join(keys)}", f"{further.key!r} after {further.after!r}"
            )
        sections.insert(keys.index(further.after) + 1, further)
    return sections


def _default_title(study: Study) -> str:
    source = study.record.input
    return str(source["name"]) if source else TITLE


@cache
def _plotly() -> str:
    """Return plotly.js in a form that is safe in a script element."""
    offline = import_extra("plotly.offline", package="plotly", extra="cohort")
    # Browsers read every line end as a line feed, and the hash in the security policy must match what they read.
    script = str(offline.get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")
    return legal_script(script).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def write_report(
    study: Study, path: str | os.PathLike[str], *, title: str | None = None, extra_sections: Sequence[Section] = ()
) -> None:
    """Write the report of a study; needs plotly and jinja2 (extra ``cohort``).

    Parameters
    ----------
    study
        Study from `heatmover.study.study.study_cohort` or `heatmover.study.study.study_comparison`.
    path
        Path of the page; an existing file is replaced atomically.
    title, extra_sections
        As in `render`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> from heatmover.study.study import study_comparison
    >>> data = hm.datasets.cohort(8, cells_per_sample=40)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> write_report(study_comparison(hm.compare(data.points, data.labels)), path)
    >>> path.read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    page = render(study, title=title, extra_sections=extra_sections)
    # Line ends must not change, because the security policy contains hashes of the scripts.
    with replacing(path, encoding="utf-8", newline="") as file:
        file.write(page)


def report_comparison(
    comparison: Comparison,
    path: str | os.PathLike[str],
    variables: Mapping[str, Any] | Any | None = None,
    *,
    blocks: Sequence[object] | None = None,
    cells: Mapping[str, Any] | Any | None = None,
    title: str | None = None,
    extra_sections: Sequence[Section] = (),
    n_permutations: int = 999,
    random_state: int = 0,
) -> Study:
    """Test sample metadata and write the report. `Comparison.report` calls this function.

    Parameters
    ----------
    comparison
        Comparison from `heatmover.compare`.
    path, title, extra_sections
        As in `write_report`.
    variables, blocks, cells, n_permutations, random_state
        As in `heatmover.study.study.study_comparison`.

    Returns
    -------
    Study
        The study that the report shows.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=40, effect=4.0)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> condition = {"condition": data.annotations["condition"]}
    >>> report_comparison(hm.compare(data.points, data.labels), path, condition)
    Study(Samples differ by condition (PERMANOVA R2 = ...%, p = ...).)
    """
    study = study_comparison(
        comparison, variables, blocks=blocks, cells=cells, n_permutations=n_permutations, random_state=random_state
    )
    write_report(study, path, title=title, extra_sections=extra_sections)
    return study
