"""Fits of a base classifier by community of features: combined, compared over folds, chosen.

Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*,
arXiv 1407.4543, the section on community Bayes: communities are taken as independent given the
class, so that ``log p(k | x) = sum_l log p(k | x_l) + (1 - L) log pi_k`` up to a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.kernels import communities
from consilience.discriminant.kernels.multinomial import log_softmax
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import Workers, one_thread
from consilience.parameters import whole

Scoring = Literal["error", "log_loss"]

LEAST_LOG = float(np.log(1e-300))
"""What the logarithm of a base's probability is at least: a base that says 0 forbids nothing."""
LARGEST_DEFAULT = 20
"""Numbers of communities that are tried by default: 1 to this."""

_LEAST_LOSS = 1e-15


# --------------------------------------------------------------------------- communities


def class_similarity(x: FloatArray, codes: IntArray, n_classes: int) -> FloatArray:
    """Similarity of features from rank correlations within classes: (p, p).

    Parameters
    ----------
    x : (n, p) array
    codes : (n,) array of int
        Class of each row.
    n_classes : int
        K; classes without rows say nothing.
    """
    # Weights of the classes are their numbers of rows.
    n = np.bincount(codes, minlength=n_classes)
    there = np.flatnonzero(n)
    return communities.similarity(
        (communities.skeptic(communities.spearman(x[codes == k])) for k in there), n[there]
    )


def log_priors(codes: IntArray, n_classes: int) -> FloatArray:
    """Logarithm of the classes' shares, -inf where a class has no rows: (K,)."""
    with np.errstate(divide="ignore"):
        return np.log(np.bincount(codes, minlength=n_classes) / len(codes))


# --------------------------------------------------------------------------- base classifier


