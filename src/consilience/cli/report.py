"""``consilience report``: write a run's report again, and open it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consilience.cli import console
from consilience.cli.runs import REPORT, RUN, load

if TYPE_CHECKING:
    from consilience.engines.federation import Run


class Open(StrEnum):
    """Whether to open the report in a browser."""

    auto = "auto"
    yes = "yes"
    no = "no"


def write_report(run: Run, path: Path) -> None:
    """Write the HTML report of a run."""
    from consilience.report import write

    write(run, path)


def report(
    run: str = RUN,
    out: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Where to write it; report.html in the run directory if not given.",
    ),
    open_: Open = typer.Option(
        Open.auto, "--open", help="Open it in a browser; auto: when run from a terminal."
    ),
) -> None:
    """Write the report of a finished run.

    It is one HTML file that needs nothing else.
    """
    found = load(run)
    path = out if out is not None else Path(str(found.directory)) / REPORT
    write_report(found, path)
    console.line(str(path))
    if open_ is Open.yes or (open_ is Open.auto and sys.stdout.isatty()):
        # As a URI: a browser takes a relative path for a host.
        typer.launch(path.resolve().as_uri())
