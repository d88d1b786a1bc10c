"""Compiled loops of soft-impute: passes over a filled matrix, ridge regressions of rows.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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


@compiled
def ridge_rows(indptr, columns, values, b, alpha, a):
    """Ridge regression of each row's entries on rows of ``b``, into ``a``.

    Row i of ``a`` is ``(B_O' B_O + alpha I)^-1 B_O' x_O``; a row without entries is zero.
    """
    k = b.shape[1]
    g = np.empty((k, k))
    t = np.empty(k)
    for i in range(a.shape[0]):
        first, last = indptr[i], indptr[i + 1]
        g[:] = 0.0
        t[:] = 0.0
        for e in range(first, last):
            row = b[columns[e]]
            x = values[e]
            for h in range(k):
                w = row[h]
                t[h] += x * w
                for m in range(h + 1):
                    g[h, m] += w * row[m]
        if last > first:
            for h in range(k):
                g[h, h] += alpha
            _cholesky_solve(g, t)
        a[i] = t


@compiled
def _cholesky_solve(g, t):
    """Solve ``g t = t`` in place; ``g`` is positive definite, its lower triangle is used up."""
    k = t.size
    for h in range(k):
        row = g[h]
        for m in range(h):
            s = row[m]
            other = g[m]
            for q in range(m):
                s -= row[q] * other[q]
            row[m] = s / other[m]
        s = row[h]
        for q in range(h):
            s -= row[q] * row[q]
        row[h] = np.sqrt(s)
    for h in range(k):
        s = t[h]
        for q in range(h):
            s -= g[h, q] * t[q]
        t[h] = s / g[h, h]
    for h in range(k - 1, -1, -1):
        t[h] /= g[h, h]
        w = t[h]
        for q in range(h):
            t[q] -= w * g[h, q]


@compiled
def residuals(rows, columns, values, a, b, r):
    """Entries less those of ``a b'`` into ``r``; returns the sums of ``r^2`` and ``r x``."""
    loss, cross = 0.0, 0.0
    for e in range(values.size):
        x = a[rows[e]]
        y = b[columns[e]]
        s = values[e]
        for h in range(x.size):
            s -= x[h] * y[h]
        r[e] = s
        loss += s * s
        cross += s * values[e]
    return loss, cross
