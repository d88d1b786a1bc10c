"""Parties that open their columns, and what earlier runs told, against the textbook fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from consilience.assisted.glm import AssistedGLM
from consilience.assisted.glm.messages import EARLIER, FITTED, OPENED, TURNS
from consilience.assisted.kernels import glm
from consilience.assisted.test import AssistanceTest
from consilience.engines.federation import Federation, Run
from consilience.exceptions import DataError, ParameterError
from consilience.protocol.method import Offer
from consilience.sites.policy import Policy
from consilience.testing.fakes import scripted
from consilience.wire.envelope import Request
from tests.assisted.assisted import FAMILIES, SIGNED, Parties, check_tables, parties
from tests.assisted.glm.test_assisted_glm import inverse_link, relative
from tests.assisted.glm.test_assisted_glm_privacy import (
    known_of,
    per_person,
    rank,
    recovered,
    seen_by,
    sorted_like_the_sites,
)
from tests.reference import pooled_glm

DEFAULT = Policy(preset="consortium", share_response=True)
CLOSED = Policy(preset="consortium")
OPEN_PARTNER = {"a": DEFAULT, "b": replace(CLOSED, max_revealed_rank="full")}
OPEN_INITIATOR = {"a": SIGNED, "b": CLOSED}


def method(name: str = "binomial", **settings: Any) -> AssistedGLM:
    return AssistedGLM(**{"family": name, "holdout": 0.0, **settings})


def check_limits(run: Run, them: Parties, name: str, pooled: pooled_glm.Pooled) -> None:
    """Limits of new people, by the sandwich of all columns."""
    new, design = ~them.known, pooled.design
    error = np.sqrt(np.einsum("ij,jk,ik->i", design, pooled.covariance, design))
    reach = norm.ppf(0.975) * error
    low, high = inverse_link(name, np.stack([pooled.eta - reach, pooled.eta + reach]))
    for output, wanted in (("lower", low), ("upper", high)):
        found = them.values(run, "a", output)[new]
        np.testing.assert_allclose(found, wanted[new], rtol=1e-6, atol=1e-9)
    assert run.result.intervals["certified"] == new.sum() == run.result.n_new


def steps_asked(watched: Federation, site: str) -> set[str]:
    engine: Any = watched.engine
    asked = (Request.from_bytes(data) for (_, to), data in engine.requests.items() if to == site)
    return {request.step for request in asked}


# --------------------------------------------------------------------------- one message


@pytest.mark.parametrize(("name", "shared"), [(f, i % 2 * 2) for i, f in enumerate(FAMILIES)])
@pytest.mark.parametrize("who", ["partner", "initiator"])
def test_who_opens_gives_the_pooled_fit_in_one_round(who: str, name: str, shared: int) -> None:
    """Coefficients and errors of both parties, and limits, as of all columns in one place."""
    them = parties(name, shared=shared, seed=shared)
    policy, course = (OPEN_PARTNER, OPENED) if who == "partner" else (OPEN_INITIATOR, FITTED)
    response = "" if who == "partner" else "share"
    run = them.federation(policy).run(method(name, response=response), seed=1)
    result, pooled = run.result, them.pooled(name)
    assert result.courses == {"b": course} and result.stopped == "at once"
    assert result.rounds == 1 and result.remaining == 0.0
    p, q = them.blocks["a"].shape[1], them.blocks["b"].shape[1]
    opened = {"a": (0, p), "b": (q, q)}
    assert result.revealed == (opened if who == "partner" else {"a": (p, p), "b": (1, q)})
    assert result.response == ("none" if who == "partner" else "share")
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, pooled.eta, rtol=1e-8, atol=1e-8)
    part = them.values(run, "b", "linear_predictor")
    np.testing.assert_allclose(part, them.values(run, "a", "partners_part"), atol=1e-8)
    assert check_tables(run, them, pooled) == (8 - 1 - shared if shared else 8)
    if not shared:
        check_limits(run, them, name, pooled)
    if name in ("binomial", "normal"):  # the others' textbook losses lack constants
        np.testing.assert_allclose(result.deviance["joint"], 2 * pooled.deviance_loss, rtol=1e-8)
    assert "since a party opened its columns" in result.summary()
    table = result.rounds_table
    assert table["round"].tolist() == [0, 1] and table["partner"].tolist() == ["", "b"]
    assert table["numbers_sent"].tolist() == [0, 300 * (q if who == "partner" else p + 1)]


def test_an_open_partner_is_sent_nothing() -> None:
    them = parties("normal", n=150, seed=1)
    watched = scripted(them.federation(OPEN_PARTNER | {"a": CLOSED}))
    run = method("normal", interval="none").run(watched, seed=1)
    assert steps_asked(watched, "b") & {"receive", "contribute", "fit", "refine"} == set()
    assert not per_person(watched, "b", 150).size
    (place,) = (m.place.value for step, m in seen_by(watched, "b") if step == "record")
    assert set(place) == {"weights", "covariance", "shared"}
    assert not any(np.size(values) for values in place.values())
    table = run.site("b").to_frame("coefficients")
    assert np.isnan(table["estimate"]).all() and np.isnan(table["error"]).all()
    assert set(table["status"]) == {"at the initiator"}
    assert known_of(watched, "a") == 0 and known_of(watched, "b") == 4
    # Nobody asked for errors, and there are none.
    assert np.isnan(run.result.own_coefficients["error"]).all()
    assert np.isnan(them.values(run, "a", "lower")).all()


def test_an_open_initiator_gets_one_direction_of_the_partner() -> None:
    them = parties("normal", n=150, sizes=(3, 5), seed=2)
    watched = scripted(them.federation(OPEN_INITIATOR))
    run = method("normal", response="share").run(watched, seed=1)
    blocks = sorted_like_the_sites(them)
    seen = per_person(watched, "a", 150)
    assert rank(seen) == 1 and known_of(watched, "b") == 1 == run.result.revealed["b"][0]
    basis = np.column_stack([seen, blocks["a"], np.ones(150)])
    assert (recovered(blocks["b"], basis) < 1 - 1e-2).all()
    # What the partner has: the initiator's columns, and the response of the training rows.
    sent = per_person(watched, "b", 150)
    given = sent[:, ~np.isfinite(sent).all(axis=0)]
    assert (np.isnan(given[:, 0]) == ~them.known[np.argsort(them.ids)]).all()
    assert (recovered(blocks["a"], sent[:, np.isfinite(sent).all(axis=0)]) > 1 - 1e-9).all()


def test_a_partner_that_finds_no_fit_says_why() -> None:
    them = parties(n=150, sizes=(2, 3), seed=4)
    them = them.with_(y=(them.blocks["b"][:, 0] > 0).astype(float))
    federation = them.federation(OPEN_INITIATOR)
    with pytest.raises(DataError, match="separate the response"):
        method(response="share").run(federation, seed=1)


@pytest.mark.parametrize("who", ["partner", "initiator"])
def test_held_out_rows_and_case_weights(who: str) -> None:
    """The comparison is of the training rows' fit; where all is known the others join at last."""
    them = parties("normal", n=400, weights=True, seed=3)
    policy = OPEN_PARTNER if who == "partner" else OPEN_INITIATOR
    run = them.federation(policy).run(method("normal", response="share", holdout=0.2), seed=1)
    held = them.values(run, "a", "held_out").astype(bool)
    assert 68 <= held.sum() <= 80
    trained = them.pooled("normal", used=them.known & ~held)
    np.testing.assert_allclose(run.result.deviance["joint"], 2 * trained.deviance_loss, rtol=1e-7)
    reported = them.pooled("normal") if who == "partner" else trained
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, reported.eta, rtol=1e-7, atol=1e-8)
    assert check_tables(run, them, reported) == 8


