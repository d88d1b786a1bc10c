"""Does the default rule of meta clustering keep what docs/proofs/pairwise-test.md says?

Sites with linear models by least squares, all in memory, so that hundreds of studies are cheap.
`python -m tests.collaborators.kernels.test_pairwise_rule` prints every share of that page.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from consilience.collaborators import kernels as mc
from consilience.numerics.random import stream
from tests.reference import meta_clustering_naive as naive
from tests.rotation import by_turns, one_in

Array = NDArray[np.float64]
Site = tuple[Array, Array]  # predictors without the column of ones, response
N_FOLDS = 10
P = 5


# a study in memory


def with_ones(x: Array) -> Array:
    return np.column_stack([np.ones(len(x)), x])


def cross_fitted(x: Array, y: Array, fold: NDArray[np.int64]) -> Array:
    """Predictions of least squares fits that leave the row's fold out."""
    member = np.arange(N_FOLDS)[:, None] == fold
    gram = x.T @ x - np.stack([x[m].T @ x[m] for m in member])
    cross = x.T @ y - np.stack([x[m].T @ y[m] for m in member])
    coef = np.linalg.solve(gram, cross[..., None])[..., 0]
    return np.einsum("np,np->n", x, coef[fold])


Learner = Callable[[Array, Array], Callable[[Array], Array]]


def least_squares(x: Array, y: Array) -> Callable[[Array], Array]:
    coef = np.linalg.lstsq(with_ones(x), y, rcond=None)[0]
    return lambda new: with_ones(new) @ coef


def decision_tree(x: Array, y: Array) -> Callable[[Array], Array]:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(min_samples_leaf=5, random_state=0).fit(x, y).predict


def own_predictions(learn: Learner, x: Array, y: Array, cross_fit: bool) -> Array:
    if not cross_fit:  # the source's training error
        return learn(x, y)(x)
    if learn is least_squares:
        return cross_fitted(with_ones(x), y, np.arange(len(y)) % N_FOLDS)
    fold, result = np.arange(len(y)) % 5, np.empty(len(y))
    for k in range(5):
        result[fold == k] = learn(x[fold != k], y[fold != k])(x[fold == k])
    return result


def compare(
    sites: Sequence[Site],
    *,
    margin: float = 0.03,
    learn: Learner = least_squares,
    cross_fit: bool = True,
) -> mc.PairwiseTests:
    """Select (one candidate), exchange, test."""
    sizes = np.array([len(y) for _, y in sites])
    means = np.stack([x.mean(axis=0) for x, _ in sites])
    covariances = np.stack([np.cov(x.T, bias=True).reshape(x.shape[1], -1) for x, _ in sites])
    pooled = mc.shrunk_covariance(covariances, sizes, means)
    models = [learn(x, y) for x, y in sites]
    losses = []
    for j, (x, y) in enumerate(sites):
        own = np.square(y - own_predictions(learn, x, y, cross_fit))
        d = np.column_stack([np.square(y - model(x)) - own for model in models])
        losses.append(naive.excess_losses(d, mc.overlap_weights_all(x, j, means, sizes, pooled)))
    excess, variance, effective = (np.column_stack(part) for part in zip(*losses))
    spread = [float(y.var()) for _, y in sites]
    return mc.pairwise_tests(excess, variance, effective, sizes, spread, margin=margin)


def draw(
    rng: np.random.Generator,
    coef: Array,
    sizes: Sequence[int],
    noise: Sequence[float],
    *,
    t3: bool = False,
    shift: float = 0.0,
) -> list[Site]:
    """One site per row of coef; predictors standard normal, means shifted by shift sd at random."""
    sites = []
    for beta, n, sd in zip(coef, sizes, noise, strict=True):
        x = rng.standard_normal((n, len(beta))) + shift * rng.standard_normal(len(beta))
        error = rng.standard_t(3, n) / math.sqrt(3.0) if t3 else rng.standard_normal(n)
        sites.append((x, x @ beta + sd * error))
    return sites


def groups(labels: Sequence[int] | NDArray[np.int64]) -> list[int]:
    """Labels numbered by first appearance, so that equal partitions are equal lists."""
    seen: dict[int, int] = {}
    return [seen.setdefault(int(label), len(seen)) for label in labels]


