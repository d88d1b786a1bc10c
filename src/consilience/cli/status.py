"""``consilience status``: how far a run has come."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from consilience.cli import console
from consilience.cli.runs import RUNS, directory, state_of

if TYPE_CHECKING:
    from consilience.engines.rundir import RunInfo


@dataclass
class _Heard:
    """What the events of a run say."""

    round: int = 0
    step: str = ""
    asked: int = 0
    last: float | None = None
    answered: dict[int, set[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


def status(
    run: str | None = typer.Argument(
        None, metavar="[RUN]", help="Run directory or id, or a folder of runs; ./runs unless given."
    ),
) -> None:
    """Say how far a run has come, or list the runs here.

    Names the sites that it waits for.
    """
    from consilience.engines.rundir import read_info

    folder = RUNS if run is None else Path(run)
    if run is None or (folder.is_dir() and any(folder.glob("*/run.json"))):
        _list(folder)
        return
    path = directory(run)
    info, state, heard = read_info(path), state_of(path), _events(path)
    console.facts(
        (
            ("Run", info.run),
            ("Method", info.method),
            ("State", state),
            ("Round", f"{heard.round}, {heard.step}" if heard.round else "none yet"),
            *_waiting(info, state, heard),
            ("Last heard", _ago(heard.last)),
            ("Directory", path),
        )
    )
    if state == "stopped":
        console.line(f"Go on with: consilience run STUDY --out {path} --resume")


def _list(folder: Path) -> None:
    from consilience.engines.study_run import runs_in

    rows = []
    for path, info in runs_in(folder):
        heard = _events(path)
        rows.append((path, info.method, state_of(path), heard.round, _ago(heard.last)))
    if rows:
        console.table(("directory", "method", "state", "round", "last heard"), rows, right="   r")
    else:
        console.line(f"There are no runs in {folder}: name a run directory, or begin one.")


def _waiting(info: RunInfo, state: str, heard: _Heard) -> list[tuple[str, str]]:
    answered = heard.answered.get(heard.round, set())
    shown = [("Answered", ", ".join(sorted(answered)) or "none")]
    left = sorted(set(info.sites) - answered)
    if state != "finished" and left:
        all_asked = heard.asked == len(info.sites)
        names = ", ".join(left) if all_asked else f"{max(heard.asked - len(answered), 0)} sites"
        shown.append(("Waiting for", names))
    if heard.absent:
        shown.append(("Absent", ", ".join(sorted(heard.absent))))
    return shown


def _events(path: Path) -> _Heard:
    """Read events.jsonl; a line that is being written is left out."""
    heard = _Heard()
    try:
        text = (path / "events.jsonl").read_text(encoding="utf-8")
    except OSError:
        return heard
    for line in text.splitlines():
        try:
            event: Any = json.loads(line)
            heard.last = float(event["time"])
            if event["event"] == "ask":
                heard.round, heard.step = int(event["round"]), str(event["step"])
                heard.asked = int(event["sites"])
            elif event["event"] == "arrived":
                heard.answered.setdefault(int(event["round"]), set()).add(str(event["site"]))
                if event["outcome"] == "absent":
                    heard.absent.add(str(event["site"]))
                else:
                    heard.absent.discard(str(event["site"]))
        except (ValueError, KeyError, TypeError):
            continue
    return heard


def _ago(when: float | None) -> str:
    if when is None:
        return "never"
    seconds = max(time.time() - when, 0.0)
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"
