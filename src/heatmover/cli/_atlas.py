"""`heatmover atlas`: build an atlas of reference samples, map new samples onto it, look at it."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heatmover._words import counted, verb
from heatmover.cli import _options as options
from heatmover.cli._late import load_late
from heatmover.cli._terminal import clean, fail, output, plain_errors, watched
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, argument

if TYPE_CHECKING:
    from heatmover.atlas import Atlas
    from heatmover.cohort import Cohort
    from heatmover.scale import InPieces

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

AtlasFolder = Annotated[str, typer.Argument(help="Folder of an atlas.", metavar="ATLAS", show_default=False)]
NewAtlas = Annotated[
    str, typer.Option("--out", "-o", metavar="DIR", help="Folder to make, such as kidney.atlas.", show_default=False)
]
Nearest = Annotated[
    str | None,
    typer.Option(
        "--nearest", "-k", metavar="N", show_default="10, if there are",
        help="Nearest reference samples that are written, and vote.",
    ),
]  # fmt: skip
Predict = Annotated[
    list[str] | None,
    typer.Option("--predict", metavar="VARIABLE", help="Variable of the reference to predict; may be given again."),
]
Found = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", metavar="DIR",
        help="Folder for the report and the table; a name that ends in .csv is the table alone.",
    ),
]  # fmt: skip
Placing = Annotated[
    str,
    typer.Option(
        "--placement", metavar="WAY",
        help="Where cells go: the nearest node (nearest), or shared with the nodes around it (kernel).",
    ),
]  # fmt: skip
MAPPED = "mapped.csv"
# How many reference samples a terminal shows.
SHOWN = 20


@app.callback()
def atlas() -> None:
    """Keep reference samples as an atlas, and ask where new samples land on it."""


@app.command()
def build(
    file: options.File,
    *,
    out: NewAtlas,
    sample_key: options.SampleKey = None,
    rep: options.Rep = None,
    annotation: options.AnnotationColumn = None,
    sample_sheet: options.SampleSheet = None,
    skip_unlisted: options.SkipUnlisted = False,
    standardize: options.Standardize = False,
    components: options.Components = None,
    cofactor: options.Cofactor = None,
    transform: options.Transform = None,
    compensate: options.Compensate = None,
    missing: options.Missing = "refuse",
    neighbors: options.Neighbors = "30",
    landmarks: options.Landmarks = "auto",
    units: options.Units = None,
    memory: options.Memory = None,
    scheduler: options.Scheduler = None,
    checkpoint: options.Checkpoint = None,
    resume: options.Resume = False,
    seed: options.Seed = "0",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    force: options.Force = False,
) -> None:
    """Build an atlas from a file of cells: model, reference samples with their variables, and what they cover."""
    load_late("scipy.stats")
    typed = locals()
    with plain_errors():
        _check_free(out, force)
        with watched(quiet) as progress, ExitStack() as stack:
            from heatmover.atlas import build_atlas

            pieces = stack.enter_context(_pieces(typed))
            cohort = _read(typed, progress, pieces)
            # Said in a line of their own, at the end.
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            for kind in (GraphWarning, EmbeddingWarning):
                warnings.simplefilter("always", kind)
            found = build_atlas(
                cohort, n_neighbors=options.number(neighbors),
                landmarks=options.number(landmarks, {"auto": "auto", "none": None}), units=units,  # type: ignore[arg-type]
                pieces=pieces, random_state=options.number(seed), n_jobs=options.number(threads), progress=progress,
            )  # fmt: skip
            found.save(out, overwrite=force)
    if not quiet:
        for line in (*cohort.warnings, *(each.message.args[0] for each in caught), f"{found} in {out}"):  # type: ignore[union-attr]
            output().print(clean(options.in_options(line)), soft_wrap=True)


@app.command("map")
def map_(
    atlas: AtlasFolder,
    file: options.File,
    *,
    sample_key: options.SampleKey = None,
    sample_sheet: options.SampleSheet = None,
    skip_unlisted: options.SkipUnlisted = False,
    missing: options.Missing = "refuse",
    nearest: Nearest = None,
    predict: Predict = None,
    placement: Placing = "nearest",
    out: Found = None,
    title: options.Title = None,
    force: options.Force = False,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Tell where the samples of a file land on an atlas, and whether the atlas covers them.

    Exit code 0 if all are covered, 1 if one is not, 2 if the file cannot be mapped.
    """
    load_late("scipy.stats")
    with plain_errors():
        _check_found(out, file, sample_sheet)
        reference = _load(atlas)
        mapped = reference.map(
            file, sample_key=sample_key, sample_sheet=sample_sheet, n_jobs=options.number(threads),
            placement=placement, on_missing=missing, skip_unlisted=skip_unlisted,  # type: ignore[arg-type]
        )  # fmt: skip
        mapped = replace(mapped, warnings=tuple(map(options.in_options, mapped.warnings)))
        k = min(10, len(reference.names) - 1) if nearest is None else options.number(nearest)
        mapped.nearest(k)  # refuses more than there are
        answers = [(name, mapped.predict(name, k)) for name in predict or ()]
        if out is not None:
            _write_found(mapped, out, k, predict, title, force)
    if not quiet:
        for line in mapped.lines(min(k, 3)):
            output().print(clean(line), soft_wrap=True)
        for name, answer in answers:
            for sample, value, chance in zip(mapped.names, answer.values, answer.chances, strict=True):
                doubt = f"median error {answer.accuracy:.3g}" if answer.is_number else f"chance {chance:.2f}"
                output().print(clean(f"{sample}: {name} {value} ({doubt})"), soft_wrap=True)
    if mapped.coverage is not None and False in mapped.coverage.covered:
        raise typer.Exit(1)


