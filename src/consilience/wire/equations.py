"""Columns that are tied by an equation which holds for all records but few.

The sum of what an equation leaves over is then of these few records, and with products of columns
so is its product with another column. `moment_facts` looks at columns of two values and at pairs;
here are linear equations of any columns, products of two of them, equations of second degree of a
few columns, and combinations that are mostly one record's (`docs/proofs/told-moments.md`).

Equations are found in samples of the records: whatever holds for all but few holds in a sample that
has none of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from consilience.arrays import AT_ONCE, BoolArray, FloatArray, IntArray
from consilience.wire.moment_facts import Coded
from consilience.wire.support import Limits

_MOST = 100
"""Columns that are looked at."""
_SAMPLES = 16
_EXACT = 1e-9
_HOLDS = 1e-7
"""What an equation may leave over by rounding, in units of the columns' spread."""


def equations(
    x: FloatArray,
    joint: BoolArray,
    limits: Limits,
    coded: Sequence[Coded] = (),
    some: bool = False,
) -> list[list[int]]:
    """Sets of columns of which a combination rests on few records, or mostly on one.

    Parameters
    ----------
    x : (n, p) array
        Records with a gap are left out.
    joint : (p,) bool array
        Columns of which products are told.
    limits : Limits
    coded : sequence of Coded
        Of a whole category one level is left out: everybody knows that they add up to 1.
    some : bool
        Whether these are some of many records: then others may break what all of these keep to.
    """
    spare = {group.columns[-1] for group in coded if group.whole}
    z, columns = _in_units(x, [j for j in range(x.shape[1]) if j not in spare][:_MOST])
    if limits.min_records <= 1 or len(columns) < 2 or len(z) <= len(columns) + 1:
        return []
    rng = np.random.default_rng(len(z))
    found = _relation(z, limits.min_records, rng)
    if found is not None:
        return [_named(columns, found)]
    together = np.flatnonzero(joint[columns])
    if len(together) < 2:
        return []
    weights = outweighed(z, limits.max_share, together)
    if weights is not None:
        return [_named(columns[together], weights, 0.1)]
    kin = {j: set(group.columns) for group in coded for j in group.columns}
    given = z[:, together], columns[together], kin, limits.min_records, rng
    return _products(*given) or _second_degree(*given, some)


def _in_units(x: FloatArray, places: Sequence[int]) -> tuple[FloatArray, IntArray]:
    """Columns that vary about a value of their own, in units of their spread, and their places."""
    part = x[:, list(places)]
    part = part[np.isfinite(part).all(axis=1)]
    if not len(part):
        return part, np.zeros(0, dtype=np.int64)
    part = part - part[0]
    size = np.abs(part).max(axis=0)
    varies = size > 0
    return part[:, varies] / size[varies], np.asarray(places, dtype=np.int64)[varies]


def _named(columns: IntArray, weights: FloatArray, least: float = 1e-5) -> list[int]:
    """Columns with some weight; two at least, for one by itself is judged elsewhere."""
    size = np.abs(weights)
    used = size > least * size.max()
    used[np.argsort(size)[-2:]] = True
    return sorted(columns[used].tolist())


def _relation(z: FloatArray, least: int, rng: np.random.Generator) -> FloatArray | None:
    """Weights of the columns in a linear equation that fewer than `least` records do not keep to.

    Samples grow, since few records of columns of few values agree in further equations by chance.
    """
    n, p = z.shape
    for size in sorted({min(k, n - 1) for k in (p + 2, 2 * p + 4, 4 * p + 8)}):
        picks = (
            np.argsort(rng.random((_SAMPLES, n)), axis=1)[:, :size]
            if n < 4 * size
            else (rng.integers(n, size=(_SAMPLES, size)))
        )
        parts = _with_ones(z[picks.ravel()]).reshape(_SAMPLES, size, p + 1)
        _, values, vectors = np.linalg.svd(parts, full_matrices=True)
        null = np.zeros((_SAMPLES, p + 1), dtype=bool)
        null[:, values.shape[1] :] = True
        null[:, : values.shape[1]] = values < _EXACT * values[:, :1]
        if not null.any():
            return None  # what holds for all but few holds in some sample
        for sample in np.flatnonzero(null.any(axis=1)):
            basis = vectors[sample][null[sample]]
            if len(_off(z, basis, least, lambda z: z)) < least:
                return np.asarray(np.abs(basis[:, 1:]).max(axis=0))
    return None


