"""Tables of categories as estimators take them: levels of each column, and codes of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.clustering.kernels.sequences import is_missing
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.ids import ids_from_arrays, ids_to_arrays

CodeArray = NDArray[np.int32]
Levels = tuple[NDArray[Any], ...]

_UNKNOWN = -2


def missing_cells(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Cells that are None, NaN, NaT or pandas' NA.

    Parameters
    ----------
    values : array
        Of any shape and type.
    """
    if values.dtype.kind in "fc":
        return np.asarray(np.isnan(values))
    if values.dtype.kind in "mM":
        return np.asarray(np.isnat(values))
    if values.dtype.kind != "O":
        return np.zeros(values.shape, dtype=bool)
    found = np.fromiter((is_missing(value) for value in values.ravel()), bool, values.size)
    return found.reshape(values.shape)


def columns_of(X: Any) -> tuple[list[NDArray[Any]], list[NDArray[Any] | None]]:
    """Columns of a table one by one, and the levels that a categorical column declares.

    Parameters
    ----------
    X : (n, d) array or data frame
    """
    if not hasattr(X, "columns"):
        table = np.asarray(X)
        return [table[:, j] for j in range(table.shape[1])], [None] * table.shape[1]
    columns, declared = [], []
    for j in range(X.shape[1]):
        column = X.iloc[:, j] if hasattr(X, "iloc") else X[X.columns[j]]
        categories = getattr(getattr(column, "dtype", None), "categories", None)
        known = categories is not None and hasattr(column, "cat")
        declared.append(np.asarray(categories) if known else None)
        columns.append(np.asarray(column))
    return columns, declared


def learned_levels(
    columns: Sequence[NDArray[Any]], declared: Sequence[NDArray[Any] | None], names: Sequence[str]
) -> Levels:
    """Levels of each column: the declared ones, else what occurs, in order.

    Parameters
    ----------
    columns : sequence of (n,) arrays
    declared : sequence of arrays or None
    names : sequence of str
        Of the columns, for sentences.

    Raises
    ------
    DataError
        A column without any entry, or one that mixes numbers and text.
    """
    levels = []
    for column, known, name in zip(columns, declared, names, strict=True):
        if known is None and column.dtype.kind != "O":
            known = np.unique(column[~missing_cells(column)])
        elif known is None:
            try:
                seen = [value for value in set(column.tolist()) if not is_missing(value)]
                known = _level_array(sorted(seen))
            except TypeError:
                sentence = f"column {name} mixes kinds of values: make them all text"
                raise DataError(sentence) from None
        else:
            levels.append(known)
            continue
        if not known.size:
            raise DataError(f"column {name} has no entry: leave it out, or declare its levels")
        levels.append(known)
    return tuple(levels)


def _level_array(values: Sequence[Any]) -> NDArray[Any]:
    """Text and numbers as such, anything else as objects."""
    plain = np.asarray(values)
    if plain.ndim == 1 and plain.dtype.kind in "biufU":
        kinds = {isinstance(value, str) for value in values}
        if len(kinds) == 1:
            return plain
    kept = np.empty(len(values), dtype=object)
    kept[:] = values
    return kept


def declared_levels(levels: Any, names: Sequence[str]) -> list[NDArray[Any] | None]:
    """Levels that a user declares, in the order of the columns.

    Parameters
    ----------
    levels : None, mapping of name to levels, or sequence of levels
        Of a mapping, columns that are not named learn theirs; of a sequence, those with None.
    names : sequence of str

    Raises
    ------
    ParameterError
        A name that is no column, another number of columns, no level, or a level twice.
    """
    if levels is None:
        return [None] * len(names)
    if isinstance(levels, Mapping):
        unknown = [str(name) for name in levels if str(name) not in names]
        if unknown:
            raise ParameterError(f"levels names {unknown[0]}, which is no column of the table")
        given: list[Any] = [None] * len(names)
        for name, values in levels.items():
            given[names.index(str(name))] = values
    else:
        if isinstance(levels, str | bytes) or not isinstance(levels, Iterable):
            raise ParameterError(
                f"levels must be a mapping of columns to levels or a list of one entry for each "
                f"column, but {levels!r} was given"
            )
        given = list(levels)
        if len(given) != len(names):
            raise ParameterError(f"levels must have {len(names)} entries, one for each column")
    found: list[NDArray[Any] | None] = []
    for values, name in zip(given, names, strict=True):
        if values is None:
            found.append(None)
            continue
        try:
            listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
            different = len(set(listed))
        except TypeError:
            sentence = f"levels of column {name} must be a list of texts or numbers"
            raise ParameterError(sentence) from None
        if not listed or different < len(listed):
            raise ParameterError(f"levels of column {name} must be at least one, each named once")
        found.append(_level_array(listed))
    return found


