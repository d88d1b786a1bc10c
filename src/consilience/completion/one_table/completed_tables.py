"""Tables that a completed matrix leaves at its site."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.completion.estimators.low_rank_base import Factors
from consilience.completion.one_table.matrix import COLUMNS, Matrix

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
