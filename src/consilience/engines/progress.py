"""How far a run has come, and for whom it waits: by its directory, and by the homes of sites."""

from __future__ import annotations

from dataclasses import dataclass, field
from json import loads
from math import isfinite
from pathlib import Path
from typing import Any

from consilience.engines.rundir import RunInfo
from consilience.engines.study_run import state_of
from consilience.exceptions import StudyError
from consilience.sites.site_store import DiskStore, Job
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
    unread: int = 0


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
        "events_unread": heard.unread,
    }


class Queues:
    """Replies that wait for the stewards of sites on this machine; a home is opened once.

    Parameters
    ----------
    sites : Path, optional
        Where ``<site>.toml`` of these sites are.

    Raises
    ------
    StudyError
        There is no such folder.
    """

    def __init__(self, sites: Path | None) -> None:
        if sites is not None and not sites.is_dir():
            raise StudyError(
                f"there is no folder {sites}: name where the site files are by --sites"
            )
        self._sites = sites
        self._of: dict[str, tuple[list[Job], list[str]]] = {}

    def of(self, info: RunInfo) -> dict[str, dict[str, list[str]]]:
        """Replies of a run that wait, by site, and what is damaged at sites."""
        if self._sites is None:
            return {}
        found, damaged = {}, {}
        for name in info.sites:
            waiting, damages = self._queue(self._sites, name)
            if held := [job.name for job in waiting if job.run == info.run]:
                found[name] = held
            if damages:
                damaged[name] = damages
        return {"held": found, **({"damaged": damaged} if damaged else {})}

    def _queue(self, sites: Path, name: str) -> tuple[list[Job], list[str]]:
        if name not in self._of:
            self._of[name] = ([], [])
            # Another site is elsewhere: its steward sees its queue there.
            if (sites / f"{name}.toml").is_file():
                home = SiteFile.load(sites / f"{name}.toml").home_path
                # Nothing has run where there is no home, so nothing can wait.
                if home.is_dir():
                    jobs = DiskStore(home).jobs
                    self._of[name] = (jobs.waiting(), [str(error) for error in jobs.damages()])
        return self._of[name]


def _events(path: Path) -> _Heard:
    """Read events.jsonl; lines that cannot be read are counted, but one that is being written."""
    heard = _Heard()
    try:
        # Events are notes outside the chain: good enough to say how far a run is, no more.
        lines = (path / "events.jsonl").read_bytes().split(b"\n")
    except OSError:
        return heard
    for line in lines[:-1]:
        try:
            _hear(heard, loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            heard.unread += 1
    return heard


def _hear(heard: _Heard, event: Any) -> None:
    time = float(event["time"])
    if not isfinite(time):
        raise ValueError("no time")
    heard.last = time
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
