"""Textbook judgement of first and second moments: sets of records, counted one by one.

And what a reader of them can solve for: every 0/1-valued function of the columns that is a linear
combination of 1, columns and products that were told.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

Coded = tuple[tuple[int, ...], bool]


def usual_point(column: np.ndarray) -> float:
    """Median; halfway to the next value where one record alone has it."""
    middle = float(np.median(column))
    above = column[column > middle]
    if (column == middle).sum() == 1 and len(above):
        return middle / 2 + float(above.min()) / 2
    return middle


def alone(column: np.ndarray) -> tuple[int, float]:
    """Fewest records and largest share behind n, the sum and the sum of squares of a column."""
    share = 0.0
    for centre in (column.mean(), usual_point(column)):
        squares = (column - centre) ** 2
        if squares.sum() > 0:
            share = max(share, squares.max() / squares.sum())
    values = sorted(set(column.tolist()))
    counts = [int((column == v).sum()) for v in values]
    if len(values) == 1:
        return 0, share
    if len(values) in (2, 3):
        return min(counts), share
    fewest = min(int((column != usual_point(column)).sum()), elsewhere(column))
    for v in values:  # of four values and more
        if (column == v).sum() > 1:
            fewest = min(fewest, elsewhere(column[column != v]))
    if len(values) == 4:
        apart = abs(values[0] + values[3] - values[1] - values[2])
        pairs = counts[0] + counts[3], counts[1] + counts[2]
        fewest = min(fewest, *pairs) if apart <= 1e-9 * max(map(abs, values)) else fewest
    return fewest, share


def elsewhere(column: np.ndarray) -> int:
    """Fewest records that differ from a value that several have."""
    away = [int((column != v).sum()) for v in set(column.tolist()) if (column == v).sum() > 1]
    return min(away, default=len(column))


def withheld(x: np.ndarray, least: int, most: float, coded: Sequence[Coded]) -> list[bool]:
    """Columns that may not leave by themselves."""
    found = [alone(x[:, j]) for j in range(x.shape[1])]
    hidden = [records < least or share > most for records, share in found]
    for columns, whole in coded:
        told = [j for j in columns if not hidden[j]]
        while told:
            others = sum(1 for row in x if not any(row[j] == x[:, j].max() for j in told))
            if others >= least or (whole and len(told) == len(columns)):
                break
            hidden[told.pop(0)] = True
    return hidden


def variables(
    x: np.ndarray, hidden: list[bool], coded: Sequence[Coded]
) -> list[tuple[list[int], list[np.ndarray]]]:
    """Columns of each variable, and the records that have each of its levels."""
    found, used = [], set()
    for columns, whole in coded:
        used |= set(columns)
        told = [j for j in columns if not hidden[j]]
        levels = [x[:, j] == x[:, j].max() for j in told]
        if told and not (whole and len(told) == len(columns)):
            levels.append(~np.any(levels, axis=0))
        if told:
            found.append((told, levels))
    for j in range(x.shape[1]):
        values = sorted(set(x[:, j].tolist()))
        if j not in used and not hidden[j] and len(values) == 2:
            found.append(([j], [x[:, j] == v for v in values]))
    return found


def parts_in_two(levels: list[np.ndarray]) -> list[np.ndarray]:
    """Every way to part levels in two, as signs of the records."""
    first = range(len(levels) - 1)
    return [
        np.where(np.any([levels[i] for i in chosen], axis=0), 1, -1)
        for size in range(1, len(levels))
        for chosen in itertools.combinations(first, size)
    ]


def number_with_levels(column: np.ndarray, levels: list[np.ndarray], most: float) -> int:
    """Fewest records behind the sums of a column within levels; 0 where one has too much."""
    fewest = len(column)
    middle = usual_point(column)
    for level in levels:
        own = column[level]
        fewest = min(fewest, elsewhere(own), int((own != middle).sum()))
        sizes = np.abs(own - middle)
        if sizes.sum() > 0 and sizes.max() / sizes.sum() > most:
            return 0
    values = sorted(set(column.tolist()))
    if len(values) == 3 and abs(values[0] + values[2] - 2 * values[1]) <= 1e-9 * max(
        map(abs, values)
    ):
        for signs in parts_in_two(levels):
            for low, high in ((values[0], values[2]), (values[2], values[0])):
                both = ((column == low) & (signs > 0)) | ((column == high) & (signs < 0))
                fewest = min(fewest, int(both.sum()))
    return fewest


def off_both(first: np.ndarray, second: np.ndarray) -> int:
    """Fewest records that are at neither of two values that several have, of these and their sums.

    Also two values of the sum, or of the difference.
    """
    fewest = len(first)
    added = np.round(second - first, 9), np.round(second + first, 9)
    for one, form in enumerate((first, second, *added)):
        for b in set(form.tolist()):
            rest = form != b
            if (~rest).sum() > 1:
                for other, values in enumerate((first, second, *added)):
                    if one != other or one > 1:
                        fewest = min(fewest, elsewhere(values[rest]))
    return fewest


def unsafe_moments(
    x: np.ndarray, least: int, most: float, coded: Sequence[Coded] = (), widest: int = 5
) -> np.ndarray:
    """Products that may not leave, (p, p)."""
    p = x.shape[1]
    hidden = withheld(x, least, most, coded)
    found = np.array([[hidden[i] or hidden[j] for j in range(p)] for i in range(p)])
    few = variables(x, hidden, coded)
    in_few = {j for columns, _ in few for j in columns}
    numbers = [j for j in range(p) if not hidden[j] and j not in in_few]
    for i, j in itertools.combinations(numbers, 2):
        for centre in (np.mean, usual_point):
            product = (x[:, i] - centre(x[:, i])) * (x[:, j] - centre(x[:, j]))
            sizes = np.abs(product)
            ruled = sizes.sum() > 0 and sizes.max() / sizes.sum() > most
            small = centre is usual_point and (product != 0).sum() < least
            found[i, j] |= ruled or small
        found[i, j] |= off_both(x[:, i], x[:, j]) < least
        added = (np.round(x[:, j] + s * x[:, i], 9) for s in (-1, 1))
        found[i, j] |= min(map(elsewhere, added)) < least
        found[j, i] = found[i, j]
    for j in numbers:
        for columns, levels in few:
            bad = number_with_levels(x[:, j], levels, most) < least
            for k in columns:
                for centre in (np.mean, usual_point):
                    product = (x[:, j] - centre(x[:, j])) * (x[:, k] - centre(x[:, k]))
                    sizes = np.abs(product)
                    bad |= bool(sizes.sum() > 0 and sizes.max() / sizes.sum() > most)
                    bad |= centre is usual_point and int((product != 0).sum()) < least
            for k in columns:
                found[j, k] = found[k, j] = bad
    apart = np.eye(len(few), dtype=bool)
    for u, v in itertools.permutations(range(len(few)), 2):
        cells = [(a & b).sum() for a in few[u][1] for b in few[v][1]]
        wide = len(few) > 2 and max(len(few[u][1]), len(few[v][1])) > widest
        # The records of a cell add the same.
        apart[u, v] = min(cells) < least or 1 / max(min(cells), 1) > most or wide
    ways = [
        (v, signs)
        for v in range(len(few))
        if len(few[v][1]) <= widest
        for signs in parts_in_two(few[v][1])
    ]
    part_threes(ways, apart, least)
    while part_a_four(ways, apart, least):
        pass
    for u, v in itertools.permutations(range(len(few)), 2):
        if apart[u, v]:
            found[np.ix_(few[u][0], few[v][0])] = True
    return found


def part_threes(ways: list[tuple[int, np.ndarray]], apart: np.ndarray, least: int) -> None:
    """Part the last two of three variables of which too few records agree."""
    for u, s in ways:
        for v, t in ways:
            for w, r in ways:
                if not u < v < w or apart[u, v] or apart[u, w] or apart[v, w]:
                    continue
                for first, second in itertools.product((1, -1), repeat=2):
                    if ((s == first * t) & (s == second * r)).sum() < least:
                        apart[v, w] = apart[w, v] = True


def part_a_four(ways: list[tuple[int, np.ndarray]], apart: np.ndarray, least: int) -> bool:
    """Part two variables of the first ring of four that tells of too few records."""
    for i, j in itertools.combinations(range(len(ways)), 2):
        (u, s), (w, r) = ways[i], ways[j]
        if u == w or not apart[u, w]:
            continue
        both = [(v, t) for v, t in ways if not apart[u, v] and not apart[w, v]]
        bad = set()
        for v, t in both:
            for z, q in both:
                if v == z or not apart[v, z]:
                    continue
                for flips in itertools.product((1, -1), repeat=4):
                    a, b, c, d = (f * y for f, y in zip(flips, (s, t, r, q), strict=True))
                    counted = (a * b + b * c + c * d - d * a) == 2
                    if counted.sum() < least:
                        bad.add(v)
        for v in bad:
            apart[w, v] = apart[v, w] = True
        if bad:
            return True
    return False


def counts_that_follow(
    x: np.ndarray, told: list[np.ndarray], points: np.ndarray, of_row: np.ndarray
) -> dict[bytes, int]:
    """Number of records in each set that is a linear combination of what was told.

    Parameters
    ----------
    x : (n, p) array
        For its number of rows.
    told : list of (a,) arrays
        Value of each told sum's contribution at every point that a record can be at.
    points : (a, p) array
    of_row : (n,) int array
        Point of each record.

    Returns
    -------
    dict
        The set, as bits over the points, and its records.
    """
    basis = np.stack([np.ones(len(points)), *told], axis=1)
    chosen: list[int] = []
    for i in range(len(points)):
        if np.linalg.matrix_rank(basis[[*chosen, i]]) > len(chosen):
            chosen.append(i)
    to_all = basis @ np.linalg.pinv(basis[chosen])
    at = np.bincount(of_row, minlength=len(points))
    found = {}
    d = len(chosen)
    for block in np.array_split(np.arange(1 << d), max(1, (1 << d) >> 12)):
        bits = ((block[:, None] >> np.arange(d)) & 1).astype(float)
        values = bits @ to_all.T
        sets = np.rint(values[(np.abs(values * (values - 1)) < 1e-6).all(axis=1)]).astype(bool)
        found |= {s.tobytes(): int(at[s].sum()) for s in sets if s.any()}
    return found


def solved_counts(told: list[tuple[np.ndarray, float]]) -> dict[bytes, float]:
    """Number of records in each set that the told sums count, solved from the sums alone.

    Parameters
    ----------
    told : list of ((a,) array, float)
        What a record at each point adds to a sum, and the sum. The first one is n.
    """
    basis = np.stack([function for function, _ in told], axis=1)
    values = np.array([value for _, value in told])
    points = np.arange(len(basis))
    sets = counts_that_follow(basis, list(basis.T), basis, points[:0])
    inverse = np.linalg.pinv(basis)
    return {
        key: float(inverse @ np.frombuffer(key, dtype=bool).astype(float) @ values) for key in sets
    }
