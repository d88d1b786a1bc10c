"""A study with small sites on disk, and the command line as a function."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from consilience.cli.main import app

SITES = ("boston", "lyon", "osaka")
CANARY_TEXT = "CANARY-7f3a91"
CANARY_NUMBER = 918273.6455


def call(*words: object) -> Result:
    """Run a command; what it prints to each stream is kept apart."""
    return CliRunner().invoke(app, [str(word) for word in words])


@contextmanager
def without_report() -> Iterator[None]:
    """For runs whose report is that of another one: it is most of the work of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consilience.cli.runs.write_report", lambda run, path: None)
        yield


def sentence(result: Result) -> str:
    """The one line that an error is; nothing else is said, on either stream, but progress."""
    said = [line for line in result.stderr.splitlines() if not line.startswith("round ")]
    assert len(said) == 1, result.stderr
    assert said[0].startswith("Error: "), said
    assert "Traceback" not in result.output
    return said[0]


@dataclass
class Workspace:
    """Study file, site files and tables in a directory."""

    root: Path
    rows: int = 40

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        for site in SITES:
            classes = rng.integers(2, size=self.rows)
            x = np.column_stack([classes * 6.0, classes * -6.0]) + rng.normal(size=(self.rows, 2))
            rows = [f"{a:.6f},{b:.6f},{i}" for i, (a, b) in enumerate(x)]
            self.table(site, "x,y,id", rows)
            self.site(site)
        self.write()

    @property
    def file(self) -> Path:
        return self.root / "study.toml"

    def table(self, site: str, header: str, rows: list[str]) -> Path:
        path = self.root / "data" / f"{site}.csv"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    def lines(self, site: str) -> list[str]:
        return (self.root / "data" / f"{site}.csv").read_text(encoding="utf-8").splitlines()

    def site(
        self, site: str, *, name: str | None = None, more: str = "[policy]\nforeign_models = true\n"
    ) -> Path:
        path = self.root / "sites" / f"{site}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'name = "{name or site}"\nhome = "../homes/{site}"\n'
            f'[source]\npath = "../data/{site}.csv"\n[columns.offered]\n"*" = "number"\n{more}',
            encoding="utf-8",
        )
        return path

    def write(
        self,
        *,
        method: str = "mean-and-sd",
        parameters: str = "",
        features: tuple[str, ...] = ("x", "y"),
        sites: tuple[str, ...] = SITES,
        more_sites: str = "",
        more: str = "",
        head: str = "",
        data: str = "",
    ) -> Path:
        named = ", ".join(f'"{name}"' for name in features)
        listed = ", ".join(f'"{name}"' for name in sites)
        self.file.write_text(
            f'name = "trial"\nmethod = "{method}"\nseed = 3\n{head}\n[parameters]\n{parameters}\n'
            f"[data]\nfeatures = [{named}]\n{data}\n[sites]\nnames = [{listed}]\n{more_sites}\n"
            f"{more}\n",
            encoding="utf-8",
        )
        return self.file

    @property
    def out(self) -> Path:
        return self.root / "runs" / "one"

    def run(self, *more: object) -> Result:
        return call("run", self.file, "--out", self.out, *more)

    def copied(self, root: Path) -> Workspace:
        """The same files in another directory, with what was run."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        other = copy.copy(self)
        other.root = root
        return other


def ran_once(root: Path) -> Workspace:
    """A workspace in which the study ran."""
    space = Workspace(root)
    result = space.run()
    assert result.exit_code == 0, result.output
    return space
