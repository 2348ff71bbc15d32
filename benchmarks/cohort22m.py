"""Twenty-two million cells of 210 samples, as in the paper, from a store on disk to a report in bounded memory.

The cells are simulated, out of core and seeded, by the model of `heatmover.datasets.cohort`: a tree of curved branches
(cell types) in --markers dimensions with Gaussian noise in every direction. Each sample has its own composition; a
mortality-like outcome depends on the shares of two types, and three shares are the signals whose smoothness over the
10-NN graph of samples the paper compares. The noise decides how hard it is to find the nearest landmark: without
any, cells lie on curves and few landmarks are in reach; the default, 0.05, is that of `datasets.cohort`.

    python benchmarks/cohort22m.py                                  # 22 M cells, 27,000 landmarks: the whole
    python benchmarks/cohort22m.py --sizes 1e5 1e6 1e7 --landmarks 4000   # exponents in the number of cells
    python benchmarks/cohort22m.py --cells 1e6 --workers 1 2        # processes of a local cluster, one thread each
    python benchmarks/cohort22m.py --cells 2e5 --landmarks 2000 --against-full
    python benchmarks/cohort22m.py --cells 2e5 --landmarks 2000 --kill 20 --kill-workers 10
    python benchmarks/cohort22m.py --small                          # a minute, for a first look

--record writes the tables of all but the whole run, whose stages and smoothness benchmarks/paper/covid.py records.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from provenance import add_record, write_table
from scipy.stats import spearmanr

import heatmover as hm
from heatmover._base.progress import SILENT
from heatmover.datasets.simulated_cohort import grow_tree
from heatmover.report import write_report
from heatmover.study.scale import compare_cohort, read_cohort
from heatmover.study.study import study_comparison

N_TYPES = 7
# Around equal shares, as in `datasets.cohort`.
CONCENTRATION = 30.0
# Types whose shares are the signals; the outcome depends on the first and the second.
SIGNALS = {"share of type 3": 3, "share of type 4": 4, "share of type 6": 6}
WRITE_ROWS = 1 << 16

warnings.filterwarnings("ignore", message="zarr v3 autosharding")


# ---------------------------------------------------------------- the cohort


def sizes_of_samples(n_cells: int, n_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Sizes that differ by a factor of about four, as those of real samples do, and sum to the number of cells."""
    weights = rng.lognormal(sigma=0.35, size=n_samples)
    sizes = np.maximum(2, np.floor(weights / weights.sum() * n_cells)).astype(int)
    sizes[0] += n_cells - sizes.sum()
    return sizes


def cells_of_sample(composition, size, basis, noise, rng):
    tree = grow_tree(N_TYPES)
    types = rng.choice(N_TYPES, size=size, p=composition)
    points = tree.locate(np.column_stack([types, rng.random(size)])) @ basis
    points = points.astype(np.float32) + np.float32(noise) * rng.standard_normal(points.shape, dtype=np.float32)
    return points, np.bincount(types, minlength=N_TYPES) / size


def generate(folder: Path, options: argparse.Namespace) -> None:
    """Write cells.zarr, which `read_cohort` reads as AnnData, and samples.csv; one sample is in memory at a time."""
    rng = np.random.default_rng(options.seed)
    sizes = sizes_of_samples(options.cells, options.samples, rng)
    compositions = rng.dirichlet(np.full(N_TYPES, CONCENTRATION / N_TYPES), size=options.samples)
    basis = np.linalg.qr(rng.standard_normal((options.markers, options.markers))).Q[:3]
    names = [f"patient-{i:03d}" for i in range(options.samples)]
    root = zarr.open_group(folder / "cells.zarr", mode="w", attributes={"encoding-type": "anndata"})
    cells = root.create_array("X", shape=(options.cells, options.markers), dtype="float32",
                              chunks=(WRITE_ROWS, options.markers))  # fmt: skip
    write_tables(root, np.repeat(np.arange(options.samples), sizes), names, options.markers)
    shares, waiting, done = [], np.empty((0, options.markers), dtype=np.float32), 0
    for sample, size in enumerate(sizes):
        own = np.random.default_rng([options.seed, sample])
        points, share = cells_of_sample(compositions[sample], size, basis, options.noise, own)
        shares.append(share)
        waiting = np.concatenate([waiting, points])
        whole = len(waiting) // WRITE_ROWS * WRITE_ROWS if sample < len(sizes) - 1 else len(waiting)
        cells[done : done + whole] = waiting[:whole]  # whole chunks, each written once
        waiting, done = waiting[whole:], done + whole
    write_sheet(folder / "samples.csv", names, np.array(shares), rng)


