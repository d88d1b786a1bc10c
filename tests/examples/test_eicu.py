"""The eICU example on real data: who is in which site's table, and what the study file says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience import Run
from consilience.engines.federation import Federation
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.prepare import load_with_report
from consilience.sites.source import read_source
from consilience.sites.study import Study
from consilience.testing.fakes import members, with_fixed_secrets
from examples.eicu.make_tables import first_stays, site_tables, write_tables

EXAMPLE = Path(__file__).parents[2] / "examples" / "eicu"
ROWS = {
    "midwest-100-249-beds": 186,
    "midwest-250-499-beds": 57,
    "midwest-500-or-more-beds": 76,
    "midwest-under-100-beds": 128,
    "midwest-unknown-beds": 74,
    "northeast-100-249-beds": 44,
    "south-100-249-beds": 165,
    "south-250-499-beds": 107,
    "south-500-or-more-beds": 80,
    "south-under-100-beds": 42,
    "south-unknown-beds": 51,
    "unknown-region-unknown-beds": 68,
    "west-100-249-beds": 80,
    "west-250-499-beds": 98,
    "west-under-100-beds": 91,
}


@pytest.fixture(scope="module")
def tables(data_dir: Callable[[str], Path]) -> dict[str, pd.DataFrame]:
    return site_tables(data_dir("eicu_demo"))


def test_rows_of_the_sites(tables: Mapping[str, pd.DataFrame]) -> None:
    assert {name: len(table) for name, table in tables.items()} == ROWS
    assert sum(ROWS.values()) == 1347


def test_first_scored_stay_of_each_patient(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("eicu_demo")
    stays = first_stays(folder)
    assert len(stays) == 1484
    assert stays["stay"].is_unique
    patients = pd.read_csv(folder / "patient.csv.gz").set_index("patientunitstayid")
    assert patients["uniquepid"].loc[stays["stay"]].is_unique
    results = pd.read_csv(folder / "apachepatientresult.csv.gz")
    assert results.groupby("patientunitstayid").size().eq(2).all()
    days = results.drop_duplicates("patientunitstayid").set_index("patientunitstayid")
    np.testing.assert_allclose(
        np.exp(stays["log_days"]), days["actualiculos"].loc[stays["stay"]], rtol=1e-12
    )


def test_columns_are_what_they_say(tables: Mapping[str, pd.DataFrame]) -> None:
    rows = pd.concat(tables.values())
    assert rows["age"].max() == 90
    assert rows["age"].dropna().between(16, 90).all()
    assert (rows["aps"] >= 0).all()
    assert set(rows["ventilated"]) == set(rows["surgical"]) == {0, 1}
    assert set(rows["sex"]) == {"female", "male"}
    assert rows.isna().sum().sum() == rows["age"].isna().sum() == 2
    # quartiles of the stay: 0.95, 1.7 and 3.0 days
    np.testing.assert_allclose(
        np.exp(rows["log_days"]).quantile([0.25, 0.5, 0.75]), [0.95, 1.67, 2.98], atol=0.01
    )


def test_the_study_reads_every_site(data_dir: Callable[[str], Path], tmp_path: Path) -> None:
    """The files of the example lead to the rows that the sites keep."""
    write_tables(data_dir("eicu_demo"), tmp_path)
    study = Study.load(EXAMPLE / "study.toml")
    assert study.sites.names == tuple(ROWS)
    files = read_site_files(study)
    assert set(files) == set(ROWS)
    dropped = 0
    for name, file in files.items():
        path = file.source.path
        assert path == f"../tables/{name}.csv"
        table = pd.read_csv(tmp_path / Path(path).name)
        read = read_source(table)
        data = load_with_report(read, study.columns, study.preparation, file.columns).data
        assert data.feature_names == ("age", "sex=male", "aps", "ventilated")
        assert data.n_rows >= 40
        dropped += len(table) - data.n_rows
    assert dropped == 2  # patients of unknown age


def run_study(file: str, data: Path, folder: Path) -> Run:
    """Run of a study of the example under its sites' own policies."""
    write_tables(data, folder)
    study = Study.load(EXAMPLE / file)
    files = {
        name: file.model_copy(
            update={
                "home": str(folder / "homes" / name),
                "source": dataclasses.replace(file.source, path=str(folder / f"{name}.csv")),
            }
        )
        for name, file in read_site_files(study).items()
    }
    federation = Federation.from_study(study, files)
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    return method_of(study).run(federation, seed=study.seed)


@pytest.fixture(scope="module")
def run(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_study("study.toml", data_dir("eicu_demo"), tmp_path_factory.mktemp("eicu"))


def test_one_regression_is_that_of_all_rows(
    data_dir: Callable[[str], Path], tables: Mapping[str, pd.DataFrame], tmp_path: Path
) -> None:
    result = run_study("regression.toml", data_dir("eicu_demo"), tmp_path).result
    rows = pd.concat(table.assign(site=name) for name, table in tables.items()).dropna()
    male = (rows["sex"] == "male") * 1.0
    sites = pd.get_dummies(rows["site"], dtype=float)[list(result.sites)]
    design = np.column_stack([sites, rows["age"], male, rows["aps"]])
    estimate, *_ = np.linalg.lstsq(design, rows["log_days"], rcond=None)
    assert result.n == len(rows) == 1345 and result.columns == ("age", "sex=male", "aps")
    np.testing.assert_allclose(result.estimate, estimate, rtol=1e-8, atol=1e-10)
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    for name, value, error, q in zip(
        ("age", "sex", "aps"), result.estimate[-3:], result.error[-3:], result.q, strict=True
    ):
        assert f"| `{name}` | {value:.4f} | {error:.4f} | {q:.1f} |" in page
    assert f"Q = {result.heterogeneity[0]:.1f} on 42" in page


def test_a_description_withholds_one_column_at_the_smallest_site(
    data_dir: Callable[[str], Path], tables: Mapping[str, pd.DataFrame], tmp_path: Path
) -> None:
    run = run_study("describe.toml", data_dir("eicu_demo"), tmp_path)
    assert run.notes == (
        "Column ventilated is withheld by south-under-100-beds: too few rows differ.",
    )
    rows = pd.concat(tables.values())
    at = run.result.numbers.query("site == 'all sites'").set_index("column")
    np.testing.assert_allclose(at.loc["aps", "mean"], rows["aps"].mean(), rtol=1e-10)
    assert run.result.differing[0] == "sex"


def test_no_groups(run: Run) -> None:
    assert run.result.sites == tuple(ROWS)
    assert run.result.left_out == {}
    assert run.result.n_clusters == 1
    assert run.result.status != "groups"


def test_the_own_model_loses_and_an_intercept_does_not_help(run: Run) -> None:
    """On halves of a site the shrunken intercept costs a little: -.0101 (se .0036).

    In 10 folds it made no difference (own .677, common .642, with intercept .642; variance .734).
    """
    gain, error = run.result.overall_gain("own_minus_all")
    assert gain - 1.96 * error > 0
    gain, error = run.result.overall_gain("all_minus_shifted")
    assert gain < 1.96 * error
    assert abs(gain) < 0.02 * 0.734
