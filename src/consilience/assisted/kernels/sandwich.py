"""Sandwich covariance of the coefficients of a GLM, also where columns depend on one another.

With ``J = D' diag(w) D`` and ``K = D' diag(s^2) D`` (s and w first and second derivatives of the
loss at the fit), the covariance is ``J^- K J^-`` (Huber 1967; White 1980), times ``n / (n - rank)``
in small samples (HC1: MacKinnon and White 1985).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.numerics.families import Family

_DEPENDENT = 1e-13  # of squared lengths: columns that agree to about seven digits


@dataclass(frozen=True, eq=False)
class Sandwich:
    """Covariances of the coefficients of a design.

    Attributes
    ----------
    covariance : (d, d) array
        Sandwich, with the factor for small samples.
    model : (d, d) array
        ``J^-``: right where the variance function is.
    null : (d, m) array
        Orthonormal combinations of coefficients that change no linear predictor, in units in which
        every column has length 1: what only their sum with another column's coefficient tells.
    lengths : (d,) array
        Those units.
    rank : int
    """

    covariance: FloatArray
    model: FloatArray
    null: FloatArray
    lengths: FloatArray
    rank: int

    def identified(self, combinations: FloatArray) -> NDArray[np.bool_]:
        """Whether combinations of coefficients (m, d) mean something on their own."""
        scaled = np.asarray(combinations) / self.lengths
        size = np.linalg.norm(scaled, axis=1)
        return np.asarray(np.linalg.norm(scaled @ self.null, axis=1) <= 1e-6 * size)

    def variance(self, combinations: FloatArray) -> FloatArray:
        """Variance of each combination (m, d) of coefficients."""
        c = np.asarray(combinations)
        return np.asarray(np.einsum("id,id->i", c @ self.covariance, c))


def sandwich(
    design: FloatArray,
    y: FloatArray,
    eta: FloatArray,
    family: Family,
    weights: FloatArray | None = None,
) -> Sandwich:
    """Compute the covariances at a fit.

    Parameters
    ----------
    design : (n, d) array
    y, eta : (n,) arrays
    family : Family
    weights : (n,) array, optional
        Case weights; rows of weight 0 take no part.
    """
    v = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=float)
    used = v > 0
    d, y, eta, v = design[used], y[used], eta[used], v[used]
    # observed second derivatives; under a mask they may be negative
    w = family.expected_weight(eta) if family.mask else family.weight(y, eta)
    w, s = v * w, v * family.score(y, eta)
    # unit columns, so that dependence does not hang on units
    lengths = np.sqrt((np.abs(w)[:, None] * d**2).sum(axis=0))
    lengths = np.where(lengths > 0, lengths, 1.0)
    unit = d / lengths
    # J = D'diag(w)D
    size, turn = np.linalg.eigh(unit.T @ (w[:, None] * unit))
    kept = size > _DEPENDENT * size.max(initial=0.0) * max(unit.shape[1], 1)
    rank = int(kept.sum())
    # J^-: no inverse along combinations that change no predictor
    inverse = (turn[:, kept] / size[kept]) @ turn[:, kept].T
    outer = np.outer(lengths, lengths)
    # HC1: n / (n - rank)
    factor = len(y) / max(len(y) - rank, 1)
    # K = D'diag(s^2)D
    middle = unit.T @ ((s**2)[:, None] * unit)
    return Sandwich(
        covariance=factor * (inverse @ middle @ inverse) / outer,
        model=inverse / outer,
        null=turn[:, ~kept],
        lengths=lengths,
        rank=rank,
    )
