"""Damped Newton steps for generalised linear models on columns made safe beforehand.

Columns that depend on earlier ones are left out, the others are standardised, or replaced by an
orthonormal basis where their Gram matrix would lose digits. A step costs one Gram matrix; close to
the solution the last factor is used again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, qr, solve_triangular
from scipy.special import expit

from consilience.arrays import FloatArray
from consilience.exceptions import DataError
from consilience.numerics.families import Family, Penalty, family

DEPENDENT = 1e-8  # relative residual at which a column counts as a combination of others
_BLOCK = 1024  # rows at a time: they stay in the cache, and no table is copied as a whole


def row_blocks(n: int) -> Iterator[slice]:
    """Go over n rows, some at a time."""
    return (slice(start, start + _BLOCK) for start in range(0, n, _BLOCK))


def gram(x: FloatArray, w: FloatArray, centre: FloatArray | None = None) -> FloatArray:
    """``(x - centre)' diag(w) (x - centre)`` for weights of at least 0."""
    total, root = np.zeros((x.shape[1], x.shape[1])), np.sqrt(w)[:, None]
    for rows in row_blocks(len(x)):
        part = x[rows] if centre is None else x[rows] - centre
        part = np.multiply(part, root[rows], out=None if centre is None else part)
        total += part.T @ part
    return total


@dataclass(frozen=True)
class Problem:
    """The records with a positive weight, and what is minimised over them."""

    x: FloatArray
    y: FloatArray
    offset: FloatArray
    w: FloatArray  # sums to 1
    family: Family
    penalty: Penalty
    every: tuple[FloatArray, FloatArray, FloatArray]  # x, offset and weights of all records


def make_problem(
    x: ArrayLike,
    y: ArrayLike,
    family: Family,
    offset: ArrayLike | None,
    weights: ArrayLike | None,
    penalty: Penalty | None,
) -> Problem:
    """Check the inputs, and set the records of weight 0 aside."""
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
    every, used = (x, off, w), w > 0
    if not np.all(used):
        x, y, off, w = x[used], y[used], off[used], w[used]
    if not np.all(np.isfinite(y)):
        raise DataError("the response must be finite")
    # weighted means: the objective does not change its size with n
    return Problem(x, y, off, w / w.sum(), family, penalty or Penalty(), every)


@dataclass(frozen=True)
class Columns:
    """A constant and columns ``(x - shift) / scale``, of which no table is made."""

    x: FloatArray  # (n, m)
    shift: FloatArray  # (m,)
    scale: FloatArray  # (m,)

    @classmethod
    def of(
        cls,
        x: FloatArray,
        centre: FloatArray,
        scale: FloatArray,
        kept: NDArray[np.bool_],
        triangle: FloatArray | None = None,
    ) -> Columns:
        """Kept columns in these units; made orthonormal where their triangle is given."""
        shift, unit = centre[kept], scale[kept]
        # Products with columns far from zero lose digits: only the others stay as they are.
        if triangle is None and kept.all() and (np.abs(shift) <= 100 * unit).all():
            return cls(x, shift, unit)
        x = standardised(x, centre, scale, kept)[:, 1:]
        if triangle is not None:
            # z R^-1 is orthonormal: its Gram matrix has all digits
            x = solve_triangular(triangle, x.T, trans="T").T
        return cls(x, np.zeros(len(shift)), np.ones(len(unit)))

    def eta(self, theta: FloatArray) -> FloatArray:
        """Product of the columns with coefficients, (n,)."""
        slopes = theta[1:] / self.scale
        return np.asarray(self.x @ slopes + (theta[0] - self.shift @ slopes))

    def slope(self, score: FloatArray) -> FloatArray:
        """Product of numbers by record (n,) with the columns."""
        total = score.sum()
        return np.append(total, (score @ self.x - total * self.shift) / self.scale)

    def gram(self, w: FloatArray) -> FloatArray:
        """``D' diag(w) D`` of the columns D, for weights of at least 0."""
        found = np.empty((1 + len(self.scale),) * 2)
        found[1:, 1:] = gram(self.x, w, self.shift)
        found[0] = found[:, 0] = np.append(w.sum(), w @ self.x - w.sum() * self.shift)
        units = np.append(1.0, self.scale)
        return found / np.outer(units, units)


