"""What a coordinator learns of rare values by the levels that its studies declare."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consilience
from consilience import Columns, Federation, Preparation
from consilience.engines.local import LocalEngine
from consilience.exceptions import ConsilienceError
from consilience.protocol.mean_and_sd import MeanAndSD, SumsRequest
from consilience.protocol.method import ROLES, get_method
from consilience.protocol.phases.opening import Open
from consilience.protocol.phases.prepare import Question
from consilience.sites.loaders import memory_site
from consilience.sites.policy import Policy
from consilience.sites.row_guard import KEPT
from consilience.sites.site import Site
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.envelope import Reply, Request

COMMON = ("flu", "cold", "none")
PEOPLE = tuple(f"rare-{i}" for i in range(14))
"""Diagnoses that one person each has: who asks for one asks for this person."""


@pytest.fixture(autouse=True)
def _uses_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of roles without use are not read: here the small method is one that has a use."""
    monkeypatch.setattr(MeanAndSD, "roles", ROLES)


def ward(rare: tuple[str, ...]) -> pd.DataFrame:
    """A table in which somebody has each of some diagnoses, and others have none noted."""
    rng = np.random.default_rng(4)
    found = pd.DataFrame({"age": rng.normal(50, 9, 200).round(1)})
    found["diagnosis"] = rng.choice(COMMON, 200)
    lines = np.arange(len(PEOPLE))
    found.loc[lines, "diagnosis"] = [name if name in rare else None for name in PEOPLE]
    return found


def asked(site: Site, levels: tuple[str, ...]) -> str:
    """What an honest coordinator sees of one study: a number of rows, or why it ended."""
    columns = Columns(features=("age",), target="diagnosis", levels={"diagnosis": levels})
    rules = Preparation(missing="complete-rows")
    federation = Federation(LocalEngine([site]), columns, rules, quorum=1)
    try:
        result = MeanAndSD().run(federation, seed=1).result
    except ConsilienceError as error:
        return str(error)
    return f"{result.n} rows, mean {result.mean[0]:.12g}"


def answers(rare: tuple[str, ...], policy: str, studies: list[tuple[str, ...]]) -> list[str]:
    """One data set, through many studies."""
    limits = dataclasses.replace(Policy.from_settings(policy), max_runs=None)
    site = memory_site("ward", ward(rare), limits)
    return [asked(site, levels) for levels in studies]


STUDIES = {
    "one left out": [(*COMMON, *(p for p in PEOPLE if p != left)) for left in PEOPLE],
    "several left out": [(*COMMON, *PEOPLE[i : i + n]) for n in (0, 1, 5, 13) for i in (0, 1)],
    "put in": [(*COMMON, *PEOPLE[:n]) for n in (1, 3, 13, 14, 2)],
}


@pytest.mark.parametrize("policy", ["strict", "consortium"])
@pytest.mark.parametrize("which", STUDIES)
def test_no_series_of_studies_tells_who_is_there(policy: str, which: str) -> None:
    """Everybody, nobody, or some of them: the answers are the same ones."""
    nobody = answers((), policy, STUDIES[which])
    # A strict site keeps to the levels that the first run declared, whoever is there.
    for place, answer in enumerate(nobody):
        held = policy == "strict" and place > 0 and "coded otherwise" in answer
        assert held or "186 rows" in answer
    for rare in (PEOPLE, PEOPLE[3:4], PEOPLE[:11]):
        assert answers(rare, policy, STUDIES[which]) == nobody, rare


def test_where_nobody_is_protected_the_attack_works() -> None:
    """The control: leaving one value out tells whether anybody has it."""
    found = answers(PEOPLE[3:4], "simulation", STUDIES["one left out"])
    assert [i for i, answer in enumerate(found) if "outside the declared levels" in answer] == [3]


def test_a_level_of_enough_rows_is_told_for_one_run() -> None:
    """What is left to learn: values that at least ten rows have."""
    table = ward(())
    table.loc[20:29, "diagnosis"] = "measles"
    site = memory_site("ward", table)
    assert "outside the declared levels" in asked(site, COMMON)
    assert "190 rows" not in asked(site, (*COMMON, "measles"))
    table.loc[20, "diagnosis"] = "flu"
    assert "rows" in asked(memory_site("ward", table), COMMON)


# ----------------------------------------------------------------------------- who goes on


class Villain:
    """A coordinator that puts the questions it likes."""

    def __init__(self, site: Site, levels: tuple[str, ...]) -> None:
        self.site, self.round = site, 0
        columns = Columns(features=("age",), target="diagnosis", levels={"diagnosis": levels})
        rules = Preparation(missing="complete-rows")
        texts = (json.dumps(dataclasses.asdict(given)) for given in (columns, rules))
        self.ask("opening.read", Open(*texts, "", "rows", ""))

    def ask(self, step: str, message: Any) -> Reply:
        after, self.round = self.round, self.round + 1
        method = get_method("mean-and-sd")
        request = Request(
            run="run",
            study="s" * 64,
            method=method.name,
            method_version=method.version,
            release=consilience.__version__,
            round=self.round,
            attempt=1,
            after_round=after,
            after_attempt=int(after > 0),
            step=step,
            site=self.site.name,
            seed=1,
            message=encode_message(message),
        )
        return Reply.from_bytes(self.site.answer(request.to_bytes()))  # type: ignore[arg-type]


def test_after_a_no_nothing_else_is_answered() -> None:
    """A coordinator that does not stop by itself is stopped."""
    table = ward(()).replace({"diagnosis": {"cold": "measles"}})
    for levels, status in ((COMMON, "refused"), ((*COMMON, "measles"), "reply")):
        villain = Villain(memory_site("ward", table), levels)
        answer = villain.ask("agree-levels.confirm", Question(("diagnosis",)))
        assert decode_message(answer.message).within.tolist() == [status == "reply"]
        reply = villain.ask("sums", SumsRequest())
        assert reply.status == status
        if status == "refused":
            assert reply.reason == "a column holds values outside its declared levels"
    site = memory_site("ward", table)
    assert "values outside the declared levels at ward" in asked(site, COMMON)
    # Nothing was told of the rows, so no later run has to differ from this one.
    assert site.home.kept(site.policy.data_id, KEPT) is None
