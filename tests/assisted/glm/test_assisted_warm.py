"""What stays in memory between steps spares work and changes no byte."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from consilience.assisted import phases
from consilience.assisted.glm import AssistedGLM, training
from consilience.assisted.kernels import glm
from consilience.assisted.kernels.joint_glm import SpanModel
from consilience.engines.local import LocalEngine
from consilience.protocol.method import SiteData
from consilience.protocol.phases import align_ids
from consilience.sites import site, step_runner
from consilience.wire.codec import pack
from tests.assisted.assisted import Parties, parties


def forget_everything(one: site.Site) -> None:
    """As in a process that has just started."""
    training._LEFT.clear()
    training._ROWS.clear()
    phases._KNOWN.clear()
    align_ids._PLACES.clear()
    step_runner._counted.cache_clear()
    one._prepared.clear()


def said(
    them: Parties, monkeypatch: pytest.MonkeyPatch, *, cold: bool, **settings: Any
) -> list[tuple[Any, ...]]:
    """Every reply of a run, record and file included, byte by byte."""
    found: list[tuple[Any, ...]] = []
    begin, finish = site.Site.begin, site.Site.finish

    def beginning(self: site.Site, data: bytes) -> Any:
        if cold:
            forget_everything(self)
        return begin(self, data)

    def finishing(self: site.Site, work: Any, outcome: Any) -> bytes:
        record = outcome.record
        files = {name: x() if callable(x) else x for name, x in outcome.files.items()}
        found.append((work.request.step, work.request.site, pack(record.__dict__), files))
        return finish(self, work, outcome)

    with monkeypatch.context() as patch:
        patch.setattr(site.Site, "begin", beginning)
        patch.setattr(site.Site, "finish", finishing)
        federation = them.federation(partner_key=b"k" * 32)
        assert isinstance(federation.engine, LocalEngine)
        for member in federation.engine.members.values():
            member._secret_seed = 5
        how = AssistedGLM(**{"response": "share", "exchange": "turns", **settings})
        federation.run(how, seed=3, run_id="one")
    return found


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({}, (3, 4)),
        ({}, (3, 2, 4)),
        ({"alpha": 0.01}, (3, 4)),
        ({"family": "poisson"}, (3, 4)),
        ({"acceleration": "anderson"}, (2, 3)),
        ({"alpha": 0.01, "l1_ratio": 0.5}, (2, 3)),
    ],
)
def test_a_process_that_forgets_says_the_same(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    them = parties(settings.get("family", "binomial"), n=400, sizes=sizes)
    kept = said(them, monkeypatch, cold=False, **settings)
    forgotten = said(them, monkeypatch, cold=True, **settings)
    assert [line[:2] for line in kept] == [line[:2] for line in forgotten]
    for one, other in zip(kept, forgotten, strict=True):
        assert one == other, one[:2]


def test_models_do_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    plain = SpanModel.__init__

    def counting(self: SpanModel, *args: Any, **more: Any) -> None:
        built.append(1)
        plain(self, *args, **more)

    monkeypatch.setattr(SpanModel, "__init__", counting)
    said(parties(n=400), monkeypatch, cold=False)
    assert len(built) == 1
    built.clear()
    said(parties(n=400), monkeypatch, cold=True)
    assert len(built) > 3


def some_data(n: int = 60) -> tuple[SiteData, np.ndarray]:
    rng = np.random.default_rng(0)
    data = SiteData(rng.normal(size=(n, 2)), ("x", "z"), np.arange(n))
    return data, (rng.uniform(size=n) < 0.5).astype(float)


def test_another_state_gets_a_model_of_its_own() -> None:
    data, y = some_data()
    fam = glm.family("binomial")
    made: list[SpanModel] = []

    def build(state: Any) -> SpanModel:
        made.append(SpanModel(data.features, y, fam, state=state))
        return made[-1]

    inputs = {"y": y, "alpha": 0.0}
    first = training.cached_model(data, inputs, None, lambda: build(None))
    state = copy.deepcopy(first.to_state())
    training.leave(data, inputs, first)
    assert training.cached_model(data, inputs, state, lambda: build(state)) is first
    # It was taken out: whoever fails with it leaves nothing behind.
    second = training.cached_model(data, inputs, state, lambda: build(state))
    assert second is made[1]
    other = {**state, "eta": np.nextafter(state["eta"], 9.0)}
    for asked, known in (
        ({**inputs, "y": 1 - y}, state),
        ({**inputs, "alpha": 0.1}, state),
        (inputs, other),
    ):
        training.leave(data, inputs, second)
        n = len(made)
        assert training.cached_model(data, asked, known, lambda s=known: build(s)) is made[n]
    training.leave(data, inputs, second)
    twin = SiteData(data.features, data.feature_names, data.rows)
    assert training.cached_model(twin, inputs, state, lambda: build(state)) is not second
    training._LEFT.clear()


def test_the_same_is_the_same_to_the_bit() -> None:
    x = np.array([0.0, np.nan, 1.0])
    assert training.same({"a": x, "b": (1, "x")}, {"a": x.copy(), "b": (1, "x")})
    assert not training.same({"a": x}, {"a": np.array([-0.0, np.nan, 1.0])})
    assert not training.same({"a": x}, {"a": x.astype(np.float32)})
    assert not training.same({"a": x}, {"a": x, "b": x})
    assert not training.same({"a": x}, {"a": x[:2]})
    assert not training.same({"a": 1}, {"a": 1.0})
