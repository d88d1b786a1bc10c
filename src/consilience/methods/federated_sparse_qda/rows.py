"""The rows of a site as the method wants them: classes that are large enough, and rows held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError
from consilience.methods.base import SiteContext, SiteData
from consilience.methods.federated_sparse_qda.messages import Settings
from consilience.methods.phases.protected_rows import drawing_seed
from consilience.numerics.random import stream

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PROTECTED_SHARE = 0.2
"""Share of rows that a site which protects records holds out, if any: with one share only, two
runs do not differ by a few rows."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows that take part.

    Attributes
    ----------
    x : (n, p) array
    codes : (n,) int array
        Class of each row, -1 in classes of too few rows.
    cells : (n,) int array
        The same, -1 also for rows that are held out.
    held : (h,) int array
        Rows that are held out.
    """

    x: FloatArray
    codes: IntArray
    cells: IntArray
    held: IntArray

    @property
    def kept(self) -> IntArray:
        """Rows of the moments."""
        return np.flatnonzero(self.cells >= 0)


def rows_of(data: SiteData, s: Settings, site: SiteContext) -> Rows:
    """Sort rows into classes and hold some out.

    Raises
    ------
    DataError
        No classes, or others than the study's.
    """
    if data.target is None:
        raise _cannot("the study names no column of classes")
    declared = data.levels.get(data.target_name)
    if declared is not None and tuple(declared) != s.levels:
        raise _cannot("the classes are not those that were declared")
    target = np.asarray(data.target).astype(str)
    codes = np.full(len(target), -1, dtype=np.int64)
    for k, level in enumerate(s.levels):
        codes[target == level] = k
    if (codes < 0).any():
        raise _cannot("the column of classes holds values outside its declared levels")
    if not np.isfinite(data.features).all():
        raise _cannot("features have missing values: set [preparation] missing")
    counts = np.bincount(codes, minlength=len(s.levels))
    codes = np.where(counts[codes] >= site.limits.min_records, codes, -1)
    held = _held_out(codes, data, s, site)
    cells = codes.copy()
    cells[held] = -1
    return Rows(data.features, codes, cells, held)


def _cannot(sentence: str) -> DataError:
    return DataError(sentence, public=sentence)


def _held_out(codes: IntArray, data: SiteData, s: Settings, site: SiteContext) -> IntArray:
    """Some rows of every class, or none where one of its parts would be too small."""
    none = np.empty(0, dtype=np.int64)
    if s.holdout <= 0:
        return none
    least = site.limits.min_records
    share = PROTECTED_SHARE if least > 1 else s.holdout
    # From the classes alone, so that the same rows are held out whatever columns are asked for: the
    # sums of a column without them would otherwise differ from study to study.
    bare = data.with_features(np.empty((data.n_rows, 0)), ())
    order = stream(drawing_seed(bare, site, "sparse qda"), "held out").permutation(len(codes))
    chosen = []
    for k in np.unique(codes[codes >= 0]):
        members = order[codes[order] == k]
        size = int(share * len(members))
        if least > 1 and size < least:
            return none
        chosen.append(members[: min(size, max(len(members) - 2, 0))])
    return np.sort(np.concatenate([none, *chosen]))
