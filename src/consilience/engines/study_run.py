"""From the files of a study to something that runs: sites, engine, method, earlier runs."""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Iterator, Mapping
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
from consilience.engines.signed import IN_STUDY
from consilience.exceptions import ConsilienceError, ParameterError, RunError, StudyError
from consilience.protocol.method import Method, get_method
from consilience.protocol.phases.prepare import check_missing
from consilience.sites.reference import read_reference
from consilience.sites.study import SiteFile, Study

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
