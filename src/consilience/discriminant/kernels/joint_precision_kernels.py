"""Compiled loops of joint precision matrices: coordinate descent on the quadratic model.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

import numpy as np

from consilience.numerics.compilation import reordered


@reordered
def group_prox(a, b, lam, z):
    """Minimise ``sum_k (a_k z_k^2 / 2 - b_k z_k) + lam |z|`` into ``z``.

    ``z_k = b_k / (a_k + lam / r)`` where ``r = |z|`` is the root of ``|b / (a r + lam)| = 1``; its
    inverse is nearly linear in r, so that Newton's method needs few steps (secular equation).
    """
    n = a.size
    norm2 = 0.0
    for k in range(n):
        norm2 += b[k] * b[k]
    # Where |b| is at most lam, zero satisfies the condition of the group.
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


@reordered
def model_row(d, w, start, neighbours, i, own, m, v, c):
    """Entries ``(W D W)_ij`` for the first ``m`` of ``own`` into ``c``; ``v`` is scratch."""
    q = w.shape[1]
    for k in range(w.shape[0]):
        for row in range(q):
            total = 0.0
            lo, hi = start[row], start[row + 1]
            # A whole row is read in order; a list of partners would only slow it down.
            if hi - lo == q:
                for col in range(q):
                    total += d[k, row, col] * w[k, i, col]
            else:
                for e in range(lo, hi):
                    total += d[k, row, neighbours[e]] * w[k, i, neighbours[e]]
            v[row] = total
        for s in range(m):
            total = 0.0
            for col in range(q):
                total += v[col] * w[k, own[s], col]
            c[k, s] = total


@reordered
def move_variance(g, w, n, i, s, own, m, c, d):
    """Exact step of the diagonal element ``i``, at place ``s`` of its row; its relative size."""
    largest = 0.0
    for k in range(g.shape[0]):
        # The diagonal is not penalised: the step is that of a parabola.
        curve = n[k] * w[k, i, i] * w[k, i, i]
        step = -(g[k, i, i] + n[k] * c[k, s]) / curve
        d[k, i, i] += step
        largest = max(largest, abs(step) * w[k, i, i])
        for r in range(m):
            c[k, r] += step * w[k, i, i] * w[k, i, own[r]]
    return largest


@reordered
def move_pair(g, w, t, n, lam, i, s, own, m, c, d, a, b, z):
    """Exact step of the group of ``i`` and ``own[s]``, and its relative size."""
    j = own[s]
    largest = 0.0
    for k in range(g.shape[0]):
        a[k] = n[k] * (w[k, i, j] ** 2 + w[k, i, i] * w[k, j, j])
        b[k] = a[k] * (t[k, i, j] + d[k, i, j]) - g[k, i, j] - n[k] * c[k, s]
    group_prox(a, b, lam, z)
    for k in range(g.shape[0]):
        step = z[k] - t[k, i, j] - d[k, i, j]
        if step == 0.0:
            continue
        # Exactly -T where the group vanishes, so that T + D is exactly zero.
        d[k, i, j] = z[k] - t[k, i, j]
        d[k, j, i] = d[k, i, j]
        largest = max(largest, abs(step) * np.sqrt(w[k, i, i] * w[k, j, j]))
        w_ii, w_ij = step * w[k, i, i], step * w[k, i, j]
        for r in range(m):
            c[k, r] += w_ii * w[k, j, own[r]] + w_ij * w[k, i, own[r]]
    return largest


@reordered
def sweeps(g, w, t, n, lam, start, neighbours, n_sweeps, n_inner, tolerance, d):
    """Coordinate descent for ``<G, D> + sum_k n_k tr(W D W D) / 2 + lam P(T + D)`` on free pairs.

    Row by row: ``(W D W)`` of the free pairs of one row is computed once, and kept while they
    change. ``neighbours[start[i]:start[i + 1]]`` are the free partners of feature i on both sides,
    i itself included. Adds to ``d``, which starts at zero. Stops when a sweep changes less than
    ``tolerance`` times what the first one did.
    """
    classes, q = g.shape[0], g.shape[1]
    v, c = np.zeros(q), np.zeros((classes, q))
    own = np.zeros(q, np.int64)
    a, b, z = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    first, empty = 0.0, True
    for sweep in range(n_sweeps):
        change = 0.0
        for i in range(q):
            m = 0
            for e in range(start[i], start[i + 1]):
                if neighbours[e] >= i:
                    own[m] = neighbours[e]
                    m += 1
            # As long as D is zero, W D W is.
            if empty:
                c[:, :m] = 0.0
            else:
                model_row(d, w, start, neighbours, i, own, m, v, c)
            for _ in range(n_inner):
                moved = 0.0
                for s in range(m):
                    if own[s] == i:
                        size = move_variance(g, w, n, i, s, own, m, c, d)
                    else:
                        size = move_pair(g, w, t, n, lam, i, s, own, m, c, d, a, b, z)
                    moved = max(moved, size)
                change = max(change, moved)
                if moved < 1e-14:
                    break
            if change > 0.0:
                empty = False
        if sweep == 0:
            first = change
        if change <= max(tolerance * first, 1e-14):
            break


@reordered
def factorise(a, lower):
    """Lower Cholesky factor; the log-determinant, or NaN where ``a`` is not positive definite."""
    q = a.shape[0]
    total = 0.0
    for j in range(q):
        pivot = a[j, j]
        for m in range(j):
            pivot -= lower[j, m] * lower[j, m]
        if not pivot > 0.0:
            return np.nan
        root = np.sqrt(pivot)
        lower[j, j] = root
        total += np.log(pivot)
        for i in range(j + 1, q):
            x = a[i, j]
            for m in range(j):
                x -= lower[i, m] * lower[j, m]
            lower[i, j] = x / root
    return total


@reordered
def invert(lower, out):
    """Inverse from a lower factor, which is overwritten by its own inverse."""
    q = lower.shape[0]
    for j in range(q):
        lower[j, j] = 1.0 / lower[j, j]
        for i in range(j + 1, q):
            x = 0.0
            for m in range(j, i):
                x -= lower[i, m] * lower[m, j]
            lower[i, j] = x / lower[i, i]
    for i in range(q):
        for j in range(i + 1):
            x = 0.0
            for m in range(i, q):
                x += lower[m, i] * lower[m, j]
            out[i, j] = x
            out[j, i] = x


@reordered
def pair_penalty(t):
    """Sum of group norms over ordered pairs."""
    total = 0.0
    for i in range(t.shape[1]):
        for j in range(i):
            norm2 = 0.0
            for k in range(t.shape[0]):
                norm2 += t[k, i, j] * t[k, i, j]
            total += 2.0 * np.sqrt(norm2)
    return total


@reordered
def value(s, n, lam, t, factors, log_det):
    """Objective, with factors and log-determinants; infinite outside the cone."""
    total = 0.0
    for k in range(t.shape[0]):
        log_det[k] = factorise(t[k], factors[k])
        if not np.isfinite(log_det[k]):
            return np.inf
        trace = 0.0
        for i in range(t.shape[1]):
            for j in range(t.shape[1]):
                trace += s[k, i, j] * t[k, i, j]
        total += n[k] * (trace - log_det[k])
    return total + lam * pair_penalty(t)


@reordered
def bound(s, n, lam, t, w, v, lower):
    """Dual value at the feasible point next to ``w``; groups of the support have norm lam."""
    classes, q = t.shape[0], t.shape[1]
    for i in range(q):
        for k in range(classes):
            v[k, i, i] = s[k, i, i]
        for j in range(i):
            norm2, linked = 0.0, False
            for k in range(classes):
                gamma = n[k] * (w[k, i, j] - s[k, i, j])
                norm2 += gamma * gamma
                linked = linked or t[k, i, j] != 0.0
            norm = np.sqrt(norm2)
            # At the optimum the norm is lam on the support, and at most lam elsewhere.
            factor = 1.0 if norm == 0.0 or (norm <= lam and not linked) else lam / norm
            for k in range(classes):
                v[k, i, j] = s[k, i, j] + factor * (w[k, i, j] - s[k, i, j])
                v[k, j, i] = v[k, i, j]
    total = 0.0
    for k in range(classes):
        total += n[k] * (factorise(v[k], lower) + q)
    return total if np.isfinite(total) else -np.inf


@reordered
def backtrack(s, n, lam, t, d, objective, slope, rounding, new, factors, log_det):
    """Shorten the step until the value falls enough: the value at ``new``, or infinity."""
    step = 1.0
    allowed = rounding if -slope < 1e3 * rounding else 0.0
    for _ in range(40):
        new[:] = t + step * d
        found = value(s, n, lam, new, factors, log_det)
        if found <= objective + 1e-4 * step * slope + allowed:
            return found
        step *= 0.5
    return np.inf


@reordered
def solve_small(s, n, lam, t, tol, max_iter, log_det):
    """Proximal Newton for a block of few features; overwrites ``t`` and ``log_det``.

    Returns the objective, the best dual value and the number of iterations. There is always one
    step, so that features that were not linked at the start become so, however little.
    """
    classes, q = t.shape[0], t.shape[1]
    start, neighbours, scale = np.arange(q + 1) * q, np.arange(q * q) % q, q * n.sum()
    shape = (classes, q, q)
    factors, w, v, new = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    g, d, lower = np.zeros(shape), np.zeros(shape), np.zeros((q, q))
    objective = value(s, n, lam, t, factors, log_det)
    dual = -np.inf
    if not np.isfinite(objective):
        return objective, dual, 0
    for iteration in range(1, max_iter + 1):
        for k in range(classes):
            invert(factors[k], w[k])
            g[k] = n[k] * (s[k] - w[k])
        d[:] = 0.0
        # Values of the dual do not rise steadily: the best one is kept.
        dual = max(dual, bound(s, n, lam, t, w, v, lower))
        if iteration > 1 and objective - dual <= tol * scale:
            return objective, dual, iteration
        sweeps(g, w, t, n, lam, start, neighbours, 20, 2, 1e-4, d)
        slope = -lam * pair_penalty(t)
        for k in range(classes):
            for i in range(q):
                for j in range(q):
                    slope += g[k, i, j] * d[k, i, j]
                    new[k, i, j] = t[k, i, j] + d[k, i, j]
        slope += lam * pair_penalty(new)
        rounding = 1e-13 * (abs(objective) + scale)
        found = backtrack(s, n, lam, t, d, objective, slope, rounding, new, factors, log_det)
        if not np.isfinite(found):
            objective = value(s, n, lam, t, factors, log_det)
            return objective, dual, iteration
        t[:] = new
        objective = found
    return objective, dual, max_iter


# ------------------------------------------------------------------ alternating directions


@reordered
def packed(full):
    """Lower triangles of symmetric matrices, row by row, (K, q (q + 1) / 2)."""
    classes, q = full.shape[0], full.shape[1]
    out = np.empty((classes, q * (q + 1) // 2))
    for k in range(classes):
        e = 0
        for i in range(q):
            for j in range(i + 1):
                out[k, e] = full[k, i, j]
                e += 1
    return out


@reordered
def unpacked(v, q):
    """Symmetric matrices of packed ones."""
    out = np.empty((v.shape[0], q, q))
    for k in range(v.shape[0]):
        e = 0
        for i in range(q):
            for j in range(i + 1):
                out[k, i, j] = v[k, e]
                out[k, j, i] = v[k, e]
                e += 1
    return out


@reordered
def shrink(state, s, n, lam, rho, z, x):
    """Groups of ``state`` shrunk by ``lam / rho`` into ``z``; ``rho (2 z - state) - n S``.

    The latter, of which only lower triangles are written, has the eigenvectors of the next ``T``.
    """
    e = 0
    for i in range(s.shape[1]):
        for j in range(i + 1):
            norm2, bound, factor = 0.0, lam[i, j] / rho, 1.0
            for k in range(s.shape[0]):
                norm2 += state[k, e] * state[k, e]
            if i != j:
                factor = 0.0 if norm2 <= bound * bound else 1.0 - bound / np.sqrt(norm2)
            for k in range(s.shape[0]):
                z[k, e] = factor * state[k, e]
                x[k, i, j] = rho * (2.0 * z[k, e] - state[k, e]) - n[k] * s[k, i, j]
            e += 1


@reordered
def slack(state, z, s, n, rho, w):
    """``S + Gamma / n`` into ``w``, where ``Gamma = rho (state - z)`` has norms of at most lam."""
    for k in range(s.shape[0]):
        e = 0
        for i in range(s.shape[1]):
            for j in range(i + 1):
                w[k, i, j] = s[k, i, j] + rho * (state[k, e] - z[k, e]) / n[k]
                w[k, j, i] = w[k, i, j]
                e += 1


@reordered
def advance(t, z, state, over, moved, new):
    """Relaxed step ``over (T - Z)`` into ``moved``, the state after it into ``new``."""
    for k in range(t.shape[0]):
        e = 0
        for i in range(t.shape[1]):
            for j in range(i + 1):
                moved[k, e] = over * (t[k, i, j] - z[k, e])
                new[k, e] = state[k, e] + moved[k, e]
                e += 1