def exact(sites: Sequence[Site], truth: Sequence[int]) -> bool:
    return groups(mc.cluster(compare(sites).z).labels) == groups(truth)


# designs

HOMOGENEOUS_SITES = (2, 3, 5, 8, 20, 50)


def homogeneous(key: str, n_sites: int, k: int, *, shift: float = 0.0) -> list[Site]:
    """Sizes 50 to 2000, noise sd of the sites up to 10-fold apart, every second with t3 errors."""
    rng = stream(20, key, n_sites, k)
    beta = rng.standard_normal(P)
    sizes = np.exp(rng.uniform(math.log(50), math.log(2000), n_sites)).astype(int)
    # signal to noise from 10 to 1/10 in standard deviations of the noise around |beta|
    noise = np.linalg.norm(beta) * np.exp(rng.uniform(-0.5, 0.5, n_sites) * math.log(10))
    coef = np.tile(beta, (n_sites, 1))
    return draw(rng, coef, sizes, noise, t3=k % 2 == 1, shift=shift)


def small_study(k: int, ratio: float, t3: bool) -> tuple[list[Site], Array]:
    """20 equal sites of 50 rows, noise sd up to ratio apart (the worst case), and the noise."""
    rng = stream(25, "small", k)
    beta = rng.standard_normal(P)
    noise = np.linalg.norm(beta) * np.exp(rng.uniform(-0.5, 0.5, 20) * math.log(ratio))
    return draw(rng, np.tile(beta, (20, 1)), [50] * 20, noise, t3=t3), noise


def small_sites(ratio: float, t3: bool, n_sets: int) -> tuple[int, int, float]:
    """False splits in small studies, and the mean rank (0 to 1) of the leaving sites' noise."""
    ranks: list[float] = []
    splits = 0
    for k in range(n_sets):
        sites, noise = small_study(k, ratio, t3)
        labels = mc.cluster(compare(sites).z).labels
        splits += bool(labels.any())
        ranks.extend(np.argsort(np.argsort(noise))[labels > 0] / 19.0)
    return splits, n_sets, float(np.mean(ranks)) if ranks else math.nan


def truth_of(design: str, n_sites: int) -> list[int]:
    if design.startswith("two"):
        return [i % 2 for i in range(n_sites)]
    if design.startswith("odd"):
        return [0] * (n_sites - 1) + [1]
    return list(range(n_sites))


def grouped(design: str, n_sites: int, k: int, n: int = 100, noise: float = 1.0) -> list[Site]:
    """Sites of one group share standard normal coefficients; "flip" designs differ in the sign."""
    rng = stream(21, design, n_sites, k, n, str(noise))
    truth = truth_of(design, n_sites)
    if design.endswith("flip"):
        beta = rng.standard_normal(P)
        centres = np.stack([beta, -beta])
    else:
        centres = rng.standard_normal((max(truth) + 1, P))
    return draw(rng, centres[truth], [n] * n_sites, [noise] * n_sites)


def count(outcomes: Iterator[bool]) -> tuple[int, int]:
    values = list(outcomes)
    return sum(values), len(values)


def false_splits(key: str, n_sites: int, n_sets: int, **options: float) -> tuple[int, int]:
    return count(
        not exact(homogeneous(key, n_sites, k, **options), [0] * n_sites) for k in range(n_sets)
    )


def recovered(design: str, n_sites: int, n_sets: int, **options: float) -> tuple[int, int]:
    truth = truth_of(design, n_sites)
    return count(exact(grouped(design, n_sites, k, **options), truth) for k in range(n_sets))


# what is measured

MARGIN = 0.03
NULLS: dict[str, dict] = {  # equal functions; the test is taken without a margin
    "50 and 50 rows": {"sizes": (50, 50)},
    "500 and 500 rows": {"sizes": (500, 500)},
    "50 and 2000 rows": {"sizes": (50, 2000)},
    "50 and 500 rows, noise .1 and 10": {"sizes": (50, 500), "noise": (0.1, 10.0)},
    "100 and 100 rows, t3 errors": {"sizes": (100, 100), "t3": True},
    "100 and 300 rows, wrong model": {"sizes": (100, 300), "curved": True},
    "200 and 200 rows, means apart": {"sizes": (200, 200), "shift": 0.5},
    "200 and 200 rows, trees": {"sizes": (200, 200), "learn": decision_tree},
}


