"""Map samples by their distances, test smoothness; for users, `study`, `atlas`, `tl`, `pl`, `report`; arrays only.

The module is public as ``hm.manifold``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from heatmover._base.threads import one_blas_thread
from heatmover._base.types import Float64, Int64, Intp
from heatmover._base.validation import RandomState, as_array, check_at_most, check_random_state, import_extra
from heatmover.graphs.spectrum import normalize
from heatmover.statistics.designs import as_design, block_basis, distances_without, permuted_residuals
from heatmover.statistics.metrics import edges_between_near, neighbors_with_ties
from heatmover.statistics.permutations import (
    TestResult,
    check_distances,
    check_labels,
    check_numbers,
    null_distribution,
    probability,
    restrict,
)

__all__ = ["classical_scaling", "diffusion_map", "phate", "sample_graph", "smoothness", "umap"]


def sample_graph(distances: npt.ArrayLike, *, k: int = 10) -> sp.csr_array:
    """Build the k-nearest-neighbor graph of samples, weighted by a Gaussian kernel of adaptive width.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    k
        Number of neighbors of each sample, 1 to ``n_samples - 1``. Samples tied at the k-th distance are neighbors too.
        Two samples are connected if either is a neighbor of the other.

    Returns
    -------
    csr_array of shape (n_samples, n_samples)
        Symmetric weights in (0, 1] with an empty diagonal: ``exp(-d_ij^2 / (w_i w_j))``, where w is the distance to
        the k-th neighbor. The weights do not depend on the unit of the distances.

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
    # Index count, not count - 1, because the sample itself comes first, at distance zero.
    width = np.partition(matrix, count, axis=1)[:, count]
    # The width of a sample with k duplicates would be zero. The width is therefore set to the distance to the nearest
    # sample that is not a duplicate.
    differs = np.where(matrix > 0, matrix, np.inf).min(axis=1)
    width = np.where(width > 0, width, np.where(np.isfinite(differs), differs, 1.0))
    weights = np.exp(-(matrix[rows, columns] / width[rows]) * (matrix[rows, columns] / width[columns]))
    # Keep edges whose weight underflows to zero.
    one_way = sp.csr_array((np.maximum(weights, np.finfo(float).tiny), (rows, columns)), shape=matrix.shape)
    both = sp.csr_array(one_way.maximum(one_way.T))
    both.sort_indices()
    return both


@one_blas_thread()
def diffusion_map(distances: npt.ArrayLike, n_components: int = 2, *, k: int = 10) -> Float64:
    """Return the diffusion map of samples (Coifman and Lafon 2006), which preserves near neighbors.

    The random walk follows the edges of `sample_graph`, with a self-loop of weight 1 at every sample. The weights are
    normalized as in the graph of points (anisotropy 1, so that dense regions do not attract the walk).

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Number of neighbors of each sample, as in `sample_graph`. If the graph has several connected components, the
        first coordinates separate them; increase ``k`` to connect them.

    Returns
    -------
    ndarray of shape (n_samples, n_components)
        Right eigenvectors of the walk times their eigenvalues, sorted by decreasing absolute eigenvalue. With all
        ``n_samples - 1`` components the distances in the map are the diffusion distances after one step. Axes are
        oriented so that the coordinate of largest magnitude on each axis is positive.

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
    count = check_at_most("n_components", n_components, len(matrix) - 1, "use fewer components than samples")
    walk, degree = normalize(sp.csr_array(sample_graph(matrix, k=k) + sp.eye_array(len(matrix), format="csr")), 1.0)
    top = np.sqrt(degree / degree.sum())
    # The constant eigenvector carries no information. Moving its eigenvalue from 1 to -2, below all other eigenvalues,
    # prevents a mixture with other eigenvectors of eigenvalue 1, which exist if the graph has several components.
    values, vectors = np.linalg.eigh(walk.toarray() - 3 * np.outer(top, top))
    slowest = np.argsort(-np.abs(values[1:]), kind="stable")[:count] + 1
    return _turned(vectors[:, slowest] / top[:, None] * values[slowest])


@one_blas_thread()
def classical_scaling(distances: npt.ArrayLike, n_components: int = 2) -> tuple[Float64, Float64]:
    """Return the map of classical multidimensional scaling, which preserves all distances as well as possible.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples``.

    Returns
    -------
    coordinates : ndarray of shape (n_samples, n_components)
        Centered coordinates in the unit of the distances, the axis with the most variation first. If the distances span
        fewer than ``n_components`` dimensions, the last axes are zero. Axes are oriented so that the coordinate of
        largest magnitude on each axis is positive.
    shares : ndarray of shape (n_components,)
        Share of the variation on each axis.

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
    count = check_at_most("n_components", n_components, len(matrix), "use at most one component per sample")
    unit = matrix.max() or 1.0
    squares = (matrix / unit) ** 2
    means = squares.mean(axis=0)
    # Double-centered squared distances are inner products if the distances are Euclidean.
    values, vectors = np.linalg.eigh((means[:, None] + means - squares - means.mean()) / 2)
    # Remove axes that are only rounding errors: an eigenvalue of 1e-16 times the largest eigenvalue would still give
    # coordinates of 1e-8 times the largest coordinates.
    values, vectors = np.where(values > 1e-12 * values.max(), values, 0.0)[::-1], vectors[:, ::-1]
    coordinates = _turned(vectors[:, :count] * np.sqrt(values[:count]))
    return coordinates * unit, values[:count] / (values.sum() or 1.0)


