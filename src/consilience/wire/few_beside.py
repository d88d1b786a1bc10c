"""Whether sums of products of columns tell of few records beside those with usual values.

Who knows n and all sums of products of columns about one point knows the sum of (u - a)(v - b) for
any numbers a and b and any two combinations u and v of columns. It is over the records of which
neither u is a nor v is b. So where nearly all have a usual value in either, the sum is that of the
others: of a column of levels 0, 1 and 2 the sum of x (x - 1) counts those at level 2, and of a
column that is nearly a copy of another the sum of y (y - x) is that of those of whom it is none.

A group of records passes where no such sum rests on few: on no record, or on `min_records` of
`min_entities` entities. Disjoint groups that pass do so together (docs/proofs/class-sums.md). Usual
is a value that two records of the table share, in the group or not.

`moment_facts` asks the like of all rows of a release. There none are too few as well, and usual is
what the rows themselves share, so unions of what passes need not pass; here they must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.wire.support import Limits
from consilience.wire.usual_values import at_most

_ROUNDING = 1e-11
"""Of the size of what is added: numbers that are nearer to each other are one value."""

_SETS = 1000
"""Sets of marks that are looked at; where there are more, a group does not pass."""


@dataclass(eq=False)
class _Form:
    """A column of all records, or its sum or difference with another.

    In a group it may be the same as `others`, beside which what is added to it is constant.
    """

    x: FloatArray
    column: int
    other: int = -1
    sign: float = 0.0
    others: tuple[_Form, ...] = ()

    def of(self, chosen: IntArray | slice) -> tuple[FloatArray, FloatArray]:
        """Values of some records, and how far one value's may be apart."""
        # Made when asked for: forms of all pairs of columns would be many times the table.
        values = self.x[chosen, self.column]
        size = np.abs(values)
        if self.sign:
            added = self.x[chosen, self.other]
            values, size = values + self.sign * added, size + np.abs(added)
        return values, _ROUNDING * size

    def codes(self, chosen: IntArray | slice) -> IntArray:
        """A number for each value of some records, from 0."""
        values, within = self.of(chosen)
        order = np.argsort(values, kind="stable")
        near = np.maximum(within[order][1:], within[order][:-1])
        codes = np.zeros(len(values), dtype=np.int64)
        codes[order[1:]] = np.cumsum(np.diff(values[order]) > near)
        return codes

    @cached_property
    def most(self) -> int:
        """A number of records that no value has more than, in the table or a group."""
        values, within = self.of(slice(None))
        ends = np.flatnonzero(np.diff(np.sort(values)) > within.max(initial=0.0))
        return int(np.diff(ends, prepend=-1, append=len(values) - 1).max())

    def at_most(self, chosen: IntArray, parts: int) -> int:
        """A number of some records that no value has more than."""
        values, within = self.of(chosen)
        return at_most(values, parts, within)

    @cached_property
    def shared(self) -> BoolArray:
        """Records whose value another record has, or that of one of the others."""
        codes = self.codes(slice(None))
        also = [other.shared for other in self.others]
        own = np.bincount(codes)[codes] > 1
        return np.asarray(np.logical_or.reduce([own, *also]))


class FewBeside:
    """Groups of records, each judged by what it has beside usual values.

    Parameters
    ----------
    x : (n, p) array
        Columns of all records in any units, without the column of ones and without weights.
    entities : (n,) array
    limits : Limits
    """

    def __init__(self, x: FloatArray, entities: NDArray[np.generic], limits: Limits) -> None:
        self.x, self.limits = x, limits
        self.entity = np.unique(entities, return_inverse=True)[1].ravel()
        self._forms: dict[tuple[int, ...], list[_Form]] = {}

    def __call__(self, chosen: IntArray) -> bool:
        """Whether some but few records of a group are beside usual values.

        Of two columns, their sum and their difference; of three columns of two values also where
        they agree; of such columns no two of which a record has, those that have none, also beside
        usual values of another column and those that have none of other such columns.

        Parameters
        ----------
        chosen : (m,) int array
            Positions of the group's records.
        """
        if not len(chosen):
            return False
        x = self.x[chosen]
        constant = x.min(axis=0) == x.max(axis=0)
        vary, same = (np.flatnonzero(some).tolist() for some in (~constant, constant))
        group = _Group(self.entity[chosen], self.limits, chosen)
        columns = [self._of(j, j, *same)[0] for j in vary]
        if any(group.few_off(form, [form]) for form in columns):
            return True
        for forms in (self._of(*pair) for pair in combinations(vary, 2)):
            # what a column has beside itself is known by now
            new = [[other for other in forms if other is not form or form.sign] for form in forms]
            if any(map(group.few_off, forms, new)):
                return True
        return group.few_agree(x[:, vary], columns)

    def _of(self, i: int, j: int, *same: int) -> list[_Form]:
        """Column i where some are constant, or two columns, their sum and their difference."""
        key = (i, j, *same)
        if key not in self._forms:
            if i == j:
                beside = [self._of(min(i, k), max(i, k))[2:] for k in same]
                self._forms[key] = [_Form(self.x, i, others=tuple(chain(*beside)))]
            else:
                made = [_Form(self.x, i, j, 1.0), _Form(self.x, i, j, -1.0)]
                self._forms[key] = [*self._of(i, i), *self._of(j, j), *made]
        return self._forms[key]


