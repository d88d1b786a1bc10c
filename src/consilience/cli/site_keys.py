"""``consilience site keys``: the key with which a party signs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to keep the key.")],
) -> None:
    """Make a key in DIR and print its public half, the line for the study file.

    A key that is there already is never overwritten: its public half is printed.
    """
    from consilience.wire.signing import PRIVATE_FILE, SigningKey

    if (directory / PRIVATE_FILE).exists():
        typer.echo(f"there is a key already: {directory / PRIVATE_FILE}", err=True)
        typer.echo(SigningKey.load(directory).public)
        return
    key = SigningKey.generate()
    path = key.save(directory)
    typer.echo(f"private key (keep it here, show it to nobody): {path}", err=True)
    typer.echo(key.public)
