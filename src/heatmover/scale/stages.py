"""Stages of a run: tasks in threads or on a Dask cluster, and a checkpoint that keeps what they have finished."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import reprlib
import shutil
import threading
import uuid
import warnings
from abc import ABC, abstractmethod
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

from heatmover._files import lock_file, try_lock
from heatmover._progress import Progress
from heatmover._threads import in_threads
from heatmover._validation import check_threads, import_extra
from heatmover._words import quoted_path
from heatmover.errors import HeatmoverError, InvalidInputError, argument

__all__ = ["Arrays", "Checkpoint", "Executor", "Nothing", "Stages", "connected", "executor", "open_checkpoint"]

# Seconds to wait for a scheduler's answer; one in reach answers in less than one.
PATIENCE = 5
# Seconds to wait for the first worker: batch systems keep jobs in a queue.
WORKERS_WITHIN = 600
# Tasks per thread of a cluster that are under way: one to do and one to do next.
AHEAD = 2
# Attempts that dask makes after the first at a task that failed: storage on a network may answer the next time.
RETRIES = 3
RESUME = f"with a checkpoint, run again with {argument('resume', True)}: what was finished is kept"

# Of the checkpoint; another layout is rejected, not guessed at.
LAYOUT = 3
MANIFEST, LOCK, UNFINISHED = "heatmover", ".lock", ".unfinished-"
FULL = {errno.ENOSPC, errno.EDQUOT}

# What every task returns, and what a checkpoint keeps.
Arrays = dict[str, npt.NDArray[Any]]
Shared = TypeVar("Shared")
# Called with what all tasks share; everything else is bound already.
Task = Callable[[Shared], Arrays]
Consumer = Callable[[int, Arrays], None]


# --- where tasks run ---


class Executor(ABC):
    """Runs tasks and hands their results over one by one."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Tasks that run at the same time in the memory of one process."""

    @abstractmethod
    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:
        """Run all tasks and call ``consume(number, result)`` once for each, one call at a time, in any order.

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


@final
@dataclass(frozen=True)
class Threads(Executor):
    """Threads of this process; nothing to set up."""

    n_threads: int

    @property
    def n_workers(self) -> int:
        """Number of threads."""
        return self.n_threads

    def run(self, name: str, tasks: Mapping[int, Task[Shared]], consume: Consumer, shared: Shared) -> None:  # noqa: ARG002
        """Run the tasks in threads, which consume the results themselves: none waits in memory."""
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
class Cluster(Executor):
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
                f"give workers more memory, or allow less; {RESUME}",
            ) from error  # fmt: skip
        except Exception as error:
            # What a client raises then differs from version to version; that it has no scheduler any more does not.
            if self.client.status != "running" or isinstance(error, CancelledError):
                raise InvalidInputError("a Dask scheduler that stays", "that it went away", RESUME) from error
            if not self.client.nthreads():
                raise InvalidInputError(
                    "workers on the Dask cluster",
                    f"none within {WORKERS_WITHIN} s",
                    "start some with `dask worker ADDRESS`",
                ) from error
            raise


def _same(shared: Shared) -> Shared:
    return shared


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


class Store(Protocol):
    """Keeps the results of tasks, by stage and number."""

    def load(self, stage: str, number: int) -> Arrays | None:
        """Return what was kept, or None."""

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Keep arrays: all of them or, if anything happens, none."""


@final
class Nothing:
    """Keeps nothing."""

    folder = None

    def load(self, stage: str, number: int) -> Arrays | None:  # noqa: ARG002
        """Return None."""
        return None

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Forget it."""

    def discard(self) -> None:
        """Do nothing."""


@final
@dataclass(frozen=True)
class Checkpoint:
    """A zarr store on disk with one group per finished task.

    A group is written under another name and then renamed, which a file system does at once or not at all: whenever the
    process dies, a group is there as a whole or it is not there. One that does not fit its checksum, which covers its
    arrays, its name and all that the result depends on, counts as not there.

    Attributes
    ----------
    folder
        Of the store; further files of the run may be there under a name that begins with ``UNFINISHED``.
    seal
        Checksum of what the result depends on.
    """

    folder: Path
    seal: str

    def load(self, stage: str, number: int) -> Arrays | None:
        """Return the arrays of a finished task; None if there are none, or if they are damaged."""
        zarr = import_extra("zarr", package="zarr", extra="cohort")
        name = _name(stage, number)
        try:
            group = zarr.open_group(self.folder / name, mode="r")
            members = dict(sorted(group.arrays()))
            # Before any value: a damaged shape could ask for all memory.
            if _shapes(members) != group.attrs["arrays"]:
                return None
            arrays: Arrays = {key: np.asarray(array[...]) for key, array in members.items()}
            return arrays if group.attrs["checksum"] == self._checksum(name, arrays) else None
        # What a library says of damaged files is of every kind.
        except Exception:
            return None

    def save(self, stage: str, number: int, arrays: Arrays) -> None:
        """Write a group beside its place, then move it there."""
        name = _name(stage, number)
        place, unfinished = self.folder / name, self.folder / f"{UNFINISHED}{uuid.uuid4().hex}"
        try:
            with explain_full_disk(self.folder):
                write_group(unfinished, arrays, {"checksum": self._checksum(name, arrays), "arrays": _shapes(arrays)})
                shutil.rmtree(place, ignore_errors=True)  # what is there is damaged
                place.parent.mkdir(exist_ok=True)
                unfinished.rename(place)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def discard(self) -> None:
        """Remove the store."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _checksum(self, name: str, arrays: Arrays) -> str:
        digest = hashlib.sha256(json.dumps([self.seal, name, _shapes(arrays)]).encode())
        for _, array in sorted(arrays.items()):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _name(stage: str, number: int) -> str:
    return f"{stage.replace(' ', '-')}/{number:06d}"