def _off(
    z: FloatArray, basis: FloatArray, least: int, terms: Callable[[FloatArray], FloatArray]
) -> IntArray:
    """Records that do not keep to equations of their terms; of more than `least` some."""
    found, blocks = np.zeros(0, dtype=np.int64), iter(range(0, len(z), _BLOCK))
    while len(found) < least and (start := next(blocks, None)) is not None:
        part = _with_ones(terms(z[start : start + _BLOCK]))
        apart = np.flatnonzero((np.abs(part @ basis.T) > _HOLDS).any(axis=1))
        found = np.append(found, start + apart)
    return found


def _broken(
    z: FloatArray,
    least: int,
    rng: np.random.Generator,
    terms: Callable[[FloatArray], FloatArray],
    some: bool,
) -> FloatArray | None:
    """Weights of terms in an equation that some records do not keep to, but fewer than `least`.

    Of some of many records, also in one that all of these keep to.
    """
    n, q = len(z), terms(z[:1]).shape[1]
    for size in (q + 2, 2 * q + 4):
        held = False
        for _ in range(_SAMPLES):
            rows = rng.choice(n, min(size, n - 1), replace=False)
            for _ in range(_PASSES):
                left, values, vectors = np.linalg.svd(_with_ones(terms(z[rows])))
                null = np.append(values < _EXACT * values[0], np.ones(q + 1 - len(values), bool))
                if not null.any():
                    break
                held, basis = True, vectors[null]
                off = _off(z, basis, least, terms)
                # Rows that alone stand against an equation: it was made to hold for them.
                kept = left[:, : len(values)][:, ~null[: len(values)]]
                alone = int(((kept**2).sum(axis=1) > 1 - _HOLDS).sum()) if len(off) else 0
                if (len(off) or some) and len(off) + alone < least:
                    return np.asarray(np.abs(basis[:, 1:]).max(axis=0))
                if len(off) < least:
                    break
                # Columns that few of the sample have seem to be tied: more rows say whether.
                rows = np.append(rows, rng.choice(off, min(len(basis), len(off)), replace=False))
        if not held:
            return None  # what holds for all but few holds in some sample
    return None


def _with_ones(z: FloatArray) -> FloatArray:
    return np.column_stack([np.ones(len(z)), z])


def outweighed(
    x: FloatArray, max_share: float, columns: IntArray | slice = slice(None)
) -> FloatArray | None:
    """Weights of some columns in a combination whose squares are mostly one record's, if there is.

    The largest share of a record in the squares of any combination about its mean is its leverage.
    A record may have as much of a combination as halfway from `max_share` to all: with as many
    columns as few records allow some record often has half by chance.
    """

    def known() -> Iterator[FloatArray]:
        for start in range(0, len(x), AT_ONCE):  # so that of a long table no copy is made
            part = x[start : start + AT_ONCE][:, columns]
            yield part[np.isfinite(part).all(axis=1)]

    n = sum(map(len, known()))
    if not n or max_share >= 1:
        return None
    mean = np.asarray(sum(part.sum(axis=0) for part in known())) / n
    peak = np.max([np.abs(part - mean).max(axis=0, initial=0.0) for part in known()], axis=0)
    peak = np.maximum(peak, 1e-300)
    gram = np.asarray(sum(away.T @ away for away in ((part - mean) / peak for part in known())))
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-12 * max(float(values[-1]), 1e-300)
    turn, most, worst = vectors[:, kept] / np.sqrt(values[kept]), 0.0, np.zeros(int(kept.sum()))
    for part in known():
        scores = ((part - mean) / peak) @ turn
        leverage = (scores**2).sum(axis=1)
        if leverage.max(initial=0.0) > most:
            most, worst = float(leverage.max()), scores[int(np.argmax(leverage))]
    if most <= (1 + max_share) / 2:
        return None
    return np.asarray((turn @ worst) * np.sqrt(np.diag(gram) / n))


# ------------------------------------------------------------------------ products of two equations


