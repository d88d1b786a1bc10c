"""A fitted low-rank matrix as a predictor: its own cells by name, and new rows with gaps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.completion.estimators.gap_rows import GapRows
from consilience.completion.estimators.low_rank_base import Factors, row_scores
from consilience.exceptions import DataError
from consilience.numerics.centring import CENTRES, Centre
from consilience.numerics.ids import as_ids, ids_from_arrays, ids_to_arrays, places

_PARTS = ("scores", "components", "singular_values", "penalty", "scale")
_FOREIGN = "these arrays do not hold a predictor"


class CompletionPredictor:
    """Predict cells of the matrix that was fitted, and fill new rows.

    Parameters
    ----------
    factors : Factors
    table : GapRows
        Names and units of the columns.
    row_names : (n,) array of str
        Of the rows that were fitted, in the order of the scores.

    Attributes
    ----------
    components_ : (k, p) array
        In the units of the fit.
    n_components_ : int
    feature_names_in_ : (p,) array of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(self, factors: Factors, table: GapRows, row_names: NDArray[Any]) -> None:
        self.factors, self.table = factors, table
        self.row_names = np.array([str(name) for name in row_names], dtype=np.str_)
        k, p = factors.components.shape
        fits = p == len(table.names) == len(factors.centre.columns)
        fits &= factors.scores.shape == (len(self.row_names), k)
        fits &= len(factors.centre.rows) == len(self.row_names)
        fits &= factors.penalty.shape == factors.scale.shape == (k,)
        if not fits or factors.centre.kind not in CENTRES:
            raise DataError(_FOREIGN)
        self.components_ = factors.components
        self.n_components_ = k
        self.feature_names_in_ = table.names

    def transform(self, X: Any) -> FloatArray:
        """Scores of rows from the values that they have, (m, k); 0 for a row without any.

        Parameters
        ----------
        X : (m, p) array or data frame
            In the units of the table; NaN is missing.
        """
        return self._project(X)[1]

    def reconstruct(self, X: Any) -> FloatArray:
        """Rows as the matrix of low rank has them, (m, p), in the units of the table."""
        centre, scores, _ = self._project(X)
        return self.table.in_units(scores @ self.components_ + centre.dense())

    def complete(self, X: Any) -> FloatArray:
        """Rows with their gaps filled, (m, p), and the values that they have as they are."""
        full = self.reconstruct(X)
        given = np.asarray(X, dtype=np.float64)
        return np.asarray(np.where(np.isnan(given), full, given))

    def predict_entries(self, rows: ArrayLike, columns: ArrayLike) -> FloatArray:
        """Cells of the matrix that was fitted, by the names of their rows and columns.

        Parameters
        ----------
        rows, columns : (m,) array-like
            Ids of rows (their positions in the table, where it names none) and columns.

        Returns
        -------
        (m,) array
            In the units of the table.

        Raises
        ------
        DataError
            Lists of unequal length, or a name that is not known.
        """
        i = _known(self.row_names, rows, "rows")
        j = _known(self.table.names, columns, "columns")
        if len(i) != len(j):
            raise DataError("rows and columns must be two lists of one length")
        found = self.factors
        low = np.einsum("ij,ji->i", found.scores[i], found.components[:, j])
        values = low + found.centre.at(i, j)
        return np.asarray(values * self.table.units[1, j] + self.table.units[0, j])

    def _project(self, X: Any) -> tuple[Centre, FloatArray, Any]:
        entries = self.table.read(X)
        found = self.factors
        centre = found.centre.of_rows(entries)
        scores = row_scores(centre.removed(entries), found.components.T, found.penalty)
        return centre, scores * found.scale, entries

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        found = self.factors
        return {
            **{name: np.asarray(getattr(found, name)) for name in _PARTS},
            "centre_kind": np.array(CENTRES.index(found.centre.kind)),
            "centre_rows": found.centre.rows,
            "centre_columns": found.centre.columns,
            **self.table.to_arrays(),
            **ids_to_arrays("rows", self.row_names),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        try:
            kind = CENTRES[int(arrays["centre_kind"])]
            centre = Centre(kind, arrays["centre_rows"], arrays["centre_columns"])
            factors = Factors(centre, **{name: arrays[name] for name in _PARTS})
        except (KeyError, IndexError):
            raise DataError(_FOREIGN) from None
        return cls(factors, GapRows.from_arrays(arrays), ids_from_arrays("rows", arrays))


def _known(known: NDArray[np.str_], given: ArrayLike, name: str) -> NDArray[np.int64]:
    """Places of names, which need not be sorted."""
    asked = np.atleast_1d(np.asarray(given))
    ids = as_ids(asked, len(asked), name).astype(np.str_)
    order = np.argsort(known, kind="stable")
    at = places(known[order], ids, name)
    if (at < 0).any():
        raise DataError(f"{int((at < 0).sum())} of the {name} that are asked for are not known")
    return np.asarray(order[at], dtype=np.int64)
