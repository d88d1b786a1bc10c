"""Losses in a linear predictor, with score, weight, mean and deviance.

Each family is a loss ``l(y, eta)`` with score ``s = dl/deta`` and weight ``w = d2l/deta2``, as
additive-effect assisted learning asks for (Zhang, Yang and Ding 2025, *Journal of the Royal
Statistical Society B*, section 2). Gamma, Tweedie and the negative binomial have the log link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, xlogy

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError
from consilience.parameters import allows, check, number, one_of, rules_of

NAMES = ("normal", "binomial", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie")
_OPTION = {"log-cosh": 0.3, "pseudo-huber": 1.0}
_LARGEST = 1e100  # sums of squares of such numbers stay finite
_TOP = 500.0  # exponents are cut here: exp(500) is 1e217, sums of it stay finite


def _exp(eta: FloatArray) -> FloatArray:
    return np.exp(np.minimum(eta, _TOP))


@dataclass(frozen=True)
class Family:
    """A loss in the linear predictor; made by :func:`family`.

    Parameters
    ----------
    name : str
        One of `NAMES`, or "negative-binomial".
    option : float
        Slope of log-cosh (.3), bend of pseudo-Huber (1), power of Tweedie, alpha of the negative
        binomial, whose variance is ``mean + alpha mean^2``; 0 elsewhere.
    mask : float
        Probability with which each 0/1 response was flipped before it was passed on (binomial
        only); the link is then ``mask + (1 - 2 mask) expit(eta)``.
    """

    name: str
    option: float = 0.0
    mask: float = 0.0

    def check(self, y: FloatArray) -> str | None:
        """Say in a phrase what a response must be and this one is not; None if it fits."""
        if not np.all(np.isfinite(y)):
            return "finite numbers"
        if np.any(np.abs(y) > _LARGEST):
            return f"numbers of at most {_LARGEST:g} in size"
        if self.name == "binomial":
            if not np.all((y == 0) | (y == 1)):
                return "0 or 1"
            if y.size and np.all(y == y[0]):
                return "of both classes, 0 and 1"
        elif self.name in ("poisson", "negative-binomial"):
            if not np.all((y >= 0) & (y == np.floor(y))):
                return "whole numbers of at least 0"
            if not np.any(y):
                return "above 0 in some record"
        elif self.name == "gamma" and not np.all(y > 0):
            return "above 0"
        elif self.name == "tweedie":
            if not np.all(y >= 0):
                return "at least 0"
            if not np.any(y):
                return "above 0 in some record"
        return None

    def loss(self, y: FloatArray, eta: FloatArray) -> FloatArray:
        """Loss of each record; minus the log likelihood up to terms in y alone."""
        k = self.option
        match self.name:
            case "normal":
                # l = (y - eta)^2 / 2: minus the log likelihood of unit variance
                return 0.5 * (y - eta) ** 2
            case "binomial" if self.mask == 0:
                # log(1 + e^eta) - y eta, which does not overflow
                return np.logaddexp(0, eta) - y * eta
            case "binomial":
                # minus the log probability of what the mask shows; 1 - shown(eta) is shown(-eta)
                return -np.log(np.where(y > 0.5, self._shown(eta), self._shown(-eta)))
            case "poisson":
                # without log y!, which does not depend on eta
                return _exp(eta) - y * eta
            case "log-cosh":
                # log cosh x = |x| + log(1 + e^-2|x|) - log 2, which does not overflow
                size = np.abs(k * (y - eta))
                return (size + np.log1p(np.exp(-2 * size)) - math.log(2)) / k
            case "pseudo-huber":
                r = (y - eta) / k
                # k^2 (sqrt(1 + r^2) - 1), without its loss of digits at small r
                return k * k * r * r / (np.sqrt(1 + r * r) + 1)
            case "gamma":
                # shape 1: the dispersion does not move the optimum
                return y * _exp(-eta) + eta
            case "negative-binomial":
                return (y + 1 / k) * np.logaddexp(0, eta + math.log(k)) - y * eta
            case _:
                # mean e^eta, variance mean^k, 1 < k < 2
                return y * _exp((1 - k) * eta) / (k - 1) + _exp((2 - k) * eta) / (2 - k)

    def score(self, y: FloatArray, eta: FloatArray) -> FloatArray:
        """First derivative of the loss in eta."""
        k = self.option
        match self.name:
            case "normal":
                return eta - y
            case "binomial" if self.mask == 0:
                return expit(eta) - y
            case "binomial":
                sign = np.where(y > 0.5, 1.0, -1.0)
                slope = (1 - 2 * self.mask) * expit(eta) * expit(-eta)
                return -sign * slope / self._shown(sign * eta)
            case "poisson":
                return _exp(eta) - y
            case "log-cosh":
                return -np.tanh(k * (y - eta))
            case "pseudo-huber":
                r = y - eta
                return -r / np.sqrt(1 + (r / k) ** 2)
            case "gamma":
                return 1 - y * _exp(-eta)
            case "negative-binomial":
                # (mean - y) / (1 + alpha mean), of which neither part overflows
                far = eta + math.log(k)
                return np.asarray(expit(far) / k - y * expit(-far))
            case _:
                return _exp((2 - k) * eta) - y * _exp((1 - k) * eta)

    def weight(self, y: FloatArray, eta: FloatArray) -> FloatArray:
        """Second derivative of the loss in eta; may be negative for a masked response."""
        k = self.option
        match self.name:
            case "binomial" if self.mask > 0:
                sign = np.where(y > 0.5, 1.0, -1.0)
                p = expit(sign * eta)
                slope = (1 - 2 * self.mask) * p * expit(-sign * eta)
                ratio = slope / self._shown(sign * eta)
                # quotient rule on slope / shown: negative where the mask contradicts a sure fit
                return ratio * (ratio - (1 - 2 * p))
            case "log-cosh":
                return k * (1 - np.tanh(k * (y - eta)) ** 2)
            case "pseudo-huber":
                return (1 + ((y - eta) / k) ** 2) ** -1.5
            case "gamma":
                return y * _exp(-eta)
            case "negative-binomial":
                far = eta + math.log(k)
                return np.asarray((1 / k + y) * expit(far) * expit(-far))
            case "tweedie":
                return (k - 1) * y * _exp((1 - k) * eta) + (2 - k) * _exp((2 - k) * eta)
            case _:
                return self.expected_weight(eta)

    def expected_weight(self, eta: FloatArray) -> FloatArray:
        """Weight expected at eta; for log-cosh and pseudo-Huber the largest, at residual 0."""
        k = self.option
        match self.name:
            case "binomial" if self.mask == 0:
                return expit(eta) * expit(-eta)
            case "binomial":
                slope = (1 - 2 * self.mask) * expit(eta) * expit(-eta)
                # Fisher information of the masked response: (d shown / d eta)^2 / variance
                return slope**2 / (self._shown(eta) * self._shown(-eta))
            case "poisson":
                return _exp(eta)
            case "log-cosh":
                return np.full(np.shape(eta), k)
            case "tweedie":
                return _exp((2 - k) * eta)
            case "negative-binomial":
                return np.asarray(expit(eta + math.log(k)) / k)
            case _:
                return np.ones(np.shape(eta))

    def safe_weight(self, y: FloatArray, eta: FloatArray) -> FloatArray:
        """Positive weight for a step where Newton's overshoots.

        For the two losses in the residual it is ``s/r``, which majorises the loss, so a full step
        never raises it (Huber 1981, section 7.8).
        """
        r = y - eta
        if self.name == "pseudo-huber":
            return 1 / np.sqrt(1 + (r / self.option) ** 2)
        if self.name == "log-cosh":
            a = self.option
            small = np.abs(a * r) < 1e-6
            return np.where(small, a, np.tanh(a * r) / np.where(small, 1.0, r))
        return self.expected_weight(eta)

    def mean(self, eta: ArrayLike) -> FloatArray:
        """Inverse link: mean of the response, of the true one where the response is masked."""
        eta = np.asarray(eta, dtype=float)
        if self.name == "binomial":
            return np.asarray(expit(eta))
        if self.name in ("poisson", "gamma", "tweedie", "negative-binomial"):
            return _exp(eta)
        return eta

    def deviance(self, y: FloatArray, eta: FloatArray, weights: FloatArray | None = None) -> float:
        """Twice the weighted sum of the loss above its least value at each y."""
        # terms in y alone cancel here
        gap = self.loss(y, eta) - self.least(y)
        return 2 * float(np.sum(gap) if weights is None else np.dot(weights, gap))

    def start(self, y: FloatArray, weights: FloatArray | None = None) -> float:
        """Linear predictor of a model without covariates, kept finite (median for two losses)."""
        if self.name in ("log-cosh", "pseudo-huber"):
            return float(np.median(y if weights is None else y[weights > 0]))
        average = float(np.average(y, weights=weights))
        if self.name == "binomial":
            # mean of the true response that the mask leaves
            share = (average - self.mask) / (1 - 2 * self.mask)
            share = min(max(share, 0.01), 0.99)
            return math.log(share / (1 - share))
        if self.name in ("poisson", "gamma", "tweedie"):
            # the log link of an average of 0 would have no start
            return math.log(max(average, 1e-8))
        return average

    def _shown(self, eta: FloatArray) -> FloatArray:
        """Probability that the masked response is 1."""
        return np.asarray(self.mask + (1 - 2 * self.mask) * expit(eta))

    def least(self, y: FloatArray) -> FloatArray:
        """Least loss that any linear predictor has at each y."""
        k = self.option
        if self.name == "poisson":
            return np.asarray(y - xlogy(y, y))
        if self.name == "gamma":
            return np.asarray(1 + np.log(y))
        if self.name == "negative-binomial":
            return np.asarray((y + 1 / k) * np.log1p(k * y) - xlogy(y, y))
        if self.name == "tweedie":
            return np.asarray(y ** (2 - k) / ((k - 1) * (2 - k)))
        return np.zeros(np.shape(y))


def family(name: str, *, power: float = 1.5, mask: float = 0.0) -> Family:
    """Make a family.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    power : float
        Tweedie only: power of the variance function, between 1 and 2.
    mask : float
        Binomial only: probability of a flip, at least 0 and below 1/2.

    Raises
    ------
    ParameterError
        An unknown name, or a number outside its range.
    """
    rules = {"family": one_of(*NAMES), "mask": number(0, below=0.5)}
    if name == "tweedie":
        rules["power"] = number(above=1, below=2)
    check(rules, {"family": name, "power": power, "mask": mask})
    if mask and name != "binomial":
        raise ParameterError.of("mask", f"0 for the family {name}", mask)
    return Family(name, power if name == "tweedie" else _OPTION.get(name, 0.0), mask)


@dataclass(frozen=True)
class Penalty:
    """Elastic net: ``alpha (l1_ratio |b|_1 + (1 - l1_ratio)/2 |b|_2^2)``, intercept free.

    It is added to the weighted *mean* of the losses.
    """

    alpha: float = allows(number(0), default=0.0)
    l1_ratio: float = allows(number(0, 1), default=0.0)

    def __post_init__(self) -> None:
        check(rules_of(self), vars(self))

    def value(self, coef: FloatArray) -> float:
        """Penalty at `coef`."""
        lasso, ridge = self.alpha * self.l1_ratio, self.alpha * (1 - self.l1_ratio)
        return lasso * float(np.sum(np.abs(coef))) + 0.5 * ridge * float(coef @ coef)
