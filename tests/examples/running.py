"""Examples run from their study file, with fixed secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from consilience.engines.federation import Federation, Run
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.study import Study
from consilience.testing.fakes import members, with_fixed_secrets


def run_workspace(root: Path, file: str = "study.toml", **parameters: object) -> Run:
    """Run a study of a workspace; parameters replace those of the file."""
    study = Study.load(root / file)
    federation = Federation.from_study(study, read_site_files(study))
    for i, site in enumerate(members(federation).values()):
        with_fixed_secrets(site, i)
    method = dataclasses.replace(method_of(study), **parameters)
    return method.run(federation, seed=study.seed)
