"""`DiffusionEMD`: the scikit-learn face of the definition."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from heatmover._progress import SILENT, Progress
from heatmover._validation import check_integer, check_number, check_option, check_random_state, check_threads
from heatmover.diffusion.base import Diffuser
from heatmover.diffusion.chebyshev import ChebyshevDiffuser, rounding
from heatmover.diffusion.choice import choose_max_scale
from heatmover.diffusion.exact import ExactDiffuser
from heatmover.diffusion.operator import DiffusionOperator
from heatmover.diffusion.scales import ScaleChoice, finest_scale
from heatmover.embedding import NORMS, combination, embed, scale_weights
from heatmover.errors import GraphWarning, InvalidInputError
from heatmover.graphs import Graph
from heatmover.measures import Measures, check_measures

__all__ = ["DiffusionEMD"]

METHODS = ("auto", "chebyshev", "exact")
DENSITIES = ("adjoint", "function")

# Single precision is for graphs whose stationary law is even to within this factor (of its root): the certificate
# weighs errors by it, and on a path whose weights fall by 1e-3 from edge to edge float32 lost 2e-4 of the mass.
EVEN = 1e-3


class DiffusionEMD(TransformerMixin, BaseEstimator):
    """Embed measures on a graph so that the L1 distance between rows is their Diffusion Earth Mover's Distance.

    Parameters
    ----------
    graph
        The graph the measures live on. None: the columns are bins in a row, ``Graph.from_grid((n_points,))``.
    method
        ``"chebyshev"``: polynomials with a certified error, near-linear in the size of the graph.
        ``"exact"``: a dense eigendecomposition, for up to 10,000 points. ``"auto"`` chooses.
    max_scale
        K: the coarsest diffusion time is ``2**K``. ``"auto"``: the first at which two points have half mixed;
        `max_scale_reason_` and `decay_` explain it.
    n_scales
        Number of scales compared, counted from the coarsest. None: all that carry weight.
    alpha
        Balance between far and near: the ground distance is about the geodesic to the power ``2 * alpha``.
    tol
        Largest error of any scale's density, in the norm that `error_bound_` states.
    density
        ``"adjoint"``: mass diffuses and is conserved. ``"function"``: the paper's literal ``P^t mu``.
    norm
        ``"levels"`` (default, measured best), ``"increments"`` (the paper's Eq. 8) or ``"coarsest"``; see
        `heatmover.embedding`.
    normalize
        Divide rows by their sums. False: rows that do not sum to one are an error.
    dtype
        ``"float32"``, ``"float64"`` or ``"auto"``: float32 where its rounding takes at most half of ``tol``, which at
        the default ``tol`` is up to ``max_scale=13``.
    n_jobs
        Threads; None for all cores. The result does not depend on it.
    random_state
        Seed of the sample of points that ``max_scale="auto"`` looks at.

    Attributes
    ----------
    graph_ : Graph
        The graph used.
    method_, method_reason_ : str
        The way to diffuse and why.
    max_scale_ : int
        K.
    max_scale_reason_ : str
        Where K comes from, in words.
    decay_ : ndarray
        Mean total variation between the heat of two points at times 1, 2, 4, ...; empty if ``max_scale`` was given.
    scales_ : ndarray
        ``(n_scales_,)``: the scales k compared; block b of the embedding belongs to ``scales_[b]``.
    n_scales_ : int
        Their number.
    error_bound_ : ndarray
        ``(n_scales_,)``: certified bound, rounding included, on the error of each density f, relative to its
        measure, in the norm
        ``sqrt(sum(f**2 / pi))`` with the stationary law pi (``sum(f**2 * pi)`` for ``density="function"``).
    n_features_in_ : int
        Number of points.

    Examples
    --------
    >>> import heatmover as hm
    >>> data = hm.datasets.ring(8, points_per_measure=25)
    >>> graph = hm.Graph.from_points(data.points, n_neighbors=10)
    >>> model = hm.DiffusionEMD(graph)
    >>> embedding = model.fit_transform(data.measures())
    >>> embedding.shape == (8, model.n_scales_ * 200)
    True
    >>> hm.pairwise_distances(embedding).shape
    (8, 8)
    """

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        method: Literal["auto", "chebyshev", "exact"] = "auto",
        max_scale: int | Literal["auto"] = "auto",
        n_scales: int | None = None,
        alpha: float = 0.5,
        tol: float = 1e-3,
        density: Literal["adjoint", "function"] = "adjoint",
        norm: Literal["levels", "increments", "coarsest"] = "levels",
        normalize: bool = False,
        dtype: Literal["auto", "float32", "float64"] = "auto",
        n_jobs: int | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.graph = graph
        self.method = method
        self.max_scale = max_scale
        self.n_scales = n_scales
        self.alpha = alpha
        self.tol = tol
        self.density = density
        self.norm = norm
        self.normalize = normalize
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: ARG002
        """Normalise the graph and choose the scales from the measures.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame.
        y
            Ignored.

        Returns
        -------
        DiffusionEMD
            Itself.
        """
        self._check_parameters()
        rows = self._check_rows(X, reset=True)
        self.graph_ = Graph.from_grid((rows.shape[1],)) if self.graph is None else self.graph
        operator = DiffusionOperator.from_graph(self.graph_)
        _warn_of_components(operator, rows)
        choice = self._choose_scale(operator, rows)
        self.max_scale_, self.max_scale_reason_, self.decay_ = choice.max_scale, choice.reason, choice.decay
        scales = self._kept_scales(choice.max_scale)
        self.scales_, self.n_scales_ = np.asarray(scales), len(scales)
        self._matrix = combination(scales, alpha=self.alpha, norm=self.norm)
        self._precision = self._choose_precision(operator)
        self._diffuser = self._make_diffuser(operator)
        self.error_bound_ = self._diffuser.error_bound(scales)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.floating[Any]]:
        """Embed measures.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``.

        Returns
        -------
        ndarray
            ``(n_measures, n_scales_ * n_points)``; each row's bits do not depend on the other rows.
        """
        check_is_fitted(self)
        return self._embed(self._check_rows(X, reset=False), SILENT)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return a name per column of the embedding, ``(n_scales_ * n_points,)``: scale, then point.

        Parameters
        ----------
        input_features
            Names of the points; default those seen in `fit`, else ``x0``, ``x1``, ...
        """
        check_is_fitted(self)
        known = getattr(self, "feature_names_in_", None)
        if input_features is None:
            input_features = known if known is not None else [f"x{i}" for i in range(self.n_features_in_)]
        elif len(input_features) != self.n_features_in_:
            raise ValueError(
                f"input_features should have length equal to number of features ({self.n_features_in_}), "
                f"got {len(input_features)}"
            )
        elif known is not None and not np.array_equal(known, input_features):
            raise ValueError("input_features is not equal to feature_names_in_")
        return np.array([f"scale{k}_{name}" for k in self.scales_ for name in input_features], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _embed(self, rows: Any, progress: Progress) -> npt.NDArray[np.floating[Any]]:
        scales = range(self.scales_[0], self.scales_[-1] + 1)
        progress.stage("diffuse measures", rows.shape[0])
        return embed(
            self._diffuser,
            rows,
            scales,
            self._matrix,
            dtype=self._precision,
            n_threads=check_threads(self.n_jobs),
            progress=progress,
        )

    def _check_parameters(self) -> None:
        if not (self.graph is None or isinstance(self.graph, Graph)):
            raise InvalidInputError(
                "graph to be a heatmover.Graph",
                f"{type(self.graph).__name__}",
                "use Graph.from_points for points, Graph.from_affinity for a matrix of affinities",
            )
        check_option("method", self.method, METHODS)
        check_option("density", self.density, DENSITIES)
        check_option("norm", self.norm, NORMS)
        check_option("dtype", self.dtype, ("auto", "float32", "float64"))
        # 1/2 is the limit of the theory; beyond it the sum is still a norm.
        check_number("alpha", self.alpha, above=0, at_most=1)
        check_number("tol", self.tol, above=0, at_most=0.5)
        if isinstance(self.max_scale, str):
            if self.max_scale != "auto":
                raise InvalidInputError("max_scale to be a whole number or 'auto'", repr(self.max_scale))
        elif check_integer("max_scale", self.max_scale, minimum=0) > 30:
            raise InvalidInputError("max_scale of at most 30", f"{self.max_scale}", "2^30 steps mix any graph in reach")
        if self.n_scales is not None:
            check_integer("n_scales", self.n_scales, minimum=1)
        if not isinstance(self.normalize, bool | np.bool_):
            raise InvalidInputError("normalize to be True or False", repr(self.normalize))
        check_threads(self.n_jobs)
        check_random_state(self.random_state)

    def _check_rows(self, X: Any, *, reset: bool) -> Any:
        if isinstance(X, Measures):
            X = X.masses
        if not hasattr(X, "shape") or len(X.shape) != 2:
            _refuse_other_shapes(np.asarray(X))
        rows = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, copy=False
        )
        # What was fitted counts, not what set_params changed since.
        graph = self.graph if reset else self.graph_
        n_points = graph.n_points if graph is not None else None
        return check_measures(rows, n_points=n_points, normalize=self.normalize)

    def _choose_scale(self, operator: DiffusionOperator, rows: Any) -> ScaleChoice:
        if self.max_scale == "auto":
            rng = check_random_state(self.random_state)
            return choose_max_scale(operator, rows, rng, n_threads=check_threads(self.n_jobs))
        return ScaleChoice(int(self.max_scale), np.empty(0), np.nan, "as asked for")

    def _kept_scales(self, max_scale: int) -> range:
        everything = range(max_scale + 1)
        if self.n_scales is None:
            return everything[finest_scale(scale_weights(everything, self.alpha)) :]
        return everything[max(len(everything) - self.n_scales, 0) :]

    def _make_diffuser(self, operator: DiffusionOperator) -> Diffuser:
        adjoint = self.density == "adjoint"
        if self.method == "exact":
            self.method_, self.method_reason_ = "exact", "as asked for"
            return ExactDiffuser(operator, adjoint=adjoint)
        self.method_ = "chebyshev"
        self.method_reason_ = "as asked for" if self.method == "chebyshev" else "certified and linear in graph size"
        # Only one copy of the operator stays, in the precision that diffuses.
        kept = operator.astype(self._precision)
        return ChebyshevDiffuser(kept, adjoint=adjoint, tol=self.tol, dtype=self._precision)

    def _choose_precision(self, operator: DiffusionOperator) -> np.dtype[Any]:
        if self.dtype != "auto":
            return np.dtype(self.dtype)
        single = rounding(2**self.max_scale_, np.float32) <= self.tol / 2 and operator.evenness >= EVEN
        return np.dtype(np.float32 if single else np.float64)


def _refuse_other_shapes(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind in "US":
        raise InvalidInputError("measures", "strings", "use measures_from_labels(labels) to make measures of them")
    if values.ndim != 2:
        raise InvalidInputError(
            "measures of shape (n_measures, n_points)",
            f"shape {values.shape}",
            "Reshape your data: one measure is one row, X.reshape(1, -1)",
        )


def _warn_of_components(operator: DiffusionOperator, rows: Any) -> None:
    if operator.n_components == 1:
        return
    sizes = np.bincount(operator.component)
    masses = operator.component_masses(rows)
    outside = 1 - masses[:, int(np.argmax(sizes))].mean()
    warnings.warn(
        f"Expected a connected graph, found {operator.n_components} components ({int((sizes == 1).sum())} isolated "
        f"points) with {outside:.1%} of the measures' mass outside the largest; mass never moves between them. "
        "See graph.diagnose().",
        GraphWarning,
        stacklevel=3,
    )
