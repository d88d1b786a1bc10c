"""List replication results whose code has changed since they were computed.

A replication is a folder ``replications/<paper>/<table>/`` with

``run.py``
    computes the table and writes ``result.csv``;
``sources.txt``
    what the figures depend on, one path or glob a line, from the root of the repository
    (``src/consilience/assisted/kernels/glm.py``, ``src/consilience/wire/*.py``); a folder stands
    for every ``*.py`` below it, ``#`` starts a comment. ``run.py`` itself always counts and is not
    listed;
``result.csv``
    tracked, with a column ``code_hash``: the hash at the time that row was computed.

``run.py`` stamps its rows with ``table_hash(Path(__file__).parent)``, which is ``code_hash`` over
the files named above: SHA-256 over the statements at the top of Python files (functions, classes,
constants), without comments, docstrings, formatting and the places of modules in the package,
and over the text of other files; cut to 16 hexadecimal digits. Code that moves to another file
keeps its hash. A difference says "other code": a rerun settles whether it matters.

Run ``python -m tools.stale_results`` from the root of the repository. It prints one line for each
replication that needs attention and ends with 0; with ``--strict`` it ends with 1 if a row is
stale. A folder that breaks the rules above ends it with 1 either way.
"""

from __future__ import annotations

import argparse
import ast
import csv
import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HASH_LENGTH = 16
_MODULE = re.compile(r"consilience(\.\w+)+")


class ReplicationError(Exception):
    """A replication folder that does not follow the rules in this module's docstring."""


def code_hash(paths: Iterable[Path | str], root: Path = ROOT) -> str:
    """Hash the code of some files.

    Parameters
    ----------
    paths : iterable of path
        Files, absolute or relative to `root`; their order, names and repetitions do not matter.
    root : path
        Folder that file names are taken relative to.

    Returns
    -------
    str
        16 hexadecimal digits.

    Raises
    ------
    ReplicationError
        If a file does not exist or lies outside `root`, or is no Python although it ends like it.
    """
    root = root.resolve()
    parts: set[bytes] = set()
    for path in {(root / path).resolve() for path in paths}:
        if not path.is_file() or not path.is_relative_to(root):
            raise ReplicationError(f"{path.name} is not a file of the repository: correct its path")
        text = path.read_bytes().replace(b"\r\n", b"\n")
        try:
            parts |= statements(text.decode()) if path.suffix == ".py" else {text}
        except SyntaxError as error:
            raise ReplicationError(f"{_name(path, root)} cannot be parsed: {error}") from error
    digest = hashlib.sha256()
    for one in sorted(hashlib.sha256(part).digest() for part in parts):
        digest.update(one)
    return digest.hexdigest()[:HASH_LENGTH]


def statements(text: str) -> set[bytes]:
    """Statements of a module, each in one form, without what does not compute."""
    return {
        ast.unparse(_Bare().visit(one)).encode()
        for one in ast.parse(text).body
        if not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one)
        if not _names_arrays(one)
    }


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, and where in the package a name is."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            left = [one for one in body if not _is_text(one)]
            node.body = left or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.ImportFrom(module="anywhere", names=node.names, level=0)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _MODULE.fullmatch(node.value):
            return ast.Constant(node.value.rpartition(".")[2])
        return node


def _is_text(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _names_arrays(node: ast.stmt) -> bool:
    """A name for a type of arrays, as modules of one subject repeat it."""
    value = node.value if isinstance(node, ast.Assign) else None
    base = value.value if isinstance(value, ast.Subscript) else None
    return isinstance(base, ast.Name) and base.id == "NDArray"


def table_sources(folder: Path, root: Path = ROOT) -> list[Path]:
    """Files that the figures of one replication depend on, its ``run.py`` included."""
    listing = folder / "sources.txt"
    if not listing.is_file():
        raise ReplicationError(f"{_name(folder, root)} has no sources.txt: list its source files")
    found = [folder / "run.py"]
    for number, line in enumerate(listing.read_text(encoding="utf-8").splitlines(), start=1):
        pattern = line.partition("#")[0].strip()
        if not pattern:
            continue
        matches = [
            match for match in sorted(root.glob(pattern)) if "__pycache__" not in match.parts
        ]
        files = [
            file
            for match in matches
            for file in (sorted(match.rglob("*.py")) if match.is_dir() else [match])
        ]
        if not files:
            raise ReplicationError(
                f"{_name(listing, root)} line {number} matches no file: correct '{pattern}'"
            )
        found.extend(files)
    return found


def table_hash(folder: Path, root: Path = ROOT) -> str:
    """Hash to write into the column ``code_hash`` of this replication's ``result.csv``."""
    return code_hash(table_sources(folder, root), root)


def stale_rows(folder: Path, root: Path = ROOT) -> tuple[int, int]:
    """Count the stale rows and all rows of one replication's ``result.csv``.

    Raises
    ------
    ReplicationError
        If the result, its rows or the column ``code_hash`` are missing.
    """
    result = folder / "result.csv"
    if not result.is_file():
        raise ReplicationError(f"{_name(folder, root)} has no result.csv: run its run.py")
    with result.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or "code_hash" not in rows[0]:
        raise ReplicationError(
            f"{_name(result, root)} has no rows or no column code_hash: run its run.py"
        )
    current = table_hash(folder, root)
    return sum(row["code_hash"] != current for row in rows), len(rows)


def survey(root: Path = ROOT) -> tuple[list[str], list[str], int]:
    """Look at every replication.

    Returns
    -------
    stale : list of str
        One line for each replication with stale rows.
    broken : list of str
        One line for each replication that does not follow the rules.
    total : int
        Number of replications.
    """
    stale: list[str] = []
    broken: list[str] = []
    folders = sorted({file.parent for file in root.glob("replications/*/*/run.py")})
    for folder in folders:
        try:
            old, rows = stale_rows(folder, root)
        except ReplicationError as error:
            broken.append(str(error))
            continue
        if old:
            stale.append(f"{_name(folder, root)}: {old} of {rows} rows are older than their code")
    return stale, broken, len(folders)


def _name(path: Path, root: Path) -> str:
    return path.resolve().relative_to(root.resolve()).as_posix()


def main(arguments: list[str] | None = None) -> int:
    """Print what needs attention; see the module's docstring for the exit code."""
    parser = argparse.ArgumentParser(prog="stale_results", description="List stale replications.")
    parser.add_argument("--strict", action="store_true", help="end with 1 if a row is stale")
    options = parser.parse_args(arguments)
    stale, broken, total = survey()
    for line in stale:
        print(f"stale: {line}")
    for line in broken:
        print(f"broken: {line}")
    print(f"replications: {total}, stale: {len(stale)}, broken: {len(broken)}")
    return 1 if broken or (options.strict and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
