"""Parameters of sparse quadratic discriminant analysis over sites: what is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.discriminant.federated_sparse_qda.messages import MAX_ALPHAS
from consilience.exceptions import ParameterError

if TYPE_CHECKING:
    from consilience.discriminant.federated_sparse_qda import FederatedSparseQDA

CHOICES = ("auto", "likelihood", "sites", "holdout")
TIES = ("sparsest", "densest", "middle")
SMALLEST = 0.02
"""Penalty for a row at which links are asked for first, unless given."""


def check_parameters(method: FederatedSparseQDA) -> None:
    """Check the parameters.

    Raises
    ------
    ParameterError
    """
    if method.alpha is not None and not (_real(method.alpha) and 0 <= method.alpha <= 1):
        raise ParameterError.of("alpha", "a number from 0 to 1, or left out", method.alpha)
    grid = method.alphas
    rising = all(_real(a) and 0 <= a <= 1 for a in grid) and len(set(grid)) == len(grid)
    if not rising or len(grid) > MAX_ALPHAS:
        raise ParameterError.of("alphas", f"up to {MAX_ALPHAS} different numbers from 0 to 1", grid)
    if not _whole(method.n_alphas, 2, MAX_ALPHAS):
        allowed = f"a whole number from 2 to {MAX_ALPHAS}"
        raise ParameterError.of("n_alphas", allowed, method.n_alphas)
    smallest = method.smallest
    if smallest != "auto" and not (isinstance(smallest, float) and 0 < smallest < 1):
        raise ParameterError.of("smallest", "'auto' or a number between 0 and 1", smallest)
    for name, choices in (("choose", CHOICES), ("ties", TIES)):
        if getattr(method, name) not in choices:
            raise ParameterError.of(name, f"one of {', '.join(choices)}", getattr(method, name))
    if not (method.screening == "auto" or isinstance(method.screening, bool)):
        raise ParameterError.of("screening", "'auto', true or false", method.screening)
    if not (_real(method.holdout) and 0 <= method.holdout <= 0.5):
        raise ParameterError.of("holdout", "a share from 0 to .5", method.holdout)
    if method.choose == "holdout" and method.alpha is None and method.holdout == 0:
        raise ParameterError.of("holdout", "above 0 where held-out rows choose", method.holdout)
    if not _whole(method.max_block, 2, 100_000):
        raise ParameterError.of("max_block", "a whole number of at least 2", method.max_block)
    if not (_real(method.tol) and 0 < method.tol < 1):
        raise ParameterError.of("tol", "a number between 0 and 1", method.tol)
    _check_priors(method.priors)


def _check_priors(priors: Any) -> None:
    good = all(_real(share) and share > 0 for share in priors)
    if not good or (len(priors) and abs(sum(priors) - 1) > 1e-6):
        raise ParameterError.of("priors", "one share for each class, together 1", priors)


def levels_of(method: FederatedSparseQDA) -> FloatArray:
    """Penalties at which links may be asked for, falling."""
    if method.alpha is not None:
        return np.array([float(method.alpha)])
    if method.alphas:
        return np.sort(np.array(method.alphas, dtype=float))[::-1].copy()
    smallest = SMALLEST if isinstance(method.smallest, str) else method.smallest
    return np.geomspace(1.0, smallest, method.n_alphas)


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _real(value: Any) -> bool:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and bool(np.isfinite(value))
