"""Descriptions of all sites from masked sums: the pooled figures of a run in plain."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.describe.protocol import Describe, masked
from consilience.describe.protocol.result import ALL
from consilience.engines.federation import Federation, Run, load_run
from consilience.exceptions import DisclosureError, ProtocolError, QuorumError, StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Preparation
from consilience.protocol.phases.secure_sums import KEYS, MASKED
from consilience.sites.policy import Policy
from consilience.testing.fakes import scripted
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply
from consilience.wire.message import Disclosure
from consilience.wire.secure_sums import Party
from tests.describe.test_describe import COLUMNS, KEEP, run_on, tables

BINS = {"age": (30.0, 45.0, 55.0, 60.0, 65.0, 75.0, 90.0)}
PAIRS = (("sex", "stage"),)
# Rounds: 1 opening, 2 introductions, 3 meeting, 4 levels, then a total and its opening in turns.
POSSIBLE, SUMS, SQUARES, BEGIN, COUNT = 5, 7, 9, 11, 13


def both(sites: Any, method: Any = None, **more: Any) -> tuple[Run, Run]:
    return run_on(sites, method, **more), run_on(sites, method, sums="secure", **more)


def pooled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["site"] == ALL].reset_index(drop=True)


def check_equal(found: Any, wanted: Any, names: Any = ("numbers", "levels", "quantiles")) -> None:
    """Of one run what it says of all sites, of the other all that it says."""
    for name in names:
        one, other = getattr(found, name), pooled(getattr(wanted, name))
        pd.testing.assert_frame_equal(one, other, rtol=1e-9, check_dtype=False)
    assert found.n.sum() == wanted.n.sum()
    for i in range(len(wanted.pairs)):
        table, test, within, v = found.pair_tests(i)
        np.testing.assert_array_equal(table, wanted.pair_tests(i)[0])
        assert test == wanted.pair_tests(i)[1] and v == pytest.approx(wanted.pair_tests(i)[3])
        assert within.df == 0


@pytest.mark.parametrize("policy", ["simulation", "consortium"])
def test_it_is_what_a_run_in_plain_says_of_all_sites(policy: str) -> None:
    method = Describe(tables=PAIRS, bins=BINS)
    plain, secret = both(tables(sizes=(600, 900, 800)), method, policy=policy)
    check_equal(secret.result, plain.result)
    assert secret.result.masked and MASKED in secret.notes


def test_a_strict_site_tells_complete_rows() -> None:
    rules = Preparation(categorical="onehot", missing="complete-rows")
    plain, secret = both(tables(), Describe(), policy="strict", preparation=rules)
    check_equal(secret.result, plain.result, ("numbers", "levels"))
    # In plain each site has bins of its own, which are finer.
    bounds, finer = secret.result.quantiles, pooled(plain.result.quantiles)
    assert (bounds["low"] <= finer["value"]).all() and (finer["value"] <= bounds["high"]).all()


def test_table_1_has_one_column_and_compares_nothing() -> None:
    _, secret = both(tables())
    frame = secret.result.to_frame()
    assert list(frame.columns) == [ALL] and "630 rows of all sites" in secret.result.summary()
    page = " ".join(secret.report().html.split())
    assert "Sums were masked, so sites cannot be compared" in page
    assert "over all sites and by site" not in page


def test_no_number_of_a_site_leaves_but_in_masks() -> None:
    _, secret = both(tables(), Describe(tables=PAIRS))
    lines = [line for line in secret.transcript if line.direction == "from-site"]
    assert {line.disclosure for line in lines} == {"masked", "public"}
    steps = {line.step for line in lines if line.disclosure == "masked"}
    assert steps == {"possible", "sums_total", "squares_total", "bins_possible", "bins_total"}


def with_few() -> dict[str, pd.DataFrame]:
    """One site has few of a level, few different doses, and nobody above 65."""
    sites = tables(sizes=(300, 300, 300))
    one = sites["lyon"].dropna().reset_index(drop=True)
    one["stage"] = np.where(np.arange(len(one)) < 4, "III", "I")
    one["dose"] = np.where(np.arange(len(one)) < 3, 5.0, 1.0)
    one["age"] = one["age"].clip(upper=64.0)
    return {**sites, "lyon": one}


def test_what_some_site_withholds_is_told_by_none() -> None:
    """Else the total of the others, or of a third site alone, would be known."""
    _, secret = both(with_few(), Describe(tables=PAIRS, bins=BINS))
    result = secret.result
    assert np.isnan(result.mean[0, 1]) and np.isfinite(result.mean[0, 0])
    assert np.isnan(result.counts["stage"][0, 2]) and np.isnan(result.tables[0]).all()
    heads = ~np.isnan(result.bin_counts["age"][0])
    assert heads[0] and not heads[-2:].any() and heads.sum() > 2
    assert any("withheld by some sites" in sentence for sentence in secret.notes)


def test_each_site_tells_the_same_cells() -> None:
    made = Federation.local(
        with_few(), columns=COLUMNS, preparation=KEEP, policy="consortium", sums="secure"
    )
    engine = scripted(made)
    Describe(tables=PAIRS, bins=BINS).run(engine, seed=0)
    assert told_cells(engine, SUMS) == 1 and told_cells(engine, COUNT) == 1


def told_cells(made: Any, round_: int) -> int:
    """How many different sets of cells sites told in a round."""
    replies = [raw for (at, _), raw in made.engine.replies.items() if at == round_]
    return len({decode_message(Reply.from_bytes(raw).message).told.tobytes() for raw in replies})


def test_curves_are_refused_before_anything_is_asked() -> None:
    method = Describe(curves=(("age", "sex"),))
    with pytest.raises(StudyError, match="leave curves out, or leave sums = 'secure' out"):
        run_on(tables(), method, sums="secure")


def test_a_steward_can_insist() -> None:
    insists = Policy(preset="consortium", masked_sums=True)
    assert run_on(tables(), policy=insists, sums="secure").result.n.sum() == 630


class Asking(Describe):
    """Alters what is asked of one step."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while True:
            if asked.step == self.of:  # type: ignore[attr-defined]
                asked = dataclasses.replace(asked, message=self.alter(asked.message))  # type: ignore[attr-defined]
            try:
                asked = exchange.send((yield asked))
            except StopIteration as end:
                return end.value


