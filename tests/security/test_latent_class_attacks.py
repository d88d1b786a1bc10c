"""A coordinator that asks for more than its study of latent classes, through the real gate.

What a site stops must stay stopped; under ``simulation``, where nothing is protected, the same
attack finds what it looks for. What made-up classes tell by their nature is stated, with its bound.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import consilience
from consilience import Columns, Federation
from consilience.exceptions import ConsilienceError, WireError
from consilience.latent_regression.protocol import LatentClassRegression
from consilience.latent_regression.protocol import events as at_rows
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.messages import (
    N_FIGURES,
    Begin,
    Conclude,
    Curve,
    Offer,
    Round,
    Settings,
    full_products,
    packed_size,
)
from consilience.parameters import plain
from consilience.protocol.method import Preparation, SiteData, get_method
from consilience.protocol.phases.moments import Request as MomentsOfAll
from consilience.protocol.phases.opening import Open
from consilience.protocol.phases.standardise import Scale
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.testing.attacks import canaries_after, number_canary, plant, recovers
from consilience.testing.fakes import federation_of, members, rows_of, scripted, with_data
from consilience.testing.recalling import copied_home
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import relayed
from consilience.wire.envelope import Reply, Request
from consilience.wire.message import Disclosure
from tests.granted import GRANTED, granted
from tests.latent_regression.protocol.latent import by_site, events, federation
from tests.reference.few_beside import off_some
from tests.reference.moments_naive import cell_facts
from tests.rotation import by_turns
from tests.security.hostile import unchecked

Array = NDArray[np.float64]
AGGREGATE, MODEL = Disclosure.AGGREGATE, Disclosure.MODEL
PROTECTING = ("strict", "consortium")
COLUMNS = Columns(features=("x1",), target="y", entity="entity")
K = 2


class Refused(Exception):
    """A site's refusal, with its public reason."""


# --------------------------------------------------------------------------- a hostile coordinator


def table(n_entities: int = 60, per: int = 6, seed: int = 0) -> pd.DataFrame:
    """Entities of one site; the first has by far the highest response, the second the next."""
    rng = np.random.default_rng(seed)
    entity = np.repeat(np.arange(n_entities), per)
    level = np.sort(rng.normal(0, 0.3, size=n_entities))[::-1].copy()
    level[0], level[1] = 2.1, 1.4
    y = level[entity] + rng.normal(0, 0.05, size=len(entity))
    names = np.array([f"e{i:03d}" for i in range(n_entities)])
    return pd.DataFrame({"entity": names[entity], "x1": rng.normal(size=len(entity)), "y": y})


def settings(**changes: Any) -> Settings:
    usual = Settings(
        n_cells=K,
        start="random",
        concentration="exact",
        fit_intercept=True,
        holdout=0.0,
        level=0.9,
    )
    return dataclasses.replace(usual, **changes)


class Villain:
    """Coordinator of one site that keeps to no order and keeps everything it is told."""

    def __init__(
        self,
        frame: pd.DataFrame,
        policy: str | Policy = "strict",
        *,
        site: Site | None = None,
        run: str = "run-1",
        columns: Columns = COLUMNS,
        **changes: Any,
    ) -> None:
        made = Federation.local({"s": frame}, columns=columns, policy=granted(policy))
        self.site = members(made)["s"] if site is None else site
        self.run, self.columns, self.settings = run, columns, settings(**changes)
        self.n_features = len(columns.features)
        self.asked, self.last = 0, (0, 0)
        self.round = 0

    def ask(self, step: str, message: Any, after: tuple[int, int] | None = None) -> Any:
        """Ask a question that follows any earlier answer."""
        self.asked += 1
        follows = self.last if after is None else after
        request = Request(
            run=self.run,
            study="s" * 64,
            method="latent-class-regression",
            method_version=get_method("latent-class-regression").version,
            release=consilience.__version__,
            round=self.asked,
            attempt=1,
            after_round=follows[0],
            after_attempt=follows[1],
            step=step,
            site=self.site.name,
            seed=1,
            message=unchecked(message),
        )
        said = self.site.answer(request.to_bytes())
        assert isinstance(said, bytes)
        reply = Reply.from_bytes(said)
        if reply.status != "reply":
            raise Refused(reply.reason)
        self.last = (self.asked, 1)
        return decode_message(reply.message)

    def twin(self) -> Villain:
        """Return the same coordinator of the same site, from here on with a story of its own."""
        made = copy.copy(self)
        made.site = copy.copy(self.site)
        made.site.home = copied_home(self.site.home)
        return made

    def open(self, **preparation: Any) -> Villain:
        rules = json.dumps(dataclasses.asdict(Preparation(**preparation)))
        text = json.dumps(dataclasses.asdict(self.columns))
        self.ask("opening.read", Open(text, rules, "", "rows", ""), after=(0, 0))
        return self

    def offer(self, **changes: Any) -> Any:
        message = Offer(settings=self.settings)
        return self.ask("offer", dataclasses.replace(message, **changes)).sums.value

    def begin(self, centre: Any = 0.0, scale: Any = 1.0, **changes: Any) -> Any:
        q = self.n_features + 1
        message = Begin(
            settings=self.settings,
            centre=relayed(np.broadcast_to(np.asarray(centre, float), q).copy(), AGGREGATE),
            scale=relayed(np.broadcast_to(np.asarray(scale, float), q).copy(), AGGREGATE),
            sigma2=relayed(1.0, AGGREGATE),
        )
        return self.ask("begin", dataclasses.replace(message, **changes)).sums.value

    def classes(self, means: list[float], **changes: Any) -> Any:
        """Ask for a round with made-up classes: responses about these means, whatever x is."""
        after = changes.pop("after", None)
        self.round += 1
        k = len(means)
        message = Round(
            settings=self.settings,
            round=self.round,
            totals=relayed(totals(means, self.n_features), AGGREGATE),
            base=relayed(np.full(k, 1.0 / k), AGGREGATE),
            sigma2=relayed(1e-3, AGGREGATE),
            delta2=relayed(1e3, AGGREGATE),
            alpha=1.0,
            beta=1e6,
            used=-1,
            decay=0.0,
            weight=0.0,
            mapping=np.arange(k),
            keep=False,
            betas=(),
        )
        return self.ask("round", dataclasses.replace(message, **changes), after)

    def curve(self, **changes: Any) -> Array:
        """Full sums of products of 1, x, x^2 and y."""
        message = dataclasses.replace(Curve(settings=self.settings), **changes)
        packed = self.ask("curve", message).sums.value
        return np.asarray(full_products(packed, 2 * self.n_features + 2)[0])

    def conclude(self, means: list[float], **changes: Any) -> Array:
        f = self.n_features + 1
        mean = np.zeros((len(means), f))
        mean[:, 0] = means
        message = Conclude(
            settings=self.settings,
            mean=relayed(mean, MODEL),
            covariance=relayed(np.broadcast_to(1e-9 * np.eye(f), (len(means), f, f)).copy(), MODEL),
            ridge=relayed(np.zeros(f), MODEL),
            ridge_variance=relayed(1.0, AGGREGATE),
            curve=relayed(np.zeros(f + self.n_features), MODEL),
            curve_variance=relayed(1.0, AGGREGATE),
            base=relayed(np.full(len(means), 1.0 / len(means)), AGGREGATE),
            sigma2=relayed(1e-3, AGGREGATE),
            delta2=relayed(1e3, AGGREGATE),
            beta=1.0,
            mapping=np.arange(len(means)),
        )
        return self.ask("conclude", dataclasses.replace(message, **changes)).figures.value


def totals(means: list[float], n_features: int, n: float = 1e6) -> Array:
    """Sums of classes of many events whose response is constant and whose features are not."""
    p = n_features + 2
    found = np.zeros((len(means), packed_size(p, 2)))
    upper = list(zip(*np.triu_indices(p), strict=True))
    for k, mean in enumerate(means):
        full = n * np.eye(p)
        full[0, -1], full[-1, -1] = n * mean, n * mean**2
        found[k, : len(upper)] = [full[i, j] for i, j in upper]
        found[k, -2:] = n
    return found


