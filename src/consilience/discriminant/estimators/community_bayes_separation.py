"""Whether classes can be told apart without error by planes: then likelihoods have no maximum."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray

LARGEST_PROGRAM = 300_000
"""Rules times unknowns of the linear program that is still solved (about 2 s); beyond it only the
errors of the base are looked at."""


class SeparationWarning(UserWarning):
    """The coefficients of a linear base classifier hang on its penalty alone."""


def is_linear(fitted: Any) -> bool:
    """Whether a fitted base, or the last step of a pipeline, has coefficients."""
    return hasattr(fitted[-1] if hasattr(fitted, "steps") else fitted, "coef_")


def separated(fitted: Any, x: FloatArray, codes: IntArray) -> bool:
    """Whether the classes of the training rows can be told apart without error.

    Parameters
    ----------
    fitted : classifier
        Fitted to these rows.
    x : (n, q) array
    codes : (n,) array of int

    Returns
    -------
    bool
        The base makes no error or, if it is linear, some linear rule makes none.
    """
    if bool((np.asarray(fitted.predict(x)) == codes).all()):
        return True
    return is_linear(fitted) and linearly_separable(x, codes) is True


def linearly_separable(x: FloatArray, codes: IntArray) -> bool | None:
    """Whether a linear rule tells the classes apart with a margin; None where it was not tried.

    A row x of class k asks for ``(w_k - w_c) . (1, x) >= 1`` against each other class c: a linear
    program that has a solution exactly if the classes are separable (Albert and Anderson,
    *Biometrika* 71 (1984), section 3).

    Parameters
    ----------
    x : (n, q) array
    codes : (n,) array of int

    Returns
    -------
    bool or None
    """
    from scipy import sparse
    from scipy.optimize import linprog

    levels, codes = np.unique(codes, return_inverse=True)
    k, (n, q) = len(levels), x.shape
    if k < 2:
        return True
    if n * (k - 1) * (k - 1) * (q + 1) > LARGEST_PROGRAM:
        return None
    scale = np.abs(x - x.mean(axis=0)).max(axis=0)
    design = np.column_stack([np.ones(n), (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
    blocks = []
    for c in range(k):
        rows = np.flatnonzero(codes != c)
        signs = np.zeros((len(rows), k))
        signs[:, c] = 1.0
        signs[np.arange(len(rows)), codes[rows]] = -1.0
        # w_0 = 0: only differences count.
        blocks.append(
            sparse.csr_matrix(
                (signs[:, 1:, None] * design[rows][:, None, :]).reshape(len(rows), -1)
            )
        )
    rule = sparse.vstack(blocks, format="csc")
    answer = linprog(
        np.zeros(rule.shape[1]),
        A_ub=rule,
        b_ub=-np.ones(rule.shape[0]),
        bounds=(None, None),
        method="highs",
    )
    return bool(answer.status == 0) if answer.status in (0, 2) else None


def warn_of_separation(fitted: Any, separable: IntArray, n_communities: int) -> None:
    """Say that the fits of some communities hang on the penalty of a linear base."""
    if len(separable) and is_linear(fitted):
        warnings.warn(
            f"the classes can be told apart without error in {len(separable)} of "
            f"{n_communities} communities (separable_): there the coefficients hang on the "
            "penalty of the base alone; compare several penalties through param_grid",
            SeparationWarning,
            stacklevel=3,
        )
