"""Held-out rows: what a cell admits, against what linear combinations tell; the deal."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from consilience.protocol.method import SiteData
from consilience.protocol.phases.holdout import MOST, OPEN, PARTS, admits, held_out, uniform
from consilience.wire.disclosure import Limits

STRICT, OPEN_LIMITS = Limits(min_records=10), Limits(min_records=1)


def table(n: int = 300, seed: int = 0, entity: int = 0) -> SiteData:
    return SiteData(
        np.empty((n, 0)),
        (),
        np.arange(n),
        target=np.zeros(n),
        entity=np.array([f"e{i // entity}" for i in range(n)]) if entity else None,
        content_hash=f"{seed:064x}",
        n_read=n,
    )


# --------------------------------------------------------------------------- what a cell admits


def fewest_told(rows: NDArray[np.int64], parts: list[int]) -> int:
    """Rows behind the combination of sums that rests on fewest: by trial, over small coefficients.

    The sums are over the cell and over each of the parts.
    """
    found = [int(rows.sum())]
    for weights in itertools.product((-1, 0, 1), repeat=len(parts) + 1):
        total = np.full(PARTS, weights[0])
        for p, w in zip(parts, weights[1:], strict=True):
            total[p] += w
        if total[rows > 0].any():
            found.append(int(rows[total != 0].sum()))
    return min(found)


def test_no_combination_of_what_a_cell_admits_rests_on_few_rows() -> None:
    rng = np.random.default_rng(1)
    numbers = np.zeros(OPEN + 1)
    for _ in range(300):
        rows = rng.multinomial(rng.integers(20, 90), rng.dirichlet(np.full(PARTS, 5.0)))
        parts = admits(rows, np.full(PARTS, 99), STRICT)
        numbers[len(parts)] += 1
        assert fewest_told(rows, parts) >= min(10, rows.sum())
        assert all(rows[p] <= MOST * rows.sum() for p in parts)
        refused = [p for p in range(OPEN) if p not in parts]
        for p in refused:  # a control: each is refused for a reason
            small = fewest_told(rows, [*parts, p]) < 10
            rest = rows[[q for q in range(PARTS) if q not in (*parts, p)]].sum()
            assert small or rows[p] < 10 or rest < 10 or rows[p] > MOST * rows.sum()
    assert (numbers > 0).all()


def test_parts_of_few_entities_are_not_admitted() -> None:
    rows, limits = np.full(PARTS, 30), Limits(min_records=10, min_entities=3)
    assert admits(rows, np.full(PARTS, 3), limits) == [0, 1, 2]
    assert admits(rows, np.array([2, 3, 3, 3, 3]), limits) == [1, 2]
    assert admits(rows, np.array([3, 3, 3, 1, 1]), limits) == [0, 1]


@pytest.mark.parametrize("entity", [0, 3])
def test_runs_with_any_classes_rest_on_whole_pieces(entity: int) -> None:
    """Forty tables; classes together, and merged: each class and all rows, in all runs."""
    seen = 0
    for seed in range(40):
        data = table(300, seed, entity)
        kind = np.random.default_rng(seed).choice(3, size=300, p=[0.2, 0.3, 0.5])
        cuts = (kind, np.minimum(kind, 1), np.zeros(300, dtype=np.int64), np.maximum(kind, 1) - 1)
        told: dict[bytes, list[NDArray[np.bool_]]] = {}
        for cells, shares in itertools.product(cuts, ([0.2], [0.3, 0.1], [0.5], [0.0])):
            out = held_out(data, cells, shares, STRICT)
            for cell in (cells >= 0, *(cells == k for k in np.unique(cells))):
                sets = told.setdefault(cell.tobytes(), [])
                sets += [np.isin(np.arange(300), rows)[cell] for rows in out]
                seen += sum(len(rows) > 0 for rows in out)
        for sets in told.values():
            groups = np.unique(np.array(sets), axis=1, return_counts=True)[1]
            assert groups.min() >= 10
    assert seen > 200


# --------------------------------------------------------------------------- the deal


def test_the_deal_is_of_the_table_alone() -> None:
    data, cells = table(), np.zeros(300, dtype=np.int64)
    (first,) = held_out(data, cells, [0.2], STRICT)
    assert len(first) == 60
    other = dataclasses.replace(
        data.with_features(np.ones((300, 2)), ("u", "v")), target=np.arange(300.0), target_name="z"
    )
    np.testing.assert_array_equal(held_out(other, cells, [0.29], STRICT)[0], first)
    index = np.flatnonzero(np.arange(300) % 7 != 2)
    (part,) = held_out(data.take(index), cells[index], [0.2], STRICT)
    np.testing.assert_array_equal(index[part], np.intersect1d(first, index))
    assert not len(held_out(data, cells, [0.0], STRICT)[0])
    (anew,) = held_out(table(seed=1), cells, [0.2], STRICT)
    assert len(np.intersect1d(first, anew)) < 40  # 12 expected, with a deviation of 2.8


def test_a_second_set_is_another_part() -> None:
    data, cells = table(), np.zeros(300, dtype=np.int64)
    (alone,) = held_out(data, cells, [0.2], STRICT)
    first, second = held_out(data, cells, [0.2, 0.25], STRICT)
    np.testing.assert_array_equal(first, alone)
    assert len(second) == 60 and not len(np.intersect1d(first, second))
    np.testing.assert_array_equal(held_out(data, cells, [0.0, 0.1], STRICT)[1], alone)
    (two,) = held_out(data, cells, [0.3], STRICT)
    np.testing.assert_array_equal(two, np.union1d(first, second))
    both = held_out(data, cells, [0.4, 0.5], STRICT)  # of three parts
    assert [len(rows) for rows in both] == [120, 60]


def test_rows_that_take_no_part_and_small_classes() -> None:
    data = table()
    cells = np.where(np.arange(300) < 100, -1, 0)
    (out,) = held_out(data, cells, [0.2], STRICT)
    assert len(out) and (out >= 100).all()
    cells = (np.arange(300) < 12).astype(np.int64)
    assert not len(held_out(data, cells, [0.2], STRICT)[0])
    nothing = np.full(300, -1)
    assert not len(held_out(data, nothing, [0.2], STRICT)[0])


def test_entities_are_held_out_together_or_within() -> None:
    data, cells = table(entity=4), np.zeros(300, dtype=np.int64)
    (out,) = held_out(data, cells, [0.2], STRICT)
    whole = np.isin(np.arange(300), out).reshape(-1, 4)
    assert (whole.all(axis=1) == whole.any(axis=1)).all() and whole.any()
    (out,) = held_out(data, cells, [0.2], STRICT, within=True)
    within = np.isin(np.arange(300), out).reshape(-1, 4)
    assert not within.all(axis=1).any() and (within.sum(axis=1) == 1).any()
    alone = table(entity=1)  # an entity of one row keeps it
    assert not len(held_out(alone, cells, [0.2], STRICT, within=True)[0])


def test_rows_are_dealt_evenly_and_at_random() -> None:
    """Each row is as often in each fifth: 400 tables, deviations of .02."""
    values = np.array([uniform(table(50, seed), "parts") for seed in range(400)])
    assert (np.sort(values, axis=1) == (np.arange(50) + 0.5) / 50).all()
    shares = np.array([(values * PARTS // 1 == p).mean(axis=0) for p in range(PARTS)])
    assert abs(shares - 0.2).max() < 0.2 * 0.5  # 250 shares, five deviations of .02
    others = np.array([uniform(table(50, seed), "folds") for seed in range(400)])
    assert abs(np.corrcoef(values.ravel(), others.ravel())[0, 1]) < 5 / np.sqrt(values.size)


def test_a_tables_name_of_an_entity_moves_the_events_that_are_held_out() -> None:
    """Two columns of entities do not give sets that differ by a few rows."""
    data, cells = table(entity=6), np.zeros(300, dtype=np.int64)
    other = dataclasses.replace(data, entity=np.array([f"f{i // 6}" for i in range(300)]))
    first, second = (
        set(held_out(d, cells, [0.2], STRICT, within=True)[0].tolist()) for d in (data, other)
    )
    assert len(first ^ second) >= 30


# --------------------------------------------------------------------------- sums are masked


def test_with_masked_sums_all_parts_are_held_out_or_none() -> None:
    """Of 46 rows one part alone has ten: such a site would be the only one without a second."""
    data, cells = table(46), np.zeros(46, dtype=np.int64)
    for shares, plain, masked in (
        ([0.2], 10, 10), ([0.3], 10, 0), ([0.1, 0.1], 10, 0), ([0.0, 0.2], 10, 10), ([0.0], 0, 0)
    ):  # fmt: skip
        for wanted, more in ((plain, {}), (masked, {"masked": True})):
            found = held_out(data, cells, shares, STRICT, **more)
            assert sum(map(len, found)) == wanted


def test_with_masked_sums_rows_are_dealt_where_none_is_protected_too() -> None:
    """By any share and order the same ones, or runs would differ by single rows."""
    data, cells, order = table(50), np.zeros(50, dtype=np.int64), np.arange(50)[::-1]
    first, other, two = (
        held_out(data, cells, [share], OPEN_LIMITS, order=of, masked=True)[0]
        for share, of in ((0.05, None), (0.2, order), (0.4, None))
    )
    np.testing.assert_array_equal(first, held_out(data, cells, [0.2], STRICT)[0])
    np.testing.assert_array_equal(first, other)
    assert len(two) == 20 and set(first) < set(two)


# --------------------------------------------------------------------------- nothing protected


def test_where_nothing_is_protected_the_share_is_that_asked_for() -> None:
    data, cells = table(), (np.arange(300) % 3 == 0).astype(np.int64)
    order = np.random.default_rng(2).permutation(300)
    first, second = held_out(data, cells, [0.25, 0.1], OPEN_LIMITS, order=order)
    for rows, share in ((first, 0.25), (second, 0.1)):
        assert np.bincount(cells[rows]).tolist() == [int(share * 200), int(share * 100)]
    assert not len(np.intersect1d(first, second))
    zeros = order[cells[order] == 0]
    np.testing.assert_array_equal(np.sort(zeros[:50]), first[cells[first] == 0])
    (kept,) = held_out(data, cells, [0.999], OPEN_LIMITS, order=order, spare=2)
    assert (np.bincount(cells) - np.bincount(cells[kept])).tolist() == [2, 2]
