"""Tables of PostgreSQL and SQLite, which are read through ADBC.

A driver's own message may show the password, the query or a cell, so none is passed on: what is
told is one of the sentences of this module, chosen by the code or a phrase in the message.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from consilience.arrays import pa, pc
from consilience.exceptions import MissingExtraError, StudyError
from consilience.sites.encoding import fail

_BATCH_ROWS = 1_000_000_000
"""The SQLite driver takes each column's type from its first batch: all rows are one batch."""

_WHOLE = r"^-?[0-9]+$"
_PASSWORD = (
    "in the url, '@', ':', '/', '#' and '%' of a password are written %40, %3A, %2F, %23, %25"
)
_CLIENT = "check url and query in [source], for example by running the query in the database's own "
_CLIENT += "client"
_ASK = "ask whoever runs the database server"

# What the driver's message or code says, what it means, and what to do. Order matters.
_CONNECTING: tuple[tuple[str, str, str], ...] = (
    ("password authentication failed", "wrong user or password", f"check both; {_PASSWORD}"),
    (
        "no password supplied",
        "no password was given",
        "set one in the url as ${NAME}, in PGPASSWORD or in ~/.pgpass",
    ),
    (r"role .* does not exist", "no such user", "check the user in [source] url"),
    (r"database .* does not exist", "no such database", "check the last part of [source] url"),
    ("no pg_hba.conf entry", "the server admits no such user from this machine", _ASK),
    ("does not support SSL", "the server offers no TLS", f"{_ASK}, or change sslmode in the url"),
    ("certificate", "the server's certificate is not accepted", "check sslrootcert in the url"),
    ("too many clients", "the server has no free connection", "try again later"),
    ("could not translate host name", "no such host", f"check it; {_PASSWORD}"),
    ("Connection refused", "nobody listens at the host and port", "check them in [source] url"),
    ("timeout expired", "the server does not answer", "check host and port in [source] url"),
    ("No such file or directory", "the server's socket is not there", "check [source] url"),
    (
        r"invalid (percent|integer|URI|connection)|missing .* in URI|unexpected character",
        "the url cannot be read",
        f"check it; {_PASSWORD}",
    ),
    (
        r"server closed the connection|connection to server was lost|could not receive data|"
        r"no connection to the server|terminating connection|connection not open",
        "the server went away",
        "look whether it runs, and begin again",
    ),
    ("no such table", "no such table", "check the query in [source]"),
    ("no such column", "no such column", "check the query in [source]"),
    ("syntax error", "the query is no valid SQL", "check the query in [source]"),
    ("readonly database", "the query would write", "only read in the query of [source]"),
    ("not a database", "the file is no SQLite database", "check url in [source]"),
    ("malformed", "the file is damaged", "check it with 'PRAGMA integrity_check'"),
    ("database is locked", "another program has locked the database", "try again later"),
)
_SQLSTATES: dict[str, tuple[str, str]] = {
    "42P01": ("no such table", "check the query in [source]"),
    "3F000": ("no such schema", "check the query in [source]"),
    "42703": ("no such column", "check the query in [source]"),
    "42883": ("no such function or operator for these types", "check the query in [source]"),
    "42601": ("the query is no valid SQL, or more than one statement", "check it in [source]"),
    "42501": ("the user may not read this", f"{_ASK} for the right to SELECT"),
    "25006": ("the query would write", "only read in the query of [source]"),
    "22012": ("the query divides by zero", "check the query in [source]"),
    "57014": ("the server cancelled the query", "it took too long: raise statement_timeout"),
    "57P01": ("the server went away", "look whether it runs, and begin again"),
    "57P02": ("the server went away", "look whether it runs, and begin again"),
    "57P03": ("the server does not take connections yet", "try again later"),
}


