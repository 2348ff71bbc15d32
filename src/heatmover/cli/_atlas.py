"""Define `heatmover atlas`: build, show, check and extend atlases, map samples and write results; for `cli` only."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from heatmover._base.words import counted, verb
from heatmover.cli._command import OptionsCommand, plain_errors
from heatmover.cli._terminal import clean, fail, output, watched
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, argument

if TYPE_CHECKING:
    from heatmover.atlas import Atlas
    from heatmover.cli._settings import MapOptions, Running

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

MAPPED = "mapped.csv"
# Largest number of reference samples, and of features, that `info` shows.
SHOWN = 20


@app.callback()
def atlas() -> None:
    """Store reference samples and map new samples onto them."""


@app.command(cls=OptionsCommand)
def build(ctx: typer.Context) -> None:
    """Build an atlas from a file of cells.

    An atlas holds the fitted model, the reference samples with their metadata, and a random draw of reference cells for
    the coverage test.
    """
    from heatmover.atlas import build_atlas
    from heatmover.cli._settings import Reading, Running, check_sample_key, in_options, made, pieces_of
    from heatmover.study import StudyParameters

    out = ctx.params["out"]
    with plain_errors():
        _check_free(out, ctx.params["force"])
        _check_apart(ctx.params)
        running, asked = made(Running, ctx.params), made(StudyParameters, ctx.params)
        with watched(running.quiet) as progress, pieces_of(running, asked) as pieces:
            reading = made(Reading, ctx.params)
            check_sample_key(reading.path, reading.sample_key)
            cohort = reading.read((), asked.random_state, progress, pieces)
            # Collect warnings, to show each on its own line at the end.
            with warnings.catch_warnings(record=True) as caught:
                for kind in (GraphWarning, EmbeddingWarning):
                    warnings.simplefilter("always", kind)
                built = build_atlas(
                    cohort, n_neighbors=asked.n_neighbors, landmarks=asked.landmarks, units=asked.units, pieces=pieces,
                    random_state=asked.random_state, n_jobs=running.n_jobs, progress=progress,
                )  # fmt: skip
            built.save(out, overwrite=running.force)
    if not running.quiet:
        _tell(*map(in_options, (*cohort.warnings, *(each.message.args[0] for each in caught), f"{built} in {out}")))  # type: ignore[union-attr]


@app.command("map", cls=OptionsCommand)
def map_(ctx: typer.Context) -> None:
    """Map the samples of a file onto an atlas.

    Reports the nearest reference samples of each new sample, and whether the atlas covers the new sample. The exit code
    is 0 if all samples are covered, 1 if any sample is not covered, and 2 if the file cannot be mapped.
    """
    from heatmover.cli._settings import MapOptions, Running, in_options, made

    with plain_errors():
        asked, running = made(MapOptions, ctx.params), made(Running, ctx.params)
        _check_places(asked.out, ctx.params)
        reference = _load(asked.atlas)
        mapped = reference.map(**_mapping(ctx.params))
        mapped = replace(mapped, warnings=tuple(map(in_options, mapped.warnings)))
        k = min(10, len(reference.names) - 1) if asked.nearest is None else asked.nearest
        mapped.nearest(k)  # raises an error if k is too large
        answers = [(name, mapped.predict(name, k)) for name in asked.predict]
        if asked.out is not None:
            _write_mapped(mapped, asked, k, running)
    if not running.quiet:
        _tell(*mapped.lines(min(k, 3)))
        for name, answer in answers:
            for sample, value, chance in zip(mapped.names, answer.values, answer.chances, strict=True):
                reliability = f"median error {answer.accuracy:.3g}" if answer.is_number else f"accuracy {chance:.2f}"
                _tell(f"{sample}: {name} {value} ({reliability})")
    if False in mapped.coverage.covered:
        raise typer.Exit(1)


@app.command(cls=OptionsCommand)
def add(ctx: typer.Context) -> None:
    """Add the samples of a file to an atlas.

    The model and its nodes do not change.
    """
    from heatmover.cli._settings import in_options

    path, asked = ctx.params["atlas"], ctx.params
    with plain_errors():
        _check_places(None, asked)
        reference = _load(path)
        cohort = reference.features.open(
            asked["path"], asked["sample_key"], asked["sample_sheet"], asked["on_missing"], asked["skip_unlisted"]
        )
        mapped = reference.map(**_mapping(asked))
        known = {name: cohort.samples[name].tolist() for name in cohort.samples if name in reference.variables}
        larger = reference.add(mapped, known, path=path)
    if not asked["quiet"]:
        lines = (f"{larger} in {path}", *_grown(larger), *mapped.uncovered(), *mapped.warnings)
        _tell(*map(in_options, lines))


@app.command(cls=OptionsCommand)
def info(ctx: typer.Context) -> None:
    """Show the content of an atlas."""
    with plain_errors():
        reference = _load(ctx.params["atlas"])
        from heatmover._base.storage import Store

        head = Store.open(ctx.params["atlas"]).manifest
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
    _tell(*lines)


@app.command(cls=OptionsCommand)
def check(ctx: typer.Context) -> None:
    """Verify every checksum of an atlas or a saved model.

    Exit code 0 means that no file has changed since it was written.
    """
    with plain_errors():
        from heatmover.atlas import verify
        from heatmover.cli._settings import check_named

        check_named(atlas=ctx.params["atlas"])
        arrays = verify(ctx.params["atlas"])
    _tell(f"{counted(len(arrays), 'array')}, {sum(arrays.values()):,} bytes: all checksums match")


def _tell(*lines: str) -> None:
    for line in lines:
        output().print(clean(line), soft_wrap=True)


def _mapping(typed: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Atlas.map` that describe the input."""
    from heatmover.cli._settings import Running, made

    named = {name: typed[name] for name in ("sample_key", "sample_sheet", "on_missing", "skip_unlisted")}
    return {"source": typed["path"], "n_jobs": made(Running, typed).n_jobs, **named}


