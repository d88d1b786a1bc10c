"""Audit bundles: what is changed in one is seen."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from consilience.exceptions import DamageError, RunError, SignatureError
from consilience.sites.policy import Policy
from consilience.sites.site_store import DiskStore, LogChain
from consilience.sites.steward import LEFT, MANIFEST, SIGNED, bundle, verify
from consilience.wire.signing import SigningKey
from tests.cli.test_site import run_cli
from tests.cli.test_site_queue import Held

Contents = dict[str, bytes]


@pytest.fixture
def home(tmp_path: Path) -> DiskStore:
    home = DiskStore(tmp_path / "home")
    for number in range(3):
        home.log("sent", run=f"run-{number}", round=1, reason="cell-4711")
    return home


def unpacked(data: bytes) -> Contents:
    with zipfile.ZipFile(io.BytesIO(data)) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def packed(contents: Contents) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, data in contents.items():
            file.writestr(name, data)
    return made.getvalue()


def test_a_bundle_is_verified(home: DiskStore) -> None:
    key = SigningKey.generate()
    made = bundle("boston", home, Policy(), key)
    found = verify(made, key.public)
    assert (found.site, found.key, found.n_lines) == ("boston", key.public, 3)
    assert verify(made) == found
    assert b"cell-4711" not in b"".join(unpacked(made).values())


def test_a_bundle_from_before_answers_were_told_is_verified(home: DiskStore) -> None:
    contents = unpacked(bundle("boston", home, Policy(), None))
    del contents[LEFT]
    with pytest.raises(DamageError, match=r"left\.json in the bundle is not the file"):
        verify(packed(contents))
    manifest = json.loads(contents[MANIFEST])
    del manifest["files"][LEFT]
    contents[MANIFEST] = json.dumps(manifest).encode()
    assert verify(packed(contents)).n_lines == 3
    del manifest["files"]["policy.json"]
    contents[MANIFEST] = json.dumps(manifest).encode()
    with pytest.raises(DamageError, match="names other files"):
        verify(packed(contents))


def with_comment(data: bytes, of_file: bool) -> bytes:
    made = io.BytesIO(data)
    with zipfile.ZipFile(made, "a") as file:
        if of_file:
            file.getinfo(MANIFEST).comment = b"approved"
            file.comment = b""
        else:
            file.comment = b"approved"
        file._didModify = True
    return made.getvalue()


def with_gap(data: bytes) -> bytes:
    """Bytes between the files and their list."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        place = file.start_dir
    end = len(data) - 6
    moved = (place + 8).to_bytes(4, "little")
    return data[:place] + b"approved" + data[place:end] + moved + data[end + 4 :]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"approved" + data,
        lambda data: data + b"approved",
        lambda data: with_comment(data, of_file=False),
        lambda data: with_comment(data, of_file=True),
        with_gap,
    ],
    ids=["before", "after", "comment", "comment of a file", "between"],
)
def test_bytes_beside_the_files(home: DiskStore, change: Callable[[bytes], bytes]) -> None:
    """A reader of zip files passes them over, so that they could say what nobody signed."""
    key = SigningKey.generate()
    made = bundle("boston", home, Policy(), key)
    with zipfile.ZipFile(io.BytesIO(change(made))) as file:
        assert file.testzip() is None and MANIFEST in file.namelist()
    with pytest.raises(DamageError, match="holds more than its files"):
        verify(change(made), key.public)


def test_a_later_one_goes_on(home: DiskStore) -> None:
    before = verify(bundle("boston", home, Policy(), None))
    home.log("sent", run="run-9", round=1)
    after = verify(bundle("boston", home, Policy(), None))
    assert after.begins_with(before) and after.begins_with(after)
    assert not before.begins_with(after)
    text = (home.path / "log.jsonl").read_text(encoding="utf-8")
    (home.path / "log.jsonl").write_text(text.replace("run-1", "run-7"), encoding="utf-8")
    assert not verify(bundle("boston", home, Policy(), None)).begins_with(before)
    assert not verify(bundle("york", home, Policy(), None)).begins_with(before)


def test_a_line_that_was_never_finished_is_no_line(home: DiskStore) -> None:
    with (home.path / "log.jsonl").open("ab") as file:
        file.write(b'{"event": "re')
    before = verify(bundle("boston", home, Policy(), None))
    assert before.n_lines == 3
    again = DiskStore(home.path)
    again.log("read", run="run-9")
    assert verify(bundle("boston", again, Policy(), None)).begins_with(before)


def changed_line(contents: Contents) -> None:
    contents["log.jsonl"] = contents["log.jsonl"].replace(b"run-1", b"run-7")
    redo_digests(contents)


def dropped_line(contents: Contents) -> None:
    contents["log.jsonl"] = b"".join(contents["log.jsonl"].splitlines(keepends=True)[:2])
    redo_digests(contents)


