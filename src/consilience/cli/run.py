"""``consilience run``: run a study.

Progress is shown by round and site: a live display on a terminal, plain lines elsewhere.

``consilience check``: whether a study can run on the tables of its sites.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.cli.console import INTERRUPTED, clean, complain, on_terminal
from consilience.cli.logs import EventLog, Format, Level, LogFormat, LogLevel
from consilience.cli.runs import REPORT, RUNS, SITES, STUDY, plain_run
from consilience.exceptions import ConsilienceError, QuorumError, RunError, StudyError

if TYPE_CHECKING:
    from consilience.engines.base import Engine
    from consilience.engines.federation import Run
    from consilience.engines.flower.join import Seen
    from consilience.engines.study_check import SiteCheck
    from consilience.protocol.method import Method, Planned
    from consilience.sites.study import Study

SUPERLINK = typer.Option(None, metavar="HOST:PORT", help="Where the SuperLink is (engine flower).")
KEYS = typer.Option(
    None, metavar="DIR", help="The coordinator's certificates and keys (engine flower)."
)
INSECURE = typer.Option(
    False, "--insecure", help="No TLS: for trials on one machine (engine flower)."
)
MANY = 6
"""Sites that a line names; of more it names those that did not answer, and the first."""


def shortened(answered: Sequence[str]) -> str:
    """Name the sites that answered, or some of them where there are many."""
    if len(answered) <= MANY:
        return ", ".join(sorted(answered))
    # Those that did not answer are always named: a person has to look after them.
    odd = sorted(site for site in answered if site.endswith(")"))
    plain = sorted(site for site in answered if not site.endswith(")"))
    shown = [*odd, *plain[: max(1, MANY - len(odd))]]
    rest = len(answered) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def words(kind: str, facts: dict[str, Any]) -> str:
    """One event for people, for logs that leave out what went as it should."""
    if kind == "arrived":
        return f"round {facts['round']}, {facts['step']}: {facts['site']} ({facts['outcome']})"
    said = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"{kind}: {said}"


class Progress:
    """Follows a run's events.

    Parameters
    ----------
    quiet : bool
        Say nothing.
    each_site : bool
        Where there is no terminal, print a line for each answer and not only for each round.
    log : EventLog, optional
        Where events are logged instead.
    """

    def __init__(self, *, quiet: bool, each_site: bool, log: EventLog | None = None) -> None:
        self._quiet, self._each_site, self._log = quiet or log is not None, each_site, log
        self._live: Any = None
        self._open = ExitStack()
        self._task: Any = None
        self._round, self._step, self._asked = 0, "", 0
        self._answered: list[str] = []
        self._n_replies = 0

    def __enter__(self) -> Progress:
        if not self._quiet and on_terminal():
            from rich.console import Console
            from rich.progress import Progress as Live
            from rich.progress import SpinnerColumn

            from consilience.numerics.progress import columns, shown_by

            console = Console(stderr=True)
            self._live = Live(SpinnerColumn(), *columns(), console=console, transient=True)
            self._live.start()
            self._open.enter_context(shown_by(self._live))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        if self._live is not None:
            self._live.stop()
        # The round in which it stopped is told, too.
        if self._answered and error[0] is not None:
            self._round_over()

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Take note of an event of the driver."""
        if self._log is not None:
            if kind == "ask":
                self._step = facts["step"]
            self._log.event(kind, {"step": self._step, **facts} if kind == "arrived" else facts)
            return
        if kind == "ask":
            self._round_over()
            self._round, self._step = facts["round"], facts["step"]
            self._asked, self._answered, self._n_replies = facts["sites"], [], 0
            self._draw(new=True)
        elif kind == "arrived":
            outcome = "" if facts["outcome"] == "reply" else f" ({facts['outcome']})"
            self._n_replies += not outcome
            self._answered.append(f"{facts['site']}{outcome}")
            self._draw()
            if self._each_site:
                self._print(f"{self._about}: {self._answered[-1]}")
        elif kind == "done":
            self._round_over()
            self._round = 0

    def note(self, kind: str, facts: dict[str, Any]) -> None:
        """Take note of a file that the folder engine has set aside."""
        if self._log is not None:
            self._log.event(kind, facts)
            return
        words = ", ".join(f"{name} {value}" for name, value in facts.items())
        if not self._quiet:
            complain(f"folder: {kind}: {words}")

    @property
    def _about(self) -> str:
        return f"round {self._round}, {self._step}"

    def _round_over(self) -> None:
        if not self._round:
            return
        if self._answered:
            who = shortened(self._answered)
            self._print(f"{self._about}: {self._n_replies} of {self._asked} sites ({who})")
        else:
            self._print(f"{self._about}: already answered")

    def _print(self, text: str) -> None:
        if not self._quiet and self._live is None:
            complain(text)

    def _draw(self, *, new: bool = False) -> None:
        if self._live is None:
            return
        if new and self._task is not None:
            self._live.remove_task(self._task)
        if new or self._task is None:
            # Cleaned: the step comes from a method that somebody else may have written.
            self._task = self._live.add_task(clean(self._about), total=self._asked, who="")
        self._live.update(
            self._task, completed=len(self._answered), who=clean(shortened(self._answered))
        )


