"""Every attack on every method is blocked or accounted for; and each would work on a weaker core.

A method joins by its entry in ``tests/exchange/cases.py``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from consilience.engines.driver import Driver
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import CoordinatorContext, Exchange
from consilience.sites import gate
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.testing import attacks
from consilience.testing.attacks import SUITE
from consilience.testing.fakes import federation_of, with_policy
from consilience.testing.recalling import Attack
from consilience.testing.table_attacks import TABLE_ATTACKS
from consilience.wire import codec
from consilience.wire.disclosure import Released, replaced
from consilience.wire.envelope import Reply
from tests.exchange.cases import CASES, Case
from tests.security.hostile import reads_all
from tests.sites.homes import record_files

BY_NAME = {attack.name: attack for attack in SUITE}
OF_METHODS = tuple(
    attack
    for attack in SUITE
    if (attack.concerns == "method" or attack.name.startswith("message: "))
    and attack not in TABLE_ATTACKS
)
"""Attacks that look at the method or its messages; canaries are in `test_canaries`."""
OF_ENVELOPES = tuple(attack for attack in SUITE if attack not in (*OF_METHODS, *TABLE_ATTACKS))
SMALL = ("mean-and-sd", "federated-pca")
"""Methods that stand for all where the method does not matter; their checks are in the core."""
IN_ORDER = {name: case for name, case in CASES.items() if not case.asynchronous}


@pytest.mark.parametrize("case", IN_ORDER.values(), ids=IN_ORDER)
def test_attacks_on_a_method(case: Case) -> None:
    outcomes = {
        attack.name: attack.run(case.method, case.factory)
        for attack in OF_METHODS
        if not attack.name.startswith("canaries")
    }
    assert {n: o.evidence for n, o in outcomes.items() if o.verdict == "open"} == {}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("attack", OF_ENVELOPES, ids=lambda attack: attack.name)
def test_attacks_on_envelopes(attack: Attack, name: str) -> None:
    outcome = attack.run(CASES[name].method, CASES[name].factory)
    assert outcome.verdict in ("blocked", "accounted"), outcome.evidence


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in IN_ORDER if name not in SMALL])
@pytest.mark.parametrize("attack", OF_ENVELOPES, ids=lambda attack: attack.name)
def test_attacks_on_every_envelope(attack: Attack, name: str) -> None:
    test_attacks_on_envelopes(attack, name)


def test_names_are_distinct() -> None:
    assert len(BY_NAME) == len(SUITE) == 49
    assert len(OF_ENVELOPES) == 19


# --------------------------------------------------------------------------- a weaker core


def factory() -> Any:
    rng = np.random.default_rng(3)
    tables = {name: rng.normal(size=(60, 3)) for name in "abc"}
    roles = {name: {"id": np.array([f"p{i}" for i in range(60)])} for name in tables}
    return federation_of(tables, roles=roles)


def verdict(name: str) -> str:
    return BY_NAME[name].run(MeanAndSD(), factory).verdict


@pytest.mark.parametrize(
    "name",
    ["small site", "dominance", "differencing", "differencing among classes", "forbidden class"],
)
def test_without_the_rules_of_the_gate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(name) == "blocked"

    def everything(*args: Any) -> None:
        """No rule."""

    monkeypatch.setattr(gate, "RULES", dict.fromkeys(gate.RULES, everything))
    monkeypatch.setattr(gate, "_guard_differences", lambda released, *rest: (released, False))
    monkeypatch.setattr(Policy, "allows", lambda self, *_: True)
    monkeypatch.setattr(Released, "withhold_unsafe", lambda self, *_: self)
    expected = "accounted" if name == "forbidden class" else "open"
    assert verdict(name) == expected


def test_without_the_groups_of_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged cell by cell, a record that moves among others is found by two subtractions."""

    def cell_by_cell(released: Any, series: Any, limits: Any) -> Any:
        value = np.array(released.value)
        masks = released.evidence.members[None, :] == np.arange(len(value))[:, None]
        last = series.get("last")
        if last is not None:
            moved = (masks != last["masks"]).sum(axis=1)
            repeat = (moved > 0) & (moved < limits.min_records)
            value[repeat], masks[repeat] = last["value"][repeat], last["masks"][repeat]
        series["last"] = {"masks": masks, "value": value}
        return replaced(released, value), False

    monkeypatch.setattr(gate, "_guard_differences", cell_by_cell)
    assert verdict("differencing") == "blocked"
    found = BY_NAME["differencing among classes"].run(MeanAndSD(), factory)
    assert found.verdict == "open" and "concerns the core, not the method" in found.evidence


