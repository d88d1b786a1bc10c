from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.exceptions import StudyError
from consilience.protocol.method import Columns, Preparation
from consilience.sites.policy import Policy
from consilience.sites.prepare import load_with_report
from consilience.sites.source import Source, read_source
from consilience.sites.study import Reference, SiteFile, Study, check_name

KEY = "ed25519:" + "A" * 43 + "="
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "heart"

STUDY = """
name = "s"  # a comment
method = "ensemble-clustering"
seed = 3
[parameters]
n_clusters = 3
[data]
features = ["a", "c"]
target = "y"
[data.levels]
c = [1, 2]
[preparation]
missing = "complete-rows"
indicators = { c = [2] }
[sites]
names = ["east", "west"]
"""
SITE = """
name = "east"
home = "homes/east"
[source]
path = "t.csv"
[columns]
rename = { a = "A" }
units = { a = { scale = 2 } }
missing_codes = { "*" = "?", a = [0, "-"] }
[policy]
preset = "strict"
data_id = "d"
"""


def study(folder: Path, text: str = STUDY) -> Study:
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return Study.load(path)


def site(folder: Path, text: str = SITE) -> SiteFile:
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return SiteFile.load(path)


def test_study(tmp_path: Path) -> None:
    got = study(tmp_path)
    assert got.columns == Columns(features=("a", "c"), target="y", levels={"c": ("1", "2")})
    assert got.preparation == Preparation(missing="complete-rows", indicators={"c": (2,)})
    assert got.parameters == {"n_clusters": 3}
    assert got.seed == 3
    assert got.quorum == 2
    assert got.sites.deadline == 3600
    assert got.coordinator_at == "third-party"
    assert got.base == tmp_path.resolve()


COLUMNS_STUDY = """
name = "s"
method = "assistance-test"
partition = "columns"
[data]
id = "i"
[sites]
names = ["east", "west"]
roles = { west = "initiator" }
"""


