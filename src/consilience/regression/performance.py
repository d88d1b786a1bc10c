"""How well predicted risks agree with what happened, from counts in bands of risk.

All bands of a site are joined in pairs, again and again, until each has enough events and enough
rows without one: no band ends where one row lies. A pair of an event and a row without one is in
order, out of order, or of bands that overlap: so the area under the ROC curve (Hanley and McNeil
1982) is known up to the share of the last. Calibration is the regression of the response on the
linear predictor (Cox 1958): intercept 0 and slope 1 where it is perfect.

Of times until an event: the share of pairs of rows in order, of those of whom it is known who had
the event first (Harrell, Lee and Mark, Statistics in Medicine 15, 1996), with the error by the
infinitesimal jackknife (Therneau and Watson 2017, the concordance statistic and the Cox model).
Whether hazards are proportional is asked by the score test of slopes that change with the share of
people who had the event (Grambsch and Therneau, Biometrika 81, 1994; without their approximation
that all risk sets have one covariance).

Which risk sets a site that protects records tells of in a Cox regression.

Follow-up ends where fewer people than a policy asks for are at risk: later events count as not
seen. Whether it has ended at a time is known just before that time, so the likelihood of what is
left is one of the same hazards (a stopping time: Andersen, Borgan, Gill and Keiding, *Statistical
Models Based on Counting Processes*, 1993, section III.2). Who is at risk last has no other part in
any sum than being at risk until then.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.regression.kernels import (
    Design,
    Piece,
    Rows,
    chi2_tail,
    dependent_columns,
    fit_alone,
)

BANDS = 64
"""Before they are joined."""


def cuts_of(mean: float, spread: float) -> FloatArray:
    """Linear predictors between bands that are as hard to fill, if predictors were normal.

    In each as many rows are expected of the kind, with or without an event, that is the rarer one
    at their risk.
    """
    z = np.linspace(-6, 6, 2401)
    eta = mean + spread * z
    rarer = np.exp(-(z**2) / 2 - np.logaddexp(0, np.abs(eta)))
    share = np.cumsum(rarer) / rarer.sum()
    return np.asarray(np.interp(np.arange(1, BANDS) / BANDS, share, eta))


def bands_of(eta: FloatArray, y: FloatArray, cuts: FloatArray, least: int) -> IntArray:
    """Band of each row, (n,), where each band has `least` events and rows without one; else -1.

    Bands are joined by twos, fours and so on, all of them alike, so that they end at cuts which no
    row chooses. Rows have the number of the first of those joined.

    Parameters
    ----------
    eta, y : (n,) arrays
        Linear predictor, and response of 0 and 1.
    cuts : (k,) array
        In order.
    least : int
    """
    band = np.searchsorted(cuts, eta, side="right").astype(np.int64)
    wide = 1
    while True:
        n = -(-(len(cuts) + 1) // wide)
        counts = np.bincount(2 * (band // wide) + (y == 1), minlength=2 * n)
        if counts.min() >= least:
            return band // wide * wide
        if n == 1:
            return np.full(len(band), -1, dtype=np.int64)
        wide *= 2


def recalibration(eta: FloatArray, y: FloatArray) -> tuple[Piece | None, Rows, FloatArray]:
    """Regression of a response of 0 and 1 on a linear predictor.

    Returns
    -------
    Piece or None
        None where there is none: separated rows, or a predictor of one value.
    Rows
        With ones and the predictor about its mean in units of its spread.
    (5,) array
        Intercept, slope, and of their covariance variance, covariance, variance; empty without fit.
    """
    mean, spread = float(eta.mean()), float(eta.std())
    rows = Rows(Design(eta[:, None], np.array([mean]), np.array([spread or 1.0])), y)
    fit = fit_alone("binomial", rows) if spread > 0 else None
    if fit is None:
        return None, rows, np.zeros(0)
    turn = np.array([[1.0, -mean / spread], [0.0, 1 / spread]])
    covariance = turn @ np.linalg.inv(fit.curvature) @ turn.T
    return fit, rows, np.concatenate([turn @ fit.theta, covariance[np.triu_indices(2)]])


def area(counts: IntArray) -> tuple[float, float]:
    """Least and largest area under the ROC curve that counts in bands allow.

    Parameters
    ----------
    counts : (S, K, 2) int array
        Of rows without and with an event by site and band; a band without rows is part of the one
        before it.
    """
    low, high, n = [], [], []
    for site in counts:
        full = np.flatnonzero(site.sum(axis=1))
        low += full.tolist()
        high += [*full[1:].tolist(), len(site)][: len(full)]
        n += site[full].tolist()
    start, end, rows = np.array(low), np.array(high), np.array(n, dtype=float).reshape(-1, 2)
    pairs = np.outer(rows[:, 0], rows[:, 1])
    if not pairs.sum() > 0:
        return np.nan, np.nan
    ordered = pairs[end[:, None] <= start[None, :]].sum() / pairs.sum()
    reverse = pairs[start[:, None] >= end[None, :]].sum() / pairs.sum()
    return float(ordered), float(1 - reverse)


def pairs_of(time: FloatArray, event: FloatArray, eta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Pairs in order that each row is in, and pairs that can be compared, (n,) each.

    A pair can be compared where the row that was watched shorter has the event; at one time, where
    one row alone has it. It is in order where that row has the larger linear predictor; equal ones
    count half.
    """
    seen = np.asarray(event == 1)
    place = 2 * np.unique(time, return_inverse=True)[1].ravel() + ~seen
    risk = np.unique(eta, return_inverse=True)[1].ravel()
    at, of_seen = np.sort(place), np.sort(place[seen])
    later = len(at) - np.searchsorted(at, place, side="right")
    known = np.where(seen, later, 0) + np.searchsorted(of_seen, place, side="left")
    every = np.ones(len(place))
    agree = np.where(seen, _below(risk, place.max() - place, every), 0.0)
    agree = agree + _below(risk.max() - risk, place, seen.astype(float))
    return agree, known.astype(float)