class _Group:
    """Records of some entities (numbered), of which sums leave together."""

    def __init__(self, entity: IntArray, limits: Limits, chosen: IntArray) -> None:
        self.entity, self.limits, self.chosen, self.n = entity, limits, chosen, len(entity)
        sizes = np.sort(np.bincount(entity))[::-1]
        # More records than that are neither too few nor of too few entities.
        self.most = max(limits.min_records - 1, int(sizes[: limits.min_entities - 1].sum()))
        self._codes: dict[_Form, IntArray] = {}

    def codes_of(self, form: _Form) -> IntArray:
        """A number for each value of the group's records, from 0."""
        if form not in self._codes:
            self._codes[form] = form.codes(self.chosen)
        return self._codes[form]

    def few(self, n_records: int, n_entities: int) -> bool:
        """Whether so many are some, but few."""
        least = self.limits.min_records, self.limits.min_entities
        return n_records > 0 and (n_records < least[0] or n_entities < least[1])

    def few_of(self, some: BoolArray) -> bool:
        """Whether these records are some, but few."""
        n = int(np.count_nonzero(some))
        return 0 < n <= self.most and self.few(n, len(np.unique(self.entity[some])))

    def few_off(self, form: _Form, others: list[_Form]) -> bool:
        """Whether some but few are off a usual value of one form, or off one of another, too."""
        # One of the two values has half of all records but `most`, or the records are not few.
        half = (self.n - self.most) / 2
        if form.most < half or form.at_most(self.chosen, 5) < half:
            return False
        codes = self.codes_of(form)
        for value in np.flatnonzero(np.bincount(codes) >= half).tolist():
            off = codes != value
            # alone in the group, and in the table?
            lone = self.n - np.count_nonzero(off) == 1
            if lone and not form.shared[self.chosen[~off]].any():
                continue
            if self.few_of(off) or any(self._few_beside(off, other) for other in others):
                return True
        return False

    def _few_beside(self, off: BoolArray, form: _Form) -> bool:
        """Whether some but few of these records have another value than a usual one of theirs."""
        n = int(np.count_nonzero(off))
        if not n or form.most < n - self.most:
            return False
        chosen = self.chosen[off]
        if form.at_most(chosen, 3) < n - self.most:
            return False
        value = form.codes(chosen)
        entity = np.unique(self.entity[off], return_inverse=True)[1].ravel()
        n_entities = int(entity.max()) + 1
        counts = np.bincount(value)
        lowest, highest = np.full(n_entities, n), np.full(n_entities, -1)
        np.minimum.at(lowest, entity, value)
        np.maximum.at(highest, entity, value)
        # Entities all of whose records have the value.
        whole = np.bincount(lowest[lowest == highest], minlength=len(counts))
        facts = zip(counts.tolist(), whole.tolist(), strict=True)
        few = np.array([self.few(n - c, n_entities - w) for c, w in facts])
        if (few & (counts > 1)).any():
            return True
        return bool(few.any() and form.shared[chosen[few[value]]].any())

    def few_agree(self, x: FloatArray, columns: list[_Form]) -> bool:
        """Whether in three columns of two values few agree, or levels leave few over."""
        high, low = (
            np.abs(x - end) <= _ROUNDING * np.maximum(np.abs(x), np.abs(end))
            for end in (x.max(axis=0), x.min(axis=0))
        )
        high = high[:, (high | low).all(axis=0)]
        signs = np.where(high, 1.0, -1.0)
        products = np.rint(signs.T @ signs)
        for a, b, c in combinations(range(high.shape[1]), 3):
            ab, ac, bc = products[a, b], products[a, c], products[b, c]
            for s, t in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
                if (self.n + s * ab + t * ac + s * t * bc) / 4 <= self.most:
                    together = (signs[:, a] == s * signs[:, b]) & (signs[:, a] == t * signs[:, c])
                    if self.few_of(together):
                        return True
        return self._few_left(np.column_stack([high, ~high]), columns)

    def _few_left(self, marks: BoolArray, columns: list[_Form]) -> bool:
        """Whether marks, no two of which a record has, leave few over, by themselves or of these.

        One less such marks is a mark too: few of those that it leaves over are beside a usual value
        of a column, or are left over by other marks too.
        """
        ones = marks.astype(float)
        sets = list(islice(_maximal(ones.T @ ones == 0), _SETS + 1))
        if len(sets) > _SETS:
            return True
        rests = [np.asarray(~marks[:, some].any(axis=1)) for some in sets]
        left = [rest for rest in rests if rest.any()]
        for rest in left:
            if self.few_of(rest) or any(self._few_beside(rest, form) for form in columns):
                return True
        return any(self.few_of(one & other) for one, other in combinations(left, 2))


def _maximal(apart: BoolArray) -> Iterator[list[int]]:
    """Sets of marks any two of which are apart, and to which none can be added.

    By the algorithm of Bron and Kerbosch, with a pivot.
    """
    others = [set(np.flatnonzero(row).tolist()) for row in apart]

    def extend(some: list[int], left: set[int], done: set[int]) -> Iterator[list[int]]:
        if not left | done:
            yield some
            return
        pivot = max(left | done, key=lambda mark: len(left & others[mark]))
        for mark in sorted(left - others[pivot]):
            yield from extend([*some, mark], left & others[mark], done & others[mark])
            left, done = left - {mark}, done | {mark}

    if len(others):
        yield from extend([], set(range(len(others))), set())
