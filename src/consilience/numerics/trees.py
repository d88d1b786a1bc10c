"""Predictions of trees given as flat arrays (see ``consilience.wire.estimators.types``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from consilience.arrays import FloatArray
from consilience.exceptions import WireError
from consilience.wire.estimators.types import trees_fault


def predict_trees(portable: Mapping[str, Any], x: FloatArray) -> FloatArray:
    """Evaluate the trees of a tree form.

    Parameters
    ----------
    portable : mapping
        A tree form; it is checked once more, since the kernel reads without bounds.
    x : (n, p) array
        Finite. As in scikit-learn, predictors are compared as 32-bit numbers.

    Returns
    -------
    (n, q) float array
        Equal to scikit-learn's ``predict`` (q = 1) or ``predict_proba``.

    Raises
    ------
    WireError
        The arrays are not those of trees on p columns.
    """
    x = np.asarray(x)
    fault = trees_fault(dict(portable), x.shape[1])
    if fault is not None:
        raise WireError(f"trees that cannot be evaluated: {fault}")
    raw = np.empty((len(x), len(portable["start"])))
    raw[:] = portable["start"]
    _kernel()(
        # As scikit-learn does: a threshold between two doubles may lie on either side otherwise.
        np.ascontiguousarray(x, dtype=np.float32),
        portable["splits"].astype(np.int64),
        portable["feature"].astype(np.int32),
        np.array(portable["threshold"], dtype=np.float64),
        portable["children"].astype(np.int32, order="C"),
        np.array(portable["value"], dtype=np.float64, order="C"),
        raw,
    )
    if portable["link"] == "mean":
        return np.asarray(raw / len(portable["splits"]))
    return apply_link(raw, portable["link"])


def apply_link(raw: FloatArray, link: str) -> FloatArray:
    """Turn linear predictors or sums of trees into predictions.

    Parameters
    ----------
    raw : (n, q) array
    link : {"identity", "logistic", "double-logistic", "softmax"}
        The logistic links take q = 1 and give the probabilities of both classes.
    """
    if link in ("logistic", "double-logistic"):
        from scipy.special import expit

        second = expit(raw[:, 0] if link == "logistic" else 2.0 * raw[:, 0])
        return np.stack([1.0 - second, second], axis=1)
    if link == "softmax":
        shifted = np.exp(raw - raw.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    return raw


def _add_trees(
    x: Any, splits: Any, feature: Any, threshold: Any, children: Any, value: Any, out: Any
) -> None:
    """Add the leaf of every tree to `out`, tree after tree as scikit-learn does."""
    width, q = value.shape[1], out.shape[1]
    split0, leaf0 = 0, 0
    for t in range(len(splits)):
        # Boosted classes have a tree for each class in turn; forests have all classes in a leaf.
        column = 0 if width == q else t % q
        for i in range(len(x)):
            at = 0 if splits[t] > 0 else -1
            while at >= 0:
                s = split0 + at
                goes_right = 0 if x[i, feature[s]] <= threshold[s] else 1
                at = children[s, goes_right]
            # Children that are leaves have negative numbers: -1 is leaf 0.
            leaf = leaf0 - 1 - at
            for k in range(width):
                out[i, column + k] += value[leaf, k]
        split0 += splits[t]
        leaf0 += splits[t] + 1


@cache
def _kernel() -> Callable[..., None]:
    # On use: it loads numba.
    from consilience.numerics.compilation import compiled

    kernel: Callable[..., None] = compiled(_add_trees, fastmath=())
    return kernel
