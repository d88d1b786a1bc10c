"""Sums of products by class: values, the order of additions, what they rest on, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.exceptions import ProtocolError
from consilience.wire.cell_facts import added_by_pairs, sums_by_class
from consilience.wire.disclosure import Limits, Released, Support, class_sums, may_leave
from consilience.wire.message import Disclosure
from tests.reference.moments_naive import cell_facts

LIMITS = Limits()
N, P, K = 90, 4, 3


def rows(seed: int = 0, n: int = N) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.c_[np.ones(n), rng.normal(size=(n, P - 1))]


def entities(n: int = N) -> np.ndarray:
    return np.arange(n) % 30


def cells(n: int = N) -> np.ndarray:
    """Entities by their number, every fifth in no class."""
    of = entities(n)
    return np.where(of % 5 == 4, -1, of % K)


def made(**changes: Any) -> Released:
    given: dict[str, Any] = {"cells": cells(), "n_cells": K, "entities": entities()}
    given.update(changes)
    return class_sums(given.pop("rows", rows()), **given)


def evidence(released: Released) -> Support:
    assert released.evidence is not None
    return released.evidence


def test_values() -> None:
    x, of = rows(), cells()
    marks = np.random.default_rng(1).integers(0, 2, size=(N, 2)).astype(float)
    released = made(marks=marks)
    assert released.disclosure is Disclosure.AGGREGATE
    assert released.value.shape == (K, P * (P + 1) // 2 + 2)
    for k in range(K):
        products = x[of == k].T @ x[of == k]
        place = 0
        for i in range(P):
            for j in range(i, P):
                assert released.value[k, place] == pytest.approx(products[i, j], rel=1e-12)
                place += 1
        np.testing.assert_array_equal(released.value[k, place:], marks[of == k].sum(axis=0))


def test_a_class_without_records_is_zero() -> None:
    released = made(n_cells=K + 2)
    assert not released.value[K:].any()
    assert not evidence(released).records[K:].any()  # type: ignore[index]
    nobody = made(cells=np.full(N, -1))
    assert not nobody.value.any()
    nothing = class_sums(
        np.empty((0, 2)), cells=np.empty(0, int), n_cells=2, entities=np.empty(0, int)
    )
    assert nothing.value.shape == (2, 3)


# --------------------------------------------------------------------------- order of additions


def blocks_of(seed: int, n_blocks: int, per_block: int = 7) -> tuple[Any, ...]:
    """Rows in any order, of numbers whose sums depend on the order of additions."""
    rng = np.random.default_rng(seed)
    n = n_blocks * per_block
    block = rng.permutation(np.arange(n) % n_blocks)
    x = rng.normal(size=(n, 2)) * 10.0 ** rng.integers(-8, 8, size=(n, 1))
    return x, rng.integers(-1, K, size=n), block


@pytest.mark.parametrize(
    ("n_blocks", "size"),
    [(8, 1), (8, 2), (8, 4), (8, 8), (13, 1), (13, 2), (13, 4), (16, 8), (2072, 8), (2072, 1024)],
)
def test_sites_of_aligned_blocks_are_nodes_of_the_tree(n_blocks: int, size: int) -> None:
    """Blocks over sites, each a run of 2^j that starts at a multiple of 2^j: the same bits."""
    x, cell, block = blocks_of(n_blocks, n_blocks)
    none = np.zeros((len(x), 0))
    whole = sums_by_class(x, none, cell, K, block)
    parts = []
    for first in range(0, n_blocks, size):
        mine = (block >= first) & (block < first + size)
        parts.append(sums_by_class(x[mine], none[mine], cell[mine], K, block[mine] - first))
    np.testing.assert_array_equal(added_by_pairs(np.stack(parts)), whole)
    shuffled = np.argsort(block, kind="stable")
    again = sums_by_class(x[shuffled], none, cell[shuffled], K, block[shuffled])
    np.testing.assert_array_equal(again, whole)


def test_without_blocks_the_bits_would_differ() -> None:
    """A control: sites that add up their rows, and then their sums, get other last digits."""
    x, cell, block = blocks_of(8, 8)
    none = np.zeros((len(x), 0))
    whole = sums_by_class(x, none, cell, K, block)
    assert (sums_by_class(x, none, cell, K, None) != whole).any()
    three = [sums_by_class(x[m], none[m], cell[m], K, block[m]) for m in (block < 3, block >= 3)]
    assert (three[0] + three[1] != whole).any()
    np.testing.assert_allclose(three[0] + three[1], whole, rtol=1e-12)


def test_a_released_sum_is_that_tree() -> None:
    x, cell, block = blocks_of(5, 16)
    released = class_sums(x, cells=cell, n_cells=K, entities=np.arange(len(x)), blocks=block)
    np.testing.assert_array_equal(
        released.value, sums_by_class(x, np.zeros((len(x), 0)), cell, K, block)
    )


# --------------------------------------------------------------------------- what it rests on


def test_facts_agree_with_the_naive_ones() -> None:
    x = rows()
    x[:, 2] = np.arange(N) % 7 == 0
    x[:, 3] = np.where(np.arange(N) % 4, 0.0, x[:, 3])
    found = evidence(made(rows=x, marks=np.ones((N, 1))))
    assert found.rule == "class-sums"
    assert found.n_columns == P
    upper = list(zip(*np.triu_indices(P), strict=True))
    for k in range(K):
        mine = x[cells() == k]
        for place, (i, j) in enumerate(upper):
            _, records, share = cell_facts(mine[:, i] * mine[:, j])
            assert found.records[k, place] == records  # type: ignore[index]
            assert found.share[k, place] == pytest.approx(share, rel=1e-12)  # type: ignore[index]
        assert found.records[k, -1] == len(mine)  # type: ignore[index]
        assert (found.entities[k] == len(np.unique(entities()[cells() == k]))).all()  # type: ignore[index]


def test_rows_are_judged_in_both_coordinates() -> None:
    """A column of which one record has a value, moved away from zero; and one giant, moved away."""
    x = rows()
    x[:, 2] = 0.0
    x[:3, 2] = [1.0, 2.0, 3.0]
    x[1, 3] = 1e5
    away = x + np.array([0.0, 0.0, 50.0, 1e7])
    cell = np.zeros(N, dtype=np.int64)
    plain, hidden = (evidence(made(rows=r, cells=cell)) for r in (x, away))
    assert plain.small(LIMITS).any() and plain.dominated(LIMITS).any()
    assert not hidden.small(LIMITS).any() and not hidden.dominated(LIMITS).any()
    for sent, judged in ((away, x), (x, away)):
        both = evidence(made(rows=sent, judged=judged, cells=cell))
        np.testing.assert_array_equal(both.small(LIMITS), plain.small(LIMITS))
        np.testing.assert_array_equal(both.dominated(LIMITS), plain.dominated(LIMITS))
        assert both.rows is not None
        np.testing.assert_array_equal(both.rows, judged)


def test_a_product_of_nothing_is_one_of_few_in_the_other_coordinates() -> None:
    """Two columns of which no record has both; moved, three records have."""
    first = np.where(np.arange(N) < 45, 1.0 + np.arange(N), 0.0)
    second = np.where(np.arange(N) < 45, 0.0, 1.0 + np.arange(N))
    x = np.c_[np.ones(N), first, second]
    moved = x.copy()
    moved[:3, 2] = [1.0, 2.0, 3.0]
    cell = np.zeros(N, dtype=np.int64)
    place = list(zip(*np.triu_indices(3), strict=True)).index((1, 2))
    for sent, judged in ((x, moved), (moved, x)):
        both = evidence(made(rows=sent, judged=judged, cells=cell))
        assert both.records[0, place] == 3  # type: ignore[index]
        assert both.small(LIMITS)[0, place]
    alone = evidence(made(rows=x, cells=cell))
    assert alone.records[0, place] == 0  # type: ignore[index]
    assert not alone.small(LIMITS)[0, place]


def test_withholding() -> None:
    x = rows()
    x[:, 2] = np.arange(N) == 1  # entity 1, in class 1
    withheld = made(rows=x).withhold_unsafe(LIMITS)
    gaps = np.isnan(withheld.value)
    assert gaps[1].any() and not gaps[[0, 2]].any()
    assert not evidence(withheld).small(LIMITS).any()
    assert not evidence(withheld).dominated(LIMITS).any()
    mask = np.zeros_like(gaps)
    mask[1] = True
    whole = made(rows=x).withhold(mask)
    assert not evidence(whole).records[1].any()  # type: ignore[index]
    np.testing.assert_array_equal(evidence(whole).members, cells())


@pytest.mark.parametrize(
    ("n", "n_entities", "column", "good"),
    [
        (10, 3, "normal", True),
        (9, 3, "normal", False),
        (10, 2, "normal", False),
        (30, 3, "indicator 10", True),
        (30, 3, "indicator 9", False),
        (30, 3, "indicator 21", False),
        (30, 3, "constant", True),
        (30, 3, "giant", False),
    ],
)
def test_what_may_leave(n: int, n_entities: int, column: str, good: bool) -> None:
    kinds = {
        "normal": np.linspace(1.0, 2.0, n),
        "indicator 9": (np.arange(n) < 9).astype(float),
        "indicator 10": (np.arange(n) < 10).astype(float),
        "indicator 21": (np.arange(n) < 21).astype(float),
        "constant": np.zeros(n),
        "giant": np.where(np.arange(n) == 0, 99.0, 1.0),
    }
    x, of = np.c_[np.ones(n), kinds[column]], np.arange(n) % n_entities
    assert may_leave(x, of, LIMITS) is good
    zeros = np.zeros((50, 2))
    padded = may_leave(np.r_[x, zeros], np.r_[of, 100 + np.arange(50)], LIMITS)
    assert not (padded and not good), "records that add nothing do not hide others"
    assert may_leave(x, of, Limits(1, 1.0, 1))


@pytest.mark.parametrize("cell", range(4))
@pytest.mark.parametrize(("few", "good"), [(0, True), (1, False), (9, False), (10, True)])
def test_all_cells_of_two_columns_of_two_values(cell: int, few: int, good: bool) -> None:
    """A column of ones, two others and their products tell all four."""
    first, second = divmod(cell, 2)
    sizes = {(first, second): few, (first, 1 - second): 20, (1 - first, 1 - second): 20}
    sizes[1 - first, second] = 60  # the small cell is not that of the two rarer values
    x = np.c_[np.ones(100 + few), np.repeat(list(sizes), list(sizes.values()), axis=0)]
    of = np.arange(len(x))
    middle = x - np.c_[0.0, np.median(x[:, 1:], axis=0)[None]]
    assert may_leave(middle, of, LIMITS) is good
    made_of = class_sums(x, cells=np.zeros(len(x), int), n_cells=1, entities=of, judged=middle)
    assert np.isfinite(made_of.withhold_unsafe(LIMITS).value).all() == good


def test_what_may_leave_has_twice_as_many_rows_as_columns() -> None:
    x = 1 + np.random.default_rng(0).uniform(size=(16, 8))
    assert may_leave(x, np.arange(16), LIMITS)
    assert not may_leave(x[:15], np.arange(15), LIMITS)


# --------------------------------------------------------------------------- refusals


def test_an_entity_in_two_classes_is_refused() -> None:
    torn = cells().copy()
    torn[0] = (torn[0] + 1) % K
    with pytest.raises(ProtocolError, match="in one class"):
        made(cells=torn)
    left_out = cells().copy()
    left_out[0] = -1
    made(cells=left_out)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_are_finite(value: float) -> None:
    x = rows()
    x[3, 1] = value
    with pytest.raises(ProtocolError, match="finite"):
        made(rows=x)


def test_rows_are_judged_in_their_own_columns() -> None:
    with pytest.raises(ProtocolError, match="as many columns"):
        made(judged=rows()[:, :2])
