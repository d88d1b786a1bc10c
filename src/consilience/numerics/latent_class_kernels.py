"""Compiled loops of latent class regression. Imported on first use: it loads numba.

Every loop runs on one thread in one order; an entity's numbers do not depend on which entities are
computed beside it. A pivot of ``D = I / delta^2 + (positive semidefinite)`` is at least
``1 / delta^2``: pivots that rounding has pushed below are raised to it, so a factorisation can only
fail by overflow, which the caller sees as a number that is not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

_FAST = {"contract"}


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile, and keep the result where there is a place to keep it."""
    try:
        return njit(cache=True, nogil=True, fastmath=_FAST)(function)
    except RuntimeError:
        return njit(nogil=True, fastmath=_FAST)(function)


@_compiled
def mix(h):
    """Finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@_compiled
def uniform(key, round_number, position):
    """One number in (0, 1) for key, round and position."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    h = mix(key + golden * (round_number + np.uint64(1)))
    h = mix(h ^ mix(golden * (position + np.uint64(1))))
    return (np.float64(h >> np.uint64(12)) + 0.5) * 2.0**-52


@_compiled
def uniforms(keys, round_number, positions, out):
    """Fill `out` with one number for each key and position."""
    for i in range(out.size):
        out[i] = uniform(keys[i], round_number, positions[i])


@_compiled
def sum_blocks(x, y, weight, start, products, cross, squares, n):
    """Add up the rows of each block."""
    f = x.shape[1]
    for e in range(start.size - 1):
        for row in range(start[e], start[e + 1]):
            for i in range(f):
                for j in range(i + 1):
                    products[e, i, j] += x[row, i] * x[row, j]
                cross[e, i] += x[row, i] * y[row]
            squares[e] += y[row] * y[row]
            n[e] += weight[row]
        for i in range(f):
            for j in range(i):
                products[e, j, i] = products[e, i, j]


@_compiled
def sum_classes(
    products, cross, squares, n, agent_start, labels, out_s, out_r, out_q, out_n, out_counts
):
    """Class sums of each agent, added up by a pairwise tree that is kept as a binary counter.

    Level l holds the sum over 2^l agents that waits for its neighbour: all sums of all agents never
    exist at the same time.
    """
    k, f = cross.shape[1], out_r.shape[1]
    k = out_r.shape[0]
    width = f * f + f + 3
    n_agents = agent_start.size - 1
    levels = 2
    while (1 << levels) <= n_agents:
        levels += 1
    waiting = np.zeros((levels + 1, k, width))
    full = np.zeros(levels + 1, dtype=np.bool_)
    part = np.zeros((k, width))
    for a in range(n_agents):
        part[:] = 0.0
        for e in range(agent_start[a], agent_start[a + 1]):
            c = labels[e]
            if c < 0:
                continue
            at = 0
            for i in range(f):
                for j in range(f):
                    part[c, at] += products[e, i, j]
                    at += 1
            for i in range(f):
                part[c, at + i] += cross[e, i]
            part[c, at + f] += squares[e]
            part[c, at + f + 1] += n[e]
            part[c, at + f + 2] += 1.0
        level = 0
        while full[level]:
            part += waiting[level]
            full[level] = False
            level += 1
        waiting[level] = part
        full[level] = True
    part[:] = 0.0
    for level in range(levels + 1):
        if full[level]:
            part += waiting[level]
    for c in range(k):
        at = 0
        for i in range(f):
            for j in range(f):
                out_s[c, i, j] = part[c, at]
                at += 1
        for i in range(f):
            out_r[c, i] = part[c, at + i]
        out_q[c] = part[c, at + f]
        out_n[c] = part[c, at + f + 1]
        out_counts[c] = part[c, at + f + 2]


