"""Latent classes of which the coordinator sees totals alone: the classes of a run in plain."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from consilience import Federation, LatentClassRegression
from consilience.engines.federation import load_run
from consilience.exceptions import ConsilienceError, ProtocolError, QuorumError
from consilience.latent_regression.protocol import events as at_events
from consilience.latent_regression.protocol import masked as masked_sums
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.messages import (
    MARKS,
    N_FIGURES,
    ClassTotals,
)
from consilience.numerics.random import stream
from consilience.protocol.method import Ask, CoordinatorContext, Exchange
from consilience.protocol.phases.secure_sums import ALL, KEYS, MASKED, Concealed, total
from consilience.sites.step_runner import StepContext
from consilience.testing.fakes import scripted
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Request
from tests.granted import granted
from tests.latent_regression.protocol.latent import (
    COLUMNS,
    by_site,
    events,
    federation,
    odd_noise,
    study,
)

# Rounds of a run: 1 opening, 2 introductions, 3 meeting, then a sum and its opening in turns.
OFFER, BEGIN, ROUND = 4, 6, 8
N_SUMS = 10
"""Offer, beginning, 3 + 2 + 2 rounds of labels, end: of the brief study."""

EXACT = (
    "slopes",
    "intercepts",
    "coefficient_errors",
    "intercept_errors",
    "class_sizes",
    "class_events",
    "class_shares",
    "sigma",
    "delta",
    "alpha",
    "beta",
    "learning_rates",
    "trace_sigma",
    "trace_log_marginal",
    "trace_classes",
    "merge_path",
    "mean",
    "covariance",
    "centre",
    "scale",
)
"""What does not take sites one by one."""


def tables_of(sizes: tuple[int, ...] = (2, 3, 3), **more: Any) -> dict[str, Any]:
    return by_site(events(sum(sizes), **{"n_events": 8.0, "n_entities": 6.0, **more}), sizes)


def both(tables: Any, policy: Any = "simulation", **settings: Any) -> tuple[Any, Any]:
    """A run in plain and one with masked sums, of the same draws."""
    method = study(**settings)
    with pytest.MonkeyPatch.context() as patch:
        # Draws of a site follow from the number of the round, and masks take rounds of their own.
        patch.setattr(StepContext, "stream", without_round)
        patch.setattr(at_events, "_draws", dealt_as_masked)
        plain, masked = (
            method.run(federation(tables, policy, sums=sums), seed=3)
            for sums in ("plain", "secure")
        )
    return plain, masked


def without_round(self: Any, *key: str | int) -> np.random.Generator:
    return stream(self.seed, "agent", *key)


DRAWS = at_events._draws


def dealt_as_masked(site: Any, *more: Any) -> Any:
    """Hold out events in a run in plain as in one with masked sums."""
    return DRAWS(SimpleNamespace(limits=site.limits, keys={KEYS: {}}), *more)


def check_equal(found: Any, wanted: Any) -> None:
    """To far less than a unit of a sum: labels are drawn, and none of them is another."""
    for name in EXACT:
        # The gains of merging are differences of numbers of some hundreds.
        close = {"rtol": 1e-9, "atol": 1e-9 if name == "merge_path" else 1e-12}
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), **close, err_msg=name
        )
    for name in ("n_classes", "rounds_run", "merged_at", "slowed"):
        assert getattr(found, name) == getattr(wanted, name), name


# --------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"holdout": 0.2},
        {"n_classes": "auto", "n_start": 6},
        {"concentration": "shortcut", "fit_intercept": False},
        {"server_cache": True, "noise": 0.4, "prior_scale": 1.0, "beta": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(2, 3, 3), (1, 2, 1, 2, 1)], ids=str)
def test_it_is_the_run_in_plain(sizes: tuple[int, ...], settings: dict[str, Any]) -> None:
    plain, masked = both(tables_of(sizes), **settings)
    check_equal(masked.result, plain.result)
    np.testing.assert_allclose(masked.result.trace_moved, plain.result.trace_moved, atol=1e-12)
    for name in ("n_events", "n_entities", "n_agents"):
        assert getattr(masked.result, name).sum() == getattr(plain.result, name).sum()


def test_labels_at_the_sites_are_those_of_the_run_in_plain() -> None:
    plain, masked = both(tables_of())
    for site in ("site-0", "site-1", "site-2"):
        one, other = (run.site(site).values("class") for run in (plain, masked))
        assert (np.asarray(one) == np.asarray(other)).all()


def test_sites_of_one_agent_each() -> None:
    """The case of the source: nobody sees the sums of one person."""
    plain, masked = both(tables_of((1,) * 7, n_events=5.0, n_entities=4.0))
    check_equal(masked.result, plain.result)


def test_figures_on_held_out_events_are_those_over_all_sites() -> None:
    plain, masked = both(tables_of(), holdout=0.25)
    a, b = plain.result, masked.result
    assert np.isfinite(a.heldout_mse).all()
    np.testing.assert_allclose(b.heldout_mse[0], a.pooled_mse, rtol=1e-9)
    np.testing.assert_allclose(b.heldout_log_score[0], a.pooled_log_score, rtol=1e-9)
    assert np.isfinite(a.heldout_curve).all() and np.isnan(b.heldout_curve).all()
    assert b.pooled_coverage == pytest.approx(a.pooled_coverage, rel=1e-9)
    part = a.heldout_weight / a.heldout_weight.sum()
    error = np.sqrt((part**2 * a.heldout_gain_error**2).sum())
    assert b.heldout_gain_error[0] == pytest.approx(error, rel=1e-9)
    assert b.heldout_effective[0] == pytest.approx(a.heldout_effective.sum(), rel=1e-9)


def test_without_evidence_of_kinds_one_regression_is_kept_as_in_plain() -> None:
    """Every site has it, and says nothing more: no sum goes with it."""
    plain, masked = both(odd_noise(), n_classes="auto", holdout=0.2, start="random", rounds=12)
    assert plain.result.n_replaced == masked.result.n_replaced > 1
    check_equal(masked.result, plain.result)
    for site in odd_noise():
        assert len(masked.site(site).predictor.mean) == 1
    lines = [line for line in masked.transcript if line.step == "keep"]
    assert lines and not [line for line in lines if line.direction == "from-site" and line.field]


def test_classes_that_some_sites_withhold_are_the_sums_of_the_others() -> None:
    """Under a policy that protects records most classes of a start by chance are withheld."""
    tables = tables_of((3, 8, 8), n_entities=14.0, n_events=9.0)
    plain, masked = both(tables, "strict", rounds=6)
    assert plain.result.withheld.any() and plain.result.released.any()
    check_equal(masked.result, plain.result)
    withheld = masked.result.withheld[:, 0]
    assert (withheld >= plain.result.withheld.max(axis=1)).all()
    assert (withheld <= plain.result.withheld.sum(axis=1)).all()
    assert any("ask without masks" in remark for remark in masked.result.remarks)


# --------------------------------------------------------------------------- held-out events


def offered_by(tables: Any, policy: Any, seed: int = 3, **settings: Any) -> tuple[Any, Any]:
    """The total of the moments of all events in the sums, and the run."""
    seen: dict[str, Any] = {}
    true_total = masked_sums.total

    def noted(ctx: Any, asked: Any, *of: Any, **more: Any) -> Any:
        found = yield from true_total(ctx, asked, *of, **more)
        seen[asked.step] = found.values
        return found

    with mock.patch.object(masked_sums, "total", noted):
        run = study(rounds=1, **settings).run(federation(tables, policy, sums="secure"), seed=seed)
    return seen["offer"]["sums"][0], run


SMALL_AND_LARGE = tables_of((1, 1, 1, 4), n_entities=8.0, n_events=5.0)
"""42, 33 and 25 events, and 234: parts of a fifth are large enough at the last site alone."""
ONE_EACH = {
    site: table.drop_duplicates("entity") if site == "site-1" else table
    for site, table in tables_of((2, 2, 2)).items()
}
"""Of entities with one event each none can be held out."""


@pytest.mark.parametrize(
    ("tables", "policy"), [(SMALL_AND_LARGE, "strict"), (ONE_EACH, "simulation")]
)
def test_events_are_held_out_by_all_sites_or_by_none(tables: Any, policy: str) -> None:
    """Two totals, one of them without held-out events, told those of the one site that had some."""
    whole, _ = offered_by(tables, policy, holdout=0.0)
    found, run = offered_by(tables, policy, holdout=0.2)
    np.testing.assert_array_equal(found, whole)
    able = 1 if policy == "strict" else 2
    assert any(f"{able} of {len(tables)} sites have enough events" in note for note in run.notes)
    assert np.isnan(run.result.heldout_mse).all()


@pytest.mark.parametrize("policy", ["strict", "simulation"])
def test_where_all_sites_hold_events_out_totals_differ_by_those_of_all(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, int] = {}

    def noted(*of: Any, **more: Any) -> Any:
        made = events_of(*of, **more)
        held[len(made.held)] = int(made.held.sum())
        return made

    events_of = at_site.events_of
    monkeypatch.setattr(at_site, "events_of", noted)
    tables = tables_of((3, 4, 4), n_entities=8.0, n_events=6.0)
    whole, _ = offered_by(tables, policy, holdout=0.0)
    found, run = offered_by(tables, policy, holdout=0.2)
    assert len(held) == 3 and min(held.values()) > 10
    assert whole[0] - found[0] == sum(held.values())
    assert not any("enough events" in note for note in run.notes)
    # By one deal of each table, whatever the seed and the share: else runs would differ by few.
    np.testing.assert_array_equal(offered_by(tables, policy, 4, holdout=0.1)[0], found)


def test_a_second_part_is_held_out_by_all_sites_or_by_none() -> None:
    """Shares of .2 and .4 would differ by the second part of the one site that has two."""
    drawn = tables_of((1,) * 12 + (6,), n_entities=9.0, n_events=6.0)
    tables = {**dict.fromkeys(("a", "b", "c"), drawn["site-5"]), "d": drawn["site-12"]}
    in_plain = [
        study(holdout=h, rounds=1).run(federation(tables, "strict"), seed=3).result.n_events
        for h in (0.2, 0.4)
    ]
    assert (in_plain[0] > in_plain[1]).tolist() == [False, False, False, True]
    whole, one, two = (offered_by(tables, "strict", holdout=h)[0] for h in (0.0, 0.2, 0.4))
    assert one[0] < whole[0]
    np.testing.assert_array_equal(two, whole)


class Claiming(LatentClassRegression):
    """Goes on as if all sites had said that they could hold events out."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        with mock.patch.object(masked_sums, "round", lambda able: len(ctx.sites), create=True):
            return (yield from super().coordinate(ctx))


