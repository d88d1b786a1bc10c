"""Rank correlations of rows, and what they say of a correlation under monotone transforms.

Source: Liu, Han, Yuan, Lafferty and Wasserman, *High-dimensional semiparametric Gaussian copula
graphical models*, Annals of Statistics 40 (2012), section 4: the nonparanormal SKEPTIC.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.exceptions import DataError

__all__ = ["skeptic", "spearman"]


def spearman(x: ArrayLike) -> FloatArray:
    """Spearman's correlations of the columns.

    Parameters
    ----------
    x : (n, p) array
        Finite numbers; at least one row.

    Returns
    -------
    (p, p) array
        Correlations of average ranks. A constant column has no rank correlation: its row and its
        column are 0, on the diagonal too. With one row all are 0.

    Raises
    ------
    DataError
        No table of finite numbers.
    """
    from scipy.stats import rankdata

    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or not np.isfinite(rows).all():
        raise DataError("rank correlations need a table of finite numbers with one row or more")
    # Ranks are multiples of one half, so a constant column is exactly 0 after centring.
    ranks = rankdata(rows, axis=0) - (len(rows) + 1) / 2.0
    norms = np.sqrt((ranks**2).sum(axis=0))
    ranks /= np.where(norms > 0, norms, 1.0)
    found = ranks.T @ ranks
    np.clip(found, -1.0, 1.0, out=found)
    np.fill_diagonal(found, (norms > 0).astype(float))
    return np.asarray(found)


def skeptic(rho: ArrayLike) -> FloatArray:
    """Correlation of normal scores behind a Spearman correlation: ``2 sin(pi/6 rho)``.

    Parameters
    ----------
    rho : (p, p) array
        Within [-1, 1].

    Returns
    -------
    (p, p) array
        With a unit diagonal.
    """
    found = np.pi / 6.0 * np.asarray(rho, dtype=np.float64)
    np.sin(found, out=found)
    found *= 2.0
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)
