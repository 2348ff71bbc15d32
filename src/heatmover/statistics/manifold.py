"""The manifold of samples: a graph and a walk between samples, maps of it, and signals over it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import by_one_blas_thread
from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import RandomState, as_array, check_random_state, import_extra
from heatmover.graphs.spectrum import normalise
from heatmover.statistics.metrics import edges_between_near, neighbors_with_ties, smoothness_over_edges
from heatmover.statistics.permutations import TestResult, null_distribution, probability, restrict
from heatmover.statistics.samples import check_at_most, check_distances, check_labels, check_numbers

__all__ = ["classical_scaling", "diffusion_map", "phate", "sample_graph", "smoothness", "umap"]


def sample_graph(distances: npt.ArrayLike, *, k: int = 10) -> sp.csr_array:
    """Join every sample with its k nearest, edges weighed by a Gaussian kernel as wide as each neighbourhood.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    k
        Neighbours of each sample, 1 to ``n_samples - 1``; all that are as far as the k-th are neighbours too. Two
        samples are joined if either is a neighbour of the other.

    Returns
    -------
    csr_array of shape (n_samples, n_samples)
        Symmetric weights in (0, 1], nothing on the diagonal: ``exp(-d_ij^2 / (w_i w_j))`` with the distance w to the
        k-th neighbour. The unit of the distances does not matter.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import sample_graph
    >>> positions = np.array([0.0, 1.0, 3.0, 7.0])
    >>> sample_graph(abs(positions[:, None] - positions), k=1).toarray().round(2)
    array([[0.  , 0.37, 0.  , 0.  ],
           [0.37, 0.  , 0.14, 0.  ],
           [0.  , 0.14, 0.  , 0.14],
           [0.  , 0.  , 0.14, 0.  ]])
    """
    matrix = check_distances(distances)
    matrix /= matrix.max() or 1.0
    count = _check_neighbors(k, len(matrix))
    rows, columns = np.nonzero(neighbors_with_ties(matrix, count))
    # The nearest, except the sample itself, which is at distance zero.
    width = np.partition(matrix, count, axis=1)[:, count]
    # A sample with k copies has no width; then the nearest that differs sets it.
    differs = np.where(matrix > 0, matrix, np.inf).min(axis=1)
    width = np.where(width > 0, width, np.where(np.isfinite(differs), differs, 1.0))
    weights = np.exp(-(matrix[rows, columns] / width[rows]) * (matrix[rows, columns] / width[columns]))
    # An edge whose weight vanishes in floating point is still an edge.
    one_way = sp.csr_array((np.maximum(weights, np.finfo(float).tiny), (rows, columns)), shape=matrix.shape)
    both = sp.csr_array(one_way.maximum(one_way.T))
    both.sort_indices()
    return both


@by_one_blas_thread
def diffusion_map(distances: npt.ArrayLike, n_components: int = 2, *, k: int = 10) -> Float64:
    """Return the slowest modes of a walk between samples (Coifman and Lafon 2006): a map that follows near neighbours.

    The walk goes along the edges of `sample_graph`, or stays where it is with weight 1, normalised as the walk between
    points is (anisotropy 1, so that crowded regions do not attract it).

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Neighbours of each sample, as in `sample_graph`. Components of the graph lie apart in the
        first coordinates; more neighbours join them.

    Returns
    -------
    ndarray of shape (n_samples, n_components)
        Right eigenvectors of the walk times their eigenvalues, the slowest first; with all ``n_samples - 1`` the
        distances in the map are the diffusion distances after one step. Of the two directions of an axis the one in
        which its largest coordinate is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import diffusion_map
    >>> positions = np.linspace(0, 1, 30)
    >>> first = diffusion_map(abs(positions[:, None] - positions), 1, k=3)[:, 0]
    >>> bool((np.diff(first) > 0).all() or (np.diff(first) < 0).all())
    True
    """
    matrix = check_distances(distances)
    count = check_at_most("n_components", n_components, len(matrix) - 1, "one less than there are samples")
    walk, degree = normalise(sp.csr_array(sample_graph(matrix, k=k) + sp.eye_array(len(matrix), format="csr")), 1.0)
    top = np.sqrt(degree / degree.sum())
    # The constant mode says nothing. Moved from 1 to -2, below all others, it does not mix with the further modes of
    # eigenvalue 1 that a graph with several components has.
    values, vectors = np.linalg.eigh(walk.toarray() - 3 * np.outer(top, top))
    slowest = np.argsort(-np.abs(values[1:]), kind="stable")[:count] + 1
    return _turned(vectors[:, slowest] / top[:, None] * values[slowest])


@by_one_blas_thread
def classical_scaling(distances: npt.ArrayLike, n_components: int = 2) -> tuple[Float64, Float64]:
    """Return a map that keeps all distances as well as can be (classical multidimensional scaling).

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples``.

    Returns
    -------
    coordinates : ndarray of shape (n_samples, n_components)
        In the unit of the distances, centered, the most telling axis first; an axis that the distances do not need is
        zero. Of the two directions of an axis the one in which its largest coordinate is positive.
    shares : ndarray of shape (n_components,)
        Of the variation that each axis shows.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import classical_scaling
    >>> positions = np.array([0.0, 1.0, 3.0, 8.0])
    >>> coordinates, shares = classical_scaling(abs(positions[:, None] - positions), 1)
    >>> (coordinates[:, 0] + 3).round(6).tolist(), shares.round(6).tolist()
    ([0.0, 1.0, 3.0, 8.0], [1.0])
    """
    matrix = check_distances(distances)
    count = check_at_most("n_components", n_components, len(matrix), "as many as there are samples")
    unit = matrix.max() or 1.0
    squares = (matrix / unit) ** 2
    means = squares.mean(axis=0)
    # Twice-centered squared distances are inner products if the distances are those of a flat space.
    values, vectors = np.linalg.eigh((means[:, None] + means - squares - means.mean()) / 2)
    # What is left of an axis by rounding would look like one: its root is 1e-8 of the largest.
    values, vectors = np.where(values > 1e-12 * values.max(), values, 0.0)[::-1], vectors[:, ::-1]
    coordinates = _turned(vectors[:, :count] * np.sqrt(values[:count]))
    return coordinates * unit, values[:count] / (values.sum() or 1.0)


def phate(distances: npt.ArrayLike, n_components: int = 2, *, k: int = 5, random_state: RandomState = 0) -> Float64:
    """Return the PHATE map of samples (Moon et al. 2019); needs the extra ``phate``.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Neighbours that set the width of the kernel, at most ``n_samples - 2``.
    random_state
        Seed or generator.

    Returns
    -------
    ndarray of shape (n_samples, n_components)

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import phate
    >>> positions = np.linspace(0, 1, 30)
    >>> phate(abs(positions[:, None] - positions)).shape  # doctest: +SKIP
    (30, 2)
    """
    package = import_extra("phate", package="phate", extra="phate")
    matrix = check_distances(distances)
    operator = package.PHATE(
        n_components=check_at_most("n_components", n_components, len(matrix) - 1, "one less than there are samples"),
        # PHATE takes no more and would warn.
        knn=check_at_most("k", k, len(matrix) - 2, "two less than there are samples"),
        knn_dist="precomputed_distance",
        random_state=_seed(random_state),
        n_jobs=1,
        verbose=0,
    )
    return np.asarray(operator.fit_transform(matrix), dtype=np.float64)


def umap(distances: npt.ArrayLike, n_components: int = 2, *, k: int = 15, random_state: RandomState = 0) -> Float64:
    """Return the UMAP of samples (McInnes et al. 2018); needs the extra ``umap``.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Neighbours of each sample, at most ``n_samples - 2``.
    random_state
        Seed or generator.

    Returns
    -------
    ndarray of shape (n_samples, n_components)

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import umap
    >>> positions = np.linspace(0, 1, 30)
    >>> umap(abs(positions[:, None] - positions)).shape  # doctest: +SKIP
    (30, 2)
    """
    package = import_extra("umap", package="umap-learn", extra="umap")
    matrix = check_distances(distances)
    count = check_at_most("n_components", n_components, len(matrix) - 1, "one less than there are samples")
    operator = package.UMAP(
        n_components=count,
        # UMAP counts a sample among its own neighbours, and wants fewer than all.
        n_neighbors=check_at_most("k", k, len(matrix) - 2, "two less than there are samples") + 1,
        metric="precomputed",
        # The start from eigenvectors needs more samples than eigenvectors.
        init="spectral" if count + 1 < len(matrix) else "random",
        random_state=_seed(random_state),
        n_jobs=1,
    )
    with warnings.catch_warnings():
        # It says that a map of given distances cannot be inverted.
        warnings.filterwarnings("ignore", message="using precomputed metric", category=UserWarning)
        return np.asarray(operator.fit_transform(matrix), dtype=np.float64)


def smoothness(
    distances: npt.ArrayLike,
    signal: npt.ArrayLike,
    *,
    k: int = 10,
    blocks: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether a signal varies less between near samples than by chance: the paper's Laplacian smoothness.

    Parameters
    ----------
    distances
        Between samples, ``(n_samples, n_samples)``.
    signal
        A number for each sample, ``(n_samples,)``: an outcome coded 0 and 1, a share of cells. Or a label for each,
        which stands for one column of 0 and 1 per label; their sums over edges are added.
    k
        Neighbours in the graph of samples, as in `sample_graph`.
    blocks
        As in `heatmover.statistics.permanova`; where blocks change places as wholes, samples of one block are not
        neighbours of each other, since they have the same value anyway.
    n_permutations, random_state
        As in `heatmover.statistics.permanova`.

    Returns
    -------
    TestResult
        ``statistic``: sum over edges of squared differences, `heatmover.metrics.laplacian_smoothness`, over what a
        permuted signal has on average: about 1 for a signal that has nothing to do with the distances, less if it is
        smooth. ``effect``: 1 minus that.

    Examples
    --------
    >>> import numpy as np
    >>> from heatmover.statistics.manifold import smoothness
    >>> positions = np.linspace(0, 1, 40)
    >>> result = smoothness(abs(positions[:, None] - positions), np.repeat(["early", "late"], 20), k=3)
    >>> result.p_value, round(result.statistic, 2)
    (0.001, 0.07)
    """
    matrix = check_distances(distances)
    count = _check_neighbors(k, len(matrix))
    numeric = as_array("signal", signal).dtype.kind in "biuf"
    labels, names = (None, ()) if numeric else check_labels("signal", signal, len(matrix))
    values = check_numbers("signal", signal, len(matrix)) if labels is None else labels
    restriction = restrict(values, blocks)
    if blocks is not None:
        edges = _edges_elsewhere(matrix, restriction.units, count)
    else:
        edges = edges_between_near(neighbors_with_ties(matrix, count))

    def roughness(rows: npt.NDArray[Any]) -> Float64:
        if blocks is not None:
            return _over_edges(*edges, rows, labelled=bool(names))
        if not names:
            return smoothness_over_edges(*edges, np.ascontiguousarray(rows.T), normalize=True)
        return _edges_between_labels(*edges, rows, len(names))

    null, complete = null_distribution(roughness, values, restriction, n_permutations, random_state)
    observed = float(roughness(values[None])[0])
    if blocks is not None:
        # Which orders are possible depends on the blocks, and so does what they have on average.
        usual = (float(null.sum()) + observed) / (len(null) + 1) or 1.0
        null, observed = null / usual, observed / usual
    p, smallest = probability(observed, null, complete, smaller=True)
    return TestResult("smoothness", observed, 1 - observed, p, null, complete, names, smallest)


