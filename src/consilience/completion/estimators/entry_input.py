"""Matrices with missing entries as estimators take them, and places in them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from consilience.arrays import IntArray
from consilience.completion.estimators.setting_types import check_settings
from consilience.exceptions import DataError
from consilience.numerics.entries import Entries

_LARGEST = 1e100


def observed_entries(estimator: Any, X: Any, *, reset: bool) -> Entries:
    """Check a matrix for an estimator, and give its observed entries.

    Where the estimator is being fitted, the kinds of its settings are checked first.

    Parameters
    ----------
    estimator : estimator
        Gets `n_features_in_` and `feature_names_in_` where `reset` is true, and is asked for them
        otherwise.
    X : (n, p) array, data frame, masked array, scipy sparse matrix or Entries
        NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
    reset : bool
        Whether the estimator is being fitted. Then something must be observed.

    Raises
    ------
    ParameterError
        A setting is of another kind than its solver compares.
    DataError
        No matrix of real numbers, nothing observed, entries that are infinite or above 1e100 in
        absolute value, or a place of a sparse matrix that is stored twice.
    ValueError
        Another number of columns than were fitted.
    """
    if reset:
        check_settings(estimator)
    if isinstance(X, Entries):
        return of_usual_size(_own_width(estimator, X, reset))
    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(np.float64), np.nan)
    checked = _validated(estimator, X, reset)
    if not reset and _blank(checked):
        none = np.zeros(0, dtype=np.int64)
        return Entries(checked.shape, none, none, np.zeros(0))
    return of_usual_size(Entries.of(checked))


def of_usual_size(entries: Entries) -> Entries:
    """Refuse entries whose squares overflow.

    Parameters
    ----------
    entries : Entries

    Raises
    ------
    DataError
        An entry is above 1e100 in absolute value.
    """
    if np.abs(entries.values).max(initial=0.0) > _LARGEST:
        raise DataError(
            f"there are entries above {_LARGEST:g} in absolute value, whose squares overflow: take "
            "other units, or blanks where such a number stands for a missing value"
        )
    return entries


def _validated(estimator: Any, X: Any, reset: bool) -> Any:
    """Check as scikit-learn does, without telling values."""
    if isinstance(X, Mapping | AbstractSet) and not hasattr(X, "tocoo"):
        raise DataError(
            f"the table must be a matrix or a data frame, but a {type(X).__name__} was given"
        )
    try:
        return validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse=True,
            dtype=np.float64,
            ensure_all_finite=False,  # infinite ones are refused with the others
        )
    except ValueError as error:
        said = str(error)
    if "could not convert" in said:
        said = "the entries must be real numbers, with NaN where one is missing"
    elif "\n" in said:  # the values are in the lines between the first and the last
        first, *_, last = said.splitlines()
        said = f"{first} {last}" if "Reshape" in last else first
    raise DataError(said)


def places(rows: Any, columns: Any, shape: tuple[int, int]) -> tuple[IntArray, IntArray]:
    """Check places in a matrix.

    Parameters
    ----------
    rows, columns : (m,) array of int
    shape : (int, int)

    Raises
    ------
    DataError
        Lists of unequal length, no whole numbers, or places outside the matrix.
    """
    n, p = shape
    i, j = np.asarray(rows), np.asarray(columns)
    if i.ndim != 1 or i.shape != j.shape:
        raise DataError("rows and columns of entries must be two lists of one length")
    if len(i) and (i.dtype.kind not in "iu" or j.dtype.kind not in "iu"):
        raise DataError("rows and columns of entries must be whole numbers, counted from 0")
    if len(i) and (min(i.min(), j.min()) < 0 or i.max() >= n or j.max() >= p):
        raise DataError(f"entries are asked for outside the {n} x {p} matrix that was fitted")
    return i.astype(np.int64), j.astype(np.int64)


def _own_width(estimator: Any, entries: Entries, reset: bool) -> Entries:
    if reset:
        estimator.n_features_in_ = entries.shape[1]
        if hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_
    elif entries.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"the matrix has {entries.shape[1]} columns, but {estimator.n_features_in_} were fitted"
        )
    return entries


def _blank(X: Any) -> bool:
    values = X.tocoo().data if hasattr(X, "tocoo") else X
    return bool(np.isnan(values).all())
