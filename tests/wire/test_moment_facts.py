"""One rule for moments of columns, against a textbook version and whoever solves for more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from consilience.wire import digits
from consilience.wire import moment_facts as module
from consilience.wire.digits import off_grid
from consilience.wire.disclosure import Limits
from consilience.wire.moment_facts import (
    Coded,
    coded_within,
    column_facts,
    hanging_together,
    left_over,
    moment_facts,
    unsafe_columns,
)
from consilience.wire.usual_values import at_most
from tests.reference.told_moments import counts_that_follow, unsafe_moments, withheld

LIMITS = Limits()
Codes = list[Coded]


def table(seed: int, kind: str) -> tuple[np.ndarray, Codes]:
    """A table of its kind, small enough for some of its cells to be."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(60, 160))
    base = rng.random((n, 6)) < rng.uniform(0.25, 0.6, size=6)
    twin = np.where(rng.random(n) < 0.6, base[:, 0], ~base[:, 1])
    binary = np.c_[base, twin].astype(float)
    level = rng.integers(4, size=n)
    level = np.where(rng.random(n) < 0.3, np.minimum(level, 1), level)
    onehot = (level[:, None] == np.arange(4)).astype(float)
    if kind == "binary":
        return binary * rng.choice([1.0, -3.0, 0.1], size=7) + rng.normal(size=7), []
    if kind == "category":
        return np.c_[binary[:, :3], onehot], [Coded((3, 4, 5, 6), True)]
    if kind == "two categories":
        other = (rng.integers(3, size=n)[:, None] == np.arange(2)).astype(float)
        return np.c_[onehot[:, 1:], other, binary[:, :2]], [
            Coded((0, 1, 2), False),
            Coded((3, 4), False),
        ]
    if kind == "spikes":  # of fewer rows too, and values that nearly half of them have
        n = int(rng.integers(10, 60))
        first = rng.random(n) < 0.5
        some = rng.permutation(n) < rng.integers(3, 13)
        age = rng.integers(50, 60, size=n).astype(float)
        return np.c_[
            np.where(first & ~some, 0.0, rng.normal(5, 1, n)),
            np.where(first | some, rng.normal(5, 1, n), 0.0),
            np.where(rng.random(n) < 0.75, 1.0, rng.choice([2.5, 3.0, 7.0], size=n)),
            age,
            rng.normal(size=n),
            rng.random(n) < 0.5,
        ], []
    if kind == "tied":  # but for some, of each row one of two equations holds
        n, x = int(rng.integers(40, 200)), rng.uniform(20, 80, 200).round(1)
        ways = np.array([np.zeros(200), x, x + 5.1, 120.3 - x, -x, np.full(200, 7.0)])
        first, second = rng.choice(6, size=2, replace=False)
        y = np.where(rng.random(200) < rng.uniform(0.2, 0.8), ways[first], ways[second])
        some = rng.permutation(n)[: rng.choice([0, 1, 9, 12])]
        y[some] = rng.normal(50, 9, size=len(some))
        return np.c_[x, y, rng.normal(size=200)][:n], []
    three, four = rng.integers(3, size=n) * 2.0 - 1, rng.integers(4, size=n) * 0.5
    often = np.where(rng.random(n) < 0.8, 0.0, rng.normal(size=n))
    heavy = rng.standard_t(1.5, size=n)
    numbers = np.c_[rng.normal(size=n), three, four, often, heavy]
    if kind == "numbers":
        return numbers, []
    return np.c_[binary[:, :2], numbers, onehot], [Coded((7, 8, 9, 10), True)]


KINDS = ("binary", "category", "two categories", "numbers", "spikes", "tied", "mixed")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_textbook_judgement(kind: str) -> None:
    told = hidden = 0
    for seed in range(40 if kind == "tied" else 6):
        x, coded = table(seed, kind)
        for least in (3, 10):
            limits = Limits(least, 0.3)
            found = moment_facts(x, limits=limits, coded=coded).unsafe
            np.testing.assert_array_equal(found, unsafe_moments(x, least, 0.3, coded))
            alone = unsafe_columns(x, limits=limits, coded=coded)
            np.testing.assert_array_equal(alone, withheld(x, least, 0.3, coded))
            told, hidden = told + int((~found).sum()), hidden + int(found.sum())
    assert told and hidden


