"""Any classifier with probabilities, fitted by communities of features: community Bayes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.estimators import community_bayes_fit
from consilience.discriminant.estimators.community_bayes_fit import Scoring, check_number, fit_base
from consilience.discriminant.estimators.folds import folds_of
from consilience.discriminant.estimators.predictors import CommunityBayesPredictor, ScoredClasses
from consilience.discriminant.kernels.communities import Linkage, cut, linkage_tree
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.parallel import one_thread, ordered_map
from consilience.parameters import check, one_of

DEFAULT_C = 1.0
"""``C`` of the default base, on standardised features: a ridge of 1, intercepts unpenalised."""


_ALLOWED = {"linkage": one_of(*get_args(Linkage)), "scoring": one_of(*get_args(Scoring))}


class CommunityBayesClassifier(ClassifierMixin, ScoredClasses, BaseEstimator):
    """Classify by communities of features that are taken as independent given the class.

    Features are clustered by their rank correlations within classes, a base classifier is fitted
    to each community, and the posteriors are multiplied. One community is the base alone, p
    communities are naive Bayes with that base.

    Parameters
    ----------
    estimator : classifier, optional
        The base, with ``predict_proba``. By default standardised features and
        ``LogisticRegression(C=1)``: with few rows a class the classes are often separable, and
        logistic regression without a penalty has no maximum.
    n_communities : int or "cv"
        L, from 1 to p; with ``"cv"`` chosen by cross-validation.
    candidates : sequence of int, optional
        Numbers of communities to try: 1 to 20 (or p) by default.
    linkage : {"average", "complete", "single"}
    cv : int, splitter or iterable of (train, test)
        As in scikit-learn, where a whole number means stratified folds in the order of the rows
        (as many as the rows of the smallest class, if these are fewer, and never fewer than 2), or
        stratified folds of whole groups where `fit` is given groups. Rows that belong together (of
        one person, say) need that. Pairs hold row numbers or boolean masks.
    one_standard_error : bool
        Take the fewest communities whose loss is within one standard error of the least.
    scoring : {"error", "log_loss"}
        Loss that chooses.
    param_grid : dict or list of dicts, optional
        Parameters of the base to choose together with the number of communities, as in
        ``GridSearchCV``.
    n_jobs : int, optional
        Folds, or communities of the last fit, at a time, as in joblib.

    Attributes
    ----------
    classes_ : (K,) array
    priors_ : (K,) array
        Shares of the classes.
    similarity_ : (p, p) array
        ``|(n_k R_k,ij)_k|_2`` with R_k from Spearman's correlations within class k.
    tree_ : (p - 1, 4) array
        Hierarchical clustering, as in scipy.
    n_communities_ : int
    communities_ : tuple of L arrays of int
        Features of each, ascending; communities by their first feature.
    communities_names_ : tuple of L tuples of str
        Their names: those of the data frame, or x0, x1, ...
    estimators_ : list of L classifiers
        The base fitted to each community; their classes are codes, places in `classes_`.
    best_params_ : dict
        Chosen parameters of the base; empty without `param_grid`.
    cv_results_ : dict
        With cross-validation. One entry for each setting and number of communities:
        ``n_communities``, ``params``, ``error``, ``log_loss``, their standard errors ``error_se``
        and ``log_loss_se``, and by fold ``fold_error``, ``fold_log_loss`` and ``fold_wrong`` (rows
        predicted wrongly, of ``fold_rows``).
    base_error_ : float
        Cross-validated loss (of `scoring`) of the base alone, under its best setting, to be read
        beside that of the communities; only where 1 is among the candidates.
    separable_ : (S,) array of int
        Communities in which the training rows can be told apart without error: by the base or,
        where it is linear, by some linear rule.
    n_fits_ : int
        Base classifiers fitted, all in all.
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Where X has names.

    Notes
    -----
    A feature that is constant within a class has no rank correlation there; it is set to 0. Among
    numbers of communities of equal loss the fewest are taken. Sparse tables and missing values are
    refused; rows have no weights. The base must not reweigh the classes (``class_weight``): its
    posteriors are divided by their shares. Probabilities of 0 count as 1e-300.

    Much of what communities gain over logistic regression without a penalty, a penalty gains too:
    read ``base_error_``.

    References
    ----------
    Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*, arXiv 1407.4543.
    Departures: a default base with a penalty; sklearn's folds in place of a validation set.

    Examples
    --------
    >>> from consilience import CommunityBayesClassifier
    >>> from consilience.datasets.simulate_wide import simulate_separate_groups
    >>> import numpy as np
    >>> x, y = simulate_separate_groups(100, 3, rng=np.random.default_rng(0))
    >>> fit = CommunityBayesClassifier(n_communities=3).fit(x, y)
    >>> [part.tolist() for part in fit.communities_]
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_communities: int | str = "cv",
        candidates: Sequence[int] | None = None,
        linkage: Linkage = "average",
        cv: Any = 5,
        one_standard_error: bool = False,
        scoring: Scoring = "error",
        param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.n_communities = n_communities
        self.candidates = candidates
        self.linkage = linkage
        self.cv = cv
        self.one_standard_error = one_standard_error
        self.scoring = scoring
        self.param_grid = param_grid
        self.n_jobs = n_jobs

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> CommunityBayesClassifier:
        """Find the communities and fit the base to each.

        Parameters
        ----------
        X : (n, p) array or data frame
            Finite numbers.
        y : (n,) array
            Two classes or more.
        groups : (n,) array, optional
            Rows of one group are held out together.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or the base has no probabilities.
        DataError
            The target holds one class only, or a fold trains on one class only.

        Warns
        -----
        SeparationWarning
            The base is linear, and classes can be told apart without error.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError("the target holds one class only: give rows of two classes or more")
        codes = codes.astype(np.int64)
        base = default_base() if self.estimator is None else clone(self.estimator)
        if not hasattr(base, "predict_proba"):
            raise ParameterError(
                f"estimator must be a classifier with predict_proba, but "
                f"{type(base).__name__} has none as it is set"
            )
        check(_ALLOWED, vars(self))
        settings = community_bayes_fit.settings_of(self.param_grid, base)
        k, p = len(self.classes_), X.shape[1]
        with one_thread():
            self.similarity_ = community_bayes_fit.class_similarity(X, codes, k)
            self.tree_ = linkage_tree(self.similarity_, self.linkage)
        # Ranks and tree are of all rows; those of the folds are their own.
        self.priors_ = np.exp(community_bayes_fit.log_priors(codes, k))
        self.n_fits_ = 0
        for name in ("cv_results_", "base_error_"):  # of a former fit
            self.__dict__.pop(name, None)
        numbers: tuple[int, ...]
        if self.n_communities == "cv" and self.candidates is None:
            numbers = tuple(range(1, min(p, community_bayes_fit.LARGEST_DEFAULT) + 1))
        elif self.n_communities == "cv":
            given = list(self.candidates) if isinstance(self.candidates, Iterable) else []
            if not given:
                allowed = "a sequence of one number of communities or more"
                raise ParameterError.of("candidates", allowed, self.candidates)
            numbers = tuple(sorted({check_number("candidates", one, p) for one in given}))
        elif isinstance(self.n_communities, str):
            raise ParameterError.of("n_communities", '"cv" or a whole number', self.n_communities)
        else:
            numbers = (check_number("n_communities", self.n_communities, p),)
        self.best_params_, self.n_communities_ = settings[0], numbers[0]
        if len(numbers) > 1 or len(settings) > 1:
            judged = community_bayes_fit.cross_validate(
                X,
                codes,
                k,
                base,
                folds=folds_of(self.cv, X, codes, groups, every_class=True),
                candidates=numbers,
                linkage=self.linkage,
                params=settings,
                n_jobs=self.n_jobs,
            )
            self.cv_results_ = judged.table()
            self.n_fits_ += judged.n_fits
            alone = judged.candidates == 1
            if alone.any():
                self.base_error_ = float(judged.mean(self.scoring)[:, alone].min())
            # Base and number of communities are chosen together.
            place, self.n_communities_ = judged.choose(
                self.scoring, one_standard_error=bool(self.one_standard_error)
            )
            self.best_params_ = settings[place]
        self.communities_ = cut(self.tree_, self.n_communities_)
        columns = [X[:, part] for part in self.communities_]
        fitted = partial(_fitted, base, self.best_params_, codes)
        self.estimators_ = ordered_map(fitted, columns, n_jobs=self.n_jobs, what="communities")
        self.n_fits_ += self.n_communities_
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(p)])
        self.communities_names_ = tuple(
            tuple(str(names[j]) for j in part) for part in self.communities_
        )
        pairs = zip(self.estimators_, columns, strict=True)
        self.separable_ = np.flatnonzero(
            [community_bayes_fit.separated(one, x, codes) for one, x in pairs]
        )
        if len(self.separable_) and community_bayes_fit.is_linear(self.estimators_[0]):
            warnings.warn(
                f"the classes can be told apart without error in {len(self.separable_)} of "
                f"{self.n_communities_} communities (separable_): there the coefficients hang on "
                "the penalty of the base alone; compare several penalties through param_grid",
                community_bayes_fit.SeparationWarning,
                stacklevel=2,
            )
        return self

    # ------------------------------------------------------------------ predict

    def contributions(self, X: Any) -> FloatArray:
        """What each community says for each class: ``log p(k | x_l) - log pi_k``.

        Parameters
        ----------
        X : (n, p) array or data frame

        Returns
        -------
        (n, L, K) array
            Sums over communities, with the log prior added, are the log-posteriors up to a
            constant for each row.
        """
        check_is_fitted(self)
        rows = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        prior = np.log(self.priors_)
        found = np.empty((len(rows), self.n_communities_, len(prior)))
        pairs = zip(self.estimators_, self.communities_, strict=True)
        for place, (fitted, part) in enumerate(pairs):
            logs = community_bayes_fit.base_log_probabilities(fitted, rows[:, part], len(prior))
            found[:, place] = community_bayes_fit.evidence(logs, prior)
        return found

    def to_predictor(self) -> CommunityBayesPredictor:
        """Arrays that predict the same, for a site to keep.

        Returns
        -------
        CommunityBayesPredictor

        Raises
        ------
        ParameterError
            The base is not logistic regression (with standardised features or without).
        """
        check_is_fitted(self)
        return CommunityBayesPredictor(
            communities=self.communities_,
            rows=[linear_parts(fitted, len(self.classes_)) for fitted in self.estimators_],
            priors=self.priors_,
            classes=self.classes_,
            feature_names=getattr(self, "feature_names_in_", None),
        )

    def _scores(self, X: Any) -> FloatArray:
        parts = self.contributions(X)
        return np.asarray(np.log(self.priors_) + parts.sum(axis=1))


def _fitted(base: Any, params: dict[str, Any], codes: IntArray, x: FloatArray) -> Any:
    """Fit the base to the columns of one community."""
    with one_thread():
        return fit_base(base, params, x, codes)


def default_base() -> Any:
    """Logistic regression on standardised features, with a ridge of 1 and free intercepts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=DEFAULT_C, tol=1e-6, max_iter=1000))


def linear_parts(fitted: Any, n_classes: int) -> tuple[FloatArray, FloatArray]:
    """Coefficients (1 or K, q) and intercepts (1 or K,) of logistic regression, in table units.

    Parameters
    ----------
    fitted : classifier
        scikit-learn's ``LogisticRegression``, alone or after ``StandardScaler`` in a pipeline.
    n_classes : int
        K.

    Raises
    ------
    ParameterError
        Another base.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    # A pipeline, or the classifier alone.
    steps = [step for _, step in fitted.steps] if hasattr(fitted, "steps") else [fitted]
    *before, last = steps
    known = isinstance(last, LogisticRegression) and len(last.classes_) == n_classes
    if not known or len(before) > 1 or not all(isinstance(b, StandardScaler) for b in before):
        raise ParameterError(
            "only logistic regression, alone or after StandardScaler, has a predictor of arrays: "
            "keep the classifier itself"
        )
    coef, intercept = np.asarray(last.coef_, float), np.asarray(last.intercept_, float)
    for scaler in before:
        if scaler.scale_ is not None:
            # Slopes of (x - mean) / scale are those of x over scale.
            coef = coef / scaler.scale_
        if scaler.with_mean:
            intercept = intercept - coef @ scaler.mean_
    return coef, intercept
