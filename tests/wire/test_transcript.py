from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import RunError
from consilience.protocol.mean_and_sd import Sums, SumsRequest
from consilience.wire.disclosure import aggregate, count
from consilience.wire.transcript import Transcript, describe_shape, read_transcript

SALT = b"salt"
X = np.random.default_rng(0).normal(size=(20, 3))
REPLY = Sums(n=count(20), totals=aggregate(X))


def write(transcript: Transcript, rounds: int = 3, refused: int | None = None) -> None:
    for round_ in range(1, rounds + 1):
        request = SumsRequest()
        transcript.message(request, round_=round_, step="s", site="a", direction="to-site")
        if round_ == refused:
            transcript.absence(
                round_=round_, step="s", site="a", verdict="refused", reason="the policy says no"
            )
        else:
            transcript.message(REPLY, round_=round_, step="s", site="a", direction="from-site")
    transcript.commit()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript.jsonl"


def test_lines_are_written_and_read_back(path: Path) -> None:
    transcript = Transcript(path, "run", SALT)
    write(transcript)
    lines = read_transcript(path)
    assert lines == tuple(transcript.lines)
    assert [line.field for line in lines[:3]] == ["", "n", "totals"], "an empty message has a line"
    assert lines[2].shape == "3"
    assert lines[2].disclosure == "aggregate"
    assert len({line.digest for line in lines}) == 3, "same field, same digest"


@pytest.mark.parametrize("sealed", [True, False])
def test_a_line_says_who_alone_could_open_it(path: Path, sealed: bool) -> None:
    transcript = Transcript(path, "run", SALT)
    where: dict[str, Any] = {"round_": 1, "step": "s", "site": "a"}
    for message, direction in ((SumsRequest(), "to-site"), (REPLY, "from-site")):
        transcript.message(message, direction=direction, sealed=sealed, **where)
    transcript.absence(verdict="refused", reason="no", sealed=sealed, **where)
    transcript.absence(verdict="absent", reason="late", **where)
    transcript.commit()
    wanted = ["sealed to a", *["sealed to coordinator"] * 3] if sealed else ["open"] * 4
    assert [line.protection for line in read_transcript(path)] == [*wanted, ""]


def test_a_run_that_goes_on_by_another_engine_keeps_what_was_written(path: Path) -> None:
    """How a field was carried, it was; what was carried must be the same."""
    where: dict[str, Any] = {"round_": 1, "step": "s", "site": "a", "direction": "from-site"}
    first = Transcript(path, "run", SALT)
    first.message(REPLY, sealed=True, **where)
    first.commit()
    written = path.read_bytes()
    again = Transcript(path, "run", SALT)
    again.message(REPLY, sealed=False, **where)
    again.commit()
    assert path.read_bytes() == written
    again.message(REPLY, sealed=False, **{**where, "round_": 2})
    assert [line.protection for line in again.lines] == ["sealed to coordinator"] * 2 + ["open"] * 2
    altered = replace(REPLY, n=count(21))
    with pytest.raises(RunError, match="was altered"):
        Transcript(path, "run", SALT).message(altered, sealed=True, **where)


def test_digests_are_salted(path: Path) -> None:
    first, second = (Transcript(None, "run", salt) for salt in (b"one", b"two"))
    for transcript in (first, second):
        write(transcript, 1)
    assert first.lines[1].digest != second.lines[1].digest
    assert replace(first.lines[1], digest="", chain="") == replace(
        second.lines[1], digest="", chain=""
    )


def test_no_value_is_in_a_transcript(path: Path) -> None:
    write(Transcript(path, "run", SALT))
    text = path.read_text()
    for value in (*X.ravel(), *X.sum(axis=0)):
        assert repr(float(value))[:8] not in text


def tampered(lines: list[str], how: str) -> list[str]:
    middle = len(lines) // 2
    if how == "altered":
        body = json.loads(lines[middle])
        lines[middle] = json.dumps({**body, "verdict": "public"}, sort_keys=True)
    elif how == "dropped":
        del lines[middle]
    elif how == "swapped":
        lines[middle], lines[middle + 1] = lines[middle + 1], lines[middle]
    elif how == "repeated":
        lines.insert(middle, lines[middle])
    elif how == "first dropped":
        del lines[0]
    elif how == "more keys":
        lines[middle] = json.dumps({**json.loads(lines[middle]), "extra": 1})
    elif how == "no line":
        lines[middle] = "not a line"
    elif how == "not an object":
        lines[middle] = "[1, 2]"
    return lines


@pytest.mark.parametrize(
    "how",
    [
        "altered",
        "dropped",
        "swapped",
        "repeated",
        "first dropped",
        "more keys",
        "no line",
        "not an object",
    ],
)
def test_tampering_breaks_the_chain(path: Path, how: str) -> None:
    write(Transcript(path, "run", SALT))
    lines = tampered(path.read_text().splitlines(), how)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"chain|cannot be read"):
        read_transcript(path)
    with pytest.raises(RunError, match=r"chain|cannot be read"):
        Transcript(path, "run", SALT)


def test_bytes_that_are_no_text(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(RunError, match="line 1 of the transcript"):
        read_transcript(path)


def test_a_missing_transcript(path: Path) -> None:
    with pytest.raises(RunError, match="cannot read the transcript"):
        read_transcript(path)


def test_a_replay_writes_nothing_twice(path: Path) -> None:
    write(Transcript(path, "run", SALT), rounds=2)
    before = path.read_bytes()
    again = Transcript(path, "run", SALT)
    write(again, rounds=2)
    assert path.read_bytes() == before
    write_more = Transcript(path, "run", SALT)
    write(write_more, rounds=3)
    assert path.read_bytes().startswith(before)
    assert len(read_transcript(path)) == 9


def test_a_replay_that_differs_is_refused(path: Path) -> None:
    write(Transcript(path, "run", SALT))
    with pytest.raises(RunError, match="line 2 of the transcript"):
        write(Transcript(path, "run", b"other salt"))
    with pytest.raises(RunError, match="line 5 of the transcript"):
        write(Transcript(path, "run", SALT), refused=2)


def test_torn_tails_are_cut_and_written_again(path: Path) -> None:
    write(Transcript(path, "run", SALT), rounds=2)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 37):
        path.write_bytes(whole[:cut])
        write(Transcript(path, "run", SALT), rounds=2)
        assert path.read_bytes() == whole


def test_asking_again_keeps_what_crossed_before(path: Path) -> None:
    write(Transcript(path, "run", SALT), rounds=3, refused=2)
    before = path.read_bytes()
    again = Transcript(path, "run", SALT)
    again.asked_again(2)
    write(again, rounds=3)
    lines = read_transcript(path)
    assert path.read_bytes().startswith(before)
    assert [line.verdict for line in lines].count("refused") == 1
    assert [line.verdict for line in lines].count("asked-again") == 1
    assert tuple(again.lines) == lines
    replayed = Transcript(path, "run", SALT)
    write(replayed, rounds=3)
    assert tuple(replayed.lines) == lines, "a replay after asking again writes nothing"
    with pytest.raises(RunError):
        write(Transcript(path, "run", SALT), rounds=3, refused=2)


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (np.ones((2, 3)), "2x3"),
        (np.ones(()), "scalar"),
        (1.0, "scalar"),
        ("text", "scalar"),
        (b"xyz", "bytes"),
        ((1.0, 2.0), "2 of [scalar]"),
        ({"a": np.ones(2)}, "{a: 2}"),
    ],
)
def test_shapes(value: object, shape: str) -> None:
    assert describe_shape(value) == shape