def test_a_masked_response_and_an_open_initiator() -> None:
    pytest.importorskip("opendp")
    them = parties(n=600, seed=4)
    noisy = replace(SIGNED, noised=True, max_epsilon=10.0)
    watched = scripted(them.federation({"a": noisy, "b": CLOSED}))
    run = method(response="masked", flip=0.1).run(watched, seed=1)
    (masked,) = (m.response.value for s, m in seen_by(watched, "b") if s == "receive_masked")
    pooled = them.pooled("binomial", y=np.nan_to_num(masked), mask=0.1)
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, pooled.eta, rtol=1e-6, atol=1e-7)
    # An open partner needs no mask: the initiator has the true response.
    run = them.federation(OPEN_PARTNER).run(method(response="masked", flip=0.1), seed=1)
    assert relative(them.values(run, "a", "linear_predictor"), them.pooled("binomial").eta) < 1e-8
    assert run.result.flip == 0.0 and run.result.response == "none"


@pytest.mark.parametrize("policy", [OPEN_PARTNER, OPEN_INITIATOR], ids=["partner", "initiator"])
def test_penalties_are_those_of_the_pooled_columns(policy: dict[str, Policy]) -> None:
    from glum import GeneralizedLinearRegressor

    them = parties(shared=1, seed=18)
    run = them.federation(policy).run(method(response="share", alpha=0.05), seed=1)
    eta = them.pooled("binomial", ridge=0.05).eta
    assert relative(them.values(run, "a", "linear_predictor"), eta) < 1e-8
    assert set(run.result.own_coefficients["status"]) == {"penalised"}
    them = parties(sizes=(4, 4), seed=19)
    how = method(response="share", alpha=0.03, l1_ratio=1.0)
    run = them.federation(policy).run(how, seed=1)
    model = GeneralizedLinearRegressor(
        family="binomial", alpha=0.03, l1_ratio=1.0, gradient_tol=1e-10, max_iter=2000
    )
    a, b = them.blocks["a"], them.blocks["b"]
    x = np.column_stack([a, b - b.mean(axis=0)])
    model.fit(x[them.known], them.y[them.known])
    assert (model.coef_ == 0).any()
    np.testing.assert_allclose(
        run.result.own_coefficients["estimate"][1:], model.coef_[:4], atol=1e-5
    )
    theirs = run.site("b").to_frame("coefficients")["estimate"]
    np.testing.assert_allclose(theirs, model.coef_[4:], atol=1e-5)


# --------------------------------------------------------------------------- three parties


@pytest.mark.parametrize(("alpha", "shared"), [(0.0, 0), (0.0, 1), (0.05, 1)])
def test_each_pair_goes_by_its_own_policy(alpha: float, shared: int) -> None:
    """One partner opens, the other takes turns: the pooled fit, and no more is revealed.

    A column that the initiator has too is in the span already.
    """
    them = parties(sizes=(3, 3, 5), shared=shared, seed=6)
    policy = {"a": SIGNED, "b": OPEN_PARTNER["b"], "c": DEFAULT}
    watched = scripted(them.federation(policy))
    how = method(response="share", alpha=alpha, tol=1e-9)
    run = how.run(watched, seed=1)
    result = run.result
    assert result.courses == {"b": OPENED, "c": TURNS}
    q = 3 + shared
    assert result.revealed["b"] == (q, q) and result.revealed["c"][0] <= 4
    pooled = them.pooled("binomial", ridge=alpha) if alpha else them.pooled("binomial")
    assert relative(them.values(run, "a", "linear_predictor"), pooled.eta) < 1e-4
    assert steps_asked(watched, "b") & {"receive", "contribute"} == set()
    assert not per_person(watched, "b", 300).size
    parts = [them.values(run, partner, "linear_predictor") for partner in "bc"]
    np.testing.assert_allclose(sum(parts), them.values(run, "a", "partners_part"), atol=1e-8)
    if not alpha and not shared:
        assert set(result.own_coefficients["status"]) <= {"bounded", "identified"}
        for j, error in enumerate(result.own_coefficients["error"]):
            wanted = pooled.error(np.eye(len(pooled.coef))[j])
            assert 0.97 * wanted < error < 1.3 * wanted
        assert result.rounds_table["partner"].tolist()[:3] == ["", "b", "c"]


def test_all_of_three_parties_open() -> None:
    them = parties(sizes=(2, 3, 2), shared=1, seed=5)
    policy = dict.fromkeys("bc", OPEN_PARTNER["b"]) | {"a": DEFAULT}
    run = them.federation(policy).run(method(), seed=1)
    assert check_tables(run, them, them.pooled("binomial")) == 1 + 3 + 2
    assert run.result.revealed == {"a": (0, 2), "b": (4, 4), "c": (2, 2)}
    assert run.result.rounds_table["partner"].tolist() == ["", "b", "c"]


def offer(*, opens: bool = False, room: bool = True) -> Offer:
    return Offer(opens=opens, room=room, known=0, rank=3)


@pytest.mark.parametrize(
    ("settings", "offers", "wanted"),
    [
        ({}, {"b": offer(opens=True)}, {"b": OPENED}),
        ({}, {"a": offer(opens=True), "b": offer(opens=True)}, {"b": OPENED}),
        ({"response": "share"}, {"a": offer(opens=True), "b": offer()}, {"b": FITTED}),
        ({"response": "share"}, {"a": offer(opens=True), "b": offer(room=False)}, {"b": TURNS}),
        ({"response": "share"}, {"b": offer()}, {"b": TURNS}),
        ({}, {"b": offer(room=False)}, {"b": EARLIER}),
        ({"response": "share", "exchange": "turns"}, {"b": offer(opens=True)}, {"b": TURNS}),
        ({"response": "share", "acceleration": "none"}, {"b": offer(opens=True)}, {"b": TURNS}),
        ({"response": "share", "interval": "paper"}, {"b": offer(opens=True)}, {"b": TURNS}),
        (
            {"response": "share"},
            {"a": offer(opens=True), "b": offer(), "c": offer(opens=True)},
            {"b": TURNS, "c": OPENED},
        ),
        (
            {"response": "share", "alpha": 0.1, "l1_ratio": 1.0},
            {"b": offer(), "c": offer(opens=True)},
            {"b": TURNS, "c": TURNS},
        ),
        ({}, {"b": offer(), "c": offer(opens=True)}, None),
        ({"exchange": "turns"}, {"b": offer(opens=True)}, None),
    ],
)
def test_the_course_by_the_policies(
    settings: dict[str, Any], offers: dict[str, Offer], wanted: dict[str, str] | None
) -> None:
    how, all_ = AssistedGLM(**settings), {"a": offer(), **offers}
    if wanted is None:
        with pytest.raises(ParameterError, match="needs the response"):
            how.courses("a", all_)
        return
    assert how.courses("a", all_) == wanted
    planned = how.plan("a", all_)
    assert [line.partner for line in planned] == list(wanted)
    assert all(line.rounds == "1" for line in planned if wanted[line.partner] in (OPENED, FITTED))


