"""Messages at another place than theirs, and a server that delivers twice, change nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pytest

from consilience.engines.federation import Federation, Run
from consilience.engines.flower.handler import NOT_OURS, NOT_TRUSTED, Content, Delivered
from consilience.sites.site import Site
from consilience.wire.signing import SigningKey
from tests.engines.flower_parties import here
from tests.faults.cases import CASES, SITES, loader
from tests.granted import GRANTED

if TYPE_CHECKING:
    from consilience.engines.flower.grid import GridLink
    from tests.flower.deployment import Deployment

pytestmark = pytest.mark.flower

CASE = CASES["ensemble-clustering"]
NODES = {"ash": "ash", "birch-2": "birch"}
"""Sites of the case, and whose node key they take here."""


class Recorder:
    """A link that keeps what passes."""

    def __init__(self, link: GridLink) -> None:
        self._link = link
        self.asks: dict[str, tuple[int, Content]] = {}
        self.replies: dict[tuple[Any, ...], Content] = {}

    def nodes(self) -> tuple[int, ...]:
        return self._link.nodes()

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        sent = self._link.push(node, content, seconds=seconds)
        if content["kind"] == "ask":
            self.asks[sent] = (node, content)
        return sent

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        found = self._link.pull(ids)
        for one in found:
            if one.id in self.asks and one.content is not None:
                self.replies[place(self.asks[one.id][1])] = dict(one.content)  # type: ignore[arg-type]
        return found

    def close(self, *, well: bool) -> None:
        self._link.close(well=well)


class Twice(Recorder):
    """Hands every message to its node twice, and every answer to the coordinator twice."""

    def push(self, node: int, content: Content, *, seconds: float) -> str:
        self._link.push(node, content, seconds=seconds)
        return super().push(node, content, seconds=seconds)

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        return [one for one in super().pull(ids) for _ in range(2)]


class Swapping(Recorder):
    """Puts a reply of another place where one is awaited for the first time."""

    def __init__(self, link: GridLink, earlier: dict[tuple[Any, ...], Content]) -> None:
        super().__init__(link)
        self._earlier, self.swapped = earlier, 0
        self._seen: set[tuple[Any, ...]] = set()

    def pull(self, ids: Collection[str]) -> list[Delivered]:
        return [self._swap(one) for one in super().pull(ids)]

    def _swap(self, one: Delivered) -> Delivered:
        if one.id not in self.asks:
            return one
        own = place(self.asks[one.id][1])
        if own in self._seen:
            return one
        self._seen.add(own)
        run, round_, attempt, site = own
        other = next(name for name in SITES if name != site)
        # By turns: this place in another run, the round before, and the other site's reply.
        for wanted in (
            ("r0", round_, attempt, site),
            (run, round_ - 1, attempt, site),
            (run, round_, attempt, other),
        )[round_ % 3 :]:
            known = {**self._earlier, **self.replies}.get(wanted)
            if known is not None:
                self.swapped += 1
                return Delivered(one.id, known)
        return one


def place(content: Content) -> tuple[Any, ...]:
    return (content["run"], content["round"], content["attempt"], content["site"])


class Over:
    """Runs of a case over the deployment, through a wrapped link."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.sites = {name: Site(name, loader(name), policy=GRANTED) for name in SITES}
        self.keys = {name: SigningKey.load(deployment.site_keys(NODES[name])) for name in SITES}
        self.notes: list[tuple[str, dict[str, Any]]] = []

    def nodes(self) -> Any:
        from contextlib import ExitStack

        from consilience.engines.flower import Desk

        stack = ExitStack()
        for name, site in self.sites.items():
            desk = Desk(site, self.keys[name], [self.deployment.public["coordinator"]])
            under = Site(NODES[name], loader(name))
            stack.enter_context(self.deployment.nodes(under, handle=desk.handle))
        return stack

    def run(self, link: Any, run_id: str) -> Run:
        from consilience.engines.flower import FlowerEngine

        public = {name: key.public for name, key in self.keys.items()}
        engine = FlowerEngine(
            lambda: link,
            SITES,
            SigningKey.load(self.deployment.own),
            public,
            poll=0.05,
            on_note=lambda kind, facts: self.notes.append((kind, facts)),
        )
        federation = Federation(engine, CASE.columns, CASE.preparation, deadline=120.0)
        try:
            return federation.run(CASE.method(), seed=11, run_id=run_id)
        finally:
            engine.close()


def test_a_server_that_delivers_twice(deployment: Deployment) -> None:
    over = Over(deployment)
    with over.nodes():
        run = over.run(Twice(deployment.open_link()), "r1")
    assert run.result.to_files() == here("ensemble-clustering").result.to_files()
    assert not [note for note in over.notes if note[0] != "double"], over.notes


def test_replies_of_another_place_are_not_accepted(deployment: Deployment) -> None:
    over = Over(deployment)
    with over.nodes():
        recorder = Recorder(deployment.open_link())
        over.run(recorder, "r0")
        swapping = Swapping(deployment.open_link(), recorder.replies)
        run = over.run(swapping, "r1")
    assert swapping.swapped >= 4
    assert len([kind for kind, _ in over.notes if kind == "again"]) == swapping.swapped
    assert run.result.to_files() == here("ensemble-clustering").result.to_files()


def test_asks_of_another_place_are_not_answered(deployment: Deployment) -> None:
    """A recorded ask is answered again by the same bytes; at any other place it is set aside."""
    from tests.flower.deployment import until

    over = Over(deployment)
    with over.nodes():
        recorder = Recorder(deployment.open_link())
        over.run(recorder, "r0")
        asks = {place(content): (node, content) for node, content in recorder.asks.values()}
        node, ask = asks["r0", 2, 1, "ash"]
        other_node, _ = asks["r0", 2, 1, "birch-2"]
        link = deployment.open_link()

        def answer(to: int, **changes: Any) -> dict[str, object]:
            until(lambda: to in link.nodes(), 30, "the node")
            sent = link.push(to, {**ask, **changes}, seconds=60.0)
            (found,) = until(lambda: link.pull([sent]), 60, "an answer")
            return dict(found.content)

        try:
            assert answer(node) == recorder.replies["r0", 2, 1, "ash"]
            stranger = SigningKey.generate()
            body = b"whatever it is"
            context = _ask_context(ask, stranger.public)
            strangers = stranger.seal(context, body, readers=[stranger.public])
            for to, changes, reason in (
                (node, {"run": "r9"}, NOT_TRUSTED),
                (node, {"round": 3}, NOT_TRUSTED),
                (node, {"attempt": 2}, NOT_TRUSTED),
                (other_node, {}, NOT_OURS),
                (other_node, {"site": "birch-2"}, NOT_TRUSTED),
                (node, {"envelope": stranger.seal(context, body)}, NOT_OURS),
                (node, {"envelope": strangers}, NOT_TRUSTED),
                (node, {"run": "../r0"}, NOT_OURS),
                (node, {"kind": "hello", "query": "0" * 32}, NOT_OURS),
            ):
                assert answer(to, **changes) == {"status": "ignored", "reason": reason}, changes
        finally:
            link.close(well=True)


def _ask_context(ask: Content, public: str) -> Any:
    from consilience.engines.signed import Place

    return Place(*place(ask)).context("ask", public, "")
