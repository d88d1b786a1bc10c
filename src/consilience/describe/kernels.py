"""Bins that may be told, quantiles that follow from them, and differences between sites.

Arrays in, arrays out. Sources: Hyndman and Fan, The American Statistician 50 (1996), for quantiles
(their first definition: the smallest value with a share p of the rows at or below it); Austin,
Statistics in Medicine 28 (2009), and Yang and Dalton, SAS Global Forum 335 (2012), for standardised
differences.

Curves of times until an event, and log-rank tests, from numbers of people by interval.

A cell has the people of one site and one group whom an event ended, or whom none did. Its bins say
how many times lie from one edge to the next; a gap joins the bin before it. Arrays in, arrays out.

Sources: Kaplan and Meier, Journal of the American Statistical Association 53 (1958); Cutler and
Ederer, Journal of Chronic Diseases 8 (1958), for those last seen within an interval; Greenwood
(1926) for the error; Mantel, Cancer Chemotherapy Reports 50 (1966), and Peto and Peto, Journal of
the Royal Statistical Society A 135 (1972), for the log-rank test.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from consilience.arrays import BoolArray, FloatArray, IntArray

SPACING = 0.1
"""Least distance of two edges, in standard deviations of a site's column."""
_REACH = 3.0
"""Standard deviations on either side of the mean over which edges are laid."""
_STEPS = (1.0, 2.0, 5.0, 10.0)


def default_edges(mean: float, sd: float) -> FloatArray:
    """Edges at round numbers: 1, 2 or 5 times a power of ten apart, at least a quarter of `sd`.

    They reach three standard deviations to either side of the mean; none where `sd` is 0.
    """
    if not (np.isfinite(mean) and np.isfinite(sd) and sd > 1e-9 * max(abs(mean), 1e-290)):
        return np.empty(0)
    power = np.floor(np.log10(sd / 4))
    step = next(f for f in _STEPS if f * 10.0**power >= sd / 4 * (1 - 1e-12)) * 10.0**power
    first, last = np.ceil((mean - _REACH * sd) / step), np.floor((mean + _REACH * sd) / step)
    # Multiples of 1 / step, where that is whole, are the decimals that one would write.
    whole = np.arange(first, last + 1)
    edges = whole / np.rint(1 / step) if step < 1 else whole * step
    return np.asarray(edges, dtype=float)


# --------------------------------------------------------------------------- bins that may be told


def common_gaps(
    missing: BoolArray, least: int, told: Sequence[BoolArray] = (), before: Sequence[int] = ()
) -> BoolArray:
    """Rows that count as without a value, column by column, (n, v).

    Columns that lack a value in the same rows, but for fewer than `least`, count as lacking it in
    all rows in which one of them does: otherwise two numbers of missing values would tell of few.
    Fewer than `least` missing values of a column count as none. What was told before stays as it
    was, whatever other columns are asked for now.

    Parameters
    ----------
    missing : (n, v) bool array
    least : int
    told : sequence of (n,) bool arrays
        Rows that counted as without a value of some column in earlier runs.
    before : sequence of int, optional
        Place in `told` of the rows of each column; -1 of one that was never told.
    """
    found = missing & (missing.sum(axis=0) >= least)
    fixed = np.full(found.shape[1], -1)
    for j, place in enumerate(before):
        if place >= 0:
            found[:, j], fixed[j] = told[place], place
    joined = True
    while joined:
        joined = False
        for j in np.flatnonzero((fixed < 0) & found.any(axis=0)).tolist():
            near = [k for k, rows in enumerate(told) if (rows ^ found[:, j]).sum() < least]
            if near:
                found[:, j], fixed[j] = told[near[0]], near[0]
        free = np.flatnonzero((fixed < 0) & found.any(axis=0))
        for j, i in itertools.combinations(free.tolist(), 2):
            apart = int((found[:, i] ^ found[:, j]).sum())
            if 0 < apart < least:
                found[:, i] = found[:, j] = found[:, i] | found[:, j]
                joined = True
    return found


class _Counted(NamedTuple):
    """Different values of a column, ascending, with their numbers of rows."""

    values: FloatArray
    times: IntArray

    def between(self, low: float, high: float) -> IntArray:
        """Numbers of rows of the values v with low <= v < high."""
        places = np.searchsorted(self.values, (low, high), side="left")
        return self.times[places[0] : places[1]]


