from __future__ import annotations

import builtins
import gzip
import hashlib
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from consilience.exceptions import DataError, MissingExtraError, ParameterError, StudyError
from consilience.sites.row_history import row_content
from consilience.sites.source import Source, Table, read_source
from consilience.sites.source_files import guessed

CANARY = "CANARY7731"


def written(folder: Path, data: bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def read_csv(folder: Path, data: bytes, **settings: Any) -> Table:
    return read_source(Source(path=str(written(folder, data)), **settings))


def content(table: Table) -> dict[str, list[Any]]:
    plain = {name: table.cells(name).to_pylist() for name in table.names}
    return plain


def refused(action: Callable[[], object], *words: str) -> DataError:
    """The error of an action: it holds the words, and no canary anywhere."""
    with pytest.raises(DataError) as caught:
        action()
    error = caught.value
    for word in words:
        assert word in str(error)
    told = "".join(traceback.format_exception(error))
    # The source lines of a traceback are this test's own, so only messages are searched.
    messages = "\n".join(line for line in told.splitlines() if not line.startswith("    "))
    assert CANARY not in messages
    assert CANARY not in error.public
    assert "/" not in error.public
    assert not any(character.isdigit() for character in error.public)
    return error


EXPECTED = {"a": ["1", "3"], "b": ["x", "y z"]}


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (b"a,b\n1,x\n3,y z\n", {}),
        (b"a,b\r1,x\r3,y z\r", {}),
        (b"a,b\r\n1,x\r\n\r\n3,y z", {}),
        (b"\xef\xbb\xbfa,b\n1,x\n3,y z\n", {}),
        (b"a;b\n1;x\n3;y z\n", {"separator": ";"}),
        (b"a\tb\n1\tx\n3\ty z\n", {"separator": "tab"}),
        (b'  a   b\n1 x \n3 \t "y z"\n', {"separator": "whitespace"}),
        (b'"a","b"\n"1","x"\n"3","y z"\n', {}),
        (b"1,x\n3,y z\n", {"header": False, "column_names": ("a", "b")}),
        (b"p,q\n1,x\n3,y z\n", {"column_names": ("a", "b")}),
        (b" a , b\n1,x\n3,y z\n", {}),
    ],
)
def test_csv_dialects(tmp_path: Path, data: bytes, settings: dict[str, Any]) -> None:
    assert content(read_csv(tmp_path, data, **settings)) == EXPECTED


def test_quotes_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    table = read_csv(tmp_path, b'a,b\n"1,5","x""y\nz"\n,""\n')
    assert content(table) == {"a": ["1,5", None], "b": ['x"y\nz', None]}


def test_encoding(tmp_path: Path) -> None:
    data = "a\nK\u00f6ln\n".encode("latin-1")
    assert content(read_csv(tmp_path, data, encoding="latin-1")) == {"a": ["K\u00f6ln"]}
    refused(lambda: read_csv(tmp_path, data + CANARY.encode()), "set encoding")
    refused(lambda: read_csv(tmp_path, b"\xff\xfe" + data, encoding="ascii"), "set encoding")


NO_TEXT: dict[str, tuple[bytes, int, dict[str, Any]]] = {
    "a ragged row": (b"a,b\n1,2\n3,\xff,4\n5,6\n", 3, {}),
    "a ragged row far below": (b"a,b\n" + b"1,2\n" * 300_000 + b"1,\xff,3\n", 300_002, {}),
    "rows of other lengths before": (b"a,b\n1\n1,2,3\n4,\xff\n", 4, {}),
    "the header": (b"a,b\xff,c\n1,2\n", 1, {}),
    "names of the site file": (b"1,2\n3,\xff,4\n", 2, {"column_names": ("a", "b")}),
    "another encoding": ("a,b\n\xe9,1\n".encode("utf-16") + b"\x00", 3, {"encoding": "utf-16"}),
}


@pytest.mark.parametrize(("data", "line", "settings"), NO_TEXT.values(), ids=NO_TEXT)
def test_text_that_is_none_is_one_sentence_with_its_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    data: bytes,
    line: int,
    settings: dict[str, Any],
) -> None:
    """Arrow printed a traceback of its own where a row was both ragged and no text."""
    header = {"header": False} if "column_names" in settings else {}
    refused(lambda: read_csv(tmp_path, data, **settings, **header), f"line {line} of ", "encoding")
    assert capfd.readouterr() == ("", "")


