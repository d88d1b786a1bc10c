"""Keys that follow one another through the folder engine: runs go on, and nobody else joins."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.folder import FolderEngine, Place, watch
from consilience.engines.folder.site import Watcher
from consilience.engines.local import LocalEngine
from consilience.engines.study_run import folder_engine, key_remarks
from consilience.exceptions import QuorumError, RunError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import get_method
from consilience.sites.site import APPROVED, Site
from consilience.sites.site_store import DiskStore
from consilience.sites.study import SiteFile, Study
from consilience.wire.envelope import Request
from consilience.wire.keys import KeyList, today
from consilience.wire.signing import SigningKey
from tests.faults.cases import CASES, SITES, loader

POLL = 0.02
YESTERDAY = (today() - timedelta(days=1)).isoformat()
TOMORROW = (today() + timedelta(days=1)).isoformat()


def follows(new: SigningKey, old: SigningKey) -> dict[str, str]:
    return {"key": new.public, "endorsement": old.endorse(new.public)}


class Parties:
    """Keys, homes and watching threads around one folder; any key may be another one."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "shared"
        self.folder.mkdir()
        self.old, self.new, self.stranger = (SigningKey.generate() for _ in range(3))
        self.keys = {name: SigningKey.generate() for name in SITES}
        self.sites = {s: Site(s, loader(s), home=DiskStore(root / f"home-{s}")) for s in SITES}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def engine(self, key: SigningKey | None = None, **listed: Any) -> FolderEngine:
        public: dict[str, Any] = {name: key.public for name, key in self.keys.items()}
        lists = {site: KeyList.of(listed.get(site, public[site])) for site in SITES}
        return FolderEngine(self.folder, SITES, key or self.old, lists, POLL, keep_files=True)

    def watcher(self, site: str, trusted: Sequence[Any], key: SigningKey | None = None) -> Watcher:
        def note(kind: str, facts: dict[str, Any]) -> None:
            self.events.append((kind, facts))

        return Watcher(self.sites[site], self.folder, key or self.keys[site], trusted, note)

    @contextmanager
    def watching(self, trusted: Sequence[Any], **keys: SigningKey) -> Iterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(
                target=watch,
                args=(self.sites[name], self.folder),
                kwargs={
                    "key": keys.get(name, self.keys[name]),
                    "coordinators": trusted,
                    "stop": stop,
                    "poll": POLL,
                },
            )
            for name in SITES
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def ask(self, engine: FolderEngine, round_: int = 1) -> Place:
        body = Request(
            "r1", "s", "mean-and-sd", 1, "0", round_, 1, 0, 0, "sums", SITES[0], 1, b""
        ).to_bytes()
        engine.open_run("r1")
        engine.send({(round_, SITES[0]): body})
        return Place("r1", round_, 1, SITES[0])

    def reason(self) -> str:
        kind, facts = self.events.pop()
        assert kind == "ignored"
        return str(facts["reason"])


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def outcome(engine: FolderEngine, site: str = SITES[0], round_: int = 1) -> Any:
    (arrival,) = engine.collect(frozenset({(round_, site)}), wait="all", deadline=0.0)
    return arrival


# ------------------------------------------------------------------ a site's key


def test_replies_under_any_listed_key_count(parties: Parties) -> None:
    site, old = SITES[0], parties.keys[SITES[0]]
    trusted = [parties.old.public]
    for key in (old, parties.new):
        engine = parties.engine(**{site: [old.public, follows(parties.new, old)]})
        parties.ask(engine)
        assert parties.watcher(site, trusted, key).once() == 1, "its reply under the other key"
        assert outcome(engine).data is not None
    assert parties.sites[site].computed == 1


def local_result() -> Any:
    sites = [Site(s, loader(s)) for s in SITES]
    federation = Federation(LocalEngine(sites), CASES["mean-and-sd"].columns)
    return federation.run(MeanAndSD(), seed=1).result


