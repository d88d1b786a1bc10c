"""Standard errors of chances that are fitted through their logits.

Source: McLachlan and Peel, *Finite Mixture Models*, 2000, chapter 2: the inverse of the empirical
information, taken back to chances by the delta method.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray

_SINGULAR = 1e-11


def logit_jacobian(blocks: Sequence[FloatArray]) -> FloatArray:
    """Derivatives of chances by their logits.

    Parameters
    ----------
    blocks : sequence of arrays
        Chances that add up to 1 in each block.

    Returns
    -------
    (q, q) array
        ``diag(p) - p p'`` of each block along the diagonal, q chances in all.
    """
    size = sum(p.size for p in blocks)
    full, begin = np.zeros((size, size)), 0
    for p in blocks:
        end = begin + p.size
        full[begin:end, begin:end] = np.diag(p) - np.outer(p, p)
        begin = end
    return full


def chance_errors(
    information: FloatArray, jacobian: FloatArray, free: NDArray[np.bool_]
) -> FloatArray:
    """Standard errors of all chances.

    Parameters
    ----------
    information : (q, q) array
        Empirical information of all logits.
    jacobian : (q, q) array
        Of :func:`logit_jacobian`.
    free : (q,) array of bool
        Logits that were fitted; the others are references, or known.

    Returns
    -------
    (q,) array
        0 where nothing was fitted, NaN throughout where the information has no inverse.
    """
    if not free.any():
        return np.zeros(len(free))
    inner = information[np.ix_(free, free)]
    scale = np.sqrt(np.diag(inner))
    if (scale == 0).any():
        return np.full(len(free), np.nan)
    values, vectors = np.linalg.eigh(inner / np.outer(scale, scale))
    if values[0] <= _SINGULAR * values[-1]:
        return np.full(len(free), np.nan)
    root = jacobian[:, free] / scale @ (vectors / np.sqrt(values))
    return np.asarray(np.sqrt((root**2).sum(axis=1)))
