"""Generalised linear models with offsets and weights, by a damped Newton method.

Each family is a loss ``l(y, eta)`` in the linear predictor, with score ``s = dl/deta`` and weight
``w = d2l/deta2``, as additive-effect assisted learning asks for (Zhang, Yang and Ding 2025,
*Journal of the Royal Statistical Society B*, section 2). Gamma and Tweedie have the log link.

``fit`` solves unpenalised and ridge problems itself: a Newton step costs one Gram matrix, a start
close to the solution needs one or two, and columns that depend on others are found beforehand in
the order of the columns. What has an L1 part is solved by glum's coordinate descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, qr, solve_triangular
from scipy.special import expit, xlogy

from consilience.exceptions import DataError, ParameterError

FloatArray = NDArray[np.float64]

NAMES = ("normal", "binomial", "poisson", "log-cosh", "pseudo-huber", "gamma", "tweedie")
DEPENDENT = 1e-8  # relative residual at which a column counts as a combination of others
_OPTION = {"log-cosh": 0.3, "pseudo-huber": 1.0}
_TOP = 500.0  # exponents are cut here: exp(500) is 1e217, sums of it stay finite


def _exp(eta: FloatArray) -> FloatArray:
    return np.exp(np.minimum(eta, _TOP))


def _log_cosh(x: FloatArray) -> FloatArray:
    size = np.abs(x)
    return size + np.log1p(np.exp(-2 * size)) - math.log(2)


@dataclass(frozen=True)
class Family:
    """A loss in the linear predictor; made by :func:`family`.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    option : float
        Slope of log-cosh (.3), bend of pseudo-Huber (1), power of Tweedie; 0 elsewhere.
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
        if self.name == "binomial":
            if not np.all((y == 0) | (y == 1)):
                return "0 or 1"
            if y.size and np.all(y == y[0]):
                return "of both classes, 0 and 1"
        elif self.name == "poisson":
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
                return 0.5 * (y - eta) ** 2
            case "binomial" if self.mask == 0:
                return np.logaddexp(0, eta) - y * eta
            case "binomial":
                return -np.log(np.where(y > 0.5, self._shown(eta), self._shown(-eta)))
            case "poisson":
                return _exp(eta) - y * eta
            case "log-cosh":
                return _log_cosh(k * (y - eta)) / k
            case "pseudo-huber":
                r = (y - eta) / k
                return k * k * r * r / (np.sqrt(1 + r * r) + 1)
            case "gamma":
                return y * _exp(-eta) + eta
            case _:
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
                return ratio * (ratio - (1 - 2 * p))
            case "log-cosh":
                return k * (1 - np.tanh(k * (y - eta)) ** 2)
            case "pseudo-huber":
                return (1 + ((y - eta) / k) ** 2) ** -1.5
            case "gamma":
                return y * _exp(-eta)
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
                return slope**2 / (self._shown(eta) * self._shown(-eta))
            case "poisson":
                return _exp(eta)
            case "log-cosh":
                return np.full(np.shape(eta), k)
            case "tweedie":
                return _exp((2 - k) * eta)
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
        if self.name in ("poisson", "gamma", "tweedie"):
            return _exp(eta)
        return eta

    def deviance(self, y: FloatArray, eta: FloatArray, weights: FloatArray | None = None) -> float:
        """Twice the weighted sum of the loss above its least value at each y."""
        gap = self.loss(y, eta) - self._least(y)
        return 2 * float(np.sum(gap) if weights is None else np.dot(weights, gap))

    def start(self, y: FloatArray, weights: FloatArray | None = None) -> float:
        """Linear predictor of a model without covariates, kept finite (median for two losses)."""
        if self.name in ("log-cosh", "pseudo-huber"):
            return float(np.median(y if weights is None else y[weights > 0]))
        average = float(np.average(y, weights=weights))
        if self.name == "binomial":
            share = (average - self.mask) / (1 - 2 * self.mask)
            share = min(max(share, 0.01), 0.99)
            return math.log(share / (1 - share))
        if self.name in ("poisson", "gamma", "tweedie"):
            return math.log(max(average, 1e-8))
        return average

    def _shown(self, eta: FloatArray) -> FloatArray:
        """Probability that the masked response is 1."""
        return np.asarray(self.mask + (1 - 2 * self.mask) * expit(eta))

    def _least(self, y: FloatArray) -> FloatArray | float:
        k = self.option
        if self.name == "poisson":
            return y - xlogy(y, y)
        if self.name == "gamma":
            return 1 + np.log(y)
        if self.name == "tweedie":
            return y ** (2 - k) / ((k - 1) * (2 - k))
        return 0.0


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
    if name not in NAMES:
        raise ParameterError.of("family", f"one of {', '.join(NAMES)}", name)
    if name == "tweedie" and not 1 < power < 2:
        raise ParameterError.of("power", "between 1 and 2", power)
    if not 0 <= mask < 0.5:
        raise ParameterError.of("mask", "at least 0 and below 0.5", mask)
    if mask and name != "binomial":
        raise ParameterError.of("mask", f"0 for the family {name}", mask)
    return Family(name, power if name == "tweedie" else _OPTION.get(name, 0.0), mask)


