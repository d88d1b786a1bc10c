"""From the files of a study to something that runs: sites, engine, method, earlier runs.

How far a run has come, and for whom it waits: by its directory, and by the homes of sites.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json import loads
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.engines import rundir
from consilience.engines.federation import (
    Run,
    check_number,
    check_partition,
    check_sums,
    load_run,
)
from consilience.engines.local import check_site_files
from consilience.engines.rundir import RunInfo
from consilience.engines.signed import IN_STUDY
from consilience.exceptions import ConsilienceError, ParameterError, RunError, StudyError
from consilience.protocol.method import Method, get_method
from consilience.protocol.phases.prepare import check_missing
from consilience.sites.site_store import DiskStore, Job
from consilience.sites.study import SiteFile, Study, read_reference

if TYPE_CHECKING:
    from consilience.engines.base import Engine
    from consilience.wire.signing import SigningKey

SITES = "sites"
REFERENCE = "reference"
"""Parameter by which a method takes reference rows."""


def read_site_files(study: Study, folder: Path | None = None) -> dict[str, SiteFile]:
    """Read the site files of a study whose sites are all on this machine.

    Parameters
    ----------
    study : Study
    folder : path, optional
        Holds ``<site>.toml`` for every site; ``sites/`` beside the study file unless given.

    Raises
    ------
    StudyError
        A file is missing or wrong, carries another site's name, or two sites share a home.
    """
    folder = study.base / SITES if folder is None else folder
    files: dict[str, SiteFile] = {}
    for name in study.sites.names:
        path = folder / f"{name}.toml"
        if not path.is_file():
            raise StudyError(
                f"site {name!r} has no file {path}: write it, or say by --sites where the site "
                "files are"
            )
        files[name] = SiteFile.load(path)
    check_site_files(study, files)
    return files


def folder_engine(study: Study, folder: Path, key: Path, *, on_note: Any = None) -> Engine:
    """Build the engine over sites that watch a shared folder.

    Raises
    ------
    StudyError
        The key is not the one that the study names, or a site's public key is missing.
    EngineError
        There is no such folder.
    """
    from consilience.engines.folder import FolderEngine

    own = coordinator_key(study, key)
    return FolderEngine(folder, study.sites.names, own, study.sites.keys, on_note=on_note)


def coordinator_key(study: Study, key: Path) -> SigningKey:
    """Read the coordinator's private key, which must be one that the study names, if it names any.

    Raises
    ------
    StudyError
    """
    from consilience.wire.signing import SigningKey

    own = SigningKey.load(key)
    named = study.coordinator.key
    if named is not None:
        # A key that the sites do not expect would end in silence at every site: say it here.
        if own.public not in named.publics:
            raise StudyError(
                f"the key {key} is not the coordinator's key that the study names in "
                "[coordinator]: use that one, or add this one there"
            )
        if own.public not in named.valid():
            raise StudyError(
                f"the coordinator's key {key} has ended on {named.ended(own.public)}, as "
                "[coordinator] of the study says: use the one that follows it ('consilience site "
                "keys DIR --retire')"
            )
    return own


def key_remarks(study: Study) -> list[str]:
    """Say which parties' keys in a study file have ended, or will within a month."""
    listed = [(f"site {site!r}", keys, IN_STUDY) for site, keys in study.sites.keys.items()]
    if study.coordinator.key is not None:
        listed.append(("the coordinator", study.coordinator.key, "[coordinator] of the study"))
    remarks = (keys.remark(whose, where) for whose, keys, where in listed)
    return [remark for remark in remarks if remark is not None]


