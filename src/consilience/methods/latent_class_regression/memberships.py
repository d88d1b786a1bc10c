"""In which class each entity is counted in what a site sends: not always the one just drawn.

Sums by class are sent again in every round. Records that were in the same classes in *every*
release cannot be told apart by any sums and differences of releases; records with different
histories can. So a site lets entities move between released classes only in groups: all entities of
one history that move the same way must hold at least `min_records` events of `min_entities`
entities, and so must those that stay behind. Whoever cannot go with others of the same history is
left out with others: sums of mixed company would blur the classes. A class that would be too small
for its sums to leave is left out until it has grown. The sum of all events comes first, so what is
left out must be large too: it is the rest of that sum.

The gate checks the same by itself and would repeat old sums; it never has to, since what is sent
here keeps its rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from consilience.wire.disclosure import Limits

IntArray = NDArray[np.int64]

EMPTY, NEW, AS_BEFORE, WITHHELD = range(4)
DISTURBING = 0.1
"""Share of events of other classes that the sums of a class may hold for the sake of company."""
UNSEEN = 0
"""History of entities that were in no sum so far, not even in that of all."""


def next_released(
    labels: IntArray,
    released: IntArray,
    groups: IntArray,
    events: IntArray,
    *,
    limits: Limits,
    least: int,
) -> IntArray:
    """Class in which each entity is counted in the next release.

    Parameters
    ----------
    labels : (E,) int array
        Classes as drawn; -1 for none.
    released : (E,) int array
        Class in the last release; -1 where it was in none.
    groups : (E,) int array
        History of each entity (see :func:`next_groups`); 0 was never in any sum.
    events : (E,) int array
        Records of each entity in the sums.
    limits : Limits
    least : int
        Records that the sums of a class need.

    Returns
    -------
    (E,) int array
        -1 leaves an entity out.
    """
    wanted = np.where(events > 0, labels, -1)
    if limits.min_records <= 1:
        return wanted
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for members in np.split(order, edges[1:]):
        unseen = groups[members[0]] == UNSEEN
        wanted[members] = _moves(wanted[members], events[members], limits, unseen=unseen)
    return without_small(wanted, events, limits, least)


def _moves(wanted: IntArray, events: IntArray, limits: Limits, *, unseen: bool) -> IntArray:
    """Where the entities of one history go."""
    kinds, part = np.unique(wanted, return_inverse=True)
    part = part.ravel()
    size = np.bincount(part, weights=events)
    large = (size >= limits.min_records) & (np.bincount(part) >= limits.min_entities)
    if large.all():
        return wanted
    rest = ~large[part]
    alone = events[rest].sum() >= limits.min_records and rest.sum() >= limits.min_entities
    if unseen or alone:
        return np.where(rest, -1, wanted)
    # They need company: the biggest part where they hardly disturb it, or else to leave a part out.
    biggest = int(np.argmax(np.where(large, size, -1.0)))
    if events[rest].sum() <= DISTURBING * size[biggest]:
        return np.where(rest, kinds[biggest], wanted)
    smallest = int(np.argmin(np.where(large, size, np.inf)))
    return np.where(rest | (part == smallest), -1, wanted)


def without_small(released: IntArray, events: IntArray, limits: Limits, least: int) -> IntArray:
    """Leave out classes whose sums would rest on too few records or entities."""
    used = released >= 0
    if not used.any():
        return released
    size = np.bincount(released[used], weights=events[used])
    entities = np.bincount(released[used])
    small = (size < least) | (entities < limits.min_entities)
    return np.where(used & small[np.where(used, released, 0)], -1, released)


def next_groups(groups: IntArray, released: IntArray) -> IntArray:
    """Histories after a release: 0 for entities that no release has seen.

    Parameters
    ----------
    groups : (E,) int array
        Before it.
    released : (E,) int array
        Class of each entity in it.
    """
    code = groups * (int(released.max(initial=-1)) + 2) + released + 1
    unseen = (groups == UNSEEN) & (released < 0)
    inverse = np.unique(code, return_inverse=True)[1].ravel() + 1
    return np.where(unseen, UNSEEN, inverse)


def status_of(released: IntArray, before: IntArray, withheld: IntArray, n_cells: int) -> IntArray:
    """What the sums of each class are: 0 empty, 1 new, 2 as before, 3 withheld."""
    found = np.full(n_cells, EMPTY, dtype=np.int64)
    for k in np.unique(released[released >= 0]):
        same = np.array_equal(released == k, before == k)
        found[k] = AS_BEFORE if same else NEW
    found[withheld] = WITHHELD
    return found
