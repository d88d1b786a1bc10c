"""Curves of times until an event, from the rows themselves, in the plainest words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np


def kaplan_meier(times: Sequence[float], events: Sequence[bool], until: float) -> Fraction:
    """Share without an event before `until`; who is last seen at a time is at risk until then."""
    share = Fraction(1)
    for time in sorted({t for t, event in zip(times, events, strict=True) if event and t < until}):
        at_risk = sum(bool(t >= time) for t in times)
        ended = sum(bool(t == time and e) for t, e in zip(times, events, strict=True))
        share *= 1 - Fraction(ended, at_risk)
    return share


def bounds(
    bins: Sequence[tuple[float, float, bool, int]], until: float
) -> tuple[Fraction, Fraction]:
    """Least and largest curve over all times that people may have.

    Each bin is (from, to, whether an event ended them, people). A person has any of the times that
    are halves of whole numbers, from the first on and below the second.
    """
    people = [(low, high, event) for low, high, event, n in bins for _ in range(n)]
    found = []
    for times in itertools.product(*(np.arange(low, high, 0.5) for low, high, _ in people)):
        found.append(kaplan_meier(times, [event for *_, event in people], until))
    return min(found), max(found)


def life_table(
    events: Sequence[float], censored: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Curve after each interval, and its standard error (Greenwood, 1926).

    Those who are last seen within an interval count half in it (Cutler and Ederer, 1958).
    """
    at_risk, share, spread = float(sum(events) + sum(censored)), 1.0, 0.0
    curve, errors = [], []
    for ended, lost in zip(events, censored, strict=True):
        exposed = at_risk - lost / 2
        share *= 1 - ended / exposed
        spread += ended / (exposed * (exposed - ended))
        curve.append(share)
        errors.append(share * spread**0.5)
        at_risk -= ended + lost
    return curve, errors


def log_rank(
    strata: Sequence[Sequence[tuple[Sequence[float], Sequence[float]]]],
) -> tuple[np.ndarray, np.ndarray, float]:
    """Events of each group, as many as expected, and the statistic.

    A stratum has, of each group, events and censored people by interval; the latter count half in
    their interval.
    """
    groups = len(strata[0])
    observed, expected = np.zeros(groups), np.zeros(groups)
    covariance = np.zeros((groups, groups))
    for stratum in strata:
        at_risk = np.array([float(sum(d) + sum(c)) for d, c in stratum])
        for k in range(len(stratum[0][0])):
            ended = np.array([float(d[k]) for d, _ in stratum])
            lost = np.array([float(c[k]) for _, c in stratum])
            exposed = at_risk - lost / 2
            total, n = ended.sum(), exposed.sum()
            observed += ended
            expected += total * exposed / n
            if n > 1:
                for i in range(groups):
                    for j in range(groups):
                        part = (i == j) * exposed[i] / n - exposed[i] * exposed[j] / n**2
                        covariance[i, j] += total * (n - total) / (n - 1) * part
            at_risk -= ended + lost
    away = (observed - expected)[:-1]
    return observed, expected, float(away @ np.linalg.solve(covariance[:-1, :-1], away))
