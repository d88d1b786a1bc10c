from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cases import CASES, SITES
from tests.faults.stage import Stage, clean_run


@pytest.fixture(scope="session")
def common_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        for site in SITES:
            stage.start_site(site)
        # Ledgers go over all runs: what a run says of known directions stays the same once each
        # case has run.
        for case in (case for case in CASES if CASES[case].seals):
            assert stage.run(case, f"{clean_run(case)}-first") == 0, stage.said()
        for case in CASES:
            clean = clean_run(case)
            assert stage.run(case, clean, trace=f"trace-{clean}") == 0, stage.said()
        yield stage
    finally:
        stage.close()


@pytest.fixture
def stage(common_stage: Stage) -> Stage:
    """A stage that has seen every case run undisturbed, with all its sites at work."""
    for site in SITES:
        if common_stage.sites.get(site) not in common_stage.living:
            common_stage.start_site(site)
    return common_stage


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage whose sites the test starts itself."""
    stage = Stage(tmp_path)
    try:
        yield stage
    finally:
        stage.close()
