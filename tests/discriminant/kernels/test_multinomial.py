"""Multinomial logistic regression: its minimum, its derivatives, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from consilience.discriminant.kernels import multinomial
from consilience.exceptions import DataError


@pytest.mark.parametrize("m", [2, 3, 5])
@pytest.mark.parametrize("c", [0.01, 1.0, 1e4])
def test_the_kernel_minimises_what_sklearn_states(m: int, c: float) -> None:
    rng = np.random.default_rng(m)
    x = rng.normal(size=(300, 5))
    y = np.argmax(x[:, :1] * np.arange(m) + rng.gumbel(size=(300, m)), axis=1)
    coef, intercept = multinomial.as_rows(multinomial.fit(x, y, m, 1 / c))
    base = LogisticRegression(C=c, tol=1e-14, max_iter=1000, solver="newton-cholesky").fit(x, y)
    np.testing.assert_allclose(coef, base.coef_, atol=1e-8)
    np.testing.assert_allclose(intercept, base.intercept_, atol=1e-8)


@pytest.mark.parametrize("m", [2, 3, 11])
@pytest.mark.parametrize("size", [0.1, 800.0])
def test_log_softmax_row_by_row(m: int, size: float) -> None:
    scores = size * np.random.default_rng(m).normal(size=(37, m))
    scores[::5, 1] = -np.inf
    found = multinomial.log_softmax(scores)
    wanted = scores - logsumexp(scores, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13 * size)
    alone = np.vstack([multinomial.log_softmax(row[None]) for row in scores])
    np.testing.assert_array_equal(alone, found)


@pytest.mark.parametrize("m", [2, 4])
def test_gradient_and_curvature_are_differences_of_the_loss(m: int) -> None:
    rng = np.random.default_rng(0)
    x, y = multinomial.design_of(rng.normal(size=(40, 3))), rng.integers(0, m, size=40)
    q, phi = multinomial.contrasts(m), rng.normal(size=(m - 1, 4))
    found = multinomial.pieces(x, y, phi, q)
    step = 1e-5
    for i in range(phi.size):
        move = np.zeros(phi.size)
        move[i] = step
        up, down = (
            multinomial.pieces(x, y, phi + sign * move.reshape(phi.shape), q) for sign in (1, -1)
        )
        assert found.gradient[i] == pytest.approx((up.loss - down.loss) / (2 * step), abs=1e-6)
        np.testing.assert_allclose(
            found.curvature[i], (up.gradient - down.gradient) / (2 * step), atol=1e-6
        )


@pytest.mark.parametrize("m", [2, 3, 7])
def test_contrasts_sum_to_zero_and_keep_the_penalty(m: int) -> None:
    q = multinomial.contrasts(m)
    np.testing.assert_allclose(q.sum(axis=0), 0.0, atol=1e-12)
    wanted = np.eye(m - 1) if m > 2 else np.array([[0.5]])
    np.testing.assert_allclose(q.T @ q, wanted, atol=1e-12)


def test_coefficients_that_are_not_determined_are_refused() -> None:
    """Without a ridge, two equal columns."""
    x = np.random.default_rng(0).normal(size=(30, 1)) @ np.ones((1, 2))
    zero = multinomial.Pieces(0.0, np.ones(2), np.zeros((2, 2)))
    with pytest.raises(DataError, match="not determined"):
        multinomial.newton_step(zero)
    codes = np.arange(30) % 2
    fitted = multinomial.fit(x, codes, 2, 1e-3)
    np.testing.assert_allclose(fitted[0, 1], fitted[0, 2], atol=1e-8)
