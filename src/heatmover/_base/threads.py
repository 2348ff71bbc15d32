"""Run tasks in threads, with results in order, and limit BLAS to one thread; any package may call it; no files."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def in_threads(work: Callable[[Task], Result], tasks: Iterable[Task], n_threads: int) -> list[Result]:
    """Run every task, in threads, and return the results in the order of the tasks.

    Tasks run without a pool if there is only one task or one thread. Starting a pool takes 0.2 ms, which is longer than
    the diffusion of a few measures on a small graph. A barycenter needs thousands of such diffusions. Also, memory that
    a thread of a pool frees is not returned to the system.

    Examples
    --------
    >>> in_threads(abs, [-1, 2, -3], n_threads=2)
    [1, 2, 3]
    """
    listed = list(tasks)
    if n_threads == 1 or len(listed) <= 1:
        return [work(task) for task in listed]
    with ThreadPoolExecutor(min(n_threads, len(listed))) as pool:
        return list(pool.map(work, listed))


def while_reading(work: Callable[[Task], Result], tasks: Iterable[Task], n_threads: int) -> Iterator[Result]:
    """Yield the results in the order of the tasks; the calling thread reads the next tasks while workers run.

    At most ``n_threads + 2`` tasks exist at a time. A task may therefore be a block of a file that is larger than
    memory.

    Examples
    --------
    >>> list(while_reading(abs, iter([-1, 2, -3]), n_threads=2))
    [1, 2, 3]
    """
    if n_threads == 1:
        yield from map(work, tasks)
        return
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(n_threads) as pool:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit linear algebra of NumPy and SciPy to one thread, in a ``with`` block or as a decorator.

    BLAS threads synchronize after every step and spin while they wait. On a busy machine, the eigenvectors of 300
    samples took 0.46 s of CPU time with two threads and 0.01 s with one. For 1,000 samples, two threads took 2.2 s and
    one thread took 0.2 s.

    `threadpoolctl.threadpool_limits` scans all libraries of the process at every use. A scan takes 8 ms if PyTorch and
    pandas are loaded, which is longer than building a small graph takes. This module therefore scans only once.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     product = np.ones((1, 2)) @ np.ones((2, 1))
    >>> product
    array([[2.]])
    >>> one_blas_thread()(np.linalg.eigvalsh)(np.eye(2)).tolist()
    [1.0, 1.0]
    """
    with _blas().limit(limits=1):
        yield


@cache
def _blas() -> Any:
    import scipy.linalg  # noqa: F401 - SciPy has its own BLAS, which must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
