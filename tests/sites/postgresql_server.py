"""A PostgreSQL server of the tests' own: in a directory that goes away, on a port of loopback."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

PASSWORD = "S3CRET-7731@pw"
USER, DATABASE = "steward", "postgres"


def binaries() -> Path | None:
    """Directory of ``initdb`` and ``postgres``; Debian keeps them off the path."""
    found = [Path(path).resolve().parent for path in [shutil.which("postgres")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in found if (one / "initdb").exists()), None)


class Server:
    """A server with password authentication; it never runs as root, which it would refuse."""

    def __init__(self, programs: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="consilience-pg-"))
        self._as_user: dict[str, Any] = {"cwd": self.directory}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as_user |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        secret = self.directory / "password"
        secret.write_text(PASSWORD + "\n")
        secret.chmod(0o644)
        self._call(
            f"{programs}/initdb --pgdata data --username {USER} --pwfile {secret} "
            "--auth scram-sha-256 --encoding UTF8 --locale C --no-sync"
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = self.directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                f"{programs}/postgres -D data -p {self.port} -k {self.directory} -c fsync=off "
                "-c listen_addresses=127.0.0.1".split(),
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_user,
            )
        self._wait(programs)

    def url(self, password: str = PASSWORD, *, user: str = USER, database: str = DATABASE) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as their owner; the rows of the last one."""
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(self.url(), autocommit=True) as one, one.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def crash(self) -> None:
        """End at once, as at a power cut."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
        self.process.wait(timeout=60)

    def close(self) -> None:
        self.crash()
        shutil.rmtree(self.directory)

    def _wait(self, programs: Path) -> None:
        for _ in range(600):
            ready = self._call(f"{programs}/pg_isready -h 127.0.0.1 -p {self.port}", check=False)
            if ready.returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text()}")

    def _call(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        words = command.split()
        return subprocess.run(words, capture_output=True, check=check, **self._as_user)
