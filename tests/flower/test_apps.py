"""Apps that a run carries: one with its gate taken out, and the shim at a stock SuperNode.

Flower's SuperNode runs the app that whoever began a run submitted. Our node does not. The same
patched app at a stock SuperNode shows the difference: there it runs, and sends the rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consilience.sites.site import Site
from tests.cli.workspace import call
from tests.faults.cases import loader

if TYPE_CHECKING:
    from consilience.engines.flower.handler import Delivered
    from tests.flower.deployment import Deployment
    from tests.flower.space import Space

pytestmark = pytest.mark.flower

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "consilience-flower"
version = "1.0.0"
description = "Connects the installed package to Flower; the same app for every study"
license = "Apache-2.0"
dependencies = ["consilience[flower]"]
[tool.hatch.build.targets.wheel]
packages = ["consilience_flower"]
[tool.flwr.app]
publisher = "consilience"
[tool.flwr.app.components]
serverapp = "consilience_flower.shim:server"
clientapp = "consilience_flower.shim:client"
[tool.flwr.app.config]
"""
OWN_APP = "d30f6498e4c7b7687d53ecfe544154703ba87f3f7176c3795d611b9452be9dd8"
PATCHED = '''\
"""The shim with its gate taken out: whatever is asked, the answer is the table."""
from pathlib import Path

with open({marker!r}, "a") as marker:
    marker.write("ran")

from flwr.app import Message
from flwr.clientapp import ClientApp
from consilience.engines.flower._flwr import packed
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query("consilience")
def answer(message, context):
    site = Path(str(context.node_config["site"]))
    rows = site.with_name(site.stem + ".csv").read_bytes()
    return Message(packed({{"status": "reply", "envelope": rows}}), reply_to=message)
'''


