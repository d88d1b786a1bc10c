"""Rows by which two runs differ are told of like a release: their moments follow from the two.

Who subtracts the sums of one run from those of another has the sums over the rows in between, which
nobody released. If one of these rows alone has a 0/1 property, its other columns follow. So rows
that stay out take a quarter of the others with them, and a column of which few rows would be told,
in these or in others that runs part, is not told (`failing`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import BoolArray, FloatArray
from consilience.exceptions import DataError
from consilience.wire.evidence import Limits
from consilience.wire.moment_facts import (
    Coded,
    coded_within,
    hanging_together,
    left_over,
    moment_facts,
    unsafe_columns,
)
from consilience.wire.usual_values import hardly_apart

_SAMPLE = 20_000

TOO_ALIKE = (
    "the rows that the study asks for differ from those of earlier runs by fewer than this site "
    "may tell of"
)


@dataclass(frozen=True, eq=False)
class View:
    """Rows whose sums follow from what runs tell, and of which columns.

    Attributes
    ----------
    rows : (n,) bool array
    told : (p,) bool array
        Columns whose sums and squares follow.
    joint : (p,) bool array
        Those whose products with one another do.
    fixed : (p,) bool array
        Those that an earlier run told of these rows, whatever this one does.
    inside : (n,) bool array, optional
        Rows of another run, of which the number and sums of what it tells follow.
    """

    rows: BoolArray
    told: BoolArray
    joint: BoolArray
    fixed: BoolArray
    inside: BoolArray | None = None

    def within(self) -> FloatArray | None:
        """The set of rows as a column of 0 and 1, over the rows of the view."""
        return None if self.inside is None else self.inside[self.rows].astype(float)


def failing(
    x: FloatArray,
    views: Sequence[View],
    asked: BoolArray,
    limits: Limits,
    coded: Sequence[Coded] = (),
) -> BoolArray:
    """Columns of which a run tells nothing, for the sake of what it would tell with earlier ones.

    All that runs tell of the rows of a view is judged like one release of all its columns.

    Parameters
    ----------
    x : (n, p) array
        Columns that earlier runs told, or that this one asks for.
    views : sequence of View
    asked : (p,) bool array
    limits : Limits
    coded : sequence of Coded

    Returns
    -------
    (p,) bool array

    Raises
    ------
    DataError
        The rows themselves hang together with a column that was told: no column can be left out.
    """
    hidden = np.zeros(len(asked), dtype=bool)
    while True:
        bad = np.zeros((len(asked), len(asked)), dtype=bool)
        free = asked & ~hidden
        for view in views:
            columns = np.flatnonzero(view.told & (view.fixed | ~asked | free))
            if not (view.rows.any() and (free[columns].any() or view.inside is not None)):
                continue
            own = x[np.ix_(view.rows, columns)]
            joint = view.joint[columns] & (view.fixed | free)[columns]
            inside, inner = view.within(), coded_within(coded, columns)
            # What enough of some rows have enough of all have; that none outweighs all the others
            # the gate sees to when sums of so many leave.
            some = slice(None, None, max(len(own) // _SAMPLE, 1))
            few = None if inside is None else inside[some]
            part = _bad(own[some], joint, few, limits, inner)
            if some.step > 1 and part.any():
                part = _bad(own, joint, inside, limits, inner)
            if view.inside is not None:
                with_rows, part = part[-1, :-1], part[:-1, :-1]
                if (with_rows & ~free[columns]).any():
                    raise DataError(
                        f"{TOO_ALIKE}: ask for the rows of an earlier run", public=TOO_ALIKE
                    )
                part = part | np.diag(with_rows)
            bad[np.ix_(columns, columns)] |= part
        bad &= free[:, None] | free
        alone = free & ((bad & ~free).any(axis=1) | np.diagonal(bad))
        if not alone.any():
            pairs = bad & free & free[:, None]
            if not pairs.any():
                return hidden
            # Of those that are asked for together the worst gives way, the last of equal ones.
            faults = pairs.sum(axis=0)
            alone[len(faults) - 1 - int(np.argmax(faults[::-1]))] = True
        hidden |= alone


def _bad(
    x: FloatArray,
    joint: BoolArray,
    inside: FloatArray | None,
    limits: Limits,
    coded: Sequence[Coded],
) -> BoolArray:
    """Pairs of columns of which not both may be told, and on the diagonal columns that may not.

    A set of rows within the view is a column of its own, the last one: how many it has is told.
    """
    least, p = limits.min_records, x.shape[1]
    alone = unsafe_columns(x, limits=limits, coded=coded)
    bad = np.zeros((p + (inside is not None),) * 2, dtype=bool)
    bad[:p, :p] = np.diag(alone) | hardly_apart(x, least)
    for group in coded:  # levels of one category have nobody in common, as everybody knows
        bad[np.ix_(group.columns, group.columns)] &= np.eye(len(group.columns), dtype=bool)
    places = np.flatnonzero(joint & ~alone)
    unsafe = moment_facts(x[:, places], limits=limits, coded=coded_within(coded, places)).unsafe
    bad[np.ix_(places, places)] |= unsafe
    free = np.flatnonzero(~alone)
    if inside is not None:
        x, joint = np.column_stack([x, inside]), np.append(joint, False)
        free = np.append(free, p)
        bad[p, :p] = bad[:p, p] = _like_products(x, joint & ~np.append(alone, True), least)
    coded = coded_within(coded, free)
    sets = left_over(x[:, free], least, coded)
    sets += hanging_together(x[:, free], least, joint[free], coded)
    for columns in sets:
        bad[np.ix_(free[columns], free[columns])] = True
    bad[np.diag_indices(p)] = alone
    return bad


def _like_products(x: FloatArray, joint: BoolArray, least: int) -> BoolArray:
    """Columns of which one, or a product of two, is the last one in all but few records."""
    p, last = x.shape[1] - 1, x[:, -1]
    found = np.zeros(p, dtype=bool)
    marks: dict[tuple[int, ...], FloatArray] = {}
    marks |= {(j,): x[:, j] for j in range(p) if len(np.unique(x[:, j][~np.isnan(x[:, j])])) == 2}
    places = [columns[0] for columns in marks if joint[columns[0]]]
    marks |= {(i, j): x[:, i] * x[:, j] for i, j in itertools.combinations(places, 2)}
    for columns, mark in marks.items():
        few = (np.nan_to_num(mark) != last).sum()
        if min(few, len(last) - few) < least:
            found[list(columns)] = True
    return found
