"""Heartbeats: what they say, who may say it, and what a coordinator makes of it."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience import __version__
from consilience.engines import health
from consilience.engines import health as heartbeat
from consilience.engines.folder import watch
from consilience.engines.health import Heartbeat, judged
from consilience.exceptions import EngineError, ParameterError, SignatureError, WireError
from consilience.sites.loaders import memory_site
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.wire.keys import KeyList
from consilience.wire.signing import Context, SigningKey

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
CANARY = 918273.6455
NOW = 1_800_000_000.0


def a_beat(**changes: Any) -> Heartbeat:
    beat = Heartbeat(
        site="north", time=NOW, state="watching", release=__version__, methods=("mean-and-sd",)
    )
    return dataclasses.replace(beat, **changes)


def a_site(folder: Path) -> Site:
    site = memory_site("north", {"x": [CANARY] * 40, "ward": ["CANARY-ward"] * 40}, "strict")
    site.home = DiskStore(folder / "home")
    return site


def troubles(beat: Heartbeat, *, age: float = 1.0, skew: float | None = 0.0) -> list[str]:
    found = judged("north", beat, method="mean-and-sd", now=beat.time + age, skew=skew)
    return list(found.troubles)


# --- what it says


def test_it_says_nothing_of_the_data(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    site.home.log("read", run="r", said=f"{CANARY}")
    text = health.heartbeat_of(site, "watching").to_bytes().decode()
    assert set(json.loads(text)) == {
        "site", "time", "state", "release", "methods", "every", "busy", "held", "unsent", "free",
    }  # fmt: skip
    assert str(CANARY) not in text and "CANARY" not in text and str(tmp_path) not in text
    assert "40" not in json.dumps({k: v for k, v in json.loads(text).items() if k == "methods"})


def test_replies_that_wait_are_counted(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    for round_ in (1, 2):
        state = site.home.jobs.state("r1", round_, 1)
        assert state.move("computed", "held", method="m", step="s", since=0.0, fields=[], bytes=1)
    assert site.home.jobs.release("r1", 1, 1)
    assert health.heartbeat_of(site, "watching").held == 1
    (tmp_path / "home" / "jobs" / "r1" / "2-1.json").write_text("{")
    assert health.heartbeat_of(site, "watching").held == -1


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    beat = a_beat(held=2, busy=1.5, free=10)
    heartbeat.write(tmp_path, beat, KEY)
    found = heartbeat.read(tmp_path, "north", KeyList.of(KEY.public))
    assert found is not None and found[0] == beat
    assert heartbeat.read(tmp_path, "south", KeyList.of(KEY.public)) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "1", '"x"', "null", "[" * 100_000, '{"site": "north"}',
        json.dumps({**json.loads(a_beat().to_bytes()), "more": 1}),
        json.dumps({**json.loads(a_beat().to_bytes()), "time": "now"}),
        json.dumps({**json.loads(a_beat().to_bytes()), "time": float("nan")}),
        json.dumps({**json.loads(a_beat().to_bytes()), "held": 1.5}),
        json.dumps({**json.loads(a_beat().to_bytes()), "every": 0}),
        json.dumps({**json.loads(a_beat().to_bytes()), "time": 1e300}),
        json.dumps({**json.loads(a_beat().to_bytes()), "free": 10**400}),
        json.dumps({**json.loads(a_beat().to_bytes()), "held": -(10**4000)}),
        json.dumps({**json.loads(a_beat().to_bytes()), "state": "fine"}),
        json.dumps({**json.loads(a_beat().to_bytes()), "release": 3}),
        json.dumps({**json.loads(a_beat().to_bytes()), "methods": 3}),
        json.dumps({**json.loads(a_beat().to_bytes()), "site": "n" * 70_000}),
    ],
)  # fmt: skip
def test_what_is_no_heartbeat_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        Heartbeat.from_bytes(text.encode())


# --- who may say it


def forge(folder: Path, key: SigningKey, context: Context, beat: Heartbeat) -> None:
    path = folder / heartbeat.FOLDER / "north.msg"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(key.seal(context, beat.to_bytes()))


def test_only_the_site_itself(tmp_path: Path) -> None:
    keys = KeyList.of(KEY.public)
    own = heartbeat._context("north")
    forge(tmp_path, OTHER, own, a_beat())
    with pytest.raises(SignatureError):
        heartbeat.read(tmp_path, "north", keys)
    for wrong in (
        dataclasses.replace(own, sender="south"),
        dataclasses.replace(own, run="r1"),
        Context("r1", 1, 1, "reply", "north", OTHER.public),
    ):
        forge(tmp_path, KEY, wrong, a_beat())
        with pytest.raises(SignatureError):
            heartbeat.read(tmp_path, "north", keys)
    forge(tmp_path, KEY, own, a_beat(site="south"))
    with pytest.raises(WireError, match="another site's"):
        heartbeat.read(tmp_path, "north", keys)


def test_files_that_are_none(tmp_path: Path) -> None:
    keys = KeyList.of(KEY.public)
    heartbeat.write(tmp_path, a_beat(), KEY)
    path = tmp_path / heartbeat.FOLDER / "north.msg"
    whole = path.read_bytes()

    def link() -> None:
        path.unlink()
        path.symlink_to("/etc/passwd")

    def pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    spoilt: list[Callable[[], object]] = [
        lambda: path.write_bytes(whole[:-1]),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(whole + b"\n" * 100_000),
        pipe,
        link,
    ]
    for spoil in spoilt:
        path.unlink()
        path.write_bytes(whole)
        spoil()
        with pytest.raises(WireError):
            heartbeat.read(tmp_path, "north", keys)
        (one,) = heartbeat.health(tmp_path, {"north": keys}, "mean-and-sd")
        assert one.state == "unknown" and one.troubles


# --- what a coordinator makes of it


def test_a_site_that_is_well() -> None:
    assert troubles(a_beat()) == []
    assert troubles(a_beat(busy=900.0), age=100.0) == [], "at work for long is no trouble"
    assert troubles(a_beat(), skew=None) == []


@pytest.mark.parametrize(
    ("changes", "age", "skew", "words"),
    [
        ({}, 181.0, 0.0, "silent"),
        ({"every": 600.0}, 1801.0, 0.0, "silent"),
        ({"state": "stopped"}, 1.0, 0.0, "was stopped"),
        ({"release": "0.0.1"}, 1.0, 0.0, "has release 0.0.1"),
        ({"methods": ("other",)}, 1.0, 0.0, "lacks method mean-and-sd"),
        ({}, 1.0, 61.0, "61 s ahead of"),
        ({}, 1.0, -3600.0, "3600 s behind"),
        ({}, -120.0, None, "120 s ahead of"),
        ({"held": 1}, 1.0, 0.0, "1 reply waits"),
        ({"held": 3}, 1.0, 0.0, "3 replies wait"),
        ({"held": -1}, 1.0, 0.0, "cannot be read"),
        ({"unsent": 2}, 1.0, 0.0, "2 of its replies"),
        ({"free": 5 << 20}, 1.0, 0.0, "5 MB"),
    ],
)
def test_troubles(changes: dict[str, Any], age: float, skew: float | None, words: str) -> None:
    # A clock that is ahead makes a fresh heartbeat look younger than it is: age is by the stated
    # time, so the skew is taken off before the site is called silent.
    said = troubles(a_beat(**changes), age=age - (skew or 0.0), skew=skew)
    assert len(said) == 1 and words in said[0], said


def test_clocks_are_compared_through_the_folder(tmp_path: Path) -> None:
    """The storage has a clock of its own: only the difference of the two parties counts."""
    now = time.time()
    for ahead in (0.0, 300.0, -300.0):
        heartbeat.write(tmp_path, a_beat(time=now + ahead), KEY)
        os.utime(tmp_path / heartbeat.FOLDER / "north.msg", (now, now))
        (one,) = heartbeat.health(tmp_path, {"north": KeyList.of(KEY.public)}, "mean-and-sd")
        assert one.skew is not None and abs(one.skew - ahead) < 5.0
        assert one.state == "watching"
        assert any("clock" in trouble for trouble in one.troubles) == (ahead != 0.0)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no folder"):
        heartbeat.health(tmp_path / "none", {}, "mean-and-sd")


# --- a watch


def test_a_watch_beats_while_it_computes_and_says_that_it_stops(tmp_path: Path) -> None:
    keys = {"north": KeyList.of(KEY.public)}
    site, over = a_site(tmp_path), threading.Event()
    thread = threading.Thread(
        target=watch,
        args=(site, tmp_path),
        kwargs={
            "key": KEY, "coordinators": [OTHER.public], "stop": over, "poll": 0.01,
            "heartbeat": 0.05,
        },
    )  # fmt: skip
    thread.start()
    seen: set[float] = set()
    for _ in range(2000):
        found = heartbeat.read(tmp_path, "north", keys["north"])
        if found is not None:
            assert found[0].state == "watching"
            seen.add(found[0].time)
        if len(seen) >= 3:
            break
        time.sleep(0.01)
    over.set()
    thread.join()
    assert len(seen) >= 3
    (one,) = heartbeat.health(tmp_path, keys, "mean-and-sd")
    assert one.state == "stopped" and len(one.troubles) == 1
    assert [path.name for path in (tmp_path / "health").iterdir()] == ["north.msg"]


def test_work_is_told_of(tmp_path: Path) -> None:
    heart = heartbeat.Heart(a_site(tmp_path), tmp_path, KEY)
    with heart.working():
        heart._began = time.monotonic() - 100.0
        heart._beat("watching")
        found = heartbeat.read(tmp_path, "north", KeyList.of(KEY.public))
        assert found is not None and found[0].busy >= 100.0


def test_a_folder_that_takes_no_heartbeat_does_not_end_the_watch(tmp_path: Path) -> None:
    (tmp_path / "health").write_text("a file is in the way")
    told: list[tuple[str, dict[str, Any]]] = []
    site = a_site(tmp_path)
    heart = heartbeat.Heart(site, tmp_path, KEY, 60.0, lambda *event: told.append(event))
    heart._beat("watching")
    heart.look(0)
    heart.look(0)
    assert len(told) == 1 and told[0][0] == "unsent" and "health" in told[0][1]["reason"]
    assert watch(site, tmp_path, key=KEY, coordinators=[OTHER.public], once=True, heartbeat=1) == 0


def test_none_unless_asked_for(tmp_path: Path) -> None:
    watch(a_site(tmp_path), tmp_path, key=KEY, coordinators=[OTHER.public], once=True)
    assert not (tmp_path / "health").exists()
    with pytest.raises(ParameterError):
        heartbeat.Heart(a_site(tmp_path), tmp_path, KEY, 0.0)
