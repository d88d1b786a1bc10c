"""EM of a mixture of Markov chains as in the books: one sequence after the other.

Every time point is visited; a time point where nothing was seen is a hidden one of the forward and
backward recursions. Written from the formulas, in logarithms, without any of the package's code.
Sequences are lists of states 0 to S - 1, or -1 where nothing was seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def _log(x: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.log(x)


def log_sum(x: FloatArray, axis: int | None = None) -> FloatArray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.logaddexp.reduce(np.asarray(x), axis=axis)


def _seen(state: int, n_states: int) -> FloatArray:
    """Log chance of what was seen given the state."""
    row = np.full(n_states, 0.0 if state < 0 else -np.inf)
    if state >= 0:
        row[state] = 0.0
    return row


def forward(sequence: Sequence[int], initial: FloatArray, transition: FloatArray) -> FloatArray:
    """Log chance of what was seen up to t and the state at t, (length, S)."""
    size = len(initial)
    alpha = np.empty((len(sequence), size))
    for t, state in enumerate(sequence):
        before = (
            _log(initial)
            if t == 0
            else np.array(
                [log_sum(alpha[t - 1] + _log(transition)[:, b]) for b in range(size)], dtype=float
            )
        )
        alpha[t] = before + _seen(state, size)
    return alpha


def backward(sequence: Sequence[int], transition: FloatArray) -> FloatArray:
    """Log chance of what is seen after t given the state at t, (length, S)."""
    size = len(transition)
    beta = np.zeros((len(sequence), size))
    for t in range(len(sequence) - 2, -1, -1):
        ahead = _seen(sequence[t + 1], size) + beta[t + 1]
        beta[t] = [log_sum(_log(transition)[a] + ahead) for a in range(size)]
    return beta


def log_chance(sequence: Sequence[int], initial: FloatArray, transition: FloatArray) -> float:
    """Log probability of a sequence under one chain; 0 of one that says nothing."""
    if len(sequence) == 0:
        return 0.0
    return float(log_sum(forward(sequence, initial, transition)[-1]))


def last_seen(sequence: Sequence[int]) -> int:
    """Time points up to the last one that was seen."""
    return max((t + 1 for t, state in enumerate(sequence) if state >= 0), default=0)


def em_step(
    sequences: Sequence[Sequence[int]],
    weights: Sequence[float],
    initial: FloatArray,
    transition: FloatArray,
    shares: FloatArray,
    pseudo_count: float,
) -> tuple[float, FloatArray, FloatArray, FloatArray]:
    """Log likelihood of the parameters, and the next ones."""
    k, size = initial.shape
    total = 0.0
    first = np.zeros((k, size))
    steps = np.zeros((k, size, size))
    mass = np.zeros(k)
    for sequence, weight in zip(sequences, weights, strict=True):
        used = sequence[: last_seen(sequence)]
        each = [np.log(shares[c]) + log_chance(used, initial[c], transition[c]) for c in range(k)]
        whole = float(log_sum(np.array(each)))
        total += weight * whole
        for c in range(k):
            share = weight * np.exp(each[c] - whole)
            mass[c] += share
            if len(used) == 0:
                continue
            alpha, beta = forward(used, initial[c], transition[c]), backward(used, transition[c])
            level = log_sum(alpha[-1])
            first[c] += share * np.exp(alpha[0] + beta[0] - level)
            for t in range(1, len(used)):
                pair = (
                    alpha[t - 1][:, None]
                    + _log(transition[c])
                    + (_seen(used[t], size) + beta[t])[None, :]
                )
                steps[c] += share * np.exp(pair - level)
    first, steps = first + pseudo_count, steps + pseudo_count
    return (
        total,
        first / first.sum(axis=1, keepdims=True),
        steps / steps.sum(axis=2, keepdims=True),
        mass / mass.sum(),
    )


def em(
    sequences: Sequence[Sequence[int]],
    weights: Sequence[float],
    initial: FloatArray,
    transition: FloatArray,
    shares: FloatArray,
    *,
    pseudo_count: float,
    n_iter: int,
) -> tuple[list[float], FloatArray, FloatArray, FloatArray]:
    """Log likelihoods before each of so many steps, and the parameters after them."""
    trace = []
    for _ in range(n_iter):
        value, initial, transition, shares = em_step(
            sequences, weights, initial, transition, shares, pseudo_count
        )
        trace.append(value)
    return trace, initial, transition, shares
