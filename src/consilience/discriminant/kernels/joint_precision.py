"""Precision matrices of K classes that share their zeros, with a certificate.

Minimises ``sum_k n_k (tr(S_k T_k) - logdet T_k) + lam sum_{j != j'} |(T_1,jj', ..., T_K,jj')|_2``
over ordered pairs, the diagonal free (Le and Hastie, arXiv 1407.4543, equation 4; the joint
graphical lasso of Danaher, Wang and Witten, JRSS B 2014, with a group penalty only). Screening
splits the features exactly into blocks, each of which is solved alone; the gap between the value
and a feasible point of the dual says how far the result can be from the minimum.

A group of entries ``(T_1,jj', ..., T_K,jj')`` can only be other than zero within the connected
components of ``|(n_k S_k,jj')_k|_2 > lam`` (the covariance thresholding of Witten, Friedman and
Simon, JCGS 2011, and Mazumder and Hastie, JMLR 2012, for groups). So nothing of size p x p is
needed before the blocks are known. How a block is solved: see `joint_precision_block`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray
from consilience.discriminant.kernels.joint_precision_block import (
    REACH,
    Ahead,
    Indices,
    Problem,
    Solution,
    cholesky,
    off_diagonal,
    pair_norms,
    solve_block,
    symmetric_inverse,
)
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import ordered_map
from consilience.parameters import check, number, whole

TILE = 512
"""Features of one side of a tile."""

ROUNDING = 1e-12


class ClassMoments(Protocol):
    """Numbers of rows and covariance matrices of K classes, by blocks and tiles."""

    @property
    def n(self) -> FloatArray:
        """Rows of each class, shape (K,)."""

    @property
    def n_features(self) -> int:
        """Number of features p."""

    @property
    def diagonal(self) -> FloatArray:
        """Variances ``S_k,jj`` with divisor n_k, shape (K, p)."""

    def block(self, features: Indices) -> FloatArray:
        """Covariances among some features, shape (K, q, q)."""

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Moments that are computed from rows when they are asked for.

    Parameters
    ----------
    n : ndarray of shape (K,)
    means : ndarray of shape (K, p)
    centred : tuple of ndarray of shape (n_k, p)
        Rows of each class minus the mean of the class.
    diagonal : ndarray of shape (K, p)
        Variances, with the floor.
    floor : ndarray of shape (K, p), optional
        What is added to the variances, as where a column is constant within a class.
    """

    n: FloatArray
    means: FloatArray
    centred: tuple[FloatArray, ...]
    diagonal: FloatArray
    floor: FloatArray | None = None

    @classmethod
    def of(cls, x: FloatArray, codes: NDArray[np.integer], n_classes: int) -> RowMoments:
        """Centre the rows of each class.

        Parameters
        ----------
        x : ndarray of shape (n, p)
        codes : ndarray of int of shape (n,)
            Class of each row, 0 to ``n_classes - 1``.
        n_classes : int

        Raises
        ------
        DataError
            Where a class has no row.
        """
        x = np.asarray(x, dtype=np.float64)
        parts = [x[codes == k] for k in range(n_classes)]
        n = np.array([len(part) for part in parts], dtype=np.float64)
        if (n == 0).any():
            raise DataError(f"class {int(np.argmin(n))} has no row: a class needs rows")
        means = np.stack([part.mean(axis=0) for part in parts])
        centred = tuple(part - mean for part, mean in zip(parts, means, strict=True))
        diagonal = np.stack([np.einsum("ij,ij->j", c, c) / len(c) for c in centred])
        return cls(n, means, centred, diagonal)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.means.shape[1])

    def block(self, features: Indices) -> FloatArray:
        """Covariances among some features, shape (K, q, q)."""
        out = np.empty((len(self.n), len(features), len(features)))
        for k, rows in enumerate(self.centred):
            part = rows if len(features) == self.n_features else rows[:, features]
            np.divide(part.T @ part, self.n[k], out=out[k])
        if self.floor is not None:
            place = np.arange(len(features))
            out[:, place, place] += self.floor[:, features]
        return out

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""
        products = (part[:, rows].T @ part[:, columns] for part in self.centred)
        return np.asarray(np.sqrt(sum(np.square(product) for product in products)))


