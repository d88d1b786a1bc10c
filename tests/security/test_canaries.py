"""No value of a row is found outside its site; and what is planted would be found."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import CoordinatorContext, SiteData, Step
from consilience.protocol.phases import opening
from consilience.sites import step_runner as site_module
from consilience.testing.attacks import SUITE, Canary, find_canaries, number_canary, plant
from consilience.testing.fakes import Failing, federation_of
from consilience.wire.message import message_type
from tests.exchange.cases import CASES, Case
from tests.granted import GRANTED

CANARIES = {attack.name: attack for attack in SUITE if attack.name.startswith("canaries")}


def tables(n: int = 60) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    return {name: rng.normal(size=(n, 2)) for name in "abc"}


def factory() -> Any:
    made = tables()
    roles = {
        name: {role: np.array([f"{name}{role}{i}" for i in range(60)]) for role in ("id", "entity")}
        for name in made
    }
    return federation_of(made, policy=GRANTED, roles=roles)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_method(case: Case) -> None:
    outcome = CANARIES["canaries"].run(case.method, case.factory)
    assert outcome.verdict == "blocked", outcome.evidence
    # Columns of numbers, id and entity at each site; over columns no site has entities, and its own
    # columns are three. Codes of states and categories, and whole months, are no unusual values.
    federation = case.factory()
    columns = federation.columns
    over_columns = federation.partition == "columns"
    common = columns.levels.keys() | {getattr(case.method, "time", "")}
    numbers = 3 if over_columns else len(set(columns.features) - common)
    at_each = numbers + 2 - over_columns
    planted = at_each * len(federation.engine.sites)
    assert f"none of {planted} planted values" in outcome.evidence
    assert "ended well" in outcome.evidence


def test_errors_quote_no_value() -> None:
    """The error is one of a step of its own, whatever the method; `test_attacks` has all cases."""
    outcome = CANARIES["canaries in errors"].run(CASES["mean-and-sd"].method, factory)
    assert outcome.verdict == "blocked" and "none of 15 planted" in outcome.evidence


def verdict(name: str = "canaries") -> tuple[str, str]:
    outcome = CANARIES[name].run(MeanAndSD(), factory)
    return outcome.verdict, outcome.evidence


@contextmanager
def replaced_function(step: Step, function: Any) -> Iterator[None]:
    """Let a step, which is frozen, do something else for a while."""
    plain = step.function
    object.__setattr__(step, "function", function)
    try:
        yield
    finally:
        object.__setattr__(step, "function", plain)


LEAKS = {
    "printed number": lambda data: print(data.features[3, 0]),
    "printed text": lambda data: print(data.id),
    "rounded number": lambda data: print(f"{data.features[3, 0]:.9g}"),
    "on standard error": lambda data: print(data.features[3, 0], file=sys.stderr),
    "logged": lambda data: logging.getLogger("a.library").warning("%r", data.entity[0]),
}


@pytest.mark.parametrize("how", LEAKS)
def test_a_leak_is_found(how: str) -> None:
    assert verdict()[0] == "blocked"
    step = MeanAndSD.steps[1]
    plain = step.function

    def function(message: Any, data: SiteData, state: Any, site: Any) -> Any:
        LEAKS[how](data)
        return plain(message, data, state, site)

    with replaced_function(step, function):
        found, evidence = verdict()
    assert found == "open"
    assert "was found in" in evidence


def test_a_leak_through_a_public_field_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(message: Any, data: SiteData, state: Any, site: Any) -> Any:
        said = str(data.id[0])  # type: ignore[index]
        return opening.Opened(feature_names=data.feature_names, preset=said), state

    with replaced_function(opening.STEPS[0], function):
        assert verdict()[0] == "blocked", "it is none of the presets"
        fields = message_type(opening.Opened).fields
        monkeypatch.setitem(fields, "preset", dataclasses.replace(fields["preset"], choices=()))
        found, evidence = verdict()
    assert found == "open"
    assert "id was found in" in evidence


def test_a_leak_through_an_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = site_module.refused
    monkeypatch.setattr(
        site_module, "refused", lambda work, reason, error: plain(work, str(error)[:1900], error)
    )
    assert verdict("canaries in errors")[0] == "open"


def test_a_leak_through_a_note_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MeanAndSD.coordinate

    def coordinate(self: Any, ctx: CoordinatorContext) -> Any:
        ctx.note("The patient is canary-id-9f27c1.")
        return (yield from plain(self, ctx))

    monkeypatch.setattr(MeanAndSD, "coordinate", coordinate)
    found, evidence = verdict()
    assert (found, "context.json" in evidence) == ("open", True)


def test_every_column_is_planted() -> None:
    x = np.c_[np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 2]
    data = SiteData(x, ("a", "b", "c"), np.arange(30), id=np.array([f"i{i}" for i in range(30)]))
    planted, canaries = plant(data)
    assert [c.name for c in canaries] == ["column a", "column b", "id"]
    assert (planted.features != x).sum() == 2
    assert planted.id is not None
    assert planted.id[0] == "canary-id-9f27c1"
    np.testing.assert_array_equal(planted.features[:, 2], x[:, 2])


@pytest.mark.parametrize(
    "content",
    [
        np.array([0.0, 0.12345678912345, 1.0]).tobytes(),
        np.array([0.12345678912345], dtype=">f8").tobytes(),
        b"value 0.12345678912345!",
        b"about 0.123456789",
        b"0.1234567891",
        b"1.234567891e-01",
    ],
)
def test_forms_of_a_number(content: bytes) -> None:
    canary = number_canary("column a", 0.12345678912345)
    assert find_canaries([canary], {"here": content}) == ["column a was found in here"]
    assert find_canaries([canary], {"here": b"0.1234 and 0.1235"}) == []
    assert find_canaries([Canary("x", (b"y",))], {}) == []


def test_the_site_itself_may_know() -> None:
    """The site's own log quotes the error: that is where its steward looks."""
    federation = factory()
    site = federation.engine.members["a"]
    with pytest.raises(Exception, match="failed at the site"):
        Failing().run(federation, seed=0)
    assert "cannot go on with" in site.home.lines[-1]["reason"]