def test_a_coordinator_that_claims_that_all_could_is_refused() -> None:
    method = Claiming(n_classes=2, start="random", holdout=0.2)
    with pytest.raises(QuorumError, match="this site did not say that it could"):
        method.run(federation(SMALL_AND_LARGE, "strict", sums="secure"), seed=3)


@pytest.mark.parametrize("said", [None, 0.4])
def test_events_are_held_out_only_as_a_site_said(said: float | None) -> None:
    """There is no table at all here: the refusal can hang on nothing in it."""
    settings = at_site.Settings(4, "random", "exact", True, 0.2, 0.9)
    state = {} if said is None else {"holds": vars(dataclasses.replace(settings, holdout=said))}
    with pytest.raises(ProtocolError, match="this site did not say that it could"):
        at_site.offer(
            at_site.Offer(settings=settings), None, state, SimpleNamespace(keys={KEYS: {}})
        )


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"start": "local"}, "set start to 'random'"),
        ({"participation": 0.5}, "set participation to 1"),
    ],
    ids=str,
)
def test_what_takes_sites_one_by_one_is_refused_before_anything_is_asked(
    parameters: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConsilienceError, match=re.escape(says)) as told:
        study(**parameters).run(
            federation(tables_of(), sums="secure"), seed=0, out=tmp_path / "run"
        )
    assert str(told.value).endswith("or leave sums = 'secure' out of the study")
    assert not (tmp_path / "run").exists()


