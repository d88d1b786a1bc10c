"""The pages of the coordinator's desk: studies, runs, progress by site, and what waits for whom.

It reads and decides nothing: every page is a GET. What it shows is what ``consilience status``,
``consilience health`` and the report of a run say.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.desk.pages import HEADERS, Pages, ago, guarded, require_extra
from consilience.desk.pages import serve as serve_pages
from consilience.engines import health, rundir
from consilience.engines.study_run import Queues, progress_of, runs_in
from consilience.exceptions import ConsilienceError, RunError
from consilience.protocol.method import get_method
from consilience.sites.study import Study

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

REPORT = "report.html"
NAV = (("runs", "/", "What waits"), ("plans", "/studies", "Studies"))
FOOT = "Nothing is decided on these pages; runs are begun and go on by 'consilience run'."
AT_WORK = ("begun", "running")
DAMAGED = "damaged"
_REPORT_POLICY = {
    "Content-Security-Policy": (
        HEADERS["Content-Security-Policy"].replace("form-action 'self'", "form-action 'none'")
        + "; img-src data:; sandbox allow-popups"
    ),
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Wait:
    """Something that waits: in which run, for whom, and what to do."""

    run: str
    whom: str
    said: str


@dataclass(frozen=True)
class Overview:
    """What the pages say.

    Parameters
    ----------
    studies : Path
        Folder with study files.
    runs : Path
        Folder with runs.
    sites : Path, optional
        Folder with files of sites on this machine: replies that their stewards hold are told.
    folder : Path, optional
        The shared folder: heartbeats of its sites are told.
    """

    studies: Path
    runs: Path
    sites: Path | None = None
    folder: Path | None = None

    def found(self) -> list[dict[str, Any]]:
        """Every run that can be read, the newest first."""
        queues = Queues(self.sites)
        every = [_progress(path, info, queues) for path, info in runs_in(self.runs)]
        n_same = Counter(one["run"] for one in every)
        for one in every:
            # A directory that was copied holds the same run.
            one["label"] = one["run"]
            if n_same[one["run"]] > 1:
                one["label"] += f" in {one['address']}"
        return sorted(every, key=lambda one: (one["last_heard"] or 0.0, one["run"]), reverse=True)

    def plans(self) -> tuple[list[Study], list[str]]:
        """Studies in the folder, and sentences on files that are none that can be read."""
        found, faults = [], []
        for path in sorted(self.studies.glob("*.toml")):
            try:
                found.append(Study.load(path))
            except ConsilienceError as error:
                # A site file, or that of another program, is no fault.
                if "is a site file" not in str(error):
                    faults.append(str(error))
        return found, faults

    def overview(self) -> dict[str, Any]:
        """Runs, and what waits for whom."""
        found = self.found()
        return {"runs": [one | {"heard": _heard(one)} for one in found], "waits": _waits(found)}

    def studies_page(self) -> dict[str, Any]:
        """Studies with their sites and runs."""
        studies, faults = self.plans()
        by_study: dict[str, list[tuple[str, str]]] = {}
        for path, info in runs_in(self.runs):
            by_study.setdefault(info.study, []).append((path.name, info.run))
        rows, beats = [], {}
        for study in studies:
            try:
                told = (study.hash(), get_method(study.method).title)
            except ConsilienceError as error:
                told = ("", str(error))
            rows.append({"study": study, "title": told[1], "runs": by_study.get(told[0], [])})
            if self.folder is not None and study.sites.keys:
                beats[study.name] = [
                    (one, "never" if one.age is None else f"{one.age:.0f} s ago")
                    for one in health.health(self.folder, dict(study.sites.keys), study.method)
                ]
        where = self.studies.resolve().name
        return {"rows": rows, "faults": faults, "beats": beats, "where": where}

    def run(self, name: str) -> dict[str, Any]:
        """One run, site by site."""
        path = self.path_of(name)
        info = rundir.read_info(path)
        one = _progress(path, info, Queues(self.sites))
        told: dict[str, list[int]] = {site: [0, 0] for site in info.sites}
        try:
            lines = rundir.read_lines(path)
        except ConsilienceError:
            lines = ()  # a run that is at its first question has none
        for line in lines:
            if line.site in told and line.direction == "from-site":
                told[line.site][0] += 1
                told[line.site][1] += line.bytes
        return {
            "one": one,
            "heard": _heard(one),
            "info": info,
            "title": _title(info.method),
            "sites": [(site, _state(one, site), *told[site]) for site in info.sites],
            "waits": _waits([one]),
            "report": (path / REPORT).is_file(),
        }

    def report(self, name: str) -> bytes:
        """The report of a run."""
        try:
            return (self.path_of(name) / REPORT).read_bytes()
        except OSError:
            raise RunError(f"run {name!r} has no report yet") from None

    def path_of(self, name: str) -> Path:
        """The directory of a run in the folder, by its name or run id; no other can be named."""
        by_id = []
        for path, info in runs_in(self.runs):
            if path.name == name:
                return path
            by_id += [path] if info.run == name else []
        if len(by_id) == 1:
            return by_id[0]
        if by_id:
            held = ", ".join(path.name for path in by_id)
            raise RunError(f"several directories hold run {name[:120]!r}: open one of {held}")
        raise RunError(f"there is no run {name[:120]!r} in {self.runs}")


def _progress(path: Path, info: rundir.RunInfo, queues: Queues) -> dict[str, Any]:
    """How far a run is; one whose state is damaged hides no other."""
    try:
        one = progress_of(path, info) | queues.of(info)
    except ConsilienceError as error:
        one = {
            "run": info.run,
            "method": info.method,
            "state": DAMAGED,
            "reason": str(error),
            "round": 0,
            "step": "",
            "sites": list(info.sites),
            "answered": [],
            "waiting_for": [],
            "waiting": 0,
            "absent": [],
            "last_heard": None,
            "directory": str(path),
            "events_unread": 0,
        }
    return one | {"address": path.name}


def _title(method: str) -> str:
    try:
        return get_method(method).title
    except ConsilienceError as error:  # of a package that is not installed here
        return str(error)


def _heard(one: dict[str, Any]) -> str:
    return "not yet" if one["last_heard"] is None else ago(one["last_heard"])


def _state(one: dict[str, Any], site: str) -> str:
    """How far a site is in the round under way."""
    if site in one.get("held", {}):
        return "its steward holds a reply"
    if one["state"] == "finished":
        return "was absent when asked last" if site in one["absent"] else "done"
    if site in one["absent"]:
        return "absent"
    if site in one["answered"]:
        return "has answered"
    return "asked" if one["waiting_for"] and site in one["waiting_for"] else "–"


def _waits(found: list[dict[str, Any]]) -> list[Wait]:
    return [wait for one in found for wait in _waits_of(one)]


def _waits_of(one: dict[str, Any]) -> Iterator[Wait]:
    for site, jobs in one.get("held", {}).items():
        said = f"{', '.join(jobs)}: to be released or refused ('consilience site desk')"
        yield Wait(one["run"], f"the steward of {site}", said)
    for site, said in one.get("damaged", {}).items():
        yield Wait(one["run"], f"the steward of {site}", "; ".join(said))
    if one["state"] in AT_WORK and one["waiting"]:
        named = [site for site in one["waiting_for"] or () if site not in one.get("held", {})]
        whom = ", ".join(named) or f"{one['waiting']} sites"
        if named or not one.get("held"):
            yield Wait(one["run"], whom, f"an answer in round {one['round']}, {one['step']}")
    if one["state"] == DAMAGED:
        yield Wait(one["run"], "you", one["reason"])
    if one["state"] in ("stopped", "failed"):
        why = f" ({one['reason']})" if one["reason"] else ""
        again = shlex.join(["consilience", "run", "STUDY", "--out", one["directory"], "--resume"])
        yield Wait(one["run"], "you", f"it has {one['state']}{why}: go on with '{again}'")


def app(desk: Overview, token: str, hosts: frozenset[str]) -> Callable[..., Any]:
    """Build the application.

    Parameters
    ----------
    desk : Overview
    token : str
        First part of every address.
    hosts : frozenset of str
        What ``Host`` may say, with the port.

    Raises
    ------
    MissingExtraError
    """
    require_extra()
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    owner = str(desk.runs)
    pages = Pages(
        token, lambda: {"desk": "coordinator's desk", "owner": owner, "nav": NAV, "foot": FOOT}
    )

    def report(request: Request) -> Response:
        content = desk.report(request.path_params["run"])
        return HTMLResponse(content, headers=_REPORT_POLICY)

    routes = [
        Route("/", pages.show("runs", lambda _: desk.overview())),
        Route("/studies", pages.show("plans", lambda _: desk.studies_page())),
        Route("/run/{run}", pages.show("run", lambda r: desk.run(r.path_params["run"]))),
        Route("/run/{run}/report", pages.send(report)),
    ]
    return guarded(routes, token, hosts)


def serve(desk: Overview, port: int, tell: Callable[[str], None]) -> None:
    """Serve the desk on the loopback address until stopped; see `pages.serve`.

    Raises
    ------
    MissingExtraError
    RunError
        The port is taken, or a folder is not there.
    """
    require_extra()
    for folder in (desk.studies, desk.sites, desk.folder):
        if folder is not None and not folder.is_dir():
            raise RunError(f"there is no folder {folder}: check the path")
    serve_pages(partial(app, desk), f"the runs in {desk.runs}", port, tell)
