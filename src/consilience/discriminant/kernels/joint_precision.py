"""Precision matrices of K classes that share their zeros, with a certificate.

Minimises ``sum_k n_k (tr(S_k T_k) - logdet T_k) + lam sum_{j != j'} |(T_1,jj', ..., T_K,jj')|_2``
over ordered pairs, the diagonal free (Le and Hastie, arXiv 1407.4543, equation 4; the joint
graphical lasso of Danaher, Wang and Witten, JRSS B 2014, with a group penalty only). Screening
splits the features exactly into blocks, each of which is solved alone; the gap between the value
and a feasible point of the dual says how far the result can be from the minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from consilience.discriminant.kernels.joint_precision_moments import (
    ClassMoments,
    Floats,
    Indices,
    MatrixMoments,
    RowMoments,
    components,
    largest_penalty,
    pair_norms,
)
from consilience.discriminant.kernels.joint_precision_solver import (
    Problem,
    Solution,
    cholesky,
    solve_block,
    symmetric_inverse,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import ordered_map

__all__ = [
    "ClassMoments",
    "JointPrecision",
    "MatrixMoments",
    "RowMoments",
    "components",
    "fit_precisions",
    "largest_penalty",
]

LARGE = 60
"""Features of a block that is worth a worker of its own."""


@dataclass(frozen=True, eq=False)
class JointPrecision:
    """Precision matrices by blocks, and how exact they are.

    Parameters
    ----------
    lam : float
        Penalty.
    n : ndarray of shape (K,)
        Rows of each class.
    n_features : int
    blocks : tuple of ndarray of int of shape (q,)
        Connected features, each sorted, in order of first features. Other features are single.
    precisions : tuple of ndarray of shape (K, q, q)
        Precision matrices of each block.
    diagonal : ndarray of shape (K, p)
        ``1 / S_k,jj`` of single features, NaN inside blocks.
    log_det : ndarray of shape (K,)
        Log-determinants of the whole precision matrices.
    objective, dual : float
        Value, and that of a feasible point of the dual.
    gap : float
        Their difference: the value is at most this far above the minimum.
    relative_gap : float
        ``gap / (p sum_k n_k)``.
    penalty_norm : float
        ``P(T)``, the sum of group norms over ordered pairs.
    n_links : int
        Pairs ``j < j'`` whose group is not zero.
    n_iter : int
        Largest number of iterations of a block.
    solvers : dict
        Steps of each kind over all blocks.
    """

    lam: float
    n: Floats
    n_features: int
    blocks: tuple[Indices, ...]
    precisions: tuple[Floats, ...]
    diagonal: Floats
    log_det: Floats
    objective: float
    dual: float
    gap: float
    relative_gap: float
    penalty_norm: float
    n_links: int
    n_iter: int
    solvers: dict[str, int] = field(default_factory=dict)

    def dense(self) -> Floats:
        """Whole precision matrices, shape (K, p, p)."""
        out = np.zeros((len(self.n), self.n_features, self.n_features))
        place = np.arange(self.n_features)
        out[:, place, place] = self.diagonal
        for block, precision in zip(self.blocks, self.precisions, strict=True):
            out[:, block[:, None], block[None, :]] = precision
        return out

    def quadratic(self, x: Floats, means: Floats) -> Floats:
        """Squared Mahalanobis distances ``(x - mu_k)' T_k (x - mu_k)``, shape (n, K).

        Parameters
        ----------
        x : ndarray of shape (n, p)
        means : ndarray of shape (K, p)
        """
        out = np.zeros((len(x), len(self.n)))
        single = np.flatnonzero(~np.isnan(self.diagonal[0]))
        for k, mean in enumerate(means):
            centred = x[:, single] - mean[single]
            out[:, k] = np.square(centred) @ self.diagonal[k, single]
            for block, precision in zip(self.blocks, self.precisions, strict=True):
                centred = x[:, block] - mean[block]
                out[:, k] += np.einsum("ij,ij->i", centred @ precision[k], centred)
        return out

    def links(self) -> tuple[Indices, Floats]:
        """Linked pairs ``j < j'``, shape (n_links, 2), and their entries, shape (n_links, K)."""
        pairs: list[Indices] = [np.empty((0, 2), dtype=np.intp)]
        entries: list[Floats] = [np.empty((0, len(self.n)))]
        for block, precision in zip(self.blocks, self.precisions, strict=True):
            i, j = np.nonzero(np.triu(pair_norms(precision), 1))
            pairs.append(np.stack([block[i], block[j]], axis=1))
            entries.append(precision[:, i, j].T)
        found = np.concatenate(pairs)
        order = np.lexsort((found[:, 1], found[:, 0]))
        return found[order], np.concatenate(entries)[order]


def fit_precisions(
    moments: ClassMoments,
    lam: float,
    *,
    start: JointPrecision | None = None,
    tol: float = 1e-8,
    max_iter: int = 200,
    max_block: int | None = None,
    n_jobs: int | None = 1,
) -> JointPrecision:
    """Fit the precision matrices of all classes at one penalty.

    Parameters
    ----------
    moments : ClassMoments
        Every variance must be positive.
    lam : float
        Penalty, not negative; 0 gives the inverses of the covariance matrices.
    start : JointPrecision, optional
        A fit at another penalty, from which the iteration starts.
    tol : float
        Relative gap to reach.
    max_iter : int
        Largest number of iterations of a block; where it is reached, the gap says so.
    max_block : int, optional
        Refuse blocks with more features than this.
    n_jobs : int, optional
        Blocks at the same time, as in joblib.

    Raises
    ------
    ParameterError
        Where a parameter is out of range, or a block is larger than ``max_block``.
    DataError
        Where a variance is not positive, or lam = 0 and a covariance matrix is singular.
    """
    _check(moments, lam, tol, max_iter)
    labels = components(moments, lam)
    blocks = _blocks(labels)
    _check_size(moments, lam, blocks, max_block)
    parts = [moments.block(block) for block in blocks]
    return _fit(moments, lam, blocks, parts, start, tol, max_iter, n_jobs)


