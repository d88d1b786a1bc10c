"""Fits of a black-box learner on own rows and on pseudo-rows, the averaged predictions of all.

Source: Ya Le's Stanford thesis, chapter 1, *A General Algorithm for Distributed Learning*; weights
and penalties as in :mod:`.conventions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.estimators.conventions import (
    Convention,
    convention_of,
    innermost,
    shares,
    steps_of,
)
from consilience.exceptions import DataError, ParameterError

FloatArray = NDArray[np.float64]
Start = Mapping[str, FloatArray]
"""Where a warm start begins: ``coef`` and ``intercept``, as the learner holds them."""

LARGEST_CHANGE = 1e-2
_PERMUTED = 20.0
_LARGEST_NOISE = 5e-2
"""A forest differs by more than this with the order of its rows; that must not excuse it."""


def separable(change: float, permuted: float) -> bool:
    """Whether a probe speaks for a learner that is a sum of losses plus a penalty.

    Parameters
    ----------
    change : float
        Relative change of the predictions under a refit with one's own predictions.
    permuted : float
        The same under a refit with permuted rows: what the learner's tolerance leaves open.
    """
    return change <= max(LARGEST_CHANGE, min(_PERMUTED * permuted, _LARGEST_NOISE))


class Learner:
    """A black-box estimator that is fitted on own rows and averaged predictions of all sites.

    Parameters
    ----------
    estimator : estimator
        Unfitted, scikit-learn interface; it aims at ``estimator.fit`` of all rows together, so a
        penalty means what it would mean there.
    task : {"regression", "classification"}
    n_levels : int
        Levels of the response in classification, where it is the position of a level.
    reference : (m, p) array, optional
        Reference rows; without them only plain fits are possible, and no preprocessing.
    convention : {"auto", "sum", "normalised", "rows", "trees"}
        How the learner weighs rows against its penalty, see :mod:`.conventions`.
    n_total : float, optional
        Sum of the weights of all sites; a fit's own sum where it is not given.
    seed : int
        For the draws of the estimator.

    Attributes
    ----------
    convention : Convention
    n_outputs : int
        Columns of predictions: 1, or `n_levels`.
    penalty_name : str
    is_linear : bool

    Raises
    ------
    ParameterError
        The estimator, or a setting of it, cannot be used: the sentence says what to do.

    Notes
    -----
    Transformers of a pipeline are fitted once, on the reference rows, which all sites have, and
    never again: a site's preprocessing does not depend on its rows.
    """

    def __init__(
        self,
        estimator: Any,
        *,
        task: Literal["regression", "classification"],
        n_levels: int = 1,
        reference: FloatArray | None = None,
        convention: str = "auto",
        n_total: float | None = None,
        seed: int = 0,
    ) -> None:
        from sklearn.base import clone

        self.convention: Convention = convention_of(estimator, convention)
        self.task = task
        self.n_levels = n_levels
        self.n_outputs = n_levels if task == "classification" else 1
        self.penalty_name = self.convention.penalty
        self.is_linear = self.convention.linear
        self.n_total = n_total
        _check_task(innermost(estimator), task)
        self._learner = _settled(clone(innermost(estimator)), seed)
        self._transformers: list[tuple[str, Any]] = []
        self._reference: FloatArray | None = None
        if reference is not None:
            self._reference = np.ascontiguousarray(reference, dtype=np.float64)
            self._freeze(estimator)
        elif any(True for _ in steps_of(estimator)):
            raise ParameterError(
                "preprocessing is fitted on the reference rows, so that it is the same everywhere: "
                "give reference rows, or leave it out"
            )

    def _freeze(self, estimator: Any) -> None:
        from sklearn.base import clone

        rows = self._reference
        for name, step in steps_of(estimator):
            fitted = clone(step).fit(rows)
            rows = np.ascontiguousarray(fitted.transform(rows), dtype=np.float64)
            self._transformers.append((name, fitted))
        self._reference = rows

    def with_penalty(self, value: float) -> Learner:
        """Return the same learner with another penalty, in the units of its parameter."""
        if not self.penalty_name:
            name = type(self._learner).__name__
            raise ParameterError(f"{name} has no penalty to choose: leave penalties= out")
        other = object.__new__(Learner)
        other.__dict__.update(self.__dict__)
        other._learner = self._cloned({self.penalty_name: float(value)})
        return other

    def _cloned(self, settings: Mapping[str, Any]) -> Any:
        from sklearn.base import clone

        return clone(self._learner).set_params(**settings)

    # ----------------------------------------------------------------------- fit

    def fit(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        *,
        weight: FloatArray | None = None,
        target: FloatArray | None = None,
        rho: float = 0.0,
        start: Start | None = None,
    ) -> Any:
        """Minimise mean own loss + penalty + `rho` times mean loss on the pseudo-rows.

        Parameters
        ----------
        x : (n, p) array
        y : (n,) array
            Response, or positions of levels.
        weight : (n,) array, optional
            Weights of the own rows; their sum stands for n.
        target : (m, q) array, optional
            Averaged predictions at the reference rows; None for a fit of the own rows alone.
        rho : float
        start : mapping, optional
            Coefficients to begin at (see :meth:`start_of`); ignored where the learner cannot.

        Returns
        -------
        estimator
            Fitted; it predicts from columns as in `x`.
        """
        rows = self._transformed(np.asarray(x))
        n_rows = len(rows)
        n = float(n_rows) if weight is None else float(np.sum(weight))
        response = np.asarray(y, dtype=np.int64 if self.task == "classification" else np.float64)
        m = 0
        if target is not None:
            m = len(self._needed_reference())
            target = self._checked_target(target)
        seen = n_rows + m * (self.n_outputs if m else 0)
        total = self.n_total or n
        part = shares(
            self.convention, n=n, n_total=total, m=m, rows=seen, total=n_rows + m, rho=rho
        )
        learner = self._cloned(self._penalty(part.penalty))
        weights = None if weight is None else part.own * np.asarray(weight, dtype=np.float64)
        if target is None:
            return self._finished(self._plain(learner, rows, response, weights))
        own = np.full(n_rows, part.own) if weights is None else weights
        rows, response, weights = self._stacked(rows, response, own, target, part.pseudo)
        _begin(learner, self.convention, start, rows.shape[1], self.n_outputs)
        return self._finished(learner.fit(rows, response, sample_weight=weights))

    def _plain(
        self, learner: Any, rows: FloatArray, y: NDArray[Any], weight: FloatArray | None
    ) -> Any:
        if self.task == "classification" and len(np.unique(y)) == 1:
            from sklearn.dummy import DummyClassifier

            return DummyClassifier(strategy="prior").fit(rows, y)
        if weight is None or not self.convention.weights:
            return learner.fit(rows, y)
        return learner.fit(rows, y, sample_weight=weight)

    def _stacked(
        self,
        rows: FloatArray,
        y: NDArray[Any],
        own: FloatArray,
        target: FloatArray,
        pseudo: float,
    ) -> tuple[FloatArray, NDArray[Any], FloatArray]:
        """Own rows above the reference rows, these once for each level."""
        reference = self._needed_reference()
        if self.task == "regression":
            weights = np.concatenate([own, np.full(len(reference), pseudo)])
            return np.concatenate([rows, reference]), np.concatenate([y, target[:, 0]]), weights
        q = self.n_outputs
        levels = np.repeat(np.arange(q), len(reference))
        weights = np.concatenate([own, pseudo * target.T.ravel()])
        return np.concatenate([rows, *[reference] * q]), np.concatenate([y, levels]), weights

    def _penalty(self, factor: float) -> dict[str, Any]:
        """Setting of the penalty for a fit."""
        name = self.penalty_name
        value = getattr(self._learner, name) if name else None
        if value is None:
            return {}
        return {name: value / factor if self.convention.inverse else value * factor}

    def _finished(self, learner: Any) -> Any:
        if not self._transformers:
            return learner
        from sklearn.pipeline import Pipeline

        return Pipeline([*self._transformers, ("learner", learner)])

    def _transformed(self, x: NDArray[Any]) -> Any:
        for _, step in self._transformers:
            x = step.transform(x)
        return x

    def _needed_reference(self) -> FloatArray:
        if self._reference is None:
            raise ParameterError("a refit needs reference rows: give reference=")
        return self._reference

    def _checked_target(self, target: FloatArray) -> FloatArray:
        found = np.asarray(target, dtype=np.float64)
        wanted = (len(self._needed_reference()), self.n_outputs)
        if found.shape != wanted or not np.isfinite(found).all():
            raise DataError(f"averaged predictions must be finite numbers of shape {wanted}")
        return found

    # ----------------------------------------------------------------------- after a fit

    def predict(self, fitted: Any, x: NDArray[Any]) -> FloatArray:
        """Predictions of a fit, (n, q): the response, or probabilities in the order of levels.

        Raises
        ------
        DataError
            They are not finite, or not of that shape.
        """
        if self.task == "regression":
            found = np.asarray(fitted.predict(x), dtype=np.float64)
            found = found[:, None] if found.ndim == 1 else found
        else:
            raw = np.asarray(fitted.predict_proba(x), dtype=np.float64)
            found = np.zeros((len(raw), self.n_outputs))
            found[:, np.asarray(fitted.classes_, dtype=np.int64)] = raw
        name = type(self._learner).__name__
        if found.shape != (len(x), self.n_outputs):
            raise DataError(f"{name} does not give one prediction for each row")
        if not np.isfinite(found).all():
            raise DataError(f"{name} predicts values that are not finite: check its settings")
        return found

    def start_of(self, fitted: Any) -> Start | None:
        """Coefficients at which a later fit can begin; None where the learner cannot."""
        inner = fitted.steps[-1][1] if hasattr(fitted, "steps") else fitted
        if not self.convention.warm or not hasattr(inner, "coef_"):
            return None
        return {"coef": np.array(inner.coef_), "intercept": np.array(inner.intercept_)}

    def probe(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        *,
        weight: FloatArray | None = None,
        rho: float = 10.0,
        rng: np.random.Generator,
    ) -> tuple[float, float]:
        """How much one's own predictions as pseudo-rows change a fit.

        Returns
        -------
        change : float
            Change of the predictions at the reference rows relative to their spread.
        permuted : float
            The same under a fit of the own rows in another order.
        """
        reference = self._needed_reference()
        order = rng.permutation(len(x))
        one = self.fit(x, y, weight=weight)
        base = self.at_reference(one)
        again = self.fit(x, y, weight=weight, target=base, rho=rho)
        shuffled = self.fit(x[order], y[order], weight=None if weight is None else weight[order])
        spread = float(np.linalg.norm(base - base.mean(axis=0)))
        size = spread if spread > 1e-12 * np.linalg.norm(base) else np.sqrt(len(reference))
        return (
            float(np.linalg.norm(self.at_reference(again) - base) / size),
            float(np.linalg.norm(self.at_reference(shuffled) - base) / size),
        )

    def at_reference(self, fitted: Any) -> FloatArray:
        """Predictions of a fit at the reference rows, (m, q), without transforming them again."""
        inner = fitted.steps[-1][1] if self._transformers else fitted
        return self.predict(inner, self._needed_reference())


def _check_task(learner: Any, task: str) -> None:
    from sklearn.base import is_classifier, is_regressor

    name = type(learner).__name__
    fits = is_classifier(learner) if task == "classification" else is_regressor(learner)
    if not fits:
        raise ParameterError(f"{name} is not for {task}: give an estimator that is")
    if task == "classification" and not hasattr(learner, "predict_proba"):
        raise ParameterError(
            f"{name} returns labels, not probabilities: take a classifier with predict_proba, such "
            "as LogisticRegression"
        )


def _settled(learner: Any, seed: int) -> Any:
    """Draws from the seed, in one process."""
    changes: dict[str, Any] = {}
    for key in learner.get_params(deep=True):
        last = key.rsplit("__", 1)[-1]
        if last == "random_state":
            changes[key] = seed
        elif last == "n_jobs":
            changes[key] = None
    return learner.set_params(**changes)


def _begin(learner: Any, convention: Convention, start: Start | None, p: int, q: int) -> None:
    """Let a fit begin at given coefficients."""
    if start is None or not convention.warm:
        return
    coef = np.array(start["coef"], dtype=np.float64)
    if coef.shape not in ((p,), (q if q > 2 else 1, p)):
        return
    learner.set_params(warm_start=True)
    learner.coef_ = coef
    learner.intercept_ = np.array(start["intercept"], dtype=np.float64)
