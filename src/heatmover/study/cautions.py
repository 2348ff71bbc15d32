"""Cautions and noise in words: what to know before one trusts a comparison, for studies and `heatmover doctor`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Int64, IntArray, Intp
from heatmover._base.words import counted, listed, percent, quoted, verb
from heatmover.cohort import Cohort
from heatmover.errors import Sentence, argument
from heatmover.study.comparison import Comparison
from heatmover.study.design_check import design_notes
from heatmover.study.examination import answers
from heatmover.study.parameters import StudyParameters

__all__ = [
    "MOST_CELLS",
    "NOISY",
    "SMALL_SAMPLE",
    "UNRELIABLE",
    "CellLook",
    "cell_cautions",
    "look_at",
    "named_floors",
    "noise_sentences",
    "pair_counts",
    "table_cautions",
    "unreliable",
]

# Halves that find each other less often than this say that single distances are mostly noise.
UNRELIABLE = 0.8
# Numbers of cells that differ by less than this factor, as a logarithm, make no difference; above, a variable that goes
# with them at this level is named.
UNEQUAL, CONFOUNDED = float(np.log(1.5)), 0.01
NOISY = (
    "Many halves of samples do not find their other half: which sample is the nearest is uncertain here, while groups "
    "of samples may differ surely. More cells help, and so may standardising if features have different units."
)


def named_floors(comparison: Comparison) -> list[dict[str, Any]]:
    """Return how far apart two equal samples would lie, of the smallest, the median and the largest number of cells."""
    assert comparison.uncertainty is not None
    floors = {cells: comparison.noise_floor(cells) for cells in comparison.uncertainty.typical_sizes}
    names = {1: ["every sample"], 2: ["smallest sample", "largest sample"]}
    names[3] = ["smallest sample", "median sample", "largest sample"]
    return [
        {"name": name, "cells": cells, "distance": f"{distance:.2g}"}
        for name, (cells, distance) in zip(names[len(floors)], floors.items(), strict=True)
    ]


def pair_counts(comparison: Comparison) -> dict[str, Any] | None:
    """Return how many pairs can be told apart, how many cannot, of how many; None without intervals."""
    intervals = comparison.intervals
    if intervals is None:
        return None
    pairs = intervals.told_apart[np.triu_indices(len(comparison.names), 1)]
    told = int(pairs.sum())
    return {
        "told": told,
        "alike": pairs.size - told,
        "all": pairs.size,
        "confidence": f"{100 * intervals.confidence:g}",
    }


def noise_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return how sure the distances are, in plain sentences with advice; nothing if noise was not assessed."""
    noise = comparison.uncertainty
    if noise is None:
        return ()
    floors = named_floors(comparison)
    listed = "; ".join(f"{floor['cells']:,} cells ({floor['name']}): {floor['distance']}" for floor in floors)
    median = float(np.median(comparison.distances[np.triu_indices(len(comparison.names), 1)]))
    kind = "corrected" if comparison.bias == "corrected" else "raw"
    sentences = [
        f"By noise alone two samples of one distribution would lie so far apart: {listed}. The median {kind} distance "
        f"here is {median:.2g}.",
    ]
    if noise.retrieval is not None:
        sentences.append(
            f"Every sample was cut into two random halves: {100 * noise.retrieval:.0f} % of the halves are nearest to "
            "their own other half, among those of all samples."
        )
    if noise.heterogeneity:
        sentences.append(noise.heterogeneity)
    pairs = pair_counts(comparison)
    if pairs is not None:
        sentences.append(
            f"{pairs['told']:,} of {pairs['all']:,} pairs can be told apart: the {pairs['confidence']} % interval of "
            f"their distance, each for itself, begins above zero{noise.by_luck}."
        )
    if noise.retrieval is not None:
        sentences.append(NOISY if unreliable(comparison) else "Most samples find themselves again: nothing to mend.")
    return tuple(sentences)


def unreliable(comparison: Comparison) -> bool:
    """Return whether halves of samples find each other too rarely."""
    noise = comparison.uncertainty
    return noise is not None and noise.retrieval is not None and noise.retrieval < UNRELIABLE


