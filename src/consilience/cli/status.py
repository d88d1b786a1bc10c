"""``consilience status``: how far a run has come; ``consilience health``: are its sites fit.

``consilience desk``: the coordinator's pages in a browser.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.cli.runs import RUNS, STUDY, directory
from consilience.exceptions import EngineError, StudyError

if TYPE_CHECKING:
    from consilience.engines.health import SiteHealth

OWN_SITES = typer.Option(
    None, metavar="DIR", help="Where <site>.toml of sites on this machine are: replies held."
)
_AT_WORK = ("begun", "running")


def status(
    run: str | None = typer.Argument(
        None, metavar="[RUN]", help="Run directory or id, or a folder of runs; ./runs unless given."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    watch: bool = typer.Option(
        False, "--watch", help="Say it again when it changes, until the run is no longer running."
    ),
    every: float = typer.Option(2.0, min=0.05, help="Seconds between two looks of --watch."),
    sites: Path | None = OWN_SITES,
) -> None:
    """Say how far a run has come, or list the runs here.

    Names the sites that it waits for. With --watch and --json: one JSON object a line.
    """
    from consilience.engines.rundir import read_info
    from consilience.engines.study_run import Queues, progress_of, runs_in

    folder = RUNS if run is None else Path(run)
    several = run is None or (folder.is_dir() and any(folder.glob("*/run.json")))
    path, show = (folder, _tell_all) if several else (directory(str(run)), _tell_one)

    def look() -> list[dict[str, Any]]:
        # Read anew at each look: runs begin and end while it watches.
        if several:
            return [progress_of(*found) for found in runs_in(folder)]
        info = read_info(path)
        return [progress_of(path, info) | Queues(sites).of(info)]

    while True:
        found = look()
        shown = found if show is _tell_all else found[0]
        if not json:
            show(found, folder)
        elif watch:
            typer.echo(dumps(shown, ensure_ascii=True, allow_nan=False))
        else:
            console.print_json(shown)
        if not watch or (show is _tell_one and found[0]["state"] not in _AT_WORK):
            return
        # Said again only where something has changed: the terminal is read by a person.
        while look() == found:
            time.sleep(every)
        if not json:
            typer.echo()


def _tell_one(found: list[dict[str, Any]], folder: Path) -> None:
    one = found[0]
    rows: list[tuple[str, object]] = [
        ("Run", one["run"]),
        ("Method", one["method"]),
        ("State", f"{one['state']}: {one['reason']}" if one["reason"] else one["state"]),
        ("Round", f"{one['round']}, {one['step']}" if one["round"] else "none yet"),
        ("Answered", ", ".join(one["answered"]) or "none"),
    ]
    if one["state"] != "finished" and one["waiting"]:
        named = one["waiting_for"]
        rows.append(("Waiting for", ", ".join(named) if named else f"{one['waiting']} sites"))
    if one["absent"]:
        rows.append(("Absent", ", ".join(one["absent"])))
    for site, held in one.get("held", {}).items():
        rows.append((f"Held at {site}", f"{', '.join(held)}: consilience site queue"))
    for site, said in one.get("damaged", {}).items():
        rows += [(f"Damaged at {site}", sentence) for sentence in said]
    if one["events_unread"]:
        rows.append(("Not readable", f"{one['events_unread']} lines of its events.jsonl"))
    rows += [("Last heard", _ago(one["last_heard"])), ("Directory", one["directory"])]
    console.facts(rows)
    if one["state"] in ("stopped", "failed"):
        console.line(f"Go on with: consilience run STUDY --out {one['directory']} --resume")


def _tell_all(found: list[dict[str, Any]], folder: Path) -> None:
    rows = [
        (one["directory"], one["method"], one["state"], one["round"], _ago(one["last_heard"]))
        for one in found
    ]
    if rows:
        console.table(("directory", "method", "state", "round", "last heard"), rows, right="   r")
    else:
        console.line(f"There are no runs in {folder}: name a run directory, or begin one.")


def _ago(when: float | None) -> str:
    if when is None:
        return "never"
    seconds = max(time.time() - when, 0.0)
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"


def health(
    study: Path = STUDY,
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
    from consilience.engines.health import health as folder_health
    from consilience.engines.signed import SiteKeys
    from consilience.sites.study import Study

    if folder is None and superlink is not None and keys is not None:
        from consilience.engines.flower import join

        read = Study.load(study)
        through = join.engine(read, superlink, keys, insecure=insecure)
        try:
            found = join.health(read, through)
        finally:
            through.close()
        tell(found, as_json=json)
        return
    if folder is None or superlink is not None or keys is not None:
        raise StudyError("name --folder, or --superlink and --keys")
    read = Study.load(study)
    listed = read.sites.keys
    named = SiteKeys(read.sites.names, listed).sites  # a site without a key is an error here, too
    tell(folder_health(folder, {site: listed[site] for site in named}, read.method), as_json=json)


def tell(found: list[SiteHealth], *, as_json: bool) -> None:
    """Print a table of sites and what to do; the same for every engine.

    Raises
    ------
    EngineError
        Something is wrong with a site.
    """
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
    # An exit code of its own, so that a timer can watch over a federation.
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


def desk(
    runs: Path = typer.Option(RUNS, metavar="DIR", help="Folder with runs."),
    studies: Path = typer.Option(Path(), metavar="DIR", help="Folder with study files."),
    sites: Path | None = OWN_SITES,
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
