"""Progress of a fit on stderr: a bar on a terminal, one line for each pass elsewhere."""

from __future__ import annotations

from typing import Any


class Progress:
    """A bar for each pass over the splits.

    Parameters
    ----------
    shown : bool
    n_splits : int
    """

    def __init__(self, shown: bool, n_splits: int) -> None:
        self._shown, self._n_splits = shown, n_splits
        self._console: Any = None
        self._live: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if not self._shown:
            return self
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Live

        self._console = Console(stderr=True, highlight=False, markup=False)
        if self._console.is_terminal:
            self._live = Live(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("splits"),
                TimeElapsedColumn(),
                console=self._console,
            )
            self._task = self._live.add_task("reading", total=self._n_splits)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    def begin(self, what: str) -> None:
        """A new pass over the splits."""
        if self._live is not None:
            self._live.reset(self._task, description=what, total=self._n_splits)
        elif self._console is not None:
            self._console.print(what)

    def done(self, place: int) -> None:
        """One split is through."""
        if self._live is not None:
            self._live.advance(self._task)
