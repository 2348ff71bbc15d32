"""Shared tables: small graphs that have broken other implementations, and measures on them."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# One thread of BLAS in each process of the tests and in those that they start. The matrices are small, and threads that
# spin while another process has their core took most of the time. Tests about threads ask for their number themselves.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - its BLAS is another one than numpy's
import scipy.sparse as sp
from hypothesis import settings
from threadpoolctl import threadpool_limits

from heatmover.graphs import Graph

# A plugin of pytest may have loaded numpy before the lines above.
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")

# No test looks at a clock: hypothesis would fail a first example that loads a compiled kernel, on a busy machine.
# In CI the examples are the same in every run; elsewhere they are new, which may find more.
settings.register_profile("no clock", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("no clock")

# What is imported and collected stays until the end: to look for garbage in it took every process two seconds.
gc.disable()

# These files take longest, so they go first: one that came last would keep one core busy and leave the others idle.
LONGEST = (
    "study/scale/test_cluster.py",
    "study/scale/test_memory.py",
    "test_pages.py",
    "properties/test_order.py",
    "embedding/test_compact.py",
    "properties/test_diffusers.py",
    "embedding/test_paper.py",
    "report/test_browser.py",
    "docs/test_site.py",
    "study/scale/test_kill.py",
    "properties/test_baselines.py",
    "statistics/test_tests.py",
    "cli/test_demo.py",
    "differentiable/test_gradients.py",
    "cli/test_compare.py",
    "pl/test_pl.py",
    "study/scale/test_compare.py",
    "graphs/test_neighbors.py",
    "transport/test_barycenters.py",
    "atlas/index/test_search_cache.py",
    "cohort/formats/test_damaged_anndata.py",
    "study/scale/test_checkpoint.py",
    "transport/baselines/test_trees.py",
    "diffusion/test_spectral.py",
    "cohort/test_damage.py",
    "statistics/test_noise.py",
    "statistics/test_intervals.py",
    "benchmarks/test_convolutional.py",
    "cohort/test_bad_input.py",
    "study/test_units.py",
    "atlas/test_append.py",
    "statistics/test_manifold.py",
    "report/test_page.py",
    "study/scale/test_reading.py",
    "embedding/test_estimator.py",
)


def pytest_configure(config):
    # Without torch, the examples of its modules are skipped.
    config.option.doctest_ignore_import_errors = find_spec("torch") is None


def pytest_collection_modifyitems(items):
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop():
    """Before the first test; in the process that only hands them out too, which collects nothing."""
    gc.freeze()
    gc.enable()
    # What tests leave behind is mostly freed at once, without a search: to look less often took 3% less time.
    gc.set_threshold(50_000, 20, 100)


def path(n=40):
    return sp.diags_array([np.ones(n - 1), np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1]).toarray()


def star(n=30):
    affinity = np.eye(n)
    affinity[0, :] = affinity[:, 0] = 1
    return affinity


def bipartite(n=24):
    """A cycle without loops: the spectrum of S reaches -1."""
    return np.roll(np.eye(n), 1, axis=1) + np.roll(np.eye(n), -1, axis=1)


def disconnected():
    return np.kron(np.eye(3), np.ones((7, 7)) * 0.3 + np.eye(7))


def thread():
    """Two cliques that hang together by a thread: an eigenvalue so near to 1 that its rounding shows at 2^13 steps."""
    affinity = np.kron(np.eye(2), np.ones((6, 6)))
    affinity[5, 6] = affinity[6, 5] = 1e-7
    return affinity


def path_without_loops(n=31):
    return path(n) - np.eye(n)


def isolated_with_loop():
    affinity = path(21)
    affinity[20, :] = affinity[:, 20] = 0
    affinity[20, 20] = 1
    return affinity


def isolated_without_loop():
    affinity = path(21)
    affinity[10, :] = affinity[:, 10] = 0
    return affinity


def twelve_orders(n=30):
    """Weights from 1e-12 to 1."""
    rng = np.random.default_rng(5)
    upper = np.triu(10.0 ** rng.uniform(-12, 0, size=(n, n)))
    return upper + np.triu(upper, 1).T


def random_points():
    points = np.random.default_rng(3).normal(size=(90, 3))
    return Graph.from_points(points, n_neighbors=8).affinity.toarray()


AFFINITIES = {
    "path": path,
    "star": star,
    "bipartite": bipartite,
    "disconnected": disconnected,
    "thread": thread,
    "path without loops": path_without_loops,
    "star without loops": lambda: star() - np.eye(30),
    "isolated with loop": isolated_with_loop,
    "isolated without loop": isolated_without_loop,
    "twelve orders of magnitude": twelve_orders,
    "random points": random_points,
    "single point": lambda: np.ones((1, 1)),
    "two points": lambda: np.ones((2, 2)),
}


@cache
def affinity_of(name):
    affinity = AFFINITIES[name]()
    affinity.flags.writeable = False
    return affinity


@cache
def graph_of(name):
    return Graph.from_affinity(affinity_of(name), lazy=False)


@cache
def measures_of(name):
    n_points = len(affinity_of(name))
    rng = np.random.default_rng(11)
    rows = rng.random((7, n_points)) ** 8
    rows[:2] = 0
    rows[0, 0] = rows[1, -1] = 1
    rows /= rows.sum(axis=1, keepdims=True)
    rows.flags.writeable = False
    return rows


@pytest.fixture(params=AFFINITIES, ids=str)
def affinity_name(request):
    return request.param


@pytest.fixture
def affinity(affinity_name):
    """A dense symmetric affinity, small and possibly hostile; made once and read-only, like what follows from it."""
    return affinity_of(affinity_name)


@pytest.fixture
def graph(affinity_name):
    return graph_of(affinity_name)


@pytest.fixture
def measures(affinity_name):
    """Seven measures: two indicators, sparse ones and dense ones; rows sum to one."""
    return measures_of(affinity_name)


@pytest.fixture
def eager_threads(monkeypatch):
    """Threads share every step of a recurrence, however short it is."""
    monkeypatch.setattr("heatmover.diffusion.operator.PRODUCTS_PER_THREAD", 1)


class Killed(BaseException):
    """Ends everything, as SIGKILL does."""


def die_at(call: int, patch: pytest.MonkeyPatch, steps: tuple[tuple[object, str], ...]) -> None:
    """Let the process end before the call-th of some steps on the disk, after which nothing is cleared up."""
    done = 0

    def dying(work):
        def step(*args, **options):
            nonlocal done
            done += 1
            if done > call:
                raise Killed
            return work(*args, **options)

        return step

    def living(work):
        return lambda *args, **options: None if done > call else work(*args, **options)

    for owner, name in steps:
        patch.setattr(owner, name, dying(getattr(owner, name)))
    patch.setattr(shutil, "rmtree", living(shutil.rmtree))
    patch.setattr(Path, "unlink", living(Path.unlink))


@pytest.fixture
def deaths() -> Callable[..., Iterator[int]]:
    """Do some work that dies at a step, then at a later one, until it comes to its end; yields after every death."""

    def each(work: Callable[[], object], *further: tuple[object, str], every: int = 1) -> Iterator[int]:
        steps = tuple((Path, name) for name in ("replace", "rename", "mkdir")) + further
        number = 0
        while True:
            with pytest.MonkeyPatch.context() as patch:
                die_at(number * every, patch, steps)
                try:
                    work()
                    return
                except Killed:
                    number += 1
            yield number

    return each
