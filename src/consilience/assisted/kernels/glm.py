"""Generalised linear models with offsets, weights and an elastic-net penalty.

``fit`` solves unpenalised and ridge problems by damped Newton steps of its own
(`consilience.assisted.kernels.newton`); what has an L1 part is solved by glum's coordinate descent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray
from consilience.assisted.kernels.families import NAMES, Family, Penalty, family
from consilience.assisted.kernels.newton import (
    DEPENDENT,
    Problem,
    endless,
    first_theta,
    independent_columns,
    make_design,
    make_problem,
    newton,
)

__all__ = [
    "DEPENDENT",
    "NAMES",
    "Family",
    "Fit",
    "Penalty",
    "endless",
    "family",
    "fit",
    "independent_columns",
]


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
    problem = make_problem(x, y, family, offset, weights, intercept, penalty)
    begin = (start.coef, start.intercept) if isinstance(start, Fit) else start
    if problem.penalty.alpha * problem.penalty.l1_ratio > 0:
        return _fit_lasso(problem, begin, tol, max_iter)
    design = make_design(problem)
    theta = first_theta(problem, design, begin)
    theta, n_iter, converged, separated = newton(problem, design, theta, tol, max_iter)
    coef, constant = design.raw(theta)
    note = ""
    if separated:
        note = "some linear predictors grow without end: the covariates separate the response"
    elif not converged:
        note = f"the fit did not converge in {max_iter} steps"
    return _finished(problem, coef, constant, n_iter, converged, design.kept, separated, note)


def _finished(
    problem: Problem,
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


def _fit_lasso(
    problem: Problem, begin: tuple[ArrayLike, float] | None, tol: float, max_iter: int
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
    converged = converged or _optimality(problem, coef, constant) < 1e-7
    note = "" if converged else f"the penalised fit did not converge in {max_iter} steps"
    kept = np.ones(p, dtype=bool)
    return _finished(problem, coef, constant, n_iter, converged, kept, False, note)


def _optimality(problem: Problem, coef: FloatArray, constant: float) -> float:
    """Largest violation of the Karush-Kuhn-Tucker conditions, beside the largest gradient at 0."""
    fam, penalty = problem.family, problem.penalty
    eta = problem.x @ coef + constant + problem.offset
    score = problem.w * fam.score(problem.y, eta)
    grad = score @ problem.x + penalty.alpha * (1 - penalty.l1_ratio) * coef
    lasso = penalty.alpha * penalty.l1_ratio
    off = np.maximum(np.abs(grad) - lasso, 0)
    gap = np.where(coef != 0, np.abs(grad + lasso * np.sign(coef)), off)
    null = problem.w * fam.score(problem.y, problem.offset + fam.start(problem.y))
    unit = max(lasso, float(np.max(np.abs(null @ problem.x), initial=0.0)))
    rest = abs(float(score.sum())) if problem.intercept else 0.0
    return max(float(np.max(gap, initial=0.0)), rest) / unit


def _glum(
    problem: Problem,
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
        working = eta - problem.offset - problem.w * fam.score(problem.y, eta) / w
        scaled = Penalty(problem.penalty.alpha / total, problem.penalty.l1_ratio)
        inner = replace(problem, penalty=scaled)
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
