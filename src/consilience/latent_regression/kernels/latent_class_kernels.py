"""Compiled loops of latent class regression: random numbers, sums, factors of one class.

Imported on first use: it loads numba. Every loop runs on one thread in one order; an entity's
numbers do not depend on which entities are computed beside it. A pivot of ``D = I / delta^2 +
(positive semidefinite)`` is at least ``1 / delta^2``: one that rounding has pushed below is raised.
One that is nothing but rounding beside its diagonal element is raised and its column cleared. So a
factorisation can only fail by overflow, which the caller sees as a number that is not finite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache

ROUNDING = 64 * 2.0**-52
"""Pivots below this times the size times their diagonal element are rounding errors."""

_SOURCES = hashlib.sha256(
    b"".join(
        Path(__file__).with_name(f"latent_class_{name}.py").read_bytes()
        for name in ("kernels", "lanes", "density", "chains")
    )
).hexdigest()


class _Cache(FunctionCache):  # type: ignore[misc]
    """Compiled code that counts as old once any of these modules changed.

    They are compiled into one another; numba itself looks at the file of the outer function only.
    """

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(signature, codegen), _SOURCES)


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use, and keep the result where there is a place to keep it."""
    dispatcher: Any = njit(nogil=True, fastmath={"contract"})(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        return dispatcher
    return dispatcher


class Events(NamedTuple):
    """Arrays of blocks."""

    products: Any
    cross: Any
    squares: Any
    n: Any
    x: Any
    y: Any
    start: Any


class Sums(NamedTuple):
    """Arrays of totals."""

    products: Any
    cross: Any
    squares: Any
    n: Any
    counts: Any


class State(NamedTuple):
    """Arrays of classes."""

    precision: Any
    linear: Any
    cholesky: Any
    mean: Any
    log_det: Any


@compiled
def mix(h):
    """Finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@compiled
def uniform(key, round_number, position):
    """One number in (0, 1) for key, round and position."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    h = mix(key + golden * (round_number + np.uint64(1)))
    h = mix(h ^ mix(golden * (position + np.uint64(1))))
    return (np.float64(h >> np.uint64(12)) + 0.5) * 2.0**-52


@compiled
def uniforms(keys, round_number, positions, out):
    """Fill `out` with one number for each key and position."""
    for i in range(out.size):
        out[i] = uniform(keys[i], round_number, positions[i])


@compiled
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


@compiled
def add_entities(events, first, last, labels, part):
    """Add entities to the rows of their classes: products, cross, squares, n and count."""
    f = events.cross.shape[1]
    at = f * f
    for e in range(first, last):
        c = labels[e]
        if c < 0:
            continue
        for i in range(f):
            for j in range(f):
                part[c, i * f + j] += events.products[e, i, j]
            part[c, at + i] += events.cross[e, i]
        part[c, at + f] += events.squares[e]
        part[c, at + f + 1] += events.n[e]
        part[c, at + f + 2] += 1.0


@compiled
def sum_classes(events, agent_start, labels, n_classes):
    """Class sums of each agent, added up by a pairwise tree that is kept as a binary counter.

    Level l holds the sum over 2^l agents that waits for its neighbour: all sums of all agents never
    exist at the same time.
    """
    f = events.cross.shape[1]
    n_agents = agent_start.size - 1
    levels = 2
    while (1 << levels) <= n_agents:
        levels += 1
    waiting = np.zeros((levels + 1, n_classes, f * f + f + 3))
    full = np.zeros(levels + 1, dtype=np.bool_)
    part = np.zeros((n_classes, f * f + f + 3))
    for a in range(n_agents):
        part[:] = 0.0
        add_entities(events, agent_start[a], agent_start[a + 1], labels, part)
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
    return part


@compiled
def factor(a, floor, before):
    """Lower Cholesky factor in place of the lower triangle; returns the log determinant.

    The diagonal of `before`, what `a` was computed from, says how large its rounding errors are.
    Column by column, four rows at once: their sums do not wait for one another.
    """
    log_det = 0.0
    size = a.shape[0]
    for j in range(size):
        left = a[j, j]
        for p in range(j):
            left -= a[j, p] * a[j, p]
        rounding = ROUNDING * size * before[j, j]
        clear = left < rounding
        left = max(left, floor, rounding)
        log_det += np.log(left)
        root = np.sqrt(left)
        a[j, j] = root
        if clear:
            a[j + 1 :, j] = 0.0
            continue
        i = j + 1
        while i + 4 <= size:
            s0, s1, s2, s3 = a[i, j], a[i + 1, j], a[i + 2, j], a[i + 3, j]
            for p in range(j):
                pivot = a[j, p]
                s0 -= a[i, p] * pivot
                s1 -= a[i + 1, p] * pivot
                s2 -= a[i + 2, p] * pivot
                s3 -= a[i + 3, p] * pivot
            a[i, j], a[i + 1, j], a[i + 2, j], a[i + 3, j] = (
                s0 / root,
                s1 / root,
                s2 / root,
                s3 / root,
            )
            i += 4
        while i < size:
            s0 = a[i, j]
            for p in range(j):
                s0 -= a[i, p] * a[j, p]
            a[i, j] = s0 / root
            i += 1
    return log_det


@compiled
def solve_lower(low, b):
    """Solve with the lower factor, in place."""
    for i in range(b.size):
        left = b[i]
        for p in range(i):
            left -= low[i, p] * b[p]
        b[i] = left / low[i, i]


@compiled
def solve_upper(low, b):
    """Solve with the transpose of the lower factor."""
    for i in range(b.size - 1, -1, -1):
        left = b[i]
        for p in range(i + 1, b.size):
            left -= low[p, i] * b[p]
        b[i] = left / low[i, i]


@compiled
def factor_class(products, cross, inv_sigma2, floor, state, k):
    """Precision, its factor, linear part and mean of class k from its sums."""
    f = cross.size
    precision, low = state.precision[k], state.cholesky[k]
    linear, mean = state.linear[k], state.mean[k]
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
    state.log_det[k] = factor(low, floor, precision)
    solve_lower(low, mean)
    solve_upper(low, mean)


@compiled
def factor_classes(products, cross, inv_sigma2, floor, state):
    """Factor every class."""
    for k in range(cross.shape[0]):
        factor_class(products[k], cross[k], inv_sigma2, floor, state, k)
