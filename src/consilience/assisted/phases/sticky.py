"""Noise that is drawn once for each row of a table, however often it is asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray


class Mechanism(Protocol):
    """A randomised mechanism with a stated price."""

    @property
    def name(self) -> str:
        """Name for the transcript."""

    @property
    def epsilon(self) -> float:
        """Price."""

    def release(self, values: FloatArray) -> FloatArray:
        """Return values with noise."""


class Kept:
    """A mechanism under which rows seen before get what they got then.

    Parameters
    ----------
    mechanism : Mechanism
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
        mechanism: Mechanism,
        rows: NDArray[np.int64],
        known: NDArray[np.int64],
        drawn: FloatArray,
    ) -> None:
        self.name, self.epsilon = mechanism.name, mechanism.epsilon
        self._mechanism, self._rows = mechanism, rows
        self.all_rows, self.all_drawn = known, drawn

    def release(self, values: FloatArray) -> FloatArray:
        """Values with noise, from earlier draws where there are any."""
        place = {int(row): i for i, row in enumerate(self.all_rows)}
        fresh = np.array([int(row) not in place for row in self._rows], dtype=bool)
        out = np.empty(np.shape(values))
        if fresh.any():
            out[fresh] = self._mechanism.release(values[fresh])
        out[~fresh] = self.all_drawn[[place[int(row)] for row in self._rows[~fresh]]]
        self.all_rows = np.concatenate([self.all_rows, self._rows[fresh]])
        self.all_drawn = np.concatenate([self.all_drawn, out[fresh]])
        return out
