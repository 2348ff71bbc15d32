"""Whether rows come from one model: a fingerprint of what defines an embedding."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from heatmover.embedding.estimator import DiffusionEMD
from heatmover.errors import InvalidInputError

__all__ = ["fingerprint"]


def fingerprint(model: DiffusionEMD) -> str:
    """Return a text that two fitted models share if their embeddings have the same columns, and else do not.

    It covers the graph, the scales with their weights, the regions of a compact embedding, the density and the
    precision; not how the heat is computed, nor with how many threads.

    Examples
    --------
    >>> import heatmover as hm
    >>> grid = hm.Graph.from_grid((30,))
    >>> one, same, other = (hm.DiffusionEMD(grid, max_scale=k).fit() for k in (4, 4, 5))
    >>> fingerprint(one) == fingerprint(same), fingerprint(one) == fingerprint(other)
    (True, False)
    """
    if not isinstance(model, DiffusionEMD):
        raise InvalidInputError("a fitted DiffusionEMD as model", type(model).__name__)
    check_is_fitted(model)
    prepared, affinity = model.prepared_, model.graph_.node_affinity
    layout = prepared.layout
    words = [list(layout.scales), layout.n_points, layout.n_features, str(prepared.precision), bool(prepared.adjoint)]
    total = hashlib.sha256(json.dumps(words).encode())
    arrays: list[Any] = [affinity.data, affinity.indices, affinity.indptr, model.graph_.place, layout.matrix]
    for regions in layout.regions or ():
        arrays += [regions.labels, regions.centres]
    for array in arrays:
        total.update(b"none" if array is None else _plain(array))
    return total.hexdigest()


def _plain(array: Any) -> bytes:
    """Return an array as bytes that do not depend on the width of its integers."""
    values = np.asarray(array)
    plain = values.astype("<i8" if values.dtype.kind in "iu" else "<f8")
    return str(plain.shape).encode() + plain.tobytes()