@pytest.mark.parametrize(
    "name",
    ["request to another site", "request of another round", "request of another study"],
)
def test_without_the_checks_of_requests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Site.begin

    def believing(self: Site, data: bytes) -> Any:
        from consilience.wire.envelope import Request

        request = Request.from_bytes(data)
        home = self.home
        record = home.record(request.run, request.after_round, request.after_attempt)
        if record is not None:
            home.commit(
                request.run,
                dataclasses.replace(record, study=request.study, method=request.method),
            )
        request = dataclasses.replace(request, site=self.name, attempt=request.attempt + 1000)
        self.home.ledger(self.policy.data_id).get("opened", {}).clear()
        return plain(self, request.to_bytes())

    monkeypatch.setattr(Site, "begin", believing)
    assert verdict(name) == "open"


def test_without_the_memory_of_a_site(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Site.begin

    def forgetful(self: Site, data: bytes) -> Any:
        from consilience.wire.envelope import Request

        request = Request.from_bytes(data)
        for parts in record_files(self.home):
            if parts[2].startswith(f"{request.round:06d}-"):
                del self.home.files[parts]  # type: ignore[attr-defined]
        return plain(self, data)

    monkeypatch.setattr(Site, "begin", forgetful)
    assert verdict("replayed request") == "open"


@pytest.mark.parametrize(
    "name",
    ["reply of another run", "reply of another round", "reply of another site", "replayed reply"],
)
def test_without_the_checks_of_replies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Driver, "_check", lambda self, arrival: None)
    assert verdict(name) == "open"


@pytest.mark.parametrize(
    "name", ["wrong dtype", "wrong shape", "infinity", "object array", "huge shape"]
)
def test_without_the_checks_of_declarations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "check_shape", lambda *args: None)
    monkeypatch.setattr(codec, "_within_reason", lambda *args: True)
    if name in ("object array", "huge shape"):
        monkeypatch.setattr(codec, "_array_from_wire", lambda raw: np.zeros(3))
    assert verdict(f"message: {name}") == "open"


def test_without_a_judge_of_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "_VALUES", 1000)
    assert verdict("altered value") == "blocked"
    reads_all(monkeypatch)
    assert verdict("altered value") == "open"


def test_without_the_check_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec._Counted, "of_map", lambda self, pairs: dict(reversed(pairs)))
    assert verdict("message: repeated key") == "open"


def test_without_the_limit_on_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = codec.unpack
    monkeypatch.setattr(codec, "unpack", lambda data, max_bytes=0: plain(data))
    assert verdict("oversized message") == "open"


def test_with_something_that_unpickles(monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    plain = Reply.from_bytes.__func__  # type: ignore[attr-defined]

    def eager(cls: Any, data: bytes) -> Reply:
        if data.startswith(b"cos\n"):
            pickle.loads(data)
        return plain(cls, data)  # type: ignore[no-any-return]

    monkeypatch.setattr(Reply, "from_bytes", classmethod(eager))
    assert verdict("pickle") == "open"


def test_an_error_of_another_kind_leaves_an_attack_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def clumsy(raw: Any) -> Any:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(codec, "_array_from_wire", clumsy)
    outcome = BY_NAME["message: wrong shape"].run(MeanAndSD(), factory)
    assert outcome.verdict == "open"
    assert "IndexError escaped" in outcome.evidence
    assert "concerns the core, not the method" in outcome.evidence


class Clumsy(MeanAndSD):
    """Its coordinator fails in its own code."""

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        yield from ()
        raise IndexError("tuple index out of range")


def test_an_error_in_a_methods_own_code_concerns_the_method() -> None:
    outcome = BY_NAME["replayed request"].run(Clumsy(), factory)
    assert outcome.verdict == "open" and "(this concerns the method)" in outcome.evidence


def test_under_a_policy_for_simulation_attacks_are_accounted() -> None:
    simulation = Policy.from_settings("simulation")
    for name in ("small site", "dominance", "differencing", "forbidden class"):
        found = BY_NAME[name].run(MeanAndSD(), lambda: with_policy(factory(), simulation))
        assert found.verdict == "accounted"


def test_a_consortium_is_accounted_for_values_of_each_record() -> None:
    partners = Policy.from_settings("consortium")
    found = BY_NAME["forbidden class"].run(MeanAndSD(), lambda: with_policy(factory(), partners))
    assert found.verdict == "accounted"


def test_recovering_a_record_from_sums() -> None:
    rng = np.random.default_rng(0)
    a, b, record = rng.normal(size=(3, 4))
    releases = np.stack([a, b, a + b + record, np.full(4, np.nan)])
    assert attacks.recovers(releases, record)
    assert not attacks.recovers(releases[:2], record)
