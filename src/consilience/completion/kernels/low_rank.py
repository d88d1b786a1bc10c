"""Matrices of low rank as their singular vectors and values, and singular value decompositions.

`check_ranks` says which ranks a matrix can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
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