def tiles(p: int) -> list[tuple[slice, slice]]:
    """Tiles on and above the diagonal."""
    cuts = [slice(start, min(start + TILE, p)) for start in range(0, p, TILE)]
    return [(a, b) for i, a in enumerate(cuts) for b in cuts[i:]]


def components(moments: ClassMoments, lam: float) -> Indices:
    """Label of the component of each feature, shape (p,), exact.

    Parameters
    ----------
    moments : ClassMoments
    lam : float
        Penalty; features are linked where ``|(n_k S_k,jj')_k|_2 > lam``.

    Notes
    -----
    Memory is one tile, its links, and one label for each feature. Labels follow the smallest
    feature of each component. Norms within rounding of lam count as equal to it, so that the
    largest penalty gives single features however its tiles were added up.
    """
    bound = lam * (1 + ROUNDING)
    labels = np.arange(moments.n_features)
    for rows, columns in tiles(moments.n_features):
        linked = moments.norms(rows, columns) > bound
        if rows == columns:
            linked = np.triu(linked, 1)
        i, j = np.nonzero(linked)
        if i.size:
            labels = merged(labels, i + rows.start, j + columns.start)
    return labels


def merged(labels: Indices, i: Indices, j: Indices) -> Indices:
    """Labels after the components of ``i`` and ``j`` became one, in order of first features."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of labels, not of features.
    a, b = labels[i], labels[j]
    if (a == b).all():
        return labels
    p = len(labels)
    graph = coo_array((np.ones(len(a), dtype=bool), (a, b)), shape=(p, p))
    _, found = connected_components(graph, directed=False)
    _, first, inverse = np.unique(found[labels], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[inverse], dtype=np.intp)


def largest_penalty(moments: ClassMoments) -> float:
    """Smallest lam with diagonal precision matrices: the largest ``|(n_k S_k,jj')_k|_2``.

    Parameters
    ----------
    moments : ClassMoments
    """
    largest = 0.0
    for rows, columns in tiles(moments.n_features):
        tile = moments.norms(rows, columns)
        if rows == columns:
            np.fill_diagonal(tile, 0.0)
        largest = max(largest, float(tile.max()))
    return largest


# --------------------------------------------------------------------------- all blocks


_ALLOWED = {"lam": number(0), "tol": number(above=0), "max_iter": whole(1)}

MOST_STEPS = 200
"""Iterations of a block at most, unless given."""
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
    duals : tuple of (ndarray of shape (K, q, q) or None)
        ``Gamma`` of the blocks that alternating directions solved, from which the next fit starts.
    reaches : tuple of (float or None)
        What suits these blocks as the reach of the next fit.
    """

    lam: float
    n: FloatArray
    n_features: int
    blocks: tuple[Indices, ...]
    precisions: tuple[FloatArray, ...]
    diagonal: FloatArray
    log_det: FloatArray
    objective: float
    dual: float
    gap: float
    relative_gap: float
    penalty_norm: float
    n_links: int
    n_iter: int
    solvers: dict[str, int] = field(default_factory=dict)
    duals: tuple[FloatArray | None, ...] = ()
    reaches: tuple[float | None, ...] = ()

    def dense(self) -> FloatArray:
        """Whole precision matrices, shape (K, p, p)."""
        out = np.zeros((len(self.n), self.n_features, self.n_features))
        place = np.arange(self.n_features)
        out[:, place, place] = self.diagonal
        for block, precision in zip(self.blocks, self.precisions, strict=True):
            out[:, block[:, None], block[None, :]] = precision
        return out

    def links(self) -> tuple[Indices, FloatArray]:
        """Linked pairs ``j < j'``, shape (n_links, 2), and their entries, shape (n_links, K)."""
        pairs: list[Indices] = [np.empty((0, 2), dtype=np.intp)]
        entries: list[FloatArray] = [np.empty((0, len(self.n)))]
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
    before: Sequence[JointPrecision] = (),
    tol: float = 1e-8,
    max_iter: int = MOST_STEPS,
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
    before : sequence of JointPrecision
        Up to two fits before that one, the last first: dense blocks start where all of them lead.
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
    check(_ALLOWED, {"lam": lam, "tol": tol, "max_iter": max_iter})
    n, p, variances = moments.n, moments.n_features, moments.diagonal
    bad = ~(np.isfinite(variances) & (variances > 0))
    if bad.any():
        k, j = (int(i) for i in np.argwhere(bad)[0])
        raise DataError(
            f"feature {j} has no positive variance in class {k} (numbered from 0): leave it out, "
            "or give it a variance"
        )
    # Exact: between two components no entry of the minimum differs from zero.
    labels = components(moments, lam)
    # Components of two features or more, in order of first features.
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    blocks = [block for block in np.split(order, cuts) if len(block) > 1]
    # Refused before anything of their size is made.
    largest = max((len(block) for block in blocks), default=0)
    if max_block is not None and largest > max_block:
        alpha = lam / float(np.sum(n))
        raise ParameterError(
            f"the largest block has {largest} of {p} features at alpha = {alpha:.6g} (lam = "
            f"{lam:.6g}), more than max_block = {max_block}: raise alpha or max_block"
        )
    parts = [moments.block(block) for block in blocks]
    tasks: list[tuple[Any, ...]] = [
        (problem, block, _start(block, variances[:, block], start), tol, max_iter, ahead)
        for block, part in zip(blocks, parts, strict=True)
        for problem in [Problem(part, n, lam)]
        for ahead in [_ahead(problem, block, variances[:, block], start, before)]
    ]
    if n_jobs != 1 and sum(len(block) >= LARGE for block in blocks) > 1:
        solutions = ordered_map(_solve, tasks, n_jobs=n_jobs)
    else:
        solutions = [_solve(task) for task in tasks]
    # Features without a link have the inverse of their variance.
    diagonal, single = 1.0 / variances, np.ones(p, dtype=bool)
    for block in blocks:
        single[block] = False
    diagonal[:, ~single] = np.nan
    log_det = np.log(diagonal[:, single]).sum(axis=1)
    objective = dual = float(n @ (single.sum() - log_det))
    solvers: Counter[str] = Counter()
    norm, n_links = 0.0, 0
    for solution in solutions:
        log_det = log_det + solution.log_det
        objective += solution.objective
        dual += solution.dual
        norms = pair_norms(solution.t)
        np.fill_diagonal(norms, 0.0)
        norm += float(norms.sum())
        n_links += int(np.count_nonzero(norms)) // 2
        solvers.update(solution.solvers)
    # Blocks add up: so do their gaps, without the cancellation of large values.
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
        solvers=dict(solvers),
        duals=tuple(solution.gamma for solution in solutions),
        reaches=tuple(solution.reach for solution in solutions),
    )


