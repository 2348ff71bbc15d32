"""A kernel for support vector machines and Gaussian processes from the distances between measures."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from heatmover._base.types import Float64, FloatArray
from heatmover._base.validation import check_number, check_threads
from heatmover.embedding.distances import l1_distances
from heatmover.errors import InvalidInputError, argument

__all__ = ["LaplacianKernel"]


class LaplacianKernel(TransformerMixin, BaseEstimator):
    """Similarities ``exp(-(D / scale)**power)`` of measures from the distances D between rows of an embedding.

    The kernel is positive semidefinite for every ``scale`` and every power in (0, 1], whatever model embedded the
    measures: distances are sums of absolute differences of features, these are of negative type, so are their powers up
    to one, and the exponential of what is of negative type is positive semidefinite (Schoenberg 1938). This holds for
    all values of ``alpha``, ``norm``, ``weights``, ``compress`` and ``density``, because each only changes the
    features. It does not hold for a power of two: squares of such distances are not of negative type in general.

    Parameters
    ----------
    scale
        Distance at which similarity has fallen to 1/e. ``"median"``: the median distance between the measures that are
        fitted.
    power
        In (0, 1]. 1 is the Laplacian kernel.
    n_jobs
        Threads; None for all cores. The result does not depend on it.

    Attributes
    ----------
    scale_ : float
        The scale used.
    embedding_ : ndarray
        ``(n_measures, n_features)``: the rows that others are compared with.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> import heatmover as hm
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> data = hm.datasets.ring(12, points_per_measure=25)
    >>> graph = hm.Graph.from_points(data.points)
    >>> sides = np.arange(12) < 6
    >>> machine = make_pipeline(hm.DiffusionEMD(graph), hm.LaplacianKernel(), SVC(kernel="precomputed"))
    >>> machine.fit(data.measures(), sides).predict(data.measures()).shape
    (12,)

    With a number as scale it is a function of two embeddings, as ``SVC(kernel=...)`` takes one:

    >>> embedding = hm.DiffusionEMD(graph).fit_transform(data.measures())
    >>> SVC(kernel=hm.LaplacianKernel(scale=0.5)).fit(embedding, sides).predict(embedding).shape
    (12,)
    """

    def __init__(
        self, scale: float | Literal["median"] = "median", *, power: float = 1.0, n_jobs: int | None = None
    ) -> None:
        self.scale = scale
        self.power = power
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: object = None) -> Self:  # noqa: ARG002
        """Keep the embedding that others are compared with, and choose the scale.

        Parameters
        ----------
        X
            Embedding ``(n_measures, n_features)``, of `DiffusionEMD`.
        y
            Ignored.

        Returns
        -------
        LaplacianKernel
            Itself.
        """
        self._check_parameters()
        rows = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        self.scale_ = self._choose_scale(rows)
        self.embedding_ = rows
        return self

    def transform(self, X: Any) -> Float64:
        """Return the similarities of measures with those that were fitted.

        Parameters
        ----------
        X
            Embedding ``(n_others, n_features)``, by the same model.

        Returns
        -------
        ndarray
            ``(n_others, n_measures)``, between 0 and 1; 1 for equal rows. Of the fitted rows themselves it is
            symmetric.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")
        return self._similarities(rows, self.embedding_, self.scale_)

    def __call__(self, X: FloatArray, Y: FloatArray | None = None) -> Float64:
        """Return the similarities between the rows of two embeddings; the scale has to be a number, or fitted."""
        self._check_parameters()
        scale = getattr(self, "scale_", None) if isinstance(self.scale, str) else float(self.scale)
        if scale is None:
            raise InvalidInputError(
                f"a number as {argument('scale')} of a kernel that is called",
                repr(self.scale),
                "new measures would get another scale than those it was trained on: use fit and transform, with "
                "SVC(kernel='precomputed')",
            )
        return self._similarities(np.asarray(X), np.asarray(X if Y is None else Y), scale)

    def get_feature_names_out(self, input_features: Any = None) -> Any:  # noqa: ARG002
        """Return a name per column, ``(n_measures,)``: similarity with the first, the second, ... fitted measure."""
        check_is_fitted(self)
        return np.array([f"similarity{i}" for i in range(len(self.embedding_))], dtype=object)

    def _check_parameters(self) -> None:
        check_number("power", self.power, above=0)
        if self.power > 1:
            raise InvalidInputError(
                f"{argument('power')} in (0, 1], for which the kernel is positive semidefinite",
                repr(self.power),
                "squares of sums of absolute differences are not of negative type",
            )
        if isinstance(self.scale, str):
            if self.scale != "median":
                raise InvalidInputError(f"{argument('scale')} to be a positive number or 'median'", repr(self.scale))
        else:
            check_number("scale", self.scale, above=0)
        check_threads(self.n_jobs)

    def _choose_scale(self, rows: FloatArray) -> float:
        if not isinstance(self.scale, str):
            return float(self.scale)
        distances = l1_distances(rows, n_jobs=self.n_jobs)
        pairs = distances[np.triu_indices(len(rows), 1)]
        different = pairs[pairs > 0]
        # Of many equal measures the median may be zero; of equal measures alone any scale will do.
        median = float(np.median(pairs)) if pairs.size else 0.0
        return median or (float(np.median(different)) if different.size else 1.0)

    def _similarities(self, rows: FloatArray, others: FloatArray, scale: float) -> Float64:
        relative = np.asarray(l1_distances(rows, others, n_jobs=self.n_jobs), dtype=np.float64) / scale
        return np.exp(-relative if self.power == 1 else -(relative**self.power))
