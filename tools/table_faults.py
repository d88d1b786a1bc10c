"""Write docs/reference/faults.md: which test puts which fault to which method on which engine.

A cell names the tests; it is empty where there is none, or where the test is marked as failing or
skipped. Cells of the folder engine are read from the parameters of the tests themselves.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from consilience.protocol import BUILT_IN

# Tests are not typed as strictly as tools: they are imported without their types.
test_crashes: Any = importlib.import_module("tests.faults.test_crashes")
test_matrix: Any = importlib.import_module("tests.faults.test_matrix")
CASES: dict[str, Any] = importlib.import_module("tests.faults.cases").CASES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "faults.md"
TOP = """\
<!-- written by tools/table_faults.py: change the tests, then run `make docs-table` -->
# Faults and the tests that put them

Each test runs a small study of the method while the fault happens, and then compares with an
undisturbed run: the result has the same bytes (what sites draw anew in each run, and what is sealed
for one another, is compared by what it holds), the transcript has the same lines, and no site has
computed a step twice or said two things. Where the fault does not end, the run ends with exit code
8 and a sentence that names the site.

Where a fault has several ends, kinds or boundaries, `make test-faults` puts it at one of them for
each method, at the next on the next day (`CONSILIENCE_ROTATION`, told in the last lines of a run,
repeats a day); `make test-nightly` puts it everywhere.

Numbers stand for the tests below the tables. An empty cell is not tested, or fails.

## Folder engine, `make test-faults`

A boundary is any write that is there after a power cut: an ask, a reply, a record of a site; at the
coordinator an ask in its journal, all replies that come at once, and the transcript's lines of a
round's questions or of its answers. Times and retries (`events.jsonl`) may lose their last lines.
Every boundary and every message of the study is meant.

At a site the durable unit is the answer: its record has the reply, the state after it, and what the
run has been told of repeated sums and has counted, and is on disk as a whole before the reply
leaves, at the price of two waits for the disk (the file, and its name in the folder). A long array
of the state that a step leaves as it was given stands in the record of the answer that made it, and
later ones name that record: if it is damaged, so are they. Budgets are on disk before the step that
they are charged for; directions, outputs, what is kept for the data and lines of the log before the
record, so before the reply leaves. What a question notes there waits together: once for each file,
and once for each folder. An opening so waits twice for the ledger, once for the log and twice for
its record, and twice for the rows of the run where no earlier run was over the same ones. Only
`reading.json` is not waited for: the log says in words what became of the rows.
"""
FLOWER_TOP = """\
## Flower engine, `make test-flower`

