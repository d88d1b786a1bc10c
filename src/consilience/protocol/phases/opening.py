"""Phase `opening`: every site reads its table as the study says, before anything else is asked.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
opening.read: Open          ->  reads, renames, recodes, encodes (``sites.prepare``)
  columns, preparation, study,
  partition, run it follows
                            <-  Opened: feature names, preset         PUBLIC
opening.told: NotAccepted   ->  writes it into its own log
  round, step, reason       <-  Heard, for which nobody waits
==============================  ==================================================

A coordinator that cannot accept a reply goes on without the site and tells it why.

A site whose table does not fit refuses, naming column and rule, never a value. The names of the
prepared columns follow from the study. Over columns each site has its own, and their names stay
there: its reply then names none.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Mapping
from typing import Any

from consilience.protocol.method import (
    Ask,
    Columns,
    CoordinatorContext,
    Preparation,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.wire.message import Public, message

NAME = "opening.read"
TOLD = "opening.told"


@message("opening/open", version=2)
class Open:
    """How to read and prepare the table."""

    columns: str = Public("", "roles, as JSON", kind="str", to="site")
    preparation: str = Public("", "rules, as JSON", kind="str", to="site")
    study: str = Public("", "the study file, in canonical form", kind="str", to="site")
    partition: str = Public("", "what the sites share", kind="str", to="site")
    follows: str = Public("", "id of the run that this one follows", kind="str", to="site")

    def settings(self) -> tuple[Columns, Preparation]:
        """Read both back."""
        return Columns(**json.loads(self.columns)), Preparation(**json.loads(self.preparation))


@message("opening/opened", version=1)
class Opened:
    """Names of the columns after preparation, and the preset of the site's policy."""

    feature_names: tuple[str, ...] = Public("p", "columns after preparation", kind="str")
    preset: str = Public(
        "",
        "preset of the site's policy",
        kind="str",
        choices=("strict", "consortium", "simulation"),
    )

    def check(self, request: Open, known: Mapping[str, Any]) -> str | None:
        """Columns are those that the study's roles, levels and rules give; over columns, none."""
        # What follows from the study is no news: a site that says otherwise read another table or
        # study.
        same = self.feature_names == known.get("names", ())
        return None if same else "other columns than the study prepares"


@message("opening/not-accepted", version=1)
class NotAccepted:
    """A reply of yours does not fit its declaration: the round went on without you."""

    round: int = Public("", "round of the reply", kind="int", to="site")
    step: str = Public("", "what was asked", kind="str", to="site")
    reason: str = Public("", "what does not fit", kind="str", to="site")


@message("opening/heard", version=1)
class Heard:
    """It is in the site's log."""


@step(NAME)
def read(message: Open, data: SiteData, state: State, site: SiteContext) -> tuple[Opened, State]:
    """Say which columns there are (the site has read its table on the way here)."""
    # Over columns no party is told the names of another's columns.
    names = data.feature_names if message.partition == "rows" else ()
    return Opened(feature_names=names, preset=site.preset), state


@step(TOLD)
def told(
    message: NotAccepted, data: SiteData, state: State, site: SiteContext
) -> tuple[Heard, State]:
    """Write down, for the people at the site, that and why a reply was not accepted."""
    step, reason = _one_line(message.step), _one_line(message.reason)
    site.note(
        f"The coordinator did not accept the reply to {step} in round {message.round} and counts "
        f"this site as absent there: {reason}."
    )
    return Heard(), state


def _one_line(text: str) -> str:
    """What somebody else wrote, fit for a log."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def opening(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Open the exchange; afterwards `ctx.sites` are those that take part."""
    request = Open(
        # Sorted, so that one study opens with the same bytes in every run.
        columns=json.dumps(dataclasses.asdict(ctx.columns), sort_keys=True),
        preparation=json.dumps(dataclasses.asdict(ctx.preparation), sort_keys=True),
        study=ctx.study_text,
        partition=ctx.partition,
        follows=ctx.follows_run,
    )
    replies = ctx.require((yield Ask(NAME, request)))
    ctx.sites = tuple(sorted(replies))
    # All sites have said the same: `Opened.check` refuses any other.
    ctx.feature_names = replies[ctx.sites[0]].feature_names
    ctx.presets = {site: str(reply.preset) for site, reply in replies.items()}
    if "simulation" in ctx.presets.values():
        ctx.note(
            "Simulation: at least one site runs under the preset for one person who holds all the "
            "data, which protects no record."
        )


STEPS = (read, told)