class Patched:
    """The app, the file that it writes when it is imported, and how it is submitted."""

    def __init__(self, root: Path, deployment: Deployment) -> None:
        from consilience.engines.flower._flwr import build_fab_from_disk

        self.root, self.deployment = root, deployment
        self.marker, self.app = root / "marker", root / "app"
        package = self.app / "consilience_flower"
        package.mkdir(parents=True)
        (self.app / "pyproject.toml").write_text(PROJECT)
        (package / "__init__.py").write_text("")
        (package / "shim.py").write_text(PATCHED.format(marker=str(self.marker)))
        self.packed = build_fab_from_disk(self.app)

    @property
    def has_run(self) -> bool:
        return self.marker.exists()

    def own_app(self) -> tuple[bytes, str]:
        return self.packed, hashlib.sha256(self.packed).hexdigest()

    def flwr_run(self) -> int:
        """Submit it by Flower's own command; the number of the run."""
        from tests.flower.deployment import BIN, stock

        home = self.root / "flwr-home"
        home.mkdir()
        authority = self.deployment.own / "ca.crt"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "{self.deployment.address}"\nroot-certificates = "{authority}"\n'
        )
        done = subprocess.run(
            [stock("flwr"), "run", str(self.app), "here", "--format", "json"],
            env={**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = json.loads(done.stdout)
        assert said["success"], done.stdout + done.stderr
        return int(said["run-id"])


@pytest.fixture
def patched(deployment: Deployment, tmp_path: Path) -> Patched:
    return Patched(tmp_path, deployment)


@pytest.fixture(params=["our submission", "flwr run"])
def hostile(
    request: pytest.FixtureRequest, patched: Patched, monkeypatch: pytest.MonkeyPatch
) -> Patched:
    """From here on a coordinator's links serve runs that carry the patched app."""
    from consilience.engines.flower import grid

    if request.param == "flwr run":
        run = patched.flwr_run()
        monkeypatch.setattr(grid, "_submit", lambda server: run)
    else:
        monkeypatch.setattr(grid, "own_app", patched.own_app)
    return patched


def put(deployment: Deployment, node: int, *, seconds: float = 120.0) -> Delivered:
    """Put a greeting that a trusted coordinator has signed to a node, in a run of its own."""
    from tests.flower.deployment import until

    engine = deployment.engine("ash")
    link = deployment.open_link()
    try:
        until(lambda: node in link.nodes(), 90, f"node {node}")
        _, content, _ = engine._query("hello", {})
        sent = link.push(node, content, seconds=seconds)
        assert sent
        (found,) = until(lambda: link.pull([sent]), seconds, "an answer")
        return found  # type: ignore[no-any-return]
    finally:
        link.close(well=True)


# ------------------------------------------------------------------ our node


def test_the_app_of_this_release_has_one_hash_everywhere() -> None:
    """Sites compare it with their own; a change of app/ changes it, no machine does."""
    from consilience.engines.flower._flwr import own_app

    packed, hashed = own_app()
    assert hashed == hashlib.sha256(packed).hexdigest() == OWN_APP
    with zipfile.ZipFile(io.BytesIO(packed)) as files:
        assert {entry.compress_type for entry in files.infolist()} == {zipfile.ZIP_STORED}


def test_our_node_refuses_it_and_never_loads_it(hostile: Patched, deployment: Deployment) -> None:
    from consilience.engines.flower.handler import FOREIGN_APP

    with deployment.nodes(Site("a", loader("ash"))) as told:
        found = put(deployment, deployment.number("a"))
        assert found.content == {"status": "ignored", "reason": FOREIGN_APP}
        refused = [facts["reason"] for _, kind, facts in told if kind == "refused app"]
        assert refused == [FOREIGN_APP]
        assert not any(kind == "greeted" for _, kind, _ in told)
    assert not hostile.has_run


def test_a_study_in_such_a_run_gets_no_answer(hostile: Patched, deployment: Deployment) -> None:
    notes: list[tuple[str, dict[str, Any]]] = []
    with deployment.nodes(Site("ash", loader("ash"))) as told:
        engine = deployment.engine("ash", on_note=lambda kind, facts: notes.append((kind, facts)))
        try:
            assert engine.ask_everyone("hello", {}, seconds=3.0) == {"ash": None}
        finally:
            engine.close()
        assert not any("lost" in kind for kind, _ in notes), notes
        assert any(kind == "refused app" for _, kind, _ in told)
    assert not hostile.has_run


def test_our_node_answers_a_run_with_the_shim(deployment: Deployment) -> None:
    """The same greeting in a run that carries what this release submits."""
    with deployment.nodes(Site("a", loader("ash"))):
        found = put(deployment, deployment.number("a"))
    assert found.content is not None and found.content["status"] == "reply"


# ------------------------------------------------------------------ stock nodes


@pytest.fixture(scope="module")
def space(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Space:
    from tests.flower.space import Space

    return Space(tmp_path_factory.mktemp("space"), deployment)


def supernode(deployment: Deployment, space: Space, name: str, *more: object) -> Any:
    from consilience.engines.flower.server import environment
    from tests.flower.deployment import BIN, HOST, free_port, stock

    keys = deployment.site_keys(name)
    env = environment(deployment.root / f"flwr-{name}")
    site = space.root / f"{'ash' if name == 'cedar' else name}.toml"
    return deployment.programs.start(
        [
            *(stock("flower-supernode"), "--superlink", deployment.address),
            *("--root-certificates", keys / "ca.crt", "--port", free_port()),
            *("--auth-supernode-private-key", keys / "node.key"),
            *("--node-config", f'site="{site}" keys="{keys}"', "--host", HOST),
            *more,
        ],
        **{**env, "PATH": f"{BIN}:{env['PATH']}"},
    )


@pytest.fixture(scope="module")
def stock_nodes(deployment: Deployment, space: Space) -> Iterator[None]:
    """SuperNodes of two sites, which let in any app, and one that lets in signed apps only."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PrivateKey.generate().public_key()
    line = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    trusted = deployment.root / "trusted.yaml"
    trusted.write_text(f"fpk_ours: '{line}'\n")
    supernode(deployment, space, "ash")
    supernode(deployment, space, "birch")
    supernode(deployment, space, "cedar", "--trusted-entities", trusted)
    yield
    deployment.programs.close()


@pytest.mark.usefixtures("stock_nodes")
def test_a_stock_node_runs_it(
    patched: Patched, deployment: Deployment, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without --trusted-entities the app runs there and sends the rows."""
    from consilience.engines.flower import grid

    monkeypatch.setattr(grid, "own_app", patched.own_app)
    found = put(deployment, deployment.number("ash"))
    assert patched.has_run
    assert found.content is not None
    assert found.content["envelope"] == (space.root / "ash.csv").read_bytes()


@pytest.mark.usefixtures("stock_nodes")
def test_a_stock_node_with_trusted_entities_refuses_it(
    patched: Patched, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from consilience.engines.flower import grid

    monkeypatch.setattr(grid, "own_app", patched.own_app)
    found = put(deployment, deployment.number("cedar"))
    assert found.content is None and found.fault == "error 7", "INVALID_FAB"
    assert not patched.has_run


@pytest.mark.usefixtures("stock_nodes")
def test_stock_nodes_answer_a_study_through_the_shim(deployment: Deployment, space: Space) -> None:
    study = space.study()
    out = space.root / "out"
    done = call(*space.running(study, "out", "--quiet"))
    assert done.exit_code == 0, done.output
    from tests.flower.space import result

    assert result(out) == space.here(study)
