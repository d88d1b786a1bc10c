"""``consilience purge``: drop what a finished run no longer needs."""

from __future__ import annotations

import typer

from consilience.cli import console
from consilience.cli.runs import RUN, directory, state_of


def purge(
    run: str = RUN,
    force: bool = typer.Option(
        False, "--force", help="Also a run that has not ended: it can then not be resumed."
    ),
) -> None:
    """Drop the payloads of a finished run.

    They are its journal; transcript, result and report stay.
    """
    from consilience.engines import rundir
    from consilience.exceptions import RunError

    path = directory(run)
    state = state_of(path)
    if state == "running":
        raise RunError(f"a coordinator is at work in {path}: wait until it has ended")
    if state == "stopped" and not force:
        raise RunError(
            f"the run in {path} has not ended and could not be resumed afterwards: add --force if "
            "that is meant"
        )
    had = (path / "journal").is_dir()
    rundir.purge(path)
    what = "The payloads were removed" if had else "There were no payloads any more"
    console.line(f"{what}; transcript and result stay in {path}")
