"""Check cells and metadata for problems, word cautions and noise, for studies, reports, `doctor`; touch no files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heatmover._base.types import Bool, Float64, Int64, IntArray, Intp
from heatmover._base.words import counted, listed, percent, quoted, verb
from heatmover.cohort import Cohort
from heatmover.errors import Sentence, argument, the_argument
from heatmover.study.comparison import Comparison
from heatmover.study.design_check import design_notes
from heatmover.study.examination import examine
from heatmover.study.parameters import StudyParameters

# Below this split-half retrieval, individual distances are mostly noise.
UNRELIABLE = 0.8
# Samples count as equally large if the logarithms of their numbers of cells differ by less than ``UNEQUAL``. If the
# numbers differ by more, a caution names every variable that is associated with the number of cells, with a p-value of
# at most ``CONFOUNDED``.
UNEQUAL, CONFOUNDED = float(np.log(1.5)), 0.01
# Number of permutations that suffices to reach the p-value ``CONFOUNDED``. With 600 samples, more permutations would
# take a second.
ENOUGH = 199
NOISY = (
    "Individual nearest neighbors are unreliable here; group comparisons may still hold. More cells help, and "
    "standardizing may help if features have different units."
)
RELIABLE = "Individual nearest neighbors are reliable here."


def named_floors(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the expected noise distance between identical samples of the smallest, median and largest size."""
    assert comparison.uncertainty is not None
    floors = {cells: comparison.noise_floor(cells) for cells in comparison.uncertainty.typical_sizes}
    names = {1: ["every sample"], 2: ["smallest sample", "largest sample"]}
    names[3] = ["smallest sample", "median sample", "largest sample"]
    return [
        {"name": name, "cells": cells, "distance": f"{distance:.2g}"}
        for name, (cells, distance) in zip(names[len(floors)], floors.items(), strict=True)
    ]


def floor_sentence(floors: Mapping[int, float]) -> str:
    """Describe in one sentence how far apart sampling noise alone would put identical samples.

    Parameters
    ----------
    floors
        Distance for each number of cells. The sentence states the first distance, and the other distances in
        parentheses.

    Examples
    --------
    >>> floor_sentence({200: 0.49, 900: 0.21})
    'Sampling noise alone would put two identical samples of 200 cells 0.49 apart (900 cells: 0.21).'
    """
    (cells, distance), *others = floors.items()
    further = ", ".join(f"{counted(each, 'cell')}: {floor:.2g}" for each, floor in others)
    return (
        f"Sampling noise alone would put two identical samples of {counted(cells, 'cell')} {distance:.2g} apart"
        f"{f' ({further})' if further else ''}."
    )


def pair_counts(comparison: Comparison) -> dict[str, Any] | None:
    """Return the numbers of distinguishable and indistinguishable pairs of samples; None without intervals."""
    intervals = comparison.intervals
    if intervals is None:
        return None
    pairs = intervals.distinguishable[np.triu_indices(len(comparison.names), 1)]
    distinguishable = int(pairs.sum())
    return {
        "distinguishable": distinguishable,
        "alike": pairs.size - distinguishable,
        "all": pairs.size,
        "confidence": f"{100 * intervals.confidence:g}",
    }


