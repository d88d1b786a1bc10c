"""Components over sites with masked sums: the moments of each fold, of all sites together.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
possible: Moments               ->
                                <-  Possible: whether it could tell 10, 5, 2 groups, or
                                    one; each column                         AGGREGATE
moments_total: SharedMoments    ->  draws groups of its rows, one for each fold
  columns, number of groups     <-  GroupTotals: rows (g), sums (g, m), sums of
                                    products (g, t) about 0                  AGGREGATE
==================================  ====================================================

Both replies are judged at the site as `moments` is, and leave masked (phase `secure_sums`). How
many sites tell a column or so many groups is known first, so that this coordinator asks for totals
over all sites: of one over some of them, the difference to another would be what the others add.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from consilience.completion.federated_pca import messages
from consilience.completion.federated_pca import site as at_site
from consilience.exceptions import ProtocolError, QuorumError
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
from consilience.protocol.phases.secure_sums import ALL, MASKED, WRONG, agreed, require_masks, total
from consilience.wire.disclosure import aggregate, relayed, replaced
from consilience.wire.message import Disclosure

_LEVELS = np.array(messages.LEVELS)

# --------------------------------------------------------------------------- at a site


@step("possible", once=True, summed=True, keeps=at_site.kept_as)
def possible(
    message: messages.Moments, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Possible, State]:
    """Count this site where it could tell so many groups, or a column."""
    require_masks(site)
    most = at_site.n_splits_of(message.settings, data, site)
    # Each number is tried: one that is refused later would tell that it was.
    tried = {n: at_site.groups_of(data, n, site) for n in messages.LEVELS if n <= most}
    able = np.isin(_LEVELS, [n for n, found in tried.items() if found.number == n])
    columns = np.isin(np.arange(data.features.shape[1]), tried[1].columns)
    rows = aggregate(np.ones(data.n_rows))
    reply = messages.Possible(
        levels=replaced(rows, able.astype(float)), columns=replaced(rows, columns.astype(float))
    )
    could = {"groups": _LEVELS[able].tolist(), "columns": np.flatnonzero(columns).tolist()}
    return reply, {**state, "could": could}


@step("moments_total", once=True, summed=True, keeps=at_site.kept_as)
def moments_total(
    message: messages.SharedMoments, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.GroupTotals, State]:
    """Tell sums about 0 of each group, over the columns that all sites can tell."""
    require_masks(site)
    wanted = agreed(message.columns, message.groups, state, least=2)
    asked = messages.Moments(settings=messages.Settings(message.groups))
    own, _ = at_site.moments(asked, data, state, site)
    counts, told = own.counts.value, np.flatnonzero(~np.isnan(own.means.value[0]))
    means, at = own.means.value[:, wanted], np.searchsorted(told, wanted)
    upper = np.triu_indices(len(wanted))
    products = [
        (messages.square_of(line, len(told))[np.ix_(at, at)] + n * np.outer(mean, mean))[upper]
        for n, mean, line in zip(counts, means, own.products.value, strict=True)
    ]
    reply = messages.GroupTotals(
        counts=own.counts,
        sums=replaced(own.means, counts[:, None] * means),
        products=replaced(own.products, np.array(products)),
    )
    return reply, {"settings": plain(message.settings)}


STEPS = (possible, moments_total)


# --------------------------------------------------------------------------- at the coordinator


def told_by_all(
    ctx: CoordinatorContext, n_splits: int
) -> Generator[Ask, Replies, dict[str, messages.Told]]:
    """Moments of groups of the rows of all sites, as if one site told them.

    Raises
    ------
    QuorumError
        Fewer than two columns can be told by every site.
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    settings = messages.Settings(n_splits)
    asked = messages.Moments(settings=settings)
    # All that have contributed to the scales: a total without one of them would tell its part.
    members = ctx.masks.roster
    sites = len(members)
    ask = Ask("possible", asked, to=members)
    first = yield from total(ctx, ask, messages.Possible, at_least=sites)
    able, telling = (np.rint(first.values[name]) for name in ("levels", "columns"))
    if able[-1] != sites or not ((telling >= 0) & (telling <= sites)).all():
        raise ProtocolError(WRONG)
    columns = np.flatnonzero(telling == sites)
    if len(columns) < 2:
        raise QuorumError(
            "fewer than two columns are told by every site: take columns in which more rows differ"
        )
    if len(columns) < len(telling):
        them = ", ".join(np.array(ctx.feature_names)[telling < sites])
        ctx.note(
            f"Some sites withhold {them} (few rows differ, or one row dominates), so no model has "
            "these."
        )
    request = messages.SharedMoments(
        settings=settings,
        groups=int(_LEVELS[able == sites].max()),
        columns=relayed(columns, Disclosure.AGGREGATE),
    )
    ask = Ask("moments_total", request, to=members)
    found = yield from total(ctx, ask, messages.GroupTotals, at_least=sites)
    counts, sums = np.rint(found.values["counts"]), found.values["sums"]
    if not (counts > 0).all():
        raise ProtocolError(WRONG)
    means = np.full((len(counts), len(telling)), np.nan)
    means[:, columns] = own = sums / counts[:, None]
    upper = np.triu_indices(len(columns))
    about = [n * np.outer(mean, mean)[upper] for n, mean in zip(counts, own, strict=True)]
    told = messages.Told(
        counts=relayed(counts.astype(np.int64), Disclosure.AGGREGATE),
        means=relayed(means, Disclosure.AGGREGATE),
        products=relayed(found.values["products"] - np.array(about), Disclosure.AGGREGATE),
    )
    if told.check(asked, {}):
        raise ProtocolError(WRONG)
    return {ALL: told}
