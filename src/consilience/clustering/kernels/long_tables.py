"""Columns of long tables: what is missing in them, and times that can be put in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.exceptions import DataError

_NO_TIME = "a time is missing: say when each row was, or leave the row out"
_NOT_TIMES = "times must be numbers or dates, all of one kind"


def column(values: ArrayLike, dtype: Any = None) -> NDArray[Any]:
    """Values as an array; objects where some are masked, which are None.

    Parameters
    ----------
    values : array-like
    dtype : dtype, optional
        By default that of the values.

    Raises
    ------
    DataError
        Rows of different lengths, or of several fields.
    """
    if isinstance(values, np.ma.MaskedArray):
        if values.dtype.names:
            raise DataError("a column holds several fields: give one value a row")
        hidden = np.ma.getmaskarray(values)
        values = values.data
        if hidden.any():
            seen = np.empty(values.shape, dtype=object)
            seen[~hidden] = list(values[~hidden])  # cast as a whole, dates would become numbers
            return seen
    try:
        return np.asarray(values, dtype=dtype)
    except ValueError:
        raise DataError("ids, times and states must be columns of one length") from None


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN or another value that is not equal to itself."""
    if cell is None or type(cell).__name__ == "NAType":
        return True
    try:
        return bool(cell != cell)
    except ArithmeticError:  # a decimal's signalling NaN
        return True
    except ValueError:
        raise DataError("a cell holds several values: give one value a row") from None


def times_in_order(times: ArrayLike) -> NDArray[Any]:
    """Times as an array of numbers or of dates; dates with a time zone by their instant.

    Parameters
    ----------
    times : (m,) array
        Numbers or dates.

    Returns
    -------
    when : (m,) array
        Of whole numbers, numbers or dates.

    Raises
    ------
    DataError
        A time is missing, infinite, or neither a number nor a date; kinds are mixed; some dates
        have a zone and others have none; no unit tells all dates exactly.
    """
    when = column(times)
    if isinstance(times, list | tuple) and when.dtype.kind not in "iuf":
        when = _unboxed(list(times))  # of dates in several units NumPy makes wrong ones
    elif when.dtype.kind == "O":
        when = _unboxed(when.tolist())
    if when.dtype.kind not in "iufM":
        raise DataError(_NOT_TIMES)
    if (when != when).any():
        raise DataError(_NO_TIME)
    if when.dtype.kind == "f" and np.isinf(when).any():
        raise DataError("a time is infinite: give the time of every row")
    return when


def _unboxed(cells: list[Any]) -> NDArray[Any]:
    if not cells:
        return np.empty(0, dtype=np.int64)
    if any(is_missing(cell) for cell in cells):
        raise DataError(_NO_TIME)
    if all(isinstance(cell, date | np.datetime64) for cell in cells):
        return _dates(cells)
    if any(isinstance(cell, bool | np.bool_ | str | bytes | np.timedelta64) for cell in cells):
        raise DataError(_NOT_TIMES)
    try:
        if all(isinstance(cell, int | np.integer) for cell in cells):
            large = min(cells) >= 0 and max(cells) >= 2**63
            return np.array(cells, dtype=np.uint64 if large else np.int64)
        return np.array([float(cell) for cell in cells])
    except OverflowError:
        raise DataError("a time is too large: times are numbers of 64 bits") from None
    except (TypeError, ValueError):
        raise DataError(_NOT_TIMES) from None


def _dates(cells: list[Any]) -> NDArray[Any]:
    if len({getattr(cell, "tzinfo", None) is None for cell in cells}) > 1:
        raise DataError("some times have a time zone and others have none: give all one")
    try:
        instants = [_instant(cell) for cell in cells]
    except OverflowError:
        raise DataError("a time lies outside of the years 1 to 9999 without its zone") from None
    return _of_one_unit(instants)


def _instant(cell: Any) -> np.datetime64:
    """A date or time, without its zone; of data frames as exact as they have it."""
    if isinstance(cell, np.datetime64):
        return cell
    exact = getattr(cell, "asm8", None)
    if isinstance(exact, np.datetime64):
        return exact
    if isinstance(cell, datetime) and cell.tzinfo is not None:
        cell = cell.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64(cell, "us")


def _of_one_unit(instants: Sequence[np.datetime64]) -> NDArray[Any]:
    """Dates in one unit that tells each of them: NumPy would wrap those out of its range."""
    if len({instant.dtype for instant in instants}) == 1:
        return np.array(instants)
    for unit in ("s", "us", "ns"):
        found = [instant.astype(f"datetime64[{unit}]") for instant in instants]
        back = (one.astype(instant.dtype) for one, instant in zip(found, instants, strict=True))
        if all(one == instant for one, instant in zip(back, instants, strict=True)):
            return np.array(found)
    raise DataError("no unit tells all dates exactly: the finest are too fine for the farthest")
