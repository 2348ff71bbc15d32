"""Values whose arrays nobody writes to, also after they were pickled or copied."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ReadOnlyArrays"]


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
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        ReadOnlyArrays.__post_init__(self)  # a pickle forgets that its arrays were read-only, and so does a deep copy
