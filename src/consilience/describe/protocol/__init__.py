"""Description of all columns at all sites, in two rounds.

==============================  ==================================================
coordinator                     site
==============================  ==================================================
sums: Request               ->
                            <-  Sums: n, known, means, spreads (q),
                                  levels (v), tables (c)            AGGREGATE
bins: Edges                 ->
  edges (e, all)
                            <-  Bins: counts (b), ended (h)         AGGREGATE
==============================  ==================================================

q columns are numbers; v are the levels of categories, each with one more for rows without a value;
c are the cells of the tables that the study names, h the bins of the times of its curves, for each
group those whom an event ended and those whom none did. The second round is left out where no
column is a number. Edges are the study's, or round numbers about the pooled mean.

Rules, at a site that protects records (docs/proofs/described-columns.md):

- Fewer than `min_records` missing values of a column, and none, look the same: they count as the
  column's median, or as its most frequent level, at that site, in all that is told. Columns that
  lack a value in the same rows but for fewer than that count as lacking it in all of these.
- A number is told with its mean and spread, or not at all, by the rule of moments.
- Bins that hold fewer than `min_records` rows, none included, are joined to the one before; of
  columns of few values more are, so that no count follows from bins, mean and spread together.
  Edges of all runs on these rows count as if they were told at once, and lie at least a tenth of a
  standard deviation from any other that was ever asked for; other rows get no bins. Where no
  models of others are granted no edge is new once a run told of some of these rows and not of all.
- A level of few rows is withheld, with another one where it would follow.
- A table is told whole or not at all, by the rule of products of columns; at a site that grants no
  models of others not at all: `contingency-table` is compared with other runs there.
- A curve has bins of its own for each group of those whom an event ended, and of the others, by the
  rule of bins. Its groups by event are a table. A time has bins or one curve, over all runs.

With masked sums what all sites can tell is told in totals (`masked.py`).

Sources: `describe.kernels`, `numerics.two_way_tables`.

Absence: a site that does not answer is left out, down to the quorum; one that misses the second
round has no bins. Leakage: see the method's statement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from consilience.arrays import FloatArray
from consilience.describe.kernels import default_edges, pooled
from consilience.describe.protocol import masked
from consilience.describe.protocol import site as at_site
from consilience.describe.protocol.result import DescribeResult
from consilience.describe.protocol.site import (
    BINS,
    CURVES,
    TABLES,
    Bins,
    Edges,
    Request,
    Settings,
    Sums,
    cells_of,
    split,
)
from consilience.exceptions import ParameterError, StudyError
from consilience.parameters import RULE, allows, number, several
from consilience.protocol.method import Ask, CoordinatorContext, Exchange, Method, register
from consilience.wire.disclosure import relayed
from consilience.wire.message import Disclosure


@register
@dataclass(frozen=True, kw_only=True)
class Describe(Method[DescribeResult]):
    """Table 1 over all sites: what the rows are like, pooled and site by site.

    All features of the study are described. Those with declared levels are categories, for which
    ``categorical = "onehot"`` is needed; with ``missing = "keep"`` missing values are counted.

    Parameters
    ----------
    bins : mapping of str to sequence of float
        Edges of the bins of a column, ascending; rows at an edge are in the bin above it. Other
        columns have edges at round numbers about the pooled mean, a quarter to about two thirds of
        a standard deviation apart.
    tables : sequence of (str, str)
        Pairs of categories to count together, with tests of their association.
    curves : sequence of (str, str) or (str, str, str)
        Times until an event, whether it was seen (1, or the second of two levels), and a category
        whose levels are compared, if there is one. Times are above 0; their bins are the curve's
        times.
    quantiles : sequence of float
        Between 0 and 1; three of them are shown as median and quartiles.
    """

    bins: Mapping[str, Sequence[float]] = field(default_factory=dict, metadata={RULE: BINS})
    tables: Sequence[Sequence[str]] = allows(TABLES, default=())
    curves: Sequence[Sequence[str]] = allows(CURVES, default=())
    quantiles: Sequence[float] = allows(
        several(number(above=0, below=1), 1, 20), default=(0.25, 0.5, 0.75)
    )

    name: ClassVar[str] = "describe"
    version: ClassVar[int] = 2
    title: ClassVar[str] = "Who is in the tables, over all sites and at each of them?"
    steps = (at_site.sums, at_site.count_bins, *masked.STEPS)
    roles: ClassVar[tuple[str, ...]] = ()
    tells: ClassVar = "means"
    accepts_missing: ClassVar[bool] = True
    remembers_rows: ClassVar[bool] = True
    masks_sums: ClassVar[bool] = True
    absence: ClassVar[str] = (
        "A site that does not answer the first question is left out, down to the quorum. One that "
        "misses the second, which the quorum must answer, has no bins and no part in quantiles."
    )
    leakage: ClassVar[str] = (
        "The coordinator knows, of each site, the number of rows; of each column of numbers rows "
        "with a value, mean and standard deviation, and the rows in bins; of each category the "
        "rows of its levels; the tables that the study names; and of its curves the rows in bins "
        "of time, by group, with an event and without. Counts of few are withheld or joined to "
        "others, with what of the same column they would follow from. All sites know the "
        "edges of the bins, which follow from pooled means and standard deviations or stand in the "
        "study. With masked sums the coordinator knows this of all sites together, and how many "
        "sites could tell each figure."
    )
    Result = DescribeResult

    def check_together(self) -> None:
        """Check that no table is named twice; raise `ParameterError`."""
        pairs = [frozenset(pair) for pair in self.tables]
        if len(set(pairs)) < len(pairs):
            raise ParameterError.of("tables", "different pairs of columns", self.tables)
        if len(set(map(tuple, self.curves))) < len(self.curves):
            raise ParameterError.of("curves", "different curves", self.curves)
        if len({time for time, *_ in self.curves}) < len({(t, e) for t, e, *_ in self.curves}):
            raise ParameterError.of("curves", "one event for each time", self.curves)

    def cannot_mask(self) -> str:
        """Say what it needs of single sites."""
        return masked.refusal(self)

    def admit(self, ctx: CoordinatorContext) -> None:
        """Check the preparation, and that bins and tables are of columns that can have some."""
        rules, levels = ctx.preparation, ctx.columns.levels
        features = ctx.columns.features
        categories = [name for name in features if name in levels]
        fault = ""
        if not features:
            fault = "a description needs columns: name them in [data] features"
        elif (categories and rules.categorical != "onehot") or rules.indicators:
            fault = (
                "a description needs all levels as they are: set [preparation] categorical to "
                "'onehot', without indicators"
            )
        elif rules.standardize != "none":
            fault = "a description is in the columns' own units: set standardize to 'none'"
        elif rules.missing not in ("refuse", "complete-rows", "keep"):
            fault = (
                "a description counts missing values and fills none: set [preparation] missing to "
                "'keep', 'complete-rows' or 'refuse'"
            )
        for name in self.bins:
            if name not in features or name in levels:
                fault = f"bins are given for {name!r}, which is no feature without levels"
        for name in itertools.chain.from_iterable(self.tables):
            if name not in categories:
                fault = f"tables name {name!r}, which is no feature with levels"
        for time, event, *by in self.curves:
            if time not in features or time in levels:
                fault = f"curves name the time {time!r}, which is no feature without levels"
            elif event not in features or len(levels.get(event, (0, 1))) != 2:
                fault = f"curves name the event {event!r}, which is no feature of two values"
            elif by and by[0] not in categories:
                fault = f"curves name the groups {by[0]!r}, which is no feature with levels"
        if fault:
            raise StudyError.shared(fault)

    def coordinate(self, ctx: CoordinatorContext) -> Exchange:
        """Two rounds: sums, then bins at edges that follow from them."""
        features, levels = ctx.columns.features, ctx.columns.levels
        numbers = tuple(name for name in features if name not in levels)
        categories = tuple(name for name in features if name in levels)
        bins = {k: tuple(float(e) for e in v) for k, v in self.bins.items()}
        settings = Settings(
            bins=bins,
            tables=tuple(tuple(pair) for pair in self.tables),
            curves=tuple(tuple(one) for one in self.curves),
        )
        sizes = np.array([len(levels[name]) for name in categories], dtype=np.int64)
        asked = Request(settings=settings, numbers=numbers, categories=categories, sizes=sizes)
        first: dict[str, Sums] = (
            ctx.require((yield Ask("sums", asked)))
            if ctx.masks is None
            else (yield from masked.summed(ctx, asked))
        )
        n = np.array([reply.n.value for reply in first.values()], dtype=np.int64)
        known, mean, square = (
            np.stack([getattr(reply, part).value for reply in first.values()])
            for part in ("known", "means", "spreads")
        )
        square = square * known
        edges = _edges_of(numbers, bins, known, mean, square)
        groups = [len(levels[by[0]]) if by else 1 for _, _, *by in self.curves]
        question = Edges(
            settings=settings,
            numbers=numbers,
            sizes=np.array([len(e) for e in edges], dtype=np.int64),
            groups=np.array(groups, dtype=np.int64),
            edges=relayed(np.concatenate([np.empty(0), *edges]), Disclosure.AGGREGATE),
        )
        counts, ended = (np.full((len(first), n), np.nan) for n in question.lengths().values())
        if counts.size:
            rows_of = {s: {"rows": row} for s, row in zip(first, known, strict=True)}
            second: dict[str, Bins] = (
                ctx.require((yield Ask("bins", question, to=tuple(first), known=rows_of)))
                if ctx.masks is None
                else (yield from masked.binned(ctx, question, rows_of))
            )
            for i, site in enumerate(first):
                if site in second:
                    counts[i] = second[site].counts.value
                    ended[i] = second[site].ended.value
        result = DescribeResult(
            columns=features,
            number_names=numbers,
            level_names={name: levels[name] for name in categories},
            sites=tuple(first),
            n=n,
            known=known,
            mean=mean,
            square=square,
            counts=dict(
                _by_name(
                    [reply.levels.value for reply in first.values()],
                    categories,
                    [int(size) + 1 for size in sizes],
                )
            ),
            edges=dict(zip(numbers, edges, strict=True)),
            bin_counts=dict(
                _by_name(
                    list(counts),
                    [name for name, e in zip(numbers, edges, strict=True) if len(e)],
                    [len(e) + 1 for e in edges if len(e)],
                )
            ),
            pairs=tuple((str(a), str(b)) for a, b in self.tables),
            tables=tuple(
                part.reshape(len(first), len(levels[a]) + 1, len(levels[b]) + 1)
                for (a, b), (_, part) in zip(
                    self.tables,
                    _by_name(
                        [reply.tables.value for reply in first.values()],
                        [str(pair) for pair in self.tables],
                        cells_of(asked),
                    ),
                    strict=True,
                )
            ),
            curves=tuple((str(t), str(e), *map(str, by)) for t, e, *by in settings.curves),
            ended=tuple(
                part.reshape(len(first), number, 2, -1)
                for number, (_, part) in zip(
                    groups,
                    _by_name(
                        list(ended),
                        [str(one) for one in settings.curves],
                        question.cells_of_curves(),
                    ),
                    strict=True,
                )
            ),
            shares=tuple(float(q) for q in sorted(self.quantiles)),
        )
        for sentence in result.withheld():
            ctx.note(sentence)
        return result


def _edges_of(
    numbers: Sequence[str],
    bins: Mapping[str, Sequence[float]],
    known: FloatArray,
    mean: FloatArray,
    square: FloatArray,
) -> list[FloatArray]:
    """Edges of each column's bins, of the study or by its pooled moments."""
    edges = []
    for j, name in enumerate(numbers):
        rows, centre, squares = pooled(known[:, j], mean[:, j], square[:, j])
        sd = float(np.sqrt(squares / max(rows - 1, 1)))
        edges.append(np.asarray(bins[name]) if name in bins else default_edges(centre, sd))
    return edges


def _by_name(
    lines: Sequence[FloatArray], names: Sequence[str], sizes: Sequence[int]
) -> Iterator[tuple[str, FloatArray]]:
    """Parts of the sites' lines, (s, size) each, by name."""
    stacked = np.stack(lines).T if lines else np.zeros((0, 0))
    for name, (_, part) in zip(names, split(stacked, sizes), strict=True):
        yield name, np.ascontiguousarray(part.T)
