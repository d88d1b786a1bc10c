"""Number of classes of rows, by errors at held-out entries."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import IntArray
from consilience.completion.estimators.entry_plans import (
    CLUSTER_MODELS,
    plan_clusters,
    plan_estimator,
)
from consilience.completion.selection.entrywise_kfold import generator, labels_of
from consilience.completion.selection.search import EntrySearch, parameter_name, readable
from consilience.exceptions import ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.entry_paths import copied
from consilience.numerics.held_out_entries import EntryCurve

_ESTIMATORS = {
    "observed-kmeans": ("consilience.completion.estimators.observed_kmeans", "ObservedKMeans"),
    "kpod": ("consilience.completion.estimators.kpod", "KPOD"),
}
_USUAL = ("n_clusters", "n_components", "estimator__n_clusters", "estimator__n_components")


class ClusterCountCV(EntrySearch):
    """Choose the number of classes of rows by cross-validated errors at held-out entries.

    A clustering predicts an entry by its class's mean of that column.

    Parameters
    ----------
    estimator : str or estimator
        "observed-kmeans" (k-means over observed coordinates), "kpod", or an object with ``fit(X)``,
        where NaN is missing, ``reconstruct()`` and a parameter that counts classes, such as
        ``EMLift(GaussianMixture())``.
    parameter : str, optional
        That parameter of an object; by default "n_clusters" or "n_components", also of the
        estimator inside.
    n_clusters : "auto", int or sequence of int
        A number means all up to it. "auto" starts with 1 to 10 and goes on until the smallest error
        lies inside, at most to a quarter of the rows.
    n_init : int
        Starts of each fit, for names.
    cv : int, EntrywiseKFold or (m,) array of int
        Number of folds; folds; or the fold of each observed entry.
    rule : {"minimum", "one-standard-error"}
        What is kept: the number with the smallest error, or the smallest within one standard error.
    refit : bool
        Fit all entries with what was chosen.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number, and of the starts.

    Attributes
    ----------
    best_n_clusters_ : int or None
        What the rule keeps; None where the smallest error lies at an artificial edge of the grid.
    n_clusters_ : int
        Classes of `best_estimator_`: at an artificial edge the number with the smallest error.
    labels_ : (n,) array of int
        Classes of the rows, where the model has some; only with ``refit=True``.
    cluster_centers_ : (k, p) array
        The same.
    curve_ : EntryCurve
        Mean squared error per held-out entry, by number of classes and fold.
    minimiser_, one_standard_error_ : int
        Number with the smallest error, and the smallest within one standard error of it.
    at_edge_ : bool
    best_estimator_ : estimator
        Fitted to all entries with `n_clusters_`.
    remarks_ : tuple of str
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3. Columns that are correlated within the classes are
    against the method: more classes are chosen than there are.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import ClusterCountCV
    >>> rng = np.random.default_rng(0)
    >>> X = 3.0 * rng.normal(size=(3, 8))[np.repeat([0, 1, 2], 30)] + rng.normal(size=(90, 8))
    >>> ClusterCountCV(cv=5, random_state=0).fit(X).best_n_clusters_
    3
    """

    def __init__(
        self,
        estimator: Any = "observed-kmeans",
        *,
        parameter: str | None = None,
        n_clusters: str | ArrayLike = "auto",
        n_init: int = 10,
        cv: Any = 10,
        rule: str = "minimum",
        refit: bool = True,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.parameter = parameter
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.cv = cv
        self.rule = rule
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        rng = generator(self.random_state)
        folds = labels_of(entries, self.cv, rng, name="cv")
        self._seed = int(rng.integers(2**31 - 1))
        if isinstance(self.estimator, str):
            if self.estimator not in CLUSTER_MODELS:
                allowed = ", ".join(f'"{name}"' for name in CLUSTER_MODELS) + " or an estimator"
                raise ParameterError.of("estimator", allowed, self.estimator)
            plan = plan_clusters(
                entries,
                model=self.estimator,
                n_clusters=self.n_clusters,
                seed=self._seed,
                n_init=self.n_init,
            )
        else:
            plan = plan_estimator(
                entries,
                folds,
                self.estimator,
                self._name(),
                values=self.n_clusters,
                parameter="n_clusters",
            )
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _name(self) -> str:
        return parameter_name(self.estimator, self.parameter, _USUAL, "a number of classes")

    def _refitted(self, entries: Entries, value: int) -> Any:
        if isinstance(self.estimator, str):
            module, name = _ESTIMATORS[self.estimator]
            made = getattr(importlib.import_module(module), name)
            return made(value, n_init=self.n_init, random_state=self._seed).fit(entries)
        model = copied(self.estimator).set_params(**{self._name(): value})
        return model.fit(readable(model, entries))

    def _tell(self, value: int, chosen: int | None) -> None:
        self.n_clusters_ = value
        self.best_n_clusters_ = chosen
        model = self.best_estimator_ if self.refit else None
        for name in ("labels_", "cluster_centers_"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
            elif hasattr(self, name):  # of an earlier fit
                delattr(self, name)

    def predict(self, X: Any) -> IntArray:
        """Classes of rows, as of the model that is kept.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries

        Returns
        -------
        labels : (m,) array of int
        """
        return np.asarray(self._ask("predict", X))

    def fit_predict(self, X: Any, y: Any = None) -> IntArray:
        """Choose, fit, and give the classes of the rows, (n,)."""
        fitted = self.fit(X)
        return fitted.labels_ if hasattr(fitted, "labels_") else fitted.predict(X)
