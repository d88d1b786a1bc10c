"""The container image: where a builder works it is built, and its programs run in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience import __version__
from consilience.exceptions import SignatureError
from consilience.wire.signing import SigningKey
from tools import image
from tools.image import TAG, Builder


def test_a_builder_that_is_absent_does_not_work() -> None:
    assert not Builder("no-such-builder").works()


def test_a_file_is_signed(tmp_path: Path) -> None:
    path, key = tmp_path / "image.tar", SigningKey.generate()
    path.write_bytes(b"layers")
    assert image.sign(path, key) == tmp_path / "image.tar.signed"
    assert image.verify(path, key.public)
    with pytest.raises(SignatureError):
        image.verify(path, SigningKey.generate().public)
    path.write_bytes(b"other layers")
    assert not image.verify(path, key.public)
    with pytest.raises(SystemExit, match="is not the file that was signed"):
        image.main(["verify", str(path), key.public])


class Container:
    """Runs a script of the shell in the image, without a network where that can be."""

    def __init__(self, builder: Builder) -> None:
        self.name, self.container = builder.name, ""
        if self.name == "buildah":
            self.container = self._call("from", "--pull-never", TAG).strip()

    def run(self, script: str) -> str:
        if self.container:
            return self._call("run", self.container, "--", "sh", "-ec", script)
        safe = ("--rm", "--read-only", "--tmpfs", "/tmp", "--network", "none")
        return self._call("run", *safe, "--entrypoint", "sh", TAG, "-ec", script)

    def remove(self) -> None:
        if self.container:
            self._call("rm", self.container)

    def _call(self, *words: str) -> str:
        done = subprocess.run(
            [self.name, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    builder = image.builder()
    if builder is None:
        pytest.skip("no docker, podman or buildah works here, or the base cannot be had")
    builder.build()
    made = Container(builder)
    yield made
    made.remove()


@pytest.mark.image
def test_programs_run_in_the_image(container: Container) -> None:
    assert f"consilience {__version__} " in container.run("consilience --version")
    said = container.run("cd /tmp && consilience demo mean-and-sd && consilience doctor")
    assert "Nothing is in the way." in said
    assert "absent" not in said  # each optional part is there


@pytest.mark.image
def test_the_user_of_the_image_owns_nothing_of_it(container: Container) -> None:
    assert container.run("id -u; id -g").split() == ["10001", "10001"]
    # Folders for everybody's temporary files apart.
    found = "find / -xdev -writable ! -type l ! -perm -1000 -not -path '/tmp/*'"
    assert container.run(f"{found} 2>/dev/null || true").split() == []
    kept = container.run("ls /usr/local/lib/consilience/lib/python3.*/site-packages")
    assert "pytest" not in kept and "sphinx" not in kept  # what develops it stays out