def redo_digests(contents: Contents) -> None:
    """As somebody would who changes a file and what the manifest says of it."""
    manifest = json.loads(contents[MANIFEST])
    manifest["files"] = {n: hashlib.sha256(contents[n]).hexdigest() for n in manifest["files"]}
    contents[MANIFEST] = json.dumps(manifest).encode()


def other_policy(contents: Contents) -> None:
    contents["policy.json"] = contents["policy.json"].replace(b"10", b"90", 1)
    redo_digests(contents)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda c: c.update({"policy.json": b"{}"}), DamageError, "policy.json in the bundle"),
        (lambda c: c.pop("account.json"), DamageError, "account.json in the bundle"),
        (changed_line, DamageError, "breaks at line 2"),
        (dropped_line, DamageError, "ends elsewhere"),
        (other_policy, SignatureError, "of another manifest"),
        (lambda c: c.pop(SIGNED), SignatureError, "is not signed: ask"),
        (lambda c: c.update({SIGNED: c[SIGNED][:-1]}), DamageError, "signature"),
        (lambda c: c.update({MANIFEST: b"["}), DamageError, "no manifest"),
        (lambda c: c.update({"more.txt": b""}), DamageError, "other files"),
        (lambda c: c.pop(MANIFEST), DamageError, "no manifest"),
    ],
)
def test_changes_are_seen(
    home: DiskStore, change: Callable[[Contents], object], error: type[Exception], words: str
) -> None:
    key = SigningKey.generate()
    contents = unpacked(bundle("boston", home, Policy(), key))
    verify(packed(contents), key.public)
    change(contents)
    with pytest.raises(error, match=words):
        verify(packed(contents), key.public)


def test_the_key_of_another_and_another_site(home: DiskStore) -> None:
    key, other = SigningKey.generate(), SigningKey.generate()
    made = bundle("boston", home, Policy(), key)
    with pytest.raises(SignatureError, match="not signed by the key"):
        verify(made, other.public)
    # Signed by another key that the manifest names: seen by whoever knows the site's.
    with pytest.raises(SignatureError):
        verify(bundle("boston", home, Policy(), other), key.public)
    contents = unpacked(made)
    contents[SIGNED] = unpacked(bundle("york", home, Policy(), key))[SIGNED]
    with pytest.raises(SignatureError):
        verify(packed(contents), key.public)


def test_one_that_names_a_key_is_signed(home: DiskStore) -> None:
    contents = unpacked(bundle("boston", home, Policy(), SigningKey.generate()))
    del contents[SIGNED]
    with pytest.raises(SignatureError, match="is not signed: ask"):
        verify(packed(contents))


def lines_of(home: DiskStore, change: Callable[[list[bytes]], object]) -> None:
    path = home.path / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))


def swapped(lines: list[bytes]) -> None:
    lines[0], lines[1] = lines[1], lines[0]


def without_chain(line: bytes) -> bytes:
    return json.dumps({k: v for k, v in json.loads(line).items() if k != "chain"}).encode() + b"\n"


def no_chain_in_second(lines: list[bytes]) -> None:
    lines[1] = without_chain(lines[1])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: lines.__setitem__(1, lines[1].replace(b"4711", b"4712")), 2),
        (lambda lines: lines.pop(0), 1),
        (lambda lines: lines.pop(1), 2),
        (lambda lines: lines.insert(1, b'{"event": "sent"}\n'), 2),
        (lambda lines: lines.insert(1, lines[0]), 2),
        (lambda lines: lines.__setitem__(2, b"}\n"), 3),
        (lambda lines: lines.insert(0, b'{"event": "sent"}\n'), 2),
        (swapped, 1),
        (no_chain_in_second, 2),
    ],
    ids=["edit", "drop-first", "drop", "put-in", "twice", "damaged", "before", "swap", "unchained"],
)
def test_what_was_done_to_the_log_before_the_first_bundle(
    home: DiskStore, change: Callable[[list[bytes]], object], line: int
) -> None:
    assert home.checked_log()[1] == LogChain(3, 0, 0)
    lines_of(home, change)
    home.log("sent", run="run-9", round=1)
    kept = verify(bundle("boston", home, Policy(), None)).kept
    assert kept is not None and kept.broken == line and f"at line {line} " in str(kept)


def test_a_log_from_before_the_chain_goes_on(home: DiskStore) -> None:
    lines_of(home, lambda lines: lines.__setitem__(slice(None), map(without_chain, lines)))
    assert home.checked_log()[1] == LogChain(3, 3, 0)
    for _ in range(2):
        home.log("sent", run="run-9", round=1)
    assert home.checked_log()[1] == LogChain(5, 3, 0)
    assert str(home.checked_log()[1]).endswith("unchained up to line 3 of 5")
    lines_of(home, lambda lines: lines.__setitem__(1, lines[1].replace(b"4711", b"4712")))
    assert home.checked_log()[1].broken == 4, "the first digest is of all that was there"


