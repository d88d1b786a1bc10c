"""Trees evaluated row by row and node by node, straight from scikit-learn's own trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def leaf_value(tree: Any, row: np.ndarray) -> np.ndarray:
    """Walk one row down one tree."""
    node = 0
    while tree.children_left[node] != -1:
        seen = float(np.float32(row[tree.feature[node]]))
        goes_left = seen <= tree.threshold[node]
        node = tree.children_left[node] if goes_left else tree.children_right[node]
    return tree.value[node, 0]


def forest(fitted: Any, x: np.ndarray) -> np.ndarray:
    """Mean over trees of the leaf values: predictions, or shares of classes."""
    trees = [part.tree_ for part in getattr(fitted, "estimators_", [fitted])]
    rows = []
    for row in x:
        total = np.zeros(trees[0].value.shape[2])
        for tree in trees:
            total = total + leaf_value(tree, row)
        rows.append(total / len(trees))
    return np.array(rows)


def boosting(fitted: Any, x: np.ndarray, start: list[float]) -> np.ndarray:
    """Start, and the learning rate times the leaf of each stage and class."""
    rows = []
    for row in x:
        total = list(start)
        for stage in fitted.estimators_:
            for k, part in enumerate(stage):
                total[k] += fitted.learning_rate * leaf_value(part.tree_, row)[0]
        rows.append(total)
    return np.array(rows)


def logistic(raw: float) -> list[float]:
    """Probabilities of two classes."""
    second = 1 / (1 + math.exp(-raw))
    return [1 - second, second]


def softmax(raw: np.ndarray) -> list[float]:
    """Probabilities of several classes."""
    weights = [math.exp(value - max(raw)) for value in raw]
    return [weight / sum(weights) for weight in weights]