def test_nothing_is_guessed(tmp_path: Path) -> None:
    table = read_csv(tmp_path, b"id,x\n007,1e3\n010,2\n")
    assert content(table)["id"] == ["007", "010"]
    values, wrong = table.numbers("x")
    assert values.tolist() == [1000.0, 2.0]
    assert len(wrong) == 0
    for separator in (",", None):  # one that is given, or that is there, is taken
        names = read_csv(tmp_path, b"a;b,c\n1,2\n", separator=separator).names
        assert names == ("a;b", "c")
    assert read_csv(tmp_path, b"a;b\n1;2\n", separator=",").names == ("a;b",)
    assert read_csv(tmp_path, b"weight;kg\n1\n2\n").names == ("weight;kg",)


def test_wide_rows_are_read(tmp_path: Path) -> None:
    names = ",".join(f"x{j}" for j in range(200_000)).encode()
    row = b",".join([b"12345678"] * 200_000)
    assert read_csv(tmp_path, names + b"\n" + row + b"\n").frame.shape == (1, 200_000)


def test_hash_is_that_of_the_file(tmp_path: Path) -> None:
    data = gzip.compress(b"a,b\n1,x\n3,y z\n")
    path = written(tmp_path, data, "t.csv.gz")
    table = read_source(Source(path="t.csv.gz"), tmp_path)
    assert content(table) == EXPECTED
    assert table.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert table.n_rows == 2


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (b"", {}, "is empty"),
        (b"\n \n", {}, "is empty"),
        (b"a,b\n", {}, "has no rows"),
        (b"a,a\n%s,1\n", {}, "columns 1 and 2 of"),
        (b"%s,%s\n1,2\n", {}, "set header = false"),
        (b"a,b\n1,2\n1,%s,3\n4\n", {}, "2 rows whose number of cells"),
        (b"a,b\n1,2\n1,%s,3\n4\n", {}, "rows 2, 3"),
        (b"1,2,%s\n", {"header": False, "column_names": ("a",)}, "row 1"),
        (b'a,b\n"%s,1\n', {}, "number of cells"),
        (b"1.5,2\n3,%s\n", {}, "holds numbers, not column names"),
        (b"63,1\n3,%s\n", {}, "holds numbers, not column names"),
        (b"a;b\n1;%s\n", {}, "and no ',': set separator = ';' in [source]"),
        (b"a;b\n1,5;%s\n", {}, "set separator = ';' and decimal = ',' in [source]"),
        (b"a\tb\n%s\t1,5\n", {"decimal": ","}, "set separator = 'tab' in [source]"),
        ("a,b\n1,%s\n".encode("utf-16"), {}, "is utf-16 text: set encoding = 'utf-16'"),
        ("a,b\n1,x\n".encode("utf-16-le"), {}, "set encoding = 'utf-16-le'"),
        ("a,b\n1,x\n".encode("utf-16-be"), {}, "set encoding = 'utf-16-be'"),
    ],
)
def test_bad_csv(tmp_path: Path, data: bytes, settings: dict[str, Any], words: str) -> None:
    data = data.replace(b"%s", CANARY.encode())
    refused(lambda: read_csv(tmp_path, data, **settings), words)


def test_bad_files(tmp_path: Path) -> None:
    refused(lambda: read_source(Source(path="none.csv"), tmp_path), "there is no file")
    refused(lambda: read_source(Source(path="."), tmp_path), "is not a file")
    written(tmp_path, b"x", "t.xlsx")
    refused(lambda: read_source(Source(path="t.xlsx"), tmp_path), "set format")
    for name in ("t.parquet", "t.arrow", "t.feather", "t.csv.gz"):
        written(tmp_path, CANARY.encode(), name)
        refused(lambda name=name: read_source(Source(path=name), tmp_path), "is not a")
    written(tmp_path, gzip.compress(b"a\n1\n" * 99)[:-9], "torn.csv.gz")
    refused(lambda: read_source(Source(path="torn.csv.gz"), tmp_path), "copy it again")


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, b"a\n1\n")
    monkeypatch.setenv("SITE_FOLDER", str(tmp_path))
    assert read_source(Source(path="${SITE_FOLDER}/t.csv")).n_rows == 1
    monkeypatch.delenv("SITE_FOLDER")
    refused(lambda: read_source(Source(path="${SITE_FOLDER}/t.csv")), "SITE_FOLDER", "not set")