def test_a_run_begun_under_the_old_key_goes_on_under_the_new_one(parties: Parties) -> None:
    """In the middle of a run one site begins to sign with a key that is not listed yet."""
    columns, site = CASES["mean-and-sd"].columns, SITES[1]
    old, out = parties.keys[site], parties.root / "run"
    trusted = [parties.old.public]

    class Rotating(FolderEngine):
        """Says when the second round is asked: then the site changes its key."""

        def send(self, requests: Any) -> None:
            if any(key[0] > 1 for key in requests):
                rotated.set()
            super().send(requests)

        def collect(self, keys: Any, *, wait: str, deadline: float) -> Any:
            """Patient until then, and not for long afterwards."""
            deadline = 4.0 if rotated.is_set() else deadline
            return super().collect(keys, wait=wait, deadline=deadline)

    rotated = threading.Event()
    lists = {name: KeyList.of(key.public) for name, key in parties.keys.items()}
    engine = Rotating(parties.folder, SITES, parties.old, lists, POLL, keep_files=True)
    first = Federation(engine, columns, deadline=60.0)
    stop = threading.Event()

    def serve() -> None:
        """Under the old key until the second round is asked, then under the new one."""
        while not stop.is_set():
            key = parties.new if rotated.is_set() else old
            parties.watcher(site, trusted, key).once()
            parties.watcher(SITES[0], trusted).once()
            stop.wait(POLL)

    server = threading.Thread(target=serve)
    server.start()
    try:
        with pytest.raises(QuorumError, match="not signed by birch-2"):
            first.run(MeanAndSD(), seed=1, out=out)
        listed = {site: [old.public, follows(parties.new, old)]}
        later = Federation(parties.engine(**listed), columns, deadline=60.0)
        run = later.run(MeanAndSD(), out=out, resume=True, retry_refused=True)
    finally:
        stop.set()
        server.join()
    assert run.result.to_files() == local_result().to_files()


def test_a_key_that_has_ended_is_refused_by_name(parties: Parties) -> None:
    site, old = SITES[0], parties.keys[SITES[0]]
    engine = parties.engine(
        **{site: [{"key": old.public, "until": YESTERDAY}, follows(parties.new, old)]}
    )
    parties.ask(engine)
    assert parties.watcher(site, [parties.old.public]).once() == 0
    assert "it is not sealed for this party's key" in parties.reason()
    assert parties.sites[site].computed == 0, "a key that has ended does not read the ask either"
    arrival = outcome(engine)
    assert arrival.data is None
    assert f"the key of site 'ash' has ended on {YESTERDAY}" in arrival.reason
    assert "--rotate" in arrival.reason and "[sites.keys]" in arrival.reason
    with pytest.raises(StudyError, match="every key of site 'ash' has ended"):
        parties.engine(**{site: {"key": old.public, "until": YESTERDAY}})
    parties.engine(**{site: {"key": old.public, "until": today().isoformat()}})


def test_no_rotation_can_be_forced_from_outside(parties: Parties) -> None:
    """Keys that the file does not list are nobody's, endorsed or not, whatever lies about."""
    site, old = SITES[0], parties.keys[SITES[0]]
    follower = follows(parties.new, old)
    strangers = follows(parties.stranger, parties.new)
    trusted = [parties.old.public]
    for key in (parties.new, parties.stranger, parties.keys[SITES[1]], parties.old):
        engine = parties.engine()
        place = parties.ask(engine)
        run = parties.folder / "runs" / "r1"
        for name in ("next", "keys.toml", "endorsements.txt"):
            for where in (parties.folder, run, run / "replies"):
                (where / name).write_text(f"{follower}\n{strangers}\n")
        reply = run / "replies" / place.file
        reply.unlink(missing_ok=True)
        parties.watcher(site, trusted, key).once()
        assert outcome(engine).data is None, "an unlisted key was believed"
        assert "not signed by ash" in engine.notes[-1]
        assert "add the new one to [sites.keys]" in engine.notes[-1], "what to do, by hand"
        assert engine._keys.publics(site) == (old.public,)
    # The other way: the same keys as coordinators.
    for key in (parties.new, parties.stranger, old):
        engine = parties.engine(key)
        parties.ask(engine)
        watcher = parties.watcher(site, trusted)
        assert watcher.once() == 0
        assert "no coordinator that this site trusts" in parties.reason()


# ------------------------------------------------------------------ a coordinator's key


def test_a_run_goes_on_under_the_coordinators_next_key(parties: Parties) -> None:
    engine = parties.engine()
    parties.ask(engine)
    site = SITES[0]
    assert parties.watcher(site, [parties.old.public]).once() == 1
    assert outcome(engine).data is not None

    after = parties.engine(parties.new)
    parties.ask(after, 2)
    for trusted, reason in (
        ([parties.old.public], "no coordinator that this site trusts"),
        ([parties.old.public, parties.new.public], "another coordinator began this run, or"),
        ([parties.new.public], "another coordinator began this run, or"),
        (
            [parties.old.public, {**follows(parties.new, parties.old), "until": YESTERDAY}],
            f"the coordinator's key has ended on {YESTERDAY}",
        ),
    ):
        assert parties.watcher(site, trusted).once() == 0
        assert reason in parties.reason()
    for trusted in (
        [parties.old.public, follows(parties.new, parties.old)],
        [[parties.old.public, parties.new.public]],
        [[{"key": parties.old.public, "until": YESTERDAY}, parties.new.public]],
    ):
        path = parties.folder / "runs" / "r1" / "replies" / "2-1-ash.msg"
        path.unlink(missing_ok=True)
        # Of the first round nothing is asked under the new key: its old ask may have ended.
        assert parties.watcher(site, trusted).once() == 1
    assert outcome(after, round_=2).data is not None


