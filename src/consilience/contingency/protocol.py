"""Contingency table of two categorical columns, with tests of their association, in one round.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
count: Levels               ->
  rows (r), columns (c)
                            <-  Table: counts (m = r c)               AGGREGATE
or, where sums are masked,
possible: Levels            ->
                            <-  Possible: whether it tells a table    AGGREGATE
parts: Levels               ->
                            <-  Parts: counts (m), within (2)         AGGREGATE
==============================  ==================================================

Sources: Pearson, Philosophical Magazine 50 (1900), for the chi-square test of the pooled table,
here without Yates' correction; Cramér, Mathematical Methods of Statistics (1946), for V; Landis,
Heyman and Koch, International Statistical Review 46 (1978), for the test within sites (general
association; also in Agresti, Categorical Data Analysis, chapter 8 of the third edition).

Rule for small cells: a site that protects records tells its whole table or nothing of it. It tells
nothing where a cell holds fewer than `min_records` rows, none included, so that nobody and few look
alike, or where a row has none of the declared levels. No total leaves, and whoever knows one from
elsewhere has no told cell to subtract from it. The cells are sums of products of coded columns: a
site that grants no models of others compares them with what other runs told, and blanks columns
that would tell of few beside it (`docs/proofs/differencing.md`).

Absence: a site that does not answer is left out, down to the quorum; one that withholds its table
is named in the result, and the run stops where all do. With masked sums it stops where fewer than
three sites tell a table, before any does: the total might be one site's own.
Leakage: the coordinator knows the table of each site that tells one, and of the others that they do
not; with masked sums the pooled table, the statistic within sites, and how many sites tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, QuorumError, StudyError
from consilience.numerics.two_way_tables import (
    chi_square_test,
    cramers_v,
    expected_counts,
    pearson,
    within_strata,
)
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
from consilience.protocol.next_study import Asked, Led, regression
from consilience.protocol.phases.secure_sums import require_masks, total
from consilience.protocol.result import Frame, Result, lines, of_rows
from consilience.wire.disclosure import Released, aggregate, cell_counts, replaced
from consilience.wire.message import Aggregate, Public, message
from consilience.wire.secure_sums import LEAST_SITES

if TYPE_CHECKING:
    import pandas as pd

SIGNIFICANT = 0.05
"""Below it a p-value is said to show an association."""
LEAST_EXPECTED = 5.0
"""Expected counts below it make the chi-square distribution a poor guide (Cochran, 1954)."""


@message("contingency-table/levels", version=1)
class Levels:
    """The levels by which rows are counted, the same for everybody."""

    rows: tuple[str, ...] = Public("r", "levels of the first column", kind="str", to="site")
    columns: tuple[str, ...] = Public("c", "levels of the second column", kind="str", to="site")

    def lengths(self) -> dict[str, int]:
        """Cells of the table."""
        return {"m": len(self.rows) * len(self.columns)}


@message("contingency-table/table", version=1)
class Table:
    """Rows in each cell, level by level of the first column; NaN in all where they are withheld."""

    counts: Released = Aggregate("m", "rows in each cell", gaps=True, low=0, high=1 << 50)

    def check(self, request: Levels, known: Mapping[str, Any]) -> str | None:
        """A table comes as a whole, and counts are whole numbers."""
        gaps = np.isnan(self.counts.value)
        if gaps.any():
            return None if gaps.all() else "some cells are told and others are not"
        whole = (self.counts.value == np.floor(self.counts.value)).all()
        return None if whole else "a count is no whole number"


@step("count")
def count(message: Levels, data: SiteData, state: State, site: SiteContext) -> tuple[Table, State]:
    """Count the rows in each cell; tell all cells or none."""
    table, why = _told(message, data, site.limits.min_records)
    if why:  # in the site's own log, which may name cells
        site.note(f"The table stays here: {why}.")
    return Table(counts=table), state


def _told(message: Levels, data: SiteData, least: int) -> tuple[Released, str]:
    """Rows in each cell, or gaps and why."""
    sizes = (len(message.rows), len(message.columns))
    if tuple(len(group.columns) for group in data.coded) != sizes or not all(
        group.whole for group in data.coded
    ):
        raise DataError(
            f"the study codes {data.feature_names}, which are not all levels of two columns",
            public="the columns are not those of a table of two categories",
        )
    x = data.in_own_units()[0]
    first, second = (x[:, list(group.columns)] for group in data.coded)
    # Of a column that may not be told the site has blanked the content: such rows have no level.
    placed = ((first == 1).sum(axis=1) == 1) & ((second == 1).sum(axis=1) == 1)
    cells = first.argmax(axis=1) * sizes[1] + second.argmax(axis=1)
    table = cell_counts(np.where(placed, cells, -1), sizes[0] * sizes[1])
    # Nobody and few look alike; where no record is protected an empty cell may be told.
    small = np.argwhere(np.asarray(table.value).reshape(sizes) < least).tolist() * (least > 1)
    cells_of = ", ".join(f"{message.rows[i]} with {message.columns[j]}" for i, j in small[:5])
    few = [f"fewer than {least} rows have {cells_of}"] * bool(small)
    without = ["some rows have none of the declared levels"] * (not placed.all())
    withheld = bool(few + without)
    return table.withhold(np.full(table.value.shape, withheld)), "; ".join(few + without)


_FINEST = 1 / 64
"""Of what a site adds to the chi-square statistics, of which a p-value needs no more digits."""


@message("contingency-table/possible", version=1)
class Possible:
    """Whether a site could tell its table: 1 for yes, 0 for no."""

    tables: Released = Aggregate("1", "tables", low=0, high=1)


@step("possible", once=True, summed=True)
def possible(
    message: Levels, data: SiteData, state: State, site: SiteContext
) -> tuple[Possible, State]:
    """Count this site where `count` tells its table."""
    require_masks(site)
    reply, state = count(message, data, state, site)
    could = np.array([not np.isnan(reply.counts.value).any()], dtype=float)
    return Possible(tables=replaced(aggregate(np.ones((data.n_rows, 1))), could)), state


@message("contingency-table/parts", version=2)
class Parts:
    """What a site adds to the pooled table and to the test within sites; NaN where withheld."""

    counts: Released = Aggregate("m", "rows in each cell", gaps=True, low=0, high=1 << 50)
    within: Released = Aggregate(
        "2", "chi-square statistic of the table, rounded, and its degrees of freedom", gaps=True
    )


@step("parts", summed=True)
def parts(message: Levels, data: SiteData, state: State, site: SiteContext) -> tuple[Parts, State]:
    """Tell what `count` tells, and what follows from it for the test within sites."""
    counts, _ = _told(message, data, site.limits.min_records)
    table = np.asarray(counts.value, dtype=float)
    within = np.full(2, np.nan)
    if not np.isnan(table).any():
        own = pearson(table.reshape(len(message.rows), len(message.columns)))
        # Exact sums of fractions over the sites' numbers of rows would tell each of these.
        # For given margins the statistic has mean df n / (n - 1): small sites would add up to more.
        told = own.statistic * (1 - 1 / max(table.sum(), 1.0))
        within = np.array([round(told / _FINEST) * _FINEST, own.df])
    return Parts(counts=counts, within=replaced(counts, within)), state


@dataclass(frozen=True, eq=False)
class ContingencyTableResult(Result):
    """Pooled table and tests.

    Attributes
    ----------
    names : tuple of str
        The two columns: that of the table's rows, and that of its columns.
    row_levels, column_levels : tuple of str
    sites, withheld : tuple of str
        Sites whose tables are in it, and those that withhold theirs.
    tables : (sites, r, c) int array
        Of no site where sums are masked.
    table : (r, c) int array
        Over these sites.
    expected : (r, c) array
        Expected counts of the pooled table, if the columns were independent.
    statistic, df, p_value
        Pearson's chi-square test of the pooled table.
    cramers_v : float
        NaN where only one level of a column has rows.
    within_statistic, within_df, within_p_value
        Generalised Cochran-Mantel-Haenszel test, sites as strata; where sums are masked, the sum
        of the chi-square statistics of the sites' tables, each times (n - 1) / n.
    """

    often = ("n", "sites", "withheld", "table", "statistic", "p_value", "cramers_v", "verdicts")

    names: tuple[str, ...]
    row_levels: tuple[str, ...]
    column_levels: tuple[str, ...]
    sites: tuple[str, ...]
    withheld: tuple[str, ...]
    tables: IntArray
    table: IntArray
    expected: FloatArray
    statistic: float
    df: int
    p_value: float
    cramers_v: float
    within_statistic: float
    within_df: int
    within_p_value: float

    @property
    def n(self) -> int:
        """Rows in the pooled table."""
        return int(self.table.sum())

    @property
    def n_small_expected(self) -> int:
        """Cells, of levels that have rows, with an expected count below 5."""
        return int(((self.expected > 0) & (self.expected < LEAST_EXPECTED)).sum())

    def verdicts(self) -> tuple[bool, bool]:
        """Whether the pooled test, and the one within sites, shows an association at 5%."""
        return self.p_value < SIGNIFICANT, self.within_p_value < SIGNIFICANT

    def summary(self) -> str:
        """Answer by both tests, and say whether they disagree."""
        first, second = self.names
        pooled, within = self.verdicts()
        rows = f"{first} and {second} in {self.n:,} rows of {', '.join(self.sites)}"
        if not self.df:
            parts = [f"{rows}: nothing can be tested, since one column has rows of one level only."]
        else:
            parts = [
                f"{rows}: chi-square {self.statistic:.4g} on {self.df} df (p = {self.p_value:.3g}),"
                f" Cramér's V {self.cramers_v:.3g}; within sites {self.within_statistic:.4g} on "
                f"{self.within_df} df (p = {self.within_p_value:.3g})."
            ]
        if self.df and not self.within_df:
            parts.append("Within sites nothing can be tested: no site has two levels of both.")
        elif pooled and not within and not len(self.tables):
            parts.append(
                "The test within sites does not show the pooled association; of masked sums it is "
                "weak, the more so the more sites there are."
            )
        elif pooled and not within:
            parts.append(
                "The tests disagree: the pooled association does not show within sites, so "
                "differences between sites may have made it."
            )
        elif within and not pooled:
            parts.append(
                "The tests disagree: an association within sites does not show in the pooled table."
            )
        if self.withheld:
            parts.append(f"Not in it, as their tables are withheld: {', '.join(self.withheld)}.")
        return " ".join(parts)

    def next_studies(self, asked: Asked) -> Led:
        """A regression of a column of two levels on the other, where sites show an association."""
        if not self.verdicts()[1]:
            yield "Within sites no association shows: there is none to describe further."
            return
        pairs = zip(self.names, (self.row_levels, self.column_levels), strict=True)
        two = [name for name, levels in pairs if len(levels) == 2]
        if not two:
            yield "Neither column has two levels: no regression here explains one by the other."
            return
        response = two[-1]
        (other,) = set(self.names) - {response}
        why = (
            f"{other} and {response} are associated within sites: a regression gives odds ratios "
            "with limits, to which other columns can be added, and tests whether sites differ."
        )
        yield from regression(
            asked,
            why,
            features=(other,),
            target=response,
            sites=self.sites,
            parameters={"family": "binomial"},
        )

    @Frame
    def counts(self) -> pd.DataFrame:
        """The pooled table: a line for each level of the first column."""
        by_level = dict(zip(self.column_levels, self.table.T, strict=True))
        frame = lines(by_level, **{self.names[0]: self.row_levels})
        return frame.rename_axis(self.names[1], axis="columns")

    @Frame
    def site_counts(self) -> pd.DataFrame:
        """Rows in every cell at every site."""
        site, row, column = np.indices(self.tables.shape).reshape(3, -1)
        named = {"site": np.array(self.sites)[site]}
        named |= {self.names[0]: np.array(self.row_levels)[row]}
        named |= {self.names[1]: np.array(self.column_levels)[column]}
        return lines(named | {"rows": self.tables.ravel()})

    @Frame
    def association(self) -> pd.DataFrame:
        """Test of association in the pooled table, and within sites."""
        told = (
            ("pooled", self.statistic, self.df, self.p_value),
            ("within sites", self.within_statistic, self.within_df, self.within_p_value),
        )
        return of_rows(told, "test", "statistic", "df", "p_value")


@register
@dataclass(frozen=True, kw_only=True)
class ContingencyTable(Method[ContingencyTableResult]):
    """Table of two categorical columns over all sites, with tests of their association.

    The two feature columns of the study are those of the table, the first one its rows. Both need
    declared levels, and ``categorical = "onehot"``.
    """

    name: ClassVar[str] = "contingency-table"
    version: ClassVar[int] = 3
    title: ClassVar[str] = "Are two categories associated, over all sites and within them?"
    steps = (count, possible, parts)
    roles: ClassVar[tuple[str, ...]] = ()
    # Counts of a table are sums of products of coded columns: sites hold them against other runs.
    tells: ClassVar = "moments"
    masks_sums: ClassVar[bool] = True
    absence: ClassVar[str] = (
        "A site that does not answer is left out, down to the quorum. One that withholds its table "
        "is named in the result; the run stops where all do, with masked sums where fewer than "
        "three sites tell one, or one is lost once it was said how many do."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows the table of each site that tells one: all its cells are large "
        "enough; with masked sums it knows how many sites tell one, and if three or more do, that "
        "of all these sites together and the sum of their chi-square statistics. Of the others "
        "it knows that they do not tell theirs."
    )
    Result = ContingencyTableResult

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check that there are two columns with levels, coded as they are."""
        features, rules = ctx.columns.features, ctx.preparation
        if len(features) != 2 or not set(features) <= set(ctx.columns.levels):
            fault = "a contingency table needs two features, both with levels in [data] levels"
        elif rules.categorical != "onehot" or rules.indicators or rules.standardize != "none":
            fault = (
                "a contingency table needs all levels as they are: set [preparation] categorical "
                "to 'onehot', without indicators and standardize"
            )
        elif rules.missing not in ("refuse", "complete-rows"):
            fault = "a contingency table counts known levels: set missing to 'complete-rows'"
        else:
            return
        raise StudyError.shared(fault)

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """One round, two sums where they are masked: send the levels, add the tables."""
        names = ctx.columns.features
        rows, columns = (ctx.columns.levels[name] for name in names)
        asked, shape = Levels(rows=rows, columns=columns), (len(rows), len(columns))
        tables = np.empty((0, *shape))
        if ctx.masks is not None:
            could = yield from total(ctx, Ask("possible", asked), Possible)
            able = round(float(could.values["tables"][0]))
            if able < LEAST_SITES:
                raise QuorumError(
                    f"{able} of {len(could.sites)} sites can tell their tables, and a masked total "
                    f"is of {LEAST_SITES} at least: ask for fewer levels, let more sites take part "
                    "or leave sums = 'secure' out of the study; the sites' logs say more"
                )
            ask = Ask("parts", asked, to=could.sites)
            k = len(could.sites)
            totals = yield from total(ctx, ask, Parts, at_least=k, tellers=LEAST_SITES)
            withheld = totals.silent
            told = tuple(site for site in totals.sites if site not in withheld)
            table = np.rint(totals.values["counts"]).reshape(shape)
            statistic, df = totals.values["within"]
            within = chi_square_test(float(statistic), round(df))
        else:
            replies = ctx.require((yield Ask("count", asked)))
            # `Table.check` has seen to it that a table comes as a whole or not at all.
            withheld = tuple(s for s, r in replies.items() if np.isnan(r.counts.value).any())
            told = tuple(site for site in replies if site not in withheld)
            if told:
                tables = np.stack([replies[s].counts.value for s in told]).reshape(-1, *shape)
            table, within = tables.sum(axis=0), within_strata(tables)
        if withheld:
            ctx.note(
                f"Tables withheld, so not counted: {', '.join(withheld)}. A cell there has too few "
                "rows, or would have beside what other runs told."
            )
        if not told:
            raise QuorumError(
                "no site tells its table: ask for fewer levels; the sites' logs say more"
            )
        pooled = pearson(table)
        return ContingencyTableResult(
            names=names,
            row_levels=rows,
            column_levels=columns,
            sites=told,
            withheld=withheld,
            tables=tables.astype(np.int64),
            table=table.astype(np.int64),
            expected=expected_counts(table),
            statistic=pooled.statistic,
            df=pooled.df,
            p_value=pooled.p_value,
            cramers_v=cramers_v(table),
            within_statistic=within.statistic,
            within_df=within.df,
            within_p_value=within.p_value,
        )