def test_coordinator_is_the_initiator_over_columns(tmp_path: Path) -> None:
    got = study(tmp_path, COLUMNS_STUDY)
    assert got.coordinator_at == "site:west"
    assert got.roles == {"east": "partner", "west": "initiator"}
    text = COLUMNS_STUDY + '[coordinator]\nat = "site:east"\n'
    assert study(tmp_path, text).coordinator_at == "site:east"
    text = COLUMNS_STUDY + '[coordinator]\nat = "third-party"\n'
    assert study(tmp_path, text).coordinator_at == "third-party"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('id = "i"', "", "set id in"),
        ('id = "i"', 'id = "i"\nfeatures = ["a"]', "names the id only"),
        ('id = "i"', 'id = "i"\ntarget = "y"', "names the id only"),
        ('"west"]', "]", "names 'west', which is not among names"),
        ('["east", "west"]', '["west"]', "at least two sites"),
        ('"initiator"', '"partner"', "has one initiator"),
        ("}", ', east = "initiator" }', "has one initiator"),
        ("}", ', east = "helper" }', "are 'initiator' and 'partner'"),
    ],
)
def test_a_wrong_study_over_columns(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in COLUMNS_STUDY
    with pytest.raises(StudyError, match=says):
        study(tmp_path, COLUMNS_STUDY.replace(old, new, 1))


def test_hash_is_that_of_the_content(tmp_path: Path) -> None:
    reference = study(tmp_path).hash()
    same = STUDY.replace("  # a comment", "").replace('["a", "c"]', '[\n  "a",\n  "c",\n]')
    same = "seed = 3\n" + same.replace("seed = 3\n", "") + "deadline = 3600\nroles = {}\n"
    assert study(tmp_path, same).hash() == reference
    assert len(reference) == 64
    for old, new in (
        ("n_clusters = 3", "n_clusters = 4"),
        ("seed = 3", "seed = 4"),
        ('"complete-rows"', '"refuse"'),
        ('"west"]', '"west"]\nquorum = 1'),
        ("[1, 2]", "[1, 2, 3]"),
    ):
        assert old in STUDY
        assert study(tmp_path, STUDY.replace(old, new)).hash() != reference


def test_studies_without_reference_rows_keep_the_hash_that_they_had(tmp_path: Path) -> None:
    """Approvals of an earlier release stand."""
    read = study(tmp_path)
    assert read.reference is None
    assert read.hash() == "d4fb10031a7b8cd4b3bb1d9e1e2d064ee0486d5d179c20b7a9317b62d26f4874"


def test_a_study_with_reference_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,c\n1,2\n")
    read = study(tmp_path, STUDY + '[reference]\npath = "rows.csv"\nseparator = ","\n')
    assert read.reference == Reference(path="rows.csv", separator=",")
    assert read.hash() != study(tmp_path).hash()
    assert Study.from_canonical(read.canonical()).hash() == read.hash()
    # How it is read counts as well.
    semicolons = study(tmp_path, STUDY + '[reference]\npath = "rows.csv"\nseparator = ";"\n')
    assert semicolons.hash() != read.hash()


BAD_STUDIES: list[tuple[str, str, str]] = [
    ('name = "s"', "", "key 'name' is missing"),
    ('name = "s"', 'nam = "s"', "'nam' is not known: did you mean 'name'"),
    ("seed = 3", "seed = 3\nsede = 3", "did you mean 'seed'"),
    ("seed = 3", "seed = -1", "'seed'"),
    ("seed = 3", "seed = 1.5", "'seed': input should be a whole number"),
    ("seed = 3", 'seed = "3"', "'seed'"),
    ("seed = 3", "seed = true", "'seed'"),
    ("seed = 3", "seed = ", "not valid TOML"),
    ("seed = 3", 'partition = "cells"', "'partition'"),
    ("seed = 3", 'partition = "columns"', "set id in"),
    ("n_clusters = 3", "n_clusters = 2020-01-01", "date is not allowed"),
    ("target =", "targte =", "'targte' is not known in [data]: did you mean 'target'"),
    ('["a", "c"]', '"a"', "'data.features': input should be a list"),
    ('["a", "c"]', '["a", "c", "a"]', "twice"),
    ('["a", "c"]', '["a", ""]', "'data.features'"),
    ("c = [1, 2]", "d = [1, 2]", "has no role"),
    ("c = [1, 2]", "c = [[1], 2]", "'data.levels.c'"),
    ("c = [1, 2]", "c = [1]", "two different values"),
    ("missing =", "mising =", "in [preparation]: did you mean 'missing'"),
    ('"complete-rows"', '"complete"', "'preparation.missing'"),
    ("indicators = { c = [2] }", "", "does not say how to code"),
    ("names =", "name =", "did you mean 'names'"),
    ('["east", "west"]', "[]", "at least 1"),
    ('["east", "west"]', '["east", "East"]', "twice"),
    ('["east", "west"]', '["east", "../west"]', "is not allowed"),
    ('["east", "west"]', '["east", "*"]', "is not allowed"),
    ('["east", "west"]', '["east", "coordinator"]', "is reserved"),
    ('"west"]', '"west"]\nquorum = 3', "quorum is 3"),
    ('"west"]', '"west"]\nquorum = 0', "'sites.quorum'"),
    ('"west"]', '"west"]\ndeadline = 0', "'sites.deadline'"),
    ('"west"]', '"west"]\nroles = { wets = "helper" }', "did you mean 'west'"),
    ('"west"]', '"west"]\nkeys = { west = "abc" }', "is not a public key"),
    ('"west"]', f'"west"]\nkeys = {{ north = "{KEY}" }}', "not among names"),
    ('"west"]', '"west"]\n[coordinator]\nat = "site:north"', "'site:north'"),
    ('"west"]', '"west"]\n[coordinator]\nat = "west"', "'west'"),
    ('"west"]', '"west"]\n[coordinator]\nkey = "x"', "is not a public key"),
    ('"west"]', '"west"]\n[follows]\nrun = "../x"', "run name"),
    ('"west"]', '"west"]\n[follows]', "'follows.run' is missing"),
    ('"west"]', '"west"]\n[reference]', "needs the path of a file"),
    ('"west"]', '"west"]\n[reference]\npath = 3', "'reference.path': input should be text"),
    ('"west"]', '"west"]\n[reference]\npth = "x"', "in [reference]: did you mean 'path'"),
    ('"west"]', '"west"]\n[reference]\nurl = "sqlite:x"', "rows of a database"),
    ('"west"]', '"west"]\n[reference]\npath = "x"\nheader = false', "[reference] header"),
    ('"west"]', '"west"]\n[reference]\npath = "x"\nsha256 = "AB"', "64 hexadecimal digits"),
]


@pytest.mark.parametrize(("old", "new", "words"), BAD_STUDIES)
def test_bad_studies(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in STUDY
    with pytest.raises(StudyError) as caught:
        study(tmp_path, STUDY.replace(old, new))
    assert words in str(caught.value)
    assert str(tmp_path / "study.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no file"):
        Study.load(tmp_path / "none.toml")
    with pytest.raises(StudyError, match="cannot be read"):
        Study.load(tmp_path)
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StudyError, match="cannot be read"):
        Study.load(tmp_path / "b.toml")


def test_site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = site(tmp_path)
    assert got.home_path == tmp_path.resolve() / "homes" / "east"
    assert got.source == Source(path="t.csv")
    assert got.columns.local("a") == "A"
    assert got.columns.codes("a") == ("?", "0", "-")
    assert got.columns.units["a"].scale == 2
    assert Policy.from_settings(got.policy).data_id == "d"
    assert got.trust.coordinators == ()
    (tmp_path / "t.csv").write_text("A\n1\n", encoding="utf-8")
    assert read_source(got.source, got.base).n_rows == 1
    monkeypatch.setenv("SITE_HOME", "/elsewhere")
    text = SITE.replace('"homes/east"', '"${SITE_HOME}/east"')
    assert site(tmp_path, text).home_path == Path("/elsewhere/east")
    monkeypatch.delenv("SITE_HOME")
    with pytest.raises(StudyError, match="SITE_HOME"):
        _ = site(tmp_path, text).home_path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "east"', 'name = "third-party"', "is reserved"),
        ('home = "homes/east"', "", "'home' is missing"),
        ("path =", "pth =", "'pth' is not known in [source]: did you mean 'path'"),
        ('path = "t.csv"', 'path = "t.csv"\nheader = "no"', "true or false"),
        ('path = "t.csv"', 'path = "t.csv"\nformat = "xls"', "'source.format'"),
        ('path = "t.csv"', "", "either a path or a url"),
        ("rename =", "renames =", "in [columns]: did you mean 'rename'"),
        ("scale =", "scal =", "did you mean 'scale'"),
        ("scale = 2", "scale = 0", "scale"),
        ("scale = 2", 'scale = "2"', "'columns.units.a.scale'"),
        ("[policy]", "[columns.offered]\na = 3\n[policy]", '"none" or a list of different levels'),
        ("[policy]", "[polcy]", "did you mean 'policy'"),
        ("[policy]", '[trust]\ncoordinators = ["x"]\n[policy]', "is not a public key"),
    ],
)
def test_bad_site_files(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SITE
    with pytest.raises(StudyError) as caught:
        site(tmp_path, SITE.replace(old, new))
    assert words in str(caught.value)
    assert "site.toml" in str(caught.value)


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "x" * 64])
def test_good_names(name: str) -> None:
    assert check_name("site", name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, ".", "..", "a..b", ".a", "-a", "a.", "a/b", "a\\b", "a b", "a\n", "\u00e9", "*",
     "~", "all", "COORDINATOR", "site", "nul", "Con.txt", "com1"],
)  # fmt: skip
def test_bad_names(name: str) -> None:
    with pytest.raises(StudyError):
        check_name("site", name)


