"""Latent classes: marginal likelihood, merging, draws, concentration; against the textbook."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from consilience.exceptions import DataError, ParameterError
from consilience.latent_regression.kernels import marginal_likelihood as merging
from consilience.latent_regression.kernels import marginal_likelihood as model
from consilience.latent_regression.kernels.latent_class import (
    Totals,
    agent_key,
    blocks_of,
    classes_of,
)
from consilience.latent_regression.kernels.latent_class import totals_of as class_totals
from consilience.latent_regression.kernels.sampling import sweep
from consilience.numerics.random import stream
from tests.reference import latent_class_model as textbook


def events_of(rng, n, f, w, sigma, scale=1.0):
    x = np.column_stack([np.ones(n), scale * rng.standard_normal((n, f - 1))])
    return x, x @ w + sigma * rng.standard_normal(n)


def events_of_plain(rng, n, w):
    x = rng.standard_normal((n, len(w)))
    return x, x @ w + 0.5 * rng.standard_normal(n)


def totals_of(classes, counts):
    return Totals(
        np.array([x.T @ x for x, _ in classes]),
        np.array([x.T @ y for x, y in classes]),
        np.array([y @ y for _, y in classes]),
        np.array([float(len(y)) for _, y in classes]),
        np.array(counts, dtype=float),
    )


def several(seed, sizes, f=3, sigma=0.5):
    rng = stream(seed)
    classes = [events_of(rng, n, f, rng.standard_normal(f), sigma) for n in sizes]
    return classes, [max(n // 3, 1 if n else 0) for n in sizes]


# --------------------------------------------------------------------------- marginal likelihood


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0, 5.0])
@pytest.mark.parametrize("delta", [0.3, 1.0, 10.0])
def test_marginal_likelihood_is_that_of_the_events(sigma, delta):
    classes, counts = several(1, [1, 7, 40, 2], f=4, sigma=sigma)
    found = model.log_marginal(totals_of(classes, counts), sigma**2, delta**2)
    for k, (x, y) in enumerate(classes):
        dense = textbook.log_marginal_dense(x, y, sigma**2, delta**2)
        chain = textbook.log_marginal_by_events(x, y, sigma**2, delta**2)
        assert found[k] == pytest.approx(dense, rel=1e-9, abs=1e-9)
        assert found[k] == pytest.approx(chain, rel=1e-9, abs=1e-9)
    # a noise that is a variance in one place and not in another is seen, unless sigma is 1
    other = textbook.log_marginal_dense(*classes[2], sigma, delta**2)
    assert (abs(found[2] - other) > 1.0) == (sigma != 1.0)


@pytest.mark.parametrize(("scale", "delta"), [(0.25, 1.0), (3.0, 0.3), (0.01, 10.0)])
def test_marginal_likelihood_over_the_noise_is_that_of_the_events(scale, delta):
    classes, counts = several(1, [0, 7, 40, 2, 400], f=4)
    found, noise = model.log_marginal_noise(totals_of(classes, counts), scale, delta**2)
    for k, (x, y) in enumerate(classes):
        expected = textbook.log_marginal_noise(x, y, model.NOISE_DF, scale, delta**2)
        assert found[k] == pytest.approx(expected, rel=1e-9, abs=1e-7)
    assert noise[0] == pytest.approx(scale)
    # 400 events of sigma .5, and 4 degrees of freedom of the prior: 2 errors
    assert noise[4] == pytest.approx((4 * scale + 400 * 0.25) / 404, rel=0.15)


def test_more_columns_than_events_and_a_class_without_events():
    classes, counts = several(2, [3, 0], f=12)
    found = model.log_marginal(totals_of(classes, counts), 0.2, 3.0)
    assert found[0] == pytest.approx(textbook.log_marginal_dense(*classes[0], 0.2, 3.0), rel=1e-9)
    assert found[1] == 0.0


def test_density_integrates_to_one():
    # all constants are there: one event, y on a grid; trapezoids on a normal are exact to 1e-12
    x = np.array([[1.0, 2.0]])
    grid = np.linspace(-40, 40, 4001)
    classes = [(x, np.array([y])) for y in grid]
    values = np.exp(model.log_marginal(totals_of(classes, np.ones(len(grid))), 0.7, 1.3))
    assert np.trapezoid(values, grid) == pytest.approx(1.0, abs=1e-10)


def test_weights_count_rows():
    (x, y), *_ = several(3, [9])[0]
    weights = np.arange(9) % 4
    repeated = (np.repeat(x, weights, axis=0), np.repeat(y, weights))
    once = Totals(
        ((x * weights[:, None]).T @ x)[None],
        (x.T @ (weights * y))[None],
        np.array([weights @ y**2]),
        np.array([float(weights.sum())]),
        np.ones(1),
    )
    expected = textbook.log_marginal_dense(*repeated, 0.3, 1.0)
    assert model.log_marginal(once, 0.3, 1.0)[0] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("sigma2", "delta2"), [(0.0, 1.0), (1.0, -1.0), (np.nan, 1.0)])
def test_variances_must_be_positive(sigma2, delta2):
    totals = totals_of(*several(4, [5, 5]))
    with pytest.raises(ParameterError):
        model.log_marginal(totals, sigma2, delta2)
    with pytest.raises(ParameterError):
        merging.merge_gain(totals, sigma2, delta2, 2.0)


def test_totals_that_are_no_sums_are_refused():
    totals = totals_of(*several(4, [5, 5]))
    with pytest.raises(DataError, match="no sums of squares"):
        model.log_marginal(totals * -1.0, 0.1, 1.0)


def test_sums_that_round_to_indefinite_ones_are_refused():
    # a condition of 1e26: no digit of a gain would be right
    rng = stream(21)
    x = 1e9 * rng.standard_normal((20, 3))
    x = np.column_stack([x, x])
    totals = totals_of([(x, x[:, 0])], [4])
    with pytest.raises(DataError, match="common scale"):
        model.log_marginal(totals, 1e-4, 1.0)
    for wrong in (np.nan, np.inf, 1e308):
        products = totals.products.copy()
        products[0, 0, 0] = wrong
        with pytest.raises(DataError, match="finite"):
            model.log_marginal(Totals(products, *totals.arrays[1:]), 1e-4, 1.0)


def test_collinear_columns_keep_their_digits():
    rng = stream(22)
    x = rng.standard_normal((400, 3))
    x = np.column_stack([x, x, x.sum(axis=1)])
    classes = [(x[:200], x[:200] @ rng.standard_normal(7) + 0.01 * rng.standard_normal(200))]
    classes.append((x[200:], x[200:] @ rng.standard_normal(7)))
    found = merging.merge_gain(totals_of(classes, [9, 9]), 1e-4, 1.0, 2.0)[0, 1]
    assert found == pytest.approx(
        textbook.merge_gain(classes, [9, 9], 0, 1, (1e-4, 1.0), 2.0), rel=1e-8
    )


# --------------------------------------------------------------------------- partitions


@pytest.mark.parametrize("alpha", [0.4, 3.0])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 0, 2], [2, 1, 1, 2], [0, 1, 2, 2]])
def test_probability_of_a_partition(labels, alpha):
    counts = np.bincount(labels, minlength=3)
    expected = textbook.log_partition(labels, 3, alpha)
    assert textbook.log_partition_of_counts(counts, alpha) == pytest.approx(expected, abs=1e-12)


# --------------------------------------------------------------------------- merging


@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("alpha", [0.7, 5.0])
def test_gain_of_a_merger_is_exact(sigma, alpha):
    classes, counts = several(5, [30, 3, 12, 0, 50], f=4, sigma=sigma)
    variances = (sigma**2, 1.5)
    totals = totals_of(classes, counts)
    found = merging.merge_gain(totals, *variances, alpha)
    data = merging.merge_gain(totals, *variances, alpha, partition=False)
    np.testing.assert_array_equal(found, found.T)
    assert np.isneginf(np.diag(found)).all()
    single = model.log_marginal(totals, *variances)
    for a in range(5):
        for b in range(a + 1, 5):
            expected = textbook.merge_gain(classes, counts, a, b, variances, alpha)
            # the textbook's difference of log densities of size 1e4 at sigma .05 loses digits
            assert found[a, b] == pytest.approx(expected, rel=1e-9, abs=1e-8)
            mapping = [k if k < b else a if k == b else k - 1 for k in range(5)]
            after = model.log_marginal(totals.merged(mapping, 4), *variances)
            change = after.sum() - single.sum()
            assert data[a, b] == pytest.approx(change, rel=1e-9, abs=1e-8)


def test_gain_keeps_its_digits_beside_large_sums_of_squares():
    # two halves of one class of 2e6 events with sigma = .01: log densities near 1e6, gain near 10
    rng = stream(6)
    w = rng.standard_normal(3)
    classes = [events_of(rng, 300, 3, w, 0.01) for _ in range(2)]
    totals = totals_of(classes, [5, 5])
    exact = merging.merge_gain(totals, 1e-4, 1.0, 2.0, partition=False)[0, 1]
    many = totals * 4096.0
    found = merging.merge_gain(many, 1e-4 * 4096, 1.0, 2.0, partition=False)[0, 1]
    assert found == pytest.approx(exact, rel=1e-9)  # S/sigma2, r/sigma2 are the same


def test_empty_classes_gain_nothing():
    classes, counts = several(7, [20, 0, 0])
    found = merging.merge_gain(totals_of(classes, counts), 0.3, 2.0, 3.0)
    np.testing.assert_allclose(found[np.triu_indices(3, 1)], 0.0, atol=1e-12)


def grouped(mapping):
    return [set(np.flatnonzero(mapping == g).tolist()) for g in range(mapping.max() + 1)]


@pytest.mark.parametrize("n_classes", [1, 3, 7])
@pytest.mark.parametrize(("seed", "df"), [(0, None), (1, None), (2, None), (3, model.NOISE_DF)])
def test_greedy_merging_is_the_textbooks(seed, n_classes, df):
    rng = stream(seed, "merging")
    weights = rng.standard_normal((3, 3))
    classes = [events_of(rng, 6 + k, 3, weights[k % 3], 0.7) for k in range(8)]
    counts = rng.integers(1, 6, 8)
    expected, gains = textbook.merge_down(classes, list(counts), (0.5, 1.0), 8.0, n_classes, df)
    own = None if df is None else 0.5
    mapping, path = merging.merge_down(
        totals_of(classes, counts), 0.5, 1.0, n_classes=n_classes, alpha=8.0, noise_scale=own
    )
    assert grouped(mapping) == expected
    assert [k for k, _ in path] == list(range(7, n_classes - 1, -1))
    digits = 1e-8 if df is None else 1e-7
    np.testing.assert_allclose([gain for _, gain in path], gains, rtol=1e-9, atol=digits)


def test_merging_stops_where_the_probability_is_highest():
    rng = stream(8)
    weights = 2.0 * rng.standard_normal((3, 4))
    classes = [events_of(rng, 40, 4, weights[k // 3], 0.5) for k in range(9)]
    counts = [4, 4, 4, 5, 5, 5, 4, 4, 4]
    totals = totals_of(classes, counts)
    mapping, path = merging.merge_down(totals, 0.25, 4.0, n_classes=None, alpha=9.0)
    assert grouped(mapping) == [{3, 4, 5}, {0, 1, 2}, {6, 7, 8}]  # by size, then as they come
    assert [k for k, _ in path] == list(range(8, 2, -1))
    gains = np.array([gain for _, gain in path])
    assert (gains > 0).all()
    _, further = merging.merge_down(totals, 0.25, 4.0, n_classes=1, alpha=9.0)
    assert further[:6] == path
    assert all(gain < 0 for _, gain in further[6:])
    joint = [
        model.log_marginal(totals, 0.25, 4.0).sum() + textbook.log_partition_of_counts(counts, 9.0)
    ]
    kept = totals.merged(mapping, 3)
    padded = [*kept.counts.astype(int), 0, 0, 0, 0, 0, 0]
    joint.append(
        model.log_marginal(kept, 0.25, 4.0).sum() + textbook.log_partition_of_counts(padded, 9.0)
    )
    assert joint[1] - joint[0] == pytest.approx(gains.sum(), rel=1e-9)


def test_a_merger_that_pays_only_with_the_next_one_is_found():
    # rare, so one of 71 draws in which it happens
    rng = stream(70, "uphill")
    weights = 0.5 * rng.standard_normal((5, 4))
    classes = [events_of_plain(rng, int(rng.integers(2, 40)), w) for w in weights]
    totals = totals_of(classes, rng.integers(1, 20, 5))
    mapping, path = merging.merge_down(totals, 1.0, 0.5, n_classes=None, alpha=5.0)
    gains = [gain for _, gain in path]
    assert mapping.tolist() == [0, 0, 0, 0, 0]
    assert gains[2] < 0 < gains[2] + gains[3]


def test_empty_and_abandoned_classes_vanish():
    classes, counts = several(10, [0, 40, 30, 0, 35])
    totals = totals_of(classes, counts)
    rest = totals_of(several(10, [0, 40, 30, 0, 35])[0], counts)
    mapping, path = merging.merge_down(totals, 0.25, 1.0, n_classes=5, alpha=5.0)
    assert (mapping.max() + 1, path) == (3, [])
    assert len({mapping[1], mapping[2], mapping[4]}) == 3
    assert (mapping >= 0).all()
    # what smoothing leaves of class 4 goes where its events fit: they are those of class 2
    small = Totals(*(a.copy() for a in totals.arrays))
    for into, part in zip(small.arrays, rest.arrays, strict=True):
        into[4] = 0.02 * part[2]
    mapping, path = merging.merge_down(small, 0.25, 1.0, n_classes=5, alpha=5.0)
    assert (mapping.max() + 1, path) == (2, [])
    assert mapping[4] == mapping[2] != mapping[1]


def test_nothing_but_empty_classes():
    mapping, path = merging.merge_down(Totals.zeros(3, 2), 1.0, 1.0, n_classes=None, alpha=3.0)
    assert mapping.tolist() == [0, 0, 0]
    assert path == []
    with pytest.raises(DataError):
        merging.merge_down(Totals.zeros(0, 2), 1.0, 1.0, n_classes=None, alpha=3.0)
    with pytest.raises(ParameterError):
        merging.merge_down(Totals.zeros(3, 2), 1.0, 1.0, n_classes=0, alpha=3.0)
    with pytest.raises(ParameterError):
        merging.merge_down(Totals.zeros(3, 2), 1.0, 1.0, n_classes=1, alpha=0.0)


def test_order_of_the_classes_does_not_matter():
    rng = stream(11)
    weights = rng.standard_normal((4, 5))
    classes = [events_of(rng, 12 + k, 5, weights[k % 4], 0.6) for k in range(16)]
    totals = totals_of(classes, np.arange(3, 19))
    mapping, path = merging.merge_down(totals, 0.36, 1.0, n_classes=None, alpha=16.0)
    turned = rng.permutation(16)
    other, other_path = merging.merge_down(
        totals.take(turned), 0.36, 1.0, n_classes=None, alpha=16.0
    )
    np.testing.assert_array_equal(other, mapping[turned])  # sizes of the classes differ
    np.testing.assert_allclose(
        [gain for _, gain in path], [gain for _, gain in other_path], rtol=1e-8, atol=1e-8
    )


def simulated_pieces(rng, shares, n_entities, n_events, sigma):
    """Blocks' sums of classes of given shares, each cut in 3 at random; 3% of labels wrong."""
    k, f = len(shares), 8
    weights = rng.standard_normal((k, f))
    label = rng.choice(k, n_entities, p=shares)
    piece = 3 * label + rng.integers(3, size=n_entities)
    wrong = rng.random(n_entities) < 0.03
    piece[wrong] = rng.integers(3 * k, size=int(wrong.sum()))
    rows = np.repeat(np.arange(n_entities), 2 + rng.poisson(n_events - 2, n_entities))
    x = np.column_stack([np.ones(len(rows)), rng.standard_normal((len(rows), f - 1))])
    y = (x * weights[label[rows]]).sum(axis=1) + sigma * rng.standard_normal(len(rows))
    y /= y.std()
    classes = [(x[piece[rows] == c], y[piece[rows] == c]) for c in range(3 * k)]
    return totals_of(classes, np.bincount(piece, minlength=3 * k))


