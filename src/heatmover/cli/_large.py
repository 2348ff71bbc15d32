"""`compare` for cells that do not fit into memory: in pieces, within a budget, on a cluster, with a checkpoint."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, final

from heatmover._progress import Progress
from heatmover._validation import check_memory
from heatmover.analysis.study import Study
from heatmover.cli._settings import Settings
from heatmover.cli._words import in_options
from heatmover.cohort import Cohort
from heatmover.errors import InvalidInputError
from heatmover.scale import study_cohort
from heatmover.scale._checkpoint import check_place
from heatmover.scale._execute import connected

__all__ = ["Large"]

DEFAULT_MEMORY = "4 GB"


@final
@dataclass(frozen=True)
class Large:
    """The options of a run in pieces, checked; the first of them that is given makes it one."""

    memory: str | None
    scheduler: str | None
    checkpoint: str | None
    resume: bool

    @property
    def wanted(self) -> bool:
        """Whether any was given."""
        return self.resume or any(value is not None for value in (self.memory, self.scheduler, self.checkpoint))

    @contextmanager
    def ready(self, settings: Settings) -> Iterator[Any]:
        """Check everything that can be checked before a cell is read, and give the client of the cluster."""
        check_memory(self.memory or DEFAULT_MEMORY)
        if settings.landmarks is None:
            raise InvalidInputError(
                "landmarks for cells that stay on disk", "--landmarks none", "leave out --landmarks, or --memory"
            )
        if settings.cells is not None:
            raise InvalidInputError(
                "--cells where all cells fit into memory", "a run in pieces", "leave out --cells, or --memory"
            )
        check_place(self.checkpoint, resume=self.resume)
        with connected(self.scheduler) as client:
            yield client

    def study(self, settings: Settings, cohort: Cohort, client: Any, progress: Progress) -> Study:
        """Compare the samples and test their variables; notes speak of options, not of arguments."""
        found = study_cohort(
            cohort,
            variables=list(settings.color) or None,
            block=settings.block,
            min_cells=settings.min_cells,
            allow_parts=settings.allow_parts,
            n_neighbors=settings.neighbors,
            landmarks=settings.landmarks or "auto",
            memory=self.memory or DEFAULT_MEMORY,
            client=client,
            checkpoint=self.checkpoint,
            resume=self.resume,
            n_permutations=settings.permutations,
            random_state=settings.seed,
            n_jobs=settings.threads,
            progress=progress,
        )
        notes = tuple(in_options(note) for note in found.notes)
        return replace(found, notes=notes, record={**found.record, "notes": list(notes)})

    def command(self, settings: Settings) -> dict[str, Any]:
        """Return the command as it can be given again; where it ran and what it kept changes no number."""
        command = settings.command("compare")
        return command | {"line": f"{command['line']} {shlex.join(['--memory', self.memory or DEFAULT_MEMORY])}"}