class EngineName(StrEnum):
    """Engines that this command can start."""

    local = "local"
    folder = "folder"
    flower = "flower"


OPTIONS = {
    EngineName.local: ("sites",),
    EngineName.folder: ("folder", "key"),
    EngineName.flower: ("superlink", "keys", "insecure"),
}
"""Options of each engine; another engine's are refused, so that none is left unheeded."""
_OPTIONAL = ("sites", "insecure")


@dataclass(frozen=True)
class Plan:
    """What was asked for.

    Attributes
    ----------
    study : Path
    out : Path or None
        A directory named by the run id in `runs` unless given.
    runs : Path
    resume, retry_refused : bool
    engine : EngineName
    folder, key, sites : Path or None
    superlink : str or None
    keys : Path or None
    insecure : bool
    seed : int or None
    quiet : bool
    log_format : LogFormat
    log_level : LogLevel
    """

    study: Path
    out: Path | None = None
    resume: bool = False
    retry_refused: bool = False
    engine: EngineName = EngineName.local
    folder: Path | None = None
    key: Path | None = None
    sites: Path | None = None
    seed: int | None = None
    quiet: bool = False
    runs: Path = RUNS
    superlink: str | None = None
    keys: Path | None = None
    insecure: bool = False
    log_format: LogFormat = LogFormat.text
    log_level: LogLevel = LogLevel.info

    def check(self) -> None:
        """Raise `StudyError` where options do not go together."""
        for engine, known in OPTIONS.items():
            # An option that is not given is None, or False where it is a switch.
            given = [name for name in known if getattr(self, name) not in (None, False)]
            needed = [name for name in known if name not in _OPTIONAL]
            if self.engine is not engine and given:
                raise StudyError(f"--{given[0]} goes with --engine {engine.value}: add it")
            if self.engine is engine and not set(needed) <= set(given):
                listed = " and ".join(f"--{name}" for name in needed)
                raise StudyError(f"--engine {engine.value} needs {listed}")
        if self.resume and self.seed is not None:
            raise StudyError("a run keeps its seed: leave --seed out when resuming")

    def again(self, out: Path, *, retry: bool = False) -> str:
        """Return the command that goes on with the run in `out`."""
        words = ["consilience", "run", str(self.study), "--out", str(out), "--resume"]
        words += ["--retry-refused"] if retry else []
        words += [] if self.engine is EngineName.local else ["--engine", self.engine.value]
        for name in ("folder", "key", "sites", "superlink", "keys"):
            if getattr(self, name) is not None:
                words += [f"--{name}", str(getattr(self, name))]
        words += ["--insecure"] if self.insecure else []
        return shlex.join(words)


