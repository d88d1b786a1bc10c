"""The list of small faults fits the code, and its table says that all of them are accounted for."""

from __future__ import annotations

import ast
import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutants import LIST, TABLE, Mutant, MutantError, faults_of, main, mutate, read_list

ROOT = Path(__file__).resolve().parents[1]
BEFORE = ROOT / "tests/mutants_before.csv"
MUTANTS = read_list()
ONE = Mutant("a-1", "sign", "a.py", "x = a + b", "x = a - b", ("tests/test_a.py",))


def test_each_is_one_line_of_the_code() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        changed = mutate(text, mutant)
        lines = zip(text.splitlines(), changed.splitlines(), strict=True)
        assert sum(one != other for one, other in lines) == 1, mutant.id
        ast.parse(changed)


def test_each_names_tests_that_exist() -> None:
    assert [m.id for m in MUTANTS if not m.tests] == []
    named = {test for mutant in MUTANTS for test in mutant.tests}
    assert [test for test in sorted(named) if not (ROOT / test).is_file()] == []


def test_the_table_is_that_of_the_list() -> None:
    with open(TABLE, newline="", encoding="utf-8") as file:
        rows = {row["id"]: tuple(row.values()) for row in csv.DictReader(file)}
    assert set(rows) == {mutant.id for mutant in MUTANTS}
    assert faults_of(MUTANTS, rows) == []


def test_what_was_found_before_the_tests_were_made_quicker_is_found() -> None:
    """The table of the tests as they were stays beside that of the tests as they are."""
    found = []
    for path in (BEFORE, TABLE):
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            found.append({row["id"] for row in rows if row["verdict"].startswith("killed")})
    before, now = found
    assert len(before) > 150
    assert before - now == set()


def test_the_right_line_is_changed_and_no_other() -> None:
    text = "x = a + b\nif y:\n    x = a + b\nx = a + bb\n"
    assert mutate(text, ONE).splitlines()[0] == "x = a - b"
    second = Mutant(**{**vars(ONE), "nth": 2})
    assert mutate(text, second) == "x = a + b\nif y:\n    x = a - b\nx = a + bb\n"
    with pytest.raises(MutantError, match="has 2 lines 'x = a \\+ b', the list wants number 3"):
        mutate(text, Mutant(**{**vars(ONE), "nth": 3}))


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = LIST.read_text(encoding="utf-8").split("[[mutant]]")[1]
    (tmp_path / "list.toml").write_text(f"[[mutant]]{entry}[[mutant]]{entry}", encoding="utf-8")
    with pytest.raises(MutantError, match="two mutants named"):
        read_list(tmp_path / "list.toml")


def test_what_is_not_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["--list", str(tmp_path / "none.toml")], "mutants: there is no list"),
        (["gate-99"], "mutants: no mutant's name begins with gate-99"),
    ):
        assert main(["--marks", "not slow", *words]) == 2
        assert capsys.readouterr().err.startswith(said)


def test_survivors_need_a_reason_and_a_reason_needs_a_survivor() -> None:
    excused = Mutant(**{**vars(ONE), "survives": "equivalent: a and b are 0"})
    killed = {"a-1": ("a-1", "sign", "a.py", "killed", "tests/test_a.py::test_x")}
    alive = {"a-1": ("a-1", "sign", "a.py", "survived", "")}
    assert faults_of([ONE], killed) == faults_of([excused], alive) == []
    assert faults_of([ONE], alive) == ["a-1 survived: a.py: x = a - b"]
    assert faults_of([excused], killed)[0].startswith("a-1 is killed, but the list says")
    assert faults_of([ONE], {}) == ["a-1 not run: a.py: x = a - b"]


def test_a_fault_is_put_in_and_found(tmp_path: Path) -> None:
    """All of the way, with one fault that is found and one that is none."""
    fault = """
[[mutant]]
id = "{id}"
kind = "off by one"
file = "tests/durations.py"
old = "WORTH_RECORDING = 0.05"
new = "WORTH_RECORDING = {new}"
tests = ["tests/test_durations.py"]
"""
    listed, table = tmp_path / "some.toml", tmp_path / "some.csv"
    listed.write_text(fault.format(id="a", new="20.1") + fault.format(id="b", new="0.050"))
    words = ["--marks", "not slow", "--workers", "1", "--list", str(listed), "--table", str(table)]
    told = subprocess.run(
        [sys.executable, "-m", "tools.mutants", *words],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    verdicts = [line.split(",")[0:4:3] for line in table.read_text().splitlines()[1:]]
    assert verdicts == [["a", "killed"], ["b", "survived"]], told.stdout + told.stderr
    assert told.returncode == 1
    assert "b survived" in told.stdout
