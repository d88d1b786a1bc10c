"""Thousands of features: memory in proportion to the table and the largest block."""

from __future__ import annotations

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from consilience import SparseQDA
from consilience.exceptions import ParameterError

BLOCK, N_BLOCKS = 10, 20


def table_of(p: int, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Twenty groups of ten features that go together in the second class only."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * n, p)), np.repeat([0, 1], n)
    for start in range(0, BLOCK * N_BLOCKS, BLOCK):
        x[n:, start + 1 : start + BLOCK] += x[n:, [start]]
    return x, y


def peak_of(x: np.ndarray, y: np.ndarray, **settings: Any) -> tuple[SparseQDA, float]:
    """Fit, and the peak of its memory over that of the table."""
    SparseQDA(alpha=0.3).fit(x[:, :20], y).predict(x[:, :20])  # what is compiled and imported
    tracemalloc.start()
    try:
        fit = SparseQDA(**settings).fit(x, y)
        return fit, tracemalloc.get_traced_memory()[1] / x.nbytes
    finally:
        tracemalloc.stop()


def check_blocks(fit: SparseQDA) -> None:
    expected = np.arange(BLOCK * N_BLOCKS).reshape(N_BLOCKS, BLOCK).tolist()
    assert [block.tolist() for block in fit.blocks_] == expected
    assert fit.gap_ <= 1e-8
    assert len(fit.interactions_) == fit.precision_.n_links <= N_BLOCKS * BLOCK * (BLOCK - 1) / 2


def test_thousand_features() -> None:
    """One p x p matrix alone would be 1.7 times the table, those of two classes 3.3 times."""
    fit, ratio = peak_of(*table_of(1000), alpha=0.3)
    check_blocks(fit)
    assert ratio < 5


def test_five_thousand_features() -> None:
    """A p x p matrix would be 8.3 times the table: here everything stays below 4 times."""
    x, y = table_of(5000)
    fit, ratio = peak_of(x, y, alpha=0.3)
    check_blocks(fit)
    assert ratio < 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        chosen, ratio = peak_of(x, y, max_block=50, cv=3, n_alphas=6)
    assert ratio < 6
    assert chosen.path_.largest_block.max() <= 50
    assert chosen.path_.cv_error.min() < 0.05


def test_features_that_do_not_split() -> None:
    """The sentence comes before anything of the block's size is made: 2 x 72 MB here.

    A tile of 512 x 512 features and its links are about 16 MB.
    """
    x, y = table_of(3000, n=30)
    tracemalloc.start()
    try:
        with pytest.raises(ParameterError, match=r"3000 of 3000 features .* max_block = 500"):
            SparseQDA(alpha=0.01, max_block=500).fit(x, y)
        assert tracemalloc.get_traced_memory()[1] < 36e6
    finally:
        tracemalloc.stop()
