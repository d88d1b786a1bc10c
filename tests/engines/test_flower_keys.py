"""Certificates and keys of a federation: they verify, only their owner reads them, none is lost."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from consilience.engines.flower import server
from consilience.engines.flower.keys import (
    days_left,
    is_signed_by,
    make_federation,
    make_node_key,
    make_secret,
)
from consilience.exceptions import ConsilienceError, ParameterError, StudyError
from consilience.wire.signing import SigningKey

HOSTS = ("127.0.0.1", "::1", "localhost", "flower.example.org", "node_1")
SITES = ("ash", "birch-2", "st.mary")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    before = os.umask(0)  # as careless as can be
    try:
        place = tmp_path_factory.mktemp("keys") / "made"
        make_federation(place, SITES, HOSTS, days=30)
    finally:
        os.umask(before)
    return place


def files(place: Path) -> Iterator[Path]:
    return (path for path in place.rglob("*") if path.is_file())


def test_only_the_owner_reads_what_is_private(made: Path) -> None:
    private = {p for p in files(made) if (p.stat().st_mode & 0o777) == 0o600}
    others = set(files(made)) - private
    assert {p.name for p in private} == {
        "ca.key",
        "server.key",
        "node.key",
        "consilience.key",
        "executor.secret",
    }
    assert len(private) == 4 + 2 * len(SITES)
    for path in others:
        assert path.suffix in (".crt", ".pub")
        assert b"PRIVATE" not in path.read_bytes()


def test_each_site_gets_its_own_and_nothing_else(made: Path) -> None:
    for site in SITES:
        own = {p.name for p in (made / "sites" / site).iterdir()}
        assert own == {"ca.crt", "node.key", "node.pub", "consilience.key", "consilience.pub"}
    keys = {p.read_bytes() for p in files(made) if p.name in ("node.key", "consilience.key")}
    assert len(keys) == 2 * len(SITES) + 1


def shake(made: Path, ca: Path, host: str) -> None:
    """Let a client that trusts the authority meet the server, in memory."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "coordinator/server.crt", made / "coordinator/server.key")
    client = ssl.create_default_context(cafile=str(ca))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert ends == []


@pytest.mark.parametrize("host", HOSTS)
def test_the_servers_certificate_verifies_for_its_hosts(made: Path, host: str) -> None:
    for ca in (made / "ca.crt", made / "coordinator/ca.crt", made / "sites/ash/ca.crt"):
        shake(made, ca, host)


@pytest.mark.parametrize("host", ["127.0.0.2", "example.org", "evil.flower.example.org"])
def test_it_verifies_for_no_other_host(made: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake(made, made / "ca.crt", host)


def test_it_does_not_verify_by_another_authority(made: Path, tmp_path: Path) -> None:
    make_federation(tmp_path / "other", ["ash"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(made, tmp_path / "other/ca.crt", "localhost")
    server = made / "coordinator/server.crt"
    assert is_signed_by(server, made / "ca.crt")
    assert not is_signed_by(server, tmp_path / "other/ca.crt")
    assert not is_signed_by(server, server)


def test_the_server_can_be_no_authority(made: Path) -> None:
    """Who has the server's key cannot make certificates for other names."""
    from cryptography import x509

    server = x509.load_pem_x509_certificate((made / "coordinator/server.crt").read_bytes())
    ca = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    for certificate, is_ca in ((server, False), (ca, True)):
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert basic.critical and basic.value.ca is is_ca


def test_certificates_end(made: Path, tmp_path: Path) -> None:
    for name in ("ca.crt", "coordinator/server.crt"):
        assert 29.9 < days_left(made / name) <= 30.0
    for days in (0, 3651, -1):
        with pytest.raises(ParameterError, match="days must be a number from 1 to 3650"):
            make_federation(tmp_path / "k", ["ash"], days=days)
    with pytest.raises(StudyError, match="there is no certificate"):
        days_left(tmp_path / "none.crt")
    (tmp_path / "bad.crt").write_text("text")
    with pytest.raises(StudyError, match="is no certificate in PEM form"):
        days_left(tmp_path / "bad.crt")
    assert not (tmp_path / "k").exists()


def test_node_keys_are_as_flower_reads_them(made: Path) -> None:
    for site in SITES:
        own = made / "sites" / site
        key = load_ssh_private_key((own / "node.key").read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey) and key.curve.name == "secp384r1"
        line = (own / "node.pub").read_bytes()
        assert line == (made / "coordinator/nodes" / f"{site}.pub").read_bytes()
        assert line.endswith(f" {site}\n".encode()) and line.count(b"\n") == 1
        public = load_ssh_public_key(line)
        assert public.public_numbers() == key.public_key().public_numbers()  # type: ignore[union-attr]


def test_public_keys_that_are_returned_are_those_that_lie_there(tmp_path: Path) -> None:
    public = make_federation(tmp_path / "k", SITES)
    assert set(public) == {"coordinator", *SITES} and len(set(public.values())) == 1 + len(SITES)
    assert SigningKey.load(tmp_path / "k/coordinator").public == public["coordinator"]
    for site in SITES:
        assert SigningKey.load(tmp_path / "k/sites" / site).public == public[site]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "k"
    make_federation(place, ["ash"])
    before = {path: path.read_bytes() for path in files(place)}
    with pytest.raises(StudyError, match="is not empty and keys are never overwritten"):
        make_federation(place, ["ash"])
    with pytest.raises(StudyError, match="exists already and is not overwritten"):
        make_node_key(place / "sites/ash", "ash")
    assert (
        make_secret(place / "coordinator").read_bytes()
        == before[place / "coordinator/executor.secret"]
    )
    assert {path: path.read_bytes() for path in files(place)} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(StudyError, match="is not empty"):
        make_federation(tmp_path / "other", ["ash"])
    (tmp_path / "empty").mkdir()
    make_federation(tmp_path / "empty", ["ash"])


def test_a_site_that_has_made_its_own_keeps_it(tmp_path: Path) -> None:
    """Node key beside a party key, in either order."""
    key = SigningKey.generate()
    key.save(tmp_path / "own")
    line = make_node_key(tmp_path / "own", "ash")
    assert line.startswith("ecdsa-sha2-nistp384 ") and line.endswith(" ash")
    assert SigningKey.load(tmp_path / "own").public == key.public
    assert (tmp_path / "own/node.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "names", [[], ["ash", "ash"], ["../ash"], ["a/b"], [""], [".ash"], ["a b"], ["coordinator"]]
)
def test_bad_names_of_sites_are_refused_before_anything_is_written(
    tmp_path: Path, names: list[str]
) -> None:
    with pytest.raises(StudyError):
        make_federation(tmp_path / "k", names)
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize(
    "host",
    [
        *("", "a b", "h:9092", "https://h", "h/x", "*.example.org", "-h", ".h", "münchen"),
        *("h" * 254, "h\n", "1.2.3.4/8", "a..b"),
    ],
)
def test_bad_hosts_are_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(StudyError, match="neither a host name nor an address"):
        make_federation(tmp_path / "k", ["ash"], [host])
    with pytest.raises(StudyError, match="at least one host"):
        make_federation(tmp_path / "k", ["ash"], [])
    assert not (tmp_path / "k").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConsilienceError, match="file"):
        make_federation(tmp_path / "file/k", ["ash"])
    with pytest.raises(StudyError, match="there is no directory"):
        make_secret(tmp_path / "none")


def test_a_server_starts_until_its_certificate_ends(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "days_left", lambda path: 0.01)
    server._check_certificate(made / "coordinator")
    monkeypatch.setattr(server, "days_left", lambda path: 0.0)
    with pytest.raises(StudyError, match="has expired"):
        server._check_certificate(made / "coordinator")
