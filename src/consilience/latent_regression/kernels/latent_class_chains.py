"""Compiled loops that draw labels and table counts. Imported on first use: they load numba."""

from __future__ import annotations

import numpy as np

from consilience.latent_regression.kernels.latent_class_density import (
    judge,
    pack_class,
    pack_classes,
    workspace,
)
from consilience.latent_regression.kernels.latent_class_kernels import (
    State,
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
def set_prior(mine, base, beta, everywhere, alpha, prior):
    """``N_i^k + beta psi_k``, or the shortcut with ``(N^k + alpha/K) / (sum N + alpha)`` for psi.

    The shortcut is wanted where `alpha` is not negative.
    """
    n_classes = mine.size
    total = alpha
    if alpha >= 0.0:
        for k in range(n_classes):
            total += everywhere[k]
    for k in range(n_classes):
        share = base[k] if alpha < 0.0 else (everywhere[k] + alpha / n_classes) / total
        prior[k] = mine[k] + beta * share


@compiled
def draw_agents(
    weights, labels, agent_start, agents, base, beta, keys, round_number, own, counts, alpha
):
    """Draw the entities of each agent in turn; `weights` go in as log likelihoods.

    Returns the number of labels that moved, -1 if an entity has no possible class.
    """
    n_classes = weights.shape[1]
    mine, prior, everywhere = np.zeros(n_classes), np.zeros(n_classes), counts.copy()
    moved = 0
    for a in range(agents[0], agents[1]):
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
            if alpha >= 0.0 and own.shape[0] > 0:
                for k in range(n_classes):
                    everywhere[k] = max(counts[k] - own[e, k], 0.0)
            set_prior(mine, base, beta, everywhere, alpha, prior)
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
def add_block(events, e, sign, sums, k):
    """Add an entity to the sums of class k, or take it out of them."""
    f = events.cross.shape[1]
    for i in range(f):
        for j in range(f):
            sums.products[k, i, j] += sign * events.products[e, i, j]
        sums.cross[k, i] += sign * events.cross[e, i]
    sums.squares[k] += sign * events.squares[e]
    sums.n[k] += sign * events.n[e]
    sums.counts[k] += sign
    if sums.counts[k] == 0.0:  # an empty class holds nothing, not what rounding has left
        sums.products[k] = 0.0
        sums.cross[k] = 0.0
        sums.squares[k] = 0.0
        sums.n[k] = 0.0


@compiled
def copy_class(sums, state, source, target):
    """Copy the sums of a class and all that follows from them."""
    sums.products[target] = sums.products[source]
    sums.cross[target] = sums.cross[source]
    sums.squares[target] = sums.squares[source]
    sums.n[target] = sums.n[source]
    sums.counts[target] = sums.counts[source]
    state.precision[target] = state.precision[source]
    state.linear[target] = state.linear[source]
    state.cholesky[target] = state.cholesky[source]
    state.mean[target] = state.mean[source]
    state.log_det[target] = state.log_det[source]


@compiled
def move_block(events, e, sign, sums, inv_sigma2, floor, state, k, packed):
    """Add an entity to class k or take it out, and bring all that follows up to date."""
    add_block(events, e, sign, sums, k)
    factor_class(sums.products[k], sums.cross[k], inv_sigma2, floor, state, k)
    pack_class(state, k, packed)


@compiled
def sweep_entities(
    events,
    agent_start,
    labels,
    sums,
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

    `sums` have room for one class more: where an entity stays, its class is put back from there and
    no rounding is left behind. Returns the number of labels that moved, -1 if a likelihood is not
    finite.
    """
    spare, f = sums.counts.size - 1, sums.cross.shape[1]
    state = State(
        np.zeros((spare + 1, f, f)),
        np.zeros((spare + 1, f)),
        np.zeros((spare + 1, f, f)),
        np.zeros((spare + 1, f)),
        np.zeros(spare + 1),
    )
    factor_classes(sums.products, sums.cross, inv_sigma2, floor, state)
    packed, work = pack_classes(state, spare), workspace(f)
    weights, mine, prior = np.zeros(spare), np.zeros(spare), np.zeros(spare)
    moved = 0
    for a in range(agent_start.size - 1):
        count_labels(labels, agent_start[a], agent_start[a + 1], mine)
        for e in range(agent_start[a], agent_start[a + 1]):
            old = labels[e]
            if old >= 0:
                mine[old] -= 1.0
                copy_class(sums, state, old, spare)
                move_block(events, e, -1.0, sums, inv_sigma2, floor, state, old, packed)
            if not judge(events, e, packed, state.log_det, inv_sigma2, floor, work, weights):
                return -1
            set_prior(mine, base, beta, sums.counts, alpha, prior)
            u = uniform(keys[a], round_number, np.uint64(e - agent_start[a]))
            new = choose(weights, prior, u, best)
            if new < 0:
                return -1
            mine[new] += 1.0
            labels[e] = new
            if new == old:
                copy_class(sums, state, spare, old)
                pack_class(state, old, packed)
            else:
                moved += 1
                move_block(events, e, 1.0, sums, inv_sigma2, floor, state, new, packed)
    return moved
