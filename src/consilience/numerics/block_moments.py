"""Second moments of classes that are known within blocks of features, and sums over groups of rows.

Groups of rows (sites) are pooled by the update of Chan, Golub and LeVeque (1983), which loses no
digits where means are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray

Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class BlockMoments:
    """Moments within blocks; between blocks the covariances are not known and count as 0.

    Parameters
    ----------
    n : ndarray of shape (K,)
        Rows of each class.
    diagonal : ndarray of shape (K, p)
        Variances of all features, divisor ``n_k``.
    blocks : tuple of ndarray of int of shape (q,)
        Features of each block, sorted; no feature is in two blocks.
    covariances : tuple of ndarray of shape (K, q, q)
    """

    n: FloatArray
    diagonal: FloatArray
    blocks: tuple[Indices, ...]
    covariances: tuple[FloatArray, ...]

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.diagonal.shape[1])

    def block(self, features: Indices) -> FloatArray:
        """Covariances among some features, shape (K, q, q)."""
        features = np.asarray(features)
        out = np.zeros((len(self.n), len(features), len(features)))
        place = np.arange(len(features))
        # Also of features that are in no block: of those nothing but the variance is known.
        out[:, place, place] = self.diagonal[:, features]
        for members, covariance in zip(self.blocks, self.covariances, strict=True):
            at, found = _inside(features, members)
            if len(at):
                out[:, at[:, None], at[None, :]] = covariance[:, found[:, None], found[None, :]]
        return out

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""
        p = self.n_features
        first, second = np.arange(p)[rows], np.arange(p)[columns]
        total = np.zeros((len(first), len(second)))
        # Tiles cross the diagonal, where the variances of all features are known.
        same = first[:, None] == second[None, :]
        own = np.sqrt(np.square(self.n[:, None] * self.diagonal).sum(axis=0))
        total[same] = own[np.intersect1d(first, second)]
        for members, covariance in zip(self.blocks, self.covariances, strict=True):
            i, at_i = _inside(first, members)
            j, at_j = _inside(second, members)
            if len(i) and len(j):
                part = self.n[:, None, None] * covariance[:, at_i[:, None], at_j[None, :]]
                total[i[:, None], j[None, :]] = np.sqrt(np.square(part).sum(axis=0))
        return total


def _inside(features: Indices, members: Indices) -> tuple[Indices, Indices]:
    """Places of the members among some features, and their places in the block."""
    at = np.minimum(np.searchsorted(members, features), len(members) - 1)
    # searchsorted names a place for features that are not in the block, too.
    found = members[at] == features
    return np.flatnonzero(found), at[found]


@dataclass(frozen=True, eq=False)
class BetweenMoments:
    """What the means of groups of rows add to the pooled moments of classes.

    Parameters
    ----------
    n : ndarray of shape (K,)
        Rows of each class.
    parts : tuple of ndarray of shape (G, p)
        By class: deviations of the groups' means from the mean of the class, times the root of the
        group's number of rows.
    """

    n: FloatArray
    parts: tuple[FloatArray, ...]

    @classmethod
    def of(cls, sizes: FloatArray, means: FloatArray) -> BetweenMoments:
        """Deviations of groups.

        Parameters
        ----------
        sizes : ndarray of shape (G, K)
            Rows by group and class; 0 for a group without rows of the class.
        means : ndarray of shape (G, K, p)
            Where there are rows.
        """
        # The mean of no rows may be anything, NaN too; it has weight 0 and must not spread.
        known = np.where(sizes[:, :, None] > 0, means, 0.0)
        n = sizes.sum(axis=0)
        centre = np.einsum("gk,gkp->kp", sizes, known) / np.maximum(n, 1.0)[:, None]
        # With the root of the rows in each part, a block is one product and never p x p.
        root = np.sqrt(sizes)
        parts = tuple(root[:, [k]] * (known[:, k] - centre[k]) for k in range(len(n)))
        return cls(n, parts)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.parts[0].shape[1])

    @property
    def diagonal(self) -> FloatArray:
        """What the means add to the variances, shape (K, p)."""
        squares = np.stack([np.square(part).sum(axis=0) for part in self.parts])
        return np.asarray(squares / np.maximum(self.n, 1.0)[:, None])

    def block(self, features: Indices) -> FloatArray:
        """What the means add to the covariances among some features, shape (K, q, q)."""
        found = [part[:, features].T @ part[:, features] for part in self.parts]
        return np.stack(found) / np.maximum(self.n, 1.0)[:, None, None]

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of the norms over classes of what the means add to ``n_k S_k,jj'``."""
        squares = sum(np.square(part[:, rows].T @ part[:, columns]) for part in self.parts)
        return np.asarray(np.sqrt(squares))


def pooled(
    sizes: Sequence[float], means: Sequence[FloatArray], sums: Sequence[FloatArray]
) -> tuple[float, FloatArray, FloatArray]:
    """Rows, mean and sums of products about it of several groups together, by a fixed tree.

    Parameters
    ----------
    sizes : sequence of float
        Rows of each group, above 0.
    means : sequence of ndarray of shape (q,)
    sums : sequence of ndarray
        Sums of products about the group's own mean, of shape (q, q), or of squares, of shape (q,).
    """
    parts = list(zip([float(n) for n in sizes], means, sums, strict=True))
    while len(parts) > 1:
        # A tree of pairs, not a running sum: rounding grows with its depth alone.
        paired = [_together(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[len(paired) * 2 :]
    return parts[0]


def _together(
    first: tuple[float, FloatArray, FloatArray], second: tuple[float, FloatArray, FloatArray]
) -> tuple[float, FloatArray, FloatArray]:
    """Two groups (Chan et al. 1983, equation 2.1)."""
    n = first[0] + second[0]
    delta = second[1] - first[1]
    mean = first[1] + delta * (second[0] / n)
    products = delta**2 if first[2].ndim == 1 else np.outer(delta, delta)
    return n, mean, first[2] + second[2] + products * (first[0] * second[0] / n)


def giving_way(
    counts: FloatArray, gaps: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which classes of which sites count, and which columns, so that no gap is left.

    In turn the column, or the class at a site, goes that costs the smaller share (of columns, or of
    rows) for each gap that it closes.

    Parameters
    ----------
    counts : (B, K) array
        Rows of each class at each site.
    gaps : (B, K, p) array of bool
        What is not told.

    Returns
    -------
    used : (B, K) array of bool
    features : (p,) array of bool
    """
    used, features = counts > 0, np.ones(gaps.shape[2], dtype=bool)
    open_ = gaps.copy()
    while open_.any():
        by_column, by_class = open_.sum(axis=(0, 1)), open_.sum(axis=2)
        # What it costs to do without the rows of a class at a site.
        share = counts / max(float((counts * used).sum()), 1.0)
        # A class that no other site has cannot be done without.
        only = used & (used.sum(axis=0) == 1)
        gain = np.where(only, 0.0, by_class / np.maximum(share, 1e-12))
        worst = int(by_column.max())
        if worst * features.sum() >= gain.max():
            gone = by_column == worst
            features[gone] = False
            open_[:, :, gone] = False
        else:
            b, k = np.unravel_index(int(np.argmax(gain)), gain.shape)
            used[b, k] = False
            open_[b, k] = False
    return used, features


def square_of(line: FloatArray, m: int) -> FloatArray:
    """Symmetric matrix of m rows from its upper triangle."""
    square = np.zeros((m, m))
    square[np.triu_indices(m)] = line
    return np.asarray(square + np.triu(square, 1).T)
