"""Principal components over sites, and how many, from moments of secret groups of rows.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
moments: Moments                ->  draws groups of its rows, the same in every run
  settings                      <-  Told: rows (g), means (g, p), sums of products
                                    (g, t) of up to 10 groups               AGGREGATE
conclude: Conclude              ->  keeps the model, scores of its rows, the completed
  the model                         table
                                <-  Concluded                                  PUBLIC
==================================  ====================================================

Groups of different sites make up folds. The sums over all groups but those of a fold are the exact
moments of these rows (Chan, Golub and LeVeque 1983), and so are their principal directions. They
predict every entry of the fold's rows from the other entries of its row by least squares; what that
misses is a function of the group's moments (`completion/kernels/conditional_normal.py`). So every
rank is judged at entries that no fit has seen, and nothing more is asked. The model of the chosen
rank is that of `ProbabilisticPCA` on the pooled rows.

Phases: opening, agree_levels, standardise (before all methods). With masked sums the moments of
groups are asked for in two totals.

Source: Tipping and Bishop, JRSS B 61 (1999), section 3; Ya Le's Stanford thesis, chapter 3, for
choosing ranks by held-out entries. Departures:

* Whole groups of rows are left out, and in them one entry after the other; the source leaves out
  scattered entries of one table, whose errors do not follow from moments.
* With missing cells (`missing = "keep"`) a group tells the moments of the normal density of largest
  likelihood, which are those of the rows where no cell is missing. Cells must be missing at random:
  whether one is may hang on what is observed in its row. Moments of pairs of columns would need
  cells missing completely at random, and tell how many are missing in every pair.

Absence: a site that misses the moments is not in the model, down to the quorum. One that misses the
end keeps neither model nor scores.

Leakage: the coordinator knows, of up to 10 groups of rows at each site, numbers of rows, means and
all cross-products of the columns; a group has at least `min_records` rows and twice as many as
there are columns, and no cell is of few records or mostly of one. Where cells are missing,
expectations stand in for them. Which rows are in a group, only the site knows. With pooled scaling
the coordinator also knows how many values each column has. All sites know the model. No made-up
question tells more: nothing that the coordinator sends changes what a site tells, but for columns,
preparation and the number of groups (docs/proofs/fold-moments.md says what several runs tell).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.completion.estimators.predictors import ComponentsPredictor
from consilience.completion.federated_pca import coordinator, messages
from consilience.completion.federated_pca import site as at_site
from consilience.completion.federated_pca.result import FederatedPCAResult
from consilience.exceptions import ParameterError, ProtocolError, QuorumError, StudyError
from consilience.numerics.block_moments import square_of
from consilience.parameters import LEFT_OUT, allows, just, one_of, plain, whole
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    Replies,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.phases.secure_sums import ALL, MASKED, WRONG, agreed, require_masks, total
from consilience.wire.disclosure import aggregate, relayed, replaced
from consilience.wire.message import Disclosure

# --- Components over sites with masked sums: the moments of each fold, of all sites together.
#
# ==================================  ====================================================
# coordinator                         site
# ==================================  ====================================================
# possible: Moments               ->
#                                 <-  Possible: whether it could tell 10, 5, 2 groups, or
#                                     one; each column                         AGGREGATE
# moments_total: SharedMoments    ->  draws groups of its rows, one for each fold
#   columns, number of groups     <-  GroupTotals: rows (g), sums (g, m), sums of
#                                     products (g, t) about 0                  AGGREGATE
# ==================================  ====================================================
#
# Both replies are judged at the site as `moments` is, and leave masked (phase `secure_sums`). How
# many sites tell a column or so many groups is known first, so that this coordinator asks for
# totals over all sites: of one over some of them, the difference to another would be what the
# others add.

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
        (square_of(line, len(told))[np.ix_(at, at)] + n * np.outer(mean, mean))[upper]
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


@register
@dataclass(frozen=True, kw_only=True)
class FederatedPCA(Method[FederatedPCAResult]):
    """Find the components that the columns of all sites share, and how many there are.

    Parameters
    ----------
    rank : int, optional
        Components; chosen by entries of rows that were left out unless given.
    max_rank : int, optional
        Largest rank that is tried; all below the number of columns unless given.
    n_splits : {2, 5, 10}
        Groups of rows of each site that are left out in turn. A site with too few rows for them
        has fewer groups, of 5, 2 and 1.
    rule : {"minimum", "one-standard-error"}
        The rank of the smallest error, or the smallest rank within one standard error of it.

    Notes
    -----
    Columns should be on one scale: set ``standardize = "pooled"``. A column of a larger scale than
    the others is a component by itself, of which the others say nothing.
    """

    rank: int | None = allows(whole(0) | LEFT_OUT, default=None)
    max_rank: int | None = allows(whole(1) | LEFT_OUT, default=None)
    n_splits: int = allows(just(*messages.LEVELS[-2::-1]), default=5)
    rule: str = allows(one_of("minimum", "one-standard-error"), default="minimum")

    name: ClassVar[str] = "federated-pca"
    version: ClassVar[int] = 3
    title: ClassVar[str] = "How many components do the columns of all sites share?"
    steps = (*at_site.STEPS, *STEPS)
    tolerates: ClassVar[Mapping[str, Literal["quorum", "all", "any"]]] = {"conclude": "any"}
    absence: ClassVar[str] = (
        "A site that misses the moments is not in the model, down to the quorum. One that misses "
        "the end keeps neither model nor scores."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows numbers of rows, means and cross-products of all columns of up to "
        "10 groups of rows at each site, each of at least twice as many rows as columns, at a "
        "strict site of more (docs/proofs/detection.md); not which rows are in them. With pooled "
        "scaling it also knows how many values each column has. All sites know the model. With "
        "masked sums the coordinator knows the moments of all sites together, and how many sites "
        "could tell each column and so many groups."
    )
    Result = FederatedPCAResult
    predictor: ClassVar[Any] = ComponentsPredictor
    accepts_missing: ClassVar[bool] = True
    tells: ClassVar = "moments"
    masks_sums: ClassVar[bool] = True
    roles: ClassVar[tuple[str, ...]] = ("entity",)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are columns on one scale."""
        columns = ctx.columns
        if not columns.features:
            raise StudyError("federated-pca needs two columns or more: name features in [data]")
        if columns.weight is not None:
            raise StudyError("federated-pca knows no weights: leave out [data] weight")
        if ctx.preparation.standardize == "site":
            raise StudyError(
                "columns mean the same at all sites only on one scale: set [preparation] "
                'standardize to "pooled" or "none"'
            )
        if ctx.secure and ctx.preparation.standardize != "pooled":
            raise StudyError(
                "masked sums of products are added up about 0 with a fixed resolution: set "
                '[preparation] standardize to "pooled"'
            )

    # ------------------------------------------------------------------ the exchange

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Moments, choice, end."""
        p = len(ctx.feature_names)
        if p < 2:
            raise StudyError("federated-pca needs two columns or more: name features in [data]")
        if self.rank is not None and self.rank >= p:
            raise ParameterError.of("rank", f"below the number of columns, {p}", self.rank)
        settings = messages.Settings(self.n_splits)
        if ctx.masks is None:
            told = ctx.require((yield Ask("moments", messages.Moments(settings=settings))))
        else:
            told = yield from told_by_all(ctx, self.n_splits)
        pool = coordinator.pool_of(told)
        if ctx.masks is None and len(pool.sites) < ctx.quorum:
            raise QuorumError(
                f"{len(pool.sites)} sites tell the same columns and the study needs {ctx.quorum}: "
                "take fewer columns"
            )
        coordinator.check_spread(pool)
        errors = coordinator.errors_of(
            pool, coordinator.folds_of(pool, self.n_splits), self.max_rank
        )
        if self.rank is not None:
            rank = self.rank
            if rank >= len(pool.columns):
                raise QuorumError(
                    f"{len(pool.columns)} columns are left, as many as the rank or fewer: lower "
                    "rank, or leave out the sites that withhold columns"
                )
        else:
            curve = errors.curve()
            if curve is None:
                raise QuorumError(
                    "a rank is chosen by groups of rows that are left out in turn, and only one "
                    "group can be told (each needs twice as many rows as columns, at a strict site "
                    "more): give rank, take fewer columns, or let sites with more rows take part"
                )
            rank = int(errors.candidates[curve.place(self.rule)])
        result, model = coordinator.build_result(ctx, self, pool, errors, rank)
        message = messages.Conclude(
            settings=settings,
            model=relayed(messages.arrays_of(model, pool.columns), Disclosure.MODEL),
        )
        ask = Ask("conclude", message, to=tuple(sorted(told)) if ctx.masks is None else ctx.sites)
        ctx.require((yield ask), at_least=0)
        return result