def write_tables(root, codes, names, n_markers):
    from anndata.io import write_elem

    obs = root.create_group("obs", attributes={"column-order": ["sample"], "encoding-type": "dataframe"})
    sample = obs.create_group("sample", attributes={"encoding-type": "categorical", "ordered": False})
    sample.create_array("codes", data=codes.astype(np.int16), chunks=(1 << 20,))
    write_elem(sample, "categories", np.array(names, dtype=object))
    var = root.create_group("var", attributes={"_index": "name", "column-order": [], "encoding-type": "dataframe"})
    write_elem(var, "name", np.array([f"marker {i}" for i in range(1, n_markers + 1)], dtype=object))


def write_sheet(path, names, shares, rng):
    centered = (shares - shares.mean(axis=0)) / shares.std(axis=0)
    first, second, _ = SIGNALS.values()
    risk = 1 / (1 + np.exp(-(1.5 * centered[:, first] - centered[:, second] - 0.5)))
    died = rng.random(len(names)) < risk
    lines = [",".join(["sample", "outcome", *SIGNALS])]
    for name, dead, row in zip(names, died, shares, strict=True):
        lines.append(
            ",".join([name, "died" if dead else "survived", *(f"{row[place]:.6f}" for place in SIGNALS.values())])
        )
    path.write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- time and memory


def peak() -> float:
    """Peak resident memory in GB since the last call."""
    status = Path("/proc/self/status").read_text()
    kilobytes = int(status.split("VmHWM:")[1].split()[0])
    Path("/proc/self/clear_refs").write_text("5")
    return kilobytes * 1024 / 1e9


@dataclass(frozen=True)
class Cost:
    """Wall seconds, CPU seconds, and peak memory in GB."""

    seconds: float
    work: float
    gigabytes: float


class Meter:
    """Progress that notes the cost of every stage, and prints a line at its end."""

    def __init__(self, quiet: bool = False) -> None:
        self.rows: dict[str, Cost] = {}
        self.name, self.total, self.quiet = "", 0, quiet
        self.started = self.begun = clocks()

    def stage(self, name: str, total: int) -> None:
        self.end()
        self.name, self.total, self.begun = name, total, clocks()
        peak()

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        if self.quiet:
            print("advance", flush=True)  # for whoever waits to kill this process

    def end(self) -> None:
        if self.name:
            cost = self.cost(self.begun, peak())
            self.rows[self.name] = cost
            rate = f"{self.total / cost.seconds:14,.0f} /s" if self.total > 1000 else ""
            if not self.quiet:
                times = f"{cost.seconds:9.1f} s {cost.work:9.1f} s of work"
                print(f"  {self.name:22s} {times} {cost.gigabytes:7.2f} GB {rate}", flush=True)
        self.name = ""

    def whole(self) -> Cost:
        return self.cost(self.started, max(cost.gigabytes for cost in self.rows.values()))

    @staticmethod
    def cost(begun: tuple[float, float], gigabytes: float) -> Cost:
        seconds, work = (now - before for now, before in zip(clocks(), begun, strict=True))
        return Cost(seconds, work, gigabytes)


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Whole:
    """What a whole run found, and what every stage and all of it cost."""

    cohort: Any
    result: Any
    study: Any
    stages: dict[str, Cost]
    total: Cost


def default_landmarks(n_cells: int) -> int:
    """The paper's 27,000 for its 22 million cells, fewer for fewer."""
    return 27_000 if n_cells >= 5_000_000 else 4_000 if n_cells >= 500_000 else 2_000


def read(folder: Path, meter: Meter):
    meter.stage("read", 1)
    return read_cohort(
        folder / "cells.zarr", sample_key="sample", sample_sheet=folder / "samples.csv", progress=meter
    )  # fmt: skip


def compare(cohort, options, meter, **more):
    return compare_cohort(
        cohort, landmarks=options.landmarks or default_landmarks(cohort.n_cells),
        memory=options.memory, n_jobs=options.threads, progress=meter, **more,
    )  # fmt: skip


def whole_run(folder: Path, options: argparse.Namespace) -> Whole:
    """From the store to the report."""
    meter = Meter()
    cohort = read(folder, meter)
    checkpoint = {"checkpoint": folder / "checkpoint.zarr"} if options.checkpoint else {}
    result = compare(cohort, options, meter, **checkpoint)
    study = study_comparison(result, cohort.samples, progress=meter)
    meter.stage("report", 1)
    write_report(study, folder / "report.html")
    meter.end()
    whole = Whole(cohort, result, study, meter.rows, meter.whole())
    total = whole.total
    print(f"  {'total':22s} {total.seconds:9.1f} s {total.work:9.1f} s of work {total.gigabytes:7.2f} GB")
    print(f"  {study.headline()}\n  {result.landmarks}; {result.landmark_agreement}", flush=True)
    return whole


