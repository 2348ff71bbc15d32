"""Run stages of out-of-core work in threads or on Dask, with checkpoints on disk; for `study.scale`, `cli`, users.

Users and the command line call `connected`. This module writes only the folder of the checkpoint.
"""

from __future__ import annotations

import hashlib
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
from typing import Any, TypeVar, final

from threadpoolctl import threadpool_limits

from heatmover._base.files import Arrays, check_place, load_arrays, replacing, save_arrays
from heatmover._base.progress import Progress
from heatmover._base.storage import explained, sealed, unsealed, writing
from heatmover._base.threads import in_threads
from heatmover._base.validation import check_threads, import_extra
from heatmover._base.words import quoted_path
from heatmover.errors import HeatmoverError, InvalidInputError, argument, the_argument

# Seconds to wait for an answer of the scheduler; a reachable scheduler answers within one second.
PATIENCE = 5
# Seconds to wait for the first worker, because batch systems keep jobs in a queue.
WORKERS_WITHIN = 600
# Number of submitted tasks per thread of a cluster: one task runs, and one task waits.
AHEAD = 2
# Number of times that dask repeats a failed task, because a failure of network storage may be temporary.
RETRIES = 3
RESUME = f"run again with {argument('resume', True)}: finished tasks are kept"

# Version of the checkpoint's layout; a checkpoint of another version is rejected.
LAYOUT = 4
MANIFEST, UNFINISHED = "manifest.json", ".heatmover-*.tmp"
# Every manifest of a checkpoint begins with these bytes, because the keys of a sealed document are sorted.
BEGINNING = b'{"content":{"checkpoint":{'

Shared = TypeVar("Shared")
# A task is a function with one unbound argument: the object that all tasks share. The function returns the arrays that
# the checkpoint stores.
Task = Callable[[Shared], Arrays]
Consumer = Callable[[int, Arrays], None]


# --- executors ---


@final
@dataclass(frozen=True)
class Threads:
    """Executor that runs tasks in threads of this process."""

    n_workers: int

    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:  # noqa: ARG002
        """Run all tasks, and call ``consume(number, result)`` for each task, one call at a time, in any order.

        The thread that computes a result also consumes it, so that results do not accumulate in memory.

        Parameters
        ----------
        name
            Name of the stage, shown on dask's dashboard.
        tasks
            Tasks by number.
        consume
            Function that receives the number and the result of each task; results are not kept.
        shared
            Object that is passed to every task.
        """
        lock = threading.Lock()

        def work(item: tuple[int, Task[Shared]]) -> None:
            number, task = item
            result = task(shared)
            with lock:
                consume(number, result)

        # Set one limit around all threads, because limits that are set inside threads would undo each other.
        with threadpool_limits(1):
            in_threads(work, tasks.items(), self.n_workers)


