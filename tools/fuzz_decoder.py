"""Coverage-guided search for bytes that make a reader fail: ``make fuzz SECONDS=300``.

The readers and what may come out of them are in ``tests/fuzz/targets.py``. Guidance comes from
atheris (libFuzzer), which ``make fuzz`` installs into a folder of its own: it has no builds for
every system that this package runs on, so nothing else may need it. Without it, as on other
systems, a small search of our own does the same, more slowly: it keeps an input when it reaches a
line of this package that none has reached before.

Inputs that reach something new are kept in ``tests/fuzz/corpus`` (``--keep``), and `make test`
repeats all of them. What is found is written to ``build/fuzz`` and named on the last line.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import random
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
BUILD = ROOT / "build" / "fuzz"
ATHERIS = BUILD / "atheris"
MOST_CORPUS = 300_000
MAX_LENGTH = 4096
SECONDS_EACH = 10.0
MEMORY = 2048
GUIDED = [
    "consilience.wire",
    "consilience.sites.site_store",
    "consilience.sites.study",
    "consilience.engines.health",
]


def corpus() -> list[Path]:
    """Inputs that are tracked, in order."""
    return sorted(CORPUS.glob("*"))


def _targets() -> Any:
    """Import the readers; tests are not typed as strictly as tools."""
    return importlib.import_module("tests.fuzz.targets")


def write(folder: Path, data: bytes) -> Path:
    """Write an input under the digest of its content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:20]
    path.write_bytes(data)
    return path


# --------------------------------------------------------------------------- a search of our own


class Lines:
    """Lines of this package that an input reaches."""

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] = set()
        self._now: set[tuple[str, int]] = set()

    def of(self, read: Callable[[bytes], None], data: bytes) -> int:
        """Read an input; how many lines it reaches that none before has reached."""
        self._now = set()
        sys.settrace(self._trace)
        try:
            read(data)
        finally:
            sys.settrace(None)
            new = self._now - self._known
            self._known |= new
        return len(new)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("consilience."):
            return None
        self._now.add((name, frame.f_lineno))
        return self._trace


def search(read: Callable[[bytes], None], alter: Any, seconds: float, seed: int) -> Path | None:
    """Search for so many seconds; returns the input that failed, if one did."""
    rng, lines = random.Random(seed), Lines()
    known = [path.read_bytes() for path in corpus()]
    queue = list(known)
    end, tried, slowest = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < end:
        data = queue.pop() if queue else _changed(rng.choice(known), alter, rng)
        began = time.monotonic()
        try:
            new = lines.of(read, data)
        except Exception:  # noqa: BLE001  whatever it is, it is what was looked for
            traceback.print_exc()
            return write(BUILD, data)
        slowest = max(slowest, time.monotonic() - began)
        if slowest > SECONDS_EACH:
            print(f"an input took {slowest:.0f} seconds")
            return write(BUILD, data)
        tried += 1
        if new and data not in known:
            known.append(data)
            write(BUILD / "found", data)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{tried} inputs, {len(known)} that reach something new, slowest {slowest:.3f} s, {peak} MB"
    )
    return None


def _changed(data: bytes, alter: Any, rng: random.Random) -> bytes:
    for _ in range(rng.randrange(1, 5)):
        data = alter(data, rng)
    return bytes(data[: 4 * MAX_LENGTH])


# --------------------------------------------------------------------------- atheris


def guided(seconds: int, seed: int) -> int:
    """Run libFuzzer in a process of its own; returns its exit code."""
    found = BUILD / "found"
    found.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.fuzz_decoder", "--inside", str(found), str(CORPUS)]
    command += [f"-max_total_time={seconds}", f"-timeout={SECONDS_EACH:.0f}"]
    command += [f"-rss_limit_mb={MEMORY}", f"-max_len={MAX_LENGTH}", f"-seed={seed}"]
    command += [f"-artifact_prefix={BUILD}/", "-print_final_stats=1"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def inside(arguments: list[str]) -> None:
    """The process that libFuzzer drives."""
    sys.path.insert(0, str(ATHERIS))
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=GUIDED):
        targets = _targets()

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5 and data:
            return targets.altered(data, rng)[:most]
        return bytes(atheris.Mutate(data, most))

    atheris.Setup([sys.argv[0], *arguments], targets.run_one, custom_mutator=mutate)
    atheris.Fuzz()


def keep() -> None:
    """Add what was found to the corpus as far as it reaches lines that the corpus does not."""
    targets = _targets()
    lines, total = Lines(), 0
    # What is there stays: seeds have other random bytes each time that they are made.
    kept = [path.read_bytes() for path in corpus()] or list(targets.seeds().values())
    for data in kept:
        lines.of(targets.run_one, data)
    others = {path.read_bytes() for path in (BUILD / "found").glob("*")} - set(kept)
    for data in sorted(others, key=lambda one: (len(one), one)):
        if lines.of(targets.run_one, data):
            kept.append(data)
    for path in corpus():
        path.unlink()
    for data in kept:
        total += len(data)
        if total < MOST_CORPUS:
            write(CORPUS, data)
    print(f"{len(corpus())} inputs, {sum(p.stat().st_size for p in corpus())} bytes in {CORPUS}")


def main() -> int:
    """Search, or keep what was found."""
    if sys.argv[1:2] == ["--inside"]:
        inside(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="the search without atheris")
    parser.add_argument("--keep", action="store_true", help="renew tests/fuzz/corpus")
    given = parser.parse_args()
    if given.keep:
        keep()
        return 0
    if ATHERIS.is_dir() and not given.own:
        return guided(given.seconds, given.seed)
    print("atheris is not there: a slower search of our own")
    targets = _targets()
    failed = search(targets.run_one, targets.altered, given.seconds, given.seed)
    if failed is not None:
        print(f"failed: {failed}")
    return int(failed is not None)


if __name__ == "__main__":
    sys.exit(main())
