"""``consilience check``: whether a study can run on the tables of its sites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from consilience.cli import console
from consilience.cli.run import EngineName

if TYPE_CHECKING:
    from consilience.engines.study_check import SiteCheck
    from consilience.sites.study import Study


def check(
    study: Path = typer.Argument(metavar="STUDY", help="Study file."),
    sites: Path | None = typer.Option(
        None, metavar="DIR", help="Where <site>.toml are; sites/ beside the study unless given."
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
    from consilience.engines.study_check import check_sites, differences, require_quorum
    from consilience.engines.study_run import key_remarks, method_of, read_site_files
    from consilience.sites.study import Study

    read = Study.load(study)
    method = method_of(read)
    checks = check_sites(read, read_site_files(read, sites), method)
    about, remarked = _reference(read)
    console.facts(
        (
            ("Study", f"{read.name} ({study})"),
            ("Hash", read.hash()),
            ("Method", f"{method.name}: {method.title}"),
            ("Sites", f"{len(checks)}, of which {read.quorum} must answer"),
            (
                "Rules",
                f"missing = {read.preparation.missing!r}, "
                f"standardize = {read.preparation.standardize!r}",
            ),
            *about,
        )
    )
    console.heading("Sites")
    _sites(checks)
    console.heading("Columns: type, and rows without a value")
    _columns(read, checks)
    remarks = [(c.name, remark) for c in checks for remark in c.remarks]
    remarks += [(c.name, f"Cannot take part: {c.error}") for c in checks if c.error is not None]
    said = [*differences(read.columns, checks), *(f"{name}: {text}" for name, text in remarks)]
    said += remarked
    said += key_remarks(read)
    if said:
        console.heading("Remarks")
        for text in said:
            console.say(text, indent=2, bullet="- ")
    typer.echo()
    require_quorum(read, checks)
    console.say("The study can run.")


def _over_flower(path: Path, superlink: str | None, keys: Path | None, *, insecure: bool) -> None:
    """Ask the sites of a federation over Flower."""
    from consilience.cli.flower import tell_seen
    from consilience.engines.flower import join
    from consilience.engines.study_run import key_remarks, method_of
    from consilience.exceptions import QuorumError, StudyError
    from consilience.sites.study import Study

    if superlink is None or keys is None:
        raise StudyError("--engine flower needs --superlink and --keys")
    study = Study.load(path)
    method = method_of(study)
    about, remarked = _reference(study)
    through = join.engine(study, superlink, keys, insecure=insecure)
    try:
        found = join.look(study, through)
    finally:
        through.close()
    console.facts(
        (
            ("Study", f"{study.name} ({path})"),
            ("Hash", study.hash()),
            ("Method", f"{method.name}: {method.title}"),
            ("Sites", f"{len(found)}, of which {study.quorum} must answer"),
            *about,
            ("SuperLink", f"{superlink}, {'plaintext' if insecure else 'TLS'}"),
            ("Apps", join.APPS),
        )
    )
    console.heading("Sites")
    tell_seen(found)
    said = [f"{one.site}: {text}" for one in found for text in one.said]
    said += [*join.differences(study, found), *remarked]
    said += [*key_remarks(study), *join.certificate_remarks(keys)]
    if said:
        console.heading("Remarks")
        for text in said:
            console.say(text, indent=2, bullet="- ")
    typer.echo()
    able = [one.site for one in found if one.able]
    if len(able) < study.quorum:
        raise QuorumError(
            f"{len(able)} of {len(found)} sites can take part and the study needs "
            f"{study.quorum}: see the remarks above"
        )
    console.say("The study can run.")


def _reference(study: Study) -> tuple[list[tuple[str, str]], list[str]]:
    """What was read as reference rows, and what keeps them from being enough."""
    from consilience.engines.study_check import fact_line, facts_of
    from consilience.sites.reference import read_reference

    if study.reference is None:
        return [], []
    rows = read_reference(study)
    return [("Reference", fact_line(rows))], facts_of(rows).remarks()


def _sites(checks: list[SiteCheck]) -> None:
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


def _columns(study: Study, checks: list[SiteCheck]) -> None:
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
    missing = next((c.missing for c in check.report.columns if c.name == name), 0)
    if not missing:
        return check.kinds[name]
    return f"{check.kinds[name]}, {missing} ({missing / max(check.report.rows_read, 1):.0%})"