def base_log_probabilities(base: Any, x: FloatArray, n_classes: int) -> FloatArray:
    """Log-probabilities of a fitted base, whose classes are codes: (n, K).

    Classes that the base has not seen have -inf.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(base.predict_proba(x), dtype=np.float64))
    # Columns of the base are those of the classes that it has seen.
    found = np.full((len(x), n_classes), -np.inf)
    found[:, np.asarray(base.classes_, dtype=np.int64)] = np.maximum(logs, LEAST_LOG)
    return found


def evidence(logs: FloatArray, prior: FloatArray) -> FloatArray:
    """What one community adds to the log prior: ``log p(k | x_l) - log pi_k``, (n, K).

    A class without prior keeps 0: its score is -inf already.
    """
    # Not -inf less -inf, which is no number.
    there = np.isfinite(prior)
    return np.where(there, logs - np.where(there, prior, 0.0), 0.0)


def fit_base(base: Any, params: dict[str, Any], x: FloatArray, codes: IntArray) -> Any:
    """Fit a clone of the base with other parameters."""
    from sklearn.base import clone

    fresh = clone(base)
    if params:
        fresh.set_params(**params)
    return fresh.fit(x, codes)


# --------------------------------------------------------------------------- cross-validation


@dataclass(frozen=True, eq=False)
class CommunityCV:
    """Cross-validation over settings of the base and numbers of communities.

    Attributes
    ----------
    params : tuple of R dicts
    candidates : (C,) array of int
        Numbers of communities, ascending.
    errors, log_losses : (R, C, F) arrays
        Sums over the held-out rows of each fold.
    rows : (F,) array of int
    n_fits : int
        Base classifiers fitted: one for each fold, setting and distinct community.
    """

    params: tuple[dict[str, Any], ...]
    candidates: IntArray
    errors: FloatArray
    log_losses: FloatArray
    rows: IntArray
    n_fits: int

    def mean(self, scoring: Scoring) -> FloatArray:
        """Loss of a held-out row: (R, C)."""
        # Rows weigh alike, whatever the size of their fold.
        total = self._sums(scoring).sum(axis=2)
        return np.asarray(total / self.rows.sum(), dtype=np.float64)

    def standard_error(self, scoring: Scoring) -> FloatArray:
        """Standard error of the mean over folds: (R, C); NaN with one fold."""
        if len(self.rows) < 2:
            return np.full(self.errors.shape[:2], np.nan)
        by_fold = self._sums(scoring) / self.rows
        return np.asarray(by_fold.std(axis=2, ddof=1) / np.sqrt(len(self.rows)), dtype=np.float64)

    def choose(self, scoring: Scoring, *, one_standard_error: bool) -> tuple[int, int]:
        """Place of the chosen setting, and the number of communities.

        The least loss; among equals the fewest communities, then the first setting. Communities
        are taken as independent only where that lowers the loss; by more than one standard error
        of the least loss, where the rule is asked for.

        Raises
        ------
        ParameterError
            One standard error of a single fold is asked for.
        """
        mean = self.mean(scoring)
        least = float(mean.min())
        # Equal but for rounding.
        close = mean <= least + 1e-12 * max(abs(least), 1e-3)
        place = int(np.argmax(close, axis=1)[close.any(axis=1)].min())
        setting = int(np.flatnonzero(close[:, place])[0])
        if one_standard_error:
            if len(self.rows) < 2:
                raise ParameterError("one_standard_error needs two folds or more: set cv")
            # The rule of one standard error (Breiman et al. 1984).
            bound = least + self.standard_error(scoring)[setting, place]
            place = int(np.flatnonzero(mean[setting] <= bound)[0])
        return setting, int(self.candidates[place])

    def table(self) -> dict[str, Any]:
        """One row for each setting and number of communities, as columns."""
        r, c = len(self.params), len(self.candidates)
        found: dict[str, Any] = {
            "n_communities": np.tile(self.candidates, r),
            "params": [dict(one) for one in self.params for _ in range(c)],
        }
        for name in get_args(Scoring):
            found[name] = self.mean(name).ravel()
            found[f"{name}_se"] = self.standard_error(name).ravel()
            found[f"fold_{name}"] = (self._sums(name) / self.rows).reshape(r * c, -1)
        found["fold_wrong"] = self.errors.astype(np.int64).reshape(r * c, -1)
        found["fold_rows"] = self.rows.copy()
        return found

    def _sums(self, scoring: Scoring) -> FloatArray:
        return self.errors if scoring == "error" else self.log_losses


def cross_validate(
    x: FloatArray,
    codes: IntArray,
    n_classes: int,
    base: Any,
    *,
    folds: Sequence[tuple[IntArray, IntArray]],
    candidates: Sequence[int],
    linkage: communities.Linkage,
    params: Sequence[dict[str, Any]] = ({},),
    n_jobs: int | None = None,
) -> CommunityCV:
    """Judge numbers of communities, and settings of the base, on held-out rows.

    Ranks, tree and base are those of each fold's own training rows; a community that belongs to
    several numbers of communities is fitted once.

    Parameters
    ----------
    x : (n, p) array
    codes : (n,) array of int
        Class of each row, from 0 to K - 1.
    n_classes : int
    base : classifier
        Not fitted, with `predict_proba`.
    folds : sequence of (train, test) arrays of int
        One (a validation set) or more, from :func:`folds_of` of this room.
    candidates : sequence of int
        Numbers of communities, ascending.
    linkage : {"average", "complete", "single"}
    params : sequence of dicts
        Settings of the base to try.
    n_jobs : int, optional
        Folds and settings at a time, as in joblib.

    Returns
    -------
    CommunityCV

    Raises
    ------
    DataError
        A fold trains on one class only.
    """
    for place, (train, _) in enumerate(folds):
        if len(np.unique(codes[train])) < 2:
            raise DataError(
                f"fold {place + 1} of the cross-validation trains on rows of one class only: "
                "use folds that leave two classes or more"
            )
    tasks = [(train, test, one) for one in params for train, test in folds]
    with Workers(n_jobs) as workers:
        judged = workers.map(_judge, tasks, x, codes, n_classes, base, tuple(candidates), linkage)
    errors, losses, n_fits = zip(*judged, strict=True)
    shape = (len(params), len(folds), len(candidates))
    return CommunityCV(
        tuple(params),
        np.array(candidates, dtype=np.int64),
        np.array(errors, dtype=np.float64).reshape(shape).transpose(0, 2, 1),
        np.array(losses, dtype=np.float64).reshape(shape).transpose(0, 2, 1),
        np.array([len(test) for _, test in folds], dtype=np.int64),
        sum(n_fits),
    )


def _judge(
    task: tuple[IntArray, IntArray, dict[str, Any]],
    x: FloatArray,
    codes: IntArray,
    n_classes: int,
    base: Any,
    candidates: tuple[int, ...],
    linkage: communities.Linkage,
) -> tuple[list[int], list[float], int]:
    """Fit every community of a fold under one setting once, and judge each number of communities.

    Returns
    -------
    errors : list of int
        Wrong predictions on held-out rows by number of communities.
    losses : list of float
        Sum of ``-log p`` of the right class.
    n_fits : int
    """
    train, test, params = task
    with one_thread():
        inner, own = x[train], codes[train]
        tree = communities.linkage_tree(class_similarity(inner, own, n_classes), linkage)
        prior = log_priors(own, n_classes)
        held, right = x[test], codes[test]
        # log pi_k + sum_l (log p(k | x_l) - log pi_k), community by community.
        scores = np.tile(prior, (len(candidates), len(held), 1))
        users = nodes_of_cuts(tree, candidates)
        for node, places in users.items():
            columns = communities.members(tree, node)
            fitted = fit_base(base, params, inner[:, columns], own)
            logs = base_log_probabilities(fitted, held[:, columns], n_classes)
            scores[places] += evidence(logs, prior)
        errors, losses = [], []
        for score in scores:
            logs = log_softmax(score)[np.arange(len(right)), right]
            errors.append(int((score.argmax(axis=1) != right).sum()))
            losses.append(float(-np.maximum(logs, np.log(_LEAST_LOSS)).sum()))
    return errors, losses, len(users)


def nodes_of_cuts(tree: FloatArray, candidates: Sequence[int]) -> dict[int, list[int]]:
    """Communities of several cuts, each once, with the places of the cuts that have it."""
    users: dict[int, list[int]] = {}
    for place, n_communities in enumerate(candidates):
        for node in communities.cut_nodes(tree, n_communities):
            # A node of the tree is the same community in every cut.
            users.setdefault(node, []).append(place)
    return users


# --------------------------------------------------------------------------- settings


def check_number(name: str, value: Any, n_features: int) -> int:
    """A number of communities.

    Raises
    ------
    ParameterError
        No whole number from 1 to p.
    """
    if not whole(1, n_features).holds(value):
        raise ParameterError.of(name, f"whole numbers from 1 to {n_features} features", value)
    return int(value)


def settings_of(param_grid: Any, base: Any) -> list[dict[str, Any]]:
    """Settings of the base: those of a grid as scikit-learn writes it, or one that changes nothing.

    Raises
    ------
    ParameterError
        No grid, or names that the base does not have.
    """
    if param_grid is None:
        return [{}]
    from sklearn.base import clone
    from sklearn.model_selection import ParameterGrid

    try:
        found = list(ParameterGrid(param_grid))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"param_grid is not a grid of parameters: {error}") from None
    for one in found:
        try:
            clone(base).set_params(**one)
        except (AttributeError, TypeError, ValueError):  # their words list every parameter there is
            unknown = [str(name) for name in one if name not in base.get_params()]
            names = ", ".join(unknown or map(str, one))
            allowed = f"a grid of parameters of {type(base).__name__}, see its get_params()"
            raise ParameterError.of("param_grid", allowed, names) from None
    return found


# --------------------------------------------------------------------------- separation


LARGEST_PROGRAM = 300_000
"""Rules times unknowns of the linear program that is still solved (about 2 s); beyond it only the
errors of the base are looked at."""


class SeparationWarning(UserWarning):
    """The coefficients of a linear base classifier hang on its penalty alone."""


def is_linear(fitted: Any) -> bool:
    """Whether a fitted base, or the last step of a pipeline, has coefficients."""
    return hasattr(fitted[-1] if hasattr(fitted, "steps") else fitted, "coef_")


def separated(fitted: Any, x: FloatArray, codes: IntArray) -> bool:
    """Whether the classes of the training rows can be told apart without error.

    Parameters
    ----------
    fitted : classifier
        Fitted to these rows.
    x : (n, q) array
    codes : (n,) array of int

    Returns
    -------
    bool
        The base makes no error or, if it is linear, some linear rule makes none.
    """
    if bool((np.asarray(fitted.predict(x)) == codes).all()):
        return True
    return is_linear(fitted) and linearly_separable(x, codes) is True


def linearly_separable(x: FloatArray, codes: IntArray) -> bool | None:
    """Whether a linear rule tells the classes apart with a margin; None where it was not tried.

    A row x of class k asks for ``(w_k - w_c) . (1, x) >= 1`` against each other class c: a linear
    program that has a solution exactly if the classes are separable (Albert and Anderson,
    *Biometrika* 71 (1984), section 3).

    Parameters
    ----------
    x : (n, q) array
    codes : (n,) array of int

    Returns
    -------
    bool or None
    """
    from scipy import sparse
    from scipy.optimize import linprog

    levels, codes = np.unique(codes, return_inverse=True)
    k, (n, q) = len(levels), x.shape
    if k < 2:
        return True
    if n * (k - 1) * (k - 1) * (q + 1) > LARGEST_PROGRAM:
        return None
    # Of size 1, for the tolerances of the solver.
    scale = np.abs(x - x.mean(axis=0)).max(axis=0)
    design = np.column_stack([np.ones(n), (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)])
    blocks = []
    for c in range(k):
        rows = np.flatnonzero(codes != c)
        signs = np.zeros((len(rows), k))
        signs[:, c] = 1.0
        signs[np.arange(len(rows)), codes[rows]] = -1.0
        # w_0 = 0: only differences count.
        wide = (signs[:, 1:, None] * design[rows][:, None, :]).reshape(len(rows), -1)
        blocks.append(sparse.csr_matrix(wide))
    rule = sparse.vstack(blocks, format="csc")
    # Nothing is minimised: any rule that keeps the margins will do.
    most, nothing = -np.ones(rule.shape[0]), np.zeros(rule.shape[1])
    answer = linprog(nothing, A_ub=rule, b_ub=most, bounds=(None, None), method="highs")
    return bool(answer.status == 0) if answer.status in (0, 2) else None
