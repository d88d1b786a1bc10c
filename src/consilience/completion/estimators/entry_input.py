"""Matrices with missing entries as estimators take them: settings, entries, places, completion.

Each solver knows the range of its own settings. It compares numbers, so what is none must not reach
it: a text would give Python's own sentence, a fraction a loop without an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.parameters import Allowed, is_whole

# --- Settings that several estimators share, as far as their kind goes.

_MOST_STEPS = 2**31 - 1  # compiled loops count in 32 or 64 bits
_MOST_STARTS = 1_000_000
_SINGLE = ("center", "start", "solver", "unshrink", "accelerate", "rule", "refit")


def check_settings(estimator: Any) -> None:
    """Refuse settings of an estimator that are of another kind than its solver compares.

    Parameters
    ----------
    estimator : estimator
        Its attributes `tol`, `max_iter`, `n_init`, `max_rank`, `n_jobs`, words and switches are
        looked at where it has them. None passes where it is the default.

    Raises
    ------
    ParameterError
        A number is no number or no whole one, or there is an array for a word or a switch.
    """
    given, defaults = vars(estimator), type(estimator).__init__.__kwdefaults__ or {}
    for name, rule in _RULES.items():
        left_out = given.get(name) is None and defaults.get(name, name) is None
        if name in given and not left_out and not rule.holds(given[name]):
            raise ParameterError.of(name, rule.words, given[name])


def _number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return False
    if isinstance(value, int):
        return abs(value) <= _MOST_STEPS
    return isinstance(value, float | np.floating | np.integer)


def _whole(most: int, words: str) -> Allowed:
    # What is too small each solver says itself, as it does of a number.
    return Allowed(lambda value: is_whole(value) and value <= most, words)


_ONE = Allowed(
    lambda v: not isinstance(v, np.ndarray) and not getattr(v, "shape", ()), "a single value"
)
_RULES: dict[str, Allowed] = {
    "tol": Allowed(_number, "a number, 0 or more"),
    "max_iter": _whole(_MOST_STEPS, f"a whole number from 1 to {_MOST_STEPS}"),
    "n_init": _whole(_MOST_STARTS, f"a whole number from 1 to {_MOST_STARTS}"),
    "n_jobs": _whole(_MOST_STEPS, "None or a whole number other than 0").but(
        lambda value: value != 0 and value >= -_MOST_STEPS, ""
    ),
    "max_rank": _whole(_MOST_STEPS, "None or a whole number, 0 or more"),
    **dict.fromkeys(_SINGLE, _ONE),
}


# --- Matrices with missing entries as estimators take them, and places in them.

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
    stored = checked.tocoo().data if hasattr(checked, "tocoo") else checked
    if not reset and np.isnan(stored).all():
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


# --- What estimators that keep the table they were fitted to say of its cells.


class RowCompletion:
    """Complete rows by ``reconstruct``, predict single cells; for tables with missing entries.

    A subclass keeps its `Entries` as ``_entries`` when it is fitted, and writes :meth:`reconstruct`
    and :meth:`_cells`.
    """

    _entries: Entries | None

    def reconstruct(self, X: Any = None) -> FloatArray:
        """The model's matrix, (m, p): a new array, of other rows or of those that were fitted."""
        raise NotImplementedError

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Cells of the model's matrix of the rows that were fitted, at places inside it."""
        raise NotImplementedError

    def complete(self, X: Any = None) -> FloatArray:
        """The matrix with its missing entries filled by the model, the observed ones kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
        """
        check_is_fitted(self)
        entries = self._own_entries() if X is None else observed_entries(self, X, reset=False)
        full = self.reconstruct(None if X is None else entries)
        full[entries.rows, entries.columns] = entries.values
        return full

    def predict_entries(self, rows: Any, columns: Any) -> FloatArray:
        """Entries of the model's matrix of the rows that were fitted.

        Parameters
        ----------
        rows, columns : (m,) array of int

        Returns
        -------
        entries : (m,) array

        Raises
        ------
        DataError
            Lists of unequal length, or places outside the matrix.
        """
        check_is_fitted(self)
        return self._cells(*places(rows, columns, self._own_entries().shape))

    def _own_entries(self) -> Entries:
        """Entries of the rows that were fitted."""
        if self._entries is None:
            raise DataError("this model was not fitted to rows of its own: give it rows as X")
        return self._entries

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]  # of the estimator that it is
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags
