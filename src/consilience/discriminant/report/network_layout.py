"""Places of the nodes of a network on a sheet: what is linked stands together, nothing is random.

Each connected part is laid out by itself, by majorization of the stress between distances on the
sheet and numbers of links on the shortest way (Gansner, Koren and North, *Graph drawing by stress
majorization*, Graph Drawing 2004); then the parts are put on shelves, the largest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consilience.arrays import FloatArray, IntArray

_ROUNDS = 150
_SETTLED = 1e-4
_APART = 0.9
_MOST_GROWN = 4.0
_GOLDEN = np.pi * (3.0 - np.sqrt(5.0))
MARGIN = (0.55, 0.35)
"""Room around a part for names, across and up, where a link is 1 long."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of nodes.

    Attributes
    ----------
    places : (n, 2) array
        Where a link is 1 long.
    width, height : float
        Of the sheet, from 0 on.
    """

    places: FloatArray
    width: float
    height: float


def lay_out(n: int, pairs: IntArray, widest: float = 11.0, highest: float = 9.0) -> Layout:
    """Return places of nodes, each of which has a link.

    Parameters
    ----------
    n : int
        Number of nodes.
    pairs : (m, 2) int array
        Links.
    widest : float
        A wider sheet is taken only where a part needs it, or a higher one than `highest`.
    highest : float

    Returns
    -------
    Layout
    """
    parts = connected(n, pairs)
    drawn = [_upright(_place(part, pairs)) for part in parts]
    width = widest
    while True:
        shelved = _shelves(drawn, width)
        if shelved.height <= highest * width / widest:
            break
        width *= 1.15
    places = np.zeros((n, 2))
    places[np.concatenate(parts) if parts else np.empty(0, dtype=int)] = shelved.places
    return Layout(places, shelved.width, shelved.height)


def connected(n: int, pairs: IntArray) -> list[IntArray]:
    """Return the connected parts, the largest first."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n, n))
    count, labels = connected_components(graph, directed=False)
    parts = [np.flatnonzero(labels == part) for part in range(count)]
    return sorted(parts, key=lambda part: (-len(part), int(part[0])))


def _place(part: IntArray, pairs: IntArray) -> FloatArray:
    """Places of the nodes of one part, about its middle."""
    q = len(part)
    if q < 3:
        return np.column_stack([np.arange(q) - 0.5 * (q - 1), np.zeros(q)])
    far = _ways(part, pairs)
    places = _beginning(far)
    weight = np.where(far > 0, far, 1.0) ** -2.0
    np.fill_diagonal(weight, 0.0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    for _ in range(_ROUNDS):
        apart = np.hypot(*(places[:, None, :] - places[None, :, :]).transpose(2, 0, 1))
        pull = weight * far / np.where(apart > 1e-9, apart, np.inf)
        moved = inverse @ (np.diag(pull.sum(axis=1)) - pull) @ places
        change = float(np.abs(moved - places).max())
        places = moved
        if change < _SETTLED:
            break
    return _roomy(places - places.mean(axis=0))


def _roomy(places: FloatArray) -> FloatArray:
    """Draw a crowded part larger, so that most nodes are `_APART` from their neighbour."""
    apart = np.hypot(*(places[:, None, :] - places[None, :, :]).transpose(2, 0, 1))
    np.fill_diagonal(apart, np.inf)
    nearest = float(np.quantile(apart.min(axis=1), 0.25))
    grown = min(max(_APART / max(nearest, 1e-9), 1.0), _MOST_GROWN)
    return np.asarray(places * grown)


def _ways(part: IntArray, pairs: IntArray) -> FloatArray:
    """Number of links on the shortest way between any two nodes of a part."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    q = len(part)
    inside = np.isin(pairs[:, 0], part)
    ends = np.searchsorted(part, pairs[inside])
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(q, q)).tocsr()
    return np.asarray(shortest_path(graph, directed=False, unweighted=True), dtype=np.float64)


def _beginning(far: FloatArray) -> FloatArray:
    """Classical scaling, with a sunflower added where that has no two directions."""
    q = len(far)
    centred = far**2 - (far**2).mean(axis=0)
    centred = -0.5 * (centred - centred.mean(axis=1, keepdims=True))
    values, vectors = np.linalg.eigh(centred)
    # The sign of an eigenvector is arbitrary: the entry of largest size is made positive.
    top = vectors[:, -2:][:, ::-1]
    sign = np.sign(top[np.abs(top).argmax(axis=0), [0, 1]])
    scaled = top * sign * np.sqrt(np.maximum(values[-2:][::-1], 0.0))
    turn = np.arange(q) * _GOLDEN
    radius = 0.2 * np.sqrt(np.arange(q) + 0.5)
    sunflower = np.column_stack([np.cos(turn), np.sin(turn)]) * radius[:, None]
    return np.asarray(scaled + sunflower)


def _upright(places: FloatArray) -> FloatArray:
    """Turn a part so that it is broader than high."""
    if len(places) < 3:
        return places
    _, _, turned = np.linalg.svd(places, full_matrices=False)
    turned = turned * np.sign(turned[:, :1] + (turned[:, :1] == 0))
    return np.asarray(places @ turned.T)


def _shelves(parts: Sequence[FloatArray], width: float) -> Layout:
    """Put parts one beside the other, from the top down."""
    found: list[FloatArray] = []
    across, down, tallest, broadest = 0.0, 0.0, 0.0, 0.0
    for part in parts:
        size = part.max(axis=0) - part.min(axis=0) + 2.0 * np.asarray(MARGIN)
        if across > 0 and across + size[0] > width:
            across, down, tallest = 0.0, down + tallest, 0.0
        corner = np.array([across, -down - size[1]]) + MARGIN
        found.append(part - part.min(axis=0) + corner)
        across, tallest = across + size[0], max(tallest, float(size[1]))
        broadest = max(broadest, across)
    height = down + tallest
    places = np.concatenate(found) if found else np.empty((0, 2))
    return Layout(places + np.array([0.0, height]), broadest, height)
