"""A study over columns on disk: a clinic that asks, and a lab."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from click.testing import Result

from consilience.wire.keys import new_partner_key, save_partner_key
from consilience.wire.signing import SigningKey
from tests.cli.workspace import call

SITES = ("clinic", "lab")
FEATURES = {"clinic": ("age", "smoker"), "lab": ("glucose", "crp", "iron")}
POLICY = '[policy]\npreset = "consortium"\n'


@dataclass
class ColumnsWorkspace:
    """Study file, site files, tables and keys in a directory."""

    root: Path
    n: int = 60
    keys: dict[str, SigningKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(6)
        people = [f"p{i:03d}" for i in range(self.n)]
        x = rng.uniform(size=(self.n, 4))
        y = (rng.uniform(size=self.n) < 0.2 + 0.6 * x[:, 1]).astype(int)
        smoker = np.where(rng.uniform(size=self.n) < 0.4, "yes", "no")
        lines = [
            f"{p},{a:.6f},{s},{r}" for p, a, s, r in zip(people, x[:, 0], smoker, y, strict=True)
        ]
        self.table("clinic", "patient,age,smoker,relapse", lines)
        lab = [
            f"{p},{a:.6f},{b:.6f},{c:.6f}" for p, (a, b, c) in zip(people, x[:, 1:], strict=True)
        ]
        self.table("lab", "pid,glucose,crp,iron", lab[::-1])
        save_partner_key(self.key, new_partner_key())
        for site in (*SITES, "coordinator"):
            self.keys[site] = SigningKey.generate()
            self.keys[site].save(self.root / "keys" / site)
        self.site("clinic")
        self.site("lab")
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "study.toml"

    @property
    def key(self) -> Path:
        return self.root / "keys" / "partner.key"

    @property
    def folder(self) -> Path:
        path = self.root / "shared"
        path.mkdir(exist_ok=True)
        return path

    @property
    def out(self) -> Path:
        return self.root / "runs" / "one"

    def toml(self, site: str) -> Path:
        return self.root / "sites" / f"{site}.toml"

    def table(self, site: str, header: str, lines: list[str]) -> None:
        path = self.root / "data" / f"{site}.csv"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")

    def lines(self, site: str) -> list[str]:
        return (self.root / "data" / f"{site}.csv").read_text(encoding="utf-8").splitlines()

    def site(self, site: str, *, columns: str | None = None, more: str = POLICY) -> None:
        own = {
            "clinic": 'features = ["age", "smoker"]\ntarget = "relapse"\n'
            'levels = { smoker = ["no", "yes"] }\n',
            "lab": 'rename = { patient = "pid" }\nfeatures = ["glucose", "crp", "iron"]\n'
            "bounds = { glucose = [0, 1], crp = [0, 1], iron = [0, 1] }\n",
        }[site]
        path = self.toml(site)
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'name = "{site}"\nhome = "../homes/{site}"\n[source]\npath = "../data/{site}.csv"\n'
            f"[columns]\n{own if columns is None else columns}"
            '[partners]\nkey = "../keys/partner.key"\n'
            f'[trust]\ncoordinators = ["{self.keys["coordinator"].public}"]\n{more}',
            encoding="utf-8",
        )

    def write(self, *, parameters: str = "n_directions = 2", at: str = "third-party") -> None:
        keys = "\n".join(f'{site} = "{self.keys[site].public}"' for site in SITES)
        self.file.write_text(
            'name = "of-use"\nmethod = "assistance-test"\npartition = "columns"\nseed = 4\n'
            f'[parameters]\n{parameters}\n[data]\nid = "patient"\n'
            '[preparation]\ncategorical = "treatment"\nstandardize = "site"\n'
            f'[sites]\nnames = ["clinic", "lab"]\nroles = {{ clinic = "initiator" }}\n'
            f'[sites.keys]\n{keys}\n[coordinator]\nat = "{at}"\n',
            encoding="utf-8",
        )

    def run(self, *more: object) -> Result:
        return call("run", self.file, "--out", self.out, *more)
