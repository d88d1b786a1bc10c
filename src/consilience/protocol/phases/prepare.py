"""What precedes every method: open, agree on levels, match ids, fill and standardise.

Runs as part of the exchange, so that it is journaled, gated and resumed like everything else.

Phase `agree_levels`: do a site's categories lie within the declared levels? Yes or no.

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
    Method,
    Preparation,
    Replies,
    SiteContext,
    SiteData,
    State,
    Step,
    step,
)
from consilience.protocol.phases import align_ids as ids
from consilience.protocol.phases import moments, opening, secure_sums, standardise
from consilience.protocol.result import Result
from consilience.wire.message import Public, message


@message("agree-levels/question", version=1)
class Question:
    """Columns with declared levels."""

    columns: tuple[str, ...] = Public("c", kind="str", to="site")


@message("agree-levels/confirmed", version=1)
class Confirmed:
    """Whether all values of each column lie within its declared levels."""

    within: NDArray[np.bool_] = Public("c", kind="bool")


CONFIRM = "agree-levels.confirm"


@step(CONFIRM)
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
    replies = ctx.require((yield Ask(CONFIRM, Question(columns=columns))))
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


HOUSE_STEPS: tuple[Step, ...] = (
    *opening.STEPS,
    *secure_sums.STEPS,
    confirm,
    *ids.STEPS,
    *moments.STEPS,
    *standardise.STEPS,
)


def prepare(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Open the exchange and prepare the rows as the study says."""
    yield from opening.opening(ctx)
    if ctx.secure:
        yield from secure_sums.introduce(ctx)
    if ctx.partition == "columns":
        # Levels, fills and scales are each site's own affair here: no other holds its columns.
        yield from ids.align_ids(ctx)
        return
    if ctx.columns.levels:
        yield from agree_levels(ctx)
    # Rounds that would tell nothing new are not asked: each one is something that leaves a site.
    wants_fill = ctx.preparation.missing in ("aggregated-mean", "indicator")
    if wants_fill or ctx.preparation.standardize != "none":
        yield from standardise.standardise(ctx)


def check_missing(method: type[Method], preparation: Preparation) -> None:
    """Check that empty cells are kept only for a method that works with them.

    Raises
    ------
    StudyError
    """
    if preparation.missing == "keep" and not method.accepts_missing:
        raise StudyError.shared(
            f"method {method.name!r} needs a value in every cell and the study keeps missing ones: "
            'set [preparation] missing to "complete-rows" or "aggregated-mean"'
        )


def exchange(method: Method, ctx: CoordinatorContext) -> Generator[Ask, Replies, Result]:
    """Return the whole exchange of a method: preparation, then its own `coordinate`."""
    check_missing(type(method), ctx.preparation)
    method.admit(ctx)
    yield from prepare(ctx)
    result: Result = yield from method.coordinate(ctx)
    return result


def steps_of(method: type[Method]) -> dict[str, Step]:
    """All steps that a site may be asked for in a run of this method."""
    return {s.name: s for s in (*HOUSE_STEPS, *method.steps)}