@_compiled
def factor(a, floor):
    """Lower Cholesky factor in place of the lower triangle; returns the log determinant."""
    log_det = 0.0
    for i in range(a.shape[0]):
        for j in range(i + 1):
            left = a[i, j]
            for p in range(j):
                left -= a[i, p] * a[j, p]
            if i == j:
                left = max(left, floor)
                log_det += np.log(left)
                a[i, i] = np.sqrt(left)
            else:
                a[i, j] = left / a[j, j]
    return log_det


@_compiled
def solve_lower(low, b):
    """Solve with the lower factor, in place."""
    for i in range(b.size):
        left = b[i]
        for p in range(i):
            left -= low[i, p] * b[p]
        b[i] = left / low[i, i]


@_compiled
def solve_upper(low, b):
    """Solve with the transpose of the lower factor."""
    for i in range(b.size - 1, -1, -1):
        left = b[i]
        for p in range(i + 1, b.size):
            left -= low[p, i] * b[p]
        b[i] = left / low[i, i]


@_compiled
def factor_class(products, cross, inv_sigma2, floor, precision, low, mean, linear):
    """Precision, its factor, linear part and mean of one class; returns the log determinant."""
    f = cross.size
    for i in range(f):
        for j in range(i + 1):
            value = products[i, j] * inv_sigma2
            if i == j:
                value += floor
            precision[i, j] = value
            precision[j, i] = value
            low[i, j] = value
        linear[i] = cross[i] * inv_sigma2
        mean[i] = linear[i]
    log_det = factor(low, floor)
    solve_lower(low, mean)
    solve_upper(low, mean)
    return log_det


@_compiled
def factor_classes(products, cross, inv_sigma2, floor, precision, cholesky, mean, linear, log_det):
    """Factor every class."""
    for k in range(log_det.size):
        log_det[k] = factor_class(
            products[k], cross[k], inv_sigma2, floor, precision[k], cholesky[k], mean[k], linear[k]
        )


@_compiled
def density(s, r, q, n, x, y, mean, log_det, m_low, m_log_det, inv_sigma2, g):
    """Log density of a block: mean and log|D| of the class, factor and log|M| of ``D + S/sigma^2``.

    ``e'e`` and ``X'e`` come from the rows while these are few: less is lost to cancellation.
    """
    f = r.size
    if y.size <= 2 * f:
        e2 = 0.0
        g[:] = 0.0
        for row in range(y.size):
            e = y[row]
            for i in range(f):
                e -= x[row, i] * mean[i]
            e2 += e * e
            for i in range(f):
                g[i] += x[row, i] * e
    else:
        e2 = q
        for i in range(f):
            g[i] = r[i]
            for j in range(f):
                g[i] -= s[i, j] * mean[j]
            e2 -= mean[i] * (r[i] + g[i])
    for i in range(f):
        g[i] *= inv_sigma2
    solve_lower(m_low, g)
    square = 0.0
    for i in range(f):
        square += g[i] * g[i]
    log_scale = n * np.log(2.0 * np.pi / inv_sigma2)
    return -0.5 * (log_scale + m_log_det - log_det + e2 * inv_sigma2 - square)


