"""Define the array types that annotations in all packages use."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bool: TypeAlias = npt.NDArray[np.bool_]
Float64: TypeAlias = npt.NDArray[np.float64]
# Single or double precision.
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Intp: TypeAlias = npt.NDArray[np.intp]
