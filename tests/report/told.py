"""What a reader of a report sees: the words of its blocks and of its drawings."""

from __future__ import annotations

import re

from matplotlib.figure import Figure

from consilience.report import html
from consilience.report.sections import Block, Table


def spoken(block: Block) -> str:
    """All words of a block."""
    tables: tuple[Table, ...] = (*block.tables, *block.folded)
    cells = [
        " ".join((t.caption, t.note, *t.head, *(c for r in t.rows for c in r))) for t in tables
    ]
    picture = [block.picture.caption, block.picture.alt] if block.picture else []
    return " ".join((block.title, *block.text, block.warning, *picture, *cells))


def drawn(figure: Figure) -> str:
    """A drawing as it stands in a page."""
    return str(html.inline_svg(figure, "x", "words"))


def letters(svg: str) -> str:
    """The words of a drawing."""
    return " ".join(re.findall(r"<text[^>]*>([^<]*)<", svg))
