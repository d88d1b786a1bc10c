"""Tables from SQLite and a real PostgreSQL server: types, mistakes, and what is told of them."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from consilience.exceptions import DataError
from consilience.sites.source import Source, Table, read_source
from consilience.sites.source_database import _explained
from tests.cli.workspace import Workspace, call
from tests.docs.test_pages import ROOT, blocks
from tests.sites.postgresql_server import PASSWORD, USER, Server, binaries

CANARY = "CANARY7731"


def refusal(source: Source, words: str, base: Path | None = None) -> None:
    """Reading is refused by one sentence with these words, without a value or a password."""
    with pytest.raises(DataError) as caught:
        read_source(source, base)
    error = caught.value
    assert words in str(error), str(error)
    assert "\n" not in str(error)
    lines = "".join(traceback.format_exception(error)).splitlines()
    # The source lines of a traceback are this test's own, so only messages are searched.
    told = "\n".join(line for line in lines if not line.startswith("    "))
    for secret in (CANARY, PASSWORD, "S3CRET", "7731"):
        assert secret not in told
        assert secret not in error.public
    assert error.__cause__ is None and error.__context__ is None


# --- SQLite


@pytest.fixture
def sqlite(tmp_path: Path) -> Path:
    pytest.importorskip("adbc_driver_sqlite")
    path = tmp_path / "t.db"
    connection = sqlite3.connect(path)
    connection.execute("create table t (i integer, late, word, gone, flag boolean, day date)")
    for k in range(3000):
        late, word = (k, None) if k < 2000 else (k + 0.5, CANARY)
        row = (k, late, word, None if k < 2500 else k, k % 2, "2026-11-21")
        connection.execute("insert into t values (?, ?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    return path


def test_sqlite_types_are_those_of_all_rows_not_of_the_first(sqlite: Path) -> None:
    """SQLite's columns have no type: the first 2000 rows look whole, or empty."""
    source = Source(url=f"sqlite:{sqlite}", query="select * from t order by i")
    table = read_source(source)
    np.testing.assert_array_equal(table.numbers("i")[0], np.arange(3000.0))
    late, wrong = table.numbers("late")
    assert late[-1] == 2999.5 and len(wrong) == 0
    assert [table.kind(name) for name in table.names] == [
        "number", "number", "text", "number", "number", "text",
    ]  # fmt: skip
    assert np.isnan(table.numbers("gone")[0]).sum() == 2500
    assert table.content_hash == read_source(source).content_hash


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"select * from {CANARY}", "no such table"),
        (f"select {CANARY} from t", "no such column"),
        (f"selec '{CANARY}'", "no valid SQL"),
        (f"insert into t (word) values ('{CANARY}')", "would write"),
    ],
)
def test_sqlite_mistakes(sqlite: Path, query: str, words: str) -> None:
    refusal(Source(url=f"sqlite:{sqlite}", query=query), words)


def test_sqlite_files_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    (tmp_path / "t.db").write_text(f"{CANARY}\n" * 100)
    refusal(Source(url="sqlite:t.db", query="select 1"), "no SQLite database", tmp_path)


# --- PostgreSQL


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    yield from _server()


@pytest.fixture
def mortal() -> Iterator[Server]:
    """A server that a test may crash."""
    yield from _server()


def _server() -> Iterator[Server]:
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server binary (initdb, postgres) was found")
    pytest.importorskip("adbc_driver_postgresql")
    one = Server(programs)
    try:
        yield one
    finally:
        one.close()


def query(server: Server, text: str) -> Table:
    return read_source(Source(url=server.url(), query=text))


