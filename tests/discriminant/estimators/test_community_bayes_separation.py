"""Separability by a linear program."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.discriminant.estimators.community_bayes_fit import linearly_separable
from consilience.numerics.random import stream


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e9])
def test_classes_around_corners(k, scale):
    rng = stream(k)
    y = np.repeat(np.arange(k), 15)
    corners = 3 * np.eye(k + 1)[:k]
    x = corners[y] + rng.uniform(-1, 1, size=(len(y), k + 1))
    x = scale * (x + 100.0)
    assert linearly_separable(x, y) is True
    # a copy of a row of class 0 in class 1: no plane is between them
    assert linearly_separable(np.vstack([x, x[:1]]), np.append(y, 1)) is False


def test_more_features_than_rows_are_separable():
    x, y = stream(0).standard_normal((20, 25)), np.arange(20) % 4
    assert linearly_separable(x, y) is True


def test_exclusive_or_is_not():
    x = np.array([[0.0, 0.0], [1, 1], [0, 1], [1, 0]])
    assert linearly_separable(x, np.array([0, 0, 1, 1])) is False
    assert linearly_separable(np.column_stack([x, x[:, 0] * x[:, 1]]), np.array([0, 0, 1, 1]))


def test_large_tables_are_not_tried():
    assert linearly_separable(np.zeros((200_000, 3)), np.arange(200_000) % 2) is None
