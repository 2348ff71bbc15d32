"""Names for the arrays that are passed around."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Bool", "Float64", "FloatArray", "Int32", "Int64", "IntArray", "Intp"]

Bool: TypeAlias = npt.NDArray[np.bool_]
Float64: TypeAlias = npt.NDArray[np.float64]
# Single or double precision.
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Intp: TypeAlias = npt.NDArray[np.intp]
