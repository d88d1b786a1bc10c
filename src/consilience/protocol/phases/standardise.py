"""Phase `standardise`: fill missing cells and put columns on a common scale.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
(phase moments, where pooled moments are needed)
standardise.apply: Scale    ->  later steps receive the transformed rows
  own, fill, centre, scale
                            <-  Applied                               PUBLIC
==============================  ==================================================

Nobody can check that the numbers are pooled moments, so rows are moved and filled such that made-up
ones tell nothing (`docs/proofs/units.md`): a site fills by its own mean, and by the number that it
is given only where it has no value; a column that is moved so far that values might become one is
one value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator

import numpy as np

from consilience.exceptions import ProtocolError, StudyError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.protocol.phases.moments import MOST, moments
from consilience.wire.disclosure import Released, relayed
from consilience.wire.message import Aggregate, Disclosure, Public, message


@message("standardise/scale", version=1)
class Scale:
    """How to transform every feature column."""

    own: bool = Public("", "use the site's own mean and spread", kind="bool", to="site")
    fill: Released = Aggregate(
        "p",
        "pooled means for columns without values; all gaps where cells stay missing",
        to="all",
        gaps=True,
    )
    centre: Released = Aggregate("p", "pooled means", to="all")
    scale: Released = Aggregate("p", "pooled spread", to="all")


@message("standardise/applied", version=1)
class Applied:
    """The rows were transformed."""


_FAR = 2.0**20


def transform(message: Scale, data: SiteData) -> SiteData:
    """Fill, centre and scale; where there are no numbers to fill with, missing cells stay.

    Raises
    ------
    ProtocolError
        Some columns have such a number and others have none. Units in which some rows might be no
        numbers any more: that a later step cannot go on with them would tell that there is such a
        row.
    """
    fill = message.fill.value
    centre, scale = message.centre.value, message.scale.value
    kept = np.isnan(fill)
    if kept.any() and not kept.all():
        raise ProtocolError("missing cells are filled in all columns, or in none")
    within_reason = (np.abs([np.where(kept, 0.0, fill), centre]) <= MOST).all()
    if not within_reason or ((scale < 1 / MOST) | (scale > MOST)).any():
        raise ProtocolError(f"columns are moved and scaled by at most {MOST:g}")
    with np.errstate(over="ignore", invalid="ignore"):  # squares of numbers above 1e150
        x, fill = _filled(data.features, fill)
        if message.own:
            centre, spread = _own_units(x)
            scale = _spread(spread)
        scaled = data.with_features(moved(x, centre) / scale)
    given = bool((centre != 0).any() or (scale != 1).any())
    return dataclasses.replace(
        scaled, scaling=np.stack([fill, centre, scale]), unscaled=x if given else None
    )


def _filled(x: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fill each column by its mean, or by the given number where it has no value at all.

    Two runs that fill by other numbers would add up the rows in which a value is missing.
    """
    # By the site's own mean, which a coordinator does not choose: docs/proofs/units.md.
    missing = np.isnan(x)
    some = missing.any(axis=0) & ~missing.all(axis=0) & ~np.isnan(given)
    fill = np.where(some, _own_units(x)[0], given)
    return np.where(missing, fill, x), fill


def moved(x: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Columns less their centres; a column far from its centre is one value, its mean.

    Floating-point numbers around 1e17 are 16 apart: a centre there would cut a column in two at a
    place of one's choice, and two runs would tell who is between two such places.
    """
    mean, spread = _own_units(x)
    far = np.abs(centre - mean) > _FAR * spread
    return np.asarray(np.where(far & ~np.isnan(x), mean, x) - centre)


def _own_units(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column over its values; zeros where it has none."""
    known = ~np.isnan(x)
    if known.all():
        return x.mean(axis=0), x.std(axis=0)
    n = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, x, 0.0).sum(axis=0) / n
    squares = np.where(known, (x - mean) ** 2, 0.0).sum(axis=0)
    return mean, np.sqrt(squares / n)


