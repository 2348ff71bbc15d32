"""Define how baselines are called, declare properties, warn if not converged; only `transport.baselines` calls it."""

from __future__ import annotations

import functools
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, final

import numpy as np
import scipy.sparse as sp

from heatmover._base.types import Bool, Float64, FloatArray, Int64
from heatmover._base.words import counted
from heatmover.embedding.distances import l1_distances
from heatmover.errors import ConvergenceWarning

P = ParamSpec("P")
Features: TypeAlias = FloatArray | sp.csr_array
GroundKind: TypeAlias = Literal["points", "either"]


class Method(ABC, Generic[P]):
    """A method to compare measures: ``method(points or graph, measures, *, options)`` returns their distances.

    Attributes
    ----------
    name
        Name of the method, equal to the name of its function.
    ground
        ``"points"``: the method needs coordinates. ``"either"``: the method accepts coordinates or a `Graph`.
    reference
        Publication or algorithm that defines the method.
    extra
        The extra of heatmover that must be installed for the method, or None.

    Examples
    --------
    >>> from heatmover.transport.baselines import METHODS
    >>> METHODS["exact_emd"].extra, METHODS["exact_emd"].ground
    ('exact', 'either')
    """

    def __init__(self, function: Callable[P, Any], ground: GroundKind, reference: str, extra: str | None) -> None:
        self.function, self.name = function, function.__name__
        self.ground, self.reference, self.extra = ground, reference, extra
        functools.update_wrapper(self, function)
        # Whatever the function returns, calling the method returns distances.
        self.__annotations__ = {**function.__annotations__, "return": np.ndarray}
        self.__signature__ = inspect.signature(function).replace(return_annotation=np.ndarray)

    @abstractmethod
    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the distances between all measures, ``(n_measures, n_measures)``: symmetric, zero diagonal."""

    def __repr__(self) -> str:
        return f"<baseline {self.name}: {self.reference}>"


@final
class PairMethod(Method[P]):
    """A method that returns distances only.

    Examples
    --------
    >>> from heatmover.transport.baselines import mean_distance
    >>> mean_distance([[0.0], [1.0]], [[1, 0], [0, 1]])
    array([[0., 1.],
           [1., 0.]])
    """

    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the distances, ``(n_measures, n_measures)``."""
        distances: Float64 = self.function(*args, **options)
        return distances


@final
class EmbeddingMethod(Method[P]):
    """A method whose distance is the L1 distance between features; its function yields blocks of features.

    A block, ``(n_measures, n_features)``, dense or CSR, contains the features of one tree or of one direction, or all
    features. Distances add up over blocks, so only one block is in memory at a time.

    Examples
    --------
    >>> from heatmover.transport.baselines import cluster_tree
    >>> points, mu = [[0.0], [0.1], [1.0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    >>> features = cluster_tree.embed(points, mu, n_clusters=2, n_trees=5)  # one column per node
    >>> features.shape
    (3, 20)
    """

    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the L1 distances between the embedded measures, ``(n_measures, n_measures)``."""
        n_jobs: Any = options.get("n_jobs")
        blocks: Iterator[Features] = self.function(*args, **options)
        return np.asarray(sum(l1_distances(block, n_jobs=n_jobs) for block in blocks), dtype=np.float64)

    def embed(self, *args: P.args, **options: P.kwargs) -> Features:
        """Return the features whose L1 distances the method returns, ``(n_measures, n_features)``, dense or CSR.

        ``embed`` and the method take the same arguments.
        """
        blocks: list[Features] = list(self.function(*args, **options))
        if any(sp.issparse(block) for block in blocks):
            return sp.csr_array(sp.hstack(blocks, format="csr"))
        return np.hstack(blocks)


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """Result and convergence of an iterative method.

    Attributes
    ----------
    distances
        ``(n_measures, n_measures)``: symmetric, zero diagonal.
    marginal_errors
        ``(n_measures, n_measures)``: marginal error of the transport plan of each pair, which is the L1 distance
        between a marginal of the plan and its measure, for the worse of the two marginals.
    n_iterations
        ``(n_measures, n_measures)``: number of iterations for each pair.
    tol
        Largest marginal error of a converged pair.

    Examples
    --------
    >>> from heatmover.transport.baselines import sinkhorn
    >>> solution = sinkhorn.solve([[0.0], [1.0], [3.0]], [[0.5, 0.5, 0], [0, 0.5, 0.5]])
    >>> bool(solution.converged.all()), solution.distances.shape
    (True, (2, 2))
    """

    distances: Float64
    marginal_errors: Float64
    n_iterations: Int64
    tol: float

    @property
    def converged(self) -> Bool:
        """True for pairs whose marginal error is at most ``tol``, ``(n_measures, n_measures)``."""
        return np.asarray(self.marginal_errors <= self.tol)


@final
class IterativeMethod(Method[P]):
    """An iterative method; its function returns a `Solution`.

    Examples
    --------
    >>> from heatmover.transport.baselines import sinkhorn
    >>> bool(sinkhorn.solve([[0.0], [1.0]], [[0.9, 0.1], [0.1, 0.9]]).marginal_errors.max() <= 1e-3)
    True
    """

    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the distances, ``(n_measures, n_measures)``, with a `ConvergenceWarning` for unconverged pairs."""
        solution = self.solve(*args, **options)
        open_pairs = np.triu(~solution.converged, 1)
        if open_pairs.any():
            warnings.warn(
                f"{self.name}: {int(open_pairs.sum())} of "
                f"{counted(open_pairs.shape[0] * (open_pairs.shape[0] - 1) // 2, 'pair')} "
                f"did not converge: the marginal error is up to {solution.marginal_errors.max():.1e} "
                f"after {counted(int(solution.n_iterations.max()), 'iteration')} (tolerance {solution.tol:.1e}); "
                "raise max_iterations or use a stronger regularization.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return solution.distances

    def solve(self, *args: P.args, **options: P.kwargs) -> Solution:
        """Return the distances and the convergence of each pair; takes the same arguments as the method."""
        solution: Solution = self.function(*args, **options)
        return solution


def pair_method(
    ground: GroundKind, reference: str, extra: str | None = None
) -> Callable[[Callable[P, Float64]], PairMethod[P]]:
    """Return a decorator that turns a function returning distances into a method; `Method` explains the arguments."""
    return lambda function: PairMethod(function, ground, reference, extra)


def embedding_method(
    ground: GroundKind, reference: str, extra: str | None = None
) -> Callable[[Callable[P, Iterator[Features]]], EmbeddingMethod[P]]:
    """Return a decorator that turns a function yielding blocks of features into a method."""
    return lambda function: EmbeddingMethod(function, ground, reference, extra)


def iterative_method(
    ground: GroundKind, reference: str, extra: str | None = None
) -> Callable[[Callable[P, Solution]], IterativeMethod[P]]:
    """Return a decorator that turns a function returning a `Solution` into a method."""
    return lambda function: IterativeMethod(function, ground, reference, extra)
