"""What a fitted estimator gives away: rows that it carries, rows behind each leaf, parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import IntArray
from consilience.wire.estimators.types import is_memorising, qualified

_MAX_OBJECTS = 200_000
_PIPELINE = "sklearn.pipeline.Pipeline"
_SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")


def unwrapped(fitted: Any) -> Any:
    """The chosen model of a search over settings; any other estimator itself."""
    while type(fitted).__name__ in _SEARCHES and hasattr(fitted, "best_estimator_"):
        fitted = fitted.best_estimator_
    return fitted


def type_name(fitted: Any) -> str:
    """Qualified type by which the gate judges an estimator.

    Parameters
    ----------
    fitted : estimator

    Returns
    -------
    str
        The first part (of a pipeline, an ensemble, a calibration, ...) that carries training rows;
        without such a part, the type of the last step.
    """
    fitted = unwrapped(fitted)
    estimators = (part for part in _parts(fitted) if hasattr(part, "fit"))
    carriers = (name for name in map(qualified, estimators) if is_memorising(name))
    carrier = next(carriers, None)
    if carrier is not None:
        return carrier
    while qualified(fitted) == _PIPELINE and fitted.steps[-1][1] not in (None, "passthrough"):
        fitted = fitted.steps[-1][1]
    return qualified(fitted)


def _parts(fitted: Any) -> Iterator[Any]:
    """An object and everything that it holds, outer things first."""
    waiting: list[Any] = [fitted]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        elif isinstance(item, np.ndarray):
            waiting.extend(item.ravel().tolist() if item.dtype.hasobject else [])
        elif type(item).__module__.split(".")[0] not in ("builtins", "numpy"):
            yield item
            waiting.extend(getattr(item, "__dict__", {}).values())


def leaves(fitted: Any, x: NDArray[Any]) -> IntArray | None:
    """Training rows in each leaf of each tree inside an estimator.

    Parameters
    ----------
    fitted : estimator
    x : (n, p) array
        Its training rows; pseudo-rows that were fitted behind them do not count.

    Returns
    -------
    (leaves,) int array or None
        Different rows of `x` that a leaf's value rests on: rows left out of a bootstrap sample do
        not count, repeated ones count once. ``None`` where there are no trees.
    """
    counts = [np.asarray(c, dtype=np.int64) for c in _leaves(unwrapped(fitted), np.asarray(x))]
    return np.concatenate(counts) if counts else None


def _leaves(fitted: Any, x: NDArray[Any] | None) -> Iterator[NDArray[Any]]:
    """As `leaves`; without rows the counts that the trees keep from their fit."""
    if hasattr(fitted, "tree_"):
        yield _of_tree(fitted, x)
    elif hasattr(fitted, "_predictors"):  # boosting on histograms: no rows are drawn twice
        for predictor in _each(fitted._predictors):
            yield predictor.nodes["count"][predictor.nodes["is_leaf"].astype(bool)]
    elif hasattr(fitted, "steps"):
        yield from _of_pipeline(fitted, x)
    else:
        rows = None if x is None else _rows_of(fitted)
        columns = getattr(fitted, "estimators_features_", None)
        for i, part in enumerate(_inner(fitted)):
            own = x if rows is None or x is None else x[_among(rows[i], len(x))]
            yield from _leaves(part, own if columns is None or own is None else own[:, columns[i]])
        if getattr(fitted, "final_estimator_", None) is not None:
            # It was fitted on cross-fitted predictions, which nobody has kept.
            yield from _leaves(fitted.final_estimator_, None)


def _among(drawn: Any, n_rows: int) -> NDArray[Any]:
    """Different rows of a sample among the first `n_rows`: behind them come pseudo-rows."""
    rows = np.unique(drawn)
    return np.asarray(rows[rows < n_rows])


def _of_pipeline(fitted: Any, x: NDArray[Any] | None) -> Iterator[NDArray[Any]]:
    for _, step in fitted.steps:
        if step is None or isinstance(step, str):
            continue
        yield from _leaves(step, x)
        if x is not None and step is not fitted.steps[-1][1]:
            x = np.asarray(step.transform(x))


def _of_tree(fitted: Any, x: NDArray[Any] | None) -> NDArray[Any]:
    tree = fitted.tree_
    rows = tree.n_node_samples
    if x is not None:
        reached = tree.apply(np.ascontiguousarray(x, dtype=np.float32))
        rows = np.minimum(rows, np.bincount(reached, minlength=tree.node_count))
    return np.asarray(rows[tree.children_left < 0])


def _rows_of(fitted: Any) -> Any:
    """Rows that each part was fitted on, where that was drawn and is known."""
    if not getattr(fitted, "bootstrap", False) and not hasattr(fitted, "estimators_features_"):
        return None
    return getattr(fitted, "estimators_samples_", None)


def _inner(fitted: Any) -> Iterator[Any]:
    """Fitted estimators directly inside another; unfitted patterns of them are left out."""
    for name in ("estimators_", "calibrated_classifiers_", "transformers_", "transformer_list"):
        yield from _each(getattr(fitted, name, ()))
    if hasattr(fitted, "estimators_"):
        return  # `estimator_` is the pattern of an ensemble
    for name in ("regressor_", "estimator_", "best_estimator_"):
        if getattr(fitted, name, None) is not None:
            yield getattr(fitted, name)
    if type(fitted).__name__ == "_CalibratedClassifier":
        yield fitted.estimator


def _each(parts: Any) -> Iterator[Any]:
    """Estimators in lists, tuples of a name and an estimator, and arrays of any shape."""
    if isinstance(parts, np.ndarray):
        parts = parts.ravel().tolist()
    for part in parts:
        if isinstance(part, list | tuple | np.ndarray):
            yield from _each(part)
        elif not isinstance(part, str | int | slice) and part is not None:
            yield part


_ROW_LOSSES = ("absolute_error", "quantile", "huber", "median", "lad", "pinball")
_ROW_TYPES = {
    "GaussianNB": "class",
    "BernoulliNB": "class",
    "MultinomialNB": "class",
    "ComplementNB": "class",
    "CategoricalNB": "class",
    "LinearDiscriminantAnalysis": "class",
    "QuadraticDiscriminantAnalysis": "class",
    "NearestCentroid": "class",
    "QuantileRegressor": "fit",
    "TheilSenRegressor": "fit",
    "HuberRegressor": "fit",
    "RANSACRegressor": "fit",
    "SimpleImputer": "column",
    "MinMaxScaler": "column",
    "MaxAbsScaler": "column",
    "RobustScaler": "column",
    "QuantileTransformer": "column",
    "SplineTransformer": "column",
    "KBinsDiscretizer": "column",
    "OneHotEncoder": "column",
    "OrdinalEncoder": "column",
    "TargetEncoder": "column",
}


def row_values(estimator: Any) -> str | None:
    """Say why a fit of an estimator would hold values of single rows, though it carries no rows.

    Parameters
    ----------
    estimator : estimator
        Unfitted: its settings are looked at, and those of its parts.

    Returns
    -------
    str or None
        One phrase; None where nothing of the kind is known.

    Notes
    -----
    Medians and quantiles are values of rows, as are the ends of a column's range; class parameters
    and categories may rest on one row. None of this shows in counts of leaves or of parameters.
    """
    settings = estimator.get_params(deep=True)
    for part in (estimator, *settings.values()):
        kind = _ROW_TYPES.get(type(part).__name__) if hasattr(part, "fit") else None
        if kind == "class":
            return f"{type(part).__name__} holds parameters of classes that may have one row only"
        if kind == "fit":
            return f"{type(part).__name__} fits a few rows exactly"
        if kind == "column":
            return f"{type(part).__name__} holds single values of a column"
    for name, value in settings.items():
        last = name.rsplit("__", 1)[-1]
        if last in ("criterion", "loss") and value in _ROW_LOSSES:
            return f"its fitted values under {last} = {value!r} are responses of single rows"
        if last == "strategy" and value in ("median", "quantile", "most_frequent"):
            return f"{last} = {value!r} keeps the value of one row"
        if last == "weights" and not (value is None or value == "uniform" or _numbers(value)):
            return "weights by distance make a prediction the response of the nearest row"
    return None


def _numbers(value: Any) -> bool:
    """Whether weights are given as numbers, as voting has them."""
    return isinstance(value, list | tuple) and all(isinstance(w, int | float) for w in value)
