"""Curvature of a site's fit in which no row rules a cell."""

from __future__ import annotations

import numpy as np

from consilience.arrays import FloatArray

_MOST_PASSES = 100
_MARGIN = 1e-6


def row_factors(rows: FloatArray, weights: FloatArray, max_share: float) -> FloatArray:
    """Factors of the rows' weights with which none has more than a share of any cell.

    Sites are joined by any curvatures that weigh them: less weight of a row changes how much the
    site's fit counts in some direction, and not the fit.

    Parameters
    ----------
    rows : (n, q) array
    weights : (n, k) array
        Cells are ``sum_i w_ik x_ij x_il``.
    max_share : float
        Below 1.

    Returns
    -------
    (n,) array
        In [0, 1].
    """
    factors = np.ones(len(rows))
    ratio = max_share / (1.0 - max_share) * (1.0 - _MARGIN)
    for _ in range(_MOST_PASSES):
        limits = np.ones(len(rows))
        for w in np.abs(weights).T:
            scaled = np.abs(rows) * np.sqrt(w * factors)[:, None]
            for j in range(rows.shape[1]):
                terms = scaled[:, j:] * scaled[:, [j]]
                place = terms.argmax(axis=0)
                peak = terms[place, np.arange(terms.shape[1])]
                rest = terms.sum(axis=0) - peak
                over = peak > ratio * rest
                np.minimum.at(limits, place[over], ratio * rest[over] / peak[over])
        if (limits >= 1.0).all():
            return factors
        factors = factors * limits
    return factors
