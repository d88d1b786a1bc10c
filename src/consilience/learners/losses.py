"""Losses by record: squared error for numbers, two proper losses for classes.

A prediction is an (n, q) array: one column in regression, one probability for each declared level
in classification, where the response is the position of its level.
"""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError

LOSSES = ("squared", "brier", "log")
_FLOOR = 0.005
"""Added to every probability under the log loss: a class that a small site never saw is unlikely,
not impossible."""


def record_losses(loss: str, y: FloatArray, prediction: FloatArray) -> FloatArray:
    """Loss of each record.

    Parameters
    ----------
    loss : {"squared", "brier", "log"}
    y : (n,) array
        Response, or positions of levels.
    prediction : (n, q) array

    Returns
    -------
    (n,) array

    Raises
    ------
    ParameterError
        Unknown loss.
    """
    if loss == "squared":
        with np.errstate(over="ignore", invalid="ignore"):  # wild models have infinite losses
            return np.asarray((y - prediction[:, 0]) ** 2)
    codes = np.asarray(y, dtype=np.int64)
    rows = np.arange(len(codes))
    if loss == "brier":
        # sum (p_k - 1[k = y])^2, without the indicator matrix.
        return np.asarray((prediction**2).sum(axis=1) - 2 * prediction[rows, codes] + 1)
    if loss == "log":
        q = prediction.shape[1]
        chance = (prediction[rows, codes] + _FLOOR) / (prediction.sum(axis=1) + q * _FLOOR)
        return np.asarray(-np.log(chance))
    raise ParameterError.of("loss", f"one of {', '.join(LOSSES)}", loss)


def constant_prediction(y: FloatArray, n_outputs: int) -> FloatArray:
    """Best constant prediction of all rows: the mean, or the shares of the levels, (n, q)."""
    if n_outputs == 1:
        return np.full((len(y), 1), y.mean())
    shares = np.bincount(np.asarray(y, dtype=np.int64), minlength=n_outputs) / len(y)
    return np.tile(shares, (len(y), 1))
