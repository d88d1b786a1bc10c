"""Who must not get in does not, and reads in one sentence why; nobody hangs who should end."""

from __future__ import annotations

import datetime
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from consilience.sites.site import Site
from tests.cli.workspace import call
from tests.faults.cases import loader

if TYPE_CHECKING:
    from tests.flower.deployment import Deployment
    from tests.flower.space import Space

pytestmark = pytest.mark.flower

NO_CONNECTION = 9
"""Exit code of a command whose connection failed."""
SECONDS = 20.0
"""By then a command of a person has ended; it takes one or two."""

WRONG_CA = "the server's certificate is not signed by the authority that was given"
EXPIRED = "the server's certificate has expired"
OTHER_HOST = "the server's certificate is for another host"
UNKNOWN = "the server does not know this key or token"
NO_TLS = "the server does not speak TLS"


@pytest.fixture
def space(deployment: Deployment, tmp_path: Path) -> Space:
    from tests.flower.space import Space

    return Space(tmp_path, deployment)


@pytest.fixture(scope="module")
def odd_servers(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Real servers that our own command would refuse to start, or that speak plaintext."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    from consilience.engines.flower import keys
    from consilience.engines.flower.server import environment, superlink_command
    from tests.flower.deployment import HOST, free_port, until

    ca_key: Any = serialization.load_pem_private_key(
        (deployment.keys / "ca.key").read_bytes(), None
    )
    ca = x509.load_pem_x509_certificate((deployment.keys / "ca.crt").read_bytes())
    minute = datetime.timedelta(minutes=1) / datetime.timedelta(days=1)
    made: dict[str, tuple[list[str], float] | None] = {
        "expired": ([HOST], -minute),
        "another host": (["coordinator.example.org"], 30.0),
        "plaintext": None,
    }
    found, home = {}, tmp_path_factory.mktemp("odd")
    for number, (name, about) in enumerate(made.items()):
        own, port = home / str(number), free_port()
        shutil.copytree(deployment.own, own)
        words = superlink_command(own, HOST, port, own / "db", insecure=about is None)
        if about is not None:
            hosts, days = about
            key, certificate = keys._server(ca_key, ca, hosts, days)  # type: ignore[arg-type]
            (own / "server.key").write_bytes(keys._pem(key))
            (own / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        deployment.programs.start(words, **environment(own / "flwr"))
        found[name] = f"{HOST}:{port}"
    for address in found.values():
        port = int(address.rpartition(":")[2])

        def answers(port: int = port) -> bool:
            with socket.socket() as one:
                return one.connect_ex((HOST, port)) == 0

        until(answers, 90, "a server")
    return found


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of another federation."""
    from consilience.engines.flower.keys import make_federation

    other = tmp_path_factory.mktemp("strangers") / "keys"
    make_federation(other, ["ash"])
    return other


CASES = ["wrong authority", "expired", "another host", "plaintext for TLS", "TLS for plaintext"]
SAID = dict(zip(CASES, [WRONG_CA, EXPIRED, OTHER_HOST, "", NO_TLS], strict=True))


@pytest.fixture(params=CASES)
def case(
    request: pytest.FixtureRequest,
    deployment: Deployment,
    odd_servers: dict[str, str],
    strangers: Path,
) -> tuple[str, str, Path | None]:
    """What is wrong, the address, and the authority's certificate (None: plaintext)."""
    ours, name = deployment.own / "ca.crt", str(request.param)
    if name == "wrong authority":
        return name, deployment.address, strangers / "ca.crt"
    if name == "plaintext for TLS":
        return name, deployment.address, None
    return name, odd_servers["plaintext" if name == "TLS for plaintext" else name], ours


def waits(deployment: Deployment, **settings: Any) -> str:
    """The one sentence that a node tells while it waits, and goes on waiting."""
    from tests.flower.deployment import until

    with deployment.nodes(Site("ash", loader("ash")), **settings) as told:
        until(lambda: told, 30, "a node to say something")
        time.sleep(2.5)  # two or three more attempts
        assert [kind for _, kind, _ in told] == ["waiting"], told
        (_, _, facts) = told[0]
        return str(facts["reason"])


def test_a_node_waits_and_says_why_once(
    case: tuple[str, str, Path | None], deployment: Deployment
) -> None:
    from consilience.engines.flower._flwr import Server

    name, address, authority = case
    said = waits(deployment, server=Server(address, authority))
    assert SAID[name] in said and said.startswith("connecting to the SuperLink failed: ")


def test_a_node_whose_key_is_not_registered(deployment: Deployment, strangers: Path) -> None:
    said = waits(deployment, node_key=strangers / "sites/ash/node.key")
    assert "it is not registered there" in said


def test_a_node_without_a_key(deployment: Deployment) -> None:
    """A server with authentication lets nobody register a key of his own."""
    said = waits(deployment, node_key=None)
    assert "the server lets in registered nodes only" in said


def test_a_coordinator_ends_in_one_sentence(
    case: tuple[str, str, Path | None], space: Space
) -> None:
    from tests.flower.space import one_line

    name, address, authority = case
    study, own = space.study(), space.root / "keys"
    shutil.copytree(space.deployment.own, own)
    if authority is not None:
        shutil.copy(authority, own / "ca.crt")
    more = ("--superlink", address, "--keys", own, *(() if authority else ("--insecure",)))
    for words in (("flower", "run", study, "--out", space.root / "out"), ("check", study)):
        began = time.monotonic()
        engine = ("--engine", "flower") if words[0] == "check" else ()
        done = call(*words, *engine, *more)
        assert time.monotonic() - began < SECONDS
        assert done.exit_code == NO_CONNECTION, (words, done.output)
        said = one_line(done)
        assert SAID[name] in said and address in said
    assert not (space.root / "out/run.json").exists()


def test_a_coordinator_without_the_secret(space: Space) -> None:
    from tests.flower.space import one_line

    study, own = space.study(), space.root / "keys"
    shutil.copytree(space.deployment.own, own)
    (own / "executor.secret").write_text("0" * 64)
    began = time.monotonic()
    done = call(
        *("flower", "run", study, "--out", space.root / "out"),
        *("--superlink", space.deployment.address, "--keys", own),
    )
    assert time.monotonic() - began < SECONDS
    assert done.exit_code == NO_CONNECTION
    assert UNKNOWN in one_line(done)


def test_the_secret_opens_it_again(space: Space) -> None:
    """Tasks that the refused one began are in nobody's way."""
    with space.deployment.nodes(Site("ash", loader("ash"))):
        engine = space.deployment.engine("ash")
        try:
            found = engine.ask_everyone("hello", {}, seconds=30.0)
        finally:
            engine.close()
    assert found["ash"] is not None


def test_our_server_does_not_start_with_such_certificates(
    deployment: Deployment, strangers: Path, tmp_path: Path
) -> None:
    from tests.flower.space import one_line

    own = tmp_path / "own"
    shutil.copytree(deployment.own, own)
    shutil.copy(strangers / "ca.crt", own / "ca.crt")
    done = call("flower", "coordinator", "--keys", own, "--port", 1, "--home", tmp_path / "home")
    assert done.exit_code == 2 and "is not signed by" in one_line(done)
    assert not (tmp_path / "home").exists()


def test_a_site_of_another_key_is_not_taken_for_it(deployment: Deployment, strangers: Path) -> None:
    """Its node is let in, but what it says is not signed by the site's key."""
    from consilience.engines.flower import Desk
    from consilience.wire.signing import SigningKey

    own = SigningKey.load(strangers / "sites/ash")
    desk = Desk(Site("ash", loader("ash")), own, [deployment.public["coordinator"]])
    with deployment.nodes(Site("ash", loader("ash")), handle=desk.handle):
        engine = deployment.engine("ash")
        try:
            assert engine.ask_everyone("hello", {}, seconds=4.0) == {"ash": None}
        finally:
            engine.close()


@pytest.fixture(scope="module", autouse=True)
def _tidy(deployment: Deployment) -> Iterator[None]:
    yield
    deployment.programs.close()
