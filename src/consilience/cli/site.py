"""``consilience site``: what a steward does: keys, watch, queue, approvals, outputs, purge."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli import console
from consilience.cli.console import Sentences
from consilience.cli.logs import EventLog, Format, Level, LogFormat, LogLevel
from consilience.exceptions import DamageError, RunError, StudyError

if TYPE_CHECKING:
    from consilience.sites.site_store import DiskStore, Job, LogChain

SiteToml = Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's own file.")]


app = typer.Typer(
    cls=Sentences, help="Keys, watch, approvals and outputs of a site.", no_args_is_help=True
)


@app.command()
def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to keep the key.")],
    rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Make the key that follows it, and print its endorsed line."),
    ] = False,
    retire: Annotated[
        bool,
        typer.Option("--retire", help="Sign with the key that follows from now on; drop the old."),
    ] = False,
) -> None:
    """Make a key in DIR and print its public half, the line for the study file.

    A key that is there already is never overwritten: its public half is printed.

    To change a key, of a site or a coordinator: --rotate makes a new one beside it and prints the
    entry that whoever trusts the old key adds after it. The old key signs until --retire.
    """
    from consilience.wire import keys as keyring
    from consilience.wire.signing import PRIVATE_FILE, SigningKey

    if rotate and retire:
        raise StudyError(
            "give --rotate first, and --retire once everybody has listed the new key: one at a time"
        )
    if rotate:
        old, line = SigningKey.load(directory).public, keyring.rotate(directory)
        typer.echo(f"the key that signs until --retire: {old}", err=True)
        typer.echo("add after it, wherever it is listed:", err=True)
        typer.echo(line)
        return
    if retire:
        done = keyring.retire(directory)
        typer.echo(f"the key that is gone: {done.old}", err=True)
        typer.echo("where it is listed, it may get a last day; the one that signs now:", err=True)
        typer.echo(done.entry)
        return
    if (directory / PRIVATE_FILE).exists():
        typer.echo(f"there is a key already: {directory / PRIVATE_FILE}", err=True)
        typer.echo(SigningKey.load(directory).public)
        return
    key = SigningKey.generate()
    path = key.save(directory)
    typer.echo(f"private key (keep it here, show it to nobody): {path}", err=True)
    typer.echo(key.public)


@app.command()
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
    from consilience.sites.loaders import file_site
    from consilience.sites.site_store import check_run_id, sole
    from consilience.sites.steward import old_runs, purge_old, purge_run
    from consilience.sites.study import SiteFile

    if (run is None) == (older_than is None):
        raise StudyError("name a run, or give --older-than DAYS: one of them")
    site = file_site(SiteFile.load(site_toml))
    # A dry run reads only, so a watch may go on.
    with nullcontext() if dry_run else sole(site.home):
        if dry_run and run is not None:
            found = [check_run_id(run)] if run in site.home.recorded() else []
        elif dry_run:
            found = list(old_runs(site.home, older_than or 0.0))
        elif run is not None:
            purge_run(site, check_run_id(run), "by the steward")
            found = [run]
        else:
            found = list(purge_old(site, older_than or 0.0, why="by the steward"))
    begin, end = ("would drop", "") if dry_run else ("dropped", "; outputs and ledgers stay")
    for name in found:
        typer.echo(f"{begin} the records of run {name} at site {site.name}{end}")
    if not found:
        typer.echo(f"there are no records to drop at site {site.name}")


_JOB = "A job as 'consilience site queue' names it."
_SHOWN = 200


@app.command()
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


@app.command()
def preview(
    site_toml: SiteToml,
    job: Annotated[str, typer.Argument(metavar="JOB", help=_JOB)],
    values: Annotated[
        bool, typer.Option("--values", help="Show the numbers too; at a terminal only.")
    ] = False,
) -> None:
    """Show what a waiting reply would tell: fields, classes, shapes, sizes, verdicts."""
    import numpy as np

    from consilience.sites.steward import waiting
    from consilience.wire.codec import plain_fields

    home = _home(site_toml)
    found = waiting(home, _find(home, job))
    reply, message = found.reply, found.message
    asked = SimpleNamespace(
        run=reply.run, round=reply.round, step=reply.step, method=found.method.name
    )
    first, *table = describe(asked, message, reply.verdicts)
    for line in (first, *(f"  {what}: {said}" for what, said in found.asked.items()), *table):
        typer.echo(_printable(line))
    if not values:
        return
    # A file or pipe would keep what the gate let leave to one party alone.
    if not sys.stdout.isatty():
        raise StudyError("values are shown at a terminal only: leave --values out")
    for name, value in plain_fields(message).items():
        typer.echo(console.clean(f"{name} ="))
        shown = repr(value)
        if isinstance(value, np.ndarray):
            shown = np.array2string(value, threshold=_SHOWN, precision=6)
        elif len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        for line in shown.splitlines():
            typer.echo(console.clean(f"  {line}"))


@app.command()
def release(
    site_toml: SiteToml,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help=_JOB)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that wait now.")] = False,
) -> None:
    """Let waiting replies leave; a watch that is running sends them."""
    if bool(jobs) == everything:
        raise StudyError("name jobs, or give --all: one of them")
    home = _home(site_toml)
    # Told at the end: what can be read is released all the same.
    damages = home.jobs.damages() if everything else []
    chosen = home.jobs.waiting() if everything else [_find(home, name) for name in jobs or ()]
    for job in chosen:
        if not home.jobs.release(job.run, job.round, job.attempt):
            raise _decided(home, job)
        typer.echo(console.clean(f"released {job.name}"))
    if not chosen:
        typer.echo("no reply waits" if not damages else "no reply waits that can be read")
    _raise(damages)


@app.command()
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


def _home(site_toml: Path) -> DiskStore:
    """The site's home; a watch may be at work in it."""
    from consilience.sites.steward import home_of
    from consilience.sites.study import SiteFile

    return home_of(SiteFile.load(site_toml))


