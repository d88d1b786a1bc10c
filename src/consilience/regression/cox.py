"""A Cox regression from sums of sites, each with a baseline hazard of its own.

The loss is minus the log partial likelihood of a site's rows, less what it is without columns; so
it is 0 there, and tells nothing of the order of events by itself. Its sums go where those of a
generalised linear model go (`regression/kernels.py`): there is no constant, which the baseline
takes up. Ties by Breslow, or by Efron, who lets the d events of one time leave the risk set by
shares 0/d .. (d - 1)/d. Weights of precision count as in R's coxph and lifelines: each of d tied
events has their mean weight; those of frequency as so many rows alike.

Sources: Cox, JRSS B 34 (1972); Breslow, Biometrics 30 (1974); Efron, JASA 72 (1977); for robust
errors Lin and Wei, JASA 84 (1989); for Efron's sums Therneau and Grambsch, Modeling Survival Data
(2000), section 3.3; for the baseline hazard and its error Breslow's discussion of Cox, and Tsiatis,
Annals of Statistics 9 (1981).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.regression.kernels import Piece, Rows, dependent_columns

TIES = ("efron", "breslow")
_MOST_STEPS = 50
_MANY_ORDERS = 128 * math.log(2)
"""Logarithm of orders of events that one sum of doubles does not tell from one another."""


@dataclass(frozen=True, eq=False)
class Own:
    """What each row adds to the sums of a piece.

    Attributes
    ----------
    hazard : (n,) array
        Cumulative hazard of the row until its time, times its weight: its weight in the curvature.
    gap : (n,) array
        Event less hazard, times the weight: the martingale residual. ``sum gap x`` is the score.
    lost : (n,) array
        Losses of events, with the sign they have.
    score : (n, m) array
        Score residuals, without weights.
    curvature : (n, m) array
        What the row adds to the diagonal of the curvature.
    squares : (n,) array
        What squared score residuals are multiplied by.
    """

    hazard: FloatArray
    gap: FloatArray
    lost: FloatArray
    score: FloatArray
    curvature: FloatArray
    squares: FloatArray


_MOST_EVENTS = 2_000_000
"""Of weights of frequency, which a small table may have by the billion."""
_MOST_LINES = 10_000
"""Times of a baseline hazard that a site keeps."""


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Rows by time, and the terms of the likelihood: one for each event (Efron) or event time.

    Attributes
    ----------
    order : (n,) int array
        Rows from the last time to the first.
    last : (k,) int array
        By event time from the last one: how many rows in that order are at risk.
    event_of : (n,) int array
        By row in that order: number of its time if it has an event, else -1.
    times_until : (n,) int array
        Event times up to that of each row: those from this number on, of k.
    weight : (n,) array
    of : (t,) int array
        Event time of each term.
    share, mass : (t,) arrays
        Share of the events that has left the risk set, and weight of the term.
    """

    order: IntArray
    last: IntArray
    event_of: IntArray
    times_until: IntArray
    weight: FloatArray
    of: IntArray
    share: FloatArray
    mass: FloatArray


def _ordered(rows: Rows, ties: str) -> _Ordered:
    watched = np.asarray(rows.time, dtype=float)
    order = np.argsort(-watched, kind="stable").astype(np.int64)
    time, event = watched[order], rows.y[order] == 1
    weight = np.ones(len(order)) if rows.weight is None else rows.weight[order]
    at = -np.unique(-time[event])  # from the last event time to the first
    last = np.searchsorted(-time, -at, side="right").astype(np.int64)
    place = np.searchsorted(-at, -time, side="left").astype(np.int64)
    event_of = np.where(event, place, -1)
    k = len(at)
    total = np.bincount(event_of[event], weights=weight[event], minlength=k).astype(float)
    count = total if rows.frequency else np.bincount(event_of[event], minlength=k).astype(float)
    if ties == "breslow":
        of, share, mass = np.arange(k), np.zeros(k), total
    else:
        if rows.frequency and total.sum() > _MOST_EVENTS:
            sentence = (
                "Efron's way with ties has one term for each event, and weights of frequency make "
                f"more than {_MOST_EVENTS:,} of them: set ties to 'breslow'"
            )
            raise DataError.shared(sentence)
        times = np.rint(count).astype(np.int64)
        of = np.repeat(np.arange(k), times)
        rank = np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times)
        share, mass = rank / count[of], (total / np.maximum(count, 1))[of]
    return _Ordered(order, last, event_of, place, weight, of, share, mass)


