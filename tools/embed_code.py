"""Fill code blocks of the documentation from the source, so that they cannot be out of date.

A page of ``docs`` or a page at the root marks the place::

    <!-- embed: src/consilience/protocol/mean_and_sd.py -->
    (a code block, written by this tool)
    <!-- end embed -->

``path#Name`` embeds one function or class of the file, with its decorators; ``path#A,B`` several.
``python -m tools.embed_code`` rewrites the pages; with ``--check`` it names those that are out of
date and ends with 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash"}

_PLACE = re.compile(
    r"(?P<open><!-- embed: (?P<what>[^\s>]+) -->\n).*?(?P<close><!-- end embed -->)", re.DOTALL
)


class EmbedError(Exception):
    """A marker that names nothing."""


def pages(root: Path = ROOT) -> list[Path]:
    """Pages that may hold embedded code."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def embedded(text: str, root: Path = ROOT) -> str:
    """Return a page with its code blocks filled.

    Raises
    ------
    EmbedError
        A marker names a file or a definition that does not exist, or is not closed.
    """
    if text.count("<!-- embed:") != len(_PLACE.findall(text)):
        raise EmbedError("a marker 'embed' has no 'end embed'")

    def fill(match: re.Match[str]) -> str:
        return f"{match['open']}{_block(match['what'], root)}{match['close']}"

    return _PLACE.sub(fill, text)


def _block(what: str, root: Path) -> str:
    name, _, chosen = what.partition("#")
    path = root / name
    if not path.is_file():
        raise EmbedError(f"there is no file {name} to embed")
    source = path.read_text(encoding="utf-8")
    if chosen:
        source = "\n\n\n".join(_definition(source, one, name) for one in chosen.split(",")) + "\n"
    return f"```{LANGUAGES.get(path.suffix, '')}\n{source}```\n"


def _definition(source: str, name: str, where: str) -> str:
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return "\n".join(lines[first - 1 : node.end_lineno])
    raise EmbedError(f"{where} defines no {name}")


def main(arguments: list[str] | None = None) -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(prog="embed_code", description="Fill code blocks of docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if old")
    options = parser.parse_args(arguments)
    old = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = embedded(text)
        if new != text:
            old.append(page)
            if not options.check:
                page.write_text(new, encoding="utf-8")
    for page in old:
        print(f"{'out of date' if options.check else 'written'}: {page.relative_to(ROOT)}")
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