def noise_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Describe the sampling noise of the distances in sentences, with advice; empty if noise was not assessed."""
    noise = comparison.uncertainty
    if noise is None:
        return ()
    median = float(np.median(comparison.distances[np.triu_indices(len(comparison.names), 1)]))
    kind = "corrected" if comparison.bias == "corrected" else "raw"
    sentences = [
        floor_sentence({cells: comparison.noise_floor(cells) for cells in noise.typical_sizes}),
        f"The median {kind} distance between samples is {median:.2g}.",
    ]
    if noise.retrieval is not None:
        sentences.append(f"Split-half retrieval: {100 * noise.retrieval:.0f}%.")
    if noise.heterogeneity:
        sentences.append(noise.heterogeneity)
    pairs = pair_counts(comparison)
    if pairs is not None:
        sentences.append(
            f"{pairs['distinguishable']:,} of {counted(pairs['all'], 'pair')} of samples "
            f"{verb(pairs['distinguishable'], 'is', 'are')} distinguishable: the pointwise "
            f"{pairs['confidence']}% confidence interval of their distance excludes zero{noise.expected_by_chance}."
        )
    if noise.retrieval is not None:
        sentences.append(NOISY if unreliable(comparison) else RELIABLE)
    return tuple(sentences)


def unreliable(comparison: Comparison) -> bool:
    """Return whether split-half retrieval is too low to rely on individual distances."""
    noise = comparison.uncertainty
    return noise is not None and noise.retrieval is not None and noise.retrieval < UNRELIABLE


# Number of cells from which the variance of features and the share of duplicates are estimated.
MOST_CELLS = 20_000
SMALL_SAMPLE = 30
# The unit of a raw feature probably differs from the units of the other features if its standard deviation is at least
# this number times their median standard deviation.
UNEQUAL_SPREAD = 10.0
# A raw feature with more than this share of the total variance determines the nearest neighbors almost alone. Example:
# the area of glomeruli in pixels has 57% of the variance of 14 features, most of which have less than a millionth of
# the variance.
DOMINANT = 0.5
# Raw intensities of a cytometer reach 10^3 or more; after a logarithm or a similar transform, values are smaller.
LINEAR_VALUES = 100.0
MANY_COPIES, MANY_DIMENSIONS = 0.05, 60
# Columns named like sample metadata. If such a column varies within a sample, several samples were probably merged into
# one.
OF_SAMPLES = re.compile(r"condition|treat|stim|visit|time ?_?point|dose|disease|respon|sample|specimen|library")
SAMPLES = re.compile(r"^sample|sample(_?id|_?name)?$|specimen|library")


class CellLook(NamedTuple):
    """Summary of cells: variance and largest value of each feature, constant features, number and share of duplicates.

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
    """Return summary statistics of cells.

    Parameters
    ----------
    points
        ``(n_cells, n_dimensions)``.
    copies
        ``(n_cells,)``: number of cells that each row represents; the rows must be distinct. None: each row is one cell,
        and rows may repeat.
    """
    if copies is None:
        points, copies = np.unique(points, axis=0, return_counts=True)
    values, n_cells = points.astype(np.float64), int(copies.sum())
    largest, constant = values.max(axis=0), values.min(axis=0) == values.max(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):  # on overflow the variance is not finite, which callers check
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
    """Yield cautions about the sample metadata and the numbers of cells.

    Parameters
    ----------
    table
        DataFrame with one row per sample.
    chosen
        Variables to examine, the most important first.
    sizes
        Number of compared cells of each sample, ``(n_samples,)``.
    asked
        Parameters of the study, which determine how variables are read and tested.
    blocks
        Block variables, such as the patient: values ``(n_samples,)`` by name.
    adjust
        Names of covariates.
    bias
        Whether the distances are corrected or raw, as in `StudyParameters`.
    """
    readings = {"numeric": asked.numeric, "categorical": asked.categorical}
    yield from design_notes(table, chosen, blocks=blocks, adjust=adjust, **readings)
    logarithms = np.log(sizes.astype(np.float64))
    if logarithms.max() - logarithms.min() < UNEQUAL:
        return
    # Small samples look distant from all others, so groups with different numbers of cells may seem to differ.
    apart = np.abs(np.subtract.outer(logarithms, logarithms))
    columns = {name: table[name].tolist() for name in chosen}
    read = [name for name in asked.numeric if name in columns]
    end = "The distances are corrected for the number of cells."
    if bias != "corrected":
        end = f"Small samples look artificially distant; {argument('bias', 'corrected')} corrects the distances."
    tests = asked.tests | {"n_permutations": min(asked.n_permutations, ENOUGH)}
    for finding in examine(apart, columns, blocks=blocks, numeric=read, **tests):
        if finding.answer is not None and finding.answer.p_value <= CONFOUNDED:
            p = f"p = {finding.answer.p_value:.2g}"
            yield Sentence(f"The number of cells is associated with {quoted(finding.variable)} ({p}). {end}")


