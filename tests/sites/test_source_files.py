"""Tables in files of Excel, Stata and SPSS: what a text file would say, and nothing is lost."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest

from consilience.exceptions import DataError, MissingExtraError, StudyError
from consilience.sites.row_history import row_content
from consilience.sites.source import Source, Table, read_source
from consilience.sites.study import Study
from tests.cli.workspace import SITES, Workspace, call, sentence, without_report
from tests.sites.test_source import CANARY, content, refused


def workbook(
    path: Path, *sheets: Sequence[Sequence[Any]], names: Sequence[str] = (), merged: str = ""
) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for i, rows in enumerate(sheets):
        sheet = book.create_sheet(names[i] if names else f"Sheet{i + 1}")
        for row in rows:
            sheet.append(list(row))
        if merged:
            sheet.merge_cells(merged)
    book.save(path)
    return path


def stata(path: Path, columns: Mapping[str, Any], **more: Any) -> Path:
    pd.DataFrame(columns).to_stata(path, write_index=False, **more)
    return path


def spss(path: Path, columns: Mapping[str, Any], **more: Any) -> Path:
    pyreadstat.write_sav(pd.DataFrame(columns), path, **more)
    return path


def read(path: Path, **settings: Any) -> Table:
    return read_source(Source(path=str(path), **settings))


DAYS = [dt.date(2020, 1, 31), None, dt.date(1999, 12, 1), dt.date(2020, 1, 31)]


def four(folder: Path) -> dict[str, Path]:
    """One table in four kinds of file."""
    plain = {
        "n": [30.0, 99.5, np.nan, -7.0],
        "kind": [0, 1, 1, 0],
        "who": ["007", "b", "", "é"],
        "day": DAYS,
    }
    words = {0: "no", 1: "yes"}
    texts = [words[k] for k in plain["kind"]]
    frame = pd.DataFrame({**plain, "kind": texts})
    frame.to_csv(folder / "t.csv", index=False)
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    workbook(folder / "t.xlsx", [list(plain), *rows])
    labels: dict[str, Any] = {"kind": words}
    stata(
        folder / "t.dta",
        {**plain, "day": pd.to_datetime(pd.Series(DAYS))},
        value_labels=labels,
        convert_dates={"day": "td"},
        version=118,
    )
    spss(folder / "t.sav", plain, variable_value_labels=labels)
    return {kind: folder / f"t.{kind}" for kind in ("csv", "xlsx", "dta", "sav")}


def test_four_kinds_of_file_hold_the_same(tmp_path: Path) -> None:
    tables = {kind: read(path) for kind, path in four(tmp_path).items()}
    told = []
    for table in tables.values():
        shown: list[Any] = [table.numbers("n")[0].tolist()]
        for name in ("kind", "who", "day"):
            positions, texts = table.categories(name)
            shown.append([texts[i] if i >= 0 else None for i in positions])
        told.append(str(shown))
    assert len(set(told)) == 1
    assert "'2020-01-31', None, '1999-12-01'" in told[0]
    # Rows that are known from one file are known from the others.
    names = tables["csv"].names
    known = {row_content(table, names).tobytes() for table in tables.values()}
    assert len(known) == 1


def saved_as(space: Workspace, ending: str) -> None:
    """Keep the tables of a workspace in another kind of file."""
    for site in SITES:
        old = space.root / "data" / f"{site}.csv"
        frame, new = pd.read_csv(old), old.with_suffix(ending)
        if ending == ".xlsx":
            workbook(new, [list(frame), *frame.to_numpy().tolist()])
        elif ending == ".dta":
            stata(new, frame)
        elif ending == ".sav":
            spss(new, frame)
        file = space.root / "sites" / f"{site}.toml"
        file.write_text(file.read_text().replace(".csv", ending))


@pytest.mark.parametrize("ending", [".xlsx", ".dta", ".sav"])
def test_a_study_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    results = []
    for kind in (".csv", ending):
        space = Workspace(tmp_path / kind)
        saved_as(space, kind)
        with without_report():
            ran = space.run()
        assert ran.exit_code == 0, ran.output
        results.append([(space.out / f"result.{end}").read_bytes() for end in ("json", "npz")])
    assert results[0] == results[1]


# ------------------------------------------------------------------------------------------ Excel


def test_cells_of_a_sheet(tmp_path: Path) -> None:
    rows = [
        ["n", "text", "flag", "day", "time", "mixed", None],
        [1, " x ", True, dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 10, 30), 5],
        [None] * 7,  # no row
        [2.5, "  ", False, dt.datetime(2021, 2, 3), dt.datetime(2020, 1, 1), "NA"],
        [None, "007", None, None, None, dt.date(2020, 1, 2)],
    ]
    table = read(workbook(tmp_path / "t.xlsx", rows))
    first, second = dt.datetime(2020, 1, 1, 10, 30), dt.datetime(2020, 1, 1)
    assert content(table) == {
        "n": [1.0, 2.5, None],
        "text": ["x", None, "007"],
        "flag": [True, False, None],
        "day": [dt.date(2020, 1, 1), dt.date(2021, 2, 3), None],
        "time": [first, second, None],
        "mixed": ["5", "NA", "2020-01-02"],
    }
    assert table.categories("time")[1][:2] == ("2020-01-01 10:30:00", "2020-01-01 00:00:00")


def test_cells_of_several_types_are_judged_as_text(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    saved_as(space, ".xlsx")
    odd = [["x", "y"], *([1.5, 2] for _ in range(30)), *([CANARY, 1] for _ in range(12))]
    workbook(tmp_path / "data" / "lyon.xlsx", odd)
    said = call("check", space.file).output
    assert "column 'x' holds text in 12 cells where the study expects numbers; rows 31, 32" in said
    assert CANARY not in said


def test_numbers_among_texts_have_the_decimal_mark_of_the_source(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", [["x"], [1.5], ["2,5"], ["NA"]])
    table = read(path, decimal=",")
    assert table.numbers("x", ("NA",))[0].tolist()[:2] == [1.5, 2.5]
    assert content(table) == {"x": ["1,5", "2,5", "NA"]}


def test_sheets(tmp_path: Path) -> None:
    rows, more = [["a"], [1]], [["b"], [2]]
    path = workbook(tmp_path / "t.xlsx", rows, more, [], names=("Jan", "Feb", "Notes"))
    assert read(path, sheet="Feb").names == ("b",)
    refused(lambda: read(path), "2 sheets with cells: set sheet in [source] to one of 'Jan', 'Feb'")
    refused(lambda: read(path, sheet="feb"), "no sheet 'feb'", "'Jan', 'Feb', 'Notes'")
    path = workbook(tmp_path / "one.xlsx", [], rows)
    assert read(path).names == ("a",)  # the only one with cells
    refused(lambda: read(workbook(tmp_path / "no.xlsx", [], [])), "has no rows")


FAULTS: dict[str, tuple[Sequence[Sequence[Any]], dict[str, Any], str]] = {
    "no name": ([["a", None, "c"], [1, CANARY, 3]], {}, "no name for column 2 in its first row"),
    "a title": ([[CANARY], [], ["x", "y"], [1, 2]], {}, "no name for column 2"),
    "two names": ([["a", "b", "a "], [1, 2, CANARY]], {}, "columns 1 and 3 of"),
    "no header": ([[7731, 2.5], [3, 4]], {}, "holds numbers, not column names"),
    "too few names": (
        [[CANARY, 2], [3, 4]],
        {"header": False, "column_names": ("p",)},
        "has 2 columns, and column_names in [source] has 1",
    ),
    "formulas": (
        [["a", "b"], [CANARY, "=A2"], [1, 2], [3, "=A3*2"]],
        {},
        "formulas without a stored value in 2 cells; rows 1, 3: open it in Excel",
    ),
    "labels": ([["a"], [1]], {"labels": False}, "has no value labels"),
}


@pytest.mark.parametrize(("rows", "settings", "words"), FAULTS.values(), ids=FAULTS)
def test_sheets_that_are_no_plain_table(
    tmp_path: Path, rows: Any, settings: dict[str, Any], words: str
) -> None:
    path = workbook(tmp_path / "t.xlsx", rows)
    refused(lambda: read(path, **settings), words)


@pytest.mark.parametrize("cells", ["A1:B1", "A2:A3"])
def test_merged_cells(tmp_path: Path, cells: str) -> None:
    path = workbook(tmp_path / "t.xlsx", [["a", "b"], [CANARY, 1], [2, 3]], merged=cells)
    refused(lambda: read(path), f"has merged cells ({cells})", "unmerge them")


def test_names_of_the_site_file(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", [[1, 2], [3, 4]])
    assert content(read(path, header=False, column_names=("p", "q")))["p"] == [1.0, 3.0]
    assert content(read(path, column_names=("p", "q")))["p"] == [3.0]


def test_formulas_are_their_stored_values(tmp_path: Path) -> None:
    """Also an empty text, as which Excel keeps what a formula gives for nothing."""
    import zipfile

    rows = [["a", "b"], [1, "=A2*2"], [2, '=""'], [3, "plain"]]
    path = workbook(tmp_path / "t.xlsx", rows)
    changed = {
        b"<f>A2*2</f><v></v>": b"<f>A2*2</f><v>2</v>",
        b"<f>A2*2</f><v />": b"<f>A2*2</f><v>2</v>",
        b'<c r="B3"><f>""</f>': b'<c r="B3" t="str"><f>""</f>',
    }
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    for old, new in changed.items():
        parts = {name: part.replace(old, new) for name, part in parts.items()}
    with zipfile.ZipFile(path, "w") as book:
        for name, part in parts.items():
            book.writestr(name, part)
    assert content(read(path))["b"] == ["2", None, "plain"]


OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100) + CANARY.encode()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("t.xls", OLD, "of an old Excel (.xls): save it as .xlsx"),
        ("t.xlsx", OLD + "EncryptedPackage".encode("utf-16-le"), "protected by a password"),
        ("t.xlsx", b"a,b\n1," + CANARY.encode(), "is not an Excel workbook, whatever its name"),
        ("t.ods", b"PK\x03\x04mimetype" + CANARY.encode(), "is not an Excel workbook of the kind"),
        ("t.xlsx", b"PK\x03\x04xl/workbook.xml" + CANARY.encode(), "not a whole file of Excel"),
        ("t.dta", b"<stata_dta>" + CANARY.encode(), "is not a whole file of Stata"),
        ("t.dta", b"a,b\n1," + CANARY.encode(), "is not a file of Stata, whatever its name"),
        ("t.sav", b"$FL2@(#)" + CANARY.encode(), "is not a whole file of SPSS"),
        ("t.sav", b"a,b\n1," + CANARY.encode(), "is not a file of SPSS, whatever its name"),
        ("t.sav", bytes(8) + b"ENCRYPTEDSAV" + CANARY.encode(), "protected by a password"),
        ("t.csv", OLD, "is an Excel workbook: set format = 'excel' in [source]"),
        ("t.csv", b"PK\x03\x04xl/workbook.xml", "set format = 'excel'"),
        ("t.csv", b"<stata_dta>" + CANARY.encode(), "is a file of Stata: set format = 'stata'"),
        ("t.csv", b"\x72\x02\x01\x00" + CANARY.encode(), "set format = 'stata'"),
        ("t.xlsx", b"$FL3@(#)" + CANARY.encode(), "is a file of SPSS: set format = 'spss'"),
        ("t.txt", b"PAR1" + CANARY.encode(), "is a Parquet file: set format = 'parquet'"),
        ("t.sav", b"ARROW1" + CANARY.encode(), "set format = 'arrow'"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    refused(lambda: read(tmp_path / name), words)


@pytest.mark.parametrize("kind", ["xlsx", "dta", "sav"])
def test_damaged_files(tmp_path: Path, kind: str) -> None:
    """Whatever a reader says of them, one sentence is told, and no cell."""
    whole = four(tmp_path)[kind].read_bytes()
    rng = np.random.default_rng(11)
    n_refused = 0
    for i in range(60):
        data = bytearray(whole[: rng.integers(60, len(whole))] if i % 2 else whole)
        for place in rng.integers(50, len(data), 4):
            data[place] = rng.integers(256)
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(bytes(data))
        try:
            read(path)
        except (DataError, StudyError) as error:
            said = str(error).replace(str(tmp_path), "")
            assert "é" not in said and "99" not in said
            assert error.__context__ is None or error.__suppress_context__
            n_refused += 1
    assert n_refused >= 25


@pytest.mark.parametrize(("kind", "package"), [("xlsx", "openpyxl"), ("sav", "pyreadstat")])
def test_a_reader_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    path = four(tmp_path)[kind]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'consilience\[files\]'"):
        read(path)
    assert read(tmp_path / "t.dta").n_rows == 4  # pandas alone reads these


# ------------------------------------------------------------------------------- Stata and SPSS

LABELS: dict[str, Any] = {"sex": {1: "male", 2: "female"}, "age": {-9: "refused"}}
CODED = {"sex": [1.0, 2.0, 2.0, np.nan], "age": [30.0, -9.0, 41.5, 50.0], "n": [1, 2, 3, 4]}


@pytest.mark.parametrize("kind", ["dta", "sav"])
def test_value_labels(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    if kind == "dta":
        columns = {**CODED, "age": [30, -9, 41, 50]}
        stata(path, columns, value_labels={"sex": LABELS["sex"], "age": LABELS["age"]})
    else:
        spss(path, {**CODED, "age": [30, -9, 41, 50]}, variable_value_labels=LABELS)
    table = read(path)
    assert content(table)["sex"] == ["male", "female", "female", None]
    # Values without a label keep their number.
    assert content(table)["age"] == ["30", "refused", "41", "50"]
    assert table.numbers("age", ("refused",))[0].tolist()[2:] == [41.0, 50.0]
    assert table.labelled == {"sex", "age"}
    assert read(path, labels=("sex",)).numbers("age")[0].tolist() == [30.0, -9.0, 41.0, 50.0]
    assert read(path, labels=("sex",)).labelled == {"sex"}
    assert read(path, labels=False).numbers("sex")[0].tolist()[:3] == [1.0, 2.0, 2.0]
    assert read(path, labels=False).labelled == frozenset()
    refused(lambda: read(path, labels=("sex", "nil")), "name 2 of labels in [source] is no column")
    refused(lambda: read(path, sheet="a"), "has no sheets")


@pytest.mark.parametrize("kind", ["dta", "sav"])
def test_two_values_with_one_label(tmp_path: Path, kind: str) -> None:
    path, columns = tmp_path / f"t.{kind}", {"a": [1, 2], "k": [1, 2]}
    labels: dict[str, Any] = {"k": {1: CANARY, 2: CANARY}, "a": {1: "x", 2: "y"}}
    if kind == "dta":
        stata(path, columns, value_labels=labels)
    else:
        spss(path, columns, variable_value_labels=labels)
    refused(lambda: read(path), "two values of column 'k' in", "have the same label")
    assert content(read(path, labels=("a",)))["k"] == [1, 2]


def test_labels_that_no_value_has(tmp_path: Path) -> None:
    """A column in which only missing values have labels stays one of numbers."""
    spss(
        tmp_path / "t.sav",
        {"age": [30.0, 99.0, -2.0, 41.0], "who": ["a", "zz", "b", "c"]},
        variable_value_labels={"age": {99: "unknown", -2: "refused"}},
        missing_ranges={"age": [99, {"lo": -9, "hi": -1}], "who": ["zz"]},
    )
    table = read(tmp_path / "t.sav")
    assert content(table) == {"age": [30.0, None, None, 41.0], "who": ["a", None, "b", "c"]}
    assert table.labelled == frozenset()


def test_missing_values_of_stata(tmp_path: Path) -> None:
    """``.``, ``.a`` and ``.z``, in whole and in broken numbers, also where they have a label."""
    kept = {"i": np.array([7, 8, 9], "i1"), "f": np.array([0.5, 1.5, 2.5], "f4")}
    path = stata(tmp_path / "t.dta", kept, value_labels={"i": {7: "seven", 102: "gone"}})
    data = path.read_bytes()
    row = np.array(kept["f"]).tobytes()
    assert len(row) == 12
    for place, byte, number in ((1, 102, 0x7F000800), (2, 127, 0x7F00D000)):
        old = bytes([kept["i"][place]]) + kept["f"][place : place + 1].tobytes()
        assert data.count(old) == 1
        data = data.replace(old, bytes([byte]) + number.to_bytes(4, "little"))
    path.write_bytes(data)
    assert content(read(path)) == {"i": ["seven", None, None], "f": [0.5, None, None]}
    assert content(read(path, labels=False))["i"] == [7.0, None, None]


def test_labels_where_a_study_expects_values(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    saved_as(space, ".sav")
    coded = {"x": [float(i % 2) for i in range(40)], "y": [float(i) for i in range(40)]}
    words: dict[str, Any] = {"x": {0: CANARY, 1: "b"}}
    spss(tmp_path / "data" / "lyon.sav", coded, variable_value_labels=words)
    said = call("check", space.file).output
    assert "its value labels are read as texts, so set labels = false in [source]" in said
    assert CANARY not in said
    file = tmp_path / "sites" / "lyon.toml"
    offered = file.read_text()
    file.write_text(offered.replace('"*" = "number"', f'x = ["{CANARY}", "b"]\ny = "number"'))
    space.write(data="levels = { x = [0, 1] }", more='[preparation]\ncategorical = "treatment"')
    said = " ".join(call("check", space.file).output.split())
    assert "so set labels in [source] for values, declare all levels" in said
    assert CANARY not in said
    file.write_text(offered.replace('lyon.sav"', 'lyon.sav"\nlabels = ["y"]'))
    space.write()
    assert call("check", space.file).exit_code == 0


# ------------------------------------------------------------------------------------ first contact


def test_init_from_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    u, kind = rng.normal(size=(2, 60)), rng.integers(2, size=(2, 60))
    rows = [["u", "kind"], *zip(u[0], np.where(kind[0], "yes", "no"), strict=True)]
    workbook(tmp_path / "east.xlsx", [["notes"], [1]], rows, names=("About", "Data"))
    labels: dict[str, Any] = {"kind": {0: "no", 1: "yes"}}
    spss(tmp_path / "west.sav", {"u": u[1], "kind": kind[1]}, variable_value_labels=labels)
    words = ("init", "describe", "east.xlsx", "west.sav")
    assert "set sheet in [source] to one of 'About', 'Data'" in sentence(call(*words))
    made = call(*words, "--sheet", "Data", "--features", "u,kind")
    assert made.exit_code == 0, made.output
    assert "value labels of kind" in " ".join(made.stdout.split())
    assert 'sheet = "Data"' in Path("describe/sites/east.toml").read_text()
    assert Study.load("describe/study.toml").columns.levels == {"kind": ("no", "yes")}
    with without_report():
        ran = call("run", "describe/study.toml", "--quiet")
    assert ran.exit_code == 0, ran.output
    said = sentence(call("init", "describe", "west.sav", "--sheet", "Data", "--folder", "x"))
    assert "no file is an Excel workbook" in said


def test_references_keep_their_hash(tmp_path: Path) -> None:
    """Settings of other kinds of file enter the hash of a study only where they are given."""
    (tmp_path / "rows.csv").write_text("x\n1\n2\n")
    text = (
        'name = "s"\nmethod = "reference-averaging"\n[parameters]\nestimator = "ridge"\n'
        '[data]\nfeatures = ["x"]\ntarget = "z"\n[sites]\nnames = ["a", "b"]\n'
        '[reference]\npath = "rows.csv"\n'
    )
    (tmp_path / "study.toml").write_text(text)
    kept = Study.load(tmp_path / "study.toml").canonical()
    assert '"labels"' not in kept and '"sheet"' not in kept
    (tmp_path / "study.toml").write_text(text + 'labels = ["x"]\nsheet = "a"\n')
    assert '"labels":["x"]' in Study.load(tmp_path / "study.toml").canonical()
