"""How models of complete tables say what a missing entry should be.

A filler fits its model to a filled table and gives the model's own matrix. From the second fit on
it starts where it ended, for models that can: their answers would otherwise jump from fill to fill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.completion.kernels.conditional_means import (
    factors_given_observed,
    mixture_given_observed,
)
from consilience.exceptions import DataError, ParameterError

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
        factors = factors_given_observed(
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
        full = _full(model.covariances_, model.covariance_type, model.means_.shape)
        return mixture_given_observed(filled, seen, model.weights_, model.means_, full)

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
    from sklearn.utils import get_tags

    if smallest < 0 and get_tags(estimator).input_tags.positive_only:
        raise DataError(
            f"Negative values in data passed to {type(estimator).__name__}, which needs a table "
            "without: shift the columns, or take another model"
        )


def _full(covariances: FloatArray, kind: str, shape: tuple[int, int]) -> FloatArray:
    """Covariance matrices of a mixture, (k, p, p), from scikit-learn's four forms."""
    k, p = shape
    if kind == "full":
        return covariances
    if kind == "tied":
        return np.broadcast_to(covariances, (k, p, p))
    variances = covariances if kind == "diag" else np.repeat(covariances[:, None], p, axis=1)
    return np.asarray(variances[:, :, None] * np.eye(p))
