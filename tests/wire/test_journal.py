from __future__ import annotations

from pathlib import Path

import pytest

from consilience.exceptions import RunError
from consilience.wire.envelope import Reply
from consilience.wire.transcript import Journal, JournaledAsk

ASK = JournaledAsk("sums", ("a", "b"), "all", "digest")
GOOD = Reply("r", 2, 1, "sums", "a", "reply", b"m", "").to_bytes()
REFUSED = Reply("r", 2, 1, "sums", "b", "refused", b"", "no").to_bytes()


def filled(path: Path | None) -> Journal:
    journal = Journal(path)
    journal.ask(1, ASK)
    journal.reply((1, "a"), GOOD, sealed=True)
    journal.absent((1, "b"), "too late")
    journal.deliver(1, ((1, "a"), (1, "b")))
    journal.ask(2, ASK)
    journal.reply((2, "b"), REFUSED)
    journal.reply((2, "a"), GOOD)
    journal.commit()
    return journal


def content(journal: Journal) -> tuple[object, ...]:
    return journal.asks, journal.replies, journal.delivered, journal.attempt


def test_a_journal_is_read_back(tmp_path: Path) -> None:
    written = filled(tmp_path / "log")
    read = Journal(tmp_path / "log")
    assert content(read) == content(written) == content(filled(None))
    assert [reply.sealed for reply in read.replies.values()] == [True, False, False, False]
    assert list(read.replies) == [(1, "a"), (1, "b"), (2, "b"), (2, "a")], "order of arrival"


def test_every_torn_tail_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    sizes = []
    journal = Journal(path)
    for step in range(1, 4):
        journal.ask(step, ASK)
        journal.reply((step, "a"), GOOD)
        journal.commit()
        sizes.append(path.stat().st_size)
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        read = Journal(path)
        whole = sum(size <= cut for size in sizes)
        assert sum((step, "a") in read.replies for step in range(1, 4)) == whole
        assert path.read_bytes() == data[: path.stat().st_size]
        read.absent((9, "b"), "afterwards")
        read.commit()
        assert Journal(path).replies[9, "b"].reason == "afterwards"


def test_a_damaged_record_ends_the_journal_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filled(path)
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[:4], "little")
    for place in range(first, first + 20):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        read = Journal(path)
        assert read.asks == {1: ASK}
        assert read.replies == {}


def test_another_ask_is_refused() -> None:
    journal = filled(None)
    journal.ask(1, ASK)
    with pytest.raises(RunError, match="round 1 asks something else"):
        journal.ask(1, JournaledAsk("sums", ("a", "b"), "all", "other"))


def test_asking_again_forgets_what_was_not_good(tmp_path: Path) -> None:
    journal = filled(tmp_path / "log")
    journal.deliver(2, ((2, "a"), (2, "b")))
    journal.ask(3, ASK)
    journal.reply((3, "a"), GOOD)
    journal.retry_from(2)
    for seen in (journal, Journal(tmp_path / "log")):
        assert seen.attempt == 2
        assert sorted(seen.asks) == [1, 2]
        assert sorted(seen.delivered) == [1]
        assert sorted(seen.replies) == [(1, "a"), (1, "b"), (2, "a")]
