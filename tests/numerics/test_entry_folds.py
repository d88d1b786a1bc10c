"""Folds of scattered entries: sizes, and that nothing is emptied."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_folds import alone, block_folds, entry_folds, held_out_part


def random_entries(rng: np.random.Generator) -> Entries:
    """A small matrix with many rows and columns that are nearly empty."""
    n, p = rng.integers(2, 9, size=2)
    x = np.where(rng.random((n, p)) < rng.uniform(0.2, 1.0), 1.0, np.nan)
    x[0, 0] = 1.0
    return Entries.of(x)


def emptied(entries: Entries, left: Entries) -> bool:
    return bool(
        ((left.row_counts == 0) & (entries.row_counts > 1)).any()
        or ((left.column_counts == 0) & (entries.column_counts > 1)).any()
    )


def test_sizes_are_equal_and_nothing_is_emptied() -> None:
    rng = np.random.default_rng(0)
    tried = 0
    for _ in range(300):
        entries = random_entries(rng)
        free = ~alone(entries)
        if free.sum() < 2:
            continue
        n_splits = int(rng.integers(2, min(int(free.sum()), 7) + 1))
        folds = entry_folds(entries, n_splits, rng)
        sizes = np.bincount(folds[free], minlength=n_splits)
        assert sizes.max() - sizes.min() <= 1 and sizes.min() >= 1
        assert (folds[~free] == -1).all() and (folds[free] >= 0).all()
        assert not any(emptied(entries, entries.take(folds != f)) for f in range(n_splits))
        tried += 1
    assert tried > 200


def test_blocks_are_held_out_together_and_nothing_is_emptied() -> None:
    """Also in sparse matrices, where a column may have its entries in one fold by chance."""
    rng = np.random.default_rng(6)
    tried = spared = 0
    for _ in range(300):
        entries = random_entries(rng)
        blocks = rng.integers(0, 3, entries.shape[1])
        blocks = np.unique(blocks, return_inverse=True)[1]
        try:
            folds = block_folds(entries, 2, blocks, rng)
        except (DataError, ParameterError):  # fewer than two parts can be held out
            continue
        part = entries.rows * 3 + blocks[entries.columns]
        for one in np.unique(part):
            assert len(set(folds[part == one].tolist()) - {-1}) <= 1
        assert not any(emptied(entries, entries.take(folds != f)) for f in range(2))
        tried += 1
        spared += bool((folds == -1).any())
    assert tried > 150 and spared > 20
    dense = Entries.of(np.ones((30, 12)))
    sizes = np.bincount(block_folds(dense, 3, np.arange(12) // 4, rng))
    assert sizes.tolist() == [120, 120, 120]


def test_random_folds_would_empty_rows_here() -> None:
    # the control of the test above: the same matrices, folds shuffled without care
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(50):
        entries = random_entries(rng)
        folds = rng.permutation(np.arange(entries.n_observed) % 3)
        found += any(emptied(entries, entries.take(folds != f)) for f in range(3))
    assert found > 10


@pytest.mark.parametrize("n_splits", [2, 3, 5, 7])
@pytest.mark.parametrize("size", [2, 4, 7, 22])
def test_rings_of_pairs(n_splits: int, size: int) -> None:
    # two entries in every row and column: the pairs form one ring, the hardest case
    i = np.arange(size)
    entries = Entries.from_triplets(
        np.concatenate([i, i]), np.concatenate([i, (i + 1) % size]), np.ones(2 * size)
    )
    n_splits = min(n_splits, entries.n_observed)
    for seed in range(5):
        folds = entry_folds(entries, n_splits, np.random.default_rng(seed))
        sizes = np.bincount(folds, minlength=n_splits)
        assert sizes.max() - sizes.min() <= 1
        assert not any(emptied(entries, entries.take(folds != f)) for f in range(n_splits))


def test_long_rows_that_chance_empties_get_a_pair() -> None:
    # rows of nine entries have no pair at first, and one draw in 128 empties one of them
    entries = Entries.of(np.ones((2, 9)))
    for seed in range(200):
        folds = entry_folds(entries, 2, np.random.default_rng(seed))
        assert not any(emptied(entries, entries.take(folds != f)) for f in range(2))


def test_folds_are_uniform_where_nothing_is_at_stake() -> None:
    entries = Entries.of(np.ones((10, 12)))
    rng = np.random.default_rng(1)
    together = np.zeros((120, 120))
    draws = 2000
    for _ in range(draws):
        folds = entry_folds(entries, 5, rng)
        together += folds[:, None] == folds
    share = together[np.triu_indices(120, 1)] / draws
    # 23 of the 119 others share a fold; of 7,140 pairs the largest deviation of a binomial share
    # with standard error .0088 stays below 4.5 of it with probability .95
    assert abs(share.mean() - 23 / 119) < 1e-12
    assert np.abs(share - 23 / 119).max() < 4.5 * 0.0089


def test_same_seed_same_folds() -> None:
    entries = Entries.of(np.ones((6, 7)))
    first = entry_folds(entries, 4, np.random.default_rng(3))
    assert (first == entry_folds(entries, 4, np.random.default_rng(3))).all()
    assert (first != entry_folds(entries, 4, np.random.default_rng(4))).any()


def test_as_many_folds_as_entries() -> None:
    entries = Entries.of(np.ones((3, 3)))
    assert sorted(entry_folds(entries, 9, np.random.default_rng(0))) == list(range(9))


@pytest.mark.parametrize("n_splits", [1, 10, 2.0, True, "2"])
def test_number_of_folds_out_of_range(n_splits: int) -> None:
    with pytest.raises(ParameterError, match="n_splits"):
        entry_folds(Entries.of(np.ones((3, 3))), n_splits, np.random.default_rng(0))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_one_row_or_column_has_nothing_to_hold_out(shape: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="alone in its row or its column"):
        entry_folds(Entries.of(np.ones(shape)), 2, np.random.default_rng(0))
    with pytest.raises(DataError, match="no entry can be held out"):
        held_out_part(Entries.of(np.ones(shape)), 0.5, np.random.default_rng(0))


def test_part_held_out_once() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        entries = random_entries(rng)
        if alone(entries).all():
            continue
        held = held_out_part(entries, 0.3, rng)
        assert not emptied(entries, entries.take(~held)) and held.any()
    full = Entries.of(np.ones((20, 30)))
    assert held_out_part(full, 0.1, rng).sum() == 60
    with pytest.raises(ParameterError, match="share"):
        held_out_part(full, 1.0, rng)
