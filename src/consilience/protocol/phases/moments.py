"""Phase `moments`: pooled means and variances of the feature columns.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
moments.sums: Request       ->
                            <-  Sums: n (p), means (p), spreads (p)   AGGREGATE
or, where sums are masked,
moments.totals: Request     ->
                            <-  Totals: n (p), totals (p)             AGGREGATE
moments.squares: Centre     ->
  mean (p)
                            <-  Squares: squares (p)                  AGGREGATE
==============================  ==================================================

``means`` are over the rows with a value, ``spreads`` are mean squared deviations from the *site's*
mean, ``n`` says how many rows they stand for: the rows with a value, or all rows where only a few
values are missing, since a small number of missing values is a small count; ``spreads`` then count
the site's mean for these, as `standardise` fills them. They are combined by the update of Chan,
Golub and LeVeque (1983), pairwise in name order, which loses no digits when means are large.

A column whose cell is small (or empty) or dominated at a site is withheld there, and of a category
one more level where the others would tell of a small one; the pooled moment then comes from the
other sites, and a note says so.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray
from consilience.exceptions import DataError, QuorumError, listed
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.protocol.phases.secure_sums import note_cut, total
from consilience.wire.disclosure import Released, aggregate, relayed, replaced
from consilience.wire.message import Aggregate, Disclosure, Public, message
from consilience.wire.moment_facts import unsafe_columns

MOST = 1e30
"""Of a point about which squares are told, and of units: far fewer than numbers are finite for."""
_MOST_ROWS = float(1 << 40)


@message("moments/request", version=1)
class Request:
    """Ask for sums of the feature columns."""


@message("moments/sums", version=1)
class Sums:
    """Sums of a site's feature columns; NaN where the site withholds a column."""

    n: Released = Aggregate(
        "p",
        "rows with a value; all rows where fewer than min_records values are missing",
        gaps=True,
        low=0.0,
        high=_MOST_ROWS,
    )
    means: Released = Aggregate("p", "column means", gaps=True)
    spreads: Released = Aggregate(
        "p", "mean squared deviations from the site's mean", gaps=True, low=0.0
    )

    def check(self, request: Request, known: Mapping[str, Any]) -> str | None:
        """A column is told whole or not at all."""
        gaps = [np.isnan(one.value) for one in (self.n, self.means, self.spreads)]
        same = (gaps[0] == gaps[1]).all() and (gaps[0] == gaps[2]).all()
        return None if same else "a column of which something is withheld and something told"


@message("moments/shared", version=1)
class Shared:
    """Ask for totals of the columns that all sites tell."""

    without: tuple[int, ...] = Public(
        "", "columns that some site withholds", kind="int", many="columns", low=0, to="all"
    )


@message("moments/totals", version=1)
class Totals:
    """The same as what adds up over sites."""

    n: Released = Aggregate("p", "as of the sums", gaps=True, low=0.0, high=_MOST_ROWS)
    totals: Released = Aggregate("p", "column sums", gaps=True)


@message("moments/centre", version=1)
class Centre:
    """Pooled means."""

    mean: Released = Aggregate(
        "p", "pooled means; a gap where no site tells", to="all", gaps=True, low=-MOST, high=MOST
    )


@message("moments/squares", version=1)
class Squares:
    """Sums about the pooled means."""

    squares: Released = Aggregate("p", "sums of squared deviations", gaps=True, low=0.0)


@dataclass(frozen=True, eq=False)
class Moments:
    """Pooled moments.

    Attributes
    ----------
    n, mean, variance : (p,) arrays
        Rows behind each column, mean, and variance with denominator n.
    withheld : dict of str to tuple of str
        Columns that a site withheld.
    """

    n: FloatArray
    mean: FloatArray
    variance: FloatArray
    withheld: dict[str, tuple[str, ...]]


@step("moments.sums")
def sums(message: Request, data: SiteData, state: State, site: SiteContext) -> tuple[Sums, State]:
    """Sum the columns, withholding what is small or dominated."""
    x, centre, scale = data.in_own_units()
    missing = np.isnan(x)
    few = missing.sum(axis=0) < site.limits.min_records
    n = aggregate(np.where(missing & ~few, np.nan, 1.0))
    means = aggregate(x, mean=True)
    with np.errstate(over="ignore"):  # of numbers above 1e150, which the gate withholds
        squares = (x - means.value) ** 2
    spreads = aggregate(np.where(missing & few, 0.0, squares), mean=True)
    # A column is released whole or not at all: its mean and its spread tell the same story.
    unsafe = unsafe_columns(x, limits=site.limits, coded=data.coded)
    for released in (n, means, spreads):
        unsafe = unsafe | np.isnan(released.withhold_unsafe(site.limits).value)
    # In made-up units too, and moved as sums: rounding there would depend on single rows.
    means = replaced(means, (means.value - centre) / scale)
    spreads = replaced(spreads, spreads.value / scale**2)
    reply = Sums(
        n=n.withhold(unsafe), means=means.withhold(unsafe), spreads=spreads.withhold(unsafe)
    )
    return reply, state