def long_table(seed: int) -> np.ndarray:
    """More rows than are looked at together; what speaks against a column comes late."""
    rng = np.random.default_rng(seed)
    n = 1400 + int(rng.integers(100))
    far = rng.normal(size=n)
    far[rng.integers(1200, n)] = rng.choice([8.0, 24.0, 500.0])
    off = int(rng.integers(8, 13))
    spike = np.where(np.arange(n) % 2 < 1, 0.0, rng.normal(5, 1, n))
    other = np.where(np.arange(n) % 2 < 1, rng.normal(5, 1, n), 0.0)
    other[1 : 2 * off : 2] = rng.normal(5, 1, off)
    plain = rng.normal(size=n)
    near = 3.0 - plain
    near[-off:] += 1.0
    level = (np.arange(n) >= n - 2 * off).astype(float)
    late = rng.normal(size=n)
    late[n - off - 1 :] = 1.0
    # Alone neither of the two is ruled by a row, their product is.
    one, two = (np.where(np.arange(n) % 2 == k, rng.normal(size=n), 1e-9) for k in (0, 1))
    one[-1], two[-1] = rng.choice([1.0, 3.0]), 3.0
    tail = np.where(np.arange(n) < n - off, rng.normal(size=n), 3.0 * rng.normal(size=n))
    return np.c_[plain, near, far, spike, other, level, late, one, two, tail]


@pytest.mark.parametrize("most", [0.3, 0.004])
def test_bounds_judge_long_tables_as_the_textbook_does(most: float) -> None:
    told = hidden = 0
    for seed in range(3):
        x = long_table(seed)
        for columns in ([0, 1, 2, 3, 4], [2, 5, 6, 0], [7, 8, 9, 3]):
            found = moment_facts(x[:, columns], limits=Limits(10, most)).unsafe
            np.testing.assert_array_equal(found, unsafe_moments(x[:, columns], 10, most))
            told, hidden = told + int((~found).sum()), hidden + int(found.sum())
    assert told and hidden


@pytest.mark.parametrize("few", [0, 9, 10])
def test_of_many_rows_some_show_which_sums_are_one_value_in_half(few: int) -> None:
    rng = np.random.default_rng(few)
    x = rng.normal(size=(6000, 4))
    x[:, 2] = np.where(rng.random(6000) < 0.49, 0.0, x[:, 1])
    some = rng.permutation(6000)[:few]
    x[some, 2] = rng.normal(size=few)
    found = moment_facts(x, limits=LIMITS).unsafe
    assert np.argwhere(found).tolist() == ([] if few == 10 else [[1, 2], [2, 1]])


def test_a_row_that_comes_late_rules_as_one_that_comes_early() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9000, 3))
    x[:, 1] = np.sign(x[:, 1])
    x[-1, 0] = 500.0
    late, early = (moment_facts(one, limits=Limits(10, 0.5)).unsafe for one in (x, x[::-1]))
    np.testing.assert_array_equal(late, early)
    np.testing.assert_array_equal(late, np.add.outer(*(np.arange(3) == 0,) * 2))


def test_a_product_that_one_row_rules_of_columns_far_to_one_side() -> None:
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(9000, 2)))
    x[::2, 0] *= 1e-9
    x[1::2, 1] *= 1e-9
    x[-1] = 3.0
    found = moment_facts(x, limits=Limits(10, 0.5)).unsafe
    np.testing.assert_array_equal(found, ~np.eye(2, dtype=bool))


def test_of_no_columns_nothing_is_judged() -> None:
    assert moment_facts(np.zeros((50, 0)), limits=LIMITS).unsafe.shape == (0, 0)


