"""Errors of entries given the rest of their row: textbook, edges, and what they choose."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.completion.kernels.conditional_normal import (
    Moments,
    conditional_entry_errors,
    directions_of,
)
from consilience.completion.kernels.ppca import path_from_moments
from consilience.exceptions import DataError
from tests.reference.rest_of_row import squared_errors


def moments(x: np.ndarray) -> Moments:
    mean = x.mean(axis=0)
    return Moments(len(x), mean, (x - mean).T @ (x - mean))


def errors(fitted: np.ndarray, judged: np.ndarray, most: int) -> np.ndarray:
    own = moments(fitted)
    return conditional_entry_errors(own.mean, directions_of(own), moments(judged), most)


@pytest.mark.parametrize("p", [2, 3, 7])
def test_textbook(p: int) -> None:
    rng = np.random.default_rng(p)
    mix = rng.normal(size=(p, p))
    fitted = rng.normal(size=(40, p)) @ mix + 100.0
    judged = rng.normal(size=(25, p)) @ mix + 100.3
    found = errors(fitted, judged, p - 1)
    wanted = [squared_errors(fitted, judged, rank).sum() for rank in range(p)]
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def test_more_columns_than_rows() -> None:
    rng = np.random.default_rng(1)
    fitted, judged = rng.normal(size=(6, 9)), rng.normal(size=(4, 9))
    wanted = [squared_errors(fitted, judged, rank).sum() for rank in range(5)]
    np.testing.assert_allclose(errors(fitted, judged, 4), wanted, rtol=1e-9)


def test_a_column_that_is_a_direction_by_itself_is_predicted_by_its_mean() -> None:
    """Nothing of it is in the other columns, so least squares of least norm say the mean."""
    own = Moments(50, np.zeros(3), 50 * np.diag([9.0, 4.0, 1.0]))
    found = conditional_entry_errors(own.mean, np.eye(3), own, 2)
    np.testing.assert_allclose(found, 50 * 14.0)


@pytest.mark.parametrize("most", [-1, 3])
def test_ranks_out_of_range(most: int) -> None:
    with pytest.raises(DataError, match="two columns or more"):
        conditional_entry_errors(np.zeros(3), np.eye(3), Moments(5, np.zeros(3), np.eye(3)), most)


def chosen(seed: int, conditional: bool) -> int:
    """Rank with the smallest error on columns of one scale, of which four directions are common.

    `conditional`: by conditional means under probabilistic components instead.
    """
    rng = np.random.default_rng(seed)
    p, n = 12, 300
    x = rng.normal(size=(2 * n, 4)) @ rng.normal(size=(4, p)) + rng.normal(size=(2 * n, p))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    fitted, judged = x[:n], x[n:]
    if not conditional:
        return int(errors(fitted, judged, p - 1).argmin())
    own, gap = moments(fitted), judged - fitted.mean(axis=0)
    found = []
    for model in path_from_moments(own.mean, own.covariance, n, range(p)):
        k = model.precision()
        found.append(((gap @ k / np.diag(k)) ** 2).sum())
    return int(np.argmin(found))


def test_what_it_chooses() -> None:
    """Least squares find the four directions; conditional means, a control, take many more.

    20 tables. Scaling makes noise differ by column, for which the noise of every further direction
    makes up under a model with one noise variance.
    """
    right = [chosen(seed, False) for seed in range(20)]
    control = [chosen(seed, True) for seed in range(20)]
    assert sum(rank == 4 for rank in right) >= 18, right
    assert np.mean(control) > 6, control
