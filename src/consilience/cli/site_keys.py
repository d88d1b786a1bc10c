"""``consilience site keys``: the key with which a party signs, and the one that follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consilience.exceptions import StudyError


def keys(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to keep the key.")],
    rotate: Annotated[
        bool,
        typer.Option("--rotate", help="Make the key that follows it, and print its endorsed line."),
    ] = False,
    retire: Annotated[
        bool,
        typer.Option("--retire", help="Sign with the key that follows from now on; drop the old."),
    ] = False,
) -> None:
    """Make a key in DIR and print its public half, the line for the study file.

    A key that is there already is never overwritten: its public half is printed.

    To change a key, of a site or a coordinator: --rotate makes a new one beside it and prints the
    entry that whoever trusts the old key adds after it. The old key signs until --retire.
    """
    from consilience.wire import keys as keyring
    from consilience.wire.signing import PRIVATE_FILE, SigningKey

    if rotate and retire:
        raise StudyError(
            "give --rotate first, and --retire once everybody has listed the new key: one at a time"
        )
    if rotate:
        old, line = SigningKey.load(directory).public, keyring.rotate(directory)
        typer.echo(f"the key that signs until --retire: {old}", err=True)
        typer.echo("add after it, wherever it is listed:", err=True)
        typer.echo(line)
        return
    if retire:
        done = keyring.retire(directory)
        typer.echo(f"the key that is gone: {done.old}", err=True)
        typer.echo("where it is listed, it may get a last day; the one that signs now:", err=True)
        typer.echo(done.entry)
        return
    if (directory / PRIVATE_FILE).exists():
        typer.echo(f"there is a key already: {directory / PRIVATE_FILE}", err=True)
        typer.echo(SigningKey.load(directory).public)
        return
    key = SigningKey.generate()
    path = key.save(directory)
    typer.echo(f"private key (keep it here, show it to nobody): {path}", err=True)
    typer.echo(key.public)
