"""``consilience init``: from tables to a report in three commands."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from consilience.cli.init import _at_terminal
from consilience.cli.main import app
from consilience.engines.study_init import NEEDS
from consilience.protocol import BUILT_IN
from consilience.sites.own_columns import toml_key, toml_value
from consilience.sites.study import SiteFile, Study
from tests.cli.workspace import call, sentence, without_report

ROWS = 120


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """East's table as a spreadsheet with decimal commas saves it; west's with NA for nothing."""
    rng = np.random.default_rng(3)
    for site in ("east", "west"):
        kind = rng.integers(2, size=ROWS)
        u, v, w = rng.normal(size=(3, ROWS)) + 4.0 * kind
        response = 1.0 + 2.0 * u - v + rng.normal(size=ROWS)
        lines = ["id,größe,v,w,y,ill,ward,kind"]
        for i in range(ROWS):
            numbers = ",".join(f"{x:.4f}" for x in (u[i], v[i], w[i], response[i]))
            ill, ward = int(response[i] > 6), ("a", "b", "c")[i % 3]
            lines.append(f"{i:03d},{numbers},{ill},{ward},{'yes' if kind[i] else 'no'}")
        text = "\n".join(lines) + "\n"
        if site == "east":
            text = text.replace(",", ";").replace(".", ",")
            (tmp_path / "east.csv").write_bytes(text.encode("cp1252"))
        else:
            for i in range(12):  # more than the ten rows of the policy
                text = text.replace(f"\n{i:03d},", f"\n{i:03d},NA,", 1)
                line = next(x for x in text.splitlines() if x.startswith(f"{i:03d},NA,"))
                cells = line.split(",")
                text = text.replace(line, ",".join([*cells[:2], *cells[3:]]))
            (tmp_path / "west.csv").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


STUDIES = {
    "mean-and-sd": (),
    "contingency-table": ("--features", "kind,ward"),
    "pooled-regression": ("--target", "y"),
    "federated-pca": (),
    "ensemble-clustering": ("--features", "v,w", "--set", "n_clusters=2", "--consent"),
    "federated-sparse-qda": ("--target", "kind", "--features", "v,w", "--consent"),
    "reference-averaging": ("--target", "y", "--consent"),
    "assistance-test": ("--target", "y", "--id", "id", "--initiator", "east"),
}


@pytest.mark.parametrize("method", STUDIES)
def test_three_commands(tables: Path, method: str) -> None:
    made = call("init", method, "east.csv", "west.csv", *STUDIES[method])
    assert made.exit_code == 0, made.output
    check, run = (line.split() for line in made.stdout.splitlines()[-2:])
    assert check == ["consilience", "check", f"{method}/study.toml"]
    assert run == ["consilience", "run", f"{method}/study.toml"]
    assert call(*check[1:]).stdout.endswith("The study can run.\n")
    with without_report():
        ended = call(*run[1:], "--json", "--quiet")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["sites"] == ["east", "west"]


def test_what_is_written(tables: Path) -> None:
    words = ("east.csv", "w=west.csv", "--target", "ill", "--consent")
    said = " ".join(call("init", "pooled-regression", *words).stdout.split())
    study = Study.load("pooled-regression/study.toml")
    assert study.data.features == ("größe", "v", "w", "y")  # no id, no text
    assert study.parameters == {"family": "binomial", "fit": "one-shot"}
    assert "Not used unless named by --features: id (whole numbers of its own" in said
    assert "; ward (not only numbers at east); kind (not only numbers at east)." in said
    assert study.preparation.missing == "complete-rows"
    east, west = (SiteFile.load(f"pooled-regression/sites/{s}.toml") for s in ("east", "w"))
    assert (east.source.separator, east.source.decimal) == (";", ",")
    assert east.source.encoding == "cp1252"
    assert dict(west.columns.missing_codes) == {"*": ("NA",)}
    offered = dict(east.columns.offered or {})
    assert offered["ward"] == ("a", "b", "c")
    assert offered["größe"] == "number"
    assert "id" not in offered
    assert "east: east.csv, 120 of 120 rows kept; encoding 'cp1252', separator ';'" in said
    assert "108 of 120 rows kept; missing 'NA'." in said


def test_a_text_among_features_is_a_category(tables: Path) -> None:
    call("init", "pooled-regression", "east.csv", "west.csv", "--target=y", "--features=v,ward")
    study = Study.load("pooled-regression/study.toml")
    assert dict(study.data.levels) == {"ward": ("a", "b", "c")}
    assert study.preparation.categorical == "treatment"
    assert call("check", "pooled-regression/study.toml").exit_code == 0


def test_whole_numbers_that_few_rows_share_are_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{20 + i % 25},{i * 0.5}\n" for i in range(60))
    (tmp_path / "a.csv").write_text(f"age,x\n{rows}", encoding="utf-8")
    made = call("init", "mean-and-sd", tmp_path / "a.csv", "--folder", tmp_path / "s")
    assert made.exit_code == 0, made.output
    site = tomllib.loads((tmp_path / "s" / "sites" / "a.toml").read_text(encoding="utf-8"))
    assert site["columns"]["offered"] == {"x": "number", "age": "number"}
    assert call("check", tmp_path / "s" / "study.toml").exit_code == 0


def columns_of(folder: Path, name: str, **columns: list[object]) -> Path:
    """A table with semicolons."""
    rows = ["; ".join(columns), *("; ".join(map(str, row)) for row in zip(*columns.values()))]
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / name


def test_a_response_of_two_values_is_run_under_strict(tables: Path) -> None:
    words = ("pooled-regression", "east.csv", "west.csv", "--target=ill", "--features=v,w")
    assert "(foreign_models = true): give --consent" in sentence(call("init", *words))
    assert call("init", *words, "--consent").exit_code == 0
    with without_report():
        ended = call("run", "pooled-regression/study.toml", "--json", "--quiet")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["sites"] == ["east", "west"]
    words = (*words, "--policy=consortium", "--folder=rounds")
    assert call("init", *words).exit_code == 0
    assert Study.load("rounds/study.toml").parameters == {"family": "binomial"}


@pytest.mark.parametrize(
    "more",
    [
        ("--target=v", "--features=w", "--set", "errors=HC1"),
        ("--target=v", "--features=w", "--set", "family=negative-binomial", "--consent"),
        ("--target=ill", "--features=v", "--weight=w", "--consent"),
    ],
)
def test_no_study_is_written_that_strict_sites_refuse(tables: Path, more: tuple[str, ...]) -> None:
    said = sentence(call("init", "pooled-regression", "east.csv", "west.csv", *more))
    assert "tell no sums at coefficients" in said and "--policy consortium" in said
    assert not (tables / "pooled-regression").exists()


def test_a_decimal_comma_that_comes_late_is_seen(tmp_path: Path) -> None:
    dose: list[object] = [*range(1, 31), *(f"{i},5" for i in range(30))]
    table = columns_of(tmp_path, "u.csv", age=[40 + i % 7 for i in range(60)], dose=dose)
    made = call("init", "mean-and-sd", table, "--folder", tmp_path / "s")
    assert made.exit_code == 0, made.output
    assert Study.load(tmp_path / "s" / "study.toml").data.features == ("age", "dose")


def test_two_decimal_marks_stop(tmp_path: Path) -> None:
    sums, kg = ["5.859", *["4.764"] * 59], [f"{i},5" for i in range(60)]
    table = columns_of(tmp_path, "p.csv", kg=list(kg), sum=list(sums))
    said = sentence(call("init", "mean-and-sd", table, "--folder", tmp_path / "s"))
    assert "numbers have a comma in column 1 and a point in column 2, so the decimal mark" in said
    assert not (tmp_path / "s").exists()


def test_an_id_with_one_repeated_value_is_no_feature(tmp_path: Path) -> None:
    ids: list[object] = [*range(1000, 1059), 1000]
    table = columns_of(tmp_path, "a.csv", patient=ids, x=[i + 0.5 for i in range(60)])
    other = columns_of(tmp_path, "b.csv", patient=[7] * 60, x=[i + 0.5 for i in range(60)])
    made = call("init", "mean-and-sd", table, other, "--folder", tmp_path / "s")
    assert Study.load(tmp_path / "s" / "study.toml").data.features == ("x",)
    said = " ".join(made.stdout.split())
    assert "patient (whole numbers of its own in nearly each row at a, as ids have)" in said


def test_no_row_goes_for_a_column_that_is_not_used(tmp_path: Path) -> None:
    ward = ["a"] * 57 + ["b"] * 3
    table = columns_of(tmp_path, "a.csv", x=[i + 0.5 for i in range(60)], ward=[*ward])
    made = call("init", "mean-and-sd", table, "--folder", tmp_path / "s")
    assert "60 of 60 rows kept" in " ".join(made.stdout.split())
    site = SiteFile.load(tmp_path / "s" / "sites" / "a.toml")
    assert dict(site.columns.offered or {}) == {"x": "number"}


def test_words_for_missing_values_among_numbers(tmp_path: Path) -> None:
    """Those in use are known; how to name another one is said."""
    known, other = ([*[20.5 + i for i in range(60)], *[word] * 12] for word in ("k.A.", "lost"))
    table = columns_of(tmp_path, "a.csv", x=[i / 4 for i in range(72)], known=known, other=other)
    words = ("mean-and-sd", table, "--folder", tmp_path / "s")
    said = " ".join(call("init", *words).stdout.split())
    assert "60 of 72 rows kept; separator ';', missing 'k.A.'. " in said
    assert "other (numbers and other words at a: where one stands for a missing value, " in said
    assert "--recode a:other:WORD=NA)" in said
    more = ("--recode", "a:other:lost=NA")
    said = call("init", "mean-and-sd", table, "--folder", tmp_path / "t", *more).stdout
    assert "Features: x, known, other." in said


def test_a_missing_category_is_no_level(tmp_path: Path) -> None:
    smoking = ["never", "former", "NA", "unknown"] * 20
    rows = "".join(f"{word},{i / 7:.2f}\n" for i, word in enumerate(smoking))
    (tmp_path / "a.csv").write_text(f"smoking,x\n{rows}", encoding="utf-8")
    made = call("init", "describe", tmp_path / "a.csv", "--folder", tmp_path / "s")
    assert made.exit_code == 0, made.output
    said = " ".join(made.stdout.split())
    assert "60 of 80 rows kept; missing 'NA'." in said
    assert "a: 20 of the dropped rows have no value in smoking, or none that is on offer." in said
    # What a word such as this one means, a person has to say.
    assert "Levels of smoking: former, never, unknown." in said


def test_sodium_is_a_level(tmp_path: Path) -> None:
    rows = "".join(f"{ion},{i / 7:.2f}\n" for i, ion in enumerate(["K", "Na", "Ca", "Null"] * 20))
    (tmp_path / "a.csv").write_text(f"ion,x\n{rows}", encoding="utf-8")
    made = call("init", "describe", tmp_path / "a.csv", "--folder", tmp_path / "s")
    said = " ".join(made.stdout.split())
    assert "80 of 80 rows kept" in said and "Levels of ion: Ca, K, Na, Null." in said


def test_the_same_rows_of_other_people_are_no_copy(tables: Path) -> None:
    west = pd.read_csv(tables / "west.csv")
    n = np.arange(len(west))
    for name, entity in {"one": n // 2, "other": n // 3}.items():
        west.assign(ward=[f"w{i}" for i in entity]).to_csv(tables / f"{name}.csv", index=False)
    given = ("--entity", "ward", "--target", "y", "--consent")
    made = call("init", "latent-class-regression", "one.csv", "other.csv", *given, "--folder", "s")
    assert made.exit_code == 0, made.output
    assert "the same rows" not in made.stdout


def test_two_sites_with_one_table(tables: Path) -> None:
    (tables / "copy.csv").write_bytes((tables / "east.csv").read_bytes())
    made = call("init", "mean-and-sd", "east.csv", "copy.csv", "west.csv", "--folder", "s")
    said = "east and copy have the same rows in all columns of the study: each of them counts twice"
    assert said in " ".join(made.stdout.split())
    assert said in " ".join(call("check", "s/study.toml").stdout.split())
    call("init", "mean-and-sd", "east.csv", "west.csv", "--folder", "t")
    assert "the same rows" not in call("check", "t/study.toml").stdout


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("", "in b no row has a value"),
        ("{}%", "in b 60 of 60 rows have text in place of a number, and as a category it has"),
        ("{}", "in b 1 of 60 rows has text in place of a number"),
    ],
)
def test_a_feature_that_holds_no_numbers(tmp_path: Path, cell: str, said: str) -> None:
    for site in ("a", "b"):
        cells = [str(i / 2) if site == "a" else cell.format(i / 2) for i in range(60)]
        cells[3] = cell.replace("{}", "<1") if site == "b" else cells[3]
        rows = "".join(f"{i * i / 3:.2f},{x}\n" for i, x in enumerate(cells))
        (tmp_path / f"{site}.csv").write_text(f"x,crp\n{rows}", encoding="utf-8")
    words = (tmp_path / "a.csv", tmp_path / "b.csv", "--folder", tmp_path / "s")
    result = call("init", "mean-and-sd", *words, "--features=x,crp")
    assert f"column 'crp': {said}" in sentence(result)


def test_a_site_too_small_for_a_category(tmp_path: Path) -> None:
    for site, n in (("a", 60), ("b", 15)):
        rows = "".join(f"{'xyz'[i % 3]},{i / 7:.2f}\n" for i in range(n))
        (tmp_path / f"{site}.csv").write_text(f"ward,x\n{rows}", encoding="utf-8")
    words = (tmp_path / "a.csv", tmp_path / "b.csv", "--folder", tmp_path / "s")
    said = sentence(call("init", "describe", *words))
    assert "column 'ward' has no value that 10 rows of b have: leave the column out by" in said
    assert call("init", "describe", *words, "--features=x").exit_code == 0


def test_codes_for_missing_values_are_found_and_said(tmp_path: Path) -> None:
    """One 999 in a column of the body mass index spoils its mean and its slope."""
    bmi = [*[20.5 + i % 17 for i in range(60)], *[999] * 12, *["NA"] * 10]
    few = [*[i / 4 for i in range(60)], *[""] * 3, *[1.5] * 19]
    table = columns_of(tmp_path, "a.csv", bmi=bmi, few=few)
    words = ("--features", "bmi", "--folder", tmp_path / "s")
    said = " ".join(call("init", "mean-and-sd", table, *words).stdout.split())
    assert "60 of 82 rows kept" in said
    assert "a: in bmi, 999 is far beyond all other numbers and counts as missing; if" in said
    site = SiteFile.load(tmp_path / "s" / "sites" / "a.toml")
    assert dict(site.columns.missing_codes) == {"*": ("NA",), "bmi": ("999",)}
    assert dict(site.columns.offered or {}) == {"bmi": "number"}, "three rows would go for 'few'"
    text = (tmp_path / "s" / "sites" / "a.toml").read_text(encoding="utf-8")
    assert "# few: not used, and the 3 rows without a value would go" in text
    (tmp_path / "s" / "sites" / "a.toml").write_text(text + 'few = "number"\n', encoding="utf-8")
    checked = " ".join(call("check", tmp_path / "s" / "study.toml").stdout.split())
    assert "3 rows without a value in few are left out, though the study does not use it" in checked


def test_tables_with_other_names_and_spellings(tables: Path) -> None:
    """The fit is that of tables that agree, and site files say what is what."""
    text = (tables / "west.csv").read_text(encoding="utf-8")
    text = text.replace("id,größe,v,w,y", "id,size,v,w,response").replace(",yes\n", ",ja\n")
    (tables / "other.csv").write_text(text.replace(",no\n", ",nein\n"), encoding="utf-8")
    words = ("pooled-regression", "east.csv", "--features=größe,kind", "--target=y")
    say = ("--rename", "other:größe=size,y=response", "--recode", "other:kind:ja=yes,nein=no")
    results = []
    for more in (("west.csv",), ("other.csv", *say)):
        made = call("init", *words, *more, "--folder", more[0][:-4])
        assert made.exit_code == 0, made.output
        with without_report():
            done = call("run", f"{more[0][:-4]}/study.toml", "--json", "--quiet")
        results.append(json.loads(done.stdout)["tables"]["coefficients"])
    assert results[0] == results[1]
    site = SiteFile.load("other/sites/other.toml")
    assert dict(site.columns.rename) == {"größe": "size", "y": "response"}
    assert dict(site.columns.recode) == {"kind": {"ja": "yes", "nein": "no"}}


def test_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    table = columns_of(tmp_path, "a.csv", x=[i + 0.5 for i in range(60)])
    made = call("init", "mean-and-sd", table, "--folder", tmp_path / "link" / "s")
    assert made.exit_code == 0, made.output
    assert call("check", tmp_path / "link" / "s" / "study.toml").exit_code == 0


def test_states_by_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for site in ("a", "b"):
        cells = np.array(["diet", "pause"])[rng.integers(2, size=(60, 3))]
        text = "\n".join(["m1,m2,m3", *map(",".join, cells)])
        (tmp_path / f"{site}.csv").write_text(text + "\n", encoding="utf-8")
    words = ["--sequence", "m1,m2,m3", "--consent", "--folder", tmp_path / "s"]
    made = call("init", "ensemble-clustering", tmp_path / "a.csv", tmp_path / "b.csv", *words)
    assert made.exit_code == 0, made.output
    study = Study.load(tmp_path / "s" / "study.toml")
    assert study.parameters == {"model": "markov-mixture"}
    assert study.columns.levels == {"m1": ("diet", "pause")}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mean-and-sd",), "name one file for each site"),
        (("mean-and-sd", "none.csv"), "site none: there is no file"),
        (("mean-and-sd", "east.csv", "east.csv"), "two files are called 'east'"),
        (("mean-and-sd", "all=east.csv"), "site name 'all' is reserved"),
        (("mean-and-sd", "east.csv", "--features", "age"), "column 'age' is not in east.csv"),
        (("mean-and-sd", "east.csv", "--set", "x"), "give a name and a value"),
        (("mean-and-sd", "east.csv", "--set", "x=1"), "has no parameter 'x'"),
        (("pooled-regression", "east.csv"), "give --target COLUMN, one of größe, v"),
        (("latent-class-regression", "east.csv", "--target=y"), "give --entity COLUMN"),
        (("federated-sparse-qda", "east.csv", "--target=kind"), "foreign_models = true): give --"),
        (("federated-sparse-qda", "east.csv", "--target=y", "--consent"), "cannot be a category"),
        (("cluster-count", "east.csv", "west.csv"), "takes the table of one site"),
        (("contingency-table", "east.csv"), "--features A,B of ill, ward, kind"),
        (("assistance-test", "east.csv", "--id=id", "--target=y"), "needs two parties"),
        (
            ("assistance-test", "east.csv", "west.csv", "--id=id", "--target=y"),
            "the response 'y' is in east, west: give --initiator",
        ),
        (("nothing", "east.csv"), "nothing"),
        (
            ("mean-and-sd", "north.csv", "--rename", "north:age=Alder"),
            "site north: 'Alder', which is to be 'age', is no column: it has Alter, kind",
        ),
        (("mean-and-sd", "north.csv", "--rename", "north:kind=Alter"), "would be called 'kind'"),
        (("mean-and-sd", "north.csv", "--rename", "age=Alter"), "write SITE:NAME=COLUMN,..., with"),
        (("mean-and-sd", "north.csv", "--recode", "north:kind"), "SITE:COLUMN:OLD=NEW,..., with a"),
        (("mean-and-sd", "north.csv", "--recode", "north:sex:0=a"), "site north: [columns] recode"),
        (
            ("pooled-regression", "east.csv", "north.csv", "--target=y"),
            "column 'y' is not in north.csv, the table of north, which has Alter, kind: give the "
            "tables the same names, or say which column is which, by --rename SITE:NAME=COLUMN,...",
        ),
        (
            ("pooled-regression", "north.csv", "south.csv"),
            "the tables have no column in common: north.csv has Alter, kind; south.csv has age:",
        ),
        (
            ("pooled-regression", "east.csv", "north.csv", "--features=kind", "--target=kind"),
            "the tables write column 'kind' differently: east has no, yes, and north has 0, 1: "
            "write them alike, say what is what by --recode SITE:COLUMN:OLD=NEW,..., or leave the",
        ),
    ],
)
def test_what_is_missing_is_one_sentence(tables: Path, words: tuple[str, ...], said: str) -> None:
    rows = "".join(f"{30 + i},{i % 2}\n" for i in range(60))
    (tables / "north.csv").write_text(f"Alter,kind\n{rows}", encoding="utf-8")
    (tables / "south.csv").write_text("age\n" + "50.5\n" * 60, encoding="utf-8")
    before = sorted(tables.rglob("*"))
    result = call("init", *words)
    assert result.exit_code in (2, 3)
    assert said in sentence(result)
    assert sorted(tables.rglob("*")) == before


def test_a_study_that_cannot_run_is_not_written(tables: Path) -> None:
    (tables / "few.csv").write_text("v\n" + "1.5\n" * 3, encoding="utf-8")
    (tables / "ids.csv").write_text("id,y,z\n1,2.5,1\n2,3.5,2\n", encoding="utf-8")
    words = ("--id=id", "--target=y", "--initiator=east")
    result = call("init", "assistance-test", "east.csv", "ids.csv", *words)
    assert "rows are common to all sites" in sentence(result)
    assert not list(tables.glob("*/**/*.toml"))
    assert not list(tables.glob("*/keys/*"))


def test_nothing_is_replaced(tables: Path) -> None:
    assert call("init", "mean-and-sd", "east.csv", "west.csv").exit_code == 0
    before = {p: p.read_bytes() for p in tables.rglob("*.toml")}
    result = call("init", "mean-and-sd", "east.csv")
    assert result.exit_code == 7
    assert "study.toml is already there and is not replaced" in sentence(result)
    assert {p: p.read_bytes() for p in tables.rglob("*.toml")} == before


@pytest.fixture
def at_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("consilience.cli.init._at_terminal", lambda: True)
    yield


def test_questions_need_somebody_who_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert not _at_terminal()


def test_questions_at_a_terminal(tables: Path, at_terminal: None) -> None:
    answers = "east.csv west.csv\nkind\nv,w\ny\n"
    made = CliRunner().invoke(app, ["init", "federated-sparse-qda"], input=answers)
    assert made.exit_code == 0, made.output
    assert "east: 120 rows; id, größe, v, w, y, ill, ward, kind" in made.stderr
    assert "foreign_models = true" in made.stderr
    study = Study.load("federated-sparse-qda/study.toml")
    assert (study.data.target, study.data.features) == ("kind", ("v", "w"))


def test_who_does_not_consent_writes_nothing(tables: Path, at_terminal: None) -> None:
    answers = "east.csv\nkind\n\nn\n"
    result = CliRunner().invoke(app, ["init", "federated-sparse-qda"], input=answers)
    assert result.exit_code == 2
    assert not (tables / "federated-sparse-qda").exists()


def test_every_method_has_its_needs() -> None:
    assert set(NEEDS) == set(BUILT_IN)


@pytest.mark.parametrize("text", ["plain", "a b", 'x"y', "\n\t\\", "é😀", "\x7f", "", "\u2028"])
def test_texts_as_toml(text: str) -> None:
    value = {text: [text, 1, 2.5, True]}
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value
    assert tomllib.loads(f"{toml_key(text)} = 1") == {text: 1}


def test_what_cannot_run_leaves_nothing(tables: Path) -> None:
    before = sorted(tables.rglob("*"))
    words = ("--target", "y", "--id", "ward", "--initiator", "east")  # an id of three values
    made = call("init", "assistance-test", "east.csv", "west.csv", *words)
    assert made.exit_code != 0
    assert sentence(made)
    assert sorted(tables.rglob("*")) == before


def test_descriptions_have_numbers_and_categories(tables: Path) -> None:
    made = call("init", "describe", "east.csv", "west.csv")
    assert made.exit_code == 0, made.output
    study = Study.load("describe/study.toml")
    assert study.data.features == ("größe", "v", "w", "y", "ill", "ward", "kind")
    assert study.columns.levels == {"ward": ("a", "b", "c"), "kind": ("no", "yes")}
    rules = study.preparation
    assert (rules.categorical, rules.missing) == ("onehot", "complete-rows")
    named = ("--features", "größe,kind", "--folder", "d", "--policy", "consortium")
    assert call("init", "describe", "east.csv", "west.csv", *named).exit_code == 0
    other = Study.load("d/study.toml")
    assert other.columns.levels == {"kind": ("no", "yes")}
    assert other.preparation.missing == "keep"  # a description counts them
    with without_report():
        ran = call("run", "describe/study.toml", "--quiet")
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    ("fit", "setting"), [("one-shot", "foreign_models"), ("exact", "per_record")]
)
def test_a_check_says_what_a_policy_does_not_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: str, setting: str
) -> None:
    """Before the run, by the setting that its steward may write; with it the study can run."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        rows = {"age": rng.normal(50, 10, size=200).round(1), "died": rng.integers(0, 2, size=200)}
        pd.DataFrame(rows).to_csv(f"{name}.csv", index=False)
    words = ["--target", "died", "--features", "age", "--set", f"fit={fit}"]
    words += ["--set", "family=binomial", "--policy", "consortium", "--folder", "s"]
    done = CliRunner().invoke(app, ["init", "pooled-regression", "a.csv", "b.csv", *words])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["check", "s/study.toml"]).exit_code == 0
    for file in Path("s/sites").iterdir():
        file.write_text(file.read_text().replace('"consortium"', '"strict"'))
    said = CliRunner().invoke(app, ["check", "s/study.toml"])
    assert said.exit_code != 0 and f"grants it by {setting} = true" in " ".join(said.stderr.split())
    for file in Path("s/sites").iterdir():
        strict = 'preset = "strict"\n'
        file.write_text(file.read_text().replace(strict, f"{strict}{setting} = true\n"))
    assert CliRunner().invoke(app, ["check", "s/study.toml"]).exit_code == 0
