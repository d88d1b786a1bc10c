"""Sequences from a study file and tables on disk, by the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from consilience.engines.federation import load_run
from tests.cli.workspace import call, sentence
from tests.clustering.protocol.coded import STATES, sequences

STUDY = """name = "paths"
method = "ensemble-clustering"
partition = "rows"
seed = 1

[parameters]
model = "markov-mixture"
n_clusters = "vote"
max_clusters = 2
stability_pairs = 0
n_init = 2
{parameters}
[data]
id = "id"
sequence = {columns}
target = "outcome"

[data.levels]
t0 = {states}

[preparation]
missing = "{missing}"

[sites]
names = ["s0", "s1"]
"""


def workspace(root: Path, *, missing: str = "keep", parameters: str = "", known: int = 5) -> Path:
    tables, truth = sequences((90, 100))
    columns = list(tables["s0"].columns)
    (root / "sites").mkdir()
    for site, table in tables.items():
        table.insert(0, "id", [f"{site}-{i}" for i in range(len(table))])
        table["outcome"] = [(label + i) % 3 == 0 for i, label in enumerate(truth[site])]
        table["outcome"] = table["outcome"].astype(int)
        table.to_csv(root / f"{site}.csv", index=False)
        (root / "sites" / f"{site}.toml").write_text(
            f'name = "{site}"\nhome = "../home-{site}"\n\n[source]\npath = "../{site}.csv"\n'
            f'[columns.offered]\n"*" = {list(STATES)}\nid = "id"\noutcome = "number"\n'
            "[policy]\nforeign_models = true\n"
        )
    study = root / "study.toml"
    states = list(STATES)[:known]
    study.write_text(
        STUDY.format(columns=columns, states=states, missing=missing, parameters=parameters)
    )
    return study


def test_sequences_run_from_files_and_labels_stay_with_ids(tmp_path: Path) -> None:
    study = workspace(tmp_path)
    assert call("check", study).exit_code == 0
    ended = call("run", study, "--out", tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    result = load_run(tmp_path / "out").result
    assert result.states == STATES
    assert result.model == "markov-mixture"
    assert (tmp_path / "out" / "report.html").is_file()
    (labels,) = (tmp_path / "home-s0" / "outputs").rglob("labels.csv")
    rows = list(csv.DictReader(labels.open()))
    assert [row["id"] for row in rows[:2]] == ["s0-0", "s0-1"]
    assert len(rows) == 90


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"missing": "refuse"}, "has no value in"),
        ({"parameters": "trim = 6.0\n"}, "leave trim out"),
        ({"known": 4}, "holds values outside the declared levels"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, given: dict, words: str) -> None:  # type: ignore[type-arg]
    ended = call("run", workspace(tmp_path, **given), "--out", tmp_path / "out")
    assert ended.exit_code != 0
    assert words in sentence(ended)


def test_the_check_names_the_columns_with_unknown_states(tmp_path: Path) -> None:
    study = workspace(tmp_path)
    table = pd.read_csv(tmp_path / "s0.csv", dtype=str)
    table.loc[[2, 5], "t3"] = "CANARY"
    table.loc[7, "t4"] = "CANARY"
    table.to_csv(tmp_path / "s0.csv", index=False)
    said = " ".join(call("check", study).output.split())
    assert "Column t3: 2 values count as missing" in said
    assert "Column t4: 1 values count as missing" in said
    assert "CANARY" not in said
