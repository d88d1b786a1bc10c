"""Tables for tests of sparse quadratic discriminants, moments and scores by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.discriminant.estimators.sparse_qda_fit import PreparedMoments, units_of
from consilience.numerics.block_moments import BlockMoments


def blocks_table(
    sizes: Sequence[int], p: int, *, seed: int, block: int = 3, shift: float = 0.5
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of classes whose first features go together, the more so the later the class."""
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, p))
        x[:, 1:block] += 0.8 * k / max(1, len(sizes) - 1) * x[:, :1]
        rows.append(x + shift * rng.normal(size=p))
        labels += [k] * n
    return np.concatenate(rows), np.array(labels)


def moments_by_class(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, means and covariance matrices (divisor n_k), a loop over rows."""
    n, means, covariances = [], [], []
    for label in sorted(set(y.tolist())):
        rows = x[y == label]
        mean = sum(rows) / len(rows)
        n.append(len(rows))
        means.append(mean)
        covariances.append(sum(np.outer(row - mean, row - mean) for row in rows) / len(rows))
    return np.array(n), np.array(means), np.array(covariances)


def scores(
    x: np.ndarray, means: np.ndarray, precisions: np.ndarray, priors: np.ndarray
) -> np.ndarray:
    """Equation 2 of the source, row by row."""
    found = np.empty((len(x), len(means)))
    for k, precision in enumerate(precisions):
        half = 0.5 * np.log(np.linalg.eigvalsh(precision)).sum() + np.log(priors[k])
        for i, row in enumerate(x):
            apart = row - means[k]
            found[i, k] = half - 0.5 * apart @ precision @ apart
    return found


def pooled_scale(n: np.ndarray, covariances: np.ndarray) -> np.ndarray:
    """Pooled standard deviations within the classes, divisor n."""
    return np.sqrt(np.diag(np.tensordot(n / n.sum(), covariances, 1)))


def in_one_block(n: np.ndarray, covariances: np.ndarray) -> BlockMoments:
    """Moments whose covariance matrices are there."""
    diagonal = np.diagonal(covariances, axis1=1, axis2=2).copy()
    return BlockMoments(n, diagonal, (np.arange(covariances.shape[1]),), (covariances,))


def prepared_moments(n: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> PreparedMoments:
    """Moments that are there, as from several sites, in units of their own."""
    units = units_of(n, means, np.diagonal(covariances, axis1=1, axis2=2))
    kept, scale = units.kept, units.scale
    part = covariances[:, kept[:, None], kept[None, :]] / (scale[:, None] * scale[None, :])
    part[:, np.arange(len(kept)), np.arange(len(kept))] += units.floor
    return PreparedMoments(n, means, units, in_one_block(n, part))
