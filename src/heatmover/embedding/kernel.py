"""Turn L1 distances between embedded measures into a kernel for SVMs and Gaussian processes, for users; arrays only."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from heatmover._base.types import Float64, FloatArray
from heatmover._base.validation import check_number, check_threads
from heatmover.embedding.distances import l1_distances
from heatmover.errors import InvalidInputError, argument


class LaplacianKernel(TransformerMixin, BaseEstimator):
    """Kernel ``exp(-(D / scale)**power)`` of the L1 distances D between rows of an embedding.

    The kernel is positive semidefinite for every ``scale``, every power in (0, 1] and every model. The reason is that
    L1 distances and their powers in (0, 1] are of negative type, so the exponential is positive semidefinite
    (Schoenberg 1938). The parameters ``alpha``, ``norm``, ``weights``, ``compress`` and ``density`` of the model only
    change the features, so the kernel stays positive semidefinite. The power 2 is not allowed: squared L1 distances are
    not of negative type in general.

    Parameters
    ----------
    scale
        Distance at which the similarity is 1/e. ``"median"``: the median distance between the fitted measures.
    power
        Exponent in (0, 1]. 1 is the Laplacian kernel.
    n_jobs
        Number of threads; None for all cores. The result does not depend on this number.

    Attributes
    ----------
    scale_ : float
        Distance at which the similarity is 1/e.
    embedding_ : ndarray
        ``(n_measures, n_features)``: embedding of the fitted measures.
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

    With a number as ``scale``, the kernel can be called on two embeddings, as ``SVC(kernel=...)`` does:

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
        """Store the embedding of the fitted measures and choose the scale.

        Parameters
        ----------
        X
            Embedding of the measures by `DiffusionEMD`, ``(n_measures, n_features)``.
        y
            Ignored.

        Returns
        -------
        LaplacianKernel
            The fitted kernel itself.
        """
        self._check_parameters()
        rows = validate_data(self, X, dtype=[np.float64, np.float32], order="C")
        if isinstance(self.scale, str):
            pairs = l1_distances(rows, n_jobs=self.n_jobs)[np.triu_indices(len(rows), 1)]
            different = pairs[pairs > 0]
            # The median may be zero if many measures are equal; if all are equal, any scale works.
            median = float(np.median(pairs)) if pairs.size else 0.0
            self.scale_ = median or (float(np.median(different)) if different.size else 1.0)
        else:
            self.scale_ = float(self.scale)
        self.embedding_ = rows
        return self

    def transform(self, X: Any) -> Float64:
        """Return the similarities between measures and the fitted measures.

        Parameters
        ----------
        X
            Embedding of the measures by the same model, ``(n_others, n_features)``.

        Returns
        -------
        ndarray
            Similarities from 0 to 1, ``(n_others, n_measures)``; 1 for equal rows. The matrix is symmetric if X is the
            fitted embedding.
        """
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=[np.float64, np.float32], order="C")
        return self._similarities(rows, self.embedding_, self.scale_)

    def __call__(self, X: FloatArray, Y: FloatArray | None = None) -> Float64:
        """Return the similarities between the rows of two embeddings; before `fit`, ``scale`` must be a number."""
        self._check_parameters()
        scale = getattr(self, "scale_", None) if isinstance(self.scale, str) else float(self.scale)
        if scale is None:
            raise InvalidInputError(
                f"a number as {argument('scale')} when the kernel is called directly",
                repr(self.scale),
                "new measures would get a different scale than the training measures: use fit and transform, with "
                "SVC(kernel='precomputed')",
            )
        return self._similarities(np.asarray(X), np.asarray(X if Y is None else Y), scale)

    def get_feature_names_out(self, input_features: Any = None) -> Any:  # noqa: ARG002
        """Return the column names, ``(n_measures,)``: ``similarity0`` for the first fitted measure, and so on."""
        check_is_fitted(self)
        return np.array([f"similarity{i}" for i in range(len(self.embedding_))], dtype=object)

    def _check_parameters(self) -> None:
        check_number("power", self.power, above=0)
        if self.power > 1:
            raise InvalidInputError(
                f"{argument('power')} in (0, 1], for which the kernel is positive semidefinite",
                repr(self.power),
                "squared L1 distances are not of negative type",
            )
        if isinstance(self.scale, str):
            if self.scale != "median":
                raise InvalidInputError(f"{argument('scale')} to be a positive number or 'median'", repr(self.scale))
        else:
            check_number("scale", self.scale, above=0)
        check_threads(self.n_jobs)

    def _similarities(self, rows: FloatArray, others: FloatArray, scale: float) -> Float64:
        relative = np.asarray(l1_distances(rows, others, n_jobs=self.n_jobs), dtype=np.float64) / scale
        return np.exp(-relative if self.power == 1 else -(relative**self.power))
