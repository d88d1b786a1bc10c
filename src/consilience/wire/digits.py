"""Digits that few records of a column have: what a sum has beyond whole steps is of these alone.

Where all values but those of few records are a number plus whole multiples of a step, what a sum of
the column has beyond whole steps is these few records', and what a sum of products has beyond them
is times another column (`docs/proofs/told-moments.md`).

Rounding of means over records, to about what one record changes.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import AT_ONCE, BoolArray, FloatArray, ends_of


def coarse(
    mean: FloatArray,
    variance: FloatArray,
    effective: FloatArray,
    dominated: NDArray[np.bool_],
    largest: FloatArray | float = 0.0,
    chance: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Round D to the influence of one record or a fifth of its error, Q and the number coarsely.

    Parameters
    ----------
    mean, variance, effective : arrays of one shape
        Weighted means D, their squared standard errors Q, effective numbers of records.
    dominated : bool array
        Where one record makes most of Q.
    largest : array
        D is rounded to no less than this, and Q to its square.
    chance : (2, ...) array, optional
        Numbers in [0, 1), by which D and Q are rounded up or down: that what is told of two
        questions differs then does not say that they differ at any row.

    Returns
    -------
    mean, variance, effective : arrays
    """
    if chance is not None:
        variance = variance * 1.1 ** (chance[1] - 0.5)
    error = np.sqrt(np.nan_to_num(variance))
    influence = error / np.sqrt(np.maximum(np.nan_to_num(effective), 1.0))
    steps = step_above(np.maximum(np.maximum(influence, error / 5), np.nan_to_num(largest)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps_of = mean / steps
        whole = np.round(steps_of) if chance is None else np.floor(steps_of + chance[0])
        rounded_mean = np.where(steps > 0, whole * steps, mean)
        square = step_above(np.nan_to_num(largest) ** 2)
        fine = np.where(square > 0, np.ceil(variance / square) * square, _digits(variance, 2))
    # Where one record makes most of Q, only its order of magnitude is told.
    blunt = np.where(dominated, step_above(np.nan_to_num(variance)), fine)
    # A count of the rows on one side of a line would tell where a row lies.
    return rounded_mean, blunt, _on_grid(effective)


def by_entity(parts: FloatArray, entities: NDArray[np.int64]) -> FloatArray:
    """Sums over the records of each entity, (entities, ...) of (n, ...)."""
    of = np.unique(entities, return_inverse=True)[1].ravel()
    sums = np.zeros((int(of.max(initial=-1)) + 1, *parts.shape[1:]))
    np.add.at(sums, of, parts)
    return sums


def largest_move(parts: FloatArray, total: FloatArray, least: FloatArray | None) -> FloatArray:
    """Most that any entity moves each mean, or `least` where that is more.

    Parameters
    ----------
    parts : (entities, ...) array
        Squares of the entities' sums of weighted deviations.
    total : array
        Sums of weights.
    least : array, optional
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.nan_to_num(np.sqrt(parts.max(axis=0, initial=0.0)) / total)
    return np.asarray(moved if least is None else np.maximum(moved, least))


def step_above(x: FloatArray) -> FloatArray:
    """Smallest of 1, 2, 5 times a power of ten that is at least x; 0 for 0, 1 for infinity."""
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    power = 10.0 ** np.floor(np.log10(safe))
    lead = safe / power
    step = np.where(lead <= 1, 1.0, np.where(lead <= 2, 2.0, np.where(lead <= 5, 5.0, 10.0)))
    with np.errstate(over="ignore"):
        return np.asarray(np.where(x > 0, step * power, 0.0))


_GRID = np.array([1.0, 1.5, 2.0, 3.0, 5.0, 7.0])


def _on_grid(x: FloatArray) -> FloatArray:
    """Largest of 1, 1.5, 2, 3, 5, 7 times a power of ten that is not above x."""
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    power = 10.0 ** np.floor(np.log10(safe) + 1e-12)
    lead = safe / power * (1 + 1e-12)
    place = np.searchsorted(_GRID, lead, side="right") - 1
    return np.asarray(np.where(np.isfinite(x) & (x > 0), _GRID[np.maximum(place, 0)] * power, x))


def _digits(x: FloatArray, digits: int) -> FloatArray:
    safe = np.where(np.isfinite(x) & (x > 0), x, 1.0)
    unit = 10.0 ** (np.floor(np.log10(safe)) - (digits - 1))
    return np.asarray(np.where(np.isfinite(x) & (x > 0), np.round(safe / unit) * unit, x))


_LEADS = (10.0, 9.0, 7.5, 7.0, 6.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.2, 1.0)
_PARTS = (1 / 3, 1 / 6, 1 / 7, 1 / 12, 1 / 24, 1 / 60, 0.45359237, 2.54)
"""Thirds, days in weeks, months in years, hours, minutes, pounds and inches."""
_HANDFUL, _FEW_ROWS = 64, 512
"""Records that are looked at first, and next."""


class Finer(NamedTuple):
    """A step that all records keep to but few.

    Attributes
    ----------
    step, origin : float
        The others are the origin plus whole multiples of the step.
    off : (n,) bool array
        The few.
    """

    step: float
    origin: float
    off: BoolArray

    def rounded(self, column: FloatArray) -> FloatArray:
        """The column with these few at the nearest place where others could be."""
        whole = np.rint((column - self.origin) / self.step) * self.step + self.origin
        return np.where(self.off, whole, column)


def whole_steps(
    column: FloatArray, least: int, *, above: float = -np.inf
) -> tuple[FloatArray, float]:
    """Round digits away that fewer than `least` records have, and say to which step (0: to none).

    What is rounded may be few beside a coarser step, so it is done until none is left.

    Parameters
    ----------
    column : (n,) array
        NaN where a value is missing.
    least : int
        At 1 nothing is rounded.
    above : float
        Values above it stay above it: what would fall there goes one step up.
    """
    step = 0.0
    while least > 1 and (finer := off_grid(column, least)) is not None:
        step, whole = finer.step, finer.rounded(column)
        column = np.where((whole <= above) & (column > above), whole + step, whole)
    return column, step


def off_grid(column: FloatArray, least: int) -> Finer | None:
    """Records that do not keep to a step that all others keep to, if they are fewer than `least`.

    Steps are those that samples of the values have in common, whatever they are, from any origin
    and down to a hundred-thousandth of their range; and from 0 `_LEADS` times powers of ten, from
    the size of the largest value down to what a sum of doubles holds, and `_PARTS`.

    Whoever prepares a column asks this, and whoever tells of it: of short columns without such
    records it is remembered for a while.
    """
    if len(column) > SHORT:
        return _off_grid(column, least)
    if (least, _content(column)) in _none_off:
        return None
    found = _off_grid(column, least)
    if found is None:
        _remember(column, least)
    return found


SHORT, _REMEMBERED, _TOGETHER = 1 << 12, 1 << 16, 128
"""Records of columns of which answers are remembered; how many answers; columns asked together."""
_none_off: set[tuple[int, bytes]] = set()


def _content(column: FloatArray) -> bytes:
    return hashlib.sha256(np.asarray(column, float).tobytes()).digest()


def _remember(column: FloatArray, least: int) -> None:
    """Note a column without such records."""
    if len(_none_off) >= _REMEMBERED:
        _none_off.clear()
    _none_off.add((least, _content(column)))


@lru_cache(maxsize=64)
def _usual(top: int) -> FloatArray:
    """Steps that people use from 10^(top + 1) down, their origin, and what is near: (k, 3)."""
    decimal = (lead * 10.0**k for k in range(top, top - 14, -1) for lead in _LEADS)
    return np.array(sorted(((step, 0.0, 1e-6) for step in {*decimal, *_PARTS}), reverse=True))


def settle(columns: FloatArray, least: int) -> None:
    """Ask `off_grid` of short columns, (p, n), and remember the answers.

    What takes longest is asked of many columns together: whether samples have a step in common.
    """
    p, n = columns.shape
    if not _OF <= n <= SHORT:
        return
    rng = np.random.default_rng(n)
    picks = [rng.integers(n, size=(_SAMPLES, _OF)) for _ in range(2)]  # as `_common_steps` does
    for start in range(0, p, _TOGETHER):
        turned = columns[start : start + _TOGETHER]
        order = np.sort(turned, axis=1)
        distinct = np.isfinite(order[:, [0, -1]]).all(axis=1) & (order[:, 1:] > order[:, :-1]).all(
            1
        )
        turned, order = turned[distinct], order[distinct]
        samples = np.concatenate([turned[:, picks[0]], order[:, picks[1]]], axis=1)
        size = np.abs(order[:, [0, -1]]).max(axis=1)
        fine = _resolution(order[:, -1] - order[:, 0], size)
        step = _steps(samples.reshape(-1, _OF), np.repeat(fine, 2 * _SAMPLES))
        none = (step <= 0).reshape(-1, 2 * _SAMPLES).all(axis=1)
        clear = _beyond_usual(turned[none], size[none], least)
        for column, settled in zip(turned[none], clear, strict=True):
            if settled or _off_grid(column, least, common=False) is None:
                _remember(column, least)


def _beyond_usual(columns: FloatArray, largest: FloatArray, least: int) -> BoolArray:
    """Finite columns, (p, n), of which none of the first few records keeps to a usual step."""
    p, n = columns.shape
    least = min(least, n // 5 + 1)
    found = largest > 0
    tops = np.zeros(p, dtype=np.int64)
    tops[found] = np.floor(np.log10(largest[found]))
    for top in np.unique(tops[found]).tolist():
        some = np.flatnonzero(found & (tops == top))
        step, size = _usual(top), largest[some, None]
        fits = (size * max(n * 1e-15, 1e-12) <= step[:, 0]) & (step[:, 0] <= size)
        multiples = (columns[some, None, :least] - step[:, 1:2]) / step[:, :1]
        multiples -= np.rint(multiples)
        nearest = np.abs(multiples, out=multiples).min(axis=2)
        off = nearest > step[:, 2] + 1e-15 * (size / step[:, 0])
        found[some] = (off | ~fits).all(axis=1)
    return found


def _off_grid(column: FloatArray, least: int, *, common: bool = True) -> Finer | None:
    known = column[np.isfinite(column)]
    # Of a small table few are at most a fifth: by chance, nine of twenty ages are odd.
    least = min(least, len(known) // 5 + 1)
    if not len(known):
        return None
    largest = float(np.abs(known).max())
    if largest == 0:
        return None
    least_step = largest * max(len(known) * 1e-15, 1e-12)  # a sum does not hold further digits
    # By chance a step found from the values would soon fit one that has nothing to do with it.
    steps = _usual(int(np.floor(np.log10(largest))))
    if common and (found := _common_steps(known)):
        more = ((*one, 1e-9) for one in found)
        steps = np.array(sorted([*map(tuple, steps.tolist()), *more], reverse=True))
    steps = steps[(least_step <= steps[:, 0]) & (steps[:, 0] <= largest)]
    # Most are ruled out by a few records, the rest by a handful, all at once.
    for some in (known[: 2 * least], known[:_HANDFUL]):
        multiples = (some - steps[:, 1:2]) / steps[:, :1]
        away = np.abs(multiples - np.rint(multiples))
        away = away > steps[:, 2:] + 1e-15 * (largest / steps[:, :1])
        steps = steps[away.sum(axis=1) < least]
    for step, origin, near in steps.tolist():
        for part in (known[:_FEW_ROWS], known):
            multiple = (part - origin) / step
            off = np.abs(multiple - np.rint(multiple)) > near + 1e-15 * (largest / step)
            if off.sum() >= least:
                break
        else:
            if not off.any():
                return None
            on = np.rint(multiple[~off])
            others = on[on != on[:1]]
            if len(on) >= least and (others != others[:1]).any():  # three values at least
                place = np.zeros(len(column), dtype=bool)
                place[np.flatnonzero(np.isfinite(column))[off]] = True
                return Finer(step, origin, place)
    return None


_SAMPLES, _OF = 48, 12
"""Samples, and values in each: of 50 records of which 9 are off one sample in eleven has none."""


def _common_steps(known: FloatArray) -> set[tuple[float, float]]:
    """Largest steps that the values of some samples have in common, with an origin each."""
    rng = np.random.default_rng(len(known))
    some = known if len(known) <= 1 << 14 else known[rng.integers(len(known), size=1 << 14)]
    values = np.unique(some)
    if len(values) < 3:
        return set()
    # Of a column that is mostly one value hardly another one is among few records.
    picks = np.concatenate(
        [part[rng.integers(len(part), size=(_SAMPLES, _OF))] for part in (some, values)]
    )
    least = np.full(len(picks), _resolution(float(np.ptp(values)), float(np.abs(values).max())))
    step = _steps(picks, least)
    picks, step = picks[step > 0], step[step > 0]
    farthest = np.abs(picks - picks[:, :1]).max(axis=1)
    origin, step = picks[:, 0], farthest / np.rint(farthest / step)  # to all digits
    origin = origin - np.rint(origin / step) * step
    origin = np.where(np.abs(origin) < 1e-7 * step, 0.0, origin)
    # One of those that differ by rounding only.
    same = {
        (float(f"{s:.9g}"), round(o / s % 1.0, 5) % 1.0): (s, o)
        for s, o in zip(step.tolist(), origin.tolist(), strict=True)
    }
    return set(same.values())


def _resolution(span: Any, largest: Any) -> Any:
    return 1e-7 * np.maximum(span, 1e-6 * largest)


_FINE = 100


def _steps(picks: FloatArray, least: FloatArray) -> FloatArray:
    """Largest step of each sample, (m,); 0 where it is below `_FINE` times `least`, or none."""
    first, left = picks[:, 0], np.arange(len(picks))
    step = np.abs(picks[:, 1] - first)
    for i in range(2, picks.shape[1]):
        near = least.take(left)
        found = _greatest_common(step.take(left), np.abs(picks[left, i] - first[left]), near)
        fine = (found > 0) & (found <= _FINE * near)
        step[left] = np.where(fine, 0.0, found)
        left = left[~fine]
    return step


_PAIRS = 512
"""Pairs of columns that are looked at together: samples of more would leave the cache."""


def finer_between(x: FloatArray, least: int) -> BoolArray:
    """Pairs of columns whose sum or difference keeps to a step in all records but few, (p, p).

    A step that is no larger than those of both columns is theirs.
    """
    p = x.shape[1]
    found = np.zeros((p, p), dtype=bool)
    # A million rows are not copied.
    starts = range(0, len(x), AT_ONCE)
    fine = [np.isfinite(x[start : start + AT_ONCE]).all(axis=1) for start in starts]
    rows = np.flatnonzero(np.concatenate([*fine, np.zeros(0, dtype=bool)]))
    if p < 2 or len(rows) < _OF:
        return found
    rng = np.random.default_rng(len(rows))
    picks = x[rows[rng.integers(len(rows), size=(_SAMPLES // 3, _OF))]].transpose(2, 0, 1)
    first, second = np.triu_indices(p, 1)
    low, high = ends_of(x if len(rows) == len(x) else x[rows])
    span, size = high - low, np.maximum(np.abs(low), np.abs(high))
    own = _largest_steps(picks, _resolution(span, size))
    for start in range(0, len(first), _PAIRS):
        one, other = first[start : start + _PAIRS], second[start : start + _PAIRS]
        fine = _resolution(span[one] + span[other], size[one] + size[other])
        theirs = np.maximum(own[one], own[other])
        for sign in (-1.0, 1.0):
            between = _largest_steps(picks[one] + sign * picks[other], fine)
            for j, k in zip(
                one[between > 1.2 * theirs], other[between > 1.2 * theirs], strict=True
            ):
                if off_grid(x[:, j] + sign * x[:, k], least) is not None:
                    found[j, k] = found[k, j] = True
    return found


def _largest_steps(picks: FloatArray, least: FloatArray) -> FloatArray:
    """Largest step that some sample of each (m, samples, values) has in common."""
    many = picks.shape[1]
    steps = _steps(picks.reshape(-1, picks.shape[2]), np.repeat(least, many))
    return np.asarray(steps.reshape(-1, many).max(axis=1))


def _greatest_common(first: FloatArray, second: FloatArray, least: FloatArray) -> FloatArray:
    """Greatest common divisors, by Euclid's rule; remainders up to `least` are rounding.

    Of one that is below `_FINE` times that nobody asks how small it is.
    """
    large, small = np.maximum(first, second), np.minimum(first, second)
    at = np.flatnonzero((small > least) & (large > _FINE * least))
    a, b, near = large.take(at), small.take(at), least.take(at)
    while len(at):
        rest = a / b
        np.rint(rest, out=rest)
        rest *= b
        np.subtract(a, rest, out=rest)
        a, b = b, np.abs(rest, out=rest)
        large[at] = a
        more = np.flatnonzero((b > near) & (a > _FINE * near))
        at, a, b, near = at.take(more), a.take(more), b.take(more), near.take(more)
    return large
