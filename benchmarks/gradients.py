"""Forward and backward, time, memory and accuracy, beside the gradients of other optimal transport losses.

Every measurement runs in a process of its own. Points lie on a swiss roll in 3-D; the loss is one pair of measures: for
masses two random densities, for positions and for clouds the two halves of the points. Of three runs the one in the
middle counts; one run from a million points on, and of a rival from 100,000 on. Seconds are those of work of all cores
together: on the clock, other work on the machine would be in them. Memory is the peak of the process, graph and data
included, above what it had taken after a first run on 500 points (imports and compiled code). Preparation, the graph
and the loss on it, is timed a second time at the full size, so that no compiled code is loaded meanwhile.

    heatmover masses      DiffusionEMDLoss(first, second)              gradient on masses
    heatmover positions   DiffusionEMDLoss(first, second, points=...)  gradient on all points
    heatmover cloud       DiffusionEMDLoss(enter(cloud), target)       gradient on new points
    geomloss p=1, p=2     SamplesLoss("sinkhorn"), all defaults, each backend; points scaled to the unit cube as the
                          default blur of 0.05 expects; which backend "auto" takes at a size is found out and shown
    POT exact             ot.emd2
    POT Sinkhorn          ot.sinkhorn2 with its defaults, regularization 0.01 of the mean cost; "envelope" is
                          ot.solve(..., grad="envelope"), which does not differentiate through the iterations

"off" is by how much a value (or gradient, in norm) differs from the same loss computed in full: geomloss's tensorized
backend, for heatmover its own loss with tol=1e-10, for POT's Sinkhorn its exact EMD. The halves come from one roll, so
that their divergence is a small difference of large terms; "apart" is the value after one half was moved by 0.3.

Also shown: the gradient of a tree method (quad tree) by finite steps of the points, which is zero almost everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import PACKAGES, add_record, write_table
from rivals import installed

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "results" / "gradients.png"
OURS = ("heatmover masses", "heatmover positions", "heatmover cloud")
BACKENDS = ("tensorized", "online", "multiscale")
# The largest size to try; for the rivals a guess at what ends within two minutes and 16 GB on 2 cores.
LARGEST = {
    "heatmover masses": 1_000_000,
    "heatmover positions": 1_000_000,
    "heatmover cloud": 100_000,
    "geomloss p=2 tensorized": 10_000,
    "geomloss p=2 online": 20_000,
    "geomloss p=2 multiscale": 100_000,
    "geomloss p=1 tensorized": 10_000,
    "geomloss p=1 online": 10_000,
    "geomloss p=1 multiscale": 20_000,
    "POT exact": 10_000,
    "POT Sinkhorn": 1_000,
    "POT Sinkhorn envelope": 1_000,
}
# What a method needs beside torch: what is imported, and what pip calls it.
NEEDS = {
    **{name: [("geomloss", "geomloss")] for name in LARGEST if name.endswith("tensorized")},
    **{
        name: [("geomloss", "geomloss"), ("pykeops", "pykeops")]
        for name in LARGEST
        if name.endswith(("online", "scale"))
    },
    **{name: [("ot", "POT")] for name in LARGEST if name.startswith("POT")},
}
# Against what values and gradients are judged.
REFERENCES = {
    **{name: f"{name.rpartition(' ')[0]} tensorized" for name in LARGEST if name.startswith("geomloss")},
    "POT Sinkhorn": "POT exact",
    "POT Sinkhorn envelope": "POT exact",
}
# Above, our loss is not computed a second time, more finely, to see how far off it is.
LARGEST_CHECKED = 20_000
APART = 0.3


def roll(n_points: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    angle, height = rng.uniform(1.5 * np.pi, 4.5 * np.pi, n_points), rng.uniform(0, 21, n_points)
    return np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])


def ours(name: str, n_points: int, max_scale: int | str, tol: float = 1e-4) -> tuple[Callable[..., Any], Any]:
    """Return a function without arguments that gives a loss, and the leaf whose gradient is wanted."""
    import torch

    import heatmover as hm
    from heatmover.differentiable import DiffusionEMDLoss

    points = roll(n_points)
    loss = DiffusionEMDLoss(hm.Graph.from_points(points), points=points, max_scale=max_scale, tol=tol)
    rng = np.random.default_rng(1)
    if name == "heatmover masses":
        first, second = (torch.tensor(rng.dirichlet(np.ones(n_points)), requires_grad=True) for _ in range(2))
        return lambda: loss(first, second), first
    half = torch.zeros(n_points, dtype=torch.float64)
    half[: n_points // 2] = 1 / (n_points // 2)
    rest = torch.zeros(n_points, dtype=torch.float64)
    rest[n_points // 2 :] = 1 / (n_points - n_points // 2)
    if name == "heatmover positions":
        leaf = torch.tensor(points, requires_grad=True)
        return lambda: loss(half, rest, points=leaf), leaf
    cloud = torch.tensor(roll(n_points, seed=2)[: n_points // 2], requires_grad=True)
    return lambda: loss(loss.enter(cloud), rest), cloud


def theirs(name: str, n_points: int) -> tuple[Callable[..., Any], Any]:
    """Return a function that gives a loss, the second half moved by ``apart``, and the leaf."""
    import torch

    # geomloss's documentation works in float32; POT's Sinkhorn fails there (its gradient is not a number).
    dtype = torch.float64 if name.startswith("POT") else torch.float32
    points = torch.tensor(roll(n_points) / 30, dtype=dtype)
    first, second = points[: n_points // 2].clone().requires_grad_(), points[n_points // 2 :]
    away = torch.tensor([0, 1, 0], dtype=dtype)
    if name.startswith("geomloss"):
        from geomloss import SamplesLoss

        _, p, backend = name.split()
        loss = SamplesLoss("sinkhorn", p=int(p[-1]), backend=backend)
        return lambda apart=0.0: loss(first, second + apart * away), first
    import ot

    even = [torch.full((len(part),), 1 / len(part), dtype=dtype) for part in (first, second)]

    def solve(apart: float = 0.0) -> Any:
        cost = torch.cdist(first, second + apart * away)
        scale = 0.01 * float(cost.detach().mean())
        if name == "POT exact":
            return ot.emd2(*even, cost, numItermax=10_000_000)
        if name == "POT Sinkhorn":
            return ot.sinkhorn2(*even, cost, scale)
        return ot.solve(cost, *even, reg=scale, grad="envelope").value

    return solve, first


class Taken(Exception):
    """Which backend geomloss has begun to use."""


def taken_by_auto(p: int, n_points: int) -> str:
    """Return the backend that ``backend="auto"`` takes: a run that ends as soon as it calls one."""
    loss, _ = theirs(f"geomloss p={p} auto", n_points)

    def watch(frame: Any, event: str, _argument: Any) -> None:
        kind, _, backend = frame.f_code.co_name.partition("_")
        if event == "call" and kind == "sinkhorn" and backend in BACKENDS:
            raise Taken(backend)

    sys.setprofile(watch)
    try:
        loss()
    except Taken as taken:
        return str(taken)
    finally:
        sys.setprofile(None)
    return "not known"


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, n_points: int, max_scale: int | str, repeats: int, file: Path) -> dict[str, Any]:
    """Time forward and backward in this process; leave the gradient in a file."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def prepared(size: int) -> tuple[Callable[..., Any], Any]:
        return ours(name, size, max_scale) if name in OURS else theirs(name, size)

    prepared(500)[0]().backward()
    before = memory()
    make, leaf = prepared(n_points)
    times = []
    for _ in range(repeats):
        leaf.grad = None
        start = time.process_time()
        value = make()
        middle = time.process_time()
        value.backward()
        times.append((middle - start, time.process_time() - middle))
    forward, backward = sorted(times, key=sum)[len(times) // 2]
    found = {"forward": forward, "backward": backward, "memory": memory() - before, "base": before}
    found |= {"runs": repeats, "value": float(value.detach())}
    # The first preparation at this size has loaded what it needs; memory was read before.
    start = time.process_time()
    prepared(n_points)
    found["prepare"] = time.process_time() - start
    np.save(file, leaf.grad.numpy())
    if name in OURS and n_points <= LARGEST_CHECKED:
        finer, fine_leaf = ours(name, n_points, max_scale, tol=1e-10)
        fine = finer()
        fine.backward()
        found["value off"] = abs(found["value"] / float(fine.detach()) - 1)
        found["gradient off"] = off(*(centered(name, which.grad.numpy()) for which in (leaf, fine_leaf)))
    if name.startswith("geomloss"):
        found["auto"] = taken_by_auto(int(name.split()[1][-1]), n_points)
    if name in REFERENCES and n_points <= LARGEST[REFERENCES[name]] // 2:
        with torch.no_grad():
            found["apart"] = float(make(APART))
    return found


def centered(name: str, gradient: np.ndarray) -> np.ndarray:
    """Masses add up to one, so that a constant in their gradient means nothing."""
    return gradient - gradient.mean() if name == "heatmover masses" else gradient


def off(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def in_own_process(name: str, n_points: int, args: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """Measure in a process of its own, within the time allowed."""
    few = n_points >= (1_000_000 if name in OURS else 100_000)
    order = [sys.executable, __file__, "--one", name, str(n_points), str(gradient_file(folder, name, n_points))]
    order += ["--max-scale", str(args.max_scale), "--repeats", str(1 if few else args.repeats)]
    # Threads of OpenMP (torch, KeOps) that wait for one another would count as work if they did not sleep.
    quiet = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    try:
        done = subprocess.run(order, capture_output=True, text=True, timeout=args.timeout, check=True, env=quiet)
    except subprocess.TimeoutExpired:
        print(f"{name:24s} {n_points:9,}   more than {args.timeout} s", flush=True)
        return None
    except subprocess.CalledProcessError as error:
        print(f"{name:24s} {n_points:9,}   failed: {error.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{name:24s} {n_points:9,} {found['prepare']:9.2f} {found['forward']:9.3f} {found['backward']:9.3f} "
        f"{found['memory'] / 2**20:10,.0f}",
        flush=True,
    )
    return found


def gradient_file(folder: Path, name: str, n_points: int) -> Path:
    return folder / f"{name.replace(' ', '-')}-{n_points}.npy"


Results = dict[str, dict[int, dict[str, Any]]]


def compare_with_references(results: Results, folder: Path) -> None:
    """Add by how much each rival is off from the same loss computed in full, at sizes where that one ran."""
    for name, reference in REFERENCES.items():
        for size, found in results.get(name, {}).items():
            truth = results.get(reference, {}).get(size)
            if truth is None or name == reference:
                continue
            found["value off"] = abs(found["value"] / truth["value"] - 1)
            gradients = [np.load(gradient_file(folder, which, size)) for which in (name, reference)]
            found["gradient off"] = off(*gradients)
            if "apart" in found and "apart" in truth:
                found["apart off"] = abs(found["apart"] / truth["apart"] - 1)


def table(results: Results, folder: Path | None, max_scale: int | str) -> None:
    sizes = sorted({size for rows in results.values() for size in rows})
    rows = []
    for size in sizes:
        ours = results.get(OURS[0], {}).get(size)
        for name, found in ((name, rows[size]) for name, rows in results.items() if size in rows):
            both = found["forward"] + found["backward"]
            ratio = f"{both / (ours['forward'] + ours['backward']):.2f}" if ours else ""
            auto = " (auto)" if found.get("auto") == name.split()[-1] else ""
            accuracy = [share(found.get(which)) for which in ("value off", "apart off", "gradient off")]
            seconds = [f"{value:.3f}" for value in (found["forward"], found["backward"], both)]
            rows.append([name + auto, f"{size:,}", *seconds, ratio, f"{found['memory'] / 2**20:,.0f}", *accuracy])
    heads = ["loss", "points", "forward, s", "backward, s", "both, s", "relative to masses", "memory, MiB"]
    heads += ["error of value", "error of value, apart", "error of gradient"]
    note = (
        '"(auto)" marks the backend that geomloss chooses by default at this size. The coarsest scale of heatmover is '
        f"{max_scale}; its other settings and all settings of geomloss are defaults. We set the regularization of "
        "POT's Sinkhorn to 1% of the mean cost. Times are CPU seconds, summed over all cores, and medians of three "
        "runs; runs at a million points, and runs of other methods at 100,000 points, are single runs. Waiting "
        'threads of torch and KeOps use no CPU time. "Error" is the relative error compared with the loss computed in '
        "full (geomloss: tensorized; heatmover: tol=1e-10; POT's Sinkhorn: the exact EMD); "
        '"apart" is measured after one half of the points was moved by 0.3. Memory is the peak memory of the process '
        "minus the memory for 500 points. Compilation is not included: KeOps, behind online and multiscale, compiles "
        "each formula once, in about half a minute, and heatmover compiles its kernels once, in some seconds. "
        f"Preparing the graph, once for all losses on the graph, is not included either: {graph_seconds(results)}."
    )
    packages = (*PACKAGES, "torch", "geomloss", "pykeops", "POT")
    write_table("gradients", heads, rows, note, folder=folder, packages=packages)


def share(value: float | None) -> str:
    if value is None or not np.isfinite(value):
        return "" if value is None else "not a number"
    return f"{value:.1%}" if value >= 5e-4 else f"{value:.0e}"


def graph_seconds(results: Results) -> str:
    """Say what the graph takes at each size: the least work of all losses on it."""
    found: dict[int, list[float]] = {}
    for name in OURS:
        for size, row in results.get(name, {}).items():
            found.setdefault(size, []).append(row["prepare"])
    return ", ".join(f"{min(times):.1f} s at {size:,} points" for size, times in found.items()) or "not measured"


def exponent(rows: dict[int, dict[str, Any]], *quantities: str) -> float:
    """Return the slope of log(sum of quantities) over log(n), on the upper half of the sizes, at least three."""
    sizes = sorted(rows)[-max(3, (len(rows) + 1) // 2) :]
    values = [sum(rows[size][quantity] for quantity in quantities) for size in sizes]
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) if len(sizes) > 1 else float("nan")


def trees(n_points: int = 400, trials: int = 200) -> None:
    """Move one point a little at a time; count how often the distance between the two halves moves as well."""
    import torch

    import heatmover as hm
    from heatmover.differentiable import DiffusionEMDLoss

    points, rng = roll(n_points), np.random.default_rng(0)
    labels = np.repeat(["a", "b"], n_points // 2)
    measures = hm.measures_from_labels(labels)
    graph = hm.Graph.from_points(points)
    loss = DiffusionEMDLoss(graph, max_scale=8)
    first, second = torch.tensor(measures.masses.toarray())
    step = 1e-6

    def tree(places: np.ndarray) -> float:
        return float(hm.baselines.quad_tree(places, measures, random_state=0)[0, 1])

    def heat(places: np.ndarray) -> float:
        return float(loss(first, second, points=torch.tensor(places)))

    print(f"\nOne point of {n_points} moves by {step:g}, {trials} times; share of moves that the distance feels:")
    for name, distance in (("quad_tree", tree), ("Diffusion EMD", heat)):
        start, changed = distance(points), 0
        for _ in range(trials):
            moved = points.copy()
            moved[rng.integers(n_points)] += step * rng.normal(size=3)
            changed += abs(distance(moved) - start) > 1e-14
        print(f"{name:20s} {changed / trials:7.1%}", flush=True)


def draw(results: Results, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6))
    for name, rows in results.items():
        sizes = sorted(rows)
        if not sizes:
            continue
        style = {"marker": "o" if name in OURS else "s", "linestyle": "-" if name in OURS else "--", "markersize": 4}
        seconds = [rows[size]["forward"] + rows[size]["backward"] for size in sizes]
        growth = f" (n^{exponent(rows, 'forward', 'backward'):.2f})" if len(rows) > 1 else ""
        axes[0].loglog(sizes, seconds, label=f"{name}{growth}", **style)
        axes[1].loglog(sizes, [rows[size]["memory"] / 2**30 for size in sizes], **style)
    axes[0].set(xlabel="points n", ylabel="CPU seconds", title="forward + backward, one pair")
    axes[1].set(xlabel="points n", ylabel="GiB", title="peak memory")
    axes[0].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    print(f"drawn: {file}")


def factors(results: Results) -> None:
    """Say how many times as long the rivals take at the largest size that both have."""
    for name in OURS:
        for rival in (rival for rival in results if rival not in OURS):
            for size in sorted(set(results.get(name, {})) & set(results[rival]))[-1:]:
                spent = [results[which][size]["forward"] + results[which][size]["backward"] for which in (rival, name)]
                auto = " (auto)" if results[rival][size].get("auto") == rival.split()[-1] else ""
                print(f"at {size:9,} points {rival}{auto} takes {spent[0] / spent[1]:.2f} times as long as {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1_000, 5_000, 10_000, 20_000, 100_000, 1_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    parser.add_argument("--methods", nargs="+", choices=LARGEST, default=list(LARGEST), metavar="METHOD")
    parser.add_argument("--max-scale", default="12", help="coarsest scale (12); 'auto' grows with n, and so does time")
    parser.add_argument("--repeats", type=int, default=3, help="runs, of which the one in the middle counts (3)")
    parser.add_argument("--timeout", type=int, default=900, help="wall seconds for one measurement (900)")
    parser.add_argument("--quick", action="store_true", help="up to 5,000 points, no picture")
    parser.add_argument("--picture", type=Path, default=None, help="default: docs/results/gradients.png if recorded")
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "N", "FILE"), help=argparse.SUPPRESS)
    add_record(parser)
    args = parser.parse_args()
    scale: int | str = args.max_scale if args.max_scale == "auto" else int(args.max_scale)
    if args.one:
        name, size, file = args.one
        print(json.dumps(measure(name, int(size), scale, args.repeats, Path(file))))
        return
    if args.quick:
        args.sizes = [1_000, 5_000]
    if not installed("torch", "torch"):
        return
    absent = {module for needs in NEEDS.values() for module, package in needs if not installed(module, package)}
    print(f"max_scale {scale}\nmethod                           n   prepare   forward  backward memory MiB")
    results: Results = {}
    with tempfile.TemporaryDirectory() as place:
        for name in args.methods:
            rows = results.setdefault(name, {})
            if any(module in absent for module, _ in NEEDS.get(name, ())):
                continue
            for size in (size for size in args.sizes if size <= LARGEST[name]):
                found = in_own_process(name, size, args, Path(place))
                if found is None:
                    break
                rows[size] = found
        compare_with_references(results, Path(place))
    print()
    table(results, args.record, scale)
    print("\nexponents in n (upper half of the sizes): time, memory")
    for name, rows in results.items():
        if len(rows) > 1:
            print(f"{name:24s} {exponent(rows, 'forward', 'backward'):6.2f} {exponent(rows, 'memory'):6.2f}")
    factors(results)
    trees()
    if args.record or args.picture:
        draw(results, args.picture or PICTURE)


if __name__ == "__main__":
    main()
