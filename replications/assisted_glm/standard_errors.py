"""Standard errors of a joint GLM in one process: exchanges of targets and further directions.

As in ``in_one_process``, on the kernels of ``consilience.assisted.kernels.joint_glm``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray
from consilience.assisted.kernels.joint_glm import (
    CERTIFIED,
    Residual,
    Solution,
    bounded_factor,
    initiator_solution,
    largest_correlation,
    partner_residual,
    ritz_values,
)
from consilience.assisted.kernels.local_fits import working_weights
from consilience.exceptions import ParameterError
from consilience.numerics.families import Family
from replications.assisted_glm.in_one_process import JointFit


def initiator_design(x_a: FloatArray, messages: FloatArray) -> FloatArray:
    """Stack ``[1, X_a, M]``; M in the order in which predictions of new subjects come."""
    x_a = np.asarray(x_a, dtype=float)
    return np.column_stack([np.ones(x_a.shape[0]), x_a, messages])


@dataclass(frozen=True)
class JointErrors:
    """Standard errors of m targets.

    Parameters
    ----------
    estimate : ndarray of shape (m,)
        Linear predictor, or coefficient.
    se : ndarray of shape (m,)
        Sandwich error with the factor ``sqrt(n/(n - rank))``; NaN unless certified or bounded.
    se_sandwich, se_model : ndarray of shape (m,)
        Without that factor.
    status : tuple of m str
        ``identified`` (certified), ``shared`` (no single answer exists), ``bounded`` (see `factor`)
        or ``not certified``.
    factor : ndarray of shape (m,)
        1 where certified; what to multiply the model-based error by where bounded; else NaN.
    relative : ndarray of shape (m,)
        Relative residual at the end.
    rounds : int
        Exchanges of ``W c`` and new messages.
    rank : list of int
        Dimensions of each partner's column space revealed, training included.
    rho : float
        What the factors rest on.
    """

    estimate: FloatArray
    se: FloatArray
    se_sandwich: FloatArray
    se_model: FloatArray
    status: tuple[str, ...]
    factor: FloatArray
    relative: FloatArray
    rounds: int
    rank: list[int]
    rho: float


def joint_intervals(
    fit: JointFit,
    x_a: FloatArray,
    partners: Sequence[FloatArray],
    y: FloatArray,
    family: Family,
    targets_a: FloatArray,
    targets: Sequence[FloatArray],
    *,
    weights: FloatArray | None = None,
    max_rank: int | None = None,
    rho: float | None = None,
) -> JointErrors:
    """Standard errors of the linear predictor of new subjects, in one process.

    Parameters
    ----------
    fit : JointFit
    x_a, partners, y, family, weights
        As they were given to ``fit_jointly``.
    targets_a : ndarray of shape (m, p_a)
    targets : sequence of ndarray of shape (m, p_b)
        The subjects' columns at each partner, as they are (not centred).
    max_rank : int, optional
        Most dimensions that each partner's messages may span, those of the training included.
    rho : float, optional
        Largest canonical correlation below 1 where it is known; else it is estimated.
    """
    targets_a = np.atleast_2d(np.asarray(targets_a, dtype=float))
    rows = np.column_stack([np.ones(targets_a.shape[0]), targets_a])
    centred = [
        np.atleast_2d(np.asarray(each, dtype=float)) - centre
        for each, centre in zip(targets, fit.centres)
    ]
    return _errors(fit, x_a, partners, y, family, (rows, centred), weights, max_rank, rho)


def coefficient_errors(
    fit: JointFit,
    x_a: FloatArray,
    partners: Sequence[FloatArray],
    y: FloatArray,
    family: Family,
    *,
    weights: FloatArray | None = None,
    max_rank: int | None = None,
    rho: float | None = None,
) -> JointErrors:
    """Standard errors of the initiator's intercept (at the partners' means) and coefficients.

    Parameters as in :func:`joint_intervals`; the result has 1 + p_a targets.
    """
    rows = np.eye(1 + np.shape(x_a)[1])
    zeros = [np.zeros((rows.shape[0], np.shape(x_b)[1])) for x_b in partners]
    return _errors(fit, x_a, partners, y, family, (rows, zeros), weights, max_rank, rho)


def _errors(
    fit: JointFit,
    x_a: FloatArray,
    partners: Sequence[FloatArray],
    y: FloatArray,
    family: Family,
    targets: tuple[FloatArray, list[FloatArray]],
    weights: FloatArray | None,
    max_rank: int | None,
    rho: float | None,
) -> JointErrors:
    rows, parts = targets
    v = np.ones(np.size(y)) if weights is None else np.asarray(weights, dtype=float)
    y = np.where(v > 0, y, np.asarray(y)[int(np.argmax(v > 0))])
    w, s = v * working_weights(family, y, fit.eta), v * family.score(y, fit.eta)
    blocks = [np.asarray(x, float) - centre for x, centre in zip(partners, fit.centres)]
    betas = [np.asarray(each) for each in fit.directions]
    counts = list(fit.rank)
    rounds = 0
    while True:
        owner = np.repeat(np.arange(len(blocks)), [beta.shape[1] for beta in betas])
        design = initiator_design(x_a, np.column_stack([b @ d for b, d in zip(blocks, betas)]))
        told = np.column_stack([rows, *[part @ d for part, d in zip(parts, betas)]])
        solution = initiator_solution(design, w, s, told)
        open_ = solution.estimable
        answers = [
            partner_residual(
                block,
                w,
                solution.weighted[:, open_],
                part[open_],
                most=max((block.shape[1] if max_rank is None else max_rank) - count, 0),
            )
            for block, part, count in zip(blocks, parts, counts)
        ]
        more = [
            answer.directions[:, : answer.rank - count] for answer, count in zip(answers, counts)
        ]
        if not any(each.shape[1] for each in more):
            break
        rounds += 1
        betas = [np.column_stack([beta, each]) for beta, each in zip(betas, more)]
        counts = [count + each.shape[1] for count, each in zip(counts, more)]
    full = all(count == answer.rank for count, answer in zip(counts, answers))
    own = int(np.linalg.matrix_rank(design[:, : rows.shape[1]]))
    rank = solution.rank if full else own + sum(answer.rank for answer in answers)
    estimate = rows @ np.append(fit.intercept, fit.coef_a)
    estimate += sum(part @ beta for part, beta in zip(parts, fit.betas))
    known = largest_correlation(ritz_values(design, w, owner)) if rho is None else rho
    return _judged(solution, answers, estimate, int(np.sum(w > 0)), rank, (rounds, counts, known))


def _judged(
    solution: Solution,
    answers: list[Residual],
    estimate: FloatArray,
    n: int,
    rank: int,
    course: tuple[int, list[int], float],
) -> JointErrors:
    """Say of each target what its error is worth."""
    rounds, counts, rho = course
    m = estimate.size
    estimable = solution.estimable.copy()
    rest, relative = np.full(m, math.nan), np.full(m, math.nan)
    rest[estimable] = np.sum([answer.rest for answer in answers], axis=0)
    relative[estimable] = np.sqrt(np.sum([answer.relative**2 for answer in answers], axis=0))
    estimable[estimable] = np.all([answer.estimable for answer in answers], axis=0)
    certified = estimable & (relative <= CERTIFIED)
    factor = np.where(certified, 1.0, bounded_factor(solution.se_model, rest, rho))
    factor[~estimable] = math.nan
    words = np.where(
        certified,
        "identified",
        np.where(~estimable, "shared", np.where(np.isnan(factor), "not certified", "bounded")),
    )
    small = math.sqrt(n / (n - rank)) if n > rank else math.nan
    return JointErrors(
        estimate=estimate,
        se=np.where(np.isnan(factor), math.nan, small * solution.se_sandwich),
        se_sandwich=solution.se_sandwich,
        se_model=solution.se_model,
        status=tuple(str(word) for word in words),
        factor=factor,
        relative=relative,
        rounds=rounds,
        rank=counts,
        rho=rho,
    )


def paper(sigma_a2: FloatArray, sigma_b2: FloatArray, level: float = 0.95) -> FloatArray:
    """Half width of the source's interval: local sandwich parts, each at level (1 + level)/2.

    It is no valid interval in general: the covariance between the parts is ignored.
    """
    from scipy.stats import norm

    if not 0 < level < 1:
        raise ParameterError.of("level", "between 0 and 1", level)
    z = float(norm.ppf(1 - (1 - level) / 4))
    return np.asarray(z * (np.sqrt(sigma_a2) + np.sqrt(sigma_b2)))
