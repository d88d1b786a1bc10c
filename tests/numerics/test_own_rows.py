"""Offered rows that are the site's own are told from rows that agree with its table by chance."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.own_rows import (
    DIGEST_BYTES,
    LEVEL,
    Digests,
    _chance,
    _counts,
    compare_rows,
    own_rows_offered,
    row_digests,
)

ROOT = Path(__file__).resolve().parents[2]
SALT = "trial-20240229-000000"


def digests_of(cells: NDArray[np.int64]) -> Digests:
    """Stand-ins of digests: a distinct one for each cell."""
    found = np.zeros((len(cells), DIGEST_BYTES), dtype=np.uint8)
    found[:, :8] = np.ascontiguousarray(cells, dtype="<i8").view(np.uint8).reshape(-1, 8)
    return found


# --- digests ----------------------------------------------------------------------------------


def test_equal_rows_have_equal_digests_and_others_do_not() -> None:
    rows = np.array([[1.0, -0.0], [1.0, 0.0], [0.0, 1.0], [1.0, np.nan], [1.0, -np.nan]])
    found = row_digests(rows, SALT)
    assert found.shape == (5, DIGEST_BYTES) and found.dtype == np.uint8
    assert (found[0] == found[1]).all() and (found[3] == found[4]).all()
    assert len(np.unique(found[[0, 2, 3]], axis=0)) == 3
    assert row_digests(np.empty((0, 2)), SALT).shape == (0, DIGEST_BYTES)


def test_another_salt_gives_other_digests() -> None:
    rows = np.ones((1, 3))
    assert not (row_digests(rows, SALT) == row_digests(rows, "another")).all()
    assert (row_digests(rows, SALT) == row_digests(rows, SALT.encode())).all()


def test_a_copy_in_other_units_or_precision_is_the_same_table() -> None:
    rows = np.random.default_rng(1).lognormal(3.0, 4.0, size=(2000, 1))
    digests = row_digests(rows, SALT)
    units = row_digests(rows * 0.0113 / 0.0113, SALT)
    single = row_digests(rows.astype(np.float32), SALT)
    assert (units == digests).all(axis=1).mean() > 0.999
    # A cell is lost with probability 2^-9 to 2^-8: 4 to 8 of 2000, sd below 3.
    assert (single == digests).all(axis=1).mean() > 1 - 20 / 2000
    assert not (row_digests(rows * 1.001, SALT) == digests).all(axis=1).any()


@pytest.mark.parametrize("value", [5e-324, 1e-308, -1.7e308, 2.0**40, np.inf, -np.inf])
def test_extreme_cells_have_a_digest_of_their_own(value: float) -> None:
    low, same = row_digests([[value], [value]], SALT)
    assert (low == same).all()
    assert not (row_digests([[0.0]], SALT)[0] == low).all()


def test_a_power_of_two_is_met_from_both_sides() -> None:
    rows = [[8.0 * (1 - 1e-12)], [8.0], [8.0 * (1 + 1e-12)]]
    assert len(np.unique(row_digests(rows, SALT), axis=0)) == 1


def test_what_are_no_rows_is_refused() -> None:
    with pytest.raises(DataError, match="two dimensions"):
        row_digests([1.0, 2.0], SALT)
    good = row_digests(np.ones((3, 1)), SALT)
    with pytest.raises(DataError, match="32 bytes each"):
        own_rows_offered(good, good[:, :16], 5)
    with pytest.raises(ParameterError, match="min_records"):
        own_rows_offered(good, good, 0)


# --- private rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(("n", "m"), [(30, 40), (200, 40), (500, 200), (100, 1000)])
def test_private_rows_of_continuous_columns_are_caught(n: int, m: int, share: float) -> None:
    rng = np.random.default_rng([n, m])
    own, others = rng.normal(size=(n, 4)), rng.normal(size=(m, 4))
    planted = min(n, int(m * share))
    reference = np.concatenate([own[rng.permutation(n)[:planted]], others[planted:]])
    found = compare_rows(row_digests(own, SALT), row_digests(reference, SALT), 5)
    assert found.offered and found.matches == planted
    assert not own_rows_offered(row_digests(own, SALT), row_digests(others, SALT), 5)


def found_in(cells: int, n: int, m: int, trials: int = 100) -> tuple[float, int]:
    """Share of own rows with an equal, and offers found in which half of the rows are copied."""
    rng = np.random.default_rng([cells, n, m])
    weights = 1.0 / np.arange(1, cells + 1) if cells else np.ones(1)
    weights /= weights.sum()

    def draw(size: int) -> NDArray[np.int64]:
        # Without cells: a continuous population, in which no row comes twice.
        return rng.choice(cells, size, p=weights) if cells else rng.integers(2**62, size=size)

    equal, found = 0.0, 0
    for _ in range(trials):
        own, copies = draw(n), min(n, m // 2)
        offer = np.concatenate([rng.permutation(own)[:copies], draw(m - copies)])
        equal += float((np.unique(own, return_counts=True)[1] == 1).sum()) / n
        found += own_rows_offered(digests_of(own), digests_of(offer), 5)
    return 1 - equal / trials, found


def test_copied_rows_are_found_as_the_page_says() -> None:
    """Half of the offer is copied: found in all populations but those where most rows repeat."""
    page = (ROOT / "docs" / "proofs" / "own-rows.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| ([\d,]+) \| (\d+) \| (\d+)% \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for population, n, m, equal, found in rows:
        cells = re.match(r"([\d,]+) cells", population)
        number = int(cells[1].replace(",", "")) if cells else 0
        got = found_in(number, int(n.replace(",", "")), int(m))
        # The same draws as the page's; a standard error of a rate is up to 5 of 100.
        assert (round(100 * got[0]), got[1]) == (int(equal), int(found)), population


def test_fewer_rows_than_the_policys_smallest_number_are_not_said() -> None:
    rng = np.random.default_rng(3)
    own = rng.normal(size=(200, 3))
    reference = np.concatenate([own[:9], rng.normal(size=(50, 3))])
    digests = row_digests(own, SALT), row_digests(reference, SALT)
    assert not own_rows_offered(*digests, 10)
    assert own_rows_offered(*digests, 9)


def test_a_row_that_is_offered_again_and_again_counts_once() -> None:
    own = digests_of(np.arange(100))
    assert compare_rows(own, digests_of(np.full(50, 7)), 5).matches == 1
    twice = digests_of(np.repeat(np.arange(50), 2))
    # a row that two people have in common is nobody whom the offer knows
    assert compare_rows(twice, digests_of(np.full(50, 7)), 5).matches == 0


# --- honest rows ------------------------------------------------------------------------------


def accused(
    n: int, m: int, weights: NDArray[np.float64], trials: int, seed: int
) -> tuple[int, int]:
    """How many honest offers are refused: by the decision, and by repeats in the table alone."""
    rng = np.random.default_rng(seed)
    both = alone = 0
    for _ in range(trials):
        own, offer = rng.multinomial(n, weights), rng.multinomial(m, weights)
        matches, found = np.minimum(own, offer).sum(), offer[own > 0].sum()
        rate = 1 - np.count_nonzero(own == 1) / n
        over = found > m * rate + 4 * math.sqrt(m * rate * (1 - rate)) + 3
        alone += bool(over) and matches >= 5
        if over:  # otherwise the first explanation holds, and the decision is no
            cells = np.arange(len(weights))
            digests = digests_of(np.repeat(cells, own)), digests_of(np.repeat(cells, offer))
            both += own_rows_offered(*digests, 5)
    return both, alone


@pytest.mark.parametrize(("n", "m"), [(30, 30), (100, 400), (300, 100), (300, 300)])
@pytest.mark.parametrize("kind", ["even", "uneven"])
def test_honest_rows_of_a_discrete_population_are_not_accused(n: int, m: int, kind: str) -> None:
    weights = np.ones(3000) if kind == "even" else 1.0 / np.arange(1, 3001)
    both, _ = accused(n, m, weights / weights.sum(), 2500, 11)
    # At a rate of 1e-4 a case of 2,500 trials has .25 refusals: above 3 with probability 1.3e-4.
    assert both <= 3


def test_repeats_in_the_table_alone_would_accuse_honest_rows() -> None:
    """The control: a small table without an equal pair says little of how rare pairs are."""
    both, alone = accused(30, 600, np.ones(1000) / 1000, 400, 5)
    # .64 on the page, with a standard error of 2.4 points here.
    assert abs(alone / 400 - 0.64) < 4 * 0.024
    assert both == 0


@pytest.mark.parametrize("single", [0, 60])
def test_the_bound_of_dealing_is_above_the_law(single: int) -> None:
    """Rows of a pool in which 60 have one equal each, dealt at random: the law that is bounded."""
    rng = np.random.default_rng(2)
    cells = np.concatenate([np.repeat(np.arange(60), 2), np.arange(60, 60 + single)])
    n, trials = len(cells) // 2, 40_000
    dealt = np.argsort(rng.random((trials, len(cells))), axis=1)[:, :n]
    own = np.zeros((trials, len(cells)), dtype=np.int64)
    np.put_along_axis(own, dealt, 1, axis=1)
    matches = (own[:, 0:120:2] != own[:, 1:120:2]).sum(axis=1)
    for k in (34, 40, 44, 60):
        # k pairs on both sides, the other pairs shared out evenly.
        one = np.concatenate([np.arange(k), np.repeat(np.arange(k, 60, 2), 2)])
        two = np.concatenate([np.arange(k), np.repeat(np.arange(k + 1, 60, 2), 2)])
        one = np.concatenate([one, np.arange(60, 60 + single, 2)])
        two = np.concatenate([two, np.arange(61, 60 + single, 2)])
        found = compare_rows(digests_of(one), digests_of(two), 1)
        rate = float((matches >= k).mean())
        # The rate's standard error is below .0025 and, where it is zero, 1e-4 is its upper limit.
        assert found.matches == k
        assert found.chance >= rate - 4 * math.sqrt(rate * (1 - rate) / trials)
    assert found.chance < 1e-9


def test_a_design_of_all_levels_is_not_accused() -> None:
    """Every row of the table is in it, and equal rows in the table say that this is no wonder."""
    rng = np.random.default_rng(9)
    design = np.stack(np.meshgrid(*[[0.0, 1.0]] * 10), axis=-1).reshape(-1, 10)
    own = design[rng.integers(len(design), size=400)]
    digests = row_digests(own, SALT), row_digests(design, SALT)
    found = compare_rows(*digests, 5)
    assert found.found > 300
    assert not found.offered
    # The other explanation alone would not do.
    assert _chance(_counts(*digests)) < LEVEL


def test_empty_tables_offer_nothing() -> None:
    none, some = digests_of(np.arange(0)), digests_of(np.arange(9))
    assert not own_rows_offered(none, some, 1)
    assert not own_rows_offered(some, none, 1)
