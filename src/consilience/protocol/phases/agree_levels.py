"""Phase `agree_levels`: do a site's categories lie within the declared levels? Yes or no.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
agree-levels.confirm: Ask   ->
  names of the columns
                            <-  Confirmed: one yes or no per column   PUBLIC
==============================  ==================================================

Undeclared levels are refused: a site never tells which ones it has; its own log does. Until a study
declares them, the site answers nothing else in that run.

What the answer rests on is decided where the table is read (``sites.prepare``). A site whose own
file lists the levels of a column answers from that list, whatever the table holds. Any other site
that protects its records answers no where at least `min_records` rows have one and the same level
that is not declared: a level that fewer have is not there, declared or not, and its rows count as
missing.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import StudyError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.wire.message import Public, message


@message("agree-levels/question", version=1)
class Question:
    """Columns with declared levels."""

    columns: tuple[str, ...] = Public("c", kind="str", to="site")


@message("agree-levels/confirmed", version=1)
class Confirmed:
    """Whether all values of each column lie within its declared levels."""

    within: NDArray[np.bool_] = Public("c", kind="bool")


NAME = "agree-levels.confirm"


@step(NAME)
def confirm(
    message: Question, data: SiteData, state: State, site: SiteContext
) -> tuple[Confirmed, State]:
    """Compare with what was found when the table was read."""
    within = [name not in data.foreign_levels for name in message.columns]
    return Confirmed(within=np.asarray(within, dtype=bool)), state


def agree_levels(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Stop, naming columns and sites, where values lie outside the declared levels."""
    # In the study's order, the same at all sites: answers come without names.
    columns = tuple(ctx.columns.levels)
    replies = ctx.require((yield Ask(NAME, Question(columns=columns))))
    outside = [
        f"column {name}: values outside the declared levels at {site}"
        for site, reply in replies.items()
        for name, within in zip(columns, reply.within, strict=True)
        if not within
    ]
    # A site that did not confirm its levels takes part no more.
    ctx.sites = tuple(sorted(replies))
    if outside:
        raise StudyError(
            "; ".join(outside) + " (which ones is in that site's own log): declare all levels"
        )


STEPS = (confirm,)
