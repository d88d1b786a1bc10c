"""Communities of features: a tree from rank correlations by class, cut into any number of parts.

Sources: Le and Hastie, *Sparse quadratic discriminant analysis and community Bayes*,
arXiv 1407.4543, the section on community Bayes; for what rank correlations say of a correlation
under monotone transforms, Liu, Han, Yuan, Lafferty and Wasserman, *High-dimensional semiparametric
Gaussian copula graphical models*, Annals of Statistics 40 (2012), section 4: the nonparanormal
SKEPTIC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError


def spearman(x: ArrayLike) -> FloatArray:
    """Spearman's correlations of the columns.

    Parameters
    ----------
    x : (n, p) array
        Finite numbers; at least one row.

    Returns
    -------
    (p, p) array
        Correlations of average ranks. A constant column has no rank correlation: its row and its
        column are 0, on the diagonal too. With one row all are 0.

    Raises
    ------
    DataError
        No table of finite numbers.
    """
    rows = np.asarray(x, dtype=np.float64)
    if rows.ndim != 2 or not len(rows) or not np.isfinite(rows).all():
        raise DataError("rank correlations need a table of finite numbers with one row or more")
    ranks, norms = unit_ranks(rows)
    found = ranks.T @ ranks
    np.clip(found, -1.0, 1.0, out=found)
    np.fill_diagonal(found, (norms > 0).astype(float))
    return np.asarray(found)


def unit_ranks(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centred average ranks by column, of length 1 unless constant, and their former lengths."""
    from scipy.stats import rankdata

    # Ranks are multiples of one half, so a constant column is exactly 0 after centring.
    ranks = rankdata(rows, axis=0) - (len(rows) + 1) / 2.0
    norms = np.sqrt((ranks**2).sum(axis=0))
    return ranks / np.where(norms > 0, norms, 1.0), norms


def skeptic(rho: ArrayLike) -> FloatArray:
    """Correlation of normal scores behind a Spearman correlation: ``2 sin(pi/6 rho)``.

    Parameters
    ----------
    rho : (p, p) array
        Within [-1, 1].

    Returns
    -------
    (p, p) array
        With a unit diagonal.
    """
    found = np.pi / 6.0 * np.asarray(rho, dtype=np.float64)
    np.sin(found, out=found)
    found *= 2.0
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


# --------------------------------------------------------------------------- communities


Linkage = Literal["average", "complete", "single"]

_DIGITS = 12  # of the largest similarity: what is below is rounding of sums


def similarity(correlations: Iterable[ArrayLike], n: ArrayLike) -> FloatArray:
    """How strongly two features are correlated within classes: ``|(n_k R_k,ij)_k|_2``.

    Parameters
    ----------
    correlations : iterable of K (p, p) arrays
        By class; taken one after the other, so that a generator holds one at a time.
    n : (K,) array
        Rows of each class.

    Returns
    -------
    (p, p) array

    Raises
    ------
    ParameterError
        Another number of classes.
    """
    weights = np.asarray(n, dtype=np.float64)
    found: FloatArray | None = None
    seen = 0
    for matrix in correlations:
        if seen == len(weights):
            raise ParameterError("there are more correlation matrices than numbers of rows")
        part = weights[seen] * np.asarray(matrix, dtype=np.float64)
        part *= part
        if found is None:
            found = part
        else:
            found += part
        seen += 1
        del matrix, part  # or they would be held while the generator makes the next one
    if found is None or seen != len(weights):
        raise ParameterError("there must be one correlation matrix for each number of rows")
    return np.sqrt(found, out=found)


def linkage_tree(similar: ArrayLike, linkage: Linkage = "average") -> FloatArray:
    """Hierarchical clustering of features on the distance ``max - similarity``.

    Parameters
    ----------
    similar : (p, p) array
        Symmetric; its diagonal is not used.
    linkage : {"average", "complete", "single"}

    Returns
    -------
    (p - 1, 4) array
        As in scipy: the two nodes that are merged, their distance, features in the new node.
        Nodes 0 to p - 1 are the features, p + s is the result of merge s; distances ascend.

    Raises
    ------
    ParameterError
        Another linkage.
    DataError
        No square matrix of finite numbers.

    Notes
    -----
    Distances are rounded to twelve digits of the largest one, so that equal features stay equal
    however sums were formed.
    """
    if linkage not in get_args(Linkage):
        raise ParameterError.of("linkage", f"one of {get_args(Linkage)}", linkage)
    matrix = np.asarray(similar, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise DataError("a similarity must be a square matrix of finite numbers")
    p = len(matrix)
    if p < 2:
        return np.zeros((0, 4))
    from scipy.cluster.hierarchy import linkage as scipy_linkage

    distance = matrix[np.triu(np.ones((p, p), dtype=bool), 1)]
    top = float(distance.max())
    unit = top if top > 0 else 1.0
    np.subtract(top, distance, out=distance)
    distance /= unit
    np.round(distance, _DIGITS, out=distance)
    distance *= unit
    return np.asarray(scipy_linkage(distance, method=linkage))


def cut_nodes(tree: FloatArray, n_communities: int) -> tuple[int, ...]:
    """Nodes that are left after the first ``p - L`` merges, by the first feature of each.

    Parameters
    ----------
    tree : (p - 1, 4) array
        From `linkage_tree`.
    n_communities : int
        L, from 1 to p.

    Returns
    -------
    tuple of L int
        Numbered as in the tree: the same node is the same community in every cut.

    Raises
    ------
    ParameterError
        L is out of its range.
    """
    p = len(tree) + 1
    if not 1 <= n_communities <= p:
        raise ParameterError.of("n_communities", f"from 1 to {p} features", n_communities)
    # Nodes that are there, with their first feature.
    first = {node: node for node in range(p)}
    for step, (a, b) in enumerate(tree[: p - n_communities, :2].astype(np.int64).tolist()):
        first[p + step] = min(first.pop(a), first.pop(b))
    return tuple(sorted(first, key=first.__getitem__))


def members(tree: FloatArray, node: int) -> IntArray:
    """Features of a node, ascending.

    Parameters
    ----------
    tree : (p - 1, 4) array
    node : int
        From 0 to 2p - 2.

    Returns
    -------
    (q,) array of int

    Raises
    ------
    ParameterError
        There is no such node.
    """
    p = len(tree) + 1
    if not 0 <= node <= 2 * p - 2:
        raise ParameterError.of("node", f"from 0 to {2 * p - 2}", node)
    # From the node down to its leaves.
    found, open_nodes = [], [node]
    while open_nodes:
        at = open_nodes.pop()
        if at < p:
            found.append(at)
        else:
            open_nodes.extend(tree[at - p, :2].astype(np.int64).tolist())
    return np.array(sorted(found), dtype=np.int64)


def cut(tree: FloatArray, n_communities: int) -> tuple[IntArray, ...]:
    """Communities when the tree is cut into L of them.

    Parameters
    ----------
    tree : (p - 1, 4) array
    n_communities : int
        L, from 1 to p.

    Returns
    -------
    tuple of L arrays of int
        Features of each community, ascending; communities by their first feature.

    Raises
    ------
    ParameterError
        L is out of its range.
    """
    return tuple(members(tree, node) for node in cut_nodes(tree, n_communities))
