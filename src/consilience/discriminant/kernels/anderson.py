"""Acceleration of fixed-point iterations."""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray

MEMORY = 6
"""Differences that are kept."""


class Anderson:
    """Anderson's acceleration, type II, of a fixed-point iteration (Walker and Ni 2011, SINUM).

    Parameters
    ----------
    size : int
        Numbers of the state.
    """

    def __init__(self, size: int) -> None:
        self._residuals, self._values = np.empty((MEMORY, size)), np.empty((MEMORY, size))
        self._products = np.zeros((MEMORY, MEMORY))
        self._last: tuple[FloatArray, FloatArray] | None = None
        self._n = 0

    def next(self, residual: FloatArray, value: FloatArray) -> FloatArray:
        """The next state from ``value = F(state)`` and ``residual = value - state``."""
        from scipy.linalg.lapack import dposv

        last, self._last = self._last, (residual.copy(), value.copy())
        if last is None:
            return value.copy()
        place = self._n % MEMORY
        np.subtract(residual, last[0], out=self._residuals[place])
        np.subtract(value, last[1], out=self._values[place])
        self._n += 1
        u = min(self._n, MEMORY)
        differences = self._residuals[:u]
        self._products[place, :u] = self._products[:u, place] = differences @ differences[place]
        products = self._products[:u, :u].copy()
        # A little of a ridge: differences become alike near the end.
        products.flat[:: u + 1] += 1e-10 * products.trace()
        _, weights, info = dposv(products, differences @ residual)
        return value.copy() if info else np.asarray(value - weights @ self._values[:u])