def test_two_processes_write_one_log(home: DiskStore) -> None:
    other = DiskStore(home.path)
    for _ in range(3):
        other.log("sent", run="x" * 9000)
        home.log("sent", run="run-9")
    assert home.checked_log()[1] == LogChain(9, 0, 0)


@pytest.mark.parametrize("tail", [b'{"event": "re', b"x" * 9000])
def test_a_write_that_was_killed_breaks_no_chain(home: DiskStore, tail: bytes) -> None:
    with (home.path / "log.jsonl").open("ab") as file:
        file.write(tail)
    assert home.checked_log()[1] == LogChain(3, 0, 0)
    home.log("sent", run="run-9")
    assert home.checked_log()[1] == LogChain(4, 0, 0)


def test_a_full_disk_leaves_no_half_line(home: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write, calls = (home.path / "log.jsonl").read_bytes(), os.write, []

    def full(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data[:5])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunError, match="disk is full"):
        home.log("sent", run="run-9")
    monkeypatch.undo()
    assert (home.path / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 100])
def test_what_is_no_bundle(data: bytes) -> None:
    with pytest.raises(DamageError, match="it is no audit bundle"):
        verify(data)


def test_commands(tmp_path: Path) -> None:
    held = Held(tmp_path)
    assert "not signed" in held.call("audit", str(tmp_path / "a.zip"))
    key = SigningKey.generate()
    key.save(tmp_path / "key")
    held.call("refuse", "run-1/2-1")
    said = held.call("audit", str(tmp_path / "b.zip"), "--key", str(tmp_path / "key"))
    assert "b.zip, signed\n" in said and "chained from its first line" in said
    assert "not replaced" in held.call("audit", str(tmp_path / "b.zip"), code=7)
    words = [str(tmp_path / "b.zip"), "--key", key.public]
    done = run_cli("verify", *words)
    assert done.exit_code == 0 and f"signed by {key.public}" in done.stdout
    done = run_cli("verify", str(tmp_path / "b.zip"), "--earlier", str(tmp_path / "a.zip"))
    assert done.exit_code == 0 and "goes on from line" in done.stdout
    new = SigningKey.generate()
    new.save(tmp_path / "new")
    held.call("audit", str(tmp_path / "c.zip"), "--key", str(tmp_path / "new"))
    words = [str(tmp_path / "c.zip"), "--key", new.public, "--earlier", str(tmp_path / "b.zip")]
    assert run_cli("verify", *words).exit_code == 5
    assert run_cli("verify", *words, "--earlier-key", key.public).exit_code == 0
    done = run_cli("verify", str(tmp_path / "a.zip"), "--key", key.public)
    assert done.exit_code == 5 and done.stderr.count("\n") == 1
    assert run_cli("verify", str(tmp_path / "none.zip")).exit_code == 7
    held.site.home.log("sent", run="run-9")
    log = held.site.home.path / "log.jsonl"
    log.write_bytes(b'{"event": "sent"}\n' + log.read_bytes())
    assert "breaks at line 2" in held.call("audit", str(tmp_path / "d.zip"), code=7)
    assert "breaks at line 2" in run_cli("verify", str(tmp_path / "d.zip")).stderr


@pytest.mark.parametrize("kept", [{"n_lines": 2}, {"n_unchained": "0"}, {"broken": -1}, {"n": 0}])
def test_what_a_bundle_says_of_the_chain_is_figures_of_its_own_log(
    home: DiskStore, kept: dict[str, object]
) -> None:
    contents = unpacked(bundle("boston", home, Policy(), None))
    manifest = json.loads(contents[MANIFEST])
    manifest["kept"] |= kept
    contents[MANIFEST] = json.dumps(manifest).encode()
    with pytest.raises(DamageError):
        verify(packed(contents))


def test_digests_that_an_earlier_bundle_had_do_not_go(home: DiskStore) -> None:
    """The log without them looks like one from before there was a chain."""
    before = verify(bundle("boston", home, Policy(), None))
    home.log("sent", run="run-3")
    assert verify(bundle("boston", home, Policy(), None)).begins_with(before)
    lines = [json.loads(line) for line in (home.path / "log.jsonl").read_text().splitlines()]
    bare = "".join(json.dumps(line | {"reason": "", "chain": ""}) + "\n" for line in lines)
    (home.path / "log.jsonl").write_text(bare.replace(', "chain": ""', ""))
    after = verify(bundle("boston", home, Policy(), None))
    assert after.kept is not None and not after.kept.broken and not after.begins_with(before)
