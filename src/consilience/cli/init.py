"""``consilience init``: the files of a first study, from the tables themselves.

``consilience next``: the studies that a finished run leads to.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.cli.doctor import method_names
from consilience.cli.runs import RUN, RUNS, SITES, load
from consilience.exceptions import ParameterError, StudyError

if TYPE_CHECKING:
    from consilience.engines.federation import Run
    from consilience.engines.study_check import SiteCheck
    from consilience.engines.study_init import Draft, Found, Wishes
    from consilience.engines.study_next import NextStudies, ProposedStudy, Verdict
    from consilience.sites.own_columns import SiteColumns
    from consilience.sites.study import SiteFile, Study


def init(
    method: str = typer.Argument(
        metavar="METHOD", help="As 'consilience methods' lists them.", autocompletion=method_names
    ),
    files: list[str] | None = typer.Argument(
        None, metavar="[FILE]...", help="One table for each site, as FILE or SITE=FILE."
    ),
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="Where the files are written; named as the method unless given."
    ),
    sheet: str | None = typer.Option(
        None, metavar="NAME", help="The sheet of Excel workbooks that have several."
    ),
    features: str | None = typer.Option(
        None, metavar="A,B,...", help="Columns; all that hold numbers at all sites unless given."
    ),
    target: str | None = typer.Option(None, metavar="COLUMN", help="The response."),
    id_: str | None = typer.Option(
        None, "--id", metavar="COLUMN", help="By what rows of several parties are matched."
    ),
    entity: str | None = typer.Option(None, metavar="COLUMN", help="Whose row it is."),
    agent: str | None = typer.Option(None, metavar="COLUMN", help="Where the entity was seen."),
    weight: str | None = typer.Option(None, metavar="COLUMN", help="The weight of a row."),
    sequence: str | None = typer.Option(
        None, metavar="A,B,...", help="Columns of states, one for each time, in order."
    ),
    initiator: str | None = typer.Option(
        None, metavar="SITE", help="Where parties have different columns: the one that asks."
    ),
    rename: list[str] | None = typer.Option(
        None,
        metavar="SITE:NAME=COLUMN,...",
        help="Columns of a site's table that the study calls otherwise; may be repeated.",
    ),
    recode: list[str] | None = typer.Option(
        None,
        metavar="SITE:COLUMN:OLD=NEW,...",
        help="Values of a column that the study calls otherwise; may be repeated.",
    ),
    settings: list[str] | None = typer.Option(
        None, "--set", metavar="NAME=VALUE", help="A parameter of the method; may be repeated."
    ),
    policy: str | None = typer.Option(
        None, metavar="PRESET", help="strict, consortium or simulation, in each site file."
    ),
    consent: bool | None = typer.Option(
        None,
        "--consent/--no-consent",
        help="Whether site files grant what the method asks for beyond the policy.",
    ),
) -> None:
    """Write the files of a first study, from the tables themselves.

    Reads one table for each site, finds out how it is written, and proposes which columns studies
    may name. What is not given is asked at a terminal. The study is checked before anything is
    written, and a file that is there is never replaced.
    """
    from consilience.engines.study_init import (
        Wishes,
        consents_of,
        draft,
        look,
        needs_of,
        preset_of,
        write,
    )
    from consilience.protocol.method import get_method

    kind, needs = get_method(method), needs_of(method)
    asking = _at_terminal()
    named = _files(
        files or _words("Tables, one for each site", asking, "name one file for each site")
    )
    preset = policy or preset_of(method)
    found = look(named, preset, sheet or "", _own(named, rename or [], recode or []))
    given = {"target": target, "id": id_, "entity": entity, "agent": agent, "weight": weight}
    roles = {role: name for role, name in given.items() if name is not None}
    if asking:
        for site, one in found.items():
            console.complain(f"{site}: {one.table.n_rows} rows; {', '.join(one.table.names)}")
        wanted = [*needs.roles, *(["target"] if needs.target != "none" else [])]
        for role in wanted:
            if role not in roles:
                word = "response" if role == "target" else role
                roles[role] = typer.prompt(f"Column of the {word}", err=True)
        if features is None and sequence is None:
            features = typer.prompt(
                "Features, separated by commas (nothing for all numbers)", "", err=True
            )
    wishes = Wishes(
        method=kind.name,
        folder=folder or Path(kind.name),
        roles=roles,
        features=_listed(features),
        sequence=_listed(sequence),
        parameters=settings_of(settings or []),
        preset=preset,
        consents=bool(consent),
        initiator=initiator or "",
    )
    asked = consents_of(wishes, found)
    if asking and asked and consent is None:
        for line in "".join(asked.values()).splitlines():
            console.complain(line)
        agreed = typer.confirm("May the sites' files say so", err=True)
        wishes = dataclasses.replace(wishes, consents=agreed)
    made = draft(wishes, found)
    _tell(made, found, wishes, write(made))


def _at_terminal() -> bool:
    # A question that is written to a file, as R does, is seen by nobody.
    return sys.stdin.isatty() and sys.stderr.isatty()


def _tell(made: Draft, found: Mapping[str, Found], wishes: Wishes, checks: list[SiteCheck]) -> None:
    """Say what was written and found, and what to do next."""
    from consilience.engines.study_check import same_rows

    console.say("Wrote " + ", ".join(map(str, made.files)) + ".")
    for site, one in found.items():
        how = [f"{name} {value!r}" for name, value in one.settings.items()]
        how += [f"missing {', '.join(map(repr, one.codes))}"] if one.codes else []
        labelled = [name for name in one.table.names if name in one.table.labelled]
        how += [f"value labels of {', '.join(labelled)}"] if labelled else []
        kept = next(check.report for check in checks if check.name == site)
        rows = "" if kept is None else f", {kept.rows_kept} of {kept.rows_read} rows kept"
        console.say(f"{site}: {one.path}{rows}{'; ' if how else ''}{', '.join(how)}.")
        for name, codes in one.far.items():
            console.say(
                f"{site}: in {name}, {' and '.join(map(str, codes))} is far beyond all other "
                "numbers and counts as missing; if it does not stand for that, take it out of "
                "missing_codes in the site file."
            )
        for name, count in ({} if kept is None else kept.dropped_by).items():
            console.say(
                f"{site}: {count} of the dropped rows have no value in {name}, or none that is on "
                "offer."
            )
    for sentence in same_rows(checks):
        console.say(sentence)
    for sentence in made.said:
        console.say(sentence)
    more = ", and grants what was consented to" if wishes.consents else ""
    console.say(
        f"Each site file says which columns are on offer, has the policy {wishes.preset!r}{more}: "
        "its steward looks at it."
    )
    console.heading("Next")
    for word in ("check", "run"):
        console.line(f"  {shlex.join(['consilience', word, str(made.study)])}")


def _words(question: str, asking: bool, otherwise: str) -> list[str]:
    if not asking:
        raise StudyError(f"{otherwise}, as FILE or SITE=FILE")
    try:
        return shlex.split(typer.prompt(question, err=True))
    except ValueError:
        raise StudyError("a quote is open in the answer: write it again") from None


def _files(given: list[str]) -> dict[str, Path]:
    """Files by site; a site is called as its file unless it is named."""
    found: dict[str, Path] = {}
    for text in given:
        site, equals, path = text.partition("=")
        # A file whose name has the sign itself is taken as it is.
        if not equals or Path(text).is_file():
            site, path = Path(text).name.partition(".")[0], text
        if site in found:
            raise StudyError(f"two files are called {site!r}: name the sites, as SITE=FILE")
        found[site] = Path(path)
    return found


def _own(
    sites: Mapping[str, Path], renames: list[str], recodes: list[str]
) -> dict[str, SiteColumns]:
    """Names and spellings of sites, by site."""
    from consilience.sites.own_columns import SiteColumns

    names: dict[str, dict[str, str]] = {site: {} for site in sites}
    spellings: dict[str, dict[str, dict[str, str]]] = {site: {} for site in sites}
    for option, form, given in (
        ("--rename", "SITE:NAME=COLUMN,...", renames),
        ("--recode", "SITE:COLUMN:OLD=NEW,...", recodes),
    ):
        for text in given:
            site, _, rest = text.partition(":")
            column, colon, pairs = ("", ":", rest) if given is renames else rest.partition(":")
            parts = [pair.partition("=") for pair in pairs.split(",")]
            if site not in sites or not colon or not all(a and b and c for a, b, c in parts):
                raise StudyError(
                    f"{option} {text!r}: write {form}, with a site of {', '.join(sites)}"
                )
            to = names[site] if given is renames else spellings[site].setdefault(column, {})
            to.update({old.strip(): new.strip() for old, _, new in parts})
    return {site: SiteColumns(rename=names[site], recode=spellings[site]) for site in sites}


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def settings_of(given: list[str]) -> dict[str, Any]:
    """Parameters as in a study file; what is no value of TOML is a text."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise StudyError(f"--set {text!r}: give a name and a value, as NAME=VALUE")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value
    return found


