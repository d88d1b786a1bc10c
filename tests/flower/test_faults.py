"""Servers, nodes and coordinators that die, stop or forget: the numbers are those of a clean run.

An ask to a node that died with it in hand is put again after 20 seconds of silence, and a dead
node counts as connected for up to a minute: these tests wait more than they compute.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rotation import one_in

if TYPE_CHECKING:
    from tests.flower.deployment import Deployment
    from tests.flower.space import Space

pytestmark = pytest.mark.flower


@pytest.fixture
def space(deployment: Deployment, tmp_path: Path) -> Iterator[Space]:
    from tests.flower.space import Space

    yield Space(tmp_path, deployment)
    # Nodes and coordinators of one test must not meet those of the next.
    deployment.programs.close()
    deployment.programs._started.clear()


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def test_nodes_die_with_a_message_in_hand(space: Space) -> None:
    """One before it has done anything, one after it has kept its reply; both are started again."""
    study = space.study("ensemble-clustering")
    programs = space.deployment.programs
    moments = {"ash": "asked", "birch": "answered"}
    doomed = {
        name: programs.doomed(moment, 3, "kill", *space.at_site(name), cwd=space.root)
        for name, moment in moments.items()
    }
    for node in doomed.values():
        space.tells(node, "connected")
    run = programs.consilience(*space.running(study, "out"), cwd=space.root)
    for node in doomed.values():
        assert space.ended(node) == -signal.SIGKILL
    space.sites()
    assert space.done(run, "out") == space.here(study)


def test_a_node_stops_and_goes_on(space: Space) -> None:
    """With an ask in hand, while the others have answered."""
    from tests.flower.deployment import until

    study = space.study("ensemble-clustering")
    programs = space.deployment.programs
    node = programs.doomed("asked", 2, "stop", *space.at_site("ash"), cwd=space.root)
    with space.threads("birch"):
        run = programs.consilience(*space.running(study, "out"), cwd=space.root)
        until(lambda: is_stopped(node), 90, "the node to stop")
        time.sleep(5.0)
        assert run.poll() is None, "the run went on without the site"
        os.kill(node.pid, signal.SIGCONT)
        assert space.done(run, "out") == space.here(study)


@one_in(
    3, {"journal-2": ("journal", 2), "pushed-5": ("pushed", 5), "journal-7": ("journal", 7)}, "at"
)
def test_the_client_dies_and_is_resumed(space: Space, at: tuple[str, int]) -> None:
    moment, number = at
    study = space.study("ensemble-clustering")
    programs = space.deployment.programs
    words = space.running(study, "out")
    with space.threads():
        run = programs.doomed(moment, number, "kill", *words, cwd=space.root)
        assert space.ended(run) == -signal.SIGKILL, programs.said(run)
        assert not (space.root / "out/result.json").exists()
        again = programs.consilience(*words, "--resume", cwd=space.root)
        assert space.done(again, "out") == space.here(study)


@one_in(2, {"same database": False, "lost database": True}, "forgets")
def test_the_server_dies(space: Space, *, forgets: bool) -> None:
    from tests.flower.deployment import until

    study = space.study("ensemble-clustering")
    programs = space.deployment.programs
    node = programs.doomed("asked", 3, "stop", *space.at_site("ash"), cwd=space.root)
    space.tells(node, "connected")
    with space.threads("birch") as told:
        run = programs.consilience(*space.running(study, "out"), cwd=space.root)
        until(lambda: is_stopped(node), 90, "the node to stop")
        space.deployment.kill_server()
        os.kill(node.pid, signal.SIGCONT)
        if forgets:
            space.deployment.forget()
        space.deployment.up()
        assert space.done(run, "out") == space.here(study)
    assert node.poll() is None, "a node waits for its server"
    said = programs.said(node)
    assert "disconnected" in said and said.count("connected server=") >= 2, said
    kinds = [kind for _, kind, _ in told if "connected" in kind]
    assert kinds[:3] == ["connected", "disconnected", "connected"], told


def test_two_coordinators_at_once(space: Space) -> None:
    """Two runs of one party, and one of the same key on another machine, each with its own turn."""
    programs, deployment = space.deployment.programs, space.deployment
    elsewhere = space.root / "elsewhere"
    shutil.copytree(deployment.own, elsewhere)
    studies = {
        "one": space.study("ensemble-clustering", name="one"),
        "two": space.study("mean-and-sd", name="two", seed=6),
        "three": space.study("ensemble-clustering", name="three", seed=7),
    }
    runs = {}
    with space.threads():
        for name, study in studies.items():
            words = list(space.running(study, name))
            if name == "three":
                words[words.index(deployment.own)] = elsewhere
            runs[name] = programs.consilience(*words, cwd=space.root)
        for name, run in runs.items():
            assert space.done(run, name) == space.here(studies[name]), name
