"""States that several processes change: one decides, and no crash leaves anything in between."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from consilience.exceptions import ProtocolError, RunError
from consilience.wire import files as states
from consilience.wire.files import Snapshot, StateFile

TABLE = {
    "computed": ("held", "sent"),
    "held": ("released", "refused"),
    "released": ("sent",),
    "refused": ("sent",),
    "sent": ("computed",),  # so that a long sequence of moves does not run dry
}
STATES = tuple(TABLE)
ACTORS = range(3)
BOUNDARIES = ("open", "fsync", "replace", "replaced", "fsync-directory")
"""Calls of one write, in order: a crash comes before each of them, and one after the rename."""
PATIENCE = 60.0


class Killed(BaseException):
    """What a test raises where the process would be gone."""


class _Interrupted:
    """Functions of `os` that fail or die at one boundary of a write."""

    def __init__(self, boundary: str, error: BaseException) -> None:
        self._boundary, self._error = boundary, error
        self._fsyncs, self._gone = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _at(self, boundary: str) -> None:
        if boundary == self._boundary:
            self._gone = isinstance(self._error, Killed)
            raise self._error

    def open(self, path: Any, flags: int, *rest: Any, **where: Any) -> int:
        if flags & os.O_EXCL:
            self._at("open")
        return os.open(path, flags, *rest, **where)

    def fsync(self, handle: int) -> None:
        self._fsyncs += 1
        self._at("fsync" if self._fsyncs == 1 else "fsync-directory")
        os.fsync(handle)

    def replace(self, old: Any, new: Any, **where: Any) -> None:
        self._at("replace")
        os.replace(old, new, **where)
        self._at("replaced")

    def unlink(self, path: Any, **where: Any) -> None:
        if not self._gone:  # the dead clean nothing up
            os.unlink(path, **where)


@contextmanager
def interrupted(boundary: str, error: BaseException) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consilience.wire.files.os", _Interrupted(boundary, error))
        yield


class Shared(RuleBasedStateMachine):
    """Several actors on one file, against a plain model of what it must say."""

    on_disk = True

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="states-"))
        self.path = self.root / "jobs" / "1-1.json" if self.on_disk else None
        memory = StateFile(None, TABLE, "computed")
        self.fresh: Callable[[], StateFile] = (
            (lambda: StateFile(self.path, TABLE, "computed")) if self.on_disk else lambda: memory
        )
        self.actors = [self.fresh() for _ in ACTORS]
        self.believed = [self.actors[0].read() for _ in ACTORS]
        self.model = Snapshot("computed", 0, {})
        self.moves = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root, ignore_errors=True)

    def _facts(self, actor: int) -> dict[str, Any]:
        self.moves += 1
        return {"by": actor, f"move {self.moves % 4}": self.moves}

    def _after(self, to: str, facts: dict[str, Any]) -> Snapshot:
        return Snapshot(to, self.model.version + 1, {**self.model.facts, **facts})

    @rule(actor=st.sampled_from(ACTORS))
    def read(self, actor: int) -> None:
        self.believed[actor] = self.actors[actor].read()
        assert self.believed[actor] == self.model

    @rule(actor=st.sampled_from(ACTORS))
    def restart(self, actor: int) -> None:
        self.actors[actor] = self.fresh()

    @rule(actor=st.sampled_from(ACTORS), to=st.sampled_from(STATES))
    def move_from_what_was_read(self, actor: int, to: str) -> None:
        belief, facts = self.believed[actor], self._facts(actor)
        if to not in TABLE[belief.state]:
            with pytest.raises(ProtocolError, match="no move leads"):
                self.actors[actor].move(belief, to, **facts)
            return
        is_true = belief[:2] == self.model[:2]
        assert self.actors[actor].move(belief, to, **facts) is is_true
        if is_true:
            self.model = self._after(to, facts)

    @rule(actor=st.sampled_from(ACTORS), expected=st.sampled_from(STATES), data=st.data())
    def move_by_name(self, actor: int, expected: str, data: st.DataObject) -> None:
        to, facts = data.draw(st.sampled_from(TABLE[expected])), self._facts(actor)
        is_true = expected == self.model.state
        assert self.actors[actor].move(expected, to, **facts) is is_true
        if is_true:
            self.model = self._after(to, facts)

    @rule(slow=st.sampled_from(ACTORS), by_name=st.booleans(), data=st.data())
    def another_is_quicker(self, slow: int, by_name: bool, data: st.DataObject) -> None:
        """One looks, and before it has the lock another one moves the state."""
        if self.path is None:
            return
        to = data.draw(st.sampled_from(TABLE[self.model.state]))
        others = data.draw(st.sampled_from(TABLE[self.model.state]))
        quick = self.actors[(slow + 1) % len(ACTORS)]
        mine, its = self._facts(slow), self._facts(-1)
        seen, locked = self.model, states._locked

        def late(path: Path) -> int:
            patch.setattr(states, "_locked", locked)
            assert quick.move(seen, others, **its)
            return locked(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(states, "_locked", late)
            assert not self.actors[slow].move(seen.state if by_name else seen, to, **mine)
        self.model = self._after(others, its)

    @rule(actor=st.sampled_from(ACTORS), boundary=st.sampled_from(BOUNDARIES), data=st.data())
    def crash(self, actor: int, boundary: str, data: st.DataObject) -> None:
        """The process dies in the middle of a move; what it believed is gone with it."""
        if self.path is None:
            return
        to, facts = data.draw(st.sampled_from(TABLE[self.model.state])), self._facts(actor)
        with interrupted(boundary, Killed()), pytest.raises(Killed):
            self.actors[actor].move(self.model.state, to, **facts)
        if boundary in ("replaced", "fsync-directory"):
            self.model = self._after(to, facts)
        self.actors[actor] = self.fresh()

    @rule(actor=st.sampled_from(ACTORS), boundary=st.sampled_from(BOUNDARIES[:3]), data=st.data())
    def full_disk(self, actor: int, boundary: str, data: st.DataObject) -> None:
        if self.path is None:
            return
        to = data.draw(st.sampled_from(TABLE[self.model.state]))
        full = OSError(errno.ENOSPC, "No space left on device")
        with interrupted(boundary, full), pytest.raises(RunError, match="the disk is full"):
            self.actors[actor].move(self.model.state, to, **self._facts(actor))

    @invariant()
    def whoever_comes_reads_the_model(self) -> None:
        if hasattr(self, "model"):
            assert self.fresh().read() == self.model


class SharedInMemory(Shared):
    on_disk = False


TestShared = Shared.TestCase
TestShared.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSharedInMemory = SharedInMemory.TestCase
TestSharedInMemory.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


# ------------------------------------------------------------------ real processes


@contextmanager
def processes(targets: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> Iterator[list[Any]]:
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=target, args=args) for target, args in targets]
    for process in started:
        process.start()
    try:
        yield started
    finally:
        for process in started:
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()


def _decide_all(folder: Path, me: int, barrier: Any, won: Any) -> None:
    for number in range(30):
        file = StateFile(folder / f"{number}.json", TABLE, "held")
        barrier.wait(PATIENCE)
        to = "released" if me % 2 else "refused"
        if file.move("held", to, by=me):
            won.put((number, me))


def test_of_processes_that_decide_at_once_exactly_one_decides(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(4), context.Queue()
    with processes([(_decide_all, (tmp_path, me, barrier, won)) for me in range(4)]) as started:
        found = [won.get(timeout=PATIENCE) for _ in range(30)]
    assert [process.exitcode for process in started] == [0] * 4
    assert won.empty()
    winners = dict(found)
    assert sorted(winners) == list(range(30))
    for number, me in winners.items():
        state, version, facts = StateFile(tmp_path / f"{number}.json", TABLE, "held").read()
        assert (state, version, facts["by"]) == ("released" if me % 2 else "refused", 1, me)


TURNS = {"up": ("down",), "down": ("up",)}


def _count(path: Path, me: int, times: int) -> None:
    file = StateFile(path, TURNS, "up")
    while times > 0:
        seen = file.read()
        mine = {str(me): seen.facts.get(str(me), 0) + 1}
        if file.move(seen, *TURNS[seen.state], **mine):
            times -= 1


def test_no_move_of_several_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    with processes([(_count, (path, me, 25)) for me in range(3)]) as started:
        pass
    assert [process.exitcode for process in started] == [0] * 3
    found = StateFile(path, TURNS, "up").read()
    assert found.version == 75
    assert found.facts == {"0": 25, "1": 25, "2": 25}


def test_a_process_that_is_killed_blocks_nobody_and_tears_nothing(tmp_path: Path) -> None:
    path = tmp_path / "count.json"
    mine = StateFile(path, TURNS, "up")
    for turn in range(3):
        with processes([(_count, (path, 1, 10**9))]) as (other,):
            while other.is_alive() and mine.read().facts.get("1", 0) < 5 * (turn + 1):
                pass
            assert other.is_alive()
            os.kill(other.pid, signal.SIGKILL)
        before = mine.read()
        assert mine.move(before, *TURNS[before.state], mine=turn)
        after = mine.read()
        assert (after.version, after.facts["mine"]) == (before.version + 1, turn)


# ------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"held"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"state": "held", "version": 1}',
        b'{"state": "nowhere", "version": 1, "facts": {}}',
        b'{"state": 1, "version": 1, "facts": {}}',
        b'{"state": ["held"], "version": 1, "facts": {}}',
        b'{"state": "held", "version": 0, "facts": {}}',
        b'{"state": "held", "version": true, "facts": {}}',
        b'{"state": "held", "version": 1.0, "facts": {}}',
        b'{"state": "held", "version": 1, "facts": []}',
        b'{"state": "held", "version": 1, "facts": {}, "more": 1}',
    ],
)
def test_a_damaged_file_is_neither_believed_nor_written_over(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "1-1.json"
    path.write_bytes(content)
    file = StateFile(path, TABLE, "computed")
    with pytest.raises(RunError, match="is damaged: restore it"):
        file.read()
    for expected in ("computed", "held"):
        with pytest.raises(RunError, match="is damaged"):
            file.move(expected, TABLE[expected][0])
    assert path.read_bytes() == content


def test_a_whole_file_cut_short_anywhere_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "1-1.json"
    file = StateFile(path, TABLE, "computed")
    assert file.move("computed", "held", since=1.5)
    whole = path.read_bytes()
    for size in range(len(whole) - 1):  # the last byte ends the line
        path.write_bytes(whole[:size])
        with pytest.raises(RunError, match="is damaged"):
            file.read()
    path.write_bytes(whole)
    assert file.read() == ("held", 1, {"since": 1.5})


def test_a_table_must_name_its_states() -> None:
    with pytest.raises(ProtocolError, match="no entry for 'b'"):
        StateFile(None, {"a": ("b",)}, "a")
    with pytest.raises(ProtocolError, match="no entry for 'c'"):
        StateFile(None, {"a": ()}, "c")


def test_a_state_that_another_process_keeps_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "_PATIENCE", 0.05)
    path = tmp_path / "1-1.json"
    held = states._locked(tmp_path / ".1-1.json.lock")
    try:
        with pytest.raises(RunError, match="does not let go: end it"):
            StateFile(path, TABLE, "computed").move("computed", "held")
        assert StateFile(path, TABLE, "computed").read().version == 0, "reading needs no lock"
    finally:
        os.close(held)
    assert StateFile(path, TABLE, "computed").move("computed", "held")


def test_a_move_that_cannot_be_made_makes_no_file(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "jobs" / "1-1.json", TABLE, "computed")
    assert not file.move("held", "released")
    assert not (tmp_path / "jobs").exists()


def test_a_lock_that_was_removed_with_its_folder_does_not_count(tmp_path: Path) -> None:
    """Two who hold a lock of one name must hold the same lock."""
    folder = tmp_path / "jobs"
    first = StateFile(folder / "1-1.json", TABLE, "computed")
    folder.mkdir()
    old = states._locked(folder / ".1-1.json.lock")
    shutil.rmtree(folder)
    try:
        assert first.move("computed", "held"), "the lock of before is no longer there"
    finally:
        os.close(old)
    assert first.read().state == "held"