def usual(times: IntArray) -> int:
    """Rows that have one of the two values that most rows have."""
    return int(np.sort(times)[-2:].sum())


def cuts_to_tell(
    x: FloatArray,
    candidates: FloatArray,
    *,
    least: int,
    max_share: float,
    told: Iterable[float] = (),
    most: int = 1 << 30,
) -> list[float]:
    """Edges at which a site may say how many rows are below, beside its mean and mean square.

    All edges that were ever told of these rows count. Between any two neighbours are at least
    `least` rows. And at least `least` rows have none of the two most frequent values of their bin:
    then whatever combines 1, x, x^2 and bins differs from 0 in `least` rows or more
    (docs/proofs/described-columns.md). Nor has one row more than `max_share` of what x, or x^2,
    adds up to about the means, or medians, of the bins.

    Parameters
    ----------
    x : (n,) array
        Values that are there.
    candidates : (c,) array
        In the order in which they are tried.
    least : int
    max_share : float
    told : iterable of float
        Edges that were told before.
    most : int
        Edges that may be told in all.

    Returns
    -------
    list of float
        Ascending, with those of `told`.
    """
    values, times = np.unique(x, return_counts=True)
    counted = _Counted(values, times)
    cuts = sorted({float(c) for c in told})
    ends = [-np.inf, *cuts, np.inf]
    rare = len(x) - sum(usual(counted.between(a, b)) for a, b in itertools.pairwise(ends))
    new = [float(c) for c in candidates if float(c) not in cuts]
    added = []
    for cut in new:
        place = int(np.searchsorted(ends, cut))
        parts = counted.between(ends[place - 1], cut), counted.between(cut, ends[place])
        if min(int(part.sum()) for part in parts) < least:
            continue
        lost = usual(parts[0]) + usual(parts[1]) - usual(np.concatenate(parts))
        if rare - lost < least:
            continue
        ends.insert(place, cut)
        rare -= lost
        added.append(cut)
    room = max(most - len(cuts), 0)
    if len(added) > room:  # evenly, of those that may be told: bins only grow
        places = ((np.arange(room) + 0.5) * len(added) / max(room, 1)).astype(int)
        added = [added[place] for place in places]
    found = sorted([*cuts, *added])
    while added:
        ruled = _ruled_bin(x, np.repeat(values, times), found, max_share)
        if ruled is None:
            break
        # The bin grows until others in it differ as much; edges told before stay.
        near = [cut for cut in found[max(ruled - 1, 0) : ruled + 1] if cut in added] or added[-1:]
        found.remove(near[0])
        added.remove(near[0])
    return found


def common_first(groups: Sequence[FloatArray], candidates: FloatArray, least: int) -> FloatArray:
    """Candidates, first those between which each group has `least` values, ascending.

    Groups are compared between edges that all of them tell: if each chose its own, few would be.
    """
    ordered = [np.sort(values) for values in groups]
    shared, last = [], np.zeros(len(groups), dtype=int)
    for cut in candidates.tolist():
        below = np.array([np.searchsorted(values, cut) for values in ordered])
        left = np.array([len(values) for values in ordered]) - below
        if min((below - last).min(), left.min()) >= least:
            shared.append(cut)
            last = below
    return np.array([*shared, *(cut for cut in candidates.tolist() if cut not in shared)])


