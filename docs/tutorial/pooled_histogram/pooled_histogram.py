"""Pooled histogram of one column, in one round.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
bins: Bins                  ->
  edges (e), public
                            <-  BinCounts: counts (b)                 AGGREGATE
==============================  ==================================================

Source: none; the worked example of the tutorial.

Rule for small cells: a site withholds each bin that holds some, but fewer than `min_records` rows.
Absence: a site that does not answer is left out, down to the quorum.
Leakage: the coordinator knows each site's count in each bin that is empty or large enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import ParameterError
from consilience.protocol.method import (
    Ask,
    CoordinatorContext,
    Exchange,
    Method,
    SiteContext,
    SiteData,
    State,
    register,
    step,
)
from consilience.protocol.result import Frame, Result, lines
from consilience.wire.disclosure import Released, cell_counts
from consilience.wire.message import Aggregate, Public, message

if TYPE_CHECKING:
    import pandas as pd


@message("pooled-histogram/bins", version=1)
class Bins:
    """The edges of the bins, the same for everybody."""

    edges: NDArray[np.float64] = Public("e", "edges of the bins, ascending", to="site")

    def lengths(self) -> dict[str, int]:
        """Bins between the edges."""
        return {"b": len(self.edges) - 1}


@message("pooled-histogram/bin-counts", version=1)
class BinCounts:
    """How many rows lie in each bin; NaN where the site withholds the count."""

    counts: Released = Aggregate("b", "rows in each bin", gaps=True, low=0, high=1 << 50)


@step("bins")
def bins(message: Bins, data: SiteData, state: State, site: SiteContext) -> tuple[BinCounts, State]:
    """Count the rows of the first feature column in each bin."""
    x = data.features[:, 0]
    n_bins = len(message.edges) - 1
    cells = np.searchsorted(message.edges, x, side="right") - 1
    inside = (x >= message.edges[0]) & (x < message.edges[-1])
    counts = cell_counts(np.where(inside, cells, -1), n_bins)
    return BinCounts(counts=counts.withhold_unsafe(site.limits)), state


@dataclass(frozen=True, eq=False)
class PooledHistogramResult(Result):
    """Counts of all sites together.

    Attributes
    ----------
    column : str
    edges : (b + 1,) array
    counts : (b,) int array
        Rows in each bin, over the sites that released the bin.
    withheld : (b,) int array
        Sites that withheld the bin.
    """

    column: str
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    withheld: NDArray[np.int64]

    def summary(self) -> str:
        """Say how many rows were counted and where the mode is."""
        k = int(np.argmax(self.counts))
        low, high = self.edges[k], self.edges[k + 1]
        return (
            f"{int(self.counts.sum())} rows of {self.column} counted, most of them "
            f"({int(self.counts[k])}) from {low:g} up to {high:g}."
        )

    @Frame
    def bins(self) -> pd.DataFrame:
        """Every bin with its rows."""
        told = {"from": self.edges[:-1], "to": self.edges[1:], "rows": self.counts}
        return lines({**told, "sites that withheld it": self.withheld})


@register
@dataclass(frozen=True, kw_only=True)
class PooledHistogram(Method[PooledHistogramResult]):
    """Pooled histogram of the first feature column.

    Parameters
    ----------
    edges : sequence of float
        Edges of the bins, ascending; a value equal to an edge belongs to the bin above it.
    """

    edges: tuple[float, ...] = (0.0, 1.0)

    name: ClassVar[str] = "pooled-histogram"
    version: ClassVar[int] = 1
    title: ClassVar[str] = "How is a column distributed over all sites?"
    steps = (bins,)
    absence: ClassVar[str] = "A site that does not answer is left out, down to the quorum."
    leakage: ClassVar[str] = (
        "The coordinator knows each site's count in each bin that is empty or large enough."
    )
    Result = PooledHistogramResult

    def validate(self) -> None:
        """Check the edges; raise `ParameterError`."""
        edges = np.asarray(self.edges, dtype=float)
        if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
            raise ParameterError.of("edges", "two or more ascending numbers", self.edges)

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """One round: send the edges, add the counts."""
        edges = np.asarray(self.edges, dtype=float)
        replies = ctx.require((yield Ask("bins", Bins(edges=edges))))
        counts = np.stack([reply.counts.value for reply in replies.values()])
        withheld = np.isnan(counts)
        for site, gaps in zip(replies, withheld, strict=True):
            if gaps.any():
                ctx.note(f"Bins with too few rows, withheld by site {site}: {int(gaps.sum())}.")
        return PooledHistogramResult(
            column=ctx.feature_names[0],
            edges=edges,
            counts=np.nansum(counts, axis=0).astype(np.int64),
            withheld=withheld.sum(axis=0),
        )
