"""From study and site files to a federation; finding runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consilience.engines.federation import Federation
from consilience.engines.local import LocalEngine, local_engine
from consilience.engines.rundir import RunInfo, RunStore
from consilience.engines.study_check import check_sites, differences, require_quorum, run_bytes
from consilience.engines.study_run import (
    find_run,
    is_busy,
    method_of,
    read_site_files,
    runs_in,
)
from consilience.exceptions import DataError, PrivacyError, RunError, StudyError
from consilience.sites.site import APPROVED
from consilience.sites.site_store import DiskStore
from consilience.sites.study import Study
from tests.cli.workspace import SITES, Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_a_federation_from_files(space: Workspace) -> None:
    space.write(more_sites='quorum = 2\ndeadline = 9.0\nroles = { lyon = "partner" }')
    study = Study.load(space.file)
    federation = Federation.from_study(study, read_site_files(study))
    assert isinstance(federation.engine, LocalEngine)
    assert federation.engine.sites == SITES
    assert (federation.name, federation.quorum, federation.deadline) == ("trial", 2, 9.0)
    assert federation.roles == {"lyon": "partner"}
    assert federation.study == study.hash()
    run = federation.run(method_of(study), seed=1)
    assert run.info.study == study.hash()
    assert run.site("lyon").home.ledger("default")["runs"] == [run.info.run]


def test_a_federation_over_an_engine(space: Workspace) -> None:
    study = Study.load(space.file)
    engine = local_engine(study, read_site_files(study))
    assert Federation.from_study(study, engine=engine).engine is engine
    with pytest.raises(StudyError, match="'boston' of the study has no site file"):
        Federation.from_study(study)


def test_runs_are_found_by_path_name_and_id(space: Workspace) -> None:
    assert space.run().exit_code == 0
    folder = space.out.parent
    ((path, info),) = runs_in(folder)
    assert path == space.out
    for text in (str(space.out), "one", info.run):
        assert find_run(text, folder) == space.out
    with pytest.raises(RunError, match="holds no run"):
        find_run(str(space.root), folder)
    with pytest.raises(RunError, match="there is no run 'two'"):
        find_run("two", folder)


def test_a_run_at_work_is_busy(tmp_path: Path) -> None:
    assert not is_busy(tmp_path)
    info = RunInfo("r", "s", "h", "m", 1, {}, "0", {}, 1, ("a",), "local")
    store = RunStore.create(info, tmp_path / "r")
    assert is_busy(tmp_path / "r")
    store.close()
    assert not is_busy(tmp_path / "r")


def test_checks_see_approval_and_budget(space: Workspace) -> None:
    space.site("lyon", more='[policy]\nmax_runs = 1\ndata_id = "d"\n')
    study = Study.load(space.file)
    files = read_site_files(study)
    method = method_of(study)
    assert all(c.error is None for c in check_sites(study, files, method))
    home = DiskStore(files["lyon"].home_path)
    home.write_ledger("d", {"runs": ["earlier"]})
    lyon = check_sites(study, files, method)[1]
    assert lyon.remarks == ("All 1 runs that the policy allows on this data are used up.",)
    home.write_ledger(APPROVED, {"studies": ["another"]})
    checks = check_sites(study, files, method)
    assert isinstance(checks[1].error, PrivacyError)
    with pytest.raises(PrivacyError, match="site lyon: the steward has not approved"):
        require_quorum(study, checks)


def test_checks_see_small_sites_and_rare_levels(space: Workspace) -> None:
    header, *rows = space.lines("lyon")
    flagged = [f"{row},{int(i < 4)}" for i, row in enumerate(rows)]
    for site in SITES:
        space.table(site, f"{header},flag", flagged)
    space.write(
        method="ensemble-clustering", parameters="n_clusters = 5", features=("x", "y", "flag")
    )
    study = Study.load(space.file)
    lyon = check_sites(study, read_site_files(study), method_of(study))[1]
    assert "40 rows are too few for 5 classes of at least 10 rows each" in lyon.remarks[0]
    assert "Column flag is 0 or 1 and one of them is in fewer than 10 rows" in lyon.remarks[1]
    assert len(lyon.remarks) == 2


def test_checks_say_how_much_memory_a_run_takes(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.load(space.file)
    said = [c.remarks for c in check_sites(study, read_site_files(study), method_of(study))]
    assert said == [(), (), ()]
    monkeypatch.setattr("consilience.engines.study_check._MUCH", 0)
    (remark,) = check_sites(study, read_site_files(study), method_of(study))[1].remarks
    assert remark.startswith(
        "A run holds 40 rows of the study's columns in memory: it takes about 0.0 GB"
    )


def test_the_memory_of_a_run_is_about_what_was_measured() -> None:
    """Whole processes of the benchmark, less Python and its libraries."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "table_memory.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    for policy, protects in (("simulation", False), ("consortium", True), ("strict", True)):
        measured = (found[policy]["blocks"]["MB"] - found["nothing"]["blocks"]["MB"]) * 2**20
        told = run_bytes(found["rows"], found["columns"], found["columns"], protects=protects)
        assert 0.75 < told / measured < 1.5
    for policy, protects in (("simulation", False), ("consortium", True)):
        tall = found["tall"]
        measured = (tall[policy]["MB"] - found["nothing"]["blocks"]["MB"]) * 2**20
        told = run_bytes(tall["rows"], 0, tall["columns"], protects=protects)
        assert 0.75 < told / measured < 1.5


def test_several_absent_columns_are_named_at_once(space: Workspace) -> None:
    for site in ("boston", "osaka"):
        header, *rows = space.lines(site)
        space.table(site, f"{header},p,q", [f"{row},1,2" for row in rows])
    space.write(features=("x", "p", "q"))
    study = Study.load(space.file)
    checks = check_sites(study, read_site_files(study), method_of(study))
    with pytest.raises(DataError, match="site lyon: columns p, q are not in"):
        require_quorum(study, checks)
    assert differences(study.columns, checks) == (
        "Column p is number at boston, absent at lyon, number at osaka.",
        "Column q is number at boston, absent at lyon, number at osaka.",
    )


def test_checks_see_what_a_policy_approves_before_there_is_a_home(space: Workspace) -> None:
    study = Study.load(space.file)
    for approved, stops in ((study.hash(), False), ("0" * 64, True)):
        space.site("lyon", more=f'[policy]\napproved_studies = ["{approved}"]\n')
        files = read_site_files(study)
        assert not files["lyon"].home_path.exists()
        error = check_sites(study, files, method_of(study))[1].error
        assert isinstance(error, PrivacyError) == stops
