"""Rows that a model is given: its columns, as numbers, in its own units and not prepared ones.

A model of sites keeps centre and scale of every column, and prepares rows itself. Rows that were
prepared already, or are in other units, would be classified or completed all the same, and wrongly.
A few rows tell nothing: an unusual row is no wrong unit.

Columns of times that people were watched, and of whether an event ended them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray
from consilience.exceptions import DataError

_NAMED = 10  # columns in one sentence
_FEWEST = 5  # rows from which a table is judged
_FAR = 20.0  # standard deviations: no half of a table lies beyond, but in other units
_MOST = 50.0  # what one value may add: half its square in standard deviations
_PLAINLY = 2.0  # mean log density of a value by which prepared rows must fit better


def numbers_of(name: str, values: ArrayLike) -> FloatArray:
    """An array of numbers.

    Raises
    ------
    DataError
        They are none.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} must hold numbers") from None


def of_arrow(X: Any) -> Any:
    """A table of polars, pyarrow or any other library of Arrow as pandas has it, else X itself."""
    if type(X).__module__.startswith("pandas") or not hasattr(X, "__arrow_c_stream__"):
        return X
    import pyarrow as pa

    # A date that is missing is no number.
    return pa.table(X).to_pandas(date_as_object=False)


def column_names(X: Any) -> Any:
    """Names of the columns of a table of pandas, polars or pyarrow; None of an array."""
    # What pyarrow calls `columns` are the columns themselves.
    return getattr(X, "column_names", getattr(X, "columns", None))


def check_names(X: Any, names: Sequence[str]) -> None:
    """Refuse a table of pandas, polars or pyarrow with other columns; arrays have no names.

    Raises
    ------
    DataError
        Other columns than `names`, or in another order.
    """
    given = column_names(X)
    if given is not None and [str(name) for name in given] != list(names):
        more = len(names) - _NAMED
        raise DataError(
            f"the columns must be {', '.join(names[:_NAMED])}"
            f"{f' and {more} more' if more > 0 else ''}, in this order: rename or reorder the table"
        )


def read_rows(X: Any, n_columns: int, names: Sequence[str] | None = None) -> FloatArray:
    """Read the numbers of a table (pandas, polars, pyarrow, any other of Arrow) or an array.

    Parameters
    ----------
    X : (n, p) table or array
        NaN, None and NA are missing.
    n_columns : int
        p.
    names : sequence of p str, optional
        Of the columns of the fit.

    Raises
    ------
    DataError
        Other columns, or cells that are no numbers.
    """
    if names is not None:
        check_names(X, names)
    try:
        X = of_arrow(X)
        if type(X).__module__.startswith("pandas"):
            X = X.to_numpy(dtype=np.float64, na_value=np.nan)
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):  # their own words would show a value
        raise DataError("the table must hold numbers, with NaN where one is missing") from None
    if rows.ndim != 2 or rows.shape[1] != n_columns:
        raise DataError(f"the table must have {n_columns} columns")
    return rows


def check_units(
    rows: FloatArray, centre: FloatArray, scale: FloatArray, names: Sequence[str] | None = None
) -> None:
    """Refuse a table in other units than those of a model.

    Parameters
    ----------
    rows : (n, p) array
        NaN is missing.
    centre, scale : (p,) arrays
        Mean and standard deviation of each column in the model, in its own units; a scale of 0 is
        of a column that does not vary.
    names : sequence of p str, optional

    Raises
    ------
    DataError
        Of five rows or more half lie 20 standard deviations from the centre in some column, or
        they look prepared: of mean 0 and standard deviation 1 where the model has others.
    """
    seen = ~np.isnan(rows)
    counts = seen.sum(axis=0)
    used = (counts >= _FEWEST) & (scale > 0)
    if not used.any():
        return
    rows, seen, centre, scale = rows[:, used], seen[:, used], centre[used], scale[used]
    x = np.where(seen, rows, 0.0)
    own = np.abs(np.where(seen, rows - centre, 0.0)) / scale
    n = seen.sum(axis=0)
    mean = x.sum(axis=0) / n
    spread = np.sqrt((np.where(seen, rows - mean, 0.0) ** 2).sum(axis=0) / n)
    varies = spread > 0
    as_prepared = varies & (np.abs(mean) < 1.5) & (spread > 0.2) & (spread < 5.0)
    if as_prepared.sum() > 0.8 * varies.sum():
        # how much better rows of mean 0 and standard deviation 1 fit than those of the model
        ours = np.where(seen, np.minimum(0.5 * own**2, _MOST), 0.0).sum(axis=0) / n + np.log(scale)
        theirs = np.where(seen, np.minimum(0.5 * x**2, _MOST), 0.0).sum(axis=0) / n
        if float((ours - theirs)[as_prepared].mean()) > _PLAINLY:
            raise DataError(
                "the table looks prepared already (centred and scaled): give rows in the units of "
                "the sites' tables, the model prepares them"
            )
    far = (seen & (own > _FAR)).sum(axis=0) > 0.5 * n
    if far.any():
        places = np.flatnonzero(used)[far]
        which = [str(names[j]) if names is not None else f"number {j + 1}" for j in places[:5]]
        more = f" and {len(places) - 5} more" if len(places) > 5 else ""
        raise DataError(
            f"more than half of the rows lie over {_FAR:.0f} standard deviations from the centre "
            f"of the fit in column {', '.join(which)}{more}: give rows in the units of the sites' "
            "tables"
        )


def times_of(values: ArrayLike) -> FloatArray:
    """Times, (n,), in the unit that the study has.

    Raises
    ------
    DataError
        Some are not above 0, or no finite numbers.
    """
    times = np.asarray(values, dtype=float)
    if not (np.isfinite(times) & (times > 0)).all():
        sentence = "times until an event, or until somebody was last seen, must be above 0"
        raise DataError.shared(sentence)
    return times
