"""Compiled loops of soft-impute: passes over a filled matrix.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use, and keep the result where there is a place to keep it."""
    dispatcher: Any = njit(nogil=True, fastmath={"contract", "reassoc"})(function)
    try:
        dispatcher._cache = FunctionCache(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        return dispatcher
    return dispatcher


@compiled
def weigh(x, seen, z, new, old):
    """Sums of one step from the fill ``z`` to the matrix ``new``, whose predecessor is ``old``.

    Returns the sums of ``(x - new)^2`` and of ``(x - new) x`` over the observed entries, of
    ``(z - new)^2`` and of ``(z - new) (new - old)`` over the others.
    """
    loss, cross, moved, turned = 0.0, 0.0, 0.0, 0.0
    for i in range(x.shape[0]):
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for j in range(x.shape[1]):
            w = seen[i, j]
            r = x[i, j] - w * new[i, j]
            e = (1.0 - w) * (z[i, j] - new[i, j])
            a += r * r
            b += r * x[i, j]
            c += e * e
            d += e * (new[i, j] - old[i, j])
        loss += a
        cross += b
        moved += c
        turned += d
    return loss, cross, moved, turned


@compiled
def fill(x, seen, new, old, beta, z):
    """Observed entries, and ``new + beta (new - old)`` for the others, into ``z``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            ahead = new[i, j] + beta * (new[i, j] - old[i, j])
            z[i, j] = x[i, j] + (1.0 - seen[i, j]) * ahead


@compiled
def residual(x, seen, new, r):
    """Observed entries less the matrix ``new``, zero for the others, into ``r``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            r[i, j] = x[i, j] - seen[i, j] * new[i, j]