def test_columnar_files(tmp_path: Path) -> None:
    frame = pa.table({"a": [1, None], "b": ["x", "y"]})
    pq.write_table(frame, tmp_path / "t.parquet")
    feather.write_feather(frame, tmp_path / "t.feather")
    with pa.ipc.new_stream(tmp_path / "t.arrow", frame.schema) as writer:
        writer.write_table(frame)
    for name in ("t.parquet", "t.feather", "t.arrow"):
        for path in (tmp_path / name, str(tmp_path / name)):
            assert (
                read_source(path).content_hash == read_source(Source(path=str(path))).content_hash
            )
        assert content(read_source(Source(path=name), tmp_path)) == {
            "a": [1, None],
            "b": ["x", "y"],
        }


# --- memory


def test_memory() -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", None]})
    mapping = {"a": np.array([1.0, np.nan]), "b": pa.array(["x", None])}
    for given in (frame, pa.Table.from_pandas(frame), mapping):
        table = read_source(given)
        assert content(table) == {"a": [1.0, None], "b": ["x", None]} or np.isnan(
            content(table)["a"][1]
        )
    assert read_source(read_source(frame)).n_rows == 2


def test_column_hash_looks_at_cells_not_at_chunks() -> None:
    whole = pa.table(
        {"a": [1, 2, None, 4], "b": ["x", "yy", None, ""], "c": [True, False, None, True]}
    )
    parts = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 3)])
    reference = read_source(whole).content_hash
    assert read_source(parts).content_hash == reference
    for name, cells in (("a", [1, 2, 0, 4]), ("b", ["xy", "y", None, ""]), ("c", [True] * 4)):
        changed = {**whole.to_pydict(), name: cells}
        assert read_source(pa.table(changed)).content_hash != reference
    assert read_source(whole.rename_columns(["a", "b", "d"])).content_hash != reference


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1, 2], "cannot be a list"),
        ("t.csv", "there is no file t.csv"),
        (7, "cannot be a int"),
        (None, "cannot be a NoneType"),
        ({}, "has no rows"),
        ({"a": []}, "has no rows"),
        ({"a": 1}, "not a sequence"),
        ({"a": CANARY}, "not a sequence"),
        ({"a": np.zeros((2, 2))}, "not a sequence"),
        ({"a": [1, 2], "b": [1]}, "different lengths"),
        ({"a": [1, CANARY]}, "several types"),
        ({"a": [object(), object()]}, "several types"),
        (pd.DataFrame([[1, CANARY]], columns=["a", "a"]), "columns 1 and 2"),
        (pd.DataFrame({"a": [1, CANARY]}, dtype=object), "several types"),
        (pa.table([[1], [CANARY]], names=["a", "a"]), "columns 1 and 2"),
    ],
)
def test_bad_memory(given: object, words: str) -> None:
    refused(lambda: read_source(given), words)


# --- numbers and categories


def test_numbers_are_parsed_strictly(tmp_path: Path) -> None:
    cells = ["1", "-2.5", "+3", ".5", "5.", "1e-3", " 7 ", "", "NaN", "?", "0", "0.0"]
    table = read_csv(tmp_path, ("a,b\n" + "".join(f"{c},x\n" for c in cells)).encode())
    values, wrong = table.numbers("a", ("?", "0"))
    expected = [1, -2.5, 3, 0.5, 5, 0.001, 7] + [np.nan] * 5
    np.testing.assert_array_equal(values, expected)
    assert len(wrong) == 0


@pytest.mark.parametrize(
    "cell", ["x", "1,5", "0x10", "1_0", "1d5", "NA", "1 2", "true", "--1", "e5"]
)
def test_what_is_no_number_is_found(tmp_path: Path, cell: str) -> None:
    table = read_csv(tmp_path, f'a,b\n1,\n"{cell}",\n2,\n'.encode())
    values, wrong = table.numbers("a")
    assert wrong.tolist() == [1]
    np.testing.assert_array_equal(values, [1, np.nan, 2])


