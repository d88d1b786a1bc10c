"""What the totals of latent class regression hold of an entity, whoever was there and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.engines.base import Key
from consilience.latent_regression.protocol import coordinator as at_coordinator
from consilience.latent_regression.protocol.messages import Settings, unpacked
from consilience.latent_regression.protocol.site import _Here, _where_we_stand
from consilience.testing.fakes import Action, scripted
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply
from tests.latent_regression.protocol.latent import by_site, events, federation, study, watching
from tests.rotation import by_turns

FIRST = 3
"""Questions of the exchange before the first round: opening, offer, begin."""
GROUPS = {"four": [2, 2, 2, 2], "unequal": [1, 4, 1, 2]}
CACHES = {"rescaled": False, "cached": True}
SCRIPTS: dict[str, dict[tuple[int, str], Action]] = {
    "nothing lost": {},
    "replies lost": {(FIRST + r, "site-1"): "late" for r in (1, 2, 4)},
    "away": {(FIRST + r, "site-0"): "returns" for r in (2, 3, 5)},
    "away and lost around the merger": {
        **{(FIRST + r, "site-2"): "late" for r in (3, 4)},
        **{(FIRST + r, "site-1"): "returns" for r in (3, 4)},
    },
    "lost from the merger on": {(FIRST + r, "site-1"): "late" for r in range(4, 8)},
    "not there at the beginning": {(FIRST, "site-3"): "late"},
}


class BruteForce:
    """Every reply that came, with what is left of it, added up anew in each round."""

    def __init__(self, n_cells: int, rate: float, cache: bool) -> None:
        self.n_cells, self.rate, self.cache = n_cells, rate, cache
        self.parts: list[dict[str, Any]] = []
        self.last: dict[str, dict[str, Any]] = {}

    def hear(self, replies: dict[str, Any], share: dict[str, float], *, first: bool) -> None:
        """`replies`: class of each entity and sums by site; `share`: events of every site."""
        for part in self.parts:
            part["weight"] *= 1.0 - self.rate
        for site, reply in replies.items():
            self.last[site] = {"site": site, "weight": 0.0, **reply}
            self.parts.append(self.last[site])
        standing = self.last if self.cache else {s: self.last[s] for s in replies}
        scale = sum(share.values()) / sum(share[s] for s in standing)
        for part in standing.values():
            part["weight"] += (1.0 if first else self.rate) * scale

    def merge(self, mapping: np.ndarray) -> None:
        for part in self.parts:
            moved = np.zeros_like(part["sums"])
            np.add.at(moved, mapping, part["sums"])
            part["sums"] = moved
            part["released"] = np.where(
                part["released"] >= 0, mapping[np.maximum(part["released"], 0)], -1
            )

    def totals(self) -> np.ndarray:
        return sum(part["weight"] * part["sums"] for part in self.parts)

    def own(self, site: str, n_entities: int) -> np.ndarray:
        weights = np.zeros((n_entities, self.n_cells))
        for part in self.parts:
            if part["site"] == site:
                used = np.flatnonzero(part["released"] >= 0)
                weights[used, part["released"][used]] += part["weight"]
        return weights


@by_turns(SCRIPTS, CACHES, GROUPS, names=("script", "server_cache", "groups"))
def test_own_weights(
    script: dict[tuple[int, str], Action],
    server_cache: bool,
    groups: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(
        by_site(events(sum(groups)), groups), script, server_cache, 1.0, "simulation", monkeypatch
    )


@pytest.mark.parametrize("server_cache", CACHES.values(), ids=CACHES)
def test_own_weights_where_few_are_asked(
    server_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: Any = {(FIRST + r, "site-1"): "late" for r in (1, 3, 4, 6)}
    tables = by_site(events(8), [1] * 8)
    check(tables, script, server_cache, 0.4, "simulation", monkeypatch)


@pytest.mark.parametrize("script", SCRIPTS)
def test_own_weights_where_sums_are_withheld(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a strict policy entities are counted elsewhere than they were drawn, or nowhere."""
    tables = by_site(events(24, n_entities=6, n_events=8), [6] * 4)
    check(tables, SCRIPTS[script], False, 1.0, "strict", monkeypatch)


