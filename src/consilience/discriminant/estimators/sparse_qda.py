"""Quadratic discriminant analysis whose precision matrices share their zeros, as an estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from consilience.arrays import FloatArray
from consilience.discriminant.estimators.folds import Fold, folds_of
from consilience.discriminant.estimators.predictors import ScoredClasses, some
from consilience.discriminant.estimators.sparse_qda_fit import (
    QDASettings,
    SparseQDAFit,
    SparseQDAInteractions,
    fit_sparse_qda,
    fold_tol,
)
from consilience.exceptions import DataError, ParameterError


class SparseQDA(ClassifierMixin, ScoredClasses, BaseEstimator):
    """Quadratic discriminant analysis with sparse precision matrices of a common pattern.

    Minimises ``sum_k n_k (-logdet T_k + tr(S_k T_k)) + lam sum_{j != j'} |(T_1,jj', ...,
    T_K,jj')|_2`` over ordered pairs of features: from naive Bayes with normal densities (a large
    penalty) to quadratic discriminant analysis (none). Linked features are partially correlated
    within the classes.

    Parameters
    ----------
    alpha : float or "cv"
        Penalty for a row: lam is alpha times the number of rows, so that alpha has the same
        meaning on a subset of the rows. With ``"cv"`` it is chosen by cross-validated errors.
    n_alphas : int
        Penalties of the grid, geometric from the smallest one without any link downwards, as far
        as a smaller one can still win (see `remarks_`).
    smallest : float or "auto"
        Last penalty of the grid over the first; by default 0.001 where every class has more rows
        than there are features, or 0.01.
    alphas : array of float, optional
        Grid to choose from, in place of the former two; 0 is quadratic discriminant analysis.
    cv : int, splitter or iterable of (train, test)
        Folds, as in scikit-learn; a number means stratified folds in the order of the rows (as many
        as the rows of the largest class, if these are fewer), or stratified folds of whole groups
        where `fit` is given groups (speakers, patients). Pairs hold row numbers or boolean masks.
    ties : {"sparsest", "densest", "middle"}
        Which penalty to take if several have the same number of errors, as is common.
    priors : (K,) array, optional
        Probabilities of the sorted classes; by default their shares of the rows.
    standardize : bool
        Divide columns by their pooled standard deviation within the classes, so that the penalty
        does not depend on their units.
    max_block : int or None
        Largest number of features that may be linked together. A grid ends before penalties that
        link more; a single penalty that does is refused.
    tol : float
        Duality gap over ``p sum_k n_k`` at which a fit ends; fits in folds end at 1e-6,
        with more than 20 columns at 1e-5, where this is smaller, as the choice among penalties
        hardly ever needs more.
    max_iter : int, optional
        Iterations for each block, by default those of the solver.
    n_jobs : int, optional
        Folds, and blocks, at a time, as in joblib. The answer does not depend on it.

    Attributes
    ----------
    classes_ : (K,) array
    priors_ : (K,) array
    means_ : (K, p) array
        In the units of the table.
    precision_ : JointPrecision
        Blocks and matrices over the columns that are not constant, in units of `scale_`.
    scale_ : (p,) array
        What columns are divided by; NaN for constant ones.
    alpha_, lam_ : float
        Penalty for a row, and that of the criterion.
    relative_penalty_ : float
        ``P(T) / P(T without a penalty)``, where P is the sum of the norms in the criterion.
    relative_to_ : float
        The alpha that `relative_penalty_` is related to: 0, or the smallest of the path where the
        fit without a penalty does not exist (a class has no more rows than features).
    path_ : SparseQDAPath
        Penalties with their numbers of links, largest blocks, gaps and cross-validated errors.
    gap_ : float
        Duality gap of the fit over ``p sum_k n_k``: a bound for how far the criterion is from its
        minimum.
    n_iter_ : int
        Iterations of the block that took most.
    blocks_ : tuple of (q,) arrays of int
        Columns of the table that are linked with one another.
    interactions_ : SparseQDAInteractions
        Linked pairs with strengths and partial correlations, the strongest first.
    left_out_ : array of int
        Columns that are constant everywhere.
    floored_ : (f, 2) array of int
        Classes and columns that are constant within the class, but not everywhere: the pooled
        variance within the classes stands in.
    remarks_ : tuple of str
        Remarks on the fit.
    predictor_ : SparseQDAPredictor
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*, arXiv
    1407.4543, section 2. Departures: the penalty acts on standardised columns unless `standardize`
    is False, the fit is certified by a duality gap, and folds follow the order of the rows: rows of
    one group that lie together are not spread over the folds.

    Examples
    --------
    >>> import numpy as np
    >>> from consilience import SparseQDA
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(400, 6))
    >>> y = np.repeat(["a", "b"], 200)
    >>> x[y == "b", 1] += x[y == "b", 0]
    >>> fit = SparseQDA().fit(x, y)
    >>> fit.interactions_.feature_1[0], fit.interactions_.feature_2[0]
    ('x0', 'x1')
    """

    def __init__(
        self,
        *,
        alpha: float | str = "cv",
        n_alphas: int = 20,
        smallest: float | str = "auto",
        alphas: ArrayLike | None = None,
        cv: Any = 5,
        ties: str = "sparsest",
        priors: ArrayLike | None = None,
        standardize: bool = True,
        max_block: int | None = 2000,
        tol: float = 1e-8,
        max_iter: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.n_alphas = n_alphas
        self.smallest = smallest
        self.alphas = alphas
        self.cv = cv
        self.ties = ties
        self.priors = priors
        self.standardize = standardize
        self.max_block = max_block
        self.tol = tol
        self.max_iter = max_iter
        self.n_jobs = n_jobs

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> SparseQDA:
        """Fit the classes' normal densities.

        Parameters
        ----------
        X : (n, p) array or data frame
            Finite numbers, dense.
        y : (n,) array
            Classes, of each two rows or more.
        groups : (n,) array, optional
            Rows of one group are held out together.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or more than `max_block` features are linked at the
            penalty, or at every one of `alphas`.
        DataError
            The table cannot be used, or has no fit without a penalty where that is asked for.

        Warns
        -----
        ConvergenceWarning
            A duality gap stayed above `tol`.
        UserWarning
            Columns are constant, a grid was cut short, or folds lack a class or rows.
        """
        settings = QDASettings(**{f.name: getattr(self, f.name) for f in fields(QDASettings)})
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        counts = np.bincount(codes)
        if len(counts) < 2:
            raise DataError("y has one class only: there must be at least two classes")
        if counts.min() < 2:
            label = self.classes_[counts.argmin()]
            raise DataError(
                f"class {str(label)!r} of y has one row, but variances within a class need two: "
                "add rows of this class, or leave it out"
            )
        priors = None
        if self.priors is not None:
            try:
                priors = np.asarray(self.priors, dtype=np.float64)
                fits = priors.shape == counts.shape and (priors > 0).all()
            except (TypeError, ValueError):
                fits = False
            if priors is None or not fits or abs(priors.sum() - 1.0) > 1e-6:
                allowed = f"None or {len(counts)} numbers above 0 whose sum is 1"
                raise ParameterError.of("priors", allowed, self.priors)
            priors = priors / priors.sum()
        folds: list[Fold] = []
        if isinstance(settings.alpha, str):
            with warnings.catch_warnings():  # of classes with fewer rows than folds, see _remarks
                warnings.filterwarnings("ignore", "The least populated class", UserWarning)
                folds = folds_of(self.cv, X, codes, groups)
        k, codes = len(counts), codes.astype(np.int64)
        found = fit_sparse_qda(np.asarray(X), codes, k, settings, folds=folds, priors=priors)
        names = self._names(X.shape[1])
        self._take(found, priors, names)
        remarks = _remarks(found, settings, self.classes_, names)
        self.remarks_ = tuple(sentence for sentence, _ in remarks)
        for sentence, category in remarks:
            if category is not None:
                warnings.warn(sentence, category, stacklevel=2)
        return self

    def _names(self, n_features: int) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(n_features)] if names is None else [str(n) for n in names]

    def _take(self, found: SparseQDAFit, priors: FloatArray | None, names: list[str]) -> None:
        """Keep the answer."""
        prepared, path, units = found.prepared, found.path, found.prepared.units
        self.priors_ = prepared.n / prepared.total if priors is None else priors
        self.means_ = prepared.means
        self.scale_ = np.full(units.n_features, np.nan)
        self.scale_[units.kept] = units.scale
        self.precision_ = found.precision
        self.path_ = path
        self.alpha_ = float(path.alphas[found.chosen])
        self.lam_ = self.alpha_ * prepared.total
        self.relative_penalty_ = float(path.relative_penalties[found.chosen])
        self.relative_to_ = found.relative_to
        self.gap_ = float(found.precision.relative_gap)
        self.n_iter_ = max(1, int(found.precision.n_iter))
        self.blocks_ = tuple(units.kept[block] for block in found.precision.blocks)
        self.left_out_, self.floored_ = units.left_out, units.floored
        self.interactions_ = SparseQDAInteractions.of(found.precision, units, self.classes_, names)
        self.predictor_ = prepared.predictor(
            found.precision, self.classes_, self.priors_, getattr(self, "feature_names_in_", None)
        )

    # ------------------------------------------------------------------ answers

    def _scores(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        # a model of sites fills missing cells as its preparation did
        finite: Any = True if self.predictor_.scaling is None else "allow-nan"
        rows = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=finite)
        return self.predictor_.scores(rows)


def fitted_sparse_qda(
    found: SparseQDAFit,
    classes: NDArray[Any],
    priors: FloatArray,
    feature_names: Sequence[str],
    scaling: FloatArray | None = None,
    **settings: Any,
) -> SparseQDA:
    """Estimator of a fit that was made elsewhere, as over sites.

    Parameters
    ----------
    found : SparseQDAFit
    classes : (K,) array
    priors : (K,) array
    feature_names : sequence of p str
    scaling : (3, p) array, optional
        What fills missing cells, centre and scale of each column: rows are given as they were
        before, and so are `means_` and `scale_`.
    **settings
        Parameters of the estimator.
    """
    made = SparseQDA(**settings)
    made.classes_ = np.asarray(classes)
    made.n_features_in_ = found.prepared.units.n_features
    made.feature_names_in_ = np.array([str(name) for name in feature_names], dtype=object)
    made.remarks_ = ()
    made._take(found, np.asarray(priors, dtype=np.float64), made._names(made.n_features_in_))
    made.predictor_ = made.predictor_.with_names(feature_names, scaling)
    if scaling is None:
        apart = made.priors_ @ (made.means_ - made.priors_ @ made.means_) ** 2
        spread = np.sqrt(np.nan_to_num(made.scale_) ** 2 + apart)
        made.predictor_.frame = np.array([made.priors_ @ made.means_, spread])
    else:
        made.means_ = made.means_ * scaling[2] + scaling[1]
        made.scale_ = made.scale_ * scaling[2]
    return made


# ------------------------------------------------------------------ remarks


def _remarks(
    found: SparseQDAFit, settings: QDASettings, classes: NDArray[Any], names: list[str]
) -> list[tuple[str, type[Warning] | None]]:
    """Sentences about a fit, and the warning that each of them is, if any."""
    remarks: list[tuple[str, type[Warning] | None]] = []
    units, path = found.prepared.units, found.path

    def say(sentence: str, category: type[Warning] | None = UserWarning) -> None:
        remarks.append((sentence, category))

    if len(units.left_out):
        left = some([names[j] for j in units.left_out])
        say(f"columns are constant and take no part: {left}")
    if len(units.floored):
        columns = some([names[j] for j in np.unique(units.floored[:, 1])])
        say(
            "columns are constant within a class, where the pooled variance of the classes stands "
            f"in, see floored_: {columns}"
        )
    if found.cut is not None:
        say(
            f"below alpha = {found.cut:.3g} more than max_block = {settings.max_block} features "
            "are linked, in the whole table or in a fold: no smaller penalty was tried"
        )
    if found.raced:
        fewest = (
            "no held-out row was wrong"
            if not path.cv_wrong[:, found.chosen].any()
            else ("errors rose clearly above the fewest")
        )
        say(f"below alpha = {path.alphas[-1]:.3g} no penalty was tried: {fewest} before", None)
    if found.singular:
        say(
            "alpha = 0 was not tried: the covariance matrix of a class has an inverse in the whole "
            "table, but none on the fewer rows of a fold"
        )
    if len(found.missing):
        labels = some([str(classes[k]) for k in found.missing])
        say(
            "some fold has fewer than two rows of a class to learn from, so that its rows there "
            f"count as errors at every penalty: {labels}"
        )
    gap, tol = max(float(found.precision.relative_gap), float(path.gaps.max())), settings.tol
    if gap <= tol:
        gap, tol = found.fold_gap, fold_tol(tol, len(units.kept))
    if gap > tol:
        say(
            f"a relative duality gap is {gap:.1e}, above tol = {tol:.1e}: raise max_iter "
            "or leave out the smallest penalties",
            ConvergenceWarning,
        )
    last = found.chosen == len(path) - 1 and path.alphas[-1] > 0 and found.cut is None
    if last and len(path) > 1:
        say("the smallest penalty of the grid was chosen: try smaller ones", None)
    return remarks
