"""Models of complete tables for tables with missing entries: fill, fit, fill again.

A filler says how a model fills: it fits the model to a filled table and gives the model's own
matrix. From the second fit on it starts where it ended, for models that can: their answers would
otherwise jump from fill to fill.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.completion.estimators import entry_input
from consilience.completion.estimators.entry_input import RowCompletion
from consilience.completion.kernels import conditional_normal
from consilience.exceptions import DataError, ParameterError
from consilience.numerics.entries import Entries
from consilience.numerics.observed_kmeans import column_means
from consilience.parameters import is_whole

# --- Faster ways to a point that a map leaves where it is.

_DEPTH = 5  # differences that a step looks back to
_PLAIN = 3  # steps before the first mixed one
_RCOND = 1e-10


class AndersonMixing:
    """Next points of a fixed-point iteration from the last few (Anderson 1965).

    The step is the map's own, corrected by the combination of earlier differences that comes
    nearest to the residual. Where a residual has grown, what came before is forgotten, and the
    next step is the map's own.
    """

    def __init__(self) -> None:
        self._points: list[FloatArray] = []
        self._residuals: list[FloatArray] = []
        self._last = np.inf
        self._steps = 0

    def next(self, point: FloatArray, image: FloatArray) -> FloatArray:
        """Where to evaluate the map next.

        Parameters
        ----------
        point : (q,) array
            Where it was evaluated.
        image : (q,) array
            What it gave there.
        """
        residual = image - point
        size = float(np.linalg.norm(residual))
        self._steps += 1
        if self._steps <= _PLAIN:
            return image
        if size > self._last:
            self._points, self._residuals = [], []
        self._last = size
        self._points = [*self._points[-_DEPTH:], point]
        self._residuals = [*self._residuals[-_DEPTH:], residual]
        if len(self._points) < 2:
            return image
        steps = np.diff(np.array(self._points), axis=0).T
        changes = np.diff(np.array(self._residuals), axis=0).T
        # Anderson 1965: the combination of earlier differences nearest to the residual
        weights = np.linalg.lstsq(changes, residual, rcond=_RCOND)[0]
        return np.asarray(image - (steps + changes) @ weights)


# --- How models of complete tables say what a missing entry should be.

Reconstruct = Callable[[Any, FloatArray], Any]

_SEED = 0
_BETWEEN = 20  # iterations of non-negative factors between two fills, after the first fit


class Filler:
    """A model with ``transform`` and ``inverse_transform``.

    Parameters
    ----------
    estimator : estimator
        Unfitted; draws without a seed of their own get one, so that fits can be compared.
    """

    fitted: Any
    by_observed = False  # whether the model's matrix does not depend on what was filled in
    partial = False  # whether the last fit was only some steps of one, on purpose

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.settings = {
            key: _SEED
            for key, value in estimator.get_params(deep=True).items()
            if key.rpartition("__")[2] == "random_state" and value is None
        }
        self.fitted = None
        self._start: dict[str, Any] = {}

    def fit(self, filled: FloatArray) -> None:
        """Fit the model to a filled table, from the last fit where there is one."""
        self._start = {} if self.fitted is None else self._warm()
        self.fitted = self._fresh(self._start).fit(filled)

    def finish(self) -> Any:
        """The fitted model with the settings that were given in place of its start."""
        given = self.estimator.get_params(deep=False)
        return self.fitted.set_params(**{key: given[key] for key in self._start})

    def matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        """The model's matrix at rows, (n, p)."""
        return np.asarray(self.fitted.inverse_transform(self.fitted.transform(filled)))

    def own_matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        """The model's matrix at the rows of the last fit, (n, p)."""
        return self.matrix(filled, seen)

    def labels(self, filled: FloatArray, seen: BoolArray) -> IntArray:
        """Classes of rows, (n,)."""
        return np.asarray(self.fitted.predict(filled))

    def _fresh(self, start: dict[str, Any]) -> Any:
        return clone(self.estimator).set_params(**self.settings).set_params(**start)

    def _warm(self) -> dict[str, Any]:
        return {}


class _Called(Filler):
    """A model with a function of the user's."""

    def __init__(self, estimator: Any, reconstruct: Reconstruct) -> None:
        super().__init__(estimator)
        self.reconstruct = reconstruct

    def matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        return np.asarray(self.reconstruct(self.fitted, filled), dtype=np.float64)


