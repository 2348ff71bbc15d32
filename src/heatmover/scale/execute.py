"""Where tasks run: dask's threads in this process, or a dask cluster. Both take the same graph."""

from __future__ import annotations

import threading
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, final

from threadpoolctl import threadpool_limits

from heatmover._validation import check_threads, import_extra
from heatmover.errors import HeatmoverError, InvalidInputError, argument
from heatmover.scale.checkpoint import Arrays

__all__ = ["Executor", "Task", "connected", "executor"]

# Called with what all tasks share; everything else is bound already.
Task = Callable[[Any], Arrays]
Consumer = Callable[[int, Arrays], None]

# Further attempts at a task that failed: a network drive that hiccups does so for less than four reads in a row.
RETRIES = 3
# Seconds to wait for a scheduler's answer; one in reach answers in less than one.
PATIENCE = 5
# Seconds to wait for the first worker: batch systems keep jobs in a queue.
WORKERS_WITHIN = 600
# Tasks per thread of a cluster that are under way: one to do and one to do next.
AHEAD = 2


class Executor(ABC):
    """Runs tasks and hands their results over one by one."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Tasks that run at the same time in the memory of one process."""

    @abstractmethod
    def run(self, name: str, tasks: Mapping[int, Task], consume: Consumer, shared: Callable[[], Any]) -> None:
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
class Threads(Executor):
    """Dask's threaded scheduler in this process; nothing to set up."""

    def __init__(self, n_workers: int) -> None:
        self._n_workers = n_workers

    @property
    def n_workers(self) -> int:
        """Number of threads."""
        return self._n_workers

    def run(self, name: str, tasks: Mapping[int, Task], consume: Consumer, shared: Callable[[], Any]) -> None:
        """Run the tasks in threads; the calls of ``consume`` come from them, one at a time."""
        dask = import_extra("dask", package="dask", extra="dask")
        lock = threading.Lock()

        def deliver(number: int, result: Arrays) -> None:
            with lock:
                consume(number, result)

        common = dask.delayed(shared, pure=False)(dask_key_name=f"{name}-shared")
        # A delivery follows its task in the graph, so that dask forgets the result as soon as it is consumed.
        graph = [
            dask.delayed(partial(deliver, number), pure=False)(
                dask.delayed(partial(_with_retries, task), pure=False)(common, dask_key_name=f"{name}-{number}")
            )
            for number, task in tasks.items()
        ]
        # Threads of our own: those that dask keeps for later do not live in a forked process, which would wait for them
        # for ever. And the limit is around all threads: limits that they set for themselves would undo each other's.
        with threadpool_limits(1), ThreadPoolExecutor(self._n_workers) as pool:
            dask.compute(*graph, scheduler="threads", num_workers=self._n_workers, pool=pool)


def _with_retries(task: Task, shared: Any) -> Arrays:
    for _ in range(RETRIES):
        try:
            return task(shared)
        except Exception:
            continue
    return task(shared)


@final
class Cluster(Executor):
    """A dask cluster: workers that die are replaced and their tasks run elsewhere, by dask itself."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def n_workers(self) -> int:
        """Threads of the largest worker, whose memory they share."""
        return max(self._client.nthreads().values(), default=1)

    def run(self, name: str, tasks: Mapping[int, Task], consume: Consumer, shared: Callable[[], Any]) -> None:
        """Run the tasks on the workers, a few ahead, so that neither scheduler nor client holds much."""
        if tasks:
            self._wait_for_workers()
            with self._explained():
                self._run(name, tasks, consume, shared)

    def _run(self, name: str, tasks: Mapping[int, Task], consume: Consumer, shared: Callable[[], Any]) -> None:
        dask = import_extra("dask", package="dask", extra="dask")
        distributed = import_extra("distributed", package="distributed", extra="dask")
        # A scheduler keeps results by key, also those of an earlier run.
        run = f"{name.replace(' ', '-')}-{uuid.uuid4().hex[:8]}"
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")  # once per stage, not per task
            common = self._client.persist(dask.delayed(shared, pure=False)(dask_key_name=f"{run}-shared"))
        # To all workers at once: dask would send tasks to the one that has it, and let the others wait. A worker that
        # dies meanwhile makes it fail (seen in one of four kills), which costs nothing but the head start.
        with suppress(Exception):
            self._client.replicate(distributed.futures_of(common))
        waiting, numbers = iter(tasks.items()), {}

        def submit() -> Any:
            number, task = next(waiting, (-1, None))
            if task is None:
                return None
            delayed = dask.delayed(task, pure=False)(common, dask_key_name=f"{run}-{number}")
            future = self._client.compute(delayed, retries=RETRIES)
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
        advice = f"with a checkpoint, run again with {argument('resume', True)}: what was finished is kept"
        try:
            yield
        except distributed.KilledWorker as error:
            raise InvalidInputError(
                "workers that survive a task", f"that one task killed {error.allowed_failures + 1} of them",
                f"give workers more memory, or allow less; {advice}",
            ) from error  # fmt: skip
        except HeatmoverError:
            raise
        except Exception as error:
            # What a client raises then differs from version to version; that it has no scheduler any more does not.
            if self._client.status == "running" and not isinstance(error, CancelledError):
                raise
            raise InvalidInputError("a Dask scheduler that stays", "that it went away", advice) from error
