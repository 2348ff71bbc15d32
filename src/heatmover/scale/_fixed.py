"""Sums that do not depend on their order: numbers as whole multiples of a small unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from heatmover._typing import FloatArray, Int64

__all__ = ["FixedPoint"]

# A sum must stay below 2^63; one bit is kept back.
BITS = 62


@final
@dataclass(frozen=True)
class FixedPoint:
    """Whole numbers for values up to a limit, so fine that a given number of them can be added in 64 bits.

    A sum of floats depends on the order in which chunks come back; a sum of whole numbers does not.

    Attributes
    ----------
    limit
        Larger values count as this one. It must come from what does not depend on chunks.
    n_terms
        Values that may be added.

    Examples
    --------
    >>> fixed = FixedPoint(limit=8.0, n_terms=1000)
    >>> fixed.decode(fixed.sum(np.array([0.5, 2.25, 100.0])))
    10.75
    """

    limit: float
    n_terms: int

    @property
    def unit(self) -> float:
        """The smallest difference told: a power of two, so that nothing is rounded twice."""
        largest = 2.0 ** (BITS - self.n_terms.bit_length())
        return float(2.0 ** np.ceil(np.log2((self.limit or 1.0) / largest)))

    def encode(self, values: FloatArray) -> Int64:
        """Return the values as multiples of the unit."""
        clipped = np.clip(values.astype(np.float64), -self.limit, self.limit)
        return np.rint(clipped / self.unit).astype(np.int64)

    def sum(self, values: FloatArray) -> int:
        """Return the sum as a multiple of the unit."""
        return int(self.encode(values).sum())

    def decode(self, total: Any) -> Any:
        """Return a sum, or an array of sums, as floats."""
        return total * self.unit
