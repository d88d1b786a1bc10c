"""Ids of agents and entities: whole numbers or texts, sorted, found again by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import IntArray
from consilience.exceptions import DataError

_LARGEST = 2**63 - 1
_WORD_LIMIT = 2**62


def as_ids(values: ArrayLike, n_rows: int, name: str) -> NDArray[Any]:
    """Ids as an array of int64 or of text.

    Parameters
    ----------
    values : array-like, shape (n,)
        Whole numbers or texts; anything else, a mixture of both too, becomes text.
    n_rows : int
        How many there must be.
    name : str
        What they are called in errors.

    Raises
    ------
    DataError
        Another length, or a missing id.
    """
    ids = np.asarray(values)
    if ids.shape != (n_rows,):
        raise DataError(f"{name} must hold one id for each row of X: {n_rows} of them")
    if ids.dtype.kind in "iub" and (not len(ids) or int(ids.max()) <= _LARGEST):
        return ids.astype(np.int64)
    if ids.dtype.kind == "U":
        return ids
    if ids.dtype.kind == "f":
        if not np.isfinite(ids).all():
            raise DataError(f"{name} has rows without an id: give every row one")
        # Above 2^53 neighbouring whole numbers are one float: two ids would become one.
        if (np.abs(ids) < 2.0**53).all() and (ids == np.floor(ids)).all():
            return ids.astype(np.int64)
        return ids.astype(np.str_)
    times = ids.dtype.kind in "mM"
    items = ids.astype(np.str_ if times else object).tolist()
    if np.isnat(ids).any() if times else any(_missing(item) for item in items):
        raise DataError(f"{name} has rows without an id: give every row one")
    if items and all(isinstance(item, int) and abs(item) <= _LARGEST for item in items):
        return np.array(items, dtype=np.int64)
    return np.array([str(item) for item in items], dtype=np.str_)


def _missing(item: object) -> bool:
    """None, not a number, not a time, or the NA of pandas, whose comparisons have no answer."""
    if item is None:
        return True
    try:
        return bool(item != item)
    except TypeError:
        return True


def places(known: NDArray[Any], ids: NDArray[Any], name: str) -> IntArray:
    """Place of each id among known ones, -1 where it is not known.

    Parameters
    ----------
    known : (m,) array
        Sorted, each id once.
    ids : (n,) array
    name : str

    Raises
    ------
    DataError
        Texts where the known ids are numbers.
    """
    if not len(known) or not len(ids):
        return np.full(len(ids), -1, dtype=np.int64)
    if known.dtype.kind == "U" and ids.dtype.kind == "i":
        ids = ids.astype(np.str_)  # as sites keep them
    if known.dtype.kind != ids.dtype.kind:
        raise DataError(f"{name} must be whole numbers, as in the fit: texts were given")
    # searchsorted names a place for unknown ids, too: equality decides below.
    at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[at] == ids, at, -1).astype(np.int64)


def pair_codes(first: IntArray, second: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Number the distinct pairs in sorted order.

    Returns
    -------
    codes : (n,) array of int
        Number of each row's pair.
    rows : (m,) array of int
        First row of each pair.
    """
    # One number for both keeps a table of pairs from being sorted as objects.
    _, inner = np.unique(second, return_inverse=True)
    both = first * (int(inner.max(initial=0)) + 1) + inner
    _, rows, codes = np.unique(both, return_index=True, return_inverse=True)
    return codes.astype(np.int64), rows.astype(np.int64)


def ids_to_arrays(name: str, ids: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Ids as numbers: themselves, or UTF-8 bytes and lengths."""
    if ids.dtype.kind == "i":
        return {name: ids.astype(np.int64)}
    # Lengths in bytes, not letters: they cut the bytes again.
    encoded = [str(text).encode("utf-8") for text in ids.tolist()]
    return {
        f"{name}_text": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        f"{name}_lengths": np.array([len(text) for text in encoded], dtype=np.int64),
    }


def ids_from_arrays(name: str, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Rebuild ids from `ids_to_arrays`.

    Raises
    ------
    DataError
        Arrays that hold no such ids.
    """
    if name in arrays:
        return np.asarray(arrays[name], dtype=np.int64)
    try:
        raw = np.asarray(arrays[f"{name}_text"], dtype=np.uint8).tobytes()
        lengths = np.asarray(arrays[f"{name}_lengths"], dtype=np.int64)
        bounds = np.cumsum([0, *lengths])
        if (lengths < 0).any() or bounds[-1] != len(raw):
            raise DataError("these arrays do not hold a predictor")
        texts = [raw[i:j].decode("utf-8") for i, j in pairwise(bounds)]
    except (KeyError, UnicodeDecodeError):
        raise DataError("these arrays do not hold a predictor") from None
    return np.array(texts, dtype=np.str_)


def distinct_codes(codes: NDArray[Any], sizes: Sequence[int]) -> tuple[IntArray, IntArray]:
    """Place of each row of codes among the distinct ones in their order, and a row of each.

    A code of column j is -1 to ``sizes[j] - 1``.
    """
    key = np.zeros(len(codes), dtype=np.int64)
    reach = 1
    for j, size in enumerate(sizes):
        # The key would not fit into one integer: number what there is so far.
        if reach * (size + 1) > _WORD_LIMIT:
            found, key = np.unique(key, return_inverse=True)
            reach = len(found)
        key *= size + 1
        key += codes[:, j]
        key += 1
        reach *= int(size) + 1
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return inverse.astype(np.int64, copy=False), first.astype(np.int64, copy=False)