The methods do not differ here: what is signed and kept is the same as on the folder engine. Faults
of several kinds take turns here, too.
"""

Tests = tuple[tuple[Any, str, dict[str, Any]], ...]


def _matrix(name: str, **chosen: Any) -> Tests:
    return ((test_matrix, name, chosen),)


def _crash(name: str, **chosen: Any) -> Tests:
    return ((test_crashes, name, chosen),)


def _killed(who: str) -> Tests:
    """The shortest run is killed at every boundary in `make test-faults`, the others at night."""
    short = (test_crashes, "test_a_short_run_killed_at_every_boundary", {"who": who})
    return (*_crash("test_killed_at_every_boundary", who=who), short)


_DAMAGED, _FULL = "test_every_message_is_damaged", "test_the_disk_is_full_at_every_boundary"
_FROZEN, _CLOCKS = "test_frozen_and_thawed_at_every_boundary", "test_clocks_are_hours_apart"
_EVERY = _matrix("test_every_process_is_killed_at_every_boundary")

FOLDER: dict[str, Tests] = {
    "`kill -9` of the coordinator": _killed("coordinator"),
    "`kill -9` of a site": _killed("ash"),
    "`kill -9` and restart of every process": _EVERY,
    "coordinator frozen and thawed": _matrix(_FROZEN, who="coordinator"),
    "site frozen and thawed": _matrix(_FROZEN, who="ash"),
    "duplicated files": _matrix(_DAMAGED, damage="duplicated"),
    "reordered files": _matrix(_DAMAGED, damage="reordered"),
    "truncated files": _matrix(_DAMAGED, damage="truncated"),
    "altered files": _matrix(_DAMAGED, damage="altered"),
    "files altered without end": _matrix("test_a_message_that_never_arrives_whole_is_reported"),
    "full disk at the coordinator": _matrix(_FULL, who="coordinator"),
    "full disk at a site": _matrix(_FULL, who="ash"),
    "coordinator's clock ahead": _matrix(_CLOCKS, hours="coordinator ahead"),
    "coordinator's clock behind": _matrix(_CLOCKS, hours="coordinator behind"),
    "clocks that jump": _matrix(_CLOCKS, hours="jumping"),
}

_WAITS = "tests/flower/test_authentication.py::test_a_node_waits_and_says_why_once"
FLOWER: dict[str, str] = {
    "kill and restart of the SuperLink": "tests/flower/test_faults.py::test_the_server_dies",
    "kill and restart of SuperNodes": (
        "tests/flower/test_faults.py::test_nodes_die_with_a_message_in_hand"
    ),
    "SuperNode frozen and thawed": "tests/flower/test_faults.py::test_a_node_stops_and_goes_on",
    "kill and restart of the coordinator": (
        "tests/flower/test_faults.py::test_the_client_dies_and_is_resumed"
    ),
    "wrong CA": _WAITS,
    "expired certificate": _WAITS,
    "node key that is not registered": (
        "tests/flower/test_authentication.py::test_a_node_whose_key_is_not_registered"
    ),
    "node without TLS": _WAITS,
    "message that is delivered twice": (
        "tests/flower/test_replay.py::test_a_server_that_delivers_twice"
    ),
    "replayed reply": "tests/flower/test_replay.py::test_replies_of_another_place_are_not_accepted",
    "replayed ask": "tests/flower/test_replay.py::test_asks_of_another_place_are_not_answered",
}
"""Fault and its test, as ``tests/file.py::test_name``; empty until there is one."""


def methods() -> tuple[str, ...]:
    """Methods in the table: all that are installed with the package."""
    ours = {case.method().name for case in CASES.values()}
    return tuple(sorted(ours | set(BUILT_IN)))


def cases_of(module: Any, name: str, chosen: dict[str, Any]) -> set[str]:
    """Names of the cases that a test is run on, with these values of its other parameters."""
    found: set[str] = set()
    marks = [mark for mark in vars(module)[name].pytestmark if mark.name == "parametrize"]
    others = {"skip", "xfail", "skipif"} & {mark.name for mark in vars(module)[name].pytestmark}
    for mark in marks:
        names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
        given = [
            one.values if hasattr(one, "marks") else (one,) if len(names) == 1 else one
            for one in mark.args[1]
            if not _fails(one)
        ]
        rows = [dict(zip(names, values, strict=True)) for values in given]
        rows = [row for row in rows if all(chosen.get(k, v) == v for k, v in row.items())]
        if not rows:
            return set()
        if "case" in names:
            found = {row["case"] for row in rows}
    return set() if others else found


def _fails(parameter: Any) -> bool:
    marks = {mark.name for mark in getattr(parameter, "marks", ())}
    return bool(marks & {"skip", "xfail", "skipif"})


def cells(tests: Tests) -> dict[str, list[tuple[Any, str]]]:
    """For each method, the tests of one fault."""
    found: dict[str, list[tuple[Any, str]]] = {method: [] for method in methods()}
    for module, name, chosen in tests:
        for case in cases_of(module, name, chosen):
            method = CASES[case].method().name
            if (module, name) not in found[method]:
                found[method].append((module, name))
    return found


def exists(test: str) -> bool:
    """Whether a test that is named by file and function is there."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and re.search(rf"^def {name}\(", path.read_text(), re.M) is not None


def page() -> str:
    """The page as it should be."""
    return "\n".join([TOP, *_folder(), "", FLOWER_TOP, *_flower(), ""])


def _folder() -> Iterator[str]:
    names = methods()
    numbers: dict[str, int] = {}
    yield "| fault | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for fault, tests in FOLDER.items():
        row = []
        for found in cells(tests).values():
            ids = [f"tests/faults/{m.__name__.split('.')[-1]}.py::{name}" for m, name in found]
            row.append(", ".join(str(numbers.setdefault(i, len(numbers) + 1)) for i in ids))
        yield f"| {fault} | " + " | ".join(row) + " |"
    yield ""
    for test, number in numbers.items():
        yield f"{number}. `{test}`"


def _flower() -> Iterator[str]:
    yield "| fault | test |"
    yield "|---|---|"
    for fault, test in FLOWER.items():
        yield f"| {fault} | {f'`{test}`' if test and exists(test) else ''} |"


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
