"""Define `heatmover doctor`: check graph, noise, time, memory, errors of `compare` on some cells; for `cli` only."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Int32, Int64, Intp
from heatmover._base.words import counted, listed, unused
from heatmover.cli._settings import Settings, candidate_columns, in_options
from heatmover.cli._terminal import clean, columns_of, fail, hanging, printed, short, watched
from heatmover.cohort import Cohort
from heatmover.cohort.read import format_of
from heatmover.cohort.subsample import draw_cells
from heatmover.embedding.preparation import LARGEST_EMBEDDING
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError
from heatmover.graphs import Diagnosis, Graph
from heatmover.measures import measures_from_labels
from heatmover.study.cautions import (
    MOST_CELLS,
    NOISY,
    RELIABLE,
    SMALL_SAMPLE,
    CellLook,
    cell_cautions,
    floor_sentence,
    look_at,
    noise_sentences,
    table_cautions,
    unreliable,
)
from heatmover.study.comparers import draw_equally
from heatmover.study.comparison import LANDMARKS, LANDMARKS_ABOVE, Comparison, compare
from heatmover.study.examination import kind_of, read_variables
from heatmover.study.parameters import StudyParameters
from heatmover.study.record import Clock
from heatmover.study.study import SampleDesign, check_components, check_study, choose_variables

# Number of cells of a small graph, which is built to load the compiled code before stages are timed.
WARM_CELLS = 200
# Seconds and bytes of a comparison of ten cells: imports, compiled code and report.
START_SECONDS, START_BYTES = 6.0, 350_000_000
# Seconds per permutation, variable and pair of samples (999 permutations of one variable of 634 samples: 1.5 s).
SECONDS_PER_PERMUTATION = 4e-9
VARIABLES_SHOWN = 20
GROUPS_SHOWN = 4
CANDIDATES_SHOWN = 20
# Largest number of samples that are compared to estimate noise. Larger cohorts are represented by samples of all sizes.
# The embedding of 100 samples takes 80 MB on 20,000 nodes. More samples hardly change the noise floors.
MOST_SAMPLES = 100


@final
@dataclass(frozen=True)
class Noise:
    """Sampling noise of the distances.

    Attributes
    ----------
    floors
        Expected distance between two samples of one distribution. The keys are the numbers of cells of the smallest,
        the median and the largest sample that `compare` would use.
    typical
        Median distance between samples, corrected for sampling noise.
    comparison
        Comparison of the drawn samples.
    whole
        Whether the noise was estimated from all cells that `compare` would use. If not, split-half retrieval in
        `compare` may be very different: in one cohort, retrieval was 4% with 20,000 of 400,000 cells and 97% with all
        cells.
    """

    floors: dict[int, float]
    typical: float
    comparison: Comparison
    whole: bool


@final
@dataclass(frozen=True, eq=False)
class Checkup:
    """Result of checking a cohort.

    Attributes
    ----------
    points, codes
        The drawn cells, ``(n_drawn, n_dimensions)``, and the sample of each cell.
    look
        Summary of the drawn cells.
    diagnosis
        Diagnosis of the graph over the drawn cells; None if there are too few cells for a graph.
    errors
        Errors that `compare` would raise, in sentences; empty if `compare` would run.
    advice
        Advice and cautions, in sentences.
    noise
        Sampling noise; None if the noise cannot be estimated.
    """

    points: npt.NDArray[Any]
    codes: Int32
    look: CellLook
    diagnosis: Diagnosis | None
    errors: tuple[str, ...]
    advice: tuple[str, ...]
    noise: Noise | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def check_up(cohort: Cohort, settings: Settings, progress: Progress) -> Checkup:
    """Check a cohort without writing anything."""
    errors, asked = list[str](), settings.study
    kept, design = check_study(cohort, asked, errors)
    progress.stage("draw cells", 1)
    try:
        compared, own = draw_equally(cohort, kept, None, asked, SILENT)[:2]
    except InvalidInputError:  # `check_study` has added this error to the errors
        compared, own = cohort, kept
    points, codes, _ = draw_cells(compared, MOST_CELLS, settings.study.random_state, own)
    progress.advance()
    look = look_at(points)
    diagnosis = noise = None
    watch = Clock(SILENT)
    if len(points) > 2:
        progress.stage("diagnose graph", 1)
        _graph(points[:WARM_CELLS], settings)
        watch.stage("find neighbors", 1)
        graph = _graph(points, settings)
        watch.stage("diagnose graph", 1)
        diagnosis = graph.diagnose()
        watch.end()
        if not settings.study.allow_components:
            try:
                check_components(graph.node_affinity, graph.gather(np.ones((1, len(points))))[0])
            except InvalidInputError as error:
                errors.append(error.sentence)
        progress.advance()
        progress.stage("assess noise", 1)
        whole = len(points) == compared.sizes[own].sum() == _nodes(settings, len(points))
        whole &= asked.align_batch is None
        noise = assess_noise(compared, own, graph, codes, settings, whole=whole, progress=watch)
        progress.advance()
    advice = (
        *cell_cautions(cohort, kept, asked, look),
        *_table_cautions(design, compared.sizes[own], asked),
        *noise_cautions(noise, asked),
    )
    watch.end()
    return Checkup(points, codes, look, diagnosis, tuple(errors), advice, noise, watch.seconds)


def _graph(points: npt.NDArray[Any], settings: Settings) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        count = min(settings.study.n_neighbors, len(points) - 1)
        seed, n_jobs = settings.study.random_state, settings.n_jobs
        return Graph.from_points(points, n_neighbors=count, random_state=seed, n_jobs=n_jobs)


def _table_cautions(design: SampleDesign | None, sizes: Int64, asked: StudyParameters) -> Iterator[str]:
    """Yield cautions about the sample metadata; yield nothing if a study would reject the metadata."""
    if design is not None:
        yield from table_cautions(
            design.table, design.chosen, sizes, asked, blocks=design.blocks, adjust=asked.design, bias=asked.bias
        )


def assess_noise(
    cohort: Cohort, kept: Intp, graph: Graph, codes: Int32, settings: Settings, *, whole: bool, progress: Progress
) -> Noise | None:
    """Compare samples on a graph over drawn cells, and return the sampling noise; None if samples or cells are too few.

    Parameters
    ----------
    cohort, kept
        The cells that `compare` would compare, and the indices of the samples that `compare` would keep.
    graph, codes
        Graph over the drawn cells, and the sample of each cell.
    settings
        Settings of `compare`.
    whole
        Whether `compare` would build exactly this graph.
    progress
        Receives the stages of the comparison.
    """
    chosen = kept[np.argsort(cohort.sizes[kept], kind="stable")]
    if len(chosen) > MOST_SAMPLES:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_SAMPLES).round().astype(np.int64)]
    try:
        comparison = _compare(graph, codes, np.sort(chosen), settings, progress)
    except InvalidInputError:  # too few samples, or samples of single cells; `compare` reports this itself
        return None
    noise = comparison.uncertainty
    assert noise is not None
    typical = sorted({int(n) for n in np.quantile(cohort.sizes[kept], [0, 0.5, 1], method="nearest")})
    return Noise(
        {n: noise.noise_floor(n) for n in typical},
        float(np.median(comparison.distances[np.triu_indices(len(comparison.names), 1)])),
        comparison,
        whole and len(chosen) == len(kept),
    )


def _compare(graph: Graph, codes: Int32, chosen: Intp, settings: Settings, progress: Progress) -> Comparison:
    with warnings.catch_warnings():
        for kind in (GraphWarning, EmbeddingWarning):
            warnings.simplefilter("ignore", kind)
        return compare(
            graph, measures_from_labels(codes, names=chosen.tolist()), bias="corrected",
            random_state=settings.study.random_state, n_jobs=settings.n_jobs, progress=progress,
        )  # fmt: skip


def noise_facts(noise: Noise) -> str:
    """Describe the sampling noise in sentences: as results if all cells were used, else as estimates."""
    if noise.whole:
        return " ".join(sentence for sentence in noise_sentences(noise.comparison) if sentence not in (NOISY, RELIABLE))
    return (
        f"{floor_sentence(noise.floors)} The median corrected distance between samples is {noise.typical:.2g}. These "
        f"are estimates from {counted(noise.comparison.graph.n_points, 'cell')}; heatmover compare also reports "
        "split-half retrieval."
    )


def noise_cautions(noise: Noise | None, asked: StudyParameters) -> Iterator[str]:
    """Yield the warning about sampling noise that `compare` would give; yield nothing if only some cells were used."""
    assessed = asked.bias == "corrected" or asked.n_bootstrap > 0
    if noise is not None and noise.whole and assessed and unreliable(noise.comparison):
        yield NOISY


def estimate(cohort: Cohort, settings: Settings, checkup: Checkup, n_variables: int) -> tuple[float, int] | None:
    """Return the approximate duration (seconds) and memory (bytes) of `compare`; None if no stage could be timed.

    The time of each stage on the drawn cells is extrapolated to all nodes and samples.
    """
    if checkup.noise is None:
        return None
    trial, asked = checkup.noise.comparison, settings.study
    n_cells, n_samples, n_drawn = cohort.n_cells, len(cohort.names), len(checkup.points)
    nodes = _nodes(settings, n_cells)
    seconds = {name: value for name, value in checkup.seconds.items() if name != "assess noise" or asked.bias != "raw"}
    grown, samples = nodes / n_drawn, n_samples / len(trial.names)
    growth = {"diffuse measures": grown * samples, "compare": grown * samples**2}
    total = sum(value * growth.get(name, grown) for name, value in seconds.items())
    if nodes < n_cells:  # k-means reads every cell; the agreement of landmarks is measured on 10,000 cells
        total += seconds["find neighbors"] * n_cells / n_drawn + sum(seconds.values()) * 10_000 / n_drawn
    total += START_SECONDS + SECONDS_PER_PERMUTATION * n_samples**2 * asked.n_permutations * n_variables
    return total, _memory(cohort, settings, nodes, trial)


def _nodes(settings: Settings, n_cells: int) -> int:
    landmarks = settings.study.landmarks
    if landmarks is None:
        return n_cells
    if landmarks == "auto":
        return LANDMARKS if n_cells > LANDMARKS_ABOVE else n_cells
    return min(landmarks, n_cells)


def _memory(cohort: Cohort, settings: Settings, nodes: int, trial: Any) -> int:
    per_node = trial.embedding.shape[1] / trial.graph.n_nodes
    embedding = min(4 * per_node * nodes * len(cohort.names), LARGEST_EMBEDDING)
    graph = 3 * 12 * 2 * settings.study.n_neighbors * nodes
    matrices = 5 * 8 * len(cohort.names) ** 2
    return int(START_BYTES + 3 * 8 * cohort.n_cells * cohort.n_dimensions + 1.3 * embedding + graph + matrices)


def _show_candidates(file: str, quiet: bool) -> NoReturn:
    """List the columns that could name the samples, and exit with an error."""
    columns = candidate_columns(file)
    if not quiet:
        table = columns_of("column", "values", "cells per value")
        for candidate in columns[:CANDIDATES_SHOWN]:
            sizes = f"{candidate.fewest:,} or more, median {candidate.median:,.0f}"
            table.add_row(Text(short(candidate.column)), f"{candidate.n_values:,}", sizes)
        with printed() as console:
            console.print(Text("Columns that could name the samples:\n"))
            console.print(table)
    likely = clean(columns[0].column)
    fail(f"Expected --sample-key to name one of these columns, found none; perhaps --sample-key {likely}.")


def diagnose_file(settings: Settings, quiet: bool) -> list[str]:
    """Show the content of a file, and return the errors that `compare` would raise, in sentences."""
    reading, asked = settings.reading, settings.study
    if reading.sample_key is None and format_of(Path(reading.path)) != "fcs":
        _show_candidates(reading.path, quiet)
    with watched(quiet) as progress:
        # Do not check variables when reading, because `check_study` later reports all errors about variables, not only
        # the first error.
        named = [*asked.required, *([] if asked.cells is None else [asked.cells])]
        apart = replace(reading, no_features=(*reading.no_features, *named))
        cohort = apart.read([], asked.random_state, progress)
        checkup = check_up(cohort, settings, progress)
        tested = len(asked.variables or choose_variables(cohort, cohort.samples, None, None))
    cost = estimate(cohort, settings, checkup, tested)
    if not quiet:
        with printed() as console:
            _show(console, cohort, checkup, cost, asked)
    return [in_options(sentence) for sentence in checkup.errors]


def _show(
    console: Console, cohort: Cohort, checkup: Checkup, cost: tuple[float, int] | None, asked: StudyParameters
) -> None:
    console.print()
    for name, text in (*_facts(cohort, checkup), *_costs(cost, asked)):
        console.print(hanging(name, clean(text), width=9))
    console.print()
    _show_variables(console, cohort, asked)
    advice = [*checkup.advice, *cohort.warnings, *(checkup.diagnosis.advice if checkup.diagnosis else ())]
    if advice:
        console.print()
    for sentence in advice:
        console.print(hanging("-", clean(in_options(sentence)), width=1))
    console.print()
    if not checkup.errors:
        console.print(Text("heatmover compare would run.", style="bold"))


def _facts(cohort: Cohort, checkup: Checkup) -> Iterator[tuple[str, str]]:
    sizes = cohort.sizes
    yield "file", f"{Path(cohort.source.path).name} ({cohort.source.format})"
    few, single = int((sizes < SMALL_SAMPLE).sum()), int((sizes == 1).sum())
    yield "samples", f"{len(sizes):,}: {listed(cohort.names, most=3)}"
    yield (
        "cells",
        f"{cohort.n_cells:,}; {_per_sample(sizes)}; "
        + f"{counted(few, 'sample') if few else 'no sample'} below {SMALL_SAMPLE} cells"
        + (f", {single} of them with a single cell" if single else ""),
    )
    yield "features", f"{cohort.n_dimensions:,}: {listed(cohort.features, most=4)}; no missing values"
    if cohort.unused:
        yield "", unused(cohort.unused)
    drawn = "" if len(checkup.points) == cohort.n_cells else f" among {counted(len(checkup.points), 'cell')} drawn"
    flat = [name for name, constant in zip(cohort.features, checkup.look.constant, strict=True) if constant]
    constant = f"constant: {listed(flat, most=4)}" if flat else "none is constant"
    copies = counted(checkup.look.n_copies, "duplicate cell") if checkup.look.n_copies else "no duplicate cells"
    yield "", f"{constant}; {copies}{drawn}"
    if checkup.diagnosis is not None:
        lines = [
            line for line in str(checkup.diagnosis).splitlines() if not line.startswith(("- ", "All is", "No problem"))
        ]
        yield "graph", " ".join(lines) + (f" (Computed from {len(checkup.points):,} cells.)" if drawn else "")
    if checkup.noise is not None:
        yield "noise", noise_facts(checkup.noise)


def _per_sample(sizes: Int64) -> str:
    if sizes.min() == sizes.max():
        return f"{sizes.min():,} in every sample"
    return f"per sample {sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}"


def _costs(cost: tuple[float, int] | None, asked: StudyParameters) -> Iterator[tuple[str, str]]:
    if cost is not None:
        seconds, memory = cost
        spell = counted(round(seconds), "second") if seconds < 90 else counted(round(seconds / 60), "minute")
        exact = "" if asked.units is None else ", plus the exact distances of --units"
        drawn = f", plus the {asked.n_bootstrap} replicates of --bootstrap" if asked.n_bootstrap else ""
        yield "compare", f"about {spell} and {memory / 1e9:.1f} GB of memory here{exact}{drawn}"


def _show_variables(console: Console, cohort: Cohort, asked: StudyParameters) -> None:
    table = columns_of("variable", "kind", "values", "missing")
    samples = cohort.samples
    with suppress(InvalidInputError):  # `check_study` has added this error to the errors
        samples = read_variables(samples, asked.numeric, asked.categorical)
    for name in list(samples.columns)[:VARIABLES_SHOWN]:
        column = samples[name]
        known = column.dropna()
        kind = "groups" if name in asked.categorical else kind_of(known.tolist(), numeric=name in asked.numeric)
        missing = len(column) - len(known)
        if kind == "number":
            values = f"{known.min():.4g} to {known.max():.4g}"
        else:
            counts = known.astype(str).value_counts()
            shown = ", ".join(f"{short(value)} ({count})" for value, count in counts.items())
            values = shown if len(counts) <= GROUPS_SHOWN else f"{len(counts)} different"
        table.add_row(Text(short(name)), kind, Text(values), str(missing or ""))
    for name, count in list(cohort.varying.items())[:VARIABLES_SHOWN]:
        row = (short(name), "of cells", f"varies within {counted(count, 'sample')}", "")
        table.add_row(*(Text(cell, style="dim") for cell in row))
    if table.row_count:
        console.print(table)
    else:
        console.print(Text("No sample metadata, so there is nothing to test; --sample-sheet adds metadata."))
    left = max(len(cohort.samples.columns) - VARIABLES_SHOWN, 0) + max(len(cohort.varying) - VARIABLES_SHOWN, 0)
    if left:
        console.print(Text(f"and {left} more", style="dim"))
