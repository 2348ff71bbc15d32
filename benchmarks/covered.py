"""Does an atlas tell when a sample has cells that its reference does not know?

Reference samples lack one population of cells. Fresh samples of the same kind lack it too; others have it as a tenth of
their cells. AUROC: how well the chance that `Coverage.p_values` states tells the two apart. False alarms: fresh samples
with the verdict "not covered". Found: those of the others.

Oracle: the AUROC of one who knows the absent population, which an atlas cannot: the mean over cells of log(0.9 + 0.1
q / p), with the densities q of the absent population and p of the others. In the mixtures these are the true ones;
elsewhere mixtures of Gaussians fitted to all cells of either.

Kinds of data:

mixture
    eight Gaussian populations of unequal width in 10 dimensions, shares that vary between samples (Dirichlet), and a
    shift of each sample by a tenth of a width. At least nine tenths of the absent one's cells lie outside: where the
    density of the others, which is known here, is below that at all but one in a hundred of their own cells.
batches
    the same, with shifts of 0.3 of a width.
near
    as mixture, but 0.3 to 0.9 of the absent one's cells lie outside.
inside
    as mixture, but less than 0.3 of them do: a narrow population within a wide one. One by one such cells are not
    strange.
counts
    negative binomial counts of 200 genes in nine cell types, logarithms of their shares, 15 principal components of all
    cells; a type is absent. Nothing was chosen by looking at this kind.
tree
    `datasets.cohort`: cells along the branches of a tree in 10 dimensions; the last branch is absent.
melanoma, kidney, flow, simulated (--data)
    cells of 48 samples (10 principal components); glomeruli of the 100 patients with most (14 features); cells of 15
    patients (7 channels); cells of 50 simulated samples in the plane. One of eight k-means clusters is taken out of all
    samples; half of the samples, or 10 of the 15 patients, are the reference. Others get a tenth of its cells. The
    statistic was chosen on mixtures and melanoma; further ideas were turned down on kidney, flow and interferon too.
interferon (--data)
    blood cells of 16 samples (20 principal components), 10 of them the reference; a type of cell is absent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from provenance import add_record, write_table
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

import heatmover as hm
from heatmover.atlas.coverage import Coverage, Support, find_support

SHARE = 0.1
Samples = list[np.ndarray]


class World(NamedTuple):
    """Reference samples, fresh ones, others with strangers, and log q / p of cells."""

    reference: Samples
    fresh: Samples
    odd: Samples
    ratio: Callable[[np.ndarray], np.ndarray]


class Mixture:
    """Gaussian populations; the last one is the absent one."""

    def __init__(self, rng: np.random.Generator, shift: float, apart: tuple[float, float]) -> None:
        self.shift = shift
        while True:
            self.centers, self.widths = 2 * rng.normal(size=(9, 10)), np.exp(0.4 * rng.normal(size=9))
            shares = np.clip(rng.dirichlet(np.full(8, 2.0)), 0.02, None)
            self.shares = shares / shares.sum()
            if apart[0] <= self.outside(rng) < apart[1]:
                break

    def outside(self, rng: np.random.Generator) -> float:
        """Share of the absent population where the others have less density than at 99% of their own cells."""
        kinds = np.r_[rng.choice(8, 4000, p=self.shares), np.full(1000, 8)]
        cells = self.centers[kinds] + self.widths[kinds][:, None] * rng.normal(size=(5000, 10))
        squares = ((cells[:, None] - self.centers[:8]) ** 2).sum(axis=2) / self.widths[:8] ** 2
        density = np.log(np.exp(-squares / 2) @ (self.shares / self.widths[:8] ** 10) + 1e-300)
        return float(np.mean(density[4000:] < np.quantile(density[:4000], 0.01)))

    def ratio(self, cells: np.ndarray) -> np.ndarray:
        """Return log q / p, without the shifts but for their width."""
        widths = np.hypot(self.widths, self.shift)
        squares = ((cells[:, None] - self.centers) ** 2).sum(axis=2) / widths**2
        logs = -squares / 2 - 10 * np.log(widths)
        return np.asarray(logs[:, 8] - logsumexp(logs[:, :8], b=self.shares, axis=1))

    def sample(self, rng: np.random.Generator, n_cells: int, absent: float) -> np.ndarray:
        kind = rng.choice(8, n_cells, p=rng.dirichlet(20 * self.shares))
        kind[: round(absent * n_cells)] = 8
        shift = self.shift * rng.normal(size=10)
        return self.centers[kind] + self.widths[kind][:, None] * rng.normal(size=(n_cells, 10)) + shift


def mixtures(
    rng: np.random.Generator, shift: float, apart: tuple[float, float], n_samples: int, n_cells: int, fresh: int
) -> World:
    world = Mixture(rng, shift, apart)
    reference = [world.sample(rng, n_cells, 0) for _ in range(n_samples)]
    return World(
        reference,
        [world.sample(rng, n_cells, 0) for _ in range(fresh)],
        [world.sample(rng, n_cells, SHARE) for _ in range(fresh)],
        world.ratio,
    )


def divided(cells: Samples, strangers: np.ndarray, rng: np.random.Generator, n_samples: int, n_cells: int) -> World:
    """The first samples as the reference; of the others fresh ones, and the same with a tenth of strangers."""
    drawn = [rows[rng.permutation(len(rows))[:n_cells]] for rows in cells]
    odd = []
    for rows in drawn[n_samples:]:
        count = max(1, round(SHARE * len(rows)))
        odd.append(np.vstack([rows[count:], strangers[rng.choice(len(strangers), count, replace=False)]]))
    return World(drawn[:n_samples], drawn[n_samples:], odd, fitted_ratio(np.vstack(cells), strangers, rng))


def fitted_ratio(cells: np.ndarray, strangers: np.ndarray, rng: np.random.Generator) -> Callable:
    laws = []
    for rows, count in ((cells, 12), (strangers, 3)):
        some = rows[rng.permutation(len(rows))[:4000]]
        laws.append(GaussianMixture(count, reg_covar=1e-4, random_state=0).fit(some))
    return lambda rows: laws[1].score_samples(rows) - laws[0].score_samples(rows)


def tree(rng: np.random.Generator, n_samples: int, n_cells: int, fresh: int) -> World:
    seed = int(rng.integers(2**31))
    data = hm.datasets.cohort(n_samples + fresh, cells_per_sample=2 * n_cells, effect=0.0, random_state=seed)
    branch = data.coordinates[:, 0]
    absent = branch == branch.max()
    codes = np.unique(data.labels, return_inverse=True)[1]
    cells = [data.points[(codes == i) & ~absent] for i in rng.permutation(n_samples + fresh)]
    return divided(cells, data.points[absent], rng, n_samples, n_cells)


def counts(rng: np.random.Generator, n_samples: int, n_cells: int, fresh: int) -> World:
    """Counts of genes; samples differ in the shares of types, in depth, and a little in every gene."""
    n_types, n_genes, total = 9, 200, n_samples + fresh
    profiles = np.exp(rng.normal(size=n_genes) + 0.5 * rng.normal(size=(n_types, n_genes)))
    usual = rng.dirichlet(np.full(n_types - 1, 2.0))
    cells, strangers = [], []
    for _ in range(total):
        kind = rng.choice(n_types - 1, n_cells, p=rng.dirichlet(20 * usual))
        kind = np.r_[kind, np.full(max(1, round(SHARE * n_cells)), n_types - 1)]
        rates = profiles[kind] * np.exp(0.1 * rng.normal(size=n_genes))
        rates *= 500 * np.exp(0.3 * rng.normal(size=(len(kind), 1))) / rates.sum(axis=1, keepdims=True)
        found = rng.poisson(rates * rng.gamma(5, 1 / 5, size=rates.shape))
        logs = np.log1p(1e3 * found / np.maximum(found.sum(axis=1, keepdims=True), 1))
        cells.append(logs[:n_cells])
        strangers.append(logs[n_cells:])
    every = np.vstack(cells + strangers)
    axes = np.linalg.svd(every - every.mean(axis=0), full_matrices=False)[2][:15].T
    return divided([rows @ axes for rows in cells], np.vstack(strangers) @ axes, rng, n_samples, n_cells)


# File, reference samples (0: half of them), cells of each sample at most.
REAL = {
    "melanoma": ("melanoma_sadefeldman48.npz", 0, (100, 400)),
    "kidney": ("kidney_igan_glomeruli634.npz", 0, (100,)),
    "flow": ("flow_itn15.npz", 10, (100, 400)),
    "simulated": ("cna_demo50.npz", 0, (200,)),
    "interferon": ("kang_ifn16.npz", 10, (100,)),
}
FEWEST, MOST = 30, 100


def measured(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return points, the sample of each, and its type where the file tells."""
    with np.load(path) as data:
        points, codes = data["X"].astype(np.float64), np.unique(data["sample"], return_inverse=True)[1]
        kinds = np.unique(data["cell_type"], return_inverse=True)[1] if "cell_type" in data else None
        names = [str(name) for name in data["features"]] if "features" in data else [""] * points.shape[1]
    points = points[:, [name != "Time" for name in names]]
    # Principal components have their own scale; other features have units.
    if not path.name.startswith(("melanoma", "kang")):
        points = (points - points.mean(axis=0)) / points.std(axis=0)
    return points, codes, kinds


