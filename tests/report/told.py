"""What a reader of a report sees: the words of its blocks and of its drawings."""

from __future__ import annotations

import os
import re
from typing import Any
from zlib import crc32

from matplotlib.figure import Figure

from consilience.report import html
from consilience.report.sections import Block, Headline, MethodReport, Table
from tests.rotation import rotation


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


MOST_WORDS = 25
MISSPACED = re.compile(r"\s[.,;:]\s|\s[.,;:]$|[\w%]\((?!s\)|\w+=)|\)\w")
"""A blank before a stop, or none before a bracket: templates join words that are right alone."""
OTHER_PERCENT = re.compile(r"\d[ \u00a0\u202f]%")
"""A percentage as it is not written here: 95%, without a blank."""


def check_headline(text: str) -> None:
    """One sentence that is read at once."""
    assert len(text.split()) <= MOST_WORDS, text
    assert not re.search(r"[.!?] [A-Z]", text), f"two sentences: {text}"


def answered(said: Headline) -> str:
    """The headline and the lead below it."""
    return " ".join((said.text, *said.more))


def check_told(
    report: MethodReport, run: Any, *, limits: int, longest: int = 330, draws: bool = True
) -> None:
    """Every outcome can be told: whole sentences, no gap shown as a number, tables that fit.

    Pictures are made but, being most of the time, written down by turns: of each outcome every
    third day, if ``draws``; all where ``CONSILIENCE_PICTURES`` is set, as in ``make test-nightly``.
    """
    said = report.headline(run)
    if "CONSILIENCE_PICTURES" not in os.environ:
        draws &= (crc32(said.text.encode()) + rotation()) % 3 == 0
    assert said.text.endswith(".")
    check_headline(said.text)
    assert len(said.text) < longest
    for sentence in (*said.more, said.text, *report.handling(run), *report.limits(run)):
        words = set(re.split(r"[\s(),;%]+", sentence.lower()))
        assert not {"nan", "inf", "-0"} & words, sentence
        assert sentence.endswith((".", ")."))
        assert not MISSPACED.search(sentence), sentence
    for block in report.evidence(run):
        text = spoken(block)
        assert not re.search(r"\bnan\b", text.lower()), block.title
        assert "inf" not in text.lower().split(), block.title
        assert not any(map(MISSPACED.search, (*block.text, block.warning))), block.text
        if block.picture:
            assert block.picture.alt
            assert not draws or "<svg" in drawn(block.picture.figure)
        for table in (*block.tables, *block.folded):
            assert all(len(row) == len(table.head) for row in table.rows)
            assert len(set(table.head)) == len(table.head)
    assert report.facts(run)
    assert len(report.limits(run)) >= limits
