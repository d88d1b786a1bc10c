"""Sequences in a table with one row for each person and time, by the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience.engines.federation import load_run
from consilience.exceptions import DataError
from tests.cli.test_sequences import workspace
from tests.cli.workspace import call, sentence


def lengthen(root: Path, site: str = "s0", *, numbered: bool = True) -> Path:
    """Turn a site's wide table into a long one, rows in no order but that of first occurrence."""
    path = root / f"{site}.csv"
    wide = pd.read_csv(path)
    times = [name for name in wide.columns if name.startswith("t")]
    long = wide.melt(["id", "outcome"], times, "when", "what").dropna(subset="what")
    if numbered:
        long["when"] = long["when"].map({name: j + 1 for j, name in enumerate(times)})
    assert long["id"].drop_duplicates().tolist() == wide["id"].tolist()
    long["note"] = np.arange(len(long))  # a column that nobody uses may change
    long.to_csv(path, index=False)
    file = root / "sites" / f"{site}.toml"
    setting = '\n[columns]\nlong = { id = "id", time = "when", state = "what" }\n'
    file.write_text(file.read_text() + setting)
    return path


@pytest.mark.parametrize("numbered", [True, False])
def test_a_long_table_gives_what_the_wide_one_gives(tmp_path: Path, numbered: bool) -> None:
    given = {}
    for name in ("wide", "long"):
        root = tmp_path / name
        root.mkdir()
        study = workspace(root, parameters="n_resamples = 1\n")
        if name == "long":
            lengthen(root, numbered=numbered)
            assert call("check", study).exit_code == 0
        given[name] = prepared(root, study)
    for field in ("sequence", "id", "target"):
        assert (getattr(given["wide"], field) == getattr(given["long"], field)).all(), field
    assert given["wide"].content_hash != given["long"].content_hash
    root = tmp_path / "long"
    ended = call("run", root / "study.toml", "--out", root / "out")
    assert ended.exit_code == 0, ended.output
    assert load_run(root / "out").result.n_records == 190  # type: ignore[attr-defined]


def prepared(root: Path, study: Path):  # type: ignore[no-untyped-def]
    from consilience.sites.prepare import load_with_report
    from consilience.sites.source import read_source
    from consilience.sites.study import SiteFile, Study

    file, read = SiteFile.load(root / "sites" / "s0.toml"), Study.load(study)
    table = read_source(file.source, file.base)
    columns, rules = read.columns, read.preparation
    return load_with_report(table, columns, rules, file.columns, min_records=10).data


def twice(t: pd.DataFrame) -> pd.DataFrame:
    return pd.concat([t, t.iloc[[5]]])


def beyond(t: pd.DataFrame, n_ids: int = 10) -> pd.DataFrame:
    """Some ids have a row more, at a time that is no column."""
    return pd.concat([t, t.drop_duplicates("id")[:n_ids].assign(when=99)])


def nobody(t: pd.DataFrame) -> pd.DataFrame:
    return t.assign(id=t["id"].where(np.arange(len(t)) != 4))


def changing(t: pd.DataFrame, n_ids: int = 10) -> pd.DataFrame:
    last = t.drop_duplicates("id", keep="last")[:n_ids].index
    return t.assign(outcome=t["outcome"].where(~t.index.isin(last), 1 - t["outcome"]))


def unnamed(t: pd.DataFrame) -> pd.DataFrame:
    return t.rename(columns={"when": "date"})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (twice, "repeats a time of one id"),
        (beyond, "that are no sequence column"),
        (nobody, "needs id and time in every row"),
        (changing, "changes within an id"),
        (unnamed, "correct [columns] long"),
    ],
)
def test_what_cannot_be_turned_is_one_sentence(tmp_path: Path, spoil, words: str) -> None:  # type: ignore[no-untyped-def]
    study = workspace(tmp_path)
    path = lengthen(tmp_path)
    spoil(pd.read_csv(path)).to_csv(path, index=False)
    ended = call("run", study, "--out", tmp_path / "out")
    assert ended.exit_code != 0
    assert words in sentence(ended)
    assert "s0-" not in sentence(ended)


@pytest.mark.parametrize("n_ids", [1, 9])
def test_what_is_odd_about_few_ids_stops_nothing(tmp_path: Path, n_ids: int) -> None:
    """Which times a study names, and which columns, asks nothing about single people."""
    study = workspace(tmp_path)
    path = lengthen(tmp_path)
    before = pd.read_csv(path)
    plain = prepared(tmp_path, study)
    beyond(before, n_ids).to_csv(path, index=False)
    more = prepared(tmp_path, study)
    assert (more.sequence == plain.sequence).all() and (more.target == plain.target).all()
    twice_there = beyond(beyond(before, n_ids), n_ids)
    twice_there.to_csv(path, index=False)
    with pytest.raises(DataError, match="repeats a time"):  # whatever times the study names
        prepared(tmp_path, study)
    changing(before, n_ids).to_csv(path, index=False)
    fewer = prepared(tmp_path, study)
    assert fewer.n_rows == plain.n_rows - n_ids


def test_a_study_without_sequences_has_no_long_tables(tmp_path: Path) -> None:
    study = workspace(tmp_path)
    lengthen(tmp_path)
    text = study.read_text()
    start, end = text.index("sequence ="), text.index("target =")
    levels = text.index("[data.levels]")
    rest = text[text.index("[preparation]") :]
    study.write_text(
        (text[:start] + 'features = ["outcome"]\n' + text[end:levels] + rest)
        .replace('target = "outcome"\n', "")
        .replace('model = "markov-mixture"\n', "")
        .replace('"keep"', '"refuse"')
    )
    ended = call("check", study)
    assert ended.exit_code != 0
    assert "for studies with sequence columns" in " ".join(ended.output.split())
