"""Classes over sites with masked sums: the moments of groups of rows, of all sites together.

==================================  ====================================================
coordinator                         site
==================================  ====================================================
possible: Offer                 ->
                                <-  Possible: whether it could tell all classes in 4, 3,
                                    2 groups, or one; each class; each column  AGGREGATE
class_totals: SharedClasses     ->  deals its rows to groups
  columns, number of groups     <-  ClassTotals: by group and class (c) rows, sums
                                    (c, m), sums of products (c, t) about 0    AGGREGATE
keep: Keep                      ->  keeps the predictor
  the model                     <-  Kept                                          PUBLIC
==================================  ====================================================

The first two replies are judged at the site as those of `offer` and `moments`, and leave masked
(phase `secure_sums`). How many sites tell a column, a class or so many groups is known first, so
that this coordinator asks for totals over all sites: of one over some of them, the difference to
another would be what the others add.

Groups take the place of sites where the penalty is chosen. They are unions of the parts of a table
that runs in plain hold out, and of the rest (phase `holdout`), the same ones in all runs: so
figures of groups are sums over pieces that runs in plain tell apart, too
(docs/proofs/held-out-rows.md). No row is held out besides: how many rows a model gets wrong would
be a figure of each site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from consilience.arrays import IntArray
from consilience.discriminant.federated_sparse_qda import messages
from consilience.discriminant.federated_sparse_qda import site as at_site
from consilience.discriminant.federated_sparse_qda.pooling import SiteProducts, Survey
from consilience.exceptions import ProtocolError, QuorumError
from consilience.numerics.random import stream
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
from consilience.protocol.phases import holdout
from consilience.protocol.phases.secure_sums import ALL, MASKED, WRONG, agreed, require_masks, total
from consilience.wire import disclosure
from consilience.wire.disclosure import Released, aggregate, relayed, replaced
from consilience.wire.message import Disclosure, is_gram
from consilience.wire.moment_facts import coded_within

LEVELS = np.array([4, 3, 2, 1])
"""Numbers of groups."""
_GROUPS = {4: (0, 1, 2, 3), 3: (0, 0, 1, 2), 2: (0, 0, 1, 1), 1: (0, 0, 0, 0)}
"""Of the three parts of the table that may be held out, a fifth each, and of the rest."""
UNJUDGED = "No rows judge the model: how many of them it gets wrong would be a figure of each site."

# --------------------------------------------------------------------------- at a site


def _cells(rows: at_site.Rows, data: SiteData, number: int, k: int, site: SiteContext) -> IntArray:
    """Group and class of each row, group after group; -1 in no class."""
    # Where no record is protected the order is public, as for rows that are held out.
    order = stream(rows.seed, "held out").permutation(len(rows.codes))
    shares = [1.0 / holdout.PARTS] * holdout.OPEN
    parts = holdout.held_out(data, rows.codes, shares, site.limits, order=order, spare=2)
    group = np.full(len(rows.codes), _GROUPS[number][-1])
    for part, of in zip(parts, _GROUPS[number], strict=False):  # the last is that of the rest
        group[part] = of
    return np.where(rows.codes < 0, -1, group * k + rows.codes)


def _products(
    data: SiteData, cells: IntArray, n_cells: int, columns: IntArray, site: SiteContext
) -> Released:
    """Sums of products about the means of each cell, in the site's own units."""
    return disclosure.class_moments(
        data.in_own_units()[0][:, columns],
        cells=cells,
        n_cells=n_cells,
        blocks=[np.arange(len(columns))],
        limits=site.limits,
        entities=data.entity,
        coded=coded_within(data.coded, columns),
    )


