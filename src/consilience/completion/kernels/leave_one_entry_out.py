"""One-step leave-one-out of every entry of a complete matrix, for all ranks or penalties at once.

For an entry (i, j) its row's scores are fitted again to the other entries of the row, with the
columns' vectors as they are; its column's to the other entries of the column, with the rows'
vectors as they are; the product of both predicts the entry. Both regressions lose one row of their
design, so that the formula of Sherman and Morrison gives every prediction from one singular value
decomposition.

Source: Ya Le's Stanford thesis, chapter 3. Departure: the source has ``1 + c`` where the formula of
Sherman and Morrison has ``1 - c``. ``variant="exact"`` is the right form, which equals fitting
again. One step does not let go of all that the decomposition took from the entry, so that its error
is flat, or still falls a little, beyond the true rank: expect it to choose too many.
``variant="as_printed"`` keeps the slip, which charges for leverage like a penalty that nobody has
derived; in simulations it often chooses the rank better.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.completion.kernels.low_rank import check_ranks, thin_svd
from consilience.exceptions import DataError, ParameterError

_VARIANTS = ("exact", "as_printed")
_LEVERAGE = 1e-9  # an entry whose row or column is fitted by it alone cannot be left out
_ZERO = 1e-12  # singular values below this share of the largest are rounding errors


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Errors of the entries when each is left out.

    Attributes
    ----------
    parameters : (A,) array
        Ranks, or penalties.
    errors : (A,) array
        Mean squared error per entry; infinite where some entry has no prediction, as it alone
        decides on its row or column.
    n_entries : int
    """

    parameters: NDArray[np.float64 | np.int64]
    errors: FloatArray
    n_entries: int


def leave_one_out_hard(
    x: FloatArray, ranks: Sequence[int] | None = None, *, variant: str = "exact"
) -> LeaveOneOut:
    """Errors of truncated singular value decompositions, O(n p k) for all ranks together.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    ranks : sequence of int, optional
        From 0 to min(n, p), increasing; by default all below min(n, p).
    variant : {"exact", "as_printed"}

    Raises
    ------
    ParameterError
        A rank or the variant is out of its range.
    DataError
        The matrix has missing or infinite entries.
    """
    x = _complete(x)
    chosen = list(range(min(x.shape))) if ranks is None else list(ranks)
    found = hard_predictions(x, chosen, variant=variant)
    return LeaveOneOut(np.array(chosen, dtype=np.int64), _mean_squares(x, found), x.size)


def leave_one_out_soft(
    x: FloatArray, alphas: Sequence[float], *, variant: str = "exact"
) -> LeaveOneOut:
    """Errors of soft-thresholded singular value decompositions.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    alphas : sequence of float
        Penalties of ``1/2 |X - M|_F^2 + alpha |M|_*``, above 0.
    variant : {"exact", "as_printed"}

    Raises
    ------
    ParameterError
        A penalty or the variant is out of its range.
    DataError
        The matrix has missing or infinite entries.
    """
    x = _complete(x)
    found = soft_predictions(x, alphas, variant=variant)
    return LeaveOneOut(np.array(alphas, dtype=np.float64), _mean_squares(x, found), x.size)


def hard_predictions(
    x: FloatArray, ranks: Sequence[int], *, variant: str = "exact"
) -> Iterator[FloatArray]:
    """Prediction of every entry from the others by rank, (n, p) each.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    ranks : sequence of int
        Increasing.
    variant : {"exact", "as_printed"}

    Yields
    ------
    (n, p) array
        NaN where an entry alone decides on its row or column.

    Raises
    ------
    ParameterError, DataError
        As in `leave_one_out_hard`.

    Notes
    -----
    With ``r = X^(k)_ij - X_ij``, ``c = v_j'v_j`` and ``d = u_i'u_i``: ``X^(k)_ij + r c / (1 - c) +
    r d / (1 - d) + r^2 u_i' D^-1 v_j / ((1 - c) (1 - d))``.
    """
    x = _complete(x)
    _check_variant(variant)
    ranks = check_ranks(ranks, *x.shape, increasing=True)
    u, s, v = thin_svd(x, accuracy=0.0)
    within = int((s > _ZERO * s[0]).sum())
    fit, cross = np.zeros(x.shape), np.zeros(x.shape)
    c, d = np.zeros(x.shape[1]), np.zeros(x.shape[0])
    done = 0
    for rank in ranks:
        new = slice(done, min(rank, within))
        fit += (u[:, new] * s[new]) @ v[:, new].T
        cross += (u[:, new] / s[new]) @ v[:, new].T
        c += (v[:, new] ** 2).sum(axis=1)
        d += (u[:, new] ** 2).sum(axis=1)
        done = max(done, min(rank, within))
        yield _left_out(x, fit, cross, c, d, variant)


