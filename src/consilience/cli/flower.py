"""``consilience flower``: studies across organisations, over Flower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli import console
from consilience.cli.console import Sentences
from consilience.cli.logs import EventLog, Format, Level, LogFormat, LogLevel
from consilience.cli.run import EngineName, Plan, execute, tell
from consilience.cli.site import StopOnSignal

if TYPE_CHECKING:
    pass

app = typer.Typer(
    cls=Sentences, help="Studies across organisations, over Flower.", no_args_is_help=True
)

Keys = Annotated[Path, typer.Option(metavar="DIR", help="Certificates and keys of this party.")]
SuperLinkAt = Annotated[
    str, typer.Option("--superlink", metavar="HOST:PORT", help="Where the SuperLink is.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS, any node: for trials on one machine only.")
]
PORT = 9092


@app.command()
def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
    site: Annotated[
        list[str], typer.Option("--site", metavar="NAME", help="A site; several times.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="Name or address of the server, for sites."),
    ] = None,
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 365,
) -> None:
    """Make certificates and keys for a test federation, and print the lines for its files.

    For a real one each party makes its own: 'consilience flower node-key' and 'consilience site
    keys'; the server's certificate comes from whoever signs certificates there.
    """
    from consilience.engines.flower.keys import COORDINATOR, SITES, make_federation

    hosts = host or ["127.0.0.1", "localhost"]
    # Everything or nothing is made: the lines below are of files that exist.
    public = make_federation(directory, site, hosts, days=days)
    typer.echo("# study file:")
    typer.echo("[coordinator]")
    typer.echo(f'key = "{public[COORDINATOR]}"')
    typer.echo("[sites.keys]")
    for name in site:
        # A name may hold dots, which would begin a table.
        typer.echo(f'"{name}" = "{public[name]}"')
    typer.echo("# each site file:")
    typer.echo("[trust]")
    typer.echo(f'coordinators = ["{public[COORDINATOR]}"]')
    typer.echo(
        f"wrote {directory / COORDINATOR} for who runs server and studies, and one directory for "
        f"each site in {directory / SITES}: hand each to its site over a safe channel",
        err=True,
    )


@app.command("node-key")
def node_key(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to keep the key.")],
    site: Annotated[str, typer.Option("--site", metavar="NAME", help="Name of the site.")],
) -> None:
    """Make the key by which this site's node is let in, and print its public line.

    Who runs the SuperLink puts that line into nodes/NAME.pub of the coordinator's directory.
    """
    from consilience.engines.flower.keys import make_node_key

    typer.echo(make_node_key(directory, site))


@app.command()
def coordinator(
    keys: Keys,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = PORT,
    home: Annotated[
        Path, typer.Option(metavar="DIR", help="Database and log of the server.")
    ] = Path("superlink"),
    insecure: Insecure = False,
) -> None:
    """Run the SuperLink until stopped: TLS, registered nodes only, nothing reported home.

    Nodes are those whose public keys lie in nodes/ of the keys; add one and start again.
    """
    from consilience.engines.flower.join import APPS, certificate_remarks
    from consilience.engines.flower.server import SuperLink

    if insecure:
        console.complain("Insecure: no TLS, and any node may connect. For trials on one machine.")
    for remark in certificate_remarks(keys):
        console.complain(remark)
    stop = StopOnSignal()
    with stop.signals():
        # Inside the handlers: a signal while it starts must end the server, too.
        link = SuperLink(keys, host, port, home, insecure=insecure)
        try:
            known = ", ".join(sorted(link.nodes)) or ("any" if insecure else "none")
            typer.echo(f"SuperLink at {host}:{port}, nodes: {known}; its log is {link.log}")
            console.say(f"Apps: {APPS}.")
            link.wait(stop.is_set)
        finally:
            link.stop()
    typer.echo("SuperLink: stopped")


@app.command()
def site(
    site_toml: Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's own file.")],
    superlink: SuperLinkAt,
    keys: Keys,
    insecure: Insecure = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Every reply waits for 'consilience site release'.")
    ] = False,
    poll: Annotated[float, typer.Option(help="Pause between two looks, seconds.")] = 0.2,
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.info,
) -> None:
    """Be this site's node until stopped.

    Runs no code that comes from the network: whatever app a run carries, the installed package
    answers, and only asks that a coordinator of [trust] has signed.
    """
    from consilience.engines.flower.join import certificate_remarks, serve
    from consilience.sites.study import SiteFile

    log = EventLog(log_format, log_level, _words)
    if insecure:
        log.event("insecure", {"reason": "no TLS, no node key: for trials on one machine"})
    stop = StopOnSignal()
    with log.ending(), stop.signals():
        file = SiteFile.load(site_toml)
        log.always["site"] = file.name
        for remark in certificate_remarks(keys):
            log.event("certificate", {"reason": remark})
        trusted = len(file.trust.coordinators)
        log.event("watching", {"site": file.name, "server": superlink, "coordinators": trusted})
        serve(
            file,
            superlink,
            keys,
            insecure=insecure,
            is_over=stop.is_set,
            poll=poll,
            hold=hold,
            on_event=log.event,
        )
    log.event("stopped", log.always)


@app.command()
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="Study file.")],
    superlink: SuperLinkAt,
    keys: Keys,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory; runs/<run id> here unless given."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that stopped.")
    ] = False,
    retry_refused: Annotated[
        bool, typer.Option("--retry-refused", help="Resume, and ask again who refused.")
    ] = False,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Public seed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object only.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    insecure: Insecure = False,
) -> None:
    """Run a study over a SuperLink; the run directory is written here.

    The same as 'consilience run STUDY --engine flower'.
    """
    plan = Plan(
        study,
        out,
        resume or retry_refused,
        retry_refused,
        EngineName.flower,
        seed=seed,
        quiet=quiet,
        superlink=superlink,
        keys=keys,
        insecure=insecure,
    )
    tell(execute(plan), as_json=json)


def _words(kind: str, facts: dict[str, Any]) -> str:
    """An event of a node, for people."""
    if kind == "watching":
        return (
            f"site {facts['site']}: node of {facts['server']}, trusting {facts['coordinators']} "
            "coordinator(s); apps of runs are not loaded"
        )
    if kind == "stopped":
        return f"site {facts['site']}: stopped"
    if kind == "held":
        where = ", ".join(f"{name} {facts[name]}" for name in ("run", "round", "step"))
        return f"{where}: the reply waits for the steward ('consilience site queue')"
    said = " ".join(f"{name}={value}" for name, value in facts.items() if value not in ("", None))
    return f"{kind} {said}".strip()
