"""Counts per sample and landmark, added up from pieces in any order."""

from __future__ import annotations

from typing import final

import numpy as np
import scipy.sparse as sp

from heatmover._typing import Int64

__all__ = ["Tally"]


@final
class Tally:
    """Adds sparse counts; holds each pair of sample and landmark at most about twice.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(np.array([0, 5]), np.array([1, 2]))
    >>> tally.add(np.array([5]), np.array([3]))
    >>> tally.matrix(2, 3).toarray()
    array([[1, 0, 0],
           [0, 0, 5]])
    """

    def __init__(self) -> None:
        self._keys, self._counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[Int64, Int64]] = []
        self._n_waiting = 0

    def add(self, keys: Int64, counts: Int64) -> None:
        """Add counts ``(n,)`` of keys, each sample * n_landmarks + landmark."""
        self._waiting.append((keys, counts))
        self._n_waiting += keys.size
        # Merged when as many have come as there are: each is then sorted a few times, not once per piece.
        if self._n_waiting >= self._keys.size:
            self._merge()

    def matrix(self, n_samples: int, n_landmarks: int) -> sp.csr_array:
        """Return the counts, int64 ``(n_samples, n_landmarks)``."""
        self._merge()
        rows, columns = np.divmod(self._keys, n_landmarks)
        offsets = np.searchsorted(rows, np.arange(n_samples + 1))
        return sp.csr_array((self._counts, columns, offsets), shape=(n_samples, n_landmarks))

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._keys, back = np.unique(keys, return_inverse=True)
        self._counts = np.zeros(self._keys.size, dtype=np.int64)
        np.add.at(self._counts, back, counts)
        self._waiting, self._n_waiting = [], 0