def soft_predictions(
    x: FloatArray, alphas: Sequence[float], *, variant: str = "exact"
) -> Iterator[FloatArray]:
    """Prediction of every entry from the others by penalty, (n, p) each.

    Parameters
    ----------
    x : (n, p) array
        Complete.
    alphas : sequence of float
        Above 0.
    variant : {"exact", "as_printed"}

    Raises
    ------
    ParameterError, DataError
        As in `leave_one_out_soft`.

    Notes
    -----
    With S the thresholded values, a and b the rows of ``U S^1/2`` and ``V S^1/2``, ``Dt = alpha +
    S``, ``c = b' Dt^-1 b``, ``d = a' Dt^-1 a``: the formula of `hard_predictions` with
    ``a' Dt^-2 b`` in its last term. The regressions are ridge regressions with penalty alpha, whose
    solution at the complete matrix is the thresholded decomposition.
    """
    x = _complete(x)
    _check_variant(variant)
    for alpha in alphas:
        if not (np.isfinite(alpha) and alpha > 0):
            raise ParameterError.of("alpha", "a number above 0", alpha)
    u, s, v = thin_svd(x, accuracy=0.0)
    for alpha in alphas:
        kept = s > alpha
        shrunk = s[kept] - alpha
        weight = shrunk / (alpha + shrunk)
        left, right = u[:, kept], v[:, kept]
        fit = (left * shrunk) @ right.T
        cross = (left * (weight / (alpha + shrunk))) @ right.T
        c, d = right**2 @ weight, left**2 @ weight
        yield _left_out(x, fit, cross, c, d, variant)


def _left_out(
    x: FloatArray, fit: FloatArray, cross: FloatArray, c: FloatArray, d: FloatArray, variant: str
) -> FloatArray:
    """Predictions from the fit, the matrix of the last term, and leverages of columns and rows."""
    # 1 + c and X^(k) - X (1 + 2 c), as the thesis prints it
    if variant == "as_printed":
        r, q = fit - x * (1.0 + 2.0 * c), fit - x * (1.0 + 2.0 * d[:, None])
        by_row, by_column = 1.0 + c, 1.0 + d[:, None]
    else:
        r = q = fit - x
        free_c, free_d = 1.0 - c, 1.0 - d
        by_row = np.where(free_c > _LEVERAGE, free_c, np.nan)
        by_column = np.where(free_d > _LEVERAGE, free_d, np.nan)[:, None]
    r, q = r / by_row, q / by_column
    # r c / (1 - c) + r d / (1 - d) + r^2 u'D^-1 v / ((1 - c) (1 - d)), on top of X^(k)
    return np.asarray(fit + r * c + q * d[:, None] + r * q * cross)


def _mean_squares(x: FloatArray, predictions: Iterable[FloatArray]) -> FloatArray:
    means = np.array([((found - x) ** 2).mean() for found in predictions])
    return np.where(np.isfinite(means), means, np.inf)


def _check_variant(variant: str) -> None:
    if variant not in _VARIANTS:
        raise ParameterError.of("variant", '"exact" or "as_printed"', variant)


def _complete(x: FloatArray) -> FloatArray:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or x.size == 0:
        raise DataError(f"a matrix with rows and columns is needed, but its shape is {x.shape}")
    if not np.isfinite(x).all():
        raise DataError(
            "leaving out one entry at a time needs a complete matrix of finite numbers: with "
            "missing entries choose by folds of entries"
        )
    return x
