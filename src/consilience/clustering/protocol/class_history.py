"""Which rows were in the same released classes in all runs so far.

Exact class means of two runs on the same rows are sums over row sets that somebody chose; sets that
differ by one row give that row away. So a site remembers, for ever, which rows no released class
has told apart: these are a *group*. A class that is told is made of whole groups, or of parts of
groups such that what is told of a group and what is not are both at least `least` rows. Unions and
differences of released classes, of any number of runs, are then unions of groups, and no group is
smaller than `least`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, IntArray

Marks = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class ClassHistory:
    """Groups of the rows of a data set.

    Attributes
    ----------
    marks : (n,) uint64 array
        Rows that were ever in a class or could have been, ascending (`SiteData.marks`).
    groups : (n,) int array
        Group of each, numbered from 1.
    """

    marks: Marks = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    groups: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def from_kept(cls, kept: Mapping[str, Any] | None) -> ClassHistory:
        """Read what `to_plain` gave; nothing where nothing was kept."""
        if not kept:
            return cls()
        return cls(np.asarray(kept["marks"]), np.asarray(kept["groups"]).astype(np.int64))

    def to_plain(self) -> dict[str, Any]:
        """For the site's home."""
        return {"marks": self.marks, "groups": self.groups.astype(np.uint32)}

    def of_rows(self, marks: Marks, least: int) -> tuple[IntArray, BoolArray]:
        """Group of each row, 0 of rows that are new; and the rows that may be told.

        Where a group lacks a few rows in this run, further ones stay out, those with the smallest
        marks, so that what is missing is never a few rows. Of a part that is too small nothing is
        told.

        Parameters
        ----------
        marks : (n,) uint64 array
            Different ones.
        least : int
        """
        group = self._found(marks)
        told = np.ones(len(marks), dtype=bool)
        size = np.bincount(self.groups, minlength=1)
        for g in np.unique(group):
            rows = np.flatnonzero(group == g)
            missing = size[g] - len(rows) if g else 0
            rows = rows[np.argsort(marks[rows])]
            out = max(least - missing, 0) if missing else 0
            told[rows[: out if len(rows) - out >= least else None]] = False
        return group, told

    def after(self, marks: Marks, shown: IntArray, least: int) -> ClassHistory:
        """The history with one more release.

        Parameters
        ----------
        marks : (n,) uint64 array
        shown : (n,) int array
            Class under which each row is told; -1 in none.
        least : int
        """
        group = self._found(marks)
        new = group == 0
        if new.sum() < least:  # too few: they are in no class
            marks, shown, new = marks[~new], shown[~new], new[~new]
        marks_after = np.concatenate([self.marks, marks[new]])
        before = np.concatenate([self.groups, np.zeros(int(new.sum()), dtype=np.int64)])
        order = np.argsort(marks_after)
        marks_after, before = marks_after[order], before[order]
        told = np.full(len(marks_after), -1, dtype=np.int64)
        told[np.searchsorted(marks_after, marks)] = shown
        _, groups = np.unique(np.stack([before, told]), axis=1, return_inverse=True)
        return ClassHistory(marks_after, groups.ravel() + 1)

    def _found(self, marks: Marks) -> IntArray:
        if not len(self.marks):
            return np.zeros(len(marks), dtype=np.int64)
        place = np.minimum(np.searchsorted(self.marks, marks), len(self.marks) - 1)
        return np.where(self.marks[place] == marks, self.groups[place], 0)
