"""Forests of links: the components of every penalty, and moments that read them."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.discriminant.estimators.sparse_qda_fit import (
    ForestMoments,
    LinkForest,
    prepare_rows,
)
from consilience.discriminant.kernels import joint_precision
from consilience.discriminant.kernels.joint_precision import (
    components,
    fit_precisions,
)
from tests.discriminant.estimators.sparse_qda_data import (
    blocks_table,
    in_one_block,
    moments_by_class,
)
from tests.reference.joint_precision import components as by_walking


@pytest.mark.parametrize("tile", [4, 512])
@pytest.mark.parametrize("seed", range(5))
def test_components_of_every_penalty(tile: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_precision, "TILE", tile)
    x, y = blocks_table([9, 14], 15, seed=seed)
    n, _, covariances = moments_by_class(x, y)
    moments = in_one_block(n.astype(float), covariances)
    norms = np.sqrt(((n[:, None, None] * covariances) ** 2).sum(axis=0))[np.triu_indices(15, 1)]
    smallest = float(np.quantile(norms, 0.3))
    forest = LinkForest.of(moments, smallest)
    assert len(forest.norms) <= 14
    screened = ForestMoments(moments, forest, smallest)
    sizes = set()
    for lam in [smallest, *np.quantile(norms, [0.6, 0.9, 0.97]), float(norms.max())]:
        labels = forest.labels(lam)
        found = sorted(np.flatnonzero(labels == k).tolist() for k in set(labels.tolist()))
        assert found == by_walking(covariances, n, lam)
        assert forest.largest(lam) == max(map(len, found))
        np.testing.assert_array_equal(components(screened, lam), components(moments, lam))
        sizes.add(forest.largest(lam))
    assert len(sizes) >= 3


def test_screened_moments_give_the_same_fit() -> None:
    x, y = blocks_table([30, 40], 12, seed=9)
    x[y == 0, 5] = 1.0  # a variance that is stood in for
    moments = prepare_rows(x, y, 2).moments
    forest = LinkForest.of(moments, 0.0)
    lams = np.quantile(forest.norms, [0.9, 0.6, 0.3])
    screened = ForestMoments(moments, forest, float(lams[-1]))
    for lam in lams:
        plain, quick = fit_precisions(moments, lam), fit_precisions(screened, lam)
        assert [b.tolist() for b in plain.blocks] == [b.tolist() for b in quick.blocks]
        np.testing.assert_allclose(quick.dense(), plain.dense(), rtol=1e-10, atol=1e-12)
    assert len(quick.blocks) and len(quick.blocks[0]) < 12


@pytest.mark.parametrize("max_size", [1, 2, 5, 11, 12])
def test_critical_penalty(max_size: int) -> None:
    x, y = blocks_table([30, 40], 12, seed=9)
    moments = prepare_rows(x, y, 2).moments
    forest = LinkForest.of(moments, 0.0)
    critical = forest.critical(max_size)
    assert np.bincount(components(moments, critical * (1 + 1e-9))).max() <= max_size
    if max_size < 12:
        assert np.bincount(components(moments, critical * (1 - 1e-9))).max() > max_size
    else:
        assert critical == 0.0


def test_no_links() -> None:
    x, y = blocks_table([30, 40], 4, seed=9)
    forest = LinkForest.of(prepare_rows(x, y, 2).moments, 1e9)
    assert forest.labels(1e9).tolist() == [0, 1, 2, 3]
    assert forest.largest(1e9) == 1