@pytest.fixture(scope="module")
def people(server: Server) -> Server:
    server.execute(
        "create type colour as enum ('red', 'green')",
        "create domain years as integer check (value >= 0)",
        "create table people (id uuid, small smallint, whole integer, big bigint, huge numeric(30),"
        " real4 real, real8 double precision, price numeric(10, 2), word text, short varchar(8),"
        " padded char(4), flag boolean, day date, moment timestamptz, shade colour, age years,"
        " bytes bytea, list integer[], span interval, wage money, doc jsonb)",
        "insert into people values ('123e4567-e89b-12d3-a456-426614174000', 1, 2,"
        " 9007199254740993, 123456789012345678901234567890, 1.5, 2.5, 12.30, 'über', 'a', 'z',"
        " true, '2026-11-21', '2026-11-21 08:00+01', 'red', 61, '\\x01ff', '{1,2}', '1 day',"
        " 12.5, '{\"a\": 1}')",
        "insert into people default values",
    )
    return server


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("column", "kind", "number", "text"),
    [
        ("small", "number", 1.0, "1"),
        ("whole", "number", 2.0, "2"),
        ("big", "number", 9007199254740993.0, "9007199254740993"),
        ("huge", "number", 123456789012345678901234567890.0, "123456789012345678901234567890"),
        ("real4", "number", 1.5, "1.5"),
        ("real8", "number", 2.5, "2.5"),
        ("price", "number", 12.3, "12.3"),
        ("word", "text", None, "über"),
        ("short", "text", None, "a"),
        ("padded", "text", None, "z"),
        ("flag", "boolean", 1.0, "true"),
        ("day", "date32", None, "2026-11-21"),
        ("moment", "timestamp", None, "2026-11-21 07:00:00.000000Z"),
        ("shade", "text", None, "red"),
        ("age", "number", 61.0, "61"),
        ("id", "text", None, "123e4567-e89b-12d3-a456-426614174000"),
        ("doc", "text", None, '{"a": 1}'),
        ("price * 2 as column", "number", 24.6, "24.6"),
        ("avg(whole) over () as column", "number", 2.0, "2"),
        ("null::numeric as column", "number", np.nan, None),
        ("'NaN'::numeric as column", "number", np.nan, None),
        ("'12'::text as column", "text", 12.0, "12"),
    ],
)
def test_types(
    people: Server, column: str, kind: str, number: float | None, text: str | None
) -> None:
    table = query(people, f"select {column} from people order by whole nulls last")
    name = table.names[0]
    assert table.kind(name) == kind
    if number is not None:
        values, wrong = table.numbers(name)
        assert len(wrong) == 0
        np.testing.assert_array_equal(values[0], number)
    positions, texts = table.categories(name)
    assert positions[0] < 0 if text is None else texts[positions[0]] == text
    if " as " not in column:
        assert positions[1] < 0, "null is missing"


@pytest.mark.postgresql
def test_types_that_are_no_numbers_do_not_hinder_the_others(people: Server) -> None:
    text = "select whole, bytes, list, span, id from people order by whole"
    table = query(people, text)
    assert [table.kind(name) for name in table.names[1:4]] == [
        "binary", "list", "month_day_nano_interval",
    ]  # fmt: skip
    np.testing.assert_array_equal(table.numbers("whole")[0], [2, np.nan])
    assert table.content_hash == query(people, text).content_hash
    assert table.content_hash != query(people, f"{text} desc").content_hash


@pytest.mark.postgresql
def test_money_is_not_guessed(people: Server) -> None:
    refusal(Source(url=people.url(), query="select whole, wage from people"), "column 2")
    assert query(people, "select wage::numeric as w from people").numbers("w")[0][0] == 12.5


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"select * from {CANARY}", "no such table"),
        (f"select {CANARY} from people", "no such column"),
        (f"selec '{CANARY}'", "no valid SQL"),
        ("select 1; select 2", "more than one statement"),
        (f"insert into people (word) values ('{CANARY}') returning word", "would write"),
        ("delete from people", "would write"),
        (f"create table {CANARY} (a integer)", "would write"),
        ("select 1 / (whole - whole) from people", "divides by zero"),
        (f"select '{CANARY}'::integer", "22P02"),
        ("select word from people where whole > 99", "has no rows"),
        ("select whole, small as whole from people", "columns 1 and 2"),
        ("select pg_terminate_backend(pg_backend_pid())", "went away"),
        ("", "failed"),
    ],
)
def test_mistakes_in_a_query(people: Server, text: str, words: str) -> None:
    refusal(Source(url=people.url(), query=text), words)
    assert people.execute("select count(*) from people") == [(2,)]


