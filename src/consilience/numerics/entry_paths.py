"""Paths of fits that a search over held-out entries can judge: k-means with gaps, any estimator.

Those of one low rank after another are completion's alone
(:mod:`consilience.completion.kernels.low_rank_paths`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import ParameterError
from consilience.numerics.centring import centre_of
from consilience.numerics.entries import Entries
from consilience.numerics.held_out_entries import EntryPath
from consilience.numerics.random import stream

_SPARSE = 0.1  # below this share of observed entries an estimator may be handed a sparse matrix


class _Predicting:
    """Predictions of a path, from what goes on along it."""

    parameters: Sequence[Any]

    def predictions(
        self, train: Entries, rows: IntArray, columns: IntArray
    ) -> Iterator[FloatArray]:
        """Predict entries, once for each parameter."""
        for predicted, _ in self.go_on(train, self.parameters, None, rows, columns):
            yield predicted

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further parameters, each with where the next ones may start."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Fits(_Predicting):
    """A path whose fits can be asked for single entries; the centre is that of the training part.

    Parameters
    ----------
    parameters : sequence
        The simplest first.
    center : {"none", "columns", "rows-and-columns"}
        What is taken off before a fit, and added to its predictions.
    natural : (bool, bool)
        Whether the problem ends at the first, and at the last parameter.
    tol, max_iter
        As of the estimator of the same model; None for what the kernel takes.
    """

    parameters: Sequence[Any]
    center: str = "none"
    natural: tuple[bool, bool] = (False, False)
    tol: float | None = None
    max_iter: int | None = None
    parameter: ClassVar[str] = "rank"
    warm: ClassVar[bool] = False
    """Whether further fits start from the last one, or from the entries."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits with a method ``at(rows, columns)``, to centred entries."""
        raise NotImplementedError

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further parameters, each with the fit that they come from."""
        # What is taken off is that of the training part: held-out entries have no say in it.
        centre = centre_of(train, self.center)
        base, rest = centre.at(rows, columns), centre.removed(train)
        for value, fit in zip(values, self.fits(rest, values, start), strict=False):
            if not fit.converged:
                from sklearn.exceptions import ConvergenceWarning

                # The search makes one sentence of all of them.
                warnings.warn(f"{self.parameter} = {value:.6g}", ConvergenceWarning, stacklevel=2)
            predicted = self.judged(rest, fit).at(rows, columns) + base
            yield predicted, fit if self.warm else None

    def judged(self, train: Entries, fit: Any) -> Any:
        """What predicts, made of a fit."""
        return fit

    def given(self) -> dict[str, Any]:
        """Settings of the solver that were given."""
        found = {"tol": self.tol, "max_iter": self.max_iter}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class KMeansPath(Fits):
    """Numbers of classes of k-means on observed coordinates.

    Parameters
    ----------
    seed : int
        Of the starts.
    n_init
        As of :class:`consilience.ObservedKMeans`.
    """

    seed: int
    n_init: int = 10
    parameter: ClassVar[str] = "n_clusters"

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits of increasing numbers of classes, each also started from the one before."""
        from consilience.numerics.observed_kmeans import observed_kmeans_path

        rng = stream(self.seed, "starts")
        return observed_kmeans_path(train, parameters, rng=rng, n_init=self.n_init, **self.given())


@dataclass(frozen=True, kw_only=True)
class KPODPath(KMeansPath):
    """Numbers of classes of k-POD."""

    def fits(self, train: Entries, parameters: Sequence[Any], start: Any) -> Iterator[Any]:
        """Fits, each from starts of its own."""
        from consilience.numerics.observed_kmeans import kpod

        for k in parameters:
            rng = stream(self.seed, "starts", int(k))
            yield kpod(train, k, rng=rng, n_init=self.n_init, **self.given())


