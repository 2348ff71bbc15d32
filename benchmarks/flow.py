"""A gradient flow along the swiss roll: a cloud is carried onto another by the gradient of Diffusion EMD.

A reference cloud covers the roll. The moving cloud enters its graph by kernel weights (`DiffusionEMDLoss.enter`), the
target is another cloud, and every particle follows its own gradient, held on the roll by a share of `straying`.
Beside it the same flow under the Euclidean
Sinkhorn divergence (geomloss, if installed), which goes straight through the layers of the roll.

Judged by the exact EMD to the target (POT), in space and along the roll (unrolled at the nearest reference point).
The picture is that of the first seed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from provenance import PACKAGES, ROOT, add_record, write_table
from rivals import installed, required
from scipy.spatial import cKDTree

required("torch", "torch", "a flow follows its gradients")
required("ot", "POT", "the way is judged by its exact EMD")
import ot  # noqa: E402
import torch  # noqa: E402

import heatmover as hm  # noqa: E402
from heatmover.differentiable import DiffusionEMDLoss  # noqa: E402

OUTPUT = Path(__file__).parent / "output" / "flow.png"
PICTURE = ROOT / "docs" / "results" / "flow.png"
Paths = dict[str, list[np.ndarray]]


def roll(angle: np.ndarray, height: np.ndarray) -> np.ndarray:
    return np.column_stack([angle * np.cos(angle), height, angle * np.sin(angle)])


def arc_length(angle: np.ndarray) -> np.ndarray:
    return (angle * np.sqrt(1 + angle**2) + np.arcsinh(angle)) / 2


def make_clouds(n_reference: int, n_cloud: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return the reference, its unrolled coordinates, and two clouds two thirds of the roll apart."""
    rng = np.random.default_rng(seed)
    # Even in area: the angle's density grows with the radius.
    lengths = rng.uniform(arc_length(np.array(1.5 * np.pi)), arc_length(np.array(4.5 * np.pi)), n_reference)
    grid = np.linspace(1.5 * np.pi, 4.5 * np.pi, 10_000)
    angle = np.interp(lengths, arc_length(grid), grid)
    height = rng.uniform(0, 21, n_reference)
    source = roll(rng.normal(2.1 * np.pi, 0.15, n_cloud), rng.normal(5, 1.5, n_cloud))
    target = roll(rng.normal(3.9 * np.pi, 0.15, n_cloud), rng.normal(15, 1.5, n_cloud))
    return roll(angle, height), np.column_stack([lengths, height]), source, target


def exact(first: np.ndarray, second: np.ndarray) -> float:
    return float(ot.emd2([], [], ot.dist(first, second, metric="euclidean"), numItermax=10_000_000))


class Referee:
    """Exact EMD between clouds, in space and along the roll."""

    def __init__(self, reference: np.ndarray, unrolled: np.ndarray, target: np.ndarray) -> None:
        self._tree, self._unrolled, self._target = cKDTree(reference), unrolled, target

    def __call__(self, cloud: np.ndarray) -> tuple[float, float]:
        return exact(cloud, self._target), exact(self._flat(cloud), self._flat(self._target))

    def _flat(self, cloud: np.ndarray) -> np.ndarray:
        return self._unrolled[self._tree.query(cloud)[1]]


