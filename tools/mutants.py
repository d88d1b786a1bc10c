"""Put a fixed list of small faults into the code, one at a time, and see which the tests find.

``tests/mutants.toml`` holds the list. A mutant is a line of one file and what stands there instead:

.. code-block:: toml

    [[mutant]]
    id = "gate-01"                      # area and number
    kind = "comparison"                 # what was done
    file = "src/consilience/sites/gate.py"
    old = "if n < limits.min_records:"  # the line, without its indentation
    new = "if n <= limits.min_records:"
    nth = 1                             # which line with this text, where there are several
    tests = ["tests/sites/test_gate.py"]  # those that concern it, the likeliest first
    survives = "equivalent: ..."        # only of those that no test can or does find: why

``make mutants`` copies the tracked files into a folder for each worker, runs the tests of the list
on the unchanged copy (they must pass, or "killed" would mean nothing), then each mutant against its
tests until the first failure: those of ``make test`` first, then the slow ones for what survived.
It writes a row for each mutant and ends with 1 if one survives that the list does not explain, or
if one dies that it calls equivalent.

Each mutant runs in a fork of a process that has imported the libraries, not the package. Compiled
kernels are compiled anew for mutants of a file that holds some: callers keep what they inlined.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "mutants.toml"
TABLE = ROOT / "tests" / "mutants.csv"
FIELDS = ("id", "kind", "file", "verdict", "by")
SECONDS = 300.0
"""A mutant that runs longer, many times what its tests take, is found: something does not end."""
NO_TESTS = "no tests"
PRELOADED = (
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "glum",
    "hypothesis",
    "joblib",
    "numba",
    "pandas",
    "pyarrow",
    "pydantic",
    "pytest",
    "rich",
    "scipy.stats",
    "sklearn.ensemble",
    "skops.io",
    "typer",
    "xdist",
)


@dataclass(frozen=True)
class Mutant:
    """One fault; see the module's docstring."""

    id: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    nth: int = 1
    survives: str = ""


class MutantError(Exception):
    """The list does not fit the code."""


def read_list(path: Path = LIST) -> list[Mutant]:
    """Read the list; names are distinct.

    Raises
    ------
    MutantError
        There is no list, or two mutants have one name.
    """
    if not path.is_file():
        raise MutantError(f"there is no list {path}: name one with --list")
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    twice = [name for name, n in Counter(one.id for one in mutants).items() if n > 1]
    if twice:
        raise MutantError(f"{path.name} has two mutants named {twice[0]}: rename one")
    return mutants


def mutate(text: str, mutant: Mutant) -> str:
    """Return a module's text with the fault in it.

    Raises
    ------
    MutantError
        The line is not there as often as the mutant says.
    """
    lines = text.splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if line.strip() == mutant.old]
    if len(places) < mutant.nth:
        raise MutantError(
            f"mutant {mutant.id}: {mutant.file} has {len(places)} lines {mutant.old!r}, "
            f"the list wants number {mutant.nth}: correct the list"
        )
    at = places[mutant.nth - 1]
    lines[at] = lines[at].replace(mutant.old, mutant.new)
    return "".join(lines)


# --------------------------------------------------------------------------- running


