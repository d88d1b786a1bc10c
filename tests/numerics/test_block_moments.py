"""Moments by blocks and of groups of rows, against the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest

from consilience.discriminant.kernels.joint_precision import (
    TILE,
    components,
    fit_precisions,
)
from consilience.numerics.block_moments import BetweenMoments, BlockMoments, pooled
from tests.discriminant.estimators.sparse_qda_data import in_one_block


def groups(seed: int, sizes: list[int], p: int, shift: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, p)) + shift * rng.normal(size=p) for n in sizes]


@pytest.mark.parametrize("sizes", [[5], [5, 9], [5, 9, 1], [3, 4, 5, 6, 7]])
@pytest.mark.parametrize("origin", [0.0, 1e7])
def test_groups_are_pooled_exactly(sizes: list[int], origin: float) -> None:
    parts = [x + origin for x in groups(0, sizes, 4)]
    whole = np.concatenate(parts) - origin
    wanted = (whole - whole.mean(0)).T @ (whole - whole.mean(0))
    means = [x.mean(axis=0) for x in parts]
    sums = [(x - m).T @ (x - m) for x, m in zip(parts, means, strict=True)]
    n, mean, products = pooled(sizes, means, sums)
    rtol = 1e-12 if origin == 0 else 1e-7
    assert n == sum(sizes)
    np.testing.assert_allclose(mean - origin, whole.mean(axis=0), rtol=rtol, atol=rtol * 10)
    np.testing.assert_allclose(products, wanted, rtol=rtol, atol=rtol * 10)
    squares = pooled(sizes, means, [np.diag(s) for s in sums])[2]
    np.testing.assert_allclose(squares, np.diag(wanted), rtol=rtol, atol=rtol * 10)


def test_within_and_between_are_the_whole() -> None:
    parts = [groups(k, [5, 9, 7], 6) for k in range(2)]
    sizes = np.array([[len(x) for x in of] for of in parts], dtype=float).T
    means = np.array([[x.mean(axis=0) for x in of] for of in parts]).transpose(1, 0, 2)
    between = BetweenMoments.of(sizes, means)
    everything = np.arange(6)
    norms = between.norms(slice(0, 6), slice(0, 6))
    total = []
    for k, of in enumerate(parts):
        whole = np.concatenate(of)
        centred = whole - whole.mean(axis=0)
        within = sum((x - x.mean(axis=0)).T @ (x - x.mean(axis=0)) for x in of)
        added = between.n[k] * between.block(everything)[k]
        np.testing.assert_allclose(within + added, centred.T @ centred, rtol=1e-10, atol=1e-10)
        total.append(added)
    np.testing.assert_allclose(norms, np.sqrt(np.square(total).sum(axis=0)), rtol=1e-10)
    diagonal = np.diagonal(between.block(everything), axis1=1, axis2=2)
    np.testing.assert_allclose(between.diagonal, diagonal, rtol=1e-12)


def test_groups_without_rows_of_a_class_do_not_count() -> None:
    sizes = np.array([[5.0, 4.0], [7.0, 0.0]])
    means = np.random.default_rng(0).normal(size=(2, 2, 3))
    means[1, 1] = np.nan
    between = BetweenMoments.of(sizes, means)
    assert np.isfinite(between.norms(slice(0, 3), slice(0, 3))).all()
    assert not between.parts[1].any()


def block_moments(
    p: int, blocks: list[list[int]], seed: int = 0
) -> tuple[BlockMoments, np.ndarray]:
    """Moments by blocks, and the same as full matrices with zeros between blocks."""
    rng = np.random.default_rng(seed)
    n = np.array([30.0, 50.0])
    full = np.zeros((2, p, p))
    full[:, np.arange(p), np.arange(p)] = rng.uniform(0.5, 2, size=(2, p))
    parts = []
    for block in blocks:
        x = rng.normal(size=(2, 3 * len(block), len(block)))
        parts.append(np.einsum("kni,knj->kij", x, x) / x.shape[1])
        full[:, np.array(block)[:, None], np.array(block)] = parts[-1]
    diagonal = np.diagonal(full, axis1=1, axis2=2).copy()
    made = BlockMoments(n, diagonal, tuple(np.array(b) for b in blocks), tuple(parts))
    return made, full


@pytest.mark.parametrize("blocks", [[], [[0, 1, 2]], [[1, 4, 6], [0, 5]], [list(range(8))]])
def test_blocks_are_the_full_matrices_with_zeros_between(blocks: list[list[int]]) -> None:
    made, full = block_moments(8, blocks)
    dense = in_one_block(made.n, full)
    for features in ([0, 1, 2], [6, 4, 1], [3], list(range(8))):
        at = np.array(features)
        np.testing.assert_array_equal(made.block(at), full[:, at[:, None], at])
    for a in (slice(0, 8), slice(2, 5)):
        for b in (slice(0, 8), slice(4, 8), slice(0, 2)):
            wanted = np.sqrt(((made.n[:, None, None] * full[:, a, b]) ** 2).sum(axis=0))
            np.testing.assert_allclose(made.norms(a, b), wanted, rtol=1e-12)
    np.testing.assert_array_equal(components(made, 10.0), components(dense, 10.0))
    ours, theirs = (fit_precisions(m, 8.0, tol=1e-12).dense() for m in (made, dense))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_many_features_need_no_matrix() -> None:
    """Blocks that lie across the tiles by which norms are read."""
    p = 2 * TILE + 100
    made, _ = block_moments(10, [[0, 1], [2, 5]])
    blocks = (np.array([3, TILE + 1]), np.array([TILE - 1, 2 * TILE + 7]))
    diagonal = np.ones((2, p))
    for block, covariance in zip(blocks, made.covariances, strict=True):
        diagonal[:, block] = np.diagonal(covariance, axis1=1, axis2=2)
    wide = BlockMoments(made.n, diagonal, blocks, made.covariances)
    labels = components(wide, 1e-6)
    found = [np.flatnonzero(labels == v) for v in np.flatnonzero(np.bincount(labels) > 1)]
    assert [f.tolist() for f in found] == [b.tolist() for b in blocks]
