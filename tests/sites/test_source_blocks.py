"""Large CSV files in blocks: the same table, hash and errors as of the file as a whole."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.exceptions import DataError
from consilience.sites import source, source_blocks
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


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is a large one, of many blocks."""
    monkeypatch.setattr(source_blocks, "LARGE", 0)
    monkeypatch.setattr(source, "_BLOCK", 4096)


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
        assert found.cells(name).to_pylist() == wanted.cells(name).to_pylist()
        one, two = found.plain_numbers(name), wanted.plain_numbers(name)
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


def test_long_numbers_are_kept_as_numbers(tmp_path: Path, small_blocks: None) -> None:
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


BROKEN: dict[str, bytes] = {
    "ragged": b"a,b\n1,2\n1,2,3\n4,5\n",
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