@step("moments.totals", summed=True)
def totals(
    message: Shared, data: SiteData, state: State, site: SiteContext
) -> tuple[Totals, State]:
    """Sum the columns that `sums` tells."""
    own, state = sums(Request(), data, state, site)
    without = np.isin(np.arange(data.features.shape[1]), message.without)
    n = own.n.withhold(without)
    return Totals(n=n, totals=replaced(own.means, n.value * own.means.value)), state


@step("moments.squares", once=True, summed=True)
def squares(
    message: Centre, data: SiteData, state: State, site: SiteContext
) -> tuple[Squares, State]:
    """Sum squared deviations of the same columns from the pooled means."""
    own, state = sums(Request(), data, state, site)
    # About the site's own mean, and moved, as its rows would lose digits far away.
    away = own.means.value - message.mean.value
    moved = own.n.value * (own.spreads.value + away**2)
    return Squares(squares=replaced(own.spreads, moved)), state


def combine(
    first: tuple[FloatArray, FloatArray, FloatArray],
    second: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Combine (n, mean, sum of squared deviations) of two groups (Chan et al. 1983, eq. 2.1)."""
    n = first[0] + second[0]
    # Two groups without a row have no mean: they come out as no rows at 0.
    safe = np.maximum(n, 1)
    delta = second[1] - first[1]
    mean = first[1] + delta * second[0] / safe
    squares = first[2] + second[2] + delta**2 * first[0] * second[0] / safe
    return n, mean, squares


def pool(replies: dict[str, Sums]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Pool sites in name order by a fixed pairwise tree; withheld columns count as no rows."""
    parts = []
    for site in sorted(replies):
        n, mean, spread = (
            np.nan_to_num(released.value)
            for released in (replies[site].n, replies[site].means, replies[site].spreads)
        )
        parts.append((n, mean, n * spread))
    while len(parts) > 1:
        paired = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0]


def moments(
    ctx: CoordinatorContext, *, required: int | None = None
) -> Generator[Ask, Replies, Moments]:
    """Ask all sites for their sums and pool them.

    Parameters
    ----------
    ctx : CoordinatorContext
    required : int, optional
        How many columns, the first ones, must be told by some site (all of them); another one that
        is not has mean and variance 0 over no rows.

    Raises
    ------
    QuorumError
        A column that is required was withheld by every site, or by one where sums are masked.
    """
    if ctx.masks is not None:
        found = yield from _masked(ctx)
    else:
        found = yield from _told(ctx)
    lost = [name for name, k in zip(ctx.feature_names[:required], found.n, strict=False) if k == 0]
    if lost:
        who = "every" if ctx.masks is None else "a"
        raise QuorumError(
            f"{who} site withheld column {lost[0]!r}: leave it out, or ask the stewards whether "
            "their limits may be lower"
        )
    return found


def _told(ctx: CoordinatorContext) -> Generator[Ask, Replies, Moments]:
    """Pool what each site tells."""
    replies = ctx.require((yield Ask("moments.sums", Request())))
    withheld: dict[str, tuple[str, ...]] = {}
    for site, reply in replies.items():
        names = tuple(
            name
            for name, gap in zip(ctx.feature_names, np.isnan(reply.n.value), strict=True)
            if gap
        )
        if names:
            withheld[site] = names
            ctx.note(
                f"Site {site} withheld the sums of {', '.join(names)} (too few records in a cell, "
                "or one record dominates); pooled moments come from the sites that told them."
            )
    n, mean, spread = pool(replies)
    return Moments(n, mean, spread / np.maximum(n, 1), withheld)


def _masked(ctx: CoordinatorContext) -> Generator[Ask, Replies, Moments]:
    """The same from totals, of the columns that all sites tell."""

    def narrower(cells: BoolArray) -> Shared:
        whole = cells.reshape(-1, len(ctx.feature_names)).all(axis=0)
        return Shared(without=tuple(np.flatnonzero(~whole).tolist()))

    asked = Ask("moments.totals", Shared(without=()))
    first = yield from total(ctx, asked, Totals, narrower=narrower)
    n = first.values["n"]
    some = np.where(n > 0, n, np.nan)
    centre = Centre(mean=point(first.values["totals"] / some, ctx.feature_names))
    asked = Ask("moments.squares", centre, to=first.sites)
    k = len(first.sites)
    second = yield from total(ctx, asked, Squares, at_least=k, tellers=k)
    mean, variance = first.values["totals"] / some, second.values["squares"] / some
    note_cut(ctx, ctx.feature_names, variance)
    return Moments(n, np.nan_to_num(mean), np.nan_to_num(variance), {})


def point(mean: FloatArray, names: Sequence[str]) -> Released:
    """Point about which squares are asked for, (p,); a gap where there is none.

    Raises
    ------
    DataError
        It is above `MOST` in some column.
    """
    far = [name for name, one in zip(names, mean, strict=True) if abs(one) > MOST]
    if far:
        raise DataError(f"the mean of {listed(far)} is above {MOST:g}: give it in other units")
    return relayed(mean, Disclosure.AGGREGATE)


STEPS = (sums, totals, squares)
