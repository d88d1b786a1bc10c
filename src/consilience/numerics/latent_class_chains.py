"""Compiled loops that draw labels and table counts. Imported on first use: they load numba."""

from __future__ import annotations

import numpy as np

from consilience.numerics.latent_class_density import judge, pack_class, pack_classes, workspace
from consilience.numerics.latent_class_kernels import (
    compiled,
    factor_class,
    factor_classes,
    mix,
    uniform,
)


@compiled
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


@compiled
def count_labels(labels, first, last, out):
    """Entities by class from `first` to `last`."""
    out[:] = 0.0
    for e in range(first, last):
        if labels[e] >= 0:
            out[labels[e]] += 1.0


@compiled
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
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
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


@compiled
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


@compiled
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


@compiled
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
    packed = pack_classes(precision, cholesky, mean)
    work = workspace(f)
    kept_s, kept_r = np.zeros((f, f)), np.zeros(f)
    kept_d, kept_low, kept_mean = np.zeros((f, f)), np.zeros((f, f)), np.zeros(f)
    weights, mine, prior = np.zeros(n_classes), np.zeros(n_classes), np.zeros(n_classes)
    moved = 0
    for a in range(agent_start.size - 1):
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            kept_q, kept_n, kept_log_det = 0.0, 0.0, 0.0
            if old >= 0:
                mine[old] -= 1.0
                kept_s[:], kept_r[:], kept_q, kept_n = s[old], r[old], q[old], m[old]
                kept_d[:], kept_low[:], kept_mean[:] = precision[old], cholesky[old], mean[old]
                kept_log_det = log_det[old]
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
                pack_class(precision[old], cholesky[old], mean[old], old, *packed)
            here = slice(start[e], start[e + 1])
            if not judge(
                products[e],
                cross[e],
                squares[e],
                n[e],
                x[here],
                y[here],
                *packed,
                log_det,
                inv_sigma2,
                floor,
                work,
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
            new = choose(weights, prior, u, best)
            if new < 0:
                return -1
            mine[new] += 1.0
            labels[e] = new
            if new == old:  # put back what was there: no rounding is left behind
                s[old], r[old], q[old], m[old] = kept_s, kept_r, kept_q, kept_n
                counts[old] += 1.0
                precision[old], cholesky[old], mean[old] = kept_d, kept_low, kept_mean
                log_det[old] = kept_log_det
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
            pack_class(precision[new], cholesky[new], mean[new], new, *packed)
    return moved
