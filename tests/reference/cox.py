"""Textbook Cox regression: risk sets written out one event at a time, from the likelihood alone.

Cox (1972), ties by Breslow (1974) and Efron (1977), robust errors by Lin and Wei (1989). O(n^2).
"""

from __future__ import annotations

import math

import numpy as np


def sums(x, time, event, theta, ties="efron", strata=None, weight=None, offset=None):
    """Minus log likelihood, its gradient and Hessian, and score residuals of rows, (n, m)."""
    n, m = x.shape
    weight = np.ones(n) if weight is None else weight
    offset = np.zeros(n) if offset is None else offset
    strata = np.zeros(n) if strata is None else strata
    loss, slope, curve, residual = 0.0, np.zeros(m), np.zeros((m, m)), np.zeros((n, m))
    risk = [math.exp(float(row @ theta) + o) for row, o in zip(x, offset, strict=True)]
    for stratum in set(np.asarray(strata).tolist()):
        inside = [i for i in range(n) if strata[i] == stratum]
        for t in sorted({time[i] for i in inside if event[i]}):
            at_risk = [i for i in inside if time[i] >= t]
            dead = [i for i in inside if event[i] and time[i] == t]
            d = len(dead)
            whole = sum(weight[i] for i in dead)
            steps = [(whole, 0.0)] if ties == "breslow" else [(whole / d, j / d) for j in range(d)]
            for mass, gone in steps:
                part = {i: 1.0 - gone if i in dead else 1.0 for i in at_risk}
                total = sum(part[i] * weight[i] * risk[i] for i in at_risk)
                mean = sum(part[i] * weight[i] * risk[i] * x[i] for i in at_risk) / total
                loss += mass * math.log(total)
                slope += mass * mean
                for i in at_risk:
                    share = part[i] * risk[i] / total
                    curve += mass * weight[i] * share * np.outer(x[i] - mean, x[i] - mean)
                    residual[i] -= mass * share * (x[i] - mean)
                for i in dead:
                    residual[i] += (x[i] - mean) / len(steps)
            for i in dead:
                loss -= weight[i] * (float(x[i] @ theta) + offset[i])
                slope -= weight[i] * x[i]
    return loss, slope, curve, residual


def fit(x, time, event, penalty=0.0, **how):
    """Coefficients at the optimum, by Newton's method with halved steps."""
    theta = np.zeros(x.shape[1])

    def at(b):
        loss, slope, curve, _ = sums(x, time, event, b, **how)
        pull = penalty * np.eye(len(b))
        return loss + penalty * b @ b / 2, slope + penalty * b, curve + pull

    loss, slope, curve = at(theta)
    for _ in range(50):
        step = -np.linalg.solve(curve, slope)
        while at(theta + step)[0] > loss + 1e-12 * abs(loss) and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta + step
        loss, slope, curve = at(theta)
        if np.abs(step).max() < 1e-11:
            return theta
    raise AssertionError("the textbook fit did not settle")


def until_few(time, event, strata, least, risk=None):
    """Events that count where follow-up in a stratum ends with fewer than `least` at risk.

    People of unequal risks r count as (sum r)^2 / sum r^2. What is below once stays out.
    """
    risk = np.ones(len(time)) if risk is None else risk
    kept = np.zeros(len(time))
    for stratum in set(np.asarray(strata).tolist()):
        inside = [i for i in range(len(time)) if strata[i] == stratum]
        for t in sorted({time[i] for i in inside}):
            left = [risk[i] for i in inside if time[i] >= t]
            if sum(left) ** 2 / sum(r * r for r in left) < least - 1e-6:
                break
            for i in inside:
                if time[i] == t:
                    kept[i] = event[i]
    return kept


def concordance(time, event, eta, strata):
    """Share of pairs in order within strata, and its error: a pair counts as its rows' weights do.

    The error is the root of the sum of squared derivatives of the share in the weights (all 1).
    """
    n = len(time)

    def share(weight):
        agree = known = 0.0
        for i in range(n):
            for j in range(n):
                first = event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j]))
                if not first or strata[i] != strata[j]:
                    continue
                known += weight[i] * weight[j]
                agree += weight[i] * weight[j] * ((eta[i] > eta[j]) + (eta[i] == eta[j]) / 2)
        return agree / known

    slopes = []
    for i in range(n):
        step = np.where(np.arange(n) == i, 1e-4, 0.0)
        slopes.append((share(1 + step) - share(1 - step)) / 2e-4)
    return share(np.ones(n)), math.sqrt(sum(s**2 for s in slopes))


def changing(x, time, event, beta, change, ties, strata):
    """Minus log likelihood where slopes are ``beta + change g`` at each event.

    g is the share of the people of a stratum who had the event before (one less Kaplan and Meier).
    """
    loss = 0.0
    for stratum in set(np.asarray(strata).tolist()):
        inside = [i for i in range(len(time)) if strata[i] == stratum]
        stay = 1.0
        for t in sorted({time[i] for i in inside if event[i]}):
            at_risk = [i for i in inside if time[i] >= t]
            dead = [i for i in inside if event[i] and time[i] == t]
            slopes = beta + change * (1 - stay)
            risk = {i: math.exp(float(x[i] @ slopes)) for i in at_risk}
            for j in range(len(dead)):
                gone = j / len(dead) if ties == "efron" else 0.0
                loss += math.log(sum(risk.values()) - gone * sum(risk[i] for i in dead))
            loss -= sum(float(x[i] @ slopes) for i in dead)
            stay *= 1 - len(dead) / len(at_risk)
    return loss


def proportional(x, time, event, beta, ties, strata):
    """Score tests that slopes do not change, by column and of all, from differences of the loss."""
    m = x.shape[1]
    h = 1e-3

    def at(z):
        return changing(x, time, event, beta + z[:m], z[m:], ties, strata)

    unit = h * np.eye(2 * m)
    score = np.array([(at(u) - at(-u)) / (2 * h) for u in unit])
    curve = np.array(
        [
            [(at(u + v) - at(u - v) - at(v - u) + at(-u - v)) / (4 * h * h) for v in unit]
            for u in unit
        ]
    )
    drag = np.linalg.solve(curve[:m, :m], curve[:m, m:])
    change = score[m:] - score[:m] @ drag
    spread = curve[m:, m:] - curve[m:, :m] @ drag
    return [*(change**2 / np.diag(spread)), change @ np.linalg.solve(spread, change)]


def survival(x, time, event, theta, covariance, person, until):
    """Probability of no event until a time by Breslow's hazard of one stratum, and its error.

    The derivative in the coefficients is taken by differences.
    """

    def hazard(b):
        found, spread = 0.0, 0.0
        for s in sorted({t for t, d in zip(time, event, strict=True) if d and t <= until}):
            risk = sum(math.exp(float((row - person) @ b)) for row in x[time >= s])
            dead = sum(1 for t, d in zip(time, event, strict=True) if d and t == s)
            found, spread = found + dead / risk, spread + dead / risk**2
        return found, spread

    whole, spread = hazard(theta)
    steps = 1e-5 * np.eye(len(theta)) / (1e-9 + np.abs(x).max(axis=0))[:, None]
    slope = np.array([(hazard(theta + h)[0] - hazard(theta - h)[0]) / (2 * h.max()) for h in steps])
    share = math.exp(-whole)
    return share, share * math.sqrt(spread + slope @ covariance @ slope)