@_compiled
def likelihoods(
    products,
    cross,
    squares,
    n,
    x,
    y,
    start,
    precision,
    linear,
    cholesky,
    mean,
    log_det,
    inv_sigma2,
    floor,
    own,
    has_own,
    first,
    last,
    out,
):
    """Fill ``out[first:last]``; False if a value is not finite."""
    n_classes, f = mean.shape
    low, m_low = np.zeros((f, f)), np.zeros((f, f))
    b, g = np.zeros(f), np.zeros(f)
    finite = True
    for e in range(first, last):
        xe, ye = x[start[e] : start[e + 1]], y[start[e] : start[e + 1]]
        for k in range(n_classes):
            if ye.size == 0:
                out[e, k] = 0.0
                continue
            weight = own[e, k] if has_own else 0.0
            for i in range(f):
                for j in range(i + 1):
                    m_low[i, j] = (
                        precision[k, i, j] + (1.0 - weight) * inv_sigma2 * products[e, i, j]
                    )
            m_log_det = factor(m_low, floor)
            if weight == 0.0:
                for i in range(f):
                    b[i] = mean[k, i]
                d_log_det = log_det[k]
            else:
                for i in range(f):
                    for j in range(i + 1):
                        low[i, j] = precision[k, i, j] - weight * inv_sigma2 * products[e, i, j]
                    b[i] = linear[k, i] - weight * inv_sigma2 * cross[e, i]
                d_log_det = factor(low, floor)
                solve_lower(low, b)
                solve_upper(low, b)
            value = density(
                products[e],
                cross[e],
                squares[e],
                n[e],
                xe,
                ye,
                b,
                d_log_det,
                m_low,
                m_log_det,
                inv_sigma2,
                g,
            )
            out[e, k] = value
            finite = finite and np.isfinite(value)
    return finite


@_compiled
def choose(weights, prior, u, best):
    """Turn log likelihoods into probabilities in place and draw a class; -1 if none is possible."""
    top = -np.inf
    for k in range(weights.size):
        if prior[k] > 0.0 and weights[k] > top:
            top = weights[k]
    if not np.isfinite(top):
        return -1
    total = 0.0
    for k in range(weights.size):
        weights[k] = prior[k] * np.exp(weights[k] - top) if prior[k] > 0.0 else 0.0
        total += weights[k]
    chosen, cumulative, largest = -1, 0.0, 0.0
    target = u * total
    drawn = False
    for k in range(weights.size):
        cumulative += weights[k]
        if best:
            if weights[k] > largest:
                largest = weights[k]
                chosen = k
        elif weights[k] > 0.0 and not drawn:
            chosen = k
            drawn = cumulative >= target
        weights[k] /= total
    return chosen


@_compiled
def draw_agents(
    weights,
    labels,
    agent_start,
    agent_first,
    agent_last,
    base,
    beta,
    keys,
    round_number,
    own,
    has_own,
    counts,
    alpha,
):
    """Draw the entities of each agent in turn; `weights` go in as log likelihoods.

    Without global counts (`counts` empty) the prior is ``N_i^k + beta base_k``, else the source's
    shortcut ``N_i^k + beta (N^k + alpha/K) / (sum N + alpha)``, both without the entity.
    Returns the number of labels that moved, -1 if an entity has no possible class.
    """
    n_classes = weights.shape[1]
    mine, prior = np.zeros(n_classes), np.zeros(n_classes)
    moved = 0
    for a in range(agent_first, agent_last):
        mine[:] = 0.0
        for e in range(agent_start[a], agent_start[a + 1]):
            if labels[e] >= 0:
                mine[labels[e]] += 1.0
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
            if counts.size == 0:
                for k in range(n_classes):
                    prior[k] = mine[k] + beta * base[k]
            else:
                total = alpha
                for k in range(n_classes):
                    without = counts[k] - own[e, k] if has_own else counts[k]
                    prior[k] = max(without, 0.0)
                    total += prior[k]
                for k in range(n_classes):
                    prior[k] = mine[k] + beta * (prior[k] + alpha / n_classes) / total
            u = uniform(keys[a], round_number, np.uint64(e - agent_start[a]))
            new = choose(weights[e], prior, u, False)
            if new < 0:
                return -1
            moved += new != old
            labels[e] = new
            mine[new] += 1.0
    return moved


@_compiled
def count_tables(agent_counts, beta, base, keys, round_number, out):
    """Occupied tables of a Chinese restaurant: customer t opens one with weight c / (c + t)."""
    salt = np.uint64(0x5461626C65735F31)
    for a in range(agent_counts.shape[0]):
        key = mix(keys[a] ^ salt)
        for k in range(agent_counts.shape[1]):
            c = beta * base[k]
            for t in range(agent_counts[a, k]):
                place = np.uint64(k) * np.uint64(1 << 40) + np.uint64(t)
                if t == 0 or uniform(key, round_number, place) * (c + t) < c:
                    out[a, k] += 1


