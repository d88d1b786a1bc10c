"""Compiled loops of the mixture of Markov chains.

Imported on first use: it loads numba. One thread, one order. Of each distinct sequence there are
the events that it is made of (a first state, a step from state to state) with their counts, as
pieces of ``events`` and ``counts`` between its pointers; ``log_chances`` are (F, K).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use, and keep the result where there is a place to keep it."""
    dispatcher: Any = njit(nogil=True, fastmath={"contract"})(function)
    try:
        dispatcher._cache = FunctionCache(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        return dispatcher
    return dispatcher


@compiled
def joint(indptr, events, counts, log_chances, log_shares, out):
    """Log probability of each sequence together with each class, (D, K), into out."""
    k = log_shares.size
    for i in range(indptr.size - 1):
        for c in range(k):
            out[i, c] = log_shares[c]
        for e in range(indptr[i], indptr[i + 1]):
            times, f = counts[e], events[e]
            for c in range(k):
                out[i, c] += times * log_chances[f, c]


@compiled
def sweep(indptr, events, counts, weights, log_chances, log_shares, expected, sizes):
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
                resp[c] += times * log_chances[f, c]
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