def _start(block: Indices, variances: FloatArray, start: JointPrecision | None) -> FloatArray:
    """Block-diagonal start: earlier precision matrices where they lie inside the block."""
    place = np.arange(len(block))
    out = np.zeros((len(variances), len(block), len(block)))
    out[:, place, place] = 1.0 / variances
    if start is None:
        return out
    for i, at, own in _inside(block, start):
        out[:, at[:, None], at] = start.precisions[i][:, own[:, None], own]
    return out


def _inside(block: Indices, fit: JointPrecision) -> list[tuple[int, Indices, Indices]]:
    """Blocks of a fit that reach into a block: which, places in the block, and in their own."""
    found = []
    for place, earlier in enumerate(fit.blocks):
        at = np.searchsorted(block, earlier)
        shared = (at < len(block)) & (block[np.minimum(at, len(block) - 1)] == earlier)
        if shared.any():
            found.append((place, at[shared], np.flatnonzero(shared)))
    return found


def _ahead(
    problem: Problem,
    block: Indices,
    variances: FloatArray,
    start: JointPrecision | None,
    before: Sequence[JointPrecision],
) -> Ahead | None:
    """What to expect of a block of whose parts alternating directions solved one; else None."""
    if start is None or not start.duals or problem.lam <= 0:
        return None
    solved = [i for i, _, _ in _inside(block, start) if start.duals[i] is not None]
    if not solved:
        return None
    reach = start.reaches[max(solved, key=lambda i: len(start.blocks[i]))] or REACH
    fits = [start]
    for fit in before:
        if not fits[-1].lam < fit.lam:
            break
        fits.append(fit)
    if not problem.lam < start.lam:
        fits = fits[:1]
    # On a geometric path T goes on along log lam, and Gamma, whose norms are lam, along lam.
    lams = np.array([problem.lam] + [fit.lam for fit in fits])
    t = [_start(block, variances, fit) for fit in fits]
    gamma = [_slack(problem, block, fit) for fit in fits]
    return onward(np.log(lams), t), onward(lams, gamma), reach


