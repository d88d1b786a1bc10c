from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience import __version__
from consilience.exceptions import RunError, WireError
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.protocol.phases.opening import NAME as OPENING
from consilience.protocol.phases.opening import Open
from consilience.protocol.phases.standardise import Scale
from consilience.sites.loaders import memory_site
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore, MemoryStore
from consilience.sites.study import Study
from consilience.testing.fakes import Edges, Question, array_loader, with_fixed_secrets
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure

X = np.random.default_rng(0).normal(size=(60, 2)) + 7
NAMES = ("x0", "x1")


def opening(names: tuple[str, ...] = NAMES, study: str = "") -> bytes:
    """Of a study that scales its columns; one that is given says how by itself."""
    columns = json.dumps(dataclasses.asdict(Columns(features=names)))
    given = Preparation() if study else Preparation(standardize="pooled")
    preparation = json.dumps(dataclasses.asdict(given))
    return encode_message(
        Open(
            columns=columns,
            preparation=preparation,
            study=study,
            partition="rows",
            follows="",
        )
    )


OPEN = Request(
    run="run-1",
    study="study",
    method="testing-class-sums",
    method_version=1,
    release=__version__,
    round=1,
    attempt=1,
    after_round=0,
    after_attempt=0,
    step=OPENING,
    site="a",
    seed=5,
    message=opening(),
)


def after(request: Request, **changes: Any) -> Request:
    """The next question, which follows `request`."""
    return dataclasses.replace(
        request,
        **{
            "round": request.round + 1,
            "after_round": request.round,
            "after_attempt": request.attempt,
            "step": "testing.class-sums",
            "message": encode_message(Edges(edges=np.array([7.0]))),
            **changes,
        },
    )


def scaling(centre: float) -> dict[str, Any]:
    value = relayed(np.full(2, centre), Disclosure.AGGREGATE)
    ones = relayed(np.ones(2), Disclosure.AGGREGATE)
    message = Scale(own=False, fill=value, centre=value, scale=ones)
    return {"step": "standardise.apply", "message": encode_message(message)}


def site(**settings: Any) -> Site:
    return Site("a", array_loader(X), **settings)


def ask(asked: Site, request: Request) -> Reply:
    return Reply.from_bytes(asked.answer(request.to_bytes()))


def sums(reply: Reply) -> np.ndarray:
    assert reply.status == "reply", reply.reason
    return np.asarray(decode_message(reply.message).sums.value)


def test_an_answer() -> None:
    one = site()
    assert ask(one, OPEN).status == "reply"
    found = sums(ask(one, after(OPEN)))
    np.testing.assert_allclose(found[0], X[X[:, 0] < 7].sum(axis=0))
    np.testing.assert_allclose(found[1], X[X[:, 0] >= 7].sum(axis=0))