def signals_of(cohort) -> dict[str, np.ndarray]:
    """The signals whose smoothness the paper compares: three shares of cell types, and the outcome as 0 or 1."""
    shares = {name: cohort.variable(name).to_numpy(dtype=float) for name in SIGNALS}
    return {**shares, "outcome": (cohort.variable("outcome") == "died").to_numpy(dtype=float)}


def distances_by_method(result) -> dict[str, np.ndarray]:
    """Distances between samples by the methods that the paper compares, all of them on the same landmarks."""
    centers, measures = result.landmarks.centers, result.measures
    return {
        "diffusion_emd": result.distances,
        "from_paper": hm.pairwise_distances(
            hm.DiffusionEMD.from_paper(result.landmarks.graph()).fit_transform(measures)
        ),
        "quad_tree": hm.baselines.quad_tree(centers, measures),
        "cluster_tree": hm.baselines.cluster_tree(centers, measures),
    }


def smoothness(methods: dict[str, np.ndarray], signals: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """Laplacian smoothness by method and signal over the 10-NN graph of samples: lower is better, 1 is chance."""
    return {
        method: {
            name: hm.metrics.laplacian_smoothness(distances, signal, 10, normalize=True)
            for name, signal in signals.items()
        }
        for method, distances in methods.items()
    }


def print_smoothness(whole: Whole) -> None:
    table = smoothness(distances_by_method(whole.result), signals_of(whole.cohort))
    print(f"  {'smoothness (10-NN)':22s}" + "".join(f"{name:>18s}" for name in next(iter(table.values()))))
    for method, row in table.items():
        print(f"  {method:22s}" + "".join(f"{value:18.3f}" for value in row.values()), flush=True)


def sizes_run(folder: Path, options: argparse.Namespace) -> None:
    """Every size in a process of its own; exponents by least squares on logarithms."""
    found = []
    for size in options.sizes:
        place = folder / f"{int(size)}"
        place.mkdir(exist_ok=True)
        run_self(options, place, cells=int(size), extra=["--json"])
        found.append(json.loads((place / "run.json").read_text()))
    logs = np.log([float(size) for size in options.sizes])
    rows = []
    for name in found[0]:
        seconds = [run[name]["work"] for run in found]
        rows.append([name, *(f"{value:.1f} s" for value in seconds), ""])
        if min(seconds) > 0.05:
            slope = np.polyfit(logs, np.log(seconds), 1)[0]
            rows[-1][-1] = f"{slope:.2f}"
            print(f"{name:24s} exponent {slope:5.2f}   " + "  ".join(f"{value:8.1f} s" for value in seconds))
    peaks = [run["total"]["gigabytes"] for run in found]
    print(f"{'peak memory':24s}                  " + "  ".join(f"{value:7.2f} GB" for value in peaks), flush=True)
    if options.record:
        rows.append(["peak resident memory", *(f"{value:.2f} GB" for value in peaks), ""])
        heads = ["stage", *(f"{int(size):,} cells" for size in options.sizes), "exponent"]
        note = f"CPU seconds, summed over all cores. Number of landmarks: {options.landmarks or 'by size'}."
        write_table("cohort22m_sizes", heads, rows, note, folder=options.record)


def workers_run(folder: Path, options: argparse.Namespace) -> None:
    """The stage that counts cells, on local clusters of one process per worker and one thread per process."""
    cohort, seconds, rows = read(folder, Meter()), {}, []
    for count in options.workers:
        with ExitStack() as stack:
            client = local_cluster(stack, count)
            warm_up(client)
            meter = Meter()
            print(f"{count} worker processes", flush=True)
            result = compare(cohort, options, meter, client=client)
            meter.end()
        seconds[count] = meter.rows["count cells"].seconds
        print(
            f"  distances {digest(result.distances)}; {seconds[options.workers[0]] / seconds[count]:.2f} x", flush=True
        )
        faster = f"{seconds[options.workers[0]] / seconds[count]:.1f} x"
        rows.append([count, f"{seconds[count]:.1f}", faster, digest(result.distances)])
    if options.record:
        heads = ["worker processes", "seconds to count", "times as fast", "digest of the distances"]
        write_table("cohort22m_workers", heads, rows, f"{cohort.n_cells:,} cells.", folder=options.record)


def local_cluster(stack: ExitStack, n_workers: int):
    import distributed

    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0", "silence_logs": 50}
    cluster = stack.enter_context(distributed.LocalCluster(n_workers=n_workers, **options))
    return stack.enter_context(distributed.Client(cluster))


def warm_up(client) -> None:
    """Let every worker import and compile, which is not what is to be timed."""
    points = np.random.default_rng(0).normal(size=(30_000, 3)).astype(np.float32).round(2)  # so that there are ties
    client.run(lambda: hm.Landmarks.from_points(points, 1500, n_jobs=1).n_landmarks)


def against_full(folder: Path, options: argparse.Namespace) -> None:
    """Compare the distances through landmarks with those on the graph over all cells."""
    cohort = read(folder, Meter())
    begun = time.perf_counter()
    full = hm.compare(cohort.points(), cohort.labels(), landmarks=None, n_jobs=options.threads)
    print(f"full graph over {cohort.n_cells:,} cells: {time.perf_counter() - begun:.0f} s", flush=True)
    upper = np.triu_indices(len(cohort.names), 1)
    result = compare(cohort, options, SILENT)
    pairs = spearmanr(full.distances[upper], result.distances[upper]).statistic
    per_sample = hm.metrics.spearman(full.distances, result.distances)
    print(
        f"  Spearman of all pairs {pairs:.4f}, per sample {per_sample:.4f}, as the run itself measured "
        f"{result.landmark_agreement.spearman:.4f}; distortion {result.landmarks.distortion:.6f}, of cells drawn "
        f"{result.landmarks.how['distortion_of_drawn']:.6f}; scales up to {full.model.max_scale_} and "
        f"{result.model.max_scale_}",
        flush=True,
    )
    figures = (pairs, per_sample, result.landmark_agreement.spearman, result.landmarks.distortion)
    rows = [[*(f"{value:.4f}" for value in figures), f"{result.model.max_scale_} ({full.model.max_scale_})"]]
    if options.record:
        heads = ["Spearman of all pairs", "per sample", "as the run itself measured", "distortion", "scale"]
        note = (
            f"{cohort.n_cells:,} cells. The number in brackets is the scale that was chosen on the graph over all "
            "cells."
        )
        write_table("cohort22m_full", heads, rows, note, folder=options.record)


def digest(distances: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(distances).data).hexdigest()[:16]


# ---------------------------------------------------------------- kills


def command(options: argparse.Namespace, folder: Path, extra: list[str], cells: int | None = None) -> list[str]:
    values = {
        "--cells": cells or options.cells, "--samples": options.samples, "--markers": options.markers,
        "--noise": options.noise, "--seed": options.seed, "--memory": options.memory,
        "--landmarks": options.landmarks, "--threads": options.threads, "--folder": folder,
    }  # fmt: skip
    given = [str(part) for key, value in values.items() if value is not None for part in (key, value)]
    return [sys.executable, __file__, *given, *extra]


def run_self(options, folder, extra, cells=None) -> str:
    process = subprocess.run(
        command(options, folder, extra, cells), check=True, text=True,
        stdout=None if "--json" in extra else subprocess.PIPE,
    )  # fmt: skip
    return process.stdout or ""


def kill_run(folder: Path, options: argparse.Namespace) -> None:
    """kill -9 at random moments of the work, told by its own steps; then resume, and compare the distances."""
    output = run_self(options, folder, ["--child", "fresh"])
    steps, expected = output.count("advance"), output.split()[-1]
    moments, same = random.Random(options.seed), 0
    print(f"{steps} steps, distances {expected}", flush=True)
    for number in range(options.kill):
        shutil.rmtree(folder / "checkpoint.zarr", ignore_errors=True)
        moment, delay = moments.randrange(steps), moments.random() * 0.5
        killed = kill_after(command(options, folder, ["--child", "fresh"]), moment, delay)
        found = run_self(options, folder, ["--child", "resume"]).split()[-1]
        same += found == expected
        print(
            f"  kill {number + 1:2d} {delay:.2f} s after step {moment:3d}{'' if killed else ' (had ended)'}: {found}",
            flush=True,
        )
    print(f"{same} of {options.kill} ended with identical distances", flush=True)
    record_kills("cohort22m_kill", "process", same, options.kill, options)


def kill_after(arguments: list[str], steps: int, delay: float) -> bool:
    """Start a process and kill it some time after so many steps; return whether it was still at work."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        while steps >= 0 and (line := process.stdout.readline()):
            steps -= line.startswith("advance")
        time.sleep(delay)
        at_work = process.poll() is None
        process.send_signal(signal.SIGKILL)
    return at_work


def child(folder: Path, options: argparse.Namespace) -> None:
    """One run with a checkpoint that prints a line per step and the digest of its distances."""
    cohort = read(folder, Meter(quiet=True))
    result = compare(cohort, options, Meter(quiet=True), checkpoint=folder / "checkpoint.zarr",
                     resume=options.child == "resume")  # fmt: skip
    if options.child == "fresh":
        shutil.rmtree(folder / "checkpoint.zarr")
    print(digest(result.distances), flush=True)


class KillAt:
    """Progress that kills a process at some step, counted from 0; without one it only counts."""

    def __init__(self, step: int = -1, victim: int = 0) -> None:
        self.step, self.victim, self.done, self.where, self.now = step, victim, 0, "", ""

    def stage(self, name: str, total: int) -> None:  # noqa: ARG002
        self.now = name

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        if self.done == self.step:
            os.kill(self.victim, signal.SIGKILL)
            self.where = self.now
        self.done += 1


def kill_workers_run(folder: Path, options: argparse.Namespace) -> None:
    """kill -9 of a worker of a local cluster, a new one each time, at random steps; the run must not notice."""
    cohort, moments, same = read(folder, Meter(quiet=True)), random.Random(options.seed), 0
    count = KillAt()
    expected = digest(compare(cohort, options, count).distances)
    for number in range(1, options.kill_workers + 1):
        with ExitStack() as stack:
            client = local_cluster(stack, 2)
            warm_up(client)
            # Before the last steps, which are of this process alone.
            killer = KillAt(moments.randrange(count.done - 2), moments.choice(list(client.run(os.getpid).values())))
            found = digest(compare(cohort, options, killer, client=client).distances)
        same += found == expected and killer.where != ""
        print(f"  worker killed {number:2d} at step {killer.step:3d}, {killer.where!r}: {found}", flush=True)
    print(f"{same} of {options.kill_workers} ended with identical distances, {expected}", flush=True)
    record_kills("cohort22m_kill_workers", "one of two workers", same, options.kill_workers, options)


def record_kills(name: str, what: str, same: int, kills: int, options: argparse.Namespace) -> None:
    if options.record:
        landmarks = options.landmarks or default_landmarks(options.cells)
        note = f"{options.cells:,} cells of {options.samples} samples, {landmarks:,} landmarks."
        heads = ["killed with kill -9", "times", "ended with identical distances"]
        write_table(name, heads, [[what, kills, same]], note, folder=options.record)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = lambda text: int(float(text))  # noqa: E731 - 1e6 is easier to read than 1000000
    parser.add_argument("--cells", type=number, default=22_000_000)
    parser.add_argument("--samples", type=int, default=210)
    parser.add_argument("--markers", type=int, default=14)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--landmarks", type=int, help="27,000 from 5 million cells on, fewer below")
    parser.add_argument("--memory", default="4 GB")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the cells are or will be; default a temporary folder")
    parser.add_argument("--checkpoint", action="store_true", help="keep a checkpoint while at it")
    parser.add_argument("--sizes", type=float, nargs="+")
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--kill-workers", type=int, default=0)
    parser.add_argument("--against-full", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=["fresh", "resume"], help=argparse.SUPPRESS)
    add_record(parser)
    options = parser.parse_args(arguments)
    modes = (options.sizes, options.workers, options.against_full, options.kill, options.kill_workers)
    if options.record and not any(modes):
        parser.error("the whole run is recorded by benchmarks/paper/covid.py")
    if options.small:
        options.cells, options.samples, options.landmarks = 50_000, 30, 1000
    return options


def main() -> None:
    options = options_of()
    with tempfile.TemporaryDirectory(prefix="cohort22m-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.sizes:
            sizes_run(folder, options)
            return
        if not (folder / "samples.csv").exists():
            begun = time.perf_counter()
            generate(folder, options)
            if not options.child:
                what = (
                    f"{options.cells:,} cells x {options.markers} of {options.samples} samples, noise {options.noise}"
                )
                print(f"{what}: generated in {time.perf_counter() - begun:.0f} s", flush=True)
        modes = {
            child: options.child, workers_run: options.workers, against_full: options.against_full,
            kill_run: options.kill, kill_workers_run: options.kill_workers,
        }  # fmt: skip
        for mode, wanted in modes.items():
            if wanted:
                mode(folder, options)
        if not any(modes.values()):
            whole = whole_run(folder, options)
            found = {name: asdict(cost) for name, cost in (whole.stages | {"total": whole.total}).items()}
            (folder / "run.json").write_text(json.dumps(found))
            if not options.json:
                print_smoothness(whole)


if __name__ == "__main__":
    main()
