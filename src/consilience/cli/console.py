"""Plain text for people: paragraphs, tables, one-sentence errors.

Some of the text comes from other parties (names of sites and columns, reasons of refusals). It is
printed without markup, characters that could steer a terminal are shown as codes, and long names
are cut (`exceptions.shortened`).
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import sys
import textwrap
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import typer
from typer.core import TyperArgument, TyperGroup
from typer.utils import get_params_from_function

from consilience.exceptions import ConsilienceError, StudyError, shortened, steerless

MOST_COLUMNS = 100


def clean(text: object) -> str:
    """Return text on one line in which no character steers the terminal and no name is endless."""
    return shortened(steerless(text))


def width() -> int:
    """Columns of the terminal, at most 100."""
    return min(shutil.get_terminal_size((MOST_COLUMNS, 24)).columns, MOST_COLUMNS)


def say(text: str, *, indent: int = 0, bullet: str = "") -> None:
    """Print a paragraph, wrapped."""
    first = " " * indent + bullet
    typer.echo(
        textwrap.fill(
            clean(text),
            max(width(), 40),
            initial_indent=first,
            subsequent_indent=" " * len(first),
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def fact(name: str, value: str, *, indent: int, left: int) -> None:
    """Print a name and its value, which is wrapped in a column of its own."""
    lines = textwrap.wrap(
        clean(value),
        max(width() - indent - left, 40),
        break_on_hyphens=False,
        break_long_words=False,
    )
    for i, text in enumerate(lines):
        typer.echo(f"{' ' * indent}{(name if i == 0 else '').ljust(left)}{text}")


def notes(sentences: Sequence[str]) -> None:
    """Print the notes of a run, if there are any."""
    if sentences:
        heading("Notes")
    for sentence in sentences:
        say(sentence, indent=2, bullet="- ")


def line(text: str = "") -> None:
    """Print one line as it is, however long (paths, commands)."""
    typer.echo(steerless(text))


def heading(text: str) -> None:
    """Print a heading after a blank line."""
    typer.echo()
    typer.echo(clean(text))


def complain(text: str) -> None:
    """Print one line to the error stream."""
    typer.echo(clean(text), err=True)


def print_json(value: Any) -> None:
    """Print one JSON object; nothing else goes to this stream."""
    typer.echo(json.dumps(value, indent=1, sort_keys=False, ensure_ascii=True, allow_nan=False))


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    # Cleaned before it is measured: codes of steering signs are longer than the signs.
    rows = [(clean(name), clean(value)) for name, value in pairs]
    left = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        typer.echo(f"{name.ljust(left)}  {value}".rstrip())


def table(header: Sequence[str], rows: Iterable[Sequence[object]], right: str = "") -> None:
    """Print a table; `right` has an ``r`` at the place of each column that is set to the right."""
    cells = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(header))]
    # After the widths: the line is as long as what stands above it.
    cells.insert(1, ["-" * size for size in widths])
    for row in cells:
        placed = [
            cell.rjust(size) if right[j : j + 1] == "r" else cell.ljust(size)
            for j, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        typer.echo("  ".join(placed).rstrip())


def frame(shown: Any) -> None:
    """Print a data frame; one that is too wide is turned on its side if it then fits better."""
    text = _frame_text(shown)
    widest = max(map(len, text.splitlines()), default=0)
    # On its side only where it then has fewer columns: otherwise nothing is won.
    if widest > width() and len(shown) < len(shown.columns):
        text = _frame_text(shown.T)
    for row in text.splitlines():
        typer.echo(clean(row).rstrip())
    if shown.isna().any(axis=None):
        typer.echo("-: withheld by the sites' rules, or there is nothing to tell")


def _frame_text(shown: Any) -> str:
    return str(shown.to_string(float_format=lambda value: f"{value:.4g}", na_rep="-"))


def on_terminal() -> bool:
    """Whether the error stream, where progress goes, is a terminal."""
    return sys.stderr.isatty()


# --- How the command line ends, one sentence and a number, and how its help reads.
#
# Help texts are plain text, the same for every command, with a line for each argument.

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
