"""Figures of wide classification: the network of linked features, the tree of communities.

Each `plot_*` takes a fitted estimator or the result of a run and returns a Matplotlib figure, as in
`consilience.report.figures`.

Of a network, what is linked stands together, and nothing is random: each connected part is laid out
by itself, by majorization of the stress between distances on the sheet and numbers of links on the
shortest way (Gansner, Koren and North, *Graph drawing by stress majorization*, Graph Drawing 2004);
then the parts are put on shelves, the largest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from consilience.arrays import FloatArray, IntArray
from consilience.discriminant.report.figures_choice import Network, Tree, network_of, tree_of
from consilience.report import charts

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
    drawn = [_place(part, pairs) for part in parts]
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
    """Places of the nodes of one part about its middle, broader than high."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    q = len(part)
    if q < 3:
        return np.column_stack([np.arange(q) - 0.5 * (q - 1), np.zeros(q)])
    # Links on the shortest way between any two nodes.
    ends = np.searchsorted(part, pairs[np.isin(pairs[:, 0], part)])
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(q, q)).tocsr()
    far = np.asarray(shortest_path(graph, directed=False, unweighted=True), dtype=np.float64)
    # The start is classical scaling, with a sunflower added where that has no two directions.
    centred = far**2 - (far**2).mean(axis=0)
    centred = -0.5 * (centred - centred.mean(axis=1, keepdims=True))
    values, vectors = np.linalg.eigh(centred)
    # The sign of an eigenvector is arbitrary: the entry of largest size is made positive.
    top = vectors[:, -2:][:, ::-1]
    sign = np.sign(top[np.abs(top).argmax(axis=0), [0, 1]])
    scaled = top * sign * np.sqrt(np.maximum(values[-2:][::-1], 0.0))
    turn, radius = np.arange(q) * _GOLDEN, 0.2 * np.sqrt(np.arange(q) + 0.5)
    places = scaled + np.column_stack([np.cos(turn), np.sin(turn)]) * radius[:, None]
    # Majorization: each round solves the normal equations at the present distances.
    weight = np.where(far > 0, far, 1.0) ** -2.0
    np.fill_diagonal(weight, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight, hermitian=True)
    for _ in range(_ROUNDS):
        apart = _distances(places)
        pull = weight * far / np.where(apart > 1e-9, apart, np.inf)
        moved = inverse @ (np.diag(pull.sum(axis=1)) - pull) @ places
        change = float(np.abs(moved - places).max())
        places = moved
        if change < _SETTLED:
            break
    places = places - places.mean(axis=0)
    # A crowded part is drawn larger, so that most nodes are `_APART` from their neighbour.
    apart = _distances(places)
    np.fill_diagonal(apart, np.inf)
    nearest = float(np.quantile(apart.min(axis=1), 0.25))
    places = places * min(max(_APART / max(nearest, 1e-9), 1.0), _MOST_GROWN)
    # The principal axes, the longest across.
    _, _, turned = np.linalg.svd(places, full_matrices=False)
    turned = turned * np.sign(turned[:, :1] + (turned[:, :1] == 0))
    return np.asarray(places @ turned.T)


def _distances(places: FloatArray) -> FloatArray:
    return np.asarray(np.hypot(*(places[:, None, :] - places[None, :, :]).transpose(2, 0, 1)))


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


# --------------------------------------------------------------------------- the figures


MOST_LINKS = 80
"""Links that are drawn; of more, the strongest."""
MOST_LEAVES = 70
"""Leaves of a tree that is drawn; of more features, the last merges."""
_INCHES = 0.66  # of a link; up to _ROOMY where few are to be drawn
_ROOMY = 1.0
_HIGHEST = 6.5
_CUT = 1.4


# --------------------------------------------------------------------------- network


