"""Parameters of reference averaging: names of learners, reference rows, ranges."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.averaging.estimators.penalty_scaling import convention_of, innermost, settled
from consilience.averaging.protocol.messages import MAX_ROUNDS, MAX_TRACKS
from consilience.exceptions import ParameterError
from consilience.learners import candidates
from consilience.numerics.reference_average import SCHEDULES, rho_of

if TYPE_CHECKING:
    from consilience.averaging.protocol import ReferenceAveraging

Rows = tuple[tuple[float, ...], ...]

REFERENCES = ("moments", "normal")
CONVENTIONS = ("auto", "sum", "normalised", "rows", "trees")
LOSSES = ("auto", "squared", "brier", "log")
_SHOWN = 120


def _linear_model(name: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import sklearn.linear_model

        return getattr(sklearn.linear_model, name)(**settings)

    return make


def _ensemble(name: str, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        import sklearn.ensemble

        return getattr(sklearn.ensemble, name)(**settings)

    return make


_FINE = {"tol": 1e-6, "max_iter": 10_000}
"""A solver that stops early does not keep its own predictions, and each round adds to its error."""

LEARNERS: Mapping[str, Callable[[], Any]] = {
    "linear": _linear_model("LinearRegression"),
    "ridge": _linear_model("Ridge"),
    "lasso": _linear_model("Lasso", **_FINE),
    "elastic-net": _linear_model("ElasticNet", **_FINE),
    "poisson": _linear_model("PoissonRegressor", **_FINE),
    "gamma": _linear_model("GammaRegressor", **_FINE),
    "tweedie": _linear_model("TweedieRegressor", **_FINE),
    "logistic": _linear_model("LogisticRegression", **_FINE),
    "random-forest": _ensemble("RandomForestRegressor", min_samples_leaf=10),
    "random-forest-classifier": _ensemble("RandomForestClassifier", min_samples_leaf=10),
    "gradient-boosting": _ensemble("GradientBoostingRegressor", min_samples_leaf=10),
    "gradient-boosting-classifier": _ensemble("GradientBoostingClassifier", min_samples_leaf=10),
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


def learner_of(text: str, task: Any, convention: str, penalties: tuple[float, ...]) -> Any:
    """Make the learner, and check that its settings can go through the rounds.

    Raises
    ------
    ParameterError
        It is for another kind of response, chooses by the rows that it sees, or has no penalty.
    """
    try:
        made = candidates.build(text, task, min_records=1, seed=0)
    except ParameterError as error:
        raise ParameterError(str(error).replace("candidate", "estimator", 1)) from None
    learner = innermost(made)
    found = convention_of(made, convention)
    settled(learner, 0)
    if task == "classification" and not hasattr(learner, "predict_proba"):
        raise ParameterError(
            f"{type(learner).__name__} returns labels, not probabilities: take a classifier with "
            "predict_proba, such as LogisticRegression"
        )
    if penalties and not found.penalty:
        raise ParameterError(
            f"{type(learner).__name__} has no penalty to choose: leave penalties out"
        )
    return made


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
    made = LEARNERS[name.strip()]()
    if bracket:
        try:
            made.set_params(**_literals(rest))
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise ParameterError(
                f"the settings of estimator {text[:_SHOWN]!r} are not read: write them as "
                f"{name.strip()}(setting=value, ...), with settings of scikit-learn's "
                f"{type(made).__name__}"
            ) from None
    return candidates.as_text(made)


def _literals(rest: str) -> dict[str, Any]:
    """Settings of ``name(setting=literal, ...)`` after the bracket."""
    call = ast.parse(f"f({rest}", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise ValueError
    if any(keyword.arg is None for keyword in call.keywords) or not rest.rstrip().endswith(")"):
        raise ValueError
    return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}


def label(text: str) -> str:
    """How a learner is called in results."""
    return candidates.label(text)


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


def check_parameters(method: ReferenceAveraging) -> None:
    """Check each parameter, and those that must go together; raise `ParameterError`."""
    for name, allowed in (
        ("schedule", SCHEDULES),
        ("convention", CONVENTIONS),
        ("loss", LOSSES),
        ("guard", (True, False)),
    ):
        value = getattr(method, name)
        if type(value) is not type(allowed[0]) or value not in allowed:
            raise ParameterError.of(name, f"one of {allowed}", value)
    _check_numbers(method)
    grid = method.penalties
    if not all(_number(v) and v >= 0 for v in grid) or len(set(grid)) < len(grid):
        raise ParameterError.of("penalties", "different numbers of at least 0", grid)
    if len(grid) > MAX_TRACKS:
        raise ParameterError.of("penalties", f"at most {MAX_TRACKS} values", len(grid))
    if len(grid) > 1 and (method.holdout == 0 or not method.guard):
        raise ParameterError(
            "penalties are compared on rows that are held out: holdout must be above 0 and guard "
            "true, or give one penalty"
        )
    travelling(method.estimator)


def _check_numbers(method: ReferenceAveraging) -> None:
    m = method.n_reference
    checks = (
        ("n_reference", m is None or (_whole(m) and m >= 2), "a whole number of at least 2"),
        ("rho", _number(method.rho) and method.rho > 0, "a positive number"),
        ("exponent", _number(method.exponent), "at least 0 and below 1"),
        (
            "max_rounds",
            _whole(method.max_rounds) and 0 <= method.max_rounds <= MAX_ROUNDS,
            f"a whole number from 0 to {MAX_ROUNDS}",
        ),
        (
            "patience",
            _whole(method.patience) and method.patience >= 1,
            "a whole number of at least 1",
        ),
        ("holdout", _number(method.holdout) and 0 <= method.holdout <= 0.5, "in [0, .5]"),
    )
    for name, fine, allowed in checks:
        if not fine:
            raise ParameterError.of(name, allowed, getattr(method, name))
    rho_of(1, schedule=method.schedule, rho=method.rho, exponent=method.exponent)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
