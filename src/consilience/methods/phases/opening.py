"""Phase `opening`: every site reads its table as the study says, before anything else is asked.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
opening.read: Open          ->  reads, renames, recodes, encodes (``sites.prepare``)
  columns, preparation, study,
  partition, run it follows
                            <-  Opened: feature names, preset         PUBLIC
==============================  ==================================================

A site whose table does not fit refuses, naming column and rule, never a value. Sites must agree on
the names of the prepared columns. Over columns each site has its own, and their names stay there:
its reply then names none.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator

from consilience.exceptions import StudyError
from consilience.methods.base import (
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
from consilience.wire.message import Disclosure, message, sends

NAME = "opening.read"


@message("opening/open", version=2)
class Open:
    """How to read and prepare the table."""

    columns: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="roles, as JSON")
    preparation: str = sends(Disclosure.PUBLIC, kind="str", audience="site", doc="rules, as JSON")
    study: str = sends(
        Disclosure.PUBLIC, kind="str", audience="site", doc="the study file, in canonical form"
    )
    partition: str = sends(
        Disclosure.PUBLIC, kind="str", audience="site", doc="what the sites share"
    )
    follows: str = sends(
        Disclosure.PUBLIC, kind="str", audience="site", doc="id of the run that this one follows"
    )

    def settings(self) -> tuple[Columns, Preparation]:
        """Read both back."""
        return Columns(**json.loads(self.columns)), Preparation(**json.loads(self.preparation))


@message("opening/opened", version=1)
class Opened:
    """Names of the columns after preparation, and the preset of the site's policy."""

    feature_names: tuple[str, ...] = sends(
        Disclosure.PUBLIC, ("p",), kind="str", doc="columns after preparation"
    )
    preset: str = sends(Disclosure.PUBLIC, kind="str", doc="preset of the site's policy")


@step(NAME)
def read(message: Open, data: SiteData, state: State, site: SiteContext) -> tuple[Opened, State]:
    """Say which columns there are (the site has read its table on the way here)."""
    names = data.feature_names if message.partition == "rows" else ()
    return Opened(feature_names=names, preset=site.preset), state


def opening(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Open the exchange; afterwards `ctx.sites` are those that take part."""
    request = Open(
        columns=json.dumps(dataclasses.asdict(ctx.columns), sort_keys=True),
        preparation=json.dumps(dataclasses.asdict(ctx.preparation), sort_keys=True),
        study=ctx.study_text,
        partition=ctx.partition,
        follows=ctx.follows_run,
    )
    replies = ctx.require((yield Ask(NAME, request)))
    names = {site: reply.feature_names for site, reply in replies.items()}
    first = next(iter(names))
    for site, found in names.items():
        if found != names[first]:
            raise StudyError(
                f"after preparation, site {site} has columns {', '.join(found)} and site {first} "
                f"has {', '.join(names[first])}: declare levels and columns so that they agree"
            )
    ctx.sites = tuple(sorted(replies))
    ctx.feature_names = names[first]
    ctx.presets = {site: str(reply.preset) for site, reply in replies.items()}
    if "simulation" in ctx.presets.values():
        ctx.note(
            "Simulation: at least one site runs under the preset for one person who holds all the "
            "data, which protects no record."
        )


STEPS = (read,)