def real(path: Path, rng: np.random.Generator, n_samples: int, n_cells: int) -> World:
    points, codes, kinds = measured(path)
    if kinds is None:
        centers = hm.Landmarks.from_points(points, 8, random_state=int(rng.integers(2**31)))
        kinds = centers.assign(points)
    sizes = np.bincount(kinds)
    absent = kinds == rng.choice(np.flatnonzero((sizes > 100) & (sizes < 0.5 * kinds.size)))
    cells = [points[(codes == i) & ~absent] for i in rng.permutation(codes.max() + 1)]
    cells = [rows for rows in cells if len(rows) >= FEWEST]
    kept = np.sort(np.argsort([-len(rows) for rows in cells], kind="stable")[:MOST])
    cells = [cells[i] for i in kept]
    return divided(cells, points[absent], rng, n_samples or len(cells) // 2, n_cells)


def judged(support: Support, samples: Samples) -> Coverage:
    codes = np.repeat(np.arange(len(samples)), [len(rows) for rows in samples])
    draw = support.draw(len(samples))
    if draw is not None:
        draw.add(np.vstack(samples), codes)
    return support.verdict(support.judge(np.vstack(samples)), codes, len(samples), draw)


def figures(world: World) -> tuple[float, float, int, int, int, int]:
    """AUROC, the oracle's, false alarms and fresh samples, samples found and others."""
    reference, fresh, odd, ratio = world
    codes = np.repeat(np.arange(len(reference)), [len(rows) for rows in reference])
    support = find_support(np.vstack(reference), codes, len(reference), np.random.default_rng(0))
    one, other = judged(support, fresh), judged(support, odd)
    truth = np.r_[np.zeros(len(fresh)), np.ones(len(odd))]
    area = float(roc_auc_score(truth, -np.r_[one.p_values, other.p_values]))
    known = [np.logaddexp(np.log(1 - SHARE), np.log(SHARE) + ratio(rows)).mean() for rows in (*fresh, *odd)]
    best = float(roc_auc_score(truth, known))
    return area, best, one.covered.count(False), len(fresh), other.covered.count(False), len(odd)


def cases(args: argparse.Namespace) -> Iterator[tuple[str, int, int, list[World]]]:
    fresh = 30 if args.small else 60
    sizes = [(20, 100), (20, 300)] if args.small else [(20, 100), (20, 300), (40, 100), (40, 1000)]
    far, near, inside = (0.9, np.inf), (0.3, 0.9), (0.0, 0.3)
    kinds = (("mixture", 0.1, far), ("batches", 0.3, far), ("near", 0.1, near), ("inside", 0.1, inside))
    chosen = [kind for kind, *_ in kinds] + ["tree", "counts", *REAL] if args.only is None else args.only
    for n_samples, n_cells in sizes:
        for kind, shift, apart in (entry for entry in kinds if entry[0] in chosen):
            rngs = [np.random.default_rng([args.seed, i]) for i in range(args.worlds)]
            worlds = [mixtures(rng, shift, apart, n_samples, n_cells, fresh) for rng in rngs]
            yield kind, n_samples, n_cells, worlds
        for kind, make in (("tree", tree), ("counts", counts)):
            if kind in chosen:
                rngs = [np.random.default_rng([args.seed, i]) for i in range(args.worlds)]
                yield kind, n_samples, n_cells, [make(rng, n_samples, n_cells, fresh) for rng in rngs]
    for kind, (file, n_samples, most) in REAL.items() if args.data is not None else ():
        for n_cells in most if kind in chosen else ():
            rngs = [np.random.default_rng([args.seed, i]) for i in range(2 * args.worlds)]
            worlds = [real(args.data / file, rng, n_samples, n_cells) for rng in rngs]
            yield kind, len(worlds[0].reference), n_cells, worlds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="fewer and smaller samples")
    parser.add_argument("--worlds", type=int, default=5, help="references of each kind (5)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (0)")
    parser.add_argument("--data", type=Path, help="folder with the files of REAL")
    parser.add_argument("--only", nargs="*", help="kinds to look at (all)")
    add_record(parser)
    args = parser.parse_args()
    rows = []
    for kind, n_samples, n_cells, worlds in cases(args):
        found = [figures(world) for world in worlds]
        areas, best = ([figure[i] for figure in found] for i in (0, 1))
        alarms, fresh, hits, odd = (sum(figure[i] for figure in found) for i in (2, 3, 4, 5))
        verdicts = [f"{100 * alarms / fresh:.1f}%", f"{100 * hits / odd:.0f}%"]
        told = [f"{np.mean(areas):.3f}", f"{min(areas):.3f}", f"{np.mean(best):.3f}", *verdicts]
        rows.append([kind, n_samples, f"{n_cells:,}", len(worlds), *told])
        print(*rows[-1], flush=True)
    heads = ["kind", "reference samples", "cells each", "worlds", "AUROC", "smallest AUROC", "oracle", "false alarms"]
    heads += ["found"]
    note = (
        "In some of the new samples, a tenth of the cells comes from a population that the reference lacks. AUROC "
        "measures how well the p-values of coverage distinguish these samples from new samples without this "
        'population. The table shows the mean and the smallest AUROC over the simulated worlds. "Oracle" is the mean '
        'AUROC of a classifier that knows the absent population. "False alarms" and "found" are the shares of samples '
        "called not covered, among samples without and with the new population. The level of the test is 5%, or 1 in "
        "n + 1 if there are n < 19 reference samples. We chose the rule that combines cells and local means on kinds "
        "other than counts, with other seeds."
    )
    write_table("covered", heads, rows, note, folder=args.record)


if __name__ == "__main__":
    main()
