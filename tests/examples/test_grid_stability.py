"""Grid stability in fifty areas: what the page of the example says, from its own study file."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience import Run
from consilience.engines.study_check import check_sites
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.study import Study
from examples.grid_stability.compare import compare, read_tables, without_rounds
from examples.grid_stability.make_tables import (
    INPUTS,
    feature_names,
    read_grids,
    site_names,
    site_tables,
    with_products,
    write_tables,
)
from tests.examples.running import run_workspace

EXAMPLE = Path(__file__).parents[2] / "examples" / "grid_stability"


@pytest.fixture(scope="module")
def workspace(data_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example in a fresh place, with its tables and site files."""
    root = tmp_path_factory.mktemp("grid-stability")
    shutil.copy(EXAMPLE / "study.toml", root)
    write_tables(data_dir("grid_stability"), root / "tables", root / "sites")
    return root


@pytest.fixture(scope="module")
def run(workspace: Path) -> Run:
    return run_workspace(workspace)


def test_the_study_names_what_the_tables_hold() -> None:
    study = Study.load(EXAMPLE / "study.toml")
    assert study.columns.features == feature_names()
    assert study.sites.names == site_names()
    assert len(feature_names()) == 90


def test_tables_of_the_areas(data_dir: Callable[[str], Path]) -> None:
    grids = read_grids(data_dir("grid_stability"))
    sites, new = site_tables(grids)
    assert {len(table) for table in sites.values()} == {180}
    assert len(new) == 1000
    rows = np.concatenate([new.index, *(table.index for table in sites.values())])
    assert np.array_equal(np.sort(rows), np.arange(10000))
    ends = [(table["tau1"].min(), table["tau1"].max()) for table in sites.values()]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    # Limits hold by design, so that every input lies on -1 to 1.
    columns = with_products(grids)
    assert columns[list(INPUTS)].abs().to_numpy().max() <= 1
    np.testing.assert_allclose(columns["tau1_g1"], columns["tau1"] * columns["g1"])
    scaled = columns / columns.std()
    # Four inputs p add up to 0: one of 12 inputs, and 13 of 78 products less 1, say nothing new.
    assert np.linalg.matrix_rank(scaled - scaled.mean(), tol=1e-6) == 77


def test_every_area_can_take_part_under_strict_rules(workspace: Path) -> None:
    study = Study.load(workspace / "study.toml")
    files = read_site_files(study)
    assert {file.policy["preset"] for file in files.values()} == {"strict"}
    checks = check_sites(study, files, method_of(study))
    assert [check.error for check in checks] == [None] * 50


def test_the_rounds_close_the_gap(workspace: Path, run: Run) -> None:
    """Over ten draws the share is .988 on average, .980 at least (``replications``)."""
    result = run.result
    assert (result.reference_rank, result.reference_needed_rank) == (77, 77)
    assert result.separable
    assert (result.chosen_round, result.reason) == (20, "not-measured")
    found = compare(result, *read_tables(workspace / "tables"))
    assert found["share"] >= 0.95
    assert found["pooled"] - found["averaging"] > 0.1
    new = pd.read_csv(workspace / "tables" / "new.csv")
    assert found["kept"] > 0.85
    assert len(result.to_estimator().predict(new[list(feature_names())])) == 1000


def test_random_areas_are_no_example(data_dir: Callable[[str], Path]) -> None:
    """Rows dealt out at random leave nothing to gain: R2 .887 and .888, with 12 inputs .643."""
    sites, new = site_tables(read_grids(data_dir("grid_stability")), by_tau1=False)
    for columns in (feature_names(), INPUTS):
        tables = {name: table[[*columns, "stab"]] for name, table in sites.items()}
        found = without_rounds(tables, new)
        assert abs(found["pooled"] - found["averaging"]) < 0.005
