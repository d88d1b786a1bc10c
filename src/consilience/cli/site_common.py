"""What the commands of ``consilience site`` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer

from consilience.cli import console
from consilience.exceptions import ConsilienceError

P = ParamSpec("P")
R = TypeVar("R")
SiteToml = Annotated[Path, typer.Argument(metavar="SITE.toml", help="The site's own file.")]


def one_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """End with the error's sentence and exit code."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConsilienceError as error:
            typer.echo(console.clean(error), err=True)
            raise typer.Exit(error.exit_code) from None

    return wrapped
