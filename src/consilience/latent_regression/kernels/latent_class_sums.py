"""Sums behind latent class regression: of the events of an entity, and of the entities of a class.

A regression in latent classes (Yang, Carette, Jimbo, Maruyama, arXiv 2206.10783) sees the events of
an entity only through ``S = X'X``, ``r = X'y``, ``q = y'y`` and their number, and a class only
through the sums of these over its entities. The sums are kept unscaled, so that the noise and the
scale of the prior may change without reading the events again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError, ParameterError


@dataclass(frozen=True, eq=False)
class Blocks:
    """Events by entity, entities sorted by agent and then by first appearance.

    Attributes
    ----------
    products : (E, F, F) array
        ``X'WX`` of each entity, W the frequency weights.
    cross : (E, F) array
        ``X'Wy``.
    squares : (E,) array
        ``y'Wy``.
    n : (E,) array
        Sum of the weights: events; 0 for an entity without an outcome.
    agent : (E,) int array
        Position of the agent of each entity, non-decreasing, ``0 .. n_agents - 1``.
    n_agents : int
    x : (N, F) array
        Rows with an outcome in the order of the entities, times the root of their weight.
    y : (N,) array
        Outcomes, times the root of the weight.
    start : (E + 1,) int array
        Rows of entity e are ``start[e]:start[e + 1]``.
    order : (N,) int array
        Row of the caller's table of each row here.
    entity : (rows,) int array
        Position of the entity of each row of the caller's table.
    """

    products: FloatArray
    cross: FloatArray
    squares: FloatArray
    n: FloatArray
    agent: IntArray
    n_agents: int
    x: FloatArray
    y: FloatArray
    start: IntArray
    order: IntArray
    entity: IntArray

    @property
    def n_entities(self) -> int:
        """Number of entities, E."""
        return int(self.n.size)

    @property
    def n_features(self) -> int:
        """Columns of the design, F."""
        return int(self.cross.shape[1])

    @property
    def agent_start(self) -> IntArray:
        """Entities of agent i are ``agent_start[i]:agent_start[i + 1]``, shape (A + 1,)."""
        return np.searchsorted(self.agent, np.arange(self.n_agents + 1)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums by class, unscaled.

    Attributes
    ----------
    products : (K, F, F) array
        Sum of the entities' ``products``.
    cross : (K, F) array
    squares : (K,) array
    n : (K,) array
        Events, weights summed.
    counts : (K,) array
        Entities; not whole numbers once sums were averaged over rounds.
    """

    products: FloatArray
    cross: FloatArray
    squares: FloatArray
    n: FloatArray
    counts: FloatArray

    @staticmethod
    def zeros(n_classes: int, n_features: int) -> Totals:
        """Totals of nothing."""
        k, f = n_classes, n_features
        return Totals(np.zeros((k, f, f)), np.zeros((k, f)), np.zeros(k), np.zeros(k), np.zeros(k))

    @property
    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Products, cross, squares, n and counts."""
        return self.products, self.cross, self.squares, self.n, self.counts

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return int(self.counts.size)

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(a + b for a, b in zip(self.arrays, other.arrays, strict=True)))

    def __sub__(self, other: Totals) -> Totals:
        return Totals(*(a - b for a, b in zip(self.arrays, other.arrays, strict=True)))

    def __mul__(self, factor: float) -> Totals:
        return Totals(*(a * factor for a in self.arrays))

    __rmul__ = __mul__

    def take(self, classes: ArrayLike) -> Totals:
        """Totals of some classes, in the order asked for."""
        index = np.asarray(classes, dtype=np.int64)
        return Totals(*(a[index] for a in self.arrays))

    def merged(self, mapping: ArrayLike, n_classes: int) -> Totals:
        """Totals after class k became class ``mapping[k]``; a negative one drops the class."""
        index = np.asarray(mapping, dtype=np.int64)
        if index.shape != self.counts.shape or (index >= n_classes).any():
            raise ParameterError.of("mapping", f"a class below {n_classes} for each class", mapping)
        total = Totals.zeros(n_classes, self.cross.shape[1])
        for source, target in enumerate(index):  # in order of the classes: one answer
            if target >= 0:
                for into, part in zip(total.arrays, self.arrays, strict=True):
                    into[target] += part[source]
        return total


def blocks_of(
    x: ArrayLike,
    y: ArrayLike,
    entity: ArrayLike,
    agent: ArrayLike,
    weight: ArrayLike | None = None,
) -> Blocks:
    """Sums of the events of each entity.

    Parameters
    ----------
    x : (rows, F) array
        Design, with its column of ones where an intercept is wanted.
    y : (rows,) array
        Outcomes; NaN: no outcome, the event is left out of all sums but its entity exists.
    entity, agent : (rows,) int arrays
        Codes; those of agents are the positions ``0 .. A - 1``. The same entity code under two
        agents is two entities.
    weight : (rows,) array, optional
        Frequency weights, not negative.

    Raises
    ------
    DataError
        Shapes differ, a feature or a weight is not a finite number, a weight or an agent is
        negative, or an outcome is infinite.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    entity_code = np.asarray(entity, dtype=np.int64)
    agent_code = np.asarray(agent, dtype=np.int64)
    rows = y.shape[0]
    weight = np.ones(rows) if weight is None else np.asarray(weight, dtype=np.float64)
    _check_table(x, y, entity_code, agent_code, weight)

    position, entity_agent = _entities(entity_code, agent_code)
    used = np.flatnonzero(~np.isnan(y) & (weight > 0))
    order = used[np.argsort(position[used], kind="stable")].astype(np.int64)
    n_entities = entity_agent.size
    start = np.searchsorted(position[order], np.arange(n_entities + 1)).astype(np.int64)
    root = np.sqrt(weight[order])
    scaled_x = np.ascontiguousarray(x[order] * root[:, None])
    scaled_y = y[order] * root

    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    f = x.shape[1]
    products, cross = np.zeros((n_entities, f, f)), np.zeros((n_entities, f))
    squares, n = np.zeros(n_entities), np.zeros(n_entities)
    kernels.sum_blocks(scaled_x, scaled_y, weight[order], start, products, cross, squares, n)
    return Blocks(
        products=products,
        cross=cross,
        squares=squares,
        n=n,
        agent=entity_agent,
        n_agents=int(agent_code.max(initial=-1)) + 1,
        x=scaled_x,
        y=scaled_y,
        start=start,
        order=order,
        entity=position,
    )


