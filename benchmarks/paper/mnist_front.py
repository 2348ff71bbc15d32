"""Where the settings of Table 1 come from: accuracy and agreement with exact EMD on images that the table leaves out.

Accuracy is that of 1-NN among all tuning images, each left out in turn. P@10 and Spearman: three draws of 100 digits
against exact EMD with great-circle distances between the middles of pixels. Exact EMD itself is judged too, on the
first 1,000 images: the 40 nearest by Diffusion EMD are compared exactly, and how deep among them the nearest lay tells
whether 40 were enough.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from digits import agreement, euclidean, exact_between_pixels, parts, pixels, reached, reranked, sphere_of_pixels
from exhibit import LOOKS, Exhibit, exhibit, parser, stage
from mnist import load_mnist

import heatmover as hm

LARGEST, ALPHAS = (6, 7, 8), (0.01, 0.1, 0.2, 0.35, 0.5)
COMPRESS, N_RERANKED, DETAIL_SCALE = 0.3, 20, 2
N_CANDIDATES = 40


class Tuning:
    """The tuning images, as pixels and by scale, and the truth for some of them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, *, quick: bool) -> None:
        self.labels = labels
        self.raw, self.masses = (pixels(images, sum_one=sum_one) for sum_one in (False, True))
        sphere, self.costs = sphere_of_pixels(*images.shape[1:])
        n_digits = 30 if quick else 100
        self.draws = [
            np.arange(start, start + n_digits) for start in range(0, (1 if quick else 3) * n_digits, n_digits)
        ]
        with stage("exact EMD of some digits"):
            self.truths = [exact_between_pixels(self.masses[draw], self.costs) for draw in self.draws]
        with stage("all scales"):
            graph = hm.Graph.from_points(sphere.points)
            # With an alpha this small all scales weigh the same to 1e-8; other weights are put on afterwards.
            options = {"max_scale": max(LARGEST), "n_scales": max(LARGEST) + 1, "alpha": 1e-9, "compress": COMPRESS}
            model = hm.DiffusionEMD(graph, **options).fit(sphere.masses)
            edges = np.concatenate([[0], np.cumsum(model.n_regions_)])
            of_pixels = model.transform(sphere.masses)
        self.blocks = [self.masses @ of_pixels[:, edges[k] : edges[k + 1]] for k in range(max(LARGEST) + 1)]
        self.blocks = [block[:, reached(block, 1.0)] for block in self.blocks]

    def weighted(self, largest: int, alpha: float) -> np.ndarray:
        """Return the embedding for scales up to the largest, (n_images, n_features)."""
        return np.hstack([np.float32(2 ** (-alpha * (largest - k))) * self.blocks[k] for k in range(largest + 1)])

    def agreement(self, distances: list[np.ndarray]) -> tuple[float, float]:
        return agreement(self.truths, distances)

    def accuracy(self, found: np.ndarray) -> float:
        return 100 * float((self.labels[found] == self.labels[: len(found)]).mean())

    def by_l1(self, features: np.ndarray) -> tuple[float, float, float, float]:
        """Return accuracy, P@10, Spearman, and the accuracy after the nearest are put in order by one block."""
        found = hm.nearest(features, k=N_RERANKED)[1]
        detail = self.blocks[DETAIL_SCALE]
        agreed = self.agreement([hm.pairwise_distances(features[draw]) for draw in self.draws])
        return self.accuracy(found[:, 0]), *agreed, self.accuracy(reranked(detail, detail, found))

    def by_l2(self, features: np.ndarray) -> tuple[float, float, float]:
        nearest = []
        for start in range(0, len(features), 500):
            distances = euclidean(features[start : start + 500], features)
            distances[np.arange(len(distances)), np.arange(start, start + len(distances))] = np.inf
            nearest.append(distances.argmin(axis=1))
        wide = features.astype(np.float64)
        agreed = self.agreement([euclidean(wide[draw], wide[draw]) for draw in self.draws])
        return self.accuracy(np.concatenate(nearest)), *agreed