def phate(distances: npt.ArrayLike, n_components: int = 2, *, k: int = 5, random_state: RandomState = 0) -> Float64:
    """Return the PHATE map of samples (Moon et al. 2019); needs the extra ``phate``.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Number of neighbors that determine the width of the kernel, at most ``n_samples - 2``.
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
        n_components=check_at_most("n_components", n_components, len(matrix) - 1, "use fewer components than samples"),
        # With more than n_samples - 2 neighbors, PHATE would warn.
        knn=check_at_most("k", k, len(matrix) - 2, "use at most the number of samples minus 2"),
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
        Distances between samples, ``(n_samples, n_samples)``.
    n_components
        Number of coordinates, at most ``n_samples - 1``.
    k
        Number of neighbors of each sample, at most ``n_samples - 2``.
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
    count = check_at_most("n_components", n_components, len(matrix) - 1, "use fewer components than samples")
    operator = package.UMAP(
        n_components=count,
        # UMAP counts a sample among its own neighbors, and requires fewer neighbors than samples.
        n_neighbors=check_at_most("k", k, len(matrix) - 2, "use at most the number of samples minus 2") + 1,
        metric="precomputed",
        # The spectral initialization needs more samples than eigenvectors.
        init="spectral" if count + 1 < len(matrix) else "random",
        random_state=_seed(random_state),
        n_jobs=1,
    )
    with warnings.catch_warnings():
        # UMAP warns that a map of precomputed distances cannot be inverted.
        warnings.filterwarnings("ignore", message="using precomputed metric", category=UserWarning)
        return np.asarray(operator.fit_transform(matrix), dtype=np.float64)


def smoothness(
    distances: npt.ArrayLike,
    signal: npt.ArrayLike,
    *,
    k: int = 10,
    blocks: Any | None = None,
    adjust: Any | None = None,
    n_permutations: int = 999,
    random_state: RandomState = 0,
) -> TestResult:
    """Test whether near samples have similar values of a signal: the Laplacian smoothness of the paper.

    Parameters
    ----------
    distances
        Distances between samples, ``(n_samples, n_samples)``.
    signal
        A number or a label for each sample, ``(n_samples,)``, such as an outcome coded 0 and 1 or a share of cells.
        Each label is encoded as one column of 0 and 1, and the sums over edges of all columns are added.
    k
        Number of neighbors in the graph of samples, as in `sample_graph`.
    blocks
        As in `heatmover.statistics.permanova`. If whole blocks are permuted, two samples of one block are not treated
        as neighbors, because they always have the same value.
    adjust
        Covariates to hold fixed, as in `heatmover.statistics.permanova`. The linear effect of the covariates is removed
        from the distances and from the signal, and the residuals of the signal are permuted. The sum over edges is then
        divided by the sum of squares of the residuals.
    n_permutations, random_state
        As in `heatmover.statistics.permanova`.

    Returns
    -------
    TestResult
        ``statistic``: sum over edges of squared differences (`heatmover.metrics.laplacian_smoothness`), divided by its
        mean over permuted signals. The statistic is about 1 for a signal unrelated to the distances and below 1 for a
        smooth signal. ``effect``: 1 minus the statistic.

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
    names: tuple[str, ...] = ()
    if as_array("signal", signal).dtype.kind in "biuf":
        values: npt.NDArray[Any] = check_numbers("signal", signal, len(matrix))
        values = values / (np.abs(values).max() or 1.0)  # squares of numbers near 1 neither overflow nor vanish
        variance = float(values.var(ddof=1))
    else:
        values, names = check_labels("signal", signal, len(matrix))
        # The squared difference of two different labels is defined as 1; the sum over their columns of 0 and 1 would be
        # 2.
        variance = float(len(values) - (np.bincount(values) ** 2).sum() / len(values)) / (2 * (len(values) - 1))
    restriction = restrict(values, blocks)
    residuals = None
    if adjust is not None:
        design = as_design(adjust, len(values))
        matrix = distances_without(matrix, design, block_basis(len(values), restriction.within))
        columns: Float64 = np.eye(len(names))[values] if names else np.asarray(values)[:, None]
        what = "groups" if names else "a number"
        values, residuals = permuted_residuals(columns, design, restriction, what)
    first, second = _edges_elsewhere(matrix, restriction.units, count)

    def roughness(rows: npt.NDArray[Any]) -> Float64:
        if residuals is not None:
            sums, squares = np.zeros(len(rows)), np.full(len(rows), np.finfo(float).tiny)
            for each in residuals(rows):
                sums += ((each[:, first] - each[:, second]) ** 2).sum(axis=1)
                squares += (each**2).sum(axis=1)
            return np.asarray(sums / squares)
        differences = rows[:, first] != rows[:, second] if names else (rows[:, first] - rows[:, second]) ** 2
        return np.asarray(differences.sum(axis=1), dtype=np.float64)

    observed, null, complete = null_distribution(roughness, values, restriction, n_permutations, random_state)
    usual = 2 * first.size * variance
    if blocks is not None or adjust is not None:
        # Blocks and covariates change the possible values, so the formula for the mean over all orders does not hold.
        # Average over the permutations instead.
        usual = (float(null.sum()) + observed) / (len(null) + 1)
    null, observed = null / (usual or 1.0), observed / (usual or 1.0)
    p, smallest = probability(observed, null, complete, smaller=True)
    return TestResult("smoothness", observed, 1 - observed, p, null, complete, names, smallest)


