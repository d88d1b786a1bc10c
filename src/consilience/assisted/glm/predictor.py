"""What each party keeps of a joint fit, so that new people can be predicted together later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import DataError


@dataclass(frozen=True, eq=False)
class AssistedPredictor:
    """One party's part of a joint GLM.

    Attributes
    ----------
    role : {"initiator", "partner"}
    names : tuple of str
        Columns of the party.
    coef : (p,) array
        Their coefficients, in the table's units.
    centre : (p,) array
        Means over the matched rows: a partner's part is that of its columns less these.
    intercept : float
        Of the initiator; 0 at a partner.
    directions : (p, k) array
        Of a partner: combinations of its columns that the initiator knows.
    settings : str
        Of the run, as JSON.
    weights : dict of partner to array
        Of the initiator: weights of each partner's directions.
    covariance : (d, d) array
        Of the initiator: of intercept, own coefficients, weights; empty where it is not known.
    """

    role: str
    names: tuple[str, ...]
    coef: FloatArray
    centre: FloatArray
    intercept: float
    directions: FloatArray
    settings: str
    weights: dict[str, FloatArray]
    covariance: FloatArray

    def part(self, x: Any) -> FloatArray:
        """Return this party's part of the linear predictor of rows (n, p), in the table's units.

        Raises
        ------
        DataError
            The rows have another number of columns.
        """
        x = np.asarray(x, dtype=float)
        if x.ndim != 2 or x.shape[1] != len(self.names):
            raise DataError(f"the predictor knows {len(self.names)} columns: give it these")
        centre = self.centre if self.role == "partner" else 0.0
        return np.asarray(self.intercept + (x - centre) @ self.coef)

    def to_arrays(self) -> dict[str, Any]:
        """Plain form."""
        return {**self.__dict__, "names": tuple(self.names), "weights": dict(self.weights)}

    @classmethod
    def from_arrays(cls, stored: dict[str, Any]) -> AssistedPredictor:
        """Read it back."""
        return cls(**{**stored, "names": tuple(stored["names"])})
