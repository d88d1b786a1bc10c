"""Which features a whole path of penalties links, from one pass over the moments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from consilience.discriminant.kernels.joint_precision import ClassMoments


_TILE = 512  # features of one side of a tile


@dataclass(frozen=True, eq=False)
class LinkForest:
    """Spanning forest of the strongest links: it has the components of every larger penalty.

    Attributes
    ----------
    n_features : int
    pairs : (e, 2) array of int
        Features j < j', at most one pair fewer than features.
    norms : (e,) array
        ``|(n_k S_k,jj')_k|_2`` of the pairs.
    """

    n_features: int
    pairs: IntArray
    norms: FloatArray

    @classmethod
    def of(cls, moments: ClassMoments, lam: float) -> LinkForest:
        """Forest of the links above a penalty, tile by tile.

        Parameters
        ----------
        moments : ClassMoments
        lam : float

        Notes
        -----
        Memory is one tile, its links and the forest. The links of a maximum spanning forest that
        exceed a threshold span the components of all links that exceed it (the cycle property), and
        forests of parts may be merged.
        """
        p = moments.n_features
        pairs, norms = np.zeros((0, 2), dtype=np.int64), np.zeros(0)
        cuts = [slice(start, min(start + _TILE, p)) for start in range(0, p, _TILE)]
        for a, rows in enumerate(cuts):
            for columns in cuts[a:]:
                tile = moments.norms(rows, columns)
                linked = tile > lam
                if rows == columns:
                    linked = np.triu(linked, 1)
                i, j = np.nonzero(linked)
                if len(i):
                    more = np.column_stack([i + rows.start, j + columns.start])
                    pairs = np.concatenate([pairs, more])
                    norms = np.concatenate([norms, tile[i, j]])
                    pairs, norms = _spanning(p, pairs, norms)
        return cls(p, pairs, norms)

    def labels(self, lam: float) -> IntArray:
        """Number of each feature's component, (p,)."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        i, j = self.pairs[self.norms > lam].T
        graph = coo_array((np.ones(len(i)), (i, j)), shape=(self.n_features,) * 2)
        return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)

    def largest(self, lam: float) -> int:
        """Features of the largest component."""
        return int(np.bincount(self.labels(lam)).max())

    def critical(self, max_size: int) -> float:
        """Smallest penalty of the forest's links with no larger component; 0 where all have none.

        Parameters
        ----------
        max_size : int
        """
        values = np.concatenate([[0.0], np.unique(self.norms)])
        low, high = 0, len(values) - 1  # at the largest value nothing is linked
        while low < high:
            middle = (low + high) // 2
            if self.largest(float(values[middle])) > max_size:
                low = middle + 1
            else:
                high = middle
        return float(values[high])


def _spanning(p: int, pairs: IntArray, norms: FloatArray) -> tuple[IntArray, FloatArray]:
    """Maximum spanning forest of some links."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    graph = coo_array((-norms, (pairs[:, 0], pairs[:, 1])), shape=(p, p)).tocsr()
    tree = minimum_spanning_tree(graph).tocoo()
    return np.column_stack([tree.row, tree.col]).astype(np.int64), -tree.data


@dataclass(frozen=True, eq=False)
class ScreenedMoments:
    """Moments that remember a forest of links and the covariances of its components.

    For penalties of at least that of the forest they answer as the moments that they stand for,
    without another pass over the rows: tiles hold the links of the forest only.

    Attributes
    ----------
    inner : ClassMoments
    forest : LinkForest
    lam : float
        Smallest penalty that will be asked about.
    """

    inner: ClassMoments
    forest: LinkForest
    lam: float
    _home: IntArray = field(init=False, repr=False)
    _known: dict[int, tuple[IntArray, FloatArray]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        home = self.forest.labels(self.lam)
        object.__setattr__(self, "_home", home)
        object.__setattr__(self, "_known", {})

    @property
    def n(self) -> FloatArray:
        """Rows by class, (K,)."""
        return self.inner.n

    @property
    def n_features(self) -> int:
        """Features m."""
        return self.inner.n_features

    @property
    def diagonal(self) -> FloatArray:
        """Variances, (K, m)."""
        return self.inner.diagonal

    def block(self, features: Any) -> FloatArray:
        """Covariances among features of one component, (K, q, q)."""
        features = np.asarray(features)
        home = int(self._home[features[0]])
        if home not in self._known:
            members = np.flatnonzero(self._home == home)
            self._known[home] = (members, self.inner.block(members))
        members, covariances = self._known[home]
        at = np.searchsorted(members, features)
        return np.ascontiguousarray(covariances[:, at[:, None], at[None, :]])

    def norms(self, rows: slice, columns: slice) -> FloatArray:
        """Tile of the forest's norms; 0 where two features have no link in the forest."""
        first, last = range(self.n_features)[rows], range(self.n_features)[columns]
        tile = np.zeros((len(first), len(last)))
        for i, j in (self.forest.pairs.T, self.forest.pairs.T[::-1]):
            inside = (i >= first.start) & (i < first.stop) & (j >= last.start) & (j < last.stop)
            tile[i[inside] - first.start, j[inside] - last.start] = self.forest.norms[inside]
        return tile
