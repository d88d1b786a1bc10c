"""Nuclear-norm penalty of soft-impute, by errors at held-out entries."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from consilience.completion.estimators.entry_plans import plan_alphas
from consilience.completion.selection.entrywise_kfold import labels_of
from consilience.completion.selection.one_step import one_step_alphas
from consilience.completion.selection.search import EntrySearch
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryCurve

_FOLD_TOL = 1e-4  # moves held-out errors by far less than their standard errors


class NuclearNormCV(EntrySearch):
    """Choose the penalty of soft-impute by cross-validated errors at held-out entries.

    Parameters
    ----------
    alphas : "auto", int or sequence of float
        "auto" goes down from the penalty that leaves nothing, six penalties to a power of ten,
        until the smallest error lies inside or the curve is flat, at most to 1e-4 of it; a number
        of penalties goes down to a hundredth.
    unshrink : bool
        Judge, and keep, fits whose singular values are refitted (SOFT-IMPUTE+).
    max_rank : int, optional
        Largest rank of a fit.
    solver : {"auto", "dense", "als"}
        As of :class:`consilience.SoftImpute`.
    cv : int, EntrywiseKFold, (m,) array of int, "one-step" or "one-step-as-printed"
        As of :class:`consilience.RankCV`; one step is for fits that are not unshrunk.
    rule : {"minimum", "one-standard-error"}
        What is kept: the penalty with the smallest error, or the largest within one standard error.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off first.
    tol : float
        Relative duality gap at which the kept fit ends; fits to folds end at 1e-4, or at this if it
        is larger.
    max_iter : int, optional
        Iterations of a fit, by default those of the solver.
    refit : bool
        Fit all entries with what was chosen.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number.

    Attributes
    ----------
    best_alpha_ : float or None
        What the rule keeps; None where the smallest error lies at an artificial edge of the grid.
    alpha_ : float
        Penalty of `best_estimator_`: at an artificial edge the one with the smallest error.
    rank_ : int
        Rank of `best_estimator_`; only with ``refit=True``.
    n_iter_ : int
        Iterations of its fit.
    curve_ : EntryCurve
        Mean squared error per held-out entry, by penalty and fold.
    minimiser_, one_standard_error_ : float
        Penalty with the smallest error, and the largest within one standard error of it.
    at_edge_ : bool
    best_estimator_ : SoftImpute
        Fitted to all entries with `alpha_`.
    remarks_ : tuple of str
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3. The penalty that is best for the entries of a part
    is used for all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import NuclearNormCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) + 0.5 * rng.normal(size=(60, 20))
    >>> X[rng.random(X.shape) < 0.2] = np.nan
    >>> search = NuclearNormCV(random_state=0).fit(X)
    >>> full = search.complete()
    >>> bool((full[np.isfinite(X)] == X[np.isfinite(X)]).all()), search.at_edge_
    (True, False)
    """

    def __init__(
        self,
        alphas: str | int | ArrayLike = "auto",
        *,
        unshrink: bool = False,
        max_rank: int | None = None,
        solver: str = "auto",
        cv: Any = 5,
        rule: str = "minimum",
        center: str = "none",
        tol: float = 1e-6,
        max_iter: int | None = None,
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.alphas = alphas
        self.unshrink = unshrink
        self.max_rank = max_rank
        self.solver = solver
        self.cv = cv
        self.rule = rule
        self.center = center
        self.tol = tol
        self.max_iter = max_iter
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        if isinstance(self.cv, str):
            if self.unshrink:
                raise ParameterError(f'cv = "{self.cv}" is for unshrink = False alone')
            return one_step_alphas(entries, self.alphas, self.center, self.cv)
        folds = labels_of(entries, self.cv, self.random_state, name="cv")
        settings = self._settings()
        settings["tol"] = max(self.tol, _FOLD_TOL)
        plan = plan_alphas(entries, alphas=self.alphas, **settings)
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _settings(self) -> dict[str, Any]:
        return {
            "center": self.center,
            "unshrink": self.unshrink,
            "max_rank": self.max_rank,
            "solver": self.solver,
            "tol": self.tol,
            "max_iter": self.max_iter,
        }

    def _refitted(self, entries: Entries, value: float) -> Any:
        from consilience.completion.estimators.soft_impute import SoftImpute

        given = {name: x for name, x in self._settings().items() if x is not None}
        return SoftImpute(alpha=value, **given).fit(entries)

    def _tell(self, value: float, chosen: float | None) -> None:
        self.alpha_ = value
        self.best_alpha_ = chosen
        for name in ("rank_", "n_iter_"):
            if hasattr(self, name):  # of an earlier fit
                delattr(self, name)
        if self.refit:
            self.rank_ = int(self.best_estimator_.n_components_)
            self.n_iter_ = max(1, int(self.best_estimator_.n_iter_))
