"""Compiled loops of soft-impute on the observed entries alone: ridge regressions of rows.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

import numpy as np

from consilience.numerics.soft_impute_kernels import compiled

_LANES = 16  # systems that are solved at once
_BLOCK = 64  # entries that are gathered at once; small enough for one thread of any BLAS


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
