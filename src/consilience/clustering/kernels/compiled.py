"""Compiled loops of the mixtures of Markov chains and of multinomials.

Imported on first use: it loads numba. One thread, one order. Of each distinct sequence there are
the events that it is made of (a first state, a step from state to state) with their counts, as
pieces of ``events`` and ``counts`` between its pointers; ``log_probabilities`` are (F, K).
"""

from __future__ import annotations

import math

import numpy as np

from consilience.numerics.compilation import compiled


@compiled
def joint(indptr, events, counts, log_probabilities, log_shares, out):
    """Log probability of each sequence together with each class, (D, K), into out."""
    k = log_shares.size
    for i in range(indptr.size - 1):
        for c in range(k):
            out[i, c] = log_shares[c]
        for e in range(indptr[i], indptr[i + 1]):
            times, f = counts[e], events[e]
            for c in range(k):
                out[i, c] += times * log_probabilities[f, c]


@compiled
def sweep(indptr, events, counts, weights, log_probabilities, log_shares, expected, sizes):
    """One pass of EM: log likelihood, with expected counts (F, K) and class sizes (K,) into place.

    A sequence of weight 0 is passed over. One that no class can have made adds minus infinity and
    is counted nowhere.
    """
    k = log_shares.size
    expected[:] = 0.0
    sizes[:] = 0.0
    resp = np.empty(k)
    total = 0.0
    for i in range(indptr.size - 1):
        if weights[i] == 0.0:
            continue
        for c in range(k):
            resp[c] = log_shares[c]
        for e in range(indptr[i], indptr[i + 1]):
            times, f = counts[e], events[e]
            for c in range(k):
                resp[c] += times * log_probabilities[f, c]
        top = resp[0]
        for c in range(1, k):
            top = max(top, resp[c])
        if top == -np.inf:
            total = -np.inf
            continue
        mass = 0.0
        for c in range(k):
            resp[c] = np.exp(resp[c] - top)
            mass += resp[c]
        total += weights[i] * (top + np.log(mass))
        for c in range(k):
            resp[c] *= weights[i] / mass
            sizes[c] += resp[c]
        for e in range(indptr[i], indptr[i + 1]):
            times, f = counts[e], events[e]
            for c in range(k):
                expected[f, c] += times * resp[c]
    return total


@compiled
def expectation(places, weights, log_shares, log_levels, sizes, counts):
    """Expected sizes of the classes and counts of their levels; the log likelihood is returned.

    ``places`` (P, d) are rows of ``log_levels`` (L + 1, K), whose last row stands for a missing
    entry and is zero. ``sizes`` (K,) and ``counts`` (L + 1, K) are overwritten.
    """
    n_classes = log_shares.size
    terms = np.empty(n_classes)
    sizes[:] = 0.0
    counts[:] = 0.0
    total = 0.0
    for i in range(weights.size):
        w = weights[i]
        if w == 0.0:
            continue
        for k in range(n_classes):
            terms[k] = log_shares[k]
        for j in range(places.shape[1]):
            place = places[i, j]
            for k in range(n_classes):
                terms[k] += log_levels[place, k]
        peak = terms[0]
        for k in range(1, n_classes):
            peak = max(peak, terms[k])
        if peak == -math.inf:
            return -math.inf
        mass = 0.0
        for k in range(n_classes):
            terms[k] = math.exp(terms[k] - peak)
            mass += terms[k]
        total += w * (peak + math.log(mass))
        for k in range(n_classes):
            terms[k] *= w / mass
            sizes[k] += terms[k]
        for j in range(places.shape[1]):
            place = places[i, j]
            for k in range(n_classes):
                counts[place, k] += terms[k]
    return total
