"""Simulated sequences of sites whose subjects fall into Markov classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from consilience.datasets.simulate_treatments import draw_chains
from consilience.exceptions import ParameterError
from replications.ensemble_clustering.simulate_sequences import (
    SHORT,
    simulate_sequences,
    state_names,
)


def test_two_sites_of_the_source() -> None:
    data = simulate_sequences(rng=np.random.default_rng(0))
    assert np.bincount(data.site).tolist() == [2164, 3158]
    assert (data.n_sites, data.n_states) == (2, 5)
    lengths = (data.wide >= 0).sum(axis=1)
    assert (lengths.min(), lengths.max()) == (20, 40)
    assert (data.wide[:, :20] >= 0).all()
    assert data.initial.shape == (4, 5)
    # 5,322 labels: five standard errors of a quarter are 0.030.
    np.testing.assert_allclose(np.bincount(data.label) / 5322, 0.25, atol=0.03)
    assert len(data.at(1)) == 3158


def test_chains_have_their_chances() -> None:
    data = simulate_sequences(rng=np.random.default_rng(1), sizes=(3000,), n_classes=2, n_states=3)
    for k in range(2):
        own = data.wide[data.label == k]
        first = np.bincount(own[:, 0], minlength=3) / len(own)
        np.testing.assert_allclose(first, data.initial[k], atol=0.07)  # five standard errors
        pairs = np.column_stack([own[:, :-1].ravel(), own[:, 1:].ravel()])
        pairs = pairs[(pairs >= 0).all(axis=1)]
        counts = np.zeros((3, 3))
        np.add.at(counts, tuple(pairs.T), 1)
        left = counts.sum(axis=1, keepdims=True)
        error = np.sqrt(data.transition[k] * (1 - data.transition[k]) / left)
        assert (abs(counts / left - data.transition[k]) <= 5 * error + 1e-12).all()


def test_labels_are_told_from_the_truth() -> None:
    rng = np.random.default_rng(2)
    long = simulate_sequences(rng=rng, sizes=(300, 300), proportions=1.0, concentration=0.3)
    short = simulate_sequences(rng=rng, sizes=(300, 300), lengths=SHORT, missing=0.3)
    # Any rule falls short on short sequences with gaps, none does on long ones of classes apart.
    assert (long.oracle() == long.label).mean() > 0.98
    right = (short.oracle() == short.label).mean()
    assert 0.5 < right < 0.98
    assert not np.allclose(long.proportions[0], long.proportions[1])


def test_shares_and_gaps() -> None:
    rng = np.random.default_rng(3)
    shares = [[1.0, 0.0], [0.0, 1.0]]
    data = simulate_sequences(
        rng=rng, sizes=(5, 7), n_classes=2, lengths=(0, 3), proportions=shares, missing=0.5
    )
    assert data.label.tolist() == [0] * 5 + [1] * 7
    np.testing.assert_array_equal(data.oracle(), data.label)
    same = simulate_sequences(rng=rng, sizes=(5, 7), n_classes=2, proportions=[0.3, 0.7])
    np.testing.assert_array_equal(same.proportions, [[0.3, 0.7]] * 2)
    frame = data.to_frame(1)
    assert len(frame) == 7
    assert list(frame.columns) == ["t1", "t2", "t3"][: data.wide.shape[1]]
    cells = frame.to_numpy()
    assert set(cells[data.at(1) >= 0]) <= set("abcde")
    assert all(cell is None or cell != cell for cell in cells[data.at(1) < 0])
    assert len(data.to_frame()) == 12


def test_names_of_states() -> None:
    assert state_names(3) == ("a", "b", "c")
    many = state_names(101)
    assert (many[0], many[100], len(set(many))) == ("s000", "s100", 101)


def test_chains_of_no_length() -> None:
    none = draw_chains(
        np.ones((1, 1)), np.ones((1, 1, 1)), np.zeros(2, int), np.zeros(2, int), None
    )
    assert none.shape == (2, 0)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"sizes": ()}, "sizes"),
        ({"sizes": (-1,)}, "sizes"),
        ({"n_classes": 0}, "n_classes"),
        ({"n_states": 0}, "n_states"),
        ({"lengths": (5, 4)}, "lengths"),
        ({"lengths": (-1, 4)}, "lengths"),
        ({"proportions": 0.0}, "proportions"),
        ({"proportions": [0.5, 0.5]}, "proportions"),
        ({"proportions": [0.5, 0.5, 0.5, 0.5]}, "proportions"),
        ({"proportions": [-1.0, 1.0, 0.5, 0.5]}, "proportions"),
        ({"concentration": 0.0}, "concentration"),
        ({"missing": 1.0}, "missing"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(ParameterError, match=f"{name} must be"):
        simulate_sequences(rng=np.random.default_rng(0), **settings)
