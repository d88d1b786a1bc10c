"""Folds of scattered entries, and errors over them, for anything that fits a matrix with gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import IntArray
from consilience.exceptions import ParameterError
from consilience.numerics import held_out_entries
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import alone, block_folds, entry_folds
from consilience.numerics.held_out_entries import EntryCurve, path_of
from consilience.numerics.random import seed_of
from consilience.parameters import is_whole


class EntrywiseKFold:
    """Folds of scattered entries of a matrix.

    Folds differ by one entry at most, and none holds all entries of a row or column that has two or
    more: a fit could say nothing of it. An entry that is alone in its row or its column is never
    held out, since only a mean could predict it. With `blocks`, parts of rows take the place of
    entries.

    Parameters
    ----------
    n_splits : int
        Number of folds, 2 or more, at most the number of entries that may be held out.
    blocks : int or (p,) array of int, optional
        Columns that are held out together in a row, because noise goes along them or they say the
        same: a label for each column, or the length of stretches of neighbours. A block that is
        wider than what hangs together leaves nothing of it to predict from.
    random_state : int, numpy Generator, RandomState or None
        With an integer every call draws the same folds.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import EntrywiseKFold
    >>> X = np.arange(12.0).reshape(4, 3)
    >>> X[0, 0] = np.nan
    >>> for train, held in EntrywiseKFold(2, random_state=0).split(X):
    ...     print(train.n_observed, held.n_observed, train.dense().shape)
    5 6 (4, 3)
    6 5 (4, 3)
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        blocks: int | ArrayLike | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_splits = n_splits
        self.blocks = blocks
        self.random_state = random_state

    def __repr__(self) -> str:
        blocks = "" if self.blocks is None else f"blocks={self.blocks!r}, "
        drawn = f"random_state={self.random_state!r}"
        return f"EntrywiseKFold(n_splits={self.n_splits}, {blocks}{drawn})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds.

        Parameters
        ----------
        X, y, groups : any
            Not used: they are there because scikit-learn gives them.

        Returns
        -------
        int
        """
        return self.n_splits

    def folds(self, X: Any) -> IntArray:
        """Fold of each observed entry, by row and column; -1 for those never held out.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed.

        Returns
        -------
        (m,) array of int

        Raises
        ------
        ParameterError
            `n_splits` or `blocks` is out of its range.
        DataError
            The matrix cannot be used, or every entry is alone in its row or column.
        """
        entries, rng = Entries.of(X), generator(self.random_state)
        if self.blocks is None:
            return entry_folds(entries, self.n_splits, rng)
        return block_folds(entries, self.n_splits, self._labels(entries.shape[1]), rng)

    def _labels(self, p: int) -> IntArray:
        """Block of each column, from 0."""
        given = np.asarray(self.blocks)
        whole = given.dtype.kind in "iu"
        if whole and given.ndim == 0 and given >= 1:
            return np.arange(p) // int(given)
        if not whole or given.shape != (p,):
            allowed = f"a length, 1 or more, or {p} whole numbers, the block of each column"
            raise ParameterError.of("blocks", allowed, self.blocks)
        return np.unique(given, return_inverse=True)[1].astype(np.int64)

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Entries, Entries]]:
        """Entries to learn from and entries held out, fold by fold.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
        y, groups : None
            Ignored.

        Yields
        ------
        train, held : Entries
            ``train.dense()`` has NaN where entries are held out or missing.
        """
        entries = Entries.of(X)
        folds = self.folds(entries)
        for fold in range(self.n_splits):
            yield entries.take(folds != fold), entries.take(folds == fold)


def cross_validate_entries(
    X: Any, path: Any, folds: Any = 5, *, n_jobs: int | None = None
) -> EntryCurve:
    """Mean squared error per held-out entry of several fits.

    Parameters
    ----------
    X : (n, p) array, data frame, scipy sparse matrix or Entries
        NaN is missing; of a sparse matrix the stored entries are observed.
    path : mapping of values to estimators, sequence of estimators, or EntryPath
        The simplest first. An estimator has ``fit(X)``, where NaN is missing, and
        ``reconstruct()``, the matrix that it fits; it is copied before each fit.
    folds : int, EntrywiseKFold or (m,) array of int
        Of an array -1 means never held out.
    n_jobs : int, optional
        Folds at a time, as in joblib.

    Returns
    -------
    EntryCurve

    Raises
    ------
    ParameterError
        No such path or folds.
    DataError
        The matrix cannot be used, or predictions are missing or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from consilience import EMLift, EntrywiseKFold, cross_validate_entries
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 12)) + 0.1 * rng.normal(size=(60, 12))
    >>> path = {k: EMLift(PCA(k)) for k in (1, 2, 3)}
    >>> cross_validate_entries(X, path, EntrywiseKFold(5, random_state=0)).best
    2
    """
    entries = Entries.of(X)
    if isinstance(path, Mapping) and not all(
        isinstance(key, str | Real | np.generic) for key in path
    ):
        raise ParameterError("the keys of a path must be numbers or words, as a curve is told by")
    return held_out_entries.held_out_errors(
        entries, path_of(path), labels_of(entries, folds), n_jobs=n_jobs
    )


def labels_of(
    entries: Entries, folds: Any, random_state: Any = None, *, name: str = "folds"
) -> IntArray:
    """Fold of each entry, of what a caller may give.

    Parameters
    ----------
    entries : Entries
    folds : int, EntrywiseKFold or (m,) array of int
    random_state : int, numpy Generator, RandomState or None
        For a number of folds.
    name : str
        What the caller calls them, for the error.

    Raises
    ------
    ParameterError
        Something else.
    """
    if is_whole(folds):
        most = int((~alone(entries)).sum())
        if most >= 2 and not 2 <= folds <= most:
            allowed = f"between 2 and {most}, the number of entries that may be held out"
            raise ParameterError.of(name, allowed, int(folds))
        return entry_folds(entries, int(folds), generator(random_state))
    if hasattr(folds, "folds"):
        return np.asarray(folds.folds(entries), dtype=np.int64)
    given = np.asarray(folds)
    if given.ndim == 0:
        allowed = "a number of folds, an EntrywiseKFold, or the fold of each entry"
        raise ParameterError.of(name, allowed, folds)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ParameterError(
            f"{name} must be a list of whole numbers, the fold of each observed entry, but an "
            f"array of {given.dtype.name} of shape {given.shape} was given"
        )
    return given.astype(np.int64)


def generator(random_state: Any) -> np.random.Generator:
    """A numpy Generator of what scikit-learn takes as `random_state`.

    Parameters
    ----------
    random_state : int, numpy Generator, RandomState or None
    """
    if isinstance(random_state, np.random.Generator):
        return random_state
    if random_state is None:
        return np.random.default_rng()
    try:
        # a legacy RandomState gives the seed of a Generator
        return np.random.default_rng(seed_of(random_state))
    except ParameterError:
        allowed = "None, a whole number or a random generator"
        raise ParameterError.of("random_state", allowed, random_state) from None
