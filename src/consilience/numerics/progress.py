"""How far long work is, and the time left: fits, searches, starts, rounds of runs.

Whoever shows it says so with a context; work inside tells what it does and never how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_LIVE: ContextVar[Any] = ContextVar("live", default=None)

LONG = 30.0
"""Seconds from which on work says beforehand how long it will take."""


@contextmanager
def progress() -> Iterator[None]:
    """Show how far long work is, and the time left, for as long as the block lasts.

    A line for each search, fit or round that is under way, on a terminal (on its error stream) or
    in a notebook; elsewhere nothing is written. Work in other processes tells when a whole piece of
    it is done. What can foresee that it takes half a minute or more says so before it begins.

    Examples
    --------
    >>> import consilience
    >>> from sklearn.datasets import load_iris
    >>> with consilience.progress():
    ...     fitted = consilience.SparseQDA().fit(*load_iris(return_X_y=True))
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield
        return
    with Progress(*columns(), console=console, transient=True) as live, shown_by(live):
        yield


def columns() -> tuple[Any, ...]:
    """What a line has: what is done, how much of it, time left, and who has answered."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[who]}", markup=False),
    )


@contextmanager
def shown_by(live: Any) -> Iterator[None]:
    """Show what is done inside by a display of rich that has `columns`."""
    token = _LIVE.set(live)
    try:
        yield
    finally:
        _LIVE.reset(token)


@contextmanager
def task(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a piece of work in `total` steps; call what is yielded after each of them."""
    live = _LIVE.get()
    if live is None:
        yield lambda: None
        return
    number = live.add_task(what, total=total, who="")
    try:
        yield lambda: live.advance(number)
    finally:
        live.remove_task(number)


def foretell(what: str, seconds: Callable[[], float]) -> None:
    """Say about how long work will take, before it begins, where that is long and progress shown.

    Parameters
    ----------
    what : str
    seconds : callable
        Asked only where somebody listens.
    """
    live = _LIVE.get()
    if live is None:
        return
    expected = seconds()
    if expected >= LONG:
        live.console.print(f"{what}: about {about(expected)}", markup=False, highlight=False)


def about(seconds: float) -> str:
    """A duration in few digits: 40 seconds, 5 minutes, 2 hours."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{max(2, round(seconds / size))} {unit}"
    return f"{max(1, round(seconds / 10)) * 10} seconds"


def followed(items: Iterable[T], what: str, total: int) -> Iterator[T]:
    """Yield items one after the other, and show how many are done."""
    with task(what, total) as done:
        for item in items:
            yield item
            done()


def rounds() -> Callable[[str, dict[str, Any]], None] | None:
    """What to call with the events of a run, so that its rounds are shown; None if nothing is."""
    live = _LIVE.get()
    if live is None:
        return None
    now: list[Any] = []

    def event(kind: str, facts: dict[str, Any]) -> None:
        if kind in ("ask", "done") and now:
            live.remove_task(now.pop())
        if kind == "ask":
            what = f"round {facts['round']}, {facts['step']}"
            now.append(live.add_task(what, total=facts["sites"], who=""))
        elif kind == "arrived" and now:
            live.advance(now[0])

    return event