@step("possible", once=True, summed=True)
def possible(
    message: messages.Offer, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Possible, State]:
    """Count this site where it could tell a column, a class, or all in so many groups."""
    require_masks(site)
    s, k = message.settings, len(message.settings.levels)
    # Units of others must not decide what may leave.
    x, rows = data.in_own_units()[0], at_site.by_class(data, s, site)
    there = np.bincount(rows.codes[rows.codes >= 0], minlength=k) > 0
    means, _ = at_site.spreads_of(x, rows.codes, k, data, site.limits)
    told = ~np.isnan(means.value[there]).any(axis=0) & there.any()
    columns = np.flatnonzero(told)
    able, classes = np.zeros(len(LEVELS), dtype=bool), np.zeros(k, dtype=bool)
    for i, number in enumerate(LEVELS.tolist() if len(columns) else []):
        n_cells = number * k
        cells = _cells(rows, data, number, k, site)
        means, _ = at_site.spreads_of(x, cells, n_cells, data, site.limits)
        products = _products(data, cells, n_cells, columns, site)
        gaps = np.isnan(means.value[:, columns]).any(axis=1) | np.isnan(products.value).any(axis=1)
        full = (np.bincount(cells[cells >= 0], minlength=n_cells) > 1) & ~gaps
        able[i], classes = full.all(), full[-k:]  # at last of one group
    every = aggregate(np.ones(data.n_rows))
    reply = messages.Possible(
        *(replaced(every, marks.astype(float)) for marks in (able, classes, told))
    )
    could = {"groups": LEVELS[able].tolist(), "columns": columns.tolist()}
    return reply, {"settings": plain(s), "seed": rows.seed, "could": could}


@step("class_totals", once=True, summed=True)
def class_totals(
    message: messages.SharedClasses, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.ClassTotals, State]:
    """Tell sums about 0 of each group and class, over the columns that all sites can tell."""
    require_masks(site)
    wanted = agreed(message.columns, message.groups, state)
    s, k = message.settings, len(message.settings.levels)
    rows, (x, centre, scale) = at_site.by_class(data, s, site, state), data.in_own_units()
    n_cells, told = message.groups * k, np.array(state["could"]["columns"])
    cells = _cells(rows, data, message.groups, k, site)
    means, _ = at_site.spreads_of(x, cells, n_cells, data, site.limits)
    products = _products(data, cells, n_cells, told, site)
    counts = disclosure.cell_counts(cells, n_cells)
    # In the units of the study, about 0: of the columns that all can tell.
    at, upper = np.searchsorted(told, wanted), np.triu_indices(len(wanted))
    own = ((means.value - centre) / scale)[:, wanted]
    (squares,) = messages.unpacked(products.value, [told])
    squares = squares[:, at[:, None], at] / np.outer(scale[wanted], scale[wanted])
    n = counts.value[:, None]
    squares += n[:, :, None] * own[:, :, None] * own[:, None, :]
    reply = messages.ClassTotals(
        counts=counts,
        sums=replaced(means, n * own),
        products=replaced(products, squares[:, upper[0], upper[1]]),
    )
    return reply, state


@step("keep", once=True)
def keep(
    message: messages.Keep, data: SiteData, state: State, site: SiteContext
) -> tuple[messages.Kept, State]:
    """Keep the model."""
    require_masks(site)
    p = data.features.shape[1]
    (model,) = at_site.models_of([message.model.value], message.settings, p)
    at_site.keep_model(model, data, site)
    return messages.Kept(), {}


STEPS = (possible, class_totals, keep)


# --------------------------------------------------------------------------- at the coordinator