def method_of(study: Study, *, rows: bool = True) -> Method:
    """Build the method of a study with its parameters, and with its reference rows.

    Parameters
    ----------
    study : Study
    rows : bool
        Whether to read the reference rows, if there are any. A site that is told a study never
        does: the method then has its default instead.

    Raises
    ------
    StudyError
        No such method, a wrong parameter, a method for another partition or number of sites, one
        that cannot work with the missing cells which the study keeps, or reference rows that it
        does not use; masked sums where it needs more than these.
    DataError
        The reference rows do not fit the study.
    """
    kind = get_method(study.method)
    check_partition(kind, study.partition)
    check_number(kind, len(study.sites.names))
    check_missing(kind, study.preparation)
    if study.reference is None:
        return _with_parameters(kind, study, {})
    if REFERENCE not in {f.name for f in dataclasses.fields(kind)}:  # type: ignore[arg-type]
        raise StudyError(
            f"method {kind.name!r} uses no reference rows: leave [reference] out of the study, or "
            "choose a method that has the parameter 'reference'"
        )
    if REFERENCE in study.parameters:
        raise StudyError(
            "reference rows are given both in [reference] and as 'reference' in [parameters]: "
            "keep one of them"
        )
    # As plain numbers: they are a parameter, whose hash is part of the run's identity.
    given = {REFERENCE: read_reference(study).plain()} if rows else {}
    return _with_parameters(kind, study, given)


def _with_parameters(kind: type[Method], study: Study, given: Mapping[str, Any]) -> Method:
    try:
        method = kind.from_parameters({**study.parameters, **given})
    except ParameterError as error:
        raise ParameterError(f"{study.where}[parameters]: {error}") from error
    check_sums(method, study.sums, len(study.sites.names))
    return method


def check_reference(study: Study, method: Method, path: Path) -> None:
    """Check that a run in `path`, which is to go on, was begun with these reference rows.

    Raises
    ------
    RunError
        It was not, or there is no run.
    """
    info = rundir.read_info(path)
    # As text: a missing cell is NaN, which equals nothing.
    now = json.dumps(method.parameters().get(REFERENCE), default=list)
    if study.reference is None or json.dumps(info.parameters.get(REFERENCE)) == now:
        return
    raise RunError(
        f"the reference file {study.reference.file_name} does not hold the rows with which the run "
        f"in {path} was begun: put back the file as it was, or start a new run"
    )


# --------------------------------------------------------------------------- runs in a folder


def runs_in(folder: Path) -> Iterator[tuple[Path, rundir.RunInfo]]:
    """Yield the runs in a folder that can be read, in the order of their names."""
    for path in sorted(folder.glob("*/run.json")):
        try:
            yield path.parent, rundir.read_info(path.parent)
        except ConsilienceError:
            continue  # of another release: not among those that this one can go on with


def find_run(text: str, folder: Path) -> Path:
    """Find a run directory by its path or, in `folder`, by its name or run id.

    Raises
    ------
    RunError
        There is none.
    """
    path = Path(text)
    if not path.is_dir():
        path = folder / text
    if (path / "run.json").is_file():
        return path
    for found, info in runs_in(folder):
        if info.run == text:
            return found
    if path.is_dir() or Path(text).is_dir():
        raise RunError(f"{text} holds no run: there is no run.json in it")
    raise RunError(f"there is no run {text!r} here or in {folder}: give the run's directory")


def followed_run(study: Study, folder: Path) -> Run | None:
    """Load the run that a study follows from the folder in which its own run will be.

    Raises
    ------
    RunError
        It is not there, has not ended, or was made by another release.
    """
    if study.follows is None:
        return None
    return load_run(find_run(study.follows.run, folder))


def is_busy(path: Path) -> bool:
    """Whether a coordinator is at work in a run directory."""
    try:
        with open(path / ".lock", "rb") as file:
            # Shared: two people who look at once do not take each other for a coordinator.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def state_of(path: Path) -> tuple[str, str]:
    """Return the state of a run, and of one that failed the reason.

    A coordinator at work holds the directory: where nobody does, a run whose file says that it is
    running has stopped, because its process has died. A whole result is a finished run.

    Raises
    ------
    RunError
        The state is damaged or cannot be read.
    """
    # The lock before the state: a run that ends in between is found finished below.
    busy = is_busy(path)
    state, _, facts = rundir.state_file(path).read()
    if busy:
        return (state if state == rundir.BEGUN else rundir.RUNNING), ""
    if (path / "result.json").is_file():
        return rundir.FINISHED, ""
    if state == rundir.FAILED:
        return state, str(facts.get("reason", ""))
    return rundir.STOPPED, ""


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
    (state, reason), heard = state_of(path), _heard(path)
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


def _heard(path: Path) -> _Heard:
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
