"""A stage: pieces of work that are looked up in the checkpoint, else run, kept and folded into a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from heatmover._progress import Progress
from heatmover.scale.checkpoint import Arrays, Checkpoint
from heatmover.scale.execute import Executor, Task

__all__ = ["Stages"]


def _nothing() -> None:
    """Make nothing, for tasks that share nothing."""


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """Runs stages.

    Attributes
    ----------
    executor
        Where tasks run.
    checkpoint
        What is finished already.
    progress
        Told of every finished piece.
    """

    executor: Executor
    checkpoint: Checkpoint
    progress: Progress

    def each(
        self,
        name: str,
        tasks: Mapping[int, Task],
        weights: Mapping[int, int],
        fold: Callable[[int, Arrays], None],
        shared: Callable[[], Any] = _nothing,
    ) -> None:
        """Call ``fold(number, result)`` for every task, in any order: the fold must not depend on it.

        Parameters
        ----------
        name
            Of the stage, also in the checkpoint.
        tasks
            By number.
        weights
            Steps of progress of each task.
        fold
            Takes a result in.
        shared
            Makes what all tasks share; not called if none is left to do.
        """
        self.progress.stage(name, sum(weights[number] for number in tasks))
        left = {}
        for number, task in tasks.items():
            found = self.checkpoint.load(_place(name, number))
            if found is None:
                left[number] = task
            else:
                fold(number, found)
                self.progress.advance(weights[number])

        def consume(number: int, result: Arrays) -> None:
            self.checkpoint.save(_place(name, number), result)
            fold(number, result)
            self.progress.advance(weights[number])

        if left:
            self.executor.run(name, left, consume, shared)

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the result of a stage of one piece that runs here."""
        self.progress.stage(name, 1)
        found = self.checkpoint.load(_place(name, 0))
        if found is None:
            found = make()
            self.checkpoint.save(_place(name, 0), found)
        self.progress.advance()
        return found


def _place(name: str, number: int) -> str:
    return f"{name.replace(' ', '-')}/{number:06d}"
