"""Number of classes of rows, by errors at held-out entries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import IntArray
from consilience.completion.entry_splits import generator, labels_of
from consilience.completion.estimators import entry_plans
from consilience.completion.estimators.em_imputation import EMLift
from consilience.completion.estimators.observed_kmeans import KPOD, ObservedKMeans
from consilience.completion.kernels import assumptions
from consilience.completion.kernels.cluster_criteria import Criterion, Partitions, gap, strength
from consilience.completion.selection import ModelSearch
from consilience.exceptions import DataError
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryCurve

FULL_MIXTURE = "gaussian-mixture-full"
_FIRST_FULL = 3  # classes of a grid of full mixtures before it grows: each fit costs much


def full_mixture(n_clusters: int, n_init: int, random_state: int) -> EMLift:
    """Normal classes, each with a covariance matrix of its own, for tables with gaps.

    Parameters
    ----------
    n_clusters : int
    n_init : int
        Not used: the mixture is started once.
    random_state : int
    """
    from sklearn.mixture import GaussianMixture

    del n_init
    model = GaussianMixture(n_clusters, covariance_type="full", random_state=random_state)
    return EMLift(model, tol=1e-2)


class ClusterCountCV(ModelSearch):
    """Choose the number of classes of rows by cross-validated errors at held-out entries.

    A clustering predicts an entry by its class's mean of that column.

    Parameters
    ----------
    estimator : str or estimator
        "observed-kmeans" (k-means over observed coordinates), "kpod", "gaussian-mixture-full"
        (normal classes with correlated columns, each started once), or an object with ``fit(X)``,
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
    scale : {"none", "columns"}
        As of :class:`consilience.RankCV`.
    refit : bool
        Fit the chosen model to all entries.
    n_jobs : int, optional
        Folds at a time, as in joblib. The answer does not depend on it.
    random_state : int, numpy Generator, RandomState or None
        Of the folds, where `cv` is a number, and of the starts.

    Attributes
    ----------
    best_n_clusters_ : int or None
        Rank chosen by the rule; None if the smallest error lies at an artificial edge of the grid.
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

    _models = {  # noqa: RUF012  a constant
        "observed-kmeans": ObservedKMeans,
        "kpod": KPOD,
        FULL_MIXTURE: full_mixture,
    }
    _usual = ("n_clusters", "n_components", "estimator__n_clusters", "estimator__n_components")
    _what = "a number of classes"

    def __init__(
        self,
        estimator: Any = "observed-kmeans",
        *,
        parameter: str | None = None,
        n_clusters: str | ArrayLike = "auto",
        n_init: int = 10,
        cv: Any = 10,
        rule: str = "minimum",
        scale: str = "none",
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
        self.scale = scale
        self.refit = refit
        self.n_jobs = n_jobs
        self.random_state = random_state

    def _search(self, entries: Entries) -> EntryCurve:
        rng = generator(self.random_state)
        folds = labels_of(entries, self.cv, rng, name="cv")
        self._seed = int(rng.integers(2**31 - 1))
        if isinstance(self.estimator, str) and self.estimator == FULL_MIXTURE:
            plan = entry_plans.plan_estimator(
                entries,
                folds,
                full_mixture(1, self.n_init, self._seed),
                "estimator__n_components",
                values=self.n_clusters,
                parameter="n_clusters",
                first=_FIRST_FULL,
            )
        elif self._named():
            plan = entry_plans.plan_clusters(
                entries,
                model=self.estimator,
                n_clusters=self.n_clusters,
                seed=self._seed,
                n_init=self.n_init,
            )
        else:
            plan = entry_plans.plan_estimator(
                entries,
                folds,
                self.estimator,
                self._name(),
                values=self.n_clusters,
                parameter="n_clusters",
            )
        return plan.errors(entries, folds, n_jobs=self.n_jobs)

    def _settings(self, value: int) -> dict[str, Any]:
        return {"n_clusters": value, "n_init": self.n_init, "random_state": self._seed}

    def _tell(self, value: int, chosen: int | None) -> None:
        self.n_clusters_ = value
        self.best_n_clusters_ = chosen
        model = self.best_estimator_ if self.refit else None
        for name, unit in (("labels_", 1), ("cluster_centers_", self.scale_)):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name) * unit)
            elif hasattr(self, name):  # of an earlier fit
                delattr(self, name)

    def _doubts(self, entries: Entries, value: int) -> list[str | None]:
        if not isinstance(self.estimator, str) or self.estimator == FULL_MIXTURE:
            return []
        x, labels = entries.dense(), self.best_estimator_.labels_
        none = np.zeros(x.shape[1])
        left = x - np.asarray(self.best_estimator_.reconstruct())
        return [
            assumptions.correlated_classes(x, labels, seed=self._seed),
            assumptions.unequal_spread(left, none) if self.scale == "none" else None,
            assumptions.heavy_tails(left),
        ]

    def compare(self) -> dict[str, Criterion]:
        """Other criteria for the fitted table, up to the largest number that was tried.

        Returns
        -------
        criteria : dict of str to Criterion
            "gap", the gap statistic along the principal axes, and "prediction-strength".

        Raises
        ------
        DataError
            The table has missing entries.
        """
        check_is_fitted(self, "curve_")
        entries = self._scaled(self._own_entries())
        if not entries.complete:
            raise DataError("other criteria need a complete table: compare held-out errors alone")
        x, rng = entries.dense(), np.random.default_rng(self._seed)
        most = min(int(self.curve_.parameters[-1]) + 1, len(x) // 2 - 1)
        found = Partitions.of(x, most, rng=rng, n_init=self.n_init)
        both = (gap(found, rng=rng), strength(x, most, rng=rng, n_init=self.n_init))
        return {one.name: one for one in both}

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
        """Choose, fit, and give the classes of the rows, (n,).

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN, or no entry, where a value is missing.
        y : any
            Not used.

        Returns
        -------
        (n,) array of int
        """
        fitted = self.fit(X)
        return fitted.labels_ if hasattr(fitted, "labels_") else fitted.predict(X)
