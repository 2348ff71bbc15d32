"""Forward and backward, time and memory, beside the gradients of other optimal transport losses.

Every measurement runs in a process of its own. Points lie on a swiss roll in 3-D; the loss is one pair of measures: for
masses two random densities, for positions and for clouds the two halves of the points. The best of several
repetitions counts. Memory is the peak of the process, graph and data included, above what it had taken after a first
run on 500 points (imports and compiled code, "base").

    heatmover masses      DiffusionEMDLoss(first, second)              gradient on masses
    heatmover positions   DiffusionEMDLoss(first, second, points=...)  gradient on all points
    heatmover cloud       DiffusionEMDLoss(enter(cloud), target)       gradient on new points
    sinkhorn p=1, p=2     geomloss.SamplesLoss("sinkhorn"), default blur 0.05, points scaled to the unit cube
    POT exact, sinkhorn   ot.emd2; ot.sinkhorn2 (log domain, regularisation 0.01 of the mean cost)

Also shown: the gradient of a tree method (quad tree) by finite steps of the points, which is zero almost everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "results" / "gradients.png"
OURS = ("heatmover masses", "heatmover positions", "heatmover cloud")
PEERS = ("sinkhorn p=2", "sinkhorn p=1", "POT exact", "POT sinkhorn")
# Sizes to try; for the peers a guess at what ends within minutes and 16 GB on 2 cores.
LARGEST = {
    "heatmover masses": 1_000_000,
    "heatmover positions": 1_000_000,
    "heatmover cloud": 1_000_000,
    "sinkhorn p=2": 20_000,
    "sinkhorn p=1": 20_000,
    "POT exact": 10_000,
    "POT sinkhorn": 5_000,
}


def roll(n_points: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    angle, height = rng.uniform(1.5 * np.pi, 4.5 * np.pi, n_points), rng.uniform(0, 21, n_points)
    return np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])


def ours(name: str, n_points: int, max_scale: int | str) -> Any:
    """Return a function without arguments that gives a loss, on fresh leaves."""
    import torch

    import heatmover as hm
    from heatmover.differentiable import DiffusionEMDLoss

    points = roll(n_points)
    loss = DiffusionEMDLoss(hm.Graph.from_points(points), points=points, max_scale=max_scale)
    rng = np.random.default_rng(1)
    if name == "heatmover masses":
        first, second = (torch.tensor(rng.dirichlet(np.ones(n_points)), requires_grad=True) for _ in range(2))
        return lambda: loss(first, second)
    half = torch.zeros(n_points, dtype=torch.float64)
    half[: n_points // 2] = 1 / (n_points // 2)
    rest = torch.zeros(n_points, dtype=torch.float64)
    rest[n_points // 2 :] = 1 / (n_points - n_points // 2)
    if name == "heatmover positions":
        leaf = torch.tensor(points, requires_grad=True)
        return lambda: loss(half, rest, points=leaf)
    cloud = torch.tensor(roll(n_points, seed=2)[: n_points // 2], requires_grad=True)
    return lambda: loss(loss.enter(cloud), rest)


def theirs(name: str, n_points: int) -> Any:
    import torch

    points = torch.tensor(roll(n_points) / 30, dtype=torch.float32)
    first, second = points[: n_points // 2].clone().requires_grad_(), points[n_points // 2 :]
    if name.startswith("sinkhorn"):
        from geomloss import SamplesLoss

        loss = SamplesLoss("sinkhorn", p=int(name[-1]), backend="tensorized")
        return lambda: loss(first, second)
    import ot

    even = [torch.full((len(part),), 1 / len(part)) for part in (first, second)]
    if name == "POT exact":
        return lambda: ot.emd2(*even, torch.cdist(first, second), numItermax=10_000_000)

    def sinkhorn() -> Any:
        cost = torch.cdist(first, second)
        scale = 0.01 * float(cost.detach().mean())
        return ot.sinkhorn2(*even, cost, scale, method="sinkhorn_log", numItermax=1000, stopThr=1e-6, warn=False)

    return sinkhorn


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, n_points: int, max_scale: int | str, repeats: int) -> dict[str, float]:
    """Time forward and backward in this process."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def prepared(size: int) -> Any:
        return ours(name, size, max_scale) if name in OURS else theirs(name, size)

    prepared(500)().backward()
    before = memory()
    start = time.perf_counter()
    make = prepared(n_points)
    prepare = time.perf_counter() - start
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        value = make()
        middle = time.perf_counter()
        value.backward()
        times.append((middle - start, time.perf_counter() - middle))
    forward, backward = min(times, key=sum)
    return {"prepare": prepare, "forward": forward, "backward": backward, "memory": memory() - before, "base": before}


