"""Totals of which the coordinator sees no part: whole runs, dropouts, and coordinators that lie."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from consilience import EnsembleClustering
from consilience.describe.protocol import Describe
from consilience.engines import driver
from consilience.engines.federation import Federation
from consilience.exceptions import (
    ConsilienceError,
    DataError,
    ProtocolError,
    QuorumError,
    RunError,
    StudyError,
    WireError,
)
from consilience.protocol.mean_and_sd import (
    Centre,
    MeanAndSD,
    MeanAndSDResult,
    Possible,
    SharedRequest,
    Sums,
    SumsRequest,
)
from consilience.protocol.method import (
    MASKED_SUMS,
    Ask,
    CoordinatorContext,
    Exchange,
    Preparation,
    Refused,
    SiteData,
    Step,
    all_methods,
)
from consilience.protocol.phases import moments, secure_sums, standardise
from consilience.protocol.phases.prepare import HOUSE_STEPS
from consilience.sites.policy import Policy
from consilience.sites.steward import told
from consilience.sites.study import Study
from consilience.testing.fakes import federation_of, members, scripted, with_fixed_secrets
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed, replaced
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure, message_type
from consilience.wire.secure_sums import RESOLUTION

RNG = np.random.default_rng(4)
TABLES = {f"s{i}": RNG.normal(size=(30 + 7 * i, 3)) * [1, 5, 0.1] + i for i in range(5)}
SCALED = Preparation(standardize="pooled")
# Rounds of a run: 1 opening, 2 introductions, 3 meeting, then a sum and its opening in turns.
# What all could tell, sums, deviations.
FIRST, OPENING, SECOND, THIRD = 4, 5, 6, 8


def masked(tables: dict[str, np.ndarray] = TABLES, **settings: Any) -> Federation:
    federation = dataclasses.replace(federation_of(tables, **settings), sums="secure")
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return federation


def with_script(script: dict[Any, Any], *, quorum: int = 4, **settings: Any) -> Federation:
    return scripted(dataclasses.replace(masked(**settings), quorum=quorum), script)


def within_resolution(found: Any, plain: Any, unit: float = RESOLUTION) -> None:
    """Equal to what replies in plain give, to the resolution and the rounding of a few sums."""
    np.testing.assert_allclose(found, plain, rtol=1e-13, atol=len(TABLES) * unit)


# ------------------------------------------------------------------------------ results


@pytest.mark.parametrize("preparation", [Preparation(), SCALED], ids=["plain", "standardised"])
def test_the_result_is_that_of_sums_in_plain(preparation: Preparation) -> None:
    plain = MeanAndSD().run(federation_of(TABLES, preparation=preparation), seed=0)
    run = MeanAndSD().run(masked(preparation=preparation), seed=0)
    assert run.result.n == plain.result.n
    # Means of standardised columns are 0 but for rounding.
    unit = RESOLUTION if plain.scaling is None else 1e-15
    within_resolution(run.result.mean, plain.result.mean, unit)
    within_resolution(run.result.sd, plain.result.sd)
    if plain.scaling is not None:
        within_resolution(run.scaling, plain.scaling)


def test_nothing_that_leaves_tells_a_sites_numbers() -> None:
    run = MeanAndSD().run(masked(), seed=0)
    sums = [line for line in run.transcript if line.field == "numbers"]
    assert {line.disclosure for line in sums} == {"masked"} and len(sums) == 3 * len(TABLES)
    others = {line.disclosure for line in run.transcript if line.direction == "from-site"}
    assert others == {"masked", "public"}
    again = MeanAndSD().run(masked(), seed=1)
    # With the same secrets another run has other masks.
    digests = [[x.digest for x in r.transcript if x.field == "numbers"] for r in (run, again)]
    assert not set(digests[0]) & set(digests[1])


def test_a_reply_in_masks_is_uniform_to_look_at() -> None:
    engine = scripted(masked()).engine
    MeanAndSD().run(dataclasses.replace(masked(), engine=engine), seed=0)
    seen = []
    for (round_, _), data in engine.replies.items():  # type: ignore[attr-defined]
        if round_ == FIRST:
            seen.append(decode_message(Reply.from_bytes(data).message).numbers.value)
    bits = np.unpackbits(np.concatenate(seen).view(np.uint8))
    # Of numbers in plain the upper half would be zeros, or ones.
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))


@pytest.mark.parametrize("tellers", [0, 1, 2, 3])
def test_a_column_that_some_sites_withhold_is_told_by_none(tellers: int) -> None:
    """A total over one of four sites would be that site's own, in an honest run."""
    names = list(TABLES)[:4]
    tables = {
        name: np.c_[TABLES[name], np.arange(len(TABLES[name])) < (15 if i < tellers else 4)]
        for i, name in enumerate(names)
    }
    federation = masked(tables)
    engine = scripted(federation).engine
    run = MeanAndSD().run(dataclasses.replace(federation, engine=engine), seed=0)
    plain = MeanAndSD().run(federation_of(tables), seed=0).result
    assert np.isnan(plain.mean[3]) == (tellers == 0)
    assert np.isnan([run.result.mean[3], run.result.sd[3]]).all()
    within_resolution(run.result.mean[:3], plain.mean[:3])
    within_resolution(run.result.sd[:3], plain.sd[:3])
    assert any("withheld x3" in note and "of none" in note for note in run.notes)
    for round_ in (SECOND, THIRD):
        for name in names:
            reply = Reply.from_bytes(engine.replies[round_, name])  # type: ignore[attr-defined]
            told = decode_message(reply.message).told
            assert told[:-1].all() and not told[-1]