def run(
    study: Path = STUDY,
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Run directory; runs/<run id> here unless given."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with a run that stopped: the one in --out, or here in runs."
    ),
    retry_refused: bool = typer.Option(
        False, "--retry-refused", help="Resume, and ask again sites that refused or were absent."
    ),
    engine: EngineName = typer.Option(
        EngineName.local,
        help="All sites on this machine, each behind a shared folder, or nodes of a SuperLink.",
    ),
    folder: Path | None = typer.Option(None, metavar="DIR", help="Shared folder (engine folder)."),
    key: Path | None = typer.Option(
        None, metavar="FILE", help="The coordinator's private key (engine folder)."
    ),
    sites: Path | None = SITES,
    superlink: str | None = SUPERLINK,
    keys: Path | None = KEYS,
    insecure: bool = INSECURE,
    seed: int | None = typer.Option(
        None, min=0, metavar="N", help="Public seed; the study's, or a fresh one, unless given."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress."),
    log_format: Format = LogFormat.text,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a study.

    Leaves a run directory with the result, the transcript and a report.

    A study that follows an earlier one ([follows] run = "<run id>") finds it in the folder that
    holds this run's directory.
    """
    plan = Plan(
        study,
        out,
        resume or retry_refused,
        retry_refused,
        engine,
        folder,
        key,
        sites,
        seed,
        quiet,
        superlink=superlink,
        keys=keys,
        insecure=insecure,
        log_format=log_format,
        log_level=log_level,
    )
    tell(execute(plan), as_json=json)


def execute(plan: Plan) -> Run:
    """Check, run, write the report.

    Raises
    ------
    ConsilienceError
    """
    log = EventLog(plan.log_format, plan.log_level, words, stream=sys.stderr)
    with log.ending():
        return _execute(plan, log)


def _execute(plan: Plan, log: EventLog) -> Run:
    from consilience.engines.federation import Federation
    from consilience.engines.rundir import new_run_id, read_info
    from consilience.engines.study_run import check_reference, followed_run, method_of
    from consilience.sites.study import Study

    # Before any file is read: a wrong option is the quickest to mend.
    plan.check()
    study = Study.load(plan.study)
    method = method_of(study)
    run_id = new_run_id(study.name)
    out = plan.out or (_stopped_run(study) if plan.resume else plan.runs / run_id)
    if plan.resume:
        # The file may have changed since: the rows are part of what the run is.
        check_reference(study, method, out)
    else:
        _require_room(out)
    log.always["run"] = read_info(out).run if plan.resume else run_id
    follows = followed_run(study, out.parent)
    with Progress(
        quiet=plan.quiet,
        each_site=plan.engine is not EngineName.local,
        log=log if log.is_json or plan.log_level is not LogLevel.info else None,
    ) as progress:
        federation = Federation.from_study(study, engine=_engine(plan, study, method, progress))
        with _way_back(plan, out):
            done = federation.run(
                method,
                seed=study.seed if plan.seed is None and not plan.resume else plan.seed,
                out=out,
                resume=plan.resume,
                retry_refused=plan.retry_refused,
                follows=follows,
                run_id=run_id,
                on_event=progress.event,
            )
    _report(done, out)
    return done


def tell(run: Run, *, as_json: bool = False) -> None:
    """Print the answer, the notes, and where things are; or the run as one JSON object."""
    if as_json:
        console.print_json(plain_run(run))
        return
    console.say(run.result.summary())
    console.notes(run.further_notes)
    typer.echo()
    path = run.directory
    if path is not None:
        others = {"More": "show", "": "transcript", "Next": "next"}
        more = {name: shlex.join(["consilience", word, str(path)]) for name, word in others.items()}
        where = (("Directory", path), ("Report", path / REPORT), *more.items())
        console.facts((("Run", run.info.run), ("Seed", run.info.seed), *where))


def _report(done: Run, out: Path) -> None:
    """Write the report; where that fails, say first that the run itself is safe."""
    from consilience.cli.runs import write_report

    try:
        write_report(done, out / REPORT)
    except Exception as error:
        why = str(error) if isinstance(error, ConsilienceError) else type(error).__name__
        raise RunError(
            f"the run has ended and 'consilience show {out}' shows it, but its report could not be "
            f"written ({why}): try 'consilience report {out}'"
        ) from error


def _engine(plan: Plan, study: Study, method: Method, progress: Progress) -> Engine:
    """Build the engine; sites on this machine are checked before anything is asked."""
    from consilience.engines.local import local_engine
    from consilience.engines.study_check import check_sites, planned, require_quorum
    from consilience.engines.study_run import folder_engine, read_site_files

    if plan.folder is not None and plan.key is not None:
        return folder_engine(study, plan.folder, plan.key, on_note=progress.note)
    if plan.superlink is not None and plan.keys is not None:
        from consilience.engines.flower.join import engine as flower_engine

        through = flower_engine(
            study, plan.superlink, plan.keys, insecure=plan.insecure, on_note=progress.note
        )
        # Now, not with the first ask: a wrong address should not leave a run directory.
        through.require_link()
        return through
    files = read_site_files(study, plan.sites)
    # A run that goes on was checked when it began, and its sites may have moved on since.
    if not plan.resume:
        checks = check_sites(study, files, method)
        require_quorum(study, checks)
        planned(study, checks, method)
    return local_engine(study, files)


def _require_room(out: Path) -> None:
    """Refuse a directory that holds other things than a run."""
    try:
        # A run that is there is judged by the run directory itself, in words of its own.
        is_strange = out.is_dir() and not (out / "run.json").exists()
        full = is_strange and any(not path.name.startswith(".") for path in out.iterdir())
    except OSError as error:
        raise RunError(f"{out} cannot be read: {error.strerror}") from None
    if full:
        raise RunError(f"{out} holds files that are not a run's: name a new directory by --out")


def _stopped_run(study: Study) -> Path:
    """The one run of this study here in ``runs`` that has not ended."""
    from consilience.engines.study_run import runs_in

    found = [
        path
        for path, info in runs_in(RUNS)
        if info.study == study.hash() and not (path / "result.json").is_file()
    ]
    if len(found) == 1:
        return found[0]
    which = "several runs" if found else "no run"
    raise RunError(f"{which} of this study in {RUNS}/ can be resumed: name the directory by --out")


@contextmanager
def _way_back(plan: Plan, out: Path) -> Iterator[None]:
    """Say how to go on with a run that stopped."""
    from consilience.engines.rundir import read_lines

    try:
        yield
    except QuorumError as error:
        # Sites that all answered, with less than the method needs, would answer the same again.
        if not any(line.verdict in ("refused", "absent") for line in read_lines(out)):
            raise
        again = plan.again(out, retry=True)
        look = ""
        # Over a folder a site whose watch is down, and one that does not trust the key, both keep
        # silent.
        if plan.folder is not None and "no reply within" in str(error):
            health = shlex.join(("consilience", "health", str(plan.study), "--folder"))
            look = (
                f"; whether their watches run says {health} {shlex.quote(str(plan.folder))}, and "
                "whether they trust this coordinator's key say their own logs"
            )
        raise QuorumError(f"{error}{look}; to ask them again: {again}") from error
    except KeyboardInterrupt:
        begun = (out / "run.json").is_file()
        go_on = f"; go on with: {plan.again(out)}" if begun else ": nothing was asked yet"
        if plan.log_format is LogFormat.text:
            console.complain(f"Interrupted{go_on}")
        raise typer.Exit(INTERRUPTED) from None


def check(
    study: Path = STUDY,
    sites: Path | None = SITES,
    site: Path | None = typer.Option(
        None, metavar="SITE.toml", help="Your own site's file alone: the others are elsewhere."
    ),
    engine: EngineName = typer.Option(
        EngineName.local, help="flower: ask the sites where they are, and check the connection."
    ),
    superlink: str | None = SUPERLINK,
    keys: Path | None = KEYS,
    insecure: bool = INSECURE,
) -> None:
    """Check a study and its tables without running anything.

    Names columns and counts rows; never shows a value. Ends with the exit code of the first error
    where too few sites could take part. With --engine flower every site that is connected checks
    its own table and answers by yes or no; ports, clocks, certificates and versions are looked at.
    """
    if engine is EngineName.flower or superlink is not None:
        _over_flower(study, superlink, keys, insecure=insecure)
        return
    from consilience.engines.study_check import (
        check_own,
        check_sites,
        differences,
        duration,
        planned,
        require_quorum,
        same_rows,
    )
    from consilience.engines.study_run import method_of, read_site_files
    from consilience.sites.study import SiteFile, Study

    read = Study.load(study)
    method = method_of(read)
    # All sites are looked at before anything is said: one that fails hides no other.
    if site is None:
        checks = check_sites(read, read_site_files(read, sites), method)
    else:
        checks = [check_own(read, SiteFile.load(site), method)]
    rules = read.preparation
    told = f"missing = {rules.missing!r}, standardize = {rules.standardize!r}"
    told += f", sums = {read.sums!r}" * (read.sums != "plain")
    remarked = _tell_study(read, study, method, len(read.sites.names), before=(("Rules", told),))
    _tell_sites(checks)
    console.heading("Columns: type, and rows without a value")
    _tell_columns(read, checks)
    _tell_plan(planned(read, checks, method))
    # Columns first: they are what the parties have to agree on.
    said = [*differences(read.columns, checks), *same_rows(checks)]
    said += [f"{c.name}: {remark}" for c in checks for remark in c.remarks]
    said += duration(checks)
    said += [
        f"{c.name}: Cannot take part: {str(c.error).removeprefix(f'site {c.name}: ')}"
        for c in checks
        if c.error is not None
    ]
    _tell_remarks(read, [*said, *remarked])
    require_quorum(read, checks)
    console.say("The study can run." if site is None else f"Site {checks[0].name} can take part.")


def _over_flower(path: Path, superlink: str | None, keys: Path | None, *, insecure: bool) -> None:
    """Ask the sites of a federation over Flower."""
    from consilience.engines.flower import join
    from consilience.engines.study_check import check_admitted
    from consilience.engines.study_run import method_of
    from consilience.sites.study import Study

    if superlink is None or keys is None:
        raise StudyError("--engine flower needs --superlink and --keys")
    study = Study.load(path)
    method = method_of(study)
    check_admitted(study, method)
    # Sites check their own tables: this machine needs none of their files.
    through = join.engine(study, superlink, keys, insecure=insecure)
    try:
        found = join.look(study, through)
    finally:
        through.close()
    link = f"{superlink}, {'plaintext' if insecure else 'TLS'}"
    after = (("SuperLink", link), ("Apps", join.APPS))
    remarked = _tell_study(study, path, method, len(found), after=after)
    tell_seen(found)
    said = [f"{one.site}: {text}" for one in found for text in one.said]
    said += [*join.differences(study, found), *remarked]
    _tell_remarks(study, said, join.certificate_remarks(keys))
    able = [one.site for one in found if one.able]
    if len(able) < study.quorum:
        raise QuorumError(
            f"{len(able)} of {len(found)} sites can take part and the study needs "
            f"{study.quorum}: see the remarks above"
        )
    console.say("The study can run.")


Facts = tuple[tuple[str, str], ...]


def _tell_study(
    study: Study, path: Path, method: Method, n: int, before: Facts = (), after: Facts = ()
) -> list[str]:
    """Print the facts of a study; returns remarks on its reference rows, for the end."""
    from consilience.engines.study_check import fact_line, facts_of
    from consilience.sites.study import read_reference

    remarked: list[str] = []
    if study.reference is not None:
        rows = read_reference(study)
        before, remarked = (*before, ("Reference", fact_line(rows))), facts_of(rows).remarks()
    console.facts(
        (
            ("Study", f"{study.name} ({path})"),
            ("Hash", study.hash()),
            ("Method", f"{method.name}: {method.title}"),
            ("Sites", f"{n}, of which {study.quorum} must answer"),
            *before,
            *after,
        )
    )
    console.heading("Sites")
    return remarked


def _tell_remarks(study: Study, said: list[str], more: Sequence[str] = ()) -> None:
    """Print what there is to remark, on the study's keys too."""
    from consilience.engines.study_run import key_remarks

    if said := [*said, *key_remarks(study), *more]:
        console.heading("Remarks")
    for text in said:
        console.say(text, indent=2, bullet="- ")
    typer.echo()


def tell_seen(found: list[Seen]) -> None:
    """Print what the sites answered before a run."""
    console.table(
        ("site", "connected", "release", "clock, seconds", "verdict"),
        (
            (
                one.site,
                "yes" if one.connected else "no",
                one.release or "-",
                f"{one.skew:+.1f}" if one.connected else "-",
                "can take part" if one.able else "cannot take part",
            )
            for one in found
        ),
        right="   r",
    )


def _tell_sites(checks: list[SiteCheck]) -> None:
    console.table(
        ("site", "rows read", "rows kept", "policy", "smallest cell", "verdict"),
        (
            (
                c.name,
                "-" if c.report is None else c.report.rows_read,
                "-" if c.report is None else c.report.rows_kept,
                "-" if c.policy is None else c.policy.preset,
                "-" if c.policy is None else c.policy.min_records,
                "can take part" if c.error is None else "cannot take part",
            )
            for c in checks
        ),
        right=" rr r",
    )


def _tell_plan(lines: list[Planned]) -> None:
    """Print how each partner of a study over columns takes part."""
    if not lines:
        return
    console.heading("By the policies: who reveals what")
    header = ("partner", "it reveals", "the initiator reveals", "rounds", "standard errors")
    rows = [(p.partner, p.reveals, p.initiator_reveals, p.rounds, p.errors) for p in lines]
    console.table(header, rows)


def _tell_columns(study: Study, checks: list[SiteCheck]) -> None:
    if study.partition == "columns":
        # Each site's own: they are not compared, and no site is told those of another.
        console.table(
            ("site", "column", "type"),
            ((c.name, name, _cell(c, name)) for c in checks for name in c.kinds),
        )
        return
    console.table(
        ("column", *(c.name for c in checks)),
        ((name, *(_cell(c, name) for c in checks)) for name in study.columns.used()),
    )


def _cell(check: SiteCheck, name: str) -> str:
    if name not in check.kinds:
        return "absent" if check.kinds else "-"
    if check.report is None:
        return check.kinds[name]
    # Of the column's own report: a column that was left out is not in it.
    missing = next((c.missing for c in check.report.columns if c.name == name), 0)
    if not missing:
        return check.kinds[name]
    return f"{check.kinds[name]}, {missing} ({missing / max(check.report.rows_read, 1):.0%})"
