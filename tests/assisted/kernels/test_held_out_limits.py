"""Limits from held-out rows: as written out one person at a time, and their coverage."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.assisted.kernels.sandwich import calibrated, enough, response_limits
from consilience.numerics.families import family
from tests.reference import held_out_limits as textbook


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_calibrated_probabilities_are_those_of_two_isotonic_regressions(
    decimals: int, weighted: bool
) -> None:
    rng = np.random.default_rng([decimals, weighted])
    for h in (1, 2, 7, 30):
        eta = np.round(rng.normal(size=h), decimals)
        y = (rng.random(h) < 1 / (1 + np.exp(-eta))).astype(float)
        w = 1 / rng.integers(1, 4, size=h) if weighted else np.ones(h)
        new = np.round(np.append(rng.normal(scale=2, size=12), eta[:3]), decimals)
        low, high = calibrated(eta, y, new, w if weighted else None)
        wanted = [textbook.venn_abers(eta, y, w, at) for at in new]
        np.testing.assert_allclose(np.column_stack([low, high]), wanted, atol=1e-14)


def test_nothing_held_out_says_nothing_of_a_probability() -> None:
    low, high = calibrated(np.empty(0), np.empty(0), np.zeros(2))
    assert low.tolist() == [0.0, 0.0] and high.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["normal", "pseudo-huber", "poisson", "gamma", "tweedie"])
@pytest.mark.parametrize("weighted", [False, True])
def test_limits_hold_the_values_whose_rank_is_below_the_level(name: str, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    fam, h, level = family(name), 40, 0.9
    eta, new = rng.normal(size=h), rng.normal(size=5)
    y = rng.poisson(fam.mean(eta)).astype(float) if name == "poisson" else fam.mean(eta) + 0.0
    y = y if name == "poisson" else y * rng.gamma(2.0, 0.5, size=h)
    w = 1 / rng.integers(1, 3, size=h) if weighted else np.ones(h)
    low, high = response_limits(fam, eta, y, new, level, w if weighted else None)

    power = {"poisson": 0.5, "gamma": 1.0, "tweedie": 0.75}.get(name, 0.0)
    scores = np.abs(y - fam.mean(eta)) / np.exp(eta) ** power
    whole = name == "poisson"
    for at, a, b in zip(new, low, high, strict=True):
        mean = float(fam.mean(at))
        tried = np.arange(0, 40.0) if whole else np.linspace(mean - 9, mean + 9, 997)
        tried = tried if name in ("normal", "pseudo-huber") else tried[tried >= 0]
        kept = [
            textbook.response_accepted(scores, w, abs(v - mean) / np.exp(at) ** power, level)
            for v in tried
        ]
        assert a <= b and np.array_equal(kept, (tried >= a) & (tried <= b))


def test_limits_of_rare_counts_hold_the_nearest_number_where_none_is_near_enough() -> None:
    # Held-out counts of 0 at small means, so that a mean of a half is within reach of no number.
    fam, eta = family("poisson"), np.full(60, np.log(0.01))
    low, high = response_limits(fam, eta, np.zeros(60), np.log([0.01, 0.5, 0.4, 1.6]), 0.9)
    assert low.tolist() == high.tolist() == [0.0, 0.0, 0.0, 2.0]


def test_limits_need_as_many_rows_as_their_level_asks_for() -> None:
    rng = np.random.default_rng(0)
    for h, fine in ((18, False), (19, True)):
        eta, y = rng.normal(size=h), rng.normal(size=h)
        low, high = response_limits(family("normal"), eta, y, np.zeros(1), 0.95)
        assert enough(0.95, h) is fine and bool(np.isfinite(low + high).all()) is fine


def test_limits_cover_whatever_the_model_is() -> None:
    # A model that is wrong in mean and spread, heavy tails. 4,000 draws of 39 held-out rows and one
    # new person: coverage of level .9 is 36 of 40 = .900 without ties; Monte Carlo error .0047.
    rng = np.random.default_rng(1)
    x = rng.standard_t(3, size=(4000, 40))
    y = x**2 + np.exp(0.5 * x) * rng.standard_t(2, size=x.shape)
    covered = 0
    for eta, value in zip(0.3 * x + 1, y, strict=True):
        low, high = response_limits(family("normal"), eta[:-1], value[:-1], eta[-1:], 0.9)
        covered += bool(low[0] <= value[-1] <= high[0])
    assert abs(covered / 4000 - 0.9) < 4 * 0.0047


def test_limits_of_people_in_new_clusters_cover_by_clusters_and_not_by_rows() -> None:
    # Twenty clusters of one to thirty rows whose means vary with their size: large clusters are
    # quiet. A person of a new cluster: level .9, 2,000 draws, Monte Carlo error .0067.
    rng = np.random.default_rng(2)
    covered = np.zeros(2)
    for _ in range(2000):
        sizes = rng.choice([1, 30], size=21)
        spread = np.where(sizes == 1, 3.0, 0.5)
        means = rng.normal(size=21) * spread
        y = np.concatenate([rng.normal(m, 0.1, size=k) for m, k in zip(means, sizes, strict=True)])
        of = np.repeat(np.arange(21), sizes)
        held, new = of < 20, np.flatnonzero(of == 20)[0]
        eta = np.zeros(len(y))
        counts = 1 / sizes[of[held]]
        for i, weights in enumerate((counts, None)):
            low, high = response_limits(
                family("normal"), eta[held], y[held], eta[[new]], 0.9, weights
            )
            covered[i] += bool(low[0] <= y[new] <= high[0])
    assert covered[0] / 2000 > 0.9 - 3 * 0.0067
    assert covered[1] / 2000 < 0.8


def test_one_of_two_probabilities_is_calibrated_where_the_model_is_not() -> None:
    # The theorem: the probability that the person's own response chooses is calibrated, exactly
    # and with few rows. 6,000 draws of 40 held-out rows and one person, by four bands of it; bound
    # 4 Monte Carlo errors. The model's own, which cross the truth, are off in the outer bands.
    rng = np.random.default_rng(4)
    x = rng.normal(size=(6000, 41))
    y = (rng.random(x.shape) < 0.1 + 0.5 / (1 + np.exp(-4 * x))).astype(float)
    both = np.array([calibrated(6 * a[:-1], b[:-1], 6 * a[-1:]) for a, b in zip(x, y, strict=True)])
    low, high, seen = both[:, 0, 0], both[:, 1, 0], y[:, -1]
    assert np.all(low < high)

    def gaps(told: np.ndarray) -> list[float]:
        """Response less probability in bands, in Monte Carlo errors."""
        bands = np.digitize(told, [0.2, 0.4, 0.6])
        off = [(seen - told)[bands == band] for band in range(4)]
        return [float(one.mean() / (one.std() / np.sqrt(len(one)))) for one in off]

    assert np.abs(gaps(np.where(seen == 1, high, low))).max() < 4
    outer = gaps(1 / (1 + np.exp(-6 * x[:, -1])))
    assert outer[0] > 10 and outer[3] < -10