def products(frame: pd.DataFrame, centre: float = 0.0) -> Array:
    """What each event adds to class sums, marks left out: (n, d)."""
    features = [c for c in frame.columns if c.startswith("x")]
    z = np.c_[np.ones(len(frame)), frame[features].to_numpy(), frame["y"].to_numpy() - centre]
    upper = np.triu_indices(z.shape[1])
    return np.asarray(z[:, upper[0]] * z[:, upper[1]])


def of_entity(frame: pd.DataFrame, names: list[str]) -> Array:
    return np.asarray(products(frame)[frame["entity"].isin(names).to_numpy()].sum(axis=0))


def told(value: Array) -> Array:
    """Products of released classes, marks left out, empty classes too."""
    return np.asarray(value[value[:, 0] > 0, :-2])


# --------------------------------------------------------------------------- runs as they are meant


def states_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, SiteData, dict[str, Any]]]:
    """Step, site, rows and state of every answer from now on: what an insider would see."""
    seen: list[tuple[str, str, SiteData, dict[str, Any]]] = []

    def watched(step: Any) -> Any:
        def function(message: Any, data: SiteData, state: Any, site: Any) -> Any:
            reply, after = step.function(message, data, state, site)
            seen.append((step.name, site.site, data, after))
            return reply, after

        return dataclasses.replace(step, function=function)

    steps = tuple(
        watched(step) if step.name in ("offer", "begin", "round") else step
        for step in LatentClassRegression.steps
    )
    monkeypatch.setattr(LatentClassRegression, "steps", steps)
    return seen


def run_and_watch(
    monkeypatch: pytest.MonkeyPatch, tables: dict[str, pd.DataFrame], policy: str, **changes: Any
) -> tuple[Any, dict[str, list[Array]], dict[str, list[NDArray[np.int64]]], dict[str, SiteData]]:
    """Result, and by site: released sums, classes in which entities were counted, rows."""
    columns = changes.pop("columns", None)
    more = {} if columns is None else {"columns": columns}
    seen = states_of(monkeypatch)
    found = scripted(federation(tables, policy, **more))
    given = {"n_classes": 3, "rounds": 5, "settle_rounds": 3, "average_rounds": 3, **changes}
    result = LatentClassRegression(**given).run(found, seed=4).result
    sums: dict[str, list[Array]] = {name: [] for name in tables}
    for (_, name), data in sorted(found.engine.replies.items()):  # type: ignore[attr-defined]
        reply = Reply.from_bytes(data)
        if reply.status == "reply" and reply.step in ("offer", "begin", "round"):
            sums[name].append(decode_message(reply.message).sums.value)
    counted: dict[str, list[NDArray[np.int64]]] = {name: [] for name in tables}
    rows = {}
    for step, name, data, after in seen:
        rows[name] = data
        if step == "offer":
            told = np.isfinite(sums[name][0]).all()
            counted[name].append(np.full(entities_of(data).max() + 1, 0 if told else -1))
        else:
            counted[name].append(after["answers"][-1]["released"])
    return result, sums, counted, rows


def entities_of(data: SiteData) -> NDArray[np.int64]:
    """Number of each event's entity: by agent, then by first appearance."""
    pairs = [f"{a}\n{e}" for a, e in zip(data.agent, data.entity, strict=True)]  # type: ignore[arg-type]
    order: dict[str, int] = {}
    for pair in sorted(range(len(pairs)), key=lambda i: (pairs[i].split("\n")[0], i)):
        order.setdefault(pairs[pair], len(order))
    return np.array([order[pair] for pair in pairs])


def histories(counted: list[NDArray[np.int64]]) -> Iterator[NDArray[np.int64]]:
    """Entities that no release tells apart."""
    seen = np.stack(counted)
    of = np.unique(seen, axis=1, return_inverse=True)[1].ravel()
    for g in range(of.max() + 1):
        group = np.flatnonzero(of == g)
        if (seen[:, group[0]] >= 0).any():
            yield group


def could_leave(z: Array, n_entities: int) -> bool:
    """Cell by cell, around the medians of the site's own rows (z is that)."""
    p = z.shape[1]
    if len(z) < max(10, 2 * p) or n_entities < 3:
        return False
    cells = (cell_facts(z[:, i] * z[:, j]) for i in range(p) for j in range(i, p))
    return all((records == 0 or records >= 10) and share <= 0.5 for _, records, share in cells)


def of_columns(data: SiteData, mine: NDArray[np.bool_]) -> bool:
    """Whether products of columns tell of few of these events, beside usual values."""
    raw = np.c_[data.features, np.asarray(data.target)]
    return off_some(raw, entities_of(data), np.flatnonzero(mine))


