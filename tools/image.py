"""Build the image of ``deploy/Containerfile``, write it to a file, and sign the file.

``python -m tools.image build`` takes docker, podman or buildah, the first of them that works: it
answers, and has the base of the image or gets it. The archive in ``dist`` is loaded by ``docker
load`` and by ``podman load``. With ``--key`` its SHA-256 is signed as messages of runs are, and
``python -m tools.image verify FILE KEY`` says whether a file is the one that was signed.

More options of the build, such as a mounted configuration of pip, are words of ``IMAGE_FLAGS``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from consilience import __version__
from consilience.exceptions import ConsilienceError
from consilience.wire.signing import Context, SigningKey, unseal

ROOT = Path(__file__).resolve().parents[1]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
TAG = f"consilience:{__version__}"
BUILDERS = ("docker", "podman", "buildah")
# No run has such a name: what is signed here can be no message of one.
_CONTEXT = Context(".image", 0, 0, "reply", "consilience", "everybody")


@dataclass(frozen=True)
class Builder:
    """A program that builds images.

    Attributes
    ----------
    name : str
        Of `BUILDERS`.
    """

    name: str

    def call(self, *words: str, seconds: float = 120.0) -> bool:
        """Whether a command of it ends well, without a word."""
        try:
            done = subprocess.run(
                [self.name, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def works(self) -> bool:
        """Whether it answers, and the base of the image is there or can be had."""
        if not self.call("info"):
            return False
        (base,) = set(re.findall(r"^FROM (\S+)", CONTAINERFILE.read_text("utf-8"), re.MULTILINE))
        here = ("inspect", "--type", "image", base)
        return self.call(*here) or self.call("pull", base, seconds=600.0)

    def build(self) -> None:
        """Build the image from the folder of the repository."""
        more = shlex.split(os.environ.get("IMAGE_FLAGS", ""))
        kept = [] if self.name == "docker" else ["--layers"]
        words = ["build", *kept, *more, "--file", str(CONTAINERFILE), "--tag", TAG, str(ROOT)]
        subprocess.run([self.name, *words], stdin=subprocess.DEVNULL, check=True)

    def save(self, path: Path) -> None:
        """Write the image to a file that docker and podman load."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        words = {
            "docker": ["save", "--output", str(path), TAG],
            "podman": ["save", "--format", "docker-archive", "--output", str(path), TAG],
            "buildah": ["push", TAG, f"docker-archive:{path}:{TAG}"],
        }
        subprocess.run([self.name, *words[self.name]], stdin=subprocess.DEVNULL, check=True)


def builder() -> Builder | None:
    """The first builder that works."""
    return next((one for one in map(Builder, BUILDERS) if one.works()), None)


def sign(path: Path, key: SigningKey) -> Path:
    """Sign the SHA-256 of a file; returns the file with the signature."""
    signed = path.with_name(path.name + ".signed")
    signed.write_bytes(key.seal(_CONTEXT, _digest(path)))
    return signed


def verify(path: Path, public: str) -> bool:
    """Whether a file is the one that a key signed.

    Raises
    ------
    WireError
        The signature is damaged.
    SignatureError
        It is that of another key.
    """
    signed = path.with_name(path.name + ".signed").read_bytes()
    return unseal(signed, public=public, context=_CONTEXT) == _digest(path)


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build, write to dist, and sign")
    build.add_argument("--key", help="a private key, or its directory")
    check = commands.add_parser("verify", help="is a file the one that was signed?")
    check.add_argument("file", type=Path)
    check.add_argument("key", help="public key of who signed")
    given = parser.parse_args(words)
    try:
        if given.command == "verify":
            if not verify(given.file, given.key):
                raise SystemExit(f"{given.file} is not the file that was signed")
            print(f"{given.file} is as it was signed")
            return
        key = SigningKey.load(given.key) if given.key else None
    except (ConsilienceError, OSError) as error:
        raise SystemExit(str(error)) from None
    found = builder()
    if found is None:
        raise SystemExit(f"none of {', '.join(BUILDERS)} works here, or the base cannot be had")
    try:
        found.build()
        path = ROOT / "dist" / f"consilience-{__version__}-image.tar"
        found.save(path)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{found.name} ended with {error.returncode}") from None
    print(f"{TAG} by {found.name}: {path.relative_to(ROOT)}, sha256 {_digest(path).decode()}")
    if key is not None:
        print(f"signed by {key.public}: {sign(path, key).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
