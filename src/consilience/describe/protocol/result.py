"""What a description tells: Table 1, and tidy tables of all that is in it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.describe.kernels import (
    Curve,
    LogRank,
    Pair,
    Quantile,
    difference_of_means,
    difference_of_shares,
    equal_means,
    life_table,
    log_rank_of_sites,
    log_rank_within,
    pairs_of,
    pooled,
    pooled_log_rank,
    quantile,
)
from consilience.exceptions import ParameterError
from consilience.numerics.two_way_tables import (
    ChiSquareTest,
    cramers_v,
    holm,
    pearson,
    within_strata,
)
from consilience.protocol.next_study import Asked, Led, NextStudy, regression, subtypes
from consilience.protocol.phases.secure_sums import ALL as ALL
from consilience.protocol.result import Frame, Result, of_records, of_rows, to_csv

if TYPE_CHECKING:
    import pandas as pd

MOST_MISSING = 0.5
"""Share of the rows of a site that may lack a column which a further study is to use."""
SIGNIFICANT = 0.05
"""Below it a p-value, adjusted for the number of columns, is said to show a difference."""
NOTABLE = 0.1
"""Standardised differences above it are said to be notable (Austin, 2009)."""
EM_SPACE = "\N{EM SPACE}"
_FORMER = {"table": "table_one", "sites": "site_tests"}
"""Names of tables that `DescribeResult.to_frame` knows too."""


def _tidy(columns: str) -> Callable[[Callable[[Any], Iterator[tuple[Any, ...]]]], Frame]:
    """Table of the lines that a method yields, with the names of its columns."""

    def frame(make: Callable[[Any], Iterator[tuple[Any, ...]]]) -> Frame:
        return Frame(wraps(make)(lambda result: of_rows(make(result), *columns.split(", "))))

    return frame


@dataclass(frozen=True, eq=False)
class DescribeResult(Result):
    """Description of columns, by site and pooled.

    Attributes
    ----------
    columns : tuple of str
        In the order of the study.
    number_names : tuple of str
        Those that are numbers (q).
    level_names : dict of str to tuple of str
        Levels of the others.
    sites : tuple of str
        With masked sums "all sites", which are then one.
    n : (s,) int array
        Rows.
    known, mean, square : (s, q) arrays
        Rows with a value, means, and sums of squares about them; NaN where a site withholds the
        column. Fewer than `min_records` missing values count as none.
    counts : dict of str to (s, L + 1) array
        Rows of each level of a category, those without a value last; NaN where withheld. Rare
        levels, of which a site has no list of its own, count as none.
    edges : dict of str to (e,) array
        Edges of the bins of each number.
    bin_counts : dict of str to (s, e + 1) array
        Rows below the first edge, from each edge up to the next, and from the last one on. A gap
        joins the bin before it; all are gaps where nothing is told.
    pairs : tuple of (str, str)
    tables : tuple of (s, r + 1, c + 1) arrays
        Of each pair; rows without a value stand last. NaN where a site withholds the table.
    shares : tuple of float
        Of the quantiles.
    curves : tuple of (str, str) or (str, str, str)
        Times, events, and groups if there are some.
    ended : tuple of (s, g, 2, e + 1) arrays
        Of each curve and group, rows in bins of the time as in `bin_counts`: those with an event,
        then those without. All are gaps where a site withholds the curve.
    """

    often = ("quantile", "to_text", "to_csv", "to_html", "to_latex")

    columns: tuple[str, ...]
    number_names: tuple[str, ...] = field(metadata={"stored": "numbers"})
    level_names: dict[str, tuple[str, ...]] = field(metadata={"stored": "levels"})
    sites: tuple[str, ...]
    n: IntArray
    known: FloatArray
    mean: FloatArray
    square: FloatArray
    counts: dict[str, FloatArray]
    edges: dict[str, FloatArray]
    bin_counts: dict[str, FloatArray] = field(metadata={"stored": "bins"})
    pairs: tuple[tuple[str, str], ...]
    tables: tuple[FloatArray, ...]
    shares: tuple[float, ...]
    curves: tuple[tuple[str, ...], ...] = ()
    ended: tuple[FloatArray, ...] = ()

    # --- figures by site, and over all of them

    @property
    def sd(self) -> FloatArray:
        """Standard deviations by site, denominator n - 1, (s, q)."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.sqrt(self.square / np.maximum(self.known - 1, 1)))

    def moments(self, column: str) -> tuple[float, float, float]:
        """Rows with a value, mean and standard deviation over the sites that tell the column."""
        j = self._number(column)
        rows, mean, square = pooled(self.known[:, j], self.mean[:, j], self.square[:, j])
        return rows, mean, float(np.sqrt(square / max(rows - 1, 1)))

    def level_counts(self, column: str) -> tuple[FloatArray, float]:
        """Rows of each level, (L,), and of all with a value, over the sites that tell all levels.

        NaN where no site does. Over other sites for each level, shares would not add up to one.
        """
        told = self.telling(column)
        if not told.any():
            return np.full(len(self.level_names[column]), np.nan), float("nan")
        return self.counts[column][told, :-1].sum(axis=0), float(
            self._rows_with(column)[told].sum()
        )

    def telling(self, column: str) -> BoolArray:
        """Which sites tell a column, a category with all its levels, (s,)."""
        if column in self.level_names:
            return np.asarray(~np.isnan(self.counts[column]).any(axis=1))
        return np.asarray(~np.isnan(self.mean[:, self._number(column)]))

    def _rows_with(self, column: str) -> FloatArray:
        """Rows with a value of a category by site; NaN where that does not follow."""
        return np.asarray(self.n - self.counts[column][:, -1])

    def missing(self, column: str) -> FloatArray:
        """Rows without a value by site; 0 also where they are few, NaN where withheld."""
        if column in self.level_names:
            return np.asarray(self.counts[column][:, -1])
        return np.asarray(self.n - self.known[:, self._number(column)])

    def quantile(self, column: str, share: float, site: str | None = None) -> Quantile:
        """Where a quantile lies, as far as the bins say it.

        Parameters
        ----------
        column : str
            A number.
        share : float
            In (0, 1).
        site : str, optional
            Over all sites that tell bins unless given.

        Returns
        -------
        Quantile
            From `low` up to, but not at, `high`; `value` is linear in between. NaN without bins.

        Raises
        ------
        ParameterError
            An unknown column or site, or a share that is none.
        """
        self._number(column)
        if site is not None and site not in self.sites:
            raise ParameterError.of("site", f"one of {', '.join(self.sites)}", site)
        if not 0 < share < 1:
            raise ParameterError.of("share", "a number above 0 and below 1", share)
        lines = self.bin_counts.get(column, np.empty((0, 0)))
        chosen = [
            line
            for name, line in zip(self.sites, lines, strict=False)
            if site in (None, name) and not np.isnan(line).all()
        ]
        return quantile(self.edges[column], chosen, share)

    def _number(self, column: str) -> int:
        if column not in self.number_names:
            raise ParameterError.of("column", f"one of {', '.join(self.number_names)}", column)
        return self.number_names.index(column)

    @property
    def masked(self) -> bool:
        """Whether sums were masked: all sites are then one, `sites` its name."""
        return self.sites == (ALL,)

    @property
    def _apart(self) -> tuple[str, ...]:
        """Sites of which something is known beside all of them."""
        return () if self.masked else self.sites

    @cached_property
    def difference_matrices(self) -> FloatArray:
        """Standardised differences between sites, (columns, s, s); NaN where one does not tell."""
        s = len(self.sites)
        found = np.full((len(self.columns), s, s), np.nan)
        variance = self.sd**2
        for i, column in enumerate(self.columns):
            if column in self.level_names:
                counts = self.counts[column][:, :-1]
                for a, b in itertools.product(range(s), repeat=2):
                    pair = counts[[a, b]]
                    if not np.isnan(pair).any() and (pair.sum(axis=1) > 0).all():
                        p, q = pair / pair.sum(axis=1, keepdims=True)
                        found[i, a, b] = difference_of_shares(p, q)
                continue
            j = self.number_names.index(column)
            mean, v = self.mean[:, j], variance[:, j]
            found[i] = difference_of_means(mean[:, None], v[:, None], mean, v)
        return found

    def largest(self, column: str) -> tuple[float, str, str]:
        """Largest standardised difference of a column between two sites, and these; NaN if none."""
        sizes = np.abs(self.difference_matrices[self.columns.index(column)])
        sizes = np.where(np.triu(np.ones_like(sizes), 1) > 0, sizes, np.nan)
        if np.isnan(sizes).all():
            return float("nan"), "", ""
        a, b = np.unravel_index(int(np.nanargmax(sizes)), sizes.shape)
        return float(sizes[a, b]), self.sites[a], self.sites[b]

    def sites_test(self, column: str) -> tuple[str, float, float]:
        """Test whether sites differ in a column: name, statistic and p-value.

        The F test of equal means, or Pearson's chi-square test of levels by site, over the sites
        that tell the column. NaN where fewer than two tell it.
        """
        if column in self.level_names:
            counts = self.counts[column][:, :-1]
            told = counts[~np.isnan(counts).any(axis=1)]
            test = pearson(told)
            name, statistic, p = "chi-square", test.statistic, test.p_value
        else:
            j = self._number(column)
            told = self.mean[~np.isnan(self.mean[:, j]), j]
            found = equal_means(self.known[:, j], self.mean[:, j], self.square[:, j])
            name, statistic, p = "F", found.statistic, found.p_value
        return (name, statistic, p) if len(told) > 1 else (name, float("nan"), float("nan"))

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """Columns in which sites differ, the largest difference first.

        Two sites are more than 0.1 standard deviations apart, and the test of all sites is
        significant at 5% among those of all columns (Holm, 1979).
        """
        p = np.array([self.sites_test(name)[2] for name in self.columns])
        adjusted = np.full(len(p), np.nan)
        adjusted[~np.isnan(p)] = holm(p[~np.isnan(p)])
        sizes = [self.largest(name)[0] for name in self.columns]
        found = [
            (-size, i)
            for i, (size, p) in enumerate(zip(sizes, adjusted, strict=True))
            if size > NOTABLE and p < SIGNIFICANT
        ]
        return tuple(self.columns[i] for _, i in sorted(found))

    def pair_tests(self, pair: int) -> tuple[FloatArray, ChiSquareTest, ChiSquareTest, float]:
        """Pooled table of a pair over the sites that tell it, without missing values, and tests.

        Returns
        -------
        table : (r, c) array
        pooled, within : ChiSquareTest
            Of the pooled table, and with sites as strata (no degrees of freedom where sums were
            masked).
        cramers_v : float
        """
        tables = self.tables[pair]
        told = tables[~np.isnan(tables).any(axis=(1, 2))][:, :-1, :-1]
        table = np.asarray(told.sum(axis=0))
        strata = told[:0] if self.masked else told
        return table, pearson(table), within_strata(strata), cramers_v(table)

    # --- times until an event

    @property
    def _of_curves(self) -> set[str]:
        return {name for time, event, *_ in self.curves for name in (time, event)}

    def groups(self, curve: int) -> tuple[str, ...]:
        """Levels that a curve compares; one empty name without groups."""
        _, _, *by = self.curves[curve]
        return self.level_names[by[0]] if by else ("",)

    def curve(self, curve: int, group: str | None = None, site: str | None = None) -> Curve:
        """Share of the rows without an event before each time, with its limits.

        Parameters
        ----------
        curve : int
            Place in `curves`.
        group : str, optional
            Of all groups unless given.
        site : str, optional
            Over all sites that tell the curve unless given.

        Raises
        ------
        ParameterError
            An unknown group or site.
        """
        groups = self.groups(curve)
        if group is not None and group not in groups:
            raise ParameterError.of("group", f"one of {', '.join(groups)}", group)
        if site is not None and site not in self.sites:
            raise ParameterError.of("site", f"one of {', '.join(self.sites)}", site)
        edges = self.edges[self.curves[curve][0]]
        told = [
            pair
            for name, pairs in zip(self.sites, self._pairs(curve), strict=True)
            for of, pair in zip(groups, pairs or (), strict=False)
            if site in (None, name) and group in (None, of)
        ]
        return life_table(edges[edges > 0], told)

    def _pairs(self, curve: int) -> list[list[Pair] | None]:
        edges = self.edges[self.curves[curve][0]]
        return pairs_of(edges, self.ended[curve])

    def curve_tests(self, curve: int) -> dict[str, LogRank]:
        """Log-rank tests of groups, "pooled" and "within sites", and of "sites" within groups."""
        told = [pairs for pairs in self._pairs(curve) if pairs is not None]
        found = {}
        if len(self.groups(curve)) > 1:
            found["pooled"] = pooled_log_rank(told)
            found["within sites"] = log_rank_within(told)
        if len(self.sites) > 1:
            found["sites"] = log_rank_of_sites(told)
        return found

    # --- what it leads to

    def _unusable(self, name: str) -> tuple[str, ...]:
        """Sites that withhold a column, or lack most of its values."""
        short = ~self.telling(name) | (self.missing(name) > MOST_MISSING * self.n)
        return tuple(site for site, few in zip(self.sites, short, strict=True) if few)

    def _is_binary(self, name: str) -> bool:
        """Whether a number is 0 or 1 at all sites: its variance is then that of a share."""
        j = self._number(name)
        mean = self.mean[:, j]
        inside = ((mean >= 0) & (mean <= 1)).all() and (self.known[:, j] > 0).all()
        spread = self.square[:, j] / np.maximum(self.known[:, j], 1)
        return bool(inside and np.allclose(spread, mean * (1 - mean), rtol=1e-9, atol=1e-12))

    def next_studies(self, asked: Asked) -> Led:
        """Whom, then one regression; without a response, subtypes. Only of columns of all sites."""
        short = {name: self._unusable(name) for name in self.columns}
        left_out = [f"{name} ({', '.join(at)})" for name, at in short.items() if at]
        if left_out:
            yield (
                f"Left out, since a site withholds it or lacks most of its values: "
                f"{', '.join(left_out)}."
            )
        response = asked.response
        if response and short.get(response):
            yield f"So {response} is no response over these sites: name another one."
            return
        features = tuple(n for n in self.columns if n != response and not short[n])
        known = {k: v for k, v in self.level_names.items() if k in (*features, response)}
        columns = dataclasses.replace(asked.columns, features=features, levels=known)
        usable = dataclasses.replace(asked, columns=columns)
        differ = [name for name in self.differing if name in features]
        if not response:
            yield (
                "No column is the response. Name one (--target COLUMN), and studies of what "
                "explains it are proposed."
            )
            yield from subtypes(usable, self._alike(differ, features))
            return
        if not features:
            yield "No other column is there at all sites: there is nothing to explain it by."
            return
        family = "binomial" if response in known or self._is_binary(response) else "gaussian"
        parameters: dict[str, Any] = {"family": family} if family == "binomial" else {}
        times = [time for time, event, *_ in self.curves if event == response and time in features]
        if times:
            # In a Cox regression each site has a hazard of its own.
            parameters = {"family": "cox", "time": times[0], "site_effects": False}
        if len(self.sites) > 1 and not times:
            yield NextStudy(
                method="meta-clustering",
                why=f"{self._alike(differ, features)} Whether they share one relationship between "
                f"these columns and {response} is asked before all rows are fitted together.",
                features=features,
            )
        why = (
            "One regression over all rows, within sites, and a test whether sites differ in it."
            if len(self.sites) > 1
            else "One regression over the rows."
        )
        yield from regression(usable, why, features=features, parameters=parameters)

    def _alike(self, differ: Sequence[str], features: Sequence[str]) -> str:
        if len(self.sites) < 2:
            return "Sites are not told apart." if self.masked else "There is one site."
        if not differ:
            return "In none of these columns do sites clearly differ."
        size, a, b = self.largest(differ[0])
        return (
            f"Sites differ in {len(differ)} of {len(features)} of these columns, most in "
            f"{differ[0]} ({a} and {b} by {size:.2f} standard deviations)."
        )

    # --- words

    def withheld(self) -> Iterator[str]:
        """Sentences on what sites withhold."""
        for j, name in enumerate(self.number_names):
            hidden = np.isnan(self.mean[:, j])
            counts = self.bin_counts.get(name)
            bare = hidden if counts is None else np.isnan(counts).all(axis=1)
            if hidden.any():
                yield f"Column {name} is withheld by {self._named(hidden)}: too few rows differ."
            without = np.asarray(bare & ~hidden)
            # Of a time its curve is told instead, and an event has two values.
            if without.any() and name not in self._of_curves:
                yield f"No bins of {name} are told by {self._named(without)}."
        for name in (column for column in self.columns if column in self.counts):
            few = np.isnan(self.counts[name]).any(axis=1)
            if few.any():
                yield f"Some levels of {name}, or all, are withheld by {self._named(few)}."
        for (a, b), tables in zip(self.pairs, self.tables, strict=True):
            stays = np.isnan(tables).any(axis=(1, 2))
            if stays.any():
                yield f"The table of {a} and {b} is withheld by {self._named(stays)}."
        for names, ended in zip(self.curves, self.ended, strict=True):
            stays = np.isnan(ended).all(axis=(1, 2, 3))
            if stays.any():
                time, event, *by = names
                grouped = ", in some group, or groups are not granted (foreign_models)"
                yield (
                    f"The curve of {' and '.join(names)} is withheld by {self._named(stays)}: bins "
                    f"or another curve of {time} were told in an earlier run, or too few rows have "
                    f"{event} or lack it{grouped if by else ''}."
                )

    def _named(self, chosen: Any) -> str:
        return "some sites" if self.masked else ", ".join(np.array(self.sites)[chosen])

    def summary(self) -> str:
        """Say how many rows there are and where sites differ most."""
        where = ALL if self.masked else f"{len(self.sites)} sites ({', '.join(self.sites)})"
        parts = [
            f"{int(self.n.sum()):,} rows of {where}, "
            f"{_several(len(self.number_names), 'number')} and "
            f"{_several(len(self.level_names), 'category')}."
        ]
        if self.differing:
            name = self.differing[0]
            size, a, b = self.largest(name)
            # What fewer than two sites tell is compared with nothing.
            compared = sum(bool(np.isfinite(self.largest(each)[0])) for each in self.columns)
            parts.append(
                f"Sites differ in {len(self.differing)} of {compared} columns, most in "
                f"{name}: {a} and {b} by {size:.2f} standard deviations."
            )
        elif len(self.sites) > 1:
            parts.append("In no column do sites clearly differ.")
        for i, (a, b) in enumerate(self.pairs):
            _, test, within, v = self.pair_tests(i)
            if test.df:
                parts.append(
                    f"{a} and {b}: chi-square {test.statistic:.4g} on {test.df} df "
                    f"(p = {test.p_value:.3g}), Cramér's V {v:.3g}"
                    + ("." if self.masked else f"; within sites p = {within.p_value:.3g}.")
                )
        for i in range(len(self.curves)):
            parts += self.said_of_curve(i)
        if any(True for _ in self.withheld()):
            parts.append("Something is withheld: the notes say what.")
        return " ".join(parts)

    def said_of_curve(self, curve: int) -> Iterator[str]:
        """Sentences on medians, and on the test of the groups within sites."""
        time, event, *by = self.curves[curve]
        for group in self.groups(curve):
            line = self.curve(curve, group)
            middle, of = line.median(), f", {by[0]} {group}" if by else ""
            bounds = (
                f"between {middle.low:g} and {middle.high:g}"
                if np.isfinite(middle.high)
                else f"above {middle.low:g}"
            )
            if np.isfinite(middle.value):
                yield f"Median {time} until {event}{of}: {middle.value:.4g} ({bounds})."
            elif np.isfinite(line.share).any():
                last = line.at[np.isfinite(line.share)][-1]
                yield (
                    f"Median {time} until {event}{of}: not reached by {last:g}, the last time that "
                    f"is told ({bounds})."
                )
        tests = self.curve_tests(curve)
        if by and tests["within sites"].df:
            test = tests["within sites"]
            yield (
                f"Log-rank test of {by[0]} within sites: chi-square {test.statistic:.4g} on "
                f"{test.df} df (p = {test.p_value:.3g})."
            )

    # --- tables

    @Frame
    def table_one(self) -> pd.DataFrame:
        """Table 1, as text: a line for each column and each level."""
        return of_records(self._table_one(), "")

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """Return Table 1, or a tidy table of what is behind it.

        Parameters
        ----------
        table : str, optional
            One of `frames`; also "table" for Table 1 and "sites" for `site_tests`.

        Raises
        ------
        ParameterError
            Another table.
        """
        return super().to_frame(_FORMER.get(table or "", table))

    def to_text(self) -> str:
        """Return Table 1 as text."""
        return str(self.to_frame().to_string()) + "\n" + FOOTNOTE

    def to_csv(self) -> str:
        """Return Table 1 as comma-separated values."""
        return to_csv(self.to_frame())

    def to_html(self) -> str:
        """Return Table 1 as an HTML table."""
        # pandas strips the blanks that it escapes.
        frame = self.to_frame().rename_axis(None).map(escape).rename(columns=escape)
        frame.index = frame.index.map(lambda n: escape(indented(n)).replace(EM_SPACE, "&emsp;"))
        return str(frame.to_html(escape=False, border=0))

    def to_latex(self) -> str:
        """Return Table 1 as a LaTeX table, for the package booktabs."""
        frame = self.to_frame()
        lines = [[*frame.columns], *frame.to_numpy().tolist()]
        heads = ["", *frame.index]
        rows = [
            " & ".join(_tex(cell) for cell in (head, *line)) + r" \\"
            for head, line in zip(heads, lines, strict=True)
        ]
        body = "\n".join([r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"])
        return (
            rf"\begin{{tabular}}{{l{'r' * len(frame.columns)}}}" + f"\n{body}\n" + r"\end{tabular}"
        )

    def _table_one(self) -> Iterator[dict[str, str]]:
        several = len(self.sites) > 1
        heads = (ALL, *self.sites)

        def line(name: str, cells: list[str], column: str = "") -> dict[str, str]:
            found = {"": name, **dict(zip(heads, cells, strict=True))}
            if several:
                found["difference"] = _decimals(self.largest(column)[0]) if column else ""
                found["p"] = _p(self.sites_test(column)[2]) if column else ""
            return found

        yield line("rows", [f"{int(n):,}" for n in (self.n.sum(), *self.n)])
        for name in self.columns:
            if name in self.level_names:
                counts, known = self.level_counts(name)
                over = self._over(self.telling(name)).removeprefix(", ")
                yield line(f"{name}, n (%)", [over, *[""] * len(self.sites)], name)
                by_site = self._rows_with(name)
                for k, level in enumerate(self.level_names[name]):
                    cells = [_part(counts[k], known)]
                    cells += [
                        _part(c, m) for c, m in zip(self.counts[name][:, k], by_site, strict=True)
                    ]
                    yield line(f"  {level}", cells)
            else:
                cells = [self._spread(name, s) for s in (None, *self.sites)]
                yield line(f"{name}, mean (SD)", cells, name)
                bins = self.bin_counts.get(name, np.full((1, 2), np.nan))
                if name in self.bin_counts and not (
                    name in self._of_curves and np.isnan(bins[:, 1:]).all()
                ):
                    yield line(
                        "  median [quartiles]", [self._middle(name, s) for s in (None, *self.sites)]
                    )
            missing = self.missing(name)
            if np.nansum(missing) > 0:
                told = ~np.isnan(missing)
                cells = [_part(missing[told].sum(), float(self.n[told].sum())) + self._over(told)]
                cells += [
                    _part(m, n) if m else "none or few"
                    for m, n in zip(missing, self.n, strict=True)
                ]
                rare = " or rare" if name in self.level_names else ""
                yield line(f"  missing{rare}, n (%)", cells)

    def _spread(self, name: str, site: str | None) -> str:
        mean, sd, places = self._written(name, site)
        if np.isnan(mean):
            return "withheld"
        found = f"{_fixed(mean, places)} ({_fixed(sd, places)})"
        return found if site else found + self._over(self.telling(name))

    def _middle(self, name: str, site: str | None) -> str:
        quantiles = [self.quantile(name, q, site) for q in (0.5, 0.25, 0.75)]
        if any(np.isnan(q.value) for q in quantiles):
            bare = np.isnan(self.bin_counts[name]).all(axis=1)
            return "not known" if site is None and not bare.all() else "withheld"
        places = self._written(name, site)[2]
        middle, low, high = (_guess(q, places) for q in quantiles)
        found = f"{middle} [{low}; {high}]"
        return (
            found
            if site
            else found + self._over(~np.asarray(np.isnan(self.bin_counts[name]).all(axis=1)))
        )

    def _written(self, name: str, site: str | None) -> tuple[float, float, int]:
        """Mean and standard deviation, and decimals for figures in the column's units."""
        _, mean, pooled_sd = self.moments(name)
        sd = pooled_sd
        if site is not None:
            place = self.sites.index(site), self._number(name)
            mean, sd = float(self.mean[place]), float(self.sd[place])
        return mean, sd, 0 if np.isnan(mean) else _places(mean, sd, pooled_sd)

    def _over(self, told: BoolArray) -> str:
        """Of how many sites a pooled figure is, where some withhold it."""
        some = 0 < told.sum() < len(told)
        return f", {told.sum()} of {len(told)} sites" if some else ""

    @_tidy("column, site, rows, missing, mean, sd")
    def numbers(self) -> Iterator[tuple[Any, ...]]:
        """Rows, missing values, mean and standard deviation of a number at a site."""
        for j, name in enumerate(self.number_names):
            n = self.n[~np.isnan(self.mean[:, j])].sum()
            of_sites = zip(self.n, self.known[:, j], self.mean[:, j], self.sd[:, j], strict=True)
            values = [(n, *self.moments(name)), *of_sites]
            for site, (n, known, mean, sd) in zip((ALL, *self._apart), values, strict=False):
                # Where no site tells a column there are no rows of it, and nothing is known of
                # missing values.
                rows = (np.nan, np.nan) if np.isnan(mean) else (int(n), int(n) - known)
                yield name, site, *rows, mean, sd

    @_tidy("column, level, site, rows, share")
    def levels(self) -> Iterator[tuple[Any, ...]]:
        """Rows and share of a level of a category at a site; its missing values have none."""
        # A result that was read back has another order.
        for name in (column for column in self.columns if column in self.level_names):
            levels = self.level_names[name]
            counts, known = self.level_counts(name)
            by_site, missing = self._rows_with(name), self.missing(name)
            told = ~np.isnan(missing)
            lacking = missing[told].sum() if told.any() else np.nan
            pooled_values = [(rows, known) for rows in counts]
            pooled_values.append((lacking, float(self.n[told].sum())))
            for k, level in enumerate((*levels, None)):
                own = self.n if level is None else by_site
                values = [pooled_values[k], *zip(self.counts[name][:, k], own, strict=True)]
                for site, (rows, of) in zip((ALL, *self._apart), values, strict=False):
                    yield name, level, site, rows, rows / of if of > 0 else np.nan

    @_tidy(f"column, site, share, {', '.join(Quantile._fields)}")
    def quantiles(self) -> Iterator[tuple[Any, ...]]:
        """A quantile of a number at a site, and the bin in which it lies."""
        sites = (None, *self._apart)
        for name, share, site in itertools.product(self.number_names, self.shares, sites):
            yield name, site or ALL, share, *self.quantile(name, share, site)

    @_tidy("column, site, from, to, rows")
    def bins(self) -> Iterator[tuple[Any, ...]]:
        """Rows of a bin of a number at a site."""
        for name in (column for column in self.columns if column in self.bin_counts):
            ends = np.concatenate([[-np.inf], self.edges[name], [np.inf]])
            for site, line in zip(self.sites, self.bin_counts[name], strict=True):
                heads = np.flatnonzero(~np.isnan(line))
                for start, end in zip(heads, [*heads[1:], len(line)], strict=len(heads) > 0):
                    yield name, site, ends[start], ends[end], int(line[start])

    @_tidy("column, test, statistic, p_value, largest difference, site, other, differs")
    def site_tests(self) -> Iterator[tuple[Any, ...]]:
        """Whether sites differ in a column: test, and largest difference."""
        for name in self.columns:
            yield name, *self.sites_test(name), *self.largest(name), name in self.differing

    @_tidy("column, site, other, difference")
    def differences(self) -> Iterator[tuple[Any, ...]]:
        """Standardised difference of a column between two sites."""
        for name, matrix in zip(self.columns, self.difference_matrices, strict=True):
            for a, b in itertools.combinations(range(len(self.sites)), 2):
                yield name, self.sites[a], self.sites[b], matrix[a, b]

    @_tidy("first, level, second, other level, site, rows")
    def cells(self) -> Iterator[tuple[Any, ...]]:
        """Rows of a site with one level of a category and one of another."""
        for (a, b), tables in zip(self.pairs, self.tables, strict=True):
            axes = ((*self.level_names[a], None), (*self.level_names[b], None))
            for site, table in zip(self.sites, tables, strict=True):
                for (i, first), (j, second) in itertools.product(*map(enumerate, axes)):
                    yield a, first, b, second, site, table[i, j]

    @_tidy("first, second, test, rows, statistic, df, p_value, Cramér's V")
    def tests(self) -> Iterator[tuple[Any, ...]]:
        """Tests of a pair of categories, pooled and within sites."""
        for i, pair in enumerate(self.pairs):
            table, *tests, v = self.pair_tests(i)
            told = not np.isnan(self.tables[i]).any(axis=(1, 2)).all()
            for name, test in zip(("pooled", "within sites"), tests, strict=True):
                rows: float = int(table.sum())
                size, p = test.statistic, test.p_value
                if not told:
                    rows = size = p = np.nan
                yield *pair, name, rows, size, test.df, p, v if name == "pooled" else np.nan

    @_tidy(f"time, event, group, site, {', '.join(Curve._fields)}")
    def survival(self) -> Iterator[tuple[Any, ...]]:
        """Share of a group, and of all people, without an event before a time, by site."""
        for i, (time, event, *_) in enumerate(self.curves):
            groups = self.groups(i) if self.groups(i) == ("",) else (*self.groups(i), None)
            for group, site in itertools.product(groups, (None, *self.sites)):
                for values in zip(*self.curve(i, group, site), strict=True):
                    yield time, event, group or "", site or ALL, *map(float, values)

    @_tidy("time, event, groups, test, events, statistic, df, p_value")
    def log_rank(self) -> Iterator[tuple[Any, ...]]:
        """Log-rank tests of a curve's groups, pooled and within sites, and of its sites."""
        for i, (time, event, *by) in enumerate(self.curves):
            for name, test in self.curve_tests(i).items():
                events, by_name = float(test.observed.sum()), by[0] if by else ""
                yield time, event, by_name, name, events, test.statistic, test.df, test.p_value


FOOTNOTE = """\
Where sites withhold a column, or a level of it, pooled figures are over the other sites, whose
number is given. Medians and quartiles are known within a bin only. Fewer missing values than a
site may tell of count as none. Difference: in standard deviations, between the two sites that
differ most. p: whether all sites are alike in the column (F test, or chi-square test), not
adjusted."""


def _several(n: int, one: str) -> str:
    return (
        f"{n} {one}"
        if n == 1
        else f"{n} {one.removesuffix('y')}{'ies' if one.endswith('y') else 's'}"
    )


def _decimals(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def _p(value: float) -> str:
    return "" if np.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def indented(name: str) -> str:
    """Name of a line of Table 1 that stays indented where HTML drops blanks."""
    return EM_SPACE + name[2:] if name.startswith("  ") else name


def _places(mean: float, sd: float, pooled_sd: float) -> int:
    """Decimals that show three digits of the pooled standard deviation, and two of the own one."""
    sizes = [(2, pooled_sd), (1, sd)] if sd > 0 or pooled_sd > 0 else [(2, abs(mean))]
    # Powers of ten as they are printed: .9999 of a sum that is 1 but for rounding is 1.
    powers = [(digits, int(f"{size:.2e}".partition("e")[2])) for digits, size in sizes if size > 0]
    return max([0, *(digits - power for digits, power in powers)])


def _fixed(value: float, places: int) -> str:
    # With so many digits nobody can read it.
    unusual = places > 9 or abs(value) >= 1e15
    found = f"{value:.4g}" if unusual else f"{value:z,.{places}f}"
    return found.replace("-", "\N{MINUS SIGN}")


def _part(rows: float, of: float) -> str:
    if np.isnan(rows) or not of:
        return "withheld"
    return f"{int(rows):,}" if np.isnan(of) else f"{int(rows):,} ({100 * rows / of:.1f})"


def _guess(found: Quantile, places: int) -> str:
    sign = (
        "<"
        if np.isinf(found.low)
        else "\N{GREATER-THAN OR EQUAL TO}"
        if np.isinf(found.high)
        else ""
    )
    return f"{sign}{_fixed(found.value, places)}"


_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_TEX |= {"<": "$<$", ">": "$>$", "|": "$|$", '"': r"\textquotedblright{}"}
_TEX |= {"\N{GREATER-THAN OR EQUAL TO}": r"$\geq$", "\N{MINUS SIGN}": "$-$"}


def _tex(text: str) -> str:
    """Text that LaTeX prints as it is; indented lines stay so."""
    plain = text.lstrip(" ")
    return r"\quad " * (plain != text) + "".join(_TEX.get(sign, sign) for sign in plain)
