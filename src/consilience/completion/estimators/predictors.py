"""What a site keeps of a fit: predictors of new rows with gaps, in the units of the table.

`GapRows` has the names and units of the columns. `ClassPredictor` takes rows to the nearest centre
over the coordinates that they have, `CompletionPredictor` knows the cells of a fitted low-rank
matrix by name and fills new rows, `ComponentsPredictor` gives scores under common components.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.low_rank import Factors
from consilience.completion.kernels.ppca import PPCAModel
from consilience.exceptions import DataError
from consilience.numerics.entries import CENTRES, Centre, Entries
from consilience.numerics.ids import as_ids, ids_from_arrays, ids_to_arrays, places
from consilience.numerics.observed_kmeans import nearest_centres
from consilience.numerics.row_units import column_names, read_rows

# --- Tables with gaps as predictors take them: names and units of the columns.

_FOREIGN = "these arrays do not hold a predictor"
_NOT_NUMBERS = "the table must hold numbers, with NaN where one is missing"


class GapRows:
    """Reads tables whose columns a predictor knows.

    Parameters
    ----------
    names : (p,) array of str
    units : (2, p) array, optional
        Centre and scale that were applied to each column before the fit.

    Raises
    ------
    DataError
        Names and units do not fit together.
    """

    def __init__(self, names: NDArray[Any], units: ArrayLike | None = None) -> None:
        self.names = np.array([str(name) for name in names], dtype=np.str_)
        plain = np.array([[0.0], [1.0]]).repeat(len(self.names), axis=1)
        self.units = plain if units is None else np.asarray(units, dtype=np.float64)
        if self.units.shape != (2, len(self.names)) or not (self.units[1] > 0).all():
            raise DataError(_FOREIGN)

    def read(self, X: Any) -> Entries:
        """Observed entries of a table, in the units of the fit.

        Parameters
        ----------
        X : (m, p) array or table
            NaN is missing.

        Raises
        ------
        DataError
            Other columns, infinite values or no numbers.
        """
        rows = read_rows(X, len(self.names), self.names.tolist())
        if np.isinf(rows).any():
            raise DataError(_NOT_NUMBERS)
        scaled = (rows - self.units[0]) / self.units[1]
        i, j = np.nonzero(~np.isnan(scaled))
        return Entries(rows.shape, i.astype(np.int64), j.astype(np.int64), scaled[i, j])

    def in_units(self, rows: FloatArray) -> FloatArray:
        """Rows of the fit, (m, p), in the units of the table."""
        return np.asarray(rows * self.units[1] + self.units[0])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {"units": self.units, **ids_to_arrays("columns", self.names)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        if "units" not in arrays:
            raise DataError(_FOREIGN)
        return cls(ids_from_arrays("columns", arrays), arrays["units"])


def scaled_up(entries: Entries, squares: FloatArray) -> FloatArray:
    """Distances from squares over the values of each row, as if the row had all p of them.

    As in ``sklearn.metrics.pairwise.nan_euclidean_distances``.

    Parameters
    ----------
    entries : Entries
    squares : (m, k) array
    """
    counts, p = entries.row_counts, entries.shape[1]
    share = np.where(counts > 0, counts, p) / p
    return np.asarray(np.sqrt(squares / share[:, None]))


# --- Classes of new rows with gaps, by the nearest centre over the coordinates that a row has.


class ClassPredictor:
    """Take rows to the nearest of some centres.

    Parameters
    ----------
    centres : (k, p) array
        In the units in which distances are measured.
    means : (p,) array
        Of the columns, in the same units: where a row without a value is taken to be.
    table : GapRows
        Names and units of the columns.

    Attributes
    ----------
    cluster_centers_ : (k, p) array
        In the units of the table.
    feature_names_in_ : (p,) array of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(self, centres: ArrayLike, means: ArrayLike, table: GapRows) -> None:
        self.centres = np.asarray(centres, dtype=np.float64)
        self.means = np.asarray(means, dtype=np.float64)
        self.table = table
        p = len(table.names)
        if self.centres.ndim != 2 or self.centres.shape[1] != p or self.means.shape != (p,):
            raise DataError(_FOREIGN)
        self.cluster_centers_ = table.in_units(self.centres)
        self.feature_names_in_ = table.names

    def predict(self, X: Any) -> IntArray:
        """Class of each row.

        Parameters
        ----------
        X : (m, p) array or data frame
            In the units of the table; NaN is missing. A row without a value goes to the class
            nearest to the means of the columns.

        Returns
        -------
        (m,) array of int
        """
        return nearest_centres(self.table.read(X), self.centres, self.means)[0]

    def transform(self, X: Any) -> FloatArray:
        """Distances to the centres, (m, k), over the values of a row and scaled up to all p."""
        entries = self.table.read(X)
        return scaled_up(entries, nearest_centres(entries, self.centres, self.means)[1])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {"centres": self.centres, "means": self.means, **self.table.to_arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make what :meth:`to_arrays` was called on.

        Raises
        ------
        DataError
            Arrays of something else.
        """
        if "centres" not in arrays or "means" not in arrays:
            raise DataError(_FOREIGN)
        return cls(arrays["centres"], arrays["means"], GapRows.from_arrays(arrays))


# --- A fitted low-rank matrix as a predictor: its own cells by name, and new rows with gaps.

_PARTS = ("scores", "components", "singular_values", "penalty", "scale")


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
        centre, scores = self._project(X)
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

    def _project(self, X: Any) -> tuple[Centre, FloatArray]:
        return self.factors.project(self.table.read(X))

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


# --- Common components as a predictor: scores of new rows, and what is missing in them.


class ComponentsPredictor:
    """Scores, reconstruction and missing values of rows under probabilistic principal components.

    Parameters
    ----------
    model : PPCAModel
    table : GapRows
        Names and units of the columns.

    Attributes
    ----------
    components_ : (k, p) array
        Orthonormal, in the units of the fit.
    mean_ : (p,) array
        In the units of the table.
    noise_variance_ : float
    n_components_ : int
    feature_names_in_ : (p,) array of str

    Raises
    ------
    DataError
        The parts do not fit together.
    """

    def __init__(self, model: PPCAModel, table: GapRows) -> None:
        self.model, self.table = model, table
        p, k = len(table.names), len(model.variances)
        if model.mean.shape != (p,) or model.directions.shape != (p, k):
            raise DataError(_FOREIGN)
        self.components_ = np.ascontiguousarray(model.directions.T)
        self.mean_ = table.in_units(model.mean[None, :])[0]
        self.noise_variance_ = model.noise
        self.n_components_ = k
        self.feature_names_in_ = table.names

    def transform(self, X: Any) -> FloatArray:
        """Expected scores given the values that a row has, (m, k); 0 for a row without any.

        Parameters
        ----------
        X : (m, p) array or data frame
            In the units of the table; NaN is missing. A data frame may have further columns.
        """
        return self.model.scores(self._rows(X))

    def reconstruct(self, X: Any) -> FloatArray:
        """Rows as their components have them, (m, p), in the units of the table.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        return self.table.in_units(self.model.reconstruct(self._rows(X)))

    def complete(self, X: Any) -> FloatArray:
        """Rows with their gaps filled, (m, p), and the values that they have as they are.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        given = np.asarray(self._chosen(X), dtype=np.float64)
        return np.asarray(np.where(np.isnan(given), self.reconstruct(X), given))

    def score_samples(self, X: Any) -> FloatArray:
        """Logarithm of the density of the values that a row has, (m,): low for unusual rows.

        Parameters
        ----------
        X : (m, p) array or data frame
        """
        return self.model.log_likelihood(self._rows(X))

    def _chosen(self, X: Any) -> Any:
        names, wanted = column_names(X), self.feature_names_in_.tolist()
        if names is not None and set(wanted) <= set(names):
            return X.select(wanted) if hasattr(X, "select") else X[wanted]
        return X

    def _rows(self, X: Any) -> FloatArray:
        return self.table.read(self._chosen(X)).dense()

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays from which :meth:`from_arrays` makes the same object."""
        return {
            "mean": self.model.mean,
            "directions": self.model.directions,
            "variances": self.model.variances,
            "noise": np.array([self.model.noise]),
            **self.table.to_arrays(),
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
            mean, v, variances = (
                np.asarray(arrays[k]) for k in ("mean", "directions", "variances")
            )
            model = PPCAModel(mean, v, variances, float(np.asarray(arrays["noise"])[0]))
        except (KeyError, IndexError, ValueError, TypeError):
            raise DataError(_FOREIGN) from None
        return cls(model, GapRows.from_arrays(arrays))
