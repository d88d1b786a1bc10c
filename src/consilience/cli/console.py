"""Plain text for people: paragraphs, tables, one-sentence errors.

Some of the text comes from other parties (names of sites and columns, reasons of refusals). It is
printed without markup, characters that could steer a terminal are shown as codes, and long names
are cut (`exceptions.shortened`).
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from consilience.exceptions import shortened, steerless

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
