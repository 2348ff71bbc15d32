"""The contenders of the races: from points and labels to all-pairs distances, in stages that can be timed.

heatmover runs with its default settings. MultiscaleEMD (the package of the paper's authors) runs with its default
settings and scipy's pdist, as in its examples: on the graph its documentation builds, graphtools' default, and once
more on heatmover's default graph, which tells what the graph does from what the distance does.
Each run happens in a process of its own, one after the other, so that peak memory is each contender's own and no
cache of one helps the other; imports and compilation are warmed up on a part of the points and not counted. Seconds
are those of work of all cores together, and beside them those on the clock, which other work on the machine prolongs.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rivals import installed

# Points of the run that is not counted. A graph of 300 takes other compiled code than one of 10,000, which then was
# loaded while the clock ran: 0.8 of 0.9 s for our graph under MultiscaleEMD; after 2,000 points nothing is left.
WARM_UP = 2_000


@dataclass(frozen=True)
class Run:
    """Distances, CPU and wall seconds by stage, memory, and CPU seconds for the choice of the largest scale."""

    distances: np.ndarray
    seconds: dict[str, float]
    peak_megabytes: float
    data_megabytes: float
    on_the_clock: dict[str, float] = field(default_factory=dict)
    choice: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def elapsed(self) -> float:
        return sum(self.on_the_clock.values())


Times = list[tuple[float, float]]


def now() -> tuple[float, float]:
    """Return the CPU seconds of this process and the wall time in seconds."""
    return time.process_time(), time.perf_counter()


def heatmover_stages(points: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, Times, float]:
    import heatmover as hm

    clock = [now()]
    graph = hm.Graph.from_points(points)
    clock.append(now())
    embedding = hm.DiffusionEMD(graph).fit_transform(hm.measures_from_labels(labels))
    clock.append(now())
    distances = hm.pairwise_distances(embedding)
    clock.append(now())
    matrix = graph.affinity
    size = embedding.nbytes + matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    return distances, clock, size / 2**20


def their_graph(points: np.ndarray) -> Any:
    import graphtools

    return graphtools.Graph(points, use_pygsp=True, n_jobs=-1, verbose=False).W


def our_graph(points: np.ndarray) -> Any:
    import heatmover as hm

    return hm.Graph.from_points(points).affinity


def multiscale_embedding(adjacency: Any, masses: np.ndarray, **options: Any) -> np.ndarray:
    """Return the embedding of MultiscaleEMD, ``(n_measures, n_features)``, of masses ``(n_points, n_measures)``."""
    from MultiscaleEMD import DiffusionCheb

    logging.disable(logging.WARNING)  # pygsp tells of the loops of our graph, which its Laplacian ignores
    return np.asarray(DiffusionCheb(**options).fit_transform(adjacency, masses))


def multiscale_stages(
    points: np.ndarray, labels: np.ndarray, graph: Callable[[np.ndarray], Any] = their_graph
) -> tuple[np.ndarray, Times, float]:
    from scipy.spatial.distance import pdist, squareform

    names, column = np.unique(labels, return_inverse=True)
    clock = [now()]
    adjacency = graph(points)
    clock.append(now())
    masses = np.zeros((len(points), len(names)))
    masses[np.arange(len(points)), column] = 1
    embedding = multiscale_embedding(adjacency, masses / masses.sum(axis=0))
    clock.append(now())
    distances = squareform(pdist(embedding, "cityblock"))
    clock.append(now())
    return distances, clock, np.asarray(embedding).nbytes / 2**20


CONTENDERS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, Times, float]]] = {
    "heatmover": heatmover_stages,
    "MultiscaleEMD": multiscale_stages,
    "MultiscaleEMD, our graph": partial(multiscale_stages, graph=our_graph),
}
# Distributions whose versions belong to a table of these races.
RIVAL_PACKAGES = ("MultiscaleEMD", "graphtools")


def present() -> list[str]:
    """Return the contenders that are installed; one line tells of those that are not."""
    rival = installed("MultiscaleEMD", "MultiscaleEMD")
    return [name for name in CONTENDERS if rival or name == "heatmover"]


def in_fresh_process(target: Callable[..., None], *args: object):
    """Return what ``target(sender, *args)`` sends from a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(sender, *args))
    process.start()
    sender.close()  # so that a child that dies ends the wait below
    try:
        return receiver.recv()
    finally:
        process.join()


def run(name: str, points: np.ndarray, labels: np.ndarray) -> Run:
    """Run one contender in a fresh process."""
    return in_fresh_process(_child, name, points, labels)


def _child(sender, name: str, points: np.ndarray, labels: np.ndarray) -> None:
    warnings.filterwarnings("ignore")  # the peer's dependencies deprecate things; nobody here can act on it
    CONTENDERS[name](*part(points, labels))
    before = start_of_peak()
    distances, clock, size = CONTENDERS[name](points, labels)
    peak = peak_megabytes() - before
    work, elapsed = (_stages([times[kind] for times in clock]) for kind in range(2))
    choice = seconds_of_choice(points, labels) if name == "heatmover" else 0.0
    sender.send(Run(np.asarray(distances), work, peak, size, elapsed, choice))


def seconds_of_choice(points: np.ndarray, labels: np.ndarray) -> float:
    """Return by how much the work of a fit that chooses the largest scale exceeds one that is told it; least of 3."""
    import heatmover as hm

    graph, measures = hm.Graph.from_points(points), hm.measures_from_labels(labels)
    chosen = hm.DiffusionEMD(graph).fit(measures).max_scale_
    least = {}
    for _ in range(3):
        for scale in ("auto", chosen):
            begun = time.process_time()
            hm.DiffusionEMD(graph, max_scale=scale).fit(measures)
            least[scale] = min(least.get(scale, np.inf), time.process_time() - begun)
    return least["auto"] - least[chosen]


def part(points: np.ndarray, labels: np.ndarray, n_points: int = WARM_UP) -> tuple[np.ndarray, np.ndarray]:
    """Return so many of the points, drawn at random, and their labels; all of them if there are fewer."""
    chosen = np.random.default_rng(0).permutation(len(points))[:n_points]
    return points[chosen], labels[chosen]


def _stages(clock: list[float]) -> dict[str, float]:
    return dict(zip(("graph", "embedding", "all pairs"), np.diff(clock).tolist(), strict=True))


def start_of_peak() -> float:
    """Forget the peak so far (compilation needs more memory than the work) and return the memory in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_megabytes() -> float:
    """Return the peak resident memory since `start_of_peak`."""
    return _status("VmHWM")


def _status(field: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024
