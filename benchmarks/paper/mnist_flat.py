"""Digits on a flat grid of pixels: what the default settings lose in accuracy, and where.

2,000 of the images that Table 1 does not use, as measures on the grid. Accuracy is that of 1-NN among them, each left
out in turn; P@10 and Spearman: 100 of them against exact EMD with straight distances between pixels.
"""

from __future__ import annotations

import sys

import numpy as np
from digits import agreement, euclidean, exact_between_pixels, parts, pixels, reranked
from exhibit import exhibit, parser
from mnist import load_mnist

import heatmover as hm

N_IMAGES, N_DIGITS = 2000, 100
LARGEST = 10
# A border as wide as half a digit, so that heat leaves the image instead of coming back from its edge.
BORDER = 14


def densities(images: np.ndarray, masses: np.ndarray, border: int) -> list[np.ndarray]:
    """Return the densities at all scales, (n_images, n_points) each, on a grid with a border."""
    height, width = images.shape[1:]
    single = np.pad(np.eye(height * width).reshape(-1, height, width), ((0, 0), (border, border), (border, border)))
    graph = hm.Graph.from_grid((height + 2 * border, width + 2 * border))
    # With an alpha this small all scales weigh the same to 1e-8; other weights are put on afterwards.
    model = hm.DiffusionEMD(graph, max_scale=LARGEST, n_scales=LARGEST + 1, alpha=1e-9, compress=False)
    of_pixels = model.fit_transform(single.reshape(height * width, -1))
    return [masses @ block for block in np.split(of_pixels, LARGEST + 1, axis=1)]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--data", help="an .npz with images and labels, or a folder of idx files")
    chosen = arguments.parse_args()
    if chosen.data is None:
        print("left out: it needs MNIST, named with --data")
        return 0
    images, labels = load_mnist(chosen.data)
    some = parts(len(images), chosen.seed).tuning[: 300 if chosen.quick else N_IMAGES]
    images, labels = images[some], labels[some]
    raw, masses = pixels(images, sum_one=False), pixels(images, sum_one=True)
    places = np.stack(np.unravel_index(np.arange(masses.shape[1]), images.shape[1:]), axis=1).astype(float)
    digits = slice(0, 30 if chosen.quick else N_DIGITS)
    truth = exact_between_pixels(masses[digits], euclidean(places, places))
    rows = []

    def judge(words: str, distances: np.ndarray) -> None:
        agreed = agreement([truth], [distances[digits, digits].astype(np.float64)])
        apart = distances + np.diag(np.full(len(distances), np.inf))
        accuracy = 100 * (labels[apart.argmin(axis=1)] == labels).mean()
        rows.append((words, f"{accuracy:.2f}", *(f"{figure:.3f}" for figure in agreed)))

    for words, values in (("raw pixels", raw), ("pixels, sum one", masses)):
        judge(f"{words}, L1", hm.pairwise_distances(values))
        judge(f"{words}, L2", euclidean(values.astype(np.float64), values.astype(np.float64)))
    for border in (0, BORDER):
        blocks = densities(images, masses, border)
        scales = [hm.pairwise_distances(block.astype(np.float32)) for block in blocks]
        around = f", border {border}" if border else ""
        for largest, alpha in ((7, 0.5), (7, 0.3), (7, 0.1), (5, 0.5), (5, 0.3), (5, 0.1), (9, 0.5)):
            total = sum(2.0 ** (-alpha * (largest - k)) * scales[k] for k in range(largest + 1))
            default = " (default)" if (largest, alpha) == (7, 0.5) else ""
            judge(f"max_scale {largest}, alpha {alpha}{default}{around}", np.asarray(total))
        if border:
            continue
        kept = densities(images, raw, 0)
        total = sum(2.0 ** (-0.5 * (7 - k)) * hm.pairwise_distances(kept[k].astype(np.float32)) for k in range(8))
        judge("max_scale 7, alpha 0.5, mass kept", np.asarray(total))
        for k in (0, 1, 2, 3, 4, 5, 6, 7):
            judge(f"{2**k} steps alone, L1", scales[k])
        features = np.hstack([2.0 ** (-0.2 * (5 - k)) * blocks[k] for k in range(6)]).astype(np.float32)
        found = hm.nearest(features, k=20)[1]
        accuracy = 100 * (labels[reranked(blocks[0], blocks[0], found)] == labels).mean()
        judge("max_scale 5, alpha 0.2", hm.pairwise_distances(features))
        rows.append(("the same, 20 nearest by L2 of 1 step", f"{accuracy:.2f}", "", ""))
    note = (
        f"{len(labels):,} images that Table 1 does not use, drawn with seed {chosen.seed}. The total mass of each "
        "image is one unless stated otherwise."
    )
    exhibit("mnist_flat", chosen).table(("compared by", "accuracy, %", "P@10", "Spearman"), rows, note=note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
