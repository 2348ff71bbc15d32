"""Define `DiffusionEMD`, which embeds measures, for users, most packages; `save`, `load`, the cache touch files."""

from __future__ import annotations

import inspect
import numbers
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import wraps
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from joblib import hash as content_hash  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from sklearn.utils.validation import check_memory as check_joblib_memory

from heatmover._base.files import plain
from heatmover._base.storage.record import Record, texts_record
from heatmover._base.storage.store import Store
from heatmover._base.types import Bool, FloatArray
from heatmover._base.validation import (
    as_array,
    check_integer,
    check_memory,
    check_number,
    check_option,
    check_random_state,
    check_threads,
    check_truth,
)
from heatmover._base.words import counted
from heatmover.diffusion.operator import Diffuser, DiffusionOperator
from heatmover.embedding.definition import NORMS, diffused, embed_densities
from heatmover.embedding.distances import l1_distances
from heatmover.embedding.preparation import (
    LARGEST_EMBEDDING,
    METHODS,
    ModelParameters,
    Preparation,
    PreparedDiffusion,
    lay_out,
    prepare_diffusion,
    skeleton_tolerance,
)
from heatmover.errors import EmbeddingWarning, GraphWarning, InvalidInputError, Sentence, argument, in_python
from heatmover.graphs.diagnosis import FEWEST, NOTICEABLE, PASSES, find_near_cuts
from heatmover.graphs.graph import Graph
from heatmover.measures import Measures, check_measures

# Schema and version of the records of fitted models; `docs/atlas_format.md` describes them.
MODEL_SCHEMA, MODEL_VERSION = "heatmover-model", 1

# Parameters that are not stored with a model: the graph is stored in its own record, and the cache exists on one
# computer only.
NOT_STORED = {"graph", "memory"}

DENSITIES = ("adjoint", "function")
COMPRESSIONS = ("regions", "centers")

# Parameters of the paper: Eq. 8, densities at all points.
PAPER: dict[str, Any] = {
    "norm": "increments",
    "compress": False,
    "compress_by": "centers",
    "dtype": "float64",
    "weights": None,
}
# More scales than any model has. With `n_scales=None`, the constructor drops the finest scales, whose weight is small.
EVERY_SCALE = 64
# The only error of Algorithm 1 is the error of its polynomial; 1e-10 is the accuracy of float64 up to 2^18 steps. The
# tolerance of Algorithm 4 follows from its rank threshold, which the paper sets to 1e-6.
PAPER_ALGORITHMS: dict[str, dict[str, Any]] = {
    "chebyshev": {"method": "chebyshev", "tol": 1e-10},
    "interpolative": {"method": "interpolative", "compress": 1e-6, "tol": skeleton_tolerance(1e-6)},
}


