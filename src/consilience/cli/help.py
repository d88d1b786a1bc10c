"""Help texts as plain text, the same for every command, with a line for each argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click
from typer.core import TyperArgument
from typer.utils import get_params_from_function

CLICKS_ARGUMENTS = "Positional arguments"


class PlainFormatter(click.HelpFormatter):
    """Writes brackets as they are: typer escapes them as if rich were to read them."""

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names and their texts in two columns."""
        plain = [(name, text.replace("\\[", "[")) for name, text in rows]
        super().write_dl(plain, col_max, col_spacing)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a section; arguments once, though both click and typer have one for them."""
        start = len(self.buffer)
        with super().section(name):
            yield
        if name == CLICKS_ARGUMENTS:
            del self.buffer[start:]


class PlainContext(click.Context):
    """Context whose help is plain."""

    formatter_class = PlainFormatter


def plain(command: click.Command) -> click.Command:
    """Let a command and those below it show plain help."""
    command.context_class = PlainContext
    if hasattr(command, "rich_markup_mode"):
        command.rich_markup_mode = None
    _restore_arguments(command)
    for inner in getattr(command, "commands", {}).values():
        plain(inner)
    return command


def _restore_arguments(command: click.Command) -> None:
    """Give arguments their texts: recent releases of click reset what typer had set."""
    function = getattr(command.callback, "__wrapped__", None)
    if function is None:
        return
    declared = get_params_from_function(function)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.name in declared:
            said = getattr(declared[parameter.name].default, "help", None)
            parameter.help = parameter.help or said