def test_decimal_comma(tmp_path: Path) -> None:
    table = read_csv(tmp_path, b"a;b\n1,5;x\n-,5;y\n", separator=";", decimal=",")
    assert table.numbers("a")[0].tolist() == [1.5, -0.5]
    # As readers of such files have it, a point is then no mark of decimals, and no other number.
    both = read_csv(tmp_path, b"a\n1,5\n5.859\n1.234,5\n", separator=";", decimal=",")
    values, wrong = both.numbers("a")
    assert values[0] == 1.5 and wrong.tolist() == [1, 2]
    assert "decimal in [source] is ',' and some are written with a point" in both.why_wrong(
        "a", wrong[:1]
    )
    assert both.why_wrong("a", wrong[1:]) == ""
    dotted = read_csv(tmp_path, b"a\n1.5\n5.859\n1.2345\n")
    comma = read_csv(tmp_path, b"a\n1,5\n5,859\n1,2345\n", separator=";", decimal=",")
    keys = [row_content(table, ("a",)).tolist() for table in (dotted, comma)]
    assert keys[0] == keys[1]  # rows are known again in a file with the other mark


@pytest.mark.parametrize(
    "cells", [[True, False, None], ["True", "FALSE", ""], ["true", "false", None]]
)
def test_booleans_are_numbers(cells: list[Any]) -> None:
    values, wrong = read_source({"a": cells}).numbers("a")
    np.testing.assert_array_equal(values, [1, 0, np.nan])
    assert len(wrong) == 0


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ([4.0, 2.5, None], ["4", "2.5", ""]),
        ([4, 7, None], ["4", "7", ""]),
        (["4 ", " x", ""], ["4", "x", ""]),
        ([True, False, None], ["true", "false", ""]),
        (pa.array(["x", "y", None]).dictionary_encode(), ["x", "y", ""]),
        (pd.Series([1.0, 2.0, np.nan]), ["1", "2", ""]),
    ],
)
def test_categories(cells: Any, texts: list[str]) -> None:
    positions, distinct = read_source({"a": cells}).categories("a")
    assert [distinct[p] if p >= 0 else "" for p in positions] == texts


# --- databases


@pytest.fixture
def database(tmp_path: Path) -> Path:
    pytest.importorskip("adbc_driver_sqlite")
    path = tmp_path / "odd name #1?.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (a integer, b text)")
        connection.execute(f"insert into t values (1, '{CANARY}'), (2, NULL)")
    connection.close()
    return path


def test_sqlite(database: Path) -> None:
    source = Source(url=f"sqlite:///{database.name}", query="select * from t order by a")
    table = read_source(source, database.parent)
    assert content(table) == {"a": [1, 2], "b": [CANARY, None]}
    assert table.content_hash == read_source(source, database.parent).content_hash
    absolute = Source(url=f"sqlite:///{database}", query="select a from t")
    assert read_source(absolute).n_rows == 2


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"select {CANARY} from t", "failed"),
        ("selec", "failed"),
        (f"insert into t values (3, '{CANARY}')", "failed"),
        ("select * from t where a > 9", "has no rows"),
        ("select a, a from t", "columns 1 and 2"),
    ],
)
def test_bad_queries(database: Path, query: str, words: str) -> None:
    source = Source(url=f"sqlite:///{database}", query=query)
    refused(lambda: read_source(source), words)
    assert read_source(Source(url=f"sqlite:{database}", query="select * from t")).n_rows == 2


def test_bad_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adbc_driver_sqlite")
    refused(
        lambda: read_source(Source(url="sqlite:///none.db", query="select 1"), tmp_path),
        "there is no file",
    )
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(StudyError, match="must start with"):
        read_source(Source(url="mysql://u:secret@h/d", query="select 1"))


def test_password_is_not_shown() -> None:
    pytest.importorskip("adbc_driver_postgresql")
    url = f"postgresql://u:{CANARY}@127.0.0.1:1/d?connect_timeout=1"
    refused(lambda: read_source(Source(url=url, query="select 1")), "failed")


def test_driver_that_is_not_installed(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without_driver(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("adbc_driver_sqlite"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_driver)
    with pytest.raises(MissingExtraError, match=r"consilience\[database\]"):
        read_source(Source(url=f"sqlite:///{database}", query="select 1"))


# --- settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either a path or a url"),
        ({"path": "a", "url": "sqlite:b", "query": "q"}, "either a path or a url"),
        ({"url": "sqlite:b"}, "belong together"),
        ({"path": "a", "query": "q"}, "belong together"),
        ({"path": "a", "header": False}, "needs column_names"),
        ({"path": "a", "column_names": ("x", "y", "x")}, "names 1 and 3"),
        ({"path": "a", "separator": "::"}, "separator"),
        ({"path": "a", "quote": "''"}, "quote"),
        ({"path": "a", "encoding": "klingon"}, "encoding"),
        ({"path": "a", "decimal": ";"}, "decimal"),
    ],
)
def test_bad_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises((StudyError, ParameterError), match=words):
        Source(**settings)


