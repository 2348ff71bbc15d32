"""Squared distances by matrix products: fast, but small ones lose digits; how many is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from heatmover._typing import Float64, FloatArray

__all__ = ["true_squares"]


def true_squares(
    estimates: FloatArray, norms: Float64, n_dimensions: int, precision: type[np.floating[Any]]
) -> tuple[Float64, Float64]:
    """Return the least and the largest square of a distance that an estimate by products may stand for.

    The estimate ``|a|^2 - 2 a.b + |b|^2`` of a true square d^2 is off by at most g (|a| + |b|)^2, that is by
    g (8 |a|^2 + 2 d^2), with g the rounding of a sum of ``n_dimensions`` terms.

    Parameters
    ----------
    estimates, norms
        ``(n,)`` each: the estimates, and |a|^2.
    n_dimensions, precision
        Terms of the products, and the type in which they were computed.

    Examples
    --------
    >>> least, largest = true_squares(np.array([0.5]), np.array([1.0]), 3, np.float32)
    >>> bool(least[0] < 0.5 < largest[0])
    True
    """
    rounding = (n_dimensions + 8) * float(np.finfo(precision).eps)
    margin = 8 * rounding * norms + float(np.finfo(precision).tiny)
    return (estimates - margin) / (1 + 2 * rounding), (estimates + margin) / (1 - 2 * rounding)