def test_a_site_adds_what_it_said_it_could_tell() -> None:
    """Refused before a look at the rows, and whoever did not say what it could is refused."""
    tables = {n: np.c_[x, np.arange(len(x)) < (4 if n == "s1" else 15)] for n, x in TABLES.items()}
    for begins, refusing in ((True, 1), (False, len(tables))):
        method = Offered(begins=begins)
        found = method.run(dataclasses.replace(masked(tables), quorum=3), seed=0).result
        assert list(found.mean) == [refusing, refusing]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offered(MeanAndSD):
    """Asks all sites for the sums, and squares, of a column that one of them withholds."""

    begins: bool = True

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Return how many sites refuse each question."""
        if self.begins:
            yield from secure_sums.total(ctx, Ask("possible", SumsRequest()), Possible)
        every = np.ones(len(ctx.feature_names), dtype=bool)
        centre = Centre(mean=relayed(np.zeros(len(every)), Disclosure.AGGREGATE))
        refusing = []
        for ask in (Ask("totals", SharedRequest(columns=every)), Ask("deviations", centre)):
            replies = yield ask
            reasons = [r.reason for r in replies.values() if isinstance(r, Refused)]
            assert all("did not say it could tell" in reason for reason in reasons)
            refusing.append(len(reasons))
        return MeanAndSDResult(
            ctx.feature_names, 0, np.array(refusing, float), np.zeros(2), np.zeros(2)
        )


@pytest.mark.parametrize("tell", range(5))
def test_a_column_that_a_site_withholds_is_put_in_no_units(tell: int) -> None:
    """Of two totals one is opened: over the sites that tell a column it would be of these alone."""
    few = np.arange(30) < 3
    tables = {
        name: np.c_[x[:30], RNG.integers(0, 2, 30) if i < tell else few]
        for i, (name, x) in enumerate(TABLES.items())
    }
    federation = masked(tables, preparation=SCALED)
    engine = scripted(federation).engine
    run = MeanAndSD().run(dataclasses.replace(federation, engine=engine), seed=0)
    assert run.scaling is not None and run.scaling[1:, 3].tolist() == [0, 1]
    plain = MeanAndSD().run(
        federation_of({n: x[:, :3] for n, x in tables.items()}, preparation=SCALED), seed=0
    )
    assert plain.scaling is not None
    within_resolution(run.scaling[:, :3], plain.scaling)
    assert any(note.startswith("A site withheld column x3") for note in run.notes)
    steps = [Request.from_bytes(x) for x in engine.requests.values()]  # type: ignore[attr-defined]
    asked = {r.round: r.step for r in steps if r.site == "s0"}
    opened = [asked[r] for r in sorted(asked)][FIRST - 1 : FIRST + 1 + (tell > 0)]
    wanted = ["moments.totals", "moments.totals", "secure_sums.open"]
    assert opened == wanted[tell == 0 :]


def test_few_and_none_look_alike() -> None:
    """A column of which a site has few odd rows, and one of which it has none."""
    seen = []
    for odd in (0, 4):
        tables = {n: np.c_[x, (np.arange(len(x)) % 2) * 1.0] for n, x in TABLES.items()}
        tables["s1"][:, 3] = np.arange(len(tables["s1"])) < odd
        engine = scripted(masked(tables)).engine
        federation = dataclasses.replace(masked(tables), engine=engine)
        MeanAndSD().run(federation, seed=0, run_id="same")
        replies = (engine.replies[when, "s1"] for when in (FIRST, SECOND))  # type: ignore[attr-defined]
        seen.append([(r.message, r.verdicts) for r in map(Reply.from_bytes, replies)])
    assert seen[0] == seen[1]


# ------------------------------------------------------------------------------ who is lost


@pytest.mark.parametrize("action", ["absent", "late", "refused"])
@pytest.mark.parametrize("when", [1, 2])
def test_a_site_that_is_lost_before_all_have_met_is_left_out(when: int, action: str) -> None:
    run = MeanAndSD().run(with_script({(when, "s2"): action}), seed=0)
    others = {name: x for name, x in TABLES.items() if name != "s2"}
    plain = MeanAndSD().run(federation_of(others), seed=0)
    within_resolution(run.result.mean, plain.result.mean)


@pytest.mark.parametrize("action", ["absent", "late", "refused"])
def test_a_site_that_is_lost_before_it_gave_is_left_out(action: str) -> None:
    run = MeanAndSD().run(with_script({(FIRST, "s2"): action}), seed=0)
    others = {name: x for name, x in TABLES.items() if name != "s2"}
    plain = MeanAndSD().run(federation_of(others), seed=0)
    assert run.result.n == plain.result.n
    within_resolution(run.result.mean, plain.result.mean)
    within_resolution(run.result.sd, plain.result.sd)


@pytest.mark.parametrize("action", ["absent", "late", "refused"])
def test_a_site_that_is_lost_before_the_last_opening_is_counted(action: str) -> None:
    run = MeanAndSD().run(with_script({(THIRD + 1, "s2"): action}), seed=0)
    plain = MeanAndSD().run(federation_of(TABLES), seed=0)
    within_resolution(run.result.mean, plain.result.mean)
    within_resolution(run.result.sd, plain.result.sd)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({(3, "s2"): "absent"}, "s2 was absent"),
        ({(OPENING, "s2"): "absent"}, "s2 missed a question of this run"),
        ({(SECOND, "s2"): "absent"}, "s2 was absent"),
        ({(THIRD, "s2"): "absent"}, "s2 was absent"),
        ({(OPENING, s): "absent" for s in ("s1", "s2", "s3")}, "s1, s2, s3 were absent"),
        ({(FIRST, s): "absent" for s in ("s1", "s2", "s3")}, "s1, s2, s3 were absent"),
    ],
)
def test_where_too_many_are_lost_the_run_stops_with_a_sentence(
    script: dict[Any, Any], says: str
) -> None:
    with pytest.raises(QuorumError, match=says):
        MeanAndSD().run(with_script(script), seed=0)


@pytest.mark.parametrize("round_", range(1, 10))
def test_a_run_that_stopped_goes_on_with_the_same_bytes(round_: int, tmp_path: Path) -> None:
    whole = MeanAndSD().run(masked(), seed=0, run_id="kept")

    class Killed(Exception):
        pass

    def stop(kind: str, facts: dict[str, Any]) -> None:
        if kind == "arrived" and facts["round"] == round_:
            raise Killed

    federation = masked()
    with pytest.raises(Killed):
        MeanAndSD().run(federation, seed=0, run_id="kept", out=tmp_path / "run", on_event=stop)
    run = MeanAndSD().run(federation, out=tmp_path / "run", run_id="kept", resume=True)
    assert run.result.to_files() == whole.result.to_files()
    assert [x.digest for x in run.transcript] != [] and len(run.transcript) == len(whole.transcript)


def test_sites_that_were_absent_are_asked_again_when_they_are_back(tmp_path: Path) -> None:
    federation = dataclasses.replace(masked(), quorum=4)
    stopped = scripted(federation, {(SECOND, "s2"): "returns", (SECOND, "s3"): "returns"})
    with pytest.raises(QuorumError):
        MeanAndSD().run(stopped, seed=0, out=tmp_path / "run")
    back = dataclasses.replace(federation, engine=scripted(federation).engine)
    with pytest.raises(QuorumError):
        MeanAndSD().run(stopped, out=tmp_path / "run", resume=True)
    run = MeanAndSD().run(back, out=tmp_path / "run", resume=True, retry_refused=True)
    plain = MeanAndSD().run(federation_of(TABLES), seed=0)
    within_resolution(run.result.mean, plain.result.mean)
    within_resolution(run.result.sd, plain.result.sd)


@pytest.mark.parametrize("round_", [4, 5, 6, 7, 9, 10, 11, 12])
def test_an_answer_that_came_too_late_is_asked_for_again(round_: int, tmp_path: Path) -> None:
    """The site has answered, once: computed twice it would be in no sum with the others."""
    federation = dataclasses.replace(masked(preparation=SCALED), quorum=5)
    late = scripted(federation, {(round_, "s2"): "late"})
    with pytest.raises(QuorumError):
        MeanAndSD().run(late, seed=0, out=tmp_path / "run")
    back = dataclasses.replace(federation, engine=scripted(federation).engine)
    run = MeanAndSD().run(back, out=tmp_path / "run", resume=True, retry_refused=True)
    whole = MeanAndSD().run(federation_of(TABLES, preparation=SCALED), seed=0)
    assert run.result.n == whole.result.n
    within_resolution(run.result.sd, whole.result.sd)


@pytest.mark.parametrize("step", ["secure_sums.open", "moments.totals", "possible"])
def test_a_question_counts_whether_or_not_a_steward_let_the_answer_leave(
    step: str, tmp_path: Path
) -> None:
    """What a site releases next may rest on it: in the same run it is in no sum with the others."""
    federation = dataclasses.replace(masked(preparation=SCALED), quorum=5)
    site, asked = members(federation)["s2"], []
    site.hold = "all"
    leaving = site._leaving

    def decided(run: str, record: Any) -> Any:
        found = leaving(run, record)
        if isinstance(found, bytes):
            return found
        asked.append(found.step)
        jobs, at = site.home.jobs, (run, record.round, record.attempt)
        if found.step == step and asked.count(step) == 1:
            jobs.refuse(*at, "not now")
        else:
            jobs.release(*at)
        return leaving(run, record)

    with mock.patch.object(site, "_leaving", decided):
        with pytest.raises(QuorumError):
            MeanAndSD().run(federation, seed=0, out=tmp_path / "run")
        stops = contextlib.nullcontext()
        if step != "secure_sums.open":
            stops = pytest.raises(ProtocolError, match="other questions before it: start another")
        with stops:
            MeanAndSD().run(federation, out=tmp_path / "run", resume=True, retry_refused=True)
    assert asked.count(step) > 1


def test_sites_that_said_they_could_tell_and_do_not_stop_the_run() -> None:
    """What they may tell hangs on other runs, too, and may be less a round later."""
    federation, quiet = masked(), {f"s{i}" for i in range(1, 5)}
    engine = scripted(federation).engine
    totals = secure_sums.concealed

    def less(content: Any, asked: Any, question: str, site: Any) -> Any:
        if asked.name == "totals" and site.site in quiet:
            gaps = np.full(3, np.nan)
            content = dataclasses.replace(
                content, totals=replaced(content.totals, gaps), n=replaced(content.n, gaps[:1][0])
            )
        return totals(content, asked, question, site)

    with (
        mock.patch.object(secure_sums, "concealed", less),
        pytest.raises(QuorumError, match="fewer sites tell a part of step 'totals'"),
    ):
        MeanAndSD().run(dataclasses.replace(federation, engine=engine), seed=0)
    opened = [Request.from_bytes(x) for x in engine.requests.values()]  # type: ignore[attr-defined]
    assert max(r.round for r in opened if r.step == "secure_sums.open") == OPENING


@pytest.mark.parametrize("knows", [True, False])
def test_a_sum_that_was_opened_is_not_opened_again(knows: bool, tmp_path: Path) -> None:
    """Who asks again from a round before would learn the difference that a lost site makes."""
    federation = dataclasses.replace(masked(), quorum=4)
    first = scripted(federation, {(FIRST, "s2"): "returns", (SECOND, "s3"): "absent"})
    with pytest.raises(QuorumError):
        MeanAndSD().run(first, seed=0, out=tmp_path / "run")
    back = dataclasses.replace(federation, engine=scripted(federation).engine)
    again: dict[str, Any] = {"out": tmp_path / "run", "resume": True, "retry_refused": True}
    if knows:  # and asks only who was lost since
        run = MeanAndSD().run(back, **again)
        assert run.result.n == sum(len(x) for name, x in TABLES.items() if name != "s2")
        return
    with (
        mock.patch.object(driver, "open_sum", SimpleNamespace(name="")),
        pytest.raises(QuorumError, match=r"is opened once in a run, .*\(sum 0\)"),
    ):
        MeanAndSD().run(back, **again)


def test_a_run_that_ended_without_a_site_stays_as_it_is(tmp_path: Path) -> None:
    federation = dataclasses.replace(masked(), quorum=4)
    lost = scripted(federation, {(FIRST, "s2"): "absent"})
    run = MeanAndSD().run(lost, seed=0, out=tmp_path / "run")
    with pytest.raises(RunError, match="resume the run without asking again, or start another"):
        MeanAndSD().run(federation, out=tmp_path / "run", resume=True, retry_refused=True)
    resumed = MeanAndSD().run(federation, out=tmp_path / "run", resume=True)
    assert resumed.result.to_files() == run.result.to_files()


def test_a_site_that_is_killed_while_it_opens_a_sum_opens_it_when_it_is_asked_again(
    tmp_path: Path,
) -> None:
    """What it remembers of the run is written before its answer is."""
    federation = masked()
    home = members(federation)["s2"].home
    commit, killed = home.commit, []

    def once(run: str, record: Any, *prior: Any) -> None:
        if Reply.from_bytes(record.reply).step == "secure_sums.open" and not killed:
            killed.append(run)
            raise RunError("the site was killed")
        commit(run, record, *prior)

    home.commit = once  # type: ignore[method-assign]
    with pytest.raises(QuorumError):
        MeanAndSD().run(federation, seed=0, out=tmp_path / "run")
    assert killed
    run = MeanAndSD().run(federation, out=tmp_path / "run", resume=True, retry_refused=True)
    plain = MeanAndSD().run(federation_of(TABLES), seed=0)
    within_resolution(run.result.mean, plain.result.mean)


def test_a_steward_is_shown_what_leaves_in_masks() -> None:
    federation, shown = masked(), {}

    def confirm(request: Request, content: Any, verdicts: Any) -> bool:
        shown[request.step] = {one.field: one.rule for one in told(content, verdicts)}
        return True

    members(federation)["s0"].confirm = confirm
    MeanAndSD().run(federation, seed=0)
    for step in ("possible", "totals", "deviations"):
        assert shown[step]["numbers"] == "masked" and not {"totals", "columns"} & set(shown[step])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twice(MeanAndSD):
    """Asks for the same sums twice, by one step or by two."""

    then: str = "totals"

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Return the difference of two totals."""
        yield from secure_sums.total(ctx, Ask("possible", SumsRequest()), Possible)
        message, reply = SharedRequest(columns=np.ones(3, dtype=bool)), Sums
        first = yield from secure_sums.total(ctx, Ask("totals", message), reply)
        if self.then != "totals":
            message, reply = (moments.Shared(without=()), moments.Totals)
        again = yield from secure_sums.total(ctx, Ask(self.then, message), reply)
        apart = first.values["totals"] - again.values["totals"]
        return MeanAndSDResult(ctx.feature_names, 0, apart, apart, apart)


