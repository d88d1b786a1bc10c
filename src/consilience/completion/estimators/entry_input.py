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
from consilience.numerics.entry_folds import row_folds
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
        if reset:
            estimator.n_features_in_ = X.shape[1]
            if hasattr(estimator, "feature_names_in_"):
                del estimator.feature_names_in_
        elif X.shape[1] != estimator.n_features_in_:
            raise DataError(
                f"the matrix has {X.shape[1]} columns, but {estimator.n_features_in_} were fitted"
            )
        return of_usual_size(X)
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


def row_weights(sample_weight: Any, entries: Entries) -> FloatArray:
    """Check weights of rows, (n,).

    Parameters
    ----------
    sample_weight : (n,) array
    entries : Entries

    Raises
    ------
    DataError
        Not one finite number of 0 or more for each row, or no row with an entry counts.
    """
    n = entries.shape[0]
    try:
        found = np.array(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (n,) or not (np.isfinite(found) & (found >= 0)).all():
        raise DataError(
            f"sample_weight must hold {n} finite numbers of 0 or more, one for each row"
        )
    if not found[entries.row_counts > 0].any():
        raise DataError(
            "sample_weight is zero for every row that has an entry: nothing would count"
        )
    return found


def readable(model: Any, entries: Entries) -> Any:
    """Entries as a model takes them: those of this package as they are, others a dense matrix.

    Parameters
    ----------
    model : estimator
    entries : Entries
    """
    ours = type(model).__module__.startswith("consilience.completion.")
    return entries if ours else entries.dense()


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


# --- What estimators that keep the table they were fitted to say of its cells.

_SCORE_FOLDS = 5
_SCORE_CELLS = 4_000_000  # numbers of a batch of rows


class RowCompletion:
    """Complete rows by ``reconstruct``, predict single cells, score; for tables with gaps.

    A subclass keeps its `Entries` as ``_entries`` when it is fitted, and writes `_reconstructed`
    and `_cells`.
    """

    _entries: Entries | None

    def reconstruct(self, X: Any = None) -> FloatArray:
        """The model's matrix.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries, optional
            Other rows, by the model as it is; by default those that were fitted.

        Returns
        -------
        matrix : (m, p) array
            A new one: a low-rank matrix with its centre, the centres of the rows' classes (the
            means of the columns for a row with nothing observed), or of a mixture the observed
            entries themselves and means of the others given these.
        """
        check_is_fitted(self)
        return self._reconstructed(X)

    def _reconstructed(self, X: Any) -> FloatArray:
        """As :meth:`reconstruct`, of a model that was fitted."""
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

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the mean squared error of entries of rows, each predicted from the rest of its row.

        The entries of each row are dealt into five folds, always in the same way. Each fold in turn
        is hidden, and the model as it is fills it from the others: of rows that were fitted the
        error is too small.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
            A row with fewer than two entries has none to spare and does not count.
        y : None
            Ignored.
        sample_weight : (m,) array, optional
            Weights of the rows, 0 or more; each squared error counts with that of its row.

        Returns
        -------
        score : float
            In squared units of the table, at most 0.

        Raises
        ------
        DataError
            No row has two entries, or the weights do not fit.
        """
        check_is_fitted(self)
        entries = observed_entries(self, X, reset=False)
        n, p = entries.shape
        folds = row_folds(entries, _SCORE_FOLDS, np.random.default_rng(0))
        size, squares = max(1, _SCORE_CELLS // p), np.zeros(n)
        for first in range(0, n, size):  # the model's matrix of all rows may not fit into memory
            last = min(first + size, n)
            own = slice(entries.indptr[first], entries.indptr[last])
            i, j, x = entries.rows[own] - first, entries.columns[own], entries.values[own]
            part = Entries((last - first, p), i, j, x)
            for fold in range(_SCORE_FOLDS):
                held = part.take(folds[own] == fold)
                rest = part.take(folds[own] != fold)
                off = self.reconstruct(rest)[held.rows, held.columns] - held.values
                squares[first:last] += np.bincount(held.rows, off**2, minlength=last - first)
        counts = np.where(entries.row_counts > 1, entries.row_counts, 0)
        weights = np.ones(n) if sample_weight is None else row_weights(sample_weight, entries)
        if not weights @ counts:
            raise DataError(
                "no row that counts has two entries: none can be predicted from the rest of its row"
            )
        return -float(weights @ squares / (weights @ counts))

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
