"""Joint fits over parties against pooled fits and textbook versions.

"Relative" is in the 2-norm of the linear predictor throughout.
"""

from __future__ import annotations

import numpy as np
import pytest

from consilience.assisted.kernels.glm import Penalty, family, fit
from consilience.assisted.kernels.joint_glm import Alternation, Partner, SpanModel
from consilience.datasets.simulate_assisted import simulate_setting
from consilience.exceptions import DataError, ParameterError
from replications.assisted_glm.in_one_process import fit_jointly
from replications.assisted_glm.simulate import simulate_canonical
from tests.reference import assisted_glm as textbook

FAMILIES = ["binomial", "poisson", "normal", "log-cosh", "pseudo-huber"]


def _relative(eta, other):
    return float(np.linalg.norm(eta - other) / np.linalg.norm(other))


def _setting(setting, rho, name, n=600):
    rng = np.random.default_rng([setting, round(100 * rho)])
    data = simulate_setting(setting, n, rng=rng, family=name, effects="power", rho=rho)
    return data.columns["a"], data.columns["b"], data.y


def _canonical(correlations, name, n=1000, seed=1):
    data = simulate_canonical(n, list(correlations), rng=np.random.default_rng(seed), family=name)
    return data.columns["a"], data.columns["b"], data.y


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("setting", [1, 2, 3])
@pytest.mark.parametrize("rho", [0.0, 0.1, 0.25])
def test_span_reaches_the_pooled_fit_in_four_rounds(name, setting, rho):
    a, b, y = _setting(setting, rho, name)
    found = fit_jointly(a, [b], y, family(name), n_rounds=4, tol=0)
    assert _relative(found.eta, textbook.pooled([a, b], y, name)) < 1e-6
    assert found.rounds <= 4
    # No more directions than columns that b alone holds: shared ones cost nothing.
    assert found.rank[0] <= [6, 4, 2][setting - 1]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("top", [0.9, 0.99])
def test_span_ends_within_the_rank_at_high_correlation(name, top):
    a, b, y = _canonical(np.linspace(top - 0.2, top, 6), name)
    found = fit_jointly(a, [b], y, family(name), n_rounds=6, tol=0)
    assert _relative(found.eta, textbook.pooled([a, b], y, name)) < 1e-6
    few = fit_jointly(a, [b], y, family(name), n_rounds=2, tol=0)
    assert _relative(few.eta, textbook.pooled([a, b], y, name)) > 1e-6  # the test can fail


@pytest.mark.parametrize("name", ["normal", "binomial"])
def test_fifty_and_fifty_columns(name):
    """20 to 22 rounds over seeds and families, as for conjugate gradients (normal): not fewer."""
    a, b, y = _canonical(np.linspace(0.97, 0, 50), name, n=3000)
    found = fit_jointly(a, [b], y, family(name))
    eta = fit(np.column_stack([a, b]), y, family(name), tol=1e-13).eta
    assert _relative(found.eta, eta) < 1e-6
    assert found.rounds <= 24 and found.stopped == "converged"
    plain = fit_jointly(a, [b], y, family(name), acceleration="none", n_rounds=24, tol=0)
    assert _relative(plain.eta, eta) > 1e-4


@pytest.mark.parametrize("top", [0.5, 0.9])
def test_span_is_conjugate_gradients_for_least_squares(top):
    a, b, y = _canonical(np.linspace(0.1, top, 5), "normal", n=150)
    b = b - b.mean(axis=0)
    steps = textbook.least_squares_by_cg(a, b, y, 5)
    for k, eta in enumerate(steps, start=1):
        found = fit_jointly(a, [b], y, family("normal"), n_rounds=k, tol=0)
        assert _relative(found.eta, eta) < 1e-9


