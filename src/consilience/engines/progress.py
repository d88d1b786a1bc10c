"""How far a run has come, and for whom it waits: by its directory, and by the homes of sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

from consilience.engines.rundir import RunInfo, read_info
from consilience.engines.study_run import state_of
from consilience.exceptions import StudyError
from consilience.sites.site_store import DiskStore
from consilience.sites.study import SiteFile


@dataclass
class _Heard:
    """What the events of a run say."""

    round: int = 0
    step: str = ""
    asked: int = 0
    last: float | None = None
    answered: dict[int, set[str]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


def progress_of(path: Path, info: RunInfo) -> dict[str, Any]:
    """Facts about a run, as plain values."""
    # The state first: a run that ends in between is told of as running, and again when it changes.
    (state, reason), heard = state_of(path), _events(path)
    # Of the round under way alone: what came before needs nobody's attention.
    answered = heard.answered.get(heard.round, set())
    left = sorted(set(info.sites) - answered) if state != "finished" and heard.round else []
    all_asked = heard.asked == len(info.sites)
    return {
        "run": info.run,
        "method": info.method,
        "state": state,
        "reason": reason,
        "round": heard.round,
        "step": heard.step,
        "sites": list(info.sites),
        "asked": heard.asked,
        "answered": sorted(answered),
        # Where only some were asked, the events do not say whom.
        "waiting_for": left if all_asked else None,
        "waiting": len(left) if all_asked else max(heard.asked - len(answered), 0),
        "absent": sorted(heard.absent),
        "last_heard": heard.last,
        "directory": str(path),
    }


def held_for(path: Path, sites: Path | None) -> dict[str, dict[str, list[str]]]:
    """Replies of a run that wait for the stewards of sites on this machine, by site."""
    if sites is None:
        return {}
    if not sites.is_dir():
        raise StudyError(f"there is no folder {sites}: name where the site files are by --sites")
    info = read_info(path)
    found, damaged = {}, {}
    for name in info.sites:
        if not (sites / f"{name}.toml").is_file():
            continue  # this site is elsewhere: its steward sees its queue there
        home = SiteFile.load(sites / f"{name}.toml").home_path
        # Nothing has run there yet, so nothing can wait.
        if not home.is_dir():
            continue
        jobs = DiskStore(home).jobs
        held = [job.name for job in jobs.waiting() if job.run == info.run]
        if held:
            found[name] = held
        if damages := jobs.damages():
            damaged[name] = [str(error) for error in damages]
    return {"held": found, **({"damaged": damaged} if damaged else {})}


def _events(path: Path) -> _Heard:
    """Read events.jsonl; a line that is being written is left out."""
    heard = _Heard()
    try:
        # Events are notes outside the chain: good enough to say how far a run is, no more.
        text = (path / "events.jsonl").read_text(encoding="utf-8")
    except OSError:
        return heard
    for line in text.splitlines():
        try:
            event: Any = loads(line)
            heard.last = float(event["time"])
            if event["event"] == "ask":
                heard.round, heard.step = int(event["round"]), str(event["step"])
                heard.asked = int(event["sites"])
            elif event["event"] == "arrived":
                heard.answered.setdefault(int(event["round"]), set()).add(str(event["site"]))
                if event["outcome"] == "absent":
                    heard.absent.add(str(event["site"]))
                else:
                    # It has come back: absence is of the last time that it was asked.
                    heard.absent.discard(str(event["site"]))
        except (ValueError, KeyError, TypeError):
            continue
    return heard
