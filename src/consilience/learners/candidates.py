"""Candidate local models: scikit-learn estimators by name, with settings for small samples.

A candidate is written as text, so that a study file and the wire can carry it:

* ``"random-forest"``: one of ``NAMES``;
* ``"random-forest(n_estimators=50, max_depth=3)"``: the same with some settings changed (literals
  only, nothing is evaluated);
* a fitted-free scikit-learn estimator object, which :func:`as_text` turns into text.

Random draws of an estimator, its smallest leaf and its number of neighbours are set at the site.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import ParameterError

# --- Losses by record: squared error for numbers, two proper losses for classes.
#
# A prediction is an (n, q) array: one column in regression, one probability for each declared level
# in classification, where the response is the position of its level.

LOSSES = ("squared", "brier", "log")
_FLOOR = 0.005
"""Added to every probability under the log loss: a class that a small site never saw is unlikely,
not impossible."""


def record_losses(loss: str, y: FloatArray, prediction: FloatArray) -> FloatArray:
    """Loss of each record.

    Parameters
    ----------
    loss : {"squared", "brier", "log"}
    y : (n,) array
        Response, or positions of levels.
    prediction : (n, q) array

    Returns
    -------
    (n,) array

    Raises
    ------
    ParameterError
        Unknown loss.
    """
    if loss == "squared":
        with np.errstate(over="ignore", invalid="ignore"):  # wild models have infinite losses
            return np.asarray((y - prediction[:, 0]) ** 2)
    codes = np.asarray(y, dtype=np.int64)
    rows = np.arange(len(codes))
    if loss == "brier":
        # sum (p_k - 1[k = y])^2, without the indicator matrix.
        return np.asarray((prediction**2).sum(axis=1) - 2 * prediction[rows, codes] + 1)
    if loss == "log":
        q = prediction.shape[1]
        chance = (prediction[rows, codes] + _FLOOR) / (prediction.sum(axis=1) + q * _FLOOR)
        return np.asarray(-np.log(chance))
    raise ParameterError.of("loss", f"one of {', '.join(LOSSES)}", loss)


def constant_prediction(y: FloatArray, n_outputs: int) -> FloatArray:
    """Best constant prediction of all rows: the mean, or the shares of the levels, (n, q)."""
    if n_outputs == 1:
        return np.full((len(y), 1), y.mean())
    shares = np.bincount(np.asarray(y, dtype=np.int64), minlength=n_outputs) / len(y)
    return np.tile(shares, (len(y), 1))


Task = Literal["regression", "classification"]
Settings = dict[str, Any]

OBJECT = "object:"
_LARGEST = {"n_estimators": 1000, "max_iter": 10_000, "n_alphas": 1000, "alphas": 1000, "cv": 20}
"""A site fits each candidate dozens of times, and has other work."""
_SHOWN = 150
_LINEAR = ("Linear", "Lasso", "Ridge", "ElasticNet", "Logistic", "Huber")
_LINEAR_FOLDS, _OTHER_FOLDS = 10, 5
_PATH: Settings = {"alphas": 30, "eps": 1e-2, "tol": 1e-3, "max_iter": 2000}
"""A coarse path: each site fits it dozens of times, and its finest penalties are never chosen."""


def as_text(candidate: Any) -> str:
    """Text form of a candidate.

    Parameters
    ----------
    candidate : str, mapping or estimator
        A name, a name with settings, ``{"name": ..., **settings}``, or an unfitted scikit-learn
        estimator.

    Raises
    ------
    ParameterError
        Not a candidate, or an estimator of a type that does not travel.
    """
    if isinstance(candidate, str):
        if candidate.startswith(OBJECT):
            _decoded(candidate)
        else:
            _parse(candidate)
        return candidate
    if isinstance(candidate, Mapping):
        settings = dict(candidate)
        name = settings.pop("name", None)
        inner = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        text = f"{name}({inner})" if inner else str(name)
        _parse(text)
        return text
    methods = hasattr(candidate, "fit") and hasattr(candidate, "get_params")
    if not methods or isinstance(candidate, type):
        raise ParameterError.of("candidates", "names or scikit-learn estimators", candidate)
    from consilience.exceptions import WireError
    from consilience.wire.estimators import encode_spec

    try:
        encoded = encode_spec(candidate)
    except WireError as error:
        raise ParameterError(
            f"candidate {type(candidate).__name__} does not travel: {error}"
        ) from None
    # Two pipelines differ in what is in them: the name has the settings that were changed.
    shown = " ".join(repr(candidate).replace(":", "=").split())
    return f"{OBJECT}{shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '...'}:{encoded}"


def label(text: str) -> str:
    """How a candidate is called in results: its text, without the bytes of an object."""
    if text.startswith(OBJECT):
        return text[len(OBJECT) :].split(":", 1)[0]
    return text


def build(text: str, task: Task, *, min_records: int, seed: int) -> Any:
    """Make the estimator of a candidate.

    Parameters
    ----------
    text : str
        Text form (see :func:`as_text`).
    task : {"regression", "classification"}
    min_records : int
        Rows that every leaf, and every neighbourhood, must hold at this site.
    seed : int
        For the draws of the estimator.

    Returns
    -------
    estimator
        Unfitted.

    Raises
    ------
    ParameterError
        Unknown name or setting, or a classifier where the response is numeric (or the reverse).
    """
    from sklearn.base import is_classifier, is_regressor

    if text.startswith(OBJECT):
        estimator = _decoded(text)
    else:
        name, settings = _parse(text)
        estimator = NAMES[name](task)
        try:
            _inner(estimator).set_params(**settings)
        except (ValueError, TypeError):
            raise ParameterError(
                f"candidate {text!r} has a setting that {type(_inner(estimator)).__name__} does "
                "not know: see its documentation"
            ) from None
    fits = is_classifier(estimator) if task == "classification" else is_regressor(estimator)
    if not fits:
        raise ParameterError(
            f"candidate {label(text)!r} is not for {task}: the response has "
            f"{'declared levels' if task == 'classification' else 'no declared levels'}"
        )
    if task == "classification" and not hasattr(estimator, "predict_proba"):
        raise ParameterError(
            f"candidate {label(text)!r} gives no probabilities: wrap it in CalibratedClassifierCV "
            "or take another"
        )
    # Draws, leaves and neighbourhoods of an estimator and of all its parts.
    changes: Settings = {}
    for key, value in estimator.get_params(deep=True).items():
        last = key.rsplit("__", 1)[-1]
        most = _LARGEST.get(last)
        if most is not None and isinstance(value, int | float) and value > most:
            raise ParameterError.of(f"{last} of a candidate", f"at most {most}", value)
        if last in ("random_state", "n_jobs"):
            # Jobs of a candidate are the site's affair, and its draws the run's.
            changes[key] = seed if last == "random_state" else None
        elif last in ("min_samples_leaf", "n_neighbors") and isinstance(value, int):
            # A leaf or neighbourhood of fewer rows would show single records in the model.
            changes[key] = max(value, min_records)
    return estimator.set_params(**changes)


def folds(text: str) -> int:
    """Folds of cross-fitting: 10 for linear methods, 5 for the others."""
    if text.startswith(OBJECT):
        return _LINEAR_FOLDS if any(word in label(text) for word in _LINEAR) else _OTHER_FOLDS
    return _LINEAR_FOLDS if _parse(text)[0] in ("linear", "ridge", "lasso", "elastic-net") else 5


def _decoded(text: str) -> Any:
    """Estimator of the text form of an object."""
    from consilience.exceptions import WireError
    from consilience.wire.estimators import decode_spec

    try:
        return decode_spec(text[len(OBJECT) :].partition(":")[2])
    except WireError as error:
        raise ParameterError(
            f"candidate {label(text)[:_SHOWN]!r} cannot be read: {error}"
        ) from None


def _parse(text: str) -> tuple[str, Settings]:
    """Split ``name(key=literal, ...)``; only literals are read."""
    allowed = f"one of {', '.join(sorted(NAMES))}, or such a name with settings in brackets"
    shown = text if len(text) <= 2 * _SHOWN else text[: 2 * _SHOWN] + "..."
    name, bracket, rest = text.strip().partition("(")
    if name.strip() not in NAMES:
        raise ParameterError.of("candidates", allowed, shown)
    if not bracket:
        return name.strip(), {}
    try:
        return name.strip(), literals(rest)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ParameterError.of("candidates", allowed, shown) from None


def literals(rest: str) -> Settings:
    """Settings of ``name(setting=literal, ...)`` after the bracket; nothing is evaluated.

    Raises
    ------
    SyntaxError, ValueError
        Something else stands there.
    """
    # Parsed, not evaluated: the text comes from another party.
    call = ast.parse(f"f({rest}", mode="eval").body
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise ValueError
    if any(keyword.arg is None for keyword in call.keywords) or not rest.rstrip().endswith(")"):
        raise ValueError
    settings = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    if len(settings) < len(call.keywords):
        raise ValueError
    return settings


def _inner(estimator: Any) -> Any:
    """The estimator that a name stands for, inside scaling of columns and response."""
    if hasattr(estimator, "regressor") and hasattr(estimator, "transformer"):
        return _inner(estimator.regressor)
    if hasattr(estimator, "steps"):
        return _inner(estimator.steps[-1][1])
    return estimator


# --------------------------------------------------------------------------- by name


def _scaled(estimator: Any) -> Any:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), estimator)


def _unit_free(regressor: Any) -> Any:
    """Columns and response on a common scale, so that penalties mean the same in all units."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.preprocessing import StandardScaler

    return TransformedTargetRegressor(_scaled(regressor), transformer=StandardScaler())