def _find(home: DiskStore, name: str) -> Job:
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


def _decided(home: DiskStore, job: Job) -> RunError:
    state, _, facts = home.jobs.state(job.run, job.round, job.attempt).read()
    said = "refused" if "reason" in facts else "released"
    more = ", and has been sent" if state == "sent" else ""
    return RunError(f"job {job.name} was {said} before{more}: it is no longer held")


def _facts(job: Job) -> dict[str, Any]:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(job.facts["since"])))
    place = {"job": job.name, "run": job.run, "round": job.round, "attempt": job.attempt}
    told = {name: job.facts[name] for name in ("method", "step", "bytes", "fields")}
    return {**place, **told, "since": since}


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


@app.command("partner-key")
def partner_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; a new file.")],
) -> None:
    """Make the secret that the parties of a study over columns share.

    One party makes it and gives the others the same file; a file that is there is never
    overwritten.
    """
    from consilience.wire.keys import new_partner_key, save_partner_key

    save_partner_key(file, new_partner_key())
    typer.echo(
        f"wrote {file}: give it to every party over a safe channel, never to a coordinator who is "
        "none of them, and name it in [partners] key of each site file"
    )


@app.command()
def watch(
    site_toml: SiteToml,
    folder: Annotated[Path, typer.Option(help="The shared folder.")],
    key: Annotated[Path, typer.Option(help="The site's private key, or its directory.")],
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Show each reply and wait for yes or no.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Hold each reply until 'consilience site release'.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Answer what is there and end.")] = False,
    poll: Annotated[float, typer.Option(help="Longest pause between two looks, seconds.")] = 0.5,
    heartbeat: Annotated[
        float, typer.Option(help="Seconds between two heartbeats in the folder; 0 for none.")
    ] = 60.0,
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.info,
) -> None:
    """Answer the asks in a shared folder until stopped."""
    from consilience.engines.folder import watch as watch_folder
    from consilience.sites.loaders import file_site
    from consilience.sites.study import SiteFile
    from consilience.wire.signing import SigningKey

    if confirm and log_format is LogFormat.json:
        raise StudyError("--confirm asks at the terminal: leave --log-format json out")
    log = EventLog(log_format, log_level, _words)
    steward = Steward()
    # A KeyboardInterrupt comes at the prompt, or from a second signal: nothing is half done then.
    with log.ending(), steward.signals(), suppress(KeyboardInterrupt):
        file = SiteFile.load(site_toml)
        log.always["site"] = file.name
        # Before the watch is announced: without its key a site can answer nobody.
        own = SigningKey.load(key)
        if confirm and (hold or file.release.hold):
            raise StudyError(
                "replies are held here until they are released: leave --confirm out, or --hold and "
                "[release] hold of the site file"
            )
        asked = steward.confirm if confirm else None
        site = file_site(file, confirm=asked, hold="all" if hold else None)
        trusted = file.trust.coordinators
        log.event("watching", {"folder": folder, "coordinators": len(trusted), "site": site.name})
        watch_folder(
            site,
            folder,
            key=own,
            coordinators=trusted,
            once=once,
            stop=steward,
            poll=poll,
            on_event=log.event,
            retention=file.retention.days,
            heartbeat=heartbeat or None,
        )
    log.event("stopped", log.always)