def around_medians(data: SiteData) -> Array:
    raw = np.c_[data.features, np.asarray(data.target)]
    middle = np.sort(raw, axis=0)[(len(raw) - 1) // 2]
    return np.c_[np.ones(len(raw)), raw - middle]


def mixed_tables(
    *, dummy: bool = False, levels: bool = False, seed: int = 2
) -> dict[str, pd.DataFrame]:
    frame = events(12, n_classes=3, n_entities=12.0, n_events=6.0, sigma=0.8, seed=seed)
    if dummy:
        rng = np.random.default_rng(seed)
        names = frame["entity"].unique()
        has = dict(zip(names, rng.random(len(names)) < 0.3, strict=True))
        frame["x2"] = frame["entity"].map(has).astype(float)
    if levels:
        rng = np.random.default_rng(seed)
        frame["x2"] = rng.choice(3, size=len(frame), p=[0.5, 0.4, 0.1])
    return by_site(frame, (6, 6))


CASES: dict[str, dict[str, Any]] = {
    "local": {"start": "local"},
    "random": {"start": "random"},
    "auto": {"n_classes": "auto", "start": "random"},
    "cache": {"start": "random", "participation": 0.5, "server_cache": True},
    "fixed": {"start": "random", "learning_rate": 1.0, "noise": 0.1, "adapt_rate": False},
}


@by_turns([*CASES, "dummy", "levels"], PROTECTING, names=("case", "policy"))
def test_releases_are_made_of_groups_that_could_leave(
    case: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker knows every membership: the span of all releases has no sum of few events."""
    tables = mixed_tables(dummy=case == "dummy", levels=case == "levels")
    _, sums, counted, rows = run_and_watch(
        monkeypatch, tables, policy, holdout=0.0, **CASES.get(case, {"start": "random"})
    )
    moves = 0
    for name, data in rows.items():
        assert len(sums[name]) == len(counted[name]) > 3
        of, z = entities_of(data), around_medians(data)
        for value, memberships in zip(sums[name], counted[name], strict=True):
            sizes = np.array([(memberships[of] == k).sum() for k in range(len(value))])
            np.testing.assert_allclose(value[:, 0], sizes, rtol=1e-12)
        groups = list(histories(counted[name]))
        moves += len(groups) > 1
        for group in groups:
            mine = np.isin(of, group)
            assert could_leave(z[mine], len(np.unique(of[mine])))
            assert not of_columns(data, mine)
        masks = np.array([m == k for m in counted[name] for k in range(m.max() + 1)], dtype=float)
        _, sizes, span = np.linalg.svd(masks, full_matrices=False)
        span = span[sizes > 1e-9 * sizes[0]]
        assert (span**2).sum(axis=0).max() <= 1 / 3 + 1e-9, "no entity alone"
    assert moves, "something was released by class"


@pytest.mark.parametrize("case", list(CASES))
def test_without_protection_single_entities_are_solved_for(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same run under `simulation`, and one entity's own sums from the releases."""
    _, sums, counted, rows = run_and_watch(
        monkeypatch, mixed_tables(), "simulation", holdout=0.0, **CASES[case]
    )
    found = 0
    for name, data in rows.items():
        of = entities_of(data)
        # Rounds have their own units; the events' number is the same in all of them.
        released = np.concatenate([v[:, 0] for v in sums[name]])
        pairs = zip(counted[name], sums[name], strict=True)
        masks = np.concatenate([m == np.arange(len(v))[:, None] for m, v in pairs]).astype(float)
        weights = np.linalg.pinv(masks.T)
        for e in range(masks.shape[1]):
            target = np.eye(masks.shape[1])[e]
            if np.allclose(masks.T @ (weights @ target), target, atol=1e-8):
                assert (weights @ target) @ released == pytest.approx((of == e).sum(), abs=1e-6)
                found += 1
    assert found >= 1


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_differences_of_two_releases(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any class of any round less any other: never one entity's sums, nor of rank one."""
    tables = mixed_tables()
    _, sums, counted, rows = run_and_watch(
        monkeypatch, tables, policy, holdout=0.0, start="random", learning_rate=0.5
    )
    single = 0
    for name, data in rows.items():
        of, events_of = entities_of(data), np.bincount(entities_of(data))
        known = [
            (m == k, v[k, :-2])
            for m, v in zip(counted[name][1:], sums[name][1:], strict=True)
            for k in range(len(v))
        ]
        p = data.features.shape[1] + 2
        upper = np.triu_indices(p)
        for i, (mask, value) in enumerate(known):
            for other, earlier in known[:i]:
                both = (mask != other).nonzero()[0]
                if (mask & other == other).all() and len(both) > 0:
                    full = np.zeros((p, p))
                    full[upper] = value - earlier
                    full = full + np.triu(full, 1).T
                    assert full[0, 0] == pytest.approx(events_of[both].sum())
                    rank = np.linalg.matrix_rank(full, tol=1e-8 * abs(full).max())
                    if policy == "simulation":
                        single += len(both) == 1
                    else:
                        assert len(both) >= 3 and rank == p, (len(both), rank)
                        assert events_of[both].sum() >= max(10, 2 * p)
        del of
    assert (single > 0) is (policy == "simulation")


def test_nothing_is_ever_a_gap_and_nothing_is_said_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gate had nothing to repeat or to withhold: verdicts of class sums are all "released"."""
    for policy in PROTECTING:
        found = scripted(federation(mixed_tables(dummy=True), policy))
        run = LatentClassRegression(n_classes=3, start="random", rounds=6).run(found, seed=1)
        lines = [x for x in run.transcript if x.field == "sums" and x.step != "curve"]
        assert len(lines) > 20
        assert {line.verdict for line in lines} == {"released"}
        assert {line.rule for line in lines} == {"class-sums"}


# --------------------------------------------------------------------------- made-up classes


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_classes_that_pull_one_entity(policy: str) -> None:
    """A class at the highest response: the one entity near it never stands alone in a sum."""
    frame = table()
    villain = Villain(frame, policy).open()
    villain.offer()
    kept = [told(villain.begin())]
    for high in (3.0, 2.1, 2.2, 1.4, 1.2, 2.1):
        kept.append(told(villain.classes([0.0, high]).sums.value))
    releases = np.unique(np.concatenate(kept), axis=0)
    found = [
        recovers(releases[-8:], of_entity(frame, names), rtol=1e-9)
        for names in (["e000"], ["e001"], ["e000", "e001"])
    ]
    assert any(found) is (policy == "simulation")
    assert min(r[0] for r in releases) < 10 if policy == "simulation" else True


def answers_to_lines(frame: pd.DataFrame, policy: str, lines: Array) -> list[Any]:
    villain = Villain(frame, policy, n_cells=3).open()
    villain.offer()
    villain.begin()
    return [villain.classes([0.0, 2 * line, -40.0], betas=(1.0, 4.0)) for line in lines]


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_lines_drawn_through_single_entities(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status, moves and fits: the same whether the highest entities lie below a line or above it.

    Two tables that differ in the responses of two entities; the lines lie between. A site's own
    draws follow from its responses; here they are the same in both, so that answers compare.
    """
    monkeypatch.setattr(at_rows, "drawing_seed", lambda *_: 5)
    frame, other = table(), table()
    first = other["entity"].isin(["e000", "e001"])
    other.loc[first, "y"] += 1.0
    lines = np.array([2.5, 2.6, 2.7, 2.8, 2.2, 2.3, 2.9])
    answers = [answers_to_lines(t, policy, lines) for t in (frame, other)]
    facts = [
        [(a.status.tolist(), float(a.moved.value), tuple(a.fit.value)) for a in told_]
        for told_ in answers
    ]
    sizes = [[a.sums.value[:, 0].tolist() for a in told_] for told_ in answers]
    assert (facts[0] == facts[1]) is (policy != "simulation")
    assert (sizes[0] == sizes[1]) is (policy != "simulation")


def test_a_line_tells_no_more_than_where_many_lie() -> None:
    """What made-up classes do tell: whether enough lie beyond a line to be summed.

    Bounded by groups: once released, those beyond the line are one group for the whole run.
    """
    frame = table()
    villain = Villain(frame).open()
    villain.offer()
    villain.begin()
    levels = frame.groupby("entity")["y"].mean().sort_values(ascending=False).to_numpy()
    sizes = []
    for line in [2.5, 1.7, 1.0, *((levels[:-1] + levels[1:]) / 2)[2:12]]:
        value = villain.classes([0.0, 2 * line]).sums.value
        sizes.append(value[:, 0].min())
    positive = [s for s in sizes if s > 0]
    assert positive and min(positive) >= 18, "three entities of six events"
    assert len(set(positive)) <= 3, "and nobody joins one by one"


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_far_away_centres_do_not_hide_a_giant(policy: str) -> None:
    """One event is nearly all of the sum of squares; around a far centre no event is."""
    frame = table()
    frame.loc[7, "y"] = 500.0
    villain = Villain(frame, policy).open()
    offered = villain.offer()
    assert np.isnan(offered[0]).all() == (policy != "simulation")
    kept = [told(villain.begin(centre=[0.0, -1e5]))]
    kept += [told(villain.classes([0.0, high]).sums.value) for high in (1.0, 3.0, 500.0)]
    seen = np.concatenate(kept)
    # Sum of squares around zero, from those around the far centre.
    squares = seen[:, 5] - 2 * 1e5 * seen[:, 2] + 1e10 * seen[:, 0]
    assert (np.abs(squares - 500.0**2) < 0.01 * 500**2).any() == (policy == "simulation")


def rare(frame: pd.DataFrame) -> pd.DataFrame:
    """A column that few of those with a high response have."""
    changed = frame.copy()
    changed["x1"] = 0.0
    changed.loc[:3, "x1"] = [1.5, 2.5, 3.5, 4.5]  # of one entity
    changed.loc[200:213, "x1"] = 1.0
    return changed


def copy_of_y() -> pd.DataFrame:
    """A column that is the response, but for two events."""
    frame = table()
    return frame.assign(x1=np.where(np.isin(np.arange(360), [7, 200]), 0.0, frame["y"]))


def three_agree() -> pd.DataFrame:
    """Three marks of which each two have four cells that are large, and nobody but two agrees."""
    marks = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]])
    x = np.random.default_rng(3).permutation(np.r_[np.tile(marks, (60, 1))[:358], [[1, 1, 1]] * 2])
    return table().assign(x1=x[:, 0], x2=x[:, 1], y=x[:, 2])


def left_out() -> pd.DataFrame:
    """Levels of a category of five, the last of which two events have."""
    level = np.random.default_rng(4).permutation(np.r_[np.tile(np.arange(4), 90)[:358], 4, 4])
    return table().assign(x1=level == 0, x2=level == 1, x3=level == 2, y=level == 3)


