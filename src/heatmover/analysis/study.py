"""`study_cohort`: a cohort compared, its variables examined, and everything that a report needs to know."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import scipy.sparse as sp

from heatmover._progress import SILENT, Progress
from heatmover._typing import Bool
from heatmover._validation import check_integer, import_extra
from heatmover._words import distinct, listed, quoted
from heatmover.analysis.cell_types import Annotation, CellContrast, CellMasses, annotate, contrast_cells
from heatmover.analysis.checks import check_block, check_parts, choose_variables, enough_cells
from heatmover.analysis.comparison import Comparison, compare
from heatmover.analysis.examination import Finding, examine
from heatmover.analysis.record import Clock, finding_record, how_made, input_record
from heatmover.cohort import Cohort
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError
from heatmover.measures import Measures, measures_from_weights
from heatmover.metrics import centered_ranks

__all__ = [
    "Study",
    "check_block",
    "check_parts",
    "choose_variables",
    "enough_cells",
    "study_cohort",
    "study_comparison",
]

# Below this Spearman correlation of the size of samples with the distance to the nearest the reader is warned: two
# draws of few cells from one distribution differ by luck alone (kidney biopsies of 2 to 415 glomeruli: -0.8).
SIZE_MATTERS = -0.4
SMALL_SAMPLE = 30


@final
@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """A comparison of samples and what it says of their variables; `study_cohort` makes one.

    Attributes
    ----------
    comparison
        Distances, embedding, graph and model.
    variables
        DataFrame with one row per sample in the order of ``comparison.names``.
    findings
        Of the variables examined, in the order asked for.
    block
        Name of the variable that ties samples together; empty for none.
    notes
        What the reader should know before believing the result, in sentences.
    record
        How it was made, as plain values for JSON: parameters, versions, input with checksum, seconds per stage.
    contrast
        Which kinds of cells differ between the groups of the first such variable; None without an annotation of cells.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> result = study_comparison(hm.compare(data.points, data.labels), {"condition": data.annotations["condition"]})
    >>> print(result.headline())
    'condition' goes with the distances between the 12 samples...
    """

    comparison: Comparison
    variables: Any
    findings: tuple[Finding, ...]
    block: str
    notes: tuple[str, ...]
    record: Mapping[str, Any]
    contrast: CellContrast | None = None

    def headline(self) -> str:
        """Return the answer in one sentence: of the first variable asked for that could be tested."""
        n_samples = len(self.comparison.names)
        tested = [finding for finding in self.findings if finding.answer is not None]
        if not tested:
            return f"{n_samples} samples were compared; no variable of theirs could be tested."
        first = tested[0]
        answer = first.answer
        assert answer is not None
        name, p = quoted(first.variable), f"p = {answer.p_value:.2g}"
        size = (
            f"explains {100 * answer.effect:.2g} % of their variation"
            if first.kind == "groups"
            else f"has a distance correlation of {answer.statistic:.2f} with them"
        )
        if first.sure:
            return f"{name} goes with the distances between the {n_samples} samples: it {size} ({p})."
        if answer.p_value <= 0.05:
            return (
                f"{name} may go with the distances between the {n_samples} samples: it {size} ({p}), which is not "
                f"sure among {len(tested)} variables tested."
            )
        return f"No sign that {name} goes with the distances between the {n_samples} samples: it {size} ({p})."

    def __repr__(self) -> str:
        return f"Study({self.headline()})"


def study_cohort(
    cohort: Cohort,
    *,
    variables: Sequence[str] | None = None,
    block: str | None = None,
    cells: str | None = None,
    min_cells: int | None = None,
    allow_parts: bool = False,
    n_neighbors: int = 30,
    landmarks: int | Literal["auto"] | None = "auto",
    n_permutations: int = 999,
    random_state: int = 0,
    n_jobs: int | None = None,
    progress: Progress = SILENT,
) -> Study:
    r"""Compare the samples of a cohort and test what goes with the distances.

    Parameters
    ----------
    cohort
        From `heatmover.cohort.read_cohort`.
    variables
        Names of the variables of the samples to examine, the most important first; default all that can be tested.
    block
        Name of the variable that ties samples together, such as the patient or the batch; see `examine`.
    cells
        Name of an annotation of the cells, such as their types: tell which of them differ between the groups of the
        first variable that has groups, see `heatmover.analysis.cell_types.contrast_cells`.
    min_cells
        Leave out samples with fewer cells. Default: refuse a cohort in which a sample has a single cell.
    allow_parts
        Go on even if the graph falls into parts, with more than 5 % of the cells outside the largest.
    n_neighbors, landmarks, random_state, n_jobs
        As in `compare`.
    n_permutations
        Rearrangements of every test.
    progress
        Told of all stages.

    Returns
    -------
    Study
        Give it to `heatmover.report` or `heatmover.report.folder`.

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
    check_integer("n_permutations", n_permutations, minimum=1)
    watch = Clock(progress)
    kept = enough_cells(cohort, min_cells)
    table = cohort.samples.iloc[kept]
    chosen = choose_variables(cohort, table, variables, block)
    blocks = None if block is None else check_block(cohort.variable(block).iloc[kept], block)
    place = np.full(len(cohort.names), -1)
    place[kept] = np.arange(len(kept))
    inside = place[cohort.codes] >= 0
    kinds = None if cells is None else _annotation(cohort, cells, inside)
    points = cohort.points() if inside.all() else cohort.points()[inside]
    samples = _measures(place[cohort.codes][inside], [cohort.names[i] for i in kept])
    with _quiet() as warned:
        comparison = compare(
            points, samples, n_neighbors=n_neighbors, landmarks=landmarks,
            random_state=random_state, n_jobs=n_jobs, progress=watch,
        )  # fmt: skip
    watch.stage("diagnose graph", 1)
    _check_parts(comparison, allow_parts)
    watch.advance()
    parameters = {
        "variables": list(chosen), "block": block, "cells": cells, "min_cells": min_cells, "allow_parts": allow_parts,
        "n_neighbors": n_neighbors, "landmarks": landmarks, "n_permutations": n_permutations, "seed": random_state,
    }  # fmt: skip
    left_out = [cohort.names[i] for i in sorted(set(range(len(cohort.names))) - set(kept))]
    compact = [str(found.message) for found in warned if issubclass(found.category, EmbeddingWarning)]
    notes = (*_left_out_notes(left_out, min_cells), *cohort.warnings, *compact)
    found = _finish(
        comparison, table, chosen, blocks, block or "", notes,
        {"input": input_record(cohort), "parameters": parameters},
        n_permutations=n_permutations, random_state=random_state, watch=watch,
    )  # fmt: skip
    if kinds is None:
        return found
    marks = comparison.landmarks
    masses = None if marks is None else CellMasses(samples.masses, marks.assign(points, n_jobs=n_jobs))
    return _with_contrast(found, kinds, masses, blocks, watch)


