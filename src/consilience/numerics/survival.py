"""Columns of times that people were watched, and of whether an event ended them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.exceptions import DataError


def times_of(values: ArrayLike) -> FloatArray:
    """Times, (n,), in the unit that the study has.

    Raises
    ------
    DataError
        Some are not above 0, or no finite numbers.
    """
    times = np.asarray(values, dtype=float)
    if not (np.isfinite(times) & (times > 0)).all():
        sentence = "times until an event, or until somebody was last seen, must be above 0"
        raise DataError(sentence, public=sentence)
    return times
