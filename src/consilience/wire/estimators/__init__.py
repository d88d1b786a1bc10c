"""Fitted scikit-learn estimators as plain nests that cross the wire, and what they give away.

A travelling model is one of three forms. With q columns of predictions (1 for regression) and p
predictors:

==========  ====================================================================================
``form``    fields
==========  ====================================================================================
linear      ``coef`` (q, p), ``intercept`` (q,), ``link``: whatever predicts by a linear predictor;
            scaling of columns (and of the response) is folded in
trees       arrays of :mod:`.types`: trees, forests, extra trees, gradient boosting
skops       ``data``, bytes of an archive (:mod:`.archive`), and ``columns`` p: everything else
==========  ====================================================================================

A classifier has ``classes`` beside them: the positions of its columns among the declared levels.
Linear and tree forms hold nothing that can be executed, and nothing that prediction does not need.
Encoding is for a site's own models. Of a foreign model only :func:`check` runs in a process that
matters: an archive is opened in a bounded child (``consilience.learners.foreign_models``).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import WireError
from consilience.wire.estimators.archive import (
    archive_fault,
    float_numbers,
    read_archive,
    write_archive,
)
from consilience.wire.estimators.types import (
    LARGEST,
    LINEAR,
    LOGISTIC,
    encode_trees,
    qualified,
    trees_columns,
    trees_fault,
)
from consilience.wire.estimators.types import Portable as Portable
from consilience.wire.estimators.types import is_memorising as is_memorising

_FIELDS = {
    "linear": {"coef", "intercept", "link"},
    "trees": {"columns", "splits", "feature", "threshold", "children", "value", "start", "link"},
    "skops": {"data", "columns"},
}
"""What each form holds, beside its name and the places of its classes."""
_SPEC_BYTES = 1 << 20


def encode(fitted: Any, *, n_features: int, classes: Sequence[Any] | None) -> Portable:
    """Write a fitted estimator as a plain nest.

    Parameters
    ----------
    fitted : estimator
        A regressor with one response, or a classifier with probabilities.
    n_features : int
        Columns that it was fitted on.
    classes : sequence or None
        Declared levels in their order, for a classifier; ``None`` for a regressor.

    Returns
    -------
    dict
        What ``wire.codec`` carries; :func:`check` finds no fault in it.

    Raises
    ------
    WireError
        The estimator is of a type that does not travel, or not of the kind that is asked for.
    """
    fitted = unwrapped(fitted)
    name = type(fitted).__name__
    positions = None if classes is None else _positions(fitted, list(classes))
    if classes is None and hasattr(fitted, "classes_"):
        raise WireError(f"a {name} is a classifier where a regressor is asked for")
    portable = encode_linear(fitted) or encode_trees(fitted)
    if portable is None:
        if getattr(fitted, "n_features_in_", n_features) != n_features:
            raise WireError(f"a {name} was not fitted on {n_features} columns")
        data = write_archive(fitted, fitted=True)
        portable = {"form": "skops", "data": data, "columns": n_features}
    if positions is not None:
        portable["classes"] = positions
    fault = check(portable, n_features=n_features, n_outputs=1 if classes is None else len(classes))
    if fault is not None:
        raise WireError(f"a {name} does not cross the wire: {fault}")
    return portable


def _positions(fitted: Any, levels: list[Any]) -> np.ndarray:
    """Where the classes of a classifier stand among the declared levels."""
    name = type(fitted).__name__
    if not hasattr(fitted, "classes_") or not hasattr(fitted, "predict_proba"):
        raise WireError(f"a {name} gives no probabilities of classes")
    own = np.asarray(fitted.classes_).tolist()
    if not all(level in levels for level in own):
        raise WireError(f"a {name} was fitted on classes that are not declared")
    return np.array([levels.index(level) for level in own], dtype=np.int32)


def check(portable: Any, *, n_features: int, n_outputs: int) -> str | None:
    """Find what is wrong with a foreign model without running any of it.

    Parameters
    ----------
    portable : Any
        What was received.
    n_features : int
        Columns of the study.
    n_outputs : int
        Columns of the predictions: 1, or the number of declared levels.

    Returns
    -------
    str or None
        One phrase ("it expects 5 columns and the study has 4"), ``None`` without a fault.
    """
    form = portable.get("form") if isinstance(portable, dict) else None
    fields = _FIELDS.get(form) if isinstance(form, str) else None
    if fields is None or not fields <= set(portable) - {"form"} <= fields | {"classes"}:
        return "it is of no form that is known"
    columns: int | None = None
    if form == "linear":
        fault = linear_fault(portable, n_features)
        columns = None if fault else linear_columns(portable)
    elif form == "trees":
        fault = trees_fault(portable, n_features)
        columns = None if fault else trees_columns(portable)
    else:
        data, width = portable["data"], portable["columns"]
        if not isinstance(data, bytes) or type(width) is not int:
            return "it is of no form that is known"
        if width != n_features:
            return f"it expects {width} columns and the study has {n_features}"
        fault = archive_fault(data)
    return fault or _classes_fault(portable, columns, n_outputs)


def _classes_fault(portable: Portable, columns: int | None, n_outputs: int) -> str | None:
    link = portable.get("link", "identity")
    if "classes" not in portable:
        wrong = columns not in (None, n_outputs) or n_outputs != 1
        probabilities = "logistic" in link or link == "softmax"
        return "it is not a regression of one response" if wrong or probabilities else None
    places = portable["classes"]
    if not isinstance(places, np.ndarray) or places.dtype.kind != "i" or places.ndim != 1:
        return "its classes are not positions among the levels"
    inside = len(places) > 0 and places.min() >= 0 and places.max() < n_outputs
    if not inside or len(np.unique(places)) != len(places):
        return "its classes are not positions among the levels"
    if columns is not None and columns != len(places):
        return "its classes do not fit its predictions"
    return "it gives no probabilities" if link == "identity" and columns is not None else None


def n_parameters(portable: Portable) -> int:
    """Count the free parameters of a model.

    Returns
    -------
    int
        Linear form: coefficients that are not zero, and intercepts. Trees: 0, their leaves speak.
        Otherwise the numbers in fitted arrays, those inside trees left out.
    """
    if portable["form"] == "linear":
        return int(np.count_nonzero(portable["coef"])) + len(portable["intercept"])
    return float_numbers(portable["data"]) if portable["form"] == "skops" else 0


def encode_spec(estimator: Any) -> str:
    """Write an unfitted estimator as text, for the parameters of a study.

    Parameters
    ----------
    estimator : estimator
        Its settings are kept, except that everything runs in one process.

    Returns
    -------
    str
        Base64 of an archive; equal estimators give equal texts.

    Raises
    ------
    WireError
        A part of it is of a type that does not travel.
    """
    from sklearn.base import clone

    data = write_archive(_in_one_process(clone(estimator)), fitted=False)
    return base64.b64encode(data).decode("ascii")


def decode_spec(text: str) -> Any:
    """Build the unfitted estimator that :func:`encode_spec` wrote.

    Raises
    ------
    WireError
        Not such a text, a type off the list, or an estimator that is already fitted.
    """
    from sklearn.base import clone

    return clone(_template(text))


@lru_cache(maxsize=64)
def _template(text: str) -> Any:
    """Unfitted estimator of a text; the same text is read, and judged, once in a process."""
    from sklearn.base import clone

    if len(text) > 2 * _SPEC_BYTES:
        raise WireError("the text of an estimator is too long")
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise WireError("the text of an estimator is damaged") from None
    fault = archive_fault(data, fitted=False)
    if fault is not None:
        raise WireError(f"the text of an estimator was refused: {fault}")
    try:
        # A clone has the settings only, whatever else the archive holds.
        return _in_one_process(clone(read_archive(data)))
    except Exception as error:  # noqa: BLE001 - an archive can be wrong in any way
        raise WireError(
            f"the text of an estimator cannot be read ({type(error).__name__})"
        ) from None


def _in_one_process(estimator: Any) -> Any:
    names = estimator.get_params(deep=True)
    return estimator.set_params(**{n: None for n in names if n.split("__")[-1] == "n_jobs"})


# --------------------------------------------------------------------------- what a model rests on

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
        tree = fitted.tree_
        rows = tree.n_node_samples
        if x is not None:
            reached = tree.apply(np.ascontiguousarray(x, dtype=np.float32))
            rows = np.minimum(rows, np.bincount(reached, minlength=tree.node_count))
        yield np.asarray(rows[tree.children_left < 0])
    elif hasattr(fitted, "_predictors"):  # boosting on histograms: no rows are drawn twice
        for predictor in _each(fitted._predictors):
            yield predictor.nodes["count"][predictor.nodes["is_leaf"].astype(bool)]
    elif hasattr(fitted, "steps"):
        for _, step in fitted.steps:
            if step is None or isinstance(step, str):
                continue
            yield from _leaves(step, x)
            if x is not None and step is not fitted.steps[-1][1]:
                x = np.asarray(step.transform(x))
    else:
        columns = getattr(fitted, "estimators_features_", None)
        drawn = None
        if x is not None and (columns is not None or getattr(fitted, "bootstrap", False)):
            drawn = getattr(fitted, "estimators_samples_", None)
        for i, part in enumerate(_inner(fitted)):
            own = x
            if x is not None and drawn is not None:
                rows = np.unique(drawn[i])
                own = x[rows[rows < len(x)]]  # behind the table's own rows come pseudo-rows
            yield from _leaves(part, own if columns is None or own is None else own[:, columns[i]])
        if getattr(fitted, "final_estimator_", None) is not None:
            # It was fitted on cross-fitted predictions, which nobody has kept.
            yield from _leaves(fitted.final_estimator_, None)


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
    "{} holds parameters of classes that may have one row only": (
        "GaussianNB", "BernoulliNB", "MultinomialNB", "ComplementNB", "CategoricalNB",
        "LinearDiscriminantAnalysis", "QuadraticDiscriminantAnalysis", "NearestCentroid",
    ),
    "{} fits a few rows exactly": (
        "QuantileRegressor", "TheilSenRegressor", "HuberRegressor", "RANSACRegressor",
    ),
    "{} holds single values of a column": (
        "SimpleImputer", "MinMaxScaler", "MaxAbsScaler", "RobustScaler", "QuantileTransformer",
        "SplineTransformer", "KBinsDiscretizer", "OneHotEncoder", "OrdinalEncoder", "TargetEncoder",
    ),
}  # fmt: skip
"""Types whose fits hold values of single rows, by what is said of them."""


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
        name = type(part).__name__
        for said, types in _ROW_TYPES.items():
            if name in types and hasattr(part, "fit"):
                return said.format(name)
    for name, value in settings.items():
        last = name.rsplit("__", 1)[-1]
        if last in ("criterion", "loss") and value in _ROW_LOSSES:
            return f"its fitted values under {last} = {value!r} are responses of single rows"
        if last == "strategy" and value in ("median", "quantile", "most_frequent"):
            return f"{last} = {value!r} keeps the value of one row"
        # Numbers are weights of whole models, as voting has them.
        listed = isinstance(value, list | tuple) and all(isinstance(w, int | float) for w in value)
        if last == "weights" and not (value is None or value == "uniform" or listed):
            return "weights by distance make a prediction the response of the nearest row"
    return None


# ----------------------------------------------------------------------------------- linear models

LINKS = ("identity", "logistic", "softmax")

_SCALERS = "sklearn.preprocessing._data."


def encode_linear(fitted: Any) -> Portable | None:
    """Coefficients of a fitted linear predictor, ``None`` where it is none.

    Returns
    -------
    dict or None
        ``coef`` (q, p), ``intercept`` (q,), ``link``. A binary classifier has q = 1 and the link
        ``"logistic"``, which gives two columns of probabilities.
    """
    name = qualified(fitted)
    if name == "sklearn.pipeline.Pipeline":
        return _pipeline(fitted)
    if name == "sklearn.compose._target.TransformedTargetRegressor":
        return _scaled_response(fitted)
    if name == "sklearn.linear_model._ransac.RANSACRegressor":
        return encode_linear(fitted.estimator_)
    if name not in LINEAR and name not in LOGISTIC:
        return None
    coef = np.atleast_2d(np.asarray(fitted.coef_, dtype=np.float64))
    intercept = np.atleast_1d(np.asarray(fitted.intercept_, dtype=np.float64))
    if np.ndim(fitted.coef_) > 1 and name in LINEAR and len(coef) != 1:
        return None  # several responses
    link = "identity"
    if name in LOGISTIC:
        link = "logistic" if len(fitted.classes_) <= 2 else "softmax"
        if len(coef) != (1 if link == "logistic" else len(fitted.classes_)):
            return None
    intercept = np.array(np.broadcast_to(intercept, (len(coef),)))
    if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):
        return None
    return {"form": "linear", "coef": coef, "intercept": intercept, "link": link}


def _pipeline(fitted: Any) -> Portable | None:
    """Fold affine steps into the coefficients of the last step."""
    *steps, (_, last) = fitted.steps
    inner = encode_linear(last) if last is not None and last != "passthrough" else None
    if inner is None:
        return None
    coef, intercept = inner["coef"], inner["intercept"]
    for _, step in reversed(steps):
        pair = _affine(step, coef.shape[1])
        if pair is None:
            return None
        slope, shift = pair
        intercept = intercept + coef @ shift
        coef = coef * slope
    return {**inner, "coef": coef, "intercept": intercept}


def _affine(step: Any, p: int) -> tuple[FloatArray, FloatArray] | None:
    """Slope and shift of a step that maps each column by itself, ``z = slope x + shift``."""
    one, zero = np.ones(p), np.zeros(p)
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return one, zero
    name = qualified(step)
    if name == _SCALERS + "StandardScaler":
        centre = zero if step.mean_ is None or not step.with_mean else step.mean_
        scale = one if step.scale_ is None else step.scale_
    elif name == _SCALERS + "RobustScaler":
        centre = step.center_ if step.with_centering else zero
        scale = step.scale_ if step.with_scaling else one
    elif name == _SCALERS + "MaxAbsScaler" and not getattr(step, "clip", False):
        centre, scale = zero, step.scale_
    elif name == _SCALERS + "MinMaxScaler" and not step.clip:
        return np.asarray(step.scale_, dtype=np.float64), np.asarray(step.min_, dtype=np.float64)
    else:
        return None
    slope = 1.0 / np.asarray(scale, dtype=np.float64)
    return slope, -np.asarray(centre, dtype=np.float64) * slope


def _scaled_response(fitted: Any) -> Portable | None:
    """Fold a standardised response into the coefficients."""
    back = fitted.transformer_
    if fitted.func is not None or qualified(back) != _SCALERS + "StandardScaler":
        return None
    inner = encode_linear(fitted.regressor_)
    if inner is None:
        return None
    scale = np.ones(1) if back.scale_ is None else np.asarray(back.scale_, dtype=np.float64)
    centre = np.zeros(1) if back.mean_ is None or not back.with_mean else back.mean_
    coef, intercept = inner["coef"] * scale[:, None], inner["intercept"] * scale + centre
    return {**inner, "coef": coef, "intercept": intercept}


def linear_fault(portable: Portable, n_features: int) -> str | None:
    """What is wrong with the arrays of a linear form, in one phrase (see `check`)."""
    coef, intercept = portable.get("coef"), portable.get("intercept")
    for part, ndim in ((coef, 2), (intercept, 1)):
        if not isinstance(part, np.ndarray) or part.dtype != np.float64 or part.ndim != ndim:
            return "its coefficients are not arrays of numbers"
    link = portable.get("link")
    if not isinstance(link, str) or link not in LINKS:
        return "its link is not known"
    if coef.shape[1] != n_features:  # type: ignore[union-attr]
        return f"it expects {coef.shape[1]} columns and the study has {n_features}"  # type: ignore[union-attr]
    if len(coef) != len(intercept) or not len(coef):  # type: ignore[arg-type]
        return "its coefficients and intercepts do not fit together"
    if link == "logistic" and len(coef) != 1:  # type: ignore[arg-type]
        return "its coefficients do not fit its link"
    # Not "not finite at some rows", which would tell of the rows: too large for any.
    if not (np.abs(coef) <= LARGEST).all() or not (np.abs(intercept) <= LARGEST).all():  # type: ignore[arg-type]
        return "its coefficients are not finite, or beyond all measure"
    return None


def linear_columns(portable: Portable) -> int:
    """Columns of the predictions of a checked linear form."""
    return 2 if portable["link"] == "logistic" else len(portable["coef"])