class Twice(LatentClassRegression):
    """Asks in a run in plain for a step of masked sums, beside its own."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "begin":
            asked = exchange.send((yield asked))
        ctx.require((yield Ask("begin_total", asked.message, to=asked.to)))
        raise AssertionError("sites began twice")


def test_steps_of_masked_sums_are_no_second_answer_in_a_run_in_plain() -> None:
    """What is answered once in a run would otherwise be told twice, in other classes."""
    method = Twice(n_classes=2, start="random", holdout=0.0)
    with pytest.raises(QuorumError, match="the step is one of masked sums"):
        method.run(federation(tables_of()), seed=0)


class InPlain(LatentClassRegression):
    """Asks in a run with masked sums for what a site tells of itself."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "begin_total":
            asked = exchange.send((yield asked))
        ctx.require((yield Ask("begin", asked.message, to=asked.to)))
        raise AssertionError("a site told its own sums")


def test_a_site_tells_no_sums_of_its_own() -> None:
    method = InPlain(n_classes=2, start="random", holdout=0.0)
    with pytest.raises(QuorumError, match="step 'begin' tells what is this site's alone"):
        method.run(federation(tables_of(), sums="secure"), seed=0)


class Beside(LatentClassRegression):
    """Asks one site for rounds of other classes beside the line, opens none, and goes on."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "round_total":
            asked = exchange.send((yield asked))
        told = asked.message.totals
        for turn in (1, 2, 3):
            other = relayed(np.roll(told.value, turn, axis=0) * (1 + turn), told.disclosure)
            changed = dataclasses.replace(asked.message, totals=other)
            yield Ask("round_total", changed, to=(ctx.sites[0],))
        yield from total(ctx, asked, ClassTotals)


def test_questions_beside_the_line_are_part_of_the_question() -> None:
    """A site remembers its releases of all lines: else the next total differed by its own sums."""
    method = Beside(n_classes=3, start="random", holdout=0.0)
    made = federation(tables_of((2, 2, 2)), sums="secure")
    send = made.engine.send
    follows: dict[str, tuple[int, int]] = {}

    def beside(requests: Any) -> None:
        """As if each question to a site followed the one before the first round."""
        for key, data in list(requests.items()):
            request = Request.from_bytes(data)
            if request.step == "round_total":
                place = request.after_round, request.after_attempt
                at = follows.setdefault(request.site, place)
                changed = dataclasses.replace(request, after_round=at[0], after_attempt=at[1])
                requests[key] = changed.to_bytes()
        send(requests)

    with (
        mock.patch.object(made.engine, "send", beside),
        pytest.raises(ProtocolError, match="contributed sums of different cells"),
    ):
        method.run(made, seed=3)


def test_a_site_that_was_asked_with_another_seed_is_in_no_sum_with_the_others() -> None:
    """Labels of a site follow from the seed: else two runs would differ by its own labels."""
    made = federation(tables_of((2, 2, 2)), sums="secure")
    send = made.engine.send

    def seeded(requests: Any) -> None:
        for key, data in list(requests.items()):
            request = Request.from_bytes(data)
            if request.site == "site-0" and request.step == "begin_total":
                requests[key] = dataclasses.replace(request, seed=99).to_bytes()
        send(requests)

    with (
        mock.patch.object(made.engine, "send", seeded),
        pytest.raises(ProtocolError, match="contributed sums of different cells"),
    ):
        study().run(made, seed=3)


class Impossible(LatentClassRegression):
    """Asks one site for labels under classes under which no entity has a likelihood."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "round_total":
            asked = exchange.send((yield asked))
        told = asked.message.totals
        totals = np.array(told.value)
        # Slopes of 1e200: 1, both features and the response are as they should be, x1 y is not.
        totals[:, :-MARKS] = 1e6 * np.array([1, 0, 0, 0, 1, 0, 1e200, 1, 0, 1])
        changed = {"totals": totals, "sigma2": 1e-10}
        fields = {n: relayed(v, getattr(asked.message, n).disclosure) for n, v in changed.items()}
        message = dataclasses.replace(asked.message, **fields)
        replies = yield Ask("round_total", message, to=(ctx.sites[0],))
        object.__setattr__(self, "answer", replies[ctx.sites[0]])
        raise QuorumError("enough")


