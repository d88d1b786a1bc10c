"""Multinomial logistic regression with a ridge penalty: its pieces for Newton's method, and a fit.

Scores of m classes are ``x~ Phi' Q'`` with the design ``x~ = (1, x)``, free coefficients ``Phi``
(m - 1, q + 1) and contrasts ``Q`` (m, m - 1) whose columns sum to zero. For two classes Phi is one
row, the log odds of the second class; for more the columns of Q are orthonormal, so that the
penalty ``|Phi|^2`` is that of the m rows ``Q Phi`` which sum to zero. Both are the minimum of
``C sum loss + |coefficients|^2 / 2`` with intercepts left free, as scikit-learn states it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError

MAX_STEPS = 200
TOLERANCE = 1e-12
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Pieces:
    """Sums over rows at given coefficients.

    Attributes
    ----------
    loss : float
        Minus the log likelihood.
    gradient : (P,) array
        By the entries of Phi, row by row.
    curvature : (P, P) array
    """

    loss: float
    gradient: FloatArray
    curvature: FloatArray


def contrasts(n_classes: int) -> FloatArray:
    """Columns that sum to zero: (m, m - 1)."""
    if n_classes == 2:
        return np.array([[-0.5], [0.5]])
    found = np.zeros((n_classes, n_classes - 1))
    for a in range(n_classes - 1):  # Helmert
        found[: a + 1, a], found[a + 1, a] = 1.0, -(a + 1.0)
        found[:, a] /= np.sqrt((a + 1.0) * (a + 2.0))
    return found


def design_of(x: FloatArray) -> FloatArray:
    """Rows with a leading 1."""
    return np.column_stack([np.ones(len(x)), x])


def log_probabilities(design: FloatArray, phi: FloatArray, q: FloatArray) -> FloatArray:
    """Log probabilities of the classes, (n, m)."""
    return log_softmax(design @ phi.T @ q.T)


def log_softmax(scores: FloatArray) -> FloatArray:
    """Log probabilities from scores: each row less its log-sum-exp.

    Parameters
    ----------
    scores : (n, m) array
        Up to a constant in each row; -inf for what cannot be, but not in all of a row.

    Returns
    -------
    (n, m) array
        A row's numbers do not depend on the other rows.
    """
    eta = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(eta - np.log(np.exp(eta).sum(axis=1, keepdims=True)), dtype=np.float64)


def row_weights(probabilities: FloatArray, q: FloatArray) -> FloatArray:
    """Curvature of each row's loss, ``Q' (diag p - p p') Q``: (n, m - 1, m - 1)."""
    mixed = probabilities @ q
    own = np.einsum("ik,ka,kb->iab", probabilities, q, q)
    return np.asarray(own - mixed[:, :, None] * mixed[:, None, :])


def weighted_products(design: FloatArray, weights: FloatArray) -> FloatArray:
    """Sums ``w_i x x'`` with a matrix of weights for each row, (P, P).

    Parameters
    ----------
    design : (n, w) array
    weights : (n, m - 1, m - 1) array
    """
    m, width = weights.shape[1], design.shape[1]
    found = np.empty((m, width, m, width))
    for a in range(m):
        for b in range(a, m):
            block = (design * weights[:, a, b, None]).T @ design
            found[a, :, b], found[b, :, a] = block, block.T
    square = found.reshape(m * width, m * width)
    return np.asarray((square + square.T) / 2)


def pieces(design: FloatArray, codes: IntArray, phi: FloatArray, q: FloatArray) -> Pieces:
    """Loss, gradient and curvature of some rows.

    Parameters
    ----------
    design : (n, q + 1) array
        With the leading 1.
    codes : (n,) int array
        Class of each row, below m.
    phi : (m - 1, q + 1) array
    q : (m, m - 1) array
        From :func:`contrasts`.
    """
    log_p = log_probabilities(design, phi, q)
    p = np.exp(log_p)
    # Gradient by Phi: residuals in the contrasts, times the design.
    residual = p @ q - q[codes]
    return Pieces(
        loss=float(-log_p[np.arange(len(codes)), codes].sum()),
        gradient=np.asarray((residual.T @ design).ravel()),
        curvature=weighted_products(design, row_weights(p, q)),
    )


def penalised(found: Pieces, phi: FloatArray, ridge: float) -> Pieces:
    """The same with ``ridge |coefficients|^2 / 2``; intercepts, the first column, are free."""
    mask = np.ones_like(phi)
    mask[:, 0] = 0.0
    pull = ridge * mask * phi
    return Pieces(
        loss=found.loss + 0.5 * float((pull * phi).sum()),
        gradient=found.gradient + pull.ravel(),
        curvature=found.curvature + np.diag(ridge * mask.ravel()),
    )


def newton_step(found: Pieces) -> tuple[FloatArray, float]:
    """What Newton's method adds to the coefficients, (P,), and twice what this should gain.

    Raises
    ------
    DataError
        The curvature has no inverse.
    """
    # Of unit diagonal: columns may have any units.
    scale = np.sqrt(np.maximum(np.diag(found.curvature), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    try:
        step = np.linalg.solve(found.curvature / np.outer(scale, scale), found.gradient / scale)
    except np.linalg.LinAlgError:
        raise DataError(
            "the coefficients are not determined: give a smaller C, or drop columns"
        ) from None
    step = np.asarray(-step / scale)
    return step, float(-found.gradient @ step)


def fit(x: FloatArray, codes: IntArray, n_classes: int, ridge: float) -> FloatArray:
    """Fit by Newton's method with halved steps.

    Parameters
    ----------
    x : (n, q) array
    codes : (n,) int array
        Every class has rows.
    n_classes : int
    ridge : float
        ``1 / C``, positive.

    Returns
    -------
    (m - 1, q + 1) array
        Phi, intercepts first.

    Raises
    ------
    DataError
        The coefficients are not determined by these rows.
    """
    q, design = contrasts(n_classes), design_of(x)
    phi = np.zeros((n_classes - 1, design.shape[1]))
    found = penalised(pieces(design, codes, phi, q), phi, ridge)
    for _ in range(MAX_STEPS):
        step, expected = newton_step(found)
        if not expected > TOLERANCE * TOLERANCE * max(len(x), 1):
            break
        size = 1.0
        for _ in range(_HALVINGS):
            new = phi + size * step.reshape(phi.shape)
            after = penalised(pieces(design, codes, new, q), new, ridge)
            # Sufficient decrease (Armijo), beside rounding.
            if after.loss <= found.loss - 1e-4 * size * expected + 1e-12 * abs(found.loss):
                break
            size /= 2
        else:
            break
        phi, found = new, after
    return phi


def as_rows(phi: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Coefficients and intercepts as scikit-learn has them: one row for two classes, else m rows.

    Returns
    -------
    coefficients : (1 or m, q) array
    intercepts : (1 or m,) array
    """
    rows = phi if len(phi) == 1 else contrasts(len(phi) + 1) @ phi
    return np.asarray(rows[:, 1:]), np.asarray(rows[:, 0])