def sklearn_estimator(path: str, **settings: Any) -> Any:
    """An estimator of scikit-learn by module and name, which is imported only now."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"sklearn.{module}"), name)(**settings)


def _either(
    stem: str,
    scale: Callable[[Any], Any] | None = None,
    scale_regressor: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Callable[[Task], Any]:
    """A regressor and a classifier of one name and with the same settings."""

    def make(task: Task) -> Any:
        kind = "Regressor" if task == "regression" else "Classifier"
        scaling = scale_regressor or scale if task == "regression" else scale
        made = sklearn_estimator(stem + kind, **settings)
        return made if scaling is None else scaling(made)

    return make


def _on_trees(stem: str) -> Callable[[Task], Any]:
    def make(task: Task) -> Any:
        return _either(stem, estimator=_TREE(task), n_estimators=30)(task)

    return make


def _linear(task: Task) -> Any:
    if task == "regression":
        return sklearn_estimator("linear_model.LinearRegression")
    return _scaled(sklearn_estimator("linear_model.LogisticRegression", C=10.0, max_iter=1000))


def _logistic_cv(**settings: Any) -> Any:
    settings = {"Cs": 7, "cv": 5, "use_legacy_attributes": False, **settings}
    return _scaled(sklearn_estimator("linear_model.LogisticRegressionCV", **settings))


def _ridge(task: Task) -> Any:
    if task == "classification":
        return _logistic_cv(max_iter=1000)
    return _scaled(
        sklearn_estimator("linear_model.RidgeCV", alphas=tuple(10.0**k for k in range(-3, 4)))
    )


def _lasso(task: Task) -> Any:
    if task == "classification":
        return _logistic_cv(l1_ratios=(1.0,), solver="saga", max_iter=2000)
    return _scaled(sklearn_estimator("linear_model.LassoCV", cv=5, **_PATH))


def _elastic_net(task: Task) -> Any:
    if task == "classification":
        return _logistic_cv(l1_ratios=(0.5,), solver="saga", max_iter=2000)
    # Its squared penalty means another thing in other units of the response.
    net = sklearn_estimator("linear_model.ElasticNetCV", l1_ratio=[0.5], cv=5, **_PATH)
    return _unit_free(net)


def _svm(task: Task) -> Any:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.svm import SVC, SVR

    if task == "regression":
        return _unit_free(SVR(C=1.0))
    return CalibratedClassifierCV(_scaled(SVC(C=1.0)), cv=3, ensemble=False)


def _gaussian_process(task: Task) -> Any:
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel

    if task == "classification":
        return _scaled(GaussianProcessClassifier(RBF(3.0)))
    return _unit_free(GaussianProcessRegressor(RBF(3.0) + WhiteKernel(0.5)))


def _kernel_ridge(task: Task) -> Any:
    if task == "classification":
        raise ParameterError("candidate 'kernel-ridge' is for numeric responses: take another")
    return _unit_free(sklearn_estimator("kernel_ridge.KernelRidge", kernel="rbf", alpha=1.0))


_TREE = _either("tree.DecisionTree", max_depth=4, min_samples_leaf=5)
_MLP: Settings = {"hidden_layer_sizes": (8,), "alpha": 0.1, "solver": "lbfgs", "max_iter": 300}

NAMES: dict[str, Callable[[Task], Any]] = {
    "linear": _linear,
    "ridge": _ridge,
    "lasso": _lasso,
    "elastic-net": _elastic_net,
    "decision-tree": _TREE,
    "random-forest": _either("ensemble.RandomForest", n_estimators=50, min_samples_leaf=3),
    "extra-trees": _either("ensemble.ExtraTrees", n_estimators=50, min_samples_leaf=3),
    "gradient-boosting": _either(
        "ensemble.GradientBoosting", n_estimators=100, max_depth=2, min_samples_leaf=3
    ),
    "hist-gradient-boosting": _either(
        "ensemble.HistGradientBoosting", max_iter=50, max_depth=3, early_stopping=False
    ),
    "bagging": _on_trees("ensemble.Bagging"),
    "ada-boost": _on_trees("ensemble.AdaBoost"),
    "mlp": _either("neural_network.MLP", _scaled, _unit_free, **_MLP),
    "knn": _either("neighbors.KNeighbors", _scaled, n_neighbors=10),
    "svr": _svm,
    "svm": _svm,
    "gaussian-process": _gaussian_process,
    "kernel-ridge": _kernel_ridge,
}
"""Candidates by name. The last five carry training rows (or one weight for each)."""