def test_an_answer_waits_for_its_record_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An opening also for rows, ledger and log; a run over the same rows not for the rows."""
    waits, plain = [0], os.fsync

    def fsync(handle: int) -> None:
        waits[0] += 1
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    table = {name: column.tolist() for name, column in zip(NAMES, X.T, strict=True)}
    policy = Policy(preset="consortium", foreign_models=True)
    for run, opened in (("run-1", 2 + 2 + 1 + 2), ("run-2", 2 + 1 + 2)):
        one = memory_site("a", table, policy)
        one.home = DiskStore(tmp_path)
        first = dataclasses.replace(OPEN, run=run)
        for request, wanted in ((first, opened), (after(first), 2), (after(first), 0)):
            waits[0] = 0
            assert ask(one, request).status == "reply"
            assert waits[0] == wanted


# --------------------------------------------------------------------------- repeats and restarts


def test_a_repeated_question_gets_the_same_bytes_and_is_not_computed() -> None:
    one = site()
    first = [one.answer(r.to_bytes()) for r in (OPEN, after(OPEN))]
    assert one.computed == 2
    again = [one.answer(r.to_bytes()) for r in (OPEN, after(OPEN))]
    assert (again, one.computed) == (first, 2)


def test_a_refusal_is_repeated_too() -> None:
    one = site()
    request = dataclasses.replace(OPEN, message=opening(("nope",)))
    first = one.answer(request.to_bytes())
    assert Reply.from_bytes(first).status == "refused"
    assert one.answer(request.to_bytes()) == first


def test_a_site_that_was_restarted_goes_on(tmp_path: Path) -> None:
    """Each question goes to a new process; the replies are those of a site that never stopped."""
    steady = site()
    questions = [OPEN, after(OPEN, **scaling(3.0))]
    questions.append(after(questions[-1], message=encode_message(Edges(edges=np.array([4.0])))))
    questions.append(after(questions[-1], message=encode_message(Edges(edges=np.array([4.5])))))
    for request in questions:
        wanted = steady.answer(request.to_bytes())
        restarted = site(home=DiskStore(tmp_path))
        assert restarted.answer(request.to_bytes()) == wanted
        for earlier in questions[: questions.index(request) + 1]:
            fresh = site(home=DiskStore(tmp_path))
            assert fresh.answer(earlier.to_bytes()) == steady.answer(earlier.to_bytes())
            assert fresh.computed == 0


def test_nothing_leaves_before_it_is_written(tmp_path: Path, monkeypatch: Any) -> None:
    one = site(home=DiskStore(tmp_path))

    def full(*args: Any) -> None:
        raise RunError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(one.home, "commit", full)
        with pytest.raises(RunError, match="disk is full"):
            one.answer(OPEN.to_bytes())
    assert ask(one, OPEN).status == "reply"


def test_another_policy_later_does_not_change_what_was_said(tmp_path: Path) -> None:
    first = site(home=DiskStore(tmp_path)).answer(OPEN.to_bytes())
    stricter = site(home=DiskStore(tmp_path), policy=Policy(max_runs=1, min_records=50))
    assert stricter.answer(OPEN.to_bytes()) == first
    refused = ask(stricter, after(OPEN))
    assert refused.status == "reply"
    assert np.isnan(sums(refused)).all()


# --------------------------------------------------------------------------- lineage


def test_state_follows_the_answer_that_the_question_names() -> None:
    """Asked again, a question goes on from the rows of its own lineage, not of the latest one."""
    one = site()
    ask(one, OPEN)
    three = after(OPEN, **scaling(3.0))
    assert ask(one, three).status == "reply"
    five = dataclasses.replace(after(OPEN, **scaling(5.0)), attempt=2)
    assert "answered once in a run" in ask(one, five).reason
    below = encode_message(Edges(edges=np.array([-1e9])))
    for before, centre in ((three, 3.0), (OPEN, 0.0), (three, 3.0)):
        question = after(before, message=below, attempt=10 + one.computed)
        np.testing.assert_allclose(sums(ask(one, question))[1], (X - centre).sum(axis=0))


def test_a_refused_question_leaves_the_state_as_it_was() -> None:
    allowed = [True]
    one = site(confirm=lambda request, content, verdicts: allowed[0])
    ask(one, OPEN)
    allowed[0] = False
    refused = after(OPEN, **scaling(3.0))
    assert ask(one, refused).reason == "the steward did not release the reply"
    allowed[0] = True
    np.testing.assert_allclose(
        sums(ask(one, after(refused, message=encode_message(Edges(edges=np.array([7.0]))))))[0],
        X[X[:, 0] < 7].sum(axis=0),
    )


def test_a_round_is_answered_once_for_each_attempt() -> None:
    one = site()
    ask(one, OPEN)
    first = ask(one, after(OPEN))
    other = after(OPEN, message=encode_message(Edges(edges=np.array([8.0]))))
    assert "already answered" in ask(one, other).reason
    assert ask(one, after(OPEN)) == first, "the first answer stands"
    assert ask(one, dataclasses.replace(other, attempt=2)).status == "reply"


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_fork_does_not_escape_the_guard_against_differencing(
    on_disk: bool, tmp_path: Path
) -> None:
    """Two questions that both follow the same answer, with classes that differ by one record."""
    one = site(home=DiskStore(tmp_path) if on_disk else MemoryStore())
    ask(one, OPEN)
    x = np.sort(X[:, 0])
    found = [
        sums(
            ask(one, after(OPEN, attempt=i + 1, message=encode_message(Edges(edges=x[k : k + 1]))))
        )
        for i, k in enumerate((30, 31))
    ]
    assert not np.any(np.abs(found[1] - found[0]) > 1e-9)


# --------------------------------------------------------------------------- who may ask what


def test_a_run_must_be_opened() -> None:
    assert "not opened" in ask(site(), after(OPEN)).reason


def test_after_a_refused_opening_nothing_is_answered() -> None:
    one = site()
    refused = dataclasses.replace(OPEN, message=opening(("nope",)))
    assert ask(one, refused).status == "refused"
    assert "not opened" in ask(one, after(refused)).reason


@pytest.mark.parametrize("change", [{"study": "other"}, {"method": "testing-echo"}])
def test_a_run_keeps_its_study_and_method(change: dict[str, str]) -> None:
    one = site()
    ask(one, OPEN)
    changed = dataclasses.replace(after(OPEN), **change)
    assert "opened at this site for another study or method" in ask(one, changed).reason


def test_a_run_keeps_its_columns() -> None:
    """Opened once more with other columns, a run would count as one and be two."""
    one = site()
    ask(one, OPEN)
    other = dataclasses.replace(OPEN, attempt=2, message=opening(("x0",)))
    assert "opened here before" in ask(one, other).reason
    same = dataclasses.replace(OPEN, attempt=3)
    assert ask(one, same).status == "reply"


STUDY = Study.from_settings(
    {
        "name": "s",
        "method": "testing-class-sums",
        "data": {"features": list(NAMES)},
        "sites": {"names": ["a"]},
    }
)


def test_approved_studies() -> None:
    approved = dataclasses.replace(
        OPEN, study=STUDY.hash(), message=opening(study=STUDY.canonical())
    )
    one = site(policy=Policy(approved_studies=(STUDY.hash(),)))
    assert ask(one, approved).status == "reply"
    other = dataclasses.replace(approved, run="run-2", study="another")
    assert "not among those that the steward has approved" in ask(one, other).reason
    assert "not opened" in ask(one, after(other)).reason
    none = site(policy=Policy(approved_studies=()))
    assert ask(none, approved).status == "refused"


@pytest.mark.parametrize(
    "change",
    [
        {"message": opening()},
        {"message": opening(study="{}")},
        {"message": opening(study=STUDY.canonical() + " ")},
        {"message": opening(names=NAMES[:1], study=STUDY.canonical())},
        {"method": "testing-echo", "message": opening(study=STUDY.canonical())},
    ],
)
def test_an_approved_hash_does_not_cover_other_questions(change: dict[str, Any]) -> None:
    """A coordinator that states the approved hash must also ask what that study says."""
    one = site(policy=Policy(approved_studies=(STUDY.hash(),)))
    asked = dataclasses.replace(OPEN, **{"study": STUDY.hash(), **change})
    assert ask(one, asked).reason == "what is asked is not what the approved study says"


def test_a_purged_run_is_not_answered_again(tmp_path: Path) -> None:
    one = site(home=DiskStore(tmp_path))
    ask(one, OPEN)
    ask(one, after(OPEN))
    one.purge("run-1")
    again = site(home=DiskStore(tmp_path))
    for request in (OPEN, after(OPEN)):
        assert ask(again, request).status == "refused"
    assert "purged" in ask(again, dataclasses.replace(OPEN, attempt=2)).reason


def test_number_of_runs() -> None:
    home = MemoryStore()
    policy = Policy(max_runs=2, data_id="d")
    for run, status in (("r1", "reply"), ("r2", "reply"), ("r3", "refused"), ("r1", "reply")):
        request = dataclasses.replace(OPEN, run=run, attempt=1)
        assert ask(site(home=home, policy=policy), request).status == status
    assert home.ledger("d")["runs"] == ["r1", "r2"]
    raised = site(home=home, policy=Policy(max_runs=3, data_id="d"))
    assert ask(raised, dataclasses.replace(OPEN, run="r4")).status == "reply"
    elsewhere = site(home=home, policy=Policy(max_runs=1, data_id="e"))
    assert ask(elsewhere, dataclasses.replace(OPEN, run="r5")).status == "reply"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"release": "0.0.0"}, "install the same release everywhere"),
        ({"method_version": 9}, "install the same release everywhere"),
        ({"method": "no-such"}, "settings do not fit"),
        ({"step": "no-such"}, "not opened"),
    ],
)
def test_other_releases_and_names(change: dict[str, Any], reason: str) -> None:
    assert reason in ask(site(), dataclasses.replace(OPEN, **change)).reason


def test_an_unknown_step_in_an_open_run() -> None:
    one = site()
    ask(one, OPEN)
    assert "no step of that name" in ask(one, after(OPEN, step="sums")).reason


def test_a_step_with_the_message_of_another_step() -> None:
    one = site()
    ask(one, OPEN)
    asked = ask(one, after(OPEN, message=encode_message(Question())))
    assert "not its own" in asked.reason


def test_requests_to_others_and_to_nobody() -> None:
    with pytest.raises(WireError, match="reached site 'a'"):
        site().answer(dataclasses.replace(OPEN, site="b").to_bytes())
    with pytest.raises(WireError):
        site().answer(b"\x80\x04.")
    with pytest.raises(RunError, match="not allowed"):
        site().answer(dataclasses.replace(OPEN, run="../x").to_bytes())


def test_messages_over_the_limit_of_the_site() -> None:
    one = site(policy=Policy(max_message_bytes=1024))
    large = after(OPEN, message=encode_message(Edges(edges=np.linspace(0, 9, 200))))
    ask(one, OPEN)
    assert ask(one, large).reason == "the message could not be read"


# --------------------------------------------------------------------------- errors and secrets


def test_an_error_in_a_step_stays_at_the_site() -> None:
    one = site(home=MemoryStore())
    failing = dataclasses.replace(OPEN, method="testing-failing")
    ask(one, failing)
    question = after(failing, step="testing.fail", message=encode_message(Question()))
    data = one.answer(question.to_bytes())
    assert "its own log says how" in Reply.from_bytes(data).reason
    for value in X.ravel():
        assert repr(float(value)).encode() not in data
    lines = one.home.lines  # type: ignore[attr-defined]
    assert repr(float(X[0, 0])) in lines[-1]["reason"], "the site's own log has the rest"


def test_an_error_while_reading_stays_at_the_site() -> None:
    def unreadable(columns: Columns, preparation: Preparation) -> SiteData:
        raise ValueError("row 17 holds 'Mrs Smith'")

    data = Site("a", unreadable).answer(OPEN.to_bytes())
    assert b"Smith" not in data
    assert b"17" not in data
    assert Reply.from_bytes(data).status == "refused"


def test_secrets_are_fresh_at_every_site_and_fixed_only_by_tests() -> None:
    def draw(one: Site) -> int:
        work = one.begin(OPEN.to_bytes())
        assert not isinstance(work, bytes)
        from consilience.sites.step_runner import StepContext

        return int(StepContext(work, {}).secret_rng.integers(2**62))

    assert draw(site()) != draw(site())
    fixed = [draw(with_fixed_secrets(site(), 3)) for _ in range(2)]
    assert fixed[0] == fixed[1] != draw(with_fixed_secrets(site(), 4))


def test_nothing_in_a_policy_study_or_request_fixes_secrets() -> None:
    """The seed of secrets has no name that a file or a message could use."""
    names = [f.name for kind in (Policy, Columns, Preparation) for f in dataclasses.fields(kind)]
    assert not [name for name in names if "secret" in name or "seed" in name]
    one = site()
    before = one._secret_seed
    for field in dataclasses.fields(Request):
        if field.type == "int":
            one.answer(dataclasses.replace(OPEN, **{field.name: 7, "run": field.name}).to_bytes())
    assert before is None
    assert one._secret_seed is None


def test_provenance_and_rows_read() -> None:
    one = site()
    ask(one, OPEN)
    work = one.begin(after(OPEN).to_bytes())
    assert not isinstance(work, bytes)
    said = one._provenance(work)
    assert (said["rows_read"], said["rows_kept"], said["features"]) == (60, 60, ["x0", "x1"])
