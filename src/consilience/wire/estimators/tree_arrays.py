"""Tree form: splits and leaf values of trees as flat arrays, and nothing else of them.

Splits of all trees stand one after the other, numbered from 0 within their tree. Entry ``[s, 0]``
of ``children`` is where a row goes whose feature is at most the threshold: another split of the
same tree (a number above s), or, as ``-1 - k``, leaf k of that tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.wire.estimators.types import (
    BOOSTING,
    FORESTS,
    LARGEST,
    SINGLE_TREES,
    Portable,
    qualified,
)

LINKS = ("identity", "mean", "logistic", "double-logistic", "softmax")
MAX_SPLITS = 5_000_000
MAX_TREES = 100_000


def encode_trees(fitted: Any) -> Portable | None:
    """Arrays of a fitted tree, forest or boosting; ``None`` where it is none, or of another kind.

    Returns
    -------
    dict or None
        ``columns`` p, ``splits`` (T,) number of splits of each tree, ``feature`` and ``threshold``
        (m,), ``children`` (m, 2), ``value`` (leaves, w), ``start`` (q,), ``link``. With w = q every
        tree adds to every output, with w = 1 tree t adds to output ``t mod q``.
    """
    name = qualified(fitted)
    if name in SINGLE_TREES | FORESTS:
        trees = [fitted] if name in SINGLE_TREES else list(fitted.estimators_)
        if fitted.n_outputs_ != 1:
            return None
        arrays = _flat([tree.tree_ for tree in trees], 1.0)
        start, link = np.zeros(arrays["value"].shape[1]), "mean"
    elif name in BOOSTING:
        first = _first_guess(fitted)
        if first is None:
            return None
        arrays = _flat([tree.tree_ for tree in fitted.estimators_.ravel()], fitted.learning_rate)
        start, link = first, "identity"
        if name.endswith("Classifier"):
            doubled = "double-logistic" if fitted.loss == "exponential" else "logistic"
            link = doubled if len(start) == 1 else "softmax"
    else:
        return None
    portable = {"form": "trees", "columns": int(fitted.n_features_in_), **arrays}
    portable |= {"start": start, "link": link}
    # Trees grown with gaps among the predictors have infinite thresholds.
    return portable if np.isfinite(arrays["threshold"]).all() else None


def _first_guess(fitted: Any) -> NDArray[np.float64] | None:
    """Constant that boosting starts from, ``None`` where it is a model of the predictors."""
    init = fitted.init_
    if isinstance(init, str) and init == "zero":
        return np.zeros(fitted.n_trees_per_iteration_)
    prior = qualified(init) == "sklearn.dummy.DummyClassifier" and init.strategy == "prior"
    constant = qualified(init) == "sklearn.dummy.DummyRegressor"
    if not (prior or constant):
        return None
    # A constant model says the same at every row: one row of zeros is enough to read it off.
    nothing = np.zeros((1, fitted.n_features_in_), dtype=np.float32)
    return np.array(fitted._raw_predict_init(nothing)[0], dtype=np.float64)


def _flat(trees: list[Any], factor: float) -> Portable:
    parts = [_tree(tree) for tree in trees]
    features, thresholds, children, values = (
        np.concatenate([part[i] for part in parts]) for i in range(4)
    )
    splits = np.array([len(part[0]) for part in parts], dtype=np.int32)
    # Half the bytes where numbers are small; forests are the largest models that travel.
    small = np.int16 if splits.max(initial=0) < 2**15 - 1 else np.int32
    narrow = np.int16 if features.max(initial=0) < 2**15 else np.int32
    return {
        "splits": splits,
        "feature": features.astype(narrow),
        "threshold": thresholds.astype(np.float64),
        "children": children.astype(small),
        "value": factor * values.astype(np.float64),
    }


def _tree(tree: Any) -> tuple[NDArray[Any], ...]:
    """Splits and leaves of one scikit-learn tree, renumbered in their order."""
    left, right = tree.children_left, tree.children_right
    is_leaf = left < 0
    number = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    inner = ~is_leaf
    children = np.stack([number[left[inner]], number[right[inner]]], axis=1)
    return tree.feature[inner], tree.threshold[inner], children, tree.value[is_leaf, 0, :]


def trees_fault(portable: Portable, n_features: int) -> str | None:
    """What is wrong with the arrays of a tree form, in one phrase (see `check`).

    A form without a fault is a set of binary trees: evaluating it ends, and reads nothing outside
    its arrays.
    """
    columns, link = portable.get("columns"), portable.get("link")
    if type(columns) is not int or not isinstance(link, str) or link not in LINKS:
        return "its arrays are not those of trees"
    if columns != n_features:
        return f"it expects {columns} columns and the study has {n_features}"
    kinds = {"splits": ("i", 1), "feature": ("i", 1), "threshold": ("f", 1)}
    kinds |= {"children": ("i", 2), "value": ("f", 2), "start": ("f", 1)}
    for key, (kind, ndim) in kinds.items():
        part = portable.get(key)
        if not isinstance(part, np.ndarray) or part.dtype.kind != kind or part.ndim != ndim:
            return "its arrays are not those of trees"
    for key in ("threshold", "value", "start"):
        if portable[key].dtype != np.float64 or not (np.abs(portable[key]) <= LARGEST).all():
            return "its thresholds or values are not finite, or beyond all measure"
    return _structure_fault(portable, n_features) or _output_fault(portable)


def _structure_fault(portable: Portable, n_features: int) -> str | None:
    splits, feature = portable["splits"].astype(np.int64), portable["feature"]
    children = portable["children"].astype(np.int64)
    m = len(feature)
    if len(splits) > MAX_TREES or m > MAX_SPLITS:
        return "it has too many trees or splits"
    if not len(splits) or (splits < 0).any() or (splits > m).any() or splits.sum() != m:
        return "its trees do not add up"
    if len(portable["threshold"]) != m or children.shape != (m, 2):
        return "its trees do not add up"
    if len(portable["value"]) != m + len(splits):
        return "its leaves do not add up"
    if m and (feature.min() < 0 or feature.max() >= n_features):
        return "a split uses a column that there is not"
    first = np.concatenate([[0], np.cumsum(splits)[:-1]])
    base, size = np.repeat(first, splits)[:, None], np.repeat(splits, splits)[:, None]
    # Children have higher numbers than their parent, so evaluation goes on and cannot circle.
    own = np.arange(m)[:, None] - base
    is_leaf = children < 0
    inside = np.where(is_leaf, -1 - children <= size, (children > own) & (children < size))
    if not inside.all():
        return "a split leads back or out of its tree"
    # Every split but the roots, and every leaf, is reached from exactly one split.
    reached = np.bincount((base + children)[~is_leaf], minlength=m)
    roots = first[splits > 0]
    leaf_base = base + np.repeat(np.arange(len(splits)), splits)[:, None]
    leaves = np.bincount((leaf_base - 1 - children)[is_leaf], minlength=m + len(splits))
    lonely = first[splits == 0] + np.flatnonzero(splits == 0)
    reached[roots] += 1
    leaves[lonely] += 1
    if (reached != 1).any() or (leaves != 1).any():
        return "its splits do not form trees"
    return None


def _output_fault(portable: Portable) -> str | None:
    width, q, link = portable["value"].shape[1], len(portable["start"]), portable["link"]
    if q < 1 or width not in (1, q) or len(portable["splits"]) % (q if width == 1 else 1):
        return "its outputs do not add up"
    if link.endswith("logistic") and q != 1:
        return "its outputs do not fit its link"
    return None


def trees_columns(portable: Portable) -> int:
    """Columns of the predictions of a checked tree form."""
    return 2 if portable["link"].endswith("logistic") else len(portable["start"])
