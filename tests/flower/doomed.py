"""Runs a command of ``consilience`` that dies, or stops, at a chosen moment.

``python -m tests.flower.doomed MOMENT NUMBER ACTION WORDS...``, where ACTION is ``kill`` (SIGKILL
to itself) or ``stop`` (SIGSTOP; whoever started it lets it go on), and MOMENT is one of

=========  =====================================================================================
asked      a site has the NUMBER-th ask of a run in hand and has done nothing with it
answered   a site has its reply, kept its record, and has not handed it to Flower
journal    a coordinator has written the NUMBER-th record of its journal
pushed     a coordinator has handed the NUMBER-th message to Flower and notes nothing of it
=========  =====================================================================================
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from consilience.cli.main import app
from consilience.engines.flower import grid, handler
from consilience.wire import files

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Doom:
    """Counts, and acts once."""

    def __init__(self, number: int, action: str) -> None:
        self._left, self._signal = number, SIGNALS[action]

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signal)


def asked(doom: Doom, *, after: bool) -> None:
    real = handler.Desk.handle

    def handle(self: handler.Desk, content: Mapping[str, object]) -> Any:
        is_ask = content.get("kind") == "ask"
        if is_ask and not after:
            doom.count()
        found = real(self, content)
        if is_ask and after:
            doom.count()
        return found

    handler.Desk.handle = handle  # type: ignore[method-assign]


def journal(doom: Doom) -> None:
    real = files.AppendLog.append

    def append(self: files.AppendLog, *parts: bytes) -> None:
        real(self, *parts)
        if self.path is not None and "journal" in str(self.path):
            doom.count()

    files.AppendLog.append = append  # type: ignore[method-assign]


def pushed(doom: Doom) -> None:
    real = grid.GridLink.push

    def push(self: grid.GridLink, node: int, content: Any, *, seconds: float) -> str:
        found = real(self, node, content, seconds=seconds)
        doom.count()
        return found

    grid.GridLink.push = push  # type: ignore[method-assign]


if __name__ == "__main__":
    _, moment, number, action, *words = sys.argv
    doom = Doom(int(number), action)
    if moment in ("asked", "answered"):
        asked(doom, after=moment == "answered")
    else:
        {"journal": journal, "pushed": pushed}[moment](doom)
    sys.argv = ["consilience", *words]
    app()