def _edges_elsewhere(matrix: Float64, units: Int64 | None, k: int) -> tuple[Intp, Intp]:
    """Return the edges between near samples that do not keep one value in common anyway."""
    others = matrix.copy()
    unit_of = np.arange(len(others)) if units is None else units
    others[unit_of[:, None] == unit_of] = np.inf
    fewest = int(np.isfinite(others).sum(axis=1).min())
    near = neighbors_with_ties(others, min(k, fewest)) if fewest else np.zeros(others.shape, dtype=bool)
    return edges_between_near(near)


def _over_edges(first: Intp, second: Intp, rows: npt.NDArray[Any], *, labelled: bool) -> Float64:
    """Return the sum of squared differences over edges, ``(n_rows,)``; two labels differ by 1, or not at all."""
    if labelled:
        return np.asarray((rows[:, first] != rows[:, second]).sum(axis=1), dtype=np.float64)
    # Near 1 no square overflows or vanishes.
    scaled = rows / (np.abs(rows).max() or 1.0)
    return np.asarray(((scaled[:, first] - scaled[:, second]) ** 2).sum(axis=1))


def _edges_between_labels(first: Intp, second: Intp, rows: Int64, n_labels: int) -> Float64:
    """Return the smoothness of labels ``(n_rows, n_samples)``, summed over labels, over its mean when permuted."""
    n_samples = rows.shape[1]
    sizes = np.stack([(rows == label).sum(axis=1) for label in range(n_labels)], axis=1)
    variances = (n_samples - (sizes**2).sum(axis=1) / n_samples) / (n_samples - 1)
    # An edge between two labels changes the columns of both by 1.
    cut = 2 * (rows[:, first] != rows[:, second]).sum(axis=1)
    return np.asarray(cut / (2 * len(first) * variances))


def _turned(coordinates: Float64) -> Float64:
    """Turn each axis so that its largest entry is positive."""
    largest = np.abs(coordinates).max(axis=0)
    # The first of those that are largest up to rounding, or the sign could differ between machines.
    leaders = (np.abs(coordinates) >= (1 - 1e-6) * largest).argmax(axis=0)
    return np.asarray(coordinates * np.where(coordinates[leaders, np.arange(coordinates.shape[1])] < 0, -1.0, 1.0))


def _seed(random_state: RandomState) -> int:
    """Return a seed for packages that take no generator."""
    return int(check_random_state(random_state).integers(2**31))


def _check_neighbors(k: object, n_samples: int) -> int:
    return check_at_most("k", k, n_samples - 1, "a sample is not its own neighbour")


def __dir__() -> list[str]:
    return sorted(__all__)
