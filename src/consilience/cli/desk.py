"""``consilience desk``: the coordinator's pages in a browser."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer

from consilience.cli.runs import RUNS


def desk(
    runs: Path = typer.Option(RUNS, metavar="DIR", help="Folder with runs."),
    studies: Path = typer.Option(Path(), metavar="DIR", help="Folder with study files."),
    sites: Path | None = typer.Option(
        None, metavar="DIR", help="Where <site>.toml of sites on this machine are: replies held."
    ),
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="The shared folder: what its sites say of themselves."
    ),
    port: int = typer.Option(0, min=0, max=65535, help="0 takes one that is free."),
) -> None:
    """Open the coordinator's desk: studies, progress by site, reports, what waits for whom.

    Served on this machine alone, under an address that has a secret: open the one that is printed,
    and give it to nobody. Nothing can be decided on its pages. Stop it with Ctrl-C.
    """
    from consilience.desk.coordinator import Overview, serve

    with suppress(KeyboardInterrupt):
        serve(Overview(studies, runs, sites, folder), port, typer.echo)