@pytest.mark.parametrize("shares", [[1.0], [1 / 6] * 6, [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]])
def test_pieces_of_the_true_classes_come_together(shares):
    # of 50 data sets 50, 50 and 48 are right; 12 with a rate of .96 have 10 or more in .99 of cases
    right = 0
    for seed in range(12):
        rng = stream(seed, "pieces")
        totals = simulated_pieces(rng, shares, 2048, 5.0, 0.5)
        sigma2, delta2 = model.start_sigma2(*totals.arrays[:4]), 1.0
        for _ in range(10):
            classes = classes_of(totals, sigma2, delta2)
            w = model.draw_weights(classes, rng)
            sigma2 = model.draw_sigma2(totals, w, rng)
            delta2 = model.draw_delta2(w[totals.counts > 0], rng)
        mapping, _ = merging.merge_down(
            totals, sigma2, delta2, n_classes=None, alpha=len(totals.counts)
        )
        right += int(mapping.max() + 1 == len(shares))
    assert right >= 10


def test_fitted_labels_need_the_gain_of_the_partition():
    # one class, labels sampled under 3: the data alone keep what was fitted to superfluous classes
    with_it, without = [], []
    for seed in range(10):
        rng = stream(seed, "fitted")
        entity = np.repeat(np.arange(400), 5)
        x, y = events_of(rng, 2000, 8, rng.standard_normal(8), 0.5)
        blocks = blocks_of(x, y, entity, entity // 4)
        keys = np.array([agent_key(seed, i) for i in range(100)], dtype=np.uint64)
        labels = rng.integers(3, size=400)
        totals, shares = class_totals(blocks, labels, 3), np.full(3, 1 / 3)
        for turn in range(30):
            labels, totals, _ = sweep(blocks, labels, totals, 0.25, 1.0, shares, 4.0, keys, turn)
        for partition, found in ((True, with_it), (False, without)):
            mapping, _ = merging.merge_down(
                totals, 0.25, 1.0, n_classes=None, alpha=3.0, partition=partition
            )
            found.append(mapping.max() + 1)
    assert with_it == [1] * 10
    assert np.mean(np.array(without) > 1) >= 0.5


# --------------------------------------------------------------------------- draws


def test_drawn_coefficients_have_the_posteriors_moments():
    classes, counts = several(12, [6, 25], f=3)
    posterior = classes_of(totals_of(classes, counts), 0.25, 2.0)
    rng = stream(13)
    draws = np.array([model.draw_weights(posterior, rng) for _ in range(4000)])
    for k in range(2):
        covariance = np.linalg.inv(posterior.precision[k])
        away = np.linalg.cholesky(posterior.precision[k]).T @ (draws[:, k] - posterior.mean[k]).T
        # standard errors of 4000 draws: .016 of a mean, .022 of a variance; 4.5 of them
        assert np.abs(away.mean(axis=1)).max() < 0.072
        assert np.abs(np.cov(away) - np.eye(3)).max() < 0.1
        assert np.abs(np.cov(draws[:, k].T) / covariance - 1).max() < 0.5


def test_draws_have_the_posterior_of_a_grid(monkeypatch):
    # (w, sigma2, delta2) by turns, labels fixed; beside p(sigma2, delta2 | y) on a grid
    classes, counts = several(14, [12, 9, 15], f=2, sigma=0.6)
    totals = totals_of(classes, counts)
    s_grid, d_grid = np.geomspace(0.1, 2.5, 120), np.geomspace(0.02, 60, 160)
    log_p = np.array([[model.log_marginal(totals, s, d).sum() for d in d_grid] for s in s_grid])
    log_p += stats.invgamma(2.0, scale=0.5).logpdf(s_grid)[:, None] + np.log(s_grid)[:, None]
    log_p += stats.invgamma(1.5, scale=0.8).logpdf(d_grid) + np.log(d_grid)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    monkeypatch.setattr(model, "SIGMA2_PRIOR", (2.0, 0.5))
    monkeypatch.setattr(model, "DELTA2_PRIOR", (1.5, 0.8))
    rng = stream(15)
    sigma2, delta2, kept = 1.0, 1.0, []
    for _ in range(6000):
        posterior = classes_of(totals, sigma2, delta2)
        w = model.draw_weights(posterior, rng)
        sigma2 = model.draw_sigma2(totals, w, rng)
        delta2 = model.draw_delta2(w, rng)
        kept.append((np.log(sigma2), np.log(delta2)))
    draws = np.array(kept[100:])
    for j, (grid, weights) in enumerate([(s_grid, p.sum(axis=1)), (d_grid, p.sum(axis=0))]):
        mean = weights @ np.log(grid)
        sd = np.sqrt(weights @ (np.log(grid) - mean) ** 2)
        # 5900 draws, at most a third lost to autocorrelation: error of the mean .016 sd
        assert abs(draws[:, j].mean() - mean) < 0.08 * sd
        assert abs(draws[:, j].std() / sd - 1) < 0.08


def test_draws_of_noise_by_class_have_the_posterior_of_a_grid(monkeypatch):
    # (w, sigma2 of each class, s) by turns; beside p(s | y) with the noise integrated out on a grid
    classes, counts = several(14, [12, 0, 15], f=2, sigma=0.6)
    totals = totals_of(classes, counts)
    monkeypatch.setattr(model, "SCALE_PRIOR", (1.5, 0.8))
    grid = np.geomspace(0.005, 15, 200)
    log_p = [model.log_marginal_noise(totals, s, 1.0)[0].sum() for s in grid]
    log_p += stats.gamma(1.5, scale=1 / 0.8).logpdf(grid) + np.log(grid)
    weights = np.exp(log_p - log_p.max())
    weights /= weights.sum()
    rng = stream(15)
    noise, scale, kept = np.ones(3), 1.0, []
    for _ in range(6000):
        w = model.draw_weights(classes_of(totals, noise, 1.0), rng)
        noise, scale = model.draw_class_noise(totals, w, scale, rng)
        kept.append([np.log(scale), *np.log(noise)])
    draws = np.array(kept[100:])
    mean = weights @ np.log(grid)
    sd = np.sqrt(weights @ (np.log(grid) - mean) ** 2)
    # the error of the mean, by batches, is .03 sd: neighbouring draws are alike
    assert abs(draws[:, 0].mean() - mean) < 0.12 * sd
    assert abs(draws[:, 0].std() / sd - 1) < 0.1
    # of the empty class it is the prior: log sigma2 is log(2 s) less that of a gamma(2)
    rest = draws[1:, 2] - draws[:-1, 0] - np.log(2.0)
    assert rest.mean() == pytest.approx(-0.4228, abs=0.05)  # sd .80 over 5899 draws
    assert np.std(rest) == pytest.approx(0.803, rel=0.05)


def drawn_sigma2(totals, sigma2, rng):
    w = model.draw_weights(classes_of(totals, sigma2, 1.0), rng)
    return model.draw_sigma2(totals, w, rng)


def test_noise_is_drawn_where_nothing_is_left_of_it(monkeypatch):
    x = np.eye(3)
    totals = totals_of([(x, np.zeros(3))], [1])
    sigma2 = 1.0
    rng = stream(16)
    for _ in range(50):
        sigma2 = drawn_sigma2(totals, sigma2, rng)
        assert 0 < sigma2 < np.inf
    # no event at all: the prior
    empty = Totals.zeros(2, 3)
    monkeypatch.setattr(model, "SIGMA2_PRIOR", (5.0, 8.0))
    draws = [drawn_sigma2(empty, 1.0, rng) for _ in range(2000)]
    assert np.mean(draws) == pytest.approx(2.0, abs=0.12)  # sd of the mean .026
    assert model.draw_delta2(np.zeros((0, 3)), rng) > 0


def test_shares_are_dirichlet():
    rng = stream(17)
    tables = np.array([0, 3, 40])
    draws = np.array([model.draw_psi(tables, 1.5, rng) for _ in range(4000)])
    a = tables + 0.5
    np.testing.assert_allclose(draws.sum(axis=1), 1.0, atol=1e-14)
    mean, variance = a / a.sum(), stats.dirichlet.var(a)
    assert np.abs((draws.mean(axis=0) - mean) / np.sqrt(variance / 4000)).max() < 4.0
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.25)
    # with a small alpha a plain gamma draw is exactly 0
    few = np.array([model.draw_psi(np.array([0, 0, 5]), 1e-3, rng) for _ in range(300)])
    assert (few > 0).all()
    assert np.isfinite(few).all()
    assert (few[:, 0] < 1e-100).mean() > 0.3
    with pytest.raises(ParameterError):
        model.draw_psi(tables, 0.0, rng)