@app.command()
def add(
    atlas: AtlasFolder,
    file: options.File,
    *,
    sample_key: options.SampleKey = None,
    sample_sheet: options.SampleSheet = None,
    skip_unlisted: options.SkipUnlisted = False,
    missing: options.Missing = "refuse",
    threads: options.Threads = None,
    quiet: options.Quiet = False,
) -> None:
    """Add the samples of a file to the reference samples of an atlas; its model and its nodes stay as they are."""
    load_late("scipy.stats")
    with plain_errors():
        _check_found(None, file, sample_sheet)
        reference = _load(atlas)
        cohort = reference.features.open(file, sample_key, sample_sheet, missing, skip_unlisted)  # type: ignore[arg-type]
        mapped = reference.map(
            file, sample_key=sample_key, sample_sheet=sample_sheet, n_jobs=options.number(threads),
            on_missing=missing, skip_unlisted=skip_unlisted,  # type: ignore[arg-type]
        )  # fmt: skip
        known = {name: cohort.samples[name].tolist() for name in cohort.samples if name in reference.variables}
        larger = reference.add(mapped, known, path=atlas)
    if not quiet:
        for line in (f"{larger} in {atlas}", *_grown(larger), *mapped.uncovered(), *mapped.warnings):
            output().print(clean(options.in_options(line)), soft_wrap=True)


@app.command()
def info(atlas: AtlasFolder) -> None:
    """Tell what an atlas holds."""
    with plain_errors():
        reference = _load(atlas)
        from heatmover.storage import Store

        head = Store.open(atlas).manifest
        lines = [
            str(reference),
            f"format {head.kind}, version {head.version}, written by heatmover {head.writer}",
            f"features: {', '.join(reference.features.names[:SHOWN])}",
            *_grown(reference),
            *reference.model.prepared_.describe().splitlines(),
        ]
        for row, (name, size) in enumerate(zip(reference.names[:SHOWN], reference.sizes, strict=False)):
            values = ", ".join(f"{key} {column[row]}" for key, column in reference.variables.items())
            lines.append(f"{name}: {counted(size, 'cell')}{f'; {values}' if values else ''}")
        if len(reference.names) > SHOWN:
            lines.append(f"and {counted(len(reference.names) - SHOWN, 'more sample')}")
    for line in lines:
        output().print(clean(line), soft_wrap=True)


@app.command()
def check(atlas: AtlasFolder) -> None:
    """Verify every checksum of an atlas or a saved model, in little memory; exit code 0 if every bit is right."""
    with plain_errors():
        from heatmover.atlas import verify
        from heatmover.cli._settings import check_named

        check_named(atlas=atlas)
        arrays = verify(atlas)
    output().print(clean(f"{counted(len(arrays), 'array')}, {sum(arrays.values()):,} bytes: every checksum is right"))