@step("standardise.apply", transform=transform, once=True)
def apply(message: Scale, data: SiteData, state: State, site: SiteContext) -> tuple[Applied, State]:
    """Confirm; the house applies the transform to what later steps receive.

    Raises
    ------
    ProtocolError
        Missing cells would be filled, or kept, or columns scaled, against the rules with which the
        run was opened.
    """
    rules = json.loads(site.preparation) if site.preparation else {}
    if np.isnan(message.fill.value).any() != (rules.get("missing") == "keep"):
        sentence = "missing cells are filled, or kept, as the study's preparation says"
        raise ProtocolError.shared(sentence)
    pooled = rules.get("standardize", "pooled") == "pooled" or site.followed is not None
    given = (message.centre.value != 0).any() or (message.scale.value != 1).any()
    given = given and not message.own
    if (rules and message.own != (rules["standardize"] == "site")) or (given and not pooled):
        raise ProtocolError.shared("columns are scaled as the study's preparation says")
    return Applied(), state


def standardise(ctx: CoordinatorContext) -> Generator[Ask, Replies, None]:
    """Fill and scale as the preparation says; `ctx.scaling` tells what was applied.

    A run that follows another scales as that one did: its classes and models are in those units.
    """
    if ctx.scaling is None:
        ctx.scaling = yield from _scaling(ctx)
    elif ctx.scaling.shape[1] != len(ctx.feature_names):
        raise StudyError(
            f"the run that this one follows had {ctx.scaling.shape[1]} columns after preparation "
            f"and now there are {len(ctx.feature_names)}: use the same [data] and [preparation]"
        )
    fill, centre, scale = ctx.scaling
    request = Scale(
        # A site that scales by itself is told numbers for its fills alone.
        own=ctx.preparation.standardize == "site",
        fill=relayed(fill, Disclosure.AGGREGATE),
        centre=relayed(centre, Disclosure.AGGREGATE),
        scale=relayed(scale, Disclosure.AGGREGATE),
    )
    applied = ctx.require((yield Ask("standardise.apply", request)))
    # A site that missed this would answer from rows in other units: it takes part no more.
    ctx.sites = tuple(sorted(applied))


def _scaling(ctx: CoordinatorContext) -> Generator[Ask, Replies, np.ndarray]:
    """Find fill values, centres and scales (3, p)."""
    preparation = ctx.preparation
    p = len(ctx.feature_names)
    scaling = np.stack([np.zeros(p), np.zeros(p), np.ones(p)])
    fills = preparation.missing in ("aggregated-mean", "indicator")
    # NaN as fill stands for "leave it": no number could say so.
    if preparation.missing == "keep":
        scaling[0] = np.nan
    if not fills and preparation.standardize != "pooled":
        return scaling
    pooled = yield from moments(ctx, required=_to_fill(ctx) if fills else 0)
    if preparation.missing != "keep":
        scaling[0] = pooled.mean
    deviation = np.sqrt(pooled.variance)
    for name, n, spread in zip(ctx.feature_names, pooled.n, deviation, strict=True):
        if n == 0:
            who = "Every site" if ctx.masks is None else "A site"
            ctx.note(
                f"{who} withheld column {name} (few of its rows or none differ, or one row "
                "dominates): it stays in its own units."
            )
        elif spread == 0 and ctx.masks is None:  # of which `moments` has said it
            ctx.note(f"Column {name} is constant over all sites and carries no information.")
    if preparation.standardize == "pooled":
        scaling[1:] = pooled.mean, _spread(deviation)
    return scaling


def _to_fill(ctx: CoordinatorContext) -> int:
    """How many columns, the first ones, may have missing cells: those that say which are have none.

    That few cells of a column are missing, or none, is no reason to stop a study that marks them.
    """
    given = [*ctx.columns.levels, *ctx.preparation.indicators]
    marks = sum(name not in given for name in ctx.columns.features)
    return len(ctx.feature_names) - (marks if ctx.preparation.missing == "indicator" else 0)


def _spread(deviation: np.ndarray) -> np.ndarray:
    """Standard deviations with 1 in place of 0, so that constant columns become 0."""
    return np.where(deviation > 0, deviation, 1.0)


STEPS = (apply,)