def copy_tracked(to: Path, root: Path = ROOT) -> None:
    """Copy the files that git tracks, and new ones that it does not ignore, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for kept in (root / "src").rglob("*.nb[ci]"):  # kernels as they were last compiled
        place = to / kept.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(kept, place)
    (to / ".venv").symlink_to(root / ".venv")


def in_fork(
    copy: Path,
    tests: Sequence[str],
    marks: str,
    cache: Path | None = None,
    seconds: float = SECONDS,
) -> tuple[str, str]:
    """Run tests in a fork of this process.

    Returns
    -------
    verdict : str
        ``"survived"``, ``"killed"``, ``"killed (time)"``, ``"no tests"``, or ``"broken"``.
    by : str
        The first test that failed, or what else happened.
    """
    told = copy / "failed.txt"
    told.unlink(missing_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        code = 70
        try:
            code = _run_tests(copy, tests, marks, cache, told)
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        late = time.monotonic() > end
        if pid or late:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what the tests started and left
    if not pid:
        os.waitpid(child, 0)
        return "killed (time)", f"more than {seconds:g} s"
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "survived", ""
    if code == 5:
        return NO_TESTS, ""
    if code in (1, 2) and told.exists():
        return "killed", told.read_text()
    return "broken", f"exit {code}"  # of pytest or of the machine: that finds no fault


def _run_tests(copy: Path, tests: Sequence[str], marks: str, cache: Path | None, told: Path) -> int:
    import pytest

    class Witness:
        @staticmethod
        def pytest_runtest_logreport(report: Any) -> None:
            if report.failed and not told.exists():
                told.write_text(report.nodeid)

        @staticmethod
        def pytest_collectreport(report: Any) -> None:
            if report.failed and not told.exists():
                told.write_text(f"{report.nodeid} (not collected)")

    os.chdir(copy)
    quiet = os.open(copy / "last.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path[:0] = [str(copy), str(copy / "src")]
    os.environ["PYTHONPATH"] = f"{copy / 'src'}{os.pathsep}{copy}"
    if cache is not None:
        os.environ["NUMBA_CACHE_DIR"] = str(cache)
        import numba

        numba.config.CACHE_DIR = str(cache)  # type: ignore[attr-defined]
    present = [name for name in tests if (copy / name.split("::")[0]).exists()]
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marks, *present]
    return int(pytest.main(words, plugins=[Witness()]))


def try_one(copy: Path, mutant: Mutant, marks: Sequence[str]) -> tuple[str, str]:
    """Put one fault into a copy, run its tests, and take it out again.

    What survives the tests of the first marks meets those of the next.
    """
    path = copy / mutant.file
    text, times = path.read_text(encoding="utf-8"), path.stat()
    compiled = "@compiled" in text or "njit" in text
    cache = Path(tempfile.mkdtemp()) if compiled else None
    try:
        path.write_text(mutate(text, mutant), encoding="utf-8")
        _forget(path)
        outcome = NO_TESTS, "no test of the list was collected"
        for chosen in marks:
            found = in_fork(copy, mutant.tests, chosen, cache)
            if found[0] != NO_TESTS:
                outcome = found
            if found[0].startswith("killed"):
                break
        return outcome
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        _forget(path)
        if cache is not None:
            shutil.rmtree(cache, ignore_errors=True)


def _forget(path: Path) -> None:
    """Byte code is told by whole seconds and size, both of which a mutant may share."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def work(mutants: Sequence[Mutant], marks: Sequence[str], copy: Path, number: int, of: int) -> None:
    """One worker: every `of`-th mutant; a line for each into its own file."""
    rows = copy.parent / f"rows-{number}.csv"
    with open(rows, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for mutant in mutants[number::of]:
            began = time.monotonic()
            verdict, by = try_one(copy, mutant, marks)
            writer.writerow([mutant.id, mutant.kind, mutant.file, verdict, by])
            file.flush()
            seconds = time.monotonic() - began
            print(f"{mutant.id:24} {verdict:14} {seconds:6.1f} s  {by}", flush=True)


def run_all(
    mutants: Sequence[Mutant], marks: Sequence[str], workers: int, *, known_green: bool = False
) -> dict[str, tuple[str, ...]]:
    """Rows of the table by name of the mutant.

    Raises
    ------
    MutantError
        The tests of the list fail without any fault, or a worker fails.
    """
    os.environ.setdefault("CONSILIENCE_ROTATION", "0")  # the same parts of products every time
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Path(folder) / f"copy-{number}" for number in range(workers)]
        for copy in copies:
            copy.mkdir()
            copy_tracked(copy)
        if not known_green:
            _check_unchanged(mutants, " or ".join(f"({one})" for one in marks), copies)
        children = []
        for number, copy in enumerate(copies):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                try:
                    work(mutants, marks, copy, number, workers)
                except BaseException:  # noqa: BLE001
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        ends = [os.waitpid(child, 0)[1] for child in children]
        if any(ends):
            raise MutantError("a worker ended before its list did: what it said stands above")
        rows: dict[str, tuple[str, ...]] = {}
        for path in Path(folder).glob("rows-*.csv"):
            with open(path, newline="", encoding="utf-8") as file:
                rows |= {row[0]: tuple(row) for row in csv.reader(file)}
    return rows


def _check_unchanged(mutants: Sequence[Mutant], marks: str, copies: Sequence[Path]) -> None:
    """Run the tests of the list on every copy without a fault: this fills their caches, too."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    children = []
    for number, copy in enumerate(copies):
        child = os.fork()
        if child == 0:
            mine = tests[number :: len(copies)] or tests
            verdict, by = in_fork(copy, mine, marks, None, seconds=float("inf"))
            if verdict != "survived":
                print(f"without any fault: {verdict}: {by}", flush=True)
            os._exit(verdict != "survived")
        children.append(child)
    if any([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]):
        raise MutantError("the tests fail without any fault: mend them first")


# --------------------------------------------------------------------------- the table


def write_table(rows: Iterable[tuple[str, ...]], path: Path) -> None:
    """Write a row for each mutant, in the order of their names."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(sorted(rows))


def faults_of(mutants: Sequence[Mutant], rows: dict[str, tuple[str, ...]]) -> list[str]:
    """Sentences: who survives without an explanation, and who dies in spite of one."""
    found = []
    for mutant in mutants:
        verdict = rows.get(mutant.id, ("", "", "", "not run"))[3]
        if verdict.startswith("killed"):
            if mutant.survives:
                found.append(f"{mutant.id} is killed, but the list says: {mutant.survives}")
        elif not (verdict == "survived" and mutant.survives):
            found.append(f"{mutant.id} {verdict}: {mutant.file}: {mutant.new}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the list, or what is named of it."""
    parser = argparse.ArgumentParser(description="Which small faults do the tests find?")
    parser.add_argument("names", nargs="*", help="only those whose names begin so")
    parser.add_argument(
        "--marks",
        required=True,
        action="append",
        help="pytest's -m: the tests that count; given again, those for what survived",
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--known-green", action="store_true", help="all tests have just passed")
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--table", type=Path, help="where the rows go")
    given = parser.parse_args(words)
    wanted = tuple(given.names) or ("",)
    try:
        mutants = [one for one in read_list(given.list) if one.id.startswith(wanted)]
        if not mutants:
            raise MutantError(f"no mutant's name begins with {' or '.join(wanted)}: see the list")
        rows = run_all(mutants, given.marks, given.workers, known_green=given.known_green)
    except MutantError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    if (given.table or not given.names) and len(rows) == len(mutants):
        write_table(rows.values(), given.table or TABLE)
    killed = sum(row[3].startswith("killed") for row in rows.values())
    print(f"{killed} of {len(mutants)} killed")
    found = faults_of(mutants, rows)
    for sentence in found:
        print(sentence)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
