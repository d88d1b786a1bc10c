"""Masked sums between processes that are killed: the total is exact, each part leaves once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from consilience.engines.federation import Federation, load_run
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation
from consilience.sites.study import Study
from consilience.wire.signing import SigningKey
from consilience.wire.transcript import read_transcript

pytestmark = pytest.mark.faults

SITES = ("ash", "birch", "cedar", "doum", "elm")
FEATURES = ("a", "b")
PATIENCE = 100.0


def consilience(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with open(folder / "said", "ab") as said:
        return subprocess.Popen(
            [Path(sys.executable).with_name("consilience"), *words],
            cwd=folder,
            stdout=said,
            stderr=said,
        )


def watching(folder: Path, site: str) -> subprocess.Popen[bytes]:
    words = ("site", "watch", f"{site}.toml", "--folder", "shared", "--key", f"keys-{site}")
    return consilience(folder, *words)


def prepared(folder: Path) -> None:
    """Tables, keys, the study, and a file for each site."""
    (folder / "shared").mkdir()
    publics = {}
    for i, site in enumerate(SITES):
        rng = np.random.default_rng(i)
        frame = pd.DataFrame(rng.normal(size=(40 + i, 2)), columns=FEATURES)
        frame.to_csv(folder / f"{site}.csv", index=False)
        key = SigningKey.generate()
        key.save(folder / f"keys-{site}")
        publics[site] = key.public
    coordinator = SigningKey.generate()
    coordinator.save(folder / "keys")
    keys = "".join(f'{site} = "{public}"\n' for site, public in publics.items())
    (folder / "study.toml").write_text(
        'name = "masked"\nmethod = "mean-and-sd"\nsums = "secure"\nseed = 1\n'
        '[data]\nfeatures = ["a", "b"]\n[preparation]\nstandardize = "pooled"\n'
        f"[sites]\nnames = {list(SITES)}\ndeadline = 120.0\n[sites.keys]\n{keys}"
    )
    approved = Study.load(folder / "study.toml").hash()
    for site in SITES:
        (folder / f"{site}.toml").write_text(
            f'name = "{site}"\nhome = "home-{site}"\n[source]\npath = "{site}.csv"\n'
            '[columns.offered]\na = "number"\nb = "number"\n'
            f'[policy]\napproved_studies = ["{approved}"]\n'
            f'[trust]\ncoordinators = ["{coordinator.public}"]\n'
        )


@pytest.mark.parametrize("seed", range(2))
def test_processes_that_are_killed_again_and_again(seed: int, tmp_path: Path) -> None:
    prepared(tmp_path)
    draw = random.Random(seed)
    run = ("run", "study.toml", "--engine", "folder", "--folder", "shared", "--key", "keys")
    processes = {site: watching(tmp_path, site) for site in SITES}
    coordinator = consilience(tmp_path, *run, "--out", "run")
    began, killed = time.monotonic(), 0
    try:
        while (code := coordinator.poll()) != 0:
            said = (tmp_path / "said").read_text()[-3000:]
            assert time.monotonic() - began < PATIENCE, said
            assert all(process.poll() is None for process in processes.values()), said
            if code is not None:
                resumed = ("--resume",) if (tmp_path / "run" / "run.json").exists() else ()
                coordinator = consilience(tmp_path, *run, "--out", "run", *resumed)
            time.sleep(draw.uniform(0.3, 1.0))
            if killed < 12:
                who = draw.choice((*SITES, "coordinator"))
                victim = coordinator if who == "coordinator" else processes[who]
                victim.kill()
                victim.wait()
                killed += 1
                if who != "coordinator":
                    processes[who] = watching(tmp_path, who)
    finally:
        for process in (*processes.values(), coordinator):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)
            process.wait()
    assert killed >= 3
    tables = {site: str(tmp_path / f"{site}.csv") for site in SITES}
    plain = Federation.local(
        tables, columns=Columns(features=FEATURES), preparation=Preparation(standardize="pooled")
    )
    wanted, found = MeanAndSD().run(plain, seed=1), load_run(tmp_path / "run")
    np.testing.assert_allclose(found.scaling, wanted.scaling, rtol=1e-13, atol=1e-18)
    assert found.result.n == wanted.result.n
    # What was masked has left once: another mask on the same numbers would be another digest.
    lines = read_transcript(tmp_path / "run" / "transcript.jsonl")
    left = [(x.round, x.site, x.digest) for x in lines if x.field == "numbers"]
    assert len(left) == len(set(left)) == 5 * len(SITES)
