"""Large files in blocks: the same table, hash, errors and results as of the file as a whole."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from consilience import Columns, Describe, Federation, MeanAndSD, PooledRegression, Preparation
from consilience.exceptions import DataError
from consilience.sites import prepare, source, source_blocks
from consilience.sites.row_history import row_content
from consilience.sites.source import Source, Table, read_source

CODES: list[tuple[str, ...]] = [(), ("-9",), ("-9.00", "NA"), ("nan",), ("inf", "1e5"), (" 7",)]
CELLS: dict[str, list[str]] = {
    "repr": [],  # numbers of sixteen digits, as pandas writes them
    "some": ["-9", "5.0", "1e-05", "3.2E4", "", "-0.0", "0012", "+1", "1e400"],
    "not a number": ["nan", "NaN", "inf", "-inf", ""],
    "words": ["NA", "n/a", "twelve", " 0.123456789 "],
    "short": ["1", "2", ""],
}


@pytest.fixture(params=["by columns", "by lines"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is a large one, of many blocks; wide ones are taken apart line by line."""
    monkeypatch.setattr(source_blocks, "LARGE", 0)
    monkeypatch.setattr(source, "_BLOCK", 4096)
    monkeypatch.setattr(source, "_LINES", 8)
    monkeypatch.setattr(source_blocks, "_PIECE", 4096)
    monkeypatch.setattr(source_blocks, "_LINES", 8)
    monkeypatch.setattr(source_blocks, "_FEW", 4)
    monkeypatch.setattr(source_blocks, "_WIDE", 2 if request.param == "by lines" else 1 << 30)


