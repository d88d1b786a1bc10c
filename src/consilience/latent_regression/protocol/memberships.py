"""In which class each entity is counted in what a site sends: not always the one just drawn.

Sums by class are sent again in every round. Records that were in the same classes in *every*
release cannot be told apart by any sums and differences of releases; records with different
histories can. So a site lets entities move between released classes only in groups: all entities of
one history that move the same way must be many enough that *their* class sums could leave by
themselves (events, entities, no cell that rests on few or on one), and so must those that stay
behind. Whoever cannot go with others of the same history is left out with others: sums of mixed
company would blur the classes. The sum of all events comes first, so what is left out must be large
too: it is the rest of that sum.

Whatever is computed from the releases of a run, as sums and differences with any weights, is then
made of sums of such groups: the proof, and what it does not cover, is in docs/proofs/class-sums.md.
The gate checks the same by itself and would repeat old sums; it never has to, since what is sent
here keeps its rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import FloatArray, IntArray

Enough = Callable[[IntArray], bool]
"""Whether the class sums of these entities (positions) could leave by themselves."""

EMPTY, NEW, AS_BEFORE, WITHHELD = range(4)
DISTURBING = 0.1
"""Share of events of other classes that the sums of a class may hold for the sake of company."""
AT_HOME = 0.05
"""Probability of a class below which it is out of the question for an entity."""
TURN = 0.2
"""Chance of an entity to take a new label in a round."""
UNSEEN = 0
"""History of entities that were in no sum so far, not even in that of all."""


def worth_moving(
    before: IntArray,
    drawn: IntArray,
    probabilities: FloatArray,
    turn: NDArray[np.bool_],
) -> IntArray:
    """Class in which each entity should be counted, where every move costs company.

    While there are more classes than needed, labels go to and fro between those that are alike, and
    uncertain ones do so for ever: histories would be used up by moves that tell nothing. So a drawn
    label is kept for some rounds. Sums of labels drawn some rounds ago are as right on average as
    those of labels drawn now; sums of likeliest labels would not be.

    Parameters
    ----------
    before : (E,) int array
        Class in the last release; -1 where it was in none.
    drawn : (E,) int array
        Labels of this round.
    probabilities : (E, K) array
        From which they were drawn.
    turn : (E,) bool array
        Entities that take their new label in this round, by chance.

    Returns
    -------
    (E,) int array
        The new label where it is the entity's turn, or where the class of before is out of the
        question; the class of before elsewhere.
    """
    home = probabilities[np.arange(len(before)), np.maximum(before, 0)]
    stays = (before >= 0) & ~turn & (home >= AT_HOME)
    return np.where(stays, before, drawn)


def next_released(
    labels: IntArray, groups: IntArray, events: IntArray, enough: Enough | None
) -> IntArray:
    """Class in which each entity is counted in the next release.

    Parameters
    ----------
    labels : (E,) int array
        Classes as drawn; -1 for none.
    groups : (E,) int array
        History of each entity, as the gate remembers it; 0 was never in any sum.
    events : (E,) int array
        Records of each entity in the sums.
    enough : callable or None
        What a group must be; None where no record is protected.

    Returns
    -------
    (E,) int array
        -1 leaves an entity out. Asked again, with its own answer among the histories, it says the
        same.
    """
    wanted = np.where(events > 0, labels, -1)
    if enough is None:
        return wanted
    present = np.flatnonzero(events > 0)
    order = present[np.argsort(groups[present], kind="stable")]
    edges = np.flatnonzero(np.diff(groups[order], prepend=-1))
    for members in np.split(order, edges[1:]) if len(order) else ():
        wanted[members] = _moves(wanted[members], members, events[members], enough, groups)
    return wanted


def _moves(
    wanted: IntArray, members: IntArray, events: IntArray, enough: Enough, groups: IntArray
) -> IntArray:
    """Where the entities of one history go."""
    unseen = groups[members[0]] == UNSEEN
    kinds, part = np.unique(wanted, return_inverse=True)
    part = part.ravel()
    if len(kinds) == 1 and not unseen:
        return wanted  # as a whole it was enough when it came about
    large = np.array([enough(members[part == k]) for k in range(len(kinds))])
    if large.all():
        return wanted
    rest = ~large[part]
    if unseen or enough(members[rest]):
        return np.where(rest, -1, wanted)
    # They need company: a big part where they hardly disturb it, or else others are left out.
    size = np.where(large, np.bincount(part, weights=events), -1.0)
    by_size = np.argsort(size, kind="stable")[np.sum(~large) :]
    for k in by_size[::-1]:
        joined = rest | (part == k)
        if events[rest].sum() <= DISTURBING * size[k] and enough(members[joined]):
            return np.where(joined, kinds[k], wanted)
    for k in by_size:
        rest = rest | (part == k)
        if enough(members[rest]):
            break
    return np.where(rest, -1, wanted)


def withheld_classes(
    labels: IntArray, released: IntArray, events: IntArray, enough: Enough | None
) -> IntArray:
    """Classes that enough entities are in, and of which no sum leaves all the same.

    Classes of fewer are not mentioned: whether there is anybody in a class of a coordinator's own
    making is a question about single entities.
    """
    drawn = np.where(events > 0, labels, -1)
    wanted = np.setdiff1d(np.unique(drawn[drawn >= 0]), released)
    if enough is None:
        return wanted
    return np.array([k for k in wanted if enough(np.flatnonzero(drawn == k))], dtype=np.int64)


def status_of(released: IntArray, before: IntArray, withheld: IntArray, n_cells: int) -> IntArray:
    """What the sums of each class are: 0 empty, 1 new, 2 as before, 3 withheld."""
    found = np.full(n_cells, EMPTY, dtype=np.int64)
    for k in np.unique(released[released >= 0]):
        same = np.array_equal(released == k, before == k)
        found[k] = AS_BEFORE if same else NEW
    found[withheld] = WITHHELD
    return found


def moved_share(released: IntArray, before: IntArray) -> float:
    """Share of the entities in the sums of both rounds that are in another class than before.

    NaN where there are none. It is made of numbers of entities of whole groups.
    """
    both = (released >= 0) & (before >= 0)
    return float(np.mean(released[both] != before[both])) if both.any() else float("nan")
