"""``consilience show``: what a finished run says."""

from __future__ import annotations

from typing import Any

import typer

from consilience.cli import console
from consilience.cli.runs import REPORT, RUN, as_json, load, versions


def show(
    run: str = RUN,
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Show what a finished run says.

    Its answer, main table and notes, and the seed and versions behind them.
    """
    found = load(run)
    if json:
        console.print_json(as_json(found))
        return
    console.say(found.result.summary())
    typer.echo()
    console.frame(found.result.to_frame())
    console.notes(found.notes)
    typer.echo()
    presets = found.presets
    sites = (f"{s} ({presets[s]})" if s in presets else s for s in found.info.sites)
    given = found.info.parameters.items()
    parameters = (f"{name} = {_in_few_words(value)}" for name, value in given)
    path = found.directory
    has_report = path is not None and (path / REPORT).is_file()
    console.facts(
        (
            ("Run", found.info.run),
            ("Study", f"{found.info.name} ({found.info.study[:12]})"),
            ("Parameters", ", ".join(parameters) or "none"),
            ("Sites", ", ".join(sites)),
            ("Engine", found.info.engine),
            ("Seed", found.info.seed),
            ("Versions", versions(found.info)),
            ("Directory", path),
            ("Report", path / REPORT if path is not None and has_report else "not written yet"),
        )
    )


def _in_few_words(value: Any) -> str:
    """A parameter; of a table only its size."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return f"{len(value)} rows of {len(value[0])} numbers"
    return repr(value)