@pytest.mark.parametrize("other", [False, True], ids=["one step", "two steps"])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_two_totals_of_a_run_tell_no_site(lost: int, other: bool) -> None:
    tables = TABLES | {f"s{i}": RNG.normal(size=(30, 3)) for i in (5, 6, 7, 8, 9)}
    script = {(THIRD, f"s{i}"): "absent" for i in range(lost)}
    federation = scripted(dataclasses.replace(masked(tables), quorum=3), script)
    method = Twice(then="moments.totals" if other else "totals")
    if 0 < lost < 3:
        says = "the difference would be what these contributed"
        with pytest.raises(QuorumError, match=says):
            method.run(federation, seed=0)
        return
    found = method.run(federation, seed=0).result
    gone = [tables[f"s{i}"] for i in range(lost)]
    wanted = sum((x.sum(axis=0) for x in gone), start=np.zeros(3))
    np.testing.assert_allclose(found.mean, wanted, rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------ coordinators


def asked_by_hand(
    change: Callable[[str, Any], Any], sites: tuple[str, ...] = tuple(TABLES)
) -> dict[str, list[str]]:
    """Refusals, by step, where a coordinator changes its questions on the way."""
    federation = masked()
    engine = scripted(federation).engine
    send = engine.send
    said: dict[str, list[str]] = {}

    def changed(requests: Any) -> None:
        sent = {}
        for key, data in requests.items():
            request = Request.from_bytes(data)
            message = change(request.step, decode_message(request.message))
            sent[key] = dataclasses.replace(request, message=encode_message(message)).to_bytes()
        send(sent)

    engine.send = changed  # type: ignore[method-assign]
    with contextlib.suppress(ConsilienceError):
        MeanAndSD().run(dataclasses.replace(federation, engine=engine), seed=0)
    for data in engine.replies.values():  # type: ignore[attr-defined]
        reply = Reply.from_bytes(data)
        if reply.status == "refused":
            said.setdefault(reply.step, []).append(reply.reason)
    return said


def test_a_coordinator_that_exchanges_keys_is_refused() -> None:
    def other_keys(step: str, message: Any) -> Any:
        if step != "secure_sums.meet":
            return message
        told = dict(message.introductions)
        told["s0"], told["s1"] = told["s1"], told["s0"]
        return dataclasses.replace(message, introductions=told)

    said = asked_by_hand(other_keys)
    # Where no site has a key of its own, those that were exchanged see it themselves.
    assert (
        said["secure_sums.meet"] == ["the site was introduced to the others as somebody else"] * 2
    )


def test_a_coordinator_that_says_a_site_is_gone_which_gave_is_refused_by_it() -> None:
    def without(step: str, message: Any) -> Any:
        if step != "secure_sums.open":
            return message
        keys = {s: k for s, k in message.next_keys.items() if s != "s1"}
        return dataclasses.replace(message, next_keys=keys)

    said = asked_by_hand(without)
    assert any("other sites" in reason for reason in said["secure_sums.open"])
    assert len(said["secure_sums.open"]) == len(TABLES)


def told_apart(ctx: CoordinatorContext, replies: Any, gave: dict[str, set[str]]) -> Ask:
    """Ask to open the first sum, telling each site of other sites that gave."""
    messages = {}
    for site, some in gave.items():
        messages[site] = secure_sums.Open(
            step="possible",
            epoch=0,
            question=replies[site].question,
            next_keys={s: replies[s].next_key for s in sorted(some)},
            blobs={s: replies[s].blobs[site] for s in some - {site}},
            earlier={s: ("", ctx.masks.earlier[s][1][site]) for s in ctx.sites if s not in some},
        )
    return Ask("secure_sums.open", messages, to=ctx.sites)


class ToldApart(MeanAndSD):
    """Tells each opener of two other sites that gave, so that all masks of one are given up."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Ask once, and open for another set of sites at each one."""
        replies = ctx.require((yield Ask("possible", SumsRequest())))
        others = ctx.sites[1:]
        gave = {
            site: {site, ctx.sites[0], others[at % len(others)], others[(at + 1) % len(others)]}
            for at, site in enumerate(ctx.sites)
        }
        ctx.require((yield told_apart(ctx, replies, gave)))
        raise AssertionError("the sites opened a sum for sets that differ")


class LeftApart(MeanAndSD):
    """Tells one site that two others are gone, and asks all for the next sum."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Return how many different questions there are to the sites."""
        replies = ctx.require((yield Ask("possible", SumsRequest())))
        gave = {site: set(ctx.sites) for site in ctx.sites}
        gave["s0"] -= {"s5", "s6"}
        ctx.require((yield told_apart(ctx, replies, gave)))
        centre = Centre(mean=relayed(np.zeros(3), Disclosure.AGGREGATE))
        replies = ctx.require((yield Ask("deviations", centre)))
        asked = len({reply.question for reply in replies.values()})
        return MeanAndSDResult(ctx.feature_names, asked, np.zeros(3), np.zeros(3), np.zeros(3))


def test_sites_that_were_told_of_different_sites_are_in_no_sum_together() -> None:
    tables = TABLES | {f"s{i}": RNG.normal(size=(30, 3)) for i in (5, 6)}
    assert LeftApart().run(masked(tables), seed=0).result.n == 2


def test_a_coordinator_that_tells_each_site_of_others_is_refused() -> None:
    tables = TABLES | {f"s{i}": RNG.normal(size=(30, 3)) for i in (5, 6)}
    with pytest.raises(QuorumError, match="opened where two thirds of the sites contributed"):
        ToldApart().run(masked(tables), seed=0)


def test_a_site_that_was_opened_otherwise_is_in_no_sum_with_the_others() -> None:
    """Of other columns or rows at one site, a total would show them against known ones."""
    federation = masked()
    engine = scripted(federation).engine
    send = engine.send

    def changed(requests: Any) -> None:
        sent = dict(requests)
        for key, data in requests.items():
            request = Request.from_bytes(data)
            if request.site == "s1" and request.step == "opening.read":
                message = decode_message(request.message)
                rules = json.loads(message.preparation) | {"missing": "complete-rows"}
                other = dataclasses.replace(message, preparation=json.dumps(rules))
                again = dataclasses.replace(request, message=encode_message(other))
                sent[key] = again.to_bytes()
        send(sent)

    engine.send = changed  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="sums of different cells"):
        MeanAndSD().run(dataclasses.replace(federation, engine=engine), seed=0)


