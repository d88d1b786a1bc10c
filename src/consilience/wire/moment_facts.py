"""One rule for first and second moments of columns, for every method that tells some.

Who knows n, means and sums of products about one point knows them about every point, and of columns
with few values they are counts: with 1, x, y and xy of two 0/1 columns come all four cells of their
table, with three such columns the number of records in which all three agree. So columns are judged
about the mean, about the median, and as counts. What is judged, and that nothing else of 0 and 1 is
a linear combination of what leaves, is in docs/proofs/told-moments.md.

Nothing and few look the same: a count of 0 is too small like one of 1, unless it is 0 by the coding
(two levels of one category), which everybody knows.

A sum rests on the records that differ from the point it is taken about, and whoever knows n and the
means of columns can take it about any point. So columns are looked at about their means, about
their medians, and about values that several records have.

Sums of products by class and block of columns (`block_facts`) are judged in the same way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray, SideBySide, by_column
from consilience.wire.cell_facts import HARDLY, LOOK, product_facts
from consilience.wire.digits import off_grid
from consilience.wire.support import Limits
from consilience.wire.usual_values import (
    at_most,
    beside_two,
    hardly_apart,
    off_both,
    others,
    present,
)

MOST_LEVELS = 5
"""Ways to part the levels of a category in two grow with 2 to their number: 15 at five."""
_ROUNDING = 1e-9
_ANY_LIMIT = 1 << 11
"""Where the policy is not known: no site asks for more records than that."""


class Coded(NamedTuple):
    """Columns that are 0/1 levels of one category.

    Attributes
    ----------
    columns : tuple of int
        Positions. No record has two of these levels.
    whole : bool
        Whether every record has one of them.
    """

    columns: tuple[int, ...]
    whole: bool


def coded_within(coded: Sequence[Coded], columns: IntArray) -> tuple[Coded, ...]:
    """Categories among some of the columns, by their places there."""
    place = {int(column): i for i, column in enumerate(columns)}
    found = []
    for group in coded:
        inside = tuple(place[j] for j in group.columns if j in place)
        if inside:
            found.append(Coded(inside, group.whole and len(inside) == len(group.columns)))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class MomentFacts:
    """What sums of products of columns rest on, and which of them may leave.

    Attributes
    ----------
    unsafe : (p, p) bool array
        Products that may not leave; on the diagonal columns of which nothing may leave.
    records : (p, p) int array
        Fewest records of any count or sum that a product tells with the other moments of its two
        columns; 1 also where there is none.
    share : (p, p) array
        Largest share of one record.
    """

    unsafe: BoolArray
    records: IntArray
    share: FloatArray


# --------------------------------------------------------------------------- columns by themselves


def column_facts(x: FloatArray, coded: Sequence[Coded] = ()) -> tuple[IntArray, FloatArray]:
    """Fewest records and largest share behind n, mean and mean square of each column.

    Parameters
    ----------
    x : (n, p) array
        NaN where a value is missing.
    coded : sequence of Coded

    Returns
    -------
    records : (p,) int array
        At least 1. For levels of a category those of the level, and of the level that is left out.
    share : (p,) array
    """
    records, share = _by_itself(x, _ANY_LIMIT)
    for group in coded:
        rest = _rest(x, group.columns)
        if not (group.whole and not rest.any()):
            places = list(group.columns)
            records[places] = np.minimum(records[places], max(int(rest.sum()), 1))
    return records, share


def unsafe_columns(x: FloatArray, *, limits: Limits, coded: Sequence[Coded] = ()) -> BoolArray:
    """Columns whose number, mean and mean square may not leave together, (p,).

    Of a category a further level is withheld where the levels that leave, taken off the number of
    records, would tell of too few others.
    """
    if not len(x):
        return np.ones(x.shape[1], dtype=bool)
    below, seen = min(HARDLY, limits.max_share), _Seen.of(x)
    facts = _by_itself(x, limits.min_records, below, seen)
    return _withheld(x, *facts, limits, coded, seen)


def _withheld(
    x: FloatArray,
    records: IntArray,
    share: FloatArray,
    limits: Limits,
    coded: Sequence[Coded],
    seen: _Seen,
) -> BoolArray:
    unsafe = (records < limits.min_records) | ~(share <= limits.max_share) | _infinite(x, seen)
    blank = (np.isnan(one[:1]).all() and np.isnan(one).all() for one in x.T)
    unsafe |= np.fromiter(blank, dtype=bool)
    if limits.max_detection < np.inf:
        finer = (off_grid(column, limits.min_records) is not None for column in x.T)
        unsafe |= np.fromiter(finer, dtype=bool)
    if limits.min_records > 1:
        for group in coded:
            told = [j for j in group.columns if not unsafe[j]]
            if group.whole and len(told) == len(group.columns):
                continue
            while told and int(_rest(x, told).sum()) < limits.min_records:
                unsafe[told.pop(0)] = True
    return np.asarray(unsafe)


def _infinite(x: FloatArray, seen: _Seen) -> BoolArray:
    """Columns with an infinite value: whoever has it rules every sum."""
    found = np.asarray(np.isinf(seen.ends).any(axis=0))
    for j in np.flatnonzero(seen.gaps):  # whose ends are not known
        found[j] = np.isinf(x[:, j]).any()
    return found


def _rest(x: FloatArray, columns: Sequence[int]) -> BoolArray:
    """Records with a value and none of the levels."""
    part = x[:, list(columns)]
    return np.asarray(~(_high(part).any(axis=1) | np.isnan(part).any(axis=1)))


def left_over(x: FloatArray, least: int, coded: Sequence[Coded] = ()) -> list[list[int]]:
    """Sets of columns of two values, no two of which share records, that leave few over.

    The number of records less the totals of such columns, each as it is or turned around, counts
    those that are left; with other columns' products it sums over them. Levels that make up a
    category by its coding leave nobody over, as everybody knows.
    """
    literals: list[tuple[int, BoolArray]] = []
    for j in range(x.shape[1]):
        values, _ = _values(x[:, j])
        if values is not None and len(values) == 2:
            literals += [(j, x[:, j] == v) for v in values]
    literals.sort(key=lambda one: -int(one[1].sum()))
    n, whole = len(x), [set(group.columns) for group in coded if group.whole]
    found: list[list[int]] = []

    def extend(chosen: list[int], covered: BoolArray, start: int) -> None:
        rest = n - int(covered.sum())
        if len(chosen) > 1 and rest < least and set(chosen) not in whole:
            found.append(sorted(chosen))
            return
        for place in range(start, len(literals)):
            j, rows = literals[place]
            size = int(rows.sum())
            # All that follow are smaller: they cannot fill what is left.
            if rest - size * (len(literals) - place) >= least:
                return
            if j not in chosen and int((covered & rows).sum()) < least:
                extend([*chosen, j], covered | rows, place + 1)

    extend([], np.zeros(n, dtype=bool), 0)
    return found


def hanging_together(
    x: FloatArray, least: int, joint: BoolArray, coded: Sequence[Coded] = ()
) -> list[list[int]]:
    """Sets of columns of two values of which some combination is 0 in all but few records.

    If f = w'z is 0 but in k records, where it is 1 or -1, k = w'Gw is at least the smallest
    eigenvalue of the second moments G of z times the squared length of w. Here z holds 1, the
    columns, and the products of those that are `joint`. Five boxes of which everybody ticks two,
    with 2 less their sum, have a length of 9. Of columns that have nothing to do with each other
    the eigenvalue is far above these bounds.

    Parameters
    ----------
    x : (n, p) array
    least : int
    joint : (p,) bool array
    coded : sequence of Coded
        Of a whole category one level is left out: everybody knows that they add up to 1. Nor is a
        product of two of its levels among the functions: everybody knows that nobody has both.
    """
    of = {j: g for g, group in enumerate(coded) for j in group.columns}
    spare = {group.columns[-1] for group in coded if group.whole}
    columns = [j for j in range(x.shape[1]) if j not in spare and _of_two(x[:, j])][:_MOST]
    known = x[~np.isnan(x[:, columns]).any(axis=1)][:, columns]
    if len(columns) < 2 or not len(known):
        return []
    codes = (known == known.max(axis=0)) @ (1 << np.arange(len(columns)))
    points, times = np.unique(codes, return_counts=True)
    high = ((points[:, None] >> np.arange(len(columns))) & 1).astype(float)
    singles: list[tuple[int, ...]] = [(), *((k,) for k in range(len(columns)))]
    pairs = [
        (a, b)
        for a, b in itertools.combinations([k for k, j in enumerate(columns) if joint[j]], 2)
        if columns[a] not in of or of[columns[a]] != of.get(columns[b])
    ]
    for terms, bound in ((singles, least / 4), ([*singles, *pairs], least / 16)):
        z = np.stack([high[:, term].prod(axis=1) for term in terms], axis=1)
        values, vectors = np.linalg.eigh(z.T @ (z * times[:, None]))
        if values[0] < bound:
            weight = np.abs(vectors[:, 0])
            used = {
                columns[k]
                for t, w in zip(terms, weight, strict=True)
                for k in t
                if 5 * w > weight.max()
            }
            return [sorted(used)]
    return []


_MOST = 30
"""Columns that are looked at: with their products as many as 466 functions."""


def _of_two(column: FloatArray) -> bool:
    values, _ = _values(column)
    return values is not None and len(values) == 2


def _high(part: FloatArray) -> BoolArray:
    """Where each column has its larger value; nowhere in a column of one value."""
    with np.errstate(invalid="ignore"):
        top = np.fmax.reduce(part, axis=0, initial=-np.inf)
        low = np.fmin.reduce(part, axis=0, initial=np.inf)
        return np.asarray((part == top) & (low < top)).reshape(part.shape)


def _by_itself(
    x: FloatArray,
    least: int,
    below: float = 0.0,
    seen: _Seen | None = None,
) -> tuple[IntArray, FloatArray]:
    """Facts of each column; shares below a number may be bounds, and records of at least `least`.

    About means and usual values.
    """
    n, p = x.shape
    records, share = np.ones(p, dtype=np.int64), np.zeros(p)
    if not n:
        return records, share
    seen = _Seen.of(x) if seen is None else seen
    # Where nobody shares a value every record counts, but for one at the median.
    records[seen.distinct] = n - seen.at_middle[seen.distinct]
    for start in range(0, p, _TOGETHER):
        some = start + np.flatnonzero(seen.distinct[start : start + _TOGETHER])
        share[some] = np.max(
            [_shares_of_squares(x, c, seen.ends, some) for c in seen.centres], axis=0
        )
    for j in np.flatnonzero(~seen.distinct & (seen.ends != 0).any(axis=0)).tolist():
        column = x[:, j]
        if np.isnan(seen.ends[0, j]):
            column = column[~np.isnan(column)]
        if not len(column):
            continue
        # One that is no number stays so, and is above every limit.
        share[j] = np.max(
            [_share_about(column, c[j], seen.ends[:, j], below) for c in seen.centres]
        )
        # Of up to four values one has a quarter of the records.
        most = int(seen.most[j])
        if len(column) > 4 * most and len(column) - least >= 2 * most:
            records[j] = len(column) - most
            continue
        column = np.ascontiguousarray(column)
        records[j] = min(
            int((column != seen.middles[j]).sum()),
            others(column, least),
            beside_two(column, least),
        )
        values, counts = _values(column)
        if values is not None:
            records[j] = min(records[j], _fewest(values, counts))
    return np.maximum(records, 1), share


def _shares_of_squares(
    x: FloatArray, centre: FloatArray, ends: FloatArray, columns: IntArray
) -> FloatArray:
    """Largest share of one record in the squares about a centre, for some columns together."""
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.ascontiguousarray(_chosen(x, columns).T) - centre[columns, None]
        # In units of the largest, so that no square can overflow.
        away /= np.abs(ends[:, columns] - centre[columns]).max(axis=0)[:, None]
        away *= away
        return np.asarray(1.0 / away.sum(axis=1))


def _share_about(column: FloatArray, centre: float, ends: FloatArray, below: float) -> float:
    """Largest share of one record in the squares about a centre; where it is small, a bound."""
    if (np.abs(ends) < 1e140).all():
        # Some of the records have no more than all of them together.
        peak, away = float(np.abs(ends - centre).max()), column[:_SOME] - centre
        bound = peak * peak / max(float(away @ away), 1e-300) * (1 + 1e-9)
        if peak > 1e-140 and bound < below:
            return bound
    with np.errstate(invalid="ignore"):
        return _share_of_squares(column - centre, below)


def _share_of_squares(away: FloatArray, below: float) -> float:
    """Largest share of one record in squares, which are lost; a bound if it is below a number."""
    peak = max(away.max(), -away.min())
    if below > 0 and 1e-140 < peak < 1e140:
        # Rounding of either sum is far less than what is added here.
        bound = float(peak * peak / (away @ away)) * (1 + 1e-9)
        if bound < below:
            return bound
    if not peak > 0:
        return 0.0
    # In units of the largest, so that no square can overflow.
    away = np.divide(away, peak, out=away)
    whole = np.square(away, out=away).sum()
    return float(1.0 / whole) if whole != 0 else 0.0


def _values(column: FloatArray) -> tuple[FloatArray | None, IntArray]:
    """Values and their counts where there are at most four; None where there are more."""
    if len(set(present(column[:32]).tolist())) > 4:
        return None, np.zeros(0, dtype=np.int64)
    known = present(column)
    values, counts = np.unique(known, return_counts=True)
    return (values, counts) if len(values) <= 4 else (None, counts)


def _fewest(values: FloatArray, counts: IntArray) -> int:
    """Fewest records in any set that n, the sum and the sum of squares of a column count.

    Of two or three values: each. Of four, the outer two and the inner two, if they lie evenly about
    one point: (v - a)(v - b) then takes two values. A polynomial of degree two takes no two values
    on five points.
    """
    if len(values) < 2:
        return 0
    if len(values) < 4:
        return int(counts.min())
    outer, inner = values[0] + values[3], values[1] + values[2]
    if abs(outer - inner) > _ROUNDING * max(np.abs(values).max(), 1e-300):
        return int(counts.sum())
    return int(min(counts[0] + counts[3], counts[1] + counts[2]))


# --------------------------------------------------------------------------- products


def moment_facts(
    x: FloatArray, *, limits: Limits, coded: Sequence[Coded] = (), seen: _Seen | None = None
) -> MomentFacts:
    """Judge n, means and all sums of products of columns together.

    Parameters
    ----------
    x : (n, p) array
        In any units; NaN where a value is missing, sums are then over the pairs that are there.
    limits : Limits
    coded : sequence of Coded
        Which columns are levels of one category.
    seen : _Seen, optional
        Where that is known already.
    """
    n, p = x.shape
    least, below = limits.min_records, min(HARDLY, limits.max_share)
    x = by_column(x) if least > 1 else x
    seen = _Seen.of(x) if seen is None else seen
    never, blank = np.zeros((p, p), dtype=bool), not n
    if seen.gaps.any():
        there = (~np.isnan(x)).astype(float)
        never, blank = there.T @ there == 0, not there.any(axis=0).all()
    if blank:
        ones = np.ones((p, p), dtype=np.int64)
        return MomentFacts(np.ones((p, p), dtype=bool), ones, np.zeros((p, p)))
    if least <= 1:
        return _by_shares(x, never, limits, seen)
    own, own_share = _by_itself(x, least, below, seen)
    alone = _withheld(x, own, own_share, limits, coded, seen)
    few = _Few.of(x, coded, alone)
    records, share = few.facts(x, limits, seen)
    np.fill_diagonal(records, own)
    np.fill_diagonal(share, own_share)
    records = np.maximum(records, 1)
    unsafe = (records < least) | ~(share <= limits.max_share) | never
    unsafe |= alone[:, None] | alone
    unsafe |= few.agreeing(unsafe, least)
    return MomentFacts(np.asarray(unsafe), records, share)


def _by_shares(x: FloatArray, never: BoolArray, limits: Limits, seen: _Seen) -> MomentFacts:
    """What is left of the rule where a single record may be told of."""
    below = min(HARDLY, limits.max_share)
    # Records are those about means: nobody asks how many are at medians.
    facts = [
        product_facts(x, centre=centre, below=below, ends=seen.ends, at_centre=at)
        for centre, at in zip(seen.centres, (None, seen.at_middle), strict=True)
    ]
    share = np.maximum(facts[0][1], facts[1][1])
    infinite = _infinite(x, seen)
    unsafe = ~(share <= limits.max_share) | never | infinite[:, None] | infinite
    return MomentFacts(np.asarray(unsafe), np.maximum(facts[0][0], 1), share)


@dataclass(frozen=True, eq=False)
class _Few:
    """Columns of two values and categories, as variables of levels.

    Attributes
    ----------
    columns : list of lists of int
        Columns of each variable that may leave.
    levels : (n, m) array
        1 where a record has a level: first those of variable 0, then those of 1, and so on.
    starts : (v + 1,) int array
        First level of each variable.
    numbers : (r,) int array
        Columns that may leave and are none of these.
    """

    columns: list[list[int]]
    levels: FloatArray
    starts: IntArray
    numbers: IntArray

    @classmethod
    def of(cls, x: FloatArray, coded: Sequence[Coded], alone: BoolArray) -> _Few:
        columns: list[list[int]] = []
        parts: list[FloatArray] = []
        left = ~alone
        for group in coded:
            told = [j for j in group.columns if left[j]]
            left[list(group.columns)] = False
            if not told:
                continue
            part = x[:, told]
            known = np.asarray(~np.isnan(part).any(axis=1), dtype=float)
            have = np.asarray(_high(part), dtype=float) * known.reshape(-1, 1)
            if not (group.whole and len(told) == len(group.columns)):
                have = np.column_stack([have, _rest(x, told)])
            columns.append(told)
            parts.append(have)
        for j in np.flatnonzero(left):
            values, _ = _values(x[:, j])
            if values is not None and len(values) == 2:
                left[j] = False
                columns.append([int(j)])
                parts.append((x[:, [j]] == values).astype(float))
        starts = np.cumsum([0, *(part.shape[1] for part in parts)]).astype(np.int64)
        levels = np.concatenate(parts, axis=1) if parts else np.zeros((len(x), 0))
        return cls(columns, levels, starts, np.flatnonzero(left))

    @property
    def of_column(self) -> IntArray:
        """Variable of each column that `places` lists."""
        return np.repeat(np.arange(len(self.columns)), [len(c) for c in self.columns])

    @property
    def places(self) -> IntArray:
        """Columns of all variables."""
        return np.asarray([j for c in self.columns for j in c], dtype=np.int64)

    def facts(self, x: FloatArray, limits: Limits, seen: _Seen) -> tuple[IntArray, FloatArray]:
        """Records and largest share of each pair of columns, (p, p) each; 1 and 0 of others."""
        p, least = x.shape[1], limits.min_records
        records, share = np.ones((p, p), dtype=np.int64), np.zeros((p, p))
        of, places = self.of_column, self.places
        order, first = np.concatenate([self.numbers, places]), len(self.numbers)
        below, ordered = min(HARDLY, limits.max_share), _chosen(x, order)
        # Records are those about usual values.
        (_, shares), (rows, also) = (
            product_facts(
                ordered,
                first,
                centre=centre[order],
                below=below,
                ends=seen.ends[:, order],
                at_centre=at[order],
            )
            for centre, at in zip(
                seen.centres, (np.zeros_like(seen.at_middle), seen.at_middle), strict=True
            )
        )
        numbers, spiked = ordered[:, :first], np.flatnonzero(~seen.spread(least)[order[:first]])
        rows[:first, :first] = np.minimum(rows[:first, :first], off_both(numbers, least, spiked))
        rows[:first, :first][hardly_apart(numbers, least)] = 1
        records[np.ix_(order, order)] = rows
        share[np.ix_(order, order)] = np.maximum(shares, also)
        if not self.columns:
            return records, share
        cells = np.rint(self.levels.T @ self.levels).astype(np.int64)
        fewest = np.minimum.reduceat(cells, self.starts[:-1], axis=0)
        fewest = np.minimum.reduceat(fewest, self.starts[:-1], axis=1)
        # Two levels of one category have no record in common by the coding.
        np.fill_diagonal(fewest, len(x))
        both = np.ix_(places, places)
        records[both] = fewest[np.ix_(of, of)]
        # The records of a cell add the same: none has more than its part of it.
        share[both] = 1.0 / np.maximum(records[both], 1)
        if first:
            facts = [
                self._with_number(numbers[:, r], seen.column(j), least, below)
                for r, j in enumerate(self.numbers)
            ]
            found, largest = (np.stack(one) for one in zip(*facts, strict=True))
            pairs = np.ix_(self.numbers, places)
            records[pairs] = records[pairs[::-1]] = np.minimum(records[pairs], found[:, of])
            share[pairs] = share[pairs[::-1]] = np.maximum(share[pairs], largest[:, of])
        return records, share

    @functools.cached_property
    def sizes(self) -> FloatArray:
        """Records with each level, (m,)."""
        return np.asarray(self.levels.sum(axis=0))

    def _with_number(
        self, column: FloatArray, seen: _Seen, least: int, below: float
    ) -> tuple[IntArray, FloatArray]:
        """Facts of the sums of a number within the levels of each variable, (v,) each.

        A sum within a level is one over the records whose number is not the usual one, that of most
        of these records; and over those whose number is not the median of all.
        """
        gaps, middle, counts = seen.gaps.any(), seen.middles[0], self.sizes.astype(np.int64)
        peak = float(np.abs(seen.ends - middle).max())
        whole = np.zeros(len(counts))
        if not gaps and peak > 0:
            # over some records: at most that over all
            whole = (np.abs(column[:_SOME] - middle) / peak) @ self.levels[:_SOME]
        some = bool((whole * below <= 1).any())
        if gaps or seen.at_middle.any() or some:
            size = np.abs(np.nan_to_num(column - middle) if gaps else column - middle)
            counts = np.rint((size > 0) @ self.levels).astype(np.int64)
            if some:
                peak = size.max()
                size /= peak if peak > 0 else 1.0
                whole = size @ self.levels
        # Nobody has more than one unit.
        share = np.divide(1.0, whole, out=np.zeros_like(whole), where=whole > 0)
        for level in np.flatnonzero(share >= below).tolist():
            share[level] *= size[self.levels[:, level] > 0].max(initial=0.0)
        smallest = int(self.sizes.min()) - least
        counts = np.minimum(counts, self._with_three(column))
        # An estimate settles it mostly; else records with each value are counted.
        if gaps or (seen.most.max() > smallest and at_most(column, 8) > smallest):
            _, times = np.unique(column, return_counts=True)
            if times.max() > smallest:
                for level in range(len(counts)):
                    own = column[self.levels[:, level] > 0]
                    counts[level] = min(counts[level], others(own, least))
        rows = np.minimum.reduceat(counts, self.starts[:-1])
        return rows, np.maximum.reduceat(share, self.starts[:-1])

    def _with_three(self, column: FloatArray) -> IntArray:
        """Fewest records that have a level and the least of three values, or not it and the most.

        For values a - d, a, a + d and a level z, (v - a)^2 + d (v - a) (2z - 1) takes two values.
        """
        m = self.levels.shape[1]
        values, _ = _values(column)
        if values is None or len(values) != 3:
            return np.full(m, len(column))
        if abs(values[0] + values[2] - 2 * values[1]) > _ROUNDING * np.abs(values).max():
            return np.full(m, len(column))
        found = np.full(m, len(column))
        for v in range(len(self.columns)):
            inside = range(int(self.starts[v]), int(self.starts[v + 1]))
            for chosen in _parts_in_two(len(inside)):
                one = self.levels[:, [inside[i] for i in chosen]].any(axis=1)
                other = self.levels[:, inside].any(axis=1) & ~one
                for low, high in ((values[0], values[2]), (values[2], values[0])):
                    both = int(((column == low) & one).sum() + ((column == high) & other).sum())
                    found[inside] = np.minimum(found[inside], both)
        return found

    # ----------------------------------------------------------------------- three and four columns

    def agreeing(self, unsafe: BoolArray, least: int) -> BoolArray:
        """Products that give way so that no three or four variables tell of too few records.

        Parameters
        ----------
        unsafe : (p, p) bool array
            As judged by pairs.
        least : int

        Returns
        -------
        (p, p) bool array
        """
        found = np.zeros_like(unsafe)
        number = len(self.columns)
        if not number:
            return found
        of, places = self.of_column, self.places
        apart = np.zeros((number, number), dtype=bool)
        np.logical_or.at(apart, (of[:, None], of[None, :]), unsafe[np.ix_(places, places)])
        wide = np.diff(self.starts) > MOST_LEVELS
        if number > 2:
            apart |= wide[:, None] | wide
            np.fill_diagonal(apart, True)
            signs, variable = self._signs(~wide)
            joined = ~apart[np.ix_(variable, variable)]
            products, n = np.rint(signs.T @ signs), len(signs)
            _part_threes(joined, products, variable, 4 * least - n)
            _part_fours(joined, products, variable, 2 * n - 4 * least)
            lost = np.argwhere(~joined)
            apart[variable[lost[:, 0]], variable[lost[:, 1]]] = True
        np.fill_diagonal(apart, False)
        found[np.ix_(places, places)] = apart[np.ix_(of, of)]
        for columns in self.columns:
            some = unsafe[self.numbers][:, columns].any(axis=1)
            for column in columns:
                found[self.numbers, column] = found[column, self.numbers] = some
        return found

    def _signs(self, used: BoolArray) -> tuple[FloatArray, IntArray]:
        """1 and -1 for every way to part the levels of a variable in two, and its variable.

        A record without a value counts with the larger part.
        """
        columns, variable = [], []
        for v in np.flatnonzero(used):
            inside = self.levels[:, self.starts[v] : self.starts[v + 1]]
            for chosen in _parts_in_two(inside.shape[1]):
                one = inside[:, list(chosen)].sum(axis=1)
                other = inside.sum(axis=1) - one
                usual = 1.0 if one.sum() > other.sum() else -1.0
                columns.append(np.where(one + other > 0, one - other, usual))
                variable.append(v)
        signs = np.stack(columns, axis=1) if columns else np.zeros((len(self.levels), 0))
        return signs, np.asarray(variable, dtype=np.int64)


def _parts_in_two(n_levels: int) -> list[tuple[int, ...]]:
    """Each way to part levels in two, by the part that the last level is not in."""
    first = range(n_levels - 1)
    return [c for size in range(1, n_levels) for c in itertools.combinations(first, size)]


def _part_threes(joined: BoolArray, products: FloatArray, variable: IntArray, least: float) -> None:
    """Withhold products until no three joined variables agree in too few records.

    For signs s, t, u the records in which all three agree are (n + st + su + tu) / 4, and with one
    of them turned around (n + st - su - tu) / 4, and so on. Of three variables the last two are
    parted. ``joined`` is changed in place; `least` is 4 min_records - n.
    """
    m = len(joined)
    # If such a sum is small, one of its three products is at least a third of that in size.
    strong = joined & (np.abs(products) >= -(least - 1) / 3)
    edges = np.argwhere(np.triu(strong))
    for a in range(m):
        near = joined[a] & (variable > variable[a])
        if not near.any():
            continue
        beside = edges[near[edges[:, 0]] & near[edges[:, 1]]]
        mine = np.flatnonzero(near & strong[a])
        found = np.argwhere(joined[mine] & near)
        b = np.concatenate([beside[:, 0], mine[found[:, 0]]])
        c = np.concatenate([beside[:, 1], found[:, 1]])
        bc, ab, ac = products[b, c], products[a, b], products[a, c]
        sums = np.minimum(
            np.minimum(bc + ab + ac, bc - ab - ac), np.minimum(ab - bc - ac, ac - bc - ab)
        )
        bad = (sums < least) & joined[b, c]
        if bad.any():
            _part(joined, variable, b[bad], c[bad])


def _part(joined: BoolArray, variable: IntArray, first: IntArray, second: IntArray) -> None:
    """Part the variables of pairs of columns."""
    for u, v in {(int(variable[i]), int(variable[j])) for i, j in zip(first, second, strict=True)}:
        one, other = np.flatnonzero(variable == u), np.flatnonzero(variable == v)
        joined[np.ix_(one, other)] = joined[np.ix_(other, one)] = False


def _part_fours(joined: BoolArray, products: FloatArray, variable: IntArray, most: float) -> None:
    """Withhold products until no ring of four variables tells of too few records.

    For signs s, t, u, v the sum st + tu + uv - vs is 2 or -2, so n / 2 + (st + tu + uv - vs) / 4
    is a count. Where a product across the ring leaves too it is the sum of two counts of threes.
    ``joined`` is changed in place; `most` is 2 n - 4 min_records.
    """
    changed = True
    while changed:
        changed = False
        apart = ~joined & (variable[:, None] != variable)
        for a, c in np.argwhere(np.triu(apart)):
            both = np.flatnonzero(joined[a] & joined[c])
            if len(both) < 2:
                continue
            plus = np.abs(products[a, both] + products[c, both])
            minus = np.abs(products[a, both] - products[c, both])
            if plus.max() + minus.max() <= most:
                continue
            bad = (plus[:, None] + minus > most) & apart[np.ix_(both, both)]
            if bad.any():
                b = both[np.nonzero(bad)[0]]
                _part(joined, variable, np.full(len(b), c), b)
                changed = True
                break


# ------------------------------------------------------------------------------------ usual values


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is asked of each column more than once.

    Attributes
    ----------
    ends : (2, p) array
        Least and largest value; NaN where one is missing.
    means, middles : (p,) arrays
        Mean and median, 0 of a column without any value. Where one record alone lies at the median,
        what is taken is halfway to the next one: only a value that several records share is a usual
        one.
    at_middle : (p,) int array
        Records there.
    most : (p,) int array
        No value has more records.
    distinct : (p,) bool array
        Columns in which no two records share a value, as far as short ones show it.
    n : int
    """

    ends: FloatArray
    means: FloatArray
    middles: FloatArray
    at_middle: IntArray
    most: IntArray
    distinct: BoolArray
    n: int

    @classmethod
    def of(cls, x: FloatArray) -> _Seen:
        n, p = x.shape
        means, middles = np.zeros(p), np.zeros(p)
        at, most, ends = np.zeros(p, dtype=np.int64), np.zeros(p, dtype=np.int64), np.zeros((2, p))
        distinct = np.zeros(p, dtype=bool)
        for start in range(0, p if 8 <= n <= _SHORT else 0, _TOGETHER):
            turned = np.ascontiguousarray(x[:, start : start + _TOGETHER].T)
            order = np.sort(turned, axis=1)
            # Those without a gap or an infinite value, where no two records have the same one.
            fine = np.isfinite(order[:, [0, -1]]).all(axis=1) & (order[:, 1:] > order[:, :-1]).all(
                1
            )
            some, order = start + np.flatnonzero(fine), order[fine]
            half = n // 2
            centre = order[:, half] if n % 2 else (order[:, half - 1] + order[:, half]) / 2
            lone = (order == centre[:, None]).any(axis=1)
            higher = order[np.arange(len(order)), (order <= centre[:, None]).sum(axis=1)]
            centre = np.where(lone, centre / 2 + higher / 2, centre)
            at[some] = (order == centre[:, None]).sum(axis=1)
            middles[some], means[some] = centre, turned[fine].mean(axis=1)
            ends[:, some], most[some] = order[:, [0, -1]].T, -(-n // 5)
            distinct[some] = True
            # Of columns of which nothing is told only noughts are left.
            some = start + np.flatnonzero(~turned.any(axis=1))
            at[some] = most[some] = n
        for j in np.flatnonzero(~distinct & (at == 0)).tolist():
            column = np.empty(0)  # the one before goes first
            column = np.ascontiguousarray(x[:, j])
            if len(column):
                ends[:, j] = column.min(), column.max()
            if np.isnan(ends[0, j]):
                column = column[~np.isnan(column)]
            if not len(column):
                continue
            most[j] = at_most(column, 5)
            with np.errstate(invalid="ignore"):  # of an infinite value
                means[j], middle = column.mean(), _median(column)
            at[j] = np.count_nonzero(column == middle)
            if at[j] == 1:
                above = column.min(where=column > middle, initial=np.inf)
                middle = middle / 2 + above / 2 if np.isfinite(above) else middle
                at[j] = np.count_nonzero(column == middle)
            middles[j] = middle
        return cls(ends, means, middles, at, most, distinct, n)

    @property
    def centres(self) -> tuple[FloatArray, FloatArray]:
        """Means and medians."""
        return self.means, self.middles

    @property
    def gaps(self) -> BoolArray:
        """Columns in which a value is missing."""
        return np.asarray(np.isnan(self.ends[0]))

    def spread(self, least: int) -> BoolArray:
        """Columns whose two most common values leave at least so many records."""
        return np.asarray(~self.gaps & (2 * self.most <= self.n - least))

    def column(self, j: int) -> _Seen:
        """The same of one column."""
        of = ("means", "middles", "at_middle", "most", "distinct")
        own: dict[str, Any] = {name: getattr(self, name)[[j]] for name in of}
        return _Seen(ends=self.ends[:, [j]], n=self.n, **own)


def _median(column: FloatArray) -> float:
    """Median; a column that is nobody else's is left in another order."""
    half, even = len(column) // 2, len(column) % 2 == 0
    parted = None
    if len(column) >= _LONG:
        # Some values say between which two the median lies, so that few are put in order.
        some = np.sort(column[:: len(column) // _SAMPLE])
        low, high = some[len(some) // 2 + np.array([-_APART, _APART])]
        place = half - int(np.count_nonzero(column < low))
        between = column[np.flatnonzero((column >= low) & (column <= high))]
        if even <= place < len(between):
            parted, half = between, place
    if parted is None:
        parted = column if column.flags.owndata and column.flags.writeable else column.copy()
    parted.partition(half)  # much quicker at one place than at two
    return float((parted[:half].max() + parted[half]) / 2 if even else parted[half])


_SOME = 8192
_SHORT, _TOGETHER = 4096, 256
"""Records of a column that is sorted to be looked at, and such columns at a time."""
_LONG, _SAMPLE, _APART = 1 << 14, 2048, 90
"""Values of a column of which a sample is looked at, how many, and four deviations of its rank."""


def _chosen(x: FloatArray, columns: IntArray) -> FloatArray:
    """Some columns; without a copy where they follow one another."""
    if len(columns) and (np.diff(columns) == 1).all():
        return x[:, columns[0] : columns[-1] + 1]
    return x[:, columns] if isinstance(x, SideBySide) else x.T[columns].T


# ------------------------------------------------------------------- by class and block of columns

Place = tuple[int, slice]


def block_facts(
    x: FloatArray,
    cells: IntArray,
    n_cells: int,
    blocks: Sequence[IntArray],
    entities: NDArray[Any] | None,
    limits: Limits,
    coded: Sequence[Coded] = (),
) -> tuple[FloatArray, list[tuple[Place, dict[str, Any]]]]:
    """Sums of products about class means, and the evidence of each class and block.

    Of rows with gaps (NaN) the facts are those of the pairs of values that are there, and the
    number of rows is that of the column with the fewest values. The sums are over these pairs too.

    Cells are judged as `moment_facts` says: about means, about medians, and as counts.

    Returns
    -------
    value : (n_cells, m) array
        Upper triangles of the blocks, one after the other; 0 for classes without rows.
    facts : list of (place, facts)
        Place of a class and block in `value`; records behind it, columns, and facts of its cells.
    """
    sizes = [len(block) * (len(block) + 1) // 2 for block in blocks]
    ends = np.cumsum([0, *sizes])
    value = np.zeros((n_cells, int(ends[-1])))
    facts: list[tuple[Place, dict[str, Any]]] = []
    for k in range(n_cells):
        members: Any = cells == k
        if not members.any():
            continue
        members = slice(None) if members.all() else np.flatnonzero(members)
        own = x[members]
        behind = None if entities is None else len(np.unique(np.asarray(entities)[members]))
        for b, block in enumerate(blocks):
            part = _chosen(own, np.asarray(block, dtype=np.int64))
            # Most is asked of one column after the other; where no record is protected, little is.
            turned = by_column(part) if limits.min_records > 1 else part
            seen = _Seen.of(turned)
            whole = not seen.gaps.any()
            if not whole and np.isnan(part).all(axis=0).any():
                # a column without any value: the block rests on no row
                part = turned = part[:0]
                seen = _Seen.of(part)
            place = k, slice(int(ends[b]), int(ends[b + 1]))
            upper = np.triu_indices(len(block))
            products = _products(part, whole, seen.means)
            value[place] = ((products + products.T) / 2)[upper]
            within = coded_within(coded, block)
            facts.append((place, _of_block(turned, seen, behind, limits, within)))
    return value, facts


def _products(part: FloatArray, whole: bool, means: FloatArray) -> FloatArray:
    """Sums of products of rows about their means; a missing value adds nothing.

    The means of columns in one piece each are known to the last digit, those of others nearly.
    """
    n, p = part.shape
    if n <= _AT_ONCE or not whole:
        there = part = np.asarray(part)
        if n:
            mean = part.mean(axis=0) if whole else np.nanmean(part, axis=0)
            there = part - mean if whole else np.nan_to_num(part - mean)
        return np.asarray(there.T @ there)
    mean, found = means if part.flags.f_contiguous else part.mean(axis=0), np.zeros((p, p))
    room, some = np.empty((p, LOOK)), np.empty((p, p))
    for start in range(0, n, LOOK):  # so that no copy of the table is made
        own = part[start : start + LOOK].T
        away = np.subtract(own, mean[:, None], out=room[:, : own.shape[1]])
        found += np.matmul(away, away.T, out=some)
    return found


_AT_ONCE = 8192


def _of_block(
    part: FloatArray, seen: _Seen, entities: int | None, limits: Limits, coded: Sequence[Coded]
) -> dict[str, Any]:
    judged, whole = moment_facts(part, limits=limits, coded=coded, seen=seen), not seen.gaps.any()
    upper = np.triu_indices(part.shape[1])
    # What gives way for another cell's sake rests on no more than that one.
    records = np.where(judged.unsafe, 1, judged.records)
    n = len(part) if whole else int((~np.isnan(part)).sum(axis=0).min(initial=len(part)))
    found: dict[str, Any] = {
        "n_records": n,
        "n_columns": part.shape[1],
        "records": records[upper],
        "share": judged.share[upper],
    }
    if entities is not None:
        found["entities"] = np.full(len(upper[0]), entities, dtype=np.int64)
    return found
