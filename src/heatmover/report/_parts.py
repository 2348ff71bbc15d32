"""The sections of the page, one function and one template each."""

from __future__ import annotations

import json
from typing import Any

from heatmover.analysis.study import Study
from heatmover.measures import is_missing
from heatmover.report._figures import heatmap, maps, nearest, scale_shares
from heatmover.report._findings import row
from heatmover.report._methods import methods, references
from heatmover.report._section import Section
from heatmover.report._templates import fill, plain, rounded
from heatmover.report._variables import colorings, first_coloring

__all__ = ["PARTS", "shared_data"]


def shared_data(study: Study) -> dict[str, Any]:
    """Return what several figures of the page share: the samples, and what to colour them by."""
    comparison = study.comparison
    distances, indices = nearest(comparison.distances)
    choices = colorings(study)
    return {
        "names": list(comparison.names),
        "cells": comparison.sizes.tolist(),
        "nearest": indices.tolist(),
        "nearest_distance": rounded(distances),
        "colorings": choices,
        "first": first_coloring(study, choices),
    }


def sample_map(study: Study, shared: dict[str, Any]) -> Section:
    """Return the interactive map of the samples."""
    found = maps(study.comparison)
    html = fill("map.html", maps=[one["label"] for one in found], colorings=shared["colorings"], first=shared["first"])
    return Section("map", "Map of the samples", html, {"maps": found})


def clustered_distances(study: Study, shared: dict[str, Any]) -> Section:
    """Return the heatmap of all distances."""
    data = heatmap(study.comparison)
    html = fill(
        "heatmap.html",
        n_samples=len(study.comparison.names),
        n_shown=data["size"],
        colorings=shared["colorings"],
        first=shared["first"],
    )
    return Section("heatmap", "All distances, clustered", html, data)


def statistics(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the table of findings."""
    html = fill("statistics.html", rows=[row(finding) for finding in study.findings], block=study.block)
    return Section("statistics", "What goes with the distances", html)


def scales(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return how much each scale contributes."""
    shares = scale_shares(study.comparison)
    largest = max(share["share"] for share in shares) or 1.0
    model = study.comparison.model
    html = fill("scales.html", shares=shares, largest=largest, reason=model.max_scale_reason_)
    return Section("scales", "From fine to coarse", html)


def graph(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the diagnosis of the graph."""
    diagnosis = study.comparison.diagnosis
    html = fill("graph.html", diagnosis=diagnosis, landmarks=study.comparison.landmark_loss)
    return Section("graph", "Health of the graph", html)


def method(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return the method in words."""
    paragraphs = methods(study)
    html = fill("methods.html", paragraphs=paragraphs, references=references(paragraphs))
    return Section("methods", "Methods, ready to paste", html)


def provenance(study: Study, shared: dict[str, Any]) -> Section:  # noqa: ARG001
    """Return where everything came from."""
    record = plain(study.plain())
    html = fill("provenance.html", record=record, text=json.dumps(record, indent=2, ensure_ascii=False))
    return Section("provenance", "Provenance", html)


def samples(study: Study, shared: dict[str, Any]) -> Section:
    """Return the table of all samples, with their full names."""
    table = study.variables
    values = [[_text(value) for value in table.iloc[:, i].tolist()] for i in range(table.shape[1])]
    rows = [
        (name, shared["cells"][i], shared["names"][shared["nearest"][i]], shared["nearest_distance"][i],
         [column[i] for column in values])
        for i, name in enumerate(shared["names"])
    ]  # fmt: skip
    return Section("samples", "All samples", fill("samples.html", columns=[str(name) for name in table], rows=rows))


def _text(value: Any) -> str | None:
    if is_missing(value):
        return None
    return f"{value:g}" if isinstance(value, float) else str(value)


PARTS = (sample_map, clustered_distances, statistics, scales, graph, method, provenance, samples)