class _NonNegative(Filler):
    """Non-negative factors: some steps from the last ones, which fills carry on."""

    _scores: FloatArray

    def fit(self, filled: FloatArray) -> None:
        first = self.fitted is None
        steps = min(self.estimator.max_iter, _BETWEEN)
        self._start = {} if first else {"init": "custom", "max_iter": steps}
        self.partial = not first
        start = {} if first else {"W": self._scores, "H": self.fitted.components_.copy()}
        self.fitted = self._fresh(self._start)
        self._scores = self.fitted.fit_transform(filled, **start)

    def own_matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        return np.asarray(self._scores @ self.fitted.components_)


class _Factors(Filler):
    """Factor analysis: means given what is observed."""

    by_observed = True

    def matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        model = self.fitted
        factors = conditional_normal.factors_given_observed(
            filled, seen, model.mean_, model.components_, model.noise_variance_
        )
        return np.asarray(model.mean_ + factors @ model.components_)

    def _warm(self) -> dict[str, Any]:
        return {"noise_variance_init": self.fitted.noise_variance_}


class _Mixture(Filler):
    """Gaussian mixtures: means given what is observed, classes by it."""

    by_observed = True

    def matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        return self._given(filled, seen)[0]

    def labels(self, filled: FloatArray, seen: BoolArray) -> IntArray:
        return np.asarray(self._given(filled, seen)[1].argmax(axis=1))

    def _given(self, filled: FloatArray, seen: BoolArray) -> tuple[FloatArray, FloatArray]:
        model = self.fitted
        full, (k, p) = model.covariances_, model.means_.shape
        if model.covariance_type == "tied":
            full = np.broadcast_to(full, (k, p, p))
        elif model.covariance_type != "full":  # variances by column, or one for all of them
            full = np.broadcast_to(full.reshape(k, -1), (k, p))[:, :, None] * np.eye(p)
        return conditional_normal.mixture_given_observed(
            filled, seen, model.weights_, model.means_, full
        )

    def _warm(self) -> dict[str, Any]:
        model = self.fitted
        return {
            "n_init": 1,
            "weights_init": model.weights_,
            "means_init": model.means_,
            "precisions_init": model.precisions_,
        }


class _Centres(Filler):
    """K-means: the centre that is nearest over the observed coordinates."""

    by_observed = True

    def matrix(self, filled: FloatArray, seen: BoolArray) -> FloatArray:
        return np.asarray(self.fitted.cluster_centers_[self.labels(filled, seen)])

    def labels(self, filled: FloatArray, seen: BoolArray) -> IntArray:
        centres = self.fitted.cluster_centers_
        squares = [np.where(seen, filled - centre, 0.0) ** 2 for centre in centres]
        return np.asarray(np.array([s.sum(axis=1) for s in squares]).argmin(axis=0))

    def _warm(self) -> dict[str, Any]:
        return {"n_init": 1, "init": self.fitted.cluster_centers_}