def asking(of: str, alter: Any) -> Asking:
    method = Asking(bins=BINS)
    object.__setattr__(method, "of", of)
    object.__setattr__(method, "alter", alter)
    return method


def of_all(message: Any) -> Any:
    return dataclasses.replace(message, told=np.arange(9))


def beyond(message: Any) -> Any:
    return dataclasses.replace(message, told=np.array([0, 900]))


def all_edges(message: Any) -> Any:
    edges = np.concatenate([BINS["age"], [1.0, 2.0]])
    sizes = np.array([len(BINS["age"]), 2])
    told = relayed(edges, Disclosure.AGGREGATE)
    return dataclasses.replace(message, edges=told, sizes=sizes)


@pytest.mark.parametrize(
    ("of", "alter", "says"),
    [
        ("sums_total", of_all, "did not say it could tell"),
        ("sums_total", beyond, "did not say it could tell"),
        ("bins_total", all_edges, "did not say it could tell"),
    ],
)
def test_a_site_tells_no_more_than_it_may(of: str, alter: Any, says: str) -> None:
    with pytest.raises(QuorumError, match=says):
        run_on(with_few(), asking(of, alter), sums="secure")


class Trying(Describe):
    """Asks for a bin at one edge after another until a site answers instead of refusing."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "bins_total":
            asked = exchange.send((yield asked))
        answers = set()
        for edge in np.arange(35.5, 60.0, 1.0):
            told = relayed(np.array([edge]), Disclosure.AGGREGATE)
            sizes = np.array([1, 0])
            trial = dataclasses.replace(asked.message, edges=told, sizes=sizes)
            for site in ctx.sites:
                replies = yield Ask("bins_total", trial, to=(site,))
                answers.add(repr(replies[site]))
        object.__setattr__(self, "answers", answers)
        raise QuorumError("enough")


def test_edges_cannot_be_tried_until_one_is_answered() -> None:
    """A site refuses before it looks where its rows are, and takes a refusal for its answer."""
    method = Trying()  # without edges in the study any may be named
    with pytest.raises(QuorumError, match="enough"):
        run_on(tables(), method, sums="secure")
    first, later = sorted(method.answers, key=len, reverse=True)  # type: ignore[attr-defined]
    assert "did not say it could tell" in first and "answered once in a run" in later


class Apart(Describe):
    """Asks one site for other sums than the rest, opens no total, and goes on with all alike."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        exchange = super().coordinate(ctx)
        asked = next(exchange)
        while asked.step != "sums_total":
            asked = exchange.send((yield asked))
        fewer = dataclasses.replace(asked.message, told=asked.message.told[:-1])
        apart = {site: asked.message for site in ctx.sites} | {ctx.sites[0]: fewer}
        yield Ask("sums_total", apart)
        mean = relayed(np.zeros(len(asked.message.numbers)), Disclosure.AGGREGATE)
        replies = yield Ask("squares_total", masked.Centre(mean=mean))
        about = [replies[site].question for site in ctx.sites]
        object.__setattr__(self, "alike", (len(about), len(set(about))))
        raise QuorumError("enough")