def _below(first: IntArray, second: IntArray, mark: FloatArray) -> FloatArray:
    """Sum of the marks of rows that are below each in both numbers, (n,); half if equal in `first`.

    Numbers of one row differ first at one of the bits of `second`: bit by bit, those with a 0 that
    come before one with a 1 are added up, among the rows whose higher bits are its own.
    """
    found = np.zeros(len(first))
    for ties in (-1, 1):  # rows of one number in such an order that none of them counts, or each
        order = np.lexsort((ties * second, first))
        for bit in range(int(second.max(initial=0)).bit_length()):
            by = order[np.argsort(second[order] >> (bit + 1), kind="stable")]
            high = (second[by] >> bit) & 1 == 1
            group = second[by] >> (bit + 1)
            low = np.concatenate([[0.0], np.cumsum(np.where(high, 0.0, mark[by]))])
            start = np.searchsorted(group, group, side="left")
            found[by] += np.where(high, low[1:] - low[start], 0.0) / 2
    return found


def pair_sums(agree: FloatArray, known: FloatArray) -> FloatArray:
    """What a site tells of its pairs: both sums over rows, and those of their products, (5,)."""
    return np.array([agree.sum(), known.sum(), agree @ agree, agree @ known, known @ known])


def concordance(sums: FloatArray) -> tuple[float, float]:
    """Share of pairs in order and its error, from the sums of one site or of several, (5,)."""
    agree, known, *squares = sums.tolist()
    if not known > 0:
        return np.nan, np.nan
    share = agree / known
    # Each pair is in the sums of both its rows, so the derivative of the share is twice a row's.
    spread = squares[0] - 2 * share * squares[1] + share**2 * squares[2]
    return share, 2 * float(np.sqrt(max(spread, 0.0))) / known


