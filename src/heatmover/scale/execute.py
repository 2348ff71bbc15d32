"""Where tasks run: threads of this process or a dask cluster; and stages, whose finished pieces are kept."""

from __future__ import annotations

import errno
import re
import sys
import threading
import time
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, final

from threadpoolctl import threadpool_limits

from heatmover._progress import Progress
from heatmover._validation import check_threads, import_extra
from heatmover._words import counted
from heatmover.errors import HeatmoverError, InvalidInputError, argument
from heatmover.scale.checkpoint import Arrays, Checkpoint

__all__ = ["Executor", "Stages", "Task", "connected", "executor", "nothing"]

# Seconds between the attempts at a task whose fault may pass. A drive or a network that hiccups is back within a tenth
# of a second or two seconds; growing pauses wait for both without asking a busy server at a high rate. A fault that
# outlasts them costs 2.1 s per task in all, less than reading a piece takes.
PAUSES = (0.1, 0.4, 1.6)
# Faults of storage and networks that may be gone at the next attempt. All others are final: no file, no permission, no
# space, a damaged file, too little memory and wrong input are the same the next time.
PASSING = frozenset({
    errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ENETDOWN, errno.ENETUNREACH,
    errno.EHOSTUNREACH,
})  # fmt: skip
# Seconds to wait for a scheduler's answer; one in reach answers in less than one.
PATIENCE = 5
# Seconds to wait for the first worker: batch systems keep jobs in a queue.
WORKERS_WITHIN = 600
# Tasks per thread of a cluster that are under way: one to do and one to do next.
AHEAD = 2
RESUME = f"with a checkpoint, run again with {argument('resume', True)}: what was finished is kept"


Result = TypeVar("Result")
# Called with what all tasks share; everything else is bound already.
Task = Callable[[Any], Result]
Consumer = Callable[[int, Result], None]


class Executor(ABC):
    """Runs tasks and hands their results over one by one."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Tasks that run at the same time in the memory of one process."""

    @abstractmethod
    def run(
        self, name: str, tasks: Mapping[int, Task[Result]], consume: Consumer[Result], shared: Callable[[], Any]
    ) -> None:
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
            Makes, once per run and where the tasks are, what all of them share.
        """


@contextmanager
def executor(client: Any, n_jobs: int | None) -> Iterator[Executor]:
    """Give the executor for a client, the address of a scheduler, or None for threads; close what was opened."""
    import_extra("dask", package="dask", extra="dask")
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
    client = _connect(address)
    try:
        yield client
    finally:
        client.close(timeout=PATIENCE)


def _connect(address: str) -> Any:
    distributed = import_extra("distributed", package="distributed", extra="dask")
    if not address.strip():  # dask would start a cluster of its own
        raise InvalidInputError(
            "the address of a Dask scheduler", "an empty one", "give one such as tcp://10.0.0.5:8786"
        )
    try:
        return distributed.Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(
            f"a Dask scheduler at {address!r}",
            f"none that answers within {PATIENCE} s",
            "start one with `dask scheduler` and give the address that it prints, such as tcp://10.0.0.5:8786",
        ) from error


@final
@dataclass(frozen=True)
class Persistent:
    """A call that is repeated, after growing pauses, while its fault may pass; any other error comes as it is.

    It repeats where it runs. The retries of dask itself would repeat final errors too, and at once.
    """

    call: Callable[..., Any]
    # Waits the given seconds; in this process or, on a cluster, in the worker's.
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, *arguments: Any) -> Any:
        pauses = iter(PAUSES)
        while True:
            try:
                return self.call(*arguments)
            except Exception as error:
                if not passes(error):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    raise _lasting(error) from error
            self.sleep(pause)


def _lasting(error: Exception) -> InvalidInputError:
    return InvalidInputError(
        "storage and a network that answer",
        f"{type(error).__name__} at each of {counted(len(PAUSES) + 1, 'attempt')} within {sum(PAUSES):.1f} s ({error})",
        f"check the drive and the network; {RESUME}",
    )


def passes(error: BaseException | None) -> bool:
    """Tell whether a fault, or the one that caused it, may be gone at the next attempt."""
    if error is None:
        return False
    if isinstance(error, ConnectionError | TimeoutError) or (isinstance(error, OSError) and _number(error) in PASSING):
        return True
    # Where distributed is not loaded, it has not lost a connection.
    communication = getattr(sys.modules.get("distributed"), "comm", None)
    if communication is not None and isinstance(error, communication.CommClosedError):
        return True
    return passes(error.__cause__)


def _number(error: OSError) -> int | None:
    """Return the system's number of a fault; HDF5 writes it into its message only."""
    told = re.search(r"\berrno = (\d+)", str(error)) if error.errno is None else None
    return error.errno if told is None else int(told[1])


