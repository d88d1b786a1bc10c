from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from consilience.engines.federation import Federation, load_run
from consilience.engines.local import LocalEngine
from consilience.exceptions import ParameterError, QuorumError, RunError, StudyError
from consilience.protocol.mean_and_sd import MeanAndSD
from consilience.protocol.method import Columns, Preparation
from consilience.sites.policy import Policy
from consilience.sites.site import Site
from consilience.sites.site_store import DiskStore
from consilience.testing.fakes import ClassSums, array_loader, federation_of, scripted

TABLES = {name: np.random.default_rng(ord(name)).normal(size=(40, 2)) for name in "abc"}
COLUMNS = Columns(features=("x0", "x1"))


def on_disk(path: Path, **settings: Any) -> Federation:
    """A federation whose sites are new objects over the same homes each time."""
    sites = [Site(n, array_loader(x), home=DiskStore(path / n)) for n, x in TABLES.items()]
    preparation = Preparation(standardize="pooled")
    return Federation(LocalEngine(sites), COLUMNS, preparation, **settings)


def test_frames_and_arrays_agree() -> None:
    frames = {name: pd.DataFrame(x, columns=["x0", "x1"]) for name, x in TABLES.items()}
    local = Federation.local(frames, columns=COLUMNS)
    wanted = MeanAndSD().run(federation_of(TABLES), seed=0).result.to_files()
    assert MeanAndSD().run(local, seed=0).result.to_files() == wanted


def test_policies_by_site() -> None:
    frames = {name: pd.DataFrame(x[:9], columns=["x0", "x1"]) for name, x in TABLES.items()}
    policies: Any = {"a": "simulation", "b": Policy.from_settings("simulation"), "c": "strict"}
    local = Federation.local(frames, columns=COLUMNS, policy=policies, quorum=2)
    run = MeanAndSD().run(local, seed=0)
    assert run.result.n == 18
    assert run.presets["a"] == "simulation"


@pytest.mark.parametrize("quorum", [0, 4, -1])
def test_impossible_quorums(quorum: int) -> None:
    with pytest.raises(ParameterError, match="quorum must be between 1 and the number of sites"):
        federation_of(TABLES, quorum=quorum)


def test_no_sites_and_sites_of_one_name() -> None:
    with pytest.raises(StudyError, match="at least one site"):
        Federation(LocalEngine([]), COLUMNS)
    with pytest.raises(StudyError, match="two sites are called 'a'"):
        LocalEngine([Site("a", array_loader(TABLES["a"])) for _ in range(2)])


def test_the_quorum_is_told_in_one_sentence() -> None:
    script: Any = {(2, "a"): "refused", (2, "c"): "absent"}
    with pytest.raises(QuorumError) as stopped:
        MeanAndSD().run(scripted(federation_of(TABLES, quorum=2), script), seed=0)
    assert str(stopped.value) == (
        "1 of 3 sites answered and the study needs 2. a refused: the steward did not release the "
        "reply; c was absent: no answer within the deadline"
    )


def test_a_seed_is_drawn_and_recorded() -> None:
    runs = [MeanAndSD().run(federation_of(TABLES)) for _ in range(2)]
    assert runs[0].info.seed != runs[1].info.seed
    assert MeanAndSD().run(federation_of(TABLES), seed=7).info.seed == 7


def test_sites_that_are_restarted_between_rounds(tmp_path: Path) -> None:
    """Killed after every event, coordinator and sites come back from their disks alone."""
    wanted = MeanAndSD().run(on_disk(tmp_path / "steady"), seed=1)

    class Killed(Exception):
        pass

    kills = 0
    out = tmp_path / "run"
    while True:
        left = [3]

        def count(kind: str, facts: Any, left: list[int] = left) -> None:
            left[0] -= kind == "arrived"
            if not left[0]:
                raise Killed

        try:
            run = MeanAndSD().run(
                on_disk(tmp_path / "homes"), seed=1, out=out, resume=kills > 0, on_event=count
            )
            break
        except Killed:
            kills += 1
            assert kills < 20
    assert kills >= 4
    assert run.result.to_files() == wanted.result.to_files()
    assert load_run(out).transcript == run.transcript


def test_a_resumed_run_keeps_its_seed_and_id(tmp_path: Path) -> None:
    first = MeanAndSD().run(federation_of(TABLES), seed=4, out=tmp_path, run_id="mine")
    again = MeanAndSD().run(federation_of(TABLES), seed=9, out=tmp_path, resume=True)
    assert again.info == first.info
    assert (again.info.seed, again.info.run) == (4, "mine")