def proportional(score: FloatArray, curvature: FloatArray) -> FloatArray:
    """Score tests that no slope changes while events add up, (m + 1, 3).

    With g the share of people who had the event before, ``b + c g`` takes the place of slopes b. At
    c = 0 the sums of all sites with powers of g are derivatives of the likelihood in b and c.

    Parameters
    ----------
    score : (2, m) array
        Derivatives of the loss in b and in c.
    curvature : (3, m, m) array
        Second derivatives: in b, in b and c, and in c.

    Returns
    -------
    (m + 1, 3) array
        Chi-square statistic, degrees of freedom and p-value by column, and of all at once; NaN
        where the sums tell nothing of a change.
    """
    m = score.shape[1]
    found = np.full((m + 1, 3), np.nan)
    found[:, 1] = [1] * m + [m]
    if dependent_columns(curvature[0]):
        return found
    drag = np.linalg.solve(curvature[0], curvature[1])
    change, spread = score[1] - score[0] @ drag, curvature[2] - curvature[1] @ drag
    tells = np.diag(spread) > 1e-10 * np.diag(curvature[2])
    with np.errstate(divide="ignore", invalid="ignore"):
        found[:-1, 0] = np.where(tells, change**2 / np.diag(spread), np.nan)
    if tells.all() and not dependent_columns(spread):
        found[-1, 0] = change @ np.linalg.solve(spread, change)
    found[:, 2] = [chi2_tail(value, int(df)) for value, df, _ in found]
    return found


_ROUNDING = 1e-9
_DEPENDENT = 1e-10
_LEAST = 0.25
"""Events that must tell of any columns, in `least` people of the policy, ..."""
_SHARE = 0.2
"""... and in events of the site."""


def at_risk(rows: Rows) -> FloatArray:
    """People at risk at each row's time, or fewer where some earlier time has fewer, (n,).

    Those with risks r_i before any coefficient, that is their weights times ``exp(offset)``, count
    as ``(sum r_i)^2 / sum r_i^2`` people, which is their number where all risks are one. Of people
    with tiny risks those beside them would otherwise be told as if they were alone.
    """
    time = np.asarray(rows.time, dtype=float)
    order = np.argsort(-time, kind="stable")
    risk = np.ones(len(time)) if rows.weight is None else rows.weight / rows.weight.max()
    if rows.offset is not None:
        risk = risk * np.exp(rows.offset - rows.offset.max())
    risk = risk[order]
    last = np.searchsorted(-time[order], -time[order], side="right") - 1
    whole, squares = np.cumsum(risk)[last], np.cumsum(risk**2)[last]
    people = np.where(squares > 0, whole**2 / np.where(squares > 0, squares, 1.0), 0.0)
    found = np.empty(len(time))
    found[order] = np.minimum.accumulate(people[::-1])[::-1]
    return found


def until_few(rows: Rows, least: int) -> Rows:
    """The same rows, of which those with fewer than `least` people at risk are seen no more.

    They have no event and the time infinity: what is summed cannot depend on what they had.
    """
    seen = at_risk(rows) >= least * (1 - _ROUNDING)
    time, y = np.asarray(rows.time, dtype=float), np.where(seen, rows.y, 0.0)
    return dataclasses.replace(rows, time=np.where(seen, time, np.inf), y=y)


def events_that_tell(rows: Rows, piece: Piece) -> float:
    """How many events over people who differ as all rows do would tell as much of the columns.

    The least eigenvalue of ``S^-1/2 C S^-1/2``, with C the curvature by weights of mean 1 and S the
    covariance of the columns. At no coefficients it is about the number of events. At steep ones
    nearly all who are at risk count for nothing: then scores are sums over few events.

    Parameters
    ----------
    rows : Rows
    piece : Piece
        At the coefficients.
    """
    x = (rows.design.x - rows.design.centre) / rows.design.scale
    covariance = np.cov(x, rowvar=False, bias=True).reshape(x.shape[1], -1)
    lengths = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    lengths[lengths == 0] = 1.0
    values, vectors = np.linalg.eigh(covariance / np.outer(lengths, lengths))
    kept = values > _DEPENDENT * max(values[-1], 0.0)
    turn = vectors[:, kept] / np.sqrt(values[kept]) / lengths[:, None]
    unit = 1.0 if rows.weight is None else float(rows.weight.mean())
    inside = turn.T @ piece.curvature @ turn / unit
    if not (kept.any() and np.isfinite(inside).all()):
        return 0.0
    return float(np.linalg.eigvalsh(inside)[0])


def is_steep(rows: Rows, piece: Piece, least: int) -> bool:
    """Whether scores at these coefficients are sums over too few of the events."""
    events = int((rows.y == 1).sum())
    return events_that_tell(rows, piece) < max(_LEAST * least, _SHARE * events)