def test_noise_starts_at_the_residual_of_all_events():
    rng = stream(18)
    x, y = events_of(rng, 4000, 4, rng.standard_normal(4), 0.7)
    totals = totals_of([(x[:1000], y[:1000]), (x[1000:], y[1000:])], [1, 1])
    start = model.start_sigma2(*totals.arrays[:4])
    w = np.linalg.solve(x.T @ x + np.eye(4), x.T @ y)
    assert start == pytest.approx(np.sum((y - x @ w) ** 2) / 3996, rel=1e-6)
    assert start == pytest.approx(model.start_sigma2(x.T @ x, x.T @ y, y @ y, 4000), rel=1e-12)
    assert start == pytest.approx(0.49, abs=0.05)  # standard error .011
    # F > n, y of zeros, and no event
    few = model.start_sigma2(x[:2].T @ x[:2], x[:2].T @ y[:2], y[:2] @ y[:2], 2)
    assert 0 < few <= np.mean(y[:2] ** 2)
    assert model.start_sigma2(x.T @ x, np.zeros(4), 0.0, 4000) > 0
    assert model.start_sigma2(np.zeros((4, 4)), np.zeros(4), 0.0, 0) > 0
    exact = model.start_sigma2(x.T @ x, x.T @ x[:, 1], x[:, 1] @ x[:, 1], 4000)
    assert exact == pytest.approx(1e-6 * np.mean(x[:, 1] ** 2), rel=1e-3)


