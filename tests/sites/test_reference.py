"""Reference rows: read as the study prepares its columns, and bound to it by their content."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from consilience.exceptions import ConsilienceError, DataError, StudyError
from consilience.sites.prepare import load_with_report
from consilience.sites.source import Source, read_source
from consilience.sites.study import SiteFile, Study, read_reference

STUDY = """
name = "s"
method = "reference-averaging"
[data]
features = ["age", "kind", "cp"]
target = "y"
id = "i"
[data.levels]
kind = ["a", "b", "c"]
y = ["no", "yes"]
[preparation]
missing = "RULE"
categorical = "treatment"
indicators = { cp = [4] }
standardize = "pooled"
[reference]
path = "public.csv"
[sites]
names = ["east", "west"]
"""
TABLE = "kind,other,age,cp\na,?,40,4\nb,,50.5,1\nc,x,-0,4\n"


def study(
    tmp_path: Path, table: str | None = TABLE, *, rule: str = "refuse", more: str = ""
) -> Study:
    if table is not None:
        (tmp_path / "public.csv").write_text(table)
    path = tmp_path / "study.toml"
    path.write_text(STUDY.replace("RULE", rule).replace("[sites]", f"{more}\n[sites]"))
    return Study.load(path)


def test_rows_are_coded_as_those_of_a_site(tmp_path: Path) -> None:
    read = study(tmp_path)
    found = read_reference(read)
    assert found.names == ("age", "kind=b", "kind=c", "cp=4")
    assert found.rows.tolist() == [[40, 0, 0, 1], [50.5, 1, 0, 0], [0, 0, 1, 1]]
    assert found.rows_read == 3
    assert found.content_hash == hashlib.sha256(TABLE.encode()).hexdigest()
    assert found.plain()[1] == (50.5, 1.0, 0.0, 0.0)
    own = TABLE.replace("other", "i").replace("\n", ",no\n").replace("cp,no", "cp,y")
    (tmp_path / "own.csv").write_text(own.replace("?", "1"))
    own = read_source(Source(path=str(tmp_path / "own.csv")))
    site = load_with_report(own, read.columns, read.preparation).data
    assert site.feature_names == found.names
    assert np.array_equal(site.features, found.rows)


def test_missing_cells_by_the_rule_of_the_study(tmp_path: Path) -> None:
    table = TABLE.replace("50.5", "")
    with pytest.raises(DataError, match="reference rows: column 'age' has no value in 1 of 3 rows"):
        read_reference(study(tmp_path, table))
    kept = read_reference(study(tmp_path, table, rule="complete-rows"))
    assert (kept.rows_read, len(kept.rows)) == (3, 2)
    filled = read_reference(study(tmp_path, table, rule="aggregated-mean"))
    assert np.argwhere(np.isnan(filled.rows)).tolist() == [[1, 0]]
    flagged = read_reference(study(tmp_path, table, rule="indicator"))
    assert flagged.names[-1] == "age_missing"
    assert flagged.rows[:, -1].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(DataError, match=r"no row of .* is complete"):
        read_reference(study(tmp_path, "kind,age,cp\na,,4\n", rule="complete-rows"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (None, r"there is no file .*public.csv: check path in \[reference\]"),
        ("", r"is empty: check path in \[reference\]"),
        ("kind,age,cp\n", "has no rows: give at least one"),
        ("kind,age\na,1\n", "'cp' is not in .*: add it under this name"),
        ("kind,age,cp\na,canary,4\n", "holds text in 1 cells .* correct them, or declare levels"),
        ("kind,age,cp\na,inf,4\n", "holds 1 infinite values; row 1: correct them$"),
        ("kind,age,cp\ncanary,1,4\n", "column 'kind' holds values outside the declared levels"),
        ("kind,age,cp\na,1\nb,2,3,4\n", "public.csv"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, table: str | None, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read_reference(study(tmp_path, table))
    said = str(caught.value)
    assert "canary" not in said
    assert "[source]" not in said and "[columns]" not in said and "site" not in said


def test_other_forms_of_file(tmp_path: Path) -> None:
    (tmp_path / "public.csv.gz").write_bytes(gzip.compress(TABLE.replace(",", ";").encode()))
    text = STUDY.replace("RULE", "refuse").replace(
        'path = "public.csv"', 'path = "${PUBLIC}/public.csv.gz"\nseparator = ";"'
    )
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBLIC", str(tmp_path))
        assert len(read_reference(Study.load(path)).rows) == 3
        hashed = Study.load(path).hash()
    assert len(hashed) == 64
    with pytest.raises(ConsilienceError, match=r"the study file uses \$\{PUBLIC\}"):
        read_reference(Study.load(path))
    with pytest.raises(StudyError, match=r"the study file uses \$\{PUBLIC\}"):
        Study.load(path).hash()


def test_a_study_without_reference_rows(tmp_path: Path) -> None:
    read = study(tmp_path)
    without = read.model_copy(update={"reference": None})
    with pytest.raises(StudyError, match="has no reference rows"):
        read_reference(without)
    with pytest.raises(StudyError, match="has no reference rows"):
        without.reference_hash()
    empty = read.model_copy(update={"data": read.data.model_copy(update={"features": ()})})
    with pytest.raises(StudyError, match="rows of the features"):
        read_reference(empty)


# --- the hash ---------------------------------------------------------------------------------


def test_the_content_counts_and_not_where_it_is(tmp_path: Path) -> None:
    first = study(tmp_path).hash()
    (tmp_path / "data").mkdir()
    (tmp_path / "public.csv").rename(tmp_path / "data" / "public.csv")
    path = tmp_path / "study.toml"
    path.write_text(path.read_text().replace('"public.csv"', '"data/public.csv"'))
    assert Study.load(path).hash() == first
    (tmp_path / "data" / "public.csv").write_text(TABLE + "\n")
    assert Study.load(path).hash() != first


def test_a_hash_in_the_study_stands_for_the_file(tmp_path: Path) -> None:
    """Who approves a study need not have the file, and cannot be given another one."""
    free = study(tmp_path).hash()
    sha256 = hashlib.sha256(TABLE.encode()).hexdigest()
    (tmp_path / "public.csv").unlink()
    named = study(tmp_path, None, more=f'sha256 = "{sha256}"')
    assert named.hash() == free
    with pytest.raises(StudyError, match="its content is part of the study: put it there, or"):
        study(tmp_path, None).hash()
    changed = study(tmp_path, TABLE + "a,,1,4\n", more=f'sha256 = "{sha256}"')
    assert changed.hash() == free
    with pytest.raises(StudyError, match="is not the reference file of this study, whose SHA-256"):
        read_reference(changed)


def test_a_file_that_changes_after_the_study_was_hashed_is_noticed(tmp_path: Path) -> None:
    read = study(tmp_path)
    before = read.hash()
    (tmp_path / "public.csv").write_text(TABLE.replace("40", "41"))
    assert read.hash() == before
    with pytest.raises(StudyError, match="is not the reference file of this study"):
        read_reference(read)


def test_the_canonical_text_needs_no_file(tmp_path: Path) -> None:
    """What sites are sent: they open nothing that a study names."""
    text = study(tmp_path).canonical()
    (tmp_path / "public.csv").unlink()
    again = Study.from_canonical(text)
    assert again.canonical() == text
    assert again.reference is not None
    assert again.reference.path == "public.csv"
    content = json.loads(text)
    del content["reference"]["sha256"]
    with pytest.raises(StudyError, match="canonical form"):
        Study.from_canonical(json.dumps(content))


def test_a_site_that_is_told_a_study_opens_no_file_for_it(tmp_path: Path) -> None:
    from consilience.engines.flower import join
    from consilience.engines.study_run import method_of

    text = study(tmp_path).canonical()
    (tmp_path / "public.csv").unlink()
    (tmp_path / "east.csv").write_text("i,y,age,kind,cp\n" + "1,no,40,a,4\n2,yes,41,b,1\n" * 20)
    (tmp_path / "east.toml").write_text(
        'name = "east"\nhome = "home"\n[source]\npath = "east.csv"\n'
        '[columns.offered]\n"*" = "number"\ni = "id"\ny = ["no", "yes"]\n'
        'kind = ["a", "b"]\ncp = [1, 4]\n'
    )
    told = text.replace('"parameters":{}', '"parameters":{"estimator":"logistic"}')
    assert told != text
    answer = join.check_here(SiteFile.load(tmp_path / "east.toml"), told)
    assert answer["able"], answer
    read = Study.from_canonical(told)
    assert method_of(read, rows=False).parameters()["reference"] == "moments"
    with pytest.raises(DataError, match="there is no file"):
        method_of(read)