def _check_table(
    x: FloatArray, y: FloatArray, entity: IntArray, agent: IntArray, weight: FloatArray
) -> None:
    rows = y.shape[0]
    if y.ndim != 1 or x.ndim != 2 or x.shape[0] != rows:
        raise DataError("features and target of a latent class regression need one row an event")
    if not all(a.shape == (rows,) for a in (entity, agent, weight)):
        raise DataError("entity, agent and weight need one value for each event")
    if not np.isfinite(x).all():
        raise DataError("the features hold a missing or infinite value: drop or fill those events")
    if np.isinf(y).any():
        raise DataError("the target holds an infinite value: drop or correct those events")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise DataError("the weights of events must be finite and not negative")
    if (agent < 0).any():
        raise DataError("codes of agents must be positions from 0 on")


def _entities(entity: IntArray, agent: IntArray) -> tuple[IntArray, IntArray]:
    """Position of the entity of each row, and the agent of each entity."""
    by_code = np.lexsort((entity, agent))
    a, e = agent[by_code], entity[by_code]
    new = np.ones(a.size, dtype=bool)
    new[1:] = (a[1:] != a[:-1]) | (e[1:] != e[:-1])
    group = np.empty(a.size, dtype=np.int64)
    group[by_code] = np.cumsum(new) - 1
    first = by_code[new]  # lexsort is stable: the first row of each entity
    by_place = np.lexsort((first, a[new]))
    rank = np.empty(by_place.size, dtype=np.int64)
    rank[by_place] = np.arange(by_place.size)
    return rank[group], a[new][by_place].astype(np.int64)


def totals_of(
    blocks: Blocks, labels: ArrayLike, n_classes: int, where: ArrayLike | None = None
) -> Totals:
    """Sums by class: within each agent in the order of its entities, agents by :func:`tree_sum`.

    Parameters
    ----------
    blocks : Blocks
    labels : (E,) int array
        Class of each entity; -1: in none.
    n_classes : int
    where : (E,) bool array, optional
        Entities to count; all of them unless given.

    Raises
    ------
    ParameterError
        The labels are not one class below `n_classes` for each entity.
    """
    label = checked_labels(labels, blocks.n_entities, n_classes)
    if where is not None:
        label = np.where(np.asarray(where, dtype=bool), label, -1)

    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    f = blocks.n_features
    sums = kernels.sum_classes(kernel_events(blocks), blocks.agent_start, label, n_classes)
    return Totals(
        products=sums[:, : f * f].reshape(n_classes, f, f),
        cross=sums[:, f * f : -3].copy(),
        squares=sums[:, -3].copy(),
        n=sums[:, -2].copy(),
        counts=sums[:, -1].copy(),
    )


def kernel_events(blocks: Blocks) -> Any:
    """Blocks as compiled code takes them."""
    from consilience.latent_regression.kernels import latent_class_kernels as kernels

    b = blocks
    return kernels.Events(
        products=plain(b.products),
        cross=plain(b.cross),
        squares=plain(b.squares),
        n=plain(b.n),
        x=plain(b.x),
        y=plain(b.y),
        start=plain(b.start, np.int64),
    )


def plain(values: ArrayLike, kind: Any = np.float64) -> NDArray[Any]:
    """An array in row order that may be written: other kinds would be compiled for anew."""
    return np.require(values, kind, ["C", "W"])


def checked_labels(labels: ArrayLike, n_entities: int, n_classes: int) -> IntArray:
    """Labels as integers, one for each entity, from -1 to ``n_classes - 1``."""
    label = plain(labels, np.int64)
    if label.shape != (n_entities,) or (
        label.size and (label.min() < -1 or label.max() >= n_classes)
    ):
        raise ParameterError.of(
            "labels", f"one class from -1 to {n_classes - 1} for each entity", label.shape
        )
    return label


def tree_sum(parts: Sequence[FloatArray]) -> FloatArray:
    """Sum arrays pairwise: neighbours first, then neighbouring sums, an odd last one as it is.

    The order of the additions depends on the number of parts alone. The sum over 2^a neighbouring
    parts that start at a multiple of 2^a is a node of the tree, whoever computes it.

    Raises
    ------
    ParameterError
        There is nothing to add.
    """
    level = list(parts)
    if not level:
        raise ParameterError.of("parts", "at least one array", 0)
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return np.array(level[0])