@pytest.mark.parametrize("parts", [2, 3, 5, 8])
def test_no_value_has_more_records_than_the_bound(parts: int) -> None:
    rng = np.random.default_rng(parts)
    for n in (1, 2, 7, 30, 101):
        for values in (1, 2, 5, 1000):
            column = rng.integers(values, size=n).astype(float)
            for given in (column, np.sort(column)):
                assert np.unique(given, return_counts=True)[1].max() <= at_most(given, parts)
        # of values that all differ it is small enough to settle something
        assert at_most(np.arange(float(n)), parts) == -(-n // parts)


def test_the_sum_over_those_who_are_not_at_a_shared_value() -> None:
    """Medians beside a spike hid that few are off it: of one column, of a product, in a level.

    *Control*: with ten people off the spike, or ten off both, these leave.
    """
    rng = np.random.default_rng(3)
    for few, hidden in ((9, True), (10, False)):
        halves = np.r_[np.zeros(few), rng.normal(5, 1, few)]
        assert unsafe_columns(halves[:, None], limits=LIMITS).tolist() == [hidden]
        uneven = np.r_[np.zeros(90), np.ones(30), np.resize([2.5, 7.0], few)]
        assert unsafe_columns(uneven[:, None], limits=Limits(10, 0.9)).tolist() == [hidden]
        # Doses of two drugs: nobody's are at the medians, few have both.
        dose = rng.normal(5, 1, (200 + few, 2))
        dose[:100, 0] = dose[100:200, 1] = 0.0
        assert (np.median(dose, axis=0) > 0).all()
        for signs in itertools.product((1.0, -1.0), repeat=2):
            found = moment_facts(dose * signs, limits=LIMITS).unsafe
            assert found.tolist() == [[False, hidden], [hidden, False]]
        # Two people of few have one value, and two others one of another column.
        pair = rng.normal(5, 1, (few + 4, 2))
        pair[:2, 0] = pair[2:4, 1] = 0.0
        found = moment_facts(pair, limits=LIMITS).unsafe
        assert found.tolist() == [[False, hidden], [hidden, False]]
        # Two doses, and few people who get another one: (x - 20)(x - 40).
        doses = np.r_[np.full(60, 20.0), np.full(50, 40.0), rng.normal(60, 5, few)]
        assert unsafe_columns(doses[:, None], limits=LIMITS).tolist() == [hidden]
        # At discharge nothing, or the same dose but for few; or what was left of sixty.
        first = rng.choice([10.0, 20.0, 30.0, 40.0, 60.0], 200)
        for then in (first.copy(), 60.0 - first):
            then[::2] = 0.0
            then[1 : 2 * few : 2] += rng.normal(15, 1, few)
            found = moment_facts(np.c_[first, then], limits=LIMITS).unsafe
            assert found.tolist() == [[False, hidden], [hidden, False]]
        # A level of two times as many people, half of whom have one value.
        level = np.arange(100) < 2 * few
        number = rng.normal(5, 1, 100)
        number[:few] = 0.0
        found = moment_facts(np.c_[level, number], limits=LIMITS).unsafe
        assert found.tolist() == [[False, hidden], [hidden, False]]


def told_functions(points: np.ndarray, unsafe: np.ndarray) -> list[np.ndarray]:
    """Columns and products that leave, at each point."""
    p = points.shape[1]
    single = [points[:, j] for j in range(p) if not unsafe[j, j]]
    pairs = itertools.combinations_with_replacement(range(p), 2)
    return single + [points[:, i] * points[:, j] for i, j in pairs if not unsafe[i, j]]


def small_counts(x: np.ndarray, coded: Codes, unsafe: np.ndarray, least: int) -> list[int]:
    """Counts of 0 to least - 1 that follow from what leaves, of sets that somebody could be in."""
    values = [np.unique(x[:, j]) for j in range(x.shape[1])]
    grid = np.array(list(itertools.product(*values)))
    for columns, whole in coded:
        have = (grid[:, columns] == [values[j].max() for j in columns]).sum(axis=1)
        grid = grid[(have == 1) if whole else (have <= 1)]
    of_row = np.array([int(np.flatnonzero((grid == row).all(axis=1))[0]) for row in x])
    found = counts_that_follow(x, told_functions(grid, unsafe), grid, of_row)
    return [k for k in found.values() if k < least]


@pytest.mark.parametrize("kind", ["binary", "category", "two categories", "three values"])
def test_no_count_of_few_records_follows_from_what_leaves(kind: str) -> None:
    """Solving for all 0/1-valued combinations, with a control: the rule of before lets some out."""
    before = 0
    for seed in range(8):
        x, coded = table(seed, "binary" if kind == "three values" else kind)
        if kind == "binary":
            x = x[:, [0, 1, 2, 6]]
        elif kind == "category":
            x, coded = x[:, 1:], [Coded((2, 3, 4, 5), True)]
        elif kind == "two categories":
            x, coded = x[:, [0, 1, 3, 4, 5]], [Coded((0, 1), False), Coded((2, 3), False)]
        elif kind == "three values":
            x = np.c_[x[:, :2], np.arange(len(x)) % 3, np.minimum(np.arange(len(x)) % 16, 2)]
        unsafe = moment_facts(x, limits=LIMITS, coded=coded).unsafe
        assert not small_counts(x, coded, unsafe, 10)
        before += len(small_counts(x, coded, np.zeros_like(unsafe), 10))
    assert before


def ring(n_each: int, few: int) -> np.ndarray:
    """Four columns of which neighbours may leave and opposite ones may not."""
    signs = np.array(list(itertools.product((0, 1), repeat=4)))
    s, t, u, v = (2 * signs - 1).T
    counted = s * t + t * u + u * v - v * s == -2
    return np.repeat(signs, np.where(counted, n_each, few), axis=0).astype(float)


def test_a_ring_of_four_columns() -> None:
    """Where the products across do not leave, those around tell one count more."""
    x = ring(30, 1)
    apart = np.zeros((4, 4), dtype=bool)
    apart[0, 2] = apart[2, 0] = apart[1, 3] = apart[3, 1] = True
    assert min(small_counts(x, [], apart, 10)) == 8
    from consilience.wire import moment_facts as rule

    signs = 2 * x - 1
    joined = ~apart & ~np.eye(4, dtype=bool)
    rule._part_fours(joined, signs.T @ signs, np.arange(4), 2 * len(x) - 40)
    assert joined.sum() < 8
    assert not small_counts(x, [], ~joined & ~np.eye(4, dtype=bool), 10)


def test_only_the_ring_that_tells_of_few_gives_way() -> None:
    """A fifth column is in two rings that tell of many: all of its products leave."""
    from consilience.wire import moment_facts as rule

    x = np.c_[ring(30, 1), np.random.default_rng(0).random(len(ring(30, 1))) < 0.5]
    signs = 2 * x - 1
    joined = np.zeros((5, 5), dtype=bool)
    for i, j in ((0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (2, 4)):
        joined[i, j] = joined[j, i] = True
    rule._part_fours(joined, signs.T @ signs, np.arange(5), 2 * len(x) - 40)
    assert joined[4].tolist() == [True, False, True, False, False]
    assert joined.sum() == 10
    assert not small_counts(x, [], ~joined & ~np.eye(5, dtype=bool), 10)


RINGS = {
    10: "000a610a301900944600a000a0077300a000",
    9: "000a520a401900955500a000a0077300a000",
}
"""Records by two categories of three levels and two columns of two values, in base 11."""


@pytest.mark.parametrize(("fewest", "more"), [(10, set()), (9, {(2, 4), (3, 4)})])
def test_a_ring_across_pairs_of_rare_levels(fewest: int, more: set[tuple[int, int]]) -> None:
    """Opposite pairs do not leave for the sake of one level each; the ring counts `fewest`."""
    points = np.array(list(itertools.product(range(3), range(3), (0, 1), (0, 1))))
    q = np.repeat(points, [int(k, 11) for k in RINGS[fewest]], axis=0)
    x = np.c_[q[:, :1] == [0, 1], q[:, 1:2] == [0, 1], q[:, 2:]].astype(float)
    coded = [Coded((0, 1), False), Coded((2, 3), False)]
    unsafe = moment_facts(x, limits=LIMITS, coded=coded).unsafe
    np.testing.assert_array_equal(unsafe, unsafe.T)
    found = set(map(tuple, np.argwhere(np.triu(unsafe)).tolist()))
    assert found == {(0, 4), (1, 4), (2, 5), (3, 5)} | more


def test_what_three_and_four_columns_can_tell() -> None:
    """Whatever products leave, a set that they count is made of cells, of threes and of rings."""
    points = np.array(list(itertools.product((0, 1), repeat=4)))
    signs = 2 * points - 1
    pairs = list(itertools.combinations(range(4), 2))
    everything = counts_that_follow(
        points,
        [points[:, i] * points[:, j] for i, j in pairs] + [points[:, i] for i in range(4)],
        points,
        np.arange(16),
    )
    sets = np.array([np.frombuffer(key, dtype=bool) for key in everything])
    assert len(sets) == 221
    for pattern in itertools.product((False, True), repeat=6):
        told = [pair for pair, used in zip(pairs, pattern, strict=True) if used]
        basis = np.stack(
            [np.ones(16), *points.T, *(points[:, i] * points[:, j] for i, j in told)], 1
        )
        fitted = basis @ np.linalg.pinv(basis)
        inside = sets[(np.abs(sets @ fitted - sets) < 1e-9).all(axis=1)]
        known = [points[:, i] == a for i in range(4) for a in (0, 1)]
        for i, j in told:
            known += [(points[:, i] == a) & (points[:, j] == b) for a in (0, 1) for b in (0, 1)]
        for i, j, k in itertools.combinations(range(4), 3):
            if {(i, j), (i, k), (j, k)} <= set(told):
                for a, b in itertools.product((1, -1), repeat=2):
                    known.append(
                        (signs[:, i] == a * signs[:, j]) & (signs[:, i] == b * signs[:, k])
                    )
        for a, b, c, d in ((0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3)):
            around = {tuple(sorted(e)) for e in ((a, b), (b, c), (c, d), (d, a))}
            across = {tuple(sorted(e)) for e in ((a, c), (b, d))}
            if around <= set(told) and not across & set(told):
                s, t, u, v = (signs[:, i] for i in (a, b, c, d))
                for f in itertools.product((1, -1), repeat=4):
                    w = f[0] * s * f[1] * t, f[1] * t * f[2] * u, f[2] * u * f[3] * v
                    known.append(w[0] + w[1] + w[2] - f[3] * v * f[0] * s == 2)
        left = {s.tobytes() for s in inside if s.any()}
        # Sets that hold another known one are that one and a smaller set.
        for s in sorted(inside, key=lambda s: int(s.sum())):
            if s.any():
                assert any((k <= s).all() for k in known), (told, points[s])
        assert left


@pytest.mark.parametrize("levels", [(3, 2, 2), (3, 3, 2)])
def test_what_three_categories_can_tell(levels: tuple[int, ...]) -> None:
    points = np.array(list(itertools.product(*map(range, levels))))
    of = [[points[:, v] == a for a in range(k)] for v, k in enumerate(levels)]
    told = [
        (a & b).astype(float) for u, v in ((0, 1), (0, 2), (1, 2)) for a in of[u] for b in of[v]
    ]
    found = counts_that_follow(points, told, points, np.arange(len(points)))
    known = [t.astype(bool) for t in told]
    parts = [
        [
            np.isin(points[:, v], c)
            for size in range(1, k)
            for c in itertools.combinations(range(k), size)
        ]
        for v, k in enumerate(levels)
    ]
    known += [(a & b & c) | (~a & ~b & ~c) for a, b, c in itertools.product(*parts)]
    for key in found:
        s = np.frombuffer(key, dtype=bool)
        assert any((k <= s).all() for k in known), points[s]


# --------------------------------------------------------------------------- nothing and few


@pytest.mark.parametrize("few", [1, 4, 9])
def test_nothing_and_few_look_the_same(few: int) -> None:
    """A column, a cell, a level, a sum within a level, an agreement of three."""
    rng = np.random.default_rng(1)
    n = 200
    x = np.c_[np.arange(n) % 2, np.arange(n) // 2 % 2, rng.normal(size=n)].astype(float)
    for place, base in ((0, np.zeros(n)), (1, x[:, 0]), (2, np.full(n, 3.0))):
        nobody, some = x.copy(), x.copy()
        nobody[:, place] = some[:, place] = base
        rows = np.flatnonzero(base == base.max())[:few]
        some[rows, place] = 1.0 - base[rows]
        for limits in (LIMITS, Limits(12)):
            first = moment_facts(nobody, limits=limits).unsafe
            np.testing.assert_array_equal(first, moment_facts(some, limits=limits).unsafe)
            assert first.any()
            first = unsafe_columns(nobody, limits=limits)
            np.testing.assert_array_equal(first, unsafe_columns(some, limits=limits))


@pytest.mark.parametrize("few", [1, 9])
def test_an_agreement_of_three_columns_by_none_or_few(few: int) -> None:
    """All cells of all pairs are large; the three never agree, or hardly ever."""
    never = np.array(
        [(a, b, c) for a, b, c in itertools.product((0, 1), repeat=3) if not a == b == c]
    )
    x = np.repeat(never, 20, axis=0).astype(float)
    some = np.concatenate([x, np.ones((few, 3))])
    first, second = (moment_facts(t, limits=LIMITS).unsafe for t in (x, some))
    np.testing.assert_array_equal(first, second)
    assert first[1, 2] and first.sum() == 2
    enough = np.concatenate([x, np.ones((10, 3))])
    assert not moment_facts(enough, limits=LIMITS).unsafe.any()


def test_levels_of_one_category_have_nobody_in_common() -> None:
    """That is known from the coding; of two columns that merely never meet it is not."""
    onehot = (np.arange(90)[:, None] % 3 == np.arange(3)).astype(float)
    coded = [Coded((0, 1, 2), True)]
    assert not moment_facts(onehot, limits=LIMITS, coded=coded).unsafe.any()
    assert not moment_facts(onehot[:, :2], limits=LIMITS, coded=[Coded((0, 1), False)]).unsafe.any()
    assert moment_facts(onehot[:, :2], limits=LIMITS).unsafe[0, 1]


@pytest.mark.parametrize("few", [0, 1, 9])
@pytest.mark.parametrize("whole", [True, False])
def test_the_level_that_is_left_out_counts(few: int, whole: bool) -> None:
    """Of four levels one has few: without the others it would be n less their sum."""
    level = np.repeat([0, 1, 2, 3], [30, 40, 50, few])
    columns = 4 if whole else 3
    onehot = (level[:, None] == np.arange(columns)).astype(float)
    coded = [Coded(tuple(range(columns)), whole)]
    found = unsafe_columns(onehot, limits=LIMITS, coded=coded).tolist()
    assert found == [True, False, False, True][:columns]
    assert unsafe_columns(onehot, limits=Limits(1, 1.0), coded=coded).sum() == 0


@pytest.mark.parametrize(("few", "apart"), [(0, True), (9, True), (10, False)])
def test_the_level_that_is_left_out_counts_with_others(few: int, apart: bool) -> None:
    """Of three levels two have columns, and many rows beside each value of another column."""
    level = np.repeat([0, 1, 2, 2], [80, 80, 60, few])
    other = np.r_[np.arange(220) % 2, np.ones(few)]
    other[160:220] = 0
    x = np.c_[level == 0, level == 1, other].astype(float)
    coded = [Coded((0, 1), False)]
    unsafe = moment_facts(x, limits=LIMITS, coded=coded).unsafe
    np.testing.assert_array_equal(unsafe, unsafe_moments(x, 10, LIMITS.max_share, coded))
    assert unsafe[0, 2] == unsafe[1, 2] == apart
    assert not unsafe[:2, :2].any() and not unsafe[2, 2]


def test_of_fewer_rows_than_the_limit_nothing_leaves() -> None:
    level = np.arange(9) % 2
    onehot = (level[:, None] == np.arange(2)).astype(float)
    for whole in (True, False):
        coded = [Coded((0, 1), whole)]
        assert unsafe_columns(onehot, limits=LIMITS, coded=coded).all()
        assert moment_facts(onehot, limits=LIMITS, coded=coded).unsafe.all()


def test_a_category_of_many_levels_stays_apart_from_two_others() -> None:
    rng = np.random.default_rng(0)
    n = 2000
    onehot = (rng.integers(7, size=n)[:, None] == np.arange(7)).astype(float)
    x = np.c_[onehot, rng.random((n, 2)) < 0.5]
    coded = [Coded(tuple(range(7)), True)]
    unsafe = moment_facts(x, limits=LIMITS, coded=coded).unsafe
    assert unsafe[:7, 7:].all() and not unsafe[:7, :7].any() and not unsafe[7:, 7:].any()
    # With one other column there are no three to agree.
    assert not moment_facts(x[:, :8], limits=LIMITS, coded=coded).unsafe.any()


def test_categories_among_some_columns() -> None:
    coded = [Coded((1, 2, 3), True), Coded((5,), False)]
    found = coded_within(coded, np.array([3, 5, 1]))
    assert found == (Coded((2, 0), False), Coded((1,), False))
    assert coded_within(coded, np.array([1, 2, 3])) == (Coded((0, 1, 2), True),)
    assert coded_within(coded, np.array([0, 4])) == ()


def test_ordinary_columns_of_few_more_rows_than_the_limit() -> None:
    """An odd number of different values loses none of them to its median."""
    for n in range(10, 16):
        x = np.c_[np.arange(n), (n - np.arange(n)) ** 1.5].astype(float)
        assert not unsafe_columns(x, limits=LIMITS).any()
        assert not moment_facts(x, limits=LIMITS).unsafe.any()


@pytest.mark.parametrize("rest", [0, 3, 30])
def test_columns_without_records_in_common_and_who_is_in_none(rest: int) -> None:
    """Three arms of a trial as columns; a fourth column has nothing to do with them."""
    arm = np.repeat([0, 1, 2, 3], [150, 120, 130 - rest, rest])
    x = np.column_stack([*(arm == k for k in range(3)), np.arange(400) % 2]).astype(float)
    assert left_over(x, 10) == ([[0, 1, 2]] if rest < 10 else [])
    assert left_over(x, 10, [Coded((0, 1, 2), True)]) == []
    x[:, 1] = 1 - x[:, 1]  # turned around it is the same
    assert left_over(x, 10) == ([[0, 1, 2]] if rest < 10 else [])


@pytest.mark.parametrize("few", [0, 5, 200])
def test_columns_that_hang_together(few: int) -> None:
    """Everybody ticks two of five boxes, but for a few who tick one."""
    rng = np.random.default_rng(0)
    x = np.zeros((600, 6))
    for row in x:
        row[rng.permutation(5)[:2]] = 1
    x[:few, :5] = np.eye(5)[0] if few < 200 else rng.integers(2, size=(few, 5))
    x[:, 5] = rng.integers(2, size=600)
    joint = np.ones(6, dtype=bool)
    assert hanging_together(x, 10, joint) == ([[0, 1, 2, 3, 4]] if few < 200 else [])
    assert hanging_together(x, 10, ~joint) == ([[0, 1, 2, 3, 4]] if few < 200 else [])


@pytest.mark.parametrize(
    ("few", "step", "digits", "wanted"),
    [
        (1, 0.5, 0.37, 0.5),
        (9, 1.0, 0.25, 1.0),
        (10, 1.0, 0.25, None),
        (3, 5.0, 2.0, 5.0),
        (1, 0.1, 1e-6, 0.1),
        (2, 25.0, 10.0, 25.0),
        (1, 15.0, 10.0, 15.0),
        (3, 75.0, 25.0, 75.0),
        (1, 7.0, 3.0, 7.0),
        (1, 1 / 12, 0.03, 1 / 12),
        (1, 1e-8, 4e-9, 1e-8),
    ],
)
def test_digits_of_few(few: int, step: float, digits: float, wanted: float | None) -> None:
    """Multiples of a step in all records but few; 10 at least are many, and so is nobody."""
    column = np.random.default_rng(few).integers(1, 60, 200) * step
    assert off_grid(column, 10) is None
    column[20 : 20 + few] += digits
    column[5] = np.nan
    found = off_grid(column, 10)
    assert (found is None) == (wanted is None)
    if found is not None:
        assert found.step == pytest.approx(wanted)
        assert np.flatnonzero(found.off).tolist() == list(range(20, 20 + few))
        strict = Limits(max_detection=1.0)
        assert unsafe_columns(column[:, None], limits=strict).all()
        assert not unsafe_columns(column[:, None], limits=LIMITS).any()


def test_what_is_remembered_of_a_column_is_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was asked before: each column with several numbers of records, in any order."""
    monkeypatch.setattr(digits, "_REMEMBERED", 40)
    rng = np.random.default_rng(11)
    columns = []
    for few in range(12):
        column = rng.integers(1, 60, 60 + few) * 0.5
        column[rng.integers(len(column), size=few)] += 0.1 * rng.integers(2)
        columns.append(column)
    asked = [(i, least) for i in range(len(columns)) for least in (2, 5, 11)] * 4
    found = set()
    for i, least in rng.permutation(asked).tolist():
        one, two = off_grid(columns[i], least), digits._off_grid(columns[i], least)
        assert (one is None) == (two is None)
        assert one is None or two is None or np.array_equal(one.off, two.off)
        found.add(one is None)
    assert found == {True, False}


def test_few_of_a_small_table_are_a_fifth_of_it() -> None:
    column = np.arange(20.0, 40.0) * 2
    for few, found in ((4, True), (5, False)):
        odd = column.copy()
        odd[:few] += 1.0
        assert (off_grid(odd, 10) is not None) == found


def test_digits_of_large_numbers_and_of_three_values() -> None:
    seconds = 1.7e9 + np.random.default_rng(2).integers(0, 10**6, 300)
    doses = np.repeat([0.0, 1.0, 2.0], [100, 150, 50])
    for column in (seconds, doses):
        assert off_grid(column, 10) is None
        column[3] += 0.5
        found = off_grid(column, 10)
        assert found is not None and np.flatnonzero(found.off).tolist() == [3]


def test_columns_whose_digits_tell_nothing_of_few() -> None:
    rng = np.random.default_rng(1)
    for column in (
        rng.normal(size=300),
        np.repeat([0.0, 1.0], [295, 5]),
        np.repeat([1.0, 2.0, 3.0], 100),
        rng.normal(size=300) * 1e12,
        np.full(300, np.nan),
    ):
        assert off_grid(column, 10) is None


def test_levels_of_a_category_do_not_hang_together_by_their_coding() -> None:
    """Nobody has two of them, as everybody knows; without the coding it is one like others."""
    rng = np.random.default_rng(3)
    a, b = rng.integers(3, size=300), rng.integers(4, size=300)
    x = np.hstack([np.eye(3)[a], np.eye(4)[b]])
    coded = (Coded((0, 1, 2), True), Coded((3, 4, 5, 6), True))
    every = np.ones(7, dtype=bool)
    assert hanging_together(x, 10, every, coded) == []
    assert hanging_together(x, 10, every) != []
    # A relation between two categories is found all the same: level 0 of one is that of the other.
    x[:, :3] = np.eye(3)[np.where(b == 0, 0, 1 + a % 2)]
    x[0, :3] = np.eye(3)[1] if b[0] == 0 else np.eye(3)[0]
    assert hanging_together(x, 10, every, coded) != []


@pytest.mark.parametrize("least", [1, 10])
@pytest.mark.parametrize("other", [0.0, np.nan, -np.inf])
def test_a_column_with_an_infinite_value_is_unsafe(least: int, other: float) -> None:
    limits = Limits(min_records=least, max_share=0.6)
    for many in (5, 40):  # of most rows, no row has a share that is a number
        x = np.random.default_rng(0).normal(size=(60, 3))
        x[4:many, 1], x[9, 1] = np.inf, other
        with np.errstate(invalid="ignore"):
            unsafe = moment_facts(x, limits=limits).unsafe
        assert unsafe[1].all() and unsafe[:, 1].all() and not unsafe[0, 2]


@pytest.mark.parametrize("n", [8, 9, 60, 61])
def test_short_columns_looked_at_together_are_as_one_by_one(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(3.0, 2.0, size=(n, 8))
    x[:, 1] = 0.0
    x[:, 2] = np.rint(x[:, 2])
    x[0, 3], x[1, 4] = np.nan, np.inf
    x[:2, 5] = np.median(x[:, 5])
    x[:, 6] = 1.0 + np.arange(n) * np.spacing(1.0)  # the mean of the middle ones is one of them
    x[:, 7] *= 1e150
    together = module._Seen.of(x)
    assert np.flatnonzero(together.distinct).tolist() == [0, 6, 7]
    facts = column_facts(x), unsafe_columns(x, limits=LIMITS)
    monkeypatch.setattr(module, "_SHORT", 0)
    alone = module._Seen.of(x)
    assert not alone.distinct.any()
    for name in ("ends", "means", "middles", "at_middle"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    shared = [max(np.unique(c[~np.isnan(c)], return_counts=True)[1]) for c in x.T]
    assert (together.most >= shared).all()
    (records, share), unsafe = column_facts(x), unsafe_columns(x, limits=LIMITS)
    np.testing.assert_array_equal(facts[0][0], records)
    np.testing.assert_allclose(facts[0][1], share, rtol=1e-14)
    np.testing.assert_array_equal(facts[1], unsafe)


@pytest.mark.parametrize("n", [50, 301])
def test_what_is_settled_together_is_what_each_column_says(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 12)).cumsum(axis=1)
    x[:, 3] = np.round(x[:, 3] + np.arange(n), 6)
    x[:, 4] = 0.3713137 * np.arange(n) + 0.11
    x[:5, 4] += 0.0123  # few have further digits
    x[:, 5] = 0.0
    x[2, 6] = np.nan
    x[:, 7] = np.round(rng.normal(size=n), 6)
    # Of a step too fine for samples to show, and the first ones are off it.
    x[:9, 7] += 0.41e-6 * np.sqrt([2, 3, 5, 6, 7, 8, 10, 11, 12])
    digits._none_off.clear()
    digits.settle(x.T, 10)
    known = [(10, digits._content(column)) in digits._none_off for column in x.T]
    assert sum(known) >= 7 and not any(known[4:8])
    for column, none in zip(x.T, known, strict=True):
        assert not none or digits._off_grid(column, 10) is None
    for few in (4, 7):
        assert digits.off_grid(x[:, few], 10) is not None


@pytest.mark.parametrize("n", [1 << 14, (1 << 14) + 1, 50_000])
@pytest.mark.parametrize("kind", ["even", "in order", "few values", "misleading", "infinite"])
def test_medians_of_long_columns_are_those_of_ordered_ones(n: int, kind: str) -> None:
    rng = np.random.default_rng(3)
    column = {
        "even": rng.normal(size=n),
        "in order": np.sort(rng.normal(size=n)),
        "few values": rng.integers(3, size=n).astype(float),
        # Every record that the sample looks at is far above all others.
        "misleading": np.where(np.arange(n) % (n // 2048), rng.normal(size=n), 1e6 + rng.random(n)),
        "infinite": np.where(rng.random(n) < 0.3, np.inf, rng.normal(size=n)),
    }[kind]
    column.flags.writeable = False
    ordered, half = np.sort(column), n // 2
    middle = ordered[half] if n % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert module._median(column) == middle


def test_the_lower_of_two_middle_records_may_lie_below_all_that_were_looked_at() -> None:
    n = 1 << 14
    column = np.zeros(n)
    column[:: n // 2048] = 1.0
    column[np.flatnonzero(column == 0)[: n // 2 - 2048]] = 1.0
    assert column.sum() == n // 2
    assert module._median(column.copy()) == 0.5