def _check_found(out: str | None, file: str, sample_sheet: str | None) -> None:
    """Raise if what was found cannot be written, before it is looked for."""
    from heatmover.cli._settings import check_named, check_places

    check_named(file=file, sample_sheet=sample_sheet)
    if out is not None:
        from heatmover._validation import check_extra
        from heatmover.report.folder import EVERY

        check_places(out, file, sample_sheet, names=("",) if _is_table(out) else (*EVERY, MAPPED))
        if not _is_table(out):
            check_extra("jinja2", package="jinja2", extra="cohort")


def _is_table(out: str) -> bool:
    return Path(out).suffix.lower() == ".csv"


def _write_found(mapped: Any, out: str, k: int, predict: list[str] | None, title: str | None, force: bool) -> None:
    """Write the table, or a folder with the report and the table, complete or not at all."""
    if _is_table(out):
        mapped.to_csv(out, k, predict or ())
        return
    from heatmover.report.folder import EVERY, result_folder

    with result_folder(Path(out), force=force, names=(*EVERY, MAPPED)) as folder:
        mapped.to_csv(folder / MAPPED, k, predict or ())
        mapped.report(folder / "report.html", predict=predict, k=k, title=title)


def _grown(atlas: Atlas) -> list[str]:
    """Say by which samples an atlas judges coverage, if it has others too."""
    built_of = len(atlas.names) if atlas.support is None else atlas.support.n_cells.size
    added = len(atlas.names) - built_of
    if not added:
        return []
    return [
        f"{counted(added, 'sample')} {verb(added, 'was', 'were')} added; coverage is judged by the {built_of} that "
        f"the atlas was built of"
    ]


def _check_free(out: str, force: bool) -> None:
    from heatmover.atlas.atlas import ATLAS_SCHEMA, ATLAS_VERSION
    from heatmover.cli._settings import check_named, check_outside
    from heatmover.storage import Store

    check_named(out=out)
    check_outside("--out", out, {}, itself=False)
    if not os.path.lexists(out):
        return
    if not force:
        raise InvalidInputError(
            f"a path for {argument('out')} where nothing is", f"{out!r}", f"{argument('force')} replaces an atlas"
        )
    try:
        Store.open(out, {ATLAS_SCHEMA: ATLAS_VERSION})
    except InvalidInputError:
        raise InvalidInputError(
            f"an atlas for {argument('force')} to replace",
            f"something else at {out!r}",
            f"choose another {argument('out')}",
        ) from None


def _read(typed: dict[str, Any], progress: Any, pieces: InPieces | None) -> Cohort:
    from heatmover.cli._candidates import check_sample_key
    from heatmover.cli._settings import reading_of

    check_sample_key(typed["file"], typed["sample_key"])
    return reading_of(typed).read((), options.number(typed["seed"]), progress, pieces)


def _pieces(typed: dict[str, Any]) -> AbstractContextManager[InPieces | None]:
    """Return what reads cells in pieces, if that is asked for, or raise before a cell is read."""
    from heatmover.analysis import StudyParameters
    from heatmover.cli._settings import check_named, check_outside, pieces_of

    out, file, checkpoint = typed["out"], typed["file"], typed["checkpoint"]
    check_named(file=file, sample_sheet=typed["sample_sheet"], checkpoint=checkpoint)
    if checkpoint is not None:
        check_outside("--checkpoint", checkpoint, {"the input": file, "--out": out}, itself=False)
        check_outside("--out", out, {"--checkpoint": checkpoint}, itself=False)
    study = StudyParameters(
        landmarks=options.number(typed["landmarks"], {"auto": "auto", "none": None}), units=typed["units"]
    )
    return pieces_of(
        options.number(typed["threads"]), typed["memory"], typed["scheduler"], checkpoint, typed["resume"], study
    )


def _load(path: str) -> Atlas:
    from heatmover.atlas import Atlas, load
    from heatmover.cli._settings import check_named

    check_named(atlas=path)
    found = load(path)
    if not isinstance(found, Atlas):
        fail(f"Expected an atlas, found a saved {type(found).__name__} without reference samples.")
    return found