@app.command()
def outputs(
    site_toml: SiteToml,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List what runs left at the site, or what one run left."""
    home = _home(site_toml)
    if run is not None and run not in home.runs():
        known = ", ".join(home.runs()) or "none"
        raise RunError(f"no outputs of run {run!r} are kept in {home.path}: there are {known}")
    found = [_left_by(home, name) for name in ([run] if run is not None else home.runs())]
    if as_json:
        typer.echo(json.dumps(found[0] if run is not None else found, indent=1, sort_keys=True))
        return
    if not found:
        typer.echo(f"no run has left outputs in {home.path}")
    for one in found:
        said = "read the table; no labels or predictor"
        if "method" in one:
            said = f"method {one['method']}, {one['rows_kept']} of {one['rows_read']} rows"
        typer.echo(f"{one['run']}: {said}")
        if run is not None:
            for path in one["files"].values():
                typer.echo(f"  {path}")


@app.command()
def transcript(
    site_toml: SiteToml,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="One run.")] = "",
    method: Annotated[str, typer.Option(help="Only what this method asked.")] = "",
    step: Annotated[str, typer.Option(help="Only what this step asked.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List what the site has answered, field by field, with what the gate said; no value.

    The last run comes first. Of runs whose records were purged the site's own log has it.
    """
    from dataclasses import asdict

    from consilience.sites.steward import answers

    home = _home(site_toml)
    if run and run not in home.recorded():
        known = ", ".join(sorted(home.recorded())) or "none"
        raise RunError(
            f"no records of run {run[:100]!r} are kept in {home.path}: there are {known}"
        )
    found = answers(home, run=run, method=method, step=step)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1, sort_keys=True))
        return
    nothing = True
    for one in found:
        nothing = False
        said = f"refused: {one.reason}" if one.outcome == "refused" else one.outcome
        place = f"{one.run}: round {one.round}" + (f", attempt {one.attempt}" * (one.attempt > 1))
        typer.echo(
            _printable(f"{place}, step {one.step} of {one.method}, {one.bytes:,} bytes, {said}")
        )
        rows = [
            (f.field, f.disclosure, f"for {f.audience}", f.verdict, f.rule, f.revealed, f.shape)
            for f in one.fields
        ]
        widths = [max((len(row[k]) for row in rows), default=0) for k in range(6)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
            typer.echo(_printable("  " + "  ".join((*(c for c in cells if c), row[-1]))))
    if nothing:
        typer.echo(f"nothing was answered that is kept in {home.path}")


@app.command()
def offer(site_toml: SiteToml) -> None:
    """Propose which columns of the site's table studies may name, as lines for its file.

    Nothing is written: look at the lines, change them, and add them to the end of the site file.
    What fewer than min_records rows have is not offered, nor are columns that look like ids.
    """
    from consilience.sites.own_columns import propose
    from consilience.sites.policy import Policy
    from consilience.sites.source import read_source
    from consilience.sites.study import SiteFile

    file = SiteFile.load(site_toml)
    if file.columns.long is not None:
        raise StudyError(
            "the table has one row for each person and time, whose columns are made when it is "
            'read: write [columns.offered] with its states, as "*" = ["first state", ...]'
        )
    table = read_source(file.source, file.base)
    # A value of fewer rows would be shown to whoever reads the site file.
    least = Policy.from_settings(file.policy).min_records
    typer.echo(propose(table, file.columns, least).to_toml(), nl=False)


@app.command()
def approve(
    site_toml: SiteToml,
    study_toml: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study.")],
) -> None:
    """Let a study run at this site; once one is approved, no other runs.

    The hash of the study goes into the site's home, beside approved_studies of the policy. A watch
    that is running heeds it.
    """
    from consilience.protocol.method import get_method
    from consilience.sites.steward import approve as approve_study
    from consilience.sites.study import SiteFile, Study

    file, study = SiteFile.load(site_toml), Study.load(study_toml)
    approve_study(file, study, study_toml)
    typer.echo(f"approved study {study.name} ({study.hash()}) at site {file.name}")
    title = get_method(study.method).title
    typer.echo(_printable(f"it asks by {study.method}: {title}"))
    for role, named in dict(study.data).items():
        if named and role != "levels":
            shown = named if isinstance(named, str) else ", ".join(named)
            typer.echo(_printable(f"  {role}: {shown}"))
    typer.echo("studies that are not approved are refused here from now on")


SiteKey = Annotated[
    Path | None,
    typer.Option(help="The site's private key, or its directory: signs audit bundles."),
]


@app.command()
def desk(
    site_toml: SiteToml,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 0,
    key: SiteKey = None,
) -> None:
    """Open the steward's desk: pages to see what waits, release or refuse it, and approve studies.

    Served on this machine alone, under an address that has a secret: open the one that is printed,
    and give it to nobody. A watch may run meanwhile. Stop the desk with Ctrl-C.
    """
    from consilience.desk.app import serve

    with suppress(KeyboardInterrupt):
        serve(site_toml, port, typer.echo, key)


@app.command()
def audit(
    site_toml: SiteToml,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it; a new file.")],
    key: SiteKey = None,
) -> None:
    """Write a bundle for an auditor: log, account, policy and decisions, and no value of the data.

    With --key it is signed; 'consilience site verify' checks it.
    """
    from consilience.sites.policy import Policy
    from consilience.sites.steward import bundle
    from consilience.sites.steward import verify as verified
    from consilience.sites.study import SiteFile
    from consilience.wire.files import create_file
    from consilience.wire.signing import SigningKey

    read = SiteFile.load(site_toml)
    own = None if key is None else SigningKey.load(key)
    made = bundle(read.name, _home(site_toml), Policy.from_settings(read.policy), own)
    if file.exists():
        raise RunError(f"{file} is already there and is not replaced: name another file")
    create_file(file, made)
    typer.echo(f"wrote {file}, {'not signed: --key signs it' if own is None else 'signed'}")
    _say_chain(verified(made).kept)


@app.command()
def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle of a site.")],
    key: Annotated[
        str, typer.Option(metavar="KEY", help="The site's public key, as in the study file.")
    ] = "",
    earlier: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="One that was made before: its log must go on here."),
    ] = None,
    earlier_key: Annotated[
        str,
        typer.Option(metavar="KEY", help="The key of the earlier one; as --key unless given."),
    ] = "",
) -> None:
    """Verify an audit bundle: digests, the chain of its log, its signature.

    Without --key the bundle is checked by the key that it names itself, and ends well without a
    signature, too: compare what is printed with what you know. Ends with 5 or 7 where something
    was changed.
    """
    from consilience.sites.steward import verify as verified

    found = verified(_bytes_of(bundle), key)
    by = f"signed by {found.key}" if found.key else "not signed"
    lines = f"{found.n_lines} line{'s' * (found.n_lines != 1)}"
    typer.echo(console.clean(f"site {found.site}, {found.made}: {lines} of log, whole; {by}"))
    if earlier is not None:
        before = verified(_bytes_of(earlier), earlier_key or key)
        if not found.begins_with(before):
            raise DamageError(f"the log does not go on from that of {earlier}: lines were changed")
        typer.echo(f"its log goes on from line {before.n_lines} of {earlier}")
    _say_chain(found.kept, "by the word of the site, ")


