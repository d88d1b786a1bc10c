"""Certificates and keys of a federation over Flower.

Three kinds, for three questions:

============  ====================================  =====================================
who            file                                  answers
============  ====================================  =====================================
the server     ``server.crt`` signed by ``ca.crt``   am I speaking with the right server?
a node         ``node.key`` (ECDSA, P-384)           may this node connect?
a party        ``consilience.key`` (Ed25519)         who wrote this message?
============  ====================================  =====================================

The first two are Flower's: they guard the connection to the SuperLink. The third is ours and goes
from end to end: who runs the SuperLink can read and drop messages, but neither write nor alter one.

For a first trial one person makes all of them (`make_federation`). Between organisations each makes
its own node key and party key (`make_node_key`, ``consilience site keys``) and hands out only their
public halves; the certificate of the server comes from whoever signs certificates there.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from consilience.engines.signed import check_site
from consilience.exceptions import ParameterError, StudyError
from consilience.wire.files import create_file, make_directory
from consilience.wire.signing import PRIVATE_FILE, SigningKey

CA, CA_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.crt", "server.key"
NODE_KEY, NODE_PUBLIC = "node.key", "node.pub"
SECRET = "executor.secret"
COORDINATOR, SITES, NODES = "coordinator", "sites", "nodes"

_HOST_NAME = re.compile(r"(?!.{254})[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_-]+)*")
_BACK = datetime.timedelta(hours=1)
"""Certificates begin a little earlier: clocks of other machines may be behind."""


def make_federation(
    directory: Path,
    sites: Iterable[str],
    hosts: Iterable[str] = ("127.0.0.1", "localhost"),
    *,
    days: int = 365,
) -> dict[str, str]:
    """Make every certificate and key of a federation that is tried out.

    ::

        <directory>/
          ca.crt  ca.key                                signs the server's certificate
          coordinator/  server.crt  server.key  ca.crt  executor.secret  consilience.key
                        nodes/<site>.pub                nodes that may connect
          sites/<site>/ ca.crt  node.key  node.pub  consilience.key

    Parameters
    ----------
    directory : Path
    sites : iterable of str
    hosts : iterable of str
        Names and addresses under which sites reach the server.
    days : int
        How long the certificates hold.

    Returns
    -------
    dict of str to str
        Public keys that sign messages, by site and for ``"coordinator"``.

    Raises
    ------
    StudyError
        The directory holds keys already, or a name is not allowed.
    RunError
        It cannot be written.
    """
    names, addresses = [check_site(site) for site in sites], list(hosts)
    if not names or len(set(names)) < len(names):
        raise StudyError("name each site of the federation once: --site NAME, several times")
    if COORDINATOR in names:
        raise StudyError(f"no site can be called {COORDINATOR!r} here: give it another name")
    if not addresses:
        raise StudyError("name at least one host under which sites reach the server: --host NAME")
    if not 1 <= days <= 3650:
        raise ParameterError.of("days", "a number from 1 to 3650", days)
    if directory.is_dir() and any(directory.iterdir()):
        raise StudyError(
            f"{directory} is not empty and keys are never overwritten: name a new directory"
        )
    # For trials: between organisations no single person may hold all of these.
    ca_key, ca = _authority(days)
    server_key, server = _server(ca_key, ca, addresses, days)
    ca_text = ca.public_bytes(serialization.Encoding.PEM)
    public = {}
    top = make_directory(directory, mode=0o700)
    create_file(top / CA, ca_text, mode=0o644)
    create_file(top / CA_KEY, _pem(ca_key))
    home = make_directory(directory / COORDINATOR, mode=0o700)
    create_file(home / CA, ca_text, mode=0o644)
    create_file(home / SERVER, server.public_bytes(serialization.Encoding.PEM), mode=0o644)
    create_file(home / SERVER_KEY, _pem(server_key))
    make_secret(home)
    public[COORDINATOR] = _party_key(home)
    nodes = make_directory(home / NODES)
    for site in names:
        own = make_directory(directory / SITES / site, mode=0o700)
        create_file(own / CA, ca_text, mode=0o644)
        line = make_node_key(own, site)
        create_file(nodes / f"{site}.pub", line.encode() + b"\n", mode=0o644)
        public[site] = _party_key(own)
    return public


def make_node_key(directory: Path, site: str) -> str:
    """Make the key by which a node is known to the SuperLink; returns its public line.

    Raises
    ------
    StudyError
        There is one already.
    RunError
        The directory cannot be written.
    """
    check_site(site)
    make_directory(directory, mode=0o700)
    # A site whose key was replaced could not connect until it is registered anew.
    if (directory / NODE_KEY).exists():
        raise StudyError(f"{directory / NODE_KEY} exists already and is not overwritten: use it")
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    own = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    line = f"{own.decode()} {site}"
    create_file(directory / NODE_KEY, text)
    create_file(directory / NODE_PUBLIC, line.encode() + b"\n", mode=0o644)
    return line


def make_secret(directory: Path) -> Path:
    """Make the secret by which our process is let to the server's tasks, unless there is one.

    Raises
    ------
    StudyError
        There is no such directory.
    RunError
        It cannot be written.
    """
    require_directory(directory)
    path = directory / SECRET
    if not path.exists():
        create_file(path, secrets.token_hex(32).encode())
    return path


def require_directory(directory: Path) -> None:
    """Refuse a coordinator's directory that is not there."""
    if not directory.is_dir():
        raise StudyError(
            f"there is no directory {directory}: name the coordinator's, which 'consilience flower "
            "keys' makes"
        )


def days_left(certificate: Path) -> float:
    """Days until a certificate ends; negative when it has.

    Raises
    ------
    StudyError
        The file is no certificate.
    """
    end = _certificate(certificate).not_valid_after_utc
    now = datetime.datetime.now(datetime.UTC)
    return (end - now).total_seconds() / 86400


def is_signed_by(certificate: Path, authority: Path) -> bool:
    """Whether one certificate was signed by the key of another."""
    try:
        _certificate(certificate).verify_directly_issued_by(_certificate(authority))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    except Exception as error:
        if type(error).__name__ == "InvalidSignature":
            return False
        raise
    return True


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise StudyError(
            f"there is no certificate {path}: ask who runs the server for it, or make one for a "
            "trial with 'consilience flower keys DIR'"
        ) from None
    except (ValueError, OSError):
        raise StudyError(f"{path} is no certificate in PEM form: get it again") from None


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("consilience trial authority")
    others = "digital_signature content_commitment key_encipherment data_encipherment key_agreement"
    uses = dict.fromkeys([*others.split(), "encipher_only", "decipher_only"], False)
    usage = x509.KeyUsage(**uses, key_cert_sign=True, crl_sign=True)
    made = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return key, made.sign(key, hashes.SHA256())


def _server(
    ca_key: ec.EllipticCurvePrivateKey, ca: x509.Certificate, hosts: list[str], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    made = (
        _builder(_name("consilience server"), ca.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .add_extension(usage, critical=False)
        .add_extension(issuer, critical=False)
    )
    return key, made.sign(ca_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(text):
        raise StudyError(
            f"{text[:80]!r} is neither a host name nor an address: leave out port and scheme"
        )
    return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _party_key(directory: Path) -> str:
    """Make the key that signs messages unless there is one; returns its public half."""
    if (directory / PRIVATE_FILE).exists():
        return SigningKey.load(directory).public
    key = SigningKey.generate()
    key.save(directory)
    return key.public