def cell_cautions(cohort: Cohort, kept: Intp, asked: StudyParameters, look: CellLook | None) -> Iterator[str]:
    """Yield cautions about the cells and the columns of a cohort.

    Parameters
    ----------
    cohort, kept
        The cohort, and the indices of the compared samples.
    asked
        Parameters of the study.
    look
        Summary of the compared cells; None if it was not computed.
    """
    yield from _mixed(cohort, asked)
    if look is not None:
        yield from _spread(cohort, look)
        yield from _linear(cohort, look)
    timed = [name for name in cohort.features if name.lower() == "time"]
    if timed:
        yield Sentence(
            f"{quoted(timed[0])} is the time of measurement, not a property of the cell: name the other features in "
            f"{the_argument('representation')}."
        )
    small = int((cohort.sizes[kept] < SMALL_SAMPLE).sum())
    if small and asked.bias == "raw" and asked.equal_cells is False:
        yield Sentence(
            f"{counted(small, 'sample')} {verb(small, 'has', 'have')} fewer than {SMALL_SAMPLE} cells and will look "
            f"artificially distant. {argument('bias', 'corrected')} removes this bias, {argument('equal_cells', True)} "
            f"draws the same number of cells from every sample, and {argument('min_cells', SMALL_SAMPLE)} leaves small "
            "samples out."
        )
    if look is not None and look.copied > MANY_COPIES:
        yield f"{look.copied:.0%} of the cells are duplicates and share a node. Were rows or files read twice?"
    if cohort.n_dimensions > MANY_DIMENSIONS:
        yield Sentence(
            f"A neighbor search in {cohort.n_dimensions:,} dimensions is dominated by noise: "
            f"{argument('n_components', 50)} reduces the number of dimensions."
        )


def _mixed(cohort: Cohort, asked: StudyParameters) -> Iterator[str]:
    """Yield a caution if columns with names of sample metadata vary within samples."""
    mixed = [name for name in cohort.varying if OF_SAMPLES.search(name.lower()) and name != asked.cells]
    if mixed:
        finer = next((name for name in mixed if SAMPLES.search(name.lower())), None)
        key = argument("sample_key") if finer is None else argument("sample_key", finer)
        yield Sentence(
            f"{listed(mixed, most=3)} {verb(len(mixed), 'differs', 'differ')} between cells of the same "
            f"{quoted(cohort.samples.index.name)}, although sample metadata should be constant within a sample. "
            + (f"Perhaps {key} should name a finer column." if finer is None else f"Perhaps use {key}.")
        )


def _spread(cohort: Cohort, look: CellLook) -> Iterator[str]:
    """Yield a caution if the variance of some raw features dominates the neighbor search.

    Principal components are exempt, because the first ones have most of the variance by design.
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
        sizes = [f"{deviations[i] / usual:,.0f} times as large for {quoted(cohort.features[i])}" for i in wide[:3]]
        if len(wide) > 3:
            sizes.append(f"at least {UNEQUAL_SPREAD:g} times as large for {len(wide) - 3} more")
        shown = " and ".join(part for part in (", ".join(sizes[:-1]), sizes[-1]) if part)
        most = f" {first} alone has {percent(share)} of the variance." if alone else ""
        yield Sentence(
            "Features have very different scales, perhaps different units. Compared with the median of the other "
            f"features, the standard deviation is {shown}. The other features hardly affect the neighbors.{most} "
            f"{standardize} gives all features equal weight."
        )
    elif alone:
        yield Sentence(
            f"{first} has {percent(share)} of the variance and determines the neighbors almost alone. "
            f"{standardize} gives all features equal weight."
        )


def _linear(cohort: Cohort, look: CellLook) -> Iterator[str]:
    """Yield a caution if fluorescence channels of a cytometer are not transformed."""
    reader, measured = cohort.reader.base, cohort.measured
    if not measured or measured["cofactor"] is not None or measured["transform"] is not None:
        return
    bright = [name not in reader.linear for name in reader.features]
    if cohort.projection.mean is None and (look.largest[bright] >= LINEAR_VALUES).any():
        yield Sentence(
            "The channels are linear, so a few bright cells dominate the distances. Use "
            f"{argument('transform', 'logicle')}, or {argument('transform', 'arcsinh')} with "
            f"{argument('cofactor', 150)} for flow cytometry and {argument('cofactor', 5)} for mass cytometry."
        )
