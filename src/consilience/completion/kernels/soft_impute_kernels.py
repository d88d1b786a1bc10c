"""Compiled loops of soft-impute: over a filled matrix, and over the observed entries alone.

The latter are ridge regressions of rows. Imported on first use: it loads numba. One
thread, one order.
"""

from __future__ import annotations

import numpy as np

from consilience.numerics.compilation import reordered


@reordered
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


@reordered
def fill(x, seen, new, old, beta, z):
    """Observed entries, and ``new + beta (new - old)`` for the others, into ``z``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            ahead = new[i, j] + beta * (new[i, j] - old[i, j])
            z[i, j] = x[i, j] + (1.0 - seen[i, j]) * ahead


@reordered
def residual(x, seen, new, r):
    """Observed entries less the matrix ``new``, zero for the others, into ``r``."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            r[i, j] = x[i, j] - seen[i, j] * new[i, j]


LANES = 16
"""Systems that are solved at once, so that loops are long."""

_BLOCK = 64  # entries that are gathered at once; small enough for one thread of any BLAS


@reordered
def ridge_step(indptr, columns, values, b, alpha, fresh, factors, a, new):
    """Newton's step of each row's ridge regression on rows of ``b``, from ``a`` into ``new``.

    With ``C_i = B_O' B_O + alpha I``, row i of ``new`` is
    ``a_i + C_i^-1 (B_O' (x_O - B_O a_i) - alpha a_i)``: the regression itself where `fresh` asks
    for factors of these C, and near it with factors of a C nearby. A row without entries is zero.

    `factors` is a (groups, k (k + 1) / 2, :data:`LANES`) array: Cholesky's factors of sixteen rows
    side by side, their diagonals as reciprocals. With one group for all of them, none is kept.

    Returns the sum of squares of the residuals ``x_O - B_O a_i``.
    """
    n, k = a.shape
    seen = np.empty((_BLOCK, k))
    gram = np.empty((k, k))
    t = np.empty((k, LANES))
    g = np.empty(k)
    loss = 0.0
    for start in range(0, n, LANES):
        factor = factors[start // LANES if len(factors) > 1 else 0]
        if fresh:
            for lane in range(LANES):  # lanes behind the last row solve an empty system
                first = indptr[min(start + lane, n)]
                end = indptr[min(start + lane + 1, n)]
                ridge = alpha if first < end else 1.0
                gram[:] = 0.0
                while first < end:
                    m = min(_BLOCK, end - first)
                    for e in range(m):
                        c = columns[first + e]
                        for h in range(k):
                            seen[e, h] = b[c, h]
                    gram += np.dot(seen[:m].T, seen[:m])
                    first += m
                place = 0
                for h in range(k):
                    for q in range(h):
                        factor[place + q, lane] = gram[h, q]
                    factor[place + h, lane] = gram[h, h] + ridge
                    place += h + 1
            _factorise(factor, k, alpha)
        for lane in range(LANES):
            i = start + lane
            if i < n:
                own = a[i]
                for h in range(k):
                    g[h] = -alpha * own[h]
                loss += _gradient(columns, values, b, own, indptr[i], indptr[i + 1], g)
            for h in range(k):
                t[h, lane] = g[h]
        _solve(factor, t)
        for lane in range(min(LANES, n - start)):
            i = start + lane
            some = indptr[i] < indptr[i + 1]
            for h in range(k):
                new[i, h] = a[i, h] + t[h, lane] if some else 0.0
    return loss


@reordered
def _gradient(columns, values, b, own, first, end, g):
    """Add ``B_O' r`` to ``g`` for the residuals r of a row; gives their sum of squares."""
    k = own.size
    loss = 0.0
    e = first
    while e + 4 <= end:  # four entries at once: a quarter of the passes over g
        y0, y1, y2, y3 = b[columns[e]], b[columns[e + 1]], b[columns[e + 2]], b[columns[e + 3]]
        r0, r1, r2, r3 = 0.0, 0.0, 0.0, 0.0
        for h in range(k):
            r0 += own[h] * y0[h]
            r1 += own[h] * y1[h]
            r2 += own[h] * y2[h]
            r3 += own[h] * y3[h]
        r0, r1, r2, r3 = values[e] - r0, values[e + 1] - r1, values[e + 2] - r2, values[e + 3] - r3
        loss += (r0 * r0 + r1 * r1) + (r2 * r2 + r3 * r3)
        for h in range(k):
            g[h] += (r0 * y0[h] + r1 * y1[h]) + (r2 * y2[h] + r3 * y3[h])
        e += 4
    while e < end:
        y = b[columns[e]]
        r = 0.0
        for h in range(k):
            r += own[h] * y[h]
        r = values[e] - r
        loss += r * r
        for h in range(k):
            g[h] += r * y[h]
        e += 1
    return loss


@reordered
def _factorise(g, k, least):
    """Cholesky's factors in place of lower triangles, row by row; diagonals as reciprocals.

    No squared diagonal is below the ridge, `least`, but by rounding: then it is the ridge.
    """
    lanes = g.shape[1]
    row = 0
    for h in range(k):
        other = 0
        for m in range(h + 1):
            s = g[row + m]
            q = 0
            while q + 4 <= m:  # four terms at once: a quarter of the passes over s
                a0, a1, a2, a3 = g[row + q], g[row + q + 1], g[row + q + 2], g[row + q + 3]
                b0, b1, b2, b3 = g[other + q], g[other + q + 1], g[other + q + 2], g[other + q + 3]
                for x in range(lanes):
                    s[x] -= (a0[x] * b0[x] + a1[x] * b1[x]) + (a2[x] * b2[x] + a3[x] * b3[x])
                q += 4
            while q < m:
                a, b = g[row + q], g[other + q]
                for x in range(lanes):
                    s[x] -= a[x] * b[x]
                q += 1
            if m < h:
                d = g[other + m]
                for x in range(lanes):
                    s[x] *= d[x]
            else:
                for x in range(lanes):
                    s[x] = 1.0 / np.sqrt(max(s[x], least))
            other += m + 1
        row += h + 1


@reordered
def _solve(g, t):
    """Solve in place of ``t``, (k, lanes), by the factors of :func:`_factorise`."""
    k, lanes = t.shape
    row = 0
    for h in range(k):
        s = t[h]
        q = 0
        while q + 4 <= h:
            a0, a1, a2, a3 = g[row + q], g[row + q + 1], g[row + q + 2], g[row + q + 3]
            b0, b1, b2, b3 = t[q], t[q + 1], t[q + 2], t[q + 3]
            for x in range(lanes):
                s[x] -= (a0[x] * b0[x] + a1[x] * b1[x]) + (a2[x] * b2[x] + a3[x] * b3[x])
            q += 4
        while q < h:
            a, b = g[row + q], t[q]
            for x in range(lanes):
                s[x] -= a[x] * b[x]
            q += 1
        d = g[row + h]
        for x in range(lanes):
            s[x] *= d[x]
        row += h + 1
    for h in range(k - 1, -1, -1):
        row -= h + 1
        s, d = t[h], g[row + h]
        for x in range(lanes):
            s[x] *= d[x]
        for q in range(h):
            a, b = g[row + q], t[q]
            for x in range(lanes):
                b[x] -= a[x] * s[x]


@reordered
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
