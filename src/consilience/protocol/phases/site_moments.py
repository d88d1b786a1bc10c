"""Phase `site_moments`: size, means and cross-products of every site, kept apart.

Who wants to compare sites needs to know how differently their predictors are distributed.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
site-moments.within: Request ->
                            <-  Within: n, means, spreads (p),
                                  products (p, p)                   AGGREGATE
==============================  ==================================================

``products`` are sums of products of deviations from the site's own means. A column of which a cell
is small or dominated is withheld with its mean, and a product from which, with the others, a count
of few records would follow (docs/proofs/told-moments.md); a site with fewer than twice as many rows
as columns sends no products at all, and one whose rows are fewer than `min_records` nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Replies,
    SiteContext,
    SiteData,
    State,
    step,
)
from consilience.wire.disclosure import Released, aggregate, count, cross_products
from consilience.wire.message import Aggregate, message
from consilience.wire.moment_facts import unsafe_columns

_MOST_ROWS = 1 << 40
_ROUNDING = 1e-6


@message("site-moments/request", version=1)
class Request:
    """Ask for the moments of the feature columns."""


@message("site-moments/within", version=1)
class Within:
    """Moments of a site; NaN where it withholds a column."""

    n: Released = Aggregate(
        "", "rows; 0 where there are too few", kind="int", low=0, high=_MOST_ROWS
    )
    means: Released = Aggregate("p", "column means", gaps=True, to="all")
    spreads: Released = Aggregate("p", "mean squared deviations from the means", gaps=True, low=0.0)
    products: Released = Aggregate(
        "p p",
        "sums of products of deviations from the means; empty where rows < 2 columns",
        gaps=True,
        empty=True,
        gram=True,
    )

    def check(self, request: Request, known: Mapping[str, Any]) -> str | None:
        """Squares are those of the spreads."""
        n, means, spreads = self.n.value, self.means.value, self.spreads.value
        if not self.products.value.size:
            return None
        # Sums of squares are n times the spreads but for rounding, of the spread and of the mean
        # squared.
        apart = np.abs(np.diagonal(self.products.value) - n * spreads)
        fine = not (apart > _ROUNDING * n * spreads + _ROUNDING**2 * n * means**2).any()
        return None if fine else "products of other rows than the spreads"


@dataclass(frozen=True, eq=False)
class SiteMoments:
    """Moments by site.

    Attributes
    ----------
    n : dict of str to int
    means : dict of str to (p,) array
        NaN where a column was withheld.
    spreads : dict of str to (p,) array
        Mean squared deviations, NaN likewise.
    products : dict of str to (p, p) array
        Of those sites that sent them; NaN where a column was withheld.
    """

    n: dict[str, int]
    means: dict[str, FloatArray]
    spreads: dict[str, FloatArray]
    products: dict[str, FloatArray]


@step("site-moments.within")
def within(
    message: Request, data: SiteData, state: State, site: SiteContext
) -> tuple[Within, State]:
    """Tell size, means and products, withholding what is small or dominated."""
    x, own = data.features, data.in_own_units()[0]
    n, p = x.shape
    if n < site.limits.min_records:
        x, own = x[:0], own[:0]
    means = aggregate(x, mean=True)
    deviations = x - np.nan_to_num(means.value)
    # A column with too few ones, or ruled by one row, tells neither its mean nor its products.
    unsafe = unsafe_columns(own, limits=site.limits, coded=data.coded)
    spreads = aggregate(np.nan_to_num(deviations) ** 2, mean=True)
    for released in (means, spreads):
        unsafe |= np.isnan(released.withhold_unsafe(site.limits).value)
    # With fewer rows the products determine rows: docs/proofs/told-moments.md.
    told = len(x) >= 2 * p
    products = cross_products(
        deviations if told else np.empty((0, 0)),
        limits=site.limits,
        coded=data.coded if told else (),
        judged=own if told else None,
    )
    if told:
        # A product with a column that is not told would tell of it.
        hidden = unsafe[:, None] | unsafe[None, :]
        products = products.withhold_unsafe(site.limits)
        products = products.withhold(hidden | np.isnan(products.value))
    reply = Within(
        n=count(len(x)),
        means=means.withhold(unsafe),
        spreads=spreads.withhold(unsafe),
        products=products,
    )
    return reply, state


def site_moments(ctx: CoordinatorContext) -> Generator[Ask, Replies, SiteMoments]:
    """Ask all sites for their moments."""
    replies = ctx.require((yield Ask("site-moments.within", Request())))
    withheld = [site for site, r in replies.items() if np.isnan(r.means.value).any() and r.n.value]
    if withheld:
        ctx.note(
            f"Means of some columns were withheld by {', '.join(withheld)} (too few records in a "
            "cell, or one record dominates): these columns take no part in weighing its rows."
        )
    return SiteMoments(
        n={site: int(r.n.value) for site, r in replies.items()},
        means={site: np.array(r.means.value) for site, r in replies.items()},
        spreads={site: np.array(r.spreads.value) for site, r in replies.items()},
        products={
            site: np.array(r.products.value) for site, r in replies.items() if r.products.value.size
        },
    )


STEPS = (within,)
