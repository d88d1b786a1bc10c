"""Rows of sites that hold different columns: matched by hashes, whatever the coordinator says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consilience.assisted.test import AssistanceTest
from consilience.exceptions import QuorumError, StudyError
from consilience.protocol.phases.align_ids import Common
from consilience.sites.site import Site
from consilience.testing.fakes import members, scripted
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from consilience.wire.sealing import hashed_ids, introduce
from tests.protocol.columns import KEY, federation, policy, rows, tables

METHOD = AssistanceTest(n_directions=2)
TWO = ("clinic", "lab")
RUN = "matched"


def said(fed: Any, site: str) -> str:
    return " ".join(line.get("said", "") for line in fed.log(site))


# --------------------------------------------------------------------------- rows


def test_order_of_rows_and_rows_of_one_site_only_do_not_matter() -> None:
    made = tables()
    plain = METHOD.run(federation(made), seed=1)
    rng = np.random.default_rng(3)
    shuffled = {site: rows(t, rng.permutation(len(t["id"]))) for site, t in made.items()}
    found = METHOD.run(federation(shuffled), seed=1)
    assert found.result.to_files() == plain.result.to_files()
    # Strangers at one site are left out.
    strangers = tables(150, seed=12)["lab"]
    strangers["id"] = np.array([f"stranger-{i}" for i in range(150)])
    lab = {name: np.concatenate([v, strangers[name]]) for name, v in made["lab"].items()}
    fed = federation({**made, "lab": lab})
    assert METHOD.run(fed, seed=1).result.n_records == 120
    matched = "120 rows have a counterpart at every site; "
    assert matched + "150 of this site's have not." in said(fed, "lab")
    assert matched + "0 of this site's have not." in said(fed, "clinic")


def test_missing_repeated_and_unmatched_ids_are_counted_for_their_owner_only() -> None:
    made = tables(sites=TWO)
    made["lab"]["id"] = made["lab"]["id"].copy()
    made["lab"]["id"][[3, 4]] = ""
    made["lab"]["id"][[10, 11]] = made["lab"]["id"][12]
    made["clinic"] = rows(made["clinic"], slice(0, 100))
    fed = federation(made)
    run = METHOD.run(fed, seed=1)
    assert run.result.n_records == 100 - 5
    lab = said(fed, "lab")
    assert "2 rows have no id." in lab and "3 rows repeat an id." in lab
    assert "95 rows have a counterpart at every site; 20 of this site's have not." in lab
    clinic = said(fed, "clinic")
    assert "repeat" not in clinic and "no id" not in clinic
    assert "95 rows have a counterpart at every site; 5 of this site's have not." in clinic
    assert not any("person-" in str(line) for line in run.transcript)


def test_ids_that_are_whole_numbers_match_whatever_their_type() -> None:
    made = tables(sites=TWO)
    made["clinic"]["id"], made["lab"]["id"] = np.arange(120), np.arange(120.0)
    assert METHOD.run(federation(made), seed=1).result.n_records == 120


def test_too_few_rows_in_common() -> None:
    made = tables(sites=TWO)
    made["lab"]["id"] = np.array([*made["lab"]["id"][:9], *(f"other-{i}" for i in range(111))])
    with pytest.raises(StudyError, match="9 rows are common to clinic and lab"):
        METHOD.run(federation(made), seed=1)


def test_a_policy_with_a_larger_least_number_refuses_the_match() -> None:
    made = tables(sites=TWO)
    made["lab"] = rows(made["lab"], slice(0, 30))
    rules = {"clinic": policy(min_records=40), "lab": policy()}
    with pytest.raises(QuorumError, match="clinic refused: too few rows are common to all sites"):
        METHOD.run(federation(made, policy=rules), seed=1)


def test_a_site_with_few_ids_sends_no_hashes() -> None:
    made = tables(sites=TWO)
    made["lab"] = rows(made["lab"], slice(0, 9))
    watched = scripted(federation(made))
    with pytest.raises(QuorumError, match="lab refused: too few rows have an id of their own"):
        METHOD.run(watched, seed=1)


def test_ids_need_consent_and_a_key() -> None:
    made = tables(sites=TWO)
    with pytest.raises(QuorumError, match="does not allow hashed ids"):
        METHOD.run(federation(made, policy=policy(share_ids=False)), seed=1)
    fed = federation(made)
    members(fed)["lab"]._partner_key = b""
    with pytest.raises(QuorumError, match="lab refused: the site has no partner key"):
        METHOD.run(fed, seed=1)


def test_other_partner_keys_match_nothing() -> None:
    fed = federation(tables(sites=TWO))
    members(fed)["lab"]._partner_key = b"k" * 32
    with pytest.raises(StudyError, match=r"0 rows are common .* the same partner key"):
        METHOD.run(fed, seed=1)


def test_hashes_differ_between_runs() -> None:
    found = []
    for run in ("one", "two"):
        watched = scripted(federation(tables(sites=TWO)))
        METHOD.run(watched, seed=1, run_id=run)
        reply = Reply.from_bytes(watched.engine.replies[2, "lab"])  # type: ignore[attr-defined]
        found.append({bytes(row) for row in _bytes(decode_message(reply.message).hashes.value)})
    assert len(found[0]) == 120 and not found[0] & found[1]


def _bytes(hashes: Any) -> Any:
    return np.asarray(hashes, dtype=np.uint8)


# --------------------------------------------------------------------------- hostile coordinators


class Hostile:
    """A coordinator that opens a run at the lab as it should, and then matches as it likes."""

    def __init__(self) -> None:
        self.made = tables()
        watched = scripted(federation(self.made))
        METHOD.run(watched, seed=1, run_id=RUN)
        engine: Any = watched.engine
        self.asked = [Request.from_bytes(engine.requests[r, "lab"]) for r in (1, 2, 3)]
        self.common: Common = decode_message(self.asked[2].message)
        self.site: Site = members(federation(self.made))["lab"]
        for request in self.asked[:2]:
            assert Reply.from_bytes(self.site.answer(request.to_bytes())).status == "reply"

    def match(self, *, attempt: int = 1, **changes: Any) -> str:
        """Reason of the lab's refusal; empty where it answers."""
        if "hashes" in changes:
            changes["hashes"] = relayed(changes["hashes"], Disclosure.PER_RECORD)
        message = encode_message(dataclasses.replace(self.common, **changes))
        request = dataclasses.replace(self.asked[2], message=message, attempt=attempt)
        reply = Reply.from_bytes(self.site.answer(request.to_bytes()))
        assert reply.status in ("reply", "refused")
        return reply.reason


