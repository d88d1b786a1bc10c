"""Singular value decompositions, entries of a low-rank matrix, centres."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.extmath import svd_flip

from consilience.completion.kernels.low_rank import LowRankFit, thin_svd
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries, centre_of


@pytest.mark.parametrize("shape", [(60, 7), (7, 60), (9, 9), (1, 4), (4, 1), (1, 1)])
def test_thin_svd_is_lapacks_with_scikit_learns_signs(shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    u, s, v = thin_svd(x)
    other_u, other_s, other_vt = np.linalg.svd(x, full_matrices=False)
    other_u, other_vt = svd_flip(other_u, other_vt, u_based_decision=False)
    np.testing.assert_allclose(s, other_s, rtol=1e-12)
    np.testing.assert_allclose(u, other_u, atol=1e-10)
    np.testing.assert_allclose(v.T, other_vt, atol=1e-10)


def test_small_singular_values_do_not_come_from_the_gram_matrix() -> None:
    rng = np.random.default_rng(1)
    u, v = np.linalg.qr(rng.normal(size=(80, 3)))[0], np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = (u * [1.0, 1e-3, 1e-9]) @ v.T
    assert thin_svd(x)[1][2] == pytest.approx(1e-9, rel=1e-5)
    shorter = np.linalg.eigvalsh(x.T @ x)[0]  # 1e-18 beside 1 is nothing but rounding
    assert abs(shorter / 1e-18 - 1.0) > 1e-2


def test_entries_of_a_fit_few_and_many() -> None:
    rng = np.random.default_rng(2)
    fit = LowRankFit(*thin_svd(rng.normal(size=(30, 20)), 4), 0.0)
    i, j = rng.integers(0, 30, 300), rng.integers(0, 20, 300)
    for m in (3, 300):
        np.testing.assert_allclose(fit.at(i[:m], j[:m]), fit.dense()[i[:m], j[:m]], atol=1e-13)
    assert fit.rank == 4
    assert fit.truncated(2).shape == (30, 20)


def test_zero_rank() -> None:
    fit = LowRankFit(*thin_svd(np.ones((4, 3)), 0), 0.0)
    assert fit.rank == 0
    np.testing.assert_array_equal(fit.dense(), np.zeros((4, 3)))
    np.testing.assert_array_equal(fit.at(np.array([1]), np.array([2])), [0.0])


def test_both_centres_are_the_least_squares_fit() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(8, 5)) + rng.normal(size=(8, 1)) + np.arange(5)
    x[rng.random(x.shape) < 0.3] = np.nan
    i, j = np.nonzero(~np.isnan(x))
    design = np.zeros((len(i), 13))
    design[np.arange(len(i)), i] = 1.0
    design[np.arange(len(i)), 8 + j] = 1.0
    fitted = design @ np.linalg.lstsq(design, x[i, j], rcond=None)[0]
    centre = centre_of(Entries.of(x), "rows-and-columns")
    np.testing.assert_allclose(centre.at(i, j), fitted, atol=1e-9)
    assert centre.rows.mean() == pytest.approx(0.0, abs=1e-12)
    again = centre.of_rows(Entries.of(x))
    np.testing.assert_allclose(again.rows, centre.rows, atol=1e-9)


def test_a_blank_column_has_the_mean_of_the_others() -> None:
    x = np.array([[1.0, np.nan, 3.0], [3.0, np.nan, 5.0]])
    np.testing.assert_allclose(centre_of(Entries.of(x), "columns").columns, [2.0, 3.0, 4.0])
    assert not centre_of(Entries.of(x), "none").dense().any()


def test_unknown_centres_are_refused() -> None:
    with pytest.raises(ParameterError, match="center must be"):
        centre_of(Entries.of(np.ones((2, 2))), "rows")
