"""Folds of a cross-validation of classifiers, as arrays of row numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError

Fold = tuple[IntArray, IntArray]

ALLOWED = "a number of at least 2 folds, a splitter, or pairs of training and held-out rows"
_DEFAULT = 5


def folds_of(
    cv: Any, x: FloatArray, codes: IntArray, groups: Any = None, *, every_class: bool = False
) -> list[Fold]:
    """Rows to fit and rows to judge, fold by fold.

    Parameters
    ----------
    cv : int, splitter or iterable of (train, test), optional
        A number means stratified folds in the order of the rows, and stratified folds of whole
        groups where groups are given; by default 5. It is lowered to the number of groups, and to
        the rows of the largest class, as no more folds than these have rows to judge. Pairs hold
        row numbers or boolean masks over the rows.
    x : (n, p) array
        For a splitter that looks at it.
    codes : (n,) array of int
        Class of each row, from 0 to K - 1.
    groups : (n,) array, optional
        Rows of one group are held out together, where `cv` is a number or a splitter of groups.
    every_class : bool
        Lower a number to the rows of the smallest class, but not below 2. Where groups are given
        they decide.

    Returns
    -------
    list of (train, test) arrays of int

    Raises
    ------
    ParameterError
        No folds, a splitter that cannot split these rows, fewer than two groups, or parts that are
        no rows of the table.
    DataError
        All classes have one row only, or a fold has no rows to fit or none to judge.
    """
    if groups is not None and np.shape(groups) != (len(codes),):
        raise ParameterError("groups must hold one entry for each row")
    if cv is None:
        cv = _DEFAULT
    pairs: list[Any]
    if isinstance(cv, int | np.integer):
        pairs = _stratified(cv, x, codes, groups, every_class)
    elif hasattr(cv, "split") and not isinstance(cv, str):
        try:
            pairs = list(cv.split(x, codes, groups))
        except ValueError as error:
            name = type(cv).__name__
            raise ParameterError(f"cv, a {name}, cannot split these rows: {error}") from error
    elif isinstance(cv, Iterable) and not isinstance(cv, str):
        pairs = list(cv)
    else:
        raise ParameterError.of("cv", ALLOWED, cv)
    if not pairs:
        raise ParameterError.of("cv", ALLOWED, "no fold")
    return [_fold(pair, len(codes), place) for place, pair in enumerate(pairs, start=1)]


def _stratified(
    cv: int | np.integer[Any], x: FloatArray, codes: IntArray, groups: Any, every_class: bool
) -> list[Fold]:
    """Folds with about the same shares of the classes, in the order of the rows."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if isinstance(cv, bool) or cv < 2:
        raise ParameterError.of("cv", ALLOWED, cv)
    counts = np.bincount(codes)
    most = int(counts.max())
    if most < 2:
        raise DataError("every class has one row only: folds need a class of two rows or more")
    n_folds = min(int(cv), most)
    if groups is not None:
        n_groups = len(np.unique(groups))
        if n_groups < 2:
            raise ParameterError("groups must name at least two groups, but all rows are of one")
        # A group lies in one fold, so there are no more folds than groups.
        n_folds = min(n_folds, n_groups)
    elif every_class:
        n_folds = max(2, min(n_folds, int(counts[counts > 0].min())))
    kind = StratifiedKFold if groups is None else StratifiedGroupKFold
    return list(kind(n_folds).split(x, codes, groups))


def _fold(pair: Any, n: int, place: int) -> Fold:
    try:
        train, test = pair
    except (TypeError, ValueError):
        raise ParameterError(
            f"fold {place} of cv must be a pair of training and held-out rows"
        ) from None
    fold = _rows(train, n, place), _rows(test, n, place)
    for rows, lack in zip(fold, ("trains on", "holds out"), strict=True):
        if not len(rows):
            raise DataError(f"fold {place} of the cross-validation {lack} no rows")
    if len(np.unique(fold[1])) < len(fold[1]):  # as a mask of zeros and ones would
        raise ParameterError(
            f"fold {place} of cv holds out a row twice: give row numbers or boolean masks"
        )
    return fold


def _rows(part: Any, n: int, place: int) -> IntArray:
    """Row numbers from row numbers or a mask."""
    # A mask over the rows, or their numbers.
    found = np.asarray(part)
    if found.dtype == bool and found.shape == (n,):
        return np.flatnonzero(found)
    whole = found.ndim == 1 and (found.dtype.kind in "iu" or not len(found))
    if not whole or (len(found) and not 0 <= found.min() <= found.max() < n):
        raise ParameterError(
            f"fold {place} of cv must hold row numbers from 0 to {n - 1}, or masks of {n} booleans"
        )
    return np.asarray(found, dtype=np.int64)