# --------------------------------------------------------------------------- agents


def test_concentration_is_the_urns():
    rng = stream(19)
    counts = rng.integers(0, 6, (9, 4)) * (rng.random((9, 4)) < 0.7)
    base = rng.dirichlet(np.ones(4))
    betas = np.array([0.01, 0.5, 3.0, 1e4])
    expected = [
        sum(textbook.log_labels(np.repeat(np.arange(4), row), beta * base) for row in counts)
        for beta in betas
    ]
    np.testing.assert_allclose(
        model.concentration_log_likelihood(counts, base, betas), expected, rtol=1e-8
    )
    halves = [
        model.concentration_log_likelihood(part, base, betas) for part in (counts[:4], counts[4:])
    ]
    np.testing.assert_allclose(sum(halves), expected, rtol=1e-8)


def test_concentration_of_a_class_without_a_share():
    counts = np.array([[2, 0], [1, 0]])
    base = np.array([1.0, 0.0])
    np.testing.assert_allclose(
        model.concentration_log_likelihood(counts, base, [1.0]), 0.0, atol=1e-12
    )
    counts[1, 1] = 1
    assert np.isneginf(model.concentration_log_likelihood(counts, base, [1.0])).all()
    with pytest.raises(ParameterError):
        model.concentration_log_likelihood(counts, base, [0.0])


