"""How far a person shows in means and products: the best test against `Limits.columns_for`."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import multigammaln
from scipy.stats import norm

from consilience.wire.support import Limits

Array = np.ndarray
STRICT = Limits(max_detection=1.0)


def log_wishart(a: Array, degrees: int) -> float:
    p = len(a)
    return float(
        (degrees - p - 1) / 2 * np.linalg.slogdet(a)[1]
        - np.trace(a) / 2
        - degrees * p / 2 * np.log(2)
        - multigammaln(degrees / 2, p)
    )


def log_mean(mean: Array, n: int) -> float:
    return float(-n * (mean @ mean) / 2 - len(mean) / 2 * np.log(2 * np.pi / n))


def log_ratio(rows: Array, x: Array) -> float:
    """Log likelihood ratio of means and products of standard normal rows: x among them, or not."""
    n, p = rows.shape
    mean = rows.mean(axis=0)
    a = (rows - mean).T @ (rows - mean)
    without = (n * mean - x) / (n - 1), a - n / (n - 1) * np.outer(x - mean, x - mean)
    if np.linalg.eigvalsh(without[1])[0] <= 0:
        return -np.inf
    member = log_mean(without[0], n - 1) + log_wishart(without[1], n - 2)
    return member + p * np.log(n / (n - 1)) - log_mean(mean, n) - log_wishart(a, n - 1)


def smallest(p: int, limits: Limits = STRICT) -> int:
    return next(n for n in range(4, 10_000) if limits.columns_for(n, products=True) >= p)


@pytest.mark.parametrize(("p", "n"), [(3, 15), (8, 40), (10, 60), (15, 128), (20, 220)])
def test_the_best_guess_of_who_is_among_the_rows(p: int, n: int) -> None:
    """At most Phi(1/2) = .69 right, at the smallest number of rows; 600 tables: error .019."""
    assert smallest(p) == n
    rng, right = np.random.default_rng(p), 0
    for k in range(600):
        rows, x = rng.normal(size=(n, p)), rng.normal(size=p)
        if k % 2:
            rows[0] = x
        right += (log_ratio(rows, x) > 0) == bool(k % 2)
    # The columns that (3) bounds show less in (2).
    wanted = norm.cdf(np.sqrt(p / n + p**2 / (2 * n)) / 2)
    assert wanted < norm.cdf(0.5) + 0.001
    assert abs(right / 600 - wanted) < 3 * 0.019


@pytest.mark.parametrize(("p", "n"), [(3, 15), (8, 40), (20, 220)])
def test_the_best_guess_of_one_more_value(p: int, n: int) -> None:
    """A fair 0/1 column of a member whose other columns are known; 600 tables: error .019."""
    rng, right = np.random.default_rng(p), 0
    for _ in range(600):
        rows = rng.normal(size=(n, p))
        rows[:, -1] = rng.choice([-1.0, 1.0], size=n)
        other = np.r_[rows[0, :-1], -rows[0, -1]]
        right += log_ratio(rows, rows[0]) > log_ratio(rows, other)
    wanted = norm.cdf(np.sqrt(p / (n - p)))
    assert wanted < norm.cdf(0.5) + 0.001
    assert abs(right / 600 - wanted) < 3 * 0.019


def test_columns_that_rows_may_tell_of() -> None:
    free, one = Limits(), Limits(min_records=1, max_detection=1.0)
    for n in (10, 40, 300, 10_000):
        assert free.columns_for(n, products=True) == n // 2
        assert free.columns_for(n, products=False) == n == 2 * STRICT.columns_for(n, products=False)
        assert STRICT.columns_for(n, products=True) <= n // 5
        assert one.columns_for(n, products=True) > 10**9
    assert [STRICT.columns_for(n, products=True) for n in (39, 40, 59, 60)] == [7, 8, 9, 10]
    # 10 columns with products use up 60 rows; of 100 rows 20 more may have their means told
    given = ((60, 10, 0), (60, 10, 1), (60, 0, 30), (60, 0, 31), (100, 10, 20), (100, 10, 21))
    allowed = [STRICT.allow_columns(*one) for one in given]
    assert allowed == [True, False, True, False, True, False]
    assert one.allow_columns(10, 10, 9)
    for d in (2.0, 100.0):
        assert Limits(max_detection=d).columns_for(40, products=False) == 40