def test_sites_of_one_record_do_not_say_under_which_classes_nobody_is_likely() -> None:
    method = Impossible(n_classes=2, start="random", holdout=0.0)
    with pytest.raises(QuorumError, match="enough"):
        method.run(federation(tables_of((2, 2, 2)), sums="secure"), seed=3)
    assert isinstance(method.answer, Concealed)  # type: ignore[attr-defined]


# --------------------------------------------------------------------------- who is lost


def with_script(script: Any, n_sites: int = 5) -> Any:
    made = federation(tables_of((1, 2, 1, 2, 1)[:n_sites]), sums="secure", quorum=4)
    return study().run(scripted(made, script), seed=3)


@pytest.mark.parametrize("action", ["absent", "refused"])
def test_a_site_that_is_lost_before_it_offered_is_in_nothing(action: str) -> None:
    tables = tables_of((1, 2, 1, 2, 1))
    del tables["site-2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepContext, "stream", without_round)
        found = with_script({(OFFER, "site-2"): action}).result
        wanted = study().run(federation(tables), seed=3).result
    check_equal(found, wanted)


@pytest.mark.parametrize("when", [BEGIN, ROUND, OFFER + 2 * (N_SUMS - 1)])
@pytest.mark.parametrize("action", ["absent", "refused"])
def test_a_site_that_is_lost_after_it_offered_stops_the_run(action: str, when: int) -> None:
    with pytest.raises(QuorumError, match="site-2"):
        with_script({(when, "site-2"): action})


def test_a_site_that_is_lost_when_the_last_sum_is_opened_is_in_it() -> None:
    last = OFFER + 2 * (N_SUMS - 1) + 1
    found, wanted = with_script({(last, "site-2"): "absent"}), with_script({})
    assert found.result.to_files() == wanted.result.to_files()


@pytest.mark.parametrize("action", ["absent", "refused"])
def test_a_site_that_is_lost_after_it_said_it_could_hold_events_out_stops_the_run(
    action: str,
) -> None:
    script: Any = {(OFFER + 2, "site-2"): action}
    made = scripted(federation(tables_of((1, 2, 1, 2, 1)), sums="secure", quorum=4), script)
    with pytest.raises(QuorumError, match="site-2"):
        study(holdout=0.2).run(made, seed=3)


@pytest.mark.parametrize("round_", range(OFFER - 2, OFFER + 2 * N_SUMS + 2))
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    tables, method, path = tables_of((1, 1, 2)), study(holdout=0.2), tmp_path / "run"
    made = federation(tables, sums="secure")
    with pytest.raises(Killed):
        method.run(made, seed=0, run_id="kept", out=path, on_event=stop)
    run = method.run(made, out=path, run_id="kept", resume=True)
    whole = method.run(federation(tables, sums="secure"), seed=0, run_id="kept")
    assert run.result.to_files() == whole.result.to_files()
    assert load_run(path).result.to_files() == whole.result.to_files()


# --------------------------------------------------------------------------- what leaves


def test_no_number_of_a_site_leaves_but_in_masks() -> None:
    _, run = both(tables_of(), holdout=0.2)
    lines = [line for line in run.transcript if line.direction == "from-site"]
    assert {line.disclosure for line in lines} == {"masked", "public"}
    steps = {line.step for line in lines if line.disclosure == "masked"}
    sums = {"begin_total", "round_total", "conclude_total"}
    assert steps == {"possible", "offer"} | sums


def test_all_sites_are_asked_the_same() -> None:
    """Weights by site could take the others' entities out of a class; masks would not cancel."""
    _, run = both(tables_of())
    asked = [x for x in run.transcript if x.direction == "to-site" and x.step == "round_total"]
    by_round: dict[int, set[str]] = {}
    for line in asked:
        by_round.setdefault(line.round, set()).add(f"{line.field} {line.digest}")
    fields = {line.field for line in asked}
    assert by_round and all(len(told) == len(fields) for told in by_round.values())


def test_a_site_that_withholds_a_class_tells_no_number_by_differences() -> None:
    """Masked numbers are those of the cells: no rows behind them, of which two differ by a site."""
    tables = tables_of((3, 8, 8), n_entities=14.0, n_events=9.0)
    _, run = both(tables, "strict")
    lines = [x for x in run.transcript if x.direction == "from-site"]
    for step in ("offer", "round_total", "conclude_total"):
        told = next(x.shape for x in lines if x.step == step and x.field == "told")
        numbers = next(x.shape for x in lines if x.step == step and x.field == "numbers")
        assert numbers.split("x")[0] == told


def test_figures_of_a_site_leave_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    true_figures, tables = at_site._figures, tables_of()
    first = tables["site-0"]["agent"].min()

    def with_a_gap(message: Any, here: Any, *more: Any) -> Any:
        found = true_figures(message, here, *more)
        if first in here.events.agent_names:
            hidden = np.arange(N_FIGURES) == 7
            parts = (found.mean, found.variance, found.effective)
            found = type(found)(*(part.withhold(hidden) for part in parts))
        return found

    monkeypatch.setattr(at_site, "_figures", with_a_gap)
    seen: list[Any] = []
    true_total = masked_sums.total

    def total(*of: Any, **more: Any) -> Any:
        found = yield from true_total(*of, **more)
        seen.append(found)
        return found

    monkeypatch.setattr(masked_sums, "total", total)
    _, run = both(tables, holdout=0.25)
    told = seen[-1].told
    assert {int(n) for n in told["figures"]} | {int(told["weight"])} == {int(told["weight"])}
    assert int(told["weight"]) == 2
    assert np.isfinite(run.result.heldout_mse).all()


@pytest.mark.parametrize("step", ["offer", "round_total"])
def test_totals_of_no_events_stop_the_run(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    true_total = masked_sums.total

    def total(ctx: Any, asked: Any, *of: Any, **more: Any) -> Any:
        found = yield from true_total(ctx, asked, *of, **more)
        if asked.step == step:
            found.values["sums"] = -found.values["sums"]
        return found

    monkeypatch.setattr(masked_sums, "total", total)
    with pytest.raises(ProtocolError, match="add up to what no rows have"):
        study().run(federation(tables_of(), sums="secure"), seed=0)


# --------------------------------------------------------------------------- what is said


def test_what_is_said_is_of_all_sites(tmp_path: Path) -> None:
    _, run = both(tables_of(), holdout=0.2)
    result = run.result
    assert result.masked and result.sites == (ALL,) and MASKED in result.summary()
    assert "entities of all sites" in result.summary()
    text = run.report().save(tmp_path / "page.html").read_text(encoding="utf-8")
    words = re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>", " ", text, flags=re.S)
    assert MASKED in words and "Class sums by site" not in words
    for said in (result.summary(), words):
        assert not re.search(r"\bnan\b|1 site\b", said, re.IGNORECASE)
    list(run.next())


def test_a_run_in_plain_is_not_said_to_be_masked() -> None:
    plain = study().run(
        Federation.local(tables_of(), columns=COLUMNS, policy=granted("simulation")), seed=0
    )
    assert not plain.result.masked and MASKED not in plain.result.summary()
