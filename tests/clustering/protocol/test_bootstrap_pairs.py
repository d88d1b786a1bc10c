from __future__ import annotations

import numpy as np
import pytest

from consilience.clustering.protocol.coordinator import weighted
from consilience.clustering.protocol.site import halves, released_agreement, rounding_step
from consilience.numerics.two_way_tables import adjusted_rand_index
from consilience.sites.gate import review
from consilience.sites.policy import Policy
from consilience.wire.codec import decode_message
from consilience.wire.disclosure import Limits, Released
from consilience.wire.message import Aggregate, message

LIMITS = Limits()
NAN = float("nan")


@message("test-pairs/agreement", version=1)
class Agreement:
    value: Released = Aggregate("", gaps=True)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 50])
def test_halves_are_disjoint_and_complete(n: int) -> None:
    a, b = halves(np.random.default_rng(n), n)
    assert sorted([*a, *b]) == list(range(n))
    assert abs(len(a) - len(b)) <= 1
    assert list(a) == sorted(a)


def labels(*counts: int) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts).astype(np.int64)


def noisy(given: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """The labelling with a share of rows labelled at random."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(given.max() + 1, size=len(given))
    return np.where(rng.uniform(size=len(given)) < share, drawn, given).astype(np.int64)


@pytest.mark.parametrize(
    ("n", "step"),
    [(1000, 0.01), (100, 0.01), (99, 0.02), (20, 0.05), (10, 0.1), (2, 0.5), (1, 1.0)],
)
def test_agreement_is_rounded_to_what_one_record_moves(n: int, step: float) -> None:
    """The smallest class decides, in whichever labelling it is."""
    assert rounding_step(n) == step
    assert step * n >= 1
    small, even = labels(n, 1000 + n), np.arange(1000 + 2 * n) % 2
    value = adjusted_rand_index(small, even)
    for first, second in ((small, even), (even, small)):
        made = released_agreement(first, second, Limits(min_records=min(n, 10)))
        assert made.evidence is not None
        assert (made.evidence.records, made.evidence.steps) == (n, step)
        assert made.value == pytest.approx(round(value / step) * step)


def test_rows_of_small_classes_and_rows_left_out_take_no_part() -> None:
    first = labels(40, 50, 9)
    second = noisy(labels(49, 50), 0.3)
    second[[0, 1, 45, 95, 96]] = 2
    kept = (first < 2) & (second < 2)  # the third class is small in both
    assert (kept.sum(), (first == 2).sum(), (second == 2).sum()) == (87, 9, 5)
    made = released_agreement(first, second, LIMITS)
    assert made.evidence is not None
    step = float(made.evidence.steps)  # type: ignore[arg-type]
    wanted = adjusted_rand_index(first[kept], second[kept])
    assert abs(made.value - wanted) <= step / 2 + 1e-12
    gone = released_agreement(np.where(kept, first, -1), second, LIMITS)
    assert gone.value == made.value
    # A class that is large before others leave, and small afterwards, goes too.
    third = second.copy()
    third[first == 2] = 7
    third[np.flatnonzero(first == 0)[:3]] = 7
    fallen = released_agreement(first, third, LIMITS)
    without = (first < 2) & (third != 7)
    same = released_agreement(first[without], third[without], LIMITS)
    assert (np.bincount(third)[7] >= 10, fallen.value) == (True, same.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.full(40, -1), labels(20, 20)),
        (labels(20, 20), np.full(40, -1)),
        (np.arange(40), labels(20, 20)),
        (labels(20, 20, 9)[::-1].copy(), np.r_[np.arange(9) - 9, np.arange(40)]),
        (labels(40), labels(40)),
        (labels(40, 9), np.r_[np.zeros(40, dtype=int), np.full(9, 4)]),
        (np.empty(0, dtype=int), np.empty(0, dtype=int)),
    ],
    ids=["first out", "second out", "alone", "nothing left", "one class", "one left", "no rows"],
)
def test_nothing_is_said_where_nothing_is_comparable(first: np.ndarray, second: np.ndarray) -> None:
    made = released_agreement(first, second, LIMITS)
    assert np.isnan(made.value)
    assert np.isnan(decode_message(review(Agreement(made), Policy(), {}).message).value.value)


def test_what_is_released_passes_the_gate() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        first, second = (rng.integers(rng.integers(1, 12), size=80) for _ in range(2))
        assert review(Agreement(released_agreement(first, second, LIMITS)), Policy(), {})


# --- one record ------------------------------------------------------------------------------


def moves(first: np.ndarray, second: np.ndarray, targets: str) -> float:
    """Largest change of the release over all moves of one record, in its rounding steps."""
    base = released_agreement(first, second, LIMITS)
    assert base.evidence is not None
    step = float(base.evidence.steps)  # type: ignore[arg-type]
    worst = 0.0
    for which in (0, 1):
        for i in range(len(first)):
            pair = [first.copy(), second.copy()]
            others = np.unique(pair[which]) if targets == "any" else np.empty(0, dtype=int)
            for target in [*others, 99]:
                pair[which][i] = target
                made = released_agreement(pair[0], pair[1], LIMITS)
                assert not np.isnan(made.value)
                worst = max(worst, abs(made.value - base.value) / step)
    return worst


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize(
    "counts", [(100, 100, 100), (240, 60), (150, 100, 39, 11), (250, 40, 10)], ids=str
)
def test_one_record_of_300_moves_the_release_by_a_few_steps(
    counts: tuple[int, ...], share: float
) -> None:
    """Brute force: every record, in either labelling, into a class of its own.

    A step is at least one over the smallest class. A record moves the index by the order of that,
    and by its class once more where the class falls below `min_records`; rounding adds one step.
    """
    first = labels(*counts)
    assert moves(first, noisy(first, share), "own") <= 3


def test_one_record_that_changes_its_class_moves_the_release_by_a_few_steps() -> None:
    first = labels(100, 100, 100)
    assert moves(first, noisy(first, 0.2), "any") <= 3


def test_a_class_of_one_record_would_show_without_the_rule() -> None:
    """Of two equal labellings with one class, a record by itself takes 1 to 0."""
    whole, alone = labels(300), np.r_[99, np.zeros(299, dtype=int)]
    assert (adjusted_rand_index(whole, whole), adjusted_rand_index(whole, alone)) == (1, 0)
    for pair in ((whole, whole), (whole, alone), (alone, alone)):
        assert np.isnan(released_agreement(*pair, LIMITS).value)


def test_how_many_rows_were_dropped_does_not_show() -> None:
    first = labels(120, 100, 80)
    second = noisy(first, 0.2)
    sent = set()
    for dropped in range(10):
        rare = np.full(dropped, 50)
        for spread in (rare, np.arange(dropped) % 3, np.arange(dropped) + 60):
            pair = np.r_[first, rare], np.r_[second, spread]
            for one, two in (pair, pair[::-1]):
                made = released_agreement(one, two, LIMITS)
                sent.add(review(Agreement(made), Policy(), {}).message)
    assert len(sent) == 1, "the same bytes leave, whatever was dropped"


# --- pooling ---------------------------------------------------------------------------------


def test_pooling_weighs_sites_by_size() -> None:
    observed = np.array([[1.0, 0.0], [0.5, 0.5]])
    np.testing.assert_allclose(weighted(observed, np.array([30.0, 10.0])), [0.75, 0.5])


def test_who_says_nothing_has_no_weight() -> None:
    observed = np.array([[1.0, NAN], [0.5, 0.1], [NAN, NAN]])
    np.testing.assert_allclose(weighted(observed, np.array([30.0, 10.0])), [1.0, 0.4])
    assert not len(weighted(np.full((1, 2), NAN), np.ones(2)))