def _shapes(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {key: [np.dtype(array.dtype).str, *array.shape] for key, array in sorted(arrays.items())}


def write_group(place: Path, arrays: Arrays, attributes: Mapping[str, Any]) -> None:
    """Write arrays and attributes as a zarr group."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    group = zarr.create_group(place, attributes=dict(attributes))
    for key, array in arrays.items():
        group.create_array(key, data=array, chunks=tuple(max(side, 1) for side in array.shape))


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Say what to do if no space is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise InvalidInputError(
            f"space to write to {quoted_path(str(path))}",
            "no space left on the device",
            f"free some and run again with {argument('resume', True)}: what was finished before is kept",
        ) from error


@contextmanager
def open_checkpoint(
    path: str | os.PathLike[str] | None, manifest: Mapping[str, Mapping[str, Any]], *, resume: bool
) -> Iterator[Checkpoint | Nothing]:
    """Give a checkpoint, new or to be resumed, that no other process uses; raise if it is of another run.

    Parameters
    ----------
    path
        Where; None for none.
    manifest
        What the result depends on, as plain values.
    resume
        Go on with a store that is there already.
    """
    place = check_place(path, resume=resume)
    if place is None:
        yield Nothing()
        return
    if not os.path.exists(place):  # noqa: PTH110 - False for a name that is too long
        with _made(place):
            place.mkdir(exist_ok=True)
    elif not _is_bare(place):
        _check_manifest(place, manifest)  # before anything is made in a folder that may be another's
    with _locked(place):
        for leftover in place.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if _is_bare(place):
            with _made(place):
                write_group(place, {}, {MANIFEST: {"layout": LAYOUT, **manifest}})
        _check_manifest(place, manifest)
        yield Checkpoint(place, hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest())


def check_place(path: str | os.PathLike[str] | None, *, resume: bool) -> Path | None:
    """Return where the checkpoint is to be, or raise if there is one and it is not to be resumed."""
    if path is None:
        if resume:
            raise InvalidInputError("a checkpoint to resume", "none", "name the store of the earlier run")
        return None
    if not os.fspath(path):
        raise InvalidInputError(
            f"{argument('checkpoint')} to be a path", "an empty one", "name a store that is to be made"
        )
    place = Path(path)
    if os.path.lexists(place) and not place.exists():
        raise InvalidInputError(f"{argument('checkpoint')} to be a path", f"the broken link {quoted_path(str(place))}")
    if os.path.lexists(place) and not resume:
        raise InvalidInputError(
            "a checkpoint that is not there yet",
            f"{quoted_path(str(place))}",
            f"{argument('resume', True)} goes on with it",
        )
    return place


@contextmanager
def _made(place: Path) -> Iterator[None]:
    """Say in one sentence why a checkpoint cannot be made."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"a checkpoint to be made at {quoted_path(str(place))}", f"{error.strerror or error}"
        ) from error


def _is_bare(place: Path) -> bool:
    """Return whether a store is one of which nothing but the folder was made before its process was killed."""
    return place.is_dir() and all(path.name == LOCK or path.name.startswith(UNFINISHED) for path in place.iterdir())


def _check_manifest(place: Path, manifest: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless this version began a store for the same input and settings."""
    zarr = import_extra("zarr", package="zarr", extra="cohort")
    try:
        stored = dict(zarr.open_group(place, mode="r").attrs[MANIFEST])
        layout = stored.pop("layout")
        changes = [
            f"{kind} {key}: {reprlib.repr(stored[kind].get(key))} then, {reprlib.repr(values.get(key))} now"
            for kind, values in manifest.items()
            for key in {**values, **stored.get(kind, {})}
            if layout == LAYOUT and stored[kind].get(key) != values.get(key)
        ]
    # What a library says of files that are something else is of every kind.
    except Exception as error:
        raise InvalidInputError(
            "a checkpoint of heatmover", f"something else at {quoted_path(str(place))}", "choose another place"
        ) from error
    if layout != LAYOUT:
        raise InvalidInputError(
            f"a checkpoint of layout {LAYOUT}", f"layout {layout} at {quoted_path(str(place))}",
            "it is from another version of heatmover: finish it there, or begin anew elsewhere",
        )  # fmt: skip
    if changes:
        raise InvalidInputError(
            "the input and settings with which the checkpoint was begun", "; ".join(changes[:5]),
            "change them back, or begin anew with another checkpoint",
        )  # fmt: skip


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the store; the system lets go of it when the process ends, however it ends."""
    try:
        descriptor = lock_file(place / LOCK)
    except OSError as error:
        raise InvalidInputError(
            f"a checkpoint that one can lock, by a file {LOCK!r} in it", f"{quoted_path(str(place))}: {error.strerror}"
        ) from error
    try:
        if try_lock(descriptor) is False:
            raise InvalidInputError(
                "a checkpoint that no other process uses", f"that one is at work on {quoted_path(str(place))}"
            )
        yield
    finally:
        os.close(descriptor)


# --- stages ---


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
    store: Store
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
