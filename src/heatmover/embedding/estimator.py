"""`DiffusionEMD`: the scikit-learn face of the definition."""

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
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from sklearn.utils.validation import check_memory as check_joblib_memory

from heatmover._base.files import plain
from heatmover._base.storage.record import Record, texts_record
from heatmover._base.storage.store import Store
from heatmover._base.types import FloatArray
from heatmover._base.validation import (
    as_array,
    check_integer,
    check_memory,
    check_number,
    check_option,
    check_random_state,
    check_threads,
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

__all__ = ["MODEL_SCHEMA", "MODEL_VERSION", "DiffusionEMD", "near_cuts", "warn_of_graph"]

# Of the records of fitted models; `docs/atlas_format.md` describes them.
MODEL_SCHEMA, MODEL_VERSION = "heatmover-model", 1

# Parameters of a stored model, but for its graph and for where this computer keeps densities.
NOT_STORED = {"graph", "memory"}

DENSITIES = ("adjoint", "function")
COMPRESSIONS = ("regions", "centers")

# The paper as parameters: Eq. 6, Eq. 8, the top six scales ("60,000 features" of 10,000 points), all points.
PAPER: dict[str, Any] = {
    "density": "function",
    "norm": "increments",
    "n_scales": 6,
    "compress": False,
    "compress_by": "centers",
    "dtype": "float64",
    "weights": None,
}
# Algorithm 1 is exact but for its polynomial; 1e-10 is what float64 keeps up to 2^18 steps. The tolerance of Algorithm
# 4 comes from its threshold of rank, which the paper sets to 1e-6.
PAPER_ALGORITHMS: dict[str, dict[str, Any]] = {
    "chebyshev": {"method": "chebyshev", "tol": 1e-10},
    "interpolative": {"method": "interpolative", "compress": 1e-6, "tol": skeleton_tolerance(1e-6)},
}
WHY_PAPER = {
    "density": "which Eq. 6 says",
    "norm": "which Eq. 8 says",
    "n_scales": "the largest scales that its appendix uses",
    "compress_by": "the centers of its appendix",
    "dtype": "to compute it exactly",
    "weights": "the powers of two of Eq. 8",
    "method": "which the algorithm names",
    "tol": "to compute it exactly",
}


class DiffusionEMD(TransformerMixin, BaseEstimator):
    """Embed measures on a graph so that the L1 distance between rows is their Diffusion Earth Mover's Distance.

    Parameters
    ----------
    graph
        The graph the measures live on. None: the columns are bins in a row, ``Graph.from_grid((n_points,))``.
    method
        ``"chebyshev"``: polynomials with a certified error, near-linear in the size of the graph.
        ``"spectral"``, ``"interpolative"``: the coarse scales from leading eigenvectors, or from nested skeletons of
        points, and polynomials for the fine ones; as certified, and their cost does not grow with the largest scale.
        ``"exact"``: a dense eigendecomposition, for up to 10,000 points. ``"auto"`` chooses polynomials or
        eigenvectors by what they cost, or walks step by step where affinities are so uneven that nothing else keeps its
        digits; `method_reason_` tells.
    max_scale
        K: the coarsest diffusion time is ``2**K``. ``"auto"``: the first at which two points have half mixed. A number
        in (0, 1): the first at which the walk from every point, but for one in a thousand, is that close to the
        stationary law of its component in total variation (the paper's Lemma 1). `max_scale_reason_` and `decay_`
        explain it.
    n_scales
        Number of scales compared, counted from the coarsest. None: all that carry weight.
    alpha
        Balance between far and near: each finer scale weighs ``2**-alpha`` times the next coarser one. In the limit of
        infinitely many scales the ground distance grows as the geodesic to the power ``2 * alpha``, for alpha below
        1/2; with those of a fitted model the power depends on the distance and lies between 0 and 1 at every alpha.
    weights
        Of the blocks of the embedding, ``(n_scales,)``, the finest first: non-negative numbers in place of the powers
        of two that ``alpha`` gives. Each belongs to one diffusion time, so that ``max_scale`` has to be a whole number,
        and there are as many scales as weights. `heatmover.calibrate` finds those that give distances a unit. None: the
        powers of two.
    tol
        Largest error of any scale's density, in the norm that `error_bound_` states; less than float64 can keep is an
        error.
    compress
        Keep, at every scale, the masses in regions instead of the densities of all points: as many regions as the
        numerical rank of that scale's operator at this threshold in (0, 1), and at least 256 (512 at 1e-4). None: only
        if the full embedding would exceed 2 GiB, then 0.1, with an `EmbeddingWarning`. False: never.
    compress_by
        ``"regions"``: as above. ``"centers"``: the densities at as many points as the rank, those that an interpolative
        decomposition chooses, and at all points of scales whose rank is a tenth of the points or more (the paper's
        way). With ``method="interpolative"`` they are also what diffuses.
    density
        ``"adjoint"``: mass diffuses and is conserved. ``"function"``: the paper's literal ``P^t mu``.
    norm
        ``"levels"`` (default, measured best), ``"increments"`` (the paper's Eq. 8) or ``"coarsest"``; see
        `heatmover.embedding.definition`.
    normalize
        Divide rows by their sums. False: rows that do not sum to one are an error.
    dtype
        ``"float32"``, ``"float64"`` or ``"auto"``: float32 where its rounding takes at most half of ``tol``, which at
        the default ``tol`` is up to ``max_scale=13``.
    n_jobs
        Threads; None for all cores. The result does not depend on it.
    random_state
        Seed of the sample of points that ``max_scale="auto"`` looks at, of the basis of the coarse scales and of the
        regions.
    memory
        Folder or `joblib.Memory`, as of a scikit-learn pipeline, that keeps what does not depend on ``alpha``,
        ``norm``, ``n_scales`` and ``weights``: a search over these prepares and diffuses only once. Results are
        bit-identical with and without it. None: nothing is kept.

    Attributes
    ----------
    graph_ : Graph
        The graph used.
    method_, method_reason_ : str
        The way to diffuse and why.
    compress_ : float or None
        Threshold of rank if the embedding is compact.
    compress_reason_ : str
        Why it is, or is not.
    n_regions_ : ndarray
        ``(n_scales_,)``: number of columns of each block. In a full embedding every point is a region of its own; with
        ``compress_by="centers"`` the centers are.
    max_scale_ : int
        K.
    max_scale_reason_ : str
        Where K comes from, in words.
    decay_ : ndarray
        Mean total variation between the heat of two points at times 1, 2, 4, ...; empty if ``max_scale`` was given. If
        it is a number in (0, 1): the largest total variation from the stationary law among the points looked at.
    scales_ : ndarray
        ``(n_scales_,)``: the scales k compared; block b of the embedding belongs to ``scales_[b]``. The columns of a
        full block are the nodes of the graph in their own order, see `Graph.place`.
    n_scales_ : int
        Their number.
    error_bound_ : ndarray
        ``(n_scales_,)``: certified bound, rounding included, on the error of each density f, relative to its
        measure, in the norm
        ``sqrt(sum(f**2 / pi))`` with the stationary law pi (``sum(f**2 * pi)`` for ``density="function"``).
    n_features_in_ : int
        Number of points.
    prepared_ : heatmover.embedding.preparation.Preparation
        What `fit` has worked out and `transform` uses: the diffuser, the layout of the columns, the precision, the
        table. For code that diffuses measures itself.

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
        max_scale: float = 0.25,
        alpha: float = 0.49,
        compress: float | bool | None = None,
        normalize: bool = False,
        n_jobs: int | None = None,
        random_state: int | None = 0,
        **contradictions: object,
    ) -> Self:
        """Return an estimator whose parameters are those of the paper: its Eq. 6-8, Algorithm 1 or Algorithm 4.

        The densities are ``P^t mu``, their differences weigh ``2^(-(K-k-1) alpha)``, and the top six scales are kept:
        five differences and the coarsest density. The kernel is the graph's: `Graph.from_points` has the paper's Eq. 4.
        What heatmover does otherwise, and why, is told in "The paper and the defaults".

        Parameters
        ----------
        graph
            As in the constructor.
        algorithm
            ``"chebyshev"``: Algorithm 1, exact to a tolerance of 1e-10. ``"interpolative"``: Algorithm 4, on nested
            skeletons of ``R_delta(P^(2^k))`` points, at which alone densities are compared.
        max_scale
            K, or a number in (0, 1): Lemma 1's epsilon. The paper gives none; 1/4 is the convention for mixing times.
        alpha
            In (0, 1/2); the paper sets it "close to 1/2".
        compress
            The rank threshold delta. None: 1e-6 for Algorithm 4; all points for Algorithm 1, which otherwise is sampled
            at the same centers.
        normalize, n_jobs, random_state
            As in the constructor.
        **contradictions
            Any other parameter is refused with the reason.

        Returns
        -------
        DiffusionEMD
            Not fitted. What `set_params` changes afterwards is no longer the paper's.

        Examples
        --------
        >>> import heatmover as hm
        >>> data = hm.datasets.ring(8, points_per_measure=25)
        >>> graph = hm.Graph.from_points(data.points, n_neighbors=10)
        >>> model = hm.DiffusionEMD.from_paper(graph)
        >>> model.fit_transform(data.measures()).shape
        (8, 1200)
        >>> hm.DiffusionEMD.from_paper(graph, norm="levels")
        Traceback (most recent call last):
            ...
        heatmover.errors.InvalidInputError: Expected the paper's norm='increments', which Eq. 8 says, found norm='l...
        """
        check_option("algorithm", algorithm, tuple(PAPER_ALGORITHMS))
        parameters: dict[str, Any] = PAPER | PAPER_ALGORITHMS[algorithm]
        _refuse_contradictions(parameters, contradictions)
        if not check_number("alpha", alpha, above=0, at_most=1) < 0.5:
            raise InvalidInputError(
                f"{argument('alpha')} in (0, 1/2), as the paper's theory needs",
                f"{alpha!r}",
                "use DiffusionEMD(alpha=...)",
            )
        _refuse_words(max_scale)
        if compress is not None:
            if compress is False and algorithm == "interpolative":
                raise InvalidInputError(
                    f"a threshold {argument('compress')}, because Algorithm 4 compares densities at its centers only",
                    "compress=False",
                    "use algorithm='chebyshev' for all points",
                )
            if compress is not False:
                _check_share("compress", compress)
            parameters["compress"] = compress
        if algorithm == "interpolative":
            parameters["tol"] = skeleton_tolerance(parameters["compress"])
        parameters |= {"max_scale": max_scale, "alpha": alpha, "normalize": normalize}
        model = cls(graph, n_jobs=n_jobs, random_state=random_state, **parameters)
        model.check_parameters()
        return model

    def fit(self, X: Any = None, y: object = None) -> Self:  # noqa: ARG002
        """Normalise the graph, choose scales and method from the measures and prepare the embedding.

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
            Itself.
        """
        self.check_parameters()
        rows = self._rows_to_fit(X)
        asked = {field.name: getattr(self, field.name) for field in fields(ModelParameters)}
        if self.weights is not None:
            asked["weights"] = tuple(np.asarray(self.weights, dtype=np.float64).tolist())
        self.graph_ = Graph.from_grid((rows.shape[1],)) if self.graph is None else self.graph
        settings, n_threads = ModelParameters(**asked), check_threads(self.n_jobs)
        # Only a seed says which numbers are drawn; the diffusion of a generator cannot be kept.
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
        return self

    def distance(self, mu: Any, nu: Any) -> float:
        """Return the Diffusion Earth Mover's Distance between two measures.

        For more than a few pairs `transform` and `heatmover.pairwise_distances` are much faster.

        Parameters
        ----------
        mu, nu
            One measure each: ``(n_points,)``, or a matrix of one row ``(1, n_points)``, dense or sparse, or `Measures`
            of one measure.

        Returns
        -------
        float
            The L1 distance between their rows of `transform`.

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
        """Show what was prepared in the attributes of a fitted estimator."""
        self.prepared_ = prepared
        self.method_, self.method_reason_ = prepared.method, prepared.method_reason
        self.compress_, self.compress_reason_ = prepared.compression.delta, prepared.compression.reason
        choice, layout = prepared.choice, prepared.layout
        self.max_scale_, self.max_scale_reason_, self.decay_ = choice.max_scale, choice.reason, choice.decay
        self.scales_, self.n_scales_ = np.asarray(layout.scales), len(layout.scales)
        self.n_regions_ = np.diff(layout.edges)
        self.error_bound_ = prepared.diffuser.error_bound(layout.scales)

    if TYPE_CHECKING:  # scikit-learn's own has no types

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
            ``(n_measures, n_features)``; each row's bits do not depend on the other rows.
        """
        check_is_fitted(self)
        return self._embed(self.node_masses(X))

    def transform_blocks(self, X: Any, *, memory: int | float | str = "1 GiB") -> Iterator[FloatArray]:
        """Embed any number of measures, block after block, within a limit of memory.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``, or an iterable of such matrices, for instance a generator that reads
            them from disk.
        memory
            What a block of the embedding, its making, and the block before it, which a loop still holds, may take
            together, in bytes or as ``"2 GB"``. The prepared model itself (graph, basis or table) comes on top.

        Yields
        ------
        ndarray
            ``(n_rows, n_features)``, in order; put together they are ``transform`` of everything, to the bit.

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
            _refuse_other_shapes(np.asarray(X))
        return self._blocks(matrices, width)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the fitted model as a folder that `heatmover.load` reads, to the same bits.

        The folder is a zarr store without compression or pickles; every file of it is checked when it is read. It
        appears complete or not at all. "The format of an atlas" in the documentation describes it.

        Parameters
        ----------
        path
            Of the folder that is to be made.
        overwrite
            Replace a store of heatmover that is there; anything else is never replaced.

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
        """Read a model that `save` wrote, or raise if any bit of it has changed.

        Parameters
        ----------
        path
            Of the folder.
        """
        return cls.from_record(Record.from_store(Store.open(path, {MODEL_SCHEMA: MODEL_VERSION})))

    def to_record(self) -> Record:
        """Return the fitted model as a record that a store can hold."""
        check_is_fitted(self)
        if not (self.graph is None or self.graph is self.graph_):
            raise InvalidInputError(
                "a model whose graph is the one that it was fitted on", "another, set since", "fit it again"
            )
        if not isinstance(self.random_state, int | np.integer | None):
            raise InvalidInputError(
                f"a seed or None for {argument('random_state')} of a model to save",
                type(self.random_state).__name__,
                "set_params(random_state=0) changes nothing that was fitted",
            )
        parameters = {name: plain(value) for name, value in self.get_params().items() if name not in NOT_STORED}
        values = {"parameters": parameters, "own_grid": self.graph is None, "n_features_in": int(self.n_features_in_)}
        names = getattr(self, "feature_names_in_", None)
        parts = {"graph": self.graph_.to_record(), "prepared": self.prepared_.to_record()}
        return Record(values, parts=parts if names is None else {**parts, "feature_names": texts_record(list(names))})

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Return the fitted model of a record, or raise if it is none."""
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
        model.n_features_in_ = record.integer("n_features_in", minimum=1)
        if model.n_features_in_ != graph.n_points:
            raise InvalidInputError(f"a stored model of {counted(graph.n_points, 'point')}", f"{model.n_features_in_}")
        if "feature_names" in record.parts:
            names = record.texts("feature_names")
            if len(names) != graph.n_points:
                raise InvalidInputError(f"{counted(graph.n_points, 'stored name')} of points", f"{len(names)}")
            model.feature_names_in_ = np.array(names, dtype=object)
        model._take(Preparation.from_record(record.part("prepared"), graph.n_nodes))
        return model

    def apply_transpose(self, features: npt.ArrayLike) -> FloatArray:
        """Apply the transpose of `transform`: functions on points whose integrals are combinations of features.

        Parameters
        ----------
        features
            ``(n_rows, n_features)``.

        Returns
        -------
        ndarray
            ``(n_rows, n_points)``: its product with a measure is that of ``features`` with the measure's embedding.

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
        """Check measures and return their masses on the nodes of the graph, which is what `prepared_` embeds.

        Parameters
        ----------
        X
            Measures ``(n_measures, n_points)``.

        Returns
        -------
        ndarray or CSR array
            ``(n_measures, n_nodes)``: equal points are one node, and their masses add up.
        """
        check_is_fitted(self)
        return self._check_rows(X, reset=False)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """Return a name per column of the embedding, ``(n_features,)``: scale, then point or the region's center.

        Of equal points, which are one node, the first gives its name.

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
        regions = self.prepared_.layout.regions
        nodes = [input_features[point] for point in self.graph_.first]
        if regions is None:
            return np.array([f"scale{k}_{name}" for k in self.scales_ for name in nodes], dtype=object)
        names = [
            f"scale{k}_{'' if partition.are_points else 'around_'}{nodes[center]}"
            for k, partition in zip(self.scales_, regions, strict=True)
            for center in partition.centers
        ]
        return np.array(names, dtype=object)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the parameters and, once fitted, what was chosen and why."""
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
                # Whoever limits the memory has no use for densities that are kept.
                yield self.prepared_.embed(rows[start : start + width], n_threads=check_threads(self.n_jobs))

    def check_parameters(self) -> None:
        """Raise `InvalidInputError` for the first parameter that `fit` would refuse, without fitting.

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
                "graph to be a heatmover.Graph",
                f"{type(self.graph).__name__}",
                "use Graph.from_points for points, Graph.from_affinity for a matrix of affinities",
            )
        check_option("method", self.method, METHODS)
        check_option("density", self.density, DENSITIES)
        check_option("norm", self.norm, NORMS)
        check_option("compress_by", self.compress_by, COMPRESSIONS)
        check_option("dtype", self.dtype, ("auto", "float32", "float64"))
        # 1/2 is the limit of the theory; beyond it the sum is still a norm.
        check_number("alpha", self.alpha, above=0, at_most=1)
        check_number("tol", self.tol, above=0, at_most=0.5)
        if isinstance(self.max_scale, str):
            if self.max_scale != "auto":
                raise InvalidInputError(
                    "max_scale to be a whole number, a number in (0, 1) or 'auto'", repr(self.max_scale)
                )
        elif not _is_share(self.max_scale) and check_integer("max_scale", _whole(self.max_scale), minimum=0) > 30:
            raise InvalidInputError("max_scale of at most 30", f"{self.max_scale}", "2^30 steps mix any graph in reach")
        if self.n_scales is not None:
            check_integer("n_scales", self.n_scales, minimum=1)
        if self.weights is not None:
            _check_weights(self.weights, self.max_scale, self.n_scales)
        if not (self.compress is None or self.compress is False):
            _check_share("compress", self.compress)
        if not isinstance(self.normalize, bool | np.bool_):
            raise InvalidInputError("normalize to be True or False", repr(self.normalize))
        check_threads(self.n_jobs)
        check_random_state(self.random_state)
        if not (self.memory is None or isinstance(self.memory, str | os.PathLike) or hasattr(self.memory, "cache")):
            raise InvalidInputError("memory to be a folder, a joblib.Memory or None", repr(self.memory))

    def _check_rows(self, X: Any, *, reset: bool) -> Any:
        if isinstance(X, Measures):
            X = X.masses
        if isinstance(X, np.ma.MaskedArray | list | tuple):
            X = as_array("measures", X)
        if sp.issparse(X) and X.ndim != 2:
            _refuse_other_shapes(X.toarray())
        elif not hasattr(X, "shape") or len(X.shape) != 2:
            _refuse_other_shapes(np.asarray(X))
        elif X.shape[0] == 0:
            raise InvalidInputError("at least one measure", f"none (shape {X.shape})")
        rows = validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, copy=False
        )
        # What was fitted counts, not what set_params changed since.
        graph = self.graph if reset else self.graph_
        n_points = graph.n_points if graph is not None else None
        masses = check_measures(rows, n_points=n_points, normalize=self.normalize)
        return masses if graph is None else graph.gather(masses)

    def _rows_to_fit(self, X: Any) -> Any:
        if X is not None:
            return self._check_rows(X, reset=True)
        if self.graph is None:
            raise InvalidInputError("a graph or measures to fit", "neither", "pass graph= to the constructor")
        self.n_features_in_ = self.graph.n_points
        # Names from an earlier fit are not those of this one.
        self.__dict__.pop("feature_names_in_", None)
        return self.graph.gather(np.full((1, self.graph.n_points), 1 / self.graph.n_points))


def _kept(memory: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results a memory of joblib keeps, by its first argument, the key."""
    memory = os.fspath(memory) if isinstance(memory, os.PathLike) else memory
    _, *ignored = inspect.signature(function).parameters
    kept: Callable[..., Any] = check_joblib_memory(memory).cache(function, ignore=ignored)
    return kept


def _content(*values: Any) -> str:
    """Return a hash of values; of a sparse matrix its arrays, for it also remembers what was asked of it."""
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
    """Return what is prepared once for all weights, and what `near_cuts` says; ``key`` names it in a memory."""
    operator = DiffusionOperator.from_graph(graph)
    diffusion = prepare_diffusion(operator, rows, settings, n_measures=n_measures, rng=rng, n_threads=n_threads)
    return diffusion, near_cuts(graph, operator, rows, diffusion.choice.max_scale)


def _densities(key: str, diffuser: Diffuser, rows: Any, scales: range, n_threads: int) -> FloatArray:  # noqa: ARG001
    """Return the densities of all measures at all scales; ``key`` names them in a memory."""
    return diffused(diffuser, rows, scales, n_threads=n_threads)


def _refuse_contradictions(parameters: dict[str, Any], asked: dict[str, object]) -> None:
    """Raise for parameters of `DiffusionEMD` that `DiffusionEMD.from_paper` sets itself; equal values are welcome."""
    for name, value in asked.items():
        if name not in parameters:
            raise TypeError(f"DiffusionEMD.from_paper() got an unexpected keyword argument {name!r}")
        # An array is never one of the paper's values, and cannot be compared with one.
        if isinstance(value, np.ndarray) or value != parameters[name]:
            raise InvalidInputError(
                f"the paper's {argument(name, parameters[name])}, {WHY_PAPER[name]}",
                f"{argument(name, value)}",
                "leave it out; set_params changes it afterwards, and then it is not the paper's any more",
            )


def _check_weights(weights: npt.ArrayLike, max_scale: object, n_scales: int | None) -> None:
    """Raise unless these are weights of scales up to ``max_scale``; the other two have been checked."""
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
            f"a whole number {argument('max_scale')} with {argument('weights')}, each of which belongs to one time 2^k",
            f"{argument('max_scale', max_scale)}",
            "give the scale that the last weight belongs to",
        )
    if n_scales is not None and n_scales != values.size:
        raise InvalidInputError(
            f"as many {argument('weights')} as {argument('n_scales')}={n_scales}",
            f"{values.size}",
            f"leave {argument('n_scales')} out",
        )
    if values.size > int(max_scale) + 1:  # type: ignore[call-overload]
        raise InvalidInputError(
            f"at most {int(max_scale) + 1} {argument('weights')}, of the scales 0 to {max_scale}",  # type: ignore[call-overload]
            f"{values.size}",
            f"raise {argument('max_scale')} or drop the finest",
        )