def _say_chain(kept: LogChain | None, by: str = "") -> None:
    """Say what the chain of a site's log says; one that breaks ends the command."""
    if kept is not None and kept.broken:
        raise DamageError(f"{by}{kept}")
    said = "the bundle is from before logs were chained" if kept is None else f"{by}{kept}"
    typer.echo(console.clean(said))


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


# --------------------------------------------------------------------------- for people


class StopOnSignal:
    """Whether the person at the terminal has stopped a command that runs until then."""

    def __init__(self) -> None:
        self._is_asked = self._has_stopped = False

    def is_set(self) -> bool:
        """Whether it has been stopped."""
        return self._has_stopped

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Stop after the answer in hand; at the prompt, or the second time, at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            # At the prompt nothing is half done; the second time somebody means it.
            if self._is_asked or self._has_stopped:
                raise KeyboardInterrupt
            self._has_stopped = True

        before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


class Steward(StopOnSignal):
    """The person at the terminal of a site: stops its watch, and confirms replies."""

    def confirm(self, request: Any, message: object, verdicts: tuple[dict[str, Any], ...]) -> bool:
        """Show what is about to leave, never a value, and wait for yes or no."""
        for line in describe(request, message, verdicts):
            typer.echo(line)
        self._is_asked = True
        try:
            while True:
                # Asked again until it is one of the two: no key that was hit by chance sends a
                # reply.
                answer = input("send this reply? yes or no: ").strip().lower()
                if answer in ("y", "yes"):
                    return True
                if answer in ("n", "no"):
                    return False
        except EOFError:
            raise RunError(
                "nobody answered at the prompt, so the reply was not sent: start 'site watch "
                "--confirm' at a terminal"
            ) from None
        finally:
            self._is_asked = False