def test_rounds_are_the_number_of_distinct_correlations():
    rng = np.random.default_rng(3)
    q, _ = np.linalg.qr(np.column_stack([np.ones(400), rng.normal(size=(400, 12))]))
    rho = np.array([0.9, 0.9, 0.9, 0.4, 0.4, 0.4])
    a, b = q[:, 1:7], q[:, 1:7] * rho + q[:, 7:] * np.sqrt(1 - rho**2)
    y = rng.normal(size=400)
    found = fit_jointly(a, [b], y, family("normal"), tol=0)
    assert found.rounds == 2 and found.stopped == "nothing new"
    assert _relative(found.eta, textbook.pooled([a, b], y, "normal")) < 1e-10


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_alternation_is_the_textbook_one(name):
    a, b, y = _setting(2, 0.25, name, n=250)
    b = b - b.mean(axis=0)
    for k, eta in enumerate(textbook.alternation(a, b, y, name, 4)):
        found = fit_jointly(a, [b], y, family(name), acceleration="none", n_rounds=k, tol=0)
        # The first step's error of a local fit is left at 1e-6 of it.
        assert _relative(found.eta, eta) < 1e-6


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("acceleration", ["span", "anderson", "none"])
def test_the_deviance_never_rises_and_ends_at_or_below_plain_alternation(name, acceleration):
    a, b, y = _canonical([0.2, 0.6, 0.9, 0.97], name, n=500)
    plain = fit_jointly(a, [b], y, family(name), acceleration="none", n_rounds=12, tol=0)
    found = fit_jointly(a, [b], y, family(name), acceleration=acceleration, n_rounds=12, tol=0)
    size = abs(found.deviances[0])
    assert np.all(np.diff(found.deviances) <= 1e-11 * size)
    assert found.deviances[-1] <= plain.deviances[-1] + 1e-11 * size
    if acceleration == "span":
        rounds = min(found.rounds, plain.rounds)
        assert np.all(found.deviances[: rounds + 1] <= plain.deviances[: rounds + 1] * (1 + 1e-9))


def test_anderson_needs_far_fewer_rounds_than_alternation():
    a, b, y = _canonical(np.linspace(0.2, 0.9, 6), "binomial")
    eta = textbook.pooled([a, b], y, "binomial")
    fast = fit_jointly(a, [b], y, family("binomial"), acceleration="anderson", n_rounds=15, tol=0)
    slow = fit_jointly(a, [b], y, family("binomial"), acceleration="none", n_rounds=15, tol=0)
    assert _relative(fast.eta, eta) < 1e-6 < 1e-2 * _relative(slow.eta, eta)


def test_stopping():
    a, b, y = _canonical([0.3, 0.5, 0.7, 0.8], "binomial")
    fam = family("binomial")
    easy = _setting(1, 0.1, "binomial")
    assert fit_jointly(easy[0], [easy[1]], easy[2], fam).stopped == "converged"
    cut = fit_jointly(a, [b], y, fam, n_rounds=2, tol=0)
    assert (cut.stopped, cut.rounds, cut.changes.size, cut.deviances.size) == ("rounds", 2, 2, 3)
    few = fit_jointly(a, [b], y, fam, tol=0, max_rank=3)
    assert (few.stopped, few.rank, few.directions[0].shape) == ("rank", [3], (4, 3))
    full = fit_jointly(a, [b], y, fam, tol=0)
    assert (full.stopped, full.rank) == ("nothing new", [4])
    none = fit_jointly(a, [b], y, fam, max_rank=0)
    assert (none.stopped, none.rounds) == ("rank", 0)
    assert _relative(none.eta, textbook.pooled([a], y, "binomial")) < 1e-9
    plain = fit_jointly(a, [b], y, fam, acceleration="none", tol=0, max_rank=3)
    assert (plain.stopped, plain.rank, plain.rounds) == ("rank", [3], 3)


def test_what_remains_is_the_deviance_that_one_more_fit_gains():
    a, b, y = _canonical([0.3, 0.5, 0.7, 0.8], "binomial")
    fam = family("binomial")
    few = fit_jointly(a, [b], y, fam, tol=0, max_rank=2)
    part = (b - few.centres[0]) @ few.betas[0]
    one_more = fit(b, y, fam, offset=few.eta - part)
    gained = few.deviances[-1] - one_more.deviance
    assert few.gains[0] == pytest.approx(gained, rel=0.02)
    assert gained > 0
    assert fit_jointly(a, [b], y, fam, tol=0).gains[0] < 1e-12


