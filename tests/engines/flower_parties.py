"""Keys, sites and desks of a small federation over a SuperLink in this process."""

from __future__ import annotations

from typing import Any

from consilience.engines.base import Arrival
from consilience.engines.federation import Federation
from consilience.engines.flower import Desk, FlowerEngine
from consilience.engines.local import LocalEngine
from consilience.engines.signed import Place
from consilience.sites.site import Site
from consilience.sites.site_store import SiteStore
from consilience.wire.envelope import Request
from consilience.wire.signing import SigningKey
from tests.engines.fake_link import FakeNode, FakeSuperLink, Trouble
from tests.faults.cases import CASES, SITES, Case, loader
from tests.granted import EVERYTHING


class Parties:
    """A coordinator, two sites, and what both ends tell."""

    def __init__(
        self, trouble: Trouble | None = None, homes: dict[str, SiteStore] | None = None
    ) -> None:
        self.server = FakeSuperLink(trouble)
        self.clock = self.server.clock
        self.coordinator = SigningKey.generate()
        self.keys = {name: SigningKey.generate() for name in SITES}
        self.sites = {
            name: Site(name, loader(name), policy=EVERYTHING, home=(homes or {}).get(name))
            for name in SITES
        }
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.notes: list[tuple[str, dict[str, Any]]] = []

    def desk(self, name: str, *trusted: Any, **settings: Any) -> Desk:
        def note(kind: str, facts: dict[str, Any]) -> None:
            self.events.append((name, kind, facts))

        listed = trusted or (self.coordinator.public,)
        given = {"on_event": note, **settings}
        return Desk(self.sites[name], self.keys[name], listed, **given)

    def connect(self, *names: str) -> list[FakeNode]:
        return [self.server.connect(self.desk(name).handle) for name in names or SITES]

    def engine(self, **settings: Any) -> FlowerEngine:
        public = {name: key.public for name, key in self.keys.items()}
        given = {
            "clock": self.clock,
            "on_note": lambda kind, facts: self.notes.append((kind, facts)),
            **settings,
        }
        return FlowerEngine(self.server.open, SITES, self.coordinator, public, **given)

    def federation(self, case: Case = CASES["mean-and-sd"], **settings: Any) -> Federation:
        engine = settings.pop("engine", None) or self.engine()
        return Federation(engine, case.columns, case.preparation, **settings)

    def run(self, name: str = "mean-and-sd", **settings: Any) -> Any:
        case = CASES[name]
        return self.federation(case, **settings).run(case.method(), seed=11, run_id="run")

    def ask(
        self, *, run: str = "r1", round_: int = 1, attempt: int = 1, site: str = SITES[0]
    ) -> tuple[Place, bytes]:
        """An ask of a step that every site refuses: enough where only the way counts."""
        body = Request(
            run, "s", "mean-and-sd", 1, "0", round_, attempt, 0, 0, "sums", site, 1, b""
        ).to_bytes()
        return Place(run, round_, attempt, site), body

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [facts for said, facts in self.notes if said == kind]


def here(name: str = "mean-and-sd") -> Any:
    """The same run in one process."""
    case, sites = CASES[name], [Site(s, loader(s), policy=EVERYTHING) for s in SITES]
    return Federation(LocalEngine(sites), case.columns, case.preparation).run(
        case.method(), seed=11, run_id="run"
    )


def collect(engine: FlowerEngine, *sites: str, deadline: float, wait: str = "all") -> list[Arrival]:
    keys = frozenset((1, site) for site in sites)
    return engine.collect(keys, wait=wait, deadline=deadline)
