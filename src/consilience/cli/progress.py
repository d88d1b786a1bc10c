"""Progress of a run by round and site: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from consilience.cli.console import clean, complain, on_terminal
from consilience.cli.logs import EventLog

MANY = 6
"""Sites that a line names; of more it names those that did not answer, and the first."""


def shortened(answered: Sequence[str]) -> str:
    """Name the sites that answered, or some of them where there are many."""
    if len(answered) <= MANY:
        return ", ".join(sorted(answered))
    odd = sorted(site for site in answered if site.endswith(")"))
    plain = sorted(site for site in answered if not site.endswith(")"))
    shown = [*odd, *plain[: max(1, MANY - len(odd))]]
    rest = len(answered) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def words(kind: str, facts: dict[str, Any]) -> str:
    """One event for people, for logs that leave out what went as it should."""
    if kind == "arrived":
        return f"round {facts['round']}, {facts['step']}: {facts['site']} ({facts['outcome']})"
    said = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"{kind}: {said}"


class Progress:
    """Follows a run's events.

    Parameters
    ----------
    quiet : bool
        Say nothing.
    each_site : bool
        Where there is no terminal, print a line for each answer and not only for each round.
    log : EventLog, optional
        Where events are logged instead.
    """

    def __init__(self, *, quiet: bool, each_site: bool, log: EventLog | None = None) -> None:
        self._quiet, self._each_site, self._log = quiet or log is not None, each_site, log
        self._live: Any = None
        self._task: Any = None
        self._round, self._step = 0, ""
        self._asked = 0
        self._answered: list[str] = []

    def __enter__(self) -> Progress:
        if not self._quiet and on_terminal():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Live

            self._live = Live(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[who]}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._answered and kind is not None:
            self._round_over()

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Take note of an event of the driver."""
        if self._log is not None:
            if kind == "ask":
                self._step = facts["step"]
            self._log.event(kind, {"step": self._step, **facts} if kind == "arrived" else facts)
            return
        if kind == "ask":
            self._round_over()
            self._round, self._step = facts["round"], facts["step"]
            self._asked, self._answered = facts["sites"], []
            self._draw(new=True)
        elif kind == "arrived":
            outcome = "" if facts["outcome"] == "reply" else f" ({facts['outcome']})"
            self._answered.append(f"{facts['site']}{outcome}")
            self._draw()
            if self._each_site:
                self._print(f"{self._about}: {self._answered[-1]}")
        elif kind == "done":
            self._round_over()
            self._round = 0

    def note(self, kind: str, facts: dict[str, Any]) -> None:
        """Take note of a file that the folder engine has set aside."""
        if self._log is not None:
            self._log.event(kind, facts)
            return
        words = ", ".join(f"{name} {value}" for name, value in facts.items())
        if not self._quiet:
            complain(f"folder: {kind}: {words}")

    @property
    def _about(self) -> str:
        return f"round {self._round}, {self._step}"

    def _round_over(self) -> None:
        if not self._round:
            return
        if self._answered:
            who = shortened(self._answered)
            self._print(f"{self._about}: {len(self._answered)} of {self._asked} sites ({who})")
        else:
            self._print(f"{self._about}: already answered")

    def _print(self, text: str) -> None:
        if not self._quiet and self._live is None:
            complain(text)

    def _draw(self, *, new: bool = False) -> None:
        if self._live is None:
            return
        if new and self._task is not None:
            self._live.remove_task(self._task)
        if new or self._task is None:
            self._task = self._live.add_task(clean(self._about), total=self._asked, who="")
        self._live.update(
            self._task, completed=len(self._answered), who=clean(shortened(self._answered))
        )
