"""The same rounds from second moments: a tenth of the time where rows are many.

The averaged predictions of linear fits without intercept are those of the averaged coefficients, so
a refit of site b minimises ``b'(V_b + rho U) b / 2 - (c_b + rho U beta)' b + penalty |b|_1`` with
``V_b = X_b'X_b / n_b``, ``c_b = X_b'y_b / n_b`` and ``U = A'A / m``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from replications.reference_averaging.simulate import SplitRows
from replications.reference_averaging.study import FloatArray, Weights

Solver = Callable[[FloatArray, FloatArray, float, FloatArray], FloatArray]
TOLERANCE, MOST = 1e-7, 10_000


@cache
def solver() -> Solver:
    """Coordinate descent on ``b'Qb / 2 - q'b + penalty |b|_1``, begun at given coefficients."""
    from numba import njit

    @njit(cache=False)  # type: ignore[untyped-decorator,unused-ignore]
    def descend(q_matrix: Any, q: Any, penalty: float, start: Any) -> Any:
        beta = start.copy()
        rest = q - q_matrix @ beta
        for _ in range(MOST):
            largest = 0.0
            for j in range(len(q)):
                square = q_matrix[j, j]
                inner = rest[j] + square * beta[j]
                new = np.sign(inner) * max(abs(inner) - penalty, 0.0) / square
                change = new - beta[j]
                if change != 0.0:
                    rest -= change * q_matrix[j]
                    beta[j] = new
                    largest = max(largest, abs(change))
            if largest < TOLERANCE:
                break
        return beta

    return descend


def curves(
    data: SplitRows,
    reference: FloatArray,
    schedules: dict[str, Weights],
    penalties: Sequence[float],
    n_rounds: int,
) -> dict[str, FloatArray]:
    """R2 of the pooled fit (g,), and of the average by schedule: (g, rounds + 1)."""
    shares = data.sizes / data.sizes.sum()
    moments = [(x.T @ x / len(y), x.T @ y / len(y)) for x, y in data.tables]
    u = reference.T @ reference / len(reference)
    whole = sum(w * v for w, (v, _) in zip(shares, moments, strict=True))
    cross = sum(w * c for w, (_, c) in zip(shares, moments, strict=True))
    fit, zero = solver(), np.zeros(len(u))
    found: dict[str, list[Any]] = {"global": [], **{name: [] for name in schedules}}
    for penalty in penalties:
        found["global"].append(data.r2(fit(np.asarray(whole), np.asarray(cross), penalty, zero)))
        first = [fit(v, c, penalty, zero) for v, c in moments]
        for name, weights in schedules.items():
            betas, curve = first, [data.r2(shares @ np.array(first))]
            for k in range(1, n_rounds + 1):
                rho, pull = weights.rho_of(k), u @ (shares @ np.array(betas))
                betas = [
                    fit(v + rho * u, c + rho * pull, penalty, beta)
                    for (v, c), beta in zip(moments, betas, strict=True)
                ]
                curve.append(data.r2(shares @ np.array(betas)))
            found[name].append(curve)
    return {name: np.array(values) for name, values in found.items()}