def test_three_partners_with_a_column_that_two_of_them_hold():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(800, 9)) @ np.linalg.cholesky(0.5 * np.eye(9) + 0.5)
    blocks = [x[:, 2:5], x[:, 4:7], x[:, 7:]]
    y = (rng.random(800) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.5, 9)))).astype(float)
    eta = textbook.pooled([x], y, "binomial")
    found = fit_jointly(x[:, :2], blocks, y, family("binomial"), tol=0)
    assert _relative(found.eta, eta) < 1e-8
    assert sum(found.rank) <= 7
    assert np.allclose(found.predict(x[:, :2], blocks), found.eta, atol=1e-9)
    for acceleration, rounds, error in (("anderson", 25, 1e-6), ("none", 100, 1e-5)):
        other = fit_jointly(
            x[:, :2],
            blocks,
            y,
            family("binomial"),
            acceleration=acceleration,
            n_rounds=rounds,
            tol=1e-9,
        )
        assert _relative(other.eta, eta) < error
        assert np.all(np.diff(other.deviances) <= 1e-9)


@pytest.mark.parametrize("name", ["normal", "binomial", "poisson"])
@pytest.mark.parametrize("acceleration", ["span", "anderson", "none"])
def test_ridge_is_the_pooled_ridge_fit(name, acceleration):
    a, b, y = _setting(2, 0.25, name)  # with shared columns: the penalty splits them
    found = fit_jointly(
        a,
        [b],
        y,
        family(name),
        acceleration=acceleration,
        n_rounds=200 if acceleration == "none" else 30,
        tol=1e-10,
        penalty=Penalty(0.05),
    )
    assert found.acceleration == acceleration
    assert _relative(found.eta, textbook.pooled([a, b], y, name, ridge=0.05)) < 1e-6
    assert np.all(np.diff(found.objectives) <= 1e-10 * abs(found.objectives[0]))
    if acceleration == "span":
        assert found.rounds <= 9


def test_lasso_falls_back_to_anderson():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(300, 12)) + 0.7 * rng.normal(size=(300, 1))
    y = x[:, 0] - x[:, 7] + rng.normal(size=300)
    penalty = Penalty(0.1, 1.0)
    found = fit_jointly(
        x[:, :6], [x[:, 6:]], y, family("normal"), penalty=penalty, tol=1e-9, n_rounds=60
    )
    assert found.acceleration == "anderson"
    pooled = fit(x, y, family("normal"), penalty=penalty)
    assert _relative(found.eta, pooled.eta) < 1e-5
    assert np.all(np.diff(found.objectives) <= 1e-9)
    assert np.isnan(found.gains[0])


def test_a_masked_response():
    a, b, y = _setting(1, 0.1, "binomial", n=2000)
    flips = np.random.default_rng(6).random(2000) < 0.15
    shown = np.where(flips, 1 - y, y)
    found = fit_jointly(a, [b], shown, family("binomial", mask=0.15), tol=0, n_rounds=8)
    eta = textbook.pooled([a, b], shown, "binomial", mask=0.15)
    assert _relative(found.eta, eta) < 1e-6


@pytest.mark.parametrize("acceleration", ["span", "anderson", "none"])
def test_rows_without_weight_take_no_part_but_are_predicted(acceleration):
    a, b, y = _canonical([0.3, 0.6], "poisson", n=500)
    weights = (np.arange(500) < 400).astype(float)
    hidden = np.where(weights > 0, y, np.nan)
    options = {"acceleration": acceleration, "tol": 1e-11, "n_rounds": 60}
    found = fit_jointly(a, [b], hidden, family("poisson"), weights=weights, **options)
    part = fit_jointly(a[:400], [b[:400]], y[:400], family("poisson"), **options)
    assert _relative(found.eta[:400], part.eta) < 1e-7
    assert np.allclose(found.eta[400:], part.predict(a[400:], [b[400:]]), atol=1e-6)


def test_dependent_columns_within_a_party_and_awkward_units():
    a, b, y = _canonical([0.3, 0.6, 0.8], "binomial")
    wide_a = np.column_stack([a * [1e4, 1, 1e-4] + [2000, 0, 0], a[:, 0] + a[:, 1], np.ones(1000)])
    wide_b = np.column_stack([b * [1, 1e5, 1], b[:, 0] - b[:, 2], a[:, 1]])
    found = fit_jointly(wide_a, [wide_b], y, family("binomial"), tol=0)
    assert _relative(found.eta, textbook.pooled([a, b], y, "binomial")) < 1e-8
    assert found.rank == [3]