def summed(
    rows: Rows, theta: FloatArray, *, ties: str = "efron", squares: bool = False, late: int = 0
) -> tuple[Piece, Own]:
    """Sums over a site's rows at some coefficients, and what each row adds.

    Parameters
    ----------
    rows : Rows
        With times; y is 1 where the event was seen.
    theta : (m,) array
    ties : {"efron", "breslow"}
    squares : bool
        Whether squared score residuals are summed, too.
    late : int
        Each event counts by this power of the share of the site's people who had the event before
        (one less Kaplan and Meier's curve), in all but what is without columns.
    """
    x = (rows.design.x - rows.design.centre) / rows.design.scale
    by, m = _ordered(rows, ties), x.shape[1]
    x = x[by.order]
    offset = np.zeros(len(x)) if rows.offset is None else rows.offset[by.order]
    eta, event = x @ theta + offset, by.event_of >= 0
    null, _ = _log_risk(by, offset)
    risk, (size, gone) = _log_risk(by, eta)
    r = np.exp(eta - eta.max())
    k, w = len(by.last), by.weight

    def at_risk(values: FloatArray) -> FloatArray:
        """Sums over the risk set of each term, (t, m): those who have their event leave."""
        whole = np.cumsum(values, axis=0)[by.last - 1]
        events = _by_group(by.event_of[event], values[event], k)
        return whole[by.of] - by.share[:, None] * events[by.of]

    share = _had_before(by) ** late
    seen, heavy = np.zeros(len(x)), by.mass * share[by.of]
    seen[event] = share[by.event_of[event]]
    left = size[by.of] - by.share * gone[by.of]
    mean = at_risk((w * r)[:, None] * x) / left[:, None]
    per = heavy / left

    def until(values: FloatArray) -> FloatArray:
        """Of terms, (t, c): their sum up to each row's time, with the shares of its own, (n, c)."""
        whole = _by_group(by.of, values, k + 1)
        own = _by_group(by.of, by.share[:, None] * values, k)
        found = np.cumsum(whole[::-1], axis=0)[::-1][by.times_until]
        found[event] -= own[by.event_of[event]]
        return found

    mean_of = _by_group(by.of, mean, k) / np.bincount(by.of, minlength=k)[:, None]
    base = until(np.column_stack([per, per[:, None] * mean, per[:, None] * mean**2]))
    base *= r[:, None]
    hazard, first, second = base[:, 0], base[:, 1 : m + 1], base[:, m + 1 :]
    residual = first - hazard[:, None] * x
    residual[event] += seen[event, None] * (x[event] - mean_of[by.event_of[event]])
    own = w[:, None] * (hazard[:, None] * x**2 - 2 * x * first + second)
    gap = w * (seen - hazard)
    rooted = np.sqrt(w * hazard)[:, None] * x
    curvature = rooted.T @ rooted - (heavy[:, None] * mean).T @ mean
    # of each event: the mean of the terms of its time, less what it is without columns
    apart = np.bincount(by.of, weights=(risk - null) * by.mass, minlength=k)
    mass = np.bincount(by.of, weights=by.mass, minlength=k)
    lost = np.zeros(len(x))
    lost[event] = (w * seen)[event] * ((apart / mass)[by.event_of[event]] - (eta - offset)[event])
    double = w if rows.frequency else w**2
    piece = Piece(
        n=float(w[event].sum() if rows.frequency else event.sum()),
        theta=np.asarray(theta, dtype=float),
        loss=float(lost.sum()),
        least=0.0,
        constant=float(by.mass @ null - w[event] @ offset[event]),
        pearson=0.0,
        score=-x.T @ gap,
        curvature=(curvature + curvature.T) / 2,
        squares=residual.T @ (double[:, None] * residual) if squares else None,
    )
    back = np.empty_like(by.order)
    back[by.order] = np.arange(len(back))
    each = (w * hazard, gap, lost, residual, own, double)
    return piece, Own(*(np.asarray(one[back]) for one in each))


def _had_before(by: _Ordered) -> FloatArray:
    """Share of people who had the event before each event time, from the last time on, (k,).

    Rows count alike: it is asked of fits without weights only.
    """
    events = np.bincount(by.event_of[by.event_of >= 0], minlength=len(by.last))
    stay = np.append(1.0, np.cumprod(1 - (events / by.last)[::-1]))
    return np.asarray(1 - stay[:-1][::-1])