def drawn(rng: np.random.Generator, kind: str, n: int) -> list[str]:
    """Cells of one column: numbers with many digits, and now and then one of the others."""
    cells = [repr(x) for x in rng.normal(size=n).tolist()]
    others = CELLS[kind]
    if kind == "short":
        return [others[i] for i in rng.integers(len(others), size=n)]
    # A column may be of numbers for a while, and then a word comes.
    share, first = rng.choice([0.02, 0.3]), rng.choice([0, n // 2])
    for i in np.flatnonzero(rng.uniform(size=n) < share) if others else []:
        cells[i] = others[rng.integers(len(others))] if i >= first else cells[i]
    return cells


def whole(path: Path, **settings: Any) -> Table:
    """The table as it is read without blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_blocks, "LARGE", 1 << 60)
        return read_source(Source(path=str(path), **settings))


def same(found: Table, wanted: Table) -> None:
    assert (found.names, found.n_rows, found.content_hash) == (
        wanted.names,
        wanted.n_rows,
        wanted.content_hash,
    )
    for name in wanted.names:
        assert found.kind(name) == wanted.kind(name)
        assert repr(found.cells(name).to_pylist()) == repr(wanted.cells(name).to_pylist())
        one, two = (
            t.plain_numbers(name) if t.kind(name) == "text" else None for t in (found, wanted)
        )
        assert (one is None) == (two is None)
        np.testing.assert_array_equal([] if one is None else one, [] if two is None else two)
        for codes in CODES:
            for (x, at), (y, place) in [(found.numbers(name, codes), wanted.numbers(name, codes))]:
                assert x.tobytes() == y.tobytes()
                np.testing.assert_array_equal(at, place)
            (i, texts), (j, others) = found.categories(name, codes), wanted.categories(name, codes)
            np.testing.assert_array_equal(i, j)
            assert texts == others
    np.testing.assert_array_equal(
        row_content(found, found.names), row_content(wanted, wanted.names)
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("quoted", [False, True])
def test_the_table_is_that_of_the_whole_file(
    seed: int, quoted: bool, tmp_path: Path, small_blocks: None
) -> None:
    rng = np.random.default_rng([seed, quoted])
    n = int(rng.integers(1, 400))
    columns = {f"{kind} {k}": drawn(rng, kind, n) for kind in CELLS for k in range(2)}
    rows = [list(columns), *map(list, zip(*columns.values(), strict=True))]
    if quoted:  # a comma and the end of a line inside a cell, too
        rows[-1][0] = "0,5\n"
        rows = [[f'"{cell}"' for cell in row] for row in rows]
    lines = [",".join(row) for row in rows]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    found = source_blocks.read_blocks(source.Csv(Source(path=str(path)), ",", str(path)), path)
    assert found is not None and found.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    same(read_source(path), whole(path))


def test_drawn_tables_have_every_kind_of_column(tmp_path: Path, small_blocks: None) -> None:
    """Kept as numbers with some cells written otherwise, and given up after some blocks."""
    rng = np.random.default_rng(7)
    seen = set()
    for _ in range(20):
        path = tmp_path / "t.csv"
        cells = drawn(rng, str(rng.choice(["some", "not a number", "words"])), 300)
        path.write_text("\n".join(["a", *cells]) + "\n")
        found = read_source(path).spellings
        first = any(cell and not cell[-1].isdigit() for cell in cells[:150])
        seen.add(
            (len(found[0].places) > 0, found[0].places.max(initial=0) > 100) if found else first
        )
    assert seen >= {(True, True), True, False}


def test_long_numbers_are_kept_as_numbers(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few columns; of many, short ones too."""
    monkeypatch.setattr(source_blocks, "_WIDE", 3)
    rng = np.random.default_rng(1)
    path = tmp_path / "t.csv"
    x = rng.normal(size=(500, 2))
    pd.DataFrame({"long": x[:, 0], "short": np.round(x[:, 1], 1)}).to_csv(path, index=False)
    table = read_source(path)
    assert list(table.spellings) == [0]
    # The column itself, and no copy of it.
    assert table.numbers("long")[0] is not None and not table.numbers("long")[0].flags.owndata
    again = table.with_texts("long", np.array([0, -1] * 250), ["a"])
    assert not again.spellings and again.cells("long").to_pylist()[:2] == ["a", None]


def test_wide_tables_are_taken_apart_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are texts from the first line, from the middle on, or hardly ever numbers."""
    monkeypatch.setattr(source_blocks, "LARGE", 0)
    monkeypatch.setattr(source_blocks, "_PIECE", 4096)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 300)).astype(object)
    x[rng.uniform(size=x.shape) < 0.02] = ""
    x[:, 0], x[200:, 1], x[::3, 2], x[:, 3] = "word", "word", "1.50", ""
    x[::50, 4], x[:, 5] = "1e3", rng.integers(2, size=300)
    path = tmp_path / "t.csv"
    pd.DataFrame(x).add_prefix("x").to_csv(path, index=False)
    wanted = whole(path)
    monkeypatch.setattr(source_blocks, "_by_columns", None)
    found = read_source(path)
    same(found, wanted)
    assert sorted(set(range(300)) - found.spellings.keys()) == [0, 1, 2]
    assert found.spellings[4].others.to_pylist() == ["1e3"] * 6
    # Of texts Arrow takes columns apart.
    monkeypatch.undo()
    monkeypatch.setattr(source_blocks, "LARGE", 0)
    pd.DataFrame(np.full((9, 300), "word")).add_prefix("x").to_csv(path, index=False)
    same(read_source(path), whole(path))


BROKEN: dict[str, bytes] = {
    "ragged": b"a,b\n1,2\n1,2,3\n4,5\n",
    "ragged, and as many cells as there should be": b"a,b,c\n1,2,3,4\n5,6\n",
    "not UTF-8": b"a,b\n1,2\n3,\xe4\n",
    "UTF-16": "a,b\n1,2\n".encode("utf-16"),
    "a repeated name": b"a,a\n1,2\n",
    "a number for a name": b"1,2\n3,4\n",
    "no rows": b"a,b\n",
    "blank": b" \n \n",
    "another separator": b"a;b\n1;2\n3;4\n",
    "no end of the line": b"a,b",
    "a workbook": b"PK\x03\x04 xl/workbook.xml",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_errors_are_those_of_the_whole_file(kind: str, tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "t.csv"
    # At the end of a long file, where the first blocks are fine.
    path.write_bytes(BROKEN[kind])
    with pytest.raises(DataError) as wanted:
        whole(path)
    with pytest.raises(DataError) as found:
        read_source(path)
    assert (str(found.value), found.value.public) == (str(wanted.value), wanted.value.public)


@pytest.mark.parametrize("end", [b"1,2,3\n", b"1,\xe4\n", b"1\n"])
def test_an_error_far_below_is_found(end: bytes, tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\n" + b"0.123456789123,0.1\n" * 200 + end)
    with pytest.raises(DataError) as wanted:
        whole(path)
    with pytest.raises(DataError) as found:
        read_source(path)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (b"\xef\xbb\xbfa,b\n1,x\n3,y z\n", {}),
        (b"a,b\r1,x\r3,y z\r", {}),
        (b"a,b\r\n1,x\r\n\r\n3,y z", {}),
        (b"1,x\n3,y z\n", {"header": False, "column_names": ("a", "b")}),
        (b"p,q\n1,x\n3,y z\n", {"column_names": ("a", "b")}),
        (b"a;b\n1,5;x\n3;y z\n", {"separator": ";", "decimal": ","}),
        (b"a  b\n1 x\n3 y\n", {"separator": "whitespace"}),
        ("a,b\n1,é\n3,x\n".encode("latin-1"), {"encoding": "latin-1"}),
        (b"a,b\n'1\n1',x\n3,y\n", {"quote": "'"}),
        (b'a,b\n"1,x\n3,y\n', {"quote": ""}),
        (
            b"\xef\xbb\xbfday,id,x\r\n2020-01-31,9007199254740993,.5\r\n,18446744073709551616,\r\n",
            {},
        ),
        (b"a,b,c\n1,2,3\n4,5\x01,6\n7,8,9\n", {}),
        (b"a,b,c\n0.125,1,x\n2,,\n,,y\n,,z\n", {}),
        ("a\tb\tc\n1\t\u00fc\u20ac\t3\n\u00fc\t5\t\n".encode(), {"separator": "tab"}),
    ],
)
def test_dialects(
    data: bytes, settings: dict[str, Any], tmp_path: Path, small_blocks: None
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    same(read_source(Source(path=str(path), **settings)), whole(path, **settings))


def test_neither_file_nor_texts_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that Arrow has at most, and those of Python, beside the file and its numbers."""
    import pyarrow as pa

    rng = np.random.default_rng(2)
    path = tmp_path / "t.csv"
    pd.DataFrame(rng.normal(size=(120_000, 5))).add_prefix("x").to_csv(path, index=False)
    numbers, file = 120_000 * 5 * 8, path.stat().st_size
    monkeypatch.setattr(source_blocks, "LARGE", 0)
    monkeypatch.setattr(source, "_BLOCK", 1 << 16)
    monkeypatch.setattr(source, "_LINES", 8)
    arrow = pa.default_memory_pool()
    before = arrow.max_memory()
    table, peak = traced(path)
    assert len(table.spellings) == 5
    # One and a fifth, as rows are not counted beforehand; some blocks besides.
    assert peak < 1.2 * numbers + 3e6 < 0.8 * file
    assert max(arrow.max_memory() - before, 0) < 0.3 * file
    # Negative control: without blocks the file is there as a whole.
    monkeypatch.setattr(source_blocks, "LARGE", 1 << 60)
    assert traced(path)[1] > file


def traced(path: Path) -> tuple[Table, int]:
    """A table, and the bytes that Python had at most while it was read."""
    tracemalloc.start()
    try:
        return read_source(path), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------ Parquet


def plain_columns(n: int) -> pa.Table:
    """Columns of numbers, truth values and texts, with gaps and names of all kinds."""
    rng = np.random.default_rng(5)
    gaps = rng.uniform(size=n) < 0.1
    words = pa.array(rng.choice(["1", "2.5", "no", " x "], size=n), mask=gaps)
    return pa.table(
        {
            "x": pa.array(rng.normal(size=n)),
            "x.y": pa.array(rng.normal(size=n), mask=gaps),
            " blanks ": pa.array(rng.integers(-9, 9, size=n).astype(np.int32)),
            "small": pa.array(rng.integers(0, 200, size=n).astype(np.uint8), mask=gaps),
            "half": pa.array(rng.normal(size=n).astype(np.float32), mask=~gaps),
            "yes": pa.array(rng.uniform(size=n) < 0.5, mask=gaps),
            "all": pa.array(rng.uniform(size=n) < 0.5),
            "words": words,
            "large": words.cast(pa.large_string()),
            "coded": words.dictionary_encode(),
            "NaN": pa.array(np.where(gaps, np.nan, 1.5)),
        }
    )


def test_columns_of_parquet_are_those_of_the_whole_file(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(plain_columns(1000), path, row_group_size=130)
    found = read_source(path)
    assert isinstance(found.frame, source_blocks.ParquetColumns)
    assert not isinstance(whole(path).frame, source_blocks.ParquetColumns)
    assert found.names[2] == "blanks"  # as of every table, without the blanks around it
    same(found, whole(path))
    other = found.with_texts("words", np.arange(1000) % 3 - 1, ["p", "q"])
    same(other, whole(path).with_texts("words", np.arange(1000) % 3 - 1, ["p", "q"]))


def test_other_types_of_parquet_are_those_of_the_whole_file(
    tmp_path: Path, small_blocks: None
) -> None:
    path, n = tmp_path / "t.parquet", 50
    day = datetime.date(2020, 1, 1)
    columns = {
        "date": [day + datetime.timedelta(days=i) for i in range(n)],
        "money": [None if i % 7 == 0 else decimal.Decimal(i) / 4 for i in range(n)],
        "list": [[i, i] for i in range(n)],
        "record": [{"a": i, "b": str(i)} for i in range(n)],
        "empty": pa.nulls(n),
        "views": pa.array([str(i) for i in range(n)], pa.string_view()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=7)
    found, wanted = read_source(path), whole(path)
    assert isinstance(found.frame, source_blocks.ParquetColumns)
    for name in wanted.names:
        assert found.kind(name) == wanted.kind(name)
        assert repr(found.cells(name).to_pylist()) == repr(wanted.cells(name).to_pylist())
    np.testing.assert_array_equal(row_content(found, ("views",)), row_content(wanted, ("views",)))


def test_parquet_without_rows_or_with_equal_names_is_refused_alike(
    tmp_path: Path, small_blocks: None
) -> None:
    x = pa.array([1.0, 2.0])
    tables = {
        "empty": pa.table({"x": x[:0]}),
        "equal names": pa.Table.from_arrays([x, x], names=["x", "x"]),
        "equal but for blanks": pa.Table.from_arrays([x, x], names=["x", " x"]),
        "no columns": pa.table({}),
    }
    for name, table in tables.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        with pytest.raises(DataError) as wanted:
            whole(path)
        with pytest.raises(DataError) as found:
            read_source(path)
        assert str(found.value) == str(wanted.value)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        read_source(path)


def test_a_parquet_file_that_changes_is_not_read_on(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(plain_columns(1000), path)
    table = read_source(path)
    wanted = table.numbers("x")[0].tobytes()
    # One that takes the place of the file is another one: the first is still there.
    pq.write_table(plain_columns(900), tmp_path / "new.parquet")
    os.replace(tmp_path / "new.parquet", path)
    assert table.numbers("x")[0].tobytes() == wanted
    table = read_source(path)
    with path.open("r+b") as file:
        file.write(b"PAR1")
        os.utime(path, (0, 0))
    with pytest.raises(DataError, match="was written to while it was read: begin again"):
        table.numbers("x")


def test_damage_in_a_column_of_parquet_is_told(tmp_path: Path, small_blocks: None) -> None:
    path = tmp_path / "t.parquet"
    frame = pa.table({"x": np.arange(5000.0), "y": np.arange(5000.0)})
    pq.write_table(frame, path, compression="gzip", use_dictionary=False)
    place = pq.ParquetFile(path).metadata.row_group(0).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[place : place + 200] = bytes(200)
    path.write_bytes(content)
    table = read_source(path)
    np.testing.assert_array_equal(table.numbers("x")[0], np.arange(5000.0))
    with pytest.raises(DataError, match="is not a readable Parquet file: copy it again"):
        table.numbers("y")


# ------------------------------------------------------------------------------------------ results


def answers(source: Any, policy: str) -> dict[str, bytes]:
    """Bytes of results over one table: moments, a description, a regression, and scaled columns."""
    features = ("x0", "x1", "x2")
    given = {"a": source}
    moments = Federation.local(given, columns=Columns(features=features), policy=policy)
    rows_left_out = Preparation(missing="complete-rows", standardize="pooled")
    scaled = Federation.local(
        given, columns=Columns(features=features), preparation=rows_left_out, policy=policy
    )
    outcome = Columns(features=features[1:], target="x0")
    regressed = Federation.local(given, columns=outcome, policy=policy)
    return {
        name: b"".join(run.result.to_files().values())
        for name, run in {
            "moments": MeanAndSD().run(moments, seed=0),
            "scaled": MeanAndSD().run(scaled, seed=0),
            "described": Describe().run(moments, seed=0),
            "regressed": PooledRegression(family="gaussian").run(regressed, seed=0),
        }.items()
    }


@pytest.mark.parametrize("policy", ["simulation", "consortium", "strict"])
def test_results_are_the_same_whatever_is_read_at_a_time(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 1,000 rows, and of all; from CSV, Parquet and memory."""
    rng = np.random.default_rng(6)
    n, p = 5003, 3
    x = rng.normal(size=(n, p)) * 10.0 ** rng.uniform(-3, 3, size=(n, p))
    frame = pd.DataFrame(np.round(x, 9)).add_prefix("x")
    frame.to_csv(tmp_path / "t.csv", index=False)
    pq.write_table(pa.table(frame), tmp_path / "t.parquet", row_group_size=777)
    monkeypatch.setattr(source, "_BLOCK", 4096)
    monkeypatch.setattr(source, "_LINES", 8)
    found = []
    for rows, large in ((1000, 0), (1 << 40, 1 << 60)):
        monkeypatch.setattr("consilience.wire.cell_facts._AT_ONCE", p * rows)
        monkeypatch.setattr("consilience.sites.prepare._ASIDE", rows)
        monkeypatch.setattr(source_blocks, "LARGE", large)
        found += [
            answers(given, policy)
            for given in (str(tmp_path / "t.csv"), str(tmp_path / "t.parquet"), frame)
        ]
    assert all(one == found[0] for one in found[1:])


def test_rows_that_are_left_out_leave_the_others_where_they_were() -> None:
    rng = np.random.default_rng(7)
    x, keep = rng.normal(size=(200_000, 3)), rng.uniform(size=200_000) < 0.7
    wanted = x[keep]
    found = prepare._only(x, keep)
    assert found.tobytes() == wanted.tobytes() and found.base is x


_PEAK = """
import json, re, sys
import pyarrow.compute, pyarrow.csv, pyarrow.parquet
from consilience import Columns, Federation, MeanAndSD
from consilience.sites import source_blocks
source_blocks.LARGE = int(sys.argv[3])
def peak(name):
    status = open("/proc/self/status").read()
    return int(re.findall(name + r":\\s+(\\d+) kB", status)[0]) * 1024
def run(path):
    columns = Columns(features=[f"x{j}" for j in range(8)])
    MeanAndSD().run(Federation.local({"a": path}, columns=columns, policy="simulation"), seed=0)
run(sys.argv[1])
before = peak("VmRSS")
run(sys.argv[2])
print(peak("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
def test_a_run_over_parquet_holds_one_copy_of_the_table(tmp_path: Path) -> None:
    """What a process takes at most, in tables: the prepared one, and a column or two."""
    rng = np.random.default_rng(8)
    n, p = 600_000, 8
    for name, rows in (("little", 1000), ("t", n)):
        frame = pa.table({f"x{j}": rng.normal(size=rows) for j in range(p + 4)})
        pq.write_table(frame, tmp_path / f"{name}.parquet", row_group_size=50_000)

    def tables(large: int) -> float:
        paths = [str(tmp_path / f"{name}.parquet") for name in ("little", "t")]
        command = [sys.executable, "-c", _PEAK, *paths, str(large)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout) / (n * p * 8))

    # Of eight columns a position of each row is an eighth of a table, and so is one column: 1.74
    # was measured, a hundredth more on a busy machine. With a second copy it would be above two.
    assert tables(0) < 2
    # Negative control: the file, and all of its columns, are there as a whole.
    assert tables(1 << 60) > 2.5
