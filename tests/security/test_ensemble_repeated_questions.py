"""A coordinator that asks one site of an ensemble more than its study does.

Each thing that a rule stops is tried again where the rule is off: there it must succeed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from typing import Any

import numpy as np
import pandas as pd
import pytest

import consilience
from consilience import Columns, Federation
from consilience.clustering.protocol import site as at_site
from consilience.clustering.protocol.messages import (
    AllModels,
    FitRequest,
    Map,
    Settings,
    VoteRequest,
)
from consilience.protocol.method import Preparation, Step, get_method
from consilience.protocol.phases.opening import Open
from consilience.testing.fakes import members
from consilience.wire.codec import decode_message, encode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from tests.granted import GRANTED

SETTINGS = Settings("kmeans", "diag", 2, 2, 2, 1, None, 0)
VICTIM = (-8.0, 3.21, 77.7)


class Refused(Exception):
    """The site declined."""


class Villain:
    """Coordinator of one site; a run for each object."""

    def __init__(
        self, table: pd.DataFrame, columns: Columns, preparation: Preparation | None = None
    ) -> None:
        rules = preparation or Preparation()
        made = Federation.local({"s": table}, columns=columns, preparation=rules, policy=GRANTED)
        self.site = members(made)["s"]
        self.asked, self.last = 0, (0, 0)
        roles, how = (json.dumps(dataclasses.asdict(each)) for each in (columns, rules))
        self.ask("opening.read", Open(roles, how, "", "rows", ""))

    def ask(self, step: str, message: Any, after: tuple[int, int] | None = None) -> Any:
        self.asked += 1
        place = after or self.last
        method = get_method("ensemble-clustering")
        request = Request(
            run="r",
            study="s" * 64,
            method=method.name,
            method_version=method.version,
            release=consilience.__version__,
            round=self.asked,
            attempt=1,
            after_round=place[0],
            after_attempt=place[1],
            step=step,
            site=self.site.name,
            seed=1,
            message=encode_message(message),
        )
        reply = Reply.from_bytes(self.site.answer(request.to_bytes()))  # type: ignore[arg-type]
        if reply.status != "reply":
            raise Refused(reply.reason)
        self.last = (self.asked, 1)
        return decode_message(reply.message)


def two_groups() -> pd.DataFrame:
    """Sixty rows left, sixty right, and one of the left by itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2)) + np.repeat([[-20.0, 0.0], [20.0, 0.0]], 60, axis=0)
    table = pd.DataFrame(x, columns=["a", "b"])
    table["y"] = rng.normal(50, 5, 120)
    table.loc[17] = VICTIM
    return table


def mapped(to: int) -> Map:
    """Labels 0 and 1 are the classes; label 2, that of one row, goes to one of them."""
    features = np.zeros((3, 2))
    features[0, 0] = features[1, 1] = features[2, to] = 1
    return Map(
        features=relayed((features,), Disclosure.MODEL),
        centres=relayed((np.eye(2),), Disclosure.MODEL),
        fewer=relayed((), Disclosure.MODEL),
    )


def row_by_two_maps() -> list[float]:
    """The attack: two maps that differ in one label, and the difference of both class sums."""
    villain = Villain(two_groups(), Columns(features=("a", "b"), target="y"))
    means = np.array([[-20.0, 0.0], [20.0, 0.0], [-8.0, 3.0]])
    models = relayed((({"means": means},),), Disclosure.MODEL)
    villain.ask("count", AllModels(settings=SETTINGS, models=models, owners=(("x",),)))
    place = villain.last
    sums = []
    for to, n in ((0, 60), (1, 59)):
        profile = villain.ask("label", mapped(to), place)
        both = [*profile.means.value[0], profile.target_means.value[0]]
        sums.append(n * np.array(both))
    return [float(x) for x in sums[0] - sums[1]]


@contextmanager
def unguarded(step: Step) -> Iterator[None]:
    """A site that answers a step as often as it is asked."""
    before = step.once
    object.__setattr__(step, "once", False)
    try:
        yield
    finally:
        object.__setattr__(step, "once", before)