def _ruled_bin(
    x: FloatArray, ascending: FloatArray, cuts: Sequence[float], max_share: float
) -> int | None:
    """Bin of a row that has too much of what x, or x^2, sum to about a constant for each bin."""
    of = np.searchsorted(cuts, x, side="right")
    sizes = np.bincount(of, minlength=len(cuts) + 1)
    middle = ascending[np.minimum(np.cumsum(sizes) - sizes + sizes // 2, len(x) - 1)]
    for about in (None, x.mean(), ascending[len(x) // 2]):
        f, at_middle = ((v if about is None else (v - about) ** 2) for v in (x, middle))
        means = np.bincount(of, f, minlength=len(sizes)) / np.maximum(sizes, 1)
        for centre in (means, at_middle):
            away = centre[of]
            np.abs(np.subtract(f, away, out=away), out=away)
            largest = int(away.argmax())
            if not away[largest] <= max_share * away.sum():
                return int(of[largest])
    return None


# --------------------------------------------------------------------------- quantiles


class Quantile(NamedTuple):
    """Where a quantile lies: from `low` up to, but not at, `high`; `value` is a guess between."""

    value: float
    low: float
    high: float


def below(edges: FloatArray, bins: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Edges that a site tells, and its rows below each, from counts with gaps.

    Parameters
    ----------
    edges : (e,) array
    bins : (e + 1,) array
        Rows from one edge to the next; a gap joins the bin before it.

    Returns
    -------
    cuts, rows : (k,) arrays
    """
    heads = np.flatnonzero(~np.isnan(bins))
    counts = np.cumsum(bins[heads])
    return edges[heads[1:] - 1], counts[:-1]


def quantile(edges: FloatArray, sites: Sequence[FloatArray], share: float) -> Quantile:
    """Bounds of a quantile of the rows of all sites, from what each tells at its own edges.

    With k the number of rows at or below the quantile, it is below an edge if at least k rows are,
    and at or above it if fewer are. Rows below an edge that a site does not tell lie between those
    below its neighbours.

    Parameters
    ----------
    edges : (e,) array
    sites : sequence of (e + 1,) arrays
        Counts with gaps; see `below`.
    share : float
        In (0, 1).

    Returns
    -------
    Quantile
        Infinite bounds where it lies in an outer bin. The guess is linear between edges; in an
        outer bin it is the edge.
    """
    if not len(sites) or not len(edges):
        return Quantile(np.nan, -np.inf, np.inf)
    n = float(sum(np.nansum(bins) for bins in sites))
    k = max(np.ceil(share * n - 1e-9), 1.0)
    fewest, most, middle = np.zeros(len(edges)), np.zeros(len(edges)), np.zeros(len(edges))
    for bins in sites:
        cuts, rows = below(edges, bins)
        total = np.nansum(bins)
        before = np.searchsorted(cuts, edges, side="right")
        after = np.searchsorted(cuts, edges, side="left")
        fewest += np.concatenate([[0.0], rows])[before]
        most += np.concatenate([rows, [total]])[after]
        middle += np.interp(edges, cuts, rows) if len(cuts) else total / 2
    over, under = np.flatnonzero(fewest >= k), np.flatnonzero(most < k)
    low = float(edges[under[-1]]) if len(under) else -np.inf
    high = float(edges[over[0]]) if len(over) else np.inf
    if np.isinf(low) and np.isinf(high):
        return Quantile(np.nan, low, high)
    if np.isinf(low) or np.isinf(high):
        return Quantile(high if np.isinf(low) else low, low, high)
    inside = (edges >= low) & (edges <= high)
    guess = float(np.interp(share * n, middle[inside], edges[inside]))
    return Quantile(min(max(guess, low), high), low, high)


# --------------------------------------------------------------------------- pooled moments


def pooled(n: FloatArray, mean: FloatArray, square: FloatArray) -> tuple[float, float, float]:
    """Rows, mean and sum of squares about it over sites; NaN where none tells.

    Parameters
    ----------
    n, mean, square : (s,) arrays
        Rows, mean, and sum of squares about the site's mean; NaN where one is withheld.
    """
    told = ~np.isnan(mean)
    if not told.any():
        return 0.0, np.nan, np.nan
    rows, means = n[told], mean[told]
    total = rows.sum()
    # About the mean of the sites' means first: digits are kept when means are large.
    about = means.mean()
    middle = float(about + (rows * (means - about)).sum() / total)
    return float(total), middle, float((square[told] + rows * (means - middle) ** 2).sum())


# --------------------------------------------------------------------------- differences


def difference_of_means(
    means: FloatArray, variances: FloatArray, other_means: FloatArray, other_variances: FloatArray
) -> FloatArray:
    """Return ``(m - m') / sqrt((v + v') / 2)`` (Austin, 2009); 0 where nothing differs."""
    away, spread = means - other_means, np.sqrt((variances + other_variances) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where((away == 0) & (spread == 0), 0.0, away / spread))


def difference_of_shares(shares: FloatArray, others: FloatArray) -> float:
    """Return ``sqrt(d' S^- d)`` for shares of the levels of a category (Yang and Dalton, 2012).

    d is the difference of the shares and S the mean of their multinomial covariances
    ``diag(p) - p p'``. Of two levels it is ``|p - q| / sqrt((p(1 - p) + q(1 - q)) / 2)``. Infinite
    where the shares differ in a direction in which neither varies.
    """
    away = shares - others
    covariances = [np.diag(p) - np.outer(p, p) for p in (shares, others)]
    values, vectors = np.linalg.eigh((covariances[0] + covariances[1]) / 2)
    parts, varies = (vectors.T @ away) ** 2, values > 1e-12
    # All shares add up to one: in that direction nothing differs.
    if (parts[~varies] > 1e-20).any():
        return float("inf")
    return float(np.sqrt((parts[varies] / values[varies]).sum()))


class FTest(NamedTuple):
    """Statistic, degrees of freedom above and below, and p-value of an F test."""

    statistic: float
    df: int
    df_within: int
    p_value: float


def equal_means(n: FloatArray, mean: FloatArray, square: FloatArray) -> FTest:
    """Test that groups have one mean: analysis of variance, one way (Fisher, 1925).

    Parameters
    ----------
    n, mean, square : (s,) arrays
        Rows, means and sums of squares about them; NaN where a group is withheld.

    Returns
    -------
    FTest
        Where nothing can be tested (one group): 0 and p-value 1. Without spread within groups:
        infinite and p-value 0 if their means differ, but for rounding; else 0 and 1.
    """
    told = ~np.isnan(mean)
    rows, _, total = pooled(n, mean, square)
    within = float(square[told].sum())
    above, under = int(told.sum()) - 1, int(rows) - int(told.sum())
    if above < 1 or under < 1:
        return FTest(0.0, max(above, 0), max(under, 0), 1.0)
    rounding = rows * (1e-14 * np.abs(mean[told]).max()) ** 2
    if not within > rounding:
        differ = total - within > rounding
        return FTest(np.inf if differ else 0.0, above, under, 0.0 if differ else 1.0)
    from scipy.stats import f  # scipy.stats takes long to load

    statistic = (total - within) / above / (within / under)
    return FTest(float(statistic), above, under, float(f.sf(statistic, above, under)))


NORMAL = 1.959963984540054
"""Quantile of the normal distribution for limits of level .95."""


class Cell(NamedTuple):
    """Times of one kind: how many there are, and how many are below each edge that is told.

    Attributes
    ----------
    cuts, below : (k,) arrays
        Edges above 0, ascending, and times below each.
    total : float
    """

    cuts: FloatArray
    below: FloatArray
    total: float

    @classmethod
    def of(cls, edges: FloatArray, bins: FloatArray) -> Cell:
        """Cell of counts with gaps, (e + 1,), between edges, (e,)."""
        cuts, rows = below(edges, bins)
        return cls(cuts[cuts > 0], rows[cuts > 0], float(np.nansum(bins)))

    def until(self, at: FloatArray) -> FloatArray:
        """Times below each of `at`: linear between edges that are told, none after the last."""
        return np.interp(at, [0.0, *self.cuts], [0.0, *self.below])

    @property
    def end(self) -> float:
        """Last edge; 0 if none is told."""
        return float(self.cuts[-1]) if len(self.cuts) else 0.0


class Pair(NamedTuple):
    """Both cells of the people of one group at one site."""

    events: Cell
    censored: Cell

    @property
    def n(self) -> float:
        """People."""
        return self.events.total + self.censored.total


class Curve(NamedTuple):
    """Share of the people without an event before each time; arrays are (e,).

    Attributes
    ----------
    at : array
        Ascending, above 0.
    at_risk : array
        People who are still watched, at sites whose bins reach that far.
    share : array
        Of a life table: those last seen within an interval count half in it. NaN where no bins
        reach.
    error : array
        Standard error of `share` (Greenwood).
    least, most : array
        Between them lies the Kaplan-Meier curve of the rows, whatever their times within bins.
    low, high : array
        Limits of level .95, below `least` and above `most` (of the logarithm of minus the
        logarithm): they count what chance does, and what the bins leave open.
    """

    at: FloatArray
    at_risk: FloatArray
    share: FloatArray
    error: FloatArray
    least: FloatArray
    most: FloatArray
    low: FloatArray
    high: FloatArray

    def median(self) -> Quantile:
        """Return the time at which half have had the event, with bounds from those of the curve."""
        over, under = np.flatnonzero(self.most <= 0.5), np.flatnonzero(self.least > 0.5)
        low = float(self.at[under[-1]]) if len(under) else 0.0
        high = float(self.at[over[0]]) if len(over) else np.inf
        at, share = np.append(0.0, self.at), np.append(1.0, self.share)
        down = np.flatnonzero(share <= 0.5)
        if not len(down):
            return Quantile(np.nan, low, high)
        pair = slice(down[0] - 1, down[0] + 1)
        guess = float(np.interp(-0.5, -share[pair], at[pair]))
        return Quantile(min(max(guess, low), high), low, high)


def life_table(edges: FloatArray, pairs: Sequence[Pair]) -> Curve:
    """Curve of the people of all sites.

    Parameters
    ----------
    edges : (e,) array
        Above 0, ascending.
    pairs : sequence of Pair
        One of each site. A site leaves `share` at the last edge of its events, as if its people
        were last seen there; `least` and `most` are of all people.

    Returns
    -------
    Curve
    """
    least, most = _bounds(edges, pairs)
    starts = np.append(0.0, edges[:-1])
    exposed, ended, at_risk = (np.zeros(len(edges)) for _ in range(3))
    for pair in pairs:
        in_bins = edges <= pair.events.end
        d, c = (cell.until(edges) - cell.until(starts) for cell in pair)
        n = pair.n - sum(cell.until(starts) for cell in pair)
        exposed += in_bins * (n - c / 2)
        ended += in_bins * d
        at_risk += in_bins * (n - d - c)
    with np.errstate(divide="ignore", invalid="ignore"):
        known = np.minimum.accumulate(exposed > 0)
        share = np.where(known, np.cumprod(np.where(known, 1 - ended / exposed, 1.0)), np.nan)
        share = np.clip(share, least, most)
        steps = np.where(ended > 0, ended / (exposed * (exposed - ended)), 0.0)
        spread = np.sqrt(np.cumsum(np.where(known, steps, np.nan)))
        error = np.where(share > 0, share * spread, np.nan)
    low, high = _limit(least, spread, 1), _limit(most, spread, -1)
    return Curve(
        at=edges,
        at_risk=np.where(known, at_risk, np.nan),
        share=share,
        error=error,
        least=least,
        most=most,
        low=low,
        high=high,
    )


def _limit(share: FloatArray, spread: FloatArray, sign: int) -> FloatArray:
    """Limit of level .95 below (1) or above (-1) a curve, of minus the logarithm's logarithm."""
    found = np.where(np.isnan(spread), np.nan, share)
    inside = (share > 0) & (share < 1) & ~np.isnan(spread)
    logs = -np.log(share[inside])
    found[inside] = np.exp(-logs * np.exp(sign * NORMAL * spread[inside] / logs))
    return found


def _bounds(edges: FloatArray, pairs: Sequence[Pair]) -> tuple[FloatArray, FloatArray]:
    """Least and largest Kaplan-Meier curve over all times within bins.

    A curve falls most if each event is the last in its bin and each person whom none ended was seen
    no longer than its start; and least the other way round: two neighbours, an event and the
    leaving of another person, change places, and those at risk at the event are one more or fewer.
    """
    e, n = len(edges), sum(pair.n for pair in pairs)
    if not n:
        return np.full(e, np.nan), np.full(e, np.nan)
    # People of bins from edge a up to edge b; 0 is the start of time, and e + 1 has no end.
    of = np.zeros((2, e + 1, e + 2))
    for pair in pairs:
        for kind, cell in enumerate(pair):
            places = np.concatenate([[0], np.searchsorted(edges, cell.cuts) + 1, [e + 1]])
            counts = np.diff(np.concatenate([[0.0], cell.below, [cell.total]]))
            np.add.at(of[kind], (places[:-1], places[1:]), counts)
    least, most = np.ones(e), np.ones(e)
    for j in range(1, e + 1):
        whole = of[:, :, : j + 1].sum(axis=2)[0], of[1, :, : j + 1].sum(axis=0)
        early, gone = whole[0][:j], whole[1][1 : j + 1]
        at_risk = n - np.cumsum(np.append(0.0, (early + gone)[:-1]))
        most[j - 1] = _product(early, at_risk)
        begun = of[:, :j]
        late = begun[0].sum(axis=0)
        late = np.append(late[1:j], late[j:].sum())
        left = begun[1].sum(axis=1)
        at_risk = n - np.cumsum(left) - np.cumsum(np.append(0.0, late[:-1]))
        least[j - 1] = _product(late, at_risk)
    return least, most


def _product(events: FloatArray, at_risk: FloatArray) -> float:
    some = events > 0
    return float(np.maximum(1 - events[some] / np.maximum(at_risk[some], events[some]), 0).prod())


class LogRank(NamedTuple):
    """Log-rank test that groups have one hazard at all times.

    Attributes
    ----------
    observed, expected : (g,) arrays
        Events of each group, in intervals that take part, and as many as expected if all had one
        hazard.
    statistic : float
    df : int
    p_value : float
        NaN, as the statistic, where nothing can be compared.
    strata : int
        Sites that take part.
    """

    observed: FloatArray
    expected: FloatArray
    statistic: float
    df: int
    p_value: float
    strata: int


def log_rank(strata: Sequence[Sequence[Sequence[Pair]]]) -> LogRank:
    """Compare groups within strata.

    Parameters
    ----------
    strata : sequence of sequences of sequences of Pair
        The pairs of each group of each stratum; all have as many groups. Intervals of a stratum lie
        between edges that all its pairs tell of events; so numbers of events are exact, and what
        comes after the last edge takes no part. People last seen within an interval count half.

    Returns
    -------
    LogRank
    """
    g = len(strata[0]) if strata else 0
    observed, expected, covariance = np.zeros(g), np.zeros(g), np.zeros((g, g))
    part = 0
    for stratum in strata:
        told = [set(pair.events.cuts.tolist()) for group in stratum for pair in group]
        ends = np.array(sorted(set.intersection(*told))) if told else np.empty(0)
        starts = np.append(0.0, ends[:-1])
        d, exposed = np.zeros((2, g, len(ends)))
        for i, group in enumerate(stratum):
            for pair in group:
                before, lost = pair.censored.until(starts), pair.censored.until(ends)
                d[i] += pair.events.until(ends) - pair.events.until(starts)
                exposed[i] += pair.n - pair.events.until(starts) - (before + lost) / 2
        exposed = np.maximum(exposed, d)
        total, n = d.sum(axis=0), exposed.sum(axis=0)
        used = (total > 0) & (n > 1)
        part += bool(used.any())
        observed += d[:, used].sum(axis=1)
        shares = exposed[:, used] / n[used]
        expected += shares @ total[used]
        weights = total[used] * np.maximum(n[used] - total[used], 0) / (n[used] - 1)
        covariance += np.diag(shares @ weights) - (shares * weights) @ shares.T
    values, vectors = np.linalg.eigh(covariance)
    varies = values > 1e-9 * max(float(np.trace(covariance)), 1e-300)
    df = int(varies.sum())
    if not df:
        return LogRank(observed, expected, np.nan, 0, np.nan, part)
    from scipy.stats import chi2  # scipy.stats takes long to load

    parts = (vectors.T @ (observed - expected))[varies]
    statistic = float((parts**2 / values[varies]).sum())
    return LogRank(observed, expected, statistic, df, float(chi2.sf(statistic, df)), part)


def pairs_of(edges: FloatArray, counts: FloatArray) -> list[list[Pair] | None]:
    """Pairs of each group, site by site; None where a site withholds the curve.

    Parameters
    ----------
    edges : (e,) array
    counts : (s, g, 2, e + 1) array
        With gaps: those whom an event ended stand first.
    """
    return [
        None
        if np.isnan(site).all()
        else [Pair(*(Cell.of(edges, bins) for bins in group)) for group in site]
        for site in counts
    ]


def pooled_log_rank(sites: Sequence[Sequence[Pair]]) -> LogRank:
    """Compare groups over the people of all sites as of one."""
    groups = list(zip(*sites, strict=True))
    return log_rank([groups] if groups else [])


def log_rank_within(sites: Sequence[Sequence[Pair]]) -> LogRank:
    """Compare groups of the same site, and add up (stratified log-rank test)."""
    return log_rank([[[pair] for pair in site] for site in sites])


def log_rank_of_sites(sites: Sequence[Sequence[Pair]]) -> LogRank:
    """Compare sites within each group."""
    return log_rank([[[pair] for pair in group] for group in zip(*sites, strict=True)])
