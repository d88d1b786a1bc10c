"""The one table as a matrix with gaps: columns, or triplets of row, column and value.

Also the tables that a completed matrix leaves at its site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.completion.estimators.entry_input import of_usual_size
from consilience.completion.estimators.low_rank import Factors
from consilience.exceptions import DataError, StudyError
from consilience.numerics.entries import Entries
from consilience.protocol.method import CoordinatorContext, SiteContext, SiteData

# --- The one table as a matrix with gaps: columns, or triplets of row, column and value.

COLUMNS, TRIPLETS = "columns", "triplets"


@dataclass(frozen=True, eq=False)
class Matrix:
    """Observed entries of the table.

    Attributes
    ----------
    entries : Entries
        Of an (n, p) matrix, in the units that the preparation gave.
    form : {"columns", "triplets"}
        How the table holds it.
    row_names : (n,) array of str
        Ids of the rows, or their positions in the table as it was read; of triplets the agents.
    column_names : (p,) array of str
    lines : (n_lines, 2) array of int
        Row and column of each line of triplets; empty for columns.
    units : (2, p) array
        Centre and scale of each column, as the preparation applied.
    as_read : (m,) array
        Observed values in units of the table as it was read.
    n_repeated : int
        Lines of triplets that repeat the place of another one.
    names : (str, str, str)
        What rows, columns and values are called in the study.
    """

    entries: Entries
    form: str
    row_names: NDArray[np.str_]
    column_names: NDArray[np.str_]
    lines: IntArray
    units: FloatArray
    as_read: FloatArray
    n_repeated: int = 0
    names: tuple[str, ...] = ("row", "column", "value")

    @property
    def n_missing(self) -> int:
        """Cells without a value."""
        n, p = self.entries.shape
        return n * p - self.entries.n_observed

    def in_units(self, values: FloatArray, columns: IntArray) -> FloatArray:
        """Values in the units of the table.

        Parameters
        ----------
        values : (m,) array
        columns : (m,) array of int
        """
        return np.asarray(values * self.units[1, columns] + self.units[0, columns])


def admit_matrix(ctx: CoordinatorContext, method: str, *, triplets: bool = True) -> None:
    """Check that the study's columns name a matrix in one of its forms.

    Parameters
    ----------
    ctx : CoordinatorContext
    method : str
        For the sentences.
    triplets : bool
        Whether triplets will do.

    Raises
    ------
    StudyError
    """
    columns = ctx.columns
    named = [role for role in ("agent", "entity", "target") if getattr(columns, role) is not None]
    either = "name its columns as features in [data]" + (
        ", or its triplets as agent (row), entity (column) and target (value)" if triplets else ""
    )
    if columns.weight is not None or columns.sequence:
        raise StudyError(
            f"{method} weighs all cells alike: leave weight and sequence out of [data]"
        )
    if columns.features and named:
        raise StudyError(
            f"{method} takes a matrix, and the study names features and {' and '.join(named)}: "
            f"{either}"
        )
    if not columns.features and (not triplets or len(named) < 3):
        raise StudyError(f"{method} takes a matrix: {either}")
    if not columns.features and columns.levels:
        raise StudyError(f"{method} takes numbers: declare no levels for triplets")


def matrix_of(data: SiteData, site: SiteContext, *, duplicates: str = "refuse") -> Matrix:
    """Read the matrix of a site.

    Parameters
    ----------
    data : SiteData
    site : SiteContext
    duplicates : {"refuse", "mean"}
        What to do with triplets that repeat a place.

    Raises
    ------
    DataError
        Too few rows, nothing observed, entries above 1e100, or repeated places.
    """
    triplets = data.features.shape[1] == 0
    try:
        found = _of_triplets(data, duplicates) if triplets else _of_columns(data)
        of_usual_size(found.entries)
    except DataError as error:
        # How many places are repeated is said to the site's own people alone.
        repeats = triplets and duplicates == "refuse" and "repeat" in str(error)
        raise DataError(str(error), public=_REPEATED if repeats else _PUBLIC) from error
    if found.entries.shape[0] < max(site.limits.min_records, 2):
        raise DataError.shared(
            "the matrix has fewer rows than the policy lets anything rest on, or a single one: "
            "take a table with more"
        )
    return found


_PUBLIC = "the table is no matrix as it stands; the site's own log says why"
_REPEATED = (
    "triplets repeat the place of others (the site's own log says how many): drop them, or average "
    'them with duplicates = "mean"'
)


def _of_columns(data: SiteData) -> Matrix:
    p = data.features.shape[1]
    units = np.stack([np.zeros(p), np.ones(p)]) if data.scaling is None else data.scaling[1:]
    names = data.rows.astype(np.str_) if data.id is None else data.id
    none = np.zeros((0, 2), dtype=np.int64)
    entries = Entries.of(np.asarray(data.features))
    read = Entries.of(np.asarray(data.in_own_units()[0])).values
    return Matrix(entries, COLUMNS, names, np.asarray(data.feature_names), none, units, read)


def _of_triplets(data: SiteData, duplicates: str) -> Matrix:
    if data.agent is None or data.entity is None or data.target is None:
        raise DataError("triplets need an agent, an entity and a target in every line")
    rows, row_of = np.unique(data.agent, return_inverse=True)
    columns, column_of = np.unique(data.entity, return_inverse=True)
    lines = np.stack([row_of.ravel(), column_of.ravel()], axis=1).astype(np.int64)
    values = np.asarray(data.target, dtype=np.float64)
    shape = (len(rows), len(columns))
    entries = Entries.from_triplets(lines[:, 0], lines[:, 1], values, shape, duplicates=duplicates)
    units = np.stack([np.zeros(len(columns)), np.ones(len(columns))])
    repeated = int((~np.isnan(values)).sum()) - entries.n_observed
    return Matrix(entries, TRIPLETS, rows, columns, lines, units, entries.values, repeated)


# --- Tables that a completed matrix leaves at its site.

MOST_CELLS = 2_000_000
"""Cells of a completed matrix that are written out; larger ones are asked of the predictor."""


def completed(
    matrix: Matrix, factors: Factors
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """The completed table in the form of the input: values as they were, gaps filled.

    Parameters
    ----------
    matrix : Matrix
    factors : Factors

    Returns
    -------
    tables : dict
        ``completed``: of columns a line for each row; of triplets a line for each cell, and whether
        it was there.
    remarks : tuple of str
    """
    entries = matrix.entries
    n, p = entries.shape
    if n * p > MOST_CELLS:
        said = (
            f"The completed matrix has {n * p} cells, too many for a table: ask the predictor for "
            "those that matter (predict_entries)."
        )
        return {}, (said,)
    full = factors.scores @ factors.components + factors.centre.dense()
    full[entries.rows, entries.columns] = entries.values
    full = full * matrix.units[1] + matrix.units[0]
    names = [str(name) for name in matrix.column_names]
    if matrix.form == COLUMNS:
        row = _free(matrix.names[0], names)
        return {"completed": {row: matrix.row_names, **dict(zip(names, full.T, strict=True))}}, ()
    row, column, value = matrix.names
    table = {
        row: np.repeat(matrix.row_names, p),
        column: np.tile(matrix.column_names, n),
        value: full.ravel(),
        _free("observed", [row, column, value]): entries.mask().ravel().astype(np.int64),
    }
    return {"completed": table}, ()


def factor_tables(matrix: Matrix, factors: Factors) -> dict[str, dict[str, Any]]:
    """Scores of the rows and loadings of the columns, in the units of the fit.

    Parameters
    ----------
    matrix : Matrix
    factors : Factors
    """
    k = len(factors.components)
    scores = {f"score_{i + 1}": factors.scores[:, i] for i in range(k)}
    loadings = {f"loading_{i + 1}": factors.components[i] for i in range(k)}
    return {
        "scores": {
            _free(matrix.names[0], [*scores, "centre"]): matrix.row_names,
            "centre": factors.centre.rows,
            **scores,
        },
        "loadings": {
            _free(matrix.names[1], [*loadings, "centre"]): matrix.column_names,
            "centre": factors.centre.columns,
            **loadings,
        },
    }


def _free(name: str, taken: list[str]) -> str:
    """A name that no column has."""
    while name in taken:
        name = f"{name}_"
    return name
