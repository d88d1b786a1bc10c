"""Marks follow from recorded seconds, and what is recorded exists."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import durations
from tests.rotation import VARIABLE, by_turns, one_in, rotation


class _Fixture(SimpleNamespace):
    __hash__ = object.__hash__


ROOT = Path(__file__).resolve().parents[1]


def test_marks() -> None:
    seconds = (0.0, 0.06, 0.07, 0.29, 0.3, 7.9, 8.0, 500.0)
    marks = ["", "", "medium", "medium", "slow", "slow", "long", "long"]
    assert [durations.mark_of(s) for s in seconds] == marks


def test_what_has_its_turn_on_another_day_takes_as_long() -> None:
    recorded = {"t.py::x[a-1]": 4.0, "t.py::x[a-2]": 5.0, "t.py::x[b-1]": 1.0}
    assert durations.expected("t.py::x[a-3]", recorded, by_turns=True) == 5.0
    assert durations.expected("t.py::x[a-1]", recorded, by_turns=True) == 4.0
    assert durations.expected("t.py::x[a-3]", recorded, by_turns=False) == 0.0


def test_every_heavy_test_has_its_turn() -> None:
    days = range(7, 7 + durations.DAYS)
    assert all(durations.has_its_turn("a.py::t", 0.9, day) for day in days)
    for name in ("a.py::t", "b.py::t", "c/d.py::t[e]"):
        turns = [durations.has_its_turn(name, 1.0, day) for day in days]
        assert sum(turns) == 1
        assert turns == [durations.has_its_turn(f"{name}2", 9.0, day) for day in days]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "seconds.tsv"
    assert durations.read(path) == {}
    durations.write({"b.py::y[a\u00e4 b]": 12.345, "a.py::x": 0.1, "a.py::quick": 0.049}, path)
    assert durations.read(path) == {"a.py::x": 0.1, "b.py::y[a\u00e4 b]": 12.0}


def test_only_what_is_far_off_is_told() -> None:
    recorded = {"a": 0.5, "b": 1.0, "c": 5.0}
    assert durations.off({"a": 0.5, "b": 20.0, "c": 0.4, "new": 0.2}, recorded) == []
    found = durations.off({"a": 0.5, "b": 25.0, "c": 0.09, "new": 1.0}, recorded)
    assert [sentence.split()[0] for sentence in found] == ["b", "c", "new"]


def test_a_machine_that_is_slow_as_a_whole_is_allowed_for() -> None:
    recorded = {name: 1.0 for name in "abcde"}
    assert durations.off({name: 9.5 for name in "abcde"}, recorded) == []
    assert durations.off({**{name: 9.5 for name in "abcd"}, "e": 1900.0}, recorded) != []


def test_who_is_named_long_is_there() -> None:
    longest = {name for name, s in durations.read().items() if s >= durations.LIMITS["long"]}
    assert durations.LONG - {name.split("[")[0] for name in longest} == set(), "not named any more"


def test_what_tests_share_counts_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 3.0, 3.0, 3.5])
    monkeypatch.setattr(durations.time, "perf_counter", lambda: next(now))
    clock = durations.Clock(SimpleNamespace(getoption=lambda _: True))  # type: ignore[arg-type]
    study, own = _Fixture(scope="module"), _Fixture(scope="function")

    def others(*used: object, sets_up: tuple[object, ...] = ()) -> float:
        for fixture in sets_up:
            list(clock.pytest_fixture_setup(fixture))  # type: ignore[arg-type]
        fixtures = SimpleNamespace(name2fixturedefs={str(i): [d] for i, d in enumerate(used)})
        report = clock.pytest_runtest_makereport(SimpleNamespace(_fixtureinfo=fixtures))  # type: ignore[arg-type]
        next(report)
        with pytest.raises(StopIteration) as ended:
            report.send(SimpleNamespace(when="setup"))  # type: ignore[attr-defined]
        return float(ended.value.value.seconds_of_others)

    assert others(study, sets_up=(study,)) == 0.0  # it is in its own time
    assert others(study, own, sets_up=(own,)) == 3.0
    assert others() == 0.0


def test_recorded_tests_exist() -> None:
    """By file and function; a new parameter may be without a record."""
    known: dict[str, str] = {}
    gone = set()
    for name in durations.read():
        file, _, rest = name.partition("::")
        if file not in known:
            path = ROOT / file
            known[file] = path.read_text(encoding="utf-8") if path.is_file() else ""
        function = rest.split("[")[0].split("::")[-1]
        if function != "runTest" and not re.search(rf"def {function}\b", known[file]):
            gone.add(f"{file}::{function}")
    assert gone == set(), "run `make durations`, or remove their lines"


def test_each_of_the_first_factors_meets_one_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    met = set()
    for day in range(3):
        monkeypatch.setenv(VARIABLE, str(day))
        assert rotation() == day
        rows = by_turns("ab", {"x": 1, "y": 2}, "123", names="first, second, third").mark.args[1]
        assert len(rows) == 12
        today = [row.values for row in rows if row.marks[0].name == "turn"]
        assert {row[:2] for row in today} == {(a, b) for a in "ab" for b in (1, 2)}
        met |= set(today)
    assert len(met) == 12


def test_a_day_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "monday")
    with pytest.raises(pytest.UsageError, match="must be a whole number, not 'monday'"):
        rotation()


def test_each_value_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    for day in range(3):
        monkeypatch.setenv(VARIABLE, str(day))
        rows = one_in(3, {"x": 1, "y": 2, "z": 3, "u": 4}, "value").mark.args[1]
        met.append([row.values[0] for row in rows if row.marks[0].name == "turn"])
    assert sorted(met) == [[1, 4], [2], [3]]
