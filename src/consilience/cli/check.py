"""``consilience check``: whether a study can run on the tables of its sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consilience.cli import console
from consilience.cli.run import EngineName

if TYPE_CHECKING:
    from consilience.engines.study_check import SiteCheck
    from consilience.protocol.method import Method, Planned
    from consilience.sites.study import Study


def check(
    study: Path = typer.Argument(metavar="STUDY", help="Study file."),
    sites: Path | None = typer.Option(
        None, metavar="DIR", help="Where <site>.toml are; sites/ beside the study unless given."
    ),
    site: Path | None = typer.Option(
        None, metavar="SITE.toml", help="Your own site's file alone: the others are elsewhere."
    ),
    engine: EngineName = typer.Option(
        EngineName.local, help="flower: ask the sites where they are, and check the connection."
    ),
    superlink: str | None = typer.Option(
        None, metavar="HOST:PORT", help="Where the SuperLink is (engine flower)."
    ),
    keys: Path | None = typer.Option(
        None, metavar="DIR", help="The coordinator's certificates and keys (engine flower)."
    ),
    insecure: bool = typer.Option(
        False, "--insecure", help="No TLS: for trials on one machine (engine flower)."
    ),
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
    said = list(differences(read.columns, checks))
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
    from consilience.cli.flower import tell_seen
    from consilience.engines.flower import join
    from consilience.engines.study_check import check_admitted
    from consilience.engines.study_run import method_of
    from consilience.exceptions import QuorumError, StudyError
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
    from consilience.sites.reference import read_reference

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
