"""Phase `standardise`: fill missing cells by pooled means and put columns on a common scale.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
(phase moments, where pooled moments are needed)
standardise.apply: Scale    ->  later steps receive the transformed rows
  own, fill, centre, scale
                            <-  Applied                               PUBLIC
==============================  ==================================================
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from consilience.methods.base import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.methods.phases.moments import Moments, moments
from consilience.wire.disclosure import Released, relayed
from consilience.wire.message import Disclosure, message, sends


@message("standardise/scale", version=1)
class Scale:
    """How to transform every feature column."""

    own: bool = sends(
        Disclosure.PUBLIC, kind="bool", audience="site", doc="use the site's own mean and spread"
    )
    fill: Released = sends(
        Disclosure.AGGREGATE, ("p",), audience="all", doc="pooled means for missing cells"
    )
    centre: Released = sends(Disclosure.AGGREGATE, ("p",), audience="all", doc="pooled means")
    scale: Released = sends(Disclosure.AGGREGATE, ("p",), audience="all", doc="pooled spread")


@message("standardise/applied", version=1)
class Applied:
    """The rows were transformed."""


def transform(message: Scale, data: SiteData) -> SiteData:
    """Fill, centre and scale."""
    x = np.where(np.isnan(data.features), message.fill.value, data.features)
    if message.own:
        return data.with_features((x - x.mean(axis=0)) / _spread(x.std(axis=0)))
    return data.with_features((x - message.centre.value) / message.scale.value)


@step("standardise.apply", transform=transform)
def apply(
    message: Scale, data: SiteData, state: State, site: SiteContext
) -> tuple[Applied, State]:
    """Confirm; the house applies the transform to what later steps receive."""
    return Applied(), state


def standardise(ctx: CoordinatorContext) -> Generator[Ask, Replies, Moments | None]:
    """Fill and scale as the preparation says.

    Returns
    -------
    Moments or None
        The pooled moments (before scaling) where they were needed.
    """
    preparation = ctx.preparation
    p = len(ctx.feature_names)
    pooled: Moments | None = None
    fill, centre, scale = np.zeros(p), np.zeros(p), np.ones(p)
    fills = preparation.missing in ("aggregated-mean", "indicator")
    if fills or preparation.standardize == "pooled":
        pooled = yield from moments(ctx)
        fill = pooled.mean
    if pooled is not None and preparation.standardize == "pooled":
        centre, scale = pooled.mean, _spread(np.sqrt(pooled.variance))
        for name, deviation in zip(ctx.feature_names, np.sqrt(pooled.variance), strict=True):
            if deviation == 0:
                ctx.note(f"Column {name} is constant over all sites and carries no information.")
    request = Scale(
        own=preparation.standardize == "site",
        fill=relayed(fill, Disclosure.AGGREGATE),
        centre=relayed(centre, Disclosure.AGGREGATE),
        scale=relayed(scale, Disclosure.AGGREGATE),
    )
    ctx.require((yield Ask("standardise.apply", request)))
    return pooled


def _spread(deviation: np.ndarray) -> np.ndarray:
    """Standard deviations with 1 in place of 0, so that constant columns become 0."""
    return np.where(deviation > 0, deviation, 1.0)


STEPS = (apply,)