def pairs(
    key: str,
    n_sets: int,
    sizes: tuple[int, int],
    *,
    noise: tuple[float, float] = (1.0, 1.0),
    t3: bool = False,
    curved: bool = False,
    shift: float = 0.0,
    difference: float = 0.0,
    **options,
) -> tuple[Array, Array, Array]:
    """w, se and z of pairs of sites whose functions differ by E(f_i - f_j)^2 = difference.

    Var f is 1 in both sites, so with noise 1 the variance of y is 2.
    """
    parts = np.empty((3, n_sets))
    for k in range(n_sets):
        rng = stream(22, key, k)
        beta = rng.standard_normal(P)
        beta /= np.linalg.norm(beta)  # Var f = 1
        away = rng.standard_normal(P)
        away -= (away @ beta) * beta
        # to the length sqrt(difference), turning beta so that Var f stays 1
        angle = 2.0 * math.asin(math.sqrt(difference) / 2.0)
        other = math.cos(angle) * beta + math.sin(angle) * away / np.linalg.norm(away)
        sites = draw(rng, np.stack([beta, other]), sizes, noise, t3=t3, shift=shift)
        if curved:  # equal functions that the learner cannot represent
            sites = [(x, y + np.abs(x[:, 0]) * x[:, 1]) for x, y in sites]
        found = compare(sites, **options)
        parts[:, k] = found.difference[0, 1], found.standard_error[0, 1], found.z[0, 1]
    return parts[0], parts[1], parts[2]


def standardised_mean(w: Array, se: Array) -> tuple[float, float]:
    """Mean of w in units of its standard error, and the Monte Carlo error of that."""
    w, se = w[~np.isnan(w)], se[~np.isnan(w)]
    unit = math.sqrt(float(np.mean(se**2)))
    return float(w.mean()) / unit, float(w.std(ddof=1)) / unit / math.sqrt(len(w))


def spread_ratio(w: Array, se: Array) -> float:
    """Standard deviation of w over its root mean square standard error."""
    return float(np.nanstd(w, ddof=1)) / math.sqrt(float(np.nanmean(se**2)))


def null(name: str, n_sets: int, **options) -> tuple[Array, Array, Array]:
    return pairs(name, n_sets, **NULLS[name], margin=0.0, **options)


def split_at(ratio: float, n: int, n_sets: int) -> float:
    """Share of pairs told apart whose E(f_i - f_j)^2 is ratio times what the margin tolerates."""
    z = pairs(f"margin {ratio}", n_sets, (n, n), difference=ratio * MARGIN * 2.0)[2]
    return float(np.mean(z > mc.LONE_THRESHOLD))


def power_kept(n: int, n_sets: int, *, grows: bool, own_loss: float = 1.0) -> tuple[float, float]:
    """Difference that is promised to be found with power .8, and the share that is found."""
    se = math.sqrt(float(np.mean(pairs("power", n_sets, (n, n))[1] ** 2)))
    growth = 2.0 * own_loss / n if grows else 0.0
    target = float(mc.detectable(4.0 * MARGIN, se, growth=growth)) / 2.0
    z = pairs("power, apart", n_sets, (n, n), difference=target)[2]
    return target, float(np.mean(z > mc.LONE_THRESHOLD))


def mean_z_between(size: int, n_sets: int) -> Array:
    """Mean z between two random halves of 2 * size equal sites of 100 rows."""
    values = np.empty(n_sets)
    for k in range(n_sets):
        rng = stream(23, "halves", size, k)
        beta = np.tile(rng.standard_normal(P), (2 * size, 1))
        z = compare(draw(rng, beta, [100] * (2 * size), [1.0] * (2 * size)), margin=0.0).z
        values[k] = z[:size, size:].mean()
    return values


# quick tests