def flow(loss: DiffusionEMDLoss, source: np.ndarray, target: np.ndarray, args: argparse.Namespace) -> list[np.ndarray]:
    """Move the source by Adam in rounds of ever smaller steps; return the path."""
    cloud = torch.tensor(source, requires_grad=True)
    aim = loss.enter(torch.tensor(target))
    path = [source.copy()]
    for number in range(args.rounds):
        # Little momentum on the way, so that the cloud is not carried out of the bends.
        optimizer = torch.optim.Adam([cloud], lr=args.rate / 3**number, betas=(0.9 if number else 0.5, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps, eta_min=args.rate / 40)
        for _ in range(args.steps):
            optimizer.zero_grad()
            (len(source) * loss(loss.enter(cloud), aim)).backward()
            optimizer.step()
            schedule.step()
            # A step of its own, because the pull also draws towards where nodes are dense, which could outweigh a faint
            # far gradient; it shrinks with the other steps for the same reason.
            (pull,) = torch.autograd.grad(loss.straying(cloud).sum(), cloud)
            cloud.data -= args.hold / 2 * (schedule.get_last_lr()[0] / args.rate) * pull
            path.append(cloud.detach().numpy().copy())
    return path


def sinkhorn_flow(source: np.ndarray, target: np.ndarray, steps: int, rate: float) -> list[np.ndarray]:
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized")
    cloud, goal = torch.tensor(source, requires_grad=True), torch.tensor(target)
    path = [source.copy()]
    optimizer = torch.optim.Adam([cloud], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (len(source) * loss(cloud, goal)).backward()
        optimizer.step()
        path.append(cloud.detach().numpy().copy())
    return path


def report(name: str, path: list[np.ndarray], referee: Referee, seconds: float) -> list[str]:
    """Return by how much the exact EMD falls, along the roll and in space."""
    first, last = referee(path[0]), referee(path[-1])
    fallen = [1 - end / start for start, end in zip(first, last, strict=True)]
    for where, start, end, share in zip(("in space", "along the roll"), first, last, fallen, strict=True):
        print(f"{name:20s} exact EMD {where:14s} {start:8.3f} -> {end:8.3f}   falls by {share:7.2%}")
    print(f"{name:20s} {len(path) - 1} steps, {seconds:.1f} s", flush=True)
    return [f"{100 * share:.2f}%" for share in reversed(fallen)]


def run(seed: int, args: argparse.Namespace) -> tuple[Paths, np.ndarray, np.ndarray, list[list[str]]]:
    """Return all paths, the reference and the target, and rows of the table."""
    reference, unrolled, source, target = make_clouds(args.reference, args.cloud, seed)
    graph = hm.Graph.from_points(reference, n_neighbors=20)
    loss = DiffusionEMDLoss(graph, points=reference)
    print(f"{loss}\nmax_scale: {loss.max_scale_reason}", flush=True)
    flows = {"Diffusion EMD": lambda: flow(loss, source, target, args)}
    if installed("geomloss", "geomloss"):
        flows["Sinkhorn divergence"] = lambda: sinkhorn_flow(source, target, args.rounds * args.steps, args.rate)
    referee, paths, rows = Referee(reference, unrolled, target), {}, []
    for name, follow in flows.items():
        start = time.perf_counter()
        paths[name] = follow()
        rows.append([name, str(seed), *report(name, paths[name], referee, time.perf_counter() - start)])
    return paths, reference, target, rows


def draw(paths: Paths, reference: np.ndarray, target: np.ndarray, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(paths), figsize=(6 * len(paths), 5.6), squeeze=False)
    for axis, (name, path) in zip(axes[0], paths.items(), strict=True):
        axis.scatter(*reference[::3, ::2].T, s=2, color="0.85", linewidths=0)
        tracks = np.stack([*path[:: max(len(path) // 100, 1)], path[-1]])[:, ::4]
        for track in tracks.transpose(1, 0, 2):
            axis.plot(track[:, 0], track[:, 2], color="C0", linewidth=0.4, alpha=0.5)
        axis.scatter(*target[:, ::2].T, s=14, facecolors="none", edgecolors="C3", label="target")
        axis.scatter(*path[0][:, ::2].T, s=5, color="C0", alpha=0.4, label="start")
        axis.scatter(*path[-1][:, ::2].T, s=5, color="k", label="end")
        axis.set(title=name, xlabel="x", ylabel="z", aspect="equal")
    axes[0, 0].legend(loc="upper left", frameon=False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=130)
    print(f"drawn: {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=int, default=8000, help="points of the reference cloud (8000)")
    parser.add_argument("--cloud", type=int, default=200, help="points of the moving cloud (200)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of ever smaller steps (4)")
    parser.add_argument("--steps", type=int, default=150, help="steps of each round (150)")
    parser.add_argument(
        "--rate", type=float, default=0.6, help="first step width of Adam (0.6), a third of it each round"
    )
    parser.add_argument(
        "--hold",
        type=float,
        default=0.4,
        help="share of the way back to the roll at each step (0.4), less as steps shrink",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the clouds (0)")
    parser.add_argument("--quick", action="store_true", help="a small roll")
    parser.add_argument("--picture", type=Path, help="default: docs/results/flow.png if recorded")
    add_record(parser)
    args = parser.parse_args()
    if args.quick:
        args.reference, args.cloud, args.steps = 1500, 60, 60
    rows = []
    for seed in args.seeds:
        paths, reference, target, found = run(seed, args)
        rows += found
        if seed == args.seeds[0]:
            draw(paths, reference, target, args.picture or (PICTURE if args.record else OUTPUT))
    heads = ["flow along the gradient of", "seed", "exact EMD falls along the roll by", "in space by"]
    note = (
        f"{args.cloud} particles, {args.reference:,} reference points and {args.rounds * args.steps} steps. geomloss "
        "computes the Sinkhorn divergence with p=2 and blur=0.05."
    )
    packages = (*PACKAGES, "torch", "geomloss", "POT")
    write_table("flow", heads, sorted(rows), note, folder=args.record, packages=packages)


if __name__ == "__main__":
    main()