def test_concentration_is_found_on_the_grid():
    rng = stream(20)
    base = np.array([0.4, 0.3, 0.2, 0.1])
    for beta in (0.5, 4.0, 32.0):
        theta = rng.dirichlet(beta * base, 600)
        counts = np.array([rng.multinomial(12, t) for t in theta])
        found = model.BETAS[
            np.argmax(model.concentration_log_likelihood(counts, base, model.BETAS))
        ]
        # log likelihood's curvature: standard error of log2 beta about .15, grid step .5
        assert abs(np.log2(found / beta)) <= 0.75


def test_moments_over_rounds():
    rounds = []
    for seed in range(4):
        classes, counts = several(seed, [9, 4], f=3)
        rounds.append(classes_of(totals_of(classes, counts), 0.3 + 0.1 * seed, 1.0))
    mean, covariance = model.coefficient_moments(rounds)
    for k in range(2):
        means = [each.mean[k] for each in rounds]
        parts = [np.linalg.inv(each.precision[k]) for each in rounds]
        np.testing.assert_allclose(mean[k], np.mean(means, axis=0), rtol=1e-13)
        np.testing.assert_allclose(covariance[k], textbook.total_variance(means, parts), rtol=1e-10)
    _, alone = model.coefficient_moments(rounds[:1])
    np.testing.assert_allclose(alone, np.linalg.inv(rounds[0].precision), rtol=1e-10, atol=1e-14)
    with pytest.raises(DataError):
        model.coefficient_moments([])


