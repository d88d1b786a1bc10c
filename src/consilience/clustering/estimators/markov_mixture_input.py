"""What a mixture of Markov chains reads: wide tables, lists and sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.clustering.kernels.long_tables import column
from consilience.clustering.kernels.mixture_starts import numbers_of
from consilience.clustering.kernels.sequences import NO_STATE, Sequences, coded
from consilience.exceptions import DataError


def sequences_of(X: Any, states: Iterable[Any] | None) -> Sequences:
    """Read sequences with the names of their states.

    Parameters
    ----------
    X : Sequences, (n, t) array or data frame, or list of lists
        Of a table the columns are successive time points. NaN and None are missing.
    states : iterable, optional
        The alphabet; by default what a data frame of categories declares, else what occurs, sorted.

    Returns
    -------
    Sequences

    Raises
    ------
    DataError
        X has another form, a state is not in the alphabet, or there is no sequence.
    """
    if isinstance(X, Sequences):
        found = X.renamed(_names_of(X) if states is None else states)
    elif isinstance(X, list | tuple):
        if any(isinstance(each, str | bytes) or not isinstance(each, Iterable) for each in X):
            raise DataError(
                "Expected 2D array, got 1D array instead: X must hold one list of states for each "
                "sequence. Reshape your data if it is one sequence"
            )
        _some(len(X))
        found = Sequences.from_lists(X, states)
    else:
        found = _of_table(X, declared_states(X) if states is None else states)
    _some(len(found))
    return found


def _some(n: int) -> None:
    if n == 0:
        raise DataError("X has no sequence (0 sample(s)): give at least one")


def column_names(X: Any) -> NDArray[Any] | None:
    """Names of the columns of a data frame, if all are texts."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.asarray(list(columns), dtype=object)


def declared_states(X: Any) -> tuple[Any, ...] | None:
    """States that a data frame declares: all its columns are categorical with the same levels."""
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return None
    levels = {
        None if found is None else tuple(found)
        for found in (getattr(kind, "categories", None) for kind in kinds)
    }
    return levels.pop() if len(levels) == 1 else None


def weights_of(sequences: Sequences, sample_weight: Any) -> FloatArray | None:
    """Weights that were given with the sequences, times those that were given beside them.

    Raises
    ------
    DataError
        A weight is negative or not finite, there is not one for each sequence, or all are 0.
    """
    own = sequences.weights
    if sample_weight is not None:
        weight = numbers_of("sample_weight", sample_weight)
        if weight.ndim == 0:
            weight = np.full(len(sequences), float(weight))
        if weight.shape != (len(sequences),):
            raise DataError(
                f"sample_weight.shape == {weight.shape}, expected {(len(sequences),)}: one weight "
                "for each sequence"
            )
        if not np.isfinite(weight).all() or (weight < 0).any():
            raise DataError("sample_weight must be finite and at least 0")
        own = weight if own is None else own * weight
    if own is not None and not own.sum() > 0:
        raise DataError("all weights are zero: nothing can be fitted")
    return own


def _names_of(sequences: Sequences) -> Iterable[Any]:
    return range(sequences.n_states) if sequences.states is None else sequences.states


def _of_table(X: Any, states: Iterable[Any] | None) -> Sequences:
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise TypeError(
            "Sparse data was passed for X, but sequences are dense: a state that is not stored is "
            "not a missing one"
        )
    table = column(X) if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if table.ndim != 2:
        raise DataError(
            f"Expected 2D array, got {table.ndim}D array instead: X must have one row for each "
            "sequence. Reshape your data if it is one sequence"
        )
    if table.dtype.kind == "c":
        raise DataError("Complex data not supported: a state is a number or a text")
    _some(len(table))
    if table.shape[1] == 0:
        raise DataError(
            f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required: X has no "
            "time point"
        )
    if table.dtype.kind in "biuf":
        codes, names = _of_numbers(table.ravel(), states)
    else:
        codes, names = coded(table.ravel().tolist(), states)
    return Sequences.of(codes.reshape(table.shape), states=names)


def _of_numbers(
    cells: NDArray[Any], states: Iterable[Any] | None
) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
    """Code numbers by their few different values."""
    if cells.dtype.kind == "f" and np.isinf(cells).any():
        raise DataError(NO_STATE)
    kinds, place = np.unique(cells, return_inverse=True)  # NaN is one kind, the last
    few = kinds.tolist()
    if cells.dtype.kind == "f" and (np.isnan(kinds) | (kinds == np.round(kinds))).all():
        few = [kind if kind != kind else int(kind) for kind in few]
    try:
        codes, names = coded(few, states)
    except DataError:  # which counts kinds: count cells
        codes, names = coded(np.array(few, dtype=object)[place.ravel()].tolist(), states)
        return codes, names
    return codes[place.ravel()], names