def _products(
    z: FloatArray, columns: IntArray, kin: dict[int, set[int]], least: int, rng: np.random.Generator
) -> list[list[int]]:
    """Sets of columns of two equations, one of which holds for all records but few.

    One of the two holds for nearly half of the records or more: it is one of one or two columns.
    """
    two = _of_two(z)
    for form, rest in _halves(z, ~two, least, rng):
        # Within a column of two values, or a category, one value follows from the others.
        ours = {int(columns[j]) for j in form}
        bound = [
            (two[k] and k in form) or bool(kin.get(int(columns[k]), set()) & ours)
            for k in range(len(columns))
        ]
        others = np.flatnonzero(~np.array(bound))
        part = z[rest][:, others]
        if len(part) <= len(others) + 1 or not len(others):
            continue
        constant = [k for k, column in zip(others, part.T, strict=True) if _but_few(column, least)]
        if constant:
            found: IntArray | None = np.asarray(constant[:1])
        else:
            weights = _relation(part, least, rng)
            found = None if weights is None else others[weights > 1e-5 * weights.max()]
        if found is not None and len(names := sorted({*form, *found.tolist()})) > 1:
            return [columns[names].tolist()]
    return []


def _second_degree(
    z: FloatArray,
    columns: IntArray,
    kin: dict[int, set[int]],
    least: int,
    rng: np.random.Generator,
    some: bool,
) -> list[list[int]]:
    """Columns of an equation of second degree that some rows do not keep to, but few.

    Not those that all keep to: squares and products of columns are columns of honest studies.
    """
    p = z.shape[1]
    if p > _MOST_CURVED:
        return []
    two = _of_two(z)
    found = [
        (j, k)
        for j, k in itertools.combinations_with_replacement(range(p), 2)
        if not (two[j] if j == k else int(columns[k]) in kin.get(int(columns[j]), ()))
    ]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    if not found or len(z) <= 2 * (p + len(pairs)) + least:
        return []

    def terms(z: FloatArray) -> FloatArray:
        return np.column_stack([z, z[:, pairs[:, 0]] * z[:, pairs[:, 1]]])

    weights = _broken(z, least, rng, terms, some)
    if weights is None:
        return []
    used = weights > 1e-5 * weights.max()
    names = {*np.flatnonzero(used[:p]).tolist(), *pairs[used[p:]].ravel().tolist()}
    return [columns[sorted(names)].tolist()] if len(names) > 1 else []


def _of_two(z: FloatArray) -> BoolArray:
    """Columns of at most two values."""
    two = np.array([len(np.unique(column[:64])) <= 2 for column in z.T])
    two[two] = [len(np.unique(column)) <= 2 for column in z.T[two]]
    return two


def _but_few(column: FloatArray, least: int) -> bool:
    values, times = np.unique(column, return_counts=True)
    return bool(len(values) < 2 * least and len(column) - times.max() < least)


def _halves(
    z: FloatArray, numbers: BoolArray, least: int, rng: np.random.Generator
) -> Iterator[tuple[list[int], BoolArray]]:
    """Columns of an equation that holds for nearly half of the records, and those of the others."""
    n, p = z.shape
    enough = (n - least) / 2
    for j in range(p):
        values, times = np.unique(z[:, j], return_counts=True)
        for value in values[(times > 1) & (times >= enough)]:
            yield [j], z[:, j] != value
    first, second = rng.integers(n, size=(2, _LINES))
    look = rng.integers(n, size=min(n, 400))
    for j, k in itertools.combinations(np.flatnonzero(numbers).tolist(), 2):
        # A line through two records.
        a, b = z[second, k] - z[first, k], z[first, j] - z[second, j]
        lines = np.flatnonzero((np.abs(a) > _HOLDS) & (np.abs(b) > _HOLDS))
        if not len(lines):
            continue
        length = np.hypot(a, b)[lines]
        a, b = a[lines] / length, b[lines] / length
        c = a * z[first[lines], j] + b * z[first[lines], k]
        near = np.abs(np.outer(z[look, j], a) + np.outer(z[look, k], b) - c) <= _HOLDS
        counts = near.mean(axis=0)
        done: set[tuple[float, ...]] = set()
        for line in np.flatnonzero(counts >= 0.8 * enough / n - 0.02):
            name = tuple(np.round(np.array([a[line], b[line], c[line]]) * np.sign(a[line]), 5))
            if name in done:
                continue
            done.add(name)
            rest = np.abs(a[line] * z[:, j] + b[line] * z[:, k] - c[line]) > _HOLDS
            if n - rest.sum() >= enough:
                yield [j, k], rest


_LINES = 40
_BLOCK, _PASSES = 4096, 8
_MOST_CURVED = 15
"""Columns of which squares and products are looked at: they are 135 terms."""
