"""The reference pages say what the program does."""

from __future__ import annotations

import re

from consilience import exceptions
from consilience.cli.console import INTERRUPTED, UNFORESEEN
from tools.table_cli import PAGE, page

CODES = PAGE.with_name("exit-codes.md")


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make docs-table"


def test_every_error_has_its_documented_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \|([^|]*)\|", CODES.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: int(code) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    kinds = {
        name: kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, exceptions.ConsilienceError)
    }
    del kinds["ConsilienceError"]
    assert documented == {name: kind.exit_code for name, kind in kinds.items()}
    assert {0, UNFORESEEN, INTERRUPTED} <= {int(code) for code, _ in rows}
