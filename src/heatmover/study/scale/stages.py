"""Stages of a run: tasks in threads or on a Dask cluster, and a checkpoint that keeps what they have finished."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import shutil
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, starmap
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from heatmover._base.files import check_place, replacing
from heatmover._base.progress import Progress
from heatmover._base.storage import explained, sealed, unsealed, writing
from heatmover._base.threads import in_threads
from heatmover._base.validation import check_threads, import_extra
from heatmover._base.words import quoted_path
from heatmover.errors import HeatmoverError, InvalidInputError, argument

__all__ = ["Arrays", "Checkpoint", "Executor", "Stages", "check_checkpoint", "connected", "executor", "open_checkpoint"]

# Seconds to wait for a scheduler's answer; one in reach answers in less than one.
PATIENCE = 5
# Seconds to wait for the first worker: batch systems keep jobs in a queue.
WORKERS_WITHIN = 600
# Tasks per thread of a cluster that are under way: one to do and one to do next.
AHEAD = 2
# Attempts that dask makes after the first at a task that failed: storage on a network may answer the next time.
RETRIES = 3
RESUME = f"run again with {argument('resume', True)}: what was finished is kept"

# Of the checkpoint; another layout is rejected, not guessed at.
LAYOUT = 3
MANIFEST, UNFINISHED = "manifest.json", ".heatmover-*.tmp"

# What every task returns, and what a checkpoint keeps.
Arrays = dict[str, npt.NDArray[Any]]
Shared = TypeVar("Shared")
# Called with what all tasks share; everything else is bound already.
Task = Callable[[Shared], Arrays]
Consumer = Callable[[int, Arrays], None]


# --- where tasks run ---


@final
@dataclass(frozen=True)
class Threads:
    """Threads of this process; nothing to set up."""

    n_threads: int

    @property
    def n_workers(self) -> int:
        """Number of threads."""
        return self.n_threads

    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:  # noqa: ARG002
        """Run all tasks and call ``consume(number, result)`` once for each, one call at a time, in any order.

        Threads consume the results themselves: none waits in memory.

        Parameters
        ----------
        name
            Of the stage; shown by dask's dashboard.
        tasks
            By number.
        consume
            Takes a result, of which nothing is kept.
        shared
            What every task is called with.
        """
        lock = threading.Lock()

        def work(item: tuple[int, Task[Shared]]) -> None:
            number, task = item
            result = task(shared)
            with lock:
                consume(number, result)

        # The limit is around all threads: limits that they set for themselves would undo each other's.
        with threadpool_limits(1):
            in_threads(work, tasks.items(), self.n_threads)


@final
@dataclass(frozen=True)
class Cluster:
    """A dask cluster: workers that die are replaced and their tasks run elsewhere, by dask itself."""

    client: Any

    @property
    def n_workers(self) -> int:
        """Threads of the largest worker, whose memory they share."""
        return max(self.client.nthreads().values(), default=1)

    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:
        """Run the tasks on the workers, a few ahead, so that neither scheduler nor client holds much."""
        distributed = import_extra("distributed", package="distributed", extra="dask")
        # A scheduler keeps results by key, also those of an earlier run.
        run = f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
        numbers: dict[str, int] = {}

        def submit(number: int, task: Task[Shared]) -> Any:
            future = self.client.submit(task, common, key=f"{run}-{number}", retries=RETRIES)
            numbers[future.key] = number
            return future

        with self._explained():
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sending large graph")  # once per stage, not per task
                # A task of its own, not data that is scattered: dask makes it again if the worker that has it dies.
                common = self.client.submit(_same, shared, key=f"{run}-shared")
            # To all workers at once: dask would send tasks to the one that has it, and let the others wait. A worker
            # that dies meanwhile makes it fail (seen in one of four kills), which costs nothing but the head start.
            with suppress(Exception):
                self.client.replicate([common])
            waiting = starmap(submit, tasks.items())
            ahead = AHEAD * max(sum(self.client.nthreads().values()), 1)
            running = distributed.as_completed(islice(waiting, ahead), loop=self.client.loop)
            for future in running:
                consume(numbers.pop(future.key), future.result())
                future.release()
                running.update(islice(waiting, 1))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence that the cluster is gone; errors of tasks come as they are."""
        distributed = import_extra("distributed", package="distributed", extra="dask")
        try:
            yield
        except HeatmoverError:
            raise
        except distributed.KilledWorker as error:
            raise InvalidInputError(
                "workers that survive a task", f"that one task killed {error.allowed_failures + 1} of them",
                f"give workers more memory, or allow less; with a checkpoint, {RESUME}",
            ) from error  # fmt: skip
        except Exception as error:
            # What a client raises then differs from version to version; that it has no scheduler any more does not.
            if self.client.status != "running" or isinstance(error, CancelledError):
                raise InvalidInputError(
                    "a Dask scheduler that stays", "that it went away", f"with a checkpoint, {RESUME}"
                ) from error
            if not self.client.nthreads():
                raise InvalidInputError(
                    "workers on the Dask cluster",
                    f"none within {WORKERS_WITHIN} s",
                    "start some with `dask worker ADDRESS`",
                ) from error
            raise