@pytest.mark.parametrize("told", ["meet", "open"])
def test_a_coordinator_that_takes_fewer_sites_than_the_study_says_is_refused(told: str) -> None:
    """Two sites that are its own would know the part of the third one."""
    text = json.dumps({"sums": "secure", "sites": {"names": list(TABLES), "quorum": 5}})
    script = {(2 if told == "meet" else FIRST, "s4"): "absent"}
    federation = dataclasses.replace(masked(), quorum=4, study_text=text)
    with pytest.raises(QuorumError, match="4 sites take part and the study asks for 5"):
        MeanAndSD().run(scripted(federation, script), seed=0)


def test_too_few_contributions_are_not_opened() -> None:
    script = {(FIRST, "s1"): "absent", (FIRST, "s2"): "absent"}
    with pytest.raises(QuorumError, match=r"3 of 5 sites contributed .* two thirds"):
        MeanAndSD().run(with_script(script, quorum=3), seed=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asking(MeanAndSD):
    """Asks one question, in plain."""

    step: str = ""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Require an answer of every site."""
        message = moments.Shared(without=()) if self.step == "moments.totals" else SumsRequest()
        ctx.require((yield Ask(self.step, message)))


def test_sites_that_did_not_meet_answer_no_sum() -> None:
    """A study says that sums are masked, and the coordinator asks for them in plain."""
    settings = {
        "name": "trial",
        "method": "mean-and-sd",
        "sums": "secure",
        "data": {"features": ["x0", "x1", "x2"]},
        "sites": {"names": list(TABLES)},
    }
    study = Study.from_settings(settings)
    text = {"study": study.hash(), "study_text": study.canonical()}
    MeanAndSD().run(dataclasses.replace(masked(), **text), seed=0)
    asked = dataclasses.replace(masked(), sums="plain", **text)
    for step, says in (
        ("sums", "step 'sums' tells what is this site's alone"),
        ("possible", "masks sums, and the sites have not met"),
        ("moments.totals", "the study masks sums, and the sites have not met"),
    ):
        with pytest.raises(QuorumError, match=says):
            Asking(step=step).run(asked, seed=0)
    assert json.loads(study.canonical())["sums"] == "secure"
    plain = Study.from_settings({k: v for k, v in settings.items() if k != "sums"})
    assert "sums" not in json.loads(plain.canonical())


def test_a_step_that_tells_a_sites_own_is_refused_where_sums_are_masked() -> None:
    text = {"sums": "secure", "sites": {"keys": {}}}
    federation = dataclasses.replace(
        federation_of(TABLES, policy=Policy(preset="simulation")), study_text=json.dumps(text)
    )
    with (
        mock.patch.object(Step, "__call__", autospec=True, side_effect=Step.__call__) as computed,
        pytest.raises(QuorumError, match="tells what is this site's alone"),
    ):
        Describe().run(federation, seed=0)
    # Before anything is computed, which could be refused for what the rows are.
    assert {call.args[0].name for call in computed.call_args_list} == {"opening.read"}


def test_units_before_the_introduction_are_part_of_the_question() -> None:
    """Where no study is written sites know of no masks yet: one was put in other units than all."""
    federation, introduce = masked(), secure_sums.introduce

    def later(ctx: CoordinatorContext) -> Exchange:
        zeros, ones = (relayed(np.full(3, v), Disclosure.AGGREGATE) for v in (0.0, 1.0))
        far = relayed(np.full(3, 1e20), Disclosure.AGGREGATE)
        scales = {
            site: standardise.Scale(False, zeros, zeros, ones if site == "s0" else far)
            for site in ctx.sites
        }
        yield Ask("standardise.apply", scales)
        yield from introduce(ctx)

    with (
        mock.patch.object(secure_sums, "introduce", later),
        pytest.raises(ProtocolError, match="contributed sums of different cells"),
    ):
        MeanAndSD().run(federation, seed=0)


# ------------------------------------------------------------------------------ what may be asked


@pytest.mark.parametrize(
    ("method", "tables", "sums", "says"),
    [
        (MeanAndSD(), {"s0": TABLES["s0"], "s1": TABLES["s1"]}, "secure", "at least 3 sites"),
        (EnsembleClustering(), TABLES, "secure", "needs more of each site"),
        (MeanAndSD(), TABLES, "masked", "'plain' or 'secure'"),
    ],
)
def test_studies_that_cannot_mask_are_refused_before_anything_is_asked(
    method: Any, tables: dict[str, np.ndarray], sums: str, says: str
) -> None:
    federation = dataclasses.replace(federation_of(tables), sums=sums)  # type: ignore[arg-type]
    with pytest.raises((StudyError, ConsilienceError), match=says):
        method.run(federation, seed=0)


@pytest.mark.parametrize("power", [1, 14, 18, 20, 50, 140])
def test_what_is_too_large_is_refused_without_a_number(power: int) -> None:
    """Above 1e48 nothing of a square would be left, and the deviation be 0."""
    tables = {name: x * 10.0**power for name, x in TABLES.items()}
    if power < 10:
        assert not MeanAndSD().run(masked(tables), seed=0).notes
    elif power < 19:
        with pytest.raises(DataError, match="above 1e\\+24, the most that masked sums hold"):
            MeanAndSD().run(masked(tables), seed=0)
    else:
        with pytest.raises(QuorumError, match="up to 1e\\+20, and a column here has larger ones"):
            MeanAndSD().run(masked(tables), seed=0)
    if power == 50:
        with pytest.raises(DataError, match="the mean of x0, x1, x2 is above 1e\\+30"):
            MeanAndSD().run(federation_of(tables), seed=0)


def test_made_up_units_do_not_ask_for_the_largest_number() -> None:
    """In units of 1e-21 a site's numbers are above 1e20: where that begins is their largest one."""
    data = SiteData(TABLES["s0"], ("x0", "x1", "x2"), np.arange(len(TABLES["s0"])))
    gaps = relayed(np.zeros(3), Disclosure.AGGREGATE)
    unit = relayed(np.full(3, 1e-21), Disclosure.AGGREGATE)
    moved = standardise.transform(standardise.Scale(False, gaps, gaps, unit), data)
    assert np.abs(moved.features).max() > secure_sums.LARGEST
    secure_sums._require_moderate(moved)
    with pytest.raises(DataError, match="has larger ones"):
        secure_sums._require_moderate(data.with_features(data.features * 1e21))


def test_columns_of_which_digits_are_cut_are_named() -> None:
    tables = {name: x * [1.0, 1e-10, 1e-14] for name, x in TABLES.items()}
    for preparation in (Preparation(), SCALED):
        notes = MeanAndSD().run(masked(tables, preparation=preparation), seed=0).notes
        assert notes[0].startswith("x1, x2: constant, or the spread is below 1e-09")
        assert not any("carries no information" in note for note in notes)
    assert not MeanAndSD().run(federation_of(tables), seed=0).notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elsewhere(MeanAndSD):
    """Asks for squares about a point of its own, of one site after the other."""

    points: tuple[float, ...] = ()

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Return how many sites answered about each point."""
        yield from secure_sums.total(ctx, Ask("possible", SumsRequest()), Possible)
        answers = []
        for point in self.points:
            centre = Centre(mean=relayed(np.full(3, point), Disclosure.AGGREGATE))
            found = yield Ask("deviations", centre)
            answers.append(sum(isinstance(r, secure_sums.Concealed) for r in found.values()))
        return MeanAndSDResult(
            ctx.feature_names, 0, np.array(answers, float), np.zeros(3), np.zeros(3)
        )


def test_no_refusal_says_where_the_sums_of_a_site_begin_to_be_large() -> None:
    """A bound on what is masked gave the mean of each site by 60 questions, and its rows."""
    for point in (0.0, 1e6, -3e7, 2.0**26, 1e12, -1e20, 1e30):
        method = Elsewhere(points=(point,))
        assert method.run(masked(), seed=0).result.mean == [len(TABLES)]
    # What is refused is refused whatever the rows are, and squares are told about one point.
    twice = Elsewhere(points=(1.0, 1.0 + 2.0**-40)).run(masked(), seed=0)
    assert list(twice.result.mean) == [len(TABLES), 0]

    near = relayed(np.full(3, 1e29), Disclosure.AGGREGATE)
    written = encode_message(Centre(mean=near))
    farther = written.replace(np.float64(1e29).tobytes(), np.float64(2e30).tobytes())
    with pytest.raises(WireError, match=r"between -1e\+30 and 1e\+30"):
        decode_message(farther)


def test_sums_about_a_point_are_told_of_one_point_in_a_run() -> None:
    every = [*HOUSE_STEPS, *(step for one in all_methods().values() for step in one.steps)]
    about = {
        (step.name, message_type(step.request).fields["mean"].high, step.once)
        for step in every
        if step.summed and step.request.__name__ == "Centre"
    }
    names = ("deviations", "moments.squares", "products", "squares_total")
    once = {name: MASKED_SUMS if name == "deviations" else True for name in names}
    assert sorted(about) == [(name, 1e30, once[name]) for name in names]


def test_replies_that_do_not_belong_together_stop_the_run() -> None:
    def other_cells(data: bytes) -> bytes:
        reply = Reply.from_bytes(data)
        message = decode_message(reply.message)
        wrong = dataclasses.replace(message, question="0" * 64)
        return dataclasses.replace(reply, message=encode_message(wrong)).to_bytes()

    with pytest.raises(ProtocolError, match="sums of different cells"):
        MeanAndSD().run(with_script({(FIRST, "s2"): other_cells}), seed=0)


def test_wrong_shares_of_one_site_cost_nothing() -> None:
    def wrong(data: bytes) -> bytes:
        reply = Reply.from_bytes(data)
        message = decode_message(reply.message)
        own = {site: bytes(33) for site in message.own}
        changed = dataclasses.replace(message, own=own)
        return dataclasses.replace(reply, message=encode_message(changed)).to_bytes()

    run = MeanAndSD().run(with_script({(OPENING, "s2"): wrong}), seed=0)
    plain = MeanAndSD().run(federation_of(TABLES), seed=0)
    within_resolution(run.result.mean, plain.result.mean)


def test_a_set_of_sites_has_one_name() -> None:
    assert secure_sums._set_name(["b", "a"]) == "opened totals: a b"


# ------------------------------------------------------------------------------ stewards


def test_a_steward_can_insist_on_masks() -> None:
    settings = {
        "name": "trial",
        "method": "mean-and-sd",
        "data": {"features": ["x0", "x1", "x2"]},
        "sites": {"names": list(TABLES)},
    }
    insists = Policy(masked_sums=True)
    for sums in ("plain", "secure"):
        study = Study.from_settings(settings | {"sums": sums})
        engine = masked(policy=insists).engine
        federation = Federation.from_study(study, engine=engine)
        if sums == "plain":
            with pytest.raises(QuorumError, match="sums leave masked only"):
                MeanAndSD().run(federation, seed=0)
        else:
            assert MeanAndSD().run(federation, seed=0).result.n == sum(map(len, TABLES.values()))


@pytest.mark.parametrize("policy", [Policy(masked_sums=True), Policy()])
def test_a_steward_can_insist_on_masks_where_no_study_is_written(policy: Policy) -> None:
    """A federation of one process sends no text of a study."""
    assert MeanAndSD().run(masked(policy=policy), seed=0).result.n == sum(map(len, TABLES.values()))
    plain = dataclasses.replace(masked(policy=policy), sums="plain")
    if policy.masked_sums:
        with pytest.raises(QuorumError, match="sums leave masked only"):
            MeanAndSD().run(plain, seed=0)
    else:
        assert MeanAndSD().run(plain, seed=0).result.n == sum(map(len, TABLES.values()))


def test_what_follows_a_masked_run_does_not_ask_in_plain() -> None:
    names = [one.method for one in MeanAndSD().run(masked(), seed=0).next()]
    assert names == ["describe"], "which may be masked, too"
    plain = Describe().run(federation_of(TABLES), seed=0)
    assert [one.method for one in plain.next()] == ["ensemble-clustering"]
    found = Describe().run(masked(), seed=0).next()
    assert not len(found) and "only the parties can decide" in repr(found)
