"""Fixed points: linear maps in a few steps, the map's own steps at first, growth forgotten."""

from __future__ import annotations

import numpy as np

from consilience.completion.estimators.em_imputation import AndersonMixing


def steps_to(tol: float, mixing: AndersonMixing | None, rate: float = 0.99) -> int:
    """Evaluations of a slow linear map until it moves less than tol."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(30, 30)))[0]
    slow = np.full(30, 0.2)
    slow[:4] = [rate, 0.9, 0.7, 0.5]
    matrix, goal, point = axes @ np.diag(slow) @ axes.T, rng.normal(size=30), np.zeros(30)
    for step in range(1, 5000):
        image = goal + matrix @ (point - goal)
        if np.linalg.norm(image - point) <= tol:
            return step
        point = image if mixing is None else mixing.next(point, image)
    return 5000


def test_linear_map() -> None:
    """Five directions: as many mixed steps, and a few for rounding."""
    assert steps_to(1e-10, AndersonMixing()) < 20
    assert steps_to(1e-10, None) > 1000


def test_first_steps_are_the_maps_own() -> None:
    mixing, point = AndersonMixing(), np.array([1.0])
    for _ in range(4):
        image = np.cos(point)
        np.testing.assert_array_equal(mixing.next(point, image), image)
        point = image
    assert mixing.next(point, np.cos(point)) != np.cos(point)


def test_growth_is_forgotten() -> None:
    mixing = AndersonMixing()
    for residual in (1.0, 0.9, 0.8, 0.7, 0.6):
        mixing.next(np.array([residual, 0.0]), np.array([2 * residual, 0.0]))
    image = np.array([7.0, 7.0])
    np.testing.assert_array_equal(mixing.next(np.zeros(2), image), image)
