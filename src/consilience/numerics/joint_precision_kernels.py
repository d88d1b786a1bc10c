"""Compiled loops of joint precision matrices: coordinate descent on the quadratic model.

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
def group_prox(a, b, lam, z):
    """Minimise ``sum_k (a_k z_k^2 / 2 - b_k z_k) + lam |z|`` into ``z``.

    ``z_k = b_k / (a_k + lam / r)`` where ``r = |z|`` is the root of ``|b / (a r + lam)| = 1``; its
    inverse is nearly linear in r, so that Newton's method needs few steps (secular equation).
    """
    n = a.size
    norm2 = 0.0
    for k in range(n):
        norm2 += b[k] * b[k]
    if norm2 <= lam * lam:
        z[:] = 0.0
        return
    r = 0.0
    for _ in range(60):
        h, slope = 0.0, 0.0
        for k in range(n):
            s = a[k] * r + lam
            q = b[k] / s
            h += q * q
            slope += q * q * a[k] / s
        root = np.sqrt(h)
        step = (root - 1.0) * h / slope
        r += step
        if abs(step) <= 1e-15 * r:
            break
    for k in range(n):
        z[k] = b[k] * r / (a[k] * r + lam)


@compiled
def sweeps(g, w, t, n, lam, start, neighbours, n_sweeps, n_inner, d):
    """Coordinate descent for ``<G, D> + sum_k n_k tr(W D W D) / 2 + lam P(T + D)`` on free pairs.

    Row by row: ``(W D W)`` of the free pairs of one row is computed once, and kept while they
    change. ``neighbours[start[i]:start[i + 1]]`` are the free partners of feature i on both sides,
    i itself included. Overwrites ``d`` and returns the largest relative change of the last sweep.
    """
    classes, q = g.shape[0], g.shape[1]
    v = np.zeros((classes, q))
    c = np.zeros((classes, q))
    own = np.zeros(q, np.int64)
    a, b, z, delta = np.zeros(classes), np.zeros(classes), np.zeros(classes), np.zeros(classes)
    change = 0.0
    empty = True
    for sweep in range(n_sweeps):
        change = 0.0
        for i in range(q):
            m = 0
            for e in range(start[i], start[i + 1]):
                if neighbours[e] >= i:
                    own[m] = neighbours[e]
                    m += 1
            for k in range(classes):
                if empty:
                    c[k, :m] = 0.0
                    continue
                for row in range(q):
                    total = 0.0
                    lo, hi = start[row], start[row + 1]
                    if hi - lo == q:
                        for col in range(q):
                            total += d[k, row, col] * w[k, i, col]
                    else:
                        for e in range(lo, hi):
                            total += d[k, row, neighbours[e]] * w[k, i, neighbours[e]]
                    v[k, row] = total
                for s in range(m):
                    total = 0.0
                    for col in range(q):
                        total += v[k, col] * w[k, own[s], col]
                    c[k, s] = total
            for _ in range(n_inner):
                moved = 0.0
                for s in range(m):
                    j = own[s]
                    largest = 0.0
                    if j == i:
                        for k in range(classes):
                            curve = n[k] * w[k, i, i] * w[k, i, i]
                            delta[k] = -(g[k, i, i] + n[k] * c[k, s]) / curve
                            d[k, i, i] += delta[k]
                            largest = max(largest, abs(delta[k]) * w[k, i, i])
                            for r in range(m):
                                c[k, r] += delta[k] * w[k, i, i] * w[k, i, own[r]]
                    else:
                        for k in range(classes):
                            now = t[k, i, j] + d[k, i, j]
                            a[k] = n[k] * (w[k, i, j] ** 2 + w[k, i, i] * w[k, j, j])
                            b[k] = a[k] * now - g[k, i, j] - n[k] * c[k, s]
                        group_prox(a, b, lam, z)
                        for k in range(classes):
                            step = z[k] - t[k, i, j] - d[k, i, j]
                            if step == 0.0:
                                continue
                            # Exactly -T where the group vanishes, so that T + D is exactly zero.
                            d[k, i, j] = z[k] - t[k, i, j]
                            d[k, j, i] = d[k, i, j]
                            size = abs(step) * np.sqrt(w[k, i, i] * w[k, j, j])
                            largest = max(largest, size)
                            w_ii, w_ij = step * w[k, i, i], step * w[k, i, j]
                            for r in range(m):
                                c[k, r] += w_ii * w[k, j, own[r]] + w_ij * w[k, i, own[r]]
                    moved = max(moved, largest)
                change = max(change, moved)
                if moved < 1e-14:
                    break
            if change > 0.0:
                empty = False
        if change < 1e-13:
            break
    return change


@compiled
def prox_all(a, b, lam, out):
    """`group_prox` of every pair above the diagonal; ``a`` (K,) is the same for all pairs."""
    classes, q = b.shape[0], b.shape[1]
    column, z = np.zeros(classes), np.zeros(classes)
    for i in range(q):
        for k in range(classes):
            out[k, i, i] = b[k, i, i] / a[k]
        for j in range(i + 1, q):
            for k in range(classes):
                column[k] = b[k, i, j]
            group_prox(a, column, lam, z)
            for k in range(classes):
                out[k, i, j] = z[k]
                out[k, j, i] = z[k]