def describe(request: Any, message: object, verdicts: tuple[dict[str, Any], ...]) -> Iterator[str]:
    """Describe an outgoing message, one line for each field.

    Parameters
    ----------
    request : Request
    message : object
        The reply before it is encoded.
    verdicts : tuple of dict
        What the gate said of each field.
    """
    from consilience.sites.steward import told

    yield _printable(
        f"run {request.run}, round {request.round}, step {request.step} of method {request.method}"
    )
    rows = [("field", "class", "shape", "bytes", "rule", "verdict", "epsilon")]
    for f in told(message, verdicts):
        rows.append(
            (f.field, f.disclosure, f.shape, str(f.bytes), f.rule, f.verdict, f"{f.epsilon:g}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield _printable("  " + "  ".join(cells).rstrip())


def _words(kind: str, facts: dict[str, Any]) -> str:
    """An event of the watch, for people."""
    where = ", ".join(f"{k} {facts[k]}" for k in ("run", "round", "step", "file") if k in facts)
    where = where or "the folder"
    if kind == "watching":
        trusted = f"trusting {facts['coordinators']} coordinator(s)"
        text = f"site {facts['site']}: watching {facts['folder']}, {trusted}"
    elif kind == "stopped":
        text = f"site {facts['site']}: stopped"
    elif kind == "answered" and facts["outcome"] == "reply":
        text = f"{where}: replied with {facts['bytes']} bytes"
    elif kind == "answered":
        text = f"{where}: refused: {facts['reason']}"
    elif kind == "held":
        text = f"{where}: held for the steward: 'consilience site queue' lists what waits"
    elif kind == "unreachable":
        text = f"{where} cannot be read: {facts['reason']}; trying again"
    elif kind == "unsent":
        text = f"{where}: not sent yet: {facts['reason']}; trying again"
    elif kind == "damaged":
        text = f"{facts['reason']}; what needs it is refused until then"
    else:
        text = f"{where}: {kind}: {facts['reason']}"
    return _printable(text)


def _printable(text: str) -> str:
    """Text from elsewhere cannot steer the steward's terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _left_by(home: Any, run: str) -> dict[str, Any]:
    """What one run left, with the paths of its files; no method where it stopped early."""
    from consilience.sites.outputs import PROVENANCE, SiteOutput

    files = {name: str(home.path / "outputs" / run / name) for name in home.output_names(run)}
    try:
        facts = SiteOutput(home, run).provenance if PROVENANCE in files else {}
    except DamageError as error:
        console.complain(str(error))
        facts = {}
    return {**facts, "run": run, "files": files}
