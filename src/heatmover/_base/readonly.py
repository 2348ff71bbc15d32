"""Values whose arrays nobody writes to, also after they were pickled or copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReadOnlyArrays", "frozen_view"]


def frozen_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same array, read-only: a kernel that only reads it is then compiled once, not for either kind.

    Examples
    --------
    >>> frozen_view(np.zeros(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


class ReadOnlyArrays:
    """Base of frozen dataclasses: every array that is a field is read-only, in the value and in its copies.

    Examples
    --------
    >>> import pickle
    >>> import heatmover as hm
    >>> data = hm.datasets.cohort(4, cells_per_sample=20)
    >>> result = hm.compare(data.points, data.labels, n_neighbors=10)
    >>> pickle.loads(pickle.dumps(result)).distances.flags.writeable
    False
    """

    def __post_init__(self) -> None:
        for value in vars(self).values():
            # A sparse matrix is three arrays.
            parts = [value.data, value.indices, value.indptr] if hasattr(value, "indptr") else [value]
            for part in parts:
                if isinstance(part, np.ndarray):
                    part.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        ReadOnlyArrays.__post_init__(self)  # a pickle forgets that its arrays were read-only, and so does a deep copy