def some_totals():
    return totals_of(*several(6, [30, 20, 25, 40]))


def test_entropies_of_pairs_are_what_a_merger_takes_from_the_labels():
    p = np.random.default_rng(3).dirichlet(np.ones(4), size=50)
    p[0] = (1.0, 0.0, 0.0, 0.0)

    def entropy(q):
        return float(-sum(v * np.log(v) for v in q.ravel() if v > 0))

    found = merging.pair_entropies(p)
    for a, b in ((0, 1), (1, 3), (2, 3)):
        merged = np.delete(p, b, axis=1)
        merged[:, a] += p[:, b]
        assert found[a, b] == pytest.approx(entropy(p) - entropy(merged), rel=1e-12)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diagonal(found), 0.0)
    # classes 1 and 3 have become one
    again = merging.label_entropies(p)(np.array([0, 1, 2, 1]))
    three = np.column_stack([p[:, 0], p[:, 1] + p[:, 3], p[:, 2]])
    np.testing.assert_allclose(again[:3, :3], merging.pair_entropies(three), atol=1e-12)
    np.testing.assert_array_equal(again[3], 0.0)
    group = np.array([0, 1, 2, 1])
    for entropies in (
        merging.label_entropies(p),
        merging.expected_entropies(some_totals(), 1.0, 1.0),
    ):
        for row in (0, 1, 2):
            np.testing.assert_allclose(
                entropies(group, row), entropies(group, None)[row], atol=1e-12
            )