def _same(shared: Shared) -> Shared:
    return shared


Executor = Threads | Cluster


@contextmanager
def executor(client: Any, n_jobs: int | None) -> Iterator[Executor]:
    """Give the executor for a client, the address of a scheduler, or None for threads; close what was opened."""
    if client is None:
        yield Threads(check_threads(n_jobs))
    elif isinstance(client, str):
        with connected(client) as opened:
            yield Cluster(opened)
    else:
        distributed = import_extra("distributed", package="distributed", extra="dask")
        if not isinstance(client, distributed.Client):
            raise InvalidInputError(
                f"{argument('client')} to be a distributed.Client, the address of a scheduler, or None",
                type(client).__name__,
            )
        yield Cluster(client)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Give a client of the Dask scheduler at an address, None for none, and close it at the end.

    Parameters
    ----------
    address
        Such as ``"tcp://10.0.0.5:8786"``; one that does not answer within some seconds is an error.

    Examples
    --------
    >>> with connected(None) as client:
    ...     print(client)
    None
    """
    if address is None:
        yield None
        return
    distributed = import_extra("distributed", package="distributed", extra="dask")
    if not address.strip():  # dask would start a cluster of its own
        raise InvalidInputError(
            "the address of a Dask scheduler", "an empty one", "give one such as tcp://10.0.0.5:8786"
        )
    try:
        client = distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"a Dask scheduler at {address!r}",
            f"none that answers within {PATIENCE} s",
            "start one with `dask scheduler` and give the address that it prints, such as tcp://10.0.0.5:8786",
        ) from error
    try:
        yield client
    finally:
        client.close(timeout=PATIENCE)


# --- what is kept ---


@final
@dataclass(frozen=True)
class Checkpoint:
    """A folder with one ``.npz`` file for each finished task; without a folder it keeps nothing.

    Whenever the process dies, a file is there as a whole or it is not there. One that does not fit its checksum, which
    covers its arrays, its name and all that the result depends on, counts as not there.

    Attributes
    ----------
    folder
        Where; further files of the run may be there under names that match ``UNFINISHED``.
    seal
        Checksum of what the result depends on.
    """

    folder: Path | None = None
    seal: str = ""

    def load(self, stage: str, number: int) -> Arrays | None:
        """Return the arrays of a finished task; None if there are none, or if they are damaged."""
        if self.folder is None:
            return None
        name = _name(stage, number)
        try:
            with (self.folder / name).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays: Arrays = {key: file[key] for key in file.files}
            checksum = str(arrays.pop("checksum"))
            return arrays if checksum == self._checksum(name, arrays) else None
        # What a library says of damaged files is of every kind.
        except Exception:
            return None

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Keep arrays: all of them or, if anything happens, none."""
        if self.folder is None:
            return
        name = _name(stage, number)
        with explained(self.folder, RESUME):
            (self.folder / name).parent.mkdir(exist_ok=True)
            with replacing(self.folder / name, "wb") as file:
                np.savez(file, checksum=np.array(self._checksum(name, arrays)), **arrays)  # type: ignore[arg-type]

    def discard(self) -> None:
        """Remove the folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _checksum(self, name: str, arrays: Arrays) -> str:
        described = {key: [array.dtype.str, *array.shape] for key, array in sorted(arrays.items())}
        digest = hashlib.sha256(json.dumps([self.seal, name, described]).encode())
        for _, array in sorted(arrays.items()):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _name(stage: str, number: int) -> str:
    return f"{stage.replace(' ', '-')}/{number:06d}.npz"


@contextmanager
def open_checkpoint(
    path: str | os.PathLike[str] | None, manifest: Mapping[str, Mapping[str, Any]], *, resume: bool
) -> Iterator[Checkpoint]:
    """Give a checkpoint, new or to be resumed, that no other process uses; raise if it is of another run.

    Parameters
    ----------
    path
        Where; None for none.
    manifest
        What the result depends on, as plain values.
    resume
        Go on with a checkpoint that is there already.
    """
    place = check_checkpoint(path, resume=resume)
    if place is None:
        yield Checkpoint()
        return
    content = sealed({**manifest, "checkpoint": {"layout": LAYOUT}})
    # Before anything is made in a folder that may be another's. One that has nothing but a lock was begun and killed.
    if os.path.lexists(place) and not (place.is_dir() and all(entry.name[0] == "." for entry in place.iterdir())):
        _check_manifest(place, unsealed(content))
    with explained(place):
        place.mkdir(exist_ok=True)
    with writing(place):
        for leftover in place.rglob(UNFINISHED):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        if not (place / MANIFEST).exists():
            with explained(place, RESUME), replacing(place / MANIFEST, "wb") as file:
                file.write(content)
        yield Checkpoint(place, hashlib.sha256(content).hexdigest())


def check_checkpoint(path: str | os.PathLike[str] | None, *, resume: bool) -> Path | None:
    """Return where the checkpoint is to be, or raise if there is one and it is not to be resumed."""
    if path is None:
        if resume:
            raise InvalidInputError("a checkpoint to resume", "none", "name the folder of the earlier run")
        return None
    place = check_place(path, "a checkpoint")
    if os.path.lexists(place) and not resume:
        raise InvalidInputError(
            "a checkpoint that is not there yet",
            f"{quoted_path(str(place))}",
            f"{argument('resume', True)} goes on with it",
        )
    return place


def _check_manifest(place: Path, manifest: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless a checkpoint was begun by this version for the same input and settings."""
    try:
        stored = unsealed((place / MANIFEST).read_bytes())
        changes = [
            f"{kind} {key}: {reprlib.repr(stored[kind].get(key))} then, {reprlib.repr(values.get(key))} now"
            for kind, values in manifest.items()
            for key in {**values, **stored[kind]}
            if stored[kind].get(key) != values.get(key)
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInputError(
            "a checkpoint of this version of heatmover",
            f"something else at {quoted_path(str(place))}",
            "choose another place, or finish it with the version that began it",
        ) from error
    if changes:
        raise InvalidInputError(
            "the input and settings with which the checkpoint was begun", "; ".join(changes[:5]),
            "change them back, or begin anew with another checkpoint",
        )  # fmt: skip


# --- stages ---


class ResultStore(Protocol):
    """Keeps the results of tasks, by stage and number."""

    def load(self, stage: str, number: int) -> Arrays | None:
        """Return what was kept, or None."""

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Keep arrays: all of them or, if anything happens, none."""


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """Runs stages.

    Attributes
    ----------
    executor
        Where tasks run.
    store
        What is finished already.
    progress
        Told of every finished task.
    """

    executor: Executor
    store: ResultStore
    progress: Progress

    def each(
        self,
        name: str,
        tasks: Mapping[int, Task[Shared]],
        weights: Mapping[int, int],
        fold: Callable[[int, Arrays], None],
        shared: Shared,
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
            What every task is called with.
        """
        self.progress.stage(name, sum(weights.values()))

        def consume(number: int, result: Arrays) -> None:
            fold(number, result)
            self.progress.advance(weights[number])

        def finish(number: int, result: Arrays) -> None:
            self.store.save(name, number, result)
            consume(number, result)

        left = {}
        for number, task in tasks.items():
            kept = self.store.load(name, number)
            if kept is None:
                left[number] = task
            else:
                consume(number, kept)
        if left:
            self.executor.run(name, left, finish, shared)

    def once(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the result of a stage of one task that runs here."""
        self.progress.stage(name, 1)
        kept = self.store.load(name, 0)
        if kept is None:
            kept = make()
            self.store.save(name, 0, kept)
        self.progress.advance()
        return kept
