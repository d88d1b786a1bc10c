"""The checks themselves find what they look for: each against a method that breaks one promise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from consilience.protocol.mean_and_sd import MeanAndSD, SumsRequest
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.testing import CheckFailed, check_method
from consilience.testing.fakes import Findings, federation_of
from consilience.testing.recalling import Attack, Outcome
from consilience.wire.disclosure import Released, aggregate
from consilience.wire.message import Aggregate, Disclosure, message, message_type

TABLES = {name: np.random.default_rng(i).normal(size=(30, 2)) for i, name in enumerate("ab")}
COUNTER = [0]


def factory() -> Any:
    return federation_of(TABLES)


@message("test-checks/total", version=1)
class Total:
    total: Released = Aggregate("p")


@message("test-checks/ask", version=1)
class AskTotal:
    """Ask."""


@step("test-checks.total")
def total(
    message: AskTotal, data: SiteData, state: State, site: SiteContext
) -> tuple[Total, State]:
    COUNTER[0] += 1
    return Total(total=aggregate(data.features + COUNTER[0])), state


@register
@dataclass(frozen=True, kw_only=True)
class Careless(Method):
    """Its steps draw from something that changes from run to run."""

    name: ClassVar[str] = "test-careless"
    title: ClassVar[str] = "?"
    steps = (total,)
    absence: ClassVar[str] = "?"
    leakage: ClassVar[str] = "?"
    Result = Findings

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        replies = ctx.require((yield Ask("test-checks.total", AskTotal())))
        return Findings({site: reply.total.value for site, reply in replies.items()})


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (check_method.check_same_seed, "second run of the same seed: the result has other bytes"),
        (check_method.check_order, "sites in reversed order: the result has other bytes"),
        (check_method.check_resume, "the result has other bytes"),
        (check_method.check_absence, "asked again, the run ends with another result"),
    ],
)
def test_what_changes_from_run_to_run(check: Any, words: str) -> None:
    with pytest.raises(CheckFailed, match=words):
        check(Careless(), factory)


def test_a_method_that_tolerates_less_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanAndSD, "tolerates", {})
    with pytest.raises(CheckFailed, match="the run stopped although a quorum is enough"):
        check_method.check_absence(MeanAndSD(), factory)


def test_a_method_that_tolerates_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeanAndSD, "tolerates", {"sums": "all", "deviations": "all"})
    with pytest.raises(CheckFailed, match="needs all sites, yet the run went on"):
        check_method.check_absence(MeanAndSD(), factory)


def test_a_method_that_hides_who_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def coordinate(self: Any, ctx: CoordinatorContext) -> Exchange:
        replies = yield Ask("sums", SumsRequest())
        return MeanAndSD.Result((), len(replies.present), np.ones(2), np.ones(2), np.ones(2))

    monkeypatch.setattr(MeanAndSD, "coordinate", coordinate)
    with pytest.raises(CheckFailed, match="no note of the run names the site"):
        check_method.check_absence(MeanAndSD(), factory)


def test_a_method_that_goes_on_below_its_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    def coordinate(self: Any, ctx: CoordinatorContext) -> Exchange:
        replies = ctx.require((yield Ask("sums", SumsRequest())), at_least=1)
        return MeanAndSD.Result((), len(replies), np.ones(2), np.ones(2), np.ones(2))

    monkeypatch.setattr(MeanAndSD, "coordinate", coordinate)
    with pytest.raises(CheckFailed, match="the run ended with a site below its quorum"):
        check_method.check_absence(MeanAndSD(), factory)
    monkeypatch.setattr(MeanAndSD, "tolerates", {"sums": "any"})
    check_method.check_absence(MeanAndSD(), factory)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"disclosure": Disclosure.MODEL}, "declared as model"),
        ({"audience": "all"}, "audience 'coordinator' is not declared"),
        ({"shape": ("p", "p")}, "declared"),
    ],
)
def test_declarations_that_are_not_what_was_sent(change: Any, words: str) -> None:
    """The transcript is held against another declaration than the one it was written from."""
    run = MeanAndSD().run(factory(), seed=check_method.SEED)
    line = next(x for x in run.transcript if x.field == "totals")
    spec = message_type("mean-and-sd/sums").fields["totals"]
    check_method._check_line("here", line, spec, {})
    with pytest.raises(CheckFailed, match=words):
        check_method._check_line("here", line, dataclasses.replace(spec, **change), {})
    with pytest.raises(CheckFailed, match="dimension 'p' is 2 here and 5 before"):
        check_method._check_line("here", line, spec, {"p": 5})


def test_a_wrong_oracle() -> None:
    with pytest.raises(CheckFailed, match="result field 'mean' differs"):
        check_method.check_oracle(MeanAndSD(), factory, lambda rows: {"mean": np.ones(2)})


def test_an_attack_that_works(monkeypatch: pytest.MonkeyPatch) -> None:

    works = Attack("works", "nothing", lambda m, f: Outcome("open", "it worked"))
    with pytest.raises(CheckFailed, match="attack 'works' \\(nothing\\) is open: it worked"):
        check_method.check_attacks(MeanAndSD(), factory, suite=[works])
    escapes = Attack("escapes", "an error", lambda m, f: {}["x"])  # type: ignore[index]
    assert escapes.run(MeanAndSD(), factory).verdict == "open"


def test_everything_at_once() -> None:
    check_method.check_method(MeanAndSD(), factory)


@pytest.mark.parametrize("columns", [1, 3])
def test_everything_at_once_on_columns_of_0_and_1(columns: int) -> None:
    """Among sums of 0/1 columns some difference equals a row by chance: that is no fault."""
    rng = np.random.default_rng(0)
    tables = {name: (rng.random(size=(90, columns)) < 0.4).astype(float) for name in "abc"}
    check_method.check_method(MeanAndSD(), lambda: federation_of(tables))


def test_requests_are_registered() -> None:
    assert message_type(SumsRequest).name == "mean-and-sd/sums-request"