def plot_interactions(fitted: Any, most: int = MOST_LINKS) -> Figure:
    """Draw which features go together within the classes, as a network.

    Parameters
    ----------
    fitted : SparseQDA, FederatedSparseQDA's or SparseQDAStudy's result, or Network
    most : int, default 80
        Links that are drawn, the strongest first.

    Returns
    -------
    matplotlib.figure.Figure
        A line for each pair of features whose precisions are not zero: the broader, the
        stronger. Its colour is that of the class in which the partial correlation is largest; it is
        dashed where that is negative.
    """
    network = network_of(fitted)
    pairs = network.pairs[:most]
    with charts.style():
        if not len(pairs):
            return _nothing("no two features are linked")
        nodes, ends = np.unique(pairs, return_inverse=True)
        ends = ends.reshape(-1, 2)
        layout = _stretched(lay_out(len(nodes), ends))
        most_room = _INCHES if len(nodes) < 5 else _ROOMY
        unit = min(most_room, charts.room() / layout.width, _HIGHEST / layout.height)
        fig, ax = charts.sheet(unit * layout.height + 0.45)
        which, value = (found[: len(pairs)] for found in strongest(network))
        shades, coloured = charts.CLASS_COLOURS, len(network.levels) <= len(charts.CLASS_COLOURS)
        strength = network.strength[: len(pairs)]
        size = np.sqrt(strength / max(float(strength[0]), np.finfo(float).tiny))
        widths = (0.5 + 3.2 * size) * min(1.0, 0.4 + unit / _INCHES)
        colours = [shades[k] if coloured and k >= 0 else charts.BLUE for k in which]
        # The strongest are drawn last, above the others.
        back = slice(None, None, -1)
        lines = LineCollection(
            list(layout.places[ends][back]),
            colors=colours[back],
            linewidths=widths[back],
            linestyles=["--" if v < 0 else "-" for v in value[back]],
            alpha=0.8,
        )
        ax.add_collection(lines)
        _nodes(ax, [network.names[j] for j in nodes], layout.places, unit)
        handles = []
        for k in np.unique(which[which >= 0]) if coloured else ():
            words = charts.label(network.levels[k], 20)
            handles.append(Line2D([], [], color=shades[k], linewidth=2.5, label=words))
        if (value < 0).any():
            style: Any = {"color": charts.MUTED, "linestyle": "--", "linewidth": 1.5}
            handles.append(Line2D([], [], label="negative", **style))
        if handles:
            charts.legend(
                fig,
                handles=handles,
                loc="outside upper left",
                ncols=min(len(handles), 6),
                handlelength=1.8,
                columnspacing=1.4,
                title="partial correlation largest in" * coloured,
                title_fontsize=9,
                alignment="left",
            )
        ax.set_xlim(0, max(layout.width, charts.room() / unit))
        ax.set_ylim(0, layout.height)
        ax.set_aspect("equal", anchor="NW")
        ax.set_axis_off()
    return fig


def _stretched(layout: Layout) -> Layout:
    """Give a narrow sheet in height, and at its sides for names, what it lacks in width."""
    up = charts.WIDTH / charts.room()
    if up == 1:
        return layout
    aside = 0.07 * layout.width
    places = layout.places * (1, up) + (aside, 0)
    return Layout(places, layout.width + 2 * aside, up * layout.height)


def _nothing(words: str) -> Figure:
    fig, ax = charts.sheet(1.0)
    ax.text(0.5, 0.5, words, ha="center", va="center", color=charts.MUTED)
    ax.set_axis_off()
    return fig


def strongest(network: Network) -> tuple[IntArray, FloatArray]:
    """Class in which each link's partial correlation is largest, and that value; -1 and NaN."""
    known = np.isfinite(network.partial)
    size = np.where(known, np.abs(network.partial), -1.0)
    if not size.size:
        return np.full(len(network.pairs), -1), np.full(len(network.pairs), np.nan)
    where = size.argmax(axis=1)
    value = network.partial[np.arange(len(where)), where]
    return np.where(np.isfinite(value), where, -1), value


def _nodes(ax: Axes, names: list[str], places: FloatArray, unit: float) -> None:
    room = unit / _INCHES * charts.WIDTH / charts.room()
    size = 3.0 + 2.5 * min(room, 1.0)
    x, y = places.T
    charts.marks(ax, x, y, "o", charts.PAPER, charts.INK, size, markeredgewidth=0.9)
    letters = 8.5 if room > 0.8 else 7.5 if room > 0.5 else 6.5
    off = 3.5 + 1.2 * min(room, 1.0)
    taken: list[tuple[float, float, float]] = []
    for name, place in zip(names, places, strict=True):
        words = charts.label(name, round(18 * min(1.0, 0.2 + charts.room() / charts.WIDTH)))
        half, (at, y) = 0.29 * letters * len(words), np.asarray(place) * unit * 72

        def crowd(above: float, half: float = half, at: float = at, y: float = y) -> int:
            near = [abs(at - x) < half + h and abs(y + above - v) < letters for x, v, h in taken]
            return sum(near)

        # Above its mark, or below it where fewer names are in the way.
        up, down = off + letters / 2, -off - letters / 2
        above = up if crowd(up) <= crowd(down) else down
        taken.append((at, y + above, half))
        box = {"facecolor": charts.PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.75}
        side = "bottom" if above > 0 else "top"
        beside: Any = {"ha": "center", "va": side, "fontsize": letters, "bbox": box}
        charts.note(ax, words, place, (0, off if above > 0 else -off), **beside)


# --------------------------------------------------------------------------- tree


