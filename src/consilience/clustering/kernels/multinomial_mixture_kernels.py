"""Compiled pass of EM for mixtures of products of multinomials.

Imported on first use: it loads numba. One thread, one order.
"""

from __future__ import annotations

import math

import numpy as np

from consilience.numerics.observed_kmeans_kernels import compiled


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
