from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from consilience.exceptions import DamageError, RunError
from consilience.sites.site_store import DiskStore, MemoryStore, Record, SiteStore, check_run_id
from consilience.wire.codec import pack

RECORD = Record(
    3,
    1,
    "digest",
    b"reply",
    state={"a": np.arange(3), "b": (1, "x")},
    transforms=(("standardise.apply", b"message"),),
    opening=b"open",
    study="s",
    method="m",
)


@pytest.fixture(params=["memory", "disk"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SiteStore]:
    """The same home, opened as often as one likes (in memory it is one object)."""
    if request.param == "disk":
        return lambda: DiskStore(tmp_path / "home")
    kept = MemoryStore()
    return lambda: kept


def test_records(home: Callable[[], SiteStore]) -> None:
    assert home().record("run", 3, 1) is None
    home().commit("run", RECORD)
    read = home().record("run", 3, 1)
    assert read is not None
    assert pack(read.__dict__) == pack(RECORD.__dict__)
    np.testing.assert_array_equal(read.state["a"], np.arange(3))
    assert read.transforms == RECORD.transforms
    assert home().record("run", 3, 2) is None
    assert home().record("other", 3, 1) is None


def test_series_are_those_of_the_answer_that_changed_them_last(
    home: Callable[[], SiteStore],
) -> None:
    """Over all lines of questions, in whatever order their rounds are, and after a restart."""
    assert home().series("run") == {}
    for place, asked in (((5, 1), 1), ((2, 2), 2), ((3, 7), 0)):
        series = {"tally": {"asked": asked}} if asked else {}
        home().commit("run", replace(RECORD, round=place[0], attempt=place[1], series=series))
        assert home().series("run") == {"tally": {"asked": asked or 2}}
    assert home().series("other") == {}
    # A reply that is withdrawn is counted still, and counts for no more than it did.
    first = home().record("run", 5, 1)
    assert first is not None and first.changes == 1
    one = home()
    one.commit("run", replace(first, reply=b"refused"))
    assert one.series("run") == home().series("run") == {"tally": {"asked": 2}}
    home().purge("run")
    assert home().series("run") == {}


def test_long_arrays_of_a_state_are_written_once(home: Callable[[], SiteStore]) -> None:
    long, other = np.arange(4000.0), np.arange(4000)
    first = replace(RECORD, state={"long": long, "short": np.arange(3), "n": 1})
    home().commit("run", first)
    prior = home().record("run", 3, 1)
    for round_ in range(4, 8):
        assert prior is not None
        state = {**prior.state, "n": round_}
        home().commit("run", replace(prior, round=round_, state=state), prior)
        prior = home().record("run", round_, 1)
        assert prior is not None and prior.elsewhere == {"long": (3, 1)}
        assert pack(prior.state) == pack({**first.state, "n": round_})
        assert len(home()._read("runs", "run", f"{round_:06d}-001.record") or b"") < 2000
    # What holds the same is not the same: only what a step left as it was given is elsewhere.
    for changed in (long, other):
        home().commit("run", replace(prior, round=8, state={"long": changed.copy()}), prior)
        found = home().record("run", 8, 1)
        assert found is not None and found.elsewhere == {}
        np.testing.assert_array_equal(found.state["long"], changed)


def test_a_long_array_that_is_lost_is_damage(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    home.commit("run", replace(RECORD, state={"long": np.arange(4000.0)}))
    prior = home.record("run", 3, 1)
    assert prior is not None
    home.commit("run", replace(prior, round=4), prior)
    path = tmp_path / "runs" / "run" / "000003-001.record"
    whole = path.read_bytes()
    for damage in (None, whole[:-1] + b"x"):
        path.unlink(missing_ok=True)
        if damage is not None:
            path.write_bytes(damage)
        with pytest.raises(DamageError, match="000003-001") as raised:
            DiskStore(tmp_path).record("run", 4, 1)
        assert raised.value.public.startswith("what the site keeps of this run is damaged")
    path.write_bytes(whole)
    found = DiskStore(tmp_path).record("run", 4, 1)
    assert found is not None and len(found.state["long"]) == 4000


def test_purge_drops_records_and_keeps_the_rest(home: Callable[[], SiteStore]) -> None:
    home().commit("run", RECORD)
    home().commit("other", RECORD)
    home().write_outputs("run", {"x": b"1"})
    home().write_ledger("d", {"runs": ["run"]})
    home().purge("run")
    home().purge("never-there")
    assert home().record("run", 3, 1) is None
    assert home().record("other", 3, 1) is not None
    assert home().read_output("run", "x") == b"1"
    assert home().ledger("d") == {"runs": ["run"]}


def test_outputs(home: Callable[[], SiteStore]) -> None:
    assert home().output_names("run") == ()
    assert home().runs() == ()
    home().write_outputs("run", {"b": b"2", "a": b"1"})
    home().write_outputs("run", {"b": b"3"})
    assert home().output_names("run") == ("a", "b")
    assert home().runs() == ("run",)
    assert home().read_output("run", "b") == b"3"
    with pytest.raises(RunError, match="no output 'c' of run run"):
        home().read_output("run", "c")


def test_ledgers(home: Callable[[], SiteStore]) -> None:
    assert home().ledger("d") == {}
    home().write_ledger("d", {"runs": ["a"], "epsilon": {"x": 0.5}})
    assert home().ledger("d") == {"runs": ["a"], "epsilon": {"x": 0.5}}
    assert home().ledger("e") == {}


@pytest.mark.parametrize(
    "run", ["", ".", "..", "../x", "a/b", "a..b", "-x", "a" * 101, "a\n", "a b"]
)
def test_run_ids_cannot_leave_the_home(run: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not allowed"):
        check_run_id(run)
    home = DiskStore(tmp_path / "home")
    with pytest.raises(RunError, match="not allowed"):
        home.commit(run, RECORD)
    with pytest.raises(RunError, match="not allowed"):
        home.write_outputs(run, {"x": b""})
    with pytest.raises(RunError, match="not allowed"):
        home.purge(run)


def test_a_damaged_record_is_named_as_one(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    home.commit("run", RECORD)
    path = tmp_path / "runs" / "run" / "000003-001.record"
    whole = path.read_bytes()
    altered = whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]
    for damaged in (whole[:-1], b"", b"\x80\x04.", whole + b"x", altered):
        path.write_bytes(damaged)
        with pytest.raises(
            RunError,
            match=r"000003-001\.record is damaged: restore it from a copy .*, or purge run run",
        ):
            home.record("run", 3, 1)


def test_a_damaged_ledger_stops_everything(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    home.write_ledger("d", {"runs": []})
    for damaged in ("", "{", "[1]", "\udcff"):
        (tmp_path / "ledger" / "d.json").write_bytes(damaged.encode(errors="surrogateescape"))
        with pytest.raises(RunError, match="is damaged: restore it"):
            home.ledger("d")


def test_the_log_survives_a_torn_line(tmp_path: Path) -> None:
    DiskStore(tmp_path).log("first", reason="x")
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "torn')
    DiskStore(tmp_path).log("second")
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["first", "second"]


def test_only_the_owner_reads_a_home(tmp_path: Path) -> None:
    home = DiskStore(tmp_path / "home")
    home.commit("run", RECORD)
    home.write_ledger("d", {})
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o077 == 0


# ------------------------------------------------------------------------- what is written together


def test_what_is_noted_together_waits_once_for_each_file_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, waits, plain = DiskStore(tmp_path), [], os.fsync

    def fsync(handle: int) -> None:
        waits.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with home.together():
        for n in (1, 2):
            home.write_ledger("d", {"n": n})
            home.write_kept("d", f"noise {n}", {"x": n})
            home.log("read", said=n)
            assert home.ledger("d") == {"n": n}, "what was noted is read"
            home.write_outputs("r", {"used": b"1"})
            assert home.output_names("r") == ("used",) and home.runs() == ("r",)
        assert not waits and DiskStore(tmp_path).ledger("d") == {}
    assert len(waits) == 4 + 3 + 1 and waits.count("ledger") == waits.count("kept/d") == 1
    assert DiskStore(tmp_path).ledger("d") == {"n": 2}
    found, chain = DiskStore(tmp_path).checked_log()
    assert [line["said"] for line in found] == [1, 2] and not chain.broken
    del waits[:]
    home.write_ledger("d", {"n": 3})
    assert len(waits) == 2, "and by itself as before"


def test_what_is_there_has_its_name_also_where_the_next_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, a site finds it and does not write it: a power cut would take it then."""
    home, waits, plain = DiskStore(tmp_path), [], os.fsync
    full = [False]

    def fsync(handle: int) -> None:
        waits.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        if full[0] and waits[-1].startswith("kept"):
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunError), home.together():
        full[0] = True
        home.write_ledger("d", {"n": 1})
        home.write_kept("d", "noise", {"x": 1})
    assert waits.index("ledger") < len(waits) - 1 and DiskStore(tmp_path).ledger("d") == {"n": 1}
    full[0] = False
    with home.together():  # of the first attempt no line is left
        home.log("read", said=2)
        with home.together():
            home.write_ledger("d", {"n": 2})
        assert home.ledger("d") == {"n": 2}
    assert [line["said"] for line in DiskStore(tmp_path).checked_log()[0]] == [2]


def test_what_was_noted_counts_though_an_error_follows(tmp_path: Path) -> None:
    home = DiskStore(tmp_path)
    with pytest.raises(ZeroDivisionError), home.together():
        home.write_ledger("d", {"n": 1})
        home.log("read", said="so")
        1 / 0  # noqa: B018
    assert DiskStore(tmp_path).ledger("d") == {"n": 1} and len(home.read_log()) == 1
    # Of a process that is gone nothing is written: nothing has left, either.
    with pytest.raises(KeyboardInterrupt), home.together():
        home.write_ledger("d", {"n": 2})
        raise KeyboardInterrupt
    assert home.ledger("d") == DiskStore(tmp_path).ledger("d") == {"n": 1}


def test_a_copy_of_what_the_log_says_is_an_output_nobody_waits_for(
    home: Callable[[], SiteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: pytest.fail("it waits"))
    for data in (b"1", b"22"):
        home().write_copy("run", "reading.json", data)
        assert home().output_names("run") == ("reading.json",)
        assert home().read_output("run", "reading.json") == data
    with pytest.raises(RunError):
        home().write_copy("run", "../x", b"")