def _refuse_words(max_scale: object) -> None:
    if isinstance(max_scale, str):
        raise InvalidInputError(
            f"{argument('max_scale')} to be a whole number K, or the epsilon in (0, 1) of the paper's Lemma 1",
            repr(max_scale),
            "use DiffusionEMD(...) for the scale at which two points have half mixed",
        )


def _whole(value: object) -> object:
    """Return 5 for 5.0: a grid of shares and scales has floats."""
    return int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else value


def _is_share(value: object) -> bool:
    return value is not True and isinstance(value, numbers.Real) and 0 < float(value) < 1


def _check_share(name: str, value: object) -> None:
    if not _is_share(value):
        raise InvalidInputError(
            f"{name} to be a threshold in (0, 1), None or False",
            repr(value),
            "0.1 is a good start; None decides by size",
        )


def _one_row(measure: Any) -> Any:
    """Return one measure as a matrix of one row, or raise if it is none or several."""
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
    largest = np.empty(operator.n_points)
    largest[operator.order] = operator.component == np.argmax(sizes)
    outside = 1 - float(np.mean(rows @ largest))
    warnings.warn(
        Sentence(
            f"Expected a connected graph, found {counted(operator.n_components, 'component')} "
            f"({counted(int((sizes == 1).sum()), 'isolated point')}) with {outside:.1%} of the measures' mass outside "
            f"the largest; mass never moves between them.{in_python(' See graph.diagnose().')}"
        ),
        GraphWarning,
        stacklevel=3,
    )


