"""What a site tells of partitions that were found on halves of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from consilience.clustering.kernels import one_cloud as kernel
from consilience.clustering.protocol.one_cloud import Rows, evidence
from consilience.clustering.protocol.site import rounding_step

FEATURES, CENTRES = np.eye(2), np.eye(2)


@dataclass
class Split:
    """A model of two classes that remembers what it was asked."""

    at: float
    asked: list[np.ndarray] = field(default_factory=list)
    n_classes: int = 2

    def label(self, rows: np.ndarray) -> np.ndarray:
        self.asked.append(rows)
        return (rows.mean(axis=1) > self.at).astype(np.int64)


def told(
    x: np.ndarray, first: Any, second: Any, *, least: int = 10, outside: Any = None, kind: str = ""
) -> dict[str, float]:
    n = len(x)
    halves = [np.arange(n // 2), np.arange(n // 2, n)]
    gone = np.zeros(n, dtype=bool) if outside is None else outside
    rows = Rows.of(x, kind, (3,) * x.shape[1] if kind == "latent-class" else (3,), seed=1)
    made = evidence(
        rows,
        halves,
        [
            ((one,), FEATURES, CENTRES) if one else ((), FEATURES, CENTRES)
            for one in (first, second)
        ],
        [gone, gone],
        least,
        rounding_step,
        np.random.default_rng(0),
    )
    return {name: float(one.value) for name, one in made.items()}


def two_groups(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)) + 3.0 * rng.integers(2, size=(n, 1))


def test_a_partition_is_judged_on_the_half_that_it_was_not_found_on() -> None:
    x = two_groups()
    first, second = Split(1.5), Split(1.6)
    outside = np.zeros(200, dtype=bool)
    outside[[3, 150]] = True
    found = told(x, first, second, outside=outside)
    np.testing.assert_array_equal(first.asked[0], np.delete(x[100:], 50, axis=0))
    np.testing.assert_array_equal(second.asked[0], np.delete(x[:100], 3, axis=0))
    assert found["apart"] > 3 and found["related"] > 3
    assert found["between"] < found["cloud_between"]


@pytest.mark.parametrize("kind", ["latent-class", "markov-mixture"])
def test_codes_are_judged_too(kind: str) -> None:
    rng = np.random.default_rng(2)
    group = rng.integers(2, size=(800, 1))
    codes = np.where(rng.random((800, 6)) < 0.8, 2 * group, rng.integers(3, size=(800, 6)))
    codes[rng.random(codes.shape) < 0.05] = -1
    found = told(codes, Split(1.0), Split(1.0), kind=kind)
    assert found["apart"] > 1.6 and found["related"] > 3
    assert np.isnan(found["between"]) and np.isnan(found["cloud_between"])


def test_nothing_is_said_of_few_rows_or_one_class() -> None:
    x = two_groups(36)
    for found in (
        told(x, Split(1.5), Split(1.5)),  # 18 rows, of 20 that two classes of ten need
        told(two_groups(), Split(99.0), Split(99.0)),
        told(two_groups(), None, None),
    ):
        assert all(np.isnan(value) for value in found.values())
    # A class of few rows takes no part: the others are one class, and say nothing.
    far = two_groups()
    assert np.isnan(told(far, Split(np.sort(far.mean(axis=1))[-4]), None)["apart"])


def test_scores_are_rounded_and_rest_on_classes_that_are_large_enough() -> None:
    rows = Rows.of(two_groups(), "", (), seed=1)
    halves = [np.arange(100), np.arange(100, 200)]
    partitions: Any = [((Split(1.5),), FEATURES, CENTRES)] * 2
    outside = [np.zeros(200, dtype=bool)] * 2
    for seed in range(3):
        rng = np.random.default_rng(seed)
        made = evidence(rows, halves, partitions, outside, 10, rounding_step, rng)
        offsets = dict(zip(("apart", "related"), np.random.default_rng(seed).random(2)))
        for name in ("apart", "related", "between"):
            assert made[name].evidence is not None
            assert made[name].evidence.records == 10  # type: ignore[union-attr]
            step, label = 0.1 if name == "between" else 0.5, Split(1.5).label
            value = float(made[name].value) / step - offsets.get(name, 0.0)
            assert value == pytest.approx(round(value), abs=1e-9)
            both = [rows.compare(halves[1 - i], label, 10)[name] for i in range(2)]
            mean = kernel.averaged(both, by_chance=name == "related")
            exact = mean.found if name == "between" else mean.score / np.sqrt(1 + step**2 / 12)
            assert abs(float(made[name].value) - min(exact, 10 - step / 2)) <= step / 2 + 1e-9


def test_each_partition_is_held_beside_one_of_another_split() -> None:
    """Its draws are told by that too, so that draws are not less correlated than rows."""
    x = two_groups()
    halves = [np.arange(100), np.arange(100, 200)] * 2
    splits = [Split(at) for at in (1.4, 1.5, 1.6, 1.7)]
    partitions: Any = [((one,), FEATURES, CENTRES) for one in splits]
    outside, rng = [np.zeros(200, dtype=bool)] * 4, np.random.default_rng(0)
    rows = Rows.of(x, "", (), seed=1)
    evidence(rows, halves, partitions, outside, 10, rounding_step, rng)
    # Of its own half rows and two kinds of draws; of another's rows and draws of one cloud.
    assert [[len(asked) for asked in one.asked] for one in splits] == (
        [[100, 9900, 9900, 9900, 100]] * 2 + [[9900, 100, 100, 9900, 9900]] * 2
    )
    own = rows.compare(halves[1], splits[0].label, 10, splits[2].label)["apart"]
    same = rows.compare(halves[1], splits[0].label, 10, splits[0].label)["apart"]
    np.testing.assert_array_equal(same.draws, same.elsewhere)
    assert own.elsewhere is not None and np.corrcoef(own.draws, own.elsewhere)[0, 1] > 0.5
    # The other statistic is what that partition is judged by, of the same draws.
    alone = rows.compare(halves[1], splits[2].label, 10)["apart"]
    np.testing.assert_array_equal(own.elsewhere, alone.draws)


def test_draws_of_large_tables_stand_for_some_of_the_rows() -> None:
    x = two_groups(6000)
    rows = Rows.of(x, "", (), seed=1)
    assert len(rows.drawn) == 2 * kernel.MOST_DRAWN
    judged = rows.compare(np.arange(3000), Split(1.5).label, 10)["apart"]
    assert judged.shrink == pytest.approx(np.sqrt(np.isin(np.arange(3000), rows.drawn).mean()))
    assert judged.score > 5


def test_rows_of_small_classes_take_no_part() -> None:
    x = two_groups(100)
    x[:3] = 40.0

    def label(rows: np.ndarray) -> np.ndarray:
        return np.digitize(rows.mean(axis=1), [1.5, 10.0])

    found = Rows.of(x, "", (), seed=1).compare(np.arange(100), label, 10)
    classes = label(x[3:])[None]
    told = kernel.scored(x, x)[3:][None], classes
    assert found["apart"].found == pytest.approx(kernel.separation(*told)[0])
    told = kernel.clipped(x, x)[3:][None], classes
    assert found["between"].found == kernel.share_between(*told)[0]


@pytest.mark.parametrize("value", [5.0, 20.0, 1e6])
def test_one_record_moves_scores_by_about_their_step_whatever_it_holds(value: float) -> None:
    """Of one half; it was .86 at most in three tables. Without cutting it was up to 10."""
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(4), 0.5 + 0.5 * np.eye(4), size=200)

    def score(table: np.ndarray) -> float:
        label = lambda rows: (rows.mean(axis=1) > 0).astype(np.int64)  # noqa: E731
        return Rows.of(table, "", (), seed=1).compare(np.arange(100), label, 10)["apart"].score

    base = score(x)
    for i in range(8):
        other = x.copy()
        other[i] = value
        assert abs(score(other) - base) <= 1.0


def test_many_rows_of_codes_are_judged_like_few() -> None:
    """More rows than are drawn: what chance makes of information must not differ by it."""
    rng = np.random.default_rng(3)
    codes = rng.integers(6, size=(12_000, 8))
    rows = Rows.of(codes, "latent-class", (6,) * 8, seed=1)
    label = lambda table: (table.sum(axis=1) > 20).astype(np.int64)  # noqa: E731
    found = rows.compare(np.arange(6000), label, 10)["related"]
    assert abs(found.score) < 4, "without the correction it is below -6"
