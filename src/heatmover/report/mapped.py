"""Render samples mapped onto an atlas as one HTML page and write it; `Mapped.report` calls it by `_base.handed`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from heatmover._base.files import replacing
from heatmover._base.types import Bool, Float64
from heatmover._base.validation import check_integer
from heatmover._base.version import __version__
from heatmover._base.words import counted, percent
from heatmover.atlas.atlas import Mapped
from heatmover.report.markup import fill, number, shortened, static
from heatmover.study.drawing.map import MOST_NAMES, place_names
from heatmover.study.drawing.style import COLORS, MISSING, NAME_LETTERS, NEAR_TO_FAR, DrawnVariable, read_variable

# Size of the map in SVG units, and width of its margin.
WIDTH, HEIGHT, EDGE = 800.0, 520.0, 42.0
# Half the width of markers of new samples and of reference samples. If there are more than ROOMY reference samples,
# their markers shrink with the square root of the number of samples, as in `drawing.map`.
NEW, OLD, ROOMY = 8.0, 5.0, 60
# Height of a line of text on the map, and width of a bold letter; few letters are wider.
LINE, LETTER = 16.0, 8.6
# Outlines of markers around the origin, from -1 to 1; an empty outline means a circle. Shapes repeat the information of
# colors.
SHAPES = (
    "",
    "M0,-1.15L1.1,0.9L-1.1,0.9Z",
    "M-0.9,-0.9L0.9,-0.9L0.9,0.9L-0.9,0.9Z",
    "M0,1.15L1.1,-0.9L-1.1,-0.9Z",
    "M0,-1.25L1.25,0L0,1.25L-1.25,0Z",
)
# Largest numbers of samples, variables and features in tables, so that they stay readable.
MOST_SAMPLES, MOST_VARIABLES, MOST_FEATURES = 200, 12, 5
VERDICTS = {True: ("yes", "covered"), False: ("missed", "NOT COVERED"), None: ("no", "no verdict")}


def report_mapped(
    mapped: Mapped,
    path: str | os.PathLike[str],
    *,
    predict: Sequence[str] | None = None,
    k: int = 10,
    title: str | None = None,
    n_bootstrap: int = 100,
    random_state: int = 0,
) -> None:
    """Write the page on mapped samples; `Mapped.report` calls this function. Needs jinja2 (extra ``cohort``).

    Parameters
    ----------
    mapped
        Mapped samples from `Atlas.map`.
    path
        Path of the page; an existing file is replaced atomically.
    predict, k, title, n_bootstrap, random_state
        As in `render_mapped`.
    """
    page = render_mapped(mapped, predict=predict, k=k, title=title, n_bootstrap=n_bootstrap, random_state=random_state)
    with replacing(path, encoding="utf-8", newline="") as file:
        file.write(page)


def render_mapped(
    mapped: Mapped,
    *,
    predict: Sequence[str] | None = None,
    k: int = 10,
    title: str | None = None,
    n_bootstrap: int = 100,
    random_state: int = 0,
) -> str:
    """Return the page on mapped samples as HTML.

    The page is self-contained: it loads nothing and runs no script, and its security policy forbids both.

    Parameters
    ----------
    mapped
        Mapped samples from `Atlas.map`.
    predict
        Names of the reference's variables to predict; the first variable colors the map. None: all numeric variables,
        and all variables with groups of several samples.
    k
        Number of nearest reference samples to show and to predict from.
    title
        Heading of the page.
    n_bootstrap
        Number of bootstrap replicates for the intervals of the distances; 0 leaves the intervals out.
    random_state
        Seed of the replicates.

    Returns
    -------
    str
        HTML, to be written as UTF-8.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=40, effect=4.0)
    >>> atlas = hm.build_atlas(data.points, data.labels, variables={"condition": data.annotations["condition"]})
    >>> page = render_mapped(atlas.map(data.points[:60], "<today>"), n_bootstrap=20)
    >>> "&lt;today&gt;" in page, "<today>" in page
    (True, False)
    """
    n_reference = len(mapped.reference.names)
    count = min(check_integer("k", k, minimum=1), max(n_reference - 1, 1))
    chosen = tuple(_predictable(mapped, count)) if predict is None else tuple(predict)
    n_bootstrap = check_integer("n_bootstrap", n_bootstrap, minimum=0)
    sure = mapped.intervals(n_bootstrap=n_bootstrap, random_state=random_state) if n_bootstrap else None
    answers = [(name, mapped.predict(name, count)) for name in chosen]
    page = fill(
        "mapped.html",
        title=title or f"{counted(len(mapped.names), 'sample')} on an atlas of {counted(n_reference, 'sample')}",
        headline=_headline(mapped),
        version=__version__,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        style=static("report.css"),
        mapped=mapped,
        n_shown=min(len(mapped.names), MOST_SAMPLES),
        n_cells=int(mapped.sizes.sum()),
        n_reference=n_reference,
        coverage=list(_coverage(mapped)),
        expected=percent(mapped.coverage.expected),
        picture=_picture(mapped, chosen[0] if chosen else None),
        neighbors=list(_neighbors(mapped, count, sure)),
        variables=_shown_variables(mapped),
        intervals=sure is not None,
        k=count,
        predictions=[_prediction(mapped, name, answer) for name, answer in answers],
        differences=list(_differences(mapped, answers)),
        number=number,
        digits=_digits,
        missed=False in mapped.coverage.covered,
    )
    # Badly decoded file names contain lone surrogates, which cannot be written as UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def _predictable(mapped: Mapped, k: int) -> Iterator[str]:
    """Yield the variables with more than k values that are numbers, or groups of two or more samples on average."""
    for name, values in mapped.reference.variables.items():
        present = [value for value in values if value is not None]
        different = {str(value) for value in present}
        if len(present) > k and len(different) > 1 and (_are_numbers(present) or 2 * len(different) <= len(present)):
            yield name


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _headline(mapped: Mapped) -> str:
    covered = mapped.coverage.covered
    if None in covered:
        return "The atlas has too few reference samples to assess coverage."
    missed = [name for name, verdict in zip(mapped.names, covered, strict=True) if not verdict]
    if not missed:
        return f"The atlas covers {'the sample' if len(covered) == 1 else f'all {len(covered):,} samples'}."
    named = ", ".join(shortened(name, 40) for name in missed[:3])
    more = f" and {len(missed) - 3:,} more" if len(missed) > 3 else ""
    results = f"Results for {'this sample' if len(missed) == 1 else 'these samples'} may be wrong."
    return f"NOT COVERED: {named}{more}. {results}"


def _coverage(mapped: Mapped) -> Iterator[dict[str, Any]]:
    coverage = mapped.coverage
    for row, name in enumerate(mapped.names[:MOST_SAMPLES]):
        style, words = VERDICTS[coverage.covered[row]]
        yield {
            "name": name,
            "cells": int(mapped.sizes[row]),
            "style": style,
            "verdict": words,
            "far": percent(float(coverage.shares[row])),
            "n_far": int(coverage.n_far[row]),
            "p": float(coverage.p_values[row]),
        }


def _shown_variables(mapped: Mapped) -> list[str]:
    return list(mapped.reference.variables)[:MOST_VARIABLES]


def _neighbors(mapped: Mapped, k: int, sure: Any | None) -> Iterator[dict[str, Any]]:
    """Yield each sample with its nearest reference samples: distances, their confidence intervals, and metadata."""
    reference, columns = mapped.reference, _shown_variables(mapped)
    distances, indices = mapped.nearest(k)
    for row, name in enumerate(mapped.names[:MOST_SAMPLES]):
        near = []
        for distance, i in zip(distances[row].tolist(), indices[row].tolist(), strict=True):
            about = None
            if sure is not None:
                lower, upper, apart = (float(each[row, i]) for each in sure)
                about = {"lower": lower, "upper": upper, "apart": bool(apart)}
            values = [reference.variables[column][i] for column in columns]
            near.append({"name": reference.names[i], "distance": distance, "interval": about, "known": values})
        yield {"name": name, "near": near}


def _prediction(mapped: Mapped, variable: str, answer: Any) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "value": number(value) if answer.is_number else value,
            "vote": None if answer.is_number else percent(float(answer.votes[row])),
            "chance": None if answer.is_number else percent(float(answer.chances[row])),
        }
        for row, (name, value) in enumerate(zip(mapped.names[:MOST_SAMPLES], answer.values[:MOST_SAMPLES], strict=True))
    ]
    accuracy = number(answer.accuracy) if answer.is_number else percent(answer.accuracy)
    return {"variable": variable, "is_number": answer.is_number, "accuracy": accuracy, "rows": rows}


def _digits(value: float, count: int) -> str:
    """Return a number with ``count`` significant digits, including trailing zeros, so that columns are uniform."""
    return f"{value:#.{count}g}".rstrip(".")


def _differences(mapped: Mapped, answers: Sequence[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield how the cells of each sample differ from the predicted group of the sample, or from its nearest sample."""
    label = next(((name, answer) for name, answer in answers if not answer.is_number), None)
    for row, name in enumerate(mapped.names[:MOST_SAMPLES]):
        if label is None:
            nearest = mapped.reference.names[int(mapped.nearest(1)[1][row, 0])]
            contrast, other = mapped.explain(name), f"its nearest sample, {shortened(nearest, 40)}"
        else:
            variable, answer = label
            contrast = mapped.explain(name, answer.values[row], variable=variable)
            other = f"the samples with {shortened(variable, 40)} {shortened(answer.values[row], 40)}"
        # Summed over all scales, the witness is higher where the sample is denser than the other samples.
        both = contrast.masses.sum(axis=0)
        denser = contrast.witness > float(contrast.witness @ both) / float(both.sum())
        sides = [_side(mapped, contrast, word, side) for word, side in (("more", denser), ("less", ~denser))]
        yield {"name": name, "other": other, "parts": sides}