@dataclass(frozen=True)
class Design(Columns):
    """Columns in which Newton's method works: standardised, or an orthonormal basis of them.

    The raw coefficients of the kept columns are ``back @ theta`` (without the constant's part).
    """

    kept: NDArray[np.bool_]
    centre: FloatArray  # (p,)
    back: FloatArray  # (kept, kept)
    ridge: FloatArray | None  # (1 + m, 1 + m)

    @property
    def columns(self) -> FloatArray:
        """The columns themselves, the constant first, (n, 1 + m)."""
        return standardised(self.x, self.shift, self.scale)

    def raw(self, theta: FloatArray) -> tuple[FloatArray, float]:
        """Coefficients of the raw columns, and the constant."""
        coef = np.zeros(self.kept.size)
        coef[self.kept] = self.back @ theta[1:]
        return coef, float(theta[0] - self.centre @ coef)

    def theta(self, coef: FloatArray, constant: float) -> FloatArray:
        """Coefficients in these columns; the inverse of `raw`."""
        slopes = np.asarray(np.linalg.solve(self.back, coef[self.kept]), dtype=float)
        return np.concatenate([[constant + self.centre @ coef], slopes])


def make_design(problem: Problem) -> Design:
    """Leave dependent columns out (without a penalty), and standardise the others."""
    x, alpha = problem.x, problem.penalty.alpha
    kept = np.ones(x.shape[1], dtype=bool) if alpha > 0 else None
    centre, scale, kept, triangle = standard_units(x, problem.w, kept)
    back, ridge = np.diag(1 / scale[kept]), None
    columns = Columns.of(x, centre, scale, kept, triangle)
    if triangle is not None:
        back = back @ solve_triangular(triangle, np.eye(len(back)))
    if alpha > 0:
        ridge = np.zeros((1 + len(back),) * 2)
        # alpha |b|^2 / 2 of the raw coefficients b = back theta
        ridge[1:, 1:] = alpha * (back.T @ back)
    return Design(**vars(columns), kept=kept, centre=centre, back=back, ridge=ridge)


def standard_units(
    x: FloatArray, w: FloatArray, kept: NDArray[np.bool_] | None = None
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], FloatArray | None]:
    """Means and spreads of columns, by weights that sum to 1; 1 for the spread of constant ones.

    With them the result of `independent_columns`, unless it is said which columns are kept.
    """
    centre = w @ x
    if kept is None:
        inner = gram(x, w, centre)
        spread = np.sqrt(np.diag(inner))
    else:
        squares = [w[rows] @ np.square(x[rows] - centre) for rows in row_blocks(len(x))]
        spread = np.sqrt(np.sum(squares, axis=0))
    # a constant column has a spread of rounding only
    live = spread > DEPENDENT * np.hypot(spread, centre)
    scale = np.where(live, spread, 1.0)
    if kept is not None or _has_digits(inner[np.ix_(live, live)]):
        return centre, scale, live if kept is None else kept, None
    return centre, scale, *independent_columns((x - centre) / scale, w, live=live)


def standardised(
    x: FloatArray,
    centre: FloatArray,
    scale: FloatArray,
    kept: NDArray[np.bool_] | None = None,
) -> FloatArray:
    """Constant and kept columns in these units, (n, 1 + kept)."""
    m = x.shape[1] if kept is None else int(kept.sum())
    to = np.empty((len(x), 1 + m))
    to[:, 0] = 1.0
    for rows in row_blocks(len(x)):
        part = (x[rows] - centre) / scale
        to[rows, 1:] = part if m == x.shape[1] else part[:, kept]
    return to


def _has_digits(inner: FloatArray) -> bool:
    """Whether columns are so far from dependent that their Gram matrix tells it."""
    lengths = np.sqrt(np.diag(inner))
    try:
        # The least pivot of the Cholesky factor is the least residual; its square has 16 digits.
        return bool((np.diag(np.linalg.cholesky(inner / np.outer(lengths, lengths))) > 1e-4).all())
    except np.linalg.LinAlgError:
        return False


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
    w = np.ones(len(z)) if w is None else w
    inner = gram(z, w)
    norms = np.sqrt(np.diag(inner))
    kept &= norms > 0
    if not kept.any() or _has_digits(inner[np.ix_(kept, kept)]):
        return kept, None
    unit = np.where(kept, norms, 1.0)
    tall = z * np.sqrt(w)[:, None] / unit
    (triangle,) = qr(tall, mode="r", overwrite_a=True, check_finite=False)
    triangle = triangle[: min(triangle.shape)]
    basis = np.zeros((triangle.shape[0], 0))
    for j in np.flatnonzero(kept):
        rest = triangle[:, j]
        # twice is enough (Parlett 1980)
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        length = float(np.linalg.norm(rest))
        if length <= DEPENDENT:
            kept[j] = False
        else:
            basis = np.column_stack([basis, rest / length])
    return kept, (basis.T @ triangle[:, kept]) * unit[kept]


