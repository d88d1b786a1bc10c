"""What precedes every method: open, agree on levels, match ids, fill and standardise.

Runs as part of the exchange, so that it is journaled, gated and resumed like everything else.
"""

from __future__ import annotations

from collections.abc import Generator

from consilience.exceptions import StudyError
from consilience.protocol.method import Ask, CoordinatorContext, Method, Preparation, Replies, Step
from consilience.protocol.phases import agree_levels as levels
from consilience.protocol.phases import align_ids as ids
from consilience.protocol.phases import moments, opening, secure_sums, standardise
from consilience.protocol.result import Result

HOUSE_STEPS: tuple[Step, ...] = (
    *opening.STEPS,
    *secure_sums.STEPS,
    *levels.STEPS,
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
        yield from levels.agree_levels(ctx)
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
        sentence = (
            f"method {method.name!r} needs a value in every cell and the study keeps missing ones: "
            'set [preparation] missing to "complete-rows" or "aggregated-mean"'
        )
        raise StudyError(sentence, public=sentence)


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