def test_fast_cross_fit_is_a_cross_fit():
    rng = stream(24, "cross-fit")
    x, y = rng.standard_normal((43, 3)), rng.standard_normal(43)
    fold = np.arange(43) % N_FOLDS
    found = cross_fitted(with_ones(x), y, fold)
    for k in range(N_FOLDS):
        expected = least_squares(x[fold != k], y[fold != k])(x[fold == k])
        np.testing.assert_allclose(found[fold == k], expected)


@pytest.mark.parametrize("unit", [1000.0, 1e-4])
@pytest.mark.parametrize("design", ["two", "odd flip", "unique"])
def test_units_of_the_response_do_not_change_the_labels(design, unit):
    for n_sites in (2, 3, 5, 8):
        for k in range(5):
            sites = grouped(design, n_sites, k, noise=2.0)
            other = [(x, y * unit) for x, y in sites]
            plain, scaled = compare(sites), compare(other)
            np.testing.assert_allclose(plain.z, scaled.z, rtol=1e-6)
            labels = mc.cluster(plain.z).labels
            np.testing.assert_array_equal(labels, mc.cluster(scaled.z).labels)


def test_homogeneous_sites_are_seldom_split_quick():
    splits = sum(false_splits("quick", n_sites, 60)[0] for n_sites in (2, 3, 5, 8, 20))
    assert splits <= 6  # 300 studies; the rate is below .01, so 6 has a chance of a few percent


@pytest.mark.parametrize("n_sites", [2, 3, 5, 8, 20])
@pytest.mark.parametrize("design", ["two", "two flip", "odd", "odd flip"])
def test_groups_are_found_quick(design, n_sites):
    right, n_sets = recovered(design, n_sites, 20)
    assert right >= 0.95 * n_sets


@pytest.mark.parametrize("n_sites", [2, 3, 4, 5])
def test_unique_sites_are_told_apart_quick(n_sites):
    right, n_sets = recovered("unique", n_sites, 20)
    assert right >= 0.95 * n_sets


def test_training_errors_in_place_of_cross_fitted_ones_split_equal_sites():
    """The negative control: without the cross-fit the mean is off by about 2 standard errors."""
    w, se, z = null("50 and 50 rows", 200, cross_fit=False)
    mean, error = standardised_mean(w, se)
    assert mean > 1.5 + 3 * error
    assert np.mean(z > mc.LONE_THRESHOLD) > 0.4
    mean, error = standardised_mean(*null("50 and 50 rows", 200)[:2])
    assert abs(mean) < 0.3 + 3 * error


# long tests: the figures of docs/proofs/pairwise-test.md


def test_homogeneous_sites_are_split_in_at_most_two_percent():
    found = {n_sites: false_splits("slow", n_sites, 200) for n_sites in HOMOGENEOUS_SITES}
    splits, sets = (sum(part) for part in zip(*found.values()))
    # 1200 studies: at a rate of .02 the Monte Carlo error is .004
    assert splits <= 0.02 * sets, found


@by_turns(
    ["two", "two flip", "odd", "odd flip"],
    {"strong": 1.0, "half": math.sqrt(5.0)},
    names="design, noise",
)
def test_two_groups_and_one_odd_site_are_found(design, noise):
    found = {n_sites: recovered(design, n_sites, 300, noise=noise) for n_sites in (2, 3, 5, 8, 20)}
    # 300 studies: at a rate of .95 the Monte Carlo error is .013
    assert all(right >= 0.95 * sets for right, sets in found.values()), found


def test_unique_sites_are_told_apart():
    found = {n_sites: recovered("unique", n_sites, 300) for n_sites in (2, 3, 4, 5)}
    assert all(right >= 0.95 * sets for right, sets in found.values()), found


@one_in(4, {name: name for name in NULLS}, "name")
def test_equal_functions_have_mean_about_zero(name):
    w, se, z = null(name, 250 if "trees" in name else 1000)
    mean, error = standardised_mean(w, se)
    assert abs(mean) < 0.2 + 2 * error
    assert 0.8 < spread_ratio(w, se) < 1.45
    assert np.mean(z > mc.LONE_THRESHOLD) < 0.05


