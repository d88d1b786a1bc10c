"""Second moments of classes, read by tiles, and the features that a penalty links.

A group of entries ``(T_1,jj', ..., T_K,jj')`` of the joint precision matrices can only be other
than zero within the connected components of ``|(n_k S_k,jj')_k|_2 > lam`` (the covariance
thresholding of Witten, Friedman and Simon, JCGS 2011, and Mazumder and Hastie, JMLR 2012, for
groups). So nothing of size p x p is needed before the blocks are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from consilience.exceptions import DataError, ParameterError

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

TILE = 512
"""Features of one side of a tile."""

ROUNDING = 1e-12


class ClassMoments(Protocol):
    """Numbers of rows and covariance matrices of K classes, by blocks and tiles."""

    @property
    def n(self) -> Floats:
        """Rows of each class, shape (K,)."""

    @property
    def n_features(self) -> int:
        """Number of features p."""

    @property
    def diagonal(self) -> Floats:
        """Variances ``S_k,jj`` with divisor n_k, shape (K, p)."""

    def block(self, features: Indices) -> Floats:
        """Covariances among some features, shape (K, q, q)."""

    def norms(self, rows: slice, columns: slice) -> Floats:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""


@dataclass(frozen=True, eq=False)
class RowMoments:
    """Moments that are computed from rows when they are asked for.

    Parameters
    ----------
    n : ndarray of shape (K,)
    means : ndarray of shape (K, p)
    centred : tuple of ndarray of shape (n_k, p)
        Rows of each class minus the mean of the class.
    diagonal : ndarray of shape (K, p)
    """

    n: Floats
    means: Floats
    centred: tuple[Floats, ...]
    diagonal: Floats

    @classmethod
    def of(cls, x: Floats, codes: NDArray[np.integer], n_classes: int) -> RowMoments:
        """Centre the rows of each class.

        Parameters
        ----------
        x : ndarray of shape (n, p)
        codes : ndarray of int of shape (n,)
            Class of each row, 0 to ``n_classes - 1``.
        n_classes : int

        Raises
        ------
        DataError
            Where a class has no row.
        """
        x = np.asarray(x, dtype=np.float64)
        parts = [x[codes == k] for k in range(n_classes)]
        n = np.array([len(part) for part in parts], dtype=np.float64)
        if (n == 0).any():
            raise DataError(f"class {int(np.argmin(n))} has no row: a class needs rows")
        means = np.stack([part.mean(axis=0) for part in parts])
        centred = tuple(part - mean for part, mean in zip(parts, means, strict=True))
        diagonal = np.stack([np.einsum("ij,ij->j", c, c) / len(c) for c in centred])
        return cls(n, means, centred, diagonal)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.means.shape[1])

    def block(self, features: Indices) -> Floats:
        """Covariances among some features, shape (K, q, q)."""
        out = np.empty((len(self.n), len(features), len(features)))
        for k, rows in enumerate(self.centred):
            part = rows if len(features) == self.n_features else rows[:, features]
            np.divide(part.T @ part, self.n[k], out=out[k])
        return out

    def norms(self, rows: slice, columns: slice) -> Floats:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""
        total: Floats | None = None
        for part in self.centred:
            product = part[:, rows].T @ part[:, columns]
            np.square(product, out=product)
            total = product if total is None else np.add(total, product, out=total)
        if total is None:
            raise DataError("there are no classes")
        return np.sqrt(total, out=total)


@dataclass(frozen=True, eq=False)
class MatrixMoments:
    """Moments whose covariance matrices are there, as from several sites.

    Parameters
    ----------
    n : ndarray of shape (K,)
    means : ndarray of shape (K, p)
    covariances : ndarray of shape (K, p, p)
        Divisor ``n_k``.
    """

    n: Floats
    means: Floats
    covariances: Floats

    def __post_init__(self) -> None:
        k, p = self.means.shape
        if self.n.shape != (k,) or self.covariances.shape != (k, p, p):
            raise ParameterError.of(
                "covariances", f"of shape ({k}, {p}, {p})", self.covariances.shape
            )

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.means.shape[1])

    @property
    def diagonal(self) -> Floats:
        """Variances, shape (K, p)."""
        return np.ascontiguousarray(np.diagonal(self.covariances, axis1=1, axis2=2))

    def block(self, features: Indices) -> Floats:
        """Covariances among some features, shape (K, q, q)."""
        part = self.covariances[:, features[:, None], features[None, :]]
        return 0.5 * (part + part.transpose(0, 2, 1))

    def norms(self, rows: slice, columns: slice) -> Floats:
        """Tile of ``|(n_k S_k,jj')_k|_2``."""
        return pair_norms(self.n[:, None, None] * self.covariances[:, rows, columns])


def pair_norms(matrices: Floats) -> Floats:
    """Euclidean norm over the first axis, shape (q, q) of (K, q, q)."""
    return np.sqrt(np.einsum("kij,kij->ij", matrices, matrices))


def _tiles(p: int) -> list[tuple[slice, slice]]:
    """Tiles on and above the diagonal."""
    cuts = [slice(start, min(start + TILE, p)) for start in range(0, p, TILE)]
    return [(a, b) for i, a in enumerate(cuts) for b in cuts[i:]]


def components(moments: ClassMoments, lam: float) -> Indices:
    """Label of the component of each feature, shape (p,), exact.

    Parameters
    ----------
    moments : ClassMoments
    lam : float
        Penalty; features are linked where ``|(n_k S_k,jj')_k|_2 > lam``.

    Notes
    -----
    Memory is one tile, its links, and one label for each feature. Labels follow the smallest
    feature of each component. Norms within rounding of lam count as equal to it, so that the
    largest penalty gives single features however its tiles were added up.
    """
    bound = lam * (1 + ROUNDING)
    labels = np.arange(moments.n_features)
    for rows, columns in _tiles(moments.n_features):
        linked = moments.norms(rows, columns) > bound
        if rows == columns:
            linked = np.triu(linked, 1)
        i, j = np.nonzero(linked)
        if i.size:
            labels = merged(labels, i + rows.start, j + columns.start)
    return labels


def merged(labels: Indices, i: Indices, j: Indices) -> Indices:
    """Labels after the components of ``i`` and ``j`` became one, in order of first features."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    a, b = labels[i], labels[j]
    if (a == b).all():
        return labels
    p = len(labels)
    graph = coo_array((np.ones(len(a), dtype=bool), (a, b)), shape=(p, p))
    _, found = connected_components(graph, directed=False)
    _, first, inverse = np.unique(found[labels], return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return np.asarray(order[inverse], dtype=np.intp)


def largest_penalty(moments: ClassMoments) -> float:
    """Smallest lam with diagonal precision matrices: the largest ``|(n_k S_k,jj')_k|_2``.

    Parameters
    ----------
    moments : ClassMoments
    """
    largest = 0.0
    for rows, columns in _tiles(moments.n_features):
        tile = moments.norms(rows, columns)
        if rows == columns:
            np.fill_diagonal(tile, 0.0)
        largest = max(largest, float(tile.max()))
    return largest
