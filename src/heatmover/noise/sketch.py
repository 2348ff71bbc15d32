"""Samples seen through random probes: means, noise and halves at every scale, from one diffusion.

With white noise g, a diffused probe has at every cell the value psi(c) = <g, e(c)>, where e(c) is the cell's embedding.
Means over probes of products of psi are inner products of embeddings, in the norm ``sum(f**2 / pi)`` that the operator
has by itself (pi is the stationary law).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._threads import in_threads
from heatmover._typing import Float64, FloatArray, Int64
from heatmover.embedding.preparation import Preparation

__all__ = ["PARTS", "Sketch", "deal", "own_share", "pooled", "sketch_samples"]

# Probes, and how many are diffused together. A norm seen by 128 of them is off by an eighth at most scales, and what is
# compared is seen by the same ones.
PROBES, TOGETHER = 128, 32
# Cells of a sample are dealt into at most so many parts for the bootstrap: with 32 a 95 % interval is 4 % too narrow.
PARTS = 32
# Fewer if samples are very many; never so few that halves of them have no spread.
MOST_PARTS, FEWEST_PARTS = 20_000, 4
# A single cell has no spread, and few cells may lack a kind of cells altogether: a sample borrows as much of its spread
# as so many cells say from those of all samples. For 12 cells it changed the coverage of intervals by less than its
# error.
BORROWED = 10


@final
@dataclass(frozen=True)
class Dealt:
    """The cells of every sample dealt at random.

    Attributes
    ----------
    parts
        ``(n_parts, n_nodes)``: measures of parts of equal sizes, sample after sample.
    starts
        ``(n_samples + 1,)``: where the parts of each sample begin and end.
    halves
        ``(n_samples, n_nodes)``: one half less the other, so that its variance is the noise of the sample; empty for a
        sample of one cell.
    """

    parts: sp.csr_array
    starts: Int64
    halves: sp.csr_array


def deal(counts: sp.csr_array, rng: np.random.Generator, most: int) -> Dealt:
    """Deal the cells of every sample into at most ``most`` parts, and into halves.

    Parameters
    ----------
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``.
    rng
        Generator.
    most
        Parts of a sample.
    """
    n_samples = counts.shape[0]
    most = min(most, max(FEWEST_PARTS, MOST_PARTS // n_samples))
    part_of, nodes, signs, starts, edges = [], [], [], [0], [0]
    for row in range(n_samples):
        inside = slice(*counts.indptr[row : row + 2])
        cells = rng.permutation(np.repeat(counts.indices[inside], counts.data[inside].astype(np.int64)))
        n_parts = min(most, cells.size)
        part_of.append(starts[-1] + np.arange(cells.size) % n_parts)
        nodes.append(cells)
        signs.append(_half_signs(cells.size))
        starts.append(starts[-1] + n_parts)
        edges.append(edges[-1] + cells.size)
    shape = (starts[-1], counts.shape[1])
    places = (np.concatenate(part_of), np.concatenate(nodes))
    matrix = sp.csr_array((np.ones(places[0].size), places), shape=shape)
    halves = sp.csr_array((np.concatenate(signs), places[1], np.array(edges)), shape=counts.shape)
    parts = sp.csr_array(sp.diags_array(1 / matrix.sum(axis=1)) @ matrix)
    return Dealt(parts, np.array(starts, dtype=np.int64), halves)


def _half_signs(n_cells: int) -> Float64:
    """Return weights of cells, plus and minus in turn, whose sum of squares is that of a mean: ``1 / n_cells``."""
    other = n_cells // 2
    one = n_cells - other
    if not other:
        return np.zeros(n_cells)
    signs = np.where(np.arange(n_cells) % 2, -1 / other, 1 / one)
    return np.asarray(signs * np.sqrt(one * other) / n_cells)


@final
@dataclass(frozen=True)
class Sketch:
    """Samples seen through probes, at every scale and, last, all blocks of a node added up.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: cells of each sample.
    means
        ``(n_scales + 1, n_samples, n_probes)``: of the samples, less that of all.
    squares
        ``(n_scales + 1, n_samples)``: mean square of the cells of each sample, over the probes.
    halves
        ``(n_scales, n_samples, n_probes)``: nothing but noise, with the variance of that in ``means``.
    parts
        ``(n_parts, n_probes)``: of the parts, all blocks added up.
    starts
        Where the parts of each sample begin and end.
    ratios
        ``(n_scales,)``: L1 norm of noise over its standard deviation.
    """

    sizes: Int64
    means: FloatArray
    squares: Float64
    halves: FloatArray
    parts: FloatArray
    starts: Int64
    ratios: Float64

    def noise(self) -> Float64:
        """Return the variance of each sample's embedding, ``(n_scales + 1, n_samples)``.

        Few cells say little of their spread, a single one nothing: a sample borrows from those of all samples.
        """
        sizes, alone = self.sizes, self.noise_alone()
        own = own_share(sizes)
        return np.asarray(own * alone + (1 - own) * pooled(alone, sizes)[:, None] / sizes)

    def noise_alone(self) -> Float64:
        """Return the same as each sample tells it by itself, without bias; a single cell has that of all samples."""
        spread = np.maximum(self.squares - (self.means.astype(np.float64) ** 2).mean(axis=2), 0)
        alone = spread / np.maximum(self.sizes - 1, 1)
        return np.where(self.sizes > 1, alone, pooled(alone, self.sizes)[:, None])

    def retrieval(self) -> float | None:
        """Return the share of halves that are nearest to their own other half; None if samples are too small."""
        many = np.flatnonzero(self.sizes >= 4)
        if many.size < 2:
            return None
        halves = np.stack(
            [
                [self.parts[self.starts[i] + first : self.starts[i + 1] : 2].mean(axis=0) for i in many]
                for first in (0, 1)
            ]
        ).astype(np.float64)
        one, other = halves
        apart = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2 * one @ other.T
        hits = (apart.argmin(axis=1) == np.arange(many.size), apart.argmin(axis=0) == np.arange(many.size))
        return float(np.mean(hits))


def pooled(noise: Float64, sizes: Int64) -> Float64:
    """Return the variance of one cell at every scale, over all samples of two cells and more, ``(n_scales + 1,)``."""
    freedom = np.where(sizes > 1, sizes - 1, 0)
    return np.asarray((noise * sizes) @ freedom / freedom.sum())


def own_share(sizes: Int64) -> Float64:
    """Return how much of its spread a sample tells itself; of few cells some kinds are missing."""
    return np.where(sizes > 1, sizes / (sizes + BORROWED), 0.0)


def sketch_samples(
    prepared: Preparation, counts: sp.csr_array, dealt: Dealt, rng: np.random.Generator, n_threads: int
) -> Sketch:
    """Diffuse random probes and read them at the cells of the samples.

    Parameters
    ----------
    prepared
        Of the model.
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``.
    dealt
        From `deal`.
    rng
        Generator.
    n_threads
        Threads to use; the result does not depend on them.
    """
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # Mass diffuses in the norm sum(f^2 / pi), functions in sum(f^2 pi).
    metric = law if prepared.adjoint else 1 / law
    sizes = np.asarray(counts.sum(axis=1)).ravel().astype(np.int64)
    rows = sp.csr_array(sp.diags_array(1 / sizes) @ counts)
    n_scales, n_samples = len(layout.scales), rows.shape[0]
    starts = range(0, PROBES, TOGETHER)
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    signs[operator.nodes] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    means = np.empty((n_scales + 1, n_samples, PROBES), dtype=dtype)
    halves = np.empty((n_scales, n_samples, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales + 1, n_samples))
    norms = np.empty((len(starts), n_scales, 2))
    seen = np.empty((dealt.parts.shape[0], PROBES), dtype=dtype)
    masses, parts, differences = rows.astype(dtype), dealt.parts.astype(dtype), dealt.halves.astype(dtype)
    everything = np.asarray(rows.mean(axis=0), dtype=dtype).ravel()

    def look(number: int) -> None:
        columns = slice(starts[number], starts[number] + TOGETHER)
        total: FloatArray = np.zeros((operator.n_points, TOGETHER), dtype=dtype)

        def read(scale: int, values: FloatArray) -> None:
            values -= everything @ values
            means[scale, :, columns] = masses @ values
            if scale < n_scales:
                halves[scale, :, columns] = differences @ values
            np.square(values, out=values)
            squares[number, scale] = np.sum(masses @ values, axis=1, dtype=np.float64)

        probes = signs[:, columns] * np.sqrt(metric)[:, None]
        densities = list(prepared.diffuser.diffuse(probes.astype(dtype), layout.scales))
        for scale, shares in enumerate(layout.matrix):
            values: FloatArray = sum(
                (dtype.type(share) * density for share, density in zip(shares, densities, strict=True) if share),
                np.zeros_like(total),
            ) / metric[:, None].astype(dtype)
            total += values
            centred = values - everything @ values
            norms[number, scale] = (metric @ np.abs(centred)).sum(), (metric @ centred**2).sum()
            read(scale, values)
        seen[:, columns] = parts @ (total - everything @ total)
        read(n_scales, total)

    in_threads(look, range(len(starts)), n_threads)
    absolute, square = norms.sum(axis=0).T / PROBES
    ratios = absolute / np.sqrt(np.maximum(square, np.finfo(float).tiny))
    return Sketch(sizes, means, squares.sum(axis=0) / PROBES, halves, seen, dealt.starts, ratios)
