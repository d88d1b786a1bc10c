"""Descriptions with masked sums: Table 1 of all sites together, of what every site can tell.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
possible: Request               ->
                                <-  Possible: which columns (q), levels (v), tables (c)
                                    it could tell                            AGGREGATE
sums_total: SharedRequest       ->
                                <-  SumTotals: n, known, totals (q), levels (v),
                                    tables (c)                               AGGREGATE
squares_total: Centre           ->
  pooled means (q)              <-  SquareTotals: squares (q)                AGGREGATE
bins_possible: Edges            ->
                                <-  BinsPossible: which bins (b)             AGGREGATE
bins_total: Edges, of which all ->
  sites can tell                <-  BinTotals: counts (b)                    AGGREGATE
==================================  ====================================================

Each reply is judged at the site as in a run in plain, and leaves masked (phase `secure_sums`). How
many sites could tell a figure is known before any of them does, and this coordinator then asks for
it of all of them or of none: a total over some of the sites might be one site's own. A site tells
only what it said it could tell in this run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.describe.protocol.site import (
    Bins,
    Edges,
    Request,
    Settings,
    Sums,
    remembered,
    split,
)
from consilience.describe.protocol.site import (
    binned as bins_of,
)
from consilience.describe.protocol.site import (
    summed as sums_of,
)
from consilience.exceptions import ProtocolError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.protocol.phases.moments import MOST, point
from consilience.protocol.phases.secure_sums import (
    ALL,
    MASKED,
    WRONG,
    note_cut,
    refused_for,
    require_masks,
    total,
)
from consilience.wire.disclosure import Released, aggregate, relayed, replaced
from consilience.wire.message import Aggregate, Disclosure, Public, message, states

if TYPE_CHECKING:
    from consilience.describe.protocol import Describe

_PARTS = ("columns", "levels", "tables")
_NOT_OFFERED = "the study asks for a figure that this site did not say it could tell"


@message("describe/possible", version=1)
class Possible:
    """What a site could tell: 1 for yes, 0 for no."""

    columns: Released = Aggregate("q", "columns of numbers", low=0, high=1)
    levels: Released = Aggregate("v", "levels of categories", low=0, high=1)
    tables: Released = Aggregate("c", "cells of tables", low=0, high=1)


@message("describe/shared-request", version=1)
class SharedRequest:
    """Ask for what every site can tell: numbered in the order of columns, levels and cells."""

    settings: Settings = states(Settings)
    numbers: tuple[str, ...] = Public("q", "columns of numbers", kind="str", to="all")
    categories: tuple[str, ...] = Public("k", "columns with levels", kind="str", to="all")
    sizes: IntArray = Public("k", "levels of each", kind="int", to="all", low=2, high=10_000)
    told: IntArray = Public("m", "what every site can tell", kind="int", to="all", low=0)


@message("describe/sum-totals", version=1)
class SumTotals:
    """What a site adds to numbers of rows, sums and counts."""

    n: Released = Aggregate("", "rows", kind="int", low=0)
    known: Released = Aggregate("q", "rows with a value", gaps=True, low=0)
    totals: Released = Aggregate("q", "column sums", gaps=True)
    levels: Released = Aggregate(
        "v", "rows of each level, then those without a value", gaps=True, low=0
    )
    tables: Released = Aggregate("c", "rows of each cell", gaps=True, low=0)


@message("describe/centre", version=1)
class Centre:
    """Pooled means."""

    mean: Released = Aggregate(
        "q", "pooled means; 0 where not every site tells", to="all", low=-MOST, high=MOST
    )


@message("describe/square-totals", version=1)
class SquareTotals:
    """What a site adds to the sums of squares about the pooled means."""

    squares: Released = Aggregate("q", "sums of squared deviations", low=0)


@message("describe/bins-possible", version=1)
class BinsPossible:
    """Which bins a site could begin: 1 for yes, 0 where it would join one to that before."""

    heads: Released = Aggregate("b", "bins", low=0, high=1)


@message("describe/bin-totals", version=1)
class BinTotals:
    """What a site adds to the bins."""

    counts: Released = Aggregate("b", "rows in each bin", low=0)


def refusal(method: Describe) -> str:
    """Say what of a study needs more of a site than parts of sums; empty where nothing does."""
    curves = "joins the times of curves site by site: leave curves out"
    return refused_for({curves: bool(method.curves)})


# --------------------------------------------------------------------------- at a site


def _marks(data: SiteData, *values: FloatArray) -> list[Released]:
    """Which of some values are told, 1 or 0: what may be said of all rows."""
    rows = aggregate(np.ones(data.n_rows))
    return [replaced(rows, (~np.isnan(np.asarray(one, float))).astype(float)) for one in values]


def _edges_of(message: Edges) -> Iterator[tuple[str, FloatArray]]:
    """Of each column with edges its name, and the edges."""
    sizes = [int(size) for size in message.sizes]
    for name, (_, own) in zip(message.numbers, split(message.edges.value, sizes), strict=True):
        if len(own):
            yield name, own


def _sums(message: Request, data: SiteData, site: SiteContext) -> Sums:
    """What the site could tell; it counts as told, since that it could is told."""
    own, memory = sums_of(message, data, site)
    memory.keep(site)
    return own


def _bins(message: Edges, data: SiteData, site: SiteContext, some: bool = False) -> Bins:
    """The same of bins: whether one could begin at an edge says how many rows are about it."""
    own, memory = bins_of(message, data, site, some)
    memory.keep(site)
    return own


@step("possible", once=True, summed=True, keeps=remembered)
def possible(
    message: Request, data: SiteData, state: State, site: SiteContext
) -> tuple[Possible, State]:
    """Say which of what `sums` asks for this site could tell."""
    require_masks(site)
    own = _sums(message, data, site)
    values = (own.means.value, own.levels.value, own.tables.value)
    could = np.flatnonzero(~np.isnan(np.concatenate(values)))
    return Possible(*_marks(data, *values)), {**state, "could": could.tolist()}


@step("sums_total", once=True, summed=True, keeps=remembered)
def sums_total(
    message: SharedRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[SumTotals, State]:
    """Add up rows, columns and levels that every site can tell."""
    require_masks(site)
    # Before any look at the rows: a refusal must tell nothing of them.
    if "could" not in state or not np.isin(message.told, state["could"]).all():
        raise ProtocolError.shared(_NOT_OFFERED)
    request = Request(
        settings=message.settings,
        numbers=message.numbers,
        categories=message.categories,
        sizes=message.sizes,
    )
    own = _sums(request, data, site)
    means, levels, tables = own.means.value, own.levels.value, own.tables.value
    n_cells = len(means) + len(levels) + len(tables)
    gaps = np.isin(np.arange(n_cells), message.told, invert=True)
    columns, rare, cells = np.split(gaps, np.cumsum([len(means), len(levels)]))
    known, spreads = own.known.value, own.spreads.value
    reply = SumTotals(
        n=own.n,
        known=own.known.withhold(columns),
        totals=replaced(own.means, known * means).withhold(columns),
        levels=own.levels.withhold(rare),
        tables=own.tables.withhold(cells),
    )
    used = {"known": known, "means": means, "spreads": spreads}
    kept = {name: np.where(columns, 0.0, value).tolist() for name, value in used.items()}
    return reply, {**state, **kept}


@step("squares_total", once=True, summed=True)
def squares_total(
    message: Centre, data: SiteData, state: State, site: SiteContext
) -> tuple[SquareTotals, State]:
    """Add up squared deviations of the same columns from the pooled means."""
    require_masks(site)
    if "known" not in state:
        raise ProtocolError.shared("squares are asked for before sums")
    known, means, spreads = (np.array(state[name]) for name in ("known", "means", "spreads"))
    # About the site's own mean, and moved, as its rows would lose digits far away.
    moved = known * (spreads + (means - message.mean.value) ** 2)
    rows = aggregate(np.ones(data.n_rows))
    return SquareTotals(squares=replaced(rows, moved)), state


@step("bins_possible", once=True, summed=True, keeps=remembered)
def bins_possible(
    message: Edges, data: SiteData, state: State, site: SiteContext
) -> tuple[BinsPossible, State]:
    """Say which bins this site could begin."""
    require_masks(site)
    own = _bins(message, data, site)
    heads, at, could = ~np.isnan(own.counts.value), 0, {}
    for name, edges in _edges_of(message):
        here = heads[at : at + len(edges) + 1]
        could[name] = edges[here[1:]].tolist() if here[0] else []
        at += len(here)
    return BinsPossible(*_marks(data, own.counts.value)), {**state, "edges": could}


@step("bins_total", once=True, summed=True, keeps=remembered)
def bins_total(
    message: Edges, data: SiteData, state: State, site: SiteContext
) -> tuple[BinTotals, State]:
    """Add up rows between the edges that every site can tell."""
    require_masks(site)
    could = state.get("edges", {})
    # Before any look at the rows, as above: else edges could be tried until one is answered.
    for name, edges in _edges_of(message):
        if not np.isin(edges, could.get(name, [])).all():
            raise ProtocolError.shared(_NOT_OFFERED)
    own = _bins(message, data, site, some=True)
    counts = np.asarray(own.counts.value, dtype=float)
    if np.isnan(counts).any():
        raise ProtocolError.shared(_NOT_OFFERED)
    return BinTotals(counts=replaced(own.counts, counts)), state


STEPS = (possible, sums_total, squares_total, bins_possible, bins_total)


# --------------------------------------------------------------------------- at the coordinator


def _asked(
    ctx: CoordinatorContext, of: str, message: Any, reply: type
) -> Generator[Ask, Replies, dict[str, FloatArray]]:
    """Totals over all sites that have contributed to those before."""
    sites = ctx.masks.roster
    found = yield from total(ctx, Ask(of, message, to=sites), reply, at_least=len(sites))
    return found.values


def _checked(reply: Any, message: Any, known: Mapping[str, Any]) -> Any:
    if reply.check(message, known):
        raise ProtocolError(WRONG)
    return reply


def summed(ctx: CoordinatorContext, asked: Request) -> Generator[Ask, Replies, dict[str, Sums]]:
    """What all sites tell, as if one site told it; gaps in what some site withholds.

    Raises
    ------
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    marks = yield from total(ctx, Ask("possible", asked), Possible)
    every = np.concatenate([marks.values[part] for part in _PARTS])
    told = np.rint(every) == len(marks.sites)
    request = SharedRequest(
        settings=asked.settings,
        numbers=asked.numbers,
        categories=asked.categories,
        sizes=asked.sizes,
        told=np.flatnonzero(told),
    )
    found = yield from _asked(ctx, "sums_total", request, SumTotals)
    q, v = len(found["known"]), len(found["levels"])
    columns, levels, tables = np.split(told, np.cumsum([q, v]))
    known = np.where(columns, np.rint(found["known"]), np.nan)
    if not (known[columns] > 0).all():
        raise ProtocolError(WRONG)
    means = found["totals"] / known
    centre = Centre(mean=point(np.nan_to_num(means), asked.numbers))
    squares = (yield from _asked(ctx, "squares_total", centre, SquareTotals))["squares"]
    note_cut(ctx, asked.numbers, squares / known)
    values = {
        "n": int(np.rint(found["n"])),
        "known": known,
        "means": means,
        # Of equal values masks leave less than nothing.
        "spreads": np.maximum(squares, 0.0) / known,
        "levels": np.where(levels, np.rint(found["levels"]), np.nan),
        "tables": np.where(tables, np.rint(found["tables"]), np.nan),
    }
    one = Sums(**{name: relayed(value, Disclosure.AGGREGATE) for name, value in values.items()})
    return {ALL: _checked(one, asked, {})}


