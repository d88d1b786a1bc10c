from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from consilience.exceptions import RunError
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
