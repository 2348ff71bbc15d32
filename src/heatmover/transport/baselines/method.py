"""What a method is: one calling convention for all of them, and what each declares about itself."""

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
from heatmover.errors import ConvergenceWarning, HeatmoverError

__all__ = [
    "Declaration",
    "EmbeddingMethod",
    "IterativeMethod",
    "Method",
    "PairMethod",
    "Solution",
    "embedding_method",
    "iterative_method",
    "pair_method",
]

P = ParamSpec("P")
Features: TypeAlias = FloatArray | sp.csr_array


@final
@dataclass(frozen=True)
class Declaration:
    """What a method says about itself; `Method` explains the fields."""

    ground: Literal["points", "either"]
    reference: str
    extra: str | None = None


class Method(ABC, Generic[P]):
    """A way to compare measures: ``method(points or graph, measures, *, options)`` returns their distances.

    Attributes
    ----------
    name
        The method's name, which is that of the function.
    ground
        ``"points"``: the method needs coordinates. ``"either"``: coordinates or a `Graph`; each is turned into
        what the method works on.
    reference
        Where the method comes from.
    extra
        The extra of heatmover that has to be installed for it, or None.

    Examples
    --------
    >>> from heatmover.transport.baselines import METHODS
    >>> METHODS["exact_emd"].extra, METHODS["exact_emd"].ground
    ('exact', 'either')
    """

    def __init__(self, function: Callable[P, Any], declaration: Declaration) -> None:
        self.function = function
        self.ground, self.reference = declaration.ground, declaration.reference
        self.extra = declaration.extra
        functools.update_wrapper(self, function)
        # Whatever the function returns, calling the method returns distances.
        self.__annotations__ = {**function.__annotations__, "return": np.ndarray}
        self.__signature__ = inspect.signature(function).replace(return_annotation=np.ndarray)

    @property
    def name(self) -> str:
        """The method's name."""
        return self.function.__name__

    @abstractmethod
    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the distances between all measures, ``(n_measures, n_measures)``: symmetric, zero diagonal."""

    def __repr__(self) -> str:
        return f"<baseline {self.name}: {self.reference}>"


@final
class PairMethod(Method[P]):
    """A method that gives distances and nothing else; its function returns them.

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

    A block is ``(n_measures, n_features)``, dense or CSR: one tree, one direction, one scale. Distances add up
    over blocks, so that only one block is held at a time.

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
        total: Float64 | None = None
        for block in self._blocks(*args, **options):
            distances = np.asarray(l1_distances(block, n_jobs=n_jobs), dtype=np.float64)
            total = distances if total is None else total + distances
        if total is None:
            raise HeatmoverError(f"Expected {self.name} to have features, found none.")
        return total

    def embed(self, *args: P.args, **options: P.kwargs) -> Features:
        """Return the features, ``(n_measures, n_features)``, dense or CSR; L1 between rows is the distance.

        Takes what the method itself takes.
        """
        blocks = list(self._blocks(*args, **options))
        if any(sp.issparse(block) for block in blocks):
            return sp.csr_array(sp.hstack(blocks, format="csr"))
        return np.hstack(blocks)

    def _blocks(self, *args: P.args, **options: P.kwargs) -> Iterator[Features]:
        blocks: Iterator[Features] = self.function(*args, **options)
        return blocks


@final
@dataclass(frozen=True, eq=False)
class Solution:
    """What an iterative method found, and how far it got.

    Attributes
    ----------
    distances
        ``(n_measures, n_measures)``: symmetric, zero diagonal.
    marginal_errors
        ``(n_measures, n_measures)``: how much mass, of one, the transport plan of each pair still misplaces.
    n_iterations
        ``(n_measures, n_measures)``: iterations spent on each pair.
    tol
        The marginal error that was asked for.

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
        """Which pairs reached ``tol``, ``(n_measures, n_measures)``."""
        return np.asarray(self.marginal_errors <= self.tol)


@final
class IterativeMethod(Method[P]):
    """A method that approaches its distances step by step; its function returns a `Solution`.

    Examples
    --------
    >>> from heatmover.transport.baselines import sinkhorn
    >>> bool(sinkhorn.solve([[0.0], [1.0]], [[0.9, 0.1], [0.1, 0.9]]).marginal_errors.max() <= 1e-3)
    True
    """

    def __call__(self, *args: P.args, **options: P.kwargs) -> Float64:
        """Return the distances, ``(n_measures, n_measures)``, with a `ConvergenceWarning` if pairs fell short."""
        solution = self.solve(*args, **options)
        open_pairs = np.triu(~solution.converged, 1)
        if open_pairs.any():
            warnings.warn(
                f"{self.name}: {int(open_pairs.sum())} of "
                f"{counted(open_pairs.shape[0] * (open_pairs.shape[0] - 1) // 2, 'pair')} "
                f"did not converge: up to {solution.marginal_errors.max():.1e} of the mass is misplaced, "
                f"{solution.tol:.1e} were asked for, after {counted(int(solution.n_iterations.max()), 'iteration')}; "
                "allow more max_iterations or smooth more.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return solution.distances

    def solve(self, *args: P.args, **options: P.kwargs) -> Solution:
        """Return distances together with how well each pair converged; takes what the method itself takes."""
        solution: Solution = self.function(*args, **options)
        return solution


def pair_method(declaration: Declaration) -> Callable[[Callable[P, Float64]], PairMethod[P]]:
    """Turn a function that returns distances into a method."""
    return lambda function: PairMethod(function, declaration)


def embedding_method(declaration: Declaration) -> Callable[[Callable[P, Iterator[Features]]], EmbeddingMethod[P]]:
    """Turn a function that yields blocks of features into a method."""
    return lambda function: EmbeddingMethod(function, declaration)


def iterative_method(declaration: Declaration) -> Callable[[Callable[P, Solution]], IterativeMethod[P]]:
    """Turn a function that returns a `Solution` into a method."""
    return lambda function: IterativeMethod(function, declaration)