# So many cells tell the spread of features and the share of copies.
MOST_CELLS = 20_000
SMALL_SAMPLE = 30
# A raw measurement whose spread is so many times that of the others has another unit, or counts for all of them.
UNEQUAL_SPREAD = 10.0
# A raw measurement with more than this share of the variance decides the neighbors nearly alone: the area of
# glomeruli in pixels has 57 % of that of 14 features, of which most have less than a millionth.
DOMINANT = 0.5
# Cytometers count light up to 10^3 or more; logarithms and their relatives do not reach so far.
LINEAR_VALUES = 100.0
MANY_COPIES, MANY_DIMENSIONS = 0.05, 60
# By their names, variables of samples: if they vary within what is called a sample, this is several.
OF_SAMPLES = re.compile(r"condition|treat|stim|visit|time ?_?point|dose|disease|respon|sample|specimen|library")
SAMPLES = re.compile(r"^sample|sample(_?id|_?name)?$|specimen|library")


class CellLook(NamedTuple):
    """Figures of some cells: variance, largest value and constancy of each feature, and how many are copies.

    Examples
    --------
    >>> look = look_at(np.array([[0.0, 5.0], [2.0, 5.0], [2.0, 5.0]]))
    >>> look.constant, look.n_copies
    (array([False,  True]), 1)
    """

    variance: Float64
    largest: Float64
    constant: Bool
    n_copies: int
    copied: float