def first_theta(
    problem: Problem, design: Design, begin: tuple[ArrayLike, float] | None
) -> FloatArray:
    """Choose the start: the caller's, a subsample's or the null model's, whichever is lowest."""
    fam, y, off = problem.family, problem.y, problem.offset
    null = np.zeros(1 + design.x.shape[1])
    null[0] = fam.start(y) - float(problem.w @ off)
    options = [null]
    if begin is not None:
        coef = np.asarray(begin[0], dtype=float)
        if coef.shape != design.kept.shape or not np.all(np.isfinite(coef)):
            raise DataError("the start must have one finite coefficient per covariate")
        options.append(design.theta(coef, float(begin[1])))
    elif fam.name in ("log-cosh", "pseudo-huber"):
        # least squares: a start from which the steps of a robust loss do not stall
        options.append(newton(replace(problem, family=Family("normal")), design, null, 1e-6, 2)[0])
    elif fam.mask:
        plain = replace(problem, family=Family("binomial"))
        options.append(newton(plain, design, null, 1e-6, 30)[0])
    elif fam.name != "normal" and y.size >= 40 * max(null.size, 250):
        # a few steps on a tenth of the records: the full data then need one or two
        tenth = slice(None, None, 10)
        w = problem.w[tenth] / problem.w[tenth].sum()
        some = replace(problem, x=problem.x[tenth], y=y[tenth], offset=off[tenth], w=w)
        short = replace(design, x=np.ascontiguousarray(design.x[tenth]))
        options.append(newton(some, short, null, 1e-4, 15)[0])
    values = [_objective(problem, design, theta)[0] for theta in options]
    return options[int(np.nanargmin(values))] if len(options) > 1 else null


def _objective(
    problem: Problem, design: Design, theta: FloatArray, eta: FloatArray | None = None
) -> tuple[float, FloatArray]:
    if eta is None:
        eta = design.eta(theta) + problem.offset
    value = float(problem.w @ problem.family.loss(problem.y, eta))
    if design.ridge is not None:
        value += 0.5 * float(theta @ design.ridge @ theta)
    return value, eta