# --- the example


def test_example_is_read() -> None:
    got = Study.load(EXAMPLE / "study.toml")
    assert got.columns.target == "num"
    assert "num" not in got.columns.features
    files = {path.stem: SiteFile.load(path) for path in (EXAMPLE / "sites").glob("*.toml")}
    assert sorted(files) == sorted(got.sites.names)
    assert all(one.name == name for name, one in files.items())
    policies = [Policy.from_settings(one.policy) for one in files.values()]
    assert {policy.preset for policy in policies} == {"strict"}
    assert len({policy.data_id for policy in policies}) == 4
    assert len({one.home_path for one in files.values()}) == 4


KEPT = {"cleveland": 303, "hungarian": 293, "switzerland": 117, "va": 140}


def test_example_keeps_853_rows(
    data_dir: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONSILIENCE_DATA", str(data_dir("heart").parent.resolve()))
    got = Study.load(EXAMPLE / "study.toml")
    kept: dict[str, int] = {}
    columns: dict[str, Any] = {}
    for name in got.sites.names:
        one = SiteFile.load(EXAMPLE / "sites" / f"{name}.toml")
        table = read_source(one.source, one.base)
        loaded = load_with_report(table, got.columns, got.preparation, one.columns)
        data = loaded.data
        kept[name] = data.n_rows
        columns[name] = data.feature_names
        assert np.isfinite(data.features).all()
        assert data.features[:, data.feature_names.index("trestbps")].min() > 0
        assert set(np.unique(data.features[:, data.feature_names.index("cp=4")])) == {0.0, 1.0}
        assert loaded.report.rows_read == data.n_rows + len(loaded.report.dropped_rows)
    assert kept == KEPT
    assert sum(kept.values()) == 853
    assert set(columns.values()) == {
        ("age", "trestbps", "thalach", "oldpeak", "sex", "cp=4", "exang")
    }


def test_the_other_kind_of_file_is_recognised(tmp_path: Path) -> None:
    study, site = tmp_path / "study.toml", tmp_path / "site.toml"
    study.write_text(
        'name = "s"\nmethod = "mean-and-sd"\n[data]\nfeatures = ["x"]\n[sites]\nnames = ["a"]\n'
    )
    site.write_text('name = "a"\nhome = "h"\n[source]\npath = "a.csv"\n')
    assert Study.load(study).name == "s" and SiteFile.load(site).name == "a"
    with pytest.raises(StudyError, match="is a site file, not a study file"):
        Study.load(site)
    with pytest.raises(StudyError, match="is a study file, not a site file"):
        SiteFile.load(study)
