"""The commands, from the first key to the finished run, as somebody new to them types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.workspace import call

if TYPE_CHECKING:
    from tests.flower.deployment import Programs
    from tests.flower.space import Space

pytestmark = pytest.mark.flower


class Newcomer:
    """A directory, the programs that were started in it, and a study that goes with them."""

    def __init__(self, root: Path) -> None:
        from tests.flower.deployment import Programs, free_port
        from tests.flower.space import Space

        self.root, self.port = root, free_port()
        self.programs: Programs = Programs(root)
        made = call("flower", "keys", root / "keys", "--site", "ash", "--site", "birch")
        assert made.exit_code == 0, made.output
        lines = tomllib.loads(made.stdout)
        self.public = {"coordinator": lines["coordinator"]["key"], **lines["sites"]["keys"]}
        self.keys, self.own = root / "keys", root / "keys/coordinator"
        self.space: Space = Space(root, self)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def site_keys(self, name: str) -> Path:
        return self.keys / "sites" / name

    def coordinator(self, *more: object) -> subprocess.Popen[bytes]:
        """Start the server and wait until it says so."""
        words = ("flower", "coordinator", "--keys", self.own, "--port", self.port, *more)
        server = self.programs.consilience(*words, cwd=self.root)
        self.space.tells(server, "SuperLink at")
        return server


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Newcomer]:
    pytest.importorskip("flwr")
    made = Newcomer(tmp_path)
    try:
        yield made
    finally:
        made.programs.close()


def test_from_the_first_key_to_the_finished_run(newcomer: Newcomer) -> None:
    space = newcomer.space
    server = newcomer.coordinator()
    assert "nodes: ash, birch" in newcomer.programs.said(server)
    nodes = space.sites()
    assert "apps of runs are not loaded" in newcomer.programs.said(nodes["ash"])
    study = space.study("ensemble-clustering")
    where = ("--superlink", newcomer.address, "--keys", newcomer.own)

    checked = call("check", study, "--engine", "flower", *where)
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.count("can take part") == 2 and "TLS" in checked.stdout

    done = call(*space.running(study, "out", "--json"))
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["run"]
    out = space.root / "out"
    assert (out / "report.html").is_file()
    before = {p.name: p.read_bytes() for p in out.glob("result.*")}
    assert before == space.here(study)

    resumed = call(*space.running(study, "out", "--resume", "--quiet"))
    assert resumed.exit_code == 0, resumed.output
    assert {p.name: p.read_bytes() for p in out.glob("result.*")} == before

    again = newcomer.programs.consilience(
        "flower",
        "coordinator",
        "--keys",
        newcomer.own,
        "--port",
        newcomer.port,
        "--home",
        newcomer.root / "second",
        cwd=newcomer.root,
    )
    assert space.ended(again, 90) == 9
    (said,) = newcomer.programs.said(again).splitlines()
    assert f"port {newcomer.port}" in said and "taken" in said
    assert server.poll() is None, "the first one goes on"

    for process in (*nodes.values(), server):
        process.send_signal(signal.SIGTERM)
    for process in (*nodes.values(), server):
        assert space.ended(process, 30) == 0
        assert newcomer.programs.said(process).splitlines()[-1].endswith("stopped")


def test_a_server_command_that_was_killed_is_started_again(newcomer: Newcomer) -> None:
    """What it had started ends with it: the port is free."""
    first = newcomer.coordinator()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = newcomer.coordinator()
    second.send_signal(signal.SIGTERM)
    assert newcomer.space.ended(second, 30) == 0


def test_a_site_that_cannot_reach_the_server(newcomer: Newcomer) -> None:
    """It says so once and waits; the run ends at once."""
    space = newcomer.space
    node = newcomer.programs.consilience(*space.at_site("ash"), cwd=space.root)
    said = space.tells(node, "waiting")
    assert "nobody answers at that address" in said and "Traceback" not in said
    run = call(*space.running(space.study(), "nowhere"))
    assert run.exit_code == 9
    assert "nobody answers at that address" in run.stderr and newcomer.address in run.stderr
    node.send_signal(signal.SIGTERM)
    assert space.ended(node, 30) == 0
    assert newcomer.programs.said(node).count("waiting") == 1


@pytest.mark.parametrize("missing", ["ca.crt", "node.key", "consilience.key"])
def test_a_site_without_a_key(newcomer: Newcomer, missing: str) -> None:
    keys = newcomer.root / f"without-{missing}"
    shutil.copytree(newcomer.site_keys("ash"), keys)
    (keys / missing).unlink()
    words = list(newcomer.space.at_site("ash"))
    words[words.index(newcomer.site_keys("ash"))] = keys
    done = call(*words)
    assert done.exit_code == 2 and missing in done.stderr.splitlines()[-1], done.output
    assert "Traceback" not in done.output


def test_a_site_that_trusts_nobody(newcomer: Newcomer) -> None:
    path = newcomer.root / "ash.toml"
    kept = path.read_text()
    try:
        path.write_text(kept[: kept.index("[trust]")])
        done = call(*newcomer.space.at_site("ash"))
    finally:
        path.write_text(kept)
    assert done.exit_code == 2 and "trusts no coordinator" in done.stderr, done.output


def test_a_node_key_that_others_may_read(newcomer: Newcomer) -> None:
    key = newcomer.site_keys("birch") / "node.key"
    key.chmod(0o644)
    try:
        done = call(*newcomer.space.at_site("birch"))
    finally:
        key.chmod(0o600)
    assert done.exit_code == 2 and "chmod 600" in done.stderr, done.output


def test_certificates_that_are_about_to_end(tmp_path: Path) -> None:
    """Who starts the server, and who checks a study, is told."""
    from tests.flower.deployment import Programs, free_port

    made = call("flower", "keys", tmp_path / "keys", "--site", "ash", "--days", 7)
    assert made.exit_code == 0
    programs = Programs(tmp_path)
    try:
        server = programs.consilience(
            "flower",
            "coordinator",
            "--keys",
            tmp_path / "keys/coordinator",
            "--port",
            free_port(),
            cwd=tmp_path,
        )
        from tests.flower.deployment import until

        until(lambda: "SuperLink at" in programs.said(server), 90, "the server")
        assert "ends in 7 days" in " ".join(programs.said(server).split())
    finally:
        programs.close()