def _side(mapped: Mapped, contrast: Any, word: str, side: Bool) -> dict[str, Any]:
    """Return the shares of cells on one side, and the features in which contributing cells differ from all cells."""
    weights = np.where(side, np.maximum(contrast.contributions, 0.0), 0.0)
    own, theirs = (percent(float(masses[side].sum() / masses.sum())) for masses in contrast.masses)
    reference = mapped.reference
    centers = np.asarray(reference.nodes.centers, dtype=np.float64)
    usual = np.asarray(reference.measures.masses.mean(axis=0), dtype=np.float64).ravel()
    total = weights.sum()
    features: list[dict[str, str]] = []
    if total > 0:
        mean = usual @ centers / usual.sum()
        spread = np.sqrt(np.maximum(usual @ (centers - mean) ** 2 / usual.sum(), 0.0))
        away = np.divide(weights @ centers / total - mean, spread, out=np.zeros_like(mean), where=spread > 0)
        names = reference.dimensions
        furthest = np.argsort(-np.abs(away), kind="stable")[:MOST_FEATURES].tolist()
        features = [{"name": names[i], "size": f"{away[i]:+.1f}".replace("-", "\u2212")} for i in furthest]
    mark = "\u25b2" if word == "more" else "\u25bc"
    return {"word": word, "mark": mark, "own": own, "theirs": theirs, "features": features}


