"""What estimators that keep the table they were fitted to say of its cells."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_input import observed_entries, places
from consilience.numerics.entries import Entries


class RowCompletion:
    """Complete rows by ``reconstruct``, and predict single cells.

    A subclass keeps its `Entries` as ``_entries`` when it is fitted, and writes :meth:`reconstruct`
    and :meth:`_cells`.
    """

    _entries: Entries

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
        entries = self._entries if X is None else observed_entries(self, X, reset=False)
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
        return self._cells(*places(rows, columns, self._entries.shape))