def _edges_elsewhere(matrix: Float64, units: Int64 | None, k: int) -> tuple[Intp, Intp]:
    """Return the edges between near samples, except pairs of samples that always have the same value."""
    others = matrix.copy()
    unit_of = np.arange(len(others)) if units is None else units
    others[unit_of[:, None] == unit_of] = np.inf
    fewest = int(np.isfinite(others).sum(axis=1).min())
    near = neighbors_with_ties(others, min(k, fewest)) if fewest else np.zeros(others.shape, dtype=bool)
    return edges_between_near(near)


def _turned(coordinates: Float64) -> Float64:
    """Flip axes so that the entry of largest magnitude on each axis is positive."""
    largest = np.abs(coordinates).max(axis=0)
    # Of all entries that are equally large up to rounding, use the first; otherwise the sign could differ between
    # machines.
    leaders = (np.abs(coordinates) >= (1 - 1e-6) * largest).argmax(axis=0)
    return np.asarray(coordinates * np.where(coordinates[leaders, np.arange(coordinates.shape[1])] < 0, -1.0, 1.0))


def _seed(random_state: RandomState) -> int:
    """Return a seed for packages that do not accept a generator."""
    return int(check_random_state(random_state).integers(2**31))


def _check_neighbors(k: object, n_samples: int) -> int:
    return check_at_most("k", k, n_samples - 1, "a sample is not its own neighbor")


def __dir__() -> list[str]:
    return sorted(__all__)
