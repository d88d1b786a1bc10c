"""``consilience site``: what a steward does: keys, watch, queue, approvals, outputs, purge."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from consilience.cli import console, site_keys, site_purge, site_queue
from consilience.cli.logs import EventLog, Format, Level, LogFormat, LogLevel
from consilience.cli.site_common import SiteToml
from consilience.cli.site_common import one_sentence as _one_sentence
from consilience.exceptions import DamageError, RunError, StudyError

app = typer.Typer(help="Keys, watch, approvals and outputs of a site.", no_args_is_help=True)

app.command()(_one_sentence(site_keys.keys))
app.command()(_one_sentence(site_purge.purge))
app.command()(_one_sentence(site_queue.queue))
app.command()(_one_sentence(site_queue.preview))
app.command()(_one_sentence(site_queue.release))
app.command()(_one_sentence(site_queue.refuse))


@app.command("partner-key")
@_one_sentence
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
@_one_sentence
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
    steward = _Steward()
    # A KeyboardInterrupt comes at the prompt, or from a second signal: nothing is half done then.
    with log.ending(), steward.signals(), suppress(KeyboardInterrupt):
        file = SiteFile.load(site_toml)
        log.always["site"] = file.name
        signing_key = SigningKey.load(key)
        if confirm and (hold or file.release.hold):
            raise StudyError(
                "replies are held here until they are released: leave --confirm out, or --hold and "
                "[release] hold of the site file"
            )
        site = file_site(
            file,
            confirm=steward.confirm if confirm else None,
            hold="all" if hold else None,
        )
        trusted = file.trust.coordinators
        log.event("watching", {"folder": folder, "coordinators": len(trusted), "site": site.name})
        watch_folder(
            site,
            folder,
            key=signing_key,
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
@_one_sentence
def outputs(
    site_toml: SiteToml,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="One run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List what runs left at the site, or what one run left."""
    from consilience.sites.home import DiskHome
    from consilience.sites.study import SiteFile

    file = SiteFile.load(site_toml)
    if not file.home_path.is_dir():
        raise RunError(f"site {file.name!r} has no home {file.home_path} yet: nothing ran here")
    home = DiskHome(file.home_path)
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
        typer.echo(_summary(one))
        if run is not None:
            for path in one["files"].values():
                typer.echo(f"  {path}")


@app.command()
@_one_sentence
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
    least = Policy.from_settings(file.policy).min_records
    typer.echo(propose(table, file.columns, least).to_toml(), nl=False)


@app.command()
@_one_sentence
def approve(
    site_toml: SiteToml,
    study_toml: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study.")],
) -> None:
    """Let a study run at this site; once one is approved, no other runs.

    The hash of the study goes into the site's home, beside approved_studies of the policy. A watch
    that is running heeds it.
    """
    from consilience.sites.home import DiskHome
    from consilience.sites.site import APPROVED
    from consilience.sites.study import SiteFile, Study

    file, study = SiteFile.load(site_toml), Study.load(study_toml)
    if file.name not in study.sites.names:
        raise StudyError(
            f"{study_toml} does not name site {file.name!r} in [sites]: "
            "approve the study file that its coordinator sent you"
        )
    home = DiskHome(file.home_path)
    hashes = list(home.ledger(APPROVED).get("studies", []))
    if study.hash() not in hashes:
        home.write_ledger(APPROVED, {"studies": [*hashes, study.hash()]})
    typer.echo(f"approved study {study.name} ({study.hash()}) at site {file.name}")
    typer.echo("studies that are not approved are refused here from now on")


# --------------------------------------------------------------------------- for people


class _Steward:
    """The person at the terminal: confirms replies and stops the watch."""

    def __init__(self) -> None:
        self._is_asked = self._has_stopped = False

    def is_set(self) -> bool:
        """Whether the steward has stopped the watch."""
        return self._has_stopped

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Stop after the answer in hand; at the prompt, or the second time, at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self._is_asked or self._has_stopped:
                raise KeyboardInterrupt
            self._has_stopped = True

        before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def confirm(self, request: Any, message: object, verdicts: tuple[dict[str, Any], ...]) -> bool:
        """Show what is about to leave, never a value, and wait for yes or no."""
        for line in describe(request, message, verdicts):
            typer.echo(line)
        self._is_asked = True
        try:
            while True:
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
    from consilience.wire.codec import pack, plain_fields
    from consilience.wire.message import iterate_fields
    from consilience.wire.transcript import describe_shape

    said = {verdict["field"]: verdict for verdict in verdicts}
    plain = plain_fields(message)
    yield _printable(
        f"run {request.run}, round {request.round}, step {request.step} of method {request.method}"
    )
    rows = [("field", "class", "shape", "bytes", "rule", "verdict", "epsilon")]
    for name, spec, _ in iterate_fields(message):
        verdict = said.get(name, {})
        rows.append(
            (
                name,
                spec.disclosure.value,
                describe_shape(plain[name]),
                str(len(pack(plain[name]))),
                str(verdict.get("rule") or "-"),
                str(verdict.get("verdict", "-")),
                f"{verdict.get('epsilon', 0.0):g}",
            )
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


def _summary(one: dict[str, Any]) -> str:
    if "method" not in one:
        return f"{one['run']}: read the table; no labels or predictor"
    return f"{one['run']}: method {one['method']}, {one['rows_kept']} of {one['rows_read']} rows"