@_compiled
def add_block(products, cross, squares, n, sign, s, r, q, m, counts, k):
    """Add a block to the sums of class k, or take it out of them."""
    f = cross.size
    for i in range(f):
        for j in range(f):
            s[k, i, j] += sign * products[i, j]
        r[k, i] += sign * cross[i]
    q[k] += sign * squares
    m[k] += sign * n
    counts[k] += sign
    if counts[k] == 0.0:  # an empty class holds nothing, not what rounding has left
        s[k] = 0.0
        r[k] = 0.0
        q[k] = 0.0
        m[k] = 0.0


@_compiled
def sweep_entities(
    products,
    cross,
    squares,
    n,
    x,
    y,
    start,
    agent_start,
    labels,
    s,
    r,
    q,
    m,
    counts,
    inv_sigma2,
    floor,
    base,
    beta,
    keys,
    round_number,
    best,
    alpha,
):
    """One sequential sweep in place: take an entity out, draw its class, put it in.

    Returns the number of labels that moved, -1 if a likelihood is not finite.
    """
    n_classes, f = r.shape
    precision, cholesky = np.zeros((n_classes, f, f)), np.zeros((n_classes, f, f))
    mean, linear = np.zeros((n_classes, f)), np.zeros((n_classes, f))
    log_det = np.zeros(n_classes)
    factor_classes(s, r, inv_sigma2, floor, precision, cholesky, mean, linear, log_det)
    old_s, old_r = np.zeros((1, f, f)), np.zeros((1, f))
    weights, own = np.zeros((1, n_classes)), np.zeros((0, n_classes))
    mine, prior = np.zeros(n_classes), np.zeros(n_classes)
    moved = 0
    for a in range(agent_start.size - 1):
        mine[:] = 0.0
        for e in range(agent_start[a], agent_start[a + 1]):
            if labels[e] >= 0:
                mine[labels[e]] += 1.0
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
                old_s[0], old_r[0] = s[old], r[old]
                old_q, old_n = q[old], m[old]
                add_block(products[e], cross[e], squares[e], n[e], -1.0, s, r, q, m, counts, old)
                log_det[old] = factor_class(
                    s[old],
                    r[old],
                    inv_sigma2,
                    floor,
                    precision[old],
                    cholesky[old],
                    mean[old],
                    linear[old],
                )
            one = slice(e, e + 1)
            if not likelihoods(
                products[one],
                cross[one],
                squares[one],
                n[one],
                x,
                y,
                start[e : e + 2],
                precision,
                linear,
                cholesky,
                mean,
                log_det,
                inv_sigma2,
                floor,
                own,
                False,
                0,
                1,
                weights,
            ):
                return -1
            if alpha < 0.0:
                for k in range(n_classes):
                    prior[k] = mine[k] + beta * base[k]
            else:
                total = counts.sum() + alpha
                for k in range(n_classes):
                    prior[k] = mine[k] + beta * (counts[k] + alpha / n_classes) / total
            u = uniform(keys[a], round_number, np.uint64(e - agent_start[a]))
            new = choose(weights[0], prior, u, best)
            if new < 0:
                return -1
            mine[new] += 1.0
            labels[e] = new
            if new == old:
                s[old], r[old] = old_s[0], old_r[0]
                q[old], m[old] = old_q, old_n
                counts[old] += 1.0
            else:
                moved += 1
                add_block(products[e], cross[e], squares[e], n[e], 1.0, s, r, q, m, counts, new)
            log_det[new] = factor_class(
                s[new],
                r[new],
                inv_sigma2,
                floor,
                precision[new],
                cholesky[new],
                mean[new],
                linear[new],
            )
    return moved
