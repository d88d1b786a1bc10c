"""``consilience site purge``: drop what a site keeps only to answer again."""

from __future__ import annotations

from typing import Annotated

import typer

from consilience.cli.site_common import SiteToml
from consilience.exceptions import StudyError


def purge(
    site_toml: SiteToml,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run.")] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", min=0, metavar="DAYS", help="All runs not asked for so many days."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be dropped, and drop nothing.")
    ] = False,
) -> None:
    """Drop what the site keeps to answer again in a run; its outputs and ledgers stay.

    The run can never go on at this site afterwards. Stop a watch on the site first. The home's log
    notes each run that was dropped.
    """
    from consilience.sites.home import check_run_id, sole
    from consilience.sites.loaders import file_site
    from consilience.sites.retention import old_runs, purge_old, purge_run
    from consilience.sites.study import SiteFile

    if (run is None) == (older_than is None):
        raise StudyError("name a run, or give --older-than DAYS: one of them")
    site = file_site(SiteFile.load(site_toml))
    if dry_run:
        # Reads only, so a watch may go on.
        if run is not None:
            found = [check_run_id(run)] if run in site.home.recorded() else []
        else:
            found = list(old_runs(site.home, older_than or 0.0))
    else:
        with sole(site.home):
            if run is not None:
                purge_run(site, check_run_id(run), "by the steward")
                found = [run]
            else:
                found = list(purge_old(site, older_than or 0.0, why="by the steward"))
    for name in found:
        if dry_run:
            typer.echo(f"would drop the records of run {name} at site {site.name}")
        else:
            typer.echo(
                f"dropped the records of run {name} at site {site.name}; outputs and ledgers stay"
            )
    if not found:
        typer.echo(f"there are no records to drop at site {site.name}")
