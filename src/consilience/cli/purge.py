"""``consilience purge``: drop what finished runs no longer need."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from consilience.cli import console
from consilience.cli.runs import RUNS, directory
from consilience.exceptions import RunError

DAY = 86400.0


def purge(
    run: str | None = typer.Argument(
        None,
        metavar="RUN",
        help="Run directory, or the id of a run in ./runs; with --older-than a folder of runs, "
        "./runs unless given.",
    ),
    older_than: float | None = typer.Option(
        None, "--older-than", min=0, metavar="DAYS", help="All runs that ended so many days ago."
    ),
    folder: Path | None = typer.Option(
        None, metavar="DIR", help="Remove what the runs left in this shared folder, too."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what would be dropped, and drop nothing."
    ),
    force: bool = typer.Option(
        False, "--force", help="Also a run that has not ended: it can then not be resumed."
    ),
) -> None:
    """Drop the payloads of a finished run, or of all that ended some time ago.

    They are its journal; transcript, result and report stay.
    """
    from consilience.exceptions import EngineError, StudyError

    if folder is not None and not folder.is_dir():
        raise EngineError(f"there is no folder {folder}: check the path of the shared folder")
    if older_than is not None:
        _purge_old(RUNS if run is None else Path(run), older_than, folder, dry_run, force)
        return
    if run is None:
        raise StudyError("name a run, or give --older-than DAYS")
    # One run is named by a person, so that an error about it ends the command.
    path = directory(run)
    reason = _kept_because(path, force)
    if reason is not None:
        raise RunError(f"{path} was not purged: {reason}")
    if dry_run:
        console.line(f"Would drop the payloads of {path}")
        return
    had, left = _drop(path, folder)
    what = "The payloads were removed" if had else "There were no payloads any more"
    more = f", and what it had left in {folder}" if left else ""
    console.line(f"{what}{more}; transcript and result stay in {path}")


def _purge_old(runs: Path, days: float, folder: Path | None, dry_run: bool, force: bool) -> None:
    from consilience.engines.rundir import read_info
    from consilience.engines.study_run import runs_in

    if not runs.is_dir():
        raise RunError(f"there is no folder of runs {runs}: name it")
    dropped = 0
    for path, _ in runs_in(runs):
        # By the files' times: run ids can be chosen, and clocks of hosts differ.
        if (time.time() - _last_change(path)) / DAY <= days:
            continue
        reason = _kept_because(path, force)
        if reason is not None:
            console.line(f"kept {path}: {reason}")
            continue
        if dry_run:
            there = [path / "journal"]
            there += [] if folder is None else [folder / "runs" / read_info(path).run]
            had = any(one.is_dir() for one in there)
        else:
            had = any(_drop(path, folder))
        if had:
            console.line(f"{'would drop' if dry_run else 'dropped'} the payloads of {path}")
            dropped += 1
    if not dropped:
        console.line(f"There is nothing to drop in {runs}")


def _kept_because(path: Path, force: bool) -> str | None:
    from consilience.engines.study_run import state_of

    state, _ = state_of(path)
    # Not even by force: its coordinator would write into what is gone.
    if state == "running":
        return "a coordinator is at work in it"
    if state != "finished" and not force:
        return "it has not ended and could not be resumed afterwards: add --force if that is meant"
    return None


def _drop(path: Path, folder: Path | None) -> tuple[bool, bool]:
    """Drop a run's payloads, and its files in a shared folder; returns what there was."""
    from consilience.engines import rundir
    from consilience.engines.folder.coordinator import remove_files

    # The run's own files first: those in a shared folder are of no use without them.
    had = rundir.purge(path)
    left = folder is not None and remove_files(folder, rundir.read_info(path).run)
    return had, left


def _last_change(path: Path) -> float:
    """When a run ended, or its journal was last written."""
    # The journal of a purged run is gone, and its result was written last.
    for name in ("result.json", "journal/log", "run.json"):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return time.time()
