"""Attacks on what surrounds the gate: checks before a run, held replies, files, memory, nodes."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consilience.engines.federation import Federation
from consilience.engines.flower import join
from consilience.engines.local import LocalEngine
from consilience.exceptions import PrivacyError
from consilience.methods.assistance_test.messages import NoisySketched
from consilience.sites.home import DiskHome
from consilience.sites.jobs import holds
from consilience.sites.loaders import file_site
from consilience.sites.site import APPROVED, Site
from consilience.sites.study import SiteFile, Study
from consilience.testing.fakes import array_loader
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure
from tests.faults.cases import CASES, SITES, loader
from tests.sites.test_site import OPEN, X, after, ask, sums

ALONE = "rare-value"
SITE_FILE = """
name = "north"
home = "home"
[source]
path = "table.csv"
[policy]
preset = "strict"
"""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


# ------------------------------------------------------------------ a coordinator's check


@pytest.fixture
def file(tmp_path: Path) -> SiteFile:
    """A site whose table holds one value, and one text among numbers, in one row only."""
    rows = [f"{20 + i},{('cold', 'flu')[i % 2]},{i}" for i in range(200)]
    rows[77] = f"93,{ALONE},{ALONE}"
    (tmp_path / "table.csv").write_text("\n".join(["age,illness,note", *rows]) + "\n")
    (tmp_path / "north.toml").write_text(SITE_FILE)
    return SiteFile.load(tmp_path / "north.toml")


def study(where: Path, features: list[str], levels: list[str] | None = None) -> Study:
    more = ""
    if levels is not None:
        more = f'[data.levels]\nillness = {json.dumps(levels)}\n[preparation]\ncategorical="onehot"'
    path = where / "study.toml"
    text = f'name="x"\nmethod="mean-and-sd"\n[data]\nfeatures={json.dumps(features)}\n{more}\n'
    path.write_text(text + '[sites]\nnames=["north"]\n')
    return Study.load(path)


def told(file: SiteFile, asked: Study) -> dict[str, Any]:
    return join.check_here(file, asked.canonical())


def test_a_check_is_no_oracle_for_single_values(file: SiteFile, tmp_path: Path) -> None:
    """Whether some row holds another value than those of a list: asked as often as one likes."""
    features = ["age", "illness"]
    without = told(file, study(tmp_path, features, ["cold", "flu"]))
    assert without == told(file, study(tmp_path, features, ["cold", "flu", ALONE]))
    assert without["able"] and set(without["kinds"]) == set(features)


def test_a_check_counts_nothing(file: SiteFile, tmp_path: Path) -> None:
    assert told(file, study(tmp_path, ["age", "note"]))["kinds"]["note"] == "text"


def test_a_check_names_the_columns_that_are_not_there(file: SiteFile, tmp_path: Path) -> None:
    said = told(file, study(tmp_path, ["age", "weight", "size"]))
    assert not said["able"] and "weight, size" in said["said"][0]


def test_a_study_that_is_not_approved_is_checked_no_further(
    file: SiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that the steward has approved is checked to the end."""
    approved = study(tmp_path, ["age", "illness"], ["cold", "flu"])
    file_site(file).home.write_ledger(APPROVED, {"studies": [approved.hash()]})
    assert not told(file, approved)["able"], "one row does not fit"
    monkeypatch.setattr("consilience.engines.study_check.read_source", None)
    with pytest.raises(PrivacyError, match="has approved"):
        told(file, study(tmp_path, ["age"]))


# ------------------------------------------------------------------ held replies


def test_values_for_each_record_are_held_with_noise_too() -> None:
    noisy = NoisySketched(z=relayed(X, Disclosure.NOISED), rank=2, known=2, scale=1.0, loose=1.0)
    assert holds("per-record", noisy)


# ------------------------------------------------------------------ files and memory


def test_other_users_of_the_machine_read_nothing(tmp_path: Path) -> None:
    """Under the usual umask: journals hold every reply, a site's log the causes of refusals."""
    case = CASES["mean-and-sd"]
    sites = [Site(name, loader(name), home=DiskHome(tmp_path / name)) for name in SITES]
    federation = Federation(LocalEngine(sites), case.columns, case.preparation)
    federation.run(case.method(), seed=11, out=tmp_path / "run")
    sites[0].home.log("refused", reason="a value that the message of an exception held")
    files = {p for p in tmp_path.rglob("*") if p.is_file() and p.stat().st_size}
    assert {"log", "log.jsonl", "transcript.jsonl"} <= {path.name for path in files}
    assert not [p for p in files if stat.S_IMODE(p.stat().st_mode) & 0o077]


def test_many_runs_do_not_fill_the_memory_with_rows() -> None:
    """Rows of runs that were asked long ago are read again, with the same answer."""
    read: list[str] = []

    def load(*settings: Any) -> Any:
        read.append("")
        return array_loader(X)(*settings)

    one = Site("a", load)
    opened = [dataclasses.replace(OPEN, run=f"run-{number}") for number in range(8)]
    for request in opened:
        ask(one, request)
    assert len(one._prepared) <= 2
    assert len(read) == len(opened)
    wanted = sums(ask(Site("a", array_loader(X), home=one.home), after(opened[0])))
    assert (sums(ask(one, after(opened[1]))) == wanted).all() and len(read) == len(opened) + 1