@pytest.fixture
def hostile() -> Hostile:
    return Hostile()


def test_the_hostile_coordinator_can_be_honest(hostile: Hostile) -> None:
    assert hostile.match() == ""


def replaced_at(hashes: Any, place: int, row: Any) -> Any:
    changed = np.array(hashes)
    changed[place] = row
    return changed[np.lexsort(changed.T[::-1])]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "unsorted": lambda h: h[::-1],
    "two rows exchanged": lambda h: h[[1, 0, *range(2, len(h))]],
    "repeated": lambda h: h[[0, 0, *range(2, len(h))]],
    "one foreign": lambda h: replaced_at(h, 5, 7),
    "all foreign": lambda h: np.arange(len(h) * 16).reshape(-1, 16) % 256,
    "id of another run": lambda h: replaced_at(h, 5, hashed_ids(["person-0001"], KEY, "other")[0]),
    "too few": lambda h: h[:9],
    "none": lambda h: h[:0],
}


@pytest.mark.parametrize("name", CHANGES)
def test_hashes_that_are_not_the_common_ones(hostile: Hostile, name: str) -> None:
    honest = np.asarray(hostile.common.hashes.value)
    assert hostile.match(hashes=CHANGES[name](honest))


def test_a_second_match_of_other_rows_is_refused(hostile: Hostile) -> None:
    honest = np.asarray(hostile.common.hashes.value)
    assert hostile.match() == ""
    assert "answered once in a run" in hostile.match(hashes=honest[1:], attempt=2)
    assert hostile.match(attempt=3) == "", "the same question again is harmless"


def test_roles_are_those_of_the_tables(hostile: Hostile) -> None:
    reason = "a party's key was not made with the partner key"
    honest = hostile.common.roles
    assert hostile.match(roles={**honest, "lab": "initiator", "clinic": "partner"}) == reason
    assert hostile.match(roles={**honest, "pharmacy": "initiator"}, attempt=2) == reason
    assert hostile.match(roles={}, attempt=3) == reason


def test_introductions_cannot_be_made_up_or_exchanged(hostile: Hostile) -> None:
    reason = "a party's key was not made with the partner key"
    honest = hostile.common.introductions
    swapped = {**honest, "clinic": honest["pharmacy"], "pharmacy": honest["clinic"]}
    assert hostile.match(introductions=swapped) == reason
    own = introduce(b"x" * 32, b"another secret of 32 bytes......", RUN, "initiator clinic")
    assert hostile.match(introductions={**honest, "clinic": own}, attempt=2) == reason
    old = introduce(b"x" * 32, KEY, "an earlier run", "initiator clinic")
    assert hostile.match(introductions={**honest, "clinic": old}, attempt=3) == reason
    without = {site: told for site, told in honest.items() if site != "lab"}
    assert hostile.match(introductions=without, attempt=4)
    assert hostile.match(introductions={}, attempt=5)
    # With the partner key it would be believed: the test can fail.
    known = introduce(b"x" * 32, KEY, RUN, "initiator clinic")
    assert hostile.match(introductions={**honest, "clinic": known}, attempt=6) == ""


def test_nothing_is_answered_before_the_match(hostile: Hostile) -> None:
    watched = scripted(federation(hostile.made))
    METHOD.run(watched, seed=1, run_id=RUN)
    engine: Any = watched.engine
    sketch = Request.from_bytes(engine.requests[4, "lab"])
    early = dataclasses.replace(sketch, round=3, after_round=2)
    reply = Reply.from_bytes(hostile.site.answer(early.to_bytes()))
    assert reply.status == "refused"
    assert hostile.match(attempt=2) == ""
    late = dataclasses.replace(sketch, after_attempt=2)
    assert Reply.from_bytes(hostile.site.answer(late.to_bytes())).status == "reply"
