"""Matrices of low rank as their singular vectors and values, and singular value decompositions.

`check_ranks` says which ranks a matrix can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.parameters import is_whole


def check_ranks(ranks: Sequence[int], n: int, p: int, *, increasing: bool = False) -> list[int]:
    """Refuse ranks that no n x p matrix has.

    Parameters
    ----------
    ranks : sequence of int
    n, p : int
    increasing : bool
        Whether each must be above the one before.

    Returns
    -------
    list of int

    Raises
    ------
    ParameterError
        A rank is not a whole number from 0 to min(n, p), or they do not increase.
    """
    top = min(n, p)
    for rank in ranks:
        if not is_whole(rank) or not 0 <= rank <= top:
            allowed = f"a whole number from 0 to {top}, as there are {n} rows and {p} columns"
            raise ParameterError.of("rank", allowed, rank)
    found = [int(rank) for rank in ranks]
    if increasing and any(after <= before for before, after in pairwise(found)):
        raise ParameterError.of("ranks", "increasing", found)
    return found


def check_steps(tol: float, max_iter: int) -> None:
    """Refuse a tolerance that nothing meets, and a number of steps that gets nowhere.

    Parameters
    ----------
    tol : float
    max_iter : int

    Raises
    ------
    ParameterError
    """
    if not (np.isfinite(tol) and tol > 0):
        raise ParameterError.of("tol", "a number above 0", tol)
    if max_iter < 1:
        raise ParameterError.of("max_iter", "a whole number from 1", max_iter)


_CHUNK = 1 << 15  # entries whose vectors are gathered at a time


@dataclass(frozen=True, eq=False, repr=False)
class LowRankFit:
    """A matrix ``u diag(s) v'`` with how it was found.

    Parameters
    ----------
    u : (n, k) array
        Left singular vectors, orthonormal columns.
    s : (k,) array
        Singular values, positive, decreasing.
    v : (p, k) array
        Right singular vectors, orthonormal columns; of each the entry that is largest in absolute
        value is positive (:func:`flip_signs`).
    objective : float
        The criterion at this matrix; of a hard one half the sum of squared residuals.
    n_iter : int
        Iterations spent on this fit.
    n_svd : int
        Singular value decompositions, or passes that stand in for one, spent on this fit.
    converged : bool
    gap : float, optional
        Relative duality gap: a bound for how far the criterion is from its minimum, over the
        criterion. None where the problem has none.
    alpha : float, optional
        Nuclear-norm penalty; None for a hard rank.
    capped : bool
        A largest rank was binding: the gap then bounds nothing.
    """

    u: FloatArray
    s: FloatArray
    v: FloatArray
    objective: float
    n_iter: int = 0
    n_svd: int = 0
    converged: bool = True
    gap: float | None = None
    alpha: float | None = None
    capped: bool = False

    def __repr__(self) -> str:
        n, p = self.shape
        return f"LowRankFit({n} x {p}, rank {self.rank})"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.u), len(self.v)

    @property
    def rank(self) -> int:
        """Number k of singular values."""
        return len(self.s)

    def scores(self) -> FloatArray:
        """Rows in the space of the right singular vectors, ``u diag(s)``, (n, k)."""
        return self.u * self.s

    def dense(self) -> FloatArray:
        """The matrix, (n, p)."""
        return self.scores() @ self.v.T

    def at(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Entries of the matrix, without forming it where few are asked for.

        Parameters
        ----------
        rows, columns : (m,) array of int

        Returns
        -------
        entries : (m,) array
        """
        n, p = self.shape
        if 8 * len(rows) >= n * p:
            return np.asarray(self.dense()[rows, columns])
        scores = self.scores()
        found = np.empty(len(rows))
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            found[part] = np.einsum("ij,ij->i", scores[rows[part]], self.v[columns[part]])
        return found

    def truncated(self, rank: int) -> LowRankFit:
        """The leading part of a rank; the criterion and the gap are those of the whole."""
        return replace(self, u=self.u[:, :rank], s=self.s[:rank], v=self.v[:, :rank])


def thin_svd(
    x: FloatArray, rank: int | None = None, *, accuracy: float = 1e-12
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Singular value decomposition of a dense matrix, or its leading part.

    Parameters
    ----------
    x : (n, p) array
        Finite.
    rank : int, optional
        Singular values wanted; by default all min(n, p).
    accuracy : float
        Relative error that the eigenvalues of the smaller Gram matrix may have in the smallest
        value wanted; where it could be larger, LAPACK decomposes the matrix itself.

    Returns
    -------
    u : (n, k) array
    s : (k,) array
        Decreasing.
    v : (p, k) array

    Notes
    -----
    The Gram matrix knows ``s_k^2`` to about ``2^-52 s_1^2``: it is used where
    ``(s_1 / s_k)^2 2^-52`` is at most `accuracy`, and the matrix is clearly longer than wide.
    """
    n, p = x.shape
    k = min(n, p) if rank is None else min(rank, n, p)
    if k == 0:
        return np.zeros((n, 0)), np.zeros(0), np.zeros((p, 0))
    if max(n, p) >= 2 * min(n, p):
        # By the smaller Gram matrix, where it is accurate enough (see Notes).
        tall = n >= p
        values, vectors = np.linalg.eigh(x.T @ x if tall else x @ x.T)
        squares = values[::-1][:k]
        if squares[-1] * accuracy > 2.0**-52 * squares[0]:
            s = np.sqrt(squares)
            own = vectors[:, ::-1][:, :k]
            other = (x @ own if tall else x.T @ own) / s
            return flip_signs(*((other, s, own) if tall else (own, s, other)))
    try:
        u, s, vt = np.linalg.svd(x, full_matrices=False)
    except np.linalg.LinAlgError:  # divide and conquer gave up; the slow way does not
        from scipy.linalg import svd

        u, s, vt = svd(x, full_matrices=False, lapack_driver="gesvd")
    return flip_signs(u[:, :k], s[:k], vt[:k].T)


def flip_signs(
    u: FloatArray, s: FloatArray, v: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Turn pairs of singular vectors so that equal matrices have equal vectors.

    Of each column of `v` the entry that is largest in absolute value becomes positive, as
    scikit-learn's ``svd_flip`` does for components.

    Parameters
    ----------
    u : (n, k) array
    s : (k,) array
    v : (p, k) array
    """
    if not len(s):
        return u, s, v
    largest = np.abs(v).argmax(axis=0)
    signs = np.where(v[largest, np.arange(len(s))] < 0, -1.0, 1.0)
    return np.ascontiguousarray(u * signs), s, np.ascontiguousarray(v * signs)


# --- One-step leave-one-out of every entry of a complete matrix, for all ranks or penalties at
# once.
#
# For an entry (i, j) its row's scores are fitted again to the other entries of the row, with the
# columns' vectors as they are; its column's to the other entries of the column, with the rows'
# vectors as they are; the product of both predicts the entry. Both regressions lose one row of
# their design, so that the formula of Sherman and Morrison gives every prediction from one singular
# value decomposition.
#
# Source: Ya Le's Stanford thesis, chapter 3. Departure: the source has ``1 + c`` where the formula
# of Sherman and Morrison has ``1 - c``. ``variant="exact"`` is the right form, which equals fitting
# again. One step does not let go of all that the decomposition took from the entry, so that its
# error is flat, or still falls a little, beyond the true rank: expect it to choose too many.
# ``variant="as_printed"`` keeps the slip, which charges for leverage like a penalty that nobody has
# derived; in simulations it often chooses the rank better.

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
