"""Study cohorts or comparisons: distances, tests, cell types; for users, `cli`, `report`, `hm.scale`; reads cohorts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np
from scipy.sparse.csgraph import connected_components

from heatmover._base.progress import SILENT, Progress
from heatmover._base.types import Float64, Intp
from heatmover._base.validation import import_extra, sample_columns
from heatmover._base.words import counted, find, find_all, joined, listed, quoted, verb
from heatmover.cohort import Cohort
from heatmover.cohort.subsample import equal_count
from heatmover.errors import (
    EmbeddingWarning,
    GraphWarning,
    HeatmoverError,
    InvalidInputError,
    Sentence,
    argument,
    the_argument,
)
from heatmover.measures import is_missing
from heatmover.statistics import Design, DesignResult
from heatmover.statistics.designs import check_design
from heatmover.statistics.metrics import centered_ranks
from heatmover.statistics.outliers import FAR, outlyingness
from heatmover.study.batches import align_cohort, check_batches
from heatmover.study.cautions import (
    NOISY,
    RELIABLE,
    SMALL_SAMPLE,
    cell_cautions,
    noise_sentences,
    table_cautions,
    unreliable,
)
from heatmover.study.cell_calls import CellCalls, call_cells
from heatmover.study.cell_map import CellMap, check_cell_map, map_cells
from heatmover.study.cell_types import (
    Annotation,
    SampleComposition,
    annotate,
    cluster_cells,
    clusters_wanted,
    shares_of,
)
from heatmover.study.comparers import Compared, Comparer, InMemory
from heatmover.study.comparison import Comparison, check_all_pairs, check_enough_samples, check_units
from heatmover.study.contrasts import (
    CellContrast,
    CellContrasts,
    Omnibus,
    check_reference,
    check_trend,
    contrast_variable,
)
from heatmover.study.examination import (
    Finding,
    as_groups,
    check_adjusted,
    design_of,
    examine,
    examine_design,
    known_values,
    label,
    other_terms,
    read_variables,
)
from heatmover.study.genes import genes_of
from heatmover.study.parameters import StudyParameters
from heatmover.study.record import Clock, StudyRecord, input_record, versions

# Names of the parameters that `study_comparison` accepts; all other parameters concern the comparison.
TESTED = (
    "adjust",
    "formula",
    "group",
    "reference",
    "trend",
    "numeric",
    "categorical",
    "n_permutations",
    "random_state",
)
# Warn if the Spearman correlation between the number of cells and the distance to the nearest sample is below this
# value. Small samples look distant by chance alone: in kidney biopsies of 2 to 415 glomeruli, the correlation is -0.8.
SIZE_MATTERS = -0.4
# Largest share of cells outside the largest component that a few outliers can explain. If the share is larger, the
# distances show only that components are separate, not how far apart they are.
MOST_APART = 0.05


@final
@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """A comparison of samples with tests of their metadata, as returned by `study_cohort` or `study_comparison`.

    Attributes
    ----------
    comparison
        Distances, embedding, graph and model.
    variables
        Sample metadata: a DataFrame with one row per sample, in the order of ``comparison.names``.
    findings
        Findings, one for each examined variable, in the requested order.
    notes
        Cautions and remarks, in sentences.
    record
        Provenance: input with checksum, parameters, versions, duration of each stage.
    contrasts
        Cell types that differ between groups, or along a number, one value for each contrast, the strongest first;
        empty without an annotation of cells.
    omnibus
        Tests of the cell types over all groups together, one value for each variable with three or more groups.
    about_noise
        Sampling noise of the distances, in sentences; empty if noise was not assessed.
    design
        With a formula: variation that each term explains with all other terms held fixed. Without a formula: variation
        explained by the covariates, and additional variation explained by the first tested variable. None without
        covariates.
    composition
        Share of each cell type in every sample; None without an annotation of cells.
    blocks
        Values ``(n_samples,)`` of every block variable, by its name.
    cell_map
        Map of drawn cells that shows where the groups of the strongest contrast differ; None without a map.
    cell_calls
        Cells whose surroundings differ in density in the strongest contrast, without cell types. None if no variable
        could be tested.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> result = study_comparison(hm.compare(data.points, data.labels), {"condition": data.annotations["condition"]})
    >>> print(result.headline())
    Samples differ by condition (PERMANOVA R2 = ...%, p = ...).
    """

    comparison: Comparison
    variables: Any
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    record: StudyRecord
    contrasts: tuple[CellContrast, ...] = ()
    omnibus: tuple[Omnibus, ...] = ()
    about_noise: tuple[str, ...] = ()
    design: DesignResult | None = None
    composition: SampleComposition | None = None
    blocks: Mapping[str, Sequence[object]] = field(default_factory=dict)
    cell_map: CellMap | None = None
    cell_calls: CellCalls | None = None

    @property
    def contrast(self) -> CellContrast | None:
        """Return the strongest contrast of cell types; None without an annotation of cells."""
        return self.contrasts[0] if self.contrasts else None

    @property
    def block(self) -> str:
        """Return the name of the block variable, or several names joined by "and"; empty without blocks."""
        block = self.record.parameters.get("block") or ""
        return block if isinstance(block, str) else " and ".join(block)

    def paired_samples(self) -> tuple[str, list[list[int]]]:
        """Return the name and the pairs of the first block variable that divides all samples into pairs, or nothing."""
        for name, values in self.blocks.items():
            members: dict[str, list[int]] = {}
            for place, value in enumerate(values):
                members.setdefault(label(value), []).append(place)
            if {len(pair) for pair in members.values()} == {2}:
                return name, list(members.values())
        return "", []

    def outliers(self) -> dict[str, Any]:
        """Return the deviation of each outlying sample by name, the name of the grouping variable, and a sentence."""
        values: list[Any] = [""] * len(self.comparison.names)
        first = next((one for one in self.findings if one.kind == "groups" and one.answer is not None), None)
        if first is not None:
            values = self.variables[first.variable].tolist()
        known, groups = known_values(values)
        far = np.full(len(known), np.nan)
        far[known] = outlyingness(self.comparison.distances[np.ix_(known, known)], as_groups(groups))
        ranked = [int(i) for i in np.argsort(-far) if far[i] > FAR]
        outlying = {self.comparison.names[i]: round(float(far[i]), 1) for i in ranked}
        group, others = "cohort", "all other samples"
        if first is not None:
            group, others = "group", f"other samples of the same {quoted(first.variable)}"
        rule = (
            f"a median distance to {others} that is more than {FAR:g} robust standard deviations above the {group}'s "
            "median"
        )
        named = joined(f"{quoted(name)} ({value:g})" for name, value in outlying.items())
        sentence = (
            "Outliers were not assessed, because 10 samples in groups of 7 or more are needed." if np.isnan(far).all()
            else f"No sample is an outlier (criterion: {rule})." if not outlying
            else f"{counted(len(outlying), 'outlier')}: {named} (criterion: {rule})."
        )  # fmt: skip
        return {"samples": outlying, "variable": "" if first is None else first.variable, "sentence": sentence}

    def headline(self) -> str:
        """Return the main result in one sentence: the outcome for the first variable that could be tested."""
        for finding in self.findings:
            if finding.answer is not None:
                return finding.verdict()
        return f"{counted(len(self.comparison.names), 'sample')} were compared; no sample metadata could be tested."

    def reworded(self, words: Callable[[str], str]) -> Study:
        """Return the study with reworded notes, for example with options of the command line instead of arguments."""
        findings = tuple(replace(finding, note=words(finding.note)) for finding in self.findings)
        notes, noise = (tuple(map(words, sentences)) for sentences in (self.notes, self.about_noise))
        comparison = copy(self.comparison)
        diagnosis = comparison.diagnosis
        vars(comparison)["diagnosis"] = replace(diagnosis, advice=tuple(map(words, diagnosis.advice)))
        return replace(self, comparison=comparison, findings=findings, notes=notes, about_noise=noise)

    def plain(self) -> dict[str, Any]:
        """Return provenance and results as plain values for JSON, the content of run.json."""
        comparison, model = self.comparison, self.comparison.model
        settings = {
            name: value for name, value in model.get_params(deep=False).items() if name not in {"graph", "n_jobs"}
        }
        agreement, noise = comparison.landmark_agreement, comparison.uncertainty
        return {
            "input": self.record.input,
            "parameters": dict(self.record.parameters),
            "compared": dict(self.record.compared),
            "samples": len(comparison.names),
            "cells": int(comparison.sizes.sum()),
            "graph": dict(comparison.graph.construction),
            "model": settings | {"method_": model.method_, "method_reason_": model.method_reason_},
            "max_scale": {"value": int(model.max_scale_), "reason": comparison.max_scale_reason},
            "scale_shares": dict(zip(map(str, model.scales_.tolist()), comparison.scale_shares.tolist(), strict=True)),
            "landmarks": None if agreement is None else asdict(agreement),
            "drawn": None if comparison.drawn is None else comparison.drawn.plain(),
            "units": None if comparison.calibration is None else comparison.calibration.plain(),
            "uncertainty": None if noise is None else noise.plain(comparison.noise_floor),
            "diagnosis": asdict(comparison.diagnosis),
            "findings": [finding.plain() for finding in self.findings],
            "design": None if self.design is None else self.design.plain(),
            "contrasts": [contrast.plain() for contrast in self.contrasts],
            "omnibus": [one.plain() for one in self.omnibus],
            "cell_map": None if self.cell_map is None else self.cell_map.plain(),
            "cell_calls": None if self.cell_calls is None else self.cell_calls.plain(),
            "outliers": self.outliers(),
            "notes": list(self.notes),
            "seconds": dict(self.record.seconds),
            "versions": dict(self.record.versions),
        }

    def __repr__(self) -> str:
        return f"Study({self.headline()})"


class SampleDesign(NamedTuple):
    """Sample metadata of a study: the table, names of the variables to examine, blocks by name, and covariates."""

    table: Any
    chosen: Sequence[str]
    blocks: Mapping[str, Sequence[object]] | None
    covariates: Design | None


def study_cohort(
    cohort: Cohort,
    parameters: StudyParameters | None = None,
    *,
    comparer: Comparer | None = None,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Study:
    r"""Compare the samples of a cohort and test which variables are associated with the distances.

    Parameters
    ----------
    cohort
        Cohort from `heatmover.read_cohort`.
    parameters
        Parameters of the study; default: the defaults of `heatmover.study.StudyParameters`.
    comparer
        Method of comparison. Default: `InMemory`, which holds all cells in memory and uses ``n_jobs`` threads.
        `heatmover.scale.InPieces` compares cells that do not fit into memory.
    n_jobs
        Number of threads of the default ``comparer``; None for all cores.
    progress
        Receives the progress of every stage.
    **changes
        Parameters by name: ``variables``, ``block``, ``adjust``, ``formula``, ``align_batch``, ``anchors``, ``cells``,
        ``clusters``, ``genes``, ``cell_map``, ``group``, ``reference``, ``trend``, ``numeric``, ``categorical``,
        ``min_cells``, ``allow_components``, ``n_neighbors``, ``landmarks``, ``equal_cells``, ``bias``,
        ``n_bootstrap``, ``units``, ``n_permutations``, ``random_state``; see `heatmover.study.StudyParameters`.

    Returns
    -------
    Study
        The study, which `heatmover.report` renders.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from heatmover.cohort import read_cohort
    >>> rng = np.random.default_rng(0)
    >>> rows = [f"s{s},{'case' if s % 2 else 'control'},{x + 3 * (s % 2)},{y}"
    ...         for s in range(8) for x, y in rng.normal(size=(30, 2))]
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "cells.csv"
    >>> _ = path.write_text("\n".join(["sample,condition,x,y", *rows]))
    >>> result = study_cohort(read_cohort(path, sample_key="sample"), variables=["condition"])
    >>> result.findings[0].groups
    {'case': 4, 'control': 4}
    """
    asked = StudyParameters.named(parameters, changes)
    if comparer is None:
        comparer = InMemory(n_jobs)
    elif n_jobs is not None:
        raise InvalidInputError(
            "n_jobs only in the comparer", f"n_jobs={n_jobs} as an argument", "pass n_jobs to the comparer"
        )
    comparer.check(asked)
    watch = Clock.of(progress)
    kept, design = check_study(cohort, asked)
    assert design is not None
    aligned, remarks = cohort, list[str]()
    if asked.align_batch is not None:
        watch.stage("align batches", 1)
        aligned, alignment = align_cohort(cohort, kept, *_batches(design.table, asked), numeric=asked.numeric)
        remarks.append(alignment.describe(asked.align_batch))
        watch.advance()
    annotation, n_clusters = None, clusters_wanted(cohort, asked)
    if n_clusters is not None:
        annotation = cluster_cells(
            aligned, n_clusters, random_state=asked.random_state, n_jobs=getattr(comparer, "n_jobs", None),
            progress=watch,
        )  # fmt: skip
        remarks.append(
            f"Clusters serve as cell types: k-means assigned the cells to {counted(len(annotation.types), 'cluster')}. "
            "The name of a cluster lists the features, if any, that are higher (+) or lower (-) than in all cells."
        )
    elif asked.cells is not None:
        annotation = annotate(asked.cells, cohort.annotation(asked.cells), cohort.n_cells)
    with _quiet() as compact:
        compared = comparer.compare(aligned, kept, annotation, asked, watch)
    cautions = cell_cautions(cohort, kept, asked, compared.look)
    notes = (*cohort.warnings, *compact, *remarks, *cautions)
    left_out = [cohort.names[i] for i in np.setdiff1d(np.arange(len(cohort.names)), kept)]
    if left_out:
        fewer = f"fewer than {counted(asked.min_cells or 1, 'cell')}"
        were = verb(len(left_out), "was", "were")
        notes = (f"{counted(len(left_out), 'sample')} with {fewer} {were} left out: {listed(left_out)}.", *notes)
    watch.stage("diagnose graph", 1)
    comparison = compared.comparison
    if not asked.allow_components and comparison.diagnosis.n_components > 1:
        cells = comparison.sizes @ comparison.measures.masses
        check_components(comparison.graph.node_affinity, comparison.graph.gather(cells[None])[0])
    watch.advance()
    study = _finish(
        compared, design, notes, watch, asked, source=input_record(cohort),
        parameters=asked.record() | {"variables": list(design.chosen)}, how=comparer.record(),
    )  # fmt: skip
    return _with_map(study, aligned, kept, annotation, compared.rows, asked, watch)


def _with_map(
    study: Study,
    cohort: Cohort,
    kept: Intp,
    annotation: Annotation | None,
    rows: Intp | None,
    asked: StudyParameters,
    watch: Clock,
) -> Study:
    """Return the study with a map of its cells if the cohort has a map or the parameters request a map."""
    name = check_cell_map(cohort, asked.cell_map)
    if name is None:
        return study
    watch.stage("map cells", 1)
    cells, notes = None, study.notes
    try:
        cells = map_cells(
            cohort, kept, study.comparison, name,
            random_state=asked.random_state, annotation=annotation, rows=rows, calls=study.cell_calls,
        )  # fmt: skip
    except InvalidInputError as error:  # keep the results even if no map can be drawn
        notes = (*notes, Sentence(f"The report has no map of the cells: {error.sentence.marked}"))
    watch.advance()
    watch.end()
    return replace(study, cell_map=cells, notes=notes, record=replace(study.record, seconds=watch.seconds))


def check_study(
    cohort: Cohort, asked: StudyParameters, errors: list[str] | None = None
) -> tuple[Intp, SampleDesign | None]:
    """Check a study before cells are read; return the indices of the samples to compare and their design, or raise.

    Parameters
    ----------
    cohort, asked
        The samples, and the parameters of the study.
    errors
        List that collects the messages of all errors, so that the user can fix all errors at once; None: raise the
        first error. With a list, the result is always a pair: the indices are those of all samples if the choice of
        samples failed, and the design is None if it is invalid.
    """
    kept = np.arange(len(cohort.names))
    with _noted(errors):
        kept = _enough_cells(cohort, asked)
    with _noted(errors):
        equal_count(asked.equal_cells, cohort.sizes[kept], [cohort.names[i] for i in kept])
    if asked.units is not None:
        with _noted(errors):
            check_units(asked.units)
        with _noted(errors):
            check_enough_samples(len(kept))
    with _noted(errors):
        check_cell_map(cohort, asked.cell_map)
    before, table, chosen = len(errors or ()), cohort.samples.iloc[kept], list[str]()
    for name in (*asked.numeric, *asked.categorical):
        with _noted(errors):
            cohort.variable(name)
    with _noted(errors):
        table = read_variables(table, asked.numeric, asked.categorical)
    wanted = asked.variables if asked.formula is None else asked.design
    for names in (None,) if wanted is None else [[name] for name in dict.fromkeys(wanted)]:
        with _noted(errors):
            chosen += choose_variables(cohort, table, names, (*asked.blocks, *asked.design))
    cells = asked.cells
    if errors is not None and cells is not None and clusters_wanted(cohort, asked) is None:
        with _noted(errors):
            annotate(cells, cohort.annotation(cells), cohort.n_cells)
    if asked.cells is not None or asked.clusters is not None:
        with _noted(errors):
            genes_of(cohort, asked.genes)
    for side in ("group", "reference"):
        if getattr(asked, side) is not None and chosen:
            with _noted(errors):
                check_reference(getattr(asked, side), {name: table[name].tolist() for name in chosen}, side)
    for name in asked.trend:
        with _noted(errors):
            check_trend(name, cohort.variable(name).iloc[kept])
    blocks: dict[str, Sequence[object]] = {}
    for name in asked.blocks:
        with _noted(errors):
            blocks[name] = _check_known(
                f"a block in {quoted(name)} for every sample", cohort.variable(name).iloc[kept], table
            )
    if len(errors or ()) > before:
        return kept, None
    covariates = None
    with _noted(errors):
        for name in asked.design:
            cohort.variable(name)
        covariates = _covariates(table, blocks or None, asked)
    if asked.align_batch is not None:
        with _noted(errors):
            for name in (asked.align_batch, asked.anchors or asked.align_batch):
                cohort.variable(name)
            check_batches(*_batches(table, asked), numeric=asked.numeric)
    return kept, SampleDesign(table, chosen, blocks or None, covariates)


@contextmanager
def _noted(errors: list[str] | None) -> Iterator[None]:
    """Append the message of a raised error to the list; without a list, let the error pass."""
    try:
        yield
    except HeatmoverError as error:
        if errors is None:
            raise
        errors.append(error.sentence)


def study_comparison(
    comparison: Comparison,
    variables: Mapping[str, Any] | Any | None = None,
    *,
    blocks: Mapping[str, Any] | Any | None = None,
    cells: Mapping[str, Any] | Any | None = None,
    source: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Study:
    """Test the metadata of samples whose distances are already computed.

    Parameters
    ----------
    comparison
        Comparison from `compare`.
    variables
        Values ``(n_samples,)`` by name, in the order of ``comparison.names``: a mapping, or a DataFrame (aligned by its
        index, if the index holds the names). The most important variable comes first.
    cells
        Cell type of each point of the graph, ``(n_points,)``. The name of a Series, or the key of a mapping with one
        entry, becomes the name of the annotation. If landmarks were used, the points are the landmarks; `study_cohort`
        uses the type of every cell instead.
    source
        Description of the input, for the record, with keys such as ``"name"``, ``"format"`` and ``"dimensions"``.
    blocks, progress
        As in `examine`.
    **changes
        Parameters by name: ``adjust``, ``formula``, ``group``, ``reference``, ``trend``, ``numeric``,
        ``categorical``, ``n_permutations``, ``random_state``; see `heatmover.study.StudyParameters`. ``adjust`` and
        ``formula`` refer to ``variables``.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> comparison, condition = hm.compare(data.points, data.labels), data.annotations["condition"]
    >>> branch = {"branch": data.coordinates[:, 0].astype(int)}
    >>> study_comparison(comparison, {"condition": condition}, cells=branch).contrast
    CellContrast(case against control, 5 types of branch)
    """
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    names = list(comparison.names)
    watch = Clock.of(progress)
    columns = {} if variables is None else sample_columns(variables, names)
    given = {} if variables is None else variables
    # Store texts and names as objects, because the text type of pandas 3 cannot hold a lone surrogate.
    index = pandas.Index(names, dtype=object, name="sample")
    series = {}
    for place, (key, values) in enumerate(zip(given, columns.values(), strict=True)):
        text = object if any(isinstance(value, str) for value in values) else None
        # Keep the dtype of a column, because it includes the order of categories.
        series[place] = pandas.Series(values, index, getattr(given[key], "dtype", text))
    table = pandas.DataFrame(series, index=index)
    table.columns = pandas.Index(list(columns), dtype=object)
    chosen = list(columns)
    annotation = None if cells is None else _named(cells, comparison.graph.n_points)
    tied = _named_blocks(blocks)
    find_all(changes, TESTED, "a parameter of tests")
    named = None if annotation is None else annotation.name or "cells"
    asked = StudyParameters(block=list(tied), cells=named, **changes)
    table = read_variables(table, asked.numeric, asked.categorical)
    for name in asked.design:
        find(
            name,
            chosen,
            f"a column of sample metadata in {the_argument('adjust' if asked.formula is None else 'formula')}",
        )
    chosen = list(asked.design) if asked.formula is not None else [name for name in chosen if name not in asked.adjust]
    for side in ("group", "reference"):
        if getattr(asked, side) is not None:
            check_reference(getattr(asked, side), {name: table[name].tolist() for name in chosen}, side)
    for name in asked.trend:
        check_trend(
            find(name, list(columns), f"{the_argument('trend')} to be a column of sample metadata"), table[name]
        )
    covariates = _covariates(table, tied or None, replace(asked, variables=None if asked.formula else chosen))
    record = asked.record() | {"variables": chosen}
    return _finish(
        Compared(comparison, annotation), SampleDesign(table, chosen, tied or None, covariates), (), watch, asked,
        source=source, how={"how": "before"},
        parameters={name: record[name] for name in ("variables", "block", "cells", *TESTED)},
    )  # fmt: skip


def _named_blocks(blocks: Any) -> dict[str, Any]:
    """Return blocks by name; a single variable without a name is called "blocks"."""
    if blocks is None:
        return {}
    if hasattr(blocks, "columns") or isinstance(blocks, Mapping):
        return {str(name): list(blocks[name]) for name in blocks}
    return {"blocks": list(blocks)}


def _finish(
    compared: Compared,
    design: SampleDesign,
    remarks: tuple[str, ...],
    watch: Clock,
    asked: StudyParameters,
    *,
    source: Mapping[str, Any] | None,
    parameters: Mapping[str, Any],
    how: Mapping[str, Any],
) -> Study:
    """Test sample metadata, contrast cell types, and assemble the study."""
    comparison = compared.comparison
    findings = examine(
        comparison.test_distances,
        {name: design.table[name].tolist() for name in design.chosen},
        blocks=design.blocks,
        adjust=design.covariates,
        shown=comparison.distances,
        numeric=[name for name in asked.numeric if name in design.chosen],
        progress=watch,
        **asked.tests,
    )
    terms, left_out = _terms(comparison, findings, design, asked)
    notes = (
        *remarks,
        *table_cautions(
            design.table,
            design.chosen,
            comparison.sizes,
            asked,
            blocks=design.blocks,
            adjust=() if design.covariates is None else design.covariates.names,
            bias=comparison.bias,
        ),
        *left_out,
        *_comparison_notes(comparison),
    )
    found, composition = CellContrasts(()), None
    together: tuple[Omnibus, ...] = ()
    if compared.annotation is not None:
        watch.stage("contrast cells", 1)
        try:
            found, together = _contrasts(compared, design, findings, asked)
        except InvalidInputError as error:
            why = error.sentence.marked
            notes = (*notes, Sentence(f"The types of {quoted(compared.annotation.name)} were not compared: {why}"))
        notes = (*notes, *found.left_out)
        masses = comparison.measures.masses if compared.cells is None else compared.cells.masses
        composition = shares_of(compared.annotation, masses)
        watch.advance()
    watch.stage("call cells", 1)
    calls = _call(compared, design, findings, asked)
    watch.advance()
    watch.end()
    record = StudyRecord(source, parameters, how, watch.seconds, versions())
    noise = noise_sentences(comparison)
    blocks = design.blocks or {}
    return Study(
        comparison,
        design.table,
        findings,
        notes,
        record,
        found.contrasts,
        together,
        noise,
        terms,
        composition,
        blocks,
        cell_calls=calls,
    )


def _call(
    compared: Compared, design: SampleDesign, findings: Sequence[Finding], asked: StudyParameters
) -> CellCalls | None:
    """Call cells along the first of the variables whose cell types are contrasted."""
    for name, trend in contrasted(findings, design.table, asked)[:1]:
        covariates = None if design.covariates is None else other_terms(design.covariates, name)
        with suppress(InvalidInputError):  # the note on cell types, or the finding, gives the reason
            return call_cells(
                compared.comparison, design.table[name], name, trend=trend, ordered=name not in asked.categorical,
                group=None if trend else asked.group, reference=None if trend else asked.reference,
                blocks=design.blocks, adjust=covariates, **asked.tests,
            )  # fmt: skip
    return None


def _terms(
    comparison: Comparison, findings: Sequence[Finding], design: SampleDesign, asked: StudyParameters
) -> tuple[DesignResult | None, tuple[str, ...]]:
    """Return the variation that each term of a design explains, or notes that state why the design cannot be tested."""
    first = next((finding for finding in findings if finding.answer is not None), None)
    if design.covariates is None or first is None:
        return None, ()
    known, terms = np.ones(len(design.table), dtype=bool), design.covariates
    try:
        if asked.formula is None:  # covariates, then the variable, for the samples that have a value
            known, values = known_values(design.table[first.variable].tolist())
            held = terms.take(known)
            tested = design_of({first.variable: values}, numeric=[first.variable] if first.kind == "number" else [])
            terms = Design((*held.terms, *tested.terms), held.n_samples)
        blocks = {name: np.asarray(labels, object)[known] for name, labels in (design.blocks or {}).items()}
        pairs = np.ix_(known, known)
        result = examine_design(
            comparison.test_distances[pairs], terms, by="margin" if asked.formula else "terms",
            blocks=blocks or None, shown=comparison.distances[pairs], **asked.tests,
        )  # fmt: skip
    except InvalidInputError as error:
        return None, (Sentence(f"The covariates were not tested: {error.sentence.marked}"),)
    return result, ()


def _contrasts(
    compared: Compared, design: SampleDesign, findings: Sequence[Finding], asked: StudyParameters
) -> tuple[CellContrasts, tuple[Omnibus, ...]]:
    """Contrast cell types along the requested variables, and return all contrasts, the strongest first."""
    wanted = contrasted(findings, design.table, asked)
    if not wanted:
        raise InvalidInputError("sample metadata that could be tested", "none")
    assert compared.annotation is not None
    results, failed = [], list[str]()
    for name, trend in wanted:
        held = None if design.covariates is None else other_terms(design.covariates, name)
        try:
            results.append(
                contrast_variable(
                    compared.comparison, compared.annotation, design.table[name], variable=name,
                    group=None if trend else asked.group, reference=None if trend else asked.reference, trend=trend,
                    ordered=name not in asked.categorical, blocks=design.blocks, adjust=held, cells=compared.cells,
                    features=compared.features, feature_names=compared.feature_names, **asked.tests,
                )
            )  # fmt: skip
        except InvalidInputError as error:
            if len(wanted) == 1:
                raise
            failed.append(Sentence(f"Cell types were not compared along {quoted(name)}: {error.sentence.marked}"))
    every = sorted((one for result in results for one in result.contrasts), key=lambda one: one.p_value)
    left_out = (*(note for result in results for note in result.left_out), *failed)
    together = tuple(result.omnibus for result in results if result.omnibus is not None)
    return CellContrasts(tuple(every), left_out=left_out), together


def contrasted(findings: Sequence[Finding], table: Any, asked: StudyParameters) -> list[tuple[str, bool]]:
    """Return the variables whose cell types are contrasted, and whether only their trend is.

    The default is the first categorical variable that could be tested, else the first number.
    """
    tested = [finding for finding in findings if finding.answer is not None]
    grouped = [finding.variable for finding in tested if finding.kind == "groups"]
    named = next((name for name in (asked.group, asked.reference) if name is not None), None)
    trends = [(name, True) for name in asked.trend]
    if named is not None:
        return [(check_reference(named, {name: table[name].tolist() for name in grouped or table}), False), *trends]
    if trends:
        return trends
    return [(name, False) for name in grouped[:1]] or [(finding.variable, True) for finding in tested[:1]]


def _named(cells: Any, n_points: int) -> Annotation:
    """Return the type of each point as an annotation; its default name is "cell type"."""
    if isinstance(cells, Mapping):
        if len(cells) != 1:
            raise InvalidInputError("one annotation in the argument cells", f"{len(cells)}")
        ((name, values),) = cells.items()
        return annotate(str(name), values, n_points)
    name = getattr(cells, "name", None)
    return annotate("cell type" if name is None else str(name), cells, n_points)


def _enough_cells(cohort: Cohort, asked: StudyParameters) -> Intp:
    """Return the indices of the samples with enough cells, or raise if samples are too few, too small or too many."""
    least = asked.min_cells or 1
    single = [name for name, size in zip(cohort.names, cohort.sizes, strict=True) if size < 2]
    if asked.min_cells is None and single:
        raise InvalidInputError(
            "at least two cells in every sample",
            f"one cell in {len(single)} of {counted(len(cohort.names), 'sample')} ({listed(single)})",
            f"{argument('min_cells', 2)} leaves out these samples, and {argument('min_cells', 1)} keeps them",
        )
    kept = np.flatnonzero(cohort.sizes >= least)
    if len(kept) < 2:
        raise InvalidInputError(
            f"at least two samples{f' with {least} or more cells' if least > 1 else ''} to compare",
            f"{len(kept)} of {counted(len(cohort.names), 'sample')}",
            f"lower {argument('min_cells')}" if len(cohort.names) > 1 else "check the column that names the samples",
        )
    check_all_pairs(len(kept))
    if (asked.bias == "corrected" or asked.n_bootstrap) and cohort.sizes[kept].max() < 2:
        raise InvalidInputError(
            "a sample with at least two cells, to estimate sampling noise",
            f"{counted(len(kept), 'sample')} with 1 cell each",
            f"{argument('bias', 'raw')} compares samples without correction",
        )
    return kept


def choose_variables(
    cohort: Cohort, table: Any, variables: Sequence[str] | None, excluded: str | Sequence[str] | None
) -> list[str]:
    """Return the names of the variables to examine; raise if a variable that the user named is missing or constant.

    ``excluded`` contains the names of blocks and covariates, which are not examined by default.
    """
    if variables is None:
        left = {excluded} if isinstance(excluded, str) else set(excluded or ())
        return [str(name) for name in table.columns if name not in left and _varied(table[name])]
    for name in variables:
        values = cohort.variable(name).loc[table.index].dropna()
        if values.nunique() < 2:
            seen = f"only {quoted(values.iloc[0])}" if len(values) else "no value"
            raise InvalidInputError(
                f"{quoted(name)} to differ between samples",
                f"{seen} in {counted(len(table), 'sample')}",
                "choose another variable",
            )
    return list(dict.fromkeys(variables))


def _covariates(table: Any, blocks: Any | None, asked: StudyParameters) -> Design | None:
    if not asked.design:
        return None
    columns = {
        name: _check_known(f"a value of {quoted(name)} for every sample, to hold it fixed", table[name], table)
        for name in asked.design
    }
    if asked.align_batch in columns:  # read batch numbers as names
        columns[asked.align_batch] = list(as_groups(columns[asked.align_batch]))
    design = design_of(columns, formula=asked.formula, numeric=asked.numeric)
    to_check = asked.variables or ()
    if asked.formula is not None:
        check_design(design, blocks=blocks)
        to_check = asked.design[:1]  # problems with the other variables are reported in their findings
    for name in to_check:
        check_adjusted(name, table[name].tolist(), design, blocks=blocks, numeric=name in asked.numeric)
    return design


def _batches(table: Any, asked: StudyParameters) -> tuple[list[Any], dict[str, list[Any]], list[Any] | None]:
    """Return the batch of each sample, the variables whose effects are not removed, and the anchors or None."""
    assert asked.align_batch is not None
    columns = {
        name: _check_known(f"a value of {quoted(name)} for every sample, to align batches", table[name], table)
        for name in (*(() if asked.anchors else asked.kept_variables), asked.align_batch)
    }
    batch = columns.pop(asked.align_batch)
    return batch, columns, None if asked.anchors is None else table[asked.anchors].tolist()


def _check_known(expected: str, values: Any, table: Any) -> list[Any]:
    """Return the values of a variable, or raise if values are missing."""
    column = list(values)
    missing = [sample for sample, value in zip(table.index, column, strict=True) if is_missing(value)]
    if missing:
        raise InvalidInputError(
            expected,
            f"none for {len(missing)} of {counted(len(column), 'sample')} ({listed(missing)})",
            "leave out these samples or this variable",
        )
    return column


def _varied(column: Any) -> bool:
    """Return whether to test a variable by default: its values vary, and are not names of the samples."""
    present = column.dropna()
    different = present.nunique()
    numeric = present.dtype.kind in "iuf"
    return bool(different > 1 and len(present) > 3 and (numeric or different <= len(present) // 2))


def check_components(affinity: Any, cells: Float64) -> None:
    """Raise if too many cells are outside the largest component of the graph.

    Parameters
    ----------
    affinity
        Affinity of the graph, ``(n_nodes, n_nodes)``.
    cells
        Number of cells at each node, ``(n_nodes,)``; a landmark represents several cells.
    """
    n_components, component = connected_components(affinity, directed=False)
    inside = np.bincount(component, weights=cells)
    outside = 1 - float(inside.max() / inside.sum())
    if outside > MOST_APART:
        raise InvalidInputError(
            "a connected graph",
            f"{counted(n_components, 'component')}, with {outside:.0%} of the cells outside the largest",
            f"raise {argument('n_neighbors')}, remove outliers, or continue with {argument('allow_components', True)}, "
            "although mass never moves between components",
        )


def _comparison_notes(comparison: Comparison) -> Iterator[str]:
    """Yield notes on drawn cells, sampling noise, units and landmarks."""
    if comparison.drawn is not None:
        yield f"{comparison.drawn}. The other cells were not used."
    yield from _size_notes(comparison)
    if comparison.uncertainty is not None:
        yield " ".join(sentence for sentence in noise_sentences(comparison) if sentence not in (NOISY, RELIABLE))
        if unreliable(comparison):
            yield NOISY
    if comparison.calibration is not None:
        yield comparison.calibration.describe()
    if comparison.landmark_agreement is not None:
        yield f"Landmarks approximate the cells: {comparison.landmark_agreement}."


def _size_notes(comparison: Comparison) -> Iterator[str]:
    sizes = comparison.sizes
    if len(sizes) < 8 or sizes.min() == sizes.max():
        return
    nearest = comparison.nearest(1)[0][:, 0]
    if nearest.min() == nearest.max():
        return
    ranks = centered_ranks(np.stack([sizes.astype(np.float64), nearest]))
    correlation = float(np.asarray(np.corrcoef(ranks))[0, 1])
    if correlation < SIZE_MATTERS:
        small = int((sizes < SMALL_SAMPLE).sum())
        few = f", and {small} of them {verb(small, 'has', 'have')} fewer than {SMALL_SAMPLE}" if small else ""
        remedy = f"{argument('bias', 'corrected')} removes the bias, " if comparison.bias == "raw" else ""
        yield Sentence(
            "Small samples look artificially distant: the fewer cells a sample has, the further away is its nearest "
            f"sample (Spearman {correlation:.2f}). The samples have {sizes.min()} to "
            f"{counted(int(sizes.max()), 'cell')}{few}. This bias may explain part of any difference. "
            f"{remedy}{argument('equal_cells', True)} draws the same number of cells from every sample, and "
            f"{argument('min_cells')} leaves small samples out."
        )


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Yield a list for embedding warnings. Graph warnings are dropped, because the diagnosis repeats them."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield messages
    for warning in warned:
        if isinstance(warning.message, EmbeddingWarning):
            messages.append(warning.message.args[0])
        elif not issubclass(warning.category, GraphWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