def test_sites_that_were_asked_apart_before_are_in_no_sum_together() -> None:
    """Else squares of all but one could be left out, and the total be what that one adds."""
    method = Apart()
    with pytest.raises(QuorumError, match="enough"):
        run_on(tables(), method, sums="secure")
    assert method.alike == (3, 2)  # type: ignore[attr-defined]


def test_squares_are_told_after_sums() -> None:
    met = SimpleNamespace(keys={KEYS: vars(Party("run", "a", b"", roster=("a",)))})
    with pytest.raises(ProtocolError, match="squares are asked for before sums"):
        masked.squares_total(None, None, {}, met)


@pytest.mark.parametrize(
    ("of", "field", "value"),
    [("sums_total", "known", -1.0), ("sums_total", "levels", 1e4), ("bins_total", "counts", 0.0)],
)
def test_totals_that_no_rows_have_are_refused(
    of: str, field: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = masked.total

    def wrong(ctx: Any, asked: Any, reply: Any, **more: Any) -> Any:
        found = yield from true(ctx, asked, reply, **more)
        if asked.step == of:
            found.values[field][0] = value
        return found

    monkeypatch.setattr(masked, "total", wrong)
    with pytest.raises(ProtocolError, match="what no rows have"):
        run_on(tables(), sums="secure")


@pytest.mark.parametrize("step", masked.STEPS)
def test_steps_of_masked_sums_are_refused_in_plain(step: Any) -> None:
    with pytest.raises(DisclosureError, match="have not met"):
        step(None, None, {}, SimpleNamespace(keys={}))


@pytest.mark.parametrize("when", [SUMS, SQUARES, BEGIN, COUNT])
def test_a_site_that_is_lost_after_it_gave_stops_the_run(when: int) -> None:
    made = Federation.local(
        tables(), columns=COLUMNS, preparation=KEEP, policy="consortium", sums="secure"
    )
    with pytest.raises(QuorumError, match="osaka was absent"):
        Describe().run(scripted(made, {(when, "osaka"): "absent"}), seed=0)


@pytest.mark.parametrize("round_", [POSSIBLE, SUMS + 1, COUNT])
def test_a_run_that_stopped_goes_on_with_the_same_answer(round_: int, tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    def made() -> Federation:
        settings: Any = {"columns": COLUMNS, "preparation": KEEP, "policy": "consortium"}
        return Federation.local(tables(), sums="secure", **settings)

    first, path = made(), tmp_path / "run"
    with pytest.raises(Killed):
        Describe().run(first, seed=0, run_id="kept", out=path, on_event=stop)
    Describe().run(first, out=path, run_id="kept", resume=True)
    whole = Describe().run(made(), seed=0, run_id="kept")
    assert load_run(path).result.to_files() == whole.result.to_files()


@pytest.mark.parametrize("stopped", [False, True])
def test_edges_of_two_runs_count_together(stopped: bool) -> None:
    """Also those of which a site only said whether it could tell them: that says where rows are."""
    made = Federation.local(
        tables(), columns=COLUMNS, preparation=KEEP, policy="consortium", sums="secure"
    )
    first = Describe(bins={"age": (50.0, 60.0, 70.0)})
    if stopped:

        def stop(kind: str, facts: dict[str, Any]) -> None:
            if kind == "arrived" and facts["round"] == BEGIN + 1:
                raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            first.run(made, seed=0, on_event=stop)
    else:
        assert np.isfinite(first.run(made, seed=0).result.bin_counts["age"]).all()
    again = Describe(bins={"age": (50.2, 60.2, 70.2)}).run(made, seed=1).result
    assert np.isnan(again.bin_counts["age"][0, 1:]).all()
    same = first.run(made, seed=2).result.bin_counts["age"]
    assert np.isfinite(same).all()