def exact_candidates(tuning: Tuning, n_images: int, path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest of the first images by Diffusion EMD and their exact EMD, (n_images, n_candidates) each."""
    import ot

    if path is not None and path.exists():
        with np.load(path) as kept:
            return kept["candidates"][:n_images], kept["values"][:n_images]
    candidates = hm.nearest(tuning.weighted(8, 0.4), k=N_CANDIDATES)[1][:n_images]
    masses = tuning.masses.astype(np.float64)
    masses /= masses.sum(axis=1, keepdims=True)
    supports = [np.flatnonzero(row) for row in masses]

    def solve(image: int) -> list[float]:
        here = supports[image]
        return [
            ot.emd2(masses[image, here], masses[other, there], np.ascontiguousarray(tuning.costs[np.ix_(here, there)]))
            for other in candidates[image]
            for there in [supports[other]]
        ]

    with ThreadPoolExecutor(2) as pool:
        values = np.array(list(pool.map(solve, range(n_images))))
    if path is not None:
        np.savez(path, candidates=candidates, values=values)
    return candidates, values


def exact_rows(tuning: Tuning, n_images: int, path: Path | None) -> list[tuple[str, ...]]:
    """Return the accuracies of exact EMD and of others for the first images, the neighbors being sought among all."""
    candidates, values = exact_candidates(tuning, n_images, path)
    depth = values.argmin(axis=1)
    rows = [(f"exact EMD (nearest at place {depth.max() + 1} or before)", candidates[np.arange(n_images), depth])]
    for largest, alpha in ((7, 0.01), (7, 0.2), (7, 0.5), (7, 0.35)):  # the last is the setting of Table 1
        found = hm.nearest(tuning.weighted(largest, alpha), k=N_RERANKED)[1][:n_images]
        rows.append((f"Diffusion EMD, max_scale {largest}, alpha {alpha}", found[:, 0]))
    detail = tuning.blocks[DETAIL_SCALE]
    rows.append(("the same, 20 nearest by L2 of 4 steps", reranked(detail[:n_images], detail, found)))
    for words, values in (("raw pixels", tuning.raw), ("pixels, sum one", tuning.masses)):
        rows.append((f"{words}, L1", hm.nearest(values, k=1)[1][:n_images, 0]))
        distances = euclidean(values[:n_images], values)
        np.fill_diagonal(distances, np.inf)
        rows.append((f"{words}, L2", distances.argmin(axis=1)))
    return [(words, f"{tuning.accuracy(found):.2f}") for words, found in rows]


def draw(out: Exhibit, front: dict[tuple[int, float], tuple[float, ...]], others: dict[str, tuple[float, ...]]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True)
    color = LOOKS["diffusion_emd"][0]
    for axis, place, words in zip(axes, (1, 2), ("P@10", "Spearman"), strict=True):
        for largest, marker in zip(LARGEST, "vos", strict=True):
            line = [front[largest, alpha] for alpha in ALPHAS]
            axis.plot(
                [f[place] for f in line],
                [f[0] for f in line],
                marker=marker,
                color=color,
                alpha=0.35 + 0.15 * (largest - 6),
                label=f"L1, max_scale {largest}",
            )
            axis.plot(
                [f[place] for f in line],
                [f[3] for f in line],
                marker=marker,
                color="#0072B2",
                alpha=0.35 + 0.15 * (largest - 6),
                label="20 nearest by L2 of 4 steps" if largest == 7 else None,
            )
        for name, figures in others.items():
            axis.plot(figures[place], figures[0], "k+")
            axis.annotate(name, (figures[place], figures[0]), fontsize=6, xytext=(3, 2), textcoords="offset points")
        axis.set_xlabel(f"{words} with exact EMD")
    axes[0].set_ylabel("accuracy, %")
    axes[0].legend(fontsize=6, loc="lower left")
    out.save(figure)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--data", help="an .npz with images and labels, or a folder of idx files")
    arguments.add_argument(
        "--exact", type=int, default=1000, help="images for which exact EMD is judged (1000; quick: 50)"
    )
    arguments.add_argument("--keep", type=Path, help="an .npz file to keep the exact EMD in, or to read it from")
    chosen = arguments.parse_args()
    if chosen.data is None:
        print("left out: it needs MNIST, named with --data")
        return 0
    images, labels = load_mnist(chosen.data)
    some = parts(len(images), chosen.seed).tuning
    some = some[:1000] if chosen.quick else some
    tuning = Tuning(images[some], labels[some], quick=chosen.quick)
    out = exhibit("mnist_front", chosen)
    front = {(largest, alpha): tuning.by_l1(tuning.weighted(largest, alpha)) for largest in LARGEST for alpha in ALPHAS}
    others = {"raw L1": tuning.by_l1(tuning.raw)[:3], "raw L2": tuning.by_l2(tuning.raw)}
    others |= {"sum one L1": tuning.by_l1(tuning.masses)[:3], "sum one L2": tuning.by_l2(tuning.masses)}
    others[f"{2**DETAIL_SCALE} steps L2"] = tuning.by_l2(tuning.blocks[DETAIL_SCALE])
    draw(out, front, others)
    heads = ("max_scale, alpha", "accuracy, %", "P@10", "Spearman", "accuracy of the 20 nearest by L2 of 4 steps, %")
    rows = [
        (f"{largest}, {alpha:g}", f"{f[0]:.2f}", f"{f[1]:.3f}", f"{f[2]:.3f}", f"{f[3]:.2f}")
        for (largest, alpha), f in front.items()
    ]
    rows += [(name, f"{f[0]:.2f}", f"{f[1]:.3f}", f"{f[2]:.3f}", "") for name, f in others.items()]
    note = f"{len(some):,} images that Table 1 does not use, each compared with all other images; seed {chosen.seed}."
    out.table(heads, rows, note=note)
    n_exact = min(50 if chosen.quick else chosen.exact, len(some))
    note = f"Accuracy of the nearest neighbor among all {len(some):,} tuning images, for the first {n_exact:,} images."
    out.table(("nearest by", "accuracy, %"), exact_rows(tuning, n_exact, chosen.keep), note=note, suffix="_exact")
    return 0


if __name__ == "__main__":
    sys.exit(main())
