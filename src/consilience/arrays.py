"""Names for types of arrays, a test of numbers, and pyarrow, for all rooms."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TextArray = NDArray[np.str_]


class Library:
    """A library that is imported when something of it is first used: most runs need no pyarrow."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)  # a second time it is found without a look for the library
        return found


# pyarrow has no types, so nothing is lost by it.
pa: Any = Library("pyarrow")
pc: Any = Library("pyarrow.compute")
pq: Any = Library("pyarrow.parquet")
pat: Any = Library("pyarrow.types")
pa_csv: Any = Library("pyarrow.csv")


def all_finite(column: FloatArray) -> bool:
    """Whether no value of (n,) is missing or infinite."""
    with np.errstate(all="ignore"):
        # A sum of squares is quick, and finite only where all values are.
        return bool(np.isfinite(column @ column) or np.isfinite(column).all())
