"""``consilience next``: the studies that a finished run leads to."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.cli.init import settings_of
from consilience.cli.runs import RUN, RUNS, load

if TYPE_CHECKING:
    from consilience.engines.federation import Run
    from consilience.engines.study_next import NextStudies, ProposedStudy, Verdict
    from consilience.sites.study import SiteFile, Study


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
    sites: Path | None = typer.Option(
        None, metavar="DIR", help="Where <site>.toml are; sites/ beside the study unless given."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Propose the study that a run leads to, and write its file.

    Each proposal says which evidence in the result speaks for it, and what the sites' policies must
    grant. Where there are several, --take says which one is written. A file that is there is never
    replaced.
    """
    from consilience.engines import study_next
    from consilience.exceptions import ParameterError, StudyError

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
    _tell(proposed, verdicts)
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
    from consilience.exceptions import StudyError

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


def _tell(proposed: NextStudies, verdicts: list[Verdict]) -> None:
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