def binned(
    ctx: CoordinatorContext, asked: Edges, known: Mapping[str, Any]
) -> Generator[Ask, Replies, dict[str, Bins]]:
    """Bins of all sites, as if one site told them: those that every site can begin.

    Raises
    ------
    ProtocolError
        The totals are those of no rows.
    """
    marks = yield from _asked(ctx, "bins_possible", asked, BinsPossible)
    heads = np.rint(marks["heads"]) == len(ctx.masks.roster)
    sizes = [int(size) + 1 for size in asked.sizes if size]
    for _, own in split(heads, sizes):
        own &= own[0]  # no bins but from the first one on
    keeps, edges, at = [], [], 0
    for _, own in split(asked.edges.value, [int(size) for size in asked.sizes]):
        kept = heads[at + 1 : at + len(own) + 1] if len(own) else np.zeros(0, dtype=bool)
        at += len(own) + 1 if len(own) else 0
        keeps.append(int(kept.sum()))
        edges.append(own[kept])
    shared = replace(
        asked,
        sizes=np.array(keeps, dtype=np.int64),
        edges=relayed(np.concatenate([np.empty(0), *edges]), Disclosure.AGGREGATE),
    )
    counts = np.full(len(heads), np.nan)
    if sum(keeps):
        found = yield from _asked(ctx, "bins_total", shared, BinTotals)
        # A column with its first bin alone has none.
        several = [size > 0 for size, all_ in zip(keeps, asked.sizes, strict=True) if all_]
        counts[heads & np.repeat(several, sizes)] = np.rint(found["counts"])
    one = Bins(
        counts=relayed(counts, Disclosure.AGGREGATE),
        ended=relayed(np.empty(0), Disclosure.AGGREGATE),
    )
    return {ALL: _checked(one, asked, known[ALL])}
