"""What latent classes are compared with on grouped rows: ridge regressions and a mixed model.

The mixed model is ``y = X beta + Z_g b_g + u_h + e`` with ``b_g ~ N(0, S)`` for the group g of a
row and, where there is a second, crossed factor, ``u_h ~ N(0, t^2)`` for its level h. Variances by
REML: the deviance is profiled over beta and the error variance (Bates, Maechler, Bolker and Walker
2015, sections 3.4 and 3.5) and minimised over the relative factors of S and t. Effects of groups
are eliminated block by block, so what is factorised has one row for each level of the crossed
factor, and parts of it that share no group are factorised apart. R's ``lmer`` gives the same
estimates (``replications/latent_class_regression/real_data``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse
from scipy.sparse import csgraph

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MixedModel:
    """A fitted model.

    Attributes
    ----------
    beta : (p,) array
    effects : (G, q) array
        Of the groups, given the rows.
    crossed : (H,) array
        Of the levels of the crossed factor; empty without one.
    covariance : (q, q) array
        Of the effects of groups.
    crossed_variance, error_variance : float
    deviance : float
        Minus twice the restricted log likelihood.
    """

    beta: FloatArray
    effects: FloatArray
    crossed: FloatArray
    covariance: FloatArray
    crossed_variance: float
    error_variance: float
    deviance: float

    def predict(
        self, x: FloatArray, z: FloatArray, group: IntArray, crossed: IntArray | None = None
    ) -> FloatArray:
        """Prediction with the effects of groups and levels; those without rows have effect 0."""
        predicted = x @ self.beta + np.einsum("nq,nq->n", z, self.effects[group])
        return predicted if crossed is None else predicted + self.crossed[crossed]


@dataclass(frozen=True, eq=False)
class _Solution:
    """All that follows from relative factors.

    `parts` are the connected parts of the crossed factor: places of their levels, root of their
    system, and its solution for the fixed columns and y; `root` is of what remains for those.
    """

    deviance: float
    parts: list[tuple[IntArray, FloatArray, FloatArray]]
    root: FloatArray
    error_variance: float
    factor: FloatArray
    halves: FloatArray
    spread: float


class _System:
    """Products of the columns of one data set, and the deviance as a function of the factors."""

    def __init__(
        self,
        x: FloatArray,
        y: FloatArray,
        z: FloatArray,
        group: IntArray,
        crossed: IntArray | None,
        n_groups: int,
        n_levels: int,
    ) -> None:
        self.n, self.p = x.shape
        self.q, self.n_groups = z.shape[1], n_groups
        self.n_levels = 0 if crossed is None else n_levels
        columns = (group[:, None] * self.q + np.arange(self.q)).ravel()
        rows = np.repeat(np.arange(self.n), self.q)
        by_group = sparse.csr_matrix(
            (z.ravel(), (rows, columns)), shape=(self.n, n_groups * self.q)
        )
        by_level = sparse.csr_matrix((self.n, 0))
        if crossed is not None:
            by_level = sparse.csr_matrix(
                (np.ones(self.n), (np.arange(self.n), crossed)), shape=(self.n, n_levels)
            )
        fixed = np.column_stack([x, y])
        self.group_products = np.zeros((n_groups, self.q, self.q))
        np.add.at(self.group_products, group, z[:, :, None] * z[:, None, :])
        self.group_fixed = np.asarray(by_group.T @ fixed)
        self.group_level = (by_group.T @ by_level).tocsr()
        self.level_counts = np.asarray(by_level.sum(axis=0)).ravel()
        self.level_fixed = np.asarray(by_level.T @ fixed)
        self.fixed_products = fixed.T @ fixed
        # Levels that share no group, directly or through others, are solved apart.
        _, part = csgraph.connected_components(self.group_level.T @ self.group_level)
        self.parts = [np.flatnonzero(part == c) for c in np.unique(part)]
        self.lower = np.tril_indices(self.q)
        # Signs of a factor's diagonal do not matter.
        self.positive = np.append(self.lower[0] == self.lower[1], [True] * bool(self.n_levels))

    def solve(self, parameters: FloatArray) -> _Solution:
        parameters = np.where(self.positive, np.abs(parameters), parameters)
        factor = np.zeros((self.q, self.q))
        factor[self.lower] = parameters[: len(self.lower[0])]
        spread = float(parameters[-1]) if self.n_levels else 0.0
        inner = np.linalg.cholesky(np.eye(self.q) + factor.T @ self.group_products @ factor)
        halves = np.linalg.solve(inner, np.broadcast_to(factor.T, inner.shape))
        blocks = sparse.bsr_matrix((halves, np.arange(self.n_groups), np.arange(self.n_groups + 1)))
        fixed = blocks @ self.group_fixed
        left = self.fixed_products - fixed.T @ fixed
        level = ((blocks @ self.group_level) * spread).tocsr()
        diagonal = sparse.diags(1.0 + spread**2 * self.level_counts)
        square = (diagonal - level.T @ level).tocsr()
        right = spread * self.level_fixed - level.T @ fixed
        parts, log_det = [], np.log(np.diagonal(inner, axis1=1, axis2=2)).sum()
        for places in self.parts:
            root = linalg.cholesky(square[places][:, places].toarray(), lower=True)
            solved = linalg.solve_triangular(root, right[places], lower=True)
            left = left - solved.T @ solved
            log_det += np.log(np.diag(root)).sum()
            parts.append((places, root, solved))
        root = linalg.cholesky(left, lower=True)
        log_det += np.log(np.diag(root)[:-1]).sum()
        free = self.n - self.p
        error_variance = float(root[-1, -1] ** 2 / free)
        deviance = 2.0 * log_det + free * (1.0 + np.log(2.0 * np.pi * error_variance))
        return _Solution(float(deviance), parts, root, error_variance, factor, halves, spread)

    def model(self, found: _Solution) -> MixedModel:
        root = found.root
        beta = linalg.solve_triangular(root[:-1, :-1], root[-1, :-1], lower=True, trans="T")
        crossed = np.zeros(self.n_levels)
        for places, lower, solved in found.parts:
            rest = solved[:, -1] - solved[:, :-1] @ beta
            crossed[places] = found.spread * linalg.solve_triangular(
                lower, rest, lower=True, trans="T"
            )
        left = self.group_fixed[:, -1] - self.group_fixed[:, :-1] @ beta
        left = (left - self.group_level @ crossed).reshape(self.n_groups, self.q)
        effects = np.einsum("gab,gac,gc->gb", found.halves, found.halves, left)
        return MixedModel(
            beta,
            effects,
            crossed,
            found.factor @ found.factor.T * found.error_variance,
            found.spread**2 * found.error_variance,
            found.error_variance,
            found.deviance,
        )


def fit_mixed(
    x: FloatArray,
    y: FloatArray,
    z: FloatArray,
    group: IntArray,
    crossed: IntArray | None = None,
    *,
    n_groups: int,
    n_levels: int = 0,
) -> MixedModel:
    """Fit by REML.

    Parameters
    ----------
    x : (n, p) array
        Columns of the fixed effects, of full rank.
    y : (n,) array
    z : (n, q) array
        Columns whose coefficients differ between groups.
    group, crossed : (n,) int array
        Codes from 0; `crossed` may be left out.
    n_groups, n_levels : int
        Numbers of codes; some may have no rows.
    """
    system = _System(x, y, z, group, crossed, n_groups, n_levels)
    start = np.where(system.positive, 0.5, 0.0)
    found = optimize.minimize(
        lambda parameters: system.solve(parameters).deviance,
        start,
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-4, "maxfev": 2000},
    )
    return system.model(system.solve(found.x))


# --------------------------------------------------------------------------- ridge regressions

PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def pooled_ridge(
    x: FloatArray, y: FloatArray, x_new: FloatArray, penalty: float = 1.0
) -> FloatArray:
    """One regression for all groups; the penalty is on standardised columns, not on the mean."""
    centre, scale = x.mean(axis=0), _scale(x)
    table, new = (x - centre) / scale, (x_new - centre) / scale
    square = table.T @ table + penalty * np.eye(x.shape[1])
    return np.asarray(y.mean() + new @ np.linalg.solve(square, table.T @ (y - y.mean())))


def entity_ridge(
    x: FloatArray,
    y: FloatArray,
    entity: IntArray,
    x_new: FloatArray,
    entity_new: IntArray,
    rng: np.random.Generator,
) -> FloatArray:
    """One regression for each entity, drawn towards the mean of all.

    All have the same penalty, on standardised columns and on the difference of the intercept from
    the mean of all: the one that predicts best in five-fold cross-validation.
    """
    centre, scale = x.mean(axis=0), _scale(x)
    table = np.column_stack([np.ones(len(x)), (x - centre) / scale])
    new = np.column_stack([np.ones(len(x_new)), (x_new - centre) / scale])
    n_entities = int(max(entity.max(), entity_new.max())) + 1
    left = y - y.mean()
    fold = folds_of(entity, rng)

    def coefficients(rows: NDArray[np.bool_], penalties: Sequence[float]) -> list[FloatArray]:
        squares = np.zeros((n_entities, table.shape[1], table.shape[1]))
        cross = np.zeros((n_entities, table.shape[1], 1))
        np.add.at(squares, entity[rows], table[rows, :, None] * table[rows, None, :])
        np.add.at(cross, entity[rows], (table[rows] * left[rows, None])[:, :, None])
        unit = np.eye(table.shape[1])
        return [np.asarray(np.linalg.solve(squares + p * unit, cross)[:, :, 0]) for p in penalties]

    losses = np.zeros(len(PENALTIES))
    for trial in (fold == k for k in range(int(fold.max()) + 1)):
        for i, coef in enumerate(coefficients(~trial, PENALTIES)):
            error = left[trial] - _by_entity(table[trial], entity[trial], coef)
            losses[i] += (error**2).sum()
    penalty = PENALTIES[int(np.argmin(losses))]
    (chosen,) = coefficients(np.ones(len(x), dtype=bool), [penalty])
    return np.asarray(y.mean() + _by_entity(new, entity_new, chosen))


def folds_of(entity: IntArray, rng: np.random.Generator, n_folds: int = 5) -> IntArray:
    """Fold of each row; an entity's rows are dealt out evenly, a single one is in no fold (-1).

    So whatever fold is left out, every entity keeps rows to learn from.
    """
    order = rng.permutation(len(entity))
    order = order[np.argsort(entity[order], kind="stable")]
    _, start, count = np.unique(entity[order], return_index=True, return_counts=True)
    place = np.arange(len(order)) - np.repeat(start, count)
    place += np.repeat(rng.integers(n_folds, size=len(start)), count)
    fold = np.empty(len(order), dtype=np.int64)
    fold[order] = np.where(np.repeat(count, count) > 1, place % n_folds, -1)
    return fold


def _by_entity(table: FloatArray, entity: IntArray, coefficients: FloatArray) -> FloatArray:
    return np.einsum("nf,nf->n", table, coefficients[entity])


def _scale(x: FloatArray) -> FloatArray:
    scale = x.std(axis=0)
    return np.where(scale > 0, scale, 1.0)