def _picture(mapped: Mapped, variable: str | None) -> dict[str, Any]:
    """Return the map: positions, colors and shapes of reference samples and new samples, in SVG units."""
    reference = mapped.reference
    old, new = reference.coordinates, mapped.coordinates()
    every = np.vstack([old, new])
    low, high = every.min(axis=0), every.max(axis=0)
    # Use the same unit in both directions, so that distances are not distorted.
    unit = float(max((high[0] - low[0]) / (WIDTH - 2 * EDGE), (high[1] - low[1]) / (HEIGHT - 2 * EDGE))) or 1.0
    middle = (low + high) / 2
    x, y = WIDTH / 2 + (every[:, 0] - middle[0]) / unit, HEIGHT / 2 - (every[:, 1] - middle[1]) / unit
    about = None if variable is None else read_variable(list(reference.variable(variable)), reference.names, variable)
    colors, legend = _colored(about, len(old))
    size = OLD * min(1.0, float(np.sqrt(ROOMY / len(old))) if len(old) else 1.0)
    dots = [
        {"x": f"{x[i]:.1f}", "y": f"{y[i]:.1f}", "name": name, "color": colors[i][0], "shape": SHAPES[colors[i][1]]}
        for i, name in enumerate(reference.names)
    ]
    shown = mapped.names[:MOST_SAMPLES]
    stars = [
        {"x": f"{x[i]:.1f}", "y": f"{y[i]:.1f}", "name": name, "label": label}
        for i, (name, label) in enumerate(zip(shown, _labels(shown, x, y, len(old)), strict=True), start=len(old))
    ]
    return {
        "width": WIDTH, "height": HEIGHT, "dots": dots, "stars": stars, "variable": variable, "legend": legend,
        "size": f"{size:.2f}", "star": f"{NEW:.2f}", "diamond": SHAPES[4],
    }  # fmt: skip