def _by_group(group: IntArray, values: FloatArray, k: int) -> FloatArray:
    """Sums of lines (n, c) by their group (n,), which is in order, (k, c)."""
    found = np.zeros((k, values.shape[1]))
    if len(group):
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        found[group[starts]] = np.add.reduceat(values, starts, axis=0)
    return found


def _log_risk(by: _Ordered, eta: FloatArray) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    """Logarithm of the risk of each term (t,), and risks of all at risk and of events (k,) each.

    The latter are over the largest risk of a row.
    """
    top, event = float(eta.max()), by.event_of >= 0
    r = by.weight * np.exp(eta - top)
    size = np.cumsum(r)[by.last - 1]
    gone: FloatArray = np.bincount(
        by.event_of[event], weights=r[event], minlength=len(by.last)
    ).astype(float)
    return np.log(size[by.of] - by.share * gone[by.of]) + top, (size, gone)


def few_orders(rows: Rows) -> bool:
    """Whether a likelihood without columns, a product of sizes of risk sets, may tell the order.

    Of n rows with d events there are n over d ways in which events and others follow each other,
    and with k different times as many as tables of n rows over 2 k cells at most: where they are
    few, one number singles out theirs.
    """
    times = np.asarray(rows.time, dtype=float)
    n, d, k = len(rows.y), int((rows.y == 1).sum()), len(np.unique(times))
    ways = gammaln(n + 1) - gammaln(d + 1) - gammaln(n - d + 1)
    tables = gammaln(n + 2 * k) - gammaln(2 * k) - gammaln(n + 1)
    return bool(min(ways, tables) < _MANY_ORDERS)


def baseline(rows: Rows, coefficients: FloatArray) -> FloatArray:
    """Cumulative hazard of somebody whose linear predictor is 0, by event time, (k + 1, m + 3).

    Parameters
    ----------
    rows : Rows
        Columns in the units of the coefficients, whatever the centre and scale of the design.
    coefficients : (m + 1,) array
        A constant, and those of the columns.

    Returns
    -------
    (k + 1, m + 3) array
        Time, cumulative hazard ``sum d / S0`` (Breslow, whatever the way with ties), its variance
        ``sum d / S0^2`` at known coefficients, and ``sum d xbar / S0``, by which the hazard falls
        as coefficients grow. The last line is the time when the last one was seen. Of more than
        `_MOST_LINES` times every second, third and so on is left.
    """
    by = _ordered(rows, "breslow")
    x = rows.design.x[by.order]
    offset = 0.0 if rows.offset is None else rows.offset[by.order]
    risk = by.weight * np.exp(coefficients[0] + x @ coefficients[1:] + offset)
    size = np.cumsum(risk)[by.last - 1]
    mean = np.cumsum(risk[:, None] * x, axis=0)[by.last - 1] / size[:, None]
    step, watched = by.mass / size, np.asarray(rows.time, dtype=float)
    steps = np.column_stack([step, step / size, step[:, None] * mean])[::-1]
    lines = np.column_stack([watched[by.order][by.last - 1][::-1], np.cumsum(steps, axis=0)])
    apart = -(-len(lines) // _MOST_LINES) or 1
    lines = lines[::-1][::apart][::-1]
    last = lines[-1, 1:] if len(lines) else np.zeros(x.shape[1] + 2)
    return np.vstack([lines, np.append(watched.max(), last)])


def fit_alone(rows: Rows, ties: str) -> Piece | None:
    """A site's own fit by Newton steps, halved where the loss rises; None where there is none."""
    if not (rows.y == 1).any():
        return None
    found = summed(rows, np.zeros(rows.design.x.shape[1]), ties=ties)[0]
    for _ in range(_MOST_STEPS):
        if dependent_columns(found.curvature):
            return None
        step = -np.linalg.solve(found.curvature, found.score)
        size = float(np.abs(step).max())
        while True:
            tried = summed(rows, found.theta + step, ties=ties)[0]
            if tried.loss <= found.loss + 1e-12 * abs(found.loss) or size < 1e-12:
                break
            step, size = step / 2, size / 2
        found = tried
        if size < 1e-9:
            return found
    return None  # it runs away: the likelihood rises without end