def _warn_of_alternation(operator: DiffusionOperator, rows: Any) -> None:
    if not operator.alternates.any():
        return
    where = np.empty(operator.n_points)
    where[operator.order] = operator.alternates[operator.component]
    share = float(np.mean(rows @ where))
    if share < NOTICEABLE:
        return
    warnings.warn(
        "Expected a walk that mixes, found a graph that is bipartite or nearly so where "
        f"{share:.1%} of the measures' mass lies. Heat alternates there between two halves, so distances are wrong: "
        "neighbors can look farther apart than points two steps away. Make the graph with "
        "Graph.from_affinity(graph.affinity, lazy=True), which adds self-loops.",
        GraphWarning,
        stacklevel=3,
    )


def warn_of_graph(message: str) -> None:
    """Warn of what `near_cuts` says, unless it says nothing."""
    if message:
        warnings.warn(message, GraphWarning, stacklevel=3)


def near_cuts(graph: Graph, operator: DiffusionOperator, rows: Any, max_scale: int) -> str:
    """Say whether parts of a component with a noticeable share of the measures' mass are nearly disconnected.

    Parameters
    ----------
    graph, operator
        The graph, and its operator in an order of its own.
    rows
        Measures ``(n_measures, n_nodes)``, dense or CSR.
    max_scale
        Heat is compared after at most ``2**max_scale`` steps.

    Returns
    -------
    str
        A sentence for `warn_of_graph`, or nothing.
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
    count, hangs = ("a part", "hangs") if len(parts) == 1 else (f"{len(parts)} parts", "hang")
    leaves, steps = largest.conductance * 2**max_scale, f"2^{max_scale} steps"
    meaning = (
        f", and at most {leaves:.1e} of its heat leaves in {steps}. Measures on different sides look about "
        "as far apart as if nothing joined them"
        if leaves < PASSES
        else f". Heat passes there only in diffusions as long as {steps}, at which all else has mixed"
    )
    return Sentence(
        f"Expected a graph that holds together, found {count} "
        f"({counted(sum(part.n_points for part in parts), 'point')}, "
        f"{shares[noticed].sum():.1%} of the measures' mass) that {hangs} on the rest by a thread: affinities of "
        f"{largest.affinity:.1e} in sum join the largest ({counted(largest.n_points, 'point')}){meaning}. Use more "
        "neighbours" + in_python(", kernel='adaptive' or a larger bandwidth; see graph.diagnose()") + "."
    )


def _warn_of_compression(prepared: Preparation) -> None:
    if prepared.compression.by_itself:
        warnings.warn(
            f"Expected an embedding of at most {LARGEST_EMBEDDING / 2**30:g} GiB, found that "
            f"{prepared.compression.reason}; it was made compact, {counted(prepared.layout.n_features, 'feature')} "
            f"(compress={prepared.compression.delta:g}). In Python, compress chooses "
            "otherwise, and compress=False keeps every point.",
            EmbeddingWarning,
            stacklevel=3,
        )


def _keep_names(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Give the rows of a DataFrame, which `set_output` has asked for, the names of the measures."""

    @wraps(transform)
    def named(self: DiffusionEMD, X: Any, *arguments: Any, **options: Any) -> Any:
        result = transform(self, X, *arguments, **options)
        if isinstance(X, Measures) and hasattr(result, "set_axis"):
            return result.set_axis(list(X.names), axis=0)
        return result

    return named


# scikit-learn wraps this method when the class is made, and knows no names but those of a DataFrame.
DiffusionEMD.transform = _keep_names(DiffusionEMD.transform)  # type: ignore[method-assign]