class DiffusionEMD(TransformerMixin, BaseEstimator):
    """Embedding of measures on a graph; L1 distances between rows are Diffusion Earth Mover's Distances.

    Parameters
    ----------
    graph
        Graph on whose points the measures are defined. None: the columns of the measures are neighboring bins on a
        line, ``Graph.from_grid((n_points,))``.
    method
        ``"chebyshev"``: polynomials with a certified error; the time is near-linear in the size of the graph.
        ``"spectral"``, ``"interpolative"``: polynomials for the fine scales; for the coarse scales leading eigenvectors
        (``"spectral"``) or nested skeletons of points (``"interpolative"``). The error is certified too, and the cost
        does not grow with the largest scale. ``"exact"``: a dense eigendecomposition, for up to 10,000 points.
        ``"auto"``: polynomials or eigenvectors, whichever cost less, or step-by-step diffusion if affinities vary so
        much that the other methods are inaccurate. `method_reason_` explains the choice.
    max_scale
        K: the coarsest diffusion time is ``2**K``. ``"auto"``: the first K at which the heat of two points overlaps by
        half on average. A number in (0, 1): the first K at which the random walk from 99.9% of the points has at most
        this total variation distance from the stationary distribution of its component (the paper's Lemma 1).
        `max_scale_reason_` and `decay_` explain the choice.
    n_scales
        Number of scales to compare, counted from the coarsest. None: all scales with noticeable weight.
    alpha
        Balance between coarse and fine scales: each scale has ``2**-alpha`` times the weight of the next coarser scale.
        In the limit of infinitely many scales, for alpha below 1/2, the ground distance grows as the geodesic distance
        to the power ``2 * alpha``. With the finitely many scales of a fitted model the power depends on the distance
        and lies between 0 and 1 for every alpha.
    weights
        Weights of the scales, ``(n_scales,)``, finest first: non-negative numbers that replace the powers of two given
        by ``alpha``. Each weight belongs to one diffusion time, so ``max_scale`` must be a whole number, and there are
        as many scales as weights. `heatmover.calibrate` fits weights to exact distances, which gives distances a unit.
        None: the powers of two.
    tol
        Largest error of the density at any scale, in the norm given under `error_bound_`. A ``tol`` below the accuracy
        of float64 raises an error.
    compress
        Rank threshold in (0, 1) of a compact embedding, which keeps the masses of regions instead of the densities at
        all points. The number of regions at a scale is the numerical rank of the scale's operator at this threshold, at
        least 256 (512 at 1e-4). None: if the full embedding would exceed 2 GiB, compress with the threshold 0.1 and
        give an `EmbeddingWarning`. False: never compress.
    compress_by
        ``"regions"``: as described under ``compress``. ``"centers"``: as in the paper, keep the densities at centers
        chosen by an interpolative decomposition; there are as many centers as the rank. Scales whose rank is at least
        10% of the number of points keep the densities at all points. With ``method="interpolative"`` the diffusion uses
        the same centers.
    density
        ``"adjoint"``: mass diffuses and is conserved. ``"function"``: the paper's literal ``P^t mu``.
    norm
        ``"levels"`` (default, measured best), ``"increments"`` (the paper's Eq. 8) or ``"coarsest"``; see
        `heatmover.embedding.definition`.
    normalize
        Divide each row by its sum. False: rows that do not sum to one raise an error.
    dtype
        ``"float32"``, ``"float64"`` or ``"auto"``: float32 if its rounding errors take at most half of ``tol``. With
        the default ``tol``, float32 is accurate enough up to ``max_scale=13``.
    n_jobs
        Number of threads; None for all cores. The result does not depend on this number.
    random_state
        Seed for the points sampled by ``max_scale="auto"``, for the basis of the coarse scales and for the regions.
    memory
        Folder or `joblib.Memory`, as in a scikit-learn pipeline, to cache everything that does not depend on
        ``alpha``, ``norm``, ``n_scales`` and ``weights``. A search over these parameters then prepares and diffuses
        only once. Results are bit-identical with and without the cache. None: no cache.

    Attributes
    ----------
    graph_ : Graph
        Graph of the model.
    method_, method_reason_ : str
        Diffusion method, and the reason for it in words.
    compress_ : float or None
        Rank threshold if the embedding is compressed, else None.
    compress_reason_ : str
        Reason why the embedding is, or is not, compressed.
    n_regions_ : ndarray
        ``(n_scales_,)``: number of columns of each block: regions, centers (with ``compress_by="centers"``) or, in a
        full embedding, points.
    max_scale_ : int
        Largest scale K.
    max_scale_reason_ : str
        Reason for K in words.
    decay_ : ndarray
        Mean total variation distance between the heat of two points at times 1, 2, 4, ...; empty if ``max_scale`` is a
        whole number. If ``max_scale`` is in (0, 1): for each of these times, the distance of the random walk from the
        stationary distribution (total variation), for the worst of the examined starting points without stragglers.
    scales_ : ndarray
        ``(n_scales_,)``: the scales k; block b of the embedding belongs to ``scales_[b]``. The columns of a full block
        are the nodes of the graph in node order, see `Graph.place`.
    n_scales_ : int
        Number of scales.
    error_bound_ : ndarray
        ``(n_scales_,)``: certified bound, including rounding, on the norm of the error of each density, divided by the
        norm of its measure. The norm of f is ``sqrt(sum(f**2 / pi))``, where pi is the stationary distribution, or
        ``sqrt(sum(f**2 * pi))`` with ``density="function"``.
    n_features_in_ : int
        Number of points.
    prepared_ : heatmover.embedding.preparation.Preparation
        Result of `fit` that `transform` uses: the diffuser, the layout of the columns, the precision and the table. It
        is public for code that diffuses measures itself.

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
        method: Literal["auto", "chebyshev", "spectral", "interpolative", "exact"] = "auto",
        max_scale: float | Literal["auto"] = "auto",
        n_scales: int | None = None,
        alpha: float = 0.5,
        tol: float = 1e-3,
        compress: float | bool | None = None,
        compress_by: Literal["regions", "centers"] = "regions",
        density: Literal["adjoint", "function"] = "adjoint",
        norm: Literal["levels", "increments", "coarsest"] = "levels",
        normalize: bool = False,
        dtype: Literal["auto", "float32", "float64"] = "auto",
        n_jobs: int | None = None,
        random_state: int | None = 0,
        weights: npt.ArrayLike | None = None,
        memory: Any = None,
    ) -> None:
        self.graph = graph
        self.method = method
        self.max_scale = max_scale
        self.n_scales = n_scales
        self.alpha = alpha
        self.tol = tol
        self.compress = compress
        self.compress_by = compress_by
        self.density = density
        self.norm = norm
        self.normalize = normalize
        self.dtype = dtype
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.weights = weights
        self.memory = memory

    @classmethod
    def from_paper(
        cls,
        graph: Graph | None = None,
        *,
        algorithm: Literal["chebyshev", "interpolative"] = "chebyshev",
        max_scale: int | float | Literal["auto"] = "auto",
        n_scales: int | None = 6,
        alpha: float = 0.49,
        density: Literal["function", "adjoint"] = "function",
        compress: float | bool | None = None,
        normalize: bool = False,
        n_jobs: int | None = None,
        random_state: int | None = 0,
    ) -> Self:
        """Return an estimator with the parameters of the paper: Eq. 6-8, Algorithm 1 or Algorithm 4.

        The densities are ``P^t mu``, their differences have weight ``2^(-(K-k-1) alpha)``, and by default the six
        coarsest scales are compared, as in the paper's experiments: five differences and the coarsest density. The
        graph defines the kernel; `Graph.from_points` implements the paper's Eq. 4. "The paper and the defaults" in the
        documentation explains where heatmover differs, and why.

        Parameters
        ----------
        graph
            As in the constructor.
        algorithm
            ``"chebyshev"``: Algorithm 1, exact to a tolerance of 1e-10. ``"interpolative"``: Algorithm 4, which
            compares densities only at nested skeletons of ``R_delta(P^(2^k))`` points.
        max_scale
            K. The paper only says that K grows with the logarithm of the number of points, and that results are stable
            from a certain K on. ``"auto"``: the first K at which the heat of two points overlaps by half on average,
            as in the constructor. A number in (0, 1) is the epsilon of Lemma 1: heat from every point has mixed.
        n_scales
            Number of coarsest scales to compare. The paper's experiments use 6; None: all K + 1 terms of Eq. 7.
        alpha
            Number in (0, 1/2); the paper sets it "close to 1/2".
        density
            ``"function"``: ``P^t mu``, as Eq. 6 prints. ``"adjoint"``: ``(P^T)^t mu``, as in the dual norms of the
            supplement, in which the adjoint operators ``P_k^*`` act on measures. The adjoint is more accurate.
        compress
            The rank threshold delta. None: Algorithm 4 uses 1e-6, and Algorithm 1 keeps the densities at all points.
            With a number, both algorithms keep the densities at the same centers.
        normalize, n_jobs, random_state
            As in the constructor.

        Returns
        -------
        DiffusionEMD
            Unfitted estimator. Parameters that are changed later with `set_params` may differ from the paper.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.ring(8, points_per_measure=25)
        >>> graph = hm.Graph.from_points(data.points, n_neighbors=10)
        >>> model = hm.DiffusionEMD.from_paper(graph)
        >>> model.fit_transform(data.measures()).shape
        (8, 1200)
        """
        check_option("algorithm", algorithm, tuple(PAPER_ALGORITHMS))
        parameters: dict[str, Any] = PAPER | PAPER_ALGORITHMS[algorithm]
        if not check_number("alpha", alpha, above=0, at_most=1) < 0.5:
            raise InvalidInputError(
                f"{argument('alpha')} in (0, 1/2), as the paper's theory requires",
                f"{alpha!r}",
                "use DiffusionEMD(alpha=...)",
            )
        if compress is not None:
            if compress is False and algorithm == "interpolative":
                raise InvalidInputError(
                    f"a threshold as {argument('compress')}, because Algorithm 4 compares densities only at centers",
                    "compress=False",
                    "use algorithm='chebyshev' for all points",
                )
            parameters["compress"] = compress
        parameters |= {"max_scale": max_scale, "alpha": alpha, "density": density, "normalize": normalize}
        parameters["n_scales"] = EVERY_SCALE if n_scales is None else n_scales
        model = cls(graph, n_jobs=n_jobs, random_state=random_state, **parameters)
        model.check_parameters()
        if algorithm == "interpolative":
            model.tol = skeleton_tolerance(parameters["compress"])
        return model

    def fit(self, X: Any = None, y: object = None) -> Self:  # noqa: ARG002
        """Normalize the graph, choose scales and method from the measures and prepare the embedding.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``: `Measures`, array, sparse matrix or DataFrame. None: prepare for any
            number of measures that may lie anywhere on the graph.
        y
            Ignored.

        Returns
        -------
        DiffusionEMD
            The fitted estimator itself.
        """
        self.check_parameters()
        self.fit_masses(X)
        return self

    def fit_masses(self, X: Any) -> Any:
        """Fit with parameters that the caller checked with `check_parameters`; return the masses on the nodes.

        Parameters
        ----------
        X
            As in `fit`.
        """
        if X is not None:
            rows = self._check_rows(X, reset=True)
        elif self.graph is None:
            raise InvalidInputError("a graph or measures to fit", "neither", "pass graph= to the constructor")
        else:
            rows = self.graph.gather(np.full((1, self.graph.n_points), 1 / self.graph.n_points))
            self.n_features_in_ = self.graph.n_points
            # Drop the names of an earlier fit.
            self.__dict__.pop("feature_names_in_", None)
        parameters = {field.name: getattr(self, field.name) for field in fields(ModelParameters)}
        if self.weights is not None:
            parameters["weights"] = tuple(np.asarray(self.weights, dtype=np.float64).tolist())
        self.graph_ = Graph.from_grid((rows.shape[1],)) if self.graph is None else self.graph
        settings, n_threads = ModelParameters(**parameters), check_threads(self.n_jobs)
        # Results are cached only with a seed, because a generator would give other random draws each time.
        kept = self.memory is not None and isinstance(self.random_state, int | np.integer)
        key = (self.graph_.node_affinity, rows, X is None, settings.of_diffusion, self.random_state)
        self._diffusion_key = _content(*key) if kept else None
        prepare = _kept(self.memory if kept else None, _prepare_diffusion)
        n_measures, rng = None if X is None else rows.shape[0], check_random_state(self.random_state)
        diffusion, near_cut = prepare(self._diffusion_key, self.graph_, rows, settings, n_measures, rng, n_threads)
        _warn_of_components(diffusion.operator, rows)
        _warn_of_alternation(diffusion.operator, rows)
        prepared = lay_out(diffusion, settings, n_threads=n_threads)
        warn_of_graph(near_cut)
        _warn_of_compression(prepared)
        self._take(prepared)
        return rows

    def distance(self, mu: Any, nu: Any) -> float:
        """Return the Diffusion Earth Mover's Distance between two measures.

        For more than a few pairs `transform` and `heatmover.pairwise_distances` are much faster.

        Parameters
        ----------
        mu, nu
            One measure each: a vector ``(n_points,)``, a dense or sparse matrix ``(1, n_points)``, or `Measures` of one
            measure.

        Returns
        -------
        float
            The L1 distance between the rows that `transform` returns for both measures.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.ring(8, points_per_measure=25)
        >>> mu = data.measures()
        >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit(mu)
        >>> bool(np.isclose(model.distance(mu[0], mu[1]), hm.pairwise_distances(model.transform(mu))[0, 1]))
        True
        """
        check_is_fitted(self)
        embedding = self._embed(
            sp.vstack([sp.csr_array(self.node_masses(_one_row(x))) for x in (mu, nu)], format="csr")
        )
        return float(l1_distances(embedding[:1], embedding[1:], n_jobs=1)[0, 0])

    def _take(self, prepared: Preparation) -> None:
        """Set the attributes of a fitted estimator from a preparation."""
        self.prepared_ = prepared
        self.method_, self.method_reason_ = prepared.method, prepared.method_reason
        self.compress_, self.compress_reason_ = prepared.compression.delta, prepared.compression.reason
        choice, layout = prepared.choice, prepared.layout
        self.max_scale_, self.max_scale_reason_, self.decay_ = choice.max_scale, choice.reason, choice.decay
        self.scales_, self.n_scales_ = np.asarray(layout.scales), len(layout.scales)
        self.n_regions_ = np.diff(layout.edges)
        self.error_bound_ = prepared.diffuser.error_bound(layout.scales)

    if TYPE_CHECKING:  # scikit-learn's own method has no types

        def fit_transform(self, X: Any, y: Any = None) -> FloatArray:
            """Fit, then embed the same measures."""

    def transform(self, X: Any) -> FloatArray:
        """Embed measures.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``.

        Returns
        -------
        ndarray
            Embedding ``(n_measures, n_features)``; each row is bit-identical whatever the other rows are.
        """
        check_is_fitted(self)
        return self._embed(self.node_masses(X))

    def transform_blocks(self, X: Any, *, memory: int | float | str = "1 GiB") -> Iterator[FloatArray]:
        """Embed any number of measures block by block within a memory limit.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``, or an iterable of such matrices, for instance a generator that reads
            them from disk.
        memory
            Memory limit in bytes, or text such as ``"2 GB"``. The limit covers the computation of a block, the block
            itself and the previous block, which a loop still holds. It does not cover the fitted model (graph, basis or
            table).

        Yields
        ------
        ndarray
            Block of rows ``(n_rows, n_features)``, in order. All blocks together are bit-identical to ``transform`` of
            all measures.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.ring(8, points_per_measure=25)
        >>> model = hm.DiffusionEMD(hm.Graph.from_points(data.points, n_neighbors=10)).fit()
        >>> blocks = list(model.transform_blocks(data.measures(), memory="1 MB"))
        >>> np.array_equal(np.vstack(blocks), model.transform(data.measures()))
        True
        """
        check_is_fitted(self)
        width = self.prepared_.measures_within(check_memory(memory), check_threads(self.n_jobs))
        matrices = [X] if isinstance(X, Measures) or hasattr(X, "shape") else X
        if not isinstance(matrices, Iterable):
            _raise_for_shape(np.asarray(X))
        return self._blocks(matrices, width)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the fitted model to a folder, from which `heatmover.load` reads a bit-identical model.

        The folder is a zarr store without compression or pickles, and every file is checked when it is read. The folder
        appears complete or not at all. "The format of an atlas" in the documentation describes the folder.

        Parameters
        ----------
        path
            Path of the new folder.
        overwrite
            Replace an existing heatmover store; anything else is never replaced.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import heatmover as hm
        >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,))).fit()
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "line.model"
        >>> model.save(path)
        >>> measures = np.eye(30)[:4]
        >>> np.array_equal(hm.load(path).transform(measures), model.transform(measures))
        True
        """
        part = self.to_record().part_of_store()
        Store.create(path, MODEL_SCHEMA, MODEL_VERSION, [part], overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a model written by `save`, or raise an error if any bit has changed.

        Parameters
        ----------
        path
            Path of the folder.
        """
        return cls.from_record(Record.from_store(Store.open(path, {MODEL_SCHEMA: MODEL_VERSION})))

    def to_record(self) -> Record:
        """Return the fitted model as a record that can be saved to disk."""
        check_is_fitted(self)
        if not (self.graph is None or self.graph is self.graph_):
            raise InvalidInputError(
                "the graph that the model was fitted on", "a different graph, set after fit", "fit the model again"
            )
        if not isinstance(self.random_state, int | np.integer | None):
            raise InvalidInputError(
                f"a seed or None as {argument('random_state')} of a model to save",
                type(self.random_state).__name__,
                "call set_params(random_state=0), which does not change the fitted results",
            )
        parameters = {name: plain(value) for name, value in self.get_params().items() if name not in NOT_STORED}
        values = {"parameters": parameters, "own_grid": self.graph is None, "n_features_in": int(self.n_features_in_)}
        names = getattr(self, "feature_names_in_", None)
        parts = {"graph": self.graph_.to_record(), "prepared": self.prepared_.to_record()}
        return Record(values, parts=parts if names is None else {**parts, "feature_names": texts_record(list(names))})

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return the fitted model stored in a record, or raise an error if the record is not a model."""
        graph, parameters = Graph.from_record(record.part("graph")), record.mapping("parameters")
        expected = set(cls().get_params()) - NOT_STORED
        if set(parameters) != expected:
            raise InvalidInputError(
                f"the {len(expected)} parameters of a stored model",
                f"{len(expected - set(parameters))} missing, {len(set(parameters) - expected)} unknown",
            )
        model = cls(None if record.truth("own_grid") else graph, **parameters)
        model.check_parameters()
        model.graph_ = graph
        model.n_features_in_ = graph.n_points
        if "feature_names" in record.parts:
            names = record.texts("feature_names")
            if len(names) != graph.n_points:
                raise InvalidInputError(f"{counted(graph.n_points, 'stored name')} of points", f"{len(names)}")
            model.feature_names_in_ = np.array(names, dtype=object)
        model._take(Preparation.from_record(record.part("prepared"), graph.n_nodes))
        return model

    def apply_transpose(self, features: npt.ArrayLike) -> FloatArray:
        """Apply the transpose of `transform`: map combinations of features to functions on points.

        Parameters
        ----------
        features
            Coefficients of the features, ``(n_rows, n_features)``.

        Returns
        -------
        ndarray
            Functions on points, ``(n_rows, n_points)``. The product of the result with a measure equals the product of
            ``features`` with the measure's embedding.

        Examples
        --------
        >>> import heatmover as hm
        >>> model = hm.DiffusionEMD(hm.Graph.from_grid((30,)), dtype="float64")
        >>> measures = np.eye(30)[:4]
        >>> embedding = model.fit_transform(measures)
        >>> np.allclose(model.apply_transpose(embedding) @ measures.T, embedding @ embedding.T)
        True
        """
        check_is_fitted(self)
        functions = self.prepared_.embed_transposed(features, n_threads=check_threads(self.n_jobs))
        return self.graph_.spread(functions)

    def node_masses(self, X: Any) -> Any:
        """Return the checked masses of measures on the nodes of the graph, the input that `prepared_` embeds.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``.

        Returns
        -------
        ndarray or CSR array
            Masses ``(n_measures, n_nodes)``. Equal points share one node, whose mass is the sum of the masses of these
            points.
        """
        check_is_fitted(self)
        return self._check_rows(X, reset=False)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return the names of the columns of the embedding, ``(n_features,)``: scale, then point or region center.

        Equal points share one node, which is named after the first of these points.

        Parameters
        ----------
        input_features
            Names of the points. Default: the names given to `fit`, else ``x0``, ``x1``, ...
        """
        check_is_fitted(self)
        points = OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        regions = self.prepared_.layout.regions
        nodes = [points[point] for point in self.graph_.first]
        if regions is None:
            return np.array([f"scale{k}_{name}" for k in self.scales_ for name in nodes], dtype=object)
        names = [
            f"scale{k}_{'' if partition.are_points else 'around_'}{nodes[center]}"
            for k, partition in zip(self.scales_, regions, strict=True)
            for center in partition.centers
        ]
        return np.array(names, dtype=object)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters and, once fitted, the choices and their reasons."""
        text: str = super().__repr__(N_CHAR_MAX)
        prepared = getattr(self, "prepared_", None)
        return text if prepared is None else f"{text}\n{indent(prepared.describe(), '  ')}"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _embed(self, rows: Any) -> FloatArray:
        prepared, n_threads = self.prepared_, check_threads(self.n_jobs)
        key = getattr(self, "_diffusion_key", None)
        if key is None or self.memory is None or prepared.table is not None:
            return prepared.embed(rows, n_threads=n_threads)
        diffuse = _kept(self.memory, _densities)
        scales = range(prepared.choice.max_scale + 1)
        densities = diffuse(_content(key, rows), prepared.diffuser, rows, scales, n_threads)
        return embed_densities(densities, prepared.layout, dtype=prepared.precision)

    def _blocks(self, matrices: Iterable[Any], width: int) -> Iterator[FloatArray]:
        for matrix in matrices:
            rows = self.node_masses(matrix)
            for start in range(0, rows.shape[0], width):
                # Densities are not cached, because memory is limited here.
                yield self.prepared_.embed(rows[start : start + width], n_threads=check_threads(self.n_jobs))

    def check_parameters(self) -> None:
        """Raise `InvalidInputError` for the first parameter that `fit` would reject, without fitting.

        Examples
        --------
        >>> import heatmover as hm
        >>> hm.DiffusionEMD(alpha=2).check_parameters()
        Traceback (most recent call last):
            ...
        heatmover.errors.InvalidInputError: Expected alpha to be a number in (0, 1], found 2.
        """
        if not (self.graph is None or isinstance(self.graph, Graph)):
            raise InvalidInputError(
                "the argument graph to be a heatmover.Graph",
                f"{type(self.graph).__name__}",
                "use Graph.from_points for points, Graph.from_affinity for a matrix of affinities",
            )
        check_option("method", self.method, METHODS)
        check_option("density", self.density, DENSITIES)
        check_option("norm", self.norm, NORMS)
        check_option("compress_by", self.compress_by, COMPRESSIONS)
        check_option("dtype", self.dtype, ("auto", "float32", "float64"))
        # The theory requires alpha below 1/2, but the sum is a norm for larger alpha too.
        check_number("alpha", self.alpha, above=0, at_most=1)
        check_number("tol", self.tol, above=0, at_most=0.5)
        if isinstance(self.max_scale, str):
            if self.max_scale != "auto":
                raise InvalidInputError(
                    "max_scale to be a whole number, a number in (0, 1) or 'auto'", repr(self.max_scale)
                )
        elif not _is_share(self.max_scale) and check_integer("max_scale", _whole(self.max_scale), minimum=0) > 30:
            raise InvalidInputError(
                "max_scale of at most 30", f"{self.max_scale}", "2^30 steps mix any practical graph"
            )
        if self.n_scales is not None:
            check_integer("n_scales", self.n_scales, minimum=1)
        if self.weights is not None:
            _check_weights(self.weights, self.max_scale, self.n_scales)
        if not (self.compress is None or self.compress is False or _is_share(self.compress)):
            raise InvalidInputError(
                "compress to be a threshold in (0, 1), None or False",
                repr(self.compress),
                "use 0.1 if unsure, or None to compress only large embeddings",
            )
        check_truth("normalize", self.normalize)
        check_threads(self.n_jobs)
        check_random_state(self.random_state)
        if not (self.memory is None or isinstance(self.memory, str | os.PathLike) or hasattr(self.memory, "cache")):
            raise InvalidInputError("the argument memory to be a folder, a joblib.Memory or None", repr(self.memory))

    def _check_rows(self, X: Any, *, reset: bool) -> Any:
        if isinstance(X, Measures):
            X = X.masses
        if isinstance(X, np.ma.MaskedArray | list | tuple):
            X = as_array("measures", X)
        if not hasattr(X, "shape") or len(X.shape) != 2:
            _raise_for_shape(X.toarray() if sp.issparse(X) else np.asarray(X))
        elif X.shape[0] == 0:
            raise InvalidInputError("at least one measure", f"none (shape {X.shape})")
        rows = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, copy=False
        )
        # Use the graph of the fit, even if set_params has changed it since.
        graph = self.graph if reset else self.graph_
        n_points = graph.n_points if graph is not None else None
        masses = check_measures(rows, n_points=n_points, normalize=self.normalize)
        return masses if graph is None else graph.gather(masses)