def test_an_open_question_is_put_again_under_the_next_key(parties: Parties) -> None:
    parties.ask(parties.engine())
    site, trusted = SITES[0], [[parties.old.public, parties.new.public]]
    watcher = parties.watcher(site, trusted)
    assert watcher.once() == 1
    after = parties.engine(parties.new)
    parties.ask(after)
    assert outcome(after).data is None, "the reply is to the old key"
    parties.ask(after)
    assert watcher.once() == 1
    assert outcome(after).data is not None
    assert parties.sites[site].computed == 1


def test_a_site_whose_coordinators_have_all_ended_does_not_watch(parties: Parties) -> None:
    ended = {"key": parties.old.public, "until": YESTERDAY}
    with pytest.raises(StudyError, match="every key of the coordinator has ended"):
        parties.watcher(SITES[0], [ended])
    parties.watcher(SITES[0], [ended, parties.new.public])


# ------------------------------------------------------------------ files and approvals


def write_study(parties: Parties, keys: str, coordinator: str = "") -> Study:
    path = parties.root / "study.toml"
    path.write_text(
        'name = "heights"\nmethod = "mean-and-sd"\n[data]\nfeatures = ["a", "b", "c"]\n'
        f'[sites]\nnames = ["ash", "birch-2"]\n[sites.keys]\n{keys}\n'
        f"[coordinator]\n{coordinator}\n"
    )
    return Study.load(path)


def toml(table: dict[str, str]) -> str:
    return "{ " + ", ".join(f'{name} = "{value}"' for name, value in table.items()) + " }"


def test_an_endorsed_key_leaves_the_hash_and_an_unendorsed_one_does_not(parties: Parties) -> None:
    old, new = parties.keys["ash"], parties.new
    birch = f'birch-2 = "{parties.keys["birch-2"].public}"'
    before = write_study(parties, f'ash = "{old.public}"\n{birch}', f'key = "{parties.old.public}"')
    entry = toml(follows(new, old))
    same = (
        f'["{old.public}"]',
        f'["{old.public}", {entry}]',
        f'[{{ key = "{old.public}", until = 2027-01-31 }}, {entry}]',
        f'{{ key = "{old.public}", until = "2027-01-31" }}',
    )
    for keys in same:
        after = write_study(parties, f"ash = {keys}\n{birch}", f'key = "{parties.old.public}"')
        assert after.hash() == before.hash(), keys
        assert after.canonical() == before.canonical()
    assert after.sites.keys["ash"].keys[0].until == date(2027, 1, 31)
    other = (f'"{new.public}"', f'["{old.public}", "{new.public}"]')
    hashes = {before.hash()}
    for keys in other:
        after = write_study(parties, f"ash = {keys}\n{birch}", f'key = "{parties.old.public}"')
        hashes.add(after.hash())
        assert Study.from_canonical(after.canonical()).hash() == after.hash()
    assert len(hashes) == 3
    coordinator = toml(follows(parties.new, parties.old))
    after = write_study(
        parties,
        f'ash = "{old.public}"\n{birch}',
        f'key = ["{parties.old.public}", {coordinator}]',
    )
    assert after.hash() == before.hash()
    with pytest.raises(StudyError, match="is not by a key listed before it"):
        write_study(parties, f'ash = ["{parties.stranger.public}", {entry}]\n{birch}')


def test_the_hash_of_plain_keys_is_what_it_was_before_lists(tmp_path: Path) -> None:
    """Approvals that stewards gave, and runs that were begun, under earlier releases."""
    key = "ed25519:" + "A" * 43 + "="
    study = Study.from_settings(
        {
            "name": "s",
            "method": "mean-and-sd",
            "data": {"features": ["a"]},
            "sites": {"names": ["ash"], "keys": {"ash": key}},
            "coordinator": {"key": key},
        }
    )
    assert f'"keys":{{"ash":"{key}"}}' in study.canonical()
    assert f'"coordinator":{{"at":null,"key":"{key}"}}' in study.canonical()