# --- form


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a,b\n1.5,x\n", {}),
        ("\ufeffa,b\n1.5,x\n".encode(), {}),
        (b"a;b\n1,5;x\n", {"separator": ";", "decimal": ","}),
        (b"a\tb\n1\tx y\n", {"separator": "tab"}),
        (b"a|b\n1|x\n", {"separator": "|"}),
        (b"a  b\n 1 2\n", {"separator": "whitespace"}),
        (b'a;b\n"x;y";2\n', {"separator": ";"}),
        (b"a\n1\n", {}),
        (b"a,b\n", {}),
        (b"", {}),
        (b"gr\xf6\xdfe,b\n1,2\n", {"encoding": "cp1252"}),
        (b"\x81,b\n1,2\n", {"encoding": "latin-1"}),
        ("a;b\n1,5;x\n".encode("utf-16"), {"encoding": "utf-16", "separator": ";", "decimal": ","}),
    ],
)
def test_the_form_of_a_file_is_found_and_reads_it(
    tmp_path: Path, data: bytes, found: dict[str, str]
) -> None:
    written(tmp_path, data, "t.csv")
    assert guessed(tmp_path / "t.csv") == found
    if data.count(b"\n") > 1:
        assert read_csv(tmp_path, data, **found).n_rows == 1


def test_two_decimal_marks_are_not_decided(tmp_path: Path) -> None:
    written(tmp_path, b"a;b\n1,5;2.5\n", "t.csv")  # a comma of thousands, or of a text
    with pytest.raises(DataError, match=r"a comma in column 1 and a point in column 2"):
        guessed(tmp_path / "t.csv")


VIEWS = pa.array(["x", "y"], pa.string_view())


@pytest.mark.parametrize("place", ["memory", "file", "stream"])
def test_texts_of_polars_are_read(tmp_path: Path, place: str) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), VIEWS)
    columns = {
        "coded": pa.chunked_array([coded, coded]),
        "text": pa.array(["1", None, "2"] * 2, pa.string_view()),
        "bytes": pa.array([b"1", None, b"2"] * 2, pa.binary_view()),
    }
    frame, path = pa.table(columns), tmp_path / "t.arrow"
    opened = pa.ipc.new_file if place == "file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, opened(file, frame.schema) as out:
        out.write_table(frame)
    table = read_source(frame if place == "memory" else Source(path=str(path)))
    positions, texts = table.categories("coded")
    assert [texts[i] if i >= 0 else "" for i in positions] == ["y", "", "x"] * 2
    assert list(table.numbers("text")[0][[0, 2]]) == [1.0, 2.0]
    assert table.kind("bytes") == "large_binary"


def test_what_arrow_cannot_take_is_one_sentence() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise ValueError("a cell")

    with pytest.raises(DataError, match="the Broken that was given cannot be read") as caught:
        read_source(Broken())
    assert "cell" not in str(caught.value)


def test_the_form_of_other_files_is_theirs(tmp_path: Path) -> None:
    written(tmp_path, b"a\tb\n1\t2\n", "t.tsv")
    assert guessed(tmp_path / "t.tsv") == {}
    assert guessed(tmp_path / "t.parquet") == guessed(tmp_path / "none.csv") == {}


class Foreign:
    """A table of another library, which gives its rows by the Arrow interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_tables_of_other_libraries_are_the_same_as_those_of_pandas() -> None:
    cells: dict[str, Any] = {"dose": [1.5, None, 3.0], "sex": ["f", "m", None]}
    types = {"dose": pa.float64(), "sex": pa.string_view()}  # as polars has them
    given = pa.table({name: pa.array(cells[name], kind) for name, kind in types.items()})
    read, known = read_source(Foreign(given)), read_source(pd.DataFrame(cells))
    assert read.content_hash == known.content_hash
    assert read.description == "the Foreign that was given"
    places, texts = read.categories("sex", ())
    np.testing.assert_array_equal(places, [0, 1, -1])
    assert texts == ("f", "m")
