"""Stands in for what needs root: ``sudo``, users, services. Called by those names, as a program.

What is left of a machine is a directory (``MACHINE``): units of ``etc/systemd/system`` are started
with their own command line, environment, umask and directories, as the user of the test.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PLACES = ("/usr/local/lib/consilience", "/etc/", "/srv/", "/var/")


def placed(text: str, machine: Path) -> str:
    """Move paths of the machine into its directory."""
    either = "|".join(re.escape(place) for place in PLACES)
    return re.sub(rf"(?<![\w./])({either})", lambda m: f"{machine}{m[1]}", text)


def unit_of(name: str, machine: Path) -> tuple[Path, str]:
    name = name if "." in name else f"{name}.service"
    instance = re.sub(r"^.*@|\.\w+$", "", name) if "@" in name else ""
    template = re.sub(r"@.*\.", "@.", name)
    path = machine / "etc/systemd/system" / template
    if not path.is_file():
        sys.exit(f"Unit {name} not found.")
    return path, path.read_text().replace("%i", instance)


def settings(text: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def begin(name: str, machine: Path) -> subprocess.Popen[bytes]:
    _, text = unit_of(name, machine)
    env = dict(os.environ)
    for line in settings(text, "Environment"):
        env.update(word.split("=", 1) for word in shlex.split(placed(line, machine)))
    for kind, place in (("StateDirectory", "var/lib"), ("CacheDirectory", "var/cache")):
        for one in settings(text, kind):
            (machine / place / one).mkdir(parents=True, exist_ok=True)
    (where, *_) = [*settings(text, "WorkingDirectory"), "/"]
    (command,) = settings(text, "ExecStart")
    (machine / "log").mkdir(exist_ok=True)
    with open(machine / "log" / name, "ab") as log:
        process = subprocess.Popen(
            shlex.split(placed(command, machine)),
            cwd=placed(where, machine),
            env=env,
            stdout=log,
            stderr=log,
            umask=int(settings(text, "UMask")[0], 8),
            start_new_session=True,
        )
    (machine / "log" / f"{name}.pid").write_text(str(process.pid))
    return process


def end(name: str, machine: Path) -> None:
    pid = int((machine / "log" / f"{name}.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists() or "Z (" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.1)
    sys.exit(f"{name} does not stop")


def systemctl(words: list[str], machine: Path) -> int:
    verb, *rest = words
    names = [word for word in rest if not word.startswith("-")]
    if verb == "daemon-reload":
        return 0
    for name in names:
        if name.endswith(".timer"):
            unit_of(name, machine)
            if begin(name.replace(".timer", ""), machine).wait() != 0:
                return 1
        elif verb == "stop":
            end(name, machine)
        elif verb in ("start", "enable"):
            process = begin(name, machine)
            if "--wait" in rest and process.wait() != 0:
                return 1
        else:
            sys.exit(f"systemctl {verb} is not known here")
    return 0


def main() -> int:
    called, words, machine = Path(sys.argv[0]).name, sys.argv[1:], Path(os.environ["MACHINE"])
    if called == "sudo":
        words = words[2:] if words[0] == "-u" else words
        os.execvp(words[0], words)
    if called == "install":
        kept, skip = [], False
        for word in words:
            if not skip and word not in ("-o", "-g"):
                kept.append(word)
            skip = word in ("-o", "-g")
        os.execv("/usr/bin/install", ["install", *kept])
    if called == "systemctl":
        return systemctl(words, machine)
    if called == "journalctl":
        print((machine / "log" / words[-1]).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
