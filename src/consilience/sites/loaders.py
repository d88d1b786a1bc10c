"""How a site gets at its rows: a table in memory, or the source that its file names.

`PreparedCache` has prepared rows on the site's own disk, for processes that live for one message. A
stock SuperNode answers every message in a new process, which would read and prepare the table
each time. The cache keeps what `load_with_report` made, under a name that changes with everything
it was made from: the bytes of the file, the site's own columns, the study's columns and
preparation, the release. A table that changed is so read anew; tables behind a URL have no bytes to
compare and are never kept.

The files are copies of rows, as private as the table itself: they lie in the site's home, readable
by its owner only, and go with ``consilience site purge``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from consilience.exceptions import RunError, StudyError, WireError
from consilience.protocol.method import Columns, Preparation, SiteData
from consilience.sites.own_columns import SiteColumns
from consilience.sites.policy import Policy
from consilience.sites.prepare import (
    AllRows,
    ColumnReport,
    Everyone,
    Loaded,
    Report,
    load_with_report,
)
from consilience.sites.site import Confirm, Site
from consilience.sites.site_store import DiskStore, Hold
from consilience.sites.source import Table, read_source, source_path
from consilience.sites.study import SiteFile
from consilience.wire.codec import digest, pack, unpack
from consilience.wire.files import atomic_write, make_directory
from consilience.wire.moment_facts import Coded

Partition = Literal["rows", "columns"]


def load_under(
    policy: Policy,
    own: SiteColumns | None,
    table: Table,
    columns: Columns,
    preparation: Preparation,
    partition: Partition = "rows",
) -> Loaded:
    """Prepare a table with the limits of a policy; see `load_with_report`."""
    return load_with_report(
        table,
        columns,
        preparation,
        own,
        partition=partition,
        min_records=policy.min_records,
        common_rows=not policy.foreign_models,
    )


def memory_site(
    name: str,
    table: Any,
    policy: str | Policy = "strict",
    *,
    own: SiteColumns | None = None,
    partner_key: bytes = b"",
) -> Site:
    """Build a site over a table in memory (of pandas, polars or pyarrow, or a mapping of columns).

    Parameters
    ----------
    own : SiteColumns, optional
        How its columns differ from the study's.
    partner_key : bytes
        Secret that the parties share, over columns.
    """
    rules = policy if isinstance(policy, Policy) else Policy.from_settings(policy)
    load = partial(load_under, rules, own, read_source(table))
    return Site(name, load, policy=rules, partner_key=partner_key)


def file_site(
    file: SiteFile, *, confirm: Confirm | None = None, cache: bool = False, hold: Hold | None = None
) -> Site:
    """Build the site that a site file describes, with its home on disk.

    Parameters
    ----------
    cache : bool
        Keep prepared rows in the home (`PreparedCache`), for processes that do not live long.
    hold : {"none", "per-record", "all"}, optional
        Which replies wait for the steward; as the file says unless given.

    Raises
    ------
    StudyError
        The policy is wrong, nothing is on offer under a strict one, or the home's path cannot be
        found out.
    RunError
        The home cannot be created.
    """

    def load(columns: Columns, preparation: Preparation, partition: Partition = "rows") -> Loaded:
        read = read_source(file.source, file.base)
        return load_under(policy, own, read, columns, preparation, partition)

    def load_once(
        columns: Columns, preparation: Preparation, partition: Partition = "rows"
    ) -> Loaded:
        kept = PreparedCache(file)
        key = kept.key(columns, preparation, partition)
        found = kept.get(key)
        if found is None:
            found = load(columns, preparation, partition)
            # A table that was changed while it was read is not what the name says.
            if kept.key(columns, preparation, partition) == key:
                kept.put(key, found)
            return found
        if partition == "columns" or policy.min_records == 1:
            return found

        def everyone(names: tuple[str, ...]) -> Everyone:
            # The whole table is not in the cache: who needs it reads it again, once in a run.
            again = cast(AllRows, load(columns, preparation).everyone)
            return again(names)

        return dataclasses.replace(found, everyone=everyone)

    policy = Policy.from_settings(file.policy)
    own = offered_columns(file, policy)
    return Site(
        file.name,
        load_once if cache else load,
        policy=policy,
        home=DiskStore(file.home_path),
        confirm=confirm,
        partner_key=file.partner_key(),
        hold=file.release.held if hold is None else hold,
    )


def offered_columns(file: SiteFile, policy: Policy) -> SiteColumns:
    """What a site file says of columns; under a strict policy nothing is on offer but by its list.

    Raises
    ------
    StudyError
        The policy is strict and the file neither offers columns nor lists features of its own.
    """
    own = file.columns
    if policy.preset != "strict" or own.offered is not None:
        return own
    if not own.features:
        raise StudyError(
            f'site {file.name}: under policy preset "strict" the site file says which columns '
            "studies may name: add [columns.offered], which 'consilience site offer SITE_TOML' "
            "proposes"
        )
    return dataclasses.replace(own, offered={})


# --------------------------------------------------------------------------- prepared rows on disk

FOLDER = "prepared"
KEEP = 4
"""Tables that are kept; those that were used last."""
_MOST = 1 << 40
_TEXT = "texts as bytes"


class PreparedCache:
    """Prepared tables of one site.

    Parameters
    ----------
    file : SiteFile
    """

    def __init__(self, file: SiteFile) -> None:
        self._file = file
        self._folder = file.home_path / FOLDER

    def key(self, columns: Columns, preparation: Preparation, partition: str) -> str | None:
        """Name of what would be prepared; None where the source has no bytes to compare."""
        path = source_path(self._file.source, self._file.base)
        if path is None or not path.is_file():
            return None
        from consilience import __version__

        hashed = hashlib.sha256()
        with open(path, "rb") as table:
            while block := table.read(1 << 20):
                hashed.update(block)
        policy = Policy.from_settings(self._file.policy)
        # Limits of the policy decide which rows are prepared, so they are part of the name.
        rules = (partition, policy.min_records, policy.foreign_models)
        made_from = (self._file.source, self._file.columns, columns, preparation, rules)
        return digest(f"{__version__} {hashed.hexdigest()} {made_from!r}".encode())[:40]

    def get(self, key: str | None) -> Loaded | None:
        """Return what is kept under a name; whatever is damaged counts as not there."""
        if key is None:
            return None
        path = self._folder / key
        try:
            found = path.read_bytes()
        except OSError:
            return None
        seal, body = found[:32], found[32:]
        # Damage costs a second reading and nothing else, so nobody is told.
        if hashlib.sha256(body).digest() != seal:
            return None
        try:
            loaded = _loaded(unpack(body, max_bytes=_MOST))
        except (WireError, TypeError, KeyError):
            return None
        # What was used last is kept longest.
        path.touch()
        return loaded

    def put(self, key: str | None, loaded: Loaded) -> None:
        """Keep a prepared table; a disk that is full only costs time."""
        if key is None:
            return
        body = pack(_plain(loaded))
        try:
            make_directory(self._folder)
            self._folder.chmod(0o700)
            atomic_write(self._folder / key, hashlib.sha256(body).digest() + body)
            for path in sorted(_tables(self._folder), key=_used, reverse=True)[KEEP:]:
                path.unlink(missing_ok=True)
        except (RunError, OSError):
            return


def purge_prepared(home: Path, *, older_than: float = 0.0) -> int:
    """Remove kept tables that were not used for so many days; returns how many."""
    limit = time.time() - 86400.0 * older_than
    # Not the file's age but its last use: a table in daily use is never old.
    old = [path for path in _tables(home / FOLDER) if _used(path) <= limit]
    for path in old:
        path.unlink(missing_ok=True)
    return len(old)


def _tables(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*") if path.is_file()] if folder.is_dir() else []


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _plain(loaded: Loaded) -> dict[str, Any]:
    data = {f.name: getattr(loaded.data, f.name) for f in dataclasses.fields(loaded.data)}
    data["levels"] = {name: list(levels) for name, levels in data["levels"].items()}
    data["coded"] = [[list(of), whole] for of, whole in data["coded"]]
    report = {f.name: getattr(loaded.report, f.name) for f in dataclasses.fields(loaded.report)}
    report["columns"] = [dataclasses.asdict(column) for column in loaded.report.columns]
    return {
        "data": {name: _flat(value) for name, value in data.items()},
        "report": {name: _flat(value) for name, value in report.items()},
    }


def _flat(value: Any) -> Any:
    """Texts as bytes of fixed width, because the codec of messages takes numbers only."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "U":
        return value
    # One byte order, as the name does not tell on which machine it was written.
    little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    return {_TEXT: np.frombuffer(little.tobytes(), np.uint8), "dtype": little.dtype.str}


def _texts(value: Any) -> Any:
    if not isinstance(value, dict) or _TEXT not in value:
        return value
    return np.frombuffer(value[_TEXT].tobytes(), np.dtype(value["dtype"])).copy()


def _loaded(plain: dict[str, Any]) -> Loaded:
    data = {name: _texts(value) for name, value in plain["data"].items()}
    report = {name: _texts(value) for name, value in plain["report"].items()}
    data["levels"] = {name: tuple(levels) for name, levels in data["levels"].items()}
    data["coded"] = tuple(Coded(tuple(of), whole) for of, whole in data["coded"])
    for name in ("feature_names", "sequence_names", "foreign_levels"):
        data[name] = tuple(data[name])
    columns = [
        ColumnReport(
            **{**column, "roles": tuple(column["roles"]), "foreign": tuple(column["foreign"])}
        )
        for column in report["columns"]
    ]
    report |= {"columns": tuple(columns), "constant": tuple(report["constant"])}
    return Loaded(SiteData(**data), Report(**report))
