"""Attacks seen by eleven services: what the page of the example says, from its own study file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from consilience.engines.study_check import check_sites
from consilience.engines.study_run import method_of, read_site_files
from consilience.exceptions import StudyError
from consilience.sites.study import Study
from examples.nsl_kdd_services.compare import compare, read_tables, without_rounds
from examples.nsl_kdd_services.make_tables import (
    LEAST,
    connections,
    site_tables,
    write_tables,
)
from tests.examples.running import run_workspace

EXAMPLE = Path(__file__).parents[2] / "examples" / "nsl_kdd_services"
ROWS = {
    "auth": 148,
    "ecr-i": 499,
    "finger": 282,
    "ftp": 276,
    "ftp-data": 1097,
    "http": 6270,
    "private": 3410,
    "smtp": 1129,
    "telnet": 371,
    "time": 119,
    "rest": 6153,
}


@pytest.fixture(scope="module")
def workspace(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in a fresh place, with its tables."""
    root = tmp_path_factory.mktemp("nsl-kdd-services")
    for file in EXAMPLE.glob("*.toml"):
        shutil.copy(file, root)
    shutil.copytree(EXAMPLE / "sites", root / "sites")
    write_tables(data_dir("nsl_kdd"), root / "tables")
    return root


def test_tables_of_the_services(data_dir: Callable[[str], Path]) -> None:
    rows = connections(data_dir("nsl_kdd"))
    sites, public, new = site_tables(rows)
    assert {name: len(table) for name, table in sites.items()} == ROWS
    assert public.shape == (400, 19)
    assert len(new) == 5038
    places = np.concatenate([public.index, new.index, *(t.index for t in sites.values())])
    assert np.array_equal(np.sort(places), np.arange(len(rows)))
    assert rows["dos"].value_counts().to_dict() == {"no": 15958, "yes": 9234}
    for name in set(sites) - {"rest"}:
        service = rows.loc[sites[name].index, "service"]
        assert set(service) == {name.replace("-", "_")}
        whole = rows[rows["service"] == service.iloc[0]]
        assert whole["dos"].value_counts().min() >= LEAST
    smallest = {name: table["dos"].value_counts().min() for name, table in sites.items()}
    # Enough of both classes for a strict site, which asks for ten records.
    assert min(smallest.values()) >= 20, smallest


def test_every_service_can_take_part_under_strict_rules(workspace: Path) -> None:
    study = Study.load(workspace / "study.toml")
    files = read_site_files(study)
    assert set(files) == set(ROWS)
    assert {file.policy["preset"] for file in files.values()} == {"strict"}
    checks = check_sites(study, files, method_of(study))
    assert [check.error for check in checks] == [None] * 11


def test_own_rows_offered_as_public_ones_stop_the_study(workspace: Path, tmp_path: Path) -> None:
    """Connections repeat, so some agree by chance; a table of the site does not."""
    root = tmp_path / "services"
    shutil.copytree(workspace, root, ignore=shutil.ignore_patterns("homes"))
    own = pd.read_csv(root / "tables" / "telnet.csv").drop(columns="dos")
    own.to_csv(root / "tables" / "public.csv", index=False)
    with pytest.raises(StudyError, match="telnet"):
        run_workspace(root, max_rounds=1)


def test_twenty_rounds_close_most_of_the_gap(workspace: Path) -> None:
    """Over ten draws the share is .74 on average, .66 at least (``replications``)."""
    run = run_workspace(workspace, max_rounds=20)
    found = compare(run.result, *read_tables(workspace / "tables"))
    assert run.result.chosen_round == 20
    assert found["share"] >= 0.60


def test_a_hundred_rounds_are_near_the_pooled_fit(workspace: Path) -> None:
    """Over ten draws the share is .96 on average, .91 at least."""
    run = run_workspace(workspace)
    result = run.result
    assert result.reference_kind == "rows"
    assert result.kept
    assert result.chosen_round > 50
    found = compare(result, *read_tables(workspace / "tables"))
    assert found["share"] >= 0.85
    assert found["averaging"] - found["pooled"] > 0.02
    gain, error = result.gains[0, -1], result.gain_errors[0, -1]
    assert gain + 1.96 * error < 0
    # Services differ: each one's own model is better for its own connections than the common one.
    own = result.local_differences[:, 0]
    sizes = np.where(np.isfinite(own), result.held, 0)
    assert np.nansum(sizes * own) < 0


def test_on_random_sites_averaging_beats_the_pooled_fit(data_dir: Callable[[str], Path]) -> None:
    """Near the pooled fit is not always better: averaged probabilities win by .0041 (se .0004)."""
    sites, _, new = site_tables(connections(data_dir("nsl_kdd")), by_service=False)
    found = without_rounds(sites, new)
    assert found["averaging"] < found["pooled"]


def test_a_description_of_the_traffic(workspace: Path, tmp_path: Path) -> None:
    root = tmp_path / "services"
    shutil.copytree(workspace, root, ignore=shutil.ignore_patterns("homes"))
    run = run_workspace(root, "describe.toml")
    tables = {name: pd.read_csv(root / "tables" / f"{name}.csv") for name in ROWS}
    told = run.result.counts["dos"][:, :2]
    own = [
        (tables[name]["dos"] == level).sum() for name in run.result.sites for level in ("no", "yes")
    ]
    np.testing.assert_array_equal(told.ravel(), own)
    assert run.result.differing[0] == "dos" and len(run.result.differing) == 6


def test_one_round_of_own_fits_finds_that_services_differ(workspace: Path, tmp_path: Path) -> None:
    """What they add up to is far from the fit to all rows, as the page says."""
    root = tmp_path / "services"
    shutil.copytree(workspace, root, ignore=shutil.ignore_patterns("homes"))
    result = run_workspace(root, "regression.toml").result
    assert sorted(result.left_out) == ["auth", "ftp", "time"] and result.n == 19_211
    assert result.heterogeneity[0] > 400
    rows = pd.concat(pd.read_csv(root / "tables" / f"{name}.csv") for name in result.sites)
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000)
    fit.fit(rows[["count", "dst_host_count"]] / 100, rows["dos"] == "yes")
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    pooled = fit.coef_[0]
    for name, one, other in zip(result.columns, 100 * result.estimate[1:], pooled, strict=True):
        assert f"| `{name}` | {one:.2f} | {other:.2f} |" in page