def left_out_with_a_mark() -> pd.DataFrame:
    """Three of four levels and a mark, which two events of the last level have."""
    level, mark = np.arange(360) % 4, np.arange(360) % 7 < 3
    mark = mark & (level < 3) | np.isin(np.arange(360), [3, 203])
    return table().assign(x1=level == 0, x2=level == 1, x3=level == 2, x4=mark)


def weights_of_few() -> pd.DataFrame:
    """The sum of weights, less what n is known to be, is that of two events."""
    return table().assign(w=np.r_[np.ones(358), 2.0, 2.5])


@pytest.mark.parametrize("policy", PROTECTING)
@pytest.mark.parametrize(
    "made",
    [
        *("of_few", "beside_two_values", "of_one_entity", "copy_of_y", "three_agree", "left_out"),
        *("left_out_with_a_mark", "weights_of_few"),
    ],
)
def test_products_do_not_tell_of_few_beside_usual_values(made: str, policy: str) -> None:
    frame = globals()[made]().astype({"y": float})
    features = tuple(c for c in frame.columns if c.startswith("x"))
    weight = "w" if "w" in frame else None
    columns = dataclasses.replace(COLUMNS, features=features, weight=weight)
    villain = Villain(frame, policy, columns=columns).open()
    assert np.isnan(villain.offer()[0]).all()
    villain.begin()
    open_one = Villain(frame, "simulation", columns=villain.columns).open()
    assert np.isfinite(open_one.offer()).all()


def test_a_site_knows_itself_that_its_offer_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only its gate: with masks, figures on held-out events are weighted by what it offered."""
    seen = states_of(monkeypatch)
    Villain(copy_of_y()).open().offer()
    Villain(table()).open().offer()
    assert [after["events"] for *_, after in seen] == pytest.approx([np.nan, 360.0], nan_ok=True)


FEW_BY_PRODUCTS: dict[str, Any] = {
    "of_few": lambda s: s[1, 1] - s[0, 1],
    "beside_two_values": lambda s: s[1, 1] - s[0, 1],
    "of_one_entity": lambda s: s[1, 1] - s[0, 1],
    "copy_of_y": lambda s: s[2, 2] - s[1, 2],
    "three_agree": lambda s: s[0] @ [1, -1, -1, -1] + s[1, 2] + s[1, 3] + s[2, 3],
    "left_out": lambda s: s[0] @ [1, -1, -1, -1, -1],
}
"""Of sums of products of 1, features and response: a sum over a few events."""


@pytest.mark.parametrize("policy", ["strict", "simulation"])
@pytest.mark.parametrize("units", ["spread", "far"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("made", list(FEW_BY_PRODUCTS))
def test_units_and_weights_hide_no_few(made: str, weighted: bool, units: str, policy: str) -> None:
    """Columns in units of their own, as in every run, are no copies of each other any more.

    And what is left of a weight's rounding would make every usual value one of its own.
    """
    frame = globals()[made]().astype({"y": float})
    features = tuple(c for c in frame.columns if c.startswith("x"))
    columns = dataclasses.replace(COLUMNS, features=features)
    if weighted:
        frame["w"] = np.random.default_rng(1).uniform(0.5, 2, size=len(frame))
        columns = dataclasses.replace(columns, weight="w")
    # not that of a copy either
    scale = frame[[*features, "y"]].std().to_numpy() * np.linspace(1, 1.1, len(features) + 1)
    centre = np.full(len(scale), 2e5 if units == "far" else 0.3)
    villain = Villain(frame, policy, columns=columns).open()
    villain.offer()
    kept = [told(villain.begin(centre=centre, scale=scale))]
    kept += [told(villain.classes([0.0, high]).sums.value) for high in (0.5, 1.5, 0.0)]
    back = np.diag(np.r_[1.0, scale])
    back[1:, 0] = centre
    found = []
    for packed in np.concatenate(kept):
        full = np.zeros(back.shape)
        full[np.triu_indices(len(back))] = packed
        full = full + np.triu(full, 1).T
        found.append(FEW_BY_PRODUCTS[made](back @ full @ back.T))
    assert (np.abs(found) > 0.05).any() == (policy == "simulation"), found


def test_units_of_the_preparation_hide_no_few() -> None:
    frame = copy_of_y().assign(w=np.random.default_rng(1).uniform(0.5, 2, size=360))
    frame[["x1", "y"]] += 1e5  # of which little is left beside rounding by weights
    columns = dataclasses.replace(COLUMNS, weight="w")
    villain = Villain(frame, columns=columns).open(standardize="pooled")
    message = Scale(
        own=False,
        fill=relayed(np.zeros(1), AGGREGATE),
        centre=relayed(np.zeros(1), AGGREGATE),
        scale=relayed(np.full(1, 2.0), AGGREGATE),
    )
    villain.ask("standardise.apply", message)
    assert np.isnan(villain.offer()[0]).all()


def test_units_of_a_site_of_its_own_hide_no_few() -> None:
    villain = Villain(copy_of_y()).open(standardize="site")
    nothing = relayed(np.zeros(1), AGGREGATE)
    message = Scale(own=True, fill=nothing, centre=nothing, scale=relayed(np.ones(1), AGGREGATE))
    villain.ask("standardise.apply", message)
    assert np.isnan(villain.offer()[0]).all()
    twice = dataclasses.replace(message, own=False, scale=relayed(np.full(1, 2.0), AGGREGATE))
    for made in (message, twice):
        with pytest.raises(Refused, match="as the study's preparation says"):
            Villain(copy_of_y()).open().ask("standardise.apply", made)


def test_an_offer_that_rests_on_one_event_where_its_units_are_is_withheld() -> None:
    """And not refused, which would stop the site; about the median no event has half."""
    rng = np.random.default_rng(5)
    frame = table().assign(x1=(rng.random(360) < 0.42) + rng.uniform(-0.01, 0.01, 360))
    middle = frame["y"].sub(frame["y"].median()).abs().idxmin()
    frame.loc[middle, "x1"] = 11.4
    villain = Villain(frame).open(standardize="pooled")
    centre = relayed(frame[["x1"]].mean().to_numpy(), AGGREGATE)
    of_one = relayed(np.zeros(1), AGGREGATE), relayed(np.ones(1), AGGREGATE)
    message = Scale(own=False, fill=of_one[0], centre=centre, scale=of_one[1])
    villain.ask("standardise.apply", message)
    assert np.isnan(villain.offer()[0]).all()
    told_about_the_median = Villain(frame).open().offer()
    assert np.isfinite(told_about_the_median).all()


@pytest.mark.parametrize(("few", "tells"), [(5, False), (40, True)])
def test_squares_of_columns_in_units_of_their_own_tell_no_few(few: int, tells: bool) -> None:
    frame = table()
    frame["x1"] = frame["y"] + 0.5 * (np.arange(360) % (360 // few) == 4)
    villain = Villain(frame, dataclasses.replace(GRANTED, per_record=True)).open()
    villain.offer()
    villain.begin(scale=[1.0, 2.0])
    assert np.isfinite(villain.curve()).all() == tells


def of_one_person(made: str) -> pd.DataFrame:
    """No sum of all events leaves, because of one entity, or of two."""
    frame = table().assign(x2=np.tile([0.0, 1.0], 180))
    if made == "copy":
        frame["x1"] = frame["y"]
        frame.loc[[1, 3], "x1"] = 0.3
    elif made == "giant":
        frame.loc[0, "y"] = 500.0
    elif made == "two giants":
        frame.loc[[0, 6], "y"] = 500.0, 480.0
    elif made == "giant with a mark":  # one of the next has it, and no other high one
        frame.loc[0, "y"] = 500.0
        frame["x2"] = np.where(frame.index < 150, 0.0, frame["x2"])
        frame.loc[8, "x2"] = 1.0
    else:  # its mark, of which others have enough
        frame["x1"] = (frame.index // 6 % 2 == 1) * 1.0
        frame.loc[[0, 1, 2], "x1"] = 1.0
        frame["x2"] = np.where(frame["x1"] == 1, 0.0, frame["x2"])
        frame.loc[[0, 1], "x2"] = 1.0
    return frame


@pytest.mark.parametrize("made", ["copy", "giant", "two giants", "giant with a mark", "mark"])
@pytest.mark.parametrize("policy", PROTECTING)
def test_totals_of_the_columns_do_not_tell_of_whom_no_class_counts(made: str, policy: str) -> None:
    """A study that scales its columns knows n, means and spreads of all events."""
    frame = of_one_person(made)
    columns = dataclasses.replace(COLUMNS, features=("x1", "x2"))
    villain = Villain(frame, policy, columns=columns).open()
    total = villain.ask("moments.sums", MomentsOfAll()).n.value
    assert np.nanmax(total) == 360
    assert np.isnan(villain.offer()[0]).all()
    counted = [villain.begin()]
    for line in (0.7, 0.9, 1.2, 1.7, 1.7, 1.7, 2.5, 1.7):
        counted.append(villain.classes([0.0, 2 * line]).sums.value)
    rest = [360 - value[:, 0].sum() for value in counted]
    assert min(n for n in rest if n > 0) >= 18, "three entities of six events"
    marked = [frame["x2"].sum() - value[:, 2].sum() for value in counted]
    for n, k in zip(rest, marked, strict=True):
        assert n == 0 or min(k, n - k) > 9.99 or made == "mark", "x2 is told by itself"


def test_whom_no_class_counts_are_many_in_every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every one of which sums could be told: few of all have a third, and it is not asked."""
    frame = of_one_person("giant with a mark").assign(x1=np.where(np.arange(360) < 3, 1.0, 0.0))
    found, events_ = [], at_rows.events_of
    monkeypatch.setattr(at_site, "events_of", lambda *g: found.append(events_(*g)) or found[0])
    Villain(frame, columns=dataclasses.replace(COLUMNS, features=("x1", "x2"))).open().offer()
    many = found[0].many(Policy.from_settings("strict").limits)
    # numbered by name: e001, one event of which has the mark, is the second
    assert [many(np.arange(10, 10 + n)) for n in (1, 2, 3)] == [False, False, True]
    assert not many(np.arange(1, 12)), "one has the mark"
    assert many(np.arange(2, 12)) and many(np.arange(1, 40))
    found.clear()
    Villain(frame).open().offer()
    many = found[0].many(Policy.from_settings("strict").limits)
    assert [many(np.arange(10, 10 + n)) for n in (1, 2, 3)] == [False, False, True], "no column"