def test_an_approved_study_goes_on_with_an_endorsed_key_and_not_with_another(
    parties: Parties,
) -> None:
    old, new, birch = parties.keys["ash"], parties.new, parties.keys["birch-2"]
    tail = f'birch-2 = "{birch.public}"'
    out = parties.root / "run"
    approved = write_study(parties, f'ash = "{old.public}"\n{tail}')
    for site in parties.sites.values():
        site.home.write_ledger(APPROVED, {"studies": [approved.hash()]})
    trusted = [parties.old.public]

    def run(study: Study, **settings: Any) -> Any:
        engine = FolderEngine(
            parties.folder, SITES, parties.old, study.sites.keys, POLL, keep_files=True
        )
        federation = Federation.from_study(study, engine=engine)
        return federation.run(get_method(study.method)(), out=out, **settings)

    with parties.watching(trusted):
        assert run(approved, seed=1).result.n == 130
    (out / "result.json").unlink()  # as if it had not ended

    rotated = write_study(parties, f'ash = ["{old.public}", {toml(follows(new, old))}]\n{tail}')
    with parties.watching(trusted, ash=new):
        assert run(rotated, resume=True).result.n == 130
        fresh = FolderEngine(parties.folder, SITES, parties.old, rotated.sites.keys, POLL)
        again = Federation.from_study(rotated, engine=fresh).run(MeanAndSD(), seed=2)
        assert again.result.n == 130, "approved as it was"

    replaced = write_study(parties, f'ash = ["{old.public}", "{new.public}"]\n{tail}')
    with pytest.raises(RunError, match="was begun with study"):
        run(replaced, resume=True)
    with parties.watching(trusted, ash=new), pytest.raises(QuorumError, match="approved"):
        engine = FolderEngine(parties.folder, SITES, parties.old, replaced.sites.keys, POLL)
        Federation.from_study(replaced, engine=engine).run(MeanAndSD(), seed=2)


def test_the_coordinators_own_key_must_count(parties: Parties) -> None:
    parties.old.save(parties.root / "old")
    parties.new.save(parties.root / "new")
    keys = "\n".join(f'{name} = "{key.public}"' for name, key in parties.keys.items())
    listed = f'[{{ key = "{parties.old.public}", until = {YESTERDAY} }}, "{parties.new.public}"]'
    study = write_study(parties, keys, f"key = {listed}")
    folder_engine(study, parties.folder, parties.root / "new")
    with pytest.raises(StudyError, match=f"has ended on {YESTERDAY}"):
        folder_engine(study, parties.folder, parties.root / "old")
    other = write_study(parties, keys, f'key = "{parties.stranger.public}"')
    with pytest.raises(StudyError, match="is not the coordinator's key that the study names"):
        folder_engine(other, parties.folder, parties.root / "old")


def test_remarks_on_keys_of_a_study(parties: Parties) -> None:
    old, birch = parties.keys["ash"], parties.keys["birch-2"]
    keys = (
        f'ash = {{ key = "{old.public}", until = {YESTERDAY} }}\n'
        f'birch-2 = {{ key = "{birch.public}", until = {TOMORROW} }}'
    )
    study = write_study(parties, keys, f'key = "{parties.old.public}"')
    assert [remark.split(":")[0] for remark in key_remarks(study)] == [
        "every key of site 'ash' has ended",
        f"the last key of site 'birch-2' ends on {TOMORROW}",
    ]


def test_trust_of_a_site_file(parties: Parties) -> None:
    path = parties.root / "site.toml"
    entry = toml(follows(parties.new, parties.old))
    path.write_text(
        'name = "ash"\nhome = "home"\n[source]\npath = "table.csv"\n'
        f'[trust]\ncoordinators = ["{parties.old.public}", {entry}, '
        f'["{parties.stranger.public}", {{ key = "{parties.keys["ash"].public}", '
        "until = 2027-01-31 }]]\n[retention]\ndays = 30\n"
    )
    file = SiteFile.load(path)
    assert [len(party.keys) for party in file.trust.coordinators] == [2, 2]
    assert file.retention.days == 30
    for days in ("0", "-1", "1.5", '"30"'):
        path.write_text(
            'name = "ash"\nhome = "home"\n[source]\npath = "table.csv"\n'
            f"[retention]\ndays = {days}\n"
        )
        with pytest.raises(StudyError, match="retention"):
            SiteFile.load(path)
