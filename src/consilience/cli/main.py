"""The program ``consilience``: its commands and what they share."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import os
import platform
import re
from typing import TYPE_CHECKING

import typer

from consilience import __version__
from consilience.cli import console, demo, doctor, init, run, runs, status
from consilience.cli.console import House
from consilience.cli.doctor import method_names

# --- ``consilience methods``: what there is, and what each method does and discloses.

if TYPE_CHECKING:
    from consilience.protocol.method import Method


def methods(
    name: str | None = typer.Argument(
        None,
        metavar="[NAME]",
        help="Show this one: parameters, exchange, absence, leakage.",
        autocompletion=method_names,
    ),
) -> None:
    """List the methods, or show one of them.

    Each method answers one question; NAME shows its parameters and what it discloses.
    """
    from consilience.protocol.method import all_methods, get_method

    if name is not None:
        _show(get_method(name))
        return
    found = all_methods()
    several = {one: kind for one, kind in found.items() if not kind.several}
    console.table(
        ("method", "sites share", "question"),
        (
            (one, "columns" if kind.partition == "rows" else "rows", kind.title)
            for one, kind in several.items()
        ),
    )
    console.heading("For the table of one site")
    console.table(
        ("method", "for several sites", "question"),
        ((one, kind.several, kind.title) for one, kind in found.items() if kind.several),
    )
    with_gaps = [one for one, kind in found.items() if kind.accepts_missing]
    if with_gaps:
        console.heading('With missing cells: [preparation] missing = "keep"')
        console.say(", ".join(with_gaps), indent=2)
    console.heading("Under strict, with foreign_models = true in the site's [policy]")
    console.say(", ".join(one for one, kind in found.items() if kind.foreign_models), indent=2)
    console.say("So are empty cells that a study fills or keeps, with any method.", indent=2)


def _show(kind: type[Method]) -> None:
    from consilience.parameters import parameter_docs

    console.line(f"{kind.name} (version {kind.version})")
    console.say(kind.title)
    if kind.several:
        console.say(f"Takes the table of one site. For several sites: {kind.several}.")
    if kind.accepts_missing:
        console.say('Works with missing cells: [preparation] missing = "keep".')
    if kind.foreign_models:
        console.say("Under strict a site grants it: foreign_models = true in its [policy].")
    console.heading("Parameters, for [parameters] of a study file")
    docs = parameter_docs(inspect.getdoc(kind) or "")
    shown = dataclasses.fields(kind)  # type: ignore[arg-type]
    if not shown:
        console.say("None.", indent=2)
    for item in shown:
        typed, text = docs.get(item.name, (str(item.type), ""))
        # Whether it is optional is said by its default.
        typed = typed.removesuffix(", optional")
        console.line(f"  {item.name} : {typed}{_default(item)}")
        if text:
            console.say(text, indent=6)
    console.heading("Exchange")
    for row in ladder(inspect.getdoc(inspect.getmodule(kind)) or "").splitlines():
        console.line(f"  {row}".rstrip())
    console.heading("When a site does not answer")
    console.say(kind.absence, indent=2)
    console.heading("What the coordinator knows afterwards")
    console.say(kind.leakage, indent=2)
    if kind.foreign_models:
        console.say(
            "Who makes up models, or chooses settings for it, can learn more: what, and in how "
            "many runs, is in the steward's guide under Models of others.",
            indent=2,
        )


def ladder(doc: str) -> str:
    """Return a method's text up to its statements on absence and leakage, which are shown apart."""
    return re.split(r"\n\n(?=(?:Absence|Leakage): )", doc)[0]


def _default(item: dataclasses.Field[object]) -> str:
    if item.default is not dataclasses.MISSING:
        return f", default {item.default!r}" if item.default is not None else ", optional"
    if item.default_factory is not dataclasses.MISSING:
        return f", default {item.default_factory()!r}"
    return ", required"


APPS = {"site": "consilience.cli.site", "flower": "consilience.cli.flower"}
"""Groups of commands with a module of their own, which defines ``app``."""

app = typer.Typer(
    name="consilience",
    cls=House,
    no_args_is_help=True,
    # By 'consilience completion', which asks nothing of the shell that it runs in.
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"consilience {__version__} (Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def consilience(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and end."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show where an error came from (may stand anywhere)."
    ),
) -> None:
    """Statistical learning across parties that cannot pool their data."""


app.command()(demo.demo)
app.command()(init.init)
app.command()(methods)
app.command()(run.check)
app.command()(run.run)
app.command()(runs.show)
app.command("next")(init.next_)
app.command()(runs.transcript)
app.command()(runs.report)
app.command()(status.status)
app.command()(status.health)
app.command()(status.desk)
app.command()(runs.purge)
app.command()(doctor.doctor)
app.command()(doctor.completion)
# Their modules import what their commands need, such as Flower, only when they run.
for _name, _module in APPS.items():
    if importlib.util.find_spec(_module) is not None:
        app.add_typer(importlib.import_module(_module).app, name=_name)
if doctor.COMPLETING in os.environ:
    # As typer's scripts expect the answers; those of click have a type beside each name.
    from typer._completion_classes import completion_init

    completion_init()
