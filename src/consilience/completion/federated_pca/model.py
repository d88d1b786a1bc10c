"""The model as it travels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import ProtocolError
from consilience.numerics.ppca import PPCAModel

# With these every number of a posterior is one, also of a row of 1e100, the largest that is read.
_LARGEST = 1e100
_VARIANCES = (1e-60, 1e100)
SPREADS = (1e-25, 1e45)
"""Largest standard deviations of a column with which a model can be used.

The noise variance is at least 1e-10 of the largest eigenvalue.
"""
_UNUSABLE = "the model cannot be used"


def arrays_of(model: PPCAModel, columns: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Arrays of a model over some of the columns."""
    return {
        "mean": model.mean,
        "directions": model.directions,
        "variances": model.variances,
        "noise": np.array([model.noise]),
        "columns": np.asarray(columns, dtype=np.int64),
    }


def model_of(arrays: Any, p: int) -> tuple[PPCAModel, NDArray[np.int64]]:
    """Model and its columns from what came; nothing is said of the site's rows if it is none.

    Parameters
    ----------
    arrays : mapping of str to array
    p : int
        Columns of the study.

    Raises
    ------
    ProtocolError
    """
    try:
        parts = {k: np.asarray(arrays[k]) for k in ("mean", "directions", "variances", "noise")}
        columns = np.asarray(arrays["columns"], dtype=np.int64)
        parts = {name: part.astype(np.float64) for name, part in parts.items()}
    except (LookupError, TypeError, ValueError):
        raise ProtocolError(_UNUSABLE, public=_UNUSABLE) from None
    m, k = len(columns), len(np.atleast_1d(parts["variances"]))
    shapes = {"mean": (m,), "directions": (m, k), "variances": (k,), "noise": (1,)}
    fits = columns.ndim == 1 and all(parts[name].shape == shape for name, shape in shapes.items())
    fits = fits and m > 0 and bool((np.diff(columns) > 0).all())
    fits = fits and bool(columns[0] >= 0) and bool(columns[-1] < p)
    if not fits or not _within_reason(parts):
        raise ProtocolError(_UNUSABLE, public=_UNUSABLE)
    noise = float(parts["noise"][0])
    return PPCAModel(parts["mean"], parts["directions"], parts["variances"], noise), columns


def _within_reason(parts: dict[str, NDArray[np.float64]]) -> bool:
    """Numbers with which the posterior of every row is a number, whatever the row holds."""
    noise, variances, v = float(parts["noise"][0]), parts["variances"], parts["directions"]
    least, most = _VARIANCES
    if not all((np.abs(part) <= _LARGEST).all() for part in parts.values()):
        return False
    if not (least <= noise <= most and (variances >= 0).all() and (variances <= most).all()):
        return False
    if not (variances <= 1e15 * noise).all():
        return False
    return bool(np.allclose(v.T @ v, np.eye(v.shape[1]), atol=1e-6))
