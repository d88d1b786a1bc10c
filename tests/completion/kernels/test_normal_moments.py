"""Moments of rows with gaps: textbook, complete rows, edges, and gaps that are not by chance."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.completion.kernels import conditional_normal as module
from consilience.completion.kernels.conditional_normal import normal_moments
from consilience.exceptions import DataError
from tests.reference.rest_of_row import normal_em

RNG = np.random.default_rng(3)
MIX = RNG.normal(size=(4, 4))


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)) @ MIX + [0.0, 10.0, -3.0, 1.0]


def with_gaps(x: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(x.shape) < share, np.nan, x)


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_textbook(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", batch)
    x = with_gaps(rows(40), 0.3)
    for steps in (1, 7):
        found = normal_moments(x, tol=0.0, max_iter=steps)
        mean, covariance = normal_em(x, steps)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance, covariance, atol=1e-9)
        assert found.n_iter == steps and not found.converged


def test_complete_rows_give_their_own_moments() -> None:
    x = rows(30)
    found = normal_moments(x)
    np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(found.covariance, np.cov(x.T, bias=True), rtol=1e-12)
    assert found.converged and found.n_iter == 0


def test_converged_and_positive() -> None:
    for share in (0.05, 0.5, 0.7):
        found = normal_moments(with_gaps(rows(30), share))
        assert found.converged
        assert np.linalg.eigvalsh(found.covariance)[0] > 0


def test_constant_columns_and_rows_without_values() -> None:
    x = with_gaps(rows(40), 0.2)
    x[:, 2] = 7.0
    x[5] = np.nan
    x[6:9, 2] = np.nan
    found = normal_moments(x)
    assert found.mean[2] == pytest.approx(7.0)
    assert not found.covariance[2].any() and not found.covariance[:, 2].any()
    assert np.isfinite(found.covariance).all()


def test_twin_columns() -> None:
    """Columns that are equal leave no inverse; what one says of the other is shrunken alone."""
    x = rows(60)
    x[:, 1] = x[:, 0]
    found = normal_moments(with_gaps(x, 0.2))
    assert np.isfinite(found.covariance).all() and found.converged


@pytest.mark.parametrize("x", [np.full((3, 2), np.nan), np.array([[1.0, np.nan]] * 4)])
def test_a_column_without_values(x: np.ndarray) -> None:
    with pytest.raises(DataError, match="no value at all"):
        normal_moments(x)


def test_gaps_that_hang_on_what_is_observed() -> None:
    """The second column is missing where the first is large: moments of pairs are wrong by far.

    8,000 rows of correlation .8 and variance 1; 40% missing. The error of a variance or covariance
    is about .02.
    """
    rng = np.random.default_rng(5)
    x = rng.multivariate_normal(np.zeros(2), [[1.0, 0.8], [0.8, 1.0]], size=8000)
    y = x.copy()
    y[x[:, 0] > 0.25, 1] = np.nan
    found = normal_moments(y)
    np.testing.assert_allclose(found.mean, 0.0, atol=0.06)
    np.testing.assert_allclose(found.covariance, [[1.0, 0.8], [0.8, 1.0]], atol=0.08)
    there = y[~np.isnan(y[:, 1])]
    assert there[:, 1].mean() < -0.3 and np.cov(there.T)[0, 1] < 0.45, "a control"


def test_few_rows_of_many_columns() -> None:
    """60 rows, 15 columns, 30% missing by chance: distance of correlations to the truth.

    Means of 12 tables: 2.1 where all is there, 2.3 here, 3.0 by pairs of observed columns, whose
    matrix besides is in none of them positive.
    """
    rng = np.random.default_rng(1)
    found: dict[str, list[float]] = {"all": [], "here": [], "pairs": []}
    indefinite = 0
    for _ in range(12):
        mix = rng.normal(size=(15, 4))
        true = mix @ mix.T + np.eye(15)
        unit = np.sqrt(np.diag(true))
        true = true / np.outer(unit, unit)
        x = rng.multivariate_normal(np.zeros(15), true, size=60)
        y = np.where(rng.random(x.shape) < 0.3, np.nan, x)
        z, seen = np.nan_to_num(y - np.nanmean(y, axis=0)), (~np.isnan(y)).astype(float)
        pairs = z.T @ z / (seen.T @ seen)
        indefinite += np.linalg.eigvalsh(pairs)[0] < 0
        for name, matrix in (
            ("all", np.cov(x.T, bias=True)),
            ("here", normal_moments(y).covariance),
            ("pairs", pairs),
        ):
            found[name].append(float(np.linalg.norm(matrix - true)))
    means = {name: np.mean(values) for name, values in found.items()}
    assert means["all"] < means["here"] < 0.87 * means["pairs"], means
    assert means["here"] < 1.25 * means["all"] and indefinite >= 10, (means, indefinite)
