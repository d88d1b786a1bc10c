"""Rank correlations: against pandas and scipy, ties, constants, what transforms leave alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from consilience.discriminant.kernels.communities import skeptic, spearman
from consilience.exceptions import DataError
from consilience.numerics.random import stream
from tests.reference.community_bayes import spearman_slowly


@pytest.mark.parametrize("levels", [2, 5, None])
def test_spearman_with_and_without_ties(levels):
    x = stream(0).standard_normal((37, 6))
    if levels:
        x = np.floor(levels * stream(1).uniform(size=(37, 6)))
    found = spearman(x)
    np.testing.assert_allclose(found, spearman_slowly(x), atol=1e-14)
    np.testing.assert_allclose(found, pd.DataFrame(x).corr("spearman"), atol=1e-13)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 1.0)


def test_monotone_transforms_change_nothing():
    x = stream(2).standard_normal((50, 4))
    moved = np.column_stack([np.exp(x[:, 0]), x[:, 1] ** 3, 1e9 + 1e3 * x[:, 2], -x[:, 3]])
    sign = np.array([1, 1, 1, -1])
    np.testing.assert_allclose(spearman(moved), spearman(x) * sign * sign[:, None], atol=1e-15)


def test_constant_columns_and_single_rows():
    x = stream(3).standard_normal((20, 3))
    x[:, 1] = 0.1 + 0.2  # not a number that a mean would give back exactly
    found = spearman(x)
    assert not found[1].any() and not found[:, 1].any()
    assert found[0, 2] == spearman(x[:, [0, 2]])[0, 1]
    assert not spearman(x[:1]).any()
    latent = skeptic(found)
    np.testing.assert_array_equal(np.diag(latent), 1.0)
    assert latent[0, 1] == 0.0


def test_skeptic_finds_the_latent_correlation():
    z = stream(4).multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], size=20_000)
    found = skeptic(spearman(np.column_stack([np.exp(3 * z[:, 0]), z[:, 1] ** 3])))
    # standard error at 20,000 rows about .004
    assert found[0, 1] == pytest.approx(0.7, abs=0.016)
    assert skeptic(np.array([[1.0, -1.0], [-1.0, 1.0]]))[0, 1] == pytest.approx(-1.0)


@pytest.mark.parametrize("x", [[[1.0, np.nan]], [1.0, 2.0], np.empty((0, 2)), [[np.inf]]])
def test_no_table_is_refused(x):
    with pytest.raises(DataError, match="finite numbers"):
        spearman(x)
