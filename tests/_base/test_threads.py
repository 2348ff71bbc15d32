"""Work in threads: the order of the tasks, and no thread where none is needed."""

from __future__ import annotations

import threading

import pytest

from heatmover._base.threads import in_threads, one_blas_thread, while_reading


@pytest.mark.parametrize(("tasks", "n_threads", "others"), [(9, 3, True), (9, 1, False), (1, 3, False), (0, 3, False)])
def test_results_in_order_and_threads_only_where_they_help(tasks, n_threads, others):
    meeting = threading.Barrier(n_threads if others else 1)

    def work(number):
        # All threads meet, so that each has done some of the work.
        meeting.wait(10)
        return number, threading.current_thread() is threading.main_thread()

    found = in_threads(work, iter(range(tasks)), n_threads)
    assert [number for number, _ in found] == list(range(tasks))
    assert all(main is not others for _, main in found)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_comes_out(n_threads):
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda number: 1 // number, [1, 0, 2], n_threads)


def test_one_blas_thread_holds_for_numpy_and_scipy_and_ends():
    from threadpoolctl import threadpool_info, threadpool_limits

    def threads():
        # faiss brings a library of its own.
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and "faiss" not in pool["filepath"]]
        return [pool["num_threads"] for pool in pools]

    with threadpool_limits(2, user_api="blas"):
        assert len(threads()) >= 2
        assert set(threads()) == {2}
        with one_blas_thread():
            assert set(threads()) == {1}
        assert set(threads()) == {2}


@pytest.mark.parametrize("n_threads", [1, 3])
def test_tasks_are_read_one_by_one_while_others_are_done(n_threads):
    read, done = [], []

    def tasks():
        for number in range(9):
            assert len(read) - len(done) <= n_threads + 1  # of a large file only a few blocks are in memory
            read.append(threading.current_thread())
            yield number

    for number in while_reading(lambda number: number, tasks(), n_threads):
        done.append(number)  # noqa: PERF402 - the tasks look at it meanwhile
    assert done == list(range(9))
    assert set(read) == {threading.main_thread()}
    with pytest.raises(ZeroDivisionError):
        list(while_reading(lambda number: 1 // number, [1, 0, 2], n_threads))