def test_another_study_is_not_resumed(tmp_path: Path) -> None:
    MeanAndSD().run(federation_of(TABLES), seed=4, out=tmp_path)
    others: list[Federation] = [
        federation_of(TABLES, preparation=Preparation(standardize="pooled")),
        federation_of({"a": TABLES["a"]}),
    ]
    for other in others:
        with pytest.raises(RunError, match="was begun with study"):
            MeanAndSD().run(other, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="was begun with method"):
        ClassSums().run(federation_of(TABLES), out=tmp_path, resume=True)


def test_a_run_may_be_resumed_with_more_patience_and_a_smaller_quorum(tmp_path: Path) -> None:
    first = MeanAndSD().run(federation_of(TABLES), seed=4, out=tmp_path)
    (tmp_path / "result.json").unlink()
    other = dataclasses.replace(federation_of(TABLES, quorum=2), deadline=7200.0)
    again = MeanAndSD().run(other, out=tmp_path, resume=True)
    assert again.result.to_files() == first.result.to_files()


def test_resuming_needs_a_directory_with_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="say where it is by --out"):
        MeanAndSD().run(federation_of(TABLES), resume=True)
    with pytest.raises(RunError, match="holds no run"):
        MeanAndSD().run(federation_of(TABLES), out=tmp_path / "none", resume=True)
    MeanAndSD().run(federation_of(TABLES), out=tmp_path)
    with pytest.raises(RunError, match="already holds a run"):
        MeanAndSD().run(federation_of(TABLES), out=tmp_path)


def test_a_directory_is_free_again_after_an_error(tmp_path: Path) -> None:
    federated = scripted(federation_of(TABLES), {(1, "a"): "absent"})
    with pytest.raises(QuorumError):
        MeanAndSD().run(federated, seed=1, out=tmp_path)
    with pytest.raises(QuorumError):
        MeanAndSD().run(federated, out=tmp_path, resume=True)


def test_only_a_run_of_the_same_method_is_followed() -> None:
    other = ClassSums().run(federation_of(TABLES), seed=0)
    with pytest.raises(StudyError, match="cannot follow one of 'testing-class-sums'"):
        MeanAndSD().run(federation_of(TABLES), seed=0, follows=other)


def test_outputs_are_read_at_sites_of_this_process(tmp_path: Path) -> None:
    run = MeanAndSD().run(federation_of(TABLES), seed=0, out=tmp_path)
    assert run.site("a").run == run.info.run
    with pytest.raises(StudyError, match="'consilience site outputs'"):
        load_run(tmp_path).site("a")


def test_runs_on_one_engine_do_not_mix() -> None:
    federation = federation_of(TABLES)
    first, second = (MeanAndSD().run(federation, seed=1) for _ in range(2))
    assert first.info.run != second.info.run
    assert first.result.to_files() == second.result.to_files()
    with pytest.raises(QuorumError, match="number of runs"):
        strict = federation_of(TABLES, policy=Policy(max_runs=1))
        for _ in range(2):
            MeanAndSD().run(strict, seed=1)


@pytest.mark.parametrize("run_id", ["../x", "a/b", ""])
def test_run_ids_of_a_wrong_form(run_id: str, tmp_path: Path) -> None:
    federation = on_disk(tmp_path / "homes")
    if not run_id:
        assert MeanAndSD().run(federation, seed=1, run_id=run_id).info.run
        return
    with pytest.raises((RunError, QuorumError)):
        MeanAndSD().run(federation, seed=1, run_id=run_id)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["homes"]


def test_policies_are_the_sites_own_whatever_the_study_says() -> None:
    """No field of a federation, of columns or of a preparation reaches a policy."""
    names = {f.name for kind in (Columns, Preparation) for f in dataclasses.fields(kind)}
    limits = {f.name for f in dataclasses.fields(Policy)}
    assert names.isdisjoint(limits)
    engine = LocalEngine([Site("a", array_loader(TABLES["a"][:9]))])
    for roles in ({}, {"policy": "simulation", "min_records": "1"}):
        with pytest.raises(QuorumError, match="fewer than 10 records"):
            MeanAndSD().run(Federation(engine, COLUMNS, roles=roles), seed=1)


def test_the_log_of_a_site_says_why_it_refused() -> None:
    federation = federation_of({"a": TABLES["a"], "b": TABLES["b"][:4]})
    with pytest.raises(QuorumError):
        MeanAndSD().run(federation, seed=1)
    assert any("fewer than 10 records" in str(line) for line in federation.log("b"))
    with pytest.raises(StudyError, match="not in this process"):
        federation.log("elsewhere")
