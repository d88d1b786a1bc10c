"""Compiled loops of soft-impute: passes over a filled matrix, ridge regressions of rows.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

_LANES = 16  # systems that are solved at once
_BLOCK = 64  # entries that are gathered at once; small enough for one thread of any BLAS


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

    Row i of ``a`` is ``(B_O' B_O + alpha I)^-1 B_O' x_O``; a row without entries is zero. Systems
    are solved sixteen at once, so that their loops are long.
    """
    n, k = a.shape
    seen = np.empty((_BLOCK, k))
    gram = np.empty((k, k))
    right = np.empty(k)
    g = np.empty((k, k, _LANES))
    t = np.empty((k, _LANES))
    s = np.empty(_LANES)
    for start in range(0, n, _LANES):
        for lane in range(_LANES):  # lanes behind the last row solve an empty system
            gram[:] = 0.0
            right[:] = 0.0
            first = indptr[min(start + lane, n)]
            end = indptr[min(start + lane + 1, n)]
            ridge = alpha if first < end else 1.0
            while first < end:
                m = min(_BLOCK, end - first)
                for e in range(m):
                    c = columns[first + e]
                    for h in range(k):
                        seen[e, h] = b[c, h]
                gram += np.dot(seen[:m].T, seen[:m])
                right += np.dot(values[first : first + m], seen[:m])
                first += m
            for h in range(k):
                for q in range(h + 1):
                    g[h, q, lane] = gram[h, q]
                g[h, h, lane] += ridge
                t[h, lane] = right[h]
        _solve_lanes(g, t, s)
        for lane in range(min(_LANES, n - start)):
            for h in range(k):
                a[start + lane, h] = t[h, lane]


@compiled
def _solve_lanes(g, t, s):
    """Solve ``g[:, :, l] x = t[:, l]`` for each l in place, by Cholesky's factor.

    The lower triangles of ``g`` are used up; their diagonals then hold reciprocals. ``s`` is room.
    """
    k, lanes = t.shape
    for h in range(k):
        for m in range(h + 1):
            for x in range(lanes):
                s[x] = g[h, m, x]
            for q in range(m):
                for x in range(lanes):
                    s[x] -= g[h, q, x] * g[m, q, x]
            if m < h:
                for x in range(lanes):
                    g[h, m, x] = s[x] * g[m, m, x]
            else:
                for x in range(lanes):
                    g[h, h, x] = 1.0 / np.sqrt(s[x])
    for h in range(k):
        for q in range(h):
            for x in range(lanes):
                t[h, x] -= g[h, q, x] * t[q, x]
        for x in range(lanes):
            t[h, x] *= g[h, h, x]
    for h in range(k - 1, -1, -1):
        for x in range(lanes):
            t[h, x] *= g[h, h, x]
        for q in range(h):
            for x in range(lanes):
                t[q, x] -= g[h, q, x] * t[h, x]


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
