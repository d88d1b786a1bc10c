"""Community Bayes of many features: memory in proportion to one matrix of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from consilience import CommunityBayesClassifier
from consilience.datasets.simulate_wide import simulate_separate_groups
from consilience.discriminant.estimators.community_bayes_fit import class_similarity
from consilience.discriminant.kernels.communities import cut, linkage_tree
from consilience.numerics.random import stream


def peak_of(work: Callable[[], Any]) -> tuple[float, Any]:
    """Most bytes at a time while working, and the answer."""
    tracemalloc.start()
    try:
        answer = work()
        return float(tracemalloc.get_traced_memory()[1]), answer
    finally:
        tracemalloc.stop()


def found_share(communities: Any) -> float:
    """Share of the design's groups of ten that are communities."""
    found = {tuple(part.tolist()) for part in communities}
    p = sum(len(part) for part in communities)
    right = {tuple(range(first, first + 10)) for first in range(0, p, 10)}
    return len(found & right) / len(right)


def test_memory_of_the_tree() -> None:
    x, y = simulate_separate_groups(100, 80, rng=stream(0), group=10)
    linkage_tree(class_similarity(x[:, :5], y, 2))  # modules are loaded
    peak, tree = peak_of(lambda: linkage_tree(class_similarity(x, y, 2)))
    assert peak < 5 * 8 * 800**2
    assert found_share(cut(tree, 80)) > 0.9


def test_memory_of_a_fit() -> None:
    p = 3000
    x, y = simulate_separate_groups(100, p // 10, rng=stream(0), group=10, shift=0.15)
    peak, fit = peak_of(lambda: CommunityBayesClassifier(n_communities=p // 10).fit(x, y))
    assert peak < 5 * 8 * p**2
    assert found_share(fit.communities_) > 0.9
    assert np.isfinite(fit.predict_log_proba(np.zeros((1, p)))).all()
