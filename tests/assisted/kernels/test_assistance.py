"""Sketches: their price, tests of what they add, power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import chi2

from consilience.assisted.kernels import assistance
from consilience.assisted.kernels.glm import Penalty, family
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.families import NAMES
from tests.reference import assistance as textbook

pytestmark = pytest.mark.filterwarnings("error")

STATISTICS = ("wald", "wald_hc3", "score", "lr")


def draw(name: str, n: int = 250, seed: int = 0, effect: float = 0.15):
    rng = np.random.default_rng(seed)
    x_a = rng.normal(size=(n, 3))
    z = rng.normal(size=(n, 4)) + 0.5 * x_a[:, :1]
    eta = 0.2 + x_a @ np.array([0.4, -0.3, 0.2]) + effect * z.sum(axis=1)
    return x_a, z, answer(name, eta, rng)


def answer(name: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    n = eta.size
    if name == "binomial":
        return (rng.uniform(size=n) < expit(eta)).astype(float)
    if name == "poisson":
        return rng.poisson(np.exp(eta)).astype(float)
    if name in ("gamma", "tweedie"):
        y = rng.gamma(2, np.exp(eta) / 2)
        return np.where(rng.uniform(size=n) < 0.2, 0, y) if name == "tweedie" else y
    return eta + rng.normal(size=n)


@pytest.mark.parametrize("geometry", ["box", "ball"])
@pytest.mark.parametrize("t", range(1, 16))
def test_epsilon_is_the_exact_supremum(t: int, geometry: str) -> None:
    rng = np.random.default_rng(t)
    directions = assistance.draw_directions(7, t, rng)
    bound, scale = 1.7, 0.4
    exact = assistance.sensitivity(directions, geometry=geometry, bound=bound) / scale
    if t <= 11:
        assert exact == pytest.approx(
            textbook.epsilon(directions, scale, geometry, bound), rel=1e-12
        )
        worst = textbook.worst_difference(directions, geometry, bound)
        reached = np.sum(np.abs(directions.T @ worst)) / scale
        assert reached == pytest.approx(exact, abs=1e-9)
    # A random search, half of it on the border where the supremum lies, never exceeds it.
    d = rng.uniform(-bound, bound, size=(4000, 7))
    d[:2000] = np.where(d[:2000] > 0, bound, -bound)
    if geometry == "ball":
        length = np.linalg.norm(d, axis=1, keepdims=True)
        d *= (
            2
            * bound
            / length
            * np.where(np.arange(4000) < 2000, 1, rng.uniform(size=4000))[:, None]
        )
    found = np.sum(np.abs(d @ directions), axis=1) / scale
    assert np.max(found) <= exact * (1 + 1e-12)
    assert np.max(found) > 0.6 * exact
    assert exact <= assistance.loose_epsilon(directions, scale, geometry=geometry, bound=bound)


@pytest.mark.parametrize("geometry", ["box", "ball"])
def test_scale_and_epsilon_are_each_other_s_inverse(geometry: str) -> None:
    directions = assistance.draw_directions(12, 5, np.random.default_rng(0))
    for epsilon in (0.1, 1.0, 8.0):
        scale = assistance.noise_scale(directions, epsilon, geometry=geometry, bound=2.0)
        back = assistance.sensitivity(directions, geometry=geometry, bound=2.0) / scale
        assert back == pytest.approx(epsilon, rel=1e-12)


def test_loose_epsilon_is_the_source_s() -> None:
    directions = assistance.draw_directions(9, 5, np.random.default_rng(0))
    assert assistance.loose_epsilon(directions, 0.5) == pytest.approx(5 * 3 / 0.5)
    assert assistance.loose_epsilon(directions, 0.5, geometry="ball", bound=2.0) == pytest.approx(
        40
    )


def test_prices_are_refused_outside_their_range() -> None:
    rng = np.random.default_rng(0)
    directions = assistance.draw_directions(4, 2, rng)
    for wrong in (
        lambda: assistance.draw_directions(4, 16, rng),
        lambda: assistance.draw_directions(4, 0, rng),
        lambda: assistance.noise_scale(np.ones((4, 16)), 1.0),
        lambda: assistance.noise_scale(directions, 0.0),
        lambda: assistance.noise_scale(directions, -1.0),
        lambda: assistance.noise_scale(directions, 1.0, bound=math.inf),
        lambda: assistance.noise_scale(directions, 1.0, geometry="cone"),  # type: ignore[arg-type]
        lambda: assistance.to_box(np.ones((2, 2)), [0, 1], [1, 1]),
        lambda: assistance.clip_to_ball(np.ones((2, 2)), 0.0),
    ):
        with pytest.raises(ParameterError):
            wrong()
    with pytest.raises(DataError):
        assistance.to_box(np.array([[np.nan]]), 0, 1)


def test_directions_are_unit_and_uniform() -> None:
    rng = np.random.default_rng(3)
    drawn = np.concatenate([assistance.draw_directions(6, 15, rng) for _ in range(200)], axis=1)
    assert np.allclose(np.linalg.norm(drawn, axis=0), 1)
    # Each coordinate of 3,000 has variance 1/6: standard error of the mean .0075; its square has
    # variance 2(p-1)/(p^2(p+2)) = .0347: standard error of the mean square .0034.
    assert np.all(np.abs(drawn.mean(axis=1)) < 4 * 0.0075)
    assert np.all(np.abs((drawn**2).mean(axis=1) - 1 / 6) < 4 * 0.0034)


def test_clipping_counts_records() -> None:
    x = np.array([[0.0, 10.0], [5.0, 20.0], [-1.0, 31.0], [10.0, 30.0]])
    boxed, clipped = assistance.to_box(x, [0, 10], [10, 30])
    assert clipped == 1
    assert np.allclose(boxed, [[0, 0], [0.5, 0.5], [0, 1], [1, 1]])
    short, clipped = assistance.clip_to_ball(np.array([[3.0, 4.0], [0.3, 0.4], [0, 0]]), 1.0)
    assert clipped == 1
    assert np.allclose(short, [[0.6, 0.8], [0.3, 0.4], [0, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_the_textbook_s(name: str) -> None:
    x_a, z, y = draw(name)
    found = assistance.sketch_test(x_a, z, y, family(name))
    for kind, value in textbook.sketch_test(name, x_a, z, y).items():
        assert getattr(found, kind) == pytest.approx(value, rel=1e-6)
        if kind != "score":
            p = getattr(found, f"p_{kind}")
            assert p == pytest.approx(chi2.sf(getattr(found, kind), 4), rel=1e-9)
    assert found.df == 4
    assert found.p_lr == pytest.approx(chi2.sf(found.lr, 4), rel=1e-9)


@pytest.mark.parametrize("penalty", [None, Penalty(1e-9)])
@pytest.mark.parametrize("name", ["poisson", "binomial"])
def test_an_offset_is_in_both_models(name: str, penalty: Penalty | None) -> None:
    x_a, z, y = draw(name)
    offset = np.log(np.random.default_rng(3).uniform(0.2, 5.0, size=len(y)))
    found = assistance.sketch_test(x_a, z, y, family(name), offset=offset, penalty=penalty)
    for kind, value in textbook.sketch_test(name, x_a, z, y, offset=offset).items():
        assert getattr(found, kind) == pytest.approx(value, rel=1e-4 if penalty else 1e-6)


@pytest.mark.parametrize("name", ["normal", "binomial", "gamma"])
def test_flipped_residuals_are_the_textbook_s(name: str) -> None:
    x_a, z, y = draw(name, n=60, effect=0.05)
    signs = np.random.default_rng(assistance.FEW).choice([-1.0, 1.0], (assistance.N_FLIPS, 60))
    wanted = textbook.flipped_scores(name, x_a, z, y, signs)
    found = assistance.sketch_test(x_a, z, y, family(name))
    above = (wanted >= found.score).sum()
    assert found.score < np.quantile(wanted, 0.99)
    assert found.p_score == pytest.approx((1 + above) / 1000, abs=1.5e-3)
    # Whatever the coordinates of the sketch.
    turned = assistance.sketch_test(x_a, z @ np.array(np.triu(np.ones((4, 4)))), y, family(name))
    assert turned.p_score == pytest.approx(found.p_score, abs=1.5e-3)


@pytest.mark.parametrize("name", ["normal", "binomial", "gamma"])
def test_statistics_and_flips_of_clusters_are_the_textbook_s(name: str) -> None:
    x_a, z, y = draw(name, n=120, effect=0.05)
    of = np.random.default_rng(2).permutation(np.arange(120) // 6)
    found = assistance.sketch_test(x_a, z, y, family(name), cluster=of)
    for kind, value in textbook.sketch_test(name, x_a, z, y, cluster=of).items():
        assert getattr(found, kind) == pytest.approx(value, rel=1e-6)
    signs = np.random.default_rng(assistance.FEW).choice([-1.0, 1.0], (assistance.N_FLIPS, 20))
    wanted = textbook.flipped_scores(name, x_a, z, y, signs, of)
    above = (wanted >= found.score).sum()
    assert found.score < np.quantile(wanted, 0.99)
    assert found.p_score == pytest.approx((1 + above) / 1000, abs=1.5e-3)
    # A cluster for each record is no cluster.
    alone = assistance.sketch_test(x_a, z, y, family(name), cluster=np.arange(120))
    plain = assistance.sketch_test(x_a, z, y, family(name))
    assert (alone.score, alone.p_score) == pytest.approx((plain.score, plain.p_score))


def test_size_of_the_score_test_with_clusters() -> None:
    """400 replications at .05, error .011; 2,000 of more designs: assisted_glm/robust.

    Control: as if the records were independent it rejects more than twice as often.
    """
    rejected = np.zeros(2)
    for seed in range(400):
        rng = np.random.default_rng((seed, 30))
        of = np.repeat(np.arange(30), 10)
        x = rng.normal(size=(30, 5))[of] + rng.normal(size=(300, 5))
        y = answer("normal", 0.7 * rng.normal(size=30)[of] + 0.3 * x[:, 0], rng)
        for i, cluster in enumerate((of, None) if seed < 100 else (of,)):
            test = assistance.sketch_test(x[:, :3], x[:, 3:], y, family("normal"), cluster=cluster)
            rejected[i] += test.p_score <= 0.05
    assert abs(rejected[0] / 400 - 0.05) <= 3 * 0.011
    assert rejected[1] / 100 > 0.1


def test_few_clusters_are_said_and_their_signs_are_all() -> None:
    x_a, z, y = draw("normal", n=60)
    found = assistance.sketch_test(x_a, z, y, family("normal"), cluster=np.arange(60) // 12)
    assert math.isnan(found.score)
    assert any("hardly more clusters than directions" in words for words in found.warnings)
    # Of five signs one in 16 is the same for all, or for none.
    found = assistance.sketch_test(x_a, z[:, :1], y, family("normal"), cluster=np.arange(60) // 12)
    assert found.p_score > 0.05


def test_the_tail_of_chi_squared_goes_on_from_flips() -> None:
    flipped = chi2.ppf((np.arange(999) + 0.5) / 999, 3)
    for p in (0.5, 0.05, 0.02):
        assert assistance.flip_p(chi2.isf(p, 3), flipped, 3) == pytest.approx(p, abs=2e-3)
    assert assistance.flip_p(chi2.isf(1e-12, 3), flipped, 3) == pytest.approx(1e-12, rel=0.1)
    # Of flips that reach half as far, as of few records, less is enough.
    assert assistance.flip_p(4.0, flipped / 2, 3) == pytest.approx(chi2.sf(8.0, 3), abs=2e-3)
    assert assistance.flip_p(20.0, flipped / 2, 3) < chi2.sf(20.0, 3)
    for unknown in (np.empty(0), np.full(999, np.nan)):
        assert assistance.flip_p(3.0, unknown, 3) == pytest.approx(chi2.sf(3.0, 3))
    assert math.isnan(assistance.flip_p(math.nan, np.empty(0), 3))


def test_many_records_have_the_chi_squared_tail() -> None:
    x_a, z, y = draw("normal", n=assistance.FEW + 1, effect=0.03)
    found = assistance.sketch_test(x_a, z, y, family("normal"))
    assert found.p_score == pytest.approx(chi2.sf(found.score, 4), rel=1e-9)


def test_size_of_the_score_test_with_few_records_a_parameter() -> None:
    """300 replications at .05, error .013; 2,000 of more designs: assisted_glm/few_records.

    Four records a parameter. By the chi-squared tail without leverages it was .08 or more.
    """
    rejected = 0
    for seed in range(300):
        rng = np.random.default_rng((seed, 50))
        x_a = rng.normal(size=(50, 11))
        z = rng.normal(size=(50, 3)) + 0.3 * x_a[:, :1]
        y = answer("normal", 0.3 * x_a[:, :3].sum(axis=1), rng)
        rejected += assistance.sketch_test(x_a, z, y, family("normal")).p_score <= 0.05
    assert 0.05 - 3 * 0.013 <= rejected / 300 <= 0.05 + 2 * 0.013


def test_statistics_of_a_masked_response() -> None:
    x_a, z, y = draw("binomial", n=1500, effect=0.4)
    y = np.where(np.random.default_rng(1).uniform(size=1500) < 0.1, 1 - y, y)
    found = assistance.sketch_test(x_a, z, y, family("binomial", mask=0.1))
    for kind, value in textbook.sketch_test("binomial", x_a, z, y, mask=0.1).items():
        assert getattr(found, kind) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("name", ["normal", "binomial", "poisson"])
def test_wald_and_likelihood_ratio_of_statsmodels(name: str) -> None:
    import statsmodels.api as sm

    kind = {
        "normal": sm.families.Gaussian(),
        "binomial": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
    }[name]
    x_a, z, y = draw(name, n=800)
    found = assistance.sketch_test(x_a, z, y, family(name))
    full = np.column_stack([np.ones(800), x_a, z])
    model = sm.GLM(y, full, family=kind)
    robust = model.fit(cov_type="HC0", tol=1e-14, maxiter=100)
    wald = robust.wald_test(np.eye(8)[4:], scalar=True).statistic
    assert found.wald == pytest.approx(float(wald), abs=1e-6)
    alone = sm.GLM(y, full[:, :4], family=kind).fit(tol=1e-14)
    dispersion = robust.scale if name == "normal" else 1.0
    assert found.lr == pytest.approx((alone.deviance - robust.deviance) / dispersion, rel=1e-8)


@pytest.mark.parametrize("name", ["normal", "binomial"])
def test_dependent_columns_cost_no_degrees_of_freedom(name: str) -> None:
    x_a, z, y = draw(name)
    plain = assistance.sketch_test(x_a, z, y, family(name))
    noise = 1e-11 * np.random.default_rng(2).normal(size=len(y))
    more = np.column_stack([z, z[:, 0] - z[:, 1], 2 * x_a[:, 1] + 1 + noise, np.ones(len(y))])
    found = assistance.sketch_test(np.column_stack([x_a, x_a[:, 0]]), more, y, family(name))
    assert found.kept.tolist() == [True] * 4 + [False] * 3
    assert found.df == 4
    for kind in STATISTICS:
        assert getattr(found, kind) == pytest.approx(getattr(plain, kind), rel=1e-7)
    assert any("left out" in note for note in found.warnings)
    nothing = assistance.sketch_test(x_a, x_a[:, :2], y, family(name))
    assert (nothing.df, nothing.p_wald, nothing.p_score) == (0, 1.0, 1.0)


def test_nearly_dependent_sketches_are_exact() -> None:
    x_a, z, y = draw("binomial")
    plain = assistance.sketch_test(x_a, z, y, family("binomial"))
    close = x_a[:, :1] * 3 + z * 1e-5
    found = assistance.sketch_test(x_a, close, y, family("binomial"))
    for kind in STATISTICS:
        assert getattr(found, kind) == pytest.approx(getattr(plain, kind), rel=1e-6)


def test_weights_zero_are_a_subset_and_given_a_column() -> None:
    x_a, z, y = draw("poisson")
    part = np.arange(len(y)) % 3 > 0
    found = assistance.sketch_test(x_a, z, y, family("poisson"), weights=part.astype(float))
    alone = assistance.sketch_test(x_a[part], z[part], y[part], family("poisson"))
    extra = z @ np.array([1.0, 2.0, 0, 0])
    given = assistance.sketch_test(x_a, z[:, :1], y, family("poisson"), given=extra)
    column = assistance.sketch_test(np.column_stack([x_a, extra]), z[:, :1], y, family("poisson"))
    for kind in STATISTICS:
        assert getattr(found, kind) == pytest.approx(getattr(alone, kind), rel=1e-8)
        assert getattr(given, kind) == pytest.approx(getattr(column, kind), rel=1e-9)


def test_power_beside_a_partner_whose_columns_are_much_alike() -> None:
    """200 replications, error .02: columns of c correlated .9 with those of b, all of b known.

    Control: with the part of b in a fit without c as the only column, a test has little power and
    no size: the part is fitted to the response as if it were c's.
    """
    rejected = np.zeros((2, 2))
    for seed in range(200):
        rng = np.random.default_rng((seed, 1200))
        x_a, b = rng.normal(size=(1200, 3)), rng.normal(size=(1200, 5))
        c = 0.9 * b + np.sqrt(1 - 0.9**2) * rng.normal(size=(1200, 5))
        own = x_a @ [0.3, -0.3, 0.2] + b @ rng.normal(0, 0.3, size=5) + rng.normal(size=1200)
        z = c @ assistance.draw_directions(5, 3, rng)
        for i, y in enumerate((own, own + c @ rng.normal(0, 0.3, size=5))):
            null = np.column_stack([np.ones(1200), x_a, b])
            part = b @ np.linalg.lstsq(null, y, rcond=None)[0][4:]
            for j, given in enumerate((b, part[:, None])):
                found = assistance.sketch_test(x_a, z, y, family("normal"), given=given)
                rejected[i, j] += found.p_score <= 0.05
    size, power = rejected / 200
    assert abs(size[0] - 0.05) <= 3 * 0.016
    assert power[0] >= 0.85
    assert size[1] <= 0.01 and power[1] < power[0] - 0.1


def test_rare_classes_separation_and_too_many_columns_are_said() -> None:
    x_a, z, y = draw("binomial")
    rare = np.zeros(len(y))
    rare[::12] = 1
    found = assistance.sketch_test(x_a, z, rare, family("binomial"))
    assert found.minority_per_parameter == pytest.approx(21 / 8)
    assert any("rejects too often" in note for note in found.warnings)
    assert math.isnan(
        assistance.sketch_test(x_a, z, y + 1, family("poisson")).minority_per_parameter
    )
    apart = assistance.sketch_test(x_a, z, (z[:, 0] > 0).astype(float), family("binomial"))
    assert any("separate" in note for note in apart.warnings)
    assert apart.p_score < 1e-6
    wide = np.random.default_rng(0).normal(size=(20, 16))
    few = assistance.sketch_test(x_a[:20], wide, rare[:20], family("binomial"))
    assert math.isnan(few.p_wald)
    assert any("as many parameters as records" in note for note in few.warnings)


def test_small_penalty_changes_little_and_large_is_warned_of() -> None:
    x_a, z, y = draw("binomial")
    plain = assistance.sketch_test(x_a, z, y, family("binomial"))
    for l1_ratio in (0.0, 1.0):
        slight = assistance.sketch_test(
            x_a, z, y, family("binomial"), penalty=Penalty(1e-7, l1_ratio)
        )
        for kind in ("wald", "wald_hc3", "score"):
            assert getattr(slight, kind) == pytest.approx(getattr(plain, kind), rel=1e-3)
        assert math.isnan(slight.lr)
        assert slight.warnings == plain.warnings
    heavy = assistance.sketch_test(x_a, z, y, family("binomial"), penalty=Penalty(0.1, 1.0))
    assert any("penalty" in note for note in heavy.warnings)


def test_level_under_the_null() -> None:
    # 400 replications at level .05 have a Monte Carlo error of .011; bounds at 3.5 of them, .038.
    # Each replication draws its own sketch of columns that the response does not depend on.
    rng = np.random.default_rng(11)
    rejected = dict.fromkeys(STATISTICS, 0)
    for _ in range(400):
        x_a = rng.uniform(size=(400, 4))
        x_b = 0.5 * rng.uniform(size=(400, 6)) + 0.2 * x_a[:, :1]
        z = x_b @ assistance.draw_directions(6, 3, rng)
        y = answer("binomial", 0.5 * x_a.sum(axis=1) - 1, rng)
        found = assistance.sketch_test(x_a, z, y, family("binomial"))
        for kind in STATISTICS:
            rejected[kind] += getattr(found, f"p_{kind}") < 0.05
    for kind in STATISTICS:
        assert abs(rejected[kind] / 400 - 0.05) < 0.038, kind


def test_model_based_test_fails_where_the_variance_is_wrong() -> None:
    # Negative control: errors grow with the sketch's column. The likelihood ratio's true size is
    # then about .25 (its statistic is chi-squared times E z^4 / (E z^2)^2 = 3); the error is .02.
    rng = np.random.default_rng(12)
    rejected = dict.fromkeys(STATISTICS, 0)
    for _ in range(400):
        x_a, z = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
        y = x_a.sum(axis=1) + z[:, 0] * rng.normal(size=300)
        found = assistance.sketch_test(x_a, z, y, family("normal"))
        for kind in STATISTICS:
            rejected[kind] += getattr(found, f"p_{kind}") < 0.05
    assert rejected["lr"] / 400 > 0.18
    for kind in ("wald_hc3", "score"):
        assert abs(rejected[kind] / 400 - 0.05) < 0.038, kind


def test_cauchy_combination() -> None:
    assert assistance.cauchy_combine([0.03]) == 0.03
    assert assistance.cauchy_combine([0.2, 0.2, 0.2]) == pytest.approx(0.2)
    assert assistance.cauchy_combine([0.5, 0.5]) == pytest.approx(0.5)
    p = np.array([0.01, 0.4, 0.9])
    plain = 0.5 - math.atan(np.mean(np.tan((0.5 - p) * np.pi))) / np.pi
    assert assistance.cauchy_combine(p) == pytest.approx(plain, rel=1e-9)
    # For small p the combination is the mean of 1/p, also far below rounding of 1/2.
    assert assistance.cauchy_combine([1e-40, 0.5]) == pytest.approx(2e-40, rel=1e-6)
    assert assistance.cauchy_combine([0.0, 0.5]) == 0.0
    assert assistance.cauchy_combine([0.04, math.nan]) == 0.04
    assert math.isnan(assistance.cauchy_combine([math.nan]))
    assert 0 <= assistance.cauchy_combine([1.0, 0.01]) <= 1
    with pytest.raises(ParameterError):
        assistance.cauchy_combine([1.2])


def test_cauchy_combination_holds_its_level_on_dependent_tests() -> None:
    rng = np.random.default_rng(4)
    shared = rng.normal(size=(20_000, 1))
    each = 0.8 * shared + 0.6 * rng.normal(size=(20_000, 5))
    p = chi2.sf(each**2, 1)
    combined = np.array([assistance.cauchy_combine(row) for row in p])
    # 20,000 replications have a Monte Carlo error of .0015 at .05; it is exact only in the tail.
    assert abs(np.mean(combined < 0.05) - 0.05) < 0.01


def test_reliability() -> None:
    assert assistance.reliability([1.0, 2.0], 0.0) == 1.0
    # Noise of scale .5 has variance .5.
    assert assistance.reliability([1.0, 2.0], 0.5) == pytest.approx((0.5 + 0.75) / 2)
    assert assistance.reliability(np.diag([1.0, 2.0]), 0.5) == pytest.approx(0.625)
    assert assistance.reliability([0.3, 1.0], 0.5) == pytest.approx(0.25)
    rng = np.random.default_rng(0)
    x_a = rng.normal(size=(50_000, 2))
    u = 2 * rng.normal(size=(50_000, 3)) + x_a[:, :1]
    z = u + rng.laplace(scale=1.5, size=u.shape)
    # Given x_a the sketch has variance 4, the noise 4.5: reliability 4 / 8.5.
    residual = assistance.residual_covariance(x_a, z)
    assert assistance.reliability(residual, 1.5) == pytest.approx(4 / 8.5, abs=0.01)


@pytest.mark.parametrize("scale", [0.0, 0.6])
@pytest.mark.parametrize("name", ["normal", "binomial", "poisson"])
def test_power_is_what_a_simulation_finds(name: str, scale: float) -> None:
    rng = np.random.default_rng(21)
    n, t, replications = 500, 3, 400
    theta = np.array([0.10, -0.08, 0.06])
    rejected, weight, residual = 0, 0.0, 0.0
    for _ in range(replications):
        x_a = rng.normal(size=(n, 2))
        u = rng.normal(size=(n, t)) + 0.5 * x_a[:, :1]
        eta = 0.3 * x_a.sum(axis=1) + u @ theta
        z = u + rng.laplace(scale=scale, size=u.shape) if scale else u
        found = assistance.sketch_test(x_a, z, answer(name, eta, rng), family(name))
        rejected += found.p_score < 0.05
        weight += np.mean(family(name).expected_weight(eta)) / replications
        residual += assistance.residual_covariance(x_a, z) / replications
    # Given x_a the columns are independent with variance 1, so the signal per record is
    # E w |theta|^2; weight and sketch are nearly independent.
    reliability = assistance.reliability(residual, scale)
    expected = assistance.power(n, t, weight * float(theta @ theta), reliability)
    # 400 replications: Monte Carlo error at most .025. The approximation is of first order, hence
    # .03 more (Poisson's weights vary with the sketch).
    assert abs(rejected / replications - expected) < 3.5 * 0.025 + 0.03
    assert 0.1 < expected < 0.99


def test_power_at_its_ends() -> None:
    assert assistance.power(100, 3, 0.0, 1.0) == 0.05
    assert assistance.power(100, 3, 0.1, 0.0, level=0.01) == 0.01
    assert assistance.power(10**6, 3, 1.0, 1.0) == 1.0
    assert assistance.power(100, 0, 1.0, 1.0) == 0.0
    curve = [assistance.power(300, 4, e, 0.5) for e in np.linspace(0, 0.2, 21)]
    assert np.all(np.diff(curve) > 0)
    with pytest.raises(ParameterError):
        assistance.power(100, 3, 0.1, 1.5)


def test_tables_that_do_not_fit_are_refused() -> None:
    x_a, z, y = draw("normal")
    with pytest.raises(DataError):
        assistance.sketch_test(x_a[:5], z, y, family("normal"))
    with pytest.raises(DataError):
        assistance.sketch_test(x_a, z, y[:5], family("normal"))
