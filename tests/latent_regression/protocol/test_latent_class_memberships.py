"""Whatever labels are drawn, what is sent tells of groups that could leave by themselves.

The rule is checked from outside: the memberships of all releases of a run, that of all events
included, are put side by side; entities that no release tells apart are a group; and each group is
judged event by event. The gate itself reviews the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from consilience.latent_regression.protocol.events import (
    AS_BEFORE,
    EMPTY,
    NEW,
    TURN,
    UNSEEN,
    WITHHELD,
    Enough,
    moved_share,
    next_released,
    status_of,
    withheld_classes,
    worth_moving,
)
from consilience.sites.gate import Series, review
from consilience.sites.policy import Policy
from consilience.testing.fakes import Sums
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Limits, class_sums, may_leave
from tests.reference.moments_naive import cell_facts
from tests.rotation import by_turns

STRICT = Policy()
K = 5
KINDS = ("normal", "indicator", "giants", "small entities", "many columns")


class Events:
    """Events of entities, of several difficult kinds."""

    def __init__(self, seed: int, kind: str, n_entities: int = 60) -> None:
        rng = np.random.default_rng(seed)
        mean = 2.0 if kind == "small entities" else 5.0
        self.counts = 1 + rng.poisson(mean - 1, size=n_entities)
        self.counts[rng.random(n_entities) < 0.05] = 0  # all their events are held out
        self.entity = np.repeat(np.arange(n_entities), self.counts)
        n, p = len(self.entity), 8 if kind == "many columns" else 3
        self.x = np.c_[np.ones(n), rng.normal(size=(n, p - 1))]
        if kind == "indicator":
            self.x[:, 1] = rng.random(n_entities)[self.entity] < 0.4
        if kind == "giants":
            self.x[:, 2] = rng.standard_t(2.0, size=n)
        self._large: dict[bytes, bool] = {}

    def rows(self, members: np.ndarray) -> np.ndarray:
        return np.isin(self.entity, members)

    def enough(self, limits: Limits = STRICT.limits) -> Enough:
        def check(members: np.ndarray) -> bool:
            mine = self.rows(members)
            return may_leave(self.x[mine], self.entity[mine], limits)

        return check

    def large(self, members: np.ndarray) -> bool:
        """The same, cell by cell; most groups are those of the release before."""
        key = members.tobytes()
        if key not in self._large:
            self._large[key] = self._is_large(members)
        return self._large[key]

    def _is_large(self, members: np.ndarray) -> bool:
        mine = self.rows(members)
        x, p = self.x[mine], self.x.shape[1]
        if len(x) < max(10, 2 * p) or len(set(self.entity[mine].tolist())) < 3:
            return False
        for i in range(p):
            for j in range(i, p):
                _, records, share = cell_facts(x[:, i] * x[:, j])
                if 0 < records < 10 or share > 0.5:
                    return False
        return True


def labels_over_rounds(seed: int, n_entities: int, n_rounds: int = 9) -> Iterator[np.ndarray]:
    """Draws by chance, few changes, single entities, halves by a line, mergers, and going back."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=n_entities)
    first = labels
    score = rng.normal(size=n_entities)
    for _ in range(n_rounds):
        yield labels
        kind = rng.integers(6)
        labels = labels.copy()
        if kind == 0:
            labels = rng.integers(K, size=n_entities)
        elif kind == 1:
            some = rng.choice(n_entities, size=rng.integers(1, n_entities // 2), replace=False)
            labels[some] = rng.integers(K, size=len(some))
        elif kind == 2:
            labels[rng.integers(n_entities)] = rng.integers(K)
        elif kind == 3:
            labels = np.where(score > rng.normal(), rng.integers(K), rng.integers(K))
        elif kind == 4:
            labels = rng.integers(K, size=K)[labels]
        else:
            labels = first


class Run:
    """Releases of a site, as the step makes them."""

    def __init__(self, events: Events, *, offered: bool = True, policy: Policy = STRICT) -> None:
        self.events, self.policy = events, policy
        n = len(events.counts)
        self.protected = policy.min_records > 1
        self.enough = events.enough(policy.limits)
        self.many: Enough | None = None
        tells = offered and self.enough(np.arange(n))
        self.groups = np.full(n, UNSEEN)
        self.series: Series = {}
        self.told: list[np.ndarray] = []
        if tells:
            self.told.append(np.where(events.counts > 0, 0, -1))
            self._through_the_gate(self.told[0])

    def release(self, labels: np.ndarray, dropped: tuple[int, ...] = ()) -> np.ndarray:
        """Sums of a round; the step leaves out some classes that other rules stop."""
        enough = self.enough if self.protected else None

        def answer() -> np.ndarray:
            found = next_released(labels, self.groups, self.events.counts, enough, self.many)
            return np.where(np.isin(found, dropped), -1, found)

        released = answer()
        self.told.append(released)
        self._through_the_gate(released)
        # The answer was lost after the gate had seen it: asked again, the site says the same.
        np.testing.assert_array_equal(answer(), released)
        return released

    def _through_the_gate(self, released: np.ndarray) -> None:
        sums = class_sums(
            self.events.x,
            cells=released[self.events.entity],
            n_cells=K,
            entities=self.events.entity,
            series="class-sums",
        )
        reviewed = review(Sums(sums=sums), self.policy, self.series)
        self.series = reviewed.series
        assert reviewed.verdicts[0].verdict == "released"
        sent: Any = decode_message(reviewed.message)
        np.testing.assert_array_equal(sent.sums.value, sums.value)
        self.groups = np.zeros(len(self.groups), dtype=np.int64)
        self.groups[self.events.entity] = self.series["class-sums"]["groups"]

    def histories(self) -> Iterator[np.ndarray]:
        """Entities that no release tells apart; those in none are left out."""
        told = np.stack(self.told)
        _, of = np.unique(told, axis=1, return_inverse=True)
        of = of.ravel()
        for g in range(of.max() + 1):
            members = np.flatnonzero(of == g)
            if (told[:, members[0]] >= 0).any():
                yield members


@by_turns(KINDS, [True, False], range(8), names="kind, offered, seed")
def test_groups_with_one_history_could_leave_by_themselves(
    kind: str, offered: bool, seed: int
) -> None:
    events = Events(seed, kind)
    run = Run(events, offered=offered)
    rng = np.random.default_rng(seed)
    for labels in labels_over_rounds(seed + 100, len(events.counts)):
        dropped = (int(rng.integers(K)),) if rng.random() < 0.2 else ()
        released = run.release(labels, dropped)
        assert (released[events.counts == 0] == -1).all()
        for members in run.histories():
            assert events.large(members)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_as_they_are_drawn_would_tell_of_few(kind: str) -> None:
    """The control: without the rule most runs have groups that could not leave."""
    broken = 0
    for seed in range(8):
        events = Events(seed, kind)
        run = Run(events)
        for labels in labels_over_rounds(seed + 100, len(events.counts)):
            run.told.append(np.where(events.counts > 0, labels, -1))
        broken += any(not events.large(members) for members in run.histories())
    assert broken >= 7


@pytest.mark.parametrize("seed", range(4))
def test_no_sum_of_few_entities_is_a_combination_of_releases(seed: int) -> None:
    """The same by linear algebra, for an attacker who knows all memberships.

    An indicator that is a combination of released ones is constant on groups. So the largest share
    of a single entity in the span of the releases is that of the smallest group: 1 in 3 at most.
    """
    events = Events(seed, "normal", n_entities=90)
    run = Run(events)
    for labels in labels_over_rounds(seed, 90, n_rounds=12):
        run.release(labels)

    def largest(told: list[np.ndarray]) -> float:
        masks = np.concatenate([[t == k for k in range(K)] for t in told]).astype(float)
        _, sizes, span = np.linalg.svd(masks, full_matrices=False)
        span = span[sizes > 1e-9 * sizes[0]]
        return float((span**2).sum(axis=0).max())

    assert 0 < largest(run.told) <= 1 / 3 + 1e-9
    drawn = [run.told[0], *labels_over_rounds(seed, 90, n_rounds=12)]
    assert largest(drawn) > 1 - 1e-9, "of the labels as they were drawn"


@pytest.mark.parametrize("kind", KINDS)
def test_simulation_sends_the_labels(kind: str) -> None:
    events = Events(3, kind)
    run = Run(events, policy=Policy.from_settings("simulation"))
    for labels in labels_over_rounds(5, len(events.counts)):
        np.testing.assert_array_equal(run.release(labels), np.where(events.counts > 0, labels, -1))


# --------------------------------------------------------------------------- single decisions


def plain(n: int, per: int = 5) -> Events:
    events = Events(0, "normal", n)
    events.counts = np.full(n, per)
    events.entity = np.repeat(np.arange(n), per)
    rng = np.random.default_rng(1)
    events.x = np.c_[np.ones(n * per), rng.uniform(1, 2, size=(n * per, 2))]
    return events


def test_many_move_as_they_are_drawn() -> None:
    run = Run(plain(60))
    labels = np.arange(60) % 3
    np.testing.assert_array_equal(run.release(labels), labels)
    after = np.where(np.arange(60) < 30, (labels + 1) % 3, labels)
    np.testing.assert_array_equal(run.release(after), after)


def test_one_that_moves_stays_with_its_like() -> None:
    run = Run(plain(60))
    labels = np.arange(60) % 3
    run.release(labels)
    after = labels.copy()
    after[0] = 1
    np.testing.assert_array_equal(run.release(after), labels)
    assert moved_share(run.told[-1], run.told[-2]) == 0.0


def test_some_that_are_too_few_for_each_class_are_left_out_together() -> None:
    run = Run(plain(60))
    labels = np.zeros(60, dtype=np.int64)
    labels[:2], labels[2:4], labels[4:6] = 1, 2, 3
    released = run.release(labels)
    assert (released[:6] == -1).all() and (released[6:] == 0).all()


def test_who_was_never_in_a_sum_waits_for_company() -> None:
    run = Run(plain(60), offered=False)
    labels = np.zeros(60, dtype=np.int64)
    labels[:2] = 1
    labels[2:4] = 2
    released = run.release(labels)
    assert (released[:4] == -1).all() and (run.groups[:4] == UNSEEN).all()
    labels[4] = 1
    again = run.release(labels)
    assert (again[:4] == -1).all(), "the fifth would be told from those it was with"
    labels[:12] = 1
    assert (run.release(labels)[:4] == 1).all()


def test_who_was_never_in_a_sum_and_would_be_alone_is_counted_with_others() -> None:
    run = Run(plain(60), offered=False)
    labels = np.zeros(60, dtype=np.int64)
    labels[:2] = 1
    assert (run.release(labels) == 0).all(), "two are few, and hardly disturb"
    run = Run(plain(60), offered=False)
    labels[:14] = 2
    labels[:2] = 1
    run.enough = lambda members, usual=run.enough: 0 not in members and usual(members)
    run.many = run.events.enough()
    released = run.release(labels)
    assert (released[:14] == -1).all() and (released[14:] == 0).all()


def test_entities_without_events_are_nowhere() -> None:
    events = plain(12)
    counts = events.counts.copy()
    counts[4:] = 0
    keep = events.entity < 4
    events.counts, events.entity, events.x = counts, events.entity[keep], events.x[keep]
    released = next_released(
        np.arange(12) % 2, np.ones(12, dtype=np.int64), counts, events.enough()
    )
    assert (released[4:] == -1).all()
    assert len(set(released[:4].tolist())) == 1, "two of four are not enough"
    nobody = next_released(
        np.zeros(3, dtype=np.int64), np.ones(3, dtype=np.int64), np.zeros(3, int), events.enough()
    )
    assert (nobody == -1).all()


def test_status_and_what_is_not_said() -> None:
    events = plain(60)
    labels = np.zeros(60, dtype=np.int64)
    labels[:30], labels[30], labels[31:36] = 1, 2, 3
    released = np.where(labels < 2, labels, -1)
    before = np.where(labels == 1, 1, -1)
    withheld = withheld_classes(labels, released, events.counts, events.enough())
    found = status_of(released, before, withheld, K)
    assert found.tolist() == [NEW, AS_BEFORE, EMPTY, WITHHELD, EMPTY]
    everything = withheld_classes(labels, released, events.counts, None)
    assert everything.tolist() == [2, 3], "where nothing is protected, single ones are told"


def test_moves_of_released_classes() -> None:
    released, before = np.array([0, 1, 1, -1, 2]), np.array([0, 0, 1, 2, -1])
    assert moved_share(released, before) == pytest.approx(1 / 3)
    assert np.isnan(moved_share(released, np.full(5, -1)))


def test_labels_are_kept_until_it_is_their_turn() -> None:
    """A class that is out of the question is left at once."""
    chances = np.array([[0.45, 0.55, 0.0], [0.55, 0.45, 0.0], [0.04, 0.0, 0.96], [0.2, 0.0, 0.8]])
    before, drawn = np.array([0, 1, 0, 0]), np.array([1, 0, 2, 2])
    nobody, everybody = np.zeros(4, dtype=bool), np.ones(4, dtype=bool)
    assert worth_moving(before, drawn, chances, nobody).tolist() == [0, 1, 2, 0]
    assert worth_moving(before, drawn, chances, everybody).tolist() == [1, 0, 2, 2]
    assert worth_moving(np.full(4, -1), drawn, chances, nobody).tolist() == [1, 0, 2, 2]


def test_labels_that_wait_for_their_turn_are_right_on_average() -> None:
    """Shares of classes as of labels drawn anew; those of likeliest labels would be 0 and 1."""
    rng = np.random.default_rng(0)
    n, rounds = 4000, 30
    chances = np.tile([0.3, 0.7], (n, 1))
    before = np.zeros(n, dtype=np.int64)
    for _ in range(rounds):
        drawn = (rng.random(n) > 0.3).astype(np.int64)
        before = worth_moving(before, drawn, chances, rng.random(n) < TURN)
    # standard error sqrt(.3 * .7 / 4000) = .007; .8^30 = .001 have never had their turn
    assert np.mean(before == 0) == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize("seed", range(3))
def test_turns_use_fewer_histories_up(seed: int) -> None:
    """Half of the entities in each of two equal classes, for a few rounds."""
    rng = np.random.default_rng(seed)
    chances = np.full((60, 2), 0.5)
    begun = rng.integers(2, size=60)
    groups = {}
    for name in ("drawn", "kept"):
        run = Run(plain(60))
        before = run.release(begun)
        for _ in range(3):
            drawn = rng.integers(2, size=60)
            kept = worth_moving(before, drawn, chances, rng.random(60) < TURN)
            before = run.release(drawn if name == "drawn" else kept)
        groups[name] = len(list(run.histories()))
    assert groups["kept"] < groups["drawn"]


def test_a_few_that_would_disturb_every_class_are_left_out_with_the_smallest() -> None:
    """Eight cannot go alone, and are more than a tenth of either class that could take them in."""
    labels = np.repeat([0, 2, 1], [50, 12, 8])
    groups, events = np.ones(70, dtype=np.int64), np.ones(70, dtype=np.int64)
    found = next_released(labels, groups, events, lambda members: len(members) >= 10)
    assert found.tolist() == [0] * 50 + [-1] * 20
    few = np.repeat([0, 2, 1], [50, 12, 5])
    found = next_released(few, groups[:67], events[:67], lambda members: len(members) >= 10)
    assert found.tolist() == [0] * 50 + [2] * 12 + [0] * 5