@dataclass(frozen=True, kw_only=True)
class EstimatorPath(_Predicting):
    """Any estimator, fitted anew for each value of one of its parameters.

    Parameters
    ----------
    estimator : object
        With ``fit(X)``, where NaN is missing, and ``reconstruct()``, which gives the fitted matrix;
        ``predict_entries(rows, columns)`` is used instead where there is one. It is copied.
    name : str
        Parameter that is set, as by ``set_params``.
    parameters : sequence
        Its values, the simplest first.
    parameter : str
        What the curve calls it.
    natural : (bool, bool)
    """

    estimator: Any
    name: str
    parameters: Sequence[Any]
    parameter: str = "parameter"
    natural: tuple[bool, bool] = (False, False)

    def go_on(
        self, train: Entries, values: Sequence[Any], start: Any, rows: IntArray, columns: IntArray
    ) -> Iterator[tuple[FloatArray, Any]]:
        """Predictions for further values."""
        for value in values:
            model = copied(self.estimator).set_params(**{self.name: value})
            yield predicted_entries(model, train, rows, columns), None


@dataclass(frozen=True, kw_only=True)
class EstimatorsPath:
    """Several estimators, the simplest first.

    Parameters
    ----------
    estimators : sequence of objects
        As for :class:`EstimatorPath`.
    parameters : sequence
        What each is called; by default its place.
    parameter : str
    natural : (bool, bool)
    """

    estimators: Sequence[Any]
    parameters: Sequence[Any]
    parameter: str = "estimator"
    natural: tuple[bool, bool] = (True, True)  # a list has no more than it has

    def predictions(
        self, train: Entries, rows: IntArray, columns: IntArray
    ) -> Iterator[FloatArray]:
        """Predict entries, once for each estimator."""
        for estimator in self.estimators:
            yield predicted_entries(copied(estimator), train, rows, columns)


def path_of(path: Any) -> EntryPath:
    """A path of what a caller may give.

    Parameters
    ----------
    path : EntryPath, mapping of values to estimators, or sequence of estimators
        The simplest first.

    Raises
    ------
    ParameterError
        Something else, or nothing.
    """
    if isinstance(path, EntryPath):
        return path
    if isinstance(path, Mapping):
        names, estimators = list(path), list(path.values())
    elif isinstance(path, Sequence) and not isinstance(path, str):
        names, estimators = list(range(len(path))), list(path)
    else:
        names, estimators = [], []
    fine = all(hasattr(one, "fit") and hasattr(one, "reconstruct") for one in estimators)
    if not estimators or not fine:
        raise ParameterError(
            "path must be a path of fits, or estimators with fit and reconstruct in a list or "
            f"mapping, but {type(path).__name__} was given"
        )
    return EstimatorsPath(estimators=estimators, parameters=names)


def copied(estimator: Any) -> Any:
    """An unfitted copy of an estimator.

    Parameters
    ----------
    estimator : object
    """
    import copy

    from sklearn.base import clone

    return clone(estimator) if hasattr(estimator, "get_params") else copy.deepcopy(estimator)


def predicted_entries(model: Any, train: Entries, rows: IntArray, columns: IntArray) -> FloatArray:
    """Fit an estimator and read single entries of the matrix that it gives, (m,).

    Parameters
    ----------
    model : object
        Changed: it is fitted.
    train : Entries
    rows, columns : (m,) array of int
    """
    single = hasattr(model, "predict_entries")
    fitted = model.fit(train.csr() if single and train.density < _SPARSE else train.dense())
    if single:
        return np.asarray(fitted.predict_entries(rows, columns), dtype=np.float64)
    full = np.asarray(fitted.reconstruct(), dtype=np.float64)
    if full.shape != train.shape:
        raise ParameterError(
            f"reconstruct() of {type(model).__name__} must give the matrix that was fitted, "
            f"{train.shape[0]} x {train.shape[1]}, but it gave {' x '.join(map(str, full.shape))}"
        )
    return full[rows, columns]
