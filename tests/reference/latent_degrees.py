"""Textbook classes with degrees: every density from the whole covariance of its events.

Events of class k are jointly normal, ``y ~ N(0, delta2 X X' + V)``, V with a block
``s (diag(1/l) + Z G Z')`` for each entity; a row of weight w is w rows of one l.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np

from tests.reference.latent_class import normal_log_density


@dataclass(frozen=True)
class Entity:
    x: np.ndarray
    y: np.ndarray
    precision: np.ndarray
    weight: np.ndarray

    def copies(self) -> Entity:
        """As many rows as the weights say."""
        often = self.weight.astype(int)
        x, y, precision = (np.repeat(v, often, axis=0) for v in (self.x, self.y, self.precision))
        return Entity(x, y, precision, np.ones(len(y)))


def own_covariance(e: Entity, g: np.ndarray, s: float) -> np.ndarray:
    """Of the events of an entity, given the coefficients of its class."""
    z = e.x[:, : len(g)]
    return s * (np.diag(1.0 / e.precision) + z @ g @ z.T)


def class_log_density(members: list[Entity], g: np.ndarray, s: float, delta2: float) -> float:
    """Of all events of a class, coefficients and own coefficients integrated out."""
    whole = [e.copies() for e in members]
    x = np.concatenate([e.x for e in whole])
    y = np.concatenate([e.y for e in whole])
    v, at = delta2 * x @ x.T, 0
    for e in whole:
        n = len(e.y)
        v[at : at + n, at : at + n] += own_covariance(e, g, s)
        at += n
    return normal_log_density(y, np.zeros(len(y)), v)


def label_log_densities(
    entities: list[Entity], labels: list[int], at: int, g: np.ndarray, s: np.ndarray, delta2: float
) -> np.ndarray:
    """Log density of an entity under each class, given the other entities of the class."""
    found = []
    for k in range(len(s)):
        rest = [e for i, e in enumerate(entities) if labels[i] == k and i != at]
        without = class_log_density(rest, g, s[k], delta2) if rest else 0.0
        found.append(class_log_density([*rest, entities[at]], g, s[k], delta2) - without)
    return np.array(found)


def own_posterior(
    e: Entity, coefficients: np.ndarray, g: np.ndarray, s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of own coefficients, given those of the class."""
    e = e.copies()
    z = e.x[:, : len(g)]
    v = own_covariance(e, g, s)
    gain = s * g @ z.T @ np.linalg.inv(v)
    return gain @ (e.y - e.x @ coefficients), s * g - gain @ z @ (s * g)


def left_out(
    e: Entity, known: np.ndarray, mean: np.ndarray, spread: np.ndarray, g: np.ndarray, s: float
) -> tuple[float, float, np.ndarray]:
    """Log density of the known events, of the rest given these, and the mean of the rest.

    The coefficients of the class are ``N(mean, spread)``.
    """
    v = own_covariance(e, g, s) + e.x @ spread @ e.x.T
    m = e.x @ mean
    some = normal_log_density(e.y[known], m[known], v[np.ix_(known, known)])
    every = normal_log_density(e.y, m, v)
    gain = v[np.ix_(~known, known)] @ np.linalg.inv(v[np.ix_(known, known)])
    return some, every - some, m[~known] + gain @ (e.y[known] - m[known])


def draw_prior(
    rng: np.random.Generator, q: int, df: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """G and a of Huang and Wand (2013): standard deviations are half t, ``A = scale``."""
    from scipy.stats import invwishart

    a = scale**-2 / rng.gamma(0.5, size=q)
    g = invwishart.rvs(df + q - 1, 2 * df * np.diag(1 / a), random_state=rng)
    return np.reshape(g, (q, q)), a


def t_log_density(residual: float, s: float, df: float) -> float:
    """Of one event of t noise, by integrating over l on a fine grid."""
    from scipy.stats import gamma, norm

    at = (np.arange(200_000) + 0.5) / 200_000
    precision = gamma.ppf(at, df / 2, scale=2 / df)
    return log(float(np.mean(norm.pdf(residual, scale=np.sqrt(s / precision)))))