def check(
    tables: Any,
    script: dict[tuple[int, str], Action],
    server_cache: bool,
    participation: float,
    policy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare what sites take out, and what the coordinator holds, with the brute force."""
    mappings: list[np.ndarray] = []
    merge_down = at_coordinator.merge_down

    def spied(*given: Any, **settings: Any) -> Any:
        mapping, path = merge_down(*given, **settings)
        mappings.append(np.asarray(mapping))
        return mapping, path

    monkeypatch.setattr(at_coordinator, "merge_down", spied)
    seen = watching(monkeypatch, "begin", "round")
    method = study(
        server_cache=server_cache, participation=participation, adapt_rate=False, learning_rate=0.4
    )
    found = scripted(federation(tables, policy, quorum=2), script)
    method.run(found, seed=5)
    engine: Any = found.engine
    heard = {key for key in engine.replies if script.get(key) != "late"}
    share = {site: float(sums_of(engine, (FIRST - 1, site))[0, 0]) for site in found.engine.sites}
    # Who misses the beginning is not in the classes, and nobody stands for it.
    share = {site: n for site, n in share.items() if (FIRST, site) in heard}
    brute = BruteForce(4, 0.4, server_cache)
    brute.hear(answers_of(engine, seen, FIRST, heard), share, first=True)
    for r in range(1, 8):
        if r == 4:
            brute.merge(mappings[0])
        for step, site, message, after in seen:
            if step == "round" and message.round == r:
                totals, own = message.totals.value, after["answers"][-1]["own"]
                np.testing.assert_allclose(totals, brute.totals(), rtol=1e-9, atol=1e-9)
                wanted = brute.own(site, len(own))
                np.testing.assert_allclose(own, wanted, rtol=1e-9, atol=1e-12)
                if policy == "simulation":
                    others_are_sums_of_squares(totals, own, tables[site], after["scaling"])
        brute.hear(answers_of(engine, seen, FIRST + r, heard), share, first=False)
    assert len(mappings) == 1
    assert r == max(message.round for step, _, message, _ in seen if step == "round")


def others_are_sums_of_squares(
    totals: np.ndarray, own: np.ndarray, table: pd.DataFrame, scaling: np.ndarray
) -> None:
    """What is left of a class without any one of its entities could be sums of other events."""
    sums = unpacked(totals, 2, True)
    x = (table[["x1", "x2"]].to_numpy() - scaling[0, :-1]) / scaling[1, :-1]
    design = np.column_stack([np.ones(len(x)), x])
    order = table.drop_duplicates(["agent", "entity"]).sort_values("agent", kind="stable")
    assert len(order) == len(own)
    for e, (agent, entity) in enumerate(zip(order["agent"], order["entity"], strict=True)):
        mine = design[((table["agent"] == agent) & (table["entity"] == entity)).to_numpy()]
        left = sums.products - own[e][:, None, None] * (mine.T @ mine)
        least = np.linalg.eigvalsh(left).min(axis=1)
        assert (least > -1e-9 * np.maximum(sums.n, 1.0)).all()
        assert (sums.counts - own[e] > -1e-9).all()


def answers_of(engine: Any, seen: Any, key: int, heard: set[Key]) -> dict[str, dict[str, Any]]:
    """What the coordinator heard in a round, and where the sites counted their entities in it."""
    found = {}
    for step, site, message, after in seen:
        place = FIRST if step == "begin" else FIRST + message.round
        if place == key and (key, site) in heard:
            released, sums = after["answers"][-1]["released"], sums_of(engine, (key, site))
            # The gate has repeated nothing: entities are where the site believes them to be.
            sizes = np.bincount(released[released >= 0], minlength=len(sums))
            assert np.array_equal(sizes, sums[:, -2])
            found[site] = {"released": released, "sums": sums}
    return dict(sorted(found.items()))


def sums_of(engine: Any, key: Key) -> np.ndarray:
    """Sums in a reply as it left the site, gaps empty."""
    message = decode_message(Reply.from_bytes(engine.replies[key]).message)
    return np.nan_to_num(np.asarray(message.sums.value))


def test_who_misses_the_beginning_is_not_in_the_classes() -> None:
    """Nobody stands for it: classes rest on the others, with the errors of their events."""
    tables = by_site(events(12, n_entities=10), [2] * 6)
    script: Any = {(FIRST, f"site-{k}"): "returns" for k in range(3)}
    method = study(average_rounds=4)
    result = method.run(scripted(federation(tables, quorum=3), script), seed=1).result
    there = [tables[f"site-{k}"] for k in range(3, 6)]
    entities = sum(len(t.drop_duplicates(["agent", "entity"])) for t in there)
    assert result.class_sizes.sum() == pytest.approx(entities, rel=1e-9)
    assert result.class_events.sum() == pytest.approx(sum(map(len, there)), rel=1e-9)
    assert f"{entities} entities of 3 sites" in result.summary()
    assert "Not there at the beginning, and so not in the classes: site-0, site-1, site-2." in (
        result.remarks
    )


def test_one_site_is_asked_and_does_not_answer() -> None:
    """Of many sites few are asked in a round: that all of these are missing ends nothing."""
    tables = by_site(events(12, n_entities=10), [2] * 6)
    method = study(participation=1 / 6, rounds=4)
    plain: Any = scripted(federation(tables), {})
    method.run(plain, seed=1)
    asked: dict[int, list[str]] = {}
    for round_number, site in plain.engine.requests:
        asked.setdefault(round_number, []).append(site)
    alone = [(r, sites[0]) for r, sites in asked.items() if len(sites) == 1]
    assert len(alone) > 3
    script: Any = {alone[1]: "returns"}
    run = method.run(scripted(federation(tables, quorum=5), script), seed=1)
    nobody = np.flatnonzero(~run.result.reported.any(axis=1))
    assert nobody.tolist() == [alone[1][0] - FIRST]


def test_a_lost_reply_around_a_merger_tells_no_classes() -> None:
    """Whether its classes are those before or after the merger is not known at the site."""
    settings = Settings(3, "random", "exact", True, 0.0, 0.9)
    lost = {"round": 5, "labels": np.array([0, 1]), "released": np.array([0, 1]), "own": OWN}
    used = {**lost, "round": 4}
    message: Any = SimpleNamespace(used=4, decay=0.5, weight=0.5)
    here: Any = _Here(settings, SimpleNamespace(n_entities=2), OWN, None)
    state: Any = {"answers": [used, lost]}
    for mapping, wanted in ((np.arange(3), [0, 1]), (np.array([0, 0, 1]), [-1, -1])):
        message.mapping = mapping
        _, _, released = _where_we_stand(message, state, here)
        assert released.tolist() == wanted


OWN = np.zeros((2, 3))