@dataclass(frozen=True)
class Penalty:
    """Elastic net: ``alpha (l1_ratio |b|_1 + (1 - l1_ratio)/2 |b|_2^2)``, intercept free.

    It is added to the weighted *mean* of the losses.
    """

    alpha: float = 0.0
    l1_ratio: float = 0.0

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ParameterError.of("alpha", "a finite number of at least 0", self.alpha)
        if not 0 <= self.l1_ratio <= 1:
            raise ParameterError.of("l1_ratio", "between 0 and 1", self.l1_ratio)

    def value(self, coef: FloatArray) -> float:
        """Penalty at `coef`."""
        lasso, ridge = self.alpha * self.l1_ratio, self.alpha * (1 - self.l1_ratio)
        return lasso * float(np.sum(np.abs(coef))) + 0.5 * ridge * float(coef @ coef)


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Parameters
    ----------
    coef : ndarray of shape (p,)
    intercept : float
    eta : ndarray of shape (n,)
        Linear predictor with the offset, also of records with weight 0.
    deviance : float
        Weighted, without the penalty.
    n_iter : int
        Newton steps.
    converged : bool
    kept : ndarray of bool, shape (p,)
        False where a column depends on earlier ones at relative residual 1e-8; its coefficient
        is 0. With a penalty all columns are kept.
    separated : bool
        Some linear predictors grow without end: the classes (or the zero counts) are separated by
        the covariates. Coefficients are then those of the last step.
    note : str
        A sentence for the reader when something is to be said, else empty.
    """

    coef: FloatArray
    intercept: float
    eta: FloatArray
    deviance: float
    n_iter: int
    converged: bool
    kept: NDArray[np.bool_]
    separated: bool = False
    note: str = ""


def fit(
    x: ArrayLike,
    y: ArrayLike,
    family: Family,
    *,
    offset: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    intercept: bool = True,
    start: tuple[ArrayLike, float] | Fit | None = None,
    penalty: Penalty | None = None,
    tol: float = 1e-10,
    max_iter: int = 100,
) -> Fit:
    """Minimise the weighted mean loss plus the penalty.

    Parameters
    ----------
    x : array of shape (n, p)
        Covariates without a constant column.
    y : array of shape (n,)
    family : Family
    offset : array of shape (n,), optional
    weights : array of shape (n,), optional
        At least 0; records of weight 0 take no part, but get a linear predictor.
    intercept : bool
    start : Fit or (coef, intercept), optional
        Where to start; ignored where the model without covariates is better.
    penalty : Penalty, optional
    tol : float
        Largest change of the linear predictor in the last step, relative to its largest value.
    max_iter : int
        Most Newton steps.

    Raises
    ------
    DataError
        Shapes that do not fit, values that are not finite, no record with a positive weight.
    """
    problem = _problem(x, y, family, offset, weights, intercept, penalty)
    begin = (start.coef, start.intercept) if isinstance(start, Fit) else start
    if problem.penalty.alpha * problem.penalty.l1_ratio > 0:
        return _fit_lasso(problem, begin, tol, max_iter)
    design = _design(problem)
    theta = _first(problem, design, begin)
    theta, n_iter, converged, separated = _newton(problem, design, theta, tol, max_iter)
    coef, constant = design.raw(theta)
    note = ""
    if separated:
        note = "some linear predictors grow without end: the covariates separate the response"
    elif not converged:
        note = f"the fit did not converge in {max_iter} steps"
    return _finished(problem, coef, constant, n_iter, converged, design.kept, separated, note)


@dataclass(frozen=True)
class _Problem:
    """Inputs, and the records with a positive weight (`x` to `w`)."""

    all_x: FloatArray
    all_y: FloatArray
    all_offset: FloatArray
    all_weights: FloatArray
    x: FloatArray
    y: FloatArray
    offset: FloatArray
    w: FloatArray  # sums to 1
    family: Family
    intercept: bool
    penalty: Penalty


def _problem(
    x: ArrayLike,
    y: ArrayLike,
    family: Family,
    offset: ArrayLike | None,
    weights: ArrayLike | None,
    intercept: bool,
    penalty: Penalty | None,
) -> _Problem:
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    n = y.shape[0] if y.ndim == 1 else -1
    off = np.zeros(n) if offset is None else np.asarray(offset, dtype=float)
    w = np.ones(n) if weights is None else np.asarray(weights, dtype=float)
    if x.ndim != 2 or x.shape[0] != n or off.shape != (n,) or w.shape != (n,):
        raise DataError("covariates, response, offset and weights must have the same records")
    if not (np.all(np.isfinite(w)) and np.all(w >= 0) and np.any(w > 0)):
        raise DataError("weights must be finite, at least 0 and above 0 in some record")
    if not (np.all(np.isfinite(x)) and np.all(np.isfinite(off))):
        raise DataError("covariates and offset must be finite")
    part = (x, y, off, w) if np.all(w > 0) else tuple(a[w > 0] for a in (x, y, off, w))
    if not np.all(np.isfinite(part[1])):
        raise DataError("the response must be finite")
    share = part[3] / part[3].sum()
    penalty = Penalty() if penalty is None else penalty
    return _Problem(x, y, off, w, part[0], part[1], part[2], share, family, intercept, penalty)


def _finished(
    problem: _Problem,
    coef: FloatArray,
    constant: float,
    n_iter: int,
    converged: bool,
    kept: NDArray[np.bool_],
    separated: bool,
    note: str,
) -> Fit:
    eta = problem.all_x @ coef + constant + problem.all_offset
    used = problem.all_weights > 0
    deviance = problem.family.deviance(problem.y, eta[used], problem.all_weights[used])
    return Fit(coef, constant, eta, deviance, n_iter, converged, kept, separated, note)


@dataclass(frozen=True)
class _Design:
    """Columns in which Newton's method works: standardised, or an orthonormal basis of them.

    The raw coefficients of the kept columns are ``back @ theta`` (without the constant's part).
    """

    columns: FloatArray  # (n, m), the constant first if there is one
    kept: NDArray[np.bool_]
    centre: FloatArray  # (p,)
    back: FloatArray  # (kept, kept)
    intercept: bool
    ridge: FloatArray | None  # (m, m)

    def raw(self, theta: FloatArray) -> tuple[FloatArray, float]:
        first = int(self.intercept)
        coef = np.zeros(self.kept.size)
        coef[self.kept] = self.back @ theta[first:]
        constant = float(theta[0] - self.centre @ coef) if self.intercept else 0.0
        return coef, constant

    def theta(self, coef: FloatArray, constant: float) -> FloatArray:
        slopes: FloatArray = np.linalg.solve(self.back, coef[self.kept])
        if not self.intercept:
            return slopes
        return np.concatenate([[constant + self.centre @ coef], slopes])


def _design(problem: _Problem) -> _Design:
    x, w = problem.x, problem.w
    p = x.shape[1]
    size = np.sqrt(w @ (x * x)) if p else np.zeros(0)
    centre = w @ x if problem.intercept and p else np.zeros(p)
    z = x - centre
    spread = np.sqrt(w @ (z * z)) if p else np.zeros(0)
    alpha = problem.penalty.alpha
    live = spread > DEPENDENT * size
    scale = np.where(live, spread, 1.0)
    z /= scale
    kept, back = np.ones(p, dtype=bool), np.diag(1 / scale)
    if alpha == 0:
        kept, triangle = independent_columns(z, w, live=live)
        z, back = z[:, kept] if not kept.all() else z, back[np.ix_(kept, kept)]
        if triangle is not None:
            z = solve_triangular(triangle, z.T, trans="T", overwrite_b=True).T
            back = back @ solve_triangular(triangle, np.eye(int(kept.sum())))
    first = int(problem.intercept)
    columns = np.empty((x.shape[0], z.shape[1] + first))
    columns[:, first:] = z
    if first:
        columns[:, 0] = 1.0
    ridge = None
    if alpha > 0:
        ridge = np.zeros((columns.shape[1],) * 2)
        ridge[first:, first:] = alpha * (back.T @ back)
    return _Design(columns, kept, centre, back, problem.intercept, ridge)


def independent_columns(
    z: FloatArray, w: FloatArray | None = None, *, live: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.bool_], FloatArray | None]:
    """Find the columns that do not depend on earlier ones at relative residual 1e-8.

    Parameters
    ----------
    z : ndarray of shape (n, p)
    w : ndarray of shape (n,), optional
        Weights of the records.
    live : ndarray of bool, shape (p,), optional
        Columns that may be kept.

    Returns
    -------
    kept : ndarray of bool, shape (p,)
    triangle : ndarray of shape (k, k) or None
        R of the QR decomposition of the kept columns (times the root of `w`) where they are so
        close to dependent that their Gram matrix has lost digits; None where it has not.
    """
    p = z.shape[1]
    kept = np.ones(p, dtype=bool) if live is None else live.copy()
    root = np.ones(z.shape[0]) if w is None else np.sqrt(w)
    tall = z * root[:, None]
    norms = np.sqrt(np.einsum("ij,ij->j", tall, tall))
    kept &= norms > 0
    if not kept.any():
        return kept, None
    unit = np.where(kept, norms, 1.0)
    gram = (tall.T @ tall)[np.ix_(kept, kept)] / np.outer(unit[kept], unit[kept])
    try:
        # The least pivot of the Cholesky factor is the least residual; its square has 16 digits.
        if np.min(np.diag(np.linalg.cholesky(gram))) > 1e-4:
            return kept, None
    except np.linalg.LinAlgError:
        pass
    tall /= unit
    (triangle,) = qr(tall, mode="r", overwrite_a=True, check_finite=False)
    triangle = triangle[: min(triangle.shape)]
    basis = np.zeros((triangle.shape[0], 0))
    for j in np.flatnonzero(kept):
        rest = triangle[:, j]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        length = float(np.linalg.norm(rest))
        if length <= DEPENDENT:
            kept[j] = False
        else:
            basis = np.column_stack([basis, rest / length])
    return kept, (basis.T @ triangle[:, kept]) * unit[kept]


def _first(problem: _Problem, design: _Design, begin: tuple[ArrayLike, float] | None) -> FloatArray:
    """Choose the start: the caller's, a subsample's or the null model's, whichever is lowest."""
    fam = problem.family
    m = design.columns.shape[1]
    null = np.zeros(m)
    if problem.intercept:
        null[0] = fam.start(problem.y) - float(problem.w @ problem.offset)
    options = [null]
    if begin is not None:
        coef = np.asarray(begin[0], dtype=float)
        if coef.shape != design.kept.shape or not np.all(np.isfinite(coef)):
            raise DataError("the start must have one finite coefficient per covariate")
        options.append(design.theta(coef, float(begin[1])))
    elif fam.name in ("log-cosh", "pseudo-huber"):
        options.append(_newton(_as(problem, Family("normal")), design, null, 1e-6, 2)[0])
    elif fam.mask:
        options.append(_newton(_as(problem, Family("binomial")), design, null, 1e-6, 30)[0])
    elif fam.name != "normal" and problem.y.size >= 40 * max(m, 250):
        options.append(_from_subsample(problem, design, null))
    values = [_objective(problem, design, theta)[0] for theta in options]
    return options[int(np.nanargmin(values))] if len(options) > 1 else null


def _as(problem: _Problem, fam: Family) -> _Problem:
    values = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    return _Problem(**{**values, "family": fam})


def _from_subsample(problem: _Problem, design: _Design, null: FloatArray) -> FloatArray:
    """A few Newton steps on a tenth of the records: the full data then need one or two."""
    part = slice(None, None, 10)
    values = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
    small = {name: values[name][part] for name in ("x", "y", "offset", "w")}
    small["w"] = small["w"] / small["w"].sum()
    some = _Problem(**{**values, **small})
    values = {name: getattr(design, name) for name in design.__dataclass_fields__}
    short = _Design(**{**values, "columns": np.ascontiguousarray(design.columns[part])})
    return _newton(some, short, null, 1e-4, 15)[0]


def _objective(
    problem: _Problem, design: _Design, theta: FloatArray, eta: FloatArray | None = None
) -> tuple[float, FloatArray]:
    if eta is None:
        eta = design.columns @ theta + problem.offset
    value = float(problem.w @ problem.family.loss(problem.y, eta))
    if design.ridge is not None:
        value += 0.5 * float(theta @ design.ridge @ theta)
    return value, eta


def _gradient(problem: _Problem, design: _Design, theta: FloatArray, eta: FloatArray) -> FloatArray:
    grad = (problem.w * problem.family.score(problem.y, eta)) @ design.columns
    return np.asarray(grad if design.ridge is None else grad + design.ridge @ theta)


def _factor(design: _Design, weights: FloatArray, buffer: FloatArray) -> Any:
    """Cholesky factor of the Hessian, or None where it is not positive definite."""
    if np.any(weights < 0):
        np.multiply(design.columns, weights[:, None], out=buffer)
        hessian = design.columns.T @ buffer
    else:
        np.multiply(design.columns, np.sqrt(weights)[:, None], out=buffer)
        hessian = buffer.T @ buffer
    if design.ridge is not None:
        hessian += design.ridge
    top = float(np.max(np.diag(hessian), initial=0.0))
    if not (0 < top < math.inf):
        return None
    try:
        factor = cho_factor(hessian, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    # A pivot at the level of rounding would send the step anywhere.
    return factor if np.min(np.diag(factor[0])) ** 2 > 1e-15 * top else None


def _newton(
    problem: _Problem, design: _Design, theta: FloatArray, tol: float, max_iter: int
) -> tuple[FloatArray, int, bool, bool]:
    """Damped Newton steps from `theta`: solution, steps, converged, separated."""
    fam = problem.family
    if theta.size == 0:
        return theta, 0, True, False
    unit = float(np.sqrt(problem.w @ problem.y**2)) if fam.name == "normal" else 1.0
    buffer = np.empty_like(design.columns)
    value, eta = _objective(problem, design, theta)
    origin = eta
    factor, drift, careful, speed = None, 0, bool(fam.mask), math.inf
    for n_iter in range(1, max_iter + 1):
        grad = _gradient(problem, design, theta, eta)
        # Close to the solution the last factor still contracts by about the size of the last step.
        if factor is None or speed > 1e-3:
            factor, careful = _best_factor(problem, design, eta, careful, buffer)
        step = -cho_solve(factor, grad, check_finite=False)
        move = design.columns @ step
        longest = float(np.max(np.abs(move)))
        decrement = -float(grad @ step)
        size, theta, value, eta = _search(problem, design, (theta, value, eta), step, move)
        reach = max(unit, float(np.max(np.abs(eta))))
        if size * longest <= tol * reach and size == 1.0:
            return theta, n_iter, True, False
        if size == 0.0 and decrement <= 1e-14 * (1 + abs(value)):
            return theta, n_iter, True, False  # rounding: no lower value can be found
        drift = drift + 1 if longest >= 0.3 and decrement < 1e-4 else 0
        if drift >= 5 and np.max(np.abs(eta - origin)) > (10.0 if fam.mask else 15.0):
            return theta, n_iter, False, True
        slow = size * longest > 0.5 * speed
        careful = size < 0.2 or (bool(fam.mask) and decrement > 1e-3)
        speed = math.inf if slow or size < 1.0 else size * longest
    return theta, max_iter, False, False


def _best_factor(
    problem: _Problem, design: _Design, eta: FloatArray, careful: bool, buffer: FloatArray
) -> tuple[Any, bool]:
    """Factor of the observed Hessian, of a safer one if that fails or if `careful` asks for it."""
    fam = problem.family
    if not careful:
        factor = _factor(design, problem.w * fam.weight(problem.y, eta), buffer)
        if factor is not None:
            return factor, False
    safe = fam.safe_weight(problem.y, eta)
    top = float(np.max(safe))
    for floor in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        factor = _factor(design, problem.w * np.maximum(safe, floor * max(top, 1e-12)), buffer)
        if factor is not None:
            return factor, True
    raise DataError("the fit broke down: the covariates' scales lie too far apart")


def _search(
    problem: _Problem,
    design: _Design,
    at: tuple[FloatArray, float, FloatArray],
    step: FloatArray,
    move: FloatArray,
) -> tuple[float, FloatArray, float, FloatArray]:
    """Halve the step until the objective does not rise; a step of 0 if it always does."""
    theta, value, eta = at
    slack = 1e-14 * (1 + abs(value))
    size = 1.0
    for _ in range(60):
        # A fresh product would cost another pass over the columns; rounding of the sum is harmless
        # because each step's gradient is taken at the sum.
        trial, new_eta = theta + size * step, eta + size * move
        with np.errstate(over="ignore", invalid="ignore"):
            new_value, _ = _objective(problem, design, trial, new_eta)
        if new_value <= value + slack:
            return size, trial, new_value, new_eta
        size *= 0.5
    return 0.0, theta, value, eta


def _fit_lasso(
    problem: _Problem, begin: tuple[ArrayLike, float] | None, tol: float, max_iter: int
) -> Fit:
    """Elastic net by glum; losses that glum does not know by weighted least squares steps."""
    fam = problem.family
    p = problem.x.shape[1]
    coef, constant = np.zeros(p), 0.0
    if problem.intercept:
        constant = fam.start(problem.y) - float(problem.w @ problem.offset)
    if begin is not None:
        coef, constant = np.asarray(begin[0], dtype=float), float(begin[1])
    if fam.mask == 0 and fam.name not in ("log-cosh", "pseudo-huber"):
        coef, constant, n_iter, converged = _glum(
            problem, fam, problem.y, problem.offset, problem.w, (coef, constant), max_iter
        )
    else:
        coef, constant, n_iter, converged = _proximal(problem, coef, constant, tol, max_iter)
    note = "" if converged else f"the penalised fit did not converge in {max_iter} steps"
    kept = np.ones(p, dtype=bool)
    return _finished(problem, coef, constant, n_iter, converged, kept, False, note)


def _glum(
    problem: _Problem,
    fam: Family,
    y: FloatArray,
    offset: FloatArray,
    w: FloatArray,
    begin: tuple[FloatArray, float],
    max_iter: int,
) -> tuple[FloatArray, float, int, bool]:
    import warnings

    from glum import (  # type: ignore[import-untyped]
        GeneralizedLinearRegressor,
        TweedieDistribution,
    )

    name: Any = TweedieDistribution(fam.option) if fam.name == "tweedie" else fam.name
    link = "log" if fam.name in ("poisson", "gamma", "tweedie") else "auto"
    first = [begin[1]] if problem.intercept else []
    model = GeneralizedLinearRegressor(
        alpha=problem.penalty.alpha,
        l1_ratio=problem.penalty.l1_ratio,
        family=name,
        link=link,
        fit_intercept=problem.intercept,
        gradient_tol=1e-9,
        max_iter=max(max_iter, 100),
        start_params=np.concatenate([first, begin[0]]),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.asfortranarray(problem.x), y, sample_weight=w * w.size, offset=offset)
    converged = not any("onverge" in str(each.message) for each in caught)
    return np.asarray(model.coef_, dtype=float), float(model.intercept_), model.n_iter_, converged


def _proximal(
    problem: _Problem, coef: FloatArray, constant: float, tol: float, max_iter: int
) -> tuple[FloatArray, float, int, bool]:
    """Proximal Newton: each step a penalised weighted least squares problem, halved if it rises."""
    fam, x = problem.family, problem.x

    def value(c: FloatArray, b: float) -> float:
        eta = x @ c + b + problem.offset
        return float(problem.w @ fam.loss(problem.y, eta)) + problem.penalty.value(c)

    now = value(coef, constant)
    for n_iter in range(1, max_iter + 1):
        eta = x @ coef + constant + problem.offset
        w = problem.w * fam.safe_weight(problem.y, eta)
        total = float(w.sum())
        working = eta - problem.offset - problem.w * fam.score(problem.y, eta) / w
        scaled = Penalty(problem.penalty.alpha / total, problem.penalty.l1_ratio)
        values = {name: getattr(problem, name) for name in problem.__dataclass_fields__}
        inner = _Problem(**{**values, "penalty": scaled})
        zero = np.zeros(problem.y.size)
        to, to_constant, _, _ = _glum(
            inner, Family("normal"), working, zero, w / total, (coef, constant), 1000
        )
        size = 1.0
        while size > 1e-10:
            trial = coef + size * (to - coef), constant + size * (to_constant - constant)
            new = value(*trial)
            if new <= now + 1e-14 * (1 + abs(now)):
                break
            size *= 0.5
        else:
            return coef, constant, n_iter, False
        change = float(np.max(np.abs(x @ (trial[0] - coef) + trial[1] - constant)))
        coef, constant, now = trial[0], trial[1], new
        if change <= max(tol, 1e-8) * max(1.0, float(np.max(np.abs(eta)))):
            return coef, constant, n_iter, True
    return coef, constant, max_iter, False