@pytest.mark.parametrize("centre", [0.0, 0.3, -1e3])
@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_a_column_of_few_does_not_show_its_events(policy: str, centre: float) -> None:
    frame = rare(table())
    villain = Villain(frame, policy).open()
    villain.offer()
    kept = [told(villain.begin(centre=[centre, 0.0]))]
    for means in ([0.0, 0.4], [0.0, 0.2], [0.1, 0.6], [-0.3, 0.3]):
        kept.append(told(villain.classes(means).sums.value))
    # Sums of x and x^2 as they are, from those around the centre.
    seen = [np.c_[v[:, 1] + centre * v[:, 0]] for v in kept]
    few = {1.5, 2.5, 3.5, 4.5, 12.0}
    releases = np.concatenate(seen)
    differences = np.concatenate([releases, (releases[:, None] - releases[None]).ravel()[:, None]])
    few_seen = any(np.isclose(abs(differences), x, atol=1e-6).any() for x in few)
    assert few_seen is (policy == "simulation")


@pytest.mark.parametrize("step", ["begin", "round", "conclude"])
def test_refusals_do_not_say_that_somebody_is_extreme(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes and units under which an event that is far out has no likelihood, or is no number.

    A refused question is not remembered, so it could be asked with any line. Whether an event lies
    beyond it must not decide: the site answers in both cases, or refuses in both.
    """
    monkeypatch.setattr(at_rows, "drawing_seed", lambda *_: 5)
    outcomes = []
    nothing = relayed(np.zeros((K, packed_size(3, 2))), AGGREGATE)
    for size in (1.0, 3.0 if step == "round" else 1e6):
        frame = table()
        frame.loc[:5, "x1"] *= size
        said = []

        villain = Villain(frame, holdout=0.2, start="local").open()
        villain.offer()
        if step == "begin":
            for unit in ((0.0, 1e-30), (1e30, 1.0), (0.0, 1e-303), (0.0, 1e-320), (1e305, 1e-3)):
                said.append(answered(villain.twin().begin, *unit))
        villain.begin()
        for weight in (1.0, 1e3, 1e300) if step == "round" else ():
            for noise in (1e-300, 1e-3, *np.geomspace(2e3, 2e5, 12)):
                odd = {"used": 0, "weight": weight, "decay": 1.0, "totals": nothing}
                odd["sigma2"] = relayed(noise, AGGREGATE)
                villain.round = 0
                said.append(answered(villain.classes, [0.0, 1.0], **odd))
        if step == "conclude":
            for noise, height in ((1e-300, 1e150), (1e-3, 1e3), (1e-10, 1e100), (1e-305, 1.0)):
                small = relayed(noise, AGGREGATE)
                said.append(answered(villain.twin().conclude, [0.0, height], sigma2=small))
        outcomes.append(said)
    assert len(outcomes[0]) >= 4
    assert outcomes[0] == outcomes[1]


def answered(ask: Any, *given: Any, **more: Any) -> bool:
    try:
        ask(*given, **more)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("centre", "scale"), [(0.0, 1e-308), (0.0, 1e-200), (0.0, 1e200), (1e300, 1.0), (-1e31, 1.0)]
)
def test_units_in_which_rows_may_be_no_numbers(centre: float, scale: float) -> None:
    for step in ("standardise", "begin"):
        villain = Villain(table()).open()
        if step == "standardise":
            message = Scale(
                own=False,
                fill=relayed(np.zeros(1), AGGREGATE),
                centre=relayed(np.full(1, centre), AGGREGATE),
                scale=relayed(np.full(1, scale), AGGREGATE),
            )

            def ask(v: Villain = villain, m: Any = message) -> Any:
                v.ask("standardise.apply", m)
                return v.offer()
        else:
            villain.offer()

            def ask(v: Villain = villain, m: Any = None) -> Any:
                return v.begin(centre, scale)

        refusal(ask)


# --------------------------------------------------------------------------- held-out events


def isolated(policy: str, height: float, seed: int = 0) -> tuple[float, float, float]:
    """Mean held-out response of one entity: as a figure tells it, the truth; the spread of all."""
    frame = table(n_entities=80, per=8, seed=seed)
    frame.loc[frame["entity"] == "e001", "y"] -= 1.4  # only one is near the class
    villain = Villain(frame, policy, holdout=0.2).open()
    villain.offer()
    villain.begin()
    events_ = at_rows.events_of
    found: dict[str, Any] = {}

    def keep(*given: Any) -> Any:
        found["events"] = events_(*given)
        return found["events"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_site, "events_of", keep)
        figures = villain.conclude([0.0, height])
    held, y = found["events"].held, frame["y"].to_numpy()
    mine = held & (frame["entity"] == "e000").to_numpy()
    n, own, squares = held.sum(), mine.sum(), float((y[held] ** 2).sum())
    assert own < 10 <= n
    if not own:
        return np.nan, np.nan, 1.0
    # Squared errors around the class are those around zero and height^2 - 2 height y for each.
    guess = (own * height**2 - (n * figures[2] - squares)) / (2 * height * own)
    return float(guess), float(y[mine].mean()), float(np.sqrt(squares / n))


@pytest.mark.parametrize("height", [2.9, 3.0, 3.3, 3.5])
def test_one_held_out_entity_in_a_class_of_its_own(height: float) -> None:
    """The attacker knows even the others' sum of squares, as from runs with and without holdout.

    The class's figure is then about the entity alone, and is rounded to what being in the class
    makes of a response that is unknown by half the spread s of all: to half of it in either
    direction, h s / 4 of the 2 h y that y makes of it. So y is known to s / 8 at best.
    """
    guess, truth, _ = isolated("simulation", height)
    assert guess == pytest.approx(truth, abs=1e-6)
    for policy in PROTECTING:
        found = np.array([isolated(policy, height, seed) for seed in range(16)])
        known = np.isfinite(found).all(axis=1)
        errors = abs(found[known, 0] - found[known, 1]) / found[known, 2]
        # Uniform within an eighth at least: a sixteenth in the mean, less three standard errors
        # of .036 / sqrt(n).
        assert known.sum() >= 6
        assert errors.mean() > 1 / 16 - 3 * 0.036 / np.sqrt(known.sum()), errors


def test_held_out_events_are_the_same_whatever_is_asked() -> None:
    """Other shares, other columns, other seeds: one set, so that no two sets differ by few."""
    frame = table()
    frame["x2"] = np.random.default_rng(9).normal(size=len(frame))
    wide = dataclasses.replace(COLUMNS, features=("x1", "x2"))
    frame["ward"] = np.where(np.arange(len(frame)) % 12 < 6, "u", "v")  # of whole entities
    frame["x3"] = frame["x1"] * 3.0
    scaled = dataclasses.replace(COLUMNS, features=("x3",))
    offers = {
        share: Villain(frame, holdout=share).open().offer()[0]
        for share in (0.0, 0.05, 0.2, 0.3, 0.5)
    }
    np.testing.assert_array_equal(offers[0.05], offers[0.2])
    np.testing.assert_array_equal(offers[0.3], offers[0.5])
    assert offers[0.2][0] - offers[0.3][0] >= 10
    n_held = offers[0.0][0] - offers[0.2][0]
    assert n_held >= 10
    agents = dataclasses.replace(COLUMNS, agent="ward")
    by_ward = Villain(frame, holdout=0.2, columns=agents).open().offer()[0]
    np.testing.assert_array_equal(by_ward[[0, 2, 5]].round(9), offers[0.2][[0, 2, 5]].round(9))
    other = Villain(frame, holdout=0.2, columns=wide).open().offer()[0]
    third = Villain(frame, holdout=0.2, columns=scaled).open().offer()[0]
    y = other[[0, 3, 9]]  # events, sums of y and of its squares
    np.testing.assert_array_equal(offers[0.2][[0, 2, 5]], y)
    np.testing.assert_array_equal(offers[0.2][[0, 2, 5]], third[[0, 2, 5]])


@pytest.mark.parametrize(("ones", "held"), [(1, False), (30, True)])
def test_held_out_events_could_leave_by_themselves(ones: int, held: bool) -> None:
    """Runs with and without held-out events differ by their sums: a single 1 among them shows."""
    frame = table()
    frame["x1"] = 0.0
    n = [Villain(frame, holdout=h).open().offer()[0][0] for h in (0.0, 0.2)]
    assert n[0] - n[1] >= 10, "what is held out does not depend on the features"
    villain = Villain(frame, holdout=0.2).open()
    found: list[Any] = []
    events_ = at_rows.events_of
    with pytest.MonkeyPatch.context() as patch:

        def keep(*given: Any) -> Any:
            found.append(events_(*given))
            return found[-1]

        patch.setattr(at_site, "events_of", keep)
        villain.offer()
    out = np.flatnonzero(found[0].held)
    frame.loc[out[:ones], "x1"] = 1.0
    frame.loc[np.flatnonzero(~found[0].held)[:50], "x1"] = 1.0
    n = [Villain(frame, holdout=h).open().offer()[0][0] for h in (0.0, 0.2)]
    assert bool(n[0] > n[1]) is held


# --------------------------------------------------------------------------- order of questions


def refusal(ask: Any) -> str:
    with pytest.raises((Refused, WireError)) as refused:  # what no message holds is not encoded
        ask()
    reason = str(refused.value)
    assert "\n" not in reason and "Traceback" not in reason
    assert "e00" not in reason
    return reason


def test_questions_are_answered_once() -> None:
    villain = Villain(table()).open()
    villain.offer()
    after = villain.last
    assert "once" in refusal(lambda: villain.offer(settings=settings(holdout=0.2)))
    assert "once" in refusal(lambda: villain.offer(settings=settings(n_cells=9)))
    villain.begin()
    assert "once" in refusal(lambda: villain.begin(centre=1.0))
    villain.last = after
    assert "once" in refusal(lambda: villain.begin(scale=2.0))
    villain.last = (villain.asked, 1)


def test_conclusions_are_drawn_once() -> None:
    villain = Villain(table(), holdout=0.2).open()
    villain.offer()
    villain.begin()
    before = villain.last
    villain.conclude([0.0, 3.0])
    villain.last = before
    assert "once" in refusal(lambda: villain.conclude([0.0, 2.0]))


@pytest.mark.parametrize("step", ["begin", "classes", "conclude", "curve"])
@pytest.mark.parametrize("ready", ["opened", "offered"])
def test_questions_out_of_order(step: str, ready: str) -> None:
    villain = Villain(table()).open()
    if ready == "offered":
        villain.offer()
        if step == "begin":
            return
    asked = {
        "begin": villain.begin,
        "classes": lambda: villain.classes([0.0, 1.0]),
        "conclude": lambda: villain.conclude([0.0, 1.0]),
        "curve": villain.curve,
    }
    refusal(asked[step])


# ------------------------------------------------------------------------- squares of the columns


def told_with_squares(
    frame: pd.DataFrame, policy: str | Policy, columns: Columns = COLUMNS
) -> Array:
    """What a site tells of 1, x, x^2 and y, in the units of the table."""
    villain = Villain(frame, policy, columns=columns).open()
    villain.offer()
    villain.begin()
    return villain.curve()


def with_values(x: Array, seed: int = 0) -> pd.DataFrame:
    frame = table(seed=seed)
    return frame.assign(x1=np.random.default_rng(seed).permutation(x))


def of_few() -> pd.DataFrame:
    """Three values, the last of which two events have: x (x - 1) is 0 but for them."""
    return with_values(np.repeat([0.0, 1.0, 2.0], [180, 178, 2]))


def beside_two_values() -> pd.DataFrame:
    """Many at 0 and at 1: (x (x - 1))^2 is 0 but for three events."""
    return with_values(np.r_[np.repeat([0.0, 1.0], [180, 177]), 0.3, 0.6, 1.7])


def five_values() -> pd.DataFrame:
    """Five sums of powers tell five counts."""
    return with_values(np.repeat(np.arange(5.0), [100, 100, 80, 77, 3]))


def between_two_crowds() -> pd.DataFrame:
    """One event between two crowds, about whose middles it has most of a product of squares."""
    near = np.random.default_rng(1).normal(0, 1e-3, size=359)
    return with_values(np.r_[near + np.repeat([-1.0, 1.0], [180, 179]), 0.0])


def off_the_curve() -> pd.DataFrame:
    """All but one event are on a curve, so the square of y - x^2 is that event's."""
    rng = np.random.default_rng(2)
    frame = with_values(rng.normal(size=360))
    off = np.r_[0.5, rng.normal(0, 1e-3, size=359)]
    return frame.assign(y=frame["x1"] ** 2 + off)


def of_one_entity() -> pd.DataFrame:
    """Twelve events of one entity have a value that no other has."""
    frame = with_values(np.repeat([0.0, 1.0], 180)).assign(
        entity=lambda made: made["entity"].where(made["entity"] != "e017", "e016")
    )
    return frame.assign(x1=frame["x1"].mask(frame["entity"] == "e016", 2.0))


FEW = [of_few, beside_two_values, five_values, between_two_crowds, off_the_curve, of_one_entity]


@pytest.mark.parametrize("policy", PROTECTING)
@pytest.mark.parametrize("frame", FEW)
def test_squares_do_not_tell_of_few(frame: Any, policy: str) -> None:
    assert np.isnan(told_with_squares(frame(), policy)).all()


def test_weights_do_not_make_equal_values_of_a_column_others() -> None:
    levels = np.repeat([0.0, 1.1, 2.3, 3.7, 5.9], [100, 100, 80, 77, 3])
    frame = with_values(levels).assign(w=np.tile(np.arange(1.0, 6.0), 72))
    weighed = dataclasses.replace(COLUMNS, weight="w")
    assert np.isnan(told_with_squares(frame, "consortium", weighed)).all()


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_units_of_the_question_do_not_make_values_of_a_column_equal(scale: float) -> None:
    villain = Villain(five_values(), "consortium").open()
    villain.offer()
    villain.begin(scale=scale)
    assert np.isnan(villain.curve()).all()


def mixed_error(x: float | None, sigma2: float) -> float:
    """Squared error of the mixed model, where all events of one entity have x."""
    rng = np.random.default_rng(7)
    frame = with_values(rng.normal(size=360).round(2), 7)
    level, slope = np.repeat(rng.normal(size=(60, 2)), 6, axis=0).T
    frame = frame.assign(y=level + 3 * slope * frame["x1"] + 0.2 * rng.normal(size=360))
    if x is not None:
        frame.loc[frame["entity"] == "e016", "x1"] = x
    villain = Villain(frame, holdout=0.2, n_cells=4).open()
    villain.offer()
    villain.begin()
    means = np.array([[1e3, 0.0], [-1e3, 0.0], [0.0, 1e-5], [0.0, -1e-5]])
    means = means if sigma2 < 1e-9 else means / 1e3
    given = {"mean": relayed(means, MODEL), "sigma2": relayed(sigma2, AGGREGATE)}
    return float(villain.conclude([0.0] * 4, **given)[1])


@pytest.mark.parametrize(("sigma2", "told"), [(1e-3, True), (1e-28, False), (1e-30, False)])
def test_made_up_variances_do_not_make_all_follow_one_entity(sigma2: float, told: bool) -> None:
    """Of an entity with one value of x a system is singular: others were silent, or far off."""
    found = [mixed_error(x / 10, sigma2) for x in range(1, 21)]
    assert np.isfinite([mixed_error(None, sigma2), *found]).tolist() == [told] * 21


def test_sums_with_squares_leave_only_where_records_may() -> None:
    assert np.isnan(told_with_squares(table(), "strict")).all()
    assert np.isfinite(told_with_squares(table(), "consortium")).all()


@pytest.mark.parametrize(
    ("frame", "policy", "told"),
    [(table, "consortium", True), (table, "strict", False), (of_few, "consortium", False)],
)
def test_a_made_up_curve_tells_nothing_where_sums_with_squares_do_not_leave(
    frame: Any, policy: str, told: bool
) -> None:
    level = np.repeat(np.random.default_rng(5).normal(size=60), 6)
    noise = np.random.default_rng(6).normal(size=360)
    villain = Villain(frame().assign(y=level + noise), policy, holdout=0.2).open()
    villain.offer()
    villain.begin()
    figures = villain.conclude([0.0, 1.0])
    assert len(figures) == N_FIGURES + 4 * told
    assert np.isfinite(figures[:3]).all() and np.isfinite(figures[N_FIGURES:]).all()


def test_what_squares_would_tell_of_few() -> None:
    """Where nothing is protected, the same sums tell the response of two events, and a count."""
    frame = of_few()
    sums = told_with_squares(frame, "simulation")
    rare = frame["x1"] == 2
    assert sums[2, 3] - sums[1, 3] == pytest.approx(2 * frame["y"][rare].sum())
    of_five = told_with_squares(five_values(), "simulation")
    powers = np.r_[of_five[0, :3], of_five[1, 2], of_five[2, 2]]
    counts = np.linalg.solve(np.vander(np.arange(5.0), increasing=True).T, powers)
    assert counts == pytest.approx([100, 100, 80, 77, 3])


@pytest.mark.parametrize("seed", range(8))
def test_no_square_of_a_combination_rests_on_few(seed: int) -> None:
    """What is told, by the textbook: any polynomial with its zeros at values, any combination."""
    rng = np.random.default_rng(seed)
    kinds = [
        rng.normal(size=360),
        np.rint(rng.normal(0, 1 + seed / 4, size=360)),
        rng.standard_t(3, size=360),
        rng.choice(6, size=360, p=[0.4, 0.3, 0.15, 0.1, 0.03, 0.02]).astype(float),
    ]
    frame = with_values(kinds[seed % 4], seed)
    sums = told_with_squares(frame, "consortium")
    x, y = frame["x1"].to_numpy(), frame["y"].to_numpy()
    rows = np.c_[np.ones(360), x, x**2, y]
    values, counts = np.unique(x, return_counts=True)
    usual = values[np.argsort(-counts)][:8]
    beside = [
        int((~np.isin(x, zeros)).sum())
        for j in range(1, 5)
        for zeros in itertools.combinations(usual, j)
    ]
    # the largest share of one event in the square of any combination: its leverage
    q, _ = np.linalg.qr(rows)
    middle = np.sort(rows[:, 1:], axis=0)[(len(rows) - 1) // 2]
    fine = (
        all(n == 0 or n >= 10 for n in beside)
        and (q**2).sum(axis=1).max() <= 0.5
        and could_leave(np.c_[np.ones(360), rows[:, 1:] - middle], 60)
    )
    if np.isfinite(sums).all():
        assert fine
        assert sums == pytest.approx(rows.T @ rows)
    elif seed % 4 == 0:
        raise AssertionError("sums over many normal numbers leave")


def test_squares_are_of_the_events_of_the_run() -> None:
    villain = Villain(table(), "consortium").open()
    villain.offer()
    villain.begin()
    before = villain.last
    sums = villain.curve()
    assert sums[0, 0] == 360
    villain.last = before
    assert (villain.curve() == sums).all()
    other = Villain(table()).open()
    other.offer()
    other.begin()
    refusal(lambda: other.curve(settings=settings(holdout=0.2)))


ODD: dict[str, dict[str, Any]] = {
    "settings": {"settings": settings(n_cells=3)},
    "other start": {"settings": settings(start="local")},
    "settings that are none": {"settings": {}},
    "round 0": {"round": 0},
    "round -3": {"round": -3},
    "round 1001": {"round": 1001},
    "used later": {"used": 5},
    "used -2": {"used": -2},
    "growing": {"decay": 1.5},
    "shrinking below nothing": {"decay": -0.5},
    "negative weight": {"weight": -1.0},
    "endless weight": {"weight": float("inf")},
    "no number": {"weight": float("nan")},
    "alpha": {"alpha": 0.0},
    "beta": {"beta": float("nan")},
    "a beta of 0": {"betas": (1.0, 0.0)},
    "many betas": {"betas": tuple(range(1, 22))},
    "mapping beyond": {"mapping": np.array([0, 2])},
    "mapping before": {"mapping": np.array([0, -1])},
    "other totals": {"totals": relayed(np.zeros((3, packed_size(3, 2))), AGGREGATE)},
    "wide totals": {"totals": relayed(np.zeros((K, packed_size(4, 2))), AGGREGATE)},
    "no totals": {"totals": relayed(np.full((K, packed_size(3, 2)), np.inf), AGGREGATE)},
    "negative shares": {"base": relayed(np.array([-1.0, 2.0]), AGGREGATE)},
    "no noise": {"sigma2": relayed(0.0, AGGREGATE)},
    "negative prior": {"delta2": relayed(-1.0, AGGREGATE)},
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_rounds_are_refused_and_change_nothing(odd: str) -> None:
    villain = Villain(table()).open()
    villain.offer()
    villain.begin()
    villain.round = 1
    first = villain.last
    refusal(lambda: villain.classes([0.0, 1.0], **ODD[odd]))
    villain.round, villain.last = 0, first
    assert villain.classes([0.0, 1.0]).status.shape == (K,)


@pytest.mark.parametrize(
    ("centre", "scale"), [(np.nan, 1.0), (0.0, np.inf), (0.0, 0.0), (0.0, -1.0), (np.inf, 1.0)]
)
def test_odd_units_are_refused(centre: float, scale: float) -> None:
    villain = Villain(table()).open()
    villain.offer()
    refusal(lambda: villain.begin(centre=centre, scale=scale))


def test_columns_in_other_units_during_a_run_are_refused() -> None:
    """Far centres round features to few values: other sums of the same groups."""
    villain = Villain(table()).open(standardize="pooled")
    villain.offer()
    villain.begin()
    message = Scale(
        own=False,
        fill=relayed(np.zeros(1), AGGREGATE),
        centre=relayed(np.full(1, 1e17), AGGREGATE),
        scale=relayed(np.ones(1), AGGREGATE),
    )
    villain.ask("standardise.apply", message)
    home: Any = villain.site.home
    for ask in (villain.classes, villain.conclude):
        assert "contract" in refusal(lambda ask=ask: ask([0.0, 1.0]))  # type: ignore[misc]
        lines = home.lines
        assert any("another way" in str(line.get("reason")) for line in lines)


def test_rounds_are_counted_over_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_site, "MAX_ROUNDS", 4)
    villain = Villain(table()).open()
    villain.offer()
    villain.begin()
    begun = villain.last
    for _ in range(4):
        villain.classes([0.0, 1.0], after=begun)  # lines of questions do not start anew
    villain.round = 3
    refusal(lambda: villain.classes([0.0, 1.0], after=begun))
    free = Villain(table(), "simulation").open()
    free.offer()
    free.begin()
    for _ in range(6):
        free.classes([0.0, 1.0], round=1)


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_two_rounds_that_follow_the_same_answer(policy: str) -> None:
    """The gate remembers over all lines of questions: it repeats what would tell of few."""
    frame = table()
    levels = frame.groupby("entity")["y"].mean().sort_values(ascending=False)
    villain = Villain(frame, policy).open()
    villain.offer()
    kept = [told(villain.begin())]
    begun = villain.last
    for n in (20, 21, 22, 25):
        line = float(levels.iloc[n - 1 : n + 1].mean())
        said = villain.classes([line - 1.0, line + 1.0], after=begun)
        kept.append(told(said.sums.value))
    releases = np.concatenate(kept)
    alone = of_entity(frame, [str(levels.index[20])])
    differences = (releases[:, None] - releases[None]).reshape(-1, releases.shape[1])
    hit = np.isclose(differences, alone, rtol=1e-6, atol=1e-8).all(axis=1).any()
    assert hit == (policy == "simulation")


# --------------------------------------------------------------------------- several runs


def test_what_two_runs_tell_and_what_bounds_it() -> None:
    """Not prevented by the memberships, which are those of a run: two lines with one between.

    What bounds it: the number of runs on the data, and studies that the steward approves.
    """
    frame = table()
    levels = frame.groupby("entity")["y"].mean().sort_values(ascending=False)
    sums = []
    site: Site | None = None
    for n in (20, 21):
        villain = Villain(frame, Policy(max_runs=2), site=site, run=f"run-{n}").open()
        site = villain.site
        villain.offer()
        villain.begin()
        line = float(levels.iloc[n - 1 : n + 1].mean())
        sums.append(villain.classes([line - 1.0, line + 1.0]).sums.value[1, :-2])
    alone = of_entity(frame, [str(levels.index[20])])
    np.testing.assert_allclose(sums[1] - sums[0], alone, rtol=1e-6, atol=1e-9)
    third = Villain(frame, site=site, run="run-3")
    with pytest.raises(Refused):
        third.open()


# --------------------------------------------------------------------------- names and values


def planted() -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(4)
    n = 240
    x = {name: rng.normal(size=(n, 2)) for name in "abc"}
    roles = {
        name: {
            "target": x[name] @ np.array([1.0, -2.0]) + rng.normal(size=n),
            "target_name": "y",
            "entity": np.array([f"person-{i % 40}" for i in range(n)]),
            "agent": np.array([f"{name}-ward-{i % 40 // 8}" for i in range(n)]),
        }
        for name in x
    }
    made = federation_of(x, policy=GRANTED, roles=roles)
    columns = dataclasses.replace(made.columns, target="y", entity="entity", agent="agent")
    return dataclasses.replace(made, columns=columns), []


@pytest.mark.parametrize("start", ["local", "random"])
def test_no_planted_value_is_found_outside_its_site(start: str) -> None:
    found, canaries = planted()
    for name in "abc":
        data, some = plant(rows_of(found)[name])
        y = np.array(data.target)
        y[5] = y.mean() + 0.314159265358979 * y.std()
        data = dataclasses.replace(data, target=y)
        canaries += [*some, number_canary(f"{name} target", float(y[5]))]
        found = with_data(found, name, lambda _, data=data: data)  # type: ignore[misc]
    method = LatentClassRegression(
        n_classes=2, start=start, rounds=3, settle_rounds=2, average_rounds=2
    )
    run, seen = canaries_after(method, found, canaries)
    assert run is not None
    result: Any = run.result
    assert result.sites == ("a", "b", "c")
    assert len(canaries) >= 15
    assert seen == []


def test_no_value_of_an_event_leaves_a_strict_site() -> None:
    """Nor its square, nor a product of its cells."""
    tables = mixed_tables()
    found = scripted(federation(tables, "strict"))
    LatentClassRegression(n_classes=3, rounds=3, settle_rounds=2, average_rounds=2).run(
        found, seed=0
    )
    count = 0
    for (_, name), data in found.engine.replies.items():  # type: ignore[attr-defined]
        reply = Reply.from_bytes(data)
        if reply.status != "reply" or reply.step not in ("offer", "begin", "round", "conclude"):
            continue
        message = decode_message(reply.message)
        value = message.figures.value if reply.step == "conclude" else message.sums.value
        sent = np.ravel(value)[np.isfinite(np.ravel(value)) & (np.ravel(value) != 0)]
        count += len(sent)
        cells = tables[name][["x1", "x2", "y"]].to_numpy()
        known = np.r_[cells.ravel(), (cells[:, :, None] * cells[:, None, :]).ravel()]
        assert not np.isclose(sent[:, None], known[None, :], rtol=1e-9, atol=0).any()
    assert count > 300


@pytest.mark.parametrize("policy", [*PROTECTING, "simulation"])
def test_small_sites_tell_nothing(policy: str) -> None:
    """Two entities, or nine events: not a number but zeros and gaps."""
    for frame in (table(2, 30), table(3, 3)):
        villain = Villain(frame, policy).open()
        values = [villain.offer(), villain.begin()]
        reply = villain.classes([0.0, 2.0])
        values += [reply.sums.value, np.array([float(reply.moved.value)])]
        silent = not any(np.nan_to_num(v).any() for v in values)
        assert silent is (policy != "simulation")
        assert (reply.status == 0).all() or policy == "simulation"


def test_errors_are_this_packages_own() -> None:
    villain = Villain(table()).open()
    villain.offer()
    fair = plain(settings())
    odd = [settings(**{name: None}) for name in fair]
    odd += [settings(n_cells=n) for n in (0, True, 2.0, 10**6)]
    odd += [settings(holdout=share) for share in (-0.1, 0.6, math.nan, "all")]
    for settings_ in ("", (), {"n_cells": 2}, {**fair, "unheard": 1}, *odd):
        fresh = Villain(table()).open()
        try:
            fresh.offer(settings=settings_)
        except Refused as error:
            assert "Traceback" not in str(error)
        except ConsilienceError:
            pytest.fail("a refusal, not an error of the site")
        else:
            pytest.fail("settings that are none were answered")