def _check_places(out: str | None, typed: dict[str, Any]) -> None:
    """Raise an error if results cannot be written, before anything is computed."""
    from heatmover.cli._settings import check_named, check_places

    file, sample_sheet = typed["path"], typed["sample_sheet"]
    check_named(file=file, sample_sheet=sample_sheet)
    if out is not None:
        from heatmover._base.validation import check_extra
        from heatmover.report.folder import EVERY

        check_places(out, ("",) if _is_table(out) else (*EVERY, MAPPED), file, sample_sheet)
        if not _is_table(out):
            check_extra("jinja2", package="jinja2", extra="cohort")


def _is_table(out: str) -> bool:
    return Path(out).suffix.lower() == ".csv"


def _write_mapped(mapped: Any, asked: MapOptions, k: int, running: Running) -> None:
    """Write the table, or a folder with report and table, completely or not at all."""
    out, predict = str(asked.out), asked.predict
    if _is_table(out):
        mapped.to_csv(out, k, predict)
        return
    from heatmover.report.folder import EVERY, result_folder

    with result_folder(Path(out), force=running.force, names=(*EVERY, MAPPED)) as folder:
        mapped.to_csv(folder / MAPPED, k, predict)
        mapped.report(folder / "report.html", predict=predict or None, k=k, title=running.title)


def _grown(atlas: Atlas) -> list[str]:
    """Return a note that only the original samples are used to assess coverage, if samples were added to the atlas."""
    built_of = atlas.support.n_cells.size
    added = len(atlas.names) - built_of
    if not added:
        return []
    return [
        f"{counted(added, 'sample')} {verb(added, 'was', 'were')} added; coverage is assessed with the {built_of} "
        "original samples"
    ]


def _check_free(out: str, force: bool) -> None:
    from heatmover._base.storage import Store
    from heatmover.atlas.atlas import ATLAS_SCHEMA, ATLAS_VERSION
    from heatmover.cli._settings import check_named, check_outside

    check_named(out=out)
    check_outside("--out", out, {}, itself=False)
    if not os.path.lexists(out):
        return
    if not force:
        raise InvalidInputError(
            f"{argument('out')} to be a new path", f"{out!r}, which exists", f"{argument('force')} replaces an atlas"
        )
    try:
        Store.open(out, {ATLAS_SCHEMA: ATLAS_VERSION})
    except InvalidInputError:
        raise InvalidInputError(
            f"an atlas, which {argument('force')} can replace",
            f"something else at {out!r}",
            f"choose another {argument('out')}",
        ) from None


def _check_apart(typed: dict[str, Any]) -> None:
    """Raise an error if the new atlas lies in the checkpoint, or the checkpoint in the new atlas or the input."""
    from heatmover.cli._settings import check_named, check_outside

    out, file, checkpoint = typed["out"], typed["path"], typed["checkpoint"]
    check_named(file=file, sample_sheet=typed["sample_sheet"], checkpoint=checkpoint)
    if checkpoint is not None:
        check_outside("--checkpoint", checkpoint, {"the input": file, "--out": out}, itself=False)
        check_outside("--out", out, {"--checkpoint": checkpoint}, itself=False)


def _load(path: str) -> Atlas:
    from heatmover.atlas import Atlas, load
    from heatmover.cli._settings import check_named

    check_named(atlas=path)
    stored = load(path)
    if not isinstance(stored, Atlas):
        fail(f"Expected an atlas, found a saved {type(stored).__name__} without reference samples.")
    return stored
