"""A folder, two homes, and the processes around them, which tests start, stop and let die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from consilience.engines.federation import load_run
from consilience.sites.site_store import DiskStore
from consilience.wire.codec import decode_message
from consilience.wire.envelope import Reply
from consilience.wire.signing import SigningKey
from consilience.wire.transcript import read_transcript
from tests.faults.cases import CASES, SITES

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
FIRST = SITES[0]
Lines = list[dict[str, Any]]


class Stage:
    """A folder, two homes, keys, and the processes around them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "shared").mkdir()
        for name in ("keys", *(f"keys-{site}" for site in SITES)):
            SigningKey.generate().save(root / name)
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.sites: dict[str, int] = {}
        self.living: set[int] = set()

    # -------------------------------------------------------------- processes

    def start(self, role: str, **spec: Any) -> int:
        who = spec.get("site", role)
        spec.setdefault("trace", f"trace-{who}")
        spec.setdefault("log", f"log-{who}")
        pid = int(self._ask(do="start", role=role, root=str(self.root), **spec))
        self.living.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        code = self.ended(pid, PATIENCE)
        assert code is not None, f"a process hangs: {self.said()}"
        return code

    def ended(self, pid: int, seconds: float) -> int | None:
        """Exit code (or minus the signal), or None while the process lives."""
        code: int | None = self._ask(do="wait", pid=pid, seconds=seconds)
        if code is not None:
            self.living.discard(pid)
        return code

    def wait_until_stopped(self, pid: int) -> None:
        assert self._ask(do="wait", pid=pid, seconds=PATIENCE, stopped=True) == "stopped"

    def stopped_or_ended(self, pid: int) -> int | str | None:
        """As `ended`, or "stopped"; looks for a short while only."""
        code: int | str | None = self._ask(do="wait", pid=pid, seconds=0.02, stopped=True)
        if isinstance(code, int):
            self.living.discard(pid)
        return code

    def let_go(self, pid: int) -> None:
        """End a process that freezes itself again and again."""
        os.kill(pid, signal.SIGTERM)
        while (code := self.stopped_or_ended(pid)) != 0:
            assert code in ("stopped", None), self.said()
            os.kill(pid, signal.SIGCONT)

    def start_site(self, name: str, **spec: Any) -> int:
        self.sites[name] = self.start("site", site=name, **spec)
        return self.sites[name]

    def stop_site(self, name: str) -> None:
        pid = self.sites.pop(name)
        os.kill(pid, signal.SIGTERM)
        assert self.wait(pid) == 0, self.said()

    def run(self, case: str, run: str, **spec: Any) -> int:
        return self.wait(self.start("coordinator", case=case, run=run, **spec))

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(PATIENCE)

    def said(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()}" for p in sorted(self.root.glob("log-*")))

    def _ask(self, **command: Any) -> Any:
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(command) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())

    # -------------------------------------------------------------- what they left

    def traced(self, trace: str) -> list[list[str]]:
        path = self.root / trace
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def boundaries(self, trace: str) -> list[tuple[int, str]]:
        """Number and name of every boundary that a process came to."""
        return [(int(w[1]), w[2]) for w in self.traced(trace) if w[0] == "begin"]

    def result(self, run: str) -> dict[str, bytes]:
        return {
            name: (self.root / run / name).read_bytes() for name in ("result.json", "result.npz")
        }

    def transcript(self, run: str, *, without: tuple[str, ...] = ()) -> Lines:
        """Lines without the run's id and what hangs on it; the chain itself is verified."""
        lines = read_transcript(self.root / run / "transcript.jsonl")
        drop = {"run", "chain", *without}
        return [{k: v for k, v in vars(line).items() if k not in drop} for line in lines]

    def check_like(self, case: str, run: str, clean: str) -> None:
        """Result, transcript and what sites did are those of an undisturbed run."""
        secret = CASES[case].draws_secrets
        without = CASES[case].loose
        assert self.transcript(run, without=without) == self.transcript(clean, without=without)
        if secret:
            self.check_first_release(run)
        else:
            assert self.result(run) == self.result(clean)
        self.check_computed_once(run, CASES[case].sites)
        folder = self.root / "shared" / "runs"
        assert not (folder / run).exists(), "the files of a finished run are removed"

    def check_first_release(self, run: str) -> None:
        """The result holds the numbers of the record from which the first reply was made."""
        result: Any = load_run(self.root / run).result
        if hasattr(result, "owners"):
            self._check_first_models(run, result)
            return
        for row, site in zip(result.secret, SITES, strict=True):
            record = DiskStore(self.root / f"home-{site}").record(run, 2, 1)
            assert record is not None
            drawn = decode_message(Reply.from_bytes(record.reply).message)
            assert (drawn.secret == row).all()

    def _check_first_models(self, run: str, result: Any) -> None:
        """The models of secret resamples are those that left first: round 4, after a vote."""
        for site in SITES:
            record = DiskStore(self.root / f"home-{site}").record(run, 4, 1)
            assert record is not None
            left = decode_message(Reply.from_bytes(record.reply).message).models.value[0]
            kept = [m for m, o in zip(result.models, result.owners, strict=True) if o == site]
            assert len(left) == len(kept) > 0
            for one, other in zip(left, kept, strict=True):
                assert all((one[name] == other[name]).all() for name in other)

    def check_computed_once(self, run: str, sites: tuple[str, ...] = SITES) -> None:
        """No step is computed after its record was written, and no reply has two contents."""
        for site in sites:
            recorded: set[str] = set()
            contents: dict[str, set[str]] = defaultdict(set)
            for words in self.traced(f"trace-{site}"):
                if words[0] == "compute" and words[1] == run:
                    record = (
                        f"home-{site}/runs/{run}/{int(words[2]):06d}-{int(words[3]):03d}.record"
                    )
                    assert record not in recorded, f"{site} computed {words[2:]} again"
                elif words[0] == "file" and f"/{run}/" in words[2]:
                    recorded.add(words[2])
                    if words[2].endswith((".record", ".msg")):
                        contents[words[2]].add(words[3])
            several = {name for name, found in contents.items() if len(found) > 1}
            assert not several, f"{site} said two things in {several}"
            assert contents or site in self.silent

    silent: tuple[str, ...] = ()


def clean_run(case: str) -> str:
    """Id of the undisturbed run of a case."""
    return "clean-" + "".join(c for c in case if c.isalnum())