def _kept(memory: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function cached by joblib: calls with equal first arguments, the keys, share one result."""
    memory = os.fspath(memory) if isinstance(memory, os.PathLike) else memory
    _, *ignored = inspect.signature(function).parameters
    kept: Callable[..., Any] = check_joblib_memory(memory).cache(function, ignore=ignored)
    return kept


def _content(*values: Any) -> str:
    """Return a hash of values; a sparse matrix is hashed by its arrays, because it also stores cached flags."""
    arrays = [[x.data, x.indices, x.indptr] if sp.issparse(x) else x for x in values]
    return str(content_hash(arrays))


def _prepare_diffusion(
    key: str | None,  # noqa: ARG001
    graph: Graph,
    rows: Any,
    settings: ModelParameters,
    n_measures: int | None,
    rng: np.random.Generator,
    n_threads: int,
) -> tuple[PreparedDiffusion, str]:
    """Return the preparation, which is independent of weights, and the result of `near_cuts`; cached under ``key``."""
    operator = DiffusionOperator.from_graph(graph)
    diffusion = prepare_diffusion(operator, rows, settings, n_measures=n_measures, rng=rng, n_threads=n_threads)
    return diffusion, near_cuts(graph, operator, rows, diffusion.choice.max_scale)


def _densities(key: str, diffuser: Diffuser, rows: Any, scales: range, n_threads: int) -> FloatArray:  # noqa: ARG001
    """Return the densities of all measures at all scales; cached under ``key``."""
    return diffused(diffuser, rows, scales, n_threads=n_threads)


def _check_weights(weights: npt.ArrayLike, max_scale: object, n_scales: int | None) -> None:
    """Raise an error if the weights are invalid; the caller has already checked ``max_scale`` and ``n_scales``."""
    values = as_array("weights", weights)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iuf":
        raise InvalidInputError(
            f"{argument('weights')} to be numbers (n_scales,)", f"shape {values.shape} of {values.dtype}"
        )
    bad = int(np.count_nonzero(~(np.isfinite(values) & (values >= 0))))
    if bad:
        raise InvalidInputError(
            f"finite, non-negative {argument('weights')}",
            f"{bad} of {values.size} that are negative, infinite or NaN",
            "a distance is a sum of non-negative terms",
        )
    if not values.any():
        raise InvalidInputError(f"at least one of the {argument('weights')} to be positive", "zeros only")
    if isinstance(max_scale, str) or _is_share(max_scale):
        raise InvalidInputError(
            f"{argument('max_scale')} to be a whole number if {argument('weights')} are given, because each weight "
            "belongs to one time 2^k",
            f"{argument('max_scale', max_scale)}",
            "give the scale of the last weight",
        )
    if n_scales is not None and n_scales != values.size:
        raise InvalidInputError(
            f"as many {argument('weights')} as scales ({argument('n_scales', n_scales)})",
            f"{values.size}",
            f"omit {argument('n_scales')}",
        )
    if values.size > int(max_scale) + 1:  # type: ignore[call-overload]
        raise InvalidInputError(
            f"at most {int(max_scale) + 1} {argument('weights')}, one per scale from 0 to {max_scale}",  # type: ignore[call-overload]
            f"{values.size}",
            f"raise {argument('max_scale')} or drop the finest weights",
        )


def _whole(value: object) -> object:
    """Return an integer for a whole float (5 for 5.0): a parameter grid of scales and fractions holds only floats."""
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value


def _is_share(value: object) -> bool:
    return value is not True and isinstance(value, numbers.Real) and 0 < float(value) < 1


def _one_row(measure: Any) -> Any:
    """Return one measure as a matrix of one row, or raise an error for any other shape."""
    rows = measure.masses if isinstance(measure, Measures) else measure
    if not sp.issparse(rows):
        rows = as_array("measures", rows)
    if rows.ndim == 1:
        rows = rows.reshape(1, -1)
    if rows.ndim != 2 or rows.shape[0] != 1:
        raise InvalidInputError(
            "one measure on each side, (n_points,) or (1, n_points)",
            f"shape {rows.shape}",
            "use pairwise_distances(model.transform(measures)) for more",
        )
    return rows


def _raise_for_shape(values: npt.NDArray[Any]) -> None:
    if values.dtype.kind in "US":
        raise InvalidInputError("measures", "strings", "use measures_from_labels(labels) to convert labels to measures")
    if values.ndim != 2:
        raise InvalidInputError(
            "measures of shape (n_measures, n_points)",
            f"shape {values.shape}",
            "Reshape your data: one measure is one row, X.reshape(1, -1)",
        )


def _share_of_mass(operator: DiffusionOperator, rows: Any, chosen: Bool) -> float:
    """Return the share of the measures' mass on the chosen nodes, ``(n_nodes,)`` in the operator's order."""
    where = np.empty(operator.n_points)
    where[operator.order] = chosen
    return float(np.mean(rows @ where))


def _warn_of_components(operator: DiffusionOperator, rows: Any) -> None:
    if operator.n_components == 1:
        return
    sizes = np.bincount(operator.component)
    outside = 1 - _share_of_mass(operator, rows, operator.component == np.argmax(sizes))
    warnings.warn(
        Sentence(
            f"Expected a connected graph, found {counted(operator.n_components, 'component')} "
            f"({counted(int((sizes == 1).sum()), 'isolated point')}) with {outside:.1%} of the measures' mass outside "
            f"the largest component; mass never moves between components.{in_python(' See graph.diagnose().')}"
        ),
        GraphWarning,
        stacklevel=3,
    )


def _warn_of_alternation(operator: DiffusionOperator, rows: Any) -> None:
    if not operator.alternates.any():
        return
    share = _share_of_mass(operator, rows, operator.alternates[operator.component])
    if share < NOTICEABLE:
        return
    warnings.warn(
        f"Expected a random walk that mixes, found that {share:.1%} of the measures' mass lies in bipartite or nearly "
        "bipartite components. Heat alternates between the two halves of these components, so distances are wrong: "
        "neighbors can look farther apart than points two steps away. Make the graph with "
        "Graph.from_affinity(graph.affinity, lazy=True), which adds self-loops.",
        GraphWarning,
        stacklevel=3,
    )


def check_fitted(model: object) -> DiffusionEMD:
    """Return the model; raise an error if it is not a fitted `DiffusionEMD`."""
    if not isinstance(model, DiffusionEMD):
        advice = "for a Comparison, pass comparison.model"
        raise InvalidInputError("a fitted DiffusionEMD as model", type(model).__name__, advice)
    check_is_fitted(model)
    return model


def warn_of_graph(message: str) -> None:
    """Warn with the message that `near_cuts` returned, unless it is empty."""
    if message:
        warnings.warn(message, GraphWarning, stacklevel=3)


def near_cuts(graph: Graph, operator: DiffusionOperator, rows: Any, max_scale: int) -> str:
    """Describe nearly disconnected groups of points that have a noticeable share of the measures' mass.

    Parameters
    ----------
    graph, operator
        The graph and its diffusion operator, which may order the nodes differently.
    rows
        Measures ``(n_measures, n_nodes)``, dense or CSR.
    max_scale
        The coarsest scale.

    Returns
    -------
    str
        Message for `warn_of_graph`; empty if there are no such groups.
    """
    masses = np.asarray(rows.sum(axis=0), dtype=np.float64).ravel()[operator.order]
    cuts = find_near_cuts(operator.symmetric, operator.degree, 2**max_scale, masses)
    if cuts is None:
        return ""
    shares = cuts.shares(masses)
    noticed = (shares >= NOTICEABLE) & (np.bincount(cuts.part) >= FEWEST)
    if not noticed.any():
        return ""
    affinity = graph.node_affinity
    if operator.is_reordered:
        affinity = sp.csr_array(affinity[operator.order][:, operator.order])
    described = dict(cuts.describe(affinity, operator.symmetric, operator.degree))
    parts = [described[int(part)] for part in np.flatnonzero(noticed)]
    largest = max(parts, key=lambda part: part.n_points)

    leaves, steps = largest.conductance * 2**max_scale, f"2^{max_scale} steps"
    meaning = (
        f", and a share of at most {leaves:.1e} of its heat leaves in {steps}. Measures on different sides look about "
        "as far apart as measures in different components"
        if leaves < PASSES
        else f". Heat crosses this border only in about {steps}, after mixing everywhere else"
    )
    group = f"The largest group has {counted(largest.n_points, 'point')}. " if len(parts) > 1 else ""
    return Sentence(
        f"Expected a connected graph, found {counted(len(parts), 'nearly disconnected group')} of points "
        f"({counted(sum(part.n_points for part in parts), 'point')}, "
        f"{shares[noticed].sum():.1%} of the measures' mass). {group}A total affinity of {largest.affinity:.1e} joins "
        f"this group to the rest{meaning}. Use more neighbors"
        + in_python(", kernel='adaptive' or a larger bandwidth; see graph.diagnose()")
        + "."
    )


def _warn_of_compression(prepared: Preparation) -> None:
    if prepared.compression.by_itself:
        warnings.warn(
            f"Expected an embedding of at most {LARGEST_EMBEDDING / 2**30:g} GiB, found that "
            f"{prepared.compression.reason}. The embedding was compressed to "
            f"{counted(prepared.layout.n_features, 'feature')} (compress={prepared.compression.delta:g}). "
            "In Python, set compress to another threshold, or to False to keep every point.",
            EmbeddingWarning,
            stacklevel=3,
        )


def _keep_names(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `transform` so that a DataFrame requested by `set_output` has the names of the measures as its index."""

    @wraps(transform)
    def named(self: DiffusionEMD, X: Any, *arguments: Any, **options: Any) -> Any:
        result = transform(self, X, *arguments, **options)
        if isinstance(X, Measures) and hasattr(result, "set_axis"):
            return result.set_axis(list(X.names), axis=0)
        return result

    return named


# scikit-learn wraps this method when the class is created, and takes row names only from a DataFrame.
DiffusionEMD.transform = _keep_names(DiffusionEMD.transform)  # type: ignore[method-assign]