def look_at(points: npt.NDArray[Any], copies: Int64 | None = None) -> CellLook:
    """Return the figures of cells.

    Parameters
    ----------
    points
        ``(n_cells, n_dimensions)``.
    copies
        ``(n_cells,)``: how many cells each row stands for, if all rows differ. None: one each, some may be equal.
    """
    if copies is None:
        points, copies = np.unique(points, axis=0, return_counts=True)
    values, n_cells = points.astype(np.float64), int(copies.sum())
    largest, constant = values.max(axis=0), values.min(axis=0) == values.max(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the largest float nothing can be said
        mean = np.average(values, axis=0, weights=copies)
        variance = np.average((values - mean) ** 2, axis=0, weights=copies)
    variance[constant] = 0.0
    n_copies = n_cells - len(values)
    return CellLook(variance, largest, constant, n_copies, n_copies / n_cells)


def table_cautions(
    table: Any,
    chosen: Sequence[str],
    sizes: IntArray,
    asked: StudyParameters,
    *,
    blocks: Mapping[str, Sequence[object]] | None,
    adjust: Collection[str],
    bias: str,
) -> Iterator[str]:
    """Yield what the variables of the samples and the numbers of their cells say of a study.

    Parameters
    ----------
    table
        DataFrame with one row per sample.
    chosen
        Variables to examine, the most important first.
    sizes
        Cells of each sample that are compared, ``(n_samples,)``.
    asked
        How variables are read and tested.
    blocks
        What ties samples together, by name.
    adjust
        Names of covariates.
    bias
        Of the distances, as in `StudyParameters`.
    """
    readings = {"numeric": asked.numeric, "categorical": asked.categorical}
    yield from design_notes(table, chosen, blocks=blocks, adjust=adjust, **readings)
    logarithms = np.log(sizes.astype(np.float64))
    if logarithms.max() - logarithms.min() < UNEQUAL:
        return
    # Few cells alone make a sample look far from all others, so that a difference may be one of numbers.
    apart = np.abs(np.subtract.outer(logarithms, logarithms))
    columns = {name: table[name].tolist() for name in chosen}
    read = [name for name in asked.numeric if name in columns]
    end = "the correction of distances allows for it"
    if bias != "corrected":
        end = f"few cells alone make distances large; {argument('bias', 'corrected')} makes up for it"
    for variable, p_value in answers(apart, columns, blocks=blocks, numeric=read, **asked.tests).items():
        if p_value <= CONFOUNDED:
            yield Sentence(f"The number of cells goes with {quoted(variable)} (p = {p_value:.2g}): {end}.")


def cell_cautions(cohort: Cohort, kept: Intp, asked: StudyParameters, look: CellLook | None) -> Iterator[str]:
    """Yield what the cells of a cohort and its columns say of a study.

    Parameters
    ----------
    cohort, kept
        As it was read, and which of its samples are compared.
    asked
        What is asked for.
    look
        At cells that are compared; None if nobody looked.
    """
    yield from _mixed(cohort, asked)
    if look is not None:
        yield from _spread(cohort, look)
        yield from _linear(cohort, look)
    timed = [name for name in cohort.features if name.lower() == "time"]
    if timed:
        yield Sentence(
            f"{quoted(timed[0])} tells when a cell was measured, not what it is: name the other features in "
            f"{argument('representation')}."
        )
    small = int((cohort.sizes[kept] < SMALL_SAMPLE).sum())
    if small and asked.bias == "raw" and asked.equal_cells is False:
        yield Sentence(
            f"{counted(small, 'sample')} {verb(small, 'has', 'have')} fewer than {SMALL_SAMPLE} cells and will look "
            f"far from all others by chance: {argument('bias', 'corrected')} removes that, "
            f"{argument('equal_cells', True)} draws equally many, {argument('min_cells', SMALL_SAMPLE)} leaves them "
            "out."
        )
    if look is not None and look.copied > MANY_COPIES:
        yield f"{look.copied:.0%} of the cells are copies of another and share its node. Were rows or files read twice?"
    if cohort.n_dimensions > MANY_DIMENSIONS:
        yield Sentence(
            f"{cohort.n_dimensions:,} dimensions are mostly noise to a neighbour search: "
            f"{argument('n_components', 50)} reduces them."
        )


def _mixed(cohort: Cohort, asked: StudyParameters) -> Iterator[str]:
    """Yield columns that vary within samples though their names say that they describe samples."""
    mixed = [name for name in cohort.varying if OF_SAMPLES.search(name.lower()) and name != asked.cells]
    if mixed:
        finer = next((name for name in mixed if SAMPLES.search(name.lower())), None)
        key = argument("sample_key") if finer is None else argument("sample_key", finer)
        yield Sentence(
            f"{listed(mixed, most=3)} {verb(len(mixed), 'differs', 'differ')} between cells of one "
            f"{quoted(cohort.samples.index.name)}, as nothing does that is known of a whole sample: perhaps "
            + (f"{key} should name a finer column." if finer is None else f"{key}.")
        )


def _spread(cohort: Cohort, look: CellLook) -> Iterator[str]:
    """Yield raw features that spread far more widely than the others, or that decide the neighbors alone.

    Principal components and the like are ordered by their variance: the first has most of it by design.
    """
    raw = getattr(cohort.reader.base, "representation", "X") == "X" and cohort.projection.mean is None
    deviations = np.sqrt(look.variance)
    if not raw or (deviations > 0).sum() < 2 or not np.isfinite(look.variance.sum()):
        return
    order = np.argsort(-deviations)
    share = float(look.variance[order[0]] / look.variance.sum())
    first, alone = quoted(cohort.features[order[0]]), share > max(DOMINANT, 2 / len(order))
    standardize = argument("standardize", True)
    others = deviations[order[1:]]
    usual = float(np.median(others[others > 0]))
    wide = [i for i in order.tolist() if deviations[i] >= UNEQUAL_SPREAD * usual]
    if wide:
        told = ", ".join(f"{quoted(cohort.features[i])} {deviations[i] / usual:,.0f} times" for i in wide[:3])
        more = f" and {len(wide) - 3} more" if len(wide) > 3 else ""
        most = f" {first} alone has {percent(share)} of the variance." if alone else ""
        yield Sentence(
            f"Features spread unequally, perhaps in different units: {told}{more} as widely as most others, which "
            f"hardly count for which cells are near.{most} {standardize} lets all count alike."
        )
    elif alone:
        yield Sentence(
            f"{first} has {percent(share)} of the variance and decides nearly alone which cells are near: "
            f"{standardize} lets all features count alike."
        )


def _linear(cohort: Cohort, look: CellLook) -> Iterator[str]:
    """Yield that channels of a cytometer are as they were counted."""
    reader, measured = cohort.reader.base, cohort.measured
    if not measured or measured["cofactor"] is not None or measured["transform"] is not None:
        return
    bright = [name not in reader.linear for name in reader.features]
    if cohort.projection.mean is None and (look.largest[bright] >= LINEAR_VALUES).any():
        yield Sentence(
            "The channels are linear, and a few bright cells decide which cells are near: "
            f"{argument('transform', 'logicle')}, or {argument('transform', 'arcsinh')} with "
            f"{argument('cofactor', 150)} for flow and {argument('cofactor', 5)} for mass cytometry."
        )
