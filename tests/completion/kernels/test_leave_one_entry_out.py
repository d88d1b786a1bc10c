"""Each entry left out for one step: the textbook for all entries, ends, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.completion.kernels.low_rank import (
    hard_predictions,
    leave_one_out_hard,
    leave_one_out_soft,
    soft_predictions,
)
from consilience.exceptions import DataError, ParameterError
from tests.reference import leave_one_entry_out as textbook


def matrix(n: int, p: int, rank: int, seed: int = 0, noise: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, p))
    return common + noise * rng.standard_normal((n, p))


@pytest.mark.parametrize(("n", "p"), [(9, 7), (7, 12), (20, 5)])
def test_hard_equals_fitting_again(n: int, p: int) -> None:
    x = matrix(n, p, 3)
    ranks = list(range(min(n, p)))
    for rank, found in zip(ranks, hard_predictions(x, ranks), strict=True):
        np.testing.assert_allclose(found, textbook.hard(x, rank), rtol=1e-10, atol=1e-10)
    errors = leave_one_out_hard(x)
    assert errors.parameters.tolist() == ranks
    assert errors.n_entries == n * p
    by_hand = [((textbook.hard(x, rank) - x) ** 2).mean() for rank in ranks]
    np.testing.assert_allclose(errors.errors, by_hand, rtol=1e-10)


@pytest.mark.parametrize(("n", "p"), [(9, 7), (7, 12), (20, 5)])
def test_soft_equals_fitting_again(n: int, p: int) -> None:
    x = matrix(n, p, 3)
    largest = np.linalg.norm(x, 2)
    alphas = [1.1 * largest, 0.5 * largest, 0.1 * largest, 1e-3 * largest]
    for alpha, found in zip(alphas, soft_predictions(x, alphas), strict=True):
        np.testing.assert_allclose(found, textbook.soft(x, alpha), rtol=1e-10, atol=1e-10)
    errors = leave_one_out_soft(x, alphas).errors
    assert errors[0] == pytest.approx((x**2).mean())
    assert errors[2] == pytest.approx(((textbook.soft(x, alphas[2]) - x) ** 2).mean())


def test_some_ranks_are_those_among_all() -> None:
    x = matrix(15, 11, 4)
    every = leave_one_out_hard(x).errors
    np.testing.assert_allclose(leave_one_out_hard(x, [2, 3, 9]).errors, every[[2, 3, 9]])


def test_as_printed_is_another_formula() -> None:
    x = matrix(8, 6, 2)
    found = next(hard_predictions(x, [3], variant="as_printed"))
    exact = next(hard_predictions(x, [3]))
    by_hand = [[textbook.printed(x, 3, i, j) for j in range(6)] for i in range(8)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-10, atol=1e-12)
    assert np.abs(found - exact).max() > 0.1
    soft = leave_one_out_soft(x, [0.5]).errors
    assert leave_one_out_soft(x, [0.5], variant="as_printed").errors[0] != pytest.approx(soft[0])


def test_a_clear_rank() -> None:
    """The exact form falls steeply to the rank and is flat beyond it; the printed one turns."""
    x = matrix(60, 40, 4, noise=0.3)
    exact = leave_one_out_hard(x, range(12)).errors
    assert exact[4] < 0.2 * exact[3]
    assert abs(np.diff(exact[4:]) / exact[4]).max() < 0.05
    assert leave_one_out_hard(x, variant="as_printed").errors.argmin() == 4


def test_an_entry_that_decides_alone_has_no_prediction() -> None:
    x = matrix(6, 4, 2)
    errors = leave_one_out_hard(x, range(5)).errors
    assert np.isfinite(errors[:4]).all()
    assert np.isinf(errors[4])  # rank 4: each row is fitted by its own entries
    alone = np.diag([3.0, 2.0, 1.0])
    assert np.isinf(leave_one_out_hard(alone, [1]).errors).all()
    assert np.isinf(leave_one_out_hard(x[:1], [0, 1]).errors).tolist() == [False, True]
    assert np.isinf(leave_one_out_hard(x[:, :1], [0, 1]).errors).tolist() == [False, True]


def test_ranks_above_that_of_the_matrix_add_nothing() -> None:
    x = matrix(10, 8, 3, noise=0.0)
    errors = leave_one_out_hard(x, [3, 5]).errors
    assert errors.max() < 1e-20
    assert leave_one_out_hard(np.zeros((4, 3)), [0, 1]).errors.tolist() == [0.0, 0.0]


def test_refusals() -> None:
    x = matrix(5, 4, 1)
    with pytest.raises(ParameterError, match="rank must be a whole number from 0 to 4"):
        leave_one_out_hard(x, [5])
    with pytest.raises(ParameterError, match="ranks must be increasing"):
        leave_one_out_hard(x, [2, 1])
    with pytest.raises(ParameterError, match="variant must be"):
        leave_one_out_hard(x, variant="printed")
    for alpha in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ParameterError, match="alpha must be a number above 0"):
            leave_one_out_soft(x, [alpha])
    x[0, 0] = np.nan
    with pytest.raises(DataError, match="needs a complete matrix"):
        leave_one_out_hard(x)
    with pytest.raises(DataError, match="rows and columns"):
        leave_one_out_hard(np.zeros((0, 3)))
