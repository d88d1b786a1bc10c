"""Counts of label tuples where hardly any tuple is frequent."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.kernels.ensemble import (
    distinct_patterns,
    summarise_by_turns,
    summarise_site,
    turns,
)


def noisy_labels(n: int, owners: list[int], wrong: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Three classes; models of each site give a wrong label with their chance."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=n)
    errors = rng.random((n, len(owners))) < np.array(wrong)
    return truth, np.where(errors, rng.integers(3, size=errors.shape), truth[:, None])


def parameters(m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [3 * np.eye(3) + rng.normal(scale=0.01, size=(3, 3)) for _ in range(m)]


def test_sites_take_turns() -> None:
    assert turns(["a", "a", "a", "b", "c", "c"]).tolist() == [0, 3, 4, 1, 5, 2]
    assert turns([]).tolist() == []


@pytest.mark.parametrize("least", [1, 10])
def test_frequent_tuples_are_counted_as_elsewhere(least: int) -> None:
    _, labels = noisy_labels(300, [0, 1, 2], [0.05] * 3)
    ours = summarise_by_turns(labels, parameters(3), "abc", least)
    theirs = summarise_site(labels, parameters(3), least)
    assert ours.how == theirs.how == ("exact" if least == 1 else "merged")
    assert np.array_equal(ours.table.patterns, theirs.table.patterns)
    assert np.array_equal(ours.table.counts, theirs.table.counts)
    assert np.array_equal(ours.cells, theirs.cells)


def test_rows_with_rare_tuples_are_not_all_counted_with_the_one_that_is_frequent() -> None:
    owners = [0] * 4 + [1] * 4 + [2] * 4
    truth, labels = noisy_labels(200, owners, [0.3] * 12)
    labels[:12] = 0  # one frequent tuple
    truth[:12] = 0
    everything = summarise_site(labels, parameters(12), 10)
    assert len(everything.table.counts) == 1, "the control: it takes all rows"
    found = summarise_by_turns(labels, parameters(12), owners, 10)
    assert found.how == "coarsened"
    assert found.table.counts.min() >= 10
    assert found.table.counts.sum() == len(labels)
    assert np.array_equal(np.bincount(found.cells), found.table.counts)
    # Cells are whole tuples in the order of the models; most rows are in one of their class.
    table, _ = distinct_patterns(found.table.patterns, [3] * 12, found.table.counts)
    assert np.array_equal(table.patterns, found.table.patterns)
    called = found.table.patterns[found.cells, 0]
    assert np.mean(called == truth) > 0.7


def test_the_first_models_are_of_several_sites() -> None:
    """The first site's models are noise: by themselves they would say nothing."""
    owners = [0] * 3 + [1] * 3 + [2] * 3
    truth, labels = noisy_labels(200, owners, [1.0] * 3 + [0.2] * 6)
    found = summarise_by_turns(labels, parameters(9), owners, 10)
    assert found.how == "coarsened" and found.prefix_length >= 2
    second = found.table.patterns[found.cells, 3]
    assert np.mean(second == truth) > 0.7
    alone = summarise_by_turns(labels, parameters(9), [0] * 9, 10)
    assert np.mean(alone.table.patterns[alone.cells, 3] == truth) < 0.6


def test_a_site_of_few_rows_counts_nothing() -> None:
    labels = np.array([[0, 1], [1, 2], [2, 0]])
    found = summarise_by_turns(labels, parameters(2), "ab", 10)
    assert found.how == "none" and len(found.table.counts) == 0
    assert found.table.patterns.shape == (0, 2)
    assert (found.cells == -1).all()
    empty = summarise_by_turns(np.empty((0, 2), dtype=int), parameters(2), "ab", 10)
    assert empty.how == "none"