def _factor(design: Design, weights: FloatArray, jitter: float = 0.0) -> Any:
    """Cholesky factor of the Hessian, or None where it is not positive definite."""
    hessian = design.gram(np.maximum(weights, 0.0))
    if np.any(weights < 0):
        hessian -= design.gram(np.maximum(-weights, 0.0))
    if design.ridge is not None:
        hessian += design.ridge
    diagonal = np.diag(hessian).copy()
    if not (np.all(diagonal > 0) and np.all(np.isfinite(diagonal))):
        return None
    if jitter:
        np.fill_diagonal(hessian, diagonal * (1 + jitter))
    try:
        factor = cho_factor(hessian, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None
    # A pivot at the level of rounding would send the step anywhere.
    return factor if np.all(np.diag(factor[0]) ** 2 > 1e-15 * diagonal) else None


def newton(
    problem: Problem, design: Design, theta: FloatArray, tol: float, max_iter: int
) -> tuple[FloatArray, int, bool, bool]:
    """Damped Newton steps from `theta`: solution, steps, converged, separated."""
    fam, y = problem.family, problem.y

    def separates(eta: FloatArray) -> bool:
        return endless((np.ones((len(y), 1)), design.x), y, eta, fam, problem.w)

    unit = float(np.sqrt(problem.w @ y**2)) if fam.name == "normal" else 1.0
    value, eta = _objective(problem, design, theta)
    factor, drift, careful, speed = None, 0, bool(fam.mask), math.inf
    for n_iter in range(1, max_iter + 1):
        grad = design.slope(problem.w * fam.score(y, eta))
        grad = grad if design.ridge is None else grad + design.ridge @ theta
        # Close to the solution the last factor still contracts by about the size of the last step.
        if factor is None or speed > 1e-3:
            factor, careful = _best_factor(problem, design, eta, careful)
        # Newton: H step = -gradient
        step = -cho_solve(factor, grad, check_finite=False)
        move = design.eta(step)
        longest = float(np.max(np.abs(move)))
        # twice the fall of the objective that a quadratic model promises
        decrement = -float(grad @ step)
        size, slack = 1.0, 1e-14 * (1 + abs(value))
        # Halved until the objective does not rise. A fresh product would cost another pass over the
        # columns; rounding of the sum is harmless because each gradient is taken at the sum.
        for _ in range(60):
            trial, further = theta + size * step, eta + size * move
            with np.errstate(over="ignore", invalid="ignore"):
                new_value, _ = _objective(problem, design, trial, further)
            if new_value <= value + slack:
                theta, value, eta = trial, new_value, further
                break
            size *= 0.5
        else:
            size = 0.0
        rounding = 1e-13 * float(np.max(np.abs(eta)))
        small = size * longest <= max(tol * unit, rounding) or decrement <= 1e-3 * (tol * unit) ** 2
        # only a full step says that the next one would be smaller
        if size == 1.0 and small:
            without_end = separates(eta)
            return theta, n_iter, not without_end, without_end
        if size == 0.0 and decrement <= 1e-14 * (1 + abs(value)):
            return theta, n_iter, True, False  # rounding: no lower value can be found
        # long steps that gain next to nothing: the optimum may lie at infinity
        drift = drift + 1 if longest >= 0.3 and decrement < 1e-4 else 0
        if drift >= 5 and separates(eta):
            return theta, n_iter, False, True
        slow = size * longest > 0.5 * speed
        careful = size < 0.2 or (bool(fam.mask) and decrement > 1e-3)
        speed = math.inf if slow or size < 1.0 else size * longest
    return theta, max_iter, False, separates(eta)


def endless(
    blocks: Iterable[FloatArray], y: FloatArray, eta: FloatArray, family: Family, w: FloatArray
) -> bool:
    """Whether records that the fit has pushed to the end of the link alone fix some direction.

    Where a maximum exists, every direction is also fixed by records of the other outcome, whose
    expected number (or count) is then not below one in a thousand among all records.

    Parameters
    ----------
    blocks : iterable of (n, p) arrays
        Columns of the fit, the constant among them; gone over only where it comes to that.
    y, eta : (n,) arrays
        Response, and the linear predictor of an unpenalised fit.
    family : Family
    w : (n,) array
        Case weights; records of weight 0 take no part.
    """
    used = w > 0
    limit = 1e-3 / int(used.sum())
    if family.name == "binomial":
        far = expit(eta) * expit(-eta) < limit
    elif family.name in ("poisson", "tweedie"):
        typical = 1.0 if family.name == "poisson" else float(w @ y / w.sum())
        far = (y == 0) & (np.exp(np.minimum(eta, 500.0)) < limit * typical)
    else:
        return False
    far &= used
    if not far.any():
        return False
    columns = np.column_stack(list(blocks))
    near = used & ~far
    left, _ = independent_columns(columns[near], w[near])
    every, _ = independent_columns(columns[used], w[used])
    return int(left.sum()) < int(every.sum())


def _best_factor(
    problem: Problem, design: Design, eta: FloatArray, careful: bool
) -> tuple[Any, bool]:
    """Factor of the observed Hessian, of a safer one if that fails or if `careful` asks for it."""
    fam = problem.family
    if not careful:
        factor = _factor(design, problem.w * fam.weight(problem.y, eta))
        if factor is not None:
            return factor, False
    safe = fam.safe_weight(problem.y, eta)
    top = float(np.max(safe))
    for floor, jitter in ((0.0, 0.0), (1e-12, 0.0), (1e-9, 1e-13), (1e-6, 1e-9), (1e-3, 1e-6)):
        raised = np.maximum(safe, floor * max(top, 1e-12))
        factor = _factor(design, problem.w * raised, jitter)
        if factor is not None:
            return factor, True
    raise DataError("the fit broke down: the covariates' scales lie too far apart")


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
    start: tuple[ArrayLike, float] | None = None,
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
    start : (coef, intercept), optional
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
    problem = make_problem(x, y, family, offset, weights, penalty)
    note, separated = "", False
    if problem.penalty.alpha * problem.penalty.l1_ratio > 0:
        coef, constant, n_iter, converged = _fit_lasso(problem, start, tol, max_iter)
        kept = np.ones(problem.x.shape[1], dtype=bool)
        if not converged:
            note = f"the penalised fit did not converge in {max_iter} steps"
    else:
        design = make_design(problem)
        theta = first_theta(problem, design, start)
        theta, n_iter, converged, separated = newton(problem, design, theta, tol, max_iter)
        (coef, constant), kept = design.raw(theta), design.kept
        if separated:
            note = "some linear predictors grow without end: the covariates separate the response"
        elif not converged:
            note = f"the fit did not converge in {max_iter} steps"
    every_x, every_offset, w = problem.every
    eta, used = every_x @ coef + constant + every_offset, w > 0
    deviance = family.deviance(problem.y, eta[used], w[used])
    return Fit(coef, constant, eta, deviance, n_iter, converged, kept, separated, note)


def _fit_lasso(
    problem: Problem, begin: tuple[ArrayLike, float] | None, tol: float, max_iter: int
) -> tuple[FloatArray, float, int, bool]:
    """Elastic net by glum; losses that glum does not know by weighted least squares steps."""
    fam, penalty, x, y = problem.family, problem.penalty, problem.x, problem.y
    coef, constant = np.zeros(x.shape[1]), fam.start(y) - float(problem.w @ problem.offset)
    if begin is not None:
        coef, constant = np.asarray(begin[0], dtype=float), float(begin[1])
    if fam.mask == 0 and fam.name not in ("log-cosh", "pseudo-huber"):
        coef, constant, n_iter, converged = _glum(problem, coef, constant, max_iter)
    else:
        coef, constant, n_iter, converged = _proximal(problem, coef, constant, tol, max_iter)
    if not converged:
        score = problem.w * fam.score(y, x @ coef + constant + problem.offset)
        grad = score @ x + penalty.alpha * (1 - penalty.l1_ratio) * coef
        lasso = penalty.alpha * penalty.l1_ratio
        # Karush-Kuhn-Tucker: at 0 the gradient may be as large as the penalty
        off = np.maximum(np.abs(grad) - lasso, 0)
        # ... and elsewhere it must balance it
        gap = np.where(coef != 0, np.abs(grad + lasso * np.sign(coef)), off)
        null = problem.w * fam.score(y, problem.offset + fam.start(y))
        unit = max(lasso, float(np.max(np.abs(null @ x), initial=0.0)))
        violation = max(float(np.max(gap, initial=0.0)), abs(float(score.sum())))
        converged = violation / unit < 1e-7
    return coef, constant, n_iter, converged


def _glum(
    problem: Problem, coef: FloatArray, constant: float, max_iter: int
) -> tuple[FloatArray, float, int, bool]:
    import warnings

    import glum  # type: ignore[import-untyped]

    fam = problem.family
    name: Any = glum.TweedieDistribution(fam.option) if fam.name == "tweedie" else fam.name
    model = glum.GeneralizedLinearRegressor(
        alpha=problem.penalty.alpha,
        l1_ratio=problem.penalty.l1_ratio,
        family=name,
        link="log" if fam.name in ("poisson", "gamma", "tweedie") else "auto",
        gradient_tol=1e-9,
        max_iter=max(max_iter, 100),
        start_params=np.append(constant, coef),
    )
    x, w = np.asfortranarray(problem.x), problem.w * problem.w.size
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, problem.y, sample_weight=w, offset=problem.offset)
    converged = not any("onverge" in str(each.message) for each in caught)
    return np.asarray(model.coef_, dtype=float), float(model.intercept_), model.n_iter_, converged