def _by_hand(a, b, y, fam, rounds, reload):
    """The exchange of two sites that keep only arrays between steps."""
    model, partner = SpanModel(a, y, fam), Partner(b, y, fam)
    for _ in range(rounds):
        if reload:
            model = SpanModel(a, y, fam, state=model.to_state())
            partner = Partner(b, y, fam, state=partner.to_state())
        answer = partner.respond(model.offset_for(0), model.weights_for(0))
        if not model.add(answer.message, 0):
            break
        partner.keep(answer.direction)
        model.refit()
    model.refit(share=0)
    return model, partner


def test_state_survives_between_steps():
    a, b, y = _canonical([0.3, 0.6, 0.8], "binomial")
    fam = family("binomial")
    model, partner = _by_hand(a, b, y, fam, 2, reload=False)
    again, partner_again = _by_hand(a, b, y, fam, 2, reload=True)
    assert all(isinstance(value, np.ndarray) for value in again.to_state().values())
    assert np.allclose(again.eta, model.eta, rtol=0, atol=1e-12)
    assert np.allclose(partner_again.betas, partner.betas, rtol=0, atol=1e-12)
    parts = a @ model.coef_a + model.intercept + b @ (partner.betas @ model.weights_for(0))
    assert np.allclose(parts, model.eta, atol=1e-10)
    assert np.allclose(model.messages, b @ partner.betas, atol=1e-10)

    one = Alternation(a, y, fam, 1, depth=6)
    two = Alternation(a, y, fam, 1, depth=6)
    side = Partner(b, y, fam)
    for _ in range(5):
        two = Alternation(a, y, fam, 1, depth=6, state=two.to_state())
        answer = side.respond(one.offset_for(0))
        for model_ in (one, two):
            model_.receive(answer.message, 0, answer.penalty)
    assert np.allclose(one.eta, two.eta, rtol=0, atol=1e-11)


def test_whole_predictors_as_messages_do_as_well():
    """A partner that sends its whole predictor spans the same space."""
    a, b, y = _canonical([0.3, 0.6, 0.8], "binomial")
    fam = family("binomial")
    model, partner = SpanModel(a, y, fam), Partner(b, y, fam)
    for _ in range(3):
        answer = partner.respond(model.offset_for(0))
        assert model.add(answer.message, 0)
        partner.keep(answer.direction)
        model.refit()
    model.refit(share=0)
    assert _relative(model.eta, textbook.pooled([a, b], y, "binomial")) < 1e-8
    assert not model.add(partner.respond(model.offset_for(0)).message, 0)


def test_what_is_not_new():
    a, b, y = _canonical([0.3, 0.6], "binomial")
    model = SpanModel(a, y, family("binomial"))
    assert not model.add(a @ [1.0, 2.0] + 3, 0)
    assert model.add(b[:, 0], 0)
    assert not model.add(b[:, 0] - 2 * a[:, 1], 0)
    assert not model.add(np.zeros(1000), 0)
    assert model.add(b[:, 1], 1)
    model.refit(share=0)
    assert _relative(model.eta, textbook.pooled([a, b], y, "binomial")) < 1e-9
    assert np.allclose(model.part_of(1), b[:, 1] * model.weights_for(1), atol=1e-10)
    assert np.allclose(model.offset_for(1), model.eta - model.part_of(1))


def test_refusals():
    a, b, y = _canonical([0.3], "binomial", n=100)
    fam = family("binomial")
    with pytest.raises(ParameterError, match="acceleration"):
        fit_jointly(a, [b], y, fam, acceleration="fast")
    with pytest.raises(ParameterError, match="max_rank"):
        fit_jointly(a, [b], y, fam, max_rank=-1)
    with pytest.raises(ParameterError, match="L1"):
        SpanModel(a, y, fam, penalty=Penalty(0.1, 0.5))
    with pytest.raises(DataError, match="row per record"):
        fit_jointly(a, [b[:50]], y, fam)
    with pytest.raises(DataError, match="finite number per record"):
        SpanModel(a, y, fam).add(np.full(100, np.nan), 0)
    with pytest.raises(DataError, match="inner product"):
        SpanModel(a, y, fam, penalty=Penalty(0.1)).add(b[:, 0], 0)
    with pytest.raises(DataError, match="weights"):
        fit_jointly(a, [b], y, fam, weights=np.zeros(100))