def _labels(names: Sequence[str], x: Float64, y: Float64, n_old: int) -> list[tuple[str, str] | None]:
    """Return the position of each new sample's name, or None where the name does not fit."""
    places = np.column_stack([x, y])
    places = np.vstack([places[n_old : n_old + len(names)], places[:n_old]])
    if len(places) > MOST_NAMES:
        return [None] * len(names)
    # Reference samples get a width that never fits: their points are obstacles, but their names are not written.
    sizes = np.full((len(places), 2), [2 * WIDTH, LINE])
    sizes[: len(names), 0] = [LETTER * len(shortened(name, NAME_LETTERS)) for name in names]
    offsets = place_names(places, sizes, radius=NEW, gap=NEW + 4, frame=(0, 0, WIDTH, HEIGHT))[: len(names)]
    # The baseline of text is a third of a line below its middle.
    return [None if np.isnan(dx) else (f"{dx:.1f}", f"{dy + LINE / 3:.1f}") for dx, dy in offsets.tolist()]


def _colored(variable: DrawnVariable | None, n_samples: int) -> tuple[list[tuple[str, int]], list[dict[str, str]]]:
    """Return the color and shape of each sample, and the legend."""
    if variable is None:
        return [(COLORS[0], 0)] * n_samples, []
    if variable.numbers is not None:
        return _shaded(variable.numbers)
    looks = [(COLORS[code], code % (len(SHAPES) - 1)) for code in range(len(COLORS) - 1)]
    gray = (MISSING, 0)
    # More colors would be hard to distinguish, so only the largest groups get a color of their own.
    largest = np.argsort(-variable.sizes, kind="stable")[: len(looks)].tolist()
    look_of = {code: looks[place] for place, code in enumerate(sorted(largest))}
    legend = [
        {"color": look_of[code][0], "shape": SHAPES[look_of[code][1]], "label": variable.groups[code]}
        for code in sorted(largest)
    ]
    if len(variable.groups) > len(looks) or variable.missing.any():
        legend.append({"color": gray[0], "shape": SHAPES[0], "label": "other or missing"})
    return [look_of.get(code, gray) for code in variable.codes.tolist()], legend


def _shaded(numbers: Float64) -> tuple[list[tuple[str, int]], list[dict[str, str]]]:
    present = ~np.isnan(numbers)
    low, high = float(numbers[present].min()), float(numbers[present].max())
    shades = NEAR_TO_FAR[-2::-1]  # from light to dark, without the lightest, which is hardly visible on white
    step = (high - low) / len(shades) or 1.0
    places = np.clip((np.where(present, numbers, low) - low) / step, 0, len(shades) - 1).astype(int)
    looks = [(shades[i], 0) if there else (MISSING, 0) for i, there in zip(places.tolist(), present, strict=True)]
    legend = [
        {"color": shades[0], "shape": SHAPES[0], "label": f"from {number(low)}"},
        {"color": shades[-1], "shape": SHAPES[0], "label": f"to {number(high)}"},
    ]
    if not present.all():
        legend.append({"color": MISSING, "shape": SHAPES[0], "label": "missing"})
    return looks, legend