def moments_of_all(
    ctx: CoordinatorContext, settings: messages.Settings, several: bool
) -> Generator[Ask, Replies, tuple[Survey, SiteProducts]]:
    """Moments of groups of the rows of all sites, as if each group were a site.

    Parameters
    ----------
    ctx : CoordinatorContext
    settings : Settings
    several : bool
        Whether groups choose the penalty; all rows are one otherwise.

    Raises
    ------
    QuorumError
        A class, all columns, or groups that choose, cannot be told by every site.
    ProtocolError
        The totals are those of no rows.
    """
    ctx.note(MASKED)
    ctx.note(UNJUDGED)
    # All that have contributed to the scales: a total without one of them would tell its part.
    members = ctx.masks.roster
    sites, p, k = len(members), len(ctx.feature_names), len(settings.levels)
    ask = Ask("possible", messages.Offer(settings=settings), to=members)
    marks = (yield from total(ctx, ask, messages.Possible, at_least=sites)).values
    able, classes, telling = (np.rint(marks[name]) for name in ("groups", "classes", "columns"))
    every = np.concatenate([able, classes, telling])
    if not ((every >= 0) & (every <= sites)).all():
        raise ProtocolError(WRONG)
    columns = np.flatnonzero(telling == sites)
    if not len(columns):
        raise QuorumError("every column is withheld by some site: leave out sparse columns")
    if (classes < sites).any():
        level = settings.levels[int(np.argmin(classes))]
        raise QuorumError(
            f"some site cannot tell the moments of class {level!r}, and a masked total is of all "
            "sites: take fewer columns (half as many as the smallest class has rows at each site), "
            "leave the class out, or leave sums = 'secure' out of the study"
        )
    if able[-1] != sites:
        raise ProtocolError(WRONG)
    number = int(LEVELS[able == sites].max()) if several else 1
    if several and number == 1:
        raise QuorumError(
            "alpha is chosen by groups of rows that are left out in turn, and some site can tell "
            "one group only (each class needs twice as many rows as columns in each of them): give "
            "alpha, take fewer columns, or let sites with more rows take part"
        )
    request = messages.SharedClasses(
        settings=settings, groups=number, columns=relayed(columns, Disclosure.AGGREGATE)
    )
    ask = Ask("class_totals", request, to=members)
    found = (yield from total(ctx, ask, messages.ClassTotals, at_least=sites)).values
    counts = np.rint(found["counts"])
    if not (counts > 0).all():
        raise ProtocolError(WRONG)
    own = found["sums"] / counts[:, None]
    (squares,) = messages.unpacked(found["products"], [columns])
    squares -= counts[:, None, None] * own[:, :, None] * own[:, None, :]
    # A column that does not vary in a class is 0 but for the rounding of sums about 0.
    diagonal = np.einsum("cjj->cj", squares)
    still = np.abs(diagonal) <= _STILL * counts[:, None] * (1.0 + own**2)
    squares[still[:, :, None] | still[:, None, :]] = 0.0
    if not is_gram(squares):
        raise ProtocolError(WRONG)
    m = len(columns)
    means, variances = (np.full((number, k, p), np.nan) for _ in range(2))
    means[:, :, columns] = own.reshape(number, k, m)
    variances[:, :, columns] = (diagonal / counts[:, None]).reshape(number, k, m)
    names = tuple(f"group {g + 1}" for g in range(number))
    survey = Survey(
        sites=names,
        counts=counts.reshape(number, k),
        held=np.zeros((number, k)),
        means=means,
        variances=variances,
        used=np.ones((number, k), dtype=bool),
        features=np.isin(np.arange(p), columns),
        protected=dict.fromkeys(names, True),
        judges=dict.fromkeys(names, False),
    )
    return survey, _products_of(survey, columns, squares, settings.levels)


_STILL = 64 * float(np.finfo(np.float64).eps)
"""Mean squares, of columns of spread 1, that are rounding."""


def _products_of(
    survey: Survey, columns: IntArray, squares: Any, levels: Sequence[str]
) -> SiteProducts:
    """Products of the columns that vary, as one block."""
    kept = survey.units().kept
    at = np.searchsorted(columns, kept)
    inside = squares[:, at[:, None], at].reshape(len(survey.sites), len(levels), len(at), len(at))
    blocks = (np.arange(len(at)),) if len(at) > 1 else ()
    sums = {name: (one,) * len(blocks) for name, one in zip(survey.sites, inside, strict=True)}
    return SiteProducts(tuple(levels), kept, blocks, sums)


def together(survey: Survey) -> Survey:
    """All groups as one site."""
    one = {name: getattr(survey, name).sum(axis=0, keepdims=True) for name in ("counts", "held")}
    return dataclasses.replace(survey.only(survey.sites[:1]), sites=(ALL,), **one)
