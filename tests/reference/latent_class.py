"""Textbook latent class regression, event by event: slow, and written from the model.

With the corrections to the source (arXiv 2206.10783): equation (4) has the predictive variance
``sigma^2 + x' A^-1 x``, the left side of equation (9) is ``A_{n-1}^-1``, the state advances only
after an event was judged, and all counts leave out the entity that is drawn.
"""

from __future__ import annotations

from itertools import product
from math import lgamma, log, pi
from typing import Any

import numpy as np


def event_by_event(
    x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, sigma2: float, *, exact: bool = True
) -> float:
    """Log density of the events of an entity, one after another, under one class.

    `a` is the class's precision ``I / delta^2 + X'X / sigma^2`` and `b` its ``X'y / sigma^2``, both
    without the entity. Updating an inverse loses six digits at sigma = .05 (seen against 40-digit
    arithmetic), so that `exact` uses 64-bit mantissas; without it the arithmetic is plain double.
    """
    inverse = np.linalg.inv(a)
    if exact:
        wide = np.asarray(a, dtype=np.longdouble)
        inverse = inverse.astype(np.longdouble)
        for _ in range(2):  # Newton's steps double the digits of an inverse
            inverse = inverse @ (2 * np.eye(len(a)) - wide @ inverse)
    b = np.array(b, dtype=inverse.dtype)
    total = 0.0
    for row, value in zip(x, y):
        spread = inverse @ row
        variance = sigma2 + row @ spread  # equation (4), corrected
        error = value - row @ inverse @ b
        total += float(-0.5 * (np.log(2 * pi * variance) + error**2 / variance))
        inverse = inverse - np.outer(spread, spread) / variance  # equation (9), A_n^-1 from A_{n-1}
        b = b + row * value / sigma2
    return total