@pytest.mark.postgresql
def test_mistakes_in_the_address(people: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    good = people.url()
    host = f"127.0.0.1:{people.port}"
    people.execute(f"create role reader login password '{PASSWORD}'")
    for url, words in (
        (people.url(f"{CANARY}wrong"), "wrong user or password"),
        (people.url(user="ghost"), "wrong user or password"),
        (people.url(database="ghosts"), "no such database"),
        (f"postgresql://{USER}@{host}/postgres", "no password was given"),
        (good.replace(str(people.port), "1"), "nobody listens"),
        (good.replace("127.0.0.1", "no-such-host.invalid"), "no such host"),
        (f"postgresql://{USER}:{PASSWORD}@{host}/postgres", "no such host"),
        (f"postgresql://{USER}:S3CRET/7731@{host}/postgres", "cannot be read"),
        (f"postgresql://{USER}:{CANARY}%zz@{host}/postgres", "cannot be read"),
        (f"{good}?sslmode=require", "no TLS"),
        (f"{good}?{CANARY}=1", "cannot be read"),
    ):
        refusal(Source(url=url, query="select * from people"), words)
    reader = Source(url=people.url(user="reader"), query="select * from people")
    refusal(reader, "may not read")
    assert PASSWORD not in caplog.text and CANARY not in caplog.text


@pytest.mark.postgresql
def test_password_from_the_environment(people: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE_PASSWORD", quote(PASSWORD))
    url = people.url().replace(quote(PASSWORD), "${SITE_PASSWORD}")
    assert read_source(Source(url=url, query="select 1 as a")).n_rows == 1


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("page", "columns"),
    [("own-tables", ["id", "age", "glucose"]), ("study-file", ["id", "age", "chol", "sex"])],
)
def test_blocks_of_pages(
    server: Server, page: str, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source that a page shows, as it stands there but for the name of the server."""
    server.execute(
        "drop table if exists laboratory, heart",
        "drop type if exists sexes",
        "create table laboratory (glucose numeric, age integer, id integer)",
        "insert into laboratory values (5.5, 61, 2), (4.5, 52, 1)",
        "create type sexes as enum ('f', 'm')",
        "create table heart (sex sexes, chol real, age integer, id integer)",
        "insert into heart values ('m', 240, 61, 2), ('f', 200, 52, 1)",
    )
    monkeypatch.setenv("DATABASE_PASSWORD", quote(PASSWORD))
    texts = blocks(ROOT / "docs" / "guide" / f"{page}.md", "")
    (text,) = [one for one in texts if "postgresql://" in one]
    given = tomllib.loads(text)["source"]
    url, found = re.subn(
        r"db\.example\.org:5432/\w+", f"127.0.0.1:{server.port}/postgres", given["url"]
    )
    assert found == 1
    read = read_source(Source(url=url, query=given["query"]))
    assert list(read.names) == columns
    assert read.numbers("id")[0].tolist() == [1.0, 2.0]


@pytest.mark.postgresql
def test_server_that_goes_in_mid_read(mortal: Server) -> None:
    """Rows are under way when the server dies: they are not taken for the table."""
    slow = "select repeat('x', 9000) as x, pg_sleep(0.01) from generate_series(1, 100000)"
    found: list[BaseException] = []

    def read() -> None:
        try:
            refusal(Source(url=mortal.url(), query=slow), "went away")
        except (AssertionError, pytest.fail.Exception) as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    asked = "select count(*) from pg_stat_activity where query like 'COPY (select repeat%'"
    for _ in range(600):
        if mortal.execute(asked) == [(1,)]:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the read did not begin")
    mortal.crash()
    reader.join(timeout=60)
    assert not reader.is_alive() and not found, found
    refusal(Source(url=mortal.url(), query="select 1"), "nobody listens")


_MEMORY = """
import json, resource, sys
import pyarrow, adbc_driver_postgresql.dbapi, numpy
import pyarrow.compute
from consilience.sites.source import Source, read_source
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
read_source(Source(url=sys.argv[1], query="select 1.5 as a, 'x' as b"))
before = peak()
table = read_source(Source(url=sys.argv[1], query=sys.argv[2]))
print(json.dumps([table.n_rows, table.frame.nbytes, peak() - before]))
"""


@pytest.mark.postgresql
def test_huge_table_is_streamed(server: Server) -> None:
    """A million rows arrive in batches and stay Arrow: a few copies at most, no Python objects."""
    text = "select i, i / 7.0::double precision as x, 'name ' || i as word"
    text += " from generate_series(1, 1000000) i"
    done = subprocess.run(
        [sys.executable, "-c", _MEMORY, server.url(), text],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows, size, grown = json.loads(done.stdout)
    assert rows == 1_000_000 and size > 20e6
    # Rows as Python objects would take more than 200 bytes each, six times the table and more.
    assert grown < 4 * size, f"{grown / size:.1f} times the table"


@pytest.mark.postgresql
def test_study_on_tables_in_databases(people: Server, tmp_path: Path) -> None:
    """The same rows from CSV files and from databases give the same result, byte for byte."""
    files = Workspace(tmp_path / "files")
    assert files.run().exit_code == 0
    bases = Workspace(tmp_path / "bases")
    rows = {
        site: [line.split(",") for line in bases.lines(site)[1:]] for site in ("boston", "lyon")
    }
    values = ", ".join(f"({x}, {y}, {i})" for x, y, i in rows["boston"])
    people.execute(
        "create table boston (x numeric, y double precision, id integer)",
        f"insert into boston values {values}",
    )
    connection = sqlite3.connect(tmp_path / "bases" / "data" / "lyon.db")
    connection.execute("create table lyon (x, y, id)")
    connection.executemany(
        "insert into lyon values (?, ?, ?)",
        [(float(x), float(y), int(i)) for x, y, i in rows["lyon"]],
    )
    connection.commit()
    connection.close()
    for site, url in (("boston", people.url()), ("lyon", "sqlite:../data/lyon.db")):
        path = bases.site(site)
        text = path.read_text().replace(
            f'path = "../data/{site}.csv"',
            f'url = "{url}"\nquery = "select * from {site} order by id"',
        )
        path.write_text(text)
    done = bases.run()
    assert done.exit_code == 0, done.output
    for name in ("result.json", "result.npz"):
        assert (bases.out / name).read_bytes() == (files.out / name).read_bytes()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".toml"]
    assert kept and not any(PASSWORD.encode() in path.read_bytes() for path in kept)
    # A wrong password stops the run before anything is asked, by one sentence.
    path = bases.site("boston")
    path.write_text(
        path.read_text().replace(
            'path = "../data/boston.csv"', f'url = "{people.url(CANARY)}"\nquery = "select 1"'
        )
    )
    shutil.rmtree(bases.out)
    refused = bases.run()
    assert refused.exit_code != 0
    assert "wrong user or password" in refused.output and CANARY not in refused.output
    checked = call("check", bases.file)
    assert "wrong user or password" in checked.output and CANARY not in checked.output


def test_what_a_server_means_by_its_codes() -> None:
    """PostgreSQL's own words are never shown: they may hold values."""

    class Failure(Exception):
        sqlstate = "42P01"

    assert _explained(Failure(CANARY)) == ("no such table", "check the query in [source]")
    Failure.sqlstate = "99999"
    assert _explained(Failure(CANARY))[0] == "99999"
