"""The program ``consilience``: its commands and what they share."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform

import typer

from consilience import __version__
from consilience.cli import demo, doctor, init, methods, run, runs, status
from consilience.cli.errors import House

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
app.command()(methods.methods)
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
