"""How the command line ends, one sentence and a number, and how its help reads.

Help texts are plain text, the same for every command, with a line for each argument.
"""

from __future__ import annotations

import errno
import logging
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperArgument, TyperGroup
from typer.utils import get_params_from_function

from consilience.cli.console import complain
from consilience.exceptions import ConsilienceError, StudyError, shortened

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
        # typer's own section has the texts; click's repeats the names without them.
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
    function = getattr(command.callback, "__wrapped__", None)
    # Recent releases of click reset the texts of arguments that typer had set.
    declared = {} if function is None else get_params_from_function(function)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument) and parameter.name in declared:
            said = getattr(declared[parameter.name].default, "help", None)
            parameter.help = parameter.help or said
    # Groups have commands of their own: all of them show the same kind of help.
    for inner in getattr(command, "commands", {}).values():
        plain(inner)
    return command


UNFORESEEN = 1
INTERRUPTED = 130
DEBUG = "--debug"
TOO_LONG = "a name or path is longer than the file system takes: check what was given"


class House(TyperGroup):
    """The group of all commands: turns errors into a sentence on stderr and an exit code."""

    context_class = PlainContext

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept ``--debug`` anywhere before ``--``."""
        # What follows is given as it is, whatever it looks like.
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = DEBUG in args[:end]
        with _short():
            return super().parse_args(ctx, [a for a in args[:end] if a != DEBUG] + args[end:])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Look up a command."""
        found = super().get_command(ctx, cmd_name)
        return None if found is None else plain(found)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        debug = bool(ctx.obj)
        if not debug:
            # What commands have to say they say themselves; libraries' warnings may show values.
            logging.getLogger("consilience").addHandler(logging.NullHandler())
        try:
            with warnings.catch_warnings(), _short():
                if not debug:
                    warnings.simplefilter("ignore")
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            complain("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except ConsilienceError as error:
            _trace(debug)
            complain(f"Error: {error}")
            raise typer.Exit(error.exit_code) from None
        except Exception as error:  # noqa: BLE001  its text could hold a value: only its type is shown
            _trace(debug)
            long = isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG
            complain(f"Error: {TOO_LONG if long else unforeseen(error)}")
            raise typer.Exit(StudyError.exit_code if long else UNFORESEEN) from None


class Sentences(TyperGroup):
    """A group whose commands end with an error's sentence alone, and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except ConsilienceError as error:
            complain(str(error))
            raise typer.Exit(error.exit_code) from None


@contextmanager
def _short() -> Iterator[None]:
    """Shorten what the parser of the command line says: it repeats what it was given."""
    try:
        yield
    except click.UsageError as error:
        said = error.format_message()
        if shortened(said) == said:
            raise
        # A path of a megabyte would be printed whole otherwise.
        raise click.UsageError(shortened(said), ctx=error.ctx) from None


def unforeseen(error: Exception) -> str:
    """Return a sentence about an error that nobody foresaw."""
    found = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(found[-1].filename).name}, line {found[-1].lineno}," if found else ""
    return (
        f"an unforeseen {type(error).__name__}{place} stopped the command: add --debug to see "
        "where it came from, and please report it"
    )


def _trace(debug: bool) -> None:
    if debug:
        typer.echo(traceback.format_exc(), err=True, nl=False)
