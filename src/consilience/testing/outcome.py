"""What an attack is, and what became of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from consilience.protocol.method import Method
from consilience.testing.fakes import Factory


@dataclass(frozen=True)
class Outcome:
    """What became of an attack.

    Attributes
    ----------
    verdict : {"blocked", "accounted", "open"}
    evidence : str
        One sentence.
    """

    verdict: Literal["blocked", "accounted", "open"]
    evidence: str


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes
    ----------
    name : str
    tries : str
        What it tries, as a phrase.
    function : callable
        ``function(method, factory) -> Outcome``.
    concerns : {"core", "method"}
        Where the fault lies if it works.
    """

    name: str
    tries: str
    function: Callable[[Method, Factory], Outcome]
    concerns: Literal["core", "method"] = "core"

    def run(self, method: Method, factory: Factory) -> Outcome:
        """Try it; an error that is not this package's own leaves the attack open.

        The evidence of an open attack says whether it concerns the method or the core.
        """
        concerns: str = self.concerns
        try:
            outcome = self.function(method, factory)
        except Exception as error:  # noqa: BLE001  a foreign error is the finding
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            own = type(method).__module__
            if any(frame.f_globals.get("__name__") == own for frame in frames):
                concerns = "method"
            where = frames[-1].f_code.co_name
            sentence = f"{type(error).__name__} escaped from {where}: {str(error)[:200]}"
            outcome = Outcome("open", sentence)
        if outcome.verdict != "open":
            return outcome
        whose = "the method" if concerns == "method" else "the core, not the method"
        return Outcome("open", f"{outcome.evidence} (this concerns {whose})")
