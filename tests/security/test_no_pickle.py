"""Pickles are put wherever bytes come in; none is ever executed."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.engines.federation import load_run
from consilience.exceptions import ConsilienceError, RunError, WireError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.sites.outputs import SiteOutput
from consilience.sites.site_store import DiskStore, Record
from consilience.testing.fakes import federation_of
from consilience.wire.codec import decode_message, pack, unpack
from consilience.wire.envelope import Reply, Request
from consilience.wire.transcript import Journal, read_transcript

TABLES = {name: np.random.default_rng(i).normal(size=(30, 2)) for i, name in enumerate("ab")}


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.fixture(params=range(pickle.HIGHEST_PROTOCOL + 1), ids=lambda p: f"protocol {p}")
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bytes]:
    path = tmp_path / "sprung"
    yield pickle.dumps(Trap(path), protocol=request.param)
    assert not path.exists(), "a pickle was executed"


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "read", [unpack, decode_message, Request.from_bytes, Reply.from_bytes, Record.from_bytes]
)
def test_bytes_from_the_wire(trap: bytes, read: Any) -> None:
    with pytest.raises((WireError, RunError)):
        read(trap)


def test_inside_a_value_a_pickle_is_only_bytes(trap: bytes) -> None:
    assert unpack(pack({"a": trap})) == {"a": trap}


def test_a_site(trap: bytes) -> None:
    site = federation_of(TABLES).engine.members["a"]  # type: ignore[attr-defined]
    with pytest.raises(WireError):
        site.answer(trap)


@pytest.mark.parametrize(
    "name", ["run.json", "context.json", "result.json", "result.npz", "transcript.jsonl"]
)
def test_files_of_a_run(trap: bytes, name: str, tmp_path: Path) -> None:
    MeanAndSD().run(federation_of(TABLES), seed=1, out=tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(trap)
    with pytest.raises(RunError):
        load_run(tmp_path / "run")


def test_an_array_of_objects_in_a_result(trap: bytes, tmp_path: Path) -> None:
    MeanAndSD().run(federation_of(TABLES), seed=1, out=tmp_path / "run")
    buffer = io.BytesIO()
    array = np.array([Trap(tmp_path / "sprung")], dtype=object)
    np.savez(buffer, mean=array, sd=array)
    (tmp_path / "run" / "result.npz").write_bytes(buffer.getvalue())
    with pytest.raises(RunError):
        load_run(tmp_path / "run")


def test_a_journal_and_a_transcript(trap: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(trap)
    assert Journal(tmp_path / "log").asks == {}
    (tmp_path / "lines").write_bytes(trap)
    with pytest.raises(RunError):
        read_transcript(tmp_path / "lines")


def test_a_home(trap: bytes, tmp_path: Path) -> None:
    home = DiskStore(tmp_path / "home")
    home.commit("run", Record(1, 1, "", b""))
    next((tmp_path / "home").rglob("*.record")).write_bytes(trap)
    with pytest.raises(RunError):
        home.record("run", 1, 1)
    home.write_ledger("d", {})
    (tmp_path / "home" / "ledger" / "d.json").write_bytes(trap)
    with pytest.raises(RunError):
        home.ledger("d")


@pytest.mark.parametrize("name", ["rows.bin", "predictor.bin"])
def test_outputs_of_a_site(trap: bytes, name: str, tmp_path: Path) -> None:
    home = DiskStore(tmp_path / "home")
    home.write_outputs("run", {name: trap, "provenance.json": b'{"method": "ensemble-clustering"}'})
    output = SiteOutput(home, "run")
    with pytest.raises(ConsilienceError):
        _ = output.rows if name == "rows.bin" else output.predictor
