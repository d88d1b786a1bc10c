"""A site's events: agents, entities, design, held-out events, and in which class each counts.

An entity is not always counted in the class just drawn.

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

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from consilience.arrays import BoolArray, FloatArray, IntArray
from consilience.exceptions import DataError
from consilience.latent_regression.kernels.latent_class import (
    Blocks,
    agent_key,
    blocks_of,
    entities_of,
)
from consilience.latent_regression.protocol.messages import Settings
from consilience.numerics.random import stream
from consilience.protocol.method import SiteContext, SiteData
from consilience.protocol.phases.holdout import drawing_seed, held_out
from consilience.protocol.phases.secure_sums import KEYS
from consilience.protocol.phases.standardise import moved
from consilience.wire.disclosure import Limits, groups_that_may_leave, may_leave

_PURPOSE = "latent-class-regression"
_HELD_OUT = "held out"
_LARGEST = 1e140
_USUAL = 8
_SPANNED = 1e-10
"""Of the largest singular value, below which a combination of columns is constant."""


@dataclass(frozen=True, eq=False)
class Events:
    """Events that take part, in the order of the site's table.

    Attributes
    ----------
    z : (n, p) array
        1, features, response; times the root of the weight, for sums.
    table : (n, p) array
        1, features, response as the site reads them: in no units of others, and without weights.
    root : (n,) array
        Root of the weight of each event.
    agent, entity : (n,) int array
        Agents by name, entities by agent and first appearance.
    agent_names : tuple of str
    entity_names : tuple of str
    agent_of : (E,) int array
    held : (n,) bool array
        Events that measure, and are in no sum.
    keys : (A,) uint64 array
        Keys of the agents' draws.
    seeds : (A,) int array
        Seeds of the agents in this run, from which keys follow; held-out events too, where no
        record is protected.
    """

    z: FloatArray
    table: FloatArray
    root: FloatArray
    agent: IntArray
    entity: IntArray
    agent_names: tuple[str, ...]
    entity_names: tuple[str, ...]
    agent_of: IntArray
    held: BoolArray
    keys: NDArray[np.uint64]
    seeds: IntArray

    @property
    def n_features(self) -> int:
        """Columns of features."""
        return int(self.z.shape[1]) - 2

    @property
    def n_entities(self) -> int:
        """Entities."""
        return len(self.entity_names)

    @property
    def used(self) -> BoolArray:
        """Events in the sums; those of weight 0 would only seem to stand behind them."""
        return ~self.held & (self.root > 0)

    @property
    def counted(self) -> IntArray:
        """Events of each entity that are in the sums."""
        return np.bincount(self.entity[self.used], minlength=self.n_entities).astype(np.int64)

    def plain(self, z: FloatArray) -> FloatArray:
        """Rows of 1, features and response without weights."""
        return np.asarray(z / np.where(self.root > 0, self.root, 1.0)[:, None])

    def scaled(self, centre: FloatArray, scale: FloatArray) -> FloatArray:
        """Rows of 1, features and response in the units of the classes, times the root."""
        # A centre far away would cut a column in two at a place of somebody's choice.
        away = moved(self.plain(self.z)[:, 1:], centre) / scale
        return np.asarray(np.column_stack([np.ones(len(self.z)), away]) * self.root[:, None])

    def centred(self, z: FloatArray) -> FloatArray:
        """Rows from :meth:`scaled` around the site's own medians, times the root: to be judged.

        Somebody else's centre could make a column of which few events have a value, or one event
        has most, look like any other; sums around one centre tell those around all others.
        """
        return self._about_medians(self.plain(z))

    def _about_medians(self, rows: FloatArray) -> FloatArray:
        # the lower median: a value of the table, not between two of them
        middle = np.sort(rows[:, 1:], axis=0)[(len(rows) - 1) // 2]
        moved = np.column_stack([np.ones(len(rows)), rows[:, 1:] - middle])
        return np.asarray(moved * self.root[:, None])

    @cached_property
    def judged(self) -> FloatArray:
        """The table's rows around its medians, times the root.

        In units of each column's own, as those of a run are, a column is no copy of another any
        more; and what weights leave of rounding would make every usual value one of its own.
        """
        return self._about_medians(self.table)

    def curved(self, z: FloatArray) -> FloatArray:
        """Rows of 1, features, squares of features and response, times the root."""
        rows = self.plain(z)
        bent = np.column_stack([rows[:, :-1], rows[:, 1:-1] ** 2, rows[:, -1]])
        return np.asarray(bent * self.root[:, None])

    def curve_may_leave(self, z: FloatArray, limits: Limits) -> bool:
        """Whether sums of products of :meth:`curved` rows could leave.

        Sums with squares tell those of (x - a)^2 (x - b)^2 for any a and b, so cells about one
        point say too little: no event has more than its share in the square of any combination of
        the columns, and of no column all but a few events have one of four values. Products of
        several columns can still single few out: asked of sites that let such sums leave alone.
        """
        if limits.min_records <= 1:
            return True
        used = self.used
        ways = self.curved(z), self.curved(self.judged), self.centred(self.curved(z))
        if not all(may_leave(way[used], self.entity[used], limits) for way in ways):
            return False
        rows = ways[-1][used]
        size = np.sqrt((rows**2).sum(axis=0))
        u, values, _ = np.linalg.svd(rows / np.where(size > 0, size, 1.0), full_matrices=False)
        leverage = (u[:, values > _SPANNED * values[0]] ** 2).sum(axis=1)
        # in units that nobody chose, without what weights leave of rounding on equal values
        columns = self.plain(self.z)[used, 1:-1].T
        sizes = np.abs(columns).max(axis=1, keepdims=True)
        columns = np.round(columns / np.where(sizes > 0, sizes, 1.0), 12)
        return bool(leverage.max() <= limits.max_share) and not any(
            _few_beside_four(column, self.entity[used], limits) for column in columns
        )

    def enough(self, limits: Limits) -> Callable[[IntArray], bool]:
        """Whether class sums of some entities could leave by themselves."""
        return self._of_entities([groups_that_may_leave(self.judged, self.entity, limits)], limits)

    def many(self, limits: Limits) -> Callable[[IntArray], bool]:
        """Whether some entities may be those that no release counts.

        Sums of single columns over all events, such as those by which a study scales them, tell
        those of these. So they are many, in each column of which all events' sums could leave.
        """
        by_column = [
            groups_that_may_leave(self.judged[:, [0, j]], self.entity, limits)
            for j in range(1, self.judged.shape[1])
        ]
        told = [could for could in by_column if could(np.flatnonzero(self.used))]
        return self._of_entities(told, limits)

    def _of_entities(
        self, rules: Sequence[Callable[[IntArray], bool]], limits: Limits
    ) -> Callable[[IntArray], bool]:
        """Whether the events of some entities, which are many enough, keep all rules."""
        events, used = self.counted, np.flatnonzero(self.used)
        used = used[np.argsort(self.entity[used], kind="stable")]
        start = np.concatenate([[0], np.cumsum(events)])

        def check(members: IntArray) -> bool:
            few = (events[members] > 0).sum() < limits.min_entities
            if few or events[members].sum() < limits.min_records:
                return False
            rows = np.concatenate([used[start[e] : start[e + 1]] for e in members])
            return all(rule(rows) for rule in rules)

        return check

    def first_of(self, codes: IntArray) -> IntArray:
        """First event in the sums of each entity or agent."""
        kept = np.flatnonzero(self.used)
        return kept[np.unique(codes[kept], return_index=True)[1]]

    def marks(self, tables: BoolArray) -> FloatArray:
        """1 at the first event of each entity in the sums; 1 there where it opened a table."""
        marks = np.zeros((len(self.z), 2))
        first = self.first_of(self.entity)
        marks[first, 0] = 1.0
        marks[first, 1] = tables[self.entity[first]]
        return marks

    def design(self, z: FloatArray, fit_intercept: bool) -> FloatArray:
        """Columns of the design of rows of 1, features (and squares) and response."""
        return z[:, (0 if fit_intercept else 1) : -1]

    def blocks(self, z: FloatArray, s: Settings, left_out: BoolArray | None = None) -> Blocks:
        """Statistics of each entity, of the events in the sums, or of all but those left out.

        Parameters
        ----------
        z : (n, p) array
            From :meth:`scaled`, or :meth:`curved`.
        s : Settings
        left_out : (n,) bool array, optional
            The held-out events by default.
        """
        rows = self.plain(z)
        return blocks_of(
            np.ascontiguousarray(self.design(rows, s.fit_intercept)),
            np.where(self.held if left_out is None else left_out, np.nan, rows[:, -1]),
            self.entity,
            self.agent,
            self.root**2,
        )


def events_of(
    data: SiteData, settings: Settings, site: SiteContext, seeds: IntArray | None = None
) -> Events:
    """Sort a site's rows into agents and entities and hold some events out.

    Parameters
    ----------
    data, settings, site
    seeds : (A,) int array, optional
        Those of the agents, drawn in the first step: streams are other ones in each step, and the
        same events are held out in all.

    Raises
    ------
    DataError
        No entity, an empty table, or numbers that are not finite.
    """
    if data.entity is None or data.target is None:
        raise _cannot("latent classes need an entity and a response for every event")
    if data.n_rows == 0:
        raise _cannot("this site has no events: let it take part with rows, or leave it out")
    names = np.asarray(data.entity).astype(str)
    agents = (
        np.full(len(names), site.site) if data.agent is None else np.asarray(data.agent).astype(str)
    )
    # by name, so that the order of rows does not matter
    agent_names, agent = np.unique(agents, return_inverse=True)
    agent = agent.ravel().astype(np.int64)
    entity, first = entities_of(agent, names)
    weight = np.ones(len(names)) if data.weight is None else np.asarray(data.weight, dtype=float)
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise _cannot("weights must be finite numbers of at least 0")
    if not (weight > 0).any():
        raise _cannot("all weights of this site are 0: let it take part with events that count")
    root = np.sqrt(weight)
    y = np.asarray(data.target, dtype=float)
    z = np.column_stack([np.ones(len(y)), data.features, y])
    if not np.isfinite(z).all():
        raise _cannot("features and response must be finite numbers: see [preparation] missing")
    table = np.column_stack([np.ones(len(y)), data.in_own_units()[0], y])
    if max(np.abs(rows * root[:, None]).max() for rows in (z, table)) > _LARGEST:
        raise _cannot("some values are too large to be squared: give the columns in other units")
    if seeds is None:
        # They follow from the agent, not from the site that it belongs to; at protected sites from
        # the rows themselves, so that asking again tells nothing new.
        if site.limits.min_records > 1:
            # Of the response alone: features in other units or company would give other draws.
            bare = data.with_features(np.empty((data.n_rows, 0)), ())
            sealed = drawing_seed(bare, site, _PURPOSE)
            streams = [stream(sealed, str(name)) for name in agent_names]
        else:
            streams = [site.stream(_PURPOSE, str(name)) for name in agent_names]
        seeds = np.array([int(rng.integers(2**63 - 1)) for rng in streams], dtype=np.int64)
    keys, held = _draws(site, settings, agent_names, agent, entity, seeds, root > 0, data)
    made = Events(
        z=z * root[:, None],
        table=table,
        root=root,
        agent=agent,
        entity=entity,
        agent_names=tuple(str(a) for a in agent_names),
        entity_names=tuple(str(e) for e in names[first]),
        agent_of=agent[first],
        held=held,
        keys=keys,
        seeds=seeds,
    )
    # sums over the held-out events must be able to leave: two runs' sums differ by them
    if site.limits.min_records > 1 and not may_leave(made.judged[held], entity[held], site.limits):
        return dataclasses.replace(made, held=np.zeros(len(held), dtype=bool))
    return made


def _few_beside_four(column: FloatArray, entity: IntArray, limits: Limits) -> bool:
    """Whether some events, but few or of few entities, have none of one to four usual values.

    A polynomial of degree four is 0 at four values at most: any of the `_USUAL` most frequent.
    """
    _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    value = np.minimum(rank[place], _USUAL)
    usual = range(min(len(counts), _USUAL))
    by_value = np.zeros((_USUAL + 1, int(entity.max()) + 1))
    np.add.at(by_value, (value, entity), 1.0)
    for n in range(1, 5):
        for zeros in combinations(usual, n):
            rest = np.delete(by_value, zeros, axis=0).sum(axis=0)
            few = rest.sum() < limits.min_records or (rest > 0).sum() < limits.min_entities
            if rest.any() and few:
                return True
    return False


def digest_of(data: SiteData) -> str:
    """Digest of the rows: the same in every step of a run, so that releases are about the same."""
    sealed = hashlib.sha256()
    for part in (data.features, data.target, data.weight, data.agent, data.entity):
        if part is not None:
            sealed.update(f"{part.dtype} {part.shape}".encode())
            sealed.update(np.ascontiguousarray(part).tobytes())
    return sealed.hexdigest()


def _cannot(sentence: str) -> DataError:
    """An error whose sentence may leave the site: it holds no value."""
    return DataError.shared(sentence)


def _draws(
    site: SiteContext,
    settings: Settings,
    agent_names: NDArray[np.str_],
    agent: IntArray,
    entity: IntArray,
    seeds: IntArray,
    weighs: BoolArray,
    data: SiteData,
) -> tuple[NDArray[np.uint64], BoolArray]:
    """Keys of the agents' draws, and which of the events with a weight are held out."""
    named = zip(seeds.tolist(), agent_names, strict=True)
    keys = np.array([agent_key(seed, str(name)) for seed, name in named], dtype=np.uint64)
    held = np.zeros(len(agent), dtype=bool)
    masked = KEYS in site.keys
    if site.limits.min_records > 1 or masked:
        cells, shares = np.where(weighs, 0, -1), [settings.holdout]
        (out,) = held_out(data, cells, shares, site.limits, within=True, masked=masked)
        held[out] = True
    elif settings.holdout > 0:
        chance = np.ones(len(agent))
        for a, seed in enumerate(seeds.tolist()):
            rows = np.flatnonzero(agent == a)
            chance[rows] = stream(seed, _HELD_OUT).random(len(rows))
        held = (chance < settings.holdout) & weighs
        # Every entity keeps an event.
        lowest = np.lexsort((-chance, ~weighs, entity))
        # the first of each entity in that order stays in the sums
        held[lowest[np.unique(entity[lowest], return_index=True)[1]]] = False
    return keys, held


# -------------------------------------------------------------- in which class an entity is counted


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
    before: IntArray, drawn: IntArray, probabilities: FloatArray, turn: BoolArray
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
    labels: IntArray,
    groups: IntArray,
    events: IntArray,
    enough: Enough | None,
    many: Enough | None = None,
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
    many : callable or None
        What entities must be that are in no sum so far and stay so; `enough` by default.

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
        unseen = groups[members[0]] == UNSEEN
        alone = many if unseen and many is not None else enough
        wanted[members] = _moves(wanted[members], members, events[members], enough, alone, unseen)
    return wanted


def _moves(
    wanted: IntArray,
    members: IntArray,
    events: IntArray,
    enough: Enough,
    alone: Enough,
    unseen: bool,
) -> IntArray:
    """Where the entities of one history go; those that are left out are what `alone` says."""
    kinds, part = np.unique(wanted, return_inverse=True)
    part = part.ravel()
    if len(kinds) == 1 and not unseen:
        return wanted  # as a whole it was enough when it came about
    large = np.array([enough(members[part == k]) for k in range(len(kinds))])
    if large.all():
        return wanted
    rest = ~large[part]
    if alone(members[rest]):
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
        if alone(members[rest]):
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
