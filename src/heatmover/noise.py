"""`uncertainty`: how much of a distance is luck of the draw, what is left without it, and how sure that is.

A sample is a draw of cells, so that its embedding x is the true one plus noise, whose variance is that of one cell
divided by the number of cells. Everything here comes from the cells' embeddings e(c), seen through random probes: with
white noise g, the diffused probe has at every cell the value psi(c) = <g, e(c)>, so that means over probes of products
of psi are inner products of embeddings, in the norm ``sum(f**2 / pi)`` that the operator has by itself (pi is the
stationary law). One diffusion of the probes serves all samples, all scales and all replicates.

With v_i the noise of sample i at a scale and tau^2 the variance between samples that is not noise (Paule and Mandel
1982), x_i is moved towards the centre by ``tau / sqrt(tau^2 + v_i)``: the samples then vary as the true ones do,
whatever their numbers of cells, and coincide if nothing but noise sets them apart. These are constrained empirical
Bayes estimates (Louis 1984, Ghosh 1992). A rotation makes them exchangeable, see `Uncertainty.correct`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import gammaln, ndtri, stdtrit
from sklearn.utils.validation import check_is_fitted

from heatmover._readonly import ReadOnlyArrays
from heatmover._threads import in_threads
from heatmover._typing import Bool, Float64, FloatArray, Int64
from heatmover._validation import (
    RandomState,
    as_array,
    check_integer,
    check_number,
    check_random_state,
    check_threads,
)
from heatmover.embedding.distances import pairwise_distances
from heatmover.embedding.estimator import DiffusionEMD
from heatmover.embedding.preparation import Preparation
from heatmover.errors import InvalidInputError, argument
from heatmover.measures import Measures

__all__ = ["Uncertainty", "assess", "check_cells", "uncertainty"]

# Probes, and how many are diffused together. A norm seen by 128 of them is off by an eighth at most scales, and what is
# compared is seen by the same ones.
PROBES, TOGETHER = 128, 32
# Cells of a sample are dealt into at most so many parts for the bootstrap: with 32 a 95 % interval is 4 % too narrow.
PARTS = 32
MOST_PARTS = 20_000
# Noise of few cells is spiky and has a smaller L1 norm than its variance says. Making up for all of it evens the mean
# distance of small samples, but leaves their nearest one too far, for a spike has no neighbour; for none of it,
# too near: Spearman of size and nearest distance on 634 kidneys of 2 to 415 items -0.55 and 0.38. The root is between.
SPIKINESS = 0.5
# Beyond this many cells for each degree of freedom a Poisson law is a normal one.
NORMAL = 200.0
# A single cell has no spread, and few cells may lack a kind of cells altogether: a sample borrows as much of its spread
# as so many cells say from those of all samples. For 12 cells it changed the coverage of intervals by less than its
# error.
BORROWED = 10
# Intervals are those of an L2 norm, in units of the L1 distance of the same pair. The ratio of the two varies with the
# noise in the pair: its standard deviation was 0.11 to 0.16 of it where nearly all is noise, 0.01 where hardly any is.
UNLIKE = 0.15
# Shares of the noise, of the largest norm, that are rounding.
ROUNDING = 1e-9


@final
@dataclass(frozen=True, eq=False, repr=False)
class Uncertainty(ReadOnlyArrays):
    """Noise of samples and what it does to their distances; `uncertainty` makes one, ``print`` it.

    Attributes
    ----------
    sizes
        ``(n_samples,)``: cells of each sample.
    noise
        ``(n_samples, n_scales)``: variance of a sample's embedding by the luck of the draw, finest scale first.
    between
        ``(n_scales,)``: variance between samples beyond the noise, in the same unit; never negative.
    excess
        The same without a limit at zero: its expectation is zero if all samples come from one distribution.
    distances
        ``(n_samples, n_samples)``: as they are, with their noise.
    test_distances
        ``(n_samples, n_samples)``: of corrected samples in the L2 norm of the operator, for tests. The L1 norm tells
        the spikes of few cells from the many smaller ones of more cells even if both have the same variance, which a
        permutation test takes for a difference. Where nothing but noise sets samples apart, evened out to equal noise.
    lower, upper
        ``(n_samples, n_samples)``: interval of the distance that infinitely many cells would show, for every pair by
        itself; None without a bootstrap.
    confidence
        Of the intervals.
    n_bootstrap
        Replicates.
    retrieval
        Share of samples of at least four cells of which a random half has the other half as its nearest.
    floors
        ``(n_scales, 2)``: of the noise of single cells, variance and ratio of L1 norm to standard deviation.
    weights
        ``(n_scales,)``: the largest L1 norm of a density in each block of the embedding.
    edges
        ``(n_scales + 1,)``: where the blocks of the embedding begin and end.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(12, cells_per_sample=50, effect=4.0)
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points))
    >>> measures = hm.measures_from_labels(data.labels)
    >>> found = hm.uncertainty(model.fit(measures), measures)
    >>> found.told_apart.shape, found.noise.shape == (12, model.n_scales_)
    ((12, 12), True)
    >>> found.noise_floor(50) > found.noise_floor(500)
    True
    """

    sizes: Int64
    noise: Float64
    between: Float64
    excess: Float64
    distances: Float64
    test_distances: Float64
    lower: Float64 | None
    upper: Float64 | None
    confidence: float
    n_bootstrap: int
    retrieval: float
    floors: Float64
    weights: Float64
    edges: Int64

    @property
    def told_apart(self) -> Bool:
        """``(n_samples, n_samples)``: whether a pair differs by more than noise, False on the diagonal."""
        if self.lower is None:
            raise InvalidInputError("intervals", "n_bootstrap=0", "ask for replicates, such as n_bootstrap=200")
        return np.asarray(self.lower > 0)

    @property
    def standard_error(self) -> Float64:
        """``(n_samples, n_samples)``: half the width of the interval over the normal quantile of its confidence."""
        if self.lower is None or self.upper is None:
            raise InvalidInputError("intervals", "n_bootstrap=0", "ask for replicates, such as n_bootstrap=200")
        return np.asarray((self.upper - self.lower) / (2 * _quantile(self.confidence)))

    def noise_floor(self, n_cells: float, other: float | None = None) -> float:
        """Return the expected distance between two samples of one distribution, that of a typical cell here.

        Parameters
        ----------
        n_cells, other
            Cells of the two samples; as many in both if only one number is given.
        """
        count = check_number("n_cells", n_cells, above=0)
        rate = 1 / count + 1 / (count if other is None else check_number("other", other, above=0))
        variance, ratio = self.floors.T
        relative = rate * variance / np.maximum(self.weights, np.finfo(float).tiny) ** 2
        return float(np.sum(self.weights * ratio * np.sqrt(np.pi / 2) * _mean_deviation(relative)))

    def correct(self, embedding: FloatArray) -> FloatArray:
        """Return the embedding of the same samples without their noise, as far as it can be told.

        At every scale a sample's distance from the centre shrinks by the square root of the share of the variance
        that is not noise. The centre is nearest to the samples with many cells, and deviations from it are not quite
        exchangeable; the smallest rotation among samples that takes the weights of the centre to equal ones makes them
        so, to second order.

        Parameters
        ----------
        embedding
            ``(n_samples, n_features)``, of the samples in the order of ``sizes``.

        Returns
        -------
        ndarray
            ``(n_samples, n_features)``: a scale at which nothing but noise sets samples apart is the same for all.
        """
        n_samples = len(self.sizes)
        if embedding.shape != (n_samples, self.edges[-1]):
            expected = f"an embedding of shape ({n_samples}, {self.edges[-1]})"
            raise InvalidInputError(expected, f"shape {embedding.shape}")
        result = np.empty_like(embedding)
        for scale, (start, stop) in enumerate(pairwise(self.edges)):
            variance = self.between[scale] + self.noise[:, scale]
            centre, deviations = _exchangeable(embedding[:, start:stop], variance)
            factor = np.sqrt(self.between[scale]) * _spikiness(variance / self.weights[scale] ** 2) ** SPIKINESS
            result[:, start:stop] = centre + factor[:, None].astype(embedding.dtype) * deviations
        return result

    def describe(self) -> str:
        """Return what was found in plain sentences."""
        low, high = int(self.sizes.min()), int(self.sizes.max())
        parts = [f"A half of a sample finds its other half: {100 * self.retrieval:.0f} %."]
        floor = f"Two samples of {low} cells from one distribution would be {self.noise_floor(low):.2g} apart"
        parts.append(floor + (f", of {high} cells {self.noise_floor(high):.2g}." if high > low else "."))
        if not self.between.any():
            parts.append("Nothing but the luck of the draw sets the samples apart.")
        if self.lower is not None:
            pairs = self.told_apart[np.triu_indices(len(self.sizes), 1)]
            parts.append(f"{int(pairs.sum())} of {pairs.size} pairs can be told apart.")
        return " ".join(parts)

    def plain(self) -> dict[str, Any]:
        """Return what describes the whole as plain values for JSON."""
        pairs = None if self.lower is None else self.told_apart[np.triu_indices(len(self.sizes), 1)]
        return {
            "retrieval": self.retrieval,
            "noise_floor": {str(n): self.noise_floor(n) for n in sorted({int(n) for n in self._typical_sizes()})},
            "between": self.between.tolist(),
            "excess": self.excess.tolist(),
            "n_bootstrap": self.n_bootstrap,
            "confidence": self.confidence,
            "pairs": None if pairs is None else int(pairs.size),
            "pairs_told_apart": None if pairs is None else int(pairs.sum()),
        }

    def _typical_sizes(self) -> Float64:
        return np.quantile(self.sizes, [0, 0.5, 1], method="nearest")

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        return f"Uncertainty({self.describe()})"


def uncertainty(
    model: DiffusionEMD,
    measures: Measures | npt.ArrayLike,
    sizes: npt.ArrayLike | None = None,
    *,
    embedding: FloatArray | None = None,
    n_bootstrap: int = 200,
    confidence: float = 0.95,
    random_state: RandomState = 0,
    n_jobs: int | None = None,
) -> Uncertainty:
    """Tell how much of the distances between samples is noise, with an interval for every pair.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    measures
        The samples ``(n_samples, n_points)``: every cell of a sample has the same mass.
    sizes
        Cells of each sample, ``(n_samples,)``. Default: as many as the sample has points, if these have equal masses.
    embedding
        ``model.transform(measures)``, if it is known.
    n_bootstrap
        Replicates of the bootstrap over cells; 0 for no intervals.
    confidence
        Of the intervals.
    random_state
        Seed or generator.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Returns
    -------
    Uncertainty
        Noise, corrected embedding, intervals.

    Examples
    --------
    >>> import numpy as np
    >>> import heatmover as hm
    >>> rng = np.random.default_rng(0)
    >>> points, labels = rng.normal(size=(660, 2)), np.repeat(["a", "b", "c"], [20, 40, 600])
    >>> measures = hm.measures_from_labels(labels)  # all from one distribution
    >>> model = hm.DiffusionEMD(hm.Graph.from_points(points, n_neighbors=15)).fit(measures)
    >>> found = hm.uncertainty(model, measures)
    >>> bool(found.told_apart.any())
    False
    """
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("model to be a DiffusionEMD", type(model).__name__)
    check_is_fitted(model)
    check_integer("n_bootstrap", n_bootstrap, minimum=0)
    if not 0 < check_number("confidence", confidence, above=0) < 1:
        raise InvalidInputError("confidence in (0, 1)", f"{confidence!r}")
    counts = check_cells(model, measures, sizes)
    if embedding is None:
        embedding = model.transform(measures)
    distances = np.asarray(pairwise_distances(embedding, n_jobs=n_jobs), dtype=np.float64)
    return assess(
        model, counts, distances, n_bootstrap=n_bootstrap, confidence=confidence, random_state=random_state,
        n_threads=check_threads(n_jobs),
    )  # fmt: skip


def assess(
    model: DiffusionEMD,
    counts: sp.csr_array,
    distances: Float64,
    *,
    n_bootstrap: int,
    confidence: float = 0.95,
    random_state: RandomState = 0,
    n_threads: int = 1,
) -> Uncertainty:
    """Return what `uncertainty` does, of samples that were counted and compared already.

    Parameters
    ----------
    model
        A fitted `DiffusionEMD`.
    counts
        Cells of each sample at each node, ``(n_samples, n_nodes)``, from `check_cells`.
    distances
        Between the samples, ``(n_samples, n_samples)``.
    n_bootstrap, confidence, random_state
        As in `uncertainty`.
    n_threads
        Threads to use.
    """
    rng, prepared = check_random_state(random_state), model.prepared_
    cells = np.asarray(counts.sum(axis=1)).ravel().astype(np.int64)
    rows = sp.csr_array(sp.diags_array(1 / cells) @ counts)
    sketch = _sketch(prepared, rows, _parts(counts, rng, PARTS if n_bootstrap else 2), rng, n_threads)
    noise = sketch.noise(cells)
    fitted = [_between(sketch.gram(scale), noise[scale]) for scale in range(len(noise) - 1)]
    between = np.array([found[0] for found in fitted])
    bounds: tuple[Float64 | None, Float64 | None] = (None, None)
    if n_bootstrap:
        own = _own_share(cells)
        moderate = own * noise[-1] + (1 - own) * _pooled(noise, cells)[-1] / cells
        bounds = _intervals(sketch, moderate, cells, distances, n_bootstrap, confidence, rng)
    return Uncertainty(
        cells, np.ascontiguousarray(noise[:-1].T), between,
        np.array([found[1] for found in fitted]), distances,
        sketch.evened(noise[:-1], between), *bounds, float(confidence), int(n_bootstrap),
        sketch.retrieval(cells), np.stack([_pooled(noise, cells)[:-1], sketch.ratios], axis=1),
        np.abs(prepared.layout.matrix).max(axis=1), np.asarray(prepared.layout.edges, dtype=np.int64),
    )  # fmt: skip


def check_cells(model: DiffusionEMD, measures: Any, sizes: npt.ArrayLike | None) -> sp.csr_array:
    """Return the number of cells of each sample at each node, ``(n_samples, n_nodes)``, or raise if cells have weights.

    Parameters
    ----------
    model, measures, sizes
        As in `uncertainty`.
    """
    masses = sp.csr_array(measures.masses if isinstance(measures, Measures) else measures)
    if sizes is None:
        found = np.diff(masses.indptr)
    else:
        found = as_array("sizes", sizes)
        if found.shape != (masses.shape[0],) or found.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"{argument('sizes')}: the number of cells of each of the {masses.shape[0]} samples",
                f"shape {found.shape} of {found.dtype}",
            )
    nodes = sp.csr_array(model.node_masses(measures))
    counts = sp.csr_array(sp.diags_array(found.astype(np.float64)) @ nodes)
    whole = np.rint(counts.data)
    if not np.allclose(counts.data, whole, rtol=1e-6, atol=1e-6) or (found < 1).any():
        raise InvalidInputError(
            "samples whose cells count alike, for the noise of a sample comes from its number of cells",
            "weights" if sizes is None else "masses that are no whole numbers of cells",
            f"give the number of cells of each sample as {argument('sizes')}, or leave weights out",
        )
    counts.data = whole
    if len(found) < 2 or found.max() < 2:
        raise InvalidInputError(
            "at least two samples, one of them of at least two cells", f"{len(found)} of at most {int(found.max())}"
        )
    return counts


@final
@dataclass(frozen=True)
class _Parts:
    """The cells of every sample dealt at random into parts of equal sizes.

    Attributes
    ----------
    rows
        ``(n_parts, n_nodes)``: measures of the parts, sample after sample.
    starts
        ``(n_samples + 1,)``: where the parts of each sample begin and end.
    """

    rows: sp.csr_array
    starts: Int64


def _parts(counts: sp.csr_array, rng: np.random.Generator, most: int) -> _Parts:
    n_samples = counts.shape[0]
    most = max(2, min(most, MOST_PARTS // n_samples))
    part_of, nodes, starts = [], [], [0]
    for row in range(n_samples):
        inside = slice(*counts.indptr[row : row + 2])
        cells = rng.permutation(np.repeat(counts.indices[inside], counts.data[inside].astype(np.int64)))
        n_parts = min(most, cells.size)
        part_of.append(starts[-1] + np.arange(cells.size) % n_parts)
        nodes.append(cells)
        starts.append(starts[-1] + n_parts)
    shape = (starts[-1], counts.shape[1])
    places = (np.concatenate(part_of), np.concatenate(nodes))
    matrix = sp.csr_array((np.ones(places[0].size), places), shape=shape)
    return _Parts(sp.csr_array(sp.diags_array(1 / matrix.sum(axis=1)) @ matrix), np.array(starts, dtype=np.int64))


@final
@dataclass(frozen=True)
class _Sketch:
    """Samples seen through probes, at every scale and, last, all blocks of a node added up.

    Attributes
    ----------
    means
        ``(n_scales + 1, n_samples, n_probes)``: of the samples, less that of all.
    squares
        ``(n_scales + 1, n_samples)``: mean square of the cells of each sample, over the probes.
    parts
        ``(n_parts, n_probes)``: of the parts, all blocks added up.
    starts
        Where the parts of each sample begin and end.
    ratios
        ``(n_scales,)``: L1 norm of noise over its standard deviation.
    """

    means: FloatArray
    squares: Float64
    parts: FloatArray
    starts: Int64
    ratios: Float64

    def noise(self, sizes: Int64) -> Float64:
        """Return the variance of each sample's embedding, ``(n_scales + 1, n_samples)``.

        A single cell says nothing of its spread; it has that of the cells of all samples.
        """
        spread = np.maximum(self.squares - (self.means.astype(np.float64) ** 2).mean(axis=2), 0)
        noise = spread / np.maximum(sizes - 1, 1)
        return np.where(sizes > 1, noise, _pooled(noise, sizes)[:, None])

    def gram(self, scale: int) -> Float64:
        """Return the inner products of the samples at a scale, ``(n_samples, n_samples)``."""
        means = self.means[scale].astype(np.float64)
        return np.asarray(means @ means.T / means.shape[1])

    def evened(self, noise: Float64, between: Float64) -> Float64:
        """Return L2 distances between samples whose noise was removed, or evened out where there is nothing else."""
        unit = between if between.any() else np.median(noise, axis=1)
        squares = np.zeros((noise.shape[1],) * 2)
        for scale, (means, variance) in enumerate(zip(self.means, noise, strict=False)):
            moved = _exchangeable(means.astype(np.float64), between[scale] + variance)[1]
            own = (moved**2).mean(axis=1)
            squares += unit[scale] * (own[:, None] + own - 2 * moved @ moved.T / moved.shape[1])
        np.fill_diagonal(squares, 0)
        return np.sqrt(np.maximum((squares + squares.T) / 2, 0))

    def retrieval(self, sizes: Int64) -> float:
        """Return the share of samples of which one half has the other half as its nearest."""
        many = np.flatnonzero(sizes >= 4)
        if many.size < 2:
            return 0.0
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


def _sketch(
    prepared: Preparation, rows: sp.csr_array, parts: _Parts, rng: np.random.Generator, n_threads: int
) -> _Sketch:
    """Diffuse random probes and read them at the cells of the samples."""
    layout, operator, dtype = prepared.layout, prepared.diffuser.operator, prepared.precision
    law = operator.stationary.astype(np.float64)
    # Mass diffuses in the norm sum(f^2 / pi), functions in sum(f^2 pi).
    metric = law if prepared.adjoint else 1 / law
    n_scales, n_samples = len(layout.scales), rows.shape[0]
    starts = range(0, PROBES, TOGETHER)
    signs = np.empty((operator.n_points, PROBES), dtype=np.int8)
    # In the operator's order, which does not depend on that of the points.
    signs[operator.order] = rng.choice(np.array([-1, 1], dtype=np.int8), size=signs.shape)
    means = np.empty((n_scales + 1, n_samples, PROBES), dtype=dtype)
    squares = np.empty((len(starts), n_scales + 1, n_samples))
    norms = np.empty((len(starts), n_scales, 2))
    seen = np.empty((parts.rows.shape[0], PROBES), dtype=dtype)
    masses, dealt = rows.astype(dtype), parts.rows.astype(dtype)
    everything = np.asarray(rows.mean(axis=0), dtype=dtype).ravel()

    def look(number: int) -> None:
        columns = slice(starts[number], starts[number] + TOGETHER)
        total: FloatArray = np.zeros((operator.n_points, TOGETHER), dtype=dtype)

        def read(scale: int, values: FloatArray) -> None:
            values -= everything @ values
            means[scale, :, columns] = masses @ values
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
        seen[:, columns] = dealt @ (total - everything @ total)
        read(n_scales, total)

    in_threads(look, range(len(starts)), n_threads)
    absolute, square = norms.sum(axis=0).T / PROBES
    ratios = absolute / np.sqrt(np.maximum(square, np.finfo(float).tiny))
    return _Sketch(means, squares.sum(axis=0) / PROBES, seen, parts.starts, ratios)


def _pooled(noise: Float64, sizes: Int64) -> Float64:
    """Return the variance of one cell at every scale, over all samples of two cells and more, ``(n_scales + 1,)``."""
    freedom = np.where(sizes > 1, sizes - 1, 0)
    return np.asarray((noise * sizes) @ freedom / freedom.sum())


def _between(gram: Float64, noise: Float64) -> tuple[float, float]:
    """Return the variance between samples beyond their noise, not below zero and as it comes.

    The first solves ``sum(|x_i - c|^2 / (t + v_i)) = n - 1`` for t, with the centre c of these weights; the second is
    the moment estimate at t = 0.
    """
    squares, n_samples = np.diag(gram), len(gram)
    largest = max(float(squares.max()), float(noise.max()))
    if largest <= 0:  # equal samples without noise
        return 0.0, 0.0
    variance = np.maximum(noise, ROUNDING * largest)

    def beyond(t: float) -> float:
        weights = 1 / (t + variance)
        return float(weights @ squares - weights @ gram @ weights / weights.sum() - (n_samples - 1))

    weights = 1 / variance
    excess = beyond(0.0) / float(weights.sum() - (weights**2).sum() / weights.sum())
    if excess <= 0:
        return 0.0, excess
    return _root(beyond, 2 * float(squares.max()) + excess), excess


def _root(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function is zero, between 0 and ``high``."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _exchangeable(block: FloatArray, variance: Float64) -> tuple[FloatArray, FloatArray]:
    """Return the centre of samples with these variances, and their deviations in units of their own, exchangeable.

    With standardised deviations y, which are orthogonal to the weights u ~ 1 / sqrt(variance), the rotation is
    ``y - (u + e)(e'y) / (1 + u'e)``, where e has equal entries; the covariance becomes that of deviations from a mean.
    """
    if not variance.any():  # equal samples without noise
        return block[:1], np.zeros_like(block)
    safe = np.maximum(variance, ROUNDING * variance.max())
    root = 1 / np.sqrt(safe / safe.max())
    weights = root / np.linalg.norm(root)
    equal = np.full(len(root), 1 / np.sqrt(len(root)))
    centre = ((weights**2).astype(block.dtype) @ block)[None]
    deviations = (block - centre) * (1 / np.sqrt(safe))[:, None].astype(block.dtype)
    mean = equal.astype(block.dtype) @ deviations
    deviations -= np.outer(((weights + equal) / (1 + weights @ equal)).astype(block.dtype), mean)
    return centre, deviations


def _mean_deviation(variance: Float64) -> Float64:
    """Return the mean absolute deviation of a Poisson law with mean 1 / variance, over that mean: at most 2."""
    mean = 1 / np.maximum(variance, np.finfo(float).tiny)
    few = np.minimum(mean, NORMAL)
    floor = np.floor(few)
    exact = 2 * np.exp((floor + 1) * np.log(few) - few - gammaln(floor + 1)) / few
    return np.asarray(np.where(mean > NORMAL, np.sqrt(2 * variance / np.pi), exact))


def _spikiness(variance: Float64) -> Float64:
    """Return how many times smaller the L1 norm of few cells is than that of a smooth density of equal variance."""
    return np.sqrt(2 * variance / np.pi) / np.maximum(_mean_deviation(variance), np.finfo(float).tiny)


def _intervals(
    sketch: _Sketch,
    noise: Float64,
    sizes: Int64,
    distances: Float64,
    n_bootstrap: int,
    confidence: float,
    rng: np.random.Generator,
) -> tuple[Float64, Float64]:
    """Return intervals for all pairs by a bootstrap over cells, on the squared distance, whose estimate has no bias.

    With the difference d of two samples and the noise z of it in a bootstrap sample, the variance of the estimate is
    ``4 y s + u`` for a squared distance y, where s is the variance of z along d and u that of ``|z|^2``. The interval
    holds every y that the estimate is not too far from, as Wilson's does for shares; ``|z|^2`` is skewed, and the
    quantiles follow its skewness (Cornish and Fisher).
    """
    means = sketch.means[-1].astype(np.float64)
    n_samples, n_probes = means.shape
    squares = (means**2).mean(axis=1)
    apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T / n_probes, 0)
    square = apart - noise[:, None] - noise
    along = np.zeros((n_samples, n_samples))
    sums = [np.zeros((n_samples, n_samples)) for _ in range(3)]
    for _ in range(n_bootstrap):
        z = _noise_replicate(sketch, sizes, rng)
        own, inner, cross = (z**2).mean(axis=1), (means * z).mean(axis=1), means @ z.T / n_probes
        along += (inner[:, None] + inner - cross - cross.T) ** 2
        # Less its expectation, so that powers keep their digits.
        length = own[:, None] + own - 2 * z @ z.T / n_probes - noise[:, None] - noise
        for power, total in enumerate(sums, start=1):
            total += length**power
    first, second, third = (total / n_bootstrap for total in sums)
    spread = np.maximum(second - first**2, 0)
    skewness = (third - 3 * first * second + 2 * first**3) / np.where(spread > 0, spread, 1) ** 1.5
    directed = along / n_bootstrap / np.where(apart > 0, apart, 1)
    scale = distances / np.sqrt(np.where(apart > 0, apart, 1))
    reach = _student(confidence, noise, sizes)

    def limit(sign: int, far: Float64) -> Float64:
        root = np.sqrt(np.maximum(4 * directed * (square + far**2 * directed) + spread, 0))
        return np.asarray(np.maximum(square + 2 * far**2 * directed + sign * far * root, 0))

    bounds = []
    for sign in (-1, 1):
        # The skewness is that at the limit itself, where a larger part of the variance may be symmetric.
        total = spread + 4 * directed * limit(sign, reach)
        bent = np.clip(skewness, 0, 3) * (spread / np.where(total > 0, total, 1)) ** 1.5
        bounds.append(scale * np.sqrt(limit(sign, np.maximum(reach - sign * bent * (reach**2 - 1) / 6, 0))))
        np.fill_diagonal(bounds[-1], 0)
    # The estimate lies beyond its noise, or the interval begins at zero.
    bounds[0][square <= reach * np.sqrt(spread)] = 0
    middle = scale * np.sqrt(np.maximum(square, 0))
    blur = reach * UNLIKE * np.sqrt(np.clip(1 - square / np.where(apart > 0, apart, 1), 0, 1)) * middle
    lower = np.maximum(middle - np.hypot(np.maximum(middle - bounds[0], 0), blur), 0)
    return np.where(bounds[0] > 0, lower, 0.0), middle + np.hypot(np.maximum(bounds[1] - middle, 0), blur)


def _own_share(sizes: Int64) -> Float64:
    """Return how much of its spread a sample tells itself; of few cells some kinds are missing."""
    return np.where(sizes > 1, sizes / (sizes + BORROWED), 0.0)


def _noise_replicate(sketch: _Sketch, sizes: Int64, rng: np.random.Generator) -> Float64:
    """Return the noise of one bootstrap sample of each sample, ``(n_samples, n_probes)``."""
    starts = sketch.starts
    n_parts = np.diff(starts)
    # Of one cell each, in units of its standard deviation.
    unit = np.zeros((len(sizes), sketch.parts.shape[1]))
    for count in np.unique(n_parts[n_parts > 1]):
        rows = np.flatnonzero(n_parts == count)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=rows.size) - 1.0
        chosen = sketch.parts[starts[rows][:, None] + np.arange(count)].astype(np.float64)
        # A bootstrap of few parts varies too little.
        unit[rows] = np.einsum("ip,ipr->ir", weights, chosen) * np.sqrt(sizes[rows] / (count * (count - 1.0)))[:, None]
    freedom = np.where(sizes > 1, sizes - 1.0, 0)
    lender = rng.choice(len(sizes), size=len(sizes), p=freedom / freedom.sum())
    signs = rng.choice([-1.0, 1.0], size=len(sizes))
    own = _own_share(sizes)
    mixed = np.sqrt(own)[:, None] * unit + (np.sqrt(1 - own) * signs)[:, None] * unit[lender]
    return np.asarray(mixed / np.sqrt(sizes)[:, None])


def _student(confidence: float, noise: Float64, sizes: Int64) -> Float64:
    """Return the quantile for the noise of every pair, ``(n_samples, n_samples)``: few cells tell it roughly."""
    freedom = np.maximum(sizes - 1, 1)
    own = noise**2 / freedom
    total = noise[:, None] + noise
    joint = total**2 / np.maximum(own[:, None] + own, np.finfo(float).tiny)
    return np.asarray(stdtrit(np.clip(joint, 1, None), (1 + confidence) / 2))


def _quantile(confidence: float) -> float:
    return float(ndtri((1 + confidence) / 2))
