"""What the tests of the examples over columns share: run a study of an example in a fresh place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from consilience import Run
from consilience.engines.federation import Federation
from consilience.engines.study_run import method_of, read_site_files
from consilience.sites.study import Partners, SiteFile, Study
from consilience.testing.fakes import members, with_fixed_secrets
from consilience.wire.keys import new_partner_key, save_partner_key

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclasses.dataclass(frozen=True)
class Workspace:
    """An example whose tables, homes and partner key are in another folder.

    Attributes
    ----------
    example : Path
    root : Path
        Holds ``tables/``; homes and key are made here.
    """

    example: Path
    root: Path

    @classmethod
    def of(cls, name: str, root: Path) -> Workspace:
        save_partner_key(root / "keys" / "partner.key", new_partner_key())
        return cls(EXAMPLES / name, root)

    def study(self, name: str) -> Study:
        return Study.load(self.example / f"{name}.toml")

    def files(self, name: str, sites: str = "", **policy: Any) -> dict[str, SiteFile]:
        """Site files of a study; `policy` changes those of every site."""
        folder = self.example / sites if sites else None
        found = {}
        for site, file in read_site_files(self.study(name), folder).items():
            path = str(file.source.path).rpartition("tables/")[2]
            found[site] = file.model_copy(
                update={
                    "home": str(self.root / "homes" / site),
                    "source": dataclasses.replace(
                        file.source, path=str(self.root / "tables" / path)
                    ),
                    "partners": Partners(key=str(self.root / "keys" / "partner.key")),
                    "policy": {**file.policy, **policy},
                }
            )
        return found

    def run(
        self,
        name: str,
        sites: str = "",
        follows: Run | None = None,
        files: dict[str, SiteFile] | None = None,
        **parameters: Any,
    ) -> Run:
        """Run a study of the example; parameters replace those of the file."""
        study = self.study(name)
        federation = Federation.from_study(study, files or self.files(name, sites))
        for i, site in enumerate(members(federation).values()):
            with_fixed_secrets(site, i)
        method = dataclasses.replace(method_of(study), **parameters)
        return method.run(federation, seed=study.seed, follows=follows)
