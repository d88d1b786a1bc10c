"""Randomised mechanisms, drawn by OpenDP (extra ``privacy``): safe against floating-point attacks.

numpy's generators are never used for noise that protects somebody: the gaps between floating-point
numbers would tell the noise from the value (Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import MissingExtraError, ParameterError


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on every entry of an array.

    Parameters
    ----------
    sensitivity : float
        Largest sum of absolute changes over all entries when one record changes. It must follow
        from public bounds, never from the data.
    epsilon : float
        Price.

    Notes
    -----
    The scale is ``sensitivity / epsilon`` (Dwork, McSherry, Nissim and Smith 2006, proposition 1);
    OpenDP's own accounting of the scale is checked against `epsilon` when noise is drawn.
    """

    sensitivity: float
    epsilon: float
    name: str = "laplace"

    def __post_init__(self) -> None:
        for label, value in (("sensitivity", self.sensitivity), ("epsilon", self.epsilon)):
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ParameterError.of(label, "a positive finite number", value)

    @property
    def scale(self) -> float:
        """Scale of the noise."""
        return self.sensitivity / self.epsilon

    def release(self, values: FloatArray) -> FloatArray:
        """Return `values` with noise.

        Raises
        ------
        MissingExtraError
            OpenDP is not installed.
        """
        dp = _opendp()
        space = (
            dp.vector_domain(dp.atom_domain(T=float, nan=False)),
            dp.l1_distance(T=float),
        )
        measurement = dp.m.make_laplace(*space, scale=self.scale)
        if measurement.map(d_in=float(self.sensitivity)) > self.epsilon * (1 + 1e-9):
            raise ParameterError(
                f"noise of scale {self.scale:g} does not give epsilon {self.epsilon:g}"
            )
        flat = np.ravel(np.asarray(values, dtype=float))
        return np.asarray(measurement(flat.tolist()), dtype=float).reshape(np.shape(values))


def require_opendp() -> None:
    """Make sure that noise can be drawn, before anything is charged for it.

    Raises
    ------
    MissingExtraError
        OpenDP is not installed.
    """
    _opendp()


def _opendp() -> Any:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("privacy", "noise that protects records") from None
    dp.enable_features("contrib")
    return dp