def _check(moments: ClassMoments, lam: float, tol: float, max_iter: int) -> None:
    """Refuse what cannot be fitted."""
    if not (np.isfinite(lam) and lam >= 0):
        raise ParameterError.of("lam", "a finite number that is not negative", lam)
    if not tol > 0:
        raise ParameterError.of("tol", "positive", tol)
    if max_iter < 1:
        raise ParameterError.of("max_iter", "at least 1", max_iter)
    diagonal = moments.diagonal
    bad = ~(np.isfinite(diagonal) & (diagonal > 0))
    if bad.any():
        k, j = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(
            f"feature {j} has no positive variance in class {k} (numbered from 0): leave it out, "
            "or give it a variance"
        )


def _check_size(
    moments: ClassMoments, lam: float, blocks: list[Indices], max_block: int | None
) -> None:
    """Refuse blocks that are too large, before anything of their size is made."""
    largest = max((len(block) for block in blocks), default=0)
    if max_block is not None and largest > max_block:
        alpha = lam / float(np.sum(moments.n))
        raise ParameterError(
            f"the largest block has {largest} of {moments.n_features} features at alpha = "
            f"{alpha:.6g} (lam = {lam:.6g}), more than max_block = {max_block}: raise alpha or "
            "max_block"
        )


def _blocks(labels: Indices) -> list[Indices]:
    """Features of each component of two or more, in order of first features."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    return [block for block in np.split(order, cuts) if len(block) > 1]


def _start(block: Indices, variances: Floats, start: JointPrecision | None) -> Floats:
    """Block-diagonal start: earlier precision matrices where they lie inside the block."""
    place = np.arange(len(block))
    out = np.zeros((len(variances), len(block), len(block)))
    out[:, place, place] = 1.0 / variances
    if start is None:
        return out
    for earlier, precision in zip(start.blocks, start.precisions, strict=True):
        at = np.searchsorted(block, earlier)
        inside = (at < len(block)) & (block[np.minimum(at, len(block) - 1)] == earlier)
        if inside.any():
            rows = at[inside]
            out[:, rows[:, None], rows[None, :]] = precision[:, inside][:, :, inside]
    return out


def _fit(
    moments: ClassMoments,
    lam: float,
    blocks: list[Indices],
    parts: list[Floats],
    start: JointPrecision | None,
    tol: float,
    max_iter: int,
    n_jobs: int | None,
) -> JointPrecision:
    """Solve every block and put the pieces together."""
    n, variances, p = moments.n, moments.diagonal, moments.n_features
    tasks: list[tuple[Any, ...]] = [
        (Problem(part, n, lam), block, _start(block, variances[:, block], start), tol, max_iter)
        for block, part in zip(blocks, parts, strict=True)
    ]
    if n_jobs != 1 and sum(len(block) >= LARGE for block in blocks) > 1:
        solutions = ordered_map(_solve, tasks, n_jobs=n_jobs)
    else:
        solutions = [_solve(task) for task in tasks]
    diagonal = 1.0 / variances
    single = np.ones(p, dtype=bool)
    for block in blocks:
        single[block] = False
    diagonal[:, ~single] = np.nan
    log_det = np.log(diagonal[:, single]).sum(axis=1)
    objective = dual = float(n @ (single.sum() - log_det))
    solvers: dict[str, int] = {}
    norm, n_links = 0.0, 0
    for solution in solutions:
        log_det = log_det + solution.log_det
        objective += solution.objective
        dual += solution.dual
        norms = pair_norms(solution.t)
        np.fill_diagonal(norms, 0.0)
        norm += float(norms.sum())
        n_links += int(np.count_nonzero(norms)) // 2
        for name, count in solution.solvers.items():
            solvers[name] = solvers.get(name, 0) + count
    gap = float(sum(solution.gap for solution in solutions))
    return JointPrecision(
        lam=float(lam),
        n=n,
        n_features=p,
        blocks=tuple(blocks),
        precisions=tuple(solution.t for solution in solutions),
        diagonal=diagonal,
        log_det=log_det,
        objective=objective,
        dual=dual,
        gap=gap,
        relative_gap=gap / float(p * n.sum()),
        penalty_norm=norm,
        n_links=n_links,
        n_iter=max((solution.n_iter for solution in solutions), default=0),
        solvers=solvers,
    )


def _solve(task: tuple[Problem, Indices, Floats, float, int]) -> Solution:
    """One block; picklable, so that workers can be processes."""
    problem, block, t, tol, max_iter = task
    if problem.lam > 0:
        return solve_block(problem, t, tol=tol, max_iter=max_iter)
    factors = []
    for k, s in enumerate(problem.s):
        found = cholesky(s[None])
        if found is None or _singular(found[0][0]):
            raise DataError(
                f"the covariance matrix of class {k} (numbered from 0) is singular over the "
                f"{len(block)} features linked to feature {int(block[0])}: lam = 0 has no "
                "solution, give a positive lam"
            )
        factors.append(found[0][0])
    lower = np.stack(factors)
    log_det = -2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    value = float(problem.n @ (len(block) - log_det))
    return Solution(symmetric_inverse(lower), log_det, value, value, 1, {"inverse": 1})


def _singular(factor: Floats) -> bool:
    """Whether a pivot is nothing but rounding beside its diagonal element."""
    rows = np.sqrt(np.einsum("ij,ij->i", factor, factor))
    return bool((np.diag(factor) < 1e-7 * rows).any())
