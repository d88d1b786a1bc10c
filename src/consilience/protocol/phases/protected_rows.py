"""What a site does to its own rows before any fit of them leaves, so that no fit tells of a few.

Where a policy protects no record (``min_records`` of 1) nothing is changed. Which rows are held out
is in ``holdout``.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.protocol.method import SiteContext, SiteData
from consilience.wire.disclosure import Limits

_FEW = 1000


def class_codes(data: SiteData, levels: tuple[str, ...]) -> IntArray:
    """Class of each row: position among the levels.

    Raises
    ------
    DataError
        No target, levels that are not the declared ones, or values outside them.
    """
    if data.target is None:
        raise _cannot("the study names no target column: name it as [data] target")
    declared = data.levels.get(data.target_name)
    if (levels not in data.levels.values()) if declared is None else declared != levels:
        raise _cannot("the levels of the response are not those that were declared")
    target = np.asarray(data.target).astype(str)
    codes = np.full(len(target), -1, dtype=np.int64)
    for k, level in enumerate(levels):
        codes[target == level] = k
    if (codes < 0).any():
        raise _cannot(
            "the target holds rows without a declared level: declare all levels in [data.levels], "
            'or set [preparation] missing to "complete-rows"'
        )
    return codes


def require_numbers(data: SiteData) -> None:
    """Check that no cell of the features is missing.

    Raises
    ------
    DataError
    """
    if not np.isfinite(data.features).all():
        raise _cannot("features have missing values: say by [preparation] what becomes of them")


def _cannot(sentence: str) -> DataError:
    return DataError(sentence, public=sentence)


def drawing_seed(data: SiteData, site: SiteContext, purpose: str) -> int:
    """Seed of a site's own draws: the random numbers of its estimators.

    Where records are protected it is a digest of the rows themselves: nobody else can tell it, and
    the same rows give the same draws in every run, so that asking again tells nothing new.
    """
    if site.limits.min_records <= 1:
        return int(site.rng.integers(2**63 - 1))
    sealed = hashlib.sha256(purpose.encode())
    for part in (data.features, np.asarray(data.target)):
        sealed.update(str(part.dtype).encode() + np.ascontiguousarray(part).tobytes())
    return int.from_bytes(sealed.digest()[:8], "little") >> 1


def without_thin(x: FloatArray, limits: Limits) -> tuple[FloatArray, IntArray]:
    """Make columns constant in which all but a few rows, or all, have one value.

    A model that leans on such a column tells of these few rows; that it has none is told no more
    than that it has few.

    Returns
    -------
    x : (n, p) array
        The same array where nothing was changed.
    thin : int array
        Columns that were changed.
    """
    if limits.min_records <= 1:
        return x, np.empty(0, dtype=np.int64)
    few = [j for j in range(x.shape[1]) if len(x) - _most_common(x[:, j]) < limits.min_records]
    thin = np.array(few, dtype=np.int64)
    return made_constant(x, thin), thin


def _most_common(column: FloatArray) -> int:
    """Rows with the most common value, or with the median: of many rows only the first matters."""
    if len(column) < _FEW:
        return int(np.unique(column, return_counts=True)[1].max(initial=0))
    return int(np.sum(column == np.median(column)))  # a value that most rows have


def made_constant(x: FloatArray, thin: IntArray) -> FloatArray:
    """Put the usual value into some columns; the same array where there are none.

    So a column in which few rows differ is the same as one in which none does.
    """
    if not len(thin) or not len(x):
        return x
    changed = x.copy()
    changed[:, thin] = np.median(x[:, thin], axis=0)
    return changed


def with_common_levels(
    y: FloatArray | IntArray, n_levels: int, limits: Limits
) -> NDArray[np.bool_]:
    """Which rows have a level of the response that enough rows of the site have.

    A classifier that is pulled to a few rows of a level tells of them.

    Parameters
    ----------
    y : (n,) array
        Positions of levels.
    n_levels : int
    limits : Limits
    """
    if limits.min_records <= 1:
        return np.ones(len(y), dtype=bool)
    counts = np.bincount(y.astype(np.int64), minlength=n_levels)
    return np.asarray(counts[y.astype(np.int64)] >= limits.min_records)