def filler_of(estimator: Any, reconstruct: Reconstruct | None) -> Filler:
    """How this model fills.

    Parameters
    ----------
    estimator : estimator
        Unfitted.
    reconstruct : callable, optional
        ``reconstruct(fitted, filled)`` gives the model's matrix; it goes before what is known.

    Raises
    ------
    ParameterError
        No estimator, or one that cannot say what an entry should be.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import NMF, FactorAnalysis
    from sklearn.mixture import GaussianMixture

    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        raise ParameterError.of("estimator", "an unfitted scikit-learn estimator", estimator)
    if reconstruct is not None:
        if not callable(reconstruct):
            raise ParameterError.of(
                "reconstruct_with", "None or a function of (fitted, filled)", reconstruct
            )
        return _Called(estimator, reconstruct)
    known = ((NMF, _NonNegative), (FactorAnalysis, _Factors), (GaussianMixture, _Mixture))
    for kind, filler in (*known, (KMeans, _Centres)):
        if isinstance(estimator, kind):
            return filler(estimator)
    if hasattr(estimator, "transform") and hasattr(estimator, "inverse_transform"):
        return Filler(estimator)
    raise ParameterError(
        f"it is not known how {type(estimator).__name__} fills an entry, as it lacks transform or "
        "inverse_transform: give reconstruct_with, a function of (fitted, filled)"
    )


def check_signs(estimator: Any, smallest: float) -> None:
    """Refuse negative entries for a model of non-negative tables.

    Raises
    ------
    DataError
    """
    if smallest < 0 and get_tags(estimator).input_tags.positive_only:
        raise DataError(
            f"Negative values in data passed to {type(estimator).__name__}, which needs a table "
            "without: shift the columns, or take another model"
        )


# --- Models of complete tables for tables with missing entries.


def _has(method: str) -> Callable[[EMLift], bool]:
    def found(lift: EMLift) -> bool:
        return hasattr(getattr(lift, "estimator_", lift.estimator), method)

    return found


class EMLift(  # type: ignore[call-arg]
    RowCompletion, TransformerMixin, BaseEstimator, auto_wrap_output_keys=None
):
    """Fit a model of complete tables to a table with missing entries.

    Missing entries start at the means of their columns; then the model is fitted to the filled
    table and says what they should be, again and again until they stay.

    Parameters
    ----------
    estimator : estimator
        Anything with ``transform`` and ``inverse_transform`` (`PCA`, `TruncatedSVD`, pipelines of
        such), and `NMF` (non-negative entries only), `FactorAnalysis`, `GaussianMixture` and
        `KMeans`. The two with normal densities fill by means given the observed entries of a row.
    reconstruct_with : callable, optional
        For other estimators: ``reconstruct_with(fitted, filled)`` gives the (n, p) matrix that the
        fitted model makes of the rows of a filled table.
    max_iter : int
        Fits at most.
    accelerate : bool
        Look back to the last few fills for the next one (Anderson mixing), which takes a fraction
        of the fits; without it every fill is what the model says.
    tol : float
        Fills have settled when their root mean square change is no more than this share of the
        standard deviation of the observed entries about the means of their columns.

    Attributes
    ----------
    estimator_ : estimator
        Fitted to the filled table.
    n_iter_ : int
        Fits; 1 for a complete table.
    converged_ : bool
    change_ : float
        The last change of the fills, in the units of `tol`.
    column_means_ : (p,) array
    n_features_in_ : int
    feature_names_in_ : (p,) array of str
        Only if X has names.

    Notes
    -----
    Source: Ya Le's Stanford thesis, chapter 3, where any method for complete tables is lifted in
    this way. Fills carry no noise: a model of variances finds them too small, in proportion to the
    share of missing entries. A model with more factors than a row has entries may have no best fill
    for that row: fills then grow until `max_iter`. An estimator that draws and has no
    `random_state` gets one, since its fills would never settle.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from consilience import EMLift
    >>> x = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, -1.0, 2.0])
    >>> x[3, 1] = np.nan
    >>> EMLift(PCA(n_components=1), tol=1e-9).fit(x).complete()[3].round(3)
    array([ 4., -4.,  8.])
    """

    def __init__(
        self,
        estimator: Any,
        *,
        reconstruct_with: Reconstruct | None = None,
        accelerate: bool = True,
        max_iter: int = 200,
        tol: float = 1e-4,
    ) -> None:
        self.estimator = estimator
        self.reconstruct_with = reconstruct_with
        self.accelerate = accelerate
        self.max_iter = max_iter
        self.tol = tol

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fill, fit and fill again.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
            NaN is missing; of a sparse matrix the stored entries are observed, stored zeros too.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            A setting is out of its range, or it is not known how the estimator fills.
        DataError
            Nothing is observed, a place of a sparse matrix is stored twice, negative entries for a
            model of non-negative ones, or a model's matrix that is not finite or of another shape.

        Warns
        -----
        ConvergenceWarning
            The fills had not settled after `max_iter` fits, or the last fit itself says so (not of
            `NMF` after its first, since its steps go on from fill to fill).
        """
        entry_input.check_settings(self)
        if not is_whole(self.max_iter) or self.max_iter < 1:
            raise ParameterError.of("max_iter", "a whole number from 1 on", self.max_iter)
        if not 0 <= self.tol < np.inf:
            raise ParameterError.of("tol", "a number from 0 on", self.tol)
        filler = filler_of(self.estimator, self.reconstruct_with)
        entries = entry_input.observed_entries(self, X, reset=True)
        check_signs(self.estimator, float(entries.values.min()))
        self.column_means_ = column_means(entries)
        away = entries.values - self.column_means_[entries.columns]
        self._scale = float(np.sqrt(np.mean(away**2))) or 1.0
        self._filler, self._entries = filler, entries
        seen = entries.mask()
        filled = self._begin(entries)
        following = self._following(seen)
        self.n_iter_, self.converged_ = 0, False
        while self.n_iter_ < self.max_iter and not self.converged_:
            with warnings.catch_warnings(record=True) as last:
                warnings.simplefilter("always")
                filler.fit(filled)
            self.n_iter_ += 1
            self._matrix = self._checked(filler.own_matrix(filled, seen), filled.shape)
            filled, self.change_ = following(filled, self._matrix)
            self.converged_ = self.change_ <= self.tol
        self.estimator_ = filler.finish()
        for warning in [] if filler.partial else last:
            warnings.warn(str(warning.message), warning.category, stacklevel=2)
        if not self.converged_:
            sentence = (
                f"the fills still change by {self.change_:.1e} of a standard deviation after "
                f"max_iter = {self.max_iter} fits: raise it, or tol"
            )
            warnings.warn(sentence, ConvergenceWarning, stacklevel=2)
        return self

    def _begin(self, entries: Entries) -> FloatArray:
        """Rows with the means of the columns where nothing is observed."""
        filled = np.tile(self.column_means_, (entries.shape[0], 1))
        filled[entries.rows, entries.columns] = entries.values
        return filled

    def _checked(self, matrix: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        """A model's matrix, if it is one."""
        if matrix.shape != shape or not np.isfinite(matrix).all():
            raise DataError(
                f"{type(self.estimator).__name__} must give a finite matrix of the shape of the "
                f"filled table, {shape}, but the shape is {matrix.shape}"
                + ("" if matrix.shape != shape else " and not all entries are finite")
            )
        return matrix

    def _following(
        self, seen: BoolArray
    ) -> Callable[[FloatArray, FloatArray], tuple[FloatArray, float]]:
        """How the next filled table and the change of the fills follow from the model's matrix."""
        gaps, mixing = ~seen, AndersonMixing()
        floor = 0.0 if _non_negative(self.estimator) else -np.inf

        def following(filled: FloatArray, matrix: FloatArray) -> tuple[FloatArray, float]:
            before, image = filled[gaps], matrix[gaps]
            if not len(image):
                return filled, 0.0
            change = float(np.sqrt(np.mean((image - before) ** 2)) / self._scale)
            after = filled.copy()
            if self.accelerate:
                image = np.maximum(mixing.next(before, image), floor)
            after[gaps] = image
            return after, change

        return following

    # ------------------------------------------------------------------ rows

    def _reconstructed(self, X: Any) -> FloatArray:
        return self._matrix.copy() if X is None else self._rows(X)[1]

    def _cells(self, rows: IntArray, columns: IntArray) -> FloatArray:
        return np.asarray(self._matrix[rows, columns])

    @available_if(_has("transform"))
    def transform(self, X: Any) -> Any:
        """The estimator's ``transform`` of rows that are filled by the model.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        check_is_fitted(self)
        return self.estimator_.transform(self._rows(X)[0])

    @available_if(_has("transform"))
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit, and transform the same rows.

        Parameters
        ----------
        X : (n, p) array, data frame, scipy sparse matrix or Entries
        y : None
            Ignored.
        """
        return self.fit(X, y).transform(X)

    @available_if(_has("inverse_transform"))
    def inverse_transform(self, X: Any) -> FloatArray:
        """The estimator's ``inverse_transform``, (m, p).

        Parameters
        ----------
        X : array
            What `transform` gives.
        """
        check_is_fitted(self)
        return np.asarray(self.estimator_.inverse_transform(X))

    @available_if(_has("predict"))
    def predict(self, X: Any) -> Any:
        """The estimator's classes of rows that are filled by the model.

        Of a mixture the most probable class given the observed entries.

        Parameters
        ----------
        X : (m, p) array, data frame, scipy sparse matrix or Entries
        """
        check_is_fitted(self)
        filled, _, seen = self._rows(X)
        return self._filler.labels(filled, seen)

    @available_if(_has("get_feature_names_out"))
    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the columns of `transform`.

        Parameters
        ----------
        input_features : None
            Ignored.
        """
        check_is_fitted(self)
        return np.asarray(self.estimator_.get_feature_names_out())

    def _rows(self, X: Any) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Rows filled by the model as it is, the model's matrix, and what is observed."""
        entries = entry_input.observed_entries(self, X, reset=False)
        if entries.n_observed:
            check_signs(self.estimator, float(entries.values.min()))
        seen, filled = entries.mask(), self._begin(entries)
        following = self._following(seen)
        for _ in range(self.max_iter):
            matrix = self._checked(self._filler.matrix(filled, seen), filled.shape)
            filled, change = following(filled, matrix)
            if change <= self.tol or self._filler.by_observed:
                break
        return np.where(seen, filled, matrix), matrix, seen

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if not hasattr(self.estimator, "transform"):
            tags.transformer_tags = None
        tags.input_tags.positive_only = _non_negative(self.estimator)
        return tags


def _non_negative(estimator: Any) -> bool:
    known = hasattr(estimator, "__sklearn_tags__")
    return known and bool(get_tags(estimator).input_tags.positive_only)