def test_classes_whose_labels_are_uncertain_are_merged_only_for_a_larger_gain():
    """Two classes that overlap: the labels' entropy is evidence that a hard partition hides."""
    totals = totals_of(*several(4, [30, 30, 30]))
    plain, path = merging.merge_down(totals, 1.0, 1.0, n_classes=None, alpha=3.0)
    gains = merging.merge_gain(totals, 1.0, 1.0, 3.0)
    costly = np.full((3, 3), max(float(gains[np.isfinite(gains)].max()), 0.0) + 1.0)
    kept, none = merging.merge_down(
        totals,
        1.0,
        1.0,
        n_classes=None,
        alpha=3.0,
        entropies=lambda _, row: costly if row is None else costly[row],
    )
    assert len(none) == 0
    assert len(set(kept.tolist())) == 3
    nothing = merging.merge_down(
        totals,
        1.0,
        1.0,
        n_classes=None,
        alpha=3.0,
        entropies=lambda _, row: np.zeros((3, 3) if row is None else 3),
    )
    np.testing.assert_array_equal(nothing[0], plain)
    assert nothing[1] == path


@pytest.mark.parametrize("apart", [0.2, 1.0, 3.0])
def test_expected_entropies_are_those_of_labels_of_such_classes(apart):
    """Two classes of entities with the same events: posteriors of labels by their definition."""
    rng = stream(5, int(10 * apart))
    design = np.column_stack([np.ones(6), rng.standard_normal((6, 2))])
    w = np.array([[0.0, 0.0, 0.0], [apart / 2, -apart / 2, 0.0]])
    sizes = (3000, 1500)
    mean = np.concatenate([np.tile(design @ w[k], (sizes[k], 1)) for k in (0, 1)])
    y = mean + rng.standard_normal(mean.shape)
    fit = [-0.5 * ((y - design @ w[k]) ** 2).sum(axis=1) + np.log(sizes[k]) for k in (0, 1)]
    p = 1.0 / (1.0 + np.exp(fit[1] - fit[0]))
    each = merging.pair_entropies(np.column_stack([p, 1.0 - p]))[0, 1]
    s = design.T @ design
    totals = Totals(
        np.array([n * s for n in sizes]),
        np.array([n * s @ w[k] for k, n in enumerate(sizes)]),
        np.zeros(2),
        6.0 * np.array(sizes),
        np.array(sizes, dtype=float),
    )
    found = merging.expected_entropies(totals, 1.0, 1e6)(np.arange(2))
    # the entropy of a label is at most log 2: standard error of the sum below .35 sqrt(4500) = 23
    assert abs(found[0, 1] - each) < 3 * 23
    assert found[0, 1] == found[1, 0]
    assert found[0, 0] == 0.0


