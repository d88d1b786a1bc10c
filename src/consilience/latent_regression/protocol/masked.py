"""Latent class regression with masked sums: all sites are one, of which class totals are known.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
possible: Offer                 ->  where events are to be held out: could it?
                                <-  Possible                                    AGGREGATE
offer: Offer                    ->
                                <-  Offered                                     AGGREGATE
begin_total: Begin              ->  puts every entity into a class by chance
                                <-  ClassTotals: (k, d) of the released classes AGGREGATE
round_total: Round, 1 .. R      ->
                                <-  ClassTotals; labels that moved, fit of beta AGGREGATE
conclude_total: Conclude        ->
                                <-  Losses: 11 figures times events, or none    AGGREGATE
keep: Conclude                  ->  as in a run in plain
==================================  ====================================================

Each reply is judged at the site as in a run in plain, and leaves masked (phase `secure_sums`). All
sites are asked the same question, in which the own part of an entity has one weight everywhere: so
all take part in every round, and classes begin by chance, since a site's own ones would have to be
known to be aligned.

What is added up over different sites in two cells would tell one site's number by its difference.
So labels that moved are told as a number, whose share is of the entities that the sums count, and
figures on held-out events all together or not at all. Events are held out by all sites or by none:
how many could is asked first, and a site that said it could not answers no study that holds some.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import ProtocolError
from consilience.latent_regression.protocol import site as at_site
from consilience.latent_regression.protocol.events import WITHHELD, events_of
from consilience.latent_regression.protocol.messages import (
    MARKS,
    Begin,
    ClassTotals,
    Conclude,
    Concluded,
    Losses,
    Offer,
    Offered,
    Possible,
    Round,
    Settings,
    Sums,
)
from consilience.parameters import plain
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.protocol.phases.secure_sums import (
    ALL,
    WRONG,
    Totals,
    refused_for,
    require_masks,
    total,
)
from consilience.wire.disclosure import aggregate, relayed, replaced
from consilience.wire.message import Disclosure

if TYPE_CHECKING:
    from consilience.latent_regression.protocol import LatentClassRegression

_AGGREGATE = Disclosure.AGGREGATE


def refusal(method: LatentClassRegression) -> str:
    """Say what of a study needs more of a site than parts of sums; empty where nothing does."""
    needs = {
        "aligns classes that each site has found by itself: set start to 'random'": (
            method.start == "local"
        ),
        "takes some of the sites in a round, whose totals would differ by single sites: set "
        "participation to 1": method.participation < 1,
    }
    return refused_for(needs)


# --------------------------------------------------------------------------- at a site


def _parts(own: Sums) -> ClassTotals:
    """What a site adds to the totals of classes."""
    counted = np.nansum(own.sums.value[:, -MARKS])
    fit = np.array([float(value) for value in own.fit.value]) * counted
    fit = np.where(np.isfinite(fit).all(), fit, np.nan)
    moved = float(own.moved.value * counted)
    withheld = (own.status == WITHHELD).astype(float)
    return ClassTotals(
        sums=own.sums,
        withheld=replaced(own.moved, withheld),
        moved=replaced(own.moved, moved),
        fit=replaced(own.fit, fit),
    )


@step("possible", once=True, summed=True)
def possible(
    message: Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[Possible, State]:
    """Count this site where it could hold events out."""
    require_masks(site)
    events = events_of(data, message.settings, site)
    could = bool(events.held.any())
    marks = replaced(aggregate(np.ones((data.n_rows, 1))), np.array([float(could)]))
    kept = {"holds": plain(message.settings) if could else {}, "seeds": events.seeds}
    return Possible(holds=marks), kept


@step("begin_total", once=True, summed=True)
def begin_total(
    message: Begin, data: SiteData, state: State, site: SiteContext
) -> tuple[ClassTotals, State]:
    """Put every entity into a class, and add up what `begin` tells."""
    require_masks(site)
    own, state = at_site.begin(message, data, state, site)
    return _parts(own), state


@step("round_total", tally=at_site.tally, summed=True)
def round_total(
    message: Round, data: SiteData, state: State, site: SiteContext
) -> tuple[ClassTotals, State]:
    """Draw labels, and add up what `round` tells."""
    require_masks(site)
    own, state = at_site.round_(message, data, state, site)
    return _parts(own), state


@step("conclude_total", once=True, summed=True)
def conclude_total(
    message: Conclude, data: SiteData, state: State, site: SiteContext
) -> tuple[Losses, State]:
    """Keep classes and predictor; weight what `conclude` tells by the events in the sums."""
    require_masks(site)
    events = float(state["events"])
    own, state = at_site.conclude(message, data, state, site)
    weight = events if np.isfinite(own.figures.value).all() else float("nan")
    part = 0.0 * weight + 1.0
    found = Losses(
        figures=replaced(own.figures, own.figures.value * weight),
        weight=replaced(own.figures, weight),
        variances=replaced(own.variances, own.variances.value * weight**2),
        effective=replaced(own.effective, own.effective.value * part),
    )
    return found, state


STEPS = (possible, begin_total, round_total, conclude_total)


# --------------------------------------------------------------------------- at the coordinator


def _total(
    ctx: CoordinatorContext, of: str, message: Any, reply: type
) -> Generator[Ask, Replies, Totals]:
    """A total over all sites that have contributed to those before."""
    sites = ctx.masks.roster
    return (yield from total(ctx, Ask(of, message, to=sites), reply, at_least=len(sites)))


def _checked(reply: Any, message: Any, known: Mapping[str, Any]) -> Any:
    if reply.check(message, known):
        raise ProtocolError(WRONG)
    return reply


def held_out(ctx: CoordinatorContext, s: Settings) -> Generator[Ask, Replies, Settings]:
    """Settings under which all sites hold events out, or none does."""
    if not s.holdout:
        return s
    found = yield from total(ctx, Ask("possible", Offer(settings=s)), Possible)
    able, sites = round(float(found.values["holds"][0])), len(found.sites)
    if not 0 <= able <= sites:
        raise ProtocolError(WRONG)
    if able == sites:
        return s
    # The totals of a run with and of one without them would differ by those of some sites.
    ctx.note(
        f"{able} of {sites} sites have enough events to hold some out, and masked totals are of "
        "all: no site did."
    )
    return dataclasses.replace(s, holdout=0.0)


def offered(
    ctx: CoordinatorContext, message: Offer
) -> Generator[Ask, Replies, tuple[dict[str, Offered], bool]]:
    """What all sites bring, as if one site told it, and whether each site has told."""
    # Whoever misses the first total of a run is left out of it.
    sites, least = ctx.sites, None
    if ctx.masks.epoch:
        sites, least = ctx.masks.roster, len(ctx.masks.roster)
    found = yield from total(ctx, Ask("offer", message, to=sites), Offered, at_least=least)
    told = found.told["sums"]
    sums = np.where(told > 0, found.values["sums"], np.nan)
    one = Offered(sums=relayed(sums, _AGGREGATE))
    known = {"p": len(ctx.feature_names)}
    return {ALL: _checked(one, message, known)}, bool((told[0] == len(found.sites)).all())


def sums(
    ctx: CoordinatorContext, of: str, message: Begin | Round, known: Mapping[str, float]
) -> Generator[Ask, Replies, dict[str, Sums]]:
    """Totals of classes, as if one site told them; a class that some site withholds is marked."""
    found = yield from _total(ctx, of, message, ClassTotals)
    values = found.values
    counted = max(float(values["sums"][:, -MARKS].sum()), 1.0)
    told = found.told["moved"] == len(found.sites)
    moved = float(values["moved"]) / counted if told else float("nan")
    one = Sums(
        sums=relayed(values["sums"], _AGGREGATE),
        status=np.where(values["withheld"] > 0, WITHHELD, 0),
        moved=relayed(moved, _AGGREGATE),
        fit=relayed(_fits(found, counted), _AGGREGATE),
    )
    return {ALL: _checked(one, message, {"p": len(ctx.feature_names), **known})}


def _fits(found: Totals, counted: float) -> tuple[float, ...]:
    told = found.told["fit"] > 0
    fits: FloatArray = np.where(told, found.values["fit"] / counted, np.nan)
    return tuple(map(float, fits))


def concluded(
    ctx: CoordinatorContext, message: Conclude
) -> Generator[Ask, Replies, dict[str, Concluded]]:
    """Figures over the held-out events of all sites that tell theirs."""
    found = yield from _total(ctx, "conclude_total", message, Losses)
    told, values = found.told, found.values
    weight = np.where(told["weight"] > 0, values["weight"], np.nan)
    known = told["variances"] == told["figures"]
    of = {
        "figures": values["figures"] / weight,
        "variances": np.where(known, values["variances"], np.nan) / weight**2,
        "effective": np.where(told["effective"] > 0, values["effective"], np.nan),
    }
    return {ALL: Concluded(**{name: relayed(v, _AGGREGATE) for name, v in of.items()})}
