from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from consilience.exceptions import RunError
from consilience.wire.files import AppendLog, Beneath, atomic_write, explain, make_directory


def lines(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def test_atomic_write_makes_directories_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    atomic_write(path, b"one")
    atomic_write(path, b"two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def fail(*args: Any, **where: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, fails, fail)
    with pytest.raises(RunError, match="the disk is full"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_explanations_say_what_to_do() -> None:
    where = Path("somewhere")
    for code, words in (
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "may write to"),
        (errno.EROFS, "read-only"),
    ):
        assert words in str(explain(OSError(code, "x"), "write", where))
    assert "strange" in str(explain(OSError(12345, "strange"), "write", where))


def test_directories_and_files_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RunError, match=r"file is in the way|part of the path"):
        make_directory(tmp_path / "file")
    with pytest.raises(RunError, match="a file is in the way"):
        atomic_write(tmp_path / "file" / "inside", b"x")
    with pytest.raises(RunError, match="a part of the path is a file"):
        atomic_write(tmp_path / "file" / "inside" / "deeper", b"x")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_nothing_beneath_a_directory_is_reached_through_a_link(tmp_path: Path, level: int) -> None:
    """Whichever part of the path the link takes the place of; the directory itself may be one."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "b" / "c").mkdir(parents=True)
    (elsewhere / "b" / "file").write_bytes(b"private")
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    within = Beneath(tmp_path / "root")
    within.make("a", "b", "c")
    path = tmp_path / "real" / "/".join("abc"[:level])
    target = {1: elsewhere, 2: elsewhere / "b", 3: elsewhere / "b" / "c"}[level]
    path.rename(tmp_path / "real" / "moved")
    path.symlink_to(target)
    with pytest.raises(RunError, match="a link is in the way"):
        within.write("a", "b", "c", "file", data=b"x")
    with pytest.raises(RunError, match="a link is in the way"):
        within.make("a", "b", "c", "d")
    for reach in (within.names, within.found, within.remove):
        with pytest.raises(OSError, match="symbolic links"):
            reach("a", "b", "c", "file")
    with pytest.raises(OSError, match="symbolic links"):
        within.rename(("a", "b", "c", "file"), "other")
    with pytest.raises(OSError, match="symbolic links"), within.opened("a", "b", "c", "file"):
        pass
    found = sorted(p.relative_to(elsewhere).as_posix() for p in elsewhere.rglob("*"))
    assert found == ["b", "b/c", "b/file"]


def test_what_is_removed_is_the_link_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"x")
    (tmp_path / "root" / "a" / "deep").mkdir(parents=True)
    (tmp_path / "root" / "a" / "deep" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "root" / "b").symlink_to(tmp_path / "kept")
    within = Beneath(tmp_path / "root")
    assert [within.remove(name) for name in ("a", "b", "c")] == [True, True, False]
    assert (tmp_path / "kept" / "file").read_bytes() == b"x"
    assert list((tmp_path / "root").iterdir()) == []


def test_a_log_grows_and_loses_only_its_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AppendLog(path, lines)
    log.append(b"one\n")
    log.append(b"two\n")
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        again = AppendLog(path, lines)
        assert again.content == whole[: lines(whole[:cut])]
        again.append(b"three\n")
        assert path.read_bytes() == again.content + b"three\n"


def test_a_log_in_memory_touches_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    AppendLog(None, lines).append(b"x\n")
    assert list(tmp_path.iterdir()) == []
