"""Parameters of reference averaging that are more than a value: learners, reference rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from consilience.exceptions import ParameterError
from consilience.learners import candidates

Rows = tuple[tuple[float, ...], ...]

REFERENCES = ("moments", "normal")
_SHOWN = 120


_FINE = {"tol": 1e-6, "max_iter": 10_000}
"""A solver that stops early does not keep its own predictions, and each round adds to its error."""
_LEAVES = {"min_samples_leaf": 10}

LEARNERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("linear_model.LinearRegression", {}),
    "ridge": ("linear_model.Ridge", {}),
    "lasso": ("linear_model.Lasso", _FINE),
    "elastic-net": ("linear_model.ElasticNet", _FINE),
    "poisson": ("linear_model.PoissonRegressor", _FINE),
    "gamma": ("linear_model.GammaRegressor", _FINE),
    "tweedie": ("linear_model.TweedieRegressor", _FINE),
    "logistic": ("linear_model.LogisticRegression", _FINE),
    "random-forest": ("ensemble.RandomForestRegressor", _LEAVES),
    "random-forest-classifier": ("ensemble.RandomForestClassifier", _LEAVES),
    "gradient-boosting": ("ensemble.GradientBoostingRegressor", _LEAVES),
    "gradient-boosting-classifier": ("ensemble.GradientBoostingClassifier", _LEAVES),
}
"""Learners by name; scikit-learn's defaults, but for the settings named here."""


def estimator_text(estimator: Any) -> str:
    """Text form of a learner that a person gave: a name with settings stays as it was written.

    Raises
    ------
    ParameterError
        Not a known name, or an estimator that does not travel.
    """
    if isinstance(estimator, str):
        travelling(estimator)
        return estimator
    return _as_text(estimator)


def _as_text(estimator: Any) -> str:
    try:
        return candidates.as_text(estimator)
    except ParameterError as error:
        if not isinstance(estimator, str) and not hasattr(estimator, "get_params"):
            raise ParameterError.of(
                "estimator", "a name or a scikit-learn estimator", estimator
            ) from None
        # It is one of several there.
        raise ParameterError(str(error).replace("candidate", "estimator", 1)) from None


def travelling(text: str) -> str:
    """Text in which a learner goes to the sites.

    Raises
    ------
    ParameterError
        Unknown name or setting; a site reads literals only, and nothing is evaluated.
    """
    if text.startswith(candidates.OBJECT):
        return _as_text(text)
    allowed = f"one of {', '.join(LEARNERS)}, such a name with settings in brackets, or an object"
    name, bracket, rest = text.strip().partition("(")
    if name.strip() not in LEARNERS:
        raise ParameterError.of("estimator", allowed, text[:_SHOWN])
    path, settings = LEARNERS[name.strip()]
    made = candidates.sklearn_estimator(path, **settings)
    if bracket:
        try:
            made.set_params(**candidates.literals(rest))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise ParameterError(
                f"the settings of estimator {text[:_SHOWN]!r} are not read: write them as "
                f"{name.strip()}(setting=value, ...), with settings of scikit-learn's "
                f"{type(made).__name__}"
            ) from None
    return candidates.as_text(made)


def reference_rows(reference: Any) -> str | Rows:
    """Reference as it was named, or rows that were given as plain numbers.

    Raises
    ------
    ParameterError
        Neither a known word nor a table of finite numbers.
    """
    if isinstance(reference, str):
        if reference not in REFERENCES:
            raise ParameterError.of(
                "reference",
                f"one of {', '.join(REFERENCES)}, or rows (in a study file: a [reference] section)",
                reference,
            )
        return reference
    try:
        rows = np.asarray(reference, dtype=float)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or not rows.size or np.isinf(rows).any():
        raise ParameterError(
            "reference must be a table of finite numbers, one column for each encoded feature: "
            "give public rows, or one of moments, normal"
        )
    return tuple(tuple(float(v) for v in row) for row in rows)