def study_comparison(
    comparison: Comparison,
    variables: Mapping[str, Any] | Any | None = None,
    *,
    blocks: Sequence[object] | None = None,
    cells: Mapping[str, Any] | Any | None = None,
    n_permutations: int = 999,
    random_state: int = 0,
    progress: Progress = SILENT,
) -> Study:
    """Examine the variables of samples that were compared already.

    Parameters
    ----------
    comparison
        From `compare`.
    variables
        Values ``(n_samples,)`` by name, in the order of ``comparison.names``: a mapping, or a DataFrame (by its index
        if that holds the names). The most important first.
    cells
        Kind of each point of the graph, ``(n_points,)``, such as the type of each cell; in a mapping of one entry, or a
        Series, it has a name. With landmarks these are the points: `study_cohort` counts every cell for its own kind.
    blocks, n_permutations, random_state, progress
        As in `examine`.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=60, effect=4.0)
    >>> comparison, condition = hm.compare(data.points, data.labels), data.annotations["condition"]
    >>> branch = {"branch": data.coordinates[:, 0].astype(int)}
    >>> study_comparison(comparison, {"condition": condition}, cells=branch).contrast
    CellContrast(case against control, 5 kinds of branch)
    """
    pandas = import_extra("pandas", package="pandas", extra="cohort")
    names = list(comparison.names)
    watch = Clock(progress)
    frame = variables if isinstance(variables, pandas.DataFrame) else pandas.DataFrame(dict(variables or {}))
    if variables is None or not len(frame.columns):
        frame = pandas.DataFrame(index=names)
    table = _in_order(frame, names).set_axis(pandas.Index(names, name="sample"))
    table.columns = [str(name) for name in table.columns]
    distinct(list(table.columns), "names of variables", "1 and '1' read the same")
    kinds = None if cells is None else _named(cells, comparison.graph.n_points)
    parameters: dict[str, Any] = {"variables": list(table.columns)} | ({} if kinds is None else {"cells": kinds.name})
    parameters |= {"n_permutations": n_permutations, "seed": random_state}
    found = _finish(
        comparison, table, list(table.columns), blocks, "" if blocks is None else "blocks", (),
        {"input": None, "parameters": parameters},
        n_permutations=n_permutations, random_state=random_state, watch=watch,
    )  # fmt: skip
    return found if kinds is None else _with_contrast(found, kinds, None, blocks, watch)


def _named(cells: Any, n_points: int) -> Annotation:
    """Return the kind of each point, with the name that it has."""
    if isinstance(cells, Mapping):
        if len(cells) != 1:
            raise InvalidInputError("cells: one annotation", f"{len(cells)}")
        ((name, values),) = cells.items()
        return annotate(str(name), values, n_points)
    name = getattr(cells, "name", None)
    return annotate("kind of cell" if name is None else str(name), cells, n_points)


def _annotation(cohort: Cohort, name: str, inside: Bool) -> Annotation:
    codes, kinds = cohort.annotation(name)
    return annotate(name, (codes[inside], kinds), int(inside.sum()))


