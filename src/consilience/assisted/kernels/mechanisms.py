"""Randomised mechanisms, drawn by OpenDP (extra ``privacy``): safe against floating-point attacks.

numpy's generators are never used for noise that protects somebody: the gaps between floating-point
numbers would tell the noise from the value (Mironov 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, MissingExtraError, ParameterError


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
        dp = opendp()
        space = (dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float))
        # scale = sensitivity / epsilon
        measurement = dp.m.make_laplace(*space, scale=self.scale)
        if measurement.map(d_in=float(self.sensitivity)) > self.epsilon * (1 + 1e-9):
            raise ParameterError(
                f"noise of scale {self.scale:g} does not give epsilon {self.epsilon:g}"
            )
        flat = np.ravel(np.asarray(values, dtype=float))
        return np.asarray(measurement(flat.tolist()), dtype=float).reshape(np.shape(values))


def opendp(use: str = "noise that protects records") -> Any:
    """OpenDP, ready to draw noise; asked for before anything is charged.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtraError("privacy", use) from None
    dp.enable_features("contrib")
    return dp


@dataclass(frozen=True)
class RandomizedResponse:
    """Each 0/1 value is flipped with probability `flip`, independently of the others.

    A response is flipped once per record and the flipped value is kept: drawing again would spend
    the price again. Who fits a model to flipped values uses the link
    ``flip + (1 - 2 flip) expit(eta)`` (`consilience.assisted.kernels.glm`, ``mask=flip``).

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
        # flip = 1 / (1 + e^epsilon), the inverse of epsilon = log((1 - flip) / flip)
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
        dp = opendp("flipping a response")
        measurement = dp.m.make_randomized_response_bool(prob=1 - self.flip)
        if measurement.map(d_in=1) > self.epsilon * (1 + 1e-9):
            raise ParameterError(
                f"flips with probability {self.flip:g} do not give epsilon {self.epsilon:g}"
            )
        flat = [float(measurement(bool(value))) for value in np.ravel(values)]
        return np.asarray(flat, dtype=float).reshape(np.shape(values))


# --------------------------------------------------------------------------- noise that is kept


class Kept:
    """A mechanism under which rows seen before get what they got then.

    Parameters
    ----------
    mechanism : Laplace or RandomizedResponse
    rows : (n,) int array
        Rows of the table that are released now.
    known : (k,) int array
        Rows released before.
    drawn : (k, t) array
        What they got.

    Attributes
    ----------
    all_rows, all_drawn
        Everything drawn so far, this release included.

    Notes
    -----
    Each row is one person, and the price is that of one person's row: noise for rows that were
    never released costs nobody else anything (parallel composition).
    """

    def __init__(
        self,
        mechanism: Laplace | RandomizedResponse,
        rows: IntArray,
        known: IntArray,
        drawn: FloatArray,
    ) -> None:
        self.name, self.epsilon = mechanism.name, mechanism.epsilon
        self._mechanism, self._rows = mechanism, rows
        self.all_rows, self.all_drawn = known, drawn

    def release(self, values: FloatArray) -> FloatArray:
        """Values with noise, from earlier draws where there are any."""
        # the row of the table, not its place in this run: another run may have other rows
        place = {int(row): i for i, row in enumerate(self.all_rows)}
        fresh = np.array([int(row) not in place for row in self._rows], dtype=bool)
        out = np.empty(np.shape(values))
        if fresh.any():
            out[fresh] = self._mechanism.release(values[fresh])
        out[~fresh] = self.all_drawn[[place[int(row)] for row in self._rows[~fresh]]]
        self.all_rows = np.concatenate([self.all_rows, self._rows[fresh]])
        self.all_drawn = np.concatenate([self.all_drawn, out[fresh]])
        return out
