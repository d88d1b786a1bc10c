"""``consilience site queue | preview | release | refuse``: replies that wait for the steward."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli import console
from consilience.cli.site_common import SiteToml
from consilience.exceptions import DamageError, RunError, StudyError

if TYPE_CHECKING:
    from consilience.sites.home import DiskHome, Job

_JOB = "A job as 'consilience site queue' names it."
_SHOWN = 200


def queue(
    site_toml: SiteToml,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the replies that wait for the steward."""
    home = _home(site_toml)
    jobs, damages = home.jobs.waiting(), home.jobs.damages()
    if as_json:
        typer.echo(json.dumps([_facts(job) for job in jobs], indent=1, sort_keys=True))
    elif not jobs:
        typer.echo("no reply waits" if not damages else "no reply waits that can be read")
    else:
        for job in jobs:
            for line in _described(job):
                typer.echo(console.clean(line))
    _raise(damages)


def preview(
    site_toml: SiteToml,
    job: Annotated[str, typer.Argument(metavar="JOB", help=_JOB)],
    values: Annotated[
        bool, typer.Option("--values", help="Show the numbers too; at a terminal only.")
    ] = False,
) -> None:
    """Show what a waiting reply would tell: fields, classes, shapes, sizes, verdicts."""
    from consilience.cli.site import describe
    from consilience.protocol.method import get_method
    from consilience.wire.codec import decode_message, plain_fields
    from consilience.wire.envelope import Reply

    home = _home(site_toml)
    found = _find(home, job)
    record = home.record(found.run, found.round, found.attempt)
    if record is None:
        raise RunError(f"the records of run {found.run} were purged: nothing can leave any more")
    method = get_method(str(found.facts["method"]))
    reply = Reply.from_bytes(record.reply)
    message = decode_message(reply.message)
    asked = SimpleNamespace(run=reply.run, round=reply.round, step=reply.step, method=method.name)
    for line in describe(asked, message, reply.verdicts):
        typer.echo(line)
    if not values:
        return
    if not sys.stdout.isatty():
        raise StudyError("values are shown at a terminal only: leave --values out")
    for name, value in plain_fields(message).items():
        typer.echo(console.clean(f"{name} ="))
        for line in _value(value).splitlines():
            typer.echo(console.clean(f"  {line}"))


def release(
    site_toml: SiteToml,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help=_JOB)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that wait now.")] = False,
) -> None:
    """Let waiting replies leave; a watch that is running sends them."""
    if bool(jobs) == everything:
        raise StudyError("name jobs, or give --all: one of them")
    home = _home(site_toml)
    damages = home.jobs.damages() if everything else []
    chosen = home.jobs.waiting() if everything else [_find(home, name) for name in jobs or ()]
    for job in chosen:
        if not home.jobs.release(job.run, job.round, job.attempt):
            raise _decided(home, job)
        typer.echo(console.clean(f"released {job.name}"))
    if not chosen:
        typer.echo("no reply waits" if not damages else "no reply waits that can be read")
    _raise(damages)


def refuse(
    site_toml: SiteToml,
    job: Annotated[str, typer.Argument(metavar="JOB", help=_JOB)],
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="For your own records: it stays in the home.")
    ] = "",
) -> None:
    """Let a refusal leave instead of a waiting reply.

    The site goes back to where it was before the question. What was spent from a budget is not
    given back. The coordinator reads that the reply was not released, and no reason.
    """
    home = _home(site_toml)
    found = _find(home, job)
    if not home.jobs.refuse(found.run, found.round, found.attempt, reason):
        raise _decided(home, found)
    typer.echo(console.clean(f"refused {found.name}"))


# --------------------------------------------------------------------------- inside


def _home(site_toml: Path) -> DiskHome:
    """The site's home; a watch may be at work in it."""
    from consilience.sites.home import DiskHome
    from consilience.sites.study import SiteFile

    file = SiteFile.load(site_toml)
    if not file.home_path.is_dir():
        raise RunError(f"site {file.name!r} has no home {file.home_path} yet: nothing ran here")
    return DiskHome(file.home_path)


def _find(home: DiskHome, name: str) -> Job:
    """The job of a name; the part behind the run will do where no other has it."""
    waiting = home.jobs.waiting()
    found = [job for job in waiting if name in (job.name, job.name.rpartition("/")[2])]
    if len(found) == 1:
        return found[0]
    if found:
        raise RunError(f"several runs have a job {name!r}: name the run too, as RUN/{name}")
    for job in home.jobs.all():
        if name == job.name:
            raise _decided(home, job)
    _raise(home.jobs.damages())
    known = ", ".join(job.name for job in waiting) or "none"
    raise RunError(f"no job {name!r} waits here: those that do are {known}")


def _raise(damages: list[DamageError]) -> None:
    """Name what is damaged; it ends the command, once everything else is done."""
    for error in damages[:-1]:
        console.complain(str(error))
    if damages:
        raise damages[-1]


def _decided(home: DiskHome, job: Job) -> RunError:
    state, _, facts = home.jobs.state(job.run, job.round, job.attempt).read()
    said = "refused" if "reason" in facts else "released"
    more = ", and has been sent" if state == "sent" else ""
    return RunError(f"job {job.name} was {said} before{more}: it is no longer held")


def _facts(job: Job) -> dict[str, Any]:
    return {
        "job": job.name,
        "run": job.run,
        "method": job.facts["method"],
        "round": job.round,
        "attempt": job.attempt,
        "step": job.facts["step"],
        "since": _utc(job.facts["since"]),
        "bytes": job.facts["bytes"],
        "fields": job.facts["fields"],
    }


def _described(job: Job) -> Iterator[str]:
    facts = _facts(job)
    yield (
        f"{job.name}: round {job.round}, step {facts['step']} of {facts['method']}, "
        f"{facts['bytes']} bytes, waiting since {facts['since']}"
    )
    rows = [(f["field"], f["class"], f["shape"]) for f in facts["fields"]]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for name, disclosure, shape in rows:
        yield f"  {name.ljust(widths[0])}  {disclosure.ljust(widths[1])}  {shape}"


def _value(value: object) -> str:
    import numpy as np

    if isinstance(value, np.ndarray):
        return np.array2string(value, threshold=_SHOWN, precision=6)
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _utc(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(when)))