def test_learning_curve_and_spread_of_least_squares():
    """Mean -(1.33)/12 standard errors and ratio sqrt(2/1.5), both first order."""
    w, se, _ = null("500 and 500 rows", 2000)
    mean, error = standardised_mean(w, se)
    assert mean == pytest.approx(-0.111, abs=3 * error)
    assert spread_ratio(w, se) == pytest.approx(math.sqrt(2 / 1.5), abs=0.06)


def test_what_the_margin_tolerates():
    shares = {ratio: split_at(ratio, 2000, 300) for ratio in (0.0, 0.5, 1.0, 1.5, 2.0)}
    assert shares[0.0] == 0.0 and shares[0.5] <= 0.02
    assert shares[1.0] < 0.15 and shares[2.0] > 0.9


def test_power_that_is_promised():
    """It holds where the standard error grows with the difference; the control without fails."""
    for n in (50, 100, 400):
        assert power_kept(n, 300, grows=True, own_loss=2.0)[1] > 0.8
        assert 0.6 < power_kept(n, 300, grows=True)[1] < 0.9
        assert power_kept(n, 300, grows=False)[1] < 0.5


def test_mean_z_between_equal_clusters_falls_with_the_root_of_their_size():
    for size in (1, 2, 4, 8):
        values = mean_z_between(size, 300)
        assert 0.8 < values.std(ddof=1) * math.sqrt(size) < 1.35
        assert np.mean(values > mc.merge_threshold(size)) < 0.05


# every figure of the page


def report() -> None:
    def line(*parts: object) -> None:
        print(*parts, flush=True)

    line("Equal functions, no margin: mean of w in standard errors, spread ratio, P(z > 1.85)")
    for name in NULLS:
        w, se, z = null(name, 500 if "trees" in name else 2000)
        mean, error = standardised_mean(w, se)
        missing, beyond = np.mean(np.isnan(z)), np.nanmean(z > mc.LONE_THRESHOLD)
        line(
            f"  {name:36s} {mean:+.3f} +- {error:.3f}  {spread_ratio(w, se):.3f}  {beyond:.4f}",
            f"not comparable {missing:.3f}",
        )
    for name in ("50 and 50 rows", "200 and 200 rows, trees"):
        w, se, z = null(name, 500, cross_fit=False)
        mean, error = standardised_mean(w, se)
        line(f"  training errors: {name:20s} {mean:+.3f} +- {error:.3f}", np.mean(z > 1.85))
    line("Share told apart by difference over margin, 2000 and 200 rows")
    for ratio in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        line(f"  {ratio}", split_at(ratio, 2000, 400), split_at(ratio, 200, 400))
    line("Power .8: target E(f_i - f_j)^2 / Var y and share; own loss, Var y, without growth")
    for n in (50, 100, 400):
        kept = [power_kept(n, 500, grows=True), power_kept(n, 500, grows=True, own_loss=2.0)]
        kept.append(power_kept(n, 500, grows=False))
        line(f"  {n}", [(round(target / 2.0, 3), share) for target, share in kept])
    line("Mean z between equal clusters: mean, sd * sqrt(size), P(> threshold)")
    for size in (1, 2, 4, 8, 16):
        values = mean_z_between(size, 400)
        line(
            f"  {size}",
            round(values.mean(), 2),
            round(values.std(ddof=1) * size**0.5, 2),
            np.mean(values > mc.merge_threshold(size)),
        )
    line("Homogeneous: false splits")
    for n_sites in HOMOGENEOUS_SITES:
        line(f"  {n_sites}", false_splits("report", n_sites, 500))
    for ratio, t3 in ((1.0, False), (10.0, False), (10.0, True)):
        line(f"  20 sites of 50 rows, noise ratio {ratio}, t3 {t3}", small_sites(ratio, t3, 500))
    for noise in (1.0, math.sqrt(5.0)):
        line(f"Exact, 100 rows, noise {noise:.2f}")
        for design in ("two", "two flip", "odd", "odd flip", "unique"):
            line(
                f"  {design:9s}",
                {k: recovered(design, k, 500, noise=noise) for k in (2, 3, 5, 8, 20)},
            )


if __name__ == "__main__":
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        sys.exit(report())
