"""Rows of a table as events of entities of agents, in an order that their values decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.numerics.ids import as_ids, pair_codes

MOST_COPIES = 10_000_000
"""Entities that whole weights of rows may stand for: each is drawn by itself."""


@dataclass(frozen=True, eq=False)
class Events:
    """Rows by agent and entity.

    Attributes
    ----------
    rows : (N,) array of int
        Row of the caller's table of each event.
    weight : (N,) array
    agents : (A,) array of ids, sorted
    agent : (N,) array of int
        Place of each event's agent.
    entity : (N,) array of int
        Number of each event's entity, ascending.
    first : (E,) array of int
        First event of each entity.
    names : (E,) array of ids
        Of the entities; numbers of rows where every row is an entity.
    by_row : bool
        Whether every row is an entity.
    """

    rows: IntArray
    weight: FloatArray
    agents: NDArray[Any]
    agent: IntArray
    entity: IntArray
    first: IntArray
    names: NDArray[Any]
    by_row: bool

    @property
    def owners(self) -> IntArray:
        """Place of each entity's agent, (E,)."""
        return self.agent[self.first]


def events_of(x: FloatArray, y: FloatArray, weight: FloatArray, entity: Any, agent: Any) -> Events:
    """Sort rows by agent, entity and values, so that the order of a table does not matter.

    Where every row is an entity, rows without weight are left out, and whole weights are numbers of
    entities, as if the row were there so often; other weights are parts of one entity's event.

    Parameters
    ----------
    x : (n, p) array
    y : (n,) array
    weight : (n,) array
    entity, agent : (n,) arrays of ids, optional

    Raises
    ------
    DataError
        Ids that cannot be used, no row with a weight, or weights that stand for too many entities.
    """
    n = len(x)
    owners = np.zeros(n, dtype=np.int64) if agent is None else as_ids(agent, n, "agent")
    if entity is None:
        order = np.lexsort((*x.T[::-1], y, owners))
        order = order[weight[order] > 0]
        size = weight[order]
        if (size == np.floor(size)).all():
            if size.sum() > max(n, MOST_COPIES):
                raise DataError(
                    f"sample_weight stands for more than {MOST_COPIES:,} entities of one event: "
                    "give entity, or divide all weights by one number"
                )
            order = np.repeat(order, size.astype(np.int64))
            size = np.ones(len(order))
        members: NDArray[Any] = np.arange(len(order))
    else:
        known = as_ids(entity, n, "entity")
        # y alone leaves ties, and the order of a sum is seen in its last digit
        order = np.lexsort((weight, *x.T[::-1], y, known, owners))
        size, members = weight[order], known[order]
    if not (size > 0).any():
        raise DataError("no row has a positive weight: nothing can be fitted")
    agents, places = np.unique(owners[order], return_inverse=True)
    codes, first = pair_codes(places.astype(np.int64), members)
    names = order[first] if entity is None else members[first]
    return Events(order, size, agents, places.astype(np.int64), codes, first, names, entity is None)