def in_own_process(name: str, n_points: int, args: argparse.Namespace) -> dict[str, float] | None:
    """Measure in a process of its own, within the time allowed."""
    order = [sys.executable, __file__, "--one", name, str(n_points), "--max-scale", str(args.max_scale)]
    order += ["--repeats", str(args.repeats if n_points < 100_000 and name in OURS else 2)]
    try:
        done = subprocess.run(order, capture_output=True, text=True, timeout=args.timeout, check=True)
    except subprocess.TimeoutExpired:
        print(f"{name:20s} {n_points:9,}   more than {args.timeout} s", flush=True)
        return None
    except subprocess.CalledProcessError as error:
        print(f"{name:20s} {n_points:9,}   failed: {error.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    ratio = found["backward"] / found["forward"]
    print(
        f"{name:20s} {n_points:9,} {found['prepare']:9.2f} {found['forward']:9.3f} {found['backward']:9.3f} "
        f"{ratio:6.2f} {found['memory'] / 2**20:10,.0f} {found['base'] / 2**20:8,.0f}",
        flush=True,
    )
    return found


def exponent(rows: dict[int, dict[str, float]], *quantities: str) -> float:
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


def draw(results: dict[str, dict[int, dict[str, float]]], file: Path) -> None:
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
    axes[0].set(xlabel="points n", ylabel="seconds", title="forward + backward, one pair")
    axes[1].set(xlabel="points n", ylabel="GiB", title="peak memory")
    axes[0].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    print(f"drawn: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    parser.add_argument("--methods", nargs="+", choices=OURS + PEERS, default=OURS + PEERS, metavar="METHOD")
    parser.add_argument("--max-scale", default="12", help="coarsest scale (12); 'auto' grows with n, and so does time")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions, the best counts (5)")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one measurement (600)")
    parser.add_argument("--quick", action="store_true", help="up to 5,000 points, no picture")
    parser.add_argument("--picture", type=Path, default=None, help="default: docs/results/gradients.png, full run only")
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    scale: int | str = args.max_scale if args.max_scale == "auto" else int(args.max_scale)
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), scale, args.repeats)))
        return
    if args.quick:
        args.sizes, args.repeats = [1_000, 2_000, 5_000], 3
    print(f"max_scale {scale}\nmethod                       n   prepare   forward  backward  ratio memory MiB base MiB")
    results: dict[str, dict[int, dict[str, float]]] = {}
    for name in args.methods:
        rows = results.setdefault(name, {})
        for size in (size for size in args.sizes if size <= LARGEST[name]):
            found = in_own_process(name, size, args)
            if found is None:
                break
            rows[size] = found
    print("\nexponents in n (upper half of the sizes): time, memory")
    for name, rows in results.items():
        if len(rows) > 1:
            print(f"{name:20s} {exponent(rows, 'forward', 'backward'):6.2f} {exponent(rows, 'memory'):6.2f}")
    both = [size for size in args.sizes if all(size in results.get(name, {}) for name in (OURS[1], PEERS[0]))]
    for size in both[-1:]:
        at_size = {name: rows[size] for name, rows in results.items() if size in rows}
        spent = {name: found["forward"] + found["backward"] for name, found in at_size.items()}
        for name in (name for name in OURS if name in spent):
            print(f"at {size:,} points {PEERS[0]} takes {spent[PEERS[0]] / spent[name]:.0f} times as long as {name}")
    trees()
    full = not args.quick and max(args.sizes) >= 1_000_000
    if full or args.picture:
        draw(results, args.picture or PICTURE)


if __name__ == "__main__":
    main()
