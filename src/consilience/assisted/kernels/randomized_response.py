"""Randomised response on 0/1 values, drawn by OpenDP (extra ``privacy``).

A response is flipped once per record and the flipped value is kept: drawing again would spend the
price again. Who fits a model to flipped values uses the link
``flip + (1 - 2 flip) expit(eta)`` (`consilience.assisted.kernels.glm`, ``mask=flip``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import DataError, MissingExtraError, ParameterError


@dataclass(frozen=True)
class RandomizedResponse:
    """Each 0/1 value is flipped with probability `flip`, independently of the others.

    Parameters
    ----------
    flip : float
        Probability of a flip, at least 1e-6 (below that it protects nobody) and below 1/2.

    Notes
    -----
    Either value is reported with probability ``1 - flip`` if it is the true one and ``flip`` if it
    is not, so the price of one record's response is ``log((1 - flip) / flip)`` (Warner 1965);
    OpenDP's own accounting is checked against it when values are flipped.
    """

    flip: float
    name: str = "randomized-response"

    def __post_init__(self) -> None:
        if not (isinstance(self.flip, int | float) and 1e-6 <= self.flip < 0.5):
            raise ParameterError.of("flip", "at least 1e-6 and below 0.5", self.flip)

    @classmethod
    def of_epsilon(cls, epsilon: float) -> RandomizedResponse:
        """Make the mechanism of a stated price.

        Parameters
        ----------
        epsilon : float
            Price, above 0 and at most 13.

        Raises
        ------
        ParameterError
            `epsilon` is outside its range.
        """
        if not (isinstance(epsilon, int | float) and 0 < epsilon <= 13):
            raise ParameterError.of("epsilon", "above 0 and at most 13", epsilon)
        return cls(math.exp(-epsilon) / (1 + math.exp(-epsilon)))

    @property
    def epsilon(self) -> float:
        """Price of one record's response."""
        return math.log((1 - self.flip) / self.flip)

    def release(self, values: FloatArray) -> FloatArray:
        """Return `values` with each one flipped or not.

        Raises
        ------
        DataError
            Something other than 0 and 1 is among the values.
        MissingExtraError
            OpenDP is not installed.
        """
        values = np.asarray(values, dtype=float)
        if not np.all((values == 0) | (values == 1)):
            raise DataError("only a response of 0 and 1 can be flipped; code it so")
        dp = _opendp()
        measurement = dp.m.make_randomized_response_bool(prob=1 - self.flip)
        if measurement.map(d_in=1) > self.epsilon * (1 + 1e-9):
            raise ParameterError(
                f"flips with probability {self.flip:g} do not give epsilon {self.epsilon:g}"
            )
        flat = [float(measurement(bool(value))) for value in np.ravel(values)]
        return np.asarray(flat, dtype=float).reshape(np.shape(values))


def _opendp() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("privacy", "flipping a response") from None
    dp.enable_features("contrib")
    return dp