def codes_of(columns: Sequence[NDArray[Any]], levels: Levels, names: Sequence[str]) -> CodeArray:
    """Place of each entry among its column's levels, -1 where it is missing.

    Parameters
    ----------
    columns : sequence of (n,) arrays
    levels : tuple of (L_j,) arrays
    names : sequence of str

    Returns
    -------
    codes : (n, d) array of int32

    Raises
    ------
    DataError
        An entry that is none of its column's levels.
    """
    codes = np.empty((len(columns[0]), len(columns)), dtype=np.int32)
    for j, (column, known, name) in enumerate(zip(columns, levels, names, strict=True)):
        place = {value: code for code, value in enumerate(known.tolist())}
        if column.dtype.kind == "O":
            values = column.tolist()
            try:
                codes[:, j] = [place.get(value, _UNKNOWN) for value in values]
            except TypeError:  # a value that is no key, as a list
                raise DataError(f"column {name} holds what is no category: make it text") from None
            for i in np.flatnonzero(codes[:, j] == _UNKNOWN).tolist():
                if is_missing(values[i]):
                    codes[i, j] = -1
        else:
            distinct, inverse = np.unique(column, return_inverse=True)
            found = [place.get(value, _UNKNOWN) for value in distinct.tolist()]
            codes[:, j] = np.where(missing_cells(distinct), -1, found)[inverse]
        if (codes[:, j] == _UNKNOWN).any():
            raise DataError(
                f"column {name} holds a level that the model does not know: declare it in levels, "
                "or make it missing"
            )
    return codes


def levels_to_arrays(levels: Levels, prefix: str = "levels") -> dict[str, NDArray[Any]]:
    """Levels as numbers: themselves, or UTF-8 bytes and lengths.

    Parameters
    ----------
    levels : tuple of (L_j,) arrays
    prefix : str
        Of the keys.

    Raises
    ------
    DataError
        Levels that are neither numbers nor text.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for j, known in enumerate(levels):
        if known.dtype.kind == "O" and all(isinstance(value, str) for value in known):
            known = known.astype(np.str_)
        if known.dtype.kind == "b":
            known = known.astype(np.int64)  # equal to what they stand for
        if known.dtype.kind in "iuf":
            arrays[f"{prefix}_{j}"] = known
        elif known.dtype.kind == "U":
            arrays |= ids_to_arrays(f"{prefix}_{j}", known)
        else:
            raise DataError("levels that are neither numbers nor text cannot be kept as arrays")
    return arrays


def levels_from_arrays(
    arrays: Mapping[str, NDArray[Any]], n_levels: Sequence[int], prefix: str = "levels"
) -> Levels:
    """Rebuild levels from `levels_to_arrays`.

    Parameters
    ----------
    arrays : mapping
    n_levels : sequence of int
        Levels of each column.
    prefix : str
        Of the keys.

    Raises
    ------
    DataError
        Arrays that hold no such levels.
    """
    found = []
    for j, size in enumerate(n_levels):
        key = f"{prefix}_{j}"
        known = np.asarray(arrays[key]) if key in arrays else ids_from_arrays(key, arrays)
        plain = known.ndim == 1 and known.dtype.kind in "iufU" and len(known) == size
        if not plain or len(np.unique(known)) < size:
            raise DataError("these arrays do not hold the levels of a table")
        found.append(known)
    return tuple(found)