def onward(at: FloatArray, values: list[FloatArray]) -> FloatArray:
    """Value at ``at[0]`` from those at ``at[1:]``: by a line, half of the way to a parabola.

    Parameters
    ----------
    at : ndarray of shape (m + 1,)
        Falling or rising.
    values : list of m ndarrays
        One to three.
    """
    if len(values) == 1:
        return values[0]
    steps = at[:-1] - at[1:]
    share = min(1.0, steps[0] / steps[1])
    step = share * (values[0] - values[1])
    if len(values) == 2:
        return np.asarray(values[0] + step)
    last = share * steps[1] / steps[2] * (values[1] - values[2])
    return np.asarray(values[0] + step + 0.5 * (step - last))


def _slack(problem: Problem, block: Indices, fit: JointPrecision) -> FloatArray:
    """``Gamma`` of an earlier fit; ``-n_k S_k`` between features that it did not link."""
    out = off_diagonal(problem, np.zeros_like(problem.s))
    for i, at, own in _inside(block, fit):
        gamma = fit.duals[i] if fit.duals else None
        if gamma is None:
            found = cholesky(fit.precisions[i])
            if found is None:
                continue
            w = symmetric_inverse(found[0])[:, own[:, None], own]
            part = Problem(problem.s[:, at[:, None], at], problem.n, fit.lam)
            out[:, at[:, None], at] = off_diagonal(part, w)
        else:
            out[:, at[:, None], at] = gamma[:, own[:, None], own]
    return out


def _solve(task: tuple[Problem, Indices, FloatArray, float, int, Ahead | None]) -> Solution:
    """One block; picklable, so that workers can be processes."""
    problem, block, t, tol, max_iter, ahead = task
    if problem.lam > 0:
        return solve_block(problem, t, tol=tol, max_iter=max_iter, ahead=ahead)
    # Without a penalty: the inverses.
    factors = []
    for k, s in enumerate(problem.s):
        found = cholesky(s[None])
        factor = None if found is None else found[0][0]
        # Singular also where a pivot is nothing but rounding beside its diagonal element.
        if (
            factor is None
            or (np.diag(factor) < 1e-7 * np.sqrt(np.einsum("ij,ij->i", factor, factor))).any()
        ):
            raise DataError(
                f"the covariance matrix of class {k} (numbered from 0) is singular over the "
                f"{len(block)} features linked to feature {int(block[0])}: lam = 0 has no "
                "solution, give a positive lam"
            )
        factors.append(factor)
    lower = np.stack(factors)
    log_det = -2.0 * np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    value = float(problem.n @ (len(block) - log_det))
    return Solution(symmetric_inverse(lower), log_det, value, value, 1, {"inverse": 1})
