"""Curves of times until an event, and log-rank tests, from numbers of people by interval.

A cell has the people of one site and one group whom an event ended, or whom none did. Its bins say
how many times lie from one edge to the next; a gap joins the bin before it. Arrays in, arrays out.

Sources: Kaplan and Meier, Journal of the American Statistical Association 53 (1958); Cutler and
Ederer, Journal of Chronic Diseases 8 (1958), for those last seen within an interval; Greenwood
(1926) for the error; Mantel, Cancer Chemotherapy Reports 50 (1966), and Peto and Peto, Journal of
the Royal Statistical Society A 135 (1972), for the log-rank test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from consilience.arrays import FloatArray
from consilience.describe.kernels import Quantile, below

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
        ends = _shared(pair.events.cuts for group in stratum for pair in group)
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


def _shared(cuts: Iterable[FloatArray]) -> FloatArray:
    sets = [set(one.tolist()) for one in cuts]
    return np.array(sorted(set.intersection(*sets))) if sets else np.empty(0)


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