@final
@dataclass(frozen=True)
class Cluster:
    """Executor that runs tasks on a Dask cluster, which repeats the tasks of a dead worker on other workers."""

    client: Any

    @property
    def n_workers(self) -> int:
        """Number of threads of the worker with the most threads; the threads of a worker share its memory."""
        return max(self.client.nthreads().values(), default=1)

    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:
        """Run the tasks on the workers; submit only a few in advance, to save memory in scheduler and client."""
        distributed = import_extra("distributed", package="distributed", extra="dask")
        # Make keys unique to this run, because a scheduler keeps the results of earlier runs by key.
        run = f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"

        def submit(number: int, task: Task[Shared]) -> Any:
            return self.client.submit(task, common, key=f"{run}-{number}", retries=RETRIES)

        with self._explained():
            self.client.wait_for_workers(1, timeout=WORKERS_WITHIN)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sending large graph")  # once per stage, not per task
                # Submit the shared object as a task instead of scattered data, so that dask can restore it if a worker
                # dies.
                common = self.client.submit(_same, shared, key=f"{run}-shared")
            # Copy the object to all workers; otherwise dask sends all tasks to the only worker that has it. If a worker
            # dies meanwhile, the copy fails (seen in one of four tests), which only slows down the start of the run.
            with suppress(Exception):
                self.client.replicate([common])
            waiting = starmap(submit, tasks.items())
            ahead = AHEAD * max(sum(self.client.nthreads().values()), 1)
            running = distributed.as_completed(islice(waiting, ahead), loop=self.client.loop)
            for future in running:
                consume(int(future.key.rpartition("-")[2]), future.result())
                future.release()
                running.update(islice(waiting, 1))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a one-sentence error if the cluster is lost; raise errors of tasks unchanged."""
        distributed = import_extra("distributed", package="distributed", extra="dask")
        try:
            yield
        except HeatmoverError:
            raise
        except distributed.KilledWorker as error:
            raise InvalidInputError(
                "workers that survive a task", f"that one task killed {error.allowed_failures + 1} workers",
                f"give workers more memory, or lower {the_argument('memory')}; with a checkpoint, {RESUME}",
            ) from error  # fmt: skip
        except Exception as error:
            # The exception depends on the version of dask, so check whether the client still has a scheduler.
            if self.client.status != "running" or isinstance(error, CancelledError):
                raise InvalidInputError(
                    "a Dask scheduler that keeps running",
                    "that the connection was lost",
                    f"with a checkpoint, {RESUME}",
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
    """Yield an executor for a client, for the address of a scheduler, or for threads if ``client`` is None."""
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
    """Yield a client of the Dask scheduler at an address and close it at the end; yield None without an address.

    Parameters
    ----------
    address
        Address such as ``"tcp://10.0.0.5:8786"``. A scheduler that does not answer within 5 seconds raises an error.

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
    if not address.strip():  # for an empty address, dask would start a local cluster
        raise InvalidInputError(
            "the address of a Dask scheduler", "an empty address", "give one such as tcp://10.0.0.5:8786"
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


# --- checkpoints ---


@final
@dataclass(frozen=True)
class Checkpoint:
    """A folder with one ``.npz`` file for each finished task; without a folder, nothing is stored.

    A file is written completely or not at all, even if the process is killed. Every file has a checksum of its arrays,
    its name and ``seal``; files with a wrong checksum are ignored.

    Attributes
    ----------
    folder
        Path of the folder. Temporary files of the run, with names that match ``UNFINISHED``, may also be in the folder.
    seal
        Checksum of everything on which the result depends.
    """

    folder: Path | None = None
    seal: str = ""

    def load(self, stage: str, number: int) -> Arrays | None:
        """Return the arrays of a finished task; None if the task is not stored, or if its file is damaged."""
        name = _name(stage, number)
        return None if self.folder is None else load_arrays(self.folder / name, f"{self.seal} {name}")

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Store the arrays of a finished task, completely or not at all."""
        if self.folder is None:
            return
        name = _name(stage, number)
        with explained(self.folder, RESUME):
            (self.folder / name).parent.mkdir(exist_ok=True)
            save_arrays(self.folder / name, f"{self.seal} {name}", arrays)

    def discard(self) -> None:
        """Remove the folder."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _name(stage: str, number: int) -> str:
    return f"{stage.replace(' ', '-')}/{number:06d}.npz"


@contextmanager
def open_checkpoint(
    path: str | os.PathLike[str] | None, manifest: Mapping[str, Mapping[str, Any]], *, resume: bool
) -> Iterator[Checkpoint]:
    """Yield a new or resumed checkpoint, locked against other processes; raise if another run began it.

    Parameters
    ----------
    path
        Path of the folder; None for no checkpoint.
    manifest
        Everything on which the result depends, as plain values.
    resume
        Whether to continue an existing checkpoint.
    """
    place = check_checkpoint(path, resume=resume)
    if place is None:
        yield Checkpoint()
        return
    content = sealed({**manifest, "checkpoint": {"layout": LAYOUT}})
    # Check the manifest before writing, because the folder may belong to another run. A folder that contains only a
    # lock was left by a run that was killed at its start.
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
    """Return the path of the checkpoint, or raise if it exists although ``resume`` is false."""
    if path is None:
        if resume:
            raise InvalidInputError("a checkpoint to resume", "none", "name the folder of the earlier run")
        return None
    place = check_place(path, "a checkpoint")
    if os.path.lexists(place) and not resume:
        raise InvalidInputError(
            "a checkpoint that does not exist yet",
            f"{quoted_path(str(place))}",
            f"{argument('resume', True)} continues it",
        )
    return place


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder contains the manifest of a checkpoint, even one that is damaged or has another layout."""
    manifest = folder / MANIFEST
    try:
        return manifest.is_file() and manifest.read_bytes().startswith(BEGINNING)
    except OSError:
        return False


def _check_manifest(place: Path, manifest: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless this version of heatmover began the checkpoint for the same input and settings."""
    try:
        stored = unsealed((place / MANIFEST).read_bytes())
        if stored["checkpoint"] != manifest["checkpoint"]:
            raise ValueError("another layout")
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
            "choose another path, or finish the checkpoint with the version that started it",
        ) from error
    if changes:
        raise InvalidInputError(
            "the input and settings with which the checkpoint was begun", "; ".join(changes[:5]),
            "use the original input and settings, or start a new checkpoint",
        )  # fmt: skip


# --- stages ---


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """Stages of a run; the results of finished tasks are stored.

    Attributes
    ----------
    executor
        Executor of the tasks.
    store
        Checkpoint with the finished tasks.
    progress
        Receives the progress of every stage.
    """

    executor: Executor
    store: Checkpoint
    progress: Progress

    def each(
        self,
        name: str,
        tasks: Mapping[int, Task[Shared]],
        weights: Mapping[int, int],
        fold: Callable[[int, Arrays], None],
        shared: Shared,
    ) -> None:
        """Run all tasks of a stage, and call ``fold(number, result)`` once for every task, in any order.

        Parameters
        ----------
        name
            Name of the stage, also in the checkpoint.
        tasks
            Tasks by number.
        weights
            Number of progress steps of each task.
        fold
            Function that accumulates results; the order of the results must not matter.
        shared
            Object that is passed to every task.
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
