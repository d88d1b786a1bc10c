"""Linear form: coefficients, intercepts and a link; scaling of columns is folded in."""

from __future__ import annotations

from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.wire.estimators.types import LARGEST, LINEAR, LOGISTIC, qualified

Portable = dict[str, Any]
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