def plot_dendrogram(fitted: Any) -> Figure:
    """Draw how features are merged into communities, and where the tree is cut.

    Parameters
    ----------
    fitted : CommunityBayesClassifier, FederatedCommunityBayes' or CommunityBayesStudy's result, \
or Tree

    Returns
    -------
    matplotlib.figure.Figure
    """
    tree = tree_of(fitted)
    with charts.style():
        if not len(tree.merges):
            return _nothing("one feature alone makes no tree")
        leaves = min(len(tree.names), max(MOST_LEAVES, min(tree.n_communities, 2 * MOST_LEAVES)))
        drawn = drawn_tree(tree, leaves)
        n = len(drawn.names)
        fig, ax = charts.sheet(0.145 * n + 0.9)
        shades = charts.CLASS_COLOURS
        colours = [charts.MUTED if g < 0 else shades[g % len(shades)] for g in drawn.groups]
        widths = [1.0 if g < 0 else 1.7 for g in drawn.groups]
        ax.add_collection(LineCollection(drawn.lines, colors=colours, linewidths=widths))
        ax.autoscale_view()
        if drawn.cut is not None:
            words = "cut: 1 community" if tree.n_communities == 1 else ""
            words = words or f"cut: {tree.n_communities:,} communities"
            ax.axvline(drawn.cut, color=charts.ORANGE, linewidth=_CUT, linestyle="--", label=words)
        ax.set_yticks(
            range(n), [charts.label(name, 34) for name in drawn.names], fontsize=8 if n > 30 else 9
        )
        ax.set_ylim(n - 0.4, -0.6)
        ax.set_xlim(left=0)
        ax.margins(x=0.02)
        ax.set_xlabel("distance (largest similarity less that of the two)")
        ax.xaxis.set_major_locator(MaxNLocator(6))
        charts.bare(ax)
        if drawn.cut is not None:
            charts.legend(fig, loc="outside upper right", ncols=1)
    return fig


@dataclass(frozen=True, eq=False)
class DrawnTree:
    """A tree as it is drawn, from top to bottom.

    Attributes
    ----------
    names : list of str
        Of the leaves; a leaf of several features has the first of them and their number.
    lines : list of (4, 2) arrays
        One bracket for each merge: distance and place of its ends.
    groups : list of int
        Community of each merge, numbered from the top; -1 beyond the cut.
    cut : float or None
        Distance of the cut; None where there is none to draw.
    """

    names: list[str]
    lines: list[FloatArray]
    groups: list[int]
    cut: float | None


def drawn_tree(tree: Tree, most: int = MOST_LEAVES) -> DrawnTree:
    """Return places of leaves and merges; of many features only the last merges.

    Parameters
    ----------
    tree : Tree
    most : int
        Leaves.
    """
    p, ids = len(tree.names), tree.merges[:, :2].astype(np.int64)
    hidden = max(p - most, 0)
    inside = p - tree.n_communities  # merges within communities
    leaves = np.setdiff1d(np.arange(p + hidden), ids[:hidden]).tolist()
    order: dict[int, list[int]] = {node: [node] for node in leaves}
    for step in range(hidden, p - 1):
        a, b = sorted(ids[step], key=lambda node: (-len(order[node]), order[node][0]))
        order[p + step] = order.pop(a) + order.pop(b)
    (lined,) = order.values()
    place = {node: float(i) for i, node in enumerate(lined)}
    height = {node: tree.merges[node - p, 2] if node >= p else 0.0 for node in lined}
    lines = []
    for step in range(hidden, p - 1):
        a, b = sorted(ids[step].tolist(), key=place.__getitem__)
        far = float(tree.merges[step, 2])
        ends = [(height[a], place[a]), (far, place[a]), (far, place[b]), (height[b], place[b])]
        lines.append(np.array(ends))
        place[p + step], height[p + step] = 0.5 * (place[a] + place[b]), far
    # Community of each drawn merge, -1 beyond the cut.
    parent = np.full(2 * p - 1, -1)
    for step in range(inside):
        parent[ids[step]] = p + step
    groups: list[int] = []
    numbers: dict[int, int] = {}
    for step in range(hidden, p - 1):
        node = p + step
        while parent[node] >= 0:
            node = int(parent[node])
        groups.append(numbers.setdefault(node, len(numbers)) if step < inside else -1)
    # The cut is half way between the last merge within communities and the next.
    heights, cut = tree.merges[:, 2], None
    if inside < len(heights):
        low = float(heights[inside - 1]) if inside else 0.0
        cut = 0.5 * (low + float(heights[inside]))
    elif len(heights):
        cut = float(heights[-1]) * 1.03
    names = []
    for node in lined:
        first = node
        while first >= p:
            first = int(tree.merges[first - p, :2].min())
        if node < p:
            names.append(tree.names[node])
        else:
            others = int(tree.merges[node - p, 3]) - 1
            names.append(f"{charts.short(tree.names[first], 20)} and {others:,} more")
    return DrawnTree(names, lines, groups, cut)