def _proximal(
    problem: Problem, coef: FloatArray, constant: float, tol: float, max_iter: int
) -> tuple[FloatArray, float, int, bool]:
    """Proximal Newton: each step a penalised weighted least squares problem, halved if it rises."""
    fam, x = problem.family, problem.x

    def value(c: FloatArray, b: float) -> float:
        eta = x @ c + b + problem.offset
        return float(problem.w @ fam.loss(problem.y, eta)) + problem.penalty.value(c)

    now = value(coef, constant)
    for n_iter in range(1, max_iter + 1):
        eta = x @ coef + constant + problem.offset
        w = problem.w * np.maximum(fam.safe_weight(problem.y, eta), 1e-12)
        total = float(w.sum())
        # working response: weighted least squares with the same gradient and curvature
        working = eta - problem.offset - problem.w * fam.score(problem.y, eta) / w
        inner = replace(
            problem,
            y=working,
            offset=np.zeros(working.size),
            # weights are scaled to sum to 1, and the penalty with them
            w=w / total,
            family=Family("normal"),
            penalty=Penalty(problem.penalty.alpha / total, problem.penalty.l1_ratio),
        )
        to, to_constant, _, _ = _glum(inner, coef, constant, 1000)
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


__all__ = ["Family", "Fit", "Penalty", "family", "fit"]