def _with_contrast(
    study: Study, kinds: Annotation, cells: CellMasses | None, blocks: Sequence[object] | None, watch: Clock
) -> Study:
    """Return the study with the contrast of the first variable that has groups, or a note why there is none."""
    asked = study.record["parameters"]
    first = next((found for found in study.findings if found.kind == "groups" and found.answer is not None), None)
    watch.stage("contrast cells", 1)
    contrast, why = None, "no variable of the samples with groups was tested."
    if first is not None:
        try:
            contrast = contrast_cells(
                study.comparison, kinds, study.variables[first.variable].tolist(), variable=first.variable,
                blocks=blocks, cells=cells, n_permutations=asked["n_permutations"], random_state=asked["seed"],
            )  # fmt: skip
        except InvalidInputError as error:
            why = str(error)
    watch.advance()
    watch.end()
    notes = study.notes if contrast else (*study.notes, f"Which kinds of {quoted(kinds.name)} differ: {why}")
    seconds = {name: round(value, 3) for name, value in watch.seconds.items()}
    record = {**study.record, "notes": list(notes), "seconds": seconds}
    record["contrast"] = None if contrast is None else contrast.record()
    return replace(study, contrast=contrast, notes=notes, record=record)


def _in_order(frame: Any, names: list[str]) -> Any:
    """Return the rows of the samples, by the index unless that merely counts."""
    labels = [str(label) for label in frame.index]
    if set(names) <= set(labels):
        frame = frame.set_axis(labels).loc[names]
    elif labels != [str(place) for place in range(len(labels))]:
        absent = [name for name in names if name not in set(labels)]
        raise InvalidInputError("the names of the samples in the index of variables", f"{listed(absent)} not there")
    if len(frame) != len(names):
        raise InvalidInputError(f"variables of {len(names)} samples", f"{len(frame)} rows")
    return frame


def _finish(
    comparison: Comparison,
    table: Any,
    chosen: Sequence[str],
    blocks: Sequence[object] | None,
    block: str,
    notes: tuple[str, ...],
    record: dict[str, Any],
    *,
    n_permutations: int,
    random_state: int,
    watch: Clock,
) -> Study:
    findings = examine(
        comparison.distances,
        {name: table[name].tolist() for name in chosen},
        blocks=blocks,
        n_permutations=n_permutations,
        random_state=random_state,
        progress=watch,
    )
    watch.end()
    notes = (*notes, *_size_notes(comparison), *_landmark_notes(comparison))
    record |= how_made(comparison) | {
        "findings": [finding_record(finding) for finding in findings],
        "notes": list(notes),
    }
    record["seconds"] = {name: round(seconds, 3) for name, seconds in watch.seconds.items()}
    return Study(comparison, table, findings, block, notes, record)


def _measures(codes: Any, names: list[str]) -> Measures:
    cells = sp.csr_array((np.ones(codes.size), (codes, np.arange(codes.size))), shape=(len(names), codes.size))
    return measures_from_weights(cells, names=names)


def _check_parts(comparison: Comparison, allow_parts: bool) -> None:
    if comparison.diagnosis.n_components > 1 and not allow_parts:
        cells = comparison.sizes @ comparison.measures.masses
        check_parts(comparison.graph.node_affinity, comparison.graph.gather(cells[None])[0])


def _left_out_notes(names: list[str], min_cells: int | None) -> Iterator[str]:
    if names:
        yield (
            f"{len(names)} {'sample' if len(names) == 1 else 'samples'} with fewer than {min_cells} cells left out: "
            f"{listed(names)}."
        )


def _size_notes(comparison: Comparison) -> Iterator[str]:
    sizes = comparison.sizes
    if len(sizes) < 8 or sizes.min() == sizes.max():
        return
    nearest = comparison.nearest(1)[0][:, 0]
    if nearest.min() == nearest.max():
        return
    a, b = centered_ranks(np.stack([sizes.astype(np.float64), nearest]))
    correlation = float(a @ b / np.sqrt((a @ a) * (b @ b)))
    if correlation < SIZE_MATTERS:
        small = int((sizes < SMALL_SAMPLE).sum())
        few = f"; {small} samples have fewer than {SMALL_SAMPLE}" if small else ""
        yield (
            f"Small samples look far from all others: the fewer cells, the further the nearest sample (Spearman "
            f"{correlation:.2f}; {sizes.min()} to {sizes.max()} cells{few}). Part of any difference may be the number "
            "of cells; min_cells leaves small samples out."
        )


def _landmark_notes(comparison: Comparison) -> Iterator[str]:
    loss = comparison.landmark_loss
    if loss is not None:
        yield f"Landmarks stood for the cells: {loss}."


@contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Leave out what the diagnosis says again, at its place, and give what else was warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield warned
    for found in warned:
        if not issubclass(found.category, GraphWarning | EmbeddingWarning):
            warnings.warn_explicit(found.message, found.category, found.filename, found.lineno)
