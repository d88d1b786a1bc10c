"""The table of faults is what the tests say, and nothing is missing in it."""

from __future__ import annotations

import pytest

from consilience.protocol import BUILT_IN
from tests.faults import test_crashes, test_matrix
from tests.faults.cases import CASES
from tools import table_faults
from tools.table_faults import FLOWER, FOLDER, PAGE, cases_of, cells, exists, methods, page


def test_the_table_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs-table`"


def test_every_method_has_every_fault_on_the_folder_engine() -> None:
    installed = set(BUILT_IN)
    assert installed <= {case.method().name for case in CASES.values()}
    empty = [
        (fault, method)
        for fault, tests in FOLDER.items()
        for method, found in cells(tests).items()
        if not found
    ]
    assert not empty
    assert installed <= set(methods())


def test_what_is_marked_as_failing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "test_every_message_is_damaged"
    assert cases_of(test_matrix, name, {"damage": "altered"}) == set(CASES)
    assert cases_of(test_matrix, name, {"damage": "no such damage"}) == set()

    @pytest.mark.parametrize("case", ["mean-and-sd", pytest.param("x", marks=pytest.mark.xfail)])
    def one(case: str) -> None:
        """Stands for a test."""

    monkeypatch.setattr(test_crashes, "one", one, raising=False)
    assert cases_of(test_crashes, "one", {}) == {"mean-and-sd"}
    monkeypatch.setattr(test_crashes, "one", pytest.mark.xfail(one))
    assert cases_of(test_crashes, "one", {}) == set()


def test_tests_that_are_named_exist() -> None:
    assert all(exists(test) for test in FLOWER.values() if test)
    assert exists("tests/faults/test_table.py::test_tests_that_are_named_exist")
    assert not exists("tests/faults/test_table.py::test_that_is_nowhere")
    assert not exists("tests/nowhere.py::test_tests_that_are_named_exist")
    assert table_faults.TOP in page()
