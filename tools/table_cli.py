"""Write docs/reference/command-line.md from what the commands themselves say under ``--help``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer.main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "command-line.md"
SETTINGS: dict[str, Any] = {"terminal_width": 92, "help_option_names": ["-h", "--help"]}
TOP = """\
<!-- written by tools/table_cli.py: change the commands, then run `make docs-table` -->
# Command line

Every command ends with a number: see [exit codes](exit-codes.md). `--debug` may be added to any of
them.
"""


def page() -> str:
    """The page as it should be."""
    from consilience.cli.main import app

    root = typer.main.get_command(app)
    context = root.context_class(root, info_name="consilience", **SETTINGS)
    parts = [TOP, *_sections(root, context)]
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    text = "\n".join(row.rstrip() for row in command.get_help(context).splitlines())
    yield f"## `{context.command_path}`\n\n```text\n{text}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                child = inner.context_class(inner, info_name=name, parent=context, **SETTINGS)
                yield from _sections(inner, child)


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parents[2])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
