"""``consilience site``: what a steward sees and what holds afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from consilience.cli.site import app, describe
from consilience.engines.federation import Federation, Run
from consilience.engines.folder import FolderEngine
from consilience.exceptions import QuorumError
from consilience.protocol.method import get_method
from consilience.sites.loaders import file_site
from consilience.sites.study import SiteFile, Study
from consilience.wire.envelope import Request
from consilience.wire.signing import SigningKey
from tests.sites.test_site import OPEN, opening

CANARY = 731.25


class Workspace:
    """Two sites on disk, a study and a shared folder."""

    def __init__(self, root: Path, method: str = "mean-and-sd") -> None:
        self.root, self.folder = root, root / "shared"
        self.folder.mkdir()
        self.coordinator = SigningKey.generate()
        self.keys: dict[str, SigningKey] = {}
        for i, name in enumerate(("boston", "leeds")):
            place = root / name
            assert run_cli("keys", str(place / "keys")).exit_code == 0
            self.keys[name] = SigningKey.load(place / "keys")
            rows = np.random.default_rng(i).normal(loc=CANARY, size=(40, 2))
            lines = "\n".join(",".join(f"{v:.6f}" for v in row) for row in rows)
            (place / "table.csv").write_text(f"x,y\n{lines}\n")
            self.site_toml(name).write_text(
                f'name = "{name}"\nhome = "home"\n[source]\npath = "table.csv"\n'
                '[columns.offered]\n"*" = "number"\n'
                f'[trust]\ncoordinators = ["{self.coordinator.public}"]\n'
            )
        keys = "\n".join(f'{name} = "{key.public}"' for name, key in self.keys.items())
        self.study_toml = root / "study.toml"
        self.study_toml.write_text(
            f'name = "heights"\nmethod = "{method}"\n[data]\nfeatures = ["x", "y"]\n'
            f'[sites]\nnames = ["boston", "leeds"]\n[sites.keys]\n{keys}\n'
        )

    def site_toml(self, name: str) -> Path:
        return self.root / name / "site.toml"

    def watch_arguments(self, name: str, *more: str) -> list[str]:
        place = self.root / name
        return [
            "watch",
            str(self.site_toml(name)),
            "--folder",
            str(self.folder),
            "--key",
            str(place / "keys"),
            "--poll",
            "0.02",
            *more,
        ]

    def process(self, name: str, *more: str) -> subprocess.Popen[str]:
        command = "from consilience.cli.site import app; app()"
        return subprocess.Popen(
            [sys.executable, "-c", command, *self.watch_arguments(name, *more)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    @contextmanager
    def watching(self, *names: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
        processes = {name: self.process(name) for name in names}
        try:
            yield processes
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()

    def run(self, *, run_id: str = "r1", deadline: float = 60.0, quorum: int | None = None) -> Run:
        study = Study.load(self.study_toml)
        engine = FolderEngine(
            self.folder, study.sites.names, self.coordinator, study.sites.keys, 0.02
        )
        federation = Federation(
            engine,
            study.columns,
            study.preparation,
            study=study.hash(),
            study_text=study.canonical(),
            deadline=deadline,
            quorum=quorum,
        )
        return federation.run(get_method(study.method)(), seed=1, run_id=run_id)


def run_cli(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_keys(tmp_path: Path) -> None:
    first = run_cli("keys", str(tmp_path / "k"))
    assert first.exit_code == 0
    assert first.stdout.strip() == SigningKey.load(tmp_path / "k").public
    second = run_cli("keys", str(tmp_path / "k"))
    assert second.exit_code == 0
    assert "there is a key already" in second.stderr and second.stderr.count("\n") == 1
    assert second.stdout == first.stdout, "the key that is there, not a new one"
    assert first.stdout.strip() == SigningKey.load(tmp_path / "k").public


def test_watch_outputs_and_clean_ends(workspace: Workspace) -> None:
    with workspace.watching("boston", "leeds") as processes:
        run = workspace.run()
        processes["boston"].send_signal(signal.SIGTERM)
        processes["leeds"].send_signal(signal.SIGINT)
        said = {name: p.communicate(timeout=60)[0] for name, p in processes.items()}
        assert [p.returncode for p in processes.values()] == [0, 0]
    assert run.result.n == 80
    # A message that the folder still holds after the run is seen or not, whoever is quicker.
    lines = [line for line in said["boston"].splitlines() if "closed the run" not in line]
    assert lines[0].startswith("site boston: watching ")
    assert lines[1].startswith("run r1, round 1, step opening.read: replied with ")
    assert lines[-1] == "site boston: stopped"
    assert len(lines) == 5
    assert "731" not in said["boston"]

    left = run_cli("outputs", str(workspace.site_toml("boston")), "r1")
    assert left.exit_code == 0, left.stderr
    assert left.stdout.startswith("r1: read the table")


def test_outputs_of_runs(workspace: Workspace) -> None:
    toml = str(workspace.site_toml("boston"))
    missing = run_cli("outputs", toml)
    assert missing.exit_code == 7 and "nothing ran here" in missing.stderr
    folder = workspace.root / "boston" / "home" / "outputs" / "r7"
    folder.mkdir(parents=True)
    provenance = {"method": "m", "rows_kept": 38, "rows_read": 40, "run": "r7", "site": "boston"}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "labels.csv").write_text("row,kept,labels\n")
    assert run_cli("outputs", toml).stdout == "r7: method m, 38 of 40 rows\n"
    one = run_cli("outputs", toml, "r7").stdout
    assert str(folder / "labels.csv") in one
    read = json.loads(run_cli("outputs", toml, "r7", "--json").stdout)
    assert read["files"]["labels.csv"] == str(folder / "labels.csv")
    assert json.loads(run_cli("outputs", toml, "--json").stdout) == [read]
    for bad in ("r8", "../../keys"):
        wrong = run_cli("outputs", toml, bad)
        assert wrong.exit_code == 7 and "there are r7" in wrong.stderr


def test_approval_is_effective_while_watching(workspace: Workspace, tmp_path: Path) -> None:
    toml = str(workspace.site_toml("boston"))
    other = tmp_path / "other.toml"
    other.write_text(workspace.study_toml.read_text().replace("heights", "weights"))
    with workspace.watching("boston", "leeds"):
        assert workspace.run(run_id="r1").result.n == 80, "nothing approved: any study runs"
        approved = run_cli("approve", toml, str(other))
        assert approved.exit_code == 0 and Study.load(other).hash() in approved.stdout
        with pytest.raises(QuorumError, match="boston refused: the study is not among those"):
            workspace.run(run_id="r2")
        assert run_cli("approve", toml, str(workspace.study_toml)).exit_code == 0
        assert run_cli("approve", toml, str(workspace.study_toml)).exit_code == 0
        assert workspace.run(run_id="r3").result.n == 80
    stranger = workspace.root / "stranger.toml"
    stranger.write_text(
        workspace.study_toml.read_text().replace("boston", "paris").replace("heights", "h2")
    )
    wrong = run_cli("approve", toml, str(stranger))
    assert wrong.exit_code == 2 and "does not name site 'boston'" in wrong.stderr


def test_a_purged_run_leaves_its_outputs_and_cannot_go_on(workspace: Workspace) -> None:
    with workspace.watching("boston", "leeds"):
        workspace.run(run_id="r1")
    toml = str(workspace.site_toml("boston"))
    assert list(workspace.root.glob("**/runs/r1/*.record"))
    purged = run_cli("purge", toml, "r1")
    assert purged.exit_code == 0 and "outputs and ledgers stay" in purged.stdout
    assert not [p for p in workspace.root.glob("**/runs/r1/*.record") if "boston" in str(p)]
    assert "r1" in run_cli("outputs", toml).stdout
    assert run_cli("purge", toml, "../r1").exit_code == 7


@pytest.mark.parametrize("answers", ["yes\nyes\ny\n", "yes\nperhaps\nno\n"])
def test_confirm_shows_each_message_and_waits(workspace: Workspace, answers: str) -> None:
    refused = "no" in answers
    with workspace.watching("leeds"):
        process = workspace.process("boston", "--confirm")
        assert process.stdin is not None
        process.stdin.write(answers)
        process.stdin.flush()
        try:
            if refused:
                with pytest.raises(QuorumError, match="the steward did not release the reply"):
                    workspace.run()
            else:
                assert workspace.run().result.n == 80
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    shown = [" ".join(line.split()) for line in said.splitlines()]
    assert "run r1, round 2, step sums of method mean-and-sd" in shown
    assert "field class shape bytes rule verdict epsilon" in shown
    assert "totals aggregate 2 39 sum released 0" in shown
    assert ("the steward did not release the reply" in said) == refused
    assert "731" not in said


def test_confirm_without_a_steward_sends_nothing(workspace: Workspace) -> None:
    process = workspace.process("boston", "--confirm")
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert process.stdout is not None
    began = process.stdout.readline()
    absent = r"boston(, leeds)? (was|were) absent: no reply within the deadline"
    with workspace.watching("leeds"), pytest.raises(QuorumError, match=absent):
        workspace.run(deadline=3.0)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 7 and began
    assert "nobody answered at the prompt" in said.splitlines()[-1]


def test_a_signal_at_the_prompt_stops_at_once(workspace: Workspace) -> None:
    process = workspace.process("boston", "--confirm")
    run = threading.Thread(target=_expect_quorum_error, args=(workspace,))
    run.start()
    assert process.stdout is not None
    shown = ""
    while not shown.endswith("yes or no:"):
        shown += (one := process.stdout.read(1))
        assert one, shown
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    run.join()
    assert process.returncode == 0
    assert said.splitlines()[-1] == "site boston: stopped"
    home = workspace.root / "boston" / "home"
    assert not (home / "runs").exists(), "nothing was answered"


def _expect_quorum_error(workspace: Workspace) -> None:
    with pytest.raises(QuorumError):
        workspace.run(deadline=3.0)


def test_mistakes_are_one_sentence(workspace: Workspace) -> None:
    toml = workspace.site_toml("boston")
    arguments = workspace.watch_arguments("boston", "--once")
    (workspace.root / "boston" / "keys" / "consilience.key").chmod(0o644)
    key = run_cli(*arguments)
    assert key.exit_code == 2 and "other users" in key.stderr
    (workspace.root / "boston" / "keys" / "consilience.key").chmod(0o600)
    folder = [a if a != str(workspace.folder) else "/nonexistent" for a in arguments]
    assert run_cli(*folder).exit_code == 9
    assert run_cli(*arguments).exit_code == 0
    toml.write_text(toml.read_text().split("[trust]")[0])
    trust = run_cli(*arguments)
    assert trust.exit_code == 2 and "trusts no coordinator" in trust.stderr
    assert trust.stderr.count("\n") == 1
    assert run_cli("watch", "none.toml", *arguments[2:]).exit_code == 2


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    from types import SimpleNamespace

    from consilience.protocol.mean_and_sd import SumsRequest

    request = SimpleNamespace(run="r", round=1, step="\x1b[2J\nsums", method="m")
    assert next(iter(describe(request, SumsRequest(), ()))).count("\x1b") == 0


def test_what_leaves_is_described_in_columns() -> None:
    from types import SimpleNamespace

    from consilience.protocol.phases.standardise import Scale
    from consilience.wire.disclosure import relayed
    from consilience.wire.message import Disclosure

    request = SimpleNamespace(run="r", round=1, step="s", method="m")
    two = relayed(np.ones(2), Disclosure.AGGREGATE)
    head, *rows = list(describe(request, Scale(own=True, fill=two, centre=two, scale=two), ()))[1:]
    assert len(rows) == 4
    for word in ("class", "shape", "bytes", "rule", "verdict", "epsilon"):
        at = head.index(word)
        assert all(row[at - 2 : at] == "  " and row[at] != " " for row in rows), word


# --------------------------------------------------------------------------- damaged homes


def opened(workspace: Workspace, run: str) -> Request:
    """A run that was opened at a site, in its home on disk."""
    request = dataclasses.replace(OPEN, run=run, site="boston", message=opening(("x", "y")))
    file_site(SiteFile.load(workspace.site_toml("boston"))).answer(request.to_bytes())
    return request


def test_a_damaged_record_ends_no_watch(workspace: Workspace) -> None:
    """What the steward reads, at every start, and that the other run has its answer."""
    study = Study.load(workspace.study_toml)
    keys = (workspace.coordinator, study.sites.keys, 0.02)
    engine = FolderEngine(workspace.folder, ["boston"], *keys)
    request = opened(workspace, "r1")
    record = workspace.root / "boston" / "home" / "runs" / "r1" / "000001-001.record"
    record.write_bytes(b"")
    for run in ("r1", "r2"):
        engine.open_run(run)
        engine.send({(1, "boston"): dataclasses.replace(request, run=run).to_bytes()})
        done = run_cli(*workspace.watch_arguments("boston", "--once"))
        assert done.exit_code == 0, done.output
        (arrival,) = engine.collect(frozenset({(1, "boston")}), wait="all", deadline=5.0)
        assert arrival.data
        if run == "r1":
            said = f"{record} is damaged: restore it from a copy of the home, or purge run r1"
            assert f"{said}; what needs it is refused until then\n" in done.stdout
            assert "r1, round 1, step opening.read: refused: what the site keeps" in done.stdout
        else:
            assert "run r2, round 1, step opening.read: replied" in done.stdout


def test_damaged_outputs_hide_no_others(workspace: Workspace) -> None:
    opened(workspace, "r1"), opened(workspace, "r2")
    toml, home = str(workspace.site_toml("boston")), workspace.root / "boston" / "home"
    path = home / "outputs" / "r1" / "provenance.json"
    path.write_text("{")
    listed = run_cli("outputs", toml)
    assert listed.exit_code == 0 and listed.stdout.count("\n") == 2
    assert f"{path} is damaged: restore it from a copy" in listed.stderr
    assert run_cli("outputs", toml, "r2").stderr == ""


def test_a_damaged_run_can_be_purged(workspace: Workspace) -> None:
    opened(workspace, "r1")
    toml, home = str(workspace.site_toml("boston")), workspace.root / "boston" / "home"
    shutil.rmtree(home / "runs" / "r1")
    (home / "runs" / "r1").write_bytes(b"in the way")
    assert run_cli("purge", toml, "r1").exit_code == 0
    assert not (home / "runs" / "r1").exists()