def test_classes_are_matched_by_the_entities_they_hold():
    rng = np.random.default_rng(1)
    reference = rng.dirichlet(np.full(5, 0.3), size=40)
    sizes = rng.integers(1, 9, size=40).astype(float)
    given = rng.permutation(5)
    order = model.align_classes(reference[:, given], 3.0 * reference, sizes)
    np.testing.assert_array_equal(reference[:, given][:, order], reference)
    # every order of three classes, by hand; one large entity outweighs two small ones
    p = np.eye(3)[[0, 1, 1, 2]]
    wanted = np.eye(3)[[1, 0, 1, 2]]

    def overlap(way, weight):
        return float((weight * (p[:, list(way)] * wanted).sum(axis=1)).sum())

    for weight in (np.array([9.0, 1, 1, 1]), np.array([1.0, 1, 9, 1])):
        found = model.align_classes(p, wanted, weight)
        best = max(overlap(way, weight) for way in itertools.permutations(range(3)))
        assert overlap(found, weight) == best


def test_a_round_in_which_a_class_was_empty_says_nothing_of_its_coefficients():
    rounds = [classes_of(totals_of(*several(seed, [30, 40])), 0.5, 2.0) for seed in (1, 2, 3)]
    weights = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    mean, covariance = model.coefficient_moments(rounds, weights)
    np.testing.assert_allclose(mean[0], 0.75 * rounds[0].mean[0] + 0.25 * rounds[1].mean[0])
    means = [rounds[i].mean[0] for i in (0, 0, 0, 1)]
    parts = [np.linalg.inv(rounds[i].precision[0]) for i in (0, 0, 0, 1)]
    np.testing.assert_allclose(covariance[0], textbook.total_variance(means, parts), rtol=1e-10)
    # empty throughout: all rounds alike
    np.testing.assert_allclose(mean[1], model.coefficient_moments(rounds)[0][1], rtol=1e-13)