def next_(
    run: str = RUN,
    take: int | None = typer.Option(
        None, min=1, metavar="N", help="Write the study of this number; a single one is written."
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="The study file; beside that of the run unless given."
    ),
    target: str | None = typer.Option(
        None, metavar="COLUMN", help="The response, where the study of the run has none."
    ),
    settings: list[str] | None = typer.Option(
        None, "--set", metavar="NAME=VALUE", help="A parameter of the study; may be repeated."
    ),
    study: Path | None = typer.Option(
        None, metavar="FILE", help="The study file of the run, where it is no more where it was."
    ),
    sites: Path | None = SITES,
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Propose the study that a run leads to, and write its file.

    Each proposal says which evidence in the result speaks for it, and what the sites' policies must
    grant. Where there are several, --take says which one is written. A file that is there is never
    replaced.
    """
    from consilience.engines import study_next

    found = load(run)
    of = study_next.study_of(found, study)
    files = _site_files(of, sites)
    given = settings_of(settings or [])
    proposed = study_next.next_studies(
        found, study=of, files=files, target=target, parameters=given
    )
    n = len(proposed)
    if take is not None and take > n:
        many = f"between 1 and {n}" if n else "left out, since no study is proposed"
        raise ParameterError.of("--take", many, take)
    if out is not None and take is None and n != 1:
        raise StudyError(f"{n} studies are proposed: say by --take which one {out} is to be")
    chosen = take or (1 if n == 1 else None)
    verdicts = [study_next.verdict(found, one, files) for one in proposed]
    base = Path() if of is None or of.path is None else of.path.parent
    places = [base / f"{one.name}.toml" for one in proposed]
    written, commands = None, []
    # Who only looks, and has such a file, is told what is proposed and not that it is there.
    if chosen is not None and (take or out or study_next.has_room(proposed[0], places[0])):
        one, written = proposed[chosen - 1], out or places[chosen - 1]
        study_next.write(one if out is None else study_next.named(one, out.stem), written)
        commands = _commands(found, one, written)
    if json:
        shown = [_plain(*each) for each in zip(proposed, verdicts, places, strict=True)]
        console.print_json(
            {
                "run": found.info.run,
                "studies": shown,
                "said": list(proposed.said),
                "written": None if written is None else str(written),
                "commands": commands,
            }
        )
        return
    _tell_proposed(proposed, verdicts)
    if written is not None:
        console.heading(f"Study {chosen} is in {written}. Go on with")
        for command in commands:
            console.line(f"  {command}")
    elif n:
        there = f"{places[0]} is there and holds something else. " if n == 1 else ""
        console.heading(f"{there}To write {'it' if n == 1 else 'one of them'}")
        more = ["--out", "FILE"] if n == 1 else ["--take", "1"]
        console.line(f"  {shlex.join(['consilience', 'next', run, *more])}")


def _site_files(study: Study | None, folder: Path | None) -> dict[str, SiteFile]:
    """Site files, where the sites are on this machine."""
    from consilience.engines.study_run import SITES, read_site_files

    if study is None:
        if folder is not None:
            raise StudyError("the run has no study file, which --sites goes with: leave it out")
        return {}
    if folder is None and not (study.base / SITES).is_dir():
        return {}
    return read_site_files(study, folder)


def _commands(run: Run, one: ProposedStudy, path: Path) -> list[str]:
    check, ran = ["consilience", "check", str(path)], ["consilience", "run", str(path)]
    folder = Path() if run.directory is None else run.directory.parent
    # A run is found where the one that follows it will be.
    if one.study.follows is not None and folder.resolve() != RUNS.resolve():
        ran += ["--out", str(folder / path.stem)]
    return [shlex.join(check), shlex.join(ran)]


def _tell_proposed(proposed: NextStudies, verdicts: list[Verdict]) -> None:
    from consilience.protocol.method import get_method

    if not len(proposed):
        console.say("No study is proposed.")
    for i, (one, seen) in enumerate(zip(proposed, verdicts, strict=True), 1):
        if i > 1:
            typer.echo()
        console.line(f"{i}. {one.name}: {get_method(one.method).title}")
        console.say(one.why, indent=3)
        before = ""
        for name, value in _facts(one, seen):
            # Under one name several sentences may stand.
            head = "" if name == before else name
            console.fact(head, value, indent=3, left=_LEFT)
            before = name
    console.notes(proposed.said)


_LEFT = len("Parameters ")


def _facts(one: ProposedStudy, seen: Verdict) -> list[tuple[str, str]]:
    data = one.settings["data"]
    rows = [("Features", ", ".join(data.get("features", ())))]
    rows += [("Sequence", ", ".join(data.get("sequence", ())))]
    rows += [("Response", data.get("target", ""))]
    changed = (f"{name} = {value!r}" for name, value in one.settings["parameters"].items())
    rows += [("Parameters", ", ".join(changed))]
    rows += [("Sites", ", ".join(one.settings["sites"]["names"]))]
    rows += [("Policies", sentence) for sentence in _policies(seen)]
    return [(name, value) for name, value in rows if value]


def _policies(seen: Verdict) -> tuple[str, ...]:
    if seen.checked:
        return seen.said or ("grant it as they are",)
    told = seen.said or ("nothing beyond the presets that the sites told",)
    return (*told, "the site files are not on this machine, so each site checks its own")


def _plain(one: ProposedStudy, seen: Verdict, place: Path) -> dict[str, Any]:
    return {
        "name": one.name,
        "method": one.method,
        "why": one.why,
        "file": str(place),
        **{name: one.settings[name] for name in ("parameters", "data", "preparation", "sites")},
        "follows": one.settings.get("follows", {}).get("run"),
        "checked": seen.checked,
        "able": seen.able,
        "policies": list(seen.said),
    }
