"""Laplace noise: its law, its price, and what happens without the optional part."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from consilience.assisted.kernels.mechanisms import Laplace
from consilience.exceptions import MissingExtraError, ParameterError


def test_noise_has_the_scale_that_the_price_asks_for() -> None:
    noise = Laplace(sensitivity=2.0, epsilon=0.5).release(np.zeros((100, 200)))
    assert noise.shape == (100, 200)
    # |noise| is exponential with mean 4 and sd 4: the mean of 20,000 has a standard error of .028.
    assert abs(np.abs(noise).mean() - 4.0) < 5 * 0.0283
    # The median of the noise is 0 with standard error 4 / sqrt(20000) = .028.
    assert abs(np.median(noise)) < 5 * 0.0283


def test_noise_is_added_to_the_values() -> None:
    values = np.linspace(-1e6, 1e6, 50)
    noisy = Laplace(sensitivity=1e-6, epsilon=1.0).release(values)
    assert np.allclose(noisy, values, atol=1e-3)
    assert not np.array_equal(noisy, values)


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(0.0, 1.0), (1.0, 0.0), (1.0, float("inf"))])
def test_parameters_out_of_range(sensitivity: float, epsilon: float) -> None:
    with pytest.raises(ParameterError, match="positive finite"):
        Laplace(sensitivity, epsilon)


def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(MissingExtraError, match=r"consilience\[privacy\]"):
        Laplace(1.0, 1.0).release(np.zeros(3))