@contextmanager
def forgetful() -> Iterator[None]:
    """A site that remembers no released classes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            at_site,
            "_told_classes",
            lambda own, labels, data, site: at_site.profiled_classes(own, labels, site.limits),
        )
        yield


def test_two_maps_do_not_tell_the_row_between_them() -> None:
    with unguarded(at_site.label), forgetful():
        assert row_by_two_maps() == pytest.approx(VICTIM)  # the control
    with unguarded(at_site.label):
        assert np.abs(np.array(row_by_two_maps()) - VICTIM).max() > 1
    with pytest.raises(Refused, match="'label' is answered once in a run"):
        row_by_two_maps()


@pytest.mark.parametrize("name", ["vote", "fit", "count"])
def test_steps_are_answered_once_in_a_run(name: str) -> None:
    """Models on other secret parts would average what the draw hides; counts, tell regions."""
    villain = Villain(two_groups(), Columns(features=("a", "b"), target="y"))
    place = villain.last

    def asked(k: int) -> Any:
        settings = dataclasses.replace(SETTINGS, n_clusters=k)
        if name == "count":
            models = relayed((({"means": 20.0 * np.eye(k, 2)},),), Disclosure.MODEL)
            return AllModels(settings=settings, models=models, owners=(("x",),))
        return VoteRequest(settings=settings) if name == "vote" else FitRequest(settings=settings)

    villain.ask(name, asked(2), place)
    with pytest.raises(Refused, match="answered once in a run"):
        villain.ask(name, asked(3), place)


def test_a_vote_of_one_class_does_not_tell_how_many_have_a_rare_level() -> None:
    """The attack: with one class the log likelihood is that of the shares of the levels.

    Every pair of numbers of "hi" in two columns of 150 rows is tried.
    """
    n = 150

    def log_likelihood(count: int) -> float:
        share = (count + 0.1) / (n + 0.2)
        return count * log(share) + (n - count) * log(1 - share)

    def fitting(score: float) -> set[int]:
        found = set()
        for a in range(n // 2 + 1):
            for b in range(a, n // 2 + 1):
                paid = ((a >= 10) + (b >= 10)) * log(n)
                if abs(paid - 2 * (log_likelihood(a) + log_likelihood(b)) - score) < 0.002:
                    found.add(a)
        return found

    exact = -2 * (log_likelihood(3) + log_likelihood(41)) + log(n)
    assert fitting(exact) == {3}  # the control
    levels = {"q0": ("lo", "hi"), "q1": ("lo", "hi")}
    rng = np.random.default_rng(5)
    table = pd.DataFrame(
        {"q0": rng.permutation(["hi"] * 3 + ["lo"] * 147), "q1": ["hi"] * 41 + ["lo"] * 109}
    )
    villain = Villain(
        table,
        Columns(features=("q0", "q1"), levels=levels),
        Preparation(missing="keep", categorical="onehot"),
    )
    settings = Settings("latent-class", "diag", 1, 2, 3, 1, None, 0)
    score = float(np.asarray(villain.ask("vote", VoteRequest(settings=settings)).scores.value)[0])
    assert fitting(score) != {3}


def test_a_model_under_the_sites_name_does_not_undo_the_grouping_by_its_own() -> None:
    """The attack: own class means less final class means, where another model is called its own."""
    villain = Villain(two_groups(), Columns(features=("a", "b")))
    told = villain.ask("fit", FitRequest(settings=SETTINGS))
    left = min(told.models.value[0][0]["means"], key=lambda mean: mean[0])
    decoy = {"means": np.array([[0.0, 0.0], [1e6, 1e6]])}
    alone = {"means": np.array([[-20.0, 0.0], [20.0, 0.0], [-8.0, 3.0]])}
    models = relayed(((decoy, alone),), Disclosure.MODEL)
    asked = AllModels(settings=SETTINGS, models=models, owners=(("s", "x"),))
    villain.ask("count", asked)
    features = np.zeros((5, 2))
    features[2, 0] = features[3, 1] = features[4, 1] = 1
    both = Map(
        features=relayed((features,), Disclosure.MODEL),
        centres=relayed((np.eye(2),), Disclosure.MODEL),
        fewer=relayed((), Disclosure.MODEL),
    )
    final = villain.ask("label", both).means.value[0]
    assert np.abs(60 * left - 59 * final - VICTIM[:2]).max() > 1
