"""Damped Newton steps for generalised linear models on columns made safe beforehand.

Columns that depend on earlier ones are left out, the others are standardised, or replaced by an
orthonormal basis where their Gram matrix would lose digits. A step costs one Gram matrix; close to
the solution the last factor is used again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
class Design:
    """Columns in which Newton's method works: standardised, or an orthonormal basis of them.

    The raw coefficients of the kept columns are ``back @ theta`` (without the constant's part).
    """

    columns: FloatArray  # (n, m), the constant first
    kept: NDArray[np.bool_]
    centre: FloatArray  # (p,)
    back: FloatArray  # (kept, kept)
    ridge: FloatArray | None  # (m, m)

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
    x, w, alpha = problem.x, problem.w, problem.penalty.alpha
    size = np.sqrt(w @ (x * x))
    # weighted means and spreads: columns of one unit, orthogonal to the constant
    centre = w @ x
    z = x - centre
    spread = np.sqrt(w @ (z * z))
    # a constant column has a spread of rounding only
    live = spread > DEPENDENT * size
    scale = np.where(live, spread, 1.0)
    z /= scale
    kept, back = np.ones(x.shape[1], dtype=bool), np.diag(1 / scale)
    if alpha == 0:
        kept, triangle = independent_columns(z, w, live=live)
        z, back = z[:, kept] if not kept.all() else z, back[np.ix_(kept, kept)]
        if triangle is not None:
            # z R^-1 is orthonormal: its Gram matrix has all digits
            z = solve_triangular(triangle, z.T, trans="T", overwrite_b=True).T
            back = back @ solve_triangular(triangle, np.eye(int(kept.sum())))
    columns = np.empty((x.shape[0], z.shape[1] + 1))
    columns[:, 0], columns[:, 1:] = 1.0, z
    ridge = None
    if alpha > 0:
        ridge = np.zeros((columns.shape[1],) * 2)
        # alpha |b|^2 / 2 of the raw coefficients b = back theta
        ridge[1:, 1:] = alpha * (back.T @ back)
    return Design(columns, kept, centre, back, ridge)


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
    null = np.zeros(design.columns.shape[1])
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
        short = replace(design, columns=np.ascontiguousarray(design.columns[tenth]))
        options.append(newton(some, short, null, 1e-4, 15)[0])
    values = [_objective(problem, design, theta)[0] for theta in options]
    return options[int(np.nanargmin(values))] if len(options) > 1 else null


def _objective(
    problem: Problem, design: Design, theta: FloatArray, eta: FloatArray | None = None
) -> tuple[float, FloatArray]:
    if eta is None:
        eta = design.columns @ theta + problem.offset
    value = float(problem.w @ problem.family.loss(problem.y, eta))
    if design.ridge is not None:
        value += 0.5 * float(theta @ design.ridge @ theta)
    return value, eta


def _factor(design: Design, weights: FloatArray, buffer: FloatArray, jitter: float = 0.0) -> Any:
    """Cholesky factor of the Hessian, or None where it is not positive definite."""
    if np.any(weights < 0):
        np.multiply(design.columns, weights[:, None], out=buffer)
        hessian = design.columns.T @ buffer
    else:
        np.multiply(design.columns, np.sqrt(weights)[:, None], out=buffer)
        hessian = buffer.T @ buffer
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
        return endless((design.columns,), y, eta, fam, problem.w)

    unit = float(np.sqrt(problem.w @ y**2)) if fam.name == "normal" else 1.0
    buffer = np.empty_like(design.columns)
    value, eta = _objective(problem, design, theta)
    factor, drift, careful, speed = None, 0, bool(fam.mask), math.inf
    for n_iter in range(1, max_iter + 1):
        grad = (problem.w * fam.score(y, eta)) @ design.columns
        grad = grad if design.ridge is None else grad + design.ridge @ theta
        # Close to the solution the last factor still contracts by about the size of the last step.
        if factor is None or speed > 1e-3:
            factor, careful = _best_factor(problem, design, eta, careful, buffer)
        # Newton: H step = -gradient
        step = -cho_solve(factor, grad, check_finite=False)
        move = design.columns @ step
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
    blocks: Sequence[FloatArray], y: FloatArray, eta: FloatArray, family: Family, w: FloatArray
) -> bool:
    """Whether records that the fit has pushed to the end of the link alone fix some direction.

    Where a maximum exists, every direction is also fixed by records of the other outcome, whose
    expected number (or count) is then not below one in a thousand among all records.

    Parameters
    ----------
    blocks : sequence of (n, p) arrays
        Columns of the fit, the constant among them.
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
    columns = blocks[0] if len(blocks) == 1 else np.column_stack(blocks)
    near = used & ~far
    left, _ = independent_columns(columns[near], w[near])
    every, _ = independent_columns(columns[used], w[used])
    return int(left.sum()) < int(every.sum())


def _best_factor(
    problem: Problem, design: Design, eta: FloatArray, careful: bool, buffer: FloatArray
) -> tuple[Any, bool]:
    """Factor of the observed Hessian, of a safer one if that fails or if `careful` asks for it."""
    fam = problem.family
    if not careful:
        factor = _factor(design, problem.w * fam.weight(problem.y, eta), buffer)
        if factor is not None:
            return factor, False
    safe = fam.safe_weight(problem.y, eta)
    top = float(np.max(safe))
    for floor, jitter in ((0.0, 0.0), (1e-12, 0.0), (1e-9, 1e-13), (1e-6, 1e-9), (1e-3, 1e-6)):
        raised = np.maximum(safe, floor * max(top, 1e-12))
        factor = _factor(design, problem.w * raised, buffer, jitter)
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
