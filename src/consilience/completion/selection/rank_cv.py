"""Rank of a matrix with missing entries, by errors at held-out entries."""

from __future__ import annotations

import importlib
from typing import Any

from numpy.typing import ArrayLike

from consilience.completion.estimators.entry_plans import RANK_MODELS, plan_estimator, plan_ranks
from consilience.completion.selection.entrywise_kfold import labels_of
from consilience.completion.selection.one_step import one_step_ranks
from consilience.completion.selection.search import EntrySearch, parameter_name, readable
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_paths import check_center, copied
from consilience.numerics.held_out_entries import EntryCurve

_ESTIMATORS = {
    "hard": ("consilience.completion.estimators.hard_impute", "HardImpute"),
    "optspace": ("consilience.completion.estimators.opt_space", "OptSpace"),
    "ppca": ("consilience.completion.estimators.probabilistic_pca", "ProbabilisticPCA"),
}
_USUAL = ("rank", "n_components", "estimator__n_components")  # what parameters are called


class RankCV(EntrySearch):
    """Choose the rank of a model by cross-validated errors at held-out entries.

    Parameters
    ----------
    estimator : str or estimator
        "hard" (HARD-IMPUTE), "soft-unshrunk" (SOFT-IMPUTE+ at the smallest penalty of each rank),
        "optspace", "ppca", or an object with ``fit(X)``, where NaN is missing, ``reconstruct()``
        and a parameter that is a rank, such as ``EMLift(PCA())``.
    parameter : str, optional
        That parameter of an object; by default "rank", "n_components" or "estimator__n_components".
    ranks : "auto", int or sequence of int
        A number means all up to it. "auto" starts with ranks up to 10 and goes on until the
        smallest error lies inside, as long as the model has fewer parameters than a fold leaves
        entries.
    cv : int, EntrywiseKFold, (m,) array of int, "one-step" or "one-step-as-printed"
        Number of folds; folds; the fold of each observed entry; or the one-step leave-one-out of
        every entry of a complete matrix, for "hard" alone, with the formula that equals fitting
        again or the one that the source prints.
    rule : {"minimum", "one-standard-error"}
        What is kept: the rank with the smallest error, or the smallest within one standard error.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off first, for models of the package; "ppca" estimates its own mean.
    refit : bool
        Fit all entries with what was chosen.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number.

    Attributes
    ----------
    best_rank_ : int or None
        What the rule keeps; None where the smallest error lies at an artificial edge of the grid.
    rank_ : int
        Rank of `best_estimator_`: at an artificial edge the one with the smallest error.
    curve_ : EntryCurve
        Mean squared error per held-out entry, by rank and fold.
    minimiser_, one_standard_error_ : int
        Rank with the smallest error, and the smallest rank within one standard error of it.
    at_edge_ : bool
    best_estimator_ : estimator
        Fitted to all entries with `rank_`.
    remarks_ : tuple of str
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3. Two assumptions: the noise of an entry tells nothing
    of that of another (with correlated noise too many are chosen), and entries are missing at
    random.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import RankCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3)) @ rng.normal(size=(3, 20)) + 0.1 * rng.normal(size=(60, 20))
    >>> X[rng.random(X.shape) < 0.1] = np.nan
    >>> search = RankCV("hard", random_state=0).fit(X)
    >>> search.best_rank_, search.complete().shape
    (3, (60, 20))
    """

    def __init__(
        self,
        estimator: Any = "hard",
        *,
        parameter: str | None = None,
        ranks: str | ArrayLike = "auto",
        cv: Any = 5,
        rule: str = "minimum",
        center: str = "none",
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameter = parameter
        self.ranks = ranks
        self.cv = cv
        self.rule = rule
        self.center = center
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        named = isinstance(self.estimator, str)
        if named and self.estimator not in RANK_MODELS:
            allowed = ", ".join(f'"{name}"' for name in RANK_MODELS) + " or an estimator"
            raise ParameterError.of("estimator", allowed, self.estimator)
        check_center(self.center)
        if isinstance(self.cv, str):
            if not named or self.estimator != "hard":
                raise ParameterError(f'cv = "{self.cv}" is for estimator = "hard" alone')
            return one_step_ranks(entries, self.ranks, self.center, self.cv)
        folds = labels_of(entries, self.cv, self.random_state, name="cv")
        if named:
            plan = plan_ranks(
                entries, folds, model=self.estimator, ranks=self.ranks, center=self.center
            )
        else:
            plan = plan_estimator(entries, folds, self.estimator, self._name(), values=self.ranks)
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _name(self) -> str:
        return parameter_name(self.estimator, self.parameter, _USUAL, "a rank")

    def _refitted(self, entries: Entries, value: int) -> Any:
        if self.estimator == "soft-unshrunk":
            from consilience.completion.estimators.soft_impute import soft_impute_at_rank

            return soft_impute_at_rank(entries, value, center=self.center)
        if isinstance(self.estimator, str):
            module, name = _ESTIMATORS[self.estimator]
            made = getattr(importlib.import_module(module), name)
            settings = {} if self.estimator == "ppca" else {"center": self.center}
            return made(rank=value, **settings).fit(entries)
        model = copied(self.estimator).set_params(**{self._name(): value})
        return model.fit(readable(model, entries))

    def _tell(self, value: int, chosen: int | None) -> None:
        self.rank_ = value
        self.best_rank_ = chosen
