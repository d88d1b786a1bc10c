"""Faster ways to a point that a map leaves where it is."""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray

_DEPTH = 5  # differences that a step looks back to
_PLAIN = 3  # steps before the first mixed one
_RCOND = 1e-10


class AndersonMixing:
    """Next points of a fixed-point iteration from the last few (Anderson 1965).

    The step is the map's own, corrected by the combination of earlier differences that comes
    nearest to the residual. Where a residual has grown, what came before is forgotten, and the
    next step is the map's own.
    """

    def __init__(self) -> None:
        self._points: list[FloatArray] = []
        self._residuals: list[FloatArray] = []
        self._last = np.inf
        self._steps = 0

    def next(self, point: FloatArray, image: FloatArray) -> FloatArray:
        """Where to evaluate the map next.

        Parameters
        ----------
        point : (q,) array
            Where it was evaluated.
        image : (q,) array
            What it gave there.
        """
        residual = image - point
        size = float(np.linalg.norm(residual))
        self._steps += 1
        if self._steps <= _PLAIN:
            return image
        if size > self._last:
            self._points, self._residuals = [], []
        self._last = size
        self._points = [*self._points[-_DEPTH:], point]
        self._residuals = [*self._residuals[-_DEPTH:], residual]
        if len(self._points) < 2:
            return image
        steps = np.diff(np.array(self._points), axis=0).T
        changes = np.diff(np.array(self._residuals), axis=0).T
        weights = np.linalg.lstsq(changes, residual, rcond=_RCOND)[0]
        return np.asarray(image - (steps + changes) @ weights)
