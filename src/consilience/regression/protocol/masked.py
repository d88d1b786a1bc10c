"""A pooled regression with masked sums: all sites are one, of which totals are known.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
totals: Request                 ->
  settings                      <-  Totals: rows, sums (f) of columns, response,
                                    offset and weight                       AGGREGATE
products: Centre                ->
  columns in use, pooled means  <-  Products (t) about the pooled means     AGGREGATE
sums: Coefficients, rounds 1..R ->
                                <-  Sums, as of sums in plain               AGGREGATE
==================================  ====================================================

Each reply is judged at the site as in a run in plain, and leaves masked (phase `secure_sums`). A
coefficient is solved from totals alone, so the fit is that of a run in plain; what compares sites
is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np

from consilience.arrays import IntArray
from consilience.exceptions import ProtocolError, QuorumError, listed
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
from consilience.protocol.phases.secure_sums import ALL, MASKED, WRONG, refused_for, total
from consilience.regression import kernels
from consilience.regression.protocol import coordinator, messages
from consilience.regression.protocol.coordinator import Survey
from consilience.regression.protocol.messages import square_of
from consilience.regression.protocol.site import moments
from consilience.wire.disclosure import relayed, replaced
from consilience.wire.message import Disclosure, is_gram

if TYPE_CHECKING:
    from consilience.regression.protocol import PooledRegression

_AGGREGATE = Disclosure.AGGREGATE


def refusal(method: PooledRegression) -> str:
    """Say what of a study needs more of a site than parts of sums; empty where nothing does."""
    needs = {
        "fits no Cox regression from masked sums: choose another family": method.family
        == kernels.COX,
        "adds up fits of single sites, which are no sums over rows: set fit to 'exact'": (
            method.settings.one_shot
        ),
        "takes each site's rows for its constant: set site_effects to false": method.site_effects,
        "judges risks site by site: set performance to false": method.performance,
        "takes each site for a cluster: set errors to 'model', 'HC0' or 'HC1'": (
            method.errors == "cluster"
        ),
        "leaves out single sites by what they tell: set when_withheld to 'stop' or "
        "'without-column'": method.when_withheld == "without-site",
    }
    return refused_for(needs)


# --------------------------------------------------------------------------- at a site


@step("totals", once=True, summed=True)
def totals(
    message: messages.Request, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Totals, State]:
    """Tell rows and sums of the columns of which `moments` tells."""
    own, state = moments(message, data, state, site)
    sums = replaced(own.means, own.n.value * own.means.value)
    return messages.Totals(n=own.n, totals=sums), state


@step("products", once=True, summed=True)
def products(
    message: messages.Centre, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Products, State]:
    """Tell products of columns in use about the pooled means."""
    columns: IntArray = np.asarray(message.columns.value, dtype=np.int64)
    told = list(state.get("told", ()))
    if not (np.diff(columns) > 0).all() or not set(columns.tolist()) <= set(told):
        sentence = "the columns in use are not among those that the site has told sums of"
        raise ProtocolError(sentence, public=sentence)
    if plain(message.settings) != state.get("settings"):
        raise ProtocolError("the question goes on with other settings than the totals")
    own, state = moments(messages.Request(settings=message.settings), data, state, site)
    means = own.means.value[~np.isnan(own.means.value)]
    kept = [*map(told.index, columns.tolist()), *range(len(told), len(means))]
    if len(message.mean.value) != len(kept):
        raise ProtocolError("pooled means of other columns than those in use")
    # About the site's own means, and moved: rounding far away would depend on single rows.
    away = means[kept] - message.mean.value
    square = square_of(own.products.value, len(means))[np.ix_(kept, kept)]
    moved = square + own.n.value * np.outer(away, away)
    told_of = replaced(own.products, moved[np.triu_indices(len(kept))])
    return messages.Products(products=told_of), state


STEPS = (totals, products)


# --------------------------------------------------------------------------- at the coordinator


def surveyed(
    ctx: CoordinatorContext, method: PooledRegression, settings: messages.Settings
) -> Generator[Ask, Replies, Survey]:
    """Columns that take part, and what totals say of them.

    Raises
    ------
    QuorumError
        Some sites withhold a column and the study says to stop; or too little is left.
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    request = messages.Request(settings=settings)
    first = yield from total(ctx, Ask("totals", request), messages.Totals)
    told = first.told["totals"] == len(first.sites)
    n, p = float(first.values["n"]), len(ctx.feature_names)
    gone = tuple(ctx.feature_names[j] for j in np.flatnonzero(~told[:p]))
    if gone and method.when_withheld == "stop":
        raise QuorumError(
            f"some sites may not tell {listed(gone)}: a count behind it, or behind its products "
            "with others or with the weight, is too small, one row dominates, or the columns are "
            'too many for the rows. Leave it out, or set when_withheld to "without-column"'
        )
    mean = np.where(told, first.values["totals"] / n, np.nan)
    centre = messages.Centre(
        settings=settings,
        columns=relayed(np.flatnonzero(told[:p]).astype(np.int64), _AGGREGATE),
        mean=relayed(mean[told], _AGGREGATE),
    )
    asked = Ask("products", centre, to=first.sites)
    second = yield from total(ctx, asked, messages.Products, at_least=len(first.sites))
    moments = messages.Moments(
        n=relayed(int(n), _AGGREGATE),
        means=relayed(mean, _AGGREGATE),
        products=relayed(second.values["products"], _AGGREGATE),
    )
    if moments.check(request, {"p": p}):
        raise ProtocolError(WRONG)
    survey = coordinator.survey_of(ctx, method, settings, {ALL: moments})
    withheld = {"some sites": gone} if gone else {}
    return dataclasses.replace(survey, members=first.sites, withheld=withheld)


def summed(
    ctx: CoordinatorContext, survey: Survey, asked: Ask
) -> Generator[Ask, Replies, messages.Sums]:
    """Totals of sums at coefficients, as if one site told them.

    Raises
    ------
    ProtocolError
        The totals are those of no rows.
    """
    found = yield from total(ctx, asked, messages.Sums, at_least=len(survey.members))
    # A figure that some site keeps back is not told of the others: it would be of other rows.
    whole = {
        name: np.where(found.told[name] == len(found.sites), value, np.nan)
        for name, value in found.values.items()
    }
    reply = messages.Sums(**{name: relayed(v, _AGGREGATE) for name, v in whole.items()})
    if reply.check(asked.message, {}) or not is_gram(reply.curvature.value):
        raise ProtocolError(WRONG)
    return reply
