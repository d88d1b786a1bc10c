"""Names for types of arrays, and a test of numbers, for all rooms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TextArray = NDArray[np.str_]


def all_finite(column: FloatArray) -> bool:
    """Whether no value of (n,) is missing or infinite."""
    with np.errstate(all="ignore"):
        # A sum of squares is quick, and finite only where all values are.
        return bool(np.isfinite(column @ column) or np.isfinite(column).all())
