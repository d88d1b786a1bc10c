"""Masked responses, new people in a later run, limits at the default policy, tests beside a fit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.test import AssistanceTest
from consilience.engines.federation import Federation, Run
from consilience.exceptions import ConsilienceError, StudyError
from consilience.protocol.method import Preparation
from consilience.sites.accounting import Budget
from consilience.sites.policy import Policy
from consilience.testing.fakes import members
from tests.assisted.assisted import SIGNED, Parties, check_tables, parties
from tests.assisted.glm.test_assisted_glm import inverse_link
from tests.reference import held_out_limits as textbook
from tests.sites.homes import records_of

DEFAULT = Policy(preset="consortium", share_response=True)
NOISY = dataclasses.replace(SIGNED, noised=True, max_epsilon=10.0)


def method(name: str = "binomial", **settings: Any) -> AssistedGLM:
    plain = {"family": name, "response": "share", "holdout": 0.0, "exchange": "turns"}
    return AssistedGLM(**{**plain, **settings})


# --------------------------------------------------------------------------- masked response


def given_to(federation: Federation, site: str, run: Run) -> np.ndarray:
    """The response that a partner was given, in the order of the ids; NaN elsewhere."""
    for name, record in records_of(members(federation)[site].home):
        state = record.state
        if name == run.info.run and "y" in state:
            used = np.asarray(state["weights"]) > 0
            return np.where(used, np.asarray(state["y"]), np.nan)
    raise AssertionError("no response came")


@pytest.mark.parametrize("flip", [0.1, 0.3])
def test_masked_fit_is_that_of_the_link_on_pooled_columns(flip: float) -> None:
    pytest.importorskip("opendp")
    them = parties(n=2000, shared=1, seed=40)
    federation = them.federation(NOISY)
    run = method(response="masked", flip=flip).run(federation, seed=1)
    given = given_to(federation, "b", run)
    assert (np.isnan(given) == ~them.known).all()
    pooled = them.pooled("binomial", y=np.nan_to_num(given), mask=flip)
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, pooled.eta, rtol=1e-6, atol=1e-6)
    # Predictions are means of the true response.
    np.testing.assert_allclose(
        them.values(run, "a", "prediction"), 1 / (1 + np.exp(-pooled.eta)), rtol=1e-6
    )
    assert check_tables(run, them, pooled, rtol=1e-5) == 8 - 1 - 1
    assert run.result.flip == flip
    assert any("more than a partner is worth" in n for n in run.notes) == (flip >= 0.3)


def test_masked_as_printed_fits_a_plain_logit_and_maps_back() -> None:
    pytest.importorskip("opendp")
    them = parties(n=1000, seed=41)
    federation = them.federation(NOISY)
    run = method(response="masked", flip=0.2, masking="as_printed").run(federation, seed=1)
    given = given_to(federation, "b", run)
    plain = them.pooled("binomial", y=np.nan_to_num(given))
    np.testing.assert_allclose(them.values(run, "a", "linear_predictor"), plain.eta, atol=1e-7)
    mean = 1 / (1 + np.exp(-plain.eta))
    np.testing.assert_allclose(
        them.values(run, "a", "prediction"), np.clip((mean - 0.2) / 0.6, 0, 1), atol=1e-7
    )


def test_a_mask_is_drawn_once_for_each_row_whatever_run() -> None:
    pytest.importorskip("opendp")
    them = parties(n=500, seed=42)
    policy = dataclasses.replace(NOISY, max_epsilon=1.4)
    federation = them.federation(policy)
    runs = [
        method(response="masked", flip=0.2, holdout=share).run(federation, seed=seed)
        for seed, share in ((1, 0.3), (2, 0.3), (1, 0.2), (3, 0.4))
    ]
    first, again, second, third = (given_to(federation, "b", run) for run in runs)
    np.testing.assert_array_equal(first, again)
    assert (np.isnan(first) != np.isnan(second)).any(), "other rows are held out"
    for one, other in ((first, second), (first, third), (second, third)):
        both = np.isfinite(one) & np.isfinite(other)
        assert both.sum() > 50
        np.testing.assert_array_equal(one[both], other[both])
    # Four runs cost what one does.
    site = members(federation)["a"]
    budget = Budget.read(site.home.ledger("default"))
    assert math.isclose(budget.spent, math.log(0.8 / 0.2))
    # Another probability is another draw, and has its own price.
    with pytest.raises(ConsilienceError, match="a refused"):
        method(response="masked", flip=0.25).run(federation, seed=1)
    # Another partner of the same run gets the same flips.
    three = parties(n=500, sizes=(2, 2, 2), seed=42)
    federation = three.federation(policy)
    run = method(response="masked", flip=0.2).run(federation, seed=1)
    np.testing.assert_array_equal(given_to(federation, "b", run), given_to(federation, "c", run))


def test_masked_needs_opendp(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opendp", None)
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConsilienceError, match="privacy"):
        method(response="masked").run(parties(n=100).federation(NOISY), seed=1)


# --------------------------------------------------------------------------- single responses

OF_PEOPLE = {
    "binomial": ("probability", "probability_lower", "probability_upper"),
    "gamma": ("response_lower", "response_upper"),
    "poisson": ("response_lower", "response_upper"),
    "normal": ("response_lower", "response_upper"),
}


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize("name", OF_PEOPLE)
def test_responses_of_new_people_have_the_limits_that_held_out_rows_give(
    name: str, opens: bool, clustered: bool
) -> None:
    """At default policies, and where the held-out rows joined the fit, by the model before."""
    them = parties(name, n=400, sizes=(3, 5), seed=47)
    if clustered:
        them = them.with_(clusters=np.random.default_rng(1).integers(0, 300, 400).astype(str))
    policy: Any = SIGNED if opens else {"a": DEFAULT, "b": DEFAULT}
    run = AssistedGLM(family=name, response="share", holdout=0.25).run(
        them.federation(policy), seed=1
    )
    held, new = them.values(run, "a", "held_out") == 1, ~them.known
    eta = them.values(run, "a", "linear_predictor")
    if opens:
        eta = them.pooled(name, used=them.known & ~held).eta
    assert run.result.complete is opens and run.result.responses
    weights = np.ones(int(held.sum()))
    if clustered:
        groups = np.asarray(them.clusters)[held]
        weights = 1 / np.array([(groups == one).sum() for one in groups])
    y = them.y[held]
    told = [them.values(run, "a", output) for output in OF_PEOPLE[name]]
    assert all(np.isnan(values[~new]).all() for values in told)
    if name == "binomial":
        both = np.array([textbook.venn_abers(eta[held], y, weights, at) for at in eta[new]])
        np.testing.assert_allclose(np.column_stack(told[1:])[new], both, atol=1e-6)
        np.testing.assert_allclose(told[0][new], both[:, 1] / (1 + both[:, 1] - both[:, 0]))
        return
    power = {"poisson": 0.5, "gamma": 1.0}.get(name, 0.0)
    mean = inverse_link(name, eta)
    scores = np.abs(y - mean[held]) / mean[held] ** power
    for at, low, high in zip(mean[new], told[0][new], told[1][new], strict=True):
        tried = np.arange(0, 60.0) if name == "poisson" else np.linspace(at - 9, at + 9, 333)
        tried = tried if name == "normal" else tried[tried >= 0]
        kept = [
            textbook.response_accepted(scores, weights, abs(v - at) / at**power, 0.95)
            for v in tried
        ]
        assert np.array_equal(kept, (tried >= low) & (tried <= high))


@pytest.mark.parametrize(("name", "holdout", "level"), [("normal", 0.2, 0.99), ("normal", 0, 0.5)])
def test_too_few_held_out_rows_give_no_limits_of_responses(
    name: str, holdout: float, level: float
) -> None:
    them = parties(name, n=200, seed=48)
    federation = them.federation()
    run = method(name, holdout=holdout, level=level).run(federation, seed=1)
    assert not run.result.responses
    if holdout:
        assert np.isnan(them.values(run, "a", "response_lower")).all()
    else:
        with pytest.raises(ConsilienceError, match="response_lower"):
            them.values(run, "a", "response_lower")


# --------------------------------------------------------------------------- later runs


def later(them: Parties, run: Run, first: Federation, rows: np.ndarray, **how: Any) -> Run:
    """Predict some rows, in tables of their own, with what a run left at the sites."""
    new = them.of(rows).with_(y=np.full(len(rows), np.nan))
    federation = new.federation(
        {s: one.policy for s, one in members(first).items()}, preparation=first.preparation
    )
    for name, site in members(federation).items():
        site.home = members(first)[name].home
        site._partner_key = members(first)[name]._partner_key
    return method(**how).run(federation, seed=9, follows=run)


@pytest.mark.parametrize("name", ["binomial", "gamma"])
@pytest.mark.parametrize("rule", ["none", "site"])
def test_people_of_a_later_run_are_predicted_as_in_the_run(name: str, rule: Any) -> None:
    them = parties(name, sizes=(3, 3, 2), shared=1, seed=43)
    if rule == "site":
        offset = np.random.default_rng(2).uniform(-0.5, 0.5, size=300)
        them = them.with_(offset=offset, clusters=(np.arange(300) // 3).astype(str))
    federation = them.federation(preparation=Preparation(standardize=rule))
    run = method(name, holdout=0.3).run(federation, seed=1)
    rows = np.flatnonzero(~them.known)
    found = later(them, run, federation, rows)
    if rule == "site":
        with pytest.raises(ConsilienceError, match="has an offset: name it in both"):
            later(them.with_(offset=None), run, federation, rows)
    assert found.result.followed == run.info.run
    assert found.result.n_new == len(rows)
    new = them.of(rows)
    for output in ("linear_predictor", "prediction", "lower", "upper", *OF_PEOPLE[name]):
        np.testing.assert_allclose(
            new.values(found, "a", output), them.values(run, "a", output)[rows], rtol=1e-7
        )
    assert found.result.intervals["certified"] == len(rows)
    assert run.info.run in found.result.summary()
    # The model is the old one, whatever the new run's parameters say.
    assert found.result.revealed == run.result.revealed


def test_people_of_a_later_run_without_limits_where_directions_are_kept_back() -> None:
    them = parties("normal", sizes=(6, 4), seed=44)
    federation = them.federation({"a": SIGNED, "b": DEFAULT})
    run = method("normal").run(federation, seed=1)
    known = run.result.revealed["b"][0]
    rows = np.flatnonzero(~them.known)
    found = later(them, run, federation, rows)
    new = them.of(rows)
    np.testing.assert_allclose(
        new.values(found, "a", "prediction"), them.values(run, "a", "prediction")[rows], rtol=1e-7
    )
    assert np.isnan(new.values(found, "a", "lower")).all()
    assert found.result.revealed["b"][0] == known, "predicting reveals no further direction"


def test_the_same_people_again_under_a_penalty() -> None:
    them = parties(seed=45)
    federation = them.federation()
    run = method(alpha=0.05).run(federation, seed=1)
    again = method().run(federation, seed=2, follows=run)
    np.testing.assert_allclose(
        them.values(again, "a", "prediction"), them.values(run, "a", "prediction"), rtol=1e-8
    )
    assert np.isnan(them.values(again, "a", "lower")).all()


def test_following_what_is_no_fit_says_so() -> None:
    them = parties(n=100, seed=46)
    federation = them.federation()
    tested = AssistanceTest(n_directions=1).run(federation, seed=1)
    with pytest.raises(StudyError, match="cannot follow"):
        method().run(federation, seed=2, follows=tested)
    run = method().run(federation, seed=3)
    home: Any = members(federation)["b"].home
    for parts in [p for p in home.files if p[:2] == ("outputs", run.info.run)]:
        del home.files[parts]
    with pytest.raises(ConsilienceError, match=r"b refused: .*left no predictor here"):
        method().run(federation, seed=4, follows=run)


def test_following_with_other_columns_says_so() -> None:
    them = parties(n=100, seed=47)
    federation = them.federation()
    run = method().run(federation, seed=1)
    other = them.with_(names={"a": them.names["a"], "b": ("other0", "other1", "other2", "other3")})
    changed = other.federation()
    for name, site in members(changed).items():
        site.home = members(federation)[name].home
        site._partner_key = members(federation)[name]._partner_key
    with pytest.raises(ConsilienceError, match="b refused: the columns are not those") as caught:
        method().run(changed, seed=2, follows=run)
    assert "other0" not in str(caught.value)


# --------------------------------------------------------------------------- limits at the default


def test_limits_at_the_default_policy_hold_or_are_not_given() -> None:
    """What is certified equals the pooled sandwich; what is bounded is not below the pooled error
    by the model; everything else has no limits."""
    certified = bounded = 0
    for seed in range(6):
        them = parties("normal", sizes=(7, 5), seed=50 + seed)
        run = method("normal", tol=1e-12).run(them.federation({"a": SIGNED, "b": DEFAULT}), seed=1)
        pooled = them.pooled("normal")
        assert run.result.revealed["b"] == (4, 5)
        table = run.site("a").to_frame("coefficients")
        factor = run.result.own_coefficients["factor"]
        rows = them.known
        x, rest = pooled.design[rows], them.y[rows] - pooled.eta[rows]
        bread = np.linalg.inv(x.T @ x)
        scale = rest @ rest / (len(rest) - x.shape[1])
        for j, (line, f) in enumerate(zip(table.itertuples(), factor, strict=True)):
            target = np.eye(len(pooled.coef))[j]
            if line.status == "identified":
                np.testing.assert_allclose(line.error, pooled.error(target), rtol=1e-4)
                certified += 1
            elif line.status == "bounded":
                assert 1 <= f <= 1.5
                # The bound is one of the model's errors; sandwich and model differ a little.
                assert line.error > 0.9 * pooled.error(target)
                assert line.error > 0.8 * math.sqrt(scale * target @ bread @ target)
                bounded += 1
            else:
                assert line.status == "not certified" and np.isnan(line.error)
        low, high = (them.values(run, "a", k) for k in ("lower", "upper"))
        given = np.isfinite(low) & ~rows
        n = run.result.intervals["certified"] + run.result.intervals["bounded"]
        assert given.sum() == n or (0 < given.sum() < 10 and n <= 0)
        d = pooled.design[given]
        error = np.sqrt(np.einsum("ij,jk,ik->i", d, pooled.covariance, d))
        width = (high - low)[given] / 2 / norm.ppf(0.975)
        assert (width > 0.9 * error).all()
    assert certified + bounded > 0, "nothing was ever said"


# --------------------------------------------------------------------------- tests beside a fit


def test_a_partner_is_tested_given_the_fit_with_another() -> None:
    """c repeats what b has: useful to a alone, and of no further use beside b."""
    rng = np.random.default_rng(60)
    n = 400
    them = parties("normal", n=n, sizes=(2, 2, 2), n_new=0, seed=60)
    b = rng.normal(size=(n, 2))
    c = b + 0.05 * rng.normal(size=(n, 2))
    y = them.blocks["a"] @ [0.5, -0.5] + b @ [0.4, 0.4] + rng.normal(size=n)
    them = them.with_(blocks={"a": them.blocks["a"], "b": b, "c": c}, y=y)
    two = them.with_(
        blocks={s: them.blocks[s] for s in "ab"}, names={s: them.names[s] for s in "ab"}
    )
    federation = them.federation()
    alone = AssistanceTest(family="normal", n_directions=2).run(federation, seed=1)
    assert alone.result.useful == {"b": True, "c": True}
    assert alone.result.given == ()
    fit_ = two.federation(partner_key=members(federation)["a"]._partner_key)
    for name, site in members(fit_).items():
        site.home = members(federation)[name].home
    run = method("normal").run(fit_, seed=2)
    both = them.with_(
        blocks={s: them.blocks[s] for s in "ac"}, names={s: them.names[s] for s in "ac"}
    )
    rest = both.federation(partner_key=members(federation)["a"]._partner_key)
    for name, site in members(rest).items():
        site.home = members(federation)[name].home
    given = AssistanceTest(family="normal", n_directions=2).run(rest, seed=1, follows=run)
    assert given.result.given == ("b",)
    # The null model has all columns of b, which are known.
    assert given.result.n_given == 2
    null = np.column_stack([np.ones(n), them.blocks["a"], b])
    z = c - c.mean(axis=0)
    off = z - null @ np.linalg.lstsq(null, z, rcond=None)[0]
    s0 = y - null @ np.linalg.lstsq(null, y, rcond=None)[0]
    score = off.T @ s0
    s0 = s0 / np.sqrt(1 - np.diag(null @ np.linalg.pinv(null)))
    wanted = score @ np.linalg.solve(off.T @ (s0[:, None] ** 2 * off), score)
    found = given.result.tests["c"]["score"]
    assert found["df"].tolist() == [2]
    # Two directions of two columns span them: the statistic does not depend on the draw.
    np.testing.assert_allclose(found["statistic"], [wanted], rtol=1e-6)
    assert not given.result.useful["c"]