def class_state(
    entities: list[tuple[np.ndarray, np.ndarray]],
    members: list[int],
    n_features: int,
    sigma2: float,
    delta2: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Precision and linear part of a class from the rows of its members."""
    a, b = np.eye(n_features) / delta2, np.zeros(n_features)
    for e in members:
        x, y = entities[e]
        for row, value in zip(x, y):
            a = a + np.outer(row, row) / sigma2
            b = b + row * value / sigma2
    return a, b


def conditional(
    entities: list[tuple[np.ndarray, np.ndarray]],
    agents: list[int],
    labels: list[int],
    e: int,
    n_classes: int,
    sigma2: float,
    delta2: float,
    beta: float,
    *,
    base: np.ndarray | None = None,
    alpha: float | None = None,
) -> np.ndarray:
    """Probabilities of the classes of entity e given all other labels (-1: none yet).

    With `base` = psi the exact conditional, with `alpha` the source's shortcut.
    """
    f = entities[0][0].shape[1]
    others = [j for j in range(len(entities)) if j != e and labels[j] >= 0]
    everywhere = [sum(labels[j] == k for j in others) for k in range(n_classes)]
    log_weights = []
    for k in range(n_classes):
        here = sum(labels[j] == k and agents[j] == agents[e] for j in others)
        if alpha is None:
            share = base[k]
        else:
            share = (everywhere[k] + alpha / n_classes) / (sum(everywhere) + alpha)
        a, b = class_state(entities, [j for j in others if labels[j] == k], f, sigma2, delta2)
        log_weights.append(log(here + beta * share) + event_by_event(*entities[e], a, b, sigma2))
    shifted = np.exp(np.array(log_weights) - max(log_weights))
    return shifted / shifted.sum()


def parallel_draw(
    entities: list[tuple[np.ndarray, np.ndarray]],
    agents: list[int],
    labels: list[int],
    precision: np.ndarray,
    linear: np.ndarray,
    sigma2: float,
    own: np.ndarray | None,
    base: np.ndarray,
    beta: float,
    uniforms: np.ndarray,
) -> tuple[list[int], np.ndarray]:
    """One round with fixed classes; `uniforms` (E,) decide the draws."""
    labels, rows = list(labels), []
    for e, (x, y) in enumerate(entities):
        weights = []
        for k in range(len(base)):
            here = sum(
                labels[j] == k and agents[j] == agents[e] for j in range(len(labels)) if j != e
            )
            share = 0.0 if own is None else own[e, k]
            a = precision[k] - share * x.T @ x / sigma2
            b = linear[k] - share * x.T @ y / sigma2
            weights.append(log(here + beta * base[k]) + event_by_event(x, y, a, b, sigma2))
        probabilities = np.exp(np.array(weights) - max(weights))
        probabilities /= probabilities.sum()
        rows.append(probabilities)
        labels[e] = int(np.searchsorted(np.cumsum(probabilities), uniforms[e]))
    return labels, np.array(rows)


def log_joint(
    entities: list[tuple[np.ndarray, np.ndarray]],
    agents: list[int],
    labels: tuple[int, ...],
    sigma2: float,
    delta2: float,
    beta: float,
    base: np.ndarray,
) -> float:
    """Log of p(labels | psi) p(y | labels), the shares of the agents integrated out."""
    f, k = entities[0][0].shape[1], len(base)
    total = 0.0
    for agent in sorted(set(agents)):
        mine = [z for z, a in zip(labels, agents) if a == agent]
        total += lgamma(beta) - lgamma(beta + len(mine))
        for c in range(k):
            total += lgamma(beta * base[c] + mine.count(c)) - lgamma(beta * base[c])
    for c in range(k):
        a, b = np.eye(f) / delta2, np.zeros(f)
        for e in [e for e, z in enumerate(labels) if z == c]:
            total += event_by_event(*entities[e], a, b, sigma2)
            x, y = entities[e]
            a, b = a + x.T @ x / sigma2, b + x.T @ y / sigma2
    return total


def exact_posterior(*given: Any, n_classes: int) -> dict[tuple[int, ...], float]:
    """Posterior of every labelling by enumeration; `given` as in :func:`log_joint` less labels."""
    entities, agents, *rest = given
    labellings = list(product(range(n_classes), repeat=len(entities)))
    values = np.array([log_joint(entities, agents, z, *rest) for z in labellings])
    weights = np.exp(values - values.max())
    return dict(zip(labellings, weights / weights.sum()))


def scale_reduction(chains: list[np.ndarray]) -> float:
    """R-hat of a number over chains, each split in two (Gelman et al. 2013, 11.3 and 11.4)."""
    n = len(chains[0]) // 2
    halves = [part for chain in chains for part in (chain[:n], chain[-n:])]
    m = len(halves)
    means = [sum(half) / n for half in halves]
    middle = sum(means) / m
    between = n / (m - 1) * sum((mean - middle) ** 2 for mean in means)
    spreads = [
        sum((value - mean) ** 2 for value in half) / (n - 1) for half, mean in zip(halves, means)
    ]
    within = sum(spreads) / m
    return float((((n - 1) / n * within + between / n) / within) ** 0.5)


# ------------------------------------------------------------------------------- kinds or degrees


def normal_log_density(y: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> float:
    away = y - mean
    logs = np.linalg.slogdet(covariance)[1] + len(y) * log(2 * pi)
    return float(-0.5 * (logs + away @ np.linalg.solve(covariance, away)))


def by_agent(
    entities: list[tuple[np.ndarray, np.ndarray]],
    g: np.ndarray,
    agents: list[int],
    between: np.ndarray,
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All events of each agent, and ``H = I + X G X' (in an entity) + X B X' (in the agent)``."""
    found = []
    for agent in dict.fromkeys(agents):
        members = [pair for pair, owner in zip(entities, agents) if owner == agent]
        x, y = (np.concatenate(part) for part in zip(*members))
        which = np.repeat(np.arange(len(members)), [len(pair[1]) for pair in members])
        same = which[:, None] == which
        found.append((x, y, np.eye(len(y)) + same * (x @ g @ x.T) + x @ between @ x.T))
    return found


def restricted_deviance(
    entities: list[tuple[np.ndarray, np.ndarray]],
    g: np.ndarray,
    sigma2: float,
    agents: list[int],
    between: np.ndarray,
) -> float:
    """-2 log restricted likelihood of ``N(X w, sigma2 H)``, w free (flat prior)."""
    a, b, total, n = 0.0, 0.0, 0.0, 0
    for x, y, h in by_agent(entities, g, agents, between):
        v = sigma2 * h
        a = a + x.T @ np.linalg.solve(v, x)
        b = b + x.T @ np.linalg.solve(v, y)
        total += np.linalg.slogdet(v)[1] + y @ np.linalg.solve(v, y)
        n += len(y)
    total += np.linalg.slogdet(a)[1] - b @ np.linalg.solve(a, b)
    return float(total + (n - len(a)) * log(2 * pi))


def left_out(
    x: np.ndarray, y: np.ndarray, known: np.ndarray, mean: np.ndarray, covariance: np.ndarray
) -> tuple[float, float, np.ndarray]:
    """Log density of all events and of the known ones, and the mean of the rest given these."""
    m, v = x @ mean, covariance
    every = normal_log_density(y, m, v)
    inside, rest = v[np.ix_(known, known)], v[np.ix_(~known, known)]
    predicted = m[~known] + rest @ np.linalg.solve(inside, y[known] - m[known])
    return every, normal_log_density(y[known], m[known], inside), predicted


def mixed_left_out(
    entities: list[tuple[np.ndarray, np.ndarray]],
    e: int,
    known: np.ndarray,
    g: np.ndarray,
    sigma2: float,
    penalty: float,
    agents: list[int],
    between: np.ndarray,
) -> tuple[float, float]:
    """Log density and squared error of what is not known of entity e, under a mixed model.

    All events are normal together; those not known are predicted from all that are.
    """
    x = np.concatenate([part for part, _ in entities])
    y = np.concatenate([part for _, part in entities])
    which = np.repeat(np.arange(len(entities)), [len(part) for _, part in entities])
    owner = np.asarray(agents)[which]
    h = np.eye(len(y)) + x @ x.T / penalty + (which[:, None] == which) * (x @ g @ x.T)
    h = sigma2 * (h + (owner[:, None] == owner) * (x @ between @ x.T))
    told = which != e
    told[which == e] = known
    every, some, predicted = left_out(x, y, told, np.zeros(len(g)), h)
    return every - some, float(((y[~told] - predicted) ** 2).sum())


def classes_left_out(
    entities: list[tuple[np.ndarray, np.ndarray]],
    agents: list[int],
    e: int,
    known: np.ndarray,
    labels: np.ndarray,
    base: np.ndarray,
    beta: float,
    noise: np.ndarray,
    delta2: float,
) -> tuple[float, np.ndarray]:
    """The same under classes with the labels of the others: log density, predictions.

    The class that the entity is in is predicted with the known events, the others without them.
    """
    x, y = entities[e]
    f = x.shape[1]
    logs, means = [], []
    for k, sigma2 in enumerate(np.broadcast_to(noise, len(base))):
        members = [i for i in range(len(entities)) if labels[i] == k and i != e]
        same = sum(agents[i] == agents[e] for i in members)
        d = np.eye(f) / delta2 + sum(entities[i][0].T @ entities[i][0] for i in members) / sigma2
        c = np.zeros(f) + sum(entities[i][0].T @ entities[i][1] for i in members) / sigma2
        mean = np.linalg.solve(d, c)
        v = sigma2 * np.eye(len(y)) + x @ np.linalg.inv(d) @ x.T
        every, some, predicted = left_out(x, y, known, mean, v)
        prior = log(same + beta * base[k])
        logs.append((prior + every, prior + some))
        means.append(predicted if labels[e] == k else x[~known] @ mean)
    every, some = np.array(logs).T
    weights = np.exp(some - np.logaddexp.reduce(some))
    return float(np.logaddexp.reduce(every) - np.logaddexp.reduce(some)), weights @ np.array(means)