def read_query(url: str, query: str, base: Path) -> tuple[Any, str]:
    """Read the table that a query gives, as Arrow, and how to call it.

    The whole table is read through the driver's stream of batches in Arrow's form; no copy of it
    as Python objects is made. On PostgreSQL the query runs in a transaction that can only read.

    Raises
    ------
    DataError
        The database cannot be reached or the query fails; its text shows neither.
    StudyError
        The url is of another kind of database.
    MissingExtraError
        The driver is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        connect, target = _sqlite(url, base)
    elif scheme in ("postgresql", "postgres"):
        connect, target = _postgresql(), url
    else:
        raise StudyError(
            "[source] url must start with sqlite: or postgresql:, then the path or the address"
        )
    import adbc_driver_manager

    where = f"the query of the {scheme} database"
    failure: tuple[str, str] | None = None
    try:
        with connect(target) as connection, connection.cursor() as cursor:
            if scheme == "sqlite":
                rows = {"adbc.sqlite.query.batch_rows": _BATCH_ROWS}
                cursor.adbc_statement.set_options(**rows)
            else:
                cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(query)
            frame = cursor.fetch_arrow_table()
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        failure = _explained(error)
    # Outside the handler, so that the driver's error is not its context.
    if failure is not None:
        raise fail(f"{where} failed ({failure[0]}): {failure[1]}")
    columns = [_plain_column(i, one, frame.column(i)) for i, one in enumerate(frame.schema)]
    return pa.Table.from_arrays(columns, names=frame.column_names), where


def _explained(error: Exception) -> tuple[str, str]:
    """What happened, and what to do: constant texts, and a code at most."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state in _SQLSTATES:
        return _SQLSTATES[state]
    text = str(error)
    # After "query:" the driver may repeat the query, whose words say nothing about the failure.
    said = re.split(r"\n+(?:query:|Query was:)", text)[0]
    if not state:
        for phrase, what, remedy in _CONNECTING:
            if re.search(phrase, said):
                return what, remedy
    code = state or str(getattr(getattr(error, "status_code", None), "name", "no code"))
    return code, _CLIENT


def _sqlite(url: str, base: Path) -> tuple[Callable[[str], Any], str]:
    rest = url.removeprefix("sqlite:")
    path = base / (rest[3:] if rest.startswith("///") else rest)
    if not path.is_file():
        raise fail(f"there is no file {path}: check url in [source]")
    try:
        from adbc_driver_sqlite import dbapi
    except ImportError:
        raise MissingExtraError("database", "reading a SQLite database") from None
    return dbapi.connect, f"file:{quote(str(path.resolve()))}?mode=ro"


def _postgresql() -> Any:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise MissingExtraError("database", "reading a PostgreSQL database") from None
    return dbapi.connect


# --------------------------------------------------------------------------- PostgreSQL's types


def _plain_column(position: int, field: Any, column: Any) -> Any:
    """Turn types that only PostgreSQL has into numbers and texts where that loses nothing."""
    if (field.metadata or {}).get(b"POSTGRESQL:type") == b"money":
        # The driver gives a whole number of cents or of something else, as the server is set.
        raise fail(
            f"column {position + 1} of the query is of type money, whose decimals depend on the "
            "server: cast it in the query of [source], for example price::numeric"
        )
    kind = field.type
    if not isinstance(kind, pa.BaseExtensionType):
        return column
    chunks = [chunk.storage for chunk in column.chunks]
    plain = pa.chunked_array(chunks, type=kind.storage_type)
    if kind.extension_name == "arrow.opaque" and kind.type_name == "numeric":
        return _numeric(plain)
    if kind.extension_name == "arrow.uuid":
        texts = [None if one is None else str(uuid.UUID(bytes=one)) for one in plain.to_pylist()]
        return pa.chunked_array([pa.array(texts, type=pa.string())])
    return plain


def _numeric(texts: Any) -> Any:
    """Turn decimal texts into whole numbers where all are whole, otherwise into floats."""
    kept = texts.drop_null()
    if pc.all(pc.match_substring_regex(kept, _WHOLE)).as_py() is not False and len(kept):
        for kind in (pa.int64(), pa.decimal128(38, 0)):
            try:
                return pc.cast(texts, kind)
            except pa.ArrowInvalid:
                continue
    return pc.cast(texts, pa.float64())
