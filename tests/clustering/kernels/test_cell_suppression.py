"""Tables of counts by class made of large sums: what is told, and that nothing else matters."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.estimators.local_models import absorbing_rows, entries_of
from consilience.clustering.kernels import cell_suppression as tt
from consilience.wire.cell_facts import chance_facts

LIMITS = {"min_records": 10, "max_share": 0.5}


def categories(counts: dict[str, int]) -> np.ndarray:
    """One column of levels a, b, c, d."""
    return np.repeat(["abcd".index(level) for level in counts], list(counts.values()))[:, None]


def told(codes: np.ndarray, shares: np.ndarray | None = None) -> tt.ReleasedTables:
    shares = np.ones((len(codes), 1)) if shares is None else shares
    return tt.suppress_cells(entries_of(codes, "latent-class", (4,)), shares, **LIMITS)


def test_cells_of_enough_records_are_told_by_themselves() -> None:
    found = told(categories({"a": 40, "b": 10, "c": 20, "d": 12}))
    assert found.values.tolist() == [[40, 10, 20, 12]]
    assert (found.kinds == tt.OWN).all()


def test_small_cells_that_are_enough_together_share_their_sum() -> None:
    found = told(categories({"a": 40, "b": 9, "c": 3, "d": 20}))
    assert found.values.tolist() == [[40, 6, 6, 20]]
    assert found.kinds.tolist() == [[tt.OWN, tt.TOGETHER, tt.TOGETHER, tt.OWN]]


def test_small_cells_are_counted_in_the_largest_whatever_is_in_them() -> None:
    tables = [
        told(categories({"a": 40 - b - c, "b": b, "c": c, "d": 20}))
        for b, c in [(0, 0), (1, 0), (5, 4)]
    ]
    for found in tables:
        assert np.array_equal(found.values, tables[0].values)
        assert found.kinds.tolist() == [[tt.LARGEST, tt.HIDDEN, tt.HIDDEN, tt.OWN]]
    assert tables[0].values.sum() == 60


def test_rows_too_small_in_some_classes_go_together() -> None:
    codes = categories({"a": 6, "b": 6, "c": 40, "d": 0})
    first = np.arange(len(codes)) % 2 == 0
    missing = np.where(codes[:, 0] == 2, -1, codes[:, 0])[:, None]
    shares = np.column_stack([first, ~first]).astype(float)
    found = told(missing, shares)
    assert np.array_equal(found.values[0], found.values[1])
    assert found.told.all()
    alone = tt.suppress_cells(
        entries_of(missing, "latent-class", (4,)), shares, joining=False, **LIMITS
    )
    assert not alone.told.any()


def test_one_record_with_most_of_a_cell_is_not_told() -> None:
    codes = np.zeros((30, 60), dtype=np.int64)
    codes[:, 3:] = -1
    codes[0] = 0  # stays sixty times; all others twice
    entries = entries_of(codes, "markov-mixture", (2,))
    found = tt.suppress_cells(
        entries, np.ones((30, 1)), absorbing=absorbing_rows("markov-mixture", (2,)), **LIMITS
    )
    assert not found.told[0, 1]
    assert found.told[0, 0]


@pytest.mark.parametrize("kind", ["markov-mixture", "latent-class"])
@pytest.mark.parametrize("seed", range(12))
def test_every_sum_is_large_and_every_event_is_in_one(kind: str, seed: int) -> None:
    """Properties of the proof, on tables with many rare cells."""
    rng = np.random.default_rng(seed)
    n, s = int(rng.integers(30, 120)), 4
    codes = rng.choice(s, size=(n, 6), p=rng.dirichlet(np.full(s, 0.4)))
    codes[rng.random(codes.shape) < 0.2] = -1
    sizes = (s,) if kind == "markov-mixture" else (s,) * 6
    entries = entries_of(codes, kind, sizes)
    shares = rng.dirichlet(np.full(3, 0.3), size=n)
    absorbing = absorbing_rows(kind, sizes)
    found = tt.suppress_cells(entries, shares, absorbing=absorbing, **LIMITS)
    records, share = chance_facts(*found.sums)
    assert (records >= 10).all()
    assert (share <= 0.5).all()
    exact = tt.suppress_cells(entries, shares, min_records=1, max_share=1.0).values
    # What is added up is never more than there is: no event is in two sums.
    assert found.sums.amount.sum() <= exact.sum() * (1 + 1e-12)
    assert np.allclose(found.values.sum(), found.values[found.values >= 0].sum())


def test_no_total_shows_what_is_not_told() -> None:
    """Steps of a state that three sequences pass are counted: the class's total is whole."""
    codes = np.zeros((40, 5), dtype=np.int64)
    codes[20:, 2:] = 1
    codes[:3, 3] = 2
    entries = entries_of(codes, "markov-mixture", (3,))
    found = tt.suppress_cells(
        entries, np.ones((40, 1)), absorbing=absorbing_rows("markov-mixture", (3,)), **LIMITS
    )
    assert not found.told[0, 3]
    steps = found.values[0, 3:]
    assert steps.sum() == pytest.approx(40 * 4)


def test_fixed_point_of_em_where_every_cell_is_large() -> None:
    codes = np.random.default_rng(0).integers(3, size=(300, 12))
    shares = np.random.default_rng(1).dirichlet(np.ones(2), size=300)
    entries = entries_of(codes, "markov-mixture", (3,))
    guarded = tt.suppress_cells(entries, shares, **LIMITS)
    exact = tt.suppress_cells(entries, shares, min_records=1, max_share=1.0)
    assert np.allclose(guarded.values, exact.values)
