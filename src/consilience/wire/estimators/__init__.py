"""Fitted scikit-learn estimators as plain nests that cross the wire, and what they give away.

A travelling model is one of three forms. With q columns of predictions (1 for regression) and p
predictors:

==========  ====================================================================================
``form``    fields
==========  ====================================================================================
linear      ``coef`` (q, p), ``intercept`` (q,), ``link``: whatever predicts by a linear predictor;
            scaling of columns (and of the response) is folded in
trees       arrays of :mod:`.tree_arrays`: trees, forests, extra trees, gradient boosting
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
from collections.abc import Sequence
from typing import Any

import numpy as np

from consilience.exceptions import WireError
from consilience.wire.estimators.archive import (
    archive_fault,
    float_numbers,
    read_archive,
    write_archive,
)
from consilience.wire.estimators.inspection import leaves, row_values, type_name, unwrapped
from consilience.wire.estimators.linear import encode_linear, linear_columns, linear_fault
from consilience.wire.estimators.tree_arrays import encode_trees, trees_columns, trees_fault
from consilience.wire.estimators.types import MEMORISING, is_memorising

Portable = dict[str, Any]

__all__ = [
    "MEMORISING",
    "Portable",
    "check",
    "decode_spec",
    "encode",
    "encode_spec",
    "is_memorising",
    "leaves",
    "n_parameters",
    "row_values",
    "type_name",
]

_FIELDS = {
    "linear": {"form", "coef", "intercept", "link"},
    "trees": {
        "form",
        "columns",
        "splits",
        "feature",
        "threshold",
        "children",
        "value",
        "start",
        "link",
    },
    "skops": {"form", "data", "columns"},
}
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
    if fields is None or not fields <= set(portable) <= fields | {"classes"}:
        return "it is of no form that is known"
    columns: int | None = None
    if form == "linear":
        fault = linear_fault(portable, n_features)
        columns = None if fault else linear_columns(portable)
    elif form == "trees":
        fault = trees_fault(portable, n_features)
        columns = None if fault else trees_columns(portable)
    else:
        fault = _skops_fault(portable, n_features)
    return fault or _classes_fault(portable, columns, n_outputs)


def _skops_fault(portable: Portable, n_features: int) -> str | None:
    data, columns = portable["data"], portable["columns"]
    if not isinstance(data, bytes) or type(columns) is not int:
        return "it is of no form that is known"
    if columns != n_features:
        return f"it expects {columns} columns and the study has {n_features}"
    return archive_fault(data)


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
