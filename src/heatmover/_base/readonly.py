"""Make the arrays of frozen values read-only, also in pickles and copies; base class for any package."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def frozen_view(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view of an array, so that numba does not compile a kernel again for writable arrays.

    Examples
    --------
    >>> frozen_view(np.zeros(2)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


class ReadOnlyArrays:
    """Base class of frozen dataclasses whose arrays are read-only, also in copies and pickles.

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
            # A sparse matrix consists of three arrays.
            parts = [value.data, value.indices, value.indptr] if hasattr(value, "indptr") else [value]
            for part in parts:
                if isinstance(part, np.ndarray):
                    part.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        ReadOnlyArrays.__post_init__(self)  # arrays from a pickle or a deep copy are writable again
