"""Pooled mean and standard deviation of every feature column, in two rounds.

The smallest complete method: the tutorial "Add a method" walks through this file.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
sums: SumsRequest           ->
                            <-  Sums: n, totals (p)                   AGGREGATE
or, where sums are masked,
possible: SumsRequest       ->
                            <-  Possible: columns it could tell (p)   AGGREGATE
totals: SharedRequest       ->
  columns that all can tell <-  Sums: n, totals (p)                   AGGREGATE
and then
deviations: Centre          ->
  mean (p)
                            <-  Deviations: squares (p)               AGGREGATE
==============================  ==================================================

Source: any textbook; the second round around the pooled mean keeps digits that a sum of squares
about zero would lose.

A column of which a site may not tell is left out there: its moments are those of the other sites.

In a study with masked sums the coordinator sees totals alone (``phases/secure_sums.py``). How many
sites could tell a column is then a total of its own, and the others are asked for of no site: a
total over some of the sites might be one site's own.

Absence: a site that misses the first round is left out; one that misses a later one stops the run.
Leakage: after two rounds the coordinator knows each site's number of rows, column means and
standard deviations. All sites know the pooled means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray
from consilience.exceptions import ProtocolError, QuorumError, listed
from consilience.protocol.method import (
    MASKED_SUMS,
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
from consilience.protocol.next_study import Asked, Led, NextStudy
from consilience.protocol.phases.moments import MOST, point
from consilience.protocol.phases.secure_sums import note_cut, party_of, require_masks, total
from consilience.protocol.result import Frame, Result, lines
from consilience.wire.disclosure import Released, aggregate, count, replaced
from consilience.wire.message import Aggregate, Public, message

if TYPE_CHECKING:
    import pandas as pd


@message("mean-and-sd/sums-request", version=1)
class SumsRequest:
    """Ask for counts and sums."""


@message("mean-and-sd/sums", version=2)
class Sums:
    """First round: rows and column sums."""

    n: Released = Aggregate("", "rows at the site", kind="int", low=0)
    totals: Released = Aggregate("p", "column sums; a gap where one is withheld", gaps=True)


@message("mean-and-sd/possible", version=1)
class Possible:
    """What a site could tell: 1 for yes, 0 for no."""

    columns: Released = Aggregate("p", "columns", low=0, high=1)


@message("mean-and-sd/shared-request", version=1)
class SharedRequest:
    """Ask for counts and sums of what every site can tell."""

    columns: BoolArray = Public("p", "columns that every site can tell", kind="bool", to="all")


@message("mean-and-sd/centre", version=2)
class Centre:
    """Second round: the pooled mean."""

    mean: Released = Aggregate(
        "p", "pooled means; a gap where none is asked", to="all", gaps=True, low=-MOST, high=MOST
    )


@message("mean-and-sd/deviations", version=2)
class Deviations:
    """Squared deviations from the pooled mean."""

    squares: Released = Aggregate("p", "sums of squared deviations", low=0, gaps=True)


@step("sums")
def sums(
    message: SumsRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Sums, State]:
    """Count and sum the rows."""
    x, centre, scale = data.in_own_units()
    totals = aggregate(x, columns=data.features, coded=data.coded)
    totals = totals.withhold_unsafe(site.limits)
    scaled = replaced(totals, (totals.value - len(x) * centre) / scale)
    return Sums(n=count(data.n_rows), totals=scaled), state


@step("possible", once=True, summed=True)
def possible(
    message: SumsRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Possible, State]:
    """Count this site where it could tell a column."""
    require_masks(site)
    own, _ = sums(message, data, state, site)
    could = ~np.isnan(own.totals.value)
    told = replaced(aggregate(np.ones(data.n_rows)), could.astype(float))
    return Possible(columns=told), {**state, "could": could}


@step("totals", summed=True)
def totals(
    message: SharedRequest, data: SiteData, state: State, site: SiteContext
) -> tuple[Sums, State]:
    """Add rows and sums of columns that every site can tell."""
    require_masks(site)
    _require_offered(message.columns, state)
    own, _ = sums(SumsRequest(), data, state, site)
    return Sums(n=own.n, totals=own.totals.withhold(~message.columns)), state


def _require_offered(columns: BoolArray, state: State) -> None:
    """Check, before any look at the rows, that the site said it could tell these columns."""
    if "could" not in state or (columns & ~np.asarray(state["could"])).any():
        sentence = "the study asks for a column that this site did not say it could tell"
        raise ProtocolError.shared(sentence)


@step("deviations", once=MASKED_SUMS, summed=True)
def deviations(
    message: Centre, data: SiteData, state: State, site: SiteContext
) -> tuple[Deviations, State]:
    """Sum the squared deviations from the pooled mean."""
    if party_of(site) is not None:
        _require_offered(~np.isnan(message.mean.value), state)
    x, centre, scale = data.in_own_units()
    own = x.mean(axis=0)
    # About the site's own mean, and moved: rounding far away would depend on single rows.
    with np.errstate(over="ignore"):  # an infinite sum is no release
        squares = aggregate(x, about=own, columns=data.features, coded=data.coded)
        away = (own - centre) / scale - message.mean.value
        squares = squares.withhold_unsafe(site.limits)
        moved = squares.value / scale**2 + len(x) * away**2
    return Deviations(squares=replaced(squares, moved)), state


@dataclass(frozen=True, eq=False)
class MeanAndSDResult(Result):
    """Pooled moments.

    Attributes
    ----------
    feature_names : tuple of str
    n : int
        Rows over all sites.
    mean, sd : (p,) arrays
        Standard deviation with denominator n - 1. Of a column that some sites withhold, over the
        rows of the others; NaN where all do, or with masked sums where one does.
    rows : (p,) array
        Rows that each column rests on.
    """

    feature_names: tuple[str, ...]
    n: int
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    rows: NDArray[np.int64]

    def summary(self) -> str:
        """Return rows, means and standard deviations in one line."""
        parts = (
            f"{name}: withheld" if np.isnan(m) else f"{name}: {m:.4g} (sd {s:.4g})"
            for name, m, s in zip(self.feature_names, self.mean, self.sd, strict=True)
        )
        return f"{self.n} rows. " + "; ".join(parts)

    def next_studies(self, asked: Asked) -> Led:
        """Describe the same columns: missing values, quantiles, differences between sites."""
        yield NextStudy(
            method="describe",
            why="Means and standard deviations say neither how many values are missing, nor how "
            "they are distributed, nor whether sites differ: a description does.",
        )

    @Frame
    def moments(self) -> pd.DataFrame:
        """Mean and standard deviation of each column, and the rows they are of."""
        of = {"mean": self.mean, "sd": self.sd, "rows": self.rows}
        return lines(of, column=self.feature_names)


@register
@dataclass(frozen=True, kw_only=True)
class MeanAndSD(Method[MeanAndSDResult]):
    """Pooled mean and standard deviation of every feature column."""

    name: ClassVar[str] = "mean-and-sd"
    version: ClassVar[int] = 4
    title: ClassVar[str] = "What are the pooled means and standard deviations?"
    steps = (sums, deviations, possible, totals)
    roles: ClassVar[tuple[str, ...]] = ()
    tells: ClassVar = "means"
    masks_sums: ClassVar[bool] = True
    absence: ClassVar[str] = (
        "A site that misses the first round is left out, down to the quorum; "
        "one that misses a later round stops the run."
    )
    tolerates = {"totals": "all", "deviations": "all"}  # noqa: RUF012  a constant of the class
    leakage: ClassVar[str] = (
        "The coordinator knows each site's number of rows, column means and standard deviations, "
        "or with masked sums those of all sites together, of columns that all can tell, and how "
        "many can tell each column. All sites know the pooled means."
    )
    Result = MeanAndSDResult

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Two rounds: sums, then deviations from the pooled mean."""
        if ctx.masks is None:
            first = yield from total(ctx, Ask("sums", SumsRequest()), Sums, rows="n")
            n, rows = int(first.values["n"]), first.records["totals"]
        else:
            could = yield from total(ctx, Ask("possible", SumsRequest()), Possible)
            every = np.rint(could.values["columns"]) == len(could.sites)
            asked = Ask("totals", SharedRequest(columns=every), to=could.sites)
            k = len(could.sites)
            first = yield from total(ctx, asked, Sums, at_least=k, tellers=k)
            n = int(first.values["n"])
            rows = np.where(every, n, 0.0)
        if n < 2:
            raise QuorumError("the sites have fewer than two rows: there is no deviation to tell")
        if (rows < n).any():
            names = listed(np.array(ctx.feature_names)[rows < n])
            lost = "" if ctx.masks is None else " Masked sums are of all sites or of none."
            ctx.note(
                f"Some sites withheld {names}: too few rows differ there, or one outweighs all."
                f"{lost}"
            )
        some = np.where(rows > 0, rows, np.nan)  # NaN where no site tells
        mean = first.values["totals"] / some
        centre = Centre(mean=point(mean, ctx.feature_names))
        asked = Ask("deviations", centre, to=first.sites)
        k = len(first.sites)
        second = yield from total(ctx, asked, Deviations, at_least=k, tellers=k)
        sd = np.sqrt(second.values["squares"] / np.maximum(some - 1, 1))
        note_cut(ctx, ctx.feature_names, sd**2)
        return MeanAndSDResult(ctx.feature_names, n, mean, sd, rows.astype(int))
