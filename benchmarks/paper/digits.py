"""What the exhibits about MNIST share: images for choosing and images for judging, and how images are compared.

Settings are chosen on images that no table judges. Both parts are drawn by the seed alone, the same for all methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from mnist import SphericalImages, spherical_mnist

from heatmover.datasets.shapes import great_circle
from heatmover.errors import InvalidInputError
from heatmover.statistics.metrics import precision_at_k, spearman
from heatmover.transport.exact import exact_distances

# Images for choosing settings, of 70,000; of fewer, the same share.
N_TUNING, N_ALL = 10_000, 70_000
# Fewer leave no neighbors to speak of.
FEWEST_IMAGES = 1000
# Left out features may change no distance by more than this share of the median distance.
NEGLIGIBLE = 1e-3
# Rows compared at a time in Euclidean distance: 35,000 others take 70 MB.
BLOCK = 500


@dataclass(frozen=True)
class Parts:
    """Which images are for choosing settings, and which for judging them; by index, in random order."""

    tuning: np.ndarray
    judged: np.ndarray


def parts(n_images: int, seed: int) -> Parts:
    """Divide all images in two: a seventh (10,000 of MNIST) for choosing settings, the others for judging."""
    if n_images < FEWEST_IMAGES:
        raise InvalidInputError(f"at least {FEWEST_IMAGES:,} images", f"{n_images:,}")
    order = np.random.default_rng(seed).permutation(n_images)
    tuning, judged = np.split(order, [n_images * N_TUNING // N_ALL])
    return Parts(tuning, judged)


def halves(n_images: int, seed: int, split: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and the test half of one of several even splits."""
    train, test = np.array_split(np.random.default_rng([seed, split]).permutation(n_images), 2)
    return train, test


def pixels(images: np.ndarray, *, sum_one: bool) -> np.ndarray:
    """Return images as rows of pixels, float32 (n_images, n_pixels); they sum to one, or to one on average."""
    rows = images.reshape(len(images), -1).astype(np.float64)
    totals = rows.sum(axis=1, keepdims=True)
    return (rows / (totals if sum_one else totals.mean())).astype(np.float32)


def reached(embedding: np.ndarray, typical: float) -> np.ndarray:
    """Return which features differ between images, (n_features,); most of the sphere no digit reaches.

    A feature's range is the most it can add to a distance, so the sum of the ranges left out bounds the error.
    """
    ranges = embedding.max(axis=0) - embedding.min(axis=0)
    order = np.argsort(ranges)
    negligible = np.cumsum(ranges[order], dtype=np.float64) <= NEGLIGIBLE * typical
    kept = np.ones(ranges.size, dtype=bool)
    kept[order[negligible]] = False
    return kept


def euclidean(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances between rows and others, (n_rows, n_others), by products."""
    squares = np.einsum("ij,ij->i", rows, rows)[:, None] + np.einsum("ij,ij->i", others, others)
    return np.sqrt(np.maximum(squares - 2 * (rows @ others.T), 0))


def nearest_euclidean(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the nearest of the others in Euclidean distance, (n_rows,), a block at a time."""
    blocks = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
    return np.concatenate([euclidean(block, others).argmin(axis=1) for block in blocks])


def reranked(rows: np.ndarray, others: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return, of the others found for each row, (n_rows, k), the one nearest in Euclidean distance, (n_rows,)."""
    nearest = np.empty(len(rows), dtype=found.dtype)
    for start in range(0, len(rows), BLOCK):
        block = slice(start, start + BLOCK)
        squares = np.square(rows[block, None] - others[found[block]]).sum(axis=2)
        nearest[block] = np.take_along_axis(found[block], squares.argmin(axis=1)[:, None], axis=1)[:, 0]
    return nearest


def agreement(truths: Sequence[np.ndarray], distances: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return P@10 and Spearman against exact EMD, means over several draws of digits."""
    pairs = list(zip(truths, distances, strict=True))
    return (
        float(np.mean([precision_at_k(truth, found, k=10) for truth, found in pairs])),
        float(np.mean([spearman(truth, found) for truth, found in pairs])),
    )


def sphere_of_pixels(height: int, width: int) -> tuple[SphericalImages, np.ndarray]:
    """Return the sphere with one measure per pixel, and the great-circle distances between the middles of pixels.

    All embeddings here are linear, so those of single pixels give those of all images.
    """
    sphere = spherical_mnist(np.eye(height * width).reshape(-1, height, width))
    middles = sphere.masses @ sphere.points
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    return sphere, great_circle(middles, middles)


def exact_between_pixels(masses: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return exact EMD between all rows of masses on pixels, (n_rows, n_rows), given the costs between pixels.

    A pixel is one point, not four nodes of the sphere: a tenth of the time for nearly the same distances.
    """
    return exact_distances(
        sp.csr_array(masses), lambda here, there: np.ascontiguousarray(costs[np.ix_(here, there)]), n_threads=2
    )