# --------------------------------------------------------------------------- earlier runs


@pytest.mark.parametrize("response", ["share", ""])
def test_a_fit_uses_what_a_test_told(response: str) -> None:
    """Three of four columns' directions went into the sketch: the fit is that of the sketch."""
    them = parties("normal", n=150, sizes=(3, 4), seed=33, n_new=0)
    watched = scripted(them.federation(DEFAULT))
    AssistanceTest(family="normal").run(watched, seed=1)
    (z,) = (m.z.value for step, m in seen_by(watched, "a") if step == "test")
    sketch = np.empty_like(z)
    sketch[np.argsort(them.ids, kind="stable")] = z
    of = them.with_(blocks={"a": them.blocks["a"], "b": sketch})
    run = method("normal", response=response).run(watched, seed=2)
    result = run.result
    assert result.courses == {"b": TURNS if response else EARLIER}
    assert result.stopped == "rank" and result.rounds == 0 and result.revealed["b"] == (3, 4)
    assert known_of(watched, "b") == 3, "what was known costs nothing"
    eta = them.values(run, "a", "linear_predictor")
    np.testing.assert_allclose(eta, of.pooled("normal").eta, atol=1e-8)
    part = them.values(run, "b", "linear_predictor")
    np.testing.assert_allclose(part, them.values(run, "a", "partners_part"), atol=1e-8)
    assert ("receive" in steps_asked(watched, "b")) == bool(response)
    said = result.summary()
    assert "3 of 4 directions of b" in said and "earlier runs had told" in said
    assert "max_revealed_rank" in said
    assert result.rounds_table["partner"].tolist() == ["", "b"]


@pytest.mark.parametrize("alpha", [0.0, 0.05])
def test_directions_of_an_earlier_run_are_in_the_fit(alpha: float) -> None:
    """Two of five were told for another response; two more may be, and the fit has all four."""
    them = parties("normal", n=200, sizes=(3, 5), seed=35, n_new=0)
    limited = replace(CLOSED, max_revealed_rank=2)
    federation = them.federation({"a": DEFAULT, "b": limited})
    how = method("normal", response="share", alpha=alpha, tol=1e-12)
    first = how.run(federation, seed=1).result
    assert first.revealed["b"] == (2, 5) and first.rounds == 2
    again = how.run(federation, seed=2).result
    # The directions span the fit of the first run, so the same one comes back without a round.
    assert again.rounds == 0 and again.revealed == first.revealed
    np.testing.assert_allclose(again.deviance["joint"], first.deviance["joint"], rtol=1e-7)


def test_one_column_at_the_default_policy_says_what_would_help() -> None:
    them = parties("normal", n=150, sizes=(3, 1), seed=36)
    run = them.federation(DEFAULT).run(method("normal", response="share"), seed=1)
    assert run.result.untrained
    said = run.result.summary()
    assert said.startswith("There is no joint model of a with b") and "max_revealed_rank" in said


# --------------------------------------------------------------------------- real data


@pytest.mark.parametrize("course", [OPENED, FITTED, TURNS])
def test_rounds_on_connections(data_dir: Callable[[str], Path], course: str) -> None:
    """NSL-KDD, 5,000 and 5,000 rows: 9 rounds at most where nobody opens, one where one does."""
    folder = data_dir("nsl_kdd")
    from replications.assisted_glm import joint

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONSILIENCE_DATA", str(folder.parent))
        drawn = joint.nsl_kdd(np.random.default_rng(0))
    ids = np.array([f"c{i:05d}" for i in range(len(drawn.y))])
    them = Parties(drawn.columns, drawn.names, drawn.y, ids)
    policy = {OPENED: OPEN_PARTNER, FITTED: OPEN_INITIATOR, TURNS: DEFAULT}[course]
    response = "" if course == OPENED else "share"
    run = them.federation(policy).run(method(response=response), seed=1)
    pooled = glm.fit(np.column_stack(list(drawn.columns.values())), drawn.y, glm.family("binomial"))
    assert run.result.courses == {"b": course}
    distance = relative(them.values(run, "a", "linear_predictor"), pooled.eta)
    if course == TURNS:
        # the default policy keeps one direction back: converged, or one short of it
        assert run.result.rounds <= 9 and distance < 1e-3
    else:
        assert run.result.rounds == 1 and distance < 1e-8
