"""``consilience doctor``: what a machine lacks. ``consilience completion``: the tab key."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import typer

from consilience.cli import console
from consilience.exceptions import ConsilienceError, RunError

EXTRAS = {
    "privacy": "noise with a proven price, by OpenDP",
    "flower": "runs between organisations",
    "cluster": "sites on the machines of a dask cluster",
    "desk": "the desks of steward and coordinator, in a browser",
    "database": "tables in PostgreSQL and SQLite",
    "files": "tables in files of Excel and SPSS",
}
"""What each part is for that is installed by its name."""
OLDEST = (3, 11)
# A clock before this release was made is wrong.
RELEASED = 1_790_000_000.0
SKEW = 30.0
"""Seconds by which a folder's clock may differ before heartbeats and deadlines are misjudged."""


class State(Enum):
    """What was found: as it should be, not there and not needed by all, or in the way."""

    ok = "ok"
    absent = "absent"
    wrong = "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    about: str
    state: State
    said: str


def doctor(
    files: list[Path] | None = typer.Argument(
        None, metavar="[FILE]...", help="Site files, study files and tables to look at, too."
    ),
    folder: Path = typer.Option(
        Path(), metavar="DIR", help="Where runs are written, or the shared folder; here by default."
    ),
    key: list[Path] | None = typer.Option(
        None, metavar="FILE", help="A private key, or its directory; may be repeated."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Say what is missing on this machine, and what for.

    Looks at Python, the packages and the optional parts, at whether the folder can be written and
    its files locked, at clocks, at the keys' permissions, and at the files that are named. Nothing
    is changed. Ends with 7 where something is in the way; a part that is absent is not.
    """
    found = [*_python(), *_parts(), *_folder(folder)]
    for one in key or ():
        found.append(_judged(f"key {one}", lambda one=one: _key(one)))  # type: ignore[misc]
    for one in files or ():
        found += _file(one)
    wrong = [finding for finding in found if finding.state is State.wrong]
    if as_json:
        listed = [{**dataclasses.asdict(f), "state": f.state.value} for f in found]
        console.print_json({"ok": not wrong, "findings": listed})
    else:
        for finding in found:
            console.say(f"{finding.about}: {finding.said}", bullet=f"{finding.state.value:8}")
    if wrong:
        s = "s are" if len(wrong) > 1 else " is"
        raise RunError(f"{len(wrong)} thing{s} in the way: {wrong[0].about}: {wrong[0].said}")
    if not as_json:
        console.say("Nothing is in the way.")


def _judged(about: str, look: Any) -> Finding:
    """What a look finds: its sentence, or that of the error which it raises."""
    try:
        return Finding(about, State.ok, look())
    except ConsilienceError as error:
        return Finding(about, State.wrong, str(error))
    except OSError as error:
        return Finding(about, State.wrong, f"{error.strerror}: check the path and its permissions")


def _python() -> Iterator[Finding]:
    said = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info >= OLDEST:
        yield Finding("Python", State.ok, said)
    else:
        yield Finding("Python", State.wrong, f"{said}: install 3.11 or later")


# --------------------------------------------------------------------------- packages

_NEEDED = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?P<bounds>[^;]*)(?:;(?P<when>.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def _parts() -> Iterator[Finding]:
    """The packages that are always needed, and each optional part."""
    needed: dict[str, list[tuple[str, str]]] = {"": [], **{name: [] for name in EXTRAS}}
    for text in requires("consilience") or ():
        match = _NEEDED.fullmatch(text)
        extra = _EXTRA.search(text)
        part = extra.group(1) if extra else ""
        if match is not None and part in needed:
            needed[part].append((match["name"], match["bounds"].strip("() ")))
    for part, packages in needed.items():
        lacking = [one for name, bounds in packages if (one := _lacking(name, bounds))]
        there = ", ".join(f"{name} {version(name)}" for name, _ in packages if _is_there(name))
        about = (
            f"Part {part}, for {EXTRAS[part]}" if part else f"consilience {version('consilience')}"
        )
        if not lacking:
            yield Finding(about, State.ok, there)
        elif part:
            how = f"pip install 'consilience[{part}]'"
            yield Finding(about, State.absent, f"{', '.join(lacking)}: {how}")
        else:
            yield Finding(about, State.wrong, f"{', '.join(lacking)}: install it again")


def _is_there(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _lacking(name: str, bounds: str) -> str:
    """What is wrong with a package; empty where it is there in a version that will do."""
    if not _is_there(name):
        return f"{name} is not installed"
    own = version(name)
    for bound in filter(None, bounds.split(",")):
        sign, number = re.fullmatch(r"\s*([<>=!~]+)\s*(\S+)\s*", bound).groups()  # type: ignore[union-attr]
        ours, theirs = _numbers(own), _numbers(number)
        fine = {
            ">=": ours >= theirs,
            "<": ours < theirs,
            "==": ours == theirs,
            "!=": ours != theirs,
        }
        if not fine.get(sign, True):
            return f"{name} is {own}, and {bounds} is needed"
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    """A version as numbers, for comparisons; without zeros at the end, and up to the first word."""
    head = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in head.group().split(".")] if head else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


# --------------------------------------------------------------------------- folder, clock, keys


def _folder(folder: Path) -> Iterator[Finding]:
    """Whether files can be written and locked in a folder, and whether its clock is ours."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".consilience-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            yield Finding(f"Folder {folder}", State.ok, "can be written")
            yield _judged("Locks there", lambda: _locks(file.name))
            yield _clock(os.fstat(file.fileno()).st_mtime)
    except OSError as error:
        said = f"cannot be written ({error.strerror}): check that it is there and its permissions"
        yield Finding(f"Folder {folder}", State.wrong, said)
        yield _clock(None)


def _locks(name: str) -> str:
    import fcntl

    with open(name, "rb") as first, open(name, "rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "a file is held by one program at a time"
    raise RunError("two programs could hold one file: keep homes and runs on a local disk")


def _clock(written: float | None) -> Finding:
    now = time.time()
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < RELEASED:
        return Finding("Clock", State.wrong, f"{shown} is before this release: set the clock")
    if written is not None and abs(now - written) > SKEW:
        said = f"the folder's clock differs by {abs(now - written):.0f} s: let both keep time (NTP)"
        return Finding("Clock", State.wrong, said)
    return Finding("Clock", State.ok, f"{shown}, as that of the folder" if written else shown)


def _key(path: Path) -> str:
    from consilience.wire.signing import SigningKey

    return f"can be read by its owner alone; its public half is {SigningKey.load(path).public}"


# --------------------------------------------------------------------------- files


def _file(path: Path) -> Iterator[Finding]:
    """A site file with its table, home and partner key; a study file; or a table."""
    if path.suffix != ".toml":
        yield _judged(f"Table {path}", lambda: _table(path))
        return
    import tomllib

    from consilience.sites.study import SiteFile, Study

    try:
        keys = set(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        keys = set()  # what is wrong is said when it is loaded
    if "method" in keys:
        yield _judged(f"Study {path}", lambda: f"read: {Study.load(path).hash()}")
        return
    try:
        file = SiteFile.load(path)
    except ConsilienceError as error:
        yield Finding(f"Site file {path}", State.wrong, str(error))
        return
    yield Finding(f"Site file {path}", State.ok, "read")
    if file.source.path is not None:
        yield _judged(f"Table of {file.name}", lambda: _source(file))
    yield _judged(f"Home of {file.name}", lambda: _home(file.home_path))
    if file.partners is not None:
        yield _judged(f"Partner key of {file.name}", lambda: _partner(file))


def _table(path: Path) -> str:
    """Read a table that nobody has described, in the form in which it seems to be written."""
    from consilience.sites.source import Source, read_source
    from consilience.sites.source_files import guessed

    settings = guessed(path)
    source: dict[str, Any] = {"path": str(path.absolute()), **settings}
    table = read_source(Source(**source))
    how = "".join(f", {name} = {value!r}" for name, value in settings.items())
    return f"{table.n_rows} rows of {len(table.names)} columns{how}"


def _source(file: Any) -> str:
    from consilience.sites.source import read_source

    table = read_source(file.source, file.base)
    return f"{table.n_rows} rows of {len(table.names)} columns"


def _home(path: Path) -> str:
    first = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(first, os.W_OK | os.X_OK) or not first.is_dir():
        raise RunError(f"{first} cannot be written: name another home, or change its permissions")
    return f"{path} can be written"


def _partner(file: Any) -> str:
    return "can be read by its owner alone" if file.partner_key() else "is not there"


# --------------------------------------------------------------------------- completion


COMPLETING = "_CONSILIENCE_COMPLETE"
"""The variable by which a shell asks for what may come next."""


class Shell(Enum):
    """A shell for which there is a script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Shell = typer.Argument(help="Of which the script is.")) -> None:
    """Print the script by which a shell completes commands, options and methods.

    For bash: consilience completion bash > ~/.local/share/bash-completion/completions/consilience
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(
        prog_name="consilience", complete_var=COMPLETING, shell=shell.value
    )
    typer.echo(script)


def method_names(incomplete: str) -> list[str]:
    """Names of methods that begin so."""
    from consilience.protocol.method import method_names as names

    return [name for name in names() if name.startswith(incomplete)]