@final
class Threads(Executor):
    """Dask's threaded scheduler in this process; nothing to set up."""

    def __init__(self, n_workers: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._n_workers = n_workers
        self._sleep = sleep

    @property
    def n_workers(self) -> int:
        """Number of threads."""
        return self._n_workers

    def run(
        self, name: str, tasks: Mapping[int, Task[Result]], consume: Consumer[Result], shared: Callable[[], Any]
    ) -> None:
        """Run the tasks in threads; the calls of ``consume`` come from them, one at a time."""
        dask = import_extra("dask", package="dask", extra="dask")
        lock = threading.Lock()

        def deliver(number: int, result: Result) -> None:
            with lock:
                consume(number, result)

        common = dask.delayed(Persistent(shared, self._sleep), pure=False)(dask_key_name=f"{name}-shared")
        # A delivery follows its task in the graph, so that dask forgets the result as soon as it is consumed.
        graph = [
            dask.delayed(partial(deliver, number), pure=False)(
                dask.delayed(Persistent(task, self._sleep), pure=False)(common, dask_key_name=f"{name}-{number}")
            )
            for number, task in tasks.items()
        ]
        # Threads of our own: those that dask keeps for later do not live in a forked process, which would wait for them
        # for ever. And the limit is around all threads: limits that they set for themselves would undo each other's.
        with threadpool_limits(1), ThreadPoolExecutor(self._n_workers) as pool:
            dask.compute(*graph, scheduler="threads", num_workers=self._n_workers, pool=pool)


@final
class Cluster(Executor):
    """A dask cluster: workers that die are replaced and their tasks run elsewhere, by dask itself."""

    def __init__(self, client: Any, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._sleep = sleep

    @property
    def n_workers(self) -> int:
        """Threads of the largest worker, whose memory they share."""
        return max(self._client.nthreads().values(), default=1)

    def run(
        self, name: str, tasks: Mapping[int, Task[Result]], consume: Consumer[Result], shared: Callable[[], Any]
    ) -> None:
        """Run the tasks on the workers, a few ahead, so that neither scheduler nor client holds much."""
        if tasks:
            self._wait_for_workers()
            with self._explained():
                self._run(name, tasks, consume, shared)

    def _run(
        self, name: str, tasks: Mapping[int, Task[Result]], consume: Consumer[Result], shared: Callable[[], Any]
    ) -> None:
        dask = import_extra("dask", package="dask", extra="dask")
        distributed = import_extra("distributed", package="distributed", extra="dask")
        # A scheduler keeps results by key, also those of an earlier run.
        run = f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")  # once per stage, not per task
            delayed = dask.delayed(Persistent(shared, self._sleep), pure=False)(dask_key_name=f"{run}-shared")
            common = self._client.persist(delayed)
        # To all workers at once: dask would send tasks to the one that has it, and let the others wait. A worker that
        # dies meanwhile makes it fail (seen in one of four kills), which costs nothing but the head start.
        with suppress(Exception):
            self._client.replicate(distributed.futures_of(common))
        waiting, numbers = iter(tasks.items()), {}

        def submit() -> Any:
            number, task = next(waiting, (-1, None))
            if task is None:
                return None
            delayed = dask.delayed(Persistent(task, self._sleep), pure=False)(common, dask_key_name=f"{run}-{number}")
            future = self._client.compute(delayed)
            numbers[future.key] = number
            return future

        ahead = AHEAD * max(sum(self._client.nthreads().values()), 1)
        first = [future for future in (submit() for _ in range(ahead)) if future is not None]
        running = distributed.as_completed(first, loop=self._client.loop)
        for future in running:
            consume(numbers.pop(future.key), future.result())
            future.release()
            if (further := submit()) is not None:
                running.add(further)

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_WITHIN)
        except TimeoutError as error:
            raise InvalidInputError(
                "workers on the Dask cluster",
                f"none within {WORKERS_WITHIN} s",
                "start some with `dask worker ADDRESS`",
            ) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say in one sentence that the cluster is gone; errors of tasks come as they are."""
        distributed = import_extra("distributed", package="distributed", extra="dask")
        try:
            yield
        except distributed.KilledWorker as error:
            raise InvalidInputError(
                "workers that survive a task", f"that one task killed {error.allowed_failures + 1} of them",
                f"give workers more memory, or allow less; {RESUME}",
            ) from error  # fmt: skip
        except HeatmoverError:
            raise
        except Exception as error:
            # What a client raises then differs from version to version; that it has no scheduler any more does not.
            if self._client.status == "running" and not isinstance(error, CancelledError):
                raise
            raise InvalidInputError("a Dask scheduler that stays", "that it went away", RESUME) from error


def nothing() -> None:
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
        tasks: Mapping[int, Task[Arrays]],
        weights: Mapping[int, int],
        fold: Callable[[int, Arrays], None],
        shared: Callable[[], Any] = nothing,
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

    def keep(self, name: str, results: Mapping[int, Arrays]) -> None:
        """Keep the results of tasks that ran before there was a checkpoint."""
        for number, result in results.items():
            self.checkpoint.save(_place(name, number), result)

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
