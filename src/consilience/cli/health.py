"""``consilience health``: are the sites of a study there, and fit to take part."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consilience.cli import console

if TYPE_CHECKING:
    from consilience.engines.health import SiteHealth


def health(
    study: Path = typer.Argument(metavar="STUDY", help="Study file."),
    folder: Path | None = typer.Option(None, metavar="DIR", help="The shared folder."),
    superlink: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Where the SuperLink is, over Flower."
    ),
    keys: Path | None = typer.Option(
        None, metavar="DIR", help="The coordinator's certificates and keys, over Flower."
    ),
    insecure: bool = typer.Option(False, "--insecure", help="No TLS, over Flower."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Say how the sites of a study are: last heartbeat, release, clock, waiting replies, disk.

    Reads what the watch of each site writes into the shared folder, or asks the nodes of a
    SuperLink. Ends with 9 where something is wrong with a site.
    """
    from consilience.exceptions import StudyError

    if superlink is not None and keys is not None and folder is None:
        tell(_over_flower(study, superlink, keys, insecure=insecure), as_json=json)
        return
    if folder is None or superlink is not None or keys is not None:
        raise StudyError("name --folder, or --superlink and --keys")
    from consilience.engines.health import health as folder_health
    from consilience.engines.signed import SiteKeys
    from consilience.sites.study import Study

    read = Study.load(study)
    listed = read.sites.keys
    named = SiteKeys(read.sites.names, listed).sites  # a site without a key is an error here, too
    tell(folder_health(folder, {site: listed[site] for site in named}, read.method), as_json=json)


def _over_flower(study: Path, superlink: str, keys: Path, *, insecure: bool) -> list[SiteHealth]:
    """Ask the sites that are connected."""
    from consilience.engines.flower import join
    from consilience.sites.study import Study

    read = Study.load(study)
    through = join.engine(read, superlink, keys, insecure=insecure)
    try:
        return join.health(read, through)
    finally:
        through.close()


def tell(found: list[SiteHealth], *, as_json: bool) -> None:
    """Print a table of sites and what to do; the same for every engine.

    Raises
    ------
    EngineError
        Something is wrong with a site.
    """
    from consilience.exceptions import EngineError

    if as_json:
        sites = [dataclasses.asdict(one) for one in found]
        console.print_json({"well": not any(one.troubles for one in found), "sites": sites})
    else:
        console.table(
            ("site", "state", "heard, s ago", "release", "clock, s", "held", "unsent", "free, GB"),
            (_row(one) for one in found),
            right="  r rrrr",
        )
        for one in found:
            for trouble in one.troubles:
                console.line(f"{one.site}: {trouble}")
    ill = [one.site for one in found if one.troubles]
    if ill:
        names = ", ".join(ill)
        raise EngineError(f"{len(ill)} of {len(found)} sites need attention: {names}")


def _row(one: SiteHealth) -> tuple[str, ...]:
    return (
        one.site,
        one.state,
        "-" if one.age is None else f"{one.age:.0f}",
        one.release[:40] or "-",
        "-" if one.skew is None else f"{one.skew:+.0f}",
        "-" if one.age is None else str(one.held),
        "-" if one.age is None else str(one.unsent),
        "-" if one.free < 0 else f"{one.free / 1e9:.0f}",
    )
