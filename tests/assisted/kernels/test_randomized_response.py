"""Randomised response: the rate of flips, its price, and what happens without the optional part."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from consilience.assisted.kernels import mechanisms
from consilience.assisted.kernels.mechanisms import RandomizedResponse
from consilience.exceptions import DataError, MissingExtraError, ParameterError


@pytest.mark.parametrize("flip", [0.05, 0.3])
def test_both_values_are_flipped_at_the_stated_rate(flip: float) -> None:
    values = np.repeat([0.0, 1.0], 5000)
    shown = RandomizedResponse(flip).release(values)
    assert shown.shape == values.shape
    assert set(np.unique(shown)) == {0.0, 1.0}
    error = math.sqrt(flip * (1 - flip) / 5000)
    for value in (0.0, 1.0):
        # 4.5 standard errors of a share of 5,000: exceeded once in 150,000 runs.
        assert abs(np.mean(shown[values == value] != value) - flip) < 4.5 * error


def test_price_and_flip_are_each_other_s_inverse() -> None:
    assert RandomizedResponse(0.2).epsilon == pytest.approx(math.log(4), rel=1e-12)
    for epsilon in (0.01, 1.0, 7.5, 13.0):
        assert RandomizedResponse.of_epsilon(epsilon).epsilon == pytest.approx(epsilon, rel=1e-9)


def test_opendp_accepts_every_price() -> None:
    for epsilon in (0.01, 0.3, 1.0, 7.5, 13.0):
        RandomizedResponse.of_epsilon(epsilon).release(np.ones(3))


def test_flips_are_drawn_anew_and_keep_the_shape() -> None:
    mechanism = RandomizedResponse(0.4)
    first, second = (mechanism.release(np.zeros((20, 10))) for _ in range(2))
    assert first.shape == (20, 10)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("flip", [0.0, 1e-7, 0.5, -0.1, 1.0, float("nan"), "a"])
def test_flip_out_of_range(flip: float) -> None:
    with pytest.raises(ParameterError, match=r"at least 1e-6 and below 0\.5"):
        RandomizedResponse(flip)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 13.5, float("inf")])
def test_price_out_of_range(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        RandomizedResponse.of_epsilon(epsilon)


def test_other_values_are_refused_without_being_shown() -> None:
    with pytest.raises(DataError) as caught:
        RandomizedResponse(0.1).release(np.array([0.0, 0.7310585]))
    assert "0.73" not in str(caught.value)


def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(MissingExtraError, match=r"consilience\[privacy\]"):
        RandomizedResponse(0.1).release(np.zeros(3))


def test_a_library_that_states_a_higher_price_releases_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dearer:
        m = SimpleNamespace(make_randomized_response_bool=lambda prob: Dearer)

        @staticmethod
        def map(d_in: int) -> float:
            return 1.001 * math.log(4)

    monkeypatch.setattr(mechanisms, "opendp", lambda use: Dearer)
    with pytest.raises(ParameterError, match="do not give epsilon"):
        RandomizedResponse(0.2).release(np.zeros(3))
